/* fused: one small matrix a block, from weights to weights and statistics, in shared memory.
 *
 * x, g and s live in shared memory with rows of `stride` floats. A thread owns a 4 x 4 tile of
 * every product, keeps it in registers until all have read what it is made of, and then writes it
 * where an operand was. Each element is one chain of multiply-adds in a fixed order, so g and s are
 * symmetric to the last bit. The state's row is written by thread 0 at the end. */
#ifndef FIRE_CUDA_FUSED_CUH
#define FIRE_CUDA_FUSED_CUH

#include "common.cuh"
#include "lanczos.cuh"
#include "reduce.cuh"

/* One matrix and its shared memory. */
struct fused {
    float *x;     /* rows x stride */
    float *g;     /* cols x stride */
    float *s;     /* cols x stride */
    double *room; /* FIRE_K_THREADS */
    double *vectors;
    double *pairs;
    uint32_t rows, cols, stride;
    double root, gain;
};

/* tile = columns of a, transposed, times columns of b: `depth` rows each. */
static __device__ __forceinline__ void fused_product(const struct fused *f, const float *a,
                                                     const float *b, uint32_t depth, float *tile)
{
    const uint32_t tiles = (f->cols + 3) / 4;
    const uint32_t i0 = threadIdx.x / tiles * 4, j0 = threadIdx.x % tiles * 4;
    const uint32_t last = f->cols - 1;

    for (int e = 0; e < 16; e++)
        tile[e] = 0;
    if (i0 > last)
        return;
    for (uint32_t k = 0; k < depth; k++) {
        const float *left = a + (size_t)k * f->stride, *right = b + (size_t)k * f->stride;
        float l[4], r[4];

        for (uint32_t e = 0; e < 4; e++) {
            l[e] = left[i0 + e < last ? i0 + e : last];
            r[e] = right[j0 + e < last ? j0 + e : last];
        }
        for (int i = 0; i < 4; i++) {
            for (int j = 0; j < 4; j++)
                tile[4 * i + j] = fmaf(l[i], r[j], tile[4 * i + j]);
        }
    }
}

/* out = alpha tile + beta g + gamma I; g NULL counts as 0. */
static __device__ __forceinline__ void fused_store(const struct fused *f, const float *tile,
                                                   const float *g, float *out, double alpha,
                                                   double beta, double gamma)
{
    const uint32_t tiles = (f->cols + 3) / 4;
    const uint32_t i0 = threadIdx.x / tiles * 4, j0 = threadIdx.x % tiles * 4;
    const float a = (float)alpha, b = (float)beta, c = (float)gamma;

    for (uint32_t e = 0; e < 16; e++) {
        const uint32_t i = i0 + e / 4, j = j0 + e % 4;

        if (i < f->cols && j < f->cols) {
            float value = i == j ? c : 0.0f;

            if (g)
                value = fmaf(b, g[i * f->stride + j], value);
            out[i * f->stride + j] = fmaf(a, tile[e], value);
        }
    }
}

/* g = x^T x */
static __device__ __forceinline__ void fused_gram(const struct fused *f)
{
    float tile[16];

    fused_product(f, f->x, f->x, f->rows, tile);
    __syncthreads();
    fused_store(f, tile, NULL, f->g, 1, 0, 0);
    __syncthreads();
}

/* x = x s, a band of rows at a time. */
static __device__ __forceinline__ void fused_apply(const struct fused *f)
{
    const uint32_t tiles = (f->cols + 3) / 4, last = f->cols - 1;
    const uint32_t band = FIRE_K_THREADS / tiles * 4;
    const uint32_t line = threadIdx.x / tiles * 4, j0 = threadIdx.x % tiles * 4;

    for (uint32_t first = 0; first < f->rows; first += band) {
        const uint32_t i0 = first + line;
        const bool owns = line < band && i0 < f->rows;
        float tile[16];

        for (int e = 0; e < 16; e++)
            tile[e] = 0;
        for (uint32_t k = 0; owns && k < f->cols; k++) {
            float l[4], r[4];

            for (uint32_t e = 0; e < 4; e++) {
                const uint32_t i = i0 + e < f->rows ? i0 + e : f->rows - 1;

                l[e] = f->x[(size_t)i * f->stride + k];
                r[e] = f->s[(size_t)k * f->stride + (j0 + e < last ? j0 + e : last)];
            }
            for (int i = 0; i < 4; i++) {
                for (int j = 0; j < 4; j++)
                    tile[4 * i + j] = fmaf(l[i], r[j], tile[4 * i + j]);
            }
        }
        __syncthreads();
        for (uint32_t e = 0; owns && e < 16; e++) {
            const uint32_t i = i0 + e / 4, j = j0 + e % 4;

            if (i < f->rows && j < f->cols)
                f->x[(size_t)i * f->stride + j] = tile[e];
        }
        __syncthreads();
    }
}

/* Sum of the squares of g below its diagonal. */
static __device__ __forceinline__ double fused_below(const struct fused *f)
{
    double sum = 0;

    for (uint32_t e = threadIdx.x; e < f->cols * f->cols; e += FIRE_K_THREADS) {
        const uint32_t i = e / f->cols, j = e % f->cols;
        const double value = (double)f->g[i * f->stride + j];

        if (j < i)
            sum = fma(value, value, sum);
    }
    return block_sum(sum, f->room);
}

static __device__ __forceinline__ double fused_dfi(const struct fused *f)
{
    const double below = fused_below(f);
    const double sum = diagonal_distance(f->g, f->cols, f->stride, f->gain, f->room);

    return fma(2 * f->gain * f->gain, below, sum);
}

/* ||g^2||_F^(1/4) */
static __device__ __forceinline__ double fused_schatten(const struct fused *f)
{
    const uint32_t tiles = (f->cols + 3) / 4;
    const uint32_t i0 = threadIdx.x / tiles * 4, j0 = threadIdx.x % tiles * 4;
    float tile[16];
    double sum = 0;

    fused_product(f, f->g, f->g, f->cols, tile);
    for (uint32_t e = 0; e < 16; e++) {
        if (i0 + e / 4 < f->cols && j0 + e % 4 < f->cols)
            sum = fma((double)tile[e], (double)tile[e], sum);
    }
    return sqrt(sqrt(sqrt(block_sum(sum, f->room))));
}

/* The largest eigenvalue of g. */
static __device__ __forceinline__ double fused_largest(const struct fused *f)
{
    const uint32_t steps = f->cols < FIRE_K_LANCZOS_MAX ? f->cols : FIRE_K_LANCZOS_MAX;
    const uint32_t row = threadIdx.x / 4, part = threadIdx.x % 4;
    double *v = f->vectors, *w = v + FIRE_K_FUSED_COLS, *old = w + FIRE_K_FUSED_COLS;
    double sum = 0, beta = 0, length, alpha;

    if (threadIdx.x < f->cols)
        sum = start_value(threadIdx.x) * start_value(threadIdx.x);
    length = sqrt(block_sum(sum, f->room));
    if (threadIdx.x < f->cols) {
        v[threadIdx.x] = start_value(threadIdx.x) / length;
        old[threadIdx.x] = 0;
    }
    __syncthreads();
    for (uint32_t k = 0; k < steps; k++) {
        double value = 0;

        sum = 0;
        for (uint32_t j = part; row < f->cols && j < f->cols; j += 4)
            sum = fma((double)f->g[row * f->stride + j], v[j], sum);
        f->room[threadIdx.x] = sum;
        __syncthreads();
        if (part == 0 && row < f->cols)
            w[row] = fma(-beta, old[row],
                         (f->room[threadIdx.x] + f->room[threadIdx.x + 1]) +
                             (f->room[threadIdx.x + 2] + f->room[threadIdx.x + 3]));
        __syncthreads();
        alpha = block_sum(threadIdx.x < f->cols ? v[threadIdx.x] * w[threadIdx.x] : 0.0, f->room);
        if (threadIdx.x < f->cols)
            value = fma(-alpha, v[threadIdx.x], w[threadIdx.x]);
        beta = sqrt(block_sum(value * value, f->room));
        if (!(beta > 1e-14 * fabs(alpha)))
            beta = 0;
        if (threadIdx.x < f->cols) {
            old[threadIdx.x] = v[threadIdx.x];
            v[threadIdx.x] = beta > 0 ? value / beta : 0.0;
        }
        if (threadIdx.x == 0) {
            f->pairs[k] = alpha;
            f->pairs[FIRE_K_LANCZOS_MAX + k] = beta;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0)
        f->room[0] = largest_of(f->pairs, steps);
    __syncthreads();
    sum = f->room[0];
    __syncthreads();
    return sum;
}

/* x <- x p(g) ROOT, of g GAIN; both are 1 after it. */
static __device__ __forceinline__ void fused_step(struct fused *f, const double *step)
{
    const double gain = f->gain, root = f->root;
    float tile[16];

    for (int e = 0; e < 16; e++)
        tile[e] = 0;
    if (step[0] > 2)
        fused_product(f, f->g, f->g, f->cols, tile);
    if (step[0] > 3) {
        fused_store(f, tile, f->g, f->s, gain * gain, step[2] * gain, step[3]);
        __syncthreads();
        fused_product(f, f->s, f->s, f->cols, tile);
        __syncthreads();
        fused_store(f, tile, f->g, f->s, step[1] * root, step[4] * gain * root, step[5] * root);
    } else {
        const double third = step[0] > 2 ? step[3] : 0.0;

        fused_store(f, tile, f->g, f->s, third * gain * gain * root, step[2] * gain * root,
                    step[1] * root);
    }
    __syncthreads();
    fused_apply(f);
    f->gain = 1;
    f->root = 1;
    fused_gram(f);
}

/* Steps of the program; returns how many, and the DfI after them. */
static __device__ __forceinline__ uint32_t fused_iterate(struct fused *f, const double *program,
                                                         double *row, double *dfi)
{
    const bool converges = program[FIRE_K_P_KIND] == FIRE_K_KIND_CONVERGE;
    const uint32_t limit = (uint32_t)program[FIRE_K_P_LIMIT];
    const uint32_t count = (uint32_t)program[FIRE_K_P_COUNT];
    const uint32_t check = (uint32_t)program[FIRE_K_P_CHECK];
    uint32_t taken = 0;

    for (;;) {
        uint32_t next = taken < count ? taken : count - 1;

        *dfi = fused_dfi(f);
        if (threadIdx.x == 0 && taken < FIRE_K_HISTORY_MAX)
            row[FIRE_K_HISTORY + taken] = *dfi;
        if (check && taken > 0 && (taken - 1) % check == 0 &&
            *dfi + program[FIRE_K_P_FULL] <= program[FIRE_K_P_TARGET])
            break;
        if (taken == limit)
            break;
        if (converges && taken > 0 && *dfi < FIRE_K_NEAR)
            next = count - 1;
        fused_step(f, program + FIRE_K_P_STEPS + (size_t)next * FIRE_K_STEP_DOUBLES);
        taken++;
    }
    return taken;
}

/* x = from * factor */
static __device__ __forceinline__ void fused_load(const struct fused *f, const float *from,
                                                  double factor)
{
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < f->rows * f->cols; e += FIRE_K_THREADS)
        f->x[(size_t)(e / f->cols) * f->stride + e % f->cols] = (float)((double)from[e] * factor);
    __syncthreads();
}

/* ||H - H^T||_F^2 of H = x^T w; s is overwritten. */
static __device__ __forceinline__ double fused_skew(const struct fused *f, const float *w)
{
    double sum = 0;

    __syncthreads();
    for (uint32_t e = threadIdx.x; e < f->cols * f->cols; e += FIRE_K_THREADS) {
        const uint32_t i = e / f->cols, j = e % f->cols;
        float h = 0;

        for (uint32_t k = 0; k < f->rows; k++)
            h = fmaf(f->x[(size_t)k * f->stride + i], w[(size_t)k * f->cols + j], h);
        f->s[i * f->stride + j] = h;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < f->cols * f->cols; e += FIRE_K_THREADS) {
        const uint32_t i = e / f->cols, j = e % f->cols;
        const double d = (double)f->s[i * f->stride + j] - (double)f->s[j * f->stride + i];

        sum = fma(d, d, sum);
    }
    return block_sum(sum, f->room) * (f->root * f->root);
}

/* out = blend c x ROOT + (1 - blend) w, rounded; returns the sum of (out - w)^2. */
static __device__ __forceinline__ double fused_write(const struct fused *f, const float *w,
                                                     float *out, const double *program, double c)
{
    const double factor = program[FIRE_K_P_BLEND] * (c * f->root);
    const double rest = 1 - program[FIRE_K_P_BLEND];
    const int output = (int)program[FIRE_K_P_OUTPUT];
    double sum = 0;

    for (uint32_t e = threadIdx.x; e < f->rows * f->cols; e += FIRE_K_THREADS) {
        const double old = (double)w[e];
        const double x = (double)f->x[(size_t)(e / f->cols) * f->stride + e % f->cols];
        const float value = round_output(fma(factor, x, rest != 0 ? rest * old : 0.0), output);
        const double moved = (double)value - old;

        out[e] = value;
        sum = fma(moved, moved, sum);
    }
    return block_sum(sum, f->room);
}

static __device__ __forceinline__ double fused_scale(const struct fused *f, const float *w,
                                                     const double *program, double norm,
                                                     double *inner)
{
    const int mode = (int)program[FIRE_K_P_SCALE];
    double scale = program[FIRE_K_P_SCALE_FACTOR], sum = 0;

    *inner = 0;
    if (mode == FIRE_K_SCALE_KEEP_NORM)
        scale *= norm / sqrt((double)f->cols);
    if (mode == FIRE_K_SCALE_MEAN_SIGMA) {
        for (uint32_t e = threadIdx.x; e < f->rows * f->cols; e += FIRE_K_THREADS)
            sum = fma((double)f->x[(size_t)(e / f->cols) * f->stride + e % f->cols], (double)w[e],
                      sum);
        *inner = block_sum(sum, f->room);
        scale *= *inner * f->root / (double)f->cols;
    }
    return scale;
}

/* The moment of what was written; Q is in x and its G in g. Returns the DfI of Q as the weights
 * hold it. */
static __device__ __forceinline__ double fused_after(struct fused *f, const float *out,
                                                     const double *program, double c, double dfi,
                                                     double *row)
{
    const bool blends = program[FIRE_K_P_BLEND] != 1;
    const bool narrow = (int)program[FIRE_K_P_OUTPUT] != FIRE_K_OUTPUT_F32;
    double written = c, below, largest;

    if (blends) {
        double sum = 0;

        for (uint32_t e = threadIdx.x; e < f->rows * f->cols; e += FIRE_K_THREADS)
            sum = fma((double)out[e], (double)out[e], sum);
        written = sqrt(block_sum(sum, f->room));
    }
    if ((blends || narrow) && written != 0) {
        fused_load(f, out, 1 / written);
        f->gain = 1;
        f->root = 1;
        fused_gram(f);
    }
    if (narrow && !blends)
        dfi = fused_dfi(f);
    below = fused_below(f);
    write_moment(f->g, f->cols, f->stride, f->gain * written * written, below, row,
                 FIRE_K_AFTER_DFI, f->room);
    largest = fused_largest(f) * f->gain * written * written;
    if (threadIdx.x == 0) {
        row[FIRE_K_WRITTEN] = written;
        row[FIRE_K_AFTER_LARGEST] = largest;
    }
    return dfi;
}

/* The norm of `w`, and the row of state with nothing else in it. */
static __device__ __forceinline__ double fused_norm(const struct fused *f, const float *w,
                                                    double *row)
{
    double norm = 0;

    for (uint32_t e = threadIdx.x; e < f->rows * f->cols; e += FIRE_K_THREADS)
        norm = fma((double)w[e], (double)w[e], norm);
    norm = sqrt(block_sum(norm, f->room));
    if (threadIdx.x < FIRE_K_FIELDS)
        row[threadIdx.x] = threadIdx.x == FIRE_K_NORM ? norm : 0.0;
    __syncthreads();
    return norm;
}

/* The moment of the weights, from g of x = w * factor, and ROOT and GAIN of their normalisation. */
static __device__ __forceinline__ void fused_before(struct fused *f, const double *program,
                                                    double factor, double *row)
{
    const int mode = (int)program[FIRE_K_P_GAIN];
    const bool moments = program[FIRE_K_P_MOMENTS] != 0;
    double largest = 0, length;

    if (moments || mode == FIRE_K_GAIN_SPECTRAL)
        largest = fused_largest(f);
    if (moments) {
        const double below = fused_below(f);

        write_moment(f->g, f->cols, f->stride, 1 / (factor * factor), below, row, FIRE_K_BEFORE_DFI,
                     f->room);
        if (threadIdx.x == 0)
            row[FIRE_K_BEFORE_LARGEST] = largest / (factor * factor);
    }
    if ((int)program[FIRE_K_P_KIND] == FIRE_K_KIND_ANALYZE || mode == FIRE_K_GAIN_NONE)
        return;
    length = mode == FIRE_K_GAIN_SPECTRAL ? sqrt(largest) : fused_schatten(f);
    length = fma(program[FIRE_K_P_EPS], factor, length);
    f->root = length > 0 ? 1 / length : 1;
    f->gain = f->root * f->root;
}

/* Matrix blockIdx.x of `w`, rows x cols, to `out`, as `program` says. */
extern "C" __global__ void fire_k_fused(const float *w, float *out, double *state,
                                        const double *program, uint32_t rows, uint32_t cols)
{
    extern __shared__ float fire_k_dynamic[];
    __shared__ double room[FIRE_K_THREADS];
    __shared__ double vectors[3 * FIRE_K_FUSED_COLS];
    __shared__ double pairs[2 * FIRE_K_LANCZOS_MAX];
    const uint32_t stride = cols | 1u;
    struct fused f = { fire_k_dynamic,
                       fire_k_dynamic + (size_t)rows * stride,
                       fire_k_dynamic + (size_t)(rows + cols) * stride,
                       room,
                       vectors,
                       pairs,
                       rows,
                       cols,
                       stride,
                       1,
                       1 };
    const float *from = w + (size_t)blockIdx.x * rows * cols;
    float *to = out + (size_t)blockIdx.x * rows * cols;
    double *row = state + (size_t)blockIdx.x * FIRE_K_FIELDS;
    const double eps =
        (int)program[FIRE_K_P_GAIN] == FIRE_K_GAIN_NONE ? program[FIRE_K_P_EPS] : 0.0;
    double norm, factor, dfi = 0, c, inner, sfe, skew = 0;
    uint32_t steps;

    norm = fused_norm(&f, from, row);
    if (norm == 0) {
        for (uint32_t e = threadIdx.x; e < rows * cols; e += FIRE_K_THREADS)
            to[e] = 0;
        return;
    }
    factor = norm > 0 ? 1 / (norm + eps) : 0.0;
    fused_load(&f, from, factor);
    fused_gram(&f);
    fused_before(&f, program, factor, row);
    if ((int)program[FIRE_K_P_KIND] == FIRE_K_KIND_ANALYZE)
        return;
    steps = fused_iterate(&f, program, row, &dfi);
    if (program[FIRE_K_P_RESIDUAL] != 0)
        skew = fused_skew(&f, from);
    c = fused_scale(&f, from, program, norm, &inner);
    sfe = fused_write(&f, from, to, program, c);
    if (program[FIRE_K_P_MOMENTS] != 0)
        dfi = fused_after(&f, to, program, c, dfi, row);
    if (threadIdx.x != 0)
        return;
    row[FIRE_K_FACTOR] = factor;
    row[FIRE_K_STEPS] = (double)steps;
    row[FIRE_K_DFI] = dfi;
    row[FIRE_K_SCALE] = c;
    row[FIRE_K_SFE] = sfe;
    row[FIRE_K_SKEW] = skew;
    row[FIRE_K_INNER] = inner;
}

#endif
