/* cuda_on_host: what g++ must know to compile a .cuh of kernels/cuda as it stands.
 *
 * Threads of a block are fibers of one thread, run in turn from barrier to barrier; blocks run one
 * after the other. Shared memory is one section of static data, poisoned before every block. */
#ifndef FIRE_CUDA_ON_HOST_H
#define FIRE_CUDA_ON_HOST_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <math.h>
#include <stdint.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("fire_shared")))

struct host_index {
    unsigned x, y, z;
};
extern host_index threadIdx;
extern host_index blockIdx;
extern host_index blockDim;
extern host_index gridDim;

extern "C" void __syncthreads(void);
extern uint64_t kernel_flops;
void *kernel_dynamic_shared(void);

/* Kernels say fmaf where they mean one rounding; it is counted for the virtual clock. */
static inline __attribute__((always_inline)) float host_fmaf(float a, float b, float c)
{
    kernel_flops += 2;
    return __builtin_fmaf(a, b, c);
}
static inline __attribute__((always_inline)) double host_fma(double a, double b, double c)
{
    kernel_flops += 2;
    return __builtin_fma(a, b, c);
}
#define fmaf host_fmaf
#define fma  host_fma

static inline float __int_as_float(int bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}
static inline int __float_as_int(float value)
{
    int bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}
static inline float __uint_as_float(unsigned bits)
{
    return __int_as_float((int)bits);
}
static inline unsigned __float_as_uint(float value)
{
    return (unsigned)__float_as_int(value);
}

#endif
