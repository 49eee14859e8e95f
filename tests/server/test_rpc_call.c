/* A call's life, with methods made for it: what arrives, what is refused and why, deadlines,
 * callers that stall or go away, charging, and the end of the server. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "rpc_core.h"
#include "rpc_fixture.h"

#define TENSOR_BYTES_MAX 65536u
#define FLOOD_BYTES      (1u << 20)

/* What the methods saw. Each test is a process of its own. */
static struct {
    uv_sem_t started;
    uv_sem_t ended;
    uv_sem_t released;
    enum fire_status why;
    char trace[RPC_TRACE_BYTES];
    char tenant[TENANT_NAME_BYTES];
} probe;

static void probe_init(void)
{
    uv_sem_init(&probe.started, 0);
    uv_sem_init(&probe.ended, 0);
    uv_sem_init(&probe.released, 0);
    log_set_level(LOG_ERROR);
}

static void probe_ended(struct rpc_call *call, enum fire_status why)
{
    ck_assert(rpc_call_over(call));
    probe.why = why;
    uv_sem_post(&probe.ended);
}

static void probe_release(struct rpc_call *call)
{
    (void)call;
    uv_sem_post(&probe.released);
}

/* --- methods --- */

static void echo_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    const char *trace = rpc_call_trace(call);

    strcpy(probe.trace, trace ? trace : "");
    strcpy(probe.tenant, rpc_call_tenant(call)->name);
    rpc_call_reply(call, message);
}

static void silent_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    (void)call;
    grpc_byte_buffer_destroy(message);
    uv_sem_post(&probe.started);
}

static void tensor_start(struct rpc_call *call)
{
    struct fire_error error;
    const enum fire_status status = rpc_call_receive(call, TENSOR_BYTES_MAX, &error);

    if (status != FIRE_OK)
        rpc_call_finish(call, status, &error, NULL);
    uv_sem_post(&probe.started);
}

static void tensor_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    const uint64_t bytes = grpc_byte_buffer_length(message);

    ck_assert_uint_eq(rpc_call_tenant(call)->bytes_in_flight, bytes);
    ck_assert_uint_eq(budget_used(&rpc_call_server(call)->messages), bytes);
    rpc_call_discharge(call, bytes);
    rpc_call_reply(call, message);
}

static void stream_start(struct rpc_call *call)
{
    tensor_start(call);
}

static void stream_receive(struct rpc_call *call)
{
    ck_assert_int_eq(rpc_call_receive(call, TENSOR_BYTES_MAX, NULL), FIRE_OK);
}

static void stream_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    if (!message) {
        rpc_call_finish(call, FIRE_OK, NULL, NULL);
        return;
    }
    rpc_call_discharge(call, grpc_byte_buffer_length(message));
    rpc_call_send(call, message);
}

static void flood_send(struct rpc_call *call)
{
    grpc_slice slice = grpc_slice_malloc(FLOOD_BYTES);
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(&slice, 1);

    memset(GRPC_SLICE_START_PTR(slice), 7, FLOOD_BYTES);
    grpc_slice_unref(slice);
    rpc_call_send(call, message);
}

static void last_words_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    struct fire_error error;

    rpc_call_send(call, message);
    ck_assert(rpc_call_sending(call));
    rpc_call_finish(call, fire_fail(&error, FIRE_NOT_FOUND, "name", "after the message"), &error,
                    NULL);
    rpc_call_finish(call, FIRE_OK, NULL, NULL); /* too late: does nothing */
}

static const struct rpc_method echo = {
    .path = "/test.Test/Echo",
    .kind = RPC_UNARY,
    .message = echo_message,
    .release = probe_release,
};
static const struct rpc_method silent = {
    .path = "/test.Test/Silent",
    .kind = RPC_UNARY,
    .message = silent_message,
    .ended = probe_ended,
    .release = probe_release,
};
static const struct rpc_method tensor = {
    .path = "/test.Test/Tensor",
    .kind = RPC_UNARY_TENSOR,
    .start = tensor_start,
    .message = tensor_message,
    .ended = probe_ended,
    .release = probe_release,
};
static const struct rpc_method stream = {
    .path = "/test.Test/Stream",
    .kind = RPC_STREAM,
    .start = stream_start,
    .message = stream_message,
    .sent = stream_receive,
    .ended = probe_ended,
    .release = probe_release,
};
static const struct rpc_method flood = {
    .path = "/test.Test/Flood",
    .kind = RPC_STREAM,
    .start = flood_send,
    .sent = flood_send,
    .ended = probe_ended,
    .release = probe_release,
};
static const struct rpc_method last_words = {
    .path = "/test.Test/LastWords",
    .kind = RPC_UNARY,
    .message = last_words_message,
    .release = probe_release,
};
static const struct rpc_method *const methods[] = { &echo,   &silent, &tensor,
                                                    &stream, &flood,  &last_words };
#define METHOD_COUNT (sizeof(methods) / sizeof(methods[0]))

static double metric(struct rpc_fixture *fixture, enum metric id, const char *first,
                     const char *second)
{
    return metrics_value(fixture->server.metrics, id, first, second);
}

static void start(struct rpc_fixture *fixture)
{
    probe_init();
    fixture_start(fixture, methods, METHOD_COUNT);
}

/* --- arrivals --- */

START_TEST(a_call_is_answered_and_counted)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    const char *trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const struct fixture_header headers[] = { { "x-fired-tenant", "anna" },
                                              { "traceparent", trace },
                                              { NULL, NULL } };

    fixture_init(&fixture);
    start(&fixture);
    client_unary(&fixture, echo.path, 10000, headers, "hello", 5, &answer);
    ck_assert_msg(answer.code == GRPC_STATUS_OK, "%s", answer.text);
    ck_assert_uint_eq(answer.count, 5);
    ck_assert_mem_eq(answer.bytes, "hello", 5);
    answer_release(&answer);
    uv_sem_wait(&probe.released);
    ck_assert_str_eq(probe.trace, trace);
    ck_assert_str_eq(probe.tenant, "anna");
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(metrics_count_calls_and_bytes)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    start(&fixture);
    for (int i = 0; i < 3; i++) {
        client_unary(&fixture, echo.path, 10000, NULL, "hello", 5, &answer);
        answer_release(&answer);
        uv_sem_wait(&probe.released);
    }
    client_unary(&fixture, "/no.Such/Method", 10000, NULL, "", 0, &answer);
    ck_assert_double_eq(metric(&fixture, METRIC_BYTES_RECEIVED, "local", NULL), 15);
    ck_assert_double_eq(metric(&fixture, METRIC_BYTES_SENT, "local", NULL), 15);
    ck_assert_double_eq(metric(&fixture, METRIC_REFUSALS, "UNKNOWN_METHOD", NULL), 1);
    ck_assert_uint_eq(tenants_at(fixture.server.tenants, 0)->calls_total, 3);
    fixture_sync(&fixture);
    ck_assert_double_eq(metric(&fixture, METRIC_CALLS, "test.Test/Echo", "OK"), 3);
    ck_assert_double_eq(metric(&fixture, METRIC_CALL_SECONDS, "test.Test/Echo", NULL), 3);
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(an_unknown_method_is_unimplemented_at_once)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    start(&fixture);
    client_unary(&fixture, "/no.Such/Method", FIXTURE_FOREVER, NULL, "x", 1, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_UNIMPLEMENTED);
    ck_assert_ptr_nonnull(strstr(answer.text, "/no.Such/Method"));
    ck_assert(answer.has_details);
    ck_assert_str_eq(answer.details.reason, "UNKNOWN_METHOD");
    fixture_stop(&fixture, 1000);
}
END_TEST

/* Core would inflate a message before any budget is asked. */
START_TEST(a_zipped_message_is_unimplemented)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    const struct fixture_header headers[] = { { "grpc-internal-encoding-request", "gzip" },
                                              { NULL, NULL } };
    char *zeros = calloc(1, TENSOR_BYTES_MAX);

    fixture_init(&fixture);
    start(&fixture);
    struct client_call *call = client_open(&fixture, echo.path, 10000, headers);
    client_send(call, zeros, TENSOR_BYTES_MAX);
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_UNIMPLEMENTED);
    free(zeros);
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(a_message_may_be_followed_by_an_error)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    start(&fixture);
    client_unary(&fixture, last_words.path, 10000, NULL, "hello", 5, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_NOT_FOUND);
    ck_assert_str_eq(answer.text, "after the message");
    ck_assert_uint_eq(answer.count, 5);
    ck_assert_str_eq(answer.details.reason, "NOT_FOUND");
    ck_assert_str_eq(answer.details.field, "name");
    answer_release(&answer);
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(a_stream_echoes_until_it_is_closed)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    start(&fixture);
    struct client_call *call = client_open(&fixture, stream.path, 10000, NULL);
    for (int i = 0; i < 100; i++) {
        size_t count;

        ck_assert(client_send(call, &i, sizeof(i)));
        uint8_t *bytes = client_read(call, &count);
        ck_assert_uint_eq(count, sizeof(i));
        ck_assert_mem_eq(bytes, &i, sizeof(i));
        free(bytes);
    }
    client_half_close(call);
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_OK);
    fixture_stop(&fixture, 1000);
}
END_TEST

/* --- refusals --- */

static void limit_all_calls(struct rpc_fixture *fixture)
{
    fixture->server.config.calls_max = 1;
}

static void limit_tenant_calls(struct rpc_fixture *fixture)
{
    fixture->server.config.tenant.calls_max = 1;
}

static void limit_tenant_streams(struct rpc_fixture *fixture)
{
    fixture->server.config.tenant.streams_max = 1;
}

static void limit_tenant_bytes(struct rpc_fixture *fixture)
{
    fixture->server.config.tenant.bytes_in_flight_max = 2 * TENSOR_BYTES_MAX - 1;
}

static void limit_budget(struct rpc_fixture *fixture)
{
    budget_init(&fixture->server.messages, 2 * TENSOR_BYTES_MAX - 1);
}

static const struct {
    void (*limit)(struct rpc_fixture *fixture);
    const char *reason;
} limits[] = {
    { limit_all_calls, "TOO_MANY_CALLS" },
    { limit_tenant_calls, "TENANT_TOO_MANY_CALLS" },
    { limit_tenant_streams, "TENANT_TOO_MANY_STREAMS" },
    { limit_tenant_bytes, "BUSY" },
    { limit_budget, "BUSY" },
};

/* The first stream takes all there is; the second is refused with a hint; when the first has gone,
 * the third is served. */
START_TEST(beyond_a_limit_a_call_is_refused_with_a_hint)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    size_t count;

    fixture_init(&fixture);
    limits[_i].limit(&fixture);
    start(&fixture);
    struct client_call *first = client_open(&fixture, stream.path, 10000, NULL);
    uv_sem_wait(&probe.started);

    struct client_call *second = client_open(&fixture, stream.path, 10000, NULL);
    client_finish(second, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(answer.details.reason, limits[_i].reason);
    ck_assert(answer.details.retry);
    ck_assert_uint_gt(answer.details.retry_nanos + answer.details.retry_seconds, 0);

    /* Small methods are answered all the same. */
    client_unary(&fixture, echo.path, 10000, NULL, "hello", 5, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_OK);
    answer_release(&answer);

    client_half_close(first);
    client_finish(first, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_OK);
    for (int i = 0; i < 2 + (limits[_i].reason[0] == 'B'); i++)
        uv_sem_wait(&probe.released);
    struct client_call *third = client_open(&fixture, stream.path, 10000, NULL);
    client_send(third, "x", 1);
    free(client_read(third, &count));
    ck_assert_uint_eq(count, 1);
    client_half_close(third);
    client_finish(third, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_OK);
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(a_message_over_its_limit_is_refused_by_size)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    char *bytes = calloc(1, TENSOR_BYTES_MAX + 1);

    fixture_init(&fixture);
    start(&fixture);
    client_unary(&fixture, tensor.path, 10000, NULL, bytes, TENSOR_BYTES_MAX, &answer);
    ck_assert_msg(answer.code == GRPC_STATUS_OK, "%s", answer.text);
    ck_assert_uint_eq(answer.count, TENSOR_BYTES_MAX);
    answer_release(&answer);
    client_unary(&fixture, tensor.path, 10000, NULL, bytes, TENSOR_BYTES_MAX + 1, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(answer.details.reason, "MESSAGE_TOO_LARGE");
    ck_assert(!answer.details.retry); /* it will never do */
    ck_assert_ptr_nonnull(strstr(answer.text, "65536"));
    uv_sem_wait(&probe.ended);
    free(bytes);
    fixture_stop(&fixture, 1000);
}
END_TEST

/* What has been reserved and not sent is at most half of the budget for one tenant, so that calls
 * that send nothing do not keep others out. */
START_TEST(reservations_of_one_tenant_leave_room_for_others)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    struct client_call *held[2];
    const struct fixture_header greedy[] = { { "x-fired-tenant", "greedy" }, { NULL, NULL } };
    const struct fixture_header modest[] = { { "x-fired-tenant", "modest" }, { NULL, NULL } };
    size_t count;

    fixture_init(&fixture);
    budget_init(&fixture.server.messages, 4 * TENSOR_BYTES_MAX);
    start(&fixture);
    for (size_t i = 0; i < 2; i++) {
        held[i] = client_open(&fixture, stream.path, 10000, greedy);
        uv_sem_wait(&probe.started);
    }
    client_finish(client_open(&fixture, stream.path, 10000, greedy), &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(answer.text, "have not come"));
    ck_assert(answer.details.retry);

    struct client_call *other = client_open(&fixture, stream.path, 10000, modest);
    client_send(other, "x", 1);
    free(client_read(other, &count));
    ck_assert_uint_eq(count, 1);
    client_half_close(other);
    client_finish(other, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_OK);
    for (size_t i = 0; i < 2; i++) {
        client_half_close(held[i]);
        client_finish(held[i], &answer);
        ck_assert_int_eq(answer.code, GRPC_STATUS_OK);
    }
    fixture_stop(&fixture, 1000);
}
END_TEST

/* Beyond what any method takes, core refuses while it reads. */
START_TEST(a_message_over_the_limit_of_all_is_refused_by_core)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    const size_t count = (5u << 20) + 1;
    char *bytes = calloc(1, count);

    fixture_init(&fixture);
    start(&fixture);
    client_unary(&fixture, tensor.path, 10000, NULL, bytes, count, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(answer.text, "5242880"));
    uv_sem_wait(&probe.released);
    free(bytes);
    fixture_stop(&fixture, 1000);
}
END_TEST

static const struct {
    const char *tenant;
    grpc_status_code code;
} tenant_names[] = {
    { "anna", GRPC_STATUS_OK },
    { "", GRPC_STATUS_INVALID_ARGUMENT },
    { "a b", GRPC_STATUS_INVALID_ARGUMENT },
    { "0123456789012345678901234567890123456789012345678901234567890123",
      GRPC_STATUS_INVALID_ARGUMENT },
};

START_TEST(a_tenant_has_a_proper_name)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    const struct fixture_header headers[] = { { "x-fired-tenant", tenant_names[_i].tenant },
                                              { NULL, NULL } };

    fixture_init(&fixture);
    start(&fixture);
    client_unary(&fixture, echo.path, 10000, headers, "hello", 5, &answer);
    ck_assert_msg(answer.code == tenant_names[_i].code, "%s", answer.text);
    answer_release(&answer);
    fixture_stop(&fixture, 1000);
}
END_TEST

/* --- time --- */

START_TEST(without_a_deadline_the_default_holds)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    const uint64_t begun = clock_now_ns();

    fixture_init(&fixture);
    fixture.server.config.deadline_ms_default = 50;
    start(&fixture);
    client_unary(&fixture, silent.path, FIXTURE_FOREVER, NULL, "x", 1, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_DEADLINE_EXCEEDED);
    ck_assert_str_eq(answer.details.reason, "TOO_LATE");
    ck_assert_uint_ge(clock_now_ns() - begun, 50 * CLOCK_NS_PER_MS);
    uv_sem_wait(&probe.ended);
    ck_assert_int_eq(probe.why, FIRE_TOO_LATE);
    uv_sem_wait(&probe.released);
    ck_assert_double_eq(metric(&fixture, METRIC_EXPIRED_LATENESS, NULL, NULL), 1);
    fixture_stop(&fixture, 1000);
}
END_TEST

/* The caller's own timer may be first: it is its deadline all the same. */
START_TEST(a_callers_deadline_is_no_change_of_mind)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    start(&fixture);
    for (int i = 0; i < 20; i++) {
        client_unary(&fixture, silent.path, 30, NULL, "x", 1, &answer);
        ck_assert_int_eq(answer.code, GRPC_STATUS_DEADLINE_EXCEEDED);
        uv_sem_wait(&probe.ended);
        ck_assert_int_eq(probe.why, FIRE_TOO_LATE);
        uv_sem_wait(&probe.released);
    }
    ck_assert_double_eq(metric(&fixture, METRIC_EXPIRED_LATENESS, NULL, NULL), 20);
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(a_caller_that_cancels_ends_the_work)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    start(&fixture);
    struct client_call *call = client_open(&fixture, silent.path, 10000, NULL);
    client_send(call, "x", 1);
    client_half_close(call);
    uv_sem_wait(&probe.started);
    client_cancel(call);
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_CANCELLED);
    uv_sem_wait(&probe.ended);
    ck_assert_int_eq(probe.why, FIRE_CANCELLED);
    uv_sem_wait(&probe.released);
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(a_caller_that_does_not_send_is_cut_off)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    fixture.server.config.idle_ms_max = 50;
    start(&fixture);
    struct client_call *call = client_open(&fixture, stream.path, 10000, NULL);
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(answer.details.reason, "CALLER_STALLED");
    ck_assert(answer.details.retry);
    uv_sem_wait(&probe.ended);
    ck_assert_int_eq(probe.why, FIRE_CANCELLED);
    uv_sem_wait(&probe.released);
    ck_assert_double_eq(metric(&fixture, METRIC_CUT_OFF, "sending", NULL), 1);
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(a_callers_deadline_has_a_limit)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    fixture.server.config.deadline_ms_max = 50;
    start(&fixture);
    client_unary(&fixture, silent.path, 50000, NULL, "x", 1, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_DEADLINE_EXCEEDED);
    ck_assert_ptr_nonnull(strstr(answer.text, "50 ms"));
    fixture_stop(&fixture, 1000);
}
END_TEST

static void upload_start(struct rpc_call *call)
{
    rpc_call_uploading(call, true);
    stream_start(call);
}

static const struct {
    uint64_t floor;
    bool cut;
} floors[] = { { 1 << 20, true }, { 1, false }, { 0, false } };

/* Every byte resets the idle clock; the rate does not forget. */
START_TEST(an_upload_in_drops_is_cut_off)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    struct rpc_method upload = stream;
    const struct rpc_method *const table[] = { &upload };
    uint32_t drops = 0;

    fixture_init(&fixture);
    fixture.server.config.idle_ms_max = 1500; /* a machine may stand still for a second */
    fixture.server.config.upload_bytes_per_s_min = floors[_i].floor;
    upload.start = upload_start;
    probe_init();
    fixture_start(&fixture, table, 1);
    struct client_call *call = client_open(&fixture, stream.path, 30000, NULL);
    for (bool open = true; open && drops < 90; drops++) {
        size_t count;
        uint8_t *echoed;

        uv_sleep(20);
        client_send(call, "x", 1);
        echoed = client_read(call, &count);
        open = echoed != NULL;
        free(echoed);
    }
    client_half_close(call);
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, floors[_i].cut ? GRPC_STATUS_RESOURCE_EXHAUSTED : GRPC_STATUS_OK);
    if (floors[_i].cut) {
        ck_assert_str_eq(answer.details.reason, "CALLER_STALLED");
        ck_assert_ptr_nonnull(strstr(answer.text, "upload_bytes_per_s_min"));
        ck_assert_uint_gt(drops, 1);
    }
    uv_sem_wait(&probe.released);
    ck_assert_double_eq(metric(&fixture, METRIC_CUT_OFF, "sending", NULL), floors[_i].cut);
    fixture_stop(&fixture, 1000);
}
END_TEST

/* Messages fill the window of the connection; then nothing moves. */
START_TEST(a_caller_that_does_not_read_is_cut_off)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    fixture.server.config.idle_ms_max = 100;
    start(&fixture);
    struct client_call *call = client_open(&fixture, flood.path, 20000, NULL);
    uv_sem_wait(&probe.ended);
    ck_assert_int_eq(probe.why, FIRE_CANCELLED);
    uv_sem_wait(&probe.released);
    ck_assert_double_eq(metric(&fixture, METRIC_CUT_OFF, "reading", NULL), 1);
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(answer.text, "stopped reading"));
    fixture_stop(&fixture, 1000);
}
END_TEST

static void job_expect_nothing(struct rpc_fixture *fixture, void *data)
{
    (void)fixture;
    rpc_call_expect(*(struct rpc_call **)data, false);
}

static struct rpc_call *patient_call;

static void patient_start(struct rpc_call *call)
{
    patient_call = call;
    tensor_start(call);
}

/* What the daemon computes, the caller need not hurry for. */
START_TEST(a_caller_that_owes_nothing_is_not_cut_off)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    struct rpc_method patient = stream;
    const struct rpc_method *const table[] = { &patient };

    fixture_init(&fixture);
    fixture.server.config.idle_ms_max = 100;
    patient.start = patient_start;
    probe_init();
    fixture_start(&fixture, table, 1);
    struct client_call *call = client_open(&fixture, stream.path, 400, NULL);
    uv_sem_wait(&probe.started);
    fixture_do(&fixture, job_expect_nothing, &patient_call);
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_DEADLINE_EXCEEDED);
    uv_sem_wait(&probe.ended);
    ck_assert_int_eq(probe.why, FIRE_TOO_LATE);
    fixture_stop(&fixture, 1000);
}
END_TEST

/* --- the end --- */

START_TEST(while_draining_new_calls_are_unavailable)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    fixture.server.draining = true;
    start(&fixture);
    client_unary(&fixture, echo.path, 10000, NULL, "hello", 5, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_UNAVAILABLE);
    ck_assert_str_eq(answer.details.reason, "DRAINING");
    ck_assert(answer.details.retry);
    fixture_stop(&fixture, 1000);
}
END_TEST

/* With calls of every kind open, the end comes at the limit, and everything is given back. */
START_TEST(what_runs_at_the_limit_is_cancelled)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    struct client_call *calls[30];
    const size_t count = sizeof(calls) / sizeof(calls[0]);
    const char *const paths[] = { silent.path, stream.path, flood.path };

    fixture_init(&fixture);
    start(&fixture);
    for (size_t i = 0; i < count; i++) {
        calls[i] = client_open(&fixture, paths[i % 3], FIXTURE_FOREVER, NULL);
        if (i % 3 != 2)
            client_send(calls[i], "x", 1);
    }
    for (size_t i = 0; i < 2 * count / 3; i++)
        uv_sem_wait(&probe.started);
    fixture_drain(&fixture, 50);
    for (size_t i = 0; i < count; i++) {
        client_finish(calls[i], &answer);
        ck_assert_int_ne(answer.code, GRPC_STATUS_OK);
    }
    fixture_stop(&fixture, 0);
}
END_TEST

/* A second word with a shorter limit counts. */
START_TEST(the_shorter_limit_counts)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    const uint64_t begun = clock_now_ns();

    fixture_init(&fixture);
    start(&fixture);
    struct client_call *call = client_open(&fixture, stream.path, FIXTURE_FOREVER, NULL);
    uv_sem_wait(&probe.started);
    fixture_drain(&fixture, 600000);
    fixture_drain(&fixture, 10);
    client_finish(call, &answer);
    ck_assert_int_ne(answer.code, GRPC_STATUS_OK);
    fixture_stop(&fixture, 0);
    ck_assert_uint_lt(clock_now_ns() - begun, 20 * CLOCK_NS_PER_S);
}
END_TEST

START_TEST(what_runs_may_finish_before_the_limit)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    size_t count;

    fixture_init(&fixture);
    start(&fixture);
    struct client_call *call = client_open(&fixture, stream.path, FIXTURE_FOREVER, NULL);
    uv_sem_wait(&probe.started);
    fixture_drain(&fixture, 600000);
    client_send(call, "x", 1);
    free(client_read(call, &count));
    ck_assert_uint_eq(count, 1);
    client_half_close(call);
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_OK);
    fixture_stop(&fixture, 0);
}
END_TEST

/* --- small questions --- */

static const struct {
    const char *text;
    bool valid;
} traces[] = {
    { "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", true },
    { "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", true },
    { "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false },
    { "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more", false },
    { "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false },
    { "00-00000000000000000000000000000000-b7ad6b7169203331-01", false },
    { "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false },
    { "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false },
    { "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0", false },
    { "00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01", false },
    { "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333\n-01", false },
    { "", false },
};

START_TEST(a_traceparent_is_well_formed_or_ignored)
{
    ck_assert_int_eq(rpc_trace_valid(traces[_i].text, strlen(traces[_i].text)), traces[_i].valid);
}
END_TEST

static const struct {
    const char *peer;
    bool local;
} peers[] = {
    { "unix:", true },
    { "unix:/run/fired/socket", true },
    { "ipv4:127.0.0.1:4711", true },
    { "ipv4:127.9.9.9:1", true },
    { "ipv6:[::1]:4711", true },
    { "ipv6:%5B::1%5D:4711", true },
    { "ipv6:%5B::ffff:127.0.0.1%5D:4711", true },
    { "ipv4:12.7.0.1:4711", false },
    { "ipv4:192.168.0.1:4711", false },
    { "ipv6:%5B::1:2%5D:4711", false },
    { "ipv6:%5B2001:db8::1%5D:4711", false },
    { "", false },
};

START_TEST(a_peer_of_this_machine_is_local)
{
    ck_assert_int_eq(rpc_peer_local(peers[_i].peer), peers[_i].local);
}
END_TEST

static void add_calls(TCase *tests)
{
    tcase_add_test(tests, a_call_is_answered_and_counted);
    tcase_add_test(tests, metrics_count_calls_and_bytes);
    tcase_add_test(tests, an_unknown_method_is_unimplemented_at_once);
    tcase_add_test(tests, a_zipped_message_is_unimplemented);
    tcase_add_test(tests, a_message_may_be_followed_by_an_error);
    tcase_add_test(tests, a_stream_echoes_until_it_is_closed);
    tcase_add_loop_test(tests, beyond_a_limit_a_call_is_refused_with_a_hint, 0,
                        sizeof(limits) / sizeof(limits[0]));
    tcase_add_test(tests, a_message_over_its_limit_is_refused_by_size);
    tcase_add_test(tests, reservations_of_one_tenant_leave_room_for_others);
    tcase_add_test(tests, a_message_over_the_limit_of_all_is_refused_by_core);
    tcase_add_loop_test(tests, a_tenant_has_a_proper_name, 0,
                        sizeof(tenant_names) / sizeof(tenant_names[0]));
}

static void add_ends(TCase *tests)
{
    tcase_add_test(tests, without_a_deadline_the_default_holds);
    tcase_add_test(tests, a_callers_deadline_is_no_change_of_mind);
    tcase_add_test(tests, a_caller_that_cancels_ends_the_work);
    tcase_add_test(tests, a_caller_that_does_not_send_is_cut_off);
    tcase_add_test(tests, a_callers_deadline_has_a_limit);
    tcase_add_loop_test(tests, an_upload_in_drops_is_cut_off, 0,
                        sizeof(floors) / sizeof(floors[0]));
    tcase_add_test(tests, a_caller_that_does_not_read_is_cut_off);
    tcase_add_test(tests, a_caller_that_owes_nothing_is_not_cut_off);
    tcase_add_test(tests, while_draining_new_calls_are_unavailable);
    tcase_add_test(tests, what_runs_at_the_limit_is_cancelled);
    tcase_add_test(tests, the_shorter_limit_counts);
    tcase_add_test(tests, what_runs_may_finish_before_the_limit);
    tcase_add_loop_test(tests, a_traceparent_is_well_formed_or_ignored, 0,
                        sizeof(traces) / sizeof(traces[0]));
    tcase_add_loop_test(tests, a_peer_of_this_machine_is_local, 0,
                        sizeof(peers) / sizeof(peers[0]));
}

int main(void)
{
    Suite *suite = suite_create("rpc_call");
    TCase *tests = tcase_create("rpc_call");
    SRunner *runner = srunner_create(suite);

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 60);
    add_calls(tests);
    add_ends(tests);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
