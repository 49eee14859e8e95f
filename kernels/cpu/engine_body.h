/* engine_body: the inner loops for one element type and one register width.
 *
 * Included twice (f32, f64) by each engine_<isa>.c with these macros set:
 *   T            float or double
 *   TN(name)     the name with the type's suffix
 *   VECTOR_BYTES register width
 *   MR           rows of the register block; its columns are one or two vectors
 *   KC           depth of a packed block
 * Products are in engine_tile.h; here is what goes over a matrix or a vector once, and the inverse
 * of a small block. */

#define VL (VECTOR_BYTES / sizeof(T))
typedef T TN(vec) __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef T TN(vec_u) __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(4)));
typedef TN(bits) TN(mask) __attribute__((vector_size(VECTOR_BYTES), may_alias));

#include "engine_tile.h"

/* Right-looking Cholesky of a small block, row by row, and the inverse of the lower factor beside
 * it. Rows are `nv` vectors long, a constant after inlining: what lies left of the diagonal is
 * carried along and never looked at. */
INLINE bool TN(invert_rows)(T *z, size_t ldz, uint32_t n, const uint32_t nv)
{
    TN(vec) u[ENGINE_BASE][ENGINE_BASE / VL];
    TN(vec) inverse[ENGINE_BASE][ENGINE_BASE / VL];

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t v = 0; v < nv; v++) {
            u[i][v] = *(const TN(vec) *)(z + i * ldz + v * VL);
            inverse[i][v] = (TN(vec)){ 0 };
        }
        ((T *)inverse[i])[i] = 1;
    }
    UNROLL_BASE
    for (uint32_t p = 0; p < n; p++) {
        const T *pivots = (const T *)u[p];
        const T pivot = pivots[p];
        TN(vec) row[ENGINE_BASE / VL], inverse_row[ENGINE_BASE / VL];
        T reciprocal;

        if (!(pivot > 0))
            return false;
        reciprocal = 1 / pivot;
        /* Row p of L^-1 is (e_p - sum over q < p of L_pq row q) / L_pp; the sum is complete. Rows
         * below lose L_ip = u_pi times it, with the unscaled u: hence the square of 1 / L_pp, and
         * no root that the next pivot would wait for. */
        for (uint32_t v = 0; v < nv; v++) {
            row[v] = u[p][v] * reciprocal;
            inverse_row[v] = inverse[p][v] * reciprocal;
        }
        UNROLL_BASE
        for (uint32_t i = p + 1; i < n; i++) {
            const T factor = pivots[i];

            for (uint32_t v = 0; v < nv; v++) {
                u[i][v] -= factor * row[v];
                inverse[i][v] -= factor * inverse_row[v];
            }
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        const T scale = 1 / TN(root)(((const T *)u[i])[i]);

        for (uint32_t v = 0; v < nv; v++)
            *(TN(vec) *)(z + i * ldz + v * VL) = inverse[i][v] * scale;
    }
    return true;
}

static bool TN(invert_base)(void *z, size_t ldz, uint32_t n)
{
    if (n == ENGINE_BASE)
        return TN(invert_rows)(z, ldz, ENGINE_BASE, ENGINE_BASE / VL);
    return n <= 8 && VL <= 8 ? TN(invert_rows)(z, ldz, n, 8 / VL ? 8 / VL : 1)
                             : TN(invert_rows)(z, ldz, n, ENGINE_BASE / VL);
}

static void TN(copy_affine)(void *to_data, const void *from_data, size_t ld, uint32_t n,
                            double factor, double shift)
{
    const T f = (T)factor;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t begin = i / (uint32_t)VL * (uint32_t)VL; /* whole vectors; a little more */
        T *to = (T *)to_data + i * ld;
        const T *from = (const T *)from_data + i * ld;

        for (uint32_t j = begin; j < n; j++)
            to[j] = f * from[j];
        to[i] += (T)shift;
    }
}

static void TN(affine)(void *g, size_t ldg, uint32_t n, double factor, double shift)
{
    TN(copy_affine)(g, g, ldg, n, factor, shift);
}

static void TN(affine_full)(void *data, size_t ldg, uint32_t n, double factor, double shift)
{
    const T f = (T)factor;

    for (uint32_t i = 0; i < n; i++) {
        T *row = (T *)data + i * ldg;

        for (uint32_t j = 0; j < n; j++)
            row[j] *= f;
        row[i] += (T)shift;
    }
}

typedef T TN(quarter) __attribute__((vector_size(16), may_alias));
#define SIDE (16 / (uint32_t)sizeof(T)) /* of a block that is transposed in registers */

/* A SIDE x SIDE block, both corners on 16-byte boundaries. */
INLINE void TN(transpose_block)(const T *from, T *to, size_t ld)
{
    TN(quarter) row[SIDE];

    for (uint32_t i = 0; i < SIDE; i++)
        row[i] = *(const TN(quarter) *)(from + i * ld);
    for (uint32_t i = 0; i < SIDE; i++) {
        TN(quarter) column = { 0 };

        for (uint32_t j = 0; j < SIDE; j++)
            column[j] = row[j][i];
        *(TN(quarter) *)(to + i * ld) = column;
    }
}

static void TN(mirror)(void *data, size_t ldg, uint32_t i0, uint32_t i1)
{
    T *g = data;
    uint32_t i = i0;

    for (; i % SIDE == 0 && i + SIDE <= i1; i += SIDE) {
        for (uint32_t j = 0; j < i; j += SIDE)
            TN(transpose_block)(g + j * ldg + i, g + i * ldg + j, ldg);
        for (uint32_t a = 1; a < SIDE; a++) {
            for (uint32_t b = 0; b < a; b++)
                g[(i + a) * ldg + i + b] = g[(i + b) * ldg + i + a];
        }
    }
    for (; i < i1; i++) {
        for (uint32_t j = 0; j < i; j++)
            g[i * ldg + j] = g[j * ldg + i];
    }
}
#undef SIDE

/* Sums are taken in f64, in registers of WIDE_LANES of them, SUM_REGISTERS at a time: enough to
 * hide the latency of an addition. */
#define SUM_STEP (SUM_REGISTERS * WIDE_LANES)

INLINE wide TN(widen)(const T *x)
{
    TN(part) part;

    memcpy(&part, x, sizeof(part));
    return TN(wide_of)(part);
}

INLINE double TN(total)(const wide sum[SUM_REGISTERS])
{
    wide all = sum[0];
    double total = 0;

    for (size_t r = 1; r < SUM_REGISTERS; r++)
        all += sum[r];
    for (size_t l = 0; l < WIDE_LANES; l++)
        total += all[l];
    return total;
}

/* sum += (factor * x_i)^2 in some order; the last ones are returned. */
INLINE double TN(add_squares)(const T *x, double factor, size_t n, wide sum[SUM_REGISTERS])
{
    double rest = 0;
    size_t i = 0;

    for (; i + SUM_STEP <= n; i += SUM_STEP) {
        UNROLL
        for (size_t r = 0; r < SUM_REGISTERS; r++) {
            const wide value = TN(widen)(x + i + r * WIDE_LANES) * factor;

            sum[r] += value * value;
        }
    }
    for (; i + WIDE_LANES <= n; i += WIDE_LANES) {
        const wide value = TN(widen)(x + i) * factor;

        sum[0] += value * value;
    }
    for (; i < n; i++)
        rest += (double)x[i] * factor * ((double)x[i] * factor);
    return rest;
}

static double TN(square)(const void *x, double factor, size_t n)
{
    wide sum[SUM_REGISTERS] = { 0 };
    const double rest = TN(add_squares)(x, factor, n, sum);

    return TN(total)(sum) + rest;
}

static void TN(sums)(const void *data, size_t ldg, uint32_t n, double factor, double *dfi,
                     double *square, double *trace)
{
    wide sum[SUM_REGISTERS] = { 0 };
    double off = 0, dfi_diagonal = 0, square_diagonal = 0;

    *trace = 0;
    for (uint32_t i = 0; i < n; i++) {
        const T *row = (const T *)data + (size_t)i * ldg;
        const double diagonal = factor * (double)row[i];

        off += TN(add_squares)(row + i + 1, 1, n - i - 1, sum);
        dfi_diagonal += (diagonal - 1) * (diagonal - 1);
        square_diagonal += diagonal * diagonal;
        *trace += diagonal;
    }
    off = 2 * factor * factor * (off + TN(total)(sum));
    *dfi = off + dfi_diagonal;
    *square = off + square_diagonal;
}

/* One row of G, from the diagonal on: its part of y = G x. */
INLINE void TN(add_row)(const T *row, uint32_t i, uint32_t n, const T *x, T *y)
{
    T sum = row[i] * x[i];

    for (uint32_t j = i + 1; j < n; j++) {
        sum += row[j] * x[j];
        y[j] += row[j] * x[i];
    }
    y[i] += sum;
}

#define VECTOR_ROWS 4u /* that share a pass over x and y */

/* VECTOR_ROWS rows of G from row i on, columns [j, n): their part of y = G x. */
INLINE void TN(add_rows)(const T *rows, size_t ldg, uint32_t i, uint32_t j, uint32_t n, const T *x,
                         T *y)
{
    TN(vec) sum[VECTOR_ROWS] = { 0 };
    T rest[VECTOR_ROWS] = { 0 };

    for (; j + VL <= n; j += (uint32_t)VL) {
        const TN(vec) column = *(const TN(vec_u) *)(x + j);
        TN(vec) result = *(const TN(vec_u) *)(y + j);

        UNROLL
        for (uint32_t r = 0; r < VECTOR_ROWS; r++) {
            const TN(vec) row = *(const TN(vec_u) *)(rows + r * ldg + j);

            sum[r] += row * column;
            result += row * x[i + r];
        }
        *(TN(vec_u) *)(y + j) = result;
    }
    for (; j < n; j++) {
        for (uint32_t r = 0; r < VECTOR_ROWS; r++) {
            rest[r] += rows[r * ldg + j] * x[j];
            y[j] += rows[r * ldg + j] * x[i + r];
        }
    }
    for (uint32_t r = 0; r < VECTOR_ROWS; r++) {
        for (size_t l = 0; l < VL; l++)
            rest[r] += sum[r][l];
        y[i + r] += rest[r];
    }
}

static void TN(symmetric_vector)(const void *data, size_t ldg, uint32_t n, const void *x_data,
                                 void *y_data)
{
    const T *g = data;
    const T *x = x_data;
    T *y = y_data;
    uint32_t i = 0;

    for (uint32_t k = 0; k < n; k++)
        y[k] = 0;
    for (; i + VECTOR_ROWS <= n; i += VECTOR_ROWS) {
        const T *rows = g + (size_t)i * ldg;

        for (uint32_t r = 0; r < VECTOR_ROWS; r++) /* the triangle on the diagonal */
            TN(add_row)(rows + r * ldg, i + r, i + VECTOR_ROWS, x, y);
        TN(add_rows)(rows, ldg, i, i + VECTOR_ROWS, n, x, y);
    }
    for (; i < n; i++)
        TN(add_row)(g + (size_t)i * ldg, i, n, x, y);
}
#undef VECTOR_ROWS

static double TN(dot)(const void *x_data, const void *y_data, size_t n)
{
    const T *x = x_data;
    const T *y = y_data;
    double lane[16] = { 0 };
    double sum = 0;
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        for (size_t l = 0; l < 16; l++)
            lane[l] += (double)x[i + l] * (double)y[i + l];
    }
    for (; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    for (size_t l = 0; l < 16; l++)
        sum += lane[l];
    return sum;
}

static void TN(add)(void *y_data, const void *x_data, double factor, size_t n)
{
    const T *x = x_data;
    T *y = y_data;
    const T f = (T)factor;

    for (size_t i = 0; i < n; i++)
        y[i] += f * x[i];
}

static void TN(add_upper)(void *g, const void *s, size_t ld, uint32_t n, double factor,
                          double shift)
{
    for (uint32_t i = 0; i < n; i++) {
        T *row = (T *)g + i * ld;

        TN(add)(row + i, (const T *)s + i * ld + i, factor, n - i);
        row[i] += (T)shift;
    }
}

static double TN(largest)(const void *x_data, size_t n)
{
    const T *x = x_data;
    TN(vec) lanes = { 0 };
    T largest = 0;
    size_t i = 0;

    for (; i + VL <= n; i += VL) {
        const TN(vec) value = *(const TN(vec_u) *)(x + i);
        const TN(mask) negative = value < 0;
        const TN(vec) a =
            (TN(vec))((negative & (TN(mask))(-value)) | (~negative & (TN(mask))value));
        const TN(mask) larger = a > lanes;

        lanes = (TN(vec))((larger & (TN(mask))a) | (~larger & (TN(mask))lanes));
    }
    for (; i < n; i++) {
        const T a = x[i] < 0 ? -x[i] : x[i];

        largest = a > largest ? a : largest;
    }
    for (size_t l = 0; l < VL; l++)
        largest = lanes[l] > largest ? lanes[l] : largest;
    return (double)largest;
}

/* One register of them; returns the changes. */
INLINE wide TN(replace_part)(float *w, const T *x, T factor)
{
    TN(part) part;
    half old;

    memcpy(&part, x, sizeof(part));
    memcpy(&old, w, sizeof(old));
    const half y = TN(half_of)(part * factor);

    memcpy(w, &y, sizeof(y));
    return wide_of(y) - wide_of(old);
}

static double TN(replace)(float *w, const void *x_data, double factor, size_t n)
{
    const T *x = x_data;
    const T f = (T)factor;
    wide sum[SUM_REGISTERS] = { 0 };
    double rest = 0;
    size_t i = 0;

    for (; i + SUM_STEP <= n; i += SUM_STEP) {
        UNROLL
        for (size_t r = 0; r < SUM_REGISTERS; r++) {
            const size_t at = i + r * WIDE_LANES;
            const wide d = TN(replace_part)(w + at, x + at, f);

            sum[r] += d * d;
        }
    }
    for (; i + WIDE_LANES <= n; i += WIDE_LANES) {
        const wide d = TN(replace_part)(w + i, x + i, f);

        sum[0] += d * d;
    }
    for (; i < n; i++) {
        const float y = (float)(f * x[i]);
        const double d = (double)y - (double)w[i];

        rest += d * d;
        w[i] = y;
    }
    return TN(total)(sum) + rest;
}

#undef VL
#undef NR
#undef PANEL_COPY
#undef PANEL_ELEMENTS
#undef SUM_STEP
