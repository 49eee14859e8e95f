/* request: a tensor from its header to its plan. Its bytes and jobs are request_feed.c, what
 * becomes of it afterwards is request_answer.c. Everything is checked before anything is taken from
 * the arena.
 *
 * Invariants:
 *   the block and the tensor live until the owner and every slice being sent have let go
 *   jobs_left counts the jobs whose `pending` is set
 */
#include "request.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "request_parts.h"

#define BLOCK_ALIGNMENT 64u

/* A tensor and its parts are one piece of the heap. */
struct request_storage {
    struct request_tensor tensor;
    struct request_parts parts;
};

/* --- the header ------------------------------------------------------------------------------- */

static enum fire_status fail_at(struct fire_error *error, const char *path, const char *name,
                                const char *message)
{
    char field[FIRE_ERROR_FIELD_BYTES];

    request_field(field, path, name);
    return fire_fail(error, FIRE_BAD_REQUEST, field, "%s", message);
}

/* Puts `path` before the field of an error that a lower layer left about a tensor. */
static enum fire_status place_error(struct fire_error *error, const struct fire_error *inner,
                                    const char *path, const char *name)
{
    char field[FIRE_ERROR_FIELD_BYTES];
    /* What is no field of the header is one of the options. */
    const bool own = strcmp(inner->field, "shape") == 0 || inner->field[0] == '\0';
    char key[80];

    snprintf(key, sizeof(key), "%s%.64s", own ? "" : "options.",
             inner->field[0] ? inner->field : "shape");
    request_field(field, path, key);
    return fire_fail(error, inner->status == FIRE_NOT_FOUND ? FIRE_BAD_REQUEST : inner->status,
                     field, "tensor '%.100s': %.380s", name, inner->message);
}

static enum fire_status read_role(struct request_tensor *tensor,
                                  const Fire__V1__TensorHeader *header, struct fire_error *error)
{
    switch (header->role) {
    case FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_UNSPECIFIED:
    case FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_WEIGHT: tensor->role = REQUEST_WEIGHT; return FIRE_OK;
    case FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_STATE: tensor->role = REQUEST_STATE; return FIRE_OK;
    case FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_ACTIVATIONS:
        tensor->role = REQUEST_ACTIVATIONS;
        return FIRE_OK;
    case FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_UNIT_MEANS:
        tensor->role = REQUEST_UNIT_MEANS;
        return FIRE_OK;
    case FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_GRADIENT:
        tensor->role = REQUEST_GRADIENT;
        return FIRE_OK;
    case _FIRE__V1__TENSOR_ROLE_IS_INT_SIZE:
    default:
        return fail_at(error, tensor->path, "role",
                       "the role is not known; use a value of TensorRole");
    }
}

static enum fire_status read_dtype(struct request_tensor *tensor,
                                   const Fire__V1__TensorHeader *header, struct fire_error *error)
{
    tensor->wire_dtype = header->dtype;
    switch (header->dtype) {
    case FIRE__V1__DATA_TYPE__DATA_TYPE_F64: tensor->dtype = FIRE_F64; return FIRE_OK;
    case FIRE__V1__DATA_TYPE__DATA_TYPE_F32: tensor->dtype = FIRE_F32; return FIRE_OK;
    case FIRE__V1__DATA_TYPE__DATA_TYPE_BF16: tensor->dtype = FIRE_BF16; return FIRE_OK;
    case FIRE__V1__DATA_TYPE__DATA_TYPE_F16: tensor->dtype = FIRE_F16; return FIRE_OK;
    case FIRE__V1__DATA_TYPE__DATA_TYPE_I64:
    case FIRE__V1__DATA_TYPE__DATA_TYPE_I32:
        tensor->integer = true;
        if (tensor->role == REQUEST_STATE && tensor->state_slot == FIRE_SLOT_STEP)
            return FIRE_OK;
        return fail_at(error, tensor->path, "dtype",
                       "only optimizer state of the slot step may be integers; send F64, F32, "
                       "BF16 or F16");
    case FIRE__V1__DATA_TYPE__DATA_TYPE_UNSPECIFIED:
        return fail_at(error, tensor->path, "dtype", "the dtype is not given; say what it is");
    case _FIRE__V1__DATA_TYPE_IS_INT_SIZE:
    default:
        return fail_at(error, tensor->path, "dtype",
                       "the dtype is not known; use a value of DataType");
    }
}

static size_t element_bytes(const struct request_tensor *tensor)
{
    if (tensor->wire_dtype == FIRE__V1__DATA_TYPE__DATA_TYPE_I64)
        return 8;
    if (tensor->wire_dtype == FIRE__V1__DATA_TYPE__DATA_TYPE_I32)
        return 4;
    return fire_dtype_bytes(tensor->dtype);
}

static enum fire_status read_shape(struct request_tensor *tensor,
                                   const Fire__V1__TensorHeader *header, uint64_t tensor_bytes_max,
                                   struct fire_error *error)
{
    /* Optimizers keep `step` as a number without axes. */
    const size_t axes_min = tensor->role == REQUEST_STATE ? 0 : 1;
    char field[FIRE_ERROR_FIELD_BYTES];
    struct fire_error inner = { 0 };
    uint64_t elements;

    request_field(field, tensor->path, "shape");
    if (header->n_shape < axes_min || header->n_shape > FIRE_AXES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, field,
                         "the shape has %zu axes; it must have 1 to %d", header->n_shape,
                         FIRE_AXES_MAX);
    tensor->shape.axes = (uint32_t)header->n_shape;
    for (size_t i = 0; i < header->n_shape; i++)
        tensor->shape.size[i] = header->shape[i];
    if (fire_shape_elements(&tensor->shape, &elements, &inner) != FIRE_OK)
        return place_error(error, &inner, tensor->path, tensor->name);
    if (__builtin_mul_overflow(elements, element_bytes(tensor), &tensor->total_bytes) ||
        tensor->total_bytes > tensor_bytes_max)
        return fire_fail(error, FIRE_BAD_REQUEST, field,
                         "the tensor has %" PRIu64 " elements of %zu bytes; at most %" PRIu64
                         " bytes are taken: send it in parts",
                         elements, element_bytes(tensor), tensor_bytes_max);
    return FIRE_OK;
}

static enum fire_status read_names(struct request_tensor *tensor,
                                   const Fire__V1__TensorHeader *header, struct fire_error *error)
{
    struct fire_error inner = { 0 };
    enum fire_status status =
        request_check_text(header->name, REQUEST_NAME_BYTES_MAX, tensor->path, "name", error);

    if (status == FIRE_OK)
        status = request_check_text(header->parameter, REQUEST_NAME_BYTES_MAX, tensor->path,
                                    "parameter", error);
    if (status == FIRE_OK)
        status =
            request_check_text(header->slot, REQUEST_NAME_BYTES_MAX, tensor->path, "slot", error);
    if (status != FIRE_OK)
        return status;
    tensor->name = strdup(header->name);
    tensor->parameter = strdup(header->parameter);
    tensor->slot = strdup(header->slot);
    if (!tensor->name || !tensor->parameter || !tensor->slot)
        return fire_fail_memory(error, REQUEST_NAME_BYTES_MAX);
    if (tensor->role == REQUEST_WEIGHT)
        return FIRE_OK;
    if (!tensor->parameter[0])
        return fail_at(error, tensor->path, "parameter",
                       "what is no weight must name the weight it belongs to; set parameter");
    if (tensor->role == REQUEST_STATE &&
        fire_state_slot_parse(tensor->slot, &tensor->state_slot, &inner) != FIRE_OK)
        return fail_at(error, tensor->path, "slot", inner.message);
    return FIRE_OK;
}

/* --- the block -------------------------------------------------------------------------------- */

static uint64_t take(uint64_t *end, uint64_t bytes)
{
    const uint64_t offset = *end;

    *end = (offset + bytes + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
    return offset;
}

/* Where everything of a planned weight will be in its block. */
static void measure(struct request_tensor *tensor)
{
    const struct fire_work *work = &tensor->work;
    struct request_parts *parts = tensor->parts;
    uint64_t end = 0;

    parts->verbatim = fire_work_is_verbatim(work, &tensor->shape, &tensor->options, tensor->dtype);
    parts->keep_raw =
        !tensor->analyze && (work->matrices != work->view_count || tensor->options.split_skip != 0);
    for (uint32_t i = 0; i < work->part_count; i++) {
        const struct fire_work_part *part = &work->parts[i];
        const uint32_t most = request_matrices_a_job(&part->plan);

        parts->weights_bytes += part->matrices * fire_plan_slot_bytes(&part->plan);
        parts->job_count += (uint32_t)((part->matrices + most - 1) / most);
    }
    take(&end, parts->weights_bytes);
    parts->bytes_offset = take(&end, parts->verbatim || tensor->analyze ? 0 : tensor->total_bytes);
    parts->slots_offset = take(&end, work->view_count * sizeof(*parts->slots));
    parts->entries_offset = take(&end, work->matrices * sizeof(*parts->entries));
    parts->results_offset = take(&end, work->view_count * sizeof(*parts->results));
    parts->jobs_offset = take(&end, parts->job_count * sizeof(*parts->jobs));
    parts->spectra_offset =
        take(&end, parts->has_spectra ? (work->matrices + 1) * sizeof(*parts->spectra) : 0);
    parts->block_bytes = end;
}

static enum fire_status plan_weight(struct request_tensor *tensor, const struct request_set *set,
                                    const Fire__V1__TensorHeader *header, struct fire_error *error)
{
    struct fire_error inner = { 0 };
    uint64_t views;
    enum fire_status status =
        request_options_make(set, header, tensor->path, &tensor->options, error);

    if (status != FIRE_OK)
        return status;
    status = fire_view_count(&tensor->shape, &tensor->options, &views, &inner);
    if (status == FIRE_OK && views > REQUEST_VIEWS_MAX)
        status = fire_fail(&inner, FIRE_BAD_REQUEST, "shape",
                           "it holds %" PRIu64 " matrices; at most %u are taken: send it in parts",
                           views, REQUEST_VIEWS_MAX);
    if (status == FIRE_OK && set->per_matrix && views > REQUEST_PER_MATRIX_MAX)
        status = fire_fail(&inner, FIRE_BAD_REQUEST, "shape",
                           "it holds %" PRIu64 " matrices; with per_matrix at most %u are taken: "
                           "send it in parts, or leave per_matrix out",
                           views, REQUEST_PER_MATRIX_MAX);
    if (status == FIRE_OK)
        status = fire_work_init(&tensor->work, &tensor->shape, tensor->dtype, &tensor->options,
                                set->analyze, set->statistics, &inner);
    if (status != FIRE_OK)
        return place_error(error, &inner, tensor->path, tensor->name);
    tensor->parts->has_spectra = set->run[0] != '\0' && !set->analyze &&
                                 set->statistics & FIRE_STATISTICS_SPECTRUM &&
                                 tensor->work.matrices <= REQUEST_SPECTRA_MAX;
    measure(tensor);
    return FIRE_OK;
}

static struct request_tensor *new_tensor(const char *path)
{
    struct request_storage *storage = calloc(1, sizeof(*storage));

    if (!storage)
        return NULL;
    storage->tensor.parts = &storage->parts;
    atomic_init(&storage->tensor.block_references, 1);
    snprintf(storage->tensor.path, sizeof(storage->tensor.path), "%s", path);
    fire_result_init(&storage->tensor.result);
    return &storage->tensor;
}

enum fire_status request_tensor_open(const struct request_set *set,
                                     const Fire__V1__TensorHeader *header, const char *path,
                                     uint64_t tensor_bytes_max, struct request_tensor **out,
                                     struct fire_error *error)
{
    struct request_tensor *tensor = new_tensor(path);
    enum fire_status status;

    *out = NULL;
    if (!tensor)
        return fire_fail_memory(error, sizeof(struct request_storage));
    tensor->analyze = set->analyze;
    status = read_role(tensor, header, error);
    if (status == FIRE_OK)
        status = read_names(tensor, header, error);
    if (status == FIRE_OK)
        status = read_dtype(tensor, header, error);
    if (status == FIRE_OK)
        status = read_shape(tensor, header, tensor_bytes_max, error);
    if (status == FIRE_OK && tensor->role == REQUEST_WEIGHT)
        status = plan_weight(tensor, set, header, error);
    if (status != FIRE_OK) {
        request_tensor_close(tensor);
        return status;
    }
    if (tensor->role != REQUEST_WEIGHT)
        tensor->parts->block_bytes = tensor->total_bytes;
    *out = tensor;
    return FIRE_OK;
}

/* What may stand in an answer: text that was refused itself may not. */
static char *answerable(const char *text)
{
    return strdup(request_check_text(text, REQUEST_NAME_BYTES_MAX, "", "", NULL) == FIRE_OK ? text
                                                                                            : "");
}

enum fire_status request_tensor_refuse(const Fire__V1__TensorHeader *header,
                                       const struct fire_error *error, struct request_tensor **out)
{
    struct request_tensor *tensor = new_tensor("");

    *out = NULL;
    if (!tensor)
        return FIRE_NO_MEMORY;
    tensor->name = answerable(header->name);
    tensor->parameter = answerable(header->parameter);
    tensor->slot = answerable(header->slot);
    if (!tensor->name || !tensor->parameter || !tensor->slot) {
        request_tensor_close(tensor);
        return FIRE_NO_MEMORY;
    }
    if (read_role(tensor, header, NULL) != FIRE_OK)
        tensor->role = REQUEST_WEIGHT;
    request_tensor_fail(tensor, error, NULL);
    *out = tensor;
    return FIRE_OK;
}

void request_tensor_fail(struct request_tensor *tensor, const struct fire_error *error,
                         const char *reason)
{
    if (tensor->error.status != FIRE_OK)
        return;
    tensor->error = *error;
    tensor->reason = reason;
}

void request_tensor_close(struct request_tensor *tensor)
{
    if (tensor)
        request_block_drop(tensor);
}

/* A block is dropped on a thread of gRPC, whose own locks order that after the hold. The thread
 * sanitizer does not see those, so it is told. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SEEN_BY_THREAD_SANITIZER
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(SEEN_BY_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>
#define ORDER_BEFORE(object) __tsan_release(object)
#define ORDER_AFTER(object)  __tsan_acquire(object)
#else
#define ORDER_BEFORE(object) ((void)(object))
#define ORDER_AFTER(object)  ((void)(object))
#endif

void request_block_hold(struct request_tensor *tensor)
{
    ORDER_BEFORE(tensor);
    atomic_fetch_add_explicit(&tensor->block_references, 1, memory_order_relaxed);
}

void request_block_drop(struct request_tensor *tensor)
{
    ORDER_AFTER(tensor);
    if (atomic_fetch_sub_explicit(&tensor->block_references, 1, memory_order_acq_rel) != 1)
        return;
    arena_free(tensor->arena, tensor->block);
    fire_work_release(&tensor->work);
    free(tensor->name);
    free(tensor->parameter);
    free(tensor->slot);
    free(tensor); /* a request_storage begins with its tensor */
}

/* --- companions ------------------------------------------------------------------------------- */

static bool shapes_equal(const struct fire_shape *a, const struct fire_shape *b)
{
    return a->axes == b->axes && memcmp(a->size, b->size, a->axes * sizeof(a->size[0])) == 0;
}

/* Output units of a weight: what activations have as their last axis. */
static uint64_t unit_count(const struct request_tensor *weight)
{
    if (weight->options.layout == FIRE_LAYOUT_IN_OUT)
        return weight->shape.size[weight->shape.axes - 1];
    return weight->shape.size[weight->options.stack];
}

static enum fire_status check_units(const struct request_tensor *weight,
                                    const struct request_tensor *companion,
                                    struct fire_error *error)
{
    const uint32_t axes = companion->shape.axes;
    char field[FIRE_ERROR_FIELD_BYTES];

    request_field(field, companion->path, "shape");
    if (companion->role == REQUEST_UNIT_MEANS && axes != 1)
        return fire_fail(error, FIRE_BAD_REQUEST, field,
                         "unit means have one axis, not %" PRIu32 "; send one mean a unit", axes);
    if (companion->shape.size[axes - 1] == unit_count(weight))
        return FIRE_OK;
    return fire_fail(error, FIRE_BAD_REQUEST, field,
                     "the last axis has %" PRIu64 " units, but '%.100s' has %" PRIu64
                     " output units; make them equal",
                     companion->shape.size[axes - 1], weight->name, unit_count(weight));
}

static bool same_purpose(const struct request_tensor *a, const struct request_tensor *b)
{
    return a->role == b->role && (a->role != REQUEST_STATE || a->state_slot == b->state_slot);
}

enum fire_status request_tensor_link(struct request_tensor *weight,
                                     struct request_tensor *companion, struct fire_error *error)
{
    const bool same_shape =
        companion->role == REQUEST_GRADIENT ||
        (companion->role == REQUEST_STATE && companion->state_slot != FIRE_SLOT_STEP);
    struct request_tensor **end = &weight->companions;
    enum fire_status status = FIRE_OK;

    FIRE_ASSERT(companion->role != REQUEST_WEIGHT);
    if (weight->error.status != FIRE_OK) {
        /* Nothing will be done with it but sending state back as it came. */
        companion->next_companion = weight->companions;
        weight->companions = companion;
        companion->weight = weight;
        return FIRE_OK;
    }
    if (same_shape && !shapes_equal(&weight->shape, &companion->shape))
        return fail_at(error, companion->path, "shape",
                       "state and gradients have the shape of their weight; send them as the "
                       "optimizer keeps them");
    if (companion->role == REQUEST_ACTIVATIONS || companion->role == REQUEST_UNIT_MEANS)
        status = check_units(weight, companion, error);
    if (status != FIRE_OK)
        return status;
    for (; *end; end = &(*end)->next_companion) {
        if (same_purpose(*end, companion))
            return fail_at(error, companion->path, "role",
                           "the weight has a tensor of this role and slot already; send one");
    }
    *end = companion;
    companion->weight = weight;
    memcpy(companion->options.preset, weight->options.preset, sizeof(weight->options.preset));
    return FIRE_OK;
}
