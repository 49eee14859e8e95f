/* rpc_core: what the files of the gRPC layer share with each other; nobody else includes it.
 *
 * A tag is what core hands back when an operation is done. The pump carries its address; only the
 * loop looks inside. */
#ifndef FIRED_RPC_CORE_H
#define FIRED_RPC_CORE_H

#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include "rpc_call.h"
#include "rpc_server.h"

#define RPC_TRACE_BYTES 56 /* W3C traceparent: 55 characters */

struct rpc_tag {
    void (*run)(struct rpc_tag *tag, bool ok);
    struct rpc_tag *next; /* rpc_server's, as is ok: of those that were done at once */
    bool ok;
};

/* A call as core announced it. */
struct rpc_arrival {
    const struct rpc_method *method; /* NULL: nobody's */
    const char *path;                /* of a call that is nobody's */
    grpc_call *core;
    gpr_timespec deadline;
    grpc_metadata_array metadata; /* its elements belong to `core` */
};

/* rpc_call.c: begins a call, or refuses it. Takes over `core`; the caller keeps the array of
 * `metadata`. */
void rpc_call_accept(struct rpc_server *rpc, const struct rpc_arrival *arrival);

/* rpc_call.c: tells each call's method that the daemon begins to go down. `calls` is the list
 * below. */
void rpc_calls_drain(struct rpc_call *calls);

/* rpc_call_message.c: the calls of a tenant that wait to be read, where rpc_server_resume() was
 * asked to go on with them. */
void rpc_calls_resume(struct tenant *tenant);

/* rpc_call_message.c: refuses the newest call that is beyond its tenant's limit and waits, so that
 * one within its own can begin. False: there is none. */
bool rpc_guest_refuse(struct rpc_server *rpc);

/* rpc_admit.c: whether a call may begin. On FIRE_OK `tenant` is set and nothing is counted yet;
 * else `failure` and `error` say why. `tenant` may be set in that case too: it is whom to count the
 * refusal for. */
FIRE_NODISCARD enum fire_status rpc_admit(struct rpc_server *rpc, const struct rpc_arrival *arrival,
                                          struct tenant **tenant, struct rpc_failure *failure,
                                          struct fire_error *error);
/* The caller's traceparent when it is well formed, else an empty string. */
void rpc_admit_trace(const grpc_metadata_array *metadata, char trace[RPC_TRACE_BYTES]);
/* "00-<32 hex>-<16 hex>-<2 hex>", lower case, ids not all zero; or a later version of that. */
bool rpc_trace_valid(const char *text, size_t bytes);
/* A peer as core names it ("unix:…", "ipv4:127.0.0.1:5", "ipv6:%5B::1%5D:5") is this machine. */
bool rpc_peer_local(const char *peer);
/* A sensible time to try again, at least 1 ms. */
uint32_t rpc_retry_ms(const struct server *server);

/* rpc_server.c */
struct rpc_health {
    struct rpc_call *first; /* watchers, through their state */
    bool serving;
    bool monitoring; /* the history works: MonitorService serves */
    bool ended;      /* no watcher stays */
};
/* rpc_server_open() with other methods than the daemon's; for tests. */
FIRE_NODISCARD enum fire_status rpc_server_open_methods(struct server *server,
                                                        const struct rpc_method *const *methods,
                                                        size_t method_count,
                                                        struct rpc_server **rpc,
                                                        struct fire_error *error);
struct server *rpc_server_owner(struct rpc_server *rpc);
struct rpc_health *rpc_server_health(struct rpc_server *rpc);
struct rpc_call **rpc_server_first_call(struct rpc_server *rpc); /* the list of those admitted */
bool rpc_server_draining(const struct rpc_server *rpc);
uint32_t *rpc_server_awaited(struct rpc_server *rpc); /* small requests that have not come */
uint64_t rpc_server_next_id(struct rpc_server *rpc);
/* A call object exists; it is gone. `admitted`: it counts as a call. */
void rpc_server_call_made(struct rpc_server *rpc);
void rpc_server_call_admitted(struct rpc_server *rpc);
void rpc_server_call_gone(struct rpc_server *rpc, bool admitted);
/* Gives operations of a call to core; the tag runs in a turn of the loop once they are done. */
void rpc_server_start_batch(struct rpc_server *rpc, grpc_call *call, const grpc_op *operations,
                            size_t count, struct rpc_tag *tag);
/* Whether one more warning may be logged now, and how many were not since the last one. */
bool rpc_server_may_warn(struct rpc_server *rpc, uint64_t *suppressed);
/* Calls rpc_calls_resume() in the next turn of the loop. */
void rpc_server_resume(struct rpc_server *rpc, struct tenant *tenant);
/* The same once memory has been given back. */
void rpc_server_block(struct rpc_server *rpc, struct tenant *tenant);
struct rpc_call **rpc_server_newest_guest(struct rpc_server *rpc);
/* The rpc_server of a call. */
struct rpc_server *rpc_call_rpc(struct rpc_call *call);

/* rpc_health.c: tells the watchers; ends them. */
void rpc_health_set(struct rpc_health *health, bool serving);
void rpc_health_end(struct rpc_health *health);

/* rpc_error.c: "OK", "INVALID_ARGUMENT", … */
const char *rpc_code_name(grpc_status_code code);
/* Replaces what is not UTF-8 by question marks, in place: protobuf strings must be. */
void rpc_text_clean(char *text);

/* rpc_small.c: messages without tensors. unpack destroys `buffer`; NULL: malformed, too large or no
 * memory. pack takes its memory from core, which ends the process when there is none. */
#define RPC_SMALL_BYTES_MAX 65536u
ProtobufCMessage *rpc_small_unpack(const ProtobufCMessageDescriptor *descriptor,
                                   grpc_byte_buffer *buffer);
/* The same with another limit. */
ProtobufCMessage *rpc_small_unpack_up_to(const ProtobufCMessageDescriptor *descriptor,
                                         grpc_byte_buffer *buffer, size_t bytes_max);
grpc_byte_buffer *rpc_small_pack(const ProtobufCMessage *message);
/* Answers a unary call with `message`. */
void rpc_small_reply(struct rpc_call *call, const ProtobufCMessage *message);
/* Ends a call whose request could not be unpacked. */
void rpc_small_malformed(struct rpc_call *call);

#endif
