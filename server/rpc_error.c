/* rpc_error: statuses on the wire.
 *
 * google.rpc.Status is written by hand: a few strings and numbers, whose .proto files Debian does
 * not package for C. Everything fits fixed buffers, since messages and fields have fixed most
 * lengths. */
#include <grpc/slice.h>
#include <string.h>

#include "rpc_core.h"
#include "utf8.h"

#define DETAIL_BYTES_MAX 1024u
#define STATUS_BYTES_MAX 4096u
#define TYPE_PREFIX      "type.googleapis.com/google.rpc."

struct writer {
    uint8_t *bytes;
    size_t room;
    size_t used;
};

static void put_byte(struct writer *writer, uint8_t byte)
{
    FIRE_ASSERT(writer->used < writer->room);
    writer->bytes[writer->used++] = byte;
}

static void put_varint(struct writer *writer, uint64_t value)
{
    while (value >= 0x80) {
        put_byte(writer, (uint8_t)(value | 0x80));
        value >>= 7;
    }
    put_byte(writer, (uint8_t)value);
}

static void put_number(struct writer *writer, uint32_t field, uint64_t value)
{
    if (value == 0)
        return; /* proto3 leaves zero out */
    put_varint(writer, field << 3);
    put_varint(writer, value);
}

static void put_bytes(struct writer *writer, uint32_t field, const void *bytes, size_t count)
{
    put_varint(writer, field << 3 | 2);
    put_varint(writer, count);
    FIRE_ASSERT(count <= writer->room - writer->used);
    memcpy(writer->bytes + writer->used, bytes, count);
    writer->used += count;
}

/* A string field; what is not UTF-8 becomes question marks, what is too long is cut. */
static void put_text(struct writer *writer, uint32_t field, const char *text)
{
    char clean[FIRE_ERROR_MESSAGE_BYTES];

    strncpy(clean, text, sizeof(clean) - 1);
    clean[sizeof(clean) - 1] = '\0';
    rpc_text_clean(clean);
    if (clean[0])
        put_bytes(writer, field, clean, strlen(clean));
}

/* details += Any{type_url, value} */
static void put_detail(struct writer *status, const char *type, const struct writer *value)
{
    uint8_t bytes[DETAIL_BYTES_MAX + 128];
    struct writer any = { bytes, sizeof(bytes), 0 };

    put_bytes(&any, 1, type, strlen(type));
    put_bytes(&any, 2, value->bytes, value->used);
    put_bytes(status, 3, any.bytes, any.used);
}

static void put_error_info(struct writer *status, const char *reason)
{
    uint8_t bytes[DETAIL_BYTES_MAX];
    struct writer info = { bytes, sizeof(bytes), 0 };

    put_text(&info, 1, reason);
    put_text(&info, 2, "fired");
    put_detail(status, TYPE_PREFIX "ErrorInfo", &info);
}

static void put_bad_request(struct writer *status, const char *field, const char *message)
{
    uint8_t violation_bytes[DETAIL_BYTES_MAX - 8];
    uint8_t bytes[DETAIL_BYTES_MAX];
    struct writer violation = { violation_bytes, sizeof(violation_bytes), 0 };
    struct writer request = { bytes, sizeof(bytes), 0 };
    char cut[FIRE_ERROR_FIELD_BYTES];

    strncpy(cut, field, sizeof(cut) - 1);
    cut[sizeof(cut) - 1] = '\0';
    put_text(&violation, 1, cut);
    put_text(&violation, 2, message);
    put_bytes(&request, 1, violation.bytes, violation.used);
    put_detail(status, TYPE_PREFIX "BadRequest", &request);
}

static void put_retry_info(struct writer *status, uint32_t retry_ms)
{
    uint8_t duration_bytes[32];
    uint8_t bytes[64];
    struct writer duration = { duration_bytes, sizeof(duration_bytes), 0 };
    struct writer info = { bytes, sizeof(bytes), 0 };

    put_number(&duration, 1, retry_ms / 1000);
    put_number(&duration, 2, (uint64_t)(retry_ms % 1000) * 1000000u);
    put_bytes(&info, 1, duration.bytes, duration.used);
    put_detail(status, TYPE_PREFIX "RetryInfo", &info);
}

grpc_slice rpc_error_details(grpc_status_code code, const struct fire_error *error,
                             const struct rpc_failure *failure)
{
    uint8_t bytes[STATUS_BYTES_MAX];
    struct writer status = { bytes, sizeof(bytes), 0 };
    const char *message = error ? error->message : "";
    const char *reason = failure ? failure->reason : NULL;
    const char *field = failure ? failure->field : NULL;

    if (code == GRPC_STATUS_OK)
        return grpc_empty_slice();
    if (!reason)
        reason = rpc_reason(error ? error->status : FIRE_IO);
    put_number(&status, 1, (uint64_t)code);
    put_text(&status, 2, message);
    put_error_info(&status, reason);
    if (field && field[0])
        put_bad_request(&status, field, message);
    if (failure && failure->retry_ms > 0)
        put_retry_info(&status, failure->retry_ms);
    return grpc_slice_from_copied_buffer((const char *)status.bytes, status.used);
}

void rpc_text_clean(char *text)
{
    while (*text) {
        const size_t bytes = utf8_bytes(text);

        if (bytes == 0)
            *text = '?';
        text += bytes > 0 ? bytes : 1;
    }
}

grpc_status_code rpc_code(enum fire_status status)
{
    switch (status) {
    case FIRE_OK: return GRPC_STATUS_OK;
    case FIRE_BAD_REQUEST: return GRPC_STATUS_INVALID_ARGUMENT;
    case FIRE_NOT_FOUND: return GRPC_STATUS_NOT_FOUND;
    case FIRE_UNAUTHENTICATED: return GRPC_STATUS_UNAUTHENTICATED;
    case FIRE_DENIED: return GRPC_STATUS_PERMISSION_DENIED;
    case FIRE_BUSY: return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case FIRE_NO_MEMORY: return GRPC_STATUS_RESOURCE_EXHAUSTED;
    case FIRE_CANCELLED: return GRPC_STATUS_CANCELLED;
    case FIRE_TOO_LATE: return GRPC_STATUS_DEADLINE_EXCEEDED;
    case FIRE_DRAINING: return GRPC_STATUS_UNAVAILABLE;
    case FIRE_DEVICE_LOST: return GRPC_STATUS_UNAVAILABLE;
    case FIRE_IO: return GRPC_STATUS_INTERNAL;
    }
    return GRPC_STATUS_INTERNAL;
}

const char *rpc_reason(enum fire_status status)
{
    switch (status) {
    case FIRE_OK: return "OK";
    case FIRE_BAD_REQUEST: return "BAD_REQUEST";
    case FIRE_NOT_FOUND: return "NOT_FOUND";
    case FIRE_UNAUTHENTICATED: return "UNAUTHENTICATED";
    case FIRE_DENIED: return "DENIED";
    case FIRE_BUSY: return "BUSY";
    case FIRE_NO_MEMORY: return "NO_MEMORY";
    case FIRE_CANCELLED: return "CANCELLED";
    case FIRE_TOO_LATE: return "TOO_LATE";
    case FIRE_DRAINING: return "DRAINING";
    case FIRE_DEVICE_LOST: return "DEVICE_LOST";
    case FIRE_IO: return "INTERNAL";
    }
    return "INTERNAL";
}

const char *rpc_code_name(grpc_status_code code)
{
    static const char *const names[] = {
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    };
    const size_t index = (size_t)code;

    return index < sizeof(names) / sizeof(names[0]) ? names[index] : "UNKNOWN";
}
