/* amx_tile: the six tile instructions that are needed, real or emulated.
 *
 * With AMX_EMULATED the eight tile registers are an array and the instructions are plain C with the
 * semantics of Intel's manual, so that everything around them is proved on any machine. Otherwise
 * they are inline assembly: gcc 12's _tile_loadconfig tells the compiler of 8 of the 64 bytes read,
 * and none of its tile intrinsics say that they touch memory, so stores to a packed panel might
 * move past its load.
 *
 * A tile is 16 rows of 64 bytes. Tile numbers must be literal digits. `tiles` is the function's
 * own: configure before the first use, release after the last, on the same thread. */
#ifndef FIRE_AMX_TILE_H
#define FIRE_AMX_TILE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "status.h"

#define TILE_COUNT     8u
#define TILE_ROWS      16u
#define TILE_ROW_BYTES 64u

/* The 64 bytes LDTILECFG reads. */
struct tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "LDTILECFG reads 64 bytes");

/* All eight tiles at full size. */
static inline struct tile_config tile_config_full(void)
{
    struct tile_config config = { .palette = 1 };

    for (uint32_t tile = 0; tile < TILE_COUNT; tile++) {
        config.row_bytes[tile] = TILE_ROW_BYTES;
        config.rows[tile] = TILE_ROWS;
    }
    return config;
}

#ifdef AMX_EMULATED

struct tiles {
    struct tile_config config; /* palette 0: not configured */
    uint8_t data[TILE_COUNT][TILE_ROWS][TILE_ROW_BYTES];
};

/* LDTILECFG: faults on what the processor refuses, and zeroes all tiles. */
static inline void tiles_configure(struct tiles *tiles, const struct tile_config *config)
{
    FIRE_ASSERT(config->palette == 1);
    FIRE_ASSERT(config->start_row == 0);
    for (uint32_t tile = 0; tile < 16; tile++) {
        FIRE_ASSERT(config->rows[tile] <= (tile < TILE_COUNT ? TILE_ROWS : 0));
        FIRE_ASSERT(config->row_bytes[tile] <= (tile < TILE_COUNT ? TILE_ROW_BYTES : 0));
        FIRE_ASSERT((config->rows[tile] == 0) == (config->row_bytes[tile] == 0));
    }
    memset(tiles->data, 0, sizeof(tiles->data));
    tiles->config = *config;
}

/* TILERELEASE: back to the state without configuration. */
static inline void tiles_release(struct tiles *tiles)
{
    tiles->config.palette = 0;
}

/* Any use of a tile that is not configured faults. */
static inline void emulated_check(const struct tiles *tiles, uint32_t tile)
{
    FIRE_ASSERT(tiles->config.palette == 1);
    FIRE_ASSERT(tile < TILE_COUNT);
    FIRE_ASSERT(tiles->config.rows[tile] > 0);
}

/* TILEZERO */
static inline void emulated_zero(struct tiles *tiles, uint32_t tile)
{
    emulated_check(tiles, tile);
    memset(tiles->data[tile], 0, sizeof(tiles->data[tile]));
}

/* TILELOADD: rows and bytes outside the tile's configured size become zero. */
static inline void emulated_load(struct tiles *tiles, uint32_t tile, const void *from,
                                 size_t stride)
{
    emulated_zero(tiles, tile);
    for (uint32_t row = 0; row < tiles->config.rows[tile]; row++)
        memcpy(tiles->data[tile][row], (const uint8_t *)from + row * stride,
               tiles->config.row_bytes[tile]);
}

/* TILESTORED */
static inline void emulated_store(const struct tiles *tiles, uint32_t tile, void *to, size_t stride)
{
    emulated_check(tiles, tile);
    for (uint32_t row = 0; row < tiles->config.rows[tile]; row++)
        memcpy((uint8_t *)to + row * stride, tiles->data[tile][row], tiles->config.row_bytes[tile]);
}

/* Denormals are zeros (DAZ). */
static inline float emulated_daz(float value)
{
    return fabsf(value) < 0x1p-126f ? copysignf(0.0f, value) : value;
}

/* f32 round to nearest even, then tiny results to zero (FTZ). Half a unit under 2^-126 rounds up to
 * it and is not tiny. The sum of an f32 and a product of two bf16 is rounded once: where a double
 * does not hold it exactly, the part it drops is too far from a tie of f32 to matter. */
static inline float emulated_round(double value)
{
    return fabs(value) < 0x1.ffffffp-127 ? (float)copysign(0.0, value) : (float)value;
}

static inline float emulated_bf16(const uint8_t *bytes)
{
    uint16_t half;
    uint32_t bits;
    float value;

    memcpy(&half, bytes, sizeof(half));
    bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof(value));
    return emulated_daz(value);
}

/* TDPBF16PS: c[m][n] += sum over pairs k of a[m][k] . b[k][n]. As the manual says, the even and the
 * odd members of the pairs are summed apart, by fused multiply-adds from zero; the two sums are
 * added, then that is added to c. Every step rounds to nearest even with DAZ and FTZ. */
static inline void emulated_dot(struct tiles *tiles, uint32_t c, uint32_t a, uint32_t b)
{
    const struct tile_config *config = &tiles->config;
    float right[TILE_ROWS][2 * TILE_ROWS];
    float sum[2 * TILE_ROWS];

    emulated_check(tiles, a);
    emulated_check(tiles, b);
    emulated_check(tiles, c);
    FIRE_ASSERT(config->rows[c] == config->rows[a]);
    FIRE_ASSERT(config->row_bytes[c] == config->row_bytes[b]);
    FIRE_ASSERT(config->row_bytes[a] / 4u == config->rows[b]);
    const uint32_t columns = config->row_bytes[c] / 4u;

    for (uint32_t k = 0; k < config->rows[b]; k++)
        for (uint32_t n = 0; n < 2 * columns; n++)
            right[k][n] = emulated_bf16(tiles->data[b][k] + (size_t)2 * n);
    for (uint32_t m = 0; m < config->rows[c]; m++) {
        memset(sum, 0, sizeof(sum));
        for (uint32_t k = 0; k < config->rows[b]; k++) {
            const double even = emulated_bf16(tiles->data[a][m] + (size_t)4 * k);
            const double odd = emulated_bf16(tiles->data[a][m] + (size_t)4 * k + 2);
            for (uint32_t n = 0; n < 2 * columns; n += 2) {
                sum[n] = emulated_round(sum[n] + even * right[k][n]);
                sum[n + 1] = emulated_round(sum[n + 1] + odd * right[k][n + 1]);
            }
        }
        for (uint32_t n = 0; n < columns; n++) {
            const float added = emulated_round((double)sum[2 * n] + sum[2 * n + 1]);
            uint8_t *entry = tiles->data[c][m] + (size_t)4 * n;
            float old;
            memcpy(&old, entry, sizeof(old));
            old = emulated_round((double)emulated_daz(old) + added);
            memcpy(entry, &old, sizeof(old));
        }
    }
}

#define TILE_ZERO(tiles, tile)               emulated_zero(tiles, tile)
#define TILE_LOAD(tiles, tile, from, stride) emulated_load(tiles, tile, from, stride)
#define TILE_STORE(tiles, tile, to, stride)  emulated_store(tiles, tile, to, stride)
#define TILE_DOT(tiles, c, a, b)             emulated_dot(tiles, c, a, b)

#else

struct tiles {
    char none; /* the registers are the processor's */
};

static inline void tiles_configure(struct tiles *tiles, const struct tile_config *config)
{
    tiles->none = 0;
    __asm__ volatile("ldtilecfg %0" : : "m"(*config) : "memory");
}

static inline void tiles_release(struct tiles *tiles)
{
    (void)tiles;
    __asm__ volatile("tilerelease" : : : "memory");
}

#define TILE_ZERO(tiles, tile)                                                                     \
    do {                                                                                           \
        (void)(tiles);                                                                             \
        __asm__ volatile("tilezero %%tmm" #tile : : : "memory");                                   \
    } while (0)
#define TILE_LOAD(tiles, tile, from, stride)                                                       \
    do {                                                                                           \
        (void)(tiles);                                                                             \
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile                                        \
                         :                                                                         \
                         : "r"(from), "r"((size_t)(stride))                                        \
                         : "memory");                                                              \
    } while (0)
#define TILE_STORE(tiles, tile, to, stride)                                                        \
    do {                                                                                           \
        (void)(tiles);                                                                             \
        __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                                    \
                         :                                                                         \
                         : "r"(to), "r"((size_t)(stride))                                          \
                         : "memory");                                                              \
    } while (0)
/* AT&T order: b, a, then c, which is read and written. */
#define TILE_DOT(tiles, c, a, b)                                                                   \
    do {                                                                                           \
        (void)(tiles);                                                                             \
        __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : : "memory");           \
    } while (0)

#endif

#endif
