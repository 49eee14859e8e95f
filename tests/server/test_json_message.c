/* json_message: the contract's messages as JSON, from query parameters and from JSON. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fire/v1/admin.pb-c.h"
#include "fire/v1/monitor.pb-c.h"
#include "json_message.h"

static void assert_json(const ProtobufCMessage *message, unsigned digits, const char *wanted)
{
    struct json_text text = { 0 };

    json_put_message(&text, message, digits);
    ck_assert_int_eq(text.failed, 0);
    ck_assert_str_eq(text.bytes, wanted);
    json_text_release(&text);
}

/* Numbers: exact with 17 digits and no longer than needed, rounded with fewer; what JSON has no
 * word for is null in a list. */
static const struct {
    double value;
    unsigned digits;
    const char *text;
} numbers[] = {
    { 0, 17, "0" },
    { -0.0, 17, "0" },
    { 12, 17, "12" },
    { 0.1, 17, "0.1" },
    { 1.0 / 3, 17, "0.3333333333333333" },
    { 1.0 / 3, 4, "0.3333" },
    { 5e-324, 17, "4.94065645841247e-324" },
    { 1e300, 17, "1e+300" },
    { NAN, 17, "null" },
    { INFINITY, 17, "null" },
};

START_TEST(a_number_is_exact_or_rounded_as_asked)
{
    Fire__V1__Series series = FIRE__V1__SERIES__INIT;
    double value = numbers[_i].value;
    char wanted[160];

    series.n_values = 1;
    series.values = &value;
    snprintf(wanted, sizeof(wanted),
             "{\"layer\":\"\",\"statistic\":\"\",\"steps\":[],\"values\":[%s],\"shape\":[]}",
             numbers[_i].text);
    assert_json(&series.base, numbers[_i].digits, wanted);
}
END_TEST

/* Beyond 2^53 a reader that has only doubles would change the number: text keeps it. */
START_TEST(numbers_of_64_bits_stay_exact)
{
    Fire__V1__ReportResponse response = FIRE__V1__REPORT_RESPONSE__INIT;

    response.points_added = UINT64_C(1) << 53;
    response.points_replaced = (UINT64_C(1) << 53) + 1;
    assert_json(&response.base, 17,
                "{\"points_added\":9007199254740992,\"points_replaced\":\"9007199254740993\"}");
}
END_TEST

START_TEST(maps_enums_and_messages_have_their_own_forms)
{
    Fire__V1__Event event = FIRE__V1__EVENT__INIT;
    Fire__V1__Event__AttributesEntry one = FIRE__V1__EVENT__ATTRIBUTES_ENTRY__INIT;
    Fire__V1__Event__ValuesEntry two = FIRE__V1__EVENT__VALUES_ENTRY__INIT;
    Fire__V1__Event__ValuesEntry lost = FIRE__V1__EVENT__VALUES_ENTRY__INIT;
    Fire__V1__Event__AttributesEntry *attributes[] = { &one };
    Fire__V1__Event__ValuesEntry *values[] = { &lost, &two };

    one.key = (char *)"preset";
    one.value = (char *)"\"<b>\\\n";
    two.key = (char *)"sfe";
    two.value = 0.5;
    lost.key = (char *)"scale";
    lost.value = NAN;
    event.kind = FIRE__V1__EVENT_KIND__EVENT_KIND_REINIT;
    event.n_attributes = 1;
    event.attributes = attributes;
    event.n_values = 2;
    event.values = values;
    assert_json(&event.base, 17,
                "{\"id\":0,\"kind\":\"reinit\",\"time_ms\":0,\"run\":\"\",\"layer\":\"\","
                "\"step\":0,\"text\":\"\","
                "\"attributes\":{\"preset\":\"\\u0022<b>\\u005c\\u000a\"},"
                "\"values\":{\"sfe\":0.5},\"spectrum_before\":[],\"spectrum_after\":[]}");
}
END_TEST

START_TEST(a_text_past_its_limit_is_refused_whole)
{
    struct json_text text = { .bytes_max = 8 };

    json_put(&text, "12345678");
    ck_assert_int_eq(text.failed, 0);
    json_put(&text, "9");
    ck_assert_int_eq(text.failed, 1);
    json_text_release(&text);
}
END_TEST

/* What a query parameter may be. NULL: it is taken. */
static const struct {
    const char *name, *value;
    const char *wrong; /* part of the message */
} parameters[] = {
    { "run", "a run", NULL },
    { "run", "\xff", "UTF-8" },
    { "step_min", "-5", NULL },
    { "step_min", "9223372036854775808", "64 bits" },
    { "step_min", " 1", "64 bits" },
    { "step_min", "1x", "64 bits" },
    { "step_min", "", "64 bits" },
    { "resolution", "4294967295", NULL },
    { "resolution", "4294967296", "4294967295" },
    { "resolution", "-1", "4294967295" },
    { "aggregate", "all", NULL },
    { "aggregate", "ALL", "unspecified, all, mean" },
    { "aggregate", "1", "unspecified, all, mean" },
    { "whole_run", "true", NULL },
    { "whole_run", "yes", "true or false" },
    { "layers", "a", NULL },
    { "nothing", "1", "known are: run, layers, statistics" },
};

START_TEST(a_parameter_is_taken_or_refused_by_name)
{
    ProtobufCMessage *message = json_message_new(&fire__v1__query_request__descriptor);
    struct fire_error error = { 0 };
    const enum fire_status status =
        json_message_set(message, parameters[_i].name, parameters[_i].value, 4, &error);

    if (parameters[_i].wrong) {
        ck_assert_int_eq(status, FIRE_BAD_REQUEST);
        ck_assert_str_eq(error.field, parameters[_i].name);
        ck_assert_msg(strstr(error.message, parameters[_i].wrong) != NULL, "%s", error.message);
    } else {
        ck_assert_msg(status == FIRE_OK, "%s", error.message);
    }
    protobuf_c_message_free_unpacked(message, NULL);
}
END_TEST

/* Whatever a stranger calls a field, the refusal is one line of UTF-8. */
static const char *const names_of_strangers[] = { "no\nsuch", "no\r\nsuch", "\xff\xc3(",
                                                  "\x1b[2J" };

START_TEST(a_refusal_stays_one_line)
{
    ProtobufCMessage *message = json_message_new(&fire__v1__query_request__descriptor);
    struct fire_error error = { 0 };

    ck_assert_int_eq(json_message_set(message, names_of_strangers[_i], "1", 4, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_ptr_null(strpbrk(error.message, "\r\n\x1b"));
    ck_assert_ptr_null(strpbrk(error.field, "\r\n\x1b"));
    ck_assert(json_is_utf8(error.message));
    ck_assert(json_is_utf8(error.field));
    protobuf_c_message_free_unpacked(message, NULL);
}
END_TEST

START_TEST(parameters_become_fields)
{
    ProtobufCMessage *message = json_message_new(&fire__v1__query_request__descriptor);
    Fire__V1__QueryRequest *query = (Fire__V1__QueryRequest *)message;
    struct fire_error error = { 0 };

    ck_assert_int_eq(json_message_set(message, "run", "first", 4, &error), FIRE_OK);
    ck_assert_int_eq(json_message_set(message, "run", "second", 4, &error), FIRE_OK);
    ck_assert_int_eq(json_message_set(message, "step_min", "-5", 4, &error), FIRE_OK);
    ck_assert_int_eq(json_message_set(message, "aggregate", "mean", 4, &error), FIRE_OK);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(json_message_set(message, "layers", i % 2 ? "odd" : "even", 4, &error),
                         FIRE_OK);
    ck_assert_int_eq(json_message_set(message, "layers", "fifth", 4, &error), FIRE_BAD_REQUEST);
    ck_assert_str_eq(query->run, "second");
    ck_assert_int_eq(query->step_min, -5);
    ck_assert_int_eq(query->aggregate, FIRE__V1__AGGREGATE__AGGREGATE_MEAN);
    ck_assert_uint_eq(query->n_layers, 4);
    ck_assert_str_eq(query->layers[3], "odd");
    protobuf_c_message_free_unpacked(message, NULL);
}
END_TEST

START_TEST(a_report_is_read_and_written_back)
{
    static const char text[] =
        "{\"run\":\"r\",\"info\":{\"name\":\"n\",\"framework\":\"\",\"labels\":{\"a\":\"b\"}},"
        "\"series\":[{\"layer\":\"l\",\"statistic\":\"dfi\",\"steps\":[1,2,3],"
        "\"values\":[0.5,1,1e-08],\"shape\":[4,4]}],\"time_ms\":7}";
    ProtobufCMessage *message = NULL;
    struct fire_error error = { 0 };

    ck_assert_msg(json_message_parse(&fire__v1__report_request__descriptor, text, strlen(text),
                                     &message, &error) == FIRE_OK,
                  "%s", error.message);
    assert_json(message, 17, text);
    protobuf_c_message_free_unpacked(message, NULL);
}
END_TEST

static const struct {
    const char *text, *field;
} bodies[] = {
    { "", "body" },
    { "[]", "body" },
    { "{\"run\":\"r\"", "body" },
    { "{\"run\":\"a\",\"run\":\"b\"}", "body" },
    { "{\"run\":7}", "run" },
    { "{\"run\":null}", "run" },
    { "{\"run\":\"\\u0000\"}", "body" },
    { "{\"path\":\"x\"}", "path" },
    { "{\"series\":{}}", "series" },
    { "{\"series\":[7]}", "body" },
    { "{\"series\":[{\"steps\":[1.5]}]}", "steps" },
    { "{\"series\":[{\"steps\":[[1]]}]}", "steps" },
    { "{\"series\":[{\"values\":[\"NaN\"]}]}", "values" },
    { "{\"info\":{\"labels\":{\"a\":1}}}", "value" },
    { "{\"info\":{\"labels\":[{\"key\":1}]}}", "key" },
    { "{\"time_ms\":1e400}", "body" },
};

START_TEST(a_wrong_body_names_its_field_and_leaves_nothing)
{
    ProtobufCMessage *message = NULL;
    struct fire_error error = { 0 };

    ck_assert_int_eq(json_message_parse(&fire__v1__report_request__descriptor, bodies[_i].text,
                                        strlen(bodies[_i].text), &message, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_msg(strcmp(error.field, bodies[_i].field) == 0, "%s: %s: %s", bodies[_i].text,
                  error.field, error.message);
    ck_assert_ptr_null(message);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json_message");
    TCase *tests = tcase_create("json_message");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(tests, a_number_is_exact_or_rounded_as_asked, 0,
                        sizeof(numbers) / sizeof(numbers[0]));
    tcase_add_test(tests, numbers_of_64_bits_stay_exact);
    tcase_add_test(tests, maps_enums_and_messages_have_their_own_forms);
    tcase_add_test(tests, a_text_past_its_limit_is_refused_whole);
    tcase_add_loop_test(tests, a_parameter_is_taken_or_refused_by_name, 0,
                        sizeof(parameters) / sizeof(parameters[0]));
    tcase_add_loop_test(tests, a_refusal_stays_one_line, 0,
                        sizeof(names_of_strangers) / sizeof(names_of_strangers[0]));
    tcase_add_test(tests, parameters_become_fields);
    tcase_add_test(tests, a_report_is_read_and_written_back);
    tcase_add_loop_test(tests, a_wrong_body_names_its_field_and_leaves_nothing, 0,
                        sizeof(bodies) / sizeof(bodies[0]));
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
