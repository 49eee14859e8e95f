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
#include <unistd.h>

#define POOL_SPINS 4000 /* pauses before blocking: some tens of microseconds */

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
    bool open;
    bool stopping;
    uint32_t count;
    pool_task task;
    void *data;
    uint32_t started; /* threads to join at close */
    uint32_t threads;
    struct pool_worker workers[];
};

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void take_tasks(struct pool *pool, uint32_t worker)
{
    for (;;) {
        const uint32_t index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);

        if (index >= pool->count)
            return;
        pool->task(pool->data, index, worker);
    }
}

/* Waits for a loop other than `seen`. Returns false when the pool is closing. */
static bool wait_for_loop(struct pool *pool, uint32_t *seen)
{
    bool joined = false;

    for (int spin = 0; spin < POOL_SPINS; spin++) {
        if (atomic_load_explicit(&pool->generation, memory_order_relaxed) != *seen)
            break;
        pause_briefly();
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

    while (wait_for_loop(pool, &seen)) {
        take_tasks(pool, worker->index);
        pthread_mutex_lock(&pool->lock);
        if (atomic_fetch_sub(&pool->joined, 1) == 1)
            pthread_cond_signal(&pool->finished);
        pthread_mutex_unlock(&pool->lock);
    }
    return NULL;
}

void pool_run(struct pool *pool, uint32_t count, pool_task task, void *data)
{
    if (pool->threads == 1 || count == 1) {
        for (uint32_t index = 0; index < count; index++)
            task(data, index, 0);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->count = count;
    pool->task = task;
    pool->data = data;
    atomic_store(&pool->next, 0);
    pool->open = true;
    atomic_fetch_add(&pool->generation, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);

    take_tasks(pool, 0);

    for (int spin = 0; spin < POOL_SPINS && atomic_load(&pool->joined) > 0; spin++)
        pause_briefly();
    pthread_mutex_lock(&pool->lock);
    pool->open = false;
    while (atomic_load(&pool->joined) > 0)
        pthread_cond_wait(&pool->finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

enum fire_status pool_open(uint32_t threads, struct pool **out)
{
    struct pool *pool = calloc(1, sizeof(*pool) + threads * sizeof(pool->workers[0]));

    *out = NULL;
    if (!pool)
        return FIRE_NO_MEMORY;
    pool->threads = threads;
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
