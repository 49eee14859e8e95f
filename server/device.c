/* device: batches go to the backend from the loop; their ends come back through a list and one
 * wake-up.
 *
 * A backend that tells of an end does so on a thread of its own. For any other, each batch object
 * has a thread that does nothing but wait for it: there are three. A backend runs ordinary batches
 * in the order submitted, so their ends are told in that order; an urgent one may overtake them.
 *
 * Device time. An ordinary batch began when it was submitted or when the one before it ended,
 * whichever was later. What an urgent batch took cannot be told from what it interrupted: it counts
 * as estimated, and so much less is the time of the batch it ran within.
 *
 * Shared with those threads, under `lock`: the list of ended batches, `waiting`, `stopping`.
 * Everything else is the loop thread's. */
#include "device.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "device_trial.h"
#include "log.h"
#include "wake.h"

#define MEASURED_SHARE 0.8 /* of the time between start and end that must be a batch's own */

struct waiter {
    struct device *device;
    struct batch batch;
    pthread_t thread;
    pthread_cond_t begun;
    bool started; /* the thread exists */
    bool waiting; /* its batch is with the backend */
    bool ended;   /* the loop's: its end has arrived */
};

struct device {
    struct device_settings settings;
    struct fire_device *handle;
    struct fire_caps caps;
    struct cost_model cost;
    device_done done;
    void *data;
    void (*closed)(void *data);
    void *closed_data;
    struct wake wake;

    pthread_mutex_t lock;
    struct batch *ends; /* newest first */
    bool stopping;

    struct waiter waiters[DEVICE_BATCHES_MAX];
    struct waiter *running[DEVICE_BATCHES_MAX]; /* in the order submitted */
    uint32_t running_count;
    uint64_t last_end_ns; /* of an ordinary batch */
    double lent_s;        /* to urgent batches, out of the ordinary one that runs */
    bool in_service;
    double busy_s;
    uint64_t batches;
    uint64_t matrices;
};

static struct waiter *waiter_of(struct batch *batch)
{
    return (struct waiter *)(void *)((char *)batch - offsetof(struct waiter, batch));
}

/* --- the threads that wait ------------------------------------------------------------------- */

static void tell_end(struct device *device, struct batch *batch)
{
    pthread_mutex_lock(&device->lock);
    batch->next = device->ends;
    device->ends = batch;
    pthread_mutex_unlock(&device->lock);
    wake_send(&device->wake);
}

/* On a thread of the backend. */
static void on_told(struct fire_batch *work)
{
    struct batch *batch = (struct batch *)work; /* which begins with it */

    batch->status = work->status;
    batch->finished_ns = clock_now_ns();
    tell_end(waiter_of(batch)->device, batch);
}

static void *waiter_main(void *data)
{
    struct waiter *waiter = data;
    struct device *device = waiter->device;

    pthread_mutex_lock(&device->lock);
    for (;;) {
        while (!waiter->waiting && !device->stopping)
            pthread_cond_wait(&waiter->begun, &device->lock);
        if (!waiter->waiting)
            break;
        waiter->waiting = false;
        pthread_mutex_unlock(&device->lock);
        waiter->batch.status = device->settings.backend->wait(device->handle, &waiter->batch.work);
        waiter->batch.finished_ns = clock_now_ns();
        tell_end(device, &waiter->batch);
        pthread_mutex_lock(&device->lock);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* --- opening and closing --------------------------------------------------------------------- */

static void release(struct device *device)
{
    const struct fire_backend *backend = device->settings.backend;

    pthread_mutex_lock(&device->lock);
    device->stopping = true;
    for (uint32_t i = 0; i < DEVICE_BATCHES_MAX; i++)
        pthread_cond_signal(&device->waiters[i].begun);
    pthread_mutex_unlock(&device->lock);
    for (uint32_t i = 0; i < DEVICE_BATCHES_MAX; i++) {
        struct waiter *waiter = &device->waiters[i];

        if (waiter->started)
            pthread_join(waiter->thread, NULL);
        pthread_cond_destroy(&waiter->begun);
    }
    backend->close(device->handle); /* waits for what runs */
    for (uint32_t i = 0; i < DEVICE_BATCHES_MAX; i++) {
        free(device->waiters[i].batch.slots);
        free(device->waiters[i].batch.parts);
    }
    pthread_mutex_destroy(&device->lock);
}

static void on_released(void *data)
{
    struct device *device = data;
    void (*closed)(void *data) = device->closed;
    void *closed_data = device->closed_data;

    free(device);
    if (closed)
        closed(closed_data);
}

void device_close(struct device *device, void (*closed)(void *data), void *data)
{
    if (!device) {
        if (closed)
            closed(data);
        return;
    }
    release(device);
    device->closed = closed;
    device->closed_data = data;
    wake_release(&device->wake, on_released);
}

static enum fire_status open_waiters(struct device *device, struct fire_error *error)
{
    const uint32_t room = device->settings.slots_max;

    for (uint32_t i = 0; i < DEVICE_BATCHES_MAX; i++) {
        struct waiter *waiter = &device->waiters[i];

        waiter->batch.slot_room = room;
        waiter->batch.slots = calloc(room, sizeof(waiter->batch.slots[0]));
        waiter->batch.parts = calloc(room, sizeof(waiter->batch.parts[0]));
        if (!waiter->batch.slots || !waiter->batch.parts)
            return fire_fail_memory(
                error, (unsigned long long)room *
                           (sizeof(waiter->batch.slots[0]) + sizeof(waiter->batch.parts[0])));
        if (device->settings.backend->tells) {
            waiter->batch.work.ended = on_told;
            continue;
        }
        if (pthread_create(&waiter->thread, NULL, waiter_main, waiter) != 0)
            return fire_fail(error, FIRE_NO_MEMORY, "device",
                             "could not start a thread of device %u: allow the daemon more tasks",
                             device->settings.index);
        waiter->started = true;
    }
    return FIRE_OK;
}

static void on_ends(void *data);

enum fire_status device_open(uv_loop_t *loop, const struct device_settings *settings,
                             device_done done, void *data, struct device **out,
                             struct fire_error *error)
{
    const struct fire_backend *backend = settings->backend;
    struct device *device;
    enum fire_status status;

    *out = NULL;
    if (backend->abi != FIRE_BACKEND_ABI || settings->slots_max == 0)
        return fire_fail(error, FIRE_BAD_REQUEST, "device",
                         "backend %s has interface %u, this daemon needs %u; slots_max is %u and "
                         "must be at least 1",
                         backend->name, backend->abi, FIRE_BACKEND_ABI, settings->slots_max);
    device = calloc(1, sizeof(*device));
    if (!device)
        return fire_fail_memory(error, sizeof(*device));
    device->settings = *settings;
    device->done = done;
    device->data = data;
    device->in_service = true;
    pthread_mutex_init(&device->lock, NULL);
    for (uint32_t i = 0; i < DEVICE_BATCHES_MAX; i++) {
        device->waiters[i].device = device;
        pthread_cond_init(&device->waiters[i].begun, NULL);
    }
    status = backend->open(&settings->backend_settings, &device->handle, error);
    if (status == FIRE_OK)
        status = device_selftest(backend, device->handle, error);
    if (status == FIRE_OK)
        status = device_calibrate(backend, device->handle, &device->cost, error);
    if (status == FIRE_OK)
        status = open_waiters(device, error);
    /* The handle comes last: before it, failing leaves nothing in the loop. */
    if (status == FIRE_OK)
        status = wake_init(&device->wake, loop, on_ends, device, error);
    if (status != FIRE_OK) {
        release(device);
        free(device);
        return status;
    }
    backend->caps(device->handle, &device->caps);
    *out = device;
    return FIRE_OK;
}

/* --- batches --------------------------------------------------------------------------------- */

struct batch *device_free_batch(struct device *device)
{
    for (uint32_t i = 0; i < DEVICE_BATCHES_MAX; i++) {
        struct batch *batch = &device->waiters[i].batch;

        if (!batch->in_use) {
            batch->in_use = true;
            batch->part_count = 0;
            batch->work.slot_count = 0;
            batch->urgent = false;
            batch->here = false;
            return batch;
        }
    }
    return NULL;
}

void device_release_batch(struct device *device, struct batch *batch)
{
    FIRE_ASSERT(waiter_of(batch)->device == device);
    FIRE_ASSERT(batch->in_use);
    batch->in_use = false;
}

void device_submit(struct device *device, struct batch *batch)
{
    struct waiter *waiter = waiter_of(batch);
    enum fire_status status = FIRE_DEVICE_LOST;

    FIRE_ASSERT(device->running_count < DEVICE_BATCHES_MAX);
    FIRE_ASSERT(batch->work.slot_count <= batch->slot_room);
    batch->work.slots = batch->slots;
    batch->submitted_ns = clock_now_ns();
    waiter->ended = false;
    device->running[device->running_count++] = waiter;
    batch->here = device->in_service && batch->here && device->settings.backend->run_here &&
                  device->settings.backend->run_here(device->handle, &batch->work);
    if (batch->here) {
        batch->status = batch->work.status;
        batch->finished_ns = clock_now_ns();
        tell_end(device, batch);
        return;
    }
    if (device->in_service)
        status = device->settings.backend->submit(device->handle, &batch->work);
    if (status != FIRE_OK) {
        batch->status = status;
        batch->finished_ns = batch->submitted_ns;
        tell_end(device, batch);
        return;
    }
    if (batch->work.ended)
        return;
    pthread_mutex_lock(&device->lock);
    waiter->waiting = true;
    pthread_cond_signal(&waiter->begun);
    pthread_mutex_unlock(&device->lock);
}

void device_abandon(struct device *device, struct batch *batch)
{
    if (device->settings.backend->abandon)
        device->settings.backend->abandon(device->handle, &batch->work);
}

struct batch *device_batch(struct device *device, uint32_t index)
{
    FIRE_ASSERT(index < device->running_count);
    return &device->running[index]->batch;
}

/* What a batch that has ended took, and of whom. */
static void account(struct device *device, struct batch *batch)
{
    const uint64_t last = device->last_end_ns;
    double seconds;

    batch->started_ns = batch->submitted_ns;
    if (batch->urgent) {
        /* An urgent batch that was abandoned had not begun. */
        batch->device_s = batch->status == FIRE_CANCELLED ? 0 : batch->cost_s;
        batch->measured = false;
        device->lent_s += device->running_count > 0 ? batch->device_s : 0;
    } else {
        batch->started_ns = last > batch->submitted_ns ? last : batch->submitted_ns;
        /* Threads that wait for two batches may wake in either order. */
        if (batch->started_ns > batch->finished_ns)
            batch->started_ns = batch->finished_ns;
        seconds = (double)(batch->finished_ns - batch->started_ns) / 1e9;
        batch->device_s = fmax(seconds - device->lent_s, 0);
        batch->measured = batch->device_s > MEASURED_SHARE * seconds;
        device->lent_s = 0;
        if (batch->finished_ns > last)
            device->last_end_ns = batch->finished_ns;
    }
    device->busy_s += batch->device_s;
    device->batches++;
    device->matrices += batch->status == FIRE_OK ? batch->work.slot_count : 0;
}

/* The next batch to be told of: an urgent one that has ended, or the oldest ordinary one if it has.
 * An ordinary batch whose elder's end has not arrived waits for it: it is on its way. */
static struct batch *take_ended(struct device *device)
{
    bool elder = false;

    for (uint32_t i = 0; i < device->running_count; i++) {
        struct waiter *waiter = device->running[i];

        if (waiter->ended && (waiter->batch.urgent || !elder)) {
            device->running_count--;
            memmove(&device->running[i], &device->running[i + 1],
                    (device->running_count - i) * sizeof(device->running[0]));
            return &waiter->batch;
        }
        elder = elder || !waiter->batch.urgent;
    }
    return NULL;
}

static void on_ends(void *data)
{
    struct device *device = data;
    struct batch *batch;

    pthread_mutex_lock(&device->lock);
    batch = device->ends;
    device->ends = NULL;
    pthread_mutex_unlock(&device->lock);
    for (; batch; batch = batch->next)
        waiter_of(batch)->ended = true;
    while ((batch = take_ended(device)) != NULL) {
        if (batch->status == FIRE_DEVICE_LOST && device->in_service) {
            device->in_service = false;
            log_warn("device_lost", LOG_U64("device", device->settings.index),
                     LOG_TEXT("backend", device->settings.backend->name),
                     LOG_TEXT("reason", device_last_error(device)));
        }
        account(device, batch);
        device->done(device, batch, device->data);
    }
}

/* --- what it says of itself ------------------------------------------------------------------ */

uint32_t device_running(const struct device *device)
{
    return device->running_count;
}

uint32_t device_urgent(const struct device *device)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < device->running_count; i++)
        count += device->running[i]->batch.urgent;
    return count;
}

double device_backlog_s(const struct device *device)
{
    const uint64_t now = clock_now_ns();
    double seconds = 0;
    bool first = true;

    for (uint32_t i = 0; i < device->running_count; i++) {
        const struct batch *batch = &device->running[i]->batch;
        double left = batch->cost_s;

        if (first && !batch->urgent) {
            const uint64_t last = device->last_end_ns;
            const uint64_t begun = last > batch->submitted_ns ? last : batch->submitted_ns;

            left -= now > begun ? (double)(now - begun) / 1e9 : 0;
            first = false;
        }
        seconds += fmax(left, 0);
    }
    return seconds;
}

bool device_in_service(const struct device *device)
{
    return device->in_service;
}

bool device_standby(const struct device *device)
{
    return device->settings.standby;
}

void device_caps(const struct device *device, struct fire_caps *caps)
{
    *caps = device->caps;
}

const char *device_backend_name(const struct device *device)
{
    return device->settings.backend->name;
}

struct cost_model *device_cost(struct device *device)
{
    return &device->cost;
}

double device_busy_s(const struct device *device)
{
    return device->busy_s;
}

uint64_t device_batches(const struct device *device)
{
    return device->batches;
}

uint64_t device_matrices(const struct device *device)
{
    return device->matrices;
}

uint32_t device_index(const struct device *device)
{
    return device->settings.index;
}

const char *device_last_error(const struct device *device)
{
    return device->settings.backend->last_error(device->handle);
}

uint64_t device_workspace_bytes(const struct device *device, const struct fire_plan *plan)
{
    return device->settings.backend->workspace_bytes(device->handle, plan);
}

void *device_host_alloc(struct device *device, size_t bytes)
{
    return device->settings.backend->host_alloc(device->handle, bytes);
}

void device_host_free(struct device *device, void *memory)
{
    device->settings.backend->host_free(device->handle, memory);
}
