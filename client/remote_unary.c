/* remote_unary: a small set as one message and one answer. */
#include <stdlib.h>
#include <string.h>

#include "remote.h"

/* The items of groups that are not done. */
static bool list_items(struct remote_set *set)
{
    struct remote_attempt *attempt = &set->attempt;

    attempt->asked = calloc(set->item_count ? set->item_count : 1, sizeof(*attempt->asked));
    if (!attempt->asked)
        return false;
    for (size_t i = 0; i < set->item_count; i++) {
        if (!set->groups[set->items[i].group].done)
            attempt->asked[attempt->asked_count++] = i;
    }
    return true;
}

/* The request: AnalyzeRequest has the same fields with the same numbers. */
static grpc_byte_buffer *make_request(struct remote_set *set, struct fire_error *error)
{
    const size_t count = set->attempt.asked_count;
    struct remote_header *headers = calloc(count, sizeof(*headers));
    Fire__V1__TensorHeader **tensors = calloc(count, sizeof(*tensors));
    grpc_slice *payloads = calloc(count, sizeof(*payloads));
    Fire__V1__ReinitRequest request = FIRE__V1__REINIT_REQUEST__INIT;
    Fire__V1__SetHeader set_header;
    grpc_byte_buffer *buffer = NULL;
    enum fire_status status = FIRE_OK;
    size_t made = 0;

    if (!headers || !tensors || !payloads) {
        fire_fail_memory(error, count * sizeof(*headers));
        goto end;
    }
    for (; status == FIRE_OK && made < count; made++) {
        status =
            remote_header_init(&headers[made], set, &set->items[set->attempt.asked[made]], error);
        tensors[made] = &headers[made].header;
    }
    if (status != FIRE_OK)
        goto end;
    for (size_t i = 0; i < count; i++) {
        const struct remote_item *item = &set->items[set->attempt.asked[i]];

        payloads[i] = remote_slice(set, item->data, item->bytes);
    }
    remote_set_header(set, &set_header);
    request.set = &set_header;
    request.n_tensors = count;
    request.tensors = tensors;
    buffer = rpc_message_pack(&request.base, payloads, count);
    if (!buffer)
        fire_fail_memory(error, count * sizeof(*payloads));

end:
    for (size_t i = 0; headers && i < made; i++)
        remote_header_release(&headers[i]);
    free(headers);
    free(tensors);
    free(payloads);
    return buffer;
}

/* Whether the answer has a result for an item. */
static bool is_answered(const struct remote_set *set, const struct remote_item *item)
{
    return item->role == REMOTE_WEIGHT ||
           (item->role == REMOTE_STATE && set->set->operation == FIRE_REINIT);
}

static enum fire_status take_bytes(struct remote_item *item, const struct rpc_message *message,
                                   size_t index)
{
    const struct rpc_payload *payload =
        index < message->payload_count ? &message->payloads[index] : NULL;

    if (!item->out)
        return FIRE_OK;
    if (!payload || payload->bytes != item->bytes)
        return FIRE_BAD_REQUEST;
    /* The whole answer is here, so an `out` that is `data` may be replaced at once. */
    return rpc_payload_walk(message, payload, remote_copy_piece, item->out);
}

static void take_answer(struct remote_set *set, const struct rpc_message *message,
                        const Fire__V1__ReinitResponse *answer)
{
    const struct remote_attempt *attempt = &set->attempt;
    size_t expected = 0;
    size_t index = 0;

    for (size_t i = 0; i < attempt->asked_count; i++)
        expected += is_answered(set, &set->items[attempt->asked[i]]);
    if (answer->n_results != expected) {
        remote_attempt_broken(set, "did not answer every tensor");
        return;
    }
    for (size_t i = 0; i < attempt->asked_count; i++) {
        struct remote_item *item = &set->items[attempt->asked[i]];
        const struct remote_group *group = &set->groups[item->group];

        if (!is_answered(set, item))
            continue;
        remote_take_result(set, item, answer->results[index]);
        if (!remote_is_settled(group) && take_bytes(item, message, index) != FIRE_OK) {
            remote_attempt_broken(set, "answered another number of bytes than were sent");
            return;
        }
        remote_item_answered(set, item);
        index++;
    }
}

/* The call is over: its answer is here, or its status says why not. */
static void over(struct remote_set *set, bool ok)
{
    struct remote_attempt *attempt = &set->attempt;
    struct fire_error error = { 0 };
    struct rpc_message message;
    Fire__V1__ReinitResponse *answer;

    (void)ok;
    attempt->ended = true;
    if (attempt->code != GRPC_STATUS_OK || !attempt->received)
        return;
    if (rpc_message_init(&message, attempt->received, REMOTE_SMALL_BYTES_MAX, set->item_count,
                         &error) != FIRE_OK) {
        attempt->received = NULL;
        remote_attempt_fault(set, &error);
        return;
    }
    attempt->received = NULL;
    /* AnalyzeResponse is a ReinitResponse without data. */
    answer = fire__v1__reinit_response__unpack(NULL, message.small_bytes, message.small);
    if (answer) {
        take_answer(set, &message, answer);
        fire__v1__reinit_response__free_unpacked(answer, NULL);
    } else {
        remote_attempt_broken(set, "sent an answer that cannot be read");
    }
    rpc_message_release(&message);
}

void remote_unary_start(struct remote_set *set)
{
    struct remote_attempt *attempt = &set->attempt;
    struct fire_error error = { 0 };
    grpc_op operations[6];

    if (!list_items(set)) {
        fire_fail_memory(&error, set->item_count * sizeof(*attempt->asked));
        remote_attempt_fault(set, &error);
        return;
    }
    attempt->sending = make_request(set, &error);
    if (!attempt->sending) {
        remote_attempt_fault(set, &error);
        return;
    }
    set->status.handle = over;
    operations[0] = remote_op_metadata(set);
    operations[1] = (grpc_op){ .op = GRPC_OP_SEND_MESSAGE,
                               .flags = GRPC_WRITE_NO_COMPRESS,
                               .data.send_message.send_message = attempt->sending };
    operations[2] = (grpc_op){ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };
    operations[3] =
        (grpc_op){ .op = GRPC_OP_RECV_INITIAL_METADATA,
                   .data.recv_initial_metadata.recv_initial_metadata = &attempt->initial };
    operations[4] = (grpc_op){ .op = GRPC_OP_RECV_MESSAGE,
                               .data.recv_message.recv_message = &attempt->received };
    operations[5] = remote_op_status(set);
    remote_batch(set, operations, 6, &set->status);
}
