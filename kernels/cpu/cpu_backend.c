/* The CPU pool behind the backend table.
 *
 * One executor thread takes batches in the order they were queued; it is worker 0 of the pool.
 * Small matrices are dealt out whole, one to a worker; large ones are computed one after the other
 * by all workers together, tile by tile. Both ways give the same bits. */
#define _GNU_SOURCE
#include "backend.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isa.h"
#include "pool.h"
#include "slot.h"
#include "tiny.h"

#define WHOLE_SIDE  1024u /* up to this short side a matrix is one worker's */
#define THREADS_MAX 512u

#define TINY_MANY        1024u /* from so many tiny matrices on, */
#define TINY_TASK_GROUPS 4u    /* so many groups are one task */

struct fire_device {
    struct isa_choice engines;
    struct fire_caps caps;
    struct pool *pool;
    void **scratch; /* one for each worker; the end of it is for tiny matrices */
    size_t scratch_bytes;
    struct polar_space *spaces; /* one for each worker */

    pthread_mutex_t lock;
    pthread_cond_t queued;
    pthread_cond_t finished;
    pthread_t executor;
    bool executing; /* the executor thread exists */
    bool stopping;
    struct fire_batch *head;
    struct fire_batch **tail;
};

static enum fire_status grow_scratch(struct fire_device *device, uint32_t cols)
{
    const size_t bytes =
        (dense_scratch_bytes(device->engines.fast, cols) + 63) / 64 * 64 + tiny_space_bytes();

    if (bytes <= device->scratch_bytes)
        return FIRE_OK;
    device->scratch_bytes = 0;
    for (uint32_t i = 0; i < pool_threads(device->pool); i++) {
        free(device->scratch[i]);
        device->scratch[i] = aligned_alloc(64, bytes);
        if (!device->scratch[i])
            return FIRE_NO_MEMORY;
    }
    device->scratch_bytes = bytes;
    return FIRE_OK;
}

static const struct engine *engine_for(const struct fire_device *device,
                                       const struct fire_batch *batch)
{
    return batch->plan->fast ? device->engines.fast : device->engines.exact;
}

struct whole {
    struct fire_device *device;
    struct fire_batch *batch;
};

static void whole_task(void *data, uint32_t index, uint32_t worker)
{
    const struct whole *whole = data;
    struct fire_device *device = whole->device;
    const struct crew alone = { engine_for(device, whole->batch), NULL, device->scratch, worker };

    slot_run(&alone, whole->batch->plan, &device->spaces[worker], &whole->batch->slots[index]);
}

/* A task is some groups of as many slots as there are lanes. */
static uint32_t tiny_task_slots(const struct engine *engine, uint32_t slot_count)
{
    return engine->tiny->lanes * (slot_count >= TINY_MANY ? TINY_TASK_GROUPS : 1);
}

static void tiny_task(void *data, uint32_t index, uint32_t worker)
{
    const struct whole *whole = data;
    struct fire_device *device = whole->device;
    struct fire_batch *batch = whole->batch;
    const struct crew alone = { engine_for(device, batch), NULL, device->scratch, worker };
    char *scratch = device->scratch[worker];
    const struct tiny_job job = {
        .crew = &alone,
        .plan = batch->plan,
        .space = &device->spaces[worker],
        .lanes = (double *)(void *)(scratch + device->scratch_bytes - tiny_space_bytes()),
    };
    const uint32_t slots = tiny_task_slots(alone.engine, batch->slot_count);
    const uint32_t lanes = alone.engine->tiny->lanes;
    const uint32_t rest = batch->slot_count - index * slots;
    const uint32_t end = batch->slot_count - (rest > slots ? rest - slots : 0);

    for (uint32_t i = index * slots; i < end; i += lanes)
        tiny_run(&job, &batch->slots[i], end - i < lanes ? end - i : lanes);
}

static void run_batch(struct fire_device *device, struct fire_batch *batch)
{
    const struct crew all = { engine_for(device, batch), device->pool, device->scratch, 0 };
    const uint32_t threads = pool_threads(device->pool);
    struct whole whole = { device, batch };
    uint32_t first_shared = 0; /* slots before it are dealt out whole */

    batch->status = grow_scratch(device, batch->plan->cols);
    if (batch->status != FIRE_OK)
        return;
    if (tiny_takes(batch->plan)) {
        const uint32_t slots = tiny_task_slots(all.engine, batch->slot_count);

        pool_run(device->pool, (batch->slot_count + slots - 1) / slots, tiny_task, &whole);
        return;
    }
    if (batch->plan->cols <= 128)
        first_shared = batch->slot_count;
    else if (batch->plan->cols <= WHOLE_SIDE)
        first_shared = batch->slot_count / threads * threads;
    pool_run(device->pool, first_shared, whole_task, &whole);
    for (uint32_t i = first_shared; i < batch->slot_count; i++)
        slot_run(&all, batch->plan, &device->spaces[0], &batch->slots[i]);
}

static void *executor_main(void *data)
{
    struct fire_device *device = data;

    pthread_mutex_lock(&device->lock);
    for (;;) {
        struct fire_batch *batch = device->head;

        if (!batch) {
            if (device->stopping)
                break;
            pthread_cond_wait(&device->queued, &device->lock);
            continue;
        }
        device->head = batch->next;
        if (!device->head)
            device->tail = &device->head;
        pthread_mutex_unlock(&device->lock);
        run_batch(device, batch);
        pthread_mutex_lock(&device->lock);
        batch->finished = true;
        pthread_cond_broadcast(&device->finished);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

static void cpu_close(struct fire_device *device)
{
    if (!device)
        return;
    if (device->executing) {
        pthread_mutex_lock(&device->lock);
        device->stopping = true;
        pthread_cond_broadcast(&device->queued);
        pthread_mutex_unlock(&device->lock);
        pthread_join(device->executor, NULL);
    }
    if (device->pool) {
        for (uint32_t i = 0; i < pool_threads(device->pool); i++) {
            if (device->scratch)
                free(device->scratch[i]);
            if (device->spaces)
                polar_space_release(&device->spaces[i]);
        }
    }
    pool_close(device->pool);
    free(device->scratch);
    free(device->spaces);
    pthread_cond_destroy(&device->finished);
    pthread_cond_destroy(&device->queued);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static enum fire_status open_parts(struct fire_device *device, uint32_t threads)
{
    enum fire_status status = pool_open(threads, &device->pool);

    if (status != FIRE_OK)
        return status;
    device->scratch = calloc(threads, sizeof(device->scratch[0]));
    device->spaces = calloc(threads, sizeof(device->spaces[0]));
    if (!device->scratch || !device->spaces)
        return FIRE_NO_MEMORY;
    status = grow_scratch(device, 256);
    if (status != FIRE_OK)
        return status;
    device->caps.flops_per_s = isa_measure_rate(device->engines.exact);
    if (pthread_create(&device->executor, NULL, executor_main, device) != 0)
        return FIRE_NO_MEMORY;
    device->executing = true;
    return FIRE_OK;
}

static uint32_t default_threads(void)
{
    const uint32_t threads = pool_default_threads();

    return threads < THREADS_MAX ? threads : THREADS_MAX;
}

static enum fire_status cpu_open(const struct fire_backend_settings *settings,
                                 struct fire_device **out, struct fire_error *error)
{
    const uint32_t threads = settings && settings->threads ? settings->threads : default_threads();
    struct fire_device *device;
    enum fire_status status;

    *out = NULL;
    if (threads > THREADS_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "threads", "threads must be 1 to %u, got %u",
                         THREADS_MAX, threads);
    device = calloc(1, sizeof(*device));
    if (!device)
        return fire_fail_memory(error, sizeof(*device));
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->queued, NULL);
    pthread_cond_init(&device->finished, NULL);
    device->tail = &device->head;
    status = isa_choose(settings ? settings->path : NULL, &device->engines, device->caps.reason,
                        sizeof(device->caps.reason));
    if (status != FIRE_OK) {
        fire_fail(error, status, "path", "cannot compute with path %s: %s",
                  settings && settings->path ? settings->path : "auto", device->caps.reason);
        cpu_close(device);
        return status;
    }
    isa_processor_name(device->caps.name, sizeof(device->caps.name));
    snprintf(device->caps.path, sizeof(device->caps.path), "%s", device->engines.fast->name);
    device->caps.threads = threads;
    status = open_parts(device, threads);
    if (status != FIRE_OK) {
        fire_fail(error, status, "threads", "could not start a pool of %u threads: %s", threads,
                  fire_status_name(status));
        cpu_close(device);
        return status;
    }
    *out = device;
    return FIRE_OK;
}

static enum fire_status cpu_probe(struct fire_caps *caps)
{
    struct isa_choice engines;

    memset(caps, 0, sizeof(*caps));
    isa_processor_name(caps->name, sizeof(caps->name));
    caps->threads = default_threads();
    if (isa_choose("auto", &engines, caps->reason, sizeof(caps->reason)) != FIRE_OK)
        return FIRE_DEVICE_LOST;
    snprintf(caps->path, sizeof(caps->path), "%s", engines.fast->name);
    return FIRE_OK;
}

static void *cpu_host_alloc(struct fire_device *device, size_t bytes)
{
    (void)device;
    return bytes > SIZE_MAX - 63 ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void cpu_host_free(struct fire_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static enum fire_status cpu_submit(struct fire_device *device, struct fire_batch *batch)
{
    batch->next = NULL;
    batch->finished = false;
    batch->status = FIRE_OK;
    pthread_mutex_lock(&device->lock);
    *device->tail = batch;
    device->tail = &batch->next;
    pthread_cond_signal(&device->queued);
    pthread_mutex_unlock(&device->lock);
    return FIRE_OK;
}

static bool cpu_poll(struct fire_device *device, const struct fire_batch *batch)
{
    bool finished;

    pthread_mutex_lock(&device->lock);
    finished = batch->finished;
    pthread_mutex_unlock(&device->lock);
    return finished;
}

static enum fire_status cpu_wait(struct fire_device *device, const struct fire_batch *batch)
{
    enum fire_status status;

    pthread_mutex_lock(&device->lock);
    while (!batch->finished)
        pthread_cond_wait(&device->finished, &device->lock);
    status = batch->status;
    pthread_mutex_unlock(&device->lock);
    return status;
}

static void cpu_caps(const struct fire_device *device, struct fire_caps *caps)
{
    *caps = device->caps;
}

static const char *cpu_last_error(const struct fire_device *device)
{
    (void)device;
    return ""; /* a CPU pool has no errors but those its calls return */
}

const struct fire_backend *fire_cpu_backend(void)
{
    static const struct fire_backend backend = {
        .abi = FIRE_BACKEND_ABI,
        .name = "cpu",
        .probe = cpu_probe,
        .open = cpu_open,
        .close = cpu_close,
        .host_alloc = cpu_host_alloc,
        .host_free = cpu_host_free,
        .submit = cpu_submit,
        .poll = cpu_poll,
        .wait = cpu_wait,
        .caps = cpu_caps,
        .last_error = cpu_last_error,
    };

    return &backend;
}
