/* firectl_compare: two checkpoints, tensor by tensor. The first is "before", the second "after", so
 * the fields have the names that reinit uses. Tensors of only one of them are named as missing. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "firectl.h"

struct run {
    const struct firectl_args *args;
    struct safetensors *sets[2];
    struct firectl_tasks tasks; /* of the first */
    struct fire_client *client;
    int code; /* gRPC code of a refusal by a daemon */
    struct firectl_thresholds *thresholds;
    struct firectl_progress progress;
    struct firectl_limit limit;
    bool color;
    bool failed; /* output was lost */
    uint64_t same;
    uint64_t changed;
    uint64_t missing;
};

/* How one tensor of A stands to B. */
struct row {
    const struct safetensors_entry *before;
    const struct safetensors_entry *after;
    const char *action;
    const char *reason;
    struct fire_result result;
};

static bool put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

static void print_json(struct run *run, const struct row *row)
{
    const struct safetensors_entry *shown = row->before ? row->before : row->after;
    json_t *object = json_object();
    json_t *shape = json_array();
    bool good = true;

    for (uint32_t axis = 0; !shown->too_many_axes && axis < shown->shape.axes; axis++)
        good &=
            json_array_append_new(shape, json_integer((json_int_t)shown->shape.size[axis])) == 0;
    good &= put(object, "name", json_string(shown->name));
    good &= put(object, "shape", shape);
    good &= put(object, "dtype", json_string(shown->dtype_name));
    good &= put(object, "action", json_string(row->action));
    if (row->reason[0])
        good &= put(object, "reason", json_string(row->reason));
    if (row->before && row->after)
        good &= put(object, "identical", json_boolean(strcmp(row->action, "same") == 0));
    for (size_t i = 0; i < fire_result_field_count(); i++) {
        const double value = fire_result_value(&row->result, i);

        if (isfinite(value) && strcmp(fire_result_field_at(i)->name, "compute_ms") != 0)
            good &= put(object, fire_result_field_at(i)->name, json_real(value));
    }
    if (!good || json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15)) != 0 ||
        putchar('\n') == EOF)
        run->failed = true;
    json_decref(object);
}

static void print_number(double value, int width)
{
    if (isnan(value))
        printf("%*s", width, "-");
    else
        printf("%*.4g", width, value);
}

static void print_table(const struct run *run, const struct row *row)
{
    const struct safetensors_entry *shown = row->before ? row->before : row->after;
    const bool same = strcmp(row->action, "same") == 0;
    char name[49];
    char shape[64];

    firectl_plain_text(shown->name, name, sizeof(name));
    firectl_shape_text(shown, shape, sizeof(shape));
    printf("%-48s  %-20s  %-5s  %s%-8s%s", name, shape, shown->dtype_name,
           run->color ? (same ? "\033[2m" : "\033[33m") : "", row->action,
           run->color ? "\033[0m" : "");
    print_number(row->result.sfe, 12);
    print_number(row->result.sfe_relative, 12);
    print_number(row->result.before.dfi, 12);
    print_number(row->result.after.dfi, 12);
    printf("  %s\n", row->reason);
}

static void print_row(struct run *run, const struct row *row)
{
    if (run->args->json)
        print_json(run, row);
    else
        print_table(run, row);
    firectl_thresholds_check(run->thresholds, row->before ? row->before->name : row->after->name,
                             &row->result);
}

/* DfI and its relatives of both sides, where the tensor holds matrices of a usable size. A tensor
 * that is refused, for a NaN say, has none; that is no failure of the comparison. */
static enum fire_status analyze_both(struct run *run, const struct firectl_task *task,
                                     struct row *row, struct fire_error *error)
{
    struct fire_tensor tensors[2];
    struct fire_set set = { .tensors = tensors,
                            .count = 2,
                            .statistics = FIRE_STATISTICS_BASIC,
                            .operation = FIRE_ANALYZE };
    uint64_t count;
    enum fire_status status;

    if (fire_view_count(&row->before->shape, &task->options, &count, NULL) != FIRE_OK)
        return FIRE_OK;
    for (int i = 0; i < 2; i++) {
        const struct safetensors_entry *entry = i ? row->after : row->before;

        tensors[i] = (struct fire_tensor){ .name = entry->name,
                                           .dtype = entry->dtype,
                                           .shape = entry->shape,
                                           .options = task->options,
                                           .data = entry->data };
    }
    status = fire_client_start(run->client, &set, error);
    if (status != FIRE_OK)
        return status;
    firectl_client_wait(run->client, &set, &run->limit);
    status = firectl_limit_check(&run->limit, "", error);
    if (status != FIRE_OK)
        return status;
    if (set.status != FIRE_OK && set.status != FIRE_BAD_REQUEST) {
        *error = set.error;
        run->code = set.code;
        return set.status;
    }
    if (tensors[0].error.status == FIRE_OK)
        row->result.before = tensors[0].result.before;
    if (tensors[1].error.status == FIRE_OK)
        row->result.after = tensors[1].result.before;
    return FIRE_OK;
}

static enum fire_status compare_one(struct run *run, const struct firectl_task *task,
                                    struct fire_error *error)
{
    struct row row = { .before = task->entry, .reason = "" };
    enum fire_status status = FIRE_OK;

    row.after = safetensors_find(run->sets[1], task->entry->name);
    fire_result_init(&row.result);
    if (!row.after) {
        row.action = "missing";
        row.reason = "only in the first";
        run->missing++;
    } else if (!arch_same_shape(row.before, row.after)) {
        row.action = "changed";
        row.reason = "shape or dtype differ";
        run->changed++;
    } else {
        const bool same = memcmp(row.before->data, row.after->data, row.before->bytes) == 0;

        row.action = same ? "same" : "changed";
        run->same += same;
        run->changed += !same;
        if (row.before->floating && row.before->bytes > 0) {
            status = analyze_both(run, task, &row, error);
            firectl_distance(row.before, row.after, &row.result);
        }
    }
    firectl_progress_clear(&run->progress);
    if (status == FIRE_OK)
        print_row(run, &row);
    safetensors_done_with(run->sets[0], row.before);
    if (row.after)
        safetensors_done_with(run->sets[1], row.after);
    firectl_progress_add(&run->progress, row.before->bytes);
    return status;
}

static enum fire_status check_stop(const struct run *run, struct fire_error *error)
{
    enum fire_status status = firectl_limit_check(&run->limit, "", error);

    for (size_t i = 0; i < sizeof(run->sets) / sizeof(run->sets[0]) && status == FIRE_OK; i++)
        status = safetensors_check_unchanged(run->sets[i], error);
    return status;
}

static enum fire_status compare_all(struct run *run, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; status == FIRE_OK && i < run->tasks.count; i++) {
        status = check_stop(run, error);
        if (status == FIRE_OK && firectl_is_selected(run->args, run->tasks.items[i].entry->name))
            status = compare_one(run, &run->tasks.items[i], error);
    }
    for (size_t i = 0; status == FIRE_OK && i < safetensors_count(run->sets[1]); i++) {
        struct row row = { .after = safetensors_at(run->sets[1], i),
                           .action = "missing",
                           .reason = "only in the second" };

        if (safetensors_find(run->sets[0], row.after->name) ||
            !firectl_is_selected(run->args, row.after->name))
            continue;
        fire_result_init(&row.result);
        print_row(run, &row);
        run->missing++;
    }
    firectl_progress_clear(&run->progress);
    return status;
}

static void print_summary(struct run *run)
{
    const uint64_t tensors = run->same + run->changed + run->missing;
    const double seconds = firectl_now_s() - run->limit.started_s;
    json_t *object;

    if (!run->args->json) {
        printf("%" PRIu64 " tensors: %" PRIu64 " the same, %" PRIu64 " changed, %" PRIu64
               " missing in one of the two\n",
               tensors, run->same, run->changed, run->missing);
        return;
    }
    object =
        json_pack("{s:b, s:I, s:I, s:I, s:I, s:f}", "summary", 1, "tensors", (json_int_t)tensors,
                  "same", (json_int_t)run->same, "changed", (json_int_t)run->changed, "missing",
                  (json_int_t)run->missing, "seconds", seconds);
    if (!object || json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15)) != 0 ||
        putchar('\n') == EOF)
        run->failed = true;
    json_decref(object);
}

static enum fire_status open_all(struct run *run, struct fire_error *error)
{
    enum fire_status status = safetensors_open(run->args->inputs[0], &run->sets[0], error);

    if (status == FIRE_OK)
        status = safetensors_open(run->args->inputs[1], &run->sets[1], error);
    if (status == FIRE_OK)
        status = firectl_tasks_init(&run->tasks, run->args, run->sets[0], error);
    if (status == FIRE_OK)
        status = firectl_client_open(&run->limit, &run->client, error);
    return status;
}

static enum firectl_exit compute(struct run *run)
{
    struct fire_error error = { 0 };
    const uint64_t total = firectl_tasks_bytes(&run->tasks);

    firectl_progress_init(&run->progress, run->args, total);
    run->color = firectl_color(run->args, stdout);
    if (!run->args->json)
        printf("%-48s  %-20s  %-5s  %-8s%12s%12s%12s%12s\n", "tensor", "shape", "dtype", "action",
               "SFE", "SFE rel.", "DfI first", "DfI second");
    if (compare_all(run, &error) != FIRE_OK) {
        (void)firectl_fail(&error);
        return firectl_failed(run->args, run->code, &error);
    }
    print_summary(run);
    if (fflush(stdout) != 0 || ferror(stdout) || run->failed) {
        firectl_say("the comparison could not be written in full: %s", strerror(errno));
        return FIRECTL_FAILED;
    }
    return firectl_thresholds_exit(run->thresholds);
}

enum firectl_exit firectl_compare(const struct firectl_args *args)
{
    struct run run = { .args = args, .limit = { args, firectl_now_s() } };
    struct fire_error error = { 0 };
    enum firectl_exit code = firectl_begin(args, &run.thresholds);

    if (code != FIRECTL_DONE)
        return code;
    if (open_all(&run, &error) != FIRE_OK)
        code = firectl_fail(&error);
    else
        code = compute(&run);
    firectl_tasks_release(&run.tasks);
    firectl_thresholds_close(run.thresholds);
    fire_client_close(run.client);
    safetensors_close(run.sets[1]);
    safetensors_close(run.sets[0]);
    return code;
}
