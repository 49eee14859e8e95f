/* The products and the inverse everything is made of, on every path, against sums in f64. Sides are
 * those where the code changes its way: blocks of rows, panels of one register, packed operands,
 * several tiles, blocks of depth. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dense.h"
#include "isa.h"
#include "matrices.h"
#include "projection.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *const paths[] = { "portable", "avx2", "avx512" };

/* Rows and columns of X. */
static const uint32_t shapes[][2] = {
    { 1, 1 },    { 5, 3 },    { 16, 16 },   { 33, 17 },   { 40, 31 },   { 64, 64 },   { 70, 65 },
    { 129, 95 }, { 97, 160 }, { 200, 161 }, { 300, 257 }, { 450, 321 }, { 130, 523 }, { 420, 530 },
};

struct bench {
    struct crew crew;
    void *scratch;
};

static bool open_crew(struct bench *bench, const char *path, uint32_t cols)
{
    struct isa_choice engines;
    char reason[200];

    if (!path_exists(path)) {
        fprintf(stderr, "skipped: path %s, which this CPU does not have\n", path);
        return false;
    }
    ck_assert_int_eq(isa_choose(path, &engines, reason, sizeof(reason)), FIRE_OK);
    bench->scratch = aligned_alloc(64, (dense_scratch_bytes(engines.exact, cols) + 63) / 64 * 64);
    ck_assert_ptr_nonnull(bench->scratch);
    bench->crew = (struct crew){ .engine = engines.exact, .scratch = &bench->scratch };
    return true;
}

/* A padded copy of a rows x cols matrix; zeros for NULL. */
static void *padded(const double *from, uint32_t rows, uint32_t cols, enum fire_dtype dtype)
{
    const size_t ld = dense_stride(cols), bytes = rows * ld * fire_dtype_bytes(dtype);
    void *array = aligned_alloc(64, (bytes + 63) / 64 * 64);

    ck_assert_ptr_nonnull(array);
    memset(array, 0, bytes);
    for (size_t i = 0; from && i < rows; i++) {
        for (size_t j = 0; j < cols; j++) {
            if (dtype == FIRE_F64)
                ((double *)array)[i * ld + j] = from[i * cols + j];
            else
                ((float *)array)[i * ld + j] = (float)from[i * cols + j];
        }
    }
    return array;
}

static double element(const void *array, enum fire_dtype dtype, size_t index)
{
    return dtype == FIRE_F64 ? ((const double *)array)[index]
                             : (double)((const float *)array)[index];
}

/* The largest difference between the upper triangles of a padded g and of `want`. */
static double upper_error(const void *g, enum fire_dtype dtype, const double *want, uint32_t n)
{
    double worst = 0;

    for (size_t i = 0; i < n; i++) {
        for (size_t j = i; j < n; j++) {
            const double d = fabs(element(g, dtype, i * dense_stride(n) + j) - want[i * n + j]);

            worst = d <= worst ? worst : d; /* a NaN is the worst */
        }
    }
    return worst;
}

static double *gaussian(uint32_t rows, uint32_t cols)
{
    double *w = matrix_alloc(rows, cols);
    struct fire_random random;

    fire_random_init(&random, rows * 1000 + cols);
    matrix_gaussian(&random, rows, cols, w);
    matrix_round(w, (size_t)rows * cols);
    return w;
}

/* X^T X in f64. */
static double *gram_of(const double *x, uint32_t rows, uint32_t cols)
{
    double *transposed = matrix_alloc(cols, rows), *g = matrix_alloc(cols, cols);

    matrix_transpose(x, rows, cols, transposed);
    matrix_multiply(transposed, x, cols, rows, cols, g);
    free(transposed);
    return g;
}

static void assert_gram(const struct crew *crew, const double *x, const uint32_t shape[2],
                        enum fire_dtype dtype, bool narrow)
{
    const uint32_t rows = shape[0], cols = shape[1];
    const size_t ld = dense_stride(cols);
    const double unit = dtype == FIRE_F64 ? 0x1p-53 : 0x1p-24;
    void *padded_x = padded(x, rows, cols, narrow ? FIRE_F32 : dtype);
    void *g = padded(NULL, cols, cols, dtype);
    double *want = gram_of(x, rows, cols);
    double error;

    dense_gram(crew, dtype, narrow, padded_x, ld, rows, cols, g, ld);
    error = upper_error(g, dtype, want, cols);
    /* entries are at most some `rows`; their errors are those of as many additions */
    ck_assert_msg(error <= 4 * unit * rows * sqrt(rows) + 16 * unit * rows,
                  "%s: Gram of %u x %u, %s%s: error %g", crew->engine->name, rows, cols,
                  fire_dtype_name(dtype), narrow ? " from f32" : "", error);
    free(padded_x);
    free(g);
    free(want);
}

START_TEST(gram_matrices_are_right)
{
    const uint32_t *shape = shapes[(size_t)_i / COUNT(paths)];
    struct bench bench;

    if (!open_crew(&bench, paths[(size_t)_i % COUNT(paths)], shape[1]))
        return;
    double *x = gaussian(shape[0], shape[1]);

    assert_gram(&bench.crew, x, shape, FIRE_F32, false);
    assert_gram(&bench.crew, x, shape, FIRE_F64, false);
    assert_gram(&bench.crew, x, shape, FIRE_F64, true);
    free(x);
    free(bench.scratch);
}
END_TEST

/* Z = I + G / rows is well conditioned; Z Z^-1 is the identity. */
static void assert_inverse(const struct crew *crew, const double *z, uint32_t n,
                           enum fire_dtype dtype)
{
    const size_t ld = dense_stride(n);
    void *inverse = padded(z, n, n, dtype), *space;
    double *s = matrix_alloc(n, n), *product = matrix_alloc(n, n);
    double worst = 0;

    space = aligned_alloc(64, dense_inverse_space(n) * sizeof(double));
    ck_assert_ptr_nonnull(space);
    ck_assert(dense_inverse(crew, dtype, inverse, ld, n, space));
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++)
            s[i * n + j] = element(inverse, dtype, i <= j ? i * ld + j : j * ld + i);
    }
    matrix_multiply(z, s, n, n, n, product);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            const double d = fabs(product[i * n + j] - (i == j));

            worst = d <= worst ? worst : d;
        }
    }
    ck_assert_msg(worst <= (dtype == FIRE_F64 ? 1e-13 : 2e-5), "%s: inverse, side %u, %s: error %g",
                  crew->engine->name, n, fire_dtype_name(dtype), worst);
    free(inverse);
    free(space);
    free(s);
    free(product);
}

START_TEST(inverses_are_right)
{
    const uint32_t *shape = shapes[(size_t)_i / COUNT(paths)];
    const uint32_t n = shape[1];
    struct bench bench;

    if (!open_crew(&bench, paths[(size_t)_i % COUNT(paths)], n))
        return;
    double *x = gaussian(shape[0], n), *z = gram_of(x, shape[0], n);

    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++)
            z[i * n + j] = z[i * n + j] / shape[0] + (i == j);
    }
    assert_inverse(&bench.crew, z, n, FIRE_F32);
    assert_inverse(&bench.crew, z, n, FIRE_F64);
    free(x);
    free(z);
    free(bench.scratch);
}
END_TEST

/* -Z is not positive definite, whatever the side. */
/* G x from G's upper triangle alone: what lies below is poisoned. */
static void assert_vector(const struct crew *crew, const double *g, uint32_t n,
                          enum fire_dtype dtype)
{
    const double tolerance = (dtype == FIRE_F64 ? 1e-14 : 1e-5) * n;
    double *upper = matrix_alloc(n, n), *x = gaussian(1, n);
    void *have = padded(NULL, 1, n, dtype), *vector = padded(x, 1, n, dtype), *stored;

    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++)
            upper[i * n + j] = j < i ? (double)NAN : g[i * n + j];
    }
    stored = padded(upper, n, n, dtype);
    crew_ops(crew, dtype)->symmetric_vector(stored, dense_stride(n), n, vector, have);
    for (size_t i = 0; i < n; i++) {
        double want = 0;

        for (size_t j = 0; j < n; j++)
            want += g[i * n + j] * x[j];
        ck_assert_double_le(fabs(element(have, dtype, i) - want), tolerance * sqrt(g[i * n + i]));
    }
    free(stored);
    free(vector);
    free(have);
    free(x);
    free(upper);
}

START_TEST(symmetric_vectors_are_right)
{
    const uint32_t *shape = shapes[(size_t)_i % COUNT(shapes)];
    double *x = gaussian(shape[0], shape[1]), *g = gram_of(x, shape[0], shape[1]);
    struct bench bench;

    if (open_crew(&bench, paths[(size_t)_i / COUNT(shapes)], shape[1])) {
        assert_vector(&bench.crew, g, shape[1], FIRE_F64);
        assert_vector(&bench.crew, g, shape[1], FIRE_F32);
        free(bench.scratch);
    }
    free(g);
    free(x);
}
END_TEST

/* Sides at which the panels of converted and of plain rows are rounded differently. */
static const uint32_t panel_cols[] = { 520, 1024, 2048, 3584 };

#define PANEL_TEST_ROWS 200u
#define GUARD_BYTES     (256u << 10)
#define GUARD           0x5a

/* x 2I = 2x for every mixture of types, and nothing is written behind the scratch. */
static void assert_rows(struct bench *bench, uint32_t cols, enum fire_dtype x_dtype,
                        enum fire_dtype dtype)
{
    const size_t ld = dense_stride(cols), bytes = dense_scratch_bytes(bench->crew.engine, cols);
    void *m = padded(NULL, cols, cols, dtype), *x = padded(NULL, PANEL_TEST_ROWS, cols, x_dtype);
    void *y = padded(NULL, PANEL_TEST_ROWS, cols, FIRE_F32);
    const struct dense_rows rows = { .rows = PANEL_TEST_ROWS,
                                     .cols = cols,
                                     .ld = ld,
                                     .x = x,
                                     .x_dtype = x_dtype,
                                     .m = m,
                                     .dtype = dtype,
                                     .y = y,
                                     .y_dtype = FIRE_F32 };

    for (size_t i = 0; i < cols; i++) {
        if (dtype == FIRE_F64)
            ((double *)m)[i * ld + i] = 2;
        else
            ((float *)m)[i * ld + i] = 2;
    }
    for (size_t i = 0; i < PANEL_TEST_ROWS; i++) {
        if (x_dtype == FIRE_F64)
            ((double *)x)[i * (ld + 1)] = (double)(1 + i);
        else
            ((float *)x)[i * (ld + 1)] = (float)(1 + i);
    }
    memset((char *)bench->scratch + bytes, GUARD, GUARD_BYTES);
    dense_multiply_rows(&bench->crew, &rows);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        ck_assert_int_eq(((unsigned char *)bench->scratch + bytes)[i], GUARD);
    for (size_t i = 0; i < PANEL_TEST_ROWS; i++)
        ck_assert_float_eq(((float *)y)[i * (ld + 1)], 2 * (float)(1 + i));
    free(m);
    free(x);
    free(y);
}

START_TEST(panels_of_rows_stay_within_their_scratch)
{
    const uint32_t cols = panel_cols[(size_t)_i % COUNT(panel_cols)];
    struct bench bench;

    if (!open_crew(&bench, paths[(size_t)_i / COUNT(panel_cols)], cols))
        return;
    free(bench.scratch);
    bench.scratch = aligned_alloc(
        64, (dense_scratch_bytes(bench.crew.engine, cols) + GUARD_BYTES + 63) / 64 * 64);
    ck_assert_ptr_nonnull(bench.scratch);
    assert_rows(&bench, cols, FIRE_F32, FIRE_F32);
    if (cols <= 1024)
        assert_rows(&bench, cols, FIRE_F32, FIRE_F64);
    free(bench.scratch);
}
END_TEST

START_TEST(what_is_not_positive_definite_has_no_inverse)
{
    for (size_t s = 0; s < COUNT(shapes); s++) {
        const uint32_t n = shapes[s][1];
        const size_t ld = dense_stride(n);
        struct bench bench;

        if (!open_crew(&bench, paths[_i], n))
            return;
        float *z = padded(NULL, n, n, FIRE_F32);
        void *space = aligned_alloc(64, dense_inverse_space(n) * sizeof(double));

        ck_assert_ptr_nonnull(space);
        for (size_t i = 0; i < n; i++)
            z[i * ld + i] = i + 1 < n ? 1 : -1;
        ck_assert(!dense_inverse(&bench.crew, FIRE_F32, z, ld, n, space));
        free(z);
        free(space);
        free(bench.scratch);
    }
}
END_TEST

/* Wider than a tile is high, deep enough that both operands are packed. */
START_TEST(wide_gram_matrices_are_right)
{
    static const uint32_t shape[2] = { 70, 1050 };
    struct bench bench;

    if (!open_crew(&bench, paths[_i], shape[1]))
        return;
    double *x = gaussian(shape[0], shape[1]);

    assert_gram(&bench.crew, x, shape, FIRE_F32, false);
    assert_gram(&bench.crew, x, shape, FIRE_F64, true);
    free(x);
    free(bench.scratch);
}
END_TEST

/* Products whose operands have triangles, deep enough to be cut into blocks of depth. */
enum { GRID_SIDE = 592 };

static const struct {
    const char *name;
    struct product product;
} grids[] = {
    { "dense", { .beta = 1 } },
    { "lower A", { .a_shape = PRODUCT_LOWER } },
    { "upper A", { .a_shape = PRODUCT_UPPER, .beta = 1 } },
    { "upper B", { .b_shape = PRODUCT_UPPER } },
    { "lower B", { .b_shape = PRODUCT_LOWER, .beta = -1 } },
    { "upper A, lower B", { .a_shape = PRODUCT_UPPER, .b_shape = PRODUCT_LOWER, .upper = true } },
    { "transposed A", { .a_transposed = true, .upper = true } },
    { "transposed upper A", { .a_transposed = true, .a_shape = PRODUCT_LOWER } },
};

/* A random square whose elements outside the shape are zero; transposed when asked. */
static void *shaped(enum product_shape shape, bool transposed, enum fire_dtype dtype)
{
    double *x = gaussian(GRID_SIDE, GRID_SIDE);
    void *result;

    for (uint32_t i = 0; i < GRID_SIDE; i++) {
        for (uint32_t j = 0; j < GRID_SIDE; j++) {
            const uint32_t row = transposed ? j : i, col = transposed ? i : j;

            if ((shape == PRODUCT_LOWER && col > row) || (shape == PRODUCT_UPPER && col < row))
                x[(size_t)i * GRID_SIDE + j] = 0;
        }
    }
    result = padded(x, GRID_SIDE, GRID_SIDE, dtype);
    free(x);
    return result;
}

/* A new array: the product in tiles of so many rows and columns, over what `start` holds. */
static void *multiplied(const struct crew *crew, struct product product, enum fire_dtype dtype,
                        const void *start, const uint32_t tile[2])
{
    const struct engine_ops *ops = dtype == FIRE_F64 ? &crew->engine->f64 : &crew->engine->f32;
    const size_t bytes = (size_t)GRID_SIDE * product.ldc * fire_dtype_bytes(dtype);
    void *c = aligned_alloc(64, bytes);

    ck_assert_ptr_nonnull(c);
    memcpy(c, start, bytes);
    product.c = c;
    for (uint32_t i = 0; i < GRID_SIDE; i += tile[0]) {
        for (uint32_t j = 0; j < GRID_SIDE; j += tile[1]) {
            const uint32_t i1 = i + tile[0] < GRID_SIDE ? i + tile[0] : GRID_SIDE;
            const uint32_t j1 = j + tile[1] < GRID_SIDE ? j + tile[1] : GRID_SIDE;

            if (!product.upper || j1 > i)
                ops->tile(&product, i, i1, j, j1, crew->scratch[0]);
        }
    }
    return c;
}

static void assert_same_bits(const struct crew *crew, size_t index, enum fire_dtype dtype)
{
    static const uint32_t tiles[][2] = { { 592, 256 }, { 72, 512 }, { 97, 48 }, { 300, 304 } };
    struct product product = grids[index].product;
    void *a = shaped(product.a_shape, product.a_transposed, dtype);
    void *b = shaped(product.b_shape, false, dtype);
    void *start = shaped(PRODUCT_DENSE, false, dtype), *want = NULL;

    product.m = product.n = product.k = GRID_SIDE;
    product.lda = product.ldb = product.ldc = dense_stride(GRID_SIDE);
    product.a = product.a_transposed && product.a_shape == PRODUCT_DENSE ? b : a;
    product.b = b;
    product.alpha = -1.5;
    for (size_t t = 0; t < COUNT(tiles); t++) {
        void *got = multiplied(crew, product, dtype, start, tiles[t]);

        if (!want) {
            want = got;
            continue;
        }
        for (uint32_t i = 0; i < GRID_SIDE; i++) {
            const uint32_t first = product.upper ? i : 0;
            const size_t at = (i * product.ldc + first) * fire_dtype_bytes(dtype);

            ck_assert_msg(memcmp((char *)got + at, (char *)want + at,
                                 (GRID_SIDE - first) * fire_dtype_bytes(dtype)) == 0,
                          "%s, %s, %s: row %u depends on tiles of %u x %u", crew->engine->name,
                          grids[index].name, fire_dtype_name(dtype), i, tiles[t][0], tiles[t][1]);
        }
        free(got);
    }
    free(want);
    free(start);
    free(a);
    free(b);
}

START_TEST(the_grid_does_not_change_a_bit)
{
    const size_t index = (size_t)_i / COUNT(paths);
    struct bench bench;

    if (!open_crew(&bench, paths[(size_t)_i % COUNT(paths)], GRID_SIDE))
        return;
    assert_same_bits(&bench.crew, index, FIRE_F32);
    assert_same_bits(&bench.crew, index, FIRE_F64);
    free(bench.scratch);
}
END_TEST

/* Lengths around a register and a turn of the loop; what lies behind stays. */
START_TEST(rescaling_measures_what_it_does)
{
    static const uint32_t lengths[] = { 0, 1, 3, 8, 16, 17, 31, 32, 33, 100, 1029 };
    static const double factors[] = { 1, 0.37, -2.5e-20 };
    struct bench bench;

    if (!open_crew(&bench, paths[_i], 16))
        return;
    for (size_t c = 0; c < COUNT(lengths) * COUNT(factors); c++) {
        const uint32_t n = lengths[c / COUNT(factors)];
        const double factor = factors[c % COUNT(factors)];
        double *w = gaussian(1, n + 1);
        float *scaled = malloc((n + 1) * sizeof(*scaled));
        double want_change = 0, want_square = 0, square, change;

        ck_assert_ptr_nonnull(scaled);
        for (uint32_t i = 0; i <= n; i++)
            scaled[i] = (float)w[i];
        change = bench.crew.engine->rescale(scaled, factor, n, &square);
        for (uint32_t i = 0; i < n; i++) {
            const float y = (float)factor * (float)w[i];

            ck_assert_double_eq(scaled[i], y);
            want_change += ((double)y - w[i]) * ((double)y - w[i]);
            want_square += w[i] * w[i];
        }
        ck_assert_double_eq(scaled[n], w[n]);
        ck_assert(fabs(change - want_change) <= 1e-14 * want_change);
        ck_assert(fabs(square - want_square) <= 1e-14 * want_square);
        free(w);
        free(scaled);
    }
    free(bench.scratch);
}
END_TEST

/* --- a crew that is abandoned ----------------------------------------------------------------- */

#define TASKS      1000u
#define TASKS_DONE 10u
#define THREADS    3u

struct countdown {
    atomic_uint run;
    atomic_bool abandoned;
};

static void count_task(void *data, uint32_t index, uint32_t worker)
{
    struct countdown *countdown = data;

    (void)index;
    (void)worker;
    if (atomic_fetch_add(&countdown->run, 1) + 1 == TASKS_DONE)
        atomic_store(&countdown->abandoned, true);
}

/* From then on tasks are left out, but for those that others have begun; the loop ends as ever, and
 * the next one does nothing. */
START_TEST(an_abandoned_crew_leaves_its_tasks_out)
{
    struct countdown countdown = { 0 };
    struct crew crew = { .abandoned = &countdown.abandoned };
    struct pool *pool = NULL;
    uint32_t run;

    if (_i == 1) {
        ck_assert_int_eq(pool_open(THREADS, 0, &pool), FIRE_OK);
        crew.pool = pool;
    }
    crew_run(&crew, TASKS, count_task, &countdown);
    run = atomic_load(&countdown.run);
    ck_assert_uint_ge(run, TASKS_DONE);
    ck_assert_uint_le(run, _i == 1 ? TASKS_DONE + THREADS - 1 : TASKS_DONE);
    crew_run(&crew, TASKS, count_task, &countdown);
    ck_assert_uint_eq(atomic_load(&countdown.run), run);
    pool_close(pool);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dense");
    TCase *tests = tcase_create("paths");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, gram_matrices_are_right, 0, (int)(COUNT(shapes) * COUNT(paths)));
    tcase_add_loop_test(tests, wide_gram_matrices_are_right, 0, (int)COUNT(paths));
    tcase_add_loop_test(tests, the_grid_does_not_change_a_bit, 0,
                        (int)(COUNT(grids) * COUNT(paths)));
    tcase_add_loop_test(tests, rescaling_measures_what_it_does, 0, (int)COUNT(paths));
    tcase_add_loop_test(tests, inverses_are_right, 0, (int)(COUNT(shapes) * COUNT(paths)));
    tcase_add_loop_test(tests, symmetric_vectors_are_right, 0, (int)(COUNT(shapes) * COUNT(paths)));
    tcase_add_loop_test(tests, what_is_not_positive_definite_has_no_inverse, 0, (int)COUNT(paths));
    tcase_add_loop_test(tests, panels_of_rows_stay_within_their_scratch, 0,
                        (int)(COUNT(panel_cols) * COUNT(paths)));
    tcase_add_loop_test(tests, an_abandoned_crew_leaves_its_tasks_out, 0, 2);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
