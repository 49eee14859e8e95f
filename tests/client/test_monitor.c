/* libfire's calls about history, against the real daemon on a socket of its own: what is reported
 * is there, what is asked comes as tables, what is wrong is said in words. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fire.h"
#include "fired_fixture.h"

#define READY_S_MAX 60
#define STEPS       20

static struct fired fired;
static struct fire_client *client;

static void begin(void)
{
    struct fire_remote_settings settings = { .run = "own" };

    fired_start(&fired, 1);
    settings.address = fired.address;
    ck_assert_int_eq(fire_client_open_remote(&settings, &client, NULL), FIRE_OK);
}

static void end(void)
{
    fire_client_close(client);
    fired_end(&fired);
}

static size_t column_of(const struct fire_table *table, const char *name)
{
    for (size_t i = 0; i < fire_table_columns(table); i++) {
        if (strcmp(fire_table_name(table, i), name) == 0)
            return i;
    }
    ck_abort_msg("no column %s", name);
    return 0;
}

static const char *text_at(const struct fire_table *table, size_t row, const char *name)
{
    const char *text = table ? fire_table_text(table, row, column_of(table, name)) : NULL;

    ck_assert_msg(text != NULL, "%s is no text", name);
    return text;
}

static double number_at(const struct fire_table *table, size_t row, const char *name)
{
    return fire_table_number(table, row, column_of(table, name));
}

/* Two layers, of which one fails, and a loss; interleaved, so that they must be sorted out. */
static void report_run(const char *run)
{
    static struct fire_point points[4 * STEPS];
    static const char *const labels[] = { "team", "vision", NULL };
    const struct fire_report report = { .run = run,
                                        .name = "a name",
                                        .framework = "c",
                                        .labels = labels,
                                        .points = points,
                                        .count = 4 * STEPS };
    uint64_t added = 0;

    for (int i = 0; i < STEPS; i++) {
        points[4 * i] = (struct fire_point){ "bad", "dfi", 10 * i, 70.0 * exp(0.3 * i) };
        points[4 * i + 1] = (struct fire_point){ "good", "dfi", 10 * i, 70.0 + i };
        points[4 * i + 2] = (struct fire_point){ NULL, "loss", 10 * i, 2.0 - 0.01 * i };
        points[4 * i + 3] = (struct fire_point){ "bad", "dormant_ratio", 10 * i, 0.04 * i };
    }
    ck_assert_msg(fire_client_report(client, &report, &added, NULL) == FIRE_OK, "%s",
                  fire_last_error());
    ck_assert_uint_eq(added, 4 * STEPS);
    /* The same again changes nothing. */
    ck_assert_int_eq(fire_client_report(client, &report, &added, NULL), FIRE_OK);
    ck_assert_uint_eq(added, 0);
}

START_TEST(what_is_reported_is_there)
{
    static const char *const statistics[] = { "dfi", NULL };
    struct fire_query query = { .run = "r", .statistics = statistics };
    struct fire_table *table = NULL;

    report_run("r");
    ck_assert_msg(fire_client_query(client, &query, &table, NULL) == FIRE_OK, "%s",
                  fire_last_error());
    ck_assert_uint_eq(fire_table_rows(table), 2 * STEPS);
    for (size_t i = 0; i < 2 * STEPS; i++) {
        const int at = (int)(i % STEPS);
        const bool bad = strcmp(text_at(table, i, "layer"), "bad") == 0;

        ck_assert_str_eq(text_at(table, i, "statistic"), "dfi");
        ck_assert_double_eq(number_at(table, i, "step"), 10.0 * at);
        ck_assert_double_eq(number_at(table, i, "mean"), bad ? 70.0 * exp(0.3 * at) : 70.0 + at);
        ck_assert_double_eq(number_at(table, i, "count"), 1.0);
    }
    /* Beyond the end there is nothing, and a text is no number. */
    ck_assert_ptr_null(fire_table_text(table, 2 * STEPS, 0));
    ck_assert_ptr_null(fire_table_name(table, 99));
    ck_assert(isnan(fire_table_number(table, 0, 0)));
    fire_table_close(table);
    ck_assert_int_eq(fire_client_runs(client, "vision", 10, &table, NULL), FIRE_OK);
    ck_assert_uint_eq(fire_table_rows(table), 1);
    ck_assert_str_eq(text_at(table, 0, "run"), "r");
    ck_assert_str_eq(text_at(table, 0, "name"), "a name");
    ck_assert_str_eq(text_at(table, 0, "framework"), "c");
    ck_assert_double_eq(number_at(table, 0, "last_step"), 10.0 * (STEPS - 1));
    ck_assert_double_eq(number_at(table, 0, "layers"), 2.0);
    fire_table_close(table);
}
END_TEST

START_TEST(advice_names_the_layer_that_fails)
{
    struct fire_table *table = NULL;
    size_t reinit = 0;

    report_run("r");
    ck_assert_msg(fire_client_advise(client, "r", &table, NULL) == FIRE_OK, "%s",
                  fire_last_error());
    ck_assert_uint_eq(fire_table_rows(table), 2);
    for (size_t i = 0; i < 2; i++) {
        const bool bad = strcmp(text_at(table, i, "layer"), "bad") == 0;

        ck_assert_str_eq(text_at(table, i, "verdict"), bad ? "reinit" : "leave_it");
        ck_assert_str_eq(text_at(table, i, "preset"), bad ? "fire" : "");
        ck_assert_int_eq(isnan(number_at(table, i, "since_step")) != 0, !bad);
        ck_assert_int_gt((int)strlen(text_at(table, i, "reason")), 10);
        reinit += bad;
    }
    ck_assert_uint_eq(reinit, 1);
    ck_assert_ptr_nonnull(strstr(fire_table_summary(table), "1 of 2"));
    fire_table_close(table);
}
END_TEST

/* A client opened with a run means it where none is named; its Reinit leaves an event. */
START_TEST(a_client_has_a_run_of_its_own)
{
    static float weights[16 * 16];
    struct fire_tensor tensor = {
        .name = "w", .dtype = FIRE_F32, .shape = { 2, { 16, 16 } }, .data = weights, .out = weights
    };
    struct fire_table *table = NULL;
    size_t rows = 0;

    for (size_t i = 0; i < 256; i++)
        weights[i] = (float)sin(1.7 * (double)i * (double)i);
    ck_assert_int_eq(fire_options_preset(&tensor.options, "fire", NULL), FIRE_OK);
    ck_assert_msg(fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, NULL) == FIRE_OK,
                  "%s", fire_last_error());
    /* It is recorded after it was answered. */
    for (int i = 0; rows == 0 && i < READY_S_MAX * 50; i++) {
        if (fire_client_events(client, NULL, 0, &table, NULL) == FIRE_OK)
            rows = fire_table_rows(table);
        if (!rows) {
            fire_table_close(table);
            nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
        }
    }
    ck_assert_uint_eq(rows, 1);
    ck_assert_str_eq(text_at(table, 0, "kind"), "reinit");
    ck_assert_str_eq(text_at(table, 0, "run"), "own");
    ck_assert_str_eq(text_at(table, 0, "layer"), "w");
    fire_table_close(table);
}
END_TEST

START_TEST(the_flat_doors_do_the_same)
{
    const char *layers[] = { "a", NULL, "a" };
    const char *statistics[] = { "dfi", "loss", "norm" };
    const int64_t steps[] = { 1, 2, 3 };
    const double values[] = { 1.5, 2.5, 3.5 };
    struct fire_table *table = NULL;
    uint64_t added = 0;

    ck_assert_msg(fire_report_flat(client, NULL, NULL, "ctypes", 3, layers, statistics, steps,
                                   values, &added, NULL) == FIRE_OK,
                  "%s", fire_last_error());
    ck_assert_uint_eq(added, 3);
    ck_assert_int_eq(fire_query_flat(client, NULL, "a", "dfi\nnorm", 0, 0, 0, &table, NULL),
                     FIRE_OK);
    ck_assert_uint_eq(fire_table_rows(table), 2);
    ck_assert_double_eq(number_at(table, 0, "mean"), 1.5);
    ck_assert_double_eq(number_at(table, 1, "mean"), 3.5);
    fire_table_close(table);
    ck_assert_int_eq(fire_query_flat(client, "own", NULL, "loss", 0, 0, 0, &table, NULL), FIRE_OK);
    ck_assert_uint_eq(fire_table_rows(table), 1);
    ck_assert_str_eq(text_at(table, 0, "layer"), "");
    fire_table_close(table);
}
END_TEST

START_TEST(mistakes_are_said_in_words)
{
    const struct fire_point bad_name = { "l", "DfI", 1, 1.0 }, bad_value = { "l", "dfi", 1, NAN };
    struct fire_report report = { .run = "r", .points = &bad_name, .count = 1 };
    struct fire_table *table = (struct fire_table *)client;
    struct fire_error error = { 0 };
    struct fire_client *local;

    ck_assert_int_eq(fire_client_report(client, &report, NULL, &error), FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "statistic"));
    report.points = &bad_value;
    ck_assert_int_eq(fire_client_report(client, &report, NULL, &error), FIRE_BAD_REQUEST);
    report.count = 65537;
    ck_assert_int_eq(fire_client_report(client, &report, NULL, &error), FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "65536"));
    ck_assert_int_eq(fire_client_advise(client, "nobody", &table, &error), FIRE_NOT_FOUND);
    ck_assert_ptr_null(table);
    ck_assert_int_eq(fire_client_open_flat(1, NULL, &local), FIRE_OK);
    ck_assert_int_eq(fire_client_advise(local, "r", &table, &error), FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "fire_client_open_remote"));
    fire_client_close(local);
}
END_TEST

/* Nobody answers: the call ends by its retries and its deadline, in words. */
START_TEST(nobody_there_is_said)
{
    const struct fire_remote_settings settings = { .address = "unix:no-such-socket",
                                                   .retries_max = 1,
                                                   .deadline_s = 30.0 };
    struct fire_table *table;
    struct fire_error error = { 0 };
    struct fire_client *lonely;

    ck_assert_int_eq(fire_client_open_remote(&settings, &lonely, NULL), FIRE_OK);
    ck_assert_int_eq(fire_client_runs(lonely, NULL, 0, &table, &error), FIRE_DRAINING);
    ck_assert_ptr_nonnull(strstr(error.message, "no daemon answers"));
    fire_client_close(lonely);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("monitor");
    TCase *cases = tcase_create("history");
    SRunner *runner;
    int failed;

    tcase_set_timeout(cases, 300);
    tcase_add_checked_fixture(cases, begin, end);
    tcase_add_test(cases, what_is_reported_is_there);
    tcase_add_test(cases, advice_names_the_layer_that_fails);
    tcase_add_test(cases, a_client_has_a_run_of_its_own);
    tcase_add_test(cases, the_flat_doors_do_the_same);
    tcase_add_test(cases, mistakes_are_said_in_words);
    tcase_add_test(cases, nobody_there_is_said);
    suite_add_tcase(suite, cases);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
