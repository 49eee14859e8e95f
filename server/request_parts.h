/* request_parts: what lies in the block of a tensor; shared by request.c and request_answer.c only.
 *
 * The block of a weight, each area on a 64-byte boundary:
 *     weights   the slots of its matrices, one after another in view order
 *     bytes     the tensor as it will be sent back, unless `weights` is just that; when some of it
 *               is no matrix or is skipped, the bytes that arrived are kept here and the projected
 *               matrices are written over them
 *     slots     a pointer a view into `weights`; NULL where the view is skipped
 *     entries   struct fire_slot, those of one part next to each other
 *     results   struct fire_result a view
 *     jobs
 *     spectra   struct fire_spectra a matrix, and behind them that of the tensor, when the call
 *               records a spectrum
 * That of any other tensor is its bytes. */
#ifndef FIRED_REQUEST_PARTS_H
#define FIRED_REQUEST_PARTS_H

#include "request.h"

struct request_job {
    struct job job; /* first: a job is its request_job */
    bool pending;   /* with the scheduler */
    struct request_tensor *tensor;
    void (*done)(struct request_tensor *tensor);
};

struct request_parts {
    bool verbatim; /* the slots are the tensor's own bytes */
    bool keep_raw;
    bool laid_out;
    uint32_t job_count;
    uint64_t weights_bytes;
    uint64_t bytes_offset;
    uint64_t slots_offset;
    uint64_t entries_offset;
    uint64_t results_offset;
    uint64_t jobs_offset;
    uint64_t spectra_offset;
    uint64_t block_bytes;
    uint8_t *weights;
    uint8_t *bytes;
    void **slots;
    struct fire_slot *entries;
    struct fire_result *results;
    struct request_job *jobs;
    bool has_spectra;
    struct fire_spectra *spectra; /* in the order of entries */
    struct request_run run;       /* of request_feed() */
};

/* Matrices of one plan that are put into one job. */
static inline uint32_t request_matrices_a_job(const struct fire_plan *plan)
{
    const uint64_t fit = REQUEST_JOB_BYTES / fire_plan_slot_bytes(plan);

    if (fit > REQUEST_JOB_MATRICES)
        return REQUEST_JOB_MATRICES;
    return fit > 0 ? (uint32_t)fit : 1;
}

#endif
