/* dtype: the number formats weights come in, and exact conversion between them.
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even; bf16 and f16 keep NaN a NaN and
 * overflow to infinity, as IEEE 754 says. Bytes are little-endian. */
#ifndef FIRE_DTYPE_H
#define FIRE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

enum fire_dtype {
    FIRE_F64,
    FIRE_F32,
    FIRE_BF16,
    FIRE_F16,
};
#define FIRE_DTYPE_COUNT 4

size_t fire_dtype_bytes(enum fire_dtype dtype);
const char *fire_dtype_name(enum fire_dtype dtype); /* "f64", "f32", "bf16", "f16" */

/* Unit roundoff: 2^-53, 2^-24, 2^-9, 2^-12 (the table of NUMERICS.md section 6 for the last two).
 */
double fire_dtype_roundoff(enum fire_dtype dtype);

/* The DfI left when an exact rows x cols isometry is rounded to `dtype`:
 * 1.5 r (r + 1) / long * u^2. A target below it cannot be met. */
double fire_dtype_dfi_floor(enum fire_dtype dtype, uint64_t rows, uint64_t cols);

float fire_bf16_to_f32(uint16_t bits);
float fire_f16_to_f32(uint16_t bits);
uint16_t fire_f32_to_bf16(float value);
uint16_t fire_f32_to_f16(float value);

/* Element `index` of an array of `dtype` at any address, widened. */
double fire_dtype_element(enum fire_dtype dtype, const void *data, uint64_t index);

/* `value` as it would read back after being stored as `dtype`. */
double fire_dtype_round(enum fire_dtype dtype, double value);

#endif
