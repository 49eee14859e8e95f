/* A result never depends on the order in which a device runs what is queued, on the batch, or on
 * what else is on its way: the same bits under every schedule. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

#define SCHEDULES 32u /* eager, lazy, and so many less two seeds */

/* A fused one, one of products, the Gram side, counted steps, and until a target. */
static const struct gpu_case cases[] = {
    { "fire", "", 24, 24, 5, FIRE_F32, false },
    { "fire", "", 96, 80, 3, FIRE_F32, false },
    { "fire", "", 200, 40, 3, FIRE_F32, false },
    { "official-vision", "", 72, 72, 2, FIRE_F32, false },
    { "fire", "polynomial=cubic target=1e-3", 48, 80, 3, FIRE_F32, false },
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

static const char *schedule_name(uint32_t index)
{
    static char text[32];

    if (index < 2)
        return index == 0 ? "eager" : "lazy";
    snprintf(text, sizeof(text), "random:%u", index);
    return text;
}

/* All cases at once on a device, several on their way; bits into `bits`. */
static void run_all(struct gpu_batch *batches, float **bits)
{
    struct projector gpu;

    plugin_open(&gpu);
    for (size_t round = 0; round < 2; round++) { /* the second finds its graphs made */
        for (size_t i = 0; i < CASES; i++) {
            gpu_batch_again(&batches[i]);
            ck_assert_int_eq(gpu.backend->submit(gpu.device, &batches[i].batch), FIRE_OK);
        }
        for (size_t i = 0; i < CASES; i++)
            ck_assert_msg(gpu.backend->wait(gpu.device, &batches[i].batch) == FIRE_OK, "%s; %s",
                          gpu.backend->last_error(gpu.device), plugin_emulator()->complaint());
    }
    projector_close(&gpu);
    for (size_t i = 0; i < CASES; i++)
        memcpy(bits[i], batches[i].weights,
               cases[i].count * batches[i].matrix_floats * sizeof(float));
}

START_TEST(the_same_bits_under_every_schedule)
{
    struct gpu_batch batches[CASES];
    float *want[CASES], *have[CASES];

    plugin_calm();
    for (size_t i = 0; i < CASES; i++) {
        gpu_batch_init(&batches[i], &cases[i], 40 + i);
        want[i] = calloc(cases[i].count * batches[i].matrix_floats, sizeof(float));
        have[i] = calloc(cases[i].count * batches[i].matrix_floats, sizeof(float));
        ck_assert(want[i] && have[i]);
    }
    for (uint32_t n = 0; n < SCHEDULES; n++) {
        ck_assert(plugin_emulator()->schedule(schedule_name(n)));
        run_all(batches, n == 0 ? want : have);
        for (size_t i = 0; n > 0 && i < CASES; i++)
            ck_assert_msg(memcmp(want[i], have[i],
                                 cases[i].count * batches[i].matrix_floats * sizeof(float)) == 0,
                          "case %zu differs under %s", i, schedule_name(n));
        plugin_check_clean(schedule_name(n));
    }
    for (size_t i = 0; i < CASES; i++) {
        gpu_batch_release(&batches[i]);
        free(want[i]);
        free(have[i]);
    }
}
END_TEST

/* The first matrix of a batch alone, and as one of many. */
START_TEST(the_same_bits_in_every_batch)
{
    struct gpu_case alone = cases[_i], many = cases[_i];
    struct gpu_batch single, crowd;
    struct projector gpu;

    plugin_calm();
    alone.count = 1;
    many.count = 19;
    plugin_open(&gpu);
    gpu_batch_init(&single, &alone, 77);
    gpu_batch_init(&crowd, &many, 77);
    ck_assert_mem_eq(single.before, crowd.before, single.matrix_floats * sizeof(float));
    gpu_batch_must_run(&gpu, &single);
    gpu_batch_must_run(&gpu, &crowd);
    ck_assert_mem_eq(single.weights, crowd.weights, single.matrix_floats * sizeof(float));
    ck_assert(single.results[0].dfi_unscaled_after == crowd.results[0].dfi_unscaled_after);
    ck_assert(single.results[0].sfe == crowd.results[0].sfe);
    gpu_batch_release(&single);
    gpu_batch_release(&crowd);
    projector_close(&gpu);
    plugin_check_clean("batches");
}
END_TEST

static void add(Suite *suite)
{
    TCase *const tests = tcase_create("schedules");

    tcase_set_timeout(tests, 1500);
    tcase_add_test(tests, the_same_bits_under_every_schedule);
    tcase_add_loop_test(tests, the_same_bits_in_every_batch, 0, CASES);
    suite_add_tcase(suite, tests);
}

int main(void)
{
    return plugin_main(add, "gpu schedules");
}
