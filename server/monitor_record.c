/* monitor_record: what Reinit and Analyze leave in the history.
 *
 * Points are what was measured of the weights as they came, at the set's step, under the names that
 * results have without "_before" (dfi, norm, stable_rank, …), and the dormant ratios. A projection
 * is an event with everything that is known before and after. Building them takes microseconds and
 * runs on the loop; a failure to allocate only loses the recording. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "monitor_check.h"
#include "monitor_internal.h"
#include "request.h"
#include "utf8.h"

#define BEFORE             "_before"
#define RECORD_TENSORS_MAX 1024u /* in one report */
#define EXTRA_VALUES       4u    /* beside the fields: steps, converged, rank_defect, matrices */

/* The statistic a field of a result is a point of; false: of none. */
static bool statistic_of(const char *field, char name[MONITOR_STATISTIC_MAX + 1])
{
    const size_t bytes = strlen(field);
    const size_t end = strlen(BEFORE);

    if (bytes > MONITOR_STATISTIC_MAX)
        return false;
    strcpy(name, field);
    if (bytes > end && strcmp(field + bytes - end, BEFORE) == 0) {
        name[bytes - end] = '\0';
        return true;
    }
    return strcmp(field, "dormant_ratio") == 0 || strcmp(field, "gradient_dormant_ratio") == 0;
}

/* A name as the history keeps it: printable, and cut at a character. */
static void layer_name(const char *name, char layer[MONITOR_NAME_BYTES + 1])
{
    size_t used = 0;

    while (name[used]) {
        const size_t bytes = utf8_bytes(name + used) ? utf8_bytes(name + used) : 1;

        if (used + bytes > MONITOR_NAME_BYTES)
            break;
        memcpy(layer + used, name + used, bytes);
        used += bytes;
    }
    layer[used] = '\0';
    utf8_make_printable(layer);
}

static Fire__V1__Series *series_make(const char *layer, const char *statistic, int64_t step,
                                     double value, const struct fire_shape *shape)
{
    Fire__V1__Series *series = malloc(sizeof(*series));

    if (!series)
        return NULL;
    fire__v1__series__init(series);
    series->layer = strdup(layer);
    series->statistic = strdup(statistic);
    series->steps = malloc(sizeof(*series->steps));
    series->values = malloc(sizeof(*series->values));
    series->shape = malloc((shape->axes + 1) * sizeof(*series->shape));
    if (!series->layer || !series->statistic || !series->steps || !series->values ||
        !series->shape) {
        fire__v1__series__free_unpacked(series, NULL);
        return NULL;
    }
    series->steps[0] = step;
    series->values[0] = value;
    series->n_steps = series->n_values = 1;
    for (uint32_t i = 0; i < shape->axes; i++)
        series->shape[i] = shape->size[i];
    series->n_shape = shape->axes;
    return series;
}

static void add_points(Fire__V1__ReportRequest *report, const char *layer, int64_t step,
                       const struct request_tensor *tensor)
{
    for (size_t i = 0; i < fire_result_field_count(); i++) {
        const double value = fire_result_value(&tensor->result, i);
        char statistic[MONITOR_STATISTIC_MAX + 1];
        Fire__V1__Series *series;

        if (!isfinite(value) || !statistic_of(fire_result_field_at(i)->name, statistic))
            continue;
        series = series_make(layer, statistic, step, value, &tensor->shape);
        if (series)
            report->series[report->n_series++] = series;
    }
}

/* --- events ----------------------------------------------------------------------------------- */

/* There is room for it in the list. */
static void add_attribute(Fire__V1__Event *event, const char *key, const char *value)
{
    Fire__V1__Event__AttributesEntry *entry = malloc(sizeof(*entry));

    if (!entry)
        return;
    fire__v1__event__attributes_entry__init(entry);
    entry->key = strdup(key);
    entry->value = strdup(value);
    event->attributes[event->n_attributes++] = entry;
}

static void add_value(Fire__V1__Event *event, const char *key, double value)
{
    Fire__V1__Event__ValuesEntry *entry = isfinite(value) ? malloc(sizeof(*entry)) : NULL;

    if (!entry)
        return;
    fire__v1__event__values_entry__init(entry);
    entry->key = strdup(key);
    entry->value = value;
    event->values[event->n_values++] = entry;
}

static bool event_texts(Fire__V1__Event *event, const struct request_set *set, const char *layer,
                        const struct request_tensor *tensor)
{
    const struct fire_result *result = &tensor->result;
    char text[512];

    snprintf(text, sizeof(text), "%.256s reinitialised with %s: DfI %.4g to %.4g in %u steps",
             layer, tensor->options.preset, result->before.dfi, result->after.dfi, result->steps);
    event->run = strdup(set->run);
    event->layer = strdup(layer);
    event->text = strdup(text);
    event->attributes = calloc(4, sizeof(*event->attributes));
    event->values = calloc(fire_result_field_count() + EXTRA_VALUES, sizeof(*event->values));
    return event->run && event->layer && event->text && event->attributes && event->values;
}

/* The list stays empty when there is nothing, or no memory for it. */
static void add_spectrum(const struct fire_spectrum *spectrum, size_t *count, double **values)
{
    if (spectrum->count == 0)
        return;
    *values = malloc(spectrum->count * sizeof(**values));
    if (!*values)
        return;
    memcpy(*values, spectrum->values, spectrum->count * sizeof(**values));
    *count = spectrum->count;
}

static Fire__V1__Event *event_make(const char *tenant, const struct request_set *set,
                                   const char *layer, const struct request_tensor *tensor)
{
    const struct fire_result *result = &tensor->result;
    const struct fire_spectra *spectra = request_spectra(tensor);
    Fire__V1__Event *event = malloc(sizeof(*event));

    if (!event)
        return NULL;
    fire__v1__event__init(event);
    event->kind = FIRE__V1__EVENT_KIND__EVENT_KIND_REINIT;
    event->step = set->step;
    if (!event_texts(event, set, layer, tensor)) {
        fire__v1__event__free_unpacked(event, NULL);
        return NULL;
    }
    add_attribute(event, "preset", tensor->options.preset);
    add_attribute(event, "method", result->method);
    add_attribute(event, "tenant", tenant);
    add_value(event, "steps", result->steps);
    add_value(event, "converged", result->converged);
    add_value(event, "rank_defect", result->rank_defect);
    add_value(event, "matrices", result->matrices);
    for (size_t i = 0; i < fire_result_field_count(); i++)
        add_value(event, fire_result_field_at(i)->name, fire_result_value(result, i));
    if (spectra) {
        add_spectrum(&spectra->before, &event->n_spectrum_before, &event->spectrum_before);
        add_spectrum(&spectra->after, &event->n_spectrum_after, &event->spectrum_after);
    }
    return event;
}

/* --- the recording ---------------------------------------------------------------------------- */

static bool is_recorded(const struct request_tensor *tensor)
{
    return tensor->role == REQUEST_WEIGHT && tensor->error.status == FIRE_OK;
}

void monitor_record(struct monitor *monitor, const char *tenant, const struct request_set *set,
                    struct request_tensor *const *tensors, size_t count)
{
    Fire__V1__ReportRequest *report;
    Fire__V1__Event **events;
    size_t event_count = 0;
    struct fire_error error;

    if (!monitor || monitor->off || set->run[0] == '\0' || set->step < 0)
        return;
    for (; count > RECORD_TENSORS_MAX; count -= RECORD_TENSORS_MAX, tensors += RECORD_TENSORS_MAX)
        monitor_record(monitor, tenant, set, tensors, RECORD_TENSORS_MAX);
    report = malloc(sizeof(*report));
    events = calloc(count + 1, sizeof(*events));
    if (report) {
        fire__v1__report_request__init(report);
        report->run = strdup(set->run);
        report->series = calloc(count * fire_result_field_count() + 1, sizeof(*report->series));
    }
    for (size_t i = 0; report && events && report->run && report->series && i < count; i++) {
        char layer[MONITOR_NAME_BYTES + 1];
        Fire__V1__Event *event;

        if (!is_recorded(tensors[i]))
            continue;
        layer_name(tensors[i]->name, layer);
        add_points(report, layer, set->step, tensors[i]);
        if (set->analyze || tensors[i]->result.action != FIRE_ACTION_PROJECTED)
            continue;
        event = event_make(tenant, set, layer, tensors[i]);
        if (event)
            events[event_count++] = event;
    }
    if (!report || !events || !report->run || !report->series ||
        monitor_check(MONITOR_REPORT, &report->base, &error) != FIRE_OK) {
        metrics_add(monitor->settings.metrics, METRIC_HISTORY_DROPPED, NULL, NULL, 1);
        monitor_discard_owned(report, events, event_count);
        return;
    }
    monitor_queue_owned(monitor, tenant, report, events, event_count);
}
