/* remote_channel: where the daemon is and how to get in: address, TLS, token, tenant.
 *
 * A token that would travel unprotected, to another machine without TLS, is refused. Opening copies
 * texts and reads files and does not touch gRPC, so that a client may be opened before fork(); the
 * core channel is made by the first remote_channel_core(). Callers serialise. */
#ifndef FIRE_REMOTE_CHANNEL_H
#define FIRE_REMOTE_CHANNEL_H

#include <grpc/grpc.h>

#include "fire.h"

#define REMOTE_MESSAGE_BYTES_MAX (64 << 20) /* largest message that is received */

struct remote_channel;

/* NULL `settings`: the defaults. On failure `*channel` is NULL and `error` says what to do. */
FIRE_NODISCARD enum fire_status remote_channel_open(const struct fire_remote_settings *settings,
                                                    struct remote_channel **channel,
                                                    struct fire_error *error);
void remote_channel_close(struct remote_channel *channel); /* NULL is allowed */

/* "unix:PATH" or "HOST:PORT". */
const char *remote_channel_address(const struct remote_channel *channel);

/* The channel of gRPC core, which connects by itself and again when the connection is lost. Made by
 * the first call, after a grpc_init() that remote_channel_close() undoes. NULL: gRPC refuses the
 * TLS files. */
grpc_channel *remote_channel_core(struct remote_channel *channel);

/* Metadata every call carries; the channel's own, valid until it is closed. */
grpc_metadata *remote_channel_metadata(struct remote_channel *channel, size_t *count);

#endif
