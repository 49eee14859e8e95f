/* rpc_stream: ReinitStream and AnalyzeStream, the half that takes messages in.
 *
 * Messages are handled in order. While a worker puts the bytes of one chunk to their places the
 * next message is received; at most one more is kept. The stream stops asking for messages while
 * more of it is in flight than its window, so that a caller that does not read is felt by nobody
 * else; and while a begin waits for room in the arena.
 *
 * Invariants:
 *   the worker that feeds, the device and the workers that answer each hold a reference of the call
 *   every tensor is in the stream's list until it is freed; the list is empty at release
 *   window_bytes is the sum of block_bytes over the list
 *   a tensor's heap is charged while it is in the list, so memory is bounded by the budget
 */
#include "rpc_stream.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

static void drop_all(struct stream *stream);

static void message_release(struct stream *stream, struct stream_message *message)
{
    if (!message->here)
        return;
    if (message->request)
        protobuf_c_message_free_unpacked(&message->request->base, NULL);
    rpc_message_release(&message->wire);
    rpc_call_discharge(stream->call, message->bytes + message->heap_bytes);
    *message = (struct stream_message){ 0 };
}

void stream_fail(struct stream *stream, enum fire_status status, const struct fire_error *error)
{
    struct server *server = rpc_call_server(stream->call);
    const struct rpc_failure failure = {
        .field = error->field[0] ? error->field : NULL,
        .retry_ms = status == FIRE_BUSY ? scheduler_retry_ms(server->scheduler) : 0,
    };

    rpc_call_finish(stream->call, status, error, &failure);
    drop_all(stream);
}

/* --- tensors ---------------------------------------------------------------------------------- */

static struct stream_tensor *tensor_new(struct stream *stream, uint32_t id, uint64_t total_bytes)
{
    struct stream_tensor *tensor = calloc(1, sizeof(*tensor));

    if (!tensor)
        return NULL;
    tensor->stream = stream;
    tensor->id = id;
    tensor->total_bytes = total_bytes;
    tensor->heap_bytes = stream->queued.heap_bytes;
    stream->queued.heap_bytes = 0;
    tensor->previous = stream->last;
    if (stream->last)
        stream->last->next = tensor;
    else
        stream->first = tensor;
    stream->last = tensor;
    stream->tensor_count++;
    return tensor;
}

void stream_tensor_unpark(struct stream_tensor *tensor)
{
    tensor->stream->alone_count -= tensor->alone;
    tensor->alone = false;
}

void stream_tensor_free(struct stream_tensor *tensor)
{
    struct stream *stream = tensor->stream;

    stream_tensor_unpark(tensor);
    if (tensor->previous)
        tensor->previous->next = tensor->next;
    else
        stream->first = tensor->next;
    if (tensor->next)
        tensor->next->previous = tensor->previous;
    else
        stream->last = tensor->previous;
    stream->tensor_count--;
    if (tensor->place != STREAM_UPLOADING && tensor->place != STREAM_PARKED)
        stream->busy_count--;
    stream->window_bytes -= tensor->block_bytes;
    rpc_call_tenant(stream->call)->bytes_in_flight -= tensor->block_bytes;
    rpc_call_discharge(stream->call, tensor->heap_bytes);
    request_tensor_close(tensor->tensor);
    free(tensor);
}

/* --- the timer -------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer)
{
    stream_advance(timer->data);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct stream *stream = handle->data;

    rpc_call_drop(stream->call);
}

/* Something waits for room: looks again every few milliseconds, until `limit_ms` have passed. */
static void wait_for_room(struct stream *stream, uint32_t limit_ms)
{
    if (!stream->timer_open) {
        uv_timer_init(&rpc_call_server(stream->call)->loop, &stream->timer);
        stream->timer.data = stream;
        stream->timer_open = true;
        rpc_call_hold(stream->call);
    }
    stream->wait_until_ns = clock_now_ns() + limit_ms * CLOCK_NS_PER_MS;
    uv_timer_start(&stream->timer, on_timer, STREAM_RETRY_MS, STREAM_RETRY_MS);
}

static bool waited_enough(const struct stream *stream)
{
    return clock_now_ns() >= stream->wait_until_ns;
}

static void stop_waiting(struct stream *stream)
{
    stream->waiting = NULL;
    stream->receive_waiting = false;
    if (stream->timer_open)
        uv_timer_stop(&stream->timer);
}

/* Lets go of all that nobody else uses. The call is over. */
static void drop_all(struct stream *stream)
{
    struct stream_tensor *tensor = stream->first;

    FIRE_ASSERT(rpc_call_over(stream->call));
    rpc_call_hold(stream->call);
    stream->waiting = NULL;
    stream->answers = NULL;
    while (tensor) {
        struct stream_tensor *next = tensor->next;

        (void)stream_tensor_drop(tensor);
        tensor = next;
    }
    message_release(stream, &stream->queued);
    if (stream->timer_open) {
        stream->timer_open = false;
        uv_close((uv_handle_t *)&stream->timer, on_timer_closed);
    }
    rpc_call_drop(stream->call);
}

/* --- begin ------------------------------------------------------------------------------------ */

static void check_deadline(struct stream *stream, struct request_tensor *tensor)
{
    struct rpc_call *call = stream->call;
    const uint64_t now = clock_now_ns();
    const uint64_t deadline = rpc_call_deadline_ns(call);
    struct fire_error error = { 0 };
    double wait_s, own_s, left_s;

    if (deadline == CLOCK_NEVER_NS)
        return;
    request_estimate(tensor, rpc_call_server(call)->scheduler, rpc_call_tenant(call), &wait_s,
                     &own_s);
    left_s = deadline > now ? (double)(deadline - now) / CLOCK_NS_PER_S : 0.0;
    if (wait_s + own_s <= left_s)
        return;
    fire_fail(&error, FIRE_TOO_LATE, tensor->path,
              "tensor '%.100s' would be done in about %.3g s, but only %.3g s are left before the "
              "deadline; allow more time",
              tensor->name, wait_s + own_s, left_s);
    request_tensor_fail(tensor, &error, "DEADLINE_CANNOT_BE_MET");
}

/* Takes the tensor's block. FIRE_BUSY: later perhaps. */
static enum fire_status reserve(struct stream_tensor *tensor, struct fire_error *error)
{
    struct stream *stream = tensor->stream;
    struct tenant *tenant = rpc_call_tenant(stream->call);
    const uint64_t limit = tenant->limits.bytes_in_flight_max;
    const uint64_t bytes = request_tensor_block_bytes(tensor->tensor);
    enum fire_status status;

    status = request_check_workspace(tensor->tensor, rpc_call_server(stream->call)->scheduler,
                                     config_workspace_bytes(&rpc_call_server(stream->call)->config),
                                     error);
    if (status != FIRE_OK)
        return status;
    if (bytes > limit)
        return fire_fail(error, FIRE_BAD_REQUEST, tensor->tensor->path,
                         "tensor '%.100s' needs %" PRIu64 " bytes, but tenant %s may have %" PRIu64
                         " in flight: send it in parts, or raise its bytes_in_flight_max",
                         tensor->tensor->name, bytes, tenant->name, limit);
    if (tenant->bytes_in_flight > limit - bytes)
        return fire_fail(error, FIRE_BUSY, tensor->tensor->path,
                         "tenant %s has %" PRIu64 " of %" PRIu64
                         " bytes in flight; wait for answers or raise its bytes_in_flight_max",
                         tenant->name, tenant->bytes_in_flight, limit);
    status = request_tensor_reserve(tensor->tensor, rpc_call_server(stream->call)->arena, error);
    if (status != FIRE_OK)
        return status;
    tensor->block_bytes = bytes;
    tenant->bytes_in_flight += bytes;
    stream->window_bytes += bytes;
    return FIRE_OK;
}

/* Room for the tensor at last, or its error. True: the stream can go on. */
static bool find_room(struct stream_tensor *tensor)
{
    struct stream *stream = tensor->stream;
    struct fire_error error = { 0 };
    enum fire_status status = FIRE_OK;

    if (rpc_tensor_is_fed(tensor->tensor))
        status = reserve(tensor, &error);
    if (status == FIRE_BUSY && !stream->waiting) {
        stream->waiting = tensor;
        wait_for_room(stream, STREAM_ROOM_MS_MAX);
        return false;
    }
    if (status == FIRE_BUSY && !waited_enough(stream))
        return false;
    if (stream->waiting)
        stop_waiting(stream);
    if (status != FIRE_OK)
        request_tensor_fail(tensor->tensor, &error, NULL);
    if (tensor->total_bytes == 0)
        stream_tensor_uploaded(tensor);
    return true;
}

/* Two weights of one name are told apart only while the first is here; a set may be endless. */
static void check_name(struct stream *stream, struct stream_tensor *tensor)
{
    for (struct stream_tensor *other = stream->first; other; other = other->next) {
        struct fire_error error = { 0 };

        if (other == tensor || other->tensor->role != REQUEST_WEIGHT ||
            strcmp(other->tensor->name, tensor->tensor->name) != 0)
            continue;
        fire_fail(&error, FIRE_BAD_REQUEST, "begin.tensor.name",
                  "two weights are called '%.100s'; give every weight of a set a name of its own",
                  tensor->tensor->name);
        request_tensor_fail(tensor->tensor, &error, NULL);
        return;
    }
}

/* Gives the weight its companions. False: a rule was broken. */
static bool link_companions(struct stream *stream, struct stream_tensor *weight,
                            struct fire_error *error)
{
    struct stream_tensor *next;

    for (struct stream_tensor *tensor = stream->first; tensor; tensor = next) {
        struct request_tensor *companion = tensor->tensor;

        next = tensor->next;
        if (companion->role == REQUEST_WEIGHT || companion->weight ||
            strcmp(companion->parameter, weight->tensor->name) != 0)
            continue;
        if (tensor->place == STREAM_UPLOADING) {
            fire_fail(error, FIRE_BAD_REQUEST, "begin",
                      "weight '%.100s' begins while a tensor that belongs to it is uploading; "
                      "send that first",
                      weight->tensor->name);
            return false;
        }
        if (tensor->place != STREAM_PARKED)
            continue;
        if (request_tensor_link(weight->tensor, companion, error) == FIRE_OK) {
            stream_tensor_unpark(tensor);
            continue;
        }
        if (companion->role != REQUEST_STATE) {
            request_tensor_fail(weight->tensor, error, NULL);
            stream_tensor_free(tensor);
        } else {
            request_tensor_fail(companion, error, NULL);
            stream_answer_error(tensor);
        }
    }
    return true;
}

/* Opens the tensor of a begin, bad or not. False: no memory even for its error. */
static bool open_tensor(struct stream *stream, const Fire__V1__TensorBegin *begin,
                        struct stream_tensor *tensor)
{
    const Fire__V1__TensorHeader defaults = FIRE__V1__TENSOR_HEADER__INIT;
    const Fire__V1__TensorHeader *header = begin->tensor ? begin->tensor : &defaults;
    const struct config *config = &rpc_call_server(stream->call)->config;
    struct fire_error error = { 0 };
    enum fire_status status = request_tensor_open(
        &stream->set, header, "begin.tensor", config->tensor_bytes_max, &tensor->tensor, &error);

    if (status != FIRE_OK && request_tensor_refuse(header, &error, &tensor->tensor) != FIRE_OK)
        return false;
    tensor->tensor->owner = tensor;
    if (status != FIRE_OK || tensor->tensor->total_bytes == begin->total_bytes)
        return true;
    fire_fail(&error, FIRE_BAD_REQUEST, "begin.total_bytes",
              "total_bytes is %" PRIu64 ", but shape and dtype of tensor '%.100s' say %" PRIu64
              "; make them agree",
              begin->total_bytes, tensor->tensor->name, tensor->tensor->total_bytes);
    request_tensor_fail(tensor->tensor, &error, NULL);
    return true;
}

static enum fire_status check_alone(const struct stream *stream, struct fire_error *error)
{
    if (stream->alone_count < STREAM_ALONE_MAX)
        return FIRE_OK;
    return fire_fail(error, FIRE_BAD_REQUEST, "begin",
                     "%u tensors of the stream wait for weights that have not begun; send each "
                     "weight right after what belongs to it",
                     STREAM_ALONE_MAX);
}

static void take_begin(struct stream *stream, const Fire__V1__TensorBegin *begin)
{
    struct stream_tensor *tensor = tensor_new(stream, begin->id, begin->total_bytes);
    struct fire_error error = { 0 };
    enum fire_status status;

    if (!tensor) {
        stream_fail(stream, fire_fail_memory(&error, REQUEST_HEAP_BYTES), &error);
        return;
    }
    status = stream_state_begin(&stream->state, begin->id, begin->total_bytes, tensor, &error);
    if (status == FIRE_OK && !open_tensor(stream, begin, tensor))
        status = fire_fail_memory(&error, REQUEST_HEAP_BYTES);
    if (status == FIRE_OK && tensor->tensor->role != REQUEST_WEIGHT)
        status = check_alone(stream, &error);
    if (status == FIRE_OK && tensor->tensor->role == REQUEST_WEIGHT) {
        check_name(stream, tensor);
        if (!link_companions(stream, tensor, &error))
            status = error.status;
    }
    if (status != FIRE_OK) {
        stream_fail(stream, status, &error);
        return;
    }
    check_deadline(stream, tensor->tensor);
    (void)find_room(tensor);
}

/* --- chunks ----------------------------------------------------------------------------------- */

static void on_feed_work(uv_work_t *work)
{
    struct stream *stream = work->data;

    stream->feed_status = rpc_feed(stream->feed_tensor->tensor, &stream->fed.wire,
                                   &stream->fed.wire.payloads[0], &stream->feed_error);
}

/* The bytes are placed. The stream goes on, or lets go of the tensor when it is over. */
static void feed_done(struct stream *stream)
{
    struct stream_tensor *tensor = stream->feed_tensor;

    stream->feed_tensor = NULL;
    message_release(stream, &stream->fed);
    if (rpc_call_over(stream->call)) {
        stream_tensor_free(tensor);
        return;
    }
    if (stream->feed_status != FIRE_OK)
        request_tensor_fail(tensor->tensor, &stream->feed_error, NULL);
    if (stream->feed_last)
        stream_tensor_uploaded(tensor);
}

static void after_feed_work(uv_work_t *work, int status)
{
    struct stream *stream = work->data;
    struct rpc_call *call = stream->call;

    (void)status; /* never cancelled */
    stream->feeding = false;
    feed_done(stream);
    stream_advance(stream);
    rpc_call_drop(call);
}

static void feed(struct stream *stream, struct stream_tensor *tensor, bool last)
{
    const uint64_t bytes = stream->queued.wire.payloads[0].bytes;
    int queued;

    stream->fed = stream->queued;
    stream->queued = (struct stream_message){ 0 };
    stream->feed_tensor = tensor;
    stream->feed_last = last;
    stream->feed_work.data = stream;
    /* The first bytes of a tensor have its block laid out, which touches all of it. */
    if (bytes <= STREAM_INLINE_BYTES_MAX &&
        (tensor->tensor->received_bytes > 0 || tensor->block_bytes <= STREAM_INLINE_BLOCK_MAX)) {
        on_feed_work(&stream->feed_work);
        feed_done(stream);
        return;
    }
    stream->feeding = true;
    rpc_call_hold(stream->call);
    queued = uv_queue_work(&rpc_call_server(stream->call)->loop, &stream->feed_work, on_feed_work,
                           after_feed_work);
    FIRE_ASSERT(queued == 0);
}

static void take_chunk(struct stream *stream, const Fire__V1__TensorChunk *chunk)
{
    const struct rpc_message *wire = &stream->queued.wire;
    const uint64_t bytes = wire->payload_count ? wire->payloads[0].bytes : 0;
    struct fire_error error = { 0 };
    enum fire_status status;
    void *found;
    bool complete;

    status = stream_state_chunk(&stream->state, chunk->id, chunk->offset, bytes, &found, &complete,
                                &error);
    if (status != FIRE_OK) {
        stream_fail(stream, status, &error);
        return;
    }
    if (rpc_tensor_is_fed(((struct stream_tensor *)found)->tensor)) {
        feed(stream, found, complete);
        return;
    }
    /* A bad tensor: its bytes have nowhere to go, but they must come. */
    message_release(stream, &stream->queued);
    if (complete)
        stream_tensor_uploaded(found);
}

/* --- the other messages ----------------------------------------------------------------------- */

/* Companions whose weight did not come with them. False: a rule was broken. */
static bool answer_leftovers(struct stream *stream, struct fire_error *error)
{
    for (struct stream_tensor *tensor = stream->first; tensor; tensor = tensor->next) {
        if (tensor->place != STREAM_PARKED || tensor->tensor->weight)
            continue;
        fire_fail(error, FIRE_BAD_REQUEST, "begin.tensor.parameter",
                  "the set ended and no weight of it was called '%.100s'; send it after what "
                  "belongs to it",
                  tensor->tensor->parameter);
        if (tensor->tensor->role != REQUEST_STATE)
            return false;
        request_tensor_fail(tensor->tensor, error, NULL);
        stream_answer_error(tensor);
    }
    return true;
}

static void take_header(struct stream *stream, const Fire__V1__SetHeader *header)
{
    struct fire_error error = { 0 };
    enum fire_status status = stream_state_header(&stream->state, &error);

    if (status == FIRE_OK)
        status = request_set_init(&stream->set, header, stream->analyze, &error);
    if (status != FIRE_OK)
        stream_fail(stream, status, &error);
}

static void end_set(struct stream *stream, enum fire_status status, struct fire_error *error)
{
    if (status == FIRE_OK && !answer_leftovers(stream, error))
        status = error->status;
    if (status != FIRE_OK)
        stream_fail(stream, status, error);
    else
        stream_end_set(stream);
}

/* The queued message, unless it has to wait for the worker: then false. */
static bool take_message(struct stream *stream)
{
    const Fire__V1__ReinitStreamRequest *request = stream->queued.request;
    const size_t payload_count = stream->queued.wire.payload_count;
    const bool chunk = request->body_case == FIRE__V1__REINIT_STREAM_REQUEST__BODY_CHUNK;
    struct fire_error error = { 0 };

    /* A begin or an end may look at tensors that the worker fills. */
    if (stream->feeding)
        return false;
    if (payload_count > (chunk ? 1u : 0u)) {
        stream_fail(stream, stream_state_stray_bytes(&stream->state, &error), &error);
        return true;
    }
    switch (request->body_case) {
    case FIRE__V1__REINIT_STREAM_REQUEST__BODY_HEADER: take_header(stream, request->header); break;
    case FIRE__V1__REINIT_STREAM_REQUEST__BODY_BEGIN: take_begin(stream, request->begin); break;
    case FIRE__V1__REINIT_STREAM_REQUEST__BODY_CHUNK: take_chunk(stream, request->chunk); break;
    case FIRE__V1__REINIT_STREAM_REQUEST__BODY_END_OF_SET:
        end_set(stream, stream_state_end_of_set(&stream->state, &error), &error);
        break;
    case FIRE__V1__REINIT_STREAM_REQUEST__BODY__NOT_SET:
    case _FIRE__V1__REINIT_STREAM_REQUEST__BODY__CASE_IS_INT_SIZE:
    default: stream_fail(stream, stream_state_other(&stream->state, &error), &error); break;
    }
    message_release(stream, &stream->queued);
    return true;
}

/* --- receiving -------------------------------------------------------------------------------- */

static bool may_receive(const struct stream *stream)
{
    const struct config *config = &rpc_call_server(stream->call)->config;
    const bool full = stream->window_bytes > config->stream_window_bytes ||
                      !stream_state_has_room(&stream->state);

    if (stream->receiving || stream->queued.here || stream->half_close_arrived || stream->waiting)
        return false;
    /* With nothing under way that will make room, only more bytes can. */
    return !full || stream->busy_count == 0;
}

static void receive(struct stream *stream)
{
    struct fire_error error = { 0 };
    enum fire_status status;
    bool expected;

    if (may_receive(stream)) {
        status =
            rpc_call_receive(stream->call, STREAM_MESSAGE_BYTES_MAX + REQUEST_HEAP_BYTES, &error);
        stream->receiving = status == FIRE_OK;
        if (status == FIRE_OK && stream->receive_waiting) {
            stop_waiting(stream);
        } else if (status != FIRE_OK && !stream->receive_waiting) {
            stream->receive_waiting = true;
            wait_for_room(stream, STREAM_RECEIVE_MS_MAX);
        } else if (status != FIRE_OK && waited_enough(stream)) {
            stream_fail(stream, status, &error);
            return;
        }
        stream->expected = stream->receiving;
    }
    /* Who waits for an answer owes us nothing. */
    expected = stream->receiving && stream->busy_count == 0 && !stream->feeding;
    if (stream->receiving && expected != stream->expected)
        rpc_call_expect(stream->call, expected);
    stream->expected = expected;
}

static void finish_if_done(struct stream *stream)
{
    struct fire_error error = { 0 };

    if (!stream->half_close_arrived || stream->queued.here || stream->feeding || stream->waiting)
        return;
    if (!stream->state.half_closed)
        end_set(stream, stream_state_half_close(&stream->state, &error), &error);
    stream_send(stream);
    if (rpc_call_over(stream->call) || stream->tensor_count > 0 || rpc_call_sending(stream->call))
        return;
    rpc_call_finish(stream->call, FIRE_OK, NULL, NULL);
    drop_all(stream);
}

void stream_advance(struct stream *stream)
{
    struct rpc_call *call = stream->call;

    /* What is done here may end in a tensor that is done: the outer turn goes on with it. */
    if (stream->advancing)
        return;
    stream->advancing = true;
    rpc_call_hold(call);
    if (!rpc_call_over(call) && stream->waiting)
        (void)find_room(stream->waiting);
    while (!rpc_call_over(call) && !stream->waiting && stream->queued.here) {
        if (!take_message(stream))
            break;
    }
    rpc_call_uploading(call, stream->state.upload_count > 0);
    if (!rpc_call_over(call))
        receive(stream);
    if (!rpc_call_over(call))
        stream_send(stream);
    if (!rpc_call_over(call))
        finish_if_done(stream);
    stream->advancing = false;
    rpc_call_drop(call);
}

/* --- the call --------------------------------------------------------------------------------- */

static void on_start(struct rpc_call *call)
{
    struct stream *stream = rpc_call_state(call);

    stream->call = call;
    stream->analyze = rpc_call_method(call) == &rpc_analyze_stream_method;
    stream_advance(stream);
}

static void on_message(struct rpc_call *call, grpc_byte_buffer *buffer)
{
    struct stream *stream = rpc_call_state(call);
    struct stream_message *message = &stream->queued;
    struct fire_error error = { 0 };
    enum fire_status status;

    stream->receiving = false;
    if (!buffer) {
        stream->half_close_arrived = true;
        stream_advance(stream);
        return;
    }
    message->here = true;
    message->bytes = grpc_byte_buffer_length(buffer);
    status = rpc_message_init(&message->wire, buffer, RPC_STREAM_BYTES_MAX, 1, &error);
    if (status == FIRE_OK) {
        message->request = (Fire__V1__ReinitStreamRequest *)rpc_unpack(
            &fire__v1__reinit_stream_request__descriptor, &message->wire, &error);
        if (!message->request)
            status = error.status;
    }
    if (status == FIRE_OK &&
        message->request->body_case == FIRE__V1__REINIT_STREAM_REQUEST__BODY_BEGIN) {
        /* The reservation of the message, just given back, had room for this. */
        status = rpc_call_charge(call, REQUEST_HEAP_BYTES, &error);
        if (status == FIRE_OK)
            message->heap_bytes = REQUEST_HEAP_BYTES;
    }
    if (status != FIRE_OK)
        stream_fail(stream, status, &error);
    else
        stream_advance(stream);
}

static void on_sent(struct rpc_call *call)
{
    stream_sent(rpc_call_state(call));
}

static void on_ended(struct rpc_call *call, enum fire_status why)
{
    (void)why;
    drop_all(rpc_call_state(call));
}

static void on_release(struct rpc_call *call)
{
    const struct stream *stream = rpc_call_state(call);

    FIRE_ASSERT(stream->tensor_count == 0);
    FIRE_ASSERT(!stream->queued.here);
    FIRE_ASSERT(!stream->fed.here);
    FIRE_ASSERT(!stream->timer_open);
}

const struct rpc_method rpc_reinit_stream_method = {
    .path = "/fire.v1.ReinitService/ReinitStream",
    .kind = RPC_STREAM,
    .state_bytes = sizeof(struct stream),
    .start = on_start,
    .message = on_message,
    .sent = on_sent,
    .ended = on_ended,
    .release = on_release,
};

const struct rpc_method rpc_analyze_stream_method = {
    .path = "/fire.v1.ReinitService/AnalyzeStream",
    .kind = RPC_STREAM,
    .state_bytes = sizeof(struct stream),
    .start = on_start,
    .message = on_message,
    .sent = on_sent,
    .ended = on_ended,
    .release = on_release,
};
