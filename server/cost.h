/* cost: how long a device will take, from flops.
 *
 * A plan's flops are bounded from its shape and steps; the device's rate is calibrated at start by
 * running real batches of a few shapes and corrected by what each batch took, per size class (the
 * short side's power of two). Loop thread. */
#ifndef FIRED_COST_H
#define FIRED_COST_H

#include <stdint.h>

#include "plan.h"

#define COST_CLASSES 18

struct cost_model {
    double seconds_per_flop[COST_CLASSES]; /* device time of a full batch; by class of short side */
    double batch_overhead_s;               /* what a batch costs beyond its matrices */
    uint32_t workers;                      /* threads that small matrices are dealt out to */
};

/* The class of a plan: log2 of its short side. */
uint32_t cost_class(const struct fire_plan *plan);
/* Matrices that take no longer together than one of them: lanes and workers filled. */
uint32_t cost_granule(const struct cost_model *model, const struct fire_plan *plan);
/* Matrices at which every worker has one of its own. Fewer than that are mostly all workers'
 * together, which costs some share more, up to the sides at which they always are. */
uint32_t cost_company(const struct cost_model *model, const struct fire_plan *plan);

/* Flops of one matrix, statistics included. */
double cost_flops(const struct fire_plan *plan);
/* Estimated device seconds of `matrix_count` matrices in one batch. */
double cost_seconds(const struct cost_model *model, const struct fire_plan *plan,
                    uint32_t matrix_count);
/* Learns from a batch that took `seconds`. */
void cost_learn(struct cost_model *model, const struct fire_plan *plan, uint32_t matrix_count,
                double seconds);

/* A batch that was timed to calibrate a device. */
struct cost_sample {
    const struct fire_plan *plan;
    uint32_t matrix_count;
    double seconds;
};

/* Makes a model from samples in ascending order of their class, at least one: classes between two
 * samples are interpolated, those beyond the ends take the nearest. */
void cost_calibrate(struct cost_model *model, const struct cost_sample *samples,
                    uint32_t sample_count, double batch_overhead_s, uint32_t workers);

#endif
