/* Any text as the file of credentials, and any bytes as a token: the text up to the first zero byte
 * is the file, what follows is the token. What must hold whatever they are:
 *   a refused file says why in one line;
 *   a caller without a credential gets nothing but health;
 *   whoever is let in has a tenant with a proper name;
 *   a table with one known token lets in that token and no other. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "auth.h"

#define METHOD "fire.v1.ReinitService/Reinit"
#define HEALTH "grpc.health.v1.Health/Check"

static const char known_token[] = "0123456789abcdef0123456789abcdef";
static const char known_table[] =
    "tokens:\n"
    "  - { name: a, tenant: known, allow: [\"*\"],\n"
    "      hash: \"sha256:00000000000000000000000000000000:"
    "71c789f6d75c07e6315772299f3ef92b3be2dac5cc99f2cb8092156024d283c0\" }\n";

/* Not assert(): this must stop in Release too. */
static void demand(bool condition)
{
    if (!condition)
        abort();
}

static void check(const struct auth *auth, const char *token, size_t token_bytes)
{
    const struct auth_caller nobody = { .local = true, .claimed_tenant = "root" };
    const struct auth_caller caller = { .token = token, .token_bytes = token_bytes };
    struct fire_error error = { .message = "" };
    char tenant[TENANT_NAME_BYTES];
    enum fire_status status;

    demand(auth_check(auth, &nobody, METHOD, tenant, &error) == FIRE_UNAUTHENTICATED);
    demand(tenant[0] == '\0' && error.message[0] != '\0');
    demand(auth_check(auth, &nobody, HEALTH, tenant, &error) == FIRE_OK);
    demand(strcmp(tenant, "anonymous") == 0);
    status = auth_check(auth, &caller, METHOD, tenant, &error);
    demand(status == FIRE_OK ? auth_tenant_is_valid(tenant) : tenant[0] == '\0');
    demand(status == FIRE_OK || status == FIRE_UNAUTHENTICATED || status == FIRE_DENIED);
}

static void check_known(const char *token, size_t token_bytes)
{
    const struct auth_caller caller = { .token = token, .token_bytes = token_bytes };
    const bool same =
        token_bytes == strlen(known_token) && memcmp(token, known_token, token_bytes) == 0;
    char tenant[TENANT_NAME_BYTES];
    struct fire_error error;
    struct auth *auth;

    demand(auth_parse(known_table, strlen(known_table), &auth, &error) == FIRE_OK);
    demand(auth_check(auth, &caller, METHOD, tenant, &error) ==
           (same ? FIRE_OK : FIRE_UNAUTHENTICATED));
    auth_close(auth);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, '\0', size) : NULL;
    const size_t bytes = end ? (size_t)(end - data) : size;
    const char *token = end ? (const char *)end + 1 : known_token;
    const size_t token_bytes = end ? size - bytes - 1 : strlen(known_token);
    struct fire_error error = { .message = "" };
    struct auth *auth;
    const enum fire_status status = auth_parse((const char *)data, bytes, &auth, &error);

    if (status == FIRE_OK) {
        demand(auth_has_credentials(auth));
        check(auth, token, token_bytes);
    } else {
        demand(auth == NULL && error.status == status && error.message[0] != '\0');
        demand(strpbrk(error.message, "\r\n") == NULL);
    }
    auth_close(auth);
    check_known(token, token_bytes);
    return 0;
}
