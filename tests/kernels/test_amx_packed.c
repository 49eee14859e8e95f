/* Matrices that stay tiles, on emulated tile instructions; with AVX-512 packing and on the real
 * unit where those are to be had: all three give the same bits. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amx.h"
#include "amx_packed.h"
#include "tiles.h"

extern const struct packed_ops amx_emulated_plain_packed;
extern const struct packed_ops amx_emulated_avx512_packed;

#define BF16_ERROR 6e-3 /* relative, of one or two products whose factors were rounded to bf16 */

/* x of rows x n, D of n x n of which only the upper triangle may be read, and everything that is
 * made of them. What lies outside of the matrices is NaN, to show that it is not used. */
struct problem {
    uint32_t rows, n;
    size_t ld;
    float *x, *d, *upper, *y;
    struct packed x_tiles, square, symmetric;
    void *scratch;
};

static struct packed tiles_make(uint32_t rows, uint32_t cols)
{
    const size_t bytes = packed_bytes(rows, cols);
    const struct packed packed = { allocate(bytes), rows, cols };

    memset(packed.tiles, 0xff, bytes); /* NaN: what is not written is not to be used */
    return packed;
}

static float *array_make(uint32_t rows, uint32_t cols, size_t ld, uint64_t *state)
{
    float *array = allocate(rows * ld * sizeof(float));

    for (uint32_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < ld; j++)
            array[i * ld + j] = j < cols && state ? draw(state) : NAN;
    }
    return array;
}

static void problem_init(struct problem *problem, uint32_t rows, uint32_t n)
{
    uint64_t state = (uint64_t)rows * 1009 + n;

    problem->rows = rows;
    problem->n = n;
    problem->ld = (n + 15) / 16 * 16 + 16;
    problem->x = array_make(rows, n, problem->ld, &state);
    problem->d = array_make(n, n, problem->ld, &state);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < i; j++)
            problem->d[i * problem->ld + j] = NAN;
    }
    problem->upper = array_make(n, n, problem->ld, NULL);
    problem->y = array_make(rows, n, problem->ld, NULL);
    problem->x_tiles = tiles_make(rows, n);
    problem->square = tiles_make(n, n);
    problem->symmetric = tiles_make(n, n);
    problem->scratch = allocate(AMX_SCRATCH_BYTES);
}

static void problem_release(struct problem *problem)
{
    free(problem->x);
    free(problem->d);
    free(problem->upper);
    free(problem->y);
    free(problem->x_tiles.tiles);
    free(problem->square.tiles);
    free(problem->symmetric.tiles);
    free(problem->scratch);
}

/* Tasks from the last to the first, or the other way round: their order is free. */
static bool forwards;

static uint32_t turned(uint32_t task, uint32_t count)
{
    return forwards ? count - 1 - task : task;
}

static void pack(const struct packed_ops *ops, struct packed_pack job)
{
    const uint32_t count = packed_pack_tasks(&job);

    for (uint32_t task = count; task-- > 0;)
        ops->pack(&job, turned(task, count));
}

static void square(const struct packed_ops *ops, struct packed_square job, void *scratch)
{
    const uint32_t count = packed_square_tasks(&job);

    for (uint32_t task = count; task-- > 0;)
        ops->square(&job, turned(task, count), scratch);
}

static void multiply(const struct packed_ops *ops, struct packed_multiply job, void *scratch)
{
    const uint32_t count = packed_multiply_tasks(&job);

    for (uint32_t task = count; task-- > 0;)
        ops->multiply(&job, turned(task, count), scratch);
}

/* upper and square = 0.5 X^T X + 0.75 D + 2 I. */
static void run_square(struct problem *problem, const struct packed_ops *ops)
{
    pack(ops, (struct packed_pack){ problem->x, problem->ld, problem->x_tiles, false });
    square(ops,
           (struct packed_square){ .a = problem->x_tiles,
                                   .alpha = 0.5,
                                   .beta = 0.75,
                                   .shift = 2,
                                   .d = problem->d,
                                   .upper = problem->upper,
                                   .ld = problem->ld,
                                   .to = problem->square.tiles },
           problem->scratch);
}

static double d_at(const struct problem *problem, uint32_t i, uint32_t j)
{
    return i <= j ? problem->d[i * problem->ld + j] : problem->d[j * problem->ld + i];
}

static double square_at(const struct problem *problem, uint32_t i, uint32_t j)
{
    double sum = 0;

    for (uint32_t k = 0; k < problem->rows; k++)
        sum += (double)problem->x[k * problem->ld + i] * problem->x[k * problem->ld + j];
    return 0.5 * sum + 0.75 * d_at(problem, i, j) + (i == j ? 2 : 0);
}

static const struct {
    uint32_t rows, n;
} shapes[] = {
    { 1, 1 },      { 32, 32 }, { 31, 17 },   { 33, 33 },
    { 64, 48 },    { 97, 80 }, { 1060, 40 }, /* two depths */
    { 40, 560 },                             /* two chunks of columns, panels in groups */
    { 260, 1100 }, /* rows of x so long that fewer panels of them fit a task */
};

START_TEST(squares_agree_with_float64)
{
    struct problem problem;
    double error = 0, size = 0;

    problem_init(&problem, shapes[_i].rows, shapes[_i].n);
    run_square(&problem, &amx_emulated_plain_packed);
    for (uint32_t i = 0; i < problem.n; i++) {
        for (uint32_t j = i; j < problem.n; j++) {
            const double want = square_at(&problem, i, j);
            const double got = problem.upper[i * problem.ld + j];

            error += (got - want) * (got - want);
            size += want * want;
        }
        for (size_t j = problem.n; j < problem.ld; j++)
            ck_assert(isnan(problem.upper[i * problem.ld + j]));
    }
    ck_assert_msg(sqrt(error / size) < BF16_ERROR, "relative error %g", sqrt(error / size));
    problem_release(&problem);
}
END_TEST

/* What was packed on the way is what packing the f32 result gives. */
START_TEST(results_are_packed_as_they_are_stored)
{
    struct problem problem;

    problem_init(&problem, shapes[_i].rows, shapes[_i].n);
    run_square(&problem, &amx_emulated_plain_packed);
    pack(&amx_emulated_plain_packed,
         (struct packed_pack){ problem.upper, problem.ld, problem.symmetric, true });
    ck_assert_mem_eq(problem.square.tiles, problem.symmetric.tiles,
                     packed_bytes(problem.n, problem.n));
    problem_release(&problem);
}
END_TEST

/* y = x D by each way there is. */
enum way { WAY_F32, WAY_PACKED, WAY_ADDED, WAY_IN_PLACE, WAY_COUNT };

static void run_multiply(struct problem *problem, const struct packed_ops *ops, enum way way)
{
    struct packed_multiply job = { .x = problem->x_tiles,
                                   .from = problem->x,
                                   .to = problem->y,
                                   .ld = problem->ld,
                                   .m = problem->symmetric };

    pack(ops, (struct packed_pack){ problem->d, problem->ld, problem->symmetric, true });
    pack(ops, (struct packed_pack){ problem->x, problem->ld, problem->x_tiles, false });
    if (way == WAY_F32 || way == WAY_ADDED)
        job.x.tiles = NULL;
    if (way == WAY_ADDED) { /* in place, in f32 */
        memcpy(problem->y, problem->x, problem->rows * problem->ld * sizeof(float));
        job.from = problem->y;
        job.beta = 1;
    }
    if (way == WAY_IN_PLACE)
        job.to = NULL;
    multiply(ops, job, problem->scratch);
}

static double product_at(const struct problem *problem, uint32_t i, uint32_t j, enum way way)
{
    double sum = 0;

    for (uint32_t k = 0; k < problem->n; k++)
        sum += (double)problem->x[i * problem->ld + k] * d_at(problem, k, j);
    return sum + (way == WAY_ADDED ? problem->x[i * problem->ld + j] : 0);
}

START_TEST(products_agree_with_float64)
{
    const enum way way = (enum way)(_i % WAY_IN_PLACE); /* which is compared bit by bit below */
    const int shape = _i / WAY_IN_PLACE;
    struct problem problem;
    double error = 0, size = 0;

    problem_init(&problem, shapes[shape].rows, shapes[shape].n);
    run_multiply(&problem, &amx_emulated_plain_packed, way);
    for (uint32_t i = 0; i < problem.rows; i++) {
        for (uint32_t j = 0; j < problem.n; j++) {
            const double want = product_at(&problem, i, j, way);
            const double got = problem.y[i * problem.ld + j];

            error += (got - want) * (got - want);
            size += want * want;
        }
    }
    ck_assert_msg(sqrt(error / size) < BF16_ERROR, "way %d: relative error %g", way,
                  sqrt(error / size));
    problem_release(&problem);
}
END_TEST

/* x in tiles is the same x, and its product stays the same when it goes to tiles. */
START_TEST(all_ways_give_the_same_bits)
{
    const struct packed_ops *ops = &amx_emulated_plain_packed;
    struct problem f32, tiles;
    size_t bytes;

    problem_init(&f32, shapes[_i].rows, shapes[_i].n);
    problem_init(&tiles, shapes[_i].rows, shapes[_i].n);
    bytes = f32.rows * f32.ld * sizeof(float);
    run_multiply(&f32, ops, WAY_F32);
    run_multiply(&tiles, ops, WAY_PACKED);
    ck_assert_mem_eq(f32.y, tiles.y, bytes);

    run_multiply(&f32, ops, WAY_F32);
    run_multiply(&tiles, ops, WAY_IN_PLACE);
    pack(ops, (struct packed_pack){ f32.y, f32.ld, f32.x_tiles, false });
    ck_assert_mem_eq(f32.x_tiles.tiles, tiles.x_tiles.tiles, packed_bytes(f32.rows, f32.n));
    problem_release(&f32);
    problem_release(&tiles);
}
END_TEST

static void assert_same_bits(const struct packed_ops *ops, int shape, float scale)
{
    struct problem want, got;

    problem_init(&want, shapes[shape].rows, shapes[shape].n);
    problem_init(&got, shapes[shape].rows, shapes[shape].n);
    for (size_t i = 0; i < want.rows * want.ld; i++)
        want.x[i] = got.x[i] *= scale;
    const size_t bytes = want.rows * want.ld * sizeof(float);

    run_square(&want, &amx_emulated_plain_packed);
    run_square(&got, ops);
    ck_assert_mem_eq(want.x_tiles.tiles, got.x_tiles.tiles, packed_bytes(want.rows, want.n));
    ck_assert_mem_eq(want.upper, got.upper, want.n * want.ld * sizeof(float));
    ck_assert_mem_eq(want.square.tiles, got.square.tiles, packed_bytes(want.n, want.n));
    for (enum way way = 0; way < WAY_COUNT; way++) {
        run_multiply(&want, &amx_emulated_plain_packed, way);
        run_multiply(&got, ops, way);
        ck_assert_msg(memcmp(want.y, got.y, bytes) == 0, "way %d, scale %g", way, (double)scale);
        ck_assert_mem_eq(want.x_tiles.tiles, got.x_tiles.tiles, packed_bytes(want.rows, want.n));
    }
    problem_release(&want);
    problem_release(&got);
}

START_TEST(tasks_come_in_any_order)
{
    struct problem back, forth;

    problem_init(&back, shapes[_i].rows, shapes[_i].n);
    problem_init(&forth, shapes[_i].rows, shapes[_i].n);
    for (enum way way = 0; way < WAY_COUNT; way++) {
        forwards = false;
        run_square(&back, &amx_emulated_plain_packed);
        run_multiply(&back, &amx_emulated_plain_packed, way);
        forwards = true;
        run_square(&forth, &amx_emulated_plain_packed);
        run_multiply(&forth, &amx_emulated_plain_packed, way);
        ck_assert_mem_eq(back.square.tiles, forth.square.tiles, packed_bytes(back.n, back.n));
        ck_assert_mem_eq(back.x_tiles.tiles, forth.x_tiles.tiles, packed_bytes(back.rows, back.n));
        ck_assert_mem_eq(back.y, forth.y, back.rows * back.ld * sizeof(float));
    }
    problem_release(&back);
    problem_release(&forth);
}
END_TEST

START_TEST(vector_packing_gives_the_same_bits)
{
    if (!has_avx512()) {
        fprintf(stderr, "skipped: packing by AVX-512, which this CPU does not have\n");
        return;
    }
    assert_same_bits(&amx_emulated_avx512_packed, _i, 1.0f);
    assert_same_bits(&amx_emulated_avx512_packed, _i, 0x1p-60f);
}
END_TEST

START_TEST(the_real_unit_gives_the_same_bits)
{
    char reason[160] = "";
    double rate;

    if (amx_probe(reason, sizeof(reason), &rate) != FIRE_OK) {
        fprintf(stderr, "skipped: real tile instructions: %s\n", reason);
        return;
    }
    assert_same_bits(&amx_packed_ops, _i, 1.0f);
    printf("amx packed: real tile instructions: bits are the emulation's\n");
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

int main(void)
{
    Suite *suite = suite_create("amx packed");
    TCase *tcase = tcase_create("operations");
    SRunner *runner = srunner_create(suite);
    int failed;

    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, squares_agree_with_float64, 0, COUNT(shapes));
    tcase_add_loop_test(tcase, results_are_packed_as_they_are_stored, 0, COUNT(shapes));
    tcase_add_loop_test(tcase, products_agree_with_float64, 0, COUNT(shapes) * WAY_IN_PLACE);
    tcase_add_loop_test(tcase, all_ways_give_the_same_bits, 0, COUNT(shapes));
    tcase_add_loop_test(tcase, tasks_come_in_any_order, 0, COUNT(shapes));
    tcase_add_loop_test(tcase, vector_packing_gives_the_same_bits, 0, COUNT(shapes));
    tcase_add_loop_test(tcase, the_real_unit_gives_the_same_bits, 0, COUNT(shapes));
    suite_add_tcase(suite, tcase);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
