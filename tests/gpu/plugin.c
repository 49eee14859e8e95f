/* plugin: one handle on the plugin for the whole process; Check runs without forks here. */
#define _GNU_SOURCE
#include "plugin.h"

#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtype.h"
#include "matrices.h"
#include "polar_ref.h"
#include "random.h"
#include "tensor.h"

#define SLOTS          2u
#define SLOT_BYTES     (96ull << 20)
#define REFERENCE_SIDE 96u /* larger ones are compared with the CPU in f64 */

static struct {
    const struct fire_backend *backend;
    const struct emulator_control *emulator;
} plugin;

bool plugin_load(void)
{
    const char *const path = getenv("FIRE_PLUGIN");
    void *const library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    void *const symbol = library ? dlsym(library, FIRE_PLUGIN_SYMBOL) : NULL;
    fire_plugin_backend_function function = NULL;

    if (!symbol) {
        printf("cannot load the plugin %s: %s\n", path ? path : "(FIRE_PLUGIN is not set)",
               path ? dlerror() : "");
        return false;
    }
    memcpy(&function, &symbol, sizeof(symbol));
    plugin.backend = function();
    plugin.emulator = emulator_access();
    if (!plugin.emulator)
        printf("the plugin runs on a real CUDA runtime, or none: set LD_LIBRARY_PATH\n");
    return plugin.emulator != NULL;
}

const struct fire_backend *plugin_backend(void)
{
    return plugin.backend;
}

const struct emulator_control *plugin_emulator(void)
{
    return plugin.emulator;
}

void plugin_calm(void)
{
    plugin.emulator->schedule("eager");
    plugin.emulator->fail_call(NULL, 0, 0);
    plugin.emulator->revive();
    plugin.emulator->model("H100");
    plugin.emulator->forget_complaints();
}

static void open_device(struct projector *projector, const struct fire_backend_settings *settings)
{
    struct fire_error error = { 0 };

    projector->backend = plugin.backend;
    ck_assert_uint_eq(plugin.backend->abi, FIRE_BACKEND_ABI);
    ck_assert_msg(plugin.backend->open(settings, &projector->device, &error) == FIRE_OK,
                  "cannot open: %s", error.message);
}

void plugin_open_with(struct projector *projector, const char *precision, uint32_t slots,
                      uint64_t slot_bytes)
{
    open_device(projector, &(struct fire_backend_settings){ .threads = 1,
                                                            .path = "auto",
                                                            .slots = slots,
                                                            .slot_bytes = slot_bytes,
                                                            .precision = precision });
}

void plugin_open_on(struct projector *projector, uint32_t ordinal)
{
    open_device(projector, &(struct fire_backend_settings){ .threads = 1,
                                                            .path = "auto",
                                                            .ordinal = ordinal,
                                                            .slots = 1,
                                                            .slot_bytes = SLOT_BYTES });
}

void plugin_open(struct projector *projector)
{
    plugin_open_with(projector, NULL, SLOTS, SLOT_BYTES);
}

/* --- batches */

void gpu_batch_init(struct gpu_batch *batch, const struct gpu_case *what, uint64_t seed)
{
    const struct fire_shape shape = { 2, { what->out, what->in } };
    struct fire_error error = { 0 };
    struct fire_random random;
    struct fire_view view;
    uint64_t count;

    memset(batch, 0, sizeof(*batch));
    options_make(&batch->options, what->preset, what->settings);
    batch->options.layout = FIRE_LAYOUT_OUT_IN;
    batch->options.stack = 0;
    ck_assert_msg(fire_view_count(&shape, &batch->options, &count, &error) == FIRE_OK, "%s",
                  error.message);
    fire_view_at(&shape, &batch->options, 0, &view);
    ck_assert_msg(fire_plan_make(&batch->plan, &batch->options, &view, what->output,
                                 what->plain ? 0 : FIRE_STATISTICS_BASIC | FIRE_STATISTICS_RESIDUAL,
                                 &error) == FIRE_OK,
                  "%s", error.message);
    batch->matrix_floats = (size_t)batch->plan.rows * batch->plan.cols;
    batch->weights = calloc(what->count * batch->matrix_floats, sizeof(float));
    batch->before = calloc(what->count * batch->matrix_floats, sizeof(float));
    batch->slots = calloc(what->count, sizeof(*batch->slots));
    batch->results = calloc(what->count, sizeof(*batch->results));
    ck_assert(batch->weights && batch->before && batch->slots && batch->results);
    fire_random_init(&random, seed);
    for (size_t i = 0; i < what->count * batch->matrix_floats; i++) {
        /* representable in whatever the weights are stored as */
        const float value = (float)fire_random_normal(&random);

        batch->before[i] = what->output == FIRE_F32 ? value : roundf(value * 64.0f) / 64.0f;
    }
    for (uint32_t i = 0; i < what->count; i++)
        batch->slots[i] = (struct fire_slot){ .weights = batch->weights + i * batch->matrix_floats,
                                              .result = &batch->results[i],
                                              .seed = seed + i };
    batch->batch = (struct fire_batch){ .plan = &batch->plan,
                                        .slots = batch->slots,
                                        .slot_count = what->count };
    gpu_batch_again(batch);
}

void gpu_batch_again(struct gpu_batch *batch)
{
    memcpy(batch->weights, batch->before,
           batch->batch.slot_count * batch->matrix_floats * sizeof(float));
    memset(batch->results, 0, batch->batch.slot_count * sizeof(*batch->results));
    batch->batch.finished = false;
    batch->batch.next = NULL;
    batch->batch.status = FIRE_OK;
}

void gpu_batch_release(struct gpu_batch *batch)
{
    free(batch->weights);
    free(batch->before);
    free(batch->slots);
    free(batch->results);
}

enum fire_status gpu_batch_run(struct projector *projector, struct gpu_batch *batch)
{
    const enum fire_status status = projector->backend->submit(projector->device, &batch->batch);

    return status == FIRE_OK ? projector->backend->wait(projector->device, &batch->batch) : status;
}

void gpu_batch_must_run(struct projector *projector, struct gpu_batch *batch)
{
    const enum fire_status status = gpu_batch_run(projector, batch);

    ck_assert_msg(status == FIRE_OK, "status %d: %s; %s", (int)status,
                  projector->backend->last_error(projector->device), plugin.emulator->complaint());
}

/* The reference: plain loops for small matrices, else the CPU backend in f64, which tests of its
 * own compare with those. */
static void reference(const struct gpu_batch *batch, const double *w, double *result)
{
    struct fire_plan plan = batch->plan;

    if (plan.cols <= REFERENCE_SIDE) {
        ck_assert_int_eq(fire_plan_ref(&plan, w, NULL, result), FIRE_OK);
        return;
    }
    struct projector cpu;
    struct fire_result found;
    struct fire_slot slot = { .weights = result, .result = &found, .seed = 1 };
    struct fire_batch single = { .plan = &plan, .slots = &slot, .slot_count = 1 };

    plan.compute = FIRE_F64;
    plan.output = FIRE_F64;
    plan.fast = false;
    plan.statistics = 0;
    if (plan.kind == FIRE_PLAN_CONVERGE)
        plan.target = 1e-18;
    plan.digest ^= 0x5A5A;
    memcpy(result, w, batch->matrix_floats * sizeof(double));
    projector_open(&cpu, "auto", 1);
    ck_assert_int_eq(cpu.backend->submit(cpu.device, &single), FIRE_OK);
    ck_assert_int_eq(cpu.backend->wait(cpu.device, &single), FIRE_OK);
    projector_close(&cpu);
}

double gpu_batch_error(struct gpu_batch *batch, uint32_t index)
{
    const size_t count = batch->matrix_floats;
    double *const w = matrix_alloc(count, 1);
    double *const want = matrix_alloc(count, 1);
    double *const have = matrix_alloc(count, 1);
    double error;

    matrix_from_f32(batch->before + index * count, count, w);
    matrix_from_f32(batch->weights + index * count, count, have);
    reference(batch, w, want);
    error = matrix_distance(have, want, count) / matrix_norm(want, count);
    free(w);
    free(want);
    free(have);
    return error;
}

bool gpu_batch_is_rounded(const struct gpu_batch *batch, uint32_t index)
{
    const float *const weights = batch->weights + index * batch->matrix_floats;

    for (size_t i = 0; i < batch->matrix_floats; i++) {
        const float value = weights[i];

        if ((batch->plan.output == FIRE_BF16 &&
             fire_bf16_to_f32(fire_f32_to_bf16(value)) != value) ||
            (batch->plan.output == FIRE_F16 && fire_f16_to_f32(fire_f32_to_f16(value)) != value))
            return false;
    }
    return true;
}

void plugin_check_clean(const char *where)
{
    struct emulator_counters now;

    plugin.emulator->counters(&now);
    ck_assert_msg(now.live_device_allocations == 0 && now.live_host_allocations == 0 &&
                      now.live_streams == 0 && now.live_events == 0 && now.live_graphs == 0 &&
                      now.live_handles == 0,
                  "%s: left alive: %llu device, %llu pinned, %llu streams, %llu events, %llu "
                  "graphs, %llu handles",
                  where, (unsigned long long)now.live_device_allocations,
                  (unsigned long long)now.live_host_allocations,
                  (unsigned long long)now.live_streams, (unsigned long long)now.live_events,
                  (unsigned long long)now.live_graphs, (unsigned long long)now.live_handles);
    ck_assert_msg(now.complaints == 0, "%s: %s", where, plugin.emulator->complaint());
}

int plugin_main(void (*add)(Suite *suite), const char *name)
{
    Suite *const suite = suite_create(name);
    SRunner *runner;
    int failed;

    if (!plugin_load())
        return 1;
    add(suite);
    runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    setvbuf(stdout, NULL, _IOLBF, 0); /* what was measured, as it is measured */
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
