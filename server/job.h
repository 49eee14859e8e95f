/* job: a run of matrices of one tensor that share one plan: what the scheduler deals in.
 *
 * A job is complete before it is submitted: its slots are filled and finite. From submit until its
 * `done` is called the scheduler owns it; everything it points to stays where it is. All on the
 * loop thread, except that the device reads and writes the slots while the batch runs. */
#ifndef FIRED_JOB_H
#define FIRED_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "plan.h"
#include "tenant.h"

enum job_priority { JOB_INTERACTIVE, JOB_NORMAL, JOB_BULK };
#define JOB_PRIORITY_COUNT 3

/* Matches fire.v1.CloseReason. */
enum close_reason {
    CLOSE_NONE,
    CLOSE_IDLE,
    CLOSE_FULL,
    CLOSE_END_OF_SET,
    CLOSE_DEADLINE,
    CLOSE_DELAY,
    CLOSE_DRAIN,
};
const char *close_reason_name(enum close_reason reason); /* "idle", "full", … */

struct bucket;
struct batch;
struct job;

/* Called on the loop thread, once. FIRE_OK: the slots hold results (each slot's own result tells
 * what happened to it) and the batch_* members are set. FIRE_DEVICE_LOST, FIRE_NO_MEMORY: not
 * computed. Never called for a job that scheduler_cancel() took back. */
typedef void (*job_done)(struct job *job, enum fire_status status);

struct job {
    /* The submitter's. */
    const struct fire_plan *plan; /* outlives the job */
    struct fire_slot *slots;      /* matrix_count of them */
    uint32_t matrix_count;
    struct tenant *tenant;
    enum job_priority priority;
    uint64_t deadline_ns; /* CLOCK_NEVER_NS: none */
    bool end_of_set;      /* its set is complete: do not wait for company */
    uint64_t call_id;     /* for the log */
    job_done done;
    void *data;

    /* Written by the scheduler, valid in `done`. */
    uint64_t batch_id;
    uint32_t batch_size; /* matrices */
    enum close_reason close_reason;
    uint64_t submitted_ns;
    uint64_t started_ns;
    uint64_t finished_ns;

    /* The scheduler's. */
    struct bucket *bucket;
    struct batch *batch;
    struct job *next;
    struct job *previous;
    double cost_s; /* estimated device seconds */
    bool cancelled;
};

#endif
