/* convert: one number from one format to another, inline so that loops over them vectorise. Private
 * to kernels/: dtype.h offers the same as functions. */
#ifndef FIRE_CONVERT_H
#define FIRE_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t convert_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float convert_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* `yes` where a < b, else `no`, by masks: a branch, or a float operation moved into one, would keep
 * loops from vectorising. All four are below 2^31 or only bits. */
static inline uint32_t convert_if_below(uint32_t a, uint32_t b, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)((int32_t)a < (int32_t)b);

    return (yes & mask) | (no & ~mask);
}

static inline float convert_bf16_to_f32(uint16_t bits)
{
    return convert_float((uint32_t)bits << 16);
}

/* Exponent and mantissa move to their place; the bias differs by 112. Infinity and NaN need 112
 * more, and a subnormal is read as if it had the hidden bit, which an exact subtraction removes. */
static inline float convert_f16_to_f32(uint16_t bits)
{
    const uint32_t bias = UINT32_C(112) << 23;
    const uint32_t sign = ((uint32_t)bits & 0x8000u) << 16;
    const uint32_t shifted = ((uint32_t)bits & 0x7fffu) << 13;
    const uint32_t normal = shifted + bias;
    const float subnormal =
        convert_float(normal + (UINT32_C(1) << 23)) - convert_float(UINT32_C(113) << 23);
    uint32_t magnitude = convert_if_below(shifted, UINT32_C(0x1f) << 23, normal, normal + bias);

    magnitude = convert_if_below(shifted, UINT32_C(1) << 23, convert_bits(subnormal), magnitude);
    return convert_float(magnitude | sign);
}

static inline uint16_t convert_f32_to_bf16(float value)
{
    const uint32_t bits = convert_bits(value);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const uint32_t quiet = bits | 0x400000u; /* a NaN whose low half alone was set stays one */

    return (uint16_t)(convert_if_below(0x7f800000u, bits & 0x7fffffffu, quiet, rounded) >> 16);
}

/* Normal results round in integers; subnormal ones by adding a float whose last bit is f16's
 * smallest step, so that the addition itself rounds to nearest even. */
static inline uint16_t convert_f32_to_f16(float value)
{
    const uint32_t bits = convert_bits(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t step = UINT32_C(126) << 23; /* 0.5: its last bit is 2^-24 */
    const uint32_t normal =
        (magnitude - (UINT32_C(112) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t small = convert_if_below(magnitude, UINT32_C(113) << 23, magnitude, 0u);
    const uint32_t subnormal = convert_bits(convert_float(small) + convert_float(step)) - step;
    uint32_t result = convert_if_below(magnitude, UINT32_C(113) << 23, subnormal, normal);

    result = convert_if_below(magnitude, UINT32_C(143) << 23, result, 0x7c00u);
    result = convert_if_below(0x7f800000u, magnitude, 0x7e00u, result);
    return (uint16_t)(result | ((bits >> 16) & 0x8000u));
}

/* f64 -> f32 rounded to odd: what is lost stays visible in the last bit, so that rounding the
 * answer again, to a format at least two bits shorter, is as good as rounding once. */
static inline float convert_to_odd(double value)
{
    const float nearest = (float)value;
    const double back = (double)nearest;
    const uint32_t bits = convert_bits(nearest);
    const uint32_t away =
        (uint32_t)((value < 0.0) & (back < value)) | (uint32_t)((value > 0.0) & (back > value));
    const uint32_t inexact = (uint32_t)(back != value);

    return convert_float((bits - away) | inexact);
}

#endif
