/* monitor_advise: the history of a run, layer by layer, to the rules (advice.h), and their answers
 * to a message. */
#include <stdlib.h>
#include <string.h>

#include "advice.h"
#include "monitor_internal.h"

#define RESOLUTION    512u
#define SUMMARY_BYTES 512u

struct advising {
    Fire__V1__ListRunsResponse *run;
    Fire__V1__QueryResponse *points;
    struct advice *answers;
    struct advice_series *series; /* of one layer */
    int64_t *reinits;             /* of one layer */
    Fire__V1__AdviseResponse *response;
};

static const Fire__V1__LayerSummary *layer_named(const Fire__V1__RunSummary *run, const char *name)
{
    for (size_t i = 0; i < run->n_layer_list; i++)
        if (strcmp(run->layer_list[i]->name, name) == 0)
            return run->layer_list[i];
    return NULL;
}

static void set_shape(const Fire__V1__LayerSummary *known, struct fire_shape *shape)
{
    const size_t most = sizeof(shape->size) / sizeof(shape->size[0]);

    memset(shape, 0, sizeof(*shape));
    if (!known || known->n_shape > most)
        return;
    for (size_t i = 0; i < known->n_shape; i++)
        shape->size[i] = known->shape[i];
    shape->axes = (uint32_t)known->n_shape;
}

/* Judges the layer whose series begin at `from`; returns where the next one's do. */
static size_t judge(struct advising *advising, size_t from, struct advice *answer)
{
    const Fire__V1__QueryResponse *points = advising->points;
    const char *name = points->series[from]->layer;
    struct advice_layer layer = { .name = name,
                                  .series = advising->series,
                                  .reinits = advising->reinits };
    size_t to = from;

    for (; to < points->n_series && strcmp(points->series[to]->layer, name) == 0; to++) {
        const Fire__V1__Cells *cells = points->series[to];

        advising->series[layer.series_count++] =
            (struct advice_series){ .statistic = cells->statistic,
                                    .steps = cells->steps,
                                    .values = cells->mean,
                                    .count = cells->n_steps };
    }
    for (size_t i = 0; i < points->n_events; i++) {
        const Fire__V1__Event *event = points->events[i];
        size_t at = layer.reinit_count;

        if (event->kind != FIRE__V1__EVENT_KIND__EVENT_KIND_REINIT ||
            strcmp(event->layer, name) != 0)
            continue;
        for (; at > 0 && advising->reinits[at - 1] > event->step; at--)
            advising->reinits[at] = advising->reinits[at - 1];
        advising->reinits[at] = event->step;
        layer.reinit_count++;
    }
    set_shape(layer_named(advising->run->runs[0], name), &layer.shape);
    advice_judge(&layer, answer);
    return to;
}

static Fire__V1__LayerAdvice *message_of(const char *layer, const struct advice *advice)
{
    Fire__V1__LayerAdvice answer = FIRE__V1__LAYER_ADVICE__INIT;
    Fire__V1__LayerAdvice *copy = NULL;
    uint8_t *packed;
    size_t bytes;

    answer.layer = (char *)layer;
    answer.verdict = (Fire__V1__Verdict)advice->verdict;
    answer.rule = (char *)(advice->rule ? advice->rule : "");
    answer.since_step = advice->since_step;
    answer.reason = (char *)advice->reason;
    answer.intervention = (char *)(advice->intervention ? advice->intervention : "");
    answer.preset = (char *)(advice->preset ? advice->preset : "");
    answer.flops = advice->flops;
    answer.sfe = advice->sfe;
    answer.n_also = advice->also_count;
    answer.also = (char **)advice->also;
    bytes = fire__v1__layer_advice__get_packed_size(&answer);
    packed = malloc(bytes + 1);
    if (packed) {
        fire__v1__layer_advice__pack(&answer, packed);
        copy = fire__v1__layer_advice__unpack(NULL, bytes, packed);
    }
    free(packed);
    return copy;
}

static enum fire_status read_run(struct history *history, const char *tenant,
                                 const Fire__V1__AdviseRequest *request, struct advising *advising,
                                 struct fire_error *error)
{
    Fire__V1__ListRunsRequest which = FIRE__V1__LIST_RUNS_REQUEST__INIT;
    Fire__V1__QueryRequest query = FIRE__V1__QUERY_REQUEST__INIT;
    enum fire_status status;

    which.run = request->run;
    status = history_list_runs(history, tenant, &which, &advising->run, error);
    if (status != FIRE_OK)
        return status;
    query.run = request->run;
    query.layers = request->layers;
    query.n_layers = request->n_layers;
    query.resolution = RESOLUTION;
    status = history_query(history, tenant, &query, &advising->points, error);
    while (status == FIRE_BAD_REQUEST && query.resolution > 1) {
        /* A run of very many layers: coarser. */
        query.resolution /= 2;
        status = history_query(history, tenant, &query, &advising->points, error);
    }
    return status;
}

static enum fire_status answer(struct advising *advising)
{
    const Fire__V1__QueryResponse *points = advising->points;
    Fire__V1__AdviseResponse *response = advising->response;
    char summary[SUMMARY_BYTES] = "";
    size_t from = 0;

    response->layers = calloc(points->n_series + 1, sizeof(*response->layers));
    advising->answers = calloc(points->n_series + 1, sizeof(*advising->answers));
    advising->series = calloc(points->n_series + 1, sizeof(*advising->series));
    advising->reinits = calloc(points->n_events + 1, sizeof(*advising->reinits));
    if (!response->layers || !advising->answers || !advising->series || !advising->reinits)
        return FIRE_NO_MEMORY;
    while (from < points->n_series) {
        struct advice *advice = &advising->answers[response->n_layers];
        const char *name = points->series[from]->layer;

        from = judge(advising, from, advice);
        response->layers[response->n_layers] = message_of(name, advice);
        if (!response->layers[response->n_layers])
            return FIRE_NO_MEMORY;
        response->n_layers++;
    }
    advice_summary(advising->answers, response->n_layers, summary, sizeof(summary));
    response->summary = strdup(summary);
    response->last_step = advising->run->runs[0]->last_step;
    return response->summary ? FIRE_OK : FIRE_NO_MEMORY;
}

enum fire_status monitor_advise(struct history *history, const char *tenant,
                                const Fire__V1__AdviseRequest *request,
                                Fire__V1__AdviseResponse **response, struct fire_error *error)
{
    struct advising advising = { 0 };
    enum fire_status status = read_run(history, tenant, request, &advising, error);

    *response = NULL;
    if (status == FIRE_OK) {
        advising.response = malloc(sizeof(*advising.response));
        if (advising.response)
            fire__v1__advise_response__init(advising.response);
        status = advising.response ? answer(&advising) : FIRE_NO_MEMORY;
        if (status != FIRE_OK)
            (void)fire_fail_memory(error, sizeof(*advising.response));
    }
    if (status == FIRE_OK)
        *response = advising.response;
    else if (advising.response)
        fire__v1__advise_response__free_unpacked(advising.response, NULL);
    if (advising.run)
        fire__v1__list_runs_response__free_unpacked(advising.run, NULL);
    if (advising.points)
        fire__v1__query_response__free_unpacked(advising.points, NULL);
    free(advising.answers);
    free(advising.series);
    free(advising.reinits);
    return status;
}
