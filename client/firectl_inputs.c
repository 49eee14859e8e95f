/* firectl_inputs: files beside the weights: activations or their means, gradients, initial weights.
 * Every tensor in them must belong to one of the checkpoint, so a misspelt name is found. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "firectl.h"

#define NAME_BYTES_MAX 1200u

/* The entry called `parameter` + `ending`, or NULL. */
static const struct safetensors_entry *find_beside(const struct safetensors *set,
                                                   const char *parameter, const char *ending)
{
    char name[NAME_BYTES_MAX];

    if (!set || snprintf(name, sizeof(name), "%s%s", parameter, ending) >= (int)sizeof(name))
        return NULL;
    return safetensors_find(set, name);
}

/* Every name must be that of a task followed by one of `endings`. */
static enum fire_status check_names(const struct safetensors *set, const char *path,
                                    const struct firectl_tasks *tasks, const char *const *endings,
                                    struct fire_error *error)
{
    for (size_t i = 0; i < safetensors_count(set); i++) {
        const struct safetensors_entry *entry = safetensors_at(set, i);
        bool known = false;

        for (size_t e = 0; endings[e] && !known; e++) {
            const size_t length = strlen(entry->name);
            const size_t ending = strlen(endings[e]);
            char name[NAME_BYTES_MAX];

            if (length <= ending || length - ending >= sizeof(name) ||
                strcmp(entry->name + length - ending, endings[e]) != 0)
                continue;
            snprintf(name, sizeof(name), "%.*s", (int)(length - ending), entry->name);
            known = firectl_tasks_find(tasks, name) != NULL;
        }
        if (!known)
            return fire_fail(error, FIRE_NOT_FOUND, entry->name,
                             "'%.100s' in %.100s belongs to no tensor of the checkpoint; names are "
                             "PARAMETER%s%s%s",
                             entry->name, path, endings[0], endings[1] ? " or PARAMETER" : "",
                             endings[1] ? endings[1] : "");
    }
    return FIRE_OK;
}

static enum fire_status open_one(const char *path, const struct firectl_tasks *tasks,
                                 const char *const *endings, struct safetensors **set,
                                 struct fire_error *error)
{
    enum fire_status status;

    *set = NULL;
    if (!path)
        return FIRE_OK;
    status = safetensors_open(path, set, error);
    if (status != FIRE_OK || !endings)
        return status;
    return check_names(*set, path, tasks, endings, error);
}

enum fire_status firectl_inputs_open(struct firectl_inputs *inputs, const struct firectl_args *args,
                                     const struct firectl_tasks *tasks, struct fire_error *error)
{
    static const char *const activation_endings[] = { ".activations", ".unit_means", NULL };
    static const char *const gradient_endings[] = { ".grad", NULL };
    enum fire_status status;

    *inputs = (struct firectl_inputs){ 0 };
    status = open_one(args->activations, tasks, activation_endings, &inputs->activations, error);
    if (status == FIRE_OK)
        status = open_one(args->gradients, tasks, gradient_endings, &inputs->gradients, error);
    if (status == FIRE_OK)
        status = open_one(args->init, tasks, NULL, &inputs->init, error);
    for (size_t i = 0; status == FIRE_OK && !inputs->init && i < tasks->count; i++) {
        if (tasks->items[i].kind == FIRECTL_RESET)
            status = fire_fail(error, FIRE_BAD_REQUEST, "init",
                               "preset %s resets '%.100s' to its initial weights; give them with "
                               "--init FILE",
                               tasks->items[i].options.preset, tasks->items[i].entry->name);
    }
    if (status != FIRE_OK)
        firectl_inputs_close(inputs);
    return status;
}

void firectl_inputs_close(struct firectl_inputs *inputs)
{
    safetensors_close(inputs->activations);
    safetensors_close(inputs->gradients);
    safetensors_close(inputs->init);
    *inputs = (struct firectl_inputs){ 0 };
}

bool firectl_same_file(const char *a, const char *b)
{
    struct stat first, second;

    return stat(a, &first) == 0 && stat(b, &second) == 0 && S_ISREG(first.st_mode) &&
           first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

enum fire_status firectl_inputs_check_output(const struct firectl_args *args, const char *path,
                                             struct fire_error *error)
{
    const char *const reads[] = { args->inputs[0], args->state, args->init, args->activations,
                                  args->gradients };

    for (size_t i = 0; i < sizeof(reads) / sizeof(reads[0]); i++) {
        if (reads[i] && firectl_same_file(path, reads[i]))
            return fire_fail(error, FIRE_BAD_REQUEST, "output",
                             "the output %.200s is a file that is read; give another name, inputs "
                             "are never changed",
                             path);
    }
    return FIRE_OK;
}

/* Output units of the weight: what activations must have as their last axis. */
static uint64_t unit_count_of(const struct fire_tensor *tensor)
{
    const uint32_t stack = tensor->options.stack;

    if (tensor->options.layout == FIRE_LAYOUT_IN_OUT)
        return tensor->shape.size[tensor->shape.axes - 1];
    return stack < tensor->shape.axes ? tensor->shape.size[stack] : 0;
}

static enum fire_status check_floating(const struct safetensors_entry *entry,
                                       struct fire_error *error)
{
    if (entry->floating && !entry->too_many_axes && entry->bytes > 0)
        return FIRE_OK;
    return fire_fail(error, FIRE_BAD_REQUEST, entry->name,
                     "'%.200s' is %s with %llu bytes; it must be F64, F32, BF16 or F16 and not "
                     "empty",
                     entry->name, entry->dtype_name, (unsigned long long)entry->bytes);
}

static enum fire_status attach_activations(const struct safetensors_entry *entry, bool means_given,
                                           bool spectrum, struct firectl_task *task,
                                           struct fire_tensor *tensor, double **means,
                                           struct fire_error *error)
{
    const uint32_t axes = entry->shape.axes;
    const uint64_t units = axes ? entry->shape.size[axes - 1] : 1;
    enum fire_status status = check_floating(entry, error);
    uint64_t samples;

    if (status != FIRE_OK)
        return status;
    if (units != unit_count_of(tensor) || (means_given && axes != 1))
        return fire_fail(error, FIRE_BAD_REQUEST, entry->name,
                         "'%.100s' has %llu units in its last axis, but '%.100s' has %llu output "
                         "units",
                         entry->name, (unsigned long long)units, tensor->name,
                         (unsigned long long)unit_count_of(tensor));
    samples = entry->bytes / fire_dtype_bytes(entry->dtype) / units;
    *means = calloc(units, sizeof(**means));
    if (!*means)
        return fire_fail_memory(error, units * sizeof(**means));
    fire_unit_means(entry->data, entry->dtype, samples, units, *means);
    tensor->unit_means = *means;
    tensor->unit_count = units;
    if (spectrum && !means_given)
        status = fire_moment_of_features(entry->data, entry->dtype, samples, units, &task->features,
                                         error);
    return status;
}

static bool same_axes(const struct fire_shape *a, const struct fire_shape *b)
{
    if (a->axes != b->axes)
        return false;
    for (uint32_t axis = 0; axis < a->axes; axis++) {
        if (a->size[axis] != b->size[axis])
            return false;
    }
    return true;
}

static enum fire_status attach_gradient(const struct safetensors_entry *entry, bool spectrum,
                                        struct firectl_task *task, struct fire_tensor *tensor,
                                        struct fire_error *error)
{
    enum fire_status status = check_floating(entry, error);
    uint64_t elements;

    if (status != FIRE_OK)
        return status;
    if (!same_axes(&entry->shape, &tensor->shape))
        return fire_fail(error, FIRE_BAD_REQUEST, entry->name,
                         "'%.100s' and '%.100s' differ in shape; a gradient has the shape of its "
                         "weight",
                         entry->name, tensor->name);
    tensor->gradient = entry->data;
    tensor->gradient_dtype = entry->dtype;
    elements = entry->bytes / fire_dtype_bytes(entry->dtype);
    if (spectrum && entry->shape.axes >= 2)
        status = fire_moment_of_features(entry->data, entry->dtype, entry->shape.size[0],
                                         elements / entry->shape.size[0], &task->gradient, error);
    return status;
}

enum fire_status firectl_inputs_attach(const struct firectl_inputs *inputs,
                                       const struct firectl_args *args, struct firectl_task *task,
                                       struct fire_tensor *tensor, double **means,
                                       struct fire_error *error)
{
    const struct safetensors_entry *given =
        find_beside(inputs->activations, tensor->name, ".unit_means");
    const struct safetensors_entry *activations =
        find_beside(inputs->activations, tensor->name, ".activations");
    const struct safetensors_entry *gradient =
        find_beside(inputs->gradients, tensor->name, ".grad");
    enum fire_status status = FIRE_OK;

    if (given)
        status = attach_activations(given, true, false, task, tensor, means, error);
    else if (activations)
        status = attach_activations(activations, false, args->spectrum, task, tensor, means, error);
    if (status == FIRE_OK && gradient)
        status = attach_gradient(gradient, args->spectrum, task, tensor, error);
    return status;
}
