/* rpc_health: grpc.health.v1 Check and Watch.
 *
 * The daemon is one thing: every service of it serves or none does, but for the monitor, which
 * needs its history. The empty name stands for all that need none.
 * A watcher hears the state when it asks and at each change; what changed while a message was on
 * its way is told once, as it is by then. */
#include <string.h>

#include "grpc/health/v1/health.pb-c.h"
#include "rpc_core.h"

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;

#define SERVING         GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

struct watch {
    struct rpc_call *next;
    struct rpc_call *previous;
    bool linked;
    bool known;          /* the service */
    bool monitors;       /* it is the monitor's */
    bool told;           /* at least once */
    serving_status last; /* what it was told */
};

#define MONITOR_SERVICE "fire.v1.MonitorService"

static bool service_known(const char *name)
{
    static const char *const names[] = { "", "fire.v1.ReinitService", "fire.v1.AdminService",
                                         MONITOR_SERVICE };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

static serving_status status_of(const struct rpc_health *health, bool monitors)
{
    return health->serving && (health->monitoring || !monitors) ? SERVING : NOT_SERVING;
}

static Grpc__Health__V1__HealthCheckRequest *request_unpack(struct rpc_call *call,
                                                            grpc_byte_buffer *message)
{
    ProtobufCMessage *request =
        rpc_small_unpack(&grpc__health__v1__health_check_request__descriptor, message);

    if (!request)
        rpc_small_malformed(call);
    return (Grpc__Health__V1__HealthCheckRequest *)request;
}

static void check_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    Grpc__Health__V1__HealthCheckRequest *request = request_unpack(call, message);
    Grpc__Health__V1__HealthCheckResponse answer = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    struct fire_error error;

    if (!request)
        return;
    if (service_known(request->service)) {
        answer.status = status_of(rpc_server_health(rpc_call_rpc(call)),
                                  strcmp(request->service, MONITOR_SERVICE) == 0);
        rpc_small_reply(call, &answer.base);
    } else {
        rpc_call_finish(call,
                        fire_fail(&error, FIRE_NOT_FOUND, "service",
                                  "there is no service \"%.128s\" here; ask for the empty name or "
                                  "one that reflection lists",
                                  request->service),
                        &error, NULL);
    }
    grpc__health__v1__health_check_request__free_unpacked(request, NULL);
}

/* Tells a watcher what it has not heard, and ends it when all is said. */
static void watch_tell(struct rpc_call *call)
{
    struct watch *watch = rpc_call_state(call);
    const struct rpc_health *health = rpc_server_health(rpc_call_rpc(call));
    Grpc__Health__V1__HealthCheckResponse answer = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    struct fire_error error;

    if (rpc_call_over(call) || rpc_call_sending(call))
        return;
    answer.status = watch->known ? status_of(health, watch->monitors) : SERVICE_UNKNOWN;
    if (!watch->told || watch->last != answer.status) {
        watch->told = true;
        watch->last = answer.status;
        rpc_call_send(call, rpc_small_pack(&answer.base));
    } else if (health->ended) {
        rpc_call_finish(call,
                        fire_fail(&error, FIRE_DRAINING, NULL,
                                  "this daemon is going down; watch another replica, or again when "
                                  "it is back"),
                        &error, NULL);
    }
}

static void watch_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    struct watch *watch = rpc_call_state(call);
    struct rpc_health *health = rpc_server_health(rpc_call_rpc(call));
    Grpc__Health__V1__HealthCheckRequest *request = request_unpack(call, message);

    if (!request)
        return;
    watch->known = service_known(request->service);
    watch->monitors = strcmp(request->service, MONITOR_SERVICE) == 0;
    grpc__health__v1__health_check_request__free_unpacked(request, NULL);

    watch->next = health->first;
    if (watch->next)
        ((struct watch *)rpc_call_state(watch->next))->previous = call;
    health->first = call;
    watch->linked = true;
    watch_tell(call);
}

static void watch_release(struct rpc_call *call)
{
    struct watch *watch = rpc_call_state(call);

    if (!watch->linked)
        return;
    if (watch->next)
        ((struct watch *)rpc_call_state(watch->next))->previous = watch->previous;
    if (watch->previous)
        ((struct watch *)rpc_call_state(watch->previous))->next = watch->next;
    else
        rpc_server_health(rpc_call_rpc(call))->first = watch->next;
}

/* Telling frees no call: each is held by its timer until a later turn of the loop. */
static void watchers_tell(struct rpc_health *health)
{
    for (struct rpc_call *call = health->first; call;
         call = ((struct watch *)rpc_call_state(call))->next)
        watch_tell(call);
}

void rpc_health_set(struct rpc_health *health, bool serving)
{
    health->serving = serving;
    watchers_tell(health);
}

void rpc_health_end(struct rpc_health *health)
{
    health->ended = true;
    watchers_tell(health);
}

const struct rpc_method rpc_health_check_method = {
    .path = "/grpc.health.v1.Health/Check",
    .kind = RPC_UNARY,
    .open_while_draining = true,
    .message = check_message,
};

const struct rpc_method rpc_health_watch_method = {
    .path = "/grpc.health.v1.Health/Watch",
    .kind = RPC_SERVER_STREAM,
    .state_bytes = sizeof(struct watch),
    .open_while_draining = true,
    .message = watch_message,
    .sent = watch_tell,
    .release = watch_release,
};
