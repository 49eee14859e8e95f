/* A stream of messages from strangers through the rules of uploads. The input is records: two bytes
 * of length, little-endian, and so many bytes, each a ReinitStreamRequest; a length of 0xffff means
 * that the tensor completed first is answered. At the end the stream is half-closed.
 *
 * A model of its own keeps what was begun and how much of it came. What must hold:
 *   a chunk is accepted exactly when it is the next piece of an open tensor and fits it;
 *   at most STREAM_UPLOADS_MAX tensors are open and STREAM_IDS_MAX ids in use;
 *   a broken rule has a field and a message in one line, and nothing is accepted after it;
 *   a half-close is accepted exactly when no tensor is open. */
#include <grpc/grpc.h>
#include <string.h>

#include "rpc_decode.h"
#include "rpc_stream_state.h"

#define ANSWERED 0xffffu

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct model_tensor {
    bool open;
    uint32_t id;
    uint64_t total_bytes;
    uint64_t received_bytes;
};

/* Tensors that are not answered, in the order they began. */
struct model {
    struct model_tensor tensors[STREAM_IDS_MAX];
    uint32_t count;
    uint32_t open_count;
    bool header;
};

static struct model_tensor *model_find(struct model *model, uint32_t id)
{
    for (uint32_t i = 0; i < model->count; i++) {
        if (model->tensors[i].id == id)
            return &model->tensors[i];
    }
    return NULL;
}

static void model_answer_first(struct model *model, struct stream_state *state)
{
    for (uint32_t i = 0; i < model->count; i++) {
        if (model->tensors[i].open)
            continue;
        stream_state_answered(state, model->tensors[i].id);
        memmove(&model->tensors[i], &model->tensors[i + 1],
                (model->count - i - 1) * sizeof(model->tensors[0]));
        model->count--;
        return;
    }
}

static enum fire_status take_begin(struct model *model, struct stream_state *state,
                                   const Fire__V1__TensorBegin *begin, struct fire_error *error)
{
    const bool fits = model->header && !model_find(model, begin->id) &&
                      model->open_count < STREAM_UPLOADS_MAX && model->count < STREAM_IDS_MAX;
    const enum fire_status status =
        stream_state_begin(state, begin->id, begin->total_bytes, model, error);

    FIRE_ASSERT((status == FIRE_OK) == fits);
    if (fits) {
        model->tensors[model->count++] = (struct model_tensor){ .open = begin->total_bytes > 0,
                                                                .id = begin->id,
                                                                .total_bytes = begin->total_bytes };
        model->open_count += begin->total_bytes > 0;
    }
    return status;
}

static enum fire_status take_chunk(struct model *model, struct stream_state *state,
                                   const Fire__V1__TensorChunk *chunk, uint64_t bytes,
                                   struct fire_error *error)
{
    struct model_tensor *tensor = model_find(model, chunk->id);
    const bool fits = model->header && tensor && tensor->open && bytes > 0 &&
                      bytes <= RPC_CHUNK_BYTES_MAX && chunk->offset == tensor->received_bytes &&
                      bytes <= tensor->total_bytes - tensor->received_bytes;
    void *found;
    bool complete;
    const enum fire_status status =
        stream_state_chunk(state, chunk->id, chunk->offset, bytes, &found, &complete, error);

    FIRE_ASSERT((status == FIRE_OK) == fits);
    FIRE_ASSERT(found == (fits ? model : NULL));
    if (!fits)
        return status;
    tensor->received_bytes += bytes;
    tensor->open = tensor->received_bytes < tensor->total_bytes;
    FIRE_ASSERT(complete == !tensor->open);
    model->open_count -= complete;
    return status;
}

static enum fire_status take(struct model *model, struct stream_state *state,
                             const struct rpc_message *message,
                             const Fire__V1__ReinitStreamRequest *request, struct fire_error *error)
{
    const bool chunk = request->body_case == FIRE__V1__REINIT_STREAM_REQUEST__BODY_CHUNK;
    enum fire_status status;

    if (message->payload_count > (chunk ? 1u : 0u))
        return stream_state_stray_bytes(state, error);
    switch (request->body_case) {
    case FIRE__V1__REINIT_STREAM_REQUEST__BODY_HEADER:
        status = stream_state_header(state, error);
        FIRE_ASSERT((status == FIRE_OK) == !model->header);
        model->header = true;
        return status;
    case FIRE__V1__REINIT_STREAM_REQUEST__BODY_BEGIN:
        return take_begin(model, state, request->begin, error);
    case FIRE__V1__REINIT_STREAM_REQUEST__BODY_CHUNK:
        return take_chunk(model, state, request->chunk,
                          message->payload_count ? message->payloads[0].bytes : 0, error);
    case FIRE__V1__REINIT_STREAM_REQUEST__BODY_END_OF_SET:
        status = stream_state_end_of_set(state, error);
        FIRE_ASSERT((status == FIRE_OK) == (model->header && model->open_count == 0));
        return status;
    case FIRE__V1__REINIT_STREAM_REQUEST__BODY__NOT_SET:
    case _FIRE__V1__REINIT_STREAM_REQUEST__BODY__CASE_IS_INT_SIZE:
    default: return stream_state_other(state, error);
    }
}

/* One record; false ends the stream. */
static bool take_record(struct model *model, struct stream_state *state, const uint8_t *bytes,
                        size_t count)
{
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes, count);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    Fire__V1__ReinitStreamRequest *request;
    struct fire_error error = { 0 };
    struct rpc_message message;
    enum fire_status status;

    grpc_slice_unref(slice);
    if (rpc_message_init(&message, buffer, RPC_STREAM_BYTES_MAX, 1, &error) != FIRE_OK)
        return false;
    request = (Fire__V1__ReinitStreamRequest *)rpc_unpack(
        &fire__v1__reinit_stream_request__descriptor, &message, &error);
    if (!request) {
        rpc_message_release(&message);
        return false;
    }
    status = take(model, state, &message, request, &error);
    protobuf_c_message_free_unpacked(&request->base, NULL);
    rpc_message_release(&message);
    FIRE_ASSERT(state->upload_count == model->open_count);
    FIRE_ASSERT(state->broken == (status != FIRE_OK));
    if (status == FIRE_OK) {
        FIRE_ASSERT(state->id_count == model->count);
        return true;
    }
    FIRE_ASSERT(status == FIRE_BAD_REQUEST && error.status == status);
    FIRE_ASSERT(error.field[0] != '\0' && error.message[0] != '\0');
    FIRE_ASSERT(!strchr(error.message, '\n'));
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct stream_state state;
    static struct model model;
    static bool started;
    struct fire_error error = { 0 };
    enum fire_status status;

    if (!started)
        grpc_init();
    started = true;
    memset(&state, 0, sizeof(state));
    memset(&model, 0, sizeof(model));
    while (size >= 2) {
        size_t count = data[0] | (size_t)data[1] << 8;

        data += 2;
        size -= 2;
        if (count == ANSWERED) {
            model_answer_first(&model, &state);
            continue;
        }
        if (count > size)
            count = size;
        if (!take_record(&model, &state, data, count))
            return 0;
        data += count;
        size -= count;
    }
    status = stream_state_half_close(&state, &error);
    FIRE_ASSERT((status == FIRE_OK) == (model.open_count == 0));
    return 0;
}
