/* remote_attempt: one call of a set, and what follows it: done, refused, or again after a while. */
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>

#include "remote.h"

#define LINGER_S 0.001 /* how often a set looks whether core still points to the caller's memory */

static const char *method_of(const struct remote_set *set)
{
    if (set->set->operation == FIRE_ANALYZE)
        return set->stream ? "/fire.v1.ReinitService/AnalyzeStream"
                           : "/fire.v1.ReinitService/Analyze";
    return set->stream ? "/fire.v1.ReinitService/ReinitStream" : "/fire.v1.ReinitService/Reinit";
}

/* Makes the call known to fire_client_cancel(). */
static void publish_call(struct remote_set *set, grpc_call *call)
{
    pthread_mutex_lock(&set->remote->lock);
    set->call = call;
    pthread_mutex_unlock(&set->remote->lock);
    if (call && atomic_load(&set->cancelled))
        grpc_call_cancel(call, NULL);
}

void remote_attempt_start(struct remote_set *set)
{
    struct remote *remote = set->remote;
    struct remote_attempt *attempt = &set->attempt;
    const double left_s = set->end_s - remote_now_s();
    const gpr_timespec deadline = gpr_time_add(
        gpr_now(GPR_CLOCK_MONOTONIC),
        gpr_time_from_micros((int64_t)(1e6 * (left_s > 0.0 ? left_s : 0.0)), GPR_TIMESPAN));
    grpc_call *call;

    *attempt = (struct remote_attempt){ .details = grpc_empty_slice() };
    grpc_metadata_array_init(&attempt->initial);
    grpc_metadata_array_init(&attempt->trailing);
    remote_items_restart(set);
    call = grpc_channel_create_call(remote->core, NULL, GRPC_PROPAGATE_DEFAULTS, remote->queue,
                                    grpc_slice_from_static_string(method_of(set)), NULL, deadline,
                                    NULL);
    publish_call(set, call);
    if (set->stream)
        remote_stream_start(set);
    else
        remote_unary_start(set);
}

grpc_op remote_op_metadata(struct remote_set *set)
{
    return (grpc_op){ .op = GRPC_OP_SEND_INITIAL_METADATA,
                      .data.send_initial_metadata = { .count = set->remote->metadata_count,
                                                      .metadata = set->remote->metadata } };
}

grpc_op remote_op_status(struct remote_set *set)
{
    struct remote_attempt *attempt = &set->attempt;

    return (grpc_op){ .op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                      .data.recv_status_on_client = { .trailing_metadata = &attempt->trailing,
                                                      .status = &attempt->code,
                                                      .status_details = &attempt->details,
                                                      .error_string = &attempt->core_text } };
}

void remote_batch(struct remote_set *set, const grpc_op *operations, size_t count,
                  struct remote_tag *tag)
{
    struct fire_error error = { 0 };

    remote_tell_given(tag);
    if (grpc_call_start_batch(set->call, operations, count, tag, NULL) == GRPC_CALL_OK) {
        set->attempt.pending++;
        return;
    }
    fire_fail(&error, FIRE_DEVICE_LOST, NULL, "gRPC did not take a call's operations; try again");
    remote_attempt_fault(set, &error);
}

void remote_attempt_fault(struct remote_set *set, const struct fire_error *error)
{
    if (set->attempt.fault.status == FIRE_OK)
        set->attempt.fault = *error;
    grpc_call_cancel(set->call, NULL);
}

void remote_attempt_broken(struct remote_set *set, const char *what)
{
    struct fire_error error = { 0 };

    fire_fail(&error, FIRE_DEVICE_LOST, NULL,
              "the daemon at %.110s %s; is it of the version of this library (%s)?",
              remote_channel_address(set->remote->channel), what, FIRE_VERSION);
    if (set->attempt.fault.status == FIRE_OK)
        set->attempt.fault_code = GRPC_STATUS_INTERNAL;
    remote_attempt_fault(set, &error);
}

static void attempt_release(struct remote_set *set)
{
    struct remote_attempt *attempt = &set->attempt;
    grpc_call *call = set->call;

    publish_call(set, NULL);
    if (call)
        grpc_call_unref(call);
    grpc_metadata_array_destroy(&attempt->initial);
    grpc_metadata_array_destroy(&attempt->trailing);
    grpc_slice_unref(attempt->details);
    gpr_free((void *)(uintptr_t)attempt->core_text);
    grpc_byte_buffer_destroy(attempt->sending);
    grpc_byte_buffer_destroy(attempt->received);
    free(attempt->asked);
    *attempt = (struct remote_attempt){ 0 };
}

/* Between 0 and 1; for jitter, so nothing depends on its quality. */
static double random_unit(struct remote *remote)
{
    remote->random ^= remote->random << 13;
    remote->random ^= remote->random >> 7;
    remote->random ^= remote->random << 17;
    return (double)(remote->random >> 11) * 0x1p-53;
}

/* One more try, if retries, budget and deadline allow. */
static bool take_retry(struct remote_set *set, double retry_s)
{
    struct remote *remote = set->remote;
    double wait_s;
    bool allowed;

    pthread_mutex_lock(&remote->lock);
    wait_s = set->backoff_s * (0.5 + 0.5 * random_unit(remote));
    if (wait_s < retry_s)
        wait_s = retry_s * (1.0 + 0.25 * random_unit(remote));
    allowed = set->retries < remote->retries_max && remote->retry_tokens >= 1.0 &&
              remote_now_s() + wait_s < set->end_s;
    if (allowed) {
        remote->retry_tokens -= 1.0;
        set->phase = REMOTE_BACKOFF;
        set->wake_s = remote_now_s() + wait_s;
        remote->idle_count++;
    }
    pthread_mutex_unlock(&remote->lock);
    set->retries++;
    set->backoff_s =
        2.0 * set->backoff_s < REMOTE_BACKOFF_S_MAX ? 2.0 * set->backoff_s : REMOTE_BACKOFF_S_MAX;
    return allowed;
}

/* Refuses what is not done: with its own words where a tensor was refused for now. */
static void refuse_left(struct remote_set *set, const struct fire_error *error, int code)
{
    for (size_t i = 0; i < set->group_count; i++) {
        struct remote_group *group = &set->groups[i];
        const struct fire_error own = group->again ? group->error : *error;

        remote_group_refuse(set, group, &own, group->again ? group->code : code, false);
    }
}

static bool any_unanswered(const struct remote_set *set)
{
    for (size_t i = 0; i < set->group_count; i++) {
        if (!remote_is_settled(&set->groups[i]))
            return true;
    }
    return false;
}

/* Core may still be writing from the caller's memory when a call ends early. */
static bool finish_or_linger(struct remote_set *set)
{
    if (atomic_load_explicit(&set->slices, memory_order_acquire) == 0) {
        remote_set_finish(set);
        return true;
    }
    pthread_mutex_lock(&set->remote->lock);
    set->phase = REMOTE_LINGERING;
    set->wake_s = remote_now_s() + LINGER_S;
    set->remote->idle_count++;
    pthread_mutex_unlock(&set->remote->lock);
    return false;
}

/* True when another attempt is to follow at once. */
static bool try_as_stream(struct remote_set *set, int code, double retry_s)
{
    /* The message was over the daemon's limit: a set too large for one message is streamed. */
    if (set->stream || code != GRPC_STATUS_RESOURCE_EXHAUSTED || retry_s >= 0.0)
        return false;
    set->stream = true;
    return true;
}

bool remote_attempt_settle(struct remote_set *set)
{
    struct remote_attempt *attempt = &set->attempt;
    struct fire_error error = { 0 };
    double retry_s;
    bool again;
    int code;

    if (attempt->pending > 0)
        return false;
    code = attempt->fault.status == FIRE_OK ? (int)attempt->code : attempt->fault_code;
    remote_describe(set, &error, &retry_s);
    if (code == GRPC_STATUS_OK && error.status == FIRE_OK && any_unanswered(set)) {
        remote_attempt_broken(set, "ended the call before every tensor was answered");
        error = attempt->fault;
        code = attempt->fault_code;
    }
    again = code == GRPC_STATUS_UNAVAILABLE ||
            (code == GRPC_STATUS_RESOURCE_EXHAUSTED && retry_s >= 0.0) || error.status == FIRE_OK;
    attempt_release(set);
    if (set->groups_left == 0)
        return finish_or_linger(set);
    if (atomic_load(&set->cancelled)) {
        fire_fail(&error, FIRE_CANCELLED, NULL, "the call was cancelled by this program");
        code = 0;
        again = false;
    } else if (try_as_stream(set, code, retry_s)) {
        remote_attempt_start(set);
        return remote_attempt_settle(set);
    }
    if (again && take_retry(set, retry_s))
        return false;
    refuse_left(set, &error, code);
    return finish_or_linger(set);
}

bool remote_attempt_wake(struct remote_set *set)
{
    struct remote *remote = set->remote;
    enum remote_phase phase;

    pthread_mutex_lock(&remote->lock);
    phase = set->phase;
    set->phase = REMOTE_RUNNING;
    remote->idle_count--;
    pthread_mutex_unlock(&remote->lock);
    if (phase == REMOTE_LINGERING)
        return finish_or_linger(set);
    if (!atomic_load(&set->cancelled)) {
        remote_attempt_start(set);
    } else {
        struct fire_error error = { 0 };

        fire_fail(&error, FIRE_CANCELLED, NULL, "the call was cancelled by this program");
        refuse_left(set, &error, 0);
        return finish_or_linger(set);
    }
    return remote_attempt_settle(set);
}
