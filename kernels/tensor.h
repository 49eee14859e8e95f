/* tensor: a tensor as a file or a caller has it, seen as the matrices inside it.
 *
 * Convolution taps, fused qkv blocks, stacks and (in, out) layout are all the same thing: a list of
 * m x n matrices (m = out, n = in) with an offset and two strides into the tensor. Gathering copies
 * one of them into a slot of a slab, oriented long x short, row-major without padding, widened to
 * f32 or f64; scattering is its inverse. */
#ifndef FIRE_TENSOR_H
#define FIRE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dtype.h"
#include "options.h"
#include "status.h"

#define FIRE_AXES_MAX         8
#define FIRE_SIDE_MAX         65536u /* longest side of one matrix */
#define FIRE_TENSOR_BYTES_MAX (1ull << 40)

struct fire_shape {
    uint32_t axes;
    uint64_t size[FIRE_AXES_MAX];
};

/* One matrix inside a tensor; offset and strides count elements. */
struct fire_view {
    uint32_t rows; /* m, out */
    uint32_t cols; /* n, in */
    uint64_t offset;
    uint64_t row_stride;
    uint64_t col_stride;
    uint64_t fan_in;  /* n times kernel taps */
    uint64_t fan_out; /* m times kernel taps */
    double tap_count; /* k_h k_w for a conv tap, else 1: fan-ratio divides by it */
};

/* Elements of the tensor, with every product checked. Refuses zero axes sizes and overflow. */
FIRE_NODISCARD enum fire_status fire_shape_elements(const struct fire_shape *shape,
                                                    uint64_t *elements, struct fire_error *error);

/* How many matrices `shape` holds under `options`. After the stack axes a tensor is
 *     out_in: (out, in), (out, in, k) or (out, in, k_h, k_w)
 *     in_out: (in, out), (k, in, out) or (k_h, k_w, in, out)
 * conv=tap makes one out x in matrix a tap, conv=flatten one out x (in times taps) matrix; a split
 * cuts the out axis. Fails when the shape has fewer than 2 or more than 4 axes after the stack,
 * when a split does not add up, when a side is over FIRE_SIDE_MAX. */
FIRE_NODISCARD enum fire_status fire_view_count(const struct fire_shape *shape,
                                                const struct fire_options *options, uint64_t *count,
                                                struct fire_error *error);

/* View `index` of them: stack-major, then split block, then tap. Call only after fire_view_count()
 * succeeded with the same arguments. */
void fire_view_at(const struct fire_shape *shape, const struct fire_options *options,
                  uint64_t index, struct fire_view *view);

/* Sides of the slot: long x short. */
static inline uint32_t fire_view_long(const struct fire_view *view)
{
    return view->rows > view->cols ? view->rows : view->cols;
}
static inline uint32_t fire_view_short(const struct fire_view *view)
{
    return view->rows < view->cols ? view->rows : view->cols;
}

/* Copies the matrix out of `tensor` (elements of `dtype`) into `slot` (long x short, f32, or f64
 * when `compute` is FIRE_F64). NaN or Inf is FIRE_BAD_REQUEST and `bad_index` (NULL allowed) is the
 * element's index in the tensor; the slot is then undefined. An f64 element that overflows f32
 * counts as Inf. */
FIRE_NODISCARD enum fire_status fire_view_gather(const struct fire_view *view, const void *tensor,
                                                 enum fire_dtype dtype, enum fire_dtype compute,
                                                 void *slot, uint64_t *bad_index);

/* The inverse: rounds to `dtype` and writes only this matrix's elements. */
void fire_view_scatter(const struct fire_view *view, const void *slot, enum fire_dtype compute,
                       enum fire_dtype dtype, void *tensor);

#endif
