/* Text that is not a module, or has something nobody has taught the interpreter: refused with the
 * line and the reason, and nothing is lost. */
#include "ptx.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNEL(body)                                                                               \
    ".version 9.0\n.visible .entry k(.param .u64 p) {\n.reg .b64 %r<4>;\n" body "\n}"

static const struct {
    const char *text;
    uint32_t line;
    const char *says;
} bad[] = {
    { "", 1, "no kernel" },
    { ".version 9.0\nrubbish", 2, "unknown directive" },
    { KERNEL("frobnicate.f32 %r1, %r2;"), 4, "unknown opcode frobnicate.f32" },
    { KERNEL("add.f32 %r1, %r2, %r3;"), 4, "unknown opcode add.f32" },
    { KERNEL("mul.f32 %r1, %r2, %r3;"), 4, "unknown opcode mul.f32" },
    { KERNEL("ld.global.wide.f32 %r1, [%r2];"), 4, "unknown opcode" },
    { KERNEL("cvt.rz.f32.f64 %r1, %r2;"), 4, "unknown opcode" },
    { KERNEL("setp.what.f32 %r1, %r2, %r3;"), 4, "unknown opcode" },
    { KERNEL("atom.global.add.f16 %r1, [%r2], %r3;"), 4, "unknown opcode" },
    { KERNEL("atom.global.min.f32 %r1, [%r2], %r3;"), 4, "unknown opcode" },
    { KERNEL("call foo;"), 4, "unknown opcode call" },
    { KERNEL("\nadd.u32 %r1, %r2;"), 5, "operands" },
    { KERNEL("add.u32 %r1, %r2, %r3, %r1;"), 4, "operands" },
    { KERNEL("add.u32 5, %r2, %r3;"), 4, "no register" },
    { KERNEL("add.u32 %tid.x, %r2, %r3;"), 4, "no register" },
    { KERNEL("add.u32 _, %r2, %r3;"), 4, "operands" },
    { KERNEL("add.u32 %r1, !%r2, %r3;"), 4, "operands" },
    { KERNEL("add.u32 %r1, [%r2], %r3;"), 4, "operands" },
    { KERNEL("add.u32 %r1, {%r2, %r3}, %r3;"), 4, "operands" },
    { KERNEL("add.u32 %r1|%r2, %r2, %r3;"), 4, "operands" },
    { KERNEL("add.u32 %r1, %r9, %r3;"), 4, "%r9 is no register" },
    { KERNEL("add.u32 %r1, 0f12, %r3;"), 4, "number" },
    { KERNEL("add.u32 %r1, 99999999999999999999, %r3;"), 4, "number" },
    { KERNEL("ld.global.v2.f32 %r1, [%r2];"), 4, "operands" },
    { KERNEL("ld.global.v2.f32 {%r1, %r2, %r3}, [%r2];"), 4, "operands" },
    { KERNEL("ld.global.f32 %r1, %r2;"), 4, "operands" },
    { KERNEL("st.global.v2.f32 [%r1], {%r2, %r3, %r1};"), 4, "operands" },
    { KERNEL("mov.b64 {%r1, %r2}, {%r3, %r1};"), 4, "operands" },
    { KERNEL("mov.f32 {%r1, %r2}, %r3;"), 4, "operands" },
    { KERNEL("bar.sync 0, 64;"), 4, "operands" },
    { KERNEL("bra $nowhere;"), 5, "no label $nowhere, which line 4 jumps to" },
    { KERNEL("@%q bra $L;"), 4, "guard" },
    { KERNEL("add.u32 %r1, %r2, %r3"), 5, "expected" },
    { KERNEL(".reg .b32 %q<9999999>;"), 4, "registers" },
    { KERNEL(".shared .align 4 .b8 big[999999];"), 4, "shared memory" },
    { KERNEL(".local .align 4 .b8 big[999999];"), 4, "local memory" },
    { KERNEL(".shared .align 3 .b8 odd[4];"), 4, "alignment" },
    { KERNEL(".branchtargets a, b;"), 4, "unknown directive .branchtargets" },
    { ".visible .entry k(.param .u64 p) { ret;", 1, "ends inside a kernel" },
    { ".visible .entry k(.param .u64 p", 1, "expected" },
    { ".visible .entry k(.param .b8 p[40000]) { ret; }", 1, "parameters" },
    { ".global .align 4 .u32 x[1] = {1, 2};", 1, "too many values" },
    { ".section .debug_str {", 1, "ends before" },
    { ".func f() { ret; }", 1, "unknown directive '.func'" },
    { ".visible .entry k() .maxntid 0 { ret; }", 1, "number" },
};

START_TEST(bad_text_is_refused_with_its_line_and_reason)
{
    struct ptx_report report;
    struct ptx_module *module = ptx_open(bad[_i].text, strlen(bad[_i].text), &report);

    ck_assert_msg(module == NULL, "%s", bad[_i].text);
    ck_assert(report.kind == PTX_BAD_TEXT);
    ck_assert_msg(strstr(report.text, bad[_i].says) != NULL, "%s: %s", bad[_i].text, report.text);
    ck_assert_msg(report.line == bad[_i].line, "%s: %s", bad[_i].text, report.text);
}
END_TEST

/* Every beginning of a good text is read without running past its end. The bytes are copied to a
 * block of just their length, so that a sanitizer or valgrind sees one more. */
START_TEST(text_cut_anywhere_is_read_to_its_end_and_no_further)
{
    static const char text[] =
        ".version 9.0\n.const .align 4 .f32 t[2] = {0f3F800000, -1};\n/* x */ .file 1 \"a.cu\"\n"
        ".visible .entry k(.param .u64 p) .maxntid 128 {\n.reg .b64 %r<4>; .reg .pred %p;\n"
        ".loc 1 2 3\n$L: @!%p bra $L; ld.global.v2.f32 {%r1, _}, [%r2+-8]; // end\n"
        "setp.lt.or.f32 %p|_, %r1, 0d3FF0000000000000, !%p; { .reg .b32 t2; mov.b32 t2, 1; }\n"
        "mov.b64 {%r1, %r2}, %r3; ret;\n}\n.section .x { .b8 1 }\n";

    for (size_t length = 0; length <= sizeof(text) - 1; length++) {
        char *copy = malloc(length + 1);
        struct ptx_report report;

        ck_assert(copy != NULL);
        memcpy(copy + 1, text, length);
        ptx_close(ptx_open(copy + 1, length, &report));
        if (length == sizeof(text) - 1)
            ck_assert_msg(report.kind == PTX_OK, "%s", report.text);
        free(copy);
    }
}
END_TEST

START_TEST(kernels_are_listed_in_order)
{
    static const char text[] = ".visible .entry one() { ret; }\n.entry two() { }\n";
    struct ptx_report report;
    struct ptx_module *module = ptx_open(text, strlen(text), &report);

    ck_assert_msg(module != NULL, "%s", report.text);
    ck_assert_uint_eq(ptx_kernel_count(module), 2);
    ck_assert_str_eq(ptx_kernel_name(module, 0), "one");
    ck_assert_str_eq(ptx_kernel_name(module, 1), "two");
    ptx_close(module);
    ptx_close(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ptx text");
    TCase *tests = tcase_create("ptx text");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(tests, bad_text_is_refused_with_its_line_and_reason, 0,
                        (int)(sizeof(bad) / sizeof(bad[0])));
    tcase_add_test(tests, text_cut_anywhere_is_read_to_its_end_and_no_further);
    tcase_add_test(tests, kernels_are_listed_in_order);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
