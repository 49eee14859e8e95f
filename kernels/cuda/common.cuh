/* common: what all kernels use. No atomics, no shuffles: sums have a fixed order. */
#ifndef FIRE_CUDA_COMMON_CUH
#define FIRE_CUDA_COMMON_CUH

#include <math.h>
#include <stdint.h>

#include "state.h"

/* The sum of `value` over the threads of the block, in all of them; `room` has FIRE_K_THREADS
 * doubles of shared memory and is free again when this returns. */
static __device__ __forceinline__ double block_sum(double value, double *room)
{
    const unsigned thread = threadIdx.x;
    double sum;

    room[thread] = value;
    __syncthreads();
    for (unsigned half = FIRE_K_THREADS / 2; half > 0; half /= 2) {
        if (thread < half)
            room[thread] += room[thread + half];
        __syncthreads();
    }
    sum = room[0];
    __syncthreads();
    return sum;
}

/* The sum of a row of partial sums, in order; every thread gets it. */
static __device__ __forceinline__ double ordered_sum(const double *partial, uint32_t count)
{
    double sum = 0;

    for (uint32_t i = 0; i < count; i++)
        sum += partial[i];
    return sum;
}

static __device__ __forceinline__ uint32_t float_bits(float value)
{
    union {
        float number;
        uint32_t bits;
    } both;

    both.number = value;
    return both.bits;
}

static __device__ __forceinline__ float bits_float(uint32_t bits)
{
    union {
        float number;
        uint32_t bits;
    } both;

    both.bits = bits;
    return both.number;
}

/* To the nearest bf16, ties to even; finite input, which may become infinite. */
static __device__ __forceinline__ float round_bf16(float value)
{
    const uint32_t bits = float_bits(value);

    return bits_float((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}

/* To the nearest f16: eleven bits, or multiples of 2^-24 where those are coarser. */
static __device__ __forceinline__ float round_f16(float value)
{
    const uint32_t bits = float_bits(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits & 0x80000000u;
    uint32_t rounded;

    if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 leaves multiples of 2^-24 */
        const float shifted = bits_float(magnitude) + 0.5f;

        return bits_float(float_bits(shifted - 0.5f) | sign);
    }
    rounded = (magnitude + 0xfffu + (magnitude >> 13 & 1u)) & 0xffffe000u;
    if (rounded >= 0x47800000u) /* 65536 and more */
        rounded = 0x7f800000u;
    return bits_float(rounded | sign);
}

static __device__ __forceinline__ float round_output(double value, int output)
{
    const float narrow = (float)value;

    if (output == FIRE_K_OUTPUT_BF16)
        return round_bf16(narrow);
    if (output == FIRE_K_OUTPUT_F16)
        return round_f16(narrow);
    return narrow;
}

#endif
