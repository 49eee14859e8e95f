/* safetensors: checkpoint files, read by mapping and written by write-then-rename.
 *
 * A set is one file, or a directory with model.safetensors.index.json and its shards. The reader
 * checks everything before it hands out a pointer: header size and JSON, every offset against the
 * file, overlap, holes, duplicate names, shape times dtype against byte counts with overflow-safe
 * arithmetic. All dtypes pass through; the floating ones have an enum fire_dtype. */
#ifndef FIRE_SAFETENSORS_H
#define FIRE_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dtype.h"
#include "status.h"
#include "tensor.h"

struct safetensors_entry {
    const char *name;
    const void *data; /* in the mapping; unaligned, 1-byte alignment only */
    uint64_t bytes;
    uint64_t file_offset;    /* of the data, from the start of that shard */
    struct fire_shape shape; /* axes 0: a scalar */
    char dtype_name[16];     /* as in the file: "F32", "BF16", "I64", "F8_E4M3", … */
    enum fire_dtype dtype;
    uint32_t file_index; /* which shard */
    bool floating;       /* F64, F32, BF16, F16: `dtype` is valid */
    bool too_many_axes;  /* over FIRE_AXES_MAX: shape is not valid, bytes are */
};

struct safetensors; /* an opened set */

/* Opens a `.safetensors` file, a directory with an index (or with just model.safetensors), or "-"
 * (standard input, read whole unless it is a file, which is mapped). On failure `*set` is NULL:
 * FIRE_IO when the system would not give the bytes, FIRE_BAD_REQUEST when they are wrong. */
FIRE_NODISCARD enum fire_status safetensors_open(const char *path, struct safetensors **set,
                                                 struct fire_error *error);

/* The same from memory the caller keeps alive; used by the fuzzer and the tests. */
FIRE_NODISCARD enum fire_status safetensors_open_memory(const void *bytes, size_t size,
                                                        struct safetensors **set,
                                                        struct fire_error *error);
void safetensors_close(struct safetensors *set); /* NULL is allowed */

/* FIRE_IO when a file of the set has been written to since it was opened: what is read of it may be
 * old, new or, where it became shorter, the end of the process. Ask before reading much, and before
 * what was read is relied on. A file that was replaced by another one of its name is unchanged. */
FIRE_NODISCARD enum fire_status safetensors_check_unchanged(const struct safetensors *set,
                                                            struct fire_error *error);

/* Entries in file order (shard by shard, by offset). */
size_t safetensors_count(const struct safetensors *set);
const struct safetensors_entry *safetensors_at(const struct safetensors *set, size_t index);
const struct safetensors_entry *safetensors_find(const struct safetensors *set, const char *name);
bool safetensors_sharded(const struct safetensors *set); /* opened from a directory */

/* Tells the kernel that these bytes will be, or are no longer, needed (madvise), so that a
 * checkpoint larger than memory passes at bounded RSS. */
void safetensors_will_need(const struct safetensors *set, const struct safetensors_entry *entry);
void safetensors_done_with(const struct safetensors *set, const struct safetensors_entry *entry);

/* Writes a copy of a set in which some tensors' bytes differ: same files, same headers byte for
 * byte, same metadata and order. */
struct safetensors_writer;

/* Starts writing next to `path` under temporary names. Refuses a path that is the input itself (by
 * device and inode). A sharded set needs a directory (made if missing), a single file a file name,
 * or "-" for standard output. A link is followed. A pipe or device is written like standard output:
 * in file order, tensors that come early wait in memory, and what is written cannot be taken back.
 * `set` must stay open until the writer is closed. On failure `*writer` is NULL and nothing is
 * left behind. */
FIRE_NODISCARD enum fire_status safetensors_writer_open(const struct safetensors *set,
                                                        const char *path,
                                                        struct safetensors_writer **writer,
                                                        struct fire_error *error);

/* Writes the bytes of one entry, `entry->bytes` of them, in any order, each entry once. May be
 * called from one thread other than the opener's. */
FIRE_NODISCARD enum fire_status safetensors_write(struct safetensors_writer *writer,
                                                  const struct safetensors_entry *entry,
                                                  const void *bytes, struct fire_error *error);

/* Copies the entry unchanged. */
FIRE_NODISCARD enum fire_status safetensors_copy(struct safetensors_writer *writer,
                                                 const struct safetensors_entry *entry,
                                                 struct fire_error *error);

/* Flushes to disk and renames into place, all files after all are flushed; fails if an entry was
 * not written. Call it once; whatever it returns, close the writer. */
FIRE_NODISCARD enum fire_status safetensors_writer_commit(struct safetensors_writer *writer,
                                                          struct fire_error *error);
/* Frees it; without a commit the temporary files are removed and nothing has changed. */
void safetensors_writer_close(struct safetensors_writer *writer); /* NULL is allowed */

/* A new single file from scratch (tests, benchmarks, tools): entries with name, dtype_name, shape,
 * data and bytes, laid out in the order given; `metadata` is NULL or pairs key, value, key, value,
 * NULL. Written under a temporary name too: on failure nothing has changed. */
FIRE_NODISCARD enum fire_status safetensors_save(const char *path,
                                                 const struct safetensors_entry *entries,
                                                 size_t count, const char *const *metadata,
                                                 struct fire_error *error);

#endif
