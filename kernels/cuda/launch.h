/* launch: the kernels as C functions that queue them on a stream. Each returns what the launch
 * said. What a kernel does and what its arguments mean stands with the kernel, in the .cuh files.
 *
 * `blocks` is how many partial sums a matrix gets: at most FIRE_K_BLOCKS_MAX. */
#ifndef FIRE_CUDA_LAUNCH_H
#define FIRE_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Once for each device, after cudaSetDevice(): lets the fused kernel use its shared memory. */
cudaError_t fire_launch_prepare(void);

cudaError_t fire_launch_measure(cudaStream_t stream, const float *w, double *partial,
                                uint32_t elements, uint32_t blocks, uint32_t matrices);
cudaError_t fire_launch_inner(cudaStream_t stream, const float *x, const float *w, double *partial,
                              uint32_t elements, uint32_t blocks, uint32_t matrices);
cudaError_t fire_launch_below(cudaStream_t stream, const float *g, double *partial, uint32_t size,
                              uint32_t blocks, uint32_t matrices);
cudaError_t fire_launch_skew(cudaStream_t stream, const float *h, double *partial, uint32_t size,
                             uint32_t blocks, uint32_t matrices);
cudaError_t fire_launch_total(cudaStream_t stream, const double *partial, double *state,
                              uint32_t blocks, uint32_t field, uint32_t matrices);

/* The last five arguments of fire_k_look. */
struct fire_look {
    int advance;
    int look;
    double full;
    double target;
    int where;
};
cudaError_t fire_launch_look(cudaStream_t stream, const float *g, const double *partial,
                             double *state, uint32_t size, uint32_t blocks, uint32_t matrices,
                             const struct fire_look *look);
cudaError_t fire_launch_gain(cudaStream_t stream, const float *square, const double *partial,
                             double *state, uint32_t size, uint32_t blocks, uint32_t matrices,
                             int mode, double eps, double widen);

/* The coefficients and flags of fire_k_combine. */
struct fire_combine {
    double alpha;
    double beta;
    double gamma;
    int gained;
    int last;
};
cudaError_t fire_launch_combine(cudaStream_t stream, const float *square, const float *g,
                                float *out, const double *state, uint32_t size, uint32_t matrices,
                                const struct fire_combine *combine);
cudaError_t fire_launch_split(cudaStream_t stream, const float *x, float *hi, float *lo,
                              size_t elements);

/* One batched product of blocks: operands, tables and steps of fire_k_table. */
struct fire_table {
    const float *a;
    const float *b;
    float *c;
    const float **a_table;
    const float **b_table;
    float **c_table;
    size_t a_stride, b_stride, a_step, b_step;
};
cudaError_t fire_launch_table(cudaStream_t stream, const struct fire_table *table, uint32_t size,
                              uint32_t matrices);

cudaError_t fire_launch_gather(cudaStream_t stream, const float *from, float *to,
                               const uint32_t *index, uint32_t elements, uint32_t none,
                               uint32_t matrices);
cudaError_t fire_launch_gather_state(cudaStream_t stream, const double *from, double *to,
                                     const uint32_t *index, uint32_t none, uint32_t matrices);

cudaError_t fire_launch_lanczos_begin(cudaStream_t stream, double *vectors, uint32_t size,
                                      uint32_t matrices);
cudaError_t fire_launch_lanczos_multiply(cudaStream_t stream, const float *g, double *vectors,
                                         uint32_t size, uint32_t k, uint32_t matrices);
cudaError_t fire_launch_lanczos_step(cudaStream_t stream, double *vectors, double *pairs,
                                     uint32_t size, uint32_t k, uint32_t matrices);
cudaError_t fire_launch_lanczos_end(cudaStream_t stream, const double *pairs, double *state,
                                    uint32_t steps, int where, uint32_t matrices);

cudaError_t fire_launch_begin(cudaStream_t stream, const double *partial, double *state,
                              uint32_t blocks, double eps, uint32_t matrices);
cudaError_t fire_launch_load(cudaStream_t stream, const float *w, float *x, const double *state,
                             uint32_t elements, uint32_t matrices);
cudaError_t fire_launch_scale(cudaStream_t stream, double *state, int mode, double factor,
                              uint32_t size, uint32_t matrices);
cudaError_t fire_launch_output(cudaStream_t stream, const float *x, const float *w, float *out,
                               const double *state, double *partial, uint32_t elements,
                               double blend, int output, uint32_t blocks, uint32_t matrices);
/* blocks 0: FACTOR becomes 1 / c. */
cudaError_t fire_launch_reload(cudaStream_t stream, const double *partial, double *state,
                               uint32_t blocks, uint32_t matrices);

/* Shared memory that the fused kernel takes for such a matrix. */
static inline size_t fire_fused_bytes(uint32_t rows, uint32_t cols)
{
    return ((size_t)rows + 2 * (size_t)cols) * (cols | 1u) * sizeof(float);
}
cudaError_t fire_launch_fused(cudaStream_t stream, const float *w, float *out, double *state,
                              const double *program, uint32_t rows, uint32_t cols,
                              uint32_t matrices);

#ifdef __cplusplus
}
#endif

#endif
