/* What must hold for any matrix, whatever the answer is: invariance of the polar factor, honesty
 * about rank, extreme inputs, and the same bits however a matrix is run. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "matrices.h"
#include "polar_ref.h"
#include "projection.h"
#include "tensor.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define DFI_MAX    1e-6
#define TOLERANCE  1e-5 /* ||difference||_F / sqrt(r) */
#define KAPPA_MILD 20.0

static const uint32_t shapes[][2] = {
    { 1, 1 },   { 2, 2 },    { 1, 9 },    { 9, 1 },   { 5, 3 },    { 16, 16 },   { 17, 40 },
    { 64, 64 }, { 200, 50 }, { 50, 200 }, { 97, 97 }, { 130, 33 }, { 256, 160 },
};

/* One property on one shape: the matrix, its factor, and room for a changed matrix and its factor.
 */
struct trial {
    struct projector projector;
    struct fire_options options;
    struct fire_random random;
    uint32_t out, in, r;
    size_t count;
    double *w;       /* kappa 20 */
    double *q;       /* its factor */
    double *changed; /* a changed matrix */
    double *factor;  /* its factor */
    double *want;
};

static void trial_init(struct trial *trial, uint32_t out, uint32_t in, uint64_t seed)
{
    double *sigma;

    memset(trial, 0, sizeof(*trial));
    trial->out = out;
    trial->in = in;
    trial->r = out < in ? out : in;
    trial->count = (size_t)out * in;
    trial->w = matrix_alloc(out, in);
    trial->q = matrix_alloc(out, in);
    trial->changed = matrix_alloc(out, in);
    trial->factor = matrix_alloc(out, in);
    trial->want = matrix_alloc(out, in);
    sigma = matrix_alloc(trial->r, 1);
    fire_random_init(&trial->random, seed);
    spectrum_log_spaced(trial->r, KAPPA_MILD, sigma);
    matrix_with_spectrum(&trial->random, out, in, sigma, trial->w);
    matrix_round(trial->w, trial->count);
    options_make(&trial->options, "fire", "scale=one");
    projector_open(&trial->projector, "auto", 2);
    (void)project(&trial->projector, &trial->options, out, in, trial->w, trial->q);
    free(sigma);
}

static void trial_release(struct trial *trial)
{
    projector_close(&trial->projector);
    free(trial->w);
    free(trial->q);
    free(trial->changed);
    free(trial->factor);
    free(trial->want);
}

/* The factor of `changed` is `want`. */
static void trial_assert(struct trial *trial, const char *property)
{
    const struct fire_result result = project(&trial->projector, &trial->options, trial->out,
                                              trial->in, trial->changed, trial->factor);
    const double error = matrix_distance(trial->factor, trial->want, trial->count) / sqrt(trial->r);

    ck_assert_msg(result.action == FIRE_ACTION_PROJECTED, "%s, %u x %u: %s", property, trial->out,
                  trial->in, result.reason);
    ck_assert_msg(error <= TOLERANCE, "%s, %u x %u: off by %g (%s)", property, trial->out,
                  trial->in, error, result.method);
}

START_TEST(scaling_the_weights_changes_nothing)
{
    static const double scales[] = { 1e30, 1e-30, 0x1p60, 0x1p-60, 0x1p-100, 3.0 };
    struct trial trial;

    trial_init(&trial, shapes[_i][0], shapes[_i][1], 1);
    memcpy(trial.want, trial.q, trial.count * sizeof(*trial.q));
    for (size_t s = 0; s < COUNT(scales); s++) {
        for (size_t i = 0; i < trial.count; i++)
            trial.changed[i] = trial.w[i] * scales[s];
        trial_assert(&trial, "scale");
    }
    for (size_t i = 0; i < trial.count; i++) {
        trial.changed[i] = -trial.w[i];
        trial.want[i] = -trial.q[i];
    }
    trial_assert(&trial, "sign");
    trial_release(&trial);
}
END_TEST

START_TEST(transposing_the_weights_transposes_the_factor)
{
    struct trial trial;
    struct trial turned;

    trial_init(&trial, shapes[_i][0], shapes[_i][1], 2);
    trial_init(&turned, shapes[_i][1], shapes[_i][0], 2);
    matrix_transpose(trial.w, trial.out, trial.in, turned.changed);
    matrix_transpose(trial.q, trial.out, trial.in, turned.want);
    trial_assert(&turned, "transpose");
    trial_release(&turned);
    trial_release(&trial);
}
END_TEST

/* Rows are rotated by one place, columns reversed. */
START_TEST(permuting_the_weights_permutes_the_factor)
{
    struct trial trial;

    trial_init(&trial, shapes[_i][0], shapes[_i][1], 3);
    for (size_t i = 0; i < trial.out; i++) {
        for (size_t j = 0; j < trial.in; j++) {
            const size_t from = (i + 1) % trial.out * trial.in + (trial.in - 1 - j);

            trial.changed[i * trial.in + j] = trial.w[from];
            trial.want[i * trial.in + j] = trial.q[from];
        }
    }
    trial_assert(&trial, "permutation");
    trial_release(&trial);
}
END_TEST

START_TEST(orthogonal_factors_pass_through)
{
    const uint32_t out = shapes[_i][0];
    const uint32_t in = shapes[_i][1];
    double *left = matrix_alloc(out, out);
    double *right = matrix_alloc(in, in);
    struct trial trial;

    trial_init(&trial, out, in, 4);
    matrix_orthogonal(&trial.random, out, out, left);
    matrix_orthogonal(&trial.random, in, in, right);
    matrix_multiply(left, trial.w, out, out, in, trial.changed);
    matrix_multiply(left, trial.q, out, out, in, trial.want);
    trial_assert(&trial, "left factor");
    matrix_multiply(trial.w, right, out, in, in, trial.changed);
    matrix_multiply(trial.q, right, out, in, in, trial.want);
    trial_assert(&trial, "right factor");
    trial_release(&trial);
    free(left);
    free(right);
}
END_TEST

START_TEST(a_factor_is_its_own_factor)
{
    struct trial trial;

    trial_init(&trial, shapes[_i][0], shapes[_i][1], 5);
    ck_assert_double_le(matrix_dfi(trial.q, trial.out, trial.in), DFI_MAX);
    memcpy(trial.changed, trial.q, trial.count * sizeof(*trial.q));
    memcpy(trial.want, trial.q, trial.count * sizeof(*trial.q));
    trial_assert(&trial, "idempotence");
    trial_release(&trial);
}
END_TEST

/* From sigma <= 1 every cubic step brings every singular value nearer to one. */
START_TEST(cubic_steps_never_increase_the_dfi)
{
    static const char *const norms[] = { "frobenius", "spectral", "schatten" };
    struct trial trial;

    trial_init(&trial, shapes[_i][0], shapes[_i][1], 6);
    for (size_t n = 0; n < COUNT(norms); n++) {
        double last = INFINITY;

        for (int steps = 0; steps <= 18; steps += 1 + steps / 6) {
            char settings[96];
            struct fire_result result;
            double dfi;

            snprintf(settings, sizeof(settings), "scale=one polynomial=cubic normalize=%s steps=%d",
                     norms[n], steps);
            options_make(&trial.options, "fire", settings);
            result = project(&trial.projector, &trial.options, trial.out, trial.in, trial.w,
                             trial.factor);
            dfi = matrix_dfi(trial.factor, trial.out, trial.in);
            ck_assert_uint_eq(result.steps, (uint32_t)steps);
            ck_assert_msg(dfi <= last * (1.0 + 1e-5) + 1e-9, "%s after %d steps: %g after %g",
                          norms[n], steps, dfi, last);
            last = dfi;
        }
    }
    trial_release(&trial);
}
END_TEST

/* What the result says, against the same numbers from the weights before and after. */
START_TEST(results_tell_the_truth)
{
    struct trial trial;
    struct fire_result result;
    double norm, sfe;

    trial_init(&trial, shapes[_i][0], shapes[_i][1], 7);
    options_make(&trial.options, "fire", "");
    result = project(&trial.projector, &trial.options, trial.out, trial.in, trial.w, trial.factor);
    norm = matrix_norm(trial.w, trial.count);
    sfe = matrix_distance(trial.w, trial.factor, trial.count);
    sfe *= sfe;
    ck_assert_int_eq(result.status, FIRE_OK);
    ck_assert_uint_eq(result.rank, trial.r);
    ck_assert_uint_gt(strlen(result.method), 0);
    ck_assert_ptr_nonnull(result.path);
    ck_assert_double_eq_tol(result.scale, sqrt((double)trial.out / trial.in), 1e-6);
    ck_assert_double_eq_tol(result.before.norm, norm, 1e-5 * norm);
    ck_assert_double_eq_tol(result.after.norm, matrix_norm(trial.factor, trial.count), 1e-5 * norm);
    ck_assert_double_eq_tol(result.before.dfi, matrix_dfi(trial.w, trial.out, trial.in),
                            1e-4 * trial.r);
    ck_assert_double_eq_tol(result.after.dfi, matrix_dfi(trial.factor, trial.out, trial.in),
                            1e-4 * (result.after.dfi + 1e-3));
    ck_assert_double_eq_tol(result.sfe, sfe, 1e-4 * sfe + 1e-9);
    ck_assert_double_eq_tol(result.sfe_relative, sfe / (norm * norm),
                            1e-4 * result.sfe_relative + 1e-9);
    ck_assert_double_le(result.after.dfi_scale_free, DFI_MAX);
    ck_assert_double_le(result.polar_residual, 1e-4);
    trial_release(&trial);
}
END_TEST

/* Exact: a product of small integers, deficient to the last bit. Otherwise rounding leaves singular
 * values near the unit roundoff, which are noise and not rank. */
static const struct {
    uint32_t out, in, rank;
    bool exact;
} defects[] = {
    { 16, 16, 15, true },  { 40, 24, 20, true },   { 24, 40, 10, true },  { 128, 96, 48, true },
    { 16, 16, 15, false }, { 16, 16, 1, false },   { 40, 24, 20, false }, { 24, 40, 10, false },
    { 64, 64, 63, false }, { 128, 96, 48, false },
};
static const char *const precisions[] = { "scale=one", "scale=one compute=f64" };

static void integers_make(struct fire_random *random, uint32_t rows, uint32_t cols, double *w)
{
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        w[i] = floor(7.0 * fire_random_uniform(random)) - 3.0;
}

/* The matrix of a defect and its partial isometry. */
static void defect_make(size_t index, bool rounded, double *w, double *partial)
{
    const uint32_t out = defects[index].out;
    const uint32_t in = defects[index].in;
    const uint32_t rank = defects[index].rank;
    double *left = matrix_alloc(out, rank);
    double *right = matrix_alloc(rank, in);
    double sigma[128];
    struct fire_random random;

    fire_random_init(&random, 50 + index);
    if (defects[index].exact) {
        integers_make(&random, out, rank, left);
        integers_make(&random, rank, in, right);
        matrix_multiply(left, right, out, rank, in, w);
    } else {
        spectrum_deficient(&random, out < in ? out : in, rank, sigma);
        matrix_with_spectrum(&random, out, in, sigma, w);
    }
    if (rounded)
        matrix_round(w, (size_t)out * in);
    matrix_polar(w, out, in, rank, NULL, partial);
    free(left);
    free(right);
}

START_TEST(a_rank_defect_is_found_and_named)
{
    const size_t index = (size_t)_i / 2;
    const uint32_t out = defects[index].out;
    const uint32_t in = defects[index].in;
    const uint32_t r = out < in ? out : in;
    double *w = matrix_alloc(out, in);
    double *partial = matrix_alloc(out, in);
    double *q = matrix_alloc(out, in);
    struct projector projector;
    struct fire_options options;
    struct fire_result result;

    defect_make(index, _i % 2 == 0, w, partial);
    options_make(&options, "fire", precisions[_i % 2]);
    projector_open(&projector, "auto", 2);
    result = project(&projector, &options, out, in, w, q);
    projector_close(&projector);
    ck_assert_msg(result.rank == defects[index].rank && result.rank_defect == r - result.rank,
                  "%s (%s): %u x %u of rank %u%s: says rank %u, defect %u", precisions[_i % 2],
                  result.method, out, in, defects[index].rank,
                  defects[index].exact ? " exactly" : "", result.rank, result.rank_defect);
    ck_assert_msg(matrix_distance(q, partial, (size_t)out * in) <= TOLERANCE * sqrt(r),
                  "%s: partial isometry off by %g", result.method,
                  matrix_distance(q, partial, (size_t)out * in) / sqrt(r));
    ck_assert_double_eq_tol(result.dfi_unscaled_after, r - defects[index].rank, 1e-4);
    ck_assert(!result.converged);
    free(w);
    free(partial);
    free(q);
}
END_TEST

/* Steps that only count the DfI have less to lose from rounding, and lift it as they lift what is
 * small: a null space must not come out as noise made orthogonal. The sides are large enough for
 * the chooser to look at spectra. */
static const struct {
    const char *name;
    uint32_t out, in, defect;
} voids[] = {
    { "identity with a zero", 340, 340, 1 }, { "columns twice", 400, 330, 1 },
    { "columns twice", 455, 455, 3 },        { "columns twice", 582, 484, 8 },
    { "columns of zeros", 340, 340, 170 },   { "columns of zeros", 330, 400, 2 },
};

static void void_make(size_t index, double *w)
{
    const uint32_t out = voids[index].out, in = voids[index].in, defect = voids[index].defect;
    struct fire_random random;

    fire_random_init(&random, 90 + index);
    matrix_gaussian(&random, out, in, w);
    for (uint32_t i = 0; i < out; i++) {
        double *row = w + (size_t)i * in;

        for (uint32_t j = 0; j < in && index == 0; j++)
            row[j] = i == j && i > 0;
        for (uint32_t j = 0; j < defect && index > 0; j++)
            row[in - 1 - j] = index < 4 ? row[j] : 0;
    }
    if (out < in) /* zero rows, then: the short side */
        memset(w, 0, (size_t)defect * in * sizeof(double));
}

START_TEST(fast_steps_find_a_rank_defect)
{
    static const char *const paths[] = { "auto", "avx2", "avx512" };
    const size_t index = (size_t)_i / 3;
    const char *path = paths[_i % 3];
    const uint32_t out = voids[index].out, in = voids[index].in;
    const uint32_t r = out < in ? out : in;
    double *w = matrix_alloc(out, in);
    struct projector projector;
    struct fire_options options;
    struct fire_result result;

    void_make(index, w);
    options_make(&options, "fire", "scale=one compute=fast");
    if (_i % 3 == 0 || path_exists(path)) {
        projector_open(&projector, path, 2);
        result = project(&projector, &options, out, in, w, w);
        projector_close(&projector);
        ck_assert_msg(result.rank_defect == voids[index].defect, "%s, %s (%s): says %u of %u",
                      voids[index].name, result.path, result.method, result.rank_defect,
                      voids[index].defect);
        ck_assert_uint_eq(result.rank, r - voids[index].defect);
        ck_assert(!result.converged);
    }
    free(w);
}
END_TEST

/* ||E P^T||_F and ||P^T E||_F with E = full - partial, P the partial isometry: 0 when the two agree
 * on the range of W. */
static double difference_on_range(const double *full, const double *partial, uint32_t out,
                                  uint32_t in)
{
    double *difference = matrix_alloc(out, in);
    double *turned = matrix_alloc(in, out);
    double *left = matrix_alloc(out, out);
    double *right = matrix_alloc(in, in);
    double sum;

    for (size_t i = 0; i < (size_t)out * in; i++)
        difference[i] = full[i] - partial[i];
    matrix_transpose(partial, out, in, turned);
    matrix_multiply(difference, turned, out, in, out, left);
    matrix_multiply(turned, difference, in, out, in, right);
    sum = matrix_norm(left, (size_t)out * out) + matrix_norm(right, (size_t)in * in);
    free(difference);
    free(turned);
    free(left);
    free(right);
    return sum;
}

START_TEST(a_rank_defect_can_be_completed)
{
    const size_t index = (size_t)_i / 2;
    const uint32_t out = defects[index].out;
    const uint32_t in = defects[index].in;
    const uint32_t r = out < in ? out : in;
    const size_t bytes = (size_t)out * in * sizeof(double);
    double *w = matrix_alloc(out, in);
    double *partial = matrix_alloc(out, in);
    double *q = matrix_alloc(out, in);
    double *again = matrix_alloc(out, in);
    struct projector projector;
    struct fire_options options;
    struct fire_result result;

    defect_make(index, _i % 2 == 0, w, partial);
    options_make(&options, "fire", precisions[_i % 2]);
    options.complete = true;
    options.seed = 1;
    projector_open(&projector, "auto", 2);
    result = project(&projector, &options, out, in, w, q);
    ck_assert_msg(matrix_dfi(q, out, in) <= DFI_MAX, "DfI %g", matrix_dfi(q, out, in));
    ck_assert(result.converged);
    ck_assert_uint_eq(result.rank_defect, r - defects[index].rank);
    ck_assert_double_le(difference_on_range(q, partial, out, in), 4.0 * TOLERANCE * sqrt(r));

    (void)project(&projector, &options, out, in, w, again);
    ck_assert_msg(memcmp(q, again, bytes) == 0, "the same seed gave other bits");
    /* A single missing direction has two completions only, and two seeds may agree on one. */
    options.seed = 2;
    (void)project(&projector, &options, out, in, w, again);
    ck_assert_msg(r - defects[index].rank == 1 || matrix_distance(q, again, (size_t)out * in) > 0.1,
                  "another seed gave the same completion");
    projector_close(&projector);
    free(w);
    free(partial);
    free(q);
    free(again);
}
END_TEST

START_TEST(zero_stays_zero)
{
    const uint32_t out = shapes[_i][0];
    const uint32_t in = shapes[_i][1];
    const size_t count = (size_t)out * in;
    double *w = matrix_alloc(out, in);
    double *q = matrix_alloc(out, in);
    struct projector projector;
    struct fire_options options;
    struct fire_result result;

    projector_open(&projector, "auto", 2);
    for (int kind = 0; kind < 3; kind++) {
        options_make(&options, kind == 1 ? "official-vision" : "fire",
                     kind == 2 ? "compute=f64" : "");
        result = project(&projector, &options, out, in, w, q);
        ck_assert_double_eq(matrix_norm(q, count), 0.0);
        ck_assert_double_eq(result.before.norm, 0.0);
        ck_assert_double_eq(result.after.norm, 0.0);
        ck_assert(isnan(result.before.participation));
    }
    ck_assert_uint_eq(result.rank, 0);
    projector_close(&projector);
    free(w);
    free(q);
}
END_TEST

/* Entries near 1e-40 have lost bits already; what is left is what counts. */
START_TEST(denormal_weights_have_a_factor)
{
    struct trial trial;

    trial_init(&trial, shapes[_i][0], shapes[_i][1], 8);
    for (size_t i = 0; i < trial.count; i++)
        trial.changed[i] = (double)(float)(trial.w[i] * 1e-40 * sqrt((double)trial.count));
    matrix_polar(trial.changed, trial.out, trial.in, trial.r, NULL, trial.want);
    trial_assert(&trial, "denormal");
    trial_release(&trial);
}
END_TEST

/* Beyond kappa 1e5 f32 cannot promise the factor, but the DfI is reached, and how far the factor
 * may be off is reported. f64 is still right. */
START_TEST(extreme_condition_is_projected_and_reported)
{
    static const double kappas[] = { 1e5, 1e6, 1e8 };
    static const uint32_t sides[][2] = { { 32, 32 }, { 128, 128 }, { 192, 48 } };
    const double kappa = kappas[(size_t)_i / COUNT(sides)];
    const uint32_t out = sides[(size_t)_i % COUNT(sides)][0];
    const uint32_t in = sides[(size_t)_i % COUNT(sides)][1];
    const uint32_t r = in;
    double *sigma = matrix_alloc(r, 1);
    double *w = matrix_alloc(out, in);
    double *q = matrix_alloc(out, in);
    double *want = matrix_alloc(out, in);
    struct projector projector;
    struct fire_options options;
    struct fire_random random;
    struct fire_result result;

    fire_random_init(&random, (uint64_t)_i);
    spectrum_log_spaced(r, kappa, sigma);
    matrix_with_spectrum(&random, out, in, sigma, w);
    projector_open(&projector, "auto", 2);
    for (int wide = 0; wide < 2; wide++) {
        double error;

        if (!wide)
            matrix_round(w, (size_t)out * in);
        options_make(&options, "fire", precisions[wide]);
        result = project(&projector, &options, out, in, w, q);
        matrix_polar(w, out, in, r, NULL, want);
        error = matrix_distance(q, want, (size_t)out * in) / sqrt(r);
        ck_assert_msg(matrix_dfi(q, out, in) <= DFI_MAX || result.rank_defect > 0,
                      "kappa %g (%s): DfI %g", kappa, result.method, matrix_dfi(q, out, in));
        ck_assert_msg(result.polar_residual >= 0.0 && result.polar_residual < 1e-3,
                      "kappa %g (%s): residual %g", kappa, result.method, result.polar_residual);
        if (wide || kappa < 1e6)
            ck_assert_msg(result.rank_defect == 0 && error <= (wide ? 1e-15 * kappa : 1e-4),
                          "kappa %g %s (%s): error %g", kappa, precisions[wide], result.method,
                          error);
    }
    projector_close(&projector);
    free(sigma);
    free(w);
    free(q);
    free(want);
}
END_TEST

/* Seven matrices of one shape: easy, hard, deficient, zero, huge, tiny, Gaussian. */
#define MATES 7

static void mates_make(uint32_t out, uint32_t in, struct projection *mates, double *storage)
{
    const uint32_t r = out < in ? out : in;
    const size_t count = (size_t)out * in;
    static const double kappa[MATES] = { 2, 1e4, 0, 0, 10, 10, 0 };
    static const double magnitude[MATES] = { 1, 1, 1, 0, 1e30, 1e-35, 1 };
    double *sigma = matrix_alloc(r, 1);
    struct fire_random random;

    fire_random_init(&random, out * 1000 + in);
    for (int m = 0; m < MATES; m++) {
        double *w = storage + (size_t)m * 2 * count;

        if (kappa[m] > 0.0)
            spectrum_log_spaced(r, kappa[m], sigma);
        else
            spectrum_deficient(&random, r, r - r / 4, sigma);
        matrix_with_spectrum(&random, out, in, sigma, w);
        if (m == MATES - 1)
            matrix_gaussian(&random, out, in, w);
        for (size_t i = 0; i < count; i++)
            w[i] = (double)(float)(w[i] * magnitude[m]);
        mates[m].weights = w;
        mates[m].projected = w + count;
    }
    free(sigma);
}

static const struct {
    uint32_t out, in;
    const char *preset, *settings;
} runs[] = {
    { 8, 8, "fire", "" },
    { 8, 8, "official-vision", "" },
    { 64, 64, "fire", "" },
    { 64, 64, "fire", "compute=f64" },
    { 48, 150, "fire", "compute=fast" },
    { 150, 48, "fire", "complete=on" },
    { 200, 200, "review", "" },
    { 200, 200, "fire", "scale=mean-sigma" },
    { 300, 200, "fire", "" },
    { 512, 512, "fire", "" },
    { 512, 512, "fire", "compute=fast" },
    { 1024, 256, "fire", "" },
};

/* Everything of a result but the clock. */
static bool same_result(const struct fire_result *a, const struct fire_result *b)
{
    if (strcmp(a->method, b->method) != 0 || a->steps != b->steps || a->rank != b->rank)
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

START_TEST(bits_depend_on_nothing_but_the_matrix)
{
    const uint32_t out = runs[_i].out;
    const uint32_t in = runs[_i].in;
    const size_t count = (size_t)out * in;
    double *storage = matrix_alloc(MATES * 2, count);
    double *alone = matrix_alloc(out, in);
    struct projection mates[MATES];
    struct projector one, two;
    struct fire_options options;

    mates_make(out, in, mates, storage);
    options_make(&options, runs[_i].preset, runs[_i].settings);
    projector_open(&one, "auto", 1);
    projector_open(&two, "auto", 2);
    project_batch(&two, &options, out, in, mates, MATES);
    for (int m = 0; m < MATES; m++) {
        for (int run = 0; run < 3; run++) {
            struct projector *projector = run == 0 ? &one : &two;
            const struct fire_result result =
                project(projector, &options, out, in, mates[m].weights, alone);

            ck_assert_msg(memcmp(alone, mates[m].projected, count * sizeof(*alone)) == 0,
                          "matrix %d, run %d: other bits (%s, %s)", m, run, result.method,
                          mates[m].result.method);
            ck_assert_msg(same_result(&result, &mates[m].result),
                          "matrix %d, run %d: another result (%s, %s)", m, run, result.method,
                          mates[m].result.method);
        }
    }
    projector_close(&one);
    projector_close(&two);
    free(storage);
    free(alone);
}
END_TEST

/* The slot of an out x in matrix with condition 20 and largest singular value 1. */
static float *analysed_slot(struct projector *projector, const struct fire_view *view,
                            struct trial *trial)
{
    float *slot = projector->backend->host_alloc(projector->device, trial->count * sizeof(*slot));
    float *tensor = calloc(trial->count, sizeof(*tensor));

    ck_assert_ptr_nonnull(slot);
    ck_assert_ptr_nonnull(tensor);
    matrix_to_f32(trial->w, trial->count, tensor);
    ck_assert_int_eq(fire_view_gather(view, tensor, FIRE_F32, FIRE_F32, slot, NULL), FIRE_OK);
    free(tensor);
    return slot;
}

START_TEST(analysis_leaves_the_weights_alone)
{
    const struct fire_shape shape = { 2, { shapes[_i][0], shapes[_i][1] } };
    struct trial trial;
    struct fire_error error;
    struct fire_plan plan;
    struct fire_view view;
    struct fire_result result;
    struct fire_slot slot = { .result = &result };
    struct fire_batch batch = { .plan = &plan, .slots = &slot, .slot_count = 1 };
    float *kept;
    double condition;

    trial_init(&trial, shapes[_i][0], shapes[_i][1], 9);
    const struct fire_backend *backend = trial.projector.backend;
    struct fire_device *device = trial.projector.device;
    condition = trial.r == 1 ? 1.0 : KAPPA_MILD;
    fire_view_at(&shape, &trial.options, 0, &view);
    ck_assert_int_eq(fire_plan_analyze(&plan, &trial.options, &view, FIRE_F32,
                                       FIRE_STATISTICS_BASIC | FIRE_STATISTICS_SPECTRUM, &error),
                     FIRE_OK);
    slot.weights = analysed_slot(&trial.projector, &view, &trial);
    kept = analysed_slot(&trial.projector, &view, &trial);
    fire_result_init(&result);
    ck_assert_int_eq(backend->submit(device, &batch), FIRE_OK);
    ck_assert_int_eq(backend->wait(device, &batch), FIRE_OK);
    ck_assert(backend->poll(device, &batch));
    ck_assert_mem_eq(slot.weights, kept, trial.count * sizeof(*kept));
    ck_assert_double_eq_tol(result.before.condition, condition, 1e-3);
    ck_assert_double_eq_tol(result.before.spectral_norm, 1.0, 1e-5);
    ck_assert_double_eq_tol(result.before.norm, matrix_norm(trial.w, trial.count), 1e-5);
    backend->host_free(device, slot.weights);
    backend->host_free(device, kept);
    trial_release(&trial);
}
END_TEST

static const struct {
    const char *settings;
    bool skipped;
} scalings[] = {
    { "steps=0 scale=keep-norm", false },          /* the factor is known before the norm is */
    { "steps=0 scale=keep-norm eps=0.01", false }, /* … and is not */
    { "steps=0 scale=keep-norm min_norm=1e9", true },
    { "steps=0 scale=one", false },
};

/* Zero steps and no statistics take a way of their own, without G: c W / (||W|| + eps), where
 * keep-norm's c is ||W|| / sqrt(r). */
START_TEST(a_plan_without_steps_only_scales)
{
    const uint32_t *sides = shapes[_i / COUNT(scalings)];
    const bool skipped = scalings[_i % COUNT(scalings)].skipped;
    const struct fire_shape shape = { 2, { sides[0], sides[1] } };
    struct trial trial;
    struct fire_error error;
    struct fire_plan plan;
    struct fire_view view;
    struct fire_result result;
    struct fire_slot slot = { .result = &result };
    struct fire_batch batch = { .plan = &plan, .slots = &slot, .slot_count = 1 };
    double norm, factor, sfe = 0;
    float *kept;

    trial_init(&trial, sides[0], sides[1], 10);
    const struct fire_backend *backend = trial.projector.backend;
    struct fire_device *device = trial.projector.device;

    options_make(&trial.options, "fire", scalings[_i % COUNT(scalings)].settings);
    fire_view_at(&shape, &trial.options, 0, &view);
    ck_assert_int_eq(fire_plan_make(&plan, &trial.options, &view, FIRE_F32, 0, &error), FIRE_OK);
    slot.weights = analysed_slot(&trial.projector, &view, &trial);
    kept = analysed_slot(&trial.projector, &view, &trial);
    fire_result_init(&result);
    ck_assert_int_eq(backend->submit(device, &batch), FIRE_OK);
    ck_assert_int_eq(backend->wait(device, &batch), FIRE_OK);
    ck_assert_int_eq(result.action, skipped ? FIRE_ACTION_SKIPPED : FIRE_ACTION_PROJECTED);
    norm = matrix_norm(trial.w, trial.count);
    factor = (plan.scale == FIRE_SCALE_KEEP_NORM ? norm / sqrt(trial.r) : 1) / (norm + plan.eps);
    for (size_t i = 0; i < trial.count; i++) {
        const float w = ((const float *)slot.weights)[i];

        if (skipped)
            ck_assert_float_eq(w, kept[i]);
        else
            ck_assert_double_eq_tol(w, kept[i] * factor, 1e-6 * fabs(kept[i] * factor) + 1e-30);
        sfe += ((double)w - kept[i]) * ((double)w - kept[i]);
    }
    if (!skipped) {
        ck_assert_double_eq_tol(result.scale, factor * (norm + plan.eps), 1e-5);
        ck_assert_double_eq_tol(result.sfe, sfe, 1e-6 * sfe + 1e-12);
        ck_assert_double_eq_tol(result.sfe_relative, sfe / (norm * norm), 1e-5);
    }
    backend->host_free(device, slot.weights);
    backend->host_free(device, kept);
    trial_release(&trial);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("properties");
    TCase *shaped = tcase_create("any shape");
    TCase *special = tcase_create("special inputs");
    TCase *bits = tcase_create("determinism");
    SRunner *runner;
    int failed;

    tcase_set_timeout(shaped, 120);
    tcase_add_loop_test(shaped, scaling_the_weights_changes_nothing, 0, COUNT(shapes));
    tcase_add_loop_test(shaped, transposing_the_weights_transposes_the_factor, 0, COUNT(shapes));
    tcase_add_loop_test(shaped, permuting_the_weights_permutes_the_factor, 0, COUNT(shapes));
    tcase_add_loop_test(shaped, orthogonal_factors_pass_through, 0, COUNT(shapes));
    tcase_add_loop_test(shaped, a_factor_is_its_own_factor, 0, COUNT(shapes));
    tcase_add_loop_test(shaped, cubic_steps_never_increase_the_dfi, 0, COUNT(shapes));
    tcase_add_loop_test(shaped, results_tell_the_truth, 0, COUNT(shapes));
    tcase_add_loop_test(shaped, analysis_leaves_the_weights_alone, 0, COUNT(shapes));
    tcase_add_loop_test(shaped, a_plan_without_steps_only_scales, 0,
                        COUNT(shapes) * COUNT(scalings));
    suite_add_tcase(suite, shaped);
    tcase_set_timeout(special, 120);
    tcase_add_loop_test(special, a_rank_defect_is_found_and_named, 0, 2 * COUNT(defects));
    tcase_add_loop_test(special, fast_steps_find_a_rank_defect, 0, 3 * COUNT(voids));
    tcase_add_loop_test(special, a_rank_defect_can_be_completed, 0, 2 * COUNT(defects));
    tcase_add_loop_test(special, zero_stays_zero, 0, COUNT(shapes));
    tcase_add_loop_test(special, denormal_weights_have_a_factor, 0, COUNT(shapes));
    tcase_add_loop_test(special, extreme_condition_is_projected_and_reported, 0, 9);
    suite_add_tcase(suite, special);
    tcase_set_timeout(bits, 300);
    tcase_add_loop_test(bits, bits_depend_on_nothing_but_the_matrix, 0, COUNT(runs));
    suite_add_tcase(suite, bits);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
