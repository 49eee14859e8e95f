/* The GPU behind the backend table.
 *
 * Batches wait in one queue, urgent ones in front, and each slot's thread takes the next one and
 * sees it through. What a GPU does not do goes to a CPU pool that is opened beside it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "launch.h"

#define SLOTS_DEFAULT         3u
#define SLOT_BYTES_DEFAULT    (512ull << 20)
#define SLOT_BYTES_LEAST      (48ull << 20)
#define MEMORY_SHARE          4u /* of the free memory all slots take at most 3 / 4 */
#define STAGING_SHARE         5u /* pinned memory each way, of a slot's */
#define WORKSPACE_BYTES       (4ull << 20)
#define WORKSPACE_BYTES_NEW   (32ull << 20) /* what cuBLAS wants from Hopper on */
#define WORKSPACE_NEW_CAPABLE 9

/* --- errors ---------------------------------------------------------------------------------- */

static void remember(struct fire_device *device, const char *call, const char *name,
                     const char *text)
{
    pthread_mutex_lock(&device->lock);
    snprintf(device->last_error, sizeof(device->last_error), "%s: %s (%s)", call, name, text);
    pthread_mutex_unlock(&device->lock);
}

enum fire_status gpu_check(struct fire_device *device, const char *call, cudaError_t error)
{
    if (error == cudaSuccess)
        return FIRE_OK;
    remember(device, call, cudaGetErrorName(error), cudaGetErrorString(error));
    return error == cudaErrorMemoryAllocation ? FIRE_NO_MEMORY : FIRE_DEVICE_LOST;
}

enum fire_status gpu_check_blas(struct fire_device *device, const char *call, cublasStatus_t status)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return FIRE_OK;
    remember(device, call, device->cublas->status_name(status), "cuBLAS");
    return status == CUBLAS_STATUS_ALLOC_FAILED ? FIRE_NO_MEMORY : FIRE_DEVICE_LOST;
}

/* --- the threads ----------------------------------------------------------------------------- */

static struct fire_batch *pop(struct fire_device *device)
{
    struct fire_batch *batch = device->head;

    if (!batch)
        return NULL;
    device->head = batch->next;
    if (!device->head)
        device->tail = &device->head;
    return batch;
}

static void *slot_main(void *data)
{
    struct gpu_slot *slot = data;
    struct fire_device *device = slot->device;
    const cudaError_t error = cudaSetDevice(device->ordinal);

    if (gpu_check(device, "cudaSetDevice", error) != FIRE_OK) {
        pthread_mutex_lock(&device->lock);
        device->dead = true;
        pthread_mutex_unlock(&device->lock);
    }
    pthread_mutex_lock(&device->lock);
    for (;;) {
        struct fire_batch *batch = pop(device);

        if (!batch && device->stopping)
            break;
        if (!batch) {
            pthread_cond_wait(&device->queued, &device->lock);
            continue;
        }
        pthread_mutex_unlock(&device->lock);
        gpu_run(slot, batch);
        pthread_mutex_lock(&device->lock);
        batch->finished = true;
        pthread_cond_broadcast(&device->finished);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* --- opening and closing --------------------------------------------------------------------- */

static void slot_release(struct gpu_slot *slot)
{
    gpu_forget_graphs(slot);
    if (slot->handle)
        (void)slot->device->cublas->destroy(slot->handle);
    if (slot->event)
        (void)cudaEventDestroy(slot->event);
    if (slot->stream)
        (void)cudaStreamDestroy(slot->stream);
    if (slot->memory)
        (void)cudaFree(slot->memory);
    if (slot->in)
        (void)cudaFreeHost(slot->in);
    if (slot->out)
        (void)cudaFreeHost(slot->out);
    slot->handle = NULL;
    slot->event = NULL;
    slot->stream = NULL;
    slot->memory = slot->in = slot->out = NULL;
}

static void gpu_close(struct fire_device *device)
{
    if (!device)
        return;
    pthread_mutex_lock(&device->lock);
    device->stopping = true;
    pthread_cond_broadcast(&device->queued);
    pthread_mutex_unlock(&device->lock);
    for (uint32_t i = 0; i < device->slot_count; i++) {
        if (device->slots[i].started)
            pthread_join(device->slots[i].thread, NULL);
    }
    (void)cudaSetDevice(device->ordinal);
    for (uint32_t i = 0; i < device->slot_count; i++)
        slot_release(&device->slots[i]);
    if (device->cpu)
        device->cpu->close(device->cpu_device);
    pthread_cond_destroy(&device->finished);
    pthread_cond_destroy(&device->queued);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

/* The workspace belongs to a stream: cublasSetStream resets it, so it comes after. */
static enum fire_status slot_open_blas(struct gpu_slot *slot)
{
    struct fire_device *device = slot->device;
    enum fire_status status =
        gpu_check_blas(device, "cublasCreate", device->cublas->create(&slot->handle));

    if (status == FIRE_OK)
        status = gpu_check_blas(device, "cublasSetStream",
                                device->cublas->set_stream(slot->handle, slot->stream));
    if (status == FIRE_OK)
        status = gpu_check_blas(
            device, "cublasSetWorkspace",
            device->cublas->set_workspace(slot->handle, slot->memory, device->workspace_bytes));
    if (status == FIRE_OK)
        status = gpu_check_blas(device, "cublasSetMathMode",
                                device->cublas->set_math_mode(slot->handle, CUBLAS_DEFAULT_MATH));
    return status;
}

static enum fire_status slot_open(struct fire_device *device, struct gpu_slot *slot)
{
    enum fire_status status =
        gpu_check(device, "cudaMalloc", cudaMalloc((void **)&slot->memory, device->slot_bytes));

    slot->device = device;
    if (status == FIRE_OK)
        status = gpu_check(
            device, "cudaHostAlloc",
            cudaHostAlloc((void **)&slot->in, device->staging_bytes, cudaHostAllocDefault));
    if (status == FIRE_OK)
        status = gpu_check(
            device, "cudaHostAlloc",
            cudaHostAlloc((void **)&slot->out, device->staging_bytes, cudaHostAllocDefault));
    if (status == FIRE_OK)
        status = gpu_check(device, "cudaStreamCreateWithFlags",
                           cudaStreamCreateWithFlags(&slot->stream, cudaStreamNonBlocking));
    if (status == FIRE_OK)
        status = gpu_check(
            device, "cudaEventCreateWithFlags",
            cudaEventCreateWithFlags(&slot->event, cudaEventDisableTiming | cudaEventBlockingSync));
    return status == FIRE_OK ? slot_open_blas(slot) : status;
}

/* All slots; with less memory each as long as that is refused. */
static enum fire_status open_slots(struct fire_device *device)
{
    enum fire_status status = FIRE_NO_MEMORY;

    while (status == FIRE_NO_MEMORY && device->slot_bytes >= SLOT_BYTES_LEAST) {
        status = FIRE_OK;
        device->staging_bytes = device->slot_bytes / STAGING_SHARE;
        for (uint32_t i = 0; i < device->slot_count && status == FIRE_OK; i++)
            status = slot_open(device, &device->slots[i]);
        if (status != FIRE_NO_MEMORY)
            return status;
        for (uint32_t i = 0; i < device->slot_count; i++) {
            device->slots[i].device = device;
            slot_release(&device->slots[i]);
        }
        (void)cudaGetLastError();
        device->slot_bytes /= 2;
    }
    return status;
}

static enum fire_status start_threads(struct fire_device *device)
{
    for (uint32_t i = 0; i < device->slot_count; i++) {
        struct gpu_slot *slot = &device->slots[i];

        if (pthread_create(&slot->thread, NULL, slot_main, slot) != 0)
            return FIRE_NO_MEMORY;
        slot->started = true;
    }
    return FIRE_OK;
}

/* Chooses the device and how much of it is used. */
static enum fire_status open_gpu(struct fire_device *device, uint64_t slot_bytes)
{
    struct cudaDeviceProp properties;
    size_t free_bytes = 0, total_bytes = 0;
    enum fire_status status = gpu_check(device, "cudaSetDevice", cudaSetDevice(device->ordinal));

    if (status == FIRE_OK)
        status = gpu_check(device, "cudaGetDeviceProperties",
                           cudaGetDeviceProperties(&properties, device->ordinal));
    if (status == FIRE_OK)
        status = gpu_check(device, "cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes));
    if (status != FIRE_OK)
        return status;
    snprintf(device->caps.name, sizeof(device->caps.name), "%.63s", properties.name);
    snprintf(device->caps.path, sizeof(device->caps.path), "cuda-sm%d%d", properties.major,
             properties.minor);
    device->workspace_bytes =
        properties.major >= WORKSPACE_NEW_CAPABLE ? WORKSPACE_BYTES_NEW : WORKSPACE_BYTES;
    device->slot_bytes = slot_bytes ? slot_bytes : SLOT_BYTES_DEFAULT;
    if (device->slot_bytes > free_bytes / device->slot_count / MEMORY_SHARE * 3)
        device->slot_bytes = free_bytes / device->slot_count / MEMORY_SHARE * 3;
    if (device->slot_bytes < SLOT_BYTES_LEAST)
        device->slot_bytes = SLOT_BYTES_LEAST;
    status = gpu_check(device, "cudaFuncSetAttribute", fire_launch_prepare());
    return status == FIRE_OK ? open_slots(device) : status;
}

static bool parse_precision(const char *text, enum recipe_precision *precision)
{
    *precision = RECIPE_F32;
    if (!text || strcmp(text, "f32") == 0)
        return true;
    if (strcmp(text, "3xtf32") == 0)
        *precision = RECIPE_3XTF32;
    else if (strcmp(text, "tf32-early") == 0)
        *precision = RECIPE_TF32_EARLY;
    return *precision != RECIPE_F32;
}

static enum fire_status fail_open(struct fire_device *device, enum fire_status status,
                                  struct fire_error *error)
{
    fire_fail(error, status, "cuda", "could not open GPU %d: %s", device->ordinal,
              device->last_error[0] ? device->last_error : fire_status_name(status));
    gpu_close(device);
    return status;
}

static enum fire_status gpu_open(const struct fire_backend_settings *settings,
                                 struct fire_device **out, struct fire_error *error)
{
    const uint32_t slots = settings && settings->slots ? settings->slots : SLOTS_DEFAULT;
    const struct fire_backend_settings cpu_settings = { .threads = settings ? settings->threads : 0,
                                                        .path = settings ? settings->path : NULL,
                                                        .nice = settings ? settings->nice : 0 };
    struct fire_device *device;
    enum fire_status status;

    *out = NULL;
    if (slots > GPU_SLOTS_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "slots", "slots must be 1 to %u, got %u",
                         GPU_SLOTS_MAX, slots);
    device = calloc(1, sizeof(*device));
    if (!device)
        return fire_fail_memory(error, sizeof(*device));
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->queued, NULL);
    pthread_cond_init(&device->finished, NULL);
    device->tail = &device->head;
    device->slot_count = slots;
    device->ordinal = settings ? (int)settings->ordinal : 0;
    device->caps.threads = 1;
    if (!parse_precision(settings ? settings->precision : NULL, &device->precision)) {
        status =
            fire_fail(error, FIRE_BAD_REQUEST, "precision",
                      "precision must be f32, 3xtf32 or tf32-early, got %s", settings->precision);
        gpu_close(device);
        return status;
    }
    status = cublas_table_load(&device->cublas, error);
    if (status == FIRE_OK) {
        device->cpu = fire_cpu_backend();
        status = device->cpu->open(&cpu_settings, &device->cpu_device, error);
    }
    if (status != FIRE_OK) {
        gpu_close(device);
        return status;
    }
    status = open_gpu(device, settings ? settings->slot_bytes : 0);
    if (status == FIRE_OK)
        status = start_threads(device);
    if (status != FIRE_OK)
        return fail_open(device, status, error);
    snprintf(device->caps.reason, sizeof(device->caps.reason), "%u slots of %zu MiB, %s", slots,
             device->slot_bytes >> 20,
             settings && settings->precision ? settings->precision : "f32");
    *out = device;
    return FIRE_OK;
}

/* --- the table ------------------------------------------------------------------------------- */

/* Without a driver the count is left as it was. */
static enum fire_status gpu_probe(struct fire_caps *caps)
{
    int count = 0, driver = 0;
    cudaError_t error = cudaGetDeviceCount(&count);

    memset(caps, 0, sizeof(*caps));
    if (error != cudaSuccess || count <= 0) {
        (void)cudaGetLastError();
        if (cudaDriverGetVersion(&driver) != cudaSuccess)
            driver = 0;
        snprintf(caps->reason, sizeof(caps->reason), "%s%s",
                 error != cudaSuccess ? cudaGetErrorString(error) : "no CUDA device",
                 driver == 0 ? "; no NVIDIA driver is loaded" : "");
        return FIRE_DEVICE_LOST;
    }
    caps->threads = (uint32_t)count; /* how many GPUs there are */
    snprintf(caps->path, sizeof(caps->path), "cuda");
    snprintf(caps->name, sizeof(caps->name), "%d CUDA device%s", count, count == 1 ? "" : "s");
    return FIRE_OK;
}

static void *gpu_host_alloc(struct fire_device *device, size_t bytes)
{
    (void)device; /* weights are gathered into pinned memory: callers' own need not be */
    return bytes > SIZE_MAX - 63 ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void gpu_host_free(struct fire_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static enum fire_status gpu_submit(struct fire_device *device, struct fire_batch *batch)
{
    enum fire_status status = FIRE_OK;

    batch->next = NULL;
    batch->finished = false;
    batch->status = FIRE_OK;
    pthread_mutex_lock(&device->lock);
    if (device->dead) {
        status = FIRE_DEVICE_LOST;
    } else if (batch->urgent) {
        batch->next = device->head;
        device->head = batch;
        if (!batch->next)
            device->tail = &batch->next;
    } else {
        *device->tail = batch;
        device->tail = &batch->next;
    }
    pthread_cond_signal(&device->queued);
    pthread_mutex_unlock(&device->lock);
    return status;
}

static bool gpu_poll(struct fire_device *device, const struct fire_batch *batch)
{
    bool finished;

    pthread_mutex_lock(&device->lock);
    finished = batch->finished;
    pthread_mutex_unlock(&device->lock);
    return finished;
}

static enum fire_status gpu_wait(struct fire_device *device, const struct fire_batch *batch)
{
    enum fire_status status;

    pthread_mutex_lock(&device->lock);
    while (!batch->finished)
        pthread_cond_wait(&device->finished, &device->lock);
    status = batch->status;
    pthread_mutex_unlock(&device->lock);
    return status;
}

/* Host memory beside the slots: what the CPU pool would take for the plans that are its. */
static uint64_t gpu_workspace_bytes(const struct fire_device *device, const struct fire_plan *plan)
{
    return device->cpu->workspace_bytes(device->cpu_device, plan);
}

static void gpu_caps(const struct fire_device *device, struct fire_caps *caps)
{
    *caps = device->caps;
}

static const char *gpu_last_error(const struct fire_device *device)
{
    return device->last_error;
}

__attribute__((visibility("default"))) const struct fire_backend *fire_plugin_backend(void);

const struct fire_backend *fire_plugin_backend(void)
{
    static const struct fire_backend backend = {
        .abi = FIRE_BACKEND_ABI,
        .name = "cuda",
        .probe = gpu_probe,
        .open = gpu_open,
        .close = gpu_close,
        .host_alloc = gpu_host_alloc,
        .host_free = gpu_host_free,
        .submit = gpu_submit,
        .poll = gpu_poll,
        .wait = gpu_wait,
        .workspace_bytes = gpu_workspace_bytes,
        .caps = gpu_caps,
        .last_error = gpu_last_error,
    };

    return &backend;
}
