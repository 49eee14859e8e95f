/* scheduler: real jobs on the real CPU pool and a real loop. Times are the machine's, so a test
 * either causes what it checks (a device kept busy by a large matrix) or compares shares. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "fire.h"
#include "jobs.h"
#include "random.h"
#include "scheduler.h"

#define WAIT_S_MAX  500
#define TENANTS     4u
#define FOREVER_US  1000000000u /* a delay that no test waits for */
#define LEND_ROUNDS 40u
#define FULL_SLOTS  16u /* fewer than an efficient batch of 16 x 16 anywhere */
/* One matrix of LARGE_SIDE takes tens of milliseconds, one of FLOOD_SIDE is a batch by itself.
 * Where every access is checked, all of it is some twenty times as slow. */
#if defined(__SANITIZE_THREAD__)
#define LARGE_SIDE 768u
#define FLOOD_SIDE 160u
#define SMALL_SIDE 4u
#define TARGET_US  40000u
#define FAIR_S     12.0
#else
#define LARGE_SIDE 1536u
#define FLOOD_SIDE 320u
#define SMALL_SIDE 64u
#define TARGET_US  2000u
#define FAIR_S     3.0
#endif

static const struct scheduler_settings usual = { .batch_target_us = TARGET_US,
                                                 .slots_max = 256,
                                                 .jobs_max = 4096,
                                                 .bulk_age_ms = 100000,
                                                 .batching = true };

static struct {
    uv_loop_t loop;
    uv_timer_t tick; /* so that waiting in vain ends */
    uint64_t limit_ns;
    struct tenants *tenants;
    struct tenant *tenant[TENANTS];
    struct metrics *metrics;
    struct scheduler *scheduler;
    struct device *devices[2];
    uint32_t device_count;
    uint32_t done; /* jobs */
} world;

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
    ck_assert_msg(clock_now_ns() < world.limit_ns, "waited in vain");
}

static void add_device(const struct fire_backend *backend)
{
    const struct device_settings settings = { .backend = backend,
                                              .backend_settings = { .threads = 2 },
                                              .index = world.device_count,
                                              .slots_max = 256 };
    struct device **device = &world.devices[world.device_count++];
    struct fire_error error = { 0 };

    ck_assert_msg(device_open(&world.loop, &settings, scheduler_batch_done, world.scheduler, device,
                              &error) == FIRE_OK,
                  "%s", error.message);
    scheduler_add_device(world.scheduler, *device);
}

static void open_world(const struct scheduler_settings *settings)
{
    static const char *const names[TENANTS] = { "a", "b", "c", "d" };
    const struct tenant_limits limits = { .weight = 1, .device_share_max = 1 };
    struct fire_error error = { 0 };

    memset(&world, 0, sizeof(world));
    ck_assert_int_eq(uv_loop_init(&world.loop), 0);
    world.limit_ns = clock_now_ns() + WAIT_S_MAX * CLOCK_NS_PER_S;
    uv_timer_init(&world.loop, &world.tick);
    uv_timer_start(&world.tick, on_tick, 1000, 1000);
    ck_assert_int_eq(tenants_open(&limits, &world.tenants), FIRE_OK);
    for (uint32_t i = 0; i < TENANTS; i++)
        ck_assert_int_eq(tenants_find(world.tenants, names[i], &world.tenant[i], &error), FIRE_OK);
    ck_assert_int_eq(metrics_open(&world.metrics), FIRE_OK);
    ck_assert_msg(scheduler_open(&world.loop, settings, world.tenants, world.metrics,
                                 &world.scheduler, &error) == FIRE_OK,
                  "%s", error.message);
}

/* Nothing may be left: neither waiting, nor running, nor charged as active. */
static void close_world(void)
{
    ck_assert_uint_eq(scheduler_waiting(world.scheduler), 0);
    ck_assert_uint_eq(scheduler_running(world.scheduler), 0);
    ck_assert_double_eq(metrics_value(world.metrics, METRIC_JOBS_LATE, NULL, NULL), 0);
    for (uint32_t i = 0; i < TENANTS; i++) {
        ck_assert(!world.tenant[i]->active);
        ck_assert_double_eq(world.tenant[i]->waiting_seconds, 0);
        ck_assert_ptr_null(world.tenant[i]->lanes);
    }
    for (uint32_t i = 0; i < world.device_count; i++)
        device_close(world.devices[i], NULL, NULL);
    scheduler_close(world.scheduler, NULL, NULL);
    uv_close((uv_handle_t *)&world.tick, NULL);
    uv_run(&world.loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&world.loop), 0);
    metrics_close(world.metrics);
    tenants_close(world.tenants);
}

static void open_usual(void)
{
    open_world(&usual);
    add_device(fire_cpu_backend());
}

static struct work *make(uint32_t out, uint32_t in, uint32_t matrices, uint64_t seed,
                         uint32_t tenant)
{
    struct fire_plan plan;
    struct work *work;

    plan_make(&plan, out, in, NULL);
    work = work_open(&plan, matrices, seed);
    work->job.tenant = world.tenant[tenant];
    work->done_count = &world.done;
    return work;
}

static void submit(struct work *work)
{
    struct fire_error error = { 0 };

    ck_assert_msg(scheduler_submit(world.scheduler, &work->job, &error) == FIRE_OK, "%s",
                  error.message);
}

static void wait_for(uint32_t done)
{
    while (world.done < done)
        uv_run(&world.loop, UV_RUN_ONCE);
}

static double dropped(const char *reason)
{
    return metrics_value(world.metrics, METRIC_JOBS_DROPPED, reason, NULL);
}

/* Makes the device busy for long: everything submitted now waits. */
static struct work *occupy(void)
{
    struct work *work = make(LARGE_SIDE, LARGE_SIDE, 1, 99, 3);

    work->job.end_of_set = true;
    submit(work);
    ck_assert_uint_eq(scheduler_running(world.scheduler), 1);
    return work;
}

/* --- results --------------------------------------------------------------------------------- */

static const struct {
    uint32_t out, in;
} shapes[] = { { 8, 8 }, { 24, 30 }, { 64, 64 }, { 100, 130 }, { 300, 200 } };

/* The same numbers as libfire in this process makes, orientation undone. */
START_TEST(results_are_those_of_the_client)
{
    const uint32_t out = shapes[_i].out, in = shapes[_i].in;
    struct fire_tensor tensor = { .dtype = FIRE_F32, .shape = { 2, { out, in } } };
    struct fire_error error = { 0 };
    struct fire_client *client;
    struct work *work;

    open_usual();
    work = make(out, in, 1, 5, 0);
    tensor.data = malloc(work->elements * sizeof(float));
    ck_assert_ptr_nonnull(tensor.data);
    for (uint32_t i = 0; i < out; i++) {
        for (uint32_t j = 0; j < in; j++)
            ((float *)tensor.data)[i * in + j] =
                work->weights[out >= in ? i * in + j : j * out + i];
    }
    tensor.out = (void *)tensor.data;
    ck_assert_int_eq(fire_options_preset(&tensor.options, "fire", &error), FIRE_OK);
    ck_assert_int_eq(fire_client_open_local(NULL, &client, &error), FIRE_OK);
    ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                     FIRE_OK);
    submit(work);
    wait_for(1);
    ck_assert_int_eq(work->status, FIRE_OK);
    for (uint32_t i = 0; i < out; i++) {
        for (uint32_t j = 0; j < in; j++) {
            const float *one = &((float *)tensor.data)[i * in + j];

            if (memcmp(one, &work->weights[out >= in ? i * in + j : j * out + i], 4) != 0)
                ck_abort_msg("element %u, %u differs", i, j);
        }
    }
    ck_assert_double_eq(work->results[0].dfi_unscaled_after, tensor.result.dfi_unscaled_after);
    fire_client_close(client);
    free((void *)tensor.data);
    work_close(work);
    close_world();
}
END_TEST

/* Forty jobs of four tenants and three classes in few batches; each is what it is alone. */
START_TEST(results_do_not_depend_on_batch_mates)
{
    const uint32_t out = shapes[_i].out, in = shapes[_i].in;
    struct work *works[40], *large;
    struct fire_plan plan;
    float *alone;

    open_usual();
    plan_make(&plan, out, in, NULL);
    alone = malloc((size_t)out * in * sizeof(*alone));
    ck_assert_ptr_nonnull(alone);
    for (uint32_t i = 0; i < 40; i++) {
        works[i] = make(out, in, 1 + i % 3, 10 * i, i % TENANTS);
        works[i]->job.priority = i % JOB_PRIORITY_COUNT;
    }
    large = occupy();
    for (uint32_t i = 0; i < 40; i++)
        submit(works[i]);
    wait_for(41);
    for (uint32_t i = 0; i < 40; i++) {
        ck_assert_int_eq(works[i]->status, FIRE_OK);
        project_alone(&plan, 10 * i + i % 3, alone);
        ck_assert_mem_eq(work_matrix(works[i], i % 3), alone, (size_t)out * in * sizeof(*alone));
        ck_assert_uint_le(works[i]->job.submitted_ns, works[i]->job.started_ns);
        ck_assert_uint_le(works[i]->job.started_ns, works[i]->job.finished_ns);
        work_close(works[i]);
    }
    if (out <= 64)
        ck_assert_uint_lt(device_batches(world.devices[0]), 30); /* they did share */
    free(alone);
    work_close(large);
    close_world();
}
END_TEST

/* A job of more matrices than a batch holds is one job still. */
START_TEST(a_large_job_is_dealt_out_over_batches)
{
    struct scheduler_settings settings = usual;
    struct work *work;
    struct fire_plan plan;
    float alone[32 * 32];

    settings.slots_max = 64;
    open_world(&settings);
    add_device(fire_cpu_backend());
    plan_make(&plan, 32, 32, NULL);
    work = make(32, 32, 500, 1000, 0);
    submit(work);
    wait_for(1);
    ck_assert_int_eq(work->status, FIRE_OK);
    ck_assert_uint_ge(device_batches(world.devices[0]), 8);
    ck_assert_uint_eq(device_matrices(world.devices[0]), 500);
    for (uint32_t i = 0; i < 500; i += 37) {
        project_alone(&plan, 1000 + i, alone);
        ck_assert_mem_eq(work_matrix(work, i), alone, sizeof(alone));
    }
    ck_assert_double_eq(metrics_value(world.metrics, METRIC_JOBS, "a", NULL), 500);
    work_close(work);
    close_world();
}
END_TEST

START_TEST(without_batching_every_job_is_a_batch)
{
    struct scheduler_settings settings = usual;
    struct work *works[20], *large;

    settings.batching = false;
    open_world(&settings);
    add_device(fire_cpu_backend());
    for (uint32_t i = 0; i < 20; i++)
        works[i] = make(64, 64, 1 + i % 2, i, 0);
    large = occupy();
    for (uint32_t i = 0; i < 20; i++)
        submit(works[i]);
    wait_for(21);
    for (uint32_t i = 0; i < 20; i++) {
        ck_assert_uint_eq(works[i]->job.batch_size, 1 + i % 2);
        work_close(works[i]);
    }
    ck_assert_uint_eq(device_batches(world.devices[0]), 21);
    work_close(large);
    close_world();
}
END_TEST

/* --- when a bucket closes --------------------------------------------------------------------- */

/* Two workers are faster with a matrix each than both with one: the first one waits a moment for a
 * second one, but neither when its set has ended nor for ever. */
START_TEST(a_matrix_to_be_shared_waits_a_moment_for_company)
{
    struct work *works[4];

    open_usual();
    for (uint32_t i = 0; i < 4; i++)
        works[i] = make(FLOOD_SIDE, FLOOD_SIDE, 1, i, i % TENANTS);
    submit(works[0]);
    ck_assert_uint_eq(scheduler_running(world.scheduler), 0);
    submit(works[1]);
    ck_assert_uint_eq(scheduler_running(world.scheduler), 2);
    wait_for(2);
    ck_assert_uint_eq(works[0]->job.batch_size, 2);
    ck_assert_uint_eq(works[0]->job.batch_id, works[1]->job.batch_id);
    submit(works[2]);
    ck_assert_uint_eq(scheduler_running(world.scheduler), 0);
    wait_for(3);
    ck_assert_uint_eq(works[2]->job.batch_size, 1);
    ck_assert_int_eq(works[2]->job.close_reason, CLOSE_DELAY);
    works[3]->job.end_of_set = true;
    submit(works[3]);
    ck_assert_uint_eq(scheduler_running(world.scheduler), 1);
    wait_for(4);
    ck_assert_int_eq(works[3]->job.close_reason, CLOSE_IDLE);
    for (uint32_t i = 0; i < 4; i++)
        work_close(works[i]);
    close_world();
}
END_TEST

static const struct {
    const char *name;
    enum close_reason reason;
    uint32_t delay_us;
    uint32_t matrices;
    uint32_t deadline_ms; /* 0: none */
    bool end_of_set;
    bool drain;
    uint32_t wait_ms; /* at least so long it waits */
} closings[] = {
    { "idle", CLOSE_IDLE, 0, 1, 0, false, false, 0 },
    { "full", CLOSE_FULL, FOREVER_US, FULL_SLOTS, 0, false, false, 0 },
    { "end_of_set", CLOSE_END_OF_SET, FOREVER_US, 1, 0, true, false, 0 },
    { "deadline", CLOSE_DEADLINE, FOREVER_US, 1, 2000, false, false, 500 },
    { "delay", CLOSE_DELAY, 30000, 1, 0, false, false, 30 },
    { "drain", CLOSE_DRAIN, FOREVER_US, 1, 0, false, true, 0 },
};

START_TEST(every_reason_closes_a_bucket)
{
    struct scheduler_settings settings = usual;
    struct work *work;
    uint64_t waited_ns;

    settings.delay_us = closings[_i].delay_us;
    settings.slots_max = FULL_SLOTS;
    open_world(&settings);
    add_device(fire_cpu_backend());
    work = make(16, 16, closings[_i].matrices, 1, 0);
    work->job.end_of_set = closings[_i].end_of_set;
    if (closings[_i].deadline_ms)
        work->job.deadline_ns = clock_now_ns() + closings[_i].deadline_ms * CLOCK_NS_PER_MS;
    submit(work);
    if (closings[_i].drain) {
        ck_assert_uint_eq(scheduler_waiting(world.scheduler), 1);
        scheduler_drain(world.scheduler);
    }
    wait_for(1);
    waited_ns = work->job.started_ns - work->job.submitted_ns;
    ck_assert_int_eq(work->status, FIRE_OK);
    ck_assert_str_eq(close_reason_name(work->job.close_reason), closings[_i].name);
    ck_assert_uint_ge(waited_ns, closings[_i].wait_ms * CLOCK_NS_PER_MS);
    ck_assert_double_eq(metrics_value(world.metrics, METRIC_BATCHES, closings[_i].name, NULL), 1);
    work_close(work);
    close_world();
}
END_TEST

/* A held scheduler starts nothing; its release starts all of it as one batch. */
START_TEST(jobs_of_one_call_go_together)
{
    struct scheduler_settings settings = usual;
    struct work *works[8];

    settings.batch_target_us = 1000000; /* eight are no full batch anywhere */
    open_world(&settings);
    add_device(fire_cpu_backend());
    scheduler_hold(world.scheduler);
    for (uint32_t i = 0; i < 8; i++) {
        works[i] = make(48, 48, 1, i, 0);
        submit(works[i]);
    }
    ck_assert_uint_eq(scheduler_waiting(world.scheduler), 8);
    ck_assert_uint_eq(scheduler_running(world.scheduler), 0);
    scheduler_release(world.scheduler);
    wait_for(8);
    for (uint32_t i = 0; i < 8; i++) {
        ck_assert_uint_eq(works[i]->job.batch_size, 8);
        ck_assert_uint_eq(works[i]->job.batch_id, works[0]->job.batch_id);
    }
    for (uint32_t i = 0; i < 8; i++)
        work_close(works[i]);
    close_world();
}
END_TEST

/* --- what is not computed --------------------------------------------------------------------- */

START_TEST(a_cancelled_job_is_not_computed)
{
    struct work *large, *waiting, *behind;
    float first;

    open_usual();
    waiting = make(LARGE_SIDE, LARGE_SIDE, 1, 2, 0);
    behind = make(LARGE_SIDE, LARGE_SIDE, 1, 3, 0);
    first = waiting->weights[0];
    large = occupy();
    submit(waiting);
    submit(behind);
    ck_assert(scheduler_cancel(world.scheduler, &waiting->job));
    wait_for(2);
    ck_assert(!waiting->done);
    ck_assert(memcmp(&waiting->weights[0], &first, sizeof(first)) == 0);
    ck_assert_int_eq(large->status, FIRE_OK);
    ck_assert_int_eq(behind->status, FIRE_OK);
    ck_assert_double_eq(dropped("cancelled"), 1);
    work_close(large);
    work_close(waiting);
    work_close(behind);
    close_world();
}
END_TEST

/* Of a job that runs in part the rest is dropped, the part abandoned, and its end told after it. */
START_TEST(the_rest_of_a_running_job_is_cancelled)
{
    struct work *work;

    open_usual();
    work = make(LARGE_SIDE, LARGE_SIDE, 4, 2, 0);
    submit(work);
    ck_assert_uint_eq(scheduler_running(world.scheduler), 1);
    ck_assert_uint_eq(scheduler_waiting(world.scheduler), 3);
    ck_assert(!scheduler_cancel(world.scheduler, &work->job));
    ck_assert_uint_eq(scheduler_waiting(world.scheduler), 0);
    wait_for(1);
    ck_assert_int_eq(work->status, FIRE_CANCELLED);
    ck_assert_uint_eq(device_matrices(world.devices[0]), 0);
    ck_assert_double_eq(dropped("cancelled"), 4);
    work_close(work);
    close_world();
}
END_TEST

/* What runs and is wanted by nobody ends early; it counts as dropped, and its time is paid for. */
START_TEST(a_running_batch_that_nobody_wants_is_abandoned)
{
    struct work *large;

    open_usual();
    large = occupy();
    ck_assert(!scheduler_cancel(world.scheduler, &large->job));
    wait_for(1);
    ck_assert_int_eq(large->status, FIRE_CANCELLED);
    ck_assert_double_eq(dropped("cancelled"), 1);
    ck_assert_double_eq(metrics_value(world.metrics, METRIC_JOBS, "d", NULL), 0);
    ck_assert_double_gt(world.tenant[3]->device_seconds, 0);
    work_close(large);
    close_world();
}
END_TEST

/* A batch in which somebody's matrix is left runs on, and its numbers are the same. */
START_TEST(a_batch_that_somebody_wants_is_not_abandoned)
{
    float *alone = malloc(sizeof(*alone) * FLOOD_SIDE * FLOOD_SIDE);
    struct work *works[2];
    struct fire_plan plan;

    ck_assert_ptr_nonnull(alone);
    open_usual();
    for (uint32_t i = 0; i < 2; i++) {
        works[i] = make(FLOOD_SIDE, FLOOD_SIDE, 1, 30 + i, i);
        submit(works[i]);
    }
    ck_assert_uint_eq(scheduler_running(world.scheduler), 2);
    ck_assert(!scheduler_cancel(world.scheduler, &works[0]->job));
    wait_for(2);
    ck_assert_uint_eq(works[0]->job.batch_id, works[1]->job.batch_id);
    ck_assert_int_eq(works[0]->status, FIRE_CANCELLED);
    ck_assert_int_eq(works[1]->status, FIRE_OK);
    plan_make(&plan, FLOOD_SIDE, FLOOD_SIDE, NULL);
    project_alone(&plan, 31, alone);
    ck_assert_mem_eq(work_matrix(works[1], 0), alone, sizeof(*alone) * FLOOD_SIDE * FLOOD_SIDE);
    ck_assert_double_eq(dropped("cancelled"), 0);
    for (uint32_t i = 0; i < 2; i++)
        work_close(works[i]);
    free(alone);
    close_world();
}
END_TEST

/* While the device is busy its deadline passes: told in time, never computed, nothing written. */
START_TEST(an_expired_job_is_never_computed)
{
    struct work *large, *late, *rest;
    uint64_t deadline_ns;
    float first;

    open_usual();
    large = make(2 * LARGE_SIDE, 2 * LARGE_SIDE, 1, 99, 3);
    late = make(LARGE_SIDE, LARGE_SIDE, 2, 2, 0);
    first = late->weights[0];
    submit(large);
    deadline_ns = clock_now_ns() + 10 * CLOCK_NS_PER_MS;
    late->job.deadline_ns = deadline_ns;
    submit(late);
    wait_for(1);
    ck_assert(late->done);
    ck_assert(!large->done);
    ck_assert_uint_ge(clock_now_ns(), deadline_ns);
    ck_assert_int_eq(late->status, FIRE_TOO_LATE);
    ck_assert(memcmp(&late->weights[0], &first, sizeof(first)) == 0);
    ck_assert_double_eq(dropped("expired"), 2);
    rest = make(32, 32, 1, 3, 0);
    rest->job.deadline_ns = clock_now_ns();
    ck_assert_int_eq(scheduler_submit(world.scheduler, &rest->job, NULL), FIRE_TOO_LATE);
    wait_for(2);
    ck_assert_uint_eq(device_matrices(world.devices[0]), 1);
    work_close(large);
    work_close(late);
    work_close(rest);
    close_world();
}
END_TEST

START_TEST(too_many_jobs_are_refused)
{
    struct scheduler_settings settings = usual;
    struct work *works[9];
    struct fire_error error = { 0 };

    settings.jobs_max = 8;
    settings.delay_us = FOREVER_US;
    open_world(&settings);
    works[8] = make(32, 32, 1, 8, 0);
    ck_assert_int_eq(scheduler_submit(world.scheduler, &works[8]->job, &error), FIRE_DEVICE_LOST);
    add_device(fire_cpu_backend());
    for (uint32_t i = 0; i < 8; i++) {
        works[i] = make(32, 32, 1, i, 0);
        submit(works[i]);
    }
    ck_assert_int_eq(scheduler_submit(world.scheduler, &works[8]->job, &error), FIRE_BUSY);
    ck_assert_ptr_nonnull(strstr(error.message, "try again"));
    ck_assert_uint_ge(scheduler_retry_ms(world.scheduler), 1);
    ck_assert(scheduler_cancel(world.scheduler, &works[0]->job));
    submit(works[8]);
    scheduler_drain(world.scheduler);
    wait_for(8);
    for (uint32_t i = 0; i < 9; i++)
        work_close(works[i]);
    close_world();
}
END_TEST

/* --- who goes first --------------------------------------------------------------------------- */

#define FLOOD 128u /* jobs that a flooding tenant always has */

struct flood {
    struct work *works[FLOOD];
    bool stopped;
};

static void on_flood_done(struct job *job, enum fire_status status)
{
    struct flood *flood = job->data;

    ck_assert_int_eq(status, FIRE_OK);
    world.done++;
    if (!flood->stopped)
        ck_assert_int_eq(scheduler_submit(world.scheduler, job, NULL), FIRE_OK);
}

/* Resubmits each job as it ends, result as new weights: an isometry costs what it costs every time,
 * after the first. */
static void flood_start(struct flood *flood, uint32_t out, uint32_t in, uint32_t matrices,
                        uint32_t tenant)
{
    flood->stopped = false;
    for (uint32_t i = 0; i < FLOOD; i++) {
        flood->works[i] = make(out, in, matrices, 100 * i, tenant);
        flood->works[i]->job.done = on_flood_done;
        flood->works[i]->job.data = flood;
        submit(flood->works[i]);
    }
}

/* Opens a world in which a tenant that floods always has something waiting: batches are so small
 * that those which run or have just ended are less than it has. */
static void open_fair(void)
{
    struct scheduler_settings settings = usual;

    settings.batch_target_us = 2000;
    settings.slots_max = FLOOD / 8;
    open_world(&settings);
    add_device(fire_cpu_backend());
}

static void flood_close(struct flood *flood)
{
    for (uint32_t i = 0; i < FLOOD; i++)
        work_close(flood->works[i]);
}

static void wait_idle(void)
{
    while (scheduler_waiting(world.scheduler) || scheduler_running(world.scheduler))
        uv_run(&world.loop, UV_RUN_ONCE);
}

static const struct {
    const char *name;
    uint32_t out[2], in[2];
    uint32_t matrices[2];
} floods[] = {
    { "the same shape", { 128, 128 }, { 128, 128 }, { 1, 1 } },
    { "different shapes", { 128, 160 }, { 128, 128 }, { 1, 1 } },
    { "large against small", { FLOOD_SIDE, 64 }, { FLOOD_SIDE, 64 }, { 1, 16 } },
};

START_TEST(device_time_follows_the_weights)
{
    struct flood one, three;
    double start[2], ratio;

    open_fair();
    world.tenant[1]->limits.weight = 3;
    flood_start(&one, floods[_i].out[0], floods[_i].in[0], floods[_i].matrices[0], 0);
    flood_start(&three, floods[_i].out[1], floods[_i].in[1], floods[_i].matrices[1], 1);
    wait_for(200);
    start[0] = world.tenant[0]->device_seconds;
    start[1] = world.tenant[1]->device_seconds;
    /* Long enough that a batch which the machine held up weighs little. */
    while (device_busy_s(world.devices[0]) < start[0] + start[1] + FAIR_S)
        uv_run(&world.loop, UV_RUN_ONCE);
    ratio =
        (world.tenant[1]->device_seconds - start[1]) / (world.tenant[0]->device_seconds - start[0]);
    ck_assert_msg(ratio > 2.7 && ratio < 3.3, "%s: 1 : %.3f", floods[_i].name, ratio);
    one.stopped = three.stopped = true;
    wait_idle();
    flood_close(&one);
    flood_close(&three);
    close_world();
}
END_TEST

/* A tenant that idled while another worked gets its half from then on, not the time it missed. */
START_TEST(idling_earns_no_credit)
{
    struct flood worker, idler;
    double start[2], ratio;

    open_fair();
    flood_start(&worker, 128, 128, 1, 0);
    wait_for(500);
    flood_start(&idler, 128, 144, 1, 1);
    wait_for(world.done + 100);
    start[0] = world.tenant[0]->device_seconds;
    start[1] = world.tenant[1]->device_seconds;
    wait_for(world.done + 1000);
    ratio =
        (world.tenant[1]->device_seconds - start[1]) / (world.tenant[0]->device_seconds - start[0]);
    ck_assert_msg(ratio > 0.8 && ratio < 1.25, "1 : %.3f", ratio);
    worker.stopped = idler.stopped = true;
    wait_idle();
    flood_close(&worker);
    flood_close(&idler);
    close_world();
}
END_TEST

/* Ten large matrices of one tenant wait; a small one of another ends before the one that runs. */
START_TEST(a_small_job_does_not_wait_for_large_ones)
{
    struct work *large[10], *small;

    open_usual();
    small = make(SMALL_SIDE, SMALL_SIDE, 1, 77, 1);
    for (uint32_t i = 0; i < 10; i++)
        large[i] = make(LARGE_SIDE, LARGE_SIDE, 1, i, 0);
    for (uint32_t i = 0; i < 10; i++)
        submit(large[i]);
    submit(small);
    ck_assert_uint_eq(scheduler_running(world.scheduler), 2);
    wait_for(11);
    ck_assert_uint_eq(small->order, 0);
    for (uint32_t i = 0; i < 10; i++)
        work_close(large[i]);
    work_close(small);
    close_world();
}
END_TEST

/* The classes of one tenant, submitted in the wrong order while the device is busy. */
START_TEST(classes_order_the_jobs_of_a_tenant)
{
    static const enum job_priority wrong[] = { JOB_BULK, JOB_NORMAL, JOB_INTERACTIVE };
    struct work *large, *works[3];

    open_usual();
    for (uint32_t i = 0; i < 3; i++) {
        works[i] = make(LARGE_SIDE - 256 * i, LARGE_SIDE, 1, i, 0); /* three buckets */
        works[i]->job.priority = wrong[i];
    }
    large = occupy();
    for (uint32_t i = 0; i < 3; i++)
        submit(works[i]);
    wait_for(4);
    ck_assert_uint_eq(works[2]->order, 1);
    ck_assert_uint_eq(works[1]->order, 2);
    ck_assert_uint_eq(works[0]->order, 3);
    for (uint32_t i = 0; i < 3; i++)
        work_close(works[i]);
    work_close(large);
    close_world();
}
END_TEST

/* Bulk goes after another tenant's later normal job; once it has aged, by fairness alone. */
static const struct {
    uint32_t age_ms;
    uint32_t bulk_order;
} ageing[] = { { 100000, 2 }, { 0, 1 } };

START_TEST(bulk_ages)
{
    struct scheduler_settings settings = usual;
    struct work *large, *bulk, *normal;

    settings.bulk_age_ms = ageing[_i].age_ms;
    open_world(&settings);
    add_device(fire_cpu_backend());
    bulk = make(LARGE_SIDE, LARGE_SIDE - 256, 1, 1, 0);
    bulk->job.priority = JOB_BULK;
    normal = make(LARGE_SIDE, LARGE_SIDE - 512, 1, 2, 1);
    large = occupy();
    submit(bulk);
    submit(normal);
    world.tenant[1]->virtual_seconds += 1e-6; /* fairness prefers the bulk job's tenant */
    wait_for(3);
    ck_assert_uint_eq(bulk->order, ageing[_i].bulk_order);
    work_close(large);
    work_close(bulk);
    work_close(normal);
    close_world();
}
END_TEST

/* Spare slots of a batch go to bulk too. */
START_TEST(bulk_fills_spare_slots)
{
    struct work *large, *bulk, *normal;

    open_usual();
    bulk = make(40, 40, 3, 1, 0);
    bulk->job.priority = JOB_BULK;
    normal = make(40, 40, 2, 2, 1);
    large = occupy();
    scheduler_hold(world.scheduler);
    submit(bulk);
    submit(normal);
    scheduler_release(world.scheduler);
    wait_for(3);
    ck_assert_uint_eq(bulk->job.batch_id, normal->job.batch_id);
    ck_assert_uint_eq(normal->job.batch_size, 5);
    work_close(large);
    work_close(bulk);
    work_close(normal);
    close_world();
}
END_TEST

/* A tenant over its device share waits while another has work, and is served when none has. */
START_TEST(a_device_share_is_kept_against_others)
{
    struct flood limited, other;
    double start[2], share;

    open_fair();
    world.tenant[0]->limits.device_share_max = 0.1;
    flood_start(&limited, 128, 128, 1, 0);
    flood_start(&other, 128, 144, 1, 1);
    while (device_busy_s(world.devices[0]) < 3)
        uv_run(&world.loop, UV_RUN_ONCE);
    start[0] = world.tenant[0]->device_seconds;
    start[1] = world.tenant[1]->device_seconds;
    while (device_busy_s(world.devices[0]) < 5)
        uv_run(&world.loop, UV_RUN_ONCE);
    start[0] = world.tenant[0]->device_seconds - start[0];
    start[1] = world.tenant[1]->device_seconds - start[1];
    share = start[0] / (start[0] + start[1]);
    ck_assert_msg(share > 0.03 && share < 0.2, "a share of %.3f instead of 0.1", share);
    other.stopped = true;
    start[0] = world.tenant[0]->device_seconds;
    while (world.tenant[0]->device_seconds < start[0] + 0.5)
        uv_run(&world.loop, UV_RUN_ONCE); /* alone it is not held back */
    limited.stopped = true;
    wait_idle();
    flood_close(&limited);
    flood_close(&other);
    close_world();
}
END_TEST

/* --- what it says ----------------------------------------------------------------------------- */

START_TEST(estimates_grow_with_what_waits)
{
    struct bucket_info infos[4];
    struct work *large, *works[20];
    struct fire_plan plan;
    double empty, busy, full, wait;

    open_usual();
    plan_make(&plan, 512, 512, NULL);
    empty = scheduler_estimate_s(world.scheduler, world.tenant[1], &plan, 1);
    ck_assert_double_gt(empty, 0);
    ck_assert_double_gt(scheduler_estimate_s(world.scheduler, world.tenant[1], &plan, 50), empty);
    ck_assert_double_eq(scheduler_wait_s(world.scheduler, world.tenant[1]), 0);
    for (uint32_t i = 0; i < 20; i++)
        works[i] = make(512, 512, 1, i, 0);
    large = occupy();
    busy = scheduler_estimate_s(world.scheduler, world.tenant[1], &plan, 1);
    ck_assert_double_gt(busy, empty);
    for (uint32_t i = 0; i < 20; i++)
        submit(works[i]);
    full = scheduler_estimate_s(world.scheduler, world.tenant[0], &plan, 1);
    ck_assert_double_gt(full, busy);
    wait = scheduler_wait_s(world.scheduler, world.tenant[0]);
    ck_assert_double_gt(wait, 0);
    ck_assert_double_lt(wait, full);
    ck_assert_double_lt(scheduler_wait_s(world.scheduler, world.tenant[1]), wait);
    /* Another tenant waits for its fair part of that only. */
    ck_assert_double_lt(scheduler_estimate_s(world.scheduler, world.tenant[1], &plan, 1), full);
    ck_assert_uint_eq(scheduler_buckets(world.scheduler, infos, 4), 2);
    ck_assert_str_eq(infos[0].key, "f32 512x512");
    ck_assert_uint_eq(infos[0].waiting, 20);
    ck_assert_uint_eq(infos[0].oldest_ns, works[0]->job.submitted_ns);
    ck_assert_uint_eq(scheduler_buckets(world.scheduler, infos, 1), 1);
    wait_for(21);
    ck_assert_double_eq(metrics_value(world.metrics, METRIC_JOBS, "a", NULL), 20);
    ck_assert_double_eq_tol(metrics_value(world.metrics, METRIC_DEVICE_SECONDS, "a", NULL),
                            world.tenant[0]->device_seconds, 1e-9);
    ck_assert_double_eq_tol(world.tenant[0]->device_seconds + world.tenant[3]->device_seconds,
                            device_busy_s(world.devices[0]), 1e-9);
    for (uint32_t i = 0; i < 20; i++)
        work_close(works[i]);
    work_close(large);
    close_world();
}
END_TEST

/* --- on the loop ------------------------------------------------------------------------------ */

static uint32_t lent; /* batches that were run on the caller's thread */

static bool count_here(struct fire_device *device, struct fire_batch *batch)
{
    const bool done = fire_cpu_backend()->run_here(device, batch);

    lent += done;
    return done;
}

static const struct {
    const char *name;
    uint32_t side, matrices, beside; /* other jobs of the same turn */
    bool alone, lent;
} lendings[] = {
    { "the only job of the only call", SMALL_SIDE / 4, 1, 0, true, true },
    { "one of several calls", SMALL_SIDE / 4, 1, 0, false, false },
    { "one of several jobs", SMALL_SIDE / 4, 1, 1, true, false },
    { "many matrices, which the pool shares", SMALL_SIDE / 4, 100, 0, true, false },
    { "a large matrix", FLOOD_SIDE, 1, 0, true, false },
};

/* One turn of the loop in which the jobs of this case are submitted; then waits for their ends. */
static void lend_once(int index)
{
    struct work *works[2];
    struct fire_plan plan;
    const uint32_t side = lendings[index].side, count = lendings[index].beside + 1;

    world.done = 0;
    scheduler_hold(world.scheduler);
    for (uint32_t i = 0; i < count; i++) {
        works[i] = make(side, side, lendings[index].matrices, 500 + i, 0);
        works[i]->job.alone = lendings[index].alone;
        works[i]->job.end_of_set = true;
        submit(works[i]);
    }
    scheduler_release(world.scheduler);
    ck_assert_uint_eq(world.done, 0);
    ck_assert_uint_gt(scheduler_running(world.scheduler), 0);
    wait_for(count);
    for (uint32_t i = 0; i < count; i++) {
        float *expected = malloc(sizeof(*expected) * side * side);

        ck_assert_ptr_nonnull(expected);
        plan_make(&plan, side, side, NULL);
        project_alone(&plan, 500 + i, expected);
        ck_assert_int_eq(works[i]->status, FIRE_OK);
        ck_assert_mem_eq(work_matrix(works[i], 0), expected, sizeof(*expected) * side * side);
        free(expected);
        work_close(works[i]);
    }
}

/* The loop computes what would take longer to be handed to another thread, and nothing else. The
 * answer comes in a later turn, like any other. A first estimate may be far off; batches teach. */
START_TEST(a_short_job_that_is_alone_runs_on_the_loop)
{
    struct fire_backend backend = *fire_cpu_backend();

    backend.run_here = count_here;
    lent = 0;
    open_world(&usual);
    add_device(&backend);
    for (uint32_t i = 0; i < LEND_ROUNDS && !lent; i++)
        lend_once(_i);
    ck_assert_msg((lent > 0) == lendings[_i].lent, "%s", lendings[_i].name);
    close_world();
}
END_TEST

/* --- devices that fail ------------------------------------------------------------------------ */

static int fail_after; /* batches that still work; below 0: all do */
static enum fire_status fail_with;

/* The CPU's, but without computing once `fail_after` is used up. */
static enum fire_status submit_until(struct fire_device *device, struct fire_batch *batch)
{
    if (fail_after == 0)
        return fail_with;
    fail_after -= fail_after > 0;
    return fire_cpu_backend()->submit(device, batch);
}

static struct fire_backend failing_backend(void)
{
    struct fire_backend backend = *fire_cpu_backend();

    fail_after = -1;
    backend.submit = submit_until;
    return backend;
}

/* What was with the lost device is computed by the other, whose results are the same. */
START_TEST(a_lost_devices_work_is_done_by_another)
{
    struct fire_backend backend = failing_backend();
    struct work *works[30];
    struct fire_plan plan;
    float alone[48 * 48];

    open_world(&usual);
    add_device(&backend);
    add_device(fire_cpu_backend());
    fail_after = 1;
    fail_with = FIRE_DEVICE_LOST;
    plan_make(&plan, 48, 48, NULL);
    for (uint32_t i = 0; i < 30; i++) {
        works[i] = make(48, 48, 100, 1000 * i, i % 2);
        submit(works[i]);
    }
    wait_for(30);
    ck_assert(!device_in_service(world.devices[0]));
    ck_assert(device_in_service(world.devices[1]));
    ck_assert_uint_gt(device_matrices(world.devices[1]), 2000);
    for (uint32_t i = 0; i < 30; i++) {
        ck_assert_int_eq(works[i]->status, FIRE_OK);
        for (uint32_t j = 0; j < 100; j += 33) {
            project_alone(&plan, 1000 * i + j, alone);
            ck_assert_mem_eq(work_matrix(works[i], j), alone, sizeof(alone));
        }
        work_close(works[i]);
    }
    close_world();
}
END_TEST

START_TEST(the_last_device_lost_fails_everything)
{
    struct fire_backend backend = failing_backend();
    struct work *works[30];

    open_world(&usual);
    add_device(&backend);
    fail_after = 2;
    fail_with = FIRE_DEVICE_LOST;
    scheduler_hold(world.scheduler);
    for (uint32_t i = 0; i < 30; i++) {
        works[i] = make(256, 256, 2, i, i % TENANTS);
        works[i]->job.deadline_ns = clock_now_ns() + 60 * CLOCK_NS_PER_S;
        submit(works[i]);
    }
    scheduler_release(world.scheduler);
    wait_for(30);
    ck_assert_int_eq(works[29]->status, FIRE_DEVICE_LOST);
    ck_assert_int_eq(scheduler_submit(world.scheduler, &works[0]->job, NULL), FIRE_DEVICE_LOST);
    for (uint32_t i = 0; i < 30; i++)
        work_close(works[i]);
    close_world();
}
END_TEST

static uint32_t memory_slots; /* a batch of more has no memory */

static enum fire_status submit_small(struct fire_device *device, struct fire_batch *batch)
{
    if (batch->slot_count > memory_slots)
        return FIRE_NO_MEMORY;
    return fire_cpu_backend()->submit(device, batch);
}

static const struct {
    uint32_t slots;
    enum fire_status status;
} memories[] = { { 20, FIRE_OK }, { 1, FIRE_OK }, { 0, FIRE_NO_MEMORY } };

/* Without memory for a batch its halves are tried; what does not go alone is refused. */
START_TEST(a_batch_without_memory_is_split)
{
    struct fire_backend backend = *fire_cpu_backend();
    struct work *work;
    struct fire_plan plan;
    float alone[64 * 64];

    memory_slots = UINT32_MAX;
    backend.submit = submit_small;
    open_world(&usual);
    add_device(&backend);
    memory_slots = memories[_i].slots;
    plan_make(&plan, 64, 64, NULL);
    work = make(64, 64, 100, 0, 0);
    submit(work);
    wait_for(1);
    ck_assert_int_eq(work->status, memories[_i].status);
    ck_assert(device_in_service(world.devices[0]));
    for (uint32_t i = 0; i < 100 && work->status == FIRE_OK; i += 9) {
        project_alone(&plan, i, alone);
        ck_assert_mem_eq(work_matrix(work, i), alone, sizeof(alone));
    }
    work_close(work);
    close_world();
}
END_TEST

/* --- everything at once ----------------------------------------------------------------------- */

#define STORM_JOBS  600u
#define STORM_STEPS 6000u

struct storm_job {
    struct work *work;
    bool submitted;
};

static struct storm_job storm[STORM_JOBS];

static void storm_submit(struct storm_job *one, struct fire_random *random)
{
    one->work->job.tenant = world.tenant[fire_random_u64(random) % TENANTS];
    one->work->job.priority = fire_random_u64(random) % JOB_PRIORITY_COUNT;
    one->work->job.end_of_set = fire_random_u64(random) % 4 == 0;
    one->work->job.deadline_ns = fire_random_u64(random) % 3
                                     ? CLOCK_NEVER_NS
                                     : clock_now_ns() + fire_random_u64(random) % 40000000;
    one->work->done = false;
    one->submitted = scheduler_submit(world.scheduler, &one->work->job, NULL) == FIRE_OK;
}

static const uint32_t storm_delays_us[] = { 0, 500 };

/* Random jobs, deadlines and cancellations: each job ends once, and nothing is left. */
START_TEST(a_storm_leaves_nothing_behind)
{
    static const uint32_t sides[] = { 4, 16, 33, 64, 96, 150 };
    struct scheduler_settings settings = usual;
    struct fire_random random;
    uint32_t taken_back = 0;

    settings.delay_us = storm_delays_us[_i];
    settings.jobs_max = STORM_JOBS / 2;
    open_world(&settings);
    add_device(fire_cpu_backend());
    world.tenant[0]->limits.device_share_max = 0.2;
    world.tenant[1]->limits.weight = 5;
    fire_random_init(&random, 11 + (uint64_t)_i);
    for (uint32_t i = 0; i < STORM_JOBS; i++) {
        const uint32_t side = sides[fire_random_u64(&random) % 6];

        storm[i].work = make(side, sides[fire_random_u64(&random) % 6],
                             1 + (uint32_t)(fire_random_u64(&random) % 9), i, 0);
    }
    for (uint32_t step = 0; step < STORM_STEPS; step++) {
        struct storm_job *one = &storm[fire_random_u64(&random) % STORM_JOBS];

        if (one->submitted && one->work->done)
            one->submitted = false;
        if (!one->submitted) {
            storm_submit(one, &random);
        } else if (fire_random_u64(&random) % 4 == 0 &&
                   scheduler_cancel(world.scheduler, &one->work->job)) {
            one->submitted = false;
            taken_back++;
        }
        if (step % 16 == 0)
            uv_run(&world.loop, UV_RUN_NOWAIT);
    }
    scheduler_drain(world.scheduler);
    wait_idle();
    ck_assert_uint_gt(taken_back, 0);
    for (uint32_t i = 0; i < STORM_JOBS; i++) {
        ck_assert(!storm[i].submitted || storm[i].work->done);
        work_close(storm[i].work);
    }
    close_world();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scheduler");
    TCase *tests = tcase_create("scheduler");
    TCase *shares = tcase_create("shares");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 1200);
    tcase_set_timeout(shares, 1200);
    tcase_add_loop_test(tests, results_are_those_of_the_client, 0, 5);
    tcase_add_loop_test(tests, results_do_not_depend_on_batch_mates, 0, 5);
    tcase_add_test(tests, a_large_job_is_dealt_out_over_batches);
    tcase_add_test(tests, without_batching_every_job_is_a_batch);
    tcase_add_test(tests, a_matrix_to_be_shared_waits_a_moment_for_company);
    tcase_add_loop_test(tests, every_reason_closes_a_bucket, 0, 6);
    tcase_add_test(tests, jobs_of_one_call_go_together);
    tcase_add_test(tests, a_cancelled_job_is_not_computed);
    tcase_add_test(tests, the_rest_of_a_running_job_is_cancelled);
    tcase_add_test(tests, a_running_batch_that_nobody_wants_is_abandoned);
    tcase_add_test(tests, a_batch_that_somebody_wants_is_not_abandoned);
    tcase_add_test(tests, an_expired_job_is_never_computed);
    tcase_add_test(tests, too_many_jobs_are_refused);
    tcase_add_loop_test(shares, device_time_follows_the_weights, 0, 3);
    tcase_add_test(shares, idling_earns_no_credit);
    tcase_add_test(tests, a_small_job_does_not_wait_for_large_ones);
    tcase_add_test(tests, classes_order_the_jobs_of_a_tenant);
    tcase_add_loop_test(tests, bulk_ages, 0, 2);
    tcase_add_test(tests, bulk_fills_spare_slots);
    tcase_add_test(shares, a_device_share_is_kept_against_others);
    tcase_add_test(tests, estimates_grow_with_what_waits);
    tcase_add_loop_test(tests, a_short_job_that_is_alone_runs_on_the_loop, 0,
                        sizeof(lendings) / sizeof(lendings[0]));
    tcase_add_test(tests, a_lost_devices_work_is_done_by_another);
    tcase_add_test(tests, the_last_device_lost_fails_everything);
    tcase_add_loop_test(tests, a_batch_without_memory_is_split, 0, 3);
    tcase_add_loop_test(tests, a_storm_leaves_nothing_behind, 0, 2);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, shares);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
