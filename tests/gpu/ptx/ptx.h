/* ptx: runs the PTX that nvcc emits for the plugin's kernels, one thread at a time, and stops at
 * the first thing a GPU would not have told anybody about: an access outside a live allocation or
 * off its alignment, two threads at one word of shared memory with no barrier between them, a
 * register or shared word read before it was written, a barrier that not every thread reaches.
 *
 * A module is text parsed once; running does not change it, so threads may share one. */
#ifndef FIRE_PTX_H
#define FIRE_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTX_BLOCK_THREADS_MAX 1024u
#define PTX_SHARED_BYTES_MAX  (228u << 10)

enum ptx_kind {
    PTX_OK,
    PTX_BAD_TEXT,      /* the module cannot be parsed, or has an opcode nobody has taught it */
    PTX_BAD_LAUNCH,    /* no such kernel, or sizes a GPU refuses */
    PTX_OUT_OF_BOUNDS, /* an address outside what the space holds */
    PTX_MISALIGNED,    /* an address that is no multiple of the size accessed */
    PTX_RACE,          /* two accesses to a shared word, one of them a write, in no order */
    PTX_UNINITIALISED, /* a register or shared word used before it was written */
    PTX_DIVERGENT,     /* a barrier, shuffle or vote that its threads do not all reach */
    PTX_TOO_LONG,      /* a thread took more steps than the limit: a loop that does not end */
    PTX_TRAP,          /* the kernel ran into a trap instruction */
    PTX_NO_MEMORY,
};

const char *ptx_kind_name(enum ptx_kind kind); /* "out of bounds" */

/* What was found first. `text` is one line: kernel, block, thread, PTX line and the instruction. */
struct ptx_report {
    enum ptx_kind kind;
    uint32_t line; /* of the PTX text, from 1; 0: none */
    char text[640];
};

struct ptx_module;

/* On success the caller owns the module and ends it with ptx_close(). NULL on failure, and
 * `report` says why. `text` may hold anything; it need not end in zero, and is not kept. */
struct ptx_module *ptx_open(const char *text, size_t bytes, struct ptx_report *report);
void ptx_close(struct ptx_module *module); /* NULL is allowed */

size_t ptx_kernel_count(const struct ptx_module *module);
const char *ptx_kernel_name(const struct ptx_module *module, size_t index);

/* Where `bytes` bytes of device memory at `address` can be read and written now, or NULL when they
 * are not all inside one live allocation. */
typedef void *ptx_translate(void *context, uint64_t address, size_t bytes, bool write);

struct ptx_launch {
    const char *kernel;
    uint32_t grid[3];
    uint32_t block[3];
    size_t shared_bytes;    /* dynamic shared memory */
    void *const *arguments; /* one pointer for each parameter, as cudaLaunchKernel takes them */
    ptx_translate *translate;
    void *context;      /* of translate */
    uint64_t steps_max; /* instructions of one thread; 0: PTX_STEPS_DEFAULT */
};
#define PTX_STEPS_DEFAULT (UINT64_C(1) << 28)

/* What a run did, for tests and for the curious. */
struct ptx_counts {
    uint64_t instructions;
    uint64_t barriers; /* block-wide ones, counted once a block */
};

/* Runs every block of the launch in order. PTX_OK, or the kind of the first finding, with all of
 * it in `report`; what ran before it has changed memory. `counts` may be NULL. */
enum ptx_kind ptx_run(const struct ptx_module *module, const struct ptx_launch *launch,
                      struct ptx_counts *counts, struct ptx_report *report);

#endif
