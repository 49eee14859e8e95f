/* rpc_admin: fire.v1.AdminService. Status, Drain, SetLogLevel; small, answered at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "device.h"
#include "fire/v1/admin.pb-c.h"
#include "log.h"
#include "rpc_core.h"
#include "scheduler.h"
#include "server_life.h"

#define DEVICES_MAX       16u
#define BUCKETS_MAX       64u
#define TENANTS_SHOWN     256u
#define REFUSALS_MAX      64u
#define REASON_BYTES      64u
#define DRAIN_SECONDS_MAX 86400u

/* Everything a StatusResponse points to. */
struct status_room {
    Fire__V1__DeviceStatus devices[DEVICES_MAX];
    Fire__V1__DeviceStatus *device_list[DEVICES_MAX];
    struct fire_caps caps[DEVICES_MAX];
    struct bucket_info bucket_infos[BUCKETS_MAX];
    Fire__V1__BucketStatus buckets[BUCKETS_MAX];
    Fire__V1__BucketStatus *bucket_list[BUCKETS_MAX];
    struct tenant *tenant_order[TENANTS_MAX];
    Fire__V1__TenantStatus tenants[TENANTS_SHOWN];
    Fire__V1__TenantStatus *tenant_list[TENANTS_SHOWN];
    char reasons[REFUSALS_MAX][REASON_BYTES];
    Fire__V1__StatusResponse__RefusalsEntry refusals[REFUSALS_MAX];
    Fire__V1__StatusResponse__RefusalsEntry *refusal_list[REFUSALS_MAX];
    size_t refusal_count;
    char *addresses[CONFIG_LISTEN_MAX];
    Fire__V1__MemoryStatus memory;
};

static Fire__V1__LogLevel level_to_wire(enum log_level level)
{
    switch (level) {
    case LOG_ERROR: return FIRE__V1__LOG_LEVEL__LOG_LEVEL_ERROR;
    case LOG_WARN: return FIRE__V1__LOG_LEVEL__LOG_LEVEL_WARN;
    case LOG_INFO: return FIRE__V1__LOG_LEVEL__LOG_LEVEL_INFO;
    case LOG_DEBUG: return FIRE__V1__LOG_LEVEL__LOG_LEVEL_DEBUG;
    }
    return FIRE__V1__LOG_LEVEL__LOG_LEVEL_UNSPECIFIED;
}

static bool level_from_wire(Fire__V1__LogLevel wire, enum log_level *level)
{
    static const enum log_level levels[] = { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (level_to_wire(levels[i]) == wire) {
            *level = levels[i];
            return true;
        }
    }
    return false;
}

/* The best rate measured over all sizes. */
static double device_rate(struct device *device)
{
    const struct cost_model *cost = device_cost(device);
    double rate = 0;

    for (size_t i = 0; i < COST_CLASSES; i++) {
        const double seconds = cost->seconds_per_flop[i];

        if (seconds > 0 && 1 / seconds > rate)
            rate = 1 / seconds;
    }
    return rate;
}

static void devices_fill(struct status_room *room, struct scheduler *scheduler,
                         Fire__V1__StatusResponse *response)
{
    const uint32_t all = scheduler_device_count(scheduler);
    const uint32_t count = all < DEVICES_MAX ? all : DEVICES_MAX;

    for (uint32_t i = 0; i < count; i++) {
        struct device *device = scheduler_device(scheduler, i);
        Fire__V1__DeviceStatus *status = &room->devices[i];
        struct fire_caps *caps = &room->caps[i];

        fire__v1__device_status__init(status);
        device_caps(device, caps);
        status->index = i;
        status->backend = (char *)device_backend_name(device);
        status->name = caps->name;
        status->path = caps->path;
        status->reason = caps->reason;
        status->threads = caps->threads;
        status->in_service = device_in_service(device);
        status->busy_seconds = device_busy_s(device);
        status->batches = device_batches(device);
        status->matrices = device_matrices(device);
        status->flops_per_second = device_rate(device);
        status->batches_running = device_running(device);
        room->device_list[i] = status;
    }
    response->n_devices = count;
    response->devices = room->device_list;
}

static void buckets_fill(struct status_room *room, struct scheduler *scheduler,
                         Fire__V1__StatusResponse *response)
{
    const uint32_t count = scheduler_buckets(scheduler, room->bucket_infos, BUCKETS_MAX);
    const uint64_t now = clock_now_ns();

    for (uint32_t i = 0; i < count; i++) {
        struct bucket_info *info = &room->bucket_infos[i];
        Fire__V1__BucketStatus *status = &room->buckets[i];

        fire__v1__bucket_status__init(status);
        status->key = info->key;
        status->waiting = info->waiting;
        status->efficient_size = info->efficient_size;
        if (info->oldest_ns < now)
            status->oldest_ms = (double)(now - info->oldest_ns) / CLOCK_NS_PER_MS;
        status->batches = info->batches;
        status->matrices = info->matrices;
        room->bucket_list[i] = status;
    }
    response->n_buckets = count;
    response->buckets = room->bucket_list;
}

static int tenant_compare(const void *left, const void *right)
{
    const struct tenant *a = *(struct tenant *const *)left;
    const struct tenant *b = *(struct tenant *const *)right;

    if (a->device_seconds != b->device_seconds)
        return a->device_seconds > b->device_seconds ? -1 : 1;
    return strcmp(a->name, b->name);
}

static void tenants_fill(struct status_room *room, struct tenants *tenants,
                         Fire__V1__StatusResponse *response)
{
    const uint32_t all = tenants_count(tenants);
    const uint32_t seen = all < TENANTS_MAX ? all : TENANTS_MAX;
    const uint32_t count = seen < TENANTS_SHOWN ? seen : TENANTS_SHOWN;

    for (uint32_t i = 0; i < seen; i++)
        room->tenant_order[i] = tenants_at(tenants, i);
    qsort(room->tenant_order, seen, sizeof(room->tenant_order[0]), tenant_compare);
    for (uint32_t i = 0; i < count; i++) {
        struct tenant *tenant = room->tenant_order[i];
        Fire__V1__TenantStatus *status = &room->tenants[i];

        fire__v1__tenant_status__init(status);
        status->name = tenant->name;
        status->weight = tenant->limits.weight;
        status->device_seconds = tenant->device_seconds;
        status->bytes_in_flight = tenant->bytes_in_flight;
        status->calls = tenant->calls;
        status->streams = tenant->streams;
        status->calls_total = tenant->calls_total;
        status->refusals_total = tenant->refusals_total;
        room->tenant_list[i] = status;
    }
    response->n_tenants = count;
    response->tenants = room->tenant_list;
}

static void memory_fill(struct status_room *room, struct server *server,
                        Fire__V1__StatusResponse *response)
{
    Fire__V1__MemoryStatus *memory = &room->memory;

    fire__v1__memory_status__init(memory);
    memory->budget_bytes = server->config.memory_budget_bytes;
    if (server->arena) {
        memory->slab_bytes = arena_used(server->arena);
        memory->slab_bytes_max = arena_bytes(server->arena);
    }
    memory->message_bytes = budget_used(&server->messages);
    memory->message_bytes_max = server->messages.bytes_max;
    memory->resident_bytes = server_resident_bytes();
    response->memory = memory;
}

static void refusal_each(void *data, const char *first, const char *second, double value)
{
    struct status_room *room = data;
    const size_t index = room->refusal_count;
    Fire__V1__StatusResponse__RefusalsEntry *entry = &room->refusals[index];
    (void)second;

    if (index == REFUSALS_MAX || !first)
        return;
    snprintf(room->reasons[index], REASON_BYTES, "%s", first);
    fire__v1__status_response__refusals_entry__init(entry);
    entry->key = room->reasons[index];
    entry->value = (uint64_t)value;
    room->refusal_list[index] = entry;
    room->refusal_count++;
}

static void dropped_each(void *data, const char *first, const char *second, double value)
{
    (void)first;
    (void)second;
    *(double *)data += value;
}

static void counts_fill(struct status_room *room, struct server *server, struct rpc_server *rpc,
                        Fire__V1__StatusResponse *response)
{
    double dropped = 0;

    metrics_each(server->metrics, METRIC_REFUSALS, refusal_each, room);
    response->n_refusals = room->refusal_count;
    response->refusals = room->refusal_list;
    metrics_each(server->metrics, METRIC_JOBS_DROPPED, dropped_each, &dropped);
    response->jobs_dropped = (uint64_t)dropped;
    response->calls = rpc_server_calls(rpc);
    response->calls_total = rpc_server_calls_total(rpc);
    for (uint32_t i = 0; i < CONFIG_LISTEN_MAX && rpc_server_address(rpc, i); i++) {
        room->addresses[i] = (char *)rpc_server_address(rpc, i);
        response->n_addresses = i + 1;
    }
    response->addresses = room->addresses;
}

enum fire_status rpc_admin_status(struct server *server,
                                  void (*use)(const ProtobufCMessage *status, void *data),
                                  void *data)
{
    Fire__V1__StatusResponse response = FIRE__V1__STATUS_RESPONSE__INIT;
    struct status_room *room = calloc(1, sizeof(*room));

    if (!room)
        return FIRE_NO_MEMORY;
    response.version = (char *)FIRED_VERSION;
    response.uptime_seconds = (double)(clock_now_ns() - server->started_ns) / CLOCK_NS_PER_S;
    response.draining = server->draining;
    response.log_level = level_to_wire(log_get_level());
    if (server->scheduler) {
        devices_fill(room, server->scheduler, &response);
        buckets_fill(room, server->scheduler, &response);
        response.jobs_waiting = scheduler_waiting(server->scheduler);
        response.jobs_running = scheduler_running(server->scheduler);
    }
    tenants_fill(room, server->tenants, &response);
    memory_fill(room, server, &response);
    counts_fill(room, server, server->rpc, &response);
    use(&response.base, data);
    free(room);
    return FIRE_OK;
}

static void status_use(const ProtobufCMessage *status, void *data)
{
    rpc_small_reply(data, status);
}

static void status_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    struct fire_error error;
    ProtobufCMessage *request = rpc_small_unpack(&fire__v1__status_request__descriptor, message);

    if (!request) {
        rpc_small_malformed(call);
        return;
    }
    protobuf_c_message_free_unpacked(request, NULL);
    if (rpc_admin_status(rpc_call_server(call), status_use, call) != FIRE_OK)
        rpc_call_finish(call, fire_fail_memory(&error, sizeof(struct status_room)), &error, NULL);
}

static void drain_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    struct server *server = rpc_call_server(call);
    Fire__V1__DrainResponse response = FIRE__V1__DRAIN_RESPONSE__INIT;
    struct fire_error error;
    Fire__V1__DrainRequest *request =
        (Fire__V1__DrainRequest *)rpc_small_unpack(&fire__v1__drain_request__descriptor, message);

    if (!request) {
        rpc_small_malformed(call);
        return;
    }
    const uint32_t limit_seconds = request->limit_seconds;
    fire__v1__drain_request__free_unpacked(request, NULL);
    if (limit_seconds > DRAIN_SECONDS_MAX) {
        rpc_call_finish(call,
                        fire_fail(&error, FIRE_BAD_REQUEST, "limit_seconds",
                                  "limit_seconds must be 0 to %u, got %u", DRAIN_SECONDS_MAX,
                                  limit_seconds),
                        &error, NULL);
        return;
    }
    log_info("drain_asked", LOG_U64("call", rpc_call_id(call)),
             LOG_TEXT("tenant", rpc_call_tenant(call)->name));
    /* This call is one of those that still run. */
    response.calls = rpc_server_calls(rpc_call_rpc(call)) - 1;
    rpc_small_reply(call, &response.base);
    server_drain(server, limit_seconds * 1000);
}

static void set_log_level_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    Fire__V1__SetLogLevelResponse response = FIRE__V1__SET_LOG_LEVEL_RESPONSE__INIT;
    struct fire_error error;
    enum log_level level;
    Fire__V1__SetLogLevelRequest *request = (Fire__V1__SetLogLevelRequest *)rpc_small_unpack(
        &fire__v1__set_log_level_request__descriptor, message);

    if (!request) {
        rpc_small_malformed(call);
        return;
    }
    const Fire__V1__LogLevel wanted = request->level;
    fire__v1__set_log_level_request__free_unpacked(request, NULL);
    if (!level_from_wire(wanted, &level)) {
        rpc_call_finish(call,
                        fire_fail(&error, FIRE_BAD_REQUEST, "level",
                                  "level must be LOG_LEVEL_ERROR, _WARN, _INFO or _DEBUG, got %d",
                                  (int)wanted),
                        &error, NULL);
        return;
    }
    response.previous = level_to_wire(log_get_level());
    log_set_level(level);
    log_info("log_level_set", LOG_TEXT("level", log_level_name(level)),
             LOG_TEXT("tenant", rpc_call_tenant(call)->name));
    rpc_small_reply(call, &response.base);
}

const struct rpc_method rpc_status_method = {
    .path = "/fire.v1.AdminService/Status",
    .kind = RPC_UNARY,
    .open_while_draining = true,
    .message = status_message,
};

const struct rpc_method rpc_drain_method = {
    .path = "/fire.v1.AdminService/Drain",
    .kind = RPC_UNARY,
    .open_while_draining = true,
    .message = drain_message,
};

const struct rpc_method rpc_set_log_level_method = {
    .path = "/fire.v1.AdminService/SetLogLevel",
    .kind = RPC_UNARY,
    .open_while_draining = true,
    .message = set_log_level_message,
};
