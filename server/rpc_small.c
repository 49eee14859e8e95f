/* rpc_small: messages without tensors, as protobuf-c knows them: a few kilobytes, copied freely. */
#include <grpc/byte_buffer_reader.h>
#include <string.h>

#include "rpc_core.h"

#define DEPTH_MAX    8
#define WIRE_VARINT  0u
#define WIRE_FIXED64 1u
#define WIRE_BYTES   2u
#define WIRE_FIXED32 5u

static bool take_varint(const uint8_t **at, const uint8_t *end, uint64_t *value)
{
    *value = 0;
    for (uint32_t shift = 0; shift < 64 && *at < end; shift += 7) {
        const uint8_t byte = *(*at)++;

        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* protobuf-c ends a text at its first NUL and would take "a" for "a\0b": whether no text has one.
 * Bytes that are no message are for the parser to refuse. */
static bool texts_are_whole(const ProtobufCMessageDescriptor *descriptor, const uint8_t *at,
                            const uint8_t *end, int depth)
{
    while (at < end) {
        const ProtobufCFieldDescriptor *field;
        uint64_t key, length = 0;
        bool whole = true;

        if (!take_varint(&at, end, &key))
            return true;
        if ((key & 7) == WIRE_VARINT ? !take_varint(&at, end, &length)
                                     : (key & 7) == WIRE_BYTES && !take_varint(&at, end, &length))
            return true;
        if ((key & 7) == WIRE_VARINT)
            continue;
        if ((key & 7) == WIRE_FIXED64 || (key & 7) == WIRE_FIXED32)
            length = (key & 7) == WIRE_FIXED64 ? 8 : 4;
        if ((key & 7) > WIRE_FIXED32 || length > (uint64_t)(end - at) || depth == 0)
            return true;
        field = protobuf_c_message_descriptor_get_field(descriptor, (unsigned)(key >> 3));
        if (field && (key & 7) == WIRE_BYTES && field->type == PROTOBUF_C_TYPE_STRING)
            whole = memchr(at, 0, length) == NULL;
        else if (field && (key & 7) == WIRE_BYTES && field->type == PROTOBUF_C_TYPE_MESSAGE)
            whole = texts_are_whole(field->descriptor, at, at + length, depth - 1);
        if (!whole)
            return false;
        at += length;
    }
    return true;
}

ProtobufCMessage *rpc_small_unpack(const ProtobufCMessageDescriptor *descriptor,
                                   grpc_byte_buffer *buffer)
{
    return rpc_small_unpack_up_to(descriptor, buffer, RPC_SMALL_BYTES_MAX);
}

ProtobufCMessage *rpc_small_unpack_up_to(const ProtobufCMessageDescriptor *descriptor,
                                         grpc_byte_buffer *buffer, size_t bytes_max)
{
    ProtobufCMessage *message = NULL;
    grpc_byte_buffer_reader reader;

    if (grpc_byte_buffer_length(buffer) <= bytes_max &&
        grpc_byte_buffer_reader_init(&reader, buffer)) {
        grpc_slice bytes = grpc_byte_buffer_reader_readall(&reader);

        const uint8_t *start = GRPC_SLICE_START_PTR(bytes);

        if (texts_are_whole(descriptor, start, start + GRPC_SLICE_LENGTH(bytes), DEPTH_MAX))
            message = protobuf_c_message_unpack(descriptor, NULL, GRPC_SLICE_LENGTH(bytes), start);
        grpc_slice_unref(bytes);
        grpc_byte_buffer_reader_destroy(&reader);
    }
    grpc_byte_buffer_destroy(buffer);
    return message;
}

grpc_byte_buffer *rpc_small_pack(const ProtobufCMessage *message)
{
    grpc_slice bytes = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));

    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(bytes));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&bytes, 1);
    grpc_slice_unref(bytes);
    return buffer;
}

void rpc_small_reply(struct rpc_call *call, const ProtobufCMessage *message)
{
    rpc_call_reply(call, rpc_small_pack(message));
}

void rpc_small_malformed(struct rpc_call *call)
{
    struct fire_error error;

    rpc_call_finish(call,
                    fire_fail(&error, FIRE_BAD_REQUEST, NULL,
                              "the request is missing, too large, no message of the type that %s "
                              "takes, or has a NUL in a text",
                              rpc_call_method(call)->path + 1),
                    &error, NULL);
}
