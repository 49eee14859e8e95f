/* Policies on state tensors, and what the first Adam step after each of them does. */
#include "state.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

/* Orthonormal columns (or rows, when wide) by Gram-Schmidt, twice, times `scale`. */
static void isometry(double *q, uint32_t rows, uint32_t cols, double scale, uint64_t seed)
{
    const bool tall = rows >= cols;
    const uint32_t length = tall ? rows : cols, count = tall ? cols : rows;
    const size_t along = tall ? cols : 1, across = tall ? 1 : cols;
    struct fire_random random;

    fire_random_init(&random, seed);
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        q[i] = fire_random_normal(&random);
    for (uint32_t c = 0; c < count; c++) {
        for (uint32_t k = 0; k < 2 * c; k++) {
            double dot = 0.0;

            for (uint32_t i = 0; i < length; i++)
                dot += q[c * across + i * along] * q[k % c * across + i * along];
            for (uint32_t i = 0; i < length; i++)
                q[c * across + i * along] -= dot * q[k % c * across + i * along];
        }
        double norm = 0.0;
        for (uint32_t i = 0; i < length; i++)
            norm = hypot(norm, q[c * across + i * along]);
        for (uint32_t i = 0; i < length; i++)
            q[c * across + i * along] /= norm;
    }
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        q[i] *= scale;
}

static void noise(double *values, size_t count, uint64_t seed)
{
    struct fire_random random;

    fire_random_init(&random, seed);
    for (size_t i = 0; i < count; i++)
        values[i] = fire_random_normal(&random);
}

/* The definition, with the aspect spelled out: M - Q sym(Q^T M), or M - sym(M Q^T) Q. */
static void transport_by_definition(const double *q, const double *m, double *out, uint32_t rows,
                                    uint32_t cols)
{
    const bool tall = rows >= cols;
    const uint32_t r = tall ? cols : rows;
    double *s = calloc((size_t)r * r, sizeof(*s));

    ck_assert_ptr_nonnull(s);
    for (uint32_t i = 0; i < r; i++)
        for (uint32_t j = 0; j < r; j++)
            for (uint32_t k = 0; k < (tall ? rows : cols); k++)
                s[i * r + j] +=
                    tall ? q[k * cols + i] * m[k * cols + j] : m[i * cols + k] * q[j * cols + k];
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < cols; j++) {
            double sum = m[i * cols + j];

            for (uint32_t k = 0; k < r; k++)
                sum -= tall ? q[i * cols + k] * 0.5 * (s[k * r + j] + s[j * r + k])
                            : 0.5 * (s[i * r + k] + s[k * r + i]) * q[k * cols + j];
            out[i * cols + j] = sum;
        }
    free(s);
}

static void options_of(struct fire_options *options, enum fire_state_policy policy)
{
    struct fire_error error;

    ck_assert_int_eq(fire_options_preset(options, "fire", &error), FIRE_OK);
    options->state_policy = policy;
}

START_TEST(names_of_slots_and_policies_are_known)
{
    static const char *const slots[] = { "exp_avg", "exp_avg_sq", "momentum_buffer", "step" };
    static const char *const policies[] = { "keep", "zero", "reset", "transport" };
    struct fire_error error;
    enum fire_state_slot slot;

    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(fire_state_slot_parse(slots[i], &slot, &error), FIRE_OK);
        ck_assert_int_eq(slot, i);
        ck_assert_str_eq(fire_state_policy_name((enum fire_state_policy)i), policies[i]);
    }
    ck_assert_int_eq(fire_state_slot_parse("max_exp_avg_sq", &slot, &error), FIRE_NOT_FOUND);
    ck_assert_str_eq(error.field, "max_exp_avg_sq");
    ck_assert(strstr(error.message, "momentum_buffer") != NULL);
    ck_assert_int_eq(fire_state_slot_parse("exp_av", &slot, &error), FIRE_NOT_FOUND);
    ck_assert(strstr(error.message, "did you mean 'exp_avg'") != NULL);
}
END_TEST

/* K kept, 0 zeroed, T transported; the columns are exp_avg, exp_avg_sq, momentum_buffer, step. */
START_TEST(each_policy_does_to_each_slot_what_it_says)
{
    static const char *const effects[] = { "KKKK", "000K", "0000", "TKTK" };
    const struct fire_shape shape = { 2, { 6, 4 } };
    double q[24], m[24], moved[24];

    isometry(q, 6, 4, 2.0, 1);
    noise(m, 24, 2);
    for (int i = 0; i < 24; i++)
        q[i] /= 2.0;
    transport_by_definition(q, m, moved, 6, 4);
    for (int i = 0; i < 24; i++)
        q[i] *= 2.0;
    for (int policy = 0; policy < 4; policy++) {
        for (int slot = 0; slot < 4; slot++) {
            const char effect = effects[policy][slot];
            struct fire_options options;
            struct fire_error error;
            double state[24];

            memcpy(state, m, sizeof(state));
            options_of(&options, (enum fire_state_policy)policy);
            ck_assert_int_eq(fire_state_apply(&options, (enum fire_state_slot)slot, &shape,
                                              FIRE_F64, state, &shape, FIRE_F64, q, &error),
                             FIRE_OK);
            for (int i = 0; i < 24; i++) {
                const double want = effect == 'K' ? m[i] : effect == '0' ? 0.0 : moved[i];

                ck_assert_msg(fabs(state[i] - want) < (effect == 'T' ? 1e-14 : 1e-300),
                              "%s of slot %d at %d: %g, not %g",
                              fire_state_policy_name((enum fire_state_policy)policy), slot, i,
                              state[i], want);
            }
        }
    }
}
END_TEST

static const struct {
    const char *name;
    uint32_t rows, cols;
    double scale;
} matrices[] = {
    { "tall", 9, 5, 1.0 },
    { "wide", 5, 9, 1.0 },
    { "square", 8, 8, 3.0 },
    { "larger than a block", 150, 131, 0.25 },
    { "wide and larger than a block", 67, 201, 1e-30 },
    { "one column", 7, 1, 1.0 },
    { "one element", 1, 1, 5.0 },
    { "at the edge of f64", 12, 6, 1e200 },
    { "denormal", 12, 6, 1e-312 },
};

START_TEST(transport_is_its_definition_whatever_the_scale)
{
    const uint32_t rows = matrices[_i].rows, cols = matrices[_i].cols;
    const size_t count = (size_t)rows * cols;
    const struct fire_shape shape = { 2, { rows, cols } };
    double *q = malloc(count * sizeof(*q)), *m = malloc(count * sizeof(*m));
    double *want = malloc(count * sizeof(*want));
    struct fire_options options;
    struct fire_error error;
    double worst = 0.0;

    ck_assert(q && m && want);
    isometry(q, rows, cols, 1.0, 3);
    noise(m, count, 4);
    transport_by_definition(q, m, want, rows, cols);
    isometry(q, rows, cols, matrices[_i].scale, 3);
    options_of(&options, FIRE_STATE_TRANSPORT);
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_EXP_AVG, &shape, FIRE_F64, m, &shape,
                                      FIRE_F64, q, &error),
                     FIRE_OK);
    for (size_t i = 0; i < count; i++)
        worst = fmax(worst, fabs(m[i] - want[i]));
    /* A denormal has few digits left to say where Q is. */
    ck_assert_msg(worst < (matrices[_i].scale < 1e-300 ? 1e-9 : 1e-12), "%s: %g", matrices[_i].name,
                  worst);
    free(q);
    free(m);
    free(want);
}
END_TEST

/* sym(Q^T M) = 0 is what being tangent means, and moving there again moves nothing. */
START_TEST(a_transported_moment_is_tangent_and_stays)
{
    const struct fire_shape shape = { 2, { 20, 12 } };
    double q[240], m[240], again[240];
    struct fire_options options;
    struct fire_error error;

    isometry(q, 20, 12, 1.0, 5);
    noise(m, 240, 6);
    options_of(&options, FIRE_STATE_TRANSPORT);
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_MOMENTUM_BUFFER, &shape, FIRE_F64, m,
                                      &shape, FIRE_F64, q, &error),
                     FIRE_OK);
    for (int i = 0; i < 12; i++) {
        for (int j = 0; j < 12; j++) {
            double sum = 0.0;

            for (int k = 0; k < 20; k++)
                sum += q[k * 12 + i] * m[k * 12 + j] + q[k * 12 + j] * m[k * 12 + i];
            ck_assert(fabs(sum) < 1e-13);
        }
    }
    memcpy(again, m, sizeof(m));
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_MOMENTUM_BUFFER, &shape, FIRE_F64, again,
                                      &shape, FIRE_F64, q, &error),
                     FIRE_OK);
    for (int i = 0; i < 240; i++)
        ck_assert(fabs(again[i] - m[i]) < 1e-13);
}
END_TEST

/* Two taps of a conv and two blocks of a split are four matrices, each moved by its own Q; the
 * state is bf16 and the weights are f32. */
START_TEST(transport_works_on_each_matrix_of_a_tensor)
{
    const struct fire_shape shape = { 3, { 12, 4, 2 } };
    uint16_t state[96];
    float weights[96];
    double m[96];
    struct fire_options options;
    struct fire_error error;

    options_of(&options, FIRE_STATE_TRANSPORT);
    options.split_count = 2;
    noise(m, 96, 7);
    for (int i = 0; i < 96; i++) {
        state[i] = fire_f32_to_bf16((float)m[i]);
        m[i] = fire_bf16_to_f32(state[i]);
    }
    for (int view = 0; view < 4; view++) {
        double q[24];

        isometry(q, 6, 4, 0.7, 10 + (uint64_t)view);
        for (int i = 0; i < 24; i++)
            weights[(view / 2 * 6 + i / 4) * 8 + i % 4 * 2 + view % 2] = (float)q[i];
    }
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_EXP_AVG, &shape, FIRE_BF16, state, &shape,
                                      FIRE_F32, weights, &error),
                     FIRE_OK);
    for (int view = 0; view < 4; view++) {
        double q[24], part[24], want[24];

        isometry(q, 6, 4, 1.0, 10 + (uint64_t)view);
        for (int i = 0; i < 24; i++)
            part[i] = m[(view / 2 * 6 + i / 4) * 8 + i % 4 * 2 + view % 2];
        transport_by_definition(q, part, want, 6, 4);
        for (int i = 0; i < 24; i++) {
            const double got =
                fire_bf16_to_f32(state[(view / 2 * 6 + i / 4) * 8 + i % 4 * 2 + view % 2]);

            ck_assert_msg(fabs(got - want[i]) < 0.01 * fabs(want[i]) + 1e-5, "view %d: %g, not %g",
                          view, got, want[i]);
        }
    }
}
END_TEST

START_TEST(at_zero_weights_the_moment_is_kept)
{
    const struct fire_shape shape = { 2, { 3, 2 } };
    const float weights[6] = { 0 };
    float state[6] = { 1, 2, 3, 4, 5, 6 };
    struct fire_options options;
    struct fire_error error;

    options_of(&options, FIRE_STATE_TRANSPORT);
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_EXP_AVG, &shape, FIRE_F32, state, &shape,
                                      FIRE_F32, weights, &error),
                     FIRE_OK);
    for (int i = 0; i < 6; i++)
        ck_assert(state[i] == (float)(i + 1));
}
END_TEST

START_TEST(bad_state_is_refused_and_left_as_it_was)
{
    const struct fire_shape shape = { 3, { 2, 3, 2 } }, other = { 2, { 6, 2 } };
    const struct fire_shape scalar = { 0, { 0 } }, empty = { 1, { 0 } };
    float weights[12], state[12], before[12];
    struct fire_options options;
    struct fire_error error;

    options_of(&options, FIRE_STATE_TRANSPORT);
    options.stack = 1;
    for (int i = 0; i < 12; i++)
        weights[i] = state[i] = (float)(i + 1);
    state[11] = NAN; /* in the second matrix: the first must not be written either */
    memcpy(before, state, sizeof(state));
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_EXP_AVG, &shape, FIRE_F32, state, &shape,
                                      FIRE_F32, weights, &error),
                     FIRE_BAD_REQUEST);
    ck_assert(strstr(error.message, "element 11") != NULL);
    ck_assert(memcmp(before, state, sizeof(state)) == 0);

    state[11] = 1.0f;
    weights[3] = INFINITY;
    memcpy(before, state, sizeof(state));
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_EXP_AVG, &shape, FIRE_F32, state, &shape,
                                      FIRE_F32, weights, &error),
                     FIRE_BAD_REQUEST);
    ck_assert(strstr(error.message, "weights") != NULL);
    ck_assert(memcmp(before, state, sizeof(state)) == 0);

    options.state_policy = FIRE_STATE_RESET;
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_EXP_AVG, &other, FIRE_F32, state, &shape,
                                      FIRE_F32, weights, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_str_eq(error.field, "exp_avg");
    ck_assert(memcmp(before, state, sizeof(state)) == 0);
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_STEP, &empty, FIRE_F32, state, &shape,
                                      FIRE_F32, weights, &error),
                     FIRE_BAD_REQUEST);
    ck_assert(memcmp(before, state, sizeof(state)) == 0);
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_STEP, &scalar, FIRE_F32, state, &shape,
                                      FIRE_F32, NULL, &error),
                     FIRE_OK);
    ck_assert(state[0] == 0.0f && state[1] == before[1]);
}
END_TEST

/* malloc() of everything linked here (-Wl,--wrap): the call numbered `allocation_failing` fails. */
static int allocation_count, allocation_failing;
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    return ++allocation_count == allocation_failing ? NULL : __real_malloc(bytes);
}

START_TEST(without_memory_the_state_is_left_as_it_was)
{
    const struct fire_shape shape = { 2, { 6, 4 } };
    double q[24], state[24], before[24];
    struct fire_options options;
    int failures = 0;

    isometry(q, 6, 4, 1.0, 30);
    noise(before, 24, 31);
    options_of(&options, FIRE_STATE_TRANSPORT);
    for (int n = 1;; n++) {
        struct fire_error error;
        enum fire_status status;

        memcpy(state, before, sizeof(state));
        allocation_count = 0;
        allocation_failing = n;
        status = fire_state_apply(&options, FIRE_SLOT_EXP_AVG, &shape, FIRE_F64, state, &shape,
                                  FIRE_F64, q, &error);
        allocation_failing = 0;
        if (status == FIRE_OK)
            break;
        failures++;
        ck_assert_int_eq(status, FIRE_NO_MEMORY);
        ck_assert(strlen(error.message) > 0);
        ck_assert(memcmp(state, before, sizeof(state)) == 0);
        ck_assert_int_lt(failures, 100);
    }
    ck_assert_int_gt(failures, 0);
}
END_TEST

/* --- the first Adam step ---------------------------------------------------------------------- */

#define ADAM_ROWS  8
#define ADAM_COLS  4
#define ADAM_COUNT (ADAM_ROWS * ADAM_COLS)

struct adam {
    double exp_avg[ADAM_COUNT], exp_avg_sq[ADAM_COUNT];
    double step;
};

/* One step as PyTorch takes it; returns the largest |update| in units of the learning rate. */
static double adam_step(struct adam *adam, const double *gradient)
{
    const double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
    double largest = 0.0;

    adam->step += 1.0;
    for (int i = 0; i < ADAM_COUNT; i++) {
        double first, second;

        adam->exp_avg[i] = beta1 * adam->exp_avg[i] + (1.0 - beta1) * gradient[i];
        adam->exp_avg_sq[i] =
            beta2 * adam->exp_avg_sq[i] + (1.0 - beta2) * gradient[i] * gradient[i];
        first = adam->exp_avg[i] / (1.0 - pow(beta1, adam->step));
        second = adam->exp_avg_sq[i] / (1.0 - pow(beta2, adam->step));
        largest = fmax(largest, fabs(first) / (sqrt(second) + eps));
    }
    return largest;
}

/* Steps before the change are many enough for both bias corrections to have died out (0.999^10000 =
 * 4.5e-5), so that the limits of NUMERICS.md section 2 show: zero sqrt(1000)/10 = 3.16 x lr. */
static void train(struct adam *adam, double *gradient, int steps)
{
    memset(adam, 0, sizeof(*adam));
    noise(gradient, ADAM_COUNT, 20);
    for (int i = 0; i < ADAM_COUNT; i++)
        gradient[i] = copysign(1.0, gradient[i]);
    for (int i = 0; i < steps; i++)
        (void)adam_step(adam, gradient);
}

static void apply(struct adam *adam, enum fire_state_policy policy, const double *weights)
{
    const struct fire_shape shape = { 2, { ADAM_ROWS, ADAM_COLS } }, scalar = { 0, { 0 } };
    struct fire_options options;
    struct fire_error error;

    options_of(&options, policy);
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_EXP_AVG, &shape, FIRE_F64, adam->exp_avg,
                                      &shape, FIRE_F64, weights, &error),
                     FIRE_OK);
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_EXP_AVG_SQ, &shape, FIRE_F64,
                                      adam->exp_avg_sq, &shape, FIRE_F64, weights, &error),
                     FIRE_OK);
    ck_assert_int_eq(fire_state_apply(&options, FIRE_SLOT_STEP, &scalar, FIRE_F64, &adam->step,
                                      &shape, FIRE_F64, weights, &error),
                     FIRE_OK);
}

/* |update| / lr of the first step with a fresh gradient of the same size. Transport shortens the
 * first moment as a matrix, but an entry may grow: with the second moment kept, an entry of the
 * update stays below the largest entry of the transported moment. */
START_TEST(the_first_adam_step_after_each_policy_is_bounded)
{
    static const struct {
        enum fire_state_policy policy;
        int steps;
        double low, high;
    } first[] = {
        { FIRE_STATE_KEEP, 1000, 0.79, 1.001 },   { FIRE_STATE_KEEP, 10000, 0.79, 1.001 },
        { FIRE_STATE_ZERO, 1000, 2.4, 2.6 },      { FIRE_STATE_ZERO, 10000, 3.1, 3.2 },
        { FIRE_STATE_RESET, 1000, 0.99, 1.0001 }, { FIRE_STATE_RESET, 10000, 0.99, 1.0001 },
        { FIRE_STATE_TRANSPORT, 1000, 0.1, 3.2 }, { FIRE_STATE_TRANSPORT, 10000, 0.1, 3.2 },
    };
    double weights[ADAM_COUNT];

    isometry(weights, ADAM_ROWS, ADAM_COLS, 1.4, 21);
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
        double gradient[ADAM_COUNT], fresh[ADAM_COUNT], largest;
        struct adam adam;

        train(&adam, gradient, first[i].steps);
        apply(&adam, first[i].policy, weights);
        noise(fresh, ADAM_COUNT, 22);
        for (int k = 0; k < ADAM_COUNT; k++)
            fresh[k] = copysign(1.0, fresh[k]);
        largest = adam_step(&adam, fresh);
        ck_assert_msg(largest >= first[i].low && largest <= first[i].high,
                      "%s after %d steps: %g x lr", fire_state_policy_name(first[i].policy),
                      first[i].steps, largest);
    }
}
END_TEST

/* What no policy does: the second moment zeroed under a first that is not. */
START_TEST(the_forbidden_combination_would_be_thirty_times_larger)
{
    double gradient[ADAM_COUNT], weights[ADAM_COUNT];
    struct adam adam;
    double largest;

    train(&adam, gradient, 10000);
    memset(adam.exp_avg_sq, 0, sizeof(adam.exp_avg_sq));
    largest = adam_step(&adam, gradient);
    ck_assert_msg(largest > 30.0 && largest < 32.0, "%g x lr", largest);

    isometry(weights, ADAM_ROWS, ADAM_COLS, 1.4, 21);
    for (int policy = 0; policy < 4; policy++) {
        train(&adam, gradient, 100);
        apply(&adam, (enum fire_state_policy)policy, weights);
        for (int i = 0; i < ADAM_COUNT; i++)
            ck_assert_msg(adam.exp_avg_sq[i] != 0.0 || adam.exp_avg[i] == 0.0, "%s",
                          fire_state_policy_name((enum fire_state_policy)policy));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("state");
    TCase *tests = tcase_create("state");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, names_of_slots_and_policies_are_known);
    tcase_add_test(tests, each_policy_does_to_each_slot_what_it_says);
    tcase_add_loop_test(tests, transport_is_its_definition_whatever_the_scale, 0,
                        sizeof(matrices) / sizeof(matrices[0]));
    tcase_add_test(tests, a_transported_moment_is_tangent_and_stays);
    tcase_add_test(tests, transport_works_on_each_matrix_of_a_tensor);
    tcase_add_test(tests, at_zero_weights_the_moment_is_kept);
    tcase_add_test(tests, bad_state_is_refused_and_left_as_it_was);
    tcase_add_test(tests, without_memory_the_state_is_left_as_it_was);
    tcase_add_test(tests, the_first_adam_step_after_each_policy_is_bounded);
    tcase_add_test(tests, the_forbidden_combination_would_be_thirty_times_larger);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
