/* firectl_watch: what is new in the history, a line each, as it is stored. */
#include <inttypes.h>

#include "firectl_monitor.h"

struct watch {
    const struct firectl_args *args;
    uint64_t messages;
    enum firectl_exit code;
};

static void print_points(struct watch *watch, const char *run, const Fire__V1__Series *series)
{
    char id[MONITOR_NAME_BYTES], layer[MONITOR_NAME_BYTES];

    firectl_plain_text(run, id, sizeof(id));
    firectl_plain_text(series->layer[0] ? series->layer : "-", layer, sizeof(layer));
    for (size_t i = 0; i < series->n_steps && i < series->n_values && !watch->code; i++) {
        if (watch->args->json) {
            watch->code = monitor_print_json(
                json_pack("{s:s,s:s,s:s,s:I,s:f}", "run", run, "layer", series->layer, "statistic",
                          series->statistic, "step", (json_int_t)series->steps[i], "value",
                          series->values[i]));
            continue;
        }
        if (!watch->args->input_count)
            printf("%-24s ", id);
        printf("%10" PRId64 "  %-28s  %-24s %.6g\n", series->steps[i], layer, series->statistic,
               series->values[i]);
    }
}

static bool take(const ProtobufCMessage *message, void *data)
{
    const Fire__V1__WatchResponse *news = (const Fire__V1__WatchResponse *)message;
    struct watch *watch = data;

    if (news->missed)
        firectl_say("%" PRIu64 " messages came faster than they could be shown and were left out",
                    news->missed);
    for (size_t i = 0; i < news->n_series; i++)
        print_points(watch, news->run, news->series[i]);
    for (size_t i = 0; i < news->n_events && !watch->code; i++) {
        if (watch->args->json)
            watch->code = monitor_print_json(monitor_event_json(news->events[i]));
        else
            monitor_event_line(stdout, news->events[i], !watch->args->input_count);
    }
    watch->messages++;
    if (fflush(stdout) != 0)
        watch->code = FIRECTL_FAILED; /* nobody reads any more */
    return !watch->code && (!watch->args->count || watch->messages < watch->args->count);
}

enum firectl_exit firectl_watch(const struct firectl_args *args)
{
    Fire__V1__WatchRequest request = FIRE__V1__WATCH_REQUEST__INIT;
    struct watch watch = { .args = args };
    struct admin_failure failure = { 0 };
    struct admin *admin;
    enum firectl_exit code;

    firectl_signals_init();
    code = admin_open(args, &admin);
    if (code != FIRECTL_DONE)
        return code;
    if (args->input_count)
        request.run = (char *)args->inputs[0];
    request.events_only = args->events;
    if (!admin_stream(admin, "/fire.v1.MonitorService/Watch", &request.base,
                      &fire__v1__watch_response__descriptor, take, &watch, &failure))
        code = admin_fail(admin, &failure);
    else
        code = watch.code;
    admin_close(admin);
    return code;
}
