/* rpc_encode: results to bytes. Tensor bytes leave as borrowed slices that hold a reference of
 * their block; only what says what happened is copied. Any thread while nobody changes the tensor.
 *
 * Every function returns NULL when memory runs out. */
#ifndef FIRED_RPC_ENCODE_H
#define FIRED_RPC_ENCODE_H

#include <grpc/byte_buffer.h>

#include "rpc_decode.h"

/* ReinitResponse or AnalyzeResponse. */
grpc_byte_buffer *rpc_encode_set(const struct rpc_set *set);

/* ReinitStreamResponse with begin: `total_bytes` follow in chunks. */
grpc_byte_buffer *rpc_encode_begin(const struct request_set *set, uint32_t id,
                                   const struct request_tensor *tensor, uint64_t total_bytes);
/* ReinitStreamResponse with `count` bytes of the tensor's answer, from `offset` on. */
grpc_byte_buffer *rpc_encode_chunk(uint32_t id, struct request_tensor *tensor, uint64_t offset,
                                   uint64_t count);
/* AnalyzeStreamResponse. */
grpc_byte_buffer *rpc_encode_analyzed(const struct request_set *set, uint32_t id,
                                      const struct request_tensor *tensor);

/* True when the tensor has an answer of its own: weights, and state unless only analyzed. */
bool rpc_tensor_is_answered(const struct request_tensor *tensor);

#endif
