/* amx: split-bf16 products on the tile unit.
 *
 * Loops, outermost first: up to AMX_COLUMNS_MAX columns of B; up to AMX_DEPTH_MAX of k, for which
 * those columns are packed; panels of 32 rows of A, packed; blocks of 32 x 32 of C, each held in
 * four tiles over the whole depth and then added to C. The packed B stays in the second-level
 * cache; the panel of A is used against all of it.
 *
 * A packed panel is a list of depth blocks of 32 k values; each holds two tiles (the panel's first
 * and second 16 rows of A or columns of B), each as its parts, hi first: with x3
 *     [0 hi] [0 lo] [1 hi] [1 lo], 1 KB each, then the next depth block.
 * A tile of A is 16 rows of 32 k values. A tile of B is 16 rows, row p being the pairs
 * (B[2p][j], B[2p + 1][j]) for 16 columns j. Outside of the matrix tiles are zero.
 *
 * This file is built more than once: for use, with the real instructions and AVX-512; and for
 * tests, with AMX_EMULATED (tile instructions in C), with AMX_PLAIN (packing and storing in
 * C) or both, under another name, AMX_PRODUCT_TILE. All of them give the same bits: splitting is
 * exact but for the rounding of each part, and the last step is a fused multiply-add in both. */
#include "amx.h"

#ifndef __x86_64__ /* never chosen there (amx_probe fails), but it links */
#define AMX_EMULATED
#define AMX_PLAIN
#endif

#include <math.h>
#include <string.h>

#include "amx_tile.h"

#ifdef AMX_PLAIN
#define AMX_CODE
#else
#include <immintrin.h>
#define AMX_CODE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define AMX_FLAT AMX_CODE __attribute__((always_inline)) /* `parts` is a constant in it */
#endif

#ifndef AMX_PRODUCT_TILE
#define AMX_PRODUCT_TILE amx_product_tile
#endif
void AMX_PRODUCT_TILE(const struct product *product, enum amx_terms terms, uint32_t i0, uint32_t i1,
                      uint32_t j0, uint32_t j1, void *scratch);

#ifdef __clang__
#define AMX_UNROLL _Pragma("clang loop unroll(full)")
#else
#define AMX_UNROLL _Pragma("GCC unroll 16")
#endif

#define AMX_PREFETCH_BLOCKS 2u /* depth blocks fetched ahead of their use */

_Static_assert(AMX_TILE_BYTES == TILE_ROWS * TILE_ROW_BYTES, "a packed tile is a whole tile");
_Static_assert(AMX_BLOCK == 2 * TILE_ROWS, "a block of C is 2 x 2 tiles");
_Static_assert(AMX_COLUMNS_MAX % AMX_BLOCK == 0, "packed B is whole panels");
_Static_assert(AMX_DEPTH_MAX % AMX_DEPTH == 0, "packed k is whole depth blocks");

/* One thread's work: its arguments and where its scratch memory is. */
struct amx_work {
    const struct product *product;
    enum amx_terms terms;
    uint32_t parts;
    uint32_t i0, i1;
    uint32_t j0, j1;    /* at most AMX_COLUMNS_MAX columns */
    uint32_t k0, k1;    /* at most AMX_DEPTH_MAX */
    size_t panel_bytes; /* of A or B for this depth */
    uint8_t *packed_b;
    uint8_t *packed_a;
    float *block; /* AMX_BLOCK x AMX_BLOCK */
};

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* How many of the `count` things starting at `first` come before `end`. */
static uint32_t within(uint32_t first, uint32_t end, uint32_t count)
{
    return first < end ? smaller(end - first, count) : 0;
}

static uint32_t parts_of(enum amx_terms terms)
{
    switch (terms) {
    case AMX_BF16: return 1;
    case AMX_X3: return 2;
    case AMX_X6: return 3;
    }
    return 0;
}

#ifdef AMX_PLAIN

/* Bits of `value` whose upper half is its bf16, rounded to nearest, ties to even. */
static uint32_t rounded_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}

/* Writes the parts of `value` to the same place of `parts` tiles. */
static void split(float value, uint32_t parts, uint8_t *to)
{
    for (uint32_t part = 0; part < parts; part++) {
        const uint32_t bits = rounded_bits(value) & 0xffff0000u;
        const uint16_t half = (uint16_t)(bits >> 16);
        float high;

        memcpy(&high, &bits, sizeof(high));
        memcpy(to + (size_t)part * AMX_TILE_BYTES, &half, sizeof(half));
        value -= high;
    }
}

/* A tile of 16 rows of 32 values from row-major memory, of which `rows` x `depth` exist. */
static void pack_rows(const float *from, size_t stride, uint32_t rows, uint32_t depth,
                      uint32_t parts, uint8_t *to)
{
    for (uint32_t row = 0; row < TILE_ROWS; row++)
        for (uint32_t k = 0; k < AMX_DEPTH; k++)
            split(row < rows && k < depth ? from[row * stride + k] : 0.0f, parts,
                  to + (size_t)row * TILE_ROW_BYTES + (size_t)2 * k);
}

/* A tile of 16 rows of 16 pairs, pair p of column j being (from[2p][j], from[2p + 1][j]). */
static void pack_pairs(const float *from, size_t stride, uint32_t depth, uint32_t columns,
                       uint32_t parts, uint8_t *to)
{
    for (uint32_t k = 0; k < AMX_DEPTH; k++)
        for (uint32_t j = 0; j < TILE_ROWS; j++)
            split(k < depth && j < columns ? from[k * stride + j] : 0.0f, parts,
                  to + (size_t)(k / 2) * TILE_ROW_BYTES + (size_t)4 * j + (size_t)2 * (k % 2));
}

/* Exchanges rows and columns of the tile's 16 x 16 pairs. */
static void transpose_pairs(uint8_t *tile)
{
    uint32_t pairs[TILE_ROWS][TILE_ROWS];

    memcpy(pairs, tile, sizeof(pairs));
    for (uint32_t i = 0; i < TILE_ROWS; i++)
        for (uint32_t j = 0; j < TILE_ROWS; j++)
            memcpy(tile + (size_t)(i * TILE_ROWS + j) * 4, &pairs[j][i], 4);
}

/* c = alpha block + beta c, `rows` x `columns` of the block. */
static void store_block(const float *block, float alpha, float beta, uint32_t rows,
                        uint32_t columns, float *c, size_t stride)
{
    for (uint32_t i = 0; i < rows; i++, block += AMX_BLOCK, c += stride)
        for (uint32_t j = 0; j < columns; j++)
            c[j] = beta == 0.0f ? alpha * block[j] : fmaf(alpha, block[j], beta * c[j]);
}

#else

/* Mask of the lowest `count` of 16 elements. */
AMX_CODE static inline __mmask16 mask_below(uint32_t count)
{
    return (__mmask16)(count >= 16 ? 0xffffu : (1u << count) - 1u);
}

/* The upper half of each result is the bf16 of `value`, rounded to nearest, ties to even. Integer
 * operations: VCVTNEPS2BF16 would flush denormals, and is not on every AVX-512 machine. */
AMX_CODE static inline __m512i rounded_bits(__m512 value)
{
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));

    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}

/* What is left of `value` without the bf16 in `bits`. */
AMX_CODE static inline __m512 remainder_of(__m512 value, __m512i bits)
{
    const __m512i high = _mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000u));

    return _mm512_sub_ps(value, _mm512_castsi512_ps(high));
}

/* A tile of 16 rows of 32 values from row-major memory, of which `rows` x `depth` exist. */
AMX_FLAT static inline void pack_rows_of(const float *from, size_t stride, uint32_t rows,
                                         uint32_t depth, uint32_t parts, uint8_t *to)
{
    const __mmask16 first = mask_below(depth);
    const __mmask16 second = mask_below(within(16, depth, 16));
    /* Words 1, 3, 5 … of the first vector, then of the second. */
    const __m512i ascending =
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i odd_words =
        _mm512_add_epi32(_mm512_slli_epi32(ascending, 2), _mm512_set1_epi32(0x00030001));
    const __m512i pick = _mm512_add_epi32(odd_words, _mm512_slli_epi32(ascending, 18));

    for (uint32_t row = 0; row < TILE_ROWS; row++, to += TILE_ROW_BYTES) {
        __m512 left = _mm512_setzero_ps();
        __m512 right = _mm512_setzero_ps();
        if (row < rows && first)
            left = _mm512_maskz_loadu_ps(first, from + row * stride);
        if (row < rows && second)
            right = _mm512_maskz_loadu_ps(second, from + row * stride + 16);
        for (uint32_t part = 0; part < parts; part++) {
            const __m512i left_bits = rounded_bits(left);
            const __m512i right_bits = rounded_bits(right);
            _mm512_storeu_si512(to + (size_t)part * AMX_TILE_BYTES,
                                _mm512_permutex2var_epi16(left_bits, pick, right_bits));
            left = remainder_of(left, left_bits);
            right = remainder_of(right, right_bits);
        }
    }
}

/* A tile of 16 rows of 16 pairs, pair p of column j being (from[2p][j], from[2p + 1][j]). */
AMX_FLAT static inline void pack_pairs_of(const float *from, size_t stride, uint32_t depth,
                                          uint32_t columns, uint32_t parts, uint8_t *to)
{
    const __mmask16 mask = mask_below(columns);

    for (uint32_t k = 0; k < AMX_DEPTH; k += 2, to += TILE_ROW_BYTES) {
        __m512 even = _mm512_setzero_ps();
        __m512 odd = _mm512_setzero_ps();
        if (k < depth && mask)
            even = _mm512_maskz_loadu_ps(mask, from + k * stride);
        if (k + 1 < depth && mask)
            odd = _mm512_maskz_loadu_ps(mask, from + (k + 1) * stride);
        for (uint32_t part = 0; part < parts; part++) {
            const __m512i even_bits = rounded_bits(even);
            const __m512i odd_bits = rounded_bits(odd);
            _mm512_storeu_si512(
                to + (size_t)part * AMX_TILE_BYTES,
                _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(even_bits, 16), odd_bits));
            even = remainder_of(even, even_bits);
            odd = remainder_of(odd, odd_bits);
        }
    }
}

AMX_CODE static void pack_rows(const float *from, size_t stride, uint32_t rows, uint32_t depth,
                               uint32_t parts, uint8_t *to)
{
    if (parts == 1)
        pack_rows_of(from, stride, rows, depth, 1, to);
    else if (parts == 2)
        pack_rows_of(from, stride, rows, depth, 2, to);
    else
        pack_rows_of(from, stride, rows, depth, 3, to);
}

AMX_CODE static void pack_pairs(const float *from, size_t stride, uint32_t depth, uint32_t columns,
                                uint32_t parts, uint8_t *to)
{
    if (parts == 1)
        pack_pairs_of(from, stride, depth, columns, 1, to);
    else if (parts == 2)
        pack_pairs_of(from, stride, depth, columns, 2, to);
    else
        pack_pairs_of(from, stride, depth, columns, 3, to);
}

/* Exchanges rows and columns of the tile's 16 x 16 pairs. First within 4 x 4 of them: after that
 * quad[4 g + c] has, in its 128-bit lane l, column 4 l + c of rows 4 g … 4 g + 3. */
AMX_CODE static void transpose_pairs(uint8_t *tile)
{
    __m512i half[16], quad[16];

    AMX_UNROLL
    for (uint32_t i = 0; i < 16; i += 2) {
        const __m512i upper = _mm512_loadu_si512(tile + (size_t)i * TILE_ROW_BYTES);
        const __m512i lower = _mm512_loadu_si512(tile + (size_t)(i + 1) * TILE_ROW_BYTES);
        half[i] = _mm512_unpacklo_epi32(upper, lower);
        half[i + 1] = _mm512_unpackhi_epi32(upper, lower);
    }
    AMX_UNROLL
    for (uint32_t i = 0; i < 16; i += 4) {
        quad[i] = _mm512_unpacklo_epi64(half[i], half[i + 2]);
        quad[i + 1] = _mm512_unpackhi_epi64(half[i], half[i + 2]);
        quad[i + 2] = _mm512_unpacklo_epi64(half[i + 1], half[i + 3]);
        quad[i + 3] = _mm512_unpackhi_epi64(half[i + 1], half[i + 3]);
    }
    AMX_UNROLL
    for (uint32_t c = 0; c < 4; c++) {
        const __m512i even_low = _mm512_shuffle_i32x4(quad[c], quad[4 + c], 0x88);
        const __m512i even_high = _mm512_shuffle_i32x4(quad[8 + c], quad[12 + c], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(quad[c], quad[4 + c], 0xdd);
        const __m512i odd_high = _mm512_shuffle_i32x4(quad[8 + c], quad[12 + c], 0xdd);
        uint8_t *to = tile + (size_t)c * TILE_ROW_BYTES;
        _mm512_storeu_si512(to, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        _mm512_storeu_si512(to + 4 * TILE_ROW_BYTES, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        _mm512_storeu_si512(to + 8 * TILE_ROW_BYTES,
                            _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        _mm512_storeu_si512(to + 12 * TILE_ROW_BYTES,
                            _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

/* c = alpha block + beta c, `rows` x `columns` of the block. */
AMX_CODE static void store_block(const float *block, float alpha, float beta, uint32_t rows,
                                 uint32_t columns, float *c, size_t stride)
{
    const __m512 alphas = _mm512_set1_ps(alpha);
    const __m512 betas = _mm512_set1_ps(beta);

    for (uint32_t i = 0; i < rows; i++, block += AMX_BLOCK, c += stride) {
        for (uint32_t j = 0; j < columns; j += 16) {
            const __mmask16 mask = mask_below(columns - j);
            const __m512 sum = _mm512_loadu_ps(block + j);
            __m512 result = _mm512_mul_ps(alphas, sum);
            if (beta != 0.0f) {
                const __m512 old = _mm512_mul_ps(betas, _mm512_maskz_loadu_ps(mask, c + j));
                result = _mm512_fmadd_ps(alphas, sum, old);
            }
            _mm512_mask_storeu_ps(c + j, mask, result);
        }
    }
}

#endif

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
static void pack_a_panel(const struct amx_work *work, uint32_t i)
{
    const struct product *product = work->product;
    const float *a = product->a;
    uint8_t *to = work->packed_a;

    for (uint32_t k = work->k0; k < work->k1; k += AMX_DEPTH) {
        const uint32_t depth = smaller(work->k1 - k, AMX_DEPTH);
        for (uint32_t side = 0; side < AMX_BLOCK; side += TILE_ROWS) {
            const uint32_t rows = within(i + side, work->i1, TILE_ROWS);
            if (product->a_transposed) {
                pack_pairs(a + (size_t)k * product->lda + i + side, product->lda, depth, rows,
                           work->parts, to);
                for (uint32_t part = 0; part < work->parts; part++)
                    transpose_pairs(to + (size_t)part * AMX_TILE_BYTES);
            } else {
                pack_rows(a + (size_t)(i + side) * product->lda + k, product->lda, rows, depth,
                          work->parts, to);
            }
            to += (size_t)work->parts * AMX_TILE_BYTES;
        }
    }
}

static inline void prefetch(const void *from, size_t bytes)
{
    for (size_t line = 0; line < bytes; line += 64)
        __builtin_prefetch((const uint8_t *)from + line, 0, 3);
}

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

/* The product of a packed panel of A and one of B into work->block. */
static void multiply_block(const struct amx_work *work, struct tiles *tiles, const uint8_t *a,
                           const uint8_t *b)
{
    const size_t depth_bytes = (size_t)2 * work->parts * AMX_TILE_BYTES;
    uint8_t *to = (uint8_t *)work->block;
    size_t ahead = AMX_PREFETCH_BLOCKS * depth_bytes;

    TILE_ZERO(tiles, 0);
    TILE_ZERO(tiles, 1);
    TILE_ZERO(tiles, 2);
    TILE_ZERO(tiles, 3);
    for (size_t at = 0; at < work->panel_bytes; at += depth_bytes, ahead += depth_bytes) {
        /* The next block of C needs this panel of A from its start, and B's next panel, which
         * follows in memory. */
        while (ahead >= work->panel_bytes)
            ahead -= work->panel_bytes;
        prefetch(a + ahead, depth_bytes);
        prefetch(b + at + AMX_PREFETCH_BLOCKS * depth_bytes, depth_bytes);
        multiply_depth(tiles, work->terms, a + at, b + at);
    }
    TILE_STORE(tiles, 0, to, AMX_BLOCK * 4);
    TILE_STORE(tiles, 1, to + TILE_ROW_BYTES, AMX_BLOCK * 4);
    TILE_STORE(tiles, 2, to + TILE_ROWS * AMX_BLOCK * 4, AMX_BLOCK * 4);
    TILE_STORE(tiles, 3, to + TILE_ROWS * AMX_BLOCK * 4 + TILE_ROW_BYTES, AMX_BLOCK * 4);
}

/* One panel of rows of C against all packed panels of B. */
static void multiply_panel(const struct amx_work *work, struct tiles *tiles, uint32_t i)
{
    const struct product *product = work->product;
    const uint32_t rows = smaller(work->i1 - i, AMX_BLOCK);
    const float beta = work->k0 == 0 ? (float)product->beta : 1.0f;
    const uint8_t *b = work->packed_b;

    for (uint32_t j = work->j0; j < work->j1; j += AMX_BLOCK, b += work->panel_bytes) {
        const uint32_t columns = smaller(work->j1 - j, AMX_BLOCK);
        float *c = (float *)product->c + (size_t)i * product->ldc + j;
        if (product->upper && j + columns <= i)
            continue;
        for (uint32_t row = 0; row < rows; row++)
            __builtin_prefetch(c + row * product->ldc, 1, 3);
        multiply_block(work, tiles, work->packed_a, b);
        store_block(work->block, (float)product->alpha, beta, rows, columns, c, product->ldc);
    }
}

/* Columns [work->j0, work->j1), all of k. */
static void multiply_columns(struct amx_work *work, struct tiles *tiles)
{
    const struct product *product = work->product;

    work->k0 = 0;
    do {
        work->k1 = work->k0 + smaller(product->k - work->k0, AMX_DEPTH_MAX);
        const size_t blocks = (work->k1 - work->k0 + AMX_DEPTH - 1) / AMX_DEPTH;
        work->panel_bytes = blocks * 2 * work->parts * AMX_TILE_BYTES;

        uint8_t *to = work->packed_b;
        for (uint32_t j = work->j0; j < work->j1; j += AMX_BLOCK, to += work->panel_bytes)
            pack_b_panel(work, j, to);
        work->packed_a = to;
        for (uint32_t i = work->i0; i < work->i1; i += AMX_BLOCK) {
            if (product->upper && work->j1 <= i)
                break; /* this panel and all under it lie under the diagonal */
            pack_a_panel(work, i);
            multiply_panel(work, tiles, i);
        }
        work->k0 = work->k1;
    } while (work->k0 < product->k);
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
        .i0 = i0,
        .i1 = i1,
        .block = scratch,
        .packed_b = (uint8_t *)scratch + AMX_BLOCK * AMX_BLOCK * sizeof(float),
    };

    FIRE_ASSERT(i1 <= product->m);
    FIRE_ASSERT(j1 <= product->n);
    FIRE_ASSERT(!product->narrow);
    FIRE_ASSERT(((uintptr_t)scratch & 63u) == 0);
    FIRE_ASSERT(work.parts > 0);

    tiles_configure(&tiles, &config);
    for (uint32_t j = j0; j < j1; j += work.j1 - work.j0) {
        work.j0 = j;
        work.j1 = j + smaller(j1 - j, AMX_COLUMNS_MAX);
        multiply_columns(&work, &tiles);
    }
    tiles_release(&tiles);
}
