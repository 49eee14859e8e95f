/* lapack: one handle on OpenBLAS for the whole process.
 *
 * The library reads its settings from the environment while it is being loaded, and cannot be
 * loaded a second time with others. So the choice is made once, under pthread_once, and its outcome
 * kept: the only state of this file. It is never unloaded. */
#include "lapack.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY_NAME "libopenblas.so.0"

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static struct {
    struct fire_lapack table;
    enum fire_status status;
    char message[FIRE_ERROR_MESSAGE_BYTES];
} loaded;

/* The newest kernels of OpenBLAS 0.3.21 this CPU and its operating system can run, or NULL to let
 * the library decide. */
static const char *core_type(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return "SKYLAKEX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "HASWELL";
#endif
    return NULL;
}

/* dlsym returns an object pointer; C has no cast from it to a function pointer, POSIX promises that
 * the bytes are the same. */
static int resolve(void *library, const char *name, void *function_pointer)
{
    void *symbol = dlsym(library, name);

    memcpy(function_pointer, &symbol, sizeof(symbol));
    if (symbol)
        return 1;
    snprintf(loaded.message, sizeof(loaded.message),
             "%s has no symbol %s; install Debian's libopenblas0-pthread in place of it",
             LIBRARY_NAME, name);
    return 0;
}

static void load(void)
{
    const char *const core = core_type();
    void (*set_threads)(int) = NULL;
    char *(*core_name)(void) = NULL;
    void *library;

    loaded.status = FIRE_NOT_FOUND;
    if (core)
        setenv("OPENBLAS_CORETYPE", core, 0);
    setenv("OPENBLAS_NUM_THREADS", "1", 0);

    library = dlopen(LIBRARY_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();

        snprintf(loaded.message, sizeof(loaded.message),
                 "cannot load %s (%s); install the package libopenblas0-pthread", LIBRARY_NAME,
                 why ? why : "no reason given");
        return;
    }
    if (!resolve(library, "dsyevd_", &loaded.table.dsyevd) ||
        !resolve(library, "dgesdd_", &loaded.table.dgesdd) ||
        !resolve(library, "dgemm_", &loaded.table.dgemm) ||
        !resolve(library, "sgemm_", &loaded.table.sgemm) ||
        !resolve(library, "openblas_get_corename", &core_name) ||
        !resolve(library, "openblas_set_num_threads", &set_threads)) {
        dlclose(library);
        return;
    }
    set_threads(1);
    loaded.table.core_name = core_name();
    loaded.status = FIRE_OK;
}

enum fire_status fire_lapack_load(const struct fire_lapack **lapack, struct fire_error *error)
{
    *lapack = NULL;
    pthread_once(&load_once, load);
    if (loaded.status != FIRE_OK)
        return fire_fail(error, loaded.status, LIBRARY_NAME, "%s", loaded.message);
    *lapack = &loaded.table;
    return FIRE_OK;
}
