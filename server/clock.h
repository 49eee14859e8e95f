/* clock: monotonic time in nanoseconds. */
#ifndef FIRED_CLOCK_H
#define FIRED_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_NS_PER_S  1000000000ull
#define CLOCK_NS_PER_MS 1000000ull
#define CLOCK_NEVER_NS  UINT64_MAX

static inline uint64_t clock_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * CLOCK_NS_PER_S + (uint64_t)now.tv_nsec;
}

#endif
