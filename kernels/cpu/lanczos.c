#include "lanczos.h"

#include <math.h>
#include <string.h>

#include "random.h"

size_t lanczos_space(uint32_t n)
{
    return (LANCZOS_STEPS + 2) * dense_stride(n);
}

static void set(const struct engine_ops *ops, void *x, size_t i, double value)
{
    if (ops->element_bytes == sizeof(double))
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}

/* Eigenvalues of the symmetric tridiagonal (diagonal, off) by implicit QL, ascending; `first` gets
 * the first component of each eigenvector. */
static void tridiagonal(double *diagonal, double *off, double *first, uint32_t n)
{
    memset(first, 0, n * sizeof(first[0]));
    first[0] = 1;
    off[n - 1] = 0;
    for (uint32_t l = 0; l < n; l++) {
        for (int sweep = 0; sweep < 60; sweep++) {
            uint32_t m = l;

            while (m + 1 < n && fabs(off[m]) > 1e-15 * (fabs(diagonal[m]) + fabs(diagonal[m + 1])))
                m++;
            if (m == l)
                break;
            double g = (diagonal[l + 1] - diagonal[l]) / (2 * off[l]);
            double r = hypot(g, 1);
            double s = 1, c = 1, p = 0;

            g = diagonal[m] - diagonal[l] + off[l] / (g + copysign(r, g));
            for (uint32_t i = m; i-- > l;) {
                double f = s * off[i];
                const double b = c * off[i];

                r = hypot(f, g);
                off[i + 1] = r;
                if (r == 0) {
                    diagonal[i + 1] -= p;
                    off[m] = 0;
                    break;
                }
                s = f / r;
                c = g / r;
                g = diagonal[i + 1] - p;
                r = (diagonal[i] - g) * s + 2 * c * b;
                p = s * r;
                diagonal[i + 1] = g + p;
                g = c * r - b;
                f = first[i + 1];
                first[i + 1] = s * first[i] + c * f;
                first[i] = c * first[i] - s * f;
            }
            if (r == 0 && m > l + 1)
                continue;
            diagonal[l] -= p;
            off[l] = g;
            off[m] = 0;
        }
    }
}

static void sort(double *value, double *weight, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        const double v = value[i], w = weight[i];
        uint32_t j = i;

        for (; j > 0 && value[j - 1] > v; j--) {
            value[j] = value[j - 1];
            weight[j] = weight[j - 1];
        }
        value[j] = v;
        weight[j] = w;
    }
}

void lanczos_run(const struct engine_ops *ops, const void *g, size_t ldg, uint32_t n, void *space,
                 struct lanczos *out)
{
    const size_t stride = dense_stride(n) * ops->element_bytes;
    char *basis = space;
    double diagonal[LANCZOS_STEPS], off[LANCZOS_STEPS], first[LANCZOS_STEPS];
    const uint32_t steps = n < LANCZOS_STEPS ? n : LANCZOS_STEPS;
    struct fire_random random;
    uint32_t count = 0;
    double norm;

    fire_random_init(&random, 1);
    for (uint32_t i = 0; i < n; i++)
        set(ops, basis, i, fire_random_normal(&random));
    norm = sqrt(ops->dot(basis, basis, n));
    ops->add(basis, basis, 1 / norm - 1, n);
    while (count < steps) {
        const char *v = basis + count * stride;
        char *next = basis + (count + 1) * stride;

        ops->symmetric_vector(g, ldg, n, v, next);
        diagonal[count] = ops->dot(v, next, n);
        for (uint32_t q = 0; q <= count; q++)
            ops->add(next, basis + q * stride, -ops->dot(basis + q * stride, next, n), n);
        norm = sqrt(ops->dot(next, next, n));
        off[count] = norm;
        count++;
        if (norm <= 1e-6 * fabs(diagonal[0]))
            break;
        ops->add(next, next, 1 / norm - 1, n);
    }
    tridiagonal(diagonal, off, first, count);
    out->count = count;
    for (uint32_t i = 0; i < count; i++) {
        out->value[i] = diagonal[i];
        out->weight[i] = first[i] * first[i];
    }
    sort(out->value, out->weight, count);
}
