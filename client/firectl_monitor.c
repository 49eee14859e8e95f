/* firectl_monitor: calls of MonitorService, and its answers as JSON and as text. What a daemon
 * sends is somebody else's text: it goes to a terminal only through firectl_plain_text(). */
#include "firectl_monitor.h"

#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "firectl_daemon.h"

#define WIDTH_DEFAULT 80
#define WIDTH_MIN     40
#define WIDTH_MAX     1000
#define NOT_FOUND     5 /* gRPC's */

ProtobufCMessage *monitor_ask(struct admin *admin, const char *method,
                              const ProtobufCMessage *request,
                              const ProtobufCMessageDescriptor *kind, enum firectl_exit *code)
{
    struct admin_failure failure = { 0 };
    ProtobufCMessage *answer;
    char path[96];

    snprintf(path, sizeof(path), "/fire.v1.MonitorService/%s", method);
    answer = admin_call(admin, path, request, kind, &failure);
    *code = answer ? FIRECTL_DONE : admin_fail(admin, &failure);
    return answer;
}

Fire__V1__ListRunsResponse *monitor_find_run(struct admin *admin, const char *run,
                                             enum firectl_exit *code)
{
    Fire__V1__ListRunsRequest request = FIRE__V1__LIST_RUNS_REQUEST__INIT;
    Fire__V1__ListRunsResponse *answer;

    request.run = (char *)run;
    answer = (Fire__V1__ListRunsResponse *)monitor_ask(
        admin, "ListRuns", &request.base, &fire__v1__list_runs_response__descriptor, code);
    if (answer && answer->n_runs != 1) {
        firectl_say("the daemon at %s knows no run '%s'; firectl runs lists them",
                    admin_address(admin), run);
        *code = (enum firectl_exit)(FIRECTL_REFUSED + NOT_FOUND);
        fire__v1__list_runs_response__free_unpacked(answer, NULL);
        return NULL;
    }
    return answer;
}

Fire__V1__QueryResponse *monitor_query_whole(struct admin *admin, Fire__V1__QueryRequest *request,
                                             enum firectl_exit *code)
{
    static char none[] = "";
    char *layers[] = { none };
    struct admin_failure failure = { 0 };
    Fire__V1__QueryResponse *answer;

    request->layers = layers;
    request->n_layers = 1;
    request->whole_run = true;
    answer = (Fire__V1__QueryResponse *)admin_call(admin, "/fire.v1.MonitorService/Query",
                                                   &request->base,
                                                   &fire__v1__query_response__descriptor, &failure);
    request->layers = NULL;
    request->n_layers = 0;
    *code = answer || failure.code == NOT_FOUND ? FIRECTL_DONE : admin_fail(admin, &failure);
    return answer;
}

enum firectl_exit monitor_print_json(json_t *object)
{
    const int failed =
        !object || json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17)) != 0;

    json_decref(object);
    if (failed) {
        firectl_say("could not write JSON: out of memory, or standard output is closed");
        return FIRECTL_FAILED;
    }
    putchar('\n');
    return FIRECTL_DONE;
}

json_t *monitor_numbers_json(const double *values, size_t count)
{
    json_t *list = json_array();

    /* JSON has no NaN: what is not a number is null. */
    for (size_t i = 0; list && i < count; i++)
        json_array_append_new(list, isfinite(values[i]) ? json_real(values[i]) : json_null());
    return list;
}

json_t *monitor_steps_json(const int64_t *values, size_t count)
{
    json_t *list = json_array();

    for (size_t i = 0; list && i < count; i++)
        json_array_append_new(list, json_integer(values[i]));
    return list;
}

const char *monitor_event_kind(const Fire__V1__Event *event)
{
    static const char *const names[] = { "event", "reinit", "alert", "device", "store" };
    const size_t kind = (size_t)event->kind;

    return names[kind < sizeof(names) / sizeof(names[0]) ? kind : 0];
}

json_t *monitor_event_json(const Fire__V1__Event *event)
{
    json_t *object = json_pack("{s:b,s:I,s:s,s:I,s:s,s:s,s:I,s:s}", "event", 1, "id",
                               (json_int_t)event->id, "kind", monitor_event_kind(event), "time_ms",
                               (json_int_t)event->time_ms, "run", event->run, "layer", event->layer,
                               "step", (json_int_t)event->step, "text", event->text);
    json_t *attributes = json_object();
    json_t *values = json_object();

    for (size_t i = 0; i < event->n_attributes; i++)
        json_object_set_new(attributes, event->attributes[i]->key,
                            json_string(event->attributes[i]->value));
    for (size_t i = 0; i < event->n_values; i++)
        json_object_set_new(values, event->values[i]->key, json_real(event->values[i]->value));
    json_object_set_new(object, "attributes", attributes);
    json_object_set_new(object, "values", values);
    if (event->n_spectrum_before)
        json_object_set_new(object, "spectrum_before",
                            monitor_numbers_json(event->spectrum_before, event->n_spectrum_before));
    if (event->n_spectrum_after)
        json_object_set_new(object, "spectrum_after",
                            monitor_numbers_json(event->spectrum_after, event->n_spectrum_after));
    return object;
}

void monitor_event_line(FILE *stream, const Fire__V1__Event *event, bool run)
{
    const time_t seconds = (time_t)(event->time_ms / 1000);
    char when[32], text[FIRE_ERROR_MESSAGE_BYTES], name[MONITOR_NAME_BYTES];
    struct tm parts;

    localtime_r(&seconds, &parts);
    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &parts);
    fprintf(stream, "%s  %-6s", when, monitor_event_kind(event));
    if (run && event->run[0]) {
        firectl_plain_text(event->run, name, sizeof(name));
        fprintf(stream, "  %s", name);
    }
    if (event->run[0])
        fprintf(stream, "  step %" PRId64, event->step);
    if (event->layer[0]) {
        firectl_plain_text(event->layer, name, sizeof(name));
        fprintf(stream, "  %s", name);
    }
    firectl_plain_text(event->text, text, sizeof(text));
    fprintf(stream, "  %s\n", text);
}

bool monitor_unicode(void)
{
    setlocale(LC_CTYPE, "");
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

int monitor_width(const struct firectl_args *args)
{
    struct winsize size = { 0 };
    int width = WIDTH_DEFAULT;

    if (args->width)
        width = (int)args->width;
    else if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        width = size.ws_col;
    return width < WIDTH_MIN ? WIDTH_MIN : width > WIDTH_MAX ? WIDTH_MAX : width;
}

const char *monitor_bar(int level)
{
    static const char *const blocks[] = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
    static const char *const ascii[] = { "_", ".", "-", "=", "+", "*", "#", "@" };
    const int at = level < 0 ? 0 : level > 7 ? 7 : level;

    return monitor_unicode() ? blocks[at] : ascii[at];
}

void monitor_spark(FILE *stream, const double *values, size_t count, size_t columns)
{
    const size_t shown = count < columns ? count : columns;
    double low = INFINITY, high = -INFINITY;

    for (size_t i = 0; i < count; i++) {
        low = fmin(low, values[i]); /* fmin and fmax pass over NAN */
        high = fmax(high, values[i]);
    }
    for (size_t column = 0; column < shown; column++) {
        const size_t first = column * count / shown, end = (column + 1) * count / shown;
        double sum = 0.0;
        size_t known = 0;

        for (size_t i = first; i < end; i++) {
            if (isfinite(values[i])) {
                sum += values[i];
                known++;
            }
        }
        if (!known)
            fputc(' ', stream);
        else
            fputs(monitor_bar(high > low ? (int)(7.99 * (sum / (double)known - low) / (high - low))
                                         : 0),
                  stream);
    }
}

void monitor_ago_text(int64_t time_ms, char *text, size_t text_bytes)
{
    struct timespec now;
    char duration[48];

    clock_gettime(CLOCK_REALTIME, &now);
    firectl_duration_text((double)now.tv_sec - 1e-3 * (double)time_ms, duration, sizeof(duration));
    snprintf(text, text_bytes, "%s ago", duration);
}
