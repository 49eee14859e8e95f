/* ptx_bench: see ptx_bench.h. */
#include "ptx_bench.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static void *translate(void *context, uint64_t address, size_t bytes, bool write)
{
    struct bench *bench = context;

    (void)write;
    if (address < BENCH_BASE || bytes > sizeof(bench->words) ||
        address - BENCH_BASE > sizeof(bench->words) - bytes)
        return NULL;
    return (uint8_t *)bench->words + (address - BENCH_BASE);
}

enum ptx_kind bench_run(struct bench *bench, const char *body)
{
    static char text[64 << 10];
    const uint64_t base = BENCH_BASE;
    void *arguments[1] = { (void *)(uintptr_t)&base };
    struct ptx_launch launch = { .kernel = "k",
                                 .grid = { bench->blocks ? bench->blocks : 1, 1, 1 },
                                 .block = { bench->threads ? bench->threads : 1, 1, 1 },
                                 .shared_bytes = bench->shared_bytes,
                                 .arguments = arguments,
                                 .translate = translate,
                                 .context = bench,
                                 .steps_max = bench->steps_max };
    struct ptx_module *module;
    enum ptx_kind kind;

    snprintf(text, sizeof(text),
             ".version 9.0\n.target sm_75\n.address_size 64\n%s\n"
             ".visible .entry k(.param .u64 memory)\n{\n"
             ".reg .b64 %%r<32>; .reg .pred %%p<8>; .reg .b64 %%base;\n"
             "ld.param.u64 %%base, [memory];\n%s\n}\n",
             bench->before ? bench->before : "", body);
    module = ptx_open(text, strlen(text), &bench->report);
    ck_assert_msg(module != NULL, "%s", bench->report.text);
    kind = ptx_run(module, &launch, &bench->counts, &bench->report);
    ptx_close(module);
    return kind;
}

uint32_t bench_first_line(const struct bench *bench)
{
    uint32_t line = 9;

    for (const char *c = bench->before ? bench->before : ""; *c; c++)
        line += *c == '\n';
    return line;
}
