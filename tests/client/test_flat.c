/* The flat door: sets described by calls. Numbers are tested elsewhere; here it is what is kept of
 * a description, what is refused and that refusing changes nothing. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fire.h"

#define SIDE 8u

static const uint64_t square[] = { SIDE, SIDE };

static struct fire_client *open_client(void)
{
    struct fire_client *client;

    ck_assert_int_eq(fire_client_open_flat(1, NULL, &client), FIRE_OK);
    return client;
}

static void fill(float *matrix, float diagonal)
{
    for (uint32_t i = 0; i < SIDE * SIDE; i++)
        matrix[i] = i % (SIDE + 1) == 0 ? diagonal : 0.0f;
}

/* A multiple of the identity becomes the identity; its state is reset; an integer step too. */
START_TEST(a_set_is_projected_with_its_state)
{
    struct fire_client *client = open_client();
    struct fire_flat *flat;
    float weights[SIDE * SIDE], out[SIDE * SIDE], moment[SIDE * SIDE];
    double numbers[128];
    int64_t step = 7;

    fill(weights, 3.0f);
    fill(moment, 1.0f);
    ck_assert_int_eq(fire_flat_open(&flat), FIRE_OK);
    ck_assert_int_eq(fire_flat_add(flat, "w", "F32", 2, square, NULL, "scale=one"), FIRE_OK);
    ck_assert_int_eq(fire_flat_memory(flat, 0, weights, out), FIRE_OK);
    ck_assert_int_eq(fire_flat_state(flat, 0, "exp_avg", "F32", 2, square, moment, moment),
                     FIRE_OK);
    ck_assert_int_eq(fire_flat_state(flat, 0, "step", "I64", 0, NULL, &step, &step), FIRE_OK);
    ck_assert_int_eq(fire_flat_run(flat, client, 0, FIRE_STATISTICS_BASIC, "run", 3, 60.0),
                     FIRE_OK);
    ck_assert_str_eq(fire_flat_text(flat, 0, "action"), "projected");
    ck_assert_str_eq(fire_flat_text(flat, 0, "option:scale"), "one");
    ck_assert_ptr_null(fire_flat_text(flat, 0, "no such key"));
    ck_assert_ptr_null(fire_flat_text(flat, 1, "action"));
    for (uint32_t i = 0; i < SIDE * SIDE; i++) {
        ck_assert(fabsf(out[i] - (i % (SIDE + 1) == 0 ? 1.0f : 0.0f)) < 1e-5f);
        ck_assert(moment[i] == 0.0f);
    }
    ck_assert_int_eq(step, 0);
    ck_assert(fire_result_field_count() + FIRE_FLAT_MORE <= 128);
    ck_assert_int_eq(fire_flat_numbers(flat, 0, numbers), FIRE_OK);
    ck_assert(numbers[fire_result_field_count() + 4] == 1.0); /* matrices */
    ck_assert_int_ne(fire_flat_numbers(flat, 1, numbers), FIRE_OK);
    fire_flat_close(flat);
    fire_client_close(client);
}
END_TEST

/* Dormant statistics come from what was added. */
START_TEST(units_and_gradients_are_counted)
{
    struct fire_client *client = open_client();
    const double means[SIDE] = { 0, 0, 1, 1, 1, 1, 1, 1 };
    float weights[SIDE * SIDE], gradient[SIDE * SIDE] = { 0 };
    struct fire_flat *flat;
    double numbers[128];
    double dormant = NAN, gradient_dormant = NAN;

    fill(weights, 1.0f);
    gradient[0] = 1.0f; /* one unit of eight learns */
    ck_assert_int_eq(fire_flat_open(&flat), FIRE_OK);
    ck_assert_int_eq(fire_flat_add(flat, "w", "F32", 2, square, "fire", NULL), FIRE_OK);
    ck_assert_int_eq(fire_flat_memory(flat, 0, weights, NULL), FIRE_OK);
    ck_assert_int_eq(fire_flat_units(flat, 0, means, SIDE), FIRE_OK);
    ck_assert_int_eq(fire_flat_gradient(flat, 0, "F32", gradient), FIRE_OK);
    ck_assert_int_eq(fire_flat_run(flat, client, 1, FIRE_STATISTICS_BASIC, NULL, 0, 0.0), FIRE_OK);
    ck_assert_int_eq(fire_flat_numbers(flat, 0, numbers), FIRE_OK);
    for (size_t f = 0; f < fire_result_field_count(); f++) {
        if (strcmp(fire_result_field_at(f)->name, "dormant_ratio") == 0)
            dormant = numbers[f];
        if (strcmp(fire_result_field_at(f)->name, "gradient_dormant_ratio") == 0)
            gradient_dormant = numbers[f];
    }
    ck_assert(dormant == 0.25);
    ck_assert(gradient_dormant == 0.875);
    fire_flat_close(flat);
    fire_client_close(client);
}
END_TEST

/* The last layer is the head: in the order of adding when that is the model's, else by name. */
START_TEST(decisions_follow_names_or_order)
{
    static const struct {
        int ordered;
        const char *verdicts[3];
    } cases[] = { { 0, { "skip", "project", "project" } },
                  { 1, { "project", "project", "skip" } } };
    struct fire_flat *flat;

    ck_assert_int_eq(fire_flat_open(&flat), FIRE_OK);
    ck_assert_int_eq(fire_flat_add(flat, "z.weight", "F32", 2, square, NULL, NULL), FIRE_OK);
    ck_assert_int_eq(fire_flat_add(flat, "b.weight", "F32", 2, square, NULL, "split=2"), FIRE_OK);
    ck_assert_int_eq(fire_flat_add(flat, "a.weight", "F32", 2, square, NULL, NULL), FIRE_OK);
    ck_assert_int_eq(fire_flat_decide(flat, "auto", "all", cases[_i].ordered), FIRE_OK);
    ck_assert_str_eq(fire_flat_arch(flat), "plain");
    for (size_t i = 0; i < 3; i++)
        ck_assert_str_eq(fire_flat_text(flat, i, "verdict"), cases[_i].verdicts[i]);
    ck_assert_str_eq(fire_flat_text(flat, 1, "option:split"), "2");
    ck_assert_str_eq(fire_flat_text(flat, cases[_i].ordered ? 2 : 0, "verdict_reason"), "head");
    fire_flat_close(flat);
}
END_TEST

START_TEST(what_is_wrong_is_refused_by_name)
{
    struct fire_client *client = open_client();
    const uint64_t many[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    float weights[SIDE * SIDE];
    struct fire_flat *flat;

    fill(weights, 1.0f);
    ck_assert_int_eq(fire_flat_open(&flat), FIRE_OK);
    ck_assert_int_eq(fire_flat_add(flat, "w", "F32", 2, square, "fier", NULL), FIRE_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(fire_last_error(), "fire"));
    ck_assert_int_ne(fire_flat_add(flat, "w", "F32", 2, square, NULL, "scale=large"), FIRE_OK);
    ck_assert_uint_eq(fire_flat_count(flat), 0);
    ck_assert_int_ne(fire_flat_memory(flat, 0, weights, weights), FIRE_OK);
    ck_assert_int_eq(fire_flat_add(flat, "w", "F32", 2, square, NULL, NULL), FIRE_OK);
    ck_assert_int_ne(fire_flat_state(flat, 0, "velocity", "F32", 2, square, weights, weights),
                     FIRE_OK);
    ck_assert_int_ne(fire_flat_state(flat, 0, "step", "U8", 0, NULL, weights, weights), FIRE_OK);
    ck_assert_int_ne(fire_flat_gradient(flat, 0, "I64", weights), FIRE_OK);
    ck_assert_int_ne(fire_flat_decide(flat, "gtp2", "all", 0), FIRE_OK);
    ck_assert_int_ne(fire_flat_decide(flat, "auto", "some", 0), FIRE_OK);
    /* Integers and many axes may be decided about, but not computed. */
    ck_assert_int_eq(fire_flat_add(flat, "many", "F32", 9, many, NULL, NULL), FIRE_OK);
    ck_assert_int_eq(fire_flat_decide(flat, "none", "all", 0), FIRE_OK);
    ck_assert_str_eq(fire_flat_text(flat, 1, "verdict"), "skip");
    ck_assert_int_eq(fire_flat_memory(flat, 0, weights, weights), FIRE_OK);
    ck_assert_int_eq(fire_flat_run(flat, client, 0, 0, NULL, 0, 0.0), FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(fire_last_error(), "many"));
    ck_assert(weights[0] == 1.0f);
    fire_flat_close(flat);
    fire_flat_close(NULL);
    fire_client_close(client);
}
END_TEST

static const struct {
    const char *lines;
    const char *said; /* NULL: good */
} settings[] = {
    { "address=unix:/nobody\ntenant=a\ndeadline_s=5\nretries_max=-1\npriority=bulk", NULL },
    { "address=unix:/nobody\nrun=a run\nstep=12", NULL },
    { "adress=unix:/nobody", "adress" },
    { "address", "key=value" },
    { "address=unix:/nobody\npriority=high", "priority" },
    { "address=unix:/nobody\ndeadline_s=soon", "deadline_s" },
    { "address=unix:/nobody\ndeadline_s=", "deadline_s" },
};

START_TEST(settings_come_as_lines)
{
    struct fire_client *client;
    const enum fire_status status = fire_client_open_lines(settings[_i].lines, &client);

    ck_assert_msg((status == FIRE_OK) == !settings[_i].said, "%s: %s", settings[_i].lines,
                  fire_last_error());
    if (settings[_i].said) {
        ck_assert_ptr_null(client);
        ck_assert_ptr_nonnull(strstr(fire_last_error(), settings[_i].said));
    }
    fire_client_close(client);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("flat");
    TCase *sets = tcase_create("sets");
    SRunner *runner;
    int failed;

    tcase_set_timeout(sets, 120);
    tcase_add_test(sets, a_set_is_projected_with_its_state);
    tcase_add_test(sets, units_and_gradients_are_counted);
    tcase_add_loop_test(sets, decisions_follow_names_or_order, 0, 2);
    tcase_add_test(sets, what_is_wrong_is_refused_by_name);
    tcase_add_loop_test(sets, settings_come_as_lines, 0, sizeof(settings) / sizeof(settings[0]));
    suite_add_tcase(suite, sets);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
