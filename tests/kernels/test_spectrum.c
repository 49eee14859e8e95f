/* Singular values that a device hands out, against those the matrix was made of and a float64 SVD;
 * and how many become a few, on lists whose answer is known by hand. */
#include "spectrum.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "matrices.h"
#include "projection.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define LIST_MAX     4096u
#define MANY         2048
#define FEW          256

/* total, total - 1, …, 1: a value tells its place. */
static void count_down(double *values, uint64_t total)
{
    for (uint64_t i = 0; i < total; i++)
        values[i] = (double)(total - i);
}

static const uint64_t totals[] = { 1, 2, 511, 512, 513, 1023, 4096 };

START_TEST(a_choice_is_even_and_has_both_ends)
{
    static double values[LIST_MAX];
    struct fire_spectrum kept = { 0 };
    const uint64_t total = totals[_i];
    double least = INFINITY, most = 0;

    count_down(values, total);
    fire_spectrum_choose(values, total, &kept);
    ck_assert_uint_eq(kept.total, total);
    ck_assert_uint_eq(kept.count, total < FIRE_SPECTRUM_MAX ? total : FIRE_SPECTRUM_MAX);
    ck_assert_double_eq(kept.values[0], (double)total);
    ck_assert_double_eq(kept.values[kept.count - 1], 1);
    for (uint32_t i = 1; i < kept.count; i++) {
        least = fmin(least, kept.values[i - 1] - kept.values[i]);
        most = fmax(most, kept.values[i - 1] - kept.values[i]);
    }
    if (kept.count > 1) {
        ck_assert_double_ge(least, 1);
        ck_assert_double_le(most - least, 1);
    }
}
END_TEST

START_TEST(short_lists_merge_exactly)
{
    static const double first[] = { 9, 4, 1 }, second[] = { 5, 4 }, third[] = { 10 };
    static const double all[] = { 10, 9, 5, 4, 4, 1 };
    struct fire_spectrum parts[3] = { 0 }, sum = { 0 };
    const struct fire_spectrum *list[] = { &parts[0], &parts[1], &parts[2] };

    fire_spectrum_choose(first, COUNT(first), &parts[0]);
    fire_spectrum_choose(second, COUNT(second), &parts[1]);
    fire_spectrum_choose(third, COUNT(third), &parts[2]);
    ck_assert_int_eq(fire_spectrum_merge(list, 3, &sum), FIRE_OK);
    ck_assert_uint_eq(sum.count, COUNT(all));
    ck_assert_uint_eq(sum.total, COUNT(all));
    for (size_t i = 0; i < COUNT(all); i++)
        ck_assert_double_eq(sum.values[i], all[i]);
}
END_TEST

/* 2048 values from 4 to 3, of which a quarter is kept, and 256 from 2 to 1, all kept: the large
 * ones must not be outnumbered because they were thinned. */
START_TEST(a_thinned_list_counts_for_what_it_stands_for)
{
    static double many[MANY], few[FEW];
    static struct fire_spectrum parts[2], sum;
    const struct fire_spectrum *list[] = { &parts[0], &parts[1] };
    uint32_t large = 0;

    for (size_t i = 0; i < MANY; i++)
        many[i] = 4 - (double)i / MANY;
    for (size_t i = 0; i < FEW; i++)
        few[i] = 2 - (double)i / FEW;
    fire_spectrum_choose(many, MANY, &parts[0]);
    fire_spectrum_choose(few, FEW, &parts[1]);
    ck_assert_int_eq(fire_spectrum_merge(list, 2, &sum), FIRE_OK);
    ck_assert_uint_eq(sum.total, MANY + FEW);
    ck_assert_uint_eq(sum.count, FIRE_SPECTRUM_MAX);
    ck_assert_double_eq(sum.values[0], 4);
    ck_assert_double_eq(sum.values[sum.count - 1], few[FEW - 1]);
    for (uint32_t i = 0; i < sum.count; i++) {
        large += sum.values[i] >= 3;
        ck_assert(i == 0 || sum.values[i] <= sum.values[i - 1]);
    }
    /* 2048 of 2304 places, within one. */
    ck_assert_uint_ge(large, 454);
    ck_assert_uint_le(large, 456);
}
END_TEST

START_TEST(what_one_part_does_not_know_the_sum_does_not_know)
{
    static const double values[] = { 2, 1 };
    struct fire_spectrum parts[2] = { 0 }, sum = { .count = 7 };
    const struct fire_spectrum *list[] = { &parts[0], &parts[1] };

    fire_spectrum_choose(values, COUNT(values), &parts[0]);
    ck_assert_int_eq(fire_spectrum_merge(list, 2, &sum), FIRE_OK);
    ck_assert_uint_eq(sum.count, 0);
    ck_assert_int_eq(fire_spectrum_merge(list, 0, &sum), FIRE_OK);
    ck_assert_uint_eq(sum.count, 0);
}
END_TEST

/* --- from a device ---------------------------------------------------------------------------- */

static const struct {
    const char *settings;
    uint32_t rows, cols;
    bool analyze;
    double error; /* of a value, against the largest */
} runs[] = {
    { "scale=one compute=f64", 40, 24, false, 1e-12 }, /* its own small path where it has one */
    { "scale=one", 96, 64, false, 1e-6 },
    { "scale=one", 700, 600, false, 1e-6 }, /* more than are kept */
    { "scale=one blend=0.5", 96, 64, false, 1e-6 },
    { "scale=one", 96, 64, true, 1e-6 },
};

static struct fire_spectra *run(int index, double *w, double *after)
{
    const uint32_t rows = runs[index].rows, cols = runs[index].cols;
    struct fire_spectra *spectra = calloc(1, sizeof(*spectra));
    struct fire_result result;
    struct fire_options options;
    struct projector projector;
    struct fire_plan plan;
    struct fire_slot slot = { .result = &result, .spectra = spectra };
    struct fire_batch batch = { .plan = &plan, .slots = &slot, .slot_count = 1 };

    ck_assert_ptr_nonnull(spectra);
    spectra->after.count = spectra->before.count = 3; /* of somebody before us */
    options_make(&options, "fire", runs[index].settings);
    projector_open(&projector, "portable", 2);
    projection_plan(&options, rows, cols, &plan);
    plan.statistics = FIRE_STATISTICS_BASIC | FIRE_STATISTICS_SPECTRUM;
    if (runs[index].analyze)
        plan.kind = FIRE_PLAN_ANALYZE;
    ck_assert_uint_eq(plan.rows, rows);
    slot.weights = projector.backend->host_alloc(projector.device, fire_plan_slot_bytes(&plan));
    ck_assert_ptr_nonnull(slot.weights);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        if (plan.compute == FIRE_F64)
            ((double *)slot.weights)[i] = w[i];
        else
            ((float *)slot.weights)[i] = (float)w[i];
    }
    ck_assert_int_eq(projector.backend->submit(projector.device, &batch), FIRE_OK);
    ck_assert_int_eq(projector.backend->wait(projector.device, &batch), FIRE_OK);
    ck_assert_int_eq(result.status, FIRE_OK);
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        after[i] = plan.compute == FIRE_F64 ? ((double *)slot.weights)[i]
                                            : (double)((float *)slot.weights)[i];
    projector.backend->host_free(projector.device, slot.weights);
    projector_close(&projector);
    return spectra;
}

static void check_against_svd(const struct fire_spectrum *got, const double *w, int index)
{
    const uint32_t rows = runs[index].rows, cols = runs[index].cols;
    double *u = matrix_alloc(rows, cols), *vt = matrix_alloc(cols, cols);
    double *sigma = matrix_alloc(cols, 1);
    struct fire_spectrum want = { 0 };

    matrix_svd(w, rows, cols, u, sigma, vt);
    fire_spectrum_choose(sigma, cols, &want);
    ck_assert_uint_eq(got->total, cols);
    ck_assert_uint_eq(got->count, want.count);
    for (uint32_t i = 0; i < want.count; i++)
        ck_assert_double_eq_tol(got->values[i], want.values[i], runs[index].error * sigma[0]);
    free(u);
    free(vt);
    free(sigma);
}

START_TEST(a_device_hands_out_what_a_float64_svd_finds)
{
    const uint32_t rows = runs[_i].rows, cols = runs[_i].cols;
    double *w = matrix_alloc(rows, cols), *after = matrix_alloc(rows, cols);
    struct fire_random random;
    struct fire_spectra *spectra;

    fire_random_init(&random, 77);
    matrix_gaussian(&random, rows, cols, w);
    spectra = run(_i, w, after);
    check_against_svd(&spectra->before, w, _i);
    if (runs[_i].analyze)
        ck_assert_uint_eq(spectra->after.count, 0);
    else
        check_against_svd(&spectra->after, after, _i);
    free(spectra);
    free(w);
    free(after);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("spectrum");
    TCase *tests = tcase_create("spectrum");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, a_choice_is_even_and_has_both_ends, 0, COUNT(totals));
    tcase_add_test(tests, short_lists_merge_exactly);
    tcase_add_test(tests, a_thinned_list_counts_for_what_it_stands_for);
    tcase_add_test(tests, what_one_part_does_not_know_the_sum_does_not_know);
    tcase_add_loop_test(tests, a_device_hands_out_what_a_float64_svd_finds, 0, COUNT(runs));
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
