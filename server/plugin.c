/* plugin: found beside the daemon, in the built tree as in the installed one. */
#include "plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PLUGIN_NAME "fired/fire_cuda.so"

/* Folders of libraries, as seen from that of the program. */
static const char *const folders[] = { "../lib", FIRED_BIN_TO_LIB };

/* The first of them that has the plugin. */
static bool find(char *path, size_t path_bytes)
{
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    char *slash;

    if (length <= 0)
        return false;
    program[length] = 0;
    slash = strrchr(program, '/');
    if (!slash)
        return false;
    *slash = 0;
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        const int needed = snprintf(path, path_bytes, "%s/%s/%s", program, folders[i], PLUGIN_NAME);

        if (needed > 0 && (size_t)needed < path_bytes && access(path, R_OK) == 0)
            return true;
    }
    return false;
}

enum fire_status plugin_load(const char *path, const struct fire_backend **backend,
                             struct fire_caps *caps, struct fire_error *error)
{
    fire_plugin_backend_function function = NULL;
    char found[PATH_MAX];
    void *library, *symbol;

    *backend = NULL;
    if (!path[0]) {
        if (!find(found, sizeof(found)))
            return fire_fail(error, FIRE_NOT_FOUND, "cuda_plugin",
                             "there is no " PLUGIN_NAME " beside this program");
        path = found;
    }
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();

        return fire_fail(error, FIRE_DEVICE_LOST, "cuda_plugin", "cannot load it: %s",
                         why ? why : "no reason given");
    }
    symbol = dlsym(library, FIRE_PLUGIN_SYMBOL);
    if (!symbol)
        return fire_fail(error, FIRE_DEVICE_LOST, "cuda_plugin", "%s has no symbol %s", path,
                         FIRE_PLUGIN_SYMBOL);
    /* POSIX promises that the bytes are the same. */
    memcpy(&function, &symbol, sizeof(symbol));
    *backend = function();
    if ((*backend)->abi != FIRE_BACKEND_ABI)
        return fire_fail(error, FIRE_DEVICE_LOST, "cuda_plugin",
                         "%s has interface %u, this daemon needs %u", path, (*backend)->abi,
                         FIRE_BACKEND_ABI);
    if ((*backend)->probe(caps) != FIRE_OK)
        return fire_fail(error, FIRE_DEVICE_LOST, "cuda", "%s", caps->reason);
    return FIRE_OK;
}
