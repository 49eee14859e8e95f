/* client: the functions of fire.h that local and remote clients share, and the last error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client.h"

static _Thread_local char last_error[FIRE_ERROR_MESSAGE_BYTES];

const char *fire_version(void)
{
    return FIRE_VERSION;
}

const char *fire_last_error(void)
{
    return last_error[0] ? last_error : "no call of this thread has failed";
}

enum fire_status client_fail(const struct fire_error *own, struct fire_error *error)
{
    snprintf(last_error, sizeof(last_error), "%s",
             own->message[0] ? own->message : fire_status_name(own->status));
    if (error && error != own)
        *error = *own;
    return own->status;
}

void client_prepare(struct fire_set *set)
{
    set->status = FIRE_OK;
    set->error = (struct fire_error){ 0 };
    set->code = 0;
    set->internal = NULL;
    for (size_t i = 0; i < set->count; i++) {
        struct fire_tensor *tensor = &set->tensors[i];

        fire_result_init(&tensor->result);
        tensor->error = (struct fire_error){ 0 };
        tensor->batch = (struct fire_batch_info){ 0 };
        for (size_t s = 0; s < tensor->state_count; s++)
            tensor->states[s].action = FIRE_STATE_KEEP;
    }
}

uint64_t client_state_bytes(const struct fire_state_tensor *state)
{
    uint64_t bytes = state->integer_bytes ? state->integer_bytes : fire_dtype_bytes(state->dtype);

    for (uint32_t axis = 0; axis < state->shape.axes; axis++)
        bytes *= state->shape.size[axis];
    return bytes;
}

static enum fire_status check_state(const struct fire_tensor *tensor,
                                    const struct fire_state_tensor *state, size_t index,
                                    struct fire_error *error)
{
    const bool is_step = state->slot == FIRE_SLOT_STEP;
    const char *name = tensor->name ? tensor->name : "(unnamed)";
    uint64_t elements;

    if (!state->data || !state->out)
        return fire_fail(error, FIRE_BAD_REQUEST, "states",
                         "state %zu of tensor '%.100s' has no data or no out; give both", index,
                         name);
    if (state->integer_bytes &&
        (!is_step || (state->integer_bytes != 4 && state->integer_bytes != 8)))
        return fire_fail(error, FIRE_BAD_REQUEST, "states",
                         "state %zu of tensor '%.100s': integers are for the slot step only, of 4 "
                         "or 8 bytes",
                         index, name);
    if (state->shape.axes > 0 && fire_shape_elements(&state->shape, &elements, error) != FIRE_OK)
        return error->status;
    if (!is_step && (state->shape.axes != tensor->shape.axes ||
                     memcmp(state->shape.size, tensor->shape.size,
                            state->shape.axes * sizeof(state->shape.size[0])) != 0))
        return fire_fail(error, FIRE_BAD_REQUEST, "states",
                         "state %zu of tensor '%.100s' has another shape than its weight", index,
                         name);
    return FIRE_OK;
}

/* Transport computes with the first moment. */
static enum fire_status check_finite(const struct fire_tensor *tensor,
                                     const struct fire_state_tensor *state, size_t index,
                                     struct fire_error *error)
{
    const uint64_t elements = client_state_bytes(state) / fire_dtype_bytes(state->dtype);

    for (uint64_t i = 0; i < elements; i++) {
        if (!isfinite(fire_dtype_element(state->dtype, state->data, i)))
            return fire_fail(error, FIRE_BAD_REQUEST, "states",
                             "state %zu of tensor '%.100s': element %llu is not finite, so it "
                             "cannot be transported; use state_policy reset",
                             index, tensor->name ? tensor->name : "(unnamed)",
                             (unsigned long long)i);
    }
    return FIRE_OK;
}

enum fire_status client_check_states(const struct fire_tensor *tensor, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; status == FIRE_OK && i < tensor->state_count; i++) {
        const struct fire_state_tensor *state = &tensor->states[i];

        status = check_state(tensor, state, i, error);
        if (status == FIRE_OK && tensor->options.state_policy == FIRE_STATE_TRANSPORT &&
            (state->slot == FIRE_SLOT_EXP_AVG || state->slot == FIRE_SLOT_MOMENTUM_BUFFER))
            status = check_finite(tensor, state, i, error);
    }
    return status;
}

void fire_client_close(struct fire_client *client)
{
    if (client)
        client->methods->close(client);
}

void fire_client_caps(const struct fire_client *client, struct fire_caps *caps)
{
    client->methods->caps(client, caps);
}

enum fire_status fire_client_start(struct fire_client *client, struct fire_set *set,
                                   struct fire_error *error)
{
    struct fire_error own = { 0 };

    client_prepare(set);
    if (client->methods->start(client, set, &own) != FIRE_OK)
        return client_fail(&own, error);
    return FIRE_OK;
}

bool fire_client_wait(struct fire_client *client, const struct fire_set *set, double seconds)
{
    return client->methods->wait(client, set, seconds);
}

void fire_client_cancel(struct fire_client *client)
{
    client->methods->cancel(client);
}

/* Runs one set to its end. */
static enum fire_status run(struct fire_client *client, struct fire_set *set,
                            struct fire_error *error)
{
    const enum fire_status status = fire_client_start(client, set, error);

    if (status != FIRE_OK)
        return status;
    (void)fire_client_wait(client, set, -1.0);
    return set->status == FIRE_OK ? FIRE_OK : client_fail(&set->error, error);
}

enum fire_status fire_client_reinit(struct fire_client *client, struct fire_tensor *tensors,
                                    size_t count, uint32_t statistics, struct fire_error *error)
{
    struct fire_set set = { .tensors = tensors, .count = count, .statistics = statistics };

    return run(client, &set, error);
}

enum fire_status fire_client_analyze(struct fire_client *client, struct fire_tensor *tensors,
                                     size_t count, uint32_t statistics, struct fire_error *error)
{
    struct fire_set set = {
        .tensors = tensors, .count = count, .statistics = statistics, .operation = FIRE_ANALYZE
    };

    return run(client, &set, error);
}
