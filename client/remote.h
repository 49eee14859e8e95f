/* remote: the client of a daemon. Reading order: remote.c (life, threads, waiting), remote_items.c
 * (a set as tensors on the wire), remote_attempt.c (one call, and whether to try again),
 * remote_unary.c and remote_stream.c (the two ways to ask), remote_encode.c, remote_decode.c,
 * remote_error.c (messages), remote_channel.c (where the daemon is), remote_monitor.c (calls about
 * history).
 *
 * One thread a client, the pump, takes completions and runs all handlers; a caller's thread only
 * begins a set and waits for it. A set's lock is held while it is begun and in every handler, so
 * its state is touched by one thread at a time. Order of locks: a set's, then the client's.
 *
 * A set is a list of groups: one for each weight, with its companions (state, means, gradient)
 * before it. An answer counts by the group: what is to replace its own input is kept until all
 * answers of the group are here, so a lost connection leaves a group as it was or done, and what is
 * not done can be sent again. */
#ifndef FIRE_REMOTE_H
#define FIRE_REMOTE_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "client.h"
#include "fire/v1/reinit.pb-c.h"
#include "fire/v1/tensor.pb-c.h"
#include "remote_channel.h"
#include "rpc_wire.h"

#define REMOTE_UNARY_BYTES_MAX   (8ull << 20) /* larger sets are streamed */
#define REMOTE_UNARY_TENSORS_MAX 256u         /* on the wire, companions included */
#define REMOTE_CHUNK_BYTES       (4ull << 20)
#define REMOTE_OPEN_MAX          512u /* tensors of a stream without an answer; daemons take 1024 */
#define REMOTE_SMALL_BYTES_MAX   (48u << 20) /* of an answer, beside tensor bytes */
#define REMOTE_UNARY_DEADLINE_S  60.0
#define REMOTE_STREAM_DEADLINE_S 3600.0
#define REMOTE_RETRIES_DEFAULT   5u
#define REMOTE_TOKENS_MAX        10.0 /* the retry budget of a client */
#define REMOTE_TOKENS_EARNED     0.1  /* by a set that went well */
#define REMOTE_BACKOFF_S_FIRST   0.1
#define REMOTE_BACKOFF_S_MAX     5.0

#define REMOTE_NAME_BYTES 1024u

enum remote_role { REMOTE_STATE, REMOTE_UNIT_MEANS, REMOTE_GRADIENT, REMOTE_WEIGHT };

/* A message whose bytes wait for the rest of their group. */
struct remote_held {
    struct rpc_message message;
    uint64_t offset;
    struct remote_held *next;
};

/* One tensor on the wire; its index is its id. */
struct remote_item {
    enum remote_role role;
    size_t group;
    size_t state; /* which of the weight's states */
    const void *data;
    void *out; /* NULL: no bytes are wanted back */
    uint64_t bytes;
    bool answered; /* in this attempt or, if its group is done, before */
    struct remote_held *held_first;
    struct remote_held *held_last;
};

/* A weight and what goes with it: items first … first + count - 1, the weight last. */
struct remote_group {
    size_t first;
    size_t count;
    size_t answers_left;
    size_t open;             /* of its items, begun in this attempt and not settled */
    bool renamed;            /* it has no name, or one that another tensor has */
    bool done;               /* answered, or refused for good */
    bool again;              /* refused for now */
    struct fire_error error; /* of a refusal for now */
    int code;
};

struct remote_set;

/* What a completion is about: the pump calls `handle` with the set's lock held. */
struct remote_tag {
    void (*handle)(struct remote_set *set, bool ok);
    struct remote_set *set;
};

/* One call. */
struct remote_attempt {
    grpc_metadata_array initial;
    grpc_metadata_array trailing;
    grpc_status_code code;
    grpc_slice details;
    const char *core_text;
    grpc_byte_buffer *sending;  /* the message that core takes */
    grpc_byte_buffer *received; /* the message that is coming */
    uint32_t pending;           /* batches with core */
    bool ended;                 /* the status has come */
    struct fire_error fault;    /* of ours or of the daemon's answer; the call was then cancelled */
    int fault_code;             /* gRPC code it stands for; 0: ours */
    /* Unary. */
    size_t *asked; /* the items of the request, in order; owned */
    size_t asked_count;
    /* Stream: what is sent next. */
    bool header_sent;
    bool begun; /* of the item: its begin was sent */
    bool set_ended;
    bool closed;
    bool send_failed;
    bool paused; /* until answers come */
    size_t open; /* tensors begun whose group is not settled */
    size_t item;
    uint64_t offset;
    /* Stream: the answer that is coming; NULL: none. */
    struct remote_item *answer;
    uint64_t answer_bytes;
    uint64_t answer_received;
    bool answer_unwanted; /* its group is done */
};

enum remote_phase { REMOTE_RUNNING, REMOTE_BACKOFF, REMOTE_LINGERING };

struct remote_set {
    struct remote *remote;
    struct fire_set *set; /* the caller's */
    pthread_mutex_t lock;
    struct remote_group *groups; /* one for each tensor */
    size_t group_count;
    size_t groups_left;
    struct remote_item *items;
    size_t item_count;
    bool stream;
    bool per_matrix;
    double deadline_s; /* of the set, for messages */
    double end_s;      /* on the monotonic clock */
    uint32_t retries;
    double backoff_s;
    struct remote_attempt attempt;
    struct remote_tag sent;
    struct remote_tag arrived;
    struct remote_tag status;
    _Atomic uint32_t slices; /* of the caller's memory that core still points to */
    atomic_bool cancelled;
    /* Changed under the client's lock. */
    grpc_call *call; /* NULL between attempts */
    enum remote_phase phase;
    double wake_s; /* of a set that does not run */
    struct remote_set *next;
};

struct remote {
    struct fire_client base; /* first */
    struct remote_channel *channel;
    double deadline_s;
    uint32_t retries_max;
    enum fire_priority priority;
    char *run;
    int64_t step;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a set is done */
    pid_t process;          /* that started the pump; 0: none has */
    pthread_t pump;
    grpc_completion_queue *queue;
    grpc_channel *core;
    grpc_metadata *metadata;
    size_t metadata_count;
    uint32_t idle_count;     /* sets that wait for a time; the pump's own */
    struct remote_set *sets; /* begun and not done, callbacks included */
    double retry_tokens;
    uint64_t random;  /* of the jitter */
    const char *path; /* of the last answer */
};

double remote_now_s(void);

/* --- remote.c --------------------------------------------------------------------------------- */

/* The set is over: tells the caller and frees it. Pump or the thread that begins; the set's lock is
 * held and is released. */
void remote_set_finish(struct remote_set *set);
void remote_set_free(struct remote_set *set);

/* Starts gRPC, the channel and the pump where that has not happened yet; the client's lock is held.
 */
FIRE_NODISCARD enum fire_status remote_connect(struct remote *remote, struct fire_error *error);

/* --- remote_monitor.c ------------------------------------------------------------------------- */

/* client_methods.monitor */
FIRE_NODISCARD enum fire_status remote_monitor(struct fire_client *base, const char *method,
                                               const ProtobufCMessage *request,
                                               const ProtobufCMessageDescriptor *kind,
                                               ProtobufCMessage **answer, struct fire_error *error);

/* --- remote_items.c --------------------------------------------------------------------------- */

/* Checks the tensors and lists what goes over the wire. A tensor that cannot be sent is refused:
 * its group is done. */
FIRE_NODISCARD enum fire_status remote_items_make(struct remote_set *set, struct fire_error *error);

struct fire_tensor *remote_tensor(const struct remote_set *set, const struct remote_group *group);
/* A group is done or refused for now. */
static inline bool remote_is_settled(const struct remote_group *group)
{
    return group->done || group->again;
}

/* A group is refused: for good, or for now when `again`. */
void remote_group_refuse(struct remote_set *set, struct remote_group *group,
                         const struct fire_error *error, int code, bool again);
/* An item's answer is complete. With the last one the group is done. */
void remote_item_answered(struct remote_set *set, struct remote_item *item);
/* Bytes of an answer, at `offset` of the item; takes over `message`. */
FIRE_NODISCARD enum fire_status remote_item_bytes(struct remote_item *item, uint64_t offset,
                                                  struct rpc_message *message,
                                                  const struct rpc_payload *payload,
                                                  struct fire_error *error);
/* For rpc_payload_walk(): copies a run of bytes to its place in `data`. */
enum fire_status remote_copy_piece(void *data, uint64_t offset, const uint8_t *bytes, size_t count);
/* Forgets answers of groups that are not done, for another attempt. */
void remote_items_restart(struct remote_set *set);

/* A slice of the caller's memory, counted until core lets go of it. */
grpc_slice remote_slice(struct remote_set *set, const void *bytes, size_t count);

/* Core's locks order what happened before it got a thing before what happens when it gives it back.
 * The thread sanitizer does not see them, so it is told; elsewhere these do nothing. */
void remote_tell_given(void *thing);
void remote_tell_taken(void *thing);

/* --- remote_attempt.c ------------------------------------------------------------------------- */

/* Begins a call; the set's lock is held. A failure to begin ends the attempt like any other. */
void remote_attempt_start(struct remote_set *set);
/* After every handler: when the last batch is back the attempt is over; decides what comes then.
 * Returns true when the set is finished: it is gone, and its lock with it. */
bool remote_attempt_settle(struct remote_set *set);
/* The time of a set that does not run has come. Returns as settle does. */
bool remote_attempt_wake(struct remote_set *set);
/* Something failed here: the call is cancelled and the attempt fails with this. */
void remote_attempt_fault(struct remote_set *set, const struct fire_error *error);
/* The same when the daemon broke the contract; `what` completes "the daemon …". */
void remote_attempt_broken(struct remote_set *set, const char *what);
/* Starts a batch of `operations`; on failure the call is cancelled. */
void remote_batch(struct remote_set *set, const grpc_op *operations, size_t count,
                  struct remote_tag *tag);
grpc_op remote_op_metadata(struct remote_set *set);
grpc_op remote_op_status(struct remote_set *set);

void remote_unary_start(struct remote_set *set);
void remote_stream_start(struct remote_set *set);

/* --- remote_encode.c -------------------------------------------------------------------------- */

/* A tensor's header with the texts it points to. */
struct remote_header {
    Fire__V1__TensorHeader header;
    Fire__V1__Options options;
    uint64_t shape[FIRE_AXES_MAX];
    char parameter[REMOTE_NAME_BYTES];
    char name[REMOTE_NAME_BYTES + 32];
    char **texts; /* of options; owned */
    size_t text_count;
};

FIRE_NODISCARD enum fire_status remote_header_init(struct remote_header *header,
                                                   const struct remote_set *set,
                                                   const struct remote_item *item,
                                                   struct fire_error *error);
void remote_header_release(struct remote_header *header);

/* What holds for the whole set; texts are borrowed. */
void remote_set_header(const struct remote_set *set, Fire__V1__SetHeader *header);

/* --- remote_decode.c -------------------------------------------------------------------------- */

/* Takes the words of an answer: the tensor's result, statistics, batch, refusal. A refused item
 * refuses its group. */
void remote_take_result(struct remote_set *set, struct remote_item *item,
                        const Fire__V1__TensorResult *result);

/* --- remote_error.c --------------------------------------------------------------------------- */

enum fire_status remote_status_of(int code);
/* What a call ended with, in words that say what to do. `retry_s` is what the daemon asks to wait,
 * negative when it does not say. */
void remote_describe(const struct remote_set *set, struct fire_error *error, double *retry_s);

#endif
