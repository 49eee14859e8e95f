/* amx_packed: the tasks of amx_packed.h.
 *
 * A task of a product takes some panels of rows of the result. It makes their panels of the first
 * operand in scratch memory, where they fill a quarter of the second-level cache, and goes through
 * panels of the second one; each serves all of the task's rows while it is in the first cache. What
 * leaves the tiles is finished (scaled, added to, packed) while the next block is multiplied.
 *
 * Built more than once, as amx.c is: AMX_EMULATED, AMX_PLAIN, and AMX_PACKED_OPS for the name. */
#include "amx_packed.h"

#ifndef __x86_64__ /* never chosen there (amx_probe fails), but it links */
#define AMX_EMULATED
#define AMX_PLAIN
#endif

#include "amx_block.h"
#include "amx_pack.h"

#ifndef AMX_PACKED_OPS
#define AMX_PACKED_OPS amx_packed_ops
#define AMX_PACKED_SHAPES
#endif
extern const struct packed_ops AMX_PACKED_OPS;

#define BLOCK_BYTES    (2 * AMX_TILE_BYTES)            /* of a packed block of 32 x 32 */
#define BLOCK_ELEMENTS (AMX_BLOCK * AMX_BLOCK)         /* of one in f32 */
#define DEPTH_BLOCKS   (AMX_PANEL_BYTES / BLOCK_BYTES) /* of a panel of the first operand */
#define GROUP_MAX      8u                              /* panels of rows to a task, … */
#define CHUNK_MAX      16u                             /* … and panels of columns, of a square */
#define PACK_PANELS    4u /* to a task: rows are read 512 bytes at a time */
#define SCRATCH_A      (GROUP_MAX * AMX_PANEL_BYTES)
#define SCRATCH_SUMS   (GROUP_MAX * CHUNK_MAX * BLOCK_ELEMENTS * 4u)

_Static_assert(SCRATCH_A + SCRATCH_SUMS <= AMX_SCRATCH_BYTES, "a square fits its scratch");
_Static_assert(PACKED_SIDE_MAX / AMX_BLOCK * BLOCK_BYTES + 2 * BLOCK_ELEMENTS * 4u <=
                   AMX_SCRATCH_BYTES,
               "a panel of the longest rows fits the scratch");

static uint32_t blocks_of(uint32_t count)
{
    return (count + AMX_BLOCK - 1) / AMX_BLOCK;
}

/* Block (row block k, column panel j) of a packed matrix. */
static uint8_t *block_at(const struct packed *packed, uint32_t k, uint32_t j)
{
    return packed->tiles + ((size_t)j * blocks_of(packed->rows) + k) * BLOCK_BYTES;
}

/* Panels of rows to a task: few where there are few, so that all threads get some. */
static uint32_t group_of(uint32_t panels, uint32_t most)
{
    return panels < 4 ? 1 : smaller(panels / 4, most);
}

static uint32_t square_group(const struct packed_square *square)
{
    return group_of(blocks_of(square->a.cols), GROUP_MAX);
}

static uint32_t multiply_group(const struct packed_multiply *multiply)
{
    const uint32_t fit = SCRATCH_A / (blocks_of(multiply->m.rows) * BLOCK_BYTES);

    return group_of(blocks_of(multiply->x.rows), fit > 0 ? smaller(fit, GROUP_MAX) : 1);
}

#ifdef AMX_PACKED_SHAPES
size_t packed_bytes(uint32_t rows, uint32_t cols)
{
    return (size_t)blocks_of(rows) * blocks_of(cols) * BLOCK_BYTES;
}

uint32_t packed_pack_tasks(const struct packed_pack *pack)
{
    return (blocks_of(pack->to.cols) + PACK_PANELS - 1) / PACK_PANELS;
}

uint32_t packed_square_tasks(const struct packed_square *square)
{
    const uint32_t panels = blocks_of(square->a.cols), group = square_group(square);

    return (panels + group - 1) / group * ((panels + CHUNK_MAX - 1) / CHUNK_MAX);
}

uint32_t packed_multiply_tasks(const struct packed_multiply *multiply)
{
    const uint32_t panels = blocks_of(multiply->x.rows), group = multiply_group(multiply);

    return (panels + group - 1) / group;
}
#endif

/* A block in f32, packed as it is. */
static void pack_block(const float *block, uint8_t *to)
{
    for (uint32_t side = 0; side < AMX_BLOCK; side += TILE_ROWS, to += AMX_TILE_BYTES)
        pack_pairs(block + side, AMX_BLOCK, AMX_BLOCK, TILE_ROWS, 1, to);
}

/* The same block transposed. */
static void pack_transposed(const float *block, uint8_t *to)
{
    for (uint32_t side = 0; side < AMX_BLOCK; side += TILE_ROWS, to += AMX_TILE_BYTES) {
        pack_rows(block + (size_t)side * AMX_BLOCK, AMX_BLOCK, TILE_ROWS, AMX_BLOCK, 1, to);
        transpose_pairs(to, to);
    }
}

/* The lower triangle of a block on the diagonal from its upper one. */
static void mirror_block(float *block)
{
    for (uint32_t i = 1; i < AMX_BLOCK; i++) {
        for (uint32_t j = 0; j < i; j++)
            block[i * AMX_BLOCK + j] = block[j * AMX_BLOCK + i];
    }
}

/* --- packing --------------------------------------------------------------------------------- */

static void pack_symmetric_panel(const struct packed_pack *pack, uint32_t j, float *block)
{
    const uint32_t n = pack->to.cols;

    for (uint32_t i = 0; i <= j; i++) {
        const float *from = pack->from + (size_t)i * AMX_BLOCK * pack->ld + (size_t)j * AMX_BLOCK;

        memset(block, 0, BLOCK_ELEMENTS * sizeof(float));
        for (uint32_t row = 0; row < within(i * AMX_BLOCK, n, AMX_BLOCK); row++)
            memcpy(block + (size_t)row * AMX_BLOCK, from + row * pack->ld,
                   within(j * AMX_BLOCK, n, AMX_BLOCK) * sizeof(float));
        if (i == j)
            mirror_block(block);
        pack_block(block, block_at(&pack->to, i, j));
        if (i != j)
            pack_transposed(block, block_at(&pack->to, j, i));
    }
}

static void pack_task(const struct packed_pack *pack, uint32_t task)
{
    float block[BLOCK_ELEMENTS] __attribute__((aligned(64)));
    const struct packed *to = &pack->to;
    const uint32_t j0 = task * PACK_PANELS;
    const uint32_t j1 = j0 + within(j0, blocks_of(to->cols), PACK_PANELS);

    for (uint32_t j = j0; j < j1 && pack->symmetric; j++)
        pack_symmetric_panel(pack, j, block);
    for (uint32_t k = 0; k < blocks_of(to->rows) && !pack->symmetric; k++) {
        for (uint32_t j = j0; j < j1; j++) {
            const uint32_t depth = within(k * AMX_BLOCK, to->rows, AMX_BLOCK);
            const float *from =
                pack->from + (size_t)k * AMX_BLOCK * pack->ld + (size_t)j * AMX_BLOCK;

            for (uint32_t side = 0; side < 2; side++)
                pack_pairs(from + side * TILE_ROWS, pack->ld, depth,
                           within(j * AMX_BLOCK + side * TILE_ROWS, to->cols, TILE_ROWS), 1,
                           block_at(to, k, j) + side * AMX_TILE_BYTES);
        }
    }
}

/* --- squares --------------------------------------------------------------------------------- */

/* What one task of a square covers: panels of rows and of columns of the result. */
struct square_range {
    uint32_t i0, i1, j0, j1;
};

static struct square_range square_range(const struct packed_square *square, uint32_t task)
{
    const uint32_t panels = blocks_of(square->a.cols), group = square_group(square);
    const uint32_t chunks = (panels + CHUNK_MAX - 1) / CHUNK_MAX;
    struct square_range range = { .i0 = task / chunks * group, .j0 = task % chunks * CHUNK_MAX };

    range.i1 = range.i0 + within(range.i0, panels, group);
    range.j1 = range.j0 + within(range.j0, panels, CHUNK_MAX);
    if (range.j0 < range.i0)
        range.j0 = range.i0;
    return range;
}

/* Block (i, j) of the result from its sum. */
static void square_finish(const struct packed_square *square, uint32_t i, uint32_t j, float *block)
{
    const uint32_t n = square->a.cols;
    const uint32_t rows = within(i * AMX_BLOCK, n, AMX_BLOCK);
    const uint32_t columns = within(j * AMX_BLOCK, n, AMX_BLOCK);
    const size_t at = (size_t)i * AMX_BLOCK * square->ld + (size_t)j * AMX_BLOCK;
    const struct packed to = { square->to, n, n };

    blend_block(block, (float)square->alpha, square->d ? square->d + at : NULL, square->ld,
                (float)square->beta, rows, columns);
    if (i == j) {
        for (uint32_t row = 0; row < rows; row++)
            block[row * (AMX_BLOCK + 1)] += (float)square->shift;
        mirror_block(block);
    }
    if (square->upper)
        store_block(block, 1, 0, rows, columns, square->upper + at, square->ld);
    if (to.tiles) {
        pack_block(block, block_at(&to, i, j));
        if (i != j)
            pack_transposed(block, block_at(&to, j, i));
    }
}

/* Blocks [k0, k1) of panel i of A, transposed: rows of A^T. */
static void square_operand(const struct packed *a, uint32_t i, uint32_t k0, uint32_t k1,
                           uint8_t *to)
{
    const uint8_t *from = block_at(a, k0, i);

    for (size_t at = 0; at < (size_t)(k1 - k0) * BLOCK_BYTES; at += AMX_TILE_BYTES)
        transpose_pairs(from + at, to + at);
}

/* A block of the result that has left the tiles. */
struct waiting {
    float *block; /* NULL: none */
    uint32_t i, j;
};

/* Row blocks [k0, k1) of A for one task. The sums of a depth that is not the last wait in scratch
 * memory for the next one. */
static void square_depth(const struct packed_square *square, const struct square_range *range,
                         uint32_t k0, uint32_t k1, struct tiles *tiles, uint8_t *scratch)
{
    const bool last = k1 == blocks_of(square->a.rows);
    float *sums = (float *)(void *)scratch;
    uint8_t *operand = scratch + SCRATCH_SUMS;
    struct waiting waiting = { .block = NULL };

    for (uint32_t i = range->i0; i < range->i1; i++)
        square_operand(&square->a, i, k0, k1, operand + (i - range->i0) * AMX_PANEL_BYTES);
    for (uint32_t j = range->j0; j < range->j1; j++) {
        const uint8_t *b = block_at(&square->a, k0, j);

        for (uint32_t i = range->i0; i < range->i1 && i <= j; i++) {
            const uint32_t index = (j - range->j0) * GROUP_MAX + i - range->i0;
            float *block = sums + (size_t)index * BLOCK_ELEMENTS;

            if (k0 == 0)
                zero_block(tiles);
            else
                load_block(tiles, block);
            multiply_panels(tiles, AMX_BF16, operand + (i - range->i0) * AMX_PANEL_BYTES, b,
                            (size_t)(k1 - k0) * BLOCK_BYTES, BLOCK_BYTES);
            if (waiting.block)
                square_finish(square, waiting.i, waiting.j, waiting.block);
            unload_block(tiles, block);
            if (last)
                waiting = (struct waiting){ block, i, j };
        }
    }
    if (waiting.block)
        square_finish(square, waiting.i, waiting.j, waiting.block);
}

static void square_task(const struct packed_square *square, uint32_t task, void *scratch)
{
    const struct tile_config config = tile_config_full();
    const struct square_range range = square_range(square, task);
    const uint32_t depth = blocks_of(square->a.rows);
    struct tiles tiles;

    if (range.j1 <= range.i0)
        return;
    tiles_configure(&tiles, &config);
    for (uint32_t k = 0; k < depth; k += DEPTH_BLOCKS)
        square_depth(square, &range, k, k + within(k, depth, DEPTH_BLOCKS), &tiles, scratch);
    tiles_release(&tiles);
}

/* --- x M ------------------------------------------------------------------------------------- */

/* Panel i of the rows of x, over all its columns. */
static void multiply_operand(const struct packed_multiply *multiply, uint32_t i, uint8_t *to)
{
    const struct packed *x = &multiply->x;

    for (uint32_t k = 0; k < blocks_of(x->cols); k++) {
        for (uint32_t half = 0; half < 2; half++, to += AMX_TILE_BYTES) {
            const uint32_t row = i * AMX_BLOCK + half * TILE_ROWS;

            if (x->tiles)
                rows_from_pairs(block_at(x, i, k), half, to);
            else
                pack_rows(multiply->from + row * multiply->ld + (size_t)k * AMX_BLOCK, multiply->ld,
                          within(row, x->rows, TILE_ROWS),
                          within(k * AMX_BLOCK, x->cols, AMX_BLOCK), 1, to);
        }
    }
}

static void multiply_finish(const struct packed_multiply *multiply, const struct waiting *waiting)
{
    const struct packed *x = &multiply->x;
    const uint32_t i = waiting->i, j = waiting->j;

    if (multiply->to) {
        store_block(waiting->block, 1, (float)multiply->beta,
                    within(i * AMX_BLOCK, x->rows, AMX_BLOCK),
                    within(j * AMX_BLOCK, x->cols, AMX_BLOCK),
                    multiply->to + (size_t)i * AMX_BLOCK * multiply->ld + (size_t)j * AMX_BLOCK,
                    multiply->ld);
        return;
    }
    pack_block(waiting->block, block_at(x, i, j));
}

static void multiply_task(const struct packed_multiply *multiply, uint32_t task, void *scratch)
{
    const struct tile_config config = tile_config_full();
    const uint32_t depth = blocks_of(multiply->m.rows), group = multiply_group(multiply);
    const uint32_t i0 = task * group;
    const uint32_t i1 = i0 + within(i0, blocks_of(multiply->x.rows), group);
    const size_t panel_bytes = (size_t)depth * BLOCK_BYTES;
    float *blocks = scratch;
    uint8_t *operand = (uint8_t *)scratch + 2 * BLOCK_ELEMENTS * sizeof(float);
    struct waiting waiting = { .block = NULL };
    struct tiles tiles;

    tiles_configure(&tiles, &config);
    for (uint32_t i = i0; i < i1; i++)
        multiply_operand(multiply, i, operand + (i - i0) * panel_bytes);
    for (uint32_t j = 0; j < depth; j++) {
        for (uint32_t i = i0; i < i1; i++) {
            zero_block(&tiles);
            multiply_panels(&tiles, AMX_BF16, operand + (i - i0) * panel_bytes,
                            block_at(&multiply->m, 0, j), panel_bytes, BLOCK_BYTES);
            if (waiting.block)
                multiply_finish(multiply, &waiting);
            waiting.block = waiting.block == blocks ? blocks + BLOCK_ELEMENTS : blocks;
            waiting.i = i;
            waiting.j = j;
            unload_block(&tiles, waiting.block);
        }
    }
    if (waiting.block)
        multiply_finish(multiply, &waiting);
    tiles_release(&tiles);
}

const struct packed_ops AMX_PACKED_OPS = {
    .pack = pack_task,
    .square = square_task,
    .multiply = multiply_task,
};
