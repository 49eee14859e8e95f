/* device_trial: shapes small enough that start-up is not felt, of each way the backends compute. */
#include "device_trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "options.h"
#include "polar_ref.h"
#include "random.h"

#define TOLERANCE 1e-4 /* of the reference's norm */
#define ROUNDS    3u   /* the fastest counts; the first one warms up */
#define SLOTS_MAX 256u
#define FEW       16u

#define FEW_SECONDS 0.02
#define SLOW_S      0.5 /* one round is enough */

static const struct trial {
    uint32_t out;
    uint32_t in;
    uint32_t matrices;
} selftests[] = { { 8, 8, 20 }, { 24, 20, 3 }, { 40, 48, 3 }, { 72, 64, 2 } },
  calibrations[] = { { 4, 4, 256 }, { 32, 32, 64 }, { 128, 128, 8 }, { 512, 512, 1 } };
#define COUNT_OF(list) (sizeof(list) / sizeof((list)[0]))

/* One batch, in memory of the backend. */
struct run {
    const struct fire_backend *backend;
    struct fire_device *device;
    struct fire_plan plan;
    struct fire_batch batch;
    struct fire_slot slots[SLOTS_MAX];
    struct fire_result results[SLOTS_MAX];
    size_t elements; /* of a matrix */
    float *weights;  /* of all */
    float *before;
};

static void run_close(struct run *run)
{
    if (!run)
        return;
    if (run->weights)
        run->backend->host_free(run->device, run->weights);
    free(run->before);
    free(run);
}

static enum fire_status run_open(const struct fire_backend *backend, struct fire_device *device,
                                 const struct trial *trial, struct run **out,
                                 struct fire_error *error)
{
    const struct fire_view view = { .rows = trial->out,
                                    .cols = trial->in,
                                    .row_stride = trial->in,
                                    .col_stride = 1,
                                    .fan_in = trial->in,
                                    .fan_out = trial->out,
                                    .tap_count = 1 };
    struct run *run = calloc(1, sizeof(*run));
    struct fire_options options;
    struct fire_random random;
    enum fire_status status;
    size_t count;

    *out = run;
    if (!run)
        return fire_fail_memory(error, sizeof(*run));
    run->backend = backend;
    run->device = device;
    status = fire_options_preset(&options, "fire", error);
    if (status == FIRE_OK)
        status =
            fire_plan_make(&run->plan, &options, &view, FIRE_F32, FIRE_STATISTICS_BASIC, error);
    if (status != FIRE_OK)
        return status;
    run->elements = (size_t)run->plan.rows * run->plan.cols;
    count = run->elements * trial->matrices;
    run->weights = backend->host_alloc(device, count * sizeof(run->weights[0]));
    run->before = malloc(count * sizeof(run->before[0]));
    if (!run->weights || !run->before)
        return fire_fail_memory(error, count * sizeof(run->weights[0]));
    fire_random_init(&random, trial->out);
    for (size_t i = 0; i < count; i++)
        run->before[i] = (float)fire_random_normal(&random);
    run->batch = (struct fire_batch){ .plan = &run->plan,
                                      .slots = run->slots,
                                      .slot_count = trial->matrices };
    return FIRE_OK;
}

/* Puts the weights there anew and runs them. */
static enum fire_status run_once(struct run *run, double *seconds)
{
    enum fire_status status;
    uint64_t start_ns;

    memcpy(run->weights, run->before,
           run->elements * run->batch.slot_count * sizeof(run->weights[0]));
    for (uint32_t i = 0; i < run->batch.slot_count; i++) {
        fire_result_init(&run->results[i]);
        run->slots[i] = (struct fire_slot){ .weights = run->weights + i * run->elements,
                                            .result = &run->results[i] };
    }
    start_ns = clock_now_ns();
    status = run->backend->submit(run->device, &run->batch);
    if (status == FIRE_OK)
        status = run->backend->wait(run->device, &run->batch);
    *seconds = (double)(clock_now_ns() - start_ns) / 1e9;
    return status;
}

/* ||slot - reference||_F / ||reference||_F of matrix `index`. */
static enum fire_status deviation(const struct run *run, uint32_t index, double *relative)
{
    double *weights = malloc(2 * run->elements * sizeof(*weights));
    double distance = 0, norm = 0;
    enum fire_status status;
    double *wanted;

    if (!weights)
        return FIRE_NO_MEMORY;
    wanted = weights + run->elements;
    for (size_t i = 0; i < run->elements; i++)
        weights[i] = (double)run->before[index * run->elements + i];
    status = fire_plan_ref(&run->plan, weights, NULL, wanted);
    for (size_t i = 0; i < run->elements && status == FIRE_OK; i++) {
        const double error = (double)run->weights[index * run->elements + i] - wanted[i];

        distance += error * error;
        norm += wanted[i] * wanted[i];
    }
    *relative = sqrt(distance / norm);
    free(weights);
    return status;
}

static enum fire_status try_shape(const struct fire_backend *backend, struct fire_device *device,
                                  const struct trial *trial, struct fire_error *error)
{
    double seconds, relative = 0;
    struct run *run;
    enum fire_status status = run_open(backend, device, trial, &run, error);

    if (status == FIRE_OK) {
        status = run_once(run, &seconds);
        for (uint32_t i = 0; i < trial->matrices && status == FIRE_OK; i++) {
            status = deviation(run, i, &relative);
            if (status == FIRE_OK && !(relative <= TOLERANCE))
                status = FIRE_DEVICE_LOST;
        }
        if (status != FIRE_OK)
            fire_fail(error, status, "device",
                      "%s failed its self-test on a %u x %u matrix (%s, deviation %.2g, allowed "
                      "%.0e): do not use this device, try another path",
                      backend->name, trial->out, trial->in, fire_status_name(status), relative,
                      TOLERANCE);
    }
    run_close(run);
    return status;
}

enum fire_status device_selftest(const struct fire_backend *backend, struct fire_device *device,
                                 struct fire_error *error)
{
    for (size_t i = 0; i < COUNT_OF(selftests); i++) {
        const enum fire_status status = try_shape(backend, device, &selftests[i], error);

        if (status != FIRE_OK)
            return status;
    }
    return FIRE_OK;
}

/* The fastest of some rounds. */
static enum fire_status time_shape(const struct fire_backend *backend, struct fire_device *device,
                                   const struct trial *trial, struct fire_plan *plan, double *best,
                                   struct fire_error *error)
{
    struct run *run;
    enum fire_status status = run_open(backend, device, trial, &run, error);

    *best = HUGE_VAL;
    for (uint32_t round = 0; round < ROUNDS && status == FIRE_OK; round++) {
        double seconds;

        if (isfinite(*best) && *best > SLOW_S)
            break;

        status = run_once(run, &seconds);
        *best = fmin(*best, seconds);
        if (status != FIRE_OK)
            fire_fail(error, status, "device", "%s could not run a %u x %u matrix (%s): %s",
                      backend->name, trial->out, trial->in, fire_status_name(status),
                      backend->last_error(device));
    }
    if (run)
        *plan = run->plan;
    run_close(run);
    return status;
}

enum fire_status device_calibrate(const struct fire_backend *backend, struct fire_device *device,
                                  struct cost_model *model, struct fire_error *error)
{
    static const struct trial smallest = { 1, 1, 1 };
    struct fire_plan plans[COUNT_OF(calibrations)];
    struct cost_sample samples[COUNT_OF(calibrations)];
    struct fire_caps caps = { 0 };
    double overhead_s;
    enum fire_status status = time_shape(backend, device, &smallest, &plans[0], &overhead_s, error);

    for (uint32_t i = 0; i < COUNT_OF(calibrations) && status == FIRE_OK; i++) {
        struct trial trial = calibrations[i];

        /* A device that is slow with a few of them is not asked for all. */
        if (trial.matrices > FEW) {
            trial.matrices /= FEW;
            status = time_shape(backend, device, &trial, &plans[i], &samples[i].seconds, error);
        }
        if (status == FIRE_OK &&
            (trial.matrices == calibrations[i].matrices || samples[i].seconds < FEW_SECONDS)) {
            trial = calibrations[i];
            status = time_shape(backend, device, &trial, &plans[i], &samples[i].seconds, error);
        }
        samples[i].plan = &plans[i];
        samples[i].matrix_count = trial.matrices;
    }
    if (status != FIRE_OK)
        return status;
    backend->caps(device, &caps);
    cost_calibrate(model, samples, COUNT_OF(calibrations), overhead_s, caps.threads);
    return FIRE_OK;
}
