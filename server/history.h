/* history: runs, layers, points and events on disk, in SQLite or PostgreSQL (history_sql.h).
 *
 * A report is first one row of packed points (a log) beside its run; once a run has enough of them
 * they are folded into chunks (history_chunk.h), in the transaction that writes. Logs hold only
 * points behind everything a series has, so reading is: chunks, then logs. A report that goes back
 * in steps folds first and is merged into the chunks, so that a point is there once and the last
 * value sent stands.
 *
 * A struct history is one connection and belongs to one thread at a time; one of them writes. What
 * fails in the database is FIRE_IO, after which history_broken() holds: close it and open another.
 * Nothing here waits longer than the timeout of the settings. */
#ifndef FIRED_HISTORY_H
#define FIRED_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "fire/v1/monitor.pb-c.h"
#include "history_sql.h"
#include "status.h"

#define HISTORY_LAYERS_MAX       10000u  /* of a run */
#define HISTORY_SERIES_MAX       200000u /* of a run */
#define HISTORY_RUNS_MAX         100000u /* of a tenant */
#define HISTORY_FOLD_POINTS      131072u /* in logs of a run, before they are folded */
#define HISTORY_FOLD_ROWS        512u
#define HISTORY_CELLS_MAX        600000u /* of one answer */
#define HISTORY_RESOLUTION_MAX   4096u
#define HISTORY_EVENTS_MAX       1000u
#define HISTORY_SPECTRA_MAX      128u /* events of one answer that come with their spectra */
#define HISTORY_SPARK_MAX        64u
#define HISTORY_TIME_STATISTIC   "time_ms" /* of the whole run: when a step was reported */
#define HISTORY_GROWTH_STATISTIC "dfi"     /* which worst_layer and spark look at */

struct history;

struct history_settings {
    const struct sql_backend *backend;
    struct sql_settings sql;
};

/* One thing to write, and what became of it. */
struct history_entry {
    const char *tenant;
    const Fire__V1__ReportRequest *report; /* NULL: none; checked (monitor_check.h) */
    Fire__V1__Event **events;              /* their ids are filled in */
    size_t event_count;
    int64_t now_ms;
    /* Written by history_write(). FIRE_BAD_REQUEST: this one was refused, the others stand. */
    enum fire_status status;
    struct fire_error error;
    uint64_t points_added;
    uint64_t points_replaced;
};

/* On failure `*out` is NULL; `corrupt` (may be NULL) says whether what is stored is unusable. */
FIRE_NODISCARD enum fire_status history_open(const struct history_settings *settings,
                                             struct history **out, bool *corrupt,
                                             struct fire_error *error);
void history_close(struct history *history); /* NULL is allowed */
bool history_broken(const struct history *history);
bool history_corrupt(const struct history *history);

/* Writes all entries in one transaction. FIRE_OK: it is on disk. Otherwise nothing was written. */
FIRE_NODISCARD enum fire_status history_write(struct history *history,
                                              struct history_entry *const *entries, size_t count,
                                              struct fire_error *error);
/* A small write, to see whether writing works. */
FIRE_NODISCARD enum fire_status history_probe(struct history *history, int64_t now_ms,
                                              struct fire_error *error);

/* An alert as a daemon left it: firing, or of a rule that waits for a silence. */
struct history_alert {
    const char *tenant;
    const char *run;
    const char *layer;
    const char *rule;
    bool firing;
};
/* A rule that waits for silence: which series it may speak of. */
struct history_silence {
    const char *rule;
    const char *statistic;
    int64_t span_ms; /* how long before the last report of all a run may have been seen */
};
/* Makes runs of daemons that are gone our own (history_settings.sql.owner) and calls `each` for
 * every alert of theirs that fires, and for every series of `silences`; each at most `count_max`
 * times. Texts live as long as the call. A daemon is gone when its connection is. */
FIRE_NODISCARD enum fire_status history_take_over(
    struct history *history, const struct history_silence *silences, size_t count, size_t count_max,
    void (*each)(void *data, const struct history_alert *alert), void *data,
    struct fire_error *error);

struct history_upkeep {
    int64_t now_ms;
    uint32_t retention_days;  /* runs and events not seen for longer go; 0: none do */
    uint32_t downsample_days; /* of chunks not written for longer the roll-up stays; 0: all does */
};
/* One bounded piece of upkeep; `more`: call again soon. */
FIRE_NODISCARD enum fire_status history_maintain(struct history *history,
                                                 const struct history_upkeep *upkeep, bool *more,
                                                 struct fire_error *error);

/* Answers, the caller's to free; NULL on failure. FIRE_NOT_FOUND and FIRE_BAD_REQUEST are the
 * caller's mistakes. Requests have been checked. */
FIRE_NODISCARD enum fire_status history_list_runs(struct history *history, const char *tenant,
                                                  const Fire__V1__ListRunsRequest *request,
                                                  Fire__V1__ListRunsResponse **response,
                                                  struct fire_error *error);
FIRE_NODISCARD enum fire_status history_query(struct history *history, const char *tenant,
                                              const Fire__V1__QueryRequest *request,
                                              Fire__V1__QueryResponse **response,
                                              struct fire_error *error);
FIRE_NODISCARD enum fire_status history_list_events(struct history *history, const char *tenant,
                                                    const Fire__V1__ListEventsRequest *request,
                                                    Fire__V1__ListEventsResponse **response,
                                                    struct fire_error *error);

#endif
