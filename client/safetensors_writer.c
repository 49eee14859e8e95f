/* safetensors_writer: a set, some of its tensors changed, becomes files again.
 *
 * Headers are copied byte for byte, so every tensor keeps its place and may be written in any
 * order. Nothing has its final name before everything is on disk; the index comes last, so that
 * whoever sees it sees its shards. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "safetensors_internal.h"

/* Where the output goes: a name in a directory, or a stream. */
struct target {
    int directory;        /* -1: none is open */
    char *directory_path; /* for messages; owned */
    char *name;           /* in it; owned; NULL for a stream and for a whole directory */
    bool made;            /* we made the directory */
    bool stream;
};

struct safetensors_writer {
    const struct safetensors *set;
    struct target target;
    struct safetensors_output *outputs; /* one a file of the set, then one for the index */
    uint32_t output_count;
    bool *written; /* by entry */
    size_t written_count;
    void **waiting; /* a stream's entries that came before their turn; by entry, owned */
    size_t next;    /* the entry a stream needs next */
    bool committed;
};

static void target_release(struct target *target)
{
    if (target->directory >= 0)
        close(target->directory);
    free(target->directory_path);
    free(target->name);
}

/* Splits `path` and opens its directory. */
static enum fire_status target_open_parent(struct target *target, const char *path,
                                           struct fire_error *error)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;

    if (name[0] == 0)
        return safetensors_io_failed("write", path, EISDIR, error);
    target->name = strdup(name);
    if (!slash)
        target->directory_path = strdup(".");
    else
        target->directory_path = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!target->name || !target->directory_path)
        return fire_fail_memory(error, strlen(path) + 2);
    target->directory = open(target->directory_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (target->directory < 0)
        return safetensors_io_failed("open the directory", target->directory_path, errno, error);
    return FIRE_OK;
}

/* A single file, given by name. A link is followed: what it points to is replaced, not the link.
 * Devices and pipes cannot be replaced, so they are written to. */
static enum fire_status target_open_file(struct target *target, const char *path,
                                         struct fire_error *error)
{
    struct stat about;
    enum fire_status status;
    char *resolved;

    target->stream = strcmp(path, "-") == 0;
    if (target->stream)
        return FIRE_OK;
    if (stat(path, &about) == 0) {
        if (S_ISDIR(about.st_mode))
            return safetensors_io_failed("write", path, EISDIR, error);
        target->stream = !S_ISREG(about.st_mode);
        if (target->stream)
            return FIRE_OK;
    }
    if (lstat(path, &about) != 0 || !S_ISLNK(about.st_mode))
        return target_open_parent(target, path, error);
    resolved = realpath(path, NULL);
    if (!resolved)
        return safetensors_io_failed("follow the link", path, errno, error);
    status = target_open_parent(target, resolved, error);
    free(resolved);
    return status;
}

static enum fire_status target_open_directory(struct target *target, const char *path,
                                              struct fire_error *error)
{
    if (strcmp(path, "-") == 0)
        return fire_fail(error, FIRE_BAD_REQUEST, "output",
                         "a checkpoint of several files cannot go to standard output; give a "
                         "directory");
    target->directory_path = strdup(path);
    if (!target->directory_path)
        return fire_fail_memory(error, strlen(path) + 1);
    target->made = mkdir(path, 0777) == 0;
    if (!target->made && errno != EEXIST)
        return safetensors_io_failed("make the directory", path, errno, error);
    target->directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (target->directory < 0 && errno == ENOTDIR)
        return fire_fail(error, FIRE_BAD_REQUEST, safetensors_shown(path).text,
                         "%s is a file, but a checkpoint from a directory is written to a "
                         "directory; give a directory",
                         safetensors_shown(path).text);
    if (target->directory < 0)
        return safetensors_io_failed("open the directory", path, errno, error);
    return FIRE_OK;
}

static enum fire_status same_as_input(const char *path, struct fire_error *error)
{
    return fire_fail(error, FIRE_BAD_REQUEST, safetensors_shown(path).text,
                     "the output %s is the input itself; give another name, the input is never "
                     "changed",
                     safetensors_shown(path).text);
}

static bool is_input(const struct safetensors *set, const struct stat *about)
{
    for (uint32_t i = 0; i < set->file_count; i++)
        if (safetensors_same_file(&set->files[i].identity, about))
            return true;
    return false;
}

/* Whatever the output's names lead to, by links of either kind, must not be a file of the input. */
static enum fire_status input_check(const struct safetensors_writer *writer, const char *path,
                                    struct fire_error *error)
{
    const struct safetensors *set = writer->set;
    const struct target *target = &writer->target;
    struct stat about;

    if (target->stream) {
        const bool standard_output = strcmp(path, "-") == 0;
        const int failed = standard_output ? fstat(STDOUT_FILENO, &about) : stat(path, &about);

        /* The same terminal or device may serve both ways. */
        return failed == 0 && S_ISREG(about.st_mode) && is_input(set, &about)
                   ? same_as_input(path, error)
                   : FIRE_OK;
    }
    if (fstat(target->directory, &about) != 0)
        return safetensors_io_failed("examine", target->directory_path, errno, error);
    if (set->directory && safetensors_same_file(&set->directory_identity, &about))
        return same_as_input(path, error);
    for (uint32_t i = 0; i < set->file_count; i++) {
        const char *name = set->directory ? set->files[i].shard : target->name;

        if (fstatat(target->directory, name, &about, 0) == 0 && is_input(set, &about))
            return same_as_input(path, error);
    }
    /* An index left there by another checkpoint would hide ours. */
    if (set->directory && !set->index &&
        faccessat(target->directory, SAFETENSORS_INDEX_NAME, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return fire_fail(error, FIRE_BAD_REQUEST, safetensors_shown(path).text,
                         "%s holds the " SAFETENSORS_INDEX_NAME " of another checkpoint; remove "
                         "it or give an empty directory",
                         safetensors_shown(path).text);
    return FIRE_OK;
}

/* Creates output `index` and writes `count` bytes at its start; `size` is that of the whole. */
static enum fire_status output_start(struct safetensors_writer *writer, uint32_t index,
                                     const char *name, uint64_t size, const void *start,
                                     uint64_t count, struct fire_error *error)
{
    struct safetensors_output *output = &writer->outputs[index];
    const size_t path_bytes = strlen(writer->target.directory_path) + strlen(name) + 2;
    char *path = malloc(path_bytes);
    enum fire_status status;

    if (!path)
        return fire_fail_memory(error, path_bytes);
    snprintf(path, path_bytes, "%s/%s", writer->target.directory_path, name);
    status = safetensors_output_create(output, writer->target.directory, path, name, size, error);
    free(path);
    if (status != FIRE_OK)
        return status;
    return safetensors_output_write(output, 0, start, count, error);
}

static enum fire_status outputs_start(struct safetensors_writer *writer, const char *path,
                                      struct fire_error *error)
{
    const struct safetensors *set = writer->set;
    enum fire_status status = FIRE_OK;

    if (writer->target.stream) {
        status = safetensors_output_stream(&writer->outputs[0], path, error);
        if (status != FIRE_OK)
            return status;
        return safetensors_output_write(&writer->outputs[0], 0, set->files[0].bytes,
                                        set->files[0].data_start, error);
    }
    for (uint32_t i = 0; i < set->file_count && status == FIRE_OK; i++) {
        const struct safetensors_file *file = &set->files[i];
        const char *name = set->directory ? file->shard : writer->target.name;

        status = output_start(writer, i, name, file->size, file->bytes, file->data_start, error);
    }
    if (status == FIRE_OK && set->index)
        status = output_start(writer, set->file_count, SAFETENSORS_INDEX_NAME, set->index_size,
                              set->index, set->index_size, error);
    return status;
}

/* The writer and its arrays, all empty. */
static enum fire_status writer_allocate(const struct safetensors *set,
                                        struct safetensors_writer **out, struct fire_error *error)
{
    const uint32_t output_count = set->file_count + (set->index ? 1 : 0);
    struct safetensors_writer *writer = calloc(1, sizeof(*writer));

    *out = writer;
    if (!writer)
        return fire_fail_memory(error, sizeof(*writer));
    writer->set = set;
    writer->target.directory = -1;
    writer->outputs = calloc(output_count, sizeof(*writer->outputs));
    writer->written = calloc(set->entry_count + 1, sizeof(*writer->written));
    writer->waiting = calloc(set->entry_count + 1, sizeof(*writer->waiting));
    if (!writer->outputs || !writer->written || !writer->waiting)
        return fire_fail_memory(error, output_count * sizeof(*writer->outputs) +
                                           set->entry_count * sizeof(*writer->waiting));
    writer->output_count = output_count;
    for (uint32_t i = 0; i < output_count; i++)
        writer->outputs[i] = SAFETENSORS_OUTPUT_NONE;
    return FIRE_OK;
}

enum fire_status safetensors_writer_open(const struct safetensors *set, const char *path,
                                         struct safetensors_writer **writer,
                                         struct fire_error *error)
{
    enum fire_status status = writer_allocate(set, writer, error);

    if (status != FIRE_OK)
        goto fail;
    status = set->directory ? target_open_directory(&(*writer)->target, path, error)
                            : target_open_file(&(*writer)->target, path, error);
    if (status != FIRE_OK)
        goto fail;
    status = input_check(*writer, path, error);
    if (status != FIRE_OK)
        goto fail;
    status = outputs_start(*writer, path, error);
    if (status != FIRE_OK)
        goto fail;
    return FIRE_OK;

fail:
    safetensors_writer_close(*writer);
    *writer = NULL;
    return status;
}

/* A stream takes entries in file order; one that comes early waits in memory for its turn. */
static enum fire_status stream_write(struct safetensors_writer *writer, size_t index,
                                     const void *bytes, struct fire_error *error)
{
    const struct safetensors *set = writer->set;
    struct safetensors_output *output = &writer->outputs[0];
    enum fire_status status;

    if (index != writer->next) {
        const size_t size = (size_t)set->entries[index].bytes;
        void *copy = malloc(size + 1);

        if (!copy)
            return fire_fail_memory(error, size);
        if (size > 0)
            memcpy(copy, bytes, size);
        writer->waiting[index] = copy;
        return FIRE_OK;
    }
    status = safetensors_output_write(output, 0, bytes, set->entries[index].bytes, error);
    if (status != FIRE_OK)
        return status;
    for (writer->next++; writer->next < set->entry_count; writer->next++) {
        void *waiting = writer->waiting[writer->next];

        if (!waiting)
            break;
        status =
            safetensors_output_write(output, 0, waiting, set->entries[writer->next].bytes, error);
        if (status != FIRE_OK)
            return status;
        writer->waiting[writer->next] = NULL;
        free(waiting);
    }
    return FIRE_OK;
}

enum fire_status safetensors_write(struct safetensors_writer *writer,
                                   const struct safetensors_entry *entry, const void *bytes,
                                   struct fire_error *error)
{
    const struct safetensors *set = writer->set;
    const size_t index =
        ((uintptr_t)entry - (uintptr_t)set->entries) / sizeof(struct safetensors_entry);
    enum fire_status status;

    FIRE_ASSERT(index < set->entry_count);
    FIRE_ASSERT(entry == &set->entries[index]);
    if (writer->written[index])
        return fire_fail(error, FIRE_BAD_REQUEST, safetensors_shown(entry->name).text,
                         "tensor '%s' was written already; each tensor is written once",
                         safetensors_shown(entry->name).text);
    if (writer->target.stream)
        status = stream_write(writer, index, bytes, error);
    else
        status = safetensors_output_write(&writer->outputs[entry->file_index], entry->file_offset,
                                          bytes, entry->bytes, error);
    if (status != FIRE_OK)
        return status;
    writer->written[index] = true;
    writer->written_count++;
    return FIRE_OK;
}

enum fire_status safetensors_copy(struct safetensors_writer *writer,
                                  const struct safetensors_entry *entry, struct fire_error *error)
{
    return safetensors_write(writer, entry, entry->data, error);
}

/* A failure after the first rename may leave files of both kinds; then the message says so. */
static void renamed_note(const struct safetensors_writer *writer, struct fire_error *error)
{
    uint32_t replaced = 0;
    size_t used;

    for (uint32_t i = 0; i < writer->output_count; i++)
        replaced += writer->outputs[i].renamed && writer->outputs[i].replaces;
    if (replaced == 0 || !error)
        return;
    used = strlen(error->message);
    snprintf(error->message + used, sizeof(error->message) - used,
             " (%u of %u files there were already replaced: write that directory again)", replaced,
             writer->output_count);
}

static enum fire_status outputs_publish(struct safetensors_writer *writer, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    for (uint32_t i = 0; i < writer->output_count && status == FIRE_OK; i++)
        status = safetensors_output_sync(&writer->outputs[i], error);
    for (uint32_t i = 0; i < writer->output_count && status == FIRE_OK; i++)
        status = safetensors_output_rename(&writer->outputs[i], error);
    if (status == FIRE_OK && !writer->target.stream)
        status = safetensors_directory_sync(writer->target.directory, writer->target.directory_path,
                                            error);
    return status;
}

enum fire_status safetensors_writer_commit(struct safetensors_writer *writer,
                                           struct fire_error *error)
{
    enum fire_status status;

    if (writer->written_count != writer->set->entry_count) {
        size_t missing = 0;

        while (writer->written[missing])
            missing++;
        return fire_fail(error, FIRE_BAD_REQUEST,
                         safetensors_shown(writer->set->entries[missing].name).text,
                         "tensor '%s' was not written; write or copy every tensor before the "
                         "commit",
                         safetensors_shown(writer->set->entries[missing].name).text);
    }
    status = outputs_publish(writer, error);
    if (status != FIRE_OK) {
        renamed_note(writer, error);
        return status;
    }
    writer->committed = true;
    for (uint32_t i = 0; i < writer->output_count; i++)
        writer->outputs[i].committed = true;
    return FIRE_OK;
}

void safetensors_writer_close(struct safetensors_writer *writer)
{
    if (!writer)
        return;
    for (uint32_t i = 0; i < writer->output_count; i++)
        safetensors_output_release(&writer->outputs[i]);
    if (writer->target.made && !writer->committed)
        rmdir(writer->target.directory_path);
    target_release(&writer->target);
    if (writer->waiting)
        for (size_t i = 0; i < writer->set->entry_count; i++)
            free(writer->waiting[i]);
    free(writer->waiting);
    free(writer->written);
    free(writer->outputs);
    free(writer);
}

/* The description of one tensor whose data begins at `begin`; NULL when memory is out. */
static json_t *entry_json(const struct safetensors_entry *entry, uint64_t begin)
{
    json_t *info = json_object();
    json_t *shape = json_array();
    json_t *offsets = json_array();
    int failed = 0;

    for (uint32_t i = 0; i < entry->shape.axes; i++)
        failed |= json_array_append_new(shape, json_integer((json_int_t)entry->shape.size[i]));
    failed |= json_array_append_new(offsets, json_integer((json_int_t)begin));
    failed |= json_array_append_new(offsets, json_integer((json_int_t)(begin + entry->bytes)));
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
        errno = 0;
        if (json_object_set_new(map, metadata[i], json_string(metadata[i + 1])) == 0)
            continue;
        if (errno == ENOMEM)
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
        errno = 0;
        if (json_object_set_new(root, entries[i].name, info) != 0 && errno == ENOMEM)
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
    json_t *root = json_object();
    char *text = NULL;
    size_t header_bytes;
    enum fire_status status;

    *start = NULL;
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
    struct target target = { .directory = -1 };
    struct safetensors_file file = { .path = (char *)path };
    uint64_t start_bytes = 0;
    uint64_t size;
    char *start = NULL;
    enum fire_status status =
        header_make(&file, entries, count, metadata, &start, &start_bytes, error);

    if (status != FIRE_OK)
        goto done;
    status = target_open_file(&target, path, error);
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
    target_release(&target);
    free(start);
    return status;
}
