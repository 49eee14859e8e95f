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
#include "work.h"

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
    enum request_role role;
    Fire__V1__DataType wire_dtype;
    enum fire_dtype dtype;
    struct fire_shape shape;
    struct fire_options options;
    struct fire_work work; /* of a weight */
    uint64_t total_bytes;
    uint64_t received_bytes;
    /* All in one arena block, shared with slices that are being sent. */
    struct arena *arena;
    void *block;
    _Atomic uint32_t block_references;
    /* … what lies in the block and how far it is: see request.c. */
    struct request_parts *parts;
    struct fire_result result;
    struct fire_error error; /* status FIRE_OK: none */
    struct request_tensor *weight;     /* of state, activations, …: whose they are */
    struct request_tensor *companions; /* of a weight: its state, activations, means, gradient */
    struct request_tensor *next_companion;
    uint32_t jobs_left;
    uint64_t batch_id;
    uint32_t batch_size;
    enum close_reason close_reason;
    double queue_ms;
    double compute_ms;
};

/* What holds for the whole set, checked. */
struct request_set {
    char preset[24];
    struct fire_options options;
    uint32_t statistics; /* FIRE_STATISTICS_* */
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
/* Releases it when nobody uses its block any more. NULL is allowed. */
void request_tensor_close(struct request_tensor *tensor);

/* Bytes of arena it needs, and taking them: FIRE_BUSY when there is no room. */
uint64_t request_tensor_block_bytes(const struct request_tensor *tensor);
FIRE_NODISCARD enum fire_status request_tensor_reserve(struct request_tensor *tensor,
                                                       struct arena *arena,
                                                       struct fire_error *error);

/* Worker: the next `count` bytes of the tensor go to their places. NaN or Inf is FIRE_BAD_REQUEST
 * with the element's index; the rest may then be thrown away. */
FIRE_NODISCARD enum fire_status request_feed(struct request_tensor *tensor, const uint8_t *bytes,
                                             size_t count, struct fire_error *error);

/* Jobs of a complete weight, cut so that none is larger than `matrices_max`. */
uint32_t request_job_count(const struct request_tensor *tensor);
struct job *request_job(struct request_tensor *tensor, uint32_t index);

/* Worker, after the last job: merges results, dormant statistics, applies state policies to the
 * companions, and lays the answer's bytes out. */
void request_answer(const struct request_set *set, struct request_tensor *tensor);

/* The bytes to be sent back: NULL and 0 when there are none. They stay valid while a reference of
 * the block is held. */
const void *request_bytes(const struct request_tensor *tensor, uint64_t *bytes);
void request_block_hold(struct request_tensor *tensor);
void request_block_drop(struct request_tensor *tensor); /* any thread */

#endif
