/* safetensors_save: a new file from entries in memory.
 *
 * What it writes, the reader accepts: each entry is checked as the reader would check it, before
 * the first byte goes to disk. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors_internal.h"

/* The description of one tensor whose data begins at `begin`; NULL when memory is out. */
static json_t *entry_json(const struct safetensors_entry *entry, uint64_t begin)
{
    const uint64_t end = begin + entry->bytes;
    json_t *info = json_object();
    json_t *shape = json_array();
    json_t *offsets = json_array();
    int failed = 0;

    for (uint32_t i = 0; i < entry->shape.axes; i++)
        failed |= json_array_append_new(shape, json_integer((json_int_t)entry->shape.size[i]));
    failed |= json_array_append_new(offsets, json_integer((json_int_t)begin));
    failed |= json_array_append_new(offsets, json_integer((json_int_t)end));
    failed |= json_object_set_new(info, "dtype", json_string(entry->dtype_name));
    failed |= json_object_set_new(info, "shape", shape);
    failed |= json_object_set_new(info, "data_offsets", offsets);
    if (!failed)
        return info;
    json_decref(info);
    return NULL;
}

static enum fire_status entry_check(const struct safetensors_file *file, json_t *root,
                                    const struct safetensors_entry *entry, uint64_t begin,
                                    struct fire_error *error)
{
    struct safetensors_entry copy = *entry;
    uint64_t elements = 1;
    uint64_t bytes = 0;
    uint64_t end;
    enum fire_status status;

    if (entry->too_many_axes || entry->shape.axes > FIRE_AXES_MAX)
        return safetensors_damaged(file, entry->name, error,
                                   "has more than %d axes; reshape it to fewer", FIRE_AXES_MAX);
    if (strcmp(entry->name, "__metadata__") == 0 || json_object_get(root, entry->name))
        return safetensors_damaged(file, entry->name, error,
                                   "has a name that is taken; give each tensor its own");
    for (uint32_t i = 0; i < entry->shape.axes; i++)
        if (entry->shape.size[i] > INT64_MAX ||
            __builtin_mul_overflow(elements, entry->shape.size[i], &elements))
            return safetensors_damaged(file, entry->name, error,
                                       "has a shape whose size overflows 64 bits; correct it");
    status = safetensors_dtype_bytes(file, &copy, elements, &bytes, error);
    if (status != FIRE_OK)
        return status;
    if (bytes != entry->bytes || __builtin_add_overflow(begin, bytes, &end) || end > INT64_MAX)
        return safetensors_damaged(file, entry->name, error,
                                   "has %llu bytes, but its shape in %s needs %llu; correct "
                                   "either",
                                   (unsigned long long)entry->bytes, entry->dtype_name,
                                   (unsigned long long)bytes);
    return FIRE_OK;
}

static enum fire_status metadata_json(const char *const *metadata, json_t *root,
                                      struct fire_error *error)
{
    json_t *map;

    if (!metadata || !metadata[0])
        return FIRE_OK;
    map = json_object();
    if (json_object_set_new(root, "__metadata__", map) != 0)
        return fire_fail_memory(error, 1);
    for (size_t i = 0; metadata[i]; i += 2) {
        FIRE_ASSERT(metadata[i + 1]);
        if (json_object_set_new(map, metadata[i], json_string(metadata[i + 1])) == 0)
            continue;
        if (safetensors_json_memory_failed())
            return fire_fail_memory(error, strlen(metadata[i]) + strlen(metadata[i + 1]));
        return fire_fail(error, FIRE_BAD_REQUEST, "metadata",
                         "metadata '%s' is not valid UTF-8; encode it so",
                         safetensors_shown(metadata[i]).text);
    }
    return FIRE_OK;
}

/* The header as an object, entries in the order given. */
static enum fire_status header_json(const struct safetensors_file *file,
                                    const struct safetensors_entry *entries, size_t count,
                                    json_t *root, struct fire_error *error)
{
    uint64_t begin = 0;

    for (size_t i = 0; i < count; i++) {
        enum fire_status status = entry_check(file, root, &entries[i], begin, error);
        json_t *info;

        if (status != FIRE_OK)
            return status;
        info = entry_json(&entries[i], begin);
        if (!info)
            return fire_fail_memory(error, sizeof(json_t));
        if (json_object_set_new(root, entries[i].name, info) != 0 &&
            safetensors_json_memory_failed())
            return fire_fail_memory(error, strlen(entries[i].name));
        if (!json_object_get(root, entries[i].name))
            return safetensors_damaged(file, entries[i].name, error,
                                       "has a name that is not valid UTF-8; encode it so");
        begin += entries[i].bytes;
    }
    return FIRE_OK;
}

/* Prefix and header of a new file, padded with spaces so that the data begins at a multiple of 8.
 * The caller frees `*start`. */
static enum fire_status header_make(const struct safetensors_file *file,
                                    const struct safetensors_entry *entries, size_t count,
                                    const char *const *metadata, char **start,
                                    uint64_t *start_bytes, struct fire_error *error)
{
    json_t *root;
    char *text = NULL;
    size_t header_bytes;
    enum fire_status status;

    *start = NULL;
    safetensors_json_begin();
    root = json_object();
    status = root ? metadata_json(metadata, root, error) : fire_fail_memory(error, sizeof(*root));
    if (status == FIRE_OK)
        status = header_json(file, entries, count, root, error);
    if (status != FIRE_OK)
        goto done;
    text = json_dumps(root, JSON_COMPACT);
    header_bytes = text ? (strlen(text) + 7) / 8 * 8 : 0;
    *start = malloc(SAFETENSORS_PREFIX_BYTES + header_bytes);
    if (!text || !*start) {
        status = fire_fail_memory(error, header_bytes);
        goto done;
    }
    if (header_bytes > SAFETENSORS_HEADER_BYTES_MAX) {
        status = safetensors_damaged(file, NULL, error,
                                     "its header would be %zu bytes, over the limit of %u; write "
                                     "fewer tensors a file",
                                     header_bytes, SAFETENSORS_HEADER_BYTES_MAX);
        goto done;
    }
    for (uint32_t i = 0; i < SAFETENSORS_PREFIX_BYTES; i++)
        (*start)[i] = (char)(header_bytes >> (8 * i) & 0xff);
    memset(*start + SAFETENSORS_PREFIX_BYTES, ' ', header_bytes);
    memcpy(*start + SAFETENSORS_PREFIX_BYTES, text, strlen(text));
    *start_bytes = SAFETENSORS_PREFIX_BYTES + header_bytes;

done:
    free(text);
    json_decref(root);
    return status;
}

/* Header, then every entry's bytes, then the name. */
static enum fire_status save_bytes(struct safetensors_output *output, const char *start,
                                   uint64_t start_bytes, const struct safetensors_entry *entries,
                                   size_t count, struct fire_error *error)
{
    uint64_t offset = start_bytes;
    enum fire_status status = safetensors_output_write(output, 0, start, start_bytes, error);

    for (size_t i = 0; i < count && status == FIRE_OK; i++) {
        status = safetensors_output_write(output, offset, entries[i].data, entries[i].bytes, error);
        offset += entries[i].bytes;
    }
    if (status == FIRE_OK)
        status = safetensors_output_sync(output, error);
    if (status == FIRE_OK)
        status = safetensors_output_rename(output, error);
    return status;
}

enum fire_status safetensors_save(const char *path, const struct safetensors_entry *entries,
                                  size_t count, const char *const *metadata,
                                  struct fire_error *error)
{
    struct safetensors_output output = SAFETENSORS_OUTPUT_NONE;
    struct safetensors_target target = SAFETENSORS_TARGET_NONE;
    struct safetensors_file file = { .path = (char *)path };
    uint64_t start_bytes = 0;
    uint64_t size;
    char *start = NULL;
    enum fire_status status =
        header_make(&file, entries, count, metadata, &start, &start_bytes, error);

    if (status != FIRE_OK)
        goto done;
    status = safetensors_target_file(&target, path, error);
    if (status != FIRE_OK)
        goto done;
    size = start_bytes;
    for (size_t i = 0; i < count; i++)
        size += entries[i].bytes;
    status = target.stream ? safetensors_output_stream(&output, path, error)
                           : safetensors_output_create(&output, target.directory, path, target.name,
                                                       size, error);
    if (status != FIRE_OK)
        goto done;
    status = save_bytes(&output, start, start_bytes, entries, count, error);
    if (status == FIRE_OK && !target.stream)
        status = safetensors_directory_sync(target.directory, target.directory_path, error);
    output.committed = status == FIRE_OK;

done:
    safetensors_output_release(&output);
    safetensors_target_release(&target);
    free(start);
    return status;
}
