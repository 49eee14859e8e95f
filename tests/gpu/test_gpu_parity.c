/* The shipped plugin on the emulated GPU: every preset and option made of products, on many shapes,
 * against the float64 reference. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

/* f32 on the device: polar error at most 1e-5 by promise; counted steps round as much. */
#define TOLERANCE_F32   1e-5
#define TOLERANCE_EARLY 1e-2 /* TF32 in early steps: the factor moves, the DfI does not */
#define TOLERANCE_BF16  8e-3 /* of the rounded weights themselves */
#define TOLERANCE_F16   1e-3

#define SLOT_BYTES (160u << 20) /* a chunk of the Gram side of 256 x 256 fits */

static const struct {
    uint32_t out, in, count;
} shapes[] = {
    { 1, 1, 3 },     { 1, 7, 2 },     { 3, 2, 5 },     { 8, 8, 64 },   { 17, 5, 4 },
    { 31, 33, 3 },   { 64, 64, 4 },   { 65, 63, 3 },   { 64, 16, 7 },  { 16, 64, 7 },
    { 100, 100, 2 }, { 128, 128, 2 }, { 129, 130, 1 }, { 256, 64, 2 }, { 64, 256, 2 },
    { 200, 77, 2 },  { 256, 256, 1 }, { 512, 128, 1 },
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static const struct {
    const char *preset;
    const char *settings;
} methods[] = {
    { "fire", "" },
    { "official-vision", "" },
    { "official-vit", "" },
    { "official-gpt", "" },
    { "official-dqn", "" },
    { "official-sac", "" },
    { "review", "" },
    { "rust-guide", "" },
    { "fire", "scale=keep-norm" },
    { "fire", "scale=mean-sigma" },
    { "fire", "scale=one blend=0.5" },
    { "fire", "polynomial=muon steps=5" },
    { "fire", "polynomial=polar-express steps=5" },
    { "fire", "polynomial=cubic steps=6 normalize=spectral" },
    { "fire", "polynomial=cubic steps=6 normalize=schatten" },
    { "fire", "polynomial=cubic steps=6 side=gram" },
    { "fire", "polynomial=cubic target=1e-4" },
    { "fire", "side=gram" },
};
#define METHODS (sizeof(methods) / sizeof(methods[0]))

static struct projector gpu;

static void setup(void)
{
    plugin_calm();
    plugin_open_with(&gpu, NULL, 2, SLOT_BYTES);
}

static void teardown(void)
{
    projector_close(&gpu);
    plugin_check_clean("parity");
}

/* The words that name a case in a message. */
static const char *words(const struct gpu_case *what)
{
    static char text[200];

    snprintf(text, sizeof(text), "%s %s, %ux%u, %u matrices", what->preset, what->settings,
             what->out, what->in, what->count);
    return text;
}

static void check_case(const struct gpu_case *what, double tolerance, uint64_t seed)
{
    struct emulator_counters before, after;
    struct gpu_batch batch;

    gpu_batch_init(&batch, what, seed);
    plugin_emulator()->counters(&before);
    gpu_batch_must_run(&gpu, &batch);
    plugin_emulator()->counters(&after);
    ck_assert_msg(after.operations > before.operations, "%s: nothing ran on the GPU", words(what));
    for (uint32_t i = 0; i < what->count; i++) {
        const struct fire_result *const result = &batch.results[i];
        /* All of a small batch, the ends of a large one. */
        const bool looked_at = what->count <= 8 || i < 2 || i + 2 >= what->count;
        const double error = looked_at ? gpu_batch_error(&batch, i) : 0.0;

        ck_assert_msg(result->action == FIRE_ACTION_PROJECTED, "%s: matrix %u: %s", words(what), i,
                      result->reason);
        ck_assert_msg(gpu_batch_is_rounded(&batch, i), "%s: matrix %u is not rounded", words(what),
                      i);
        ck_assert_msg(error <= tolerance, "%s: matrix %u by %s (%s): error %g", words(what), i,
                      result->path, result->method, error);
        /* Unknown when the CPU finished it and no statistics were asked for. */
        if (batch.plan.kind == FIRE_PLAN_CONVERGE && !isnan(result->dfi_unscaled_after))
            ck_assert_msg(result->dfi_unscaled_after <= batch.plan.target,
                          "%s: matrix %u: DfI %g, target %g", words(what), i,
                          result->dfi_unscaled_after, batch.plan.target);
    }
    gpu_batch_release(&batch);
}

START_TEST(every_preset_and_shape_agrees_with_the_reference)
{
    /* The default on every shape, the others on every third, from another one each. */
    const bool all = _i == 0 || getenv("FIRED_TEST_FULL") != NULL;

    for (size_t s = all ? 0 : (size_t)_i % 3; s < SHAPES; s += all ? 1 : 3) {
        const struct gpu_case what = { methods[_i].preset,
                                       methods[_i].settings,
                                       shapes[s].out,
                                       shapes[s].in,
                                       shapes[s].count,
                                       FIRE_F32,
                                       .plain = shapes[s].out >= 100 && _i > 0 };

        check_case(&what, TOLERANCE_F32, 100 * s + (uint64_t)_i);
    }
}
END_TEST

/* The largest ones once: they are slow to emulate and to compare. */
START_TEST(large_matrices_agree_with_the_reference)
{
    static const struct gpu_case cases[] = {
        { "fire", "", 512, 512, 1, FIRE_F32, true },
        { "fire", "", 256, 1024, 1, FIRE_F32, true },
        { "official-vision", "", 512, 512, 1, FIRE_F32, true },
        { "fire", "", 1024, 256, 1, FIRE_F32, true },
        { "fire", "", 1024, 1024, 1, FIRE_F32, true },
    };
    const size_t count = sizeof(cases) / sizeof(cases[0]);

    for (size_t i = 0; i < (getenv("FIRED_TEST_FULL") ? count : 3); i++)
        check_case(&cases[i], TOLERANCE_F32, 7 + i);
}
END_TEST

/* More matrices than one call multiplies. On the device: the CPU would make good what is wrong. */
START_TEST(a_batch_of_several_chunks_agrees_with_the_reference)
{
    const struct gpu_case what = { "fire", "", 16000, 72, 2, FIRE_F32, true };
    struct gpu_batch batch;

    gpu_batch_init(&batch, &what, 21);
    gpu_batch_must_run(&gpu, &batch);
    for (uint32_t i = 0; i < what.count; i++) {
        ck_assert_msg(strncmp(batch.results[i].path, "cuda", 4) == 0, "matrix %u by %s", i,
                      batch.results[i].path);
        ck_assert_msg(gpu_batch_error(&batch, i) <= TOLERANCE_F32, "matrix %u", i);
    }
    gpu_batch_release(&batch);
}
END_TEST

static const struct {
    enum fire_dtype output;
    double tolerance;
} outputs[] = { { FIRE_BF16, TOLERANCE_BF16 }, { FIRE_F16, TOLERANCE_F16 } };

START_TEST(narrow_weights_are_rounded_once)
{
    const struct gpu_case small = { "fire", "", 48, 32, 3, outputs[_i].output, false };
    const struct gpu_case large = { "fire", "", 130, 70, 2, outputs[_i].output, false };

    check_case(&small, outputs[_i].tolerance, 11);
    check_case(&large, outputs[_i].tolerance, 12);
}
END_TEST

static const struct {
    const char *name;
    double tolerance;
} precisions[] = { { "f32", TOLERANCE_F32 },
                   { "3xtf32", TOLERANCE_F32 },
                   { "tf32-early", TOLERANCE_EARLY } };

START_TEST(every_precision_keeps_its_tolerance)
{
    projector_close(&gpu);
    plugin_open_with(&gpu, precisions[_i].name, 2, 384u << 20);
    for (size_t s = 0; s < SHAPES; s++) {
        const struct gpu_case what = {
            "fire", "", shapes[s].out, shapes[s].in, 2, FIRE_F32, false
        };

        if (shapes[s].out >= 64 && shapes[s].in >= 64)
            check_case(&what, precisions[_i].tolerance, 300 + s);
    }
}
END_TEST

static void add(Suite *suite)
{
    TCase *const tests = tcase_create("parity");

    tcase_set_timeout(tests, 1500);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, every_preset_and_shape_agrees_with_the_reference, 0, METHODS);
    tcase_add_test(tests, large_matrices_agree_with_the_reference);
    tcase_add_test(tests, a_batch_of_several_chunks_agrees_with_the_reference);
    tcase_add_loop_test(tests, narrow_weights_are_rounded_once, 0, 2);
    tcase_add_loop_test(tests, every_precision_keeps_its_tolerance, 0, 3);
    suite_add_tcase(suite, tests);
}

int main(void)
{
    return plugin_main(add, "gpu parity");
}
