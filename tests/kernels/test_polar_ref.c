/* The reference itself, against answers known by hand and against LAPACK. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "matrices.h"
#include "polar_ref.h"

static const struct fire_polynomial_step cubic = { 2, { 1.5, -0.5 } };

/* An m x n matrix is U S V^T with orthonormal columns whatever its shape, rank and size. */
static const struct {
    uint32_t rows, cols, rank;
    double magnitude;
} svd_cases[] = {
    { 1, 1, 1, 1.0 },      { 1, 1, 0, 1.0 },     { 1, 7, 1, 1.0 },    { 7, 1, 1, 1.0 },
    { 5, 5, 5, 1.0 },      { 12, 5, 5, 1.0 },    { 5, 12, 5, 1.0 },   { 12, 5, 3, 1.0 },
    { 5, 12, 3, 1.0 },     { 9, 9, 0, 1.0 },     { 33, 32, 32, 1.0 }, { 40, 17, 17, 1e150 },
    { 17, 40, 9, 1e-150 }, { 64, 64, 64, 1e30 },
};

START_TEST(svd_takes_a_matrix_apart)
{
    const uint32_t rows = svd_cases[_i].rows;
    const uint32_t cols = svd_cases[_i].cols;
    const uint32_t rank = svd_cases[_i].rank;
    const uint32_t r = rows < cols ? rows : cols;
    const double magnitude = svd_cases[_i].magnitude;
    struct fire_random random;
    double *w = matrix_alloc(rows, cols);
    double *want = matrix_alloc(r, 1);
    double *u = matrix_alloc(rows, r);
    double *v = matrix_alloc(cols, r);
    double *sigma = matrix_alloc(r, 1);

    fire_random_init(&random, 7 + (uint64_t)_i);
    spectrum_deficient(&random, r, rank, want);
    matrix_with_spectrum(&random, rows, cols, want, w);
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        w[i] *= magnitude;
    ck_assert_int_eq(fire_svd_ref(w, rows, cols, u, v, sigma), FIRE_OK);

    for (uint32_t k = 0; k < r; k++) {
        ck_assert_double_eq_tol(sigma[k] / magnitude, want[k], 1e-14);
        ck_assert(k == 0 || sigma[k] <= sigma[k - 1]);
        for (uint32_t l = 0; l <= k && k < rank; l++) {
            double uu = k == l ? -1.0 : 0.0;
            double vv = uu;

            for (uint32_t i = 0; i < rows; i++)
                uu += u[i * r + k] * u[i * r + l];
            for (uint32_t j = 0; j < cols; j++)
                vv += v[j * r + k] * v[j * r + l];
            ck_assert_double_lt(fabs(uu), 1e-13);
            ck_assert_double_lt(fabs(vv), 1e-13);
        }
    }
    for (uint32_t i = 0; i < rows; i++) {
        for (uint32_t j = 0; j < cols; j++) {
            double sum = 0.0;

            for (uint32_t k = 0; k < r; k++)
                sum += u[i * r + k] * (sigma[k] / magnitude) * v[j * r + k];
            ck_assert_double_eq_tol(sum, w[i * cols + j] / magnitude, 1e-14);
        }
    }
    free(w);
    free(want);
    free(u);
    free(v);
    free(sigma);
}
END_TEST

/* Columns of very different length: a method that squares the matrix loses the short ones. */
START_TEST(small_singular_values_keep_their_digits)
{
    double w[6] = { 1.0, 1e-12, 1.0, -1e-12, 0.0, 0.0 };
    double sigma[2];

    ck_assert_int_eq(fire_svd_ref(w, 3, 2, NULL, NULL, sigma), FIRE_OK);
    ck_assert_double_eq_tol(sigma[0] / sqrt(2.0), 1.0, 1e-15);
    ck_assert_double_eq_tol(sigma[1] / (1e-12 * sqrt(2.0)), 1.0, 1e-14);
}
END_TEST

START_TEST(polar_factor_agrees_with_lapack)
{
    static const uint32_t shapes[][2] = { { 20, 20 }, { 48, 12 }, { 12, 48 } };
    const uint32_t rows = shapes[_i][0];
    const uint32_t cols = shapes[_i][1];
    const uint32_t r = rows < cols ? rows : cols;
    struct fire_random random;
    double *w = matrix_alloc(rows, cols);
    double *q = matrix_alloc(rows, cols);
    double *want = matrix_alloc(rows, cols);
    double *sigma = matrix_alloc(r, 1);

    fire_random_init(&random, 11);
    spectrum_log_spaced(r, 1e3, sigma);
    matrix_with_spectrum(&random, rows, cols, sigma, w);
    matrix_polar(w, rows, cols, r, NULL, want);
    ck_assert_int_eq(fire_polar_ref(w, rows, cols, 0.0, q), FIRE_OK);
    ck_assert_double_lt(matrix_distance(q, want, (size_t)rows * cols), 1e-11);
    ck_assert_double_lt(fire_dfi_ref(q, rows, cols), 1e-24);

    /* 1e-2 is the middle of the spectrum's exponents: two thirds of the values lie above. */
    const uint32_t kept = r * 2 / 3;

    matrix_polar(w, rows, cols, kept, NULL, want);
    ck_assert_int_eq(fire_polar_ref(w, rows, cols, sqrt(sigma[kept - 1] * sigma[kept]), q),
                     FIRE_OK);
    ck_assert_double_lt(matrix_distance(q, want, (size_t)rows * cols), 1e-11);
    ck_assert_double_eq_tol(fire_dfi_ref(q, rows, cols), (double)(r - kept), 1e-10);
    free(w);
    free(q);
    free(want);
    free(sigma);
}
END_TEST

START_TEST(not_a_number_is_refused)
{
    const double w[4] = { 1.0, NAN, 0.5, 2.0 };
    double sigma[2];

    ck_assert_int_eq(fire_svd_ref(w, 2, 2, NULL, NULL, sigma), FIRE_BAD_REQUEST);
}
END_TEST

/* One step maps a singular value s to s (c0 + c1 s^2 + c2 s^4 + …), whatever the vectors. A
 * diagonal input shows its singular values, so the answer is known by hand. */
static const struct {
    const char *name;
    uint32_t rows, cols;
    struct fire_polynomial_step step;
} step_cases[] = {
    { "cubic", 2, 2, { 2, { 1.5, -0.5 } } },
    { "quintic", 3, 2, { 3, { 3.4445, -4.7750, 2.0315 } } },
    { "degree nine, wide", 2, 4, { 5, { 2.4609375, -3.28125, 2.953125, -1.40625, 0.2734375 } } },
    { "constant", 2, 2, { 1, { 2.0 } } },
};

START_TEST(diagonal_follows_the_scalar_map)
{
    const uint32_t cols = step_cases[_i].cols;
    const struct fire_polynomial_step *step = &step_cases[_i].step;
    const struct fire_polynomial_step steps[2] = { *step, *step };
    double x[8] = { 0 };
    double want[2] = { 0.6, 0.8 };

    x[0] = want[0];
    x[cols + 1] = want[1];
    ck_assert_int_eq(fire_polynomial_ref(x, step_cases[_i].rows, cols, steps, 2), FIRE_OK);
    for (int k = 0; k < 2; k++) {
        for (int n = 0; n < 2; n++) {
            double factor = 0.0;

            for (uint32_t term = step->terms; term-- > 0;)
                factor = factor * want[k] * want[k] + step->c[term];
            want[k] *= factor;
        }
        ck_assert_msg(fabs(x[k ? cols + 1 : 0] - want[k]) < 1e-14, "%s", step_cases[_i].name);
    }
    ck_assert_double_lt(fabs(x[1]) + fabs(x[cols]), 1e-15);
}
END_TEST

/* A plan for the 2 x 2 diagonal matrix (3, 4) that only normalises. */
static struct fire_plan diagonal_plan(void)
{
    struct fire_plan plan;

    memset(&plan, 0, sizeof(plan));
    plan.kind = FIRE_PLAN_POLYNOMIAL;
    plan.rows = plan.cols = plan.out = plan.in = 2;
    plan.compute = plan.output = FIRE_F64;
    plan.normalize = FIRE_NORMALIZE_FROBENIUS;
    plan.step[0] = cubic;
    plan.step_count = 1;
    plan.steps = 0;
    plan.check = 1;
    plan.scale_factor = 1.0;
    plan.blend = 1.0;
    return plan;
}

START_TEST(each_norm_divides_by_its_own)
{
    static const struct {
        enum fire_normalize normalize;
        double eps, norm;
    } cases[] = {
        { FIRE_NORMALIZE_AUTO, 0.0, 5.0 },      { FIRE_NORMALIZE_FROBENIUS, 0.0, 5.0 },
        { FIRE_NORMALIZE_FROBENIUS, 1.0, 6.0 }, { FIRE_NORMALIZE_SPECTRAL, 0.0, 4.0 },
        { FIRE_NORMALIZE_SPECTRAL, 4.0, 8.0 },  { FIRE_NORMALIZE_SCHATTEN, 0.0, 0.0 },
    };
    const double w[4] = { 3.0, 0.0, 0.0, 4.0 };
    const double zero[4] = { 0 };
    double result[4];
    struct fire_plan plan = diagonal_plan();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        /* ||G^2||_F^(1/4) with G^2 = diag(3^4, 4^4) */
        const double schatten = pow(pow(3.0, 8.0) + pow(4.0, 8.0), 0.125);
        const double norm = cases[i].norm > 0.0 ? cases[i].norm : schatten;

        plan.normalize = cases[i].normalize;
        plan.eps = cases[i].eps;
        ck_assert_int_eq(fire_plan_ref(&plan, w, NULL, result), FIRE_OK);
        ck_assert_double_eq_tol(result[0], 3.0 / norm, 1e-14);
        ck_assert_double_eq_tol(result[3], 4.0 / norm, 1e-14);
        ck_assert_int_eq(fire_plan_ref(&plan, zero, NULL, result), FIRE_OK);
        ck_assert_double_eq(matrix_norm(result, 4), 0.0);
    }
}
END_TEST

/* 3/5 and 4/5 need four cubic steps for DfI <= 1e-6; looked at after steps 1, 1 + check, … */
START_TEST(steps_stop_where_the_plan_looks)
{
    static const struct {
        uint32_t check, max_steps, in;
        enum fire_target_form form;
        int want;
    } cases[] = {
        { 1, 0, 2, FIRE_TARGET_SHORT, 4 }, { 2, 0, 2, FIRE_TARGET_SHORT, 5 },
        { 3, 0, 2, FIRE_TARGET_SHORT, 4 }, { 5, 0, 2, FIRE_TARGET_SHORT, 6 },
        { 1, 3, 2, FIRE_TARGET_SHORT, 3 }, { 1, 0, 3, FIRE_TARGET_SHORT, 4 },
        { 1, 8, 3, FIRE_TARGET_FULL, 8 },
    };
    struct fire_plan plan = diagonal_plan();
    double w[6] = { 3.0, 0.0, 0.0, 4.0, 0.0, 0.0 };
    double result[6];
    double want[6];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        plan.rows = plan.in = cases[i].in; /* the slot of a wide matrix is its transpose */
        plan.target = 1e-6;
        plan.target_form = cases[i].form;
        plan.check = cases[i].check;
        plan.max_steps = cases[i].max_steps;
        plan.steps = FIRE_STEPS_AUTO;
        ck_assert_int_eq(fire_plan_ref(&plan, w, NULL, result), FIRE_OK);
        plan.steps = cases[i].want;
        ck_assert_int_eq(fire_plan_ref(&plan, w, NULL, want), FIRE_OK);
        ck_assert_msg(memcmp(result, want, plan.rows * 2 * sizeof(double)) == 0, "case %zu", i);
    }
}
END_TEST

/* The last coefficients repeat: (2), (3) for four steps multiply by 2 * 3 * 3 * 3. */
START_TEST(the_last_step_repeats)
{
    struct fire_plan plan = diagonal_plan();
    const double w[4] = { 3.0, 0.0, 0.0, 4.0 };
    double result[4];

    plan.step[0] = (struct fire_polynomial_step){ 1, { 2.0 } };
    plan.step[1] = (struct fire_polynomial_step){ 1, { 3.0 } };
    plan.step_count = 2;
    plan.steps = 4;
    ck_assert_int_eq(fire_plan_ref(&plan, w, NULL, result), FIRE_OK);
    ck_assert_double_eq_tol(result[0], 54.0 * 0.6, 1e-13);
    ck_assert_double_eq_tol(result[3], 54.0 * 0.8, 1e-13);
}
END_TEST

START_TEST(scale_and_blend_come_last)
{
    static const struct {
        enum fire_scale scale;
        double factor, blend, first, second;
    } cases[] = {
        { FIRE_SCALE_ONE, 1.0, 1.0, 1.0, 1.0 },
        { FIRE_SCALE_FAN_RATIO, 2.5, 1.0, 2.5, 2.5 },
        { FIRE_SCALE_KEEP_NORM, 1.0, 1.0, 3.5355339059327378, 3.5355339059327378 },
        { FIRE_SCALE_MEAN_SIGMA, 2.0, 1.0, 7.0, 7.0 },
        { FIRE_SCALE_ONE, 2.0, 0.25, 0.25 * 2.0 + 0.75 * 3.0, 0.25 * 2.0 + 0.75 * 4.0 },
    };
    const double w[4] = { 3.0, 0.0, 0.0, 4.0 };
    struct fire_plan plan = diagonal_plan();
    double q[4];
    double result[4];

    plan.kind = FIRE_PLAN_CONVERGE;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        plan.scale = cases[i].scale;
        plan.scale_factor = cases[i].factor;
        plan.blend = cases[i].blend;
        ck_assert_int_eq(fire_plan_ref(&plan, w, q, result), FIRE_OK);
        ck_assert_double_eq_tol(result[0], cases[i].first, 1e-14);
        ck_assert_double_eq_tol(result[3], cases[i].second, 1e-14);
        ck_assert_double_eq_tol(q[0], 1.0, 1e-15);
        ck_assert_double_eq_tol(q[3], 1.0, 1e-15);
    }
}
END_TEST

START_TEST(small_norms_and_analysis_change_nothing)
{
    const double w[4] = { 3.0, 1.0, 0.5, 4.0 };
    struct fire_plan plan = diagonal_plan();
    double result[4];

    plan.scale_factor = 9.0;
    plan.blend = 0.5;
    plan.min_norm = 100.0;
    ck_assert_int_eq(fire_plan_ref(&plan, w, NULL, result), FIRE_OK);
    ck_assert_mem_eq(result, w, sizeof(w));
    plan.min_norm = 0.0;
    plan.kind = FIRE_PLAN_ANALYZE;
    ck_assert_int_eq(fire_plan_ref(&plan, w, NULL, result), FIRE_OK);
    ck_assert_mem_eq(result, w, sizeof(w));
}
END_TEST

/* Monotone from sigma <= 1: the map 1.5 s - 0.5 s^3 brings every value nearer to one. */
START_TEST(cubic_steps_never_increase_the_dfi)
{
    struct fire_random random;
    double *x = matrix_alloc(30, 20);
    double norm, last;

    fire_random_init(&random, 5);
    matrix_gaussian(&random, 30, 20, x);
    norm = matrix_norm(x, 600);
    for (int i = 0; i < 600; i++)
        x[i] /= norm;
    last = fire_dfi_ref(x, 30, 20);
    for (int n = 0; n < 30; n++) {
        double next;

        ck_assert_int_eq(fire_polynomial_ref(x, 30, 20, &cubic, 1), FIRE_OK);
        next = fire_dfi_ref(x, 30, 20);
        ck_assert_double_le(next, last + 1e-26);
        last = next;
    }
    ck_assert_double_lt(last, 1e-24);
    free(x);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("polar_ref");
    TCase *tests = tcase_create("reference");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, svd_takes_a_matrix_apart, 0,
                        sizeof(svd_cases) / sizeof(svd_cases[0]));
    tcase_add_test(tests, small_singular_values_keep_their_digits);
    tcase_add_loop_test(tests, polar_factor_agrees_with_lapack, 0, 3);
    tcase_add_test(tests, not_a_number_is_refused);
    tcase_add_loop_test(tests, diagonal_follows_the_scalar_map, 0,
                        sizeof(step_cases) / sizeof(step_cases[0]));
    tcase_add_test(tests, each_norm_divides_by_its_own);
    tcase_add_test(tests, steps_stop_where_the_plan_looks);
    tcase_add_test(tests, the_last_step_repeats);
    tcase_add_test(tests, scale_and_blend_come_last);
    tcase_add_test(tests, small_norms_and_analysis_change_nothing);
    tcase_add_test(tests, cubic_steps_never_increase_the_dfi);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
