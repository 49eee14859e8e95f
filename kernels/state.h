/* state: what happens to the optimizer state of a weight that was replaced.
 *
 * keep: nothing. zero: moments 0, step kept (the next Adam step is up to 3.2 x lr). reset: moments
 * 0 and step 0 (the next Adam step is 1 x lr). transport: the first moment is moved to the tangent
 * space at Q, M - Q sym(Q^T M), mirrored for wide matrices; second moment and step are kept. */
#ifndef FIRE_STATE_H
#define FIRE_STATE_H

#include "dtype.h"
#include "options.h"
#include "status.h"
#include "tensor.h"

enum fire_state_slot {
    FIRE_SLOT_EXP_AVG,
    FIRE_SLOT_EXP_AVG_SQ,
    FIRE_SLOT_MOMENTUM_BUFFER,
    FIRE_SLOT_STEP,
};

/* The slot a name such as "exp_avg" means. FIRE_NOT_FOUND names the known ones. */
FIRE_NODISCARD enum fire_status fire_state_slot_parse(const char *name, enum fire_state_slot *slot,
                                                      struct fire_error *error);

/* "keep", "zero", "reset", "transport". */
const char *fire_state_policy_name(enum fire_state_policy policy);

/* Applies `options->state_policy` to one state tensor, in place. `shape` is the state's own shape:
 * it must equal the parameter's, except for `step` (any shape). `weights` are the new weights as
 * stored (`weights_dtype`, shape of the parameter), used by transport, which divides the scale out
 * of each matrix by its norm, so Q = W' sqrt(r) / ||W'||_F. Integer `step` tensors are the caller's
 * to zero: `dtype` is floating. Every failure (another shape, NaN or Inf where transport must
 * compute, no memory) leaves the state as it was. `weights` may be NULL unless the policy is
 * transport. Any thread; two calls at once on different states are fine. */
FIRE_NODISCARD enum fire_status fire_state_apply(
    const struct fire_options *options, enum fire_state_slot slot, const struct fire_shape *shape,
    enum fire_dtype dtype, void *state, const struct fire_shape *weights_shape,
    enum fire_dtype weights_dtype, const void *weights, struct fire_error *error);

#endif
