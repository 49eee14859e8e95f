/* admin_call: one call at a time over one channel and one completion queue. All operations of a
 * unary call are one batch, so one event tells that it is over; of a stream, sending, the status
 * and every message are batches of their own. */
#include "admin_call.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>

#include "remote_channel.h"

#define WAIT_SLICE_MS 100 /* how often a waiting call looks for a signal */
#define VERSIONS_DIFFER                                                                            \
    "the answer cannot be read: firectl and the daemon are of versions that do not fit; "          \
    "firectl --version and fired --version show them"

struct admin {
    struct remote_channel *remote;
    grpc_completion_queue *queue;
    double deadline_s;
};

/* What a call sends and what comes back. */
struct exchange {
    grpc_call *call;
    grpc_byte_buffer *request;
    grpc_byte_buffer *answer;
    grpc_metadata_array initial;
    grpc_metadata_array trailing;
    grpc_slice details;
    grpc_status_code code;
    const char *error_text; /* core's own, for people who look for a cause */
};

enum firectl_exit admin_open(const struct firectl_args *args, struct admin **admin)
{
    struct admin *made = calloc(1, sizeof(*made));
    struct fire_error error = { 0 };

    *admin = NULL;
    if (!made) {
        (void)fire_fail_memory(&error, sizeof(*made));
        return firectl_fail(&error);
    }
    grpc_init();
    made->deadline_s = args->deadline_s > 0.0 ? args->deadline_s : ADMIN_DEADLINE_S;
    made->queue = grpc_completion_queue_create_for_pluck(NULL);
    if (remote_channel_open(&args->remote, &made->remote, &error) != FIRE_OK) {
        admin_close(made);
        return firectl_fail(&error);
    }
    *admin = made;
    return FIRECTL_DONE;
}

void admin_close(struct admin *admin)
{
    if (!admin)
        return;
    remote_channel_close(admin->remote);
    if (admin->queue) {
        grpc_completion_queue_shutdown(admin->queue);
        grpc_completion_queue_destroy(admin->queue);
    }
    grpc_shutdown();
    free(admin);
}

const char *admin_address(const struct admin *admin)
{
    return remote_channel_address(admin->remote);
}

/* What another program sent is fit for a terminal: control characters become '?'. */
static void make_plain(char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
    }
}

static void failure_set(struct admin_failure *failure, int code, const char *message)
{
    failure->code = code;
    snprintf(failure->message, sizeof(failure->message), "%s", message);
    make_plain(failure->message);
}

static void failure_from(struct exchange *exchange, struct admin_failure *failure)
{
    char *text = grpc_slice_to_c_string(exchange->details);

    failure_set(failure, (int)exchange->code, text);
    gpr_free(text);
}

static grpc_byte_buffer *pack(const ProtobufCMessage *request)
{
    const size_t bytes = protobuf_c_message_get_packed_size(request);
    grpc_slice slice = grpc_slice_malloc(bytes);
    grpc_byte_buffer *buffer;

    protobuf_c_message_pack(request, GRPC_SLICE_START_PTR(slice));
    buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static ProtobufCMessage *unpack(grpc_byte_buffer *answer, const ProtobufCMessageDescriptor *kind)
{
    grpc_byte_buffer_reader reader;
    ProtobufCMessage *message = NULL;
    grpc_slice slice;

    if (!answer || !grpc_byte_buffer_reader_init(&reader, answer))
        return NULL;
    slice = grpc_byte_buffer_reader_readall(&reader);
    message = protobuf_c_message_unpack(kind, NULL, GRPC_SLICE_LENGTH(slice),
                                        GRPC_SLICE_START_PTR(slice));
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    return message;
}

/* Waits for the event of `tag`. A signal cancels the call, whose event then follows. */
static void wait_for(struct admin *admin, struct exchange *exchange, void *tag)
{
    bool cancelled = false;

    for (;;) {
        const grpc_event event = grpc_completion_queue_pluck(
            admin->queue, tag,
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                         gpr_time_from_millis(WAIT_SLICE_MS, GPR_TIMESPAN)),
            NULL);

        if (event.type == GRPC_OP_COMPLETE)
            return;
        if (firectl_signal() && !cancelled) {
            grpc_call_cancel(exchange->call, NULL);
            cancelled = true;
        }
    }
}

static bool start(struct admin *admin, struct exchange *exchange, const char *method)
{
    const gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_millis((int64_t)(1e3 * admin->deadline_s), GPR_TIMESPAN));
    size_t metadata_count = 0;
    grpc_metadata *metadata = remote_channel_metadata(admin->remote, &metadata_count);
    grpc_op operations[6] = {
        { .op = GRPC_OP_SEND_INITIAL_METADATA,
          .data.send_initial_metadata = { .count = metadata_count, .metadata = metadata } },
        { .op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = exchange->request },
        { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT },
        { .op = GRPC_OP_RECV_INITIAL_METADATA,
          .data.recv_initial_metadata.recv_initial_metadata = &exchange->initial },
        { .op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &exchange->answer },
        { .op = GRPC_OP_RECV_STATUS_ON_CLIENT,
          .data.recv_status_on_client = { .trailing_metadata = &exchange->trailing,
                                          .status = &exchange->code,
                                          .status_details = &exchange->details,
                                          .error_string = &exchange->error_text } },
    };
    grpc_channel *channel = remote_channel_core(admin->remote);
    const grpc_slice path = grpc_slice_from_copied_string(method);

    if (channel)
        exchange->call = grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                                  admin->queue, path, NULL, deadline, NULL);
    grpc_slice_unref(path);
    return exchange->call &&
           grpc_call_start_batch(exchange->call, operations, 6, exchange, NULL) == GRPC_CALL_OK;
}

static void exchange_release(struct exchange *exchange)
{
    if (exchange->call)
        grpc_call_unref(exchange->call);
    grpc_byte_buffer_destroy(exchange->request);
    grpc_byte_buffer_destroy(exchange->answer);
    grpc_metadata_array_destroy(&exchange->initial);
    grpc_metadata_array_destroy(&exchange->trailing);
    grpc_slice_unref(exchange->details);
    gpr_free((void *)exchange->error_text);
}

ProtobufCMessage *admin_call(struct admin *admin, const char *method,
                             const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *kind, struct admin_failure *failure)
{
    struct exchange exchange = { .request = pack(request), .details = grpc_empty_slice() };
    ProtobufCMessage *answer = NULL;

    grpc_metadata_array_init(&exchange.initial);
    grpc_metadata_array_init(&exchange.trailing);
    if (!start(admin, &exchange, method)) {
        failure_set(failure, -1, "gRPC could not start the call; try again");
    } else {
        wait_for(admin, &exchange, &exchange);
        if (exchange.code == GRPC_STATUS_OK) {
            answer = unpack(exchange.answer, kind);
            if (!answer)
                failure_set(failure, -1, VERSIONS_DIFFER);
        } else {
            failure_from(&exchange, failure);
        }
    }
    exchange_release(&exchange);
    return answer;
}

/* Sends the request and asks for the status; false when the call could not be started. */
static bool stream_start(struct admin *admin, struct exchange *exchange, const char *method)
{
    size_t metadata_count = 0;
    grpc_metadata *metadata = remote_channel_metadata(admin->remote, &metadata_count);
    const grpc_op send[4] = {
        { .op = GRPC_OP_SEND_INITIAL_METADATA,
          .data.send_initial_metadata = { .count = metadata_count, .metadata = metadata } },
        { .op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = exchange->request },
        { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT },
        { .op = GRPC_OP_RECV_INITIAL_METADATA,
          .data.recv_initial_metadata.recv_initial_metadata = &exchange->initial },
    };
    const grpc_op end = { .op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                          .data.recv_status_on_client = { .trailing_metadata = &exchange->trailing,
                                                          .status = &exchange->code,
                                                          .status_details = &exchange->details,
                                                          .error_string = &exchange->error_text } };
    grpc_channel *channel = remote_channel_core(admin->remote);
    const grpc_slice path = grpc_slice_from_copied_string(method);

    if (channel)
        exchange->call =
            grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, admin->queue, path,
                                     NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_slice_unref(path);
    if (!exchange->call ||
        grpc_call_start_batch(exchange->call, &end, 1, &exchange->code, NULL) != GRPC_CALL_OK)
        return false;
    if (grpc_call_start_batch(exchange->call, send, 4, exchange, NULL) == GRPC_CALL_OK)
        return true;
    grpc_call_cancel(exchange->call, NULL);
    wait_for(admin, exchange, &exchange->code);
    return false;
}

/* The next message, or NULL at the end. `*bad` when there was one that cannot be read. */
static ProtobufCMessage *stream_next(struct admin *admin, struct exchange *exchange,
                                     const ProtobufCMessageDescriptor *kind, bool *bad)
{
    const grpc_op receive = { .op = GRPC_OP_RECV_MESSAGE,
                              .data.recv_message.recv_message = &exchange->answer };
    ProtobufCMessage *message;

    if (grpc_call_start_batch(exchange->call, &receive, 1, &exchange->answer, NULL) != GRPC_CALL_OK)
        return NULL;
    wait_for(admin, exchange, &exchange->answer);
    if (!exchange->answer)
        return NULL;
    message = unpack(exchange->answer, kind);
    *bad = !message;
    grpc_byte_buffer_destroy(exchange->answer);
    exchange->answer = NULL;
    return message;
}

bool admin_stream(struct admin *admin, const char *method, const ProtobufCMessage *request,
                  const ProtobufCMessageDescriptor *kind,
                  bool (*take)(const ProtobufCMessage *message, void *data), void *data,
                  struct admin_failure *failure)
{
    struct exchange exchange = { .request = pack(request), .details = grpc_empty_slice() };
    ProtobufCMessage *message = NULL;
    bool more = true, bad = false;
    bool started;

    grpc_metadata_array_init(&exchange.initial);
    grpc_metadata_array_init(&exchange.trailing);
    started = stream_start(admin, &exchange, method);
    while (started && more && (message = stream_next(admin, &exchange, kind, &bad)) != NULL) {
        more = take(message, data) && !firectl_signal();
        protobuf_c_message_free_unpacked(message, NULL);
    }
    if (started) {
        if (!more || bad)
            grpc_call_cancel(exchange.call, NULL);
        wait_for(admin, &exchange, &exchange);
        wait_for(admin, &exchange, &exchange.code);
    }
    if (!started)
        failure_set(failure, -1, "gRPC could not start the call; try again");
    else if (bad)
        failure_set(failure, -1, VERSIONS_DIFFER);
    else if (more)
        failure_from(&exchange, failure);
    exchange_release(&exchange);
    return started && !bad && (!more || exchange.code == GRPC_STATUS_OK);
}

enum firectl_exit admin_fail(const struct admin *admin, const struct admin_failure *failure)
{
    const char *address = admin_address(admin);

    if (firectl_signal())
        return FIRECTL_FAILED; /* the exit code will say it */
    if (failure->code < 0) {
        firectl_say("%s: %s", address, failure->message);
        return FIRECTL_FAILED;
    }
    switch (failure->code) {
    case GRPC_STATUS_UNAVAILABLE:
        firectl_say("no daemon serves at %s (%s); start fired, or name its address with --addr or "
                    "FIRED_ADDR",
                    address, failure->message);
        break;
    case GRPC_STATUS_DEADLINE_EXCEEDED:
        firectl_say("the daemon at %s did not answer in time (%s); it may be stopped or "
                    "overloaded: --deadline SECONDS waits longer",
                    address, failure->message);
        break;
    case GRPC_STATUS_UNAUTHENTICATED:
    case GRPC_STATUS_PERMISSION_DENIED:
        firectl_say("the daemon at %s refuses: %s; give a token or certificate that its "
                    "credentials file allows this method",
                    address, failure->message);
        break;
    default:
        firectl_say("the daemon at %s refuses: %s (gRPC code %d)", address, failure->message,
                    failure->code);
    }
    return (enum firectl_exit)(FIRECTL_REFUSED + failure->code);
}

Fire__V1__StatusResponse *admin_status(struct admin *admin, struct admin_failure *failure)
{
    const Fire__V1__StatusRequest request = FIRE__V1__STATUS_REQUEST__INIT;
    Fire__V1__StatusResponse *status =
        (Fire__V1__StatusResponse *)admin_call(admin, "/fire.v1.AdminService/Status", &request.base,
                                               &fire__v1__status_response__descriptor, failure);

    if (!status)
        return NULL;
    make_plain(status->version);
    for (size_t i = 0; i < status->n_devices; i++) {
        make_plain(status->devices[i]->backend);
        make_plain(status->devices[i]->name);
        make_plain(status->devices[i]->path);
        make_plain(status->devices[i]->reason);
    }
    for (size_t i = 0; i < status->n_buckets; i++)
        make_plain(status->buckets[i]->key);
    for (size_t i = 0; i < status->n_tenants; i++)
        make_plain(status->tenants[i]->name);
    for (size_t i = 0; i < status->n_addresses; i++)
        make_plain(status->addresses[i]);
    for (size_t i = 0; i < status->n_refusals; i++)
        make_plain(status->refusals[i]->key);
    return status;
}
