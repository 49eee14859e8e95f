/* monitor_watch: new points and events for those who watch. A message is packed once and shared;
 * each watcher that takes it gets a copy of its own. One that does not keep up misses messages and
 * is told how many. */
#include <stdlib.h>
#include <string.h>

#include "monitor_check.h"
#include "monitor_internal.h"

#define WAITING_BYTES_MAX (16u << 20) /* of one watcher */

struct packed {
    uint32_t references;
    size_t bytes;
    uint8_t data[];
};

struct monitor_watch {
    struct monitor *monitor;
    struct monitor_watch *next;
    char tenant[TENANT_NAME_BYTES];
    char run[MONITOR_RUN_BYTES + 1];
    bool events_only;
    void (*ready)(void *data);
    void *data;
    struct packed *waiting[MONITOR_WATCH_WAITING]; /* a ring */
    uint32_t first;
    uint32_t count;
    size_t bytes;
    uint64_t missed;
};

static void packed_drop(struct packed *packed)
{
    if (--packed->references == 0)
        free(packed);
}

struct monitor_watch *monitor_watch_open(struct monitor *monitor, const char *tenant,
                                         const Fire__V1__WatchRequest *request,
                                         void (*ready)(void *data), void *data,
                                         struct fire_error *error)
{
    struct monitor_watch *watch = NULL;

    if (monitor_check_watch(request, error) != FIRE_OK)
        return NULL;
    if (monitor->off || monitor->closed) {
        (void)fire_fail(error, monitor->off ? FIRE_NOT_FOUND : FIRE_DRAINING, "history",
                        "this daemon keeps no history now");
        return NULL;
    }
    if (monitor->watch_count >= MONITOR_WATCHES_MAX) {
        (void)fire_fail(error, FIRE_BUSY, NULL, "%u watch already, the most there may be",
                        MONITOR_WATCHES_MAX);
        return NULL;
    }
    watch = calloc(1, sizeof(*watch));
    if (!watch) {
        (void)fire_fail_memory(error, sizeof(*watch));
        return NULL;
    }
    watch->monitor = monitor;
    strncpy(watch->tenant, tenant, sizeof(watch->tenant) - 1);
    strncpy(watch->run, request->run, sizeof(watch->run) - 1);
    watch->events_only = request->events_only;
    watch->ready = ready;
    watch->data = data;
    watch->next = monitor->watches;
    monitor->watches = watch;
    monitor->watch_count++;
    return watch;
}

void monitor_watch_close(struct monitor_watch *watch)
{
    struct monitor_watch **place;

    if (!watch)
        return;
    place = &watch->monitor->watches;
    while (*place != watch)
        place = &(*place)->next;
    *place = watch->next;
    watch->monitor->watch_count--;
    for (uint32_t i = 0; i < watch->count; i++)
        packed_drop(watch->waiting[(watch->first + i) % MONITOR_WATCH_WAITING]);
    free(watch);
}

Fire__V1__WatchResponse *monitor_watch_next(struct monitor_watch *watch)
{
    Fire__V1__WatchResponse *response;
    struct packed *packed;

    if (watch->count == 0)
        return NULL;
    packed = watch->waiting[watch->first];
    response = fire__v1__watch_response__unpack(NULL, packed->bytes, packed->data);
    if (!response)
        return NULL; /* no memory: it stays */
    watch->first = (watch->first + 1) % MONITOR_WATCH_WAITING;
    watch->count--;
    watch->bytes -= packed->bytes;
    packed_drop(packed);
    response->missed = watch->missed;
    watch->missed = 0;
    return response;
}

/* --- telling ---------------------------------------------------------------------------------- */

/* The message without points when `events_only`; NULL when nothing is left or memory is short. */
static struct packed *pack(const struct monitor_job *job, bool events_only)
{
    Fire__V1__WatchResponse message = FIRE__V1__WATCH_RESPONSE__INIT;
    const Fire__V1__ReportRequest *report = job->entry.report;
    struct packed *packed;
    size_t bytes;

    if (report && !events_only && report->n_series > 0) {
        message.run = report->run;
        message.series = report->series;
        message.n_series = report->n_series;
    }
    message.events = job->events;
    message.n_events = job->event_count;
    if (message.n_series == 0 && message.n_events == 0)
        return NULL;
    bytes = fire__v1__watch_response__get_packed_size(&message);
    packed = malloc(sizeof(*packed) + bytes);
    if (!packed)
        return NULL;
    packed->references = 1;
    packed->bytes = bytes;
    fire__v1__watch_response__pack(&message, packed->data);
    return packed;
}

static bool concerns(const struct monitor_watch *watch, const struct monitor_job *job)
{
    const char *run = job->entry.report      ? job->entry.report->run
                      : job->event_count > 0 ? job->events[0]->run
                                             : "";

    /* What happens to the daemon is told to all. */
    if (run[0] == '\0')
        return true;
    return strcmp(watch->tenant, job->tenant) == 0 &&
           (watch->run[0] == '\0' || strcmp(watch->run, run) == 0);
}

static void put(struct monitor_watch *watch, struct packed *packed)
{
    const bool was_empty = watch->count == 0;

    if (watch->count == MONITOR_WATCH_WAITING ||
        (watch->count > 0 && watch->bytes + packed->bytes > WAITING_BYTES_MAX)) {
        watch->missed++;
        return;
    }
    packed->references++;
    watch->waiting[(watch->first + watch->count++) % MONITOR_WATCH_WAITING] = packed;
    watch->bytes += packed->bytes;
    if (was_empty)
        watch->ready(watch->data); /* may close this watch */
}

void monitor_watches_tell(struct monitor *monitor, const struct monitor_job *job)
{
    struct packed *packed[2] = { NULL, NULL };
    struct monitor_watch *next;

    for (struct monitor_watch *watch = monitor->watches; watch; watch = next) {
        struct packed **kind = &packed[watch->events_only];

        next = watch->next;
        if (!concerns(watch, job))
            continue;
        if (!*kind)
            *kind = pack(job, watch->events_only);
        if (*kind)
            put(watch, *kind);
    }
    for (size_t i = 0; i < 2; i++)
        if (packed[i])
            packed_drop(packed[i]);
}
