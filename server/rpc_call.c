/* rpc_call: one remote call: its operations, buffers and end.
 *
 * Loop thread only. Up to four batches are with core at once: close (from the first moment: it says
 * that the caller has gone), receive, send and status. Each has a tag inside the call and holds a
 * reference, as do the timer and rpc_call_hold(); the last one gone frees the call.
 *
 * Invariants:
 *   a call is over once finish or end has run, and never becomes open again
 *   the status batch starts at most once, and never while a message is being sent
 *   the timer stays open while core may still keep a message or status of ours
 */
#include "rpc_call.h"

#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "rpc_call_internal.h"

/* A caller's own timer runs out a moment before ours: its clock began earlier, by the time the call
 * took to arrive, and the timeout it sent was rounded up by at most one part in a hundred. It then
 * cancels. That is its deadline, not a change of mind. */
#define DEADLINE_SLACK_NS   (10 * CLOCK_NS_PER_MS)
#define DEADLINE_ROUNDING   100u
#define DRAINING_RETRY_MS   1000u
#define STATUS_TEXT_DEFAULT "no details"

static void call_free(struct rpc_call *call);

void *rpc_call_state(struct rpc_call *call)
{
    return call->state;
}

struct server *rpc_call_server(struct rpc_call *call)
{
    return call->server;
}

struct rpc_server *rpc_call_rpc(struct rpc_call *call)
{
    return call->rpc;
}

struct tenant *rpc_call_tenant(struct rpc_call *call)
{
    return call->tenant;
}

const struct rpc_method *rpc_call_method(const struct rpc_call *call)
{
    return call->method;
}

uint64_t rpc_call_id(const struct rpc_call *call)
{
    return call->id;
}

uint64_t rpc_call_deadline_ns(const struct rpc_call *call)
{
    return call->deadline_ns;
}

uint64_t rpc_call_started_ns(const struct rpc_call *call)
{
    return call->started_ns;
}

const char *rpc_call_trace(const struct rpc_call *call)
{
    return call->trace[0] ? call->trace : NULL;
}

bool rpc_call_over(const struct rpc_call *call)
{
    return call->over;
}

bool rpc_call_sending(const struct rpc_call *call)
{
    return call->sending;
}

void rpc_call_hold(struct rpc_call *call)
{
    FIRE_ASSERT(call->references > 0);
    call->references++;
}

void rpc_call_drop(struct rpc_call *call)
{
    FIRE_ASSERT(call->references > 0);
    if (--call->references == 0)
        call_free(call);
}

static const char *call_label(const struct rpc_call *call)
{
    return call->method ? call->method->path + 1 : "unknown";
}

void call_batch_start(struct rpc_call *call, const grpc_op *operations, size_t count,
                      struct rpc_tag *tag)
{
    call->references++;
    rpc_server_start_batch(call->rpc, call->core, operations, count, tag);
}

static void on_timer_closed(uv_handle_t *handle)
{
    rpc_call_drop(handle->data);
}

/* Lets go of the timer once nothing of ours is left with core. */
void call_settle(struct rpc_call *call)
{
    if (call->over)
        call_guest_leave(call);
    if (call->over && call->waiting)
        call_waiting_remove(call);
    if (!call->over || call->sending || call->status_sending)
        return;
    if (call->finished_ns == 0)
        call->finished_ns = clock_now_ns();
    if (call->timer_open) {
        call->timer_open = false;
        uv_close((uv_handle_t *)&call->timer, on_timer_closed);
    }
}

/* --- the end --- */

void call_refusal_count(struct rpc_call *call, const char *reason, const char *text)
{
    uint64_t suppressed = 0;

    metrics_add(call->server->metrics, METRIC_REFUSALS, reason, NULL, 1);
    call->server->refusals++;
    if (call->tenant)
        call->tenant->refusals_total++;
    if (rpc_server_may_warn(call->rpc, &suppressed))
        log_warn("call_refused", LOG_U64("call", call->id), LOG_TEXT("method", call_label(call)),
                 LOG_TEXT("tenant", call->tenant ? call->tenant->name : NULL),
                 LOG_TEXT("code", rpc_code_name(call->code)), LOG_TEXT("reason", reason),
                 LOG_TEXT("message", text), LOG_TEXT("trace", rpc_call_trace(call)),
                 LOG_U64("suppressed", suppressed));
}

/* Keeps the status until its batch starts. */
static void status_set(struct rpc_call *call, grpc_status_code code, const struct fire_error *error,
                       const struct rpc_failure *failure)
{
    char text[FIRE_ERROR_MESSAGE_BYTES] = "";

    call->code = code;
    if (code == GRPC_STATUS_OK)
        return;
    if (error)
        strcpy(text, error->message);
    rpc_text_clean(text);
    call->status_text = grpc_slice_from_copied_string(text[0] ? text : STATUS_TEXT_DEFAULT);
    call->details.key = grpc_slice_from_static_string("grpc-status-details-bin");
    call->details.value = rpc_error_details(code, error, failure);
}

static void on_status(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = CALL_OF(tag, status_tag);

    call->status_sending = false;
    call->send_due_ns = CLOCK_NEVER_NS;
    grpc_byte_buffer_destroy(call->outgoing);
    call->outgoing = NULL;
    if (!ok && call->code == GRPC_STATUS_OK)
        call->code = GRPC_STATUS_CANCELLED;
    call_settle(call);
    rpc_call_drop(call);
}

/* Starts the status batch, with the rest that belongs to it. */
void call_status_start(struct rpc_call *call, grpc_byte_buffer *message)
{
    grpc_op operations[3];
    size_t count = 0;

    FIRE_ASSERT(!call->sending);
    FIRE_ASSERT(!call->status_sending);
    memset(operations, 0, sizeof(operations));
    if (!call->initial_sent)
        operations[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    call->initial_sent = true;
    if (message)
        call_message_put(call, message, &operations[count++]);

    grpc_op *status = &operations[count++];
    status->op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    status->data.send_status_from_server.status = call->code;
    if (call->code != GRPC_STATUS_OK)
        status->data.send_status_from_server.status_details = &call->status_text;
    if (GRPC_SLICE_LENGTH(call->details.value) > 0) {
        status->data.send_status_from_server.trailing_metadata_count = 1;
        status->data.send_status_from_server.trailing_metadata = &call->details;
    }
    call->status_sending = true;
    call->send_due_ns = call_idle_due_ns(call);
    call_batch_start(call, operations, count, &call->status_tag);
    call_timer_arm(call);
}

/* Sends the status that was set, after what is being sent. */
static void status_send(struct rpc_call *call)
{
    call->over = true;
    call->receive_due_ns = CLOCK_NEVER_NS;
    if (call->sending)
        call->status_waits = true;
    else
        call_status_start(call, NULL);
    call_settle(call);
}

static bool status_wants_retry(enum fire_status status)
{
    return status == FIRE_BUSY || status == FIRE_NO_MEMORY || status == FIRE_DRAINING ||
           status == FIRE_DEVICE_LOST;
}

void rpc_call_finish(struct rpc_call *call, enum fire_status status, const struct fire_error *error,
                     const struct rpc_failure *failure)
{
    struct rpc_failure complete = { 0 };

    if (call->over)
        return;
    if (failure)
        complete = *failure;
    if (!complete.reason)
        complete.reason = rpc_reason(status);
    if (!complete.field && error && error->field[0])
        complete.field = error->field;
    if (complete.retry_ms == 0 && status_wants_retry(status))
        complete.retry_ms =
            status == FIRE_DRAINING ? DRAINING_RETRY_MS : rpc_retry_ms(call->server);

    status_set(call, rpc_code(status), error, &complete);
    if (status != FIRE_OK)
        call_refusal_count(call, complete.reason, error ? error->message : NULL);
    status_send(call);
}

void rpc_call_reply(struct rpc_call *call, grpc_byte_buffer *message)
{
    if (call->over) {
        grpc_byte_buffer_destroy(message);
        return;
    }
    status_set(call, GRPC_STATUS_OK, NULL, NULL);
    call->over = true;
    call->receive_due_ns = CLOCK_NEVER_NS;
    call_status_start(call, message);
}

/* Ends a call that has not run to its end. What core still keeps of ours is dropped: behind a
 * message that the caller does not take, no status would ever leave. */
void call_end(struct rpc_call *call, enum fire_status why, const struct fire_error *error,
              const struct rpc_failure *failure)
{
    const bool told = call->over || !call->admitted;
    const grpc_status_code code = rpc_code(error->status);

    if (call->sending || call->status_sending) {
        call->status_waits = false;
        call->code = code;
        call->over = true;
        call->receive_due_ns = CLOCK_NEVER_NS;
        grpc_call_cancel_with_status(call->core, code, error->message, NULL);
    } else if (!call->over) {
        status_set(call, code, error, failure);
        status_send(call);
    }
    if (!told && call->method->ended)
        call->method->ended(call, why);
}

static void call_expire(struct rpc_call *call, uint64_t now)
{
    struct fire_error error;
    const double late_s =
        now > call->deadline_ns ? (double)(now - call->deadline_ns) / CLOCK_NS_PER_S : 0;
    const struct rpc_failure failure = { .reason = rpc_reason(FIRE_TOO_LATE) };

    call->expired = true;
    (void)fire_fail(&error, FIRE_TOO_LATE, NULL,
                    "the deadline of %.0f ms has passed; ask again with a longer one",
                    (double)(call->deadline_ns - call->started_ns) / CLOCK_NS_PER_MS);
    metrics_observe(call->server->metrics, METRIC_EXPIRED_LATENESS, NULL, late_s);
    call_end(call, FIRE_TOO_LATE, &error, &failure);
}

static void call_cut_off(struct rpc_call *call, const char *what, const struct fire_error *error)
{
    const struct rpc_failure failure = { .reason = "CALLER_STALLED",
                                         .retry_ms = rpc_retry_ms(call->server) };

    call->receive_due_ns = CLOCK_NEVER_NS;
    call->send_due_ns = CLOCK_NEVER_NS;
    metrics_add(call->server->metrics, METRIC_CUT_OFF, what, NULL, 1);
    call_refusal_count(call, failure.reason, error->message);
    call_end(call, FIRE_CANCELLED, error, &failure);
}

void call_no_room(struct rpc_call *call)
{
    struct fire_error error;
    const struct rpc_failure failure = {
        .reason = call->guest ? "TENANT_TOO_MANY_CALLS" : rpc_reason(FIRE_BUSY),
        .retry_ms = rpc_retry_ms(call->server),
    };

    (void)fire_fail(&error, FIRE_BUSY, NULL,
                    "no room for this call in %.0f ms: tenant %s has %" PRIu32
                    " others open and %" PRIu64
                    " bytes in flight; try again later, or send less at once",
                    (double)(clock_now_ns() - call->started_ns) / CLOCK_NS_PER_MS,
                    call->tenant->name, call->tenant->calls - 1, call->tenant->bytes_in_flight);
    call_refusal_count(call, failure.reason, error.message);
    call_end(call, FIRE_CANCELLED, &error, &failure);
}

static void call_stalled(struct rpc_call *call, const char *what)
{
    struct fire_error error;

    if (kind_is_small(call->method->kind) && call->receiving)
        (void)fire_fail(&error, FIRE_BUSY, NULL,
                        "the call began and its request did not come; send it at once");
    else
        (void)fire_fail(&error, FIRE_BUSY, NULL,
                        "the caller stopped %s for %" PRIu32
                        " ms and was cut off; read answers while sending, or raise idle_ms_max",
                        what, call->server->config.idle_ms_max);
    call_cut_off(call, what, &error);
}

void call_too_slow(struct rpc_call *call)
{
    struct fire_error error;

    (void)fire_fail(&error, FIRE_BUSY, NULL,
                    "an upload of %.0f bytes a second was cut off; send at least %" PRIu64
                    " a second, or lower upload_bytes_per_s_min",
                    (double)call->upload_bytes * CLOCK_NS_PER_S / (double)call->upload_ns,
                    call->server->config.upload_bytes_per_s_min);
    call_cut_off(call, "sending", &error);
}

void call_on_timer(uv_timer_t *timer)
{
    struct rpc_call *call = timer->data;
    const uint64_t now = clock_now_ns();

    rpc_call_hold(call);
    call->timer_at_ns = CLOCK_NEVER_NS;
    if (!call->expired && now >= call->deadline_ns)
        call_expire(call, now);
    else if (now >= call->hold_due_ns)
        call_no_room(call);
    else if (now >= call->send_due_ns)
        call_stalled(call, "reading");
    else if (now >= call->receive_due_ns)
        call_stalled(call, "sending");
    call_timer_arm(call);
    rpc_call_drop(call);
}

static void on_close(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = CALL_OF(tag, close_tag);
    const uint64_t now = clock_now_ns();
    (void)ok;

    if (call->cancelled) {
        call->gone = true;
        call->status_waits = false;
    }
    if (call->cancelled && !call->over) {
        const uint64_t timeout_ns = call->deadline_ns - call->started_ns;
        const uint64_t slack_ns = DEADLINE_SLACK_NS + timeout_ns / DEADLINE_ROUNDING;
        const bool late =
            call->deadline_ns != CLOCK_NEVER_NS && now + slack_ns >= call->deadline_ns;

        call->over = true;
        call->expired = true;
        call->receive_due_ns = CLOCK_NEVER_NS;
        call->code = late ? GRPC_STATUS_DEADLINE_EXCEEDED : GRPC_STATUS_CANCELLED;
        if (late)
            metrics_observe(
                call->server->metrics, METRIC_EXPIRED_LATENESS, NULL,
                now > call->deadline_ns ? (double)(now - call->deadline_ns) / CLOCK_NS_PER_S : 0);
        if (call->admitted && call->method->ended)
            call->method->ended(call, late ? FIRE_TOO_LATE : FIRE_CANCELLED);
    }
    call_settle(call);
    rpc_call_drop(call);
}

/* --- the beginning --- */

static void close_start(struct rpc_call *call)
{
    grpc_op operation;

    memset(&operation, 0, sizeof(operation));
    operation.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    operation.data.recv_close_on_server.cancelled = &call->cancelled;
    call_batch_start(call, &operation, 1, &call->close_tag);
}

static uint64_t deadline_of(const struct rpc_call *call, gpr_timespec deadline)
{
    const struct config *config = &call->server->config;
    const uint64_t longest = config->deadline_ms_max == 0
                                 ? CLOCK_NEVER_NS
                                 : call->started_ns + config->deadline_ms_max * CLOCK_NS_PER_MS;

    deadline = gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC);
    if (gpr_time_cmp(deadline, gpr_inf_future(GPR_CLOCK_MONOTONIC)) != 0) {
        if (deadline.tv_sec < 0)
            return 0;
        if ((uint64_t)deadline.tv_sec < CLOCK_NEVER_NS / CLOCK_NS_PER_S - 1)
            return earliest((uint64_t)deadline.tv_sec * CLOCK_NS_PER_S + (uint64_t)deadline.tv_nsec,
                            longest);
        return longest;
    }
    switch (call->method->kind) {
    case RPC_UNARY:
    case RPC_UNARY_TENSOR: return call->started_ns + config->deadline_ms_default * CLOCK_NS_PER_MS;
    case RPC_STREAM: return call->started_ns + config->stream_deadline_ms_default * CLOCK_NS_PER_MS;
    case RPC_SERVER_STREAM: break;
    }
    return CLOCK_NEVER_NS;
}

static bool kind_is_stream(enum rpc_kind kind)
{
    return kind == RPC_STREAM || kind == RPC_SERVER_STREAM;
}

static void list_add(struct rpc_call *call)
{
    struct rpc_call **first = rpc_server_first_call(call->rpc);

    call->next = *first;
    if (call->next)
        call->next->previous = call;
    *first = call;
}

static void list_remove(struct rpc_call *call)
{
    if (call->next)
        call->next->previous = call->previous;
    if (call->previous)
        call->previous->next = call->next;
    else
        *rpc_server_first_call(call->rpc) = call->next;
}

/* One that has not begun in earnest is told at once to go elsewhere. */
static void call_guest_drain(struct rpc_call *call)
{
    struct fire_error error;
    const struct rpc_failure failure = { .reason = rpc_reason(FIRE_DRAINING),
                                         .retry_ms = DRAINING_RETRY_MS };

    (void)fire_fail(&error, FIRE_DRAINING, NULL,
                    "this daemon is going down and this call has waited for room until now; ask "
                    "another replica, or again when it is back");
    call_refusal_count(call, failure.reason, error.message);
    call_end(call, FIRE_CANCELLED, &error, &failure);
}

/* Ending a call does not free it at once: its timer keeps it until a later turn of the loop. Small
 * requests that have not come have little time left. */
void rpc_calls_drain(struct rpc_call *calls)
{
    for (struct rpc_call *call = calls; call; call = call->next) {
        if (!call->over && call->guest)
            call_guest_drain(call);
        if (!call->over && call->method->draining)
            call->method->draining(call);
        if (!call->over && call->receiving && kind_is_small(call->method->kind)) {
            call->receive_due_ns = earliest(call->receive_due_ns, call_small_due_ns(call));
            call_timer_arm(call);
        }
    }
}

/* Counts the call in and hands it to its method. */
static void call_begin(struct rpc_call *call)
{
    const struct rpc_method *method = call->method;

    call->admitted = true;
    call_guest_enter(call);
    call->tenant->calls++;
    call->tenant->calls_total++;
    if (kind_is_stream(method->kind))
        call->tenant->streams++;
    rpc_server_call_admitted(call->rpc);
    list_add(call);

    uv_timer_init(&call->server->loop, &call->timer);
    call->timer.data = call;
    call->timer_open = true;
    call->references++;
    call_timer_arm(call);

    if (method->start)
        method->start(call);
    if (kind_is_small(method->kind) && !call->over)
        call_small_receive(call);
}

static void call_unknown(struct rpc_call *call, const char *path)
{
    struct fire_error error;
    const struct rpc_failure failure = { .reason = "UNKNOWN_METHOD" };

    (void)fire_fail(&error, FIRE_NOT_FOUND, NULL,
                    "there is no method %.128s here; reflection lists those there are", path);
    status_set(call, GRPC_STATUS_UNIMPLEMENTED, &error, &failure);
    call_refusal_count(call, failure.reason, error.message);
    status_send(call);
}

static struct rpc_call *call_make(struct rpc_server *rpc, const struct rpc_arrival *arrival)
{
    const size_t state_bytes = arrival->method ? arrival->method->state_bytes : 0;
    struct rpc_call *call = calloc(1, sizeof(*call) + state_bytes);

    if (!call)
        return NULL;
    call->rpc = rpc;
    call->server = rpc_server_owner(rpc);
    call->method = arrival->method;
    call->core = arrival->core;
    call->id = rpc_server_next_id(rpc);
    call->started_ns = clock_now_ns();
    call->deadline_ns = CLOCK_NEVER_NS;
    call->timer_at_ns = CLOCK_NEVER_NS;
    call->receive_due_ns = CLOCK_NEVER_NS;
    call->send_due_ns = CLOCK_NEVER_NS;
    call->hold_due_ns = CLOCK_NEVER_NS;
    call->code = GRPC_STATUS_UNKNOWN;
    call->status_text = grpc_empty_slice();
    call->details.key = grpc_empty_slice();
    call->details.value = grpc_empty_slice();
    call->close_tag.run = on_close;
    call->receive_tag.run = call_on_receive;
    call->send_tag.run = call_on_sent;
    call->status_tag.run = on_status;
    rpc_admit_trace(&arrival->metadata, call->trace);
    return call;
}

void rpc_call_accept(struct rpc_server *rpc, const struct rpc_arrival *arrival)
{
    struct fire_error error = { 0 };
    struct rpc_failure failure = { 0 };
    struct rpc_call *call = call_make(rpc, arrival);

    if (!call) {
        /* Core cancels a call that is let go of. */
        grpc_call_unref(arrival->core);
        log_warn("call_dropped", LOG_TEXT("message", "no memory for one more call"));
        return;
    }
    rpc_server_call_made(rpc);
    call->references = 1;
    close_start(call);

    if (!call->method) {
        call_unknown(call, arrival->path);
    } else {
        const enum fire_status status = rpc_admit(rpc, arrival, &call->tenant, &failure, &error);

        call->deadline_ns = deadline_of(call, arrival->deadline);
        if (status != FIRE_OK) {
            rpc_call_finish(call, status, &error, &failure);
        } else if (call->started_ns >= call->deadline_ns) {
            call_expire(call, call->started_ns);
        } else {
            call_begin(call);
        }
    }
    rpc_call_drop(call);
}

static void call_log(const struct rpc_call *call)
{
    const double seconds = (double)(call->finished_ns - call->started_ns) / CLOCK_NS_PER_S;

    metrics_add(call->server->metrics, METRIC_CALLS, call_label(call), rpc_code_name(call->code),
                1);
    metrics_observe(call->server->metrics, METRIC_CALL_SECONDS, call_label(call), seconds);
    log_debug("call_done", LOG_U64("call", call->id), LOG_TEXT("method", call_label(call)),
              LOG_TEXT("tenant", call->tenant ? call->tenant->name : NULL),
              LOG_TEXT("code", rpc_code_name(call->code)), LOG_F64("ms", seconds * 1e3),
              LOG_U64("received_bytes", call->bytes_received),
              LOG_U64("sent_bytes", call->bytes_sent), LOG_TEXT("trace", rpc_call_trace(call)));
}

static void call_free(struct rpc_call *call)
{
    struct rpc_server *rpc = call->rpc;
    const bool admitted = call->admitted;

    FIRE_ASSERT(call->over);
    FIRE_ASSERT(!call->waiting);
    FIRE_ASSERT(!call->timer_open);
    if (admitted && call->method->release)
        call->method->release(call);
    FIRE_ASSERT(call->charged == 0);
    FIRE_ASSERT(call->references == 0);

    if (call->finished_ns == 0)
        call->finished_ns = clock_now_ns();
    call_log(call);
    if (admitted) {
        list_remove(call);
        FIRE_ASSERT(call->tenant->calls > 0);
        call->tenant->calls--;
        if (kind_is_stream(call->method->kind)) {
            FIRE_ASSERT(call->tenant->streams > 0);
            call->tenant->streams--;
        }
        call_waiting_go_on(call->tenant);
    }
    grpc_slice_unref(call->status_text);
    grpc_slice_unref(call->details.value);
    grpc_call_unref(call->core);
    free(call);
    rpc_server_call_gone(rpc, admitted);
}
