/* local: libfire's in-process client, on the CPU backend.
 *
 * Invariants of a call:
 *   a tensor's `out` is written only from batches in which all its matrices are known to be finite
 *   a refused tensor whose `out` is its `data` has its old bytes back when its set is done
 *   at most LOCAL_BATCHES batches of a run are with the device, and none when its set is done
 */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client.h"
#include "local.h"

#define NS_PER_S      1000000000ull
#define STOP_ASKED_NS 100000000ull /* how often it is asked whether to go on */

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
    void **places; /* of the matrices of one tensor, while they are copied */
    uint32_t slot_room;
    unsigned char *slab; /* the device's host memory */
    uint64_t slab_bytes;
    bool submitted;
    bool ended; /* under the client's lock, where somebody may stop it */
    struct local_client *client;
};

/* One set on its way. */
struct local_run {
    struct fire_set *set; /* NULL: there is none */
    uint64_t number;      /* sets are numbered as they begin */
    struct local_call call;
    struct local_batch batches[LOCAL_BATCHES];
    uint32_t turn; /* the batch that was filled last */
};

struct local_client {
    struct fire_client base; /* first: a struct fire_client is one of these */
    const struct fire_backend *backend;
    struct fire_device *device;
    uint64_t slab_bytes;
    bool ahead;
    uint64_t begun; /* sets */
    struct local_run runs[LOCAL_RUNS];
    bool (*stop)(void *data); /* NULL: never */
    void *stop_data;
    bool stopped;      /* it said so */
    uint64_t asked_ns; /* when it was asked last */
    pthread_mutex_t lock;
    pthread_cond_t ended;
};

static void batch_release(struct local_client *client, struct local_batch *batch)
{
    free(batch->slots);
    free(batch->results);
    free(batch->owners);
    free(batch->places);
    if (batch->slab)
        client->backend->host_free(client->device, batch->slab);
    *batch = (struct local_batch){ 0 };
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
    batch->places = calloc(slot_count, sizeof(*batch->places));
    batch->slab = client->backend->host_alloc(client->device, bytes);
    if (!batch->slots || !batch->results || !batch->owners || !batch->places || !batch->slab) {
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

/* Makes the slot behind the last one that of view `view_index` of tensor `index`. */
static struct fire_slot *slot_take(const struct local_call *call, struct local_batch *batch,
                                   size_t index, uint64_t view_index)
{
    const struct fire_tensor *tensor = &call->tensors[index];
    const uint32_t slot_index = batch->batch.slot_count++;
    struct slot_owner *owner = &batch->owners[slot_index];
    struct fire_slot *slot = &batch->slots[slot_index];

    owner->tensor = index;
    owner->view_index = view_index;
    fire_view_at(&tensor->shape, &tensor->options, view_index, &owner->view);
    slot->weights = batch->slab + slot_index * fire_plan_slot_bytes(batch->batch.plan);
    slot->result = &batch->results[slot_index];
    slot->seed = fire_work_seed(&tensor->options, tensor->name, view_index);
    fire_result_init(slot->result);
    return slot;
}

static void refuse_element(struct local_call *call, size_t index, uint64_t bad_index)
{
    struct fire_error error = { 0 };

    local_describe_element(&call->tensors[index], bad_index, &error);
    local_refuse(call, index, &error);
}

/* Copies one matrix into the next slot. A bad one refuses its tensor and takes no slot. */
static void gather_one(struct local_call *call, struct local_batch *batch, size_t index,
                       uint64_t view_index)
{
    const struct fire_tensor *tensor = &call->tensors[index];
    const struct fire_slot *slot = slot_take(call, batch, index, view_index);
    const struct slot_owner *owner = &batch->owners[batch->batch.slot_count - 1];
    uint64_t bad_index = 0;

    if (fire_view_gather(&owner->view, tensor->data, tensor->dtype, batch->batch.plan->compute,
                         slot->weights, &bad_index) == FIRE_OK)
        return;
    batch->batch.slot_count--;
    refuse_element(call, index, bad_index);
}

/* Copies all matrices of a tensor, for which there is room. The same of a bad one. */
static void gather_all(struct local_call *call, struct local_batch *batch, size_t index)
{
    const struct fire_tensor *tensor = &call->tensors[index];
    const uint64_t count = call->works[index].view_count;
    uint64_t bad_index = 0;

    for (uint64_t v = 0; v < count; v++)
        batch->places[v] = slot_take(call, batch, index, v)->weights;
    if (fire_work_gather(&tensor->shape, &tensor->options, tensor->dtype,
                         batch->batch.plan->compute, 0, call->works[index].elements, tensor->data,
                         batch->places, &bad_index) == FIRE_OK)
        return;
    batch->batch.slot_count -= (uint32_t)count;
    refuse_element(call, index, bad_index);
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
        if (!work->refused && work->together) {
            gather_all(call, batch, part->tensor);
            call->view_at = work->view_count;
        }
        while (!work->refused && call->view_at < work->view_count) {
            struct fire_view view;

            if (batch->batch.slot_count == slots_max)
                return;
            fire_view_at(&tensor->shape, &tensor->options, call->view_at, &view);
            if (view.rows == part->rows && view.cols == part->cols)
                gather_one(call, batch, part->tensor, call->view_at);
            call->view_at++;
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

/* Writes back all matrices of a tensor that came together, the first of them in `slot`. */
static void scatter_all(struct local_call *call, struct local_batch *batch, uint32_t slot)
{
    const size_t index = batch->owners[slot].tensor;
    struct fire_tensor *tensor = &call->tensors[index];
    const bool elsewhere = tensor->out != tensor->data;

    for (uint64_t v = 0; v < call->works[index].view_count; v++) {
        const bool projected = batch->results[slot + v].action == FIRE_ACTION_PROJECTED;

        batch->places[v] = elsewhere || projected ? batch->slots[slot + v].weights : NULL;
    }
    fire_work_scatter(&tensor->shape, &tensor->options, tensor->dtype, batch->batch.plan->compute,
                      batch->places, tensor->out);
}

/* A slot that the device left alone still holds the old weights, and widening is exact. */
static void scatter_one(struct local_call *call, struct local_batch *batch, uint32_t slot)
{
    const struct slot_owner *owner = &batch->owners[slot];
    struct fire_tensor *tensor = &call->tensors[owner->tensor];
    struct local_work *work = &call->works[owner->tensor];
    const bool elsewhere = tensor->out != tensor->data;
    const bool first = !work->scattered;

    /* What is no matrix, or one skipped by rule, keeps its bytes, also in an `out` elsewhere. */
    if (first && elsewhere && (tensor->options.split_skip || work->matrices < work->view_count))
        memcpy(tensor->out, tensor->data, work->elements * fire_dtype_bytes(tensor->dtype));
    work->scattered = true;
    if (work->together) {
        if (first)
            scatter_all(call, batch, slot);
    } else if (elsewhere || batch->results[slot].action == FIRE_ACTION_PROJECTED) {
        fire_view_scatter(&owner->view, batch->slots[slot].weights, batch->batch.plan->compute,
                          tensor->dtype, tensor->out);
    }
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

/* A batch that the device has not computed: all its tensors are refused. */
static void refuse_batch(struct local_client *client, struct local_call *call,
                         struct local_batch *batch, enum fire_status status)
{
    for (uint32_t i = 0; status != FIRE_OK && i < batch->batch.slot_count; i++) {
        struct fire_result *result = &batch->results[i];

        fire_result_init(result);
        result->action = FIRE_ACTION_REFUSED;
        result->status = status;
        snprintf(result->reason, sizeof(result->reason), "%.90s",
                 status == FIRE_CANCELLED ? "it was stopped"
                                          : client->backend->last_error(client->device));
        refuse_for_result(call, batch->owners[i].tensor, result);
    }
}

/* On a thread of the device. */
static void on_ended(struct fire_batch *work)
{
    struct local_batch *batch =
        (struct local_batch *)((char *)work - offsetof(struct local_batch, batch));
    struct local_client *client = batch->client;

    pthread_mutex_lock(&client->lock);
    batch->ended = true;
    pthread_cond_signal(&client->ended);
    pthread_mutex_unlock(&client->lock);
}

/* Nothing that is with the device is wanted any more. */
static void abandon_all(struct local_client *client)
{
    for (uint32_t i = 0; i < LOCAL_RUNS; i++) {
        for (uint32_t b = 0; b < LOCAL_BATCHES; b++) {
            struct local_batch *batch = &client->runs[i].batches[b];

            if (batch->submitted)
                client->backend->abandon(client->device, &batch->batch);
        }
    }
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* Asks whether to go on, when it is time to. */
static void ask(struct local_client *client)
{
    if (!client->stop || client->stopped || now_ns() - client->asked_ns < STOP_ASKED_NS)
        return;
    client->stopped = client->stop(client->stop_data);
    client->asked_ns = now_ns();
    if (client->stopped)
        abandon_all(client);
}

/* Whether the batch has ended before it is time to ask again. */
static bool wait_a_while(struct local_client *client, const struct local_batch *batch)
{
    const uint64_t limit_ns = now_ns() + STOP_ASKED_NS;
    const struct timespec limit = { (time_t)(limit_ns / NS_PER_S), (long)(limit_ns % NS_PER_S) };
    int result = 0;
    bool ended;

    pthread_mutex_lock(&client->lock);
    while (!batch->ended && result == 0)
        result = pthread_cond_timedwait(&client->ended, &client->lock, &limit);
    ended = batch->ended;
    pthread_mutex_unlock(&client->lock);
    return ended;
}

static enum fire_status batch_wait(struct local_client *client, struct local_batch *batch)
{
    if (!client->stop)
        return client->backend->wait(client->device, &batch->batch);
    while (!wait_a_while(client, batch))
        ask(client);
    return batch->batch.status;
}

/* Waits for a batch and hands its results out. */
static void batch_finish(struct local_client *client, struct local_call *call,
                         struct local_batch *batch)
{
    enum fire_status status;

    if (!batch->submitted)
        return;
    status = batch_wait(client, batch);
    batch->submitted = false;
    refuse_batch(client, call, batch, status);
    for (uint32_t i = 0; i < batch->batch.slot_count; i++) {
        if (batch->results[i].action == FIRE_ACTION_REFUSED)
            refuse_for_result(call, batch->owners[i].tensor, &batch->results[i]);
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
    enum fire_status status = FIRE_CANCELLED;

    batch->client = client;
    batch->ended = false;
    batch->batch.ended = client->stop ? on_ended : NULL;
    ask(client);
    if (!client->stopped)
        status = client->backend->submit(client->device, &batch->batch);
    batch->submitted = status == FIRE_OK;
    refuse_batch(client, call, batch, status);
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

static void run_end(struct local_client *client, struct local_run *run);

/* Finishes what else is on its way and gives its memory back. */
static void release_others(struct local_client *client, const struct local_run *run)
{
    for (uint32_t i = 0; i < LOCAL_RUNS; i++) {
        struct local_run *other = &client->runs[i];

        if (other == run)
            continue;
        if (other->set)
            run_end(client, other);
        for (uint32_t b = 0; b < LOCAL_BATCHES; b++)
            batch_release(client, &other->batches[b]);
    }
}

/* Gathers and submits all batches of a run; those that came before the last two are done. */
static enum fire_status run_batches(struct local_client *client, struct local_run *run,
                                    struct fire_error *error)
{
    struct local_call *call = &run->call;
    enum fire_status status;
    uint32_t slots;
    uint64_t bytes;
    bool several;

    call_extent(call, &slots, &bytes, &several);
    /* A matrix larger than a slab computes so long that gathering the next beside it gains nothing
     * and would only cost the memory. */
    if (bytes > client->slab_bytes) {
        several = false;
        release_others(client, run);
    }
    status = batch_reserve(client, &run->batches[0], slots, bytes, error);
    if (status == FIRE_OK && several)
        status = batch_reserve(client, &run->batches[1], slots, bytes, error);
    if (status != FIRE_OK)
        return status;
    run->turn = 0;
    while (call->group_at < call->group_count) {
        struct local_batch *batch;

        run->turn = several ? !run->turn : run->turn;
        batch = &run->batches[run->turn];
        batch_finish(client, call, batch);
        batch_fill(call, batch);
        if (batch->batch.slot_count > 0)
            batch_submit(client, call, batch);
    }
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

/* A set of which something was not computed has one status, whatever else was wrong with it. */
static void set_stopped(struct fire_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        if (set->tensors[i].error.status == FIRE_CANCELLED)
            set->status = fire_fail(&set->error, FIRE_CANCELLED, NULL, "the client was stopped");
    }
}

/* Waits for what is with the device and finishes the set. */
static void run_end(struct local_client *client, struct local_run *run)
{
    struct local_call *call = &run->call;
    struct fire_set *set = run->set;

    for (uint32_t i = 1; i <= LOCAL_BATCHES; i++) /* the older one first */
        batch_finish(client, call, &run->batches[(run->turn + i) % LOCAL_BATCHES]);
    if (set->status == FIRE_OK) {
        set->status = call_conclude(call, &set->error);
        if (client->stopped)
            set_stopped(set);
    } else {
        /* The call itself failed, before anything was computed: nothing of it was done. */
        for (size_t i = 0; call->works && i < set->count; i++)
            local_refuse(call, i, &set->error);
        for (size_t i = 0; !call->works && i < set->count; i++)
            set->tensors[i].error = set->error;
    }
    local_call_release(call);
    run->set = NULL;
    if (set->done)
        set->done(set, set->data);
}

static void local_close(struct fire_client *base)
{
    struct local_client *client = (struct local_client *)base;

    for (uint32_t i = 0; i < LOCAL_RUNS; i++) {
        if (client->runs[i].set)
            run_end(client, &client->runs[i]);
        for (uint32_t b = 0; b < LOCAL_BATCHES; b++)
            batch_release(client, &client->runs[i].batches[b]);
    }
    client->backend->close(client->device);
    pthread_cond_destroy(&client->ended);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

/* A run without a set; the oldest set is finished for it if need be. */
static struct local_run *free_run(struct local_client *client)
{
    struct local_run *oldest = &client->runs[0];

    for (uint32_t i = 0; i < LOCAL_RUNS; i++) {
        if (!client->runs[i].set)
            return &client->runs[i];
        if (client->runs[i].number < oldest->number)
            oldest = &client->runs[i];
    }
    run_end(client, oldest);
    return oldest;
}

static enum fire_status local_start(struct fire_client *base, struct fire_set *set,
                                    struct fire_error *error)
{
    struct local_client *client = (struct local_client *)base;
    struct local_run *run = free_run(client);

    (void)error;
    run->set = set;
    run->number = client->begun++;
    run->call = (struct local_call){ .statistics = set->statistics,
                                     .analyze = set->operation == FIRE_ANALYZE };
    set->status =
        local_call_init(&run->call, set->tensors, set->count, client->slab_bytes, &set->error);
    if (set->status == FIRE_OK) {
        check_states(&run->call);
        set->status = run_batches(client, run, &set->error);
    }
    if (!client->ahead || set->done || set->status != FIRE_OK)
        run_end(client, run);
    return FIRE_OK;
}

/* Finishes what local_start() has left; the limit of time is not looked at. */
static bool local_wait(struct fire_client *base, const struct fire_set *set, double seconds)
{
    struct local_client *client = (struct local_client *)base;

    (void)seconds;
    for (uint32_t i = 0; i < LOCAL_RUNS; i++) {
        if (client->runs[i].set && (!set || client->runs[i].set == set))
            run_end(client, &client->runs[i]);
    }
    return true;
}

static void local_cancel(struct fire_client *base)
{
    (void)base;
}

static void init_lock(struct local_client *client)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->ended, &attributes);
    pthread_condattr_destroy(&attributes);
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
    init_lock(client);
    client->stop = settings->stop;
    client->stop_data = settings->stop_data;
    client->base.methods = &methods;
    client->backend = fire_cpu_backend();
    client->ahead = settings->ahead;
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
