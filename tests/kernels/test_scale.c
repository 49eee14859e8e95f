/* Scaling in place: whatever the pieces, their alignment and the instruction set, the same bits. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scale.h"
#include "scale_internal.h"

#define COUNT 5003u

static void fill(float *numbers)
{
    for (uint32_t i = 0; i < COUNT; i++)
        numbers[i] = (float)((i * 7919u) % 1009u) / 1009.0f - 0.4f;
}

static const uint32_t pieces[] = { 1, 3, 16, 17, 1000, 1024, 1025, COUNT };

START_TEST(pieces_do_not_change_a_bit)
{
    static float whole[COUNT], cut[COUNT + 1];
    struct fire_scale_sums sums = { 0 }, other = { 0 }, measured = { 0 };
    char *at = (char *)cut + 1; /* aligned to nothing */

    fill(whole);
    memcpy(at, whole, sizeof(whole));
    fire_scale_measure(&measured, whole, COUNT);
    ck_assert_uint_eq(fire_scale_run(&sums, whole, COUNT, 0.3), COUNT);
    for (uint32_t i = 0; i < COUNT; i += pieces[_i]) {
        const uint32_t size = COUNT - i < pieces[_i] ? COUNT - i : pieces[_i];

        ck_assert_uint_eq(fire_scale_run(&other, at + i * sizeof(float), size, 0.3), size);
    }
    ck_assert_mem_eq(at, whole, sizeof(whole));
    ck_assert_mem_eq(&sums, &other, sizeof(sums));
    ck_assert_mem_eq(sums.square, measured.square, sizeof(sums.square));
}
END_TEST

START_TEST(numbers_are_what_they_should_be)
{
    static float old[COUNT], new[COUNT];
    struct fire_scale_sums sums = { 0 };
    double square = 0, change = 0;

    fill(old);
    memcpy(new, old, sizeof(old));
    ck_assert_uint_eq(fire_scale_run(&sums, new, COUNT, 0.3), COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        const double by = (double)new[i] - (double)old[i];

        ck_assert_float_eq(new[i], old[i] * 0.3f);
        square += (double)old[i] * (double)old[i];
        change += by * by;
    }
    ck_assert_double_eq_tol(fire_scale_square(&sums), square, 1e-12 * square);
    ck_assert_double_eq_tol(fire_scale_change(&sums), change, 1e-12 * change);
}
END_TEST

#ifdef __x86_64__
START_TEST(instruction_sets_agree)
{
    static float one[COUNT], other[COUNT];
    struct fire_scale_sums sums[2] = { 0 };

    if (!__builtin_cpu_supports("avx2"))
        return;
    fill(one);
    fill(other);
    ck_assert_uint_eq(scale_run_portable(&sums[0], (char *)one, COUNT, 1.7f), COUNT);
    ck_assert_uint_eq(scale_run_avx2(&sums[1], (char *)other, COUNT, 1.7f), COUNT);
    ck_assert_mem_eq(one, other, sizeof(one));
    ck_assert_mem_eq(&sums[0], &sums[1], sizeof(sums[0]));
}
END_TEST
#endif

static const struct {
    float number;
    uint32_t at;
} bad[] = { { NAN, 0 }, { INFINITY, 2500 }, { -INFINITY, COUNT - 1 }, { NAN, 1023 } };

START_TEST(a_bad_number_is_found_and_left)
{
    static float numbers[COUNT], before[COUNT];
    struct fire_scale_sums sums = { 0 };
    const uint32_t block = bad[_i].at / FIRE_SCALE_BLOCK * FIRE_SCALE_BLOCK;

    fill(numbers);
    numbers[bad[_i].at] = bad[_i].number;
    memcpy(before, numbers, sizeof(before));
    ck_assert_uint_eq(fire_scale_run(&sums, numbers, COUNT, 0.5), bad[_i].at);
    ck_assert_mem_eq(numbers + block, before + block, (COUNT - block) * sizeof(float));
}
END_TEST

static struct fire_plan keep_norm(void)
{
    return (struct fire_plan){
        .kind = FIRE_PLAN_POLYNOMIAL,
        .rows = 64,
        .cols = 16,
        .compute = FIRE_F32,
        .output = FIRE_F32,
        .blend = 1,
        .eps = 1e-8,
        .scale = FIRE_SCALE_KEEP_NORM,
        .scale_factor = 1,
    };
}

/* A factor is known only when no norm that the whole may have changes it. */
START_TEST(a_factor_is_known_or_not)
{
    struct fire_plan plan = keep_norm();
    double factor;

    ck_assert(fire_scale_takes(&plan));
    ck_assert(fire_scale_factor(&plan, 10, &factor));
    ck_assert_double_eq(factor, 0.25);
    ck_assert(!fire_scale_factor(&plan, 0, &factor));
    ck_assert(!fire_scale_factor(&plan, NAN, &factor));
    ck_assert(!fire_scale_factor(&plan, 1e-6, &factor)); /* eps counts */
    plan.min_norm = 11;
    ck_assert(!fire_scale_factor(&plan, 10, &factor)); /* it may have to be skipped */
    plan = keep_norm();
    plan.scale = FIRE_SCALE_ONE;
    ck_assert(!fire_scale_factor(&plan, 10, &factor));
}
END_TEST

START_TEST(other_plans_are_not_taken)
{
    struct fire_plan plan = keep_norm();

    plan.steps = 1;
    ck_assert(!fire_scale_takes(&plan));
    plan = keep_norm();
    plan.statistics = FIRE_STATISTICS_BASIC;
    ck_assert(!fire_scale_takes(&plan));
    plan = keep_norm();
    plan.blend = 0.5;
    ck_assert(!fire_scale_takes(&plan));
    plan = keep_norm();
    plan.output = FIRE_BF16;
    ck_assert(!fire_scale_takes(&plan));
    plan = keep_norm();
    plan.kind = FIRE_PLAN_ANALYZE;
    ck_assert(!fire_scale_takes(&plan));
}
END_TEST

START_TEST(what_leaves_the_range_is_refused)
{
    const struct fire_plan plan = keep_norm();
    struct fire_result result;

    fire_result_init(&result);
    fire_scale_result(&plan, 4, INFINITY, &result);
    ck_assert_int_eq(result.action, FIRE_ACTION_REFUSED);
    ck_assert_int_eq(result.status, FIRE_BAD_REQUEST);
    fire_scale_result(&plan, 4, 8, &result);
    ck_assert_int_eq(result.action, FIRE_ACTION_PROJECTED);
    ck_assert_double_eq(result.scale, 1);
    ck_assert_double_eq(result.sfe_relative, 0.5);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scale");
    TCase *tests = tcase_create("scale");
    SRunner *runner = srunner_create(suite);
    int failed;

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, pieces_do_not_change_a_bit, 0, sizeof(pieces) / sizeof(pieces[0]));
    tcase_add_test(tests, numbers_are_what_they_should_be);
#ifdef __x86_64__
    tcase_add_test(tests, instruction_sets_agree);
#endif
    tcase_add_loop_test(tests, a_bad_number_is_found_and_left, 0, sizeof(bad) / sizeof(bad[0]));
    tcase_add_test(tests, a_factor_is_known_or_not);
    tcase_add_test(tests, other_plans_are_not_taken);
    tcase_add_test(tests, what_leaves_the_range_is_refused);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
