/* history_read: chunks, logs and events, and the list of events. Each answer is read in one
 * transaction, so points are never seen twice or not at all while they move from logs to chunks. */
#include "history_read.h"

#include <stdlib.h>
#include <string.h>

#define EVENTS_DEFAULT 100u

enum fire_status read_fail(struct fire_error *error, enum fire_status status)
{
    if (status == FIRE_NO_MEMORY)
        return fire_fail(error, status, NULL, "there was no memory for the answer; ask for less");
    return fire_fail(error, status, "history", "what is stored of this run cannot be read");
}

enum fire_status read_begin(struct history *history, struct fire_error *error)
{
    return history->db->backend->begin(history->db, error);
}

void read_end(struct history *history)
{
    history->db->backend->rollback(history->db);
}

/* --- points ----------------------------------------------------------------------------------- */

struct cells_reading {
    struct chunk_cells *cells;
    struct chunk_points points; /* of one chunk */
    const struct read_range *range;
    enum fire_status status;
};

static enum fire_status add_points(const struct chunk_points *points,
                                   const struct read_range *range, struct chunk_cells *cells)
{
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; i < points->count && status == FIRE_OK; i++) {
        const double value = points->values[i];
        const struct chunk_cell cell = { points->steps[i], 1, value, value, value };

        if (cell.step >= range->first && cell.step <= range->last)
            status = chunk_cells_add(cells, &cell);
    }
    return status;
}

static bool on_chunk(void *data, const struct sql_value *columns, size_t count)
{
    struct cells_reading *reading = data;

    (void)count;
    if (columns[0].kind != SQL_BLOB) {
        reading->status = FIRE_IO;
    } else if (columns[1].number) {
        reading->status = chunk_unpack_cells(columns[0].data, columns[0].bytes, reading->cells);
    } else {
        reading->points.count = 0;
        reading->status = chunk_unpack(columns[0].data, columns[0].bytes, &reading->points);
        if (reading->status == FIRE_OK)
            reading->status = add_points(&reading->points, reading->range, reading->cells);
    }
    return reading->status == FIRE_OK;
}

enum fire_status read_cells(struct history *history, const struct run_row *row, int64_t series,
                            const struct read_range *range, const struct chunk_points *logged,
                            struct chunk_cells *cells, struct fire_error *error)
{
    struct cells_reading reading = { .cells = cells, .range = range };
    enum fire_status status = FIRE_OK;

    /* A run that is all in logs has no chunks to look for. */
    if (row->points != row->pending_points)
        status = SQL_RUN(history->db, SQL_CHUNK_RANGE, on_chunk, &reading, error,
                         sql_number(series), sql_number(range->first), sql_number(range->last),
                         sql_number(row->first_seen_ms), sql_number(row->last_seen_ms),
                         sql_number(range->level));

    chunk_points_release(&reading.points);
    if (status == FIRE_OK && reading.status == FIRE_OK)
        reading.status = add_points(logged, range, cells);
    if (status == FIRE_OK && reading.status != FIRE_OK)
        status = read_fail(error, reading.status);
    return status;
}

struct logs_reading {
    struct run_state *state;
    const bool *wanted;
    enum fire_status status;
};

static bool on_log(void *data, const struct sql_value *columns, size_t count)
{
    struct logs_reading *reading = data;
    struct chunk_log log = { .at = columns[0].data };

    (void)count;
    log.end = log.at + columns[0].bytes;
    while (reading->status == FIRE_OK) {
        struct series_state *series;

        reading->status = chunk_log_next(&log);
        if (reading->status != FIRE_OK)
            break;
        series = run_series_by_id(reading->state, (int64_t)log.series);
        if (series && reading->wanted[series - reading->state->series])
            reading->status = chunk_log_points(&log, &series->points);
    }
    if (reading->status == FIRE_NOT_FOUND)
        reading->status = FIRE_OK;
    return reading->status == FIRE_OK;
}

enum fire_status read_logs(struct history *history, struct run_state *state, const bool *wanted,
                           struct fire_error *error)
{
    struct logs_reading reading = { .state = state, .wanted = wanted };
    enum fire_status status;

    if (state->row.pending_rows == 0)
        return FIRE_OK;
    status =
        SQL_RUN(history->db, SQL_PENDING_LIST, on_log, &reading, error, sql_number(state->row.id));
    if (status == FIRE_OK && reading.status != FIRE_OK)
        status = read_fail(error, reading.status);
    return status;
}

/* --- events ----------------------------------------------------------------------------------- */

struct events_reading {
    Fire__V1__Event **events;
    size_t count;
    size_t room;
    size_t spectra_room; /* events that may keep theirs, which are a hundred times the rest */
    enum fire_status status;
};

static void forget_spectra(Fire__V1__Event *event)
{
    free(event->spectrum_before);
    free(event->spectrum_after);
    event->spectrum_before = event->spectrum_after = NULL;
    event->n_spectrum_before = event->n_spectrum_after = 0;
}

static bool on_event(void *data, const struct sql_value *columns, size_t count)
{
    struct events_reading *reading = data;
    Fire__V1__Event *event;

    (void)count;
    if (reading->count == reading->room)
        return false;
    event = event_read(&columns[1]);
    if (!event) {
        reading->status = FIRE_IO;
        return false;
    }
    event->id = (uint64_t)columns[0].number;
    if (event->n_spectrum_before + event->n_spectrum_after > 0) {
        if (reading->spectra_room == 0)
            forget_spectra(event);
        else
            reading->spectra_room--;
    }
    reading->events[reading->count++] = event;
    return true;
}

static void events_free(struct events_reading *reading)
{
    for (size_t i = 0; i < reading->count; i++)
        fire__v1__event__free_unpacked(reading->events[i], NULL);
    free(reading->events);
}

enum fire_status read_events(struct history *history, const char *tenant, const char *run,
                             const struct read_range *range, size_t *count,
                             Fire__V1__Event ***events, struct fire_error *error)
{
    struct events_reading reading = { .room = HISTORY_EVENTS_MAX };
    enum fire_status status;

    reading.events = calloc(reading.room, sizeof(*reading.events));
    if (!reading.events)
        return fire_fail_memory(error, reading.room * sizeof(*reading.events));
    status = SQL_RUN(history->db, SQL_EVENT_RANGE, on_event, &reading, error, sql_text(tenant),
                     sql_text(run), sql_number(range->first), sql_number(range->last),
                     sql_number((int64_t)reading.room));
    if (status == FIRE_OK && reading.status != FIRE_OK)
        status = read_fail(error, reading.status);
    if (status != FIRE_OK || reading.count == 0) {
        events_free(&reading);
        return status;
    }
    for (size_t i = 0; i < reading.count / 2; i++) {
        Fire__V1__Event *event = reading.events[i];

        reading.events[i] = reading.events[reading.count - 1 - i];
        reading.events[reading.count - 1 - i] = event;
    }
    *events = reading.events;
    *count = reading.count;
    return FIRE_OK;
}

enum fire_status history_list_events(struct history *history, const char *tenant,
                                     const Fire__V1__ListEventsRequest *request,
                                     Fire__V1__ListEventsResponse **response,
                                     struct fire_error *error)
{
    const uint32_t limit = request->limit ? request->limit : EVENTS_DEFAULT;
    const int64_t before = request->before_id > 0 && request->before_id < INT64_MAX
                               ? (int64_t)request->before_id
                               : INT64_MAX;
    struct events_reading reading = { .room = limit,
                                      .spectra_room = request->run[0] ? HISTORY_SPECTRA_MAX : 0 };
    enum fire_status status;

    *response = NULL;
    reading.events = calloc(reading.room, sizeof(*reading.events));
    if (!reading.events)
        return fire_fail_memory(error, reading.room * sizeof(*reading.events));
    status = SQL_RUN(history->db, SQL_EVENT_LIST, on_event, &reading, error, sql_text(tenant),
                     sql_number(before), sql_text(request->run), sql_text(request->layer),
                     sql_number(request->kind), sql_number(limit));
    if (status == FIRE_OK && reading.status != FIRE_OK)
        status = read_fail(error, reading.status);
    if (status == FIRE_OK) {
        *response = malloc(sizeof(**response));
        if (!*response)
            status = fire_fail_memory(error, sizeof(**response));
    }
    if (status != FIRE_OK) {
        events_free(&reading);
        return status;
    }
    fire__v1__list_events_response__init(*response);
    (*response)->events = reading.events;
    (*response)->n_events = reading.count;
    if (reading.count == 0) {
        free(reading.events);
        (*response)->events = NULL;
    }
    return FIRE_OK;
}
