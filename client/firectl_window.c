/* firectl_window: tensors that are computed together. A window bounds the memory in use, whatever
 * the size of the checkpoint; the next one is read ahead while it computes. */
#include <stdlib.h>
#include <string.h>

#include "firectl.h"

uint32_t firectl_statistics(const struct firectl_args *args)
{
    uint32_t statistics = FIRE_STATISTICS_BASIC;

    if (args->spectrum)
        statistics |= FIRE_STATISTICS_SPECTRUM;
    if (args->residual)
        statistics |= FIRE_STATISTICS_RESIDUAL;
    return statistics;
}

void firectl_window_init(struct firectl_window *window, bool with_output)
{
    *window =
        (struct firectl_window){ .with_output = with_output, .bytes_max = FIRECTL_WINDOW_BYTES };
}

void firectl_window_fit(struct firectl_window *window, uint64_t total_bytes)
{
    const uint64_t share = total_bytes / FIRECTL_WINDOW_SHARE;

    window->bytes_max = share < FIRECTL_WINDOW_BYTES_MIN ? FIRECTL_WINDOW_BYTES_MIN
                        : share < FIRECTL_WINDOW_BYTES   ? share
                                                         : FIRECTL_WINDOW_BYTES;
}

static enum fire_status make_room(struct firectl_window *window, struct fire_error *error)
{
    const size_t room = window->room ? 2 * window->room : 64;
    void *tensors, *tasks, *means;

    if (window->count < window->room)
        return FIRE_OK;
    tensors = realloc(window->tensors, room * sizeof(*window->tensors));
    if (tensors)
        window->tensors = tensors;
    tasks = realloc(window->tasks, room * sizeof(*window->tasks));
    if (tasks)
        window->tasks = tasks;
    means = realloc(window->means, room * sizeof(*window->means));
    if (means)
        window->means = means;
    if (!tensors || !tasks || !means)
        return fire_fail_memory(error, room * sizeof(*window->tensors));
    window->room = room;
    return FIRE_OK;
}

/* Room for one result a matrix. A shape that makes no matrices is left for the library to refuse
 * with its own words. */
static enum fire_status make_per_matrix(struct firectl_task *task, struct fire_error *error)
{
    struct fire_error ignored;

    if (fire_view_count(&task->entry->shape, &task->options, &task->matrices, &ignored) != FIRE_OK)
        return FIRE_OK;
    task->per_matrix = calloc(task->matrices, sizeof(*task->per_matrix));
    if (!task->per_matrix)
        return fire_fail_memory(error, task->matrices * sizeof(*task->per_matrix));
    for (uint64_t i = 0; i < task->matrices; i++)
        fire_result_init(&task->per_matrix[i]);
    return FIRE_OK;
}

enum fire_status firectl_window_add(struct firectl_window *window, struct firectl_task *task,
                                    const struct firectl_inputs *inputs,
                                    const struct firectl_args *args, struct fire_error *error)
{
    const struct safetensors_entry *entry = task->entry;
    struct fire_tensor *tensor;
    enum fire_status status = make_room(window, error);

    if (status == FIRE_OK && args->per_matrix)
        status = make_per_matrix(task, error);
    if (status != FIRE_OK)
        return status;
    tensor = &window->tensors[window->count];
    *tensor = (struct fire_tensor){ .name = entry->name,
                                    .dtype = entry->dtype,
                                    .shape = entry->shape,
                                    .options = task->options,
                                    .data = entry->data,
                                    .per_matrix = task->per_matrix };
    window->means[window->count] = NULL;
    window->tasks[window->count] = task;
    if (window->with_output) {
        tensor->out = malloc(entry->bytes);
        if (!tensor->out)
            return fire_fail_memory(error, entry->bytes);
    }
    window->count++;
    window->bytes += entry->bytes;
    return firectl_inputs_attach(inputs, args, task, tensor, &window->means[window->count - 1],
                                 error);
}

bool firectl_window_full(const struct firectl_window *window)
{
    return window->bytes >= window->bytes_max || window->count >= FIRECTL_WINDOW_TENSORS;
}

enum fire_status firectl_window_start(struct firectl_window *window, struct fire_client *client,
                                      enum fire_operation operation,
                                      const struct firectl_args *args, struct fire_error *error)
{
    enum fire_status status;

    window->set = (struct fire_set){ .tensors = window->tensors,
                                     .count = window->count,
                                     .statistics = firectl_statistics(args),
                                     .operation = operation };
    status = fire_client_start(client, &window->set, error);
    window->started = status == FIRE_OK;
    return status;
}

void firectl_window_clear(struct firectl_window *window)
{
    for (size_t i = 0; i < window->count; i++) {
        free(window->tensors[i].out);
        free(window->means[i]);
    }
    window->count = 0;
    window->bytes = 0;
    window->started = false;
}

void firectl_window_release(struct firectl_window *window)
{
    firectl_window_clear(window);
    free(window->tensors);
    free(window->tasks);
    free(window->means);
    *window = (struct firectl_window){ 0 };
}
