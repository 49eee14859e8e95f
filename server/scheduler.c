/* scheduler: jobs come in, batches end, and who pays for them.
 *
 * A job is in one of three places: in a lane (some of it waits), with devices (parts_running > 0;
 * the rest of it may still wait), or in the list of ended jobs, which are told from dispatch(). No
 * caller's function runs while a list is walked, so callers may submit and cancel from theirs. */
#include "scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "scheduler_internal.h"

#define BUCKETS_MAX    1024u
#define FACTOR_LEARN   0.2  /* of what a batch says about its bucket */
#define FACTOR_STEP    4.0  /* a batch that was held up longer than that counts as that */
#define FACTOR_MOST    64.0 /* a bucket is so much slower or faster than its class at most */
#define RETRY_MS_LEAST 5.0
#define RETRY_MS_MOST  5000.0

static const char *const priority_names[JOB_PRIORITY_COUNT] = { "interactive", "normal", "bulk" };

/* --- life ------------------------------------------------------------------------------------ */

static void release(struct scheduler *scheduler)
{
    if (scheduler->timer_fd >= 0)
        close(scheduler->timer_fd);
    buckets_close(scheduler->buckets);
    free(scheduler->entries);
    free(scheduler->heap);
    free(scheduler);
}

enum fire_status scheduler_open(uv_loop_t *loop, const struct scheduler_settings *settings,
                                struct tenants *tenants, struct metrics *metrics,
                                struct scheduler **out, struct fire_error *error)
{
    struct scheduler *scheduler = calloc(1, sizeof(*scheduler));
    enum fire_status status;

    *out = NULL;
    if (!scheduler)
        return fire_fail_memory(error, sizeof(*scheduler));
    scheduler->timer_fd = -1;
    scheduler->loop = loop;
    scheduler->settings = *settings;
    scheduler->tenants = tenants;
    scheduler->metrics = metrics;
    if (settings->jobs_max == 0 || settings->slots_max == 0) {
        release(scheduler);
        return fire_fail(error, FIRE_BAD_REQUEST, "jobs_max",
                         "jobs_max and batch_matrices_max must be at least 1");
    }
    scheduler->entries = calloc(settings->jobs_max, sizeof(scheduler->entries[0]));
    status = buckets_open(BUCKETS_MAX, settings->jobs_max, &scheduler->buckets);
    if (status != FIRE_OK || !scheduler->entries) {
        release(scheduler);
        return fire_fail_memory(error, settings->jobs_max * sizeof(struct lane));
    }
    /* Its handle comes last: before it, failing leaves nothing in the loop. */
    status = attention_open(scheduler, error);
    if (status != FIRE_OK) {
        release(scheduler);
        return status;
    }
    *out = scheduler;
    return FIRE_OK;
}

static void on_closed(uv_handle_t *handle)
{
    struct scheduler *scheduler = handle->data;
    void (*closed)(void *data) = scheduler->closed;
    void *data = scheduler->closed_data;

    release(scheduler);
    if (closed)
        closed(data);
}

void scheduler_close(struct scheduler *scheduler, void (*closed)(void *data), void *data)
{
    if (!scheduler) {
        if (closed)
            closed(data);
        return;
    }
    scheduler->closed = closed;
    scheduler->closed_data = data;
    attention_close(scheduler, on_closed);
}

void scheduler_add_device(struct scheduler *scheduler, struct device *device)
{
    FIRE_ASSERT(scheduler->device_count < SCHEDULER_DEVICES_MAX);
    scheduler->devices[scheduler->device_count++] = (struct served_device){ .device = device };
}

struct device *first_in_service(const struct scheduler *scheduler)
{
    struct device *standby = NULL;

    for (uint32_t i = 0; i < scheduler->device_count; i++) {
        struct device *device = scheduler->devices[i].device;

        if (device_in_service(device) && !device_standby(device))
            return device;
        if (device_in_service(device) && !standby)
            standby = device;
    }
    return standby;
}

bool takes_work(const struct scheduler *scheduler, const struct device *device)
{
    return device_in_service(device) &&
           (!device_standby(device) || device_standby(first_in_service(scheduler)));
}

/* --- tenants --------------------------------------------------------------------------------- */

/* A tenant that comes back starts where the least of the others stands: idling earns nothing. */
static void tenant_wake(struct scheduler *scheduler, struct tenant *tenant)
{
    double least = HUGE_VAL;

    if (tenant->active)
        return;
    for (uint32_t i = 0; i < scheduler->active_count; i++)
        least = fmin(least, scheduler->active[i]->virtual_seconds);
    if (scheduler->active_count == 0)
        least = scheduler->virtual_now;
    tenant->virtual_seconds = fmax(tenant->virtual_seconds, least);
    FIRE_ASSERT(scheduler->active_count < TENANTS_MAX);
    tenant->active = true;
    tenant->active_index = scheduler->active_count;
    scheduler->active[scheduler->active_count++] = tenant;
}

void tenant_rest(struct scheduler *scheduler, struct tenant *tenant)
{
    struct tenant *last;

    if (!tenant->active || tenant->jobs_waiting || tenant->jobs_running)
        return;
    last = scheduler->active[--scheduler->active_count];
    scheduler->active[tenant->active_index] = last;
    last->active_index = tenant->active_index;
    tenant->active = false;
}

/* Ends are told in order, but their times come from threads that may have woken in another. */
static void add_recent(struct tenant *tenant, double seconds, uint64_t now_ns)
{
    if (now_ns < tenant->recent_at_ns)
        now_ns = tenant->recent_at_ns;
    tenant->recent_seconds = tenant_recent_s(tenant, now_ns) + seconds;
    tenant->recent_at_ns = now_ns;
}

/* --- jobs come and go ------------------------------------------------------------------------ */

enum fire_status scheduler_submit(struct scheduler *scheduler, struct job *job,
                                  struct fire_error *error)
{
    struct bucket *bucket;
    enum fire_status status;

    FIRE_ASSERT(job->matrix_count > 0);
    FIRE_ASSERT(job->done != NULL);
    if (!first_in_service(scheduler))
        return fire_fail(error, FIRE_DEVICE_LOST, "device",
                         "no device is in service: restart the daemon or send to another");
    if (scheduler->buckets->jobs >= scheduler->settings.jobs_max)
        return fire_fail(error, FIRE_BUSY, "jobs_max",
                         "%u jobs wait already, which is the most: try again in %u ms",
                         scheduler->settings.jobs_max, scheduler_retry_ms(scheduler));
    job->submitted_ns = clock_now_ns();
    if (job->deadline_ns <= job->submitted_ns)
        return fire_fail(error, FIRE_TOO_LATE, "deadline",
                         "the deadline has passed: allow more time");
    status = buckets_find(scheduler->buckets, job->plan, &bucket, error);
    if (status != FIRE_OK)
        return status;
    if (!bucket->efficient_size)
        bucket_refresh(scheduler, bucket);
    job->batch_id = 0;
    job->batch_size = 0;
    job->close_reason = CLOSE_NONE;
    job->started_ns = job->finished_ns = 0;
    job->dealt = job->again_count = job->parts_running = 0;
    job->cost_s = bucket->matrix_s;
    job->ripe = job->critical = job->cancelled = false;
    job->outcome = FIRE_OK;
    tenant_wake(scheduler, job->tenant);
    buckets_push(scheduler->buckets, bucket, job);
    attention_add(scheduler, job);
    dispatch(scheduler);
    return FIRE_OK;
}

/* Puts a job of which nothing waits or runs into the list of those to be told. */
static void job_ended(struct scheduler *scheduler, struct job *job)
{
    job->next = NULL;
    job->previous = scheduler->ended_last;
    if (scheduler->ended_last)
        scheduler->ended_last->next = job;
    else
        scheduler->ended_first = job;
    scheduler->ended_last = job;
    tenant_rest(scheduler, job->tenant);
}

static void forget_ended(struct scheduler *scheduler, struct job *job)
{
    if (job->next)
        job->next->previous = job->previous;
    else
        scheduler->ended_last = job->previous;
    if (job->previous)
        job->previous->next = job->next;
    else
        scheduler->ended_first = job->next;
}

void tell_ended(struct scheduler *scheduler)
{
    struct job *job;

    while ((job = scheduler->ended_first) != NULL) {
        forget_ended(scheduler, job);
        job->done(job, job->outcome);
    }
}

void end_waiting(struct scheduler *scheduler, struct job *job, enum fire_status outcome)
{
    if (outcome == FIRE_TOO_LATE)
        metrics_add(scheduler->metrics, METRIC_JOBS_DROPPED, "expired", NULL, job_waiting(job));
    buckets_remove(scheduler->buckets, job);
    job->outcome = outcome;
    if (job->parts_running == 0)
        job_ended(scheduler, job);
}

static bool is_unwanted(const struct batch *batch)
{
    for (uint32_t i = 0; i < batch->part_count; i++) {
        if (!batch->parts[i].job->cancelled)
            return false;
    }
    return true;
}

/* Batches of which nothing is wanted any more need not run to their ends. */
static void abandon_batches(struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < scheduler->device_count; i++) {
        struct device *device = scheduler->devices[i].device;

        for (uint32_t k = 0; k < device_running(device); k++) {
            struct batch *batch = device_batch(device, k);

            if (is_unwanted(batch))
                device_abandon(device, batch);
        }
    }
}

bool scheduler_cancel(struct scheduler *scheduler, struct job *job)
{
    if (job->lane) {
        metrics_add(scheduler->metrics, METRIC_JOBS_DROPPED, "cancelled", NULL, job_waiting(job));
        attention_remove(scheduler, job);
        buckets_remove(scheduler->buckets, job);
        tenant_rest(scheduler, job->tenant);
    } else if (job->parts_running == 0) {
        forget_ended(scheduler, job);
    }
    if (job->parts_running == 0)
        return true;
    job->outcome = FIRE_CANCELLED;
    job->cancelled = true;
    abandon_batches(scheduler);
    return false;
}

void scheduler_end_set(struct scheduler *scheduler, struct job *job)
{
    if (job->end_of_set)
        return;
    /* A bucket counts those that wait in it; one that comes back is counted as it is by then. */
    job->end_of_set = true;
    if (!job->lane)
        return;
    job->bucket->end_of_set++;
    dispatch(scheduler);
}

void scheduler_hold(struct scheduler *scheduler)
{
    scheduler->hold++;
}

void scheduler_release(struct scheduler *scheduler)
{
    FIRE_ASSERT(scheduler->hold > 0);
    scheduler->hold--;
    dispatch(scheduler);
}

void scheduler_drain(struct scheduler *scheduler)
{
    scheduler->draining = true;
    dispatch(scheduler);
}

/* --- batches end ----------------------------------------------------------------------------- */

static void learn(struct scheduler *scheduler, struct device *device, const struct batch *batch)
{
    struct bucket *bucket = batch->bucket;
    const uint32_t size = batch->work.slot_count;
    struct cost_model *model = device_cost(device);
    const double expected_s = cost_seconds(model, &bucket->plan, size) - model->batch_overhead_s;
    /* What the loop computed itself was not handed over. */
    const double took_s = batch->device_s - (batch->here ? 0 : model->batch_overhead_s);
    double ratio;

    bucket->batches++;
    bucket->matrices += size;
    if (bucket->size_max < scheduler->settings.slots_max && size >= bucket->size_max)
        bucket->size_max *= 2; /* there is memory again */
    if (batch->measured && took_s > 0 && expected_s > 0) {
        ratio = took_s / expected_s / bucket->factor;
        ratio = fmin(fmax(ratio, 1 / FACTOR_STEP), FACTOR_STEP);
        bucket->factor *= pow(ratio, FACTOR_LEARN);
        bucket->factor = fmin(fmax(bucket->factor, 1 / FACTOR_MOST), FACTOR_MOST);
        cost_learn(model, &bucket->plan, size, took_s + model->batch_overhead_s);
    }
    bucket_refresh(scheduler, bucket);
}

/* Replaces the estimate that was charged by what the batch took; nothing when it failed. What was
 * abandoned has taken its time. */
static void settle(struct scheduler *scheduler, const struct batch *batch)
{
    const bool used = batch->status == FIRE_OK || batch->status == FIRE_CANCELLED;
    const double took_s = used ? batch->device_s : 0;
    const double size = batch->work.slot_count;

    for (uint32_t i = 0; i < batch->part_count; i++) {
        struct tenant *tenant = batch->parts[i].job->tenant;
        const double share = batch->parts[i].count / size;

        tenant->virtual_seconds += (took_s - batch->cost_s) * share / tenant_weight(tenant);
        if (!used)
            continue;
        tenant->device_seconds += took_s * share;
        add_recent(tenant, took_s * share, batch->finished_ns);
        metrics_add(scheduler->metrics, METRIC_DEVICE_SECONDS, tenant->name, NULL, took_s * share);
        if (batch->status == FIRE_OK)
            metrics_add(scheduler->metrics, METRIC_JOBS, tenant->name, NULL, batch->parts[i].count);
        else
            metrics_add(scheduler->metrics, METRIC_JOBS_DROPPED, "cancelled", NULL,
                        batch->parts[i].count);
    }
}

static void count_results(struct scheduler *scheduler, const struct batch *batch)
{
    const struct fire_plan *plan = batch->work.plan;
    /* A counted number of steps promises no target. */
    const bool promised = plan->kind != FIRE_PLAN_ANALYZE &&
                          (plan->kind == FIRE_PLAN_CONVERGE || plan->steps == FIRE_STEPS_AUTO);
    uint32_t not_converged = 0, defects = 0;

    for (uint32_t i = 0; i < batch->work.slot_count; i++) {
        const struct fire_result *result = batch->slots[i].result;

        not_converged += promised && result->action == FIRE_ACTION_PROJECTED && !result->converged;
        defects += result->rank_defect > 0;
    }
    if (not_converged)
        metrics_add(scheduler->metrics, METRIC_NOT_CONVERGED, NULL, NULL, not_converged);
    if (defects)
        metrics_add(scheduler->metrics, METRIC_RANK_DEFECTS, NULL, NULL, defects);
}

static void count_batch(struct scheduler *scheduler, struct device *device,
                        const struct batch *batch)
{
    static const char *const device_names[SCHEDULER_DEVICES_MAX] = {
        "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"
    };
    const uint32_t index = device_index(device) % SCHEDULER_DEVICES_MAX;
    const bool small = batch->bucket->matrix_s < scheduler->settings.batch_target_us / 1e6;

    metrics_add(scheduler->metrics, METRIC_BATCHES, close_reason_name(batch->reason), NULL, 1);
    metrics_observe(scheduler->metrics, METRIC_BATCH_SIZE, small ? "small" : "large",
                    batch->work.slot_count);
    metrics_observe(scheduler->metrics, METRIC_COMPUTE_SECONDS, device_names[index],
                    batch->device_s);
    count_results(scheduler, batch);
}

static void log_batch(const struct device *device, const struct batch *batch)
{
    struct bucket_info info;

    if (log_get_level() < LOG_DEBUG)
        return;
    bucket_describe(batch->bucket, &info);
    log_debug(
        "batch_done", LOG_U64("batch", batch->id), LOG_U64("device", device_index(device)),
        LOG_TEXT("bucket", info.key), LOG_U64("size", batch->work.slot_count),
        LOG_TEXT("reason", close_reason_name(batch->reason)), LOG_BOOL("urgent", batch->urgent),
        LOG_TEXT("status", fire_status_name(batch->status)),
        LOG_F64("compute_ms", batch->device_s * 1e3), LOG_F64("estimate_ms", batch->cost_s * 1e3));
}

/* Adds a range to those that wait again: to a neighbour if there is one, so that pieces of one
 * range become one again. False: there is no room. */
static bool add_range(struct job *job, struct job_range range)
{
    for (uint32_t i = 0; i < job->again_count;) {
        const struct job_range known = job->again[i];

        if (known.first + known.count != range.first && range.first + range.count != known.first) {
            i++;
            continue;
        }
        range.first = known.first < range.first ? known.first : range.first;
        range.count += known.count;
        job->again[i] = job->again[--job->again_count];
        i = 0;
    }
    if (range.first + range.count == job->dealt)
        job->dealt = range.first;
    else if (job->again_count < JOB_RANGES_MAX)
        job->again[job->again_count++] = range;
    else
        return false;
    return true;
}

/* Part `part` of a batch was not computed: it waits again, or its job fails. */
static void take_back(struct scheduler *scheduler, const struct batch *batch,
                      const struct batch_part *part, bool again)
{
    struct job *job = part->job;

    if (job->lane) {
        attention_remove(scheduler, job);
        buckets_remove(scheduler->buckets, job);
    }
    if (again && job->outcome == FIRE_OK &&
        add_range(job, (struct job_range){ part->first, part->count })) {
        buckets_push_front(scheduler->buckets, job->bucket, job);
        attention_add(scheduler, job);
    } else if (job->outcome == FIRE_OK) {
        job->outcome = batch->status;
    }
}

/* Nobody can compute what waits. */
static void fail_all(struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < scheduler->active_count; i++) {
        struct tenant *tenant = scheduler->active[i];

        while (tenant->lanes) {
            struct job *job = tenant->lanes->first;

            attention_remove(scheduler, job);
            end_waiting(scheduler, job, FIRE_DEVICE_LOST);
            if (!tenant->active) /* its place in the array is another's now */
                i--;
        }
    }
}

static void take_back_all(struct scheduler *scheduler, struct batch *batch)
{
    const uint32_t size = batch->work.slot_count;
    bool again = batch->status == FIRE_DEVICE_LOST && first_in_service(scheduler);

    if (batch->status == FIRE_NO_MEMORY && size > 1) {
        if (batch->bucket->size_max > size / 2)
            batch->bucket->size_max = size / 2;
        again = true;
    }
    bucket_refresh(scheduler, batch->bucket);
    for (uint32_t i = 0; i < batch->part_count; i++)
        take_back(scheduler, batch, &batch->parts[i], again);
    if (!first_in_service(scheduler))
        fail_all(scheduler);
}

/* A job whose last part this was is told; after that it is not ours. */
static void tell_part(struct scheduler *scheduler, const struct batch *batch,
                      const struct batch_part *part)
{
    struct job *job = part->job;

    if (batch->status == FIRE_OK) {
        if (!job->started_ns) {
            job->started_ns = batch->started_ns;
            metrics_observe(scheduler->metrics, METRIC_QUEUE_SECONDS, priority_names[job->priority],
                            (double)(batch->started_ns - job->submitted_ns) / 1e9);
        }
        if (batch->started_ns > job->deadline_ns)
            metrics_add(scheduler->metrics, METRIC_JOBS_LATE, NULL, NULL, part->count);
        job->batch_id = batch->id;
        job->batch_size = batch->work.slot_count;
        job->close_reason = batch->reason;
        job->finished_ns = batch->finished_ns;
    }
    job->parts_running--;
    job->tenant->jobs_running -= part->count;
    tenant_rest(scheduler, job->tenant);
    if (job->parts_running == 0 && !job->lane)
        job->done(job, job->outcome);
}

void scheduler_batch_done(struct device *device, struct batch *batch, void *data)
{
    struct scheduler *scheduler = data;
    const bool computed = batch->status == FIRE_OK;

    scheduler->running -= batch->work.slot_count;
    settle(scheduler, batch);
    log_batch(device, batch);
    if (computed) {
        learn(scheduler, device, batch);
        count_batch(scheduler, device, batch);
    } else {
        take_back_all(scheduler, batch);
    }
    bucket_end(scheduler->buckets, batch->bucket);
    /* The device first: telling the callers takes a while. */
    dispatch(scheduler);
    scheduler->hold++;
    for (uint32_t i = 0; i < batch->part_count; i++)
        tell_part(scheduler, batch, &batch->parts[i]);
    device_release_batch(device, batch);
    scheduler->hold--;
    dispatch(scheduler);
}

/* --- what it knows --------------------------------------------------------------------------- */

static double least_backlog_s(const struct scheduler *scheduler, uint32_t *devices)
{
    double least = HUGE_VAL;

    *devices = 0;
    for (uint32_t i = 0; i < scheduler->device_count; i++) {
        if (!takes_work(scheduler, scheduler->devices[i].device))
            continue;
        least = fmin(least, device_backlog_s(scheduler->devices[i].device));
        ++*devices;
    }
    return *devices ? least : 0;
}

/* Until work of a tenant that takes `own_s` is done; there is a device in service. */
static double done_in_s(const struct scheduler *scheduler, const struct tenant *tenant,
                        double own_s)
{
    double weights = tenant->active ? 0 : tenant_weight(tenant);
    double ahead_s;
    uint32_t devices;
    const double backlog_s = least_backlog_s(scheduler, &devices);

    for (uint32_t i = 0; i < scheduler->active_count; i++)
        weights += tenant_weight(scheduler->active[i]);
    /* While its own work is done, the others get theirs by weight, as far as they have any. */
    ahead_s = fmin(scheduler->buckets->waiting_s,
                   (tenant->waiting_seconds + own_s) * weights / tenant_weight(tenant) - own_s);
    return backlog_s + (fmax(ahead_s, 0) + own_s) / devices;
}

double scheduler_estimate_s(struct scheduler *scheduler, const struct tenant *tenant,
                            const struct fire_plan *plan, uint32_t matrix_count)
{
    const struct bucket *bucket = buckets_lookup(scheduler->buckets, plan);
    struct device *device = first_in_service(scheduler);

    if (!device)
        return HUGE_VAL;
    return done_in_s(scheduler, tenant,
                     bucket && bucket->efficient_size
                         ? bucket_seconds(bucket, matrix_count)
                         : cost_seconds(device_cost(device), plan, matrix_count));
}

double scheduler_wait_s(const struct scheduler *scheduler, const struct tenant *tenant)
{
    return first_in_service(scheduler) ? done_in_s(scheduler, tenant, 0) : 0;
}

uint32_t scheduler_retry_ms(const struct scheduler *scheduler)
{
    uint32_t devices;
    const double backlog_s = least_backlog_s(scheduler, &devices);
    const double wait_ms =
        1e3 * (backlog_s + scheduler->buckets->waiting_s / (devices ? devices : 1));

    return (uint32_t)fmin(fmax(wait_ms, RETRY_MS_LEAST), RETRY_MS_MOST);
}

uint64_t scheduler_waiting(const struct scheduler *scheduler)
{
    return scheduler->buckets->waiting;
}

uint64_t scheduler_running(const struct scheduler *scheduler)
{
    return scheduler->running;
}

uint64_t scheduler_workspace_bytes(struct scheduler *scheduler, const struct fire_plan *plan)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < scheduler_device_count(scheduler); i++) {
        const uint64_t bytes = device_workspace_bytes(scheduler_device(scheduler, i), plan);

        most = bytes > most ? bytes : most;
    }
    return most;
}

uint32_t scheduler_device_count(const struct scheduler *scheduler)
{
    return scheduler->device_count;
}

struct device *scheduler_device(struct scheduler *scheduler, uint32_t index)
{
    return index < scheduler->device_count ? scheduler->devices[index].device : NULL;
}

static bool is_busier(const struct bucket_info *a, const struct bucket_info *b)
{
    return a->waiting != b->waiting ? a->waiting > b->waiting : a->matrices > b->matrices;
}

uint32_t scheduler_buckets(const struct scheduler *scheduler, struct bucket_info *infos,
                           uint32_t room)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < scheduler->buckets->count && room > 0; i++) {
        struct bucket_info info;
        uint32_t at;

        bucket_describe(&scheduler->buckets->table[i], &info);
        if (count == room && !is_busier(&info, &infos[count - 1]))
            continue;
        at = count < room ? count++ : count - 1;
        for (; at > 0 && is_busier(&info, &infos[at - 1]); at--)
            infos[at] = infos[at - 1];
        infos[at] = info;
    }
    return count;
}
