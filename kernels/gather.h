/* gather: what copying a whole matrix and copying a piece of a tensor share. Private to kernels/:
 * tensor.h offers the one, work.h the other. */
#ifndef FIRE_GATHER_H
#define FIRE_GATHER_H

#include "tensor.h"

/* A rectangle of a slot: `rows` along its long side, `cols` along its short one. Strides count
 * elements: two into the tensor, one between rows of the slot. */
struct gather_path {
    uint64_t rows;
    uint64_t cols;
    uint64_t row_stride;
    uint64_t col_stride;
    uint64_t slot_stride;
};

/* The whole slot of `view`. */
struct gather_path gather_path_of(const struct fire_view *view);

/* Copies a rectangle; `source` and `slot` point to its first element. False: NaN or Inf was among
 * them, or f64 too large for f32. */
FIRE_NODISCARD bool gather_rectangle(const struct gather_path *rectangle, const char *source,
                                     enum fire_dtype dtype, enum fire_dtype compute, char *slot);

/* The inverse: rounds to `dtype`; `target` points to its first element in the tensor. */
void scatter_rectangle(const struct gather_path *rectangle, const char *slot,
                       enum fire_dtype compute, enum fire_dtype dtype, char *target);

/* `count` contiguous numbers from `dtype` to `compute`; true when all are finite then. */
typedef bool (*gather_run)(const char *source, void *slot, size_t count);
gather_run gather_run_of(enum fire_dtype dtype, enum fire_dtype compute);

#endif
