/* amx_pack: f32 numbers into tiles of bf16 parts, and a block of C out of them.
 *
 * A tile of the first operand is 16 rows of 32 k values. A tile of the second is 16 rows, row p
 * being the pairs (B[2p][j], B[2p + 1][j]) for 16 columns j. Outside of the matrix tiles are zero.
 *
 * With AMX_PLAIN all of it is plain C, otherwise AVX-512; both give the same bits: splitting is
 * exact but for the rounding of each part, and the last step is a fused multiply-add in both. */
#ifndef FIRE_AMX_PACK_H
#define FIRE_AMX_PACK_H

#include <math.h>
#include <string.h>

#include "amx.h"
#include "amx_tile.h"

#ifdef AMX_PLAIN
#define AMX_CODE
#else
#include <immintrin.h>
#define AMX_CODE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define AMX_FLAT AMX_CODE __attribute__((always_inline)) /* `parts` is a constant in it */
#endif

#ifdef __clang__
#define AMX_UNROLL _Pragma("clang loop unroll(full)")
#else
#define AMX_UNROLL _Pragma("GCC unroll 16")
#endif

_Static_assert(AMX_TILE_BYTES == TILE_ROWS * TILE_ROW_BYTES, "a packed tile is a whole tile");
_Static_assert(AMX_BLOCK == 2 * TILE_ROWS, "a block of C is 2 x 2 tiles");

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* How many of the `count` things starting at `first` come before `end`. */
static inline uint32_t within(uint32_t first, uint32_t end, uint32_t count)
{
    return first < end ? smaller(end - first, count) : 0;
}

#ifdef AMX_PLAIN

/* Bits of `value` whose upper half is its bf16, rounded to nearest, ties away from zero: what is
 * left over is exact either way, and this takes one addition. */
static inline uint32_t rounded_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits + 0x8000u;
}

/* Writes the parts of `value` to the same place of `parts` tiles. */
static inline void split(float value, uint32_t parts, uint8_t *to)
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
static inline void pack_rows(const float *from, size_t stride, uint32_t rows, uint32_t depth,
                             uint32_t parts, uint8_t *to)
{
    for (uint32_t row = 0; row < TILE_ROWS; row++)
        for (uint32_t k = 0; k < AMX_DEPTH; k++)
            split(row < rows && k < depth ? from[row * stride + k] : 0.0f, parts,
                  to + (size_t)row * TILE_ROW_BYTES + (size_t)2 * k);
}

/* A tile of 16 rows of 16 pairs, pair p of column j being (from[2p][j], from[2p + 1][j]). */
static inline void pack_pairs(const float *from, size_t stride, uint32_t depth, uint32_t columns,
                              uint32_t parts, uint8_t *to)
{
    for (uint32_t k = 0; k < AMX_DEPTH; k++)
        for (uint32_t j = 0; j < TILE_ROWS; j++)
            split(k < depth && j < columns ? from[k * stride + j] : 0.0f, parts,
                  to + (size_t)(k / 2) * TILE_ROW_BYTES + (size_t)4 * j + (size_t)2 * (k % 2));
}

/* Exchanges rows and columns of a tile's 16 x 16 pairs; both may be one tile. */
static inline void transpose_pairs(const uint8_t *tile, uint8_t *to)
{
    uint32_t pairs[TILE_ROWS][TILE_ROWS];

    memcpy(pairs, tile, sizeof(pairs));
    for (uint32_t i = 0; i < TILE_ROWS; i++)
        for (uint32_t j = 0; j < TILE_ROWS; j++)
            memcpy(to + (size_t)(i * TILE_ROWS + j) * 4, &pairs[j][i], 4);
}

/* c = alpha block + beta c, `rows` x `columns` of the block. */
static inline void store_block(const float *block, float alpha, float beta, uint32_t rows,
                               uint32_t columns, float *c, size_t stride)
{
    for (uint32_t i = 0; i < rows; i++, block += AMX_BLOCK, c += stride)
        for (uint32_t j = 0; j < columns; j++)
            c[j] = beta == 0.0f ? alpha * block[j] : fmaf(alpha, block[j], beta * c[j]);
}

/* block = alpha block + beta d where d has `rows` x `columns`; d may be NULL. */
static inline void blend_block(float *block, float alpha, const float *d, size_t stride, float beta,
                               uint32_t rows, uint32_t columns)
{
    for (uint32_t i = 0; i < AMX_BLOCK; i++) {
        for (uint32_t j = 0; j < AMX_BLOCK; j++) {
            float *to = &block[i * AMX_BLOCK + j];

            *to *= alpha;
            if (d && i < rows && j < columns)
                *to = fmaf(beta, d[i * stride + j], *to);
        }
    }
}

/* Rows 16 half … of a block whose pairs of rows are in two tiles, as a tile of rows. */
static inline void rows_from_pairs(const uint8_t *pairs, uint32_t half, uint8_t *to)
{
    for (uint32_t row = 0; row < TILE_ROWS; row++) {
        const uint8_t *from = pairs + (size_t)(TILE_ROWS * half + row) / 2 * TILE_ROW_BYTES;

        for (uint32_t k = 0; k < AMX_DEPTH; k++)
            memcpy(to + row * TILE_ROW_BYTES + (size_t)2 * k,
                   from + k / TILE_ROWS * AMX_TILE_BYTES + (size_t)4 * (k % TILE_ROWS) +
                       (size_t)2 * (row % 2),
                   2);
    }
}

#else

/* Mask of the lowest `count` of 16 elements. */
AMX_CODE static inline __mmask16 mask_below(uint32_t count)
{
    return (__mmask16)(count >= 16 ? 0xffffu : (1u << count) - 1u);
}

/* The upper half of each result is the bf16 of `value`, rounded as above. Integer operations:
 * VCVTNEPS2BF16 would flush denormals, and is not on every AVX-512 machine. */
AMX_CODE static inline __m512i rounded_bits(__m512 value)
{
    return _mm512_add_epi32(_mm512_castps_si512(value), _mm512_set1_epi32(0x8000));
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

AMX_CODE static inline void pack_rows(const float *from, size_t stride, uint32_t rows,
                                      uint32_t depth, uint32_t parts, uint8_t *to)
{
    if (parts == 1)
        pack_rows_of(from, stride, rows, depth, 1, to);
    else if (parts == 2)
        pack_rows_of(from, stride, rows, depth, 2, to);
    else
        pack_rows_of(from, stride, rows, depth, 3, to);
}

AMX_CODE static inline void pack_pairs(const float *from, size_t stride, uint32_t depth,
                                       uint32_t columns, uint32_t parts, uint8_t *to)
{
    if (parts == 1)
        pack_pairs_of(from, stride, depth, columns, 1, to);
    else if (parts == 2)
        pack_pairs_of(from, stride, depth, columns, 2, to);
    else
        pack_pairs_of(from, stride, depth, columns, 3, to);
}

/* Exchanges rows and columns of a tile's 16 x 16 pairs; both may be one tile. First within 4 x 4 of
 * them: after that quad[4 g + c] has, in its 128-bit lane l, column 4 l + c of rows 4 g … 4 g + 3.
 */
AMX_CODE static inline void transpose_pairs(const uint8_t *tile, uint8_t *tiles)
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
        uint8_t *to = tiles + (size_t)c * TILE_ROW_BYTES;
        _mm512_storeu_si512(to, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        _mm512_storeu_si512(to + 4 * TILE_ROW_BYTES, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        _mm512_storeu_si512(to + 8 * TILE_ROW_BYTES,
                            _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        _mm512_storeu_si512(to + 12 * TILE_ROW_BYTES,
                            _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}

/* c = alpha block + beta c, `rows` x `columns` of the block. */
AMX_CODE static inline void store_block(const float *block, float alpha, float beta, uint32_t rows,
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

/* block = alpha block + beta d where d has `rows` x `columns`; d may be NULL. */
AMX_CODE static inline void blend_block(float *block, float alpha, const float *d, size_t stride,
                                        float beta, uint32_t rows, uint32_t columns)
{
    const __m512 alphas = _mm512_set1_ps(alpha);
    const __m512 betas = _mm512_set1_ps(beta);

    for (uint32_t i = 0; i < AMX_BLOCK; i++, block += AMX_BLOCK) {
        for (uint32_t j = 0; j < AMX_BLOCK; j += 16) {
            const __mmask16 mask = mask_below(d && i < rows ? within(j, columns, 16) : 0);
            __m512 value = _mm512_mul_ps(alphas, _mm512_loadu_ps(block + j));

            if (mask)
                value = _mm512_mask3_fmadd_ps(
                    betas, _mm512_maskz_loadu_ps(mask, d + i * stride + j), value, mask);
            _mm512_storeu_ps(block + j, value);
        }
    }
}

/* Rows 16 half … of a block whose pairs of rows are in two tiles, as a tile of rows. */
AMX_CODE static inline void rows_from_pairs(const uint8_t *pairs, uint32_t half, uint8_t *to)
{
    const __m512i ascending =
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    /* Words 0, 2, 4 … of the first vector, then of the second. */
    const __m512i even = _mm512_add_epi32(
        _mm512_add_epi32(_mm512_slli_epi32(ascending, 2), _mm512_set1_epi32(0x00020000)),
        _mm512_slli_epi32(ascending, 18));
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(0x00010001));

    pairs += (size_t)TILE_ROWS / 2 * half * TILE_ROW_BYTES;
    for (uint32_t pair = 0; pair < TILE_ROWS / 2; pair++, pairs += TILE_ROW_BYTES) {
        const __m512i left = _mm512_loadu_si512(pairs);
        const __m512i right = _mm512_loadu_si512(pairs + AMX_TILE_BYTES);

        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(left, even, right));
        _mm512_storeu_si512(to + TILE_ROW_BYTES, _mm512_permutex2var_epi16(left, odd, right));
        to += (size_t)2 * TILE_ROW_BYTES;
    }
}

#endif

#endif
