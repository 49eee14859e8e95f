/* firectl_export: the history of a run as a file.
 *
 * Points come layer by layer, in windows of steps small enough that the daemon has no reason to
 * gather them into cells, so that every point that is kept is written. The output goes to a file of
 * another name beside it, which takes its place when it is complete. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "firectl_monitor.h"

#define RESOLUTION_MAX 4096
#define EVENTS_PAGE    128u /* so many come with their spectra */
#define FORMATS        "csv, json or safetensors"

enum format { FORMAT_CSV, FORMAT_JSON, FORMAT_SAFETENSORS };

struct export
{
    const struct firectl_args *args;
    struct admin *admin;
    const Fire__V1__RunSummary *run;
    enum format format;
    FILE *stream;
    char temporary[PATH_MAX]; /* empty: standard output */
    json_t *series;           /* of JSON */
    uint64_t points;
};

static enum firectl_exit format_of(const struct firectl_args *args, enum format *format)
{
    const char *dot = args->output ? strrchr(args->output, '.') : NULL;
    const char *name = args->format ? args->format : dot ? dot + 1 : "csv";

    if (strcmp(name, "csv") == 0) {
        *format = FORMAT_CSV;
    } else if (strcmp(name, "json") == 0) {
        *format = FORMAT_JSON;
    } else if (strcmp(name, "safetensors") == 0) {
        *format = FORMAT_SAFETENSORS;
    } else {
        firectl_say("--format must be " FORMATS ", got '%s'", name);
        return FIRECTL_USAGE;
    }
    if (*format == FORMAT_SAFETENSORS && (!args->output || strcmp(args->output, "-") == 0)) {
        firectl_say("safetensors needs a file: -o FILE");
        return FIRECTL_USAGE;
    }
    return FIRECTL_DONE;
}

/* --- the file --------------------------------------------------------------------------------- */

static enum firectl_exit output_open(struct export *export)
{
    const char *path = export->args->output;
    int file;

    export->stream = stdout;
    if (!path || strcmp(path, "-") == 0)
        return FIRECTL_DONE;
    if (snprintf(export->temporary, sizeof(export->temporary), "%s.XXXXXX", path) >=
        (int)sizeof(export->temporary)) {
        export->temporary[0] = '\0';
        firectl_say("the name of the output is too long");
        return FIRECTL_FAILED;
    }
    file = mkstemp(export->temporary);
    export->stream = file < 0 ? NULL : fdopen(file, "w");
    if (!export->stream) {
        firectl_say("%s: could not be written: %s", path, strerror(errno));
        if (file >= 0) {
            close(file);
            unlink(export->temporary);
        }
        export->temporary[0] = '\0';
        return FIRECTL_FAILED;
    }
    return FIRECTL_DONE;
}

/* Puts the file in place, or removes it when `code` says that it is not complete. */
static enum firectl_exit output_close(struct export *export, enum firectl_exit code)
{
    const char *path = export->args->output;
    const mode_t mask = umask(0);
    bool written;

    umask(mask);
    if (!export->temporary[0])
        return code;
    written = fflush(export->stream) == 0 && !ferror(export->stream) &&
              fchmod(fileno(export->stream), 0666 & ~mask) == 0 &&
              fsync(fileno(export->stream)) == 0;
    written = fclose(export->stream) == 0 && written;
    if (code == FIRECTL_DONE && (!written || rename(export->temporary, path) != 0)) {
        firectl_say("%s: could not be written: %s", path, strerror(errno));
        code = FIRECTL_FAILED;
    }
    if (code != FIRECTL_DONE)
        unlink(export->temporary);
    return code;
}

/* --- CSV -------------------------------------------------------------------------------------- */

/* A field as RFC 4180 has it. */
static void csv_text(FILE *stream, const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, stream);
        return;
    }
    fputc('"', stream);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', stream);
        fputc(*text, stream);
    }
    fputc('"', stream);
}

static void csv_cells(struct export *export, const Fire__V1__Cells *cells)
{
    for (size_t i = 0; i < cells->n_mean && i < cells->n_steps; i++) {
        csv_text(export->stream, cells->layer);
        fputc(',', export->stream);
        csv_text(export->stream, cells->statistic);
        fprintf(export->stream, ",%" PRId64 ",%.17g,%.17g,%.17g,%" PRIu32 "\n", cells->steps[i],
                cells->mean[i], i < cells->n_min ? cells->min[i] : cells->mean[i],
                i < cells->n_max ? cells->max[i] : cells->mean[i],
                i < cells->n_count ? cells->count[i] : 1);
    }
}

static void csv_event(struct export *export, const Fire__V1__Event *event)
{
    fprintf(export->stream, "%" PRIu64 ",%s,%" PRId64 ",%" PRId64 ",", event->id,
            monitor_event_kind(event), event->time_ms, event->step);
    csv_text(export->stream, event->layer);
    fputc(',', export->stream);
    csv_text(export->stream, event->text);
    fputc('\n', export->stream);
}

/* --- JSON ------------------------------------------------------------------------------------- */

/* The series of a layer and statistic, made when it is not there yet. */
static json_t *json_series(struct export *export, const Fire__V1__Cells *cells)
{
    json_t *made;

    /* Windows of one layer follow each other: look back as far as that layer goes. */
    for (size_t i = json_array_size(export->series); i-- > 0;) {
        json_t *last = json_array_get(export->series, i);

        if (strcmp(json_string_value(json_object_get(last, "layer")), cells->layer) != 0)
            break;
        if (strcmp(json_string_value(json_object_get(last, "statistic")), cells->statistic) == 0)
            return last;
    }
    made = json_pack("{s:s,s:s,s:[],s:[],s:[],s:[],s:[]}", "layer", cells->layer, "statistic",
                     cells->statistic, "steps", "values", "min", "max", "count");
    json_array_append_new(export->series, made);
    return made;
}

static bool json_cells(struct export *export, const Fire__V1__Cells *cells)
{
    json_t *series = json_series(export, cells);
    int failed = !series;

    for (size_t i = 0; !failed && i < cells->n_mean && i < cells->n_steps; i++) {
        failed |=
            json_array_append_new(json_object_get(series, "steps"), json_integer(cells->steps[i]));
        failed |=
            json_array_append_new(json_object_get(series, "values"), json_real(cells->mean[i]));
        failed |=
            json_array_append_new(json_object_get(series, "min"),
                                  json_real(i < cells->n_min ? cells->min[i] : cells->mean[i]));
        failed |=
            json_array_append_new(json_object_get(series, "max"),
                                  json_real(i < cells->n_max ? cells->max[i] : cells->mean[i]));
        failed |= json_array_append_new(json_object_get(series, "count"),
                                        json_integer(i < cells->n_count ? cells->count[i] : 1));
    }
    return !failed;
}

/* --- points ----------------------------------------------------------------------------------- */

static Fire__V1__QueryResponse *ask(struct export *export, char *layer, int64_t first, int64_t last,
                                    enum firectl_exit *code)
{
    Fire__V1__QueryRequest request = FIRE__V1__QUERY_REQUEST__INIT;

    request.run = export->run->run;
    request.layers = &layer;
    request.n_layers = 1;
    request.statistics = export->args->statistics.items;
    request.n_statistics = export->args->statistics.count;
    request.step_min = first;
    request.step_max = last;
    request.resolution = RESOLUTION_MAX;
    request.aggregate = FIRE__V1__AGGREGATE__AGGREGATE_ALL;
    if (!layer[0])
        return monitor_query_whole(export->admin, &request, code);
    return (Fire__V1__QueryResponse *)monitor_ask(export->admin, "Query", &request.base,
                                                  &fire__v1__query_response__descriptor, code);
}

static enum firectl_exit take(struct export *export, const char *layer,
                              const Fire__V1__QueryResponse *answer)
{
    for (size_t i = 0; i < answer->n_series; i++) {
        const Fire__V1__Cells *cells = answer->series[i];

        if (strcmp(cells->layer, layer) != 0)
            continue;
        export->points += cells->n_mean;
        if (export->format == FORMAT_CSV) {
            csv_cells(export, cells);
        } else if (!json_cells(export, cells)) {
            firectl_say("no memory for so many points; export fewer with --statistic or --from");
            return FIRECTL_FAILED;
        }
    }
    return FIRECTL_DONE;
}

/* All points of one layer; the whole run's have an empty name. */
static enum firectl_exit export_layer(struct export *export, char *layer)
{
    const int64_t from = export->args->from_step, to = export->args->to_step;
    const int64_t end = to && to < export->run->last_step ? to : export->run->last_step;
    int64_t first = from > export->run->first_step ? from : export->run->first_step;
    int64_t width = end - first + 1;
    enum firectl_exit code = FIRECTL_DONE;

    while (first <= end && code == FIRECTL_DONE && !firectl_signal()) {
        const int64_t last = end - first < width ? end : first + width - 1;
        /* step_max 0 would mean the end. */
        Fire__V1__QueryResponse *answer = ask(export, layer, first, last ? last : 1, &code);
        const bool whole = answer && (answer->cell_steps <= 1 || width <= RESOLUTION_MAX);

        if (!answer) {
            break; /* refused, or the run has no statistics of its own */
        } else if (whole) {
            code = take(export, layer, answer);
            first = last + 1;
        } else {
            width = width / 2 > RESOLUTION_MAX ? width / 2 : RESOLUTION_MAX;
        }
        fire__v1__query_response__free_unpacked(answer, NULL);
    }
    return code;
}

static bool layer_is_wanted(const struct firectl_args *args, const char *layer)
{
    bool wanted = args->layers.count == 0;

    for (size_t i = 0; i < args->layers.count; i++)
        wanted |= strcmp(args->layers.items[i], layer) == 0;
    return wanted;
}

static enum firectl_exit export_points(struct export *export)
{
    static char whole_run[] = "";
    enum firectl_exit code = FIRECTL_DONE;

    if (export->format == FORMAT_CSV)
        fputs("layer,statistic,step,value,min,max,count\n", export->stream);
    for (size_t i = 0; i < export->run->n_layer_list && code == FIRECTL_DONE; i++) {
        if (layer_is_wanted(export->args, export->run->layer_list[i]->name))
            code = export_layer(export, export->run->layer_list[i]->name);
    }
    if (code == FIRECTL_DONE && !export->args->layers.count)
        code = export_layer(export, whole_run);
    return code;
}

/* --- events ----------------------------------------------------------------------------------- */

/* Every event of the run, the newest first; `take_event` returns false when memory ran out. */
static enum firectl_exit each_event(struct export *export,
                                    bool (*take_event)(struct export *export,
                                                       const Fire__V1__Event *event, void *data),
                                    void *data)
{
    Fire__V1__ListEventsRequest request = FIRE__V1__LIST_EVENTS_REQUEST__INIT;
    enum firectl_exit code = FIRECTL_DONE;
    size_t got = EVENTS_PAGE;

    request.run = export->run->run;
    request.limit = EVENTS_PAGE;
    while (got == EVENTS_PAGE && code == FIRECTL_DONE && !firectl_signal()) {
        Fire__V1__ListEventsResponse *answer = (Fire__V1__ListEventsResponse *)monitor_ask(
            export->admin, "ListEvents", &request.base, &fire__v1__list_events_response__descriptor,
            &code);

        got = answer ? answer->n_events : 0;
        for (size_t i = 0; i < got && code == FIRECTL_DONE; i++) {
            request.before_id = answer->events[i]->id;
            if (layer_is_wanted(export->args, answer->events[i]->layer) &&
                !take_event(export, answer->events[i], data)) {
                firectl_say("no memory for so many events; close other programs");
                code = FIRECTL_FAILED;
            }
        }
        if (answer)
            fire__v1__list_events_response__free_unpacked(answer, NULL);
    }
    return code;
}

static bool event_to_json(struct export *export, const Fire__V1__Event *event, void *data)
{
    json_t *object = monitor_event_json(event);

    (void)export;
    return object && json_array_append_new(data, object) == 0;
}

static bool event_to_csv(struct export *export, const Fire__V1__Event *event, void *data)
{
    (void)data;
    csv_event(export, event);
    return true;
}

/* --- the formats ------------------------------------------------------------------------------ */

static enum firectl_exit export_csv(struct export *export)
{
    if (!export->args->events)
        return export_points(export);
    fputs("id,kind,time_ms,step,layer,text\n", export->stream);
    return each_event(export, event_to_csv, NULL);
}

static enum firectl_exit export_json(struct export *export)
{
    json_t *events = json_array();
    json_t *object = json_pack("{s:s,s:I,s:I}", "run", export->run->run, "first_step",
                               (json_int_t) export->run->first_step, "last_step",
                               (json_int_t) export->run->last_step);
    enum firectl_exit code = FIRECTL_DONE;

    export->series = json_array();
    if (!export->args->events)
        code = export_points(export);
    if (code == FIRECTL_DONE)
        code = each_event(export, event_to_json, events);
    json_object_set_new(object, "series", export->series);
    json_object_set_new(object, "events", events);
    if (code == FIRECTL_DONE &&
        (json_dumpf(object, export->stream, JSON_COMPACT | JSON_REAL_PRECISION(17)) != 0 ||
         fputc('\n', export->stream) == EOF)) {
        firectl_say("could not write JSON: out of memory, or the output is closed");
        code = FIRECTL_FAILED;
    }
    json_decref(object);
    return code;
}

/* Spectra found so far; names, shapes and data are owned. */
struct spectra {
    struct safetensors_entry *entries;
    size_t count;
    size_t room;
};

static bool spectra_add(struct spectra *spectra, const Fire__V1__Event *event, const char *side,
                        const double *values, size_t count)
{
    struct safetensors_entry *entry;
    double *data;
    char *name;

    if (!count)
        return true;
    if (spectra->count == spectra->room) {
        const size_t room = spectra->room ? 2 * spectra->room : 64;
        struct safetensors_entry *grown =
            realloc(spectra->entries, room * sizeof(*spectra->entries));

        if (!grown)
            return false;
        spectra->entries = grown;
        spectra->room = room;
    }
    data = malloc(count * sizeof(*data));
    if (!data || asprintf(&name, "%s.step%" PRId64 ".event%" PRIu64 ".%s", event->layer,
                          event->step, event->id, side) < 0) {
        free(data);
        return false;
    }
    memcpy(data, values, count * sizeof(*data));
    entry = &spectra->entries[spectra->count++];
    *entry = (struct safetensors_entry){ .name = name,
                                         .dtype_name = "F64",
                                         .shape = { 1, { count } },
                                         .data = (void *)data,
                                         .bytes = count * sizeof(*data) };
    return true;
}

static bool event_to_spectra(struct export *export, const Fire__V1__Event *event, void *data)
{
    (void)export;
    return event->kind != FIRE__V1__EVENT_KIND__EVENT_KIND_REINIT ||
           (spectra_add(data, event, "spectrum_before", event->spectrum_before,
                        event->n_spectrum_before) &&
            spectra_add(data, event, "spectrum_after", event->spectrum_after,
                        event->n_spectrum_after));
}

static enum firectl_exit export_spectra(struct export *export)
{
    const char *metadata[] = { "run", export->run->run, NULL };
    struct spectra spectra = { 0 };
    struct fire_error error = { 0 };
    enum firectl_exit code = each_event(export, event_to_spectra, &spectra);

    if (code == FIRECTL_DONE && !spectra.count) {
        firectl_say("no reinitialisation of this run has its spectra recorded: reinit with "
                    "--spectrum, or a client that asks for them, records them");
        code = FIRECTL_FAILED;
    }
    if (code == FIRECTL_DONE && safetensors_save(export->args->output, spectra.entries,
                                                 spectra.count, metadata, &error) != FIRE_OK)
        code = firectl_fail(&error);
    export->points = spectra.count;
    for (size_t i = 0; i < spectra.count; i++) {
        free((void *)spectra.entries[i].name);
        free((void *)spectra.entries[i].data);
    }
    free(spectra.entries);
    return code;
}

static enum firectl_exit export_run(struct export *export)
{
    enum firectl_exit code;

    if (export->format == FORMAT_SAFETENSORS)
        return export_spectra(export);
    code = output_open(export);
    if (code != FIRECTL_DONE)
        return code;
    code = export->format == FORMAT_CSV ? export_csv(export) : export_json(export);
    if (code == FIRECTL_DONE && firectl_signal())
        code = FIRECTL_FAILED;
    return output_close(export, code);
}

enum firectl_exit firectl_export(const struct firectl_args *args)
{
    struct export export = { .args = args };
    Fire__V1__ListRunsResponse *runs;
    enum firectl_exit code = format_of(args, &export.format);

    if (code == FIRECTL_DONE)
        code = admin_open(args, &export.admin);
    if (code != FIRECTL_DONE)
        return code;
    firectl_signals_init();
    runs = monitor_find_run(export.admin, args->inputs[0], &code);
    if (runs) {
        export.run = runs->runs[0];
        code = export_run(&export);
        if (code == FIRECTL_DONE && args->output && strcmp(args->output, "-") != 0) {
            if (args->json)
                code = monitor_print_json(json_pack("{s:s,s:s,s:I}", "run", args->inputs[0],
                                                    "output", args->output, "count",
                                                    (json_int_t) export.points));
            else
                firectl_say("%s: written, %" PRIu64 " %s", args->output, export.points,
                            export.format == FORMAT_SAFETENSORS ? "spectra" : "points");
        }
        fire__v1__list_runs_response__free_unpacked(runs, NULL);
    }
    admin_close(export.admin);
    return code;
}
