/* history_chunk: what is packed comes back, roll-ups are what the points say, and bytes that are
 * none are refused without harm. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "history_chunk.h"
#include "random.h"

#define COUNT 1024u

/* Steps of a table's kind, values of every magnitude. */
static void make_points(struct fire_random *random, uint32_t stride_max, size_t count,
                        struct chunk_points *points)
{
    int64_t step = (int64_t)(fire_random_u64(random) % 1000);

    for (size_t i = 0; i < count; i++) {
        const double value = ldexp((double)(fire_random_u64(random) % 2001) - 1000.0,
                                   (int)(fire_random_u64(random) % 200) - 100);

        ck_assert_int_eq(chunk_points_add(points, step, value), FIRE_OK);
        step += 1 + (int64_t)(fire_random_u64(random) % stride_max);
    }
}

static const uint32_t strides[] = { 1, 2, 1000, 1u << 30 };

START_TEST(points_come_back)
{
    struct fire_random random;
    struct chunk_points points = { 0 }, back = { 0 };
    struct chunk_bytes bytes = { 0 };

    fire_random_init(&random, 7);
    make_points(&random, strides[_i], COUNT, &points);
    ck_assert_int_eq(chunk_pack(points.steps, points.values, COUNT, &bytes), FIRE_OK);
    ck_assert_int_eq(chunk_unpack(bytes.data, bytes.used, &back), FIRE_OK);
    ck_assert_uint_eq(back.count, COUNT);
    ck_assert_mem_eq(back.steps, points.steps, COUNT * sizeof(int64_t));
    ck_assert_mem_eq(back.values, points.values, COUNT * sizeof(double));
    if (strides[_i] == 1)
        ck_assert_uint_le(bytes.used, 8 * COUNT + 8); /* even steps take no room */
    /* What does not lie behind the last point is no continuation. */
    ck_assert_int_eq(chunk_unpack(bytes.data, bytes.used, &back), FIRE_IO);
    chunk_points_release(&points);
    chunk_points_release(&back);
    chunk_bytes_release(&bytes);
}
END_TEST

/* Each cell against a plain loop over the points. */
START_TEST(cells_are_what_the_points_say)
{
    struct fire_random random;
    struct chunk_points points = { 0 };
    struct chunk_bytes bytes = { 0 };
    struct chunk_cells cells = { 0 };
    size_t at = 0;

    fire_random_init(&random, 8);
    make_points(&random, strides[_i], COUNT, &points);
    ck_assert_int_eq(chunk_pack_cells(points.steps, points.values, COUNT, CHUNK_FINE_PART, &bytes),
                     FIRE_OK);
    cells.level = chunk_cells_level(bytes.data, bytes.used);
    ck_assert_int_eq(chunk_unpack_cells(bytes.data, bytes.used, &cells), FIRE_OK);
    ck_assert_uint_eq(cells.count, chunk_cells_count(bytes.data, bytes.used));
    ck_assert_uint_le(cells.count, COUNT / CHUNK_FINE_PART);
    for (size_t i = 0; i < cells.count; i++) {
        const struct chunk_cell *cell = &cells.cells[i];
        double minimum = INFINITY, maximum = -INFINITY, sum = 0, size = 0;
        const size_t first = at;

        while (at < COUNT && points.steps[at] >> cells.level == cell->step >> cells.level) {
            minimum = fmin(minimum, points.values[at]);
            maximum = fmax(maximum, points.values[at]);
            sum += points.values[at];
            size += fabs(points.values[at]);
            at++;
        }
        ck_assert_int_eq(cell->step, points.steps[first]);
        ck_assert_uint_eq(cell->count, at - first);
        ck_assert(cell->minimum == minimum);
        ck_assert(cell->maximum == maximum);
        ck_assert(fabs(cell->mean - sum / (double)(at - first)) <= 1e-12 * size);
    }
    ck_assert_uint_eq(at, COUNT);
    chunk_points_release(&points);
    chunk_bytes_release(&bytes);
    chunk_cells_release(&cells);
}
END_TEST

/* Two parts of a chunk, each rolled up, are the roll-up of the whole. */
START_TEST(cells_of_two_chunks_merge)
{
    struct chunk_cells cells = { .level = 4 };
    const struct chunk_cell parts[] = { { 16, 4, 1, 9, 4 },
                                        { 20, 12, -1, 5, 2 },
                                        { 32, 1, 7, 7, 7 } };

    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(chunk_cells_add(&cells, &parts[i]), FIRE_OK);
    ck_assert_uint_eq(cells.count, 2);
    ck_assert_int_eq(cells.cells[0].step, 16);
    ck_assert_uint_eq(cells.cells[0].count, 16);
    ck_assert(cells.cells[0].minimum == -1 && cells.cells[0].maximum == 9);
    ck_assert(fabs(cells.cells[0].mean - 2.5) < 1e-15);
    chunk_cells_release(&cells);
}
END_TEST

/* The mean of the largest numbers is a number. */
START_TEST(means_do_not_overflow)
{
    struct chunk_cells cells = { .level = 10 };

    for (int i = 0; i < 100; i++) {
        const struct chunk_cell cell = { i, 1, 1.7e308, 1.7e308, 1.7e308 };

        ck_assert_int_eq(chunk_cells_add(&cells, &cell), FIRE_OK);
    }
    ck_assert(isfinite(cells.cells[0].mean));
    ck_assert(fabs(cells.cells[0].mean / 1.7e308 - 1) < 1e-12);
    chunk_cells_release(&cells);
}
END_TEST

static const struct {
    int64_t first, last;
    uint64_t cells;
    uint32_t level;
} levels[] = {
    { 0, 0, 1, 0 },       { 0, 999, 1000, 0 }, { 0, 1000, 1000, 1 },
    { 0, 9999, 1000, 4 }, { 15, 16, 1, 5 },    { 0, INT64_MAX, 1, 62 },
};

START_TEST(the_level_fits)
{
    ck_assert_uint_eq(chunk_level(levels[_i].first, levels[_i].last, levels[_i].cells),
                      levels[_i].level);
}
END_TEST

START_TEST(logs_come_back)
{
    struct chunk_points points[3] = { 0 };
    struct chunk_bytes log = { 0 };
    struct fire_random random;

    fire_random_init(&random, 9);
    for (uint64_t i = 0; i < 3; i++) {
        make_points(&random, strides[i], 10 * (i + 1), &points[i]);
        ck_assert_int_eq(
            chunk_log_add(&log, 1000000 * i, points[i].steps, points[i].values, points[i].count),
            FIRE_OK);
    }
    struct chunk_log reading = { .at = log.data, .end = log.data + log.used };

    for (uint64_t i = 0; i < 3; i++) {
        struct chunk_points back = { 0 };

        ck_assert_int_eq(chunk_log_next(&reading), FIRE_OK);
        ck_assert_uint_eq(reading.series, 1000000 * i);
        ck_assert_int_eq(chunk_log_points(&reading, &back), FIRE_OK);
        ck_assert_uint_eq(back.count, points[i].count);
        ck_assert_mem_eq(back.values, points[i].values, back.count * sizeof(double));
        chunk_points_release(&back);
        chunk_points_release(&points[i]);
    }
    ck_assert_int_eq(chunk_log_next(&reading), FIRE_NOT_FOUND);
    chunk_bytes_release(&log);
}
END_TEST

/* Every beginning of a chunk, a roll-up and a log, and each with bytes changed: an error or a
 * result, never harm (the sanitizers look). The copy has no byte behind it that could be read. */
START_TEST(damaged_bytes_do_no_harm)
{
    struct chunk_points points = { 0 };
    struct chunk_bytes kinds[3] = { 0 };
    struct fire_random random;

    fire_random_init(&random, 10);
    make_points(&random, 3, 64, &points);
    ck_assert_int_eq(chunk_pack(points.steps, points.values, 64, &kinds[0]), FIRE_OK);
    ck_assert_int_eq(chunk_pack_cells(points.steps, points.values, 64, 16, &kinds[1]), FIRE_OK);
    ck_assert_int_eq(chunk_log_add(&kinds[2], 5, points.steps, points.values, 64), FIRE_OK);
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < 4000; i++) {
            const size_t bytes = i < kinds[k].used ? i : kinds[k].used;
            uint8_t *copy = malloc(bytes + !bytes);
            struct chunk_points back = { 0 };
            struct chunk_cells cells = { .level = 20 };
            struct chunk_log log = { .at = copy, .end = copy + bytes };

            memcpy(copy, kinds[k].data, bytes);
            if (i >= kinds[k].used)
                for (size_t n = 0; n < 3; n++)
                    copy[fire_random_u64(&random) % bytes] ^= (uint8_t)fire_random_u64(&random);
            const enum fire_status status = chunk_unpack(copy, bytes, &back);
            if (k == 0 && i < kinds[k].used)
                ck_assert_int_eq(status, FIRE_IO);
            (void)!chunk_unpack_cells(copy, bytes, &cells);
            while (chunk_log_next(&log) == FIRE_OK)
                (void)!chunk_log_points(&log, &back);
            chunk_points_release(&back);
            chunk_cells_release(&cells);
            free(copy);
        }
        chunk_bytes_release(&kinds[k]);
    }
    chunk_points_release(&points);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("history_chunk");
    TCase *tests = tcase_create("history_chunk");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, points_come_back, 0, 4);
    tcase_add_loop_test(tests, cells_are_what_the_points_say, 0, 4);
    tcase_add_test(tests, cells_of_two_chunks_merge);
    tcase_add_test(tests, means_do_not_overflow);
    tcase_add_loop_test(tests, the_level_fits, 0, 6);
    tcase_add_test(tests, logs_come_back);
    tcase_add_test(tests, damaged_bytes_do_no_harm);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
