/* rpc_small: messages without tensors, as protobuf-c knows them: a few kilobytes, copied freely. */
#include <grpc/byte_buffer_reader.h>

#include "rpc_core.h"

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

        message = protobuf_c_message_unpack(descriptor, NULL, GRPC_SLICE_LENGTH(bytes),
                                            GRPC_SLICE_START_PTR(bytes));
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
                              "the request is missing, larger than %u bytes, or no message of the "
                              "type that %s takes",
                              RPC_SMALL_BYTES_MAX, rpc_call_method(call)->path + 1),
                    &error, NULL);
}
