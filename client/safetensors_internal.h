/* safetensors_internal: what the reader and the writer of safetensors share.
 *
 * Reading order: safetensors_header.c (one header -> entries, every check), safetensors_json.c (its
 * JSON), safetensors.c (files and directories -> a set), safetensors_output.c (one file, written
 * under a temporary name), safetensors_writer.c (a set -> files), safetensors_save.c (a new file).
 * Nothing outside these files includes this header. */
#ifndef FIRE_SAFETENSORS_INTERNAL_H
#define FIRE_SAFETENSORS_INTERNAL_H

#include <jansson.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "safetensors.h"

#define SAFETENSORS_PREFIX_BYTES     8u         /* the header's size, little-endian */
#define SAFETENSORS_HEADER_BYTES_MAX 100000000u /* as in the reference implementation */
#define SAFETENSORS_INDEX_BYTES_MAX  100000000u
#define SAFETENSORS_STREAM_BYTES_MAX (1ull << 40) /* from a pipe, held in memory */
#define SAFETENSORS_SHARDS_MAX       10000u
#define SAFETENSORS_SHOWN_BYTES      120u

#define SAFETENSORS_INDEX_NAME  "model.safetensors.index.json"
#define SAFETENSORS_SINGLE_NAME "model.safetensors"

/* Who owns a file's bytes, and how they are given back. */
enum safetensors_storage {
    SAFETENSORS_BORROWED, /* the caller's memory */
    SAFETENSORS_MAPPED,   /* munmap */
    SAFETENSORS_HEAP,     /* free */
};

/* Which file this is, whatever it is called. */
struct safetensors_identity {
    bool known;
    dev_t device;
    ino_t inode;
    off_t size; /* it and `modified`: when it was opened */
    struct timespec modified;
};

struct safetensors_file {
    char *path;  /* for messages: as the caller said it, or directory/shard; owned */
    char *shard; /* its name in the directory; NULL for a single file; owned */
    const uint8_t *bytes;
    uint64_t size;
    uint64_t data_start; /* prefix and header; set by safetensors_header_read() */
    enum safetensors_storage storage;
    struct safetensors_identity identity;
    char *names; /* every tensor's name, zero-ended, in header order; owned */
};

struct safetensors {
    struct safetensors_file *files;
    uint32_t file_count;
    struct safetensors_entry *entries; /* file order */
    size_t entry_count;
    const struct safetensors_entry **by_name; /* the same, sorted by name */
    bool directory;
    struct safetensors_identity directory_identity;
    char *index; /* the index file's bytes, NULL if there is none; owned */
    size_t index_size;
};

/* Text from a file, made fit for a one-line message: control characters become '?', long text is
 * cut. Use as `safetensors_shown(name).text` inside one expression. */
struct safetensors_shown {
    char text[SAFETENSORS_SHOWN_BYTES + 8]; /* room for the mark of a cut */
};
struct safetensors_shown safetensors_shown(const char *text);

/* From here on, until the next begin, this thread's failed allocations inside jansson are told by
 * safetensors_json_memory_failed(). */
void safetensors_json_begin(void);
bool safetensors_json_memory_failed(void);

/* Parses all of `text` with duplicate keys refused and `flags` of jansson added. The caller ends
 * `*root` with json_decref(); on failure it is NULL. `file` is for messages. */
FIRE_NODISCARD enum fire_status safetensors_json_load(const struct safetensors_file *file,
                                                      const void *text, size_t bytes, size_t flags,
                                                      json_t **root, struct fire_error *error);

/* Bytes of a tensor of `dtype_name` with `elements` elements. `dtype` is set when it is one of
 * ours. Fails with a message that names the tensor. */
FIRE_NODISCARD enum fire_status safetensors_dtype_bytes(const struct safetensors_file *file,
                                                        struct safetensors_entry *entry,
                                                        uint64_t elements, uint64_t *bytes,
                                                        struct fire_error *error);

/* Checks the size prefix alone; that much of the file is in memory. */
FIRE_NODISCARD enum fire_status safetensors_prefix_check(const struct safetensors_file *file,
                                                         uint64_t *header_bytes,
                                                         struct fire_error *error);

/* Reads the header of file `file_index` of `set`, whose bytes are in place, and appends its entries
 * to the set. On failure the entries already there are untouched. */
FIRE_NODISCARD enum fire_status safetensors_header_read(struct safetensors *set,
                                                        uint32_t file_index,
                                                        struct fire_error *error);

/* BAD_REQUEST about a file that is not what it should be; `tensor` may be NULL. */
enum fire_status safetensors_damaged(const struct safetensors_file *file, const char *tensor,
                                     struct fire_error *error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* FIRE_IO from errno `reason`: "cannot <verb> <path>: <reason>; <what to do>". */
enum fire_status safetensors_io_failed(const char *verb, const char *path, int reason,
                                       struct fire_error *error);

bool safetensors_same_file(const struct safetensors_identity *identity, const struct stat *other);

/* Where output goes: a name in a directory, a whole directory, or a stream. */
struct safetensors_target {
    int directory;        /* -1: none is open */
    char *directory_path; /* for messages; owned */
    char *name;           /* in it; owned; NULL for a stream and for a whole directory */
    bool made;            /* we made the directory */
    bool stream;          /* standard output, a pipe or a device */
};

#define SAFETENSORS_TARGET_NONE ((struct safetensors_target){ .directory = -1 })

/* Both take a zeroed target, and leave one that may be released, whatever they return. The second
 * makes the directory if it is missing. */
FIRE_NODISCARD enum fire_status safetensors_target_file(struct safetensors_target *target,
                                                        const char *path, struct fire_error *error);
FIRE_NODISCARD enum fire_status safetensors_target_directory(struct safetensors_target *target,
                                                             const char *path,
                                                             struct fire_error *error);
void safetensors_target_release(struct safetensors_target *target);

/* One file on its way to disk. SAFETENSORS_OUTPUT_NONE may be released. */
struct safetensors_output {
    int directory;           /* where it goes; borrowed, -1 for a stream */
    int file;                /* -1: not open */
    char *path;              /* for messages; owned */
    char *name;              /* final, in `directory`; owned; NULL for a stream */
    char *temporary;         /* owned; NULL until it exists */
    bool owns_file;          /* false for standard output */
    bool replaces;           /* a file of this name existed at the start */
    bool renamed;            /* it has its final name */
    bool committed;          /* it stays */
    bool cached;             /* there is no way past the page cache here */
    uint64_t unsynced_bytes; /* in the page cache */
};

#define SAFETENSORS_OUTPUT_NONE ((struct safetensors_output){ .directory = -1, .file = -1 })

/* Creates a temporary file for `name` in `directory`, `size` bytes reserved where the file system
 * can. On failure the output may still be released. */
FIRE_NODISCARD enum fire_status safetensors_output_create(struct safetensors_output *output,
                                                          int directory, const char *path,
                                                          const char *name, uint64_t size,
                                                          struct fire_error *error);

/* Writes to `path`, which is no regular file, or to standard output for "-"; no temporary name. */
FIRE_NODISCARD enum fire_status safetensors_output_stream(struct safetensors_output *output,
                                                          const char *path,
                                                          struct fire_error *error);

/* `offset` is from the start of the file; a stream ignores it, so call in order there. */
FIRE_NODISCARD enum fire_status safetensors_output_write(struct safetensors_output *output,
                                                         uint64_t offset, const void *bytes,
                                                         uint64_t count, struct fire_error *error);

/* First sync every output, then rename every one, then commit: until the last of them, releasing
 * takes everything back (but cannot bring back a replaced file). */
FIRE_NODISCARD enum fire_status safetensors_output_sync(struct safetensors_output *output,
                                                        struct fire_error *error);
FIRE_NODISCARD enum fire_status safetensors_output_rename(struct safetensors_output *output,
                                                          struct fire_error *error);
FIRE_NODISCARD enum fire_status safetensors_directory_sync(int directory, const char *path,
                                                           struct fire_error *error);
void safetensors_output_release(struct safetensors_output *output);

#endif
