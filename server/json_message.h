/* json_message: messages of the contract as JSON and back, by their descriptors alone.
 *
 * Names are those of the .proto files. Enum values are lower case without the enum's prefix
 * ("reinit" for EVENT_KIND_REINIT). Maps are objects. Every field is there, lists also when they
 * are empty; only messages that are not set are absent. 64-bit numbers are JSON numbers up to 2^53
 * and strings beyond. NaN and infinity are no JSON: absent where a field has one value, null in a
 * list. Bytes are not supported: no message that is shown has any. */
#ifndef FIRED_JSON_MESSAGE_H
#define FIRED_JSON_MESSAGE_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define JSON_DIGITS_MAX 17u

/* A growing text. Zeroed storage is an empty one. */
struct json_text {
    char *bytes; /* malloc'ed, NUL at the end */
    size_t used;
    size_t room;
    size_t bytes_max; /* 0: no limit; what passes it sets `failed` */
    int failed;       /* no memory, or past the limit: the text is of no use */
};

void json_text_release(struct json_text *text);
void json_put(struct json_text *text, const char *piece);
void json_put_string(struct json_text *text, const char *value);

/* Appends `message`. Doubles have at most `digits` digits (1 to 17): with 17 the shortest text that
 * reads back as the same number, with fewer a rounded one, which is faster. */
void json_put_message(struct json_text *text, const ProtobufCMessage *message, unsigned digits);

/* An empty message, the caller's to free with protobuf_c_message_free_unpacked(message, NULL); NULL
 * without memory. */
ProtobufCMessage *json_message_new(const ProtobufCMessageDescriptor *descriptor);

/* Sets field `name` from the text of a query parameter; a list gets one more entry, of at most
 * `list_max`. FIRE_BAD_REQUEST names the field and what it may be. */
FIRE_NODISCARD enum fire_status json_message_set(ProtobufCMessage *message, const char *name,
                                                 const char *value, size_t list_max,
                                                 struct fire_error *error);

/* A message from the JSON text of `bytes`. An unknown field is FIRE_BAD_REQUEST. */
FIRE_NODISCARD enum fire_status json_message_parse(const ProtobufCMessageDescriptor *descriptor,
                                                   const char *text, size_t bytes,
                                                   ProtobufCMessage **message,
                                                   struct fire_error *error);

/* Whether `text` is whole UTF-8. */
int json_is_utf8(const char *text);

#endif
