/* rpc_reflection: grpc.reflection v1 and v1alpha, from the embedded descriptor set.
 *
 * The two versions have the same messages under two names, so one code serves both. Descriptors are
 * walked as bytes at each question: there are a dozen of them and nobody asks often. They are our
 * own, made at build time, so a malformed one is an assertion. */
#include <stdlib.h>
#include <string.h>

#include "descriptors.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "rpc_core.h"

#define FILES_MAX         64u
#define SERVICES_MAX      64u
#define NAME_BYTES        512u
#define REQUEST_BYTES_MAX RPC_SMALL_BYTES_MAX

typedef Grpc__Reflection__V1__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_response;

#define ASKS(what) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##what

/* A run of bytes inside the descriptor set. */
struct span {
    const uint8_t *bytes;
    size_t count;
};

/* --- walking protobuf --- */

static uint64_t read_varint(struct span *rest)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 64; shift += 7) {
        FIRE_ASSERT(rest->count > 0);
        const uint8_t byte = *rest->bytes++;
        rest->count--;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    FIRE_ASSERT(!"a varint of more than ten bytes");
    return 0;
}

/* Takes the next field off `rest`. Its number, 0 at the end; `value` is set when it has bytes. */
static uint32_t next_field(struct span *rest, struct span *value)
{
    size_t skip = 0;

    *value = (struct span){ NULL, 0 };
    if (rest->count == 0)
        return 0;
    const uint64_t key = read_varint(rest);
    switch (key & 7) {
    case 0: (void)read_varint(rest); break;
    case 1: skip = 8; break;
    case 2:
        skip = (size_t)read_varint(rest);
        *value = (struct span){ rest->bytes, skip };
        break;
    case 5: skip = 4; break;
    default: FIRE_ASSERT(!"an unknown wire type");
    }
    FIRE_ASSERT(skip <= rest->count);
    rest->bytes += skip;
    rest->count -= skip;
    return (uint32_t)(key >> 3);
}

/* The first field `number`; empty when there is none. */
static struct span find_field(struct span message, uint32_t number)
{
    struct span value;
    uint32_t field;

    while ((field = next_field(&message, &value)) != 0) {
        if (field == number)
            return value;
    }
    return (struct span){ (const uint8_t *)"", 0 };
}

static bool span_is(struct span span, const char *text)
{
    return span.count == strlen(text) && memcmp(span.bytes, text, span.count) == 0;
}

/* --- the files --- */

/* Numbers of google.protobuf.*DescriptorProto. */
enum {
    FILE_NAME = 1,
    FILE_PACKAGE = 2,
    FILE_DEPENDENCY = 3,
    FILE_MESSAGE = 4,
    FILE_ENUM = 5,
    FILE_SERVICE = 6,
    MESSAGE_FIELD = 2,
    MESSAGE_NESTED = 3,
    MESSAGE_ENUM = 4,
    MESSAGE_ONEOF = 8,
    ENUM_VALUE = 2,
    SERVICE_METHOD = 2,
    ANY_NAME = 1,
};

static size_t files_split(struct span files[FILES_MAX])
{
    struct span rest = { fire_descriptors, sizeof(fire_descriptors) };
    struct span value;
    size_t count = 0;
    uint32_t field;

    while ((field = next_field(&rest, &value)) != 0) {
        FIRE_ASSERT(field == 1);
        FIRE_ASSERT(count < FILES_MAX);
        files[count++] = value;
    }
    return count;
}

/* `symbol` without `name` and a dot in front; "" when it is `name`; NULL when it is neither. */
static const char *symbol_within(const char *symbol, struct span name)
{
    if (name.count == 0 || strncmp(symbol, (const char *)name.bytes, name.count) != 0)
        return NULL;
    if (symbol[name.count] == '\0')
        return symbol + name.count;
    return symbol[name.count] == '.' ? symbol + name.count + 1 : NULL;
}

/* Whether `symbol` is one of the fields `number` of `parent` by name alone. */
static bool names_symbol(struct span parent, uint32_t number, const char *symbol)
{
    struct span value;
    uint32_t field;

    while ((field = next_field(&parent, &value)) != 0) {
        if (field == number && span_is(find_field(value, ANY_NAME), symbol))
            return true;
    }
    return false;
}

/* Whether `symbol` is a message or enum (fields `message_field`, `enum_field` of `parent`), or lies
 * in one. A symbol has as many levels as dots, which bounds the depth. */
static bool type_has_symbol(struct span parent, uint32_t message_field, uint32_t enum_field,
                            const char *symbol)
{
    struct span value;
    uint32_t field;

    while ((field = next_field(&parent, &value)) != 0) {
        const char *inner;

        if (field == enum_field) {
            inner = symbol_within(symbol, find_field(value, ANY_NAME));
            if (inner && (*inner == '\0' || names_symbol(value, ENUM_VALUE, inner)))
                return true;
        } else if (field == message_field) {
            inner = symbol_within(symbol, find_field(value, ANY_NAME));
            if (inner && (*inner == '\0' || names_symbol(value, MESSAGE_FIELD, inner) ||
                          names_symbol(value, MESSAGE_ONEOF, inner) ||
                          type_has_symbol(value, MESSAGE_NESTED, MESSAGE_ENUM, inner)))
                return true;
        }
    }
    return false;
}

static bool file_has_symbol(struct span file, const char *symbol)
{
    const struct span package = find_field(file, FILE_PACKAGE);
    const char *inner = package.count > 0 ? symbol_within(symbol, package) : symbol;
    struct span value;
    uint32_t field;

    if (!inner || *inner == '\0')
        return false;
    if (type_has_symbol(file, FILE_MESSAGE, FILE_ENUM, inner))
        return true;
    while ((field = next_field(&file, &value)) != 0) {
        const char *method =
            field == FILE_SERVICE ? symbol_within(inner, find_field(value, ANY_NAME)) : NULL;

        if (method && (*method == '\0' || names_symbol(value, SERVICE_METHOD, method)))
            return true;
    }
    return false;
}

/* --- answers --- */

struct answer {
    struct span files[FILES_MAX];
    size_t file_count;
    ProtobufCBinaryData chosen[FILES_MAX];
    bool is_chosen[FILES_MAX];
    size_t chosen_count;
    char service_names[SERVICES_MAX][NAME_BYTES];
    Grpc__Reflection__V1__ServiceResponse services[SERVICES_MAX];
    Grpc__Reflection__V1__ServiceResponse *service_list[SERVICES_MAX];
    Grpc__Reflection__V1__FileDescriptorResponse file_answer;
    Grpc__Reflection__V1__ListServiceResponse list_answer;
    Grpc__Reflection__V1__ErrorResponse error_answer;
    char error_text[NAME_BYTES];
};

static void answer_error(struct answer *answer, reflection_response *response,
                         grpc_status_code code, const char *what, const char *name)
{
    snprintf(answer->error_text, sizeof(answer->error_text), "there is no %s %.256s here", what,
             name);
    rpc_text_clean(answer->error_text);
    grpc__reflection__v1__error_response__init(&answer->error_answer);
    answer->error_answer.error_code = (int32_t)code;
    answer->error_answer.error_message = answer->error_text;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    response->error_response = &answer->error_answer;
}

/* The file and what it imports, each once. An import is chosen before it is looked into, so the
 * depth is bounded by the number of files. */
static void file_choose(struct answer *answer, size_t index)
{
    struct span rest = answer->files[index];
    struct span value;
    uint32_t field;

    if (answer->is_chosen[index])
        return;
    answer->is_chosen[index] = true;
    answer->chosen[answer->chosen_count++] =
        (ProtobufCBinaryData){ rest.count, (uint8_t *)rest.bytes };
    while ((field = next_field(&rest, &value)) != 0) {
        for (size_t i = 0; field == FILE_DEPENDENCY && i < answer->file_count; i++) {
            const struct span name = find_field(answer->files[i], FILE_NAME);

            if (name.count == value.count && memcmp(name.bytes, value.bytes, name.count) == 0)
                file_choose(answer, i);
        }
    }
}

static void answer_file(struct answer *answer, reflection_response *response, size_t index)
{
    file_choose(answer, index);
    grpc__reflection__v1__file_descriptor_response__init(&answer->file_answer);
    answer->file_answer.n_file_descriptor_proto = answer->chosen_count;
    answer->file_answer.file_descriptor_proto = answer->chosen;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    response->file_descriptor_response = &answer->file_answer;
}

static void answer_file_named(struct answer *answer, reflection_response *response,
                              const char *name)
{
    for (size_t i = 0; i < answer->file_count; i++) {
        if (span_is(find_field(answer->files[i], FILE_NAME), name)) {
            answer_file(answer, response, i);
            return;
        }
    }
    answer_error(answer, response, GRPC_STATUS_NOT_FOUND, "file", name);
}

static void answer_file_with(struct answer *answer, reflection_response *response,
                             const char *symbol)
{
    for (size_t i = 0; i < answer->file_count; i++) {
        if (file_has_symbol(answer->files[i], symbol)) {
            answer_file(answer, response, i);
            return;
        }
    }
    answer_error(answer, response, GRPC_STATUS_NOT_FOUND, "symbol", symbol);
}

static void answer_services(struct answer *answer, reflection_response *response)
{
    size_t count = 0;

    for (size_t i = 0; i < answer->file_count; i++) {
        const struct span package = find_field(answer->files[i], FILE_PACKAGE);
        struct span rest = answer->files[i];
        struct span value;
        uint32_t field;

        while ((field = next_field(&rest, &value)) != 0) {
            if (field != FILE_SERVICE)
                continue;
            const struct span name = find_field(value, ANY_NAME);
            FIRE_ASSERT(count < SERVICES_MAX);
            snprintf(answer->service_names[count], NAME_BYTES, "%.*s.%.*s", (int)package.count,
                     (const char *)package.bytes, (int)name.count, (const char *)name.bytes);
            grpc__reflection__v1__service_response__init(&answer->services[count]);
            answer->services[count].name = answer->service_names[count];
            answer->service_list[count] = &answer->services[count];
            count++;
        }
    }
    grpc__reflection__v1__list_service_response__init(&answer->list_answer);
    answer->list_answer.n_service = count;
    answer->list_answer.service = answer->service_list;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    response->list_services_response = &answer->list_answer;
}

static grpc_byte_buffer *question_answer(const reflection_request *request)
{
    reflection_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    struct answer *answer = calloc(1, sizeof(*answer));

    if (!answer)
        return NULL;
    answer->file_count = files_split(answer->files);
    response.valid_host = request->host;
    response.original_request = (reflection_request *)request;
    switch (request->message_request_case) {
    case ASKS(FILE_BY_FILENAME):
        answer_file_named(answer, &response, request->file_by_filename);
        break;
    case ASKS(FILE_CONTAINING_SYMBOL):
        answer_file_with(answer, &response, request->file_containing_symbol);
        break;
    case ASKS(LIST_SERVICES): answer_services(answer, &response); break;
    case ASKS(FILE_CONTAINING_EXTENSION):
        answer_error(answer, &response, GRPC_STATUS_NOT_FOUND, "extension of",
                     request->file_containing_extension->containing_type);
        break;
    case ASKS(ALL_EXTENSION_NUMBERS_OF_TYPE):
        answer_error(answer, &response, GRPC_STATUS_NOT_FOUND, "extension of",
                     request->all_extension_numbers_of_type);
        break;
    case ASKS(_NOT_SET):
    case _GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST__CASE_IS_INT_SIZE:
        answer_error(answer, &response, GRPC_STATUS_INVALID_ARGUMENT, "question in", "the request");
        break;
    }
    grpc_byte_buffer *buffer = rpc_small_pack(&response.base);
    free(answer);
    return buffer;
}

/* --- the method --- */

static void reflection_end(struct rpc_call *call)
{
    struct fire_error error;

    rpc_call_finish(call,
                    fire_fail(&error, FIRE_DRAINING, NULL,
                              "this daemon is going down; ask another replica, or again when it "
                              "is back"),
                    &error, NULL);
}

static void reflection_listen(struct rpc_call *call)
{
    struct fire_error error;
    const enum fire_status status = rpc_call_receive(call, REQUEST_BYTES_MAX, &error);

    if (status != FIRE_OK)
        rpc_call_finish(call, status, &error, NULL);
}

static void reflection_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    struct fire_error error;

    if (!message) {
        rpc_call_finish(call, FIRE_OK, NULL, NULL);
        return;
    }
    const size_t bytes = grpc_byte_buffer_length(message);
    reflection_request *request = (reflection_request *)rpc_small_unpack(
        &grpc__reflection__v1__server_reflection_request__descriptor, message);
    rpc_call_discharge(call, bytes);
    if (!request) {
        rpc_small_malformed(call);
        return;
    }
    grpc_byte_buffer *answer = question_answer(request);
    grpc__reflection__v1__server_reflection_request__free_unpacked(request, NULL);
    if (answer)
        rpc_call_send(call, answer);
    else
        rpc_call_finish(call, fire_fail_memory(&error, sizeof(struct answer)), &error, NULL);
}

const struct rpc_method rpc_reflection_method = {
    .path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    .kind = RPC_STREAM,
    .open_while_draining = true,
    .start = reflection_listen,
    .message = reflection_message,
    .sent = reflection_listen,
    .draining = reflection_end,
};

const struct rpc_method rpc_reflection_alpha_method = {
    .path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    .kind = RPC_STREAM,
    .open_while_draining = true,
    .start = reflection_listen,
    .message = reflection_message,
    .sent = reflection_listen,
    .draining = reflection_end,
};
