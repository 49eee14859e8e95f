/* monitor_threads: the writer and the readers of the history.
 *
 * The writer takes everything that waits and commits it as one transaction: while one is being
 * synced the next one gathers. When the store fails, calls that wait are refused, what nobody waits
 * for stays in the queue, and the store is opened again after a pause that grows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "monitor_internal.h"

#define BATCH_JOBS_MAX  256u
#define BATCH_BYTES_MAX (16u << 20)
#define LINGER_MS       200u /* what nobody waits for gathers so long: a sync costs the same */
#define RETRY_FIRST_MS  100u
#define RETRY_MAX_MS    5000u
#define UPKEEP_MS       10000u /* between rounds of upkeep */
#define PATH_BYTES      4096u
#define SILENCE_S_MAX   1e9 /* longer ones are not asked for: no run is as old */

struct writer {
    struct monitor *monitor;
    struct history *history;
    struct monitor_job *batch[BATCH_JOBS_MAX];
    size_t count;
    bool behind;          /* the last batch left some */
    uint64_t retry_at_ns; /* while there is no history */
    uint32_t retry_ms;
    uint64_t upkeep_at_ns;
    bool opened; /* once */
};

/* --- back to the loop ------------------------------------------------------------------------- */

/* Under the lock. */
static void finish(struct monitor *monitor, struct monitor_job *job)
{
    jobs_push(&monitor->finished, job);
}

static void job_refuse(struct monitor_job *job, const struct fire_error *why)
{
    job->status =
        fire_fail(&job->error, FIRE_BUSY, "history",
                  "the history cannot be used now: %.400s; try again later", why->message);
}

/* --- the state of the store ------------------------------------------------------------------- */

/* The store is up, or `why` it is not. Calls that wait for it are refused then. */
static void set_state(struct monitor *monitor, const struct fire_error *why)
{
    struct monitor_jobs kept = { 0 };
    struct monitor_job *job;

    uv_mutex_lock(&monitor->lock);
    monitor->store_up = why == NULL;
    if (why)
        monitor->store_error = *why;
    while (why && (job = jobs_pop(&monitor->writes)) != NULL) {
        if (!job->done) {
            jobs_push(&kept, job);
            continue;
        }
        job_refuse(job, why);
        monitor->queued_bytes -= job->bytes;
        finish(monitor, job);
    }
    if (why) {
        monitor->writes = kept;
        monitor->callers_wait = false;
    }
    uv_cond_broadcast(&monitor->for_readers);
    uv_mutex_unlock(&monitor->lock);
    wake_send(&monitor->wake);
}

/* A file that is no database any more is kept beside a new one. */
static void set_aside(const struct writer *writer)
{
    static const char *const ends[] = { "", "-wal", "-shm" };
    const char *place = writer->monitor->place;
    const long long now = (long long)monitor_now_ms();
    char from[PATH_BYTES], to[PATH_BYTES];

    if (writer->monitor->store.backend != &sql_sqlite)
        return;
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        snprintf(from, sizeof(from), "%s%s", place, ends[i]);
        snprintf(to, sizeof(to), "%s.corrupt-%lld%s", place, now, ends[i]);
        if (rename(from, to) == 0)
            log_error("history_set_aside", LOG_TEXT("file", from), LOG_TEXT("kept_as", to),
                      LOG_TEXT("message", "it is damaged; a new history was begun"));
    }
}

static void lose_store(struct writer *writer, const struct fire_error *error, bool corrupt)
{
    history_close(writer->history);
    writer->history = NULL;
    if (corrupt)
        set_aside(writer);
    writer->retry_ms = writer->retry_ms ? 2 * writer->retry_ms : RETRY_FIRST_MS;
    if (writer->retry_ms > RETRY_MAX_MS)
        writer->retry_ms = RETRY_MAX_MS;
    writer->retry_at_ns = clock_now_ns() + writer->retry_ms * CLOCK_NS_PER_MS;
    set_state(writer->monitor, error);
}

/* --- alerts that fire ------------------------------------------------------------------------- */

static size_t put_text(struct monitor_alert *alert, size_t at, const char *text)
{
    strcpy(alert->texts + at, text);
    return at + strlen(text) + 1;
}

struct alert_list {
    struct monitor_alert *first;
    struct monitor_alert **end;
};

/* One without memory for it is left out: it will fire again. */
static void keep_alert(void *data, const struct history_alert *found)
{
    struct alert_list *list = data;
    struct monitor_alert *alert =
        malloc(sizeof(*alert) + strlen(found->tenant) + strlen(found->run) + strlen(found->layer) +
               strlen(found->rule) + 4);

    if (!alert)
        return;
    alert->run = put_text(alert, 0, found->tenant);
    alert->layer = put_text(alert, alert->run, found->run);
    alert->rule = put_text(alert, alert->layer, found->layer);
    put_text(alert, alert->rule, found->rule);
    alert->firing = found->firing;
    alert->next = NULL;
    *list->end = alert;
    list->end = &alert->next;
}

/* What fired when the daemon stopped still does, and what had points may fall silent. */
static enum fire_status take_over_alerts(struct writer *writer, struct fire_error *error)
{
    struct monitor *monitor = writer->monitor;
    const struct config *config = monitor->settings.config;
    struct history_silence silences[ALERTS_RULES_MAX];
    struct alert_list list = { NULL, &list.first };
    size_t count = 0;
    enum fire_status status;

    for (uint32_t i = 0; i < config->alert_count && count < ALERTS_RULES_MAX; i++) {
        const struct alert_rule *rule = &config->alerts[i];

        if (rule->kind == ALERT_NO_DATA)
            silences[count++] = (struct history_silence){
                .rule = rule->name,
                .statistic = rule->statistic,
                .span_ms = (int64_t)(1e3 * fmin(rule->window + rule->hold_s, SILENCE_S_MAX)),
            };
    }
    status = history_take_over(writer->history, silences, count, MONITOR_ALERTS_MAX, keep_alert,
                               &list, error);

    if (status != FIRE_OK) {
        monitor_alerts_free(list.first);
        return status;
    }
    uv_mutex_lock(&monitor->lock);
    monitor->firing = list.first;
    uv_mutex_unlock(&monitor->lock);
    writer->opened = true;
    return FIRE_OK;
}

static void open_store(struct writer *writer)
{
    struct history_settings settings = writer->monitor->store;
    struct fire_error error = { 0 };
    bool corrupt = false;
    enum fire_status status;

    settings.sql.writer = true;
    status = history_open(&settings, &writer->history, &corrupt, &error);
    if (status == FIRE_OK) {
        status = history_probe(writer->history, monitor_now_ms(), &error);
        if (status == FIRE_OK && !writer->opened)
            status = take_over_alerts(writer, &error);
        corrupt = history_corrupt(writer->history);
    }
    if (status != FIRE_OK) {
        lose_store(writer, &error, corrupt);
        return;
    }
    writer->retry_ms = 0;
    writer->upkeep_at_ns = clock_now_ns() + UPKEEP_MS * CLOCK_NS_PER_MS;
    set_state(writer->monitor, NULL);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void entry_fill(struct monitor_job *job)
{
    job->entry = (struct history_entry){
        .tenant = job->tenant,
        .report = job->done ? (const Fire__V1__ReportRequest *)job->request : job->owned,
        .events = job->events,
        .event_count = job->event_count,
        .now_ms = monitor_now_ms(),
    };
}

static void respond(struct monitor_job *job)
{
    Fire__V1__ReportResponse *response = NULL;

    job->status = job->entry.status;
    job->error = job->entry.error;
    if (!job->done || job->status != FIRE_OK)
        return;
    response = malloc(sizeof(*response));
    if (!response) {
        job->status = fire_fail_memory(&job->error, sizeof(*response));
        return;
    }
    fire__v1__report_response__init(response);
    response->points_added = job->entry.points_added;
    response->points_replaced = job->entry.points_replaced;
    job->response = &response->base;
}

static void give_back(struct writer *writer, struct monitor_job *const *jobs, size_t count)
{
    struct monitor *monitor = writer->monitor;

    uv_mutex_lock(&monitor->lock);
    for (size_t i = 0; i < count; i++) {
        monitor->queued_bytes -= jobs[i]->bytes;
        finish(monitor, jobs[i]);
    }
    uv_mutex_unlock(&monitor->lock);
    wake_send(&monitor->wake);
}

/* The store failed under the batch: who waits is refused, the rest goes to the front again. */
static void take_back(struct writer *writer, const struct fire_error *error)
{
    struct monitor *monitor = writer->monitor;
    struct monitor_jobs front = { 0 };

    uv_mutex_lock(&monitor->lock);
    for (size_t i = 0; i < writer->count; i++) {
        struct monitor_job *job = writer->batch[i];

        if (!job->done) {
            jobs_push(&front, job);
            continue;
        }
        job_refuse(job, error);
        monitor->queued_bytes -= job->bytes;
        finish(monitor, job);
    }
    if (front.first) {
        front.last->next = monitor->writes.first;
        if (!monitor->writes.first)
            monitor->writes.last = front.last;
        monitor->writes.first = front.first;
    }
    uv_mutex_unlock(&monitor->lock);
}

/* Writes `count` jobs of the batch in one transaction. */
static enum fire_status write_jobs(struct writer *writer, struct monitor_job *const *jobs,
                                   size_t count, struct fire_error *error)
{
    struct history_entry *entries[BATCH_JOBS_MAX] = { NULL };
    enum fire_status status;

    for (size_t i = 0; i < count; i++) {
        entry_fill(jobs[i]);
        entries[i] = &jobs[i]->entry;
    }
    status = history_write(writer->history, entries, count, error);
    if (status != FIRE_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        respond(jobs[i]);
    give_back(writer, jobs, count);
    return FIRE_OK;
}

static void write_batch(struct writer *writer)
{
    struct fire_error error = { 0 };
    size_t written = 0;
    enum fire_status status = write_jobs(writer, writer->batch, writer->count, &error);

    if (status == FIRE_OK)
        return;
    /* One that cannot be written must not keep the others out. */
    while (!history_broken(writer->history) && written < writer->count) {
        struct monitor_job *job = writer->batch[written];

        status = write_jobs(writer, &job, 1, &error);
        if (status != FIRE_OK && !history_broken(writer->history)) {
            job_refuse(job, &error);
            give_back(writer, &job, 1);
        }
        written += !history_broken(writer->history);
    }
    if (!history_broken(writer->history))
        return;
    memmove(writer->batch, writer->batch + written,
            (writer->count - written) * sizeof(writer->batch[0]));
    writer->count -= written;
    const bool corrupt = history_corrupt(writer->history);

    /* Refuses what waits behind first, so that the front is the front. */
    lose_store(writer, &error, corrupt);
    take_back(writer, &error);
    wake_send(&writer->monitor->wake);
}

/* Under the lock: takes what waits. */
static void take_batch(struct writer *writer)
{
    struct monitor *monitor = writer->monitor;
    uint64_t bytes = 0;

    while (writer->count < BATCH_JOBS_MAX && bytes < BATCH_BYTES_MAX) {
        struct monitor_job *job = jobs_pop(&monitor->writes);

        if (!job)
            break;
        bytes += job->bytes;
        writer->batch[writer->count++] = job;
    }
    writer->behind = monitor->writes.first != NULL;
    if (!writer->behind)
        monitor->callers_wait = false;
}

static void upkeep(struct writer *writer)
{
    const struct config *config = writer->monitor->settings.config;
    const struct history_upkeep upkeep = {
        .now_ms = monitor_now_ms(),
        .retention_days = config->history_retention_days,
        .downsample_days = config->history_downsample_days,
    };
    struct fire_error error = { 0 };
    bool more = false;

    if (history_maintain(writer->history, &upkeep, &more, &error) != FIRE_OK) {
        log_warn("history_upkeep_failed", LOG_TEXT("message", error.message));
        if (history_broken(writer->history))
            lose_store(writer, &error, history_corrupt(writer->history));
    }
    writer->upkeep_at_ns = clock_now_ns() + (more ? 0 : UPKEEP_MS * CLOCK_NS_PER_MS);
}

/* Under the lock: waits until there is something to do; false: the end. */
static bool wait_for_work(struct writer *writer)
{
    struct monitor *monitor = writer->monitor;

    for (;;) {
        const uint64_t now = clock_now_ns();
        const uint64_t due = writer->history ? writer->upkeep_at_ns : writer->retry_at_ns;

        if (monitor->stopping)
            return writer->history && monitor->writes.first;
        if (now >= due || (writer->history && monitor->writes.first))
            return true;
        uv_cond_timedwait(&monitor->for_writer, &monitor->lock, due - now);
    }
}

/* Under the lock: lets what nobody waits for gather, unless enough has. */
static void linger(struct writer *writer)
{
    struct monitor *monitor = writer->monitor;
    const uint64_t until = clock_now_ns() + LINGER_MS * CLOCK_NS_PER_MS;

    while (!writer->behind && !monitor->callers_wait && !monitor->stopping &&
           monitor->writes.first) {
        const uint64_t now = clock_now_ns();

        if (now >= until)
            break;
        uv_cond_timedwait(&monitor->for_writer, &monitor->lock, until - now);
    }
}

static void thread_ends(struct monitor *monitor)
{
    uv_mutex_lock(&monitor->lock);
    monitor->threads_left--;
    uv_mutex_unlock(&monitor->lock);
    wake_send(&monitor->wake);
}

void monitor_writer_run(void *data)
{
    struct monitor *monitor = data;
    struct writer *writer = calloc(1, sizeof(*writer));

    FIRE_ASSERT(writer);
    writer->monitor = monitor;
    uv_mutex_lock(&monitor->lock);
    while (wait_for_work(writer)) {
        writer->count = 0;
        if (writer->history && monitor->writes.first) {
            linger(writer);
            take_batch(writer);
        }
        uv_mutex_unlock(&monitor->lock);
        if (!writer->history)
            open_store(writer);
        else if (writer->count > 0)
            write_batch(writer);
        else
            upkeep(writer);
        uv_mutex_lock(&monitor->lock);
    }
    uv_mutex_unlock(&monitor->lock);
    history_close(writer->history);
    free(writer);
    thread_ends(monitor);
}

/* --- reading ---------------------------------------------------------------------------------- */

static enum fire_status read_job(struct history *history, struct monitor_job *job)
{
    switch (job->method) {
    case MONITOR_LIST_RUNS:
        return history_list_runs(history, job->tenant,
                                 (const Fire__V1__ListRunsRequest *)job->request,
                                 (Fire__V1__ListRunsResponse **)&job->response, &job->error);
    case MONITOR_QUERY:
        return history_query(history, job->tenant, (const Fire__V1__QueryRequest *)job->request,
                             (Fire__V1__QueryResponse **)&job->response, &job->error);
    case MONITOR_LIST_EVENTS:
        return history_list_events(history, job->tenant,
                                   (const Fire__V1__ListEventsRequest *)job->request,
                                   (Fire__V1__ListEventsResponse **)&job->response, &job->error);
    case MONITOR_ADVISE:
        return monitor_advise(history, job->tenant, (const Fire__V1__AdviseRequest *)job->request,
                              (Fire__V1__AdviseResponse **)&job->response, &job->error);
    case MONITOR_REPORT: break;
    }
    return fire_fail(&job->error, FIRE_BAD_REQUEST, NULL, "a report is no question");
}

/* A connection that broke is opened again, and the question asked once more. */
static void answer_read(const struct monitor *monitor, struct history **history,
                        struct monitor_job *job)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        job->status = FIRE_OK;
        if (!*history)
            job->status = history_open(&monitor->store, history, NULL, &job->error);
        if (job->status == FIRE_OK)
            job->status = read_job(*history, job);
        if (*history && history_broken(*history)) {
            history_close(*history);
            *history = NULL;
        }
        if (job->status != FIRE_IO)
            return;
    }
    const struct fire_error why = job->error;

    job_refuse(job, &why);
}

/* Under the lock. Before the writer has made the tables, or failed to, there is nothing to read. */
static bool may_read(const struct monitor *monitor)
{
    const bool tried = monitor->store_up || monitor->store_error.status != FIRE_OK;

    return tried && monitor->reads.first;
}

void monitor_reader_run(void *data)
{
    struct monitor *monitor = data;
    struct history *history = NULL;

    uv_mutex_lock(&monitor->lock);
    for (;;) {
        struct monitor_job *job;

        while (!may_read(monitor) && !monitor->stopping)
            uv_cond_wait(&monitor->for_readers, &monitor->lock);
        if (monitor->stopping)
            break;
        job = jobs_pop(&monitor->reads);
        monitor->read_count--;
        uv_mutex_unlock(&monitor->lock);
        answer_read(monitor, &history, job);
        uv_mutex_lock(&monitor->lock);
        finish(monitor, job);
        wake_send(&monitor->wake);
    }
    uv_mutex_unlock(&monitor->lock);
    history_close(history);
    thread_ends(monitor);
}
