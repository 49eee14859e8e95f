/* local: libfire's in-process client, on the CPU backend.
 *
 * Invariants of a call:
 *   a tensor's `out` is written only from batches in which all its matrices are known to be finite
 *   a refused tensor whose `out` is its `data` has its old bytes back when the call returns
 *   at most LOCAL_BATCHES batches are with the device, and none when the call returns
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "local.h"

/* Whose matrix a slot holds. */
struct slot_owner {
    size_t tensor;
    struct fire_view view;
    uint64_t view_index;
};

struct local_batch {
    struct fire_batch batch;
    struct fire_slot *slots;
    struct fire_result *results;
    struct slot_owner *owners;
    uint32_t slot_room;
    unsigned char *slab; /* the device's host memory */
    uint64_t slab_bytes;
    bool submitted;
};

struct local_client {
    struct fire_client base; /* first: a struct fire_client is one of these */
    const struct fire_backend *backend;
    struct fire_device *device;
    uint64_t slab_bytes;
    struct local_batch batches[LOCAL_BATCHES];
};

static void batch_release(struct local_client *client, struct local_batch *batch)
{
    free(batch->slots);
    free(batch->results);
    free(batch->owners);
    if (batch->slab)
        client->backend->host_free(client->device, batch->slab);
    *batch = (struct local_batch){ 0 };
}

static void local_close(struct fire_client *base)
{
    struct local_client *client = (struct local_client *)base;

    for (uint32_t i = 0; i < LOCAL_BATCHES; i++)
        batch_release(client, &client->batches[i]);
    client->backend->close(client->device);
    free(client);
}

static void local_caps(const struct fire_client *base, struct fire_caps *caps)
{
    const struct local_client *client = (const struct local_client *)base;

    client->backend->caps(client->device, caps);
}

/* Makes sure that `batch` can hold `slot_count` slots and `bytes` of them. */
static enum fire_status batch_reserve(struct local_client *client, struct local_batch *batch,
                                      uint32_t slot_count, uint64_t bytes, struct fire_error *error)
{
    if (batch->slot_room >= slot_count && batch->slab_bytes >= bytes)
        return FIRE_OK;
    if (slot_count < batch->slot_room)
        slot_count = batch->slot_room;
    if (bytes < batch->slab_bytes)
        bytes = batch->slab_bytes;
    batch_release(client, batch);
    batch->slots = calloc(slot_count, sizeof(*batch->slots));
    batch->results = calloc(slot_count, sizeof(*batch->results));
    batch->owners = calloc(slot_count, sizeof(*batch->owners));
    batch->slab = client->backend->host_alloc(client->device, bytes);
    if (!batch->slots || !batch->results || !batch->owners || !batch->slab) {
        batch_release(client, batch);
        return fire_fail_memory(error, bytes);
    }
    batch->slot_room = slot_count;
    batch->slab_bytes = bytes;
    return FIRE_OK;
}

/* Moves to the next part, in the next group when this one is exhausted. */
static void cursor_next_part(struct local_call *call)
{
    call->view_at = 0;
    call->part_at = call->parts[call->part_at].next;
    if (call->part_at != SIZE_MAX)
        return;
    call->group_at++;
    if (call->group_at < call->group_count)
        call->part_at = call->groups[call->group_at].part_first;
}

/* Copies one matrix into the next slot. A bad one refuses its tensor and takes no slot. */
static void gather_one(struct local_call *call, struct local_batch *batch, size_t slot_bytes)
{
    const size_t index = call->parts[call->part_at].tensor;
    struct fire_tensor *tensor = &call->tensors[index];
    const uint32_t slot_index = batch->batch.slot_count;
    struct slot_owner *owner = &batch->owners[slot_index];
    struct fire_slot *slot = &batch->slots[slot_index];
    uint64_t bad_index = 0;

    owner->tensor = index;
    slot->weights = batch->slab + (size_t)slot_index * slot_bytes;
    slot->result = &batch->results[slot_index];
    slot->seed = fire_work_seed(&tensor->options, tensor->name, owner->view_index);
    fire_result_init(slot->result);
    if (fire_view_gather(&owner->view, tensor->data, tensor->dtype, batch->batch.plan->compute,
                         slot->weights, &bad_index) == FIRE_OK) {
        batch->batch.slot_count++;
    } else {
        struct fire_error error = { 0 };

        local_describe_element(tensor, bad_index, &error);
        local_refuse(call, index, &error);
    }
}

/* Fills one batch from where gathering stands: matrices of one group, as many as fit. A tensor that
 * can travel whole is not torn apart. slot_count is 0 only when everything has been gathered. */
static void batch_fill(struct local_call *call, struct local_batch *batch)
{
    uint32_t slots_max;
    size_t slot_bytes;

    batch->batch = (struct fire_batch){ .slots = batch->slots };
    while (call->group_at < call->group_count) {
        const struct local_part *part = &call->parts[call->part_at];
        const struct local_work *work = &call->works[part->tensor];
        const struct fire_tensor *tensor = &call->tensors[part->tensor];
        struct local_group *group = &call->groups[call->group_at];

        if (batch->batch.slot_count && batch->batch.plan != &group->plan)
            return;
        batch->batch.plan = &group->plan;
        slot_bytes = fire_plan_slot_bytes(&group->plan);
        slots_max = batch->slab_bytes / slot_bytes < batch->slot_room
                        ? (uint32_t)(batch->slab_bytes / slot_bytes)
                        : batch->slot_room;
        if (call->view_at == 0 && work->whole && batch->batch.slot_count &&
            part->matrices > slots_max - batch->batch.slot_count)
            return;
        while (!work->refused && call->view_at < work->view_count) {
            struct slot_owner *owner = &batch->owners[batch->batch.slot_count];

            if (batch->batch.slot_count == slots_max)
                return;
            owner->view_index = call->view_at++;
            fire_view_at(&tensor->shape, &tensor->options, owner->view_index, &owner->view);
            if (owner->view.rows == part->rows && owner->view.cols == part->cols)
                gather_one(call, batch, slot_bytes);
        }
        cursor_next_part(call);
    }
}

/* Takes the result of one matrix; with the last one the tensor is finished. */
static void take_result(struct local_call *call, const struct slot_owner *owner,
                        const struct fire_result *result)
{
    struct fire_tensor *tensor = &call->tensors[owner->tensor];
    struct local_work *work = &call->works[owner->tensor];

    if (tensor->per_matrix)
        tensor->per_matrix[owner->view_index] = *result;
    if (work->results)
        work->results[owner->view_index] = *result;
    else
        fire_result_merge(&tensor->result, result);
    work->finished++;
    if (work->finished < work->matrices)
        return;
    /* Unequal blocks arrive group by group; merging in view order keeps sums independent of what
     * else is in the call. */
    for (uint64_t v = 0; work->results && v < work->view_count; v++) {
        if (work->results[v].matrices)
            fire_result_merge(&tensor->result, &work->results[v]);
    }
}

static void scatter_one(struct local_call *call, const struct local_batch *batch, uint32_t slot)
{
    const struct slot_owner *owner = &batch->owners[slot];
    struct fire_tensor *tensor = &call->tensors[owner->tensor];
    struct local_work *work = &call->works[owner->tensor];
    const bool elsewhere = tensor->out != tensor->data;

    /* What is no matrix, or one skipped by rule, keeps its bytes, also in an `out` elsewhere. */
    if (!work->scattered && elsewhere &&
        (tensor->options.split_skip || work->matrices < work->view_count))
        memcpy(tensor->out, tensor->data, work->elements * fire_dtype_bytes(tensor->dtype));
    work->scattered = true;
    /* A slot that the device left alone still holds the old weights, and widening is exact. */
    if (elsewhere || batch->results[slot].action == FIRE_ACTION_PROJECTED)
        fire_view_scatter(&owner->view, batch->slots[slot].weights, batch->batch.plan->compute,
                          tensor->dtype, tensor->out);
}

static void refuse_for_result(struct local_call *call, size_t index,
                              const struct fire_result *result)
{
    struct fire_error error = { 0 };
    const char *name = call->tensors[index].name ? call->tensors[index].name : "(unnamed)";

    fire_fail(&error, result->status == FIRE_OK ? FIRE_BAD_REQUEST : result->status, name,
              "tensor '%s' was refused: %s", name,
              result->reason[0] ? result->reason : fire_status_name(result->status));
    local_refuse(call, index, &error);
}

/* Waits for a batch and hands its results out. */
static void batch_finish(struct local_client *client, struct local_call *call,
                         struct local_batch *batch)
{
    enum fire_status status;

    if (!batch->submitted)
        return;
    status = client->backend->wait(client->device, &batch->batch);
    batch->submitted = false;
    for (uint32_t i = 0; i < batch->batch.slot_count; i++) {
        const size_t tensor = batch->owners[i].tensor;

        if (status != FIRE_OK) {
            batch->results[i].status = status;
            snprintf(batch->results[i].reason, sizeof(batch->results[i].reason), "%.90s",
                     client->backend->last_error(client->device));
            refuse_for_result(call, tensor, &batch->results[i]);
        } else if (batch->results[i].action == FIRE_ACTION_REFUSED) {
            refuse_for_result(call, tensor, &batch->results[i]);
        }
    }
    for (uint32_t i = 0; i < batch->batch.slot_count; i++) {
        if (call->works[batch->owners[i].tensor].refused)
            continue;
        if (!call->analyze)
            scatter_one(call, batch, i);
        take_result(call, &batch->owners[i], &batch->results[i]);
    }
}

static void batch_submit(struct local_client *client, struct local_call *call,
                         struct local_batch *batch)
{
    const enum fire_status status = client->backend->submit(client->device, &batch->batch);

    batch->submitted = status == FIRE_OK;
    for (uint32_t i = 0; status != FIRE_OK && i < batch->batch.slot_count; i++) {
        batch->results[i].status = status;
        refuse_for_result(call, batch->owners[i].tensor, &batch->results[i]);
    }
}

/* Slots and bytes of the largest batch, and whether two are needed at all. */
static void call_extent(const struct local_call *call, uint32_t *slots, uint64_t *bytes,
                        bool *several)
{
    uint64_t batches = 0;

    *slots = 1;
    *bytes = 64;
    for (size_t g = 0; g < call->group_count; g++) {
        const uint64_t slot_bytes = fire_plan_slot_bytes(&call->groups[g].plan);
        uint64_t matrices = 0;
        uint64_t fit = call->slab_bytes / slot_bytes;

        for (size_t p = call->groups[g].part_first; p != SIZE_MAX; p = call->parts[p].next)
            matrices += call->parts[p].matrices;
        if (fit > LOCAL_SLOTS_MAX)
            fit = LOCAL_SLOTS_MAX;
        batches += matrices > fit ? 2 : 1;
        if (fit > matrices)
            fit = matrices;
        if (fit > *slots)
            *slots = (uint32_t)fit;
        if (fit * slot_bytes > *bytes)
            *bytes = fit * slot_bytes;
    }
    *several = batches > 1;
}

static enum fire_status call_run(struct local_client *client, struct local_call *call,
                                 struct fire_error *error)
{
    enum fire_status status;
    uint32_t slots;
    uint64_t bytes;
    uint32_t turn = 0;
    bool several;

    call_extent(call, &slots, &bytes, &several);
    /* A matrix larger than a slab computes so long that gathering the next beside it gains nothing
     * and would only cost the memory. */
    if (bytes > client->slab_bytes)
        several = false;
    status = batch_reserve(client, &client->batches[0], slots, bytes, error);
    if (status == FIRE_OK && several)
        status = batch_reserve(client, &client->batches[1], slots, bytes, error);
    if (status != FIRE_OK)
        return status;
    for (;;) {
        struct local_batch *batch = &client->batches[turn];

        batch_fill(call, batch);
        if (batch->batch.slot_count == 0)
            break;
        batch_submit(client, call, batch);
        turn = several ? !turn : turn;
        batch_finish(client, call, &client->batches[turn]);
    }
    for (uint32_t i = 0; i < LOCAL_BATCHES; i++)
        batch_finish(client, call, &client->batches[i]);
    return FIRE_OK;
}

/* The last words about every tensor, and the status of the call: the first refusal's. */
static enum fire_status call_conclude(struct local_call *call, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; i < call->tensor_count; i++) {
        struct fire_tensor *tensor = &call->tensors[i];
        struct local_work *work = &call->works[i];
        const struct fire_dormant_input dormant = { tensor->unit_means, tensor->unit_count,
                                                    tensor->gradient, tensor->gradient_dtype };
        struct fire_error own = { 0 };

        if (!work->refused && work->matrices == 0 && !call->analyze && tensor->out != tensor->data)
            memcpy(tensor->out, tensor->data, work->elements * fire_dtype_bytes(tensor->dtype));
        if (!work->refused && fire_work_dormant(&tensor->shape, &tensor->options, &dormant,
                                                &tensor->result, &own) != FIRE_OK)
            local_refuse(call, i, &own);
        if (!work->refused && !call->analyze && local_apply_states(tensor, &own) != FIRE_OK)
            local_refuse(call, i, &own);
        if (work->refused && status == FIRE_OK) {
            status = tensor->error.status;
            *error = tensor->error;
        }
    }
    return status;
}

/* State that is bad refuses its weight before anything is computed. */
static void check_states(struct local_call *call)
{
    for (size_t i = 0; !call->analyze && i < call->tensor_count; i++) {
        struct fire_error own = { 0 };

        if (!call->works[i].refused && client_check_states(&call->tensors[i], &own) != FIRE_OK)
            local_refuse(call, i, &own);
    }
}

/* The whole set, computed before this returns. */
static enum fire_status local_start(struct fire_client *base, struct fire_set *set,
                                    struct fire_error *error)
{
    struct local_client *client = (struct local_client *)base;
    struct local_call call = { .statistics = set->statistics,
                               .analyze = set->operation == FIRE_ANALYZE };

    set->status = local_call_init(&call, set->tensors, set->count, client->slab_bytes, &set->error);
    if (set->status == FIRE_OK) {
        check_states(&call);
        set->status = call_run(client, &call, &set->error);
    }
    if (set->status == FIRE_OK) {
        set->status = call_conclude(&call, &set->error);
    } else {
        /* The call itself failed, before anything was computed: nothing of it was done. */
        for (size_t i = 0; call.works && i < set->count; i++)
            local_refuse(&call, i, &set->error);
        for (size_t i = 0; !call.works && i < set->count; i++)
            set->tensors[i].error = set->error;
    }
    local_call_release(&call);
    (void)error;
    if (set->done)
        set->done(set, set->data);
    return FIRE_OK;
}

static bool local_wait(struct fire_client *base, const struct fire_set *set, double seconds)
{
    (void)base;
    (void)set;
    (void)seconds;
    return true; /* local_start() has done it all */
}

static void local_cancel(struct fire_client *base)
{
    (void)base;
}

enum fire_status fire_client_open_local(const struct fire_local_settings *settings,
                                        struct fire_client **out, struct fire_error *error)
{
    static const struct client_methods methods = {
        .close = local_close,
        .caps = local_caps,
        .start = local_start,
        .wait = local_wait,
        .cancel = local_cancel,
    };
    const struct fire_local_settings defaults = { 0 };
    struct fire_backend_settings backend_settings = { 0 };
    struct local_client *client = calloc(1, sizeof(*client));
    struct fire_error own = { 0 };

    *out = NULL;
    if (!client) {
        fire_fail_memory(&own, sizeof(*client));
        return client_fail(&own, error);
    }
    if (!settings)
        settings = &defaults;
    client->base.methods = &methods;
    client->backend = fire_cpu_backend();
    client->slab_bytes = settings->slab_bytes ? settings->slab_bytes : LOCAL_SLAB_BYTES_DEFAULT;
    backend_settings.threads = settings->threads;
    backend_settings.path = settings->path ? settings->path : "auto";
    if (client->backend->open(&backend_settings, &client->device, &own) != FIRE_OK) {
        local_close(&client->base);
        return client_fail(&own, error);
    }
    *out = &client->base;
    return FIRE_OK;
}
