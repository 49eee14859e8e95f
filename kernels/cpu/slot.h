/* slot: everything that happens to one matrix of a batch: measuring, projecting, scaling, writing
 * back, statistics. */
#ifndef FIRE_SLOT_H
#define FIRE_SLOT_H

#include "backend.h"
#include "polar.h"

/* Runs `plan` on `slot` and fills its result. When it fails for want of memory the weights are as
 * they were and the result's status says so. */
void slot_run(const struct crew *crew, const struct fire_plan *plan, struct polar_space *space,
              struct fire_slot *slot);

/* An isometry that was found elsewhere, proven to be within the plan's target. */
struct slot_factor {
    const double *q; /* entry e of rows x cols, row-major, is q[e * stride] */
    size_t stride;
    double norm; /* ||W||_F of the weights it belongs to */
    uint32_t steps;
    const char *method;
};

/* The end of slot_run() where Q is known: scale, weights, statistics, result. */
void slot_finish(const struct crew *crew, const struct fire_plan *plan, struct polar_space *space,
                 struct fire_slot *slot, const struct slot_factor *factor);

#endif
