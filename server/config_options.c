/* config_options: the one table. Defaults, ranges, file keys, variables, flags, help,
 * --print-config and deploy/fired.yaml all come from it.
 *
 * A default is text and goes through the same door as every other value, so it is in range too. */
#include "config_options.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

#define SHOWN_BYTES 60 /* of a refused value in a message */
#define KIB         1024.0
#define MIB         (1024.0 * KIB)
#define GIB         (1024.0 * MIB)
#define TIB         (1024.0 * GIB)

#define MEMBER(member) offsetof(struct config, member)
#define COUNT(member, low, high, standard, words)                                                  \
    .name = #member, .kind = CONFIG_U32, .offset = MEMBER(member), .minimum = (low),               \
    .maximum = (high), .value = (standard), .meaning = (words)
#define SIZE(member, low, high, standard, words)                                                   \
    .name = #member, .kind = CONFIG_BYTES, .offset = MEMBER(member), .minimum = (low),             \
    .maximum = (high), .value = (standard), .meaning = (words)
#define TEXT(member, standard, words)                                                              \
    .name = #member, .kind = CONFIG_TEXT, .offset = MEMBER(member), .value = (standard),           \
    .meaning = (words)
#define FOUND(member, where, words)                                                                \
    .name = #member, .kind = CONFIG_TEXT, .offset = MEMBER(member), .found = (where),              \
    .meaning = (words)

const struct config_option config_options[] = {
    { .name = "listen",
      .kind = CONFIG_LIST,
      .offset = MEMBER(listen),
      .found = "[127.0.0.1:8470, unix:<runtime_dir>/fired.sock]",
      .meaning = "gRPC addresses: host:port, [::1]:port, unix:PATH; port 0 picks a free one" },
    { TEXT(http, "127.0.0.1:8471", "HTTP address for metrics and health, or off") },
    { FOUND(state_dir, "$STATE_DIRECTORY, $XDG_STATE_HOME/fired, ~/.local/state/fired",
            "folder of the history and of the locks of ports") },
    { FOUND(runtime_dir, "$RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/fired, /tmp/fired-<uid>",
            "folder of the default unix socket and of the locks of sockets") },
    { .name = "insecure_anywhere",
      .kind = CONFIG_SENTENCE,
      .offset = MEMBER(insecure_anywhere),
      .value = "",
      .meaning = "to listen beyond loopback without TLS, say: " CONFIG_INSECURE_SENTENCE },
    { COUNT(threads, 0, 512, "0", "threads that compute; 0: one a core") },
    { .name = "path",
      .kind = CONFIG_CHOICE,
      .offset = MEMBER(path),
      .choices = "auto portable avx2 avx512 amx",
      .value = "auto",
      .meaning = "instructions to compute with; auto: the best this processor has" },
    { COUNT(nice, 0, 19, "5", "how much less urgent computing is than answering") },
    { .name = "cuda",
      .kind = CONFIG_CHOICE,
      .offset = MEMBER(cuda),
      .choices = "auto off require",
      .value = "auto",
      .meaning = "GPUs: auto uses what is there, require refuses to serve without one" },
    { TEXT(cuda_plugin, "", "path of fire_cuda.so; empty: the one beside the daemon") },
    { COUNT(cuda_slots, 0, 8, "0", "batches on their way at once on a GPU; 0: 3") },
    { SIZE(cuda_slot_bytes, 0, 1 * TIB, "0",
           "GPU memory for each of them; 0: 512MiB, or a share of what is free") },
    { .name = "cuda_precision",
      .kind = CONFIG_CHOICE,
      .offset = MEMBER(cuda_precision),
      .choices = "f32 3xtf32 tf32-early",
      .value = "f32",
      .meaning = "products on a GPU: plain, three of TF32, or TF32 in all but the last steps" },
    { SIZE(memory_budget_bytes, 0, 64 * TIB, "0",
           "memory for matrices and messages; 0: a quarter of the machine's or the cgroup's") },
    { COUNT(slab_percent, 5, 90, "50", "part of the budget for matrices") },
    { COUNT(workspace_percent, 5, 90, "20",
            "part of it for computing, about 5 times the largest matrix; messages get the rest") },
    { SIZE(message_bytes_max, 64 * KIB, 1 * GIB, "16MiB", "largest message of a unary call") },
    { SIZE(tensor_bytes_max, 64 * KIB, 1 * TIB, "4GiB", "largest tensor of a stream") },
    { SIZE(stream_window_bytes, 1 * MIB, 16 * GIB, "64MiB",
           "bytes of one stream in flight before it must wait") },
    { COUNT(deadline_ms_default, 1, 86400000, "30000",
            "deadline of a unary call that brings none") },
    { COUNT(stream_deadline_ms_default, 1, 604800000, "3600000",
            "deadline of a stream that brings none") },
    { COUNT(deadline_ms_max, 0, 604800000, "86400000",
            "longest deadline that a caller can ask for; 0: any") },
    { COUNT(idle_ms_max, 100, 86400000, "30000",
            "a caller that neither reads nor sends for so long is cut off") },
    { SIZE(upload_bytes_per_s_min, 0, 1 * GIB, "16KiB",
           "an upload slower than that over idle_ms_max is cut off; 0: none is") },
    { COUNT(drain_ms_max, 0, 3600000, "30000", "time that running calls get after SIGTERM") },
    { COUNT(delay_us, 0, 1000000, "0",
            "a matrix waits so long for others of its shape; 0: only as long as that is faster") },
    { COUNT(batch_target_us, 50, 10000000, "5000", "device time that a batch is filled up to") },
    { COUNT(batch_matrices_max, 1, 65536, "4096", "matrices in a batch") },
    { COUNT(jobs_max, 16, 4194304, "65536", "matrices waiting, of all callers") },
    { COUNT(bulk_age_ms, 1, 3600000, "1000", "wait after which bulk work counts as normal") },
    { .name = "batching",
      .kind = CONFIG_BOOL,
      .offset = MEMBER(batching),
      .value = "true",
      .meaning = "put matrices of different callers into one batch" },
    { COUNT(calls_max, 1, 1048576, "4096", "calls at once, of all tenants") },
    { .name = "tenant_weight",
      .kind = CONFIG_F64,
      .offset = MEMBER(tenant.weight),
      .minimum = 0.001,
      .maximum = 1000.0,
      .value = "1",
      .meaning = "a tenant's share of device time against the others" },
    { .name = "tenant_bytes_max",
      .kind = CONFIG_BYTES,
      .offset = MEMBER(tenant.bytes_in_flight_max),
      .maximum = 64 * TIB,
      .value = "0",
      .meaning = "a tenant's bytes in flight; 0: half of the budget" },
    { .name = "tenant_streams_max",
      .kind = CONFIG_U32,
      .offset = MEMBER(tenant.streams_max),
      .minimum = 0,
      .maximum = 1048576,
      .value = "64",
      .meaning = "a tenant's streams at once" },
    { .name = "tenant_calls_max",
      .kind = CONFIG_U32,
      .offset = MEMBER(tenant.calls_max),
      .minimum = 1,
      .maximum = 1048576,
      .value = "1024",
      .meaning = "a tenant's calls at once, streams included; others wait" },
    { .name = "tenant_device_share_max",
      .kind = CONFIG_F64,
      .offset = MEMBER(tenant.device_share_max),
      .minimum = 0.001,
      .maximum = 1.0,
      .value = "1",
      .meaning = "most of the device time a tenant gets while others want it; 1: all" },
    { TEXT(tls_certificate, "", "PEM file of the server's certificate chain; empty: no TLS") },
    { TEXT(tls_key, "", "PEM file of its key") },
    { TEXT(tls_client_ca, "", "PEM file of a CA; given: callers need a certificate of it") },
    { TEXT(credentials, "", "YAML file of tokens, certificates and what they allow; empty: none") },
    { .name = "history",
      .kind = CONFIG_CHOICE,
      .offset = MEMBER(history),
      .choices = "sqlite postgres off",
      .value = "sqlite",
      .meaning = "where runs, points and events are kept" },
    { TEXT(history_file, "", "file of the SQLite history; empty: history.sqlite in state_dir") },
    { TEXT(history_url, "",
           "PostgreSQL of the history, as libpq takes it; keep passwords in its "
           "passfile") },
    { SIZE(history_queue_bytes, 1 * MIB, 16 * GIB, "64MiB",
           "points that wait to be written; more are refused") },
    { COUNT(history_retention_days, 0, 36500, "0",
            "runs and events not seen for so long are deleted; 0: none are") },
    { COUNT(history_downsample_days, 0, 36500, "30",
            "of points older than that only min, max and mean stay; 0: all stay") },
    { .name = "alert_webhook",
      .kind = CONFIG_TEXT,
      .offset = MEMBER(alert_webhook),
      .value = "",
      .meaning = "where changes of alerts are sent, http:// or https://; empty: nowhere" },
    { .name = "alert_secret_file",
      .kind = CONFIG_TEXT,
      .offset = MEMBER(alert_secret_file),
      .value = "",
      .meaning = "file of the secret that signs them (HMAC-SHA256); empty: unsigned" },
    { .name = "log_level",
      .kind = CONFIG_LEVEL,
      .offset = MEMBER(log_level),
      .choices = "error warn info debug",
      .value = "info",
      .meaning = "what is logged, each with all before it" },
    { .name = "log_format",
      .kind = CONFIG_FORMAT,
      .offset = MEMBER(log_format),
      .choices = "logfmt json",
      .value = "logfmt",
      .meaning = "how a line of the log is written" },
};

const size_t config_option_count = sizeof(config_options) / sizeof(config_options[0]);

_Static_assert(sizeof(config_options) / sizeof(config_options[0]) <= CONFIG_OPTIONS_MAX,
               "raise CONFIG_OPTIONS_MAX");

size_t config_option_find(const char *name)
{
    size_t i = 0;

    while (i < config_option_count && strcmp(config_options[i].name, name) != 0)
        i++;
    return i;
}

void config_flag_name(const char *name, char flag[CONFIG_NAME_BYTES])
{
    snprintf(flag, CONFIG_NAME_BYTES, "%s", name);
    for (char *letter = flag; *letter; letter++)
        if (*letter == '_')
            *letter = '-';
}

void config_variable_name(const char *name, char variable[CONFIG_NAME_BYTES])
{
    snprintf(variable, CONFIG_NAME_BYTES, "FIRED_%s", name);
    for (char *letter = variable; *letter; letter++)
        *letter = (char)toupper((unsigned char)*letter);
}

/* A size in the largest unit that divides it. */
static void write_size(double bytes, char *text, size_t text_bytes)
{
    static const char *const units[] = { "", "KiB", "MiB", "GiB", "TiB" };
    size_t unit = 0;

    while (unit < 4 && bytes >= KIB && fmod(bytes, KIB) == 0.0) {
        bytes /= KIB;
        unit++;
    }
    snprintf(text, text_bytes, "%.0f%s", bytes, units[unit]);
}

void config_option_allowed(const struct config_option *option, char *text, size_t text_bytes)
{
    char low[32], high[32];

    text[0] = '\0';
    switch (option->kind) {
    case CONFIG_TEXT:
    case CONFIG_LIST: break;
    case CONFIG_SENTENCE:
        snprintf(text, text_bytes, "empty, or the sentence: %s", CONFIG_INSECURE_SENTENCE);
        break;
    case CONFIG_U32:
    case CONFIG_F64:
        snprintf(text, text_bytes, "%.10g to %.10g", option->minimum, option->maximum);
        break;
    case CONFIG_BYTES:
        write_size(option->minimum, low, sizeof(low));
        write_size(option->maximum, high, sizeof(high));
        snprintf(text, text_bytes, "%s to %s", low, high);
        break;
    case CONFIG_BOOL: snprintf(text, text_bytes, "true or false"); break;
    case CONFIG_CHOICE:
    case CONFIG_LEVEL:
    case CONFIG_FORMAT: snprintf(text, text_bytes, "one of: %s", option->choices); break;
    }
}

static enum fire_status refuse(const struct config_option *option, const char *text,
                               const char *origin, struct fire_error *error)
{
    char allowed[128];

    config_option_allowed(option, allowed, sizeof(allowed));
    return fire_fail(error, FIRE_BAD_REQUEST, option->name, "%s must be %s; got \"%.*s\" (%s)",
                     option->name, allowed, SHOWN_BYTES, text, origin);
}

/* Digits, then nothing or a unit. strtoull() alone would take signs and blanks. */
static bool parse_bytes(const char *text, uint64_t *value)
{
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {
        { "", 0 }, { "B", 0 }, { "KiB", 10 }, { "MiB", 20 }, { "GiB", 30 }, { "TiB", 40 }
    };
    unsigned long long number;
    char *end;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    number = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcmp(end, units[i].name) == 0) {
            *value = (uint64_t)number << units[i].shift;
            return *value >> units[i].shift == number;
        }
    return false;
}

static bool parse_count(const char *text, uint64_t *value)
{
    const size_t length = strlen(text);

    return strspn(text, "0123456789") == length && parse_bytes(text, value);
}

static bool parse_double(const char *text, double *value)
{
    char *end;

    if (strspn(text, "0123456789.eE+-") != strlen(text) || *text == '\0')
        return false;
    *value = strtod(text, &end);
    return *end == '\0' && isfinite(*value);
}

static bool parse_bool(const char *text, bool *value)
{
    static const char *const words[] = { "true", "yes", "on", "1", "false", "no", "off", "0" };

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(text, words[i]) == 0) {
            *value = i < 4;
            return true;
        }
    return false;
}

/* The word's position in `choices`, or -1. */
static int choice_index(const char *choices, const char *word)
{
    const size_t length = strlen(word);
    int index = 0;

    while (*choices) {
        const size_t next = strcspn(choices, " ");

        if (next == length && strncmp(choices, word, length) == 0)
            return index;
        choices += next + (choices[next] == ' ');
        index++;
    }
    return -1;
}

/* Text is kept only if --print-config can show it and the file can hold it: UTF-8 in one line,
 * nothing invisible. */
static bool is_text(const char *text)
{
    static const char *const refused[] = { "\xe2\x80\xa8", "\xe2\x80\xa9", "\xef\xbb\xbf",
                                           "\xef\xbf\xbe", "\xef\xbf\xbf" };

    if (strlen(text) >= CONFIG_TEXT_BYTES)
        return false;
    while (*text) {
        const size_t bytes = utf8_bytes(text);

        if (bytes == 0 || utf8_is_control(text, bytes))
            return false;
        for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
            if (bytes == 3 && memcmp(text, refused[i], 3) == 0)
                return false;
        text += bytes;
    }
    return true;
}

static enum fire_status check_text(const char *name, const char *text, const char *origin,
                                   struct fire_error *error)
{
    if (is_text(text))
        return FIRE_OK;
    return fire_fail(error, FIRE_BAD_REQUEST, name,
                     "%s (%s) must be one line of UTF-8 text, at most %u bytes, without control "
                     "characters",
                     name, origin, CONFIG_TEXT_BYTES - 1);
}

void config_listen_clear(struct config *config)
{
    for (uint32_t i = 0; i < config->listen_count; i++)
        free(config->listen[i]);
    config->listen_count = 0;
}

enum fire_status config_listen_add(struct config *config, const char *address, const char *origin,
                                   struct fire_error *error)
{
    const enum fire_status status = check_text("listen", address, origin, error);

    if (status != FIRE_OK)
        return status;
    if (address[0] == '\0')
        return fire_fail(error, FIRE_BAD_REQUEST, "listen",
                         "listen (%s) has an empty address; give host:port or unix:PATH", origin);
    if (config->listen_count == CONFIG_LISTEN_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "listen",
                         "listen (%s) has more than %u addresses; leave some out", origin,
                         CONFIG_LISTEN_MAX);
    config->listen[config->listen_count] = strdup(address);
    if (!config->listen[config->listen_count])
        return fire_fail_memory(error, strlen(address) + 1);
    config->listen_count++;
    return FIRE_OK;
}

static enum fire_status set_list(struct config *config, const char *text, const char *origin,
                                 struct fire_error *error)
{
    enum fire_status status = FIRE_OK;
    char *parts = strdup(text);
    char *rest = parts;

    if (!parts)
        return fire_fail_memory(error, strlen(text) + 1);
    config_listen_clear(config);
    while (rest && status == FIRE_OK) {
        char *part = strsep(&rest, ",");

        status = config_listen_add(config, part + strspn(part, " "), origin, error);
    }
    free(parts);
    return status;
}

static enum fire_status set_text(char **place, const char *text, struct fire_error *error)
{
    char *copy = strdup(text);

    if (!copy)
        return fire_fail_memory(error, strlen(text) + 1);
    free(*place);
    *place = copy;
    return FIRE_OK;
}

static enum fire_status set_number(const struct config_option *option, void *place,
                                   const char *text, const char *origin, struct fire_error *error)
{
    uint64_t count = 0;
    double value = 0.0;
    bool good;

    if (option->kind == CONFIG_F64) {
        good = parse_double(text, &value);
    } else {
        good = option->kind == CONFIG_BYTES ? parse_bytes(text, &count) : parse_count(text, &count);
        value = (double)count;
    }
    if (!good || value < option->minimum || value > option->maximum)
        return refuse(option, text, origin, error);
    if (option->kind == CONFIG_F64)
        *(double *)place = value;
    else if (option->kind == CONFIG_BYTES)
        *(uint64_t *)place = count;
    else
        *(uint32_t *)place = (uint32_t)count;
    return FIRE_OK;
}

/* One of a few words. */
static enum fire_status set_word(const struct config_option *option, void *place, const char *text,
                                 const char *origin, struct fire_error *error)
{
    const int index = choice_index(option->choices, text);

    if (index < 0)
        return refuse(option, text, origin, error);
    if (option->kind == CONFIG_CHOICE)
        return set_text(place, text, error);
    if (option->kind == CONFIG_LEVEL)
        *(enum log_level *)place = (enum log_level)index;
    else
        *(enum log_format *)place = (enum log_format)index;
    return FIRE_OK;
}

enum fire_status config_option_set(const struct config_option *option, struct config *config,
                                   const char *text, const char *origin, struct fire_error *error)
{
    void *place = (char *)config + option->offset;
    const enum fire_status status = check_text(option->name, text, origin, error);

    if (status != FIRE_OK)
        return status;
    switch (option->kind) {
    case CONFIG_TEXT: return set_text(place, text, error);
    case CONFIG_U32:
    case CONFIG_BYTES:
    case CONFIG_F64: return set_number(option, place, text, origin, error);
    case CONFIG_BOOL:
        return parse_bool(text, place) ? FIRE_OK : refuse(option, text, origin, error);
    case CONFIG_CHOICE:
    case CONFIG_LEVEL:
    case CONFIG_FORMAT: return set_word(option, place, text, origin, error);
    case CONFIG_SENTENCE:
        if (text[0] && strcmp(text, CONFIG_INSECURE_SENTENCE) != 0)
            return refuse(option, text, origin, error);
        *(bool *)place = text[0] != '\0';
        return FIRE_OK;
    case CONFIG_LIST: return set_list(config, text, origin, error);
    }
    return FIRE_OK;
}

void config_write_double(double value, char *text, size_t text_bytes)
{
    for (int digits = 1; digits <= DBL_DECIMAL_DIG; digits++) {
        snprintf(text, text_bytes, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            return;
    }
}

/* In quotes: a plain scalar could be a number, a comment or a key. */
static void write_quoted(const char *text, FILE *file)
{
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        fputc(*text, file);
    }
    fputc('"', file);
}

static void write_list(const struct config *config, FILE *file)
{
    fputc('[', file);
    for (uint32_t i = 0; i < config->listen_count; i++) {
        fputs(i ? ", " : "", file);
        write_quoted(config->listen[i], file);
    }
    fputc(']', file);
}

/* The word at `index` of `choices`. */
static void write_choice(const char *choices, int index, FILE *file)
{
    while (index-- > 0)
        choices += strcspn(choices, " ") + 1;
    fprintf(file, "%.*s", (int)strcspn(choices, " "), choices);
}

void config_option_write(const struct config_option *option, const struct config *config,
                         FILE *file)
{
    const void *place = (const char *)config + option->offset;
    char text[32];

    switch (option->kind) {
    case CONFIG_TEXT: write_quoted(*(char *const *)place, file); break;
    case CONFIG_CHOICE: fputs(*(char *const *)place, file); break;
    case CONFIG_U32: fprintf(file, "%" PRIu32, *(const uint32_t *)place); break;
    case CONFIG_BYTES:
        write_size((double)*(const uint64_t *)place, text, sizeof(text));
        fputs(text, file);
        break;
    case CONFIG_F64:
        config_write_double(*(const double *)place, text, sizeof(text));
        fputs(text, file);
        break;
    case CONFIG_BOOL: fputs(*(const bool *)place ? "true" : "false", file); break;
    case CONFIG_LEVEL:
        write_choice(option->choices, (int)*(const enum log_level *)place, file);
        break;
    case CONFIG_FORMAT:
        write_choice(option->choices, (int)*(const enum log_format *)place, file);
        break;
    case CONFIG_SENTENCE:
        write_quoted(*(const bool *)place ? CONFIG_INSECURE_SENTENCE : "", file);
        break;
    case CONFIG_LIST: write_list(config, file); break;
    }
}
