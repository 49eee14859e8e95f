/* history_query: points of one run, downsampled to what was asked for.
 *
 * Cells are 2^level steps and begin at multiples of that, so those of all layers line up and the
 * roll-ups that are kept can be used as they are. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "history_read.h"

#define RESOLUTION_DEFAULT 1000u
#define NAMES_BYTES        320u /* of allowed names in a message */

/* A series that is answered. */
struct chosen {
    size_t series; /* its place in the state */
    size_t layer;  /* of its layer in the state, which is the layers' order */
    const char *statistic;
};

struct query {
    struct history *history;
    const Fire__V1__QueryRequest *request;
    struct run_state run;
    struct chosen *chosen;
    size_t chosen_count;
    bool *wanted; /* by place in the state */
    struct read_range range;
    uint32_t resolution;
    bool all;        /* min and max too */
    bool some_cells; /* a series was downsampled */
    Fire__V1__QueryResponse *response;
};

/* --- which series ----------------------------------------------------------------------------- */

static bool named(char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* Series come in the order they were made, and so do layers: the next one is near the last. */
static size_t layer_place(const struct run_state *run, int64_t id, size_t near)
{
    for (size_t i = 0; i < run->layer_count; i++) {
        const size_t place = (near + i) % run->layer_count;

        if (run->layers[place].id == id)
            return place;
    }
    return SIZE_MAX;
}

/* Adds a name to a list in words while there is room. */
static void list_name(char text[NAMES_BYTES], const char *name)
{
    const size_t used = strlen(text);

    if (used + strlen(name) + 6 < NAMES_BYTES)
        snprintf(text + used, NAMES_BYTES - used, "%s%s", used ? ", " : "", name);
    else if (used + 6 < NAMES_BYTES && strcmp(text + used - 3, "...") != 0)
        strcat(text, ", ...");
}

static enum fire_status check_names(struct query *query, struct fire_error *error)
{
    const Fire__V1__QueryRequest *request = query->request;
    const struct run_state *run = &query->run;
    char known[NAMES_BYTES] = "";

    for (size_t i = 0; i < request->n_layers; i++) {
        if (run_layer(run, request->layers[i]))
            continue;
        for (size_t k = 0; k < run->layer_count; k++)
            if (run->layers[k].name[0])
                list_name(known, run->layers[k].name);
        return fire_fail(error, FIRE_NOT_FOUND, "layers",
                         "run \"%.60s\" has no layer \"%.60s\"; it has: %s", request->run,
                         request->layers[i], known[0] ? known : "none");
    }
    for (size_t i = 0; i < request->n_statistics; i++) {
        bool found = false;

        for (size_t k = 0; k < run->series_count && !found; k++)
            found = strcmp(run->series[k].statistic, request->statistics[i]) == 0;
        if (found)
            continue;
        for (size_t k = 0; k < run->series_count; k++)
            if (!strstr(known, run->series[k].statistic))
                list_name(known, run->series[k].statistic);
        return fire_fail(error, FIRE_NOT_FOUND, "statistics",
                         "run \"%.60s\" has no statistic \"%.60s\"; it has: %s", request->run,
                         request->statistics[i], known[0] ? known : "none");
    }
    return FIRE_OK;
}

static bool is_chosen(const Fire__V1__QueryRequest *request, const char *layer,
                      const char *statistic)
{
    const bool whole = layer[0] == '\0';

    if (request->n_statistics > 0 ? !named(request->statistics, request->n_statistics, statistic)
                                  : strcmp(statistic, HISTORY_TIME_STATISTIC) == 0)
        return false;
    if (whole && request->whole_run)
        return true;
    if (request->n_layers > 0)
        return named(request->layers, request->n_layers, layer);
    return !whole;
}

static int compare_chosen(const void *left, const void *right)
{
    const struct chosen *a = left, *b = right;

    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    return strcmp(a->statistic, b->statistic);
}

static enum fire_status choose(struct query *query, struct fire_error *error)
{
    const struct run_state *run = &query->run;
    size_t place = 0;

    query->chosen = calloc(run->series_count + 1, sizeof(*query->chosen));
    query->wanted = calloc(run->series_count + 1, sizeof(*query->wanted));
    if (!query->chosen || !query->wanted)
        return fire_fail_memory(error, run->series_count * sizeof(*query->chosen));
    for (size_t i = 0; i < run->series_count; i++) {
        const struct series_state *series = &run->series[i];

        place = layer_place(run, series->layer_id, place == SIZE_MAX ? 0 : place);
        if (place == SIZE_MAX ||
            !is_chosen(query->request, run->layers[place].name, series->statistic))
            continue;
        query->wanted[i] = true;
        query->chosen[query->chosen_count++] =
            (struct chosen){ .series = i, .layer = place, .statistic = series->statistic };
    }
    qsort(query->chosen, query->chosen_count, sizeof(*query->chosen), compare_chosen);
    return FIRE_OK;
}

/* --- how fine --------------------------------------------------------------------------------- */

static enum fire_status check_size(struct query *query, struct fire_error *error)
{
    const Fire__V1__QueryRequest *request = query->request;
    const int64_t last = request->step_max > 0 ? request->step_max : query->run.row.last_step;
    uint64_t cells;

    query->range.first = request->step_min > 0 ? request->step_min : 0;
    query->range.last = last > query->range.first ? last : query->range.first;
    query->resolution = request->resolution ? request->resolution : RESOLUTION_DEFAULT;
    query->range.level = chunk_level(query->range.first, query->range.last, query->resolution);
    query->all = request->aggregate == FIRE__V1__AGGREGATE__AGGREGATE_ALL;
    /* No series has more points than its run, or than there are steps. */
    cells = (uint64_t)query->range.last - (uint64_t)query->range.first + 1;
    if (cells == 0 || cells > query->resolution)
        cells = query->resolution;
    if (query->chosen_count == 0 || cells <= HISTORY_CELLS_MAX / query->chosen_count ||
        (uint64_t)query->run.row.points <= HISTORY_CELLS_MAX)
        return FIRE_OK;
    cells = HISTORY_CELLS_MAX / query->chosen_count;
    if (cells == 0)
        return fire_fail(error, FIRE_BAD_REQUEST, "layers",
                         "%zu series are asked for, and an answer has at most %u cells; name fewer "
                         "layers or statistics",
                         query->chosen_count, HISTORY_CELLS_MAX);
    return fire_fail(error, FIRE_BAD_REQUEST, "resolution",
                     "%zu series of up to %u cells are more than %u; ask with a resolution of at "
                     "most %" PRIu64 ", or for fewer layers or statistics",
                     query->chosen_count, query->resolution, HISTORY_CELLS_MAX, cells);
}

/* --- cells ------------------------------------------------------------------------------------ */

static bool cells_allocate(Fire__V1__Cells *message, size_t count, bool all, bool counted)
{
    message->steps = malloc(count * sizeof(*message->steps));
    message->mean = malloc(count * sizeof(*message->mean));
    if (all) {
        message->min = malloc(count * sizeof(*message->min));
        message->max = malloc(count * sizeof(*message->max));
    }
    if (counted)
        message->count = malloc(count * sizeof(*message->count));
    return message->steps && message->mean && (!all || (message->min && message->max)) &&
           (!counted || message->count);
}

static enum fire_status cells_fill(Fire__V1__Cells *message, const struct chunk_cells *cells,
                                   bool all)
{
    bool counted = false;

    for (size_t i = 0; i < cells->count && !counted; i++)
        counted = cells->cells[i].count > 1;
    if (cells->count == 0)
        return FIRE_OK;
    if (!cells_allocate(message, cells->count, all, counted))
        return FIRE_NO_MEMORY;
    for (size_t i = 0; i < cells->count; i++) {
        const struct chunk_cell *cell = &cells->cells[i];

        message->steps[i] = cell->step;
        message->mean[i] = cell->mean;
        if (all) {
            message->min[i] = cell->minimum;
            message->max[i] = cell->maximum;
        }
        if (counted)
            message->count[i] = (uint32_t)cell->count;
    }
    message->n_steps = message->n_mean = cells->count;
    message->n_min = message->n_max = all ? cells->count : 0;
    message->n_count = counted ? cells->count : 0;
    return FIRE_OK;
}

/* A series of fewer points than cells were asked for comes as it is. */
static bool comes_as_it_is(const struct chunk_cells *cells, uint32_t resolution)
{
    uint64_t points = 0;
    bool merged = false;

    for (size_t i = 0; i < cells->count; i++) {
        points += cells->cells[i].count;
        merged = merged || cells->cells[i].count > 1;
    }
    return merged && points <= resolution;
}

static enum fire_status read_series(struct query *query, const struct series_state *series,
                                    struct chunk_cells *cells, struct fire_error *error)
{
    struct read_range raw = query->range;
    enum fire_status status;

    raw.level = READ_LEVEL_RAW;
    cells->count = 0;
    cells->level = (uint32_t)query->range.level;
    status =
        read_cells(query->history, &query->run.row, series->id,
                   query->range.level > 0 ? &query->range : &raw, &series->points, cells, error);
    if (status == FIRE_OK && comes_as_it_is(cells, query->resolution)) {
        cells->count = 0;
        cells->level = 0;
        status = read_cells(query->history, &query->run.row, series->id, &raw, &series->points,
                            cells, error);
    } else if (status == FIRE_OK && cells->level > 0 && cells->count > 0) {
        query->some_cells = true;
    }
    return status;
}

static enum fire_status add_series(struct query *query, const struct chosen *chosen,
                                   struct chunk_cells *cells, struct fire_error *error)
{
    Fire__V1__Cells *message;
    enum fire_status status = read_series(query, &query->run.series[chosen->series], cells, error);

    if (status != FIRE_OK || cells->count == 0)
        return status;
    message = malloc(sizeof(*message));
    if (!message)
        return read_fail(error, FIRE_NO_MEMORY);
    fire__v1__cells__init(message);
    query->response->series[query->response->n_series++] = message;
    message->layer = strdup(query->run.layers[chosen->layer].name);
    message->statistic = strdup(chosen->statistic);
    status = message->layer && message->statistic ? cells_fill(message, cells, query->all)
                                                  : FIRE_NO_MEMORY;
    return status == FIRE_OK ? FIRE_OK : read_fail(error, status);
}

static enum fire_status read_all(struct query *query, const char *tenant, struct fire_error *error)
{
    Fire__V1__QueryResponse *response = query->response;
    struct chunk_cells cells = { 0 };
    enum fire_status status;

    response->series = calloc(query->chosen_count + 1, sizeof(*response->series));
    if (!response->series)
        return read_fail(error, FIRE_NO_MEMORY);
    status = read_logs(query->history, &query->run, query->wanted, error);
    for (size_t i = 0; i < query->chosen_count && status == FIRE_OK; i++)
        status = add_series(query, &query->chosen[i], &cells, error);
    chunk_cells_release(&cells);
    response->cell_steps = query->some_cells ? (int64_t)1 << query->range.level : 1;
    if (status == FIRE_OK)
        status = read_events(query->history, tenant, query->request->run, &query->range,
                             &response->n_events, &response->events, error);
    return status;
}

enum fire_status history_query(struct history *history, const char *tenant,
                               const Fire__V1__QueryRequest *request,
                               Fire__V1__QueryResponse **response, struct fire_error *error)
{
    struct query query = { .history = history, .request = request };
    enum fire_status status = read_begin(history, error);

    *response = NULL;
    if (status == FIRE_OK)
        status = run_read(history, tenant, request->run, &query.run, error);
    if (status == FIRE_OK)
        status = check_names(&query, error);
    if (status == FIRE_OK)
        status = choose(&query, error);
    if (status == FIRE_OK)
        status = check_size(&query, error);
    if (status == FIRE_OK) {
        query.response = malloc(sizeof(*query.response));
        if (query.response)
            fire__v1__query_response__init(query.response);
        status =
            query.response ? read_all(&query, tenant, error) : read_fail(error, FIRE_NO_MEMORY);
    }
    read_end(history);
    if (status == FIRE_OK)
        *response = query.response;
    else if (query.response)
        fire__v1__query_response__free_unpacked(query.response, NULL);
    run_state_release(&query.run);
    free(query.chosen);
    free(query.wanted);
    return status;
}
