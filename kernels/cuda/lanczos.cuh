/* lanczos: the largest eigenvalue of a symmetric matrix from some products with vectors. Without
 * reorthogonalisation: it repeats eigenvalues, but the largest one is right.
 *
 * A matrix has three vectors of `size` doubles, used in turn, and a row of FIRE_K_LANCZOS_MAX
 * alphas followed by as many betas. */
#ifndef FIRE_CUDA_LANCZOS_CUH
#define FIRE_CUDA_LANCZOS_CUH

#include "common.cuh"

/* A fixed number in (-1, 1) for each index. */
static __device__ __forceinline__ double start_value(uint32_t index)
{
    uint32_t bits = index * 2654435769u + 0x46495245u;

    bits ^= bits >> 16;
    bits *= 0x85ebca6bu;
    bits ^= bits >> 13;
    bits *= 0xc2b2ae35u;
    bits ^= bits >> 16;
    return ((double)bits + 0.5) / 2147483648.0 - 1.0;
}

/* Vector 0 is a fixed unit vector, vector 1 is 0. One block a matrix. */
extern "C" __global__ void fire_k_lanczos_begin(double *vectors, uint32_t size)
{
    __shared__ double room[FIRE_K_THREADS];
    double *v = vectors + (size_t)blockIdx.x * 3 * size;
    double sum = 0, length;

    for (uint32_t i = threadIdx.x; i < size; i += FIRE_K_THREADS)
        sum = fma(start_value(i), start_value(i), sum);
    length = sqrt(block_sum(sum, room));
    for (uint32_t i = threadIdx.x; i < size; i += FIRE_K_THREADS) {
        v[i] = start_value(i) / length;
        v[(size_t)size + i] = 0;
    }
}

/* Vector (k + 1) % 3 += g vector k % 3, for matrix blockIdx.y. A block owns eight rows, 32 threads
 * each. */
extern "C" __global__ void fire_k_lanczos_multiply(const float *g, double *vectors, uint32_t size,
                                                   uint32_t k)
{
    __shared__ double room[8][33];
    const uint32_t lane = threadIdx.x % 32, line = threadIdx.x / 32;
    const uint32_t row = blockIdx.x * 8 + line;
    const float *matrix = g + (size_t)blockIdx.y * size * size;
    const double *v = vectors + ((size_t)blockIdx.y * 3 + k % 3) * size;
    double *w = vectors + ((size_t)blockIdx.y * 3 + (k + 1) % 3) * size;
    double sum = 0;

    if (row < size) {
        for (uint32_t col = lane; col < size; col += 32)
            sum = fma((double)matrix[(size_t)row * size + col], v[col], sum);
    }
    room[line][lane] = sum;
    __syncthreads();
    if (lane != 0 || row >= size)
        return;
    sum = 0;
    for (uint32_t i = 0; i < 32; i++)
        sum += room[line][i];
    w[row] += sum;
}

/* After the product of step k: alpha and beta, and vector (k + 1) % 3 made orthogonal to vector
 * k % 3 and of length 1. Vector (k + 2) % 3 becomes -beta times vector k % 3: what the next product
 * is added to. One block a matrix. */
extern "C" __global__ void fire_k_lanczos_step(double *vectors, double *pairs, uint32_t size,
                                               uint32_t k)
{
    __shared__ double room[FIRE_K_THREADS];
    const double *v = vectors + ((size_t)blockIdx.x * 3 + k % 3) * size;
    double *w = vectors + ((size_t)blockIdx.x * 3 + (k + 1) % 3) * size;
    double *next = vectors + ((size_t)blockIdx.x * 3 + (k + 2) % 3) * size;
    double *pair = pairs + (size_t)blockIdx.x * 2 * FIRE_K_LANCZOS_MAX;
    double sum = 0, alpha, beta;

    for (uint32_t i = threadIdx.x; i < size; i += FIRE_K_THREADS)
        sum = fma(v[i], w[i], sum);
    alpha = block_sum(sum, room);
    sum = 0;
    for (uint32_t i = threadIdx.x; i < size; i += FIRE_K_THREADS) {
        const double value = fma(-alpha, v[i], w[i]);

        w[i] = value;
        sum = fma(value, value, sum);
    }
    beta = sqrt(block_sum(sum, room));
    /* What is left is rounding: the space is exhausted. */
    if (!(beta > 1e-14 * fabs(alpha)))
        beta = 0;
    for (uint32_t i = threadIdx.x; i < size; i += FIRE_K_THREADS) {
        w[i] = beta > 0 ? w[i] / beta : 0.0;
        next[i] = -beta * v[i];
    }
    if (threadIdx.x == 0) {
        pair[k] = alpha;
        pair[FIRE_K_LANCZOS_MAX + k] = beta;
    }
}

/* Whether x lies above all eigenvalues of the tridiagonal matrix. */
static __device__ __forceinline__ bool above_all(const double *pair, uint32_t steps, double x)
{
    double pivot = x - pair[0];

    for (uint32_t i = 1; i < steps && pivot > 0; i++) {
        const double beta = pair[FIRE_K_LANCZOS_MAX + i - 1];

        pivot = x - pair[i] - beta * beta / pivot;
    }
    return pivot > 0;
}

/* The largest eigenvalue of the tridiagonal matrix, by halving: within 2^-50 of it. */
static __device__ __forceinline__ double largest_of(const double *pair, uint32_t steps)
{
    double low = pair[0], high = pair[0];

    for (uint32_t i = 0; i < steps; i++) {
        const double left = i > 0 ? pair[FIRE_K_LANCZOS_MAX + i - 1] : 0.0;
        const double right = i + 1 < steps ? pair[FIRE_K_LANCZOS_MAX + i] : 0.0;
        const double bound = pair[i] + left + right;

        low = pair[i] > low ? pair[i] : low;
        high = bound > high ? bound : high;
    }
    for (int i = 0; i < 50; i++) {
        const double middle = 0.5 * (low + high);

        if (above_all(pair, steps, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* state[matrix][LARGEST], and factored into the moment asked for: before, over FACTOR^2; after,
 * times GAIN WRITTEN^2. One thread a matrix. */
extern "C" __global__ void fire_k_lanczos_end(const double *pairs, double *state, uint32_t steps,
                                              int where, uint32_t matrices)
{
    const uint32_t matrix = blockIdx.x * FIRE_K_THREADS + threadIdx.x;
    double *row = state + (size_t)matrix * FIRE_K_FIELDS;
    double largest;

    if (matrix >= matrices)
        return;
    largest = largest_of(pairs + (size_t)matrix * 2 * FIRE_K_LANCZOS_MAX, steps);
    row[FIRE_K_LARGEST] = largest;
    if (where == FIRE_K_MOMENT_BEFORE)
        row[FIRE_K_BEFORE_LARGEST] =
            row[FIRE_K_FACTOR] > 0 ? largest / (row[FIRE_K_FACTOR] * row[FIRE_K_FACTOR]) : 0.0;
    if (where == FIRE_K_MOMENT_AFTER || where == FIRE_K_MOMENT_WRITTEN)
        row[FIRE_K_AFTER_LARGEST] =
            largest * row[FIRE_K_GAIN] * row[FIRE_K_WRITTEN] * row[FIRE_K_WRITTEN];
}

#endif
