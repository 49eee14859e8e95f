/* Unary calls for which there is no room: they wait for it unread, in the order they came, give way
 * to tenants within their limits, and are refused in time. One call, the keeper, holds what there
 * is until it is told to answer. */
#include <check.h>
#include <stdlib.h>

#include "log.h"
#include "rpc_core.h"
#include "rpc_fixture.h"

#define BYTES_MAX 65536u
#define FOREVER   600000u
#define WAITING   40u

static const struct fixture_header tenant_a[] = { { "x-fired-tenant", "a" }, { NULL, NULL } };
static const struct fixture_header tenant_b[] = { { "x-fired-tenant", "b" }, { NULL, NULL } };

/* Each test is a process of its own. */
static struct {
    uv_sem_t started;
    uv_sem_t kept;
    struct rpc_call *call;
    grpc_byte_buffer *message;
    uint8_t order[WAITING]; /* the first byte of each message, as they were answered */
    uint32_t answered;
} probe;

static void on_start(struct rpc_call *call)
{
    struct fire_error error;
    const enum fire_status status = rpc_call_receive(call, BYTES_MAX, &error);

    if (status != FIRE_OK)
        rpc_call_finish(call, status, &error, NULL);
    uv_sem_post(&probe.started);
}

static void echo_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    const grpc_slice *slices = message->data.raw.slice_buffer.slices;

    ck_assert_uint_lt(probe.answered, WAITING);
    probe.order[probe.answered++] = GRPC_SLICE_START_PTR(slices[0])[0];
    rpc_call_discharge(call, grpc_byte_buffer_length(message));
    rpc_call_reply(call, message);
}

static void keeper_message(struct rpc_call *call, grpc_byte_buffer *message)
{
    probe.call = call;
    probe.message = message;
    uv_sem_post(&probe.kept);
}

static void keeper_answer(struct rpc_fixture *fixture, void *data)
{
    (void)fixture;
    (void)data;
    rpc_call_discharge(probe.call, grpc_byte_buffer_length(probe.message));
    rpc_call_reply(probe.call, probe.message);
}

static const struct rpc_method echo = {
    .path = "/test.Test/Echo",
    .kind = RPC_UNARY_TENSOR,
    .start = on_start,
    .message = echo_message,
};
static const struct rpc_method keeper = {
    .path = "/test.Test/Keeper",
    .kind = RPC_UNARY_TENSOR,
    .start = on_start,
    .message = keeper_message,
};
static const struct rpc_method *const methods[] = { &echo, &keeper };

/* A call that has been let in; its message is on its way, unless it has been refused by then. */
static struct client_call *begin(struct rpc_fixture *fixture, const struct rpc_method *method,
                                 uint32_t timeout_ms, const struct fixture_header *tenant,
                                 uint8_t mark)
{
    struct client_call *call = client_open(fixture, method->path, timeout_ms, tenant);

    uv_sem_wait(&probe.started);
    (void)client_send(call, &mark, 1);
    client_half_close(call);
    return call;
}

/* The server, and the keeper's call, which has been read. */
static struct client_call *start(struct rpc_fixture *fixture)
{
    struct client_call *first;

    uv_sem_init(&probe.started, 0);
    uv_sem_init(&probe.kept, 0);
    log_set_level(LOG_ERROR);
    fixture_start(fixture, methods, sizeof(methods) / sizeof(methods[0]));
    first = begin(fixture, &keeper, FOREVER, tenant_a, 0);
    uv_sem_wait(&probe.kept);
    return first;
}

static void expect(struct client_call *call, grpc_status_code code, const char *reason)
{
    struct fixture_answer answer;

    client_finish(call, &answer);
    ck_assert_msg(answer.code == code, "%d: %s", (int)answer.code, answer.text);
    if (reason) {
        ck_assert_str_eq(answer.details.reason, reason);
        ck_assert(answer.details.retry);
    }
    answer_release(&answer);
}

/* Calls of tenant a, marked 0, 1, … */
static void begin_all(struct rpc_fixture *fixture, struct client_call **calls, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        calls[i] = begin(fixture, &echo, FOREVER, tenant_a, (uint8_t)i);
}

static void expect_all(struct client_call **calls, uint32_t count, grpc_status_code code,
                       const char *reason)
{
    for (uint32_t i = 0; i < count; i++)
        expect(calls[i], code, reason);
}

static void limit_calls(struct rpc_fixture *fixture)
{
    fixture->server.config.tenant.calls_max = 1;
}

/* The keeper's message of one byte is enough for the next reservation to find no room. */
static void limit_bytes(struct rpc_fixture *fixture)
{
    fixture->server.config.tenant.bytes_in_flight_max = BYTES_MAX;
}

static void limit_budget(struct rpc_fixture *fixture)
{
    budget_init(&fixture->server.messages, BYTES_MAX);
}

static const struct {
    void (*limit)(struct rpc_fixture *fixture);
    const char *reason;
} limits[] = {
    { limit_calls, "TENANT_TOO_MANY_CALLS" },
    { limit_bytes, "BUSY" },
    { limit_budget, "BUSY" },
};

START_TEST(what_finds_no_room_is_served_in_its_order_when_there_is)
{
    struct rpc_fixture fixture;
    struct client_call *waiting[WAITING];

    fixture_init(&fixture);
    limits[_i].limit(&fixture);
    struct client_call *first = start(&fixture);
    begin_all(&fixture, waiting, WAITING);
    fixture_sync(&fixture);
    ck_assert_uint_eq(probe.answered, 0);
    fixture_do(&fixture, keeper_answer, NULL);
    expect(first, GRPC_STATUS_OK, NULL);
    expect_all(waiting, WAITING, GRPC_STATUS_OK, NULL);
    for (uint32_t i = 0; i < WAITING; i++)
        ck_assert_uint_eq(probe.order[i], i);
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(what_waits_is_refused_when_half_of_its_time_is_over)
{
    struct rpc_fixture fixture;
    struct client_call *waiting[WAITING];

    fixture_init(&fixture);
    limits[_i].limit(&fixture);
    fixture.server.config.deadline_ms_default = 1000;
    struct client_call *first = start(&fixture);
    begin_all(&fixture, waiting, WAITING);
    expect_all(waiting, WAITING, GRPC_STATUS_RESOURCE_EXHAUSTED, limits[_i].reason);
    fixture_do(&fixture, keeper_answer, NULL);
    expect(first, GRPC_STATUS_OK, NULL);
    expect(begin(&fixture, &echo, FOREVER, tenant_a, 1), GRPC_STATUS_OK, NULL);
    fixture_stop(&fixture, 1000);
}
END_TEST

/* Another tenant waits for the same memory: it need not have a call of its own that ends. */
START_TEST(memory_of_one_tenant_lets_another_go_on)
{
    struct rpc_fixture fixture;

    fixture_init(&fixture);
    limit_budget(&fixture);
    struct client_call *first = start(&fixture);
    struct client_call *other = begin(&fixture, &echo, FOREVER, tenant_b, 1);

    fixture_sync(&fixture);
    ck_assert_uint_eq(probe.answered, 0);
    fixture_do(&fixture, keeper_answer, NULL);
    expect(first, GRPC_STATUS_OK, NULL);
    expect(other, GRPC_STATUS_OK, NULL);
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(a_guest_gives_way_to_a_tenant_within_its_limit)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    fixture.server.config.calls_max = 3;
    limit_calls(&fixture);
    struct client_call *first = start(&fixture);
    struct client_call *older = begin(&fixture, &echo, FOREVER, tenant_a, 1);
    struct client_call *newer = begin(&fixture, &echo, FOREVER, tenant_a, 2);

    client_unary(&fixture, echo.path, FOREVER, tenant_a, "x", 1, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(answer.details.reason, "TENANT_TOO_MANY_CALLS");

    client_unary(&fixture, echo.path, FOREVER, tenant_b, "x", 1, &answer);
    ck_assert_msg(answer.code == GRPC_STATUS_OK, "%s", answer.text);
    answer_release(&answer);
    expect(newer, GRPC_STATUS_RESOURCE_EXHAUSTED, "TENANT_TOO_MANY_CALLS");

    fixture_do(&fixture, keeper_answer, NULL);
    expect(first, GRPC_STATUS_OK, NULL);
    expect(older, GRPC_STATUS_OK, NULL);
    fixture_stop(&fixture, 1000);
}
END_TEST

/* The first, one in the middle and the last of those that wait go away. */
START_TEST(those_that_go_away_leave_the_others_in_order)
{
    enum { COUNT = 7 };
    struct rpc_fixture fixture;
    struct client_call *waiting[COUNT];

    fixture_init(&fixture);
    limits[_i].limit(&fixture);
    struct client_call *first = start(&fixture);
    begin_all(&fixture, waiting, COUNT);
    for (uint32_t i = 0; i < COUNT; i += 3) {
        client_cancel(waiting[i]);
        expect(waiting[i], GRPC_STATUS_CANCELLED, NULL);
    }
    fixture_do(&fixture, keeper_answer, NULL);
    expect(first, GRPC_STATUS_OK, NULL);
    for (uint32_t i = 0; i < COUNT; i++) {
        if (i % 3)
            expect(waiting[i], GRPC_STATUS_OK, NULL);
    }
    fixture_stop(&fixture, 1000);
}
END_TEST

static const struct {
    uint32_t calls_max;
    bool reload; /* else one more call comes */
} raised[] = { { 2, false }, { 100, false }, { 2, true }, { 100, true } };

static void raise_limit(struct rpc_fixture *fixture, void *data)
{
    const int *which = data;

    for (uint32_t i = 0; i < tenants_count(fixture->server.tenants); i++)
        tenants_at(fixture->server.tenants, i)->limits.calls_max = raised[*which].calls_max;
    if (raised[*which].reload)
        rpc_server_reload(fixture->rpc);
}

/* The keeper's call never ends meanwhile: only the new limit lets them go on. */
START_TEST(a_raised_limit_lets_guests_go_on)
{
    struct rpc_fixture fixture;
    struct client_call *waiting[WAITING - 1];
    struct client_call *last = NULL;
    int which = _i;

    fixture_init(&fixture);
    limit_calls(&fixture);
    struct client_call *first = start(&fixture);
    begin_all(&fixture, waiting, WAITING - 1);
    fixture_sync(&fixture);
    ck_assert_uint_eq(probe.answered, 0);
    fixture_do(&fixture, raise_limit, &which);
    if (!raised[_i].reload)
        last = begin(&fixture, &echo, FOREVER, tenant_a, WAITING);
    expect_all(waiting, WAITING - 1, GRPC_STATUS_OK, NULL);
    if (last)
        expect(last, GRPC_STATUS_OK, NULL);
    fixture_do(&fixture, keeper_answer, NULL);
    expect(first, GRPC_STATUS_OK, NULL);
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(guests_hear_of_the_end_at_once)
{
    struct rpc_fixture fixture;
    struct client_call *waiting[WAITING];

    fixture_init(&fixture);
    limit_calls(&fixture);
    struct client_call *first = start(&fixture);
    begin_all(&fixture, waiting, WAITING);
    fixture_drain(&fixture, FOREVER);
    expect_all(waiting, WAITING, GRPC_STATUS_UNAVAILABLE, "DRAINING");
    fixture_do(&fixture, keeper_answer, NULL);
    expect(first, GRPC_STATUS_OK, NULL);
    fixture_stop(&fixture, 1000);
}
END_TEST

int main(void)
{
    const int limit_count = sizeof(limits) / sizeof(limits[0]);
    Suite *suite = suite_create("rpc_waiting");
    TCase *tests = tcase_create("rpc_waiting");
    SRunner *runner = srunner_create(suite);

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, what_finds_no_room_is_served_in_its_order_when_there_is, 0,
                        limit_count);
    tcase_add_loop_test(tests, what_waits_is_refused_when_half_of_its_time_is_over, 0, limit_count);
    tcase_add_test(tests, memory_of_one_tenant_lets_another_go_on);
    tcase_add_test(tests, a_guest_gives_way_to_a_tenant_within_its_limit);
    tcase_add_loop_test(tests, those_that_go_away_leave_the_others_in_order, 0, limit_count);
    tcase_add_loop_test(tests, a_raised_limit_lets_guests_go_on, 0,
                        sizeof(raised) / sizeof(raised[0]));
    tcase_add_test(tests, guests_hear_of_the_end_at_once);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
