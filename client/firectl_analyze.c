/* firectl_analyze: statistics of what reinit would project. A tensor with a fault does not stop the
 * others; the exit code tells. */
#include <stdlib.h>

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
    struct firectl_window windows[FIRECTL_WINDOWS];
    uint32_t filling; /* the window that tensors are added to */
    int code;         /* gRPC code of the first refusal by a daemon */
    struct firectl_limit limit;
};

static enum fire_status check_stop(const struct run *run, struct fire_error *error)
{
    const enum fire_status status = firectl_limit_check(&run->limit, "", error);

    return status == FIRE_OK ? safetensors_check_unchanged(run->set, error) : status;
}

/* Waits for a window and takes its results. */
static enum fire_status finish_window(struct run *run, struct firectl_window *window,
                                      struct fire_error *error)
{
    enum fire_status status;

    if (!window->started)
        return FIRE_OK;
    firectl_client_wait(run->client, &window->set, &run->limit);
    status = check_stop(run, error);
    if (!run->code)
        run->code = window->set.code;
    /* A daemon that is gone is the command's failure, a bad tensor its own. */
    if (status == FIRE_OK && firectl_is_fatal(window->set.status)) {
        *error = window->set.error;
        status = error->status;
    }
    firectl_progress_clear(&run->progress);
    for (size_t i = 0; i < window->count; i++) {
        struct firectl_task *task = window->tasks[i];

        task->result = window->tensors[i].result;
        if (window->tensors[i].error.status != FIRE_OK) {
            if (status == FIRE_OK)
                firectl_say("%s", window->tensors[i].error.message);
            snprintf(task->reason, sizeof(task->reason), "%s",
                     firectl_refusal(&window->set, &window->tensors[i]));
        }
        task->finished = true;
        safetensors_done_with(run->set, task->entry);
        firectl_progress_add(&run->progress, task->entry->bytes);
    }
    firectl_window_clear(window);
    firectl_progress_clear(&run->progress);
    firectl_report_ready(&run->report, &run->tasks);
    return status;
}

/* Begins to compute the tensors gathered so far and takes the window before it. */
static enum fire_status run_window(struct run *run, struct fire_error *error)
{
    struct firectl_window *window = &run->windows[run->filling];
    enum fire_status status = check_stop(run, error);

    if (status != FIRE_OK)
        return status;
    if (window->count > 0)
        status = firectl_window_start(window, run->client, FIRE_ANALYZE, run->args, error);
    run->filling = (run->filling + 1) % FIRECTL_WINDOWS;
    return status == FIRE_OK ? finish_window(run, &run->windows[run->filling], error) : status;
}

static enum fire_status run_tasks(struct run *run, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; status == FIRE_OK && i < run->tasks.count; i++) {
        struct firectl_task *task = &run->tasks.items[i];

        /* A tied pair is one weight, and a weight to be reset has statistics too: all of them are
         * analyzed for themselves. */
        if (task->kind == FIRECTL_TIED || (task->kind == FIRECTL_RESET && task->entry->floating &&
                                           task->entry->shape.axes >= 2)) {
            task->kind = FIRECTL_PROJECT;
            task->reason[0] = '\0';
        }
        if (task->kind != FIRECTL_PROJECT) {
            task->kind = FIRECTL_SKIP;
            task->finished = true;
            firectl_progress_add(&run->progress, task->entry->bytes);
            continue;
        }
        status =
            firectl_window_add(&run->windows[run->filling], task, &run->inputs, run->args, error);
        if (status == FIRE_OK && firectl_window_full(&run->windows[run->filling]))
            status = run_window(run, error);
    }
    for (uint32_t i = 0; status == FIRE_OK && i < FIRECTL_WINDOWS; i++)
        status = run_window(run, error);
    firectl_report_ready(&run->report, &run->tasks);
    return status;
}

/* Initial weights are not needed to look at the present ones. */
static enum fire_status open_inputs(struct run *run, struct fire_error *error)
{
    for (size_t i = 0; i < run->tasks.count; i++) {
        if (run->tasks.items[i].kind == FIRECTL_RESET)
            run->tasks.items[i].kind =
                run->tasks.items[i].entry->shape.axes >= 2 ? FIRECTL_PROJECT : FIRECTL_SKIP;
    }
    return firectl_inputs_open(&run->inputs, run->args, &run->tasks, error);
}

static enum fire_status open_all(struct run *run, struct fire_error *error)
{
    enum fire_status status = safetensors_open(run->args->inputs[0], &run->set, error);

    if (status == FIRE_OK)
        status = firectl_tasks_init(&run->tasks, run->args, run->set, error);
    if (status == FIRE_OK)
        status = open_inputs(run, error);
    if (status == FIRE_OK)
        status = firectl_client_open(&run->limit, &run->client, error);
    return status;
}

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
    for (uint32_t i = 0; i < FIRECTL_WINDOWS; i++)
        firectl_window_init(&run->windows[i], false);
    if (run_tasks(run, &error) != FIRE_OK) {
        firectl_progress_clear(&run->progress);
        (void)firectl_fail(&error);
        code = firectl_failed(run->args, run->code, &error);
    }
    firectl_progress_clear(&run->progress);
    fire_client_caps(run->client, &caps);
    summary.caps = &caps;
    summary.seconds = firectl_now_s() - run->limit.started_s;
    reported = firectl_report_end(&run->report, &summary);
    if (run->report.refused > 0 && code == FIRECTL_DONE)
        code = firectl_refused(run->code);
    if (code == FIRECTL_DONE)
        code = reported;
    if (code == FIRECTL_DONE)
        code = firectl_thresholds_exit(run->thresholds);
    return code;
}

enum firectl_exit firectl_analyze(const struct firectl_args *args)
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
    fire_client_close(run.client); /* first: it ends what reads the windows */
    for (uint32_t i = 0; i < FIRECTL_WINDOWS; i++)
        firectl_window_release(&run.windows[i]);
    firectl_inputs_close(&run.inputs);
    firectl_tasks_release(&run.tasks);
    firectl_thresholds_close(run.thresholds);
    safetensors_close(run.set);
    return code;
}
