/* remote_decode: answers become results. Numbers come by name; one this library does not know is
 * left out, so that daemons may know more. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote.h"

/* A result's path is text of static storage: the names that are known, or a word for the others. */
static const char *path_of(const char *name)
{
    static const char *const known[] = { "portable", "avx2", "avx512", "amx",
                                         "mixed",    "cuda", "ref",    "" };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(name, known[i]) == 0)
            return known[i];
    }
    return "other";
}

static enum fire_action action_of(Fire__V1__TensorAction action)
{
    switch (action) {
    case FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_PROJECTED:
    case FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_ANALYZED:
    case FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_STATE: return FIRE_ACTION_PROJECTED;
    case FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_SKIPPED: return FIRE_ACTION_SKIPPED;
    case FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_UNSPECIFIED:
    case FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_REFUSED:
    case _FIRE__V1__TENSOR_ACTION_IS_INT_SIZE: break;
    }
    return FIRE_ACTION_REFUSED;
}

static const char *close_reason_of(Fire__V1__CloseReason reason)
{
    switch (reason) {
    case FIRE__V1__CLOSE_REASON__CLOSE_REASON_IDLE: return "idle";
    case FIRE__V1__CLOSE_REASON__CLOSE_REASON_FULL: return "full";
    case FIRE__V1__CLOSE_REASON__CLOSE_REASON_END_OF_SET: return "end-of-set";
    case FIRE__V1__CLOSE_REASON__CLOSE_REASON_DEADLINE: return "deadline";
    case FIRE__V1__CLOSE_REASON__CLOSE_REASON_DELAY: return "delay";
    case FIRE__V1__CLOSE_REASON__CLOSE_REASON_DRAIN: return "drain";
    case FIRE__V1__CLOSE_REASON__CLOSE_REASON_UNSPECIFIED:
    case _FIRE__V1__CLOSE_REASON_IS_INT_SIZE: break;
    }
    return NULL;
}

static void set_number(struct fire_result *result, const char *name, double value)
{
    for (size_t i = 0; i < fire_result_field_count(); i++) {
        const struct fire_result_field *field = fire_result_field_at(i);

        if (strcmp(field->name, name) == 0) {
            memcpy((char *)result + field->offset, &value, sizeof(value));
            return;
        }
    }
}

static void take_matrix(const Fire__V1__MatrixResult *message, struct fire_result *result)
{
    fire_result_init(result);
    if (!message)
        return;
    result->action = action_of(message->action);
    snprintf(result->reason, sizeof(result->reason), "%s", message->reason);
    snprintf(result->method, sizeof(result->method), "%s", message->method);
    result->path = path_of(message->path);
    result->steps = message->steps;
    result->converged = message->converged;
    result->rank = message->rank;
    result->rank_defect = message->rank_defect;
    result->matrices = message->matrices;
    for (size_t i = 0; i < message->n_statistics; i++)
        set_number(result, message->statistics[i]->key, message->statistics[i]->value);
}

static void take_weight(struct remote_set *set, struct fire_tensor *tensor,
                        const Fire__V1__TensorResult *message)
{
    uint64_t matrices = 0;

    take_matrix(message->result, &tensor->result);
    if (tensor->per_matrix &&
        fire_view_count(&tensor->shape, &tensor->options, &matrices, NULL) == FIRE_OK) {
        for (size_t i = 0; i < message->n_per_matrix && i < matrices; i++)
            take_matrix(message->per_matrix[i], &tensor->per_matrix[i]);
        /* The daemon does not say twice what one matrix is; dormant ratios are the tensor's. */
        if (matrices == 1 && message->n_per_matrix == 0) {
            tensor->per_matrix[0] = tensor->result;
            tensor->per_matrix[0].dormant_ratio = NAN;
            tensor->per_matrix[0].gradient_dormant_ratio = NAN;
        }
    }
    if (message->batch)
        tensor->batch =
            (struct fire_batch_info){ .id = message->batch->id,
                                      .size = message->batch->size,
                                      .close_reason = close_reason_of(message->batch->close_reason),
                                      .queue_ms = message->batch->queue_ms,
                                      .compute_ms = message->batch->compute_ms };
    if (tensor->result.path[0]) {
        pthread_mutex_lock(&set->remote->lock);
        set->remote->path = tensor->result.path;
        pthread_mutex_unlock(&set->remote->lock);
    }
}

static void take_state(struct fire_state_tensor *state, const char *policy)
{
    for (int i = FIRE_STATE_KEEP; i <= FIRE_STATE_TRANSPORT; i++) {
        if (strcmp(policy, fire_state_policy_name((enum fire_state_policy)i)) == 0)
            state->action = (enum fire_state_policy)i;
    }
}

static void take_refusal(struct remote_set *set, struct remote_group *group,
                         const Fire__V1__TensorResult *message)
{
    const int code = message->error ? message->error->code : GRPC_STATUS_INTERNAL;
    struct fire_error error = { 0 };

    fire_fail(&error, remote_status_of(code), message->error ? message->error->field : "", "%s",
              message->error && message->error->message[0]
                  ? message->error->message
                  : "the daemon refused the tensor and did not say why");
    remote_group_refuse(set, group, &error, code,
                        code == GRPC_STATUS_RESOURCE_EXHAUSTED || code == GRPC_STATUS_UNAVAILABLE);
}

void remote_take_result(struct remote_set *set, struct remote_item *item,
                        const Fire__V1__TensorResult *message)
{
    struct remote_group *group = &set->groups[item->group];
    struct fire_tensor *tensor = remote_tensor(set, group);

    if (remote_is_settled(group))
        return;
    if (message->error || (message->result && message->result->action ==
                                                  FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_REFUSED)) {
        take_refusal(set, group, message);
        return;
    }
    if (item->role == REMOTE_STATE)
        take_state(&tensor->states[item->state], message->state);
    else if (item->role == REMOTE_WEIGHT)
        take_weight(set, tensor, message);
}
