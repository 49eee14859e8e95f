/* ptx_runner: the library libfire_ptx.so, one of the two that the emulated runtime may have its
 * kernels run by (tests/gpu/kernel_runner.h). The text is the file that FIRE_PTX names, or the one
 * of the build this library is of. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernel_runner.h"
#include "ptx_internal.h"

#define EXPORT       __attribute__((visibility("default")))
#define RANGES       8u /* allocations a launch works on; more only cost a call each */
#define TEXT_MAX     (64u << 20)
#define PTX_VARIABLE "FIRE_PTX"

/* Read at the first call and kept until the process ends. */
static struct ptx_module *module;
static struct ptx_report report;
static uint8_t has_run[1024]; /* by kernel */

static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *text = file ? malloc(TEXT_MAX) : NULL;

    if (text)
        *bytes = fread(text, 1, TEXT_MAX, file);
    if (file)
        (void)fclose(file);
    return text;
}

static const struct ptx_module *load(void)
{
    const char *named = getenv(PTX_VARIABLE);
    const char *path = named ? named : FIRE_PTX_DEFAULT;
    size_t bytes = 0;
    char *text;

    if (module || report.kind != PTX_OK)
        return module;
    text = read_file(path, &bytes);
    if (text) {
        module = ptx_open(text, bytes, &report);
    } else {
        report.kind = PTX_BAD_TEXT;
        snprintf(report.text, sizeof(report.text), "cannot read %s", path);
    }
    free(text);
    if (!module)
        (void)fprintf(stderr, "libfire_ptx: %s: %s\n", path, report.text);
    return module;
}

EXPORT bool kernel_signature(const char *name, struct kernel_signature *signature)
{
    const struct ptx_module *loaded = load();

    for (uint32_t k = 0; loaded && k < loaded->kernel_count; k++) {
        const struct ptx_kernel *kernel = &loaded->kernels[k];

        if (strcmp(kernel->name, name) != 0)
            continue;
        if (kernel->parameter_count > KERNEL_ARGUMENTS_MAX)
            return false;
        *signature = (struct kernel_signature){ .argument_count = kernel->parameter_count,
                                                .shared_bytes = kernel->shared_plain,
                                                .threads_max = kernel->threads_max };
        for (uint32_t p = 0; p < kernel->parameter_count; p++)
            signature->argument_bytes[p] = (uint32_t)kernel->parameters[p].bytes;
        return true;
    }
    return false;
}

/* The allocations met in this launch, so that most accesses need no call. */
struct view {
    const struct kernel_memory *memory;
    struct {
        uint64_t base;
        uint64_t bytes;
    } ranges[RANGES];
    uint32_t count;
    uint64_t bytes; /* read and written */
};

static void *translate(void *context, uint64_t address, size_t bytes, bool write)
{
    struct view *view = context;
    uint64_t base = 0;
    size_t size = 0;

    for (uint32_t k = 0; k < view->count; k++)
        if (address >= view->ranges[k].base && bytes <= view->ranges[k].bytes &&
            address - view->ranges[k].base <= view->ranges[k].bytes - bytes) {
            view->bytes += bytes;
            /* Two ranges of one process: the difference between them is a plain number. */
            return (void *)(uintptr_t)(address + (uint64_t)view->memory->shadow_offset);
        }
    if (view->count < RANGES &&
        view->memory->allocation(view->memory->context, address, &base, &size)) {
        view->ranges[view->count].base = base;
        view->ranges[view->count++].bytes = size;
    }
    view->bytes += bytes;
    return view->memory->translate(view->memory->context, address, bytes, write);
}

/* The first kernel of the module that has not run yet; NULL when all have. For tests. */
EXPORT const char *ptx_runner_unrun(void);

EXPORT const char *ptx_runner_unrun(void)
{
    const struct ptx_module *loaded = load();

    for (uint32_t k = 0; loaded && k < loaded->kernel_count && k < sizeof(has_run); k++)
        if (!has_run[k])
            return loaded->kernels[k].name;
    return NULL;
}

static void note_run(const struct ptx_module *loaded, const char *name)
{
    for (uint32_t k = 0; k < loaded->kernel_count && k < sizeof(has_run); k++)
        if (strcmp(loaded->kernels[k].name, name) == 0)
            has_run[k] = 1;
}

EXPORT const char *kernel_run(const struct kernel_launch *launch,
                              const struct kernel_memory *memory, struct kernel_cost *cost)
{
    const struct ptx_module *loaded = load();
    struct view view = { .memory = memory };
    struct ptx_launch run = { .kernel = launch->name,
                              .shared_bytes = launch->shared_bytes,
                              .arguments = launch->arguments,
                              .translate = translate,
                              .context = &view };

    if (!loaded)
        return report.text;
    for (uint32_t k = 0; k < 3; k++) {
        run.grid[k] = launch->grid[k];
        run.block[k] = launch->block[k];
    }
    if (ptx_run(loaded, &run, NULL, &report) != PTX_OK) {
        const enum ptx_kind kind = report.kind;

        (void)fprintf(stderr, "libfire_ptx: %s\n", report.text);
        report.kind = PTX_OK; /* it was about this launch, not about the module */
        return kind == PTX_OK ? NULL : report.text;
    }
    note_run(loaded, launch->name);
    cost->bytes += view.bytes;
    return NULL;
}
