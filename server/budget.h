/* budget: how many bytes of messages may be in flight. A reservation is made before bytes are
 * received and given back when they are gone; it never waits. Any thread. */
#ifndef FIRED_BUDGET_H
#define FIRED_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct budget {
    uint64_t bytes_max;
    _Atomic uint64_t used;
};

static inline void budget_init(struct budget *budget, uint64_t bytes_max)
{
    budget->bytes_max = bytes_max;
    atomic_init(&budget->used, 0);
}

static inline bool budget_reserve(struct budget *budget, uint64_t bytes)
{
    uint64_t used = atomic_load_explicit(&budget->used, memory_order_relaxed);

    do {
        if (bytes > budget->bytes_max - used)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&budget->used, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

static inline void budget_release(struct budget *budget, uint64_t bytes)
{
    atomic_fetch_sub_explicit(&budget->used, bytes, memory_order_relaxed);
}

static inline uint64_t budget_used(const struct budget *budget)
{
    return atomic_load_explicit(&budget->used, memory_order_relaxed);
}

#endif
