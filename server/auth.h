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
 * stdin and prints its hash. Hashes are compared in constant time. A file without any entry denies
 * everything. The table is immutable once opened: reload opens a new one. */
#ifndef FIRED_AUTH_H
#define FIRED_AUTH_H

#include <stdbool.h>
#include <stddef.h>

#include "status.h"
#include "tenant.h"

struct auth;

struct auth_caller {
    const char *token; /* of "authorization: Bearer …", or NULL */
    size_t token_bytes;
    const char *const *names; /* of a verified client certificate (common name, SANs) */
    size_t name_count;
    const char *claimed_tenant; /* of "x-fired-tenant", or NULL */
    bool local;                 /* loopback or unix socket */
};

/* `path` NULL or empty: no credentials. A file that others can read or change is FIRE_DENIED; what
 * is wrong in it is FIRE_BAD_REQUEST, a rule for a method that does not exist too. */
FIRE_NODISCARD enum fire_status auth_open(const char *path, struct auth **auth,
                                          struct fire_error *error);
void auth_close(struct auth *auth); /* NULL is allowed */
bool auth_has_credentials(const struct auth *auth);

/* Any thread. `method` without the leading slash. A token counts before a certificate. FIRE_OK and
 * the tenant's name, FIRE_UNAUTHENTICATED or FIRE_DENIED with a message that says no more than
 * needed, FIRE_BAD_REQUEST for a claimed tenant that can be none. Health and reflection are methods
 * like any other; with credentials configured, grpc.health.v1.Health/Check and http/healthz,
 * http/readyz and http/dashboard (the page's files, without any data) are open to all, as tenant
 * "anonymous" for those without a credential. The JSON API asks for the contract's methods. */
FIRE_NODISCARD enum fire_status auth_check(const struct auth *auth,
                                           const struct auth_caller *caller, const char *method,
                                           char tenant[TENANT_NAME_BYTES],
                                           struct fire_error *error);

/* Whether this can be a tenant's name: 1 to 63 of [A-Za-z0-9._-]. */
bool auth_tenant_is_valid(const char *name);

/* Writes "sha256:<salt>:<hex>" with a fresh salt; AUTH_HASH_BYTES are enough. A token has 16 to
 * 4096 printable ASCII characters without blanks; anything else is FIRE_BAD_REQUEST. */
#define AUTH_HASH_BYTES 128
FIRE_NODISCARD enum fire_status auth_hash_token(const char *token, size_t token_bytes, char *text,
                                                size_t text_bytes, struct fire_error *error);

/* Parses credentials from memory, for the fuzzer. */
FIRE_NODISCARD enum fire_status auth_parse(const char *yaml, size_t bytes, struct auth **auth,
                                           struct fire_error *error);

#endif
