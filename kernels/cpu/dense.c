#include "dense.h"

#include <string.h>

#include "status.h"

/* Below this side one thread does everything: handing out work would cost more. */
#define SERIAL_SIDE      160u
#define IN_PLACE_SIDE    512u  /* up to this one tiles are low, and B is read in place if f32 */
#define ALONE_TILE_ROWS  1024u /* that a single thread multiplies with the B it has packed */
#define PACKING_ROWS     32u   /* a tile that packs for itself has a multiple of them, … */
#define PACKING_ROWS_MAX 512u
#define PANEL_BYTES      (640u << 10) /* a panel of rows in dense_multiply_rows() */
#define PANEL_ROWS_MAX   192u

size_t dense_stride(uint32_t cols)
{
    size_t stride = (cols + PRODUCT_PAD - 1) / PRODUCT_PAD * PRODUCT_PAD;

    /* Rows a multiple of 512 bytes apart would share a few cache sets. */
    return stride % 128 == 0 ? stride + PRODUCT_PAD : stride;
}

/* Rows of a panel; the scratch has room for two of them in f64. */
static uint32_t panel_rows(uint32_t cols)
{
    const size_t fit = PANEL_BYTES / (dense_stride(cols) * sizeof(double));

    if (cols <= 512)
        return 60;
    return fit >= PANEL_ROWS_MAX ? PANEL_ROWS_MAX : fit >= 24 ? (uint32_t)(fit / 12 * 12) : 12;
}

/* The same of f32 that is not converted: one panel, half as wide, so that four times as many rows
 * have room, and more of them read m less often. Where each packs m for itself they are as high as
 * there is room, and of one height. */
static uint32_t plain_panel_rows(const struct engine *engine, uint32_t rows, uint32_t cols)
{
    const uint32_t most = 4 * panel_rows(cols);
    const uint32_t panels = (rows + most - 1) / most;

    if (engine->packs)
        return (rows + panels - 1) / panels;
    return cols <= 512 ? panel_rows(cols) : most < PANEL_ROWS_MAX ? most : PANEL_ROWS_MAX;
}

size_t dense_scratch_bytes(const struct engine *engine, uint32_t cols)
{
    return engine->scratch_bytes + 2 * panel_rows(cols) * dense_stride(cols) * sizeof(double);
}

/* A task that is left out when nobody wants it any more. */
struct wanted {
    const struct crew *crew;
    pool_task task;
    void *data;
};

static void wanted_task(void *data, uint32_t index, uint32_t worker)
{
    const struct wanted *wanted = data;

    if (!crew_is_abandoned(wanted->crew))
        wanted->task(wanted->data, index, worker);
}

void crew_run(const struct crew *crew, uint32_t count, pool_task task, void *data)
{
    if (crew->pool) {
        struct wanted wanted = { crew, task, data };

        pool_run(crew->pool, count, wanted_task, &wanted);
        return;
    }
    for (uint32_t index = 0; index < count && !crew_is_abandoned(crew); index++) {
        if (crew->yield && atomic_load_explicit(crew->yield->waiting, memory_order_relaxed))
            crew->yield->run(crew->yield->data, crew->worker);
        task(data, index, crew->worker);
    }
}

/* A product and its grid. */
struct grid {
    const struct crew *crew;
    const struct product *product;
    product_tile tile;
    uint32_t tile_rows, tile_cols;
    uint32_t columns; /* tiles in a row of them */
};

static void grid_task(void *data, uint32_t index, uint32_t worker)
{
    const struct grid *grid = data;
    const struct product *product = grid->product;
    const uint32_t i0 = index / grid->columns * grid->tile_rows;
    const uint32_t j0 = index % grid->columns * grid->tile_cols;
    const uint32_t i1 = i0 + grid->tile_rows < product->m ? i0 + grid->tile_rows : product->m;
    const uint32_t j1 = j0 + grid->tile_cols < product->n ? j0 + grid->tile_cols : product->n;

    if (product->upper && j1 <= i0)
        return;
    grid->tile(product, i0, i1, j0, j1, grid->crew->scratch[worker]);
}

/* Rows of a tile that packs its operands for itself: no more tiles than keep all threads busy. They
 * do not change a bit. */
static uint32_t packing_tile_rows(const struct crew *crew, uint32_t rows)
{
    const uint32_t threads = crew->pool ? pool_threads(crew->pool) : 1;
    const uint32_t share = threads > 1 ? rows / (2 * threads) : rows;
    const uint32_t even = (share / PACKING_ROWS + 1) * PACKING_ROWS;

    return even < PACKING_ROWS_MAX ? even : PACKING_ROWS_MAX;
}

/* The least multiple of PRODUCT_PAD that cuts `n` into as few parts as `most` does. */
static uint32_t even_share(uint32_t n, uint32_t most)
{
    const uint32_t parts = (n + most - 1) / most;

    return ((n + parts - 1) / parts + PRODUCT_PAD - 1) / PRODUCT_PAD * PRODUCT_PAD;
}

void dense_product(const struct crew *crew, enum fire_dtype dtype, const struct product *product)
{
    struct grid grid = { .crew = crew, .product = product, .tile = crew_ops(crew, dtype)->tile };
    const uint32_t side = product->m > product->n ? product->m : product->n;
    const bool alone = !crew->pool || pool_threads(crew->pool) == 1;

    if (side <= IN_PLACE_SIDE) {
        grid.tile_rows = side <= SERIAL_SIDE ? side : 72;
        grid.tile_cols = product->upper ? ENGINE_TILE_COLUMNS_MAX : 256;
    } else if (alone) {
        grid.tile_rows = even_share(product->m, ALONE_TILE_ROWS);
        grid.tile_cols = even_share(product->n, ENGINE_TILE_COLUMNS_MAX);
    } else {
        grid.tile_rows = crew->engine->tile_rows;
        grid.tile_cols = side <= 1536 ? 256 : ENGINE_TILE_COLUMNS_MAX;
    }
    if (dtype == FIRE_F32 && side > SERIAL_SIDE && crew->engine->packs &&
        crew->engine->packs(product)) {
        grid.tile_rows = packing_tile_rows(crew, product->m);
        grid.tile_cols = side;
    }
    grid.columns = (product->n + grid.tile_cols - 1) / grid.tile_cols;
    crew_run(crew, grid.columns * ((product->m + grid.tile_rows - 1) / grid.tile_rows), grid_task,
             &grid);
}

void dense_gram(const struct crew *crew, enum fire_dtype dtype, bool narrow, const void *x,
                size_t ldx, uint32_t rows, uint32_t cols, void *g, size_t ldg)
{
    const struct product product = {
        .m = cols,
        .n = cols,
        .k = rows,
        .a = x,
        .lda = ldx,
        .a_transposed = true,
        .b = x,
        .ldb = ldx,
        .c = g,
        .ldc = ldg,
        .alpha = 1,
        .upper = true,
        .narrow = narrow,
    };

    dense_product(crew, dtype, &product);
}

void dense_symmetric_product(const struct crew *crew, enum fire_dtype dtype, uint32_t n,
                             const void *a, const void *b, size_t ld, double alpha, double beta,
                             void *c)
{
    const struct product product = {
        .m = n,
        .n = n,
        .k = n,
        .a = a,
        .lda = ld,
        .b = b,
        .ldb = ld,
        .c = c,
        .ldc = ld,
        .alpha = alpha,
        .beta = beta,
        .upper = true,
    };

    dense_product(crew, dtype, &product);
}

static char *at(const struct engine_ops *ops, void *base, size_t ld, uint32_t i, uint32_t j)
{
    return (char *)base + ((size_t)i * ld + j) * ops->element_bytes;
}

size_t dense_inverse_space(uint32_t n)
{
    const uint32_t half = (n / 2 + ENGINE_BASE) / ENGINE_BASE * ENGINE_BASE;
    const size_t blocks = (size_t)(half + ENGINE_BASE) * dense_stride(half + ENGINE_BASE);
    const size_t diagonals = (size_t)(n + 256) * 256; /* dense_inverse's diagonal tiles */

    /* What invert_factor_alone() takes, U12 and a T at each depth, is less than the latter. */

    return blocks > diagonals ? blocks : diagonals;
}

/* The inverse of a factor, z = L L^T, by halves:
 *   [Z11 Z12]   U12 = L11^-1 Z12     Z22 <- Z22 - U12^T U12     T = U12^T L11^-1
 *   [ .  Z22]   and then the lower left block of L^-1 is -L22^-1 T. */
struct halves {
    uint32_t n1, n2;
    void *z12, *z21, *z22;
    struct product u12, update, waiting, lower;
};

/* Where U12, T and the lower left block are written, and their strides. T waits while Z22 is
 * inverted; the last product may not overlap it. */
struct halves_room {
    void *u, *t, *end;
    size_t ldu, ldt, ld_end;
};

static uint32_t first_half(uint32_t n)
{
    return (n / 2 + ENGINE_BASE - 1) / ENGINE_BASE * ENGINE_BASE;
}

static void halves_init(struct halves *halves, const struct engine_ops *ops, void *z, size_t ldz,
                        uint32_t n)
{
    halves->n1 = first_half(n);
    halves->n2 = n - halves->n1;
    halves->z12 = at(ops, z, ldz, 0, halves->n1);
    halves->z21 = at(ops, z, ldz, halves->n1, 0);
    halves->z22 = at(ops, z, ldz, halves->n1, halves->n1);
}

static void halves_place(struct halves *halves, void *z, size_t ldz, struct halves_room room)
{
    const uint32_t n1 = halves->n1, n2 = halves->n2;

    /* clang-format off */
    halves->u12 = (struct product){
        .m = n1, .n = n2, .k = n1, .a = z, .lda = ldz, .a_shape = PRODUCT_LOWER, .b = halves->z12,
        .ldb = ldz, .c = room.u, .ldc = room.ldu, .alpha = 1 };
    halves->update = (struct product){
        .m = n2, .n = n2, .k = n1, .a = room.u, .lda = room.ldu, .a_transposed = true,
        .b = room.u, .ldb = room.ldu, .c = halves->z22, .ldc = ldz, .alpha = -1, .beta = 1,
        .upper = true };
    halves->waiting = (struct product){
        .m = n2, .n = n1, .k = n1, .a = room.u, .lda = room.ldu, .a_transposed = true, .b = z,
        .ldb = ldz, .b_shape = PRODUCT_LOWER, .c = room.t, .ldc = room.ldt, .alpha = 1 };
    halves->lower = (struct product){
        .m = n2, .n = n1, .k = n2, .a = halves->z22, .lda = ldz, .a_shape = PRODUCT_LOWER,
        .b = room.t, .ldb = room.ldt, .c = room.end, .ldc = room.ld_end, .alpha = -1 };
    /* clang-format on */
}

static void clear_block(const struct engine_ops *ops, void *block, size_t ld, uint32_t rows,
                        uint32_t cols)
{
    for (uint32_t i = 0; i < rows; i++)
        memset(at(ops, block, ld, i, 0), 0, cols * ops->element_bytes);
}

/* z = L L^T in the upper triangle; leaves L^-1 in the lower one, zeros above. The caller does it
 * all, n <= SERIAL_SIDE. T waits in `space`, and the halves of Z22 use what is behind it. */
static bool invert_factor_alone(const struct crew *crew, const struct engine_ops *ops, void *z,
                                size_t ldz, uint32_t n, char *space)
{
    void *scratch = crew->scratch[crew->worker];
    struct halves halves;

    if (n <= ENGINE_BASE)
        return ops->invert_base(z, ldz, n);
    halves_init(&halves, ops, z, ldz, n);

    const uint32_t n1 = halves.n1, n2 = halves.n2;
    const size_t ld1 = dense_stride(n1), ld2 = dense_stride(n2);
    char *rest = space + n2 * ld1 * ops->element_bytes; /* behind T, which waits */
    const struct halves_room room = { rest, space, halves.z21, ld2, ld1, ldz };

    halves_place(&halves, z, ldz, room);
    if (!invert_factor_alone(crew, ops, z, ldz, n1, space))
        return false;
    ops->tile(&halves.u12, 0, n1, 0, n2, scratch);
    ops->tile(&halves.update, 0, n2, 0, n2, scratch);
    ops->tile(&halves.waiting, 0, n2, 0, n1, scratch);
    clear_block(ops, halves.z12, ldz, n1, n2);
    if (!invert_factor_alone(crew, ops, halves.z22, ldz, n2, rest))
        return false;
    ops->tile(&halves.lower, 0, n2, 0, n1, scratch);
    return true;
}

/* The same by the whole crew. T waits in the lower left block itself while Z22 is inverted. */
static bool invert_factor(const struct crew *crew, enum fire_dtype dtype, void *z, size_t ldz,
                          uint32_t n, void *space)
{
    const struct engine_ops *ops = crew_ops(crew, dtype);
    struct halves halves;

    if (n <= SERIAL_SIDE)
        return invert_factor_alone(crew, ops, z, ldz, n, space);
    halves_init(&halves, ops, z, ldz, n);

    const uint32_t n1 = halves.n1, n2 = halves.n2;
    const size_t ld1 = dense_stride(n1), ld2 = dense_stride(n2);
    const struct halves_room room = { space, halves.z21, space, ld2, ldz, ld1 };

    halves_place(&halves, z, ldz, room);
    if (!invert_factor(crew, dtype, z, ldz, n1, space))
        return false;
    dense_product(crew, dtype, &halves.u12);
    dense_product(crew, dtype, &halves.update);
    dense_product(crew, dtype, &halves.waiting);
    clear_block(ops, halves.z12, ldz, n1, n2);
    if (!invert_factor(crew, dtype, halves.z22, ldz, n2, space))
        return false;
    dense_product(crew, dtype, &halves.lower);
    for (uint32_t i = 0; i < n2; i++)
        memcpy(at(ops, halves.z21, ldz, i, 0), at(ops, space, ld1, i, 0), n1 * ops->element_bytes);
    return true;
}

/* The tiles of L^-T L^-1. Tile (i, j), i < j, goes to the unused upper triangle at once; diagonal
 * tiles wait in `side`, because other tiles still read L^-1 there. */
struct squares {
    const struct crew *crew;
    const struct engine_ops *ops;
    void *z;
    size_t ldz;
    uint32_t n;
    uint32_t tile;
    uint32_t tiles; /* in a row of them */
    char *side;
};

static uint32_t square_tile(uint32_t n)
{
    return n <= SERIAL_SIDE ? (n + ENGINE_BASE - 1) / ENGINE_BASE * ENGINE_BASE
           : n <= 512       ? 64
           : n <= 1536      ? 128
                            : 256;
}

static void squares_task(void *data, uint32_t index, uint32_t worker)
{
    const struct squares *squares = data;
    const struct engine_ops *ops = squares->ops;
    const uint32_t i0 = index / squares->tiles * squares->tile;
    const uint32_t j0 = index % squares->tiles * squares->tile;
    const uint32_t rows = i0 + squares->tile < squares->n ? squares->tile : squares->n - i0;
    const uint32_t cols = j0 + squares->tile < squares->n ? squares->tile : squares->n - j0;
    struct product product = {
        .m = rows,
        .n = cols,
        .k = squares->n - j0,
        .a = at(ops, squares->z, squares->ldz, j0, i0),
        .lda = squares->ldz,
        .a_transposed = true,
        .b = at(ops, squares->z, squares->ldz, j0, j0),
        .ldb = squares->ldz,
        .b_shape = PRODUCT_LOWER,
        .c = at(ops, squares->z, squares->ldz, i0, j0),
        .ldc = squares->ldz,
        .alpha = 1,
    };

    if (j0 < i0)
        return;
    if (i0 == j0) {
        product.upper = true;
        product.a_shape = PRODUCT_UPPER;
        product.c = squares->side + (size_t)i0 * squares->tile * ops->element_bytes;
        product.ldc = squares->tile;
    }
    ops->tile(&product, 0, rows, 0, cols, squares->crew->scratch[worker]);
}

bool dense_inverse(const struct crew *crew, enum fire_dtype dtype, void *z, size_t ldz, uint32_t n,
                   void *space)
{
    const struct engine_ops *ops = crew_ops(crew, dtype);
    const struct crew alone = crew_alone(crew);
    struct squares squares = {
        .crew = crew, .ops = ops, .z = z, .ldz = ldz, .n = n, .tile = square_tile(n), .side = space
    };

    if (!invert_factor(crew, dtype, z, ldz, n, space))
        return false;
    squares.tiles = (n + squares.tile - 1) / squares.tile;
    crew_run(n <= SERIAL_SIDE ? &alone : crew, squares.tiles * squares.tiles, squares_task,
             &squares);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t i0 = i / squares.tile * squares.tile;
        const uint32_t end = i0 + squares.tile < n ? i0 + squares.tile : n;
        const char *row = squares.side + (size_t)i * squares.tile * ops->element_bytes;

        memcpy(at(ops, z, ldz, i, i), row + (i - i0) * ops->element_bytes,
               (end - i) * ops->element_bytes);
    }
    return true;
}

struct mirror {
    const struct engine_ops *ops;
    void *g;
    size_t ldg;
    uint32_t n;
};
#define MIRROR_ROWS 64u

static void mirror_task(void *data, uint32_t index, uint32_t worker)
{
    const struct mirror *mirror = data;
    const uint32_t i0 = index * MIRROR_ROWS;

    (void)worker;
    mirror->ops->mirror(mirror->g, mirror->ldg, i0,
                        i0 + MIRROR_ROWS < mirror->n ? i0 + MIRROR_ROWS : mirror->n);
}

void dense_mirror(const struct crew *crew, enum fire_dtype dtype, void *g, size_t ldg, uint32_t n)
{
    const struct crew alone = crew_alone(crew);
    struct mirror mirror = { crew_ops(crew, dtype), g, ldg, n };

    crew_run(n <= SERIAL_SIDE ? &alone : crew, (n + MIRROR_ROWS - 1) / MIRROR_ROWS, mirror_task,
             &mirror);
}

struct panels {
    const struct crew *crew;
    const struct dense_rows *rows;
    uint32_t height;
};

static void convert_rows(const void *from, enum fire_dtype from_dtype, void *to,
                         enum fire_dtype to_dtype, size_t count)
{
    if (from_dtype == to_dtype) {
        memcpy(to, from, count * fire_dtype_bytes(to_dtype));
    } else if (to_dtype == FIRE_F64) {
        for (size_t i = 0; i < count; i++)
            ((double *)to)[i] = (double)((const float *)from)[i];
    } else {
        for (size_t i = 0; i < count; i++)
            ((float *)to)[i] = (float)((const double *)from)[i];
    }
}

static void panel_task(void *data, uint32_t index, uint32_t worker)
{
    const struct panels *panels = data;
    const struct dense_rows *rows = panels->rows;
    const struct engine *engine = panels->crew->engine;
    char *scratch = panels->crew->scratch[worker];
    const uint32_t i0 = index * panels->height;
    const uint32_t height = i0 + panels->height < rows->rows ? panels->height : rows->rows - i0;
    const size_t count = height * rows->ld;
    const char *x = (const char *)rows->x + i0 * rows->ld * fire_dtype_bytes(rows->x_dtype);
    char *y = (char *)rows->y + i0 * rows->ld * fire_dtype_bytes(rows->y_dtype);
    char *result = scratch + engine->scratch_bytes;
    struct product product = {
        .m = height,
        .n = rows->cols,
        .k = rows->cols,
        .a = x,
        .lda = rows->ld,
        .b = rows->m,
        .ldb = rows->ld,
        .c = result,
        .ldc = rows->ld,
        .alpha = 1,
    };
    const uint32_t step = ENGINE_TILE_COLUMNS_MAX;

    if (rows->x_dtype != rows->dtype) {
        char *source = result + panels->height * rows->ld * sizeof(double);

        convert_rows(x, rows->x_dtype, source, rows->dtype, count);
        product.a = source;
    }
    memset(result, 0, count * fire_dtype_bytes(rows->dtype)); /* the padding must stay zero */
    for (uint32_t j = 0; j < rows->cols; j += step)
        crew_ops(panels->crew, rows->dtype)
            ->tile(&product, 0, height, j, j + step < rows->cols ? j + step : rows->cols, scratch);
    convert_rows(result, rows->dtype, y, rows->y_dtype, count);
}

void dense_multiply_rows(const struct crew *crew, const struct dense_rows *rows)
{
    const bool plain = rows->dtype == FIRE_F32 && rows->x_dtype == FIRE_F32;
    struct panels panels = { crew, rows,
                             plain ? plain_panel_rows(crew->engine, rows->rows, rows->cols)
                                   : panel_rows(rows->cols) };

    crew_run(crew, (rows->rows + panels.height - 1) / panels.height, panel_task, &panels);
}
