/* libfire_ptx.so as the emulated runtime sees it: a file named by FIRE_PTX, a kernel by name,
 * device addresses that only the callbacks can turn into memory. */
#include "kernel_runner.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BASE UINT64_C(0x500000000000)

static const char text[] = ".version 9.0\n.target sm_75\n.address_size 64\n"
                           ".visible .entry twice(.param .u64 data, .param .u32 count)\n"
                           ".maxntid 64\n{\n.reg .b64 %r<8>; .reg .pred %p<2>;\n"
                           ".shared .align 4 .b8 room[256];\n"
                           "ld.param.u64 %r1, [data]; ld.param.u32 %r2, [count];\n"
                           "setp.ge.u32 %p1, %tid.x, %r2; @%p1 ret;\n"
                           "mul.wide.u32 %r3, %tid.x, 4; add.u64 %r3, %r3, %r1;\n"
                           "ld.global.u32 %r4, [%r3]; shl.b32 %r4, %r4, 1;\n"
                           "st.global.u32 [%r3], %r4; ret;\n}\n";

static uint32_t contents[16];

static void *translate(void *context, uint64_t address, size_t bytes, bool write)
{
    (void)context;
    (void)write;
    if (address < BASE || address + bytes > BASE + sizeof(contents))
        return NULL;
    return (uint8_t *)contents + (address - BASE);
}

static bool allocation(void *context, uint64_t address, uint64_t *base, size_t *bytes)
{
    (void)context;
    if (address < BASE || address >= BASE + sizeof(contents))
        return false;
    *base = BASE;
    *bytes = sizeof(contents);
    return true;
}

static struct kernel_memory memory(void)
{
    return (struct kernel_memory){ .translate = translate,
                                   .allocation = allocation,
                                   .shadow_offset = (ptrdiff_t)((uintptr_t)contents - BASE) };
}

/* The file FIRE_PTX names is read once, by the first call. */
static void write_text(void)
{
    char path[] = "ptx-XXXXXX";
    const int file = mkstemp(path);

    ck_assert_int_ge(file, 0);
    ck_assert(write(file, text, strlen(text)) == (ssize_t)strlen(text));
    ck_assert_int_eq(close(file), 0);
    ck_assert_int_eq(setenv("FIRE_PTX", path, 1), 0);
    ck_assert(!kernel_signature("no such kernel", &(struct kernel_signature){ 0 }));
    ck_assert_int_eq(unlink(path), 0);
}

START_TEST(a_kernel_is_found_and_run_and_its_findings_come_back)
{
    struct kernel_signature signature;
    const struct kernel_memory view = memory();
    struct kernel_cost cost = { 0 };
    uint64_t data = BASE;
    uint32_t count = 16;
    void *arguments[] = { &data, &count };
    struct kernel_launch launch = {
        .name = "twice", .grid = { 1, 1, 1 }, .block = { 64, 1, 1 }, .arguments = arguments
    };
    const char *message;

    write_text();
    ck_assert(kernel_signature("twice", &signature));
    ck_assert_uint_eq(signature.argument_count, 2);
    ck_assert_uint_eq(signature.argument_bytes[0], 8);
    ck_assert_uint_eq(signature.argument_bytes[1], 4);
    ck_assert_uint_eq(signature.shared_bytes, 256);
    ck_assert_uint_eq(signature.threads_max, 64);

    for (uint32_t k = 0; k < 16; k++)
        contents[k] = k;
    message = kernel_run(&launch, &view, &cost);
    ck_assert_msg(message == NULL, "%s", message);
    for (uint32_t k = 0; k < 16; k++)
        ck_assert_uint_eq(contents[k], 2 * k);
    ck_assert_uint_eq(cost.bytes, 128);

    count = 17;
    message = kernel_run(&launch, &view, &cost);
    ck_assert(message != NULL);
    ck_assert_msg(strstr(message, "out of bounds") && strstr(message, "thread (16,0,0)"), "%s",
                  message);
    count = 1;
    ck_assert_msg(kernel_run(&launch, &view, &cost) == NULL, "a finding ends with its launch");
    launch.name = "thrice";
    ck_assert(kernel_run(&launch, &view, &cost) != NULL);
}
END_TEST

START_TEST(a_file_that_is_not_there_is_said_once_and_every_time)
{
    struct kernel_cost cost = { 0 };
    const struct kernel_memory view = memory();
    const struct kernel_launch launch = { .name = "twice", .grid = { 1, 1, 1 }, .block = { 1 } };
    const char *message;

    ck_assert_int_eq(setenv("FIRE_PTX", "no-such-file.ptx", 1), 0);
    ck_assert(!kernel_signature("twice", &(struct kernel_signature){ 0 }));
    message = kernel_run(&launch, &view, &cost);
    ck_assert_msg(message && strstr(message, "no-such-file.ptx"), "%s", message ? message : "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ptx runner");
    TCase *tests = tcase_create("ptx runner");
    SRunner *runner;
    int failed;

    tcase_add_test(tests, a_kernel_is_found_and_run_and_its_findings_come_back);
    tcase_add_test(tests, a_file_that_is_not_there_is_said_once_and_every_time);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
