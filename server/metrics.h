/* metrics: counters, gauges and histograms, and their Prometheus text.
 *
 * The families are one table in metrics.c: name, kind, labels, buckets, help. A series is a family
 * and up to two label values. Any thread. A family keeps at most METRICS_SERIES_MAX series; label
 * values beyond that are counted under "other", so a caller cannot grow the daemon. */
#ifndef FIRED_METRICS_H
#define FIRED_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define METRICS_SERIES_MAX 1024u

enum metric {
    /* calls */
    METRIC_CALLS,            /* counter fired_calls_total{method,code} */
    METRIC_CALL_SECONDS,     /* histogram fired_call_seconds{method} */
    METRIC_CALLS_RUNNING,    /* gauge fired_calls_running */
    METRIC_REFUSALS,         /* counter fired_refusals_total{reason} */
    METRIC_BYTES_RECEIVED,   /* counter fired_received_bytes_total{tenant} */
    METRIC_BYTES_SENT,       /* counter fired_sent_bytes_total{tenant} */
    METRIC_CUT_OFF,          /* counter fired_callers_cut_off_total{reason}: reading, sending */
    METRIC_EXPIRED_LATENESS, /* histogram fired_deadline_lateness_seconds: status after deadline */
    /* work */
    METRIC_JOBS,            /* counter fired_matrices_total{tenant} computed */
    METRIC_JOBS_DROPPED,    /* counter fired_matrices_dropped_total{reason}: cancelled, expired */
    METRIC_JOBS_LATE,       /* counter fired_matrices_computed_late_total: begun after deadline */
    METRIC_JOBS_WAITING,    /* gauge fired_matrices_waiting */
    METRIC_JOBS_RUNNING,    /* gauge fired_matrices_running */
    METRIC_BATCHES,         /* counter fired_batches_total{reason} */
    METRIC_BATCH_SIZE,      /* histogram fired_batch_size{class}: small, large */
    METRIC_QUEUE_SECONDS,   /* histogram fired_queue_seconds{priority} */
    METRIC_COMPUTE_SECONDS, /* histogram fired_compute_seconds{device} */
    METRIC_DEVICE_SECONDS,  /* counter fired_device_seconds_total{tenant} */
    METRIC_DEVICE_UP,       /* gauge fired_device_up{device,path} */
    METRIC_NOT_CONVERGED,   /* counter fired_not_converged_total */
    METRIC_RANK_DEFECTS,    /* counter fired_rank_defects_total */
    /* memory */
    METRIC_MEMORY_BUDGET,  /* gauge fired_memory_budget_bytes */
    METRIC_SLAB_BYTES,     /* gauge fired_slab_bytes */
    METRIC_MESSAGE_BYTES,  /* gauge fired_message_bytes */
    METRIC_RESIDENT_BYTES, /* gauge fired_resident_bytes */
    /* life */
    METRIC_START_TIME, /* gauge fired_start_time_seconds */
    METRIC_BUILD,      /* gauge fired_build_info{version,path} 1 */
    METRIC_DRAINING,   /* gauge fired_draining */
    METRIC_RELOADS,    /* counter fired_reloads_total{result} */
    METRIC_HTTP,       /* counter fired_http_requests_total{path,code} */
    /* history */
    METRIC_HISTORY_UP,      /* gauge fired_history_up */
    METRIC_HISTORY_POINTS,  /* counter fired_history_points_total, stored */
    METRIC_HISTORY_DROPPED, /* counter fired_history_dropped_total: recordings without room */
    /* alerts */
    METRIC_ALERTS_FIRING, /* gauge fired_alerts_firing{rule} */
    METRIC_ALERT_CHANGES, /* counter fired_alert_changes_total{rule,state} */
    METRIC_WEBHOOKS,      /* counter fired_webhooks_total{result}: sent, retried, failed, dropped */
    METRIC_COUNT,
};

struct metrics;

FIRE_NODISCARD enum fire_status metrics_open(struct metrics **metrics);
void metrics_close(struct metrics *metrics); /* NULL is allowed */

/* Label values may be NULL where the family has fewer labels. `metrics` may be NULL: nothing is
 * counted (unit tests). */
void metrics_add(struct metrics *metrics, enum metric id, const char *first, const char *second,
                 double amount);
void metrics_set(struct metrics *metrics, enum metric id, const char *first, const char *second,
                 double value);
void metrics_observe(struct metrics *metrics, enum metric id, const char *first, double value);

/* One series' value (of a histogram: its count), 0 when it does not exist; for Status and tests. */
double metrics_value(struct metrics *metrics, enum metric id, const char *first,
                     const char *second);

/* Calls `each` for every series of a family. */
void metrics_each(struct metrics *metrics, enum metric id,
                  void (*each)(void *data, const char *first, const char *second, double value),
                  void *data);

/* The whole text in Prometheus exposition format 0.0.4; the caller frees `*text`. */
FIRE_NODISCARD enum fire_status metrics_text(struct metrics *metrics, char **text, size_t *bytes);

#endif
