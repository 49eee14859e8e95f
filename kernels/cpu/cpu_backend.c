/* The CPU pool behind the backend table.
 *
 * One executor thread takes batches in the order they were queued, urgent ones first; it is worker
 * 0 of the pool. Small matrices are dealt out whole, one to a worker; large ones are computed one
 * after the other by all workers together, tile by tile; those between in the faster of both ways,
 * which give the same bits.
 *
 * An urgent batch that arrives while another runs interrupts the pool's loop between two tasks. A
 * light one does not even wait for that: a worker with a matrix of its own takes it between two
 * tiles. Either way it runs in a workspace that nothing else uses, so that what it interrupts finds
 * everything as it was.
 *
 * The ordinary workspace belongs to whoever set `occupied`: the executor, or a caller that runs a
 * batch itself while the device has nothing to do. */
#define _GNU_SOURCE
#include "backend.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "isa.h"
#include "lanczos.h"
#include "pool.h"
#include "slot.h"
#include "tiny.h"

#define WHOLE_SIDE  1024u /* up to this short side a matrix is one worker's, … */
#define EVEN_SIDE   128u  /* … above this one if all have one; server/cost.c counts on it */
#define THREADS_MAX 512u

#define TINY_MANY        1024u /* from so many tiny matrices on, */
#define TINY_TASK_GROUPS 4u    /* so many groups are one task */

#define LIGHT_PRODUCTS (1ull << 26) /* rows cols^2 of all matrices that one worker may take */

/* A matrix above EVEN_SIDE and of up to this rows cols^2 that is projected and left over may be one
 * worker's or everybody's. Which is faster depends on how far apart their processors are: to write
 * a line of memory that both have read takes 7 ns where they share a cache and 28 where they do
 * not, and those of a virtual machine go from one to the other by the minute. So both ways are
 * tried. The bits are the same. */
#define TRIED_PRODUCTS (1ull << 27)
#define TRIED_CLASSES  28u  /* by log2 of rows cols^2 */
#define TRY_EVERY      64u  /* the slower way is tried again */
#define TIME_RISE      0.25 /* of what a way took longer than is known of it, at most … */
#define TIME_RISE_MOST 2.0  /* … so many times that */

/* Seconds of one worker and of all for a product, as of late; 0: never tried. */
struct ways {
    double alone_s, shared_s;
    uint32_t turns;
};

#define TRIM_BATCHES 8u /* so many that needed less, or */
#define TRIM_IDLE_S  1  /* so long without one, and memory is given back */

/* What the workers compute in. */
struct workspace {
    void **scratch; /* one for each worker; the end of it is for tiny matrices */
    size_t scratch_bytes;
    struct polar_space *spaces; /* one for each worker */
    uint64_t needed_bytes;      /* the most that a batch of late needed */
    uint32_t batches;           /* since then */
};

struct batch_queue {
    struct fire_batch *head;
    struct fire_batch **tail;
};

struct fire_device {
    struct isa_choice engines;
    struct fire_caps caps;
    struct pool *pool;
    struct workspace ordinary;
    struct workspace urgent; /* of batches that interrupt others */
    struct pool_interrupt interrupt;
    struct crew_yield yield;
    uint32_t nice;
    struct ways ways[3][TRIED_CLASSES]; /* [f32, f64, fast], of who has the ordinary workspace */

    pthread_mutex_t lock;
    pthread_cond_t queued;
    pthread_cond_t finished;
    pthread_t executor;
    bool executing; /* the executor thread exists */
    bool stopping;
    bool occupied;              /* the ordinary workspace */
    struct fire_batch *running; /* in it; NULL: none that could be abandoned */
    atomic_bool abandoned;      /* that batch */
    struct batch_queue ordinary_queue;
    struct batch_queue urgent_queue; /* interrupt.waiting: it is not empty */
};

/* --- workspaces ------------------------------------------------------------------------------- */

static size_t scratch_bytes_for(const struct fire_device *device, uint32_t cols)
{
    return (dense_scratch_bytes(device->engines.fast, cols) + 63) / 64 * 64 + tiny_space_bytes();
}

static enum fire_status workspace_init(struct workspace *workspace, uint32_t threads)
{
    workspace->scratch = calloc(threads, sizeof(workspace->scratch[0]));
    workspace->spaces = calloc(threads, sizeof(workspace->spaces[0]));
    return workspace->scratch && workspace->spaces ? FIRE_OK : FIRE_NO_MEMORY;
}

static void workspace_release(struct workspace *workspace, uint32_t threads)
{
    for (uint32_t i = 0; i < threads; i++) {
        if (workspace->scratch)
            free(workspace->scratch[i]);
        if (workspace->spaces)
            polar_space_release(&workspace->spaces[i]);
    }
    free(workspace->scratch);
    free(workspace->spaces);
}

static enum fire_status workspace_grow(struct fire_device *device, struct workspace *workspace,
                                       uint32_t cols)
{
    const size_t bytes = scratch_bytes_for(device, cols);

    if (bytes <= workspace->scratch_bytes)
        return FIRE_OK;
    workspace->scratch_bytes = 0;
    for (uint32_t i = 0; i < pool_threads(device->pool); i++) {
        free(workspace->scratch[i]);
        workspace->scratch[i] = aligned_alloc(64, bytes);
        if (!workspace->scratch[i])
            return FIRE_NO_MEMORY;
    }
    workspace->scratch_bytes = bytes;
    return FIRE_OK;
}

/* The number of columns of an urgent matrix that takes the most scratch. */
static uint32_t urgent_cols(const struct fire_device *device)
{
    uint32_t most = 1;

    for (uint32_t cols = 2; cols <= FIRE_URGENT_SIDE_MAX; cols++) {
        if (scratch_bytes_for(device, cols) > scratch_bytes_for(device, most))
            most = cols;
    }
    return most;
}

static const struct engine *engine_for(const struct fire_device *device,
                                       const struct fire_plan *plan)
{
    return plan->fast ? device->engines.fast : device->engines.exact;
}

/* x as f32 for f32 slots, as f64 for f64; G and its inverse in f64; two or three powers of G; tiles
 * where they are used. */
static uint64_t space_bytes_for(const struct fire_device *device, const struct fire_plan *plan)
{
    const uint64_t ld = dense_stride(plan->cols), bytes = fire_dtype_bytes(plan->compute);
    const uint64_t powers = plan->compute == FIRE_F64 ? 3 : 2;
    const uint64_t side = dense_inverse_space(plan->cols) + lanczos_space(plan->cols);
    const uint64_t sum = plan->rows * ld * bytes +
                         plan->cols * ld * (sizeof(double) + powers * bytes) +
                         side * sizeof(double) +
                         (polar_tiles_takes(engine_for(device, plan), plan)
                              ? polar_space_tiles_bytes(plan->rows, plan->cols)
                              : 0);

    return sum + sum / 16; /* large arrays are rounded up to whole pages */
}

static uint64_t workspace_bytes_for(const struct fire_device *device, const struct fire_plan *plan)
{
    const uint64_t threads = pool_threads(device->pool);

    return (plan->cols <= WHOLE_SIDE ? threads : 1) * space_bytes_for(device, plan) +
           threads * scratch_bytes_for(device, plan->cols);
}

static uint64_t space_bytes(const struct polar_space *space)
{
    uint64_t bytes = space->x_bytes + space->g_bytes + space->tiles_bytes;

    for (int i = 0; i < 3; i++)
        bytes += space->store[i] ? space->store_bytes : 0;
    return bytes;
}

static uint64_t workspace_held(const struct fire_device *device, const struct workspace *workspace)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < pool_threads(device->pool); i++)
        bytes += space_bytes(&workspace->spaces[i]);
    return bytes;
}

/* Gives back what the matrices took, when that is over the limit. */
static void workspace_trim(const struct fire_device *device, struct workspace *workspace)
{
    if (workspace_held(device, workspace) <= FIRE_WORKSPACE_KEPT_BYTES)
        return;
    for (uint32_t i = 0; i < pool_threads(device->pool); i++)
        polar_space_release(&workspace->spaces[i]);
}

/* A batch that needed so much has run. True when for some time all of them needed less than half of
 * what is there and that is over the limit. */
static bool workspace_is_large(const struct fire_device *device, struct workspace *workspace,
                               uint64_t needed_bytes)
{
    const uint64_t held_bytes = workspace_held(device, workspace);
    bool large;

    if (needed_bytes > workspace->needed_bytes)
        workspace->needed_bytes = needed_bytes;
    if (++workspace->batches < TRIM_BATCHES)
        return false;
    large = held_bytes > FIRE_WORKSPACE_KEPT_BYTES && workspace->needed_bytes < held_bytes / 2;
    workspace->batches = 0;
    workspace->needed_bytes = 0;
    return large;
}

/* --- batches ---------------------------------------------------------------------------------- */

struct whole {
    struct fire_device *device;
    struct workspace *workspace;
    struct fire_batch *batch;
    const struct crew_yield *yield; /* NULL for what is urgent itself */
};

/* Urgent batches are short, and several may run at once: they are not abandoned. */
static struct crew whole_crew(const struct whole *whole, struct pool *pool, uint32_t worker)
{
    const bool urgent = whole->workspace == &whole->device->urgent;

    return (struct crew){ .engine = engine_for(whole->device, whole->batch->plan),
                          .pool = pool,
                          .scratch = whole->workspace->scratch,
                          .worker = worker,
                          .yield = pool ? NULL : whole->yield,
                          .abandoned = urgent ? NULL : &whole->device->abandoned };
}

static void whole_task(void *data, uint32_t index, uint32_t worker)
{
    const struct whole *whole = data;
    struct workspace *workspace = whole->workspace;
    const struct crew alone = whole_crew(whole, NULL, worker);

    slot_run(&alone, whole->batch->plan, &workspace->spaces[worker], &whole->batch->slots[index]);
}

/* A task is some groups of as many slots as there are lanes. */
static uint32_t tiny_task_slots(const struct engine *engine, uint32_t slot_count)
{
    return engine->tiny->lanes * (slot_count >= TINY_MANY ? TINY_TASK_GROUPS : 1);
}

static void tiny_task(void *data, uint32_t index, uint32_t worker)
{
    const struct whole *whole = data;
    struct workspace *workspace = whole->workspace;
    struct fire_batch *batch = whole->batch;
    const struct crew alone = whole_crew(whole, NULL, worker);
    char *scratch = workspace->scratch[worker];
    const struct tiny_job job = {
        .crew = &alone,
        .plan = batch->plan,
        .space = &workspace->spaces[worker],
        .lanes = (double *)(void *)(scratch + workspace->scratch_bytes - tiny_space_bytes()),
    };
    const uint32_t slots = tiny_task_slots(alone.engine, batch->slot_count);
    const uint32_t lanes = alone.engine->tiny->lanes;
    const uint32_t rest = batch->slot_count - index * slots;
    const uint32_t end = batch->slot_count - (rest > slots ? rest - slots : 0);

    for (uint32_t i = index * slots; i < end && !crew_is_abandoned(&alone); i += lanes)
        tiny_run(&job, &batch->slots[i], end - i < lanes ? end - i : lanes);
}

/* How many tasks a batch is when its matrices are dealt out, and what a task does. */
static uint32_t tasks_of(const struct fire_device *device, const struct fire_batch *batch,
                         pool_task *task)
{
    uint32_t slots;

    *task = whole_task;
    if (!tiny_takes(batch->plan))
        return batch->slot_count;
    *task = tiny_task;
    slots = tiny_task_slots(engine_for(device, batch->plan), batch->slot_count);
    return (batch->slot_count + slots - 1) / slots;
}

/* All of a batch, whose workspace is large enough, by one worker. */
static void run_alone(struct whole *whole, uint32_t worker)
{
    pool_task task;
    const uint32_t count = tasks_of(whole->device, whole->batch, &task);

    for (uint32_t i = 0; i < count; i++)
        task(whole, i, worker);
}

static uint64_t products_of(const struct fire_plan *plan)
{
    return (uint64_t)plan->rows * plan->cols * plan->cols;
}

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Whether all workers take the next matrix together. */
static bool choose_shared(struct ways *ways)
{
    if (ways->shared_s == 0 || ways->alone_s == 0)
        return ways->shared_s == 0;
    return (ways->shared_s < ways->alone_s) != (++ways->turns % TRY_EVERY == 0);
}

/* What is shorter is believed at once; what is longer may have been somebody else's doing. */
static void note_time(double *known, double seconds)
{
    if (*known == 0 || seconds < *known)
        *known = seconds;
    else
        *known += TIME_RISE * (fmin(seconds, TIME_RISE_MOST * *known) - *known);
}

/* Matrices from `begin` on. */
struct left_over {
    struct whole *whole;
    uint32_t begin;
};

static void left_over_task(void *data, uint32_t index, uint32_t worker)
{
    const struct left_over *rest = data;

    whole_task(rest->whole, rest->begin + index, worker);
}

/* NULL: all workers take such a matrix together. */
static struct ways *ways_of(const struct whole *whole)
{
    struct fire_device *device = whole->device;
    const struct fire_plan *plan = whole->batch->plan;
    const uint64_t products = products_of(plan);
    const uint32_t arithmetic = plan->fast ? 2 : plan->compute == FIRE_F64;

    if (pool_threads(device->pool) == 1 || whole->workspace != &device->ordinary ||
        plan->kind != FIRE_PLAN_CONVERGE || products > TRIED_PRODUCTS)
        return NULL;
    return &device->ways[arithmetic][63 - __builtin_clzll(products)];
}

/* The matrices from `begin` on, which do not suffice for all workers: each by all of them together,
 * or dealt out after all, whichever is faster. */
static void run_left_over(struct whole *whole, uint32_t begin)
{
    struct fire_device *device = whole->device;
    struct fire_batch *batch = whole->batch;
    struct ways *ways = ways_of(whole);

    for (uint32_t i = begin; i < batch->slot_count; i++) {
        const bool shared = !ways || choose_shared(ways);
        const struct crew crew = whole_crew(whole, shared ? device->pool : NULL, 0);
        const double start = seconds_now();
        /* This batch may have come between the loops of another one. */
        const bool dense = pool_set_dense(device->pool, shared);

        if (!shared && i + 1 < batch->slot_count) {
            struct left_over rest = { whole, i };

            pool_run(device->pool, batch->slot_count - i, left_over_task, &rest);
            (void)pool_set_dense(device->pool, dense);
            return;
        }
        slot_run(&crew, batch->plan, &whole->workspace->spaces[0], &batch->slots[i]);
        (void)pool_set_dense(device->pool, dense);
        if (ways && !crew_is_abandoned(&crew) && batch->slots[i].result->steps > 0)
            note_time(shared ? &ways->shared_s : &ways->alone_s,
                      (seconds_now() - start) / (double)products_of(batch->plan));
    }
}

static void run_batch(struct fire_device *device, struct workspace *workspace,
                      struct fire_batch *batch)
{
    const uint32_t threads = pool_threads(device->pool);
    struct whole whole = { device, workspace, batch,
                           workspace == &device->urgent ? NULL : &device->yield };
    pool_task task;
    uint32_t dealt = tasks_of(device, batch, &task); /* the slots after them are everybody's */

    batch->status = workspace_grow(device, workspace, batch->plan->cols);
    if (batch->status != FIRE_OK)
        return;
    if (batch->plan->cols > WHOLE_SIDE)
        dealt = 0;
    else if (batch->plan->cols > EVEN_SIDE)
        dealt = batch->slot_count / threads * threads;
    pool_run(device->pool, dealt, task, &whole);
    if (task == whole_task)
        run_left_over(&whole, dealt);
}

static void queue_init(struct batch_queue *queue)
{
    queue->head = NULL;
    queue->tail = &queue->head;
}

static struct fire_batch *queue_pop(struct batch_queue *queue)
{
    struct fire_batch *batch = queue->head;

    if (!batch)
        return NULL;
    queue->head = batch->next;
    if (!queue->head)
        queue->tail = &queue->head;
    return batch;
}

/* The next batch, under the lock. */
static struct fire_batch *take_urgent(struct fire_device *device)
{
    struct fire_batch *batch = queue_pop(&device->urgent_queue);

    atomic_store(&device->interrupt.waiting, device->urgent_queue.head != NULL);
    return batch;
}

/* Says that a batch has finished; it is not ours after that. Called, and left, under the lock. */
static void tell_finished(struct fire_device *device, struct fire_batch *batch)
{
    void (*const ended)(struct fire_batch * batch) = batch->ended;

    batch->finished = true;
    if (!ended) {
        pthread_cond_broadcast(&device->finished);
        return;
    }
    pthread_mutex_unlock(&device->lock);
    ended(batch);
    pthread_mutex_lock(&device->lock);
}

/* Runs a batch that was taken and says that it has finished. Called, and left, under the lock. */
static void execute(struct fire_device *device, struct workspace *workspace,
                    struct fire_batch *batch)
{
    const uint64_t needed_bytes = workspace_bytes_for(device, batch->plan);
    const bool ordinary = workspace == &device->ordinary;

    if (batch->abandoned) {
        batch->status = FIRE_CANCELLED;
        tell_finished(device, batch);
        return;
    }
    if (ordinary)
        device->running = batch;
    pthread_mutex_unlock(&device->lock);
    run_batch(device, workspace, batch);
    pthread_mutex_lock(&device->lock);
    if (ordinary) {
        if (atomic_exchange(&device->abandoned, false) && batch->status == FIRE_OK)
            batch->status = FIRE_CANCELLED;
        device->running = NULL;
    }
    tell_finished(device, batch);
    if (workspace_is_large(device, workspace, needed_bytes)) {
        pthread_mutex_unlock(&device->lock); /* giving memory back takes its time */
        workspace_trim(device, workspace);
        pthread_mutex_lock(&device->lock);
    }
}

static bool is_light(const struct fire_batch *batch)
{
    const struct fire_plan *plan = batch->plan;

    return batch->slot_count == 0 || products_of(plan) <= LIGHT_PRODUCTS / batch->slot_count;
}

/* Called by a worker between two tiles of a matrix of its own: one light batch, alone. */
static void run_light(void *data, uint32_t worker)
{
    struct fire_device *device = data;
    struct whole whole = { .device = device, .workspace = &device->urgent };

    pthread_mutex_lock(&device->lock);
    if (!device->urgent_queue.head || !is_light(device->urgent_queue.head)) {
        pthread_mutex_unlock(&device->lock);
        return;
    }
    whole.batch = take_urgent(device);
    if (whole.batch->abandoned) {
        whole.batch->status = FIRE_CANCELLED;
    } else {
        pthread_mutex_unlock(&device->lock);
        run_alone(&whole, worker);
        pthread_mutex_lock(&device->lock);
    }
    tell_finished(device, whole.batch);
    pthread_mutex_unlock(&device->lock);
}

/* Called by the executor between two tasks of the batch that runs. One batch a time: the other one
 * goes on in between. */
static void run_interruption(void *data)
{
    struct fire_device *device = data;
    struct fire_batch *batch;

    pthread_mutex_lock(&device->lock);
    batch = take_urgent(device);
    if (batch)
        execute(device, &device->urgent, batch);
    pthread_mutex_unlock(&device->lock);
}

static bool has_batch(const struct fire_device *device)
{
    return device->ordinary_queue.head || device->urgent_queue.head;
}

/* Nothing for the executor to do, or nothing to do it in. */
static bool is_idle(const struct fire_device *device)
{
    return device->occupied || (!device->stopping && !has_batch(device));
}

/* Blocks until there is something to do, or for TRIM_IDLE_S. False: it took that long. Called, and
 * left, under the lock. */
static bool wait_for_work(struct fire_device *device)
{
    struct timespec limit;

    clock_gettime(CLOCK_MONOTONIC, &limit);
    limit.tv_sec += TRIM_IDLE_S;
    while (is_idle(device)) {
        if (pthread_cond_timedwait(&device->queued, &device->lock, &limit) == ETIMEDOUT)
            return !is_idle(device);
    }
    return true;
}

/* The same without limit; gives memory back when that takes long. */
static void wait_for_batch(struct fire_device *device)
{
    bool trimmed = false;

    while (!wait_for_work(device)) {
        if (trimmed) {
            pthread_cond_wait(&device->queued, &device->lock);
        } else if (!device->occupied) {
            device->occupied = true;
            pthread_mutex_unlock(&device->lock);
            workspace_trim(device, &device->ordinary);
            workspace_trim(device, &device->urgent);
            pthread_mutex_lock(&device->lock);
            device->occupied = false;
            trimmed = true;
        }
    }
}

static void *executor_main(void *data)
{
    struct fire_device *device = data;

    pool_lower_priority(device->nice);
    pthread_mutex_lock(&device->lock);
    for (;;) {
        struct fire_batch *batch;

        if (is_idle(device)) {
            wait_for_batch(device);
            continue;
        }
        batch = take_urgent(device);
        if (!batch)
            batch = queue_pop(&device->ordinary_queue);
        if (!batch)
            break;
        device->occupied = true;
        execute(device, &device->ordinary, batch);
        device->occupied = false;
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* --- the table -------------------------------------------------------------------------------- */

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
        workspace_release(&device->ordinary, pool_threads(device->pool));
        workspace_release(&device->urgent, pool_threads(device->pool));
    }
    pool_close(device->pool);
    pthread_cond_destroy(&device->finished);
    pthread_cond_destroy(&device->queued);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static enum fire_status open_parts(struct fire_device *device, uint32_t threads)
{
    enum fire_status status = pool_open(threads, device->nice, &device->pool);

    if (status != FIRE_OK)
        return status;
    device->interrupt.run = run_interruption;
    device->interrupt.data = device;
    pool_set_interrupt(device->pool, &device->interrupt);
    device->yield = (struct crew_yield){ &device->interrupt.waiting, run_light, device };
    status = workspace_init(&device->ordinary, threads);
    if (status == FIRE_OK)
        status = workspace_init(&device->urgent, threads);
    if (status == FIRE_OK)
        status = workspace_grow(device, &device->ordinary, 256);
    /* Several workers may use this one at once: it never grows again. */
    if (status == FIRE_OK)
        status = workspace_grow(device, &device->urgent, urgent_cols(device));
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

static void init_locks(struct fire_device *device)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->queued, &attributes);
    pthread_cond_init(&device->finished, NULL);
    pthread_condattr_destroy(&attributes);
    queue_init(&device->ordinary_queue);
    queue_init(&device->urgent_queue);
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
    init_locks(device);
    device->nice = settings ? settings->nice : 0;
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
    const enum fire_status status =
        isa_choose("auto", &engines, caps->reason, sizeof(caps->reason));

    if (status != FIRE_OK)
        return status == FIRE_NO_MEMORY ? status : FIRE_DEVICE_LOST;
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
    const bool urgent = batch->urgent && batch->plan->cols <= FIRE_URGENT_SIDE_MAX;
    struct batch_queue *queue = urgent ? &device->urgent_queue : &device->ordinary_queue;

    batch->next = NULL;
    batch->finished = false;
    batch->abandoned = false;
    batch->status = FIRE_OK;
    pthread_mutex_lock(&device->lock);
    *queue->tail = batch;
    queue->tail = &batch->next;
    if (urgent)
        atomic_store(&device->interrupt.waiting, true);
    pthread_cond_signal(&device->queued);
    pthread_mutex_unlock(&device->lock);
    return FIRE_OK;
}

static bool cpu_run_here(struct fire_device *device, struct fire_batch *batch)
{
    struct whole whole = { .device = device, .workspace = &device->ordinary, .batch = batch };

    pthread_mutex_lock(&device->lock);
    if (device->occupied || has_batch(device) || batch->plan->cols > WHOLE_SIDE) {
        pthread_mutex_unlock(&device->lock);
        return false;
    }
    device->occupied = true;
    pthread_mutex_unlock(&device->lock);
    batch->status = workspace_grow(device, &device->ordinary, batch->plan->cols);
    if (batch->status == FIRE_OK)
        run_alone(&whole, 0);
    batch->finished = true;
    pthread_mutex_lock(&device->lock);
    device->occupied = false;
    if (has_batch(device))
        pthread_cond_signal(&device->queued);
    pthread_mutex_unlock(&device->lock);
    return true;
}

static void cpu_abandon(struct fire_device *device, struct fire_batch *batch)
{
    pthread_mutex_lock(&device->lock);
    if (!batch->finished) {
        batch->abandoned = true;
        if (batch == device->running)
            atomic_store(&device->abandoned, true);
    }
    pthread_mutex_unlock(&device->lock);
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

static uint64_t cpu_workspace_bytes(const struct fire_device *device, const struct fire_plan *plan)
{
    return workspace_bytes_for(device, plan);
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
        .tells = true,
        .probe = cpu_probe,
        .open = cpu_open,
        .close = cpu_close,
        .host_alloc = cpu_host_alloc,
        .host_free = cpu_host_free,
        .submit = cpu_submit,
        .run_here = cpu_run_here,
        .abandon = cpu_abandon,
        .poll = cpu_poll,
        .wait = cpu_wait,
        .workspace_bytes = cpu_workspace_bytes,
        .caps = cpu_caps,
        .last_error = cpu_last_error,
    };

    return &backend;
}
