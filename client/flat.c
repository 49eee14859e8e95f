/* flat: the binding-friendly door to libfire. No struct crosses it, so Python's ctypes, Julia's
 * ccall and the like need no copy of the headers. */
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "flat.h"

enum fire_status fire_client_open_flat(uint32_t threads, const char *path,
                                       struct fire_client **client)
{
    const struct fire_local_settings settings = { .threads = threads, .path = path };

    return fire_client_open_local(&settings, client, NULL);
}

enum fire_status fire_client_open_remote_flat(const char *address, const char *tenant,
                                              const char *token, struct fire_client **client)
{
    const struct fire_remote_settings settings = { .address = address,
                                                   .tenant = tenant,
                                                   .token = token };

    return fire_client_open_remote(&settings, client, NULL);
}

enum fire_status flat_lines(const char *lines, flat_line *each, void *data,
                            struct fire_error *error)
{
    enum fire_status status = FIRE_OK;
    const char *at = lines;

    while (at && *at && status == FIRE_OK) {
        char line[FLAT_LINE_BYTES_MAX];
        const size_t length = strcspn(at, "\n");

        if (length >= sizeof(line))
            return fire_fail(error, FIRE_BAD_REQUEST, "set",
                             "a key=value line is %zu bytes long, at most %u are allowed", length,
                             FLAT_LINE_BYTES_MAX - 1);
        memcpy(line, at, length);
        line[length] = '\0';
        if (length > 0)
            status = each(line, data, error);
        at += length + (at[length] == '\n');
    }
    return status;
}

static enum fire_status set_line(char *line, void *data, struct fire_error *error)
{
    return fire_options_set_pair(data, line, error);
}

enum fire_status flat_options(struct fire_options *options, const char *set_pairs,
                              struct fire_error *error)
{
    return flat_lines(set_pairs, set_line, options, error);
}

/* The settings of a remote client and the texts they point to. */
struct remote_lines {
    struct fire_remote_settings settings;
    char *texts[8];
};

/* The text setting called `key`, or NULL. */
static const char **text_setting(struct remote_lines *lines, const char *key, size_t *slot)
{
    const struct {
        const char *key;
        const char **value;
    } texts[] = {
        { "address", &lines->settings.address },
        { "tenant", &lines->settings.tenant },
        { "token", &lines->settings.token },
        { "ca_file", &lines->settings.ca_file },
        { "certificate_file", &lines->settings.certificate_file },
        { "key_file", &lines->settings.key_file },
        { "server_name", &lines->settings.server_name },
        { "run", &lines->settings.run },
    };

    for (*slot = 0; *slot < sizeof(texts) / sizeof(texts[0]); (*slot)++) {
        if (strcmp(texts[*slot].key, key) == 0)
            return texts[*slot].value;
    }
    return NULL;
}

static enum fire_status remote_line(char *line, void *data, struct fire_error *error)
{
    static const char *const priorities[] = { "normal", "interactive", "bulk" };
    struct remote_lines *lines = data;
    char *value = strchr(line, '=');
    const char **text;
    char *end;
    size_t slot;

    if (!value)
        return fire_fail(error, FIRE_BAD_REQUEST, "settings", "'%.80s' is no key=value", line);
    *value++ = '\0';
    end = value;
    text = text_setting(lines, line, &slot);
    if (text) {
        free(lines->texts[slot]);
        *text = lines->texts[slot] = strdup(value);
        return *text ? FIRE_OK : fire_fail_memory(error, strlen(value));
    }
    if (strcmp(line, "deadline_s") == 0) {
        lines->settings.deadline_s = strtod(value, &end);
    } else if (strcmp(line, "step") == 0) {
        lines->settings.step = strtoll(value, &end, 10);
    } else if (strcmp(line, "retries_max") == 0) {
        const long long retries = strtoll(value, &end, 10);

        lines->settings.retries_max = retries < 0 ? FIRE_RETRIES_NONE : (uint32_t)retries;
    } else if (strcmp(line, "priority") == 0) {
        size_t i = 0;

        while (i < 3 && strcmp(priorities[i], value) != 0)
            i++;
        lines->settings.priority = (enum fire_priority)i;
        end = i < 3 ? value + strlen(value) : value;
    } else {
        return fire_fail(error, FIRE_NOT_FOUND, "settings", "there is no setting '%.80s'", line);
    }
    if (*end || !*value)
        return fire_fail(error, FIRE_BAD_REQUEST, line, "%s cannot be '%.80s'", line, value);
    return FIRE_OK;
}

enum fire_status fire_client_open_lines(const char *lines, struct fire_client **client)
{
    struct remote_lines all = { 0 };
    struct fire_error error = { 0 };
    enum fire_status status = flat_lines(lines, remote_line, &all, &error);

    *client = NULL;
    if (status == FIRE_OK)
        status = fire_client_open_remote(&all.settings, client, &error);
    else
        status = client_fail(&error, NULL);
    for (size_t i = 0; i < sizeof(all.texts) / sizeof(all.texts[0]); i++) {
        if (all.texts[i])
            explicit_bzero(all.texts[i], strlen(all.texts[i])); /* one may be a token */
        free(all.texts[i]);
    }
    return status;
}

/* The first tensor of the call: what all have in common. */
static enum fire_status first_tensor(struct fire_tensor *tensor, const char *preset,
                                     const char *set_pairs, int dtype, uint32_t axes,
                                     const uint64_t *size, struct fire_error *error)
{
    enum fire_status status;

    if (dtype < 0 || dtype >= FIRE_DTYPE_COUNT)
        return fire_fail(error, FIRE_BAD_REQUEST, "dtype",
                         "dtype must be 0 (f64), 1 (f32), 2 (bf16) or 3 (f16), got %d", dtype);
    if (axes > FIRE_AXES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "axes", "axes must be at most %d, got %u",
                         FIRE_AXES_MAX, axes);
    tensor->name = "tensor";
    tensor->dtype = (enum fire_dtype)dtype;
    tensor->shape.axes = axes;
    for (uint32_t axis = 0; axis < axes; axis++)
        tensor->shape.size[axis] = size[axis];
    status = fire_options_preset(&tensor->options, preset ? preset : "fire", error);
    if (status != FIRE_OK)
        return status;
    return flat_options(&tensor->options, set_pairs, error);
}

static void give_fields(const struct fire_result *result, double *fields)
{
    for (size_t f = 0; f < fire_result_field_count(); f++)
        fields[f] = fire_result_value(result, f);
}

/* Separate tensors: each is refused or done for itself. */
static enum fire_status run_apart(struct fire_client *client, const struct fire_tensor *first,
                                  uint64_t count, uint64_t bytes, uint32_t statistics,
                                  double *fields_out, struct fire_error *error)
{
    struct fire_tensor *tensors = calloc(count, sizeof(*tensors));
    enum fire_status status;

    if (!tensors)
        return fire_fail_memory(error, count * sizeof(*tensors));
    for (uint64_t i = 0; i < count; i++) {
        tensors[i] = *first;
        tensors[i].data = (const unsigned char *)first->data + i * bytes;
        tensors[i].out = first->out ? (unsigned char *)first->out + i * bytes : NULL;
    }
    status = first->out ? fire_client_reinit(client, tensors, count, statistics, error)
                        : fire_client_analyze(client, tensors, count, statistics, error);
    for (uint64_t i = 0; fields_out && i < count; i++)
        give_fields(&tensors[i].result, fields_out + i * fire_result_field_count());
    free(tensors);
    return status;
}

/* The same tensors as one with another axis in front: no struct for each of them, which matters
 * when they are small. Refuses all when one is bad. */
static enum fire_status run_stacked(struct fire_client *client, const struct fire_tensor *first,
                                    uint64_t count, uint32_t statistics, double *fields_out,
                                    struct fire_error *error)
{
    struct fire_tensor stack = *first;
    struct fire_result *results = NULL;
    uint64_t matrices; /* of one tensor */
    enum fire_status status = fire_view_count(&first->shape, &first->options, &matrices, error);

    if (status != FIRE_OK)
        return status;
    stack.shape.axes++;
    stack.shape.size[0] = count;
    memcpy(stack.shape.size + 1, first->shape.size, first->shape.axes * sizeof(uint64_t));
    stack.options.stack++;
    if (fields_out) {
        results = calloc(count * matrices, sizeof(*results));
        if (!results)
            return fire_fail_memory(error, count * matrices * sizeof(*results));
        stack.per_matrix = results;
    }
    status = first->out ? fire_client_reinit(client, &stack, 1, statistics, error)
                        : fire_client_analyze(client, &stack, 1, statistics, error);
    for (uint64_t i = 0; status == FIRE_OK && fields_out && i < count; i++) {
        struct fire_result merged;

        fire_result_init(&merged);
        for (uint64_t m = 0; m < matrices; m++)
            fire_result_merge(&merged, &results[i * matrices + m]);
        give_fields(&merged, fields_out + i * fire_result_field_count());
    }
    free(results);
    return status;
}

enum fire_status fire_reinit_flat(struct fire_client *client, const char *preset,
                                  const char *set_pairs, int dtype, uint32_t axes,
                                  const uint64_t *size, const void *data, void *out, uint64_t count,
                                  uint32_t statistics, double *fields_out, struct fire_error *error)
{
    struct fire_tensor first = { .data = data, .out = out };
    struct fire_error own = { 0 };
    uint64_t elements;
    enum fire_status status;

    if (count == 0)
        return FIRE_OK;
    status = first_tensor(&first, preset, set_pairs, dtype, axes, size, error);
    if (status == FIRE_OK)
        status = fire_shape_elements(&first.shape, &elements, error);
    if (status != FIRE_OK)
        return status;
    if (count > 1 && axes < FIRE_AXES_MAX && first.options.stack < FIRE_STACK_MAX) {
        status = run_stacked(client, &first, count, statistics, fields_out, &own);
        if (status == FIRE_OK)
            return status;
    }
    /* One bad tensor refuses a stack and nothing of it was written; apart, the others are done. */
    return run_apart(client, &first, count, elements * fire_dtype_bytes(first.dtype), statistics,
                     fields_out, error);
}
