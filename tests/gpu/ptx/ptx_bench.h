/* ptx_bench: a bench for tiny kernels: text in, memory in, memory and report out. */
#ifndef FIRE_PTX_BENCH_H
#define FIRE_PTX_BENCH_H

#include "ptx.h"

/* Device memory of the bench: BENCH_WORDS words at BENCH_BASE, nothing else. A kernel gets the
 * base as its one parameter, `memory`. */
#define BENCH_BASE  UINT64_C(0x700000000000)
#define BENCH_WORDS 256u

struct bench {
    uint64_t words[BENCH_WORDS];
    struct ptx_report report;
    struct ptx_counts counts;
    uint32_t threads;    /* of the one block; 0: 1 */
    uint32_t blocks;     /* 0: 1 */
    size_t shared_bytes; /* dynamic */
    uint64_t steps_max;
    const char *before; /* text before the kernel, e.g. variables of the module; NULL: none */
};

/* Parses and runs `.entry k(.param .u64 memory)` with `body`, in which %r0…%r31 are registers of
 * any type, %p0…%p7 predicates and %base the parameter. Fails the test when the text is bad. */
enum ptx_kind bench_run(struct bench *bench, const char *body);

/* The line of the PTX on which the first line of `body` stands. */
uint32_t bench_first_line(const struct bench *bench);

#endif
