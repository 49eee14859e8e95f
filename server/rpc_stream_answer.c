/* rpc_stream_answer: the second half of a stream: compute, answer, send.
 *
 * Answers leave in the order in which they are done, each whole before the next begins. While the
 * device or a worker has a tensor, it holds a reference of the call; when they are done with it and
 * the call is over, the tensor is let go. */
#include "monitor.h"
#include "rpc_encode.h"
#include "rpc_stream.h"

static void answers_push(struct stream_tensor *tensor)
{
    struct stream *stream = tensor->stream;

    stream_tensor_unpark(tensor);
    tensor->place = STREAM_SENDING;
    tensor->next_answer = NULL;
    if (stream->answers)
        stream->answers_last->next_answer = tensor;
    else
        stream->answers = tensor;
    stream->answers_last = tensor;
}

void stream_answer_error(struct stream_tensor *tensor)
{
    FIRE_ASSERT(tensor->tensor->error.status != FIRE_OK);
    tensor->stream->busy_count++;
    answers_push(tensor);
}

/* The weight first, its state after it; what is not answered has done its part. */
static void answers_push_all(struct stream_tensor *weight)
{
    struct request_tensor *companion = weight->tensor->companions;
    struct rpc_call *call = weight->stream->call;

    monitor_record(rpc_call_server(call)->monitor, rpc_call_tenant(call)->name,
                   &weight->stream->set, &weight->tensor, 1);
    answers_push(weight);
    while (companion) {
        struct request_tensor *next = companion->next_companion;
        struct stream_tensor *owner = companion->owner;

        companion->next_companion = NULL;
        if (companion->role == REQUEST_STATE) {
            weight->stream->busy_count++;
            answers_push(owner);
        } else {
            stream_tensor_free(owner);
        }
        companion = next;
    }
    weight->tensor->companions = NULL;
}

/* A weight that a worker had when the call ended, and the companions that were kept for it. */
static void free_all(struct stream_tensor *weight)
{
    struct request_tensor *companion = weight->tensor->companions;

    while (companion) {
        struct request_tensor *next = companion->next_companion;

        stream_tensor_free(companion->owner);
        companion = next;
    }
    stream_tensor_free(weight);
}

/* --- answering -------------------------------------------------------------------------------- */

static void on_answer_work(uv_work_t *work)
{
    struct stream_tensor *tensor = work->data;

    request_answer(&tensor->stream->set, tensor->tensor);
}

static void after_answer_work(uv_work_t *work, int status)
{
    struct stream_tensor *tensor = work->data;
    struct stream *stream = tensor->stream;
    struct rpc_call *call = stream->call;

    (void)status; /* never cancelled */
    tensor->place = STREAM_SENDING;
    if (rpc_call_over(call)) {
        free_all(tensor);
    } else {
        answers_push_all(tensor);
        stream_advance(stream);
    }
    rpc_call_drop(call);
}

/* The weight and its companions need no more of the device. */
static void answer(struct stream_tensor *tensor)
{
    struct stream *stream = tensor->stream;
    int queued;

    tensor->place = STREAM_ANSWERING;
    if (tensor->tensor->error.status != FIRE_OK || tensor->block_bytes <= STREAM_INLINE_BYTES_MAX ||
        request_answer_is_light(&stream->set, tensor->tensor)) {
        request_answer(&stream->set, tensor->tensor);
        answers_push_all(tensor);
        return;
    }
    tensor->work.data = tensor;
    rpc_call_hold(stream->call);
    queued = uv_queue_work(&rpc_call_server(stream->call)->loop, &tensor->work, on_answer_work,
                           after_answer_work);
    FIRE_ASSERT(queued == 0);
}

/* --- computing -------------------------------------------------------------------------------- */

static void on_computed(struct request_tensor *request)
{
    struct stream_tensor *tensor = request->owner;
    struct stream *stream = tensor->stream;
    struct rpc_call *call = stream->call;

    if (rpc_call_over(call)) {
        stream_tensor_free(tensor);
    } else {
        answer(tensor);
        stream_advance(stream);
    }
    rpc_call_drop(call);
}

static void compute(struct stream_tensor *tensor)
{
    struct rpc_call *call = tensor->stream->call;
    const struct request_submission submission = {
        .scheduler = rpc_call_server(call)->scheduler,
        .tenant = rpc_call_tenant(call),
        .priority = tensor->stream->set.priority,
        .deadline_ns = rpc_call_deadline_ns(call),
        .call_id = rpc_call_id(call),
        .done = on_computed,
    };
    struct fire_error error = { 0 };
    bool refused = false;

    tensor->place = STREAM_COMPUTING;
    rpc_call_hold(call);
    /* Not before all of its jobs are in. */
    scheduler_hold(submission.scheduler);
    if (request_submit(tensor->tensor, &submission, &error) != FIRE_OK) {
        request_tensor_fail(tensor->tensor, &error, NULL);
        refused = tensor->tensor->jobs_left == 0;
    }
    if (refused)
        answer(tensor);
    /* Jobs that are late already end in here: on_computed() has answered then, and the tensor may
     * be gone. */
    scheduler_release(submission.scheduler);
    if (refused)
        rpc_call_drop(call);
}

void stream_end_set(struct stream *stream)
{
    struct server *server = rpc_call_server(stream->call);

    scheduler_hold(server->scheduler);
    for (struct stream_tensor *tensor = stream->first, *next; tensor; tensor = next) {
        next = tensor->next;
        if (tensor->place == STREAM_COMPUTING)
            request_end_set(tensor->tensor, server->scheduler);
    }
    scheduler_release(server->scheduler);
}

static bool stays_silent(const struct request_tensor *tensor)
{
    return tensor->analyze && tensor->role == REQUEST_STATE;
}

void stream_tensor_uploaded(struct stream_tensor *tensor)
{
    struct stream *stream = tensor->stream;
    const struct request_tensor *request = tensor->tensor;

    if (request->role == REQUEST_WEIGHT) {
        stream->busy_count++;
        if (request->error.status == FIRE_OK && request_job_count(request) > 0)
            compute(tensor);
        else
            answer(tensor);
    } else if (request->error.status != FIRE_OK) {
        stream_answer_error(tensor);
    } else {
        tensor->place = STREAM_PARKED;
        tensor->alone = true;
        stream->alone_count++;
        if (request->role != REQUEST_STATE || stays_silent(request))
            stream_state_answered(&stream->state, tensor->id);
        if (stays_silent(request))
            stream_tensor_free(tensor);
    }
}

/* A weight that is being answered, or a companion of it. */
static bool worker_has(const struct stream_tensor *tensor)
{
    const struct stream_tensor *weight = tensor;

    if (tensor->place == STREAM_PARKED && tensor->tensor->weight)
        weight = tensor->tensor->weight->owner;
    return weight->place == STREAM_ANSWERING;
}

bool stream_tensor_drop(struct stream_tensor *tensor)
{
    struct stream *stream = tensor->stream;

    if (worker_has(tensor) || (stream->feeding && stream->feed_tensor == tensor))
        return false;
    if (tensor->place == STREAM_COMPUTING) {
        request_cancel(tensor->tensor, rpc_call_server(stream->call)->scheduler);
        if (tensor->tensor->jobs_left > 0)
            return false;
        stream_tensor_free(tensor);
        rpc_call_drop(stream->call); /* as on_computed() would have */
        return true;
    }
    stream_tensor_free(tensor);
    return true;
}

/* --- sending ---------------------------------------------------------------------------------- */

/* The next message of an answer; NULL: no memory. */
static grpc_byte_buffer *next_message(struct stream_tensor *tensor)
{
    const struct request_set *set = &tensor->stream->set;
    uint64_t bytes, count, offset;

    (void)request_bytes(tensor->tensor, &bytes);
    if (!tensor->begun) {
        tensor->begun = true;
        if (tensor->stream->analyze)
            return rpc_encode_analyzed(set, tensor->id, tensor->tensor);
        return rpc_encode_begin(set, tensor->id, tensor->tensor, bytes);
    }
    offset = tensor->sent_bytes;
    count = bytes - offset < STREAM_ANSWER_BYTES_MAX ? bytes - offset : STREAM_ANSWER_BYTES_MAX;
    tensor->sent_bytes += count;
    return rpc_encode_chunk(tensor->id, tensor->tensor, offset, count);
}

static bool is_sent(const struct stream_tensor *tensor)
{
    uint64_t bytes;

    (void)request_bytes(tensor->tensor, &bytes);
    return tensor->begun && tensor->sent_bytes == bytes;
}

void stream_send(struct stream *stream)
{
    struct stream_tensor *tensor = stream->answers;
    grpc_byte_buffer *message;

    if (!tensor || rpc_call_over(stream->call) || rpc_call_sending(stream->call))
        return;
    message = next_message(tensor);
    if (!message) {
        struct fire_error error = { 0 };
        const enum fire_status status =
            fire_fail(&error, FIRE_NO_MEMORY, NULL, "there was no memory for an answer; try again");

        stream_fail(stream, status, &error);
        return;
    }
    /* The caller may use the id again as soon as it has read this, which can be before we hear that
     * it was sent. */
    if (is_sent(tensor))
        stream_state_answered(&stream->state, tensor->id);
    rpc_call_send(stream->call, message);
}

void stream_sent(struct stream *stream)
{
    struct stream_tensor *tensor = stream->answers;

    FIRE_ASSERT(tensor);
    if (is_sent(tensor)) {
        stream->answers = tensor->next_answer;
        stream_tensor_free(tensor);
    }
    stream_advance(stream);
}
