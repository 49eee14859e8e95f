/* Invariants, under `lock`:
 *   open: tasks may be taken; only pool_run() opens and closes
 *   joined: workers between taking their first task and having finished their last
 * A worker that wakes too late finds the loop closed and is not waited for. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* Waiting between the loops of one matrix: first pauses, some tens of microseconds, then a while of
 * offering the core to others in between, and only then sleep. Waking a thread costs tens of
 * microseconds where a hypervisor has a hand in it, and the serial stretches there are often that
 * long. Otherwise a wait is long and the core is better left to others at once. */
#define POOL_SPINS  4000
#define POOL_YIELDS 500 /* each after YIELD_SPINS pauses */
#define YIELD_SPINS 20
#define WAIT_SPINS  (POOL_SPINS + POOL_YIELDS * YIELD_SPINS)

struct pool_worker {
    struct pool *pool;
    pthread_t thread;
    uint32_t index;
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_cond_t finished;
    atomic_uint generation; /* counts loops; workers watch it */
    atomic_uint joined;
    atomic_uint next;
    atomic_bool dense; /* loops follow each other closely: waiting threads stay awake */
    bool open;
    bool stopping;
    uint32_t count;
    pool_task task;
    void *data;
    struct pool_interrupt *interrupt; /* NULL: none */
    bool interrupted;                 /* it runs */
    bool interruptible;               /* the loop that runs may be left early */
    uint32_t nice;
    uint32_t started; /* threads to join at close */
    uint32_t threads;
    struct pool_worker workers[];
};

/* Whether to look again instead of going to sleep. */
static bool stay_awake(const struct pool *pool, int spin)
{
    return spin < WAIT_SPINS && atomic_load_explicit(&pool->dense, memory_order_relaxed);
}

static void pause_or_yield(int spin)
{
    if (spin >= POOL_SPINS && spin % YIELD_SPINS == 0)
        sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static bool must_stop(const struct pool *pool)
{
    return pool->interruptible &&
           atomic_load_explicit(&pool->interrupt->waiting, memory_order_relaxed);
}

/* A task that was taken is run, so when all have returned those before `next` are done. */
static void take_tasks(struct pool *pool, uint32_t worker)
{
    do {
        const uint32_t index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);

        if (index >= pool->count)
            return;
        pool->task(pool->data, index, worker);
    } while (!must_stop(pool));
}

/* Waits for a loop other than `seen`. Returns false when the pool is closing. */
static bool wait_for_loop(struct pool *pool, uint32_t *seen)
{
    bool joined = false;

    for (int spin = 0; stay_awake(pool, spin); spin++) {
        if (atomic_load_explicit(&pool->generation, memory_order_relaxed) != *seen)
            break;
        pause_or_yield(spin);
    }
    pthread_mutex_lock(&pool->lock);
    while (!joined && !pool->stopping) {
        const uint32_t now = atomic_load_explicit(&pool->generation, memory_order_relaxed);

        if (now != *seen && pool->open) {
            *seen = now;
            atomic_fetch_add(&pool->joined, 1);
            joined = true;
        } else {
            *seen = now;
            pthread_cond_wait(&pool->wake, &pool->lock);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return joined;
}

static void *worker_main(void *data)
{
    struct pool_worker *worker = data;
    struct pool *pool = worker->pool;
    uint32_t seen = 0;

    pool_lower_priority(pool->nice);
    while (wait_for_loop(pool, &seen)) {
        take_tasks(pool, worker->index);
        pthread_mutex_lock(&pool->lock);
        if (atomic_fetch_sub(&pool->joined, 1) == 1)
            pthread_cond_signal(&pool->finished);
        pthread_mutex_unlock(&pool->lock);
    }
    return NULL;
}

/* Runs tasks from `first` on and returns the first that was not run. */
static uint32_t run_tasks(struct pool *pool, uint32_t first, uint32_t count, pool_task task,
                          void *data)
{
    if (pool->threads == 1 || count - first == 1) {
        do
            task(data, first++, 0);
        while (first < count && !must_stop(pool));
        return first;
    }
    pthread_mutex_lock(&pool->lock);
    pool->count = count;
    pool->task = task;
    pool->data = data;
    atomic_store(&pool->next, first);
    pool->open = true;
    atomic_fetch_add(&pool->generation, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);

    take_tasks(pool, 0);

    for (int spin = 0; stay_awake(pool, spin) && atomic_load(&pool->joined) > 0; spin++)
        pause_or_yield(spin);
    pthread_mutex_lock(&pool->lock);
    pool->open = false;
    while (atomic_load(&pool->joined) > 0)
        pthread_cond_wait(&pool->finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    first = atomic_load(&pool->next);
    return first < count ? first : count;
}

void pool_run(struct pool *pool, uint32_t count, pool_task task, void *data)
{
    for (uint32_t next = 0; next < count;) {
        const bool interruptible = pool->interrupt && !pool->interrupted;

        if (interruptible && atomic_load(&pool->interrupt->waiting)) {
            pool->interrupted = true;
            pool->interrupt->run(pool->interrupt->data);
            pool->interrupted = false;
        }
        pool->interruptible = interruptible; /* loops within the interruption changed it */
        next = run_tasks(pool, next, count, task, data);
    }
}

bool pool_set_dense(struct pool *pool, bool dense)
{
    return atomic_exchange_explicit(&pool->dense, dense, memory_order_relaxed);
}

void pool_set_interrupt(struct pool *pool, struct pool_interrupt *interrupt)
{
    pool->interrupt = interrupt;
}

void pool_lower_priority(uint32_t nice)
{
    const id_t thread = (id_t)gettid();
    const struct sched_param none = { 0 };

    if (!nice)
        return;
    /* Only raising a niceness: always allowed, and no harm is done where it is not. What computes
     * in batches does not interrupt the thread that wakes it either. */
    (void)setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + (int)nice);
    if (sched_getscheduler(0) == SCHED_OTHER)
        (void)sched_setscheduler(0, SCHED_BATCH, &none);
}

enum fire_status pool_open(uint32_t threads, uint32_t nice, struct pool **out)
{
    struct pool *pool = calloc(1, sizeof(*pool) + threads * sizeof(pool->workers[0]));

    *out = NULL;
    if (!pool)
        return FIRE_NO_MEMORY;
    pool->threads = threads;
    pool->nice = nice;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->finished, NULL);
    for (uint32_t i = 1; i < threads; i++) {
        struct pool_worker *worker = &pool->workers[i];

        worker->pool = pool;
        worker->index = i;
        if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0) {
            pool_close(pool);
            return FIRE_NO_MEMORY;
        }
        pool->started = i;
    }
    *out = pool;
    return FIRE_OK;
}

void pool_close(struct pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    atomic_fetch_add(&pool->generation, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 1; i <= pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

uint32_t pool_threads(const struct pool *pool)
{
    return pool->threads;
}

uint32_t pool_default_threads(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        return (uint32_t)CPU_COUNT(&set);
    return 1;
}
