/* rpc_call: one remote call: its operations, buffers and end.
 *
 * Loop thread only. Up to four batches are with core at once: close (from the first moment: it says
 * that the caller has gone), receive, send and status. Each has a tag inside the call and holds a
 * reference, as do the timer and rpc_call_hold(); the last one gone frees the call.
 *
 * One timer serves the deadline and both idle clocks. It is armed for the earliest of them and
 * never moved later: a clock that was put off is seen when the timer fires, which is armed again.
 *
 * Invariants:
 *   a call is over once finish or end has run, and never becomes open again
 *   the status batch starts at most once, and never while a message is being sent
 *   the timer stays open while core may still keep a message or status of ours
 *   calls of a tenant that wait to be read do so because others of it are being read; each that
 *   has been lets the next go on
 *   charged is what this call has taken from the budget and its tenant; 0 when it is freed
 */
#include "rpc_call.h"

#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "rpc_core.h"

/* A caller's own timer runs out a moment before ours: its clock began earlier, by the time the call
 * took to arrive, and the timeout it sent was rounded up by at most one part in a hundred. It then
 * cancels. That is its deadline, not a change of mind. */
#define DEADLINE_SLACK_NS   (10 * CLOCK_NS_PER_MS)
#define DEADLINE_ROUNDING   100u
#define DRAINING_RETRY_MS   1000u
#define STATUS_TEXT_DEFAULT "no details"
/* A request without tensors follows its headers at once. */
#define SMALL_IDLE_MS          5000u
#define SMALL_IDLE_DRAINING_MS 250u
#define SMALL_AWAITED_MAX      1024u
#define REFUSALS_A_TURN        16u /* of the loop, among calls that waited to be read */
#define AWAITED_PART           2u  /* of the message budget, for one tenant */
#define AWAITED_STREAM_PART    4u  /* of that, for streams alone */

struct rpc_call {
    struct rpc_server *rpc;
    struct server *server;
    const struct rpc_method *method; /* NULL: nobody's */
    grpc_call *core;
    struct tenant *tenant; /* NULL: refused before it was known */
    struct rpc_call *next; /* in the list of those admitted */
    struct rpc_call *previous;
    struct rpc_call *next_waiting; /* of its tenant, to be read */
    struct rpc_call *previous_waiting;
    uint64_t id;
    uint64_t started_ns;
    uint64_t deadline_ns;
    uint64_t finished_ns; /* 0: not yet */
    uint32_t references;
    grpc_status_code code;
    char trace[RPC_TRACE_BYTES];

    bool admitted;       /* counted as a call; method functions are called */
    bool over;           /* finished or ended */
    bool gone;           /* the caller: core takes nothing more */
    bool waiting;        /* to be read, once others of its tenant have been */
    bool receiving;      /* a receive batch is with core */
    bool sending;        /* a send batch is with core */
    bool status_waits;   /* for the message being sent */
    bool status_sending; /* the status batch is with core */
    bool initial_sent;   /* initial metadata */
    bool timer_open;
    bool expired; /* the deadline has been dealt with */

    int cancelled; /* written by core */
    struct rpc_tag close_tag;
    struct rpc_tag receive_tag;
    struct rpc_tag send_tag;
    struct rpc_tag status_tag;
    grpc_byte_buffer *incoming; /* written by core */
    grpc_byte_buffer *outgoing;
    grpc_slice status_text;
    grpc_metadata details; /* its value is google.rpc.Status, or empty */

    uv_timer_t timer;
    uint64_t timer_at_ns;    /* when it is armed for */
    uint64_t receive_due_ns; /* CLOCK_NEVER_NS: the caller owes us nothing */
    uint64_t send_due_ns;    /* CLOCK_NEVER_NS: nothing is being sent */

    uint64_t receive_bytes_max;
    uint64_t asked_ns; /* since when the caller owes us a message */
    bool uploading;
    uint64_t upload_ns; /* owed in all since the rate was last looked at */
    uint64_t upload_bytes;

    uint64_t charged;  /* all of it */
    uint64_t reserved; /* the part that awaits a message */
    uint64_t bytes_received;
    uint64_t bytes_sent;

    _Alignas(max_align_t) unsigned char state[];
};

#define CALL_OF(tag, member) ((struct rpc_call *)((char *)(tag)-offsetof(struct rpc_call, member)))

static void call_free(struct rpc_call *call);
static void call_settle(struct rpc_call *call);
static void status_start(struct rpc_call *call, grpc_byte_buffer *message);

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

static void batch_start(struct rpc_call *call, const grpc_op *operations, size_t count,
                        struct rpc_tag *tag)
{
    call->references++;
    const grpc_call_error error = grpc_call_start_batch(call->core, operations, count, tag, NULL);
    FIRE_ASSERT(error == GRPC_CALL_OK);
}

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
}

static bool kind_is_small(enum rpc_kind kind)
{
    return kind == RPC_UNARY || kind == RPC_SERVER_STREAM;
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

/* --- waiting to be read --- */

static void waiting_add(struct rpc_call *call)
{
    struct tenant *tenant = call->tenant;

    call->waiting = true;
    call->next_waiting = NULL;
    call->previous_waiting = tenant->last_waiting;
    if (tenant->last_waiting)
        tenant->last_waiting->next_waiting = call;
    else
        tenant->first_waiting = call;
    tenant->last_waiting = call;
}

static void waiting_remove(struct rpc_call *call)
{
    struct tenant *tenant = call->tenant;

    call->waiting = false;
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

/* --- the timer --- */

static void on_timer(uv_timer_t *timer);

static uint64_t earliest(uint64_t first, uint64_t second)
{
    return first < second ? first : second;
}

static uint64_t timer_wanted(const struct rpc_call *call)
{
    const uint64_t deadline = call->expired ? CLOCK_NEVER_NS : call->deadline_ns;

    return earliest(deadline, earliest(call->receive_due_ns, call->send_due_ns));
}

static void timer_arm(struct rpc_call *call)
{
    const uint64_t at = timer_wanted(call);

    if (!call->timer_open || at >= call->timer_at_ns)
        return;

    /* libuv counts whole milliseconds of the same clock, and from a time that it read when this
     * turn of the loop began. */
    uv_update_time(&call->server->loop);
    const uint64_t due_ms = at / CLOCK_NS_PER_MS + (at % CLOCK_NS_PER_MS != 0);
    const uint64_t now_ms = uv_now(&call->server->loop);

    call->timer_at_ns = at;
    uv_timer_start(&call->timer, on_timer, due_ms > now_ms ? due_ms - now_ms : 0, 0);
}

static uint64_t idle_due_ns(const struct rpc_call *call)
{
    const uint64_t idle_ns = call->server->config.idle_ms_max * CLOCK_NS_PER_MS;

    return idle_ns == 0 ? CLOCK_NEVER_NS : clock_now_ns() + idle_ns;
}

/* --- what the caller owes us --- */

static uint64_t small_due_ns(const struct rpc_call *call)
{
    const uint32_t idle_ms =
        rpc_server_draining(call->rpc) ? SMALL_IDLE_DRAINING_MS : SMALL_IDLE_MS;

    return earliest(idle_due_ns(call), clock_now_ns() + idle_ms * CLOCK_NS_PER_MS);
}

static void receive_clock_start(struct rpc_call *call)
{
    call->receive_due_ns =
        kind_is_small(call->method->kind) ? small_due_ns(call) : idle_due_ns(call);
    call->asked_ns = clock_now_ns();
    timer_arm(call);
}

static void receive_clock_stop(struct rpc_call *call)
{
    if (call->receive_due_ns != CLOCK_NEVER_NS && call->uploading)
        call->upload_ns += clock_now_ns() - call->asked_ns;
    call->receive_due_ns = CLOCK_NEVER_NS;
}

/* Whether the caller has taken idle_ms_max in all and sent less than the floor in that time. */
static bool upload_is_slow(struct rpc_call *call, uint64_t bytes)
{
    const struct config *config = &call->server->config;
    const double seconds = (double)call->upload_ns / CLOCK_NS_PER_S;

    call->upload_bytes += bytes;
    if (!call->uploading || config->idle_ms_max == 0 ||
        call->upload_ns < config->idle_ms_max * CLOCK_NS_PER_MS)
        return false;
    if ((double)call->upload_bytes < seconds * (double)config->upload_bytes_per_s_min)
        return true;
    call->upload_ns = 0;
    call->upload_bytes = 0;
    return false;
}

void rpc_call_uploading(struct rpc_call *call, bool open)
{
    if (call->uploading == open)
        return;
    call->uploading = open;
    call->upload_ns = 0;
    call->upload_bytes = 0;
    call->asked_ns = clock_now_ns();
}

static void on_timer_closed(uv_handle_t *handle)
{
    rpc_call_drop(handle->data);
}

/* Lets go of the timer once nothing of ours is left with core. */
static void call_settle(struct rpc_call *call)
{
    if (call->over && call->waiting)
        waiting_remove(call);
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

static void refusal_count(struct rpc_call *call, const char *reason, const char *text)
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

/* The operation that sends `message`, which the call owns until it is done. */
static void message_put(struct rpc_call *call, grpc_byte_buffer *message, grpc_op *operation)
{
    const uint64_t bytes = grpc_byte_buffer_length(message);

    operation->op = GRPC_OP_SEND_MESSAGE;
    operation->flags = GRPC_WRITE_NO_COMPRESS;
    operation->data.send_message.send_message = message;
    call->outgoing = message;
    call->bytes_sent += bytes;
    metrics_add(call->server->metrics, METRIC_BYTES_SENT, call->tenant->name, NULL, (double)bytes);
}

/* Starts the status batch, with the rest that belongs to it. */
static void status_start(struct rpc_call *call, grpc_byte_buffer *message)
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
        message_put(call, message, &operations[count++]);

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
    call->send_due_ns = idle_due_ns(call);
    batch_start(call, operations, count, &call->status_tag);
    timer_arm(call);
}

/* Sends the status that was set, after what is being sent. */
static void status_send(struct rpc_call *call)
{
    call->over = true;
    call->receive_due_ns = CLOCK_NEVER_NS;
    if (call->sending)
        call->status_waits = true;
    else
        status_start(call, NULL);
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
        refusal_count(call, complete.reason, error ? error->message : NULL);
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
    status_start(call, message);
}

/* Ends a call that has not run to its end. What core still keeps of ours is dropped: behind a
 * message that the caller does not take, no status would ever leave. */
static void call_end(struct rpc_call *call, enum fire_status why, const struct fire_error *error,
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
    refusal_count(call, failure.reason, error->message);
    call_end(call, FIRE_CANCELLED, error, &failure);
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

static void call_too_slow(struct rpc_call *call)
{
    struct fire_error error;

    (void)fire_fail(&error, FIRE_BUSY, NULL,
                    "an upload of %.0f bytes a second was cut off; send at least %" PRIu64
                    " a second, or lower upload_bytes_per_s_min",
                    (double)call->upload_bytes * CLOCK_NS_PER_S / (double)call->upload_ns,
                    call->server->config.upload_bytes_per_s_min);
    call_cut_off(call, "sending", &error);
}

static void on_timer(uv_timer_t *timer)
{
    struct rpc_call *call = timer->data;
    const uint64_t now = clock_now_ns();

    rpc_call_hold(call);
    call->timer_at_ns = CLOCK_NEVER_NS;
    if (!call->expired && now >= call->deadline_ns)
        call_expire(call, now);
    else if (now >= call->send_due_ns)
        call_stalled(call, "reading");
    else if (now >= call->receive_due_ns)
        call_stalled(call, "sending");
    timer_arm(call);
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
    refusal_count(call, failure.reason, error.message);
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
    batch_start(call, &operation, 1, &call->receive_tag);
    receive_clock_start(call);
}

/* A message has come: calls of its tenant that wait are read now, as far as there is room. Those
 * for which there is none are refused, some in each turn of the loop: thousands at once would keep
 * it from giving the device its next batch. */
static void waiting_go_on(struct tenant *tenant)
{
    struct rpc_call *call;
    uint32_t refused = 0;

    while ((call = tenant->first_waiting) != NULL &&
           awaited_has_room(call, call->receive_bytes_max)) {
        struct fire_error error;

        if (refused == REFUSALS_A_TURN) {
            rpc_server_resume(call->rpc, tenant);
            return;
        }
        waiting_remove(call);
        if (reservation_make(call, call->receive_bytes_max, &error) == FIRE_OK) {
            receive_start(call, call->receive_bytes_max);
        } else {
            const struct rpc_failure failure = { .reason = rpc_reason(FIRE_BUSY),
                                                 .retry_ms = rpc_retry_ms(call->server) };

            refused++;
            refusal_count(call, failure.reason, error.message);
            call_end(call, FIRE_CANCELLED, &error, &failure);
        }
    }
}

void rpc_calls_resume(struct tenant *tenant)
{
    waiting_go_on(tenant);
}

static void on_receive(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = CALL_OF(tag, receive_tag);
    grpc_byte_buffer *message = call->incoming;
    const uint64_t bytes = message ? grpc_byte_buffer_length(message) : 0;
    bool slow;

    call->incoming = NULL;
    call->receiving = false;
    receive_clock_stop(call);
    slow = upload_is_slow(call, bytes);
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
    waiting_go_on(call->tenant);
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
    if (call->method->kind == RPC_UNARY_TENSOR &&
        (call->tenant->first_waiting || !awaited_has_room(call, bytes_max))) {
        call->receive_bytes_max = bytes_max;
        waiting_add(call);
        return FIRE_OK;
    }
    if (reservation_make(call, bytes_max, error) != FIRE_OK)
        return FIRE_BUSY;
    receive_start(call, bytes_max);
    return FIRE_OK;
}

static void small_receive(struct rpc_call *call)
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
    receive_clock_stop(call);
    if (expected)
        receive_clock_start(call);
}

static void on_sent(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = CALL_OF(tag, send_tag);

    call->sending = false;
    call->send_due_ns = CLOCK_NEVER_NS;
    grpc_byte_buffer_destroy(call->outgoing);
    call->outgoing = NULL;
    if (call->status_waits) {
        call->status_waits = false;
        status_start(call, NULL);
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
    message_put(call, message, &operations[count++]);
    call->sending = true;
    call->send_due_ns = idle_due_ns(call);
    batch_start(call, operations, count, &call->send_tag);
    timer_arm(call);
}

/* --- the beginning --- */

static void close_start(struct rpc_call *call)
{
    grpc_op operation;

    memset(&operation, 0, sizeof(operation));
    operation.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    operation.data.recv_close_on_server.cancelled = &call->cancelled;
    batch_start(call, &operation, 1, &call->close_tag);
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

/* Ending a call does not free it at once: its timer keeps it until a later turn of the loop. Small
 * requests that have not come have little time left. */
void rpc_calls_drain(struct rpc_call *calls)
{
    for (struct rpc_call *call = calls; call; call = call->next) {
        if (!call->over && call->method->draining)
            call->method->draining(call);
        if (!call->over && call->receiving && kind_is_small(call->method->kind)) {
            call->receive_due_ns = earliest(call->receive_due_ns, small_due_ns(call));
            timer_arm(call);
        }
    }
}

/* Counts the call in and hands it to its method. */
static void call_begin(struct rpc_call *call)
{
    const struct rpc_method *method = call->method;

    call->admitted = true;
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
    timer_arm(call);

    if (method->start)
        method->start(call);
    if (kind_is_small(method->kind) && !call->over)
        small_receive(call);
}

static void call_unknown(struct rpc_call *call, const char *path)
{
    struct fire_error error;
    const struct rpc_failure failure = { .reason = "UNKNOWN_METHOD" };

    (void)fire_fail(&error, FIRE_NOT_FOUND, NULL,
                    "there is no method %.128s here; reflection lists those there are", path);
    status_set(call, GRPC_STATUS_UNIMPLEMENTED, &error, &failure);
    refusal_count(call, failure.reason, error.message);
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
    call->code = GRPC_STATUS_UNKNOWN;
    call->status_text = grpc_empty_slice();
    call->details.key = grpc_empty_slice();
    call->details.value = grpc_empty_slice();
    call->close_tag.run = on_close;
    call->receive_tag.run = on_receive;
    call->send_tag.run = on_sent;
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
    }
    grpc_slice_unref(call->status_text);
    grpc_slice_unref(call->details.value);
    grpc_call_unref(call->core);
    free(call);
    rpc_server_call_gone(rpc, admitted);
}
