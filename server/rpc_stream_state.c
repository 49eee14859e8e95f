/* rpc_stream_state: the rules of an upload stream. */
#include "rpc_stream_state.h"

#include <inttypes.h>
#include <stddef.h>

#include "rpc_decode.h"

static enum fire_status break_rule(struct stream_state *state, enum fire_status status)
{
    state->broken = true;
    return status;
}

/* What every message but the header must find. */
static enum fire_status check_open(struct stream_state *state, struct fire_error *error)
{
    FIRE_ASSERT(!state->broken);
    FIRE_ASSERT(!state->half_closed);
    if (state->header_seen)
        return FIRE_OK;
    return break_rule(state, fire_fail(error, FIRE_BAD_REQUEST, "header",
                                       "the first message of a stream is its header; send it "
                                       "before anything else"));
}

static struct stream_upload *find_upload(struct stream_state *state, uint32_t id)
{
    for (uint32_t i = 0; i < STREAM_UPLOADS_MAX; i++) {
        if (state->uploads[i].open && state->uploads[i].id == id)
            return &state->uploads[i];
    }
    return NULL;
}

enum fire_status stream_state_header(struct stream_state *state, struct fire_error *error)
{
    FIRE_ASSERT(!state->broken);
    FIRE_ASSERT(!state->half_closed);
    if (state->header_seen)
        return break_rule(state, fire_fail(error, FIRE_BAD_REQUEST, "header",
                                           "a stream has one header, its first message; open "
                                           "another stream for another one"));
    state->header_seen = true;
    return FIRE_OK;
}

static enum fire_status check_begin(const struct stream_state *state, uint32_t id,
                                    struct fire_error *error)
{
    for (uint32_t i = 0; i < state->id_count; i++) {
        if (state->ids[i] == id)
            return fire_fail(error, FIRE_BAD_REQUEST, "begin.id",
                             "id %" PRIu32 " is in use; use it again once its answer is complete",
                             id);
    }
    if (state->upload_count == STREAM_UPLOADS_MAX)
        return fire_fail(
            error, FIRE_BAD_REQUEST, "begin.id",
            "at most %u tensors may be uploading at once; finish one before id %" PRIu32 " begins",
            STREAM_UPLOADS_MAX, id);
    if (state->id_count == STREAM_IDS_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "begin.id",
                         "%u tensors of the stream are not answered yet; read answers while "
                         "sending",
                         STREAM_IDS_MAX);
    return FIRE_OK;
}

enum fire_status stream_state_begin(struct stream_state *state, uint32_t id, uint64_t total_bytes,
                                    void *tensor, struct fire_error *error)
{
    enum fire_status status = check_open(state, error);
    struct stream_upload *upload = state->uploads;

    if (status != FIRE_OK)
        return status;
    status = check_begin(state, id, error);
    if (status != FIRE_OK)
        return break_rule(state, status);
    state->ids[state->id_count++] = id;
    if (total_bytes == 0)
        return FIRE_OK;
    while (upload->open)
        upload++;
    *upload = (struct stream_upload){
        .open = true, .id = id, .total_bytes = total_bytes, .tensor = tensor
    };
    state->upload_count++;
    return FIRE_OK;
}

static enum fire_status check_chunk(const struct stream_upload *upload, uint32_t id,
                                    uint64_t offset, uint64_t bytes, struct fire_error *error)
{
    if (!upload)
        return fire_fail(error, FIRE_BAD_REQUEST, "chunk.id",
                         "id %" PRIu32 " is not uploading; begin it first and send no more than "
                         "its total_bytes",
                         id);
    if (offset != upload->received_bytes)
        return fire_fail(error, FIRE_BAD_REQUEST, "chunk.offset",
                         "the next chunk of id %" PRIu32 " begins at %" PRIu64 ", not at %" PRIu64
                         "; send them in order, without gaps",
                         id, upload->received_bytes, offset);
    if (bytes > RPC_CHUNK_BYTES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "data",
                         "a chunk of id %" PRIu32 " has %" PRIu64 " bytes; at most %u are taken: "
                         "send smaller ones",
                         id, bytes, RPC_CHUNK_BYTES_MAX);
    if (bytes == 0)
        return fire_fail(error, FIRE_BAD_REQUEST, "data",
                         "a chunk of id %" PRIu32 " has no bytes; put them in data", id);
    if (bytes > upload->total_bytes - upload->received_bytes)
        return fire_fail(error, FIRE_BAD_REQUEST, "data",
                         "id %" PRIu32 " has %" PRIu64 " of %" PRIu64
                         " bytes and a chunk of %" PRIu64 " came; send exactly total_bytes",
                         id, upload->received_bytes, upload->total_bytes, bytes);
    return FIRE_OK;
}

enum fire_status stream_state_chunk(struct stream_state *state, uint32_t id, uint64_t offset,
                                    uint64_t bytes, void **tensor, bool *complete,
                                    struct fire_error *error)
{
    enum fire_status status = check_open(state, error);
    struct stream_upload *upload = find_upload(state, id);

    *tensor = NULL;
    *complete = false;
    if (status != FIRE_OK)
        return status;
    status = check_chunk(upload, id, offset, bytes, error);
    if (status != FIRE_OK)
        return break_rule(state, status);
    upload->received_bytes += bytes;
    *tensor = upload->tensor;
    *complete = upload->received_bytes == upload->total_bytes;
    if (*complete) {
        upload->open = false;
        state->upload_count--;
    }
    return FIRE_OK;
}

/* Sets and streams end between tensors. */
static enum fire_status check_between(struct stream_state *state, const char *what,
                                      struct fire_error *error)
{
    for (uint32_t i = 0; i < STREAM_UPLOADS_MAX; i++) {
        const struct stream_upload *upload = &state->uploads[i];

        if (upload->open)
            return break_rule(state, fire_fail(error, FIRE_BAD_REQUEST, "chunk",
                                               "%s after %" PRIu64 " of %" PRIu64
                                               " bytes of id %" PRIu32 "; send all of them first",
                                               what, upload->received_bytes, upload->total_bytes,
                                               upload->id));
    }
    return FIRE_OK;
}

enum fire_status stream_state_end_of_set(struct stream_state *state, struct fire_error *error)
{
    const enum fire_status status = check_open(state, error);

    return status == FIRE_OK ? check_between(state, "the set ended", error) : status;
}

enum fire_status stream_state_half_close(struct stream_state *state, struct fire_error *error)
{
    enum fire_status status;

    FIRE_ASSERT(!state->broken);
    FIRE_ASSERT(!state->half_closed);
    status = check_between(state, "the stream was half-closed", error);
    state->half_closed = status == FIRE_OK;
    return status;
}

enum fire_status stream_state_other(struct stream_state *state, struct fire_error *error)
{
    const enum fire_status status = check_open(state, error);

    if (status != FIRE_OK)
        return status;
    return break_rule(state, fire_fail(error, FIRE_BAD_REQUEST, "body",
                                       "a message of a stream is a header, a begin, a chunk or an "
                                       "end_of_set; set one of them"));
}

enum fire_status stream_state_stray_bytes(struct stream_state *state, struct fire_error *error)
{
    FIRE_ASSERT(!state->broken);
    return break_rule(state, fire_fail(error, FIRE_BAD_REQUEST, "data",
                                       "data belongs to a chunk, one field a message; send it "
                                       "there"));
}

void stream_state_answered(struct stream_state *state, uint32_t id)
{
    for (uint32_t i = 0; i < state->id_count; i++) {
        if (state->ids[i] != id)
            continue;
        state->ids[i] = state->ids[--state->id_count];
        return;
    }
    FIRE_ASSERT(!"the id is in use");
}
