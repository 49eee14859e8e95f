/* probe_launch: grids, compiled by nvcc as the plugin is. */
#include "probe_launch.h"

#include "probe_kernels.cuh"

cudaError_t probe_scale(cudaStream_t stream, float *x, float factor, uint32_t count)
{
    probe_k_scale<<<(count + PROBE_THREADS - 1) / PROBE_THREADS, PROBE_THREADS, 0, stream>>>(
        x, factor, count);
    return cudaGetLastError();
}

cudaError_t probe_sum(cudaStream_t stream, const float *x, float *partial, uint32_t count)
{
    probe_k_sum<<<(count + PROBE_THREADS - 1) / PROBE_THREADS, PROBE_THREADS, 0, stream>>>(
        x, partial, count);
    return cudaGetLastError();
}

cudaError_t probe_reverse(cudaStream_t stream, float *x, uint32_t blocks, uint32_t threads)
{
    probe_k_reverse<<<blocks, threads, threads * sizeof(float), stream>>>(x);
    return cudaGetLastError();
}

cudaError_t probe_divergent(cudaStream_t stream, float *x)
{
    probe_k_divergent<<<1, PROBE_THREADS, 0, stream>>>(x);
    return cudaGetLastError();
}

cudaError_t probe_beyond(cudaStream_t stream, float *x, uint32_t count)
{
    probe_k_beyond<<<1, 1, 0, stream>>>(x, count);
    return cudaGetLastError();
}
