/* pool: a fixed set of threads that deal out the tasks of one loop at a time.
 *
 * Which thread runs a task never changes what the task computes. Waiting threads block; while loops
 * are said to follow each other closely they first spin for a moment and offer their core for a
 * while. */
#ifndef FIRE_POOL_H
#define FIRE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "status.h"

struct pool;

/* Task `index` of the loop, run by thread `worker` (0 is the caller). */
typedef void (*pool_task)(void *data, uint32_t index, uint32_t worker);

/* `threads` counts the caller; 1 starts no thread. `nice` is added to the niceness of those that
 * are started. On failure `*pool` is NULL. */
FIRE_NODISCARD enum fire_status pool_open(uint32_t threads, uint32_t nice, struct pool **pool);
void pool_close(struct pool *pool); /* NULL is allowed */
uint32_t pool_threads(const struct pool *pool);

/* Runs tasks 0..count-1 and returns when all have finished. One caller at a time; a task must not
 * call it. */
void pool_run(struct pool *pool, uint32_t count, pool_task task, void *data);

/* Says whether loops will follow each other within microseconds from now on, and returns what was
 * said before; at first they do not. Call while no loop runs. */
bool pool_set_dense(struct pool *pool, bool dense);

/* What may come between the tasks of a loop. When `waiting` is set, from any thread, the caller of
 * pool_run() calls `run` as soon as every thread has finished its task; `run` clears `waiting` and
 * may run loops of its own, which nothing interrupts. Then the loop goes on, with at least one task
 * before the next time. */
struct pool_interrupt {
    atomic_bool waiting;
    void (*run)(void *data);
    void *data;
};

/* `interrupt` must live until the pool is closed. Call while no loop runs. */
void pool_set_interrupt(struct pool *pool, struct pool_interrupt *interrupt);

/* Adds `nice` to the niceness of the calling thread; unless it is 0 the thread also leaves the
 * processor to whoever wakes it. */
void pool_lower_priority(uint32_t nice);

/* As many threads as the process may run on. */
uint32_t pool_default_threads(void);

#endif
