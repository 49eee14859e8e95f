/* Kernels one by one, against plain loops, where what a whole projection shows of them is too
 * little: sums that are mostly rounding, rows beyond the end, padding, roundings. Run twice, as
 * test_gpu_kernels is. Device addresses are host addresses here: one arena is all the memory. */
#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/state.h"
#include "dtype.h"
#include "kernel_runner.h"
#include "random.h"

#define ARENA_BYTES (4u << 20)
#define MATRICES    3u
#define MARK        (-12345.0) /* what must not be overwritten */

static const char *(*run)(const struct kernel_launch *, const struct kernel_memory *,
                          struct kernel_cost *);
static _Alignas(256) uint8_t arena[ARENA_BYTES];
static size_t used;

static void *translate(void *context, uint64_t address, size_t bytes, bool write)
{
    const uint64_t base = (uint64_t)(uintptr_t)arena;

    (void)context;
    (void)write;
    return address >= base && address - base <= ARENA_BYTES - bytes ? (void *)(uintptr_t)address
                                                                    : NULL;
}

static bool allocation(void *context, uint64_t address, uint64_t *base, size_t *bytes)
{
    (void)context;
    *base = (uint64_t)(uintptr_t)arena;
    *bytes = ARENA_BYTES;
    return translate(NULL, address, 1, false) != NULL;
}

static void *take(size_t bytes)
{
    void *memory = arena + used;

    used += (bytes + 255) / 256 * 256;
    ck_assert_uint_le(used, ARENA_BYTES);
    memset(memory, KERNEL_POISON, bytes);
    return memory;
}

static float *take_random(size_t count, uint64_t seed)
{
    float *values = take(count * sizeof(float));
    struct fire_random random;

    fire_random_init(&random, seed);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)fire_random_normal(&random);
    return values;
}

static double *take_marked(size_t count)
{
    double *values = take(count * sizeof(double));

    for (size_t i = 0; i < count; i++)
        values[i] = MARK;
    return values;
}

static void launch(const char *name, uint32_t x, uint32_t y, uint32_t threads, void **arguments)
{
    const struct kernel_memory memory = { .translate = translate, .allocation = allocation };
    const struct kernel_launch what = {
        .name = name, .grid = { x, y, 1 }, .block = { threads, 1, 1 }, .arguments = arguments
    };
    struct kernel_cost cost = { 0 };
    const char *message = run(&what, &memory, &cost);

    ck_assert_msg(message == NULL, "%s: %s", name, message);
}

static void near(double have, double want, const char *what)
{
    ck_assert_msg(fabs(have - want) <= 1e-9 * fabs(want) + 1e-12, "%s: %.15g, not %.15g", what,
                  have, want);
}

static const uint32_t sizes[] = { 1, 2, 17, 33, 70 };
#define SIZES ((int)(sizeof(sizes) / sizeof(sizes[0])))

/* Sum of partial sums; those of other matrices are not in it. */
static double add_up(const double *partial, uint32_t matrix, uint32_t blocks)
{
    double sum = 0;

    for (uint32_t b = 0; b < blocks; b++)
        sum += partial[matrix * blocks + b];
    return sum;
}

START_TEST(sums_are_those_of_plain_loops)
{
    const uint32_t size = sizes[_i], elements = size * size;
    const float *a, *b;
    double *partial;

    used = 0;
    a = take_random((size_t)elements * MATRICES, 1);
    b = take_random((size_t)elements * MATRICES, 2);
    partial = take_marked(64);
    for (uint32_t blocks = 1; blocks <= 3; blocks += 2) {
        void *one[] = { &a, &partial, (void *)(uintptr_t)&elements };
        void *two[] = { &a, &b, &partial, (void *)(uintptr_t)&elements };
        void *square[] = { &a, &partial, (void *)(uintptr_t)&size };
        double want[4][MATRICES] = { { 0 } };

        for (uint32_t m = 0; m < MATRICES; m++)
            for (uint32_t i = 0; i < size; i++)
                for (uint32_t j = 0; j < size; j++) {
                    const size_t at = (size_t)m * elements + i * size + j;
                    const double x = (double)a[at];
                    const double d = x - (double)a[(size_t)m * elements + j * size + i];

                    want[0][m] += x * x;
                    want[1][m] += x * (double)b[at];
                    want[2][m] += j < i ? x * x : 0.0;
                    want[3][m] += d * d;
                }
        for (int kind = 0; kind < 4; kind++) {
            static const char *const names[] = { "fire_k_measure", "fire_k_inner", "fire_k_below",
                                                 "fire_k_skew" };

            for (uint32_t k = 0; k < 64; k++)
                partial[k] = MARK;
            launch(names[kind], blocks, MATRICES, FIRE_K_THREADS,
                   kind == 0   ? one
                   : kind == 1 ? two
                               : square);
            for (uint32_t m = 0; m < MATRICES; m++)
                near(add_up(partial, m, blocks), want[kind][m], names[kind]);
            ck_assert(partial[MATRICES * blocks] == MARK);
        }
    }
}
END_TEST

START_TEST(totals_go_to_their_field_and_nowhere_else)
{
    const uint32_t count = 5, field = FIRE_K_SKEW, matrices = MATRICES;
    double *partial, *state;

    used = 0;
    partial = take((size_t)count * (MATRICES + 1) * sizeof(double));
    state = take_marked((size_t)(MATRICES + 1) * FIRE_K_FIELDS);
    for (uint32_t k = 0; k < count * (MATRICES + 1); k++)
        partial[k] = 1 << k;
    launch("fire_k_total", 1, 1, FIRE_K_THREADS,
           (void *[]){ &partial, &state, (void *)(uintptr_t)&count, (void *)(uintptr_t)&field,
                       (void *)(uintptr_t)&matrices });
    for (uint32_t k = 0; k < (MATRICES + 1) * FIRE_K_FIELDS; k++) {
        const uint32_t m = k / FIRE_K_FIELDS;
        const bool is_total = m < MATRICES && k % FIRE_K_FIELDS == field;

        ck_assert(state[k] == (is_total ? (double)(31u << (5 * m)) : MARK));
    }
}
END_TEST

/* alpha S + beta g + gamma I from the lower triangle, on both sides; one matrix rests. */
START_TEST(a_combination_is_symmetric_and_stays_inside)
{
    const uint32_t size = sizes[_i], elements = size * size, tiles = (size + 31) / 32;
    const double alpha = 0.5, beta = -2, gamma = 3;
    int gained = 2, last = 1;
    const float *s, *g;
    float *out;
    double *state;

    used = 0;
    s = take_random((size_t)elements * MATRICES, 3);
    g = take_random((size_t)elements * MATRICES, 4);
    out = take_random((size_t)elements * (MATRICES + 1), 5);
    state = take_marked((size_t)MATRICES * FIRE_K_FIELDS);
    for (uint32_t m = 0; m < MATRICES; m++) {
        state[m * FIRE_K_FIELDS + FIRE_K_GAIN] = 0.25;
        state[m * FIRE_K_FIELDS + FIRE_K_ROOT] = 0.5;
        state[m * FIRE_K_FIELDS + FIRE_K_ACTIVE] = m == 1 ? 0 : 1;
    }
    out[(size_t)elements * MATRICES] = 99.0f;
    launch("fire_k_combine", tiles * (tiles + 1) / 2, MATRICES, FIRE_K_THREADS,
           (void *[]){ &s, &g, &out, &state, (void *)(uintptr_t)&size, (void *)(uintptr_t)&alpha,
                       (void *)(uintptr_t)&beta, (void *)(uintptr_t)&gamma, &gained, &last });
    for (uint32_t m = 0; m < MATRICES; m++)
        for (uint32_t i = 0; i < size; i++)
            for (uint32_t j = 0; j < size; j++) {
                const size_t low =
                    (size_t)m * elements + (i > j ? i : j) * (size_t)size + (i > j ? j : i);
                const double unit = i == j;
                const double want = m == 1 ? unit
                                           : 0.5 * (alpha * 0.0625 * (double)s[low] +
                                                    beta * 0.25 * (double)g[low] + gamma * unit);
                const double have = (double)out[(size_t)m * elements + i * size + j];

                ck_assert_msg(fabs(have - want) <= 1e-6, "matrix %u (%u,%u): %g, not %g", m, i, j,
                              have, want);
            }
    ck_assert(out[(size_t)elements * MATRICES] == 99.0f);
}
END_TEST

START_TEST(a_split_loses_nothing)
{
    size_t elements = 777;
    const float *x;
    float *high, *low;

    used = 0;
    x = take_random(elements, 6);
    high = take((elements + 1) * sizeof(float));
    low = take((elements + 1) * sizeof(float));
    launch("fire_k_split", 2, 1, FIRE_K_THREADS, (void *[]){ &x, &high, &low, &elements });
    for (size_t i = 0; i < elements; i++) {
        uint32_t bits;

        memcpy(&bits, &high[i], sizeof(bits));
        ck_assert((bits & 0x1fffu) == 0);
        ck_assert(high[i] + low[i] == x[i] && fabsf(low[i]) <= fabsf(x[i]) * 0x1p-11f);
    }
    ck_assert(isnan(high[elements]) && isnan(low[elements]));
}
END_TEST

START_TEST(gathering_moves_matrices_and_their_state)
{
    const uint32_t elements = 300, none = UINT32_MAX;
    static const uint32_t order[] = { 2, 0, UINT32_MAX };
    const float *from;
    float *to;
    double *state, *moved;
    uint32_t *index;

    used = 0;
    from = take_random((size_t)elements * MATRICES, 7);
    to = take((size_t)elements * MATRICES * sizeof(float));
    index = take(sizeof(order));
    memcpy(index, order, sizeof(order));
    state = take((size_t)MATRICES * FIRE_K_FIELDS * sizeof(double));
    moved = take((size_t)MATRICES * FIRE_K_FIELDS * sizeof(double));
    for (uint32_t k = 0; k < MATRICES * FIRE_K_FIELDS; k++)
        state[k] = k;
    launch(
        "fire_k_gather", 2, MATRICES, FIRE_K_THREADS,
        (void *[]){ &from, &to, &index, (void *)(uintptr_t)&elements, (void *)(uintptr_t)&none });
    launch("fire_k_gather_state", MATRICES, 1, 64,
           (void *[]){ &state, &moved, &index, (void *)(uintptr_t)&none });
    for (uint32_t m = 0; m < MATRICES; m++) {
        for (uint32_t i = 0; i < elements; i++)
            ck_assert(to[m * elements + i] ==
                      (order[m] == none ? 0.0f : from[order[m] * elements + i]));
        for (uint32_t f = 0; f < FIRE_K_FIELDS; f++)
            ck_assert(moved[m * FIRE_K_FIELDS + f] ==
                      (f == FIRE_K_ACTIVE ? 1.0
                       : order[m] == none ? 0.0
                                          : (double)(order[m] * FIRE_K_FIELDS + f)));
    }
}
END_TEST

/* Weights leave rounded to nearest even, small ones too, and the change is summed up. */
START_TEST(weights_are_rounded_once)
{
    static const enum fire_dtype types[] = { FIRE_F32, FIRE_BF16, FIRE_F16 };
    static const int outputs[] = { FIRE_K_OUTPUT_F32, FIRE_K_OUTPUT_BF16, FIRE_K_OUTPUT_F16 };
    const uint32_t elements = 600;
    const double blend = 1;
    int output = outputs[_i];
    const float *w;
    float *x, *out;
    double *state, *partial, sum = 0;

    used = 0;
    x = take_random(elements, 8);
    w = take_random(elements, 9);
    out = take(elements * sizeof(float));
    state = take_marked(FIRE_K_FIELDS);
    partial = take_marked(4);
    for (uint32_t i = 0; i < elements; i++) /* some are f16's subnormals */
        x[i] *= ldexpf(1.0f, -(int)(i % 24));
    state[FIRE_K_SCALE] = 0.75;
    state[FIRE_K_ROOT] = 0.5;
    launch("fire_k_output", 1, 1, FIRE_K_THREADS,
           (void *[]){ &x, &w, &out, &state, &partial, (void *)(uintptr_t)&elements,
                       (void *)(uintptr_t)&blend, &output });
    for (uint32_t i = 0; i < elements; i++) {
        const float exact = (float)(0.375 * (double)x[i]);
        const double want = fire_dtype_round(types[_i], (double)exact);
        const double moved = want - (double)w[i];

        ck_assert_msg((double)out[i] == want, "%g became %g, not %g", (double)exact, (double)out[i],
                      want);
        sum += moved * moved;
    }
    near(partial[0], sum, "change");
}
END_TEST

/* The row begins clean, whatever an earlier tenant left in it. */
START_TEST(a_fresh_row_is_all_set)
{
    const uint32_t count = 2, matrices = MATRICES;
    const double eps = 0.5;
    double *partial, *state;

    used = 0;
    partial = take((size_t)count * MATRICES * sizeof(double));
    state = take_marked((size_t)(MATRICES + 1) * FIRE_K_FIELDS);
    for (uint32_t m = 0; m < MATRICES; m++)
        partial[2 * m] = partial[2 * m + 1] = m == 2 ? 0 : 8;
    launch("fire_k_begin", 1, 1, FIRE_K_THREADS,
           (void *[]){ &partial, &state, (void *)(uintptr_t)&count, (void *)(uintptr_t)&eps,
                       (void *)(uintptr_t)&matrices });
    for (uint32_t m = 0; m < MATRICES; m++)
        for (uint32_t f = 0; f < FIRE_K_FIELDS; f++) {
            const double have = state[m * FIRE_K_FIELDS + f];
            const double want = f == FIRE_K_ROOT || f == FIRE_K_GAIN ? 1
                                : m == 2                             ? 0
                                : f == FIRE_K_NORM                   ? 4
                                : f == FIRE_K_FACTOR                 ? 1 / 4.5
                                : f == FIRE_K_ACTIVE                 ? 1
                                                                     : 0;

            near(have, want, "field");
        }
    ck_assert(state[MATRICES * FIRE_K_FIELDS] == MARK);
}
END_TEST

/* Blocks on one side of the diagonal, each with its operands, and no more of them. */
START_TEST(the_table_lists_each_block_once)
{
    const uint32_t size = 16, matrices = MATRICES, blocks = 10, side = 4;
    const size_t stride = 1000, a_step = side, b_step = 7;
    const float *a, *b;
    float *c;
    uint64_t *table[3];

    used = 0;
    a = take(64);
    b = take(64);
    c = take(64);
    for (int k = 0; k < 3; k++)
        table[k] = take((MATRICES * blocks + 1) * sizeof(uint64_t));
    launch("fire_k_table", 1, 1, FIRE_K_THREADS,
           (void *[]){ &a, &b, &c, &table[0], &table[1], &table[2], (void *)(uintptr_t)&stride,
                       (void *)(uintptr_t)&stride, (void *)(uintptr_t)&a_step,
                       (void *)(uintptr_t)&b_step, (void *)(uintptr_t)&size,
                       (void *)(uintptr_t)&matrices });
    for (uint32_t k = 0; k < MATRICES * blocks; k++) {
        uint32_t i = k % blocks, j = 0;
        const size_t m = k / blocks;

        for (; i > j; j++)
            i -= j + 1;
        ck_assert(table[0][k] == (uint64_t)(uintptr_t)a + 4 * (m * stride + i * a_step));
        ck_assert(table[1][k] == (uint64_t)(uintptr_t)b + 4 * (m * stride + j * b_step));
        ck_assert(table[2][k] == (uint64_t)(uintptr_t)c +
                                     4 * (m * size * size + i * side + (size_t)j * side * size));
    }
    for (int k = 0; k < 3; k++)
        ck_assert(table[k][MATRICES * blocks] == UINT64_MAX);
}
END_TEST

int main(void)
{
    const char *path = getenv("FIRE_EMULATOR_KERNELS");
    void *library = path ? dlopen(path, RTLD_NOW) : NULL;
    void *symbol = library ? dlsym(library, "kernel_run") : NULL;
    Suite *suite = suite_create("gpu units");
    TCase *tests = tcase_create("units");
    SRunner *runner;
    int failed;

    if (!symbol) {
        printf("FIRE_EMULATOR_KERNELS names no runner of kernels\n");
        return 1;
    }
    memcpy(&run, &symbol, sizeof(symbol));
    tcase_set_timeout(tests, 600);
    tcase_add_loop_test(tests, sums_are_those_of_plain_loops, 0, SIZES);
    tcase_add_test(tests, totals_go_to_their_field_and_nowhere_else);
    tcase_add_loop_test(tests, a_combination_is_symmetric_and_stays_inside, 0, SIZES);
    tcase_add_test(tests, a_split_loses_nothing);
    tcase_add_test(tests, gathering_moves_matrices_and_their_state);
    tcase_add_loop_test(tests, weights_are_rounded_once, 0, 3);
    tcase_add_test(tests, a_fresh_row_is_all_set);
    tcase_add_test(tests, the_table_lists_each_block_once);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
