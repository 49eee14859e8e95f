/* amx.c is proved on emulated tile instructions, which always run; what the real ones add is tested
 * where the probe succeeds. The emulation itself is tested first, with answers known by hand. */
#define AMX_EMULATED /* of amx_tile.h, for the tests of the emulation */
#include "amx.h"
#include "amx_tile.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tiles.h"

void amx_emulated_plain(const struct product *product, enum amx_terms terms, uint32_t i0,
                        uint32_t i1, uint32_t j0, uint32_t j1, void *scratch);
void amx_emulated_avx512(const struct product *product, enum amx_terms terms, uint32_t i0,
                         uint32_t i1, uint32_t j0, uint32_t j1, void *scratch);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

static bool memory_is_out;

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return memory_is_out ? NULL : __real_aligned_alloc(alignment, bytes);
}

/* The emulation */

static void put_bf16(struct tiles *tiles, uint32_t tile, uint32_t row, uint32_t at, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    ck_assert_uint_eq(bits & 0xffffu, 0); /* a bf16 */
    const uint16_t half = (uint16_t)(bits >> 16);
    memcpy(tiles->data[tile][row] + (size_t)2 * at, &half, sizeof(half));
}

static float f32_at(const struct tiles *tiles, uint32_t tile, uint32_t row, uint32_t column)
{
    float value;

    memcpy(&value, tiles->data[tile][row] + (size_t)4 * column, sizeof(value));
    return value;
}

/* One element of C is a sum over 16 pairs; here the first pairs are set, the rest is zero. The even
 * members are summed, then the odd ones, then both, then C: each row shows one rounding. */
static const struct {
    const char *name;
    float a[4]; /* even, odd, even, odd */
    float b[4];
    float c;
    float want;
} dots[] = {
    { "two pairs", { 1, 2, 3, 4 }, { 5, 6, 7, 8 }, 0.5f, 70.5f },
    { "a tie goes to even", { 1, 0, 0x1p-24f, 0 }, { 1, 0, 1, 0 }, 0, 1 },
    { "over a tie goes up", { 1, 0, 0x1.02p-24f, 0 }, { 1, 0, 1, 0 }, 0, 1 + 0x1p-23f },
    { "even and odd are summed apart", { 0x1p24f, 1, -0x1p24f, 1 }, { 1, 1, 1, 1 }, 0, 2 },
    { "even members are summed in order", { 0x1p24f, 0, 1, 0 }, { 1, 0, 1, 0 }, -0x1p24f, 0 },
    { "products are not rounded",
      { 1, 0, -0x1.fcp-1f, 0 },
      { 0x1.02p0f, 0, 0x1.02p0f, 0 },
      0,
      0x1.02p0f - 0x1.fcp-1f * 0x1.02p0f },
    { "denormal bf16 is zero", { 0x1p-127f, 0, 0, 0 }, { 0x1p100f, 0, 0, 0 }, 0, 0 },
    { "denormal sum is zero", { 0x1p-64f, 0, 0, 0 }, { 0x1p-64f, 0, 0, 0 }, 0, 0 },
    { "least normal sum stays", { 0x1p-63f, 0, 0, 0 }, { 0x1p-63f, 0, 0, 0 }, 0, 0x1p-126f },
    { "denormal c is zero", { 0x1p-63f, 0, 0, 0 }, { 0x1p-63f, 0, 0, 0 }, 0x1p-127f, 0x1p-126f },
    { "overflow is infinite", { 0x1p127f, 0, 0, 0 }, { 2, 0, 0, 0 }, 0, INFINITY },
};

START_TEST(emulated_dot_rounds_and_flushes)
{
    static struct tiles tiles;
    const struct tile_config config = tile_config_full();

    tiles_configure(&tiles, &config);
    for (uint32_t p = 0; p < 4; p++) {
        put_bf16(&tiles, 1, 5, p, dots[_i].a[p]);                 /* row 5 of A */
        put_bf16(&tiles, 2, p / 2, 2 * 9 + p % 2, dots[_i].b[p]); /* column 9 of B */
    }
    memcpy(tiles.data[0][5] + (size_t)4 * 9, &dots[_i].c, 4);
    emulated_dot(&tiles, 0, 1, 2);
    ck_assert_msg(f32_at(&tiles, 0, 5, 9) == dots[_i].want, "%s: %a, not %a", dots[_i].name,
                  (double)f32_at(&tiles, 0, 5, 9), (double)dots[_i].want);
    ck_assert(f32_at(&tiles, 0, 5, 8) == 0.0f);
    ck_assert(f32_at(&tiles, 0, 4, 9) == 0.0f);
}
END_TEST

/* A tile smaller than full loads and stores its own rows and bytes only; the rest reads as zero. */
START_TEST(emulated_tiles_keep_to_their_size)
{
    static struct tiles tiles;
    struct tile_config config = tile_config_full();
    uint8_t from[TILE_ROWS * 80], to[TILE_ROWS * 80];

    memset(from, 7, sizeof(from));
    memset(to, 9, sizeof(to));
    config.rows[3] = 3;
    config.row_bytes[3] = 12;
    tiles_configure(&tiles, &config);
    memset(tiles.data[3], 1, sizeof(tiles.data[3]));
    emulated_load(&tiles, 3, from, 80);
    ck_assert_uint_eq(tiles.data[3][2][11], 7);
    ck_assert_uint_eq(tiles.data[3][2][12], 0);
    ck_assert_uint_eq(tiles.data[3][3][0], 0);
    emulated_store(&tiles, 3, to, 80);
    ck_assert_uint_eq(to[2 * 80 + 11], 7);
    ck_assert_uint_eq(to[2 * 80 + 12], 9);
    ck_assert_uint_eq(to[3 * 80], 9);
}
END_TEST

START_TEST(emulated_use_without_configuration_stops)
{
    static struct tiles tiles;
    const struct tile_config config = tile_config_full();

    tiles_configure(&tiles, &config);
    tiles_release(&tiles);
    emulated_zero(&tiles, 0);
}
END_TEST

START_TEST(emulated_configuration_too_large_stops)
{
    static struct tiles tiles;
    struct tile_config config = tile_config_full();

    config.rows[7] = 17;
    tiles_configure(&tiles, &config);
}
END_TEST

/* Products */

struct problem {
    struct product product;
    float *a, *b, *c, *before;
    size_t c_count;
    void *scratch;
};

static size_t padded(size_t count)
{
    return (count + PRODUCT_PAD - 1) / PRODUCT_PAD * PRODUCT_PAD;
}

/* `rows` x `columns` values; what lies outside them is NaN, to show that it is not used. */
static float *matrix_make(size_t rows, size_t columns, size_t stride, uint64_t *state)
{
    float *matrix = allocate(rows * stride * sizeof(float));

    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < stride; j++)
            matrix[i * stride + j] = j < columns ? draw(state) : NAN;
    return matrix;
}

static void problem_init(struct problem *problem, uint32_t m, uint32_t n, uint32_t k,
                         bool transposed)
{
    uint64_t state = (uint64_t)m * 1000003 + (uint64_t)n * 1009 + k;
    struct product *product = &problem->product;

    *product = (struct product){ .m = m, .n = n, .k = k, .a_transposed = transposed };
    product->lda = padded(transposed ? m : k);
    product->ldb = padded(n);
    product->ldc = padded(n) + PRODUCT_PAD;
    product->alpha = 1.0;
    problem->a = matrix_make(transposed ? k : m, transposed ? m : k, product->lda, &state);
    problem->b = matrix_make(k, n, product->ldb, &state);
    problem->c = matrix_make(m, n, product->ldc, &state);
    problem->c_count = m * product->ldc;
    problem->before = allocate(problem->c_count * sizeof(float));
    memcpy(problem->before, problem->c, problem->c_count * sizeof(float));
    problem->scratch = allocate(AMX_SCRATCH_BYTES);
    product->a = problem->a;
    product->b = problem->b;
    product->c = problem->c;
}

static void problem_release(struct problem *problem)
{
    free(problem->a);
    free(problem->b);
    free(problem->c);
    free(problem->before);
    free(problem->scratch);
}

/* Puts C back as it was and runs `product` on the whole. */
static void problem_run(struct problem *problem, amx_product_function product, enum amx_terms terms)
{
    memcpy(problem->c, problem->before, problem->c_count * sizeof(float));
    product(&problem->product, terms, 0, problem->product.m, 0, problem->product.n,
            problem->scratch);
}

/* The relative error of rows [i0, i1), columns [j0, j1) of C in the Frobenius norm, against f64.
 * With `upper`, of j >= i only. */
static double problem_error(const struct problem *problem, uint32_t i0, uint32_t i1, uint32_t j0,
                            uint32_t j1)
{
    const struct product *product = &problem->product;
    double error = 0.0, size = 0.0;

    for (uint32_t i = i0; i < i1; i++) {
        for (uint32_t j = j0; j < j1; j++) {
            const size_t at = (size_t)i * product->ldc + j;
            double sum = 0.0;
            if (product->upper && j < i)
                continue;
            for (uint32_t k = 0; k < product->k; k++)
                sum +=
                    (double)problem
                        ->a[product->a_transposed ? k * product->lda + i : i * product->lda + k] *
                    problem->b[k * product->ldb + j];
            sum *= product->alpha;
            if (product->beta != 0.0)
                sum += product->beta * problem->before[at];
            error += (problem->c[at] - sum) * (problem->c[at] - sum);
            size += sum * sum;
        }
    }
    return sqrt(error / size);
}

/* Everything outside the range must be as it was, bit for bit. */
static void assert_rest_untouched(const struct problem *problem, uint32_t i0, uint32_t i1,
                                  uint32_t j0, uint32_t j1)
{
    const size_t stride = problem->product.ldc;

    for (size_t at = 0; at < problem->c_count; at++) {
        const size_t i = at / stride, j = at % stride;
        if (i >= i0 && i < i1 && j >= j0 && j < j1)
            continue;
        ck_assert_msg(memcmp(problem->c + at, problem->before + at, 4) == 0,
                      "element (%zu, %zu) outside of the tile was written", i, j);
    }
}

/* NUMERICS.md section 8: bf16 2.4e-3, x3 4.4e-6, x6 that of f32. */
static const struct {
    enum amx_terms terms;
    const char *name;
    double error_max;
} kinds[] = {
    { AMX_BF16, "bf16", 3.5e-3 },
    { AMX_X3, "x3", 7e-6 },
    { AMX_X6, "x6", 4e-7 },
};

static const struct {
    uint32_t m, n, k;
    bool transposed, upper;
    double alpha, beta;
    uint32_t i0, i1, j0, j1; /* all 0: the whole */
} shapes[] = {
    { 1, 1, 1, false, false, 1, 0, 0, 0, 0, 0 },
    { 1, 1, 1, true, false, 1, 0, 0, 0, 0, 0 },
    { 32, 32, 32, false, false, 1, 0, 0, 0, 0, 0 },
    { 32, 32, 32, true, false, 1, 0, 0, 0, 0, 0 },
    { 33, 17, 31, false, false, 1, 0, 0, 0, 0, 0 },
    { 17, 33, 65, true, false, 1, 0, 0, 0, 0, 0 },
    { 64, 96, 128, false, false, 0.5, 1, 0, 0, 0, 0 },
    { 96, 64, 128, true, false, -1.25, 0.75, 0, 0, 0, 0 },
    { 80, 80, 47, true, true, 1, 0, 0, 0, 0, 0 },
    { 80, 80, 47, false, true, 2, -3, 0, 0, 0, 0 },
    { 40, 48, 515, true, false, 1, 0, 0, 0, 0, 0 },   /* more than one depth */
    { 40, 48, 1100, false, false, 3, 2, 0, 0, 0, 0 }, /* three */
    { 7, 600, 40, false, false, 1, 0, 0, 0, 0, 0 },   /* more columns than are packed at once */
    { 600, 7, 40, true, false, 1, 1, 0, 0, 0, 0 },
    { 100, 100, 50, false, false, 1, 0, 37, 81, 32, 99 }, /* tiles of a whole */
    { 100, 100, 50, true, false, 1, 1, 37, 81, 16, 32 },
    { 100, 100, 50, true, true, 1, 0, 64, 100, 32, 96 },
};

START_TEST(products_agree_with_float64)
{
    struct problem problem;
    const bool whole = shapes[_i].i1 == 0;
    const uint32_t i0 = shapes[_i].i0, i1 = whole ? shapes[_i].m : shapes[_i].i1;
    const uint32_t j0 = shapes[_i].j0, j1 = whole ? shapes[_i].n : shapes[_i].j1;

    problem_init(&problem, shapes[_i].m, shapes[_i].n, shapes[_i].k, shapes[_i].transposed);
    problem.product.upper = shapes[_i].upper;
    problem.product.alpha = shapes[_i].alpha;
    problem.product.beta = shapes[_i].beta;
    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
        memcpy(problem.c, problem.before, problem.c_count * sizeof(float));
        if (shapes[_i].beta == 0.0) /* C is not read */
            for (uint32_t i = i0; i < i1; i++)
                for (uint32_t j = j0; j < j1; j++)
                    problem.c[i * problem.product.ldc + j] = NAN;
        amx_emulated_plain(&problem.product, kinds[kind].terms, i0, i1, j0, j1, problem.scratch);
        const double error = problem_error(&problem, i0, i1, j0, j1);
        ck_assert_msg(error <= kinds[kind].error_max, "%s: relative error %g", kinds[kind].name,
                      error);
        assert_rest_untouched(&problem, i0, i1, j0, j1);
    }
    problem_release(&problem);
}
END_TEST

/* Each term is there for its accuracy: fewer would fail the bound of the next kind. */
START_TEST(errors_are_those_of_the_terms)
{
    struct problem problem;
    double error[3];

    problem_init(&problem, 96, 96, 256, false);
    for (int kind = 0; kind < 3; kind++) {
        problem_run(&problem, amx_emulated_plain, kinds[kind].terms);
        error[kind] = problem_error(&problem, 0, 96, 0, 96);
    }
    printf("amx: relative error bf16 %.2g, x3 %.2g, x6 %.2g (96 x 96 x 256)\n", error[0], error[1],
           error[2]);
    ck_assert(error[0] > 1e-3);
    ck_assert(error[1] > 1e-6);
    ck_assert(error[1] < error[0] / 100);
    ck_assert(error[2] < error[1] / 10);
    problem_release(&problem);
}
END_TEST

/* An element's sum runs over k in one order, wherever the tile's edges are. */
START_TEST(bits_do_not_depend_on_the_tiles)
{
    const uint32_t rows[] = { 0, 16, 57, 100 }, columns[] = { 0, 48, 64, 90 };
    struct problem problem;

    problem_init(&problem, 100, 90, 530, true);
    problem.product.beta = 0.5;
    float *whole = allocate(problem.c_count * sizeof(float));
    for (size_t kind = 0; kind < 3; kind++) {
        problem_run(&problem, amx_emulated_plain, kinds[kind].terms);
        memcpy(whole, problem.c, problem.c_count * sizeof(float));
        memcpy(problem.c, problem.before, problem.c_count * sizeof(float));
        for (size_t i = 0; i < 3; i++)
            for (size_t j = 0; j < 3; j++)
                amx_emulated_plain(&problem.product, kinds[kind].terms, rows[i], rows[i + 1],
                                   columns[j], columns[j + 1], problem.scratch);
        ck_assert_msg(memcmp(whole, problem.c, problem.c_count * sizeof(float)) == 0, "%s",
                      kinds[kind].name);
    }
    free(whole);
    problem_release(&problem);
}
END_TEST

/* Small values: hi and lo of x3 are normal bf16 down to 2^-105 or so. Under the least normal number
 * both packings must still agree, so no conversion flushes on its own. */
static void assert_same_bits(amx_product_function other, uint32_t shape, float scale)
{
    struct problem problem;

    problem_init(&problem, shapes[shape].m, shapes[shape].n, shapes[shape].k,
                 shapes[shape].transposed);
    problem.product.upper = shapes[shape].upper;
    problem.product.alpha = shapes[shape].alpha;
    problem.product.beta = shapes[shape].beta;
    const size_t a_rows = shapes[shape].transposed ? shapes[shape].k : shapes[shape].m;
    for (size_t i = 0; i < a_rows * problem.product.lda; i++)
        problem.a[i] *= scale;
    float *want = allocate(problem.c_count * sizeof(float));
    for (size_t kind = 0; kind < 3; kind++) {
        problem_run(&problem, amx_emulated_plain, kinds[kind].terms);
        memcpy(want, problem.c, problem.c_count * sizeof(float));
        problem_run(&problem, other, kinds[kind].terms);
        ck_assert_msg(memcmp(want, problem.c, problem.c_count * sizeof(float)) == 0, "%s, scale %g",
                      kinds[kind].name, (double)scale);
    }
    free(want);
    problem_release(&problem);
}

START_TEST(vector_packing_gives_the_same_bits)
{
    if (!has_avx512()) {
        fprintf(stderr, "skipped: packing by AVX-512, which this CPU does not have\n");
        return;
    }
    assert_same_bits(amx_emulated_avx512, (uint32_t)_i, 1.0f);
    assert_same_bits(amx_emulated_avx512, (uint32_t)_i, 0x1p-110f);
    assert_same_bits(amx_emulated_avx512, (uint32_t)_i, 0x1p-126f);
    assert_same_bits(amx_emulated_avx512, (uint32_t)_i, 0x1p120f);
}
END_TEST

/* A Gram product turns the panels of B that are packed already; a copy of B is packed again. */
START_TEST(a_gram_product_is_that_of_two_copies)
{
    static const struct {
        uint32_t n, k, i0, i1, j0, j1;
    } grams[] = {
        { 80, 47, 0, 80, 0, 80 },     { 300, 40, 0, 300, 0, 300 }, { 100, 600, 0, 100, 0, 100 },
        { 100, 50, 64, 100, 32, 96 }, { 100, 50, 32, 81, 16, 96 }, { 100, 50, 0, 33, 0, 100 },
    };

    for (size_t i = 0; i < sizeof(grams) / sizeof(grams[0]); i++) {
        struct problem problem;
        const size_t n = grams[i].n;

        problem_init(&problem, grams[i].n, grams[i].n, grams[i].k, true);
        memcpy(problem.b, problem.a, grams[i].k * problem.product.lda * sizeof(float));
        float *want = allocate(problem.c_count * sizeof(float));
        for (size_t kind = 0; kind < 3; kind++) {
            for (int gram = 0; gram < 2; gram++) {
                problem.product.b = gram ? problem.a : problem.b;
                problem.product.upper = true;
                memcpy(problem.c, problem.before, problem.c_count * sizeof(float));
                amx_emulated_plain(&problem.product, kinds[kind].terms, grams[i].i0, grams[i].i1,
                                   grams[i].j0, grams[i].j1, problem.scratch);
                if (!gram)
                    memcpy(want, problem.c, problem.c_count * sizeof(float));
            }
            ck_assert_msg(memcmp(want, problem.c, problem.c_count * sizeof(float)) == 0,
                          "%s, n %zu", kinds[kind].name, n);
        }
        free(want);
        problem_release(&problem);
    }
}
END_TEST

START_TEST(x3_is_good_for_small_values)
{
    struct problem problem;

    problem_init(&problem, 32, 32, 64, false);
    for (size_t i = 0; i < 32 * problem.product.lda; i++)
        problem.a[i] *= 0x1p-100f;
    problem_run(&problem, amx_emulated_plain, AMX_X3);
    ck_assert(problem_error(&problem, 0, 32, 0, 32) <= 7e-6);
    problem_release(&problem);
}
END_TEST

/* The probe */

static bool yes(char *reason, size_t reason_bytes)
{
    (void)reason;
    (void)reason_bytes;
    return true;
}

static bool no(char *reason, size_t reason_bytes)
{
    snprintf(reason, reason_bytes, "because of the moon");
    return false;
}

static pid_t parent;

static bool only_in_the_child(char *reason, size_t reason_bytes)
{
    return getpid() == parent ? no(reason, reason_bytes) : true;
}

static void illegal_product(const struct product *product, enum amx_terms terms, uint32_t i0,
                            uint32_t i1, uint32_t j0, uint32_t j1, void *scratch)
{
    (void)product, (void)terms, (void)i0, (void)i1, (void)j0, (void)j1, (void)scratch;
    raise(SIGILL);
}

static void aborting_product(const struct product *product, enum amx_terms terms, uint32_t i0,
                             uint32_t i1, uint32_t j0, uint32_t j1, void *scratch)
{
    (void)product, (void)terms, (void)i0, (void)i1, (void)j0, (void)j1, (void)scratch;
    raise(SIGKILL);
}

static void leaving_product(const struct product *product, enum amx_terms terms, uint32_t i0,
                            uint32_t i1, uint32_t j0, uint32_t j1, void *scratch)
{
    (void)product, (void)terms, (void)i0, (void)i1, (void)j0, (void)j1, (void)scratch;
    _exit(0);
}

static void endless_product(const struct product *product, enum amx_terms terms, uint32_t i0,
                            uint32_t i1, uint32_t j0, uint32_t j1, void *scratch)
{
    (void)product, (void)terms, (void)i0, (void)i1, (void)j0, (void)j1, (void)scratch;
    for (;;)
        pause();
}

static void idle_product(const struct product *product, enum amx_terms terms, uint32_t i0,
                         uint32_t i1, uint32_t j0, uint32_t j1, void *scratch)
{
    (void)product, (void)terms, (void)i0, (void)i1, (void)j0, (void)j1, (void)scratch;
}

/* Right but for x6, where it leaves terms out. */
static void coarse_product(const struct product *product, enum amx_terms terms, uint32_t i0,
                           uint32_t i1, uint32_t j0, uint32_t j1, void *scratch)
{
    amx_emulated_plain(product, terms == AMX_X6 ? AMX_X3 : terms, i0, i1, j0, j1, scratch);
}

static const struct {
    struct amx_probe_parts parts;
    enum fire_status status;
    const char *reason; /* what it must contain */
} probes[] = {
    { { yes, yes, amx_emulated_plain, 60000 }, FIRE_OK, "right" },
    { { no, yes, amx_emulated_plain, 60000 }, FIRE_DEVICE_LOST, "moon" },
    { { yes, no, amx_emulated_plain, 60000 }, FIRE_DEVICE_LOST, "moon" },
    { { yes, only_in_the_child, amx_emulated_plain, 60000 }, FIRE_DEVICE_LOST, "moon" },
    { { yes, yes, illegal_product, 60000 }, FIRE_DEVICE_LOST, "SIGILL" },
    { { yes, yes, aborting_product, 60000 }, FIRE_DEVICE_LOST, "signal 9" },
    { { yes, yes, leaving_product, 60000 }, FIRE_DEVICE_LOST, "no answer" },
    { { yes, yes, endless_product, 50 }, FIRE_DEVICE_LOST, "in time" },
    { { yes, yes, idle_product, 60000 }, FIRE_DEVICE_LOST, "bf16" },
    { { yes, yes, coarse_product, 60000 }, FIRE_DEVICE_LOST, "x6" },
};

START_TEST(probe_says_what_happened)
{
    char reason[160] = "";
    double rate = -1.0;

    parent = getpid();
    signal(SIGILL, SIG_IGN); /* the child does not inherit what the program does about it */
    const enum fire_status status =
        amx_probe_with(&probes[_i].parts, reason, sizeof(reason), &rate);
    ck_assert_msg(status == probes[_i].status, "%s", reason);
    ck_assert_msg(strstr(reason, probes[_i].reason) != NULL, "\"%s\" lacks \"%s\"", reason,
                  probes[_i].reason);
    ck_assert(status == FIRE_OK ? rate > 0.0 : rate == 0.0);
}
END_TEST

START_TEST(probe_without_memory_says_so)
{
    char reason[160] = "";
    double rate = -1.0;

    memory_is_out = true;
    const enum fire_status status = amx_probe_with(&probes[0].parts, reason, sizeof(reason), &rate);
    memory_is_out = false;
    ck_assert_int_eq(status, FIRE_NO_MEMORY);
    ck_assert_ptr_nonnull(strstr(reason, "memory"));
    ck_assert(rate == 0.0);
}
END_TEST

/* The real instructions. What the manual leaves open may cost a last bit, so the bound is that of
 * f32 sums; whether the bits are the emulation's is reported. */
START_TEST(real_products_agree_with_the_emulation)
{
    char reason[160] = "";
    double rate;
    bool same = true;

    if (amx_probe(reason, sizeof(reason), &rate) != FIRE_OK) {
        ck_assert_uint_gt(strlen(reason), 0);
        fprintf(stderr, "skipped: real tile instructions: %s\n", reason);
        return;
    }
    for (size_t shape = 0; shape < sizeof(shapes) / sizeof(shapes[0]); shape++) {
        struct problem problem;
        problem_init(&problem, shapes[shape].m, shapes[shape].n, shapes[shape].k,
                     shapes[shape].transposed);
        problem.product.upper = shapes[shape].upper;
        problem.product.alpha = shapes[shape].alpha;
        problem.product.beta = shapes[shape].beta;
        float *want = allocate(problem.c_count * sizeof(float));
        for (size_t kind = 0; kind < 3; kind++) {
            problem_run(&problem, amx_emulated_plain, kinds[kind].terms);
            memcpy(want, problem.c, problem.c_count * sizeof(float));
            problem_run(&problem, amx_product_tile, kinds[kind].terms);
            same &= memcmp(want, problem.c, problem.c_count * sizeof(float)) == 0;
            const double error = problem_error(&problem, 0, shapes[shape].m, 0, shapes[shape].n);
            ck_assert_msg(error <= kinds[kind].error_max, "%s: relative error %g", kinds[kind].name,
                          error);
        }
        free(want);
        problem_release(&problem);
    }
    printf("amx: real tile instructions: %s; bits %s the emulation's\n", reason,
           same ? "are" : "differ from");
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

int main(void)
{
    Suite *suite = suite_create("amx");
    TCase *emulation = tcase_create("emulation");
    TCase *products = tcase_create("products");
    TCase *probe = tcase_create("probe");

    tcase_add_loop_test(emulation, emulated_dot_rounds_and_flushes, 0, COUNT(dots));
    tcase_add_test(emulation, emulated_tiles_keep_to_their_size);
    tcase_add_test_raise_signal(emulation, emulated_use_without_configuration_stops, SIGABRT);
    tcase_add_test_raise_signal(emulation, emulated_configuration_too_large_stops, SIGABRT);
    tcase_add_loop_test(products, products_agree_with_float64, 0, COUNT(shapes));
    tcase_add_test(products, errors_are_those_of_the_terms);
    tcase_add_test(products, bits_do_not_depend_on_the_tiles);
    tcase_add_loop_test(products, vector_packing_gives_the_same_bits, 0, COUNT(shapes));
    tcase_add_test(products, a_gram_product_is_that_of_two_copies);
    tcase_add_test(products, x3_is_good_for_small_values);
    tcase_add_loop_test(probe, probe_says_what_happened, 0, COUNT(probes));
    tcase_add_test(probe, probe_without_memory_says_so);
    tcase_add_test(probe, real_products_agree_with_the_emulation);
    tcase_set_timeout(products, 300);
    tcase_set_timeout(probe, 300);
    suite_add_tcase(suite, emulation);
    suite_add_tcase(suite, products);
    suite_add_tcase(suite, probe);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
