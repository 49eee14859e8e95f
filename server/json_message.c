/* json_message: what json_message.h says, in three parts: the text, messages to JSON, and the other
 * way round from query parameters and from JSON. Field access is by offset, as protobuf-c's own
 * packing does it; the labels of proto3 are NONE, OPTIONAL (messages only) and REPEATED. */
#include "json_message.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

#define TEXT_ROOM_FIRST 1024u
#define NUMBER_BYTES    40u
#define EXACT_MAX       (INT64_C(1) << 53)

void json_text_release(struct json_text *text)
{
    free(text->bytes);
    memset(text, 0, sizeof(*text));
}

static bool text_reserve(struct json_text *text, size_t more)
{
    size_t room = text->room ? text->room : TEXT_ROOM_FIRST;
    char *bytes;

    if (text->failed)
        return false;
    if (text->bytes_max && more > text->bytes_max - text->used) {
        text->failed = 1;
        return false;
    }
    while (room - text->used <= more)
        room *= 2;
    if (room == text->room)
        return true;
    bytes = realloc(text->bytes, room);
    if (!bytes) {
        text->failed = 1;
        return false;
    }
    text->bytes = bytes;
    text->room = room;
    return true;
}

static void put_bytes(struct json_text *text, const char *piece, size_t bytes)
{
    if (!text_reserve(text, bytes))
        return;
    memcpy(text->bytes + text->used, piece, bytes);
    text->used += bytes;
    text->bytes[text->used] = '\0';
}

void json_put(struct json_text *text, const char *piece)
{
    put_bytes(text, piece, strlen(piece));
}

void json_put_string(struct json_text *text, const char *value)
{
    char escape[8];

    json_put(text, "\"");
    while (*value) {
        const size_t plain = strcspn(value, "\"\\\x7f"
                                            "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d"
                                            "\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a"
                                            "\x1b\x1c\x1d\x1e\x1f");

        put_bytes(text, value, plain);
        value += plain;
        if (!*value)
            break;
        snprintf(escape, sizeof(escape), "\\u%04x", (unsigned char)*value);
        put_bytes(text, escape, 6);
        value++;
    }
    json_put(text, "\"");
}

/* --- messages to JSON ------------------------------------------------------------------------- */

static void put_double(struct json_text *text, double value, unsigned digits)
{
    char number[NUMBER_BYTES];

    if (value == floor(value) && fabs(value) < 1e15) {
        snprintf(number, sizeof(number), "%.0f", value == 0 ? 0.0 : value);
    } else if (digits < JSON_DIGITS_MAX) {
        snprintf(number, sizeof(number), "%.*g", (int)digits, value);
    } else {
        for (int tried = DBL_DIG; tried <= DBL_DECIMAL_DIG; tried++) {
            snprintf(number, sizeof(number), "%.*g", tried, value);
            if (strtod(number, NULL) == value)
                break;
        }
    }
    json_put(text, number);
}

static void put_signed(struct json_text *text, int64_t value)
{
    const bool exact = value <= EXACT_MAX && value >= -EXACT_MAX;
    char number[NUMBER_BYTES];

    snprintf(number, sizeof(number), exact ? "%lld" : "\"%lld\"", (long long)value);
    json_put(text, number);
}

static void put_unsigned(struct json_text *text, uint64_t value)
{
    char number[NUMBER_BYTES];

    snprintf(number, sizeof(number), value <= EXACT_MAX ? "%llu" : "\"%llu\"",
             (unsigned long long)value);
    json_put(text, number);
}

/* EventKind -> "EVENT_KIND_": what every value's name begins with. */
static void enum_prefix(const ProtobufCEnumDescriptor *descriptor, char *prefix, size_t room)
{
    size_t used = 0;

    for (const char *at = descriptor->short_name; *at && used + 3 < room; at++) {
        const bool upper = *at >= 'A' && *at <= 'Z';

        if (upper && used)
            prefix[used++] = '_';
        prefix[used++] = (char)(upper ? *at : *at - 'a' + 'A');
    }
    prefix[used++] = '_';
    prefix[used] = '\0';
}

/* "EVENT_KIND_REINIT" -> "reinit" */
static void enum_short(const ProtobufCEnumDescriptor *descriptor, const char *name, char *out,
                       size_t room)
{
    char prefix[64];
    size_t i;

    enum_prefix(descriptor, prefix, sizeof(prefix));
    if (strncmp(name, prefix, strlen(prefix)) == 0)
        name += strlen(prefix);
    for (i = 0; name[i] && i + 1 < room; i++)
        out[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] - 'A' + 'a' : name[i]);
    out[i] = '\0';
}

static void put_enum(struct json_text *text, const ProtobufCEnumDescriptor *descriptor, int value)
{
    const ProtobufCEnumValue *known = protobuf_c_enum_descriptor_get_value(descriptor, value);
    char name[64];

    if (!known) {
        put_signed(text, value); /* of a newer contract */
        return;
    }
    enum_short(descriptor, known->name, name, sizeof(name));
    json_put_string(text, name);
}

static size_t value_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT: return 4;
    case PROTOBUF_C_TYPE_ENUM: return sizeof(int);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return 8;
    case PROTOBUF_C_TYPE_BOOL: return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING: return sizeof(char *);
    case PROTOBUF_C_TYPE_MESSAGE: return sizeof(ProtobufCMessage *);
    case PROTOBUF_C_TYPE_BYTES: return sizeof(ProtobufCBinaryData);
    }
    return 0;
}

/* A double of the field; NaN when it holds no floating number. */
static double floating_of(const ProtobufCFieldDescriptor *field, const void *at)
{
    if (field->type == PROTOBUF_C_TYPE_DOUBLE)
        return *(const double *)at;
    return *(const float *)at;
}

static bool is_floating(const ProtobufCFieldDescriptor *field)
{
    return field->type == PROTOBUF_C_TYPE_DOUBLE || field->type == PROTOBUF_C_TYPE_FLOAT;
}

/* One value. A string that was never set is empty. */
static void put_value(struct json_text *text, const ProtobufCFieldDescriptor *field, const void *at,
                      unsigned digits)
{
    const char *string;

    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32: put_signed(text, *(const int32_t *)at); break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64: put_signed(text, *(const int64_t *)at); break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32: put_unsigned(text, *(const uint32_t *)at); break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64: put_unsigned(text, *(const uint64_t *)at); break;
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_DOUBLE:
        if (isfinite(floating_of(field, at)))
            put_double(text, floating_of(field, at), digits);
        else
            json_put(text, "null");
        break;
    case PROTOBUF_C_TYPE_BOOL:
        json_put(text, *(const protobuf_c_boolean *)at ? "true" : "false");
        break;
    case PROTOBUF_C_TYPE_ENUM: put_enum(text, field->descriptor, *(const int *)at); break;
    case PROTOBUF_C_TYPE_STRING:
        string = *(const char *const *)at;
        json_put_string(text, string ? string : "");
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        json_put_message(text, *(ProtobufCMessage *const *)at, digits);
        break;
    case PROTOBUF_C_TYPE_BYTES: json_put(text, "null"); break;
    }
}

/* protobuf-c does not mark the entries of maps: they are messages FooEntry of a key and a value. */
static bool is_map(const ProtobufCFieldDescriptor *field)
{
    const ProtobufCMessageDescriptor *entry = field->descriptor;
    size_t bytes;

    if (field->label != PROTOBUF_C_LABEL_REPEATED || field->type != PROTOBUF_C_TYPE_MESSAGE)
        return false;
    bytes = strlen(entry->short_name);
    return bytes > 5 && strcmp(entry->short_name + bytes - 5, "Entry") == 0 &&
           entry->n_fields == 2 && strcmp(entry->fields[0].name, "key") == 0 &&
           strcmp(entry->fields[1].name, "value") == 0;
}

static void put_map_entry(struct json_text *text, const ProtobufCMessage *entry, unsigned digits,
                          bool *first)
{
    const ProtobufCFieldDescriptor *key = &entry->descriptor->fields[0];
    const ProtobufCFieldDescriptor *value = &entry->descriptor->fields[1];
    const char *name = *(const char *const *)((const char *)entry + key->offset);
    const void *at = (const char *)entry + value->offset;

    if (is_floating(value) && !isfinite(floating_of(value, at)))
        return;
    json_put(text, *first ? "" : ",");
    *first = false;
    json_put_string(text, name ? name : "");
    json_put(text, ":");
    put_value(text, value, at, digits);
}

static void put_list(struct json_text *text, const ProtobufCMessage *message,
                     const ProtobufCFieldDescriptor *field, unsigned digits)
{
    const size_t count = *(const size_t *)((const char *)message + field->quantifier_offset);
    const char *values = *(const char *const *)((const char *)message + field->offset);
    const size_t step = value_bytes(field->type);
    const bool map = is_map(field);
    bool first = true;

    json_put(text, map ? "{" : "[");
    for (size_t i = 0; i < count && !text->failed; i++) {
        if (map) {
            put_map_entry(text, ((ProtobufCMessage *const *)values)[i], digits, &first);
            continue;
        }
        json_put(text, i ? "," : "");
        put_value(text, field, values + i * step, digits);
    }
    json_put(text, map ? "}" : "]");
}

void json_put_message(struct json_text *text, const ProtobufCMessage *message, unsigned digits)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;
    bool first = true;

    json_put(text, "{");
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        const char *at = (const char *)message + field->offset;
        const bool list = field->label == PROTOBUF_C_LABEL_REPEATED;

        if (!list && field->type == PROTOBUF_C_TYPE_MESSAGE && !*(ProtobufCMessage *const *)at)
            continue;
        if (!list && is_floating(field) && !isfinite(floating_of(field, at)))
            continue;
        json_put(text, first ? "\"" : ",\"");
        json_put(text, field->name);
        json_put(text, "\":");
        first = false;
        if (list)
            put_list(text, message, field, digits);
        else
            put_value(text, field, at, digits);
    }
    json_put(text, "}");
}

/* --- text to messages ------------------------------------------------------------------------- */

int json_is_utf8(const char *text)
{
    while (*text) {
        const size_t bytes = utf8_bytes(text);

        if (!bytes)
            return 0;
        text += bytes;
    }
    return 1;
}

ProtobufCMessage *json_message_new(const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = calloc(1, descriptor->sizeof_message);

    if (message)
        protobuf_c_message_init(descriptor, message);
    return message;
}

/* "a, b, c": what a field may be called, or an enum's values. */
static void names_of(const ProtobufCMessageDescriptor *message, const ProtobufCEnumDescriptor *one,
                     char *text, size_t room)
{
    const unsigned count = one ? one->n_values : message->n_fields;
    size_t used = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < count; i++) {
        char name[64];
        int more;

        if (one)
            enum_short(one, one->values[i].name, name, sizeof(name));
        else
            snprintf(name, sizeof(name), "%s", message->fields[i].name);
        more = snprintf(text + used, room - used, "%s%s", i ? ", " : "", name);
        if (more < 0 || (size_t)more >= room - used)
            return;
        used += (size_t)more;
    }
}

static enum fire_status bad_value(const ProtobufCFieldDescriptor *field, const char *wanted,
                                  struct fire_error *error)
{
    return fire_fail(error, FIRE_BAD_REQUEST, field->name, "%s must be %s", field->name, wanted);
}

/* Digits only, with a sign where the type has one. */
static bool parse_integer(const char *text, bool is_signed, int64_t min, uint64_t max,
                          uint64_t *out)
{
    char *end;

    if (!(text[0] >= '0' && text[0] <= '9') && !(is_signed && text[0] == '-'))
        return false;
    errno = 0;
    if (text[0] == '-') {
        const long long value = strtoll(text, &end, 10);

        *out = (uint64_t)value;
        return !errno && end != text && !*end && value >= min;
    }
    *out = strtoull(text, &end, 10);
    return !errno && end != text && !*end && *out <= max;
}

static enum fire_status set_integer(const ProtobufCFieldDescriptor *field, void *at,
                                    const char *text, struct fire_error *error)
{
    uint64_t value = 0;

    if (value_bytes(field->type) == 4) {
        const bool is_unsigned =
            field->type == PROTOBUF_C_TYPE_UINT32 || field->type == PROTOBUF_C_TYPE_FIXED32;

        if (is_unsigned && !parse_integer(text, false, 0, UINT32_MAX, &value))
            return bad_value(field, "a whole number from 0 to 4294967295", error);
        if (!is_unsigned && !parse_integer(text, true, INT32_MIN, INT32_MAX, &value))
            return bad_value(field, "a whole number of 32 bits", error);
        *(uint32_t *)at = (uint32_t)value;
        return FIRE_OK;
    }
    if (field->type == PROTOBUF_C_TYPE_UINT64 || field->type == PROTOBUF_C_TYPE_FIXED64) {
        if (!parse_integer(text, false, 0, UINT64_MAX, &value))
            return bad_value(field, "a whole number from 0 on", error);
    } else if (!parse_integer(text, true, INT64_MIN, INT64_MAX, &value)) {
        return bad_value(field, "a whole number of 64 bits", error);
    }
    *(uint64_t *)at = value;
    return FIRE_OK;
}

static enum fire_status set_enum(const ProtobufCFieldDescriptor *field, int *at, const char *text,
                                 struct fire_error *error)
{
    const ProtobufCEnumDescriptor *descriptor = field->descriptor;
    char name[64], names[256];

    for (unsigned i = 0; i < descriptor->n_values; i++) {
        enum_short(descriptor, descriptor->values[i].name, name, sizeof(name));
        if (strcmp(name, text) == 0) {
            *at = descriptor->values[i].value;
            return FIRE_OK;
        }
    }
    names_of(NULL, descriptor, names, sizeof(names));
    return fire_fail(error, FIRE_BAD_REQUEST, field->name, "%s must be one of %s", field->name,
                     names);
}

static enum fire_status set_bool(const ProtobufCFieldDescriptor *field, protobuf_c_boolean *at,
                                 const char *text, struct fire_error *error)
{
    if (strcmp(text, "true") == 0 || strcmp(text, "1") == 0)
        *at = 1;
    else if (strcmp(text, "false") == 0 || strcmp(text, "0") == 0)
        *at = 0;
    else
        return bad_value(field, "true or false", error);
    return FIRE_OK;
}

static enum fire_status set_floating(const ProtobufCFieldDescriptor *field, void *at,
                                     const char *text, struct fire_error *error)
{
    char *end;
    const double value = strtod(text, &end);

    if (end == text || *end || !isfinite(value))
        return bad_value(field, "a finite number", error);
    if (field->type == PROTOBUF_C_TYPE_DOUBLE)
        *(double *)at = value;
    else
        *(float *)at = (float)value;
    return FIRE_OK;
}

static enum fire_status set_string(const ProtobufCFieldDescriptor *field, char **at,
                                   const char *text, struct fire_error *error)
{
    char *copy;

    if (!json_is_utf8(text))
        return bad_value(field, "UTF-8", error);
    copy = strdup(text);
    if (!copy)
        return fire_fail_memory(error, strlen(text));
    if (*at != field->default_value && *at != protobuf_c_empty_string)
        free(*at);
    *at = copy;
    return FIRE_OK;
}

static enum fire_status set_value(const ProtobufCFieldDescriptor *field, void *at, const char *text,
                                  struct fire_error *error)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64: return set_integer(field, at, text, error);
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_DOUBLE: return set_floating(field, at, text, error);
    case PROTOBUF_C_TYPE_BOOL: return set_bool(field, at, text, error);
    case PROTOBUF_C_TYPE_ENUM: return set_enum(field, at, text, error);
    case PROTOBUF_C_TYPE_STRING: return set_string(field, at, text, error);
    case PROTOBUF_C_TYPE_MESSAGE:
    case PROTOBUF_C_TYPE_BYTES: break;
    }
    return bad_value(field, "given in a body, not in the address", error);
}

/* Room for one more entry of a list; NULL without memory. The count is not raised yet. */
static void *list_grow(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    const size_t count = *(size_t *)((char *)message + field->quantifier_offset);
    char **values = (char **)((char *)message + field->offset);
    const size_t step = value_bytes(field->type);
    char *grown = *values;

    if ((count & (count - 1)) == 0) /* a power of two, or none: full */
        grown = realloc(grown, (count ? 2 * count : 1) * step);
    if (!grown)
        return NULL;
    *values = grown;
    memset(grown + count * step, 0, step);
    return grown + count * step;
}

enum fire_status json_message_set(ProtobufCMessage *message, const char *name, const char *value,
                                  size_t list_max, struct fire_error *error)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
    enum fire_status status;
    char names[256], shown[61];
    size_t *count;
    void *at;

    if (!field) {
        snprintf(shown, sizeof(shown), "%s", name);
        utf8_make_printable(shown); /* a name from a stranger: the message stays one line */
        names_of(message->descriptor, NULL, names, sizeof(names));
        return fire_fail(error, FIRE_BAD_REQUEST, shown, "no parameter %s; known are: %s", shown,
                         names[0] ? names : "none");
    }
    if (field->label != PROTOBUF_C_LABEL_REPEATED)
        return set_value(field, (char *)message + field->offset, value, error);
    count = (size_t *)((char *)message + field->quantifier_offset);
    if (*count >= list_max)
        return fire_fail(error, FIRE_BAD_REQUEST, field->name, "%s may be given at most %zu times",
                         field->name, list_max);
    at = list_grow(message, field);
    if (!at)
        return fire_fail_memory(error, *count);
    status = set_value(field, at, value, error);
    if (status == FIRE_OK)
        (*count)++;
    return status;
}
