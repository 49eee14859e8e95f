/* Statuses on the wire: the bytes of google.rpc.Status are taken apart again by a walker of the
 * test's own. */
#include <check.h>
#include <grpc/grpc.h>
#include <stdlib.h>
#include <string.h>

#include "rpc_core.h"
#include "rpc_fixture.h"

static const struct {
    enum fire_status status;
    grpc_status_code code;
    const char *reason;
    const char *name;
} statuses[] = {
    { FIRE_OK, GRPC_STATUS_OK, "OK", "OK" },
    { FIRE_BAD_REQUEST, GRPC_STATUS_INVALID_ARGUMENT, "BAD_REQUEST", "INVALID_ARGUMENT" },
    { FIRE_NOT_FOUND, GRPC_STATUS_NOT_FOUND, "NOT_FOUND", "NOT_FOUND" },
    { FIRE_UNAUTHENTICATED, GRPC_STATUS_UNAUTHENTICATED, "UNAUTHENTICATED", "UNAUTHENTICATED" },
    { FIRE_DENIED, GRPC_STATUS_PERMISSION_DENIED, "DENIED", "PERMISSION_DENIED" },
    { FIRE_BUSY, GRPC_STATUS_RESOURCE_EXHAUSTED, "BUSY", "RESOURCE_EXHAUSTED" },
    { FIRE_NO_MEMORY, GRPC_STATUS_RESOURCE_EXHAUSTED, "NO_MEMORY", "RESOURCE_EXHAUSTED" },
    { FIRE_CANCELLED, GRPC_STATUS_CANCELLED, "CANCELLED", "CANCELLED" },
    { FIRE_TOO_LATE, GRPC_STATUS_DEADLINE_EXCEEDED, "TOO_LATE", "DEADLINE_EXCEEDED" },
    { FIRE_DRAINING, GRPC_STATUS_UNAVAILABLE, "DRAINING", "UNAVAILABLE" },
    { FIRE_DEVICE_LOST, GRPC_STATUS_UNAVAILABLE, "DEVICE_LOST", "UNAVAILABLE" },
    { FIRE_IO, GRPC_STATUS_INTERNAL, "INTERNAL", "INTERNAL" },
};

START_TEST(each_status_has_a_code_and_a_reason)
{
    ck_assert_int_eq(rpc_code(statuses[_i].status), statuses[_i].code);
    ck_assert_str_eq(rpc_reason(statuses[_i].status), statuses[_i].reason);
    ck_assert_str_eq(rpc_code_name(statuses[_i].code), statuses[_i].name);
}
END_TEST

static void details_of(grpc_status_code code, const struct fire_error *error,
                       const struct rpc_failure *failure, struct fixture_details *details)
{
    grpc_slice slice = rpc_error_details(code, error, failure);

    details_read(GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice), details);
    grpc_slice_unref(slice);
}

START_TEST(every_detail_arrives)
{
    struct fire_error error;
    struct fixture_details details;
    const struct rpc_failure failure = { .reason = "SHAPE_OVERFLOW",
                                         .field = "tensors[3].shape",
                                         .retry_ms = 12034 };

    (void)fire_fail(&error, FIRE_BAD_REQUEST, "shape", "rows times cols overflows");
    details_of(GRPC_STATUS_INVALID_ARGUMENT, &error, &failure, &details);
    ck_assert_uint_eq(details.code, GRPC_STATUS_INVALID_ARGUMENT);
    ck_assert_str_eq(details.message, "rows times cols overflows");
    ck_assert_str_eq(details.reason, "SHAPE_OVERFLOW");
    ck_assert_str_eq(details.domain, "fired");
    ck_assert_str_eq(details.field, "tensors[3].shape");
    ck_assert_str_eq(details.description, "rows times cols overflows");
    ck_assert(details.retry);
    ck_assert_uint_eq(details.retry_seconds, 12);
    ck_assert_uint_eq(details.retry_nanos, 34000000);
}
END_TEST

START_TEST(what_is_not_known_is_left_out)
{
    struct fixture_details details;

    details_of(GRPC_STATUS_INTERNAL, NULL, NULL, &details);
    ck_assert_uint_eq(details.code, GRPC_STATUS_INTERNAL);
    ck_assert_str_eq(details.message, "");
    ck_assert_str_eq(details.reason, "INTERNAL");
    ck_assert_str_eq(details.field, "");
    ck_assert(!details.retry);

    grpc_slice slice = rpc_error_details(GRPC_STATUS_OK, NULL, NULL);
    ck_assert_uint_eq(GRPC_SLICE_LENGTH(slice), 0);
}
END_TEST

/* The longest texts there can be fit the fixed buffers. */
START_TEST(the_longest_texts_fit)
{
    struct fire_error error = { .status = FIRE_BAD_REQUEST };
    struct fixture_details details;
    char field[4096];
    const struct rpc_failure failure = { .reason = field, .field = field, .retry_ms = UINT32_MAX };

    memset(error.message, 'm', sizeof(error.message) - 1);
    memset(field, 'f', sizeof(field) - 1);
    field[sizeof(field) - 1] = '\0';
    details_of(GRPC_STATUS_INVALID_ARGUMENT, &error, &failure, &details);
    ck_assert_str_eq(details.message, error.message);
    ck_assert_str_eq(details.description, error.message);
    ck_assert_uint_eq(strlen(details.field), FIRE_ERROR_FIELD_BYTES - 1);
    ck_assert_uint_eq(details.retry_seconds, UINT32_MAX / 1000);
}
END_TEST

/* Protobuf strings are UTF-8; names of tensors come from callers and may be cut in the middle. */
static const struct {
    const char *text;
    const char *clean;
} texts[] = {
    { "", "" },
    { "plain", "plain" },
    { "gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f" },
    { "\xe2\x89\xa4 1", "\xe2\x89\xa4 1" },
    { "\xf0\x9f\x94\xa5", "\xf0\x9f\x94\xa5" },
    { "cut \xe2\x89", "cut ??" },
    { "cut \xc3", "cut ?" },
    { "\xff\xfe", "??" },
    { "\xc0\x80", "??" },           /* an overlong zero */
    { "\xe0\x80\xaf", "???" },      /* an overlong slash */
    { "\xed\xa0\x80", "???" },      /* a surrogate */
    { "\xf4\x90\x80\x80", "????" }, /* beyond U+10FFFF */
    { "\xf0\x80\x80\xaf", "????" }, /* overlong */
    { "\x80 lone", "? lone" },
};

START_TEST(what_is_not_utf8_becomes_question_marks)
{
    char text[64];

    strcpy(text, texts[_i].text);
    rpc_text_clean(text);
    ck_assert_str_eq(text, texts[_i].clean);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_error");
    TCase *tests = tcase_create("rpc_error");
    SRunner *runner = srunner_create(suite);

    suite_add_tcase(suite, tests);
    tcase_add_loop_test(tests, each_status_has_a_code_and_a_reason, 0,
                        sizeof(statuses) / sizeof(statuses[0]));
    tcase_add_test(tests, every_detail_arrives);
    tcase_add_test(tests, what_is_not_known_is_left_out);
    tcase_add_test(tests, the_longest_texts_fit);
    tcase_add_loop_test(tests, what_is_not_utf8_becomes_question_marks, 0,
                        sizeof(texts) / sizeof(texts[0]));
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
