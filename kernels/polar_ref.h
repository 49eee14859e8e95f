/* polar_ref: the definition of correct. Plain loops in f64, no blocking, no tricks: everything
 * fast in this repository is compared with it. */
#ifndef FIRE_POLAR_REF_H
#define FIRE_POLAR_REF_H

#include <stdint.h>

#include "plan.h"
#include "status.h"

/* One-sided Jacobi SVD of the rows x cols row-major `w` (any aspect). `u` (rows x r), `v`
 * (cols x r) and `sigma` (r, descending) are the caller's; u and v may be NULL together. Where
 * sigma is 0 the column on the longer side is 0. NaN or Inf is FIRE_BAD_REQUEST. */
FIRE_NODISCARD enum fire_status fire_svd_ref(const double *w, uint32_t rows, uint32_t cols,
                                             double *u, double *v, double *sigma);

/* The nearest (partial) isometry U V^T; singular values not above `rank_tolerance` * sigma_max are
 * dropped. */
FIRE_NODISCARD enum fire_status fire_polar_ref(const double *w, uint32_t rows, uint32_t cols,
                                               double rank_tolerance, double *q);

/* X <- X p(G) for each step in turn, on the short side, in place, no normalisation. */
FIRE_NODISCARD enum fire_status fire_polynomial_ref(double *x, uint32_t rows, uint32_t cols,
                                                    const struct fire_polynomial_step *steps,
                                                    uint32_t step_count);

/* A whole plan on one slot: normalise, steps, scale, blend. For FIRE_PLAN_CONVERGE the polar
 * factor itself, of full rank unless f64 says otherwise; it does not complete a rank defect. `q`
 * receives the unscaled factor and may be NULL. A skipped matrix comes back as it was. */
FIRE_NODISCARD enum fire_status fire_plan_ref(const struct fire_plan *plan, const double *w,
                                              double *q, double *result);

/* ||W^T W - I||_F^2 on the short side. */
double fire_dfi_ref(const double *w, uint32_t rows, uint32_t cols);

#endif
