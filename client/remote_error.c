/* remote_error: the end of a call as words. The daemon's own come from google.rpc.Status in the
 * trailing metadata: ErrorInfo, BadRequest and RetryInfo, read by hand because Debian has no
 * package of their .proto files. Every length is checked; what cannot be read is ignored. */
#include <stdio.h>
#include <string.h>

#include "remote.h"

#define DETAILS_KEY "grpc-status-details-bin"
#define TYPE_PREFIX "type.googleapis.com/google.rpc."

/* A run of bytes that is read from the front. */
struct span {
    const uint8_t *at;
    size_t bytes;
};

/* One field: `text` for bytes, `number` for a varint. */
struct wire_field {
    uint32_t number;
    struct span text;
    uint64_t value;
};

/* What the details say. */
struct details {
    struct span reason;
    struct span field;
    double retry_s; /* negative: none */
};

enum fire_status remote_status_of(int code)
{
    switch (code) {
    case GRPC_STATUS_OK: return FIRE_OK;
    case GRPC_STATUS_INVALID_ARGUMENT:
    case GRPC_STATUS_OUT_OF_RANGE:
    case GRPC_STATUS_FAILED_PRECONDITION:
    case GRPC_STATUS_UNIMPLEMENTED: return FIRE_BAD_REQUEST;
    case GRPC_STATUS_NOT_FOUND: return FIRE_NOT_FOUND;
    case GRPC_STATUS_UNAUTHENTICATED: return FIRE_UNAUTHENTICATED;
    case GRPC_STATUS_PERMISSION_DENIED: return FIRE_DENIED;
    case GRPC_STATUS_RESOURCE_EXHAUSTED: return FIRE_BUSY;
    case GRPC_STATUS_CANCELLED: return FIRE_CANCELLED;
    case GRPC_STATUS_DEADLINE_EXCEEDED: return FIRE_TOO_LATE;
    case GRPC_STATUS_UNAVAILABLE: return FIRE_DRAINING;
    default: return FIRE_DEVICE_LOST;
    }
}

static bool read_varint(struct span *span, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && span->bytes > 0; shift += 7) {
        const uint8_t byte = *span->at++;

        span->bytes--;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

/* The next field; false at the end or where the bytes are no protobuf. */
static bool read_field(struct span *span, struct wire_field *field)
{
    uint64_t key, length;

    *field = (struct wire_field){ 0 };
    if (!read_varint(span, &key))
        return false;
    field->number = (uint32_t)(key >> 3);
    switch (key & 7) {
    case 0: return read_varint(span, &field->value);
    case 1: length = 8; break;
    case 5: length = 4; break;
    case 2:
        if (!read_varint(span, &length))
            return false;
        break;
    default: return false;
    }
    if (length > span->bytes)
        return false;
    field->text = (struct span){ span->at, (size_t)length };
    span->at += length;
    span->bytes -= (size_t)length;
    return true;
}

/* The first field with this number; empty when there is none. */
static struct wire_field find_field(struct span span, uint32_t number)
{
    struct wire_field field;

    while (read_field(&span, &field)) {
        if (field.number == number)
            return field;
    }
    return (struct wire_field){ 0 };
}

static bool is_type(struct span url, const char *name)
{
    const size_t prefix = strlen(TYPE_PREFIX);

    return url.bytes == prefix + strlen(name) && memcmp(url.at, TYPE_PREFIX, prefix) == 0 &&
           memcmp(url.at + prefix, name, strlen(name)) == 0;
}

static void read_detail(struct span any, struct details *details)
{
    const struct span url = find_field(any, 1).text;
    const struct span value = find_field(any, 2).text;

    if (is_type(url, "ErrorInfo")) {
        details->reason = find_field(value, 1).text;
    } else if (is_type(url, "BadRequest")) {
        details->field = find_field(find_field(value, 1).text, 1).text;
    } else if (is_type(url, "RetryInfo")) {
        const struct span delay = find_field(value, 1).text;

        details->retry_s = (double)find_field(delay, 1).value +
                           1e-9 * (double)(uint32_t)find_field(delay, 2).value;
    }
}

static void read_details(const grpc_metadata_array *trailing, struct details *details)
{
    *details = (struct details){ .retry_s = -1.0 };
    for (size_t i = 0; i < trailing->count; i++) {
        const grpc_metadata *entry = &trailing->metadata[i];
        struct wire_field field;
        struct span status;

        if (grpc_slice_str_cmp(entry->key, DETAILS_KEY) != 0)
            continue;
        status =
            (struct span){ GRPC_SLICE_START_PTR(entry->value), GRPC_SLICE_LENGTH(entry->value) };
        while (read_field(&status, &field)) {
            if (field.number == 3)
                read_detail(field.text, details);
        }
    }
}

static void describe_unavailable(const char *address, const char *text, bool ours,
                                 struct fire_error *error)
{
    const bool hung_up = strstr(text, "Socket closed") || strstr(text, "andshake");

    if (ours)
        fire_fail(error, FIRE_DRAINING, NULL, "the daemon at %.110s takes no work: %.300s", address,
                  text);
    else if (hung_up)
        fire_fail(error, FIRE_DRAINING, NULL,
                  "the connection to %.110s was ended (%.150s): the daemon went away, or it wants "
                  "TLS (a CA file, perhaps a certificate and key) or none",
                  address, text);
    else
        fire_fail(error, FIRE_DRAINING, NULL,
                  "no daemon answers at %.110s (%.180s): start one with `fired`, name another "
                  "address, or compute in this process (firectl --local)",
                  address, text);
}

static void describe_code(const struct remote_set *set, const char *text, bool ours,
                          struct fire_error *error)
{
    const char *address = remote_channel_address(set->remote->channel);
    const enum fire_status status = remote_status_of((int)set->attempt.code);
    char field[FIRE_ERROR_FIELD_BYTES];

    memcpy(field, error->field, sizeof(field));
    switch ((int)set->attempt.code) {
    case GRPC_STATUS_UNAVAILABLE: describe_unavailable(address, text, ours, error); return;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        fire_fail(
            error, status, NULL,
            "the daemon at %.110s did not finish within the deadline of %g s; give it longer, "
            "or send less at once",
            address, set->deadline_s);
        return;
    case GRPC_STATUS_UNAUTHENTICATED:
        fire_fail(error, status, NULL,
                  "the daemon at %.110s does not know who asks: %.200s; give a token (FIRED_TOKEN) "
                  "or a certificate it knows",
                  address, text);
        return;
    case GRPC_STATUS_PERMISSION_DENIED:
        fire_fail(error, status, NULL,
                  "the daemon at %.110s does not allow this: %.200s; its credentials file says who "
                  "may",
                  address, text);
        return;
    case GRPC_STATUS_CANCELLED:
        fire_fail(error, status, NULL, "the call to %.110s was cancelled", address);
        return;
    case GRPC_STATUS_UNIMPLEMENTED:
        fire_fail(
            error, status, NULL,
            "what answers at %.110s does not know this call (%.180s): is it fired, and of this "
            "version?",
            address, text);
        return;
    case GRPC_STATUS_INVALID_ARGUMENT:
    case GRPC_STATUS_NOT_FOUND:
    case GRPC_STATUS_RESOURCE_EXHAUSTED: fire_fail(error, status, field, "%s", text); return;
    default:
        fire_fail(error, status, field, "the daemon at %.110s failed: %.300s (gRPC code %d)",
                  address, text, (int)set->attempt.code);
    }
}

void remote_describe(const struct remote_set *set, struct fire_error *error, double *retry_s)
{
    const struct remote_attempt *attempt = &set->attempt;
    struct details details;
    char text[FIRE_ERROR_MESSAGE_BYTES];

    *error = attempt->fault;
    *retry_s = -1.0;
    if (attempt->fault.status != FIRE_OK || attempt->code == GRPC_STATUS_OK)
        return;
    read_details(&attempt->trailing, &details);
    snprintf(text, sizeof(text), "%.*s", (int)GRPC_SLICE_LENGTH(attempt->details),
             (const char *)GRPC_SLICE_START_PTR(attempt->details));
    if (details.field.bytes)
        snprintf(error->field, sizeof(error->field), "%.*s", (int)details.field.bytes,
                 (const char *)details.field.at);
    describe_code(set, text, details.reason.bytes > 0, error);
    *retry_s = details.retry_s;
}
