/* monitor: the door to the history, on the loop thread.
 *
 * Invariants:
 *   every job is in one list or with one thread, and comes back to the loop exactly once
 *   `unfinished` counts those that have not
 *   after monitor_close() no job is taken any more */
#include "monitor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "monitor_check.h"
#include "monitor_internal.h"

#define STORE_TIMEOUT_MS 5000u
#define STACK_BYTES      (1u << 20)

void jobs_push(struct monitor_jobs *jobs, struct monitor_job *job)
{
    job->next = NULL;
    if (jobs->first)
        jobs->last->next = job;
    else
        jobs->first = job;
    jobs->last = job;
}

struct monitor_job *jobs_pop(struct monitor_jobs *jobs)
{
    struct monitor_job *job = jobs->first;

    if (job)
        jobs->first = job->next;
    return job;
}

int64_t monitor_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool monitor_up(const struct monitor *monitor)
{
    return monitor->up;
}

const char *monitor_trouble(const struct monitor *monitor)
{
    return monitor->trouble;
}

bool monitor_off(const struct monitor *monitor)
{
    return monitor->off;
}

bool monitor_settled(const struct monitor *monitor)
{
    return monitor->off || monitor->told;
}

/* --- back on the loop ------------------------------------------------------------------------- */

void monitor_arena_free(struct monitor_arena *arena)
{
    while (arena) {
        struct monitor_arena *before = arena->before;

        free(arena);
        arena = before;
    }
}

static void discard_owned(Fire__V1__ReportRequest *report, Fire__V1__Event **events,
                          size_t event_count, struct monitor_arena *arena)
{
    if (arena) {
        monitor_arena_free(arena);
        return;
    }
    if (report)
        fire__v1__report_request__free_unpacked(report, NULL);
    for (size_t i = 0; i < event_count; i++)
        fire__v1__event__free_unpacked(events[i], NULL);
    free(events);
}

static void job_free(struct monitor_job *job)
{
    discard_owned(job->owned, job->events, job->event_count, job->arena);
    free(job);
}

static void count_job(struct monitor *monitor, const struct monitor_job *job)
{
    const bool writes = job->method == MONITOR_REPORT;

    if (!writes)
        return;
    if (job->status == FIRE_OK)
        metrics_add(monitor->settings.metrics, METRIC_HISTORY_POINTS, NULL, NULL,
                    (double)(job->entry.points_added + job->entry.points_replaced));
    else if (!job->done)
        metrics_add(monitor->settings.metrics, METRIC_HISTORY_DROPPED, NULL, NULL, 1);
}

/* What is on disk now goes to those who watch and to the alerts. Spectra are for those who ask. */
static void tell(struct monitor *monitor, struct monitor_job *job)
{
    for (size_t i = 0; i < job->event_count; i++)
        job->events[i]->n_spectrum_before = job->events[i]->n_spectrum_after = 0;
    monitor_watches_tell(monitor, job);
    if (monitor->settings.stored && job->entry.report)
        monitor->settings.stored(monitor->settings.data, job->tenant, job->entry.report);
}

static void job_finish(struct monitor *monitor, struct monitor_job *job)
{
    monitor->unfinished--;
    count_job(monitor, job);
    if (job->method == MONITOR_REPORT && job->status == FIRE_OK)
        tell(monitor, job);
    if (job->done)
        job->done(job->status, job->status == FIRE_OK ? job->response : NULL, &job->error,
                  job->data);
    job_free(job);
}

static void note_store(struct monitor *monitor, bool up)
{
    Fire__V1__Event event = FIRE__V1__EVENT__INIT;
    const bool before = monitor->up;
    char text[FIRE_ERROR_MESSAGE_BYTES + 64];

    if (monitor->told && before == up)
        return;
    monitor->up = up;
    metrics_set(monitor->settings.metrics, METRIC_HISTORY_UP, NULL, NULL, up ? 1.0 : 0.0);
    if (up)
        log_info("history_up", LOG_TEXT("store", monitor->store.backend->name));
    else
        log_error("history_down", LOG_TEXT("store", monitor->store.backend->name),
                  LOG_TEXT("message", monitor->trouble),
                  LOG_TEXT("effect", "Reinit goes on; reports are refused until it works again"));
    /* Told once it can be written: both that it broke and that it works again. */
    if (up && monitor->told) {
        snprintf(text, sizeof(text), "the history works again; before: %.400s", monitor->trouble);
        event.kind = FIRE__V1__EVENT_KIND__EVENT_KIND_STORE;
        event.text = text;
        monitor_add_event(monitor, "", &event);
    }
    if (up)
        monitor->trouble[0] = '\0';
    monitor->told = true;
    if (monitor->settings.changed)
        monitor->settings.changed(monitor->settings.data, up);
}

void monitor_alerts_free(struct monitor_alert *list)
{
    while (list) {
        struct monitor_alert *alert = list;

        list = alert->next;
        free(alert);
    }
}

static void tell_firing(struct monitor *monitor, const struct monitor_alert *list)
{
    for (; list && monitor->settings.firing; list = list->next)
        monitor->settings.firing(monitor->settings.data,
                                 &(struct history_alert){ .tenant = list->texts,
                                                          .run = list->texts + list->run,
                                                          .layer = list->texts + list->layer,
                                                          .rule = list->texts + list->rule,
                                                          .firing = list->firing });
}

static void lock_release(struct monitor *monitor)
{
    uv_mutex_destroy(&monitor->lock);
    uv_cond_destroy(&monitor->for_writer);
    uv_cond_destroy(&monitor->for_readers);
}

static void on_released(void *data)
{
    struct monitor *monitor = data;
    void (*closed)(void *data) = monitor->closed;
    void *closed_data = monitor->closed_data;

    lock_release(monitor);
    monitor_alerts_free(monitor->firing);
    free(monitor->place);
    free(monitor);
    closed(closed_data);
}

/* The threads are gone: what they left is refused. */
static void close_rest(struct monitor *monitor)
{
    struct monitor_jobs *const lists[] = { &monitor->finished, &monitor->writes, &monitor->reads };

    if (monitor->threads_started > 0)
        uv_thread_join(&monitor->writer);
    for (uint32_t i = 1; i < monitor->threads_started; i++)
        uv_thread_join(&monitor->readers[i - 1]);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        struct monitor_job *job;

        while ((job = jobs_pop(lists[i])) != NULL) {
            if (i > 0)
                job->status = fire_fail(&job->error, FIRE_DRAINING, NULL,
                                        "this daemon is going down; ask another replica, or again");
            job_finish(monitor, job);
        }
    }
    FIRE_ASSERT(monitor->unfinished == 0);
    wake_release(&monitor->wake, on_released);
}

static void on_wake(void *data)
{
    struct monitor *monitor = data;
    struct monitor_jobs finished;
    struct monitor_alert *firing;
    bool up, known, gone;

    uv_mutex_lock(&monitor->lock);
    firing = monitor->firing;
    monitor->firing = NULL;
    finished = monitor->finished;
    monitor->finished = (struct monitor_jobs){ 0 };
    up = monitor->store_up;
    known = up || monitor->store_error.status != FIRE_OK;
    if (!up && known)
        memcpy(monitor->trouble, monitor->store_error.message, sizeof(monitor->trouble));
    gone = monitor->closed && monitor->threads_left == 0;
    uv_mutex_unlock(&monitor->lock);
    if (!monitor->closed)
        tell_firing(monitor, firing);
    monitor_alerts_free(firing);
    if (known && !monitor->closed)
        note_store(monitor, up);
    while (finished.first)
        job_finish(monitor, jobs_pop(&finished));
    if (gone)
        close_rest(monitor);
}

/* --- jobs to the threads ---------------------------------------------------------------------- */

/* Comes back in a later turn of the loop, as it is. */
static void job_return(struct monitor *monitor, struct monitor_job *job)
{
    uv_mutex_lock(&monitor->lock);
    jobs_push(&monitor->finished, job);
    uv_mutex_unlock(&monitor->lock);
    wake_send(&monitor->wake);
}

static void queue_write(struct monitor *monitor, struct monitor_job *job)
{
    const uint64_t most = monitor->settings.config->history_queue_bytes;
    bool taken;

    uv_mutex_lock(&monitor->lock);
    /* While it is being opened for the first time nobody is refused. */
    taken = (monitor->store_up || !job->done || monitor->store_error.status == FIRE_OK) &&
            job->bytes <= most && monitor->queued_bytes <= most - job->bytes;
    if (taken) {
        monitor->queued_bytes += job->bytes;
        jobs_push(&monitor->writes, job);
        monitor->callers_wait = monitor->callers_wait || job->done;
        uv_cond_signal(&monitor->for_writer);
    } else if (!monitor->store_up && job->done && monitor->store_error.status != FIRE_OK) {
        job->status = fire_fail(&job->error, FIRE_BUSY, "history",
                                "the history cannot be written now: %.400s; try again later",
                                monitor->store_error.message);
    } else {
        job->status =
            fire_fail(&job->error, FIRE_BUSY, NULL,
                      "%llu bytes wait to be written, of at most %llu; report more "
                      "slowly, or raise history_queue_bytes",
                      (unsigned long long)monitor->queued_bytes, (unsigned long long)most);
    }
    uv_mutex_unlock(&monitor->lock);
    if (!taken)
        job_return(monitor, job);
}

static void queue_read(struct monitor *monitor, struct monitor_job *job)
{
    bool taken;

    uv_mutex_lock(&monitor->lock);
    taken = monitor->read_count < MONITOR_READS_MAX;
    if (taken) {
        monitor->read_count++;
        jobs_push(&monitor->reads, job);
        uv_cond_signal(&monitor->for_readers);
    }
    uv_mutex_unlock(&monitor->lock);
    if (taken)
        return;
    job->status =
        fire_fail(&job->error, FIRE_BUSY, NULL,
                  "%u questions wait for the history; ask again later", MONITOR_READS_MAX);
    job_return(monitor, job);
}

/* About what a report takes in memory while it waits. */
static uint64_t report_bytes(const Fire__V1__ReportRequest *report)
{
    uint64_t bytes = 512;

    for (size_t i = 0; i < report->n_series; i++)
        bytes += 128 + 16 * report->series[i]->n_steps;
    return bytes;
}

static struct monitor_job *job_make(struct monitor *monitor, enum monitor_method method,
                                    const char *tenant)
{
    struct monitor_job *job = calloc(1, sizeof(*job));

    if (!job)
        return NULL;
    job->method = method;
    snprintf(job->tenant, sizeof(job->tenant), "%s", tenant);
    monitor->unfinished++;
    return job;
}

void monitor_call(struct monitor *monitor, enum monitor_method method, const char *tenant,
                  const ProtobufCMessage *request, monitor_done done, void *data)
{
    struct monitor_job *job = job_make(monitor, method, tenant);

    FIRE_ASSERT(job); /* the caller could not be answered */
    job->request = request;
    job->done = done;
    job->data = data;
    if (monitor->closed)
        job->status = fire_fail(&job->error, FIRE_DRAINING, NULL, "this daemon is going down");
    else if (monitor->off)
        job->status = fire_fail(&job->error, FIRE_NOT_FOUND, "history",
                                "this daemon keeps no history; set history to sqlite or postgres");
    else
        job->status = monitor_check(method, request, &job->error);
    if (job->status != FIRE_OK) {
        job_return(monitor, job);
    } else if (method == MONITOR_REPORT) {
        job->bytes = report_bytes((const Fire__V1__ReportRequest *)request);
        queue_write(monitor, job);
    } else {
        queue_read(monitor, job);
    }
}

static Fire__V1__Event *event_copy(const Fire__V1__Event *event)
{
    const size_t bytes = fire__v1__event__get_packed_size(event);
    uint8_t *packed = malloc(bytes + 1);
    Fire__V1__Event *copy = NULL;

    if (packed) {
        fire__v1__event__pack(event, packed);
        copy = fire__v1__event__unpack(NULL, bytes, packed);
    }
    free(packed);
    return copy;
}

void monitor_queue_owned(struct monitor *monitor, const char *tenant,
                         Fire__V1__ReportRequest *report, Fire__V1__Event **events,
                         size_t event_count, struct monitor_arena *arena)
{
    struct monitor_job *job =
        monitor->off || monitor->closed ? NULL : job_make(monitor, MONITOR_REPORT, tenant);

    if (!job) {
        discard_owned(report, events, event_count, arena);
        return;
    }
    job->arena = arena;
    job->owned = report;
    job->events = events;
    job->event_count = event_count;
    job->bytes = arena ? 0 : 1024 * event_count;
    for (const struct monitor_arena *block = arena; block; block = block->before)
        job->bytes += sizeof(*block) + block->room;
    for (size_t i = 0; i < event_count; i++) {
        if (events[i]->time_ms == 0)
            events[i]->time_ms = monitor_now_ms();
    }
    queue_write(monitor, job);
}

void monitor_add_event(struct monitor *monitor, const char *tenant, const Fire__V1__Event *event)
{
    Fire__V1__Event **events = malloc(sizeof(*events));
    Fire__V1__Event *copy = events ? event_copy(event) : NULL;

    if (!copy) {
        free(events);
        metrics_add(monitor->settings.metrics, METRIC_HISTORY_DROPPED, NULL, NULL, 1);
        return;
    }
    events[0] = copy;
    monitor_queue_owned(monitor, tenant, NULL, events, 1, NULL);
}

/* --- life ------------------------------------------------------------------------------------- */

/* A number that no other daemon has: positive, and small enough for PostgreSQL's locks. */
static uint32_t random_owner(void)
{
    uint32_t number = 0;

    if (uv_random(NULL, NULL, &number, sizeof(number), 0, NULL) != 0)
        number = (uint32_t)uv_hrtime() ^ (uint32_t)uv_os_getpid() << 16;
    return (number >> 1) | 1u;
}

static enum fire_status find_store(struct monitor *monitor, struct fire_error *error)
{
    const struct config *config = monitor->settings.config;
    const bool postgres = strcmp(config->history, "postgres") == 0;
    char path[4096];

    if (postgres)
        snprintf(path, sizeof(path), "%s", config->history_url);
    else if (config->history_file[0])
        snprintf(path, sizeof(path), "%s", config->history_file);
    else
        snprintf(path, sizeof(path), "%s/history.sqlite", config->state_dir);
    monitor->place = strdup(path);
    if (!monitor->place)
        return fire_fail_memory(error, sizeof(path));
    monitor->store.backend = postgres ? &sql_postgres : &sql_sqlite;
    monitor->store.sql = (struct sql_settings){ .place = monitor->place,
                                                .owner = random_owner(),
                                                .timeout_ms = STORE_TIMEOUT_MS,
                                                .stop = &monitor->stop_waiting };
    return FIRE_OK;
}

static enum fire_status start_threads(struct monitor *monitor, struct fire_error *error)
{
    const uv_thread_options_t options = { .flags = UV_THREAD_HAS_STACK_SIZE,
                                          .stack_size = STACK_BYTES };
    bool started = true;

    monitor->threads_left = 1 + MONITOR_READERS;
    started = uv_thread_create_ex(&monitor->writer, &options, monitor_writer_run, monitor) == 0;
    monitor->threads_started = started;
    for (uint32_t i = 0; i < MONITOR_READERS && started; i++) {
        started =
            uv_thread_create_ex(&monitor->readers[i], &options, monitor_reader_run, monitor) == 0;
        monitor->threads_started += started;
    }
    if (started)
        return FIRE_OK;
    uv_mutex_lock(&monitor->lock);
    monitor->threads_left -= 1 + MONITOR_READERS - monitor->threads_started;
    uv_mutex_unlock(&monitor->lock);
    return fire_fail(error, FIRE_NO_MEMORY, NULL, "the threads of the history could not be made");
}

enum fire_status monitor_open(uv_loop_t *loop, const struct monitor_settings *settings,
                              struct monitor **out, struct fire_error *error)
{
    struct monitor *monitor = calloc(1, sizeof(*monitor));
    enum fire_status status = FIRE_OK;

    *out = NULL;
    if (!monitor)
        return fire_fail_memory(error, sizeof(*monitor));
    monitor->loop = loop;
    monitor->settings = *settings;
    monitor->off = strcmp(settings->config->history, "off") == 0;
    uv_mutex_init(&monitor->lock);
    uv_cond_init(&monitor->for_writer);
    uv_cond_init(&monitor->for_readers);
    status = wake_init(&monitor->wake, loop, on_wake, monitor, error);
    if (status != FIRE_OK) {
        lock_release(monitor);
        free(monitor);
        return status;
    }
    *out = monitor; /* from here on monitor_close() ends it */
    snprintf(monitor->trouble, sizeof(monitor->trouble), "%s",
             monitor->off ? "history is off" : "it is being opened");
    if (!monitor->off)
        status = find_store(monitor, error);
    if (!monitor->off && status == FIRE_OK)
        status = start_threads(monitor, error);
    return status;
}

void monitor_close(struct monitor *monitor, void (*closed)(void *data), void *data)
{
    if (!monitor) {
        closed(data);
        return;
    }
    FIRE_ASSERT(!monitor->watches);
    monitor->closed = closed;
    monitor->closed_data = data;
    uv_mutex_lock(&monitor->lock);
    monitor->stopping = true;
    __atomic_store_n(&monitor->stop_waiting, true, __ATOMIC_RELEASE);
    uv_cond_broadcast(&monitor->for_writer);
    uv_cond_broadcast(&monitor->for_readers);
    uv_mutex_unlock(&monitor->lock);
    wake_send(&monitor->wake);
}
