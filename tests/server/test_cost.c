/* cost: what estimates must get right: order, calibration, and learning from what was measured. */
#include <check.h>
#include <math.h>

#include "cost.h"
#include "jobs.h"

#define WORKERS 2u

/* 1e-9 s a flop at 32, 1e-10 at 128; nothing else is known. */
static struct cost_model make_model(void)
{
    struct cost_sample samples[2];
    struct fire_plan plans[2];
    struct cost_model model;

    plan_make(&plans[0], 32, 32, NULL);
    plan_make(&plans[1], 128, 128, NULL);
    samples[0] = (struct cost_sample){ &plans[0], 32, 1e-5 + 32 * cost_flops(&plans[0]) * 1e-9 };
    samples[1] = (struct cost_sample){ &plans[1], 8, 1e-5 + 8 * cost_flops(&plans[1]) * 1e-10 };
    cost_calibrate(&model, samples, 2, 1e-5, WORKERS);
    return model;
}

/* Between two samples the rate is the geometric mean; beyond them the nearest. */
START_TEST(calibration_interpolates)
{
    const struct cost_model model = make_model();

    ck_assert_double_eq_tol(model.seconds_per_flop[5], 1e-9, 1e-15);
    ck_assert_double_eq_tol(model.seconds_per_flop[7], 1e-10, 1e-16);
    ck_assert_double_eq_tol(model.seconds_per_flop[6], sqrt(1e-19), 1e-15);
    ck_assert_double_eq_tol(model.seconds_per_flop[0], 1e-9, 1e-15);
    ck_assert_double_eq_tol(model.seconds_per_flop[COST_CLASSES - 1], 1e-10, 1e-16);
}
END_TEST

static const struct {
    const char *name;
    uint32_t smaller[2], larger[2];
    const char *smaller_setting, *larger_setting;
} pairs[] = {
    { "a larger matrix", { 128, 128 }, { 256, 256 }, NULL, NULL },
    { "a longer matrix", { 128, 128 }, { 512, 128 }, NULL, NULL },
    { "more steps", { 128, 128 }, { 128, 128 }, "steps=2", "steps=12" },
    { "f64", { 128, 128 }, { 128, 128 }, NULL, "compute=f64" },
    { "any step against none", { 64, 64 }, { 64, 64 }, "steps=0", "steps=1" },
};

START_TEST(more_work_has_more_flops)
{
    struct fire_plan smaller, larger;

    plan_make(&smaller, pairs[_i].smaller[0], pairs[_i].smaller[1], pairs[_i].smaller_setting);
    plan_make(&larger, pairs[_i].larger[0], pairs[_i].larger[1], pairs[_i].larger_setting);
    ck_assert_double_gt(cost_flops(&smaller), 0);
    ck_assert_msg(cost_flops(&smaller) < cost_flops(&larger), "%s", pairs[_i].name);
}
END_TEST

/* An idle worker or lane costs what a busy one does. */
START_TEST(unfilled_workers_cost_as_much)
{
    const struct cost_model model = make_model();
    struct fire_plan tiny, small, large, huge;

    plan_make(&huge, 1100, 1100, NULL);
    plan_make(&tiny, 16, 16, NULL);
    plan_make(&small, 64, 64, NULL);
    plan_make(&large, 256, 256, NULL);
    ck_assert_uint_eq(cost_granule(&model, &tiny), 16 * WORKERS);
    ck_assert_uint_eq(cost_granule(&model, &small), WORKERS);
    ck_assert_uint_eq(cost_granule(&model, &large), 1);
    ck_assert_uint_eq(cost_company(&model, &tiny), 16 * WORKERS);
    ck_assert_uint_eq(cost_company(&model, &small), WORKERS);
    ck_assert_uint_eq(cost_company(&model, &large), WORKERS);
    ck_assert_uint_eq(cost_company(&model, &huge), 1);
    ck_assert_double_eq(cost_seconds(&model, &small, 1), cost_seconds(&model, &small, 2));
    ck_assert_double_lt(cost_seconds(&model, &small, 2), cost_seconds(&model, &small, 3));
    ck_assert_double_lt(cost_seconds(&model, &large, 1), cost_seconds(&model, &large, 2));
}
END_TEST

/* Whatever the model thought, batches that take ten times as long teach it; other classes are left
 * alone, and one odd batch moves it little. */
START_TEST(batches_teach_their_class)
{
    struct cost_model model = make_model();
    struct fire_plan plan;
    double truth;

    plan_make(&plan, 128, 128, NULL);
    truth = 10 * (cost_seconds(&model, &plan, 8) - 1e-5) + 1e-5;
    cost_learn(&model, &plan, 8, 1000 * truth);
    ck_assert_double_lt(cost_seconds(&model, &plan, 8), truth / 5);
    for (uint32_t i = 0; i < 300; i++)
        cost_learn(&model, &plan, 8, truth);
    ck_assert_double_eq_tol(cost_seconds(&model, &plan, 8), truth, truth / 50);
    ck_assert_double_eq_tol(model.seconds_per_flop[5], 1e-9, 1e-15);
    cost_learn(&model, &plan, 8, 0); /* a clock that did not move says nothing */
    ck_assert_double_eq_tol(cost_seconds(&model, &plan, 8), truth, truth / 50);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cost");
    TCase *tests = tcase_create("cost");
    SRunner *runner;
    int failed;

    tcase_add_test(tests, calibration_interpolates);
    tcase_add_loop_test(tests, more_work_has_more_flops, 0, sizeof(pairs) / sizeof(pairs[0]));
    tcase_add_test(tests, unfilled_workers_cost_as_much);
    tcase_add_test(tests, batches_teach_their_class);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
