/* Wake-ups of a real loop by real threads: none is lost, one may stand for many. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "wake.h"

#define SENDERS 4
#define SENDS   5000u /* of each */

struct bench {
    uv_loop_t loop;
    struct wake wake;
    pthread_t senders[SENDERS];
    atomic_uint put;   /* by the senders */
    uint32_t runs;     /* the loop's */
    uint32_t releases; /* the loop's */
};

static void on_released(void *data)
{
    struct bench *bench = data;

    bench->releases++;
}

/* Nothing else ends the loop: if the last wake-up is lost, this test does not come back. */
static void on_run(void *data)
{
    struct bench *bench = data;

    bench->runs++;
    if (atomic_load(&bench->put) < SENDERS * SENDS)
        return;
    for (int i = 0; i < SENDERS; i++) /* nobody may send when it is released */
        pthread_join(bench->senders[i], NULL);
    wake_release(&bench->wake, on_released);
}

static void *sender(void *data)
{
    struct bench *bench = data;

    for (uint32_t i = 0; i < SENDS; i++) {
        atomic_fetch_add(&bench->put, 1);
        wake_send(&bench->wake);
    }
    return NULL;
}

static void bench_open(struct bench *bench)
{
    struct fire_error error;

    memset(bench, 0, sizeof(*bench));
    ck_assert_int_eq(uv_loop_init(&bench->loop), 0);
    ck_assert_int_eq(wake_init(&bench->wake, &bench->loop, on_run, bench, &error), FIRE_OK);
}

START_TEST(no_wake_up_is_lost)
{
    struct bench bench;

    bench_open(&bench);
    for (int i = 0; i < SENDERS; i++)
        ck_assert_int_eq(pthread_create(&bench.senders[i], NULL, sender, &bench), 0);
    uv_run(&bench.loop, UV_RUN_DEFAULT);
    ck_assert_uint_ge(bench.runs, 1);
    ck_assert_uint_le(bench.runs, SENDERS * SENDS);
    ck_assert_uint_eq(bench.releases, 1);
    ck_assert_int_eq(uv_loop_close(&bench.loop), 0);
}
END_TEST

START_TEST(what_is_released_does_not_run)
{
    struct bench bench;

    bench_open(&bench);
    wake_send(&bench.wake);
    wake_release(&bench.wake, on_released);
    uv_run(&bench.loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(bench.runs, 0);
    ck_assert_uint_eq(bench.releases, 1);
    ck_assert_int_eq(uv_loop_close(&bench.loop), 0);
}
END_TEST

START_TEST(without_a_descriptor_nothing_is_left)
{
    struct rlimit usual, none;
    struct fire_error error;
    struct wake wake;
    uv_loop_t loop;

    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &usual), 0);
    none = (struct rlimit){ 0, usual.rlim_max };
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_eq(wake_init(&wake, &loop, on_run, NULL, &error), FIRE_IO);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &usual), 0); /* sanitizers open files at the end */
    ck_assert_ptr_nonnull(strstr(error.message, "ulimit -n"));
    ck_assert_int_eq(uv_loop_alive(&loop), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wake");
    TCase *tests = tcase_create("wake");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, no_wake_up_is_lost);
    tcase_add_test(tests, what_is_released_does_not_run);
    tcase_add_test(tests, without_a_descriptor_nothing_is_left);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
