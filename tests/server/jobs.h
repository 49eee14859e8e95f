/* jobs: matrices for tests of the scheduler: their plan, their memory, and what became of them.
 * Whatever fails on the way stops the test with the reason. */
#ifndef FIRED_TEST_JOBS_H
#define FIRED_TEST_JOBS_H

#include <stdbool.h>
#include <stdint.h>

#include "job.h"
#include "options.h"
#include "plan.h"

/* The plan of an out x in f32 matrix under preset "fire" with settings over it. */
void plan_make(struct fire_plan *plan, uint32_t out, uint32_t in, const char *setting);

/* A job and all it points to. */
struct work {
    struct job job;
    struct fire_plan plan;
    struct fire_slot *slots;
    struct fire_result *results;
    float *weights; /* gaussian; the same seed gives the same */
    size_t elements;
    bool done;
    enum fire_status status;
    uint32_t *done_count; /* of the test; NULL is allowed */
    uint32_t order;       /* how many were done before */
};

/* Made, not submitted. Matrices are numbered from `seed` on, so that any one can be made again. */
struct work *work_open(const struct fire_plan *plan, uint32_t matrix_count, uint64_t seed);
void work_close(struct work *work);
void work_fill(struct work *work, uint64_t seed);
const float *work_matrix(const struct work *work, uint32_t index);

/* What the CPU makes of it, by itself, in a batch of one. */
void project_alone(const struct fire_plan *plan, uint64_t seed, float *weights);

#endif
