/* remote_encode: what a caller asked for, as messages. Options are sent as text, and only where
 * they differ from the preset, so that a daemon of another version keeps its own defaults. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote.h"

static Fire__V1__DataType type_of(enum fire_dtype dtype)
{
    switch (dtype) {
    case FIRE_F64: return FIRE__V1__DATA_TYPE__DATA_TYPE_F64;
    case FIRE_F32: return FIRE__V1__DATA_TYPE__DATA_TYPE_F32;
    case FIRE_BF16: return FIRE__V1__DATA_TYPE__DATA_TYPE_BF16;
    case FIRE_F16: return FIRE__V1__DATA_TYPE__DATA_TYPE_F16;
    }
    return FIRE__V1__DATA_TYPE__DATA_TYPE_UNSPECIFIED;
}

static const char *slot_name(enum fire_state_slot slot)
{
    switch (slot) {
    case FIRE_SLOT_EXP_AVG: return "exp_avg";
    case FIRE_SLOT_EXP_AVG_SQ: return "exp_avg_sq";
    case FIRE_SLOT_MOMENTUM_BUFFER: return "momentum_buffer";
    case FIRE_SLOT_STEP: return "step";
    }
    return "";
}

static void set_shape(struct remote_header *header, const struct fire_shape *shape)
{
    header->header.n_shape = shape->axes;
    header->header.shape = header->shape;
    memcpy(header->shape, shape->size, shape->axes * sizeof(shape->size[0]));
    if (shape->axes == 0) { /* a scalar: on the wire a tensor of one element */
        header->header.n_shape = 1;
        header->shape[0] = 1;
    }
}

static enum fire_status add_option(struct remote_header *header, const char *key, const char *value,
                                   struct fire_error *error)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(&fire__v1__options__descriptor, key);
    char *text;

    FIRE_ASSERT(field);
    FIRE_ASSERT(field->type == PROTOBUF_C_TYPE_STRING);
    text = strdup(value);
    if (!text)
        return fire_fail_memory(error, strlen(value) + 1);
    header->texts[header->text_count++] = text;
    memcpy((char *)&header->options + field->offset, &text, sizeof(text));
    header->header.options = &header->options;
    return FIRE_OK;
}

/* Every key whose text differs from the preset's. */
static enum fire_status add_options(struct remote_header *header,
                                    const struct fire_options *options, struct fire_error *error)
{
    struct fire_options preset;
    struct fire_error unknown;
    enum fire_status status = FIRE_OK;

    /* A struct that was filled by hand may name no preset: what differs from "fire" is sent. */
    if (fire_options_preset(&preset, options->preset, &unknown) == FIRE_OK)
        header->header.preset = (char *)(uintptr_t)options->preset;
    else if (fire_options_preset(&preset, "fire", error) != FIRE_OK)
        return error->status;
    if (memcmp(&preset, options, sizeof(preset)) == 0)
        return FIRE_OK;
    header->texts = calloc(fire_option_key_count(), sizeof(*header->texts));
    if (!header->texts)
        return fire_fail_memory(error, fire_option_key_count() * sizeof(*header->texts));
    for (size_t i = 0; status == FIRE_OK && i < fire_option_key_count(); i++) {
        char value[FIRE_OPTION_TEXT_BYTES];
        char usual[FIRE_OPTION_TEXT_BYTES];

        fire_options_format(options, i, value, sizeof(value));
        fire_options_format(&preset, i, usual, sizeof(usual));
        if (strcmp(value, usual) != 0)
            status = add_option(header, fire_option_key_at(i)->name, value, error);
    }
    return status;
}

static void add_companion(struct remote_header *header, const struct fire_tensor *tensor,
                          const struct remote_item *item)
{
    const struct fire_state_tensor *state = NULL;
    struct fire_shape units = { 1, { tensor->unit_count } };
    const char *ending = "";

    header->header.parameter = header->parameter;
    switch (item->role) {
    case REMOTE_STATE:
        state = &tensor->states[item->state];
        header->header.role = FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_STATE;
        header->header.slot = (char *)(uintptr_t)slot_name(state->slot);
        header->header.dtype = state->integer_bytes == 8 ? FIRE__V1__DATA_TYPE__DATA_TYPE_I64
                               : state->integer_bytes    ? FIRE__V1__DATA_TYPE__DATA_TYPE_I32
                                                         : type_of(state->dtype);
        set_shape(header, &state->shape);
        ending = header->header.slot;
        break;
    case REMOTE_UNIT_MEANS:
        header->header.role = FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_UNIT_MEANS;
        header->header.dtype = FIRE__V1__DATA_TYPE__DATA_TYPE_F64;
        set_shape(header, &units);
        ending = "unit_means";
        break;
    case REMOTE_GRADIENT:
        header->header.role = FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_GRADIENT;
        header->header.dtype = type_of(tensor->gradient_dtype);
        set_shape(header, &tensor->shape);
        ending = "grad";
        break;
    case REMOTE_WEIGHT: break;
    }
    snprintf(header->name, sizeof(header->name), "%s.%s", header->parameter, ending);
    header->header.name = header->name;
}

enum fire_status remote_header_init(struct remote_header *header, const struct remote_set *set,
                                    const struct remote_item *item, struct fire_error *error)
{
    const struct fire_tensor *tensor = remote_tensor(set, &set->groups[item->group]);

    *header = (struct remote_header){ .header = FIRE__V1__TENSOR_HEADER__INIT,
                                      .options = FIRE__V1__OPTIONS__INIT };
    if (set->groups[item->group].renamed)
        snprintf(header->parameter, sizeof(header->parameter), "%s#%zu",
                 tensor->name ? tensor->name : "", item->group);
    else
        snprintf(header->parameter, sizeof(header->parameter), "%s",
                 tensor->name ? tensor->name : "");
    if (item->role != REMOTE_WEIGHT) {
        add_companion(header, tensor, item);
        return FIRE_OK;
    }
    header->header.role = FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_WEIGHT;
    header->header.dtype = type_of(tensor->dtype);
    header->header.name = header->parameter;
    set_shape(header, &tensor->shape);
    return add_options(header, &tensor->options, error);
}

void remote_header_release(struct remote_header *header)
{
    for (size_t i = 0; i < header->text_count; i++)
        free(header->texts[i]);
    free(header->texts);
    header->texts = NULL;
    header->text_count = 0;
}

void remote_set_header(const struct remote_set *set, Fire__V1__SetHeader *header)
{
    const struct remote *remote = set->remote;

    fire__v1__set_header__init(header);
    if (set->set->statistics & FIRE_STATISTICS_SPECTRUM)
        header->statistics = FIRE__V1__STATISTICS_LEVEL__STATISTICS_LEVEL_SPECTRUM;
    else if (set->set->statistics & FIRE_STATISTICS_BASIC)
        header->statistics = FIRE__V1__STATISTICS_LEVEL__STATISTICS_LEVEL_BASIC;
    else
        header->statistics = FIRE__V1__STATISTICS_LEVEL__STATISTICS_LEVEL_NONE;
    header->residual = (set->set->statistics & FIRE_STATISTICS_RESIDUAL) != 0;
    header->per_matrix = set->per_matrix;
    header->on_bad = FIRE__V1__ON_BAD__ON_BAD_SKIP;
    switch (remote->priority) {
    case FIRE_PRIORITY_NORMAL: header->priority = FIRE__V1__PRIORITY__PRIORITY_NORMAL; break;
    case FIRE_PRIORITY_INTERACTIVE:
        header->priority = FIRE__V1__PRIORITY__PRIORITY_INTERACTIVE;
        break;
    case FIRE_PRIORITY_BULK: header->priority = FIRE__V1__PRIORITY__PRIORITY_BULK; break;
    }
    if (set->set->run || remote->run)
        header->run = (char *)(set->set->run ? set->set->run : remote->run);
    header->step = set->set->run ? set->set->step : remote->step;
}
