/* runtime_stream: streams and events as programs call them. */
#include <stdio.h>
#include <stdlib.h>

#include "emulator.h"

static int create(int code, cudaStream_t *out, unsigned flags, int priority)
{
    *out = NULL;
    if (!code && emu_world.device_count == 0)
        code = cudaErrorInsufficientDriver;
    if (!code)
        *out = (cudaStream_t)(void *)emu_stream_new(flags, priority);
    return emu_leave(code);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return create(EMU_ENTER(cudaStreamCreate), out, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return create(EMU_ENTER(cudaStreamCreateWithFlags), out, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    return create(EMU_ENTER(cudaStreamCreateWithPriority), out, flags, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    const int code = EMU_ENTER(cudaStreamDestroy);
    struct emu_stream *const stream = emu_stream_of(handle);

    if (!stream || (uintptr_t)handle <= 2)
        return emu_leave(code ? code : cudaErrorInvalidResourceHandle);
    emu_stream_free(stream);
    return emu_leave(code);
}

/* Waiting for a captured stream breaks the capture. */
static int refuse_captured(const struct emu_stream *stream)
{
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    if (!stream->capture)
        return 0;
    emu_complain("a stream was waited for, or asked, while it is captured");
    emu_capture_break();
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    int code = EMU_ENTER(cudaStreamSynchronize);
    struct emu_stream *const stream = code ? NULL : emu_stream_of(handle);

    if (!code)
        code = refuse_captured(stream);
    if (!code) {
        if ((uintptr_t)handle <= 2)
            emu_finish_device(stream->device);
        emu_stream_finish(stream, stream->queued_count);
        emu_host_wait_until(stream->ready_s);
        code = emu_device_code(stream->device);
    }
    return emu_leave(code);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    int code = EMU_ENTER(cudaStreamQuery);
    struct emu_stream *const stream = code ? NULL : emu_stream_of(handle);

    if (!code)
        code = refuse_captured(stream);
    if (!code && stream->done_count < stream->queued_count) {
        code = cudaErrorNotReady;
        if (emu_world.schedule == SCHEDULE_LAZY)
            emu_stream_finish(stream, stream->done_count + 1);
    } else if (!code && emu_host_now() < stream->ready_s) {
        emu_host_wait_until(stream->ready_s);
    }
    if (!code || code == cudaErrorNotReady)
        code = stream && emu_device_code(stream->device) ? emu_device_code(stream->device) : code;
    return emu_leave(code);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags)
{
    int code = EMU_ENTER(cudaStreamWaitEvent);
    struct emu_stream *const stream = code ? NULL : emu_stream_of(handle);
    struct emu_event *const event = code ? NULL : emu_event_of(event_handle);
    struct emu_op *op;

    (void)flags;
    if (!code && (!stream || !event))
        code = cudaErrorInvalidResourceHandle;
    if (code)
        return emu_leave(code);
    op = emu_op_new(OP_WAIT, 0);
    op->event = event;
    op->record = event->record_count;
    event->references++;
    if (emu_capture_alive(event->capture))
        code = emu_graph_add(stream, op);
    else
        code = emu_stream_push(stream, op);
    return emu_leave(code);
}

/* --- events */

static int event_create(int code, cudaEvent_t *out, unsigned flags)
{
    *out = NULL;
    if (!code && emu_world.device_count == 0)
        code = cudaErrorInsufficientDriver;
    if (!code)
        *out = (cudaEvent_t)(void *)emu_event_new(flags);
    return emu_leave(code);
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return event_create(EMU_ENTER(cudaEventCreate), out, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    return event_create(EMU_ENTER(cudaEventCreateWithFlags), out, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    const int code = EMU_ENTER(cudaEventDestroy);
    struct emu_event *const event = emu_event_of(handle);

    if (!event)
        return emu_leave(code ? code : cudaErrorInvalidResourceHandle);
    emu_world.counters.live_events--;
    emu_event_drop(event);
    return emu_leave(code);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle)
{
    int code = EMU_ENTER(cudaEventRecord);
    struct emu_stream *const stream = code ? NULL : emu_stream_of(stream_handle);
    struct emu_event *const event = code ? NULL : emu_event_of(handle);
    struct emu_op *op;

    if (!code && (!stream || !event))
        code = cudaErrorInvalidResourceHandle;
    if (!code && stream->device != event->device)
        code = cudaErrorInvalidResourceHandle;
    if (code)
        return emu_leave(code);
    event->capture = stream->capture;
    if (stream->capture) {
        event->capture_node = stream->capture_last;
        return emu_leave(0);
    }
    op = emu_op_new(OP_RECORD, 0);
    op->event = event;
    op->record = ++event->record_count;
    event->references++;
    event->polls = 0;
    return emu_leave(emu_stream_push(stream, op));
}

cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    int code = EMU_ENTER(cudaEventQuery);
    struct emu_event *const event = code ? NULL : emu_event_of(handle);

    if (!code && !event)
        code = cudaErrorInvalidResourceHandle;
    if (!code && emu_capture_alive(event->capture))
        code = cudaErrorCapturedEvent;
    if (!code && !emu_event_done(event))
        code = cudaErrorNotReady;
    else if (!code)
        emu_host_wait_until(event->time_s);
    if (event && emu_device_code(event->device))
        code = emu_device_code(event->device);
    return emu_leave(code);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    int code = EMU_ENTER(cudaEventSynchronize);
    struct emu_event *const event = code ? NULL : emu_event_of(handle);
    double time_s = emu_host_now();

    if (!code && !event)
        code = cudaErrorInvalidResourceHandle;
    if (!code && emu_capture_alive(event->capture))
        code = cudaErrorCapturedEvent;
    if (!code) {
        emu_event_finish(event);
        emu_host_wait_until(event->time_s);
        time_s = emu_host_now();
        code = emu_device_code(event->device);
    }
    emu_leave(code);
    emu_turns_wait(time_s);
    return code;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    int code = EMU_ENTER(cudaEventElapsedTime);
    struct emu_event *const first = code ? NULL : emu_event_of(start);
    struct emu_event *const last = code ? NULL : emu_event_of(end);

    if (!code && (!first || !last || first->record_count == 0 || last->record_count == 0 ||
                  ((first->flags | last->flags) & cudaEventDisableTiming)))
        code = cudaErrorInvalidResourceHandle;
    if (!code && (first->done_count < first->record_count || last->done_count < last->record_count))
        code = cudaErrorNotReady;
    if (!code)
        *ms = (float)((last->time_s - first->time_s) * 1e3);
    return emu_leave(code);
}

/* --- functions of the host in a stream */

struct host_call {
    cudaHostFn_t function;
    void *data;
};

static int run_host_call(struct emu_op *op)
{
    const struct host_call call = *(struct host_call *)(void *)op->data;

    emu_unlock();
    call.function(call.data);
    emu_lock();
    return 0;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data)
{
    int code = EMU_ENTER(cudaLaunchHostFunc);
    struct emu_stream *const stream = code ? NULL : emu_stream_of(handle);
    struct emu_op *op;

    if (!code && (!stream || !function))
        code = cudaErrorInvalidValue;
    if (code)
        return emu_leave(code);
    op = emu_op_new(OP_HOST, sizeof(struct host_call));
    *(struct host_call *)(void *)op->data = (struct host_call){ function, data };
    op->run = run_host_call;
    return emu_leave(emu_stream_push(stream, op));
}
