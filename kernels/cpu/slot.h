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

#endif
