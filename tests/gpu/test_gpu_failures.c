/* Every call of the CUDA libraries fails once, at every place in the plugin that makes it; a device
 * is lost at many moments; memory runs out. Each time: it is reported or made good, nothing leaks,
 * the process lives, and the next batch is right.
 *
 * FIRED_TEST_FULL=1 fails every call of the run, not only the first from each place. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

#define CALLS_MAX  20000u
#define TOLERANCE  1e-5
#define SLOT_BYTES (64ull << 20)

/* The second has counted steps: what is wrong with them nobody makes good. */
static const struct gpu_case cases[] = {
    { "fire", "", 24, 24, 3, FIRE_F32, false },
    { "official-vision", "", 80, 72, 2, FIRE_F32, false },
    { "fire", "", 80, 72, 2, FIRE_F32, false },
    { "fire", "", 160, 40, 2, FIRE_F32, false },
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

static struct gpu_batch batches[CASES];
static float *right[CASES]; /* the bits of an undisturbed run */

static struct fire_backend_settings settings = {
    .threads = 1, .path = "auto", .slots = 1, .slot_bytes = SLOT_BYTES
};

/* A batch that says it was run has the right answer: the device's bits, or the CPU's within the
 * tolerance. One that says it was not has its weights untouched. */
static void check_batch(size_t index, enum fire_status status, const char *what)
{
    struct gpu_batch *const batch = &batches[index];
    const size_t bytes = batch->matrix_floats * sizeof(float);

    for (uint32_t i = 0; i < cases[index].count; i++) {
        const float *const weights = batch->weights + i * batch->matrix_floats;

        if (status != FIRE_OK) {
            ck_assert_msg(memcmp(weights, batch->before + i * batch->matrix_floats, bytes) == 0,
                          "%s: a refused batch has other weights", what);
            continue;
        }
        ck_assert_msg(batch->results[i].action == FIRE_ACTION_PROJECTED, "%s: matrix %u: %s", what,
                      i, batch->results[i].reason);
        if (memcmp(weights, right[index] + i * batch->matrix_floats, bytes) != 0)
            ck_assert_msg(gpu_batch_error(batch, i) <= TOLERANCE, "%s: wrong answer", what);
    }
}

/* A call that releases something may fail unheard: what it was for is over. */
static bool is_release(const char *call)
{
    return strstr(call, "Destroy") || strstr(call, "Free");
}

/* A call that was made to fail on an open device left words. */
static void check_told(const struct fire_backend *backend, const struct fire_device *device,
                       const char *what)
{
    const char *const failed = plugin_emulator()->failed();

    if (failed && !is_release(failed))
        ck_assert_msg(backend->last_error(device)[0], "%s: nobody noticed", what);
}

/* Opens, runs every case, closes. Returns how many batches were refused, -1: open was. */
static int run_round(const char *what)
{
    const struct fire_backend *const backend = plugin_backend();
    struct fire_device *device = NULL;
    struct fire_error error = { 0 };
    int refused = 0;

    if (backend->open(&settings, &device, &error) != FIRE_OK) {
        ck_assert_msg(!device && error.message[0], "%s: refused without a reason", what);
        return -1;
    }
    for (size_t i = 0; i < CASES; i++) {
        enum fire_status status;

        gpu_batch_again(&batches[i]);
        status = backend->submit(device, &batches[i].batch);
        if (status == FIRE_OK)
            status = backend->wait(device, &batches[i].batch);
        check_batch(i, status, what);
        if (status != FIRE_OK) {
            ck_assert_msg(backend->last_error(device)[0], "%s: failed without a reason", what);
            refused++;
        }
    }
    check_told(backend, device, what);
    backend->close(device);
    return refused;
}

static void check_alive(const char *what)
{
    struct emulator_counters now;

    plugin_emulator()->counters(&now);
    ck_assert_msg(now.live_device_allocations == 0 && now.live_host_allocations == 0 &&
                      now.live_streams == 0 && now.live_events == 0 && now.live_graphs == 0 &&
                      now.live_handles == 0,
                  "%s: something is left alive: %llu device, %llu pinned, %llu streams, %llu "
                  "events, %llu graphs, %llu handles",
                  what, (unsigned long long)now.live_device_allocations,
                  (unsigned long long)now.live_host_allocations,
                  (unsigned long long)now.live_streams, (unsigned long long)now.live_events,
                  (unsigned long long)now.live_graphs, (unsigned long long)now.live_handles);
}

static void setup(void)
{
    plugin_calm();
    for (size_t i = 0; i < CASES; i++)
        gpu_batch_init(&batches[i], &cases[i], 60 + i);
    plugin_emulator()->start_log();
    for (size_t i = 0; i < CASES; i++) {
        const size_t bytes = cases[i].count * batches[i].matrix_floats * sizeof(float);

        right[i] = malloc(bytes);
        ck_assert_ptr_nonnull(right[i]);
        memcpy(right[i], batches[i].before, bytes);
    }
    for (size_t i = 0; i < CASES; i++) { /* first run: what is right, and which calls are made */
        const size_t bytes = cases[i].count * batches[i].matrix_floats * sizeof(float);

        if (i == 0)
            ck_assert_int_eq(run_round("undisturbed"), 0);
        memcpy(right[i], batches[i].weights, bytes);
        for (uint32_t k = 0; k < cases[i].count; k++)
            ck_assert(gpu_batch_error(&batches[i], k) <= TOLERANCE);
    }
}

static void teardown(void)
{
    for (size_t i = 0; i < CASES; i++) {
        gpu_batch_release(&batches[i]);
        free(right[i]);
    }
}

static bool is_first_of_its_site(const struct emulator_call *calls, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (calls[i].site == calls[index].site)
            return false;
    }
    return true;
}

START_TEST(every_call_fails_once_and_nothing_is_lost)
{
    const struct emulator_control *const emulator = plugin_emulator();
    const bool full = getenv("FIRED_TEST_FULL") != NULL;
    const size_t count = emulator->log_count();
    struct emulator_call *const calls = calloc(count + 1, sizeof(*calls));
    uint32_t sites = 0, reported = 0;

    ck_assert(calls && count > 0 && count < CALLS_MAX);
    for (size_t i = 0; i < count; i++)
        calls[i] = emulator->log_at(i);
    for (size_t i = 0; i < count; i++) {
        char what[128];
        int refused;

        if (!full && !is_first_of_its_site(calls, i))
            continue;
        snprintf(what, sizeof(what), "%s failing, call %zu", calls[i].name, i + 1);
        emulator->fail_call(NULL, i + 1, 0);
        refused = run_round(what);
        ck_assert_msg(emulator->failed() != NULL, "%s: was not reached", what);
        sites++;
        reported += refused != 0;
        emulator->fail_call(NULL, 0, 0);
        check_alive(what);
        emulator->revive();
        snprintf(what, sizeof(what), "after %s failed, call %zu", calls[i].name, i + 1);
        ck_assert_msg(run_round(what) == 0, "%s: the next batch was refused", what);
        check_alive(what);
    }
    printf("%u calls made to fail, %u of them refused a batch or the device\n", sites, reported);
    free(calls);
}
END_TEST

/* A graph that ran before runs again on other weights, and one of its calls fails: what the first
 * run left in memory must not pass for the result of the second. */
START_TEST(a_failure_never_delivers_an_earlier_batch)
{
    static const char *const calls[] = { "cudaGraphLaunch", "cudaEventRecord",
                                         "cudaEventSynchronize" };
    const struct emulator_control *const emulator = plugin_emulator();

    for (size_t i = 0; i < CASES * 3; i++) {
        const struct gpu_case *const what = &cases[i / 3];
        struct gpu_batch other;
        struct projector gpu;
        char words[128];

        snprintf(words, sizeof(words), "%s failing on a second %ux%u", calls[i % 3], what->out,
                 what->in);
        plugin_open_with(&gpu, NULL, 1, SLOT_BYTES);
        gpu_batch_init(&other, what, 160 + i);
        gpu_batch_must_run(&gpu, &other);
        gpu_batch_again(&batches[i / 3]);
        emulator->fail_call(calls[i % 3], 1, 0);
        check_batch(i / 3, gpu_batch_run(&gpu, &batches[i / 3]), words);
        ck_assert_msg(emulator->failed() != NULL, "%s: was not reached", words);
        check_told(gpu.backend, gpu.device, words);
        emulator->fail_call(NULL, 0, 0);
        projector_close(&gpu);
        check_alive(words);
        emulator->revive();
        gpu_batch_release(&other);
    }
}
END_TEST

START_TEST(a_device_lost_at_any_moment_is_reported)
{
    const struct emulator_control *const emulator = plugin_emulator();
    struct emulator_counters before, after;
    uint64_t operations, step;

    emulator->counters(&before);
    ck_assert_int_eq(run_round("undisturbed"), 0);
    emulator->counters(&after);
    operations = after.operations - before.operations;
    step = getenv("FIRED_TEST_FULL") ? 1 : 1 + operations / 40;
    for (uint64_t n = 1; n <= operations; n += step) {
        char what[64];

        snprintf(what, sizeof(what), "operation %llu lost the device", (unsigned long long)n);
        emulator->fail_operation(n, 0);
        ck_assert_msg(run_round(what) != 0, "%s, and nobody noticed", what);
        ck_assert(emulator->lost(0));
        check_alive(what);
        emulator->revive();
    }
    ck_assert_int_eq(run_round("after all"), 0);
    check_alive("after all");
}
END_TEST

/* Less and less memory: smaller slots, then a refusal with a reason; never a crash. With two slots
 * there comes a moment when only the first gets its memory. */
START_TEST(running_out_of_memory_is_refused_with_a_reason)
{
    const struct emulator_control *const emulator = plugin_emulator();
    int refused_at = 0;

    settings.slots = (uint32_t)_i;
    emulator->forget_complaints();
    for (uint64_t mib = 1024; mib >= 1; mib /= 2) {
        char what[64];

        snprintf(what, sizeof(what), "a device of %llu MiB", (unsigned long long)mib);
        emulator->memory_limit(mib << 20);
        refused_at += run_round(what) != 0;
        check_alive(what);
    }
    ck_assert_int_gt(refused_at, 0);
    emulator->model("H100");
    ck_assert_int_eq(run_round("enough again"), 0);
    settings.slots = 1;
    plugin_check_clean("little memory");
}
END_TEST

static void add(Suite *suite)
{
    TCase *const tests = tcase_create("failures");
    TCase *const memory = tcase_create("memory");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_failure_never_delivers_an_earlier_batch);
    tcase_add_test(tests, every_call_fails_once_and_nothing_is_lost);
    tcase_add_test(tests, a_device_lost_at_any_moment_is_reported);
    tcase_add_checked_fixture(memory, setup, teardown);
    tcase_add_loop_test(memory, running_out_of_memory_is_refused_with_a_reason, 1, 3);
    suite_add_tcase(suite, memory);
    suite_add_tcase(suite, tests);
}

int main(void)
{
    return plugin_main(add, "gpu failures");
}
