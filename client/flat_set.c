/* flat_set: a set of any tensors through the flat door. Every tensor is an allocation of its own,
 * so that the entry the architecture's rules look at never moves; the array of struct fire_tensor
 * that the client wants is made when the set runs, and its results are copied back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch.h"
#include "client.h"
#include "flat.h"

struct flat_tensor {
    struct safetensors_entry entry; /* name, dtype, shape */
    char *pairs;                    /* what the caller set, or NULL */
    struct fire_tensor tensor;
    struct arch_decision decision;
};

struct fire_flat {
    struct flat_tensor **tensors;
    size_t count;
    size_t room;
    const char *arch;
    int code;
    char text[FIRE_OPTION_TEXT_BYTES];
};

static enum fire_status leave(enum fire_status status, const struct fire_error *error)
{
    return status == FIRE_OK ? FIRE_OK : client_fail(error, NULL);
}

enum fire_status fire_flat_open(struct fire_flat **flat)
{
    struct fire_error error = { 0 };

    *flat = calloc(1, sizeof(**flat));
    if (!*flat)
        return leave(fire_fail_memory(&error, sizeof(**flat)), &error);
    (*flat)->arch = "";
    return FIRE_OK;
}

static void tensor_free(struct flat_tensor *tensor)
{
    if (!tensor)
        return;
    free((char *)tensor->entry.name);
    free(tensor->pairs);
    free((double *)tensor->tensor.unit_means);
    free(tensor->tensor.states);
    free(tensor);
}

void fire_flat_close(struct fire_flat *flat)
{
    if (!flat)
        return;
    for (size_t i = 0; i < flat->count; i++)
        tensor_free(flat->tensors[i]);
    free(flat->tensors);
    free(flat);
}

size_t fire_flat_count(const struct fire_flat *flat)
{
    return flat->count;
}

int fire_flat_code(const struct fire_flat *flat)
{
    return flat->code;
}

const char *fire_flat_arch(const struct fire_flat *flat)
{
    return flat->arch;
}

/* The floating dtype a name means; false when it means another. */
static bool floating_dtype(const char *name, enum fire_dtype *dtype)
{
    static const struct {
        const char *name;
        enum fire_dtype dtype;
    } names[] = {
        { "F64", FIRE_F64 }, { "F32", FIRE_F32 }, { "BF16", FIRE_BF16 }, { "F16", FIRE_F16 }
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i].name, name) == 0) {
            *dtype = names[i].dtype;
            return true;
        }
    }
    return false;
}

static enum fire_status take_shape(struct fire_shape *shape, uint32_t axes, const uint64_t *size,
                                   struct fire_error *error)
{
    if (axes > FIRE_AXES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "axes", "axes must be at most %d, got %u",
                         FIRE_AXES_MAX, axes);
    shape->axes = axes;
    for (uint32_t axis = 0; axis < axes; axis++)
        shape->size[axis] = size[axis];
    return FIRE_OK;
}

/* Room for one more. */
static enum fire_status grow(struct fire_flat *flat, struct fire_error *error)
{
    const size_t room = flat->room ? 2 * flat->room : 64;
    struct flat_tensor **tensors;

    if (flat->count < flat->room)
        return FIRE_OK;
    tensors = realloc(flat->tensors, room * sizeof(struct flat_tensor *));
    if (!tensors)
        return fire_fail_memory(error, room * sizeof(struct flat_tensor *));
    flat->tensors = tensors;
    flat->room = room;
    return FIRE_OK;
}

static enum fire_status take_options(struct flat_tensor *tensor, const char *preset,
                                     const char *set_pairs, struct fire_error *error)
{
    enum fire_status status =
        fire_options_preset(&tensor->tensor.options, preset ? preset : "fire", error);

    if (status == FIRE_OK)
        status = flat_options(&tensor->tensor.options, set_pairs, error);
    if (status == FIRE_OK && set_pairs) {
        tensor->pairs = strdup(set_pairs);
        if (!tensor->pairs)
            status = fire_fail_memory(error, strlen(set_pairs));
    }
    return status;
}

enum fire_status fire_flat_add(struct fire_flat *flat, const char *name, const char *dtype,
                               uint32_t axes, const uint64_t *size, const char *preset,
                               const char *set_pairs)
{
    struct flat_tensor *tensor = calloc(1, sizeof(*tensor));
    struct fire_error error = { 0 };
    enum fire_status status;

    if (!tensor)
        return leave(fire_fail_memory(&error, sizeof(*tensor)), &error);
    tensor->entry.name = strdup(name);
    status = tensor->entry.name ? grow(flat, &error) : fire_fail_memory(&error, strlen(name));
    tensor->entry.too_many_axes = axes > FIRE_AXES_MAX;
    if (status == FIRE_OK && !tensor->entry.too_many_axes)
        status = take_shape(&tensor->entry.shape, axes, size, &error);
    if (status == FIRE_OK)
        status = take_options(tensor, preset, set_pairs, &error);
    if (status != FIRE_OK) {
        tensor_free(tensor);
        return leave(status, &error);
    }
    snprintf(tensor->entry.dtype_name, sizeof(tensor->entry.dtype_name), "%s", dtype);
    tensor->entry.floating = floating_dtype(dtype, &tensor->entry.dtype);
    tensor->entry.bytes = 1; /* only whether it is empty is looked at */
    for (uint32_t axis = 0; axis < tensor->entry.shape.axes; axis++)
        tensor->entry.bytes = tensor->entry.shape.size[axis] ? tensor->entry.bytes : 0;
    tensor->tensor.name = tensor->entry.name;
    tensor->tensor.dtype = tensor->entry.dtype;
    tensor->tensor.shape = tensor->entry.shape;
    fire_result_init(&tensor->tensor.result);
    flat->tensors[flat->count++] = tensor;
    return FIRE_OK;
}

/* Tensor `index`, or NULL and the error. */
static struct flat_tensor *at(const struct fire_flat *flat, size_t index, struct fire_error *error)
{
    if (index < flat->count)
        return flat->tensors[index];
    (void)fire_fail(error, FIRE_NOT_FOUND, "index",
                    "the set has %zu tensors, there is no index %zu", flat->count, index);
    return NULL;
}

enum fire_status fire_flat_memory(struct fire_flat *flat, size_t index, const void *data, void *out)
{
    struct fire_error error = { 0 };
    struct flat_tensor *tensor = at(flat, index, &error);

    if (!tensor)
        return leave(error.status, &error);
    tensor->tensor.data = data;
    tensor->tensor.out = out;
    return FIRE_OK;
}

/* The dtype of state: floating, or integers of a step. */
static enum fire_status take_state_dtype(struct fire_state_tensor *state, const char *dtype,
                                         struct fire_error *error)
{
    if (floating_dtype(dtype, &state->dtype))
        return FIRE_OK;
    if (strcmp(dtype, "I32") != 0 && strcmp(dtype, "I64") != 0)
        return fire_fail(error, FIRE_BAD_REQUEST, "dtype",
                         "state is F64, F32, BF16, F16, or I32 or I64 for a step, not '%.16s'",
                         dtype);
    state->integer_bytes = strcmp(dtype, "I32") == 0 ? 4 : 8;
    return FIRE_OK;
}

enum fire_status fire_flat_state(struct fire_flat *flat, size_t index, const char *slot,
                                 const char *dtype, uint32_t axes, const uint64_t *size,
                                 const void *data, void *out)
{
    struct fire_error error = { 0 };
    struct flat_tensor *owner = at(flat, index, &error);
    struct fire_state_tensor state = { .data = data, .out = out };
    struct fire_state_tensor *states;
    enum fire_status status;

    if (!owner)
        return leave(error.status, &error);
    status = fire_state_slot_parse(slot, &state.slot, &error);
    if (status == FIRE_OK)
        status = take_state_dtype(&state, dtype, &error);
    if (status == FIRE_OK)
        status = take_shape(&state.shape, axes, size, &error);
    if (status != FIRE_OK)
        return leave(status, &error);
    states = realloc(owner->tensor.states, (owner->tensor.state_count + 1) * sizeof(*states));
    if (!states)
        return leave(fire_fail_memory(&error, sizeof(*states)), &error);
    states[owner->tensor.state_count++] = state;
    owner->tensor.states = states;
    return FIRE_OK;
}

enum fire_status fire_flat_units(struct fire_flat *flat, size_t index, const double *means,
                                 uint64_t count)
{
    struct fire_error error = { 0 };
    struct flat_tensor *tensor = at(flat, index, &error);
    double *copy;

    if (!tensor)
        return leave(error.status, &error);
    copy = calloc(count ? count : 1, sizeof(*copy));
    if (!copy)
        return leave(fire_fail_memory(&error, count * sizeof(*copy)), &error);
    if (count)
        memcpy(copy, means, count * sizeof(*copy));
    free((double *)tensor->tensor.unit_means);
    tensor->tensor.unit_means = copy;
    tensor->tensor.unit_count = count;
    return FIRE_OK;
}

enum fire_status fire_flat_gradient(struct fire_flat *flat, size_t index, const char *dtype,
                                    const void *data)
{
    struct fire_error error = { 0 };
    struct flat_tensor *tensor = at(flat, index, &error);

    if (!tensor)
        return leave(error.status, &error);
    if (!floating_dtype(dtype, &tensor->tensor.gradient_dtype))
        return leave(fire_fail(&error, FIRE_BAD_REQUEST, "dtype",
                               "a gradient is F64, F32, BF16 or F16, not '%.16s'", dtype),
                     &error);
    tensor->tensor.gradient = data;
    return FIRE_OK;
}

static const struct safetensors_entry *entry_at(const void *data, size_t index)
{
    const struct fire_flat *flat = data;

    return &flat->tensors[index]->entry;
}

static const struct safetensors_entry *entry_find(const void *data, const char *name)
{
    const struct fire_flat *flat = data;

    for (size_t i = 0; i < flat->count; i++) {
        if (strcmp(flat->tensors[i]->entry.name, name) == 0)
            return &flat->tensors[i]->entry;
    }
    return NULL;
}

enum fire_status fire_flat_decide(struct fire_flat *flat, const char *arch, const char *only,
                                  int ordered)
{
    const struct arch_model model = { .count = flat->count,
                                      .at = entry_at,
                                      .find = entry_find,
                                      .data = flat,
                                      .ordered = ordered != 0 };
    struct fire_error error = { 0 };
    enum arch_only which;
    enum arch kind;
    enum fire_status status = arch_parse(arch, &kind, &error);

    if (status == FIRE_OK)
        status = arch_only_parse(only, &which, &error);
    if (status != FIRE_OK)
        return leave(status, &error);
    if (kind == ARCH_AUTO)
        kind = arch_detect(&model);
    for (size_t i = 0; status == FIRE_OK && i < flat->count; i++) {
        struct flat_tensor *tensor = flat->tensors[i];

        arch_decide(kind, which, &model, &tensor->entry, &tensor->tensor.options,
                    &tensor->decision);
        /* Again: what the caller says wins over what the architecture says. */
        status = flat_options(&tensor->tensor.options, tensor->pairs, &error);
    }
    if (status == FIRE_OK)
        flat->arch = arch_name(kind);
    return leave(status, &error);
}

static enum fire_status check_floating(const struct fire_flat *flat, struct fire_error *error)
{
    for (size_t i = 0; i < flat->count; i++) {
        const struct safetensors_entry *entry = &flat->tensors[i]->entry;

        if (!entry->floating || entry->too_many_axes)
            return fire_fail(
                error, FIRE_BAD_REQUEST, entry->name,
                "tensor '%.200s' has %s; it must be F64, F32, BF16 or F16 with at most "
                "%d axes",
                entry->name, entry->too_many_axes ? "too many axes" : entry->dtype_name,
                FIRE_AXES_MAX);
    }
    return FIRE_OK;
}

enum fire_status fire_flat_run(struct fire_flat *flat, struct fire_client *client, int analyze,
                               uint32_t statistics, const char *run, int64_t step,
                               double deadline_s)
{
    struct fire_error error = { 0 };
    struct fire_set set = { .count = flat->count,
                            .statistics = statistics,
                            .operation = analyze ? FIRE_ANALYZE : FIRE_REINIT,
                            .run = run,
                            .step = step,
                            .deadline_s = deadline_s };
    enum fire_status status = check_floating(flat, &error);

    flat->code = 0;
    if (status != FIRE_OK || flat->count == 0)
        return leave(status, &error);
    set.tensors = calloc(flat->count, sizeof(*set.tensors));
    if (!set.tensors)
        return leave(fire_fail_memory(&error, flat->count * sizeof(*set.tensors)), &error);
    for (size_t i = 0; i < flat->count; i++)
        set.tensors[i] = flat->tensors[i]->tensor;
    status = fire_client_start(client, &set, &error);
    if (status == FIRE_OK) {
        (void)fire_client_wait(client, &set, -1.0);
        status = set.status;
        error = set.error;
        flat->code = set.code;
        for (size_t i = 0; i < flat->count; i++)
            flat->tensors[i]->tensor = set.tensors[i];
    }
    free(set.tensors);
    return leave(status, &error);
}

static const char *verdict_name(enum arch_verdict verdict)
{
    switch (verdict) {
    case ARCH_PROJECT: return "project";
    case ARCH_SKIP: return "skip";
    case ARCH_RESET: return "reset";
    }
    return "skip";
}

static const char *action_name(enum fire_action action)
{
    switch (action) {
    case FIRE_ACTION_PROJECTED: return "projected";
    case FIRE_ACTION_SKIPPED: return "skipped";
    case FIRE_ACTION_REFUSED: return "refused";
    }
    return "refused";
}

static const char *option_text(struct fire_flat *flat, const struct fire_options *options,
                               const char *key)
{
    for (size_t i = 0; i < fire_option_key_count(); i++) {
        if (strcmp(fire_option_key_at(i)->name, key) == 0) {
            fire_options_format(options, i, flat->text, sizeof(flat->text));
            return flat->text;
        }
    }
    return NULL;
}

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

const char *fire_flat_text(struct fire_flat *flat, size_t index, const char *key)
{
    const struct flat_tensor *own = index < flat->count ? flat->tensors[index] : NULL;
    const struct fire_tensor *tensor = own ? &own->tensor : NULL;

    if (!tensor)
        return NULL;
    if (strncmp(key, "option:", 7) == 0)
        return option_text(flat, &tensor->options, key + 7);
    {
        const struct {
            const char *key;
            const char *text;
        } texts[] = {
            { "verdict", verdict_name(own->decision.verdict) },
            { "verdict_reason", own->decision.reason },
            { "tied", or_empty(own->decision.tied) },
            { "action", action_name(tensor->result.action) },
            { "reason", tensor->result.reason },
            { "method", tensor->result.method },
            { "path", or_empty(tensor->result.path) },
            { "status", fire_status_name(tensor->error.status) },
            { "error", tensor->error.message },
            { "field", tensor->error.field },
            { "close_reason", or_empty(tensor->batch.close_reason) },
        };

        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
            if (strcmp(texts[i].key, key) == 0)
                return texts[i].text;
        }
    }
    return NULL;
}

enum fire_status fire_flat_numbers(const struct fire_flat *flat, size_t index, double *numbers)
{
    struct fire_error error = { 0 };
    const struct flat_tensor *tensor = at(flat, index, &error);
    const struct fire_result *result;
    size_t f = 0;

    if (!tensor)
        return leave(error.status, &error);
    result = &tensor->tensor.result;
    for (; f < fire_result_field_count(); f++)
        numbers[f] = fire_result_value(result, f);
    numbers[f++] = result->steps;
    numbers[f++] = result->converged;
    numbers[f++] = result->rank;
    numbers[f++] = result->rank_defect;
    numbers[f++] = result->matrices;
    numbers[f++] = (double)tensor->tensor.batch.id;
    numbers[f++] = tensor->tensor.batch.size;
    numbers[f++] = tensor->tensor.batch.queue_ms;
    numbers[f++] = tensor->tensor.batch.compute_ms;
    return FIRE_OK;
}
