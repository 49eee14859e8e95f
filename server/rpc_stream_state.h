/* rpc_stream_state: the rules of an upload stream, apart from everything else: no call, no loop, no
 * memory of its own. Fuzzed.
 *
 * The first message is the header, once. Then tensors: a begin, and chunks in order without gaps
 * until exactly total_bytes have come. At most STREAM_UPLOADS_MAX tensors are uploading at once. An
 * id is in use from its begin until its answer is complete. A set ends, and the stream half-closes,
 * only between tensors. A broken rule is FIRE_BAD_REQUEST with the rule in words; the stream is
 * then over. */
#ifndef FIRED_RPC_STREAM_STATE_H
#define FIRED_RPC_STREAM_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

#define STREAM_UPLOADS_MAX 4u
#define STREAM_IDS_MAX     1024u /* tensors of one stream that are not answered yet */

struct stream_upload {
    bool open;
    uint32_t id;
    uint64_t total_bytes;
    uint64_t received_bytes;
    void *tensor; /* the user's */
};

struct stream_state {
    bool header_seen;
    bool half_closed;
    bool broken;
    struct stream_upload uploads[STREAM_UPLOADS_MAX];
    uint32_t upload_count;
    uint32_t ids[STREAM_IDS_MAX]; /* in use, in no order */
    uint32_t id_count;
};

FIRE_NODISCARD enum fire_status stream_state_header(struct stream_state *state,
                                                    struct fire_error *error);

/* A tensor begins. `upload` is for its chunks; with total_bytes 0 it is complete, and NULL. */
FIRE_NODISCARD enum fire_status stream_state_begin(struct stream_state *state, uint32_t id,
                                                   uint64_t total_bytes, void *tensor,
                                                   struct fire_error *error);

/* `bytes` of a tensor, which is given back; `complete` when these were the last. */
FIRE_NODISCARD enum fire_status stream_state_chunk(struct stream_state *state, uint32_t id,
                                                   uint64_t offset, uint64_t bytes, void **tensor,
                                                   bool *complete, struct fire_error *error);

FIRE_NODISCARD enum fire_status stream_state_end_of_set(struct stream_state *state,
                                                        struct fire_error *error);
FIRE_NODISCARD enum fire_status stream_state_half_close(struct stream_state *state,
                                                        struct fire_error *error);

/* A message without a body, or with bytes where none belong. */
FIRE_NODISCARD enum fire_status stream_state_other(struct stream_state *state,
                                                   struct fire_error *error);
FIRE_NODISCARD enum fire_status stream_state_stray_bytes(struct stream_state *state,
                                                         struct fire_error *error);

/* The answer of a completely uploaded tensor is complete: its id may be used again. */
void stream_state_answered(struct stream_state *state, uint32_t id);

/* Room for one more begin? */
static inline bool stream_state_has_room(const struct stream_state *state)
{
    return state->id_count < STREAM_IDS_MAX;
}

#endif
