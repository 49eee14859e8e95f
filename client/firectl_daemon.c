/* firectl_daemon: health, status, ping and drain: one question each. */
#include "firectl_daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grpc/health/v1/health.pb-c.h"

#define PING_COUNT         4u
#define PING_LATENCY_COUNT 1000u
#define HEALTH_METHOD      "/grpc.health.v1.Health/Check"

/* --- helpers ---------------------------------------------------------------------------------- */

bool firectl_pause(double seconds)
{
    struct timespec left = { .tv_sec = (time_t)seconds,
                             .tv_nsec = (long)(1e9 * (seconds - floor(seconds))) };

    while (!firectl_signal()) {
        if (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == 0)
            return true;
    }
    return false;
}

void firectl_size_text(uint64_t bytes, char *text, size_t text_bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024.0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024.0;
        unit++;
    }
    snprintf(text, text_bytes, unit && value < 100.0 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

void firectl_duration_text(double seconds, char *text, size_t text_bytes)
{
    const uint64_t all = seconds > 0.0 ? (uint64_t)seconds : 0;

    if (all < 60)
        snprintf(text, text_bytes, "%" PRIu64 " s", all);
    else if (all < 3600)
        snprintf(text, text_bytes, "%" PRIu64 " min %" PRIu64 " s", all / 60, all % 60);
    else if (all < 86400)
        snprintf(text, text_bytes, "%" PRIu64 " h %" PRIu64 " min", all / 3600, all / 60 % 60);
    else
        snprintf(text, text_bytes, "%" PRIu64 " d %" PRIu64 " h", all / 86400, all / 3600 % 24);
}

uint64_t firectl_refusals(const Fire__V1__StatusResponse *status)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < status->n_refusals; i++)
        sum += status->refusals[i]->value;
    return sum;
}

void firectl_rates(const Fire__V1__StatusResponse *before, const Fire__V1__StatusResponse *after,
                   struct firectl_rates *rates)
{
    double seconds = after->uptime_seconds;
    double calls = (double)after->calls_total;
    double refusals = (double)firectl_refusals(after);
    double matrices = 0.0, batches = 0.0, busy = 0.0;

    for (size_t i = 0; i < after->n_devices; i++) {
        matrices += (double)after->devices[i]->matrices;
        batches += (double)after->devices[i]->batches;
        busy += after->devices[i]->busy_seconds;
    }
    /* A younger daemon than before is another one: its figures start at its own start. */
    if (before && before->uptime_seconds <= after->uptime_seconds) {
        seconds -= before->uptime_seconds;
        calls -= (double)before->calls_total;
        refusals -= (double)firectl_refusals(before);
        for (size_t i = 0; i < before->n_devices; i++) {
            matrices -= (double)before->devices[i]->matrices;
            batches -= (double)before->devices[i]->batches;
            busy -= before->devices[i]->busy_seconds;
        }
    }
    *rates = (struct firectl_rates){ .batch_size = batches > 0.0 ? matrices / batches : 0.0 };
    if (seconds <= 0.0)
        return;
    rates->calls = calls / seconds;
    rates->matrices = matrices / seconds;
    rates->batches = batches / seconds;
    rates->refusals = refusals / seconds;
    rates->busy_percent =
        after->n_devices ? 100.0 * busy / seconds / (double)after->n_devices : 0.0;
}

/* Prints `object` as one line and releases it. NULL stands for an allocation that failed. */
static enum firectl_exit print_json(json_t *object)
{
    const int failed =
        !object || json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0;

    json_decref(object);
    if (failed) {
        firectl_say("could not write JSON: out of memory, or standard output is closed");
        return FIRECTL_FAILED;
    }
    putchar('\n');
    return FIRECTL_DONE;
}

/* --- health ----------------------------------------------------------------------------------- */

static Grpc__Health__V1__HealthCheckResponse *health_check(struct admin *admin,
                                                           struct admin_failure *failure)
{
    const Grpc__Health__V1__HealthCheckRequest request =
        GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;

    return (Grpc__Health__V1__HealthCheckResponse *)admin_call(
        admin, HEALTH_METHOD, &request.base, &grpc__health__v1__health_check_response__descriptor,
        failure);
}

static const char *serving_name(const Grpc__Health__V1__HealthCheckResponse *answer)
{
    const ProtobufCEnumValue *value = protobuf_c_enum_descriptor_get_value(
        &grpc__health__v1__health_check_response__serving_status__descriptor, (int)answer->status);

    return value ? value->name : "UNKNOWN";
}

enum firectl_exit firectl_health(const struct firectl_args *args)
{
    struct admin_failure failure;
    Grpc__Health__V1__HealthCheckResponse *answer;
    struct admin *admin;
    enum firectl_exit code = admin_open(args, &admin);

    if (code != FIRECTL_DONE)
        return code;
    answer = health_check(admin, &failure);
    if (!answer) {
        code = admin_fail(admin, &failure);
    } else {
        const char *name = serving_name(answer);

        if (args->json)
            code =
                print_json(json_pack("{s:s,s:s}", "address", admin_address(admin), "status", name));
        else
            printf("%s\n", name);
        if (answer->status != GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING)
            code = FIRECTL_FAILED;
        protobuf_c_message_free_unpacked(&answer->base, NULL);
    }
    admin_close(admin);
    return code;
}

/* --- status ----------------------------------------------------------------------------------- */

static const char *level_name(Fire__V1__LogLevel level)
{
    switch (level) {
    case FIRE__V1__LOG_LEVEL__LOG_LEVEL_ERROR: return "error";
    case FIRE__V1__LOG_LEVEL__LOG_LEVEL_WARN: return "warn";
    case FIRE__V1__LOG_LEVEL__LOG_LEVEL_INFO: return "info";
    case FIRE__V1__LOG_LEVEL__LOG_LEVEL_DEBUG: return "debug";
    case FIRE__V1__LOG_LEVEL__LOG_LEVEL_UNSPECIFIED:
    case _FIRE__V1__LOG_LEVEL_IS_INT_SIZE: break;
    }
    return "unknown";
}

static json_t *json_u64(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *device_json(const Fire__V1__DeviceStatus *device)
{
    return json_pack("{s:i,s:s,s:s,s:s,s:s,s:i,s:b,s:f,s:o,s:o,s:f,s:i}", "index",
                     (int)device->index, "backend", device->backend, "name", device->name, "path",
                     device->path, "reason", device->reason, "threads", (int)device->threads,
                     "in_service", device->in_service, "busy_seconds", device->busy_seconds,
                     "batches", json_u64(device->batches), "matrices", json_u64(device->matrices),
                     "flops_per_second", device->flops_per_second, "batches_running",
                     (int)device->batches_running);
}

static json_t *bucket_json(const Fire__V1__BucketStatus *bucket)
{
    return json_pack("{s:s,s:i,s:i,s:f,s:o,s:o}", "key", bucket->key, "waiting",
                     (int)bucket->waiting, "efficient_size", (int)bucket->efficient_size,
                     "oldest_ms", bucket->oldest_ms, "batches", json_u64(bucket->batches),
                     "matrices", json_u64(bucket->matrices));
}

static json_t *tenant_json(const Fire__V1__TenantStatus *tenant)
{
    return json_pack("{s:s,s:f,s:f,s:o,s:i,s:i,s:o,s:o}", "name", tenant->name, "weight",
                     tenant->weight, "device_seconds", tenant->device_seconds, "bytes_in_flight",
                     json_u64(tenant->bytes_in_flight), "calls", (int)tenant->calls, "streams",
                     (int)tenant->streams, "calls_total", json_u64(tenant->calls_total),
                     "refusals_total", json_u64(tenant->refusals_total));
}

static json_t *memory_json(const Fire__V1__MemoryStatus *memory)
{
    return json_pack(
        "{s:o,s:o,s:o,s:o,s:o,s:o}", "budget_bytes", json_u64(memory->budget_bytes), "slab_bytes",
        json_u64(memory->slab_bytes), "slab_bytes_max", json_u64(memory->slab_bytes_max),
        "message_bytes", json_u64(memory->message_bytes), "message_bytes_max",
        json_u64(memory->message_bytes_max), "resident_bytes", json_u64(memory->resident_bytes));
}

/* The lists and the map of a status; false when memory ran out. */
static bool status_lists(json_t *object, const Fire__V1__StatusResponse *status)
{
    json_t *devices = json_array(), *buckets = json_array(), *tenants = json_array();
    json_t *addresses = json_array(), *refusals = json_object();
    bool ok = true;

    for (size_t i = 0; i < status->n_devices; i++)
        ok &= json_array_append_new(devices, device_json(status->devices[i])) == 0;
    for (size_t i = 0; i < status->n_buckets; i++)
        ok &= json_array_append_new(buckets, bucket_json(status->buckets[i])) == 0;
    for (size_t i = 0; i < status->n_tenants; i++)
        ok &= json_array_append_new(tenants, tenant_json(status->tenants[i])) == 0;
    for (size_t i = 0; i < status->n_addresses; i++)
        ok &= json_array_append_new(addresses, json_string(status->addresses[i])) == 0;
    for (size_t i = 0; i < status->n_refusals; i++)
        ok &= json_object_set_new(refusals, status->refusals[i]->key,
                                  json_u64(status->refusals[i]->value)) == 0;
    ok &= json_object_set_new(object, "devices", devices) == 0;
    ok &= json_object_set_new(object, "buckets", buckets) == 0;
    ok &= json_object_set_new(object, "tenants", tenants) == 0;
    ok &= json_object_set_new(object, "addresses", addresses) == 0;
    ok &= json_object_set_new(object, "refusals", refusals) == 0;
    if (status->memory)
        ok &= json_object_set_new(object, "memory", memory_json(status->memory)) == 0;
    return ok;
}

static enum firectl_exit status_print_json(const Fire__V1__StatusResponse *status)
{
    json_t *object =
        json_pack("{s:s,s:f,s:b,s:s,s:i,s:o,s:o,s:o,s:o}", "version", status->version,
                  "uptime_seconds", status->uptime_seconds, "draining", status->draining,
                  "log_level", level_name(status->log_level), "calls", (int)status->calls,
                  "calls_total", json_u64(status->calls_total), "jobs_waiting",
                  json_u64(status->jobs_waiting), "jobs_running", json_u64(status->jobs_running),
                  "jobs_dropped", json_u64(status->jobs_dropped));

    if (object && !status_lists(object, status)) {
        json_decref(object);
        object = NULL;
    }
    return print_json(object);
}

static void status_print_memory(const Fire__V1__MemoryStatus *memory)
{
    char budget[32], slab[32], slab_max[32], message[32], message_max[32], resident[32];

    firectl_size_text(memory->budget_bytes, budget, sizeof(budget));
    firectl_size_text(memory->slab_bytes, slab, sizeof(slab));
    firectl_size_text(memory->slab_bytes_max, slab_max, sizeof(slab_max));
    firectl_size_text(memory->message_bytes, message, sizeof(message));
    firectl_size_text(memory->message_bytes_max, message_max, sizeof(message_max));
    firectl_size_text(memory->resident_bytes, resident, sizeof(resident));
    printf("memory    budget %s: matrices %s of %s, messages %s of %s; process %s\n", budget, slab,
           slab_max, message, message_max, resident);
}

static void status_print_head(const Fire__V1__StatusResponse *status)
{
    char uptime[32];

    firectl_duration_text(status->uptime_seconds, uptime, sizeof(uptime));
    printf("fired %s  %s  up %s  log level %s\n", status->version,
           status->draining ? "DRAINING" : "serving", uptime, level_name(status->log_level));
    for (size_t i = 0; i < status->n_addresses; i++)
        printf("%-9s %s\n", i ? "" : "address", status->addresses[i]);
    printf("calls     %" PRIu32 " now, %" PRIu64 " since start, %" PRIu64 " refused\n",
           status->calls, status->calls_total, firectl_refusals(status));
    for (size_t i = 0; i < status->n_refusals; i++)
        printf("          %" PRIu64 " %s\n", status->refusals[i]->value, status->refusals[i]->key);
    printf("matrices  %" PRIu64 " waiting, %" PRIu64 " running, %" PRIu64 " dropped since start\n",
           status->jobs_waiting, status->jobs_running, status->jobs_dropped);
    if (status->memory)
        status_print_memory(status->memory);
}

static void status_print_tables(const Fire__V1__StatusResponse *status)
{
    char text[32];

    printf("\n%-6s %-7s %-9s %7s %6s %9s %10s %9s  %s\n", "DEVICE", "BACKEND", "PATH", "THREADS",
           "BUSY %", "BATCHES", "MATRICES", "GFLOP/S", "NAME");
    for (size_t i = 0; i < status->n_devices; i++) {
        const Fire__V1__DeviceStatus *device = status->devices[i];

        printf("%-6" PRIu32 " %-7s %-9s %7" PRIu32 " %6.1f %9" PRIu64 " %10" PRIu64
               " %9.1f  %s%s\n",
               device->index, device->backend, device->path, device->threads,
               status->uptime_seconds > 0.0 ? 100.0 * device->busy_seconds / status->uptime_seconds
                                            : 0.0,
               device->batches, device->matrices, 1e-9 * device->flops_per_second, device->name,
               device->in_service ? "" : " (OUT OF SERVICE)");
    }
    if (status->n_buckets)
        printf("\n%-32s %8s %9s %10s %9s %10s\n", "BUCKET", "WAITING", "EFFICIENT", "OLDEST MS",
               "BATCHES", "MATRICES");
    for (size_t i = 0; i < status->n_buckets; i++) {
        const Fire__V1__BucketStatus *bucket = status->buckets[i];

        printf("%-32s %8" PRIu32 " %9" PRIu32 " %10.1f %9" PRIu64 " %10" PRIu64 "\n", bucket->key,
               bucket->waiting, bucket->efficient_size, bucket->oldest_ms, bucket->batches,
               bucket->matrices);
    }
    if (status->n_tenants)
        printf("\n%-24s %7s %10s %6s %8s %12s %9s %9s\n", "TENANT", "WEIGHT", "DEVICE S", "CALLS",
               "STREAMS", "IN FLIGHT", "TOTAL", "REFUSED");
    for (size_t i = 0; i < status->n_tenants; i++) {
        const Fire__V1__TenantStatus *tenant = status->tenants[i];

        firectl_size_text(tenant->bytes_in_flight, text, sizeof(text));
        printf("%-24s %7g %10.3f %6" PRIu32 " %8" PRIu32 " %12s %9" PRIu64 " %9" PRIu64 "\n",
               tenant->name, tenant->weight, tenant->device_seconds, tenant->calls, tenant->streams,
               text, tenant->calls_total, tenant->refusals_total);
    }
}

enum firectl_exit firectl_status(const struct firectl_args *args)
{
    struct admin_failure failure;
    Fire__V1__StatusResponse *status;
    struct admin *admin;
    enum firectl_exit code = admin_open(args, &admin);

    if (code != FIRECTL_DONE)
        return code;
    status = admin_status(admin, &failure);
    if (!status) {
        code = admin_fail(admin, &failure);
    } else if (args->json) {
        code = status_print_json(status);
    } else {
        status_print_head(status);
        status_print_tables(status);
    }
    if (status)
        fire__v1__status_response__free_unpacked(status, NULL);
    admin_close(admin);
    return code;
}

/* --- ping ------------------------------------------------------------------------------------- */

static int compare_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The least value that at least `percent` of the sorted values do not exceed. */
static double percentile(const double *sorted, size_t count, double percent)
{
    size_t index = (size_t)ceil(0.01 * percent * (double)count);

    return sorted[index ? index - 1 : 0];
}

static enum firectl_exit ping_print(const struct firectl_args *args, const char *address,
                                    double *times_ms, size_t count)
{
    double p50, p90, p99;

    qsort(times_ms, count, sizeof(*times_ms), compare_numbers);
    p50 = percentile(times_ms, count, 50.0);
    p90 = percentile(times_ms, count, 90.0);
    p99 = percentile(times_ms, count, 99.0);
    if (args->json)
        return print_json(json_pack("{s:s,s:i,s:f,s:f,s:f,s:f,s:f}", "address", address, "count",
                                    (int)count, "min_ms", times_ms[0], "p50_ms", p50, "p90_ms", p90,
                                    "p99_ms", p99, "max_ms", times_ms[count - 1]));
    printf("%zu round trips to %s, ms: min %.3f  p50 %.3f  p90 %.3f  p99 %.3f  max %.3f\n", count,
           address, times_ms[0], p50, p90, p99, times_ms[count - 1]);
    return FIRECTL_DONE;
}

/* Round trips until `count` or a signal; how many there were. */
static enum firectl_exit ping_run(const struct firectl_args *args, struct admin *admin,
                                  double *times_ms, size_t count, size_t *done)
{
    const double interval_s = args->latency            ? 0.0
                              : args->interval_s > 0.0 ? args->interval_s
                                                       : FIRECTL_INTERVAL_S;

    for (*done = 0; *done < count && !firectl_signal(); (*done)++) {
        struct admin_failure failure;
        Grpc__Health__V1__HealthCheckResponse *answer;
        double started_s;

        if (*done && interval_s > 0.0 && !firectl_pause(interval_s))
            break;
        started_s = firectl_now_s();
        answer = health_check(admin, &failure);
        if (!answer)
            return firectl_signal() ? FIRECTL_DONE : admin_fail(admin, &failure);
        times_ms[*done] = 1e3 * (firectl_now_s() - started_s);
        if (!args->latency && !args->json) {
            printf("%s %s: %zu %.3f ms\n", admin_address(admin), serving_name(answer), *done + 1,
                   times_ms[*done]);
            fflush(stdout);
        }
        protobuf_c_message_free_unpacked(&answer->base, NULL);
    }
    return FIRECTL_DONE;
}

enum firectl_exit firectl_ping(const struct firectl_args *args)
{
    const size_t count = args->count     ? args->count
                         : args->latency ? PING_LATENCY_COUNT
                                         : PING_COUNT;
    double *times_ms = calloc(count, sizeof(*times_ms));
    struct admin_failure failure;
    Grpc__Health__V1__HealthCheckResponse *warm;
    struct admin *admin = NULL;
    enum firectl_exit code;
    size_t done = 0;

    if (!times_ms) {
        firectl_say("no memory for %zu round trips; ask for fewer with -n", count);
        return FIRECTL_FAILED;
    }
    firectl_signals_init();
    code = admin_open(args, &admin);
    if (code == FIRECTL_DONE) {
        /* The first call also makes the connection: it is not a round trip. */
        warm = health_check(admin, &failure);
        if (warm)
            protobuf_c_message_free_unpacked(&warm->base, NULL);
        code = warm ? ping_run(args, admin, times_ms, count, &done) : admin_fail(admin, &failure);
    }
    if (code == FIRECTL_DONE && done)
        code = ping_print(args, admin_address(admin), times_ms, done);
    admin_close(admin);
    free(times_ms);
    return code;
}

/* --- drain ------------------------------------------------------------------------------------ */

enum firectl_exit firectl_drain(const struct firectl_args *args)
{
    Fire__V1__DrainRequest request = FIRE__V1__DRAIN_REQUEST__INIT;
    Fire__V1__DrainResponse *answer;
    struct admin_failure failure;
    struct admin *admin;
    enum firectl_exit code = admin_open(args, &admin);

    if (code != FIRECTL_DONE)
        return code;
    request.limit_seconds = args->limit_s;
    answer =
        (Fire__V1__DrainResponse *)admin_call(admin, "/fire.v1.AdminService/Drain", &request.base,
                                              &fire__v1__drain_response__descriptor, &failure);
    if (!answer) {
        code = admin_fail(admin, &failure);
    } else {
        if (args->json)
            code = print_json(json_pack("{s:s,s:i}", "address", admin_address(admin), "calls",
                                        (int)answer->calls));
        else
            printf("%s drains: %" PRIu32 " calls are still running; it ends when they have\n",
                   admin_address(admin), answer->calls);
        protobuf_c_message_free_unpacked(&answer->base, NULL);
    }
    admin_close(admin);
    return code;
}
