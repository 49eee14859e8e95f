/* alerts: one state for each rule and series, found by a hash of both.
 *
 * Invariants:
 *   a state is in the table exactly once, and in its bucket's list
 *   a state of a rule has been seen: its last step and time are those of a point, or of its being
 *   restored or expected
 *   rules keep their index; alerts_set_rules() moves or ends the states of the old ones */
#include "alerts.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS          4096u /* a power of two */
#define SLOPE_POINTS_MIN 3u

/* The last points of a slope's window, a ring. */
struct ring {
    int64_t steps[ALERTS_POINTS_MAX];
    double values[ALERTS_POINTS_MAX];
    uint32_t first;
    uint32_t count;
};

struct series_state {
    struct series_state *next; /* of the bucket */
    uint64_t hash;
    size_t rule;
    enum alert_state state;
    int64_t since_ms; /* when the rule began to hold */
    int64_t seen_ms;  /* the last point */
    int64_t step;
    double value;      /* what was compared last */
    bool restored;     /* firing since before the daemon started, and no value is known yet */
    struct ring *ring; /* of slopes; owned */
    char tenant[ALERTS_TENANT_BYTES];
    char run[ALERTS_RUN_BYTES];
    char layer[ALERTS_LAYER_BYTES];
};

struct alerts {
    void (*changed)(void *data, const struct alert_change *change);
    void *data;
    struct alert_rule *rules;
    size_t rule_count;
    struct series_state *buckets[BUCKETS];
    size_t count;
    uint64_t left_out;
    size_t firing[ALERTS_RULES_MAX];
};

const char *alert_state_name(enum alert_state state)
{
    static const char *const names[] = { "ok", "pending", "firing" };

    return names[state];
}

const char *alert_kind_name(enum alert_kind kind)
{
    static const char *const names[] = { "threshold", "slope", "no_data" };

    return names[kind];
}

enum fire_status alerts_open(void (*changed)(void *data, const struct alert_change *change),
                             void *data, struct alerts **alerts)
{
    *alerts = calloc(1, sizeof(**alerts));
    if (!*alerts)
        return FIRE_NO_MEMORY;
    (*alerts)->changed = changed;
    (*alerts)->data = data;
    return FIRE_OK;
}

static void state_free(struct series_state *state)
{
    free(state->ring);
    free(state);
}

void alerts_close(struct alerts *alerts)
{
    if (!alerts)
        return;
    for (size_t i = 0; i < BUCKETS; i++) {
        struct series_state *next;

        for (struct series_state *state = alerts->buckets[i]; state; state = next) {
            next = state->next;
            state_free(state);
        }
    }
    free(alerts->rules);
    free(alerts);
}

/* FNV-1a. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    do {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    } while (*text++);
    return hash;
}

static uint64_t hash_of(size_t rule, const char *tenant, const char *run, const char *layer)
{
    uint64_t hash = (0xcbf29ce484222325u ^ rule) * 0x100000001b3u;

    hash = hash_text(hash, tenant);
    hash = hash_text(hash, run);
    hash = hash_text(hash, layer);
    return hash ^ hash >> 32;
}

static struct series_state *state_find(const struct alerts *alerts, uint64_t hash, size_t rule,
                                       const char *tenant, const char *run, const char *layer)
{
    struct series_state *state = alerts->buckets[hash & (BUCKETS - 1)];

    while (state &&
           (state->hash != hash || state->rule != rule || strcmp(state->tenant, tenant) != 0 ||
            strcmp(state->run, run) != 0 || strcmp(state->layer, layer) != 0))
        state = state->next;
    return state;
}

/* The state of a series, made when it is new; NULL: there is no room, or a name is too long. */
static struct series_state *state_get(struct alerts *alerts, size_t rule, const char *tenant,
                                      const char *run, const char *layer)
{
    const uint64_t hash = hash_of(rule, tenant, run, layer);
    struct series_state *state = state_find(alerts, hash, rule, tenant, run, layer);

    if (state)
        return state;
    if (alerts->count == ALERTS_SERIES_MAX || strlen(tenant) >= sizeof(state->tenant) ||
        strlen(run) >= sizeof(state->run) || strlen(layer) >= sizeof(state->layer))
        return NULL;
    state = calloc(1, sizeof(*state));
    if (!state)
        return NULL;
    if (alerts->rules[rule].kind == ALERT_SLOPE) {
        state->ring = calloc(1, sizeof(*state->ring));
        if (!state->ring) {
            free(state);
            return NULL;
        }
    }
    state->hash = hash;
    state->rule = rule;
    memcpy(state->tenant, tenant, strlen(tenant) + 1);
    memcpy(state->run, run, strlen(run) + 1);
    memcpy(state->layer, layer, strlen(layer) + 1);
    state->next = alerts->buckets[hash & (BUCKETS - 1)];
    alerts->buckets[hash & (BUCKETS - 1)] = state;
    alerts->count++;
    return state;
}

/* --- changes ---------------------------------------------------------------------------------- */

static void state_set(struct alerts *alerts, struct series_state *state, enum alert_state to,
                      int64_t now_ms)
{
    const struct alert_change change = { .rule = &alerts->rules[state->rule],
                                         .state = to,
                                         .before = state->state,
                                         .tenant = state->tenant,
                                         .run = state->run,
                                         .layer = state->layer,
                                         .step = state->step,
                                         .value = state->value,
                                         .now_ms = now_ms };

    if (to == state->state)
        return;
    alerts->firing[state->rule] += to == ALERT_FIRING;
    alerts->firing[state->rule] -= state->state == ALERT_FIRING;
    state->state = to;
    alerts->changed(alerts->data, &change);
}

/* The rule holds, or not, at this time. */
static void state_judge(struct alerts *alerts, struct series_state *state, bool holds,
                        int64_t now_ms)
{
    const double hold_ms = 1e3 * alerts->rules[state->rule].hold_s;

    if (!holds) {
        state_set(alerts, state, ALERT_OK, now_ms);
        return;
    }
    if (state->state == ALERT_OK) {
        state->since_ms = now_ms;
        state_set(alerts, state, ALERT_PENDING, now_ms);
    }
    if (state->state == ALERT_PENDING && (double)(now_ms - state->since_ms) >= hold_ms)
        state_set(alerts, state, ALERT_FIRING, now_ms);
}

/* --- slopes ----------------------------------------------------------------------------------- */

static void ring_add(struct ring *ring, int64_t step, double value, double window)
{
    const uint32_t last = (ring->first + ring->count - 1) % ALERTS_POINTS_MAX;

    /* Going back starts anew; the same step again has the last value sent. */
    if (ring->count && step < ring->steps[last]) {
        ring->count = 0;
    } else if (ring->count && step == ring->steps[last]) {
        ring->values[last] = value;
        return;
    }
    if (ring->count == ALERTS_POINTS_MAX) {
        ring->first = (ring->first + 1) % ALERTS_POINTS_MAX;
        ring->count--;
    }
    ring->steps[(ring->first + ring->count) % ALERTS_POINTS_MAX] = step;
    ring->values[(ring->first + ring->count) % ALERTS_POINTS_MAX] = value;
    ring->count++;
    while (ring->count && (double)(step - ring->steps[ring->first]) > window) {
        ring->first = (ring->first + 1) % ALERTS_POINTS_MAX;
        ring->count--;
    }
}

/* Change per step by least squares; NAN for too few points. */
static double ring_slope(const struct ring *ring)
{
    double mean_step = 0.0, mean_value = 0.0, product = 0.0, square = 0.0;
    const int64_t origin = ring->steps[ring->first];

    if (ring->count < SLOPE_POINTS_MIN)
        return NAN;
    for (uint32_t i = 0; i < ring->count; i++) {
        const uint32_t at = (ring->first + i) % ALERTS_POINTS_MAX;

        mean_step += (double)(ring->steps[at] - origin) / ring->count;
        mean_value += ring->values[at] / ring->count;
    }
    for (uint32_t i = 0; i < ring->count; i++) {
        const uint32_t at = (ring->first + i) % ALERTS_POINTS_MAX;
        const double distance = (double)(ring->steps[at] - origin) - mean_step;

        product += distance * (ring->values[at] - mean_value);
        square += distance * distance;
    }
    return square > 0.0 ? product / square : NAN;
}

/* --- what goes in ----------------------------------------------------------------------------- */

static bool rule_matches(const struct alert_rule *rule, const char *run, const char *layer,
                         const char *statistic)
{
    return strcmp(rule->statistic, statistic) == 0 && fnmatch(rule->run, run, 0) == 0 &&
           (layer[0] ? rule->layer[0] && fnmatch(rule->layer, layer, 0) == 0 : !rule->layer[0]);
}

static bool crosses(const struct alert_rule *rule, double value)
{
    return rule->below ? value < rule->value : value > rule->value;
}

void alerts_point(struct alerts *alerts, const char *tenant, const char *run, const char *layer,
                  const char *statistic, int64_t step, double value, int64_t now_ms)
{
    for (size_t i = 0; i < alerts->rule_count; i++) {
        const struct alert_rule *rule = &alerts->rules[i];
        struct series_state *state;

        if (!rule_matches(rule, run, layer, statistic))
            continue;
        state = state_get(alerts, i, tenant, run, layer);
        if (!state) {
            alerts->left_out++;
            continue;
        }
        state->seen_ms = now_ms;
        state->step = step;
        switch (rule->kind) {
        case ALERT_THRESHOLD:
            state->value = value;
            state_judge(alerts, state, crosses(rule, value), now_ms);
            break;
        case ALERT_SLOPE:
            ring_add(state->ring, step, value, rule->window);
            state->value = ring_slope(state->ring);
            if (isnan(state->value) && state->restored)
                break; /* too few points to end it */
            state->restored = false;
            state_judge(alerts, state, !isnan(state->value) && crosses(rule, state->value), now_ms);
            break;
        case ALERT_NO_DATA:
            state->value = 0.0;
            state_judge(alerts, state, false, now_ms);
            break;
        }
    }
}

/* The rule of that name, if it speaks of the series; else the count of rules. */
static size_t rule_named(const struct alerts *alerts, const char *name, const char *run,
                         const char *layer)
{
    size_t at = 0;

    while (at < alerts->rule_count && strcmp(alerts->rules[at].name, name) != 0)
        at++;
    if (at < alerts->rule_count &&
        rule_matches(&alerts->rules[at], run, layer, alerts->rules[at].statistic))
        return at;
    return alerts->rule_count;
}

void alerts_expect(struct alerts *alerts, const char *rule, const char *tenant, const char *run,
                   const char *layer, int64_t now_ms)
{
    const size_t at = rule_named(alerts, rule, run, layer);
    struct series_state *state;

    if (at == alerts->rule_count || alerts->rules[at].kind != ALERT_NO_DATA ||
        state_find(alerts, hash_of(at, tenant, run, layer), at, tenant, run, layer))
        return;
    state = state_get(alerts, at, tenant, run, layer);
    if (state)
        state->seen_ms = now_ms;
    else
        alerts->left_out++;
}

bool alerts_restore(struct alerts *alerts, const char *rule, const char *tenant, const char *run,
                    const char *layer, int64_t now_ms)
{
    const size_t at = rule_named(alerts, rule, run, layer);
    struct series_state *state;

    if (at == alerts->rule_count)
        return false;
    state = state_get(alerts, at, tenant, run, layer);
    if (!state)
        return false;
    if (state->state != ALERT_FIRING)
        alerts->firing[at]++;
    state->state = ALERT_FIRING;
    state->restored = true;
    state->since_ms = now_ms;
    state->seen_ms = now_ms;
    state->value = NAN;
    return true;
}

void alerts_tick(struct alerts *alerts, int64_t now_ms)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct series_state *state = alerts->buckets[i]; state; state = state->next) {
            const struct alert_rule *rule = &alerts->rules[state->rule];
            const double silent_s = 1e-3 * (double)(now_ms - state->seen_ms);

            if (rule->kind == ALERT_NO_DATA && silent_s >= rule->window) {
                state->value = silent_s;
                state_judge(alerts, state, true, now_ms);
            } else if (state->state == ALERT_PENDING) {
                state_judge(alerts, state, true, now_ms);
            }
        }
    }
}

/* --- other rules ------------------------------------------------------------------------------ */

static bool rules_equal(const struct alert_rule *a, const struct alert_rule *b)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->run, b->run) == 0 &&
           strcmp(a->layer, b->layer) == 0 && strcmp(a->statistic, b->statistic) == 0 &&
           a->kind == b->kind && a->below == b->below && a->value == b->value &&
           a->window == b->window && a->hold_s == b->hold_s;
}

/* Where an old rule is in the new list, or `count`. */
static size_t rule_place(const struct alert_rule *rule, const struct alert_rule *rules,
                         size_t count)
{
    size_t at = 0;

    while (at < count && !rules_equal(rule, &rules[at]))
        at++;
    return at;
}

enum fire_status alerts_set_rules(struct alerts *alerts, const struct alert_rule *rules,
                                  size_t count, int64_t now_ms)
{
    struct alert_rule *copy = calloc(count ? count : 1, sizeof(*copy));
    struct series_state *kept = NULL;

    FIRE_ASSERT(count <= ALERTS_RULES_MAX);
    if (!copy)
        return FIRE_NO_MEMORY;
    if (count)
        memcpy(copy, rules, count * sizeof(*copy));
    /* States of rules that are gone end while their rule can still be named; the others are taken
     * out, for their place in the table depends on the rule's number. */
    for (size_t i = 0; i < BUCKETS; i++) {
        while (alerts->buckets[i]) {
            struct series_state *state = alerts->buckets[i];

            alerts->buckets[i] = state->next;
            if (rule_place(&alerts->rules[state->rule], copy, count) == count) {
                state_set(alerts, state, ALERT_OK, now_ms);
                state_free(state);
                alerts->count--;
            } else {
                state->next = kept;
                kept = state;
            }
        }
    }
    memset(alerts->firing, 0, sizeof(alerts->firing));
    while (kept) {
        struct series_state *state = kept;

        kept = state->next;
        state->rule = rule_place(&alerts->rules[state->rule], copy, count);
        state->hash = hash_of(state->rule, state->tenant, state->run, state->layer);
        state->next = alerts->buckets[state->hash & (BUCKETS - 1)];
        alerts->buckets[state->hash & (BUCKETS - 1)] = state;
        alerts->firing[state->rule] += state->state == ALERT_FIRING;
    }
    free(alerts->rules);
    alerts->rules = copy;
    alerts->rule_count = count;
    return FIRE_OK;
}

size_t alerts_firing(const struct alerts *alerts, size_t rule)
{
    return alerts->firing[rule];
}

size_t alerts_series(const struct alerts *alerts)
{
    return alerts->count;
}

uint64_t alerts_left_out(const struct alerts *alerts)
{
    return alerts->left_out;
}
