/* fire.h: libfire, the C library of fired.
 *
 * A client turns tensors into their nearest isometries and says what happened. This version
 * computes in the calling process (fire_client_open_local); the same calls will reach a daemon.
 *
 *     struct fire_client *client;
 *     struct fire_error error;
 *     if (fire_client_open_local(NULL, &client, &error) != FIRE_OK) ...
 *     struct fire_tensor tensor = { .name = "fc.weight", .dtype = FIRE_F32,
 *                                   .shape = { 2, { 256, 784 } }, .data = w, .out = w };
 *     fire_options_preset(&tensor.options, "fire", &error);
 *     fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error);
 *     printf("DfI %g -> %g\n", tensor.result.before.dfi, tensor.result.after.dfi);
 *     fire_client_close(client);
 */
#ifndef FIRE_H
#define FIRE_H

#include "backend.h"
#include "options.h"
#include "plan.h"
#include "result.h"
#include "state.h"
#include "statistics.h"
#include "status.h"
#include "tensor.h"

#define FIRE_VERSION "0.2.0"

struct fire_client;

/* A weight tensor of the caller's. The library reads `data` and writes `out` (which may be `data`
 * itself) and `result`; everything else is the caller's. */
struct fire_tensor {
    const char *name; /* used in messages; NULL is allowed */
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
};

struct fire_local_settings {
    uint32_t threads;    /* 0: all the process may run on */
    const char *path;    /* NULL or "auto", "portable", "avx2", "avx512", "amx" */
    uint64_t slab_bytes; /* gathered at once; 0: 64 MiB, or the largest matrix */
};

/* Opens a client that computes in this process. NULL settings mean the defaults. On success the
 * caller owns `*client`; on failure it is NULL. */
FIRE_NODISCARD enum fire_status fire_client_open_local(const struct fire_local_settings *settings,
                                                       struct fire_client **client,
                                                       struct fire_error *error);
void fire_client_close(struct fire_client *client); /* NULL is allowed */

/* What computes. */
void fire_client_caps(const struct fire_client *client, struct fire_caps *caps);

/* Projects `count` tensors; matrices of one shape and plan are batched across them. Returns FIRE_OK
 * when all were projected or skipped; what is skipped is copied to `out`. When one is bad (NaN,
 * wrong shape, impossible target) the others are still done, that one's `out` is not written, its
 * `error` says why, its action is refused, and the call returns the first such error. If the device
 * fails in the middle of a tensor, an `out` that is `data` gets its old bytes back, any other `out`
 * is undefined. `statistics` is a set of FIRE_STATISTICS_*. One call at a time per client. */
FIRE_NODISCARD enum fire_status fire_client_reinit(struct fire_client *client,
                                                   struct fire_tensor *tensors, size_t count,
                                                   uint32_t statistics, struct fire_error *error);

/* Statistics only; `out` is not touched. */
FIRE_NODISCARD enum fire_status fire_client_analyze(struct fire_client *client,
                                                    struct fire_tensor *tensors, size_t count,
                                                    uint32_t statistics, struct fire_error *error);

/* The running library's version, "0.2.0". */
const char *fire_version(void);

/* The binding-friendly door: no struct to lay out, for Python's ctypes and the like. */

/* fire_client_open_local() with `threads` (0: all) and `path` (NULL or "auto", …). */
FIRE_NODISCARD enum fire_status fire_client_open_flat(uint32_t threads, const char *path,
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

#endif
