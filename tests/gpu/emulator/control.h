/* control: what a test may ask of the emulated CUDA runtime, and tell it.
 *
 * The emulated libcudart exports fire_emulator_control() beside the functions of the real one. A
 * test that has loaded the plugin finds it by dlopen("libcudart.so.N", RTLD_NOLOAD) and dlsym. The
 * same settings are read from the environment when the library is first used:
 *
 *   FIRE_EMULATOR_KERNELS   the library that runs kernels (kernel_runner.h)
 *   FIRE_EMULATOR_SCHEDULE  eager (default), lazy, random:SEED
 *   FIRE_EMULATOR_MODEL     H100 (default), A100, RTX4090, T4
 *   FIRE_EMULATOR_DEVICES   how many; 1 by default, 0 behaves as a machine without a driver
 *   FIRE_EMULATOR_MEMORY    bytes of device memory; what the model has by default
 *   FIRE_EMULATOR_FAIL      API:N or *:N, or API:N:CODE; the N-th call from the start fails
 *   FIRE_EMULATOR_FAIL_ASYNC  N or N:CODE; the N-th operation run on a device fails, for good
 *   FIRE_EMULATOR_REPORT    a file that the counters are written to at exit
 *   FIRE_EMULATOR_RANGE_GIB size of the address range; 1024 by default, less for valgrind
 *
 * Functions may be called from any thread. */
#ifndef FIRE_EMULATOR_CONTROL_H
#define FIRE_EMULATOR_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EMULATOR_DEVICES_MAX 8u

struct emulator_counters {
    uint64_t api_calls; /* every call that could fail; a kernel launch is one */
    uint64_t waits;     /* calls that block until a device has done something */
    uint64_t polls;     /* cudaEventQuery, cudaStreamQuery */
    uint64_t device_allocations;
    uint64_t host_allocations; /* page-locked */
    uint64_t pageable_copies;
    uint64_t captures;
    uint64_t graph_launches;

    uint64_t operations; /* run on devices, nodes of graphs included */
    uint64_t kernels;
    uint64_t gemms;
    uint64_t bytes_to_device;
    uint64_t bytes_to_host;
    double gemm_flops;

    /* What is alive now. */
    uint64_t live_device_allocations;
    uint64_t live_device_bytes;
    uint64_t live_host_allocations;
    uint64_t live_streams;
    uint64_t live_events;
    uint64_t live_graphs; /* graphs and executable graphs */
    uint64_t live_handles;

    uint64_t complaints; /* mistakes that a real library may let pass */
};

/* Virtual seconds of one device since the last reset_clock. */
struct emulator_clock {
    double host_s;    /* the calling thread's time */
    double end_s;     /* when the last operation ended */
    double compute_s; /* time in which something was computed */
    double to_device_s;
    double to_host_s;
    double flops;            /* of products and counted kernels */
    double link_bytes_per_s; /* of the model, one direction */
    double flops_per_s;      /* of the model, fp32 */
};

/* One call of the log: which function, and from where. Equal sites are equal places in the code. */
struct emulator_call {
    const char *name;
    const void *site;
};

struct emulator_control {
    void (*counters)(struct emulator_counters *counters);
    void (*clock)(uint32_t device, struct emulator_clock *clock);
    void (*reset_clock)(void);
    /* The first complaint since the last forget_complaints(), or "". */
    const char *(*complaint)(void);
    void (*forget_complaints)(void);

    /* "eager", "lazy", "random:SEED"; false when it is none of them. Waits for what is queued. */
    bool (*schedule)(const char *text);
    /* A model by name; false when unknown. Takes the memory of that model. */
    bool (*model)(const char *name);
    void (*memory_limit)(size_t bytes); /* per device */

    /* The nth call from now on, of `api` (NULL: of any), fails with `code` (0: one that fits); nth
     * 0 disarms. A call that releases something releases it and then reports the failure. */
    void (*fail_call)(const char *api, uint64_t nth, int code);
    const char *(*failed)(void); /* which call was made to fail since; NULL: none */
    /* The nth operation from now on fails on the device, which is lost until revive(). */
    void (*fail_operation)(uint64_t nth, int code);
    bool (*lost)(uint32_t device);
    void (*revive)(void); /* as a new process would find the devices */

    /* Lets threads go on in the order of virtual time: the next `waits` waits for events hold their
     * threads until `threads` of them wait, then the one whose event came first goes on; with the
     * last wait all do. `threads` 0: no turns. A stream of work runs the same way every time. */
    void (*turns)(uint32_t threads, uint64_t waits);
    /* Whether memory of a device, or page-locked memory, has these bytes somewhere. */
    bool (*memory_has)(const void *bytes, size_t count);

    /* The calls made since start_log(), oldest first. */
    void (*start_log)(void);
    size_t (*log_count)(void);
    struct emulator_call (*log_at)(size_t index);
    uint64_t (*calls_of)(const char *api); /* in all */
};

const struct emulator_control *fire_emulator_control(void);

#endif
