/* http_session: tokens behind cookies. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http_session.h"

static void add(struct http_sessions *table, const char *token, char id[HTTP_SESSION_ID_BYTES])
{
    struct fire_error error = { 0 };

    ck_assert_int_eq(http_session_add(table, token, strlen(token), id, &error), FIRE_OK);
    ck_assert_uint_eq(strlen(id), HTTP_SESSION_ID_BYTES - 1);
}

START_TEST(an_id_stands_for_its_token_until_it_ends)
{
    struct http_sessions *table = http_sessions_open();
    char first[HTTP_SESSION_ID_BYTES], second[HTTP_SESSION_ID_BYTES];

    add(table, "one", first);
    add(table, "two", second);
    ck_assert_str_ne(first, second);
    ck_assert_str_eq(http_session_token(table, first), "one");
    ck_assert_str_eq(http_session_token(table, second), "two");
    http_session_end(table, first);
    http_session_end(table, "of nobody");
    ck_assert_ptr_null(http_session_token(table, first));
    ck_assert_str_eq(http_session_token(table, second), "two");
    http_sessions_close(table);
    http_sessions_close(NULL);
}
END_TEST

START_TEST(what_is_no_id_has_no_token)
{
    struct http_sessions *table = http_sessions_open();
    char id[HTTP_SESSION_ID_BYTES];

    add(table, "one", id);
    ck_assert_ptr_null(http_session_token(table, ""));
    id[5] = id[5] == '0' ? '1' : '0';
    ck_assert_ptr_null(http_session_token(table, id));
    id[5] = '\0';
    ck_assert_ptr_null(http_session_token(table, id));
    http_sessions_close(table);
}
END_TEST

/* The table does not grow: the oldest session ends. */
START_TEST(one_too_many_ends_the_oldest)
{
    struct http_sessions *table = http_sessions_open();
    char oldest[HTTP_SESSION_ID_BYTES], id[HTTP_SESSION_ID_BYTES];

    add(table, "oldest", oldest);
    for (unsigned i = 1; i < HTTP_SESSIONS_MAX; i++)
        add(table, "next", id);
    ck_assert_str_eq(http_session_token(table, oldest), "oldest");
    add(table, "last", id);
    ck_assert_ptr_null(http_session_token(table, oldest));
    ck_assert_str_eq(http_session_token(table, id), "last");
    http_sessions_close(table);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("http_session");
    TCase *tests = tcase_create("http_session");
    SRunner *runner;
    int failed;

    tcase_add_test(tests, an_id_stands_for_its_token_until_it_ends);
    tcase_add_test(tests, what_is_no_id_has_no_token);
    tcase_add_test(tests, one_too_many_ends_the_oldest);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
