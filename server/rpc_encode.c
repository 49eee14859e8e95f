/* rpc_encode: results to bytes.
 *
 * The messages point into the tensors; they live as long as one of them is packed, so a call of
 * thousands of tensors needs room for one. */
#include "rpc_encode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc_call.h"
#include "rpc_core.h"

#define FIELDS_MAX   48u
#define RESULT_FIELD 1u /* results of ReinitResponse and AnalyzeResponse */
#define WIRE_BYTES   2u

/* A result as a message, with the numbers that are known. */
struct matrix_message {
    Fire__V1__MatrixResult message;
    Fire__V1__MatrixResult__StatisticsEntry entries[FIELDS_MAX];
    Fire__V1__MatrixResult__StatisticsEntry *pointers[FIELDS_MAX];
};

/* A tensor's answer as a message, and what it points to. */
struct tensor_message {
    Fire__V1__TensorResult message;
    Fire__V1__BatchInfo batch;
    Fire__V1__TensorError error;
    char error_text[FIRE_ERROR_MESSAGE_BYTES];
    char error_field[FIRE_ERROR_FIELD_BYTES];
    struct matrix_message result;
    struct fire_result *view_results; /* of per_matrix, or NULL */
    struct matrix_message *views;
    Fire__V1__MatrixResult **view_pointers;
};

static Fire__V1__TensorAction action_of(const struct request_tensor *tensor,
                                        const struct fire_result *result)
{
    if (tensor->error.status != FIRE_OK)
        return FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_REFUSED;
    if (tensor->role == REQUEST_STATE)
        return FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_STATE;
    switch (result->action) {
    case FIRE_ACTION_PROJECTED:
        return tensor->analyze ? FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_ANALYZED
                               : FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_PROJECTED;
    case FIRE_ACTION_SKIPPED:
        return tensor->analyze ? FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_ANALYZED
                               : FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_SKIPPED;
    case FIRE_ACTION_REFUSED: break;
    }
    return FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_REFUSED;
}

static void fill_matrix(struct matrix_message *matrix, const struct fire_result *result,
                        Fire__V1__TensorAction action)
{
    Fire__V1__MatrixResult *message = &matrix->message;

    FIRE_ASSERT(fire_result_field_count() <= FIELDS_MAX);
    fire__v1__matrix_result__init(message);
    message->action = action;
    message->reason = (char *)result->reason;
    message->method = (char *)result->method;
    message->path = (char *)(result->path ? result->path : "");
    message->steps = result->steps;
    message->converged = result->converged;
    message->rank = result->rank;
    message->rank_defect = result->rank_defect;
    message->matrices = result->matrices;
    message->statistics = matrix->pointers;
    for (size_t i = 0; i < fire_result_field_count(); i++) {
        Fire__V1__MatrixResult__StatisticsEntry *entry = &matrix->entries[message->n_statistics];
        const double value = fire_result_value(result, i);

        if (isnan(value))
            continue;
        fire__v1__matrix_result__statistics_entry__init(entry);
        entry->key = (char *)fire_result_field_at(i)->name;
        entry->value = value;
        matrix->pointers[message->n_statistics++] = entry;
    }
}

static void fill_error(struct tensor_message *storage, const struct request_tensor *tensor)
{
    const struct fire_error *error = &tensor->error;
    const char *reason = tensor->reason ? tensor->reason : rpc_reason(error->status);

    memcpy(storage->error_text, error->message, sizeof(storage->error_text));
    memcpy(storage->error_field, error->field, sizeof(storage->error_field));
    rpc_text_clean(storage->error_text);
    rpc_text_clean(storage->error_field);
    fire__v1__tensor_error__init(&storage->error);
    storage->error.code = (int32_t)rpc_code(error->status);
    storage->error.reason = (char *)reason;
    storage->error.field = storage->error_field;
    storage->error.message = storage->error_text;
    storage->message.error = &storage->error;
}

static bool fill_views(struct tensor_message *storage, const struct request_tensor *tensor)
{
    const size_t count = (size_t)tensor->work.view_count;

    storage->view_results = calloc(count, sizeof(*storage->view_results));
    storage->views = calloc(count, sizeof(*storage->views));
    storage->view_pointers = calloc(count, sizeof(*storage->view_pointers));
    if (!storage->view_results || !storage->views || !storage->view_pointers)
        return false;
    for (size_t i = 0; i < count; i++) {
        request_view_result(tensor, i, &storage->view_results[i]);
        fill_matrix(&storage->views[i], &storage->view_results[i],
                    action_of(tensor, &storage->view_results[i]));
        storage->view_pointers[i] = &storage->views[i].message;
    }
    storage->message.n_per_matrix = count;
    storage->message.per_matrix = storage->view_pointers;
    return true;
}

static const Fire__V1__TensorRole roles[] = {
    [REQUEST_WEIGHT] = FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_WEIGHT,
    [REQUEST_STATE] = FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_STATE,
    [REQUEST_ACTIVATIONS] = FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_ACTIVATIONS,
    [REQUEST_UNIT_MEANS] = FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_UNIT_MEANS,
    [REQUEST_GRADIENT] = FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_GRADIENT,
};

/* End with tensor_message_release(), also when there was no memory. */
static bool tensor_message_init(struct tensor_message *storage, const struct request_set *set,
                                const struct request_tensor *tensor)
{
    Fire__V1__TensorResult *message = &storage->message;

    storage->view_results = NULL;
    storage->views = NULL;
    storage->view_pointers = NULL;
    fire__v1__tensor_result__init(message);
    message->name = tensor->name;
    message->role = roles[tensor->role];
    message->parameter = tensor->parameter;
    message->slot = tensor->slot;
    message->preset = (char *)tensor->options.preset;
    message->state = (char *)(tensor->state ? tensor->state : "");
    fill_matrix(&storage->result, &tensor->result, action_of(tensor, &tensor->result));
    message->result = &storage->result.message;
    if (tensor->batch_id) {
        fire__v1__batch_info__init(&storage->batch);
        storage->batch.id = tensor->batch_id;
        storage->batch.size = tensor->batch_size;
        storage->batch.close_reason = (Fire__V1__CloseReason)tensor->close_reason;
        storage->batch.queue_ms = tensor->queue_ms;
        storage->batch.compute_ms = tensor->compute_ms;
        message->batch = &storage->batch;
    }
    if (tensor->error.status != FIRE_OK)
        fill_error(storage, tensor);
    else if (set->per_matrix && tensor->role == REQUEST_WEIGHT && tensor->work.view_count > 1)
        return fill_views(storage, tensor);
    return true;
}

static void tensor_message_release(struct tensor_message *storage)
{
    free(storage->view_results);
    free(storage->views);
    free(storage->view_pointers);
}

bool rpc_tensor_is_answered(const struct request_tensor *tensor)
{
    return tensor->role == REQUEST_WEIGHT || (tensor->role == REQUEST_STATE && !tensor->analyze);
}

/* --- slices ----------------------------------------------------------------------------------- */

static void drop_block(void *tensor)
{
    request_block_drop(tensor);
}

/* `count` bytes of the answer, lent to gRPC. */
static grpc_slice lend(struct request_tensor *tensor, uint64_t offset, uint64_t count)
{
    uint64_t bytes;
    const uint8_t *answer = request_bytes(tensor, &bytes);

    FIRE_ASSERT(offset <= bytes && count <= bytes - offset);
    if (count == 0)
        return grpc_empty_slice();
    request_block_hold(tensor);
    return grpc_slice_new_with_user_data((void *)(answer + offset), (size_t)count, drop_block,
                                         tensor);
}

/* --- unary ------------------------------------------------------------------------------------ */

struct packed {
    uint8_t *bytes;
    size_t used;
    size_t room;
};

/* Appends one field `results`. */
static bool pack_result(struct packed *packed, const Fire__V1__TensorResult *result)
{
    const size_t bytes = fire__v1__tensor_result__get_packed_size(result);
    const size_t wanted = packed->used + 1 + 10 + bytes;

    if (wanted > packed->room) {
        const size_t room = 2 * wanted;
        uint8_t *grown = realloc(packed->bytes, room);

        if (!grown)
            return false;
        packed->bytes = grown;
        packed->room = room;
    }
    packed->bytes[packed->used++] = RESULT_FIELD << 3 | WIRE_BYTES;
    packed->used += rpc_write_varint(packed->bytes + packed->used, bytes);
    packed->used += fire__v1__tensor_result__pack(result, packed->bytes + packed->used);
    return true;
}

static bool pack_results(const struct rpc_set *set, struct tensor_message *storage,
                         struct packed *packed)
{
    bool packed_all = true;

    for (size_t i = 0; i < set->tensor_count && packed_all; i++) {
        if (!rpc_tensor_is_answered(set->tensors[i]))
            continue;
        packed_all = tensor_message_init(storage, &set->set, set->tensors[i]) &&
                     pack_result(packed, &storage->message);
        tensor_message_release(storage);
    }
    return packed_all;
}

grpc_byte_buffer *rpc_encode_set(const struct rpc_set *set)
{
    struct tensor_message *storage = malloc(sizeof(*storage));
    grpc_slice *payloads = calloc(set->tensor_count + 1, sizeof(*payloads));
    grpc_byte_buffer *buffer = NULL;
    struct packed packed = { 0 };
    size_t count = 0;

    if (storage && payloads && pack_results(set, storage, &packed)) {
        for (size_t i = 0; i < set->tensor_count && !set->set.analyze; i++) {
            uint64_t bytes;

            if (!rpc_tensor_is_answered(set->tensors[i]))
                continue;
            (void)request_bytes(set->tensors[i], &bytes);
            payloads[count++] = lend(set->tensors[i], 0, bytes);
        }
        buffer = rpc_message_pack_bytes(
            packed.used ? grpc_slice_new(packed.bytes, packed.used, free) : grpc_empty_slice(),
            payloads, count);
        if (packed.used)
            packed.bytes = NULL;
    }
    free(packed.bytes);
    free(payloads);
    free(storage);
    return buffer;
}

/* --- streams ---------------------------------------------------------------------------------- */

grpc_byte_buffer *rpc_encode_begin(const struct request_set *set, uint32_t id,
                                   const struct request_tensor *tensor, uint64_t total_bytes)
{
    struct tensor_message *storage = malloc(sizeof(*storage));
    Fire__V1__ReinitStreamResponse response = FIRE__V1__REINIT_STREAM_RESPONSE__INIT;
    Fire__V1__ResultBegin begin = FIRE__V1__RESULT_BEGIN__INIT;
    grpc_byte_buffer *buffer = NULL;

    if (!storage)
        return NULL;
    if (tensor_message_init(storage, set, tensor)) {
        begin.id = id;
        begin.result = &storage->message;
        begin.total_bytes = total_bytes;
        response.body_case = FIRE__V1__REINIT_STREAM_RESPONSE__BODY_BEGIN;
        response.begin = &begin;
        buffer = rpc_message_pack(&response.base, NULL, 0);
    }
    tensor_message_release(storage);
    free(storage);
    return buffer;
}

grpc_byte_buffer *rpc_encode_chunk(uint32_t id, struct request_tensor *tensor, uint64_t offset,
                                   uint64_t count)
{
    Fire__V1__ReinitStreamResponse response = FIRE__V1__REINIT_STREAM_RESPONSE__INIT;
    Fire__V1__TensorChunk chunk = FIRE__V1__TENSOR_CHUNK__INIT;
    grpc_slice payload = lend(tensor, offset, count);

    chunk.id = id;
    chunk.offset = offset;
    response.body_case = FIRE__V1__REINIT_STREAM_RESPONSE__BODY_CHUNK;
    response.chunk = &chunk;
    return rpc_message_pack(&response.base, &payload, 1);
}

grpc_byte_buffer *rpc_encode_analyzed(const struct request_set *set, uint32_t id,
                                      const struct request_tensor *tensor)
{
    struct tensor_message *storage = malloc(sizeof(*storage));
    Fire__V1__AnalyzeStreamResponse response = FIRE__V1__ANALYZE_STREAM_RESPONSE__INIT;
    grpc_byte_buffer *buffer = NULL;

    if (!storage)
        return NULL;
    if (tensor_message_init(storage, set, tensor)) {
        response.id = id;
        response.result = &storage->message;
        buffer = rpc_message_pack(&response.base, NULL, 0);
    }
    tensor_message_release(storage);
    free(storage);
    return buffer;
}
