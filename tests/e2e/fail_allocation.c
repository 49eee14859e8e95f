/* fail_allocation: preloaded into firectl, makes allocation number FAIL_ALLOCATION fail and says so
 * on stderr. Calls of every library count, so the path through them is tried too; but only from
 * main() on: before it run the constructors of C++ libraries, which firectl only links and which
 * end a process that has no memory for them. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
int __libc_start_main(int (*program)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void), void (*loader_fini)(void),
                      void *stack_end);

static atomic_long calls;
static atomic_bool started;

int __libc_start_main(int (*program)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void), void (*loader_fini)(void),
                      void *stack_end)
{
    __typeof__(__libc_start_main) *next;

    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    if (!next)
        abort();
    atomic_store(&started, 1);
    return next(program, argc, argv, init, fini, loader_fini, stack_end);
}

static int fails_now(void)
{
    static const char note[] = "[allocation failed]\n";
    const char *number = getenv("FAIL_ALLOCATION");

    if (!number || !atomic_load(&started) || atomic_fetch_add(&calls, 1) + 1 != atol(number))
        return 0;
    if (write(STDERR_FILENO, note, sizeof(note) - 1) < 0)
        abort();
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t bytes)
{
    return fails_now() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return fails_now() ? NULL : __libc_realloc(memory, bytes);
}
