/* request_options: Options messages become struct fire_options.
 *
 * The fields of the message are the keys of fire_options_set(): the descriptor is walked, so a key
 * added to both is served without a change here. The set's own keys are remembered by number and
 * written over a tensor's own preset by way of their text, which reads back to the same bits. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "request.h"
#include "utf8.h"

_Static_assert(sizeof(((struct request_set *)0)->given) * 8 >= 64, "one bit a key");

void request_field(char field[FIRE_ERROR_FIELD_BYTES], const char *path, const char *name)
{
    snprintf(field, FIRE_ERROR_FIELD_BYTES, "%.*s.%.*s", (int)REQUEST_PATH_BYTES, path, 72, name);
}

enum fire_status request_check_text(const char *text, size_t bytes_max, const char *path,
                                    const char *name, struct fire_error *error)
{
    const char *at = text;
    char field[FIRE_ERROR_FIELD_BYTES];

    request_field(field, path, name);
    if (strnlen(text, bytes_max + 1) > bytes_max)
        return fire_fail(error, FIRE_BAD_REQUEST, field,
                         "%s is longer than %zu bytes; use a shorter one", field, bytes_max);
    while (*at) {
        const size_t bytes = utf8_bytes(at);

        /* Names stand in messages of one line. */
        if (bytes == 0 || utf8_is_control(at, bytes))
            return fire_fail(
                error, FIRE_BAD_REQUEST, field,
                "%s is not UTF-8, or has a control character, at byte %zu; send plain text", field,
                (size_t)(at - text));
        at += bytes;
    }
    return FIRE_OK;
}

/* An error of fire_options_*(), told as one about a field of the request. */
static enum fire_status refuse(struct fire_error *error, const struct fire_error *inner,
                               const char *path, const char *name)
{
    char field[FIRE_ERROR_FIELD_BYTES];

    request_field(field, path, name);
    fire_fail(error, FIRE_BAD_REQUEST, field, "%.*s", FIRE_ERROR_MESSAGE_BYTES - 1, inner->message);
    /* It may quote what was sent, which may be anything. */
    for (char *letter = error->message; *letter; letter++) {
        if (iscntrl((unsigned char)*letter))
            *letter = '?';
    }
    return FIRE_BAD_REQUEST;
}

static enum fire_status set_preset(struct fire_options *options, const char *preset,
                                   const char *path, struct fire_error *error)
{
    struct fire_error inner;

    if (fire_options_preset(options, preset, &inner) == FIRE_OK)
        return FIRE_OK;
    return refuse(error, &inner, path, "preset");
}

/* The number of a key; every field of Options is one. */
static size_t key_index(const char *name)
{
    size_t i = 0;

    while (i < fire_option_key_count() && strcmp(fire_option_key_at(i)->name, name) != 0)
        i++;
    return i;
}

/* Sets every field that is not empty; `given` (NULL allowed) gets their bits. */
static enum fire_status apply(struct fire_options *options, const Fire__V1__Options *message,
                              const char *path, uint64_t *given, struct fire_error *error)
{
    const ProtobufCMessageDescriptor *descriptor = &fire__v1__options__descriptor;

    for (unsigned int i = 0; message && i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        struct fire_error inner;
        const char *value;

        memcpy(&value, (const char *)message + field->offset, sizeof(value));
        if (!value || !value[0])
            continue;
        if (fire_options_set(options, field->name, value, &inner) != FIRE_OK) {
            char name[64];

            snprintf(name, sizeof(name), "options.%s", field->name);
            return refuse(error, &inner, path, name);
        }
        if (given)
            *given |= 1ull << (key_index(field->name) % 64);
    }
    return FIRE_OK;
}

static void apply_given(struct fire_options *options, const struct request_set *set)
{
    for (size_t i = 0; i < fire_option_key_count(); i++) {
        char text[FIRE_OPTION_TEXT_BYTES];
        struct fire_error error;
        enum fire_status status;

        if (!(set->given >> i & 1))
            continue;
        fire_options_format(&set->options, i, text, sizeof(text));
        status = fire_options_set(options, fire_option_key_at(i)->name, text, &error);
        FIRE_ASSERT(status == FIRE_OK);
    }
}

/* Kind against shape; what a kind implies and nobody gave is filled in. */
static enum fire_status apply_kind(struct fire_options *options,
                                   const Fire__V1__TensorHeader *header, const char *path,
                                   struct fire_error *error)
{
    const size_t axes = header->n_shape;
    char field[FIRE_ERROR_FIELD_BYTES];
    const char *wanted = NULL;

    request_field(field, path, "kind");
    switch (header->kind) {
    case FIRE__V1__TENSOR_KIND__TENSOR_KIND_UNSPECIFIED: return FIRE_OK;
    case FIRE__V1__TENSOR_KIND__TENSOR_KIND_LINEAR:
        if (axes != 2)
            wanted = "LINEAR needs 2 axes";
        break;
    case FIRE__V1__TENSOR_KIND__TENSOR_KIND_CONV2D:
        if (axes < options->stack + 3u || axes > options->stack + 4u)
            wanted = "CONV2D needs 3 or 4 axes after those that options.stack counts";
        break;
    case FIRE__V1__TENSOR_KIND__TENSOR_KIND_STACK:
        if (options->stack == 0)
            options->stack = 1;
        if (axes < options->stack + 2u)
            wanted = "STACK needs 2 axes after those that options.stack counts (1 if not given)";
        break;
    case FIRE__V1__TENSOR_KIND__TENSOR_KIND_QKV:
        if (options->split_count == 1)
            options->split_count = 3;
        if (axes < options->stack + 2u)
            wanted = "QKV needs 2 axes after those that options.stack counts";
        break;
    case _FIRE__V1__TENSOR_KIND_IS_INT_SIZE:
    default:
        return fire_fail(error, FIRE_BAD_REQUEST, field,
                         "%s is %d, which is not known; use a value of TensorKind", field,
                         (int)header->kind);
    }
    if (!wanted)
        return FIRE_OK;
    return fire_fail(error, FIRE_BAD_REQUEST, field,
                     "the shape has %zu axes, but %s; correct one of them", axes, wanted);
}

enum fire_status request_options_make(const struct request_set *set,
                                      const Fire__V1__TensorHeader *header, const char *path,
                                      struct fire_options *options, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    if (header->preset[0]) {
        status = set_preset(options, header->preset, path, error);
        if (status == FIRE_OK)
            apply_given(options, set);
    } else {
        *options = set->options;
    }
    if (status == FIRE_OK)
        status = apply(options, header->options, path, NULL, error);
    if (status == FIRE_OK)
        status = apply_kind(options, header, path, error);
    return status;
}

/* --- the set ---------------------------------------------------------------------------------- */

static enum fire_status unknown_value(struct fire_error *error, const char *field, int value)
{
    return fire_fail(error, FIRE_BAD_REQUEST, field,
                     "%s is %d, which is not known; use a value of the contract", field, value);
}

static enum fire_status set_statistics(struct request_set *set, const Fire__V1__SetHeader *header,
                                       struct fire_error *error)
{
    switch (header->statistics) {
    case FIRE__V1__STATISTICS_LEVEL__STATISTICS_LEVEL_NONE: set->statistics = 0; break;
    case FIRE__V1__STATISTICS_LEVEL__STATISTICS_LEVEL_UNSPECIFIED:
    case FIRE__V1__STATISTICS_LEVEL__STATISTICS_LEVEL_BASIC:
        set->statistics = FIRE_STATISTICS_BASIC;
        break;
    case FIRE__V1__STATISTICS_LEVEL__STATISTICS_LEVEL_SPECTRUM:
        set->statistics = FIRE_STATISTICS_BASIC | FIRE_STATISTICS_SPECTRUM;
        break;
    case _FIRE__V1__STATISTICS_LEVEL_IS_INT_SIZE:
    default: return unknown_value(error, "set.statistics", (int)header->statistics);
    }
    if (header->residual)
        set->statistics |= FIRE_STATISTICS_RESIDUAL;
    return FIRE_OK;
}

static enum fire_status set_priority(struct request_set *set, const Fire__V1__SetHeader *header,
                                     struct fire_error *error)
{
    switch (header->priority) {
    case FIRE__V1__PRIORITY__PRIORITY_INTERACTIVE: set->priority = JOB_INTERACTIVE; return FIRE_OK;
    case FIRE__V1__PRIORITY__PRIORITY_UNSPECIFIED:
    case FIRE__V1__PRIORITY__PRIORITY_NORMAL: set->priority = JOB_NORMAL; return FIRE_OK;
    case FIRE__V1__PRIORITY__PRIORITY_BULK: set->priority = JOB_BULK; return FIRE_OK;
    case _FIRE__V1__PRIORITY_IS_INT_SIZE:
    default: return unknown_value(error, "set.priority", (int)header->priority);
    }
}

static enum fire_status set_on_bad(struct request_set *set, const Fire__V1__SetHeader *header,
                                   struct fire_error *error)
{
    switch (header->on_bad) {
    case FIRE__V1__ON_BAD__ON_BAD_UNSPECIFIED:
    case FIRE__V1__ON_BAD__ON_BAD_REFUSE: set->skip_bad = false; return FIRE_OK;
    case FIRE__V1__ON_BAD__ON_BAD_SKIP: set->skip_bad = true; return FIRE_OK;
    case _FIRE__V1__ON_BAD_IS_INT_SIZE:
    default: return unknown_value(error, "set.on_bad", (int)header->on_bad);
    }
}

enum fire_status request_set_init(struct request_set *set, const Fire__V1__SetHeader *header,
                                  bool analyze, struct fire_error *error)
{
    const Fire__V1__SetHeader defaults = FIRE__V1__SET_HEADER__INIT;
    enum fire_status status;

    FIRE_ASSERT(fire_option_key_count() <= 64);
    memset(set, 0, sizeof(*set));
    if (!header)
        header = &defaults;
    set->analyze = analyze;
    set->per_matrix = header->per_matrix;
    set->step = header->step;
    status = set_preset(&set->options, header->preset[0] ? header->preset : "fire", "set", error);
    if (status == FIRE_OK)
        status = apply(&set->options, header->options, "set", &set->given, error);
    if (status == FIRE_OK)
        status = set_statistics(set, header, error);
    if (status == FIRE_OK)
        status = set_priority(set, header, error);
    if (status == FIRE_OK)
        status = set_on_bad(set, header, error);
    if (status == FIRE_OK)
        status = request_check_text(header->run, sizeof(set->run) - 1, "set", "run", error);
    if (status == FIRE_OK)
        memcpy(set->run, header->run, strlen(header->run) + 1);
    return status;
}
