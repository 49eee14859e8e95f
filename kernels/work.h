/* work: what one weight tensor asks of a device: its matrices by shape, each shape with its plan.
 *
 * Shared by the in-process client and the daemon, so that both do the same to the same tensor:
 * which matrices are skipped by rule, how each is seeded, how results become the tensor's. */
#ifndef FIRE_WORK_H
#define FIRE_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "plan.h"
#include "result.h"
#include "status.h"
#include "tensor.h"

/* The matrices of one shape. */
struct fire_work_part {
    struct fire_plan plan;
    uint32_t rows; /* m, out */
    uint32_t cols; /* n, in */
    uint64_t matrices;
};

struct fire_work {
    uint64_t elements;
    uint64_t view_count;
    uint64_t matrices; /* to be computed: the views but those skipped by rule */
    uint32_t part_count;
    struct fire_work_part *parts; /* owned */
};

/* Checks shape and options and plans every shape once. With `analyze` the plans are for statistics
 * only. On failure nothing is left to release; FIRE_NO_MEMORY tells no room from a fault of the
 * tensor. */
FIRE_NODISCARD enum fire_status fire_work_init(struct fire_work *work,
                                               const struct fire_shape *shape,
                                               enum fire_dtype dtype,
                                               const struct fire_options *options, bool analyze,
                                               uint32_t statistics, struct fire_error *error);
void fire_work_release(struct fire_work *work);

/* Index of the part that `view` belongs to, or UINT32_MAX when the rule skips it. */
uint32_t fire_work_part_of(const struct fire_work *work, const struct fire_view *view);

/* A well-mixed seed for matrix `view_index`: from the options' seed, the tensor's name and the
 * index only, so a result does not depend on batch mates. */
uint64_t fire_work_seed(const struct fire_options *options, const char *name, uint64_t view_index);

/* The result of a tensor (or view) that is skipped by rule. */
void fire_work_skip(struct fire_result *result, uint64_t matrices);

/* The error for element `index` of a tensor, which is NaN or Inf. */
void fire_work_describe_element(const char *name, const struct fire_shape *shape, double value,
                                uint64_t index, struct fire_error *error);

/* Dormant ratios of a weight whose `result` is known; each input may be NULL. Units are the out
 * axis of `shape` under `options`. */
struct fire_dormant_input {
    const double *unit_means;
    uint64_t unit_count;
    const void *gradient; /* of the weight's shape */
    enum fire_dtype gradient_dtype;
};
FIRE_NODISCARD enum fire_status fire_work_dormant(const struct fire_shape *shape,
                                                  const struct fire_options *options,
                                                  const struct fire_dormant_input *input,
                                                  struct fire_result *result,
                                                  struct fire_error *error);

/* Copies elements first … first + count - 1 of a tensor that fire_work_init() accepted (row-major
 * over its whole shape; `data` holds just these, any alignment) to their places in the slots of its
 * matrices, as fire_view_gather() would, so that a tensor can arrive in pieces. `slots[v]` is the
 * slot of view v; NULL: that view is not wanted. NaN or Inf in a wanted view is FIRE_BAD_REQUEST
 * with `bad_index` (NULL allowed), the first such element's index in the tensor. Different pieces
 * of one tensor may be gathered by different threads at once. */
FIRE_NODISCARD enum fire_status fire_work_gather(const struct fire_shape *shape,
                                                 const struct fire_options *options,
                                                 enum fire_dtype dtype, enum fire_dtype compute,
                                                 uint64_t first, uint64_t count, const void *data,
                                                 void *const *slots, uint64_t *bad_index);

/* The inverse for a whole tensor, as fire_view_scatter() would of each view that has a slot: rounds
 * to `dtype`; what is in no such view is left as it is. Faster than view by view where matrices
 * share cache lines of the tensor, as taps do. */
void fire_work_scatter(const struct fire_shape *shape, const struct fire_options *options,
                       enum fire_dtype dtype, enum fire_dtype compute, void *const *slots,
                       void *tensor);

/* The same as fire_work_gather() for a piece of a tensor that fire_work_is_verbatim(): `slots` is
 * where its first element goes. False: some of it is NaN or Inf; fire_work_gather() then tells
 * what. */
FIRE_NODISCARD bool fire_work_gather_flat(enum fire_dtype dtype, uint64_t count, const void *data,
                                          void *slots);

/* How many elements a piece should have at least: so many that fire_work_gather() writes whole
 * cache lines where slots lie across the tensor; 1 where they lie along it. Shorter pieces are
 * right too, but several times slower, so they are best joined. */
uint64_t fire_work_gather_grain(const struct fire_shape *shape, const struct fire_options *options);

/* True when the slots of all views, one after another, are the tensor's own bytes (f32 or f64 equal
 * to `compute`, out_in with rows >= cols and no taps, or in_out with rows < cols and no split;
 * nothing skipped): no conversion either way. */
bool fire_work_is_verbatim(const struct fire_work *work, const struct fire_shape *shape,
                           const struct fire_options *options, enum fire_dtype dtype);

#endif
