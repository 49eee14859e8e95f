/* statistics_values: singular values by LAPACK and what follows from them; units and features from
 * activations. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lapack.h"
#include "statistics.h"

/* Below this ratio of eigenvalues of X^T X (kappa above 1e5) the singular values come from an SVD
 * of X: squaring has cost the small ones half their digits. */
#define GRAM_RATIO_MIN 1e-10

#define SRANK_DELTA 0.01
#define ZERO_SCORE  1e-8 /* what "isclose to 0" means */

/* One element of any dtype; the data may come from a file, at any address. */
static double any_element(const void *data, enum fire_dtype dtype, size_t index)
{
    const unsigned char *at = (const unsigned char *)data + index * fire_dtype_bytes(dtype);
    double wide = 0.0;
    float single;
    uint16_t half;

    switch (dtype) {
    case FIRE_F64: memcpy(&wide, at, sizeof(wide)); return wide;
    case FIRE_F32: memcpy(&single, at, sizeof(single)); return (double)single;
    case FIRE_BF16: memcpy(&half, at, sizeof(half)); return (double)fire_bf16_to_f32(half);
    case FIRE_F16: memcpy(&half, at, sizeof(half)); return (double)fire_f16_to_f32(half);
    }
    return wide;
}

/* An int for Fortran, which the callers keep within range. */
static int fortran_int(uint64_t value)
{
    FIRE_ASSERT(value <= INT_MAX);
    return (int)value;
}

/* Eigenvalues of X^T X, ascending, into `values`. FIRE_TOO_LATE: LAPACK gave up. */
static enum fire_status gram_eigenvalues(const struct fire_lapack *lapack, const double *x,
                                         uint32_t rows, uint32_t cols, double *values)
{
    const int n = fortran_int(cols);
    const int k = fortran_int(rows);
    const double one = 1.0;
    const double zero = 0.0;
    double work_size = 0.0;
    int iwork_size = 0;
    int query = -1;
    int info = 0;
    double *g = malloc((size_t)cols * cols * sizeof(*g));
    double *work = NULL;
    int *iwork = NULL;
    enum fire_status status = FIRE_NO_MEMORY;

    if (!g)
        goto done;
    lapack->dsyevd("N", "L", &n, g, &n, values, &work_size, &query, &iwork_size, &query, &info);
    const int work_count = (int)work_size;
    work = malloc((size_t)work_count * sizeof(*work));
    iwork = malloc((size_t)iwork_size * sizeof(*iwork));
    if (!work || !iwork)
        goto done;
    /* A row-major X is X^T to Fortran. */
    lapack->dgemm("N", "T", &n, &n, &k, &one, x, &n, x, &n, &zero, g, &n);
    lapack->dsyevd("N", "L", &n, g, &n, values, work, &work_count, iwork, &iwork_size, &info);
    status = info == 0 ? FIRE_OK : FIRE_TOO_LATE;
done:
    free(g);
    free(work);
    free(iwork);
    return status;
}

/* Singular values of X, descending; X is overwritten. */
static enum fire_status svd_values(const struct fire_lapack *lapack, double *x, uint32_t rows,
                                   uint32_t cols, double *values)
{
    const int m = fortran_int(cols);
    const int n = fortran_int(rows);
    const int one = 1;
    double unused = 0.0;
    double work_size = 0.0;
    int query = -1;
    int info = 0;
    int *iwork = malloc(8 * (size_t)cols * sizeof(*iwork));
    double *work = NULL;
    enum fire_status status = FIRE_NO_MEMORY;

    if (!iwork)
        goto done;
    lapack->dgesdd("N", &m, &n, x, &m, values, &unused, &one, &unused, &one, &work_size, &query,
                   iwork, &info);
    const int work_count = (int)work_size;
    work = malloc((size_t)work_count * sizeof(*work));
    if (!work)
        goto done;
    lapack->dgesdd("N", &m, &n, x, &m, values, &unused, &one, &unused, &one, work, &work_count,
                   iwork, &info);
    status = info == 0 ? FIRE_OK : FIRE_TOO_LATE;
done:
    free(work);
    free(iwork);
    return status;
}

/* Singular values of the tall f64 X (no padding), descending, times `factor`; X is overwritten. */
static enum fire_status tall_values(double *x, uint32_t rows, uint32_t cols, double factor,
                                    double *values, struct fire_error *error)
{
    const size_t count = (size_t)rows * cols;
    const struct fire_lapack *lapack;
    double scale = 0.0;
    enum fire_status status = fire_lapack_load(&lapack, error);

    if (status != FIRE_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(x[i]))
            return fire_fail(error, FIRE_BAD_REQUEST, NULL,
                             "singular values were asked for, but the data holds NaN or Inf; "
                             "leave them out or repair the data");
        scale = fmax(scale, fabs(x[i]));
    }
    memset(values, 0, cols * sizeof(*values));
    if (scale == 0.0)
        return FIRE_OK;
    for (size_t i = 0; i < count; i++)
        x[i] /= scale; /* no square may overflow or vanish */

    status = gram_eigenvalues(lapack, x, rows, cols, values);
    if (status == FIRE_OK && values[0] > GRAM_RATIO_MIN * values[cols - 1]) {
        for (uint32_t i = 0, j = cols - 1; i <= j; i++, j--) {
            const double low = values[i];

            values[i] = sqrt(values[j]) * scale * factor;
            values[j] = sqrt(low) * scale * factor;
            if (j == 0)
                break;
        }
        return FIRE_OK;
    }
    if (status != FIRE_NO_MEMORY)
        status = svd_values(lapack, x, rows, cols, values);
    for (uint32_t i = 0; i < cols && status == FIRE_OK; i++)
        values[i] *= scale * factor;
    if (status == FIRE_NO_MEMORY)
        return fire_fail_memory(error, (unsigned long long)cols * cols * sizeof(double));
    if (status != FIRE_OK)
        return fire_fail(error, status, NULL,
                         "LAPACK's dgesdd did not converge on a %u x %u matrix; ask for the "
                         "statistics without the spectrum",
                         rows, cols);
    return FIRE_OK;
}

enum fire_status fire_singular_values(const void *x, enum fire_dtype dtype, uint32_t rows,
                                      uint32_t cols, size_t stride, double factor, double *values,
                                      struct fire_error *error)
{
    const size_t bytes = (size_t)rows * cols * sizeof(double);
    double *copy;
    enum fire_status status;

    FIRE_ASSERT(rows >= cols);
    FIRE_ASSERT(dtype == FIRE_F32 || dtype == FIRE_F64);
    copy = malloc(bytes);
    if (!copy)
        return fire_fail_memory(error, bytes);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            copy[i * cols + j] = any_element(x, dtype, i * stride + j);
    status = tall_values(copy, rows, cols, factor, values, error);
    free(copy);
    return status;
}

void fire_moment_from_singular_values(const double *values, uint32_t count,
                                      struct fire_moment *moment)
{
    double sum = 0.0;
    double squares = 0.0;
    double entropy = 0.0;
    double partial = 0.0;
    uint32_t needed = 0;

    FIRE_ASSERT(count > 0);
    moment->spectral_norm = values[0];
    moment->stable_rank = moment->effective_rank = moment->srank = moment->condition = NAN;
    if (values[0] == 0.0)
        return;
    for (uint32_t i = 0; i < count; i++) {
        const double ratio = values[i] / values[0];

        sum += ratio;
        squares += ratio * ratio;
    }
    for (uint32_t i = 0; i < count; i++) {
        const double share = values[i] / values[0] / sum;

        if (share > 0.0)
            entropy -= share * log(share);
    }
    while (needed < count && partial < (1.0 - SRANK_DELTA) * sum)
        partial += values[needed++] / values[0];
    moment->stable_rank = squares;
    moment->effective_rank = exp(entropy);
    moment->srank = needed;
    if (values[count - 1] > 0.0)
        moment->condition = values[0] / values[count - 1];
}

double fire_dormant_ratio(const double *unit_means, uint64_t units, double tau, double eps)
{
    uint64_t dormant = 0;
    double mean = 0.0;

    for (uint64_t i = 0; i < units; i++)
        mean += unit_means[i];
    mean /= (double)units; /* no units: NAN */
    if (!isfinite(mean))
        return NAN;
    for (uint64_t i = 0; i < units; i++) {
        const double score = unit_means[i] / (mean + eps);

        if (tau > 0.0 ? score <= tau : score <= ZERO_SCORE)
            dormant++;
    }
    return (double)dormant / (double)units;
}

void fire_unit_means(const void *activations, enum fire_dtype dtype, uint64_t samples,
                     uint64_t units, double *means)
{
    for (uint64_t j = 0; j < units; j++)
        means[j] = 0.0;
    for (uint64_t i = 0; i < samples; i++)
        for (uint64_t j = 0; j < units; j++)
            means[j] += fabs(any_element(activations, dtype, i * units + j));
    for (uint64_t j = 0; j < units; j++)
        means[j] /= (double)samples; /* no samples: NAN */
}

enum fire_status fire_moment_of_features(const void *data, enum fire_dtype dtype, uint64_t rows,
                                         uint64_t cols, struct fire_moment *moment,
                                         struct fire_error *error)
{
    const uint64_t tall = rows > cols ? rows : cols;
    const uint64_t small = rows > cols ? cols : rows;
    double *copy = NULL;
    double *values = NULL;
    enum fire_status status;

    if (small == 0 || tall > INT_MAX || tall > SIZE_MAX / sizeof(double) / small)
        return fire_fail(error, FIRE_BAD_REQUEST, NULL,
                         "a %llu x %llu matrix has no spectrum here: sides must be 1 to %d",
                         (unsigned long long)rows, (unsigned long long)cols, INT_MAX);
    copy = malloc(tall * small * sizeof(*copy));
    values = malloc(small * sizeof(*values));
    if (!copy || !values) {
        status = fire_fail_memory(error, tall * small * sizeof(*copy));
        goto done;
    }
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < cols; j++)
            copy[rows >= cols ? i * cols + j : j * rows + i] =
                any_element(data, dtype, i * cols + j);

    status = tall_values(copy, (uint32_t)tall, (uint32_t)small, 1.0, values, error);
    if (status == FIRE_OK) {
        fire_moment_from_singular_values(values, (uint32_t)small, moment);
        moment->norm = values[0] > 0.0 ? values[0] * sqrt(moment->stable_rank) : 0.0;
    }
done:
    free(copy);
    free(values);
    return status;
}
