/* Any bytes as the address of an API call. The first byte chooses the request; the rest is the path
 * behind /api/v1/, a zero byte, and parameters, each a name, a zero byte, a value, a zero byte: as
 * libmicrohttpd gives them, decoded. What must hold whatever they are:
 *   parts of a path that is taken are names: some bytes of UTF-8, with a limit;
 *   the same parts with every byte escaped are the same path;
 *   a parameter that is refused is named in one line;
 *   a list takes as many entries as it may and no more;
 *   a message that was filled can be sent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fire/v1/admin.pb-c.h"
#include "fire/v1/monitor.pb-c.h"
#include "http_path.h"
#include "json_message.h"

#define LIST_MAX 16u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const kinds[] = {
    &fire__v1__list_runs_request__descriptor,   &fire__v1__query_request__descriptor,
    &fire__v1__list_events_request__descriptor, &fire__v1__watch_request__descriptor,
    &fire__v1__advise_request__descriptor,      &fire__v1__status_request__descriptor,
    &fire__v1__report_request__descriptor,
};

static void check_path(const char *path)
{
    static struct http_segments segments, again;
    static char escaped[HTTP_SEGMENTS_MAX * (3 * HTTP_SEGMENT_BYTES + 1) + 1];
    size_t used = 0;

    if (!http_path_split(path, &segments))
        return;
    FIRE_ASSERT(segments.count > 0 && segments.count <= HTTP_SEGMENTS_MAX);
    for (size_t i = 0; i < segments.count; i++) {
        const char *text = segments.text[i];

        FIRE_ASSERT(text[0] != '\0' && strlen(text) < HTTP_SEGMENT_BYTES);
        FIRE_ASSERT(json_is_utf8(text));
        if (i > 0)
            escaped[used++] = '/';
        for (; *text; text++)
            used += (size_t)sprintf(escaped + used, "%%%02x", (unsigned char)*text);
    }
    escaped[used] = '\0';
    FIRE_ASSERT(http_path_split(escaped, &again));
    FIRE_ASSERT(again.count == segments.count);
    for (size_t i = 0; i < segments.count; i++)
        FIRE_ASSERT(strcmp(again.text[i], segments.text[i]) == 0);
}

static void check_lists(const ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];

        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            FIRE_ASSERT(*(const size_t *)((const char *)message + field->quantifier_offset) <=
                        LIST_MAX);
    }
}

/* The text up to the next zero byte; the last one ends with the input. */
static const char *next_text(const char **at, const char *end)
{
    const char *text = *at;
    const size_t bytes = strlen(text);

    *at = text + bytes < end ? text + bytes + 1 : end;
    return text;
}

static void check_parameters(ProtobufCMessage *message, const char *at, const char *end)
{
    while (at < end) {
        const char *name = next_text(&at, end);
        const char *value = next_text(&at, end);
        struct fire_error error = { 0 };

        if (json_message_set(message, name, value, LIST_MAX, &error) != FIRE_OK) {
            FIRE_ASSERT(error.message[0] != '\0');
            FIRE_ASSERT(!strpbrk(error.message, "\r\n"));
        }
    }
    check_lists(message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;
    const char *at, *end;
    ProtobufCMessage *message;
    uint8_t *packed;

    if (size == 0)
        return 0;
    text = malloc(size); /* a zero takes the place of the first byte, at the end */
    FIRE_ASSERT(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    at = text;
    end = text + size - 1;
    check_path(next_text(&at, end));
    message = json_message_new(kinds[data[0] % (sizeof(kinds) / sizeof(kinds[0]))]);
    FIRE_ASSERT(message);
    check_parameters(message, at, end);
    packed = malloc(protobuf_c_message_get_packed_size(message) + 1);
    FIRE_ASSERT(packed);
    (void)protobuf_c_message_pack(message, packed);
    free(packed);
    protobuf_c_message_free_unpacked(message, NULL);
    free(text);
    return 0;
}
