/* matrices: random isometries are polar factors of Gaussian matrices, which makes them uniformly
 * distributed; everything else is a product with them. */
#include "matrices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lapack.h"
#include "status.h"

static const struct fire_lapack *lapack_or_stop(void)
{
    const struct fire_lapack *lapack;
    struct fire_error error;

    if (fire_lapack_load(&lapack, &error) != FIRE_OK) {
        fprintf(stderr, "%s\n", error.message);
        abort();
    }
    return lapack;
}

static void *memory_or_stop(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);

    FIRE_ASSERT(memory != NULL);
    return memory;
}

double *matrix_alloc(size_t rows, size_t cols)
{
    return memory_or_stop(rows * cols * sizeof(double));
}

void matrix_gaussian(struct fire_random *random, uint32_t rows, uint32_t cols, double *w)
{
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        w[i] = fire_random_normal(random);
}

void matrix_orthogonal(struct fire_random *random, uint32_t rows, uint32_t cols, double *w)
{
    const uint32_t r = rows < cols ? rows : cols;
    double *gaussian = matrix_alloc(rows, cols);

    matrix_gaussian(random, rows, cols, gaussian);
    matrix_polar(gaussian, rows, cols, r, NULL, w);
    free(gaussian);
}

void matrix_with_spectrum(struct fire_random *random, uint32_t rows, uint32_t cols,
                          const double *sigma, double *w)
{
    const uint32_t r = rows < cols ? rows : cols;
    double *left = matrix_alloc(rows, r);
    double *right = matrix_alloc(r, cols);

    matrix_orthogonal(random, rows, r, left);
    matrix_orthogonal(random, r, cols, right);
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < r; k++)
            left[i * r + k] *= sigma[k];
    matrix_multiply(left, right, rows, r, cols, w);
    free(left);
    free(right);
}

void spectrum_log_spaced(uint32_t count, double kappa, double *sigma)
{
    for (uint32_t k = 0; k < count; k++)
        sigma[k] = count == 1 ? 1.0 : pow(kappa, -(double)k / (count - 1));
}

static int descending(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;

    return (a < b) - (a > b);
}

void spectrum_bulk_and_spikes(struct fire_random *random, uint32_t count, uint32_t spikes,
                              double *sigma)
{
    for (uint32_t k = 0; k < count; k++)
        sigma[k] = k < spikes ? pow(10.0, 1.0 + fire_random_uniform(random))
                              : 0.5 + 0.5 * fire_random_uniform(random);
    qsort(sigma, count, sizeof(*sigma), descending);
}

void spectrum_one_small(uint32_t count, double kappa, double *sigma)
{
    for (uint32_t k = 0; k < count; k++)
        sigma[k] = k + 1 < count ? 1 : 1 / kappa;
}

void spectrum_spikes(struct fire_random *random, uint32_t count, uint32_t spikes, double kappa,
                     double *sigma)
{
    for (uint32_t k = 0; k < count; k++)
        sigma[k] = k >= spikes ? 0.5 + 0.5 * fire_random_uniform(random) : kappa;
}

void spectrum_two_bulks(struct fire_random *random, uint32_t count, double kappa, double *sigma)
{
    for (uint32_t k = 0; k < count; k++)
        sigma[k] = (0.8 + 0.2 * fire_random_uniform(random)) / (k < count / 2 ? 1 : kappa);
}

void spectrum_deficient(struct fire_random *random, uint32_t count, uint32_t rank, double *sigma)
{
    for (uint32_t k = 0; k < count; k++)
        sigma[k] = k < rank ? 0.2 + 0.8 * fire_random_uniform(random) : 0.0;
    qsort(sigma, count, sizeof(*sigma), descending);
}

void matrix_transpose(const double *from, uint32_t rows, uint32_t cols, double *to)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            to[j * rows + i] = from[i * cols + j];
}

/* A row-major matrix is its transpose to Fortran, so C^T = B^T A^T needs no copy. */
void matrix_multiply(const double *a, const double *b, uint32_t rows, uint32_t inner, uint32_t cols,
                     double *c)
{
    const int m = (int)cols;
    const int n = (int)rows;
    const int k = (int)inner;
    const double one = 1.0;
    const double zero = 0.0;

    lapack_or_stop()->dgemm("N", "N", &m, &n, &k, &one, b, &m, a, &k, &zero, c, &m);
}

double matrix_distance(const double *a, const double *b, size_t count)
{
    double sum = 0.0;

    for (size_t i = 0; i < count; i++)
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sqrt(sum);
}

double matrix_norm(const double *a, size_t count)
{
    double sum = 0.0;

    for (size_t i = 0; i < count; i++)
        sum += a[i] * a[i];
    return sqrt(sum);
}

double matrix_dfi(const double *w, uint32_t rows, uint32_t cols)
{
    const size_t r = rows < cols ? rows : cols;
    const int n = (int)r;
    const int k = (int)(rows < cols ? cols : rows);
    const int ld = (int)cols;
    const double one = 1.0;
    const double zero = 0.0;
    const char *const first = rows < cols ? "T" : "N";
    const char *const second = rows < cols ? "N" : "T";
    double *g = matrix_alloc(r, r);
    double sum = 0.0;

    lapack_or_stop()->dgemm(first, second, &n, &n, &k, &one, w, &ld, w, &ld, &zero, g, &n);
    for (size_t i = 0; i < r * r; i++) {
        const double entry = g[i] - (i % (r + 1) == 0 ? 1.0 : 0.0);
        sum += entry * entry;
    }
    free(g);
    return sum;
}

/* To Fortran W is W^T = V S U^T, column-major: what it calls U is our V^T in row-major, and what it
 * calls V^T is our U. */
void matrix_svd(const double *w, uint32_t rows, uint32_t cols, double *u, double *sigma, double *vt)
{
    const struct fire_lapack *lapack = lapack_or_stop();
    const int m = (int)cols;
    const int n = (int)rows;
    const int r = m < n ? m : n;
    const int query = -1;
    int info = 0;
    double size = 0.0;
    double *copy = matrix_alloc(rows, cols);
    int *iwork = memory_or_stop(8 * (size_t)r * sizeof(int));
    double *work;
    int work_count;

    memcpy(copy, w, (size_t)rows * cols * sizeof(*w));
    lapack->dgesdd("S", &m, &n, copy, &m, sigma, vt, &m, u, &r, &size, &query, iwork, &info);
    work_count = (int)size;
    work = matrix_alloc((size_t)work_count, 1);
    lapack->dgesdd("S", &m, &n, copy, &m, sigma, vt, &m, u, &r, work, &work_count, iwork, &info);
    FIRE_ASSERT(info == 0);
    free(copy);
    free(iwork);
    free(work);
}

void matrix_polar(const double *w, uint32_t rows, uint32_t cols, uint32_t rank, double *sigma,
                  double *q)
{
    const uint32_t r = rows < cols ? rows : cols;
    double *u = matrix_alloc(rows, r);
    double *vt = matrix_alloc(r, cols);
    double *values = matrix_alloc(r, 1);

    FIRE_ASSERT(rank <= r);
    matrix_svd(w, rows, cols, u, values, vt);
    for (size_t i = 0; i < rows; i++)
        for (size_t k = rank; k < r; k++)
            u[i * r + k] = 0.0;
    matrix_multiply(u, vt, rows, r, cols, q);
    if (sigma)
        memcpy(sigma, values, r * sizeof(*sigma));
    free(u);
    free(vt);
    free(values);
}

void matrix_round(double *w, size_t count)
{
    for (size_t i = 0; i < count; i++)
        w[i] = (double)(float)w[i];
}

void matrix_to_f32(const double *w, size_t count, float *x)
{
    for (size_t i = 0; i < count; i++)
        x[i] = (float)w[i];
}

void matrix_from_f32(const float *x, size_t count, double *w)
{
    for (size_t i = 0; i < count; i++)
        w[i] = (double)x[i];
}
