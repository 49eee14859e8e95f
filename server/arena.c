/* arena: two-level segregated fit over one region.
 *
 * A block is a header of one unit (64 bytes) and at least one unit of payload; headers lie in the
 * region itself and name the size of the block before, so that neighbours merge without a search.
 * Free blocks hang in lists by size: the power of two, and 16 steps within it. Two levels of bit
 * masks find a list that surely fits, so allocation and release take the same few steps whatever
 * the arena holds. Sizes are counted in units.
 *
 * Invariants, under `lock`:
 *   two free blocks are never neighbours
 *   the blocks from `first` to the end mark, sizes added, are the whole region
 *   a bit is set exactly when its list is not empty */
#include "arena.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define UNIT_BYTES 64u
#define STEP_BITS  4u
#define STEPS      (1u << STEP_BITS)
#define LEVELS     40u /* 64 bytes shifted so often is more than any machine has */
#define UNITS_MIN  2u
#define LIST_LOOKS 32u /* blocks looked at in a list that may fit but need not */
#define REGION_MIN (16u * UNIT_BYTES)

struct block {
    uint64_t units;    /* with this header; 0: the end mark */
    uint64_t previous; /* units of the block before; 0: there is none */
    bool free;
    struct block *list_next; /* while free */
    struct block *list_previous;
};
_Static_assert(sizeof(struct block) <= UNIT_BYTES, "a header is one unit");

struct arena {
    pthread_mutex_t lock;
    void *mapped; /* NULL: the caller's memory */
    uint64_t mapped_bytes;
    struct block *first;
    uint64_t units;
    uint64_t used; /* units, headers included */
    uint64_t level_mask;
    uint32_t step_mask[LEVELS];
    struct block *lists[LEVELS][STEPS];
};

struct place {
    uint32_t level;
    uint32_t step;
};

/* The list of blocks of `units`: levels below STEP_BITS are one list a size. */
static struct place place_of(uint64_t units)
{
    const uint32_t log = 63u - (uint32_t)__builtin_clzll(units);

    if (log < STEP_BITS)
        return (struct place){ 0, (uint32_t)units };
    return (struct place){ log - STEP_BITS + 1,
                           (uint32_t)(units >> (log - STEP_BITS)) & (STEPS - 1) };
}

static struct block *block_after(struct block *block)
{
    return (struct block *)(void *)((char *)block + block->units * UNIT_BYTES);
}

static struct block *block_before(struct block *block)
{
    return (struct block *)(void *)((char *)block - block->previous * UNIT_BYTES);
}

static void list_add(struct arena *arena, struct block *block)
{
    const struct place place = place_of(block->units);
    struct block **head = &arena->lists[place.level][place.step];

    block->free = true;
    block->list_previous = NULL;
    block->list_next = *head;
    if (*head)
        (*head)->list_previous = block;
    *head = block;
    arena->step_mask[place.level] |= 1u << place.step;
    arena->level_mask |= 1ull << place.level;
}

static void list_remove(struct arena *arena, struct block *block)
{
    const struct place place = place_of(block->units);

    block->free = false;
    if (block->list_next)
        block->list_next->list_previous = block->list_previous;
    if (block->list_previous) {
        block->list_previous->list_next = block->list_next;
        return;
    }
    arena->lists[place.level][place.step] = block->list_next;
    if (block->list_next)
        return;
    arena->step_mask[place.level] &= ~(1u << place.step);
    if (!arena->step_mask[place.level])
        arena->level_mask &= ~(1ull << place.level);
}

/* The first block of a list at or above `place`, or NULL. */
static struct block *first_from(const struct arena *arena, struct place place)
{
    uint32_t steps = arena->step_mask[place.level] & (~0u << place.step);
    uint64_t levels;

    if (!steps) {
        levels = arena->level_mask & (~0ull << (place.level + 1));
        if (!levels)
            return NULL;
        place.level = (uint32_t)__builtin_ctzll(levels);
        steps = arena->step_mask[place.level];
    }
    return arena->lists[place.level][__builtin_ctz(steps)];
}

static struct block *find_free(const struct arena *arena, uint64_t units)
{
    const uint32_t log = 63u - (uint32_t)__builtin_clzll(units);
    const uint64_t rounded = log < STEP_BITS ? units : units + (1ull << (log - STEP_BITS)) - 1;
    const struct place place = place_of(units);
    struct block *block = first_from(arena, place_of(rounded));
    uint32_t looks = 0;

    if (block)
        return block;
    /* Nothing surely fits. The list of this size has both larger and smaller blocks. */
    block = arena->lists[place.level][place.step];
    while (block && block->units < units && ++looks < LIST_LOOKS)
        block = block->list_next;
    return block && block->units >= units ? block : NULL;
}

enum fire_status arena_open(void *region, uint64_t bytes, struct arena **out,
                            struct fire_error *error)
{
    const uint64_t shift = region ? (UNIT_BYTES - (uintptr_t)region % UNIT_BYTES) % UNIT_BYTES : 0;
    struct arena *arena;
    struct block *end;

    *out = NULL;
    if (bytes < REGION_MIN + shift || bytes > SIZE_MAX / 2)
        return fire_fail(error, FIRE_BAD_REQUEST, "memory_budget_bytes",
                         "the arena needs at least %u bytes, got %llu: give it a larger budget",
                         REGION_MIN + UNIT_BYTES, (unsigned long long)bytes);
    arena = calloc(1, sizeof(*arena));
    if (!arena)
        return fire_fail_memory(error, sizeof(*arena));
    if (!region) {
        region = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (region == MAP_FAILED) {
            free(arena);
            return fire_fail_memory(error, bytes);
        }
        /* Large pages where the machine has them: a wish, so its answer does not matter. */
        (void)madvise(region, bytes, MADV_HUGEPAGE);
        arena->mapped = region;
        arena->mapped_bytes = bytes;
    }
    pthread_mutex_init(&arena->lock, NULL);
    arena->units = (bytes - shift) / UNIT_BYTES - 1; /* the last unit is the end mark */
    arena->first = (struct block *)(void *)((char *)region + shift);
    *arena->first = (struct block){ .units = arena->units };
    end = block_after(arena->first);
    *end = (struct block){ .previous = arena->units };
    list_add(arena, arena->first);
    *out = arena;
    return FIRE_OK;
}

void arena_close(struct arena *arena)
{
    if (!arena)
        return;
    FIRE_ASSERT(arena->used == 0);
    if (arena->mapped)
        munmap(arena->mapped, arena->mapped_bytes);
    pthread_mutex_destroy(&arena->lock);
    free(arena);
}

/* Gives what `block` has beyond `units` back as a free block. */
static void trim(struct arena *arena, struct block *block, uint64_t units)
{
    const uint64_t rest = block->units - units;
    struct block *tail;

    if (rest < UNITS_MIN)
        return;
    block->units = units;
    tail = block_after(block);
    *tail = (struct block){ .units = rest, .previous = units };
    block_after(tail)->previous = rest;
    list_add(arena, tail);
}

void *arena_alloc(struct arena *arena, uint64_t bytes)
{
    struct block *block;
    uint64_t units;

    if (bytes > arena->units * UNIT_BYTES)
        return NULL;
    units = 1 + (bytes ? (bytes + UNIT_BYTES - 1) / UNIT_BYTES : 1);
    pthread_mutex_lock(&arena->lock);
    block = find_free(arena, units);
    if (block) {
        list_remove(arena, block);
        trim(arena, block, units);
        arena->used += block->units;
    }
    pthread_mutex_unlock(&arena->lock);
    return block ? (char *)block + UNIT_BYTES : NULL;
}

void arena_free(struct arena *arena, void *memory)
{
    struct block *block, *after;

    if (!memory)
        return;
    block = (struct block *)(void *)((char *)memory - UNIT_BYTES);
    pthread_mutex_lock(&arena->lock);
    FIRE_ASSERT(!block->free);
    FIRE_ASSERT(block->units >= UNITS_MIN);
    FIRE_ASSERT(block->units <= arena->used);
    arena->used -= block->units;
    after = block_after(block);
    if (after->free) {
        list_remove(arena, after);
        block->units += after->units;
    }
    if (block->previous && block_before(block)->free) {
        struct block *before = block_before(block);

        list_remove(arena, before);
        before->units += block->units;
        block = before;
    }
    block_after(block)->previous = block->units;
    list_add(arena, block);
    pthread_mutex_unlock(&arena->lock);
}

uint64_t arena_bytes(const struct arena *arena)
{
    return arena->units * UNIT_BYTES;
}

uint64_t arena_used(struct arena *arena)
{
    uint64_t used;

    pthread_mutex_lock(&arena->lock);
    used = arena->used;
    pthread_mutex_unlock(&arena->lock);
    return used * UNIT_BYTES;
}

uint64_t arena_largest_free(struct arena *arena)
{
    const struct block *block = NULL;
    uint64_t units = 0;

    pthread_mutex_lock(&arena->lock);
    if (arena->level_mask) {
        const uint32_t level = 63u - (uint32_t)__builtin_clzll(arena->level_mask);
        const uint32_t step = 31u - (uint32_t)__builtin_clz(arena->step_mask[level]);

        block = arena->lists[level][step];
    }
    /* Only as far as find_free() looks. */
    for (uint32_t looks = 0; block && looks < LIST_LOOKS; looks++, block = block->list_next)
        units = block->units > units ? block->units : units;
    pthread_mutex_unlock(&arena->lock);
    return units ? (units - 1) * UNIT_BYTES : 0;
}
