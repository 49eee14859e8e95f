/* What the tests of the tile unit share. */
#ifndef FIRE_TEST_TILES_H
#define FIRE_TEST_TILES_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static inline bool has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

static inline void *allocate(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    ck_assert_ptr_nonnull(memory);
    return memory;
}

/* In (-1, 1), 24 bits. */
static inline float draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 40) * 0x1p-23f - 1.0f;
}

#endif
