/* scale: plans that only change the length of a matrix.
 *
 * No steps and no statistics: W becomes a multiple of itself, one number after another. So it needs
 * no slot: its bytes can be scaled where they lie, in one pass and in any pieces. The CPU backend
 * and the daemon, which does it to the bytes of a message, both use this: they give the same bits.
 *
 * Sums are taken over chunks of FIRE_SCALE_ROWS rows of the slot, the last one shorter, and the
 * chunks added up in order. Within a chunk number i is added to lane i % FIRE_SCALE_LANES, so a sum
 * depends neither on how the chunk was cut nor on the instruction set. */
#ifndef FIRE_SCALE_H
#define FIRE_SCALE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan.h"
#include "result.h"

#define FIRE_SCALE_ROWS  64u
#define FIRE_SCALE_LANES 16u

/* The sums of one chunk; starts as zeros. */
struct fire_scale_sums {
    uint64_t count;                  /* numbers so far */
    double square[FIRE_SCALE_LANES]; /* of the old ones */
    double change[FIRE_SCALE_LANES]; /* squares of new - old */
};

/* True when the plan is of this kind. */
bool fire_scale_takes(const struct fire_plan *plan);

/* The factor of a matrix of which a part has norm `norm`: true when that is known, as it is the
 * same f32 for every norm that the whole may have, and the matrix will not be skipped. */
FIRE_NODISCARD bool fire_scale_factor(const struct fire_plan *plan, double norm, double *factor);

/* Adds the squares of the next `count` f32 of a chunk, at any alignment. */
void fire_scale_measure(struct fire_scale_sums *sums, const void *numbers, size_t count);

/* The same, and multiplies them by `factor` in place. Returns `count`; or, at a NaN or Inf, where
 * in the piece the first one is: it and what follows it within FIRE_SCALE_BLOCK are unchanged. */
#define FIRE_SCALE_BLOCK 1024u
FIRE_NODISCARD size_t fire_scale_run(struct fire_scale_sums *sums, void *numbers, size_t count,
                                     double factor);

double fire_scale_square(const struct fire_scale_sums *sums);
double fire_scale_change(const struct fire_scale_sums *sums);

/* What W <- c W / (norm + eps) has come to: scale, sfe, method, …, or a refusal. */
void fire_scale_result(const struct fire_plan *plan, double norm, double sfe,
                       struct fire_result *result);

#endif
