/* history_write: reports and events into the database, many in one transaction.
 *
 * A report is looked at before anything of it is written, so a bad one leaves nothing behind and
 * its neighbours stand. Everything else that goes wrong undoes the whole transaction, and what was
 * remembered of runs is forgotten. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "history_run.h"

enum fire_status history_open(const struct history_settings *settings, struct history **out,
                              bool *corrupt, struct fire_error *error)
{
    struct history *history = calloc(1, sizeof(*history));
    enum fire_status status;

    *out = NULL;
    if (corrupt)
        *corrupt = false;
    if (!history)
        return fire_fail_memory(error, sizeof(*history));
    history->owner = settings->sql.owner;
    status = settings->backend->open(&settings->sql, &history->db, error);
    if (status == FIRE_OK) {
        *out = history;
        return FIRE_OK;
    }
    if (corrupt)
        *corrupt = history_corrupt(history);
    history_close(history);
    return status;
}

void history_close(struct history *history)
{
    if (!history)
        return;
    run_forget_all(history);
    run_summaries_release(history);
    if (history->db)
        history->db->backend->close(history->db);
    free(history);
}

bool history_broken(const struct history *history)
{
    return history->db->broken;
}

bool history_corrupt(const struct history *history)
{
    return history->db && history->db->corrupt;
}

/* --- looking at a report ---------------------------------------------------------------------- */

/* Names that a report brings. */
struct fresh {
    uint64_t layers;
    uint64_t series;
};

static enum fire_status check_sealed(const Fire__V1__Series *series,
                                     const struct series_state *known, struct fire_error *error)
{
    for (size_t i = 0; i < series->n_steps; i++)
        if (series->steps[i] <= known->sealed_step)
            return fire_fail(error, FIRE_BAD_REQUEST, "series.steps",
                             "steps up to %" PRId64 " of %s of layer \"%.100s\" have been "
                             "downsampled and cannot change; send later steps",
                             known->sealed_step, series->statistic, series->layer);
    return FIRE_OK;
}

/* Counts too many rather than too few: a new name that comes twice, not in a row, counts twice. */
static enum fire_status look(const struct run_state *state, const Fire__V1__ReportRequest *report,
                             struct fresh *fresh, struct fire_error *error)
{
    const char *last_new = NULL;

    for (size_t i = 0; i < report->n_series; i++) {
        const Fire__V1__Series *series = report->series[i];
        const struct layer_state *layer = run_layer(state, series->layer);
        const struct series_state *known =
            layer ? run_series(state, layer->id, series->statistic) : NULL;
        enum fire_status status;

        if (!layer && series->layer[0] && (!last_new || strcmp(last_new, series->layer) != 0)) {
            fresh->layers++;
            last_new = series->layer;
        }
        fresh->series += !known;
        status = known ? check_sealed(series, known, error) : FIRE_OK;
        if (status != FIRE_OK)
            return status;
    }
    if ((uint64_t)state->row.layers + fresh->layers > HISTORY_LAYERS_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "series.layer",
                         "run \"%.60s\" would have more than %u layers; use another run, or the "
                         "layers it has",
                         state->run, HISTORY_LAYERS_MAX);
    if (state->series_count + fresh->series + 1 > HISTORY_SERIES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "series",
                         "run \"%.60s\" would have more than %u series (a layer and a statistic)",
                         state->run, HISTORY_SERIES_MAX);
    return FIRE_OK;
}

/* --- names ------------------------------------------------------------------------------------ */

static bool on_id(void *data, const struct sql_value *columns, size_t count)
{
    (void)count;
    *(int64_t *)data = columns[0].number;
    return true;
}

static enum fire_status add_layer(struct history *history, struct run_state *state,
                                  const char *name, struct layer_state **layer,
                                  struct fire_error *error)
{
    const int64_t position = name[0] ? state->row.layers : -1;
    int64_t id = 0;
    enum fire_status status =
        SQL_RUN(history->db, SQL_LAYER_ADD, on_id, &id, error, sql_number(state->row.id),
                sql_text(name), sql_number(position), sql_blob(NULL, 0));

    if (status != FIRE_OK)
        return status;
    *layer = run_layer_put(state, id, name);
    if (!*layer)
        return fire_fail_memory(error, sizeof(**layer));
    state->row.layers += name[0] != '\0';
    return FIRE_OK;
}

static enum fire_status set_shape(struct history *history, struct layer_state *layer,
                                  const Fire__V1__Series *series, struct fire_error *error)
{
    const size_t bytes = series->n_shape * sizeof(uint64_t);

    if (series->n_shape == 0 ||
        (layer->shape_count == series->n_shape && memcmp(layer->shape, series->shape, bytes) == 0))
        return FIRE_OK;
    if (!layer_shape_set(layer, series->shape, series->n_shape))
        return fire_fail_memory(error, bytes);
    return SQL_RUN(history->db, SQL_LAYER_SHAPE, NULL, NULL, error, sql_number(layer->id),
                   sql_blob(layer->shape, bytes));
}

/* The position of a series in the state, made when it is missing. */
static enum fire_status find_series(struct history *history, struct run_state *state,
                                    const Fire__V1__Series *series, size_t *position,
                                    struct fire_error *error)
{
    struct layer_state *layer = run_layer(state, series->layer);
    struct series_state *known;
    enum fire_status status = FIRE_OK;
    int64_t id = 0;

    if (!layer)
        status = add_layer(history, state, series->layer, &layer, error);
    if (status == FIRE_OK)
        status = set_shape(history, layer, series, error);
    if (status != FIRE_OK)
        return status;
    known = run_series(state, layer->id, series->statistic);
    if (!known) {
        status = SQL_RUN(history->db, SQL_SERIES_ADD, on_id, &id, error, sql_number(state->row.id),
                         sql_number(layer->id), sql_text(series->statistic));
        if (status != FIRE_OK)
            return status;
        known = run_series_put(state, id, layer->id, series->statistic);
        if (!known)
            return fire_fail_memory(error, sizeof(*known));
    }
    *position = (size_t)(known - state->series);
    return FIRE_OK;
}

/* --- what a run is ---------------------------------------------------------------------------- */

static bool info_says(const Fire__V1__RunInfo *info)
{
    return info && (info->name[0] || info->framework[0] || info->n_labels > 0);
}

/* The bytes of what is known with what is given over it. */
static uint8_t *info_pack(const Fire__V1__RunInfo *known, const Fire__V1__RunInfo *given,
                          size_t *bytes)
{
    Fire__V1__RunInfo info = FIRE__V1__RUN_INFO__INIT;
    uint8_t *packed;

    if (known)
        info = *known;
    if (given->name[0])
        info.name = given->name;
    if (given->framework[0])
        info.framework = given->framework;
    if (given->n_labels > 0) {
        info.n_labels = given->n_labels;
        info.labels = given->labels;
    }
    *bytes = fire__v1__run_info__get_packed_size(&info);
    packed = malloc(*bytes + 1);
    if (packed)
        fire__v1__run_info__pack(&info, packed);
    return packed;
}

/* What a filter looks at: id, name and labels, a line each. */
static char *search_text(const char *run, const Fire__V1__RunInfo *info)
{
    size_t bytes = strlen(run) + strlen(info->name) + 3;
    char *text, *end;

    for (size_t i = 0; i < info->n_labels; i++)
        bytes += strlen(info->labels[i]->key) + strlen(info->labels[i]->value) + 2;
    text = malloc(bytes);
    if (!text)
        return NULL;
    end = stpcpy(stpcpy(stpcpy(text, run), "\n"), info->name);
    for (size_t i = 0; i < info->n_labels; i++) {
        end = stpcpy(stpcpy(end, "\n"), info->labels[i]->key);
        end = stpcpy(stpcpy(end, "="), info->labels[i]->value);
    }
    return text;
}

static enum fire_status save_info(struct history *history, struct run_state *state,
                                  const Fire__V1__RunInfo *given, struct fire_error *error)
{
    size_t bytes = 0, known_bytes;
    uint8_t *packed = info_pack(state->info, given, &bytes);
    Fire__V1__RunInfo *info = packed ? fire__v1__run_info__unpack(NULL, bytes, packed) : NULL;
    char *search = info ? search_text(state->run, info) : NULL;
    enum fire_status status = FIRE_OK;

    if (!search) {
        status = fire_fail_memory(error, bytes);
    } else {
        known_bytes = state->info ? fire__v1__run_info__get_packed_size(state->info) : 0;
        uint8_t *known = malloc(known_bytes + 1);

        if (known && state->info)
            fire__v1__run_info__pack(state->info, known);
        if (!known || known_bytes != bytes || memcmp(known, packed, bytes) != 0)
            status = SQL_RUN(history->db, SQL_RUN_INFO, NULL, NULL, error,
                             sql_number(state->row.id), sql_blob(packed, bytes), sql_text(search));
        free(known);
        if (state->info)
            fire__v1__run_info__free_unpacked(state->info, NULL);
        state->info = info;
        info = NULL;
    }
    if (info)
        fire__v1__run_info__free_unpacked(info, NULL);
    free(search);
    free(packed);
    return status;
}

/* --- points ----------------------------------------------------------------------------------- */

/* Steps that rise and lie behind all that the series has. */
static bool lies_behind(const Fire__V1__Series *series, const struct series_state *known)
{
    int64_t last = known->last_step;

    for (size_t i = 0; i < series->n_steps; i++) {
        if (series->steps[i] <= last)
            return false;
        last = series->steps[i];
    }
    return true;
}

/* Tries to put all into one log. `*behind` is false, and the log useless, when some of it does not
 * lie behind what is there. */
static enum fire_status make_log(struct history *history, struct run_state *state,
                                 const Fire__V1__ReportRequest *report, struct chunk_bytes *log,
                                 uint64_t *points, bool *behind, struct fire_error *error)
{
    *behind = true;
    for (size_t i = 0; i < report->n_series; i++) {
        const Fire__V1__Series *series = report->series[i];
        struct series_state *known;
        size_t position;
        enum fire_status status = find_series(history, state, series, &position, error);

        if (status != FIRE_OK)
            return status;
        known = &state->series[position];
        if (series->n_steps == 0 || !*behind)
            continue;
        *behind = lies_behind(series, known);
        if (!*behind)
            continue;
        if (chunk_log_add(log, (uint64_t)known->id, series->steps, series->values,
                          series->n_steps) != FIRE_OK)
            return fire_fail_memory(error, series->n_steps * sizeof(double));
        known->last_step = series->steps[series->n_steps - 1];
        *points += series->n_steps;
    }
    return FIRE_OK;
}

struct sortable {
    int64_t step;
    double value;
    size_t order;
};

static int compare_sortable(const void *left, const void *right)
{
    const struct sortable *a = left, *b = right;

    if (a->step != b->step)
        return a->step < b->step ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

/* The points of a series by step; of those with one step, the last one sent. */
static enum fire_status sort_points(const Fire__V1__Series *series, struct chunk_points *points)
{
    struct sortable *list = malloc((series->n_steps + 1) * sizeof(*list));
    enum fire_status status = list ? FIRE_OK : FIRE_NO_MEMORY;

    for (size_t i = 0; list && i < series->n_steps; i++)
        list[i] = (struct sortable){ series->steps[i], series->values[i], i };
    if (list)
        qsort(list, series->n_steps, sizeof(*list), compare_sortable);
    points->count = 0;
    for (size_t i = 0; i < series->n_steps && status == FIRE_OK; i++)
        if (i + 1 == series->n_steps || list[i].step != list[i + 1].step)
            status = chunk_points_add(points, list[i].step, list[i].value);
    free(list);
    return status;
}

/* Folds what is there and merges the report into the chunks. */
static enum fire_status merge_report(struct history *history, struct run_state *state,
                                     struct history_entry *entry, struct fire_error *error)
{
    const Fire__V1__ReportRequest *report = entry->report;
    struct chunk_points points = { 0 };
    enum fire_status status = run_fold(history, state, entry->now_ms, error);

    /* What make_log() noted was not written, and there is no log any more. */
    for (size_t i = 0; i < state->series_count; i++)
        state->series[i].last_step = state->series[i].chunk_last;
    for (size_t i = 0; i < report->n_series && status == FIRE_OK; i++) {
        uint64_t added = 0;
        size_t position;

        status = find_series(history, state, report->series[i], &position, error);
        if (status != FIRE_OK)
            break;
        status = sort_points(report->series[i], &points);
        if (status != FIRE_OK) {
            (void)fire_fail_memory(error, report->series[i]->n_steps * sizeof(struct sortable));
            break;
        }
        status = series_merge(history, state, &state->series[position], &points, entry->now_ms,
                              &added, error);
        entry->points_added += added;
        entry->points_replaced += points.count - added;
    }
    chunk_points_release(&points);
    return status;
}

/* The smallest and largest step; false when there is no point. */
static bool step_range(const Fire__V1__ReportRequest *report, int64_t *first, int64_t *last)
{
    bool any = false;

    for (size_t s = 0; s < report->n_series; s++) {
        for (size_t i = 0; i < report->series[s]->n_steps; i++) {
            const int64_t step = report->series[s]->steps[i];

            *first = !any || step < *first ? step : *first;
            *last = !any || step > *last ? step : *last;
            any = true;
        }
    }
    return any;
}

/* When the last step of a report was measured, as a series of its own. */
static enum fire_status log_time(struct history *history, struct run_state *state, int64_t step,
                                 int64_t time_ms, struct chunk_bytes *log, struct fire_error *error)
{
    Fire__V1__Series series = FIRE__V1__SERIES__INIT;
    const double value = (double)time_ms;
    size_t position;
    enum fire_status status;

    series.statistic = (char *)HISTORY_TIME_STATISTIC;
    status = find_series(history, state, &series, &position, error);
    if (status != FIRE_OK || step <= state->series[position].last_step)
        return status;
    state->series[position].last_step = step;
    if (chunk_log_add(log, (uint64_t)state->series[position].id, &step, &value, 1) != FIRE_OK)
        return fire_fail_memory(error, sizeof(value));
    return FIRE_OK;
}

static enum fire_status write_points(struct history *history, struct run_state *state,
                                     struct history_entry *entry, struct fire_error *error)
{
    const Fire__V1__ReportRequest *report = entry->report;
    struct chunk_bytes log = { 0 };
    int64_t first = 0, last = 0;
    uint64_t points = 0;
    bool behind = true;
    enum fire_status status = make_log(history, state, report, &log, &points, &behind, error);

    if (status == FIRE_OK && !behind) {
        log.used = 0;
        points = 0;
        status = merge_report(history, state, entry, error);
    }
    if (status == FIRE_OK && step_range(report, &first, &last)) {
        struct run_row *row = &state->row;

        row->first_step = row->first_step < 0 || first < row->first_step ? first : row->first_step;
        row->last_step = last > row->last_step ? last : row->last_step;
        status = log_time(history, state, last,
                          report->time_ms > 0 ? report->time_ms : entry->now_ms, &log, error);
    }
    if (status == FIRE_OK && log.used > 0) {
        status = SQL_RUN(history->db, SQL_PENDING_ADD, NULL, NULL, error, sql_number(state->row.id),
                         sql_number((int64_t)points), sql_blob(log.data, log.used));
        state->row.pending_points += (int64_t)points;
        state->row.pending_rows++;
    }
    entry->points_added += points;
    state->row.points += (int64_t)entry->points_added;
    chunk_bytes_release(&log);
    return status;
}

static enum fire_status write_report(struct history *history, struct history_entry *entry,
                                     struct fire_error *error)
{
    const Fire__V1__ReportRequest *report = entry->report;
    struct run_state *state;
    struct fresh fresh = { 0 };
    enum fire_status status =
        run_lock_or_add(history, entry->tenant, report->run, entry->now_ms, &state, &entry->error);

    if (status == FIRE_OK)
        status = look(state, report, &fresh, &entry->error);
    if (status != FIRE_OK) {
        entry->status = status;
        *error = entry->error;
        return status == FIRE_BAD_REQUEST ? FIRE_OK : status;
    }
    if (entry->now_ms > state->row.last_seen_ms)
        state->row.last_seen_ms = entry->now_ms;
    if (info_says(report->info))
        status = save_info(history, state, report->info, error);
    if (status == FIRE_OK)
        status = write_points(history, state, entry, error);
    if (status == FIRE_OK && (state->row.pending_points >= HISTORY_FOLD_POINTS ||
                              state->row.pending_rows >= HISTORY_FOLD_ROWS))
        status = run_fold(history, state, entry->now_ms, error);
    if (status == FIRE_OK)
        status = run_save(history, state, history->owner, error);
    return status;
}

/* --- events ----------------------------------------------------------------------------------- */

static const char *attribute_of(const Fire__V1__Event *event, const char *key)
{
    for (size_t i = 0; i < event->n_attributes; i++)
        if (strcmp(event->attributes[i]->key, key) == 0)
            return event->attributes[i]->value;
    return "";
}

static enum fire_status note_alert(struct history *history, struct run_state *state,
                                   const Fire__V1__Event *event, struct fire_error *error)
{
    const bool firing = strcmp(attribute_of(event, "state"), "firing") == 0;
    enum fire_status status = SQL_RUN(
        history->db, firing ? SQL_ALERT_SET : SQL_ALERT_CLEAR, NULL, NULL, error,
        sql_number(state->row.id), sql_text(attribute_of(event, "rule")), sql_text(event->layer));

    if (status == FIRE_OK)
        status = SQL_RUN(history->db, SQL_RUN_ALERTS, NULL, NULL, error, sql_number(state->row.id));
    state->row.version++;
    return status;
}

/* The run remembers its last event, without spectra. */
static enum fire_status note_event(struct history *history, struct run_state *state,
                                   const struct history_entry *entry, const Fire__V1__Event *event,
                                   struct fire_error *error)
{
    Fire__V1__Event kept = *event;
    uint8_t *packed;
    size_t bytes;
    enum fire_status status;

    kept.n_spectrum_before = kept.n_spectrum_after = 0;
    bytes = fire__v1__event__get_packed_size(&kept);
    packed = malloc(bytes + 1);
    if (!packed)
        return fire_fail_memory(error, bytes);
    fire__v1__event__pack(&kept, packed);
    if (entry->now_ms > state->row.last_seen_ms)
        state->row.last_seen_ms = entry->now_ms;
    status = SQL_RUN(history->db, SQL_RUN_EVENT, NULL, NULL, error, sql_number(state->row.id),
                     sql_blob(packed, bytes), sql_number(state->row.last_seen_ms));
    state->row.version++;
    free(packed);
    return status;
}

static enum fire_status add_event(struct history *history, const struct history_entry *entry,
                                  Fire__V1__Event *event, struct fire_error *error)
{
    const size_t bytes = fire__v1__event__get_packed_size(event);
    uint8_t *packed = malloc(bytes + 1);
    int64_t id = 0;
    enum fire_status status;

    if (!packed)
        return fire_fail_memory(error, bytes);
    fire__v1__event__pack(event, packed);
    status = SQL_RUN(history->db, SQL_EVENT_ADD, on_id, &id, error,
                     sql_text(event->run[0] ? entry->tenant : ""), sql_text(event->run),
                     sql_text(event->layer), sql_number(event->kind), sql_number(event->step),
                     sql_number(event->time_ms), sql_blob(packed, bytes));
    free(packed);
    event->id = (uint64_t)id;
    return status;
}

/* A Reinit brings one event a tensor; its run needs to be told of the last one only. */
static enum fire_status write_event(struct history *history, const struct history_entry *entry,
                                    size_t index, struct fire_error *error)
{
    Fire__V1__Event *event = entry->events[index];
    const bool last =
        index + 1 == entry->event_count || strcmp(event->run, entry->events[index + 1]->run) != 0;
    const bool alert = event->kind == FIRE__V1__EVENT_KIND__EVENT_KIND_ALERT;
    struct run_state *state;
    enum fire_status status = add_event(history, entry, event, error);

    if (status != FIRE_OK || !event->run[0] || !(last || alert))
        return status;
    status = run_lock_or_add(history, entry->tenant, event->run, entry->now_ms, &state, error);
    if (status == FIRE_OK && last)
        status = note_event(history, state, entry, event, error);
    if (status == FIRE_OK && alert)
        status = note_alert(history, state, event, error);
    return status;
}

/* --- transactions ----------------------------------------------------------------------------- */

static enum fire_status write_entry(struct history *history, struct history_entry *entry,
                                    struct fire_error *error)
{
    enum fire_status status = history->db->backend->prepare_time(history->db, entry->now_ms, error);

    entry->status = FIRE_OK;
    entry->points_added = entry->points_replaced = 0;
    if (status == FIRE_OK && entry->report)
        status = write_report(history, entry, error);
    for (size_t i = 0; i < entry->event_count && status == FIRE_OK && entry->status == FIRE_OK; i++)
        status = write_event(history, entry, i, error);
    return status;
}

enum fire_status history_write(struct history *history, struct history_entry *const *entries,
                               size_t count, struct fire_error *error)
{
    enum fire_status status = run_begin(history, error);

    for (size_t i = 0; i < count && status == FIRE_OK; i++)
        status = write_entry(history, entries[i], error);
    return run_end(history, status, error);
}

enum fire_status history_probe(struct history *history, int64_t now_ms, struct fire_error *error)
{
    const struct sql_backend *backend = history->db->backend;
    enum fire_status status = backend->begin(history->db, error);

    if (status == FIRE_OK)
        status = SQL_RUN(history->db, SQL_PROBE, NULL, NULL, error, sql_number(now_ms));
    if (status == FIRE_OK)
        status = backend->commit(history->db, error);
    if (status != FIRE_OK)
        backend->rollback(history->db);
    return status;
}
