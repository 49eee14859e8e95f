/* log: a line is built on the stack and written by one write(2).
 *
 * A line has at most LINE_BYTES bytes, which is PIPE_BUF: writes of that size to a pipe are never
 * mixed with those of other threads or processes.
 *
 * Values are bytes from strangers. What leaves here is valid UTF-8 without control characters, so
 * no value can begin a line or reach a terminal's escape sequences. Event names and keys are ours
 * and are written as they are. */
#include "log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "utf8.h"

#define LINE_BYTES   4096
#define LINE_TAIL    16 /* room kept for the longest ending: ,"cut":true}\n and its NUL */
#define NUMBER_BYTES 40
#define TIME_BYTES   40
#define WRITE_TRIES  8              /* a line to a full file or a stuck terminal is given up */
#define SUBSTITUTE   "\xef\xbf\xbd" /* U+FFFD, for bytes that are not UTF-8 */
#define DELETE       0x7f

static atomic_int current_level = LOG_INFO;
static atomic_int current_format = LOG_LOGFMT;

static const char *const level_names[] = { "error", "warn", "info", "debug" };

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

enum log_level log_get_level(void)
{
    return (enum log_level)atomic_load_explicit(&current_level, memory_order_relaxed);
}

void log_set_format(enum log_format format)
{
    atomic_store_explicit(&current_format, (int)format, memory_order_relaxed);
}

bool log_level_parse(const char *text, enum log_level *level)
{
    for (size_t i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++)
        if (strcmp(text, level_names[i]) == 0) {
            *level = (enum log_level)i;
            return true;
        }
    return false;
}

const char *log_level_name(enum log_level level)
{
    return level_names[level];
}

/* A line being built. `used` never passes `limit`; once something did not fit, `full` stays. */
struct line {
    char *text;
    size_t limit;
    size_t used;
    bool full;
};

static void line_put(struct line *line, const char *bytes, size_t count)
{
    if (line->full || count > line->limit - line->used) {
        line->full = true;
        return;
    }
    memcpy(line->text + line->used, bytes, count);
    line->used += count;
}

static void line_put_text(struct line *line, const char *text)
{
    line_put(line, text, strlen(text));
}

/* In quotes, escaped as JSON wants it; logfmt readers take the same. */
static void line_put_quoted(struct line *line, const char *value)
{
    const char *text = value;

    line_put_text(line, "\"");
    while (*text && !line->full) {
        const size_t bytes = utf8_bytes(text);
        char escape[8];

        if (bytes == 0) {
            line_put_text(line, SUBSTITUTE);
        } else if (utf8_is_control(text, bytes)) {
            snprintf(escape, sizeof(escape), "\\u%04x", (unsigned char)text[bytes - 1]);
            line_put_text(line, *text == '\n' ? "\\n" : *text == '\t' ? "\\t" : escape);
        } else {
            if (*text == '"' || *text == '\\')
                line_put_text(line, "\\");
            line_put(line, text, bytes);
        }
        text += bytes ? bytes : 1;
    }
    line_put_text(line, "\"");
}

/* Whether a logfmt value can stand without quotes. */
static bool is_plain(const char *value)
{
    const unsigned char *text = (const unsigned char *)value;

    if (*text == '\0')
        return false;
    while (*text) {
        if (*text <= ' ' || *text >= DELETE || strchr("\"=\\", *text))
            return false;
        text++;
    }
    return true;
}

static void line_put_double(struct line *line, enum log_format format, double value)
{
    char number[NUMBER_BYTES];

    if (format == LOG_JSON && !isfinite(value)) {
        line_put_text(line, "null"); /* JSON has no other word for it */
        return;
    }
    snprintf(number, sizeof(number), "%.6g", value);
    line_put_text(line, number);
}

static void line_put_value(struct line *line, enum log_format format, const struct log_field *field)
{
    char number[NUMBER_BYTES];

    switch (field->kind) {
    case LOG_END: break;
    case LOG_KIND_TEXT:
        if (format == LOG_LOGFMT && is_plain(field->text))
            line_put_text(line, field->text);
        else
            line_put_quoted(line, field->text);
        break;
    case LOG_KIND_U64:
        snprintf(number, sizeof(number), "%" PRIu64, field->u64);
        line_put_text(line, number);
        break;
    case LOG_KIND_I64:
        snprintf(number, sizeof(number), "%" PRId64, field->i64);
        line_put_text(line, number);
        break;
    case LOG_KIND_F64: line_put_double(line, format, field->f64); break;
    case LOG_KIND_BOOL: line_put_text(line, field->flag ? "true" : "false"); break;
    }
}

/* Adds one field whole, or nothing and returns false. */
static bool line_put_field(struct line *line, enum log_format format, const struct log_field *field)
{
    const size_t before = line->used;

    line_put_text(line, format == LOG_JSON ? ",\"" : " ");
    line_put_text(line, field->key);
    line_put_text(line, format == LOG_JSON ? "\":" : "=");
    line_put_value(line, format, field);
    if (!line->full)
        return true;
    line->used = before;
    return false;
}

/* UTC with milliseconds, as RFC 3339 writes it. */
static void write_time(char text[TIME_BYTES])
{
    struct timespec now;
    struct tm parts;
    size_t length;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    length = strftime(text, TIME_BYTES, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(text + length, TIME_BYTES - length, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

size_t log_line(enum log_format format, enum log_level level, const char *event,
                const struct log_field *fields, char *text, size_t text_bytes)
{
    struct line line = { .text = text };
    const bool json = format == LOG_JSON;
    char time_text[TIME_BYTES];
    bool cut = false;

    if (text_bytes == 0)
        return 0;
    text[0] = '\0';
    if (text_bytes <= LINE_TAIL)
        return 0;
    line.limit = text_bytes - LINE_TAIL;

    write_time(time_text);
    line_put_text(&line, json ? "{\"event\":\"" : "");
    line_put_text(&line, event);
    line_put_text(&line, json ? "\",\"level\":\"" : " level=");
    line_put_text(&line, log_level_name(level));
    line_put_text(&line, json ? "\",\"time\":\"" : " time=");
    line_put_text(&line, time_text);
    line_put_text(&line, json ? "\"" : "");
    if (line.full) {
        text[0] = '\0';
        return 0;
    }
    for (; fields->kind != LOG_END && !cut; fields++)
        if (fields->kind != LOG_KIND_TEXT || fields->text)
            cut = !line_put_field(&line, format, fields);

    line.full = false;
    line.limit = text_bytes - 1;
    if (cut)
        line_put_text(&line, json ? ",\"cut\":true" : " cut=true");
    line_put_text(&line, json ? "}\n" : "\n");
    text[line.used] = '\0';
    return line.used;
}

void log_write(enum log_level level, const char *event, const struct log_field *fields)
{
    const enum log_format format =
        (enum log_format)atomic_load_explicit(&current_format, memory_order_relaxed);
    const int saved_errno = errno; /* logging a failure must not change what is read after it */
    char text[LINE_BYTES + 1];
    size_t bytes = log_line(format, level, event, fields, text, sizeof(text));
    const char *rest = text;

    for (int i = 0; bytes > 0 && i < WRITE_TRIES; i++) {
        const ssize_t written = write(STDERR_FILENO, rest, bytes);

        if (written < 0 && errno != EINTR)
            break; /* nobody to tell */
        if (written > 0) {
            rest += written;
            bytes -= (size_t)written;
        }
    }
    errno = saved_errno;
}
