/* gram: elementwise work on r x r matrices, and what prepares products. */
#ifndef FIRE_CUDA_GRAM_CUH
#define FIRE_CUDA_GRAM_CUH

#include "common.cuh"

#define FIRE_K_TILE 32

/* out = alpha square + beta g + gamma I, of matrix blockIdx.y, read below the diagonal and written
 * on both sides of it. `square` NULL counts as 0, and may be `out`; so may g. With `gained`, g
 * stands for g GAIN and square, if `gained` is 2, for square GAIN^2. With `last`, out is what x is
 * multiplied by: it takes in ROOT, and is I for a matrix that rests. A block owns the tile in row i
 * and column j <= i of tiles, numbered along the rows, and its mirror image; a thread four elements
 * of a column of it. */
extern "C" __global__ void fire_k_combine(const float *square, const float *g, float *out,
                                          const double *state, uint32_t size, double alpha,
                                          double beta, double gamma, int gained, int last)
{
    __shared__ float tile[FIRE_K_TILE][FIRE_K_TILE + 1];
    const double *row = state + (size_t)blockIdx.y * FIRE_K_FIELDS;
    const size_t base = (size_t)blockIdx.y * size * size;
    const double gain = gained ? row[FIRE_K_GAIN] : 1.0;
    const double root = last ? row[FIRE_K_ROOT] : 1.0;
    const bool rests = last && row[FIRE_K_ACTIVE] == 0;
    const float a = (float)(alpha * (gained == 2 ? gain * gain : 1.0) * root);
    const float b = (float)(beta * gain * root), c = (float)(gamma * root);
    const uint32_t lane = threadIdx.x % FIRE_K_TILE, first = threadIdx.x / FIRE_K_TILE;
    uint32_t tile_row = 0, tile_col = blockIdx.x;

    while (tile_col > tile_row) {
        tile_col -= tile_row + 1;
        tile_row++;
    }
    for (uint32_t k = first; k < FIRE_K_TILE; k += FIRE_K_THREADS / FIRE_K_TILE) {
        const uint32_t i = tile_row * FIRE_K_TILE + k, j = tile_col * FIRE_K_TILE + lane;
        float value = 0;

        if (i < size && j <= i) {
            const size_t at = base + (size_t)i * size + j;

            value = i == j ? c : 0.0f;
            if (rests) {
                value = i == j ? 1.0f : 0.0f;
            } else {
                value = fmaf(b, g[at], value);
                if (square)
                    value = fmaf(a, square[at], value);
            }
        }
        tile[k][lane] = value;
    }
    __syncthreads();
    for (uint32_t k = first; k < FIRE_K_TILE; k += FIRE_K_THREADS / FIRE_K_TILE) {
        const uint32_t i = tile_row * FIRE_K_TILE + k, j = tile_col * FIRE_K_TILE + lane;
        const uint32_t mirror_i = tile_col * FIRE_K_TILE + k;
        const uint32_t mirror_j = tile_row * FIRE_K_TILE + lane;

        if (i < size && j <= i)
            out[base + (size_t)i * size + j] = tile[k][lane];
        if (mirror_i < mirror_j && mirror_j < size)
            out[base + (size_t)mirror_i * size + mirror_j] = tile[lane][k];
    }
}

/* hi + lo = x, both with the eleven bits of TF32. A thread owns every
 * (gridDim.x * FIRE_K_THREADS)-th element. */
extern "C" __global__ void fire_k_split(const float *x, float *hi, float *lo, size_t elements)
{
    for (size_t i = (size_t)blockIdx.x * FIRE_K_THREADS + threadIdx.x; i < elements;
         i += (size_t)gridDim.x * FIRE_K_THREADS) {
        const float value = x[i];
        const uint32_t bits = float_bits(value);
        const float high = bits_float((bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u);

        hi[i] = high;
        lo[i] = value - high;
    }
}

/* The operands of all blocks on and above the diagonal (as cuBLAS sees it: columns first) of the
 * products of `matrices` matrices, as cublasGemmBatchedEx() wants them: block (i, j) of matrix m is
 * a[m] + i a_step times b[m] + j b_step. A thread owns one block. */
extern "C" __global__ void fire_k_table(const float *a, const float *b, float *c,
                                        const float **a_table, const float **b_table,
                                        float **c_table, size_t a_stride, size_t b_stride,
                                        size_t a_step, size_t b_step, uint32_t size,
                                        uint32_t matrices)
{
    const uint32_t blocks = FIRE_K_TABLE_BLOCKS * (FIRE_K_TABLE_BLOCKS + 1) / 2;
    const uint32_t index = blockIdx.x * FIRE_K_THREADS + threadIdx.x;
    const uint32_t matrix = index / blocks;
    const size_t side = size / FIRE_K_TABLE_BLOCKS;
    uint32_t i = index % blocks, j = 0;

    if (matrix >= matrices)
        return;
    while (i > j) {
        i -= j + 1;
        j++;
    }
    a_table[index] = a + matrix * a_stride + i * a_step;
    b_table[index] = b + matrix * b_stride + j * b_step;
    c_table[index] = c + (size_t)matrix * size * size + i * side + j * side * size;
}

/* to[k] = from[index[k]], matrices of `elements`, and their rows of state. A thread owns every
 * (gridDim.x * FIRE_K_THREADS)-th element of matrix blockIdx.y; index beyond: zeros. */
extern "C" __global__ void fire_k_gather(const float *from, float *to, const uint32_t *index,
                                         uint32_t elements, uint32_t none)
{
    const uint32_t source = index[blockIdx.y];
    const size_t base = (size_t)source * elements;
    const size_t target = (size_t)blockIdx.y * elements;

    for (uint32_t i = blockIdx.x * FIRE_K_THREADS + threadIdx.x; i < elements;
         i += gridDim.x * FIRE_K_THREADS)
        to[target + i] = source == none ? 0.0f : from[base + i];
}

/* The rows of state that go with them, active again; a thread owns a field. */
extern "C" __global__ void fire_k_gather_state(const double *from, double *to,
                                               const uint32_t *index, uint32_t none)
{
    const uint32_t source = index[blockIdx.x];

    if (threadIdx.x >= FIRE_K_FIELDS)
        return;
    to[(size_t)blockIdx.x * FIRE_K_FIELDS + threadIdx.x] =
        threadIdx.x == FIRE_K_ACTIVE
            ? 1.0
            : (source == none ? 0.0 : from[(size_t)source * FIRE_K_FIELDS + threadIdx.x]);
}

#endif
