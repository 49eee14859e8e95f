/* Any text as a PTX module. What must hold whatever the text: it is read to its end and no further,
 * refused with a reason and a line, or run with nothing touched but the memory handed out. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ptx.h"

#define MEMORY_BYTES 4096u
#define MEMORY_BASE  UINT64_C(0x700000000000)
#define STEPS_MAX    2000u

static uint8_t memory[MEMORY_BYTES];

static void *translate(void *context, uint64_t address, size_t bytes, bool write)
{
    (void)context;
    (void)write;
    if (address < MEMORY_BASE || address - MEMORY_BASE > MEMORY_BYTES - bytes)
        return NULL;
    return memory + (address - MEMORY_BASE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t argument[4096]; /* room for the largest parameter */
    static void *arguments[4096];
    struct ptx_report report;
    struct ptx_module *module = ptx_open((const char *)data, size, &report);

    if (!module) {
        if (report.kind == PTX_OK || report.text[0] == '\0')
            abort();
        return 0;
    }
    for (size_t k = 0; k < sizeof(argument) / sizeof(argument[0]); k++) {
        argument[k] = MEMORY_BASE;
        arguments[k] = argument;
    }
    for (size_t k = 0; k < ptx_kernel_count(module); k++) {
        const struct ptx_launch launch = { .kernel = ptx_kernel_name(module, k),
                                           .grid = { 2, 1, 1 },
                                           .block = { 40, 1, 1 },
                                           .shared_bytes = 256,
                                           .arguments = arguments,
                                           .translate = translate,
                                           .steps_max = STEPS_MAX };
        const enum ptx_kind kind = ptx_run(module, &launch, NULL, &report);

        if (kind != report.kind || (kind != PTX_OK && report.text[0] == '\0'))
            abort();
    }
    ptx_close(module);
    return 0;
}
