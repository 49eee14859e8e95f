/* flat: the binding-friendly door to libfire. No struct crosses it, so Python's ctypes, Julia's
 * ccall and the like need no copy of the headers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fire.h"

#define SET_PAIR_BYTES_MAX 4096u

enum fire_status fire_client_open_flat(uint32_t threads, const char *path,
                                       struct fire_client **client)
{
    const struct fire_local_settings settings = { .threads = threads, .path = path };

    return fire_client_open_local(&settings, client, NULL);
}

/* Sets every `key=value` line of `set_pairs`. */
static enum fire_status set_lines(struct fire_options *options, const char *set_pairs,
                                  struct fire_error *error)
{
    enum fire_status status = FIRE_OK;
    const char *at = set_pairs;

    while (at && *at && status == FIRE_OK) {
        char pair[SET_PAIR_BYTES_MAX];
        const size_t length = strcspn(at, "\n");

        if (length >= sizeof(pair))
            return fire_fail(error, FIRE_BAD_REQUEST, "set",
                             "a key=value line is %zu bytes long, at most %u are allowed", length,
                             SET_PAIR_BYTES_MAX - 1);
        memcpy(pair, at, length);
        pair[length] = '\0';
        if (length > 0)
            status = fire_options_set_pair(options, pair, error);
        at += length + (at[length] == '\n');
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
    return set_lines(&tensor->options, set_pairs, error);
}

static enum fire_status lay_out(struct fire_tensor *tensors, uint64_t count, const void *data,
                                void *out, struct fire_error *error)
{
    uint64_t elements;
    uint64_t bytes;
    enum fire_status status = fire_shape_elements(&tensors[0].shape, &elements, error);

    if (status != FIRE_OK)
        return status;
    bytes = elements * fire_dtype_bytes(tensors[0].dtype);
    for (uint64_t i = 0; i < count; i++) {
        tensors[i] = tensors[0];
        tensors[i].data = (const unsigned char *)data + i * bytes;
        tensors[i].out = out ? (unsigned char *)out + i * bytes : NULL;
    }
    return FIRE_OK;
}

static void give_fields(const struct fire_tensor *tensors, uint64_t count, double *fields_out)
{
    const size_t fields = fire_result_field_count();

    for (uint64_t i = 0; fields_out && i < count; i++) {
        for (size_t f = 0; f < fields; f++)
            fields_out[i * fields + f] = fire_result_value(&tensors[i].result, f);
    }
}

enum fire_status fire_reinit_flat(struct fire_client *client, const char *preset,
                                  const char *set_pairs, int dtype, uint32_t axes,
                                  const uint64_t *size, const void *data, void *out, uint64_t count,
                                  uint32_t statistics, double *fields_out, struct fire_error *error)
{
    struct fire_tensor *tensors;
    enum fire_status status;

    if (count == 0)
        return FIRE_OK;
    tensors = calloc(count, sizeof(*tensors));
    if (!tensors)
        return fire_fail_memory(error, count * sizeof(*tensors));
    status = first_tensor(&tensors[0], preset, set_pairs, dtype, axes, size, error);
    if (status == FIRE_OK)
        status = lay_out(tensors, count, data, out, error);
    if (status == FIRE_OK) {
        status = out ? fire_client_reinit(client, tensors, count, statistics, error)
                     : fire_client_analyze(client, tensors, count, statistics, error);
        give_fields(tensors, count, fields_out);
    }
    free(tensors);
    return status;
}
