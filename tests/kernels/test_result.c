/* The rules by which the results of many matrices become one, each on numbers whose answer is known
 * by hand. */
#include "result.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* INTERFACES.md section 2, numbers only, in its order. */
static const struct {
    const char *name;
    double merged; /* of 3 and 4, then 12 */
} fields[] = {
    { "scale", 19.0 / 3 },
    { "dfi_before", 19 },
    { "dfi_after", 19 },
    { "dfi_full_before", 19 },
    { "dfi_full_after", 19 },
    { "dfi_scale_free_before", 19 },
    { "dfi_scale_free_after", 19 },
    { "dfi_unscaled_after", 19 },
    { "polar_residual", 19.0 / 3 },
    { "dfi_mean_before", 19.0 / 3 },
    { "dfi_mean_after", 19.0 / 3 },
    { "sfe", 19 },
    { "sfe_relative", 19.0 / 3 },
    { "norm_before", 13 },
    { "norm_after", 13 },
    { "norm_preservation", 19.0 / 3 },
    { "spectral_norm_before", 13 },
    { "spectral_norm_after", 13 },
    { "stable_rank_before", 19.0 / 3 },
    { "stable_rank_after", 19.0 / 3 },
    { "effective_rank_before", 19.0 / 3 },
    { "effective_rank_after", 19.0 / 3 },
    { "srank_before", 19.0 / 3 },
    { "srank_after", 19.0 / 3 },
    { "condition_before", 12 },
    { "condition_after", 12 },
    { "participation_before", 19.0 / 3 },
    { "participation_after", 19.0 / 3 },
    { "dormant_ratio", 19.0 / 3 },
    { "gradient_dormant_ratio", 19.0 / 3 },
    { "compute_ms", 19 },
};
#define FIELD_COUNT (sizeof(fields) / sizeof(fields[0]))

static void fill(struct fire_result *result, double value)
{
    fire_result_init(result);
    result->action = FIRE_ACTION_PROJECTED;
    result->matrices = 1;
    result->converged = true;
    for (size_t i = 0; i < fire_result_field_count(); i++)
        memcpy((char *)result + fire_result_field_at(i)->offset, &value, sizeof(value));
}

START_TEST(fields_have_the_promised_names_in_the_promised_order)
{
    ck_assert_uint_eq(fire_result_field_count(), FIELD_COUNT);
    for (size_t i = 0; i < FIELD_COUNT; i++)
        ck_assert_str_eq(fire_result_field_at(i)->name, fields[i].name);
}
END_TEST

START_TEST(fields_point_at_different_members)
{
    for (size_t i = 0; i < FIELD_COUNT; i++)
        for (size_t j = 0; j < i; j++)
            ck_assert_uint_ne(fire_result_field_at(i)->offset, fire_result_field_at(j)->offset);
    for (size_t i = 0; i < FIELD_COUNT; i++)
        ck_assert(fire_result_field_at(i)->offset + sizeof(double) <= sizeof(struct fire_result));
}
END_TEST

START_TEST(a_fresh_result_knows_nothing)
{
    struct fire_result result;

    fire_result_init(&result);
    ck_assert_int_eq(result.action, FIRE_ACTION_REFUSED);
    ck_assert_str_eq(result.reason, "");
    ck_assert_str_eq(result.method, "");
    ck_assert_str_eq(result.path, "");
    for (size_t i = 0; i < FIELD_COUNT; i++)
        ck_assert_msg(isnan(fire_result_value(&result, i)), "%s", fields[i].name);
}
END_TEST

START_TEST(three_parts_merge_by_the_rule_of_each_field)
{
    static const double values[] = { 3.0, 4.0, 12.0 };
    struct fire_result sum;

    fire_result_init(&sum);
    for (int k = 0; k < 3; k++) {
        struct fire_result part;

        fill(&part, values[k]);
        fire_result_merge(&sum, &part);
    }
    ck_assert_uint_eq(sum.matrices, 3);
    for (size_t i = 0; i < FIELD_COUNT; i++)
        ck_assert_msg(fabs(fire_result_value(&sum, i) - fields[i].merged) < 1e-12, "%s: %g",
                      fields[i].name, fire_result_value(&sum, i));
}
END_TEST

START_TEST(merged_results_merge_again_by_their_weight)
{
    struct fire_result pair, part, sum;

    fire_result_init(&pair);
    fill(&part, 3.0);
    fire_result_merge(&pair, &part);
    fill(&part, 4.0);
    fire_result_merge(&pair, &part);
    fire_result_init(&sum);
    fill(&part, 12.0);
    fire_result_merge(&sum, &part);
    fire_result_merge(&sum, &pair);
    ck_assert_uint_eq(sum.matrices, 3);
    for (size_t i = 0; i < FIELD_COUNT; i++)
        ck_assert_msg(fabs(fire_result_value(&sum, i) - fields[i].merged) < 1e-12, "%s: %g",
                      fields[i].name, fire_result_value(&sum, i));
}
END_TEST

START_TEST(the_mean_of_equal_numbers_is_that_number_to_the_bit)
{
    struct fire_result sum, part;

    fire_result_init(&sum);
    fill(&part, 0.1);
    for (int k = 0; k < 9; k++)
        fire_result_merge(&sum, &part);
    ck_assert(sum.scale == 0.1);
    ck_assert_uint_eq(sum.matrices, 9);
}
END_TEST

START_TEST(what_one_part_does_not_know_the_sum_does_not_know)
{
    for (int order = 0; order < 2; order++) {
        struct fire_result known, unknown, sum;

        fill(&known, 2.0);
        fill(&unknown, NAN);
        fire_result_init(&sum);
        fire_result_merge(&sum, order ? &known : &unknown);
        fire_result_merge(&sum, order ? &unknown : &known);
        for (size_t i = 0; i < FIELD_COUNT; i++)
            ck_assert_msg(isnan(fire_result_value(&sum, i)), "%s", fields[i].name);
    }
}
END_TEST

START_TEST(the_worst_part_decides)
{
    struct fire_result sum, part;

    fire_result_init(&sum);
    fill(&part, 1.0);
    part.steps = 4;
    part.rank = 64;
    fire_result_merge(&sum, &part);
    part.steps = 9;
    part.rank = 60;
    part.rank_defect = 4;
    part.converged = false;
    fire_result_merge(&sum, &part);
    part.steps = 5;
    part.rank = 63;
    part.rank_defect = 1;
    part.converged = true;
    fire_result_merge(&sum, &part);
    ck_assert_uint_eq(sum.steps, 9);
    ck_assert_uint_eq(sum.rank, 60);
    ck_assert_uint_eq(sum.rank_defect, 4);
    ck_assert(!sum.converged);
}
END_TEST

/* P projected, S skipped, R refused; lower case when it did not converge. */
START_TEST(refused_beats_projected_beats_skipped)
{
    static const struct {
        const char *parts;
        enum fire_action action;
        bool converged;
        const char *reason;
    } cases[] = {
        { "PP", FIRE_ACTION_PROJECTED, true, "" },
        { "Pp", FIRE_ACTION_PROJECTED, false, "" },
        { "SP", FIRE_ACTION_PROJECTED, true, "small" },
        { "PS", FIRE_ACTION_PROJECTED, true, "small" },
        { "Sp", FIRE_ACTION_PROJECTED, false, "small" },
        { "SS", FIRE_ACTION_SKIPPED, false, "small" },
        { "SRP", FIRE_ACTION_REFUSED, false, "NaN" },
        { "PRS", FIRE_ACTION_REFUSED, true, "NaN" },
        { "RP", FIRE_ACTION_REFUSED, false, "NaN" },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fire_result sum;

        fire_result_init(&sum);
        for (const char *letter = cases[i].parts; *letter; letter++) {
            struct fire_result part;

            fill(&part, 1.0);
            part.converged = *letter == 'P';
            if (*letter == 'S' || *letter == 'R') {
                part.action = *letter == 'S' ? FIRE_ACTION_SKIPPED : FIRE_ACTION_REFUSED;
                part.status = *letter == 'S' ? FIRE_OK : FIRE_BAD_REQUEST;
                snprintf(part.reason, sizeof(part.reason), "%s", *letter == 'S' ? "small" : "NaN");
            }
            fire_result_merge(&sum, &part);
        }
        ck_assert_msg(sum.action == cases[i].action, "%s", cases[i].parts);
        ck_assert_msg((sum.status == FIRE_BAD_REQUEST) == (strchr(cases[i].parts, 'R') != NULL),
                      "%s", cases[i].parts);
        ck_assert_msg(strcmp(sum.reason, cases[i].reason) == 0, "%s: %s", cases[i].parts,
                      sum.reason);
        if (cases[i].action != FIRE_ACTION_REFUSED)
            ck_assert_msg(sum.converged == cases[i].converged, "%s", cases[i].parts);
    }
}
END_TEST

START_TEST(methods_and_paths_that_differ_say_so)
{
    static const char long_method[] =
        "a method with a name that fills all of the sixty-three bytes.";
    static const struct {
        const char *methods[4];
        const char *merged;
    } cases[] = {
        { { "D64 D", "D64 D", "D64 D" }, "D64 D" },
        { { "D64 D", "D64 D D", "D64 D" }, "D64 D (+1 other)" },
        { { "D64 D D", "D64 D", "cubic x3", "D64 D D" }, "D64 D D (+2 other)" },
        { { "", "D64 D", "D64 D" }, "D64 D" },
        { { "D64 D", "", "D64 D" }, "D64 D" },
        { { long_method, long_method }, long_method },
        { { long_method, "cubic x3" }, "a method with a name that fills all of the  (+1 other)" },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fire_result sum;

        fire_result_init(&sum);
        for (int k = 0; k < 4 && cases[i].methods[k]; k++) {
            struct fire_result part;

            fill(&part, 1.0);
            part.path = k < 2 ? "avx2" : "avx512";
            snprintf(part.method, sizeof(part.method), "%s", cases[i].methods[k]);
            fire_result_merge(&sum, &part);
        }
        ck_assert_str_eq(sum.method, cases[i].merged);
        ck_assert_str_eq(sum.path, cases[i].methods[2] ? "mixed" : "avx2");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("result");
    TCase *tests = tcase_create("result");
    SRunner *runner;
    int failed;

    tcase_add_test(tests, fields_have_the_promised_names_in_the_promised_order);
    tcase_add_test(tests, fields_point_at_different_members);
    tcase_add_test(tests, a_fresh_result_knows_nothing);
    tcase_add_test(tests, three_parts_merge_by_the_rule_of_each_field);
    tcase_add_test(tests, merged_results_merge_again_by_their_weight);
    tcase_add_test(tests, the_mean_of_equal_numbers_is_that_number_to_the_bit);
    tcase_add_test(tests, what_one_part_does_not_know_the_sum_does_not_know);
    tcase_add_test(tests, the_worst_part_decides);
    tcase_add_test(tests, refused_beats_projected_beats_skipped);
    tcase_add_test(tests, methods_and_paths_that_differ_say_so);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
