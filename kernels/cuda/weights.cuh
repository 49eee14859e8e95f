/* weights: from the weights to x and back. blockIdx.y is the matrix, and a thread owns every
 * (gridDim.x * FIRE_K_THREADS)-th element of it. */
#ifndef FIRE_CUDA_WEIGHTS_CUH
#define FIRE_CUDA_WEIGHTS_CUH

#include "common.cuh"

/* A fresh row of state from the partial sums of squares: the norm, and x = w / (norm + eps). A
 * matrix of zeros has FACTOR 0 and rests. One thread a matrix. */
extern "C" __global__ void fire_k_begin(const double *partial, double *state, uint32_t count,
                                        double eps, uint32_t matrices)
{
    const uint32_t matrix = blockIdx.x * FIRE_K_THREADS + threadIdx.x;
    double *row = state + (size_t)matrix * FIRE_K_FIELDS;
    double norm;

    if (matrix >= matrices)
        return;
    norm = sqrt(ordered_sum(partial + (size_t)matrix * count, count));
    for (int i = 0; i < FIRE_K_FIELDS; i++)
        row[i] = 0;
    row[FIRE_K_NORM] = norm;
    row[FIRE_K_FACTOR] = norm > 0 ? 1 / (norm + eps) : 0.0;
    row[FIRE_K_ROOT] = 1;
    row[FIRE_K_GAIN] = 1;
    row[FIRE_K_ACTIVE] = norm > 0 ? 1.0 : 0.0;
}

/* x = w FACTOR */
extern "C" __global__ void fire_k_load(const float *w, float *x, const double *state,
                                       uint32_t elements)
{
    const double factor = state[(size_t)blockIdx.y * FIRE_K_FIELDS + FIRE_K_FACTOR];
    const size_t base = (size_t)blockIdx.y * elements;

    for (uint32_t i = blockIdx.x * FIRE_K_THREADS + threadIdx.x; i < elements;
         i += gridDim.x * FIRE_K_THREADS)
        x[base + i] = (float)((double)w[base + i] * factor);
}

/* The scale c, of mode enum fire_k_scale; `size` is r. INNER is known when the mean of the
 * singular values is wanted. One thread a matrix. */
extern "C" __global__ void fire_k_scale(double *state, int mode, double factor, uint32_t size,
                                        uint32_t matrices)
{
    const uint32_t matrix = blockIdx.x * FIRE_K_THREADS + threadIdx.x;
    double *row = state + (size_t)matrix * FIRE_K_FIELDS;
    double scale = factor;

    if (matrix >= matrices)
        return;
    if (mode == FIRE_K_SCALE_KEEP_NORM)
        scale *= row[FIRE_K_NORM] / sqrt((double)size);
    if (mode == FIRE_K_SCALE_MEAN_SIGMA)
        scale *= row[FIRE_K_INNER] * row[FIRE_K_ROOT] / (double)size;
    row[FIRE_K_SCALE] = scale;
    row[FIRE_K_WRITTEN] = scale;
}

/* out = blend c x ROOT + (1 - blend) w, rounded; partial[matrix][block] = sum of (out - w)^2. */
extern "C" __global__ void fire_k_output(const float *x, const float *w, float *out,
                                         const double *state, double *partial, uint32_t elements,
                                         double blend, int output)
{
    __shared__ double room[FIRE_K_THREADS];
    const double *row = state + (size_t)blockIdx.y * FIRE_K_FIELDS;
    const double factor = blend * (row[FIRE_K_SCALE] * row[FIRE_K_ROOT]), rest = 1 - blend;
    const size_t base = (size_t)blockIdx.y * elements;
    double sum = 0;

    for (uint32_t i = blockIdx.x * FIRE_K_THREADS + threadIdx.x; i < elements;
         i += gridDim.x * FIRE_K_THREADS) {
        const double old = (double)w[base + i];
        const float value =
            round_output(fma(factor, (double)x[base + i], rest != 0 ? rest * old : 0.0), output);
        const double moved = (double)value - old;

        out[base + i] = value;
        sum = fma(moved, moved, sum);
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/* Before what was written is measured: FACTOR becomes what brings it back to the size of Q, 1 / c,
 * or, with partial sums of its squares, 1 / its norm. One thread
 * a matrix. */
extern "C" __global__ void fire_k_reload(const double *partial, double *state, uint32_t count,
                                         uint32_t matrices)
{
    const uint32_t matrix = blockIdx.x * FIRE_K_THREADS + threadIdx.x;
    double *row = state + (size_t)matrix * FIRE_K_FIELDS;

    if (matrix >= matrices)
        return;
    if (count > 0)
        row[FIRE_K_WRITTEN] = sqrt(ordered_sum(partial + (size_t)matrix * count, count));
    row[FIRE_K_FACTOR] = row[FIRE_K_WRITTEN] != 0 ? 1 / row[FIRE_K_WRITTEN] : 0.0;
    row[FIRE_K_ROOT] = 1;
    row[FIRE_K_GAIN] = 1;
}

#endif
