/* device: opening, order of ends, urgent batches, a device that is wrong or lost. Real batches on
 * the real CPU pool; a backend that fails is the CPU's with one function put in its place. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "device.h"
#include "jobs.h"

#define SLOTS_MAX  64u
#define WAIT_S_MAX 60

struct ends {
    uint64_t ids[DEVICE_BATCHES_MAX];
    uint32_t count;
    enum fire_status status;
};

static uv_loop_t loop;

static void on_batch(struct device *device, struct batch *batch, void *data)
{
    struct ends *ends = data;

    ends->ids[ends->count++] = batch->id;
    ends->status = batch->status;
    device_release_batch(device, batch);
}

static struct device *open_device(const struct fire_backend *backend, struct ends *ends)
{
    const struct device_settings settings = { .backend = backend,
                                              .backend_settings = { .threads = 2 },
                                              .slots_max = SLOTS_MAX };
    struct fire_error error = { 0 };
    struct device *device;

    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_msg(device_open(&loop, &settings, on_batch, ends, &device, &error) == FIRE_OK, "%s",
                  error.message);
    return device;
}

/* The CPU's, which tells of ends (1), or which has to be waited for (0). */
static struct fire_backend backend_that(int tells)
{
    struct fire_backend backend = *fire_cpu_backend();

    ck_assert(backend.tells);
    backend.tells = tells != 0;
    return backend;
}

static void on_closed(void *data)
{
    *(bool *)data = true;
}

static void close_device(struct device *device)
{
    bool closed = false;

    device_close(device, on_closed, &closed);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert(closed);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void submit(struct device *device, struct work *work, uint64_t id)
{
    struct batch *batch = device_free_batch(device);

    ck_assert_ptr_nonnull(batch);
    ck_assert(!batch->urgent);
    batch->id = id;
    batch->cost_s = 0.001;
    batch->work.plan = &work->plan;
    batch->work.slot_count = work->job.matrix_count;
    batch->work.urgent = false;
    memcpy(batch->slots, work->slots, work->job.matrix_count * sizeof(work->slots[0]));
    device_submit(device, batch);
}

static void wait_for(const struct ends *ends, uint32_t count)
{
    const uint64_t limit_ns = clock_now_ns() + WAIT_S_MAX * CLOCK_NS_PER_S;

    while (ends->count < count && clock_now_ns() < limit_ns)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_uint_eq(ends->count, count);
}

/* Ends come in the order of submission, the books add up, and the results are the CPU's. */
START_TEST(batches_come_back_in_order)
{
    struct ends ends = { 0 };
    const struct fire_backend backend = backend_that(_i);
    struct device *device = open_device(&backend, &ends);
    struct work *works[DEVICE_BATCHES_MAX];
    struct fire_plan plan;
    float *alone;

    plan_make(&plan, 96, 80, NULL);
    alone = malloc((size_t)96 * 80 * sizeof(*alone));
    ck_assert_ptr_nonnull(alone);
    for (uint32_t i = 0; i < DEVICE_BATCHES_MAX; i++) {
        works[i] = work_open(&plan, 4, 100 * i);
        submit(device, works[i], i + 1);
    }
    ck_assert_uint_eq(device_running(device), DEVICE_BATCHES_MAX);
    ck_assert_ptr_null(device_free_batch(device));
    ck_assert_double_gt(device_backlog_s(device), 0.001);
    wait_for(&ends, DEVICE_BATCHES_MAX);
    for (uint32_t i = 0; i < DEVICE_BATCHES_MAX; i++) {
        ck_assert_uint_eq(ends.ids[i], i + 1);
        project_alone(&plan, 100 * i + 3, alone);
        ck_assert_mem_eq(work_matrix(works[i], 3), alone, 96 * 80 * sizeof(*alone));
        work_close(works[i]);
    }
    ck_assert_int_eq(ends.status, FIRE_OK);
    ck_assert_uint_eq(device_running(device), 0);
    ck_assert_double_eq(device_backlog_s(device), 0);
    ck_assert_uint_eq(device_batches(device), DEVICE_BATCHES_MAX);
    ck_assert_uint_eq(device_matrices(device), 4 * DEVICE_BATCHES_MAX);
    ck_assert_double_gt(device_busy_s(device), 0);
    free(alone);
    close_device(device);
}
END_TEST

/* A small urgent batch ends before the large matrix that began earlier. */
START_TEST(an_urgent_batch_overtakes)
{
    struct ends ends = { 0 };
    const struct fire_backend backend = backend_that(_i);
    struct device *device = open_device(&backend, &ends);
    struct fire_plan large, small;
    struct work *slow, *fast;
    struct batch *batch;

    plan_make(&large, 1536, 1536, NULL);
    plan_make(&small, 32, 32, NULL);
    slow = work_open(&large, 1, 1);
    fast = work_open(&small, 1, 2);
    submit(device, slow, 1);
    batch = device_free_batch(device);
    ck_assert_ptr_nonnull(batch);
    batch->urgent = batch->work.urgent = true;
    batch->id = 2;
    batch->cost_s = 1e-5;
    batch->work.plan = &small;
    batch->work.slot_count = 1;
    batch->slots[0] = fast->slots[0];
    device_submit(device, batch);
    ck_assert_uint_eq(device_urgent(device), 1);
    wait_for(&ends, 2);
    ck_assert_uint_eq(ends.ids[0], 2);
    ck_assert_uint_eq(ends.ids[1], 1);
    work_close(slow);
    work_close(fast);
    close_device(device);
}
END_TEST

/* Closing waits for what runs and tells nobody. */
START_TEST(closing_waits)
{
    struct ends ends = { 0 };
    const struct fire_backend backend = backend_that(_i);
    struct device *device = open_device(&backend, &ends);
    struct fire_plan plan;
    struct work *work;

    plan_make(&plan, 256, 256, NULL);
    work = work_open(&plan, 2, 1);
    submit(device, work, 1);
    close_device(device);
    ck_assert_uint_eq(ends.count, 0);
    ck_assert_int_eq(work->results[1].action, FIRE_ACTION_PROJECTED);
    work_close(work);
    device_close(NULL, NULL, NULL);
}
END_TEST

/* --- devices that fail ----------------------------------------------------------------------- */

static enum fire_status wait_wrongly(struct fire_device *device, const struct fire_batch *batch)
{
    const enum fire_status status = fire_cpu_backend()->wait(device, batch);

    ((float *)batch->slots[0].weights)[0] += 0.01f;
    return status;
}

static enum fire_status wait_in_vain(struct fire_device *device, const struct fire_batch *batch)
{
    (void)fire_cpu_backend()->wait(device, batch);
    return FIRE_DEVICE_LOST;
}

static const struct {
    const char *name;
    enum fire_status (*wait)(struct fire_device *, const struct fire_batch *);
    uint32_t abi;
    enum fire_status status;
} failures[] = {
    { "wrong numbers", wait_wrongly, FIRE_BACKEND_ABI, FIRE_DEVICE_LOST },
    { "lost at once", wait_in_vain, FIRE_BACKEND_ABI, FIRE_DEVICE_LOST },
    { "another interface", NULL, FIRE_BACKEND_ABI + 1, FIRE_BAD_REQUEST },
};

START_TEST(a_device_that_fails_stays_out)
{
    struct fire_backend backend = *fire_cpu_backend();
    const struct device_settings settings = { .backend = &backend,
                                              .backend_settings = { .threads = 1 },
                                              .slots_max = 1 };
    struct fire_error error = { 0 };
    struct ends ends = { 0 };
    struct device *device;

    backend.abi = failures[_i].abi;
    if (failures[_i].wait)
        backend.wait = failures[_i].wait;
    backend.tells = false;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_msg(device_open(&loop, &settings, on_batch, &ends, &device, &error) ==
                      failures[_i].status,
                  "%s", failures[_i].name);
    ck_assert_ptr_null(device);
    ck_assert_uint_gt(strlen(error.message), 20);
    ck_assert_int_eq(uv_loop_close(&loop), 0); /* nothing is left in the loop */
}
END_TEST

static bool losing; /* from now on the device is gone */

static enum fire_status wait_until_lost(struct fire_device *device, const struct fire_batch *batch)
{
    const enum fire_status status = fire_cpu_backend()->wait(device, batch);

    return __atomic_load_n(&losing, __ATOMIC_SEQ_CST) ? FIRE_DEVICE_LOST : status;
}

/* What was with it comes back lost; so does what is given to it after. */
START_TEST(a_lost_device_is_out_of_service)
{
    struct fire_backend backend = *fire_cpu_backend();
    struct ends ends = { 0 };
    struct fire_plan plan;
    struct device *device;
    struct work *work;

    backend.wait = wait_until_lost;
    backend.tells = false;
    device = open_device(&backend, &ends);
    ck_assert(device_in_service(device));
    __atomic_store_n(&losing, true, __ATOMIC_SEQ_CST);
    plan_make(&plan, 64, 64, NULL);
    work = work_open(&plan, 1, 1);
    submit(device, work, 1);
    wait_for(&ends, 1);
    ck_assert_int_eq(ends.status, FIRE_DEVICE_LOST);
    ck_assert(!device_in_service(device));
    ends.status = FIRE_OK;
    submit(device, work, 2);
    ck_assert_uint_eq(ends.count, 1); /* never from within device_submit() */
    wait_for(&ends, 2);
    ck_assert_int_eq(ends.status, FIRE_DEVICE_LOST);
    work_close(work);
    close_device(device);
}
END_TEST

/* The model is that of this machine: an estimate is within a factor of what a batch takes. */
START_TEST(calibration_estimates_what_is_measured)
{
    struct ends ends = { 0 };
    struct device *device = open_device(fire_cpu_backend(), &ends);
    struct fire_plan plan;
    double estimate, took, best = 1e9;

    plan_make(&plan, 128, 128, NULL);
    estimate = cost_seconds(device_cost(device), &plan, 8);
    for (uint32_t round = 1; round <= 5; round++) {
        struct work *work = work_open(&plan, 8, round);
        const double before = device_busy_s(device);

        ends.count = 0;
        submit(device, work, round);
        wait_for(&ends, 1);
        took = device_busy_s(device) - before;
        best = took < best ? took : best;
        work_close(work);
    }
    ck_assert_msg(best < 8 * estimate && best > estimate / 8, "estimated %g s, took %g s", estimate,
                  best);
    close_device(device);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device");
    TCase *tests = tcase_create("device");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, batches_come_back_in_order, 0, 2);
    tcase_add_loop_test(tests, an_urgent_batch_overtakes, 0, 2);
    tcase_add_loop_test(tests, closing_waits, 0, 2);
    tcase_add_loop_test(tests, a_device_that_fails_stays_out, 0,
                        sizeof(failures) / sizeof(failures[0]));
    tcase_add_test(tests, a_lost_device_is_out_of_service);
    tcase_add_test(tests, calibration_estimates_what_is_measured);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
