/* firectl_task: what will happen to every tensor of a set, decided before anything is computed.
 *
 * Order of say: the preset, the architecture's layout and split, then --set in the order given.
 * --include and --exclude only take away from what the architecture selects (--arch none selects
 * everything). A tie makes one of two tensors the source and the other a copy of its new bytes. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "firectl.h"

#define GLOB_BYTES_MAX 1024u

/* Splits "GLOB:key=value": the pair, and the length of the glob (0: none). */
static const char *set_pair(const char *text, size_t *glob_length)
{
    const char *equals = strchr(text, '=');
    const char *colon = equals ? memrchr(text, ':', (size_t)(equals - text)) : NULL;

    *glob_length = colon ? (size_t)(colon - text) : 0;
    return colon ? colon + 1 : text;
}

static bool set_matches(const char *text, size_t glob_length, const char *name)
{
    char glob[GLOB_BYTES_MAX];

    if (glob_length == 0)
        return true;
    snprintf(glob, sizeof(glob), "%.*s", (int)glob_length, text);
    return fnmatch(glob, name, 0) == 0;
}

/* The options every tensor starts from, before per-tensor settings; also checks every --set. */
static enum fire_status base_options(const struct firectl_args *args, struct fire_options *options,
                                     struct fire_error *error)
{
    struct fire_options scratch;
    enum fire_status status =
        fire_options_preset(options, args->preset ? args->preset : "fire", error);

    scratch = *options;
    for (size_t i = 0; status == FIRE_OK && i < args->sets.count; i++) {
        size_t glob_length;
        const char *pair = set_pair(args->sets.items[i], &glob_length);

        if (glob_length >= GLOB_BYTES_MAX)
            return fire_fail(error, FIRE_BAD_REQUEST, "set",
                             "the pattern of a --set is longer than %u bytes", GLOB_BYTES_MAX - 1);
        status = fire_options_set_pair(glob_length ? &scratch : options, pair, error);
    }
    return status;
}

static enum fire_status apply_sets(const struct firectl_args *args, const char *name,
                                   struct fire_options *options, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; status == FIRE_OK && i < args->sets.count; i++) {
        size_t glob_length;
        const char *pair = set_pair(args->sets.items[i], &glob_length);

        if (set_matches(args->sets.items[i], glob_length, name))
            status = fire_options_set_pair(options, pair, error);
    }
    return status;
}

static bool any_matches(const struct firectl_list *globs, const char *name)
{
    for (size_t i = 0; i < globs->count; i++) {
        if (fnmatch(globs->items[i], name, 0) == 0)
            return true;
    }
    return false;
}

bool firectl_is_selected(const struct firectl_args *args, const char *name)
{
    return !any_matches(&args->excludes, name) &&
           (args->includes.count == 0 || any_matches(&args->includes, name));
}

static void leave_alone(struct firectl_task *task, const char *reason)
{
    task->kind = FIRECTL_SKIP;
    snprintf(task->reason, sizeof(task->reason), "%s", reason);
}

static enum firectl_kind kind_of(const struct arch_decision *decision)
{
    if (decision->tied)
        return FIRECTL_TIED;
    switch (decision->verdict) {
    case ARCH_PROJECT: return FIRECTL_PROJECT;
    case ARCH_SKIP: return FIRECTL_SKIP;
    case ARCH_RESET: return FIRECTL_RESET;
    }
    return FIRECTL_SKIP;
}

static enum fire_status decide(struct firectl_tasks *tasks, const struct firectl_args *args,
                               size_t index, struct fire_error *error)
{
    const struct arch_model model = arch_model_of_file(tasks->set);
    struct firectl_task *task = &tasks->items[index];
    struct arch_decision decision;
    enum fire_status status;

    task->entry = safetensors_at(tasks->set, index);
    fire_result_init(&task->result);
    task->features = task->result.before; /* all unknown */
    task->gradient = task->result.before;
    status = fire_options_preset(&task->options, args->preset ? args->preset : "fire", error);
    if (status == FIRE_OK)
        status = apply_sets(args, task->entry->name, &task->options, error);
    if (status != FIRE_OK)
        return status;
    arch_decide(tasks->arch, args->only, &model, task->entry, &task->options, &decision);
    /* Again: what the user says wins over what the architecture says. */
    status = apply_sets(args, task->entry->name, &task->options, error);
    task->kind = kind_of(&decision);
    snprintf(task->reason, sizeof(task->reason), "%s", decision.reason);
    if (task->kind == FIRECTL_TIED) {
        task->source =
            (size_t)(safetensors_find(tasks->set, decision.tied) - safetensors_at(tasks->set, 0));
        FIRE_ASSERT(task->source < tasks->count);
    }
    if (task->kind != FIRECTL_SKIP && !firectl_is_selected(args, task->entry->name))
        leave_alone(task,
                    any_matches(&args->excludes, task->entry->name) ? "excluded" : "not included");
    return status;
}

struct firectl_task *firectl_tasks_find(const struct firectl_tasks *tasks, const char *name)
{
    const struct safetensors_entry *entry = safetensors_find(tasks->set, name);
    struct firectl_task *task;

    if (!entry)
        return NULL;
    task = &tasks->items[entry - safetensors_at(tasks->set, 0)];
    FIRE_ASSERT(task->entry == entry);
    return task;
}

/* The task that others are copies of, following ties of ties. */
static size_t root_of(const struct firectl_tasks *tasks, size_t index)
{
    while (tasks->items[index].kind == FIRECTL_TIED)
        index = tasks->items[index].source;
    return index;
}

static enum fire_status check_tie(const struct firectl_task *a, const struct firectl_task *b,
                                  struct fire_error *error)
{
    const struct safetensors_entry *first = a->entry;
    const struct safetensors_entry *second = b->entry;

    if (!arch_same_shape(first, second))
        return fire_fail(error, FIRE_BAD_REQUEST, "tie",
                         "--tie: '%.100s' and '%.100s' differ in shape or dtype, so they are not "
                         "one weight",
                         first->name, second->name);
    /* A target network may lag behind; under official-dqn it is overwritten all the same. */
    if (a->options.select != FIRE_SELECT_DQN &&
        memcmp(first->data, second->data, first->bytes) != 0)
        return fire_fail(error, FIRE_BAD_REQUEST, "tie",
                         "--tie: '%.100s' and '%.100s' have different values, so they are not one "
                         "weight; leave out the --tie",
                         first->name, second->name);
    return FIRE_OK;
}

/* --tie A=B: the one that is projected becomes the source. */
static enum fire_status tie(struct firectl_tasks *tasks, const char *text, struct fire_error *error)
{
    const char *equals = strchr(text, '=');
    char name[GLOB_BYTES_MAX];
    struct firectl_task *a, *b;
    size_t source, copy;
    enum fire_status status;

    if (!equals || equals == text || equals[1] == '\0' || (size_t)(equals - text) >= sizeof(name))
        return fire_fail(error, FIRE_BAD_REQUEST, "tie",
                         "--tie takes two tensor names, A=B, got '%.100s'", text);
    snprintf(name, sizeof(name), "%.*s", (int)(equals - text), text);
    a = firectl_tasks_find(tasks, name);
    b = firectl_tasks_find(tasks, equals + 1);
    if (!a || !b)
        return fire_fail(error, FIRE_NOT_FOUND, "tie",
                         "--tie: there is no tensor '%.100s' in the file", a ? equals + 1 : name);
    status = check_tie(a, b, error);
    if (status != FIRE_OK)
        return status;
    source = root_of(tasks, (size_t)(a - tasks->items));
    copy = root_of(tasks, (size_t)(b - tasks->items));
    if (source == copy)
        return FIRE_OK;
    if (tasks->items[source].kind == FIRECTL_SKIP && tasks->items[copy].kind != FIRECTL_SKIP) {
        const size_t swap = source;

        source = copy;
        copy = swap;
    }
    tasks->items[copy].kind = FIRECTL_TIED;
    tasks->items[copy].source = source;
    return FIRE_OK;
}

/* Makes every tie point at a task that is no tie itself. */
static void flatten_ties(struct firectl_tasks *tasks)
{
    for (size_t i = 0; i < tasks->count; i++) {
        struct firectl_task *task = &tasks->items[i];

        if (task->kind != FIRECTL_TIED)
            continue;
        task->source = root_of(tasks, i);
        tasks->items[task->source].is_source = true;
        tasks->any_tie = true;
        snprintf(task->reason, sizeof(task->reason), "tied to %.80s",
                 tasks->items[task->source].entry->name);
    }
}

/* A pattern that matches nothing is nearly always a slip. An --include is an error, the rest a
 * warning, since scripts use one command line for many models. */
static enum fire_status check_patterns(const struct firectl_tasks *tasks,
                                       const struct firectl_args *args, struct fire_error *error)
{
    for (size_t p = 0; p < args->includes.count + args->excludes.count; p++) {
        const bool include = p < args->includes.count;
        const char *glob =
            include ? args->includes.items[p] : args->excludes.items[p - args->includes.count];
        size_t i = 0;

        while (i < tasks->count && fnmatch(glob, tasks->items[i].entry->name, 0) != 0)
            i++;
        if (i < tasks->count)
            continue;
        if (include)
            return fire_fail(error, FIRE_NOT_FOUND, "include",
                             "--include '%.100s' matches no tensor; quote patterns and see the "
                             "names with firectl analyze",
                             glob);
        firectl_say("warning: --exclude '%s' matches no tensor", glob);
    }
    for (size_t s = 0; s < args->sets.count; s++) {
        size_t glob_length;
        size_t i = 0;

        set_pair(args->sets.items[s], &glob_length);
        while (i < tasks->count &&
               !set_matches(args->sets.items[s], glob_length, tasks->items[i].entry->name))
            i++;
        if (glob_length && i == tasks->count)
            firectl_say("warning: --set '%s' matches no tensor", args->sets.items[s]);
    }
    return FIRE_OK;
}

enum fire_status firectl_tasks_init(struct firectl_tasks *tasks, const struct firectl_args *args,
                                    const struct safetensors *set, struct fire_error *error)
{
    const struct arch_model model = arch_model_of_file(set);
    enum fire_status status = FIRE_OK;

    *tasks = (struct firectl_tasks){ .set = set, .count = safetensors_count(set) };
    tasks->arch = args->arch == ARCH_AUTO ? arch_detect(&model) : args->arch;
    tasks->items = calloc(tasks->count ? tasks->count : 1, sizeof(*tasks->items));
    if (!tasks->items)
        return fire_fail_memory(error, tasks->count * sizeof(*tasks->items));
    for (size_t i = 0; status == FIRE_OK && i < tasks->count; i++)
        status = decide(tasks, args, i, error);
    if (status == FIRE_OK)
        status = check_patterns(tasks, args, error);
    for (size_t i = 0; status == FIRE_OK && i < args->ties.count; i++)
        status = tie(tasks, args->ties.items[i], error);
    if (status == FIRE_OK)
        flatten_ties(tasks);
    return status;
}

void firectl_tasks_release(struct firectl_tasks *tasks)
{
    for (size_t i = 0; tasks->items && i < tasks->count; i++)
        free(tasks->items[i].per_matrix);
    free(tasks->items);
    *tasks = (struct firectl_tasks){ 0 };
}

uint64_t firectl_tasks_bytes(const struct firectl_tasks *tasks)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < tasks->count; i++)
        bytes += tasks->items[i].entry->bytes;
    return bytes;
}

enum firectl_exit firectl_begin(const struct firectl_args *args,
                                struct firectl_thresholds **thresholds)
{
    struct fire_options options;
    struct fire_error error = { 0 };

    if (base_options(args, &options, &error) != FIRE_OK ||
        firectl_thresholds_open(&args->thresholds, thresholds, &error) != FIRE_OK) {
        firectl_fail(&error);
        return error.status == FIRE_NO_MEMORY ? FIRECTL_FAILED : FIRECTL_USAGE;
    }
    firectl_signals_init();
    return FIRECTL_DONE;
}
