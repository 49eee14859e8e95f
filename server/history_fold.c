/* history_fold: points into chunks.
 *
 * The chunks of a series do not overlap and lie in order. A point belongs to the chunk with the
 * largest first step that is not behind it, or to the first one; one that grows beyond
 * CHUNK_POINTS_MAX is cut. */
#include <stdlib.h>
#include <string.h>

#include "history_run.h"

/* A chunk as it was read. */
struct found_chunk {
    bool found;
    bool thinned; /* only its roll-ups are kept */
    int64_t start;
    int64_t born_ms;
    struct chunk_points points;
    enum fire_status status;
};

/* What a merge works on. */
struct merge {
    struct history *history;
    const struct run_state *state;
    struct series_state *series;
    int64_t now_ms;
    struct chunk_bytes coarse, fine, raw; /* used again for each chunk */
    struct chunk_points merged;
};

static bool on_chunk(void *data, const struct sql_value *columns, size_t count)
{
    struct found_chunk *chunk = data;

    (void)count;
    chunk->found = true;
    chunk->start = columns[0].number;
    chunk->born_ms = columns[1].number;
    chunk->thinned = columns[2].kind != SQL_BLOB;
    if (!chunk->thinned)
        chunk->status = chunk_unpack(columns[2].data, columns[2].bytes, &chunk->points);
    return false;
}

static bool on_start(void *data, const struct sql_value *columns, size_t count)
{
    (void)count;
    *(int64_t *)data = columns[0].number;
    return false;
}

static enum fire_status run_range(const struct merge *merge, enum sql_statement statement,
                                  int64_t step, sql_row row, void *data, struct fire_error *error)
{
    return SQL_RUN(merge->history->db, statement, row, data, error, sql_number(merge->series->id),
                   sql_number(step), sql_number(merge->state->row.first_seen_ms),
                   sql_number(merge->state->row.last_seen_ms));
}

/* The chunk that `step` belongs to; the first step of the one behind it. */
static enum fire_status find(struct merge *merge, int64_t step, struct found_chunk *chunk,
                             int64_t *next_start, struct fire_error *error)
{
    enum fire_status status;

    *next_start = INT64_MAX;
    if (merge->series->chunk_last < 0)
        return FIRE_OK;
    status = run_range(merge, SQL_CHUNK_FIND, step, on_chunk, chunk, error);
    if (status == FIRE_OK && !chunk->found)
        status = run_range(merge, SQL_CHUNK_NEXT, step, on_chunk, chunk, error);
    if (status == FIRE_OK && chunk->found && step <= merge->series->chunk_last)
        status = run_range(merge, SQL_CHUNK_NEXT, chunk->start, on_start, next_start, error);
    if (status == FIRE_OK && chunk->status != FIRE_OK)
        status = fire_fail(error, chunk->status, "history", "a chunk of run \"%.60s\" is damaged",
                           merge->state->run);
    return status;
}

/* Both into `merged`: where both have a step, the new value stands. */
static enum fire_status merge_lists(struct chunk_points *merged, const struct chunk_points *old,
                                    const struct chunk_points *fresh, size_t from, size_t to,
                                    uint64_t *added)
{
    enum fire_status status = FIRE_OK;
    size_t i = 0;

    merged->count = 0;
    while (status == FIRE_OK && (i < old->count || from < to)) {
        if (from == to || (i < old->count && old->steps[i] < fresh->steps[from])) {
            status = chunk_points_add(merged, old->steps[i], old->values[i]);
            i++;
            continue;
        }
        if (i < old->count && old->steps[i] == fresh->steps[from])
            i++;
        else
            ++*added;
        status = chunk_points_add(merged, fresh->steps[from], fresh->values[from]);
        from++;
    }
    return status;
}

static struct sql_value level_of(const struct chunk_bytes *cells)
{
    if (cells->used == 0)
        return (struct sql_value){ .kind = SQL_NULL };
    return sql_number(chunk_cells_level(cells->data, cells->used));
}

/* Writes points [from, to) of `merged`, over `old` when that is given. */
static enum fire_status put_chunk(struct merge *merge, size_t from, size_t to,
                                  const struct found_chunk *old, struct fire_error *error)
{
    const int64_t *steps = merge->merged.steps + from;
    const double *values = merge->merged.values + from;
    const size_t count = to - from;
    struct sql_db *db = merge->history->db;
    const struct sql_value id = sql_number(merge->series->id);
    enum fire_status status;

    merge->raw.used = merge->fine.used = merge->coarse.used = 0;
    status = chunk_pack(steps, values, count, &merge->raw);
    if (status == FIRE_OK)
        status = chunk_pack_cells(steps, values, count, CHUNK_FINE_PART, &merge->fine);
    if (status == FIRE_OK)
        status = chunk_pack_cells(steps, values, count, CHUNK_COARSE_PART, &merge->coarse);
    if (status != FIRE_OK)
        return fire_fail_memory(error, count * sizeof(double));
    const struct sql_value coarse = sql_blob(merge->coarse.data, merge->coarse.used);
    const struct sql_value fine = sql_blob(merge->fine.data, merge->fine.used);
    const struct sql_value raw = sql_blob(merge->raw.data, merge->raw.used);

    if (old)
        return SQL_RUN(db, SQL_CHUNK_UPDATE, NULL, NULL, error, id, sql_number(old->start),
                       sql_number(old->born_ms), sql_number(steps[0]), sql_number(steps[count - 1]),
                       sql_number((int64_t)count), sql_number(merge->now_ms),
                       level_of(&merge->coarse), level_of(&merge->fine), coarse, fine, raw);
    return SQL_RUN(db, SQL_CHUNK_ADD, NULL, NULL, error, id, sql_number(steps[0]),
                   sql_number(steps[count - 1]), sql_number((int64_t)count),
                   sql_number(merge->state->row.last_seen_ms), sql_number(merge->now_ms),
                   level_of(&merge->coarse), level_of(&merge->fine), coarse, fine, raw);
}

/* Writes all of `merged`. What grows at its end is cut into full chunks, what was inserted into is
 * cut so that each has room for more. */
static enum fire_status put_all(struct merge *merge, const struct found_chunk *old, bool at_end,
                                struct fire_error *error)
{
    const size_t count = merge->merged.count;
    const size_t most =
        count <= CHUNK_POINTS_MAX || at_end ? CHUNK_POINTS_MAX : CHUNK_POINTS_MAX / 2;
    enum fire_status status = FIRE_OK;

    for (size_t from = 0; from < count && status == FIRE_OK; from += most) {
        const size_t to = count - from < most ? count : from + most;

        status = put_chunk(merge, from, to, from == 0 ? old : NULL, error);
    }
    return status;
}

/* Merges the points from `*from` on that belong to one chunk. */
static enum fire_status merge_one(struct merge *merge, const struct chunk_points *points,
                                  size_t *from, uint64_t *added, struct fire_error *error)
{
    struct found_chunk old = { 0 };
    const bool at_end = points->steps[*from] > merge->series->chunk_last;
    int64_t next_start;
    size_t to = *from;
    bool replaces;
    enum fire_status status = find(merge, points->steps[*from], &old, &next_start, error);

    if (status == FIRE_OK) {
        while (to < points->count && points->steps[to] < next_start)
            to++;
        /* A full one at the end, or one whose points are gone, stays as it is. */
        replaces = old.found && !old.thinned && !(at_end && old.points.count >= CHUNK_POINTS_MAX);
        if (!replaces)
            old.points.count = 0;
        status = merge_lists(&merge->merged, &old.points, points, *from, to, added);
        if (status != FIRE_OK)
            (void)fire_fail_memory(error, points->count * sizeof(double));
        else
            status = put_all(merge, replaces ? &old : NULL, at_end, error);
        *from = to;
    }
    chunk_points_release(&old.points);
    return status;
}

enum fire_status series_merge(struct history *history, const struct run_state *state,
                              struct series_state *series, const struct chunk_points *points,
                              int64_t now_ms, uint64_t *added, struct fire_error *error)
{
    struct merge merge = { .history = history, .state = state, .series = series, .now_ms = now_ms };
    enum fire_status status = FIRE_OK;

    for (size_t from = 0; from < points->count && status == FIRE_OK;)
        status = merge_one(&merge, points, &from, added, error);
    if (status == FIRE_OK && points->count > 0) {
        const int64_t last = points->steps[points->count - 1];

        if (last > series->chunk_last)
            series->chunk_last = last;
        if (last > series->last_step)
            series->last_step = last;
    }
    chunk_bytes_release(&merge.coarse);
    chunk_bytes_release(&merge.fine);
    chunk_bytes_release(&merge.raw);
    chunk_points_release(&merge.merged);
    return status;
}

/* --- logs ------------------------------------------------------------------------------------- */

struct folding {
    struct run_state *state;
    enum fire_status status;
};

static bool on_log(void *data, const struct sql_value *columns, size_t count)
{
    struct folding *folding = data;
    struct chunk_log log = { .at = columns[0].data };

    (void)count;
    log.end = log.at + columns[0].bytes;
    while (folding->status == FIRE_OK) {
        struct series_state *series;

        folding->status = chunk_log_next(&log);
        if (folding->status != FIRE_OK)
            break;
        series = run_series_by_id(folding->state, (int64_t)log.series);
        folding->status = series ? chunk_log_points(&log, &series->points) : FIRE_IO;
    }
    if (folding->status == FIRE_NOT_FOUND)
        folding->status = FIRE_OK;
    return folding->status == FIRE_OK;
}

enum fire_status run_fold(struct history *history, struct run_state *state, int64_t now_ms,
                          struct fire_error *error)
{
    const struct sql_value id = sql_number(state->row.id);
    struct folding folding = { .state = state };
    uint64_t added = 0;
    enum fire_status status;

    if (state->row.pending_rows == 0)
        return FIRE_OK;
    status = SQL_RUN(history->db, SQL_PENDING_LIST, on_log, &folding, error, id);
    if (status == FIRE_OK && folding.status != FIRE_OK)
        status = fire_fail(error, folding.status, "history", "a log of run \"%.60s\" is damaged",
                           state->run);
    for (size_t i = 0; i < state->series_count; i++) {
        struct series_state *series = &state->series[i];

        if (series->points.count > 0 && status == FIRE_OK)
            status = series_merge(history, state, series, &series->points, now_ms, &added, error);
        chunk_points_release(&series->points);
    }
    if (status == FIRE_OK)
        status = SQL_RUN(history->db, SQL_PENDING_DELETE, NULL, NULL, error, id);
    state->row.pending_points = 0;
    state->row.pending_rows = 0;
    return status;
}
