/* reduce: sums over matrices. A block adds up rows or elements in a stride of the grid, and leaves
 * one partial sum; whoever needs the total adds those up in order. blockIdx.y is the matrix. */
#ifndef FIRE_CUDA_REDUCE_CUH
#define FIRE_CUDA_REDUCE_CUH

#include "common.cuh"

/* partial[matrix][block] = sum of w^2 over its elements. A thread owns every
 * (gridDim.x * FIRE_K_THREADS)-th element. */
extern "C" __global__ void fire_k_measure(const float *w, double *partial, uint32_t elements)
{
    __shared__ double room[FIRE_K_THREADS];
    const float *matrix = w + (size_t)blockIdx.y * elements;
    double sum = 0;

    for (uint32_t i = blockIdx.x * FIRE_K_THREADS + threadIdx.x; i < elements;
         i += gridDim.x * FIRE_K_THREADS) {
        const double value = (double)matrix[i];

        sum = fma(value, value, sum);
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/* partial[matrix][block] = sum of x w over its elements. */
extern "C" __global__ void fire_k_inner(const float *x, const float *w, double *partial,
                                        uint32_t elements)
{
    __shared__ double room[FIRE_K_THREADS];
    const size_t base = (size_t)blockIdx.y * elements;
    double sum = 0;

    for (uint32_t i = blockIdx.x * FIRE_K_THREADS + threadIdx.x; i < elements;
         i += gridDim.x * FIRE_K_THREADS)
        sum = fma((double)x[base + i], (double)w[base + i], sum);
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/* partial[matrix][block] = sum of g_ij^2 over j < i. A block owns every gridDim.x-th row. */
extern "C" __global__ void fire_k_below(const float *g, double *partial, uint32_t size)
{
    __shared__ double room[FIRE_K_THREADS];
    const float *matrix = g + (size_t)blockIdx.y * size * size;
    double sum = 0;

    for (uint32_t row = blockIdx.x; row < size; row += gridDim.x) {
        for (uint32_t col = threadIdx.x; col < row; col += FIRE_K_THREADS) {
            const double value = (double)matrix[(size_t)row * size + col];

            sum = fma(value, value, sum);
        }
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/* partial[matrix][block] = sum of 2 (h_ij - h_ji)^2 over j < i. */
extern "C" __global__ void fire_k_skew(const float *h, double *partial, uint32_t size)
{
    __shared__ double room[FIRE_K_THREADS];
    const float *matrix = h + (size_t)blockIdx.y * size * size;
    double sum = 0;

    for (uint32_t row = blockIdx.x; row < size; row += gridDim.x) {
        for (uint32_t col = threadIdx.x; col < row; col += FIRE_K_THREADS) {
            const double d =
                (double)matrix[(size_t)row * size + col] - (double)matrix[(size_t)col * size + row];

            sum = fma(2 * d, d, sum);
        }
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/* state[matrix][field] = the sum of its `count` partial sums. One thread a matrix. */
extern "C" __global__ void fire_k_total(const double *partial, double *state, uint32_t count,
                                        uint32_t field, uint32_t matrices)
{
    const uint32_t matrix = blockIdx.x * FIRE_K_THREADS + threadIdx.x;

    if (matrix < matrices)
        state[(size_t)matrix * FIRE_K_FIELDS + field] =
            ordered_sum(partial + (size_t)matrix * count, count);
}

/* Sum of (t g_ii - 1)^2 over the diagonal. */
static __device__ __forceinline__ double diagonal_distance(const float *g, uint32_t size,
                                                           uint32_t stride, double t, double *room)
{
    double sum = 0;

    for (uint32_t i = threadIdx.x; i < size; i += FIRE_K_THREADS) {
        const double d = fma(t, (double)g[(size_t)i * stride + i], -1.0);

        sum = fma(d, d, sum);
    }
    return block_sum(sum, room);
}

/* What a Gram matrix says: of factor * g, where the squares below its diagonal add up to `below`.
 * Written to row[dfi], row[dfi + 1] … in the order of enum fire_k_field. */
static __device__ __forceinline__ void write_moment(const float *g, uint32_t size, uint32_t stride,
                                                    double factor, double below, double *row,
                                                    int dfi, double *room)
{
    double trace = 0, squares = 0, distance, t, t_distance;

    for (uint32_t i = threadIdx.x; i < size; i += FIRE_K_THREADS) {
        const double d = (double)g[(size_t)i * stride + i];

        trace += d;
        squares = fma(d, d, squares);
    }
    trace = block_sum(trace, room);
    squares = fma(2.0, below, block_sum(squares, room));
    distance = diagonal_distance(g, size, stride, factor, room);
    distance = fma(2 * factor * factor, below, distance);
    t = squares > 0 ? trace / squares : 0;
    t_distance = diagonal_distance(g, size, stride, t, room);
    t_distance = fma(2 * t * t, below, t_distance);
    if (threadIdx.x != 0)
        return;
    row[dfi] = distance;
    row[dfi + 1] = t_distance;
    row[dfi + 2] = sqrt(factor) * sqrt(trace);
    row[dfi + 3] = t * trace;
}

/* Looks at G of one matrix a block. With `advance`, a step has been taken since the last look:
 * what is meant is x itself, and an active matrix has one step more. The DfI of what is meant goes
 * to the state; with `look`, a matrix whose DfI + full is at most `target` rests from now on.
 * `where` asks for a moment: before, of g / FACTOR^2; after, of g GAIN WRITTEN^2. */
extern "C" __global__ void fire_k_look(const float *g, const double *partial, double *state,
                                       uint32_t size, uint32_t count, int advance, int look,
                                       double full, double target, int where)
{
    __shared__ double room[FIRE_K_THREADS];
    const float *matrix = g + (size_t)blockIdx.x * size * size;
    double *row = state + (size_t)blockIdx.x * FIRE_K_FIELDS;
    const double below = ordered_sum(partial + (size_t)blockIdx.x * count, count);
    const double active = row[FIRE_K_ACTIVE], steps = row[FIRE_K_STEPS];
    const double gain = advance ? 1.0 : row[FIRE_K_GAIN];
    const double written = row[FIRE_K_WRITTEN], factor = row[FIRE_K_FACTOR];
    uint32_t taken = (uint32_t)steps;
    double dfi;

    dfi = diagonal_distance(matrix, size, size, gain, room);
    dfi = fma(2 * gain * gain, below, dfi);
    if (where == FIRE_K_MOMENT_BEFORE)
        write_moment(matrix, size, size, factor > 0 ? 1 / (factor * factor) : 0, below, row,
                     FIRE_K_BEFORE_DFI, room);
    if (where == FIRE_K_MOMENT_AFTER || where == FIRE_K_MOMENT_WRITTEN)
        write_moment(matrix, size, size, gain * written * written, below, row, FIRE_K_AFTER_DFI,
                     room);
    __syncthreads(); /* everybody has read the row */
    if (threadIdx.x != 0)
        return;
    if (advance) {
        row[FIRE_K_GAIN] = 1;
        row[FIRE_K_ROOT] = 1;
        if (active != 0)
            row[FIRE_K_STEPS] = steps + 1;
    }
    /* A matrix that rests is not looked at: its DfI is that of its last step. */
    if ((active != 0 && where != FIRE_K_MOMENT_WRITTEN) || where == FIRE_K_MOMENT_AFTER)
        row[FIRE_K_DFI] = dfi;
    if (advance && active != 0)
        taken++;
    if (active != 0 && where < FIRE_K_MOMENT_AFTER && taken < FIRE_K_HISTORY_MAX)
        row[FIRE_K_HISTORY + taken] = dfi;
    if (look && dfi + full <= target)
        row[FIRE_K_ACTIVE] = 0;
}

/* The gain of a normalisation that needed products: of G^2, whose squares below the diagonal are
 * in `partial`, or of the largest eigenvalue. The bound is widened by a factor, for rounding. */
extern "C" __global__ void fire_k_gain(const float *square, const double *partial, double *state,
                                       uint32_t size, uint32_t count, int mode, double eps,
                                       double widen)
{
    __shared__ double room[FIRE_K_THREADS];
    double *row = state + (size_t)blockIdx.x * FIRE_K_FIELDS;
    const double factor = row[FIRE_K_FACTOR], largest = row[FIRE_K_LARGEST];
    double norm;

    if (mode == FIRE_K_GAIN_SCHATTEN) {
        const float *matrix = square + (size_t)blockIdx.x * size * size;
        double sum = 0;

        for (uint32_t i = threadIdx.x; i < size; i += FIRE_K_THREADS) {
            const double d = (double)matrix[(size_t)i * size + i];

            sum = fma(d, d, sum);
        }
        sum = block_sum(sum, room);
        sum = fma(2.0, ordered_sum(partial + (size_t)blockIdx.x * count, count), sum);
        norm = sqrt(sqrt(sqrt(sum)));
    } else {
        norm = sqrt(largest);
    }
    __syncthreads(); /* everybody has read the row */
    if (threadIdx.x != 0)
        return;
    norm = fma(norm, widen, eps * factor);
    row[FIRE_K_ROOT] = norm > 0 ? 1 / norm : 1;
    row[FIRE_K_GAIN] = norm > 0 ? 1 / norm * (1 / norm) : 1;
}

#endif
