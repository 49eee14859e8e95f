/* rpc_monitor: fire.v1.MonitorService over gRPC. Questions are small; a report is received like
 * tensors are, after its bytes have been reserved. The request lives until the monitor has
 * answered, even when its caller has gone. */
#include <stdlib.h>
#include <string.h>

#include "monitor.h"
#include "rpc_core.h"

#define REPORT_SERIES_MAX  65536u
#define REPORT_HEAP_FACTOR 10u /* of a report's bytes once it is unpacked, at most */
#define SERIES_HEAP_BYTES  256u

struct question {
    struct rpc_call *call;
    ProtobufCMessage *request;
    uint64_t message_bytes; /* charged to the call */
    uint64_t heap_bytes;    /* charged to the call */
};

static void fail(struct rpc_call *call, enum fire_status status, const struct fire_error *error)
{
    rpc_call_finish(call, status, error, NULL);
}

static void forget(struct question *question)
{
    if (question->request)
        protobuf_c_message_free_unpacked(question->request, NULL);
    question->request = NULL;
    rpc_call_discharge(question->call, question->message_bytes + question->heap_bytes);
    question->message_bytes = 0;
    question->heap_bytes = 0;
}

static void on_answer(enum fire_status status, ProtobufCMessage *response,
                      const struct fire_error *error, void *data)
{
    struct question *question = data;
    struct rpc_call *call = question->call;

    forget(question);
    if (status == FIRE_OK && !rpc_call_over(call))
        rpc_small_reply(call, response);
    else if (status != FIRE_OK)
        fail(call, status, error);
    if (response)
        protobuf_c_message_free_unpacked(response, NULL);
    rpc_call_drop(call);
}

static void ask(struct question *question, enum monitor_method method)
{
    struct rpc_call *call = question->call;

    rpc_call_hold(call);
    monitor_call(rpc_call_server(call)->monitor, method, rpc_call_tenant(call)->name,
                 question->request, on_answer, question);
}

static void ask_small(struct rpc_call *call, grpc_byte_buffer *message, enum monitor_method method,
                      const ProtobufCMessageDescriptor *descriptor)
{
    struct question *question = rpc_call_state(call);

    question->call = call;
    question->request = rpc_small_unpack(descriptor, message);
    if (question->request)
        ask(question, method);
    else
        rpc_small_malformed(call);
}

static void list_runs_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    ask_small(call, message, MONITOR_LIST_RUNS, &fire__v1__list_runs_request__descriptor);
}

static void query_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    ask_small(call, message, MONITOR_QUERY, &fire__v1__query_request__descriptor);
}

static void list_events_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    ask_small(call, message, MONITOR_LIST_EVENTS, &fire__v1__list_events_request__descriptor);
}

static void advise_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    ask_small(call, message, MONITOR_ADVISE, &fire__v1__advise_request__descriptor);
}

/* --- Report ----------------------------------------------------------------------------------- */

static void report_start(struct rpc_call *call)
{
    struct question *question = rpc_call_state(call);
    const uint64_t most = rpc_call_server(call)->config.message_bytes_max;
    struct fire_error error;
    enum fire_status status;

    question->call = call;
    status = rpc_call_receive(
        call, most < MONITOR_REPORT_BYTES_MAX ? most : MONITOR_REPORT_BYTES_MAX, &error);
    if (status != FIRE_OK)
        fail(call, status, &error);
}

static void report_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    struct question *question = rpc_call_state(call);
    struct fire_error error;
    enum fire_status status;

    if (!message) {
        rpc_small_malformed(call);
        return;
    }
    question->message_bytes = grpc_byte_buffer_length(message);
    status = rpc_call_charge(call, question->message_bytes * REPORT_HEAP_FACTOR, &error);
    if (status != FIRE_OK) {
        grpc_byte_buffer_destroy(message);
        forget(question);
        fail(call, status, &error);
        return;
    }
    question->heap_bytes = question->message_bytes * REPORT_HEAP_FACTOR;
    question->request = rpc_small_unpack_up_to(&fire__v1__report_request__descriptor, message,
                                               MONITOR_REPORT_BYTES_MAX);
    if (question->request) {
        ask(question, MONITOR_REPORT);
    } else {
        forget(question);
        rpc_small_malformed(call);
    }
}

/* --- Watch ------------------------------------------------------------------------------------ */

struct watching {
    struct rpc_call *call;
    struct monitor_watch *watch;
};

static void watch_close(struct watching *watching)
{
    monitor_watch_close(watching->watch);
    watching->watch = NULL;
}

static void watch_send(struct rpc_call *call)
{
    struct watching *watching = rpc_call_state(call);
    Fire__V1__WatchResponse *response;

    if (rpc_call_over(call) || rpc_call_sending(call) || !watching->watch)
        return;
    response = monitor_watch_next(watching->watch);
    if (!response)
        return;
    rpc_call_send(call, rpc_small_pack(&response->base));
    fire__v1__watch_response__free_unpacked(response, NULL);
}

static void on_ready(void *data)
{
    watch_send(data);
}

static void watch_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    struct watching *watching = rpc_call_state(call);
    struct fire_error error = { 0 };
    Fire__V1__WatchRequest *request =
        (Fire__V1__WatchRequest *)rpc_small_unpack(&fire__v1__watch_request__descriptor, message);

    if (!request) {
        rpc_small_malformed(call);
        return;
    }
    watching->watch =
        monitor_watch_open(rpc_call_server(call)->monitor, rpc_call_tenant(call)->name, request,
                           on_ready, call, &error);
    if (!watching->watch)
        fail(call, error.status, &error);
    fire__v1__watch_request__free_unpacked(request, NULL);
}

static void watch_ended(struct rpc_call *call, enum fire_status why)
{
    (void)why;
    watch_close(rpc_call_state(call));
}

static void watch_draining(struct rpc_call *call)
{
    struct fire_error error;

    watch_close(rpc_call_state(call));
    fail(call,
         fire_fail(&error, FIRE_DRAINING, NULL,
                   "this daemon is going down; watch another replica, or again when it is back"),
         &error);
}

static void watch_release(struct rpc_call *call)
{
    watch_close(rpc_call_state(call));
}

#define SMALL_METHOD(name, handler)                                                                \
    {                                                                                              \
        .path = "/fire.v1.MonitorService/" name, .kind = RPC_UNARY,                                \
        .state_bytes = sizeof(struct question), .message = (handler),                              \
    }

const struct rpc_method rpc_list_runs_method = SMALL_METHOD("ListRuns", list_runs_message);
const struct rpc_method rpc_query_method = SMALL_METHOD("Query", query_message);
const struct rpc_method rpc_list_events_method = SMALL_METHOD("ListEvents", list_events_message);
const struct rpc_method rpc_advise_method = SMALL_METHOD("Advise", advise_message);

const struct rpc_method rpc_report_method = {
    .path = "/fire.v1.MonitorService/Report",
    .kind = RPC_UNARY_TENSOR,
    .state_bytes = sizeof(struct question),
    .start = report_start,
    .message = report_message,
};

const struct rpc_method rpc_monitor_watch_method = {
    .path = "/fire.v1.MonitorService/Watch",
    .kind = RPC_SERVER_STREAM,
    .state_bytes = sizeof(struct watching),
    .message = watch_message,
    .sent = watch_send,
    .ended = watch_ended,
    .draining = watch_draining,
    .release = watch_release,
};
