/* firectl_reinit: IN -> windows -> libfire -> writer thread -> OUT, and the state beside it.
 *
 * Nothing is in place until everything has succeeded: one refused tensor, a full disk, a signal or
 * a passed deadline leaves no output. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "firectl.h"

struct run {
    const struct firectl_args *args;
    struct safetensors *set;
    struct firectl_tasks tasks;
    struct firectl_inputs inputs;
    struct fire_client *client;
    struct firectl_thresholds *thresholds;
    struct firectl_report report;
    struct firectl_progress progress;
    struct firectl_state *state;
    struct safetensors_writer *file; /* NULL in a dry run */
    struct firectl_writer *writer;
    struct firectl_window windows[FIRECTL_WINDOWS];
    uint32_t filling; /* the window that tensors are added to */
    int code;         /* gRPC code of the first refusal by a daemon */
    struct firectl_limit limit;
    size_t read_ahead; /* first task that was not announced to the kernel */
    bool written;
};

static enum fire_status push(struct run *run, const struct safetensors_entry *entry,
                             const void *bytes, void *owned, struct fire_error *error)
{
    if (run->writer)
        return firectl_writer_push(run->writer, entry, bytes, owned, error);
    free(owned);
    return FIRE_OK;
}

/* Gives every tensor tied to `source` the same new bytes. */
static enum fire_status finish_ties(struct run *run, const struct firectl_task *source,
                                    const void *bytes, struct fire_error *error)
{
    const size_t index = (size_t)(source - run->tasks.items);
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; source->is_source && status == FIRE_OK && i < run->tasks.count; i++) {
        struct firectl_task *task = &run->tasks.items[i];

        if (task->kind != FIRECTL_TIED || task->source != index)
            continue;
        task->result = source->result;
        task->action = source->action;
        task->finished = true;
        firectl_progress_add(&run->progress, task->entry->bytes);
        status = push(run, task->entry, bytes, NULL, error);
        if (status == FIRE_OK)
            status = firectl_state_task(run->state, task, bytes, error);
    }
    return status;
}

/* A task whose new bytes are known: state, ties, file, row. Takes over `owned`. */
static enum fire_status finish_task(struct run *run, struct firectl_task *task, const void *bytes,
                                    void *owned, struct fire_error *error)
{
    enum fire_status status = firectl_state_task(run->state, task, bytes, error);

    if (status == FIRE_OK)
        status = finish_ties(run, task, bytes, error);
    task->finished = status == FIRE_OK;
    if (status != FIRE_OK) {
        struct fire_error later = { 0 };

        /* A tie that is still queued reads these bytes: they are freed in their turn. */
        (void)push(run, task->entry, bytes == task->entry->data ? NULL : bytes, owned, &later);
        return status;
    }
    firectl_progress_add(&run->progress, task->entry->bytes);
    return push(run, task->entry, bytes == task->entry->data ? NULL : bytes, owned, error);
}

static enum fire_status check_stop(const struct run *run, struct fire_error *error)
{
    const enum fire_status status =
        firectl_limit_check(&run->limit, "; nothing was written", error);

    return status == FIRE_OK ? safetensors_check_unchanged(run->set, error) : status;
}

/* Waits for a window and hands its tensors on. All of its refusals are shown before it fails. */
static enum fire_status finish_window(struct run *run, struct firectl_window *window,
                                      struct fire_error *error)
{
    enum fire_status status;
    enum fire_status computed;

    if (!window->started)
        return FIRE_OK;
    firectl_client_wait(run->client, &window->set, &run->limit);
    status = check_stop(run, error);
    computed = window->set.status;
    if (!run->code)
        run->code = window->set.code;
    for (size_t i = 0; i < window->count; i++) {
        struct fire_tensor *tensor = &window->tensors[i];
        struct firectl_task *task = window->tasks[i];
        struct fire_error later = { 0 };
        void *out = tensor->out;

        task->result = tensor->result;
        safetensors_done_with(run->set, task->entry);
        if (tensor->error.status != FIRE_OK) {
            task->finished = true;
            firectl_progress_clear(&run->progress);
            if (!firectl_is_fatal(computed))
                firectl_say("%s", tensor->error.message);
            snprintf(task->reason, sizeof(task->reason), "%s",
                     firectl_refusal(&window->set, tensor));
            continue;
        }
        if (computed != FIRE_OK) {
            task->finished = true;
            continue;
        }
        tensor->out = NULL; /* handed on */
        if (status == FIRE_OK) {
            status = finish_task(run, task, out, out, &later);
            if (status != FIRE_OK)
                *error = later;
        } else {
            free(out);
        }
    }
    firectl_window_clear(window);
    firectl_progress_clear(&run->progress);
    firectl_report_ready(&run->report, &run->tasks);
    if (computed == FIRE_OK || status != FIRE_OK)
        return status;
    if (firectl_is_fatal(computed))
        return fire_fail(error, computed, NULL, "nothing was written: %.480s",
                         window->set.error.message);
    return fire_fail(error, computed, NULL, "nothing was written, because a tensor was refused");
}

/* Begins to compute the tensors gathered so far and finishes the window before it: while one is
 * written and the next is read, the device has work. */
static enum fire_status run_window(struct run *run, struct fire_error *error)
{
    struct firectl_window *window = &run->windows[run->filling];
    enum fire_status status = check_stop(run, error);

    if (status != FIRE_OK)
        return status;
    if (window->count > 0)
        status = firectl_window_start(window, run->client, FIRE_REINIT, run->args, error);
    run->filling = (run->filling + 1) % FIRECTL_WINDOWS;
    return status == FIRE_OK ? finish_window(run, &run->windows[run->filling], error) : status;
}

void firectl_distance(const struct safetensors_entry *before, const struct safetensors_entry *after,
                      struct fire_result *result)
{
    const uint64_t elements = before->bytes / fire_dtype_bytes(before->dtype);
    double sfe = 0.0, before_square = 0.0, after_square = 0.0;

    for (uint64_t i = 0; i < elements; i++) {
        const double a = fire_dtype_element(before->dtype, before->data, i);
        const double b = fire_dtype_element(after->dtype, after->data, i);

        sfe += (a - b) * (a - b);
        before_square += a * a;
        after_square += b * b;
    }
    result->sfe = sfe;
    result->sfe_relative = before_square > 0.0 ? sfe / before_square : NAN;
    result->before.norm = sqrt(before_square);
    result->after.norm = sqrt(after_square);
    result->norm_preservation = before_square > 0.0 ? sqrt(after_square / before_square) : NAN;
}

/* Takes the initial weights of a tensor. */
static enum fire_status reset_task(struct run *run, struct firectl_task *task,
                                   struct fire_error *error)
{
    const struct safetensors_entry *init = safetensors_find(run->inputs.init, task->entry->name);

    if (!init || !arch_same_shape(init, task->entry))
        return fire_fail(error, FIRE_BAD_REQUEST, task->entry->name,
                         "--init has no tensor '%.100s' of the same shape and dtype to reset to",
                         task->entry->name);
    task->action = "reset";
    task->result.action = FIRE_ACTION_SKIPPED;
    task->result.status = FIRE_OK;
    snprintf(task->reason, sizeof(task->reason), "initial weights");
    firectl_distance(task->entry, init, &task->result);
    return finish_task(run, task, init->data, NULL, error);
}

/* Announces tensors up to a window ahead, so that the disk works while the processor does. */
static void read_ahead(struct run *run, size_t index)
{
    uint64_t bytes = 0;

    if (run->read_ahead < index)
        run->read_ahead = index;
    for (size_t i = index; i < run->read_ahead && i < run->tasks.count; i++)
        bytes += run->tasks.items[i].entry->bytes;
    while (run->read_ahead < run->tasks.count && bytes < FIRECTL_WINDOW_BYTES) {
        const struct safetensors_entry *entry = run->tasks.items[run->read_ahead++].entry;

        safetensors_will_need(run->set, entry);
        bytes += entry->bytes;
    }
}

static enum fire_status run_tasks(struct run *run, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; status == FIRE_OK && i < run->tasks.count; i++) {
        struct firectl_task *task = &run->tasks.items[i];

        switch (task->kind) {
        case FIRECTL_SKIP: status = finish_task(run, task, task->entry->data, NULL, error); break;
        case FIRECTL_RESET: status = reset_task(run, task, error); break;
        case FIRECTL_TIED: break; /* finished with its source */
        case FIRECTL_PROJECT:
            status = firectl_window_add(&run->windows[run->filling], task, &run->inputs, run->args,
                                        error);
            break;
        }
        if (status == FIRE_OK && firectl_window_full(&run->windows[run->filling])) {
            read_ahead(run, i + 1);
            status = run_window(run, error);
        }
    }
    for (uint32_t i = 0; status == FIRE_OK && i < FIRECTL_WINDOWS; i++)
        status = run_window(run, error);
    firectl_report_ready(&run->report, &run->tasks);
    return status;
}

static enum fire_status open_output(struct run *run, struct fire_error *error)
{
    enum fire_status status;

    if (run->args->dry_run)
        return FIRE_OK;
    status = safetensors_writer_open(run->set, run->args->output, &run->file, error);
    if (status == FIRE_OK)
        status = firectl_inputs_check_output(run->args, run->args->output, error);
    if (status == FIRE_OK)
        status = firectl_writer_open(run->set, run->file, &run->writer, error);
    return status;
}

static enum fire_status open_all(struct run *run, struct fire_error *error)
{
    enum fire_status status = safetensors_open(run->args->inputs[0], &run->set, error);

    if (status == FIRE_OK)
        status = firectl_tasks_init(&run->tasks, run->args, run->set, error);
    if (status == FIRE_OK)
        status = firectl_inputs_open(&run->inputs, run->args, &run->tasks, error);
    if (status == FIRE_OK)
        status = open_output(run, error);
    if (status == FIRE_OK)
        status = firectl_state_open(run->args, &run->tasks, &run->state, error);
    if (status == FIRE_OK)
        status = firectl_client_open(&run->limit, &run->client, error);
    return status;
}

static enum fire_status commit(struct run *run, struct fire_error *error)
{
    enum fire_status status = check_stop(run, error);

    if (status != FIRE_OK || !run->writer)
        return status;
    /* Weights whose report is lost are weights nobody knows about. */
    if (fflush(run->report.stream) != 0 || ferror(run->report.stream) || run->report.failed)
        return fire_fail(error, FIRE_IO, NULL,
                         "the report could not be written: %s; so nothing was written",
                         ferror(run->report.stream) ? strerror(errno) : "a row could not be made");
    status = firectl_writer_finish(run->writer, error);
    if (status == FIRE_OK) /* which has read what is not projected */
        status = safetensors_check_unchanged(run->set, error);
    if (status == FIRE_OK)
        status = firectl_state_commit(run->state, &run->tasks, error);
    if (status == FIRE_OK)
        status = safetensors_writer_commit(run->file, error);
    run->written = status == FIRE_OK;
    return status;
}

static void close_all(struct run *run)
{
    firectl_writer_close(run->writer);
    firectl_state_close(run->state);
    safetensors_writer_close(run->file);
    fire_client_close(run->client); /* first: it ends what reads and writes the windows */
    for (uint32_t i = 0; i < FIRECTL_WINDOWS; i++)
        firectl_window_release(&run->windows[i]);
    firectl_inputs_close(&run->inputs);
    firectl_tasks_release(&run->tasks);
    firectl_thresholds_close(run->thresholds);
    safetensors_close(run->set);
}

/* Runs an opened command and reports on it. */
static enum firectl_exit compute(struct run *run)
{
    struct firectl_summary summary = { .args = run->args, .tasks = &run->tasks };
    struct fire_error error = { 0 };
    struct fire_caps caps = { 0 };
    enum firectl_exit code = FIRECTL_DONE;
    enum firectl_exit reported;
    const uint64_t total = firectl_tasks_bytes(&run->tasks);

    firectl_progress_init(&run->progress, run->args, total);
    firectl_report_init(&run->report, run->args, run->set, run->thresholds);
    for (uint32_t i = 0; i < FIRECTL_WINDOWS; i++) {
        firectl_window_init(&run->windows[i], true);
        firectl_window_fit(&run->windows[i], total);
    }
    read_ahead(run, 0);
    if (run_tasks(run, &error) != FIRE_OK || commit(run, &error) != FIRE_OK) {
        firectl_progress_clear(&run->progress);
        (void)firectl_fail(&error);
        code = firectl_failed(run->args, run->code, &error);
    }
    firectl_progress_clear(&run->progress);
    fire_client_caps(run->client, &caps);
    summary.caps = &caps;
    summary.seconds = firectl_now_s() - run->limit.started_s;
    summary.written = run->written;
    reported = firectl_report_end(&run->report, &summary);
    if (code == FIRECTL_DONE)
        code = reported;
    if (code == FIRECTL_DONE)
        code = firectl_thresholds_exit(run->thresholds);
    return code;
}

enum firectl_exit firectl_reinit(const struct firectl_args *args)
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
    close_all(&run);
    return code;
}
