/* Statistics against answers known by hand, against plain loops, and against LAPACK. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "matrices.h"
#include "statistics.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* G of a random rows x size matrix in f32 or f64, stored with a stride and NaN below the diagonal,
 * which nobody may read. */
struct sample {
    double *exact; /* size x size, the numbers that are stored */
    void *data;
    struct fire_gram gram;
};

static void sample_init(struct sample *sample, uint64_t seed, uint32_t rows, uint32_t size,
                        enum fire_dtype dtype)
{
    const size_t stride = size + 3;
    struct fire_random random;
    double *x = matrix_alloc(rows, size);
    double *turned = matrix_alloc(size, rows);

    fire_random_init(&random, seed);
    matrix_gaussian(&random, rows, size, x);
    matrix_transpose(x, rows, size, turned);
    sample->exact = matrix_alloc(size, size);
    matrix_multiply(turned, x, size, rows, size, sample->exact);
    if (dtype == FIRE_F32)
        matrix_round(sample->exact, (size_t)size * size);
    sample->data = matrix_alloc(size, stride);
    for (size_t i = 0; i < size; i++) {
        for (size_t j = 0; j < size; j++) {
            const double value = j < i ? NAN : sample->exact[i * size + j];

            if (dtype == FIRE_F32)
                ((float *)sample->data)[i * stride + j] = (float)value;
            else
                ((double *)sample->data)[i * stride + j] = value;
        }
    }
    sample->gram = (struct fire_gram){ sample->data, dtype, stride, size, 1.0, NULL };
    free(x);
    free(turned);
}

static void sample_release(struct sample *sample)
{
    free(sample->exact);
    free(sample->data);
}

static double relative(double value, double want)
{
    return fabs(value - want) / fabs(want);
}

START_TEST(moments_agree_with_plain_loops)
{
    static const uint32_t sizes[] = { 1, 2, 7, 8, 9, 15, 16, 17, 31, 64, 100 };
    static const double factors[] = { 1.0, 1e-3, 1e20 };

    for (size_t s = 0; s < COUNT(sizes) * COUNT(factors) * 2; s++) {
        const uint32_t size = sizes[s / 2 % COUNT(sizes)];
        const double factor = factors[s / 2 / COUNT(sizes)];
        struct fire_moment moment = { .condition = 42.0 };
        struct sample sample;
        double dfi = 0.0;
        double squares = 0.0;
        double trace = 0.0;

        sample_init(&sample, s, size + 3, size, s % 2 ? FIRE_F32 : FIRE_F64);
        sample.gram.factor = factor;
        for (size_t i = 0; i < (size_t)size * size; i++) {
            const double g = factor * sample.exact[i];
            const int on_diagonal = i % (size + 1) == 0;

            dfi += (g - on_diagonal) * (g - on_diagonal);
            squares += g * g;
            trace += on_diagonal ? g : 0.0;
        }
        fire_moment_from_gram(&sample.gram, size + 5, size, &moment);
        ck_assert_double_lt(relative(fire_gram_dfi(&sample.gram), dfi), 1e-12);
        ck_assert_double_lt(relative(moment.dfi, dfi), 1e-12);
        ck_assert_double_eq(moment.dfi_full, moment.dfi);
        ck_assert_double_lt(relative(moment.dfi_mean, dfi / size), 1e-12);
        ck_assert_double_lt(relative(moment.norm, sqrt(trace)), 1e-12);
        ck_assert_double_lt(relative(moment.participation, trace * trace / squares), 1e-12);
        ck_assert_double_eq_tol(moment.dfi_scale_free, size - trace * trace / squares,
                                1e-12 * size);
        ck_assert_double_eq(moment.condition, 42.0);

        /* the n x n form of the wide matrix has in - out eigenvalues 0, each 1 away from I */
        fire_moment_from_gram(&sample.gram, size, size + 5, &moment);
        ck_assert_double_lt(relative(moment.dfi_full, dfi + 5.0), 1e-12);
        sample_release(&sample);
    }
}
END_TEST

/* G = I + 1e-7 everywhere: the expanded identity ||G||^2 - 2 tr G + r would lose all digits. */
START_TEST(dfi_near_identity_keeps_its_digits)
{
    double g[12 * 12];
    const struct fire_gram gram = { g, FIRE_F64, 12, 12, 1.0, NULL };
    struct fire_moment moment;

    for (int i = 0; i < 144; i++)
        g[i] = (i % 13 == 0 ? 1.0 : 0.0) + 1e-7;
    fire_moment_from_gram(&gram, 12, 12, &moment);
    ck_assert_double_lt(relative(moment.dfi, 144e-14), 1e-8);
    /* t = 1 - 1e-7 removes the diagonal's part but for second order */
    ck_assert_double_lt(relative(moment.dfi_scale_free, 132e-14), 1e-6);
}
END_TEST

START_TEST(zero_matrix_has_no_participation)
{
    const float g[4] = { 0 };
    const struct fire_gram gram = { g, FIRE_F32, 2, 2, 1.0, NULL };
    struct fire_moment moment = { 0 };

    fire_moment_from_gram(&gram, 2, 2, &moment);
    ck_assert_double_eq(moment.dfi, 2.0);
    ck_assert_double_eq(moment.dfi_scale_free, 2.0);
    ck_assert_double_eq(moment.norm, 0.0);
    ck_assert(isnan(moment.participation));
    ck_assert_int_eq(fire_moment_spectral_norm(&gram, &moment), FIRE_OK);
    ck_assert_double_eq(moment.spectral_norm, 0.0);
    ck_assert(isnan(moment.stable_rank));
}
END_TEST

/* Identity (an invariant subspace after one product), a diagonal with a tie at the top, one with a
 * tiny gap, a single entry. */
START_TEST(largest_eigenvalue_of_special_matrices)
{
    static const struct {
        uint32_t size;
        double diagonal[5];
    } cases[] = {
        { 5, { 1, 1, 1, 1, 1 } },          { 5, { 3, 1, 3, 2, 0 } },
        { 5, { 1, 1 + 1e-9, 0, 0, 0.5 } }, { 1, { 7 } },
        { 5, { 1e-140, 0, 0, 0, 0 } },     { 2, { 4, 9 } },
    };
    double g[25] = { 0 };
    double value;
    double want = 0.0;
    const struct fire_gram gram = { g, FIRE_F64, 5, cases[_i].size, 2.0, NULL };

    for (uint32_t i = 0; i < cases[_i].size; i++) {
        g[i * 6] = cases[_i].diagonal[i];
        want = fmax(want, 2.0 * g[i * 6]);
    }
    ck_assert_int_eq(fire_gram_largest(&gram, 80, 1e-10, &value), FIRE_OK);
    ck_assert_double_lt(relative(value, want), 1e-9);
}
END_TEST

START_TEST(largest_eigenvalue_agrees_with_lapack)
{
    static const uint32_t shapes[][2] = { { 20, 20 },   { 200, 64 },  { 80, 80 },
                                          { 300, 300 }, { 2000, 90 }, { 512, 512 } };
    const uint32_t rows = shapes[_i][0];
    const uint32_t size = shapes[_i][1];
    struct fire_moment moment = { .norm = 1.0 };
    struct sample sample;
    double *sigma = matrix_alloc(size, 1);

    sample_init(&sample, 77, rows, size, _i % 2 ? FIRE_F32 : FIRE_F64);
    ck_assert_int_eq(
        fire_singular_values(sample.exact, FIRE_F64, size, size, size, 1.0, sigma, NULL), FIRE_OK);
    ck_assert_int_eq(fire_moment_spectral_norm(&sample.gram, &moment), FIRE_OK);
    ck_assert_double_lt(relative(moment.spectral_norm, sqrt(sigma[0])), 1e-5);
    ck_assert_double_lt(relative(moment.stable_rank, 1.0 / sigma[0]), 2e-5);
    free(sigma);
    sample_release(&sample);
}
END_TEST

/* A start vector that is nearly orthogonal to the first singular vector makes the second look
 * converged first: one matrix in a hundred, so it takes many to see it. */
START_TEST(largest_eigenvalue_is_never_the_second)
{
    for (uint64_t seed = 0; seed < 150; seed++) {
        const uint32_t size = 12 + (uint32_t)(seed * 7 % 90);
        const uint32_t rows = size + (uint32_t)(seed % 3) * size;
        struct fire_moment moment = { .norm = 1.0 };
        struct sample sample;
        double sigma[128];

        sample_init(&sample, 1000 * (uint64_t)(_i + 1) + seed, rows, size, FIRE_F32);
        ck_assert_int_eq(
            fire_singular_values(sample.exact, FIRE_F64, size, size, size, 1.0, sigma, NULL),
            FIRE_OK);
        ck_assert_int_eq(fire_moment_spectral_norm(&sample.gram, &moment), FIRE_OK);
        ck_assert_msg(relative(moment.spectral_norm, sqrt(sigma[0])) < 1e-4,
                      "seed %d, size %u: %.9g, but it is %.9g", (int)seed, size,
                      moment.spectral_norm, sqrt(sigma[0]));
        sample_release(&sample);
    }
}
END_TEST

/* With few distinct values Lanczos ends early, and what follows is made of rounding: it may not add
 * values of its own. */
START_TEST(largest_eigenvalue_of_few_distinct_ones)
{
    static const double values[] = { 1.0, 4.0, 1e-4, 0.25, 9.0, 0.04 };
    double *g = calloc(128 * 128, sizeof(*g));

    ck_assert_ptr_nonnull(g);
    for (uint32_t size = 2; size <= 128; size++) {
        for (uint32_t distinct = 1; distinct <= 6 && distinct <= size; distinct++) {
            const struct fire_gram gram = { g, FIRE_F64, size, size, 1.0, NULL };
            double value, want = 0.0;

            memset(g, 0, 128 * 128 * sizeof(*g));
            for (uint32_t i = 0; i < size; i++) {
                g[(size_t)i * (size + 1)] = values[(i * 7 + i / 5) % distinct];
                want = fmax(want, g[(size_t)i * (size + 1)]);
            }
            ck_assert_int_eq(fire_gram_largest(&gram, 120, 1e-5, &value), FIRE_OK);
            ck_assert_msg(relative(value, want) < 1e-5, "%u distinct of %u: %.9g, but it is %.9g",
                          distinct, size, value, want);
        }
    }
    free(g);
}
END_TEST

static int multiplied; /* how often the next function was asked */

static void multiply_plainly(const void *data, size_t stride, uint32_t size, const void *x, void *y)
{
    const double *g = data;

    multiplied++;
    for (uint32_t i = 0; i < size; i++) {
        double sum = 0;

        for (uint32_t j = 0; j < size; j++)
            sum += (j < i ? g[j * stride + i] : g[i * stride + j]) * ((const double *)x)[j];
        ((double *)y)[i] = sum;
    }
}

/* A caller's way of multiplying is taken, for an f64 G only. */
START_TEST(largest_eigenvalue_by_a_given_product)
{
    const enum fire_dtype dtype = _i ? FIRE_F32 : FIRE_F64;
    double own, given;
    struct sample sample;

    sample_init(&sample, 11, 90, 60, dtype);
    ck_assert_int_eq(fire_gram_largest(&sample.gram, 60, 1e-10, &own), FIRE_OK);
    sample.gram.multiply = multiply_plainly;
    multiplied = 0;
    ck_assert_int_eq(fire_gram_largest(&sample.gram, 60, 1e-10, &given), FIRE_OK);
    ck_assert_double_lt(relative(given, own), 1e-10);
    ck_assert_int_eq(multiplied > 0, dtype == FIRE_F64);
    sample_release(&sample);
}
END_TEST

START_TEST(too_few_products_give_a_lower_bound)
{
    struct fire_moment moment = { .spectral_norm = 42.0, .stable_rank = 43.0 };
    struct sample sample;
    double few, many;

    sample_init(&sample, 3, 300, 300, FIRE_F32);
    ck_assert_int_eq(fire_gram_largest(&sample.gram, 300, 1e-12, &many), FIRE_OK);
    ck_assert_int_eq(fire_gram_largest(&sample.gram, 3, 1e-12, &few), FIRE_TOO_LATE);
    ck_assert_double_gt(few, 0.3 * many);
    ck_assert_double_lt(few, many);

    /* G = L^T L of a chain: eigenvalues crowd at 4, more than 80 products cannot tell them apart */
    sample_release(&sample);
    sample_init(&sample, 3, 4, 2000, FIRE_F32);
    for (size_t i = 0; i < 2000; i++)
        for (size_t j = i; j < 2000; j++)
            ((float *)sample.data)[i * 2003 + j] = j == i ? 2.0f : j == i + 1 ? -1.0f : 0.0f;
    ck_assert_int_eq(fire_gram_largest(&sample.gram, 80, 1e-9, &few), FIRE_TOO_LATE);
    ck_assert_double_gt(few, 3.9);
    ck_assert_double_le(few, 4.0);
    ck_assert_int_eq(fire_moment_spectral_norm(&sample.gram, &moment), FIRE_TOO_LATE);
    ck_assert_double_eq(moment.spectral_norm, 42.0);
    ck_assert_double_eq(moment.stable_rank, 43.0);
    sample_release(&sample);
}
END_TEST

/* Relative error of every value, with kappa on both sides of the switch from G to an SVD. */
static const struct {
    uint32_t rows, cols;
    double kappa, magnitude, tolerance;
    enum fire_dtype dtype;
} spectra[] = {
    { 1, 1, 1.0, 1.0, 1e-12, FIRE_F64 },      { 40, 40, 1e2, 1.0, 1e-10, FIRE_F64 },
    { 90, 30, 1e4, 1.0, 1e-6, FIRE_F64 },     { 64, 64, 1e6, 1.0, 1e-8, FIRE_F64 },
    { 64, 64, 1e10, 1.0, 1e-4, FIRE_F64 },    { 50, 50, 1e2, 1e30, 1e-5, FIRE_F32 },
    { 50, 50, 1e2, 1e-30, 1e-5, FIRE_F32 },   { 50, 50, 1e2, 1e300, 1e-10, FIRE_F64 },
    { 50, 50, 1e2, 1e-300, 1e-10, FIRE_F64 }, { 50, 50, 1e2, 1e-38, 1e-4, FIRE_F32 },
};

START_TEST(singular_values_are_right_at_any_condition)
{
    const uint32_t rows = spectra[_i].rows;
    const uint32_t cols = spectra[_i].cols;
    const size_t stride = cols + 2;
    const double magnitude = spectra[_i].magnitude;
    struct fire_random random;
    struct fire_error error;
    double *want = matrix_alloc(cols, 1);
    double *values = matrix_alloc(cols, 1);
    double *w = matrix_alloc(rows, cols);
    void *x = matrix_alloc(rows, stride);

    fire_random_init(&random, 21 + (uint64_t)_i);
    spectrum_log_spaced(cols, spectra[_i].kappa, want);
    matrix_with_spectrum(&random, rows, cols, want, w);
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < cols; j++) {
            if (spectra[_i].dtype == FIRE_F32)
                ((float *)x)[i * stride + j] = (float)(w[i * cols + j] * magnitude);
            else
                ((double *)x)[i * stride + j] = w[i * cols + j] * magnitude;
        }
    }
    ck_assert_msg(fire_singular_values(x, spectra[_i].dtype, rows, cols, stride, 2.0, values,
                                       &error) == FIRE_OK,
                  "%s", error.message);
    for (uint32_t k = 0; k < cols; k++)
        ck_assert_msg(relative(values[k] / magnitude / 2.0, want[k]) < spectra[_i].tolerance,
                      "value %u: %g instead of %g", k, values[k] / magnitude / 2.0, want[k]);
    free(want);
    free(values);
    free(w);
    free(x);
}
END_TEST

START_TEST(singular_values_of_zero_and_of_nan)
{
    double x[6] = { 0 };
    double values[2] = { 1.0, 1.0 };
    struct fire_error error;

    ck_assert_int_eq(fire_singular_values(x, FIRE_F64, 3, 2, 2, 1.0, values, &error), FIRE_OK);
    ck_assert_double_eq(values[0], 0.0);
    ck_assert_double_eq(values[1], 0.0);
    x[3] = INFINITY;
    ck_assert_int_eq(fire_singular_values(x, FIRE_F64, 3, 2, 2, 1.0, values, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "NaN or Inf"));
}
END_TEST

static const struct {
    const char *name;
    uint32_t count;
    double values[4];
    double stable_rank, effective_rank, srank, condition;
} moments[] = {
    { "equal values", 4, { 2, 2, 2, 2 }, 4, 4, 4, 1 },
    { "one value", 1, { 3 }, 1, 1, 1, 1 },
    { "rank one", 3, { 5, 0, 0 }, 1, 1, 1, NAN },
    /* shares 3/4 and 1/4: entropy 0.5623351446188083 */
    { "three to one", 2, { 3, 1 }, 10.0 / 9.0, 1.7547653506033236, 2, 3 },
    /* 99 of 100 is the delta of srank exactly */
    { "one per cent", 2, { 99, 1 }, 9802.0 / 9801.0, 1.0575993064679887, 1, 99 },
    { "zero", 2, { 0, 0 }, NAN, NAN, NAN, NAN },
    { "denormal", 2, { 3e-310, 1e-310 }, 10.0 / 9.0, 1.7547653506033236, 2, 3 },
};

static void assert_near(double value, double want, double tolerance, const char *name)
{
    ck_assert_msg(isnan(want) ? isnan(value) : fabs(value - want) <= tolerance * fabs(want),
                  "%s: %.17g instead of %.17g", name, value, want);
}

START_TEST(spectrum_gives_ranks_and_condition)
{
    struct fire_moment moment = { .dfi = 42.0 };

    fire_moment_from_singular_values(moments[_i].values, moments[_i].count, &moment);
    ck_assert_double_eq(moment.spectral_norm, moments[_i].values[0]);
    assert_near(moment.stable_rank, moments[_i].stable_rank, 1e-12, moments[_i].name);
    assert_near(moment.effective_rank, moments[_i].effective_rank, 1e-6, moments[_i].name);
    assert_near(moment.srank, moments[_i].srank, 0.0, moments[_i].name);
    assert_near(moment.condition, moments[_i].condition, 1e-12, moments[_i].name);
    ck_assert_double_eq(moment.dfi, 42.0);
}
END_TEST

static const struct {
    const char *name;
    uint64_t units;
    double means[4];
    double tau, eps, want;
} dormant[] = {
    { "none", 4, { 1, 1, 1, 1 }, 0.025, 1e-9, 0.0 },
    { "two are zero", 4, { 0, 1, 0, 3 }, 0.025, 1e-9, 0.5 },
    { "all are zero", 4, { 0, 0, 0, 0 }, 0.025, 1e-9, 1.0 },
    { "below the mean's share", 4, { 0.02, 1, 1, 1.98 }, 0.025, 1e-9, 0.25 },
    /* mean-normalised: dividing by the sum would call all four dormant at tau 0.3 */
    { "mean, not sum", 4, { 1, 1, 1, 1 }, 0.3, 1e-9, 0.0 },
    { "tau 0 takes what is close to 0", 4, { 1e-10, 1e-3, 1, 3 }, 0.0, 1e-9, 0.25 },
    { "on the threshold", 2, { 0.5, 1.5 }, 0.5, 0.0, 0.5 },
    { "no units", 0, { 0 }, 0.025, 1e-9, NAN },
    { "not a number", 2, { NAN, 1 }, 0.025, 1e-9, NAN },
};

START_TEST(dormant_units_are_counted)
{
    assert_near(
        fire_dormant_ratio(dormant[_i].means, dormant[_i].units, dormant[_i].tau, dormant[_i].eps),
        dormant[_i].want, 0.0, dormant[_i].name);
}
END_TEST

/* 1, -2, 0.5, 4 and so on are exact in every dtype; the bytes start at an odd address, as in a
 * mapped file. */
START_TEST(unit_means_of_every_dtype)
{
    static const double numbers[6] = { 1, -2, 0.5, 4, -8, 0 };
    unsigned char bytes[6 * 8 + 1];
    const enum fire_dtype dtype = (enum fire_dtype)_i;
    const size_t width = fire_dtype_bytes(dtype);
    double means[3];

    for (int i = 0; i < 6; i++) {
        const float single = (float)numbers[i];
        const uint16_t half =
            dtype == FIRE_F16 ? fire_f32_to_f16(single) : fire_f32_to_bf16(single);
        const void *from = dtype == FIRE_F64   ? (const void *)&numbers[i]
                           : dtype == FIRE_F32 ? (const void *)&single
                                               : (const void *)&half;

        memcpy(bytes + 1 + i * width, from, width);
    }
    fire_unit_means(bytes + 1, dtype, 2, 3, means);
    ck_assert_double_eq(means[0], 2.5);
    ck_assert_double_eq(means[1], 5.0);
    ck_assert_double_eq(means[2], 0.25);
}
END_TEST

/* The same spectrum whichever way the samples lie. */
START_TEST(features_have_norm_condition_and_ranks)
{
    const uint32_t rows = _i ? 12 : 50;
    const uint32_t cols = _i ? 50 : 12;
    struct fire_random random;
    struct fire_moment moment = { .dfi = 42.0 };
    struct fire_moment want;
    double sigma[12];
    double w[600];
    float x[600];

    fire_random_init(&random, 9);
    spectrum_log_spaced(12, 30.0, sigma);
    matrix_with_spectrum(&random, rows, cols, sigma, w);
    matrix_to_f32(w, 600, x);
    fire_moment_from_singular_values(sigma, 12, &want);
    ck_assert_int_eq(fire_moment_of_features(x, FIRE_F32, rows, cols, &moment, NULL), FIRE_OK);
    assert_near(moment.norm, matrix_norm(sigma, 12), 1e-6, "norm");
    assert_near(moment.condition, 30.0, 1e-5, "condition");
    assert_near(moment.effective_rank, want.effective_rank, 1e-6, "effective rank");
    assert_near(moment.srank, want.srank, 0.0, "srank");
    ck_assert_double_eq(moment.dfi, 42.0);
}
END_TEST

START_TEST(features_without_a_spectrum_are_refused)
{
    const float x[2] = { 1.0f, 2.0f };
    struct fire_moment moment;
    struct fire_error error;

    ck_assert_int_eq(fire_moment_of_features(x, FIRE_F32, 0, 2, &moment, &error), FIRE_BAD_REQUEST);
    ck_assert_int_eq(fire_moment_of_features(x, FIRE_F32, 1ull << 40, 2, &moment, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "1099511627776 x 2"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("statistics");
    TCase *tests = tcase_create("statistics");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, moments_agree_with_plain_loops);
    tcase_add_test(tests, dfi_near_identity_keeps_its_digits);
    tcase_add_test(tests, zero_matrix_has_no_participation);
    tcase_add_loop_test(tests, largest_eigenvalue_of_special_matrices, 0, 6);
    tcase_add_loop_test(tests, largest_eigenvalue_agrees_with_lapack, 0, 6);
    tcase_add_test(tests, largest_eigenvalue_of_few_distinct_ones);
    tcase_add_loop_test(tests, largest_eigenvalue_is_never_the_second, 0, 8);
    tcase_add_loop_test(tests, largest_eigenvalue_by_a_given_product, 0, 2);
    tcase_add_test(tests, too_few_products_give_a_lower_bound);
    tcase_add_loop_test(tests, singular_values_are_right_at_any_condition, 0, COUNT(spectra));
    tcase_add_test(tests, singular_values_of_zero_and_of_nan);
    tcase_add_loop_test(tests, spectrum_gives_ranks_and_condition, 0, COUNT(moments));
    tcase_add_loop_test(tests, dormant_units_are_counted, 0, COUNT(dormant));
    tcase_add_loop_test(tests, unit_means_of_every_dtype, 0, FIRE_DTYPE_COUNT);
    tcase_add_loop_test(tests, features_have_norm_condition_and_ranks, 0, 2);
    tcase_add_test(tests, features_without_a_spectrum_are_refused);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
