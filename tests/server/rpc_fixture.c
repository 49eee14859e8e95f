#include "rpc_fixture.h"

#include <check.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

#define HEADERS_MAX 8u

/* --- the server --- */

void fixture_init(struct rpc_fixture *fixture)
{
    const char *parent = getenv("TMPDIR") ? getenv("TMPDIR") : P_tmpdir;
    struct config *config = &fixture->server.config;

    memset(fixture, 0, sizeof(*fixture));
    snprintf(fixture->folder, sizeof(fixture->folder), "%.40s/fired-rpc-XXXXXX", parent);
    ck_assert_ptr_nonnull(mkdtemp(fixture->folder));
    snprintf(fixture->address, sizeof(fixture->address), "unix:%s/socket", fixture->folder);
    config->listen[0] = fixture->address;
    config->listen_count = 1;
    config->state_dir = fixture->folder;
    config->message_bytes_max = 1 << 20;
    config->deadline_ms_default = 30000;
    config->stream_deadline_ms_default = 30000;
    config->idle_ms_max = 20000;
    config->calls_max = 100;
    config->tenant = (struct tenant_limits){ .weight = 1,
                                             .bytes_in_flight_max = 64 << 20,
                                             .streams_max = 100,
                                             .calls_max = 100,
                                             .device_share_max = 1 };
    budget_init(&fixture->server.messages, 64 << 20);
}

static void on_job(uv_async_t *wake)
{
    struct rpc_fixture *fixture = wake->data;
    void (*const job)(struct rpc_fixture * fixture, void *data) =
        atomic_exchange(&fixture->job, NULL);

    if (!job)
        return;
    job(fixture, fixture->job_data);
    uv_sem_post(&fixture->job_done);
}

static void loop_run(void *data)
{
    struct rpc_fixture *fixture = data;

    uv_run(&fixture->server.loop, UV_RUN_DEFAULT);
}

void fixture_start(struct rpc_fixture *fixture, const struct rpc_method *const *methods,
                   size_t method_count)
{
    struct server *server = &fixture->server;
    struct fire_error error = { 0 };
    enum fire_status status;

    ck_assert_int_eq(uv_loop_init(&server->loop), 0);
    ck_assert_int_eq(metrics_open(&server->metrics), FIRE_OK);
    ck_assert_int_eq(tenants_open(&server->config.tenant, &server->tenants), FIRE_OK);
    status = auth_open(server->config.credentials, &server->auth, &error);
    ck_assert_msg(status == FIRE_OK, "%s", error.message);
    server->started_ns = clock_now_ns();
    status = methods ? rpc_server_open_methods(server, methods, method_count, &server->rpc, &error)
                     : rpc_server_open(server, &server->rpc, &error);
    ck_assert_msg(status == FIRE_OK, "%s", error.message);
    fixture->rpc = server->rpc;

    ck_assert_int_eq(uv_async_init(&server->loop, &fixture->job_wake, on_job), 0);
    fixture->job_wake.data = fixture;
    ck_assert_int_eq(uv_sem_init(&fixture->job_done, 0), 0);
    ck_assert_int_eq(uv_thread_create(&fixture->thread, loop_run, fixture), 0);

    grpc_init();
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    fixture->channel = grpc_channel_create(fixture->address, credentials, NULL);
    grpc_channel_credentials_release(credentials);
    fixture->queue = grpc_completion_queue_create_for_pluck(NULL);
}

void fixture_do(struct rpc_fixture *fixture, void (*job)(struct rpc_fixture *fixture, void *data),
                void *data)
{
    fixture->job_data = data;
    atomic_store(&fixture->job, job);
    uv_async_send(&fixture->job_wake);
    uv_sem_wait(&fixture->job_done);
}

static void on_closed(void *data)
{
    struct rpc_fixture *fixture = data;

    uv_close((uv_handle_t *)&fixture->job_wake, NULL);
}

static void on_drained(void *data)
{
    struct rpc_fixture *fixture = data;

    fixture->drained = true;
    rpc_server_close(fixture->rpc, on_closed, fixture);
}

static void job_drain(struct rpc_fixture *fixture, void *data)
{
    rpc_server_drain(fixture->rpc, *(uint32_t *)data, on_drained, fixture);
}

static void job_nothing(struct rpc_fixture *fixture, void *data)
{
    (void)fixture;
    (void)data;
}

void fixture_sync(struct rpc_fixture *fixture)
{
    fixture_do(fixture, job_nothing, NULL);
}

void fixture_drain(struct rpc_fixture *fixture, uint32_t limit_ms)
{
    fixture->draining = true;
    fixture_do(fixture, job_drain, &limit_ms);
}

void fixture_stop(struct rpc_fixture *fixture, uint32_t limit_ms)
{
    struct server *server = &fixture->server;
    char command[128];

    if (!fixture->draining)
        fixture_drain(fixture, limit_ms);
    grpc_channel_destroy(fixture->channel);
    grpc_completion_queue_shutdown(fixture->queue);
    grpc_completion_queue_destroy(fixture->queue);
    grpc_shutdown();
    uv_thread_join(&fixture->thread);
    ck_assert(fixture->drained);
    ck_assert_int_eq(uv_loop_close(&server->loop), 0);
    uv_sem_destroy(&fixture->job_done);

    /* What was taken has been given back, whatever way calls ended. */
    ck_assert_uint_eq(budget_used(&server->messages), 0);
    for (uint32_t i = 0; i < tenants_count(server->tenants); i++) {
        ck_assert_uint_eq(tenants_at(server->tenants, i)->bytes_in_flight, 0);
        ck_assert_uint_eq(tenants_at(server->tenants, i)->calls, 0);
        ck_assert_uint_eq(tenants_at(server->tenants, i)->streams, 0);
    }
    auth_close(server->auth);
    tenants_close(server->tenants);
    metrics_close(server->metrics);
    snprintf(command, sizeof(command), "rm -rf '%s'", fixture->folder);
    ck_assert_int_eq(system(command), 0);
}

/* --- google.rpc.Status --- */

struct walk {
    const uint8_t *bytes;
    size_t count;
};

static uint64_t walk_varint(struct walk *walk)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 64; shift += 7) {
        ck_assert_uint_gt(walk->count, 0);
        const uint8_t byte = *walk->bytes++;
        walk->count--;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    ck_abort_msg("a varint of more than ten bytes");
}

/* The next field: its number, and its number value or its bytes. */
static uint32_t walk_field(struct walk *walk, uint64_t *number, struct walk *bytes)
{
    const uint64_t key = walk_varint(walk);

    ck_assert_msg((key & 7) == 0 || (key & 7) == 2, "wire type %u", (unsigned)(key & 7));
    *number = walk_varint(walk);
    *bytes = (struct walk){ NULL, 0 };
    if ((key & 7) == 2) {
        ck_assert_uint_le(*number, walk->count);
        *bytes = (struct walk){ walk->bytes, (size_t)*number };
        walk->bytes += *number;
        walk->count -= *number;
    }
    return (uint32_t)(key >> 3);
}

static void walk_text(struct walk bytes, char text[DETAIL_TEXT])
{
    ck_assert_uint_lt(bytes.count, DETAIL_TEXT);
    memcpy(text, bytes.bytes, bytes.count);
    text[bytes.count] = '\0';
}

static void read_error_info(struct walk rest, struct fixture_details *details)
{
    while (rest.count > 0) {
        uint64_t number;
        struct walk bytes;
        const uint32_t field = walk_field(&rest, &number, &bytes);

        ck_assert(field == 1 || field == 2);
        walk_text(bytes, field == 1 ? details->reason : details->domain);
    }
}

static void read_bad_request(struct walk rest, struct fixture_details *details)
{
    uint64_t number;
    struct walk violation;

    ck_assert_uint_eq(walk_field(&rest, &number, &violation), 1);
    ck_assert_uint_eq(rest.count, 0);
    while (violation.count > 0) {
        struct walk bytes;
        const uint32_t field = walk_field(&violation, &number, &bytes);

        ck_assert(field == 1 || field == 2);
        walk_text(bytes, field == 1 ? details->field : details->description);
    }
}

static void read_retry_info(struct walk rest, struct fixture_details *details)
{
    uint64_t number;
    struct walk duration;

    details->retry = true;
    ck_assert_uint_eq(walk_field(&rest, &number, &duration), 1);
    while (duration.count > 0) {
        struct walk bytes;
        const uint32_t field = walk_field(&duration, &number, &bytes);

        ck_assert(field == 1 || field == 2);
        *(field == 1 ? &details->retry_seconds : &details->retry_nanos) = number;
    }
}

static void read_any(struct walk any, struct fixture_details *details)
{
    char type[DETAIL_TEXT];
    uint64_t number;
    struct walk bytes;

    ck_assert_uint_eq(walk_field(&any, &number, &bytes), 1);
    walk_text(bytes, type);
    ck_assert_uint_eq(walk_field(&any, &number, &bytes), 2);
    ck_assert_uint_eq(any.count, 0);
    if (strcmp(type, "type.googleapis.com/google.rpc.ErrorInfo") == 0)
        read_error_info(bytes, details);
    else if (strcmp(type, "type.googleapis.com/google.rpc.BadRequest") == 0)
        read_bad_request(bytes, details);
    else if (strcmp(type, "type.googleapis.com/google.rpc.RetryInfo") == 0)
        read_retry_info(bytes, details);
    else
        ck_abort_msg("a detail of type %s", type);
}

void details_read(const uint8_t *bytes, size_t count, struct fixture_details *details)
{
    struct walk rest = { bytes, count };

    memset(details, 0, sizeof(*details));
    while (rest.count > 0) {
        uint64_t number;
        struct walk value;
        const uint32_t field = walk_field(&rest, &number, &value);

        if (field == 1)
            details->code = number;
        else if (field == 2)
            walk_text(value, details->message);
        else if (field == 3)
            read_any(value, details);
        else
            ck_abort_msg("field %u of google.rpc.Status", field);
    }
}

/* --- the client --- */

struct client_call {
    struct rpc_fixture *fixture;
    grpc_call *core;
    grpc_metadata_array initial;
    grpc_metadata_array trailing;
    grpc_status_code code;
    grpc_slice text;
    int tags[3]; /* sending, initial metadata, status */
    uint8_t *last;
    size_t last_count;
};

static void client_start(struct client_call *call, const grpc_op *operation, int *tag)
{
    ck_assert_int_eq(grpc_call_start_batch(call->core, operation, 1, tag, NULL), GRPC_CALL_OK);
}

static bool client_wait(struct client_call *call, int *tag)
{
    const grpc_event event = grpc_completion_queue_pluck(call->fixture->queue, tag,
                                                         gpr_inf_future(GPR_CLOCK_REALTIME), NULL);

    ck_assert_int_eq(event.type, GRPC_OP_COMPLETE);
    return event.success != 0;
}

struct client_call *client_open(struct rpc_fixture *fixture, const char *path, uint32_t timeout_ms,
                                const struct fixture_header *headers)
{
    struct client_call *call = calloc(1, sizeof(*call));
    grpc_slice method = grpc_slice_from_copied_string(path);
    grpc_metadata metadata[HEADERS_MAX];
    grpc_op operation;
    size_t count = 0;
    const gpr_timespec deadline =
        timeout_ms == FIXTURE_FOREVER
            ? gpr_inf_future(GPR_CLOCK_REALTIME)
            : gpr_time_add(gpr_now(GPR_CLOCK_REALTIME),
                           gpr_time_from_millis(timeout_ms, GPR_TIMESPAN));

    ck_assert_ptr_nonnull(call);
    call->fixture = fixture;
    call->core = grpc_channel_create_call(fixture->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                          fixture->queue, method, NULL, deadline, NULL);
    grpc_slice_unref(method);
    memset(metadata, 0, sizeof(metadata));
    for (; headers && headers[count].key; count++) {
        ck_assert_uint_lt(count, HEADERS_MAX);
        metadata[count].key = grpc_slice_from_static_string(headers[count].key);
        metadata[count].value = grpc_slice_from_static_string(headers[count].value);
    }
    memset(&operation, 0, sizeof(operation));
    operation.op = GRPC_OP_RECV_INITIAL_METADATA;
    operation.data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    client_start(call, &operation, &call->tags[1]);
    memset(&operation, 0, sizeof(operation));
    operation.op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    operation.data.recv_status_on_client.trailing_metadata = &call->trailing;
    operation.data.recv_status_on_client.status = &call->code;
    operation.data.recv_status_on_client.status_details = &call->text;
    client_start(call, &operation, &call->tags[2]);
    memset(&operation, 0, sizeof(operation));
    operation.op = GRPC_OP_SEND_INITIAL_METADATA;
    operation.data.send_initial_metadata.count = count;
    operation.data.send_initial_metadata.metadata = metadata;
    client_start(call, &operation, &call->tags[0]);
    client_wait(call, &call->tags[0]);
    return call;
}

bool client_send(struct client_call *call, const void *bytes, size_t count)
{
    grpc_slice slice = grpc_slice_from_copied_buffer(bytes, count);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_op operation;

    memset(&operation, 0, sizeof(operation));
    operation.op = GRPC_OP_SEND_MESSAGE;
    operation.data.send_message.send_message = buffer;
    client_start(call, &operation, &call->tags[0]);
    const bool ok = client_wait(call, &call->tags[0]);
    grpc_byte_buffer_destroy(buffer);
    grpc_slice_unref(slice);
    return ok;
}

void client_half_close(struct client_call *call)
{
    grpc_op operation;

    memset(&operation, 0, sizeof(operation));
    operation.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    client_start(call, &operation, &call->tags[0]);
    client_wait(call, &call->tags[0]);
}

uint8_t *client_read(struct client_call *call, size_t *count)
{
    grpc_byte_buffer *buffer = NULL;
    grpc_byte_buffer_reader reader;
    grpc_op operation;

    memset(&operation, 0, sizeof(operation));
    operation.op = GRPC_OP_RECV_MESSAGE;
    operation.data.recv_message.recv_message = &buffer;
    client_start(call, &operation, &call->tags[0]);
    client_wait(call, &call->tags[0]);
    *count = 0;
    if (!buffer)
        return NULL;
    ck_assert(grpc_byte_buffer_reader_init(&reader, buffer));
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    uint8_t *bytes = malloc(GRPC_SLICE_LENGTH(slice) + 1);
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
    *count = GRPC_SLICE_LENGTH(slice);
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(buffer);
    return bytes;
}

void client_cancel(struct client_call *call)
{
    grpc_call_cancel(call->core, NULL);
}

void client_finish(struct client_call *call, struct fixture_answer *answer)
{
    uint8_t *unread;
    size_t unread_count;

    /* A status is shown to a client only after the messages before it. */
    while ((unread = client_read(call, &unread_count)) != NULL)
        free(unread);
    client_wait(call, &call->tags[1]);
    client_wait(call, &call->tags[2]);
    memset(answer, 0, sizeof(*answer));
    answer->code = call->code;
    const size_t count = GRPC_SLICE_LENGTH(call->text) < sizeof(answer->text)
                             ? GRPC_SLICE_LENGTH(call->text)
                             : sizeof(answer->text) - 1;
    memcpy(answer->text, GRPC_SLICE_START_PTR(call->text), count);
    for (size_t i = 0; i < call->trailing.count; i++) {
        const grpc_metadata *item = &call->trailing.metadata[i];

        if (grpc_slice_str_cmp(item->key, "grpc-status-details-bin") != 0)
            continue;
        answer->has_details = true;
        details_read(GRPC_SLICE_START_PTR(item->value), GRPC_SLICE_LENGTH(item->value),
                     &answer->details);
    }
    answer->bytes = call->last;
    answer->count = call->last_count;
    grpc_slice_unref(call->text);
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_call_unref(call->core);
    free(call);
}

void answer_release(struct fixture_answer *answer)
{
    free(answer->bytes);
    answer->bytes = NULL;
}

void client_unary(struct rpc_fixture *fixture, const char *path, uint32_t timeout_ms,
                  const struct fixture_header *headers, const void *bytes, size_t count,
                  struct fixture_answer *answer)
{
    struct client_call *call = client_open(fixture, path, timeout_ms, headers);

    if (client_send(call, bytes, count))
        client_half_close(call);
    call->last = client_read(call, &call->last_count);
    client_finish(call, answer);
}
