/* statistics: the numbers of NUMERICS.md section 1, from a Gram matrix, a spectrum, activations or
 * gradients. Everything is computed in f64, serially and in a fixed order: it can be repeated. */
#ifndef FIRE_STATISTICS_H
#define FIRE_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

#include "dtype.h"
#include "result.h"
#include "status.h"

/* G = X^T X of the short side: `size` x `size`, row-major with leading dimension `stride`. Only the
 * upper triangle (j >= i) is read. The true matrix is `factor` times what is stored; entries are
 * squared, so a magnitude beyond 1e+-150 belongs in `factor`. */
struct fire_gram {
    const void *data;
    enum fire_dtype dtype; /* FIRE_F32 or FIRE_F64 */
    size_t stride;
    uint32_t size;
    double factor;
    /* y = G x of the stored G, for an f64 one, where the caller has a fast way; or NULL. */
    void (*multiply)(const void *data, size_t stride, uint32_t size, const void *x, void *y);
};

/* dfi, dfi_full, dfi_mean, dfi_scale_free, norm, participation of a matrix with out x in sides.
 * Leaves the other members as they are. Sums (G - I)^2 entry by entry. */
void fire_moment_from_gram(const struct fire_gram *gram, uint32_t out, uint32_t in,
                           struct fire_moment *moment);

/* Only ||G - I||_F^2: what stopping rules look at. */
double fire_gram_dfi(const struct fire_gram *gram);

/* Largest eigenvalue of G by Lanczos with full reorthogonalisation, deterministic start, up to
 * `steps_max` products with G. Returns FIRE_OK and the value when its estimated relative error is
 * at most `tolerance` and it has stood still for half as many products again; FIRE_NO_MEMORY; or
 * FIRE_TOO_LATE when that did not happen (value is then the best lower bound). */
FIRE_NODISCARD enum fire_status fire_gram_largest(const struct fire_gram *gram, uint32_t steps_max,
                                                  double tolerance, double *value);

/* spectral_norm and stable_rank from fire_gram_largest(); left as they are when it fails to
 * converge. norm must be known. */
enum fire_status fire_moment_spectral_norm(const struct fire_gram *gram,
                                           struct fire_moment *moment);

/* All singular values of the rows x cols matrix X (rows >= cols, row-major, leading dimension
 * `stride`, f32 or f64), descending, times `factor`: by an eigensolve of X^T X in f64, and by an
 * SVD where that would lose the small ones. Needs LAPACK (lapack.h). */
FIRE_NODISCARD enum fire_status fire_singular_values(const void *x, enum fire_dtype dtype,
                                                     uint32_t rows, uint32_t cols, size_t stride,
                                                     double factor, double *values,
                                                     struct fire_error *error);

/* spectral_norm, stable_rank, effective_rank, srank (delta 0.01) and condition from singular
 * values in descending order. condition is NAN when the smallest is 0. */
void fire_moment_from_singular_values(const double *values, uint32_t count,
                                      struct fire_moment *moment);

/* Share of units with score <= tau: score_i = mean_i / (mean over units + eps). tau = 0 counts
 * scores within 1e-8 of 0. */
double fire_dormant_ratio(const double *unit_means, uint64_t units, double tau, double eps);

/* Per-unit mean |h| of `samples` x `units` activations (units last). */
void fire_unit_means(const void *activations, enum fire_dtype dtype, uint64_t samples,
                     uint64_t units, double *means);

/* Of a feature or gradient matrix: norm, condition, effective rank and srank. */
FIRE_NODISCARD enum fire_status fire_moment_of_features(const void *data, enum fire_dtype dtype,
                                                        uint64_t rows, uint64_t cols,
                                                        struct fire_moment *moment,
                                                        struct fire_error *error);

#endif
