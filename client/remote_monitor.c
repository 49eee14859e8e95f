/* remote_monitor: small calls about history. Each has a completion queue of its own, so the pump
 * takes no part and the caller's thread waits for one event; all operations are one batch. Every
 * method may be repeated: a Report of the same points changes nothing. */
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <time.h>

#include "remote.h"

static grpc_byte_buffer *pack(const ProtobufCMessage *request)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(request));
    grpc_byte_buffer *buffer;

    protobuf_c_message_pack(request, GRPC_SLICE_START_PTR(slice));
    buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static ProtobufCMessage *unpack(grpc_byte_buffer *received, const ProtobufCMessageDescriptor *kind)
{
    grpc_byte_buffer_reader reader;
    ProtobufCMessage *message;
    grpc_slice slice;

    if (!received || !grpc_byte_buffer_reader_init(&reader, received))
        return NULL;
    slice = grpc_byte_buffer_reader_readall(&reader);
    message = protobuf_c_message_unpack(kind, NULL, GRPC_SLICE_LENGTH(slice),
                                        GRPC_SLICE_START_PTR(slice));
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    return message;
}

static gpr_timespec until(double end_s)
{
    const double left_s = end_s - remote_now_s();

    return gpr_time_add(
        gpr_now(GPR_CLOCK_MONOTONIC),
        gpr_time_from_micros((int64_t)(1e6 * (left_s > 0.0 ? left_s : 0.0)), GPR_TIMESPAN));
}

/* Runs one attempt in `set`, which holds nothing but it; release_attempt() ends it. */
static void run_attempt(struct remote_set *set, const char *path, const ProtobufCMessage *request)
{
    struct remote_attempt *attempt = &set->attempt;
    grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
    const grpc_slice method = grpc_slice_from_copied_string(path);

    *attempt = (struct remote_attempt){ .details = grpc_empty_slice(), .sending = pack(request) };
    grpc_metadata_array_init(&attempt->initial);
    grpc_metadata_array_init(&attempt->trailing);
    set->call = grpc_channel_create_call(set->remote->core, NULL, GRPC_PROPAGATE_DEFAULTS, queue,
                                         method, NULL, until(set->end_s), NULL);
    grpc_slice_unref(method);
    {
        const grpc_op operations[6] = {
            remote_op_metadata(set),
            { .op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = attempt->sending },
            { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT },
            { .op = GRPC_OP_RECV_INITIAL_METADATA,
              .data.recv_initial_metadata.recv_initial_metadata = &attempt->initial },
            { .op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &attempt->received },
            remote_op_status(set),
        };

        if (grpc_call_start_batch(set->call, operations, 6, attempt, NULL) == GRPC_CALL_OK)
            (void)grpc_completion_queue_pluck(queue, attempt, gpr_inf_future(GPR_CLOCK_MONOTONIC),
                                              NULL);
        else
            fire_fail(&attempt->fault, FIRE_DEVICE_LOST, NULL,
                      "gRPC did not take a call's operations; try again");
    }
    grpc_completion_queue_shutdown(queue);
    grpc_completion_queue_destroy(queue);
}

/* The call goes last: the metadata it received lives in it. */
static void release_attempt(struct remote_set *set)
{
    struct remote_attempt *attempt = &set->attempt;

    grpc_metadata_array_destroy(&attempt->initial);
    grpc_metadata_array_destroy(&attempt->trailing);
    grpc_slice_unref(attempt->details);
    gpr_free((void *)(uintptr_t)attempt->core_text);
    grpc_byte_buffer_destroy(attempt->sending);
    grpc_byte_buffer_destroy(attempt->received);
    grpc_call_unref(set->call);
    set->call = NULL;
}

/* Waits before another attempt, where retries, budget and deadline allow one. */
static bool wait_for_retry(struct remote_set *set, double retry_s)
{
    struct remote *remote = set->remote;
    const double wait_s = retry_s > set->backoff_s ? retry_s : set->backoff_s;
    bool allowed;

    pthread_mutex_lock(&remote->lock);
    allowed = set->retries < remote->retries_max && remote->retry_tokens >= 1.0 &&
              remote_now_s() + wait_s < set->end_s;
    if (allowed)
        remote->retry_tokens -= 1.0;
    pthread_mutex_unlock(&remote->lock);
    if (!allowed)
        return false;
    set->retries++;
    set->backoff_s =
        2.0 * set->backoff_s < REMOTE_BACKOFF_S_MAX ? 2.0 * set->backoff_s : REMOTE_BACKOFF_S_MAX;
    nanosleep(&(struct timespec){ .tv_sec = (time_t)wait_s,
                                  .tv_nsec = (long)(1e9 * (wait_s - (double)(time_t)wait_s)) },
              NULL);
    return true;
}

enum fire_status remote_monitor(struct fire_client *base, const char *method,
                                const ProtobufCMessage *request,
                                const ProtobufCMessageDescriptor *kind, ProtobufCMessage **answer,
                                struct fire_error *error)
{
    struct remote *remote = (struct remote *)base;
    struct remote_set set = { .remote = remote, .backoff_s = REMOTE_BACKOFF_S_FIRST };
    enum fire_status status;
    double retry_s;
    char path[96];
    bool again;

    *answer = NULL;
    pthread_mutex_lock(&remote->lock);
    status = remote_connect(remote, error);
    pthread_mutex_unlock(&remote->lock);
    if (status != FIRE_OK)
        return status;
    set.deadline_s = remote->deadline_s > 0.0 ? remote->deadline_s : REMOTE_UNARY_DEADLINE_S;
    set.end_s = remote_now_s() + set.deadline_s;
    snprintf(path, sizeof(path), "/fire.v1.MonitorService/%s", method);
    do {
        run_attempt(&set, path, request);
        remote_describe(&set, error, &retry_s);
        again = error->status != FIRE_OK &&
                (set.attempt.code == GRPC_STATUS_UNAVAILABLE ||
                 (set.attempt.code == GRPC_STATUS_RESOURCE_EXHAUSTED && retry_s >= 0.0));
        if (error->status == FIRE_OK) {
            *answer = unpack(set.attempt.received, kind);
            if (!*answer)
                fire_fail(error, FIRE_DEVICE_LOST, NULL,
                          "the answer of the daemon at %.110s cannot be read; is it of the version "
                          "of this library (%s)?",
                          remote_channel_address(remote->channel), FIRE_VERSION);
        }
        release_attempt(&set);
    } while (again && wait_for_retry(&set, retry_s));
    return error->status;
}
