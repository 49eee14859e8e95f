/* Any text as the body of a request. The first byte chooses the message, the rest is the text. What
 * must hold whatever it is:
 *   a refusal names what is wrong in one line, and leaves no message;
 *   what is accepted comes back the same from the JSON that it is answered as;
 *   texts in it are UTF-8, and numbers are finite. */
#include <stdlib.h>
#include <string.h>

#include "fire/v1/monitor.pb-c.h"
#include "json_message.h"

#define TEXT_BYTES_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const kinds[] = {
    &fire__v1__report_request__descriptor,     &fire__v1__list_runs_request__descriptor,
    &fire__v1__query_request__descriptor,      &fire__v1__list_events_request__descriptor,
    &fire__v1__watch_request__descriptor,      &fire__v1__advise_request__descriptor,
    &fire__v1__list_runs_response__descriptor, /* messages within messages, maps, every number */
    &fire__v1__query_response__descriptor,
};

/* The bytes of a message on the wire; the caller frees them. */
static uint8_t *packed(const ProtobufCMessage *message, size_t *bytes)
{
    uint8_t *room;

    *bytes = protobuf_c_message_get_packed_size(message);
    room = malloc(*bytes + 1);
    FIRE_ASSERT(room);
    FIRE_ASSERT(protobuf_c_message_pack(message, room) == *bytes);
    return room;
}

static void check_again(const ProtobufCMessageDescriptor *kind, const ProtobufCMessage *message)
{
    struct json_text text = { .bytes_max = TEXT_BYTES_MAX };
    struct fire_error error = { 0 };
    ProtobufCMessage *again = NULL;

    json_put_message(&text, message, JSON_DIGITS_MAX);
    if (!text.failed) {
        size_t bytes, bytes_again;
        uint8_t *first, *second;

        FIRE_ASSERT(json_is_utf8(text.bytes));
        FIRE_ASSERT(json_message_parse(kind, text.bytes, text.used, &again, &error) == FIRE_OK);
        first = packed(message, &bytes);
        second = packed(again, &bytes_again);
        FIRE_ASSERT(bytes == bytes_again);
        FIRE_ASSERT(memcmp(first, second, bytes) == 0);
        free(first);
        free(second);
        protobuf_c_message_free_unpacked(again, NULL);
    }
    json_text_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const ProtobufCMessageDescriptor *kind;
    struct fire_error error = { 0 };
    ProtobufCMessage *message = NULL;

    if (size == 0)
        return 0;
    kind = kinds[data[0] % (sizeof(kinds) / sizeof(kinds[0]))];
    if (json_message_parse(kind, (const char *)data + 1, size - 1, &message, &error) == FIRE_OK) {
        FIRE_ASSERT(message && message->descriptor == kind);
        check_again(kind, message);
        protobuf_c_message_free_unpacked(message, NULL);
    } else {
        FIRE_ASSERT(!message);
        FIRE_ASSERT(error.message[0] != '\0');
        FIRE_ASSERT(!strpbrk(error.message, "\r\n"));
        FIRE_ASSERT(json_is_utf8(error.message));
    }
    return 0;
}
