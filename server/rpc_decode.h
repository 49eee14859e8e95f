/* rpc_decode: the message of a unary call becomes checked tensors, and its bytes go to their slots.
 * Bad input stops here. No call and no loop: any thread, one at a time a set. */
#ifndef FIRED_RPC_DECODE_H
#define FIRED_RPC_DECODE_H

#include <stdbool.h>
#include <stddef.h>

#include "request.h"
#include "rpc_wire.h"

#define RPC_TENSORS_MAX      4096u       /* of one unary call */
#define RPC_SET_BYTES_MAX    (1u << 20)  /* of its message beside tensor data */
#define RPC_STREAM_BYTES_MAX (64u << 10) /* of one message of a stream beside tensor data */
#define RPC_CHUNK_BYTES_MAX  (4u << 20)  /* of tensor data in one message of a stream */

/* The tensors of a unary call, in its order. With skip_bad some only carry their error. */
struct rpc_set {
    struct request_set set;
    struct request_tensor **tensors;
    size_t tensor_count;
};

/* Unpacks the small part of a message with memory in proportion to its size, whatever it says. Free
 * it with protobuf_c_message_free_unpacked(…, NULL). NULL: `error` says why. */
ProtobufCMessage *rpc_unpack(const ProtobufCMessageDescriptor *descriptor,
                             const struct rpc_message *message, struct fire_error *error);

/* Checks everything that can be known before a byte of a tensor is looked at. On failure there is
 * nothing to release. */
FIRE_NODISCARD enum fire_status rpc_set_decode(struct rpc_set *set,
                                               const struct rpc_message *message, bool analyze,
                                               uint64_t tensor_bytes_max, struct fire_error *error);
void rpc_set_release(struct rpc_set *set);

/* True when the tensor's bytes are of use: it then needs a block of the arena. */
bool rpc_tensor_is_fed(const struct request_tensor *tensor);

/* Worker: puts the bytes of every tensor to their places. Fails with the first bad tensor, unless
 * the set skips those. */
FIRE_NODISCARD enum fire_status rpc_set_feed(struct rpc_set *set, const struct rpc_message *message,
                                             struct fire_error *error);

/* The same by several workers at once, for sets that do not skip bad tensors. Each does its part of
 * every tensor between begin and end, which come before and after all of them; begin lays the
 * tensors out. A part that fails says which tensor failed: the first part of the first one is what
 * rpc_set_feed() would have failed with. */
struct rpc_feed_part {
    uint32_t index;
    uint32_t count; /* parts */
    size_t tensor;  /* that failed */
};
void rpc_set_feed_begin(struct rpc_set *set);
FIRE_NODISCARD enum fire_status rpc_set_feed_part(struct rpc_set *set,
                                                  const struct rpc_message *message,
                                                  struct rpc_feed_part *part,
                                                  struct fire_error *error);
void rpc_set_feed_end(struct rpc_set *set);

/* Worker, after the last job: request_answer() for every weight. Fails with the first refused
 * tensor, unless the set skips those. */
FIRE_NODISCARD enum fire_status rpc_set_answer(struct rpc_set *set, struct fire_error *error);

/* Feeds a whole payload to a tensor. */
FIRE_NODISCARD enum fire_status rpc_feed(struct request_tensor *tensor,
                                         const struct rpc_message *message,
                                         const struct rpc_payload *payload,
                                         struct fire_error *error);

#endif
