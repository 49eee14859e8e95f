/* rpc_call: one remote call: its operations, buffers and end.
 *
 * rpc_server makes a call for each that arrives, checks auth, tenant and limits, starts
 * RECV_CLOSE_ON_SERVER as a batch of its own, arms the deadline timer, and calls method->start.
 * From then on the method drives it with the functions below, all on the loop thread.
 *
 * The end: a method calls rpc_call_finish() exactly once, unless `ended` was called first (caller
 * gone, deadline passed, cut off, server cancelled): then the base has sent or will send the
 * status itself, and the method only drops its work. After either, `release` is called when the
 * last reference is gone (batches returned, rpc_call_hold() undone); it frees the method's state.
 * Once a call is over neither `message` nor `sent` is called any more: a message that arrives then
 * is destroyed and discharged by the base.
 *
 * Every call has a deadline: the caller's or the default (RPC_SERVER_STREAM has no default: a
 * watcher may stay). At that moment the base sends
 * DEADLINE_EXCEEDED, observes METRIC_EXPIRED_LATENESS and calls `ended`. */
#ifndef FIRED_RPC_CALL_H
#define FIRED_RPC_CALL_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stdint.h>

#include "server.h"
#include "status.h"

struct rpc_call;

enum rpc_kind {
    RPC_UNARY,         /* small request, received by the base; its bytes are not charged */
    RPC_UNARY_TENSOR,  /* message_bytes_max is reserved from the budget before it is received */
    RPC_SERVER_STREAM, /* small request, many answers (Health/Watch) */
    RPC_STREAM,        /* bidirectional */
};

struct rpc_method {
    const char *path; /* "/fire.v1.ReinitService/Reinit" */
    enum rpc_kind kind;
    size_t state_bytes;       /* of rpc_call_state(), zeroed */
    bool open_while_draining; /* health and reflection answer until the end */

    /* A call begins. RPC_UNARY and RPC_SERVER_STREAM need not do anything: `message` follows. */
    void (*start)(struct rpc_call *call);
    /* A message that was asked for by rpc_call_receive() (or the small request, which is never
     * NULL). NULL: the caller has half-closed. The method owns `message` and destroys it; its bytes
     * have been charged to the budget and tenant as rpc_call_receive() says. */
    void (*message)(struct rpc_call *call, grpc_byte_buffer *message);
    /* The message given to rpc_call_send() has been taken by core; the next may be sent. */
    void (*sent)(struct rpc_call *call);
    /* The call is over without our doing: FIRE_CANCELLED or FIRE_TOO_LATE. Drop the work. */
    void (*ended)(struct rpc_call *call, enum fire_status why);
    /* The daemon begins to go down. What is idle should end the call now. NULL: nothing to do. */
    void (*draining)(struct rpc_call *call);
    /* The last reference is gone. */
    void (*release)(struct rpc_call *call);
};

/* What stands in a status beside code and message. */
struct rpc_failure {
    const char *reason; /* UPPER_SNAKE for ErrorInfo; NULL: from the status */
    const char *field;  /* BadRequest field path, or NULL */
    uint32_t retry_ms;  /* RetryInfo; 0: none */
};

void *rpc_call_state(struct rpc_call *call);
struct server *rpc_call_server(struct rpc_call *call);
struct tenant *rpc_call_tenant(struct rpc_call *call);
const struct rpc_method *rpc_call_method(const struct rpc_call *call);
uint64_t rpc_call_id(const struct rpc_call *call);
uint64_t rpc_call_deadline_ns(const struct rpc_call *call); /* CLOCK_MONOTONIC */
uint64_t rpc_call_started_ns(const struct rpc_call *call);
const char *rpc_call_trace(const struct rpc_call *call); /* W3C traceparent, or NULL */
bool rpc_call_over(const struct rpc_call *call);         /* finished or ended: results go nowhere */

/* Asks for the next message; RPC_UNARY_TENSOR and RPC_STREAM only. `bytes_max` is first reserved
 * from the message budget and the tenant's bytes in flight, where what a tenant has reserved and
 * not sent is at most half of the budget. Without room a stream is FIRE_BUSY (it is then still
 * open: the method decides), and a unary call waits for it, unread and in the order they came, for
 * up to half of its time; then it is answered RESOURCE_EXHAUSTED. The same goes for one beyond its
 * tenant's calls_max. A longer message is answered RESOURCE_EXHAUSTED. When the message arrives the
 * reservation shrinks to its real size, which the method gives back with rpc_call_discharge() once
 * it has destroyed the message. */
FIRE_NODISCARD enum fire_status rpc_call_receive(struct rpc_call *call, uint64_t bytes_max,
                                                 struct fire_error *error);
void rpc_call_discharge(struct rpc_call *call, uint64_t bytes);
/* The same for bytes that are not received but made, such as an answer to be sent: FIRE_BUSY when
 * there is no room. What is charged has been discharged when `release` returns, or the daemon stops
 * with an assertion. */
FIRE_NODISCARD enum fire_status rpc_call_charge(struct rpc_call *call, uint64_t bytes,
                                                struct fire_error *error);

/* Sends one message, of which the call takes ownership. One at a time: wait for `sent`. When the
 * caller does not read for idle_ms_max it is cut off: counted, RESOURCE_EXHAUSTED, `ended`. */
void rpc_call_send(struct rpc_call *call, grpc_byte_buffer *message);

/* The last message and FIRE_OK in one operation: what a unary method ends with. Instead of send and
 * finish; `sent` is not called. Does nothing but destroy `message` when the call is over. */
void rpc_call_reply(struct rpc_call *call, grpc_byte_buffer *message);

/* True between rpc_call_send() and `sent`. */
bool rpc_call_sending(const struct rpc_call *call);

/* A caller that owes us a message and does not send for idle_ms_max is cut off the same way:
 * receive() starts that clock for RPC_STREAM and RPC_UNARY_TENSOR. A stream that legitimately waits
 * for us (all it sent is being computed) stops it with rpc_call_expect(call, false). */
void rpc_call_expect(struct rpc_call *call, bool expected);

/* While an upload is open, a caller that owes us messages for idle_ms_max in all must send them at
 * upload_bytes_per_s_min on average, or is cut off the same way: drops are no upload. */
void rpc_call_uploading(struct rpc_call *call, bool open);

/* Ends the call: FIRE_OK, or a status with message and google.rpc details from `error` and
 * `failure` (both may be NULL). Counts refusals by reason. A message still being sent goes out
 * first; `sent` is not called for it. FIRE_BUSY, FIRE_NO_MEMORY, FIRE_DRAINING and FIRE_DEVICE_LOST
 * without a retry_ms get one. Does nothing when the call is over. */
void rpc_call_finish(struct rpc_call *call, enum fire_status status, const struct fire_error *error,
                     const struct rpc_failure *failure);

/* References for work on other threads. Hold on the loop; drop on the loop. */
void rpc_call_hold(struct rpc_call *call);
void rpc_call_drop(struct rpc_call *call);

/* rpc_error: google.rpc.Status bytes for grpc-status-details-bin; the caller unrefs the slice. */
grpc_slice rpc_error_details(grpc_status_code code, const struct fire_error *error,
                             const struct rpc_failure *failure);
grpc_status_code rpc_code(enum fire_status status);
const char *rpc_reason(enum fire_status status); /* "BAD_REQUEST", "BUSY", … */

/* The methods, one file each. */
extern const struct rpc_method rpc_reinit_method;           /* rpc_reinit.c */
extern const struct rpc_method rpc_analyze_method;          /* rpc_reinit.c */
extern const struct rpc_method rpc_reinit_stream_method;    /* rpc_stream.c */
extern const struct rpc_method rpc_analyze_stream_method;   /* rpc_stream.c */
extern const struct rpc_method rpc_status_method;           /* rpc_admin.c */
extern const struct rpc_method rpc_drain_method;            /* rpc_admin.c */
extern const struct rpc_method rpc_set_log_level_method;    /* rpc_admin.c */
extern const struct rpc_method rpc_report_method;           /* rpc_monitor.c */
extern const struct rpc_method rpc_list_runs_method;        /* rpc_monitor.c */
extern const struct rpc_method rpc_query_method;            /* rpc_monitor.c */
extern const struct rpc_method rpc_list_events_method;      /* rpc_monitor.c */
extern const struct rpc_method rpc_monitor_watch_method;    /* rpc_monitor.c */
extern const struct rpc_method rpc_advise_method;           /* rpc_monitor.c */
extern const struct rpc_method rpc_health_check_method;     /* rpc_health.c */
extern const struct rpc_method rpc_health_watch_method;     /* rpc_health.c */
extern const struct rpc_method rpc_reflection_method;       /* rpc_reflection.c, v1 */
extern const struct rpc_method rpc_reflection_alpha_method; /* rpc_reflection.c, v1alpha */

#endif
