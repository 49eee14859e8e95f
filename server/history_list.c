/* history_list: runs for those who ask, the last seen first.
 *
 * What must be read from points (the layer that grew most, the sparkline) is remembered with the
 * version of the run's row, so a list of runs that stand still costs one query. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "history_read.h"

#define LIST_DEFAULT  200u
#define PATTERN_BYTES 1024u
#define SUMMARIES_MAX 2048u
#define PAGE_BYTES    64u

/* What is remembered of a run. */
struct run_summary {
    struct run_summary *next; /* most recently used first */
    int64_t run_id;
    int64_t version;
    char *worst_layer;
    double spark[HISTORY_SPARK_MAX];
    size_t spark_count;
    char **statistics;
    size_t statistic_count;
};

static void summary_empty(struct run_summary *summary)
{
    for (size_t i = 0; i < summary->statistic_count; i++)
        free(summary->statistics[i]);
    free(summary->statistics);
    free(summary->worst_layer);
    summary->statistics = NULL;
    summary->worst_layer = NULL;
    summary->statistic_count = 0;
    summary->spark_count = 0;
    summary->version = -1;
}

void run_summaries_release(struct history *history)
{
    while (history->summaries) {
        struct run_summary *summary = history->summaries;

        history->summaries = summary->next;
        summary_empty(summary);
        free(summary);
    }
    history->summary_count = 0;
}

/* --- what a summary says ---------------------------------------------------------------------- */

/* Each name once; neighbours among a run's series mostly repeat the same few. */
static enum fire_status collect_statistics(const struct run_state *run, struct run_summary *summary)
{
    for (size_t i = 0; i < run->series_count; i++) {
        const char *name = run->series[i].statistic;
        char **grown;
        size_t at = 0;

        while (at < summary->statistic_count && strcmp(summary->statistics[at], name) != 0)
            at++;
        if (at < summary->statistic_count || strcmp(name, HISTORY_TIME_STATISTIC) == 0)
            continue;
        grown = realloc(summary->statistics, (at + 1) * sizeof(*grown));
        if (!grown)
            return FIRE_NO_MEMORY;
        summary->statistics = grown;
        grown[at] = strdup(name);
        if (!grown[at])
            return FIRE_NO_MEMORY;
        summary->statistic_count++;
    }
    return FIRE_OK;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* Adds one layer to the sparkline: in cells where it has no point, its last value. */
static void spark_add(struct run_summary *summary, const struct chunk_cells *cells, int64_t first,
                      bool *any)
{
    double value = 0;
    size_t at = 0;

    for (size_t i = 0; i < summary->spark_count; i++) {
        double sum = 0, count = 0;

        while (at < cells->count &&
               (size_t)((cells->cells[at].step >> cells->level) - (first >> cells->level)) <= i) {
            sum += cells->cells[at].mean * (double)cells->cells[at].count;
            count += (double)cells->cells[at].count;
            at++;
        }
        if (count > 0)
            value = sum / count;
        summary->spark[i] += value;
        any[i] = any[i] || count > 0;
    }
}

/* Leaves out cells in which no layer had a point. */
static void spark_close(struct run_summary *summary, const bool *any)
{
    size_t kept = 0;

    for (size_t i = 0; i < summary->spark_count; i++)
        if (any[i] && isfinite(summary->spark[i]))
            summary->spark[kept++] = summary->spark[i];
    summary->spark_count = kept;
}

/* Growth of a layer against its own start; not above 1 when it has not grown. */
static double growth_of(const struct chunk_cells *cells)
{
    const double first = cells->count > 1 ? cells->cells[0].mean : 0;

    return first > 0 ? cells->cells[cells->count - 1].mean / first : 0;
}

static enum fire_status summarize_growth(struct history *history, struct run_state *run,
                                         struct run_summary *summary, struct fire_error *error)
{
    const struct run_row *row = &run->row;
    const struct read_range range = { row->first_step, row->last_step, READ_LEVEL_ANY };
    bool *wanted = calloc(run->series_count + 1, sizeof(*wanted));
    bool any[HISTORY_SPARK_MAX] = { false };
    struct chunk_cells cells = { 0 };
    double most = 1;
    enum fire_status status;

    if (!wanted)
        return read_fail(error, FIRE_NO_MEMORY);
    for (size_t i = 0; i < run->series_count; i++)
        wanted[i] = strcmp(run->series[i].statistic, HISTORY_GROWTH_STATISTIC) == 0;
    cells.level = chunk_level(row->first_step, row->last_step, HISTORY_SPARK_MAX);
    memset(summary->spark, 0, sizeof(summary->spark));
    summary->spark_count =
        (size_t)((row->last_step >> cells.level) - (row->first_step >> cells.level)) + 1;
    status = read_logs(history, run, wanted, error);
    for (size_t i = 0; i < run->series_count && status == FIRE_OK; i++) {
        const struct series_state *series = &run->series[i];

        if (!wanted[i])
            continue;
        cells.count = 0;
        status = read_cells(history, row, series->id, &range, &series->points, &cells, error);
        if (status != FIRE_OK)
            break;
        spark_add(summary, &cells, row->first_step, any);
        if (growth_of(&cells) > most) {
            most = growth_of(&cells);
            free(summary->worst_layer);
            summary->worst_layer = NULL;
            for (size_t k = 0; k < run->layer_count && !summary->worst_layer; k++)
                if (run->layers[k].id == series->layer_id)
                    summary->worst_layer = strdup(run->layers[k].name);
        }
    }
    spark_close(summary, any);
    chunk_cells_release(&cells);
    free(wanted);
    return status;
}

static enum fire_status summarize(struct history *history, const char *tenant, const char *run,
                                  struct run_summary *summary, struct fire_error *error)
{
    struct run_state state = { 0 };
    enum fire_status status = run_read(history, tenant, run, &state, error);

    summary_empty(summary);
    if (status == FIRE_OK && collect_statistics(&state, summary) != FIRE_OK)
        status = read_fail(error, FIRE_NO_MEMORY);
    if (summary->statistic_count > 1)
        qsort(summary->statistics, summary->statistic_count, sizeof(*summary->statistics),
              compare_names);
    if (status == FIRE_OK && state.row.last_step >= 0)
        status = summarize_growth(history, &state, summary, error);
    if (status == FIRE_OK)
        summary->version = state.row.version;
    run_state_release(&state);
    return status;
}

/* The summary of a run, moved to the front; the last one goes when there are too many. */
static struct run_summary *summary_find(struct history *history, int64_t run_id)
{
    struct run_summary **place = &history->summaries;
    struct run_summary *summary;

    while (*place && (*place)->run_id != run_id &&
           !(history->summary_count >= SUMMARIES_MAX && !(*place)->next))
        place = &(*place)->next;
    summary = *place;
    if (summary) {
        *place = summary->next;
        if (summary->run_id != run_id)
            summary_empty(summary);
    } else {
        summary = calloc(1, sizeof(*summary));
        if (!summary)
            return NULL;
        summary->version = -1;
        history->summary_count++;
    }
    summary->run_id = run_id;
    summary->next = history->summaries;
    history->summaries = summary;
    return summary;
}

/* --- the answer ------------------------------------------------------------------------------- */

struct listing {
    Fire__V1__ListRunsResponse *response;
    struct run_row *rows; /* of the runs in it */
    size_t room;
    bool more; /* than there is room for */
    enum fire_status status;
};

static bool on_run(void *data, const struct sql_value *columns, size_t count)
{
    struct listing *listing = data;
    Fire__V1__ListRunsResponse *response = listing->response;
    struct run_row *row = &listing->rows[response->n_runs];
    Fire__V1__RunSummary *run;

    (void)count;
    if (response->n_runs == listing->room) {
        listing->more = true;
        return false;
    }
    run = malloc(sizeof(*run));
    if (!run) {
        listing->status = FIRE_NO_MEMORY;
        return false;
    }
    fire__v1__run_summary__init(run);
    response->runs[response->n_runs++] = run;
    run_row_read(columns, row);
    run->run = strdup(columns[1].data);
    run->info = run_info_read(&columns[2]);
    run->first_seen_ms = row->first_seen_ms;
    run->last_seen_ms = row->last_seen_ms;
    run->first_step = row->first_step < 0 ? 0 : row->first_step;
    run->last_step = row->last_step < 0 ? 0 : row->last_step;
    run->points = (uint64_t)row->points;
    run->layers = (uint32_t)row->layers;
    run->last_event = event_read(&columns[12]);
    run->alerts_firing = (uint32_t)row->alerts_firing;
    if (!run->run)
        listing->status = FIRE_NO_MEMORY;
    return listing->status == FIRE_OK;
}

static enum fire_status summary_apply(const struct run_summary *summary, Fire__V1__RunSummary *run)
{
    run->statistics = calloc(summary->statistic_count + 1, sizeof(*run->statistics));
    run->spark = malloc((summary->spark_count + 1) * sizeof(*run->spark));
    if (!run->statistics || !run->spark)
        return FIRE_NO_MEMORY;
    for (size_t i = 0; i < summary->statistic_count; i++) {
        run->statistics[i] = strdup(summary->statistics[i]);
        if (!run->statistics[i])
            return FIRE_NO_MEMORY;
        run->n_statistics++;
    }
    memcpy(run->spark, summary->spark, summary->spark_count * sizeof(*run->spark));
    run->n_spark = summary->spark_count;
    if (summary->worst_layer) {
        run->worst_layer = strdup(summary->worst_layer);
        if (!run->worst_layer)
            return FIRE_NO_MEMORY;
    }
    return FIRE_OK;
}

static enum fire_status fill_summaries(struct history *history, const char *tenant,
                                       struct listing *listing, struct fire_error *error)
{
    for (size_t i = 0; i < listing->response->n_runs; i++) {
        Fire__V1__RunSummary *run = listing->response->runs[i];
        struct run_summary *summary = summary_find(history, listing->rows[i].id);
        enum fire_status status = FIRE_OK;

        if (!summary)
            return read_fail(error, FIRE_NO_MEMORY);
        if (summary->version != listing->rows[i].version)
            status = summarize(history, tenant, run->run, summary, error);
        if (status == FIRE_OK) {
            status = summary_apply(summary, run);
            if (status != FIRE_OK)
                (void)read_fail(error, status);
        }
        if (status != FIRE_OK)
            return status;
    }
    return FIRE_OK;
}

static Fire__V1__LayerSummary *layer_message(const struct layer_state *layer, uint32_t order)
{
    Fire__V1__LayerSummary *message = malloc(sizeof(*message));

    if (!message)
        return NULL;
    fire__v1__layer_summary__init(message);
    message->order = order;
    message->name = strdup(layer->name);
    message->shape = malloc((layer->shape_count + 1) * sizeof(*message->shape));
    if (!message->name || !message->shape) {
        free(message->shape);
        free(message->name);
        free(message);
        return NULL;
    }
    memcpy(message->shape, layer->shape, layer->shape_count * sizeof(*message->shape));
    message->n_shape = layer->shape_count;
    return message;
}

static enum fire_status fill_layers(struct history *history, const char *tenant,
                                    Fire__V1__RunSummary *run, struct fire_error *error)
{
    struct run_state state = { 0 };
    enum fire_status status = run_read(history, tenant, run->run, &state, error);

    if (status == FIRE_OK) {
        run->layer_list = calloc(state.layer_count + 1, sizeof(*run->layer_list));
        if (!run->layer_list)
            status = read_fail(error, FIRE_NO_MEMORY);
    }
    for (size_t i = 0; i < state.layer_count && status == FIRE_OK; i++) {
        Fire__V1__LayerSummary *layer;

        if (state.layers[i].name[0] == '\0')
            continue;
        layer = layer_message(&state.layers[i], (uint32_t)run->n_layer_list);
        if (layer)
            run->layer_list[run->n_layer_list++] = layer;
        else
            status = read_fail(error, FIRE_NO_MEMORY);
    }
    run_state_release(&state);
    return status;
}

/* --- which runs ------------------------------------------------------------------------------- */

/* "%text%" with what LIKE would read otherwise marked by '!'. */
static void make_pattern(const char *filter, char pattern[PATTERN_BYTES])
{
    size_t used = 0;

    pattern[used++] = '%';
    for (; *filter && used + 4 < PATTERN_BYTES; filter++) {
        if (*filter == '%' || *filter == '_' || *filter == '!')
            pattern[used++] = '!';
        pattern[used++] = *filter;
    }
    if (used > 1)
        pattern[used++] = '%';
    pattern[used] = '\0';
}

static enum fire_status read_page(const char *page, int64_t *seen, int64_t *id,
                                  struct fire_error *error)
{
    int end = 0;

    *seen = INT64_MAX;
    *id = INT64_MAX;
    if (page[0] == '\0')
        return FIRE_OK;
    if (strlen(page) < PAGE_BYTES &&
        sscanf(page, "%" SCNd64 ".%" SCNd64 "%n", seen, id, &end) == 2 && page[end] == '\0')
        return FIRE_OK;
    return fire_fail(error, FIRE_BAD_REQUEST, "page",
                     "page must be empty or `next` of the last answer, got \"%.60s\"", page);
}

static enum fire_status find_runs(struct history *history, const char *tenant,
                                  const Fire__V1__ListRunsRequest *request, struct listing *listing,
                                  struct fire_error *error)
{
    char pattern[PATTERN_BYTES];
    int64_t seen, id;
    enum fire_status status = read_page(request->page, &seen, &id, error);

    if (status != FIRE_OK)
        return status;
    make_pattern(request->filter, pattern);
    if (request->run[0])
        status = SQL_RUN(history->db, SQL_RUN_FIND, on_run, listing, error, sql_text(tenant),
                         sql_text(request->run));
    else
        status = SQL_RUN(history->db, SQL_RUN_LIST, on_run, listing, error, sql_text(tenant),
                         sql_number(seen), sql_number(id), sql_text(pattern),
                         sql_number((int64_t)listing->room + 1));
    if (status == FIRE_OK && listing->status != FIRE_OK)
        status = read_fail(error, listing->status);
    if (status == FIRE_OK && request->run[0] && listing->response->n_runs == 0)
        status = fire_fail(error, FIRE_NOT_FOUND, "run",
                           "there is no run \"%.128s\"; ListRuns without one names those there are",
                           request->run);
    return status;
}

static enum fire_status set_next(struct listing *listing, struct fire_error *error)
{
    const struct run_row *last;
    char next[PAGE_BYTES];

    if (!listing->more)
        return FIRE_OK;
    last = &listing->rows[listing->response->n_runs - 1];
    snprintf(next, sizeof(next), "%" PRId64 ".%" PRId64, last->last_seen_ms, last->id);
    listing->response->next = strdup(next);
    return listing->response->next ? FIRE_OK : read_fail(error, FIRE_NO_MEMORY);
}

static enum fire_status listing_open(struct listing *listing, uint32_t limit,
                                     struct fire_error *error)
{
    listing->room = limit ? limit : LIST_DEFAULT;
    listing->rows = calloc(listing->room + 1, sizeof(*listing->rows));
    listing->response = malloc(sizeof(*listing->response));
    if (!listing->rows || !listing->response) {
        free(listing->response);
        listing->response = NULL;
        return read_fail(error, FIRE_NO_MEMORY);
    }
    fire__v1__list_runs_response__init(listing->response);
    listing->response->runs = calloc(listing->room + 1, sizeof(*listing->response->runs));
    return listing->response->runs ? FIRE_OK : read_fail(error, FIRE_NO_MEMORY);
}

enum fire_status history_list_runs(struct history *history, const char *tenant,
                                   const Fire__V1__ListRunsRequest *request,
                                   Fire__V1__ListRunsResponse **response, struct fire_error *error)
{
    struct listing listing = { 0 };
    enum fire_status status = listing_open(&listing, request->limit, error);

    *response = NULL;
    if (status == FIRE_OK)
        status = read_begin(history, error);
    if (status == FIRE_OK)
        status = find_runs(history, tenant, request, &listing, error);
    if (status == FIRE_OK)
        status = fill_summaries(history, tenant, &listing, error);
    if (status == FIRE_OK && request->run[0])
        status = fill_layers(history, tenant, listing.response->runs[0], error);
    if (status == FIRE_OK)
        status = set_next(&listing, error);
    read_end(history);
    free(listing.rows);
    if (status == FIRE_OK)
        *response = listing.response;
    else if (listing.response)
        fire__v1__list_runs_response__free_unpacked(listing.response, NULL);
    return status;
}
