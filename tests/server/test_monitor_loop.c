/* monitor: the door without a transport, on a loop of the test's own and a real SQLite file:
 * answers come later and once, watchers hear what is stored and what they missed, a queue without
 * room refuses, and closing answers everybody. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "monitor.h"
#include "monitor_check.h"

#define WAIT_MS 120000u

struct world {
    uv_loop_t loop;
    struct config config;
    char folder[64];
    struct monitor *monitor;
    uv_timer_t limit;
    bool closed;
    uint32_t changes;
};

struct answer {
    uint32_t count;
    enum fire_status status;
    ProtobufCMessage *response;
    struct fire_error error;
};

static void on_limit(uv_timer_t *timer)
{
    (void)timer;
    ck_abort_msg("it took too long");
}

static void on_changed(void *data, bool up)
{
    struct world *world = data;

    (void)up;
    world->changes++;
}

static void world_init(struct world *world, const char *history, uint64_t queue_bytes)
{
    const struct monitor_settings settings = { .config = &world->config,
                                               .changed = on_changed,
                                               .data = world };
    struct fire_error error = { 0 };

    memset(world, 0, sizeof(*world));
    strcpy(world->folder, "/tmp/fired-monitor-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(world->folder));
    world->config.history = (char *)history;
    world->config.history_file = (char *)"";
    world->config.history_url = (char *)"";
    world->config.state_dir = world->folder;
    world->config.history_queue_bytes = queue_bytes;
    uv_loop_init(&world->loop);
    uv_timer_init(&world->loop, &world->limit);
    uv_timer_start(&world->limit, on_limit, WAIT_MS, 0);
    ck_assert_int_eq(monitor_open(&world->loop, &settings, &world->monitor, &error), FIRE_OK);
}

static void on_closed(void *data)
{
    struct world *world = data;

    world->closed = true;
    uv_close((uv_handle_t *)&world->limit, NULL);
}

static void world_release(struct world *world)
{
    char command[96];

    monitor_close(world->monitor, on_closed, world);
    uv_run(&world->loop, UV_RUN_DEFAULT);
    ck_assert(world->closed);
    ck_assert_int_eq(uv_loop_close(&world->loop), 0);
    snprintf(command, sizeof(command), "rm -rf %s", world->folder);
    (void)!system(command);
}

static void on_answer(enum fire_status status, ProtobufCMessage *response,
                      const struct fire_error *error, void *data)
{
    struct answer *answer = data;

    answer->count++;
    answer->status = status;
    answer->response = response;
    answer->error = *error;
}

static void wait_for(struct world *world, const struct answer *answer)
{
    while (answer->count == 0)
        uv_run(&world->loop, UV_RUN_ONCE);
    ck_assert_uint_eq(answer->count, 1);
}

static void call(struct world *world, enum monitor_method method, const ProtobufCMessage *request,
                 struct answer *answer)
{
    memset(answer, 0, sizeof(*answer));
    monitor_call(world->monitor, method, "tenant", request, on_answer, answer);
    ck_assert_uint_eq(answer->count, 0); /* never before it returns */
    wait_for(world, answer);
}

static void answer_free(struct answer *answer)
{
    if (answer->response)
        protobuf_c_message_free_unpacked(answer->response, NULL);
    answer->response = NULL;
}

/* One point. */
struct point {
    Fire__V1__ReportRequest report;
    Fire__V1__Series series;
    Fire__V1__Series *list[1];
    int64_t step;
    double value;
};

static void point_init(struct point *point, const char *run, int64_t step)
{
    fire__v1__report_request__init(&point->report);
    fire__v1__series__init(&point->series);
    point->step = step;
    point->value = (double)step;
    point->series.layer = (char *)"layer";
    point->series.statistic = (char *)"dfi";
    point->series.steps = &point->step;
    point->series.values = &point->value;
    point->series.n_steps = point->series.n_values = 1;
    point->list[0] = &point->series;
    point->report.run = (char *)run;
    point->report.series = point->list;
    point->report.n_series = 1;
}

START_TEST(a_report_is_answered_once_and_read_back)
{
    Fire__V1__QueryRequest query = FIRE__V1__QUERY_REQUEST__INIT;
    struct world world;
    struct answer answer;
    struct point point;

    world_init(&world, "sqlite", 1 << 20);
    point_init(&point, "run", 5);
    call(&world, MONITOR_REPORT, &point.report.base, &answer);
    ck_assert_msg(answer.status == FIRE_OK, "%s", answer.error.message);
    ck_assert_uint_eq(((Fire__V1__ReportResponse *)answer.response)->points_added, 1);
    answer_free(&answer);
    ck_assert(monitor_up(world.monitor));
    ck_assert_uint_eq(world.changes, 1);
    query.run = (char *)"run";
    call(&world, MONITOR_QUERY, &query.base, &answer);
    ck_assert_int_eq(answer.status, FIRE_OK);
    ck_assert_uint_eq(((Fire__V1__QueryResponse *)answer.response)->n_series, 1);
    answer_free(&answer);
    world_release(&world);
}
END_TEST

START_TEST(bad_requests_and_unknown_runs_are_told)
{
    Fire__V1__QueryRequest query = FIRE__V1__QUERY_REQUEST__INIT;
    struct world world;
    struct answer answer;
    struct point point;

    world_init(&world, "sqlite", 1 << 20);
    point_init(&point, "run", -5);
    call(&world, MONITOR_REPORT, &point.report.base, &answer);
    ck_assert_int_eq(answer.status, FIRE_BAD_REQUEST);
    ck_assert_str_eq(answer.error.field, "series[0]");
    query.run = (char *)"nobody";
    call(&world, MONITOR_QUERY, &query.base, &answer);
    ck_assert_int_eq(answer.status, FIRE_NOT_FOUND);
    ck_assert_ptr_null(answer.response);
    world_release(&world);
}
END_TEST

/* A report that is larger than the queue never fits; one of the allowed size does after it. */
START_TEST(a_full_queue_refuses)
{
    struct world world;
    struct answer answer;
    struct point point;

    world_init(&world, "sqlite", 100);
    point_init(&point, "run", 1);
    call(&world, MONITOR_REPORT, &point.report.base, &answer);
    ck_assert_int_eq(answer.status, FIRE_BUSY);
    ck_assert_ptr_nonnull(strstr(answer.error.message, "history_queue_bytes"));
    world.config.history_queue_bytes = 1 << 20;
    call(&world, MONITOR_REPORT, &point.report.base, &answer);
    ck_assert_int_eq(answer.status, FIRE_OK);
    answer_free(&answer);
    world_release(&world);
}
END_TEST

START_TEST(history_off_knows_nothing)
{
    Fire__V1__ListRunsRequest request = FIRE__V1__LIST_RUNS_REQUEST__INIT;
    Fire__V1__WatchRequest watch = FIRE__V1__WATCH_REQUEST__INIT;
    Fire__V1__Event event = FIRE__V1__EVENT__INIT;
    struct fire_error error = { 0 };
    struct world world;
    struct answer answer;

    world_init(&world, "off", 1 << 20);
    ck_assert(monitor_off(world.monitor));
    call(&world, MONITOR_LIST_RUNS, &request.base, &answer);
    ck_assert_int_eq(answer.status, FIRE_NOT_FOUND);
    monitor_add_event(world.monitor, "tenant", &event); /* goes nowhere */
    ck_assert_ptr_null(monitor_watch_open(world.monitor, "tenant", &watch, NULL, NULL, &error));
    ck_assert_int_eq(error.status, FIRE_NOT_FOUND);
    world_release(&world);
}
END_TEST

static void on_ready(void *data)
{
    ++*(uint32_t *)data;
}

START_TEST(a_watcher_hears_its_run_and_what_it_missed)
{
    Fire__V1__WatchRequest request = FIRE__V1__WATCH_REQUEST__INIT;
    Fire__V1__WatchResponse *response;
    struct fire_error error = { 0 };
    struct monitor_watch *watch, *stranger;
    struct world world;
    struct answer answer;
    struct point point;
    uint32_t ready = 0, strange = 0, heard = 0;

    world_init(&world, "sqlite", 1 << 20);
    request.run = (char *)"run";
    watch = monitor_watch_open(world.monitor, "tenant", &request, on_ready, &ready, &error);
    stranger = monitor_watch_open(world.monitor, "other", &request, on_ready, &strange, &error);
    ck_assert(watch && stranger);
    for (uint32_t i = 0; i < MONITOR_WATCH_WAITING + 3; i++) {
        point_init(&point, "run", i);
        call(&world, MONITOR_REPORT, &point.report.base, &answer);
        ck_assert_msg(answer.status == FIRE_OK, "%s", answer.error.message);
        answer_free(&answer);
    }
    point_init(&point, "another", 1);
    call(&world, MONITOR_REPORT, &point.report.base, &answer);
    ck_assert_msg(answer.status == FIRE_OK, "%s", answer.error.message);
    answer_free(&answer);
    ck_assert_uint_eq(ready, 1); /* told once, until it has read all */
    ck_assert_uint_eq(strange, 0);
    while ((response = monitor_watch_next(watch)) != NULL) {
        ck_assert_str_eq(response->run, "run");
        ck_assert_int_eq(response->series[0]->steps[0], heard);
        ck_assert_uint_eq(response->missed, heard == 0 ? 3 : 0);
        fire__v1__watch_response__free_unpacked(response, NULL);
        heard++;
    }
    ck_assert_uint_eq(heard, MONITOR_WATCH_WAITING);
    monitor_watch_close(watch);
    monitor_watch_close(stranger);
    world_release(&world);
}
END_TEST

START_TEST(there_is_a_most_of_watchers)
{
    Fire__V1__WatchRequest request = FIRE__V1__WATCH_REQUEST__INIT;
    struct monitor_watch *watches[MONITOR_WATCHES_MAX];
    struct fire_error error = { 0 };
    struct world world;
    uint32_t ready = 0;

    world_init(&world, "sqlite", 1 << 20);
    for (uint32_t i = 0; i < MONITOR_WATCHES_MAX; i++) {
        watches[i] = monitor_watch_open(world.monitor, "t", &request, on_ready, &ready, &error);
        ck_assert_ptr_nonnull(watches[i]);
    }
    ck_assert_ptr_null(monitor_watch_open(world.monitor, "t", &request, on_ready, &ready, &error));
    ck_assert_int_eq(error.status, FIRE_BUSY);
    for (uint32_t i = 0; i < MONITOR_WATCHES_MAX; i++)
        monitor_watch_close(watches[i]);
    world_release(&world);
}
END_TEST

/* Reports and questions that are under way when it closes: each is answered exactly once, and what
 * was acknowledged is there when it is opened again. */
START_TEST(closing_answers_everybody)
{
    enum { COUNT = 40 };
    static struct answer reports[COUNT], questions[COUNT];
    static struct point points[COUNT];
    Fire__V1__ListRunsRequest request = FIRE__V1__LIST_RUNS_REQUEST__INIT;
    struct world world;

    world_init(&world, "sqlite", 1 << 20);
    for (int i = 0; i < COUNT; i++) {
        point_init(&points[i], "run", i);
        monitor_call(world.monitor, MONITOR_REPORT, "tenant", &points[i].report.base, on_answer,
                     &reports[i]);
        monitor_call(world.monitor, MONITOR_LIST_RUNS, "tenant", &request.base, on_answer,
                     &questions[i]);
    }
    if (_i == 1)
        wait_for(&world, &reports[0]);
    world_release(&world);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_uint_eq(reports[i].count, 1);
        ck_assert_uint_eq(questions[i].count, 1);
        ck_assert_msg(reports[i].status == FIRE_OK || reports[i].status == FIRE_DRAINING, "%s",
                      reports[i].error.message);
        answer_free(&reports[i]);
        answer_free(&questions[i]);
    }
}
END_TEST

static const struct {
    const char *name;
    bool valid;
} names[] = {
    { "dfi", true },  { "a_1", true },  { "", false },         { "DfI", false },
    { "a b", false }, { "a-b", false }, { "\xc3\xa9", false },
};

START_TEST(statistics_have_plain_names)
{
    ck_assert(monitor_statistic_valid(names[_i].name) == names[_i].valid);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("monitor");
    TCase *tests = tcase_create("monitor");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, a_report_is_answered_once_and_read_back);
    tcase_add_test(tests, bad_requests_and_unknown_runs_are_told);
    tcase_add_test(tests, a_full_queue_refuses);
    tcase_add_test(tests, history_off_knows_nothing);
    tcase_add_test(tests, a_watcher_hears_its_run_and_what_it_missed);
    tcase_add_test(tests, there_is_a_most_of_watchers);
    tcase_add_loop_test(tests, closing_answers_everybody, 0, 2);
    tcase_add_loop_test(tests, statistics_have_plain_names, 0, sizeof(names) / sizeof(names[0]));
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
