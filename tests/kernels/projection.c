/* projection: the tensor is built in f32 or f64, so that what is tested is what users get. */
#include "projection.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "matrices.h"
#include "tensor.h"

#define SETTINGS_BYTES 256

void projector_open(struct projector *projector, const char *path, uint32_t threads)
{
    const struct fire_backend_settings settings = { .threads = threads, .path = path };
    struct fire_error error = { 0 };

    projector->backend = fire_cpu_backend();
    ck_assert_uint_eq(projector->backend->abi, FIRE_BACKEND_ABI);
    ck_assert_msg(projector->backend->open(&settings, &projector->device, &error) == FIRE_OK,
                  "cannot open path %s: %s", path, error.message);
}

void projector_close(struct projector *projector)
{
    projector->backend->close(projector->device);
    projector->device = NULL;
}

bool path_exists(const char *path)
{
#if defined(__x86_64__)
    if (strcmp(path, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (strcmp(path, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
    return strcmp(path, "portable") == 0;
}

void options_make(struct fire_options *options, const char *preset, const char *settings)
{
    struct fire_error error = { 0 };
    char copy[SETTINGS_BYTES];
    char *rest = copy;
    char *pair;

    ck_assert_msg(fire_options_preset(options, preset, &error) == FIRE_OK, "%s", error.message);
    ck_assert_uint_lt(strlen(settings), sizeof(copy));
    strcpy(copy, settings);
    while ((pair = strtok_r(rest, " ", &rest)) != NULL)
        ck_assert_msg(fire_options_set_pair(options, pair, &error) == FIRE_OK, "%s: %s", pair,
                      error.message);
}

static void view_make(const struct fire_options *options, uint32_t out, uint32_t in,
                      struct fire_view *view)
{
    const bool turned = options->layout == FIRE_LAYOUT_IN_OUT;
    const struct fire_shape shape = { 2, { turned ? in : out, turned ? out : in } };
    struct fire_error error = { 0 };
    uint64_t count;

    ck_assert_msg(fire_view_count(&shape, options, &count, &error) == FIRE_OK, "%s", error.message);
    ck_assert_uint_eq(count, 1);
    fire_view_at(&shape, options, 0, view);
}

void projection_plan(const struct fire_options *options, uint32_t out, uint32_t in,
                     struct fire_plan *plan)
{
    const enum fire_dtype dtype = options->compute == FIRE_COMPUTE_F64 ? FIRE_F64 : FIRE_F32;
    struct fire_error error = { 0 };
    struct fire_view view;

    view_make(options, out, in, &view);
    ck_assert_msg(fire_plan_make(plan, options, &view, dtype,
                                 FIRE_STATISTICS_BASIC | FIRE_STATISTICS_RESIDUAL,
                                 &error) == FIRE_OK,
                  "%s", error.message);
}

/* A tensor of the dtype from `weights`, then one matrix of it into `slot`. */
static void gather(const struct fire_view *view, const struct fire_plan *plan,
                   const double *weights, void *tensor, void *slot)
{
    const size_t count = (size_t)plan->rows * plan->cols;

    if (plan->output == FIRE_F64)
        memcpy(tensor, weights, count * sizeof(*weights));
    else
        matrix_to_f32(weights, count, tensor);
    ck_assert_int_eq(fire_view_gather(view, tensor, plan->output, plan->compute, slot, NULL),
                     FIRE_OK);
}

static void scatter(const struct fire_view *view, const struct fire_plan *plan, const void *slot,
                    void *tensor, double *projected)
{
    const size_t count = (size_t)plan->rows * plan->cols;

    fire_view_scatter(view, slot, plan->compute, plan->output, tensor);
    if (plan->output == FIRE_F64)
        memcpy(projected, tensor, count * sizeof(*projected));
    else
        matrix_from_f32(tensor, count, projected);
}

void project_batch(struct projector *projector, const struct fire_options *options, uint32_t out,
                   uint32_t in, struct projection *projections, uint32_t count)
{
    const struct fire_backend *backend = projector->backend;
    struct fire_slot *slots = calloc(count, sizeof(*slots));
    void *tensor = matrix_alloc(out, in);
    struct fire_plan plan;
    struct fire_view view;
    struct fire_batch batch;

    ck_assert_ptr_nonnull(slots);
    view_make(options, out, in, &view);
    projection_plan(options, out, in, &plan);
    for (uint32_t i = 0; i < count; i++) {
        slots[i].weights = backend->host_alloc(projector->device, fire_plan_slot_bytes(&plan));
        slots[i].result = &projections[i].result;
        slots[i].seed = options->seed;
        ck_assert_ptr_nonnull(slots[i].weights);
        fire_result_init(&projections[i].result);
        gather(&view, &plan, projections[i].weights, tensor, slots[i].weights);
    }
    batch = (struct fire_batch){ .plan = &plan, .slots = slots, .slot_count = count };
    ck_assert_int_eq(backend->submit(projector->device, &batch), FIRE_OK);
    ck_assert_msg(backend->wait(projector->device, &batch) == FIRE_OK, "%s",
                  backend->last_error(projector->device));
    for (uint32_t i = 0; i < count; i++) {
        scatter(&view, &plan, slots[i].weights, tensor, projections[i].projected);
        backend->host_free(projector->device, slots[i].weights);
    }
    free(tensor);
    free(slots);
}

struct fire_result project(struct projector *projector, const struct fire_options *options,
                           uint32_t out, uint32_t in, const double *weights, double *projected)
{
    struct projection projection = { .weights = weights, .projected = projected };

    project_batch(projector, options, out, in, &projection, 1);
    return projection.result;
}
