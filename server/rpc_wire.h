/* rpc_wire: protobuf on the wire without copying tensor bytes.
 *
 * Reading: walks the top-level fields of a message that lies in many slices, copies the small part
 * (all but field 100) into one buffer for protobuf-c to unpack, and notes where each `data` payload
 * lies. Every varint, length and limit is checked; nothing is allocated beyond `small_bytes_max`
 * and `payloads_max`. Writing: packs the small part with data empty and appends key, length and a
 * borrowed slice for each payload. Pure bytes: no call, no loop. Fuzzed. */
#ifndef FIRED_RPC_WIRE_H
#define FIRED_RPC_WIRE_H

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define RPC_DATA_FIELD 100u
/* Fields beside data: as many as there may be payloads, and so many more. */
#define RPC_FIELDS_MORE_MAX 16u

/* Where one payload lies: it starts `offset` bytes into slice `slice` and may go on through the
 * following ones. */
struct rpc_payload {
    size_t slice;
    size_t offset;
    uint64_t bytes;
};

struct rpc_message {
    grpc_byte_buffer *buffer; /* owned */
    grpc_slice *slices;       /* borrowed from the buffer */
    size_t slice_count;
    uint8_t *small; /* the fields but data, in order */
    size_t small_bytes;
    struct rpc_payload *payloads;
    size_t payload_count;
};

/* Takes ownership of `buffer` in every case. */
FIRE_NODISCARD enum fire_status rpc_message_init(struct rpc_message *message,
                                                 grpc_byte_buffer *buffer, size_t small_bytes_max,
                                                 size_t payloads_max, struct fire_error *error);
void rpc_message_release(struct rpc_message *message);

/* `bytes` of a payload from its byte `offset` on, which are there. */
struct rpc_payload rpc_payload_part(const struct rpc_message *message,
                                    const struct rpc_payload *payload, uint64_t offset,
                                    uint64_t bytes);

/* Calls `piece` for each contiguous run of a payload, in order, until it returns other than OK. */
FIRE_NODISCARD enum fire_status rpc_payload_walk(
    const struct rpc_message *message, const struct rpc_payload *payload,
    enum fire_status (*piece)(void *data, uint64_t offset, const uint8_t *bytes, size_t count),
    void *data);

/* A message of `small` followed by `payload_count` data fields; takes over the payload slices. An
 * empty slice is written as an empty field. NULL: no memory (slices are unreffed). */
grpc_byte_buffer *rpc_message_pack(const ProtobufCMessage *small, grpc_slice *payloads,
                                   size_t payload_count);
/* The same when the small part is packed already; takes over `small` too. */
grpc_byte_buffer *rpc_message_pack_bytes(grpc_slice small, grpc_slice *payloads,
                                         size_t payload_count);

/* Writes at most 10 bytes; returns how many. */
size_t rpc_write_varint(uint8_t *bytes, uint64_t value);

#endif
