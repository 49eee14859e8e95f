/* safetensors_header: the header of one file becomes entries, or a message that says what is wrong.
 *
 * Nothing in the header is believed. Each tensor's dtype, shape and offsets are checked against
 * each other, then all of them, sorted by offset, must tile the data exactly: no overlap, no hole,
 * nothing after the last. Only then do entries get pointers. */
#define _GNU_SOURCE
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors_internal.h"

#define METADATA_KEY "__metadata__"

/* Every dtype of the format; sub-byte ones are packed. */
static const struct {
    const char *name;
    uint32_t bits;
    bool floating; /* one of enum fire_dtype */
    enum fire_dtype dtype;
} dtypes[] = {
    /* clang-format off */
    { "F64",         64, true,  FIRE_F64 },
    { "F32",         32, true,  FIRE_F32 },
    { "BF16",        16, true,  FIRE_BF16 },
    { "F16",         16, true,  FIRE_F16 },
    { "F8_E4M3",      8, false, 0 },
    { "F8_E5M2",      8, false, 0 },
    { "F8_E8M0",      8, false, 0 },
    { "F8_E4M3FNUZ",  8, false, 0 },
    { "F8_E5M2FNUZ",  8, false, 0 },
    { "F6_E2M3",      6, false, 0 },
    { "F6_E3M2",      6, false, 0 },
    { "F4",           4, false, 0 },
    { "C64",         64, false, 0 },
    { "I64",         64, false, 0 },
    { "U64",         64, false, 0 },
    { "I32",         32, false, 0 },
    { "U32",         32, false, 0 },
    { "I16",         16, false, 0 },
    { "U16",         16, false, 0 },
    { "I8",           8, false, 0 },
    { "U8",           8, false, 0 },
    { "BOOL",         8, false, 0 },
    /* clang-format on */
};

/* One tensor of the header with its offsets, before they are known to be right. */
struct claim {
    struct safetensors_entry entry;
    uint64_t begin;
    uint64_t end;
};

struct safetensors_shown safetensors_shown(const char *text)
{
    struct safetensors_shown shown;
    size_t used = 0;

    while (used < SAFETENSORS_SHOWN_BYTES && text[used]) {
        const unsigned char byte = (unsigned char)text[used];
        const unsigned char next = (unsigned char)text[used + 1];
        /* U+0080 to U+009F are control characters too; their first byte is 0xc2. */
        const bool control = byte < 0x20 || byte == 0x7f;
        const bool control_pair = byte == 0xc2 && next >= 0x80 && next < 0xa0;

        shown.text[used++] = control || control_pair ? '?' : (char)byte;
        if (control_pair)
            shown.text[used++] = '?';
    }
    if (text[used]) {
        /* Cut before a character, not inside one. */
        while (used > 0 && ((unsigned char)text[used] & 0xc0) == 0x80)
            used--;
        memcpy(shown.text + used, "…", 3);
        used += 3;
    }
    shown.text[used] = 0;
    return shown;
}

enum fire_status safetensors_damaged(const struct safetensors_file *file, const char *tensor,
                                     struct fire_error *error, const char *format, ...)
{
    char detail[FIRE_ERROR_MESSAGE_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(detail, sizeof(detail), format, arguments);
    va_end(arguments);
    if (tensor)
        return fire_fail(error, FIRE_BAD_REQUEST, safetensors_shown(tensor).text,
                         "%s: tensor '%s' %s", safetensors_shown(file->path).text,
                         safetensors_shown(tensor).text, detail);
    return fire_fail(error, FIRE_BAD_REQUEST, safetensors_shown(file->path).text, "%s: %s",
                     safetensors_shown(file->path).text, detail);
}

enum fire_status safetensors_prefix_check(const struct safetensors_file *file,
                                          uint64_t *header_bytes, struct fire_error *error)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < SAFETENSORS_PREFIX_BYTES; i++)
        bytes |= (uint64_t)file->bytes[i] << (8 * i);
    if (bytes > SAFETENSORS_HEADER_BYTES_MAX)
        return safetensors_damaged(file, NULL, error,
                                   "its header claims %llu bytes, over the limit of %u; this is no "
                                   "safetensors file, or its start is damaged: convert it or fetch "
                                   "it again",
                                   (unsigned long long)bytes, SAFETENSORS_HEADER_BYTES_MAX);
    if (bytes < 2)
        return safetensors_damaged(file, NULL, error,
                                   "its header claims %llu bytes, but the smallest is 2; this is "
                                   "no safetensors file: convert it or fetch it again",
                                   (unsigned long long)bytes);
    *header_bytes = bytes;
    return FIRE_OK;
}

enum fire_status safetensors_dtype_bytes(const struct safetensors_file *file,
                                         struct safetensors_entry *entry, uint64_t elements,
                                         uint64_t *bytes, struct fire_error *error)
{
    uint64_t bits;
    size_t which = 0;

    while (which < sizeof(dtypes) / sizeof(dtypes[0]) &&
           strcmp(dtypes[which].name, entry->dtype_name) != 0)
        which++;
    if (which == sizeof(dtypes) / sizeof(dtypes[0]))
        return safetensors_damaged(file, entry->name, error,
                                   "has the unknown dtype '%s'; convert it to a dtype of the "
                                   "safetensors format, such as F32 or BF16",
                                   safetensors_shown(entry->dtype_name).text);
    entry->floating = dtypes[which].floating;
    entry->dtype = dtypes[which].dtype;
    if (__builtin_mul_overflow(elements, (uint64_t)dtypes[which].bits, &bits))
        return safetensors_damaged(file, entry->name, error,
                                   "has a shape whose size overflows 64 bits; correct its shape");
    if (bits % 8)
        return safetensors_damaged(file, entry->name, error,
                                   "has %llu bits of %s, which is not a whole number of bytes; "
                                   "correct its shape",
                                   (unsigned long long)bits, entry->dtype_name);
    *bytes = bits / 8;
    return FIRE_OK;
}

static enum fire_status shape_parse(const struct safetensors_file *file, json_t *shape,
                                    struct safetensors_entry *entry, uint64_t *elements,
                                    struct fire_error *error)
{
    const size_t axes = json_array_size(shape);

    if (!json_is_array(shape))
        return safetensors_damaged(file, entry->name, error,
                                   "has no 'shape' list; save it again as safetensors");
    *elements = 1;
    entry->too_many_axes = axes > FIRE_AXES_MAX;
    entry->shape.axes = entry->too_many_axes ? 0 : (uint32_t)axes;
    for (size_t i = 0; i < axes; i++) {
        json_t *size = json_array_get(shape, i);

        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return safetensors_damaged(file, entry->name, error,
                                       "has a shape whose axis %zu is no non-negative integer; "
                                       "correct its shape",
                                       i);
        if (!entry->too_many_axes)
            entry->shape.size[i] = (uint64_t)json_integer_value(size);
        if (__builtin_mul_overflow(*elements, (uint64_t)json_integer_value(size), elements))
            return safetensors_damaged(file, entry->name, error,
                                       "has a shape whose size overflows 64 bits; correct its "
                                       "shape");
    }
    return FIRE_OK;
}

static enum fire_status offsets_parse(const struct safetensors_file *file, json_t *offsets,
                                      struct claim *claim, struct fire_error *error)
{
    json_t *begin = json_array_get(offsets, 0);
    json_t *end = json_array_get(offsets, 1);

    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < 0)
        return safetensors_damaged(file, claim->entry.name, error,
                                   "has 'data_offsets' that are not two non-negative integers; "
                                   "save it again as safetensors");
    claim->begin = (uint64_t)json_integer_value(begin);
    claim->end = (uint64_t)json_integer_value(end);
    if (claim->begin > claim->end)
        return safetensors_damaged(file, claim->entry.name, error,
                                   "begins at byte %llu but ends before it, at %llu; the header "
                                   "is damaged: fetch or save the file again",
                                   (unsigned long long)claim->begin,
                                   (unsigned long long)claim->end);
    return FIRE_OK;
}

/* A key we do not know might change what the bytes mean, so it is no detail to skip. */
static enum fire_status keys_check(const struct safetensors_file *file, const char *name,
                                   json_t *info, struct fire_error *error)
{
    const char *key;
    json_t *value;

    json_object_foreach(info, key, value)
    {
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
            strcmp(key, "data_offsets") != 0)
            return safetensors_damaged(file, name, error,
                                       "has the unknown key '%s'; only dtype, shape and "
                                       "data_offsets are known: save it again as safetensors",
                                       safetensors_shown(key).text);
    }
    return FIRE_OK;
}

/* `claim->entry.name` is in place; fills the rest but the pointers. */
static enum fire_status claim_parse(const struct safetensors_file *file, json_t *info,
                                    struct claim *claim, struct fire_error *error)
{
    struct safetensors_entry *entry = &claim->entry;
    json_t *dtype = json_object_get(info, "dtype");
    uint64_t elements = 0;
    enum fire_status status;

    if (!json_is_object(info))
        return safetensors_damaged(file, entry->name, error,
                                   "is described by no JSON object; save it again as safetensors");
    status = keys_check(file, entry->name, info, error);
    if (status != FIRE_OK)
        return status;
    /* A zero inside would hide what follows it. */
    if (!json_is_string(dtype) || strlen(json_string_value(dtype)) != json_string_length(dtype))
        return safetensors_damaged(file, entry->name, error,
                                   "has no 'dtype' string; save it again as safetensors");
    /* A name cut here is longer than any we know, so it stays unknown. */
    snprintf(entry->dtype_name, sizeof(entry->dtype_name), "%s", json_string_value(dtype));
    status = shape_parse(file, json_object_get(info, "shape"), entry, &elements, error);
    if (status != FIRE_OK)
        return status;
    status = safetensors_dtype_bytes(file, entry, elements, &entry->bytes, error);
    if (status != FIRE_OK)
        return status;
    status = offsets_parse(file, json_object_get(info, "data_offsets"), claim, error);
    if (status != FIRE_OK)
        return status;
    if (entry->bytes != claim->end - claim->begin)
        return safetensors_damaged(file, entry->name, error,
                                   "has %llu bytes between its offsets, but its shape in %s needs "
                                   "%llu; the header is damaged: fetch or save the file again",
                                   (unsigned long long)(claim->end - claim->begin),
                                   entry->dtype_name, (unsigned long long)entry->bytes);
    return FIRE_OK;
}

static enum fire_status metadata_check(const struct safetensors_file *file, json_t *metadata,
                                       struct fire_error *error)
{
    const char *key;
    json_t *value;

    if (!json_is_object(metadata))
        return safetensors_damaged(file, NULL, error,
                                   "'" METADATA_KEY "' is no JSON object; save the file again "
                                   "with a map of strings");
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return safetensors_damaged(file, NULL, error,
                                       "'" METADATA_KEY "' has a value for '%s' that is no "
                                       "string; save the file again with a map of strings",
                                       safetensors_shown(key).text);
    }
    return FIRE_OK;
}

static int claim_order(const void *left, const void *right)
{
    const struct claim *a = left;
    const struct claim *b = right;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    /* Empty tensors at one place: the header's order, which is that of their names' storage. */
    return a->entry.name < b->entry.name ? -1 : a->entry.name > b->entry.name;
}

/* Sorted claims must cover the data once, from its first byte to its last. */
static enum fire_status claims_tile(const struct safetensors_file *file, struct claim *claims,
                                    size_t count, struct fire_error *error)
{
    const uint64_t data_bytes = file->size - file->data_start;
    uint64_t reached = 0;

    for (size_t i = 0; i < count; i++) {
        struct claim *claim = &claims[i];

        if (claim->begin < reached)
            return safetensors_damaged(file, claim->entry.name, error,
                                       "overlaps another: it begins at byte %llu of the data, the "
                                       "one before it ends at %llu; the header is damaged: fetch "
                                       "or save the file again",
                                       (unsigned long long)claim->begin,
                                       (unsigned long long)reached);
        if (claim->begin > reached)
            return safetensors_damaged(file, claim->entry.name, error,
                                       "leaves a hole: it begins at byte %llu of the data, the one "
                                       "before it ends at %llu; the header is damaged: fetch or "
                                       "save the file again",
                                       (unsigned long long)claim->begin,
                                       (unsigned long long)reached);
        if (claim->end > data_bytes)
            return safetensors_damaged(file, claim->entry.name, error,
                                       "ends at byte %llu of the data, but the file holds only "
                                       "%llu; it is truncated: fetch or save it again",
                                       (unsigned long long)claim->end,
                                       (unsigned long long)data_bytes);
        reached = claim->end;
    }
    if (reached != data_bytes)
        return safetensors_damaged(file, NULL, error,
                                   "%llu bytes after the last tensor belong to none; the file is "
                                   "damaged: fetch or save it again",
                                   (unsigned long long)(data_bytes - reached));
    return FIRE_OK;
}

static enum fire_status header_json(struct safetensors_file *file, json_t **root,
                                    struct fire_error *error)
{
    uint64_t header_bytes = 0;
    enum fire_status status;

    if (file->size < SAFETENSORS_PREFIX_BYTES)
        return safetensors_damaged(file, NULL, error,
                                   "%llu bytes are too few for a safetensors file; it is "
                                   "truncated: fetch or save it again",
                                   (unsigned long long)file->size);
    status = safetensors_prefix_check(file, &header_bytes, error);
    if (status != FIRE_OK)
        return status;
    if (header_bytes > file->size - SAFETENSORS_PREFIX_BYTES)
        return safetensors_damaged(file, NULL, error,
                                   "its header of %llu bytes runs past the end of the file, which "
                                   "has %llu bytes; it is truncated: fetch or save it again",
                                   (unsigned long long)header_bytes,
                                   (unsigned long long)file->size);
    if (file->bytes[SAFETENSORS_PREFIX_BYTES] != '{')
        return safetensors_damaged(file, NULL, error,
                                   "its header does not begin with '{'; this is no safetensors "
                                   "file: convert it or fetch it again");
    file->data_start = SAFETENSORS_PREFIX_BYTES + header_bytes;
    return safetensors_json_load(file, file->bytes + SAFETENSORS_PREFIX_BYTES, (size_t)header_bytes,
                                 JSON_ALLOW_NUL, root, error);
}

/* Copies every name into `file->names` and checks every claim by itself. */
static enum fire_status claims_parse(struct safetensors_file *file, uint32_t file_index,
                                     json_t *root, struct claim *claims, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;
    char *name = file->names;
    size_t count = 0;
    const char *key;
    json_t *value;

    json_object_foreach(root, key, value)
    {
        if (strcmp(key, METADATA_KEY) == 0) {
            status = metadata_check(file, value, error);
        } else {
            claims[count] = (struct claim){ .entry = { .name = name, .file_index = file_index } };
            name = stpcpy(name, key) + 1;
            status = claim_parse(file, value, &claims[count++], error);
        }
        if (status != FIRE_OK)
            return status;
    }
    return FIRE_OK;
}

static enum fire_status entries_append(struct safetensors *set, const struct safetensors_file *file,
                                       const struct claim *claims, size_t count,
                                       struct fire_error *error)
{
    const size_t total = set->entry_count + count;
    struct safetensors_entry *entries = realloc(set->entries, (total + 1) * sizeof(*entries));

    if (!entries)
        return fire_fail_memory(error, (total + 1) * sizeof(*entries));
    set->entries = entries;
    for (size_t i = 0; i < count; i++) {
        struct safetensors_entry *entry = &entries[set->entry_count++];

        *entry = claims[i].entry;
        entry->file_offset = file->data_start + claims[i].begin;
        entry->data = file->bytes + entry->file_offset;
    }
    return FIRE_OK;
}

enum fire_status safetensors_header_read(struct safetensors *set, uint32_t file_index,
                                         struct fire_error *error)
{
    struct safetensors_file *file = &set->files[file_index];
    struct claim *claims = NULL;
    json_t *root = NULL;
    size_t names_bytes = 1;
    size_t count = 0;
    const char *key;
    json_t *value;
    enum fire_status status = header_json(file, &root, error);

    if (status != FIRE_OK)
        goto done;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, METADATA_KEY) != 0) {
            names_bytes += strlen(key) + 1;
            count++;
        }
    }
    file->names = malloc(names_bytes);
    claims = calloc(count + 1, sizeof(*claims));
    if (!file->names || !claims) {
        status = fire_fail_memory(error, names_bytes + (count + 1) * sizeof(*claims));
        goto done;
    }
    status = claims_parse(file, file_index, root, claims, error);
    if (status != FIRE_OK)
        goto done;
    qsort(claims, count, sizeof(*claims), claim_order);
    status = claims_tile(file, claims, count, error);
    if (status != FIRE_OK)
        goto done;
    status = entries_append(set, file, claims, count, error);

done:
    free(claims);
    json_decref(root);
    return status;
}
