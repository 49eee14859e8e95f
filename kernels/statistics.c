/* statistics: sums over a Gram matrix, and its largest eigenvalue by a Lanczos iteration.
 *
 * Passes over G run for every matrix of every batch, so they are written for vector units: eight
 * partial sums, added up in a fixed order at the end. The lanes are part of the definition, and no
 * multiply-add is fused, so any instruction set gives the same bits. */
#include "statistics.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

#define LANES 8

#define SPECTRAL_STEPS_MAX 120u
#define SPECTRAL_TOLERANCE 1e-5
#define LANCZOS_SEED       0x46495245u
#define LANCZOS_CHECK      4u   /* Ritz values are computed after every so many products */
#define ROOT_STEPS_MAX     200  /* bisection alone needs some 60 */
#define REMAINDER_SHORT    1e-3 /* of the largest alpha: shorter ones are made orthogonal again */
#define REMAINDER_PASSES   2    /* so often */

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

/* Four lanes at a time, two of them a round: what fits the registers compilers handle well. They go
 * by address because passing them by value would depend on the instruction set. */
typedef double quad __attribute__((vector_size(4 * sizeof(double))));
typedef float narrow_quad __attribute__((vector_size(4 * sizeof(float))));

INLINE void quad_load(quad *x, const void *data, bool wide, size_t index)
{
    narrow_quad narrow;

    if (wide) {
        memcpy(x, (const double *)data + index, sizeof(*x));
        return;
    }
    memcpy(&narrow, (const float *)data + index, sizeof(narrow));
    *x = __builtin_convertvector(narrow, quad);
}

INLINE double quad_sum(const quad *x, const quad *y)
{
    const quad s = *x + *y;

    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* y += factor * x on eight elements, where x has been loaded already */
INLINE void quad_add(double *y, const quad *x0, const quad *x1, double factor)
{
    quad y0, y1;

    memcpy(&y0, y, sizeof(y0));
    memcpy(&y1, y + 4, sizeof(y1));
    y0 += *x0 * factor;
    y1 += *x1 * factor;
    memcpy(y, &y0, sizeof(y0));
    memcpy(y + 4, &y1, sizeof(y1));
}

INLINE double element(const void *data, bool wide, size_t index)
{
    return wide ? ((const double *)data)[index] : (double)((const float *)data)[index];
}

/* Sum of g_ij^2 over j > i. */
INLINE double squares_above_body(const struct fire_gram *gram, bool wide)
{
    const void *const data = gram->data;
    const size_t size = gram->size;
    quad sum0 = { 0 };
    quad sum1 = { 0 };
    double tail = 0.0;

    for (size_t i = 0; i < size; i++) {
        const size_t row = i * gram->stride;
        quad x0, x1;
        size_t j = i + 1;

        for (; j + LANES <= size; j += LANES) {
            quad_load(&x0, data, wide, row + j);
            quad_load(&x1, data, wide, row + j + 4);
            sum0 += x0 * x0;
            sum1 += x1 * x1;
        }
        for (; j < size; j++) {
            const double g = element(data, wide, row + j);
            tail += g * g;
        }
    }
    return quad_sum(&sum0, &sum1) + tail;
}

#define STRIP 4u /* rows of G that share a pass over v and y */

/* Row i of G from the diagonal to column `end`: its part of y = G v. */
INLINE void multiply_row(const struct fire_gram *gram, bool wide, size_t i, size_t end,
                         const double *v, double *y)
{
    const size_t row = i * gram->stride;
    double sum = element(gram->data, wide, row + i) * v[i];

    for (size_t j = i + 1; j < end; j++) {
        const double entry = element(gram->data, wide, row + j);
        sum += entry * v[j];
        y[j] += entry * v[i];
    }
    y[i] += sum;
}

/* STRIP rows from row i on, columns [j, size). */
INLINE void multiply_strip(const struct fire_gram *gram, bool wide, size_t i, size_t j,
                           const double *v, double *y)
{
    const void *const data = gram->data;
    const size_t size = gram->size;
    quad sum[STRIP] = { { 0 } };
    double tail[STRIP] = { 0 };

    for (; j + 4 <= size; j += 4) {
        quad g, vj, yj;

        quad_load(&vj, v, true, j);
        quad_load(&yj, y, true, j);
        UNROLL
        for (size_t r = 0; r < STRIP; r++) {
            quad_load(&g, data, wide, (i + r) * gram->stride + j);
            sum[r] += g * vj;
            yj += g * v[i + r];
        }
        memcpy(y + j, &yj, sizeof(yj));
    }
    for (; j < size; j++) {
        for (size_t r = 0; r < STRIP; r++) {
            const double entry = element(data, wide, (i + r) * gram->stride + j);
            tail[r] += entry * v[j];
            y[j] += entry * v[i + r];
        }
    }
    for (size_t r = 0; r < STRIP; r++)
        y[i + r] += (sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3]) + tail[r];
}

/* y = G v, reading each g_ij of the upper triangle once: for row i and, mirrored, for row j. */
INLINE void multiply_body(const struct fire_gram *gram, bool wide, const double *v, double *y)
{
    const size_t size = gram->size;
    size_t i = 0;

    memset(y, 0, size * sizeof(*y));
    for (; i + STRIP <= size; i += STRIP) {
        for (size_t r = 0; r < STRIP; r++) /* the triangle on the diagonal */
            multiply_row(gram, wide, i + r, i + STRIP, v, y);
        multiply_strip(gram, wide, i, i + STRIP, v, y);
    }
    for (; i < size; i++)
        multiply_row(gram, wide, i, size, v, y);
}

INLINE double dot_body(const double *x, const double *y, size_t count)
{
    quad sum0 = { 0 };
    quad sum1 = { 0 };
    quad x0, x1, y0, y1;
    double tail = 0.0;
    size_t i = 0;

    for (; i + LANES <= count; i += LANES) {
        quad_load(&x0, x, true, i);
        quad_load(&x1, x, true, i + 4);
        quad_load(&y0, y, true, i);
        quad_load(&y1, y, true, i + 4);
        sum0 += x0 * y0;
        sum1 += x1 * y1;
    }
    for (; i < count; i++)
        tail += x[i] * y[i];
    return quad_sum(&sum0, &sum1) + tail;
}

/* w less its parts along all `count` vectors of the basis. Returns the part along the newest. */
INLINE double part_from_basis(const double *basis, uint32_t count, size_t size, double *w)
{
    double alpha = 0.0;

    for (uint32_t k = count; k-- > 0;) {
        const double *v = basis + k * size;
        const double part = dot_body(v, w, size);
        quad v0, v1;
        size_t i = 0;

        if (k == count - 1)
            alpha = part;
        for (; i + LANES <= size; i += LANES) {
            quad_load(&v0, v, true, i);
            quad_load(&v1, v, true, i + 4);
            quad_add(w + i, &v0, &v1, -part);
        }
        for (; i < size; i++)
            w[i] -= part * v[i];
    }
    return alpha;
}

/* w = G v for the newest v of the Lanczos basis, less its parts along all of that. Returns
 * v . G v. */
INLINE double lanczos_body(const struct fire_gram *gram, bool wide, const double *basis,
                           uint32_t count, double *w)
{
    const size_t size = gram->size;

    if (wide && gram->multiply)
        gram->multiply(gram->data, gram->stride, gram->size, basis + (count - 1) * size, w);
    else
        multiply_body(gram, wide, basis + (count - 1) * size, w);
    return part_from_basis(basis, count, size, w);
}

static double squares_above_any(const struct fire_gram *gram)
{
    return gram->dtype == FIRE_F64 ? squares_above_body(gram, true)
                                   : squares_above_body(gram, false);
}

static double lanczos_any(const struct fire_gram *gram, const double *basis, uint32_t count,
                          double *w)
{
    return gram->dtype == FIRE_F64 ? lanczos_body(gram, true, basis, count, w)
                                   : lanczos_body(gram, false, basis, count, w);
}

#if defined(__x86_64__)
/* AVX2 without FMA: same bits, at twice the rate of the baseline. */
__attribute__((target("avx2"))) static double squares_above_avx2(const struct fire_gram *gram)
{
    return gram->dtype == FIRE_F64 ? squares_above_body(gram, true)
                                   : squares_above_body(gram, false);
}

__attribute__((target("avx2"))) static double lanczos_avx2(const struct fire_gram *gram,
                                                           const double *basis, uint32_t count,
                                                           double *w)
{
    return gram->dtype == FIRE_F64 ? lanczos_body(gram, true, basis, count, w)
                                   : lanczos_body(gram, false, basis, count, w);
}
#endif

static double squares_above(const struct fire_gram *gram)
{
    FIRE_ASSERT(gram->dtype == FIRE_F32 || gram->dtype == FIRE_F64);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return squares_above_avx2(gram);
#endif
    return squares_above_any(gram);
}

static double lanczos(const struct fire_gram *gram, const double *basis, uint32_t count, double *w)
{
    FIRE_ASSERT(gram->dtype == FIRE_F32 || gram->dtype == FIRE_F64);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return lanczos_avx2(gram, basis, count, w);
#endif
    return lanczos_any(gram, basis, count, w);
}

/* ||w||, after what rounding has left of it along the basis is taken out too: where a spectrum has
 * few distinct values w becomes so short that it is mostly that, and as a vector of the basis it
 * would bring up values that G does not have. */
static double remainder_length(const double *basis, uint32_t count, size_t size, double scale,
                               double *w)
{
    double length = sqrt(dot_body(w, w, size));

    for (int i = 0; i < REMAINDER_PASSES && length < REMAINDER_SHORT * scale; i++) {
        (void)part_from_basis(basis, count, size, w);
        length = sqrt(dot_body(w, w, size));
    }
    return length;
}

static double diagonal(const struct fire_gram *gram, uint32_t i)
{
    return element(gram->data, gram->dtype == FIRE_F64, i * (gram->stride + 1));
}

/* ||t G - I||_F^2 of the stored G, given the sum of squares above its diagonal. */
static double distance_from_identity(const struct fire_gram *gram, double t, double above)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < gram->size; i++) {
        const double difference = t * diagonal(gram, i) - 1.0;
        sum += difference * difference;
    }
    return sum + 2.0 * (t * sqrt(above)) * (t * sqrt(above));
}

double fire_gram_dfi(const struct fire_gram *gram)
{
    return distance_from_identity(gram, gram->factor, squares_above(gram));
}

void fire_moment_from_gram(const struct fire_gram *gram, uint32_t out, uint32_t in,
                           struct fire_moment *moment)
{
    const double above = squares_above(gram);
    const double r = gram->size;
    double trace = 0.0;
    double squares = 2.0 * above;

    FIRE_ASSERT(gram->size == (out < in ? out : in));
    for (uint32_t i = 0; i < gram->size; i++) {
        const double g = diagonal(gram, i);
        trace += g;
        squares += g * g;
    }
    moment->dfi = distance_from_identity(gram, gram->factor, above);
    moment->dfi_full = moment->dfi + (in > out ? (double)(in - out) : 0.0);
    moment->dfi_mean = moment->dfi / r;
    moment->norm = sqrt(gram->factor) * sqrt(trace);
    if (squares > 0.0) {
        moment->dfi_scale_free = distance_from_identity(gram, trace / squares, above);
        moment->participation = trace / squares * trace;
    } else {
        moment->dfi_scale_free = r; /* no t brings the zero matrix nearer */
        moment->participation = NAN;
    }
}

/* The tridiagonal matrix T that Lanczos builds: `count` diagonal entries, count - 1 beside them. */
struct tridiagonal {
    const double *alpha;
    const double *beta;
    uint32_t count;
};

/* Whether x lies above every eigenvalue of T, i.e. all pivots of x I - T are positive; then `step`
 * is how far Newton's method would go down from x towards the largest one. */
static bool above_spectrum(const struct tridiagonal *t, double x, double *step)
{
    double pivot = x - t->alpha[0];
    double slope = 1.0;
    double sum = 0.0;

    for (uint32_t i = 1;; i++) {
        if (!(pivot > 0.0))
            return false;
        sum += slope / pivot;
        if (i == t->count)
            break;
        const double ratio = t->beta[i - 1] / pivot;
        slope = 1.0 + ratio * ratio * slope;
        pivot = x - t->alpha[i] - ratio * t->beta[i - 1];
    }
    *step = 1.0 / sum;
    return true;
}

/* The largest eigenvalue of T, between `low` and the bound of Gershgorin's circles: Newton's method
 * from above, halving the interval whenever that is the longer step. */
static double tridiagonal_largest(const struct tridiagonal *t, double low)
{
    double high = low;
    double x;

    for (uint32_t i = 0; i < t->count; i++) {
        const double left = i > 0 ? t->beta[i - 1] : 0.0;
        const double right = i + 1 < t->count ? t->beta[i] : 0.0;

        low = fmax(low, t->alpha[i]);
        high = fmax(high, t->alpha[i] + left + right);
    }
    x = high;
    for (int i = 0; i < ROOT_STEPS_MAX && high - low > 2.0 * DBL_EPSILON * high; i++) {
        const double middle = low + 0.5 * (high - low);
        double step;

        if (above_spectrum(t, x, &step)) {
            high = x;
            if (step <= DBL_EPSILON * high)
                break;
            x = fmin(x - step, low + 0.5 * (high - low));
        } else {
            low = fmax(low, x);
            x = middle;
        }
        if (!(x > low && x < high))
            x = low + 0.5 * (high - low);
    }
    return high;
}

/* |last component| of the unit eigenvector of T to its largest eigenvalue. The recurrence runs from
 * the end, the direction in which the components of a converged vector grow. */
static double last_component(const struct tridiagonal *t, double eigenvalue)
{
    const double least = DBL_EPSILON * eigenvalue;
    double pivot = fmax(eigenvalue - t->alpha[t->count - 1], least);
    double component = 1.0;
    double squares = 1.0;

    for (uint32_t i = t->count - 1; i-- > 0;) {
        component *= pivot / t->beta[i];
        squares += component * component;
        pivot = fmax(eigenvalue - t->alpha[i] - t->beta[i] * (t->beta[i] / pivot), least);
    }
    return 1.0 / sqrt(squares);
}

/* Whether the largest Ritz value is within `tolerance` of an eigenvalue of G: its error is at most
 * the residual, and at most residual^2 / gap when no other Ritz value is nearer than the gap. */
static bool converged(const struct tridiagonal *t, double largest, double tolerance, double beta)
{
    const double allowed = tolerance * largest;
    const double residual = beta * last_component(t, largest);
    double x, pivot;
    uint32_t above = 0;

    if (residual <= allowed)
        return true;
    x = largest - residual * (residual / allowed);
    pivot = x - t->alpha[0];
    for (uint32_t i = 1;; i++) {
        if (!(pivot > 0.0))
            above++;
        if (i == t->count)
            return above <= 1;
        if (pivot == 0.0)
            pivot = -DBL_EPSILON * allowed;
        pivot = x - t->alpha[i] - t->beta[i - 1] * (t->beta[i - 1] / pivot);
    }
}

/* Since when the largest Ritz value has looked converged. */
struct settled {
    uint32_t products; /* 0: it does not */
    double value;
};

/* A Ritz value may converge to the second eigenvalue first, when the start vector happens to have
 * next to nothing of the first; more products bring that one up. So a value counts only once it
 * has stood still for half as many products again. */
static bool settle(struct settled *settled, uint32_t products, double value, double tolerance)
{
    if (settled->products == 0 || value > (1.0 + tolerance) * settled->value)
        *settled = (struct settled){ products, value };
    return 2 * products >= 3 * settled->products + LANCZOS_CHECK;
}

static void start_vector(double *v, size_t size)
{
    struct fire_random random;
    double length;

    fire_random_init(&random, LANCZOS_SEED);
    for (size_t i = 0; i < size; i++)
        v[i] = fire_random_normal(&random);
    length = sqrt(dot_body(v, v, size));
    for (size_t i = 0; i < size; i++)
        v[i] /= length;
}

enum fire_status fire_gram_largest(const struct fire_gram *gram, uint32_t steps_max,
                                   double tolerance, double *value)
{
    const size_t size = gram->size;
    const uint32_t steps = steps_max < size ? steps_max : (uint32_t)size;
    /* `steps` vectors and the one being made, then alpha and beta */
    double *basis = malloc(((steps + 1) * size + 2 * (size_t)steps) * sizeof(*basis));
    double *alpha, *beta;
    double largest = 0.0, scale = 0.0;
    struct settled settled = { 0 };
    enum fire_status status = FIRE_TOO_LATE;

    FIRE_ASSERT(steps > 0);
    *value = 0.0;
    if (!basis)
        return FIRE_NO_MEMORY;
    alpha = basis + (steps + 1) * size;
    beta = alpha + steps;
    start_vector(basis, size);

    for (uint32_t k = 0; k < steps && status != FIRE_OK; k++) {
        const struct tridiagonal t = { alpha, beta, k + 1 };
        double *w = basis + (k + 1) * size;

        alpha[k] = lanczos(gram, basis, k + 1, w);
        scale = fmax(scale, alpha[k]);
        beta[k] = k + 1 == size ? 0.0 : remainder_length(basis, k + 1, size, scale, w);

        if (beta[k] <= tolerance * alpha[k] || k + 1 == steps || (k + 1) % LANCZOS_CHECK == 0) {
            largest = tridiagonal_largest(&t, largest);
            if (!converged(&t, largest, tolerance, beta[k]))
                settled = (struct settled){ 0 };
            else if (settle(&settled, k + 1, largest, tolerance) ||
                     beta[k] <= DBL_EPSILON * largest) /* nothing is left to look at */
                status = FIRE_OK;
        }
        for (size_t i = 0; i < size && status != FIRE_OK; i++)
            w[i] /= beta[k];
    }
    free(basis);
    *value = gram->factor * largest;
    return status;
}

enum fire_status fire_moment_spectral_norm(const struct fire_gram *gram, struct fire_moment *moment)
{
    double largest;
    const enum fire_status status =
        fire_gram_largest(gram, SPECTRAL_STEPS_MAX, SPECTRAL_TOLERANCE, &largest);

    if (status != FIRE_OK)
        return status;
    moment->spectral_norm = sqrt(largest);
    moment->stable_rank = largest > 0.0 ? moment->norm / largest * moment->norm : NAN;
    return FIRE_OK;
}
