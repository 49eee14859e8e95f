/* rpc_server: listens; owns the completion queue and its pump thread.
 *
 * The pump pushes (tag, ok) on a list and wakes the loop; it never looks at a tag. All handlers run
 * on the loop. Methods are one table in rpc_server.c; a call to any other is UNIMPLEMENTED at once.
 * Lock files keep a second daemon from a port or socket that is taken. */
#ifndef FIRED_RPC_SERVER_H
#define FIRED_RPC_SERVER_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include "server.h"

struct rpc_server;

/* Binds every address of the configuration and starts serving. */
FIRE_NODISCARD enum fire_status rpc_server_open(struct server *server, struct rpc_server **rpc,
                                                struct fire_error *error);
/* Refuses new calls (UNAVAILABLE), ends Watch streams; `drained` is called when the last call is
 * gone, at the latest some moments after `limit_ms`, when what is left is cancelled. */
void rpc_server_drain(struct rpc_server *rpc, uint32_t limit_ms, void (*drained)(void *data),
                      void *data);
/* After drained. `closed` is called when the last handle is gone. */
void rpc_server_close(struct rpc_server *rpc, void (*closed)(void *data), void *data);

/* Memory for messages has been given back: calls that wait for some go on in the next turn. */
void rpc_server_unblock(struct rpc_server *rpc);

/* New TLS files take effect for new connections where gRPC allows it; otherwise logged. Calls that
 * wait for room go on, as limits may have been raised. */
void rpc_server_reload(struct rpc_server *rpc);

uint32_t rpc_server_calls(const struct rpc_server *rpc); /* now */
uint64_t rpc_server_calls_total(const struct rpc_server *rpc);
/* Addresses as bound, ports filled in; NULL after the last. */
const char *rpc_server_address(const struct rpc_server *rpc, uint32_t index);

/* Health watchers hear about it. */
void rpc_server_set_serving(struct rpc_server *rpc, bool serving);
/* The history works, or not: what health says of fire.v1.MonitorService; the rest serves on. */
void rpc_server_set_monitoring(struct rpc_server *rpc, bool up);

/* Calls `use` with the answer of AdminService/Status, which lives as long as that runs. */
FIRE_NODISCARD enum fire_status rpc_admin_status(
    struct server *server, void (*use)(const ProtobufCMessage *status, void *data), void *data);

#endif
