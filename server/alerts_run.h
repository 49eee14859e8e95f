/* alerts_run: the alerts of a running daemon: rules from the settings, changes to the history, the
 * metrics, the log and the webhook. All functions belong to the loop thread. */
#ifndef FIRED_ALERTS_RUN_H
#define FIRED_ALERTS_RUN_H

#include <uv.h>

#include "config.h"
#include "fire/v1/monitor.pb-c.h"
#include "metrics.h"
#include "status.h"

struct alerts_run;

struct alerts_run_settings {
    const struct config *config; /* alerts, alert_webhook, alert_secret_file; read now */
    struct metrics *metrics;     /* may be NULL */
    /* Stores an event of `tenant`; may be NULL. */
    void (*store)(void *data, const char *tenant, const Fire__V1__Event *event);
    void *data;
};

/* On failure `*run` is NULL, and `error` says which setting is wrong. */
FIRE_NODISCARD enum fire_status alerts_run_open(uv_loop_t *loop,
                                                const struct alerts_run_settings *settings,
                                                struct alerts_run **run, struct fire_error *error);
/* `closed` is called on the loop when the last handle is gone. NULL is allowed: closed at once. */
void alerts_run_close(struct alerts_run *run, void (*closed)(void *data), void *data);

/* Other settings from now on. A fault leaves everything as it was. */
FIRE_NODISCARD enum fire_status alerts_run_reload(struct alerts_run *run,
                                                  const struct config *config,
                                                  struct fire_error *error);

/* The history knows this series as firing, from before the daemon started. One that no rule speaks
 * of any more is told to be ok. */
void alerts_run_restore(struct alerts_run *run, const char *rule, const char *tenant,
                        const char *id, const char *layer);
/* The history has points of this series, which a rule of silence may speak of. */
void alerts_run_expect(struct alerts_run *run, const char *rule, const char *tenant, const char *id,
                       const char *layer);

/* Points were stored. */
void alerts_run_points(struct alerts_run *run, const char *tenant, const char *id,
                       Fire__V1__Series *const *series, size_t count);

#endif
