/* json_parse: JSON to messages, jansson's reader over the same descriptors as json_message.c. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json_message.h"
#include "utf8.h"

#define DEPTH_MAX   8u
#define FAULT_BYTES 100u /* of what jansson says, which has room for more */

static enum fire_status parse_object(ProtobufCMessage *message, json_t *object, unsigned depth,
                                     struct fire_error *error);

static enum fire_status wrong(const ProtobufCFieldDescriptor *field, const char *wanted,
                              struct fire_error *error)
{
    return fire_fail(error, FIRE_BAD_REQUEST, field->name, "%s must be %s", field->name, wanted);
}

/* Scalars go through json_message_set(), which checks their range: one set of rules. */
static enum fire_status parse_scalar(ProtobufCMessage *message,
                                     const ProtobufCFieldDescriptor *field, json_t *value,
                                     struct fire_error *error)
{
    char number[40];

    if (json_is_string(value))
        return json_message_set(message, field->name, json_string_value(value), SIZE_MAX, error);
    if (json_is_boolean(value))
        return json_message_set(message, field->name, json_is_true(value) ? "true" : "false",
                                SIZE_MAX, error);
    if (json_is_integer(value))
        snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(number, sizeof(number), "%.17g", json_real_value(value));
    else
        return wrong(field, "a value, not null or a list", error);
    if (field->type == PROTOBUF_C_TYPE_STRING)
        return wrong(field, "text", error);
    return json_message_set(message, field->name, number, SIZE_MAX, error);
}

/* One message of a field; a list gets one more. Map entries come with their key. */
static enum fire_status parse_message(ProtobufCMessage *message,
                                      const ProtobufCFieldDescriptor *field, const char *key,
                                      json_t *value, unsigned depth, struct fire_error *error)
{
    ProtobufCMessage *child = json_message_new(field->descriptor);
    enum fire_status status = FIRE_OK;

    if (!child)
        return fire_fail_memory(error, 1);
    if (key) {
        status = json_message_set(child, "key", key, 1, error);
        if (status == FIRE_OK)
            status = parse_scalar(child, &child->descriptor->fields[1], value, error);
    } else {
        status = parse_object(child, value, depth + 1, error);
    }
    if (status == FIRE_OK && field->label == PROTOBUF_C_LABEL_REPEATED) {
        ProtobufCMessage ***list = (ProtobufCMessage ***)((char *)message + field->offset);
        size_t *count = (size_t *)((char *)message + field->quantifier_offset);
        ProtobufCMessage **grown = realloc(*list, (*count + 1) * sizeof(**list));

        if (grown) {
            grown[(*count)++] = child;
            *list = grown;
            return FIRE_OK;
        }
        status = fire_fail_memory(error, *count);
    } else if (status == FIRE_OK) {
        *(ProtobufCMessage **)((char *)message + field->offset) = child;
        return FIRE_OK;
    }
    protobuf_c_message_free_unpacked(child, NULL);
    return status;
}

static enum fire_status parse_list(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                                   json_t *value, unsigned depth, struct fire_error *error)
{
    const int is_message = field->type == PROTOBUF_C_TYPE_MESSAGE;
    enum fire_status status = FIRE_OK;
    const char *key;
    json_t *entry;
    size_t i;

    if (is_message && json_is_object(value)) {
        const ProtobufCMessageDescriptor *of = field->descriptor;

        if (of->n_fields != 2 || strcmp(of->fields[0].name, "key") != 0)
            return wrong(field, "a list", error);
        json_object_foreach(value, key, entry)
        {
            if (status == FIRE_OK)
                status = parse_message(message, field, key, entry, depth, error);
        }
        return status;
    }
    if (!json_is_array(value))
        return wrong(field, "a list", error);
    json_array_foreach(value, i, entry)
    {
        status = is_message ? parse_message(message, field, NULL, entry, depth, error)
                            : parse_scalar(message, field, entry, error);
        if (status != FIRE_OK)
            return status;
    }
    return FIRE_OK;
}

static enum fire_status parse_object(ProtobufCMessage *message, json_t *object, unsigned depth,
                                     struct fire_error *error)
{
    enum fire_status status = FIRE_OK;
    const char *name;
    json_t *value;

    if (!json_is_object(object) || depth > DEPTH_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "body", "the body must be a JSON object");
    json_object_foreach(object, name, value)
    {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);

        if (!field)
            status = json_message_set(message, name, "", 1, error); /* says which there are */
        else if (field->label == PROTOBUF_C_LABEL_REPEATED)
            status = parse_list(message, field, value, depth, error);
        else if (field->type == PROTOBUF_C_TYPE_MESSAGE)
            status = parse_message(message, field, NULL, value, depth, error);
        else
            status = parse_scalar(message, field, value, error);
        if (status != FIRE_OK)
            return status;
    }
    return FIRE_OK;
}

enum fire_status json_message_parse(const ProtobufCMessageDescriptor *descriptor, const char *text,
                                    size_t bytes, ProtobufCMessage **message,
                                    struct fire_error *error)
{
    json_error_t fault;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &fault);
    enum fire_status status;

    *message = NULL;
    if (!root) {
        fault.text[FAULT_BYTES] = '\0';
        utf8_make_printable(fault.text); /* it quotes the body */
        return fire_fail(error, FIRE_BAD_REQUEST, "body", "no JSON: line %d, column %d: %s",
                         fault.line, fault.column, fault.text);
    }
    *message = json_message_new(descriptor);
    status = *message ? parse_object(*message, root, 0, error) : fire_fail_memory(error, 1);
    if (status != FIRE_OK && *message) {
        protobuf_c_message_free_unpacked(*message, NULL);
        *message = NULL;
    }
    json_decref(root);
    return status;
}
