#include "jobs.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "clock.h"
#include "random.h"

void plan_make(struct fire_plan *plan, uint32_t out, uint32_t in, const char *setting)
{
    const struct fire_view view = {
        .rows = out,
        .cols = in,
        .row_stride = in,
        .col_stride = 1,
        .fan_in = in,
        .fan_out = out,
        .tap_count = 1,
    };
    struct fire_error error = { 0 };
    struct fire_options options;

    ck_assert_int_eq(fire_options_preset(&options, "fire", &error), FIRE_OK);
    if (setting)
        ck_assert_msg(fire_options_set_pair(&options, setting, &error) == FIRE_OK, "%s",
                      error.message);
    ck_assert_msg(fire_plan_make(plan, &options, &view, FIRE_F32, FIRE_STATISTICS_BASIC, &error) ==
                      FIRE_OK,
                  "%s", error.message);
}

static void matrix_fill(float *weights, size_t elements, uint64_t seed)
{
    struct fire_random random;

    fire_random_init(&random, seed);
    for (size_t i = 0; i < elements; i++)
        weights[i] = (float)fire_random_normal(&random);
}

static void on_done(struct job *job, enum fire_status status)
{
    struct work *work = job->data;

    ck_assert_msg(!work->done, "done twice");
    work->done = true;
    work->status = status;
    if (work->done_count)
        work->order = (*work->done_count)++;
}

void work_fill(struct work *work, uint64_t seed)
{
    for (uint32_t i = 0; i < work->job.matrix_count; i++) {
        matrix_fill(work->weights + i * work->elements, work->elements, seed + i);
        fire_result_init(&work->results[i]);
    }
    work->done = false;
}

struct work *work_open(const struct fire_plan *plan, uint32_t matrix_count, uint64_t seed)
{
    struct work *work = calloc(1, sizeof(*work));

    ck_assert_ptr_nonnull(work);
    work->plan = *plan;
    work->elements = (size_t)plan->rows * plan->cols;
    work->slots = calloc(matrix_count, sizeof(work->slots[0]));
    work->results = calloc(matrix_count, sizeof(work->results[0]));
    work->weights = aligned_alloc(64, (matrix_count * work->elements * 4 + 63) / 64 * 64);
    ck_assert_ptr_nonnull(work->slots);
    ck_assert_ptr_nonnull(work->results);
    ck_assert_ptr_nonnull(work->weights);
    work->job = (struct job){ .plan = &work->plan,
                              .slots = work->slots,
                              .matrix_count = matrix_count,
                              .priority = JOB_NORMAL,
                              .deadline_ns = CLOCK_NEVER_NS,
                              .done = on_done,
                              .data = work };
    for (uint32_t i = 0; i < matrix_count; i++)
        work->slots[i] = (struct fire_slot){ .weights = work->weights + i * work->elements,
                                             .result = &work->results[i],
                                             .seed = seed + i };
    work_fill(work, seed);
    return work;
}

void work_close(struct work *work)
{
    free(work->slots);
    free(work->results);
    free(work->weights);
    free(work);
}

const float *work_matrix(const struct work *work, uint32_t index)
{
    return work->weights + index * work->elements;
}

void project_alone(const struct fire_plan *plan, uint64_t seed, float *weights)
{
    const struct fire_backend *backend = fire_cpu_backend();
    const struct fire_backend_settings settings = { .threads = 1, .path = "auto" };
    struct fire_result result;
    struct fire_slot slot = { .weights = weights, .result = &result, .seed = seed };
    struct fire_batch batch = { .plan = plan, .slots = &slot, .slot_count = 1 };
    struct fire_error error = { 0 };
    struct fire_device *device;

    matrix_fill(weights, (size_t)plan->rows * plan->cols, seed);
    fire_result_init(&result);
    ck_assert_msg(backend->open(&settings, &device, &error) == FIRE_OK, "%s", error.message);
    ck_assert_int_eq(backend->submit(device, &batch), FIRE_OK);
    ck_assert_int_eq(backend->wait(device, &batch), FIRE_OK);
    backend->close(device);
}
