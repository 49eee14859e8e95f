/* remote_stream: a set of any size. Writing and reading go on side by side, each with one message
 * at a time: header; for each group its companions and its weight, begin and chunks; end of set. */
#include <string.h>

#include "remote.h"

/* The next item, from where sending stands. What is settled is left out, but a group that was begun
 * is sent to its end: companions without their weight break a rule of the stream. */
static struct remote_item *item_to_send(struct remote_set *set)
{
    struct remote_attempt *attempt = &set->attempt;

    while (attempt->item < set->item_count && !attempt->begun) {
        const struct remote_group *group = &set->groups[set->items[attempt->item].group];

        if (attempt->item != group->first || !remote_is_settled(group))
            break;
        attempt->item += group->count;
    }
    return attempt->item < set->item_count ? &set->items[attempt->item] : NULL;
}

static grpc_byte_buffer *make_header(struct remote_set *set)
{
    Fire__V1__ReinitStreamRequest request = FIRE__V1__REINIT_STREAM_REQUEST__INIT;
    Fire__V1__SetHeader header;

    remote_set_header(set, &header);
    request.body_case = FIRE__V1__REINIT_STREAM_REQUEST__BODY_HEADER;
    request.header = &header;
    return rpc_message_pack(&request.base, NULL, 0);
}

static grpc_byte_buffer *make_begin(struct remote_set *set, const struct remote_item *item,
                                    struct fire_error *error)
{
    Fire__V1__ReinitStreamRequest request = FIRE__V1__REINIT_STREAM_REQUEST__INIT;
    Fire__V1__TensorBegin begin = FIRE__V1__TENSOR_BEGIN__INIT;
    struct remote_header header;
    grpc_byte_buffer *buffer = NULL;

    if (remote_header_init(&header, set, item, error) == FIRE_OK) {
        begin.id = (uint32_t)(item - set->items);
        begin.tensor = &header.header;
        begin.total_bytes = item->bytes;
        request.body_case = FIRE__V1__REINIT_STREAM_REQUEST__BODY_BEGIN;
        request.begin = &begin;
        buffer = rpc_message_pack(&request.base, NULL, 0);
    }
    remote_header_release(&header);
    return buffer;
}

static grpc_byte_buffer *make_chunk(struct remote_set *set, const struct remote_item *item,
                                    size_t bytes)
{
    Fire__V1__ReinitStreamRequest request = FIRE__V1__REINIT_STREAM_REQUEST__INIT;
    Fire__V1__TensorChunk chunk = FIRE__V1__TENSOR_CHUNK__INIT;
    grpc_slice payload =
        remote_slice(set, (const unsigned char *)item->data + set->attempt.offset, bytes);

    chunk.id = (uint32_t)(item - set->items);
    chunk.offset = set->attempt.offset;
    request.body_case = FIRE__V1__REINIT_STREAM_REQUEST__BODY_CHUNK;
    request.chunk = &chunk;
    return rpc_message_pack(&request.base, &payload, 1);
}

static grpc_byte_buffer *make_end(void)
{
    Fire__V1__ReinitStreamRequest request = FIRE__V1__REINIT_STREAM_REQUEST__INIT;
    Fire__V1__EndOfSet end = FIRE__V1__END_OF_SET__INIT;

    request.body_case = FIRE__V1__REINIT_STREAM_REQUEST__BODY_END_OF_SET;
    request.end_of_set = &end;
    return rpc_message_pack(&request.base, NULL, 0);
}

/* The next piece of an item; the caller has moved past everything before it. */
static grpc_byte_buffer *make_item(struct remote_set *set, const struct remote_item *item,
                                   struct fire_error *error)
{
    struct remote_attempt *attempt = &set->attempt;
    const uint64_t left = item->bytes - attempt->offset;
    const size_t bytes = left < REMOTE_CHUNK_BYTES ? (size_t)left : (size_t)REMOTE_CHUNK_BYTES;
    grpc_byte_buffer *buffer;

    if (!attempt->begun) {
        struct remote_group *group = &set->groups[item->group];

        if (!remote_is_settled(group)) {
            group->open++;
            attempt->open++;
        }
        attempt->begun = true;
        attempt->offset = 0;
        return make_begin(set, item, error);
    }
    buffer = make_chunk(set, item, bytes);
    attempt->offset += bytes;
    if (attempt->offset == item->bytes) {
        attempt->begun = false;
        attempt->item++;
    }
    return buffer;
}

/* Whether a group must wait for answers to others before it begins. */
static bool is_full(const struct remote_set *set, const struct remote_item *item)
{
    const struct remote_group *group = &set->groups[item->group];

    return !set->attempt.begun && set->attempt.item == group->first && set->attempt.open > 0 &&
           set->attempt.open + group->count > REMOTE_OPEN_MAX;
}

/* Sends what comes next, or closes this direction. */
static void send_next(struct remote_set *set)
{
    struct remote_attempt *attempt = &set->attempt;
    const struct remote_item *item = item_to_send(set);
    grpc_op operation = { .op = GRPC_OP_SEND_MESSAGE, .flags = GRPC_WRITE_NO_COMPRESS };
    struct fire_error error = { 0 };

    if (attempt->closed || attempt->send_failed)
        return;
    attempt->paused = item && is_full(set, item);
    if (attempt->paused)
        return;
    if (item) {
        if (!attempt->begun) /* the first chunk follows at once: one write for both */
            operation.flags |= GRPC_WRITE_BUFFER_HINT;
        attempt->sending = make_item(set, item, &error);
    } else if (!attempt->set_ended) {
        attempt->set_ended = true;
        attempt->sending = make_end();
    } else {
        attempt->closed = true;
        operation = (grpc_op){ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };
    }
    if (!attempt->closed && !attempt->sending) {
        if (error.status == FIRE_OK)
            fire_fail_memory(&error, sizeof(Fire__V1__ReinitStreamRequest));
        remote_attempt_fault(set, &error);
        return;
    }
    if (!attempt->closed)
        operation.data.send_message.send_message = attempt->sending;
    remote_batch(set, &operation, 1, &set->sent);
}

static void on_sent(struct remote_set *set, bool ok)
{
    struct remote_attempt *attempt = &set->attempt;

    grpc_byte_buffer_destroy(attempt->sending);
    attempt->sending = NULL;
    if (!ok)
        attempt->send_failed = true; /* the status says why */
    send_next(set);
}

static void receive_next(struct remote_set *set)
{
    const grpc_op operation = { .op = GRPC_OP_RECV_MESSAGE,
                                .data.recv_message.recv_message = &set->attempt.received };

    remote_batch(set, &operation, 1, &set->arrived);
}

static void end_answer(struct remote_set *set)
{
    struct remote_item *item = set->attempt.answer;

    set->attempt.answer = NULL;
    if (!set->attempt.answer_unwanted)
        remote_item_answered(set, item);
}

/* The words of an answer; `bytes` of it follow. */
static void begin_answer(struct remote_set *set, uint32_t id, const Fire__V1__TensorResult *result,
                         uint64_t bytes)
{
    struct remote_attempt *attempt = &set->attempt;
    struct remote_item *item = id < set->item_count ? &set->items[id] : NULL;
    const struct remote_group *group = item ? &set->groups[item->group] : NULL;

    if (attempt->answer || !item || !result || item->answered ||
        (item->role != REMOTE_STATE && item->role != REMOTE_WEIGHT)) {
        remote_attempt_broken(set, attempt->answer ? "mixed two answers"
                                                   : "answered a tensor that did not ask for it");
        return;
    }
    remote_take_result(set, item, result);
    attempt->answer = item;
    attempt->answer_bytes = bytes;
    attempt->answer_received = 0;
    attempt->answer_unwanted = remote_is_settled(group);
    if (!attempt->answer_unwanted && bytes != (item->out ? item->bytes : 0)) {
        remote_attempt_broken(set, "answered another number of bytes than were sent");
        return;
    }
    if (bytes == 0)
        end_answer(set);
}

/* Takes over `message`. */
static void take_chunk(struct remote_set *set, const Fire__V1__TensorChunk *chunk,
                       struct rpc_message *message)
{
    struct remote_attempt *attempt = &set->attempt;
    const struct rpc_payload payload =
        message->payload_count ? message->payloads[0] : (struct rpc_payload){ 0 };
    struct remote_item *item = attempt->answer;
    struct fire_error error = { 0 };

    if (!item || chunk->id != (uint32_t)(item - set->items) ||
        chunk->offset != attempt->answer_received ||
        payload.bytes > attempt->answer_bytes - attempt->answer_received) {
        remote_attempt_broken(set, "sent bytes that belong nowhere");
        return;
    }
    attempt->answer_received += payload.bytes;
    if (!attempt->answer_unwanted && payload.bytes > 0 &&
        remote_item_bytes(item, chunk->offset, message, &payload, &error) != FIRE_OK) {
        remote_attempt_fault(set, &error);
        return;
    }
    if (attempt->answer_received == attempt->answer_bytes)
        end_answer(set);
}

static void take_message(struct remote_set *set, struct rpc_message *message)
{
    const bool analyze = set->set->operation == FIRE_ANALYZE;
    Fire__V1__AnalyzeStreamResponse *analysis = NULL;
    Fire__V1__ReinitStreamResponse *answer = NULL;

    if (analyze)
        analysis =
            fire__v1__analyze_stream_response__unpack(NULL, message->small_bytes, message->small);
    else
        answer =
            fire__v1__reinit_stream_response__unpack(NULL, message->small_bytes, message->small);
    if (analysis)
        begin_answer(set, analysis->id, analysis->result, 0);
    else if (answer && answer->body_case == FIRE__V1__REINIT_STREAM_RESPONSE__BODY_BEGIN)
        begin_answer(set, answer->begin->id, answer->begin->result, answer->begin->total_bytes);
    else if (answer && answer->body_case == FIRE__V1__REINIT_STREAM_RESPONSE__BODY_CHUNK)
        take_chunk(set, answer->chunk, message);
    else
        remote_attempt_broken(set, "sent an answer that cannot be read");
    if (analysis)
        fire__v1__analyze_stream_response__free_unpacked(analysis, NULL);
    if (answer)
        fire__v1__reinit_stream_response__free_unpacked(answer, NULL);
}

static void on_arrived(struct remote_set *set, bool ok)
{
    struct remote_attempt *attempt = &set->attempt;
    struct fire_error error = { 0 };
    struct rpc_message message;
    grpc_byte_buffer *buffer = attempt->received;

    (void)ok;
    attempt->received = NULL;
    if (!buffer)
        return; /* no more answers: the status follows */
    if (rpc_message_init(&message, buffer, REMOTE_SMALL_BYTES_MAX, 1, &error) != FIRE_OK) {
        remote_attempt_fault(set, &error);
        return;
    }
    take_message(set, &message);
    rpc_message_release(&message);
    receive_next(set);
    if (attempt->paused)
        send_next(set);
}

static void on_status(struct remote_set *set, bool ok)
{
    (void)ok;
    set->attempt.ended = true;
}

void remote_stream_start(struct remote_set *set)
{
    struct remote_attempt *attempt = &set->attempt;
    const grpc_op status = remote_op_status(set);
    struct fire_error error = { 0 };
    grpc_op first[2];
    grpc_op arrival[2];

    set->sent.handle = on_sent;
    set->arrived.handle = on_arrived;
    set->status.handle = on_status;
    attempt->sending = make_header(set);
    if (!attempt->sending) {
        fire_fail_memory(&error, sizeof(Fire__V1__ReinitStreamRequest));
        remote_attempt_fault(set, &error);
        return;
    }
    remote_batch(set, &status, 1, &set->status);
    first[0] = remote_op_metadata(set);
    first[1] = (grpc_op){ .op = GRPC_OP_SEND_MESSAGE,
                          .flags = GRPC_WRITE_NO_COMPRESS | GRPC_WRITE_BUFFER_HINT,
                          .data.send_message.send_message = attempt->sending };
    remote_batch(set, first, 2, &set->sent);
    arrival[0] = (grpc_op){ .op = GRPC_OP_RECV_INITIAL_METADATA,
                            .data.recv_initial_metadata.recv_initial_metadata = &attempt->initial };
    arrival[1] = (grpc_op){ .op = GRPC_OP_RECV_MESSAGE,
                            .data.recv_message.recv_message = &attempt->received };
    remote_batch(set, arrival, 2, &set->arrived);
}
