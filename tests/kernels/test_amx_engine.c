/* The path "amx" as a whole, on the emulated tile unit: the engine that isa.c would choose on a
 * machine with AMX, run through every step of the polar factor. The instructions themselves are
 * tested in test_amx.c. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "amx_engine.h"
#include "dense.h"
#include "matrices.h"
#include "projection.h"
#include "slot.h"

/* amx_engine.c compiled for the emulated unit. */
const struct engine *amx_engine_emulated(bool fast);

static const struct {
    const char *name;
    const char *settings;
    uint32_t rows, cols;
    double condition; /* 0: Gaussian; negative: of the lower half, all alike */
    double dfi_max, error_max;
    uint32_t rank;      /* 0: full */
    const char *method; /* NULL: any; else what the method begins with */
} cases[] = {
    { "square, f32 promise", "scale=one", 96, 96, 0, 1e-6, 1e-5, 0, NULL },
    { "square, ill conditioned", "scale=one", 128, 128, 1e4, 1e-6, 1e-5, 0, NULL },
    { "long, well conditioned", "scale=one", 256, 64, 3, 1e-6, 1e-5, 0, NULL },
    { "odd sides", "scale=one", 131, 67, 0, 1e-6, 1e-5, 0, NULL },
    { "fast: only the DfI counts", "scale=one compute=fast", 128, 128, 0, 1e-6, 1e-2, 0,
      "D P9 P9 E5" },
    { "fast, odd sides", "scale=one compute=fast", 161, 131, 0, 1e-6, 1e-2, 0, "D P9 P9 E5" },
    { "fast, well conditioned", "scale=one compute=fast", 130, 130, 1.5, 1e-6, 1e-4, 0, "D gram(" },
    { "fast, ill conditioned", "scale=one compute=fast", 128, 128, 1e4, 1e-6, 2e-2, 0, "D P9 P9 " },
    { "fast, worse", "scale=one compute=fast", 128, 128, 2e6, 1e-6, 1, 0, "wide:" },
    { "fast, a rank defect", "scale=one compute=fast", 160, 140, 0, 1e-4, 1e-2, 139, "hard:" },
    { "fast, a large one", "scale=one compute=fast", 160, 140, 0, 1e-4, 1e-2, 60, "hard:" },
    { "fast, half of them small", "scale=one compute=fast", 140, 130, -1e5, 1e-6, 2e-3, 0, NULL },
    { "fast, small", "scale=one compute=fast", 127, 127, 0, 1e-6, 1e-2, 0, "D" },
    { "fast and long", "scale=one compute=fast", 256, 96, 10, 1e-6, 1e-2, 0, NULL },
};

static void make_weights(size_t index, struct fire_random *random, double *w)
{
    const uint32_t rows = cases[index].rows, cols = cases[index].cols;
    double *sigma = malloc(cols * sizeof(double));

    ck_assert_ptr_nonnull(sigma);
    if (cases[index].rank) {
        spectrum_log_spaced(cols, 10, sigma);
        for (uint32_t i = cases[index].rank; i < cols; i++)
            sigma[i] = 0;
        matrix_with_spectrum(random, rows, cols, sigma, w);
    } else if (cases[index].condition < 0) {
        spectrum_log_spaced(cols, 1.5, sigma);
        for (uint32_t i = cols / 2; i < cols; i++)
            sigma[i] = -1 / cases[index].condition;
        matrix_with_spectrum(random, rows, cols, sigma, w);
    } else if (cases[index].condition == 0) {
        matrix_gaussian(random, rows, cols, w);
    } else {
        spectrum_log_spaced(cols, cases[index].condition, sigma);
        matrix_with_spectrum(random, rows, cols, sigma, w);
    }
    free(sigma);
}

START_TEST(the_emulated_path_keeps_its_promise)
{
    const uint32_t rows = cases[_i].rows, cols = cases[_i].cols;
    const uint32_t rank = cases[_i].rank ? cases[_i].rank : cols;
    const size_t count = (size_t)rows * cols;
    double *w = matrix_alloc(rows, cols), *q = matrix_alloc(rows, cols);
    double *want = matrix_alloc(rows, cols);
    float *slot_weights = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
    struct polar_space space = { 0 };
    struct fire_result result = { 0 };
    struct fire_slot slot = { .weights = slot_weights, .result = &result };
    struct fire_options options;
    struct fire_plan plan;
    struct fire_random random;

    ck_assert_ptr_nonnull(slot_weights);
    fire_random_init(&random, 7 + (uint64_t)_i);
    make_weights((size_t)_i, &random, w);
    matrix_round(w, count);
    matrix_to_f32(w, count, slot_weights);
    options_make(&options, "fire", cases[_i].settings);
    projection_plan(&options, rows, cols, &plan);

    const struct engine *engine = amx_engine_emulated(plan.fast);
    void *scratch = aligned_alloc(64, (dense_scratch_bytes(engine, cols) + 63) / 64 * 64);
    const struct crew crew = { .engine = engine, .scratch = &scratch };

    ck_assert_ptr_nonnull(scratch);
    slot_run(&crew, &plan, &space, &slot);
    ck_assert_msg(result.action == FIRE_ACTION_PROJECTED, "%s: %s", cases[_i].name, result.reason);
    ck_assert_str_eq(result.path, "amx");
    matrix_from_f32(slot_weights, count, q);
    matrix_polar(w, rows, cols, rank, NULL, want);
    ck_assert_uint_eq(result.rank, rank);
    if (cases[_i].method)
        ck_assert_msg(strncmp(result.method, cases[_i].method, strlen(cases[_i].method)) == 0,
                      "%s: went by %s", cases[_i].name, result.method);
    ck_assert_msg(matrix_dfi(q, rows, cols) <= cases[_i].dfi_max + (cols - rank), "%s: DfI %g (%s)",
                  cases[_i].name, matrix_dfi(q, rows, cols), result.method);
    ck_assert_msg(matrix_distance(q, want, count) / sqrt(cols) <= cases[_i].error_max,
                  "%s: error %g (%s)", cases[_i].name, matrix_distance(q, want, count) / sqrt(cols),
                  result.method);
    polar_space_release(&space);
    free(scratch);
    free(slot_weights);
    free(want);
    free(q);
    free(w);
}
END_TEST

/* A pool cuts tiles as its threads are many, and each thread takes what comes: the bits stay. */
START_TEST(bits_do_not_depend_on_the_threads)
{
    static const struct {
        const char *settings;
        uint32_t rows, cols;
    } shapes[] = {
        { "compute=fast", 172, 140 }, /* packed tiles; an edge of 12 rows and one of 12 columns */
        { "compute=fast", 300, 170 }, /* split products */
        { "", 172, 140 },
    };
    const size_t count = (size_t)shapes[_i].rows * shapes[_i].cols;
    const size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
    float *weights[2] = { aligned_alloc(64, bytes), aligned_alloc(64, bytes) };
    void *scratch[4];
    struct fire_options options;
    struct fire_plan plan;

    options_make(&options, "fire", shapes[_i].settings);
    projection_plan(&options, shapes[_i].rows, shapes[_i].cols, &plan);
    const struct engine *engine = amx_engine_emulated(plan.fast);

    for (size_t i = 0; i < 4; i++)
        scratch[i] =
            aligned_alloc(64, (dense_scratch_bytes(engine, shapes[_i].cols) + 63) / 64 * 64);
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct polar_space space = { 0 };
        struct fire_result result = { 0 };
        struct fire_slot slot = { .weights = weights[threads > 1], .result = &result };
        struct crew crew = { .engine = engine, .scratch = scratch };
        struct fire_random random;

        fire_random_init(&random, 3);
        for (size_t i = 0; i < count; i++)
            weights[threads > 1][i] = (float)fire_random_normal(&random);
        if (threads > 1)
            ck_assert_int_eq(pool_open(threads, 0, &crew.pool), FIRE_OK);
        slot_run(&crew, &plan, &space, &slot);
        ck_assert_int_eq(result.action, FIRE_ACTION_PROJECTED);
        ck_assert_msg(memcmp(weights[0], slot.weights, count * sizeof(float)) == 0,
                      "other bits with %u threads (%s)", threads, result.method);
        pool_close(crew.pool);
        polar_space_release(&space);
    }
    for (size_t i = 0; i < 4; i++)
        free(scratch[i]);
    free(weights[0]);
    free(weights[1]);
}
END_TEST

/* Products with a triangle are the base engine's, and cut as it wants them: its tiles hold no more
 * columns than its scratch. */
START_TEST(triangles_are_the_base_engines)
{
    const uint32_t m = 128, n = 1056;
    const size_t ld = dense_stride(n);
    const struct engine *engines[2] = { &engine_portable, amx_engine_emulated(true) };
    float *a = aligned_alloc(64, m * ld * sizeof(float));
    float *b = aligned_alloc(64, n * ld * sizeof(float));
    float *c[2] = { aligned_alloc(64, m * ld * sizeof(float)),
                    aligned_alloc(64, m * ld * sizeof(float)) };
    struct fire_random random;

    fire_random_init(&random, 5);
    for (size_t i = 0; i < m * ld; i++)
        a[i] = c[0][i] = c[1][i] = i % ld < n ? (float)fire_random_normal(&random) : 0;
    for (size_t i = 0; i < n * ld; i++)
        b[i] = i % ld <= i / ld ? (float)fire_random_normal(&random) : 0;
    for (int i = 0; i < 2; i++) {
        void *scratch = aligned_alloc(64, (dense_scratch_bytes(engines[i], n) + 63) / 64 * 64);
        const struct crew crew = { .engine = engines[i], .scratch = &scratch };
        const struct product product = { .m = m,
                                         .n = n,
                                         .k = n,
                                         .a = a,
                                         .lda = ld,
                                         .b = b,
                                         .ldb = ld,
                                         .b_shape = PRODUCT_LOWER,
                                         .c = c[i],
                                         .ldc = ld,
                                         .alpha = 1 };

        ck_assert_ptr_nonnull(scratch);
        dense_product(&crew, FIRE_F32, &product);
        free(scratch);
    }
    ck_assert_mem_eq(c[0], c[1], m * ld * sizeof(float));
    free(a);
    free(b);
    free(c[0]);
    free(c[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("amx engine");
    TCase *tcase = tcase_create("emulated tile unit");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, the_emulated_path_keeps_its_promise, 0,
                        sizeof(cases) / sizeof(cases[0]));
    tcase_add_loop_test(tcase, bits_do_not_depend_on_the_threads, 0, 3);
    tcase_add_test(tcase, triangles_are_the_base_engines);
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
