/* A whole unary request from strangers: bytes in slices cut anywhere, through unpacking, checks,
 * feeding, answering and packing. The first byte says whether it is analyzed, the second where it
 * is cut; the rest is the message. The device is played by marking every matrix as projected.
 *
 * What must hold:
 *   a refusal has a message in one line;
 *   what is accepted is answered with a message that protobuf-c reads, one result and one payload
 *   for each weight and state, payloads as long as the tensor or, where it was refused, empty;
 *   all of the arena comes back. */
#include <grpc/grpc.h>
#include <stdlib.h>
#include <string.h>

#include "rpc_decode.h"
#include "rpc_encode.h"

#define ARENA_BYTES      (8u << 20)
#define TENSOR_BYTES_MAX 65536u
#define SLICES_MAX       64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(enum fire_status status, const struct fire_error *error)
{
    FIRE_ASSERT(error->status == status);
    FIRE_ASSERT(error->message[0] != '\0');
    FIRE_ASSERT(!strchr(error->message, '\n'));
}

static grpc_byte_buffer *in_slices(const uint8_t *bytes, size_t count, size_t slice_bytes)
{
    grpc_slice slices[SLICES_MAX];
    grpc_byte_buffer *buffer;
    size_t slice_count = 0;

    while (count > 0) {
        const size_t run =
            slice_count == SLICES_MAX - 1 || count < slice_bytes ? count : slice_bytes;

        slices[slice_count++] = grpc_slice_from_copied_buffer((const char *)bytes, run);
        bytes += run;
        count -= run;
    }
    buffer = grpc_raw_byte_buffer_create(slices, slice_count);
    for (size_t i = 0; i < slice_count; i++)
        grpc_slice_unref(slices[i]);
    return buffer;
}

static void play_device(struct request_tensor *tensor)
{
    for (uint32_t i = 0; i < request_job_count(tensor); i++) {
        const struct job *job = request_job(tensor, i);

        for (uint32_t k = 0; k < job->matrix_count; k++) {
            job->slots[k].result->action = FIRE_ACTION_PROJECTED;
            job->slots[k].result->matrices = 1;
            memset(job->slots[k].weights, 0, fire_plan_slot_bytes(job->plan));
        }
    }
}

static void check_answer(const struct rpc_set *set)
{
    grpc_byte_buffer *buffer = rpc_encode_set(set);
    uint8_t *whole;
    Fire__V1__ReinitResponse *response;
    size_t at = 0, answered = 0;

    FIRE_ASSERT(buffer);
    whole = malloc(grpc_byte_buffer_length(buffer) + 1);
    FIRE_ASSERT(whole);
    for (size_t i = 0; i < buffer->data.raw.slice_buffer.count; i++) {
        const grpc_slice slice = buffer->data.raw.slice_buffer.slices[i];

        memcpy(whole + at, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
        at += GRPC_SLICE_LENGTH(slice);
    }
    response = fire__v1__reinit_response__unpack(NULL, at, whole);
    FIRE_ASSERT(response);
    for (size_t i = 0; i < set->tensor_count; i++) {
        const struct request_tensor *tensor = set->tensors[i];
        const bool refused = tensor->error.status != FIRE_OK;

        if (!rpc_tensor_is_answered(tensor))
            continue;
        FIRE_ASSERT(answered < response->n_results);
        FIRE_ASSERT(refused == (response->results[answered]->error != NULL));
        if (!set->set.analyze)
            FIRE_ASSERT(response->data[answered].len == (refused ? 0 : tensor->total_bytes));
        answered++;
    }
    FIRE_ASSERT(response->n_results == answered);
    FIRE_ASSERT(response->n_data == (set->set.analyze ? 0 : answered));
    fire__v1__reinit_response__free_unpacked(response, NULL);
    free(whole);
    grpc_byte_buffer_destroy(buffer);
}

static enum fire_status serve(struct rpc_set *set, const struct rpc_message *message,
                              struct arena *arena, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; status == FIRE_OK && i < set->tensor_count; i++) {
        FIRE_ASSERT(set->tensors[i]->total_bytes <= TENSOR_BYTES_MAX);
        if (rpc_tensor_is_fed(set->tensors[i]))
            status = request_tensor_reserve(set->tensors[i], arena, error);
    }
    if (status == FIRE_OK)
        status = rpc_set_feed(set, message, error);
    for (size_t i = 0; status == FIRE_OK && i < set->tensor_count; i++) {
        struct request_tensor *tensor = set->tensors[i];

        if (!rpc_tensor_is_fed(tensor))
            continue;
        FIRE_ASSERT(tensor->received_bytes == tensor->total_bytes);
        if (tensor->role == REQUEST_WEIGHT)
            play_device(tensor);
    }
    return status == FIRE_OK ? rpc_set_answer(set, error) : status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct arena *arena;
    struct fire_error error = { 0 };
    struct rpc_message message;
    struct rpc_set set;
    enum fire_status status;

    if (!arena) {
        grpc_init();
        status = arena_open(NULL, ARENA_BYTES, &arena, &error);
        FIRE_ASSERT(status == FIRE_OK);
    }
    if (size < 2)
        return 0;
    status = rpc_message_init(&message, in_slices(data + 2, size - 2, 1u + data[1]),
                              RPC_SET_BYTES_MAX, RPC_TENSORS_MAX, &error);
    if (status != FIRE_OK) {
        check_error(status, &error);
        return 0;
    }
    status = rpc_set_decode(&set, &message, data[0] & 1, TENSOR_BYTES_MAX, &error);
    if (status == FIRE_OK) {
        status = serve(&set, &message, arena, &error);
        if (status == FIRE_OK)
            check_answer(&set);
        rpc_set_release(&set);
    }
    if (status != FIRE_OK)
        check_error(status, &error);
    rpc_message_release(&message);
    FIRE_ASSERT(arena_used(arena) == 0);
    return 0;
}
