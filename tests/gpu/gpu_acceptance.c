/* gpu_acceptance: what deploy/gpu-acceptance asks of a GPU. It needs nothing of the emulator, so it
 * runs on real libraries; on emulated ones the same checks are made on smaller shapes and no time
 * is told.
 *
 *   gpu_acceptance checks   errors by precision, and the same bits in every batch size
 *   gpu_acceptance touch    a few small batches through every kind of kernel, for compute-sanitizer
 *   gpu_acceptance times    milliseconds of batches, for the roofline and for PyTorch
 *
 * Lines that begin with "error", "bits" and "time" are read by the script; the exit code is 0 when
 * every check held. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plugin.h"

#define SLOTS      2u
#define SLOT_BYTES (512ull << 20)
#define ROUNDS     5

static bool emulated;

/* The promise for each precision (NUMERICS.md section 4): relative error of the factor. */
static const struct {
    const char *name;
    double most;
} precisions[] = { { "f32", 1e-5 }, { "3xtf32", 1e-5 }, { "tf32-early", 1e-2 } };

static const struct {
    const char *preset, *settings;
    uint32_t out, in, count;
    bool needs_hardware; /* too large to emulate in a short test */
} shapes[] = {
    { "fire", "", 1, 1, 3, false },
    { "fire", "", 33, 31, 4, false },
    { "fire", "", 64, 64, 9, false },
    { "fire", "", 100, 100, 2, false },
    { "fire", "", 200, 77, 2, false },
    { "official-vision", "", 64, 64, 2, false },
    { "official-gpt", "", 96, 72, 2, false },
    { "official-sac", "", 24, 40, 3, false },
    { "review", "", 70, 70, 2, false },
    { "fire", "scale=mean-sigma", 66, 81, 2, false },
    { "fire", "polynomial=polar-express steps=5", 96, 96, 2, false },
    { "fire", "", 256, 256, 4, true },
    { "fire", "", 1024, 256, 4, true },
    { "fire", "", 1024, 1024, 4, true },
    { "official-vision", "", 1024, 1024, 4, true },
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void open_gpu(struct projector *gpu, const char *precision)
{
    plugin_open_with(gpu, precision, SLOTS, emulated ? 96ull << 20 : SLOT_BYTES);
}

static struct gpu_case case_of(size_t s)
{
    return (struct gpu_case){ shapes[s].preset, shapes[s].settings, shapes[s].out, shapes[s].in,
                              shapes[s].count,  FIRE_F32,           true };
}

static double worst_error(struct projector *gpu, const struct gpu_case *what, uint64_t seed)
{
    struct gpu_batch batch;
    double worst = 0.0;

    gpu_batch_init(&batch, what, seed);
    ck_assert_msg(gpu_batch_run(gpu, &batch) == FIRE_OK, "%s",
                  gpu->backend->last_error(gpu->device));
    for (uint32_t i = 0; i < what->count; i++)
        worst = fmax(worst, gpu_batch_error(&batch, i));
    gpu_batch_release(&batch);
    return worst;
}

START_TEST(errors_stay_within_the_promise)
{
    struct projector gpu;

    open_gpu(&gpu, precisions[_i].name);
    for (size_t s = 0; s < SHAPES; s++) {
        const struct gpu_case what = case_of(s);
        double error;

        if (emulated && shapes[s].needs_hardware)
            continue;
        error = worst_error(&gpu, &what, 300 + s);
        printf("error\t%s\t%s %s\t%ux%u\t%.2e\n", precisions[_i].name, what.preset, what.settings,
               what.out, what.in, error);
        ck_assert_msg(error <= precisions[_i].most, "%s %ux%u: error %g", precisions[_i].name,
                      what.out, what.in, error);
    }
    projector_close(&gpu);
}
END_TEST

/* A matrix alone, and the same one among 2, 7, 17 and 64: the bits must be the same. */
START_TEST(batch_size_changes_no_bit)
{
    static const uint32_t counts[] = { 1, 2, 7, 17, 64 };
    static const uint32_t sides[] = { 16, 48, 96, 512 };
    struct projector gpu;

    open_gpu(&gpu, NULL);
    for (size_t s = 0; s < sizeof(sides) / sizeof(sides[0]); s++) {
        float *alone = NULL;

        if (emulated && sides[s] > 100)
            continue;
        for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
            const struct gpu_case what = {
                "fire", "", sides[s], sides[s], counts[k], FIRE_F32, true
            };
            struct gpu_batch batch;
            size_t bytes;
            bool same;

            if (emulated && counts[k] > 17)
                continue;
            gpu_batch_init(&batch, &what, 900 + s);
            bytes = batch.matrix_floats * sizeof(float);
            ck_assert_int_eq(gpu_batch_run(&gpu, &batch), FIRE_OK);
            if (!alone) {
                alone = malloc(bytes);
                ck_assert(alone != NULL);
                memcpy(alone, batch.weights, bytes);
            }
            same = memcmp(alone, batch.weights, bytes) == 0;
            printf("bits\t%ux%u\tbatch of %u\t%s\n", sides[s], sides[s], counts[k],
                   same ? "the same" : "DIFFERENT");
            ck_assert_msg(same, "%u in a batch of %u", sides[s], counts[k]);
            gpu_batch_release(&batch);
        }
        free(alone);
    }
    projector_close(&gpu);
}
END_TEST

START_TEST(touches_every_kind_of_kernel)
{
    static const struct gpu_case cases[] = {
        { "fire", "", 17, 9, 3, FIRE_F32, false },
        { "fire", "scale=mean-sigma", 70, 66, 2, FIRE_F32, false },
        { "official-vision", "", 140, 66, 2, FIRE_F32, false },
        { "fire", "", 70, 66, 2, FIRE_BF16, false },
    };
    struct projector gpu;

    open_gpu(&gpu, _i == 0 ? NULL : "3xtf32");
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        struct gpu_batch batch;

        gpu_batch_init(&batch, &cases[k], 40 + k);
        ck_assert_int_eq(gpu_batch_run(&gpu, &batch), FIRE_OK);
        gpu_batch_release(&batch);
    }
    projector_close(&gpu);
}
END_TEST

static double milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* The best of some rounds: from submit to done, copies included. */
static double time_of(struct projector *gpu, const struct gpu_case *what)
{
    struct gpu_batch batch;
    double best = INFINITY;

    gpu_batch_init(&batch, what, 1);
    for (int round = 0; round < ROUNDS + 1; round++) {
        double start;

        gpu_batch_again(&batch);
        start = milliseconds();
        ck_assert_int_eq(gpu_batch_run(gpu, &batch), FIRE_OK);
        if (round > 0) /* the first makes the graph */
            best = fmin(best, milliseconds() - start);
    }
    gpu_batch_release(&batch);
    return best;
}

START_TEST(tells_the_times)
{
    static const struct {
        uint32_t out, in, count;
    } sizes[] = { { 64, 64, 64 }, { 512, 512, 16 }, { 1024, 1024, 8 }, { 3072, 768, 4 } };
    static const char *const presets[] = { "official-vision", "fire" };
    struct projector gpu;

    open_gpu(&gpu, NULL);
    for (size_t p = 0; p < 2; p++)
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            struct gpu_case what = { presets[p],     "",       sizes[s].out, sizes[s].in,
                                     sizes[s].count, FIRE_F32, true };

            if (emulated) { /* the clock would tell how fast the emulator is */
                if (s > 0)
                    continue;
                what.count = 2;
            }
            printf("time\t%s\t%u\t%u\t%u\t%.4f\n", what.preset, what.out, what.in, what.count,
                   time_of(&gpu, &what));
        }
    projector_close(&gpu);
}
END_TEST

static const char *part;

static void add(Suite *suite)
{
    TCase *tests = tcase_create(part);

    tcase_set_timeout(tests, 3600);
    if (strcmp(part, "checks") == 0) {
        tcase_add_loop_test(tests, errors_stay_within_the_promise, 0,
                            (int)(sizeof(precisions) / sizeof(precisions[0])));
        tcase_add_test(tests, batch_size_changes_no_bit);
    } else if (strcmp(part, "touch") == 0) {
        tcase_add_loop_test(tests, touches_every_kind_of_kernel, 0, 2);
    } else {
        tcase_add_test(tests, tells_the_times);
    }
    suite_add_tcase(suite, tests);
}

int main(int argc, char **argv)
{
    Suite *suite;
    SRunner *runner;
    struct fire_caps caps;
    int failed;

    if (argc != 2 || (strcmp(argv[1], "checks") != 0 && strcmp(argv[1], "touch") != 0 &&
                      strcmp(argv[1], "times") != 0)) {
        (void)fprintf(stderr, "usage: gpu_acceptance checks|touch|times\n");
        return 2;
    }
    part = argv[1];
    (void)plugin_load(); /* says so when it is not the emulator: that is what we are for */
    emulated = plugin_emulator() != NULL;
    if (!plugin_backend() || plugin_backend()->probe(&caps) != FIRE_OK) {
        printf("no GPU: %s\n", plugin_backend() ? caps.reason : "no plugin");
        return 1;
    }
    printf("device\t%s, %s\n", caps.name, emulated ? "emulated" : "real");
    suite = suite_create("gpu acceptance");
    add(suite);
    runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
