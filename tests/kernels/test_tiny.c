/* Matrices with few columns go through the lanes of a register side by side. What comes out is the
 * polar factor, scaled, blended and rounded as the plan says; a matrix that is unfit for that way
 * gets what slot_run() gives; and nothing depends on who shares the register. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isa.h"
#include "matrices.h"
#include "polar_ref.h"
#include "projection.h"
#include "slot.h"
#include "tiny.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define DFI_MAX         1e-6
#define POLAR_ERROR_MAX 1e-5
#define POOL            19 /* matrices of different kinds */
#define MANY            1031

static const char *const paths[] = { "portable", "avx2", "avx512" };

/* Slots: the long side first. */
static const uint32_t shapes[][2] = {
    { 1, 1 },    { 2, 1 },    { 2, 2 },    { 3, 3 },   { 4, 4 },   { 5, 4 },
    { 5, 5 },    { 7, 6 },    { 8, 8 },    { 9, 7 },   { 9, 9 },   { 11, 10 },
    { 12, 12 },  { 13, 13 },  { 15, 14 },  { 16, 16 }, { 17, 16 }, { 64, 3 },
    { 100, 11 }, { 200, 16 }, { 256, 16 }, { 256, 1 }, { 17, 17 }, { 20, 19 },
    { 24, 24 },  { 29, 29 },  { 31, 30 },  { 32, 31 }, { 32, 32 }, { 128, 32 },
};

/* Opens a path this machine has; one it lacks is named on stderr, and the test ends. */
static bool open_path(struct projector *projector, size_t index, uint32_t threads)
{
    if (!path_exists(paths[index])) {
        fprintf(stderr, "skipped: path %s, which this CPU does not have\n", paths[index]);
        return false;
    }
    projector_open(projector, paths[index], threads);
    return true;
}

static void plan_make(const uint32_t shape[2], const char *settings, uint32_t statistics,
                      struct fire_plan *plan)
{
    struct fire_options options;

    options_make(&options, "fire", settings);
    projection_plan(&options, shape[0], shape[1], plan);
    plan->statistics = statistics;
}

/* One batch; matrix i is at weights + i * rows * cols. */
static void run(struct projector *projector, const struct fire_plan *plan, float *weights,
                struct fire_result *results, uint32_t count)
{
    struct fire_slot *slots = calloc(count, sizeof(*slots));
    struct fire_batch batch = { .plan = plan, .slots = slots, .slot_count = count };

    ck_assert_ptr_nonnull(slots);
    for (uint32_t i = 0; i < count; i++) {
        slots[i].weights = weights + (size_t)i * plan->rows * plan->cols;
        slots[i].result = &results[i];
    }
    ck_assert_int_eq(projector->backend->submit(projector->device, &batch), FIRE_OK);
    ck_assert_int_eq(projector->backend->wait(projector->device, &batch), FIRE_OK);
    free(slots);
}

static float *floats(size_t count)
{
    float *memory = calloc(count, sizeof(*memory));

    ck_assert_ptr_nonnull(memory);
    return memory;
}

/* Gaussian and rounded to f32, in both forms. */
static void gaussian(uint64_t seed, const uint32_t shape[2], double *w, float *slot)
{
    const size_t count = (size_t)shape[0] * shape[1];
    struct fire_random random;

    fire_random_init(&random, seed);
    matrix_gaussian(&random, shape[0], shape[1], w);
    matrix_round(w, count);
    matrix_to_f32(w, count, slot);
}

static void assert_factor(const uint32_t shape[2], uint32_t statistics, struct projector *projector,
                          float *slot, float *other)
{
    const size_t count = (size_t)shape[0] * shape[1];
    double *w = matrix_alloc(shape[0], shape[1]);
    double *want = matrix_alloc(shape[0], shape[1]);
    double *got = matrix_alloc(shape[0], shape[1]);
    struct fire_result result;
    struct fire_plan plan;

    plan_make(shape, "scale=one", statistics, &plan);
    ck_assert(tiny_takes(&plan));
    gaussian(count + shape[1], shape, w, slot);
    run(projector, &plan, slot, &result, 1);
    matrix_from_f32(slot, count, got);
    ck_assert_int_eq(fire_polar_ref(w, shape[0], shape[1], 0, want), FIRE_OK);
    ck_assert_msg(strncmp(result.method, "lanes ", 6) == 0, "%u x %u: method %s", shape[0],
                  shape[1], result.method);
    ck_assert(result.action == FIRE_ACTION_PROJECTED && result.status == FIRE_OK);
    ck_assert(result.converged && result.rank == shape[1] && result.rank_defect == 0);
    ck_assert(result.steps > 0 && result.matrices == 1 && result.compute_ms >= 0);
    ck_assert_double_le(matrix_dfi(got, shape[0], shape[1]), DFI_MAX);
    ck_assert_msg(matrix_distance(got, want, count) <= POLAR_ERROR_MAX * sqrt(shape[1]),
                  "%u x %u (%s): polar error %g", shape[0], shape[1], result.method,
                  matrix_distance(got, want, count) / sqrt(shape[1]));
    if (statistics) {
        ck_assert_double_eq_tol(result.dfi_unscaled_after, matrix_dfi(got, shape[0], shape[1]),
                                1e-9);
        ck_assert_double_eq_tol(result.before.dfi, matrix_dfi(w, shape[0], shape[1]),
                                1e-6 * result.before.dfi);
        ck_assert_msg(memcmp(slot, other, count * sizeof(*slot)) == 0,
                      "%u x %u: statistics change the weights", shape[0], shape[1]);
    }
    free(w);
    free(want);
    free(got);
}

START_TEST(the_lanes_find_the_polar_factor)
{
    struct projector projector;

    if (!open_path(&projector, (size_t)_i, 1))
        return;
    for (size_t s = 0; s < COUNT(shapes); s++) {
        const size_t count = (size_t)shapes[s][0] * shapes[s][1];
        float *plain = floats(count);
        float *described = floats(count);

        assert_factor(shapes[s], 0, &projector, plain, NULL);
        assert_factor(shapes[s], FIRE_STATISTICS_BASIC | FIRE_STATISTICS_RESIDUAL, &projector,
                      described, plain);
        free(plain);
        free(described);
    }
    projector_close(&projector);
}
END_TEST

/* Condition numbers on both sides of what the lanes take; each shape on every path. */
START_TEST(badly_conditioned_matrices_are_accurate_too)
{
    static const double kappas[] = { 1, 10, 1e2, 1e3, 1e4, 2e4, 5e4, 1e5, 1e6 };
    static const uint32_t conditioned[][2] = { { 40, 13 }, { 32, 32 } };
    const uint32_t *shape = conditioned[(size_t)_i / COUNT(paths)];
    const size_t count = (size_t)shape[0] * shape[1];
    double sigma[TINY_COLS_MAX];
    struct projector projector;
    struct fire_plan plan;
    uint32_t in_lanes = 0;

    if (!open_path(&projector, (size_t)_i % COUNT(paths), 1))
        return;
    double *w = matrix_alloc(shape[0], shape[1]), *want = matrix_alloc(shape[0], shape[1]);
    float *slot = floats(count);

    plan_make(shape, "scale=one", 0, &plan);
    for (size_t k = 0; k < COUNT(kappas); k++) {
        struct fire_random random;
        struct fire_result result;

        fire_random_init(&random, k);
        spectrum_log_spaced(shape[1], kappas[k], sigma);
        matrix_with_spectrum(&random, shape[0], shape[1], sigma, w);
        matrix_round(w, count);
        matrix_to_f32(w, count, slot);
        ck_assert_int_eq(fire_polar_ref(w, shape[0], shape[1], 0, want), FIRE_OK);
        run(&projector, &plan, slot, &result, 1);
        matrix_from_f32(slot, count, w);
        ck_assert_msg(matrix_distance(w, want, count) <= POLAR_ERROR_MAX * sqrt(shape[1]),
                      "kappa %g (%s): polar error %g", kappas[k], result.method,
                      matrix_distance(w, want, count) / sqrt(shape[1]));
        in_lanes += strncmp(result.method, "lanes ", 6) == 0;
    }
    ck_assert_uint_ge(in_lanes, 5);
    ck_assert_uint_lt(in_lanes, COUNT(kappas));
    projector_close(&projector);
    free(w);
    free(want);
    free(slot);
}
END_TEST

/* The relative error is that of the output's rounding. */
static const struct {
    const char *settings;
    enum fire_dtype output;
    double error_max;
} ends[] = {
    { "scale=one", FIRE_F32, 1e-5 },
    { "scale=kaiming", FIRE_F32, 1e-5 },
    { "scale=keep-norm", FIRE_F32, 1e-5 },
    { "scale=keep-norm variance=0.5", FIRE_F32, 1e-5 },
    { "scale=mean-sigma", FIRE_F32, 1e-5 },
    { "scale=one blend=0.25", FIRE_F32, 1e-5 },
    { "scale=mean-sigma blend=0.5", FIRE_F32, 1e-5 },
    { "scale=one compute=fast", FIRE_F32, 1e-3 },
    { "scale=one", FIRE_BF16, 0x1p-8 },
    { "scale=keep-norm blend=0.5", FIRE_F16, 0x1p-11 },
};

START_TEST(scale_blend_and_rounding_follow_the_plan)
{
    static const uint32_t shape[2] = { 30, 9 };
    const size_t count = (size_t)shape[0] * shape[1];
    struct projector projector;

    if (!open_path(&projector, (size_t)_i, 1))
        return;
    double *w = matrix_alloc(shape[0], shape[1]), *want = matrix_alloc(shape[0], shape[1]);
    double *got = matrix_alloc(shape[0], shape[1]);
    float *slot = floats(count);

    for (size_t c = 0; c < COUNT(ends); c++) {
        struct fire_result result;
        struct fire_plan plan;
        double sfe;

        plan_make(shape, ends[c].settings, 0, &plan);
        plan.output = ends[c].output;
        gaussian(7, shape, w, slot);
        ck_assert_int_eq(fire_plan_ref(&plan, w, NULL, want), FIRE_OK);
        run(&projector, &plan, slot, &result, 1);
        matrix_from_f32(slot, count, got);
        ck_assert_msg(strncmp(result.method, "lanes ", 6) == 0, "%s", result.method);
        ck_assert_msg(matrix_distance(got, want, count) <=
                          ends[c].error_max * matrix_norm(want, count),
                      "%s: relative error %g", ends[c].settings,
                      matrix_distance(got, want, count) / matrix_norm(want, count));
        for (size_t e = 0; e < count; e++)
            ck_assert_double_eq(got[e], fire_dtype_round(plan.output, got[e]));
        sfe = matrix_distance(got, w, count) * matrix_distance(got, w, count);
        ck_assert_double_eq_tol(result.sfe, sfe, 1e-9 * sfe);
        ck_assert_double_eq_tol(result.sfe_relative * matrix_norm(w, count) * matrix_norm(w, count),
                                sfe, 1e-9 * sfe);
    }
    projector_close(&projector);
    free(w);
    free(want);
    free(got);
    free(slot);
}
END_TEST

/* --- neighbours ----------------------------------------------------------------------------- */

enum kind { EASY, ISOMETRY, KAPPA_1E3, KAPPA_1E7, DEFICIENT, ZERO, HUGE_NUMBERS, DENORMAL, KINDS };

static void kind_make(enum kind kind, uint64_t seed, const uint32_t shape[2], float *slot)
{
    const size_t count = (size_t)shape[0] * shape[1];
    double *w = matrix_alloc(shape[0], shape[1]);
    double sigma[TINY_COLS_MAX] = { 0 }, factor = 1;
    struct fire_random random;

    fire_random_init(&random, seed);
    matrix_gaussian(&random, shape[0], shape[1], w);
    switch (kind) {
    case EASY: break;
    case ISOMETRY: matrix_orthogonal(&random, shape[0], shape[1], w); break;
    case KAPPA_1E3:
    case KAPPA_1E7:
        spectrum_log_spaced(shape[1], kind == KAPPA_1E3 ? 1e3 : 1e7, sigma);
        matrix_with_spectrum(&random, shape[0], shape[1], sigma, w);
        break;
    case DEFICIENT:
        spectrum_deficient(&random, shape[1], shape[1] / 2, sigma);
        matrix_with_spectrum(&random, shape[0], shape[1], sigma, w);
        break;
    case ZERO: factor = 0; break;
    case HUGE_NUMBERS: factor = 1e37; break;
    case DENORMAL: factor = 1e-40; break;
    case KINDS: break;
    }
    for (size_t i = 0; i < count; i++)
        w[i] *= factor;
    matrix_to_f32(w, count, slot);
    free(w);
}

/* Everything of a result but the clock. */
static bool same_result(const struct fire_result *a, const struct fire_result *b)
{
    if (strcmp(a->method, b->method) != 0 || strcmp(a->reason, b->reason) != 0 ||
        a->steps != b->steps || a->rank != b->rank || a->rank_defect != b->rank_defect ||
        a->action != b->action || a->status != b->status || a->converged != b->converged ||
        a->matrices != b->matrices || strcmp(a->path, b->path) != 0)
        return false;
    for (size_t i = 0; i < fire_result_field_count(); i++) {
        const double x = fire_result_value(a, i);
        const double y = fire_result_value(b, i);

        if (strcmp(fire_result_field_at(i)->name, "compute_ms") != 0 &&
            memcmp(&x, &y, sizeof(x)) != 0 && !(isnan(x) && isnan(y)))
            return false;
    }
    return true;
}

/* POOL matrices of all kinds, and what becomes of each when it is alone. */
struct pool_of_kinds {
    uint32_t shape[2];
    size_t count;
    struct fire_plan plan;
    float *weights;
    float *alone;
    float *batch;
    struct fire_result results[POOL];
};

static void pool_make(struct pool_of_kinds *pool, struct projector *projector, uint32_t rows,
                      uint32_t cols, uint32_t statistics)
{
    pool->shape[0] = rows;
    pool->shape[1] = cols;
    pool->count = (size_t)rows * cols;
    plan_make(pool->shape, "", statistics, &pool->plan);
    pool->weights = floats(POOL * pool->count);
    pool->alone = floats(POOL * pool->count);
    pool->batch = floats(POOL * pool->count);
    for (uint32_t m = 0; m < POOL; m++)
        kind_make((enum kind)(m % KINDS), m, pool->shape, pool->weights + m * pool->count);
    memcpy(pool->alone, pool->weights, POOL * pool->count * sizeof(float));
    for (uint32_t m = 0; m < POOL; m++) {
        const bool fit = m % KINDS != KAPPA_1E7 && m % KINDS != DEFICIENT && m % KINDS != ZERO;

        run(projector, &pool->plan, pool->alone + m * pool->count, &pool->results[m], 1);
        ck_assert_msg(fit == (strncmp(pool->results[m].method, "lanes ", 6) == 0), "matrix %u: %s",
                      m, pool->results[m].method);
    }
}

static void pool_free(struct pool_of_kinds *pool)
{
    free(pool->weights);
    free(pool->alone);
    free(pool->batch);
}

/* Matrices first, first + 1, … around the pool as one batch of `size`. */
static void assert_same_in_batch(struct pool_of_kinds *pool, struct projector *projector,
                                 uint32_t first, uint32_t size)
{
    const size_t bytes = pool->count * sizeof(float);
    struct fire_result results[POOL];

    for (uint32_t i = 0; i < size; i++)
        memcpy(pool->batch + i * pool->count, pool->weights + (first + i) % POOL * pool->count,
               bytes);
    run(projector, &pool->plan, pool->batch, results, size);
    for (uint32_t i = 0; i < size; i++) {
        const uint32_t m = (first + i) % POOL;

        ck_assert_msg(memcmp(pool->batch + i * pool->count, pool->alone + m * pool->count, bytes) ==
                          0,
                      "matrix %u at %u of %u: other bits (%s)", m, i, size, results[i].method);
        ck_assert_msg(same_result(&results[i], &pool->results[m]),
                      "matrix %u at %u of %u: another result (%s, %s)", m, i, size,
                      results[i].method, pool->results[m].method);
    }
}

START_TEST(bits_do_not_depend_on_the_neighbours)
{
    static const uint32_t runs[][3] = { { 8, 8, 0 }, { 21, 5, 0 }, { 16, 14, 7 }, { 33, 27, 0 } };
    struct projector one, two;

    if (!open_path(&one, (size_t)_i, 1))
        return;
    projector_open(&two, paths[_i], 2);
    for (size_t r = 0; r < COUNT(runs); r++) {
        struct pool_of_kinds pool;

        pool_make(&pool, &one, runs[r][0], runs[r][1], runs[r][2]);
        for (uint32_t size = 1; size <= POOL; size++) {
            for (uint32_t first = 0; first < POOL; first += 3)
                assert_same_in_batch(&pool, first % 2 ? &one : &two, first, size);
        }
        pool_free(&pool);
    }
    projector_close(&one);
    projector_close(&two);
}
END_TEST

/* Tasks of several groups, and a last group that is not full. */
START_TEST(every_matrix_of_a_large_batch_is_done)
{
    static const uint32_t shape[2] = { 6, 5 };
    struct fire_result *results;
    struct pool_of_kinds pool;
    struct projector projector;
    float *weights;

    if (!open_path(&projector, (size_t)_i, 2))
        return;
    results = calloc(MANY, sizeof(*results));
    ck_assert_ptr_nonnull(results);
    pool_make(&pool, &projector, shape[0], shape[1], 0);
    weights = floats(MANY * pool.count);
    for (uint32_t m = 0; m < MANY; m++)
        memcpy(weights + m * pool.count, pool.weights + m % POOL * pool.count,
               pool.count * sizeof(float));
    run(&projector, &pool.plan, weights, results, MANY);
    for (uint32_t m = 0; m < MANY; m++) {
        ck_assert_msg(memcmp(weights + m * pool.count, pool.alone + m % POOL * pool.count,
                             pool.count * sizeof(float)) == 0,
                      "matrix %u of %u: other bits", m, MANY);
        ck_assert(same_result(&results[m], &pool.results[m % POOL]));
    }
    projector_close(&projector);
    pool_free(&pool);
    free(weights);
    free(results);
}
END_TEST

/* --- unfit matrices ------------------------------------------------------------------------- */

/* What slot_run() makes of `slot`. */
static void run_slot(const char *path, const struct fire_plan *plan, float *slot,
                     struct fire_result *result)
{
    struct fire_slot one = { .weights = slot, .result = result };
    struct polar_space space = { 0 };
    struct isa_choice engines;
    char reason[160];
    void *scratch;

    ck_assert_int_eq(isa_choose(path, &engines, reason, sizeof(reason)), FIRE_OK);
    scratch = aligned_alloc(64, (dense_scratch_bytes(engines.exact, plan->cols) + 63) / 64 * 64);
    ck_assert_ptr_nonnull(scratch);
    slot_run(&(struct crew){ .engine = engines.exact, .scratch = &scratch }, plan, &space, &one);
    polar_space_release(&space);
    free(scratch);
}

static const struct {
    enum kind kind;
    const char *settings;
    enum fire_action action;
} unfit[] = {
    { KAPPA_1E7, "", FIRE_ACTION_PROJECTED },
    { DEFICIENT, "", FIRE_ACTION_PROJECTED },
    { DEFICIENT, "complete=on", FIRE_ACTION_PROJECTED },
    { ZERO, "", FIRE_ACTION_PROJECTED },
    { ZERO, "complete=on", FIRE_ACTION_PROJECTED },
    { EASY, "min_norm=1000", FIRE_ACTION_SKIPPED },
};

START_TEST(unfit_matrices_take_the_other_way)
{
    static const uint32_t shape[2] = { 20, 10 }, statistics[] = { 0, FIRE_STATISTICS_BASIC };
    const size_t count = (size_t)shape[0] * shape[1];
    struct projector projector;

    if (!open_path(&projector, (size_t)_i, 1))
        return;
    float *slot = floats(count), *other = floats(count);

    for (size_t u = 0; u < 2 * COUNT(unfit); u++) {
        struct fire_result result, want;
        struct fire_plan plan;

        plan_make(shape, unfit[u / 2].settings, statistics[u % 2], &plan);
        ck_assert(tiny_takes(&plan));
        kind_make(unfit[u / 2].kind, u, shape, slot);
        memcpy(other, slot, count * sizeof(*slot));
        run(&projector, &plan, slot, &result, 1);
        run_slot(paths[_i], &plan, other, &want);
        ck_assert_int_eq(result.action, unfit[u / 2].action);
        ck_assert_msg(memcmp(slot, other, count * sizeof(*slot)) == 0, "case %zu: other bits", u);
        ck_assert_msg(same_result(&result, &want), "case %zu: %s, %s", u, result.method,
                      want.method);
    }
    projector_close(&projector);
    free(slot);
    free(other);
}
END_TEST

START_TEST(other_plans_are_not_taken)
{
    static const uint32_t small[2] = { 16, 16 }, long_one[2] = { 257, 15 },
                          wide_one[2] = { 33, 33 }, large_one[2] = { 129, 32 };
    struct fire_plan plan;

    plan_make(small, "", 0, &plan);
    ck_assert(tiny_takes(&plan));
    plan_make(long_one, "", 0, &plan);
    ck_assert(!tiny_takes(&plan));
    plan_make(wide_one, "", 0, &plan);
    ck_assert(!tiny_takes(&plan));
    plan_make(large_one, "", 0, &plan);
    ck_assert(!tiny_takes(&plan));
    plan_make(small, "compute=f64", 0, &plan);
    ck_assert(!tiny_takes(&plan));
    plan_make(small, "polynomial=cubic", 0, &plan);
    ck_assert(!tiny_takes(&plan));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tiny");
    TCase *tests = tcase_create("tiny");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, the_lanes_find_the_polar_factor, 0, COUNT(paths));
    tcase_add_loop_test(tests, badly_conditioned_matrices_are_accurate_too, 0, 2 * COUNT(paths));
    tcase_add_loop_test(tests, scale_blend_and_rounding_follow_the_plan, 0, COUNT(paths));
    tcase_add_loop_test(tests, bits_do_not_depend_on_the_neighbours, 0, COUNT(paths));
    tcase_add_loop_test(tests, every_matrix_of_a_large_batch_is_done, 0, COUNT(paths));
    tcase_add_loop_test(tests, unfit_matrices_take_the_other_way, 0, COUNT(paths));
    tcase_add_test(tests, other_plans_are_not_taken);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
