/* Each test runs in its own process (Check forks), so each sees the library loaded afresh. The
 * linker sends dlopen through __wrap_dlopen, which can hand out another library. */
#include <check.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lapack.h"

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);

static const char *library_instead; /* NULL: the one asked for */

void *__wrap_dlopen(const char *name, int flags)
{
    return __real_dlopen(library_instead ? library_instead : name, flags);
}

static const struct fire_lapack *load_or_stop(void)
{
    const struct fire_lapack *lapack;
    struct fire_error error = { 0 };

    ck_assert_msg(fire_lapack_load(&lapack, &error) == FIRE_OK, "%s", error.message);
    return lapack;
}

START_TEST(loading_twice_gives_the_same_table)
{
    const struct fire_lapack *lapack = load_or_stop();

    ck_assert_ptr_eq(load_or_stop(), lapack);
    ck_assert_ptr_nonnull(lapack->dsyevd);
    ck_assert_ptr_nonnull(lapack->dgesdd);
    ck_assert_ptr_nonnull(lapack->dgemm);
    ck_assert_ptr_nonnull(lapack->sgemm);
    ck_assert_uint_gt(strlen(lapack->core_name), 0);
}
END_TEST

/* Left to itself the library takes its oldest kernels on a CPU it does not know. */
START_TEST(core_type_follows_the_cpu)
{
    const char *want = NULL;

#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        want = "SkylakeX";
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        want = "Haswell";
#endif
    unsetenv("OPENBLAS_CORETYPE");
    load_or_stop();
    if (want)
        ck_assert_str_eq(load_or_stop()->core_name, want);
}
END_TEST

#if defined(__x86_64__)
START_TEST(core_type_set_by_the_user_is_left_alone)
{
    setenv("OPENBLAS_CORETYPE", "Nehalem", 1);
    ck_assert_str_eq(load_or_stop()->core_name, "Nehalem");
    ck_assert_str_eq(getenv("OPENBLAS_CORETYPE"), "Nehalem");
}
END_TEST
#endif

/* [1 2; 3 4] [5 6; 7 8], row-major, is the product of the transposes in reverse order. */
START_TEST(products_multiply)
{
    const int n = 2;
    const double one = 1.0;
    const double zero = 0.0;
    const double a[4] = { 1, 2, 3, 4 };
    const double b[4] = { 5, 6, 7, 8 };
    const float one_f32 = 1.0f;
    const float zero_f32 = 0.0f;
    const float a_f32[4] = { 1, 2, 3, 4 };
    const float b_f32[4] = { 5, 6, 7, 8 };
    const double want[4] = { 19, 22, 43, 50 };
    double c[4];
    float c_f32[4];

    load_or_stop()->dgemm("N", "N", &n, &n, &n, &one, b, &n, a, &n, &zero, c, &n);
    load_or_stop()->sgemm("N", "N", &n, &n, &n, &one_f32, b_f32, &n, a_f32, &n, &zero_f32, c_f32,
                          &n);
    for (int i = 0; i < 4; i++) {
        ck_assert_double_eq(c[i], want[i]);
        ck_assert_double_eq((double)c_f32[i], want[i]);
    }
}
END_TEST

static void *load_in_thread(void *unused)
{
    (void)unused;
    return (void *)(uintptr_t)load_or_stop();
}

START_TEST(threads_may_load_at_once)
{
    pthread_t threads[4];
    void *tables[4];

    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, load_in_thread, NULL), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_join(threads[i], &tables[i]), 0);
    for (int i = 1; i < 4; i++)
        ck_assert_ptr_eq(tables[i], tables[0]);
}
END_TEST

static const struct {
    const char *library;
    const char *message_part;
} failures[] = {
    { "libfire-no-such-library.so", "install the package libopenblas0-pthread" },
    { "libm.so.6", "has no symbol dsyevd_" },
};

START_TEST(a_missing_library_names_the_package)
{
    const struct fire_lapack *lapack;
    struct fire_error error = { 0 };

    library_instead = failures[_i].library;
    ck_assert_int_eq(fire_lapack_load(&lapack, &error), FIRE_NOT_FOUND);
    ck_assert_ptr_null(lapack);
    ck_assert_msg(strstr(error.message, failures[_i].message_part), "%s", error.message);
    ck_assert_int_eq(fire_lapack_load(&lapack, NULL), FIRE_NOT_FOUND);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("lapack");
    TCase *tests = tcase_create("load");
    SRunner *runner;
    int failed;

    tcase_add_test(tests, loading_twice_gives_the_same_table);
    tcase_add_test(tests, core_type_follows_the_cpu);
#if defined(__x86_64__)
    tcase_add_test(tests, core_type_set_by_the_user_is_left_alone);
#endif
    tcase_add_test(tests, products_multiply);
    tcase_add_test(tests, threads_may_load_at_once);
    tcase_add_loop_test(tests, a_missing_library_names_the_package, 0,
                        sizeof(failures) / sizeof(failures[0]));
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
