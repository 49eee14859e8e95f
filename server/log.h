/* log: one event a line, as logfmt or JSON, on stderr. The only global of the daemon.
 *
 *     log_info("batch_done", LOG_U64("batch", id), LOG_F64("compute_ms", ms));
 *
 * error: a person must act. warn: a request suffered. info: the daemon's life. debug: one request's
 * life. Any thread; a line is written by one write(2), so lines never mix. */
#ifndef FIRED_LOG_H
#define FIRED_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
enum log_format { LOG_LOGFMT, LOG_JSON };

enum log_kind { LOG_END, LOG_KIND_TEXT, LOG_KIND_U64, LOG_KIND_I64, LOG_KIND_F64, LOG_KIND_BOOL };

struct log_field {
    enum log_kind kind;
    const char *key;
    union {
        const char *text; /* NULL leaves the field out */
        uint64_t u64;
        int64_t i64;
        double f64;
        bool flag;
    };
};

#define LOG_TEXT(name, value)                                                                      \
    {                                                                                              \
        .kind = LOG_KIND_TEXT, .key = (name), .text = (value)                                      \
    }
#define LOG_U64(name, value)                                                                       \
    {                                                                                              \
        .kind = LOG_KIND_U64, .key = (name), .u64 = (value)                                        \
    }
#define LOG_I64(name, value)                                                                       \
    {                                                                                              \
        .kind = LOG_KIND_I64, .key = (name), .i64 = (value)                                        \
    }
#define LOG_F64(name, value)                                                                       \
    {                                                                                              \
        .kind = LOG_KIND_F64, .key = (name), .f64 = (value)                                        \
    }
#define LOG_BOOL(name, value)                                                                      \
    {                                                                                              \
        .kind = LOG_KIND_BOOL, .key = (name), .flag = (value)                                      \
    }

void log_set_level(enum log_level level);
enum log_level log_get_level(void);
void log_set_format(enum log_format format);
bool log_level_parse(const char *text, enum log_level *level);
const char *log_level_name(enum log_level level);

/* `fields` ends with LOG_END. Use the macros. */
void log_write(enum log_level level, const char *event, const struct log_field *fields);

/* The text of one line without writing it, for tests: the event's name, level and time (UTC), then
 * the fields, then a newline and a NUL. Returns its length without the NUL; what does not fit is
 * cut at a field and the field `cut=true` says so. 0 when not even the first three fit. */
size_t log_line(enum log_format format, enum log_level level, const char *event,
                const struct log_field *fields, char *text, size_t text_bytes);

/* The fields begin at 1: something must stand before the comma that GNU's ## takes away when there
 * are none. */
#define log_at(level, event, ...)                                                                  \
    ((level) <= log_get_level()                                                                    \
         ? log_write((level), (event),                                                             \
                     &(const struct log_field[]){                                                  \
                         { .kind = LOG_END }, ##__VA_ARGS__, { .kind = LOG_END } }[1])             \
         : (void)0)
#define log_error(event, ...) log_at(LOG_ERROR, event, ##__VA_ARGS__)
#define log_warn(event, ...)  log_at(LOG_WARN, event, ##__VA_ARGS__)
#define log_info(event, ...)  log_at(LOG_INFO, event, ##__VA_ARGS__)
#define log_debug(event, ...) log_at(LOG_DEBUG, event, ##__VA_ARGS__)

#endif
