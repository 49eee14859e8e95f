/* graph: operations recorded instead of run, and run again as often as one likes.
 *
 * A captured stream adds nodes; an event recorded in it carries the capture to other streams. A
 * node starts after those it depends on. An executable graph is the graph itself, shared. */
#include <stdlib.h>
#include <string.h>

#include "emulator.h"

#define GRAPH_MAGIC 0x47524150u

struct emu_graph *emu_graph_new(void)
{
    struct emu_graph *const graph = calloc(1, sizeof(*graph));

    if (!graph)
        abort();
    graph->magic = GRAPH_MAGIC;
    graph->references = 1;
    graph->device = emu_current_device();
    return graph;
}

void emu_graph_drop(struct emu_graph *graph)
{
    if (--graph->references > 0)
        return;
    for (uint32_t i = 0; i < graph->node_count; i++)
        emu_op_drop(graph->nodes[i].op);
    free(graph->nodes);
    graph->magic = 0;
    free(graph);
}

static uint32_t add_node(struct emu_graph *graph, struct emu_op *op)
{
    if (graph->node_count == graph->node_capacity) {
        const uint32_t capacity = graph->node_capacity ? 2 * graph->node_capacity : 32;
        struct emu_node *const nodes = realloc(graph->nodes, capacity * sizeof(*nodes));

        if (!nodes)
            abort();
        graph->nodes = nodes;
        graph->node_capacity = capacity;
    }
    memset(&graph->nodes[graph->node_count], 0, sizeof(*graph->nodes));
    graph->nodes[graph->node_count].op = op;
    return ++graph->node_count;
}

static void depend(struct emu_graph *graph, uint32_t node, uint32_t on)
{
    struct emu_node *const entry = &graph->nodes[node - 1];

    if (on == 0)
        return;
    if (entry->dependency_count == GRAPH_DEPENDENCIES_MAX)
        abort();
    entry->dependency[entry->dependency_count++] = on;
}

bool emu_capture_alive(const struct emu_graph *graph)
{
    for (const struct emu_stream *stream = emu_world.streams; stream; stream = stream->next) {
        if (graph && stream->capture == graph)
            return true;
    }
    return false;
}

/* A wait becomes an empty node that follows both; the stream that waits joins the capture. */
static int capture_wait(struct emu_stream *stream, struct emu_op *op)
{
    struct emu_event *const event = op->event;
    struct emu_graph *const graph = event->capture;
    uint32_t node;

    if (!emu_capture_alive(graph)) {
        emu_complain("a captured stream waits for an event recorded outside the capture");
        emu_capture_break();
        emu_op_drop(op);
        return cudaErrorStreamCaptureIsolation;
    }
    if (!stream->capture) {
        stream->capture = graph;
        stream->capture_last = 0;
        stream->capture_origin = false;
        graph->references++;
    }
    op->kind = OP_WORK;
    node = add_node(graph, op);
    depend(graph, node, stream->capture_last);
    depend(graph, node, event->capture_node);
    stream->capture_last = node;
    return 0;
}

int emu_graph_add(struct emu_stream *stream, struct emu_op *op)
{
    uint32_t node;

    if (op->kind == OP_WAIT)
        return capture_wait(stream, op);
    node = add_node(stream->capture, op);
    depend(stream->capture, node, stream->capture_last);
    stream->capture_last = node;
    return 0;
}

void emu_capture_break(void)
{
    for (struct emu_stream *stream = emu_world.streams; stream; stream = stream->next)
        stream->capture_broken = stream->capture_broken || stream->capture != NULL;
}

static bool ready(const struct emu_graph *graph, uint32_t node, const bool *done)
{
    const struct emu_node *const entry = &graph->nodes[node];

    for (uint32_t i = 0; i < entry->dependency_count; i++) {
        if (!done[entry->dependency[i] - 1])
            return false;
    }
    return !done[node];
}

/* The next node: the first that may run, or under a random schedule any that may. */
static uint32_t choose(const struct emu_graph *graph, const bool *done)
{
    uint32_t chosen = graph->node_count;
    uint32_t count = 0;

    for (uint32_t i = 0; i < graph->node_count; i++) {
        if (!ready(graph, i, done))
            continue;
        if (emu_world.schedule != SCHEDULE_RANDOM)
            return i;
        if (emu_random(++count) == 0)
            chosen = i;
    }
    return chosen;
}

double emu_graph_execute(struct emu_graph *graph, double start_s)
{
    bool *const done = calloc(graph->node_count + 1u, sizeof(*done));
    double *const end_s = calloc(graph->node_count + 1u, sizeof(*end_s));
    double last = start_s;

    if (!done || !end_s)
        abort();
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const uint32_t i = choose(graph, done);
        const struct emu_node *const node = &graph->nodes[i];
        double start = start_s;

        for (uint32_t k = 0; k < node->dependency_count; k++) {
            if (start < end_s[node->dependency[k] - 1])
                start = end_s[node->dependency[k] - 1];
        }
        end_s[i] = emu_op_execute(node->op, start);
        done[i] = true;
        if (last < end_s[i])
            last = end_s[i];
    }
    free(done);
    free(end_s);
    return last;
}

/* --- the functions of the runtime */

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    int code = EMU_ENTER(cudaStreamBeginCapture);
    struct emu_stream *const stream = code ? NULL : emu_stream_of(handle);

    (void)mode;
    if (!code && (!stream || (uintptr_t)handle <= 2))
        code = stream ? cudaErrorStreamCaptureUnsupported : cudaErrorInvalidResourceHandle;
    if (!code && stream->capture)
        code = cudaErrorIllegalState;
    if (!code) {
        stream->capture = emu_graph_new();
        stream->capture_last = 0;
        stream->capture_origin = true;
        stream->capture_broken = false;
        emu_world.capture_any = true;
        emu_world.counters.captures++;
    }
    return emu_leave(code);
}

/* Takes the capture away from every stream that joined; whether all of them came back. */
static bool leave_capture(const struct emu_stream *origin, struct emu_graph *graph)
{
    bool joined = true;

    emu_world.capture_any = false;
    for (struct emu_stream *stream = emu_world.streams; stream; stream = stream->next) {
        if (stream->capture == graph) {
            bool reached = stream == origin || stream->capture_last == 0;

            for (uint32_t i = 0; i < graph->node_count && !reached; i++) {
                for (uint32_t k = 0; k < graph->nodes[i].dependency_count; k++)
                    reached = reached || graph->nodes[i].dependency[k] == stream->capture_last;
            }
            joined = joined && reached;
            stream->capture = NULL;
            emu_graph_drop(graph);
        }
        emu_world.capture_any = emu_world.capture_any || stream->capture != NULL;
    }
    return joined;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out)
{
    int code = EMU_ENTER(cudaStreamEndCapture);
    struct emu_stream *const stream = emu_stream_of(handle);
    struct emu_graph *graph;

    *out = NULL;
    if (!stream || !stream->capture || !stream->capture_origin)
        return emu_leave(code ? code : cudaErrorIllegalState);
    graph = stream->capture;
    graph->references++;
    if (!leave_capture(stream, graph) && !code) {
        emu_complain("a capture ended with streams that had not joined again");
        code = cudaErrorStreamCaptureUnjoined;
    }
    if (stream->capture_broken && !code)
        code = cudaErrorStreamCaptureInvalidated;
    stream->capture_broken = false;
    if (code) {
        emu_graph_drop(graph);
    } else {
        *out = (cudaGraph_t)(void *)graph;
        emu_world.counters.live_graphs++;
    }
    return emu_leave(code);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
    int code = EMU_ENTER(cudaStreamIsCapturing);
    const struct emu_stream *const stream = code ? NULL : emu_stream_of(handle);

    if (!code && !stream)
        code = cudaErrorInvalidResourceHandle;
    if (!code && stream->capture_broken)
        *status = cudaStreamCaptureStatusInvalidated;
    else if (!code)
        *status = stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return emu_leave(code);
}

static struct emu_graph *graph_of(void *handle)
{
    struct emu_graph *const graph = handle;

    if (graph && graph->magic == GRAPH_MAGIC)
        return graph;
    emu_complain("%p is no graph, or one that was destroyed", handle);
    return NULL;
}

static int instantiate(int code, cudaGraphExec_t *out, cudaGraph_t handle)
{
    struct emu_graph *const graph = code ? NULL : graph_of(handle);

    *out = NULL;
    if (!code && !graph)
        code = cudaErrorInvalidValue;
    if (!code) {
        graph->references++;
        emu_world.counters.live_graphs++;
        *out = (cudaGraphExec_t)(void *)graph;
    }
    return emu_leave(code);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    return instantiate(EMU_ENTER(cudaGraphInstantiate), out, graph);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                          unsigned long long flags)
{
    (void)flags;
    return instantiate(EMU_ENTER(cudaGraphInstantiateWithFlags), out, graph);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t stream)
{
    int code = EMU_ENTER(cudaGraphUpload);

    if (!code && (!graph_of(handle) || !emu_stream_of(stream)))
        code = cudaErrorInvalidValue;
    return emu_leave(code);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle)
{
    int code = EMU_ENTER(cudaGraphLaunch);
    struct emu_stream *const stream = code ? NULL : emu_stream_of(stream_handle);
    struct emu_graph *const graph = code ? NULL : graph_of(handle);
    struct emu_op *op;

    if (!code && (!stream || !graph || stream->capture))
        code = cudaErrorInvalidValue;
    if (code)
        return emu_leave(code);
    if (stream->device != graph->device)
        emu_complain("a graph made on device %u is launched on device %u", graph->device,
                     stream->device);
    op = emu_op_new(OP_GRAPH, 0);
    op->graph = graph;
    graph->references++;
    emu_world.counters.graph_launches++;
    return emu_leave(emu_stream_push(stream, op));
}

static int destroy(int code, void *handle)
{
    struct emu_graph *const graph = graph_of(handle);

    if (!graph)
        return emu_leave(code ? code : cudaErrorInvalidValue);
    emu_world.counters.live_graphs--;
    emu_graph_drop(graph);
    return emu_leave(code);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return destroy(EMU_ENTER(cudaGraphDestroy), graph);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    return destroy(EMU_ENTER(cudaGraphExecDestroy), graph);
}
