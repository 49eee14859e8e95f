/* yaml_file: libcyaml tells what is wrong only through its log, as an error line and then a trace
 * of "in mapping field 'x' (line: 3, column: 7)". Both are caught here and put into one sentence.
 *
 * The position libcyaml gives is the end of what it had read before the mistake, so for a key the
 * line is looked up from there in the text. */
#include "yaml_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "options.h"
#include "utf8.h"

#define MESSAGE_BYTES 256
#define NAMES_MAX     128 /* keys of a schema that may be suggested */
#define DEPTH_MAX     4   /* of mappings and lists in a schema */

static enum fire_status fail_errno(struct fire_error *error, const char *path, const char *what)
{
    return fire_fail(error, errno == ENOENT ? FIRE_NOT_FOUND : FIRE_IO, path,
                     "%s: cannot %s: %s; check the path and its rights", path, what,
                     strerror(errno));
}

/* Reads what `descriptor` has; a file that grows meanwhile is cut off at the limit. */
static ssize_t read_all(int descriptor, char *text, size_t bytes_max)
{
    size_t used = 0;

    while (used < bytes_max) {
        const ssize_t count = read(descriptor, text + used, bytes_max - used);

        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return -1;
        if (count == 0)
            break;
        used += (size_t)count;
    }
    return (ssize_t)used;
}

enum fire_status yaml_file_read(const char *path, char **text, size_t *bytes, struct stat *state,
                                struct fire_error *error)
{
    /* Not blocking: opening a pipe that nobody writes would stop the daemon. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum fire_status status = FIRE_OK;
    ssize_t count = 0;

    *text = NULL;
    *bytes = 0;
    if (descriptor < 0)
        return fail_errno(error, path, "open it");
    if (fstat(descriptor, state) != 0) {
        status = fail_errno(error, path, "look at it");
    } else if (!S_ISREG(state->st_mode)) {
        status = fire_fail(error, FIRE_BAD_REQUEST, path, "%s is not a regular file", path);
    } else if (state->st_size > (off_t)YAML_BYTES_MAX) {
        status = fire_fail(error, FIRE_BAD_REQUEST, path, "%s has %lld bytes, more than %u", path,
                           (long long)state->st_size, YAML_BYTES_MAX);
    } else if ((*text = calloc(1, YAML_BYTES_MAX + 1)) == NULL) {
        status = fire_fail_memory(error, YAML_BYTES_MAX + 1);
    } else if ((count = read_all(descriptor, *text, YAML_BYTES_MAX)) < 0) {
        status = fail_errno(error, path, "read it");
    }
    close(descriptor);
    if (status != FIRE_OK) {
        free(*text);
        *text = NULL;
        return status;
    }
    *bytes = (size_t)count;
    return FIRE_OK;
}

/* What libcyaml said about one load. */
struct report {
    char message[MESSAGE_BYTES]; /* its first complaint */
    char field[MESSAGE_BYTES];   /* the innermost field of the trace */
    uint32_t line;               /* the innermost place of the trace */
    bool traced;
};

/* "  in mapping field 'beta' (line: 1, column: 7)" */
static void take_trace(struct report *report, const char *text)
{
    const char *place = strstr(text, "(line: ");
    const char *name = strstr(text, "field '");
    unsigned line;

    if (!report->traced && place && sscanf(place, "(line: %u", &line) == 1)
        report->line = line;
    report->traced = true;
    if (name && !report->field[0]) {
        name += strlen("field '");
        snprintf(report->field, sizeof(report->field), "%.*s", (int)strcspn(name, "'"), name);
    }
}

__attribute__((format(printf, 3, 0))) static void on_log(cyaml_log_t level, void *context,
                                                         const char *format, va_list arguments)
{
    struct report *report = context;
    char text[MESSAGE_BYTES];
    const char *start = text;

    if (level < CYAML_LOG_WARNING)
        return;
    vsnprintf(text, sizeof(text), format, arguments);
    text[strcspn(text, "\n")] = '\0';
    if (strncmp(text, "  in ", strlen("  in ")) == 0) {
        take_trace(report, text);
        return;
    }
    if (strncmp(start, "Load: ", strlen("Load: ")) == 0)
        start += strlen("Load: ");
    if (!report->message[0] && strncmp(start, "Backtrace", strlen("Backtrace")) != 0)
        snprintf(report->message, sizeof(report->message), "%s", start);
}

uint32_t yaml_file_line(const char *text, size_t bytes, uint32_t from, const char *key)
{
    const size_t key_bytes = strlen(key);
    const char *const end = text + bytes;
    uint32_t line = 1;

    if (key_bytes == 0)
        return 0;
    for (const char *start = text; start < end; line++) {
        const char *stop = memchr(start, '\n', (size_t)(end - start));
        const size_t length = (size_t)((stop ? stop : end) - start);
        const char *found = line < from ? NULL : memmem(start, length, key, key_bytes);

        if (found && (found == start || strchr(" \t-{,\"'", found[-1]))) {
            const char *after = found + key_bytes;

            while (after < start + length && strchr(" \"'", *after))
                after++;
            if (after < start + length && *after == ':' && !memchr(start, '#', found - start))
                return line;
        }
        start += length + 1;
    }
    return 0;
}

/* The keys of a mapping and of what lies inside it. */
static size_t collect_names(const struct cyaml_schema_value *schema, const char *names[NAMES_MAX],
                            size_t count, int depth)
{
    if (depth == 0)
        return count;
    if (schema->type == CYAML_SEQUENCE)
        return collect_names(schema->sequence.entry, names, count, depth - 1);
    if (schema->type != CYAML_MAPPING)
        return count;
    for (const struct cyaml_schema_field *field = schema->mapping.fields; field->key; field++) {
        if (count < NAMES_MAX)
            names[count++] = field->key;
        count = collect_names(&field->value, names, count, depth - 1);
    }
    return count;
}

/* "fired.yaml:12", or "fired.yaml" when the line is not known. */
static void write_place(const char *name, uint32_t line, char place[MESSAGE_BYTES])
{
    if (line)
        snprintf(place, MESSAGE_BYTES, "%.200s:%u", name, line);
    else
        snprintf(place, MESSAGE_BYTES, "%.200s", name);
}

void yaml_file_one_line(struct fire_error *error)
{
    if (error)
        utf8_make_printable(error->message);
}

/* libcyaml's words for kinds of values, in ours. */
static const char *kind_words(const char *message)
{
    if (strncmp(message, "Expecting STRING", strlen("Expecting STRING")) == 0)
        return "one value";
    if (strncmp(message, "Expecting SEQUENCE", strlen("Expecting SEQUENCE")) == 0)
        return "a list, such as [a, b]";
    if (strncmp(message, "Expecting MAPPING", strlen("Expecting MAPPING")) == 0)
        return "lines of the form key: value";
    return NULL;
}

static enum fire_status fail_key(const char *name, const char *text, size_t bytes,
                                 const struct cyaml_schema_value *schema,
                                 const struct report *report, struct fire_error *error)
{
    const char *const key = report->message + strlen("Unexpected key: ");
    const char *names[NAMES_MAX];
    const size_t count = collect_names(schema, names, 0, DEPTH_MAX);
    const char *nearest = fire_nearest_name(key, names, count);
    char place[MESSAGE_BYTES];

    write_place(name, yaml_file_line(text, bytes, report->line, key), place);
    if (nearest)
        return fire_fail(error, FIRE_BAD_REQUEST, key, "%s: unknown key %s; did you mean %s?",
                         place, key, nearest);
    return fire_fail(error, FIRE_BAD_REQUEST, key, "%s: unknown key %s; correct it or take it out",
                     place, key);
}

static enum fire_status fail_report(const char *name, const char *text, size_t bytes,
                                    const struct cyaml_schema_value *schema, cyaml_err_t result,
                                    struct report *report, struct fire_error *error)
{
    const char *words = kind_words(report->message);
    const char *field = report->field;
    char place[MESSAGE_BYTES];

    if (result == CYAML_ERR_OOM)
        return fire_fail_memory(error, bytes);
    utf8_make_printable(report->message);
    utf8_make_printable(report->field);
    if (result == CYAML_ERR_INVALID_KEY &&
        strncmp(report->message, "Unexpected key: ", strlen("Unexpected key: ")) == 0)
        return fail_key(name, text, bytes, schema, report, error);

    write_place(name, report->line, place);
    if (words)
        return fire_fail(error, FIRE_BAD_REQUEST, field, "%s: %s%smust be %s", place, field,
                         field[0] ? " " : "the file ", words);
    if (strncmp(report->message, "libyaml: ", strlen("libyaml: ")) == 0)
        return fire_fail(error, FIRE_BAD_REQUEST, field, "%s: this is not YAML, near here: %s",
                         place, report->message + strlen("libyaml: "));
    if (result == CYAML_ERR_ALIAS)
        return fire_fail(error, FIRE_BAD_REQUEST, field,
                         "%s: aliases (*name) are not taken; write the value out", place);
    return fire_fail(error, FIRE_BAD_REQUEST, field, "%s: %s%s%s", place, field,
                     field[0] ? ": " : "",
                     report->message[0] ? report->message : cyaml_strerror(result));
}

static const struct cyaml_config base = {
    .mem_fn = cyaml_mem,
    .log_fn = on_log,
    .log_level = CYAML_LOG_WARNING,
    .flags = CYAML_CFG_NO_ALIAS,
};

enum fire_status yaml_file_load(const char *name, const char *text, size_t bytes,
                                const struct cyaml_schema_value *schema, void **data,
                                struct fire_error *error)
{
    struct cyaml_config config = base;
    struct report report = { .line = 0 };
    cyaml_err_t result;

    *data = NULL;
    if (bytes == 0)
        return FIRE_OK;
    config.log_ctx = &report;
    result = cyaml_load_data((const uint8_t *)text, bytes, &config, schema, data, NULL);
    if (result != CYAML_OK)
        return fail_report(name, text, bytes, schema, result, &report, error);
    if (report.message[0]) { /* a warning: something would be skipped */
        yaml_file_free(schema, *data);
        *data = NULL;
        return fire_fail(error, FIRE_BAD_REQUEST, "", "%s: %s; keep one document", name,
                         report.message);
    }
    return FIRE_OK;
}

void yaml_file_free(const struct cyaml_schema_value *schema, void *data)
{
    struct report report = { .line = 0 };
    struct cyaml_config config = base;

    config.log_ctx = &report;
    if (data)
        (void)cyaml_free(&config, schema, data, 0); /* fails only on a NULL argument */
}
