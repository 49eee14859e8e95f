/* engine_tile: products, one tile at a time. A part of engine_body.h, which includes it for each
 * element type and says what the macros are.
 *
 * The register block multiplies a column of A, broadcast one element at a time, with one or two
 * vectors of a row of B. A row-major A is read in place; a transposed A and any B too large to stay
 * in cache are packed first, and where both are one matrix A is read from the packed B. */

/* How A is walked: element (i, p) is a[i * row_stride + p * col_stride]. */
struct TN(block) {
    const T *a;
    size_t a_row_stride;
    size_t a_col_stride;
    const T *b; /* row p at b + p * ldb */
    size_t ldb;
    T *c;
    size_t ldc;
    size_t k;
    T alpha;
    T beta;
};

/* C[0..mr) x [0..nv vectors) <- alpha A B + beta C. mr and nv are constants after inlining. */
INLINE void TN(block_store)(const struct TN(block) * t, const TN(vec) sum[MR][2], const int mr,
                            const int nv)
{
    const T alpha = t->alpha, beta = t->beta;
    const size_t ldc = t->ldc;
    T *c = t->c;

    if (beta == 0) {
        UNROLL
        for (int i = 0; i < mr; i++, c += ldc) {
            UNROLL
            for (int v = 0; v < nv; v++)
                *(TN(vec) *)(c + (size_t)v * VL) = sum[i][v] * alpha;
        }
        return;
    }
    UNROLL
    for (int i = 0; i < mr; i++, c += ldc) {
        UNROLL
        for (int v = 0; v < nv; v++)
            *(TN(vec) *)(c + (size_t)v * VL) =
                sum[i][v] * alpha + *(const TN(vec) *)(c + (size_t)v * VL) * beta;
    }
}

/* C is written last, and read where it was begun before: its lines, rows apart, come meanwhile. */
INLINE void TN(block_fetch)(const struct TN(block) * t, const int mr)
{
    UNROLL
    for (int i = 0; i < mr; i++)
        __builtin_prefetch(t->c + (size_t)i * t->ldc, 1);
}

/* A with unit row stride: packed panels and transposed operands. */
INLINE void TN(block_columns)(const struct TN(block) * t, const int mr, const int nv)
{
    TN(vec) sum[MR][2] = { 0 };
    const T *a = t->a;
    const T *b = t->b;

    TN(block_fetch)(t, mr);
    UNROLL_DEPTH
    for (size_t p = 0; p < t->k; p++) {
        TN(vec) row[2];

        UNROLL
        for (int v = 0; v < nv; v++)
            row[v] = *(const TN(vec) *)(b + (size_t)v * VL);
        UNROLL
        for (int i = 0; i < mr; i++) {
            UNROLL
            for (int v = 0; v < nv; v++)
                sum[i][v] += row[v] * a[i];
        }
        a += t->a_col_stride;
        b += t->ldb;
    }
    TN(block_store)(t, sum, mr, nv);
}

/* A with unit column stride: a row-major operand read in place. Three rows share a pointer, so that
 * the address arithmetic fits the machine's addressing modes. */
INLINE void TN(block_rows)(const struct TN(block) * t, const int mr, const int nv)
{
    TN(vec) sum[MR][2] = { 0 };
    const size_t stride = t->a_row_stride;
    const T *a[(MR + 2) / 3];
    const T *b = t->b;

    UNROLL
    for (int i = 0; i < (mr + 2) / 3; i++)
        a[i] = t->a + (size_t)(3 * i) * stride;
    TN(block_fetch)(t, mr);
    UNROLL_DEPTH
    for (size_t p = 0; p < t->k; p++) {
        TN(vec) row[2];

        UNROLL
        for (int v = 0; v < nv; v++)
            row[v] = *(const TN(vec) *)(b + (size_t)v * VL);
        UNROLL
        for (int i = 0; i < mr; i++) {
            const T element = a[i / 3][(size_t)(i % 3) * stride + p];

            UNROLL
            for (int v = 0; v < nv; v++)
                sum[i][v] += row[v] * element;
        }
        b += t->ldb;
    }
    TN(block_store)(t, sum, mr, nv);
}

#define BLOCK(kind, mr)                                                                            \
    static NOINLINE void TN(kind##_##mr##_1)(const struct TN(block) * t)                           \
    {                                                                                              \
        TN(block_##kind)(t, mr, 1);                                                                \
    }                                                                                              \
    static NOINLINE void TN(kind##_##mr##_2)(const struct TN(block) * t)                           \
    {                                                                                              \
        TN(block_##kind)(t, mr, 2);                                                                \
    }
#define BLOCKS(kind)                                                                               \
    BLOCK(kind, 1) BLOCK(kind, 2) BLOCK(kind, 3) BLOCK(kind, 4) BLOCK(kind, 5) BLOCK(kind, 6)
BLOCKS(columns)
BLOCKS(rows)
#if MR > 6
#define BLOCKS_UPPER(kind)                                                                         \
    BLOCK(kind, 7) BLOCK(kind, 8) BLOCK(kind, 9) BLOCK(kind, 10) BLOCK(kind, 11) BLOCK(kind, 12)
BLOCKS_UPPER(columns)
BLOCKS_UPPER(rows)
#undef BLOCKS_UPPER
#endif

typedef void (*TN(block_function))(const struct TN(block) *);
#define ENTRY(kind, mr)                                                                            \
    {                                                                                              \
        TN(kind##_##mr##_1), TN(kind##_##mr##_2)                                                   \
    }
#define ENTRIES(kind)                                                                              \
    ENTRY(kind, 1), ENTRY(kind, 2), ENTRY(kind, 3), ENTRY(kind, 4), ENTRY(kind, 5), ENTRY(kind, 6)
#if MR > 6
#define ENTRIES_UPPER(kind)                                                                        \
    , ENTRY(kind, 7), ENTRY(kind, 8), ENTRY(kind, 9), ENTRY(kind, 10), ENTRY(kind, 11),            \
        ENTRY(kind, 12)
#else
#define ENTRIES_UPPER(kind)
#endif
/* [A by columns or by rows][mr - 1][nv - 1] */
static const TN(block_function) TN(block_table)[2][MR][2] = {
    { ENTRIES(columns) ENTRIES_UPPER(columns) },
    { ENTRIES(rows) ENTRIES_UPPER(rows) },
};
#undef BLOCK
#undef BLOCKS
#undef ENTRY
#undef ENTRIES
#undef ENTRIES_UPPER

#define NR ((uint32_t)(2 * VL))

/* One vector of a row that is stored as T, or as f32 when `narrow`. */
INLINE void TN(pack_vector)(const struct product *product, const void *base, size_t at, T *packed)
{
    if (product->narrow) {
        const float *source = (const float *)base + at;

        for (uint32_t v = 0; v < VL; v++)
            packed[v] = (T)source[v];
    } else {
        *(TN(vec) *)packed = *(const TN(vec) *)((const T *)base + at);
    }
}

/* Rows p0.. of B, columns j0.., as panels of NR columns: panel after panel, row after row. A last
 * panel of one vector is stored VL wide. A few rows are read along their whole width before the
 * next ones: each lies in a page of its own. */
static void TN(pack_b)(const struct product *product, uint32_t p0, uint32_t kc, uint32_t j0,
                       uint32_t width, T *packed)
{
    for (uint32_t begin = 0; begin < kc; begin += PACK_STRIP_B) {
        const uint32_t end = begin + PACK_STRIP_B < kc ? begin + PACK_STRIP_B : kc;

        for (uint32_t j = 0; j < width; j += NR) {
            const uint32_t columns = width - j < NR ? (uint32_t)VL : NR;
            T *to = packed + (size_t)j * kc + (size_t)begin * columns;

            for (uint32_t p = begin; p < end; p++, to += columns) {
                const size_t at = (size_t)(p0 + p) * product->ldb + j0 + j;

                TN(pack_vector)(product, product->b, at, to);
                if (columns == NR)
                    TN(pack_vector)(product, product->b, at + VL, to + VL);
            }
        }
    }
}

/* Rows [i, i + rows) of a block row of C, and where its columns of the transposed A are found: in
 * the packed B, in a panel of their own, or (both NULL) in A itself. */
struct TN(chunk) {
    uint32_t i, rows;
    const T *in_b;
    size_t b_step; /* from one p to the next */
    T *packed;
};

/* Elements of a packed panel of A: rows of `rows` <= MR elements. They are written PANEL_COPY at a
 * time, the surplus to be overwritten by the next row or to fall behind the last one. The surplus
 * is read as well, so never behind the tile: another thread may be writing there. */
#define PANEL_COPY     ((MR + VL - 1) / VL * VL)
#define PANEL_ELEMENTS (KC * MR + PRODUCT_PAD)

/* Rows [begin, end) of the transposed A into the panel of one chunk of a tile that ends at `i1`. */
INLINE void TN(pack_strip)(const struct product *product, const struct TN(chunk) * chunk,
                           uint32_t i1, size_t begin, size_t end, T *packed)
{
    const size_t rows = chunk->rows;

    if (product->narrow) {
        for (size_t p = begin; p < end; p++, packed += rows) {
            const float *source = (const float *)product->a + p * product->lda + chunk->i;

            for (size_t r = 0; r < rows; r++)
                packed[r] = (T)source[r];
        }
    } else if (chunk->i + PANEL_COPY <= i1) {
        for (size_t p = begin; p < end; p++, packed += rows)
            memcpy(packed, (const T *)product->a + p * product->lda + chunk->i,
                   PANEL_COPY * sizeof(T));
    } else {
        for (size_t p = begin; p < end; p++, packed += rows) {
            for (size_t r = 0; r < rows; r++)
                packed[r] = ((const T *)product->a + p * product->lda + chunk->i)[r];
        }
    }
}

/* One block of depth: every register block of the tile. `b` is B's panels, packed or in place. */
struct TN(depth) {
    uint32_t p0, kc;
    uint32_t i0, i1, j0, j1;
    const T *packed_b;
    T beta;
    bool first;  /* block of depth: C gets beta times what it was */
    bool pack_a; /* what of it does not lie in the packed B */
    bool square; /* A^T and B are the same matrix */
};

/* Columns of the transposed A (k x m), as one panel for each chunk. Some rows are read for all
 * chunks before the next ones: the chunks share cache lines. */
static void TN(pack_a)(const struct product *product, const struct TN(depth) * depth,
                       const struct TN(chunk) * chunks, uint32_t count)
{
    for (uint32_t p = 0; p < depth->kc; p += PACK_STRIP) {
        const uint32_t end = p + PACK_STRIP < depth->kc ? p + PACK_STRIP : depth->kc;

        for (uint32_t c = 0; c < count; c++) {
            if (!chunks[c].packed)
                continue;
            TN(pack_strip)
            (product, &chunks[c], depth->i1, depth->p0 + p, depth->p0 + end,
             chunks[c].packed + (size_t)p * chunks[c].rows);
        }
    }
}

/* The part [*begin, *end) of the depth that the shapes leave for one register block. */
INLINE void TN(clip)(const struct product *product, uint32_t i, uint32_t rows, uint32_t j,
                     uint32_t columns, uint32_t *begin, uint32_t *end)
{
    if (product->a_shape == PRODUCT_LOWER && i + rows < *end)
        *end = i + rows;
    if (product->b_shape == PRODUCT_UPPER && j + columns < *end)
        *end = j + columns;
    if (product->a_shape == PRODUCT_UPPER && i > *begin)
        *begin = i;
    if (product->b_shape == PRODUCT_LOWER && j > *begin)
        *begin = j;
    if (*end < *begin)
        *end = *begin;
}

/* Columns [i, i + rows) of the transposed A where they lie in the packed B, which is the same
 * matrix: *step is the distance from one p to the next. NULL: they do not, or in two panels. */
INLINE const T *TN(find_in_b)(const struct TN(depth) * depth, uint32_t i, uint32_t rows,
                              size_t *step)
{
    const uint32_t panel = i < depth->j0 ? 0 : (i - depth->j0) / NR;
    const uint32_t first = depth->j0 + panel * NR;

    if (!depth->square || !depth->packed_b || i < depth->j0 || i + rows > depth->j1 ||
        i + rows > first + NR)
        return NULL;
    *step = depth->j1 - first <= VL ? VL : NR;
    return depth->packed_b + (size_t)panel * NR * depth->kc + (i - first);
}

/* A chunk of rows, ready for any columns of the tile. */
struct TN(row) {
    const TN(block_function) * functions; /* [nv - 1] */
    struct TN(block) block;               /* what all columns share */
    const T *a;
    size_t a_step; /* elements from one p to the next */
    uint32_t i, rows;
};

static void TN(row_open)(const struct product *product, const struct TN(depth) * depth,
                         const struct TN(chunk) * chunk, struct TN(row) * row)
{
    const uint32_t i = chunk->i, rows = chunk->rows;
    const int by_rows = !product->a_transposed;

    row->functions = TN(block_table)[by_rows][rows - 1];
    row->block =
        (struct TN(block)){ .ldc = product->ldc, .alpha = (T)product->alpha, .beta = depth->beta };
    row->i = i;
    row->rows = rows;
    if (chunk->in_b) {
        row->a = chunk->in_b;
        row->a_step = row->block.a_col_stride = chunk->b_step;
    } else if (chunk->packed) {
        row->a = chunk->packed;
        row->a_step = row->block.a_col_stride = rows;
    } else if (by_rows) {
        row->a = (const T *)product->a + (size_t)i * product->lda + depth->p0;
        row->block.a_row_stride = product->lda;
        row->a_step = 1;
    } else {
        row->a = (const T *)product->a + (size_t)depth->p0 * product->lda + i;
        row->a_step = row->block.a_col_stride = product->lda;
    }
}

/* Columns [j, j + columns) of a chunk. `panel` is B's packed panel of them, NULL: B in place. */
INLINE void TN(row_block)(const struct product *product, const struct TN(depth) * depth,
                          struct TN(row) * row, uint32_t j, uint32_t columns, const T *panel)
{
    uint32_t begin = depth->p0, end = depth->p0 + depth->kc;

    TN(clip)(product, row->i, row->rows, j, columns, &begin, &end);
    /* Blocks wholly below the diagonal are not wanted; empty ones only clear C. */
    if ((product->upper && j + columns <= row->i) || (end <= begin && !depth->first))
        return;
    /* Nor is a left half that lies below it. */
    const uint32_t skip = product->upper && columns == NR && j + VL <= row->i ? VL : 0;

    row->block.k = end - begin;
    row->block.a = row->a + (begin - depth->p0) * row->a_step;
    row->block.ldb = panel ? columns : product->ldb;
    row->block.b = (panel ? panel + (size_t)(begin - depth->p0) * columns
                          : (const T *)product->b + (size_t)begin * product->ldb + j) +
                   skip;
    row->block.c = (T *)product->c + (size_t)row->i * product->ldc + j + skip;
    row->functions[columns - skip == NR](&row->block);
}

/* All columns of the tile for some chunks. A packed panel of B serves all of them while it is in
 * the first cache; where B is read in place it is the chunk that stays. */
static void TN(rows_multiply)(const struct product *product, const struct TN(depth) * depth,
                              struct TN(row) * rows, uint32_t count)
{
    const T *panel = depth->packed_b;

    if (!panel) {
        /* Near a diagonal narrow blocks multiply fewer zeros; a deep product has few such. */
        const bool narrow = product->b_shape != PRODUCT_DENSE && product->k <= NARROW_DEPTH;
        const uint32_t most = narrow ? (uint32_t)VL : NR;

        for (uint32_t c = 0; c < count; c++) {
            for (uint32_t j = depth->j0, columns; j < depth->j1; j += columns) {
                columns = depth->j1 - j <= VL ? (uint32_t)VL : most;
                TN(row_block)(product, depth, &rows[c], j, columns, NULL);
            }
        }
        return;
    }
    for (uint32_t j = depth->j0, columns; j < depth->j1; j += columns) {
        columns = depth->j1 - j <= VL ? (uint32_t)VL : NR;
        for (uint32_t c = 0; c < count; c++)
            TN(row_block)(product, depth, &rows[c], j, columns, panel);
        panel += (size_t)columns * depth->kc;
    }
}

/* How many rows the chunk at row i has. Full blocks share the rows evenly, so that none is left
 * with few; where the packed B serves as A as well, they share those of one panel. */
static uint32_t TN(chunk_rows)(const struct TN(depth) * depth, uint32_t height, uint32_t i)
{
    uint32_t rest = depth->i1 - i;

    if (depth->square && depth->packed_b) {
        const uint32_t border = i < depth->j0 ? depth->j0 - i : NR - (i - depth->j0) % NR;

        rest = border < rest ? border : rest;
    }
    return height == MR ? rest / ((rest + MR - 1) / MR) : rest < height ? rest : height;
}

/* Rows [i0, i1) of the tile at one depth, some chunks of `height` rows at a time. */
static void TN(rows_of_blocks)(const struct product *product, const struct TN(depth) * depth,
                               uint32_t height, T *packed_a)
{
    uint32_t i = depth->i0;

    while (i < depth->i1) {
        struct TN(chunk) chunks[PACK_CHUNKS];
        struct TN(row) rows[PACK_CHUNKS];
        uint32_t count = 0;

        for (; count < PACK_CHUNKS && i < depth->i1; count++) {
            struct TN(chunk) *chunk = &chunks[count];

            *chunk = (struct TN(chunk)){ .i = i, .rows = TN(chunk_rows)(depth, height, i) };
            chunk->in_b = TN(find_in_b)(depth, i, chunk->rows, &chunk->b_step);
            if (depth->pack_a && !chunk->in_b)
                chunk->packed = packed_a + count * PANEL_ELEMENTS;
            i += chunk->rows;
        }
        if (depth->pack_a)
            TN(pack_a)(product, depth, chunks, count);
        for (uint32_t c = 0; c < count; c++)
            TN(row_open)(product, depth, &chunks[c], &rows[c]);
        TN(rows_multiply)(product, depth, rows, count);
    }
}

/* How deep a block is. Whatever a tile's triangles leave of the depth, it is cut at multiples of
 * this: the order of sums may not depend on how the product is cut into tiles. */
static uint32_t TN(depth_share)(uint32_t k)
{
    const uint32_t parts = (k + KC - 1) / KC;

    return parts ? (k + parts - 1) / parts : KC;
}

/* Scratch: KC x NR-padded columns of B, then PACK_CHUNKS panels of A. */
static void TN(tile)(const struct product *product, uint32_t i0, uint32_t i1, uint32_t j0,
                     uint32_t j1, void *scratch)
{
    if (product->upper && i0 > j0) /* columns left of the diagonal are not wanted, … */
        j0 += (i0 - j0) / PRODUCT_PAD * PRODUCT_PAD;
    if (product->upper && i1 > j1) /* … nor rows below it */
        i1 = j1;

    const uint32_t width = (j1 - j0 + (uint32_t)VL - 1) / (uint32_t)VL * (uint32_t)VL;
    /* Rows of a block. What a block computes below the diagonal is lost: low blocks lose less. */
    const uint32_t height = product->upper && product->n <= LOW_BLOCKS_SIDE ? LOW_BLOCK_ROWS : MR;
    struct TN(depth) depth = { .i0 = i0, .i1 = i1, .j0 = j0, .j1 = j0 + width };
    const uint32_t deep = TN(depth_share)(product->k);
    uint32_t p_begin = 0, p_end = product->k;
    bool first = true;

    if (product->a_shape == PRODUCT_LOWER && i1 < p_end)
        p_end = i1;
    if (product->b_shape == PRODUCT_UPPER && j1 < p_end)
        p_end = j1;
    if (product->a_shape == PRODUCT_UPPER)
        p_begin = i0;
    if (product->b_shape == PRODUCT_LOWER && j0 > p_begin)
        p_begin = j0;

    /* Operands that stay in cache are read where they are: packing them would cost more than it
     * gains. Rows a page apart are not: each would be a new page, and no prefetcher follows. */
    const bool pack_b = product->narrow || (product->ldb * sizeof(T) >= PACK_STRIDE &&
                                            p_end - p_begin >= PACK_DEPTH && i1 - i0 >= PACK_ROWS);
    const bool pack_a = product->narrow || (product->lda * sizeof(T) >= PACK_STRIDE &&
                                            p_end - p_begin >= PACK_DEPTH && width >= PACK_ROWS);
    T *packed_b = scratch;

    FIRE_ASSERT(!pack_b || width <= ENGINE_TILE_COLUMNS_MAX);
    FIRE_ASSERT((product->a_shape == PRODUCT_DENSE && product->b_shape == PRODUCT_DENSE) ||
                product->beta == 0 || product->beta == 1 || product->beta == -1);
    depth.pack_a = product->a_transposed && pack_a;
    depth.square = product->a_transposed && product->a == product->b;
    for (uint32_t p = p_begin; p < p_end || first; p += depth.kc) {
        const uint32_t rest = p < p_end ? p_end - p : 0;

        depth.p0 = p;
        depth.kc = deep - p % deep < rest ? deep - p % deep : rest;
        depth.first = first;
        depth.beta = first ? (T)product->beta : (T)1;
        first = false;
        if (pack_b)
            TN(pack_b)(product, p, depth.kc, j0, width, packed_b);
        depth.packed_b = pack_b ? packed_b : NULL;
        TN(rows_of_blocks)
        (product, &depth, height, packed_b + (size_t)KC * ENGINE_TILE_COLUMNS_MAX);
        if (depth.kc == 0)
            break;
    }
}
