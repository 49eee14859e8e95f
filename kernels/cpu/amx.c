/* amx: split-bf16 products on the tile unit.
 *
 * Loops, outermost first: up to AMX_ROWS_MAX rows of A; a block of k, AMX_PANEL_BYTES of a packed
 * panel deep; up to AMX_COLUMNS_MAX columns of B, packed; panels of 32 rows of A, each packed when
 * it is first needed and kept for the columns that follow; blocks of 32 x 32 of C, each held in
 * four tiles over the depth and then added to C. The packed columns of B fill a quarter of the
 * second-level cache and stay there: with more of them the unit waits.
 *
 * This file is built more than once: for use, with the real instructions and AVX-512; and for
 * tests, with AMX_EMULATED (tile instructions in C), with AMX_PLAIN (packing and storing in
 * C) or both, under another name, AMX_PRODUCT_TILE. All of them give the same bits. */
#include "amx.h"

#ifndef __x86_64__ /* never chosen there (amx_probe fails), but it links */
#define AMX_EMULATED
#define AMX_PLAIN
#endif

#include "amx_block.h"
#include "amx_pack.h"

#ifndef AMX_PRODUCT_TILE
#define AMX_PRODUCT_TILE amx_product_tile
#endif
void AMX_PRODUCT_TILE(const struct product *product, enum amx_terms terms, uint32_t i0, uint32_t i1,
                      uint32_t j0, uint32_t j1, void *scratch);

_Static_assert(AMX_COLUMNS_MAX % AMX_BLOCK == 0, "packed B is whole panels");
_Static_assert(AMX_ROWS_MAX / AMX_BLOCK <= 32, "a bit of `packed` for each panel of A");

/* One thread's work: its arguments and where its scratch memory is. */
struct amx_work {
    const struct product *product;
    enum amx_terms terms;
    uint32_t parts;
    uint32_t i0, i1; /* at most AMX_ROWS_MAX rows */
    uint32_t j0, j1; /* at most AMX_COLUMNS_MAX columns */
    uint32_t k0, k1; /* at most depth_max() */
    size_t depth_bytes;
    size_t panel_bytes; /* of A or B for this depth */
    uint32_t packed;    /* which panels of A are */
    uint8_t *packed_b;
    uint8_t *packed_a;
    float *block; /* AMX_BLOCKS of AMX_BLOCK x AMX_BLOCK */
};

static uint32_t parts_of(enum amx_terms terms)
{
    switch (terms) {
    case AMX_BF16: return 1;
    case AMX_X3: return 2;
    case AMX_X6: return 3;
    }
    return 0;
}

/* k values of a packed panel, whole depth blocks. */
static uint32_t depth_max(uint32_t parts)
{
    return AMX_PANEL_BYTES / (2 * parts * AMX_TILE_BYTES) * AMX_DEPTH;
}

/* Packs the panel of B whose first column is j. */
static void pack_b_panel(const struct amx_work *work, uint32_t j, uint8_t *to)
{
    const struct product *product = work->product;

    for (uint32_t k = work->k0; k < work->k1; k += AMX_DEPTH) {
        const float *row = (const float *)product->b + (size_t)k * product->ldb;
        for (uint32_t side = 0; side < AMX_BLOCK; side += TILE_ROWS) {
            pack_pairs(row + j + side, product->ldb, smaller(work->k1 - k, AMX_DEPTH),
                       within(j + side, work->j1, TILE_ROWS), work->parts, to);
            to += (size_t)work->parts * AMX_TILE_BYTES;
        }
    }
}

/* Packs the panel of op(A) whose first row is i. Transposed, rows of op(A) are columns in memory,
 * as those of B are: the same pairs, with rows and columns exchanged, are the rows wanted. */
static void pack_a_panel(const struct amx_work *work, uint32_t i, uint8_t *to)
{
    const struct product *product = work->product;
    const float *a = product->a;

    for (uint32_t k = work->k0; k < work->k1; k += AMX_DEPTH) {
        const uint32_t depth = smaller(work->k1 - k, AMX_DEPTH);
        for (uint32_t side = 0; side < AMX_BLOCK; side += TILE_ROWS) {
            const uint32_t rows = within(i + side, work->i1, TILE_ROWS);
            if (product->a_transposed) {
                pack_pairs(a + (size_t)k * product->lda + i + side, product->lda, depth, rows,
                           work->parts, to);
                for (uint32_t part = 0; part < work->parts; part++)
                    transpose_pairs(to + (size_t)part * AMX_TILE_BYTES,
                                    to + (size_t)part * AMX_TILE_BYTES);
            } else {
                pack_rows(a + (size_t)(i + side) * product->lda + k, product->lda, rows, depth,
                          work->parts, to);
            }
            to += (size_t)work->parts * AMX_TILE_BYTES;
        }
    }
}

/* The same where A is B and the panel lies in the packed B. */
static void turn_b_panel(const struct amx_work *work, uint32_t i, uint8_t *to)
{
    const uint8_t *from = work->packed_b + (i - work->j0) / AMX_BLOCK * work->panel_bytes;

    for (size_t at = 0; at < work->panel_bytes; at += AMX_TILE_BYTES)
        transpose_pairs(from + at, to + at);
}

static bool lies_in_b(const struct amx_work *work, uint32_t i)
{
    const struct product *product = work->product;

    return product->a_transposed && product->a == product->b && product->lda == product->ldb &&
           i >= work->j0 && i < work->j1 && (i - work->j0) % AMX_BLOCK == 0 &&
           smaller(work->i1 - i, AMX_BLOCK) <= work->j1 - i;
}

/* The packed panel of A whose first row is i. */
static const uint8_t *panel_of_a(struct amx_work *work, uint32_t i)
{
    const uint32_t index = (i - work->i0) / AMX_BLOCK;
    uint8_t *panel = work->packed_a + index * work->panel_bytes;

    if (!(work->packed & 1u << index) && lies_in_b(work, i))
        turn_b_panel(work, i, panel);
    else if (!(work->packed & 1u << index))
        pack_a_panel(work, i, panel);
    work->packed |= 1u << index;
    return panel;
}

/* A block of C that waits in memory to be added to C. */
struct waiting {
    float *c; /* NULL: none does */
    const float *block;
    uint32_t rows, columns;
};

static void store_waiting(const struct amx_work *work, const struct waiting *waiting)
{
    const struct product *product = work->product;
    const float beta = work->k0 == 0 ? (float)product->beta : 1.0f;

    if (waiting->c)
        store_block(waiting->block, (float)product->alpha, beta, waiting->rows, waiting->columns,
                    waiting->c, product->ldc);
}

/* One panel of rows of C against the packed panels of B. A block is added to C while the next one
 * is multiplied: what has just left the tiles is not to be read at once. */
static void multiply_panel(struct amx_work *work, struct tiles *tiles, uint32_t i)
{
    const struct product *product = work->product;
    const uint8_t *a = panel_of_a(work, i);
    const uint32_t rows = smaller(work->i1 - i, AMX_BLOCK);
    const uint8_t *b = work->packed_b;
    struct waiting waiting = { .c = NULL };
    float *block = work->block;

    for (uint32_t j = work->j0; j < work->j1; j += AMX_BLOCK, b += work->panel_bytes) {
        const uint32_t columns = smaller(work->j1 - j, AMX_BLOCK);
        float *c = (float *)product->c + (size_t)i * product->ldc + j;
        if (product->upper && j + columns <= i)
            continue;
        for (uint32_t row = 0; row < rows; row++)
            __builtin_prefetch(c + row * product->ldc, 1, 3);
        zero_block(tiles);
        multiply_panels(tiles, work->terms, a, b, work->panel_bytes, work->depth_bytes);
        store_waiting(work, &waiting);
        unload_block(tiles, block);
        waiting = (struct waiting){ c, block, rows, columns };
        block = block == work->block ? work->block + AMX_BLOCK * AMX_BLOCK : work->block;
    }
    store_waiting(work, &waiting);
}

/* Columns [work->j0, work->j1) of this depth. */
static void multiply_columns(struct amx_work *work, struct tiles *tiles)
{
    const bool upper = work->product->upper;
    uint8_t *to = work->packed_b;

    if (upper && work->j1 <= work->i0)
        return;
    for (uint32_t j = work->j0; j < work->j1; j += AMX_BLOCK, to += work->panel_bytes)
        pack_b_panel(work, j, to);
    for (uint32_t i = work->i0; i < work->i1 && !(upper && work->j1 <= i); i += AMX_BLOCK)
        multiply_panel(work, tiles, i);
}

/* Rows [work->i0, work->i1), columns [j0, j1), all of k. */
static void multiply_rows(struct amx_work *work, struct tiles *tiles, uint32_t j0, uint32_t j1)
{
    const uint32_t k = work->product->k;

    work->k0 = 0;
    do {
        work->k1 = work->k0 + smaller(k - work->k0, depth_max(work->parts));
        work->panel_bytes = (work->k1 - work->k0 + AMX_DEPTH - 1) / AMX_DEPTH * work->depth_bytes;
        work->packed = 0;
        for (uint32_t j = j0; j < j1; j = work->j1) {
            work->j0 = j;
            work->j1 = j + smaller(j1 - j, AMX_COLUMNS_MAX);
            multiply_columns(work, tiles);
        }
        work->k0 = work->k1;
    } while (work->k0 < k);
}

void AMX_PRODUCT_TILE(const struct product *product, enum amx_terms terms, uint32_t i0, uint32_t i1,
                      uint32_t j0, uint32_t j1, void *scratch)
{
    const struct tile_config config = tile_config_full();
    struct tiles tiles;
    struct amx_work work = {
        .product = product,
        .terms = terms,
        .parts = parts_of(terms),
        .depth_bytes = (size_t)2 * parts_of(terms) * AMX_TILE_BYTES,
        .block = scratch,
        .packed_b = (uint8_t *)scratch + AMX_BLOCKS * AMX_BLOCK * AMX_BLOCK * sizeof(float),
    };

    FIRE_ASSERT(i1 <= product->m);
    FIRE_ASSERT(j1 <= product->n);
    FIRE_ASSERT(!product->narrow);
    FIRE_ASSERT(((uintptr_t)scratch & 63u) == 0);
    FIRE_ASSERT(work.parts > 0);

    work.packed_a = work.packed_b + AMX_COLUMNS_MAX / AMX_BLOCK * AMX_PANEL_BYTES;
    tiles_configure(&tiles, &config);
    for (uint32_t i = i0; i < i1; i = work.i1) {
        work.i0 = i;
        work.i1 = i + smaller(i1 - i, AMX_ROWS_MAX);
        multiply_rows(&work, &tiles, j0, j1);
    }
    tiles_release(&tiles);
}
