/* firectl: the command line of fired. Reading order: firectl.c (which command), firectl_args.c
 * (its options), firectl_task.c (what happens to each tensor), firectl_reinit.c, firectl_analyze.c,
 * firectl_compare.c, firectl_presets.c, firectl_selftest.c (the commands), firectl_report.c (rows
 * of JSON or of a table); firectl_daemon.c, firectl_stat.c, firectl_top.c (commands that ask a
 * daemon), firectl_runs.c, firectl_show.c, firectl_watch.c, firectl_export.c, firectl_points.c
 * (about its history). Results go to stdout, everything else to stderr. */
#ifndef FIRECTL_H
#define FIRECTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "arch.h"
#include "fire.h"
#include "safetensors.h"

/* INTERFACES.md section 2. */
enum firectl_exit {
    FIRECTL_DONE = 0,
    FIRECTL_FAILED = 1,
    FIRECTL_USAGE = 2,
    FIRECTL_CROSSED = 3,  /* a --fail-if threshold */
    FIRECTL_REFUSED = 64, /* plus the gRPC code, when the daemon refused */
};

enum firectl_command {
    FIRECTL_REINIT,
    FIRECTL_ANALYZE,
    FIRECTL_COMPARE,
    FIRECTL_PRESETS,
    FIRECTL_SELFTEST,
    /* These ask a daemon. */
    FIRECTL_HEALTH,
    FIRECTL_STATUS,
    FIRECTL_PING,
    FIRECTL_STAT,
    FIRECTL_TOP,
    FIRECTL_DRAIN,
    /* These ask it about runs. */
    FIRECTL_RUNS,
    FIRECTL_SHOW,
    FIRECTL_WATCH,
    FIRECTL_ADVISE,
    FIRECTL_EXPORT,
    FIRECTL_POINTS, /* report */
};
#define FIRECTL_COMMAND_COUNT 17

/* --- arguments ------------------------------------------------------------------------------- */

/* Texts; the list owns them. */
struct firectl_list {
    char **items;
    size_t count;
    size_t room;
};

struct firectl_args {
    enum firectl_command command;
    const char *inputs[2];
    uint32_t input_count;
    const char *output;
    const char *preset;           /* NULL: fire */
    struct firectl_list sets;     /* "key=value" or "GLOB:key=value", in order */
    struct firectl_list includes; /* GLOB */
    struct firectl_list excludes;
    struct firectl_list ties;       /* "A=B" */
    struct firectl_list thresholds; /* "field>value" */
    enum arch arch;
    enum arch_only only;
    const char *init;
    const char *activations;
    const char *gradients;
    const char *state;
    const char *state_out;
    const char *path;
    uint32_t threads;
    double deadline_s;                  /* 0: none */
    bool local;                         /* --local */
    struct fire_remote_settings remote; /* its address is --addr, or FIRED_ADDR without --local;
                                           NULL: none was named */
    uint32_t count;                     /* -n: round trips or frames; 0: the command's default */
    double interval_s;                  /* between them; 0: the default */
    uint32_t limit_s;                   /* of draining; 0: the daemon's */
    bool latency;
    bool batch;                     /* top without a screen */
    struct firectl_list points;     /* report: "statistic=value" */
    struct firectl_list layers;     /* names of layers; of report at most one */
    struct firectl_list statistics; /* names */
    struct firectl_list labels;     /* report: "key=value" */
    const char *filter;             /* runs: part of a name */
    const char *title;              /* report: the run's name for people */
    const char *framework;
    const char *format; /* export: NULL: from the file's name */
    uint32_t most;      /* runs, at most; 0: the daemon's default */
    uint32_t width;     /* of the picture; 0: the terminal's */
    int64_t from_step;
    int64_t to_step; /* 0: to the end */
    bool step_given;
    bool events; /* only those */
    bool json;
    bool dry_run;
    bool per_matrix;
    bool spectrum;
    bool residual;
    bool no_color;
    bool quiet;
};

/* Compute paths by name, without auto. */
#define FIRECTL_PATH_COUNT 4u
extern const char *const firectl_paths[FIRECTL_PATH_COUNT];

/* Parses the arguments of one command, argv[0] being its name. On a mistake it prints what is wrong
 * and what to do, and returns FIRECTL_USAGE. --help and --version end the process with 0. */
enum firectl_exit firectl_args_parse(enum firectl_command command, int argc, char **argv,
                                     struct firectl_args *args);
/* The last part of it: whether the options fit each other. */
enum firectl_exit firectl_args_check(struct firectl_args *args);
void firectl_args_release(struct firectl_args *args);

const char *firectl_command_name(enum firectl_command command);
const char *firectl_command_summary(enum firectl_command command);

/* --- messages -------------------------------------------------------------------------------- */

/* "firectl: MESSAGE" on stderr. */
void firectl_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same for an error; returns the exit code it stands for: always FIRECTL_FAILED. */
enum firectl_exit firectl_fail(const struct fire_error *error);

/* SIGINT or SIGTERM has arrived: stop, clean up and leave with 128 + its number. 0 if none has. */
int firectl_signal(void);
void firectl_signals_init(void);

/* --- tasks: what happens to each tensor of a set ---------------------------------------------- */

enum firectl_kind {
    FIRECTL_SKIP,    /* bytes are copied */
    FIRECTL_PROJECT, /* computed */
    FIRECTL_RESET,   /* initial weights are taken */
    FIRECTL_TIED,    /* gets what its source got */
};

struct firectl_task {
    const struct safetensors_entry *entry;
    enum firectl_kind kind;
    size_t source;      /* FIRECTL_TIED: which task */
    bool is_source;     /* another task is tied to this one */
    bool finished;      /* its row can be shown */
    bool state_handled; /* its optimizer state was written */
    const char *state;  /* what was done to its optimizer state, or NULL */
    const char *action; /* as shown: "projected", … */
    char reason[FIRE_ERROR_MESSAGE_BYTES];
    struct fire_options options;
    struct fire_result result;
    struct fire_result *per_matrix; /* owned; NULL without --per-matrix */
    uint64_t matrices;
    struct fire_moment features; /* of the activations, with --spectrum */
    struct fire_moment gradient;
};

struct firectl_tasks {
    const struct safetensors *set;
    struct firectl_task *items; /* in file order */
    size_t count;
    enum arch arch; /* what was recognised or asked for */
    bool any_tie;
};

/* Decides about every tensor of `set`. End with firectl_tasks_release(). */
FIRE_NODISCARD enum fire_status firectl_tasks_init(struct firectl_tasks *tasks,
                                                   const struct firectl_args *args,
                                                   const struct safetensors *set,
                                                   struct fire_error *error);
void firectl_tasks_release(struct firectl_tasks *tasks);
uint64_t firectl_tasks_bytes(const struct firectl_tasks *tasks); /* of all tensors */

/* The task of the tensor called `name`, or NULL. */
struct firectl_task *firectl_tasks_find(const struct firectl_tasks *tasks, const char *name);

/* What --include and --exclude say about a name. */
bool firectl_is_selected(const struct firectl_args *args, const char *name);

/* --- thresholds ------------------------------------------------------------------------------ */

struct firectl_thresholds; /* parsed --fail-if */

FIRE_NODISCARD enum fire_status firectl_thresholds_open(const struct firectl_list *texts,
                                                        struct firectl_thresholds **thresholds,
                                                        struct fire_error *error);
void firectl_thresholds_close(struct firectl_thresholds *thresholds); /* NULL is allowed */

/* How every command on files begins: checks --set and --fail-if, which opens `*thresholds`, and
 * minds signals. What is not FIRECTL_DONE has been said. */
enum firectl_exit firectl_begin(const struct firectl_args *args,
                                struct firectl_thresholds **thresholds);

/* Looks at one result; says on stderr which threshold it crosses. */
void firectl_thresholds_check(struct firectl_thresholds *thresholds, const char *name,
                              const struct fire_result *result);
/* FIRECTL_CROSSED if one was, else FIRECTL_DONE; says which field had no value anywhere. */
enum firectl_exit firectl_thresholds_exit(const struct firectl_thresholds *thresholds);

/* --- report: rows and their summary ----------------------------------------------------------- */

struct firectl_report {
    FILE *stream;
    bool json;
    bool color;
    bool failed; /* a row could not be written or made */
    int name_width;
    int shape_width;
    size_t next; /* first task whose row has not been shown */
    enum firectl_command command;
    struct firectl_thresholds *thresholds;
    /* For the summary. */
    uint64_t projected;
    uint64_t not_converged;  /* of those, where a target was to be reached */
    uint64_t rank_deficient; /* of those */
    uint64_t reset;
    uint64_t skipped;
    uint64_t refused;
    uint64_t parameters; /* elements of what was projected */
};

struct firectl_summary {
    const struct firectl_args *args;
    const struct firectl_tasks *tasks;
    const struct fire_caps *caps;
    double seconds;
    bool written; /* an output file is in place */
};

void firectl_report_init(struct firectl_report *report, const struct firectl_args *args,
                         const struct safetensors *set, struct firectl_thresholds *thresholds);
/* Shows the rows of all finished tasks up to the first unfinished one. */
void firectl_report_ready(struct firectl_report *report, const struct firectl_tasks *tasks);
/* Ends the report. FIRECTL_FAILED when output was lost. */
enum firectl_exit firectl_report_end(struct firectl_report *report,
                                     const struct firectl_summary *summary);

/* Helpers for the other commands. */
bool firectl_color(const struct firectl_args *args, FILE *stream);
void firectl_shape_text(const struct safetensors_entry *entry, char *text, size_t text_bytes);
/* A name fit for a terminal: control characters become '?'. Longer than `text_bytes` is cut. */
void firectl_plain_text(const char *name, char *text, size_t text_bytes);

/* --- progress -------------------------------------------------------------------------------- */

struct firectl_progress {
    bool shown;
    uint64_t done_bytes;
    uint64_t total_bytes;
    double started_s;
    double last_s;
};

double firectl_now_s(void); /* monotonic */
void firectl_progress_init(struct firectl_progress *progress, const struct firectl_args *args,
                           uint64_t total_bytes);
void firectl_progress_add(struct firectl_progress *progress, uint64_t bytes);
void firectl_progress_clear(const struct firectl_progress *progress); /* before other output */

/* --- writer: a thread that writes while the next window computes ------------------------------ */

struct firectl_writer; /* the thread and its bounded queue */

FIRE_NODISCARD enum fire_status firectl_writer_open(const struct safetensors *set,
                                                    struct safetensors_writer *file,
                                                    struct firectl_writer **writer,
                                                    struct fire_error *error);
/* Queues the bytes of an entry: `bytes` NULL copies it unchanged; `owned` is freed when written (or
 * when that has failed). Waits while the queue is full. Returns an earlier write's error. */
FIRE_NODISCARD enum fire_status firectl_writer_push(struct firectl_writer *writer,
                                                    const struct safetensors_entry *entry,
                                                    const void *bytes, void *owned,
                                                    struct fire_error *error);
/* Waits until everything is written; returns the first error. */
FIRE_NODISCARD enum fire_status firectl_writer_finish(struct firectl_writer *writer,
                                                      struct fire_error *error);
void firectl_writer_close(struct firectl_writer *writer); /* drops what waits; NULL is allowed */

/* --- inputs beside the weights ---------------------------------------------------------------- */

/* Activations, gradients and initial weights; members are NULL when not given. */
struct firectl_inputs {
    struct safetensors *activations;
    struct safetensors *gradients;
    struct safetensors *init;
};

FIRE_NODISCARD enum fire_status firectl_inputs_open(struct firectl_inputs *inputs,
                                                    const struct firectl_args *args,
                                                    const struct firectl_tasks *tasks,
                                                    struct fire_error *error);
void firectl_inputs_close(struct firectl_inputs *inputs);

/* Two paths to one regular file that exists. */
bool firectl_same_file(const char *a, const char *b);
/* Refuses an output that would replace one of the files that are read. */
FIRE_NODISCARD enum fire_status firectl_inputs_check_output(const struct firectl_args *args,
                                                            const char *path,
                                                            struct fire_error *error);

/* Attaches what there is about `task` to `tensor`. `*means` is memory to free after the call. */
FIRE_NODISCARD enum fire_status firectl_inputs_attach(const struct firectl_inputs *inputs,
                                                      const struct firectl_args *args,
                                                      struct firectl_task *task,
                                                      struct fire_tensor *tensor, double **means,
                                                      struct fire_error *error);

/* --- who computes ----------------------------------------------------------------------------- */

/* How long a file command may take: until a signal, or the deadline of its arguments. */
struct firectl_limit {
    const struct firectl_args *args;
    double started_s;
};

/* A client of the daemon that was named, or else one that computes in this process; `limit` lives
 * as long as the client. */
FIRE_NODISCARD enum fire_status firectl_client_open(const struct firectl_limit *limit,
                                                    struct fire_client **client,
                                                    struct fire_error *error);
/* Waits for a set that was started; it is cancelled when the limit has come. */
void firectl_client_wait(struct fire_client *client, const struct fire_set *set,
                         const struct firectl_limit *limit);
/* FIRE_OK, or FIRE_CANCELLED and FIRE_TOO_LATE once the limit has come; `then` ends the message. */
FIRE_NODISCARD enum fire_status firectl_limit_check(const struct firectl_limit *limit,
                                                    const char *then, struct fire_error *error);
/* A failure that is not about one tensor: a daemon that is gone, too busy or too late, … */
bool firectl_is_fatal(enum fire_status status);
/* Why a tensor of a set was refused, for its row; short where the command's last words say it. */
const char *firectl_refusal(const struct fire_set *set, const struct fire_tensor *tensor);
/* The exit code of a failure: 64 + the gRPC code when the daemon refused, else 1. */
enum firectl_exit firectl_refused(int code);
/* The same for a command that ended with `error`. Through a daemon a deadline that has passed is
 * always DEADLINE_EXCEEDED, whoever noticed it first. */
enum firectl_exit firectl_failed(const struct firectl_args *args, int code,
                                 const struct fire_error *error);

/* --- windows: tensors computed together ------------------------------------------------------- */

#define FIRECTL_WINDOW_BYTES     (64ull << 20)
#define FIRECTL_WINDOW_BYTES_MIN (8ull << 20)
#define FIRECTL_WINDOW_SHARE     6u /* a smaller file is at least so many windows */
#define FIRECTL_WINDOW_TENSORS   4096u
#define FIRECTL_WINDOWS          2u /* at once: one is computed while the next is read */

struct firectl_window {
    struct fire_tensor *tensors;
    struct firectl_task **tasks;
    double **means;
    size_t count;
    size_t room;
    uint64_t bytes;
    uint64_t bytes_max; /* FIRECTL_WINDOW_BYTES until firectl_window_fit() */
    bool with_output;   /* tensors get an `out` of their own */
    struct fire_set set;
    bool started; /* it is with the client */
};

void firectl_window_init(struct firectl_window *window, bool with_output);
/* Makes windows for files of `total_bytes` in all: small enough that writing the first ones
 * overlaps with computing the last. */
void firectl_window_fit(struct firectl_window *window, uint64_t total_bytes);
/* Adds a task; a window that is full should be run. */
FIRE_NODISCARD enum fire_status firectl_window_add(struct firectl_window *window,
                                                   struct firectl_task *task,
                                                   const struct firectl_inputs *inputs,
                                                   const struct firectl_args *args,
                                                   struct fire_error *error);
bool firectl_window_full(const struct firectl_window *window);
/* Gives it to the client. Leave it alone until firectl_client_wait(). */
FIRE_NODISCARD enum fire_status firectl_window_start(struct firectl_window *window,
                                                     struct fire_client *client,
                                                     enum fire_operation operation,
                                                     const struct firectl_args *args,
                                                     struct fire_error *error);
/* Frees buffers still owned and empties it. */
void firectl_window_clear(struct firectl_window *window);
void firectl_window_release(struct firectl_window *window);

uint32_t firectl_statistics(const struct firectl_args *args);

/* --- optimizer state -------------------------------------------------------------------------- */

struct firectl_state; /* the state file, read and written */

/* Opens --state and the file to write it to, and checks every tensor in it. `*state` is NULL when
 * no state was given. */
FIRE_NODISCARD enum fire_status firectl_state_open(const struct firectl_args *args,
                                                   const struct firectl_tasks *tasks,
                                                   struct firectl_state **state,
                                                   struct fire_error *error);
/* Transforms and writes the state of a task whose new weights are known. */
FIRE_NODISCARD enum fire_status firectl_state_task(struct firectl_state *state,
                                                   struct firectl_task *task, const void *weights,
                                                   struct fire_error *error);
/* Copies the state of every other task and puts the file in place. */
FIRE_NODISCARD enum fire_status firectl_state_commit(struct firectl_state *state,
                                                     const struct firectl_tasks *tasks,
                                                     struct fire_error *error);
void firectl_state_close(struct firectl_state *state); /* NULL is allowed */

/* sfe, sfe_relative, norms and norm_preservation of two floating tensors of one shape. */
void firectl_distance(const struct safetensors_entry *before, const struct safetensors_entry *after,
                      struct fire_result *result);

/* --- commands --------------------------------------------------------------------------------- */

enum firectl_exit firectl_reinit(const struct firectl_args *args);
enum firectl_exit firectl_analyze(const struct firectl_args *args);
enum firectl_exit firectl_compare(const struct firectl_args *args);
enum firectl_exit firectl_presets(const struct firectl_args *args);
enum firectl_exit firectl_selftest(const struct firectl_args *args);
enum firectl_exit firectl_health(const struct firectl_args *args);
enum firectl_exit firectl_status(const struct firectl_args *args);
enum firectl_exit firectl_ping(const struct firectl_args *args);
enum firectl_exit firectl_stat(const struct firectl_args *args);
enum firectl_exit firectl_top(const struct firectl_args *args);
enum firectl_exit firectl_drain(const struct firectl_args *args);
enum firectl_exit firectl_runs(const struct firectl_args *args);
enum firectl_exit firectl_show(const struct firectl_args *args);
enum firectl_exit firectl_watch(const struct firectl_args *args);
enum firectl_exit firectl_advise(const struct firectl_args *args);
enum firectl_exit firectl_export(const struct firectl_args *args);
enum firectl_exit firectl_points(const struct firectl_args *args); /* firectl report */

#endif
