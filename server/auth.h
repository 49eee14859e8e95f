/* auth: who a caller is and what it may do. One check for every entrance.
 *
 * Without credentials configured, a caller on loopback or a unix socket has all rights and names
 * its tenant itself (default "local"); any other caller is refused. With credentials, the tenant
 * comes from the credential alone and what no rule allows is denied.
 *
 * The credentials file (YAML): `tokens:` a list of {name, tenant, hash ("sha256:<salt>:<hex>"),
 * allow: [method patterns]}, `certificates:` a list of {subject (common name or SAN), tenant,
 * allow}. A method pattern is a whole method ("fire.v1.AdminService/Status", "http/metrics"), a
 * service followed by a slash and a star, or a star alone. `fired --hash-token` reads a token from
 * stdin and prints its hash. Hashes
 * are compared in constant time. The table is immutable once opened: reload opens a new one. */
#ifndef FIRED_AUTH_H
#define FIRED_AUTH_H

#include <stdbool.h>
#include <stddef.h>

#include "status.h"
#include "tenant.h"

struct auth;

struct auth_caller {
    const char *token;          /* of "authorization: Bearer …", or NULL */
    size_t token_bytes;
    const char *const *names;   /* of a verified client certificate (common name, SANs) */
    size_t name_count;
    const char *claimed_tenant; /* of "x-fired-tenant", or NULL */
    bool local;                 /* loopback or unix socket */
};

/* `path` NULL or empty: no credentials. */
FIRE_NODISCARD enum fire_status auth_open(const char *path, struct auth **auth,
                                          struct fire_error *error);
void auth_close(struct auth *auth); /* NULL is allowed */
bool auth_has_credentials(const struct auth *auth);

/* `method` without the leading slash. FIRE_OK and the tenant's name, FIRE_UNAUTHENTICATED or
 * FIRE_DENIED with a message that says no more than needed. Health and reflection are methods like
 * any other; with credentials configured, grpc.health.v1.Health/Check and http/healthz,
 * http/readyz are open to all. */
FIRE_NODISCARD enum fire_status auth_check(const struct auth *auth,
                                           const struct auth_caller *caller, const char *method,
                                           char tenant[TENANT_NAME_BYTES],
                                           struct fire_error *error);

/* Writes "sha256:<salt>:<hex>" with a fresh salt. */
FIRE_NODISCARD enum fire_status auth_hash_token(const char *token, size_t token_bytes, char *text,
                                                size_t text_bytes, struct fire_error *error);

/* Parses credentials from memory, for the fuzzer. */
FIRE_NODISCARD enum fire_status auth_parse(const char *yaml, size_t bytes, struct auth **auth,
                                           struct fire_error *error);

#endif
