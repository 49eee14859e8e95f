/* safetensors_writer: a set, some of its tensors changed, becomes files again.
 *
 * Headers are copied byte for byte, so every tensor keeps its place and may be written in any
 * order. Nothing has its final name before everything is on disk; the index comes last, so that
 * whoever sees it sees its shards. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "safetensors_internal.h"

struct safetensors_writer {
    const struct safetensors *set;
    struct safetensors_target target;
    struct safetensors_output *outputs; /* one a file of the set, then one for the index */
    uint32_t output_count;
    bool *written; /* by entry */
    size_t written_count;
    void **waiting; /* a stream's entries that came before their turn; by entry, owned */
    size_t next;    /* the entry a stream needs next */
    bool committed;
};

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
    const struct safetensors_target *target = &writer->target;
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
    if (!writer) {
        fire_fail_memory(error, sizeof(*writer));
        return FIRE_NO_MEMORY;
    }
    writer->set = set;
    writer->target = SAFETENSORS_TARGET_NONE;
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
    status = set->directory ? safetensors_target_directory(&(*writer)->target, path, error)
                            : safetensors_target_file(&(*writer)->target, path, error);
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
    safetensors_target_release(&writer->target);
    if (writer->waiting)
        for (size_t i = 0; i < writer->set->entry_count; i++)
            free(writer->waiting[i]);
    free(writer->waiting);
    free(writer->written);
    free(writer->outputs);
    free(writer);
}
