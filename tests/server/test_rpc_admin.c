/* The small services over a real socket: health, reflection, admin. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "fire/v1/admin.pb-c.h"
#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "log.h"
#include "rpc_core.h"
#include "rpc_fixture.h"

#define SERVING         GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

static const struct rpc_method *const methods[] = {
    &rpc_status_method,           &rpc_drain_method,        &rpc_set_log_level_method,
    &rpc_health_check_method,     &rpc_health_watch_method, &rpc_reflection_method,
    &rpc_reflection_alpha_method,
};

static void start(struct rpc_fixture *fixture)
{
    log_set_level(LOG_ERROR);
    fixture_start(fixture, methods, sizeof(methods) / sizeof(methods[0]));
}

static void unary(struct rpc_fixture *fixture, const struct rpc_method *method,
                  const ProtobufCMessage *request, struct fixture_answer *answer)
{
    uint8_t bytes[4096];

    ck_assert_uint_le(protobuf_c_message_get_packed_size(request), sizeof(bytes));
    client_unary(fixture, method->path, 10000, NULL, bytes, protobuf_c_message_pack(request, bytes),
                 answer);
}

/* --- health --- */

static void job_serve(struct rpc_fixture *fixture, void *data)
{
    rpc_server_set_serving(fixture->rpc, *(bool *)data);
}

static const struct {
    const char *service;
    bool serving;
    grpc_status_code code;
    int status;
} checks[] = {
    { "", true, GRPC_STATUS_OK, SERVING },
    { "", false, GRPC_STATUS_OK, NOT_SERVING },
    { "fire.v1.ReinitService", true, GRPC_STATUS_OK, SERVING },
    { "fire.v1.AdminService", false, GRPC_STATUS_OK, NOT_SERVING },
    { "fire.v1.Nobody", true, GRPC_STATUS_NOT_FOUND, 0 },
};

START_TEST(a_check_says_whether_the_service_serves)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    bool serving = checks[_i].serving;

    fixture_init(&fixture);
    start(&fixture);
    fixture_do(&fixture, job_serve, &serving);
    request.service = (char *)checks[_i].service;
    unary(&fixture, &rpc_health_check_method, &request.base, &answer);
    ck_assert_int_eq(answer.code, checks[_i].code);
    if (answer.code == GRPC_STATUS_OK) {
        Grpc__Health__V1__HealthCheckResponse *response =
            grpc__health__v1__health_check_response__unpack(NULL, answer.count, answer.bytes);

        ck_assert_ptr_nonnull(response);
        ck_assert_int_eq(response->status, checks[_i].status);
        grpc__health__v1__health_check_response__free_unpacked(response, NULL);
    }
    answer_release(&answer);
    fixture_stop(&fixture, 1000);
}
END_TEST

static struct client_call *watch_open(struct rpc_fixture *fixture, const char *service)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    struct client_call *call =
        client_open(fixture, rpc_health_watch_method.path, FIXTURE_FOREVER, NULL);
    uint8_t bytes[256];

    request.service = (char *)service;
    ck_assert(
        client_send(call, bytes, grpc__health__v1__health_check_request__pack(&request, bytes)));
    client_half_close(call);
    return call;
}

static int watch_next(struct client_call *call)
{
    size_t count;
    uint8_t *bytes = client_read(call, &count);

    ck_assert_ptr_nonnull(bytes);
    Grpc__Health__V1__HealthCheckResponse *response =
        grpc__health__v1__health_check_response__unpack(NULL, count, bytes);
    ck_assert_ptr_nonnull(response);
    const int status = (int)response->status;
    grpc__health__v1__health_check_response__free_unpacked(response, NULL);
    free(bytes);
    return status;
}

START_TEST(watchers_hear_each_change_and_end_with_the_server)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    struct client_call *calls[3];
    bool serving = true;

    fixture_init(&fixture);
    start(&fixture);
    for (int i = 0; i < 3; i++) {
        calls[i] = watch_open(&fixture, i == 1 ? "fire.v1.ReinitService" : "");
        ck_assert_int_eq(watch_next(calls[i]), NOT_SERVING);
    }
    fixture_do(&fixture, job_serve, &serving);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(watch_next(calls[i]), SERVING);
    client_cancel(calls[1]);
    client_finish(calls[1], &answer);
    serving = false;
    fixture_do(&fixture, job_serve, &serving);
    serving = true;
    ck_assert_int_eq(watch_next(calls[0]), NOT_SERVING);
    fixture_do(&fixture, job_serve, &serving);
    ck_assert_int_eq(watch_next(calls[0]), SERVING);
    fixture_drain(&fixture, 10000);
    ck_assert_int_eq(watch_next(calls[0]), NOT_SERVING);
    for (int i = 0; i < 3; i += 2) {
        client_finish(calls[i], &answer);
        ck_assert_int_eq(answer.code, GRPC_STATUS_UNAVAILABLE);
    }
    fixture_stop(&fixture, 0);
}
END_TEST

START_TEST(a_watcher_of_nobody_hears_so_and_stays)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    start(&fixture);
    struct client_call *call = watch_open(&fixture, "fire.v1.Nobody");
    ck_assert_int_eq(watch_next(call), SERVICE_UNKNOWN);
    fixture_drain(&fixture, 10000);
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_UNAVAILABLE);
    fixture_stop(&fixture, 0);
}
END_TEST

/* --- reflection --- */

typedef Grpc__Reflection__V1__ServerReflectionRequest question;
typedef Grpc__Reflection__V1__ServerReflectionResponse reply;

#define ASK(which)  GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##which
#define SAYS(which) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##which

static reply *ask(struct client_call *call, const question *request)
{
    uint8_t bytes[1024];
    size_t count = grpc__reflection__v1__server_reflection_request__pack(request, bytes);

    ck_assert(client_send(call, bytes, count));
    uint8_t *answer = client_read(call, &count);
    ck_assert_ptr_nonnull(answer);
    reply *response = grpc__reflection__v1__server_reflection_response__unpack(NULL, count, answer);
    ck_assert_ptr_nonnull(response);
    free(answer);
    return response;
}

static reply *ask_symbol(struct client_call *call, const char *symbol)
{
    question request = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;

    request.message_request_case = ASK(FILE_CONTAINING_SYMBOL);
    request.file_containing_symbol = (char *)symbol;
    return ask(call, &request);
}

static const struct rpc_method *const reflections[] = { &rpc_reflection_method,
                                                        &rpc_reflection_alpha_method };

START_TEST(every_service_is_listed)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    question request = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;
    const char *const wanted[] = {
        "fire.v1.ReinitService",
        "fire.v1.AdminService",
        "fire.v1.MonitorService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    };
    const size_t count = sizeof(wanted) / sizeof(wanted[0]);

    fixture_init(&fixture);
    start(&fixture);
    struct client_call *call = client_open(&fixture, reflections[_i]->path, 10000, NULL);
    request.message_request_case = ASK(LIST_SERVICES);
    request.list_services = (char *)"*";
    reply *response = ask(call, &request);
    ck_assert_int_eq(response->message_response_case, SAYS(LIST_SERVICES_RESPONSE));
    ck_assert_uint_eq(response->list_services_response->n_service, count);
    for (size_t i = 0; i < count; i++) {
        size_t found = 0;

        for (size_t k = 0; k < count; k++)
            found += strcmp(response->list_services_response->service[k]->name, wanted[i]) == 0;
        ck_assert_msg(found == 1, "%s", wanted[i]);
    }
    grpc__reflection__v1__server_reflection_response__free_unpacked(response, NULL);
    client_half_close(call);
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_OK);
    fixture_stop(&fixture, 1000);
}
END_TEST

static const struct {
    const char *symbol;
    size_t file_count; /* with imports; 0: there is no such symbol */
} symbols[] = {
    { "fire.v1.AdminService", 1 },
    { "fire.v1.AdminService.Status", 1 },
    { "fire.v1.ReinitService", 2 },
    { "fire.v1.ReinitService.ReinitStream", 2 },
    { "fire.v1.ReinitRequest", 2 },
    { "fire.v1.ReinitRequest.data", 2 },
    { "fire.v1.TensorHeader", 1 },
    { "fire.v1.LogLevel", 1 },
    { "fire.v1.LogLevel.LOG_LEVEL_WARN", 1 },
    { "fire.v1.StatusResponse.RefusalsEntry", 1 },
    { "grpc.health.v1.HealthCheckResponse.ServingStatus", 1 },
    { "grpc.health.v1.HealthCheckResponse.ServingStatus.SERVING", 1 },
    { "grpc.reflection.v1.ServerReflectionRequest.message_request", 1 },
    { "fire.v1.AdminService.Nothing", 0 },
    { "fire.v1.Admin", 0 },
    { "fire.v1.AdminServiceStatus", 0 },
    { "fire.v1", 0 },
    { "fire.v1.", 0 },
    { "AdminService", 0 },
    { "", 0 },
};

START_TEST(a_symbol_leads_to_its_file_and_imports)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    start(&fixture);
    struct client_call *call = client_open(&fixture, rpc_reflection_method.path, 10000, NULL);
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        reply *response = ask_symbol(call, symbols[i].symbol);
        const bool found = response->message_response_case == SAYS(FILE_DESCRIPTOR_RESPONSE);

        ck_assert_msg(found == (symbols[i].file_count > 0), "%s", symbols[i].symbol);
        if (found)
            ck_assert_msg(response->file_descriptor_response->n_file_descriptor_proto ==
                              symbols[i].file_count,
                          "%s: %zu files", symbols[i].symbol,
                          response->file_descriptor_response->n_file_descriptor_proto);
        else
            ck_assert_int_eq(response->error_response->error_code, GRPC_STATUS_NOT_FOUND);
        ck_assert_str_eq(response->original_request->file_containing_symbol, symbols[i].symbol);
        grpc__reflection__v1__server_reflection_response__free_unpacked(response, NULL);
    }
    client_half_close(call);
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_OK);
    fixture_stop(&fixture, 1000);
}
END_TEST

static const struct {
    const char *name;
    int asks;
    int says;
} questions[] = {
    { "fire/v1/admin.proto", ASK(FILE_BY_FILENAME), SAYS(FILE_DESCRIPTOR_RESPONSE) },
    { "fire/v1/nobody.proto", ASK(FILE_BY_FILENAME), SAYS(ERROR_RESPONSE) },
    { "fire.v1.LogLevel", ASK(ALL_EXTENSION_NUMBERS_OF_TYPE), SAYS(ERROR_RESPONSE) },
    { "", ASK(_NOT_SET), SAYS(ERROR_RESPONSE) },
};

START_TEST(what_reflection_does_not_know_is_an_answer_not_the_end)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;

    fixture_init(&fixture);
    start(&fixture);
    struct client_call *call = client_open(&fixture, rpc_reflection_method.path, 10000, NULL);
    for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++) {
        question request = GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__INIT;

        request.message_request_case = questions[i].asks;
        request.file_by_filename = (char *)questions[i].name;
        reply *response = ask(call, &request);
        ck_assert_msg((int)response->message_response_case == questions[i].says, "%s",
                      questions[i].name);
        grpc__reflection__v1__server_reflection_response__free_unpacked(response, NULL);
    }
    ck_assert(client_send(call, "\xff\xff", 2));
    client_finish(call, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_INVALID_ARGUMENT);
    fixture_stop(&fixture, 1000);
}
END_TEST

/* --- admin --- */

START_TEST(status_says_what_the_daemon_is)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    Fire__V1__StatusRequest request = FIRE__V1__STATUS_REQUEST__INIT;

    fixture_init(&fixture);
    fixture.server.config.memory_budget_bytes = 123456789;
    start(&fixture);
    client_unary(&fixture, "/no.Such/Method", 10000, NULL, "", 0, &answer);
    unary(&fixture, &rpc_status_method, &request.base, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_OK);
    Fire__V1__StatusResponse *response =
        fire__v1__status_response__unpack(NULL, answer.count, answer.bytes);
    ck_assert_ptr_nonnull(response);
    ck_assert_str_eq(response->version, FIRED_VERSION);
    ck_assert_double_ge(response->uptime_seconds, 0);
    ck_assert_double_lt(response->uptime_seconds, 60);
    ck_assert_uint_eq(response->n_addresses, 1);
    ck_assert_str_eq(response->addresses[0], fixture.address);
    ck_assert_uint_eq(response->memory->budget_bytes, 123456789);
    ck_assert_uint_eq(response->memory->message_bytes_max, fixture.server.messages.bytes_max);
    ck_assert_uint_gt(response->memory->resident_bytes, 1 << 20);
    ck_assert_uint_eq(response->calls, 1);
    ck_assert_uint_eq(response->calls_total, 1);
    ck_assert_uint_eq(response->n_tenants, 1);
    ck_assert_str_eq(response->tenants[0]->name, "local");
    ck_assert_uint_eq(response->n_refusals, 1);
    ck_assert_str_eq(response->refusals[0]->key, "UNKNOWN_METHOD");
    ck_assert_uint_eq(response->refusals[0]->value, 1);
    ck_assert_int_eq(response->log_level, FIRE__V1__LOG_LEVEL__LOG_LEVEL_ERROR);
    fire__v1__status_response__free_unpacked(response, NULL);
    answer_release(&answer);
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(the_log_level_can_be_set)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    Fire__V1__SetLogLevelRequest request = FIRE__V1__SET_LOG_LEVEL_REQUEST__INIT;

    fixture_init(&fixture);
    start(&fixture);
    request.level = FIRE__V1__LOG_LEVEL__LOG_LEVEL_WARN;
    unary(&fixture, &rpc_set_log_level_method, &request.base, &answer);
    ck_assert_int_eq(answer.code, GRPC_STATUS_OK);
    Fire__V1__SetLogLevelResponse *response =
        fire__v1__set_log_level_response__unpack(NULL, answer.count, answer.bytes);
    ck_assert_int_eq(response->previous, FIRE__V1__LOG_LEVEL__LOG_LEVEL_ERROR);
    ck_assert_int_eq(log_get_level(), LOG_WARN);
    fire__v1__set_log_level_response__free_unpacked(response, NULL);
    answer_release(&answer);

    log_set_level(LOG_ERROR);
    for (int level = 0; level <= 99; level += 99) {
        request.level = (Fire__V1__LogLevel)level;
        unary(&fixture, &rpc_set_log_level_method, &request.base, &answer);
        ck_assert_int_eq(answer.code, GRPC_STATUS_INVALID_ARGUMENT);
        ck_assert_str_eq(answer.details.field, "level");
        ck_assert_int_eq(log_get_level(), LOG_ERROR);
    }
    fixture_stop(&fixture, 1000);
}
END_TEST

static void job_count_calls(struct rpc_fixture *fixture, void *data)
{
    *(uint32_t *)data = rpc_server_calls(fixture->rpc);
}

static uint32_t calls_running(struct rpc_fixture *fixture)
{
    uint32_t count = 0;

    fixture_do(fixture, job_count_calls, &count);
    return count;
}

/* Bytes that are no message, and none at all where a message must come. */
START_TEST(malformed_requests_are_refused)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    char *large = calloc(1, RPC_SMALL_BYTES_MAX + 1);
    const struct rpc_method *const asked[] = { &rpc_status_method, &rpc_drain_method,
                                               &rpc_set_log_level_method, &rpc_health_check_method,
                                               &rpc_health_watch_method };

    fixture_init(&fixture);
    start(&fixture);
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        client_unary(&fixture, asked[i]->path, 10000, NULL, "\xff\xff", 2, &answer);
        ck_assert_int_eq(answer.code, GRPC_STATUS_INVALID_ARGUMENT);
        client_unary(&fixture, asked[i]->path, 10000, NULL, large, RPC_SMALL_BYTES_MAX + 1,
                     &answer);
        ck_assert_int_eq(answer.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
        ck_assert_str_eq(answer.details.reason, "MESSAGE_TOO_LARGE");
        struct client_call *call = client_open(&fixture, asked[i]->path, 10000, NULL);
        client_half_close(call);
        client_finish(call, &answer);
        ck_assert_int_eq(answer.code, GRPC_STATUS_INVALID_ARGUMENT);
    }
    free(large);
    fixture_stop(&fixture, 1000);
}
END_TEST

/* A small request is let in before it is read, and has little time to come: a daemon that goes down
 * does not wait for it. */
START_TEST(a_request_that_does_not_come_holds_nothing_up)
{
    struct rpc_fixture fixture;
    struct fixture_answer answer;
    struct client_call *calls[2];
    const uint64_t begun = clock_now_ns();

    fixture_init(&fixture);
    start(&fixture);
    calls[0] = client_open(&fixture, rpc_status_method.path, FIXTURE_FOREVER, NULL);
    calls[1] = client_open(&fixture, rpc_health_watch_method.path, FIXTURE_FOREVER, NULL);
    while (calls_running(&fixture) < 2)
        uv_sleep(1);
    fixture_drain(&fixture, 60000);
    for (size_t i = 0; i < 2; i++) {
        client_finish(calls[i], &answer);
        ck_assert_int_eq(answer.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
        ck_assert_str_eq(answer.details.reason, "CALLER_STALLED");
    }
    fixture_stop(&fixture, 0);
    ck_assert_uint_lt(clock_now_ns() - begun, 20 * CLOCK_NS_PER_S);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_admin");
    TCase *tests = tcase_create("rpc_admin");
    SRunner *runner = srunner_create(suite);

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, a_check_says_whether_the_service_serves, 0,
                        sizeof(checks) / sizeof(checks[0]));
    tcase_add_test(tests, watchers_hear_each_change_and_end_with_the_server);
    tcase_add_test(tests, a_watcher_of_nobody_hears_so_and_stays);
    tcase_add_loop_test(tests, every_service_is_listed, 0,
                        sizeof(reflections) / sizeof(reflections[0]));
    tcase_add_test(tests, a_symbol_leads_to_its_file_and_imports);
    tcase_add_test(tests, what_reflection_does_not_know_is_an_answer_not_the_end);
    tcase_add_test(tests, status_says_what_the_daemon_is);
    tcase_add_test(tests, the_log_level_can_be_set);
    tcase_add_test(tests, malformed_requests_are_refused);
    tcase_add_test(tests, a_request_that_does_not_come_holds_nothing_up);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
