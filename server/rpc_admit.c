/* rpc_admit: whether a call may begin. The cheap questions, asked before anything is taken for it:
 * are we going down, who is it, what is its tenant, is there room for one more.
 *
 * Small unary methods are answered in the turn of the loop they arrive in, so they hold nothing and
 * no count limits them: health and status must answer when everything else is refused. */
#include <ctype.h>
#include <grpc/grpc_security.h>
#include <grpc/grpc_security_constants.h>
#include <grpc/support/alloc.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "rpc_core.h"
#include "scheduler.h"

#define CERTIFICATE_NAMES_MAX 32u
#define TRACE_LENGTH          55u
#define BEARER                "Bearer "

uint32_t rpc_retry_ms(const struct server *server)
{
    const uint32_t retry_ms = server->scheduler ? scheduler_retry_ms(server->scheduler) : 0;

    return retry_ms > 0 ? retry_ms : 1;
}

static const grpc_slice *metadata_find(const grpc_metadata_array *metadata, const char *key)
{
    for (size_t i = 0; i < metadata->count; i++) {
        if (grpc_slice_str_cmp(metadata->metadata[i].key, key) == 0)
            return &metadata->metadata[i].value;
    }
    return NULL;
}

static bool hex_run(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (!isdigit((unsigned char)text[i]) && !(text[i] >= 'a' && text[i] <= 'f'))
            return false;
    }
    return true;
}

static bool zero_run(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != '0')
            return false;
    }
    return true;
}

bool rpc_trace_valid(const char *text, size_t bytes)
{
    if (bytes < TRACE_LENGTH || text[2] != '-' || text[35] != '-' || text[52] != '-')
        return false;
    if (!hex_run(text, 2) || !hex_run(text + 3, 32) || !hex_run(text + 36, 16) ||
        !hex_run(text + 53, 2))
        return false;
    if (strncmp(text, "ff", 2) == 0 || zero_run(text + 3, 32) || zero_run(text + 36, 16))
        return false;
    /* A later version may go on after a dash; version 00 has nothing more. */
    return bytes == TRACE_LENGTH || (strncmp(text, "00", 2) != 0 && text[TRACE_LENGTH] == '-');
}

void rpc_admit_trace(const grpc_metadata_array *metadata, char trace[RPC_TRACE_BYTES])
{
    const grpc_slice *value = metadata_find(metadata, "traceparent");

    trace[0] = '\0';
    if (!value)
        return;
    const char *text = (const char *)GRPC_SLICE_START_PTR(*value);
    if (rpc_trace_valid(text, GRPC_SLICE_LENGTH(*value))) {
        memcpy(trace, text, TRACE_LENGTH);
        trace[TRACE_LENGTH] = '\0';
    }
}

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool rpc_peer_local(const char *peer)
{
    static const char *const prefixes[] = {
        "unix:",           "ipv4:127.",         "ipv6:[::1]:",
        "ipv6:%5B::1%5D:", "ipv6:[::ffff:127.", "ipv6:%5B::ffff:127.",
    };

    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        if (starts_with(peer, prefixes[i]))
            return true;
    }
    return false;
}

/* The names of a certificate that was verified. They belong to `context`. A name with a zero byte
 * inside is left out: it would be read as another name. */
static size_t certificate_names(const grpc_auth_context *context, const char **names)
{
    static const char *const properties[] = { GRPC_X509_CN_PROPERTY_NAME,
                                              GRPC_X509_SAN_PROPERTY_NAME };
    size_t count = 0;

    if (!grpc_auth_context_peer_is_authenticated(context))
        return 0;
    for (size_t i = 0; i < sizeof(properties) / sizeof(properties[0]); i++) {
        grpc_auth_property_iterator iterator =
            grpc_auth_context_find_properties_by_name(context, properties[i]);
        const grpc_auth_property *property;

        while (count < CERTIFICATE_NAMES_MAX &&
               (property = grpc_auth_property_iterator_next(&iterator)) != NULL) {
            if (strlen(property->value) == property->value_length && property->value_length > 0)
                names[count++] = property->value;
        }
    }
    return count;
}

/* The token of "authorization: Bearer …"; the scheme's case does not matter. */
static void caller_token(const grpc_metadata_array *metadata, struct auth_caller *caller)
{
    const grpc_slice *value = metadata_find(metadata, "authorization");
    const size_t scheme_bytes = strlen(BEARER);

    if (!value || GRPC_SLICE_LENGTH(*value) <= scheme_bytes)
        return;
    const char *text = (const char *)GRPC_SLICE_START_PTR(*value);
    if (strncasecmp(text, BEARER, scheme_bytes) != 0)
        return;
    caller->token = text + scheme_bytes;
    caller->token_bytes = GRPC_SLICE_LENGTH(*value) - scheme_bytes;
}

static enum fire_status caller_tenant(const grpc_metadata_array *metadata,
                                      char claimed[TENANT_NAME_BYTES], struct auth_caller *caller,
                                      struct fire_error *error)
{
    const grpc_slice *value = metadata_find(metadata, "x-fired-tenant");

    if (!value)
        return FIRE_OK;
    const size_t bytes = GRPC_SLICE_LENGTH(*value);
    if (bytes == 0 || bytes >= TENANT_NAME_BYTES)
        return fire_fail(error, FIRE_BAD_REQUEST, "x-fired-tenant",
                         "x-fired-tenant must have 1 to %d characters, got %zu",
                         TENANT_NAME_BYTES - 1, bytes);
    memcpy(claimed, GRPC_SLICE_START_PTR(*value), bytes);
    claimed[bytes] = '\0';
    caller->claimed_tenant = claimed;
    return FIRE_OK;
}

/* Who it is: the name of its tenant, if it may call this method. */
static enum fire_status identify(struct server *server, const struct rpc_arrival *arrival,
                                 char tenant[TENANT_NAME_BYTES], struct fire_error *error)
{
    struct auth_caller caller = { 0 };
    const char *names[CERTIFICATE_NAMES_MAX];
    char claimed[TENANT_NAME_BYTES];
    enum fire_status status = caller_tenant(&arrival->metadata, claimed, &caller, error);

    if (status != FIRE_OK)
        return status;
    caller_token(&arrival->metadata, &caller);

    char *peer = grpc_call_get_peer(arrival->core);
    caller.local = peer && rpc_peer_local(peer);
    gpr_free(peer);

    grpc_auth_context *context = grpc_call_auth_context(arrival->core);
    caller.names = names;
    caller.name_count = context ? certificate_names(context, names) : 0;
    status = auth_check(server->auth, &caller, arrival->method->path + 1, tenant, error);
    if (context)
        grpc_auth_context_release(context);
    return status;
}

static enum fire_status room_check(struct rpc_server *rpc, const struct rpc_method *method,
                                   const struct tenant *tenant, struct rpc_failure *failure,
                                   struct fire_error *error)
{
    const struct server *server = rpc_server_owner(rpc);
    const bool stream = method->kind == RPC_STREAM || method->kind == RPC_SERVER_STREAM;

    if (method->kind == RPC_UNARY)
        return FIRE_OK;
    /* A unary call beyond its tenant's limit waits for room, as a guest: it is not read before, and
     * gives way to whoever is within his own. */
    const bool beyond = method->kind == RPC_UNARY_TENSOR
                            ? tenant_is_beyond(tenant)
                            : tenant->calls - tenant->guests >= tenant->limits.calls_max;
    const bool full = rpc_server_calls(rpc) >= server->config.calls_max;

    if (stream && tenant->streams >= tenant->limits.streams_max) {
        failure->reason = "TENANT_TOO_MANY_STREAMS";
        return fire_fail(error, FIRE_BUSY, NULL,
                         "tenant %s has %" PRIu32 " streams open, the most it may have; end one or "
                         "raise its streams_max",
                         tenant->name, tenant->streams);
    }
    if (full && !beyond && !rpc_guest_refuse(rpc)) {
        failure->reason = "TOO_MANY_CALLS";
        return fire_fail(error, FIRE_BUSY, NULL,
                         "%" PRIu32 " calls are running, the most there may be; try again later or "
                         "raise calls_max",
                         rpc_server_calls(rpc));
    }
    if (beyond && (full || method->kind != RPC_UNARY_TENSOR)) {
        failure->reason = "TENANT_TOO_MANY_CALLS";
        return fire_fail(error, FIRE_BUSY, NULL,
                         "tenant %s has %" PRIu32 " calls running, the most it may have; wait for "
                         "answers or raise its calls_max",
                         tenant->name, tenant->calls);
    }
    return FIRE_OK;
}

enum fire_status rpc_admit(struct rpc_server *rpc, const struct rpc_arrival *arrival,
                           struct tenant **tenant, struct rpc_failure *failure,
                           struct fire_error *error)
{
    struct server *server = rpc_server_owner(rpc);
    char name[TENANT_NAME_BYTES];
    enum fire_status status;

    *tenant = NULL;
    if ((server->draining || rpc_server_draining(rpc)) && !arrival->method->open_while_draining)
        return fire_fail(error, FIRE_DRAINING, NULL,
                         "this daemon is going down and takes no new calls; ask another replica, "
                         "or again when it is back");
    status = identify(server, arrival, name, error);
    if (status == FIRE_OK)
        status = tenants_find(server->tenants, name, tenant, error);
    if (status == FIRE_OK)
        status = room_check(rpc, arrival->method, *tenant, failure, error);
    return status;
}
