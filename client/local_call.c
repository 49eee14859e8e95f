/* local_call: turns the tensors of one call into groups of matrices that share a plan.
 *
 * Nothing is computed here and no caller's memory is written except results and errors. Parts are
 * as many as there are tensors times the distinct matrix shapes in each, never as many as there are
 * matrices. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "local.h"

#define FINITE_BLOCK 4096u /* elements looked at before deciding */

static const char *shown_name(const struct fire_tensor *tensor)
{
    return tensor->name ? tensor->name : "(unnamed)";
}

void local_refuse(struct local_call *call, size_t index, const struct fire_error *error)
{
    struct fire_tensor *tensor = &call->tensors[index];
    struct local_work *work = &call->works[index];

    if (work->refused)
        return;
    work->refused = true;
    if (work->scattered && work->backup)
        memcpy(tensor->out, work->backup, work->elements * fire_dtype_bytes(tensor->dtype));
    tensor->error = *error;
    fire_result_init(&tensor->result);
    tensor->result.action = FIRE_ACTION_REFUSED;
    tensor->result.status = error->status;
    snprintf(tensor->result.reason, sizeof(tensor->result.reason), "%.*s",
             (int)sizeof(tensor->result.reason) - 1, error->message);
}

/* Puts the tensor's name in front of an error that lower layers left about its options. */
static void name_error(const struct fire_tensor *tensor, struct fire_error *error)
{
    char message[FIRE_ERROR_MESSAGE_BYTES];

    memcpy(message, error->message, sizeof(message));
    fire_fail(error, error->status, error->field[0] ? error->field : shown_name(tensor),
              "tensor '%s': %.*s", shown_name(tensor), (int)sizeof(message) - 1, message);
}

void local_describe_element(const struct fire_tensor *tensor, uint64_t index,
                            struct fire_error *error)
{
    fire_work_describe_element(tensor->name, &tensor->shape,
                               fire_dtype_element(tensor->dtype, tensor->data, index), index,
                               error);
}

/* True when one of `count` elements has all bits of its exponent set, which NaN and Inf have and
 * nothing else. Loops without an early way out, so that compilers make vectors of them. */
static bool any_not_finite(const unsigned char *data, enum fire_dtype dtype, uint64_t count)
{
    const uint16_t half_mask = dtype == FIRE_BF16 ? 0x7f80u : 0x7c00u;
    uint32_t found = 0;

    switch (dtype) {
    case FIRE_F64:
        for (uint64_t i = 0; i < count; i++) {
            uint64_t bits;

            memcpy(&bits, data + 8 * i, sizeof(bits));
            found |= (bits & 0x7ff0000000000000u) == 0x7ff0000000000000u;
        }
        break;
    case FIRE_F32:
        for (uint64_t i = 0; i < count; i++) {
            uint32_t bits;

            memcpy(&bits, data + 4 * i, sizeof(bits));
            found |= (bits & 0x7f800000u) == 0x7f800000u;
        }
        break;
    case FIRE_BF16:
    case FIRE_F16:
        for (uint64_t i = 0; i < count; i++) {
            uint16_t bits;

            memcpy(&bits, data + 2 * i, sizeof(bits));
            found |= (bits & half_mask) == half_mask;
        }
        break;
    }
    return found != 0;
}

enum fire_status local_check_finite(const struct fire_tensor *tensor, uint64_t elements,
                                    struct fire_error *error)
{
    const size_t bytes = fire_dtype_bytes(tensor->dtype);

    for (uint64_t start = 0; start < elements; start += FINITE_BLOCK) {
        const uint64_t count = elements - start < FINITE_BLOCK ? elements - start : FINITE_BLOCK;
        uint64_t index = start;

        if (!any_not_finite((const unsigned char *)tensor->data + start * bytes, tensor->dtype,
                            count))
            continue;
        while (isfinite(fire_dtype_element(tensor->dtype, tensor->data, index)))
            index++;
        local_describe_element(tensor, index, error);
        return FIRE_BAD_REQUEST;
    }
    return FIRE_OK;
}

/* Grows an array so that one more element fits. */
static enum fire_status make_room(void **array, size_t *room, size_t used, size_t element_bytes,
                                  struct fire_error *error)
{
    const size_t wanted = *room ? 2 * *room : 16;
    void *grown;

    if (used < *room)
        return FIRE_OK;
    grown = realloc(*array, wanted * element_bytes);
    if (!grown)
        return fire_fail_memory(error, wanted * element_bytes);
    *array = grown;
    *room = wanted;
    return FIRE_OK;
}

/* The group with this plan, made if it is new. */
static enum fire_status find_group(struct local_call *call, const struct fire_plan *plan,
                                   size_t *group, struct fire_error *error)
{
    enum fire_status status;

    /* The newest first: neighbouring tensors are often alike. */
    for (size_t i = call->group_count; i-- > 0;) {
        const struct fire_plan *known = &call->groups[i].plan;

        if (known->digest == plan->digest && known->rows == plan->rows &&
            known->cols == plan->cols && known->kind == plan->kind &&
            known->compute == plan->compute && known->output == plan->output) {
            *group = i;
            return FIRE_OK;
        }
    }
    status = make_room((void **)&call->groups, &call->group_room, call->group_count,
                       sizeof(*call->groups), error);
    if (status != FIRE_OK)
        return status;
    *group = call->group_count++;
    call->groups[*group] = (struct local_group){ *plan, SIZE_MAX, SIZE_MAX };
    return FIRE_OK;
}

/* Adds a part of tensor `index` to a group. */
static enum fire_status link_part(struct local_call *call, const struct local_part *part,
                                  struct fire_error *error)
{
    struct local_group *group = &call->groups[part->group];
    enum fire_status status = make_room((void **)&call->parts, &call->part_room, call->part_count,
                                        sizeof(*call->parts), error);

    if (status != FIRE_OK)
        return status;
    call->parts[call->part_count] = *part;
    if (group->part_first == SIZE_MAX)
        group->part_first = call->part_count;
    else
        call->parts[group->part_last].next = call->part_count;
    group->part_last = call->part_count++;
    call->works[part->tensor].part_count++;
    return FIRE_OK;
}

/* Room for what a tensor needs while its matrices come back in more than one batch. */
static enum fire_status prepare_spanning(struct local_call *call, size_t index,
                                         struct fire_error *error)
{
    const struct fire_tensor *tensor = &call->tensors[index];
    struct local_work *work = &call->works[index];
    const uint64_t bytes = work->elements * fire_dtype_bytes(tensor->dtype);

    if (!call->analyze && tensor->out == tensor->data) {
        work->backup = malloc(bytes);
        if (!work->backup)
            return fire_fail_memory(error, bytes);
        memcpy(work->backup, tensor->data, bytes);
    }
    if (work->part_count > 1) {
        work->results = calloc(work->view_count, sizeof(*work->results));
        if (!work->results)
            return fire_fail_memory(error, work->view_count * sizeof(*work->results));
    }
    return FIRE_OK;
}

static enum fire_status check_pointers(const struct local_call *call,
                                       const struct fire_tensor *tensor, struct fire_error *error)
{
    if (tensor->data && (call->analyze || tensor->out))
        return FIRE_OK;
    return fire_fail(error, FIRE_BAD_REQUEST, "data", "data%s must not be NULL",
                     call->analyze ? "" : " and out");
}

/* What the rule leaves alone of a tensor, when the caller wants to know of each matrix. */
static void skip_views(struct fire_tensor *tensor, const struct fire_work *planned)
{
    if (!tensor->per_matrix || planned->matrices == planned->view_count)
        return;
    for (uint64_t v = 0; v < planned->view_count; v++) {
        struct fire_view view;

        fire_view_at(&tensor->shape, &tensor->options, v, &view);
        if (fire_work_part_of(planned, &view) == UINT32_MAX)
            fire_work_skip(&tensor->per_matrix[v], 1);
    }
}

/* Plans a tensor and adds its parts to their groups. `fault` tells a fault of the tensor, which
 * refuses only it, from one of the call. */
static enum fire_status plan_views(struct local_call *call, size_t index, bool *fault,
                                   struct fire_error *error)
{
    struct fire_tensor *tensor = &call->tensors[index];
    struct local_work *work = &call->works[index];
    struct fire_work planned;
    enum fire_status status =
        fire_work_init(&planned, &tensor->shape, tensor->dtype, &tensor->options, call->analyze,
                       call->statistics, error);

    *fault = status != FIRE_NO_MEMORY;
    if (status != FIRE_OK)
        return status;
    *fault = false;
    work->elements = planned.elements;
    work->view_count = planned.view_count;
    work->matrices = planned.matrices;
    for (uint32_t i = 0; i < planned.part_count && status == FIRE_OK; i++) {
        const struct fire_work_part *from = &planned.parts[i];
        struct local_part part = { index, 0, SIZE_MAX, from->rows, from->cols, from->matrices };

        status = find_group(call, &from->plan, &part.group, error);
        if (status == FIRE_OK)
            status = link_part(call, &part, error);
        if (fire_plan_slot_bytes(&from->plan) > call->slab_bytes)
            call->slab_bytes = fire_plan_slot_bytes(&from->plan);
    }
    if (status == FIRE_OK)
        skip_views(tensor, &planned);
    fire_work_release(&planned);
    return status;
}

/* True when tensor `index` is like the one before it, of which nothing was skipped and whose plan
 * then serves it too. Options are plain data whose padding the presets zero; bytes that differ only
 * cost a plan. */
static bool like_the_last(const struct local_call *call, size_t index)
{
    const struct fire_tensor *tensor = &call->tensors[index];
    const struct fire_tensor *last = tensor - 1;

    if (index == 0 || call->works[index - 1].refused || call->works[index - 1].part_count != 1 ||
        call->works[index - 1].matrices != call->works[index - 1].view_count ||
        tensor->dtype != last->dtype || tensor->shape.axes != last->shape.axes)
        return false;
    for (uint32_t axis = 0; axis < tensor->shape.axes; axis++) {
        if (tensor->shape.size[axis] != last->shape.size[axis])
            return false;
    }
    return memcmp(&tensor->options, &last->options, sizeof(tensor->options)) == 0;
}

static enum fire_status plan_like_the_last(struct local_call *call, size_t index,
                                           struct fire_error *error)
{
    const struct local_work *last = &call->works[index - 1];
    struct local_work *work = &call->works[index];
    struct local_part part = call->parts[last->part_first];

    work->view_count = last->view_count;
    work->elements = last->elements;
    work->matrices = last->matrices;
    part.tensor = index;
    part.next = SIZE_MAX;
    return link_part(call, &part, error);
}

static enum fire_status plan_tensor(struct local_call *call, size_t index, bool *fault,
                                    struct fire_error *error)
{
    struct fire_tensor *tensor = &call->tensors[index];
    struct local_work *work = &call->works[index];
    const struct local_part *part;
    enum fire_status status;

    work->part_first = call->part_count;
    *fault = true;
    status = check_pointers(call, tensor, error);
    if (status == FIRE_OK && like_the_last(call, index)) {
        *fault = false;
        status = plan_like_the_last(call, index, error);
    } else if (status == FIRE_OK) {
        status = plan_views(call, index, fault, error);
    }
    if (status != FIRE_OK)
        return status;
    if (work->matrices == 0) {
        fire_work_skip(&tensor->result, work->view_count);
        return FIRE_OK;
    }
    part = &call->parts[work->part_first];
    work->whole =
        work->part_count == 1 && part->matrices <= LOCAL_SLOTS_MAX &&
        part->matrices * fire_plan_slot_bytes(&call->groups[part->group].plan) <= call->slab_bytes;
    work->together = work->whole && work->matrices == work->view_count;
    if (work->whole)
        return FIRE_OK;
    *fault = true;
    status = local_check_finite(tensor, work->elements, error);
    if (status != FIRE_OK)
        return status;
    *fault = false;
    return prepare_spanning(call, index, error);
}

enum fire_status local_call_init(struct local_call *call, struct fire_tensor *tensors, size_t count,
                                 uint64_t slab_bytes, struct fire_error *error)
{
    struct fire_error own = { 0 };

    call->tensors = tensors;
    call->tensor_count = count;
    call->slab_bytes = slab_bytes;
    call->works = calloc(count ? count : 1, sizeof(*call->works));
    if (!call->works)
        return fire_fail_memory(error, count * sizeof(*call->works));
    for (size_t i = 0; i < count; i++) {
        bool fault;

        if (plan_tensor(call, i, &fault, &own) == FIRE_OK)
            continue;
        name_error(&tensors[i], &own);
        if (!fault) {
            *error = own;
            return own.status;
        }
        local_refuse(call, i, &own);
    }
    call->part_at = call->group_count ? call->groups[0].part_first : SIZE_MAX;
    return FIRE_OK;
}

void local_call_release(struct local_call *call)
{
    for (size_t i = 0; call->works && i < call->tensor_count; i++) {
        free(call->works[i].backup);
        free(call->works[i].results);
    }
    free(call->works);
    free(call->groups);
    free(call->parts);
}
