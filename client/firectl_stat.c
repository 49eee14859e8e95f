/* firectl_stat: a row every interval, like vmstat. The first row is about the time since the
 * daemon's start, every other about the time since the row before. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "firectl_daemon.h"

#define ROWS_BETWEEN_HEADINGS 20u

/* INTERVAL and COUNT; says on stderr what is wrong with them. */
static enum firectl_exit parse_arguments(const struct firectl_args *args, double *interval_s,
                                         uint64_t *count)
{
    char *end = NULL;

    *interval_s = FIRECTL_INTERVAL_S;
    *count = 0;
    if (args->input_count > 0) {
        *interval_s = strtod(args->inputs[0], &end);
        if (end == args->inputs[0] || *end || !(*interval_s >= FIRECTL_INTERVAL_S_MIN) ||
            *interval_s > FIRECTL_INTERVAL_S_MAX) {
            firectl_say("INTERVAL must be %g to %g seconds, got '%s'", FIRECTL_INTERVAL_S_MIN,
                        FIRECTL_INTERVAL_S_MAX, args->inputs[0]);
            return FIRECTL_USAGE;
        }
    }
    if (args->input_count > 1) {
        errno = 0;
        *count = strtoull(args->inputs[1], &end, 10);
        if (errno || end == args->inputs[1] || *end || args->inputs[1][0] == '-' || !*count ||
            *count > FIRECTL_COUNT_MAX) {
            firectl_say("COUNT must be 1 to %u rows, got '%s'", FIRECTL_COUNT_MAX, args->inputs[1]);
            return FIRECTL_USAGE;
        }
    }
    return FIRECTL_DONE;
}

static void print_heading(void)
{
    printf("%9s %10s %9s %7s %8s %8s %6s %10s %10s\n", "calls/s", "matrices/s", "batches/s",
           "batch", "waiting", "running", "busy %", "memory", "refused/s");
}

static uint64_t memory_bytes(const Fire__V1__StatusResponse *status)
{
    return status->memory ? status->memory->slab_bytes + status->memory->message_bytes : 0;
}

static bool print_row_json(const Fire__V1__StatusResponse *status,
                           const struct firectl_rates *rates)
{
    json_t *object = json_pack(
        "{s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:f,s:I,s:I,s:f,s:b}", "uptime_seconds",
        status->uptime_seconds, "calls_per_second", rates->calls, "matrices_per_second",
        rates->matrices, "batches_per_second", rates->batches, "batch_size", rates->batch_size,
        "jobs_waiting", (json_int_t)status->jobs_waiting, "jobs_running",
        (json_int_t)status->jobs_running, "busy_percent", rates->busy_percent, "memory_bytes",
        (json_int_t)memory_bytes(status), "resident_bytes",
        (json_int_t)(status->memory ? status->memory->resident_bytes : 0), "refusals_per_second",
        rates->refusals, "draining", status->draining);
    const bool ok =
        object && json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) == 0;

    json_decref(object);
    putchar('\n');
    return ok;
}

/* False when the row could not be written. */
static bool print_row(const struct firectl_args *args, const Fire__V1__StatusResponse *before,
                      const Fire__V1__StatusResponse *status, uint64_t row)
{
    struct firectl_rates rates;
    char memory[32];

    firectl_rates(before, status, &rates);
    if (args->json)
        return print_row_json(status, &rates) && fflush(stdout) == 0;
    if (row % ROWS_BETWEEN_HEADINGS == 0)
        print_heading();
    firectl_size_text(memory_bytes(status), memory, sizeof(memory));
    printf("%9.1f %10.1f %9.1f %7.1f %8" PRIu64 " %8" PRIu64 " %6.1f %10s %10.1f\n", rates.calls,
           rates.matrices, rates.batches, rates.batch_size, status->jobs_waiting,
           status->jobs_running, rates.busy_percent, memory, rates.refusals);
    return fflush(stdout) == 0;
}

enum firectl_exit firectl_stat(const struct firectl_args *args)
{
    Fire__V1__StatusResponse *before = NULL;
    struct admin *admin = NULL;
    double interval_s;
    uint64_t count;
    enum firectl_exit code = parse_arguments(args, &interval_s, &count);

    if (code != FIRECTL_DONE)
        return code;
    firectl_signals_init();
    code = admin_open(args, &admin);
    for (uint64_t row = 0; code == FIRECTL_DONE && (!count || row < count); row++) {
        struct admin_failure failure;
        Fire__V1__StatusResponse *status;

        if (row && !firectl_pause(interval_s))
            break;
        status = admin_status(admin, &failure);
        if (!status) {
            code = admin_fail(admin, &failure);
            break;
        }
        if (!print_row(args, before, status, row)) {
            firectl_say("could not write a row: %s", strerror(errno));
            code = FIRECTL_FAILED;
        }
        if (before)
            fire__v1__status_response__free_unpacked(before, NULL);
        before = status;
    }
    if (before)
        fire__v1__status_response__free_unpacked(before, NULL);
    admin_close(admin);
    return code;
}
