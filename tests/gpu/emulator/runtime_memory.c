/* runtime_memory: allocation, copies and fills as programs call them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"

/* No capture allows what orders itself with everything on the device. */
static int refuse_capture(const char *call)
{
    if (!emu_world.capture_any)
        return 0;
    emu_complain("%s while a stream is captured", call);
    emu_capture_break();
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    int code = EMU_ENTER(cudaMemGetInfo);
    const struct emu_device *const device = &emu_world.devices[emu_current_device()];

    if (!code && emu_world.device_count == 0)
        code = cudaErrorInsufficientDriver;
    if (!code) {
        *total_bytes = device->memory_limit;
        *free_bytes = device->memory_limit > device->memory_used
                          ? device->memory_limit - device->memory_used
                          : 0;
    }
    return emu_leave(code);
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    int code = EMU_ENTER(cudaMalloc);
    uint64_t address = 0;

    *out = NULL;
    emu_world.counters.device_allocations++;
    if (!code && emu_world.device_count == 0)
        code = cudaErrorInsufficientDriver;
    if (!code)
        code = refuse_capture("cudaMalloc");
    if (!code && bytes > 0) {
        address = emu_memory_allocate(emu_current_device(), bytes);
        code = address ? 0 : cudaErrorMemoryAllocation;
    }
    if (!code)
        *out = (void *)(uintptr_t)address;
    return emu_leave(code);
}

cudaError_t cudaFree(void *pointer)
{
    int code = EMU_ENTER(cudaFree);

    if (!pointer)
        return emu_leave(code);
    if (!code)
        code = refuse_capture("cudaFree");
    emu_finish_device(emu_current_device());
    if (!emu_memory_release((uint64_t)(uintptr_t)pointer)) {
        emu_complain("cudaFree: %s", emu_memory_words(pointer));
        code = code ? code : cudaErrorInvalidValue;
    }
    return emu_leave(code);
}

static int allocate_host(int code, void **out, size_t bytes)
{
    *out = NULL;
    emu_world.counters.host_allocations++;
    if (!code && emu_world.device_count == 0)
        code = cudaErrorInsufficientDriver;
    if (!code && bytes > 0) {
        *out = emu_pinned_allocate(bytes);
        code = *out ? 0 : cudaErrorMemoryAllocation;
    }
    return emu_leave(code);
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return allocate_host(EMU_ENTER(cudaMallocHost), out, bytes);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    return allocate_host(EMU_ENTER(cudaHostAlloc), out, bytes);
}

cudaError_t cudaFreeHost(void *pointer)
{
    int code = EMU_ENTER(cudaFreeHost);

    emu_finish_all();
    if (pointer && !emu_pinned_release(pointer, false)) {
        emu_complain("cudaFreeHost: %p was not allocated by cudaMallocHost", pointer);
        code = code ? code : cudaErrorInvalidValue;
    }
    return emu_leave(code);
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    int code = EMU_ENTER(cudaHostRegister);

    (void)flags;
    if (!code && (!pointer || bytes == 0))
        code = cudaErrorInvalidValue;
    if (!code && !emu_pinned_register(pointer, bytes))
        code = cudaErrorHostMemoryAlreadyRegistered;
    return emu_leave(code);
}

cudaError_t cudaHostUnregister(void *pointer)
{
    int code = EMU_ENTER(cudaHostUnregister);

    emu_finish_all();
    if (!emu_pinned_release(pointer, true))
        code = code ? code : cudaErrorHostMemoryNotRegistered;
    return emu_leave(code);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    const int code = EMU_ENTER(cudaPointerGetAttributes);
    const int device = emu_memory_device_of(pointer);

    if (code)
        return emu_leave(code);
    memset(attributes, 0, sizeof(*attributes));
    attributes->device = device >= 0 ? device : (int)emu_current_device();
    attributes->type = cudaMemoryTypeUnregistered;
    if (device >= 0) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->devicePointer = (void *)(uintptr_t)pointer;
    } else if (emu_pinned_holds(pointer, 1)) {
        attributes->type = cudaMemoryTypeHost;
        attributes->hostPointer = (void *)(uintptr_t)pointer;
    }
    return emu_leave(0);
}

/* --- copies */

struct copy {
    char *to;
    size_t to_pitch;
    const char *from;
    size_t from_pitch;
    size_t width;
    size_t height;
    void *staged; /* pageable source, as it was when the copy was queued */
};

static size_t extent(size_t pitch, size_t width, size_t height)
{
    return height == 0 ? 0 : pitch * (height - 1) + width;
}

/* The bytes behind a pointer: the shadow of a device address, or itself. */
static char *place(const char *pointer, size_t bytes)
{
    if (emu_memory_is_device(pointer))
        return emu_memory_shadow(pointer, bytes);
    return (char *)(uintptr_t)pointer;
}

static int run_copy(struct emu_op *op)
{
    const struct copy *const copy = (const struct copy *)(const void *)op->data;
    char *const to = place(copy->to, extent(copy->to_pitch, copy->width, copy->height));
    const char *from = place(copy->from, extent(copy->from_pitch, copy->width, copy->height));
    size_t from_pitch = copy->from_pitch;

    if (!to || !from) {
        emu_complain("a queued copy found its device memory gone: %s",
                     emu_memory_words(to ? copy->from : copy->to));
        return cudaErrorIllegalAddress;
    }
    if (copy->staged) {
        from = copy->staged;
        from_pitch = copy->width;
    }
    for (size_t row = 0; row < copy->height; row++)
        memmove(to + row * copy->to_pitch, from + row * from_pitch, copy->width);
    if (op->cost.engine == ENGINE_TO_DEVICE)
        emu_world.counters.bytes_to_device += copy->width * copy->height;
    if (op->cost.engine == ENGINE_TO_HOST)
        emu_world.counters.bytes_to_host += copy->width * copy->height;
    return 0;
}

static void release_copy(struct emu_op *op)
{
    free(((struct copy *)(void *)op->data)->staged);
}

static int check_direction(const struct copy *copy, enum cudaMemcpyKind kind)
{
    const bool to_device = emu_memory_is_device(copy->to);
    const bool from_device = emu_memory_is_device(copy->from);
    const bool good = kind == cudaMemcpyDefault ||
                      (kind == cudaMemcpyHostToDevice && to_device && !from_device) ||
                      (kind == cudaMemcpyDeviceToHost && !to_device && from_device) ||
                      (kind == cudaMemcpyDeviceToDevice && to_device && from_device) ||
                      (kind == cudaMemcpyHostToHost && !to_device && !from_device);

    if (!good) {
        emu_complain("a copy of kind %d goes from %s to %s", (int)kind,
                     from_device ? "a device" : "the host", to_device ? "a device" : "the host");
        return cudaErrorInvalidValue;
    }
    if (!copy->to || !copy->from ||
        !place(copy->to, extent(copy->to_pitch, copy->width, copy->height)) ||
        !place(copy->from, extent(copy->from_pitch, copy->width, copy->height))) {
        emu_complain("a copy of %zu rows of %zu bytes leaves its allocation: to %p; %s",
                     copy->height, copy->width, (void *)copy->to,
                     emu_memory_words(to_device ? copy->to : copy->from));
        return cudaErrorInvalidValue;
    }
    return 0;
}

/* Reads a pageable source now, as the real runtime may; pinned memory is read when the copy runs.
 * Returns whether the call must wait for the copy. */
static bool prepare_host_side(struct emu_op *op, struct copy *copy)
{
    const bool to_device = emu_memory_is_device(copy->to);
    const bool from_device = emu_memory_is_device(copy->from);
    const size_t from_extent = extent(copy->from_pitch, copy->width, copy->height);
    const size_t to_extent = extent(copy->to_pitch, copy->width, copy->height);
    bool wait = false;

    if (!from_device && !emu_pinned_holds(copy->from, from_extent)) {
        emu_world.counters.pageable_copies++;
        copy->staged = malloc(copy->width * copy->height);
        for (size_t row = 0; copy->staged && row < copy->height; row++)
            memcpy((char *)copy->staged + row * copy->width, copy->from + row * copy->from_pitch,
                   copy->width);
    } else if (!from_device) {
        op->host_read = (struct emu_host_range){ (void *)(uintptr_t)copy->from, copy->from_pitch,
                                                 copy->width, copy->height };
    }
    if (!to_device) {
        if (!emu_pinned_holds(copy->to, to_extent)) {
            emu_world.counters.pageable_copies++;
            wait = true;
        }
        op->host_write =
            (struct emu_host_range){ copy->to, copy->to_pitch, copy->width, copy->height };
    }
    op->cost.engine = to_device && from_device ? ENGINE_COMPUTE
                      : to_device              ? ENGINE_TO_DEVICE
                      : from_device            ? ENGINE_TO_HOST
                                               : ENGINE_NONE;
    op->cost.bytes = (double)copy->width * (double)copy->height;
    if (op->cost.engine == ENGINE_COMPUTE)
        op->cost.bytes *= 2.0;
    return wait;
}

static int queue_copy(cudaStream_t handle, struct copy copy, enum cudaMemcpyKind kind, bool wait)
{
    struct emu_stream *const stream = emu_stream_of(handle);
    struct emu_op *op;
    int code;

    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (copy.width == 0 || copy.height == 0)
        return 0;
    code = check_direction(&copy, kind);
    if (code)
        return code;
    op = emu_op_new(OP_WORK, sizeof(copy));
    wait = prepare_host_side(op, &copy) || wait;
    *(struct copy *)(void *)op->data = copy;
    op->run = run_copy;
    op->release = release_copy;
    code = emu_stream_push(stream, op);
    if (!code && wait && !stream->capture) {
        emu_stream_finish(stream, stream->queued_count);
        emu_host_wait_until(stream->ready_s);
        code = emu_device_code(stream->device);
    }
    return code;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    const struct copy copy = { to, bytes, from, bytes, bytes, 1, NULL };
    int code = EMU_ENTER(cudaMemcpy);

    if (!code)
        code = queue_copy(NULL, copy, kind, true);
    return emu_leave(code);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const struct copy copy = { to, bytes, from, bytes, bytes, 1, NULL };
    int code = EMU_ENTER(cudaMemcpyAsync);

    if (!code)
        code = queue_copy(stream, copy, kind, false);
    return emu_leave(code);
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind kind)
{
    const struct copy copy = { to, to_pitch, from, from_pitch, width, height, NULL };
    int code = EMU_ENTER(cudaMemcpy2D);

    if (!code && (width > to_pitch || width > from_pitch))
        code = cudaErrorInvalidPitchValue;
    if (!code)
        code = queue_copy(NULL, copy, kind, true);
    return emu_leave(code);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    const struct copy copy = { to, to_pitch, from, from_pitch, width, height, NULL };
    int code = EMU_ENTER(cudaMemcpy2DAsync);

    if (!code && (width > to_pitch || width > from_pitch))
        code = cudaErrorInvalidPitchValue;
    if (!code)
        code = queue_copy(stream, copy, kind, false);
    return emu_leave(code);
}

/* --- fills */

struct fill {
    char *to;
    size_t pitch;
    size_t width;
    size_t height;
    int value;
};

static int run_fill(struct emu_op *op)
{
    const struct fill *const fill = (const struct fill *)(const void *)op->data;
    char *const to = emu_memory_shadow(fill->to, extent(fill->pitch, fill->width, fill->height));

    if (!to) {
        emu_complain("a queued fill found its device memory gone: %s", emu_memory_words(fill->to));
        return cudaErrorIllegalAddress;
    }
    for (size_t row = 0; row < fill->height; row++)
        memset(to + row * fill->pitch, fill->value, fill->width);
    return 0;
}

static int queue_fill(cudaStream_t handle, const struct fill *fill)
{
    struct emu_stream *const stream = emu_stream_of(handle);
    struct emu_op *op;

    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (fill->width == 0 || fill->height == 0)
        return 0;
    if (!emu_memory_shadow(fill->to, extent(fill->pitch, fill->width, fill->height))) {
        emu_complain("a fill of %zu rows of %zu bytes leaves its allocation: %s", fill->height,
                     fill->width, emu_memory_words(fill->to));
        return cudaErrorInvalidValue;
    }
    op = emu_op_new(OP_WORK, sizeof(*fill));
    *(struct fill *)(void *)op->data = *fill;
    op->run = run_fill;
    op->cost.engine = ENGINE_COMPUTE;
    op->cost.bytes = (double)fill->width * (double)fill->height;
    return emu_stream_push(stream, op);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    const struct fill fill = { to, bytes, bytes, 1, value };
    int code = EMU_ENTER(cudaMemset);

    if (!code)
        code = queue_fill(NULL, &fill);
    return emu_leave(code);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    const struct fill fill = { to, bytes, bytes, 1, value };
    int code = EMU_ENTER(cudaMemsetAsync);

    if (!code)
        code = queue_fill(stream, &fill);
    return emu_leave(code);
}

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream)
{
    const struct fill fill = { to, pitch, width, height, value };
    int code = EMU_ENTER(cudaMemset2DAsync);

    if (!code)
        code = queue_fill(stream, &fill);
    return emu_leave(code);
}
