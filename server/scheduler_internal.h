/* scheduler_internal: what the three files of the scheduler share: scheduler.c takes jobs and ends
 * batches, scheduler_dispatch.c chooses and fills batches, scheduler_attention.c keeps time. */
#ifndef FIRED_SCHEDULER_INTERNAL_H
#define FIRED_SCHEDULER_INTERNAL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "bucket_internal.h"
#include "scheduler.h"

#define SCHEDULER_DEVICES_MAX 16u
#define SCHEDULER_RECENT_S    1.0 /* over which a tenant's share is measured */

/* A lane and the virtual time at which its next job would start. */
struct lane_entry {
    double virtual_seconds;
    struct lane *lane;
};

struct served_device {
    struct device *device;
    struct tenant *tenant; /* whom the last ordinary batch was chosen for */
};

struct scheduler {
    struct scheduler_settings settings;
    uv_loop_t *loop;
    struct tenants *tenants;
    struct metrics *metrics;
    struct buckets *buckets;
    struct served_device devices[SCHEDULER_DEVICES_MAX];
    uint32_t device_count;
    struct tenant *active[TENANTS_MAX]; /* tenants with something waiting or running */
    uint32_t active_count;
    double virtual_now; /* where the last chosen tenant stood */
    uint32_t hold;      /* above 0: nothing is dispatched */
    bool draining;
    uint64_t batch_id;
    uint64_t running;           /* matrices */
    struct lane_entry *entries; /* scratch: jobs_max of them */

    /* Jobs that ended without a batch, not yet told. */
    struct job *ended_first;
    struct job *ended_last;

    /* Jobs by the moment they need attention: a heap. */
    struct job **heap;
    uint32_t heap_count;
    int timer_fd; /* nanoseconds; a timer of the loop counts milliseconds */
    uv_poll_t timer;
    uint64_t armed_ns;

    /* What the gauges say. */
    uint64_t shown_waiting;
    uint64_t shown_running;
    void (*closed)(void *data);
    void *closed_data;
};

/* --- scheduler_attention.c ------------------------------------------------------------------- */
FIRE_NODISCARD enum fire_status attention_open(struct scheduler *scheduler,
                                               struct fire_error *error);
void attention_close(struct scheduler *scheduler, uv_close_cb closed);
/* Puts the job where its next moment is; a job with none is not kept. */
void attention_add(struct scheduler *scheduler, struct job *job);
void attention_remove(struct scheduler *scheduler, struct job *job); /* not kept: nothing */
void attention_arm(struct scheduler *scheduler);

/* --- scheduler_dispatch.c -------------------------------------------------------------------- */
/* Gives the devices what they have room for, tells of jobs that ended, arms the timer. */
void dispatch(struct scheduler *scheduler);
/* Estimates of a bucket from the model of the device in service. */
void bucket_refresh(struct scheduler *scheduler, struct bucket *bucket);

/* --- scheduler.c ----------------------------------------------------------------------------- */
/* Ends what waits of a job: its rest is not computed. It is told later. */
void end_waiting(struct scheduler *scheduler, struct job *job, enum fire_status outcome);
void tell_ended(struct scheduler *scheduler);
void tenant_rest(struct scheduler *scheduler, struct tenant *tenant);
struct device *first_in_service(const struct scheduler *scheduler);
/* Whether batches go to it: it is in service, and not standing by for one that is. */
bool takes_work(const struct scheduler *scheduler, const struct device *device);

/* Device seconds of late: what was used a while ago counts less. */
static inline double tenant_recent_s(const struct tenant *tenant, uint64_t now_ns)
{
    const uint64_t at_ns = tenant->recent_at_ns;
    const double age_s = now_ns > at_ns ? (double)(now_ns - at_ns) / 1e9 : 0;

    return tenant->recent_seconds * exp(-age_s / SCHEDULER_RECENT_S);
}

static inline double tenant_weight(const struct tenant *tenant)
{
    return tenant->limits.weight > 1e-6 ? tenant->limits.weight : 1e-6;
}

#endif
