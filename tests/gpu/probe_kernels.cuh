/* probe_kernels: kernels that show what the emulator sees. */
#ifndef PROBE_KERNELS_CUH
#define PROBE_KERNELS_CUH

#include <stdint.h>

#define PROBE_THREADS 64

/* One element a thread. */
extern "C" __global__ void probe_k_scale(float *x, float factor, uint32_t count)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < count)
        x[i] = x[i] * factor;
}

/* One partial sum a block: a tree in shared memory. */
extern "C" __global__ void probe_k_sum(const float *x, float *partial, uint32_t count)
{
    __shared__ float room[PROBE_THREADS];
    const uint32_t i = blockIdx.x * PROBE_THREADS + threadIdx.x;

    room[threadIdx.x] = i < count ? x[i] : 0.0f;
    __syncthreads();
    for (uint32_t half = PROBE_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            room[threadIdx.x] += room[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        partial[blockIdx.x] = room[0];
}

/* Reverses a block's elements through dynamic shared memory. */
extern "C" __global__ void probe_k_reverse(float *x)
{
    extern __shared__ float probe_dynamic[];
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    probe_dynamic[threadIdx.x] = x[i];
    __syncthreads();
    x[i] = probe_dynamic[blockDim.x - 1 - threadIdx.x];
}

/* Wrong on purpose: only half of the block reaches the barrier. */
extern "C" __global__ void probe_k_divergent(float *x)
{
    if (threadIdx.x < blockDim.x / 2)
        __syncthreads();
    x[threadIdx.x] = 1.0f;
}

/* Wrong on purpose: one element past the end. */
extern "C" __global__ void probe_k_beyond(float *x, uint32_t count)
{
    x[count + 1024 * 1024 + threadIdx.x] = 1.0f;
}

#endif
