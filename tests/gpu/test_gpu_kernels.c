/* The plugin's kernels, every one of them: weights against the float64 reference, and every
 * statistic against the CPU's. Run twice: on kernels compiled by g++, and on their PTX in the
 * interpreter, which also looks at each access. Shapes are small, for the interpreter is slow. */
#define _GNU_SOURCE
#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

#define TOLERANCE_WEIGHTS 1e-5
#define TOLERANCE_NARROW  8e-3 /* weights in bf16 or f16 */
#define TOLERANCE_NUMBER  2e-3 /* of a statistic, relative */
#define TOLERANCE_SMALL   1e-5 /* of one that is rounding alone, absolute */
#define SLOT_BYTES        (160u << 20)

static const struct {
    struct gpu_case what;
    const char *precision;
} cases[] = {
    /* fused: one matrix a block */
    { { "fire", "", 1, 1, 2, FIRE_F32, false }, NULL },
    { { "fire", "", 5, 3, 9, FIRE_F32, false }, NULL },
    { { "fire", "", 16, 23, 3, FIRE_F32, false }, NULL },
    { { "fire", "scale=keep-norm", 33, 7, 2, FIRE_F32, false }, NULL },
    { { "fire", "", 90, 64, 1, FIRE_F32, true }, NULL }, /* more shared memory than 48 KiB */
    { { "fire", "scale=mean-sigma", 12, 12, 2, FIRE_F32, false }, NULL },
    { { "fire", "scale=one blend=0.5", 9, 14, 2, FIRE_F32, false }, NULL },
    { { "official-vision", "", 18, 18, 2, FIRE_F32, false }, NULL },
    { { "official-sac", "", 10, 6, 2, FIRE_F32, false }, NULL },
    { { "rust-guide", "", 13, 13, 2, FIRE_F32, false }, NULL },
    { { "fire", "polynomial=muon steps=5", 11, 8, 2, FIRE_F32, false }, NULL },
    { { "fire", "polynomial=cubic steps=6 normalize=spectral", 11, 11, 2, FIRE_F32, false }, NULL },
    { { "fire", "polynomial=cubic steps=6 normalize=schatten", 8, 12, 2, FIRE_F32, false }, NULL },
    { { "fire", "polynomial=cubic target=1e-4", 10, 10, 3, FIRE_F32, false }, NULL },
    { { "fire", "", 12, 10, 2, FIRE_BF16, false }, NULL },
    { { "fire", "", 12, 10, 2, FIRE_F16, false }, NULL },
    { { "fire", "scale=std:0.00002", 12, 10, 2, FIRE_F16, false }, NULL },
    /* products */
    { { "fire", "", 70, 67, 3, FIRE_F32, false }, NULL },
    { { "fire", "scale=mean-sigma", 66, 81, 2, FIRE_F32, false }, NULL },
    { { "fire", "scale=keep-norm", 160, 66, 2, FIRE_F32, false }, NULL },
    { { "fire", "scale=one blend=0.5", 70, 66, 2, FIRE_F32, false }, NULL },
    { { "official-vision", "", 97, 66, 2, FIRE_F32, false }, NULL },
    { { "official-sac", "", 66, 70, 1, FIRE_F32, false }, NULL },
    { { "fire", "polynomial=cubic steps=5 normalize=spectral", 66, 66, 2, FIRE_F32, false }, NULL },
    { { "fire", "polynomial=cubic target=1e-4", 130, 66, 3, FIRE_F32, false }, NULL },
    { { "fire", "polynomial=cubic target=1e-4", 66, 66, 3, FIRE_F32, false }, NULL },
    { { "fire", "", 67, 66, 2, FIRE_BF16, false }, NULL },
    { { "fire", "", 70, 66, 2, FIRE_F32, false }, "3xtf32" },
    { { "fire", "polynomial=cubic steps=1", 512, 512, 1, FIRE_F32, true }, NULL },
    { { "fire", "polynomial=muon steps=1", 512, 512, 1, FIRE_F32, true }, NULL },
};
#define CASES ((int)(sizeof(cases) / sizeof(cases[0])))

/* Numbers that are what rounding left. */
static bool is_small(const char *name, const struct fire_plan *plan)
{
    return strcmp(name, "polar_residual") == 0 ||
           (plan->kind == FIRE_PLAN_CONVERGE && strncmp(name, "dfi", 3) == 0 &&
            strstr(name, "before") == NULL);
}

static void compare_results(const struct gpu_batch *batch, uint32_t index,
                            const struct fire_result *want, const char *which)
{
    const struct fire_result *have = &batch->results[index];
    const double slack = batch->plan.output == FIRE_F32 ? TOLERANCE_NUMBER : 10 * TOLERANCE_NUMBER;

    ck_assert_msg(have->action == want->action && have->rank == want->rank &&
                      have->rank_defect == want->rank_defect && have->converged == want->converged,
                  "%s, matrix %u: another outcome", which, index);
    if (batch->plan.kind == FIRE_PLAN_POLYNOMIAL)
        ck_assert_msg(have->steps == want->steps, "%s, matrix %u: %u steps, not %u", which, index,
                      have->steps, want->steps);
    for (size_t k = 0; k < fire_result_field_count(); k++) {
        const char *name = fire_result_field_at(k)->name;
        const double a = fire_result_value(have, k), b = fire_result_value(want, k);
        const double limit =
            slack * fabs(b) + (is_small(name, &batch->plan)
                                   ? (batch->plan.output == FIRE_F32 ? TOLERANCE_SMALL : 1e-2)
                                   : 1e-9);

        if (strcmp(name, "compute_ms") == 0)
            continue;
        ck_assert_msg(isnan(a) == isnan(b), "%s, matrix %u: %s is %g, not %g", which, index, name,
                      a, b);
        ck_assert_msg(isnan(a) || fabs(a - b) <= limit, "%s, matrix %u: %s is %.9g, not %.9g",
                      which, index, name, a, b);
    }
}

START_TEST(weights_and_every_statistic_agree)
{
    const struct gpu_case *what = &cases[_i].what;
    struct projector gpu, cpu;
    struct gpu_batch batch, again;
    char which[160];

    snprintf(which, sizeof(which), "%s %s %ux%u", what->preset, what->settings, what->out,
             what->in);
    plugin_calm();
    plugin_open_with(&gpu, cases[_i].precision, 1, SLOT_BYTES);
    gpu_batch_init(&batch, what, 77 + (uint64_t)_i);
    gpu_batch_must_run(&gpu, &batch);
    projector_close(&gpu);
    plugin_check_clean(which);

    gpu_batch_init(&again, what, 77 + (uint64_t)_i);
    projector_open(&cpu, "auto", 1);
    gpu_batch_must_run(&cpu, &again);
    projector_close(&cpu);
    for (uint32_t i = 0; i < what->count; i++) {
        const double error = gpu_batch_error(&batch, i);

        ck_assert_msg(strncmp(batch.results[i].path, "cuda", 4) == 0, "%s: by %s", which,
                      batch.results[i].path);
        ck_assert_msg(error <= (what->output == FIRE_F32 ? TOLERANCE_WEIGHTS : TOLERANCE_NARROW),
                      "%s, matrix %u: error %g", which, i, error);
        ck_assert_msg(gpu_batch_is_rounded(&batch, i), "%s, matrix %u: not rounded", which, i);
        if (!what->plain)
            compare_results(&batch, i, &again.results[i], which);
    }
    gpu_batch_release(&batch);
    gpu_batch_release(&again);
}
END_TEST

/* Analysis changes no weight. */
START_TEST(an_analysis_reads_only)
{
    static const uint32_t sides[] = { 9, 70 };
    const struct gpu_case what = { "fire", "", sides[_i], 66, 2, FIRE_F32, false };
    struct projector gpu, cpu;
    struct gpu_batch batch, again;

    plugin_calm();
    gpu_batch_init(&batch, &what, 5);
    gpu_batch_init(&again, &what, 5);
    batch.plan.kind = again.plan.kind = FIRE_PLAN_ANALYZE;
    plugin_open_with(&gpu, NULL, 1, SLOT_BYTES);
    gpu_batch_must_run(&gpu, &batch);
    projector_close(&gpu);
    projector_open(&cpu, "auto", 1);
    gpu_batch_must_run(&cpu, &again);
    projector_close(&cpu);
    ck_assert_mem_eq(batch.weights, batch.before,
                     what.count * batch.matrix_floats * sizeof(batch.weights[0]));
    for (uint32_t i = 0; i < what.count; i++)
        compare_results(&batch, i, &again.results[i], "analysis");
    gpu_batch_release(&batch);
    gpu_batch_release(&again);
}
END_TEST

/* The SFE that a result tells, against the weights themselves: it needs the norm of this matrix. */
static void check_sfe(const struct gpu_batch *batch, uint32_t index)
{
    const float *const before = batch->before + index * batch->matrix_floats;
    const float *const after = batch->weights + index * batch->matrix_floats;
    double moved = 0, squares = 0;

    for (size_t i = 0; i < batch->matrix_floats; i++) {
        const double d = (double)after[i] - (double)before[i];

        moved = fma(d, d, moved);
        squares = fma((double)before[i], (double)before[i], squares);
    }
    ck_assert_msg(fabs(batch->results[index].sfe_relative * squares / moved - 1) < 1e-5,
                  "matrix %u: SFE %g of the norm, not %g", index,
                  batch->results[index].sfe_relative, moved / squares);
}

/* Matrices that need the second segment, found by trying seeds; they go on where they were. */
START_TEST(stragglers_are_as_right_as_the_others)
{
    const struct gpu_case what = { "fire", "", 128, 128, 4, FIRE_F32, .plain = true };
    struct projector gpu;
    uint32_t second = 0;

    plugin_calm();
    plugin_open_with(&gpu, NULL, 1, SLOT_BYTES);
    for (uint64_t seed = 0; seed < 24 && second == 0; seed++) {
        struct emulator_counters before, after;
        struct gpu_batch batch;

        gpu_batch_init(&batch, &what, 1000 + seed);
        gpu_batch_must_run(&gpu, &batch);
        gpu_batch_again(&batch);
        plugin_emulator()->counters(&before);
        gpu_batch_must_run(&gpu, &batch);
        plugin_emulator()->counters(&after);
        second += after.waits - before.waits > 1;
        for (uint32_t i = 0; i < what.count; i++) {
            ck_assert_msg(gpu_batch_error(&batch, i) <= TOLERANCE_WEIGHTS, "seed %llu, matrix %u",
                          (unsigned long long)seed, i);
            check_sfe(&batch, i);
        }
        gpu_batch_release(&batch);
    }
    projector_close(&gpu);
    plugin_check_clean("stragglers");
    ck_assert_msg(second > 0, "no batch had stragglers");
}
END_TEST

/* The last test: in the interpreter, every kernel of the PTX has run by now. */
START_TEST(no_kernel_was_left_out)
{
    const char *path = getenv("FIRE_EMULATOR_KERNELS");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    void *symbol = library ? dlsym(library, "ptx_runner_unrun") : NULL;
    const char *(*unrun)(void) = NULL;

    if (!symbol)
        return; /* kernels by g++ */
    memcpy(&unrun, &symbol, sizeof(symbol));
    ck_assert_msg(unrun() == NULL, "kernel %s was never run", unrun());
    dlclose(library);
}
END_TEST

static void add(Suite *suite)
{
    TCase *tests = tcase_create("kernels");

    tcase_set_timeout(tests, 600);
    tcase_add_loop_test(tests, weights_and_every_statistic_agree, 0, CASES);
    tcase_add_loop_test(tests, an_analysis_reads_only, 0, 2);
    tcase_add_test(tests, stragglers_are_as_right_as_the_others);
    tcase_add_test(tests, no_kernel_was_left_out);
    suite_add_tcase(suite, tests);
}

int main(void)
{
    return plugin_main(add, "gpu kernels");
}
