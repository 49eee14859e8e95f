/* polar_ref: singular values by one-sided Jacobi, and everything else from its definition.
 *
 * One-sided Jacobi rotates pairs of columns of A until all are orthogonal; A = U S V^T is then read
 * off: the columns' lengths are S, their directions U, the product of the rotations V. It is slow,
 * short, and finds small singular values to high relative accuracy. */
#include "polar_ref.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define JACOBI_SWEEPS_MAX 60
#define JACOBI_TOLERANCE  1e-15
#define AUTO_STEPS_MAX    100u /* when a plan gives no limit */

static double *allocate(size_t rows, size_t cols)
{
    const size_t count = rows * cols;

    return count > SIZE_MAX / sizeof(double) ? NULL : calloc(count ? count : 1, sizeof(double));
}

/* `to` (cols x rows) becomes the transpose of `from` (rows x cols). */
static void transpose(const double *from, size_t rows, size_t cols, double *to)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            to[j * rows + i] = from[i * cols + j];
}

static double largest_magnitude(const double *x, size_t count)
{
    double largest = 0.0;

    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(x[i]));
    return largest;
}

static double dot(const double *x, const double *y, size_t count)
{
    double sum = 0.0;

    for (size_t i = 0; i < count; i++)
        sum += x[i] * y[i];
    return sum;
}

/* (x, y) <- (c x - s y, s x + c y) */
static void rotate(double *x, double *y, size_t count, double c, double s)
{
    for (size_t i = 0; i < count; i++) {
        const double old = x[i];

        x[i] = c * old - s * y[i];
        y[i] = s * old + c * y[i];
    }
}

/* One pass over all pairs of the n columns (each `m` long, stored one after the other). Returns the
 * largest cosine between two columns it met. */
static double jacobi_sweep(double *columns, size_t m, size_t n, double *v)
{
    double worst = 0.0;

    for (size_t p = 0; p + 1 < n; p++) {
        for (size_t q = p + 1; q < n; q++) {
            double *const x = columns + p * m;
            double *const y = columns + q * m;
            const double xx = dot(x, x, m);
            const double yy = dot(y, y, m);
            const double xy = dot(x, y, m);
            double cosine, zeta, t, c;

            if (xx == 0.0 || yy == 0.0)
                continue;
            cosine = fabs(xy) / (sqrt(xx) * sqrt(yy));
            worst = fmax(worst, cosine);
            if (cosine <= JACOBI_TOLERANCE)
                continue;
            /* The smaller root of t^2 + 2 zeta t - 1 = 0 makes the two orthogonal. */
            zeta = (yy - xx) / (2.0 * xy);
            t = copysign(1.0, zeta) / (fabs(zeta) + hypot(1.0, zeta));
            c = 1.0 / hypot(1.0, t);
            rotate(x, y, m, c, c * t);
            rotate(v + p * n, v + q * n, n, c, c * t);
        }
    }
    return worst;
}

/* Sorts columns by length, descending, and moves those of v along. */
static void sort_columns(double *columns, size_t m, size_t n, double *v, double *length)
{
    for (size_t j = 0; j < n; j++)
        length[j] = sqrt(dot(columns + j * m, columns + j * m, m));
    for (size_t j = 0; j < n; j++) {
        size_t best = j;

        for (size_t k = j + 1; k < n; k++)
            if (length[k] > length[best])
                best = k;
        if (best == j)
            continue;
        /* A rotation by a quarter turn swaps two columns, up to a sign both sides share. */
        rotate(columns + j * m, columns + best * m, m, 0.0, 1.0);
        rotate(v + j * n, v + best * n, n, 0.0, 1.0);
        const double other = length[j];
        length[j] = length[best];
        length[best] = other;
    }
}

/* SVD of the tall matrix whose n columns (m long) lie one after the other. On return they are the
 * columns of U, v those of V (n x n, column after column). */
static enum fire_status jacobi_svd(double *columns, size_t m, size_t n, double *v, double *sigma)
{
    const double scale = largest_magnitude(columns, m * n);
    double worst = 1.0;

    for (size_t i = 0; i < m * n; i++)
        if (!isfinite(columns[i]))
            return FIRE_BAD_REQUEST;
    for (size_t i = 0; i < n * n; i++)
        v[i] = i % (n + 1) == 0 ? 1.0 : 0.0;
    memset(sigma, 0, n * sizeof(*sigma));
    if (scale == 0.0)
        return FIRE_OK;
    for (size_t i = 0; i < m * n; i++)
        columns[i] /= scale; /* no square may overflow or vanish */

    for (int sweep = 0; sweep < JACOBI_SWEEPS_MAX && worst > JACOBI_TOLERANCE; sweep++)
        worst = jacobi_sweep(columns, m, n, v);
    if (worst > 1e3 * JACOBI_TOLERANCE)
        return FIRE_TOO_LATE;

    sort_columns(columns, m, n, v, sigma);
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < m && sigma[j] > 0.0; i++)
            columns[j * m + i] /= sigma[j];
        sigma[j] *= scale;
    }
    return FIRE_OK;
}

enum fire_status fire_svd_ref(const double *w, uint32_t rows, uint32_t cols, double *u, double *v,
                              double *sigma)
{
    const bool tall = rows >= cols;
    const size_t m = tall ? rows : cols;
    const size_t n = tall ? cols : rows;
    double *columns = allocate(m, n);
    double *right = allocate(n, n);
    enum fire_status status = FIRE_NO_MEMORY;

    if (!columns || !right)
        goto done;
    /* The rows of a wide matrix are the columns of its transpose, as they lie. */
    if (tall)
        transpose(w, rows, cols, columns);
    else
        memcpy(columns, w, m * n * sizeof(*w));

    status = jacobi_svd(columns, m, n, right, sigma);
    if (status == FIRE_OK && u && v) {
        transpose(tall ? columns : right, n, tall ? m : n, u);
        transpose(tall ? right : columns, n, tall ? n : m, v);
    }
done:
    free(columns);
    free(right);
    return status;
}

enum fire_status fire_polar_ref(const double *w, uint32_t rows, uint32_t cols,
                                double rank_tolerance, double *q)
{
    const size_t r = rows < cols ? rows : cols;
    double *u = allocate(rows, r);
    double *v = allocate(cols, r);
    double *sigma = allocate(r, 1);
    enum fire_status status = FIRE_NO_MEMORY;

    if (!u || !v || !sigma)
        goto done;
    status = fire_svd_ref(w, rows, cols, u, v, sigma);
    if (status != FIRE_OK)
        goto done;

    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < cols; j++) {
            double sum = 0.0;

            for (size_t k = 0; k < r && sigma[k] > rank_tolerance * sigma[0]; k++)
                sum += u[i * r + k] * v[j * r + k];
            q[i * cols + j] = sum;
        }
    }
done:
    free(u);
    free(v);
    free(sigma);
    return status;
}

/* G = X^T X of a tall row-major X. */
static void gram(const double *x, size_t rows, size_t cols, double *g)
{
    memset(g, 0, cols * cols * sizeof(*g));
    for (size_t k = 0; k < rows; k++)
        for (size_t i = 0; i < cols; i++)
            for (size_t j = 0; j < cols; j++)
                g[i * cols + j] += x[k * cols + i] * x[k * cols + j];
}

/* C = A B with A rows x n and B n x n. */
static void multiply(const double *a, const double *b, size_t rows, size_t n, double *c)
{
    memset(c, 0, rows * n * sizeof(*c));
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < n; k++)
            for (size_t j = 0; j < n; j++)
                c[i * n + j] += a[i * n + k] * b[k * n + j];
}

/* X <- X p(G) for a tall X, by Horner's rule: p = c0 I + G (c1 I + G (c2 I + …)). */
static enum fire_status polynomial_step(double *x, size_t rows, size_t cols,
                                        const struct fire_polynomial_step *step)
{
    double *g = allocate(cols, cols);
    double *p = allocate(cols, cols);
    double *next = allocate(rows > cols ? rows : cols, cols);
    enum fire_status status = FIRE_NO_MEMORY;

    if (!g || !p || !next)
        goto done;
    gram(x, rows, cols, g);
    for (uint32_t term = step->terms; term-- > 0;) {
        multiply(p, g, cols, cols, next);
        memcpy(p, next, cols * cols * sizeof(*p));
        for (size_t i = 0; i < cols; i++)
            p[i * cols + i] += step->c[term];
    }
    multiply(x, p, rows, cols, next);
    memcpy(x, next, rows * cols * sizeof(*x));
    status = FIRE_OK;
done:
    free(g);
    free(p);
    free(next);
    return status;
}

enum fire_status fire_polynomial_ref(double *x, uint32_t rows, uint32_t cols,
                                     const struct fire_polynomial_step *steps, uint32_t step_count)
{
    enum fire_status status = FIRE_OK;
    double *turned;

    if (rows >= cols) {
        for (uint32_t i = 0; i < step_count && status == FIRE_OK; i++)
            status = polynomial_step(x, rows, cols, &steps[i]);
        return status;
    }
    turned = allocate(cols, rows);
    if (!turned)
        return FIRE_NO_MEMORY;
    transpose(x, rows, cols, turned);
    for (uint32_t i = 0; i < step_count && status == FIRE_OK; i++)
        status = polynomial_step(turned, cols, rows, &steps[i]);
    transpose(turned, cols, rows, x);
    free(turned);
    return status;
}

double fire_dfi_ref(const double *w, uint32_t rows, uint32_t cols)
{
    const bool tall = rows >= cols;
    const size_t m = tall ? rows : cols;
    const size_t n = tall ? cols : rows;
    const size_t along = tall ? cols : 1;  /* from one element of a column to the next */
    const size_t across = tall ? 1 : cols; /* from one column to the next */
    double sum = 0.0;

    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            double entry = i == j ? -1.0 : 0.0;

            for (size_t k = 0; k < m; k++)
                entry += w[k * along + i * across] * w[k * along + j * across];
            sum += entry * entry;
        }
    }
    return sum;
}

/* The norm `plan` divides by, before eps. */
static enum fire_status plan_norm(const struct fire_plan *plan, const double *w, double *norm)
{
    const size_t rows = plan->rows;
    const size_t cols = plan->cols;
    const double scale = largest_magnitude(w, rows * cols);
    double *x = allocate(rows, cols);
    double *g = allocate(cols, cols);
    double *square = allocate(cols, cols);
    double *sigma = allocate(cols, 1);
    enum fire_status status = x && g && square && sigma ? FIRE_OK : FIRE_NO_MEMORY;

    *norm = 0.0;
    if (status != FIRE_OK || scale == 0.0)
        goto done;
    for (size_t i = 0; i < rows * cols; i++)
        x[i] = w[i] / scale;
    switch (plan->normalize) {
    case FIRE_NORMALIZE_AUTO:
    case FIRE_NORMALIZE_FROBENIUS: *norm = scale * sqrt(dot(x, x, rows * cols)); break;
    case FIRE_NORMALIZE_SPECTRAL:
        status = fire_svd_ref(x, plan->rows, plan->cols, NULL, NULL, sigma);
        *norm = scale * sigma[0];
        break;
    case FIRE_NORMALIZE_SCHATTEN:
        gram(x, rows, cols, g);
        multiply(g, g, cols, cols, square);
        *norm = scale * sqrt(sqrt(sqrt(dot(square, square, cols * cols))));
        break;
    }
done:
    free(x);
    free(g);
    free(square);
    free(sigma);
    return status;
}

/* The DfI `plan` compares with its target. */
static double plan_dfi(const struct fire_plan *plan, const double *x)
{
    const double dfi = fire_dfi_ref(x, plan->rows, plan->cols);

    if (plan->target_form == FIRE_TARGET_FULL && plan->in > plan->out)
        return dfi + (double)(plan->in - plan->out);
    return dfi;
}

/* Normalises and runs the named polynomial, counted or until the target. */
static enum fire_status plan_polynomial(const struct fire_plan *plan, const double *w, double *x)
{
    const bool counted = plan->steps != FIRE_STEPS_AUTO;
    const uint32_t limit = plan->max_steps ? plan->max_steps : AUTO_STEPS_MAX;
    const uint32_t steps = counted ? (uint32_t)plan->steps : limit;
    const uint32_t check = plan->check ? plan->check : 1;
    double norm;
    enum fire_status status = plan_norm(plan, w, &norm);

    if (status != FIRE_OK)
        return status;
    norm += plan->eps;
    for (size_t i = 0; i < (size_t)plan->rows * plan->cols; i++)
        x[i] = norm > 0.0 ? w[i] / norm : 0.0;

    for (uint32_t done = 0; done < steps; done++) {
        const uint32_t last = plan->step_count - 1;

        status = polynomial_step(x, plan->rows, plan->cols, &plan->step[done < last ? done : last]);
        if (status != FIRE_OK)
            return status;
        if (!counted && done % check == 0 && plan_dfi(plan, x) <= plan->target)
            break;
    }
    return FIRE_OK;
}

/* c of W' = c Q. */
static enum fire_status plan_scale(const struct fire_plan *plan, const double *w, double *scale)
{
    const uint32_t r = plan->cols;
    double *sigma;
    double sum = 0.0;
    double squares = 0.0;
    enum fire_status status;

    *scale = plan->scale_factor;
    if (plan->scale != FIRE_SCALE_KEEP_NORM && plan->scale != FIRE_SCALE_MEAN_SIGMA)
        return FIRE_OK;
    sigma = allocate(r, 1);
    if (!sigma)
        return FIRE_NO_MEMORY;
    status = fire_svd_ref(w, plan->rows, plan->cols, NULL, NULL, sigma);
    for (uint32_t k = 0; k < r; k++) {
        sum += sigma[k];
        squares += sigma[0] > 0.0 ? (sigma[k] / sigma[0]) * (sigma[k] / sigma[0]) : 0.0;
    }
    *scale *= plan->scale == FIRE_SCALE_KEEP_NORM ? sigma[0] * sqrt(squares / r) : sum / r;
    free(sigma);
    return status;
}

enum fire_status fire_plan_ref(const struct fire_plan *plan, const double *w, double *q,
                               double *result)
{
    const size_t count = (size_t)plan->rows * plan->cols;
    double *x = allocate(plan->rows, plan->cols);
    double scale = 1.0;
    double blend = 1.0;
    double norm = 0.0;
    enum fire_status status = FIRE_NO_MEMORY;

    FIRE_ASSERT(plan->rows >= plan->cols);
    if (!x)
        return status;
    for (size_t i = 0; i < count; i++)
        norm = hypot(norm, w[i]);

    if (plan->kind == FIRE_PLAN_ANALYZE || norm < plan->min_norm) {
        memcpy(x, w, count * sizeof(*x));
        status = FIRE_OK;
    } else {
        blend = plan->blend;
        status = plan->kind == FIRE_PLAN_CONVERGE
                     ? fire_polar_ref(w, plan->rows, plan->cols, plan->rows * DBL_EPSILON, x)
                     : plan_polynomial(plan, w, x);
        if (status == FIRE_OK)
            status = plan_scale(plan, w, &scale);
    }
    for (size_t i = 0; i < count && status == FIRE_OK; i++) {
        if (q)
            q[i] = x[i];
        result[i] = blend * scale * x[i] + (1.0 - blend) * w[i];
    }
    free(x);
    return status;
}
