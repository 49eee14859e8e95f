/* A result never depends on the order in which a device runs what is queued, on the batch, on what
 * else is on its way or came before, or on the GPU: the same bits under every schedule. */
#define _GNU_SOURCE
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

#define GPUS      2u
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

/* Both on one slot, which keeps the graphs of the first when the second comes. */
static void run_two(struct gpu_batch *first, struct gpu_batch *second)
{
    struct projector gpu;

    plugin_open_on(&gpu, 0);
    gpu_batch_again(first);
    gpu_batch_again(second);
    gpu_batch_must_run(&gpu, first);
    gpu_batch_must_run(&gpu, second);
    projector_close(&gpu);
}

/* The first matrix of a batch alone, and as one of many; whichever comes first. */
START_TEST(the_same_bits_in_every_batch)
{
    struct gpu_case alone = cases[_i], many = cases[_i];
    struct gpu_batch single, crowd;
    size_t bytes;
    float *kept;

    plugin_calm();
    alone.count = 1;
    many.count = 19;
    gpu_batch_init(&single, &alone, 77);
    gpu_batch_init(&crowd, &many, 77);
    bytes = single.matrix_floats * sizeof(float);
    ck_assert_mem_eq(single.before, crowd.before, bytes);
    kept = malloc(many.count * bytes);
    ck_assert_ptr_nonnull(kept);
    run_two(&crowd, &single);
    ck_assert_mem_eq(single.weights, crowd.weights, bytes);
    ck_assert(single.results[0].dfi_unscaled_after == crowd.results[0].dfi_unscaled_after);
    ck_assert(single.results[0].sfe == crowd.results[0].sfe);
    memcpy(kept, crowd.weights, many.count * bytes);
    run_two(&single, &crowd);
    ck_assert_mem_eq(single.weights, kept, bytes);
    for (uint32_t i = 0; i < many.count; i++)
        ck_assert_msg(memcmp(crowd.weights + i * crowd.matrix_floats,
                             kept + i * crowd.matrix_floats, bytes) == 0,
                      "matrix %u differs after a smaller batch", i);
    free(kept);
    gpu_batch_release(&single);
    gpu_batch_release(&crowd);
    plugin_check_clean("batches");
}
END_TEST

/* A batch runs on the GPU that was asked for, on no other, and says the same there. */
START_TEST(the_same_bits_on_every_gpu)
{
    struct gpu_batch batch;
    float *kept;
    size_t bytes;

    plugin_calm();
    gpu_batch_init(&batch, &cases[_i], 78);
    bytes = cases[_i].count * batch.matrix_floats * sizeof(float);
    kept = malloc(bytes);
    ck_assert_ptr_nonnull(kept);
    for (uint32_t ordinal = 0; ordinal < GPUS; ordinal++) {
        struct emulator_clock clock;
        struct projector gpu;

        plugin_emulator()->reset_clock();
        plugin_open_on(&gpu, ordinal);
        gpu_batch_again(&batch);
        gpu_batch_must_run(&gpu, &batch);
        projector_close(&gpu);
        for (uint32_t i = 0; i < GPUS; i++) {
            plugin_emulator()->clock(i, &clock);
            ck_assert_msg((clock.compute_s > 0) == (i == ordinal), "GPU %u %s", i,
                          i == ordinal ? "did nothing" : "was not asked");
        }
        if (ordinal == 0)
            memcpy(kept, batch.weights, bytes);
        ck_assert_msg(memcmp(kept, batch.weights, bytes) == 0, "GPU %u differs", ordinal);
        plugin_check_clean("several GPUs");
    }
    free(kept);
    gpu_batch_release(&batch);
}
END_TEST

/* A smaller batch of the same kind is filled up with zeros: neither pinned nor device memory that
 * it uses keeps the weights of whoever came before. */
START_TEST(nothing_of_an_earlier_batch_is_kept)
{
    struct gpu_case large = cases[_i], small = cases[_i];
    struct gpu_batch first, second;
    struct projector gpu;
    const float *sample;
    size_t bytes;

    plugin_calm();
    large.count = 4;
    small.count = 3;
    gpu_batch_init(&first, &large, 79);
    gpu_batch_init(&second, &small, 80);
    sample = first.before + 3 * first.matrix_floats + 1;
    bytes = 16 * sizeof(float);
    plugin_open_on(&gpu, 0);
    gpu_batch_must_run(&gpu, &first);
    ck_assert_msg(plugin_emulator()->memory_has(sample, bytes), "no trace of what just ran");
    gpu_batch_must_run(&gpu, &second);
    ck_assert_msg(!plugin_emulator()->memory_has(sample, bytes), "weights of an earlier batch");
    projector_close(&gpu);
    gpu_batch_release(&first);
    gpu_batch_release(&second);
    plugin_check_clean("filled up batches");
}
END_TEST

static void add(Suite *suite)
{
    TCase *const tests = tcase_create("schedules");

    tcase_set_timeout(tests, 1500);
    tcase_add_loop_test(tests, the_same_bits_in_every_batch, 0, CASES);
    tcase_add_loop_test(tests, the_same_bits_on_every_gpu, 0, 2); /* fused, and products */
    tcase_add_loop_test(tests, nothing_of_an_earlier_batch_is_kept, 0, CASES);
    tcase_add_test(tests, the_same_bits_under_every_schedule);
    suite_add_tcase(suite, tests);
}

int main(void)
{
    setenv("FIRE_EMULATOR_DEVICES", "2", 1); /* GPUS; read when the emulator is first called */
    return plugin_main(add, "gpu schedules");
}
