/* matrices: inputs for tests, and a fast float64 SVD to compare results with.
 *
 * Everything is row-major f64 without padding, in memory of the caller; r is the shorter side. The
 * same seed gives the same matrix. A machine without LAPACK or memory stops the test. */
#ifndef FIRE_TEST_MATRICES_H
#define FIRE_TEST_MATRICES_H

#include <stddef.h>
#include <stdint.h>

#include "random.h"

/* Never NULL. */
double *matrix_alloc(size_t rows, size_t cols);

/* Independent entries, mean 0, deviation 1. */
void matrix_gaussian(struct fire_random *random, uint32_t rows, uint32_t cols, double *w);

/* A random isometry: orthonormal columns, or rows when wide. */
void matrix_orthogonal(struct fire_random *random, uint32_t rows, uint32_t cols, double *w);

/* Random singular vectors and the r singular values given. */
void matrix_with_spectrum(struct fire_random *random, uint32_t rows, uint32_t cols,
                          const double *sigma, double *w);

/* Spectra, largest first unless said. Log-spaced from 1 to 1 / kappa. */
void spectrum_log_spaced(uint32_t count, double kappa, double *sigma);
/* Most values within [0.5, 1], `spikes` of them 10 to 100. */
void spectrum_bulk_and_spikes(struct fire_random *random, uint32_t count, uint32_t spikes,
                              double *sigma);
/* All 1 but the last, 1 / kappa. */
void spectrum_one_small(uint32_t count, double kappa, double *sigma);
/* `spikes` of them kappa, the others within [0.5, 1], in no order. */
void spectrum_spikes(struct fire_random *random, uint32_t count, uint32_t spikes, double kappa,
                     double *sigma);
/* Half of them 1, half 1 / kappa, each within a factor of 1.25, in no order. */
void spectrum_two_bulks(struct fire_random *random, uint32_t count, double kappa, double *sigma);
/* `rank` values within [0.2, 1], then zeros. */
void spectrum_deficient(struct fire_random *random, uint32_t count, uint32_t rank, double *sigma);

void matrix_transpose(const double *from, uint32_t rows, uint32_t cols, double *to);

/* c = a b, a rows x inner, b inner x cols. */
void matrix_multiply(const double *a, const double *b, uint32_t rows, uint32_t inner, uint32_t cols,
                     double *c);

/* ||a - b||_F; an unequal NaN makes it NaN. */
double matrix_distance(const double *a, const double *b, size_t count);
double matrix_norm(const double *a, size_t count);

/* ||W^T W - I||_F^2 on the short side. */
double matrix_dfi(const double *w, uint32_t rows, uint32_t cols);

/* W = U S V^T by LAPACK: u is rows x r, vt r x cols, sigma descending. */
void matrix_svd(const double *w, uint32_t rows, uint32_t cols, double *u, double *sigma,
                double *vt);

/* U V^T of the `rank` largest singular values; `sigma` (r) may be NULL. */
void matrix_polar(const double *w, uint32_t rows, uint32_t cols, uint32_t rank, double *sigma,
                  double *q);

/* Rounds every entry to f32, and the same as f32 numbers. */
void matrix_round(double *w, size_t count);
void matrix_to_f32(const double *w, size_t count, float *x);
void matrix_from_f32(const float *x, size_t count, double *w);

#endif
