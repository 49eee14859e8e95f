/* emulator: what the parts of the emulated runtime share. Everything here runs under one lock,
 * taken by emu_enter() and given back by emu_leave().
 *
 * A device is a set of streams; a stream is a queue of operations; nothing runs until the schedule
 * lets it. An operation is immutable and counted, so that a graph can run it again. */
#ifndef EMULATOR_H
#define EMULATOR_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../kernel_runner.h"
#include "api.h"
#include "control.h"

/* Shared with the emulated libcublas. */
#define EMU_SHARED __attribute__((visibility("default")))

enum emu_schedule { SCHEDULE_EAGER, SCHEDULE_LAZY, SCHEDULE_RANDOM };
enum emu_engine { ENGINE_COMPUTE, ENGINE_TO_DEVICE, ENGINE_TO_HOST, ENGINE_NONE, ENGINE_COUNT };

/* Public figures of one GPU. */
struct emu_model {
    const char *name;
    const char *device_name;
    int major;
    int minor;
    uint32_t multiprocessors;
    double fp32_flops;
    double tf32_flops;
    double half_flops; /* bf16 and f16, dense */
    double fp64_flops;
    double memory_bytes_per_s;
    double link_bytes_per_s; /* one direction, what copies of pinned memory reach */
    size_t memory_bytes;
    size_t shared_bytes_max; /* a block may opt in to */
    uint32_t threads_per_multiprocessor;
};
const struct emu_model *emu_model_find(const char *name); /* NULL: unknown */

struct emu_cost {
    enum emu_engine engine;
    double bytes; /* device memory, or the link */
    double flops;
    double flops_per_s; /* the rate that applies; 0: the model's fp32 */
};
double emu_model_seconds(const struct emu_model *model, const struct emu_cost *cost);

struct emu_event;
struct emu_graph;
struct emu_stream;

enum emu_op_kind { OP_WORK, OP_RECORD, OP_WAIT, OP_GRAPH, OP_HOST };

/* A host range that an operation reads or writes. */
struct emu_host_range {
    void *start;
    size_t pitch;
    size_t width;
    size_t height;
};

struct emu_op {
    uint32_t references;
    enum emu_op_kind kind;
    struct emu_cost cost;
    uint32_t device;
    /* OP_WORK and OP_HOST: returns 0, or a cudaError that kills the device. May set the cost. */
    int (*run)(struct emu_op *op);
    void (*release)(struct emu_op *op); /* what `data` owns; may be NULL */
    struct emu_host_range host_read;
    struct emu_host_range host_write;
    struct emu_event *event; /* OP_RECORD, OP_WAIT */
    uint64_t record;         /* which record of the event */
    struct emu_graph *graph; /* OP_GRAPH */
    double queued_s;         /* host time */
    _Alignas(16) unsigned char data[];
};

struct emu_queued {
    struct emu_op *op;
    struct emu_queued *next;
};

struct emu_stream {
    struct emu_stream *next;
    uint32_t magic;
    uint32_t device;
    unsigned flags;
    int priority;
    struct emu_queued *head;
    struct emu_queued **tail;
    uint64_t queued_count;
    uint64_t done_count;
    double ready_s;
    struct emu_graph *capture; /* being made; NULL: none */
    uint32_t capture_last;     /* node + 1 that the next one follows; 0: none */
    bool capture_origin;
    bool capture_broken;
};

struct emu_event {
    uint32_t magic;
    uint32_t references; /* the caller's, and one of each operation */
    unsigned flags;
    uint32_t device;
    struct emu_stream *stream; /* of the last record */
    uint64_t record_count;
    uint64_t done_count;
    uint64_t stream_position; /* of the last record in its stream */
    double time_s;
    uint32_t polls;
    struct emu_graph *capture; /* recorded inside this capture */
    uint32_t capture_node;     /* node + 1 */
};

struct emu_device {
    const struct emu_model *model;
    size_t memory_limit;
    size_t memory_used;
    int lost; /* cudaError, 0: alive */
    double engine_free_s[ENGINE_COUNT];
    double engine_busy_s[ENGINE_COUNT];
    double end_s;
    double flops;
    struct emu_stream null_stream;
};

struct emu_world {
    enum emu_schedule schedule;
    uint64_t random;
    uint64_t laziness; /* random: of eight calls, so many let nothing run; the seed decides */
    uint32_t device_count;
    struct emu_device devices[EMULATOR_DEVICES_MAX];
    struct emu_stream *streams; /* of all devices, but the null streams */
    struct emulator_counters counters;
    bool capture_any;  /* some stream is being captured */
    char running[128]; /* the kernel or call that runs, for messages */
};
extern EMU_SHARED struct emu_world emu_world;

/* --- calls: world.c */

/* Counts, logs and schedules; 0, or the code with which the call must fail. Locks. */
EMU_SHARED int emu_enter(enum emu_api api, const void *site);
EMU_SHARED int emu_leave(int code);       /* unlocks; keeps a failure for cudaGetLastError() */
EMU_SHARED int emu_leave_plain(int code); /* unlocks only: cuBLAS keeps no last error */
#define EMU_ENTER(name) emu_enter(API_##name, __builtin_return_address(0))
/* For what is not counted: locks and sets up. */
EMU_SHARED void emu_lock(void);
EMU_SHARED void emu_unlock(void);
EMU_SHARED void emu_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
EMU_SHARED uint32_t emu_current_device(void);
void emu_set_current_device(uint32_t device);
int emu_last_error(bool clear);
uint64_t emu_random(uint64_t below);
double emu_host_now(void);
void emu_host_wait_until(double seconds);
EMU_SHARED int emu_device_code(uint32_t device); /* why it is lost, or 0 */

/* --- memory.c */

void emu_memory_open(size_t range_bytes);
uint64_t emu_memory_allocate(uint32_t device, size_t bytes); /* 0: no memory */
bool emu_memory_release(uint64_t address);
void emu_memory_release_device(uint32_t device);
EMU_SHARED bool emu_memory_is_device(const void *pointer);
/* An address that a kernel stored: the kernels run by g++ see shadow addresses. */
EMU_SHARED const void *emu_memory_from_kernel(const void *pointer);
EMU_SHARED void *emu_memory_shadow(const void *device_pointer, size_t bytes); /* NULL: not inside */
EMU_SHARED bool emu_memory_find(const void *device_pointer, uint64_t *base, size_t *bytes);
EMU_SHARED const char *emu_memory_words(const void *pointer); /* which allocation, for messages */
struct kernel_memory emu_memory_for_kernels(void);
int emu_memory_device_of(const void *pointer); /* -1: none */

void *emu_pinned_allocate(size_t bytes);
bool emu_pinned_register(void *start, size_t bytes);
bool emu_pinned_release(void *start, bool registered);
bool emu_pinned_holds(const void *start, size_t bytes);
/* Whether live device memory, or page-locked memory, has these bytes somewhere. */
bool emu_memory_has(const void *bytes, size_t count);

/* --- stream.c */

EMU_SHARED struct emu_op *emu_op_new(enum emu_op_kind kind, size_t data_bytes);
EMU_SHARED void emu_op_drop(struct emu_op *op);
/* The stream of a handle, the null stream for 0, 1 and 2; NULL: it is none. */
EMU_SHARED struct emu_stream *emu_stream_of(cudaStream_t handle);
/* Takes over `op`. To the graph when the stream is being captured, else to the queue. */
EMU_SHARED int emu_stream_push(struct emu_stream *stream, struct emu_op *op);
EMU_SHARED bool emu_stream_capturing(const struct emu_stream *stream);
struct emu_stream *emu_stream_new(unsigned flags, int priority);
void emu_stream_free(struct emu_stream *stream);
void emu_stream_finish(struct emu_stream *stream, uint64_t position); /* runs up to there */
void emu_finish_device(uint32_t device);
void emu_finish_all(void);
void emu_fail_operation(uint64_t nth, int code); /* control's; lock is the caller's at start only */
void emu_revive(void);
void emu_random_steps(void); /* what runs by itself between two calls */
struct emu_event *emu_event_of(cudaEvent_t handle);
void emu_event_drop(struct emu_event *event);
struct emu_event *emu_event_new(unsigned flags);
bool emu_event_done(struct emu_event *event);
void emu_event_finish(struct emu_event *event);
/* One operation at the virtual time given, on the device; returns when it ends. */
double emu_op_execute(struct emu_op *op, double start_s);

/* --- turns.c */

void emu_turns(uint32_t threads, uint64_t waits); /* control's */
void emu_turns_wait(double time_s); /* without the lock: holds the thread until it is its turn */

/* --- graph.c */

#define GRAPH_DEPENDENCIES_MAX 8u

struct emu_node {
    struct emu_op *op;
    uint32_t dependency[GRAPH_DEPENDENCIES_MAX]; /* node + 1 */
    uint32_t dependency_count;
};

struct emu_graph {
    uint32_t magic;
    uint32_t references;
    uint32_t device;
    struct emu_node *nodes;
    uint32_t node_count;
    uint32_t node_capacity;
};
struct emu_graph *emu_graph_new(void);
int emu_graph_add(struct emu_stream *stream, struct emu_op *op);
void emu_graph_drop(struct emu_graph *graph);
double emu_graph_execute(struct emu_graph *graph, double start_s); /* returns when it ends */
bool emu_capture_alive(const struct emu_graph *graph);             /* NULL and stale ones are not */
void emu_capture_break(void); /* a call that no capture allows */

#endif
