/* history_run: rows of runs, and what the writer remembers of them.
 *
 * A remembered run is used as long as its row has the version it had: another daemon on the same
 * database changes that with each write. After a rollback everything is forgotten. */
#include "history_run.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_FIRST 64u

void run_row_read(const struct sql_value *columns, struct run_row *row)
{
    row->id = columns[0].number;
    row->first_seen_ms = columns[3].number;
    row->last_seen_ms = columns[4].number;
    row->first_step = columns[5].number;
    row->last_step = columns[6].number;
    row->points = columns[7].number;
    row->layers = columns[8].number;
    row->pending_points = columns[9].number;
    row->pending_rows = columns[10].number;
    row->version = columns[11].number;
    row->alerts_firing = columns[13].number;
}

Fire__V1__RunInfo *run_info_read(const struct sql_value *column)
{
    if (column->kind != SQL_BLOB)
        return NULL;
    return fire__v1__run_info__unpack(NULL, column->bytes, column->data);
}

Fire__V1__Event *event_read(const struct sql_value *column)
{
    if (column->kind != SQL_BLOB)
        return NULL;
    return fire__v1__event__unpack(NULL, column->bytes, column->data);
}

/* --- names ------------------------------------------------------------------------------------ */

static uint64_t name_hash(int64_t owner, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u ^ (uint64_t)owner * 0x9e3779b97f4a7c15u;

    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

static bool layer_is(const struct run_state *state, size_t place, int64_t owner, const char *name)
{
    (void)owner;
    return strcmp(state->layers[place].name, name) == 0;
}

static bool series_is(const struct run_state *state, size_t place, int64_t owner, const char *name)
{
    const struct series_state *series = &state->series[place];

    return series->layer_id == owner && strcmp(series->statistic, name) == 0;
}

typedef bool (*place_is)(const struct run_state *state, size_t place, int64_t owner,
                         const char *name);

/* Position of the name, or SIZE_MAX. */
static size_t table_find(const struct name_table *table, const struct run_state *state, place_is is,
                         int64_t owner, const char *name)
{
    if (table->room == 0)
        return SIZE_MAX;
    for (size_t at = name_hash(owner, name) & (table->room - 1); table->places[at];
         at = (at + 1) & (table->room - 1))
        if (is(state, table->places[at] - 1, owner, name))
            return table->places[at] - 1;
    return SIZE_MAX;
}

static void table_set(struct name_table *table, uint64_t hash, size_t place)
{
    size_t at = hash & (table->room - 1);

    while (table->places[at])
        at = (at + 1) & (table->room - 1);
    table->places[at] = (uint32_t)place + 1;
    table->used++;
}

/* Makes room for one more; true when the table was emptied and all must be set again. */
static bool table_grow(struct name_table *table, bool *failed)
{
    const size_t room = table->room ? 2 * table->room : TABLE_FIRST;
    uint32_t *places;

    *failed = false;
    if (table->room > 0 && table->used < table->room / 2)
        return false;
    places = calloc(room, sizeof(*places));
    *failed = !places;
    if (!places)
        return false;
    free(table->places);
    *table = (struct name_table){ .places = places, .room = room };
    return true;
}

struct layer_state *run_layer(const struct run_state *state, const char *name)
{
    const size_t place = table_find(&state->layer_names, state, layer_is, 0, name);

    return place == SIZE_MAX ? NULL : &state->layers[place];
}

struct series_state *run_series(const struct run_state *state, int64_t layer_id,
                                const char *statistic)
{
    const size_t place = table_find(&state->series_names, state, series_is, layer_id, statistic);

    return place == SIZE_MAX ? NULL : &state->series[place];
}

struct series_state *run_series_by_id(const struct run_state *state, int64_t id)
{
    size_t low = 0, high = state->series_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (state->series[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < state->series_count && state->series[low].id == id ? &state->series[low] : NULL;
}

static bool list_grow(void **list, size_t *room, size_t count, size_t bytes)
{
    const size_t wanted = *room ? 2 * *room : TABLE_FIRST;
    void *grown;

    if (count < *room)
        return true;
    grown = realloc(*list, wanted * bytes);
    if (!grown)
        return false;
    *list = grown;
    *room = wanted;
    return true;
}

struct layer_state *run_layer_put(struct run_state *state, int64_t id, const char *name)
{
    struct layer_state *layer;
    bool failed;

    if (!list_grow((void **)&state->layers, &state->layer_room, state->layer_count,
                   sizeof(*state->layers)))
        return NULL;
    if (table_grow(&state->layer_names, &failed))
        for (size_t i = 0; i < state->layer_count; i++)
            table_set(&state->layer_names, name_hash(0, state->layers[i].name), i);
    if (failed)
        return NULL;
    layer = &state->layers[state->layer_count];
    *layer = (struct layer_state){ .id = id, .name = strdup(name) };
    if (!layer->name)
        return NULL;
    table_set(&state->layer_names, name_hash(0, name), state->layer_count++);
    return layer;
}

struct series_state *run_series_put(struct run_state *state, int64_t id, int64_t layer_id,
                                    const char *statistic)
{
    struct series_state *series;
    bool failed;

    FIRE_ASSERT(state->series_count == 0 || state->series[state->series_count - 1].id < id);
    if (!list_grow((void **)&state->series, &state->series_room, state->series_count,
                   sizeof(*state->series)))
        return NULL;
    if (table_grow(&state->series_names, &failed))
        for (size_t i = 0; i < state->series_count; i++)
            table_set(&state->series_names,
                      name_hash(state->series[i].layer_id, state->series[i].statistic), i);
    if (failed)
        return NULL;
    series = &state->series[state->series_count];
    *series = (struct series_state){ .id = id,
                                     .layer_id = layer_id,
                                     .statistic = strdup(statistic),
                                     .chunk_last = -1,
                                     .last_step = -1,
                                     .sealed_step = -1 };
    if (!series->statistic)
        return NULL;
    table_set(&state->series_names, name_hash(layer_id, statistic), state->series_count++);
    return series;
}

bool layer_shape_set(struct layer_state *layer, const uint64_t *shape, size_t count)
{
    uint64_t *copy = malloc(count * sizeof(*copy) + 1);

    if (!copy)
        return false;
    if (count > 0)
        memcpy(copy, shape, count * sizeof(*copy));
    free(layer->shape);
    layer->shape = copy;
    layer->shape_count = count;
    return true;
}

/* --- remembering ------------------------------------------------------------------------------ */

void run_state_release(struct run_state *state)
{
    for (size_t i = 0; i < state->layer_count; i++) {
        free(state->layers[i].name);
        free(state->layers[i].shape);
    }
    for (size_t i = 0; i < state->series_count; i++) {
        free(state->series[i].statistic);
        chunk_points_release(&state->series[i].points);
    }
    free(state->layers);
    free(state->series);
    free(state->layer_names.places);
    free(state->series_names.places);
    if (state->info)
        fire__v1__run_info__free_unpacked(state->info, NULL);
    state->info = NULL;
    state->layers = NULL;
    state->series = NULL;
    state->layer_names = (struct name_table){ 0 };
    state->series_names = (struct name_table){ 0 };
    state->layer_count = state->layer_room = 0;
    state->series_count = state->series_room = 0;
}

static void state_free(struct run_state *state)
{
    run_state_release(state);
    free(state->tenant);
    free(state->run);
    free(state);
}

void run_forget_all(struct history *history)
{
    while (history->runs) {
        struct run_state *state = history->runs;

        history->runs = state->next;
        state_free(state);
    }
    history->run_count = 0;
}

/* The last ones go when there are too many runs, or too many series in them. */
static void forget_some(struct history *history)
{
    struct run_state **place = &history->runs;
    size_t runs = 0, series = 0;

    while (*place) {
        struct run_state *state = *place;

        series += state->series_count;
        if (runs > 0 && (runs >= RUNS_REMEMBERED_MAX || series > SERIES_REMEMBERED_MAX)) {
            *place = state->next;
            history->run_count--;
            state_free(state);
            continue;
        }
        runs++;
        place = &state->next;
    }
}

static struct run_state *remembered(struct history *history, const char *tenant, const char *run)
{
    for (struct run_state **place = &history->runs; *place; place = &(*place)->next) {
        struct run_state *state = *place;

        if (strcmp(state->run, run) == 0 && strcmp(state->tenant, tenant) == 0) {
            *place = state->next;
            state->next = history->runs;
            history->runs = state;
            return state;
        }
    }
    return NULL;
}

static struct run_state *remember(struct history *history, const char *tenant, const char *run)
{
    struct run_state *state = calloc(1, sizeof(*state));

    if (!state)
        return NULL;
    state->tenant = strdup(tenant);
    state->run = strdup(run);
    if (!state->tenant || !state->run) {
        state_free(state);
        return NULL;
    }
    state->row.version = -1;
    state->next = history->runs;
    history->runs = state;
    history->run_count++;
    return state;
}

/* --- loading ---------------------------------------------------------------------------------- */

struct loading {
    struct run_state *state;
    struct run_row row;
    Fire__V1__RunInfo *info;
    bool found;
    enum fire_status status;
};

static bool on_run(void *data, const struct sql_value *columns, size_t count)
{
    struct loading *loading = data;

    (void)count;
    run_row_read(columns, &loading->row);
    loading->info = run_info_read(&columns[2]);
    loading->found = true;
    return false;
}

static bool on_layer(void *data, const struct sql_value *columns, size_t count)
{
    struct loading *loading = data;
    struct layer_state *layer = run_layer_put(loading->state, columns[0].number, columns[1].data);

    (void)count;
    if (!layer || !layer_shape_set(layer, columns[3].data, columns[3].bytes / sizeof(uint64_t)))
        loading->status = FIRE_NO_MEMORY;
    return loading->status == FIRE_OK;
}

static bool on_series(void *data, const struct sql_value *columns, size_t count)
{
    struct loading *loading = data;
    struct series_state *series =
        run_series_put(loading->state, columns[0].number, columns[1].number, columns[2].data);

    (void)count;
    if (series)
        series->sealed_step = columns[3].number;
    else
        loading->status = FIRE_NO_MEMORY;
    return loading->status == FIRE_OK;
}

static bool on_tail(void *data, const struct sql_value *columns, size_t count)
{
    struct loading *loading = data;
    struct series_state *series = run_series_by_id(loading->state, columns[0].number);

    (void)count;
    if (series)
        series->chunk_last = series->last_step = columns[1].number;
    return true;
}

static bool on_log(void *data, const struct sql_value *columns, size_t count)
{
    struct loading *loading = data;
    struct chunk_points points = { 0 };
    struct chunk_log log = { .at = columns[0].data };

    (void)count;
    log.end = log.at + columns[0].bytes;
    while (loading->status == FIRE_OK) {
        struct series_state *series;

        loading->status = chunk_log_next(&log);
        if (loading->status != FIRE_OK)
            break;
        series = run_series_by_id(loading->state, (int64_t)log.series);
        points.count = 0;
        loading->status = chunk_log_points(&log, &points);
        if (loading->status == FIRE_OK && series)
            series->last_step = points.steps[points.count - 1];
    }
    if (loading->status == FIRE_NOT_FOUND)
        loading->status = FIRE_OK;
    chunk_points_release(&points);
    return loading->status == FIRE_OK;
}

static enum fire_status load(struct history *history, struct run_state *state, bool with_steps,
                             struct fire_error *error)
{
    static const struct {
        enum sql_statement statement;
        sql_row row;
    } parts[] = {
        { SQL_LAYER_LIST, on_layer },
        { SQL_SERIES_LIST, on_series },
        { SQL_TAIL_LIST, on_tail },
        { SQL_PENDING_LIST, on_log },
    };
    struct loading loading = { .state = state };
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; i < (with_steps ? 4u : 2u) && status == FIRE_OK; i++)
        status = SQL_RUN(history->db, parts[i].statement, parts[i].row, &loading, error,
                         sql_number(state->row.id));
    if (status == FIRE_OK && loading.status != FIRE_OK)
        status = fire_fail(error, loading.status, "history",
                           "what is stored of run \"%.60s\" cannot be read", state->run);
    return status;
}

enum fire_status run_read(struct history *history, const char *tenant, const char *run,
                          struct run_state *state, struct fire_error *error)
{
    struct loading loading = { 0 };
    enum fire_status status = SQL_RUN(history->db, SQL_RUN_FIND, on_run, &loading, error,
                                      sql_text(tenant), sql_text(run));

    if (status != FIRE_OK)
        return status;
    if (!loading.found)
        return fire_fail(error, FIRE_NOT_FOUND, "run",
                         "there is no run \"%.128s\"; ListRuns names those there are", run);
    state->row = loading.row;
    state->info = loading.info;
    state->run = (char *)run;
    return load(history, state, false, error);
}

enum fire_status run_begin(struct history *history, struct fire_error *error)
{
    history->transactions++;
    return history->db->backend->begin(history->db, error);
}

enum fire_status run_end(struct history *history, enum fire_status status, struct fire_error *error)
{
    const struct sql_backend *backend = history->db->backend;

    if (status == FIRE_OK)
        status = backend->commit(history->db, error);
    if (status != FIRE_OK) {
        run_forget_all(history);
        backend->rollback(history->db);
    }
    return status;
}

enum fire_status run_lock(struct history *history, const char *tenant, const char *run,
                          struct run_state **out, struct fire_error *error)
{
    struct run_state *state = remembered(history, tenant, run);
    struct loading loading = { 0 };
    enum fire_status status;

    *out = NULL;
    if (state && state->locked == history->transactions) {
        *out = state;
        return FIRE_OK;
    }
    status = SQL_RUN(history->db, SQL_RUN_LOCK, on_run, &loading, error, sql_text(tenant),
                     sql_text(run));
    if (status != FIRE_OK || !loading.found)
        return status != FIRE_OK ? status : FIRE_NOT_FOUND;
    if (!state)
        state = remember(history, tenant, run);
    if (!state) {
        if (loading.info)
            fire__v1__run_info__free_unpacked(loading.info, NULL);
        return fire_fail_memory(error, sizeof(*state));
    }
    if (state->row.version == loading.row.version && state->row.id == loading.row.id) {
        if (loading.info)
            fire__v1__run_info__free_unpacked(loading.info, NULL);
    } else {
        run_state_release(state);
        state->info = loading.info;
        state->row = loading.row;
        status = load(history, state, true, error);
        if (status != FIRE_OK)
            return status;
        forget_some(history);
    }
    state->locked = history->transactions;
    *out = state;
    return FIRE_OK;
}

static bool on_count(void *data, const struct sql_value *columns, size_t count)
{
    (void)count;
    *(int64_t *)data = columns[0].number;
    return false;
}

enum fire_status run_lock_or_add(struct history *history, const char *tenant, const char *run,
                                 int64_t now_ms, struct run_state **state, struct fire_error *error)
{
    enum fire_status status = run_lock(history, tenant, run, state, error);
    int64_t runs = 0;

    if (status != FIRE_NOT_FOUND)
        return status;
    status = SQL_RUN(history->db, SQL_RUN_COUNT, on_count, &runs, error, sql_text(tenant));
    if (status != FIRE_OK)
        return status;
    if (runs >= HISTORY_RUNS_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "run",
                         "tenant %.63s has %" PRId64
                         " runs, the most there may be; use runs that exist, or let old ones go "
                         "with history_retention_days",
                         tenant, runs);
    status = SQL_RUN(history->db, SQL_RUN_ADD, NULL, NULL, error, sql_text(tenant), sql_text(run),
                     sql_text(run), sql_number(now_ms));
    if (status == FIRE_OK)
        status = run_lock(history, tenant, run, state, error);
    if (status == FIRE_NOT_FOUND)
        status =
            fire_fail(error, FIRE_IO, "history", "run \"%.60s\" went away while it was made", run);
    return status;
}

enum fire_status run_save(struct history *history, struct run_state *state, int64_t owner,
                          struct fire_error *error)
{
    struct run_row *row = &state->row;

    row->version++;
    return SQL_RUN(history->db, SQL_RUN_UPDATE, NULL, NULL, error, sql_number(row->id),
                   sql_number(row->last_seen_ms), sql_number(row->first_step),
                   sql_number(row->last_step), sql_number(row->points), sql_number(row->layers),
                   sql_number(row->pending_points), sql_number(row->pending_rows),
                   sql_number(row->version), sql_number(owner));
}
