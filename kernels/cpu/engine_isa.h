/* engine_isa: turns engine_body.h into one struct engine. An engine_<isa>.c sets ENGINE_NAME,
 * ENGINE_TINY, VECTOR_BYTES and MR, and is compiled with the flags of its instruction set. */
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

#include "engine.h"
#include "status.h"
#include "tiny.h"

#define INLINE   static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 12")
#endif
#define UNROLL_BASE  _Pragma("GCC unroll 16")
#define PACK_STRIDE  2048u /* bytes: rows further apart are packed when that pays */
#define TILE_ROWS    384u
#define DEPTH_F32    256u
#define NARROW_DEPTH 32u /* of products with a triangle: blocks are one vector wide */
/* Rows of blocks near the diagonal, up to LOW_BLOCKS_SIDE. */
#if MR > 8
#define LOW_BLOCK_ROWS 8u
#else
#define LOW_BLOCK_ROWS MR
#endif
/* Four steps of depth to a turn of the loop: where another thread shares the core, the few
 * instructions that count and branch are a tenth of the time. */
#if defined(__clang__)
#define UNROLL_DEPTH _Pragma("clang loop unroll_count(4)")
#else
#define UNROLL_DEPTH _Pragma("GCC unroll 4")
#endif
#define LOW_BLOCKS_SIDE 320u
#define PACK_DEPTH      64u
#define PACK_ROWS       96u
#define PACK_CHUNKS     16u /* panels of A that are packed together … */
#define PACK_STRIP      16u /* … so many rows at a time */
#define PACK_STRIP_B    8u  /* rows of B that are packed together */
/* DEPTH: rows of B to a block of depth, at most; the rounding of a sum grows with it. */
#define DEPTH_F64     256u
#define SUM_REGISTERS 4
#define root_f32      sqrtf
#define root_f64      sqrt

/* A register of f64, and as many f32. gcc 12 takes __builtin_convertvector apart into halves and
 * quarters, which costs four times as much. */
#define WIDE_LANES (VECTOR_BYTES / sizeof(double))
typedef double wide __attribute__((vector_size(VECTOR_BYTES)));
typedef float half __attribute__((vector_size(VECTOR_BYTES / 2)));

INLINE wide wide_of(half x)
{
#if VECTOR_BYTES == 64 && defined(__AVX512F__)
    return (wide)_mm512_cvtps_pd((__m256)x);
#elif VECTOR_BYTES == 32 && defined(__AVX2__)
    return (wide)_mm256_cvtps_pd((__m128)x);
#else
    return __builtin_convertvector(x, wide);
#endif
}

INLINE half half_of(wide x)
{
#if VECTOR_BYTES == 64 && defined(__AVX512F__)
    return (half)_mm512_cvtpd_ps((__m512d)x);
#elif VECTOR_BYTES == 32 && defined(__AVX2__)
    return (half)_mm256_cvtpd_ps((__m256d)x);
#else
    return __builtin_convertvector(x, half);
#endif
}

typedef half part_f32;
typedef wide part_f64;
#define wide_of_f32(x) wide_of(x)
#define wide_of_f64(x) (x)
#define half_of_f32(x) (x)
#define half_of_f64(x) half_of(x)

typedef int32_t bits_f32;
typedef int64_t bits_f64;

#define T        float
#define TN(name) name##_f32
#define KC       DEPTH_F32
#include "engine_body.h"
#undef T
#undef TN
#undef KC

#define T        double
#define TN(name) name##_f64
#define KC       DEPTH_F64
#include "engine_body.h"
#undef T
#undef TN

static void narrow(void *data, size_t count)
{
    char *bytes = data;
    size_t i = 0;

    /* What is read has never been written: the f32 numbers fall behind. The copies keep the two
     * types from being seen as one object. */
    for (; i + WIDE_LANES <= count; i += WIDE_LANES) {
        wide from;

        memcpy(&from, bytes + i * sizeof(double), sizeof(from));
        const half result = half_of(from);

        memcpy(bytes + i * sizeof(float), &result, sizeof(result));
    }
    for (; i < count; i++) {
        double from;
        float result;

        memcpy(&from, bytes + i * sizeof(double), sizeof(from));
        result = (float)from;
        memcpy(bytes + i * sizeof(float), &result, sizeof(result));
    }
}

#define RESCALE_SUMS 2u

static double rescale(float *w, double factor, size_t count, double *square)
{
    const float f = (float)factor;
    wide changes[RESCALE_SUMS] = { 0 }, squares[RESCALE_SUMS] = { 0 };
    double change_sum = 0, square_sum = 0;
    size_t i = 0;

    for (; i + RESCALE_SUMS * WIDE_LANES <= count; i += RESCALE_SUMS * WIDE_LANES) {
        UNROLL
        for (size_t r = 0; r < RESCALE_SUMS; r++) {
            half part;

            memcpy(&part, w + i + r * WIDE_LANES, sizeof(part));
            const wide old = wide_of(part);

            part *= f;
            memcpy(w + i + r * WIDE_LANES, &part, sizeof(part));
            const wide change = wide_of(part) - old;

            changes[r] += change * change;
            squares[r] += old * old;
        }
    }
    for (; i < count; i++) {
        const double old = (double)w[i];

        w[i] *= f;
        change_sum += ((double)w[i] - old) * ((double)w[i] - old);
        square_sum += old * old;
    }
    for (size_t l = 0; l < WIDE_LANES; l++) {
        change_sum += changes[0][l] + changes[1][l];
        square_sum += squares[0][l] + squares[1][l];
    }
    *square = square_sum;
    return change_sum;
}

/* clang-format off */
#define OPS(type) { \
    .element_bytes = type##_BYTES, .tile = tile_##type, .invert_base = invert_base_##type, \
    .affine = affine_##type, .copy_affine = copy_affine_##type, \
    .affine_full = affine_full_##type, .mirror = mirror_##type, .sums = sums_##type, \
    .symmetric_vector = symmetric_vector_##type, .dot = dot_##type, .add = add_##type, \
    .add_upper = add_upper_##type, .largest = largest_##type, .square = square_##type, \
    .replace = replace_##type }
/* clang-format on */
#define f32_BYTES sizeof(float)
#define f64_BYTES sizeof(double)

/* What tile() uses: packed B, then panels of A. */
#define SCRATCH(depth, type)                                                                       \
    (((depth)*ENGINE_TILE_COLUMNS_MAX + PACK_CHUNKS * ((depth)*MR + PRODUCT_PAD)) * sizeof(type))
#define SCRATCH_F32 SCRATCH(DEPTH_F32, float)
#define SCRATCH_F64 SCRATCH(DEPTH_F64, double)

const struct engine ENGINE_SYMBOL = {
    .name = ENGINE_NAME,
    .scratch_bytes = SCRATCH_F32 > SCRATCH_F64 ? SCRATCH_F32 : SCRATCH_F64,
    .tile_rows = TILE_ROWS,
    .tiny = &ENGINE_TINY,
    .narrow = narrow,
    .rescale = rescale,
    .f32 = OPS(f32),
    .f64 = OPS(f64),
};
