/* probe_launch: the kernels of probe_kernels.cuh as C functions. */
#ifndef PROBE_LAUNCH_H
#define PROBE_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t probe_scale(cudaStream_t stream, float *x, float factor, uint32_t count);
cudaError_t probe_sum(cudaStream_t stream, const float *x, float *partial, uint32_t count);
cudaError_t probe_reverse(cudaStream_t stream, float *x, uint32_t blocks, uint32_t threads);
cudaError_t probe_divergent(cudaStream_t stream, float *x);
cudaError_t probe_beyond(cudaStream_t stream, float *x, uint32_t count);

#ifdef __cplusplus
}
#endif

#endif
