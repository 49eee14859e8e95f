/* device: one executor. Takes closed batches, runs them on a backend, hands them back to the loop.
 *
 * device_submit() never waits: it queues the batch with the backend, which tells of its end, or a
 * thread of the batch object waits for it, so an urgent batch comes back before a large one that
 * began earlier. At most DEVICE_BATCHES_MAX batches are with a device; each batch object is
 * allocated at open with room for all its slots. If the backend loses the device, the batches that
 * were with it come back with FIRE_DEVICE_LOST and the device is out of service. */
#ifndef FIRED_DEVICE_H
#define FIRED_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backend.h"
#include "cost.h"
#include "job.h"

#define DEVICE_BATCHES_MAX 3u

/* Some matrices of one job: slots first … first + count - 1 of it. */
struct batch_part {
    struct job *job;
    uint32_t first;
    uint32_t count;
};

/* A closed batch: parts of jobs in order, and their slots in one array. */
struct batch {
    struct fire_batch work; /* plan, slots and slot_count are the submitter's */
    struct fire_slot *slots;
    struct batch_part *parts;
    uint32_t part_count;
    uint32_t slot_room; /* of slots and parts */
    bool urgent;        /* may be run between the steps of a huge matrix */
    bool here;          /* short, and nobody else is served: the loop may compute it itself; then,
                           whether it did */
    uint64_t id;
    struct bucket *bucket;
    enum close_reason reason;
    double cost_s; /* estimated */
    /* Written by the device. */
    uint64_t submitted_ns;
    uint64_t started_ns; /* when the device began it */
    uint64_t finished_ns;
    double device_s; /* device time it took */
    bool measured;   /* device_s is a measurement; else it ran among others and is the estimate */
    enum fire_status status;
    struct batch *next; /* the device's */
    bool in_use;        /* from device_free_batch() until device_release_batch() */
};

struct device;

/* Called on the loop thread for each batch, in the order they end. The batch stays the callback's
 * until device_release_batch(). */
typedef void (*device_done)(struct device *device, struct batch *batch, void *data);

struct device_settings {
    const struct fire_backend *backend;
    struct fire_backend_settings backend_settings;
    uint32_t index;
    uint32_t slots_max; /* matrices of one batch */
    bool standby;       /* takes work only when no other device is in service */
};

/* Opens the backend's device, checks it against the float64 reference on a few shapes (a device
 * that fails is FIRE_DEVICE_LOST and stays out), calibrates its cost model, starts the executor. */
FIRE_NODISCARD enum fire_status device_open(uv_loop_t *loop, const struct device_settings *settings,
                                            device_done done, void *data, struct device **device,
                                            struct fire_error *error);
/* Waits for what runs, without telling of it; `closed` (NULL is allowed) is called on the loop when
 * the last handle is gone. NULL is no device. */
void device_close(struct device *device, void (*closed)(void *data), void *data);

/* A batch object that is free, now the caller's, or NULL. */
struct batch *device_free_batch(struct device *device);
void device_release_batch(struct device *device, struct batch *batch);
/* A batch that the backend refuses comes back through `done` too, never from here. */
void device_submit(struct device *device, struct batch *batch);

/* Nobody wants what a batch that is with it computes: it comes back soon, with FIRE_CANCELLED, or
 * computed after all. */
void device_abandon(struct device *device, struct batch *batch);
/* A batch that is with it: `index` below device_running(). */
struct batch *device_batch(struct device *device, uint32_t index);

uint32_t device_running(const struct device *device); /* batches with it */
double device_backlog_s(const struct device *device); /* estimated seconds left of them */
uint32_t device_urgent(const struct device *device);  /* urgent ones among them */
bool device_in_service(const struct device *device);
bool device_standby(const struct device *device);
void device_caps(const struct device *device, struct fire_caps *caps);
const char *device_backend_name(const struct device *device);
struct cost_model *device_cost(struct device *device);
double device_busy_s(const struct device *device); /* since start */
uint64_t device_batches(const struct device *device);
uint64_t device_matrices(const struct device *device);
uint32_t device_index(const struct device *device);
/* What the backend last said about itself; "" when it said nothing. */
const char *device_last_error(const struct device *device);

/* Working memory that a batch of this plan takes beside its slots. */
uint64_t device_workspace_bytes(const struct device *device, const struct fire_plan *plan);

/* Host memory for the arena, page-locked where the device wants that. */
void *device_host_alloc(struct device *device, size_t bytes);
void device_host_free(struct device *device, void *memory);

#endif
