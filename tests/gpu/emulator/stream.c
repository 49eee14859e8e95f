/* stream: queues of operations, events, and the schedule that runs them.
 *
 *   eager   every operation runs when it is queued
 *   lazy    an operation runs only when a wait needs it, as late as possible
 *   random  some run between two calls, in any order that streams and events allow
 *
 * Under lazy and random the memory that a queued copy will write to is poisoned at once, so that
 * reading it before the wait is seen. */
#include <stdlib.h>
#include <string.h>

#include "emulator.h"

#define STREAM_MAGIC   0x5354524Du
#define EVENT_MAGIC    0x4556454Eu
#define POLLS_PATIENCE 3u /* lazy: so many polls say "not ready" before one runs the work */

static struct {
    uint64_t in; /* operations until the one that fails; 0: none */
    int code;
} failure;

struct emu_op *emu_op_new(enum emu_op_kind kind, size_t data_bytes)
{
    struct emu_op *const op = calloc(1, sizeof(*op) + data_bytes);

    if (!op)
        abort();
    op->references = 1;
    op->kind = kind;
    op->cost.engine = ENGINE_NONE;
    op->device = emu_current_device();
    return op;
}

void emu_op_drop(struct emu_op *op)
{
    if (--op->references > 0)
        return;
    if (op->release)
        op->release(op);
    if (op->event)
        emu_event_drop(op->event);
    if (op->graph)
        emu_graph_drop(op->graph);
    free(op);
}

/* --- what is queued, and the host memory it will touch */

static bool overlap(const struct emu_host_range *a, const struct emu_host_range *b)
{
    const char *const a_start = a->start;
    const char *const b_start = b->start;

    if (!a_start || !b_start || a->height == 0 || b->height == 0)
        return false;
    return a_start < b_start + b->pitch * (b->height - 1) + b->width &&
           b_start < a_start + a->pitch * (a->height - 1) + a->width;
}

static bool op_reads(const struct emu_op *op, const struct emu_host_range *range)
{
    if (op->kind != OP_GRAPH)
        return overlap(&op->host_read, range);
    for (uint32_t i = 0; i < op->graph->node_count; i++) {
        if (overlap(&op->graph->nodes[i].op->host_read, range))
            return true;
    }
    return false;
}

static bool queued_read(const struct emu_host_range *range)
{
    for (const struct emu_stream *stream = emu_world.streams; stream; stream = stream->next) {
        for (const struct emu_queued *queued = stream->head; queued; queued = queued->next) {
            if (op_reads(queued->op, range))
                return true;
        }
    }
    return false;
}

/* Not what something queued, or `op` itself, has yet to read. */
static void poison_range(const struct emu_op *op, const struct emu_host_range *range)
{
    if (!range->start || op_reads(op, range) || queued_read(range))
        return;
    for (size_t row = 0; row < range->height; row++)
        memset((char *)range->start + row * range->pitch, KERNEL_POISON, range->width);
}

static void poison_targets(const struct emu_op *op)
{
    if (op->kind != OP_GRAPH) {
        poison_range(op, &op->host_write);
        return;
    }
    for (uint32_t i = 0; i < op->graph->node_count; i++)
        poison_range(op, &op->graph->nodes[i].op->host_write);
}

/* A source was read; copies that wait to write there may now poison it. */
static void poison_after(const struct emu_op *done)
{
    if (emu_world.schedule == SCHEDULE_EAGER || !done->host_read.start)
        return;
    for (struct emu_stream *stream = emu_world.streams; stream; stream = stream->next) {
        for (struct emu_queued *queued = stream->head; queued; queued = queued->next) {
            if (queued->op->kind != OP_GRAPH && overlap(&queued->op->host_write, &done->host_read))
                poison_range(queued->op, &queued->op->host_write);
        }
    }
}

/* --- running */

double emu_op_execute(struct emu_op *op, double start_s)
{
    struct emu_device *const device = &emu_world.devices[op->device];
    double begin = start_s;
    double end;
    int code = 0;

    if (device->lost || !op->run)
        return start_s;
    emu_world.counters.operations++;
    if (failure.in > 0 && --failure.in == 0)
        code = failure.code ? failure.code : cudaErrorIllegalAddress;
    if (!code)
        code = op->run(op);
    if (code)
        device->lost = code;

    if (op->cost.engine == ENGINE_NONE)
        return start_s;
    if (begin < device->engine_free_s[op->cost.engine])
        begin = device->engine_free_s[op->cost.engine];
    end = begin + emu_model_seconds(device->model, &op->cost);
    device->engine_free_s[op->cost.engine] = end;
    device->engine_busy_s[op->cost.engine] += end - begin;
    device->flops += op->cost.flops;
    if (device->end_s < end)
        device->end_s = end;
    return end;
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Runs the first operation of the queue; false when there is none or it must wait. */
static bool step(struct emu_stream *stream)
{
    struct emu_queued *const first = stream->head;
    struct emu_op *op;
    double start_s;

    if (!first)
        return false;
    op = first->op;
    if (op->kind == OP_WAIT && op->event->done_count < op->record)
        return false;
    stream->head = first->next;
    if (!stream->head)
        stream->tail = &stream->head;
    free(first);
    start_s = later(stream->ready_s, op->queued_s);
    switch (op->kind) {
    case OP_RECORD:
        op->event->done_count = op->record;
        op->event->time_s = start_s;
        break;
    case OP_WAIT: stream->ready_s = later(start_s, op->event->time_s); break;
    case OP_GRAPH:
        if (!emu_world.devices[stream->device].lost)
            stream->ready_s = emu_graph_execute(op->graph, start_s);
        break;
    case OP_WORK:
    case OP_HOST: stream->ready_s = emu_op_execute(op, start_s); break;
    }
    stream->done_count++;
    poison_after(op);
    emu_op_drop(op);
    return true;
}

/* The stream and position of record number `record` of the event. */
static struct emu_stream *find_record(const struct emu_event *event, uint64_t record,
                                      uint64_t *position)
{
    for (struct emu_stream *stream = emu_world.streams; stream; stream = stream->next) {
        uint64_t left = 0;
        const struct emu_queued *found = NULL;

        for (const struct emu_queued *queued = stream->head; queued; queued = queued->next) {
            left += found != NULL;
            if (queued->op->kind == OP_RECORD && queued->op->event == event &&
                queued->op->record == record)
                found = queued;
        }
        *position = stream->queued_count - left;
        if (found)
            return stream;
    }
    return NULL;
}

static bool random_step(void)
{
    struct emu_stream *candidates[64];
    uint32_t count = 0;

    for (struct emu_stream *stream = emu_world.streams; stream && count < 64; stream = stream->next)
        if (stream->head)
            candidates[count++] = stream;
    return count > 0 && step(candidates[emu_random(count)]);
}

void emu_random_steps(void)
{
    if (emu_world.schedule != SCHEDULE_RANDOM || emu_random(8) < emu_world.laziness)
        return;
    for (uint64_t n = emu_random(4); n > 0; n--)
        random_step();
}

void emu_stream_finish(struct emu_stream *stream, uint64_t position)
{
    while (stream->done_count < position) {
        struct emu_stream *owner;
        uint64_t needed = 0;

        emu_random_steps();
        if (stream->done_count >= position || step(stream))
            continue;
        if (!stream->head)
            break; /* another thread runs the last one */
        owner = find_record(stream->head->op->event, stream->head->op->record, &needed);
        if (!owner || owner == stream)
            break;
        emu_stream_finish(owner, needed);
    }
}

void emu_finish_device(uint32_t device)
{
    for (struct emu_stream *stream = emu_world.streams; stream; stream = stream->next) {
        if (stream->device == device)
            emu_stream_finish(stream, stream->queued_count);
    }
}

void emu_finish_all(void)
{
    for (uint32_t i = 0; i < emu_world.device_count; i++)
        emu_finish_device(i);
}

void emu_fail_operation(uint64_t nth, int code)
{
    failure.in = nth;
    failure.code = code;
}

void emu_revive(void)
{
    emu_lock();
    emu_finish_all();
    failure.in = 0;
    for (uint32_t i = 0; i < EMULATOR_DEVICES_MAX; i++)
        emu_world.devices[i].lost = 0;
    emu_last_error(true);
    emu_unlock();
}

/* --- streams */

struct emu_stream *emu_stream_new(unsigned flags, int priority)
{
    struct emu_stream *const stream = calloc(1, sizeof(*stream));

    if (!stream)
        abort();
    stream->magic = STREAM_MAGIC;
    stream->device = emu_current_device();
    stream->flags = flags;
    stream->priority = priority;
    stream->tail = &stream->head;
    stream->next = emu_world.streams;
    emu_world.streams = stream;
    emu_world.counters.live_streams++;
    return stream;
}

void emu_stream_free(struct emu_stream *stream)
{
    struct emu_stream **link = &emu_world.streams;

    emu_stream_finish(stream, stream->queued_count);
    while (*link && *link != stream)
        link = &(*link)->next;
    if (*link)
        *link = stream->next;
    if (stream->capture)
        emu_graph_drop(stream->capture);
    stream->magic = 0;
    free(stream);
    emu_world.counters.live_streams--;
}

struct emu_stream *emu_stream_of(cudaStream_t handle)
{
    if ((uintptr_t)handle <= 2)
        return &emu_world.devices[emu_current_device()].null_stream;
    for (struct emu_stream *stream = emu_world.streams; stream; stream = stream->next) {
        if (stream == (struct emu_stream *)(void *)handle)
            return stream;
    }
    emu_complain("%p is no stream, or one that was destroyed", (void *)handle);
    return NULL;
}

bool emu_stream_capturing(const struct emu_stream *stream)
{
    return stream->capture != NULL;
}

static bool is_null(const struct emu_stream *stream)
{
    return stream->magic != STREAM_MAGIC;
}

/* Work on the null stream runs at once, after all that blocking streams hold: it orders itself
 * with every one of them, so there is nothing to schedule. */
static int push_null(struct emu_stream *stream, struct emu_op *op)
{
    double start_s = later(stream->ready_s, op->queued_s);

    if (emu_world.capture_any) {
        emu_complain("the null stream was used while another is captured");
        emu_capture_break();
        emu_op_drop(op);
        return cudaErrorStreamCaptureImplicit;
    }
    for (struct emu_stream *other = emu_world.streams; other; other = other->next) {
        if (other->device != stream->device || (other->flags & cudaStreamNonBlocking))
            continue;
        emu_stream_finish(other, other->queued_count);
        start_s = later(start_s, other->ready_s);
    }
    if (op->kind == OP_RECORD) {
        op->event->done_count = op->record;
        op->event->time_s = start_s;
    } else if (op->kind == OP_WAIT) {
        emu_event_finish(op->event);
        start_s = later(start_s, op->event->time_s);
    } else if (op->kind == OP_GRAPH) {
        start_s = emu_graph_execute(op->graph, start_s);
    } else {
        start_s = emu_op_execute(op, start_s);
    }
    stream->ready_s = start_s;
    emu_op_drop(op);
    return emu_device_code(stream->device);
}

int emu_stream_push(struct emu_stream *stream, struct emu_op *op)
{
    struct emu_queued *queued;

    op->device = stream->device;
    op->queued_s = emu_host_now();
    if (stream->capture)
        return emu_graph_add(stream, op);
    if (is_null(stream))
        return push_null(stream, op);
    queued = calloc(1, sizeof(*queued));
    if (!queued)
        abort();
    if (emu_world.schedule != SCHEDULE_EAGER)
        poison_targets(op);
    queued->op = op;
    *stream->tail = queued;
    stream->tail = &queued->next;
    stream->queued_count++;
    if (emu_world.schedule == SCHEDULE_EAGER)
        emu_stream_finish(stream, stream->queued_count);
    return 0;
}

/* --- events */

struct emu_event *emu_event_of(cudaEvent_t handle)
{
    struct emu_event *const event = (struct emu_event *)(void *)handle;

    if (event && event->magic == EVENT_MAGIC)
        return event;
    emu_complain("%p is no event, or one that was destroyed", (void *)handle);
    return NULL;
}

struct emu_event *emu_event_new(unsigned flags)
{
    struct emu_event *const event = calloc(1, sizeof(*event));

    if (!event)
        abort();
    event->magic = EVENT_MAGIC;
    event->references = 1;
    event->flags = flags;
    event->device = emu_current_device();
    emu_world.counters.live_events++;
    return event;
}

void emu_event_drop(struct emu_event *event)
{
    if (--event->references > 0)
        return;
    event->magic = 0;
    free(event);
}

void emu_event_finish(struct emu_event *event)
{
    uint64_t position = 0;
    struct emu_stream *const stream = find_record(event, event->record_count, &position);

    if (stream)
        emu_stream_finish(stream, position);
}

/* Lazy: polls are answered "not ready" a few times, then the work is done, or no loop of polls
 * would ever end. */
bool emu_event_done(struct emu_event *event)
{
    if (event->done_count < event->record_count && emu_world.schedule == SCHEDULE_LAZY &&
        ++event->polls > POLLS_PATIENCE) {
        event->polls = 0;
        emu_event_finish(event);
    }
    return event->done_count >= event->record_count;
}
