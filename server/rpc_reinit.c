/* rpc_reinit: the unary methods Reinit and Analyze.
 *
 *     receive -> decode -> reserve -> feed -> submit … last job done -> answer -> reply
 *
 * decode, feed and answer run on a worker, or right here when they have so little to do that a
 * change of threads would cost more than the work. Between two stages a call that is over stops:
 * what the device or a worker still uses is freed when they have done with it.
 *
 * Invariants:
 *   while `working` or `weights_left` > 0 the state holds a reference of the call
 *   what is charged is in message_bytes, heap_bytes and block_bytes; all are 0 after forget()
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "monitor.h"
#include "rpc_core.h"
#include "rpc_decode.h"
#include "rpc_encode.h"

#define INLINE_BYTES_MAX   (64u << 10)  /* of what is decoded or fed on the loop */
#define INLINE_BLOCK_MAX   (256u << 10) /* of the blocks that are laid out there */
#define INLINE_TENSORS_MAX 16u
#define ALONE_BYTES_MAX    (1536u << 10) /* of what is fed there while no other call is open */
#define FEED_BYTES_MIN     (1u << 20)    /* for one worker, of what several feed */
#define FEED_WORKERS_MAX   4u
#define FEED_VIEWS_MAX     256u /* of a set that is laid out on the loop */
#define TOO_LATE_REASON    "DEADLINE_CANNOT_BE_MET"

/* A worker's share of feeding a large set. */
struct feed_share {
    struct reinit *reinit;
    uv_work_t work;
    struct rpc_feed_part part;
    enum fire_status status;
    struct fire_error error;
};

struct reinit {
    struct rpc_call *call;
    uv_work_t work;
    void (*stage)(struct reinit *reinit); /* on a worker */
    void (*after)(struct reinit *reinit); /* then on the loop, unless the call is over */
    bool working;
    bool on_loop; /* small: the stage runs on the loop */
    struct rpc_message message;
    uint64_t message_bytes; /* charged to the call */
    uint64_t heap_bytes;    /* charged to the call */
    uint64_t block_bytes;   /* charged to the tenant */
    struct rpc_set set;
    struct feed_share *shares; /* while several workers feed */
    uint32_t shares_left;
    size_t weights_left; /* with jobs that are not done */
    enum fire_status status;
    struct fire_error error;
    grpc_byte_buffer *response;
};

/* No other call is open: there is nobody to be held up. */
static bool is_alone(struct rpc_call *call)
{
    return rpc_server_calls(rpc_call_rpc(call)) == 1;
}

static bool is_analyze(const struct rpc_call *call)
{
    return rpc_call_method(call) == &rpc_analyze_method;
}

static void forget_message(struct reinit *reinit)
{
    rpc_message_release(&reinit->message);
    rpc_call_discharge(reinit->call, reinit->message_bytes);
    reinit->message_bytes = 0;
}

/* Lets go of everything. Nobody else uses it any more; borrowed slices keep their blocks. */
static void forget(struct reinit *reinit)
{
    FIRE_ASSERT(!reinit->working);
    FIRE_ASSERT(reinit->weights_left == 0);
    forget_message(reinit);
    rpc_set_release(&reinit->set);
    rpc_call_discharge(reinit->call, reinit->heap_bytes);
    rpc_call_tenant(reinit->call)->bytes_in_flight -= reinit->block_bytes;
    rpc_call_tenant(reinit->call)->bytes_unary -= reinit->block_bytes;
    reinit->heap_bytes = 0;
    reinit->block_bytes = 0;
    if (reinit->response)
        grpc_byte_buffer_destroy(reinit->response);
    reinit->response = NULL;
}

static void fail(struct reinit *reinit, enum fire_status status, const struct fire_error *error,
                 const char *reason)
{
    struct server *server = rpc_call_server(reinit->call);
    const struct rpc_failure failure = {
        .reason = reason,
        .field = error->field[0] ? error->field : NULL,
        .retry_ms = status == FIRE_BUSY ? scheduler_retry_ms(server->scheduler) : 0,
    };

    rpc_call_finish(reinit->call, status, error, &failure);
}

/* --- stages ----------------------------------------------------------------------------------- */

static void on_work(uv_work_t *work)
{
    struct reinit *reinit = work->data;

    reinit->stage(reinit);
}

static void stage_done(struct reinit *reinit)
{
    struct rpc_call *call = reinit->call;

    reinit->working = false;
    if (rpc_call_over(call))
        forget(reinit);
    else
        reinit->after(reinit);
    rpc_call_drop(call);
}

static void after_work(uv_work_t *work, int status)
{
    (void)status; /* never cancelled */
    stage_done(work->data);
}

static void stage_begin(struct reinit *reinit, void (*after)(struct reinit *reinit))
{
    reinit->after = after;
    reinit->working = true;
    rpc_call_hold(reinit->call);
}

static void run(struct reinit *reinit, void (*stage)(struct reinit *reinit),
                void (*after)(struct reinit *reinit))
{
    int queued;

    if (reinit->on_loop) {
        stage(reinit);
        after(reinit);
        return;
    }
    stage_begin(reinit, after);
    reinit->stage = stage;
    reinit->work.data = reinit;
    queued =
        uv_queue_work(&rpc_call_server(reinit->call)->loop, &reinit->work, on_work, after_work);
    FIRE_ASSERT(queued == 0);
}

static void stage_answer(struct reinit *reinit)
{
    reinit->status = rpc_set_answer(&reinit->set, &reinit->error);
    if (reinit->status != FIRE_OK)
        return;
    reinit->response = rpc_encode_set(&reinit->set);
    if (!reinit->response)
        reinit->status = fire_fail(&reinit->error, FIRE_NO_MEMORY, NULL,
                                   "there was no memory for the answer; try again");
}

static void after_answer(struct reinit *reinit)
{
    grpc_byte_buffer *response = reinit->response;

    reinit->response = NULL;
    if (reinit->status == FIRE_OK) {
        rpc_call_reply(reinit->call, response);
        monitor_record(rpc_call_server(reinit->call)->monitor, rpc_call_tenant(reinit->call)->name,
                       &reinit->set.set, reinit->set.tensors, reinit->set.tensor_count);
    } else {
        fail(reinit, reinit->status, &reinit->error, NULL);
    }
}

/* --- computing -------------------------------------------------------------------------------- */

/* Few tensors whose answers take no time: not worth a trip to a worker and back. */
static bool answer_is_light(const struct rpc_set *set)
{
    if (set->tensor_count > INLINE_TENSORS_MAX)
        return false;
    for (size_t i = 0; i < set->tensor_count; i++) {
        if (set->tensors[i]->role != REQUEST_WEIGHT ||
            !request_answer_is_light(&set->set, set->tensors[i]))
            return false;
    }
    return true;
}

/* One weight less is being computed; with the last one the call goes on, or is let go. */
static void weight_is_done(struct reinit *reinit)
{
    struct rpc_call *call = reinit->call;

    FIRE_ASSERT(reinit->weights_left > 0);
    if (--reinit->weights_left > 0)
        return;
    reinit->on_loop = reinit->on_loop || answer_is_light(&reinit->set);
    if (rpc_call_over(call))
        forget(reinit);
    else
        run(reinit, stage_answer, after_answer);
    rpc_call_drop(call);
}

static void on_weight_done(struct request_tensor *tensor)
{
    weight_is_done(tensor->owner);
}

/* Takes back every job that waits. The state may be gone afterwards. */
static void cancel(struct reinit *reinit)
{
    struct scheduler *scheduler = rpc_call_server(reinit->call)->scheduler;
    size_t taken_back = 0;

    for (size_t i = 0; i < reinit->set.tensor_count; i++) {
        struct request_tensor *tensor = reinit->set.tensors[i];

        if (tensor->jobs_left == 0)
            continue;
        request_cancel(tensor, scheduler);
        taken_back += tensor->jobs_left == 0;
    }
    for (; taken_back > 0; taken_back--)
        weight_is_done(reinit);
}

/* Submits the jobs of one weight; it counts while the device has any of them. */
static enum fire_status submit_weight(struct reinit *reinit, struct request_tensor *tensor)
{
    struct rpc_call *call = reinit->call;
    const struct request_submission submission = {
        .scheduler = rpc_call_server(call)->scheduler,
        .tenant = rpc_call_tenant(call),
        .priority = reinit->set.set.priority,
        .deadline_ns = rpc_call_deadline_ns(call),
        .call_id = rpc_call_id(call),
        .end_of_set = true,
        .alone = is_alone(call),
        .done = on_weight_done,
    };
    enum fire_status status;

    tensor->owner = reinit;
    reinit->weights_left++;
    status = request_submit(tensor, &submission, &reinit->error);
    if (status != FIRE_OK && tensor->jobs_left == 0)
        reinit->weights_left--;
    return status;
}

static void submit(struct reinit *reinit)
{
    struct rpc_call *call = reinit->call;
    struct scheduler *scheduler = rpc_call_server(call)->scheduler;
    enum fire_status status = FIRE_OK;

    /* One more than there are, so that nothing goes on before all are in. */
    rpc_call_hold(call);
    reinit->weights_left = 1;
    scheduler_hold(scheduler);
    for (size_t i = 0; i < reinit->set.tensor_count && status == FIRE_OK; i++) {
        struct request_tensor *tensor = reinit->set.tensors[i];

        if (tensor->role == REQUEST_WEIGHT && tensor->error.status == FIRE_OK &&
            request_job_count(tensor) > 0)
            status = submit_weight(reinit, tensor);
    }
    if (status != FIRE_OK) {
        fail(reinit, status, &reinit->error, NULL);
        cancel(reinit);
    }
    scheduler_release(scheduler);
    weight_is_done(reinit);
}

/* --- from the message to the slots ------------------------------------------------------------ */

static void stage_feed(struct reinit *reinit)
{
    reinit->status = rpc_set_feed(&reinit->set, &reinit->message, &reinit->error);
}

static void after_feed(struct reinit *reinit)
{
    forget_message(reinit);
    if (reinit->status == FIRE_OK)
        submit(reinit);
    else
        fail(reinit, reinit->status, &reinit->error, NULL);
}

/* --- several workers feed --------------------------------------------------------------------- */

static void on_share(uv_work_t *work)
{
    struct feed_share *share = work->data;
    struct reinit *reinit = share->reinit;

    share->status = rpc_set_feed_part(&reinit->set, &reinit->message, &share->part, &share->error);
}

/* The last share is done: the first failure of the first tensor is the set's. */
static void shares_end(struct reinit *reinit)
{
    const struct feed_share *first = NULL;

    for (uint32_t i = 0; i < reinit->shares->part.count; i++) {
        const struct feed_share *share = &reinit->shares[i];

        if (share->status != FIRE_OK && (!first || share->part.tensor < first->part.tensor))
            first = share;
    }
    reinit->status = first ? first->status : FIRE_OK;
    if (first)
        reinit->error = first->error;
    else
        rpc_set_feed_end(&reinit->set);
    free(reinit->shares);
    reinit->shares = NULL;
    stage_done(reinit);
}

static void after_share(uv_work_t *work, int status)
{
    struct feed_share *share = work->data;

    (void)status; /* never cancelled */
    if (--share->reinit->shares_left == 0)
        shares_end(share->reinit);
}

/* How many workers are worth it: a large set, few matrices, and a tensor that is bad ends it. */
static uint32_t share_count(const struct reinit *reinit)
{
    const uint64_t most = reinit->message_bytes / FEED_BYTES_MIN;
    uint32_t count = uv_available_parallelism();
    uint64_t views = 0;

    for (size_t i = 0; i < reinit->set.tensor_count; i++)
        views += reinit->set.tensors[i]->work.view_count;
    if (reinit->set.set.skip_bad || views > FEED_VIEWS_MAX)
        return 1;
    count = count < FEED_WORKERS_MAX ? count : FEED_WORKERS_MAX;
    return count < most ? count : (uint32_t)most;
}

/* False: one has to do it. */
static bool feed_shared(struct reinit *reinit)
{
    const uint32_t count = share_count(reinit);

    if (count < 2)
        return false;
    reinit->shares = calloc(count, sizeof(*reinit->shares));
    if (!reinit->shares)
        return false;
    stage_begin(reinit, after_feed);
    rpc_set_feed_begin(&reinit->set);
    reinit->shares_left = count;
    for (uint32_t i = 0; i < count; i++) {
        struct feed_share *share = &reinit->shares[i];
        int queued;

        share->reinit = reinit;
        share->work.data = share;
        share->part = (struct rpc_feed_part){ .index = i, .count = count };
        queued = uv_queue_work(&rpc_call_server(reinit->call)->loop, &share->work, on_share,
                               after_share);
        FIRE_ASSERT(queued == 0);
    }
    return true;
}

/* Before the deadline; infinite when there is none. */
static double seconds_left(const struct rpc_call *call)
{
    const uint64_t now = clock_now_ns();
    const uint64_t deadline = rpc_call_deadline_ns(call);

    if (deadline == CLOCK_NEVER_NS)
        return HUGE_VAL;
    return deadline > now ? (double)(deadline - now) / CLOCK_NS_PER_S : 0.0;
}

static enum fire_status check_deadline(struct reinit *reinit)
{
    struct rpc_call *call = reinit->call;
    struct scheduler *scheduler = rpc_call_server(call)->scheduler;
    const double left_s = seconds_left(call);
    double wait_s = 0, own_s = 0;

    for (size_t i = 0; i < reinit->set.tensor_count; i++) {
        double wait, own;

        request_estimate(reinit->set.tensors[i], scheduler, rpc_call_tenant(call), &wait, &own);
        wait_s = fmax(wait_s, wait);
        own_s += own;
    }
    if (wait_s + own_s <= left_s)
        return FIRE_OK;
    return fire_fail(&reinit->error, FIRE_TOO_LATE, NULL,
                     "the work would be done in about %.3g s, but only %.3g s are left before the "
                     "deadline; allow more time or send less",
                     wait_s + own_s, left_s);
}

/* Takes the blocks of all tensors, or leaves the rest to forget(). */
static enum fire_status reserve(struct reinit *reinit)
{
    struct server *server = rpc_call_server(reinit->call);
    struct tenant *tenant = rpc_call_tenant(reinit->call);
    const uint64_t limit = tenant->limits.bytes_in_flight_max;

    for (size_t i = 0; i < reinit->set.tensor_count; i++) {
        struct request_tensor *tensor = reinit->set.tensors[i];
        const uint64_t bytes = request_tensor_block_bytes(tensor);
        enum fire_status status;

        if (!rpc_tensor_is_fed(tensor))
            continue;
        status = request_check_workspace(tensor, server->scheduler,
                                         config_workspace_bytes(&server->config), &reinit->error);
        if (status != FIRE_OK)
            return status;
        if (tenant->bytes_in_flight > limit || bytes > limit - tenant->bytes_in_flight)
            return fire_fail(&reinit->error, FIRE_BUSY, tensor->path,
                             "tenant %s has %" PRIu64 " of %" PRIu64
                             " bytes in flight; wait for answers or raise its bytes_in_flight_max",
                             tenant->name, tenant->bytes_in_flight, limit);
        status = request_tensor_reserve(tensor, server->arena, &reinit->error);
        if (status != FIRE_OK)
            return status;
        tenant->bytes_in_flight += bytes;
        tenant->bytes_unary += bytes;
        reinit->block_bytes += bytes;
    }
    return FIRE_OK;
}

/* A small message of tiny matrices has a large block. */
static bool feeds_quickly(const struct reinit *reinit)
{
    if (is_alone(reinit->call))
        return reinit->message_bytes <= ALONE_BYTES_MAX && reinit->block_bytes <= ALONE_BYTES_MAX;
    return reinit->message_bytes <= INLINE_BYTES_MAX && reinit->block_bytes <= INLINE_BLOCK_MAX;
}

static void stage_decode(struct reinit *reinit)
{
    const struct config *config = &rpc_call_server(reinit->call)->config;

    reinit->status = rpc_set_decode(&reinit->set, &reinit->message, is_analyze(reinit->call),
                                    config->tensor_bytes_max, &reinit->error);
}

static void after_decode(struct reinit *reinit)
{
    const char *reason = NULL;

    if (reinit->status == FIRE_OK) {
        reinit->status = check_deadline(reinit);
        if (reinit->status != FIRE_OK)
            reason = TOO_LATE_REASON;
    }
    if (reinit->status == FIRE_OK)
        reinit->status = reserve(reinit);
    if (reinit->status == FIRE_OK) {
        reinit->on_loop = reinit->on_loop && feeds_quickly(reinit);
        if (reinit->on_loop || !feed_shared(reinit))
            run(reinit, stage_feed, after_feed);
        return;
    }
    fail(reinit, reinit->status, &reinit->error, reason);
    forget(reinit);
}

/* --- the call --------------------------------------------------------------------------------- */

/* What waits already may take longer than this call has: then its message need not be read. */
static enum fire_status check_wait(struct reinit *reinit)
{
    struct rpc_call *call = reinit->call;
    const double wait_s = scheduler_wait_s(rpc_call_server(call)->scheduler, rpc_call_tenant(call));
    const double left_s = seconds_left(call);

    if (wait_s <= left_s)
        return FIRE_OK;
    return fire_fail(&reinit->error, FIRE_TOO_LATE, NULL,
                     "what waits will take about %.3g s, but only %.3g s are left before the "
                     "deadline; allow more time",
                     wait_s, left_s);
}

static void on_start(struct rpc_call *call)
{
    struct reinit *reinit = rpc_call_state(call);
    const uint64_t bytes_max = rpc_call_server(call)->config.message_bytes_max;
    enum fire_status status;

    reinit->call = call;
    status = check_wait(reinit);
    if (status != FIRE_OK) {
        fail(reinit, status, &reinit->error, TOO_LATE_REASON);
        return;
    }
    status = rpc_call_receive(call, bytes_max, &reinit->error);
    if (status != FIRE_OK)
        fail(reinit, status, &reinit->error, NULL);
}

static void on_message(struct rpc_call *call, grpc_byte_buffer *buffer)
{
    struct reinit *reinit = rpc_call_state(call);
    enum fire_status status;

    if (!buffer) {
        fire_fail(&reinit->error, FIRE_BAD_REQUEST, "",
                  "the call ended without a request; send one");
        fail(reinit, FIRE_BAD_REQUEST, &reinit->error, NULL);
        return;
    }
    reinit->message_bytes = grpc_byte_buffer_length(buffer);
    status = rpc_message_init(&reinit->message, buffer, RPC_SET_BYTES_MAX, RPC_TENSORS_MAX,
                              &reinit->error);
    if (status == FIRE_OK) {
        const uint64_t heap_bytes = (uint64_t)reinit->message.payload_count * REQUEST_HEAP_BYTES;

        status = rpc_call_charge(call, heap_bytes, &reinit->error);
        if (status == FIRE_OK)
            reinit->heap_bytes = heap_bytes;
    }
    if (status != FIRE_OK) {
        fail(reinit, status, &reinit->error, NULL);
        forget(reinit);
        return;
    }
    /* Tensor bytes are not looked at when decoding. */
    reinit->on_loop = reinit->message.small_bytes <= INLINE_BYTES_MAX &&
                      reinit->message.payload_count <= INLINE_TENSORS_MAX;
    run(reinit, stage_decode, after_decode);
}

static void on_ended(struct rpc_call *call, enum fire_status why)
{
    struct reinit *reinit = rpc_call_state(call);

    (void)why;
    if (reinit->working)
        return; /* the worker uses it: after_work() lets go */
    if (reinit->weights_left > 0)
        cancel(reinit);
    else
        forget(reinit);
}

static void on_release(struct rpc_call *call)
{
    forget(rpc_call_state(call));
}

const struct rpc_method rpc_reinit_method = {
    .path = "/fire.v1.ReinitService/Reinit",
    .kind = RPC_UNARY_TENSOR,
    .state_bytes = sizeof(struct reinit),
    .start = on_start,
    .message = on_message,
    .ended = on_ended,
    .release = on_release,
};

const struct rpc_method rpc_analyze_method = {
    .path = "/fire.v1.ReinitService/Analyze",
    .kind = RPC_UNARY_TENSOR,
    .state_bytes = sizeof(struct reinit),
    .start = on_start,
    .message = on_message,
    .ended = on_ended,
    .release = on_release,
};
