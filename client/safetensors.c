/* safetensors: files and directories become one set of entries.
 *
 * Regular files are mapped and never copied; a pipe is read whole. Whatever was opened belongs to
 * the set from the moment it exists, so every failure ends in safetensors_close(). */
#define _GNU_SOURCE
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "safetensors_internal.h"

#define STREAM_BYTES_FIRST (1u << 20)

static const char *io_advice(int reason)
{
    switch (reason) {
    case ENOENT: return "check the path, and that its directory exists";
    case EACCES:
    case EPERM:
    case EROFS: return "choose a place you may use, or change its permissions";
    case ENOSPC:
    case EDQUOT: return "free some space or choose another disk";
    case EFBIG: return "raise the file size limit (ulimit -f) or choose another file system";
    case EPIPE: return "the program reading the output has ended: see why";
    case ENOTDIR: return "a part of the path is no directory: check the path";
    case EISDIR: return "give the name of a file inside it";
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    case ENOMEM: return "free memory or raise its limit (ulimit -v)";
    default: return "check the disk and try again";
    }
}

enum fire_status safetensors_io_failed(const char *verb, const char *path, int reason,
                                       struct fire_error *error)
{
    const char *words = strerrordesc_np(reason);

    return fire_fail(error, FIRE_IO, safetensors_shown(path).text, "cannot %s %s: %s; %s", verb,
                     safetensors_shown(path).text, words ? words : "unknown error",
                     io_advice(reason));
}

bool safetensors_same_file(const struct safetensors_identity *identity, const struct stat *other)
{
    return identity->known && identity->device == other->st_dev && identity->inode == other->st_ino;
}

static struct safetensors_identity identity_of(const struct stat *about)
{
    return (struct safetensors_identity){ true, about->st_dev, about->st_ino, about->st_size,
                                          about->st_mtim };
}

/* Reads at most `count` bytes, fewer only at the end; -1 and errno on failure. */
static ssize_t read_fully(int descriptor, uint8_t *bytes, size_t count)
{
    size_t used = 0;

    while (used < count) {
        const ssize_t got = read(descriptor, bytes + used, count - used);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        used += (size_t)got;
    }
    return (ssize_t)used;
}

/* A pipe: its size is unknown, so the buffer doubles. The prefix is checked as soon as it is there:
 * a stream of something else is refused before it fills memory. */
static enum fire_status file_read_stream(struct safetensors_file *file, int descriptor,
                                         struct fire_error *error)
{
    size_t capacity = STREAM_BYTES_FIRST;
    uint64_t header_bytes;

    file->storage = SAFETENSORS_HEAP;
    for (;;) {
        uint8_t *grown = realloc((void *)file->bytes, capacity);
        enum fire_status status;
        ssize_t got;

        if (!grown)
            return fire_fail_memory(error, capacity);
        file->bytes = grown;
        got = read_fully(descriptor, grown + file->size, capacity - file->size);
        if (got < 0)
            return safetensors_io_failed("read", file->path, errno, error);
        file->size += (uint64_t)got;
        if (file->size < capacity)
            return FIRE_OK;
        status = safetensors_prefix_check(file, &header_bytes, error);
        if (status != FIRE_OK)
            return status;
        if (capacity >= SAFETENSORS_STREAM_BYTES_MAX)
            return safetensors_damaged(file, NULL, error,
                                       "more than %llu bytes came from a stream; give a file name",
                                       SAFETENSORS_STREAM_BYTES_MAX);
        capacity *= 2;
    }
}

static enum fire_status file_map(struct safetensors_file *file, int descriptor, uint64_t size,
                                 struct fire_error *error)
{
    void *bytes;

    if (size == 0) /* nothing to map; the header check refuses it by size */
        return FIRE_OK;
    bytes = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes == MAP_FAILED)
        return safetensors_io_failed("map", file->path, errno, error);
    file->bytes = bytes;
    file->size = size;
    file->storage = SAFETENSORS_MAPPED;
    return FIRE_OK;
}

/* Bytes of an open descriptor; its `path` and identity are set. */
static enum fire_status file_load(struct safetensors_file *file, int descriptor,
                                  struct fire_error *error)
{
    struct stat about;

    if (fstat(descriptor, &about) != 0)
        return safetensors_io_failed("examine", file->path, errno, error);
    file->identity = identity_of(&about);
    if (S_ISDIR(about.st_mode))
        return safetensors_io_failed("read", file->path, EISDIR, error);
    /* Standard input may be a file somebody has read part of; only the rest is meant then. */
    if (S_ISREG(about.st_mode) && lseek(descriptor, 0, SEEK_CUR) == 0)
        return file_map(file, descriptor, (uint64_t)about.st_size, error);
    return file_read_stream(file, descriptor, error);
}

static enum fire_status set_open_file(struct safetensors *set, int directory, const char *name,
                                      uint32_t file_index, struct fire_error *error)
{
    struct safetensors_file *file = &set->files[file_index];
    enum fire_status status;
    /* A pipe in the place of a shard must not hang us; a pipe named by the user may. */
    const int wait = directory == AT_FDCWD ? 0 : O_NONBLOCK;
    const int descriptor = openat(directory, name, O_RDONLY | O_CLOEXEC | wait);

    if (descriptor < 0)
        return safetensors_io_failed("open", file->path, errno, error);
    status = file_load(file, descriptor, error);
    close(descriptor);
    if (status != FIRE_OK)
        return status;
    return safetensors_header_read(set, file_index, error);
}

static int entry_name_order(const void *left, const void *right)
{
    const struct safetensors_entry *const *a = left;
    const struct safetensors_entry *const *b = right;

    return strcmp((*a)->name, (*b)->name);
}

/* Every entry is in place: builds the order by name and refuses a name in two shards. */
static enum fire_status set_finish(struct safetensors *set, struct fire_error *error)
{
    const size_t each = sizeof(void *);

    set->by_name = calloc(set->entry_count + 1, each);
    if (!set->by_name)
        return fire_fail_memory(error, (set->entry_count + 1) * each);
    for (size_t i = 0; i < set->entry_count; i++)
        set->by_name[i] = &set->entries[i];
    qsort(set->by_name, set->entry_count, each, entry_name_order);
    for (size_t i = 1; i < set->entry_count; i++) {
        const struct safetensors_entry *one = set->by_name[i - 1];
        const struct safetensors_entry *other = set->by_name[i];

        if (strcmp(one->name, other->name) == 0)
            return safetensors_damaged(&set->files[one->file_index], one->name, error,
                                       "is also in %s; a checkpoint has each name once: remove "
                                       "one of the two",
                                       safetensors_shown(set->files[other->file_index].path).text);
    }
    return FIRE_OK;
}

static enum fire_status set_allocate(struct safetensors **set, uint32_t file_count,
                                     struct fire_error *error)
{
    const size_t bytes = file_count * sizeof(struct safetensors_file);

    FIRE_ASSERT(file_count > 0);
    *set = calloc(1, sizeof(**set));
    if (*set)
        (*set)->files = calloc(file_count, sizeof(struct safetensors_file));
    if (!*set || !(*set)->files) {
        fire_fail_memory(error, sizeof(**set) + bytes);
        return FIRE_NO_MEMORY;
    }
    (*set)->file_count = file_count;
    return FIRE_OK;
}

static enum fire_status text_copy(const char *text, char **copy, struct fire_error *error)
{
    *copy = strdup(text);
    return *copy ? FIRE_OK : fire_fail_memory(error, strlen(text) + 1);
}

/* One file by name, or standard input. */
static enum fire_status set_open_single(const char *path, struct safetensors **set,
                                        struct fire_error *error)
{
    const bool standard_input = strcmp(path, "-") == 0;
    enum fire_status status = set_allocate(set, 1, error);

    if (status != FIRE_OK)
        return status;
    status = text_copy(standard_input ? "standard input" : path, &(*set)->files[0].path, error);
    if (status != FIRE_OK)
        return status;
    if (!standard_input)
        return set_open_file(*set, AT_FDCWD, path, 0, error);
    status = file_load(&(*set)->files[0], STDIN_FILENO, error);
    if (status != FIRE_OK)
        return status;
    return safetensors_header_read(*set, 0, error);
}

/* A shard is a plain name in the directory of its index; anything else could point anywhere. */
static enum fire_status shard_name_check(const struct safetensors_file *index, const char *tensor,
                                         json_t *shard, struct fire_error *error)
{
    const char *name = json_string_value(shard);

    if (!name)
        return safetensors_damaged(index, tensor, error,
                                   "has no shard's file name as its value; correct the index");
    if (name[0] == 0 || strcmp(name, ".") == 0 || strchr(name, '/') || strstr(name, ".."))
        return safetensors_damaged(index, tensor, error,
                                   "is said to be in '%s', which is no plain file name; shards "
                                   "must be beside their index, without '/' or '..'",
                                   safetensors_shown(name).text);
    return FIRE_OK;
}

static int text_order(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The names of the shards in `weight_map`, sorted, each once; they stay the map's. */
static enum fire_status shards_list(const struct safetensors_file *index, json_t *weight_map,
                                    const char ***shards, uint32_t *shard_count,
                                    struct fire_error *error)
{
    const size_t size = json_object_size(weight_map);
    const char *tensor;
    json_t *shard;
    size_t count = 0;
    size_t kept = 0;

    if (size == 0)
        return safetensors_damaged(index, NULL, error,
                                   "its weight_map names no tensor; it is not the index of a "
                                   "checkpoint: write it again");
    *shards = calloc(size, sizeof(**shards));
    if (!*shards)
        return fire_fail_memory(error, size * sizeof(**shards));
    json_object_foreach(weight_map, tensor, shard)
    {
        const enum fire_status status = shard_name_check(index, tensor, shard, error);

        if (status != FIRE_OK)
            return status;
        (*shards)[count++] = json_string_value(shard);
    }
    qsort(*shards, count, sizeof(**shards), text_order);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp((*shards)[i], (*shards)[kept - 1]) != 0)
            (*shards)[kept++] = (*shards)[i];
    if (kept > SAFETENSORS_SHARDS_MAX)
        return safetensors_damaged(index, NULL, error,
                                   "it names %zu shards, over the limit of %u; use larger shards",
                                   kept, SAFETENSORS_SHARDS_MAX);
    *shard_count = (uint32_t)kept;
    return FIRE_OK;
}

/* The index and the shards must tell the same story, in both directions. */
static enum fire_status index_check(const struct safetensors *set,
                                    const struct safetensors_file *index, json_t *weight_map,
                                    struct fire_error *error)
{
    const char *tensor;
    json_t *shard;

    json_object_foreach(weight_map, tensor, shard)
    {
        const struct safetensors_entry *entry = safetensors_find(set, tensor);

        if (!entry || strcmp(set->files[entry->file_index].shard, json_string_value(shard)) != 0)
            return safetensors_damaged(index, tensor, error,
                                       "is said to be in '%s', but it is not there; correct the "
                                       "index or fetch the shard again",
                                       safetensors_shown(json_string_value(shard)).text);
    }
    for (size_t i = 0; i < set->entry_count; i++) {
        const struct safetensors_entry *entry = &set->entries[i];

        if (!json_object_get(weight_map, entry->name))
            return safetensors_damaged(&set->files[entry->file_index], entry->name, error,
                                       "is not in %s; correct the index or fetch the shard again",
                                       SAFETENSORS_INDEX_NAME);
    }
    return FIRE_OK;
}

static enum fire_status path_join(const char *directory, const char *name, char **path,
                                  struct fire_error *error)
{
    const size_t bytes = strlen(directory) + strlen(name) + 2;
    const size_t length = strlen(directory);
    const char *slash = length && directory[length - 1] == '/' ? "" : "/";

    *path = malloc(bytes);
    if (!*path)
        return fire_fail_memory(error, bytes);
    snprintf(*path, bytes, "%s%s%s", directory, slash, name);
    return FIRE_OK;
}

/* Opens the files `shards` of a directory into a new set. */
static enum fire_status set_open_shards(int directory, const char *path, const char *const *shards,
                                        uint32_t shard_count, struct safetensors **set,
                                        struct fire_error *error)
{
    struct stat about;
    enum fire_status status = set_allocate(set, shard_count, error);

    if (status != FIRE_OK)
        return status;
    if (fstat(directory, &about) != 0)
        return safetensors_io_failed("examine", path, errno, error);
    (*set)->directory = true;
    (*set)->directory_identity = identity_of(&about);
    for (uint32_t i = 0; i < shard_count; i++) {
        struct safetensors_file *file = &(*set)->files[i];

        status = path_join(path, shards[i], &file->path, error);
        if (status == FIRE_OK)
            status = text_copy(shards[i], &file->shard, error);
        if (status == FIRE_OK)
            status = set_open_file(*set, directory, shards[i], i, error);
        if (status != FIRE_OK)
            return status;
    }
    return set_finish(*set, error);
}

/* Reads the index whole and finds its weight_map. */
static enum fire_status index_load(int descriptor, struct safetensors_file *index, json_t **root,
                                   json_t **weight_map, struct fire_error *error)
{
    enum fire_status status;
    struct stat about;
    ssize_t got;

    if (fstat(descriptor, &about) != 0)
        return safetensors_io_failed("examine", index->path, errno, error);
    if (!S_ISREG(about.st_mode) || about.st_size > (off_t)SAFETENSORS_INDEX_BYTES_MAX)
        return safetensors_damaged(index, NULL, error,
                                   "it is no regular file of at most %u bytes; write it again",
                                   SAFETENSORS_INDEX_BYTES_MAX);
    index->storage = SAFETENSORS_HEAP;
    index->bytes = malloc((size_t)about.st_size + 1);
    if (!index->bytes)
        return fire_fail_memory(error, (unsigned long long)about.st_size + 1);
    got = read_fully(descriptor, (uint8_t *)index->bytes, (size_t)about.st_size);
    if (got < 0)
        return safetensors_io_failed("read", index->path, errno, error);
    index->size = (uint64_t)got;
    status = safetensors_json_load(index, index->bytes, (size_t)got, 0, root, error);
    if (status != FIRE_OK)
        return status;
    *weight_map = json_object_get(*root, "weight_map");
    if (!json_is_object(*weight_map))
        return safetensors_damaged(index, NULL, error,
                                   "it has no 'weight_map' object; write or fetch it again");
    return FIRE_OK;
}

static enum fire_status set_open_index(int directory, const char *path, int descriptor,
                                       struct safetensors **set, struct fire_error *error)
{
    struct safetensors_file index = { 0 };
    const char **shards = NULL;
    uint32_t shard_count = 0;
    json_t *weight_map = NULL;
    json_t *root = NULL;
    enum fire_status status = path_join(path, SAFETENSORS_INDEX_NAME, &index.path, error);

    if (status != FIRE_OK)
        goto done;
    status = index_load(descriptor, &index, &root, &weight_map, error);
    if (status != FIRE_OK)
        goto done;
    status = shards_list(&index, weight_map, &shards, &shard_count, error);
    if (status != FIRE_OK)
        goto done;
    status = set_open_shards(directory, path, shards, shard_count, set, error);
    if (status != FIRE_OK)
        goto done;
    status = index_check(*set, &index, weight_map, error);
    if (status != FIRE_OK)
        goto done;
    (*set)->index = (char *)index.bytes; /* the writer copies it */
    (*set)->index_size = (size_t)index.size;
    index.bytes = NULL;

done:
    json_decref(root);
    free(shards);
    free((void *)index.bytes);
    free(index.path);
    return status;
}

static enum fire_status set_open_directory(int directory, const char *path,
                                           struct safetensors **set, struct fire_error *error)
{
    static const char *const single = SAFETENSORS_SINGLE_NAME;
    const int index = openat(directory, SAFETENSORS_INDEX_NAME, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum fire_status status;

    if (index >= 0) {
        status = set_open_index(directory, path, index, set, error);
        close(index);
        return status;
    }
    if (errno != ENOENT)
        return safetensors_io_failed("open the index in", path, errno, error);
    if (faccessat(directory, single, F_OK, 0) != 0)
        return fire_fail(error, FIRE_IO, safetensors_shown(path).text,
                         "%s holds neither " SAFETENSORS_INDEX_NAME " nor " SAFETENSORS_SINGLE_NAME
                         "; give a checkpoint's directory or a .safetensors file",
                         safetensors_shown(path).text);
    return set_open_shards(directory, path, &single, 1, set, error);
}

enum fire_status safetensors_open(const char *path, struct safetensors **set,
                                  struct fire_error *error)
{
    struct stat about;
    enum fire_status status;

    *set = NULL;
    if (strcmp(path, "-") != 0 && stat(path, &about) != 0)
        return safetensors_io_failed("open", path, errno, error);
    if (strcmp(path, "-") != 0 && S_ISDIR(about.st_mode)) {
        const int directory = open(path, O_RDONLY | O_CLOEXEC | O_DIRECTORY);

        if (directory < 0)
            return safetensors_io_failed("open", path, errno, error);
        status = set_open_directory(directory, path, set, error);
        close(directory);
    } else {
        status = set_open_single(path, set, error);
        if (status == FIRE_OK)
            status = set_finish(*set, error);
    }
    if (status != FIRE_OK) {
        safetensors_close(*set);
        *set = NULL;
    }
    return status;
}

enum fire_status safetensors_open_memory(const void *bytes, size_t size, struct safetensors **set,
                                         struct fire_error *error)
{
    enum fire_status status = set_allocate(set, 1, error);

    if (status != FIRE_OK)
        goto done;
    status = text_copy("memory", &(*set)->files[0].path, error);
    if (status != FIRE_OK)
        goto done;
    (*set)->files[0].bytes = bytes;
    (*set)->files[0].size = size;
    status = safetensors_header_read(*set, 0, error);
    if (status != FIRE_OK)
        goto done;
    status = set_finish(*set, error);

done:
    if (status != FIRE_OK) {
        safetensors_close(*set);
        *set = NULL;
    }
    return status;
}

void safetensors_close(struct safetensors *set)
{
    if (!set)
        return;
    for (uint32_t i = 0; i < set->file_count; i++) {
        struct safetensors_file *file = &set->files[i];

        switch (file->storage) {
        case SAFETENSORS_BORROWED: break;
        case SAFETENSORS_MAPPED: munmap((void *)file->bytes, (size_t)file->size); break;
        case SAFETENSORS_HEAP: free((void *)file->bytes); break;
        }
        free(file->path);
        free(file->shard);
        free(file->names);
    }
    free(set->files);
    free(set->entries);
    free(set->by_name);
    free(set->index);
    free(set);
}

enum fire_status safetensors_check_unchanged(const struct safetensors *set,
                                             struct fire_error *error)
{
    for (uint32_t i = 0; i < set->file_count; i++) {
        const struct safetensors_file *file = &set->files[i];
        const struct safetensors_identity *then = &file->identity;
        struct stat now;

        /* One that took the name leaves what is mapped alone. */
        if (file->storage != SAFETENSORS_MAPPED || stat(file->path, &now) != 0 ||
            !safetensors_same_file(then, &now))
            continue;
        if (now.st_size != then->size || now.st_mtim.tv_sec != then->modified.tv_sec ||
            now.st_mtim.tv_nsec != then->modified.tv_nsec)
            return fire_fail(error, FIRE_IO, safetensors_shown(file->path).text,
                             "%s changed while it was read; run again when whoever writes it has "
                             "finished",
                             safetensors_shown(file->path).text);
    }
    return FIRE_OK;
}

size_t safetensors_count(const struct safetensors *set)
{
    return set->entry_count;
}

const struct safetensors_entry *safetensors_at(const struct safetensors *set, size_t index)
{
    FIRE_ASSERT(index < set->entry_count);
    return &set->entries[index];
}

const struct safetensors_entry *safetensors_find(const struct safetensors *set, const char *name)
{
    size_t low = 0;
    size_t high = set->entry_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, set->by_name[middle]->name);

        if (order == 0)
            return set->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

bool safetensors_sharded(const struct safetensors *set)
{
    return set->directory;
}

void safetensors_will_need(const struct safetensors *set, const struct safetensors_entry *entry)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)entry->data / page * page;

    if (entry->bytes == 0 || set->files[entry->file_index].storage != SAFETENSORS_MAPPED)
        return;
    /* A hint: when it cannot be followed, nothing is wrong. */
    (void)madvise((void *)begin, (uintptr_t)entry->data + entry->bytes - begin, MADV_WILLNEED);
}

void safetensors_done_with(const struct safetensors *set, const struct safetensors_entry *entry)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)entry->data + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)entry->data + entry->bytes) / page * page;

    /* Only for the mapping, where a dropped page is read again from the file. In memory of any
     * other kind this call would erase. */
    if (begin >= end || set->files[entry->file_index].storage != SAFETENSORS_MAPPED)
        return;
    (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}
