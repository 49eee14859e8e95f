/* monitor_record: what Reinit and Analyze leave in the history.
 *
 * Points are what was measured of the weights as they came, at the set's step, under the names that
 * results have without "_before" (dfi, norm, stable_rank, …), and the dormant ratios. A projection
 * is an event with everything that is known before and after. Building them runs on the loop, so
 * all of it lies in few blocks (an arena) and shares its texts; a failure to allocate only loses
 * the recording. */
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
#define ARENA_BYTES_MIN    (4u << 10)  /* of the first block; each is twice the one before, … */
#define ARENA_BYTES_MAX    (64u << 10) /* … up to this */

/* A recording that is being built. */
struct recording {
    const char *tenant;
    const struct request_set *set;
    struct monitor_arena *arena;
    bool failed;             /* memory was short */
    const char **statistics; /* of each field of a result; NULL: it is none */
    Fire__V1__ReportRequest *report;
    Fire__V1__Event **events;
    size_t event_count;
};

/* Zeroed bytes of the arena; NULL and `failed`: there are none. */
static void *take(struct recording *recording, size_t bytes)
{
    struct monitor_arena *arena = recording->arena;
    const size_t rounded = (bytes + sizeof(max_align_t) - 1) & ~(sizeof(max_align_t) - 1);
    void *taken;

    if (!arena || arena->room - arena->used < rounded) {
        const size_t grown = arena ? 2 * arena->room : ARENA_BYTES_MIN;
        const size_t usual = grown < ARENA_BYTES_MAX ? grown : ARENA_BYTES_MAX;
        const size_t room = rounded > usual ? rounded : usual;

        arena = malloc(sizeof(*arena) + room);
        recording->failed = recording->failed || !arena;
        if (!arena)
            return NULL;
        arena->before = recording->arena;
        arena->used = 0;
        arena->room = room;
        recording->arena = arena;
    }
    taken = (char *)arena->bytes + arena->used;
    arena->used += rounded;
    return memset(taken, 0, bytes);
}

static char *take_text(struct recording *recording, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = take(recording, bytes);

    return copy ? memcpy(copy, text, bytes) : NULL;
}

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

/* What the points of a tensor share. */
struct common {
    char *layer;
    int64_t *step;
    uint64_t *shape;
};

static bool common_take(struct recording *recording, const struct request_tensor *tensor,
                        struct common *common)
{
    char layer[MONITOR_NAME_BYTES + 1];

    layer_name(tensor->name, layer);
    common->layer = take_text(recording, layer);
    common->step = take(recording, sizeof(*common->step));
    common->shape = take(recording, (tensor->shape.axes + 1) * sizeof(*common->shape));
    if (!common->layer || !common->step || !common->shape)
        return false;
    *common->step = recording->set->step;
    for (uint32_t i = 0; i < tensor->shape.axes; i++)
        common->shape[i] = tensor->shape.size[i];
    return true;
}

static void add_points(struct recording *recording, const struct common *common,
                       const struct request_tensor *tensor)
{
    Fire__V1__ReportRequest *report = recording->report;

    for (size_t i = 0; i < fire_result_field_count(); i++) {
        const double value = fire_result_value(&tensor->result, i);
        Fire__V1__Series *series;

        if (!isfinite(value) || !recording->statistics[i])
            continue;
        series = take(recording, sizeof(*series) + sizeof(*series->values));
        if (!series)
            return;
        fire__v1__series__init(series);
        series->layer = common->layer;
        series->statistic = (char *)recording->statistics[i];
        series->steps = common->step;
        series->values = (double *)(series + 1);
        series->values[0] = value;
        series->n_steps = series->n_values = 1;
        series->shape = common->shape;
        series->n_shape = tensor->shape.axes;
        report->series[report->n_series++] = series;
    }
}

/* --- events ----------------------------------------------------------------------------------- */

/* There is room for it in the list; the texts live as long as the recording. */
static void add_attribute(struct recording *recording, Fire__V1__Event *event, const char *key,
                          const char *value)
{
    Fire__V1__Event__AttributesEntry *entry = take(recording, sizeof(*entry));

    if (!entry)
        return;
    fire__v1__event__attributes_entry__init(entry);
    entry->key = (char *)key;
    entry->value = (char *)value;
    event->attributes[event->n_attributes++] = entry;
}

static void add_value(struct recording *recording, Fire__V1__Event *event, const char *key,
                      double value)
{
    Fire__V1__Event__ValuesEntry *entry = isfinite(value) ? take(recording, sizeof(*entry)) : NULL;

    if (!entry)
        return;
    fire__v1__event__values_entry__init(entry);
    entry->key = (char *)key;
    entry->value = value;
    event->values[event->n_values++] = entry;
}

static bool event_texts(struct recording *recording, Fire__V1__Event *event, char *layer,
                        const struct request_tensor *tensor)
{
    const struct fire_result *result = &tensor->result;
    char text[512];

    snprintf(text, sizeof(text), "%.256s reinitialised with %s: DfI %.4g to %.4g in %u steps",
             layer, tensor->options.preset, result->before.dfi, result->after.dfi, result->steps);
    event->run = recording->report->run;
    event->layer = layer;
    event->text = take_text(recording, text);
    event->attributes = take(recording, 3 * sizeof(*event->attributes));
    event->values =
        take(recording, (fire_result_field_count() + EXTRA_VALUES) * sizeof(*event->values));
    return event->text && event->attributes && event->values;
}

/* The list stays empty when there is nothing, or no memory for it. */
static void add_spectrum(struct recording *recording, const struct fire_spectrum *spectrum,
                         size_t *count, double **values)
{
    if (spectrum->count == 0)
        return;
    *values = take(recording, spectrum->count * sizeof(**values));
    if (!*values)
        return;
    memcpy(*values, spectrum->values, spectrum->count * sizeof(**values));
    *count = spectrum->count;
}

static void add_event(struct recording *recording, char *layer, const struct request_tensor *tensor)
{
    const struct fire_result *result = &tensor->result;
    const struct fire_spectra *spectra = request_spectra(tensor);
    const char *preset = take_text(recording, tensor->options.preset);
    const char *method = take_text(recording, result->method);
    Fire__V1__Event *event = take(recording, sizeof(*event));

    if (!preset || !method || !event)
        return;
    fire__v1__event__init(event);
    event->kind = FIRE__V1__EVENT_KIND__EVENT_KIND_REINIT;
    event->step = recording->set->step;
    if (!event_texts(recording, event, layer, tensor))
        return;
    add_attribute(recording, event, "preset", preset);
    add_attribute(recording, event, "method", method);
    add_attribute(recording, event, "tenant", recording->tenant);
    add_value(recording, event, "steps", result->steps);
    add_value(recording, event, "converged", result->converged);
    add_value(recording, event, "rank_defect", result->rank_defect);
    add_value(recording, event, "matrices", result->matrices);
    for (size_t i = 0; i < fire_result_field_count(); i++)
        add_value(recording, event, fire_result_field_at(i)->name, fire_result_value(result, i));
    if (spectra) {
        add_spectrum(recording, &spectra->before, &event->n_spectrum_before,
                     &event->spectrum_before);
        add_spectrum(recording, &spectra->after, &event->n_spectrum_after, &event->spectrum_after);
    }
    recording->events[recording->event_count++] = event;
}

/* --- the recording ---------------------------------------------------------------------------- */

static bool is_recorded(const struct request_tensor *tensor)
{
    return tensor->role == REQUEST_WEIGHT && tensor->error.status == FIRE_OK;
}

/* The lists, with room for `count` tensors; false: memory is short. */
static bool recording_init(struct recording *recording, size_t count)
{
    const size_t fields = fire_result_field_count();
    Fire__V1__ReportRequest *report = take(recording, sizeof(*report));

    recording->report = report;
    recording->tenant = take_text(recording, recording->tenant);
    recording->events = take(recording, (count + 1) * sizeof(*recording->events));
    recording->statistics = take(recording, fields * sizeof(*recording->statistics));
    if (recording->failed)
        return false;
    fire__v1__report_request__init(report);
    report->run = take_text(recording, recording->set->run);
    report->series = take(recording, (count * fields + 1) * sizeof(*report->series));
    for (size_t i = 0; i < fields; i++) {
        char name[MONITOR_STATISTIC_MAX + 1];

        if (statistic_of(fire_result_field_at(i)->name, name))
            recording->statistics[i] = take_text(recording, name);
    }
    return !recording->failed;
}

void monitor_record(struct monitor *monitor, const char *tenant, const struct request_set *set,
                    struct request_tensor *const *tensors, size_t count)
{
    struct recording recording = { .tenant = tenant, .set = set };
    struct fire_error error;

    if (!monitor || monitor->off || set->run[0] == '\0' || set->step < 0)
        return;
    for (; count > RECORD_TENSORS_MAX; count -= RECORD_TENSORS_MAX, tensors += RECORD_TENSORS_MAX)
        monitor_record(monitor, tenant, set, tensors, RECORD_TENSORS_MAX);
    if (recording_init(&recording, count)) {
        for (size_t i = 0; i < count && !recording.failed; i++) {
            struct common common;

            if (!is_recorded(tensors[i]) || !common_take(&recording, tensors[i], &common))
                continue;
            add_points(&recording, &common, tensors[i]);
            if (!set->analyze && tensors[i]->result.action == FIRE_ACTION_PROJECTED)
                add_event(&recording, common.layer, tensors[i]);
        }
    }
    if (recording.failed ||
        monitor_check(MONITOR_REPORT, &recording.report->base, &error) != FIRE_OK) {
        metrics_add(monitor->settings.metrics, METRIC_HISTORY_DROPPED, NULL, NULL, 1);
        monitor_arena_free(recording.arena);
        return;
    }
    monitor_queue_owned(monitor, tenant, recording.report, recording.events, recording.event_count,
                        recording.arena);
}
