/* monitor: the functions of fire.h about history: arguments become messages, answers tables. */
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "fire/v1/monitor.pb-c.h"
#include "table.h"

#define POINTS_MAX 65536u /* of a report; the contract's */
#define NAMES_MAX  65536u /* in a list */

/* One call; an answer becomes `*table` unless that is NULL, else `*answer`. */
static enum fire_status ask(struct fire_client *client, const char *method,
                            const ProtobufCMessage *request, const ProtobufCMessageDescriptor *kind,
                            ProtobufCMessage **answer, struct fire_error *error)
{
    struct fire_error own = { 0 };

    *answer = NULL;
    if (!client->methods->monitor)
        fire_fail(&own, FIRE_BAD_REQUEST, NULL,
                  "a client that computes in this process keeps no history; open one of a daemon "
                  "with fire_client_open_remote()");
    else if (client->methods->monitor(client, method, request, kind, answer, &own) == FIRE_OK)
        return FIRE_OK;
    return client_fail(&own, error);
}

static enum fire_status ask_table(struct fire_client *client, const char *method,
                                  const ProtobufCMessage *request,
                                  const ProtobufCMessageDescriptor *kind, struct fire_table **table,
                                  struct fire_error *error)
{
    struct fire_error own = { 0 };
    ProtobufCMessage *answer;
    enum fire_status status = ask(client, method, request, kind, &answer, error);

    *table = NULL;
    if (status != FIRE_OK)
        return status;
    status = table_open(answer, table);
    if (status == FIRE_OK)
        return FIRE_OK;
    fire_fail_memory(&own, sizeof(*table));
    return client_fail(&own, error);
}

/* The run that is meant; "" when neither the caller nor the client names one. */
static char *run_of(const struct fire_client *client, const char *run)
{
    static char none[] = "";
    const char *own = client->methods->run ? client->methods->run(client) : NULL;

    return run ? (char *)run : own ? (char *)own : none;
}

/* --- report ----------------------------------------------------------------------------------- */

/* Messages of a report, in one piece of memory each. Points of one layer and statistic become one
 * series, so that names travel once. */
struct report_parts {
    const struct fire_point **order; /* by layer and statistic, otherwise as given */
    int64_t *steps;
    double *values;
    Fire__V1__Series *series;
    Fire__V1__Series **series_list;
    size_t series_count;
    Fire__V1__RunInfo__LabelsEntry *labels;
    Fire__V1__RunInfo__LabelsEntry **label_list;
    size_t label_count;
};

static void parts_release(struct report_parts *parts)
{
    free(parts->order);
    free(parts->steps);
    free(parts->values);
    free(parts->series);
    free(parts->series_list);
    free(parts->labels);
    free(parts->label_list);
}

static bool parts_allocate(struct report_parts *parts, size_t count)
{
    parts->order = calloc(count + 1, sizeof(*parts->order));
    parts->steps = calloc(count + 1, sizeof(*parts->steps));
    parts->values = calloc(count + 1, sizeof(*parts->values));
    parts->series = calloc(count + 1, sizeof(*parts->series));
    parts->series_list = calloc(count + 1, sizeof(*parts->series_list));
    parts->labels = calloc(parts->label_count + 1, sizeof(*parts->labels));
    parts->label_list = calloc(parts->label_count + 1, sizeof(*parts->label_list));
    return parts->order && parts->steps && parts->values && parts->series && parts->series_list &&
           parts->labels && parts->label_list;
}

static const char *text_or_empty(const char *text)
{
    return text ? text : "";
}

static int compare_names(const struct fire_point *a, const struct fire_point *b)
{
    const int layers = strcmp(text_or_empty(a->layer), text_or_empty(b->layer));

    return layers ? layers : strcmp(text_or_empty(a->statistic), text_or_empty(b->statistic));
}

/* Points of one name keep their order: they lie in one array, so their addresses tell it. */
static int compare_points(const void *left, const void *right)
{
    const struct fire_point *a = *(const struct fire_point *const *)left;
    const struct fire_point *b = *(const struct fire_point *const *)right;
    const int names = compare_names(a, b);

    return names ? names : (a > b) - (a < b);
}

static void parts_fill_series(struct report_parts *parts, const struct fire_report *report)
{
    for (size_t i = 0; i < report->count; i++)
        parts->order[i] = &report->points[i];
    qsort(parts->order, report->count, sizeof(*parts->order), compare_points);
    for (size_t i = 0; i < report->count; i++) {
        const struct fire_point *point = parts->order[i];
        Fire__V1__Series *series;

        if (i == 0 || compare_names(point, parts->order[i - 1]) != 0) {
            series = &parts->series[parts->series_count];
            *series = (Fire__V1__Series)FIRE__V1__SERIES__INIT;
            series->layer = (char *)text_or_empty(point->layer);
            series->statistic = (char *)text_or_empty(point->statistic);
            series->steps = &parts->steps[i];
            series->values = &parts->values[i];
            parts->series_list[parts->series_count++] = series;
        }
        series = &parts->series[parts->series_count - 1];
        parts->steps[i] = point->step;
        parts->values[i] = point->value;
        series->n_steps++;
        series->n_values++;
    }
}

static bool parts_init(struct report_parts *parts, const struct fire_report *report)
{
    while (report->labels && report->labels[2 * parts->label_count] &&
           report->labels[2 * parts->label_count + 1])
        parts->label_count++;
    if (!parts_allocate(parts, report->count))
        return false;
    for (size_t i = 0; i < parts->label_count; i++) {
        parts->labels[i] = (Fire__V1__RunInfo__LabelsEntry)FIRE__V1__RUN_INFO__LABELS_ENTRY__INIT;
        parts->labels[i].key = (char *)report->labels[2 * i];
        parts->labels[i].value = (char *)report->labels[2 * i + 1];
        parts->label_list[i] = &parts->labels[i];
    }
    parts_fill_series(parts, report);
    return true;
}

enum fire_status fire_client_report(struct fire_client *client, const struct fire_report *report,
                                    uint64_t *added, struct fire_error *error)
{
    Fire__V1__ReportRequest request = FIRE__V1__REPORT_REQUEST__INIT;
    Fire__V1__RunInfo info = FIRE__V1__RUN_INFO__INIT;
    struct report_parts parts = { 0 };
    struct fire_error own = { 0 };
    ProtobufCMessage *answer = NULL;
    enum fire_status status;

    if (added)
        *added = 0;
    if (report->count > POINTS_MAX) {
        fire_fail(&own, FIRE_BAD_REQUEST, "count", "a report takes at most %u points, got %zu",
                  POINTS_MAX, report->count);
        return client_fail(&own, error);
    }
    if (!parts_init(&parts, report)) {
        parts_release(&parts);
        fire_fail_memory(&own, report->count * sizeof(*parts.series));
        return client_fail(&own, error);
    }
    info.name = report->name ? (char *)report->name : info.name;
    info.framework = report->framework ? (char *)report->framework : info.framework;
    info.labels = parts.label_list;
    info.n_labels = parts.label_count;
    request.run = run_of(client, report->run);
    request.info = &info;
    request.series = parts.series_list;
    request.n_series = parts.series_count;
    request.time_ms = report->time_ms;
    status = ask(client, "Report", &request.base, &fire__v1__report_response__descriptor, &answer,
                 error);
    if (answer && added)
        *added = ((Fire__V1__ReportResponse *)answer)->points_added;
    if (answer)
        protobuf_c_message_free_unpacked(answer, NULL);
    parts_release(&parts);
    return status;
}

/* --- reading ---------------------------------------------------------------------------------- */

enum fire_status fire_client_advise(struct fire_client *client, const char *run,
                                    struct fire_table **table, struct fire_error *error)
{
    Fire__V1__AdviseRequest request = FIRE__V1__ADVISE_REQUEST__INIT;

    request.run = run_of(client, run);
    return ask_table(client, "Advise", &request.base, &fire__v1__advise_response__descriptor, table,
                     error);
}

enum fire_status fire_client_runs(struct fire_client *client, const char *filter, uint32_t limit,
                                  struct fire_table **table, struct fire_error *error)
{
    Fire__V1__ListRunsRequest request = FIRE__V1__LIST_RUNS_REQUEST__INIT;

    request.filter = filter ? (char *)filter : request.filter;
    request.limit = limit;
    return ask_table(client, "ListRuns", &request.base, &fire__v1__list_runs_response__descriptor,
                     table, error);
}

enum fire_status fire_client_events(struct fire_client *client, const char *run, uint32_t limit,
                                    struct fire_table **table, struct fire_error *error)
{
    Fire__V1__ListEventsRequest request = FIRE__V1__LIST_EVENTS_REQUEST__INIT;

    request.run = run_of(client, run);
    request.limit = limit;
    return ask_table(client, "ListEvents", &request.base,
                     &fire__v1__list_events_response__descriptor, table, error);
}

static size_t list_length(const char *const *list)
{
    size_t count = 0;

    while (list && list[count])
        count++;
    return count;
}

enum fire_status fire_client_query(struct fire_client *client, const struct fire_query *query,
                                   struct fire_table **table, struct fire_error *error)
{
    Fire__V1__QueryRequest request = FIRE__V1__QUERY_REQUEST__INIT;

    request.run = run_of(client, query->run);
    request.layers = (char **)query->layers;
    request.n_layers = list_length(query->layers);
    request.statistics = (char **)query->statistics;
    request.n_statistics = list_length(query->statistics);
    request.step_min = query->step_min;
    request.step_max = query->step_max;
    request.resolution = query->resolution;
    request.aggregate = FIRE__V1__AGGREGATE__AGGREGATE_ALL;
    request.whole_run = query->whole_run;
    return ask_table(client, "Query", &request.base, &fire__v1__query_response__descriptor, table,
                     error);
}

/* --- the doors without structs ---------------------------------------------------------------- */

enum fire_status fire_report_flat(struct fire_client *client, const char *run, const char *name,
                                  const char *framework, uint64_t count, const char *const *layers,
                                  const char *const *statistics, const int64_t *steps,
                                  const double *values, uint64_t *added, struct fire_error *error)
{
    struct fire_report report = { .run = run, .name = name, .framework = framework };
    struct fire_error own = { 0 };
    struct fire_point *points;
    enum fire_status status;

    points = count <= POINTS_MAX ? calloc(count + 1, sizeof(*points)) : NULL;
    if (!points) {
        if (count > POINTS_MAX)
            fire_fail(&own, FIRE_BAD_REQUEST, "count", "a report takes at most %u points, got %llu",
                      POINTS_MAX, (unsigned long long)count);
        else
            fire_fail_memory(&own, count * sizeof(*points));
        return client_fail(&own, error);
    }
    for (uint64_t i = 0; i < count; i++)
        points[i] =
            (struct fire_point){ layers ? layers[i] : NULL, statistics[i], steps[i], values[i] };
    report.points = points;
    report.count = count;
    status = fire_client_report(client, &report, added, error);
    free(points);
    return status;
}

/* A list from lines; `*copy` holds the texts. NULL with `*copy` NULL: none, or no memory. */
static const char **list_from_lines(const char *lines, char **copy, bool *failed)
{
    const char **list;
    size_t count = 1, used = 0;
    char *rest;

    *copy = NULL;
    if (!lines || !lines[0])
        return NULL;
    for (const char *at = lines; *at; at++)
        count += *at == '\n';
    *copy = strdup(lines);
    list = count < NAMES_MAX ? calloc(count + 1, sizeof(*list)) : NULL;
    *failed = !*copy || !list;
    rest = *copy;
    for (char *line; !*failed && (line = strsep(&rest, "\n")) != NULL;) {
        if (line[0])
            list[used++] = line;
    }
    return list;
}

enum fire_status fire_query_flat(struct fire_client *client, const char *run, const char *layers,
                                 const char *statistics, int64_t step_min, int64_t step_max,
                                 uint32_t resolution, struct fire_table **table,
                                 struct fire_error *error)
{
    char *layer_texts, *statistic_texts;
    bool failed = false, failed_too = false;
    const char **layer_list = list_from_lines(layers, &layer_texts, &failed);
    const char **statistic_list = list_from_lines(statistics, &statistic_texts, &failed_too);
    const struct fire_query query = { .run = run,
                                      .layers = layer_list,
                                      .statistics = statistic_list,
                                      .step_min = step_min,
                                      .step_max = step_max,
                                      .resolution = resolution,
                                      .whole_run = !layer_list };
    struct fire_error own = { 0 };
    enum fire_status status;

    *table = NULL;
    if (failed || failed_too) {
        fire_fail_memory(&own, sizeof(*layer_list));
        status = client_fail(&own, error);
    } else {
        status = fire_client_query(client, &query, table, error);
    }
    free(layer_list);
    free(statistic_list);
    free(layer_texts);
    free(statistic_texts);
    return status;
}
