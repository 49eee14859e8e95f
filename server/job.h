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

/* What a waiting job's next moment is. */
enum job_attention { JOB_ATTENTION_DELAY, JOB_ATTENTION_SAFE, JOB_ATTENTION_DEADLINE };

#define JOB_RANGES_MAX 3u

struct job_range {
    uint32_t first;
    uint32_t count;
};

struct bucket;
struct lane;
struct job;

/* Called on the loop thread, once. FIRE_OK: the slots hold results (each slot's own result tells
 * what happened to it) and the batch_* members are set, to the last batch where there were several.
 * FIRE_TOO_LATE, FIRE_DEVICE_LOST, FIRE_NO_MEMORY: not computed, or not all of it. FIRE_CANCELLED:
 * cancelled while it, or a part of it, was with the device. Never called for a job that
 * scheduler_cancel() took back. The job is the submitter's again; it may be freed here. */
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
    bool alone;           /* no other call is open: nobody is held up by what it takes */
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

    /* The scheduler's. A job may be dealt out over several batches. */
    struct bucket *bucket;
    struct lane *lane; /* where it waits; NULL: nothing of it waits */
    struct job *next;
    struct job *previous;
    uint32_t dealt; /* matrices from the front that were given to batches */
    uint32_t again_count;
    struct job_range again[JOB_RANGES_MAX]; /* … and came back without having been computed */
    uint32_t parts_running;                 /* batches that hold some of it */
    double cost_s;                          /* estimated device seconds of one matrix */
    uint64_t attention_ns;                  /* when to look at it next, and what for */
    enum job_attention attention;
    uint32_t attention_index;
    bool cancelled; /* what of it is with devices is not wanted any more */
    bool ripe;      /* it has waited for company */
    bool critical;  /* its last safe moment has come */
    enum fire_status outcome;
};

#endif
