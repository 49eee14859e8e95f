/* Counting, the limit of series, and the text: read by promtool where it is installed. */
#include "metrics.h"

#include <check.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"

#define SKIPPED     77
#define FIND_TOOL   "command -v promtool >/dev/null 2>&1"
#define CHECK_TEXT  "promtool check metrics 2>&1"
#define REPLY_BYTES 4096

static struct metrics *metrics;

static void setup(void)
{
    ck_assert_int_eq(metrics_open(&metrics), FIRE_OK);
}

static void teardown(void)
{
    metrics_close(metrics);
}

static char *text_of(void)
{
    char *text;
    size_t bytes;

    ck_assert_int_eq(metrics_text(metrics, &text, &bytes), FIRE_OK);
    ck_assert_uint_eq(bytes, strlen(text));
    return text;
}

/* Whether the text has this line, whole. */
static void expect_line(const char *text, const char *line)
{
    const size_t length = strlen(line);
    const char *found = text;

    while ((found = strstr(found, line)) != NULL) {
        if ((found == text || found[-1] == '\n') && found[length] == '\n')
            return;
        found++;
    }
    ck_abort_msg("no line \"%s\" in:\n%s", line, text);
}

START_TEST(series_count_apart)
{
    metrics_add(metrics, METRIC_CALLS, "M", "OK", 1);
    metrics_add(metrics, METRIC_CALLS, "M", "OK", 2.5);
    metrics_add(metrics, METRIC_CALLS, "M", "BUSY", 1);
    metrics_add(metrics, METRIC_CALLS, "MO", "K", 1); /* the same letters, other labels */
    metrics_add(metrics, METRIC_CALLS_RUNNING, NULL, NULL, 3);
    metrics_add(metrics, METRIC_CALLS_RUNNING, NULL, NULL, -1);
    metrics_set(metrics, METRIC_DRAINING, NULL, NULL, 1);
    metrics_set(metrics, METRIC_DRAINING, NULL, NULL, 0);

    ck_assert(metrics_value(metrics, METRIC_CALLS, "M", "OK") == 3.5);
    ck_assert(metrics_value(metrics, METRIC_CALLS, "M", "BUSY") == 1);
    ck_assert(metrics_value(metrics, METRIC_CALLS, "MO", "K") == 1);
    ck_assert(metrics_value(metrics, METRIC_CALLS, "M", "NO") == 0);
    ck_assert(metrics_value(metrics, METRIC_CALLS_RUNNING, NULL, NULL) == 2);
    ck_assert(metrics_value(metrics, METRIC_DRAINING, NULL, NULL) == 0);
}
END_TEST

START_TEST(nothing_is_counted_without_metrics)
{
    char *text;
    size_t bytes;

    metrics_add(NULL, METRIC_CALLS, "M", "OK", 1);
    metrics_set(NULL, METRIC_DRAINING, NULL, NULL, 1);
    metrics_observe(NULL, METRIC_CALL_SECONDS, "M", 1);
    ck_assert(metrics_value(NULL, METRIC_CALLS, "M", "OK") == 0);
    ck_assert_int_eq(metrics_text(NULL, &text, &bytes), FIRE_OK);
    ck_assert_uint_eq(bytes, 0);
    free(text);
}
END_TEST

/* A bound belongs to its bucket; counts add up from the left; +Inf has them all. */
START_TEST(a_histogram_counts_up_to_each_bound)
{
    static const double sizes[] = { 1, 2, 2, 3, 4096, 4097, 1e9 };
    char *text;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        metrics_observe(metrics, METRIC_BATCH_SIZE, "small", sizes[i]);
    ck_assert(metrics_value(metrics, METRIC_BATCH_SIZE, "small", NULL) == 7);
    text = text_of();
    expect_line(text, "# TYPE fired_batch_size histogram");
    expect_line(text, "fired_batch_size_bucket{class=\"small\",le=\"1\"} 1");
    expect_line(text, "fired_batch_size_bucket{class=\"small\",le=\"2\"} 3");
    expect_line(text, "fired_batch_size_bucket{class=\"small\",le=\"4\"} 4");
    expect_line(text, "fired_batch_size_bucket{class=\"small\",le=\"4096\"} 5");
    expect_line(text, "fired_batch_size_bucket{class=\"small\",le=\"+Inf\"} 7");
    expect_line(text, "fired_batch_size_sum{class=\"small\"} 1000008201");
    expect_line(text, "fired_batch_size_count{class=\"small\"} 7");
    free(text);
}
END_TEST

START_TEST(the_text_has_what_was_counted)
{
    char *text;

    metrics_add(metrics, METRIC_REFUSALS, "say \"no\"\\", NULL, 1);
    metrics_add(metrics, METRIC_DEVICE_SECONDS, "a", NULL, 0.1);
    metrics_add(metrics, METRIC_DEVICE_SECONDS, "a", NULL, 0.2);
    metrics_set(metrics, METRIC_MEMORY_BUDGET, NULL, NULL, 6317801472.0);
    metrics_set(metrics, METRIC_DEVICE_UP, "cpu0", "avx2", 1);
    text = text_of();
    expect_line(text, "fired_refusals_total{reason=\"say \\\"no\\\"\\\\\"} 1");
    expect_line(text, "fired_device_seconds_total{tenant=\"a\"} 0.30000000000000004");
    expect_line(text, "fired_memory_budget_bytes 6317801472");
    expect_line(text, "fired_device_up{device=\"cpu0\",path=\"avx2\"} 1");
    expect_line(text, "fired_calls_running 0"); /* without labels: there from the start */
    ck_assert_ptr_null(strstr(text, "\"other\""));
    free(text);
}
END_TEST

static void count_each(void *data, const char *first, const char *second, double value)
{
    double *sum = data;

    ck_assert_ptr_nonnull(first);
    ck_assert_str_eq(second, "");
    sum[0] += 1;
    sum[1] += value;
}

/* However many names callers make up, the family stays within its limit and no count is lost. */
START_TEST(too_many_series_are_counted_as_other)
{
    const uint32_t names = 3 * METRICS_SERIES_MAX;
    double sum[2] = { 0, 0 };

    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < names; i++) {
            char name[32];

            snprintf(name, sizeof(name), "tenant-%" PRIu32, i);
            metrics_add(metrics, METRIC_JOBS, name, NULL, 1);
        }
    metrics_each(metrics, METRIC_JOBS, count_each, sum);
    ck_assert(sum[0] == METRICS_SERIES_MAX);
    ck_assert(sum[1] == 2.0 * names);
    ck_assert(metrics_value(metrics, METRIC_JOBS, "tenant-7", NULL) == 2);
    ck_assert(metrics_value(metrics, METRIC_JOBS, "other", NULL) ==
              2.0 * (names - (METRICS_SERIES_MAX - 1)));
}
END_TEST

START_TEST(a_strange_label_is_counted_as_other)
{
    char longest[129];

    memset(longest, 'a', 128);
    longest[128] = '\0';
    metrics_add(metrics, METRIC_JOBS, longest, NULL, 1);
    metrics_add(metrics, METRIC_JOBS, "\xff", NULL, 1);
    metrics_add(metrics, METRIC_JOBS, "two\nlines", NULL, 1);
    ck_assert(metrics_value(metrics, METRIC_JOBS, "other", NULL) == 3);
    longest[127] = '\0';
    metrics_add(metrics, METRIC_JOBS, longest, NULL, 1);
    ck_assert(metrics_value(metrics, METRIC_JOBS, longest, NULL) == 1);
}
END_TEST

#define THREADS 4
#define ROUNDS  5000

static void *count_much(void *data)
{
    (void)data;
    for (int i = 0; i < ROUNDS; i++) {
        char name[16];

        snprintf(name, sizeof(name), "t%d", i % 100);
        metrics_add(metrics, METRIC_JOBS, name, NULL, 1);
        metrics_observe(metrics, METRIC_CALL_SECONDS, name, 0.25);
        if (i % 1000 == 0) {
            char *text;
            size_t bytes;

            ck_assert_int_eq(metrics_text(metrics, &text, &bytes), FIRE_OK);
            free(text);
        }
    }
    return NULL;
}

START_TEST(threads_lose_no_count)
{
    pthread_t threads[THREADS];
    double sum[2] = { 0, 0 };
    char *text;

    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, count_much, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    metrics_each(metrics, METRIC_JOBS, count_each, sum);
    ck_assert(sum[0] == 100);
    ck_assert(sum[1] == THREADS * ROUNDS);
    sum[0] = sum[1] = 0;
    metrics_each(metrics, METRIC_CALL_SECONDS, count_each, sum);
    ck_assert(sum[1] == THREADS * ROUNDS);
    text = text_of();
    expect_line(text, "fired_call_seconds_sum{method=\"t5\"} 50");
    free(text);
}
END_TEST

/* The bar is 200 ns; the limit leaves room for sanitizers and a busy machine. */
START_TEST(counting_is_fast)
{
    const int rounds = 200000;
    uint64_t start, took;

    start = clock_now_ns();
    for (int i = 0; i < rounds; i++)
        metrics_add(metrics, METRIC_CALLS, "fire.v1.ReinitService/Reinit", "OK", 1);
    took = clock_now_ns() - start;
    printf("metrics_add: %.0f ns\n", (double)took / rounds);
    ck_assert_uint_lt(took / (uint64_t)rounds, 5000);
}
END_TEST

/* Fills every family, so that the tool judges every name and kind. */
static void fill_all(void)
{
    for (int i = 0; i < METRIC_COUNT; i++) {
        const enum metric id = (enum metric)i;
        const bool histogram = id == METRIC_CALL_SECONDS || id == METRIC_EXPIRED_LATENESS ||
                               id == METRIC_BATCH_SIZE || id == METRIC_QUEUE_SECONDS ||
                               id == METRIC_COMPUTE_SECONDS;

        for (int j = 0; j < 3; j++) {
            static const char *const labels[] = { "", "a\"b\\c", "plain" };

            if (histogram)
                metrics_observe(metrics, id, labels[j], 0.01 * j);
            else
                metrics_add(metrics, id, labels[j], labels[2 - j], 1.5);
        }
    }
}

START_TEST(promtool_accepts_the_text)
{
    char path[] = "test_metrics_XXXXXX";
    char command[256], reply[REPLY_BYTES];
    size_t used;
    char *text;
    FILE *tool;
    int file;

    fill_all();
    text = text_of();
    file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
    snprintf(command, sizeof(command), CHECK_TEXT " < %s", path);
    tool = popen(command, "r");
    ck_assert_ptr_nonnull(tool);
    used = fread(reply, 1, sizeof(reply) - 1, tool);
    reply[used] = '\0';
    ck_assert_msg(pclose(tool) == 0 && used == 0, "promtool: %s", reply);
    unlink(path);
    free(text);
}
END_TEST

int main(void)
{
    const bool has_tool = system(FIND_TOOL) == 0;
    Suite *suite = suite_create("metrics");
    TCase *cases = tcase_create("counting");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, series_count_apart);
    tcase_add_test(cases, nothing_is_counted_without_metrics);
    tcase_add_test(cases, a_histogram_counts_up_to_each_bound);
    tcase_add_test(cases, the_text_has_what_was_counted);
    tcase_add_test(cases, too_many_series_are_counted_as_other);
    tcase_add_test(cases, a_strange_label_is_counted_as_other);
    tcase_add_test(cases, threads_lose_no_count);
    tcase_add_test(cases, counting_is_fast);
    if (has_tool)
        tcase_add_test(cases, promtool_accepts_the_text);
    suite_add_tcase(suite, cases);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (failed == 0 && !has_tool) {
        printf("skipped: promtool is not installed, so nothing outside read the text; "
               "deploy/install-deps --test installs it (package prometheus)\n");
        return SKIPPED;
    }
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
