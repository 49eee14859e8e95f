/* firectl_report: one row a tensor, in file order, as JSON or as a table, then a summary. A number
 * that is not known is left out, never 0. Field names and order: INTERFACES.md section 2. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "firectl.h"

#define NAME_WIDTH_MAX  60
#define SHAPE_WIDTH_MAX 28
#define NUMBER_DIGITS   15 /* all that a double surely has, and no noise */

/* --- text ------------------------------------------------------------------------------------ */

bool firectl_color(const struct firectl_args *args, FILE *stream)
{
    const char *term = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");

    return !args->no_color && !(no_color && no_color[0]) && term && strcmp(term, "dumb") != 0 &&
           isatty(fileno(stream));
}

void firectl_shape_text(const struct safetensors_entry *entry, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "%s", entry->too_many_axes ? "…" : "");

    if (!entry->too_many_axes && entry->shape.axes == 0)
        snprintf(text, text_bytes, "scalar");
    for (uint32_t axis = 0; !entry->too_many_axes && axis < entry->shape.axes; axis++) {
        if (used < text_bytes)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRIu64, axis ? "x" : "",
                                     entry->shape.size[axis]);
    }
}

/* A text that was cut inside a character ends before it: JSON takes whole ones only. */
static void end_at_character(char *text)
{
    const size_t length = strlen(text);
    size_t rest = 0; /* bytes of the last character after its first */
    size_t bytes;

    while (rest < 3 && rest < length && ((unsigned char)text[length - 1 - rest] & 0xc0) == 0x80)
        rest++;
    if (rest == length)
        return;
    const unsigned char first = (unsigned char)text[length - 1 - rest];

    bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
    if (bytes > rest + 1)
        text[length - 1 - rest] = '\0';
}

void firectl_plain_text(const char *name, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s", name);
    end_at_character(text);
    for (char *at = text; *at; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = '?';
    }
}

/* --- JSON ------------------------------------------------------------------------------------ */

/* An object being filled. jansson's setters take over the value and refuse a NULL one. */
struct object {
    json_t *json;
    bool failed;
};

static void put(struct object *object, const char *key, json_t *value)
{
    if (json_object_set_new(object->json, key, value) != 0)
        object->failed = true;
}

static void put_text(struct object *object, const char *key, const char *text)
{
    if (text && text[0])
        put(object, key, json_string(text));
}

static void put_number(struct object *object, const char *key, double value)
{
    if (isfinite(value))
        put(object, key, json_real(value));
}

static void put_count(struct object *object, const char *key, uint64_t value)
{
    put(object, key, json_integer((json_int_t)value));
}

/* An analysis has numbers too, but no method, steps or convergence. */
static bool was_projected(const struct fire_result *result)
{
    return result->method[0] && strcmp(result->method, "analyze") != 0;
}

static bool is_short_of_target(const struct firectl_task *task)
{
    return task->result.action == FIRE_ACTION_PROJECTED && was_projected(&task->result) &&
           !task->result.converged;
}

/* What has less than full rank reaches no target, unless it was completed. */
static bool lacks_rank(const struct firectl_task *task)
{
    return is_short_of_target(task) && task->result.rank_defect > 0;
}

/* Counted steps stop at no target, so they miss none. */
static bool missed_target(const struct firectl_task *task)
{
    return is_short_of_target(task) && task->result.rank_defect == 0 &&
           task->options.steps == FIRE_STEPS_AUTO;
}

/* The numbers of a result, with the texts INTERFACES.md has between them. */
static void put_result(struct object *object, const struct fire_result *result, const char *state)
{
    const bool projected = result->action == FIRE_ACTION_PROJECTED && was_projected(result);

    if (was_projected(result))
        put_text(object, "method", result->method);
    if (projected) {
        put_count(object, "steps", result->steps);
        put(object, "converged", json_boolean(result->converged));
        put_count(object, "rank", result->rank);
        put_count(object, "rank_defect", result->rank_defect);
    }
    for (size_t i = 0; i < fire_result_field_count(); i++) {
        const char *name = fire_result_field_at(i)->name;

        if (strcmp(name, "dfi_mean_before") == 0)
            put_text(object, "path", result->path);
        if (strcmp(name, "compute_ms") == 0)
            put_text(object, "state", state);
        put_number(object, name, fire_result_value(result, i));
    }
}

static const char *action_name(enum fire_action action, enum firectl_command command)
{
    switch (action) {
    case FIRE_ACTION_PROJECTED: return command == FIRECTL_ANALYZE ? "analyzed" : "projected";
    case FIRE_ACTION_SKIPPED: return "skipped";
    case FIRE_ACTION_REFUSED: return "refused";
    }
    return "refused";
}

static void put_shape(struct object *object, const struct safetensors_entry *entry)
{
    json_t *shape = json_array();

    for (uint32_t axis = 0; !entry->too_many_axes && axis < entry->shape.axes; axis++) {
        if (json_array_append_new(shape, json_integer((json_int_t)entry->shape.size[axis])) != 0)
            object->failed = true;
    }
    put(object, "shape", shape);
}

static void put_matrices(struct object *object, const struct firectl_report *report,
                         const struct firectl_task *task)
{
    json_t *array;

    if (task->result.matrices > 1)
        put_count(object, "matrices", task->result.matrices);
    if (!task->per_matrix)
        return;
    array = json_array();
    for (uint64_t i = 0; i < task->matrices; i++) {
        const struct fire_result *result = &task->per_matrix[i];
        struct object matrix = { .json = json_object() };

        put_count(&matrix, "matrix", i);
        put_text(&matrix, "action", action_name(result->action, report->command));
        put_text(&matrix, "reason", result->reason);
        put_result(&matrix, result, NULL);
        if (matrix.failed || json_array_append_new(array, matrix.json) != 0)
            object->failed = true;
    }
    put(object, "per_matrix", array);
}

static void print_object(struct firectl_report *report, struct object *object)
{
    if (object->failed || !object->json ||
        json_dumpf(object->json, report->stream,
                   JSON_COMPACT | JSON_REAL_PRECISION(NUMBER_DIGITS)) != 0 ||
        fputc('\n', report->stream) == EOF)
        report->failed = true;
    json_decref(object->json);
}

static void json_row(struct firectl_report *report, const struct firectl_task *task)
{
    struct object object = { .json = json_object() };

    put_text(&object, "name", task->entry->name);
    put_shape(&object, task->entry);
    put_text(&object, "dtype", task->entry->dtype_name);
    put_text(&object, "action", task->action);
    put_text(&object, "reason", task->reason);
    if (task->kind != FIRECTL_SKIP)
        put_text(&object, "preset", task->options.preset);
    if (task->kind != FIRECTL_SKIP && task->result.action != FIRE_ACTION_REFUSED)
        put_result(&object, &task->result, task->state);
    else
        put_text(&object, "state", task->state);
    put_number(&object, "feature_effective_rank", task->features.effective_rank);
    put_number(&object, "feature_srank", task->features.srank);
    put_number(&object, "gradient_norm", task->gradient.norm);
    put_number(&object, "gradient_condition", task->gradient.condition);
    put_number(&object, "gradient_effective_rank", task->gradient.effective_rank);
    put_matrices(&object, report, task);
    print_object(report, &object);
}

/* --- table ----------------------------------------------------------------------------------- */

static const char *paint(const struct firectl_report *report, const char *action)
{
    if (!report->color)
        return "";
    if (strcmp(action, "refused") == 0)
        return "\033[31m";
    return strcmp(action, "skipped") == 0 ? "\033[2m" : "\033[32m";
}

static void table_head(const struct firectl_report *report)
{
    const char *numbers = report->command == FIRECTL_ANALYZE
                              ? "       DfI  scale-free        norm   condition     dormant"
                              : "DfI before   DfI after  change rel.  steps";

    fprintf(report->stream, "%s%-*s  %-*s  %-5s  %-9s  %s  %s%s\n", report->color ? "\033[1m" : "",
            report->name_width, "tensor", report->shape_width, "shape", "dtype", "action", numbers,
            "method or reason", report->color ? "\033[0m" : "");
}

static void table_number(FILE *stream, double value, int width)
{
    if (isnan(value))
        fprintf(stream, "%*s", width, "-");
    else
        fprintf(stream, "%*.4g", width, value);
}

/* What is behind the numbers of a row: how, and what did not go as it should. */
static void table_words(const struct firectl_report *report, const struct firectl_task *task)
{
    const struct fire_result *result = &task->result;
    const char *separator = "";

    fputs("  ", report->stream);
    if (was_projected(result)) {
        fputs(result->method, report->stream);
        separator = "; ";
    }
    if (missed_target(task)) {
        fprintf(report->stream, "%s%sNOT CONVERGED%s: DfI %.3g", separator,
                report->color ? "\033[31m" : "", report->color ? "\033[0m" : "",
                result->dfi_unscaled_after);
        separator = "; ";
    }
    if (lacks_rank(task)) {
        fprintf(report->stream, "%srank %u of %u", separator, result->rank,
                result->rank + result->rank_defect);
        separator = "; ";
    }
    if (task->reason[0])
        fprintf(report->stream, "%s%s", separator, task->reason);
    fputc('\n', report->stream);
}

static void table_row(struct firectl_report *report, const struct firectl_task *task)
{
    const struct fire_result *result = &task->result;
    FILE *stream = report->stream;
    char name[NAME_WIDTH_MAX + 1];
    char shape[256];

    firectl_plain_text(task->entry->name, name, sizeof(name));
    firectl_shape_text(task->entry, shape, sizeof(shape));
    fprintf(stream, "%-*s  %-*s  %-5s  %s%-9s%s  ", report->name_width, name, report->shape_width,
            shape, task->entry->dtype_name, paint(report, task->action), task->action,
            report->color ? "\033[0m" : "");
    if (report->command == FIRECTL_ANALYZE) {
        table_number(stream, result->before.dfi, 10);
        table_number(stream, result->before.dfi_scale_free, 12);
        table_number(stream, result->before.norm, 12);
        table_number(stream, result->before.condition, 12);
        table_number(stream, result->dormant_ratio, 12);
    } else {
        table_number(stream, result->before.dfi, 10);
        table_number(stream, result->after.dfi, 12);
        table_number(stream, result->sfe_relative, 13);
        table_number(stream, was_projected(result) ? result->steps : NAN, 7);
    }
    table_words(report, task);
}

/* --- both ------------------------------------------------------------------------------------ */

void firectl_report_init(struct firectl_report *report, const struct firectl_args *args,
                         const struct safetensors *set, struct firectl_thresholds *thresholds)
{
    /* When the checkpoint itself goes to standard output, the rows must not. */
    FILE *stream =
        args->output && strcmp(args->output, "-") == 0 && !args->dry_run ? stderr : stdout;

    *report = (struct firectl_report){ .stream = stream,
                                       .json = args->json,
                                       .color = firectl_color(args, stream),
                                       .name_width = 6,
                                       .shape_width = 5,
                                       .command = args->command,
                                       .thresholds = thresholds };
    for (size_t i = 0; i < safetensors_count(set); i++) {
        const struct safetensors_entry *entry = safetensors_at(set, i);
        char shape[256];

        firectl_shape_text(entry, shape, sizeof(shape));
        if ((int)strlen(entry->name) > report->name_width)
            report->name_width = (int)strlen(entry->name);
        if ((int)strlen(shape) > report->shape_width)
            report->shape_width = (int)strlen(shape);
    }
    if (report->name_width > NAME_WIDTH_MAX)
        report->name_width = NAME_WIDTH_MAX;
    if (report->shape_width > SHAPE_WIDTH_MAX)
        report->shape_width = SHAPE_WIDTH_MAX;
    if (!report->json && args->command != FIRECTL_COMPARE)
        table_head(report);
}

static void count_row(struct firectl_report *report, struct firectl_task *task)
{
    if (task->kind == FIRECTL_SKIP)
        task->result.action = FIRE_ACTION_SKIPPED;
    if (!task->action)
        task->action = action_name(task->result.action, report->command);
    if (task->result.reason[0] && !task->reason[0])
        snprintf(task->reason, sizeof(task->reason), "%s", task->result.reason);
    end_at_character(task->reason);
    if (task->kind == FIRECTL_RESET && task->result.action == FIRE_ACTION_SKIPPED) {
        report->reset++;
        return;
    }
    switch (task->result.action) {
    case FIRE_ACTION_PROJECTED:
        report->projected++;
        report->not_converged += missed_target(task);
        report->rank_deficient += lacks_rank(task);
        report->parameters +=
            task->entry->floating ? task->entry->bytes / fire_dtype_bytes(task->entry->dtype) : 0;
        break;
    case FIRE_ACTION_SKIPPED: report->skipped++; break;
    case FIRE_ACTION_REFUSED: report->refused++; break;
    }
}

void firectl_report_ready(struct firectl_report *report, const struct firectl_tasks *tasks)
{
    while (report->next < tasks->count && tasks->items[report->next].finished) {
        struct firectl_task *task = &tasks->items[report->next++];

        count_row(report, task);
        if (report->json)
            json_row(report, task);
        else
            table_row(report, task);
        if (task->kind != FIRECTL_SKIP)
            firectl_thresholds_check(report->thresholds, task->entry->name, &task->result);
        free(task->per_matrix); /* may be large, and nobody asks again */
        task->per_matrix = NULL;
    }
}

static void json_summary(struct firectl_report *report, const struct firectl_summary *summary)
{
    const struct firectl_args *args = summary->args;
    struct object object = { .json = json_object() };

    put(&object, "summary", json_true());
    put_count(&object, "tensors", report->next);
    put_count(&object, args->command == FIRECTL_ANALYZE ? "analyzed" : "projected",
              report->projected);
    if (args->command == FIRECTL_REINIT) {
        put_count(&object, "not_converged", report->not_converged);
        put_count(&object, "rank_deficient", report->rank_deficient);
    }
    if (report->reset)
        put_count(&object, "reset", report->reset);
    put_count(&object, "skipped", report->skipped);
    put_count(&object, "refused", report->refused);
    put_count(&object, "parameters", report->parameters);
    put_number(&object, "seconds", summary->seconds);
    put_text(&object, "arch", arch_name(summary->tasks->arch));
    put_text(&object, "preset", args->preset ? args->preset : "fire");
    put_text(&object, "path", summary->caps->path);
    if (args->remote.address)
        put_text(&object, "addr", args->remote.address);
    else
        put_count(&object, "threads", summary->caps->threads);
    if (args->command == FIRECTL_REINIT)
        put(&object, "written", json_boolean(summary->written));
    if (summary->written)
        put_text(&object, "output", args->output);
    print_object(report, &object);
}

static void table_summary(struct firectl_report *report, const struct firectl_summary *summary)
{
    const struct firectl_args *args = summary->args;

    fprintf(report->stream,
            "%" PRIu64 " %s (%.3g million parameters), %" PRIu64 " skipped, %" PRIu64
            " refused in %.2f s; architecture %s, path %s, ",
            report->projected, args->command == FIRECTL_ANALYZE ? "analyzed" : "projected",
            (double)report->parameters / 1e6, report->skipped, report->refused, summary->seconds,
            arch_name(summary->tasks->arch),
            summary->caps->path[0] ? summary->caps->path : "unknown");
    if (args->remote.address)
        fprintf(report->stream, "by the daemon at %s\n", args->remote.address);
    else
        fprintf(report->stream, "%u thread%s\n", summary->caps->threads,
                summary->caps->threads == 1 ? "" : "s");
    if (report->not_converged > 0)
        fprintf(report->stream,
                "%" PRIu64 " did not reach the target: raise max_steps or target, or leave "
                "polynomial=auto\n",
                report->not_converged);
    if (report->rank_deficient > 0)
        fprintf(report->stream,
                "%" PRIu64 " had less than full rank and became partial isometries; "
                "--set complete=on fills them\n",
                report->rank_deficient);
    if (summary->written)
        fprintf(report->stream, "wrote %s\n", args->output);
    else if (args->command == FIRECTL_REINIT)
        fprintf(report->stream, "nothing was written%s\n", args->dry_run ? " (dry run)" : "");
}

enum firectl_exit firectl_report_end(struct firectl_report *report,
                                     const struct firectl_summary *summary)
{
    if (report->json)
        json_summary(report, summary);
    else
        table_summary(report, summary);
    if (fflush(report->stream) != 0 || ferror(report->stream))
        report->failed = true;
    if (!report->failed)
        return FIRECTL_DONE;
    firectl_say("the report could not be written in full: %s",
                ferror(report->stream) ? strerror(errno) : "a row could not be made");
    return FIRECTL_FAILED;
}
