/* remote_channel: a gRPC channel to a daemon from what a caller said about it: address,
 * credentials, tenant. Shared by libfire's remote client and firectl's commands that ask a daemon.
 * It owns one grpc_init(). */
#ifndef FIRE_REMOTE_CHANNEL_H
#define FIRE_REMOTE_CHANNEL_H

#include <grpc/grpc.h>
#include <stddef.h>

#include "fire.h"

struct remote_channel;

/* Fills in the defaults of fire_remote_settings (address, token from the environment), reads the
 * PEM files and makes the channel, which connects with the first call. A token that would travel
 * unprotected, to another machine without TLS, is refused. On failure `*remote` is NULL. */
FIRE_NODISCARD enum fire_status remote_channel_open(const struct fire_remote_settings *settings,
                                                    struct remote_channel **remote,
                                                    struct fire_error *error);
void remote_channel_close(struct remote_channel *remote); /* NULL is allowed */

grpc_channel *remote_channel_core(const struct remote_channel *remote);
const char *remote_channel_address(const struct remote_channel *remote);

/* What goes with every call: token and tenant. Borrowed: valid until the channel is closed. */
grpc_metadata *remote_channel_metadata(const struct remote_channel *remote, size_t *count);

#endif
