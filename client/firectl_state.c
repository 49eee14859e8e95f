/* firectl_state: optimizer state that travels in a file beside the weights, tensors named
 * PARAMETER.SLOT. Every tensor of the file is looked at before anything is computed; a slot that no
 * policy knows, or one of no parameter, is refused by name. */
#include <stdlib.h>
#include <string.h>

#include "firectl.h"

#define NAME_BYTES_MAX 1200u

struct firectl_state {
    struct safetensors *set;
    struct safetensors_writer *file; /* NULL in a dry run */
    struct firectl_writer *writer;
};

/* Splits PARAMETER.SLOT. */
static enum fire_status split_name(const char *name, char *parameter, enum fire_state_slot *slot,
                                   struct fire_error *error)
{
    const char *dot = strrchr(name, '.');
    enum fire_status status;

    if (!dot || dot == name || (size_t)(dot - name) >= NAME_BYTES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, name,
                         "'%.200s' in the state file is not called PARAMETER.SLOT", name);
    status = fire_state_slot_parse(dot + 1, slot, error);
    if (status != FIRE_OK) {
        struct fire_error inner = *error;

        return fire_fail(error, status, name, "state tensor '%.120s': %.300s", name, inner.message);
    }
    snprintf(parameter, NAME_BYTES_MAX, "%.*s", (int)(dot - name), name);
    return FIRE_OK;
}

/* The policy acts on this task's state. */
static bool is_touched(const struct firectl_task *task)
{
    return task->options.state_scope == FIRE_STATE_ALL || task->kind == FIRECTL_RESET ||
           task->result.action == FIRE_ACTION_PROJECTED;
}

static enum fire_status check_entry(const struct firectl_tasks *tasks,
                                    const struct safetensors_entry *entry, struct fire_error *error)
{
    char parameter[NAME_BYTES_MAX];
    const struct firectl_task *task;
    enum fire_state_slot slot;
    enum fire_status status = split_name(entry->name, parameter, &slot, error);

    if (status != FIRE_OK)
        return status;
    task = firectl_tasks_find(tasks, parameter);
    if (!task)
        return fire_fail(error, FIRE_NOT_FOUND, entry->name,
                         "state tensor '%.120s' belongs to no tensor of the checkpoint", parameter);
    if (slot == FIRE_SLOT_STEP || task->kind == FIRECTL_SKIP)
        return FIRE_OK;
    if (!entry->floating || entry->shape.axes != task->entry->shape.axes ||
        memcmp(entry->shape.size, task->entry->shape.size,
               entry->shape.axes * sizeof(entry->shape.size[0])) != 0)
        return fire_fail(error, FIRE_BAD_REQUEST, entry->name,
                         "state tensor '%.120s' must be floating and of its parameter's shape",
                         entry->name);
    return FIRE_OK;
}

/* OUT with .state.safetensors in the place of .safetensors. */
static enum fire_status default_output(const struct firectl_args *args, char *path,
                                       size_t path_bytes, struct fire_error *error)
{
    const char *ending = ".safetensors";
    size_t length = strlen(args->output);

    FIRE_ASSERT(strcmp(args->output, "-") != 0); /* firectl_args_check() */
    while (length > 1 && args->output[length - 1] == '/')
        length--;
    if (length > strlen(ending) &&
        strncmp(args->output + length - strlen(ending), ending, strlen(ending)) == 0)
        length -= strlen(ending);
    if (snprintf(path, path_bytes, "%.*s.state.safetensors", (int)length, args->output) >=
        (int)path_bytes)
        return fire_fail(error, FIRE_BAD_REQUEST, "state-out", "the output path is too long");
    return FIRE_OK;
}

static enum fire_status check_output(const struct firectl_args *args, const char *path,
                                     struct fire_error *error)
{
    if (strcmp(path, args->output) == 0 || firectl_same_file(path, args->output))
        return fire_fail(error, FIRE_BAD_REQUEST, "state-out",
                         "weights and state cannot both go to %.200s; say where the state goes "
                         "with --state-out FILE",
                         path);
    return firectl_inputs_check_output(args, path, error);
}

static enum fire_status open_output(struct firectl_state *state, const struct firectl_args *args,
                                    struct fire_error *error)
{
    char path[4096];
    enum fire_status status = FIRE_OK;

    if (args->dry_run)
        return FIRE_OK;
    if (!args->state_out)
        status = default_output(args, path, sizeof(path), error);
    if (status == FIRE_OK)
        status = check_output(args, args->state_out ? args->state_out : path, error);
    if (status == FIRE_OK)
        status = safetensors_writer_open(state->set, args->state_out ? args->state_out : path,
                                         &state->file, error);
    if (status == FIRE_OK)
        status = firectl_writer_open(state->set, state->file, &state->writer, error);
    return status;
}

enum fire_status firectl_state_open(const struct firectl_args *args,
                                    const struct firectl_tasks *tasks, struct firectl_state **out,
                                    struct fire_error *error)
{
    struct firectl_state *state;
    enum fire_status status;

    *out = NULL;
    if (!args->state)
        return FIRE_OK;
    state = calloc(1, sizeof(*state));
    if (!state)
        return fire_fail_memory(error, sizeof(*state));
    status = safetensors_open(args->state, &state->set, error);
    for (size_t i = 0; status == FIRE_OK && i < safetensors_count(state->set); i++)
        status = check_entry(tasks, safetensors_at(state->set, i), error);
    if (status == FIRE_OK)
        status = open_output(state, args, error);
    if (status != FIRE_OK) {
        firectl_state_close(state);
        return status;
    }
    *out = state;
    return FIRE_OK;
}

static enum fire_status transform(const struct firectl_task *task, enum fire_state_slot slot,
                                  const struct safetensors_entry *entry, const void *weights,
                                  void *bytes, struct fire_error *error)
{
    struct fire_options options = task->options;

    /* There is no tangent space to move to at weights that were not projected. */
    if (options.state_policy == FIRE_STATE_TRANSPORT &&
        task->result.action != FIRE_ACTION_PROJECTED)
        options.state_policy = task->kind == FIRECTL_RESET ? FIRE_STATE_RESET : FIRE_STATE_KEEP;
    if (!entry->floating) { /* a counter, or quantised state: all that can be done is 0 */
        if (options.state_policy == FIRE_STATE_RESET ||
            (options.state_policy == FIRE_STATE_ZERO && slot != FIRE_SLOT_STEP))
            memset(bytes, 0, entry->bytes);
        return FIRE_OK;
    }
    return fire_state_apply(&options, slot, &entry->shape, entry->dtype, bytes, &entry->shape,
                            task->entry->floating ? task->entry->dtype : FIRE_F32, weights, error);
}

static enum fire_status write_slot(struct firectl_state *state, const struct firectl_task *task,
                                   const struct safetensors_entry *entry, enum fire_state_slot slot,
                                   const void *weights, struct fire_error *error)
{
    void *bytes = malloc(entry->bytes ? entry->bytes : 1);
    enum fire_status status;

    if (!bytes)
        return fire_fail_memory(error, entry->bytes);
    memcpy(bytes, entry->data, entry->bytes);
    status = transform(task, slot, entry, weights, bytes, error);
    if (status != FIRE_OK || !state->writer) {
        struct fire_error inner = *error;

        free(bytes);
        if (status == FIRE_OK)
            return FIRE_OK;
        return fire_fail(error, status, entry->name, "state tensor '%.120s': %.300s", entry->name,
                         inner.message);
    }
    return firectl_writer_push(state->writer, entry, bytes, bytes, error);
}

enum fire_status firectl_state_task(struct firectl_state *state, struct firectl_task *task,
                                    const void *weights, struct fire_error *error)
{
    static const char *const slots[] = { "exp_avg", "exp_avg_sq", "momentum_buffer", "step" };
    enum fire_status status = FIRE_OK;

    if (!is_touched(task))
        return FIRE_OK;
    task->state = fire_state_policy_name(task->options.state_policy);
    task->state_handled = state != NULL;
    for (size_t i = 0; state && status == FIRE_OK && i < sizeof(slots) / sizeof(slots[0]); i++) {
        char name[NAME_BYTES_MAX];
        const struct safetensors_entry *entry;

        snprintf(name, sizeof(name), "%s.%s", task->entry->name, slots[i]);
        entry = safetensors_find(state->set, name);
        if (entry)
            status = write_slot(state, task, entry, (enum fire_state_slot)i, weights, error);
    }
    return status;
}

enum fire_status firectl_state_commit(struct firectl_state *state,
                                      const struct firectl_tasks *tasks, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    if (!state || !state->writer)
        return FIRE_OK;
    for (size_t i = 0; status == FIRE_OK && i < safetensors_count(state->set); i++) {
        const struct safetensors_entry *entry = safetensors_at(state->set, i);
        char parameter[NAME_BYTES_MAX];
        enum fire_state_slot slot;

        status = split_name(entry->name, parameter, &slot, error);
        if (status == FIRE_OK && !firectl_tasks_find(tasks, parameter)->state_handled)
            status = firectl_writer_push(state->writer, entry, NULL, NULL, error);
    }
    if (status == FIRE_OK)
        status = firectl_writer_finish(state->writer, error);
    if (status == FIRE_OK)
        status = safetensors_writer_commit(state->file, error);
    return status;
}

void firectl_state_close(struct firectl_state *state)
{
    if (!state)
        return;
    firectl_writer_close(state->writer);
    safetensors_writer_close(state->file);
    safetensors_close(state->set);
    free(state);
}
