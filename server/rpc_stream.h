/* rpc_stream: what the two halves of a stream share: rpc_stream.c takes messages in, and
 * rpc_stream_answer.c computes, answers and sends. Loop thread, except where a worker has a tensor.
 *
 * A tensor is in one place at a time:
 *     UPLOADING -> COMPUTING -> ANSWERING -> SENDING -> gone    a weight
 *     UPLOADING -> PARKED -> SENDING -> gone                    optimizer state
 *     UPLOADING -> PARKED -> gone                               activations, means, gradients
 * and a bad one goes from UPLOADING to SENDING, with its error, when its last byte has come. */
#ifndef FIRED_RPC_STREAM_H
#define FIRED_RPC_STREAM_H

#include "request.h"
#include "rpc_call.h"
#include "rpc_decode.h"
#include "rpc_stream_state.h"

#define STREAM_MESSAGE_BYTES_MAX (RPC_CHUNK_BYTES_MAX + RPC_STREAM_BYTES_MAX + 64u)
#define STREAM_INLINE_BYTES_MAX  (64u << 10)  /* work of this size is done on the loop */
#define STREAM_INLINE_BLOCK_MAX  (256u << 10) /* and blocks of this size are laid out there */
/* Fits, with what stands around it, the 4 MiB that gRPC clients take unless told otherwise. */
#define STREAM_ANSWER_BYTES_MAX ((4u << 20) - (64u << 10))
#define STREAM_ALONE_MAX        1024u /* tensors that wait for the weight they belong to */
#define STREAM_RETRY_MS         5u
#define STREAM_ROOM_MS_MAX      2000u  /* a begin waits so long for room in the arena */
#define STREAM_RECEIVE_MS_MAX   10000u /* a stream waits so long for room to receive */

struct stream;

enum stream_place {
    STREAM_UPLOADING,
    STREAM_PARKED,
    STREAM_COMPUTING,
    STREAM_ANSWERING,
    STREAM_SENDING
};

struct stream_tensor {
    struct stream *stream;
    uint32_t id;
    enum stream_place place;
    struct request_tensor *tensor;
    bool alone;           /* parked, and its weight has not begun */
    uint64_t heap_bytes;  /* charged to the call */
    uint64_t block_bytes; /* charged to the tenant and the window */
    uint64_t total_bytes; /* of its upload */
    bool begun;           /* its answer */
    uint64_t sent_bytes;  /* of its answer, given to gRPC */
    uv_work_t work;
    struct stream_tensor *next; /* of the stream's, in the order they began */
    struct stream_tensor *previous;
    struct stream_tensor *next_answer;
};

/* A message that has come, unpacked. */
struct stream_message {
    bool here;
    struct rpc_message wire;
    uint64_t bytes;      /* charged to the call */
    uint64_t heap_bytes; /* charged to the call, for the tensor that begins */
    Fire__V1__ReinitStreamRequest *request;
};

struct stream {
    struct rpc_call *call;
    bool analyze;
    struct request_set set;
    struct stream_state state;
    bool advancing; /* stream_advance() is at work */

    struct stream_tensor *first;
    struct stream_tensor *last;
    uint32_t tensor_count;
    uint32_t busy_count;  /* COMPUTING, ANSWERING or SENDING */
    uint32_t alone_count; /* tensors that are */
    uint64_t window_bytes;

    bool receiving;
    bool expected;           /* the caller's clock runs */
    bool half_close_arrived; /* handled once what came before is */
    struct stream_message queued;

    bool feeding; /* a worker has `fed` and `feed_tensor` */
    uv_work_t feed_work;
    struct stream_message fed;
    struct stream_tensor *feed_tensor;
    bool feed_last;
    enum fire_status feed_status;
    struct fire_error feed_error;

    struct stream_tensor *waiting; /* a begin without room */
    bool receive_waiting;          /* no room to receive */
    uint64_t wait_until_ns;
    uv_timer_t timer;
    bool timer_open;

    struct stream_tensor *answers; /* in the order they are sent */
    struct stream_tensor *answers_last;
};

/* rpc_stream.c */
void stream_advance(struct stream *stream); /* does what can be done now; the stream may be over */
void stream_fail(struct stream *stream, enum fire_status status, const struct fire_error *error);
void stream_tensor_free(struct stream_tensor *tensor);
void stream_tensor_unpark(struct stream_tensor *tensor); /* it waits for no weight any more */

/* rpc_stream_answer.c */
void stream_tensor_uploaded(struct stream_tensor *tensor); /* all bytes have come and are placed */
void stream_send(struct stream *stream);                   /* the next message, if there is one */
void stream_sent(struct stream *stream);
void stream_answer_error(struct stream_tensor *tensor); /* sends its error as its answer */
/* True when it could be let go at once; else its last user does that. */
bool stream_tensor_drop(struct stream_tensor *tensor);
void stream_end_set(struct stream *stream); /* what waits for company need not */

#endif
