/* arena: blocks never overlap, the whole region comes back as one block, threads do not mix. */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "random.h"

#define REGION_BYTES (1u << 20)
#define BLOCKS       512u
#define STEPS        100000u
#define THREADS      4u
#define THREAD_STEPS 20000u

struct held {
    unsigned char *memory;
    size_t bytes;
    unsigned char mark;
};

static struct arena *open_arena(void *region, uint64_t bytes)
{
    struct fire_error error = { 0 };
    struct arena *arena;

    ck_assert_msg(arena_open(region, bytes, &arena, &error) == FIRE_OK, "%s", error.message);
    return arena;
}

/* Sizes of every magnitude, so that every list is used. */
static size_t random_bytes(struct fire_random *random)
{
    return (size_t)(fire_random_u64(random) % (1ull << (fire_random_u64(random) % 17)));
}

static void hold(struct held *held, unsigned char *memory, size_t bytes, unsigned char mark)
{
    if ((uintptr_t)memory % 64 != 0)
        ck_abort_msg("a block is not aligned");
    memset(memory, mark, bytes);
    *held = (struct held){ memory, bytes, mark };
}

/* A neighbour that overlaps would have written its own mark. */
static void let_go(struct arena *arena, struct held *held)
{
    size_t whole = 0;

    while (whole < held->bytes && held->memory[whole] == held->mark)
        whole++;
    if (whole < held->bytes)
        ck_abort_msg("byte %zu of %zu is another's", whole, held->bytes);
    arena_free(arena, held->memory);
    held->memory = NULL;
}

/* Whatever is allocated and released, blocks keep their bytes, `used` is at least their sum, and at
 * the end the arena is one free block again. */
START_TEST(random_blocks_do_not_overlap_and_merge)
{
    struct arena *arena = open_arena(NULL, REGION_BYTES);
    const uint64_t largest = arena_largest_free(arena);
    struct held held[BLOCKS] = { 0 };
    struct fire_random random;
    uint64_t wanted = 0;
    uint32_t refused = 0;

    fire_random_init(&random, 7);
    for (uint32_t step = 0; step < STEPS; step++) {
        struct held *one = &held[fire_random_u64(&random) % BLOCKS];

        if (one->memory) {
            wanted -= one->bytes;
            let_go(arena, one);
        } else {
            const size_t bytes = random_bytes(&random);
            const uint64_t fits = arena_largest_free(arena);
            unsigned char *memory = arena_alloc(arena, bytes);

            if (!memory && bytes <= fits)
                ck_abort_msg("%zu refused, %zu would fit", bytes, (size_t)fits);
            refused += !memory;
            if (memory) {
                hold(one, memory, bytes, (unsigned char)step);
                wanted += bytes;
            }
        }
        if (arena_used(arena) < wanted || arena_used(arena) > arena_bytes(arena))
            ck_abort_msg("%zu in use, %zu asked for", (size_t)arena_used(arena), (size_t)wanted);
    }
    ck_assert_uint_gt(refused, 0); /* the arena was full at times */
    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (held[i].memory)
            let_go(arena, &held[i]);
    }
    ck_assert_uint_eq(arena_used(arena), 0);
    ck_assert_uint_eq(arena_largest_free(arena), largest);
    arena_close(arena);
}
END_TEST

START_TEST(a_full_arena_says_no_at_once)
{
    struct arena *arena = open_arena(NULL, REGION_BYTES);
    const uint64_t largest = arena_largest_free(arena);
    void *all;

    ck_assert_ptr_null(arena_alloc(arena, largest + 1));
    ck_assert_ptr_null(arena_alloc(arena, UINT64_MAX));
    all = arena_alloc(arena, largest);
    ck_assert_ptr_nonnull(all);
    ck_assert_ptr_null(arena_alloc(arena, 1));
    ck_assert_uint_eq(arena_largest_free(arena), 0);
    arena_free(arena, all);
    arena_free(arena, NULL);
    arena_close(arena);
}
END_TEST

/* The caller's memory is used as it is, from its first multiple of 64. */
START_TEST(a_given_region_is_not_left)
{
    unsigned char *region = aligned_alloc(64, 8192);
    struct arena *arena;
    unsigned char *blocks[128];
    uint32_t count = 0;

    ck_assert_ptr_nonnull(region);
    memset(region, 0xa5, 8192);
    arena = open_arena(region + 8, 8000);
    while ((blocks[count] = arena_alloc(arena, 100)) != NULL) {
        ck_assert(blocks[count] >= region + 8);
        ck_assert(blocks[count] + 100 <= region + 8008);
        memset(blocks[count++], 1, 100);
    }
    ck_assert_uint_gt(count, 30);
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_uint_eq(region[i], 0xa5);
    for (uint32_t i = 8008; i < 8192; i++)
        ck_assert_uint_eq(region[i], 0xa5);
    while (count > 0)
        arena_free(arena, blocks[--count]);
    arena_close(arena);
    free(region);
}
END_TEST

START_TEST(a_region_too_small_is_refused)
{
    struct fire_error error = { 0 };
    struct arena *arena;

    ck_assert_int_eq(arena_open(NULL, 100, &arena, &error), FIRE_BAD_REQUEST);
    ck_assert_ptr_null(arena);
    ck_assert_ptr_nonnull(strstr(error.message, "larger budget"));
    arena_close(NULL);
}
END_TEST

static void *thread_main(void *data)
{
    struct arena *arena = data;
    struct held held[16] = { 0 };
    struct fire_random random;

    fire_random_init(&random, (uint64_t)(uintptr_t)held);
    for (uint32_t step = 0; step < THREAD_STEPS; step++) {
        struct held *one = &held[step % 16];
        const size_t bytes = random_bytes(&random) % 4096;
        unsigned char *memory;

        if (one->memory)
            let_go(arena, one);
        memory = arena_alloc(arena, bytes);
        if (memory)
            hold(one, memory, bytes, (unsigned char)step);
    }
    for (uint32_t i = 0; i < 16; i++) {
        if (held[i].memory)
            let_go(arena, &held[i]);
    }
    return NULL;
}

START_TEST(threads_share_an_arena)
{
    struct arena *arena = open_arena(NULL, REGION_BYTES / 8);
    pthread_t threads[THREADS];

    for (uint32_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, thread_main, arena), 0);
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(arena_used(arena), 0);
    arena_close(arena);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arena");
    TCase *tests = tcase_create("arena");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, random_blocks_do_not_overlap_and_merge);
    tcase_add_test(tests, a_full_arena_says_no_at_once);
    tcase_add_test(tests, a_given_region_is_not_left);
    tcase_add_test(tests, a_region_too_small_is_refused);
    tcase_add_test(tests, threads_share_an_arena);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
