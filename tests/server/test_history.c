/* history: what was written is read, on SQLite and on a real PostgreSQL: against a plain array,
 * whatever the order of reports, across folds and new connections; roll-ups, retention, migration,
 * limits, and what happens to a database that breaks. */
#include <check.h>
#include <fcntl.h>
#include <libpq-fe.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "history.h"
#include "history_chunk.h"
#include "postgres_fixture.h"
#include "random.h"

#define LAYERS     3u
#define STATISTICS 2u
#define STEPS      2500u
#define ROUNDS     60u
#define DAY_MS     86400000ll
#define NOW_MS     1700000000000ll
#define SKIPPED    77

enum { SQLITE, POSTGRES, BACKENDS };

static struct postgres_fixture postgres;
static char folder[64];
static struct history_settings settings;

static void set_up(int backend)
{
    static char place[256];
    char name[32];

    memset(&settings, 0, sizeof(settings));
    strcpy(folder, "/tmp/fired-history-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    if (backend == POSTGRES) {
        settings.backend = &sql_postgres;
        snprintf(name, sizeof(name), "test_%d", (int)getpid()); /* Check forks for each test */
        postgres_database(&postgres, name, place, sizeof(place));
    } else {
        settings.backend = &sql_sqlite;
        snprintf(place, sizeof(place), "%s/history.sqlite", folder);
    }
    settings.sql.place = place;
    settings.sql.timeout_ms = 20000;
}

static void tear_down(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s", folder);
    (void)!system(command);
}

static struct history *open_one(bool writer)
{
    struct history_settings own = settings;
    struct history *history = NULL;
    struct fire_error error = { 0 };

    own.sql.writer = writer;
    ck_assert_msg(history_open(&own, &history, NULL, &error) == FIRE_OK, "%s", error.message);
    return history;
}

/* --- reports ---------------------------------------------------------------------------------- */

struct report {
    Fire__V1__ReportRequest message;
    Fire__V1__Series series[64];
    Fire__V1__Series *list[64];
};

static void report_init(struct report *report, const char *run)
{
    fire__v1__report_request__init(&report->message);
    report->message.run = (char *)run;
    report->message.series = report->list;
}

static void report_add(struct report *report, const char *layer, const char *statistic,
                       int64_t *steps, double *values, size_t count)
{
    Fire__V1__Series *series = &report->series[report->message.n_series];

    ck_assert_uint_lt(report->message.n_series, 64);
    fire__v1__series__init(series);
    series->layer = (char *)layer;
    series->statistic = (char *)statistic;
    series->steps = steps;
    series->values = values;
    series->n_steps = series->n_values = count;
    report->list[report->message.n_series++] = series;
}

static struct history_entry write_one(struct history *history, const char *tenant,
                                      const struct report *report, int64_t now_ms)
{
    struct history_entry entry = { .tenant = tenant, .report = &report->message, .now_ms = now_ms };
    struct history_entry *entries[] = { &entry };
    struct fire_error error = { 0 };

    ck_assert_msg(history_write(history, entries, 1, &error) == FIRE_OK, "%s", error.message);
    return entry;
}

static struct history_entry write_point(struct history *history, const char *tenant,
                                        const char *run, int64_t step, double value, int64_t now_ms)
{
    struct report report;

    report_init(&report, run);
    report_add(&report, "layer", "dfi", &step, &value, 1);
    return write_one(history, tenant, &report, now_ms);
}

static Fire__V1__QueryResponse *ask(struct history *history, const char *tenant, const char *run,
                                    uint32_t resolution, int64_t first, int64_t last)
{
    Fire__V1__QueryRequest request = FIRE__V1__QUERY_REQUEST__INIT;
    Fire__V1__QueryResponse *response = NULL;
    struct fire_error error = { 0 };

    request.run = (char *)run;
    request.resolution = resolution;
    request.step_min = first;
    request.step_max = last;
    request.aggregate = FIRE__V1__AGGREGATE__AGGREGATE_ALL;
    ck_assert_msg(history_query(history, tenant, &request, &response, &error) == FIRE_OK, "%s",
                  error.message);
    return response;
}

static Fire__V1__ListRunsResponse *list(struct history *history, const char *tenant,
                                        const char *filter, const char *run)
{
    Fire__V1__ListRunsRequest request = FIRE__V1__LIST_RUNS_REQUEST__INIT;
    Fire__V1__ListRunsResponse *response = NULL;
    struct fire_error error = { 0 };

    request.filter = (char *)filter;
    request.run = (char *)run;
    ck_assert_msg(history_list_runs(history, tenant, &request, &response, &error) == FIRE_OK, "%s",
                  error.message);
    return response;
}

/* --- against a plain array -------------------------------------------------------------------- */

struct model {
    double values[LAYERS][STATISTICS][STEPS];
    bool known[LAYERS][STATISTICS][STEPS];
    int64_t next[LAYERS][STATISTICS]; /* for reports that go on */
};

static const char *const layer_names[LAYERS] = { "blocks.0.weight", "blocks.1.weight", "" };
static const char *const statistic_names[STATISTICS] = { "dfi", "norm" };

/* One series' part of a report: mostly behind what is there, sometimes anywhere, in any order. */
static size_t make_part(struct fire_random *random, struct model *model, size_t layer,
                        size_t statistic, int64_t *steps, double *values)
{
    const bool goes_on = fire_random_u64(random) % 4 != 0;
    size_t count = fire_random_u64(random) % 120;

    for (size_t i = 0; i < count; i++) {
        int64_t *next = &model->next[layer][statistic];

        if (goes_on) {
            *next += 1 + (int64_t)(fire_random_u64(random) % 2);
            if (*next >= STEPS)
                return i;
        }
        steps[i] = goes_on ? *next : (int64_t)(fire_random_u64(random) % STEPS);
        values[i] = fire_random_normal(random);
    }
    return count;
}

/* Notes a part in the model; counts what is new and what is replaced. */
static void note_part(struct model *model, size_t layer, size_t statistic, const int64_t *steps,
                      const double *values, size_t count, uint64_t *added, uint64_t *replaced)
{
    bool *seen = calloc(STEPS, sizeof(*seen));

    for (size_t i = 0; i < count; i++) {
        bool *known = &model->known[layer][statistic][steps[i]];

        if (!seen[steps[i]]) {
            *added += !*known;
            *replaced += *known;
        }
        seen[steps[i]] = true;
        *known = true;
        model->values[layer][statistic][steps[i]] = values[i];
        if (steps[i] > model->next[layer][statistic])
            model->next[layer][statistic] = steps[i];
    }
    free(seen);
}

static const Fire__V1__Cells *cells_of(const Fire__V1__QueryResponse *response, const char *layer,
                                       const char *statistic)
{
    for (size_t i = 0; i < response->n_series; i++)
        if (strcmp(response->series[i]->layer, layer) == 0 &&
            strcmp(response->series[i]->statistic, statistic) == 0)
            return response->series[i];
    return NULL;
}

/* Every cell of one series against the array. */
static void compare_series(const struct model *model, size_t l, size_t s,
                           const Fire__V1__Cells *cells, int64_t width)
{
    size_t points = 0, told = 0;

    for (size_t i = 0; i < STEPS; i++)
        points += model->known[l][s][i];
    for (size_t i = 0; cells && i < cells->n_steps; i++) {
        const int64_t from = cells->n_count ? cells->steps[i] / width * width : cells->steps[i];
        const int64_t to = cells->n_count ? from + width : from + 1;
        double minimum = INFINITY, maximum = -INFINITY, sum = 0;
        uint64_t count = 0;

        for (int64_t k = from; k < to && k < STEPS; k++) {
            if (!model->known[l][s][k])
                continue;
            count++;
            minimum = fmin(minimum, model->values[l][s][k]);
            maximum = fmax(maximum, model->values[l][s][k]);
            sum += model->values[l][s][k];
        }
        ck_assert_uint_eq(count, cells->n_count ? cells->count[i] : 1);
        ck_assert(cells->min[i] == minimum);
        ck_assert(cells->max[i] == maximum);
        ck_assert(fabs(cells->mean[i] - sum / (double)count) < 1e-12);
        told += count;
    }
    ck_assert_uint_eq(told, points);
}

static void compare(struct history *reader, const struct model *model, uint32_t resolution)
{
    Fire__V1__QueryRequest request = FIRE__V1__QUERY_REQUEST__INIT;
    Fire__V1__QueryResponse *response = NULL;
    struct fire_error error = { 0 };

    request.run = (char *)"run";
    request.resolution = resolution;
    request.whole_run = true;
    request.aggregate = FIRE__V1__AGGREGATE__AGGREGATE_ALL;
    ck_assert_msg(history_query(reader, "tenant", &request, &response, &error) == FIRE_OK, "%s",
                  error.message);
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t s = 0; s < STATISTICS; s++)
            compare_series(model, l, s, cells_of(response, layer_names[l], statistic_names[s]),
                           response->cell_steps);
    fire__v1__query_response__free_unpacked(response, NULL);
}

static void write_random(struct history *history, struct fire_random *random, struct model *model)
{
    static int64_t steps[LAYERS * STATISTICS][128];
    static double values[LAYERS * STATISTICS][128];
    uint64_t added = 0, replaced = 0;
    struct report report;

    report_init(&report, "run");
    for (size_t l = 0; l < LAYERS; l++) {
        for (size_t s = 0; s < STATISTICS; s++) {
            const size_t at = l * STATISTICS + s;
            const size_t count = make_part(random, model, l, s, steps[at], values[at]);

            report_add(&report, layer_names[l], statistic_names[s], steps[at], values[at], count);
            note_part(model, l, s, steps[at], values[at], count, &added, &replaced);
        }
    }
    const struct history_entry entry = write_one(history, "tenant", &report, NOW_MS);

    ck_assert_uint_eq(entry.points_added, added);
    ck_assert_uint_eq(entry.points_replaced, replaced);
}

START_TEST(reports_in_any_order_are_read_as_written)
{
    struct model *model = calloc(1, sizeof(*model));
    struct fire_random random;
    struct history *writer, *reader;

    set_up(_i);
    fire_random_init(&random, 11);
    writer = open_one(true);
    reader = open_one(false);
    for (size_t round = 0; round < ROUNDS; round++) {
        write_random(writer, &random, model);
        if (round % 10 == 9) {
            compare(reader, model, 4096);
            compare(reader, model, 100);
        }
        if (round % 20 == 19) {
            history_close(writer); /* nothing is only remembered */
            writer = open_one(true);
        }
    }
    history_close(writer);
    history_close(reader);
    free(model);
    tear_down();
}
END_TEST

/* A part of the steps, at several resolutions: only points within it, none twice. */
START_TEST(a_range_has_its_points_only)
{
    enum { COUNT = 3000 };
    static int64_t steps[COUNT];
    static double values[COUNT];
    static const int64_t ranges[][2] = { { 0, 2999 }, { 1, 2998 }, { 1000, 1100 }, { 2047, 2049 } };
    static const uint32_t resolutions[] = { 4096, 1000, 100, 7, 1 };
    struct history *writer, *reader;
    struct report report;

    set_up(_i);
    writer = open_one(true);
    reader = open_one(false);
    for (int i = 0; i < COUNT; i++) {
        steps[i] = i;
        values[i] = 1;
    }
    report_init(&report, "run");
    report_add(&report, "layer", "dfi", steps, values, 2500);
    write_one(writer, "tenant", &report, NOW_MS);
    report_init(&report, "run"); /* the last ones are still in a log */
    report_add(&report, "layer", "dfi", steps + 2500, values, 500);
    write_one(writer, "tenant", &report, NOW_MS);
    for (size_t r = 0; r < 4; r++) {
        for (size_t k = 0; k < 5; k++) {
            Fire__V1__QueryResponse *response =
                ask(reader, "tenant", "run", resolutions[k], ranges[r][0], ranges[r][1]);
            const Fire__V1__Cells *cells = response->series[0];
            uint64_t points = 0;

            ck_assert_uint_le(cells->n_steps, resolutions[k]);
            for (size_t i = 0; i < cells->n_steps; i++)
                points += cells->n_count ? cells->count[i] : 1;
            ck_assert_uint_eq(points, (uint64_t)(ranges[r][1] - ranges[r][0] + 1));
            ck_assert_int_ge(cells->steps[0], ranges[r][0]);
            fire__v1__query_response__free_unpacked(response, NULL);
        }
    }
    history_close(writer);
    history_close(reader);
    tear_down();
}
END_TEST

/* --- lists, tenants, events ------------------------------------------------------------------- */

START_TEST(tenants_see_only_their_own)
{
    struct history *writer, *reader;
    Fire__V1__ListRunsResponse *runs;
    Fire__V1__QueryResponse *points;

    set_up(_i);
    writer = open_one(true);
    reader = open_one(false);
    write_point(writer, "alice", "run", 1, 10, NOW_MS);
    write_point(writer, "bob", "run", 1, 20, NOW_MS + 1);
    write_point(writer, "bob", "other", 1, 30, NOW_MS + 2);
    runs = list(reader, "alice", "", "");
    ck_assert_uint_eq(runs->n_runs, 1);
    fire__v1__list_runs_response__free_unpacked(runs, NULL);
    runs = list(reader, "bob", "", "");
    ck_assert_uint_eq(runs->n_runs, 2);
    ck_assert_str_eq(runs->runs[0]->run, "other"); /* the last one seen */
    fire__v1__list_runs_response__free_unpacked(runs, NULL);
    points = ask(reader, "alice", "run", 10, 0, 0);
    ck_assert_uint_eq(points->n_series, 1);
    ck_assert(points->series[0]->mean[0] == 10);
    fire__v1__query_response__free_unpacked(points, NULL);
    history_close(writer);
    history_close(reader);
    tear_down();
}
END_TEST

/* What a filter finds, with the letters that LIKE would read otherwise. */
static const struct {
    const char *filter;
    size_t found;
} filters[] = { { "", 3 },       { "alpha", 1 }, { "ALPHA", 1 }, { "%", 1 },  { "_", 1 },
                { "vision", 1 }, { "a", 3 },     { "!", 0 },     { "'--", 0 } };

START_TEST(filters_find_ids_names_and_labels)
{
    static const char *const names[] = { "alpha", "beta_1", "gamma%" };
    struct history *writer, *reader;

    set_up(_i);
    writer = open_one(true);
    reader = open_one(false);
    for (size_t i = 0; i < 3; i++) {
        Fire__V1__RunInfo info = FIRE__V1__RUN_INFO__INIT;
        Fire__V1__RunInfo__LabelsEntry label = FIRE__V1__RUN_INFO__LABELS_ENTRY__INIT;
        Fire__V1__RunInfo__LabelsEntry *labels[] = { &label };
        struct report report;

        label.key = (char *)"team";
        label.value = (char *)(i == 1 ? "vision" : "language");
        info.labels = labels;
        info.n_labels = 1;
        report_init(&report, names[i]);
        report.message.info = &info;
        write_one(writer, "tenant", &report, NOW_MS);
    }
    for (size_t i = 0; i < sizeof(filters) / sizeof(filters[0]); i++) {
        Fire__V1__ListRunsResponse *runs = list(reader, "tenant", filters[i].filter, "");

        ck_assert_msg(runs->n_runs == filters[i].found, "\"%s\": %zu", filters[i].filter,
                      runs->n_runs);
        fire__v1__list_runs_response__free_unpacked(runs, NULL);
    }
    history_close(writer);
    history_close(reader);
    tear_down();
}
END_TEST

START_TEST(pages_show_every_run_once)
{
    enum { RUNS = 25 };
    Fire__V1__ListRunsRequest request = FIRE__V1__LIST_RUNS_REQUEST__INIT;
    struct history *writer, *reader;
    bool seen[RUNS] = { false };
    char page[64] = "";
    size_t count = 0;

    set_up(_i);
    writer = open_one(true);
    reader = open_one(false);
    for (int i = 0; i < RUNS; i++) {
        char name[16];

        snprintf(name, sizeof(name), "run-%d", i);
        write_point(writer, "tenant", name, 1, 1, NOW_MS + i / 5); /* some at the same time */
    }
    request.limit = 4;
    do {
        Fire__V1__ListRunsResponse *runs = NULL;
        struct fire_error error = { 0 };

        request.page = page;
        ck_assert_int_eq(history_list_runs(reader, "tenant", &request, &runs, &error), FIRE_OK);
        for (size_t i = 0; i < runs->n_runs; i++) {
            const int number = atoi(runs->runs[i]->run + 4);

            ck_assert(!seen[number]);
            seen[number] = true;
            count++;
        }
        snprintf(page, sizeof(page), "%s", runs->next);
        fire__v1__list_runs_response__free_unpacked(runs, NULL);
    } while (page[0]);
    ck_assert_uint_eq(count, RUNS);
    history_close(writer);
    history_close(reader);
    tear_down();
}
END_TEST

static void write_event(struct history *history, Fire__V1__EventKind kind, const char *run,
                        int64_t step, const char *state)
{
    Fire__V1__Event event = FIRE__V1__EVENT__INIT;
    Fire__V1__Event__AttributesEntry entries[2] = { FIRE__V1__EVENT__ATTRIBUTES_ENTRY__INIT,
                                                    FIRE__V1__EVENT__ATTRIBUTES_ENTRY__INIT };
    Fire__V1__Event__AttributesEntry *attributes[] = { &entries[0], &entries[1] };
    Fire__V1__Event *events[] = { &event };
    struct history_entry entry = {
        .tenant = "tenant", .events = events, .event_count = 1, .now_ms = NOW_MS
    };
    struct history_entry *list_of_one[] = { &entry };
    struct fire_error error = { 0 };

    event.kind = kind;
    event.run = (char *)run;
    event.step = step;
    event.time_ms = NOW_MS;
    event.text = (char *)"<script>alert(1)</script>";
    entries[0].key = (char *)"rule";
    entries[0].value = (char *)"dfi_rising";
    entries[1].key = (char *)"state";
    entries[1].value = (char *)state;
    event.attributes = attributes;
    event.n_attributes = 2;
    ck_assert_msg(history_write(history, list_of_one, 1, &error) == FIRE_OK, "%s", error.message);
    ck_assert_uint_gt(event.id, 0);
}

START_TEST(events_are_listed_and_alerts_counted)
{
    Fire__V1__ListEventsRequest request = FIRE__V1__LIST_EVENTS_REQUEST__INIT;
    Fire__V1__ListEventsResponse *events = NULL;
    Fire__V1__ListRunsResponse *runs;
    struct fire_error error = { 0 };
    struct history *writer, *reader;

    set_up(_i);
    writer = open_one(true);
    reader = open_one(false);
    write_event(writer, FIRE__V1__EVENT_KIND__EVENT_KIND_REINIT, "run", 5, "");
    write_event(writer, FIRE__V1__EVENT_KIND__EVENT_KIND_ALERT, "run", 6, "firing");
    write_event(writer, FIRE__V1__EVENT_KIND__EVENT_KIND_STORE, "", 0, "");
    ck_assert_int_eq(history_list_events(reader, "tenant", &request, &events, &error), FIRE_OK);
    ck_assert_uint_eq(events->n_events, 3);
    ck_assert_uint_gt(events->events[0]->id, events->events[1]->id);
    ck_assert_str_eq(events->events[2]->text, "<script>alert(1)</script>");
    request.before_id = events->events[1]->id;
    fire__v1__list_events_response__free_unpacked(events, NULL);
    ck_assert_int_eq(history_list_events(reader, "tenant", &request, &events, &error), FIRE_OK);
    ck_assert_uint_eq(events->n_events, 1);
    fire__v1__list_events_response__free_unpacked(events, NULL);
    /* Another tenant sees only what happened to the daemon. */
    request.before_id = 0;
    ck_assert_int_eq(history_list_events(reader, "stranger", &request, &events, &error), FIRE_OK);
    ck_assert_uint_eq(events->n_events, 1);
    fire__v1__list_events_response__free_unpacked(events, NULL);
    runs = list(reader, "tenant", "", "run");
    ck_assert_uint_eq(runs->runs[0]->alerts_firing, 1);
    ck_assert_int_eq(runs->runs[0]->last_event->step, 6);
    fire__v1__list_runs_response__free_unpacked(runs, NULL);
    write_event(writer, FIRE__V1__EVENT_KIND__EVENT_KIND_ALERT, "run", 7, "ok");
    runs = list(reader, "tenant", "", "run");
    ck_assert_uint_eq(runs->runs[0]->alerts_firing, 0);
    fire__v1__list_runs_response__free_unpacked(runs, NULL);
    history_close(writer);
    history_close(reader);
    tear_down();
}
END_TEST

/* What a daemon that starts takes over, as text. */
static void note_left(void *data, const struct history_alert *alert)
{
    char *text = data;

    sprintf(text + strlen(text), "%s %s %s %s%s;", alert->tenant, alert->run, alert->layer,
            alert->rule, alert->firing ? " fires" : "");
}

static void take_over(struct history *history, char text[512])
{
    const struct history_silence silence = { .rule = "gone", .statistic = "dfi", .span_ms = 60000 };
    struct fire_error error = { 0 };

    text[0] = '\0';
    ck_assert_msg(history_take_over(history, &silence, 1, 10, note_left, text, &error) == FIRE_OK,
                  "%s", error.message);
}

static void maintain(struct history *history, const struct history_upkeep *upkeep)
{
    struct fire_error error = { 0 };
    bool more = true;

    while (more)
        ck_assert_msg(history_maintain(history, upkeep, &more, &error) == FIRE_OK, "%s",
                      error.message);
}

/* Who starts takes over what fires and what may fall silent, from daemons that are gone only. A run
 * that was not seen for long is not waited for. */
START_TEST(alerts_go_from_a_daemon_that_is_gone_to_one_that_starts)
{
    struct history *first, *second, *third;
    char text[512];

    set_up(_i);
    settings.sql.owner = 1;
    first = open_one(true);
    write_point(first, "tenant", "old", 1, 1, NOW_MS - 60001);
    write_point(first, "tenant", "run", 1, 1, NOW_MS);
    write_event(first, FIRE__V1__EVENT_KIND__EVENT_KIND_ALERT, "run", 1, "firing");
    settings.sql.owner = 2;
    if (_i == POSTGRES) { /* a file has one writer */
        second = open_one(true);
        take_over(second, text);
        ck_assert_str_eq(text, "");
        /* Its upkeep folds what is idle, and leaves the run to whom it belongs. */
        maintain(second, &(struct history_upkeep){ .now_ms = NOW_MS + 600000 });
        take_over(first, text);
        ck_assert_str_eq(text, "tenant run  dfi_rising fires;tenant run layer gone;");
        history_close(second);
    }
    history_close(first);
    second = open_one(true);
    do /* the server takes a moment to see that it is gone */
        take_over(second, text);
    while (!text[0]);
    ck_assert_str_eq(text, "tenant run  dfi_rising fires;tenant run layer gone;");
    settings.sql.owner = 3;
    if (_i == POSTGRES) {
        third = open_one(true);
        take_over(third, text);
        ck_assert_str_eq(text, "");
        write_point(third, "tenant", "run", 2, 1, NOW_MS); /* who writes a run owns it */
        take_over(second, text);
        ck_assert_str_eq(text, "");
        history_close(third);
    }
    history_close(second);
    tear_down();
}
END_TEST

/* --- upkeep ----------------------------------------------------------------------------------- */

START_TEST(old_points_become_cells_and_old_runs_go)
{
    enum { COUNT = 1000 };
    static int64_t steps[COUNT];
    static double values[COUNT];
    struct history_upkeep upkeep = { .now_ms = NOW_MS + 40 * DAY_MS, .downsample_days = 30 };
    Fire__V1__ListRunsResponse *runs;
    Fire__V1__QueryResponse *points;
    struct history *writer, *reader;
    struct history_entry entry;
    struct report report;

    set_up(_i);
    writer = open_one(true);
    reader = open_one(false);
    for (int i = 0; i < COUNT; i++) {
        steps[i] = i;
        values[i] = i;
    }
    report_init(&report, "run");
    report_add(&report, "layer", "dfi", steps, values, COUNT);
    write_one(writer, "tenant", &report, NOW_MS);
    maintain(writer, &upkeep);
    /* The fold was the last write; a month later only roll-ups stay. */
    upkeep.now_ms += 40 * DAY_MS;
    maintain(writer, &upkeep);
    points = ask(reader, "tenant", "run", 4096, 0, 0);
    ck_assert_uint_le(points->series[0]->n_steps, COUNT / 10);
    ck_assert(points->series[0]->min[0] == 0);
    ck_assert(points->series[0]->max[points->series[0]->n_steps - 1] == COUNT - 1);
    runs = list(reader, "tenant", "", "");
    ck_assert_uint_eq(runs->runs[0]->points, points->series[0]->n_steps);
    fire__v1__list_runs_response__free_unpacked(runs, NULL);
    fire__v1__query_response__free_unpacked(points, NULL);
    /* They cannot change any more, and that is said; later steps can come. */
    report_init(&report, "run");
    report_add(&report, "layer", "dfi", steps + 10, values, 1);
    entry = write_one(writer, "tenant", &report, NOW_MS);
    ck_assert_int_eq(entry.status, FIRE_BAD_REQUEST);
    ck_assert_int_eq(write_point(writer, "tenant", "run", COUNT, 1, upkeep.now_ms).points_added, 1);
    upkeep.retention_days = 365;
    upkeep.now_ms += 366 * DAY_MS;
    maintain(writer, &upkeep);
    runs = list(reader, "tenant", "", "");
    ck_assert_uint_eq(runs->n_runs, 0);
    fire__v1__list_runs_response__free_unpacked(runs, NULL);
    history_close(writer);
    history_close(reader);
    tear_down();
}
END_TEST

/* --- schema ----------------------------------------------------------------------------------- */

static void run_script(const char *text)
{
    if (settings.backend == &sql_sqlite) {
        sqlite3 *db;

        ck_assert_int_eq(sqlite3_open(settings.sql.place, &db), SQLITE_OK);
        ck_assert_msg(sqlite3_exec(db, text, NULL, NULL, NULL) == SQLITE_OK, "%s",
                      sqlite3_errmsg(db));
        sqlite3_close(db);
    } else {
        PGconn *db = PQconnectdb(settings.sql.place);
        PGresult *result = PQexec(db, text);

        ck_assert_msg(PQresultStatus(result) == PGRES_COMMAND_OK, "%s", PQerrorMessage(db));
        PQclear(result);
        PQfinish(db);
    }
}

/* A history of the oldest version keeps its runs and takes new points. */
START_TEST(the_oldest_schema_is_brought_up)
{
    struct history *writer, *reader;
    Fire__V1__ListRunsResponse *runs;

    set_up(_i);
    if (_i == POSTGRES)
        run_script("CREATE SCHEMA fired; SET search_path = fired");
    if (_i == POSTGRES) {
        char *text = malloc(strlen(settings.backend->migrations[0]) + 64);

        sprintf(text, "SET search_path = fired; %s", settings.backend->migrations[0]);
        run_script(text);
        free(text);
    } else {
        run_script(settings.backend->migrations[0]);
    }
    run_script(_i == POSTGRES
                   ? "INSERT INTO fired.run(tenant, run, search, first_seen_ms, last_seen_ms, "
                     "first_step, last_step, points, layers, pending_points, pending_rows, version)"
                     " VALUES('tenant', 'old', 'old', 1, 2, -1, -1, 0, 0, 0, 0, 0)"
                   : "INSERT INTO run(tenant, run, search, first_seen_ms, last_seen_ms, "
                     "first_step, last_step, points, layers, pending_points, pending_rows, version)"
                     " VALUES('tenant', 'old', 'old', 1, 2, -1, -1, 0, 0, 0, 0, 0)");
    writer = open_one(true);
    reader = open_one(false);
    write_point(writer, "tenant", "old", 3, 4, NOW_MS);
    runs = list(reader, "tenant", "", "");
    ck_assert_uint_eq(runs->n_runs, 1);
    ck_assert_uint_eq(runs->runs[0]->points, 1);
    ck_assert_int_eq(runs->runs[0]->first_seen_ms, 1);
    fire__v1__list_runs_response__free_unpacked(runs, NULL);
    history_close(writer);
    history_close(reader);
    tear_down();
}
END_TEST

START_TEST(a_newer_schema_is_left_alone)
{
    struct fire_error error = { 0 };
    struct history *history;
    bool corrupt = true;

    set_up(_i);
    history_close(open_one(true));
    run_script(_i == POSTGRES ? "UPDATE fired.meta SET value = 99 WHERE name = 'version'"
                              : "UPDATE meta SET value = 99 WHERE name = 'version'");
    settings.sql.writer = true;
    ck_assert_int_eq(history_open(&settings, &history, &corrupt, &error), FIRE_DENIED);
    ck_assert_ptr_nonnull(strstr(error.message, "newer"));
    ck_assert(!corrupt);
    tear_down();
}
END_TEST

/* --- limits ----------------------------------------------------------------------------------- */

START_TEST(a_bad_report_leaves_its_neighbours_alone)
{
    enum { MANY = HISTORY_LAYERS_MAX + 1 };
    Fire__V1__ReportRequest large = FIRE__V1__REPORT_REQUEST__INIT;
    Fire__V1__Series *series = calloc(MANY, sizeof(*series));
    Fire__V1__Series **pointers = calloc(MANY, sizeof(*pointers));
    char(*names)[16] = calloc(MANY, sizeof(*names));
    int64_t step = 1;
    double value = 1;
    struct report good;
    struct fire_error error = { 0 };
    struct history_entry first = { .tenant = "tenant", .now_ms = NOW_MS };
    struct history_entry second = first;
    struct history_entry *entries[] = { &first, &second };
    struct history *writer;

    set_up(_i);
    writer = open_one(true);
    for (int i = 0; i < MANY; i++) {
        fire__v1__series__init(&series[i]);
        snprintf(names[i], sizeof(names[i]), "layer-%d", i);
        series[i].layer = names[i];
        series[i].statistic = (char *)"dfi";
        series[i].steps = &step;
        series[i].values = &value;
        series[i].n_steps = series[i].n_values = 1;
        pointers[i] = &series[i];
    }
    large.run = (char *)"large";
    large.series = pointers;
    large.n_series = MANY;
    report_init(&good, "good");
    report_add(&good, "layer", "dfi", &step, &value, 1);
    first.report = &large;
    second.report = &good.message;
    ck_assert_int_eq(history_write(writer, entries, 2, &error), FIRE_OK);
    ck_assert_int_eq(first.status, FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(first.error.message, "10000"));
    ck_assert_int_eq(second.status, FIRE_OK);
    ck_assert_uint_eq(second.points_added, 1);
    /* One layer fewer fits. */
    large.n_series = MANY - 1;
    ck_assert_int_eq(history_write(writer, entries, 1, &error), FIRE_OK);
    ck_assert_uint_eq(first.points_added, MANY - 1);
    history_close(writer);
    free(series);
    free(pointers);
    free(names);
    tear_down();
}
END_TEST

static const struct {
    const char *run;
    const char *layer;
    const char *statistic;
    enum fire_status status;
    const char *says;
} questions[] = {
    { "nothing", NULL, NULL, FIRE_NOT_FOUND, "nothing" },
    { "run", "nothing", NULL, FIRE_NOT_FOUND, "it has: layer" },
    { "run", NULL, "nothing", FIRE_NOT_FOUND, "it has: dfi" },
};

START_TEST(unknown_names_are_told_what_there_is)
{
    struct history *writer, *reader;

    set_up(SQLITE);
    writer = open_one(true);
    reader = open_one(false);
    write_point(writer, "tenant", "run", 1, 1, NOW_MS);
    for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++) {
        Fire__V1__QueryRequest request = FIRE__V1__QUERY_REQUEST__INIT;
        Fire__V1__QueryResponse *response = NULL;
        struct fire_error error = { 0 };
        char *names[] = { (char *)questions[i].layer };
        char *statistics[] = { (char *)questions[i].statistic };

        request.run = (char *)questions[i].run;
        request.layers = names;
        request.n_layers = questions[i].layer != NULL;
        request.statistics = statistics;
        request.n_statistics = questions[i].statistic != NULL;
        ck_assert_int_eq(history_query(reader, "tenant", &request, &response, &error),
                         questions[i].status);
        ck_assert_ptr_null(response);
        ck_assert_msg(strstr(error.message, questions[i].says) != NULL, "%s", error.message);
    }
    history_close(writer);
    history_close(reader);
    tear_down();
}
END_TEST

/* --- what breaks ------------------------------------------------------------------------------ */

START_TEST(a_file_that_is_no_database_is_called_corrupt)
{
    struct fire_error error = { 0 };
    struct history *history;
    bool corrupt = false;
    int file;

    set_up(SQLITE);
    file = open(settings.sql.place, O_CREAT | O_WRONLY, 0600);
    for (int i = 0; i < 1000; i++)
        ck_assert_int_eq(write(file, "this is no database. ", 21), 21);
    close(file);
    settings.sql.writer = true;
    ck_assert_int_eq(history_open(&settings, &history, &corrupt, &error), FIRE_IO);
    ck_assert(corrupt);
    tear_down();
}
END_TEST

START_TEST(a_second_writer_of_a_file_is_refused)
{
    struct fire_error error = { 0 };
    struct history *first, *second;
    bool corrupt = true;

    set_up(SQLITE);
    first = open_one(true);
    settings.sql.writer = true;
    ck_assert_int_eq(history_open(&settings, &second, &corrupt, &error), FIRE_IO);
    ck_assert_ptr_nonnull(strstr(error.message, "another fired"));
    ck_assert(!corrupt);
    history_close(first);
    tear_down();
}
END_TEST

/* Two daemons on one PostgreSQL, the same run, turn by turn and also the same points. */
START_TEST(two_writers_of_one_database_double_nothing)
{
    struct history *writers[2], *reader;
    Fire__V1__QueryResponse *points;

    set_up(POSTGRES);
    writers[0] = open_one(true);
    writers[1] = open_one(true);
    reader = open_one(false);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(write_point(writers[i % 2], "tenant", "run", i, i, NOW_MS).points_added,
                         1);
        ck_assert_int_eq(
            write_point(writers[(i + 1) % 2], "tenant", "run", i, i, NOW_MS).points_replaced, 1);
    }
    points = ask(reader, "tenant", "run", 4096, 0, 0);
    ck_assert_uint_eq(points->series[0]->n_steps, 100);
    fire__v1__query_response__free_unpacked(points, NULL);
    history_close(writers[0]);
    history_close(writers[1]);
    history_close(reader);
    tear_down();
}
END_TEST

/* A server that is stopped (it neither answers nor closes) costs the timeout, not more. */
START_TEST(a_silent_server_is_given_up)
{
    int64_t step = 1;
    double value = 1;
    struct report report;
    struct history_entry entry = { .tenant = "tenant", .now_ms = NOW_MS };
    struct history_entry *entries[] = { &entry };
    struct fire_error error = { 0 };
    struct history *writer;
    char command[256];

    set_up(POSTGRES);
    settings.sql.timeout_ms = 2000;
    settings.sql.writer = true;
    report_init(&report, "run");
    report_add(&report, "layer", "dfi", &step, &value, 1);
    entry.report = &report.message;
    /* A machine may be slower than that now and then. */
    while (history_open(&settings, &writer, NULL, &error) != FIRE_OK ||
           history_write(writer, entries, 1, &error) != FIRE_OK)
        history_close(writer);
    /* The process that serves us is a child of the server. */
    snprintf(command, sizeof(command), "pkill -STOP -P %d", (int)postgres.server);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(history_write(writer, entries, 1, &error), FIRE_IO);
    ck_assert(history_broken(writer));
    history_close(writer);
    snprintf(command, sizeof(command), "pkill -CONT -P %d", (int)postgres.server);
    ck_assert_int_eq(system(command), 0);
    settings.sql.timeout_ms = 20000;
    writer = open_one(true);
    ck_assert_int_eq(history_write(writer, entries, 1, &error), FIRE_OK);
    history_close(writer);
    tear_down();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("history");
    TCase *tests = tcase_create("history");
    const bool has_postgres = postgres_init(&postgres);
    const int backends = has_postgres ? BACKENDS : POSTGRES;
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 600);
    tcase_add_loop_test(tests, reports_in_any_order_are_read_as_written, 0, backends);
    tcase_add_loop_test(tests, a_range_has_its_points_only, 0, backends);
    tcase_add_loop_test(tests, tenants_see_only_their_own, 0, backends);
    tcase_add_loop_test(tests, filters_find_ids_names_and_labels, 0, backends);
    tcase_add_loop_test(tests, pages_show_every_run_once, 0, backends);
    tcase_add_loop_test(tests, events_are_listed_and_alerts_counted, 0, backends);
    tcase_add_loop_test(tests, alerts_go_from_a_daemon_that_is_gone_to_one_that_starts, 0,
                        backends);
    tcase_add_loop_test(tests, old_points_become_cells_and_old_runs_go, 0, backends);
    tcase_add_loop_test(tests, the_oldest_schema_is_brought_up, 0, backends);
    tcase_add_loop_test(tests, a_newer_schema_is_left_alone, 0, backends);
    tcase_add_loop_test(tests, a_bad_report_leaves_its_neighbours_alone, 0, backends);
    tcase_add_test(tests, unknown_names_are_told_what_there_is);
    tcase_add_test(tests, a_file_that_is_no_database_is_called_corrupt);
    tcase_add_test(tests, a_second_writer_of_a_file_is_refused);
    if (has_postgres) {
        tcase_add_test(tests, two_writers_of_one_database_double_nothing);
        tcase_add_test(tests, a_silent_server_is_given_up);
    }
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (has_postgres)
        postgres_release(&postgres);
    if (failed > 0)
        return EXIT_FAILURE;
    return has_postgres ? EXIT_SUCCESS : SKIPPED;
}
