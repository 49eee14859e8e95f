/* fire_bench_echo ADDRESS: the least a server on raw gRPC core does with the same bytes.
 *
 * Sends every message of every call back as it came, unary or streamed. One completion queue, one
 * thread, the allocator set as in fired. Prints one line when it listens; ends with its stdin. */
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define MESSAGE_BYTES_MAX (512 << 20)

enum stage { ARRIVED, STARTED, RECEIVED, SENT, CLOSED, FINISHED };

struct echo_call;

/* A tag tells which operation of which call has finished. */
struct tag {
    struct echo_call *call;
    enum stage stage;
};

struct echo_call {
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *message;
    int cancelled;
    int pending;
    bool finishing;
    struct tag tags[FINISHED + 1];
};

static grpc_server *server;
static grpc_completion_queue *queue;

static void start(struct echo_call *call, enum stage stage, const grpc_op *ops, size_t count)
{
    call->pending++;
    if (grpc_call_start_batch(call->call, ops, count, &call->tags[stage], NULL) != GRPC_CALL_OK) {
        fprintf(stderr, "fire_bench_echo: a batch was refused\n");
        exit(1);
    }
}

static void receive(struct echo_call *call)
{
    const grpc_op op = { .op = GRPC_OP_RECV_MESSAGE,
                         .data.recv_message.recv_message = &call->message };

    start(call, RECEIVED, &op, 1);
}

static void finish(struct echo_call *call)
{
    const grpc_op op = { .op = GRPC_OP_SEND_STATUS_FROM_SERVER,
                         .data.send_status_from_server.status = GRPC_STATUS_OK };

    if (call->finishing)
        return;
    call->finishing = true;
    start(call, FINISHED, &op, 1);
}

static void wait_for_call(void)
{
    struct echo_call *call = calloc(1, sizeof(*call));

    if (!call)
        exit(1);
    for (int stage = ARRIVED; stage <= FINISHED; stage++)
        call->tags[stage] = (struct tag){ call, (enum stage)stage };
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    call->pending = 1;
    if (grpc_server_request_call(server, &call->call, &call->details, &call->metadata, queue, queue,
                                 &call->tags[ARRIVED]) != GRPC_CALL_OK)
        exit(1);
}

static void begin(struct echo_call *call)
{
    const grpc_op close = { .op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                            .data.recv_close_on_server.cancelled = &call->cancelled };
    const grpc_op initial = { .op = GRPC_OP_SEND_INITIAL_METADATA };

    wait_for_call();
    start(call, CLOSED, &close, 1);
    start(call, STARTED, &initial, 1);
    receive(call);
}

static void on_received(struct echo_call *call, bool ok)
{
    const grpc_op op = { .op = GRPC_OP_SEND_MESSAGE,
                         .flags = GRPC_WRITE_NO_COMPRESS,
                         .data.send_message.send_message = call->message };

    if (!ok || !call->message)
        finish(call);
    else
        start(call, SENT, &op, 1);
}

static void release(struct echo_call *call)
{
    grpc_call_unref(call->call);
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
    free(call);
}

static void run_event(struct tag *tag, bool ok)
{
    struct echo_call *call = tag->call;

    switch (tag->stage) {
    case ARRIVED:
        if (!ok) {
            free(call);
            return;
        }
        begin(call);
        break;
    case RECEIVED: on_received(call, ok); break;
    case SENT:
        grpc_byte_buffer_destroy(call->message);
        call->message = NULL;
        if (ok)
            receive(call);
        else
            finish(call);
        break;
    case STARTED:
    case CLOSED:
    case FINISHED: break;
    }
    if (--call->pending == 0)
        release(call);
}

static void *wait_for_end(void *data)
{
    (void)data;
    while (getchar() != EOF) {
    }
    exit(0);
}

int main(int argc, char **argv)
{
    grpc_arg values[] = {
        { .type = GRPC_ARG_INTEGER,
          .key = (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
          .value.integer = MESSAGE_BYTES_MAX },
        { .type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ALLOW_REUSEPORT, .value.integer = 0 },
    };
    const grpc_channel_args arguments = { sizeof(values) / sizeof(values[0]), values };
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    pthread_t watcher;
    int port;

    if (argc != 2) {
        fprintf(stderr, "usage: fire_bench_echo ADDRESS\n");
        return 2;
    }
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
    (void)mallopt(M_TOP_PAD, 16 << 20);
    grpc_init();
    queue = grpc_completion_queue_create_for_next(NULL);
    server = grpc_server_create(&arguments, NULL);
    grpc_server_register_completion_queue(server, queue, NULL);
    port = grpc_server_add_http2_port(server, argv[1], credentials);
    if (!port) {
        fprintf(stderr, "fire_bench_echo: cannot listen on %s\n", argv[1]);
        return 1;
    }
    grpc_server_start(server);
    wait_for_call();
    printf("listening %d\n", port);
    fflush(stdout);
    pthread_create(&watcher, NULL, wait_for_end, NULL);
    for (;;) {
        const grpc_event event =
            grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);

        if (event.type == GRPC_OP_COMPLETE)
            run_event(event.tag, event.success != 0);
    }
}
