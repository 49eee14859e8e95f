/* firectl_points: `firectl report`: points from arguments, or from lines of standard input.
 *
 * Lines are gathered into messages: a message leaves when it is full or when no further line is
 * there yet, so that a slow trainer's points are seen at once and a fast one's travel together. A
 * bad line stops the command with its number; what came before it is sent. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "firectl_daemon.h"
#include "firectl_monitor.h"

#define BATCH_POINTS_MAX 8192u
#define LINE_BYTES_MAX   4096u
#define BUFFER_BYTES     65536u
#define SENDS_MAX        6u  /* of one message, when the daemon has no room */
#define SEND_PAUSE_S     0.2 /* doubled each time */
#define CODE_EXHAUSTED   8   /* gRPC's */
#define CODE_UNAVAILABLE 14

/* Points on their way, one series each: that costs some bytes, and no sorting. */
struct batch {
    const struct firectl_args *args;
    struct admin *admin;
    Fire__V1__Series *series; /* with storage of one point each, in the arrays below */
    Fire__V1__Series **list;
    char (*layers)[MONITOR_NAME_BYTES];
    char (*statistics)[MONITOR_NAME_BYTES];
    int64_t *steps;
    double *values;
    size_t count;
    uint64_t added;
    uint64_t replaced;
    uint64_t line; /* of standard input */
};

static bool batch_init(struct batch *batch)
{
    batch->series = calloc(BATCH_POINTS_MAX, sizeof(*batch->series));
    batch->list = calloc(BATCH_POINTS_MAX, sizeof(*batch->list));
    batch->layers = calloc(BATCH_POINTS_MAX, sizeof(*batch->layers));
    batch->statistics = calloc(BATCH_POINTS_MAX, sizeof(*batch->statistics));
    batch->steps = calloc(BATCH_POINTS_MAX, sizeof(*batch->steps));
    batch->values = calloc(BATCH_POINTS_MAX, sizeof(*batch->values));
    return batch->series && batch->list && batch->layers && batch->statistics && batch->steps &&
           batch->values;
}

static void batch_release(struct batch *batch)
{
    free(batch->series);
    free(batch->list);
    free(batch->layers);
    free(batch->statistics);
    free(batch->steps);
    free(batch->values);
}

/* Sends one message; a daemon without room is asked again a few times. */
static enum firectl_exit send_message(struct batch *batch, const Fire__V1__ReportRequest *request)
{
    struct admin_failure failure = { 0 };
    double pause_s = SEND_PAUSE_S;

    for (uint32_t i = 0; i < SENDS_MAX; i++) {
        Fire__V1__ReportResponse *answer = (Fire__V1__ReportResponse *)admin_call(
            batch->admin, "/fire.v1.MonitorService/Report", &request->base,
            &fire__v1__report_response__descriptor, &failure);

        if (answer) {
            batch->added += answer->points_added;
            batch->replaced += answer->points_replaced;
            fire__v1__report_response__free_unpacked(answer, NULL);
            return FIRECTL_DONE;
        }
        /* Safe to repeat: the same points change nothing. */
        if (failure.code != CODE_EXHAUSTED && failure.code != CODE_UNAVAILABLE)
            break;
        if (i + 1 < SENDS_MAX && !firectl_pause(pause_s))
            break;
        pause_s *= 2.0;
    }
    return admin_fail(batch->admin, &failure);
}

/* Fills labels; says what is wrong with one. */
static bool labels_fill(const struct firectl_args *args, Fire__V1__RunInfo__LabelsEntry *entries,
                        Fire__V1__RunInfo__LabelsEntry **list)
{
    for (size_t i = 0; i < args->labels.count; i++) {
        char *equals = strchr(args->labels.items[i], '=');

        if (!equals || equals == args->labels.items[i]) {
            firectl_say("--label must be KEY=VALUE, got '%s'", args->labels.items[i]);
            return false;
        }
        entries[i] = (Fire__V1__RunInfo__LabelsEntry)FIRE__V1__RUN_INFO__LABELS_ENTRY__INIT;
        *equals = '\0'; /* the list owns the text; it is read only here */
        entries[i].key = args->labels.items[i];
        entries[i].value = equals + 1;
        list[i] = &entries[i];
    }
    return true;
}

static enum firectl_exit batch_send(struct batch *batch, const Fire__V1__RunInfo *info)
{
    Fire__V1__ReportRequest request = FIRE__V1__REPORT_REQUEST__INIT;
    enum firectl_exit code;

    if (!batch->count)
        return FIRECTL_DONE;
    for (size_t i = 0; i < batch->count; i++) {
        Fire__V1__Series *series = &batch->series[i];

        *series = (Fire__V1__Series)FIRE__V1__SERIES__INIT;
        series->layer = batch->layers[i];
        series->statistic = batch->statistics[i];
        series->steps = &batch->steps[i];
        series->values = &batch->values[i];
        series->n_steps = series->n_values = 1;
        batch->list[i] = series;
    }
    request.run = (char *)batch->args->remote.run;
    request.info = (Fire__V1__RunInfo *)info;
    request.series = batch->list;
    request.n_series = batch->count;
    code = send_message(batch, &request);
    batch->count = 0;
    return code;
}

/* Adds a point; false after saying what is wrong with it. */
static bool batch_add(struct batch *batch, int64_t step, const char *layer, const char *statistic,
                      double value)
{
    const size_t at = batch->count;

    if (strlen(layer) >= MONITOR_NAME_BYTES || strlen(statistic) >= MONITOR_NAME_BYTES ||
        !statistic[0]) {
        firectl_say("a statistic has a name, and names have at most 256 bytes");
        return false;
    }
    if (!isfinite(value) || step < 0) {
        firectl_say("%s must be a finite number at a step from 0", statistic);
        return false;
    }
    snprintf(batch->layers[at], MONITOR_NAME_BYTES, "%s", layer);
    snprintf(batch->statistics[at], MONITOR_NAME_BYTES, "%s", statistic);
    batch->steps[at] = step;
    batch->values[at] = value;
    batch->count++;
    return true;
}

/* --- from arguments --------------------------------------------------------------------------- */

static bool add_argument(struct batch *batch, const char *text)
{
    const struct firectl_args *args = batch->args;
    const char *equals = strchr(text, '=');
    char statistic[MONITOR_NAME_BYTES];
    char *end = NULL;
    double value;

    if (!equals || equals == text || (size_t)(equals - text) >= sizeof(statistic)) {
        firectl_say("expected STATISTIC=VALUE, or - for lines of standard input, got '%s'", text);
        return false;
    }
    snprintf(statistic, sizeof(statistic), "%.*s", (int)(equals - text), text);
    value = strtod(equals + 1, &end);
    if (end == equals + 1 || *end) {
        firectl_say("the value of %s must be a number, got '%s'", statistic, equals + 1);
        return false;
    }
    return batch_add(batch, args->remote.step, args->layers.count ? args->layers.items[0] : "",
                     statistic, value);
}

/* --- from standard input ---------------------------------------------------------------------- */

static bool add_json(struct batch *batch, const char *line)
{
    json_error_t error;
    json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
    const char *layer = "", *statistic = NULL;
    json_int_t step = 0;
    double value = 0.0;
    bool fine;

    if (!object) {
        firectl_say("line %" PRIu64 " is not JSON: %s", batch->line, error.text);
        return false;
    }
    fine = json_unpack_ex(object, &error, 0, "{s:I,s?s,s:s,s:F}", "step", &step, "layer", &layer,
                          "statistic", &statistic, "value", &value) == 0;
    if (!fine)
        firectl_say("line %" PRIu64 ": expected step, layer, statistic and value: %s", batch->line,
                    error.text);
    else
        fine = batch_add(batch, step, layer, statistic, value);
    json_decref(object);
    return fine;
}

/* STEP LAYER STATISTIC VALUE, or a JSON object; empty lines and those that start with # are passed
 * over. */
static bool add_line(struct batch *batch, char *line)
{
    char *words[5] = { NULL }, *rest = NULL, *end = NULL, *number_end = NULL;
    long long step;
    double value;
    int count = 0;

    line += strspn(line, " \t\r");
    if (!line[0] || line[0] == '#')
        return true;
    if (line[0] == '{')
        return add_json(batch, line);
    for (char *word = strtok_r(line, " \t\r", &rest); word && count < 5;
         word = strtok_r(NULL, " \t\r", &rest))
        words[count++] = word;
    if (count != 4) {
        firectl_say("line %" PRIu64 " has %d words; expected STEP LAYER STATISTIC VALUE",
                    batch->line, count);
        return false;
    }
    errno = 0;
    step = strtoll(words[0], &end, 10);
    value = strtod(words[3], &number_end);
    if (errno == ERANGE || *end || step < 0 || *number_end || !isfinite(value)) {
        firectl_say("line %" PRIu64 ": STEP must be a whole number from 0 and VALUE a finite "
                    "number, got '%s' and '%s'",
                    batch->line, words[0], words[3]);
        return false;
    }
    return batch_add(batch, step, strcmp(words[1], "-") == 0 ? "" : words[1], words[2], value);
}

/* Whether more can be read at once. */
static bool input_waits(void)
{
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };

    return poll(&input, 1, 0) > 0 && (input.revents & POLLIN);
}

/* Takes the complete lines of `buffer`; returns how many bytes they were. */
static size_t take_lines(struct batch *batch, char *buffer, size_t bytes,
                         const Fire__V1__RunInfo *info, enum firectl_exit *code)
{
    size_t done = 0;
    char *end;

    while (*code == FIRECTL_DONE && (end = memchr(buffer + done, '\n', bytes - done)) != NULL) {
        *end = '\0';
        batch->line++;
        if (!add_line(batch, buffer + done))
            *code = FIRECTL_FAILED;
        done = (size_t)(end - buffer) + 1;
        if (*code == FIRECTL_DONE && batch->count == BATCH_POINTS_MAX)
            *code = batch_send(batch, info);
    }
    return done;
}

static enum firectl_exit read_lines(struct batch *batch, const Fire__V1__RunInfo *info)
{
    char *buffer = malloc(BUFFER_BYTES + 1);
    enum firectl_exit code = buffer ? FIRECTL_DONE : FIRECTL_FAILED, sent;
    size_t held = 0;
    bool open = true;

    while (open && code == FIRECTL_DONE && !firectl_signal()) {
        const ssize_t got = read(STDIN_FILENO, buffer + held, BUFFER_BYTES - held);
        size_t done;

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            firectl_say("could not read standard input: %s", strerror(errno));
            code = FIRECTL_FAILED;
            break;
        }
        open = got > 0;
        held += (size_t)got;
        if (!open && held && buffer[held - 1] != '\n')
            buffer[held++] = '\n'; /* the last line may lack its end; one byte is kept for it */
        done = take_lines(batch, buffer, held, info, &code);
        memmove(buffer, buffer + done, held - done);
        held -= done;
        if (code == FIRECTL_DONE && held > LINE_BYTES_MAX) {
            firectl_say("line %" PRIu64 " is longer than %u bytes", batch->line + 1,
                        LINE_BYTES_MAX);
            code = FIRECTL_FAILED;
        }
        if (code == FIRECTL_DONE && batch->count && (!open || !input_waits()))
            code = batch_send(batch, info);
    }
    /* What came before a bad line is not lost. */
    sent = code == FIRECTL_FAILED ? batch_send(batch, info) : FIRECTL_DONE;
    free(buffer);
    return sent != FIRECTL_DONE ? sent : code;
}

/* --- the command ------------------------------------------------------------------------------ */

static enum firectl_exit check(const struct firectl_args *args)
{
    const bool lines = args->points.count == 1 && strcmp(args->points.items[0], "-") == 0;

    if (!args->remote.run || !args->remote.run[0]) {
        firectl_say("report needs --run ID; see firectl report --help");
        return FIRECTL_USAGE;
    }
    if (!args->points.count) {
        firectl_say("report needs STATISTIC=VALUE, or - for lines of standard input");
        return FIRECTL_USAGE;
    }
    if (args->points.count > BATCH_POINTS_MAX) {
        firectl_say("at most %u points as arguments; give lines on standard input",
                    BATCH_POINTS_MAX);
        return FIRECTL_USAGE;
    }
    if (args->layers.count > 1 || (lines && args->layers.count)) {
        firectl_say(lines ? "lines name their layer themselves: leave out --layer"
                          : "--layer can be given once: the points are of one layer");
        return FIRECTL_USAGE;
    }
    if (lines == args->step_given) {
        firectl_say(lines ? "lines name their step themselves: leave out --step"
                          : "report needs --step N, the training step of the points");
        return FIRECTL_USAGE;
    }
    return FIRECTL_DONE;
}

static enum firectl_exit run(struct batch *batch, const Fire__V1__RunInfo *info)
{
    const struct firectl_args *args = batch->args;

    if (strcmp(args->points.items[0], "-") == 0)
        return read_lines(batch, info);
    for (size_t i = 0; i < args->points.count; i++) {
        if (!add_argument(batch, args->points.items[i]))
            return FIRECTL_USAGE;
    }
    return batch_send(batch, info);
}

enum firectl_exit firectl_points(const struct firectl_args *args)
{
    Fire__V1__RunInfo info = FIRE__V1__RUN_INFO__INIT;
    Fire__V1__RunInfo__LabelsEntry *entries = calloc(args->labels.count + 1, sizeof(*entries));
    Fire__V1__RunInfo__LabelsEntry **list = calloc(args->labels.count + 1, sizeof(*list));
    struct batch batch = { .args = args };
    enum firectl_exit code = check(args);

    if (code == FIRECTL_DONE && (!entries || !list || !batch_init(&batch))) {
        firectl_say("no memory for a message of %u points; close other programs", BATCH_POINTS_MAX);
        code = FIRECTL_FAILED;
    }
    if (code == FIRECTL_DONE && !labels_fill(args, entries, list))
        code = FIRECTL_USAGE;
    info.name = args->title ? (char *)args->title : info.name;
    info.framework = args->framework ? (char *)args->framework : info.framework;
    info.labels = list;
    info.n_labels = args->labels.count;
    firectl_signals_init();
    if (code == FIRECTL_DONE)
        code = admin_open(args, &batch.admin);
    if (code == FIRECTL_DONE)
        code = run(&batch, &info);
    if (batch.admin && args->json)
        code = monitor_print_json(json_pack("{s:s,s:I,s:I}", "run", args->remote.run, "added",
                                            (json_int_t)batch.added, "replaced",
                                            (json_int_t)batch.replaced))
                   ? FIRECTL_FAILED
                   : code;
    else if (batch.admin && (code == FIRECTL_DONE || batch.added))
        printf("%s: %" PRIu64 " points added, %" PRIu64 " replaced\n", args->remote.run,
               batch.added, batch.replaced);
    admin_close(batch.admin);
    batch_release(&batch);
    free(entries);
    free(list);
    return code;
}
