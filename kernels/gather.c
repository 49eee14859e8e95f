/* gather: copies one matrix out of a tensor, and back.
 *
 * A copy has two halves. Picking brings elements, whatever their strides, into a contiguous run of
 * the tensor's own dtype; converting turns a run into f32 or f64 (or back) and is where the time of
 * a plain tensor goes, so those loops have no branch and vectorise. Contiguous rows need no
 * picking; a transpose is converted a tile at a time and turned in L1, so that both sides are
 * touched a cache line at a time.
 *
 * Finiteness is one OR a number. Which element was bad is found only when one was. */
#include "gather.h"

#include <string.h>

#include "convert.h"

#define RUN_MAX 512 /* elements picked before they are converted: stays in L1 */
/* A transposed tile: long runs of the tensor, a cache line of the slot. Shorter runs leave the
 * prefetcher behind, wider ones touch more pages at once than its streams; measured. */
#define TILE_LONG  256
#define TILE_SHORT 16

struct gather_path gather_path_of(const struct fire_view *view)
{
    const bool tall = view->rows >= view->cols;

    return (struct gather_path){
        .rows = fire_view_long(view),
        .cols = fire_view_short(view),
        .row_stride = tall ? view->row_stride : view->col_stride,
        .col_stride = tall ? view->col_stride : view->row_stride,
        .slot_stride = fire_view_short(view),
    };
}

/* Evenly spaced all through: one long row. */
static void join_rows(struct gather_path *path)
{
    if (path->slot_stride != path->cols || path->row_stride != path->cols * path->col_stride)
        return;
    path->cols *= path->rows;
    path->slot_stride = path->cols;
    path->rows = 1;
}

/* --- runs: `count` contiguous numbers converted; true when all of them are finite ------------- */

/* Bit 31 of the sum is set when all exponent bits are. */
static inline uint32_t exponent_full_f32(float value)
{
    return (convert_bits(value) & 0x7f800000u) + 0x00800000u;
}

static inline uint64_t exponent_full_f64(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return (bits & UINT64_C(0x7ff0000000000000)) + UINT64_C(0x0010000000000000);
}

/* A tensor's bytes may start anywhere, hence memcpy; a slot is aligned.
 * NOLINTBEGIN(bugprone-macro-parentheses): types cannot stand in parentheses. */
#define WIDEN(name, from, to, full, widened)                                                       \
    static bool name(const char *restrict source, void *restrict slot, size_t count)               \
    {                                                                                              \
        to *restrict target = slot;                                                                \
        __typeof__(full((to)0)) seen = 0;                                                          \
                                                                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            from number;                                                                           \
                                                                                                   \
            memcpy(&number, source + i * sizeof(number), sizeof(number));                          \
            target[i] = (to)(widened);                                                             \
            seen |= full(target[i]);                                                               \
        }                                                                                          \
        return seen >> (8 * sizeof(seen) - 1) == 0;                                                \
    }

WIDEN(f64_to_f64, double, double, exponent_full_f64, number)
WIDEN(f32_to_f64, float, double, exponent_full_f64, number)
WIDEN(bf16_to_f64, uint16_t, double, exponent_full_f64, convert_bf16_to_f32(number))
WIDEN(f16_to_f64, uint16_t, double, exponent_full_f64, convert_f16_to_f32(number))
WIDEN(f64_to_f32, double, float, exponent_full_f32, number)
WIDEN(f32_to_f32, float, float, exponent_full_f32, number)
WIDEN(bf16_to_f32, uint16_t, float, exponent_full_f32, convert_bf16_to_f32(number))
WIDEN(f16_to_f32, uint16_t, float, exponent_full_f32, convert_f16_to_f32(number))

#define NARROW(name, from, to, narrowed)                                                           \
    static void name(const void *restrict slot, char *restrict target, size_t count)               \
    {                                                                                              \
        const from *restrict source = slot;                                                        \
                                                                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            const from number = source[i];                                                         \
            const to result = (to)(narrowed);                                                      \
                                                                                                   \
            memcpy(target + i * sizeof(result), &result, sizeof(result));                          \
        }                                                                                          \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

NARROW(f64_as_f64, double, double, number)
NARROW(f64_as_f32, double, float, number)
NARROW(f64_as_bf16, double, uint16_t, convert_f32_to_bf16(convert_to_odd(number)))
NARROW(f64_as_f16, double, uint16_t, convert_f32_to_f16(convert_to_odd(number)))
NARROW(f32_as_f64, float, double, number)
NARROW(f32_as_f32, float, float, number)
NARROW(f32_as_bf16, float, uint16_t, convert_f32_to_bf16(number))
NARROW(f32_as_f16, float, uint16_t, convert_f32_to_f16(number))

typedef void (*narrow_run)(const void *slot, char *target, size_t count);

/* clang-format off */
static const gather_run widen_runs[FIRE_DTYPE_COUNT][2] = { /* [tensor][slot is f64] */
    [FIRE_F64]  = { f64_to_f32,  f64_to_f64 },
    [FIRE_F32]  = { f32_to_f32,  f32_to_f64 },
    [FIRE_BF16] = { bf16_to_f32, bf16_to_f64 },
    [FIRE_F16]  = { f16_to_f32,  f16_to_f64 },
};
static const narrow_run narrow_runs[FIRE_DTYPE_COUNT][2] = {
    [FIRE_F64]  = { f32_as_f64,  f64_as_f64 },
    [FIRE_F32]  = { f32_as_f32,  f64_as_f32 },
    [FIRE_BF16] = { f32_as_bf16, f64_as_bf16 },
    [FIRE_F16]  = { f32_as_f16,  f64_as_f16 },
};
/* clang-format on */

/* --- picking: elements of 2, 4 or 8 bytes, by stride ------------------------------------------ */

#define PICK(bytes)                                                                                \
    for (size_t i = 0; i < count; i++)                                                             \
        memcpy(target + i * target_step, source + i * source_step, bytes);                         \
    break

static inline void pick(const char *restrict source, size_t source_step, char *restrict target,
                        size_t target_step, size_t count, size_t element_bytes)
{
    switch (element_bytes) { /* a constant size makes memcpy one move */
    case 2: PICK(2);
    case 4: PICK(4);
    default: PICK(8);
    }
}

static inline size_t smaller(uint64_t a, uint64_t b)
{
    return (size_t)(a < b ? a : b);
}

struct tile {
    uint64_t row, col;
    size_t rows, cols;
};

static struct tile tile_at(const struct gather_path *path, uint64_t row, uint64_t col)
{
    return (struct tile){ row, col, smaller(path->rows - row, TILE_LONG),
                          smaller(path->cols - col, TILE_SHORT) };
}

/* --- turning: a tile between the slot and a block of converted numbers, TILE_LONG a column ---- */

/* Bits to be moved, whatever their type. */
typedef uint32_t word __attribute__((may_alias));
typedef uint64_t long_word __attribute__((may_alias));
typedef uint32_t quad __attribute__((vector_size(16)));

/* target[c][r] = source[r][c] for four rows of four words. */
static inline void turn_quads(const word *restrict source, size_t source_stride,
                              word *restrict target, size_t target_stride)
{
    quad a, b, c, d, row;

    memcpy(&a, source, sizeof(a));
    memcpy(&b, source + source_stride, sizeof(b));
    memcpy(&c, source + 2 * source_stride, sizeof(c));
    memcpy(&d, source + 3 * source_stride, sizeof(d));

    const quad ac_low = __builtin_shufflevector(a, c, 0, 4, 1, 5);
    const quad ac_high = __builtin_shufflevector(a, c, 2, 6, 3, 7);
    const quad bd_low = __builtin_shufflevector(b, d, 0, 4, 1, 5);
    const quad bd_high = __builtin_shufflevector(b, d, 2, 6, 3, 7);

    row = __builtin_shufflevector(ac_low, bd_low, 0, 4, 1, 5);
    memcpy(target, &row, sizeof(row));
    row = __builtin_shufflevector(ac_low, bd_low, 2, 6, 3, 7);
    memcpy(target + target_stride, &row, sizeof(row));
    row = __builtin_shufflevector(ac_high, bd_high, 0, 4, 1, 5);
    memcpy(target + 2 * target_stride, &row, sizeof(row));
    row = __builtin_shufflevector(ac_high, bd_high, 2, 6, 3, 7);
    memcpy(target + 3 * target_stride, &row, sizeof(row));
}

/* Both ways take the slot's cache lines one after another; the block stays in L1. */
/* NOLINTBEGIN(bugprone-macro-parentheses): `move` is a statement */
#define TURN_REST(move)                                                                            \
    for (size_t r = 0; r < tile->rows; r++) {                                                      \
        for (size_t c = r < rows ? cols : 0; c < tile->cols; c++)                                  \
            move;                                                                                  \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

static void block_to_slot_f32(const struct tile *tile, const word *restrict block,
                              word *restrict slot, size_t stride)
{
    const size_t rows = tile->rows / 4 * 4, cols = tile->cols / 4 * 4;

    for (size_t r = 0; r < rows; r += 4) {
        for (size_t c = 0; c < cols; c += 4)
            turn_quads(block + c * TILE_LONG + r, TILE_LONG, slot + r * stride + c, stride);
    }
    TURN_REST(slot[r * stride + c] = block[c * TILE_LONG + r])
}

static void slot_to_block_f32(const struct tile *tile, const word *restrict slot, size_t stride,
                              word *restrict block)
{
    const size_t rows = tile->rows / 4 * 4, cols = tile->cols / 4 * 4;

    for (size_t r = 0; r < rows; r += 4) {
        for (size_t c = 0; c < cols; c += 4)
            turn_quads(slot + r * stride + c, stride, block + c * TILE_LONG + r, TILE_LONG);
    }
    TURN_REST(block[c * TILE_LONG + r] = slot[r * stride + c])
}

static void block_to_slot_f64(const struct tile *tile, const long_word *restrict block,
                              long_word *restrict slot, size_t stride)
{
    const size_t rows = 0, cols = 0; /* moved four by four: none */

    TURN_REST(slot[r * stride + c] = block[c * TILE_LONG + r])
}

static void slot_to_block_f64(const struct tile *tile, const long_word *restrict slot,
                              size_t stride, long_word *restrict block)
{
    const size_t rows = 0, cols = 0;

    TURN_REST(block[c * TILE_LONG + r] = slot[r * stride + c])
}

/* --- gather ----------------------------------------------------------------------------------- */

gather_run gather_run_of(enum fire_dtype dtype, enum fire_dtype compute)
{
    FIRE_ASSERT(compute == FIRE_F32 || compute == FIRE_F64);
    return widen_runs[dtype][compute == FIRE_F64];
}

static bool gather_rows(const struct gather_path *path, const char *source, size_t bytes,
                        gather_run widen, char *slot, size_t slot_bytes)
{
    _Alignas(64) char run[RUN_MAX * 8];
    bool finite = true;

    for (uint64_t i = 0; i < path->rows; i++) {
        const char *row = source + i * path->row_stride * bytes;
        char *to = slot + i * path->slot_stride * slot_bytes;

        for (uint64_t j = 0; j < path->cols; j += RUN_MAX) {
            const size_t count = smaller(path->cols - j, RUN_MAX);
            const char *from = row + j * path->col_stride * bytes;

            if (path->col_stride != 1) {
                pick(from, path->col_stride * bytes, run, bytes, count, bytes);
                from = run;
            }
            finite &= widen(from, to + j * slot_bytes, count);
        }
    }
    return finite;
}

/* The tensor is contiguous (or nearer to it) along the slot's columns. */
static bool gather_tiles(const struct gather_path *path, const char *source, size_t bytes,
                         gather_run widen, void *slot, size_t slot_bytes)
{
    _Alignas(64) char block[TILE_LONG * TILE_SHORT * 8];
    _Alignas(64) char run[TILE_LONG * 8];
    bool finite = true;

    for (uint64_t i = 0; i < path->rows; i += TILE_LONG) {
        for (uint64_t j = 0; j < path->cols; j += TILE_SHORT) {
            const struct tile tile = tile_at(path, i, j);
            const uint64_t target = i * path->slot_stride + j;

            for (size_t c = 0; c < tile.cols; c++) {
                const char *from =
                    source + (i * path->row_stride + (j + c) * path->col_stride) * bytes;

                if (path->row_stride != 1) {
                    pick(from, path->row_stride * bytes, run, bytes, tile.rows, bytes);
                    from = run;
                }
                finite &= widen(from, block + c * TILE_LONG * slot_bytes, tile.rows);
            }
            if (slot_bytes == 4)
                block_to_slot_f32(&tile, (const word *)(void *)block, (word *)slot + target,
                                  path->slot_stride);
            else
                block_to_slot_f64(&tile, (const long_word *)(void *)block,
                                  (long_word *)slot + target, path->slot_stride);
        }
    }
    return finite;
}

bool gather_rectangle(const struct gather_path *rectangle, const char *source,
                      enum fire_dtype dtype, enum fire_dtype compute, char *slot)
{
    const gather_run widen = gather_run_of(dtype, compute);
    const size_t bytes = fire_dtype_bytes(dtype);
    const size_t slot_bytes = fire_dtype_bytes(compute);
    struct gather_path path = *rectangle;

    join_rows(&path);
    if (path.rows == 1 || path.col_stride <= path.row_stride)
        return gather_rows(&path, source, bytes, widen, slot, slot_bytes);
    return gather_tiles(&path, source, bytes, widen, slot, slot_bytes);
}

/* The first element, in the tensor's order, that is not finite once widened. */
static uint64_t first_bad(const struct fire_view *view, const char *tensor, size_t bytes,
                          gather_run widen)
{
    uint64_t first = UINT64_MAX;

    for (uint64_t i = 0; i < view->rows; i++) {
        for (uint64_t j = 0; j < view->cols; j++) {
            const uint64_t index = view->offset + i * view->row_stride + j * view->col_stride;
            double number;

            if (index < first && !widen(tensor + index * bytes, &number, 1))
                first = index;
        }
    }
    return first;
}

enum fire_status fire_view_gather(const struct fire_view *view, const void *tensor,
                                  enum fire_dtype dtype, enum fire_dtype compute, void *slot,
                                  uint64_t *bad_index)
{
    const struct gather_path path = gather_path_of(view);
    const size_t bytes = fire_dtype_bytes(dtype);

    if (gather_rectangle(&path, (const char *)tensor + view->offset * bytes, dtype, compute, slot))
        return FIRE_OK;
    if (bad_index)
        *bad_index = first_bad(view, tensor, bytes, gather_run_of(dtype, compute));
    return FIRE_BAD_REQUEST;
}

/* --- scatter ---------------------------------------------------------------------------------- */

static void scatter_rows(const struct gather_path *path, const char *slot, size_t slot_bytes,
                         narrow_run narrow, char *target, size_t bytes)
{
    _Alignas(64) char run[RUN_MAX * 8];

    for (uint64_t i = 0; i < path->rows; i++) {
        char *row = target + i * path->row_stride * bytes;
        const char *from = slot + i * path->slot_stride * slot_bytes;

        for (uint64_t j = 0; j < path->cols; j += RUN_MAX) {
            const size_t count = smaller(path->cols - j, RUN_MAX);
            char *to = row + j * path->col_stride * bytes;

            narrow(from + j * slot_bytes, path->col_stride == 1 ? to : run, count);
            if (path->col_stride != 1)
                pick(run, bytes, to, path->col_stride * bytes, count, bytes);
        }
    }
}

static void scatter_tiles(const struct gather_path *path, const void *slot, size_t slot_bytes,
                          narrow_run narrow, char *target, size_t bytes)
{
    _Alignas(64) char block[TILE_LONG * TILE_SHORT * 8];
    _Alignas(64) char run[TILE_LONG * 8];

    for (uint64_t i = 0; i < path->rows; i += TILE_LONG) {
        for (uint64_t j = 0; j < path->cols; j += TILE_SHORT) {
            const struct tile tile = tile_at(path, i, j);
            const uint64_t source = i * path->slot_stride + j;

            if (slot_bytes == 4)
                slot_to_block_f32(&tile, (const word *)slot + source, path->slot_stride,
                                  (word *)(void *)block);
            else
                slot_to_block_f64(&tile, (const long_word *)slot + source, path->slot_stride,
                                  (long_word *)(void *)block);
            for (size_t c = 0; c < tile.cols; c++) {
                char *to = target + (i * path->row_stride + (j + c) * path->col_stride) * bytes;

                narrow(block + c * TILE_LONG * slot_bytes, path->row_stride == 1 ? to : run,
                       tile.rows);
                if (path->row_stride != 1)
                    pick(run, bytes, to, path->row_stride * bytes, tile.rows, bytes);
            }
        }
    }
}

void scatter_rectangle(const struct gather_path *rectangle, const char *slot,
                       enum fire_dtype compute, enum fire_dtype dtype, char *target)
{
    const size_t bytes = fire_dtype_bytes(dtype);
    const size_t slot_bytes = fire_dtype_bytes(compute);
    const narrow_run narrow = narrow_runs[dtype][compute == FIRE_F64];
    struct gather_path path = *rectangle;

    FIRE_ASSERT(compute == FIRE_F32 || compute == FIRE_F64);
    join_rows(&path);
    if (path.rows == 1 || path.col_stride <= path.row_stride)
        scatter_rows(&path, slot, slot_bytes, narrow, target, bytes);
    else
        scatter_tiles(&path, slot, slot_bytes, narrow, target, bytes);
}

void fire_view_scatter(const struct fire_view *view, const void *slot, enum fire_dtype compute,
                       enum fire_dtype dtype, void *tensor)
{
    const struct gather_path path = gather_path_of(view);

    scatter_rectangle(&path, slot, compute, dtype,
                      (char *)tensor + view->offset * fire_dtype_bytes(dtype));
}
