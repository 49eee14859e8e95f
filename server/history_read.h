/* history_read: what the files that answer share. For history*.c only. */
#ifndef FIRED_HISTORY_READ_H
#define FIRED_HISTORY_READ_H

#include "history_run.h"

#define READ_LEVEL_ANY ((int64_t)CHUNK_LEVEL_MAX) /* the coarsest cells that are kept */
#define READ_LEVEL_RAW ((int64_t)-1)              /* points */

/* Begins a transaction that sees one state; read_end() ends it, whatever came of it. */
FIRE_NODISCARD enum fire_status read_begin(struct history *history, struct fire_error *error);
void read_end(struct history *history);

/* Which steps, and what cells may be used. */
struct read_range {
    int64_t first, last; /* both included */
    int64_t level;
};

/* Appends to `cells` what the chunks of a series have in a range, then `logged` (its points in
 * logs). */
FIRE_NODISCARD enum fire_status read_cells(struct history *history, const struct run_row *row,
                                           int64_t series, const struct read_range *range,
                                           const struct chunk_points *logged,
                                           struct chunk_cells *cells, struct fire_error *error);

/* The points in logs of the series of `state` whose `wanted` flag is set, into their `points`. */
FIRE_NODISCARD enum fire_status read_logs(struct history *history, struct run_state *state,
                                          const bool *wanted, struct fire_error *error);

/* Appends events of a run in a range of steps, the oldest first. */
FIRE_NODISCARD enum fire_status read_events(struct history *history, const char *tenant,
                                            const char *run, const struct read_range *range,
                                            size_t *count, Fire__V1__Event ***events,
                                            struct fire_error *error);

enum fire_status read_fail(struct fire_error *error, enum fire_status status);

#endif
