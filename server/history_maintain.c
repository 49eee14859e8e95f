/* history_maintain: upkeep in bounded pieces, each a transaction: logs of runs that stand still are
 * folded, old chunks lose their points and keep their roll-ups, old runs and events go. */
#include <stdlib.h>
#include <string.h>

#include "history_run.h"

#define FOLD_AFTER_MS  60000
#define RUNS_A_PIECE   4u
#define CHUNKS_A_PIECE 256u
#define MS_PER_DAY     86400000

/* --- folding ---------------------------------------------------------------------------------- */

struct run_name {
    char *tenant;
    char *run;
};

struct names {
    struct run_name list[RUNS_A_PIECE];
    size_t count;
};

static bool on_name(void *data, const struct sql_value *columns, size_t count)
{
    struct names *names = data;
    struct run_name *name = &names->list[names->count];

    (void)count;
    if (names->count == RUNS_A_PIECE)
        return false;
    name->tenant = strdup(columns[0].data);
    name->run = strdup(columns[1].data);
    names->count++;
    return name->tenant && name->run;
}

static enum fire_status fold_one(struct history *history, const struct run_name *name,
                                 int64_t now_ms, struct fire_error *error)
{
    struct run_state *state = NULL;
    enum fire_status status;

    if (!name->tenant || !name->run)
        return fire_fail_memory(error, 1);
    status = run_lock(history, name->tenant, name->run, &state, error);
    if (status == FIRE_NOT_FOUND)
        return FIRE_OK;
    if (status == FIRE_OK)
        status = run_fold(history, state, now_ms, error);
    if (status == FIRE_OK)
        status = run_save(history, state, 0, error);
    return status;
}

static enum fire_status fold_old(struct history *history, const struct history_upkeep *upkeep,
                                 bool *more, struct fire_error *error)
{
    struct names names = { 0 };
    enum fire_status status =
        SQL_RUN(history->db, SQL_RUN_TO_FOLD, on_name, &names, error,
                sql_number(upkeep->now_ms - FOLD_AFTER_MS), sql_number(RUNS_A_PIECE));

    for (size_t i = 0; i < names.count; i++) {
        if (status == FIRE_OK)
            status = fold_one(history, &names.list[i], upkeep->now_ms, error);
        free(names.list[i].tenant);
        free(names.list[i].run);
    }
    *more = *more || names.count == RUNS_A_PIECE;
    return status;
}

/* --- downsampling ----------------------------------------------------------------------------- */

struct old_chunk {
    int64_t series, start, last, born_ms, run_id;
    int64_t points, cells;
};

struct old_chunks {
    struct old_chunk list[CHUNKS_A_PIECE];
    size_t count;
};

static bool on_old_chunk(void *data, const struct sql_value *columns, size_t count)
{
    struct old_chunks *chunks = data;

    (void)count;
    if (chunks->count == CHUNKS_A_PIECE)
        return false;
    chunks->list[chunks->count++] = (struct old_chunk){
        .series = columns[0].number,
        .start = columns[1].number,
        .last = columns[2].number,
        .born_ms = columns[3].number,
        .points = columns[4].number,
        .cells = (int64_t)chunk_cells_count(columns[5].data, columns[5].bytes),
        .run_id = columns[6].number,
    };
    return true;
}

static enum fire_status thin_one(struct history *history, const struct old_chunk *chunk,
                                 struct fire_error *error)
{
    enum fire_status status =
        SQL_RUN(history->db, SQL_CHUNK_THIN, NULL, NULL, error, sql_number(chunk->series),
                sql_number(chunk->start), sql_number(chunk->born_ms), sql_number(chunk->cells));

    if (status == FIRE_OK)
        status = SQL_RUN(history->db, SQL_SERIES_SEAL, NULL, NULL, error, sql_number(chunk->series),
                         sql_number(chunk->last));
    if (status == FIRE_OK)
        status = SQL_RUN(history->db, SQL_RUN_POINTS, NULL, NULL, error, sql_number(chunk->run_id),
                         sql_number(chunk->points - chunk->cells));
    return status;
}

static enum fire_status thin_old(struct history *history, const struct history_upkeep *upkeep,
                                 bool *more, struct fire_error *error)
{
    struct old_chunks *chunks;
    enum fire_status status;

    if (upkeep->downsample_days == 0)
        return FIRE_OK;
    chunks = calloc(1, sizeof(*chunks));
    if (!chunks)
        return fire_fail_memory(error, sizeof(*chunks));
    status = SQL_RUN(history->db, SQL_CHUNK_TO_THIN, on_old_chunk, chunks, error,
                     sql_number(upkeep->now_ms - (int64_t)upkeep->downsample_days * MS_PER_DAY),
                     sql_number(CHUNKS_A_PIECE));
    for (size_t i = 0; i < chunks->count && status == FIRE_OK; i++)
        status = thin_one(history, &chunks->list[i], error);
    *more = *more || chunks->count == CHUNKS_A_PIECE;
    free(chunks);
    return status;
}

/* --- retention -------------------------------------------------------------------------------- */

struct ids {
    int64_t list[RUNS_A_PIECE];
    size_t count;
};

static bool on_old_run(void *data, const struct sql_value *columns, size_t count)
{
    struct ids *ids = data;

    (void)count;
    if (ids->count == RUNS_A_PIECE)
        return false;
    ids->list[ids->count++] = columns[0].number;
    return true;
}

static enum fire_status delete_run(struct history *history, int64_t id, struct fire_error *error)
{
    static const enum sql_statement statements[] = { SQL_PENDING_DELETE, SQL_CHUNK_DELETE,
                                                     SQL_SERIES_DELETE,  SQL_LAYER_DELETE,
                                                     SQL_ALERT_DELETE,   SQL_RUN_DELETE };
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]) && status == FIRE_OK; i++)
        status = SQL_RUN(history->db, statements[i], NULL, NULL, error, sql_number(id));
    return status;
}

static enum fire_status delete_old(struct history *history, const struct history_upkeep *upkeep,
                                   bool *more, struct fire_error *error)
{
    const int64_t before = upkeep->now_ms - (int64_t)upkeep->retention_days * MS_PER_DAY;
    struct ids ids = { 0 };
    enum fire_status status;

    if (upkeep->retention_days == 0)
        return FIRE_OK;
    status = SQL_RUN(history->db, SQL_EVENT_OLD, NULL, NULL, error, sql_number(before));
    if (status == FIRE_OK)
        status = SQL_RUN(history->db, SQL_RUN_OLD, on_old_run, &ids, error, sql_number(before),
                         sql_number(RUNS_A_PIECE));
    for (size_t i = 0; i < ids.count && status == FIRE_OK; i++)
        status = delete_run(history, ids.list[i], error);
    if (status == FIRE_OK && ids.count < RUNS_A_PIECE)
        status = history->db->backend->drop_before(history->db, before, error);
    *more = *more || ids.count == RUNS_A_PIECE;
    return status;
}

enum fire_status history_maintain(struct history *history, const struct history_upkeep *upkeep,
                                  bool *more, struct fire_error *error)
{
    static enum fire_status (*const pieces[])(struct history *, const struct history_upkeep *,
                                              bool *, struct fire_error *) = { fold_old, thin_old,
                                                                               delete_old };
    enum fire_status status = FIRE_OK;

    *more = false;
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]) && status == FIRE_OK; i++) {
        status = run_begin(history, error);
        if (status == FIRE_OK)
            status = pieces[i](history, upkeep, more, error);
        status = run_end(history, status, error);
    }
    return status;
}

/* --- what others left ------------------------------------------------------------------------- */

struct taking {
    void (*each)(void *data, const struct history_alert *alert);
    void *data;
    const char *rule; /* that waits for silence; NULL: the row has its rule, and it fires */
};

static bool on_alert(void *data, const struct sql_value *columns, size_t count)
{
    const struct taking *taking = data;

    (void)count;
    taking->each(taking->data,
                 &(struct history_alert){ .tenant = columns[0].data,
                                          .run = columns[1].data,
                                          .layer = columns[2].data,
                                          .rule = taking->rule ? taking->rule : columns[3].data,
                                          .firing = !taking->rule });
    return true;
}

static enum fire_status take_over(struct history *history, const struct history_silence *silences,
                                  size_t count, size_t count_max, struct taking *taking,
                                  struct fire_error *error)
{
    const struct sql_value owner = sql_number(history->owner);
    const struct sql_value most = sql_number((int64_t)count_max);
    int64_t span_ms = 0;
    enum fire_status status;

    for (size_t i = 0; i < count; i++)
        span_ms = silences[i].span_ms > span_ms ? silences[i].span_ms : span_ms;
    status = SQL_RUN(history->db, SQL_RUN_ADOPT, NULL, NULL, error, owner, sql_number(span_ms));
    if (status == FIRE_OK)
        status = SQL_RUN(history->db, SQL_ALERT_LIST, on_alert, taking, error, owner, most);
    for (size_t i = 0; i < count && status == FIRE_OK; i++) {
        taking->rule = silences[i].rule;
        status = SQL_RUN(history->db, SQL_SERIES_RECENT, on_alert, taking, error, owner,
                         sql_text(silences[i].statistic), sql_number(silences[i].span_ms), most);
    }
    return status;
}

enum fire_status history_take_over(struct history *history, const struct history_silence *silences,
                                   size_t count, size_t count_max,
                                   void (*each)(void *data, const struct history_alert *alert),
                                   void *data, struct fire_error *error)
{
    struct taking taking = { .each = each, .data = data };
    enum fire_status status = run_begin(history, error);

    if (status == FIRE_OK)
        status = take_over(history, silences, count, count_max, &taking, error);
    return run_end(history, status, error);
}
