/* tensor: where the matrices of a tensor are. Copying them is gather.c.
 *
 * After the stack axes a tensor is out x in x taps (out_in) or taps x in x out (in_out), with taps
 * = 1 for a plain matrix; every view follows from those four numbers and the split. */
#include "tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "geometry.h"

/* "(768, 3, 16, 16)", as the messages show it. */
#define SHAPE_TEXT_BYTES (FIRE_AXES_MAX * 22 + 4)
static const char *shape_text(const struct fire_shape *shape, char *text)
{
    size_t used = (size_t)snprintf(text, SHAPE_TEXT_BYTES, "(");

    for (uint32_t i = 0; i < shape->axes && i < FIRE_AXES_MAX; i++)
        used += (size_t)snprintf(text + used, SHAPE_TEXT_BYTES - used, "%s%" PRIu64, i ? ", " : "",
                                 shape->size[i]);
    snprintf(text + used, SHAPE_TEXT_BYTES - used, ")");
    return text;
}

enum fire_status fire_shape_elements(const struct fire_shape *shape, uint64_t *elements,
                                     struct fire_error *error)
{
    const uint64_t elements_max = FIRE_TENSOR_BYTES_MAX / 2; /* the narrowest dtype has 2 bytes */
    char text[SHAPE_TEXT_BYTES];
    uint64_t product = 1;

    *elements = 0;
    if (shape->axes > FIRE_AXES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "shape",
                         "the tensor has %" PRIu32 " axes; at most %d are supported", shape->axes,
                         FIRE_AXES_MAX);
    for (uint32_t i = 0; i < shape->axes; i++)
        if (shape->size[i] == 0)
            return fire_fail(error, FIRE_BAD_REQUEST, "shape",
                             "axis %" PRIu32 " of shape %s is 0; leave empty tensors out", i,
                             shape_text(shape, text));
    for (uint32_t i = 0; i < shape->axes; i++)
        if (__builtin_mul_overflow(product, shape->size[i], &product) || product > elements_max)
            return fire_fail(error, FIRE_BAD_REQUEST, "shape",
                             "shape %s has more than %" PRIu64 " elements; send it in parts",
                             shape_text(shape, text), elements_max);
    *elements = product;
    return FIRE_OK;
}

void geometry_of(const struct fire_shape *shape, const struct fire_options *options,
                 struct geometry *geometry)
{
    const uint64_t *size = shape->size + options->stack;
    const uint32_t axes = shape->axes - options->stack;
    const bool out_first = options->layout == FIRE_LAYOUT_OUT_IN;

    *geometry = (struct geometry){ .stack = 1, .taps = 1, .blocks = options->split_count };
    for (uint32_t i = 0; i < options->stack; i++)
        geometry->stack *= shape->size[i];
    geometry->out = out_first ? size[0] : size[axes - 1];
    geometry->in = out_first ? size[1] : size[axes - 2];
    for (uint32_t i = 2; i < axes; i++)
        geometry->taps *= out_first ? size[i] : size[i - 2];
    for (uint64_t i = 0; i < geometry->blocks && i < FIRE_SPLIT_MAX; i++)
        geometry->kept += geometry_block_kept(options, i);
}

static enum fire_status check_split(const struct fire_options *options, uint64_t out,
                                    struct fire_error *error)
{
    uint64_t sum = 0;

    if (options->split_count == 0 || options->split_count > FIRE_SPLIT_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "split",
                         "split must make 1 to %d row blocks, got %" PRIu32, FIRE_SPLIT_MAX,
                         options->split_count);
    if (options->split_sizes[0] == 0) {
        if (out % options->split_count != 0)
            return fire_fail(error, FIRE_BAD_REQUEST, "split",
                             "%" PRIu64 " rows do not split into %" PRIu32
                             " equal blocks; give the sizes, as split=a,b,c",
                             out, options->split_count);
        return FIRE_OK;
    }
    for (uint32_t i = 0; i < options->split_count; i++) {
        if (options->split_sizes[i] == 0)
            return fire_fail(error, FIRE_BAD_REQUEST, "split",
                             "size %" PRIu32 " of the split is 0; every block needs a row", i);
        if (__builtin_add_overflow(sum, options->split_sizes[i], &sum))
            return fire_fail(error, FIRE_BAD_REQUEST, "split",
                             "the split sizes overflow; they must add up to %" PRIu64 " rows", out);
    }
    if (sum != out)
        return fire_fail(error, FIRE_BAD_REQUEST, "split",
                         "the split sizes add up to %" PRIu64 ", but the tensor has %" PRIu64
                         " output rows; make them equal",
                         sum, out);
    return FIRE_OK;
}

static enum fire_status check_sides(const struct geometry *geometry,
                                    const struct fire_options *options, struct fire_error *error)
{
    const bool flat = options->conv == FIRE_CONV_FLATTEN;
    const uint64_t cols = flat ? geometry->in * geometry->taps : geometry->in;

    if (cols > FIRE_SIDE_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "shape",
                         "a matrix would have %" PRIu64 " columns; at most %u are supported%s",
                         cols, FIRE_SIDE_MAX, flat ? " (conv=tap makes narrower ones)" : "");
    for (uint64_t i = 0; i < geometry->blocks; i++) {
        const uint64_t rows = geometry_block_rows(options, geometry->out, i);

        if (rows > FIRE_SIDE_MAX)
            return fire_fail(error, FIRE_BAD_REQUEST, "shape",
                             "a matrix would have %" PRIu64
                             " rows; at most %u are supported (embeddings are best left out)",
                             rows, FIRE_SIDE_MAX);
    }
    return FIRE_OK;
}

enum fire_status fire_view_count(const struct fire_shape *shape, const struct fire_options *options,
                                 uint64_t *count, struct fire_error *error)
{
    char text[SHAPE_TEXT_BYTES];
    struct geometry geometry;
    uint64_t elements;
    enum fire_status status = fire_shape_elements(shape, &elements, error);

    *count = 0;
    if (status != FIRE_OK)
        return status;
    if (shape->axes < 2)
        return fire_fail(error, FIRE_BAD_REQUEST, "shape",
                         "shape %s is not a matrix: it needs at least 2 axes",
                         shape_text(shape, text));
    if (options->stack > FIRE_STACK_MAX || options->stack > shape->axes - 2)
        return fire_fail(error, FIRE_BAD_REQUEST, "stack",
                         "stack=%" PRIu32 " leaves fewer than 2 axes of shape %s for a matrix; "
                         "use a smaller one",
                         options->stack, shape_text(shape, text));
    if (shape->axes - options->stack > 4)
        return fire_fail(error, FIRE_BAD_REQUEST, "stack",
                         "shape %s has %" PRIu32 " axes after stack=%" PRIu32
                         "; a matrix has 2, a convolution 3 or 4: count leading axes with stack",
                         shape_text(shape, text), shape->axes - options->stack, options->stack);
    geometry_of(shape, options, &geometry);
    status = check_split(options, geometry.out, error);
    if (status != FIRE_OK)
        return status;
    if (geometry.kept == 0)
        return fire_fail(error, FIRE_BAD_REQUEST, "split_skip",
                         "split_skip leaves none of the %" PRIu64 " row blocks; keep one",
                         geometry.blocks);
    status = check_sides(&geometry, options, error);
    if (status != FIRE_OK)
        return status;
    *count = geometry.stack * geometry.kept * (options->conv == FIRE_CONV_TAP ? geometry.taps : 1);
    return FIRE_OK;
}

void fire_view_at(const struct fire_shape *shape, const struct fire_options *options,
                  uint64_t index, struct fire_view *view)
{
    const bool flat = options->conv == FIRE_CONV_FLATTEN;
    struct geometry geometry;
    uint64_t views_per_block, tap, kept, block, layer, row = 0;

    geometry_of(shape, options, &geometry);
    views_per_block = flat ? 1 : geometry.taps;
    tap = index % views_per_block;
    kept = index / views_per_block % geometry.kept;
    layer = index / views_per_block / geometry.kept;
    FIRE_ASSERT(layer < geometry.stack);
    for (block = 0; kept > 0 || !geometry_block_kept(options, block); block++) {
        kept -= geometry_block_kept(options, block);
        row += geometry_block_rows(options, geometry.out, block);
    }

    view->rows = (uint32_t)geometry_block_rows(options, geometry.out, block);
    view->cols = (uint32_t)(flat ? geometry.in * geometry.taps : geometry.in);
    if (options->layout == FIRE_LAYOUT_OUT_IN) {
        view->row_stride = geometry.in * geometry.taps;
        view->col_stride = flat ? 1 : geometry.taps;
        view->offset = tap;
    } else {
        view->row_stride = 1;
        view->col_stride = geometry.out;
        view->offset = tap * geometry.in * geometry.out;
    }
    view->offset += layer * geometry.out * geometry.in * geometry.taps + row * view->row_stride;
    view->fan_in = geometry.in * geometry.taps;
    view->fan_out = (uint64_t)view->rows * geometry.taps;
    view->tap_count = flat ? 1.0 : (double)geometry.taps;
}
