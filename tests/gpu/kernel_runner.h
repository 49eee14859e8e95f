/* kernel_runner: how the emulated runtime has a kernel run.
 *
 * The emulated libcudart knows no kernel. It loads one of two libraries, named by the variable
 * FIRE_EMULATOR_KERNELS, and asks it by name:
 *
 *   libfire_kernels_host.so  the plugin's own .cuh, compiled by g++ and run on fibers: fast
 *   libfire_ptx.so           an interpreter of the PTX that nvcc made of them: thorough
 *
 * Both export the two functions below, with C linkage and default visibility. They are called one
 * at a time, under the lock of the emulator, and must not call CUDA.
 *
 * A name is what nvcc registers: the entry of the PTX, mangled unless the kernel is extern "C".
 * Addresses in arguments are device addresses. Nothing can be read there: the contents lie in a
 * shadow range, and translate() gives the place. Memory never written holds KERNEL_POISON in every
 * byte: NaN in every float format, -1 as an integer. */
#ifndef FIRE_KERNEL_RUNNER_H
#define FIRE_KERNEL_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KERNEL_ARGUMENTS_MAX 32u
#define KERNEL_POISON        0xFFu

/* What a launch must know before it runs: cudaLaunchKernel is given no sizes. */
struct kernel_signature {
    uint32_t argument_count;
    uint32_t argument_bytes[KERNEL_ARGUMENTS_MAX];
    size_t shared_bytes;  /* static shared memory of a block; 0 if not known */
    uint32_t threads_max; /* of a block (__launch_bounds__); 0 if not known */
};

struct kernel_launch {
    const char *name;
    uint32_t grid[3];
    uint32_t block[3];
    size_t shared_bytes; /* dynamic */
    void **arguments;    /* one pointer to each value, copied when the launch was queued */
};

struct kernel_memory {
    void *context;
    /* Where the contents of `bytes` bytes at `device_address` lie, or NULL when not all of them are
     * inside one live allocation. Whole ranges may be asked for once and kept for one kernel_run():
     * device memory is neither allocated nor freed meanwhile. */
    void *(*translate)(void *context, uint64_t device_address, size_t bytes, bool write);
    /* The live allocation that holds the address: its first address and size; false: none. */
    bool (*allocation)(void *context, uint64_t device_address, uint64_t *base, size_t *bytes);
    /* Contents lie at the device address plus this, for every live allocation. */
    ptrdiff_t shadow_offset;
};

/* What the launch did, for the virtual clock. The runner adds; 0 in both means "not counted", and
 * the emulator estimates from the size of the grid. */
struct kernel_cost {
    uint64_t bytes; /* global memory read and written */
    uint64_t flops; /* an fma counts two */
};

/* False when no kernel of that name is known. */
bool kernel_signature(const char *name, struct kernel_signature *signature);

/* Runs one launch to its end. NULL, or a message (static storage, until the next call) which the
 * emulator turns into a sticky launch failure. `cost` is never NULL. */
const char *kernel_run(const struct kernel_launch *launch, const struct kernel_memory *memory,
                       struct kernel_cost *cost);

#ifdef __cplusplus
}
#endif

#endif
