/* request_answer: from the results of a weight's matrices to its answer. Runs on a worker while
 * the loop leaves the tensor and its companions alone. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "request.h"
#include "request_parts.h"
#include "statistics.h"

#define LIGHT_VIEWS_MAX 16u

/* In view order, so that sums do not depend on which job came first. */
static void merge_results(struct request_tensor *tensor)
{
    const struct request_parts *parts = tensor->parts;

    if (tensor->work.matrices == 0) {
        fire_work_skip(&tensor->result, tensor->work.view_count);
        return;
    }
    fire_result_init(&tensor->result);
    for (uint64_t v = 0; v < tensor->work.view_count; v++) {
        if (parts->slots[v])
            fire_result_merge(&tensor->result, &parts->results[v]);
    }
}

/* Without memory for it there is none. */
static void merge_spectra(struct request_tensor *tensor)
{
    const struct request_parts *parts = tensor->parts;
    const size_t count = tensor->work.matrices;
    struct fire_spectra *sum = &parts->spectra[count];
    const struct fire_spectrum *list[REQUEST_SPECTRA_MAX] = { NULL };

    FIRE_ASSERT(count <= REQUEST_SPECTRA_MAX);
    for (size_t i = 0; i < count; i++)
        list[i] = &parts->spectra[i].before;
    if (fire_spectrum_merge(list, count, &sum->before) != FIRE_OK)
        sum->before.count = 0;
    for (size_t i = 0; i < count; i++)
        list[i] = &parts->spectra[i].after;
    if (fire_spectrum_merge(list, count, &sum->after) != FIRE_OK)
        sum->after.count = 0;
}

const struct fire_spectra *request_spectra(const struct request_tensor *tensor)
{
    const struct request_parts *parts = tensor->parts;

    if (!parts || !parts->has_spectra || !parts->laid_out ||
        tensor->result.action != FIRE_ACTION_PROJECTED)
        return NULL;
    return &parts->spectra[tensor->work.matrices == 1 ? 0 : tensor->work.matrices];
}

void request_view_result(const struct request_tensor *tensor, uint64_t index,
                         struct fire_result *result)
{
    FIRE_ASSERT(index < tensor->work.view_count);
    if (!tensor->parts->slots[index]) {
        fire_work_skip(result, 1);
        return;
    }
    *result = tensor->parts->results[index];
    if (result->matrices == 0)
        result->matrices = 1;
}

static void refuse_for_result(struct request_tensor *tensor)
{
    const struct fire_result *result = &tensor->result;
    const enum fire_status status = result->status == FIRE_OK ? FIRE_BAD_REQUEST : result->status;
    struct fire_error error = { 0 };

    fire_fail(&error, status, tensor->path, "tensor '%.100s' was refused: %s", tensor->name,
              result->reason[0] ? result->reason : fire_status_name(status));
    request_tensor_fail(tensor, &error, NULL);
}

/* Lays the new weights out as the tensor was sent. What the device left alone still holds the old
 * weights, and widening is exact. */
static void scatter(struct request_tensor *tensor)
{
    const struct request_parts *parts = tensor->parts;
    const enum fire_dtype compute = tensor->work.parts[0].plan.compute;

    if (!parts->keep_raw) {
        fire_work_scatter(&tensor->shape, &tensor->options, tensor->dtype, compute, parts->slots,
                          parts->bytes);
        return;
    }
    for (uint64_t v = 0; v < tensor->work.view_count; v++) {
        struct fire_view view;

        if (!parts->slots[v] || parts->results[v].action != FIRE_ACTION_PROJECTED)
            continue;
        fire_view_at(&tensor->shape, &tensor->options, v, &view);
        fire_view_scatter(&view, parts->slots[v], compute, tensor->dtype, parts->bytes);
    }
}

static struct request_tensor *companion_of(const struct request_tensor *weight,
                                           enum request_role role)
{
    struct request_tensor *companion = weight->companions;

    while (companion && (companion->role != role || companion->error.status != FIRE_OK))
        companion = companion->next_companion;
    return companion;
}

static void dormant(struct request_tensor *weight)
{
    const struct request_tensor *means = companion_of(weight, REQUEST_UNIT_MEANS);
    const struct request_tensor *gradient = companion_of(weight, REQUEST_GRADIENT);
    struct fire_dormant_input input = { 0 };
    struct fire_error error = { 0 };
    double *unit_means = NULL;

    if (!means)
        means = companion_of(weight, REQUEST_ACTIVATIONS);
    if (means) {
        const uint64_t units = means->shape.size[means->shape.axes - 1];
        const uint64_t samples = means->total_bytes / fire_dtype_bytes(means->dtype) / units;

        unit_means = calloc(units, sizeof(*unit_means));
        if (!unit_means) {
            fire_fail_memory(&error, units * sizeof(*unit_means));
            request_tensor_fail(weight, &error, NULL);
            return;
        }
        fire_unit_means(means->parts->bytes, means->dtype, samples, units, unit_means);
        input.unit_means = unit_means;
        input.unit_count = units;
    }
    if (gradient) {
        input.gradient = gradient->parts->bytes;
        input.gradient_dtype = gradient->dtype;
    }
    if (fire_work_dormant(&weight->shape, &weight->options, &input, &weight->result, &error) !=
        FIRE_OK)
        request_tensor_fail(weight, &error, NULL);
    free(unit_means);
}

/* The policy for one state tensor: only that of a projected weight is touched, unless all is to be;
 * where nothing was projected there is no tangent space to move to. */
static enum fire_state_policy policy_for(const struct request_tensor *weight)
{
    const bool projected =
        weight->error.status == FIRE_OK && weight->result.action == FIRE_ACTION_PROJECTED;

    if (weight->error.status != FIRE_OK)
        return FIRE_STATE_KEEP;
    if (!projected && weight->options.state_scope != FIRE_STATE_ALL)
        return FIRE_STATE_KEEP;
    if (!projected && weight->options.state_policy == FIRE_STATE_TRANSPORT)
        return FIRE_STATE_KEEP;
    return weight->options.state_policy;
}

static void answer_state(const struct request_tensor *weight, struct request_tensor *state)
{
    struct fire_options options = weight->options;
    struct fire_error error = { 0 };
    uint64_t bytes;

    options.state_policy = policy_for(weight);
    state->state = fire_state_policy_name(options.state_policy);
    if (options.state_policy == FIRE_STATE_KEEP)
        return;
    if (state->integer) {
        if (options.state_policy == FIRE_STATE_RESET)
            memset(state->parts->bytes, 0, state->total_bytes);
        return;
    }
    if (fire_state_apply(&options, state->state_slot, &state->shape, state->dtype,
                         state->parts->bytes, &weight->shape, weight->dtype,
                         request_bytes(weight, &bytes), &error) == FIRE_OK)
        return;
    memcpy(error.field, state->path, sizeof(state->path));
    request_tensor_fail(state, &error, NULL);
}

void request_answer(const struct request_set *set, struct request_tensor *tensor)
{
    const bool computed = tensor->error.status == FIRE_OK;

    FIRE_ASSERT(tensor->role == REQUEST_WEIGHT);
    if (computed) {
        merge_results(tensor);
        if (tensor->parts->has_spectra && tensor->work.matrices != 1)
            merge_spectra(tensor);
        if (tensor->result.action == FIRE_ACTION_REFUSED)
            refuse_for_result(tensor);
    }
    if (tensor->error.status == FIRE_OK && !set->analyze && !tensor->parts->verbatim)
        scatter(tensor);
    if (tensor->error.status == FIRE_OK)
        dormant(tensor);
    for (struct request_tensor *state = tensor->companions; state; state = state->next_companion) {
        if (state->role == REQUEST_STATE && state->error.status == FIRE_OK && !set->analyze)
            answer_state(tensor, state);
    }
}

bool request_answer_is_light(const struct request_set *set, const struct request_tensor *tensor)
{
    return tensor->parts && (set->analyze || tensor->parts->verbatim) && !tensor->companions &&
           tensor->work.view_count <= LIGHT_VIEWS_MAX &&
           !(tensor->parts->has_spectra && tensor->work.matrices > 1);
}

const void *request_bytes(const struct request_tensor *tensor, uint64_t *bytes)
{
    const bool none = tensor->error.status != FIRE_OK || tensor->analyze ||
                      !tensor->parts->laid_out ||
                      (tensor->role != REQUEST_WEIGHT && tensor->role != REQUEST_STATE);

    *bytes = none ? 0 : tensor->total_bytes;
    if (none)
        return NULL;
    return tensor->parts->verbatim ? tensor->parts->weights : tensor->parts->bytes;
}
