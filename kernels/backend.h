/* backend: what a CPU pool and a GPU plugin both offer.
 *
 * One table of functions, numbered by FIRE_BACKEND_ABI, without any type of a device library, so
 * that a plugin can be loaded by name. A device runs batches: lists of slots that share one plan.
 * A slot's result depends on its own weights, the plan and the compute path only, never on the
 * other slots, the batch size or the number of threads. */
#ifndef FIRE_BACKEND_H
#define FIRE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan.h"
#include "result.h"
#include "spectrum.h"
#include "status.h"

#define FIRE_BACKEND_ABI 5

#define FIRE_URGENT_SIDE_MAX      1024u
#define FIRE_WORKSPACE_KEPT_BYTES (128ull << 20)

struct fire_device; /* one opened device: a CPU pool or a GPU */

/* One matrix: plan->rows x plan->cols, row-major, no padding, f32 or f64 as plan->compute says.
 * The weights are finite on entry and are replaced by the result; with FIRE_PLAN_ANALYZE, and when
 * the matrix is skipped or refused, they are left as they were. */
struct fire_slot {
    void *weights;
    struct fire_result *result;
    uint64_t seed; /* for completion of a rank defect */
    /* The singular values, where the plan's statistics ask for the spectrum. The caller sets the
     * counts in it to 0, for a slot that is never run. NULL: nobody wants them. */
    struct fire_spectra *spectra;
};

/* The caller owns all of it and leaves it alone from submit until poll says true. */
struct fire_batch {
    const struct fire_plan *plan;
    struct fire_slot *slots;
    uint32_t slot_count;
    bool urgent; /* may overtake batches queued before it, and run within one that has begun */
    /* Written by the backend: FIRE_OK, or why no slot was run; FIRE_CANCELLED: some may have
     * been. */
    enum fire_status status;
    struct fire_batch *next; /* the backend's, while the batch is with it */
    bool finished;           /* the backend's */
    bool abandoned;          /* the backend's */
    /* NULL, or called once when the batch has finished, on a thread of the backend: from then on
     * the batch is the caller's, which must not wait for it otherwise. Only where `tells`. */
    void (*ended)(struct fire_batch *batch);
};

struct fire_backend_settings {
    uint32_t ordinal; /* which GPU; ignored by the CPU */
    uint32_t threads; /* CPU pool; 0: as many as the process may run on */
    const char *path; /* CPU: "auto", "portable", "avx2", "avx512", "amx" */
    uint32_t nice;    /* CPU: added to the niceness of every thread that computes */
    /* GPU: batches on their way at once, 1 to 8 (0: 3); memory of each (0: a share of what is
     * free); "f32", "3xtf32" or "tf32-early" (NULL: f32). */
    uint32_t slots;
    uint64_t slot_bytes;
    const char *precision;
};

struct fire_caps {
    char name[64];    /* CPU or GPU model */
    char path[32];    /* which code runs: "avx512" */
    char reason[160]; /* why that path, or why the backend cannot run */
    uint32_t threads;
    double flops_per_s; /* measured fp32 rate of one thread; 0 until measured */
};

struct fire_backend {
    uint32_t abi; /* FIRE_BACKEND_ABI */
    const char *name;
    bool tells; /* calls `ended` of a batch; else somebody has to wait for it */

    /* Can it run here? FIRE_OK or FIRE_DEVICE_LOST with the reason in `caps`. */
    enum fire_status (*probe)(struct fire_caps *caps);

    /* On success the caller owns `*device`; on failure it is NULL. */
    enum fire_status (*open)(const struct fire_backend_settings *settings,
                             struct fire_device **device, struct fire_error *error);
    void (*close)(struct fire_device *device); /* waits for what runs; NULL is allowed */

    /* Memory a slot may live in (page-locked for a GPU), 64-byte aligned; NULL: there is none. */
    void *(*host_alloc)(struct fire_device *device, size_t bytes);
    void (*host_free)(struct fire_device *device, void *memory);

    /* Queues `batch` and returns at once; from any thread. Batches run in the order queued, but
     * urgent ones first. An urgent batch of matrices with a short side of at most
     * FIRE_URGENT_SIDE_MAX does not wait for one that has begun either: it runs between two of its
     * matrices or, within a matrix that the whole device computes, two tiles. Nobody's bits
     * change. */
    enum fire_status (*submit)(struct fire_device *device, struct fire_batch *batch);
    /* Runs a batch of small matrices on the caller's thread, which for a short one takes less time
     * than waking another; `ended` is not called. False: the device is busy, submit() it. The bits
     * are those of submit(). NULL: the device has no such way. */
    bool (*run_here)(struct fire_device *device, struct fire_batch *batch);
    /* Nobody wants what a submitted batch computes: it ends soon, as it would anyway, with
     * FIRE_CANCELLED, its slots half written. Matrices end at the next tile; an eigensolve does not
     * end early. A batch that has finished is left as it is. From any thread, until the caller
     * knows of the end. NULL: the device's batches always run to their ends. */
    void (*abandon)(struct fire_device *device, struct fire_batch *batch);
    bool (*poll)(struct fire_device *device, const struct fire_batch *batch);
    /* Blocks until the batch has finished; returns its status. */
    enum fire_status (*wait)(struct fire_device *device, const struct fire_batch *batch);

    /* Working memory of a batch of `plan`'s matrices, beside their slots: what the usual way takes.
     * The rare matrix that must be computed in f64, or completed, takes up to three times as much.
     * The device gives back what is over FIRE_WORKSPACE_KEPT_BYTES once a second has passed, or
     * some batches, in which nothing needed it. */
    uint64_t (*workspace_bytes)(const struct fire_device *device, const struct fire_plan *plan);

    void (*caps)(const struct fire_device *device, struct fire_caps *caps);
    const char *(*last_error)(const struct fire_device *device);
};

/* The one function that a plugin exports, by this name: its table. */
#define FIRE_PLUGIN_SYMBOL "fire_plugin_backend"
typedef const struct fire_backend *(*fire_plugin_backend_function)(void);

/* The CPU pool, always there. */
const struct fire_backend *fire_cpu_backend(void);

#endif
