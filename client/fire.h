/* fire.h: libfire, the C library of fired.
 *
 * A client turns tensors into their nearest isometries and says what happened: in this process
 * (fire_client_open_local), or by a daemon (fire_client_open_remote). The calls are the same.
 *
 *     struct fire_client *client;
 *     if (fire_client_open_remote(NULL, &client, NULL) != FIRE_OK)
 *         errx(1, "%s", fire_last_error());
 *     struct fire_tensor tensor = { .name = "fc.weight", .dtype = FIRE_F32,
 *                                   .shape = { 2, { 256, 784 } }, .data = w, .out = w };
 *     fire_options_preset(&tensor.options, "fire", NULL);
 *     if (fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, NULL) != FIRE_OK)
 *         errx(1, "%s", fire_last_error());
 *     printf("DfI %g -> %g\n", tensor.result.before.dfi, tensor.result.after.dfi);
 *     fire_client_close(client);
 *
 * Programs that send much through a daemon gain up to a factor of two from
 * mallopt(M_TRIM_THRESHOLD, 1 << 30), M_TOP_PAD of 16 MiB and M_MMAP_THRESHOLD of 32 MiB at their
 * start: gRPC allocates what it receives. The library leaves malloc alone.
 *
 * fork: a remote client starts threads with its first call and not before, and ends them when it is
 * closed. Open or first use it after fork(), or close all before it; while a process has one in
 * use, a child of it may use none (the call says so) unless it calls exec(). A local client starts
 * threads when it is opened. */
#ifndef FIRE_H
#define FIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "options.h"
#include "plan.h"
#include "result.h"
#include "state.h"
#include "statistics.h"
#include "status.h"
#include "tensor.h"

#define FIRE_VERSION "0.2.0"

struct fire_client; /* local or remote */

/* A tensor of optimizer state that belongs to a weight. The library reads `data` and writes what
 * options.state_policy makes of it to `out`; with state_scope touched, state of a weight that was
 * not projected is kept. Analyze ignores state. */
struct fire_state_tensor {
    enum fire_state_slot slot;
    enum fire_dtype dtype;
    uint32_t integer_bytes;  /* 0: floating, as `dtype` says; 4 or 8: signed, slot `step` only */
    struct fire_shape shape; /* the weight's; of `step` any, 0 axes are a scalar */
    const void *data;
    void *out;                     /* may be `data` */
    enum fire_state_policy action; /* written: what was done */
};

/* In which batch a daemon computed a tensor; all 0 and NULL for a local client. */
struct fire_batch_info {
    uint64_t id;              /* as in the daemon's log; the last one if there were several */
    uint32_t size;            /* matrices in it, other callers' included */
    const char *close_reason; /* "idle", "full", "end-of-set", "deadline", "delay" or "drain" */
    double queue_ms;          /* from complete arrival to the start of the batch */
    double compute_ms;        /* the device worked on the batch */
};

/* A weight tensor of the caller's. The library reads `data` and writes `out` (which may be `data`
 * itself) and `result`; everything else is the caller's. */
struct fire_tensor {
    const char *name; /* used in messages and to seed completion. NULL is allowed, but give every
                         tensor of a set its own: a daemon sees the others as NAME#NUMBER */
    enum fire_dtype dtype;
    struct fire_shape shape;
    struct fire_options options;
    const void *data;
    void *out;                      /* NULL for analyze */
    struct fire_result result;      /* merged over the tensor's matrices */
    struct fire_result *per_matrix; /* NULL, or room for one result a matrix */
    struct fire_error error;        /* why this tensor was refused; status FIRE_OK otherwise */
    /* Optional, for dormant statistics. */
    const double *unit_means; /* mean |activation| of each output unit, or NULL */
    uint64_t unit_count;
    const void *gradient; /* same shape as the weight, or NULL */
    enum fire_dtype gradient_dtype;
    /* Optional: optimizer state that changes with the weight. */
    struct fire_state_tensor *states;
    size_t state_count;
    struct fire_batch_info batch; /* written */
};

struct fire_local_settings {
    uint32_t threads;    /* 0: all the process may run on */
    const char *path;    /* NULL or "auto", "portable", "avx2", "avx512", "amx" */
    uint64_t slab_bytes; /* gathered at once; 0: 64 MiB, or the largest matrix */
    /* fire_client_start() leaves the end of a set without a callback to fire_client_wait(), and the
     * device has work while the next set begins. */
    bool ahead;
    /* NULL, or asked some ten times a second by calls that compute or wait (fire_client_close() is
     * one), on their thread. True: what runs is given up; sets of which something is missing, and
     * all later ones, end with FIRE_CANCELLED. */
    bool (*stop)(void *data);
    void *stop_data;
};

/* Opens a client that computes in this process. NULL settings mean the defaults. On success the
 * caller owns `*client`; on failure it is NULL. */
FIRE_NODISCARD enum fire_status fire_client_open_local(const struct fire_local_settings *settings,
                                                       struct fire_client **client,
                                                       struct fire_error *error);

/* How urgent a daemon takes a call. */
enum fire_priority { FIRE_PRIORITY_NORMAL, FIRE_PRIORITY_INTERACTIVE, FIRE_PRIORITY_BULK };

/* Texts are copied and files read when the client is opened. */
struct fire_remote_settings {
    const char *address; /* "unix:PATH" or "HOST:PORT"; NULL: $FIRED_ADDR, or else the socket of a
                            daemon with default settings if it is there, or 127.0.0.1:8470 */
    const char *tenant;  /* who asks, where the daemon has no credentials; NULL: "local" */
    const char *token;   /* bearer token; NULL: $FIRED_TOKEN, or none */
    const char *ca_file; /* PEM; not NULL: TLS, and the daemon's certificate must come from it */
    const char *certificate_file; /* PEM, for a daemon that asks for one; with key_file */
    const char *key_file;
    const char *server_name; /* in the daemon's certificate; NULL: the host of the address */
    double deadline_s;       /* of a set, retries included; 0: 60 s, or 3600 s when it streams */
    uint32_t retries_max;    /* of a set; 0: 5; FIRE_RETRIES_NONE: none */
    enum fire_priority priority;
    const char *run; /* the training run, for the daemon's history; at most 128 bytes */
    int64_t step;    /* its step */
};
#define FIRE_RETRIES_NONE UINT32_MAX

/* Opens a client of a daemon. NULL settings mean the defaults. Nothing is sent yet: whether the
 * daemon answers shows with the first call. On success the caller owns `*client`; on failure it is
 * NULL. Any number of threads may use the client at once.
 *
 * Sets of up to 8 MiB travel as one message; larger ones are streamed from the caller's memory
 * without a copy, and answers are written to `out` as they arrive (to an `out` that is `data` only
 * when the tensor's answer is complete). A set is tried again after UNAVAILABLE, or when the daemon
 * says when to come back, with exponential backoff and jitter, within `retries_max`, the client's
 * retry budget (10 at once, one more for every 10 sets that went well) and the deadline. That is
 * safe: the answer depends on the request alone, and what was answered is not asked again. */
FIRE_NODISCARD enum fire_status fire_client_open_remote(const struct fire_remote_settings *settings,
                                                        struct fire_client **client,
                                                        struct fire_error *error);

/* Cancels what runs (callbacks come with FIRE_CANCELLED before this returns); a local client
 * finishes it. NULL is allowed. Not from a callback. */
void fire_client_close(struct fire_client *client);

/* What computes. Of a daemon: `name` is its address, `path` the code that computed the last answer
 * (empty before the first), `threads` 0: unknown. */
void fire_client_caps(const struct fire_client *client, struct fire_caps *caps);

/* Projects `count` tensors; matrices of one shape and plan are batched across them. Returns FIRE_OK
 * when all were projected or skipped; what is skipped is copied to `out`. When one is bad (NaN,
 * wrong shape, impossible target) the others are still done, that one's `out` is not written, its
 * `error` says why, its action is refused, and the call returns the first such error. If the device
 * fails in the middle of a tensor, an `out` that is `data` gets its old bytes back, any other `out`
 * is undefined. State is done like its weight: a bad one refuses it. `statistics` is a set of
 * FIRE_STATISTICS_*. `error` may be NULL. One call at a time per local client. */
FIRE_NODISCARD enum fire_status fire_client_reinit(struct fire_client *client,
                                                   struct fire_tensor *tensors, size_t count,
                                                   uint32_t statistics, struct fire_error *error);

/* Statistics only; `out` is not touched. */
FIRE_NODISCARD enum fire_status fire_client_analyze(struct fire_client *client,
                                                    struct fire_tensor *tensors, size_t count,
                                                    uint32_t statistics, struct fire_error *error);

enum fire_operation { FIRE_REINIT, FIRE_ANALYZE };

/* A set of tensors on its way. It, the tensors and their memory stay the caller's and must be left
 * alone until it is done. */
struct fire_set {
    struct fire_tensor *tensors;
    size_t count;
    uint32_t statistics; /* FIRE_STATISTICS_* */
    enum fire_operation operation;
    /* Of this set, over the client's settings; a local client does not look at them. */
    const char *run;   /* NULL: the client's, and its step */
    int64_t step;      /* of `run` */
    double deadline_s; /* 0: the client's */
    /* NULL, or called once when the set is done, on the client's own thread (of a local client:
     * from fire_client_start()). It may start other sets but not wait or close. The library does
     * not look at the set after the call, so it may free it. */
    void (*done)(struct fire_set *set, void *data);
    void *data;
    /* Written. */
    enum fire_status status; /* as fire_client_reinit() returns */
    struct fire_error error;
    int code;       /* gRPC status code when the daemon refused, else 0 */
    void *internal; /* the library's */
};

/* Begins a set and returns; a local client computes it before it returns, unless it was opened to
 * work `ahead`. Failing means that it was not begun: no callback comes. */
FIRE_NODISCARD enum fire_status fire_client_start(struct fire_client *client, struct fire_set *set,
                                                  struct fire_error *error);

/* Waits until `set` (one without a callback) is done, or all sets of the client and their callbacks
 * (NULL), but at most `seconds`; negative, or with a local client: without limit. True when
 * done. */
bool fire_client_wait(struct fire_client *client, const struct fire_set *set, double seconds);

/* Asks for the end of what runs: sets not done yet end with FIRE_CANCELLED. Wait for it. Tensors
 * already answered keep their answers. A local client finishes what it has begun, unless its
 * settings' `stop` says otherwise. */
void fire_client_cancel(struct fire_client *client);

/* --- history ------------------------------------------------------------------------------------
 * What a daemon keeps of training runs, and what it advises (fire.v1.MonitorService). Reinit and
 * Analyze of a client opened with a `run` record themselves; these add to it and read it. They wait
 * for the answer, are tried again where a set would be, and any number of threads may call them. A
 * local client keeps no history: FIRE_BAD_REQUEST. fire_client_cancel() does not end them, their
 * deadline does. */

/* One number that was measured. */
struct fire_point {
    const char *layer;     /* NULL or "": of the whole run, such as a loss */
    const char *statistic; /* "dfi", "dormant_ratio", "gradient_norm", "loss", …: [a-z0-9_] */
    int64_t step;          /* from 0 */
    double value;          /* finite */
};

/* Points of one run, and what it is; texts that are NULL leave what is known as it is. */
struct fire_report {
    const char *run;           /* its id; NULL: the client's */
    const char *name;          /* for people */
    const char *framework;     /* such as "torch" */
    const char *const *labels; /* NULL, or pairs key, value, key, value, NULL */
    const struct fire_point *points;
    size_t count;    /* at most 65536 */
    int64_t time_ms; /* when they were measured, since 1970; 0: now */
};

/* Stores points: FIRE_OK means that they are on disk. Sending the same again changes nothing, the
 * last value sent stands. `added` (NULL is allowed): how many were not there before. */
FIRE_NODISCARD enum fire_status fire_client_report(struct fire_client *client,
                                                   const struct fire_report *report,
                                                   uint64_t *added, struct fire_error *error);

struct fire_table; /* an answer: rows of named columns, each cell a text or a number */

/* What the daemon advises: layer, verdict ("leave_it", "watch", "reinit", "unknown"), rule,
 * since_step, reason, intervention, preset, flops, sfe, also (names with commas between). `run`
 * NULL: the client's. On success the caller owns `*table`; on failure it is NULL. */
FIRE_NODISCARD enum fire_status fire_client_advise(struct fire_client *client, const char *run,
                                                   struct fire_table **table,
                                                   struct fire_error *error);

/* Runs, those seen last first: run, name, framework, first_seen_ms, last_seen_ms, first_step,
 * last_step, points, layers, worst_layer, alerts_firing. `filter` (NULL: all) is part of an id,
 * name or label; at most `limit`, 0: 200. */
FIRE_NODISCARD enum fire_status fire_client_runs(struct fire_client *client, const char *filter,
                                                 uint32_t limit, struct fire_table **table,
                                                 struct fire_error *error);

/* Which points. Lists end with NULL; a list that is NULL means all. */
struct fire_query {
    const char *run; /* NULL: the client's */
    const char *const *layers;
    const char *const *statistics;
    int64_t step_min;
    int64_t step_max;    /* 0: to the end */
    uint32_t resolution; /* cells a series, 1 to 4096; 0: 1000 */
    bool whole_run;      /* also statistics of the whole run */
};
/* Points, or cells of neighbouring ones: layer, statistic, step, mean, min, max, count. */
FIRE_NODISCARD enum fire_status fire_client_query(struct fire_client *client,
                                                  const struct fire_query *query,
                                                  struct fire_table **table,
                                                  struct fire_error *error);

/* Events of a run (NULL: the client's; "": of all), the newest first, at most `limit`, 0: 100: id,
 * kind, time_ms, run, layer, step, text. */
FIRE_NODISCARD enum fire_status fire_client_events(struct fire_client *client, const char *run,
                                                   uint32_t limit, struct fire_table **table,
                                                   struct fire_error *error);

size_t fire_table_rows(const struct fire_table *table);
size_t fire_table_columns(const struct fire_table *table);
/* NULL beyond the last. */
const char *fire_table_name(const struct fire_table *table, size_t column);
/* A cell. Text is NULL where the column is of numbers or the cell does not exist, a number NAN
 * where it is of texts or unknown. Valid until the table is closed. */
const char *fire_table_text(const struct fire_table *table, size_t row, size_t column);
double fire_table_number(const struct fire_table *table, size_t row, size_t column);
/* Line under the rows, such as the daemon's summary of its advice; "" when there is none. */
const char *fire_table_summary(const struct fire_table *table);
void fire_table_close(struct fire_table *table); /* NULL is allowed */

/* The message of the last call of the library that failed in this thread: what is wrong and what to
 * do. Never NULL; valid until the thread's next failure. */
const char *fire_last_error(void);

/* The running library's version, "0.2.0". */
const char *fire_version(void);

/* The binding-friendly door: no struct to lay out, for Python's ctypes and the like. */

/* fire_client_open_local() with `threads` (0: all) and `path` (NULL or "auto", …). */
FIRE_NODISCARD enum fire_status fire_client_open_flat(uint32_t threads, const char *path,
                                                      struct fire_client **client);

/* fire_client_open_remote() with an address, tenant and token (each may be NULL). */
FIRE_NODISCARD enum fire_status fire_client_open_remote_flat(const char *address,
                                                             const char *tenant, const char *token,
                                                             struct fire_client **client);

/* Projects `count` tensors of one shape that lie one after another in `data`, into `out` (which may
 * be `data`; NULL only analyzes). `preset` NULL means "fire"; `set_pairs` is NULL or key=value
 * lines separated by newlines; `dtype` is an enum fire_dtype; `size` has `axes` numbers.
 * `fields_out` is NULL or room for fire_result_field_count() doubles a tensor, in the order of
 * fire_result_field_at(); NAN is unknown. `error` may be NULL. */
FIRE_NODISCARD enum fire_status fire_reinit_flat(struct fire_client *client, const char *preset,
                                                 const char *set_pairs, int dtype, uint32_t axes,
                                                 const uint64_t *size, const void *data, void *out,
                                                 uint64_t count, uint32_t statistics,
                                                 double *fields_out, struct fire_error *error);

/* fire_client_open_remote() with every setting by name, as key=value lines: address, tenant, token,
 * ca_file, certificate_file, key_file, server_name, deadline_s, retries_max (-1: none), priority
 * (normal, interactive, bulk), run, step. An unknown key is refused. */
FIRE_NODISCARD enum fire_status fire_client_open_lines(const char *lines,
                                                       struct fire_client **client);

/* A set of any tensors, described by calls. It keeps copies of names, sizes, options and unit
 * means; memory that `data` and `out` point to stays the caller's and must last until
 * fire_flat_run() has returned. Failing calls leave the set as it was; fire_last_error() has the
 * reason. One thread at a time. */
struct fire_flat;

FIRE_NODISCARD enum fire_status fire_flat_open(struct fire_flat **flat);
void fire_flat_close(struct fire_flat *flat); /* NULL is allowed */

/* Adds a tensor; the first has index 0. `dtype` is a name of safetensors: F64, F32, BF16, F16 can
 * be computed, others only decided about. `preset` NULL means "fire"; `set_pairs` as above. */
FIRE_NODISCARD enum fire_status fire_flat_add(struct fire_flat *flat, const char *name,
                                              const char *dtype, uint32_t axes,
                                              const uint64_t *size, const char *preset,
                                              const char *set_pairs);

/* Where the bytes of tensor `index` are; `out` NULL for analyze. */
FIRE_NODISCARD enum fire_status fire_flat_memory(struct fire_flat *flat, size_t index,
                                                 const void *data, void *out);

/* Adds a tensor of optimizer state: `slot` "exp_avg", "exp_avg_sq", "momentum_buffer" or "step",
 * `dtype` as above, or I32 or I64 of "step". */
FIRE_NODISCARD enum fire_status fire_flat_state(struct fire_flat *flat, size_t index,
                                                const char *slot, const char *dtype, uint32_t axes,
                                                const uint64_t *size, const void *data, void *out);

/* Mean |activation| of each output unit, copied; and a gradient of the weight's shape. */
FIRE_NODISCARD enum fire_status fire_flat_units(struct fire_flat *flat, size_t index,
                                                const double *means, uint64_t count);
FIRE_NODISCARD enum fire_status fire_flat_gradient(struct fire_flat *flat, size_t index,
                                                   const char *dtype, const void *data);

/* Decides about every tensor by the names of all, as firectl does: `arch` "auto", "gpt2", "llama",
 * "vit", "resnet", "mamba", "plain" or "none"; `only` "all" or "qk"; `ordered`: tensors were added
 * in the order of the model's layers. Sets layout, split and stack; what `set_pairs` said wins.
 * Read the verdicts with fire_flat_text(). */
FIRE_NODISCARD enum fire_status fire_flat_decide(struct fire_flat *flat, const char *arch,
                                                 const char *only, int ordered);

/* Runs the set and waits for it. `run` NULL and `deadline_s` 0: the client's. Returns as
 * fire_client_reinit() or, with `analyze`, fire_client_analyze(). */
FIRE_NODISCARD enum fire_status fire_flat_run(struct fire_flat *flat, struct fire_client *client,
                                              int analyze, uint32_t statistics, const char *run,
                                              int64_t step, double deadline_s);

size_t fire_flat_count(const struct fire_flat *flat);
int fire_flat_code(const struct fire_flat *flat); /* gRPC status when a daemon refused, else 0 */
const char *fire_flat_arch(const struct fire_flat *flat); /* decided; "" before */

/* A text of tensor `index`, NULL for a key or an index there is not: "verdict" ("project", "skip",
 * "reset"), "verdict_reason", "tied" (a name, or empty), and of its result "action" ("projected",
 * "skipped", "refused"), "reason", "method", "path", "status", "error", "field", "close_reason", or
 * "option:KEY". Valid until the next such call. */
const char *fire_flat_text(struct fire_flat *flat, size_t index, const char *key);

/* Numbers of the result of tensor `index`: fire_result_field_count() doubles, then steps,
 * converged, rank, rank_defect, matrices, batch id and size, queue_ms, compute_ms: FIRE_FLAT_MORE
 * more. */
#define FIRE_FLAT_MORE 9
FIRE_NODISCARD enum fire_status fire_flat_numbers(const struct fire_flat *flat, size_t index,
                                                  double *numbers);

/* fire_client_report() with `count` points in four arrays; `layers` may hold NULLs. `run`, `name`,
 * `framework` and `added` may be NULL. */
FIRE_NODISCARD enum fire_status fire_report_flat(struct fire_client *client, const char *run,
                                                 const char *name, const char *framework,
                                                 uint64_t count, const char *const *layers,
                                                 const char *const *statistics,
                                                 const int64_t *steps, const double *values,
                                                 uint64_t *added, struct fire_error *error);

/* fire_client_query() without a struct; lists have newlines between names, NULL or "" is all. */
FIRE_NODISCARD enum fire_status fire_query_flat(struct fire_client *client, const char *run,
                                                const char *layers, const char *statistics,
                                                int64_t step_min, int64_t step_max,
                                                uint32_t resolution, struct fire_table **table,
                                                struct fire_error *error);

#endif
