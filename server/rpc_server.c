/* rpc_server: listens; owns the completion queue and its pump thread.
 *
 * The pump puts (tag, ok) into a ring and wakes the loop when the ring was empty. It never looks at
 * a tag. The ring is bounded: when the loop falls behind, the pump waits, and with it the network.
 * What the loop gives to core is often done before core returns: a message that is here already, a
 * status the socket takes. Such a tag stays on the loop, in a list of its own, and costs no change
 * of threads. The loop runs a bounded number of events a turn: timers stay exact under load.
 *
 * Slots are calls asked of core in advance, SLOTS_PER_METHOD for each method and as many for calls
 * that are nobody's; each is asked for again in the event that fills it.
 *
 * The end, in this order: health says so and watchers end; new calls are refused, with UNAVAILABLE
 * by us, since core would answer CANCELLED; what runs goes on until the limit, then is cancelled;
 * when nothing runs and callers have gone quiet core is shut down; when it has returned the tag the
 * server is destroyed; when no call object and no slot is left, the queue is shut down and the pump
 * joined. Starting a batch after that would abort the process, hence the count of call objects.
 *
 * Invariants:
 *   armed is the number of slots that core has
 *   at_once is empty outside on_wake(), or the loop has been woken
 *   objects >= calls: refused calls are objects until their status has left
 */
#include "rpc_server.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "rpc_core.h"
#include "rpc_listen.h"
#include "scheduler.h"
#include "wake.h"

#define SLOTS_PER_METHOD     64u
#define EVENTS_MAX           4096u /* in the ring */
#define EVENTS_PER_TURN      32u
#define WARNINGS_PER_S       10u
#define PATH_BYTES           256u
#define HEADER_BYTES         (1u << 20) /* of a message beside its tensors */
#define CHUNK_BYTES          (4u << 20) /* of a stream */
#define PING_INTERVAL_MS     5000       /* callers may ask as often as this whether we live */
#define KEEPALIVE_MS         30000
#define KEEPALIVE_TIMEOUT_MS 20000
#define STREAMS_MAX          256         /* of one connection */
#define FRAME_BYTES          (1 << 20)   /* a message of 16 MiB in 16 KiB is a thousand frames */
#define WINDOW_BYTES         (24 << 10)  /* of a stream that nobody reads; a 64² fits */
#define UNREAD_BYTES         (32u << 10) /* that core keeps of such a call */
#define QUOTA_BYTES_MIN      (64u << 20)
#define SHUTDOWN_WAIT_MS     250
#define QUIET_MS             25u  /* without an arrival, before core is shut down */
#define QUIET_MS_MAX         500u /* of waiting for that */

static const struct rpc_method *const methods_served[] = {
    &rpc_reinit_method,           &rpc_analyze_method,
    &rpc_reinit_stream_method,    &rpc_analyze_stream_method,
    &rpc_status_method,           &rpc_drain_method,
    &rpc_set_log_level_method,    &rpc_health_check_method,
    &rpc_health_watch_method,     &rpc_reflection_method,
    &rpc_reflection_alpha_method, &rpc_report_method,
    &rpc_list_runs_method,        &rpc_query_method,
    &rpc_list_events_method,      &rpc_monitor_watch_method,
    &rpc_advise_method,
};

struct rpc_event {
    void *tag;
    bool ok;
};

struct rpc_slot {
    struct rpc_tag tag;
    struct rpc_server *rpc;
    const struct rpc_method *method; /* NULL: for calls that are nobody's */
    void *registered;
    grpc_call *core;
    gpr_timespec deadline;
    grpc_call_details details;
    grpc_metadata_array metadata;
};

struct rpc_server {
    struct server *server;
    struct rpc_listen *listen;
    grpc_server *core;
    grpc_completion_queue *queue;
    struct rpc_slot *slots;
    size_t slot_count;
    uint32_t armed;
    uint32_t objects; /* call objects */
    uint32_t calls;   /* admitted */
    uint32_t awaited; /* small requests */
    uint64_t calls_total;
    uint64_t last_id;
    struct rpc_health health;
    struct rpc_call *first_call;
    struct rpc_call *newest_guest;
    struct tenant *resuming; /* rpc_calls_resume() is to be called, in this order */
    struct tenant **resuming_end;
    struct tenant *blocked; /* … once memory has been given back */
    struct tenant **blocked_end;

    struct rpc_tag *at_once; /* done before core returned, oldest first */
    struct rpc_tag **at_once_end;
    bool turning; /* within on_wake() */

    struct wake wake;
    uv_timer_t limit;
    uv_timer_t quiet;
    uint32_t handles; /* open ones */
    uv_thread_t pump;

    uv_mutex_t lock; /* of the ring */
    uv_cond_t room;
    struct rpc_event ring[EVENTS_MAX];
    uint32_t ring_first;
    uint32_t ring_count;

    struct rpc_tag shutdown_tag;
    bool draining;
    bool shutting;  /* core was told to shut down */
    bool shut_down; /* core has returned the tag */
    bool drained;   /* and the callback has been called */
    uint64_t drain_at_ns;
    uint64_t arrived_ns; /* the last arrival while draining */
    uint64_t idle_ns;    /* since when nothing runs while draining; 0: something does */
    void (*on_drained)(void *data);
    void *drained_data;
    void (*on_closed)(void *data);
    void *closed_data;

    uint64_t warnings_second; /* which one */
    uint32_t warnings;        /* in it */
    uint64_t warnings_suppressed;
};

struct server *rpc_server_owner(struct rpc_server *rpc)
{
    return rpc->server;
}

struct rpc_health *rpc_server_health(struct rpc_server *rpc)
{
    return &rpc->health;
}

struct rpc_call **rpc_server_first_call(struct rpc_server *rpc)
{
    return &rpc->first_call;
}

struct rpc_call **rpc_server_newest_guest(struct rpc_server *rpc)
{
    return &rpc->newest_guest;
}

bool rpc_server_draining(const struct rpc_server *rpc)
{
    return rpc->draining;
}

uint32_t *rpc_server_awaited(struct rpc_server *rpc)
{
    return &rpc->awaited;
}

uint64_t rpc_server_next_id(struct rpc_server *rpc)
{
    return ++rpc->last_id;
}

uint32_t rpc_server_calls(const struct rpc_server *rpc)
{
    return rpc->calls;
}

uint64_t rpc_server_calls_total(const struct rpc_server *rpc)
{
    return rpc->calls_total;
}

const char *rpc_server_address(const struct rpc_server *rpc, uint32_t index)
{
    return rpc_listen_address(rpc->listen, index);
}

void rpc_server_set_serving(struct rpc_server *rpc, bool serving)
{
    if (!rpc->draining)
        rpc_health_set(&rpc->health, serving);
}

void rpc_server_set_monitoring(struct rpc_server *rpc, bool up)
{
    rpc->health.monitoring = up;
    if (!rpc->draining)
        rpc_health_set(&rpc->health, rpc->health.serving);
}

bool rpc_server_may_warn(struct rpc_server *rpc, uint64_t *suppressed)
{
    const uint64_t second = clock_now_ns() / CLOCK_NS_PER_S;

    if (second != rpc->warnings_second) {
        rpc->warnings_second = second;
        rpc->warnings = 0;
    }
    if (rpc->warnings >= WARNINGS_PER_S) {
        rpc->warnings_suppressed++;
        return false;
    }
    rpc->warnings++;
    *suppressed = rpc->warnings_suppressed;
    rpc->warnings_suppressed = 0;
    return true;
}

/* --- the pump --- */

static void pump_run(void *data)
{
    struct rpc_server *rpc = data;

    pthread_setname_np(pthread_self(), "rpc-pump");
    for (;;) {
        const grpc_event event =
            grpc_completion_queue_next(rpc->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);

        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return;
        if (event.type != GRPC_OP_COMPLETE)
            continue;

        uv_mutex_lock(&rpc->lock);
        while (rpc->ring_count == EVENTS_MAX)
            uv_cond_wait(&rpc->room, &rpc->lock);
        rpc->ring[(rpc->ring_first + rpc->ring_count) % EVENTS_MAX] =
            (struct rpc_event){ event.tag, event.success != 0 };
        const bool was_empty = rpc->ring_count++ == 0;
        uv_mutex_unlock(&rpc->lock);
        if (was_empty)
            wake_send(&rpc->wake);
    }
}

void rpc_server_resume(struct rpc_server *rpc, struct tenant *tenant)
{
    if (tenant->resuming)
        return;
    tenant->resuming = true;
    tenant->next_resuming = NULL;
    *rpc->resuming_end = tenant;
    rpc->resuming_end = &tenant->next_resuming;
    wake_send(&rpc->wake);
}

void rpc_server_block(struct rpc_server *rpc, struct tenant *tenant)
{
    if (tenant->blocked)
        return;
    tenant->blocked = true;
    tenant->next_blocked = NULL;
    *rpc->blocked_end = tenant;
    rpc->blocked_end = &tenant->next_blocked;
}

void rpc_server_unblock(struct rpc_server *rpc)
{
    struct tenant *tenant = rpc->blocked;

    rpc->blocked = NULL;
    rpc->blocked_end = &rpc->blocked;
    for (; tenant; tenant = tenant->next_blocked) {
        tenant->blocked = false;
        rpc_server_resume(rpc, tenant);
    }
}

/* Those that ask for it again are in the list of the next turn. */
static void resume_all(struct rpc_server *rpc)
{
    struct tenant *tenant = rpc->resuming;

    rpc->resuming = NULL;
    rpc->resuming_end = &rpc->resuming;
    while (tenant) {
        struct tenant *next = tenant->next_resuming;

        tenant->resuming = false;
        rpc_calls_resume(tenant);
        tenant = next;
    }
}

void rpc_server_start_batch(struct rpc_server *rpc, grpc_call *call, const grpc_op *operations,
                            size_t count, struct rpc_tag *tag)
{
    grpc_call_error error;
    void *done = NULL;
    int ok = 0;

    grpc_completion_queue_thread_local_cache_init(rpc->queue);
    error = grpc_call_start_batch(call, operations, count, tag, NULL);
    FIRE_ASSERT(error == GRPC_CALL_OK);
    if (!grpc_completion_queue_thread_local_cache_flush(rpc->queue, &done, &ok))
        return;
    tag = done; /* not always the one of this batch */
    tag->ok = ok != 0;
    tag->next = NULL;
    *rpc->at_once_end = tag;
    rpc->at_once_end = &tag->next;
    if (!rpc->turning)
        wake_send(&rpc->wake);
}

/* Runs the tags that are in the list now, up to so many. What they add is for the next turn: libuv
 * closes handles between two, and a call counts until its timer is closed. */
static void run_at_once(struct rpc_server *rpc, uint32_t count_max)
{
    uint32_t count = 0;

    for (const struct rpc_tag *tag = rpc->at_once; tag && count < count_max; tag = tag->next)
        count++;
    for (; count > 0; count--) {
        struct rpc_tag *tag = rpc->at_once;

        rpc->at_once = tag->next;
        if (!rpc->at_once)
            rpc->at_once_end = &rpc->at_once;
        tag->run(tag, tag->ok);
    }
}

static void on_wake(void *data)
{
    struct rpc_server *rpc = data;
    struct scheduler *const scheduler = rpc->server->scheduler;
    struct rpc_event events[EVENTS_PER_TURN];
    uint32_t count = 0;

    rpc->turning = true;
    uv_mutex_lock(&rpc->lock);
    const bool was_full = rpc->ring_count == EVENTS_MAX;
    while (count < EVENTS_PER_TURN && rpc->ring_count > 0) {
        events[count++] = rpc->ring[rpc->ring_first];
        rpc->ring_first = (rpc->ring_first + 1) % EVENTS_MAX;
        rpc->ring_count--;
    }
    const bool more = rpc->ring_count > 0;
    if (was_full)
        uv_cond_signal(&rpc->room);
    uv_mutex_unlock(&rpc->lock);

    /* The pump wakes us only when the ring was empty. */
    if (more)
        wake_send(&rpc->wake);
    /* What has arrived together is dispatched together. */
    if (scheduler)
        scheduler_hold(scheduler);
    run_at_once(rpc, EVENTS_PER_TURN);
    for (uint32_t i = 0; i < count; i++) {
        struct rpc_tag *tag = events[i].tag;

        tag->run(tag, events[i].ok);
    }
    resume_all(rpc);
    if (scheduler)
        scheduler_release(scheduler);
    rpc->turning = false;
    if (rpc->at_once)
        wake_send(&rpc->wake);
}

/* --- drained and closed --- */

static void drained_check(struct rpc_server *rpc)
{
    if (!rpc->shut_down || rpc->drained || rpc->objects > 0 || rpc->armed > 0)
        return;
    rpc->drained = true;
    uv_timer_stop(&rpc->limit);
    uv_timer_stop(&rpc->quiet);
    if (rpc->on_drained)
        rpc->on_drained(rpc->drained_data);
}

void rpc_server_call_made(struct rpc_server *rpc)
{
    rpc->objects++;
}

void rpc_server_call_admitted(struct rpc_server *rpc)
{
    rpc->calls++;
    rpc->calls_total++;
    metrics_set(rpc->server->metrics, METRIC_CALLS_RUNNING, NULL, NULL, rpc->calls);
}

void rpc_server_call_gone(struct rpc_server *rpc, bool admitted)
{
    FIRE_ASSERT(rpc->objects > 0);
    rpc->objects--;
    if (admitted) {
        FIRE_ASSERT(rpc->calls > 0);
        rpc->calls--;
        metrics_set(rpc->server->metrics, METRIC_CALLS_RUNNING, NULL, NULL, rpc->calls);
    }
    rpc_server_unblock(rpc);
    drained_check(rpc);
}

static void on_shutdown(struct rpc_tag *tag, bool ok)
{
    struct rpc_server *rpc =
        (struct rpc_server *)((char *)tag - offsetof(struct rpc_server, shutdown_tag));
    (void)ok;

    grpc_server_destroy(rpc->core);
    rpc->core = NULL;
    rpc->shut_down = true;
    drained_check(rpc);
}

static void core_shut_down(struct rpc_server *rpc)
{
    if (rpc->shutting)
        return;
    rpc->shutting = true;
    uv_timer_stop(&rpc->quiet);
    grpc_server_shutdown_and_notify(rpc->core, rpc->queue, &rpc->shutdown_tag);
}

/* Nothing runs and nobody has called for a moment: whoever had a call on its way has its answer. */
static void on_quiet(uv_timer_t *timer)
{
    struct rpc_server *rpc = timer->data;
    const uint64_t now_ns = clock_now_ns();

    if (rpc->calls > 0) {
        rpc->idle_ns = 0;
        return;
    }
    if (rpc->idle_ns == 0)
        rpc->idle_ns = now_ns;
    if (now_ns - rpc->arrived_ns >= QUIET_MS * CLOCK_NS_PER_MS ||
        now_ns - rpc->idle_ns >= QUIET_MS_MAX * CLOCK_NS_PER_MS)
        core_shut_down(rpc);
}

static void on_limit(uv_timer_t *timer)
{
    struct rpc_server *rpc = timer->data;

    core_shut_down(rpc);
    if (!rpc->core)
        return;
    log_warn("drain_limit", LOG_U64("calls_cancelled", rpc->calls));
    grpc_server_cancel_all_calls(rpc->core);
}

void rpc_server_drain(struct rpc_server *rpc, uint32_t limit_ms, void (*drained)(void *data),
                      void *data)
{
    const uint64_t at_ns = clock_now_ns() + limit_ms * CLOCK_NS_PER_MS;

    if (rpc->drained)
        return;
    rpc->on_drained = drained;
    rpc->drained_data = data;
    if (!rpc->draining) {
        rpc->draining = true;
        rpc->drain_at_ns = CLOCK_NEVER_NS;
        rpc_health_set(&rpc->health, false);
        rpc_health_end(&rpc->health);
        rpc_calls_drain(rpc->first_call);
        uv_timer_start(&rpc->quiet, on_quiet, 0, QUIET_MS);
    }
    if (at_ns < rpc->drain_at_ns) {
        rpc->drain_at_ns = at_ns;
        uv_update_time(&rpc->server->loop);
        uv_timer_start(&rpc->limit, on_limit, limit_ms, 0);
    }
}

static void rpc_server_free(struct rpc_server *rpc)
{
    for (size_t i = 0; i < rpc->slot_count; i++) {
        grpc_metadata_array_destroy(&rpc->slots[i].metadata);
        grpc_call_details_destroy(&rpc->slots[i].details);
    }
    free(rpc->slots);
    uv_cond_destroy(&rpc->room);
    uv_mutex_destroy(&rpc->lock);

    /* Core ends its threads in the background; what is still running at exit would look like a
     * leak. Other users in this process keep it alive, hence the limit. */
    grpc_shutdown();
    for (int waited_ms = 0; waited_ms < SHUTDOWN_WAIT_MS && grpc_is_initialized(); waited_ms++)
        uv_sleep(1);
    rpc_listen_close(rpc->listen); /* after the last handshake */
    free(rpc);
}

static void on_released(void *data)
{
    struct rpc_server *rpc = data;
    void (*const closed)(void *data) = rpc->on_closed;
    void *const closed_data = rpc->closed_data;

    if (--rpc->handles > 0)
        return;
    rpc_server_free(rpc);
    if (closed)
        closed(closed_data);
}

static void on_handle_closed(uv_handle_t *handle)
{
    on_released(handle->data);
}

/* Ends the queue, which has nothing outstanding, and lets go of the rest. */
static void rpc_server_end(struct rpc_server *rpc)
{
    grpc_completion_queue_destroy(rpc->queue);
    if (rpc->handles == 0) {
        rpc_server_free(rpc);
        return;
    }
    wake_release(&rpc->wake, on_released);
    uv_close((uv_handle_t *)&rpc->limit, on_handle_closed);
    uv_close((uv_handle_t *)&rpc->quiet, on_handle_closed);
}

void rpc_server_close(struct rpc_server *rpc, void (*closed)(void *data), void *data)
{
    FIRE_ASSERT(rpc->drained);
    FIRE_ASSERT(rpc->objects == 0);
    rpc->on_closed = closed;
    rpc->closed_data = data;
    grpc_completion_queue_shutdown(rpc->queue);
    uv_thread_join(&rpc->pump);
    FIRE_ASSERT(rpc->ring_count == 0);
    FIRE_ASSERT(rpc->at_once == NULL);
    rpc_server_end(rpc);
}

/* --- arrivals --- */

static void slot_arm(struct rpc_slot *slot)
{
    struct rpc_server *rpc = slot->rpc;
    grpc_call_error error;

    slot->core = NULL;
    if (slot->method) {
        error = grpc_server_request_registered_call(rpc->core, slot->registered, &slot->core,
                                                    &slot->deadline, &slot->metadata, NULL,
                                                    rpc->queue, rpc->queue, &slot->tag);
    } else {
        error = grpc_server_request_call(rpc->core, &slot->core, &slot->details, &slot->metadata,
                                         rpc->queue, rpc->queue, &slot->tag);
    }
    FIRE_ASSERT(error == GRPC_CALL_OK);
    rpc->armed++;
}

static void on_arrival(struct rpc_tag *tag, bool ok)
{
    struct rpc_slot *slot = (struct rpc_slot *)((char *)tag - offsetof(struct rpc_slot, tag));
    struct rpc_server *rpc = slot->rpc;
    char path[PATH_BYTES] = "";

    FIRE_ASSERT(rpc->armed > 0);
    rpc->armed--;
    if (!ok) { /* shutting down */
        drained_check(rpc);
        return;
    }
    if (!slot->method) {
        const size_t bytes = GRPC_SLICE_LENGTH(slot->details.method);
        const size_t kept = bytes < sizeof(path) ? bytes : sizeof(path) - 1;

        memcpy(path, GRPC_SLICE_START_PTR(slot->details.method), kept);
        path[kept] = '\0';
        slot->deadline = slot->details.deadline;
        grpc_call_details_destroy(&slot->details);
        grpc_call_details_init(&slot->details);
    }

    const struct rpc_arrival arrival = {
        .method = slot->method,
        .path = path,
        .core = slot->core,
        .deadline = slot->deadline,
        .metadata = slot->metadata,
    };
    rpc_call_accept(rpc, &arrival);
    slot->metadata.count = 0; /* the elements went with the call */
    if (rpc->draining)
        rpc->arrived_ns = clock_now_ns();
    if (!rpc->shutting)
        slot_arm(slot);
}

/* --- opening --- */

static enum fire_status slots_make(struct rpc_server *rpc, const struct rpc_method *const *methods,
                                   size_t method_count, struct fire_error *error)
{
    const size_t slot_count = (method_count + 1) * SLOTS_PER_METHOD;

    rpc->slots = calloc(slot_count, sizeof(*rpc->slots));
    if (!rpc->slots)
        return fire_fail_memory(error, slot_count * sizeof(*rpc->slots));
    rpc->slot_count = slot_count;
    for (size_t i = 0; i < slot_count; i++) {
        struct rpc_slot *slot = &rpc->slots[i];

        slot->tag.run = on_arrival;
        slot->rpc = rpc;
        grpc_metadata_array_init(&slot->metadata);
        grpc_call_details_init(&slot->details);
    }

    for (size_t m = 0; m < method_count; m++) {
        /* Nothing is read of a call before it has been let in. */
        void *registered = grpc_server_register_method(rpc->core, methods[m]->path, NULL,
                                                       GRPC_SRM_PAYLOAD_NONE, 0);

        FIRE_ASSERT(registered != NULL);
        for (uint32_t i = 0; i < SLOTS_PER_METHOD; i++) {
            rpc->slots[m * SLOTS_PER_METHOD + i].method = methods[m];
            rpc->slots[m * SLOTS_PER_METHOD + i].registered = registered;
        }
    }
    return FIRE_OK;
}

static grpc_arg integer_argument(const char *key, int value)
{
    return (grpc_arg){ .type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value };
}

static int message_limit(const struct config *config)
{
    uint64_t bytes = config->message_bytes_max;

    if (bytes < CHUNK_BYTES)
        bytes = CHUNK_BYTES;
    bytes += HEADER_BYTES;
    return bytes < INT32_MAX ? (int)bytes : INT32_MAX;
}

/* Core keeps a message whole before it looks at its length, whatever was announced, so limits of
 * messages alone do not bound what it holds. Past the quota it ends streams. Room is for what has
 * been reserved, and as much at most for calls that are not read. */
static grpc_resource_quota *quota_make(const struct server *server)
{
    const uint64_t messages = server->messages.bytes_max;
    const uint64_t unread = (uint64_t)server->config.calls_max * UNREAD_BYTES;
    const uint64_t bytes = messages + (unread < messages ? unread : messages);
    grpc_resource_quota *quota = grpc_resource_quota_create("fired");

    grpc_resource_quota_resize(quota, (size_t)(bytes > QUOTA_BYTES_MIN ? bytes : QUOTA_BYTES_MIN));
    return quota;
}

static grpc_server *core_make(const struct server *server)
{
    const struct config *config = &server->config;
    grpc_resource_quota *quota = quota_make(server);
    grpc_arg arguments[] = {
        { .type = GRPC_ARG_POINTER,
          .key = (char *)GRPC_ARG_RESOURCE_QUOTA,
          .value.pointer = { quota, grpc_resource_quota_arg_vtable() } },
        /* Two daemons would share a port in silence. */
        integer_argument(GRPC_ARG_ALLOW_REUSEPORT, 0),
        integer_argument(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, message_limit(config)),
        integer_argument(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        integer_argument(GRPC_ARG_MAX_CONCURRENT_STREAMS, STREAMS_MAX),
        /* Measuring the line would widen the window of every stream, read or not, to megabytes. A
         * message that is asked for opens its window by itself. */
        integer_argument(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        /* Measuring would have done that too. It takes no memory: windows are what bounds that. */
        integer_argument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, FRAME_BYTES),
        integer_argument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, WINDOW_BYTES),
        integer_argument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, PING_INTERVAL_MS),
        integer_argument(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        integer_argument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        integer_argument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        integer_argument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        /* rpc_call has its own timers, which count how late they are. */
        integer_argument(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 0),
        /* What core would inflate, no budget has been asked about. */
        integer_argument(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET,
                         1 << GRPC_COMPRESS_NONE),
    };
    const grpc_channel_args all = { sizeof(arguments) / sizeof(arguments[0]), arguments };

    grpc_server *core = grpc_server_create(&all, NULL);

    grpc_resource_quota_unref(quota);
    return core;
}

/* Destroys a server that has not been drained; the pump is not running. */
static void core_abandon(struct rpc_server *rpc)
{
    grpc_event event;

    grpc_server_shutdown_and_notify(rpc->core, rpc->queue, &rpc->shutdown_tag);
    do {
        event = grpc_completion_queue_next(rpc->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    } while (event.type != GRPC_OP_COMPLETE || event.tag != &rpc->shutdown_tag);
    grpc_server_destroy(rpc->core);
    grpc_completion_queue_shutdown(rpc->queue);
    do {
        event = grpc_completion_queue_next(rpc->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    } while (event.type != GRPC_QUEUE_SHUTDOWN);
}

/* The handles and the pump. */
static enum fire_status threads_start(struct rpc_server *rpc, struct fire_error *error)
{
    int result;
    const enum fire_status status = wake_init(&rpc->wake, &rpc->server->loop, on_wake, rpc, error);

    if (status != FIRE_OK)
        return status;
    uv_timer_init(&rpc->server->loop, &rpc->limit);
    rpc->limit.data = rpc;
    uv_timer_init(&rpc->server->loop, &rpc->quiet);
    rpc->quiet.data = rpc;
    rpc->handles = 3;

    result = uv_thread_create(&rpc->pump, pump_run, rpc);
    if (result != 0)
        return fire_fail(error, FIRE_IO, NULL,
                         "cannot start the network thread: %s; allow more processes (ulimit -u)",
                         uv_strerror(result));
    return FIRE_OK;
}

/* What core has to say goes the way of all lines; any thread. Strangers can make it complain
 * (handshakes that fail), so it warns once a second at most. The second is the logger's, so to say:
 * core offers no place to keep it. */
static void on_core_log(gpr_log_func_args *line)
{
    static _Atomic uint64_t warned_second;
    const uint64_t second = clock_now_ns() / CLOCK_NS_PER_S;

    if (line->severity == GPR_LOG_SEVERITY_ERROR &&
        atomic_exchange(&warned_second, second) != second)
        log_warn("grpc", LOG_TEXT("message", line->message));
    else
        log_debug("grpc", LOG_TEXT("message", line->message));
}

enum fire_status rpc_server_open_methods(struct server *server,
                                         const struct rpc_method *const *methods,
                                         size_t method_count, struct rpc_server **out,
                                         struct fire_error *error)
{
    struct rpc_server *rpc = calloc(1, sizeof(*rpc));
    enum fire_status status;

    *out = NULL;
    if (!rpc)
        return fire_fail_memory(error, sizeof(*rpc));
    rpc->server = server;
    rpc->resuming_end = &rpc->resuming;
    rpc->blocked_end = &rpc->blocked;
    rpc->at_once_end = &rpc->at_once;
    rpc->shutdown_tag.run = on_shutdown;
    if (uv_mutex_init(&rpc->lock) != 0 || uv_cond_init(&rpc->room) != 0) {
        free(rpc);
        return fire_fail_memory(error, sizeof(uv_mutex_t));
    }
    gpr_set_log_function(on_core_log);
    grpc_init();
    rpc->queue = grpc_completion_queue_create_for_next(NULL);
    rpc->core = core_make(server);
    grpc_server_register_completion_queue(rpc->core, rpc->queue, NULL);

    status = slots_make(rpc, methods, method_count, error);
    if (status == FIRE_OK)
        status = rpc_listen_open(&server->config, &rpc->listen, error);
    if (status == FIRE_OK)
        status = rpc_listen_bind(rpc->listen, rpc->core, error);
    if (status == FIRE_OK) {
        grpc_server_start(rpc->core);
        status = threads_start(rpc, error);
    }
    if (status != FIRE_OK) {
        core_abandon(rpc);
        rpc_server_end(rpc);
        return status;
    }

    for (size_t i = 0; i < rpc->slot_count; i++)
        slot_arm(&rpc->slots[i]);
    *out = rpc;
    return FIRE_OK;
}

enum fire_status rpc_server_open(struct server *server, struct rpc_server **out,
                                 struct fire_error *error)
{
    return rpc_server_open_methods(server, methods_served,
                                   sizeof(methods_served) / sizeof(methods_served[0]), out, error);
}

void rpc_server_reload(struct rpc_server *rpc)
{
    struct fire_error error = { 0 };

    if (rpc_listen_reload(rpc->listen, &error) != FIRE_OK)
        log_error("tls_reload_failed", LOG_TEXT("message", error.message));
    /* Limits may have been raised: whoever waits for room may have it now. */
    for (uint32_t i = 0; i < tenants_count(rpc->server->tenants); i++)
        rpc_server_resume(rpc, tenants_at(rpc->server->tenants, i));
}
