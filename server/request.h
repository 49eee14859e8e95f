/* request: the tensors of a call on their way through the daemon: header to work, bytes to slots,
 * slots to jobs, results to an answer. The unary methods and the streams share it; it knows no
 * gRPC. Loop thread, except request_feed() and request_answer(), which run on a worker while the
 * loop leaves the tensor alone.
 *
 * One block of the arena holds all of a tensor: its slots, their fire_slot and fire_result arrays,
 * its jobs, and the bytes to be sent back unless the slots themselves are those bytes (plain f32 or
 * f64 whose orientation is long x short). */
#ifndef FIRED_REQUEST_H
#define FIRED_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "fire/v1/reinit.pb-c.h"
#include "fire/v1/tensor.pb-c.h"
#include "job.h"
#include "scheduler.h"
#include "state.h"
#include "work.h"

#define REQUEST_NAME_BYTES_MAX 512u
#define REQUEST_PATH_BYTES     48u
#define REQUEST_VIEWS_MAX      262144u /* matrices of one tensor */
#define REQUEST_PER_MATRIX_MAX 4096u   /* results a matrix in one answer */
#define REQUEST_SPECTRA_MAX    64u     /* matrices of one tensor whose spectra are recorded */
#define REQUEST_JOB_MATRICES   64u
#define REQUEST_JOB_BYTES      (4u << 20) /* of slots; a larger matrix is a job of its own */
#define REQUEST_HEAP_BYTES     8192u      /* about what an open tensor takes beside its block */

enum request_role {
    REQUEST_WEIGHT,
    REQUEST_STATE,
    REQUEST_ACTIVATIONS,
    REQUEST_UNIT_MEANS,
    REQUEST_GRADIENT,
};

struct request_tensor {
    char *name; /* as sent */
    char *parameter;
    char *slot;
    char path[REQUEST_PATH_BYTES]; /* of its header, for errors */
    enum request_role role;
    Fire__V1__DataType wire_dtype;
    enum fire_dtype dtype; /* of floating ones */
    bool integer;          /* a counter: I64 or I32 */
    bool analyze;
    enum fire_state_slot state_slot;
    struct fire_shape shape;
    struct fire_options options; /* of a weight */
    struct fire_work work;       /* of a weight */
    uint64_t total_bytes;
    uint64_t received_bytes;
    /* All in one arena block, shared with slices that are being sent. */
    struct arena *arena;
    void *block;
    _Atomic uint32_t block_references;
    /* … what lies in the block and how far it is: see request_parts.h. */
    struct request_parts *parts;
    struct fire_result result;
    struct fire_error error;           /* status FIRE_OK: none */
    const char *reason;                /* of the error, static storage; NULL: from its status */
    const char *state;                 /* what was done to optimizer state, once answered */
    struct request_tensor *weight;     /* of state, activations, …: whose they are */
    struct request_tensor *companions; /* of a weight: its state, activations, means, gradient */
    struct request_tensor *next_companion;
    uint32_t jobs_left; /* submitted and not done */
    uint64_t batch_id;
    uint32_t batch_size;
    enum close_reason close_reason;
    double queue_ms;
    double compute_ms;
    void *owner; /* the call's */
};

/* What holds for the whole set, checked. */
struct request_set {
    struct fire_options options; /* preset and the set's own over it */
    uint64_t given;              /* bit i: the set itself gave option key i */
    uint32_t statistics;         /* FIRE_STATISTICS_* */
    bool per_matrix;
    bool analyze;
    bool skip_bad;
    enum job_priority priority;
    char run[129];
    int64_t step;
};

/* NULL `header`: the defaults. The error's field is a path such as "set.options.steps". */
FIRE_NODISCARD enum fire_status request_set_init(struct request_set *set,
                                                 const Fire__V1__SetHeader *header, bool analyze,
                                                 struct fire_error *error);

/* Checks a header and plans the tensor; no arena memory yet. `path` is "tensors[3]" for the error's
 * field. Sizes are checked with overflow-safe arithmetic against `tensor_bytes_max`. */
FIRE_NODISCARD enum fire_status request_tensor_open(const struct request_set *set,
                                                    const Fire__V1__TensorHeader *header,
                                                    const char *path, uint64_t tensor_bytes_max,
                                                    struct request_tensor **tensor,
                                                    struct fire_error *error);
/* A tensor that only carries an error to its answer, when opening it failed. */
FIRE_NODISCARD enum fire_status request_tensor_refuse(const Fire__V1__TensorHeader *header,
                                                      const struct fire_error *error,
                                                      struct request_tensor **tensor);
/* Records the first thing that went wrong with a tensor; `reason` may be NULL. */
void request_tensor_fail(struct request_tensor *tensor, const struct fire_error *error,
                         const char *reason);
/* Makes `companion` the weight's, after checking that it fits. */
FIRE_NODISCARD enum fire_status request_tensor_link(struct request_tensor *weight,
                                                    struct request_tensor *companion,
                                                    struct fire_error *error);
/* Releases it when nobody uses its block any more. NULL is allowed. */
void request_tensor_close(struct request_tensor *tensor);

/* Bytes of arena it needs, and taking them: FIRE_BUSY when there is no room now, FIRE_BAD_REQUEST
 * when there never will be. */
uint64_t request_tensor_block_bytes(const struct request_tensor *tensor);
FIRE_NODISCARD enum fire_status request_tensor_reserve(struct request_tensor *tensor,
                                                       struct arena *arena,
                                                       struct fire_error *error);

/* Worker: the next `count` bytes of the tensor go to their places. NaN or Inf is FIRE_BAD_REQUEST
 * with the element's index; the rest may then be thrown away. */
FIRE_NODISCARD enum fire_status request_feed(struct request_tensor *tensor, const uint8_t *bytes,
                                             size_t count, struct fire_error *error);

/* Bytes on their way into a part of a tensor, one after another. */
struct request_run {
    uint64_t at;      /* bytes of the tensor before the next one; a run begins with an element */
    uint8_t carry[8]; /* an element of which the rest has not arrived */
    uint32_t carry_bytes;
};

/* The same from several threads at once, each with runs of its own. begin and end come before and
 * after all of them, on any thread; after the end every byte has been fed. */
void request_feed_begin(struct request_tensor *tensor);
FIRE_NODISCARD enum fire_status request_feed_run(struct request_tensor *tensor,
                                                 struct request_run *run, const uint8_t *bytes,
                                                 size_t count, struct fire_error *error);
void request_feed_end(struct request_tensor *tensor);
/* Pieces that begin and end at multiples of so many bytes of the tensor are put to their places
 * fastest; others several times slower where a matrix lies across its slot. */
uint64_t request_feed_grain(const struct request_tensor *tensor);
/* Where run `index` of `count` begins, in bytes; at count: the end of the tensor. */
uint64_t request_run_begin(const struct request_tensor *tensor, uint32_t index, uint32_t count);

/* Jobs of a complete weight: at most REQUEST_JOB_MATRICES matrices and REQUEST_JOB_BYTES each. */
uint32_t request_job_count(const struct request_tensor *tensor);
struct job *request_job(struct request_tensor *tensor, uint32_t index);

/* What the jobs of a call have in common. */
struct request_submission {
    struct scheduler *scheduler;
    struct tenant *tenant;
    enum job_priority priority;
    uint64_t deadline_ns;
    uint64_t call_id;
    bool end_of_set;
    bool alone; /* no other call is open */
    /* The last job of `tensor` is done. Not called for jobs that were taken back. */
    void (*done)(struct request_tensor *tensor);
};

/* Seconds from now until all its matrices would be done, its own time apart from the waiting. */
void request_estimate(const struct request_tensor *tensor, struct scheduler *scheduler,
                      const struct tenant *tenant, double *wait_s, double *own_s);

/* FIRE_BAD_REQUEST when computing it takes more working memory than `bytes_max`. */
FIRE_NODISCARD enum fire_status request_check_workspace(const struct request_tensor *tensor,
                                                        struct scheduler *scheduler,
                                                        uint64_t bytes_max,
                                                        struct fire_error *error);

/* Submits every job of a weight. On failure those already submitted are cancelled; jobs_left tells
 * how many the device still has, for which `done` will be called. */
FIRE_NODISCARD enum fire_status request_submit(struct request_tensor *tensor,
                                               const struct request_submission *submission,
                                               struct fire_error *error);
/* Its set is complete: jobs that wait need not wait for company any more. Call it between
 * scheduler_hold() and scheduler_release(): the tensor may be done, and gone, after that. */
void request_end_set(struct request_tensor *tensor, struct scheduler *scheduler);
/* Takes back what waits; jobs_left is then what the device still has. */
void request_cancel(struct request_tensor *tensor, struct scheduler *scheduler);

/* Worker, after the last job: merges results, dormant statistics, applies state policies to the
 * companions, and lays the answer's bytes out. */
void request_answer(const struct request_set *set, struct request_tensor *tensor);

/* The result of view `index`, for per_matrix; the skipped ones included. */
void request_view_result(const struct request_tensor *tensor, uint64_t index,
                         struct fire_result *result);

/* Singular values of a projected weight, before and after, of its matrices together. NULL: the call
 * does not record them (it names no run, does not ask for the spectrum, only analyzes), or there
 * are more than REQUEST_SPECTRA_MAX matrices. Valid as long as the tensor is. */
const struct fire_spectra *request_spectra(const struct request_tensor *tensor);

/* True when request_answer() takes microseconds whatever the tensor's size: its bytes are where
 * they are to be, and few results are to be merged. */
bool request_answer_is_light(const struct request_set *set, const struct request_tensor *tensor);

/* The bytes to be sent back: NULL and 0 when there are none. They stay valid while a reference of
 * the block is held. */
const void *request_bytes(const struct request_tensor *tensor, uint64_t *bytes);
void request_block_hold(struct request_tensor *tensor);
void request_block_drop(struct request_tensor *tensor); /* any thread */

/* request_options: the choices about one tensor, from its header and the set. */
FIRE_NODISCARD enum fire_status request_options_make(const struct request_set *set,
                                                     const Fire__V1__TensorHeader *header,
                                                     const char *path, struct fire_options *options,
                                                     struct fire_error *error);
/* At most `bytes_max` long and valid UTF-8? The error's field is path.name. */
FIRE_NODISCARD enum fire_status request_check_text(const char *text, size_t bytes_max,
                                                   const char *path, const char *name,
                                                   struct fire_error *error);
/* path.name, cut if it must be. */
void request_field(char field[FIRE_ERROR_FIELD_BYTES], const char *path, const char *name);

#endif
