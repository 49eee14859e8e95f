#define _GNU_SOURCE
#include "cublas_table.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The soname, and the version node that its symbols carry. */
#define TEXT_OF(number)   #number
#define LIBRARY_OF(major) "libcublas.so." TEXT_OF(major)
#define LIBRARY_NAME      LIBRARY_OF(CUBLAS_VER_MAJOR)

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static struct {
    struct cublas_table table;
    enum fire_status status;
    char message[256];
} loaded;

#define CUBLAS_ENTRY(function, member) { #function, offsetof(struct cublas_table, member) },
static const struct {
    const char *name;
    size_t offset;
} functions[] = { CUBLAS_FUNCTIONS(CUBLAS_ENTRY) };

static int resolve(void *library, const char *name, void *function_pointer)
{
    void *symbol = dlvsym(library, name, LIBRARY_NAME);

    memcpy(function_pointer, &symbol, sizeof(symbol));
    if (symbol)
        return 1;
    snprintf(loaded.message, sizeof(loaded.message), "%s has no symbol %s", LIBRARY_NAME, name);
    return 0;
}

static void load(void)
{
    void *library = dlopen(LIBRARY_NAME, RTLD_NOW | RTLD_LOCAL);

    loaded.status = FIRE_NOT_FOUND;
    if (!library) {
        const char *why = dlerror();

        snprintf(loaded.message, sizeof(loaded.message), "cannot load cuBLAS: %s",
                 why ? why : "no reason given");
        return;
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (!resolve(library, functions[i].name, (char *)&loaded.table + functions[i].offset)) {
            dlclose(library);
            return;
        }
    }
    loaded.status = FIRE_OK;
}

enum fire_status cublas_table_load(const struct cublas_table **table, struct fire_error *error)
{
    *table = NULL;
    pthread_once(&load_once, load);
    if (loaded.status != FIRE_OK)
        return fire_fail(error, FIRE_DEVICE_LOST, LIBRARY_NAME, "%s", loaded.message);
    *table = &loaded.table;
    return FIRE_OK;
}
