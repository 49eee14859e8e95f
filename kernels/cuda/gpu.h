/* gpu: one opened GPU and its slots. Private to kernels/cuda.
 *
 * A slot carries one batch at a time: a thread, a stream, a cuBLAS handle, device memory, pinned
 * memory for what goes in and what comes out, an event, and a cache of graphs. Several slots let
 * the copies of one batch overlap with the products of another. Everything is allocated at open. */
#ifndef FIRE_CUDA_GPU_H
#define FIRE_CUDA_GPU_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "cublas_table.h"
#include "recipe.h"

#define GPU_SLOTS_MAX   8u
#define GPU_GRAPHS_MAX  32u /* of a slot; the one used longest ago makes room */
#define GPU_NONE        UINT32_MAX
#define GPU_ERROR_BYTES 256

/* Where the parts of a piece of work lie in a slot's device memory. */
struct gpu_layout {
    uint32_t count; /* matrices, in whole chunks */
    float *w, *x, *y, *out;
    float *square[5]; /* r x r: G, S, T, and two more on the Gram side */
    float *split[6];  /* hi and lo of a long operand and of two square ones */
    double *program;
    uint32_t *index;
    double *state, *other_state;
    double *partial, *other_partial;
    double *vectors, *pairs;
    const float **a_table, **b_table;
    float **c_table;
};

/* One captured segment. */
struct gpu_graph {
    uint64_t digest; /* of the plan; with the next three it is the key */
    uint32_t count;
    uint32_t straggler_count; /* of a second segment; 0: the first */
    uint32_t limit;           /* steps: a second segment may have more or fewer */
    cudaGraphExec_t exec;     /* NULL: empty place */
    uint64_t used;            /* when, in launches of the slot */
};

struct gpu_slot {
    struct fire_device *device;
    pthread_t thread;
    bool started;
    cudaStream_t stream;
    cublasHandle_t handle;
    cudaEvent_t event;
    char *memory; /* device; the cuBLAS workspace first */
    char *in;     /* pinned: program, index, weights */
    char *out;    /* pinned: state, weights */
    struct gpu_graph graphs[GPU_GRAPHS_MAX];
    uint64_t launches;
};

struct fire_device {
    const struct cublas_table *cublas;
    struct fire_caps caps;
    int ordinal;
    enum recipe_precision precision;
    uint32_t slot_count;
    size_t workspace_bytes; /* of cuBLAS, in each slot */
    size_t slot_bytes;      /* of device memory, workspace included */
    size_t staging_bytes;   /* of pinned memory, each way */
    struct gpu_slot slots[GPU_SLOTS_MAX];

    const struct fire_backend *cpu; /* computes what the GPU does not */
    struct fire_device *cpu_device;

    pthread_mutex_t lock;
    pthread_cond_t queued;
    pthread_cond_t finished;
    struct fire_batch *head;
    struct fire_batch **tail;
    bool stopping;
    bool dead; /* a sticky error: nothing runs on it any more */
    char last_error[GPU_ERROR_BYTES];
};

/* Remembers what a call said, for last_error(), and returns FIRE_NO_MEMORY or FIRE_DEVICE_LOST;
 * FIRE_OK for success. */
FIRE_NODISCARD enum fire_status gpu_check(struct fire_device *device, const char *call,
                                          cudaError_t error);
FIRE_NODISCARD enum fire_status gpu_check_blas(struct fire_device *device, const char *call,
                                               cublasStatus_t status);

/* --- gpu_layout.c ---------------------------------------------------------------------------- */

/* Bytes of device memory that one matrix of a recipe takes. */
size_t gpu_matrix_bytes(const struct recipe *recipe);
/* How many matrices of it a slot takes at once, a multiple of its chunk; 0: not one. */
uint32_t gpu_capacity(const struct fire_device *device, const struct recipe *recipe);
/* `count` rounded up to what graphs are made for, and that to whole chunks. */
uint32_t gpu_rounded(const struct recipe *recipe, uint32_t count);
uint32_t gpu_chunked(const struct recipe *recipe, uint32_t count);
void gpu_layout(const struct gpu_slot *slot, const struct recipe *recipe, uint32_t count,
                struct gpu_layout *layout);
/* Parts of the pinned memory. */
static inline double *gpu_in_program(const struct gpu_slot *slot)
{
    return (double *)(void *)slot->in;
}
static inline uint32_t *gpu_in_index(const struct gpu_slot *slot)
{
    return (uint32_t *)(void *)(slot->in + FIRE_K_PROGRAM_DOUBLES * sizeof(double));
}
float *gpu_in_weights(const struct gpu_slot *slot, uint32_t count);
static inline double *gpu_out_state(const struct gpu_slot *slot)
{
    return (double *)(void *)slot->out;
}
float *gpu_out_weights(const struct gpu_slot *slot, uint32_t count);

/* --- gpu_graph.c ----------------------------------------------------------------------------- */

/* One segment of work on a slot: `stragglers` 0 is the first, of `count` matrices; else the second,
 * of so many out of them (both rounded). */
struct gpu_segment {
    const struct recipe *recipe;
    const struct recipe *before; /* of the first segment, for a second */
    uint64_t digest;
    uint32_t count;
    uint32_t stragglers;
};
/* Finds or captures the segment's graph, launches it and records the slot's event. */
FIRE_NODISCARD enum fire_status gpu_launch(struct gpu_slot *slot,
                                           const struct gpu_segment *segment);
void gpu_forget_graphs(struct gpu_slot *slot);

/* --- gpu_product.c --------------------------------------------------------------------------- */

/* What is being captured. The first failure stays; later calls do nothing. */
struct gpu_capture {
    struct gpu_slot *slot;
    const struct recipe *recipe;
    struct gpu_layout layout;
    uint32_t count;   /* matrices of this segment */
    uint32_t chunked; /* those that products run over: whole chunks */
    bool tf32;        /* products may round their operands */
    enum fire_status status;
};
void gpu_note(struct gpu_capture *capture, const char *call, cudaError_t error);
/* g = x^T y, of the long operands; symmetric when they are one. */
void gpu_gram(struct gpu_capture *capture, const float *x, const float *y, float *g);
/* c = a b of square matrices that commute and are symmetric. */
void gpu_square(struct gpu_capture *capture, const float *a, const float *b, float *c);
/* y = x m */
void gpu_apply(struct gpu_capture *capture, const float *x, const float *m, float *y);

/* --- gpu_run.c ------------------------------------------------------------------------------- */

/* Runs a batch on the slot, splitting it where memory asks for that, and what the GPU cannot do on
 * the CPU; sets batch->status. */
void gpu_run(struct gpu_slot *slot, struct fire_batch *batch);

#endif
