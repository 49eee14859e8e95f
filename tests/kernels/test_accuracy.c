/* The accuracy the project promises, against a float64 SVD of the very numbers that were sent:
 * DfI <= 1e-6 and polar error ||Q - U V^T||_F / sqrt(r) <= 1e-5 in f32, 1e-12 with compute=f64; and
 * every preset on every compute path against its float64 definition. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "matrices.h"
#include "polar_ref.h"
#include "projection.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define DFI_MAX              1e-6
#define POLAR_ERROR_MAX      1e-5
#define POLAR_ERROR_F64_MAX  1e-12
#define PRESET_ERROR_MAX     1e-5
#define PRESET_ERROR_F64_MAX 1e-12

enum kind { GAUSSIAN, LOG_SPACED, BULK_AND_SPIKES };

/* `kappa` is for LOG_SPACED. */
static const struct {
    enum kind kind;
    double kappa;
    uint32_t out, in;
} cases[] = {
    { GAUSSIAN, 0, 8, 8 },
    { GAUSSIAN, 0, 16, 16 },
    { GAUSSIAN, 0, 33, 33 },
    { GAUSSIAN, 0, 64, 64 },
    { GAUSSIAN, 0, 100, 100 },
    { GAUSSIAN, 0, 128, 128 },
    { GAUSSIAN, 0, 256, 256 },
    { GAUSSIAN, 0, 512, 512 },
    { GAUSSIAN, 0, 1024, 1024 },
    { GAUSSIAN, 0, 32, 8 },
    { GAUSSIAN, 0, 8, 32 },
    { GAUSSIAN, 0, 256, 64 },
    { GAUSSIAN, 0, 64, 256 },
    { GAUSSIAN, 0, 1024, 256 },
    { GAUSSIAN, 0, 256, 1024 },
    { GAUSSIAN, 0, 131, 97 },
    { GAUSSIAN, 0, 1000, 3 },
    { GAUSSIAN, 0, 63, 65 },
    { LOG_SPACED, 1e2, 8, 8 },
    { LOG_SPACED, 1e2, 64, 64 },
    { LOG_SPACED, 1e2, 300, 300 },
    { LOG_SPACED, 1e2, 64, 256 },
    { LOG_SPACED, 1e2, 512, 128 },
    { LOG_SPACED, 1e3, 16, 16 },
    { LOG_SPACED, 1e3, 96, 96 },
    { LOG_SPACED, 1e3, 256, 256 },
    { LOG_SPACED, 1e3, 256, 64 },
    { LOG_SPACED, 1e3, 100, 400 },
    { LOG_SPACED, 1e4, 8, 8 },
    { LOG_SPACED, 1e4, 32, 32 },
    { LOG_SPACED, 1e4, 36, 36 },
    { LOG_SPACED, 1e4, 40, 40 },
    { LOG_SPACED, 1e4, 128, 32 },
    { LOG_SPACED, 1e4, 36, 72 },
    { LOG_SPACED, 1e4, 64, 64 },
    { LOG_SPACED, 1e4, 100, 100 },
    { LOG_SPACED, 1e4, 128, 128 },
    { LOG_SPACED, 1e4, 256, 256 },
    { LOG_SPACED, 1e4, 512, 512 },
    { LOG_SPACED, 1e4, 256, 64 },
    { LOG_SPACED, 1e4, 128, 512 },
    { LOG_SPACED, 1e4, 1024, 1024 },
    { BULK_AND_SPIKES, 0, 16, 16 },
    { BULK_AND_SPIKES, 0, 64, 64 },
    { BULK_AND_SPIKES, 0, 256, 256 },
    { BULK_AND_SPIKES, 0, 512, 128 },
    { BULK_AND_SPIKES, 0, 128, 512 },
    { BULK_AND_SPIKES, 0, 1024, 1024 },
};

static void case_make(int index, double *w)
{
    const uint32_t out = cases[index].out;
    const uint32_t in = cases[index].in;
    const uint32_t r = out < in ? out : in;
    double *sigma = matrix_alloc(r, 1);
    struct fire_random random;

    fire_random_init(&random, 1000 + (uint64_t)index);
    switch (cases[index].kind) {
    case GAUSSIAN: matrix_gaussian(&random, out, in, w); break;
    case LOG_SPACED:
        spectrum_log_spaced(r, cases[index].kappa, sigma);
        matrix_with_spectrum(&random, out, in, sigma, w);
        break;
    case BULK_AND_SPIKES:
        spectrum_bulk_and_spikes(&random, r, 1 + r / 32, sigma);
        matrix_with_spectrum(&random, out, in, sigma, w);
        break;
    }
    free(sigma);
}

/* One case in one precision. */
static void assert_accurate(struct projector *projector, int index, const double *w,
                            const char *settings, double error_max)
{
    const uint32_t out = cases[index].out;
    const uint32_t in = cases[index].in;
    const uint32_t r = out < in ? out : in;
    const size_t count = (size_t)out * in;
    double *q = matrix_alloc(out, in);
    double *want = matrix_alloc(out, in);
    struct fire_options options;
    struct fire_result result;
    double dfi, error;

    options_make(&options, "fire", settings);
    result = project(projector, &options, out, in, w, q);
    matrix_polar(w, out, in, r, NULL, want);
    dfi = matrix_dfi(q, out, in);
    error = matrix_distance(q, want, count) / sqrt(r);
    ck_assert_int_eq(result.action, FIRE_ACTION_PROJECTED);
    ck_assert_msg(result.converged && result.rank == r && result.rank_defect == 0,
                  "%s: converged %d rank %u", settings, result.converged, result.rank);
    ck_assert_msg(dfi <= DFI_MAX, "%s (%s): DfI %g", settings, result.method, dfi);
    ck_assert_msg(error <= error_max, "%s (%s): polar error %g", settings, result.method, error);
    /* what it says of itself is true */
    ck_assert_msg(fabs(result.dfi_unscaled_after - dfi) <= 1e-3 * dfi + 1e-9,
                  "%s: says DfI %g, is %g", settings, result.dfi_unscaled_after, dfi);
    free(q);
    free(want);
}

START_TEST(polar_factor_is_accurate)
{
    const size_t count = (size_t)cases[_i].out * cases[_i].in;
    double *w = matrix_alloc(count, 1);
    struct projector projector;

    case_make(_i, w);
    matrix_round(w, count);
    projector_open(&projector, "auto", 0);
    assert_accurate(&projector, _i, w, "scale=one", POLAR_ERROR_MAX);
    projector_close(&projector);
    free(w);
}
END_TEST

START_TEST(polar_factor_in_f64_is_accurate)
{
    const size_t count = (size_t)cases[_i].out * cases[_i].in;
    double *w = matrix_alloc(count, 1);
    struct projector projector;

    case_make(_i, w);
    projector_open(&projector, "auto", 0);
    assert_accurate(&projector, _i, w, "scale=one compute=f64", POLAR_ERROR_F64_MAX);
    projector_close(&projector);
    free(w);
}
END_TEST

/* compute=fast promises the DfI and reports how far the factor is off. */
START_TEST(fast_reaches_its_target)
{
    static const int chosen[] = { 3, 6, 13, 14, 26, 38 };
    const int index = chosen[_i];
    const uint32_t out = cases[index].out;
    const uint32_t in = cases[index].in;
    double *w = matrix_alloc(out, in);
    double *q = matrix_alloc(out, in);
    struct projector projector;
    struct fire_options options;
    struct fire_result result;

    case_make(index, w);
    matrix_round(w, (size_t)out * in);
    projector_open(&projector, "auto", 0);
    options_make(&options, "fire", "scale=one compute=fast");
    result = project(&projector, &options, out, in, w, q);
    projector_close(&projector);
    ck_assert_msg(matrix_dfi(q, out, in) <= DFI_MAX, "%s: DfI %g", result.method,
                  matrix_dfi(q, out, in));
    ck_assert_msg(result.polar_residual >= 0.0 && result.polar_residual < 0.2, "residual %g",
                  result.polar_residual);
    free(w);
    free(q);
}
END_TEST

static const char *const paths[] = { "portable", "avx2", "avx512" };

static const uint32_t shapes[][2] = {
    { 1, 1 }, { 2, 3 }, { 17, 17 }, { 48, 48 }, { 64, 20 }, { 20, 64 }, { 130, 50 }, { 96, 96 },
};

/* Relative distance of one projected Gaussian matrix from the plan's definition in f64. */
static double preset_error(struct projector *projector, const struct fire_options *options,
                           uint32_t out, uint32_t in, uint64_t seed)
{
    const bool wide = in > out;
    const size_t count = (size_t)out * in;
    double *w = matrix_alloc(out, in);
    double *slot = matrix_alloc(out, in);
    double *want = matrix_alloc(out, in);
    double *result = matrix_alloc(out, in);
    struct fire_random random;
    struct fire_plan plan;
    double error;

    fire_random_init(&random, seed);
    matrix_gaussian(&random, out, in, w);
    matrix_round(w, count);
    projection_plan(options, out, in, &plan);
    if (options->layout == FIRE_LAYOUT_IN_OUT)
        matrix_transpose(w, out, in, slot); /* the tensor as it is stored: in x out */
    else
        memcpy(slot, w, count * sizeof(*slot));
    (void)project(projector, options, out, in, slot, result);
    if (options->layout == FIRE_LAYOUT_IN_OUT) {
        matrix_transpose(result, in, out, slot);
        memcpy(result, slot, count * sizeof(*slot));
    }
    if (wide)
        matrix_transpose(w, out, in, slot);
    else
        memcpy(slot, w, count * sizeof(*slot));
    ck_assert_int_eq(fire_plan_ref(&plan, slot, NULL, want), FIRE_OK);
    if (wide) {
        matrix_transpose(want, in, out, slot);
        memcpy(want, slot, count * sizeof(*slot));
    }
    error = matrix_distance(result, want, count) / matrix_norm(want, count);
    free(w);
    free(slot);
    free(want);
    free(result);
    return error;
}

static void assert_like_the_reference(const char *path, const char *preset, const char *settings,
                                      double error_max)
{
    struct projector projector;
    struct fire_options options;

    projector_open(&projector, path, 2);
    options_make(&options, preset, settings);
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const double error = preset_error(&projector, &options, shapes[i][0], shapes[i][1], i);

        ck_assert_msg(error <= error_max, "%s %s on %s, %u x %u: relative error %g", preset,
                      settings, path, shapes[i][0], shapes[i][1], error);
    }
    projector_close(&projector);
}

/* Presets times paths; a path this machine lacks is named on stderr. */
START_TEST(presets_follow_their_definition_on_every_path)
{
    const char *path = paths[(size_t)_i / fire_preset_count()];
    const char *preset = fire_preset_at((size_t)_i % fire_preset_count())->name;

    if (!path_exists(path)) {
        fprintf(stderr, "skipped: path %s, which this CPU does not have\n", path);
        return;
    }
    assert_like_the_reference(path, preset, "", PRESET_ERROR_MAX);
    assert_like_the_reference(path, preset, "compute=f64", PRESET_ERROR_F64_MAX);
}
END_TEST

/* Options on their own, beyond the combinations presets use. Polynomials made to lift small
 * singular values lift the rounding errors of f32 too: up to a thousandfold. */
static const struct {
    const char *settings;
    double error_max;
} option_cases[] = {
    { "polynomial=cubic steps=0", 1e-6 },
    { "polynomial=cubic steps=7 normalize=schatten", 1e-5 },
    { "polynomial=cubic steps=7 normalize=spectral", 1e-5 },
    { "polynomial=cubic steps=12 side=gram", 1e-5 },
    { "polynomial=cubic steps=12 side=x", 1e-5 },
    { "polynomial=muon steps=5", 1e-4 },
    { "polynomial=polar-express steps=5", 1e-4 },
    { "polynomial=polar-express steps=8", 1e-4 },
    { "polynomial=minimax steps=5", 1e-3 },
    { "polynomial=minimax steps=5 compute=f64", 1e-9 },
    { "polynomial=custom:2,-1.5,0.5;1.5,-0.5,0 steps=6", 1e-5 },
    { "polynomial=cubic target=1e-3 check=3", 1e-5 },
    { "polynomial=cubic steps=10 eps=0.5", 1e-5 },
    { "scale=keep-norm", 1e-5 },
    { "scale=mean-sigma", 1e-5 },
    { "scale=keep-norm variance=0.5 polynomial=cubic steps=4", 1e-5 },
    { "scale=mean-sigma polynomial=cubic steps=4", 1e-5 },
    { "scale=kaiming", 1e-5 },
    { "scale=xavier", 1e-5 },
    { "scale=uniform", 1e-5 },
    { "scale=std:0.02", 1e-5 },
    { "scale=fan-in variance=2", 1e-5 },
    { "blend=0.25", 1e-5 },
    { "blend=0.5 polynomial=cubic steps=3", 1e-5 },
    { "min_norm=30", 1e-5 },
};

START_TEST(options_follow_their_definition)
{
    assert_like_the_reference("auto", "fire", option_cases[_i].settings,
                              option_cases[_i].error_max);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("accuracy");
    TCase *bars = tcase_create("bars");
    TCase *exact = tcase_create("definitions");
    SRunner *runner;
    int failed;

    tcase_set_timeout(bars, 300);
    tcase_add_loop_test(bars, polar_factor_is_accurate, 0, COUNT(cases));
    tcase_add_loop_test(bars, polar_factor_in_f64_is_accurate, 0, COUNT(cases));
    tcase_add_loop_test(bars, fast_reaches_its_target, 0, 6);
    suite_add_tcase(suite, bars);
    tcase_set_timeout(exact, 300);
    tcase_add_loop_test(exact, presets_follow_their_definition_on_every_path, 0,
                        (int)(COUNT(paths) * fire_preset_count()));
    tcase_add_loop_test(exact, options_follow_their_definition, 0, COUNT(option_cases));
    suite_add_tcase(suite, exact);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
