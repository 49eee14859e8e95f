/* scheduler: which bucket runs next, and when.
 *
 * Dispatch rules and fairness are those of DESIGN.md section 5. A bucket is dispatched when the
 * device is idle, when it reaches its efficient size, when a job of it ends a set, at the last safe
 * moment before its earliest deadline, or when it has waited delay_us. A matrix that all workers
 * would share waits a moment, a part of what sharing costs, when its set may bring a second one.
 * Among ready buckets the tenant with the least weighted device time goes first; interactive before
 * normal before bulk, which ages. Loop thread only; never waits; no sweeps: one timer armed for the
 * next moment. */
#ifndef FIRED_SCHEDULER_H
#define FIRED_SCHEDULER_H

#include <uv.h>

#include "bucket.h"
#include "device.h"
#include "job.h"
#include "metrics.h"
#include "tenant.h"

struct scheduler;

struct scheduler_settings {
    uint32_t delay_us;        /* longest wait for company; 0: only where it pays at once */
    uint32_t batch_target_us; /* device time at which a batch is efficient */
    uint32_t slots_max;       /* matrices of one batch */
    uint32_t jobs_max;        /* jobs waiting; more are FIRE_BUSY */
    uint32_t bulk_age_ms;     /* bulk that waited so long counts as normal */
    bool batching;            /* false: every job is a batch of its own (for comparison) */
};

FIRE_NODISCARD enum fire_status scheduler_open(uv_loop_t *loop,
                                               const struct scheduler_settings *settings,
                                               struct tenants *tenants, struct metrics *metrics,
                                               struct scheduler **scheduler,
                                               struct fire_error *error);
/* No job is left in it. `closed` is called when its timer is gone. */
void scheduler_close(struct scheduler *scheduler, void (*closed)(void *data), void *data);

/* The scheduler uses the device from now on; the device's done callback is scheduler_batch_done
 * with the scheduler as data. */
void scheduler_add_device(struct scheduler *scheduler, struct device *device);
void scheduler_batch_done(struct device *device, struct batch *batch, void *scheduler);

/* FIRE_BUSY: too many wait. FIRE_TOO_LATE: its deadline has passed. FIRE_DEVICE_LOST: no device. On
 * FIRE_OK the scheduler owns the job until done(). */
FIRE_NODISCARD enum fire_status scheduler_submit(struct scheduler *scheduler, struct job *job,
                                                 struct fire_error *error);

/* Takes a job back. True: it was waiting and is the caller's again at once; done() is not called.
 * False: it is with the device; done() will be called when its batch ends, as ever, with
 * FIRE_CANCELLED. A batch of which nothing is wanted any more ends early where the device can. */
bool scheduler_cancel(struct scheduler *scheduler, struct job *job);

/* The set of a submitted job is complete after all: what waits of it need not wait for company.
 * What is with the device goes on. */
void scheduler_end_set(struct scheduler *scheduler, struct job *job);

/* Several jobs of one call come right after each other: dispatch only at the end of it. */
void scheduler_hold(struct scheduler *scheduler);
void scheduler_release(struct scheduler *scheduler);

/* Estimated seconds until `matrix_count` matrices of this plan, submitted now, are done: what is
 * with the devices, the tenant's fair part of what waits, and their own time. */
double scheduler_estimate_s(struct scheduler *scheduler, const struct tenant *tenant,
                            const struct fire_plan *plan, uint32_t matrix_count);
/* The same for work that takes no time: whatever the tenant submits now waits so long. 0 when no
 * device is in service: submitting will say so. */
double scheduler_wait_s(const struct scheduler *scheduler, const struct tenant *tenant);
/* A sensible time to try again, from the backlog: what RetryInfo says. */
uint32_t scheduler_retry_ms(const struct scheduler *scheduler);

/* Working memory that a batch of this plan takes on the device that needs most. */
uint64_t scheduler_workspace_bytes(struct scheduler *scheduler, const struct fire_plan *plan);

void scheduler_drain(struct scheduler *scheduler); /* nothing waits for company any more */

uint64_t scheduler_waiting(const struct scheduler *scheduler); /* matrices */
uint64_t scheduler_running(const struct scheduler *scheduler);
uint32_t scheduler_device_count(const struct scheduler *scheduler);
struct device *scheduler_device(struct scheduler *scheduler, uint32_t index);
/* The busiest buckets, at most `room`; returns how many. */
uint32_t scheduler_buckets(const struct scheduler *scheduler, struct bucket_info *infos,
                           uint32_t room);

#endif
