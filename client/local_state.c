/* local_state: what a local client does to the optimizer state of a weight whose new bytes are
 * known, the same as a daemon does. */
#include <math.h>
#include <string.h>

#include "client.h"
#include "local.h"

/* The policy for one tensor's state: kept where nothing was projected, unless all state was meant;
 * there is no tangent space to move to at weights that were not projected. */
static enum fire_state_policy policy_of(const struct fire_tensor *tensor)
{
    const struct fire_options *options = &tensor->options;

    if (tensor->result.action == FIRE_ACTION_PROJECTED)
        return options->state_policy;
    if (options->state_scope == FIRE_STATE_TOUCHED || options->state_policy == FIRE_STATE_TRANSPORT)
        return FIRE_STATE_KEEP;
    return options->state_policy;
}

/* Transport computes with the first moment, so NaN in it is found before the weights change. */
enum fire_status local_check_states(const struct fire_tensor *tensor, struct fire_error *error)
{
    const enum fire_status status = client_check_states(tensor, error);
    const char *name = tensor->name ? tensor->name : "(unnamed)";

    if (status != FIRE_OK || tensor->options.state_policy != FIRE_STATE_TRANSPORT)
        return status;
    for (size_t i = 0; i < tensor->state_count; i++) {
        const struct fire_state_tensor *state = &tensor->states[i];
        const uint64_t elements = client_state_bytes(state) / fire_dtype_bytes(state->dtype);

        if (state->slot != FIRE_SLOT_EXP_AVG && state->slot != FIRE_SLOT_MOMENTUM_BUFFER)
            continue;
        for (uint64_t e = 0; e < elements; e++) {
            if (!isfinite(fire_dtype_element(state->dtype, state->data, e)))
                return fire_fail(error, FIRE_BAD_REQUEST, "states",
                                 "state %zu of tensor '%.100s': element %llu is not finite, so it "
                                 "cannot be transported; use state_policy reset",
                                 i, name, (unsigned long long)e);
        }
    }
    return FIRE_OK;
}

enum fire_status local_apply_states(struct fire_tensor *tensor, struct fire_error *error)
{
    struct fire_options options = tensor->options;
    enum fire_status status = FIRE_OK;

    options.state_policy = policy_of(tensor);
    for (size_t i = 0; status == FIRE_OK && i < tensor->state_count; i++) {
        struct fire_state_tensor *state = &tensor->states[i];
        const uint64_t bytes = client_state_bytes(state);

        if (state->out != state->data)
            memcpy(state->out, state->data, bytes);
        if (state->integer_bytes) {
            if (options.state_policy == FIRE_STATE_RESET)
                memset(state->out, 0, bytes);
        } else {
            status =
                fire_state_apply(&options, state->slot, &state->shape, state->dtype, state->out,
                                 &tensor->shape, tensor->dtype, tensor->out, error);
        }
        state->action = options.state_policy;
    }
    return status;
}
