/* The CPU pool as a device that is shared: urgent batches within others, priorities, memory. What a
 * matrix becomes never depends on what ran within or around it. */
#define _GNU_SOURCE
#include <check.h>
#include <dirent.h>
#include <malloc.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "projection.h"
#include "random.h"

#define THREADS      2u
#define URGENT_COUNT 6u
#define TURNS        400u
#if defined(__SANITIZE_THREAD__)
#define LEFT_OVER_TURNS 4u
#else
#define LEFT_OVER_TURNS 150u
#endif
#define POLL_MS        20
#define POLL_COUNT_MAX 500 /* 10 s: an idle device gives memory back after one */

/* --- memory in use, as the core asks for it --------------------------------------------------- */

static atomic_size_t live_bytes;

void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);

#define LARGE_BYTES (1u << 20) /* smaller ones are not counted */

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    void *memory = __real_aligned_alloc(alignment, bytes);

    if (memory && malloc_usable_size(memory) >= LARGE_BYTES)
        atomic_fetch_add(&live_bytes, malloc_usable_size(memory));
    return memory;
}

void __wrap_free(void *memory)
{
    if (memory && malloc_usable_size(memory) >= LARGE_BYTES)
        atomic_fetch_sub(&live_bytes, malloc_usable_size(memory));
    __real_free(memory);
}

/* --- batches ---------------------------------------------------------------------------------- */

struct work {
    struct fire_plan plan;
    struct fire_batch batch;
    struct fire_slot *slots;
    struct fire_result *results;
    float *weights;
    size_t bytes;
};

static void work_init(struct work *work, uint32_t side, uint32_t count, uint64_t seed)
{
    struct fire_options options;
    struct fire_random random;
    const size_t matrix = (size_t)side * side;

    memset(work, 0, sizeof(*work));
    /* Large ones take a few plain steps: enough to be in the way of others. */
    options_make(&options, "fire", side > FIRE_URGENT_SIDE_MAX ? "polynomial=cubic steps=2" : "");
    projection_plan(&options, side, side, &work->plan);
    work->bytes = count * matrix * sizeof(float);
    work->weights = calloc(count * matrix, sizeof(float));
    work->slots = calloc(count, sizeof(*work->slots));
    work->results = calloc(count, sizeof(*work->results));
    ck_assert(work->weights && work->slots && work->results);
    fire_random_init(&random, seed);
    for (size_t i = 0; i < count * matrix; i++)
        work->weights[i] = (float)fire_random_normal(&random);
    for (uint32_t i = 0; i < count; i++)
        work->slots[i] = (struct fire_slot){ .weights = work->weights + i * matrix,
                                             .result = &work->results[i],
                                             .seed = seed };
    work->batch =
        (struct fire_batch){ .plan = &work->plan, .slots = work->slots, .slot_count = count };
}

static void work_release(struct work *work)
{
    __real_free(work->weights);
    free(work->slots);
    free(work->results);
}

static void submit(struct projector *projector, struct work *work)
{
    ck_assert_int_eq(projector->backend->submit(projector->device, &work->batch), FIRE_OK);
}

static void wait_for(struct projector *projector, struct work *work)
{
    ck_assert_int_eq(projector->backend->wait(projector->device, &work->batch), FIRE_OK);
    ck_assert(projector->backend->poll(projector->device, &work->batch));
}

static bool finished(struct projector *projector, const struct work *work)
{
    return projector->backend->poll(projector->device, &work->batch);
}

/* The same matrices alone on the device give the same bits and the same words. */
static void check_against_alone(struct projector *projector, const struct work *work, uint32_t side,
                                uint64_t seed)
{
    struct work alone;

    work_init(&alone, side, work->batch.slot_count, seed);
    submit(projector, &alone);
    wait_for(projector, &alone);
    ck_assert_mem_eq(work->weights, alone.weights, work->bytes);
    for (uint32_t i = 0; i < work->batch.slot_count; i++) {
        ck_assert_int_eq(work->results[i].action, FIRE_ACTION_PROJECTED);
        ck_assert_str_eq(work->results[i].method, alone.results[i].method);
        ck_assert_double_eq(work->results[i].sfe, alone.results[i].sfe);
        ck_assert_double_eq(work->results[i].after.dfi, alone.results[i].after.dfi);
    }
    work_release(&alone);
}

/* --- urgent batches --------------------------------------------------------------------------- */

/* What is interrupted: one matrix of the whole pool, many of one worker each, tiny ones. */
static const struct {
    const char *name;
    uint32_t side, count, threads;
} interrupted[] = {
    { "a matrix of the whole pool", 1100, 1, THREADS },
    { "a matrix of one thread", 1100, 1, 1 },
    { "matrices dealt out whole", 256, 40, THREADS },
    { "tiny matrices", 16, 20000, THREADS },
};

/* A first batch has finished, so the second has been taken when wait returns; urgent ones that come
 * now finish while it runs. */
START_TEST(an_urgent_batch_finishes_before_what_it_interrupts)
{
    struct work urgent[URGENT_COUNT];
    struct projector projector;
    struct work first, large;

    projector_open(&projector, "auto", interrupted[_i].threads);
    work_init(&first, 8, 1, 1);
    work_init(&large, interrupted[_i].side, interrupted[_i].count, 2);
    for (uint32_t i = 0; i < URGENT_COUNT; i++) {
        work_init(&urgent[i], 8 + 24 * i, 1 + i % 3, 10 + i);
        urgent[i].batch.urgent = true;
    }
    submit(&projector, &first);
    submit(&projector, &large);
    wait_for(&projector, &first);
    for (uint32_t i = 0; i < URGENT_COUNT; i++)
        submit(&projector, &urgent[i]);
    for (uint32_t i = 0; i < URGENT_COUNT; i++)
        wait_for(&projector, &urgent[i]);
    ck_assert_msg(!finished(&projector, &large), "%s", interrupted[_i].name);
    wait_for(&projector, &large);
    check_against_alone(&projector, &large, interrupted[_i].side, 2);
    for (uint32_t i = 0; i < URGENT_COUNT; i++) {
        check_against_alone(&projector, &urgent[i], 8 + 24 * i, 10 + i);
        work_release(&urgent[i]);
    }
    work_release(&large);
    work_release(&first);
    projector_close(&projector);
}
END_TEST

/* Ordinary batches keep their order, and so does one too large to be urgent. */
START_TEST(what_is_too_large_to_be_urgent_waits_its_turn)
{
    struct projector projector;
    struct work before, large;

    projector_open(&projector, "auto", THREADS);
    work_init(&before, 300, 4, 1);
    work_init(&large, FIRE_URGENT_SIDE_MAX + 8, 1, 2);
    large.batch.urgent = true;
    submit(&projector, &before);
    submit(&projector, &large);
    wait_for(&projector, &large);
    ck_assert(finished(&projector, &before));
    check_against_alone(&projector, &large, FIRE_URGENT_SIDE_MAX + 8, 2);
    work_release(&before);
    work_release(&large);
    projector_close(&projector);
}
END_TEST

/* An urgent batch overtakes those that wait, and closing waits for all of them. */
START_TEST(closing_runs_what_is_queued)
{
    struct projector projector;
    struct work work[6];

    projector_open(&projector, "auto", THREADS);
    for (uint32_t i = 0; i < 6; i++) {
        work_init(&work[i], 64, 20, i);
        work[i].batch.urgent = i % 2 == 1;
        submit(&projector, &work[i]);
    }
    projector_close(&projector);
    for (uint32_t i = 0; i < 6; i++) {
        ck_assert(work[i].batch.finished);
        for (uint32_t s = 0; s < 20; s++)
            ck_assert_int_eq(work[i].results[s].action, FIRE_ACTION_PROJECTED);
        work_release(&work[i]);
    }
}
END_TEST

/* --- batches of the caller's thread ----------------------------------------------------------- */

static bool run_here(struct projector *projector, struct work *work)
{
    return projector->backend->run_here(projector->device, &work->batch);
}

/* An idle device lends its place, with the same bits; tiny matrices in groups, one that the pool
 * would share. */
START_TEST(a_caller_may_run_a_small_batch_itself)
{
    static const struct {
        uint32_t side, count;
    } batches[] = { { 8, 40 }, { 32, 3 }, { 64, 2 }, { 300, 1 } };
    struct projector projector;

    projector_open(&projector, "auto", THREADS);
    for (uint32_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
        struct work work;

        work_init(&work, batches[i].side, batches[i].count, i);
        while (
            !run_here(&projector, &work)) /* the batch before may just be giving back its place */
            ck_assert(!work.batch.finished);
        ck_assert(finished(&projector, &work));
        ck_assert_int_eq(work.batch.status, FIRE_OK);
        check_against_alone(&projector, &work, batches[i].side, i);
        work_release(&work);
    }
    projector_close(&projector);
}
END_TEST

/* While a batch runs or waits the place is taken, and what is too large is never run so. */
START_TEST(a_busy_device_is_not_lent)
{
    struct projector projector;
    struct work large, small;

    projector_open(&projector, "auto", THREADS);
    work_init(&large, 1100, 1, 1);
    work_init(&small, 16, 1, 2);
    ck_assert(!run_here(&projector, &large));
    submit(&projector, &large);
    ck_assert(!run_here(&projector, &small));
    ck_assert(!small.batch.finished);
    wait_for(&projector, &large);
    work_release(&large);
    work_release(&small);
    projector_close(&projector);
}
END_TEST

/* Callers and executor take turns; nobody's batch is lost or spoilt. */
START_TEST(lending_and_queueing_take_turns)
{
    struct projector projector;
    uint32_t here = 0;

    projector_open(&projector, "auto", THREADS);
    for (uint32_t i = 0; i < TURNS; i++) {
        struct work queued, own;

        work_init(&queued, 16, 1 + i % 40, i);
        work_init(&own, 24, 1, 2 * i);
        submit(&projector, &queued);
        if (i % 2)
            wait_for(&projector, &queued);
        if (run_here(&projector, &own)) {
            here++;
        } else {
            submit(&projector, &own);
            wait_for(&projector, &own);
        }
        wait_for(&projector, &queued);
        ck_assert_int_eq(own.results[0].action, FIRE_ACTION_PROJECTED);
        if (i % 20 == 0)
            check_against_alone(&projector, &own, 24, 2 * i);
        work_release(&queued);
        work_release(&own);
    }
    ck_assert_uint_gt(here, 0);
    projector_close(&projector);
}
END_TEST

/* --- batches that nobody wants ---------------------------------------------------------------- */

static void abandon(struct projector *projector, struct work *work)
{
    projector->backend->abandon(projector->device, &work->batch);
}

static enum fire_status wait_status(struct projector *projector, struct work *work)
{
    return projector->backend->wait(projector->device, &work->batch);
}

/* Ways to compute, each caught in the middle. A thousand steps take longer than the test may. */
static const struct {
    const char *name;
    uint32_t side, count, threads;
    const char *settings;
} unwanted[] = {
    { "a matrix of the whole pool", 2048, 1, THREADS, "" },
    { "a matrix of one thread", 1536, 1, 1, "" },
    { "steps on x", 3072, 1, THREADS, "polynomial=cubic steps=1000 side=x" },
    { "steps on the Gram side", 3072, 1, THREADS, "polynomial=cubic steps=1000 side=gram" },
    { "fast steps", 2048, 1, THREADS, "compute=fast" },
    { "matrices dealt out whole", 256, 600, THREADS, "" },
    { "tiny matrices", 16, 200000, THREADS, "" },
};

/* A first batch has finished, so the second has been taken when wait returns; an urgent one that
 * has finished too ran between two of its tasks. It does not run to its end; what waits behind it
 * is dropped or computed as if nothing had been. */
START_TEST(an_abandoned_batch_ends_early)
{
    const uint32_t side = unwanted[_i].side;
    struct work first, large, within, dropped, next;
    struct fire_options options;
    struct projector projector;

    projector_open(&projector, "auto", unwanted[_i].threads);
    work_init(&first, 8, 1, 1);
    work_init(&large, side, unwanted[_i].count, 2);
    work_init(&dropped, 64, 1, 3);
    work_init(&next, 100, 3, 4);
    work_init(&within, 16, 1, 5);
    within.batch.urgent = true;
    options_make(&options, "fire", unwanted[_i].settings);
    projection_plan(&options, side, side, &large.plan);
    submit(&projector, &first);
    submit(&projector, &large);
    wait_for(&projector, &first);
    submit(&projector, &within);
    submit(&projector, &dropped);
    submit(&projector, &next);
    wait_for(&projector, &within);
    abandon(&projector, &dropped);
    abandon(&projector, &large);
    ck_assert_msg(wait_status(&projector, &large) == FIRE_CANCELLED, "%s", unwanted[_i].name);
    ck_assert_int_eq(wait_status(&projector, &dropped), FIRE_CANCELLED);
    wait_for(&projector, &next);
    check_against_alone(&projector, &next, 100, 4);
    work_release(&first);
    work_release(&large);
    work_release(&within);
    work_release(&dropped);
    work_release(&next);
    projector_close(&projector);
}
END_TEST

/* What has finished stays as it is, and the flag does not outlive its batch. */
START_TEST(a_finished_batch_cannot_be_abandoned)
{
    struct projector projector;
    struct work work;

    projector_open(&projector, "auto", THREADS);
    work_init(&work, 200, 3, 1);
    submit(&projector, &work);
    wait_for(&projector, &work);
    abandon(&projector, &work);
    ck_assert_int_eq(work.batch.status, FIRE_OK);
    check_against_alone(&projector, &work, 200, 1);
    work_release(&work);
    projector_close(&projector);
}
END_TEST

/* Alone or by all: both ways are tried, again and again, and nobody can tell them apart. */
START_TEST(a_matrix_that_is_left_over_has_the_same_bits_either_way)
{
    struct projector one, all;
    struct work alone, work;

    projector_open(&one, "auto", 1);
    projector_open(&all, "auto", THREADS);
    work_init(&alone, 200, 1, 1);
    submit(&one, &alone);
    wait_for(&one, &alone);
    for (uint32_t turn = 0; turn < LEFT_OVER_TURNS; turn++) {
        work_init(&work, 200, 1, 1);
        submit(&all, &work);
        wait_for(&all, &work);
        ck_assert_mem_eq(work.weights, alone.weights, alone.bytes);
        ck_assert_double_eq(work.results[0].after.dfi, alone.results[0].after.dfi);
        work_release(&work);
    }
    work_release(&alone);
    projector_close(&one);
    projector_close(&all);
}
END_TEST

/* --- threads and memory ----------------------------------------------------------------------- */

/* Threads of this process whose niceness is `nice`, and which leave the processor to whoever wakes
 * them. */
static uint32_t calm_threads(int nice)
{
    DIR *directory = opendir("/proc/self/task");
    struct dirent *entry;
    uint32_t count = 0;

    ck_assert_ptr_nonnull(directory);
    while ((entry = readdir(directory)) != NULL) {
        const int thread = atoi(entry->d_name); /* 0 for the folders */

        count += thread > 0 && getpriority(PRIO_PROCESS, (id_t)thread) == nice &&
                 sched_getscheduler(thread) == SCHED_BATCH;
    }
    closedir(directory);
    return count;
}

START_TEST(every_thread_that_computes_is_nice)
{
    const struct fire_backend_settings settings = { .threads = 3, .path = "auto", .nice = 4 };
    const struct fire_backend *backend = fire_cpu_backend();
    const int own = getpriority(PRIO_PROCESS, 0);
    struct projector projector = { .backend = backend };
    struct fire_error error;
    struct work work;

    if (own > 15) {
        fprintf(stderr, "this process has niceness %d, which cannot be raised by 4\n", own);
        ck_abort();
    }
    ck_assert_int_eq(backend->open(&settings, &projector.device, &error), FIRE_OK);
    /* Long enough that every thread has a task of it, and so has begun. */
    for (int round = 0; round < POLL_COUNT_MAX && calm_threads(own + 4) < 3; round++) {
        work_init(&work, 128, 64, 1);
        submit(&projector, &work);
        wait_for(&projector, &work);
        work_release(&work);
    }
    ck_assert_uint_eq(calm_threads(own + 4), 3);
    ck_assert_int_eq(getpriority(PRIO_PROCESS, 0), own);
    ck_assert_int_eq(sched_getscheduler(0), SCHED_OTHER);
    projector_close(&projector);
}
END_TEST

static void run_small(struct projector *projector, uint32_t batches)
{
    for (uint32_t i = 0; i < batches; i++) {
        struct work small;

        work_init(&small, 64, 4, i);
        submit(projector, &small);
        wait_for(projector, &small);
        work_release(&small);
    }
}

/* Statistics of a long f64 matrix, whose copy alone is over what a device keeps. */
static void run_huge(struct projector *projector)
{
    const uint32_t rows = 65536, cols = 256;
    struct fire_slot slot = { 0 };
    struct fire_result result;
    struct fire_options options;
    struct fire_plan plan;
    struct fire_error error;
    const struct fire_view view = { .rows = rows,
                                    .cols = cols,
                                    .row_stride = cols,
                                    .col_stride = 1,
                                    .fan_in = cols,
                                    .fan_out = rows,
                                    .tap_count = 1 };
    struct fire_batch batch = { .plan = &plan, .slots = &slot, .slot_count = 1 };
    uint64_t needed;
    size_t held;

    options_make(&options, "fire", "compute=f64");
    ck_assert_int_eq(
        fire_plan_analyze(&plan, &options, &view, FIRE_F64, FIRE_STATISTICS_BASIC, &error),
        FIRE_OK);
    slot.weights = calloc((size_t)rows * cols, sizeof(double));
    slot.result = &result;
    ck_assert_ptr_nonnull(slot.weights);
    for (size_t i = 0; i < (size_t)rows * cols; i += 7)
        ((double *)slot.weights)[i] = 1.0;
    needed = projector->backend->workspace_bytes(projector->device, &plan);
    ck_assert_uint_gt(needed, FIRE_WORKSPACE_KEPT_BYTES);
    held = atomic_load(&live_bytes);
    ck_assert_int_eq(projector->backend->submit(projector->device, &batch), FIRE_OK);
    ck_assert_int_eq(projector->backend->wait(projector->device, &batch), FIRE_OK);
    held = atomic_load(&live_bytes) - held;
    /* The allocator adds up to a huge page to each array, which is never touched. */
    ck_assert_msg(held <= needed + needed / 10 && held > needed / 2,
                  "%zu bytes held, %llu foretold", held, (unsigned long long)needed);
    __real_free(slot.weights);
}

/* After a huge matrix the device is busy with small ones (_i = 0) or idle (1): either way its
 * memory comes back. */
START_TEST(memory_of_a_huge_matrix_comes_back)
{
    const struct timespec pause = { 0, POLL_MS * 1000000l };
    struct projector projector;
    size_t before;

    projector_open(&projector, "auto", 1);
    run_small(&projector, 1);
    before = atomic_load(&live_bytes);
    run_huge(&projector);
    ck_assert_uint_gt(atomic_load(&live_bytes), before + FIRE_WORKSPACE_KEPT_BYTES);
    if (_i == 0)
        run_small(&projector, 20);
    for (int i = 0; i < POLL_COUNT_MAX && atomic_load(&live_bytes) > before; i++)
        nanosleep(&pause, NULL);
    ck_assert_uint_le(atomic_load(&live_bytes), before);
    run_small(&projector, 1);
    projector_close(&projector);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backend");
    TCase *tests = tcase_create("backend");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 900);
    tcase_add_loop_test(tests, an_urgent_batch_finishes_before_what_it_interrupts, 0,
                        (int)(sizeof(interrupted) / sizeof(interrupted[0])));
    tcase_add_test(tests, what_is_too_large_to_be_urgent_waits_its_turn);
    tcase_add_test(tests, closing_runs_what_is_queued);
    tcase_add_test(tests, a_caller_may_run_a_small_batch_itself);
    tcase_add_test(tests, a_busy_device_is_not_lent);
    tcase_add_test(tests, lending_and_queueing_take_turns);
    tcase_add_loop_test(tests, an_abandoned_batch_ends_early, 0,
                        (int)(sizeof(unwanted) / sizeof(unwanted[0])));
    tcase_add_test(tests, a_finished_batch_cannot_be_abandoned);
    tcase_add_test(tests, a_matrix_that_is_left_over_has_the_same_bits_either_way);
    tcase_add_test(tests, every_thread_that_computes_is_nice);
    tcase_add_loop_test(tests, memory_of_a_huge_matrix_comes_back, 0, 2);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
