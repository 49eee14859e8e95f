/* alerts_run: the engine (alerts.h), a timer for what time alone changes, and the webhook. */
#include "alerts_run.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alerts.h"
#include "log.h"
#include "webhook.h"

#define TICK_MS    250
#define TEXT_BYTES 512

struct alerts_run {
    struct alerts *alerts;
    struct webhook *webhook; /* NULL: none */
    struct metrics *metrics;
    void (*store)(void *data, const char *tenant, const Fire__V1__Event *event);
    void *data;
    uv_timer_t timer;
    struct alert_rule *rules; /* a copy: their names, for the metrics */
    uint32_t rule_count;
    uint64_t left_out; /* already told */
    void (*closed)(void *data);
    void *closed_data;
};

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void describe(const struct alert_change *change, char text[TEXT_BYTES])
{
    const struct alert_rule *rule = change->rule;

    if (!rule->statistic[0])
        snprintf(text, TEXT_BYTES, "%s is %s: no rule of that name speaks of it any more",
                 rule->name, alert_state_name(change->state));
    else if (rule->kind == ALERT_NO_DATA)
        snprintf(text, TEXT_BYTES, "%s is %s: no %s for %.0f s", rule->name,
                 alert_state_name(change->state), rule->statistic, change->value);
    else
        snprintf(text, TEXT_BYTES, "%s is %s: %s%s is %.6g, the limit %s %.6g", rule->name,
                 alert_state_name(change->state), rule->kind == ALERT_SLOPE ? "slope of " : "",
                 rule->statistic, change->value, rule->below ? "<" : ">", rule->value);
}

/* --- where a change goes ---------------------------------------------------------------------- */

static void store_event(struct alerts_run *run, const struct alert_change *change, char *text)
{
    char *pairs[][2] = { { (char *)"rule", (char *)change->rule->name },
                         { (char *)"state", (char *)alert_state_name(change->state) },
                         { (char *)"before", (char *)alert_state_name(change->before) },
                         { (char *)"statistic", (char *)change->rule->statistic } };
    Fire__V1__Event event = FIRE__V1__EVENT__INIT;
    Fire__V1__Event__AttributesEntry attributes[4];
    Fire__V1__Event__AttributesEntry *attribute_list[4];
    Fire__V1__Event__ValuesEntry values[2];
    Fire__V1__Event__ValuesEntry *value_list[2];

    if (!run->store)
        return;
    for (size_t i = 0; i < 4; i++) {
        attributes[i] = (Fire__V1__Event__AttributesEntry)FIRE__V1__EVENT__ATTRIBUTES_ENTRY__INIT;
        attributes[i].key = pairs[i][0];
        attributes[i].value = pairs[i][1];
        attribute_list[i] = &attributes[i];
    }
    for (size_t i = 0; i < 2; i++) {
        values[i] = (Fire__V1__Event__ValuesEntry)FIRE__V1__EVENT__VALUES_ENTRY__INIT;
        value_list[i] = &values[i];
    }
    values[0].key = (char *)"value";
    values[0].value = change->value;
    values[1].key = (char *)"threshold";
    values[1].value =
        change->rule->kind == ALERT_NO_DATA ? change->rule->window : change->rule->value;
    event.kind = FIRE__V1__EVENT_KIND__EVENT_KIND_ALERT;
    event.time_ms = change->now_ms;
    event.run = (char *)change->run;
    event.layer = (char *)change->layer;
    event.step = change->step;
    event.text = text;
    event.attributes = attribute_list;
    event.n_attributes = 4;
    event.values = value_list;
    event.n_values = isfinite(change->value) ? 2 : 0;
    run->store(run->data, change->tenant, &event);
}

static void call_webhook(struct alerts_run *run, const struct alert_change *change,
                         const char *text)
{
    json_t *object;
    char *body;

    if (!run->webhook)
        return;
    object =
        json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:s}", "event", "alert", "rule",
                  change->rule->name, "kind", alert_kind_name(change->rule->kind), "state",
                  alert_state_name(change->state), "before", alert_state_name(change->before),
                  "tenant", change->tenant, "run", change->run, "layer", change->layer, "step",
                  (json_int_t)change->step, "time_ms", (json_int_t)change->now_ms, "text", text);
    if (object && isfinite(change->value))
        json_object_set_new(object, "value", json_real(change->value));
    json_object_set_new(object, "statistic", json_string(change->rule->statistic));
    json_object_set_new(object, "threshold",
                        json_real(change->rule->kind == ALERT_NO_DATA ? change->rule->window
                                                                      : change->rule->value));
    body = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (body)
        (void)webhook_send(run->webhook, body); /* a full queue is counted there */
    free(body);
    json_decref(object);
}

static void on_changed(void *data, const struct alert_change *change)
{
    struct alerts_run *run = data;
    char text[TEXT_BYTES];

    describe(change, text);
    log_info("alert", LOG_TEXT("rule", change->rule->name),
             LOG_TEXT("state", alert_state_name(change->state)), LOG_TEXT("run", change->run),
             LOG_TEXT("layer", change->layer), LOG_I64("step", change->step),
             LOG_F64("value", change->value));
    metrics_add(run->metrics, METRIC_ALERT_CHANGES, change->rule->name,
                alert_state_name(change->state), 1);
    store_event(run, change, text);
    call_webhook(run, change, text);
}

static void refresh_gauges(struct alerts_run *run)
{
    for (uint32_t i = 0; i < run->rule_count; i++)
        metrics_set(run->metrics, METRIC_ALERTS_FIRING, run->rules[i].name, NULL,
                    (double)alerts_firing(run->alerts, i));
    if (alerts_left_out(run->alerts) > run->left_out) {
        log_warn("alerts_full", LOG_U64("series_max", ALERTS_SERIES_MAX),
                 LOG_U64("points_left_out", alerts_left_out(run->alerts)));
        run->left_out = 2 * alerts_left_out(run->alerts); /* told again when it has doubled */
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct alerts_run *run = timer->data;

    alerts_tick(run->alerts, now_ms());
    refresh_gauges(run);
}

/* --- what goes in ----------------------------------------------------------------------------- */

void alerts_run_points(struct alerts_run *run, const char *tenant, const char *id,
                       Fire__V1__Series *const *series, size_t count)
{
    const int64_t now = now_ms();

    if (!run->rule_count)
        return;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < series[i]->n_steps && k < series[i]->n_values; k++)
            alerts_point(run->alerts, tenant, id, series[i]->layer, series[i]->statistic,
                         series[i]->steps[k], series[i]->values[k], now);
    }
    refresh_gauges(run);
}

void alerts_run_restore(struct alerts_run *run, const char *rule, const char *tenant,
                        const char *id, const char *layer)
{
    const int64_t now = now_ms();
    struct alert_rule gone = { 0 };

    if (!alerts_restore(run->alerts, rule, tenant, id, layer, now)) {
        snprintf(gone.name, sizeof(gone.name), "%s", rule);
        on_changed(run, &(struct alert_change){ .rule = &gone,
                                                .state = ALERT_OK,
                                                .before = ALERT_FIRING,
                                                .tenant = tenant,
                                                .run = id,
                                                .layer = layer,
                                                .value = NAN,
                                                .now_ms = now });
    }
    refresh_gauges(run);
}

void alerts_run_expect(struct alerts_run *run, const char *rule, const char *tenant, const char *id,
                       const char *layer)
{
    alerts_expect(run->alerts, rule, tenant, id, layer, now_ms());
}

/* --- life ------------------------------------------------------------------------------------- */

static enum fire_status open_webhook(const struct config *config, struct metrics *metrics,
                                     struct webhook **webhook, struct fire_error *error)
{
    const struct webhook_settings settings = { .url = config->alert_webhook,
                                               .secret_file = config->alert_secret_file,
                                               .metrics = metrics };

    *webhook = NULL;
    return config->alert_webhook[0] ? webhook_open(&settings, webhook, error) : FIRE_OK;
}

enum fire_status alerts_run_reload(struct alerts_run *run, const struct config *config,
                                   struct fire_error *error)
{
    const size_t bytes = config->alert_count * sizeof(*config->alerts);
    struct alert_rule *rules = malloc(bytes ? bytes : 1);
    struct webhook *webhook = NULL;
    enum fire_status status = rules ? open_webhook(config, run->metrics, &webhook, error)
                                    : fire_fail_memory(error, bytes);

    if (status == FIRE_OK &&
        alerts_set_rules(run->alerts, config->alerts, config->alert_count, now_ms()) != FIRE_OK)
        status = fire_fail_memory(error, bytes);
    if (status != FIRE_OK) {
        webhook_close(webhook);
        free(rules);
        return status;
    }
    if (bytes)
        memcpy(rules, config->alerts, bytes);
    for (uint32_t i = 0; i < run->rule_count; i++) /* gauges of rules that are gone read 0 */
        metrics_set(run->metrics, METRIC_ALERTS_FIRING, run->rules[i].name, NULL, 0.0);
    free(run->rules);
    run->rules = rules;
    run->rule_count = config->alert_count;
    webhook_close(run->webhook);
    run->webhook = webhook;
    refresh_gauges(run);
    return FIRE_OK;
}

enum fire_status alerts_run_open(uv_loop_t *loop, const struct alerts_run_settings *settings,
                                 struct alerts_run **out, struct fire_error *error)
{
    struct alerts_run *run = calloc(1, sizeof(*run));
    enum fire_status status;

    *out = NULL;
    if (!run)
        return fire_fail_memory(error, sizeof(*run));
    run->metrics = settings->metrics;
    run->store = settings->store;
    run->data = settings->data;
    status = alerts_open(on_changed, run, &run->alerts);
    if (status == FIRE_OK)
        status = alerts_run_reload(run, settings->config, error);
    if (status != FIRE_OK) {
        alerts_close(run->alerts);
        free(run);
        return status;
    }
    uv_timer_init(loop, &run->timer);
    run->timer.data = run;
    uv_timer_start(&run->timer, on_timer, TICK_MS, TICK_MS);
    uv_unref((uv_handle_t *)&run->timer);
    *out = run;
    return FIRE_OK;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct alerts_run *run = handle->data;
    void (*closed)(void *data) = run->closed;
    void *data = run->closed_data;

    alerts_close(run->alerts);
    free(run->rules);
    free(run);
    closed(data);
}

void alerts_run_close(struct alerts_run *run, void (*closed)(void *data), void *data)
{
    if (!run) {
        closed(data);
        return;
    }
    run->closed = closed;
    run->closed_data = data;
    webhook_close(run->webhook);
    run->webhook = NULL;
    uv_close((uv_handle_t *)&run->timer, on_timer_closed);
}
