/* Faults planted in tiny kernels, one of each kind: each is found, on the right line of the PTX,
 * and its innocent twin is not. */
#include "ptx_bench.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define SHARED                                                                                     \
    "{.shared .align 8 .b8 room[1024]; mov.u32 %r9, room; mov.u32 %r8, %tid.x;\n"                  \
    "shl.b32 %r8, %r8, 2; add.u32 %r10, %r9, %r8; mov.u32 %r7, %tid.x;\n"

/* `line` counts from 1 in the text of the body. */
static const struct {
    const char *name;
    const char *body;
    enum ptx_kind kind;
    uint32_t line;
    uint32_t threads;
    size_t dynamic;
} cases[] = {
    { "read past the end", "ld.global.u32 %r1, [%base+2048];", PTX_OUT_OF_BOUNDS, 1, 1, 0 },
    { "the last word", "ld.global.u32 %r1, [%base+2044];", PTX_OK, 0, 1, 0 },
    { "write before the beginning", "\nst.global.u32 [%base+-4], 1;", PTX_OUT_OF_BOUNDS, 2, 1, 0 },
    { "half outside", "st.global.v2.u64 [%base+2048], {%base, %base};", PTX_OUT_OF_BOUNDS, 1, 1,
      0 },
    { "shared past its variable", SHARED "st.shared.u32 [%r9+1024], 1;}", PTX_OUT_OF_BOUNDS, 3, 1,
      0 },
    { "shared before its variable", SHARED "st.shared.u32 [%r9+-4], 1;}", PTX_OUT_OF_BOUNDS, 3, 1,
      0 },
    { "dynamic shared past the launch's size", "st.shared.u32 [dyn+64], 1;", PTX_OUT_OF_BOUNDS, 1,
      1, 64 },
    { "dynamic shared inside it", "st.shared.u32 [dyn+60], 1;", PTX_OK, 0, 1, 64 },
    { "a shared address used as a global one",
      SHARED "cvta.shared.u64 %r1, %r9; ld.global.u32 %r2, [%r1];}", PTX_OUT_OF_BOUNDS, 3, 1, 0 },
    { "past the parameters", "ld.param.u64 %r1, [memory+8];", PTX_OUT_OF_BOUNDS, 1, 1, 0 },
    { "past the constants", "ld.const.u32 %r1, [table+8];", PTX_OUT_OF_BOUNDS, 1, 1, 0 },
    { "write to a constant", "mov.u64 %r1, table; st.global.u32 [%r1], 1;", PTX_OUT_OF_BOUNDS, 1, 1,
      0 },
    { "past local memory", "{.local .align 4 .b8 depot[8]; st.local.u32 [depot+8], 1;}",
      PTX_OUT_OF_BOUNDS, 1, 1, 0 },
    { "misaligned global", "ld.global.u32 %r1, [%base+2];", PTX_MISALIGNED, 1, 1, 0 },
    { "misaligned vector", "ld.global.v4.f32 {%r1,%r2,%r3,%r4}, [%base+8];", PTX_MISALIGNED, 1, 1,
      0 },
    { "aligned vector", "ld.global.v4.f32 {%r1,%r2,%r3,%r4}, [%base+16];", PTX_OK, 0, 1, 0 },
    { "misaligned shared", SHARED "st.shared.f64 [%r9+4], 0;}", PTX_MISALIGNED, 3, 1, 0 },
    { "misaligned atomic", "atom.global.add.u64 %r1, [%base+4], 1;", PTX_MISALIGNED, 1, 1, 0 },

    { "two writers", SHARED "st.shared.u32 [%r9], %r7;}", PTX_RACE, 3, 2, 0 },
    { "each its own word", SHARED "st.shared.u32 [%r10], %r7;}", PTX_OK, 0, 256, 0 },
    { "a neighbour read with no barrier",
      SHARED "st.shared.u32 [%r10], %r7; xor.b32 %r8, %r8, 4; add.u32 %r11, %r9, %r8;\n"
             "ld.shared.u32 %r1, [%r11];}",
      PTX_UNINITIALISED, 4, 32, 0 },
    { "the one before read with no barrier",
      SHARED "st.shared.u32 [%r10], %r7; setp.eq.u32 %p1, %r7, 0; @%p1 bra $E;\n"
             "ld.shared.u32 %r1, [%r10+-4]; $E: ret;}",
      PTX_RACE, 4, 32, 0 },
    { "a neighbour read after a barrier",
      SHARED "st.shared.u32 [%r10], %r7; xor.b32 %r8, %r8, 4; add.u32 %r11, %r9, %r8;\n"
             "bar.sync 0; ld.shared.u32 %r1, [%r11];}",
      PTX_OK, 0, 64, 0 },
    { "a neighbour read after a warp barrier",
      SHARED "st.shared.u32 [%r10], %r7; xor.b32 %r8, %r8, 4; add.u32 %r11, %r9, %r8;\n"
             "bar.warp.sync -1; ld.shared.u32 %r1, [%r11];}",
      PTX_OK, 0, 64, 0 },
    { "another warp read after a warp barrier only",
      SHARED "st.shared.u32 [%r10], %r7; setp.lt.u32 %p1, %r7, 32; @%p1 bra $E;\n"
             "bar.warp.sync -1; ld.shared.u32 %r1, [%r10+-128]; $E: ret;}",
      PTX_RACE, 4, 64, 0 },
    { "a shuffle orders nothing",
      SHARED "st.shared.u32 [%r10], %r7; shfl.sync.bfly.b32 %r1, %r7, 1, 31, -1;\n"
             "xor.b32 %r8, %r8, 4; add.u32 %r11, %r9, %r8; ld.shared.u32 %r1, [%r11];}",
      PTX_RACE, 4, 32, 0 },
    { "overwritten while others read",
      SHARED "st.shared.u32 [%r10], %r7; bar.sync 0; ld.shared.u32 %r1, [%r9];\n"
             "setp.ne.u32 %p1, %r7, 63; @%p1 bra $E; st.shared.u32 [%r9], 5; $E: ret;}",
      PTX_RACE, 4, 64, 0 },
    { "overwritten by another lane of the reading warp",
      SHARED "st.shared.u32 [%r10], %r7; bar.sync 0; setp.ge.u32 %p2, %r7, 2;\n"
             "@%p2 bra $N; ld.shared.u32 %r1, [%r9];\n"
             "$N: setp.ne.u32 %p1, %r7, 31; @%p1 bra $E; st.shared.u32 [%r9], 5; $E: ret;}",
      PTX_RACE, 5, 32, 0 },
    { "overwritten after a barrier",
      SHARED "st.shared.u32 [%r10], %r7; bar.sync 0; ld.shared.u32 %r1, [%r9]; bar.sync 0;\n"
             "setp.ne.u32 %p1, %r7, 63; @%p1 bra $E; st.shared.u32 [%r9], 5; $E: ret;}",
      PTX_OK, 0, 64, 0 },
    { "atomic additions do not race",
      SHARED "setp.eq.u32 %p1, %r7, 0; @%p1 st.shared.u32 [%r9], 0; bar.sync 0;\n"
             "atom.shared.add.u32 %r1, [%r9], 1;}",
      PTX_OK, 0, 64, 0 },
    { "an atomic addition and a plain write do",
      SHARED "setp.eq.u32 %p1, %r7, 0; @%p1 st.shared.u32 [%r9], 0;\n"
             "atom.shared.add.u32 %r1, [%r9], 1;}",
      PTX_RACE, 4, 64, 0 },
    { "halves of one word by two threads",
      SHARED "shl.b32 %r8, %r7, 1; add.u32 %r10, %r9, %r8; st.shared.u16 [%r10], %r7;}", PTX_OK, 0,
      64, 0 },

    { "a register never written", "add.u32 %r1, %r2, 1;", PTX_UNINITIALISED, 1, 1, 0 },
    { "a copy of it alone is nothing", "mov.u32 %r1, %r2;", PTX_OK, 0, 1, 0 },
    { "but its use is", "mov.u32 %r1, %r2;\nst.global.u32 [%base], %r1;", PTX_UNINITIALISED, 2, 1,
      0 },
    { "a predicate never written", "@%p1 ret;", PTX_UNINITIALISED, 1, 1, 0 },
    { "written on one path only",
      "setp.eq.u32 %p1, %tid.x, 0; @%p1 mov.u32 %r1, 5;\nst.global.u32 [%base], %r1;",
      PTX_UNINITIALISED, 2, 2, 0 },
    { "shared never written", SHARED "ld.shared.u32 %r1, [%r10];}", PTX_UNINITIALISED, 3, 1, 0 },
    { "shared counted up from nothing", SHARED "atom.shared.add.u32 %r1, [%r9], 1;}",
      PTX_UNINITIALISED, 3, 1, 0 },
    { "local never written", "{.local .align 4 .b8 depot[8]; ld.local.u32 %r1, [depot];}",
      PTX_UNINITIALISED, 1, 1, 0 },

    { "half a block at the barrier", "setp.lt.u32 %p1, %tid.x, 8; @%p1 ret;\nbar.sync 0;",
      PTX_DIVERGENT, 2, 64, 0 },
    { "two barriers at once",
      "setp.lt.u32 %p1, %tid.x, 8; @%p1 bra $A;\nbar.sync 0; ret;\n$A: bar.sync 0;", PTX_DIVERGENT,
      2, 64, 0 },
    { "a shuffle half the warp never reaches",
      "setp.lt.u32 %p1, %tid.x, 8; @%p1 bra $A;\n"
      "shfl.sync.bfly.b32 %r1, %tid.x, 1, 31, -1;\n$A: bar.sync 0;",
      PTX_DIVERGENT, 2, 32, 0 },
    { "a shuffle from a lane that has ended",
      "setp.eq.u32 %p1, %tid.x, 8; @%p1 ret;\nshfl.sync.bfly.b32 %r1, %tid.x, 1, 31, -1;",
      PTX_DIVERGENT, 2, 32, 0 },
    { "a mask without the lane itself", "shfl.sync.bfly.b32 %r1, %tid.x, 1, 31, 1;", PTX_DIVERGENT,
      1, 32, 0 },
    { "half a warp among itself",
      "setp.ge.u32 %p1, %tid.x, 16; @%p1 ret;\nshfl.sync.bfly.b32 %r1, %tid.x, 1, 31, 0xffff;",
      PTX_OK, 0, 32, 0 },
    { "a loop without end", "$L: bra $L;", PTX_TOO_LONG, 1, 1, 0 },
    { "a trap", "\n\ntrap;", PTX_TRAP, 3, 1, 0 },
};

START_TEST(a_planted_fault_is_found_on_its_line)
{
    struct bench bench = { .threads = cases[_i].threads,
                           .shared_bytes = cases[_i].dynamic,
                           .steps_max = 10000,
                           .before = ".extern .shared .align 16 .b8 dyn[];\n"
                                     ".const .align 4 .b8 table[8];" };
    const enum ptx_kind kind = bench_run(&bench, cases[_i].body);

    ck_assert_msg(kind == cases[_i].kind, "%s: %s, not %s: %s", cases[_i].name, ptx_kind_name(kind),
                  ptx_kind_name(cases[_i].kind), bench.report.text);
    if (kind == PTX_OK)
        return;
    ck_assert_msg(bench.report.line == bench_first_line(&bench) + cases[_i].line - 1,
                  "%s: line %u: %s", cases[_i].name, bench.report.line, bench.report.text);
    ck_assert_msg(strstr(bench.report.text, ptx_kind_name(kind)) == bench.report.text, "%s",
                  bench.report.text);
}
END_TEST

/* Shared memory of one block is not that of the next, nor its barriers. */
START_TEST(blocks_begin_anew)
{
    struct bench bench = { .threads = 32, .blocks = 4 };

    ck_assert_msg(bench_run(&bench, SHARED "st.shared.u32 [%r10], %r7; bar.sync 0;\n"
                                           "ld.shared.u32 %r1, [%r9];}") == PTX_OK,
                  "%s", bench.report.text);
    ck_assert(bench.counts.barriers == 4);
    ck_assert(bench_run(&bench, SHARED "setp.ne.u32 %p1, %ctaid.x, 0; @%p1 bra $R;\n"
                                       "st.shared.u32 [%r10], %r7;\n"
                                       "$R: ld.shared.u32 %r1, [%r10];}") == PTX_UNINITIALISED);
}
END_TEST

START_TEST(the_report_names_kernel_block_thread_and_instruction)
{
    struct bench bench = { .threads = 64, .blocks = 2 };

    ck_assert(bench_run(&bench, "setp.ne.u32 %p1, %tid.x, 40; @%p1 ret;\n"
                                "setp.ne.u32 %p1, %ctaid.x, 1; @%p1 ret;\n"
                                "ld.global.u32   %r1,\t[%base+4096];") == PTX_OUT_OF_BOUNDS);
    ck_assert_msg(strstr(bench.report.text, "k, block (1,0,0) thread (40,0,0), line 11: "
                                            "ld.global.u32 %r1, [%base+4096]") != NULL,
                  "%s", bench.report.text);
}
END_TEST

static void *nothing(void *context, uint64_t address, size_t bytes, bool write)
{
    (void)context;
    (void)address;
    (void)bytes;
    (void)write;
    return NULL;
}

START_TEST(launches_a_gpu_would_refuse_are_refused)
{
    static const char text[] = ".visible .entry k() .maxntid 128, 1, 1 {\n"
                               ".shared .align 4 .b8 room[1024]; ret; }";
    static const struct {
        struct ptx_launch launch;
        enum ptx_kind want;
    } launches[] = {
        { { .kernel = "k", .grid = { 1, 1, 1 }, .block = { 128, 1, 1 } }, PTX_OK },
        { { .kernel = "q", .grid = { 1, 1, 1 }, .block = { 128, 1, 1 } }, PTX_BAD_LAUNCH },
        { { .kernel = "k", .grid = { 1, 0, 1 }, .block = { 128, 1, 1 } }, PTX_BAD_LAUNCH },
        { { .kernel = "k", .grid = { 1, 1, 1 }, .block = { 128, 1, 0 } }, PTX_BAD_LAUNCH },
        { { .kernel = "k", .grid = { 1, 1, 1 }, .block = { 129, 1, 1 } }, PTX_BAD_LAUNCH },
        { { .kernel = "k", .grid = { 1, 65536, 1 }, .block = { 1, 1, 1 } }, PTX_BAD_LAUNCH },
        { { .kernel = "k", .grid = { 1, 1, 1 }, .block = { 1, 1, 1 }, .shared_bytes = 233000 },
          PTX_BAD_LAUNCH },
    };
    struct ptx_report report;
    struct ptx_module *module = ptx_open(text, strlen(text), &report);

    ck_assert_msg(module != NULL, "%s", report.text);
    for (size_t k = 0; k < sizeof(launches) / sizeof(launches[0]); k++) {
        struct ptx_launch launch = launches[k].launch;

        launch.translate = nothing;
        ck_assert_msg(ptx_run(module, &launch, NULL, &report) == launches[k].want, "%zu: %s", k,
                      report.text);
    }
    ptx_close(module);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ptx findings");
    TCase *tests = tcase_create("ptx findings");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(tests, a_planted_fault_is_found_on_its_line, 0,
                        (int)(sizeof(cases) / sizeof(cases[0])));
    tcase_add_test(tests, blocks_begin_anew);
    tcase_add_test(tests, the_report_names_kernel_block_thread_and_instruction);
    tcase_add_test(tests, launches_a_gpu_would_refuse_are_refused);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
