/* Lines of the log: what is in them, that strangers' bytes cannot break them, that they never mix.
 */
#include "log.h"

#include <check.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES 4096

#define FIELDS(...) ((const struct log_field[]){ __VA_ARGS__, { .kind = LOG_END } })

/* What follows the time, which is always as long. */
static const char *after_time(const char *line)
{
    const char *place = strstr(line, "time=");

    ck_assert_ptr_nonnull(place);
    place += strlen("time=2026-01-01T00:00:00.000Z");
    ck_assert_int_eq(place[-1], 'Z');
    return place;
}

START_TEST(a_line_begins_with_event_level_and_time)
{
    char line[LINE_BYTES];
    const size_t bytes =
        log_line(LOG_LOGFMT, LOG_WARN, "batch_done",
                 FIELDS(LOG_U64("batch", 812), LOG_I64("shift", -3), LOG_F64("ms", 3.1),
                        LOG_BOOL("late", true), LOG_TEXT("tenant", "a-b.c")),
                 line, sizeof(line));

    ck_assert_uint_eq(bytes, strlen(line));
    ck_assert_int_eq(strncmp(line, "batch_done level=warn time=2", 28), 0);
    ck_assert_str_eq(after_time(line), " batch=812 shift=-3 ms=3.1 late=true tenant=a-b.c\n");
}
END_TEST

/* Text from callers, as logfmt shows it; the JSON reader must give back what JSON was given. */
static const struct {
    const char *value;
    const char *logfmt;
    const char *json; /* what a JSON reader sees */
} values[] = {
    { "plain", "plain", "plain" },
    { "", "\"\"", "" },
    { "two words", "\"two words\"", "two words" },
    { "a=b", "\"a=b\"", "a=b" },
    { "say \"hi\"", "\"say \\\"hi\\\"\"", "say \"hi\"" },
    { "back\\slash", "\"back\\\\slash\"", "back\\slash" },
    { "line\nbreak", "\"line\\nbreak\"", "line\nbreak" },
    { "\x1b[31mred", "\"\\u001b[31mred\"", "\x1b[31mred" },
    { "\x7f", "\"\\u007f\"", "\x7f" },
    { "\xc2\x9b", "\"\\u009b\"", "\xc2\x9b" }, /* a control in two bytes */
    { "\xc3\xa9t\xc3\xa9", "\"\xc3\xa9t\xc3\xa9\"", "\xc3\xa9t\xc3\xa9" },
    { "\xff\xfe", "\"\xef\xbf\xbd\xef\xbf\xbd\"", "\xef\xbf\xbd\xef\xbf\xbd" },
    { "\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\"", "\xef\xbf\xbd\xef\xbf\xbd" }, /* cut short */
    { "\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\"", "\xef\xbf\xbd\xef\xbf\xbd" }, /* overlong */
    { "\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"",
      "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" }, /* a surrogate */
};

START_TEST(no_value_breaks_a_line)
{
    char line[LINE_BYTES], want[LINE_BYTES];
    json_error_t error;
    json_t *object;

    log_line(LOG_LOGFMT, LOG_INFO, "event", FIELDS(LOG_TEXT("v", values[_i].value)), line,
             sizeof(line));
    snprintf(want, sizeof(want), " v=%s\n", values[_i].logfmt);
    ck_assert_str_eq(after_time(line), want);

    log_line(LOG_JSON, LOG_INFO, "event", FIELDS(LOG_TEXT("v", values[_i].value)), line,
             sizeof(line));
    ck_assert_ptr_eq(strchr(line, '\n'), line + strlen(line) - 1);
    object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(object != NULL, "%s in %s", error.text, line);
    ck_assert_str_eq(json_string_value(json_object_get(object, "v")), values[_i].json);
    ck_assert_str_eq(json_string_value(json_object_get(object, "event")), "event");
    ck_assert_str_eq(json_string_value(json_object_get(object, "level")), "info");
    json_decref(object);
}
END_TEST

START_TEST(json_keeps_the_types)
{
    char line[LINE_BYTES];
    json_t *object;

    log_line(LOG_JSON, LOG_DEBUG, "event",
             FIELDS(LOG_U64("most", UINT64_MAX / 2), LOG_F64("nan", NAN), LOG_F64("half", 0.5),
                    LOG_BOOL("no", false), LOG_TEXT("absent", NULL)),
             line, sizeof(line));
    object = json_loads(line, 0, NULL);
    ck_assert_ptr_nonnull(object);
    ck_assert_int_eq(json_integer_value(json_object_get(object, "most")), INT64_MAX);
    ck_assert(json_is_null(json_object_get(object, "nan")));
    ck_assert(json_real_value(json_object_get(object, "half")) == 0.5);
    ck_assert(json_is_false(json_object_get(object, "no")));
    ck_assert_ptr_null(json_object_get(object, "absent"));
    json_decref(object);
}
END_TEST

/* Whatever the room, the line is whole fields, says when it was cut, and stays inside. */
START_TEST(a_line_is_cut_at_a_field)
{
    const struct log_field *fields =
        FIELDS(LOG_TEXT("first", "abcdefgh"), LOG_TEXT("second", "a \"quoted\" one"),
               LOG_U64("third", 123456));

    for (size_t room = 0; room < 256; room++) {
        char line[300];
        size_t bytes;

        memset(line, 'X', sizeof(line));
        bytes = log_line((enum log_format)_i, LOG_INFO, "event", fields, line, room);
        for (size_t i = room; i < sizeof(line); i++)
            ck_assert_int_eq(line[i], 'X');
        if (bytes == 0)
            continue;
        ck_assert_uint_lt(bytes, room);
        ck_assert_uint_eq(bytes, strlen(line));
        ck_assert_int_eq(line[bytes - 1], '\n');
        ck_assert_int_eq(strstr(line, "third") == NULL, strstr(line, "cut") != NULL);
        if (_i == LOG_JSON) {
            json_t *object = json_loads(line, 0, NULL);

            ck_assert_msg(object != NULL, "%s", line);
            json_decref(object);
        }
        if (room == 255)
            ck_assert_ptr_nonnull(strstr(line, "third"));
    }
}
END_TEST

START_TEST(levels_have_names)
{
    static const char *const names[] = { "error", "warn", "info", "debug" };
    enum log_level level = LOG_INFO;

    for (int i = 0; i < 4; i++) {
        ck_assert(log_level_parse(names[i], &level));
        ck_assert_int_eq((int)level, i);
        ck_assert_str_eq(log_level_name((enum log_level)i), names[i]);
    }
    ck_assert(!log_level_parse("INFO", &level));
    ck_assert(!log_level_parse("", &level));
    ck_assert_int_eq((int)level, LOG_DEBUG);
}
END_TEST

#define THREADS 4
#define LINES   200

static void *write_lines(void *data)
{
    const char *name = data;

    for (uint64_t i = 0; i < LINES; i++)
        log_info("thread_line", LOG_TEXT("name", name), LOG_U64("number", i));
    return NULL;
}

/* Runs `work` with stderr in a file, and returns what was written. */
static char *captured(void (*work)(void))
{
    FILE *file = tmpfile();
    const int saved = dup(STDERR_FILENO);
    char *text = calloc(1, 1 << 20);

    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(text);
    ck_assert_int_ge(saved, 0);
    ck_assert_int_ge(dup2(fileno(file), STDERR_FILENO), 0);
    work();
    ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
    close(saved);
    rewind(file);
    ck_assert_uint_lt(fread(text, 1, (1 << 20) - 1, file), (1 << 20) - 1);
    fclose(file);
    return text;
}

static void many_threads(void)
{
    static char names[THREADS][2] = { "a", "b", "c", "d" };
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, write_lines, names[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

START_TEST(lines_of_threads_never_mix)
{
    int seen[THREADS] = { 0 };
    char *text, *rest, *line;

    text = captured(many_threads);
    rest = text;
    while ((line = strsep(&rest, "\n")) != NULL && *line) {
        char name, end;
        int number;

        ck_assert_int_eq(sscanf(after_time(line), " name=%c number=%d%c", &name, &number, &end), 2);
        ck_assert_int_eq(number, seen[name - 'a']++);
    }
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(seen[i], LINES);
    free(text);
}
END_TEST

static int calls;

static uint64_t counted(void)
{
    return (uint64_t)++calls;
}

static void all_levels(void)
{
    log_set_level(LOG_WARN);
    errno = EDOM;
    log_error("one");
    log_warn("two", LOG_U64("count", counted()));
    log_info("three", LOG_U64("count", counted()));
    log_debug("four", LOG_U64("count", counted()));
    ck_assert_int_eq(errno, EDOM);
    log_set_level(LOG_DEBUG);
    log_debug("five");
    log_set_level(LOG_INFO);
}

/* What is not logged is not computed either. */
START_TEST(a_level_hides_those_after_it)
{
    char *text;

    calls = 0;
    text = captured(all_levels);
    ck_assert_ptr_nonnull(strstr(text, "one level=error"));
    ck_assert_ptr_nonnull(strstr(text, "two level=warn"));
    ck_assert_ptr_null(strstr(text, "three"));
    ck_assert_ptr_null(strstr(text, "four"));
    ck_assert_ptr_nonnull(strstr(text, "five level=debug"));
    ck_assert_int_eq(calls, 1);
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *lines = tcase_create("lines");
    SRunner *runner;
    int failed;

    tcase_add_test(lines, a_line_begins_with_event_level_and_time);
    tcase_add_loop_test(lines, no_value_breaks_a_line, 0, sizeof(values) / sizeof(values[0]));
    tcase_add_test(lines, json_keeps_the_types);
    tcase_add_loop_test(lines, a_line_is_cut_at_a_field, LOG_LOGFMT, LOG_JSON + 1);
    tcase_add_test(lines, levels_have_names);
    tcase_add_test(lines, lines_of_threads_never_mix);
    tcase_add_test(lines, a_level_hides_those_after_it);
    suite_add_tcase(suite, lines);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
