/* safetensors_output: where output goes, and one file on its way there.
 *
 * A file is written under a temporary name beside its final one, so that a rename, which is atomic,
 * is all that is left when its bytes are safe. A stream (standard output, a pipe, a device) has no
 * name to give and gets its bytes at once, in order. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "safetensors_internal.h"

#define NAME_TRIES_MAX 100
#define SUFFIX_LETTERS 6
#define FLUSH_BYTES    (8ull << 20) /* dirty bytes after which the disk is set to work */

/* Large tensors go past the page cache: we wait for the disk in the end anyway, and filling fresh
 * pages costs a processor that should compute (up to a sixth of it on a virtual machine). */
#define DIRECT_BYTES_MIN (1ull << 20)
#define DIRECT_PIECE     (8ull << 20)
#define DIRECT_ALIGNMENT 4096ull

void safetensors_target_release(struct safetensors_target *target)
{
    if (target->directory >= 0)
        close(target->directory);
    free(target->directory_path);
    free(target->name);
}

/* Splits `path` and opens its directory. */
static enum fire_status target_open_parent(struct safetensors_target *target, const char *path,
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
enum fire_status safetensors_target_file(struct safetensors_target *target, const char *path,
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

enum fire_status safetensors_target_directory(struct safetensors_target *target, const char *path,
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

static enum fire_status output_failed(const struct safetensors_output *output, const char *verb,
                                      int reason, struct fire_error *error)
{
    return safetensors_io_failed(verb, output->path, reason, error);
}

/* Six random letters and digits over the end of `name`. Should randomness fail, the letters vary by
 * address and try; O_EXCL keeps us from any file that exists. */
static void suffix_choose(char *suffix, uint64_t fallback)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    uint64_t random = 0;

    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != (ssize_t)sizeof(random))
        random = fallback * 0x9e3779b97f4a7c15ull;
    for (int i = 0; i < SUFFIX_LETTERS; i++) {
        suffix[i] = letters[random % (sizeof(letters) - 1)];
        random /= sizeof(letters) - 1;
    }
}

/* Not mkstemp: the new file shall have the permissions any new file would get, not 0600. */
static enum fire_status temporary_open(struct safetensors_output *output, struct fire_error *error)
{
    const size_t bytes = strlen(output->name) + sizeof("..fired-XXXXXX");
    char *temporary = malloc(bytes);

    if (!temporary)
        return fire_fail_memory(error, bytes);
    snprintf(temporary, bytes, ".%s.fired-XXXXXX", output->name);
    for (uint64_t try = 1; output->file < 0 && try <= NAME_TRIES_MAX; try++) {
        suffix_choose(temporary + bytes - 1 - SUFFIX_LETTERS, (uintptr_t)temporary + try);
        output->file = openat(output->directory, temporary,
                              O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (output->file < 0 && errno != EEXIST && errno != EINTR)
            break;
    }
    if (output->file < 0) {
        const int reason = errno;

        free(temporary);
        return output_failed(output, "create a temporary file for", reason, error);
    }
    output->owns_file = true;
    output->temporary = temporary;
    return FIRE_OK;
}

/* Takes the space now, so that a full disk is found before hours of work, not after. */
static enum fire_status space_reserve(struct safetensors_output *output, uint64_t size,
                                      struct fire_error *error)
{
    int result;

    if (size == 0)
        return FIRE_OK;
    do {
        result = fallocate(output->file, 0, 0, (off_t)size);
    } while (result != 0 && errno == EINTR);
    if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        return output_failed(output, "reserve space for", errno, error);
    return FIRE_OK;
}

enum fire_status safetensors_output_create(struct safetensors_output *output, int directory,
                                           const char *path, const char *name, uint64_t size,
                                           struct fire_error *error)
{
    struct stat about;
    enum fire_status status;

    *output = SAFETENSORS_OUTPUT_NONE;
    output->directory = directory;
    output->path = strdup(path);
    output->name = strdup(name);
    if (!output->path || !output->name)
        return fire_fail_memory(error, strlen(path) + strlen(name) + 2);
    if (fstatat(directory, name, &about, AT_SYMLINK_NOFOLLOW) == 0) {
        if (!S_ISREG(about.st_mode) && !S_ISLNK(about.st_mode))
            return output_failed(output, "replace", S_ISDIR(about.st_mode) ? EISDIR : EPERM, error);
        output->replaces = true;
    } else if (errno != ENOENT) {
        return output_failed(output, "examine", errno, error);
    }
    status = temporary_open(output, error);
    if (status != FIRE_OK)
        return status;
    /* A file that takes another's place takes its permissions too. */
    if (output->replaces && S_ISREG(about.st_mode) &&
        fchmod(output->file, about.st_mode & 0777) != 0)
        return output_failed(output, "set the permissions of", errno, error);
    return space_reserve(output, size, error);
}

enum fire_status safetensors_output_stream(struct safetensors_output *output, const char *path,
                                           struct fire_error *error)
{
    const bool standard_output = strcmp(path, "-") == 0;

    *output = SAFETENSORS_OUTPUT_NONE;
    output->path = strdup(standard_output ? "standard output" : path);
    if (!output->path)
        return fire_fail_memory(error, strlen(path) + 1);
    if (standard_output) {
        output->file = STDOUT_FILENO;
        return FIRE_OK;
    }
    output->file = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (output->file < 0)
        return output_failed(output, "open", errno, error);
    output->owns_file = true;
    return FIRE_OK;
}

/* Writes whole blocks to `direct` and says how many bytes that were. */
static uint64_t pieces_write(int direct, uint64_t offset, const uint8_t *bytes, uint64_t count,
                             void *aligned)
{
    uint64_t done = 0;

    while (done < count) {
        const uint64_t piece = count - done < DIRECT_PIECE ? count - done : DIRECT_PIECE;
        ssize_t written;

        memcpy(aligned, bytes + done, piece);
        do {
            written = pwrite(direct, aligned, piece, (off_t)(offset + done));
        } while (written < 0 && errno == EINTR);
        if (written <= 0)
            break;
        done += (uint64_t)written;
        if ((uint64_t)written != piece)
            break;
    }
    return done;
}

/* Writes past the page cache and says how many bytes that were. Where it does not work nothing is
 * lost: the page cache takes the rest, and a fault of the disk comes up there again. Nothing stays
 * open or allocated: a checkpoint may have hundreds of files. */
static uint64_t direct_write(struct safetensors_output *output, uint64_t offset,
                             const uint8_t *bytes, uint64_t count)
{
    const int direct =
        openat(output->directory, output->temporary, O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
    void *aligned = direct >= 0 ? aligned_alloc(DIRECT_ALIGNMENT, DIRECT_PIECE) : NULL;
    uint64_t done = 0;

    count -= count % DIRECT_ALIGNMENT;
    if (aligned)
        done = pieces_write(direct, offset, bytes, count, aligned);
    output->cached = done != count;
    free(aligned);
    if (direct >= 0)
        close(direct);
    return done;
}

static enum fire_status cached_write(struct safetensors_output *output, uint64_t offset,
                                     const uint8_t *next, uint64_t count, struct fire_error *error)
{
    output->unsynced_bytes += count;
    while (count > 0) {
        const ssize_t written = output->name
                                    ? pwrite(output->file, next, (size_t)count, (off_t)offset)
                                    : write(output->file, next, (size_t)count);

        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return output_failed(output, "write", written < 0 ? errno : EIO, error);
        next += written;
        offset += (uint64_t)written;
        count -= (uint64_t)written;
    }
    /* The disk works while we compute, and the flush at the end finds little left to do. A hint;
     * real errors come out of the flush. */
    if (output->name && output->unsynced_bytes >= FLUSH_BYTES) {
        (void)sync_file_range(output->file, 0, 0, SYNC_FILE_RANGE_WRITE);
        output->unsynced_bytes = 0;
    }
    return FIRE_OK;
}

enum fire_status safetensors_output_write(struct safetensors_output *output, uint64_t offset,
                                          const void *bytes, uint64_t count,
                                          struct fire_error *error)
{
    const uint8_t *next = bytes;

    if (output->name && !output->cached && count >= DIRECT_BYTES_MIN) {
        const uint64_t head = (DIRECT_ALIGNMENT - offset % DIRECT_ALIGNMENT) % DIRECT_ALIGNMENT;
        const enum fire_status status = cached_write(output, offset, next, head, error);
        uint64_t done;

        if (status != FIRE_OK)
            return status;
        done = head + direct_write(output, offset + head, next + head, count - head);
        offset += done;
        next += done;
        count -= done;
    }
    return cached_write(output, offset, next, count, error);
}

enum fire_status safetensors_output_sync(struct safetensors_output *output,
                                         struct fire_error *error)
{
    if (!output->name)
        return FIRE_OK;
    while (fdatasync(output->file) != 0)
        if (errno != EINTR)
            return output_failed(output, "flush", errno, error);
    return FIRE_OK;
}

enum fire_status safetensors_output_rename(struct safetensors_output *output,
                                           struct fire_error *error)
{
    if (!output->name)
        return FIRE_OK;
    if (renameat(output->directory, output->temporary, output->directory, output->name) != 0)
        return output_failed(output, "rename the finished file to", errno, error);
    output->renamed = true;
    return FIRE_OK;
}

enum fire_status safetensors_directory_sync(int directory, const char *path,
                                            struct fire_error *error)
{
    /* Some file systems have nothing to flush for a directory and say EINVAL. */
    while (fsync(directory) != 0)
        if (errno != EINTR)
            return errno == EINVAL ? FIRE_OK : safetensors_io_failed("flush", path, errno, error);
    return FIRE_OK;
}

void safetensors_output_release(struct safetensors_output *output)
{
    if (output->file >= 0 && output->owns_file)
        close(output->file);
    if (output->temporary && !output->renamed)
        unlinkat(output->directory, output->temporary, 0);
    if (output->renamed && !output->committed && !output->replaces)
        unlinkat(output->directory, output->name, 0);
    free(output->path);
    free(output->name);
    free(output->temporary);
    *output = SAFETENSORS_OUTPUT_NONE;
}
