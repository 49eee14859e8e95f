/* local_state: what a local client does to the optimizer state of a weight whose new bytes are
 * known, the same as a daemon does. */
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
