/* rpc_call_message: what a call receives and sends, and the memory it is charged for that.
 *
 * Invariants:
 *   unary calls of a tenant are read in the order they came; those that find no room wait for it,
 *   and whatever gives room back (a message read, bytes discharged, a call ended) lets them go on
 *   guests are the last of those that wait: there are some only while calls_max others are open
 *   charged is what a call has taken from the budget and its tenant; 0 when it is freed
 */
#include <inttypes.h>
#include <string.h>

#include "rpc_call_internal.h"

#define SMALL_AWAITED_MAX   1024u
#define AWAITED_PART        2u  /* of the message budget, for one tenant */
#define AWAITED_STREAM_PART 4u  /* of that, for streams alone */
#define HOLD_PART           2u  /* of its time, that a call waits for room */
#define READ_AHEAD_S        1.0 /* of device time, … */
#define READ_AHEAD_PART     8u  /* … and of a tenant's bytes */

/* --- charging --- */

enum fire_status rpc_call_charge(struct rpc_call *call, uint64_t bytes, struct fire_error *error)
{
    struct tenant *tenant = call->tenant;
    const uint64_t limit = tenant->limits.bytes_in_flight_max;

    if (tenant->bytes_in_flight > limit || bytes > limit - tenant->bytes_in_flight)
        return fire_fail(error, FIRE_BUSY, NULL,
                         "tenant %s has %" PRIu64 " of %" PRIu64
                         " bytes in flight and asks for %" PRIu64
                         " more; wait for answers or raise its bytes_in_flight_max",
                         tenant->name, tenant->bytes_in_flight, limit, bytes);
    if (!budget_reserve(&call->server->messages, bytes))
        return fire_fail(error, FIRE_BUSY, NULL,
                         "messages in flight take %" PRIu64 " of %" PRIu64 " bytes and %" PRIu64
                         " more are asked for; try again later or raise memory_budget_bytes",
                         budget_used(&call->server->messages), call->server->messages.bytes_max,
                         bytes);
    tenant->bytes_in_flight += bytes;
    call->charged += bytes;
    return FIRE_OK;
}

void rpc_call_discharge(struct rpc_call *call, uint64_t bytes)
{
    FIRE_ASSERT(bytes <= call->charged - call->reserved);
    FIRE_ASSERT(bytes <= call->tenant->bytes_in_flight);
    call->charged -= bytes;
    call->tenant->bytes_in_flight -= bytes;
    budget_release(&call->server->messages, bytes);
    rpc_server_unblock(call->rpc);
}

/* Health must answer when the budget is used up, so small requests are counted, not charged. */
static enum fire_status small_reserve(struct rpc_call *call, struct fire_error *error)
{
    uint32_t *awaited = rpc_server_awaited(call->rpc);

    if (*awaited >= SMALL_AWAITED_MAX)
        return fire_fail(error, FIRE_BUSY, NULL,
                         "%u small requests have begun and not come, the most there may be; send "
                         "what was begun",
                         SMALL_AWAITED_MAX);
    ++*awaited;
    return FIRE_OK;
}

/* What a tenant may have reserved for messages that have not come, so that it cannot keep others
 * out by calls that never send. Streams find some room above what unary calls may take: they hold
 * memory already. */
static uint64_t awaited_max(const struct rpc_call *call)
{
    const uint64_t most = call->server->messages.bytes_max / AWAITED_PART;

    return call->method->kind == RPC_STREAM ? most : most - most / AWAITED_STREAM_PART;
}

static bool awaited_has_room(const struct rpc_call *call, uint64_t bytes)
{
    const uint64_t awaited = call->tenant->bytes_awaited;
    const uint64_t most = awaited_max(call);

    return awaited == 0 || (awaited <= most && bytes <= most - awaited);
}

static enum fire_status reservation_make(struct rpc_call *call, uint64_t bytes,
                                         struct fire_error *error)
{
    struct tenant *tenant = call->tenant;
    enum fire_status status;

    if (!awaited_has_room(call, bytes))
        return fire_fail(error, FIRE_BUSY, NULL,
                         "tenant %s has %" PRIu64 " of %" PRIu64
                         " bytes reserved for messages that have not come; send what was begun, or "
                         "raise memory_budget_bytes",
                         tenant->name, tenant->bytes_awaited, awaited_max(call));
    status = rpc_call_charge(call, bytes, error);
    if (status != FIRE_OK)
        return status;
    tenant->bytes_awaited += bytes;
    call->reserved = bytes;
    return FIRE_OK;
}

/* False: not even with nothing else in flight. */
static bool reservation_is_possible(const struct rpc_call *call, uint64_t bytes)
{
    return bytes <= call->tenant->limits.bytes_in_flight_max &&
           bytes <= call->server->messages.bytes_max;
}

/* --- guests --- */

void call_guest_enter(struct rpc_call *call)
{
    struct tenant *tenant = call->tenant;
    struct rpc_call **newest = rpc_server_newest_guest(call->rpc);

    if (call->method->kind != RPC_UNARY_TENSOR || !tenant_is_beyond(tenant))
        return;
    call->guest = true;
    tenant->guests++;
    call->older_guest = *newest;
    if (call->older_guest)
        call->older_guest->newer_guest = call;
    *newest = call;
}

void call_guest_leave(struct rpc_call *call)
{
    struct tenant *tenant = call->tenant;

    if (!call->guest)
        return;
    call->guest = false;
    FIRE_ASSERT(tenant->guests > 0);
    tenant->guests--;
    if (tenant->first_guest == call)
        tenant->first_guest =
            call->next_waiting && call->next_waiting->guest ? call->next_waiting : NULL;
    if (call->older_guest)
        call->older_guest->newer_guest = call->newer_guest;
    if (call->newer_guest)
        call->newer_guest->older_guest = call->older_guest;
    else
        *rpc_server_newest_guest(call->rpc) = call->older_guest;
}

/* The guests that have waited longest become calls like others. */
static void guests_promote(struct tenant *tenant)
{
    while (tenant->first_guest && tenant->calls - tenant->guests < tenant->limits.calls_max)
        call_guest_leave(tenant->first_guest);
}

bool rpc_guest_refuse(struct rpc_server *rpc)
{
    struct rpc_call *call = *rpc_server_newest_guest(rpc);

    if (call)
        call_no_room(call);
    return call != NULL;
}

/* --- waiting to be read --- */

/* A caller that finds no room is told so when half of its time is over: it can try elsewhere. */
static uint64_t hold_due_ns(const struct rpc_call *call)
{
    const uint64_t now = clock_now_ns();
    const uint64_t most = call->server->config.deadline_ms_default * CLOCK_NS_PER_MS;
    const uint64_t left = call->deadline_ns > now ? call->deadline_ns - now : 0;

    return now + earliest(left, most) / HOLD_PART;
}

static void waiting_add(struct rpc_call *call)
{
    struct tenant *tenant = call->tenant;

    if (call->guest && !tenant->first_guest)
        tenant->first_guest = call;
    call->hold_due_ns = hold_due_ns(call);
    call->waiting = true;
    call->next_waiting = NULL;
    call->previous_waiting = tenant->last_waiting;
    if (tenant->last_waiting)
        tenant->last_waiting->next_waiting = call;
    else
        tenant->first_waiting = call;
    tenant->last_waiting = call;
}

void call_waiting_remove(struct rpc_call *call)
{
    struct tenant *tenant = call->tenant;

    call->waiting = false;
    call->hold_due_ns = CLOCK_NEVER_NS;
    if (call->next_waiting)
        call->next_waiting->previous_waiting = call->previous_waiting;
    else
        tenant->last_waiting = call->previous_waiting;
    if (call->previous_waiting)
        call->previous_waiting->next_waiting = call->next_waiting;
    else
        tenant->first_waiting = call->next_waiting;
}

/* The reservation for a message becomes `bytes` that the method gives back. */
static void reservation_shrink(struct rpc_call *call, uint64_t bytes)
{
    const uint64_t spare = call->reserved - bytes;

    if (kind_is_small(call->method->kind)) {
        --*rpc_server_awaited(call->rpc);
        return;
    }
    FIRE_ASSERT(call->tenant->bytes_awaited >= call->reserved);
    call->tenant->bytes_awaited -= call->reserved;
    call->reserved = 0;
    if (spare > 0)
        rpc_call_discharge(call, spare);
}

/* --- messages --- */

/* No hint when to try again: the same message will never do. */
static void message_refuse(struct rpc_call *call, uint64_t bytes, uint64_t bytes_max)
{
    struct fire_error error;
    const struct rpc_failure failure = { .reason = "MESSAGE_TOO_LARGE" };

    (void)fire_fail(&error, FIRE_BUSY, NULL,
                    "the message has %" PRIu64 " bytes and the limit is %" PRIu64
                    "; send less at once, or use the stream form of the method",
                    bytes, bytes_max);
    call_refusal_count(call, failure.reason, error.message);
    call_end(call, FIRE_CANCELLED, &error, &failure);
}

/* A message that was asked for is here, or NULL: the caller has half-closed. The call is open. */
static void message_take(struct rpc_call *call, grpc_byte_buffer *message, bool ok)
{
    /* A caller that has gone looks like one that has half-closed; what tells them apart is the
     * close batch, which is about to return. */
    if (!message && (!ok || grpc_call_failed_before_recv_message(call->core)))
        return;
    if (!message && kind_is_small(call->method->kind))
        rpc_small_malformed(call);
    else
        call->method->message(call, message);
}

static void receive_start(struct rpc_call *call, uint64_t bytes_max)
{
    grpc_op operation;

    memset(&operation, 0, sizeof(operation));
    operation.op = GRPC_OP_RECV_MESSAGE;
    operation.data.recv_message.recv_message = &call->incoming;
    call->receive_bytes_max = bytes_max;
    call->receiving = true;
    call_batch_start(call, &operation, 1, &call->receive_tag);
    call_receive_clock_start(call);
}

/* What is read early only fills memory: a tenant whose matrices keep the device busy for a while
 * need not have many of them here. Its calls that end let the next go on. Small ones are read all
 * the same: how urgent a call is can be seen only then. */
static bool reads_ahead(const struct tenant *tenant)
{
    return tenant->waiting_seconds < READ_AHEAD_S ||
           tenant->bytes_unary < tenant->limits.bytes_in_flight_max / READ_AHEAD_PART;
}

/* Calls of the tenant that wait are read now, as far as there is room. Memory that others have is
 * waited for. */
void call_waiting_go_on(struct tenant *tenant)
{
    struct rpc_call *call;

    guests_promote(tenant);
    while ((call = tenant->first_waiting) != NULL && !call->guest && reads_ahead(tenant) &&
           awaited_has_room(call, call->receive_bytes_max)) {
        struct fire_error error;

        if (reservation_make(call, call->receive_bytes_max, &error) != FIRE_OK) {
            rpc_server_block(call->rpc, tenant);
            return;
        }
        call_waiting_remove(call);
        receive_start(call, call->receive_bytes_max);
    }
}

void rpc_calls_resume(struct tenant *tenant)
{
    call_waiting_go_on(tenant);
}

void call_on_receive(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = CALL_OF(tag, receive_tag);
    grpc_byte_buffer *message = call->incoming;
    const uint64_t bytes = message ? grpc_byte_buffer_length(message) : 0;
    bool slow;

    call->incoming = NULL;
    call->receiving = false;
    call_receive_clock_stop(call);
    slow = call_upload_is_slow(call, bytes);
    call->bytes_received += bytes;
    if (bytes > 0)
        metrics_add(call->server->metrics, METRIC_BYTES_RECEIVED, call->tenant->name, NULL,
                    (double)bytes);

    if (call->over || slow || bytes > call->receive_bytes_max) {
        if (message)
            grpc_byte_buffer_destroy(message);
        reservation_shrink(call, 0);
        if (!call->over && slow)
            call_too_slow(call);
        else if (!call->over)
            message_refuse(call, bytes, call->receive_bytes_max);
    } else {
        reservation_shrink(call, bytes);
        message_take(call, message, ok);
    }
    call_waiting_go_on(call->tenant);
    rpc_call_drop(call);
}

enum fire_status rpc_call_receive(struct rpc_call *call, uint64_t bytes_max,
                                  struct fire_error *error)
{
    FIRE_ASSERT(!call->receiving);
    FIRE_ASSERT(!call->waiting);
    FIRE_ASSERT(!kind_is_small(call->method->kind));
    if (call->over)
        return fire_fail(error, FIRE_CANCELLED, NULL, "the call is over");
    if (call->method->kind == RPC_UNARY_TENSOR && reservation_is_possible(call, bytes_max)) {
        call->receive_bytes_max = bytes_max;
        waiting_add(call);
        call_waiting_go_on(call->tenant);
        if (call->waiting)
            call_timer_arm(call);
        return FIRE_OK;
    }
    if (reservation_make(call, bytes_max, error) != FIRE_OK)
        return FIRE_BUSY;
    receive_start(call, bytes_max);
    return FIRE_OK;
}

void call_small_receive(struct rpc_call *call)
{
    struct fire_error error;
    const enum fire_status status = small_reserve(call, &error);

    if (status == FIRE_OK)
        receive_start(call, RPC_SMALL_BYTES_MAX);
    else
        rpc_call_finish(call, status, &error, NULL);
}

void rpc_call_expect(struct rpc_call *call, bool expected)
{
    if (call->over || !call->receiving)
        return;
    call_receive_clock_stop(call);
    if (expected)
        call_receive_clock_start(call);
}

/* The operation that sends `message`, which the call owns until it is done. */
void call_message_put(struct rpc_call *call, grpc_byte_buffer *message, grpc_op *operation)
{
    const uint64_t bytes = grpc_byte_buffer_length(message);

    operation->op = GRPC_OP_SEND_MESSAGE;
    operation->flags = GRPC_WRITE_NO_COMPRESS;
    operation->data.send_message.send_message = message;
    call->outgoing = message;
    call->bytes_sent += bytes;
    metrics_add(call->server->metrics, METRIC_BYTES_SENT, call->tenant->name, NULL, (double)bytes);
}

void call_on_sent(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = CALL_OF(tag, send_tag);

    call->sending = false;
    call->send_due_ns = CLOCK_NEVER_NS;
    grpc_byte_buffer_destroy(call->outgoing);
    call->outgoing = NULL;
    if (call->status_waits) {
        call->status_waits = false;
        call_status_start(call, NULL);
    } else if (ok && !call->over && call->method->sent) {
        call->method->sent(call);
    }
    call_settle(call);
    rpc_call_drop(call);
}

void rpc_call_send(struct rpc_call *call, grpc_byte_buffer *message)
{
    grpc_op operations[2];
    size_t count = 0;

    if (call->over) {
        grpc_byte_buffer_destroy(message);
        return;
    }
    FIRE_ASSERT(!call->sending);
    memset(operations, 0, sizeof(operations));
    if (!call->initial_sent)
        operations[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    call->initial_sent = true;
    call_message_put(call, message, &operations[count++]);
    call->sending = true;
    call->send_due_ns = call_idle_due_ns(call);
    call_batch_start(call, operations, count, &call->send_tag);
    call_timer_arm(call);
}
