/* launch: grids for the kernels, nothing else. */
#include "launch.h"

#include "kernels.cuh"

/* Blocks that share the elements of one matrix. */
static unsigned element_blocks(size_t elements)
{
    const size_t blocks = (elements + 4 * FIRE_K_THREADS - 1) / (4 * FIRE_K_THREADS);

    return (unsigned)(blocks < 1024 ? blocks : 1024);
}

static unsigned thread_blocks(uint32_t threads)
{
    return (threads + FIRE_K_THREADS - 1) / FIRE_K_THREADS;
}

cudaError_t fire_launch_prepare(void)
{
    return cudaFuncSetAttribute((const void *)fire_k_fused,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, FIRE_K_FUSED_BYTES);
}

cudaError_t fire_launch_measure(cudaStream_t stream, const float *w, double *partial,
                                uint32_t elements, uint32_t blocks, uint32_t matrices)
{
    fire_k_measure<<<dim3(blocks, matrices), FIRE_K_THREADS, 0, stream>>>(w, partial, elements);
    return cudaGetLastError();
}

cudaError_t fire_launch_inner(cudaStream_t stream, const float *x, const float *w, double *partial,
                              uint32_t elements, uint32_t blocks, uint32_t matrices)
{
    fire_k_inner<<<dim3(blocks, matrices), FIRE_K_THREADS, 0, stream>>>(x, w, partial, elements);
    return cudaGetLastError();
}

cudaError_t fire_launch_below(cudaStream_t stream, const float *g, double *partial, uint32_t size,
                              uint32_t blocks, uint32_t matrices)
{
    fire_k_below<<<dim3(blocks, matrices), FIRE_K_THREADS, 0, stream>>>(g, partial, size);
    return cudaGetLastError();
}

cudaError_t fire_launch_skew(cudaStream_t stream, const float *h, double *partial, uint32_t size,
                             uint32_t blocks, uint32_t matrices)
{
    fire_k_skew<<<dim3(blocks, matrices), FIRE_K_THREADS, 0, stream>>>(h, partial, size);
    return cudaGetLastError();
}

cudaError_t fire_launch_total(cudaStream_t stream, const double *partial, double *state,
                              uint32_t blocks, uint32_t field, uint32_t matrices)
{
    fire_k_total<<<thread_blocks(matrices), FIRE_K_THREADS, 0, stream>>>(partial, state, blocks,
                                                                         field, matrices);
    return cudaGetLastError();
}

cudaError_t fire_launch_look(cudaStream_t stream, const float *g, const double *partial,
                             double *state, uint32_t size, uint32_t blocks, uint32_t matrices,
                             const struct fire_look *look)
{
    fire_k_look<<<matrices, FIRE_K_THREADS, 0, stream>>>(g, partial, state, size, blocks,
                                                         look->advance, look->look, look->full,
                                                         look->target, look->where);
    return cudaGetLastError();
}

cudaError_t fire_launch_gain(cudaStream_t stream, const float *square, const double *partial,
                             double *state, uint32_t size, uint32_t blocks, uint32_t matrices,
                             int mode, double eps, double widen)
{
    fire_k_gain<<<matrices, FIRE_K_THREADS, 0, stream>>>(square, partial, state, size, blocks, mode,
                                                         eps, widen);
    return cudaGetLastError();
}

cudaError_t fire_launch_combine(cudaStream_t stream, const float *square, const float *g,
                                float *out, const double *state, uint32_t size, uint32_t matrices,
                                const struct fire_combine *combine)
{
    const unsigned tiles = (size + FIRE_K_TILE - 1) / FIRE_K_TILE;

    fire_k_combine<<<dim3(tiles * (tiles + 1) / 2, matrices), FIRE_K_THREADS, 0, stream>>>(
        square, g, out, state, size, combine->alpha, combine->beta, combine->gamma, combine->gained,
        combine->last);
    return cudaGetLastError();
}

cudaError_t fire_launch_split(cudaStream_t stream, const float *x, float *hi, float *lo,
                              size_t elements)
{
    fire_k_split<<<element_blocks(elements), FIRE_K_THREADS, 0, stream>>>(x, hi, lo, elements);
    return cudaGetLastError();
}

cudaError_t fire_launch_table(cudaStream_t stream, const struct fire_table *table, uint32_t size,
                              uint32_t matrices)
{
    const uint32_t blocks = matrices * FIRE_K_TABLE_BLOCKS * (FIRE_K_TABLE_BLOCKS + 1) / 2;

    fire_k_table<<<thread_blocks(blocks), FIRE_K_THREADS, 0, stream>>>(
        table->a, table->b, table->c, table->a_table, table->b_table, table->c_table,
        table->a_stride, table->b_stride, table->a_step, table->b_step, size, matrices);
    return cudaGetLastError();
}

cudaError_t fire_launch_gather(cudaStream_t stream, const float *from, float *to,
                               const uint32_t *index, uint32_t elements, uint32_t none,
                               uint32_t matrices)
{
    fire_k_gather<<<dim3(element_blocks(elements), matrices), FIRE_K_THREADS, 0, stream>>>(
        from, to, index, elements, none);
    return cudaGetLastError();
}

cudaError_t fire_launch_gather_state(cudaStream_t stream, const double *from, double *to,
                                     const uint32_t *index, uint32_t none, uint32_t matrices)
{
    fire_k_gather_state<<<matrices, 64, 0, stream>>>(from, to, index, none);
    return cudaGetLastError();
}

cudaError_t fire_launch_lanczos_begin(cudaStream_t stream, double *vectors, uint32_t size,
                                      uint32_t matrices)
{
    fire_k_lanczos_begin<<<matrices, FIRE_K_THREADS, 0, stream>>>(vectors, size);
    return cudaGetLastError();
}

cudaError_t fire_launch_lanczos_multiply(cudaStream_t stream, const float *g, double *vectors,
                                         uint32_t size, uint32_t k, uint32_t matrices)
{
    fire_k_lanczos_multiply<<<dim3((size + 7) / 8, matrices), FIRE_K_THREADS, 0, stream>>>(
        g, vectors, size, k);
    return cudaGetLastError();
}

cudaError_t fire_launch_lanczos_step(cudaStream_t stream, double *vectors, double *pairs,
                                     uint32_t size, uint32_t k, uint32_t matrices)
{
    fire_k_lanczos_step<<<matrices, FIRE_K_THREADS, 0, stream>>>(vectors, pairs, size, k);
    return cudaGetLastError();
}

cudaError_t fire_launch_lanczos_end(cudaStream_t stream, const double *pairs, double *state,
                                    uint32_t steps, int where, uint32_t matrices)
{
    fire_k_lanczos_end<<<thread_blocks(matrices), FIRE_K_THREADS, 0, stream>>>(pairs, state, steps,
                                                                               where, matrices);
    return cudaGetLastError();
}

cudaError_t fire_launch_begin(cudaStream_t stream, const double *partial, double *state,
                              uint32_t blocks, double eps, uint32_t matrices)
{
    fire_k_begin<<<thread_blocks(matrices), FIRE_K_THREADS, 0, stream>>>(partial, state, blocks,
                                                                         eps, matrices);
    return cudaGetLastError();
}

cudaError_t fire_launch_load(cudaStream_t stream, const float *w, float *x, const double *state,
                             uint32_t elements, uint32_t matrices)
{
    fire_k_load<<<dim3(element_blocks(elements), matrices), FIRE_K_THREADS, 0, stream>>>(
        w, x, state, elements);
    return cudaGetLastError();
}

cudaError_t fire_launch_scale(cudaStream_t stream, double *state, int mode, double factor,
                              uint32_t size, uint32_t matrices)
{
    fire_k_scale<<<thread_blocks(matrices), FIRE_K_THREADS, 0, stream>>>(state, mode, factor, size,
                                                                         matrices);
    return cudaGetLastError();
}

cudaError_t fire_launch_output(cudaStream_t stream, const float *x, const float *w, float *out,
                               const double *state, double *partial, uint32_t elements,
                               double blend, int output, uint32_t blocks, uint32_t matrices)
{
    fire_k_output<<<dim3(blocks, matrices), FIRE_K_THREADS, 0, stream>>>(x, w, out, state, partial,
                                                                         elements, blend, output);
    return cudaGetLastError();
}

cudaError_t fire_launch_reload(cudaStream_t stream, const double *partial, double *state,
                               uint32_t blocks, uint32_t matrices)
{
    fire_k_reload<<<thread_blocks(matrices), FIRE_K_THREADS, 0, stream>>>(partial, state, blocks,
                                                                          matrices);
    return cudaGetLastError();
}

cudaError_t fire_launch_fused(cudaStream_t stream, const float *w, float *out, double *state,
                              const double *program, uint32_t rows, uint32_t cols,
                              uint32_t matrices)
{
    fire_k_fused<<<matrices, FIRE_K_THREADS, fire_fused_bytes(rows, cols), stream>>>(
        w, out, state, program, rows, cols);
    return cudaGetLastError();
}
