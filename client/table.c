/* table: the columns of each kind of answer, in one table a kind: a name and one function that
 * reads the cell from the message. */
#include "table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fire/v1/monitor.pb-c.h"

struct fire_table;

/* A column: one of the two functions. */
struct column {
    const char *name;
    const char *(*text)(const struct fire_table *table, size_t row);
    double (*number)(const struct fire_table *table, size_t row);
};

struct fire_table {
    ProtobufCMessage *answer;
    const struct column *columns;
    size_t column_count;
    size_t rows;
    size_t *starts; /* of a query: the first row of each series, and the end */
    char **joined;  /* of advice: the names in `also` */
    const char *summary;
};

/* --- advice ----------------------------------------------------------------------------------- */

static const Fire__V1__LayerAdvice *advice_at(const struct fire_table *table, size_t row)
{
    return ((const Fire__V1__AdviseResponse *)table->answer)->layers[row];
}

static const char *advice_verdict(const struct fire_table *table, size_t row)
{
    switch (advice_at(table, row)->verdict) {
    case FIRE__V1__VERDICT__VERDICT_LEAVE_IT: return "leave_it";
    case FIRE__V1__VERDICT__VERDICT_WATCH: return "watch";
    case FIRE__V1__VERDICT__VERDICT_REINIT: return "reinit";
    case FIRE__V1__VERDICT__VERDICT_UNSPECIFIED:
    case FIRE__V1__VERDICT__VERDICT_UNKNOWN:
    case _FIRE__V1__VERDICT_IS_INT_SIZE:
    default: return "unknown"; /* a newer daemon may know more */
    }
}

#define TEXT(kind, member)                                                                         \
    static const char *kind##_##member(const struct fire_table *table, size_t row)                 \
    {                                                                                              \
        return kind##_at(table, row)->member;                                                      \
    }
#define NUMBER(kind, member)                                                                       \
    static double kind##_##member(const struct fire_table *table, size_t row)                      \
    {                                                                                              \
        return (double)kind##_at(table, row)->member;                                              \
    }

TEXT(advice, layer)
TEXT(advice, rule)
TEXT(advice, reason)
TEXT(advice, intervention)
TEXT(advice, preset)

/* What is not known is no number. */
static double advice_since_step(const struct fire_table *table, size_t row)
{
    const Fire__V1__LayerAdvice *advice = advice_at(table, row);

    return advice->rule[0] ? (double)advice->since_step : NAN;
}

static double advice_flops(const struct fire_table *table, size_t row)
{
    const double flops = advice_at(table, row)->flops;

    return flops > 0.0 ? flops : NAN;
}

static double advice_sfe(const struct fire_table *table, size_t row)
{
    const double sfe = advice_at(table, row)->sfe;

    return sfe >= 0.0 ? sfe : NAN;
}

static const char *advice_also(const struct fire_table *table, size_t row)
{
    return table->joined[row];
}

static const struct column advice_columns[] = {
    { "layer", advice_layer, NULL },   { "verdict", advice_verdict, NULL },
    { "rule", advice_rule, NULL },     { "since_step", NULL, advice_since_step },
    { "reason", advice_reason, NULL }, { "intervention", advice_intervention, NULL },
    { "preset", advice_preset, NULL }, { "flops", NULL, advice_flops },
    { "sfe", NULL, advice_sfe },       { "also", advice_also, NULL },
};

/* --- runs ------------------------------------------------------------------------------------- */

static const Fire__V1__RunSummary *run_at(const struct fire_table *table, size_t row)
{
    return ((const Fire__V1__ListRunsResponse *)table->answer)->runs[row];
}

static const char *run_name(const struct fire_table *table, size_t row)
{
    const Fire__V1__RunSummary *run = run_at(table, row);

    return run->info ? run->info->name : "";
}

static const char *run_framework(const struct fire_table *table, size_t row)
{
    const Fire__V1__RunSummary *run = run_at(table, row);

    return run->info ? run->info->framework : "";
}

TEXT(run, run)
NUMBER(run, first_seen_ms)
NUMBER(run, last_seen_ms)
NUMBER(run, first_step)
NUMBER(run, last_step)
NUMBER(run, points)
NUMBER(run, layers)
TEXT(run, worst_layer)
NUMBER(run, alerts_firing)

static const struct column run_columns[] = {
    { "run", run_run, NULL },
    { "name", run_name, NULL },
    { "framework", run_framework, NULL },
    { "first_seen_ms", NULL, run_first_seen_ms },
    { "last_seen_ms", NULL, run_last_seen_ms },
    { "first_step", NULL, run_first_step },
    { "last_step", NULL, run_last_step },
    { "points", NULL, run_points },
    { "layers", NULL, run_layers },
    { "worst_layer", run_worst_layer, NULL },
    { "alerts_firing", NULL, run_alerts_firing },
};

/* --- events ----------------------------------------------------------------------------------- */

static const Fire__V1__Event *event_at(const struct fire_table *table, size_t row)
{
    return ((const Fire__V1__ListEventsResponse *)table->answer)->events[row];
}

static const char *event_kind(const struct fire_table *table, size_t row)
{
    switch (event_at(table, row)->kind) {
    case FIRE__V1__EVENT_KIND__EVENT_KIND_REINIT: return "reinit";
    case FIRE__V1__EVENT_KIND__EVENT_KIND_ALERT: return "alert";
    case FIRE__V1__EVENT_KIND__EVENT_KIND_DEVICE: return "device";
    case FIRE__V1__EVENT_KIND__EVENT_KIND_STORE: return "store";
    case FIRE__V1__EVENT_KIND__EVENT_KIND_UNSPECIFIED:
    case _FIRE__V1__EVENT_KIND_IS_INT_SIZE:
    default: return "event";
    }
}

NUMBER(event, id)
NUMBER(event, time_ms)
TEXT(event, run)
TEXT(event, layer)
NUMBER(event, step)
TEXT(event, text)

static const struct column event_columns[] = {
    { "id", NULL, event_id },           { "kind", event_kind, NULL },
    { "time_ms", NULL, event_time_ms }, { "run", event_run, NULL },
    { "layer", event_layer, NULL },     { "step", NULL, event_step },
    { "text", event_text, NULL },
};

/* --- points ----------------------------------------------------------------------------------- */

/* The series of a row, and its place in it. */
static const Fire__V1__Cells *cells_at(const struct fire_table *table, size_t row, size_t *place)
{
    const Fire__V1__QueryResponse *answer = (const Fire__V1__QueryResponse *)table->answer;
    size_t low = 0, high = answer->n_series;

    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;

        if (table->starts[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    *place = row - table->starts[low];
    return answer->series[low];
}

static const char *cells_layer(const struct fire_table *table, size_t row)
{
    size_t place;

    return cells_at(table, row, &place)->layer;
}

static const char *cells_statistic(const struct fire_table *table, size_t row)
{
    size_t place;

    return cells_at(table, row, &place)->statistic;
}

static double cells_step(const struct fire_table *table, size_t row)
{
    size_t place;
    const Fire__V1__Cells *cells = cells_at(table, row, &place);

    return (double)cells->steps[place];
}

static double cells_mean(const struct fire_table *table, size_t row)
{
    size_t place;
    const Fire__V1__Cells *cells = cells_at(table, row, &place);

    return cells->mean[place];
}

static double cells_min(const struct fire_table *table, size_t row)
{
    size_t place;
    const Fire__V1__Cells *cells = cells_at(table, row, &place);

    return place < cells->n_min ? cells->min[place] : cells->mean[place];
}

static double cells_max(const struct fire_table *table, size_t row)
{
    size_t place;
    const Fire__V1__Cells *cells = cells_at(table, row, &place);

    return place < cells->n_max ? cells->max[place] : cells->mean[place];
}

static double cells_count(const struct fire_table *table, size_t row)
{
    size_t place;
    const Fire__V1__Cells *cells = cells_at(table, row, &place);

    return place < cells->n_count ? (double)cells->count[place] : 1.0;
}

static const struct column cells_columns[] = {
    { "layer", cells_layer, NULL }, { "statistic", cells_statistic, NULL },
    { "step", NULL, cells_step },   { "mean", NULL, cells_mean },
    { "min", NULL, cells_min },     { "max", NULL, cells_max },
    { "count", NULL, cells_count },
};

#undef TEXT
#undef NUMBER

/* --- the table -------------------------------------------------------------------------------- */

#define COLUMNS(list) list, sizeof(list) / sizeof((list)[0])

static void set_columns(struct fire_table *table, const struct column *columns, size_t count,
                        size_t rows)
{
    table->columns = columns;
    table->column_count = count;
    table->rows = rows;
}

/* "a, b" of the names in `also`. */
static bool join_names(struct fire_table *table)
{
    table->joined = calloc(table->rows + 1, sizeof(*table->joined));
    for (size_t row = 0; table->joined && row < table->rows; row++) {
        const Fire__V1__LayerAdvice *advice = advice_at(table, row);
        size_t bytes = 1, used = 0;

        for (size_t i = 0; i < advice->n_also; i++)
            bytes += strlen(advice->also[i]) + 2;
        table->joined[row] = calloc(1, bytes);
        if (!table->joined[row])
            return false;
        for (size_t i = 0; i < advice->n_also; i++)
            used += (size_t)snprintf(table->joined[row] + used, bytes - used, "%s%s", i ? ", " : "",
                                     advice->also[i]);
    }
    return table->joined != NULL;
}

static bool count_cells(struct fire_table *table)
{
    const Fire__V1__QueryResponse *answer = (const Fire__V1__QueryResponse *)table->answer;

    table->starts = calloc(answer->n_series + 1, sizeof(*table->starts));
    if (!table->starts)
        return false;
    for (size_t i = 0; i < answer->n_series; i++) {
        const Fire__V1__Cells *cells = answer->series[i];
        const size_t count = cells->n_steps < cells->n_mean ? cells->n_steps : cells->n_mean;

        table->starts[i + 1] = table->starts[i] + count;
    }
    set_columns(table, COLUMNS(cells_columns), table->starts[answer->n_series]);
    return true;
}

enum fire_status table_open(ProtobufCMessage *answer, struct fire_table **out)
{
    struct fire_table *table = calloc(1, sizeof(*table));
    bool fine = true;

    *out = NULL;
    if (!table) {
        protobuf_c_message_free_unpacked(answer, NULL);
        return FIRE_NO_MEMORY;
    }
    table->answer = answer;
    table->summary = "";
    if (answer->descriptor == &fire__v1__advise_response__descriptor) {
        const Fire__V1__AdviseResponse *advice = (const Fire__V1__AdviseResponse *)answer;

        set_columns(table, COLUMNS(advice_columns), advice->n_layers);
        table->summary = advice->summary;
        fine = join_names(table);
    } else if (answer->descriptor == &fire__v1__list_runs_response__descriptor) {
        set_columns(table, COLUMNS(run_columns),
                    ((const Fire__V1__ListRunsResponse *)answer)->n_runs);
    } else if (answer->descriptor == &fire__v1__list_events_response__descriptor) {
        set_columns(table, COLUMNS(event_columns),
                    ((const Fire__V1__ListEventsResponse *)answer)->n_events);
    } else {
        FIRE_ASSERT(answer->descriptor == &fire__v1__query_response__descriptor);
        fine = count_cells(table);
    }
    if (!fine) {
        fire_table_close(table);
        return FIRE_NO_MEMORY;
    }
    *out = table;
    return FIRE_OK;
}

void fire_table_close(struct fire_table *table)
{
    if (!table)
        return;
    for (size_t row = 0; table->joined && row < table->rows; row++)
        free(table->joined[row]);
    free(table->joined);
    free(table->starts);
    protobuf_c_message_free_unpacked(table->answer, NULL);
    free(table);
}

size_t fire_table_rows(const struct fire_table *table)
{
    return table->rows;
}

size_t fire_table_columns(const struct fire_table *table)
{
    return table->column_count;
}

const char *fire_table_name(const struct fire_table *table, size_t column)
{
    return column < table->column_count ? table->columns[column].name : NULL;
}

const char *fire_table_text(const struct fire_table *table, size_t row, size_t column)
{
    if (row >= table->rows || column >= table->column_count || !table->columns[column].text)
        return NULL;
    return table->columns[column].text(table, row);
}

double fire_table_number(const struct fire_table *table, size_t row, size_t column)
{
    if (row >= table->rows || column >= table->column_count || !table->columns[column].number)
        return NAN;
    return table->columns[column].number(table, row);
}

const char *fire_table_summary(const struct fire_table *table)
{
    return table->summary;
}
