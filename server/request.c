/* request: a tensor from its header to its jobs. What becomes of it afterwards is request_answer.c.
 *
 * Everything is checked before anything is taken from the arena. The block is laid out by the
 * first request_feed(), on a worker: a tensor may hold many thousands of matrices.
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
#define COPY_BYTES      (64u << 10) /* copied and then looked at while it is in the cache */

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

static uint32_t matrices_a_job(const struct fire_plan *plan)
{
    const uint64_t fit = REQUEST_JOB_BYTES / fire_plan_slot_bytes(plan);

    if (fit > REQUEST_JOB_MATRICES)
        return REQUEST_JOB_MATRICES;
    return fit > 0 ? (uint32_t)fit : 1;
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
        const uint32_t most = matrices_a_job(&part->plan);

        parts->weights_bytes += part->matrices * fire_plan_slot_bytes(&part->plan);
        parts->job_count += (uint32_t)((part->matrices + most - 1) / most);
    }
    take(&end, parts->weights_bytes);
    parts->bytes_offset = take(&end, parts->verbatim || tensor->analyze ? 0 : tensor->total_bytes);
    parts->slots_offset = take(&end, work->view_count * sizeof(*parts->slots));
    parts->entries_offset = take(&end, work->matrices * sizeof(*parts->entries));
    parts->results_offset = take(&end, work->view_count * sizeof(*parts->results));
    parts->jobs_offset = take(&end, parts->job_count * sizeof(*parts->jobs));
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

void request_block_hold(struct request_tensor *tensor)
{
    atomic_fetch_add_explicit(&tensor->block_references, 1, memory_order_relaxed);
}

void request_block_drop(struct request_tensor *tensor)
{
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

/* --- bytes ------------------------------------------------------------------------------------ */

uint64_t request_tensor_block_bytes(const struct request_tensor *tensor)
{
    return tensor->parts->block_bytes;
}

enum fire_status request_tensor_reserve(struct request_tensor *tensor, struct arena *arena,
                                        struct fire_error *error)
{
    const uint64_t bytes = tensor->parts->block_bytes;

    FIRE_ASSERT(!tensor->block);
    if (bytes > arena_bytes(arena))
        return fire_fail(error, FIRE_BAD_REQUEST, tensor->path,
                         "tensor '%.100s' needs %" PRIu64 " bytes with its matrices, but the "
                         "daemon has %" PRIu64 " for all slots: send it in parts, or raise "
                         "memory_budget_bytes",
                         tensor->name, bytes, arena_bytes(arena));
    tensor->block = arena_alloc(arena, bytes);
    if (!tensor->block)
        return fire_fail(error, FIRE_BUSY, tensor->path,
                         "there is no room for the %" PRIu64 " bytes of tensor '%.100s' now; try "
                         "again later",
                         bytes, tensor->name);
    tensor->arena = arena;
    return FIRE_OK;
}

/* Every part's matrices become entries next to each other, in view order. */
static void lay_entries(struct request_tensor *tensor)
{
    const struct fire_work *work = &tensor->work;
    struct request_parts *parts = tensor->parts;
    uint64_t next[FIRE_SPLIT_MAX] = { 0 };
    uint8_t *weights = parts->weights;

    FIRE_ASSERT(work->part_count <= FIRE_SPLIT_MAX);
    for (uint32_t i = 1; i < work->part_count; i++)
        next[i] = next[i - 1] + work->parts[i - 1].matrices;
    for (uint64_t v = 0; v < work->view_count; v++) {
        struct fire_view view;
        uint32_t part;

        fire_view_at(&tensor->shape, &tensor->options, v, &view);
        part = fire_work_part_of(work, &view);
        parts->slots[v] = part == UINT32_MAX ? NULL : weights;
        fire_result_init(&parts->results[v]);
        if (part == UINT32_MAX)
            continue;
        parts->entries[next[part]++] =
            (struct fire_slot){ .weights = weights,
                                .result = &parts->results[v],
                                .seed = fire_work_seed(&tensor->options, tensor->name, v) };
        weights += fire_plan_slot_bytes(&work->parts[part].plan);
    }
    FIRE_ASSERT(weights == parts->weights + parts->weights_bytes);
}

static void lay_jobs(struct request_tensor *tensor)
{
    const struct fire_work *work = &tensor->work;
    struct request_parts *parts = tensor->parts;
    struct fire_slot *entries = parts->entries;
    uint32_t job = 0;

    for (uint32_t i = 0; i < work->part_count; i++) {
        const struct fire_work_part *part = &work->parts[i];
        const uint32_t most = matrices_a_job(&part->plan);

        for (uint64_t done = 0; done < part->matrices; done += most) {
            const uint64_t left = part->matrices - done;

            parts->jobs[job++] = (struct request_job){
                .job = { .plan = &part->plan,
                         .slots = entries + done,
                         .matrix_count = (uint32_t)(left < most ? left : most) },
                .tensor = tensor,
            };
        }
        entries += part->matrices;
    }
    FIRE_ASSERT(job == parts->job_count);
}

static void lay_out(struct request_tensor *tensor)
{
    struct request_parts *parts = tensor->parts;
    uint8_t *block = tensor->block;

    parts->laid_out = true;
    if (tensor->role != REQUEST_WEIGHT) {
        parts->bytes = block;
        return;
    }
    parts->weights = block;
    parts->bytes = block + parts->bytes_offset;
    parts->slots = (void **)(block + parts->slots_offset);
    parts->entries = (struct fire_slot *)(block + parts->entries_offset);
    parts->results = (struct fire_result *)(block + parts->results_offset);
    parts->jobs = (struct request_job *)(block + parts->jobs_offset);
    lay_entries(tensor);
    lay_jobs(tensor);
}

/* True when one of `count` elements has all bits of its exponent set, which NaN and Inf have and
 * nothing else. Loops without an early way out, so that compilers make vectors of them. */
static bool any_not_finite(const uint8_t *elements, enum fire_dtype dtype, uint64_t count)
{
    uint32_t found = 0;

    if (dtype == FIRE_F64) {
        for (uint64_t i = 0; i < count; i++) {
            uint64_t bits;

            memcpy(&bits, elements + 8 * i, sizeof(bits));
            found |= (bits & 0x7ff0000000000000u) == 0x7ff0000000000000u;
        }
        return found != 0;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, elements + 4 * i, sizeof(bits));
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return found != 0;
}

static enum fire_status not_finite(const struct request_tensor *tensor, double value,
                                   uint64_t index, struct fire_error *error)
{
    fire_work_describe_element(tensor->name, &tensor->shape, value, index, error);
    memcpy(error->field, tensor->path, sizeof(tensor->path));
    return FIRE_BAD_REQUEST;
}

/* The slots are the bytes: copied as they come, and looked at while they are near. */
static enum fire_status feed_verbatim(struct request_tensor *tensor, const uint8_t *bytes,
                                      size_t count, struct fire_error *error)
{
    const size_t size = fire_dtype_bytes(tensor->dtype);
    uint8_t *weights = tensor->parts->weights;

    while (count > 0) {
        const size_t run = count < COPY_BYTES ? count : COPY_BYTES;
        const uint64_t first = tensor->received_bytes / size;
        uint64_t end;

        memcpy(weights + tensor->received_bytes, bytes, run);
        tensor->received_bytes += run;
        bytes += run;
        count -= run;
        end = tensor->received_bytes / size;
        if (!any_not_finite(weights + first * size, tensor->dtype, end - first))
            continue;
        for (uint64_t i = first; i < end; i++) {
            const double value = fire_dtype_element(tensor->dtype, weights, i);

            if (!isfinite(value))
                return not_finite(tensor, value, i, error);
        }
    }
    return FIRE_OK;
}

/* `count` whole elements, the next of the tensor. */
static enum fire_status gather(struct request_tensor *tensor, uint64_t first, uint64_t count,
                               const uint8_t *bytes, struct fire_error *error)
{
    uint64_t bad = 0;

    if (count == 0 || tensor->work.matrices == 0)
        return FIRE_OK;
    if (fire_work_gather(&tensor->shape, &tensor->options, tensor->dtype,
                         tensor->work.parts[0].plan.compute, first, count, bytes,
                         tensor->parts->slots, &bad) == FIRE_OK)
        return FIRE_OK;
    return not_finite(tensor, fire_dtype_element(tensor->dtype, bytes, bad - first), bad, error);
}

/* Pieces end where the network likes: an element cut in two waits for its rest. */
static enum fire_status feed_elements(struct request_tensor *tensor, const uint8_t *bytes,
                                      size_t count, struct fire_error *error)
{
    struct request_parts *parts = tensor->parts;
    const size_t size = fire_dtype_bytes(tensor->dtype);
    enum fire_status status = FIRE_OK;
    size_t whole;

    if (parts->keep_raw)
        memcpy(parts->bytes + tensor->received_bytes, bytes, count);
    while (parts->carry_bytes > 0 && count > 0 && parts->carry_bytes < size) {
        parts->carry[parts->carry_bytes++] = *bytes++;
        tensor->received_bytes++;
        count--;
    }
    if (parts->carry_bytes == size) {
        status = gather(tensor, tensor->received_bytes / size - 1, 1, parts->carry, error);
        parts->carry_bytes = 0;
    }
    whole = count / size;
    if (status == FIRE_OK)
        status = gather(tensor, tensor->received_bytes / size, whole, bytes, error);
    if (count > whole * size) {
        parts->carry_bytes = (uint32_t)(count - whole * size);
        memcpy(parts->carry, bytes + whole * size, parts->carry_bytes);
    }
    tensor->received_bytes += count;
    return status;
}

enum fire_status request_feed(struct request_tensor *tensor, const uint8_t *bytes, size_t count,
                              struct fire_error *error)
{
    FIRE_ASSERT(tensor->block);
    if (count > tensor->total_bytes - tensor->received_bytes)
        return fire_fail(error, FIRE_BAD_REQUEST, tensor->path,
                         "more than the %" PRIu64 " bytes of tensor '%.100s' were sent; send what "
                         "shape and dtype say",
                         tensor->total_bytes, tensor->name);
    if (!tensor->parts->laid_out)
        lay_out(tensor);
    if (tensor->role != REQUEST_WEIGHT) {
        memcpy(tensor->parts->bytes + tensor->received_bytes, bytes, count);
        tensor->received_bytes += count;
        return FIRE_OK;
    }
    if (tensor->parts->verbatim)
        return feed_verbatim(tensor, bytes, count, error);
    return feed_elements(tensor, bytes, count, error);
}

/* --- jobs ------------------------------------------------------------------------------------- */

uint32_t request_job_count(const struct request_tensor *tensor)
{
    return tensor->parts->job_count;
}

struct job *request_job(struct request_tensor *tensor, uint32_t index)
{
    FIRE_ASSERT(index < tensor->parts->job_count);
    FIRE_ASSERT(tensor->parts->laid_out);
    return &tensor->parts->jobs[index].job;
}

void request_estimate(const struct request_tensor *tensor, struct scheduler *scheduler,
                      const struct tenant *tenant, double *wait_s, double *own_s)
{
    *wait_s = 0;
    *own_s = 0;
    for (uint32_t i = 0; i < tensor->work.part_count; i++) {
        const struct fire_work_part *part = &tensor->work.parts[i];
        const double wait = scheduler_estimate_s(scheduler, tenant, &part->plan, 0);

        if (!isfinite(wait)) {
            /* No device at all: submitting will say so. */
            *wait_s = 0;
            *own_s = 0;
            return;
        }
        *wait_s = fmax(*wait_s, wait);
        *own_s += fmax(
            0.0,
            scheduler_estimate_s(scheduler, tenant, &part->plan, (uint32_t)part->matrices) - wait);
    }
}

static double milliseconds_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-6 : 0.0;
}

static void job_is_done(struct job *job, enum fire_status status)
{
    struct request_job *own = (struct request_job *)job;
    struct request_tensor *tensor = own->tensor;

    FIRE_ASSERT(own->pending);
    own->pending = false;
    tensor->jobs_left--;
    if (status != FIRE_OK) {
        struct fire_error error = { 0 };

        fire_fail(&error, status, tensor->path, "tensor '%.100s' was not computed: %s; try again",
                  tensor->name,
                  status == FIRE_DEVICE_LOST ? "the device was lost" : fire_status_name(status));
        request_tensor_fail(tensor, &error, NULL);
    }
    tensor->batch_id = job->batch_id;
    tensor->batch_size = job->batch_size;
    tensor->close_reason = job->close_reason;
    tensor->queue_ms = milliseconds_between(job->submitted_ns, job->started_ns);
    tensor->compute_ms = milliseconds_between(job->started_ns, job->finished_ns);
    if (tensor->jobs_left == 0)
        own->done(tensor);
}

enum fire_status request_submit(struct request_tensor *tensor,
                                const struct request_submission *submission,
                                struct fire_error *error)
{
    struct request_parts *parts = tensor->parts;

    FIRE_ASSERT(tensor->received_bytes == tensor->total_bytes);
    for (uint32_t i = 0; i < parts->job_count; i++) {
        struct request_job *own = &parts->jobs[i];
        enum fire_status status;

        own->done = submission->done;
        own->job.tenant = submission->tenant;
        own->job.priority = submission->priority;
        own->job.deadline_ns = submission->deadline_ns;
        own->job.end_of_set = submission->end_of_set;
        own->job.call_id = submission->call_id;
        own->job.done = job_is_done;
        own->job.data = tensor;
        own->pending = true;
        tensor->jobs_left++;
        status = scheduler_submit(submission->scheduler, &own->job, error);
        if (status != FIRE_OK) {
            own->pending = false;
            tensor->jobs_left--;
            request_cancel(tensor, submission->scheduler);
            return status;
        }
    }
    return FIRE_OK;
}

void request_end_set(struct request_tensor *tensor, struct scheduler *scheduler)
{
    struct request_parts *parts = tensor->parts;

    for (uint32_t i = 0; tensor->jobs_left > 0 && i < parts->job_count; i++) {
        struct request_job *own = &parts->jobs[i];
        struct fire_error error = { 0 };
        enum fire_status status;

        if (!own->pending || own->job.end_of_set || !scheduler_cancel(scheduler, &own->job))
            continue;
        own->job.end_of_set = true;
        status = scheduler_submit(scheduler, &own->job, &error);
        if (status == FIRE_OK)
            continue;
        /* Its place was taken, or its time has passed: as if the device had said so. */
        job_is_done(&own->job, status);
        return;
    }
}

void request_cancel(struct request_tensor *tensor, struct scheduler *scheduler)
{
    struct request_parts *parts = tensor->parts;

    for (uint32_t i = 0; tensor->jobs_left > 0 && i < parts->job_count; i++) {
        if (!parts->jobs[i].pending || !scheduler_cancel(scheduler, &parts->jobs[i].job))
            continue;
        parts->jobs[i].pending = false;
        tensor->jobs_left--;
    }
}
