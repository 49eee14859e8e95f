/* history_run: what the files of the history share: a connection, rows of runs, and what the writer
 * remembers of a run so that a report needs few reads. For history*.c only. */
#ifndef FIRED_HISTORY_RUN_H
#define FIRED_HISTORY_RUN_H

#include "history.h"
#include "history_chunk.h"

#define RUNS_REMEMBERED_MAX   256u
#define SERIES_REMEMBERED_MAX 1000000u

/* A row of the table. */
struct run_row {
    int64_t id;
    int64_t first_seen_ms;
    int64_t last_seen_ms;
    int64_t first_step; /* -1: no point yet */
    int64_t last_step;
    int64_t points;
    int64_t layers;
    int64_t pending_points;
    int64_t pending_rows;
    int64_t version; /* changes with each write */
    int64_t alerts_firing;
};

struct layer_state {
    int64_t id;
    char *name;
    uint64_t *shape;
    size_t shape_count;
};

struct series_state {
    int64_t id;
    int64_t layer_id;
    char *statistic;
    int64_t chunk_last;         /* last step in chunks; -1: none */
    int64_t last_step;          /* with those in logs */
    int64_t sealed_step;        /* up to here only roll-ups are kept */
    struct chunk_points points; /* being folded */
};

/* Where a name is: open addressing, positions plus one; 0 is free. */
struct name_table {
    uint32_t *places;
    size_t room; /* a power of two */
    size_t used;
};

struct run_state {
    struct run_state *next; /* most recently used first */
    char *tenant;
    char *run;
    struct run_row row;
    uint64_t
        locked; /* the transaction that locked it last: until that ends nobody else writes it */
    Fire__V1__RunInfo *info; /* NULL: none */
    struct layer_state *layers;
    size_t layer_count, layer_room;
    struct series_state *series; /* by id */
    size_t series_count, series_room;
    struct name_table layer_names;
    struct name_table series_names;
};

struct run_summary; /* of a run that did not change, for lists */

struct history {
    struct sql_db *db;
    int64_t owner;          /* of the runs it writes */
    uint64_t transactions;  /* begun for writing */
    struct run_state *runs; /* the writer's */
    size_t run_count;
    size_t series_count;           /* of all of them */
    struct run_summary *summaries; /* the reader's */
    size_t summary_count;
};

/* Columns of a row as RUN_COLUMNS has them. */
void run_row_read(const struct sql_value *columns, struct run_row *row);
/* NULL when the bytes are no message of that kind. */
Fire__V1__RunInfo *run_info_read(const struct sql_value *column);
Fire__V1__Event *event_read(const struct sql_value *column);

/* history_run.c: a run with its layers and series, for reading. `state` is zeroed by the caller,
 * who releases it, also after a failure; its `run` is borrowed. FIRE_NOT_FOUND when it is not
 * there. */
FIRE_NODISCARD enum fire_status run_read(struct history *history, const char *tenant,
                                         const char *run, struct run_state *state,
                                         struct fire_error *error);
void run_state_release(struct run_state *state);

/* Begins a transaction that writes; run_end() ends it. */
FIRE_NODISCARD enum fire_status run_begin(struct history *history, struct fire_error *error);
/* Commits when `status` is FIRE_OK; rolls back when it is not, or when that fails. */
FIRE_NODISCARD enum fire_status run_end(struct history *history, enum fire_status status,
                                        struct fire_error *error);
/* The run as it is now, locked for writing. FIRE_NOT_FOUND when it is not there. The
 * state belongs to the history and lives until the next run_lock() or run_forget_all(). */
FIRE_NODISCARD enum fire_status run_lock(struct history *history, const char *tenant,
                                         const char *run, struct run_state **state,
                                         struct fire_error *error);
/* The same, and makes it when it is missing; FIRE_BAD_REQUEST: the tenant has too many. */
FIRE_NODISCARD enum fire_status run_lock_or_add(struct history *history, const char *tenant,
                                                const char *run, int64_t now_ms,
                                                struct run_state **state, struct fire_error *error);
void run_forget_all(struct history *history); /* after a rollback */

struct layer_state *run_layer(const struct run_state *state, const char *name);
struct series_state *run_series(const struct run_state *state, int64_t layer_id,
                                const char *statistic);
struct series_state *run_series_by_id(const struct run_state *state, int64_t id);
/* Add to memory only. */
struct layer_state *run_layer_put(struct run_state *state, int64_t id, const char *name);
struct series_state *run_series_put(struct run_state *state, int64_t id, int64_t layer_id,
                                    const char *statistic);
bool layer_shape_set(struct layer_state *layer, const uint64_t *shape, size_t count);
/* Writes the row's counters; the version grows. The run is `owner`'s from now on; 0: it stays whose
 * it was. */
FIRE_NODISCARD enum fire_status run_save(struct history *history, struct run_state *state,
                                         int64_t owner, struct fire_error *error);

/* history_fold.c */
FIRE_NODISCARD enum fire_status run_fold(struct history *history, struct run_state *state,
                                         int64_t now_ms, struct fire_error *error);
/* Merges points (steps rising) of one series into its chunks. Its run has been folded, or they lie
 * behind all it has. */
FIRE_NODISCARD enum fire_status series_merge(struct history *history, const struct run_state *state,
                                             struct series_state *series,
                                             const struct chunk_points *points, int64_t now_ms,
                                             uint64_t *added, struct fire_error *error);

/* history_read.c */
void run_summaries_release(struct history *history);

#endif
