/* monitor_check: what a request of the monitor may be. Names come from strangers and are shown to
 * people: they are UTF-8 without controls, and short. */
#include "monitor_check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "history.h"
#include "utf8.h"

#define FILTER_BYTES      256u
#define PAGE_BYTES        64u
#define FRAMEWORK_BYTES   64u
#define LABEL_KEY_BYTES   64u
#define LABEL_VALUE_BYTES 256u
#define LIST_MAX          1000u

bool monitor_statistic_valid(const char *name)
{
    const size_t bytes = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");

    return bytes > 0 && bytes <= MONITOR_STATISTIC_MAX && name[bytes] == '\0';
}

static enum fire_status check_text(const char *text, size_t bytes_max, const char *field,
                                   struct fire_error *error)
{
    const size_t bytes = strlen(text);

    if (bytes > bytes_max)
        return fire_fail(error, FIRE_BAD_REQUEST, field,
                         "%s has %zu bytes; at most %zu are allowed", field, bytes, bytes_max);
    for (size_t at = 0; at < bytes;) {
        const size_t count = utf8_bytes(text + at);

        if (count == 0)
            return fire_fail(error, FIRE_BAD_REQUEST, field, "%s is not UTF-8 at byte %zu", field,
                             at);
        if (utf8_is_control(text + at, count))
            return fire_fail(error, FIRE_BAD_REQUEST, field,
                             "%s has a control character at byte %zu; use printable ones", field,
                             at);
        at += count;
    }
    return FIRE_OK;
}

static enum fire_status check_run(const char *run, struct fire_error *error)
{
    if (run[0] == '\0')
        return fire_fail(error, FIRE_BAD_REQUEST, "run", "run is empty; give 1 to %u bytes",
                         MONITOR_RUN_BYTES);
    return check_text(run, MONITOR_RUN_BYTES, "run", error);
}

static enum fire_status check_info(const Fire__V1__RunInfo *info, struct fire_error *error)
{
    enum fire_status status = check_text(info->name, MONITOR_NAME_BYTES, "info.name", error);

    if (status == FIRE_OK)
        status = check_text(info->framework, FRAMEWORK_BYTES, "info.framework", error);
    if (status == FIRE_OK && info->n_labels > MONITOR_LABELS_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "info.labels",
                         "info.labels has %zu entries; at most %u are allowed", info->n_labels,
                         MONITOR_LABELS_MAX);
    for (size_t i = 0; i < info->n_labels && status == FIRE_OK; i++) {
        if (info->labels[i]->key[0] == '\0')
            return fire_fail(error, FIRE_BAD_REQUEST, "info.labels", "a label has an empty key");
        status = check_text(info->labels[i]->key, LABEL_KEY_BYTES, "info.labels", error);
        if (status == FIRE_OK)
            status = check_text(info->labels[i]->value, LABEL_VALUE_BYTES, "info.labels", error);
    }
    return status;
}

static enum fire_status check_points(const Fire__V1__Series *series, const char *path,
                                     struct fire_error *error)
{
    if (series->n_steps != series->n_values)
        return fire_fail(error, FIRE_BAD_REQUEST, path,
                         "%s has %zu steps and %zu values; give as many of both", path,
                         series->n_steps, series->n_values);
    for (size_t i = 0; i < series->n_steps; i++) {
        if (series->steps[i] < 0)
            return fire_fail(error, FIRE_BAD_REQUEST, path,
                             "%s.steps[%zu] is %" PRId64 "; steps are not below 0", path, i,
                             series->steps[i]);
        if (!isfinite(series->values[i]))
            return fire_fail(error, FIRE_BAD_REQUEST, path,
                             "%s.values[%zu] of layer \"%.60s\" is not finite; leave such points "
                             "out",
                             path, i, series->layer);
    }
    return FIRE_OK;
}

static enum fire_status check_series(const Fire__V1__Series *series, const char *path,
                                     struct fire_error *error)
{
    enum fire_status status = check_text(series->layer, MONITOR_NAME_BYTES, path, error);

    if (status != FIRE_OK)
        return status;
    if (!monitor_statistic_valid(series->statistic))
        return fire_fail(error, FIRE_BAD_REQUEST, path,
                         "%s.statistic must be 1 to %u of a-z, 0-9 and _, got \"%.60s\"", path,
                         MONITOR_STATISTIC_MAX, series->statistic);
    if (strcmp(series->statistic, HISTORY_TIME_STATISTIC) == 0)
        return fire_fail(error, FIRE_BAD_REQUEST, path,
                         "%s.statistic " HISTORY_TIME_STATISTIC
                         " is kept by fired itself; give the report's time_ms",
                         path);
    if (series->n_shape > MONITOR_SHAPE_AXES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, path, "%s.shape has %zu axes; at most %u", path,
                         series->n_shape, MONITOR_SHAPE_AXES_MAX);
    return check_points(series, path, error);
}

static enum fire_status check_report(const Fire__V1__ReportRequest *report,
                                     struct fire_error *error)
{
    enum fire_status status = check_run(report->run, error);
    size_t points = 0;

    if (status == FIRE_OK && report->info)
        status = check_info(report->info, error);
    if (status == FIRE_OK && report->time_ms < 0)
        status = fire_fail(error, FIRE_BAD_REQUEST, "time_ms",
                           "time_ms must be 0 or milliseconds since 1970, got %" PRId64,
                           report->time_ms);
    for (size_t i = 0; i < report->n_series && status == FIRE_OK; i++) {
        char path[48];

        snprintf(path, sizeof(path), "series[%zu]", i);
        status = check_series(report->series[i], path, error);
        points += report->series[i]->n_steps;
    }
    if (status == FIRE_OK && (points > MONITOR_POINTS_MAX || report->n_series > MONITOR_POINTS_MAX))
        status = fire_fail(error, FIRE_BAD_REQUEST, "series",
                           "the report has %zu points in %zu series; at most %u are allowed: send "
                           "several reports",
                           points, report->n_series, MONITOR_POINTS_MAX);
    return status;
}

static enum fire_status check_names(char *const *names, size_t count, size_t bytes_max,
                                    const char *field, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    if (count > MONITOR_NAMES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, field,
                         "%s has %zu names; at most %u: leave it empty for all", field, count,
                         MONITOR_NAMES_MAX);
    for (size_t i = 0; i < count && status == FIRE_OK; i++)
        status = check_text(names[i], bytes_max, field, error);
    return status;
}

static enum fire_status check_limit(uint32_t value, uint32_t maximum, const char *field,
                                    struct fire_error *error)
{
    if (value <= maximum)
        return FIRE_OK;
    return fire_fail(error, FIRE_BAD_REQUEST, field, "%s must be 1 to %u, or 0, got %u", field,
                     maximum, value);
}

static enum fire_status check_list_runs(const Fire__V1__ListRunsRequest *request,
                                        struct fire_error *error)
{
    enum fire_status status = check_text(request->filter, FILTER_BYTES, "filter", error);

    if (status == FIRE_OK)
        status = check_text(request->run, MONITOR_RUN_BYTES, "run", error);
    if (status == FIRE_OK)
        status = check_text(request->page, PAGE_BYTES, "page", error);
    if (status == FIRE_OK)
        status = check_limit(request->limit, LIST_MAX, "limit", error);
    return status;
}

static enum fire_status check_query(const Fire__V1__QueryRequest *request, struct fire_error *error)
{
    enum fire_status status = check_run(request->run, error);

    if (status == FIRE_OK)
        status =
            check_names(request->layers, request->n_layers, MONITOR_NAME_BYTES, "layers", error);
    if (status == FIRE_OK)
        status = check_names(request->statistics, request->n_statistics, MONITOR_STATISTIC_MAX,
                             "statistics", error);
    if (status == FIRE_OK)
        status = check_limit(request->resolution, HISTORY_RESOLUTION_MAX, "resolution", error);
    if (status != FIRE_OK)
        return status;
    if (request->step_min < 0 || request->step_max < 0)
        return fire_fail(error, FIRE_BAD_REQUEST, request->step_min < 0 ? "step_min" : "step_max",
                         "steps are not below 0");
    if (request->step_max > 0 && request->step_max < request->step_min)
        return fire_fail(error, FIRE_BAD_REQUEST, "step_max",
                         "step_max %" PRId64 " lies before step_min %" PRId64, request->step_max,
                         request->step_min);
    if (request->aggregate >= 0 && request->aggregate <= FIRE__V1__AGGREGATE__AGGREGATE_MEAN)
        return FIRE_OK;
    return fire_fail(error, FIRE_BAD_REQUEST, "aggregate",
                     "aggregate must be AGGREGATE_ALL or AGGREGATE_MEAN, got %d",
                     (int)request->aggregate);
}

static enum fire_status check_list_events(const Fire__V1__ListEventsRequest *request,
                                          struct fire_error *error)
{
    enum fire_status status = check_text(request->run, MONITOR_RUN_BYTES, "run", error);

    if (status == FIRE_OK)
        status = check_text(request->layer, MONITOR_NAME_BYTES, "layer", error);
    if (status == FIRE_OK)
        status = check_limit(request->limit, LIST_MAX, "limit", error);
    if (status == FIRE_OK &&
        (request->kind < 0 || request->kind > FIRE__V1__EVENT_KIND__EVENT_KIND_STORE))
        status = fire_fail(error, FIRE_BAD_REQUEST, "kind",
                           "kind must be EVENT_KIND_REINIT, _ALERT, _DEVICE, _STORE or "
                           "unspecified, got %d",
                           (int)request->kind);
    return status;
}

static enum fire_status check_advise(const Fire__V1__AdviseRequest *request,
                                     struct fire_error *error)
{
    enum fire_status status = check_run(request->run, error);

    if (status == FIRE_OK)
        status =
            check_names(request->layers, request->n_layers, MONITOR_NAME_BYTES, "layers", error);
    return status;
}

enum fire_status monitor_check_watch(const Fire__V1__WatchRequest *request,
                                     struct fire_error *error)
{
    return check_text(request->run, MONITOR_RUN_BYTES, "run", error);
}

enum fire_status monitor_check(enum monitor_method method, const ProtobufCMessage *request,
                               struct fire_error *error)
{
    switch (method) {
    case MONITOR_REPORT: return check_report((const Fire__V1__ReportRequest *)request, error);
    case MONITOR_LIST_RUNS:
        return check_list_runs((const Fire__V1__ListRunsRequest *)request, error);
    case MONITOR_QUERY: return check_query((const Fire__V1__QueryRequest *)request, error);
    case MONITOR_LIST_EVENTS:
        return check_list_events((const Fire__V1__ListEventsRequest *)request, error);
    case MONITOR_ADVISE: return check_advise((const Fire__V1__AdviseRequest *)request, error);
    }
    return FIRE_BAD_REQUEST;
}
