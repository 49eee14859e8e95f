/* bucket: counts and lists only; nothing here decides.
 *
 * A lane that becomes empty goes back to a list of free ones: there are as many as jobs may wait,
 * so there always is one. */
#include "bucket.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bucket_internal.h"
#include "clock.h"

#define HEADS_MAX 65536u

const char *close_reason_name(enum close_reason reason)
{
    switch (reason) {
    case CLOSE_NONE: return "none";
    case CLOSE_IDLE: return "idle";
    case CLOSE_FULL: return "full";
    case CLOSE_END_OF_SET: return "end_of_set";
    case CLOSE_DEADLINE: return "deadline";
    case CLOSE_DELAY: return "delay";
    case CLOSE_DRAIN: return "drain";
    }
    return "none";
}

/* --- the table ------------------------------------------------------------------------------- */

static uint32_t head_count(uint32_t items)
{
    uint32_t count = 64;

    while (count < items && count < HEADS_MAX)
        count *= 2;
    return count;
}

enum fire_status buckets_open(uint32_t buckets_max, uint32_t jobs_max, struct buckets **out)
{
    const uint32_t heads = head_count(buckets_max), lane_heads = head_count(jobs_max);
    struct buckets *buckets = calloc(1, sizeof(*buckets));

    *out = NULL;
    if (!buckets)
        return FIRE_NO_MEMORY;
    buckets->buckets_max = buckets_max;
    buckets->lanes_max = jobs_max;
    buckets->head_mask = heads - 1;
    buckets->lane_mask = lane_heads - 1;
    buckets->table = calloc(buckets_max, sizeof(buckets->table[0]));
    buckets->heads = calloc(heads, sizeof(buckets->heads[0]));
    buckets->lanes = calloc(jobs_max, sizeof(buckets->lanes[0]));
    buckets->lane_heads = calloc(lane_heads, sizeof(buckets->lane_heads[0]));
    if (!buckets->table || !buckets->heads || !buckets->lanes || !buckets->lane_heads) {
        buckets_close(buckets);
        return FIRE_NO_MEMORY;
    }
    *out = buckets;
    return FIRE_OK;
}

void buckets_close(struct buckets *buckets)
{
    if (!buckets)
        return;
    free(buckets->table);
    free(buckets->heads);
    free(buckets->lanes);
    free(buckets->lane_heads);
    free(buckets);
}

static struct bucket **bucket_head(const struct buckets *buckets, uint64_t digest)
{
    return &buckets->heads[(uint32_t)(digest ^ (digest >> 32)) & buckets->head_mask];
}

static bool same_key(const struct fire_plan *a, const struct fire_plan *b)
{
    return a->digest == b->digest && a->rows == b->rows && a->cols == b->cols &&
           a->kind == b->kind && a->compute == b->compute && a->output == b->output;
}

static void empty_remove(struct buckets *buckets, struct bucket *bucket)
{
    if (bucket->empty_next)
        bucket->empty_next->empty_previous = bucket->empty_previous;
    else
        buckets->empty_last = bucket->empty_previous;
    if (bucket->empty_previous)
        bucket->empty_previous->empty_next = bucket->empty_next;
    else
        buckets->empty_first = bucket->empty_next;
    bucket->empty_next = bucket->empty_previous = NULL;
}

static void empty_add(struct buckets *buckets, struct bucket *bucket)
{
    bucket->empty_next = NULL;
    bucket->empty_previous = buckets->empty_last;
    if (buckets->empty_last)
        buckets->empty_last->empty_next = bucket;
    else
        buckets->empty_first = bucket;
    buckets->empty_last = bucket;
}

static bool is_empty(const struct bucket *bucket)
{
    return bucket->waiting == 0 && bucket->running == 0;
}

static void forget_key(struct buckets *buckets, struct bucket *bucket)
{
    struct bucket **link = bucket_head(buckets, bucket->plan.digest);

    while (*link != bucket)
        link = &(*link)->hash_next;
    *link = bucket->hash_next;
}

struct bucket *buckets_lookup(const struct buckets *buckets, const struct fire_plan *plan)
{
    struct bucket *bucket = *bucket_head(buckets, plan->digest);

    while (bucket && !same_key(&bucket->plan, plan))
        bucket = bucket->hash_next;
    return bucket;
}

enum fire_status buckets_find(struct buckets *buckets, const struct fire_plan *plan,
                              struct bucket **out, struct fire_error *error)
{
    struct bucket **head = bucket_head(buckets, plan->digest);
    struct bucket *bucket = buckets_lookup(buckets, plan);

    *out = bucket;
    if (bucket)
        return FIRE_OK;
    if (buckets->count < buckets->buckets_max) {
        bucket = &buckets->table[buckets->count++];
    } else if (buckets->empty_first) {
        bucket = buckets->empty_first;
        empty_remove(buckets, bucket);
        forget_key(buckets, bucket);
    } else {
        return fire_fail(error, FIRE_BUSY, "options",
                         "matrices of %u different shapes and options wait already: try again "
                         "later, or send fewer kinds at once",
                         buckets->buckets_max);
    }
    memset(bucket, 0, sizeof(*bucket));
    bucket->plan = *plan;
    bucket->factor = 1;
    bucket->size_max = UINT32_MAX;
    bucket->hash_next = *head;
    *head = bucket;
    empty_add(buckets, bucket);
    *out = bucket;
    return FIRE_OK;
}

/* --- lanes ----------------------------------------------------------------------------------- */

static struct lane **lane_head(const struct buckets *buckets, const struct bucket *bucket,
                               const struct tenant *tenant, enum job_priority priority)
{
    uint64_t hash = (uint64_t)(uintptr_t)bucket * 0x9e3779b97f4a7c15u;

    hash ^= (uint64_t)(uintptr_t)tenant + (uint64_t)priority;
    hash *= 0x9e3779b97f4a7c15u;
    return &buckets->lane_heads[(uint32_t)(hash >> 40) & buckets->lane_mask];
}

struct lane *buckets_lane(const struct buckets *buckets, const struct bucket *bucket,
                          const struct tenant *tenant, enum job_priority priority)
{
    struct lane *lane = *lane_head(buckets, bucket, tenant, priority);

    while (lane && (lane->bucket != bucket || lane->tenant != tenant || lane->priority != priority))
        lane = lane->hash_next;
    return lane;
}

static struct lane *lane_find(struct buckets *buckets, struct bucket *bucket, struct tenant *tenant,
                              enum job_priority priority)
{
    struct lane **head = lane_head(buckets, bucket, tenant, priority);
    struct lane *lane = buckets_lane(buckets, bucket, tenant, priority);

    if (lane)
        return lane;
    lane = buckets->lane_free;
    if (lane) {
        buckets->lane_free = lane->hash_next;
    } else {
        FIRE_ASSERT(buckets->lane_count < buckets->lanes_max);
        lane = &buckets->lanes[buckets->lane_count++];
    }
    *lane = (struct lane){ .bucket = bucket,
                           .tenant = tenant,
                           .priority = priority,
                           .tenant_next = tenant->lanes,
                           .bucket_next = bucket->lanes,
                           .hash_next = *head };
    *head = lane;
    if (tenant->lanes)
        tenant->lanes->tenant_previous = lane;
    tenant->lanes = lane;
    if (bucket->lanes)
        bucket->lanes->bucket_previous = lane;
    bucket->lanes = lane;
    bucket->lane_count++;
    return lane;
}

static void lane_release(struct buckets *buckets, struct lane *lane)
{
    struct lane **link = lane_head(buckets, lane->bucket, lane->tenant, lane->priority);

    while (*link != lane)
        link = &(*link)->hash_next;
    *link = lane->hash_next;
    if (lane->tenant_next)
        lane->tenant_next->tenant_previous = lane->tenant_previous;
    if (lane->tenant_previous)
        lane->tenant_previous->tenant_next = lane->tenant_next;
    else
        lane->tenant->lanes = lane->tenant_next;
    if (lane->bucket_next)
        lane->bucket_next->bucket_previous = lane->bucket_previous;
    if (lane->bucket_previous)
        lane->bucket_previous->bucket_next = lane->bucket_next;
    else
        lane->bucket->lanes = lane->bucket_next;
    lane->bucket->lane_count--;
    lane->hash_next = buckets->lane_free;
    buckets->lane_free = lane;
}

/* --- jobs ------------------------------------------------------------------------------------ */

uint32_t job_waiting(const struct job *job)
{
    uint32_t count = job->matrix_count - job->dealt;

    for (uint32_t i = 0; i < job->again_count; i++)
        count += job->again[i].count;
    return count;
}

static void count_in(struct buckets *buckets, struct job *job, uint32_t matrices)
{
    buckets->waiting += matrices;
    buckets->waiting_s += matrices * job->cost_s;
    job->bucket->waiting += matrices;
    job->lane->waiting += matrices;
    job->tenant->jobs_waiting += matrices;
    job->tenant->waiting_seconds += matrices * job->cost_s;
}

static void count_out(struct buckets *buckets, struct job *job, uint32_t matrices)
{
    buckets->waiting -= matrices;
    job->bucket->waiting -= matrices;
    job->lane->waiting -= matrices;
    job->tenant->jobs_waiting -= matrices;
    /* Sums of what was added and taken away drift; empty is zero. */
    buckets->waiting_s =
        buckets->waiting ? fmax(buckets->waiting_s - matrices * job->cost_s, 0) : 0;
    job->tenant->waiting_seconds =
        job->tenant->jobs_waiting ? fmax(job->tenant->waiting_seconds - matrices * job->cost_s, 0)
                                  : 0;
}

static void link_first(struct lane *lane, struct job *job)
{
    job->previous = NULL;
    job->next = lane->first;
    if (lane->first)
        lane->first->previous = job;
    else
        lane->last = job;
    lane->first = job;
}

static void link_last(struct lane *lane, struct job *job)
{
    job->next = NULL;
    job->previous = lane->last;
    if (lane->last)
        lane->last->next = job;
    else
        lane->first = job;
    lane->last = job;
}

static void unlink_job(struct lane *lane, struct job *job)
{
    if (job->next)
        job->next->previous = job->previous;
    else
        lane->last = job->previous;
    if (job->previous)
        job->previous->next = job->next;
    else
        lane->first = job->next;
    job->next = job->previous = NULL;
}

/* Everything but the place in the lane. */
static void enter(struct buckets *buckets, struct bucket *bucket, struct job *job)
{
    if (is_empty(bucket))
        empty_remove(buckets, bucket);
    job->bucket = bucket;
    job->lane = lane_find(buckets, bucket, job->tenant, job->priority);
    count_in(buckets, job, job_waiting(job));
    buckets->jobs++;
    bucket->end_of_set += job->end_of_set;
    bucket->ripe += job->ripe;
    bucket->critical += job->critical;
    job->lane->critical += job->critical;
}

void buckets_push(struct buckets *buckets, struct bucket *bucket, struct job *job)
{
    enter(buckets, bucket, job);
    link_last(job->lane, job);
}

void buckets_push_front(struct buckets *buckets, struct bucket *bucket, struct job *job)
{
    enter(buckets, bucket, job);
    link_first(job->lane, job);
}

void buckets_remove(struct buckets *buckets, struct job *job)
{
    struct bucket *bucket = job->bucket;
    struct lane *lane = job->lane;

    count_out(buckets, job, job_waiting(job));
    unlink_job(lane, job);
    buckets->jobs--;
    bucket->end_of_set -= job->end_of_set;
    bucket->ripe -= job->ripe;
    bucket->critical -= job->critical;
    lane->critical -= job->critical;
    job->lane = NULL;
    if (!lane->first)
        lane_release(buckets, lane);
    if (is_empty(bucket))
        empty_add(buckets, bucket);
}

struct job_range buckets_deal(struct buckets *buckets, struct job *job, uint32_t count_max)
{
    struct job_range range = { job->dealt, job->matrix_count - job->dealt };
    struct job_range *again = job->again_count ? &job->again[job->again_count - 1] : NULL;

    if (again)
        range = *again;
    if (range.count > count_max)
        range.count = count_max;
    if (range.count == job_waiting(job)) {
        buckets_remove(buckets, job);
    } else {
        count_out(buckets, job, range.count);
    }
    if (again) {
        again->first += range.count;
        again->count -= range.count;
        job->again_count -= again->count == 0;
    } else {
        job->dealt += range.count;
    }
    return range;
}

void buckets_mark_ripe(struct job *job)
{
    job->bucket->ripe += !job->ripe;
    job->ripe = true;
}

void buckets_mark_critical(struct job *job)
{
    if (job->critical)
        return;
    job->critical = true;
    job->bucket->critical++;
    job->lane->critical++;
    unlink_job(job->lane, job);
    link_first(job->lane, job);
}

void bucket_begin(struct buckets *buckets, struct bucket *bucket)
{
    if (is_empty(bucket))
        empty_remove(buckets, bucket);
    bucket->running++;
}

void bucket_end(struct buckets *buckets, struct bucket *bucket)
{
    FIRE_ASSERT(bucket->running > 0);
    bucket->running--;
    if (is_empty(bucket))
        empty_add(buckets, bucket);
}

/* --- what is known of a bucket --------------------------------------------------------------- */

double bucket_seconds(const struct bucket *bucket, uint32_t matrix_count)
{
    const uint32_t granule = bucket->granule ? bucket->granule : 1;
    const uint64_t filled = ((uint64_t)matrix_count + granule - 1) / granule * granule;

    return bucket->overhead_s + (double)filled * bucket->matrix_s;
}

void bucket_describe(const struct bucket *bucket, struct bucket_info *info)
{
    const struct fire_plan *plan = &bucket->plan;

    snprintf(info->key, sizeof(info->key), "%s%s %ux%u",
             plan->kind == FIRE_PLAN_ANALYZE ? "analyze " : "", fire_dtype_name(plan->output),
             plan->out, plan->in);
    info->waiting = bucket->waiting;
    info->efficient_size = bucket->efficient_size;
    info->batches = bucket->batches;
    info->matrices = bucket->matrices;
    info->oldest_ns = CLOCK_NEVER_NS;
    for (const struct lane *lane = bucket->lanes; lane; lane = lane->bucket_next) {
        const struct job *job = lane->first;

        /* Critical jobs stand before older ones. */
        for (uint32_t i = 0; job && i <= lane->critical; i++, job = job->next) {
            if (job->submitted_ns < info->oldest_ns)
                info->oldest_ns = job->submitted_ns;
        }
    }
}
