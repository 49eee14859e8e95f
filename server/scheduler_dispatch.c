/* scheduler_dispatch: what a device gets next.
 *
 * Choice. Tenants compete by virtual time, the device time they used over their weight; whoever
 * has least goes first, whatever class its jobs are. Classes order the jobs of one tenant. Bulk
 * that has not aged goes only where nothing else of any tenant would; a tenant over its device
 * share only where the device would idle.
 *
 * Room. An idle device takes anything. A busy one takes a second batch while both together are
 * short: one of full size early, a smaller one only when the device is about to fall idle, so that
 * company can still join. If the batch that is due by fairness does not fit, nothing else takes its
 * place: the device runs dry first. So a small job waits for one large matrix at most, or one to
 * each worker; where the backend can put an urgent batch between the steps of a large matrix, not
 * even that. */
#include <math.h>
#include <string.h>

#include "clock.h"
#include "scheduler_internal.h"

#define PIPELINE_DEPTH    2u   /* ordinary batches with a device */
#define PIPELINE_TARGETS  2.2  /* of batch_target_us: what two batches may take together */
#define LOOKAHEAD_TARGETS 0.04 /* of batch_target_us left: the device is about to fall idle */
#define COMPANY_SHARE     0.05 /* of its device time that a matrix waits for company */
#define COMPANY_NS_MAX    (10 * CLOCK_NS_PER_MS)
#define COMPANY_S_MAX     0.25   /* one to each worker may hold the device so long */
#define URGENT_BEHIND_S   0.020  /* a batch is urgent when so much runs before it */
#define URGENT_COST_S     0.005  /* … and it is shorter than this */
#define URGENT_SLACK_S    0.020  /* … and its tenant is no further ahead of whom it interrupts */
#define HERE_S_MAX        150e-6 /* a batch may keep the loop so long while it serves one call */
#define BEGIN_MARGIN_NS   (250 * CLOCK_NS_PER_MS) /* a batch before it may be held up so long */
#define BEGIN_LEAST_NS    CLOCK_NS_PER_MS         /* with less left a job is too late already */

enum fit { FIT_NOW, FIT_URGENT, FIT_WAIT };

/* What a device has, seen once a choice. */
struct room {
    struct served_device *served;
    uint64_t now_ns;
    uint32_t running;
    uint32_t urgent;
    double backlog_s;
};

struct choice {
    struct lane *lane; /* NULL: none */
    enum fit fit;
    uint32_t rank;
};

static double target_s(const struct scheduler *scheduler)
{
    return scheduler->settings.batch_target_us / 1e6;
}

/* --- how large ------------------------------------------------------------------------------- */

/* Matrices that fill a batch up to its target. */
static double wanted_size(const struct scheduler *scheduler, const struct bucket *bucket)
{
    return fmax(ceil(target_s(scheduler) / fmax(bucket->matrix_s, 1e-9)), 1);
}

static uint32_t efficient_size(const struct scheduler *scheduler, const struct bucket *bucket)
{
    const uint32_t size_max = bucket->size_max < scheduler->settings.slots_max
                                  ? bucket->size_max
                                  : scheduler->settings.slots_max;
    const double filled = ceil(wanted_size(scheduler, bucket) / bucket->company) * bucket->company;

    if (filled < size_max)
        return (uint32_t)filled;
    return size_max >= bucket->company ? size_max / bucket->company * bucket->company : size_max;
}

/* Without a setting only a matrix that all workers would have to share waits, for a part of what
 * sharing costs it. */
static uint64_t company_ns(const struct scheduler *scheduler, const struct bucket *bucket)
{
    const double part_ns = COMPANY_SHARE * bucket->matrix_s * 1e9;

    if (scheduler->settings.delay_us || bucket->company == bucket->granule)
        return scheduler->settings.delay_us * 1000ull;
    return part_ns < COMPANY_NS_MAX ? (uint64_t)part_ns : COMPANY_NS_MAX;
}

void bucket_refresh(struct scheduler *scheduler, struct bucket *bucket)
{
    struct device *device = first_in_service(scheduler);
    const struct cost_model *model;

    if (!device)
        return;
    model = device_cost(device);
    bucket->overhead_s = model->batch_overhead_s;
    bucket->granule = cost_granule(model, &bucket->plan);
    bucket->matrix_s = bucket->factor * cost_flops(&bucket->plan) *
                       model->seconds_per_flop[cost_class(&bucket->plan)];
    bucket->company = cost_company(model, &bucket->plan);
    if (bucket->company * bucket->matrix_s > COMPANY_S_MAX)
        bucket->company = bucket->granule;
    bucket->efficient_size = efficient_size(scheduler, bucket);
    /* Jobs that wait already have been given no moment at which their waiting would end. */
    if (bucket->company_ns || bucket->waiting == 0)
        bucket->company_ns = company_ns(scheduler, bucket);
}

/* --- which ----------------------------------------------------------------------------------- */

static bool is_ready(const struct scheduler *scheduler, const struct bucket *bucket)
{
    const uint32_t enough = scheduler->settings.delay_us ? bucket->efficient_size : bucket->company;

    return bucket->company_ns == 0 || scheduler->draining || bucket->end_of_set ||
           bucket->critical || bucket->ripe || !scheduler->settings.batching ||
           bucket->waiting >= enough;
}

/* A batch that has been given to a busy device cannot be recalled, and what runs before it may take
 * longer than estimated: a job goes there only if it would not be begun after its deadline even
 * then. Others wait until the device is idle. */
static bool begins_in_time(const struct room *room, const struct job *job)
{
    const uint64_t wait_ns = (uint64_t)(room->backlog_s * 1e9) + BEGIN_MARGIN_NS;

    return room->running == 0 || job->deadline_ns == CLOCK_NEVER_NS ||
           job->deadline_ns >= room->now_ns + wait_ns;
}

static bool may_be_urgent(const struct room *room, const struct lane *lane, double cost_s)
{
    const struct tenant *running = room->served->tenant;

    return room->urgent == 0 && room->backlog_s > URGENT_BEHIND_S && cost_s < URGENT_COST_S &&
           lane->bucket->plan.cols <= FIRE_URGENT_SIDE_MAX && lane->priority != JOB_BULK &&
           running &&
           lane->tenant->virtual_seconds <=
               running->virtual_seconds + URGENT_SLACK_S / tenant_weight(lane->tenant);
}

static enum fit fit_of(const struct scheduler *scheduler, const struct room *room,
                       const struct lane *lane)
{
    const struct bucket *bucket = lane->bucket;
    const bool full = bucket->waiting >= bucket->efficient_size || !scheduler->settings.batching;
    const double cost_s = bucket_seconds(bucket, full ? bucket->efficient_size : bucket->waiting);

    if (room->running == 0)
        return FIT_NOW;
    if (room->running - room->urgent < PIPELINE_DEPTH && begins_in_time(room, lane->first) &&
        (full ? room->backlog_s + cost_s <= PIPELINE_TARGETS * target_s(scheduler)
              : room->backlog_s <= LOOKAHEAD_TARGETS * target_s(scheduler)))
        return FIT_NOW;
    return may_be_urgent(room, lane, cost_s) ? FIT_URGENT : FIT_WAIT;
}

static bool is_aged(const struct scheduler *scheduler, const struct lane *lane, uint64_t now_ns)
{
    return now_ns - lane->first->submitted_ns >= scheduler->settings.bulk_age_ms * CLOCK_NS_PER_MS;
}

/* Smaller goes first among the lanes of one tenant: bulk last, then jobs at their last safe moment,
 * then by class. */
static uint32_t lane_order(const struct scheduler *scheduler, const struct lane *lane,
                           uint64_t now_ns)
{
    if (lane->priority == JOB_BULK && !is_aged(scheduler, lane, now_ns))
        return 4;
    if (lane->critical)
        return 0;
    return lane->priority == JOB_INTERACTIVE ? 1 : 2;
}

/* The lane a tenant would have served; NULL when none is ready. */
static struct lane *best_lane(const struct scheduler *scheduler, const struct tenant *tenant,
                              uint64_t now_ns, uint32_t *order)
{
    struct lane *best = NULL;

    *order = UINT32_MAX;
    for (struct lane *lane = tenant->lanes; lane; lane = lane->tenant_next) {
        uint32_t own;

        if (!is_ready(scheduler, lane->bucket))
            continue;
        own = lane_order(scheduler, lane, now_ns);
        if (own < *order ||
            (own == *order && lane->first->submitted_ns < best->first->submitted_ns)) {
            best = lane;
            *order = own;
        }
    }
    return best;
}

static bool is_over_share(const struct tenant *tenant, uint64_t now_ns)
{
    return tenant->limits.device_share_max < 1 &&
           tenant_recent_s(tenant, now_ns) > tenant->limits.device_share_max * SCHEDULER_RECENT_S;
}

static bool goes_before(const struct choice *a, const struct choice *b)
{
    if (!b->lane || a->rank != b->rank)
        return !b->lane || a->rank < b->rank;
    return a->lane->tenant->virtual_seconds < b->lane->tenant->virtual_seconds;
}

/* The lane that is due; if that must wait, one that may go urgently. */
static struct choice choose(struct scheduler *scheduler, const struct room *room)
{
    struct choice due = { 0 }, urgent = { 0 };

    for (uint32_t i = 0; i < scheduler->active_count; i++) {
        struct tenant *tenant = scheduler->active[i];
        struct choice own = { 0 };
        uint32_t order;

        if (!tenant->lanes)
            continue;
        own.lane = best_lane(scheduler, tenant, room->now_ns, &order);
        if (!own.lane)
            continue;
        own.rank = order == 4;
        if (is_over_share(tenant, room->now_ns)) {
            if (room->running)
                continue;
            own.rank += 2;
        }
        own.fit = fit_of(scheduler, room, own.lane);
        if (goes_before(&own, &due))
            due = own;
        if (own.fit == FIT_URGENT && goes_before(&own, &urgent))
            urgent = own;
    }
    if (due.lane && due.fit == FIT_WAIT && urgent.lane)
        return urgent;
    if (due.lane && due.fit == FIT_WAIT)
        due.lane = NULL;
    return due;
}

/* --- filling --------------------------------------------------------------------------------- */

struct filling {
    struct scheduler *scheduler;
    const struct room *room;
    struct batch *batch;
    uint32_t limit;
};

static bool is_filled(const struct filling *filling)
{
    return filling->batch->work.slot_count >= filling->limit;
}

/* Moves the first job of a lane, or as much of it as fits, into the batch. False: it must not go
 * now, nor what is behind it. An expired job is taken out, and the lane goes on. */
static bool take_first(struct filling *filling, struct lane *lane)
{
    struct scheduler *scheduler = filling->scheduler;
    struct batch *batch = filling->batch;
    struct job *job = lane->first;
    struct job_range range;

    if (job->deadline_ns <= filling->room->now_ns + BEGIN_LEAST_NS) {
        attention_remove(scheduler, job);
        end_waiting(scheduler, job, FIRE_TOO_LATE);
        return true;
    }
    if (!batch->urgent && !begins_in_time(filling->room, job))
        return false;
    range = buckets_deal(scheduler->buckets, job, filling->limit - batch->work.slot_count);
    if (!job->lane)
        attention_remove(scheduler, job);
    else
        buckets_mark_ripe(job); /* the rest of a job that has begun waits for no company */
    memcpy(&batch->slots[batch->work.slot_count], &job->slots[range.first],
           range.count * sizeof(job->slots[0]));
    batch->work.slot_count += range.count;
    batch->parts[batch->part_count++] = (struct batch_part){ job, range.first, range.count };
    job->parts_running++;
    job->tenant->jobs_running += range.count;
    scheduler->running += range.count;
    return true;
}

/* A lane is gone when its last job has left it: nothing of it is looked at after that. */
static void take_lane(struct filling *filling, struct lane *lane)
{
    const struct job *next = lane ? lane->first : NULL;

    while (next && !is_filled(filling)) {
        next = lane->first->next;
        if (!take_first(filling, lane))
            return;
    }
}

static void sift_entry(struct lane_entry *entries, uint32_t count, uint32_t index)
{
    const struct lane_entry moved = entries[index];

    for (uint32_t child; (child = 2 * index + 1) < count; index = child) {
        if (child + 1 < count &&
            entries[child + 1].virtual_seconds < entries[child].virtual_seconds)
            child++;
        if (entries[child].virtual_seconds >= moved.virtual_seconds)
            break;
        entries[index] = entries[child];
    }
    entries[index] = moved;
}

/* Spare slots go to whoever waits in the bucket, one job at a time, by virtual time. */
static void take_others(struct filling *filling, struct bucket *bucket, bool bulk)
{
    struct lane_entry *entries = filling->scheduler->entries;
    uint32_t count = 0;

    if (is_filled(filling))
        return;
    for (struct lane *lane = bucket->lanes; lane; lane = lane->bucket_next) {
        if ((lane->priority == JOB_BULK) == bulk)
            entries[count++] = (struct lane_entry){ lane->tenant->virtual_seconds, lane };
    }
    for (uint32_t i = count / 2; i-- > 0;)
        sift_entry(entries, count, i);
    while (count && !is_filled(filling)) {
        struct lane *lane = entries[0].lane;
        const struct job *next = lane->first->next;
        const double cost_s = lane->first->cost_s * job_waiting(lane->first);

        entries[0].virtual_seconds += cost_s / tenant_weight(lane->tenant);
        /* A lane whose only job was taken is gone; nothing else makes lanes in between. */
        if (!take_first(filling, lane) || !next)
            entries[0] = entries[--count];
        sift_entry(entries, count, 0);
    }
}

static enum close_reason reason_of(const struct scheduler *scheduler, const struct bucket *bucket)
{
    if (bucket->waiting >= bucket->efficient_size)
        return CLOSE_FULL;
    if (scheduler->draining)
        return CLOSE_DRAIN;
    if (scheduler->settings.delay_us == 0)
        return bucket->company_ns && bucket->ripe ? CLOSE_DELAY : CLOSE_IDLE;
    if (bucket->end_of_set)
        return CLOSE_END_OF_SET;
    if (bucket->critical)
        return CLOSE_DEADLINE;
    return bucket->ripe ? CLOSE_DELAY : CLOSE_IDLE;
}

static void fill(struct filling *filling, struct lane *lane)
{
    struct buckets *buckets = filling->scheduler->buckets;
    struct bucket *bucket = lane->bucket;
    struct tenant *tenant = lane->tenant;
    const enum job_priority priority = lane->priority;

    if (!filling->scheduler->settings.batching) {
        filling->limit = job_waiting(lane->first) < filling->batch->slot_room
                             ? job_waiting(lane->first)
                             : filling->batch->slot_room;
        take_first(filling, lane);
        return;
    }
    take_lane(filling, lane);
    if (priority != JOB_INTERACTIVE)
        take_lane(filling, buckets_lane(buckets, bucket, tenant, JOB_INTERACTIVE));
    if (priority != JOB_NORMAL)
        take_lane(filling, buckets_lane(buckets, bucket, tenant, JOB_NORMAL));
    take_others(filling, bucket, false);
    take_others(filling, bucket, true);
}

/* --- sending --------------------------------------------------------------------------------- */

/* The estimate is charged at once, so that the next choice knows of it. */
static void charge_estimate(struct scheduler *scheduler, const struct batch *batch,
                            struct tenant *chosen)
{
    const double each_s = batch->cost_s / batch->work.slot_count;

    scheduler->virtual_now = fmax(scheduler->virtual_now, chosen->virtual_seconds);
    for (uint32_t i = 0; i < batch->part_count; i++) {
        struct tenant *tenant = batch->parts[i].job->tenant;

        tenant->virtual_seconds += each_s * batch->parts[i].count / tenant_weight(tenant);
    }
}

/* The most matrices of a batch. A job at its last safe moment has no time for company that makes
 * its batch longer than the target. */
static uint32_t batch_limit(const struct scheduler *scheduler, const struct lane *lane,
                            uint32_t slot_room)
{
    const struct bucket *bucket = lane->bucket;
    const double wanted = fmax(wanted_size(scheduler, bucket), bucket->granule);
    uint32_t limit = bucket->efficient_size < slot_room ? bucket->efficient_size : slot_room;

    if (lane->critical && wanted < limit)
        limit = (uint32_t)wanted;
    return limit;
}

/* The only job there is, of a call that was the only one, and short: waking a thread and being
 * woken would take as long. One worker's share of a granule, and no polynomial without a count of
 * steps, so that what it takes is what the model expects. */
static bool runs_here(const struct scheduler *scheduler, struct device *device,
                      const struct batch *batch)
{
    const uint32_t count = batch->work.slot_count;
    const struct fire_plan *plan = batch->work.plan;

    return batch->part_count == 1 && batch->parts[0].job->alone && scheduler->running == count &&
           scheduler->buckets->jobs == 0 &&
           (plan->kind != FIRE_PLAN_POLYNOMIAL || plan->steps >= 0) &&
           (uint64_t)count * device_cost(device)->workers <= batch->bucket->granule &&
           batch->cost_s - batch->bucket->overhead_s <= HERE_S_MAX;
}

/* False: nothing to give, or no room. */
static bool dispatch_one(struct scheduler *scheduler, struct served_device *served)
{
    struct device *device = served->device;
    struct room room = { .served = served,
                         .running = device_running(device),
                         .urgent = device_urgent(device) };
    struct filling filling = { .scheduler = scheduler, .room = &room };
    struct tenant *tenant;
    struct bucket *bucket;
    struct choice choice;
    struct batch *batch;

    if (scheduler->buckets->jobs == 0 || room.running == DEVICE_BATCHES_MAX)
        return false;
    room.now_ns = clock_now_ns();
    room.backlog_s = room.running ? device_backlog_s(device) : 0;
    if (room.running - room.urgent >= PIPELINE_DEPTH &&
        (room.urgent || room.backlog_s <= URGENT_BEHIND_S))
        return false;
    choice = choose(scheduler, &room);
    batch = choice.lane ? device_free_batch(device) : NULL;
    if (!batch)
        return false;
    bucket = choice.lane->bucket;
    tenant = choice.lane->tenant;
    filling.batch = batch;
    filling.limit = batch_limit(scheduler, choice.lane, batch->slot_room);
    batch->work.urgent = batch->urgent = choice.fit == FIT_URGENT;
    batch->reason = reason_of(scheduler, bucket);
    bucket_begin(scheduler->buckets, bucket);
    fill(&filling, choice.lane);
    if (batch->work.slot_count == 0) { /* all of it had expired */
        bucket_end(scheduler->buckets, bucket);
        device_release_batch(device, batch);
        return true;
    }
    batch->id = ++scheduler->batch_id;
    batch->bucket = bucket;
    batch->work.plan = &bucket->plan;
    batch->cost_s = bucket_seconds(bucket, batch->work.slot_count);
    if (!batch->urgent)
        served->tenant = tenant;
    charge_estimate(scheduler, batch, tenant);
    batch->here = runs_here(scheduler, device, batch);
    device_submit(device, batch);
    return true;
}

static void show_gauges(struct scheduler *scheduler)
{
    if (scheduler->shown_waiting != scheduler->buckets->waiting) {
        scheduler->shown_waiting = scheduler->buckets->waiting;
        metrics_set(scheduler->metrics, METRIC_JOBS_WAITING, NULL, NULL,
                    (double)scheduler->shown_waiting);
    }
    if (scheduler->shown_running != scheduler->running) {
        scheduler->shown_running = scheduler->running;
        metrics_set(scheduler->metrics, METRIC_JOBS_RUNNING, NULL, NULL,
                    (double)scheduler->shown_running);
    }
}

void dispatch(struct scheduler *scheduler)
{
    if (scheduler->hold)
        return;
    scheduler->hold++;
    do {
        tell_ended(scheduler); /* whose callers may submit anew */
        for (uint32_t i = 0; i < scheduler->device_count; i++) {
            while (takes_work(scheduler, scheduler->devices[i].device) &&
                   dispatch_one(scheduler, &scheduler->devices[i])) {
            }
        }
    } while (scheduler->ended_first);
    scheduler->hold--;
    attention_arm(scheduler);
    show_gauges(scheduler);
}
