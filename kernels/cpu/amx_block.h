/* amx_block: the product of a packed panel of A and one of B, 32 rows times 32 columns, held in
 * four tiles over the whole depth.
 *
 * A packed panel is a list of depth blocks of 32 k values; each holds two tiles (the panel's first
 * and second 16 rows of A or columns of B), each as its parts, hi first: with x3
 *     [0 hi] [0 lo] [1 hi] [1 lo], 1 KB each, then the next depth block. */
#ifndef FIRE_AMX_BLOCK_H
#define FIRE_AMX_BLOCK_H

#include "amx.h"
#include "amx_tile.h"

/* Both tiles of one part of A, from a depth block. */
static inline void load_a(struct tiles *tiles, const uint8_t *a, uint32_t parts, uint32_t part)
{
    TILE_LOAD(tiles, 4, a + (size_t)part * AMX_TILE_BYTES, TILE_ROW_BYTES);
    TILE_LOAD(tiles, 5, a + (size_t)(parts + part) * AMX_TILE_BYTES, TILE_ROW_BYTES);
}

static inline void load_b(struct tiles *tiles, const uint8_t *b, uint32_t parts, uint32_t part)
{
    TILE_LOAD(tiles, 6, b + (size_t)part * AMX_TILE_BYTES, TILE_ROW_BYTES);
    TILE_LOAD(tiles, 7, b + (size_t)(parts + part) * AMX_TILE_BYTES, TILE_ROW_BYTES);
}

/* Four products, none of which waits for another. */
static inline void dot(struct tiles *tiles)
{
    TILE_DOT(tiles, 0, 4, 6);
    TILE_DOT(tiles, 1, 4, 7);
    TILE_DOT(tiles, 2, 5, 6);
    TILE_DOT(tiles, 3, 5, 7);
}

/* One depth block: adds all products of parts to tiles 0 … 3. Each order changes only one side from
 * one group of products to the next: 8 loads for 12 products, 14 for 24. */
static inline void multiply_depth(struct tiles *tiles, enum amx_terms terms, const uint8_t *a,
                                  const uint8_t *b)
{
    enum { HI, LO };
    enum { HIGH, MID, LOW };

    switch (terms) {
    case AMX_BF16: load_a(tiles, a, 1, HI), load_b(tiles, b, 1, HI), dot(tiles); break;
    case AMX_X3:
        load_a(tiles, a, 2, LO), load_b(tiles, b, 2, HI), dot(tiles);
        load_a(tiles, a, 2, HI), dot(tiles);
        load_b(tiles, b, 2, LO), dot(tiles);
        break;
    case AMX_X6:
        load_a(tiles, a, 3, LOW), load_b(tiles, b, 3, HIGH), dot(tiles);
        load_a(tiles, a, 3, MID), dot(tiles);
        load_b(tiles, b, 3, MID), dot(tiles);
        load_a(tiles, a, 3, HIGH), dot(tiles);
        load_b(tiles, b, 3, LOW), dot(tiles);
        load_b(tiles, b, 3, HIGH), dot(tiles);
        break;
    }
}

static inline void zero_block(struct tiles *tiles)
{
    TILE_ZERO(tiles, 0);
    TILE_ZERO(tiles, 1);
    TILE_ZERO(tiles, 2);
    TILE_ZERO(tiles, 3);
}

/* AMX_BLOCK x AMX_BLOCK numbers into the four tiles. */
static inline void load_block(struct tiles *tiles, const float *block)
{
    const uint8_t *from = (const uint8_t *)block;

    TILE_LOAD(tiles, 0, from, AMX_BLOCK * 4);
    TILE_LOAD(tiles, 1, from + TILE_ROW_BYTES, AMX_BLOCK * 4);
    TILE_LOAD(tiles, 2, from + TILE_ROWS * AMX_BLOCK * 4, AMX_BLOCK * 4);
    TILE_LOAD(tiles, 3, from + TILE_ROWS * AMX_BLOCK * 4 + TILE_ROW_BYTES, AMX_BLOCK * 4);
}

/* The four tiles into AMX_BLOCK x AMX_BLOCK numbers. */
static inline void unload_block(struct tiles *tiles, float *block)
{
    uint8_t *to = (uint8_t *)block;

    TILE_STORE(tiles, 0, to, AMX_BLOCK * 4);
    TILE_STORE(tiles, 1, to + TILE_ROW_BYTES, AMX_BLOCK * 4);
    TILE_STORE(tiles, 2, to + TILE_ROWS * AMX_BLOCK * 4, AMX_BLOCK * 4);
    TILE_STORE(tiles, 3, to + TILE_ROWS * AMX_BLOCK * 4 + TILE_ROW_BYTES, AMX_BLOCK * 4);
}

/* Tiles 0 … 3 += a b over panels of `bytes`. What is read is in the second cache or on its way
 * there in the order it lies in memory: fetching it by instructions only costs loads. */
static inline void multiply_panels(struct tiles *tiles, enum amx_terms terms, const uint8_t *a,
                                   const uint8_t *b, size_t bytes, size_t depth_bytes)
{
    for (size_t at = 0; at < bytes; at += depth_bytes)
        multiply_depth(tiles, terms, a + at, b + at);
}

#endif
