/* gather_range: copies a piece of a tensor, wherever it was cut, into the slots of its matrices,
 * and a whole tensor back.
 *
 * A tensor is four axes: stack x out x in x taps, or stack x taps x in x out. A piece of it is cut
 * into boxes, each a range of one axis, one index of the axes before it and all of those after it:
 * the rest of a row, whole rows, the start of a row, and so on; at most seven. A box is a rectangle
 * in every matrix that it touches, and gather.c copies rectangles.
 *
 * The taps of a convolution lie between each other, so every matrix reads all of a box: boxes are
 * taken a few rows at a time, which stay in the cache while the taps take turns. */
#include <string.h>

#include "gather.h"
#include "geometry.h"
#include "work.h"

#define AXES           4
#define TURN_BYTES     (32u << 10) /* of a box for all taps to read, or */
#define TURN_ROWS_WIDE 16u         /* so many rows: a cache line of a transposed slot */

struct piece {
    const struct fire_options *options;
    enum fire_dtype dtype;
    enum fire_dtype compute;
    const char *data; /* of element `first` */
    char *target;     /* NULL unless slots are copied back: to here */
    uint64_t first;
    void *const *slots;

    uint64_t out, in, taps, kept;
    uint64_t size[AXES];
    uint64_t unit[AXES]; /* elements of one step along an axis */
    uint32_t out_axis, in_axis, tap_axis;
};

/* Steps begin[a] … end[a] - 1 along every axis. */
struct box {
    uint64_t begin[AXES];
    uint64_t end[AXES];
};

static void describe_axes(struct piece *piece, const struct fire_shape *shape)
{
    const bool out_first = piece->options->layout == FIRE_LAYOUT_OUT_IN;
    const bool flat = piece->options->conv == FIRE_CONV_FLATTEN;
    struct geometry geometry;

    geometry_of(shape, piece->options, &geometry);
    piece->out = geometry.out;
    piece->in = flat ? geometry.in * geometry.taps : geometry.in;
    piece->taps = flat ? 1 : geometry.taps;
    piece->kept = geometry.kept;
    piece->out_axis = out_first ? 1 : 3;
    piece->tap_axis = out_first ? 3 : 1;
    piece->in_axis = 2;
    piece->size[0] = geometry.stack;
    piece->size[piece->out_axis] = piece->out;
    piece->size[piece->in_axis] = piece->in;
    piece->size[piece->tap_axis] = piece->taps;
    piece->unit[AXES - 1] = 1;
    for (uint32_t axis = AXES - 1; axis-- > 0;)
        piece->unit[axis] = piece->unit[axis + 1] * piece->size[axis + 1];
}

/* The largest box that starts at element `at` and ends at `end` or before; returns where. */
static uint64_t next_box(const struct piece *piece, uint64_t at, uint64_t end, struct box *box)
{
    uint32_t along = 0;
    uint64_t steps;

    while (at % piece->unit[along] != 0 || end - at < piece->unit[along])
        along++;
    for (uint32_t axis = 0; axis < AXES; axis++) {
        box->begin[axis] = at / piece->unit[axis] % piece->size[axis];
        box->end[axis] = axis > along ? piece->size[axis] : box->begin[axis] + 1;
    }
    steps = (end - at) / piece->unit[along];
    if (steps > piece->size[along] - box->begin[along])
        steps = piece->size[along] - box->begin[along];
    box->end[along] = box->begin[along] + steps;
    return at + steps * piece->unit[along];
}

/* One row block of the split. */
struct block {
    uint64_t begin; /* its first row */
    uint64_t rows;
    uint64_t view; /* of its first tap */
};

/* Copies the rows of `box`, which lie in `block`, for one layer and one tap. */
static bool copy_rectangle(const struct piece *piece, const struct box *box,
                           const struct block *block, uint64_t layer, uint64_t tap)
{
    const uint32_t out = piece->out_axis, in = piece->in_axis;
    const bool tall = block->rows >= piece->in;
    const uint64_t row = box->begin[out] - block->begin, col = box->begin[in];
    const uint64_t source = layer * piece->unit[0] + box->begin[out] * piece->unit[out] +
                            col * piece->unit[in] + tap * piece->unit[piece->tap_axis];
    const uint64_t slot_stride = tall ? piece->in : block->rows;
    const uint64_t target = tall ? row * slot_stride + col : col * slot_stride + row;
    char *slot = piece->slots[block->view + tap];
    const struct gather_path path = {
        .rows = tall ? box->end[out] - box->begin[out] : box->end[in] - col,
        .cols = tall ? box->end[in] - col : box->end[out] - box->begin[out],
        .row_stride = piece->unit[tall ? out : in],
        .col_stride = piece->unit[tall ? in : out],
        .slot_stride = slot_stride,
    };

    if (!slot)
        return true;
    slot += target * fire_dtype_bytes(piece->compute);
    const uint64_t at = (source - piece->first) * fire_dtype_bytes(piece->dtype);

    if (!piece->target)
        return gather_rectangle(&path, piece->data + at, piece->dtype, piece->compute, slot);
    scatter_rectangle(&path, slot, piece->compute, piece->dtype, piece->target + at);
    return true;
}

/* The rows of `box` that lie in `block`, for one layer. */
static bool copy_block(const struct piece *piece, const struct box *box, const struct block *block,
                       uint64_t layer)
{
    const uint32_t out = piece->out_axis, tap_axis = piece->tap_axis;
    const uint64_t row_bytes = piece->in * piece->taps * fire_dtype_bytes(piece->dtype);
    const uint64_t rows_min = block->rows < piece->in ? TURN_ROWS_WIDE : 1;
    struct box turn = *box;
    bool finite = true;
    uint64_t begin = box->begin[out] > block->begin ? box->begin[out] : block->begin;
    uint64_t end = block->begin + block->rows;
    uint64_t rows;

    if (end > box->end[out])
        end = box->end[out];
    rows = end - begin;
    if (tap_axis > out && piece->taps > 1) {
        rows = TURN_BYTES / row_bytes;
        rows = rows < rows_min ? rows_min : rows;
    }
    for (; begin < end; begin += rows) {
        turn.begin[out] = begin;
        turn.end[out] = end - begin < rows ? end : begin + rows;
        for (uint64_t tap = box->begin[tap_axis]; tap < box->end[tap_axis]; tap++)
            finite &= copy_rectangle(piece, &turn, block, layer, tap);
    }
    return finite;
}

static bool copy_box(const struct piece *piece, const struct box *box)
{
    bool finite = true;

    for (uint64_t layer = box->begin[0]; layer < box->end[0]; layer++) {
        struct block block = { .view = layer * piece->kept * piece->taps };

        for (uint32_t b = 0; block.begin < box->end[piece->out_axis]; b++) {
            block.rows = geometry_block_rows(piece->options, piece->out, b);
            if (geometry_block_kept(piece->options, b)) {
                if (block.begin + block.rows > box->begin[piece->out_axis])
                    finite &= copy_block(piece, box, &block, layer);
                block.view += piece->taps;
            }
            block.begin += block.rows;
        }
    }
    return finite;
}

uint64_t fire_work_gather_grain(const struct fire_shape *shape, const struct fire_options *options)
{
    struct piece piece = { .options = options };

    describe_axes(&piece, shape);
    for (uint32_t b = 0; b < options->split_count; b++) {
        const bool tall = geometry_block_rows(options, piece.out, b) >= piece.in;

        if (!geometry_block_kept(options, b))
            continue;
        if (piece.out_axis == 1 && !tall)
            return TURN_ROWS_WIDE * piece.unit[piece.out_axis];
        if (piece.out_axis == 3 && tall)
            return TURN_ROWS_WIDE * piece.unit[piece.in_axis];
    }
    return 1;
}

/* Whether element `index` is in a matrix that has a slot. */
static bool wanted(const struct piece *piece, uint64_t index)
{
    const uint64_t row = index / piece->unit[piece->out_axis] % piece->out;
    const uint64_t tap = index / piece->unit[piece->tap_axis] % piece->taps;
    uint64_t view = index / piece->unit[0] * piece->kept * piece->taps + tap;
    uint64_t end = 0;

    for (uint32_t b = 0;; b++) {
        const bool kept = geometry_block_kept(piece->options, b);

        end += geometry_block_rows(piece->options, piece->out, b);
        if (row < end)
            return kept && piece->slots[view];
        view += kept ? piece->taps : 0;
    }
}

bool fire_work_gather_flat(enum fire_dtype dtype, uint64_t count, const void *data, void *slots)
{
    return gather_run_of(dtype, dtype)(data, slots, (size_t)count);
}

void fire_work_scatter(const struct fire_shape *shape, const struct fire_options *options,
                       enum fire_dtype dtype, enum fire_dtype compute, void *const *slots,
                       void *tensor)
{
    struct piece piece = {
        .options = options, .dtype = dtype, .compute = compute, .target = tensor, .slots = slots
    };
    struct box all = { 0 };

    describe_axes(&piece, shape);
    memcpy(all.end, piece.size, sizeof(all.end));
    (void)copy_box(&piece, &all);
}

enum fire_status fire_work_gather(const struct fire_shape *shape,
                                  const struct fire_options *options, enum fire_dtype dtype,
                                  enum fire_dtype compute, uint64_t first, uint64_t count,
                                  const void *data, void *const *slots, uint64_t *bad_index)
{
    struct piece piece = { .options = options,
                           .dtype = dtype,
                           .compute = compute,
                           .data = data,
                           .first = first,
                           .slots = slots };
    const gather_run widen = gather_run_of(dtype, compute);
    const size_t bytes = fire_dtype_bytes(dtype);
    const uint64_t end = first + count;
    bool finite = true;

    describe_axes(&piece, shape);
    FIRE_ASSERT(end >= first && end <= piece.unit[0] * piece.size[0]);
    for (uint64_t at = first; at < end;) {
        struct box box;

        at = next_box(&piece, at, end, &box);
        finite &= copy_box(&piece, &box);
    }
    if (finite)
        return FIRE_OK;
    for (uint64_t at = first; at < end; at++) {
        double number;

        if (widen((const char *)data + (at - first) * bytes, &number, 1) || !wanted(&piece, at))
            continue;
        if (bad_index)
            *bad_index = at;
        return FIRE_BAD_REQUEST;
    }
    FIRE_ASSERT(!"a rectangle was not finite, but every element is");
    return FIRE_BAD_REQUEST;
}
