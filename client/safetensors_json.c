/* safetensors_json: JSON from strangers, parsed by jansson, with memory failures told apart.
 *
 * When jansson cannot grow the buffer of a token it drops the character and goes on: a name or a
 * number comes out shorter and nobody hears of it. So its allocations go through a function that
 * remembers, for each thread, that one has failed, and a text parsed meanwhile is not believed.
 * This is the one piece of state in these files: jansson's hook has no argument to carry it. */
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>

#include "safetensors_internal.h"

static _Thread_local bool allocation_failed;
static pthread_once_t hook_once = PTHREAD_ONCE_INIT;

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);

    if (!memory)
        allocation_failed = true;
    return memory;
}

static void hook_install(void)
{
    json_set_alloc_funcs(allocate, free);
}

void safetensors_json_begin(void)
{
    (void)pthread_once(&hook_once, hook_install); /* cannot fail with these arguments */
    allocation_failed = false;
}

bool safetensors_json_memory_failed(void)
{
    return allocation_failed;
}

enum fire_status safetensors_json_load(const struct safetensors_file *file, const void *text,
                                       size_t bytes, size_t flags, json_t **root,
                                       struct fire_error *error)
{
    json_error_t problem;

    safetensors_json_begin();
    *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | flags, &problem);
    if (safetensors_json_memory_failed()) {
        json_decref(*root);
        *root = NULL;
        return fire_fail_memory(error, bytes);
    }
    if (*root)
        return FIRE_OK;
    return safetensors_damaged(file, NULL, error,
                               "its text is not valid JSON near byte %d: %s; the file is damaged: "
                               "fetch or save it again",
                               problem.position, safetensors_shown(problem.text).text);
}
