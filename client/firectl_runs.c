/* firectl_runs: the runs a daemon knows, and what it advises about one. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "firectl_monitor.h"

#define SPARK_COLUMNS 12u
#define RUN_COLUMNS   28

/* --- runs ------------------------------------------------------------------------------------- */

static json_t *texts_json(char **texts, size_t count)
{
    json_t *list = json_array();

    for (size_t i = 0; list && i < count; i++)
        json_array_append_new(list, json_string(texts[i]));
    return list;
}

static json_t *run_json(const Fire__V1__RunSummary *run)
{
    const Fire__V1__RunInfo *info = run->info;
    json_t *labels = json_object();
    json_t *object = json_pack(
        "{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:i,s:s,s:i}", "run", run->run, "name",
        info ? info->name : "", "framework", info ? info->framework : "", "first_seen_ms",
        (json_int_t)run->first_seen_ms, "last_seen_ms", (json_int_t)run->last_seen_ms, "first_step",
        (json_int_t)run->first_step, "last_step", (json_int_t)run->last_step, "points",
        (json_int_t)run->points, "layers", (int)run->layers, "worst_layer", run->worst_layer,
        "alerts_firing", (int)run->alerts_firing);

    for (size_t i = 0; info && i < info->n_labels; i++)
        json_object_set_new(labels, info->labels[i]->key, json_string(info->labels[i]->value));
    json_object_set_new(object, "labels", labels);
    json_object_set_new(object, "statistics", texts_json(run->statistics, run->n_statistics));
    json_object_set_new(object, "spark", monitor_numbers_json(run->spark, run->n_spark));
    if (run->last_event)
        json_object_set_new(object, "last_event", monitor_event_json(run->last_event));
    return object;
}

static void run_line(const Fire__V1__RunSummary *run)
{
    char id[MONITOR_NAME_BYTES], worst[MONITOR_NAME_BYTES], ago[64];
    const size_t bars = run->n_spark < SPARK_COLUMNS ? run->n_spark : SPARK_COLUMNS;

    firectl_plain_text(run->run, id, sizeof(id));
    firectl_plain_text(run->worst_layer, worst, sizeof(worst));
    monitor_ago_text(run->last_seen_ms, ago, sizeof(ago));
    printf("%-*s %-18s %10" PRId64 " %6" PRIu32 " %10" PRIu64 " %6" PRIu32 "  ", RUN_COLUMNS, id,
           ago, run->last_step, run->layers, run->points, run->alerts_firing);
    monitor_spark(stdout, run->spark, run->n_spark, SPARK_COLUMNS);
    printf("%*s  %s\n", (int)(SPARK_COLUMNS - bars), "", worst[0] ? worst : "-");
}

enum firectl_exit firectl_runs(const struct firectl_args *args)
{
    Fire__V1__ListRunsRequest request = FIRE__V1__LIST_RUNS_REQUEST__INIT;
    Fire__V1__ListRunsResponse *answer = NULL;
    struct admin *admin;
    enum firectl_exit code = admin_open(args, &admin);

    if (code != FIRECTL_DONE)
        return code;
    request.filter = args->filter ? (char *)args->filter : request.filter;
    request.limit = args->most;
    answer = (Fire__V1__ListRunsResponse *)monitor_ask(
        admin, "ListRuns", &request.base, &fire__v1__list_runs_response__descriptor, &code);
    if (answer && !args->json && !answer->n_runs)
        firectl_say(args->filter ? "no run has '%s' in its id, name or labels"
                                 : "no run was reported yet%s",
                    args->filter ? args->filter : "");
    else if (answer && !args->json)
        printf("%-*s %-18s %10s %6s %10s %6s  %-*s  %s\n", RUN_COLUMNS, "RUN", "LAST SEEN",
               "LAST STEP", "LAYERS", "POINTS", "ALERTS", (int)SPARK_COLUMNS, "DFI", "WORST LAYER");
    for (size_t i = 0; answer && i < answer->n_runs && code == FIRECTL_DONE; i++) {
        if (args->json)
            code = monitor_print_json(run_json(answer->runs[i]));
        else
            run_line(answer->runs[i]);
    }
    if (answer && answer->next[0] && !args->json)
        firectl_say("there are more runs; --limit N or --filter TEXT show others");
    if (answer)
        fire__v1__list_runs_response__free_unpacked(answer, NULL);
    admin_close(admin);
    return code;
}

/* --- advise ----------------------------------------------------------------------------------- */

static const char *verdict_name(Fire__V1__Verdict verdict)
{
    static const char *const names[] = { "unknown", "leave_it", "watch", "reinit", "unknown" };
    const size_t at = (size_t)verdict;

    return names[at < sizeof(names) / sizeof(names[0]) ? at : 0];
}

static json_t *advice_json(const Fire__V1__LayerAdvice *advice)
{
    json_t *object =
        json_pack("{s:s,s:s,s:s,s:s,s:s,s:s}", "layer", advice->layer, "verdict",
                  verdict_name(advice->verdict), "rule", advice->rule, "reason", advice->reason,
                  "intervention", advice->intervention, "preset", advice->preset);

    if (advice->rule[0])
        json_object_set_new(object, "since_step", json_integer(advice->since_step));
    if (advice->flops > 0.0)
        json_object_set_new(object, "flops", json_real(advice->flops));
    if (advice->sfe >= 0.0)
        json_object_set_new(object, "sfe", json_real(advice->sfe));
    json_object_set_new(object, "also", texts_json(advice->also, advice->n_also));
    return object;
}

static void advice_lines(const struct firectl_args *args, const Fire__V1__LayerAdvice *advice)
{
    static const char *const colors[] = { "", "\033[32m", "\033[33m", "\033[31m", "" };
    const bool color = firectl_color(args, stdout);
    const char *verdict = verdict_name(advice->verdict);
    char layer[MONITOR_NAME_BYTES], reason[FIRE_ERROR_MESSAGE_BYTES];

    firectl_plain_text(advice->layer, layer, sizeof(layer));
    firectl_plain_text(advice->reason, reason, sizeof(reason));
    printf("%s%-8s%s  %-28s  %-22s", color ? colors[(size_t)advice->verdict % 5] : "", verdict,
           color ? "\033[0m" : "", layer, advice->rule[0] ? advice->rule : "-");
    if (advice->intervention[0]) {
        printf("  %s --preset %s since step %" PRId64, advice->intervention, advice->preset,
               advice->since_step);
        if (advice->flops > 0.0)
            printf(", %.2g flops", advice->flops);
        if (advice->sfe >= 0.0)
            printf(", SFE about %.3g", advice->sfe);
    }
    printf("\n          %s\n", reason);
}

/* What --fail-if says about the answer. */
static enum firectl_exit crossed(const struct firectl_args *args,
                                 const Fire__V1__AdviseResponse *answer)
{
    enum firectl_exit code = FIRECTL_DONE;

    for (size_t t = 0; t < args->thresholds.count; t++) {
        const bool also_watch = strcmp(args->thresholds.items[t], "watch") == 0;

        for (size_t i = 0; i < answer->n_layers; i++) {
            const Fire__V1__Verdict verdict = answer->layers[i]->verdict;

            if (verdict == FIRE__V1__VERDICT__VERDICT_REINIT ||
                (also_watch && verdict == FIRE__V1__VERDICT__VERDICT_WATCH))
                code = FIRECTL_CROSSED;
        }
    }
    return code;
}

static enum firectl_exit advise_print(const struct firectl_args *args,
                                      const Fire__V1__AdviseResponse *answer)
{
    enum firectl_exit code = FIRECTL_DONE;

    for (size_t i = 0; i < answer->n_layers && code == FIRECTL_DONE; i++) {
        if (args->json)
            code = monitor_print_json(advice_json(answer->layers[i]));
        else
            advice_lines(args, answer->layers[i]);
    }
    if (code == FIRECTL_DONE && args->json)
        code = monitor_print_json(
            json_pack("{s:b,s:s,s:I,s:s}", "summary", 1, "run", args->inputs[0], "last_step",
                      (json_int_t)answer->last_step, "text", answer->summary));
    else if (code == FIRECTL_DONE)
        printf("%s (up to step %" PRId64 ")\n", answer->summary, answer->last_step);
    return code == FIRECTL_DONE ? crossed(args, answer) : code;
}

enum firectl_exit firectl_advise(const struct firectl_args *args)
{
    Fire__V1__AdviseRequest request = FIRE__V1__ADVISE_REQUEST__INIT;
    Fire__V1__AdviseResponse *answer;
    struct admin *admin;
    enum firectl_exit code;

    for (size_t i = 0; i < args->thresholds.count; i++) {
        if (strcmp(args->thresholds.items[i], "reinit") != 0 &&
            strcmp(args->thresholds.items[i], "watch") != 0) {
            firectl_say("--fail-if of advise must be reinit or watch, got '%s'",
                        args->thresholds.items[i]);
            return FIRECTL_USAGE;
        }
    }
    code = admin_open(args, &admin);
    if (code != FIRECTL_DONE)
        return code;
    request.run = (char *)args->inputs[0];
    request.layers = args->layers.items;
    request.n_layers = args->layers.count;
    answer = (Fire__V1__AdviseResponse *)monitor_ask(admin, "Advise", &request.base,
                                                     &fire__v1__advise_response__descriptor, &code);
    if (answer) {
        code = advise_print(args, answer);
        fire__v1__advise_response__free_unpacked(answer, NULL);
    }
    admin_close(admin);
    return code;
}
