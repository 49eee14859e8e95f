/* alerts: rules over what runs report, and the state each series is in.
 *
 * A rule names series by globs of run and layer and by statistic. A series that a rule speaks of is
 * ok, pending (the rule holds, but not yet for its hold time) or firing. This is the engine alone:
 * points and the time go in, changes come out by callback; no store, no network, no clock. One
 * thread at a time. Whoever keeps what fires gives it back after a restart (alerts_restore()). */
#ifndef FIRED_ALERTS_H
#define FIRED_ALERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define ALERTS_RULES_MAX    64u
#define ALERTS_SERIES_MAX   65536u /* states, all rules together; more are counted and left out */
#define ALERTS_POINTS_MAX   64u    /* of a slope's window */
#define ALERTS_NAME_BYTES   64u
#define ALERTS_GLOB_BYTES   256u
#define ALERTS_RUN_BYTES    129u
#define ALERTS_LAYER_BYTES  257u
#define ALERTS_TENANT_BYTES 65u

enum alert_kind {
    ALERT_THRESHOLD, /* the value itself */
    ALERT_SLOPE,     /* its change per step, over the last `window` steps (least squares) */
    ALERT_NO_DATA,   /* no point for `window` seconds, of a series that had one or is expected */
};

enum alert_state { ALERT_OK, ALERT_PENDING, ALERT_FIRING };

struct alert_rule {
    char name[ALERTS_NAME_BYTES];
    char run[ALERTS_GLOB_BYTES];   /* glob */
    char layer[ALERTS_GLOB_BYTES]; /* glob; "" is the whole run */
    char statistic[ALERTS_NAME_BYTES];
    enum alert_kind kind;
    bool below;    /* holds below `value`, not above it */
    double value;  /* of threshold and slope */
    double window; /* steps of a slope, seconds of no_data */
    double hold_s; /* the rule must hold so long before it fires */
};

/* A series changed its state. Texts live as long as the callback runs. */
struct alert_change {
    const struct alert_rule *rule;
    enum alert_state state;
    enum alert_state before;
    const char *tenant;
    const char *run;
    const char *layer;
    int64_t step; /* of its last point */
    double value; /* what was compared: the value, the slope, or seconds without a point */
    int64_t now_ms;
};

struct alerts;

/* `changed` is called from alerts_point(), alerts_tick() and alerts_set_rules(). */
FIRE_NODISCARD enum fire_status alerts_open(void (*changed)(void *data,
                                                            const struct alert_change *change),
                                            void *data, struct alerts **alerts);
void alerts_close(struct alerts *alerts); /* NULL is allowed; calls nothing */

/* Other rules from now on; copied. A rule that stays as it was keeps its states; a series of one
 * that is gone becomes ok. */
FIRE_NODISCARD enum fire_status alerts_set_rules(struct alerts *alerts,
                                                 const struct alert_rule *rules, size_t count,
                                                 int64_t now_ms);

/* A point was stored. */
void alerts_point(struct alerts *alerts, const char *tenant, const char *run, const char *layer,
                  const char *statistic, int64_t step, double value, int64_t now_ms);

/* The series was firing when the daemon stopped: it still is, and nobody is told, until a point (of
 * a slope: enough of them) says otherwise. False: no rule of that name speaks of it any more, or
 * there is no room. */
bool alerts_restore(struct alerts *alerts, const char *rule, const char *tenant, const char *run,
                    const char *layer, int64_t now_ms);

/* The series had points before the daemon started, so a rule of silence (others: nothing happens)
 * speaks of it: its window begins now. One that is known already stays as it is. */
void alerts_expect(struct alerts *alerts, const char *rule, const char *tenant, const char *run,
                   const char *layer, int64_t now_ms);

/* Time passes: hold times end, data stays away. */
void alerts_tick(struct alerts *alerts, int64_t now_ms);

size_t alerts_firing(const struct alerts *alerts, size_t rule); /* series of a rule */
size_t alerts_series(const struct alerts *alerts);              /* states kept */
uint64_t alerts_left_out(const struct alerts *alerts); /* points without room for a state */

const char *alert_state_name(enum alert_state state); /* "ok", "pending", "firing" */
const char *alert_kind_name(enum alert_kind kind);    /* "threshold", "slope", "no_data" */

#endif
