/* dtype: conversions by integer arithmetic on the bits and one exact float operation each, without
 * branches that depend on the rounding of a compiler flag. Nothing here needs denormal inputs to be
 * honoured by the FPU, except f64 -> f32 itself. */
#include "dtype.h"

#include <math.h>
#include <string.h>

#include "convert.h"

static const struct {
    const char *name;
    size_t bytes;
    double roundoff;
} dtypes[FIRE_DTYPE_COUNT] = {
    [FIRE_F64] = { "f64", 8, 0x1p-53 },
    [FIRE_F32] = { "f32", 4, 0x1p-24 },
    [FIRE_BF16] = { "bf16", 2, 0x1p-9 },
    [FIRE_F16] = { "f16", 2, 0x1p-12 },
};

size_t fire_dtype_bytes(enum fire_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *fire_dtype_name(enum fire_dtype dtype)
{
    return dtypes[dtype].name;
}

double fire_dtype_roundoff(enum fire_dtype dtype)
{
    return dtypes[dtype].roundoff;
}

double fire_dtype_dfi_floor(enum fire_dtype dtype, uint64_t rows, uint64_t cols)
{
    const double r = (double)(rows < cols ? rows : cols);
    const double longest = (double)(rows < cols ? cols : rows);
    const double u = fire_dtype_roundoff(dtype);

    return 1.5 * r * (r + 1.0) / longest * u * u;
}

float fire_bf16_to_f32(uint16_t bits)
{
    return convert_bf16_to_f32(bits);
}

float fire_f16_to_f32(uint16_t bits)
{
    return convert_f16_to_f32(bits);
}

uint16_t fire_f32_to_bf16(float value)
{
    return convert_f32_to_bf16(value);
}

uint16_t fire_f32_to_f16(float value)
{
    return convert_f32_to_f16(value);
}

double fire_dtype_element(enum fire_dtype dtype, const void *data, uint64_t index)
{
    const unsigned char *at = (const unsigned char *)data + index * fire_dtype_bytes(dtype);
    uint16_t half;
    double wide;
    float single;

    switch (dtype) {
    case FIRE_F64: memcpy(&wide, at, sizeof(wide)); return wide;
    case FIRE_F32: memcpy(&single, at, sizeof(single)); return (double)single;
    case FIRE_BF16: memcpy(&half, at, sizeof(half)); return (double)convert_bf16_to_f32(half);
    case FIRE_F16: memcpy(&half, at, sizeof(half)); return (double)convert_f16_to_f32(half);
    }
    return NAN;
}

double fire_dtype_round(enum fire_dtype dtype, double value)
{
    switch (dtype) {
    case FIRE_F64: return value;
    case FIRE_F32: return (double)(float)value;
    case FIRE_BF16: return (double)convert_bf16_to_f32(convert_f32_to_bf16(convert_to_odd(value)));
    case FIRE_F16: return (double)convert_f16_to_f32(convert_f32_to_f16(convert_to_odd(value)));
    }
    return value;
}
