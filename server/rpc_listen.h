/* rpc_listen: addresses, their lock files, and TLS.
 *
 * A lock file (flock) is held for each socket (PATH.lock) and each fixed port
 * (<state_dir>/port-<number>.lock) as long as the daemon lives, so a second one is told instead of
 * taking over a socket or sharing a port. Lock files stay where they are: removing one races. */
#ifndef FIRED_RPC_LISTEN_H
#define FIRED_RPC_LISTEN_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "status.h"

struct rpc_listen;

/* Takes the locks and reads the TLS files of `config`, which must outlive it. */
FIRE_NODISCARD enum fire_status rpc_listen_open(const struct config *config,
                                                struct rpc_listen **listen,
                                                struct fire_error *error);
/* Gives the locks back; after grpc_server_destroy(). NULL is allowed. */
void rpc_listen_close(struct rpc_listen *listen);

/* Binds every address to `core`, which has not started. */
FIRE_NODISCARD enum fire_status rpc_listen_bind(struct rpc_listen *listen, grpc_server *core,
                                                struct fire_error *error);

/* Addresses as bound, ports filled in; NULL after the last. */
const char *rpc_listen_address(const struct rpc_listen *listen, uint32_t index);

/* Reads the TLS files again; new connections use them. On failure the old ones stay in use. Does
 * nothing without TLS. */
FIRE_NODISCARD enum fire_status rpc_listen_reload(struct rpc_listen *listen,
                                                  struct fire_error *error);

/* "host:port" or "[v6]:port" taken apart, for tests: FIRE_BAD_REQUEST when it is neither. */
struct rpc_endpoint {
    char host[256];
    uint16_t port;
    bool loopback;
};
FIRE_NODISCARD enum fire_status rpc_endpoint_parse(const char *address,
                                                   struct rpc_endpoint *endpoint,
                                                   struct fire_error *error);

#endif
