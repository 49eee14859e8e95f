/* rpc_wire: protobuf on the wire without copying tensor bytes.
 *
 * A message is walked twice with the same code: once to count and check, once to copy the small
 * part and note the payloads, so that every allocation has its final size and passed its limit. */
#include "rpc_wire.h"

#include <grpc/grpc.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define VARINT_BYTES_MAX 10u
#define WIRE_VARINT      0u
#define WIRE_FIXED64     1u
#define WIRE_BYTES       2u
#define WIRE_FIXED32     5u
#define DATA_KEY_FIRST   ((uint8_t)((RPC_DATA_FIELD << 3 & 0x7f) | WIRE_BYTES | 0x80))
#define DATA_KEY_SECOND  ((uint8_t)(RPC_DATA_FIELD >> 4))

_Static_assert(RPC_DATA_FIELD >= 16 && RPC_DATA_FIELD < 2048, "the key has two bytes");

/* Where a walk stands: byte `offset` of slice `slice`, `left` bytes before the end. */
struct cursor {
    const grpc_slice *slices;
    size_t slice_count;
    size_t slice;
    size_t offset;
    uint64_t left;
};

/* What a walk has found; where the pointers are NULL it only counts. */
struct findings {
    uint8_t *small;
    uint64_t small_bytes;
    struct rpc_payload *payloads;
    size_t payload_count;
    size_t field_count;
};

/* The bytes that lie together from here on; 0 only at the end. */
static size_t cursor_run(struct cursor *cursor, const uint8_t **bytes)
{
    while (cursor->slice < cursor->slice_count) {
        const grpc_slice *slice = &cursor->slices[cursor->slice];
        const size_t length = GRPC_SLICE_LENGTH(*slice);

        if (cursor->offset < length) {
            *bytes = GRPC_SLICE_START_PTR(*slice) + cursor->offset;
            return length - cursor->offset;
        }
        cursor->slice++;
        cursor->offset = 0;
    }
    return 0;
}

/* Moves on by `count` bytes, which are there, copying them to `copy` unless that is NULL. */
static void cursor_take(struct cursor *cursor, uint64_t count, uint8_t *copy)
{
    FIRE_ASSERT(count <= cursor->left);
    cursor->left -= count;
    while (count > 0) {
        const uint8_t *bytes = NULL;
        size_t run = cursor_run(cursor, &bytes);

        FIRE_ASSERT(run > 0);
        if (run > count)
            run = (size_t)count;
        if (copy) {
            memcpy(copy, bytes, run);
            copy += run;
        }
        cursor->offset += run;
        count -= run;
    }
}

/* Reads a varint; its bytes are kept in `raw`. False: it does not end or is over 64 bits. */
static bool cursor_varint(struct cursor *cursor, uint64_t *value, uint8_t raw[VARINT_BYTES_MAX],
                          size_t *raw_bytes)
{
    *value = 0;
    for (size_t i = 0; i < VARINT_BYTES_MAX && cursor->left > 0; i++) {
        cursor_take(cursor, 1, &raw[i]);
        if (i == VARINT_BYTES_MAX - 1 && raw[i] > 1)
            return false;
        *value |= (uint64_t)(raw[i] & 0x7f) << (7 * i);
        if (!(raw[i] & 0x80)) {
            *raw_bytes = i + 1;
            return true;
        }
    }
    return false;
}

static void keep_small(struct findings *findings, const uint8_t *bytes, size_t count)
{
    if (findings->small)
        memcpy(findings->small + findings->small_bytes, bytes, count);
    findings->small_bytes += count;
}

/* One field that is not data: `value_bytes` of it follow its key (and length). */
static void keep_field(struct cursor *cursor, uint64_t value_bytes, struct findings *findings)
{
    cursor_take(cursor, value_bytes,
                findings->small ? findings->small + findings->small_bytes : NULL);
    findings->small_bytes += value_bytes;
}

static enum fire_status broken(struct fire_error *error, const char *what)
{
    return fire_fail(error, FIRE_BAD_REQUEST, "",
                     "the message is no protobuf: %s; send what the contract in proto/fire/v1 says",
                     what);
}

/* A field whose value is a length and so many bytes. */
static enum fire_status walk_bytes(struct cursor *cursor, bool data, struct findings *findings,
                                   struct fire_error *error)
{
    uint8_t raw[VARINT_BYTES_MAX];
    size_t raw_bytes;
    uint64_t length;

    if (!cursor_varint(cursor, &length, raw, &raw_bytes))
        return broken(error, "a length is cut off or too long");
    if (length > cursor->left)
        return broken(error, "a field is longer than the message");
    if (!data) {
        keep_small(findings, raw, raw_bytes);
        keep_field(cursor, length, findings);
        return FIRE_OK;
    }
    if (findings->payloads)
        findings->payloads[findings->payload_count] =
            (struct rpc_payload){ cursor->slice, cursor->offset, length };
    findings->payload_count++;
    cursor_take(cursor, length, NULL);
    return FIRE_OK;
}

static enum fire_status walk_field(struct cursor *cursor, struct findings *findings,
                                   struct fire_error *error)
{
    uint8_t raw[VARINT_BYTES_MAX];
    size_t raw_bytes;
    uint64_t key, value;
    bool data;

    if (!cursor_varint(cursor, &key, raw, &raw_bytes))
        return broken(error, "a key is cut off or too long");
    if (key >> 3 == 0 || key >> 3 > 0x1fffffff)
        return broken(error, "a field number is not between 1 and 536870911");
    data = key >> 3 == RPC_DATA_FIELD;
    if (data && (key & 7) != WIRE_BYTES)
        return broken(error, "field 100 (data) does not hold bytes");
    if (!data) {
        findings->field_count++;
        keep_small(findings, raw, raw_bytes);
    }
    switch (key & 7) {
    case WIRE_BYTES: return walk_bytes(cursor, data, findings, error);
    case WIRE_VARINT:
        if (!cursor_varint(cursor, &value, raw, &raw_bytes))
            return broken(error, "a number is cut off or too long");
        keep_small(findings, raw, raw_bytes);
        return FIRE_OK;
    case WIRE_FIXED64:
    case WIRE_FIXED32:
        value = (key & 7) == WIRE_FIXED64 ? 8 : 4;
        if (value > cursor->left)
            return broken(error, "a number is cut off");
        keep_field(cursor, value, findings);
        return FIRE_OK;
    default: return broken(error, "a field has a wire type that is not known");
    }
}

static enum fire_status check_limits(const struct findings *findings, size_t small_bytes_max,
                                     size_t payloads_max, struct fire_error *error)
{
    if (findings->payload_count > payloads_max)
        return fire_fail(error, FIRE_BAD_REQUEST, "data",
                         "the message has more than %zu data fields; send fewer tensors a message",
                         payloads_max);
    if (findings->small_bytes > small_bytes_max)
        return fire_fail(error, FIRE_BAD_REQUEST, "",
                         "the message has more than %zu bytes beside tensor data; send fewer or "
                         "shorter fields",
                         small_bytes_max);
    if (findings->field_count > payloads_max + RPC_FIELDS_MORE_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "",
                         "the message has more than %zu fields beside tensor data; send fewer "
                         "tensors a message",
                         payloads_max + RPC_FIELDS_MORE_MAX);
    return FIRE_OK;
}

static enum fire_status walk(const struct rpc_message *message, size_t small_bytes_max,
                             size_t payloads_max, struct findings *findings,
                             struct fire_error *error)
{
    struct cursor cursor = { message->slices, message->slice_count, 0, 0, 0 };
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; i < message->slice_count; i++)
        cursor.left += GRPC_SLICE_LENGTH(message->slices[i]);
    while (status == FIRE_OK && cursor.left > 0) {
        status = walk_field(&cursor, findings, error);
        if (status == FIRE_OK)
            status = check_limits(findings, small_bytes_max, payloads_max, error);
    }
    return status;
}

enum fire_status rpc_message_init(struct rpc_message *message, grpc_byte_buffer *buffer,
                                  size_t small_bytes_max, size_t payloads_max,
                                  struct fire_error *error)
{
    struct findings findings = { 0 };
    enum fire_status status;

    *message = (struct rpc_message){ .buffer = buffer };
    if (buffer->type != GRPC_BB_RAW || buffer->data.raw.compression != GRPC_COMPRESS_NONE) {
        status = fire_fail(error, FIRE_BAD_REQUEST, "",
                           "the message is compressed; send tensors without compression");
        goto fail;
    }
    message->slices = buffer->data.raw.slice_buffer.slices;
    message->slice_count = buffer->data.raw.slice_buffer.count;
    status = walk(message, small_bytes_max, payloads_max, &findings, error);
    if (status != FIRE_OK)
        goto fail;

    message->small = malloc(findings.small_bytes + 1);
    message->payloads = calloc(findings.payload_count + 1, sizeof(*message->payloads));
    if (!message->small || !message->payloads) {
        status = fire_fail_memory(error, findings.small_bytes);
        goto fail;
    }
    message->small_bytes = (size_t)findings.small_bytes;
    message->payload_count = findings.payload_count;
    findings = (struct findings){ .small = message->small, .payloads = message->payloads };
    status = walk(message, small_bytes_max, payloads_max, &findings, error);
    FIRE_ASSERT(status == FIRE_OK);
    FIRE_ASSERT(findings.small_bytes == message->small_bytes);
    FIRE_ASSERT(findings.payload_count == message->payload_count);
    return FIRE_OK;

fail:
    rpc_message_release(message);
    return status;
}

void rpc_message_release(struct rpc_message *message)
{
    if (message->buffer)
        grpc_byte_buffer_destroy(message->buffer);
    free(message->small);
    free(message->payloads);
    *message = (struct rpc_message){ 0 };
}

struct rpc_payload rpc_payload_part(const struct rpc_message *message,
                                    const struct rpc_payload *payload, uint64_t offset,
                                    uint64_t bytes)
{
    struct cursor cursor = { message->slices, message->slice_count, payload->slice, payload->offset,
                             payload->bytes };

    FIRE_ASSERT(offset <= payload->bytes);
    FIRE_ASSERT(bytes <= payload->bytes - offset);
    cursor_take(&cursor, offset, NULL);
    return (struct rpc_payload){ cursor.slice, cursor.offset, bytes };
}

enum fire_status rpc_payload_walk(const struct rpc_message *message,
                                  const struct rpc_payload *payload,
                                  enum fire_status (*piece)(void *data, uint64_t offset,
                                                            const uint8_t *bytes, size_t count),
                                  void *data)
{
    struct cursor cursor = { message->slices, message->slice_count, payload->slice, payload->offset,
                             payload->bytes };

    while (cursor.left > 0) {
        const uint8_t *bytes = NULL;
        size_t run = cursor_run(&cursor, &bytes);
        enum fire_status status;

        FIRE_ASSERT(run > 0);
        if (run > cursor.left)
            run = (size_t)cursor.left;
        status = piece(data, payload->bytes - cursor.left, bytes, run);
        if (status != FIRE_OK)
            return status;
        cursor_take(&cursor, run, NULL);
    }
    return FIRE_OK;
}

size_t rpc_write_varint(uint8_t *bytes, uint64_t value)
{
    size_t count = 0;

    for (; value >= 0x80; value >>= 7)
        bytes[count++] = (uint8_t)(value | 0x80);
    bytes[count++] = (uint8_t)value;
    return count;
}

/* Key and length of a data field of `bytes`. */
static grpc_slice data_head(uint64_t bytes)
{
    uint8_t head[2 + VARINT_BYTES_MAX] = { DATA_KEY_FIRST, DATA_KEY_SECOND };

    return grpc_slice_from_copied_buffer((const char *)head, 2 + rpc_write_varint(head + 2, bytes));
}

grpc_byte_buffer *rpc_message_pack_bytes(grpc_slice small, grpc_slice *payloads,
                                         size_t payload_count)
{
    grpc_slice *slices = malloc((1 + 2 * payload_count) * sizeof(*slices));
    grpc_byte_buffer *buffer = NULL;
    size_t count = 0;

    if (slices) {
        slices[count++] = small;
        for (size_t i = 0; i < payload_count; i++) {
            slices[count++] = data_head(GRPC_SLICE_LENGTH(payloads[i]));
            if (GRPC_SLICE_LENGTH(payloads[i]) > 0)
                slices[count++] = payloads[i];
            else
                grpc_slice_unref(payloads[i]);
        }
        buffer = grpc_raw_byte_buffer_create(slices, count);
        for (size_t i = 0; i < count; i++)
            grpc_slice_unref(slices[i]);
        free(slices);
        return buffer;
    }
    grpc_slice_unref(small);
    for (size_t i = 0; i < payload_count; i++)
        grpc_slice_unref(payloads[i]);
    return NULL;
}

grpc_byte_buffer *rpc_message_pack(const ProtobufCMessage *small, grpc_slice *payloads,
                                   size_t payload_count)
{
    grpc_slice packed = grpc_slice_malloc(protobuf_c_message_get_packed_size(small));

    protobuf_c_message_pack(small, GRPC_SLICE_START_PTR(packed));
    return rpc_message_pack_bytes(packed, payloads, payload_count);
}
