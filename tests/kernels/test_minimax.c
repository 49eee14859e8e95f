/* The chains of minimax_coefficients.h do what the header says, with exact numbers and with the
 * rounding of the products they are meant for. */
#include <check.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "amx.h"
#include "minimax_coefficients.h"

void amx_emulated_plain(const struct product *product, enum amx_terms terms, uint32_t i0,
                        uint32_t i1, uint32_t j0, uint32_t j1, void *scratch);

static double by_powers(const struct minimax_step *step, double s)
{
    const double x = s * s;
    const double *c = step->power;

    return s * (c[0] + x * (c[1] + x * (c[2] + x * (c[3] + x * c[4]))));
}

static double by_squares(const struct minimax_step *step, double s)
{
    const double x = s * s;
    const double *q = step->squared;
    const double y = x * x + q[1] * x + q[2];

    return s * (q[0] * y * y + q[3] * x + q[4]);
}

/* NUMERICS.md section 4 gives the chain for l = 1e-3 without cushion, to ten digits or so. */
START_TEST(chain_of_the_paper_is_reproduced)
{
    static const double want[4][5] = {
        { 15.0760146703, -148.071776982, 493.178159577, -634.186870194, 275.989397062 },
        { 7.1560023241, -17.4709706628, 14.6787614161, -4.77670374364, 0.52669244116 },
        { 5.24184450738, -11.956872036, 10.488328297, -3.65964278006, 0.43723771393 },
        { 2.78290960953, -4.30122693424, 3.9868060703, -1.77232760232, 0.297097954334 },
    };
    const struct minimax_chain *found = NULL;

    for (size_t i = 0; i < MINIMAX_CHAIN_COUNT; i++)
        if (minimax_chains[i].lower == 1e-3 && minimax_chains[i].cushion == 0.0)
            found = &minimax_chains[i];
    ck_assert_ptr_nonnull(found);
    for (int step = 0; step < 4; step++)
        for (int c = 0; c < 5; c++)
            ck_assert_msg(fabs(found->step[step].power[c] / want[step][c] - 1.0) < 1e-9,
                          "step %d, coefficient %d: %.12g", step, c, found->step[step].power[c]);
}
END_TEST

/* Every value of the band a step is for lands in the band it promises, in both forms, also when
 * the cushion is used up; and the promise is the best one: some value reaches its lower end. */
START_TEST(steps_keep_their_promise)
{
    const struct minimax_chain *chain = &minimax_chains[_i];
    const double half = chain->cushion / 2.0;
    double low = chain->lower, high = 1.0;

    ck_assert_uint_ge(chain->step_count, 1);
    ck_assert_uint_le(chain->step_count, MINIMAX_STEPS_MAX);
    for (uint32_t n = 0; n < chain->step_count; n++) {
        const struct minimax_step *step = &chain->step[n];
        const double from = low * (1.0 - half), to = high * (1.0 + half);
        double least = HUGE_VAL, most = 0.0;
        for (int i = 0; i <= 20000; i++) {
            const double s = from * pow(to / from, i / 20000.0);
            const double value = by_powers(step, s);
            ck_assert_double_eq_tol(by_squares(step, s), value, 1e-10);
            least = fmin(least, value);
            most = fmax(most, value);
        }
        ck_assert_msg(least >= step->lower_after - 1e-12, "step %u: %.15g", n, least);
        ck_assert_msg(most <= 2.0 - step->lower_after + 1e-12, "step %u: %.15g", n, most);
        ck_assert_double_eq_tol(least, step->lower_after, 1e-6);
        ck_assert_double_gt(step->lower_after, low);
        low = step->lower_after;
        high = 2.0 - low;
    }
    ck_assert_double_gt(low, 0.995);
}
END_TEST

/* Rows of a random orthogonal matrix, by Gram and Schmidt, twice. */
#define SIDE 96u

static void orthogonal(double q[SIDE][SIDE], uint64_t *state)
{
    for (uint32_t i = 0; i < SIDE; i++) {
        double length = 0.0;
        for (uint32_t k = 0; k < SIDE; k++) {
            *state = *state * 6364136223846793005u + 1442695040888963407u;
            q[i][k] = (double)(*state >> 11) * 0x1p-52 - 1.0;
        }
        for (uint32_t j = 0; j < 2 * i; j++) {
            double along = 0.0;
            for (uint32_t k = 0; k < SIDE; k++)
                along += q[i][k] * q[j % i][k];
            for (uint32_t k = 0; k < SIDE; k++)
                q[i][k] -= along * q[j % i][k];
        }
        for (uint32_t k = 0; k < SIDE; k++)
            length += q[i][k] * q[i][k];
        for (uint32_t k = 0; k < SIDE; k++)
            q[i][k] /= sqrt(length);
    }
}

/* Singular values from 1 down to 1 / condition, evenly in the logarithm. */
static void conditioned(float *x, double condition, uint64_t seed)
{
    static double u[SIDE][SIDE], v[SIDE][SIDE];

    orthogonal(u, &seed);
    orthogonal(v, &seed);
    for (uint32_t i = 0; i < SIDE; i++) {
        for (uint32_t j = 0; j < SIDE; j++) {
            double sum = 0.0;
            for (uint32_t k = 0; k < SIDE; k++)
                sum += u[k][i] * pow(condition, -(double)k / (SIDE - 1)) * v[k][j];
            x[i * SIDE + j] = (float)sum;
        }
    }
}

static void multiply(const float *a, const float *b, float *c, enum amx_terms terms, void *scratch)
{
    const struct product product = {
        .m = SIDE,
        .n = SIDE,
        .k = SIDE,
        .a = a,
        .lda = SIDE,
        .b = b,
        .ldb = SIDE,
        .c = c,
        .ldc = SIDE,
        .alpha = 1.0,
        .a_transposed = a == b,
    };
    amx_emulated_plain(&product, terms, 0, SIDE, 0, SIDE, scratch);
}

/* X <- X r(X^T X) by the squared form. The squares are of symmetric matrices, so transposing their
 * left side, as the Gram matrix needs, changes nothing. */
static void run_step(const struct minimax_step *step, enum amx_terms terms, float *x, void *scratch)
{
    static float g[SIDE * SIDE], y[SIDE * SIDE], r[SIDE * SIDE];
    const double *q = step->squared;

    multiply(x, x, g, terms, scratch);
    multiply(g, g, y, terms, scratch);
    for (uint32_t i = 0; i < SIDE * SIDE; i++)
        y[i] = (float)(y[i] + q[1] * g[i] + (i % (SIDE + 1) == 0 ? q[2] : 0.0));
    multiply(y, y, r, terms, scratch);
    for (uint32_t i = 0; i < SIDE * SIDE; i++)
        r[i] = (float)(q[0] * r[i] + q[3] * g[i] + (i % (SIDE + 1) == 0 ? q[4] : 0.0));
    multiply(x, r, y, terms, scratch);
    memcpy(x, y, sizeof(y));
}

static double distance_from_isometry(const float *x)
{
    double dfi = 0.0;

    for (uint32_t i = 0; i < SIDE; i++) {
        for (uint32_t j = 0; j < SIDE; j++) {
            double g = i == j ? -1.0 : 0.0;
            for (uint32_t k = 0; k < SIDE; k++)
                g += (double)x[k * SIDE + i] * x[k * SIDE + j];
            dfi += g * g;
        }
    }
    return dfi;
}

static const struct minimax_chain *chain_for(double lower, double cushion)
{
    for (size_t i = 0; i < MINIMAX_CHAIN_COUNT; i++)
        if (minimax_chains[i].lower == lower && minimax_chains[i].cushion == cushion)
            return &minimax_chains[i];
    ck_abort_msg("no chain for %g with cushion %g", lower, cushion);
}

/* Rounded products of the precision a cushion is meant for leave the chain's end where it should
 * be: DfI at the level of the precision, about SIDE u^2 with u = 2^-9 and better. Without the
 * cushion the same chain runs away in bf16, which is what the cushion is for. */
static const struct {
    const char *name;
    enum amx_terms terms;
    double lower, cushion, condition;
    double dfi_max; /* 0: it must have run away */
} runs[] = {
    { "bf16, well conditioned", AMX_BF16, 1e-1, 0.04, 10, 1e-2 },
    { "bf16, chain longer than needed", AMX_BF16, 1e-4, 0.04, 10, 1e-2 },
    { "bf16, kappa 1e2", AMX_BF16, 1e-2, 0.04, 100, 3e-2 },
    { "bf16, kappa 1e3", AMX_BF16, 1e-3, 0.04, 1000, 3e-2 },
    { "x3, kappa 1e2", AMX_X3, 3e-3, 0.02, 100, 1e-6 },
    { "x3, kappa 1e3", AMX_X3, 1e-3, 0.02, 1000, 1e-6 },
    { "x3, kappa 1e4", AMX_X3, 1e-4, 0.02, 10000, 1e-4 },
    { "x6, kappa 1e3", AMX_X6, 1e-3, 0, 1000, 1e-9 },
    { "bf16 without cushion", AMX_BF16, 1e-3, 0, 100, 0 },
};

START_TEST(cushion_stands_the_rounding_it_is_for)
{
    static float x[SIDE * SIDE];
    const struct minimax_chain *chain = chain_for(runs[_i].lower, runs[_i].cushion);
    void *scratch = aligned_alloc(64, (AMX_SCRATCH_BYTES + 63) / 64 * 64);

    ck_assert_ptr_nonnull(scratch);
    conditioned(x, runs[_i].condition, 11 + (uint64_t)_i);
    for (uint32_t n = 0; n < chain->step_count; n++)
        run_step(&chain->step[n], runs[_i].terms, x, scratch);
    const double dfi = distance_from_isometry(x);
    if (runs[_i].dfi_max > 0.0)
        ck_assert_msg(dfi <= runs[_i].dfi_max, "%s: DfI %g", runs[_i].name, dfi);
    else
        ck_assert_msg(!(dfi <= SIDE), "%s: DfI %g", runs[_i].name, dfi);
    free(scratch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("minimax");
    TCase *chains = tcase_create("chains");

    tcase_add_test(chains, chain_of_the_paper_is_reproduced);
    tcase_add_loop_test(chains, steps_keep_their_promise, 0, (int)MINIMAX_CHAIN_COUNT);
    tcase_add_loop_test(chains, cushion_stands_the_rounding_it_is_for, 0,
                        (int)(sizeof(runs) / sizeof(runs[0])));
    tcase_set_timeout(chains, 300);
    suite_add_tcase(suite, chains);

    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
