/* rpc_call_internal: what the three files of a call share: rpc_call.c begins and ends it,
 * rpc_call_message.c receives and sends, rpc_call_clock.c keeps time. */
#ifndef FIRED_RPC_CALL_INTERNAL_H
#define FIRED_RPC_CALL_INTERNAL_H

#include <stddef.h>

#include "clock.h"
#include "rpc_core.h"

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
    struct rpc_call *older_guest; /* of all tenants */
    struct rpc_call *newer_guest;
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
    bool waiting;        /* to be read, once there is room */
    bool guest;          /* beyond its tenant's calls_max: not read before others have ended */
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
    uint64_t hold_due_ns;    /* CLOCK_NEVER_NS: it does not wait for room */

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

static inline uint64_t earliest(uint64_t first, uint64_t second)
{
    return first < second ? first : second;
}

static inline bool kind_is_small(enum rpc_kind kind)
{
    return kind == RPC_UNARY || kind == RPC_SERVER_STREAM;
}

/* --- rpc_call.c ------------------------------------------------------------------------------ */
/* Gives operations to core; the tag holds a reference until it returns. */
void call_batch_start(struct rpc_call *call, const grpc_op *operations, size_t count,
                      struct rpc_tag *tag);
/* Lets go of the timer once nothing of ours is left with core. */
void call_settle(struct rpc_call *call);
void call_refusal_count(struct rpc_call *call, const char *reason, const char *text);
/* Starts the status batch, with the rest that belongs to it; `message` may be NULL. */
void call_status_start(struct rpc_call *call, grpc_byte_buffer *message);
/* Ends a call that has not run to its end. */
void call_end(struct rpc_call *call, enum fire_status why, const struct fire_error *error,
              const struct rpc_failure *failure);
void call_too_slow(struct rpc_call *call); /* ends it: the upload was */
void call_no_room(struct rpc_call *call);  /* ends it: it has waited long enough */
void call_on_timer(uv_timer_t *timer);

/* --- rpc_call_message.c ---------------------------------------------------------------------- */
void call_on_receive(struct rpc_tag *tag, bool ok);
void call_on_sent(struct rpc_tag *tag, bool ok);
void call_small_receive(struct rpc_call *call); /* asks for a request without tensors */
void call_waiting_remove(struct rpc_call *call);
/* A call of the tenant has ended: a guest takes its place, and what waits is read if it can be. */
void call_waiting_go_on(struct tenant *tenant);
/* A call begins: whether its tenant has as many as it may have. */
void call_guest_enter(struct rpc_call *call);
void call_guest_leave(struct rpc_call *call); /* no guest: nothing */
/* The operation that sends `message`, which the call owns until it is done. */
void call_message_put(struct rpc_call *call, grpc_byte_buffer *message, grpc_op *operation);

/* --- rpc_call_clock.c ------------------------------------------------------------------------ */
void call_timer_arm(struct rpc_call *call);
uint64_t call_idle_due_ns(const struct rpc_call *call);
uint64_t call_small_due_ns(const struct rpc_call *call);
/* The caller owes us a message; it does not any more. */
void call_receive_clock_start(struct rpc_call *call);
void call_receive_clock_stop(struct rpc_call *call);
/* Whether the caller has taken idle_ms_max in all and sent less than the floor in that time. */
bool call_upload_is_slow(struct rpc_call *call, uint64_t bytes);

#endif
