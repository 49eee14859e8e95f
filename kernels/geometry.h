/* geometry: the axes of a tensor by meaning. Private to kernels/: tensor.h offers views.
 *
 * After the stack axes a tensor is out x in x taps (out_in) or taps x in x out (in_out), with taps
 * = 1 for a plain matrix; the split cuts the out axis into row blocks. */
#ifndef FIRE_GEOMETRY_H
#define FIRE_GEOMETRY_H

#include "tensor.h"

/* Products of these cannot overflow: fire_shape_elements() has passed. */
struct geometry {
    uint64_t stack; /* how many tensors are stacked */
    uint64_t out;
    uint64_t in;
    uint64_t taps;   /* k_h k_w */
    uint64_t blocks; /* row blocks of the split */
    uint64_t kept;   /* of them, those that are matrices */
};

/* Call only for a shape that has at least two axes after the stack. */
void geometry_of(const struct fire_shape *shape, const struct fire_options *options,
                 struct geometry *geometry);

static inline bool geometry_block_kept(const struct fire_options *options, uint64_t block)
{
    return (options->split_skip >> block & 1) == 0;
}

static inline uint64_t geometry_block_rows(const struct fire_options *options, uint64_t out,
                                           uint64_t block)
{
    return options->split_sizes[0] ? options->split_sizes[block] : out / options->split_count;
}

#endif
