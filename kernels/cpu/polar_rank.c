/* Numerical rank. Singular values below the rounding of the weights' own type are noise: lifting
 * them to 1 would invent directions. After one D64 step (two for f64 weights) noise and signal lie
 * on the two sides of a known threshold t, and the spectral projector onto the signal is a matter
 * of products: P = G (G + t^2 I)^-1 has eigenvalues below and above 1/2, and McWeeny's step
 * 3 P^2 - 2 P^3 drives them to 0 and 1. Its trace is the rank; x P is free of noise. */
#include <math.h>
#include <string.h>

#include "polar.h"

#define THRESHOLD_F32    1.5e-3 /* 6e-8 of the largest value, after one D64 step */
#define THRESHOLD_F64    1e-3   /* 1.6e-12 of it, after two */
#define PURIFY_STEPS_MAX 40
#define PURIFY_TOLERANCE 1e-20 /* of ||P^2 - P||_F^2 per column */

/* P <- 3 P^2 - 2 P^3 until P^2 = P. `square` and `next` are spare. Returns P's array. */
static void *purify(struct polar *polar, void *p, void *square, void *next, double *trace)
{
    struct polar_space *space = polar->space;
    const struct engine_ops *ops = crew_ops(polar->crew, FIRE_F64);
    const uint32_t n = space->cols;

    for (int i = 0; i < PURIFY_STEPS_MAX && !crew_is_abandoned(polar->crew); i++) {
        double dfi, distance, sum;
        void *swap = p;

        dense_mirror(polar->crew, FIRE_F64, p, space->ld, n);
        dense_symmetric_product(polar->crew, FIRE_F64, n, p, p, space->ld, 1, 0, square);
        memcpy(next, p, n * space->ld * sizeof(double));
        ops->add_upper(next, square, space->ld, n, -1, 0);
        ops->sums(next, space->ld, n, 1, &dfi, &distance, &sum);
        ops->sums(p, space->ld, n, 1, &dfi, &sum, trace);
        if (distance <= PURIFY_TOLERANCE * n)
            break;
        dense_mirror(polar->crew, FIRE_F64, square, space->ld, n);
        memcpy(next, square, n * space->ld * sizeof(double));
        ops->affine(next, space->ld, n, 3, 0);
        dense_symmetric_product(polar->crew, FIRE_F64, n, p, square, space->ld, -2, 1, next);
        p = next;
        next = swap;
    }
    return p;
}

enum fire_status polar_drop_noise(struct polar *polar)
{
    struct polar_space *space = polar->space;
    const struct engine_ops *ops = crew_ops(polar->crew, FIRE_F64);
    const double t = polar->plan->compute == FIRE_F64 ? THRESHOLD_F64 : THRESHOLD_F32;
    const uint32_t n = space->cols;
    void *projector;
    double trace;

    if (polar_space_gram(space, FIRE_F64) != FIRE_OK)
        return FIRE_NO_MEMORY;
    /* I - (I + G / t^2)^-1 */
    dense_gram(polar->crew, FIRE_F64, false, space->x, space->ld, space->rows, n, space->g,
               space->ld);
    ops->affine(space->g, space->ld, n, 1 / (t * t), 1);
    if (!dense_inverse(polar->crew, FIRE_F64, space->g, space->ld, n, space->inverse))
        return FIRE_OK; /* cannot happen for I + G; the iteration goes on with what it has */
    ops->affine(space->g, space->ld, n, -1, 1);
    projector = purify(polar, space->g, space->gram[0], space->gram[1], &trace);
    if (crew_is_abandoned(polar->crew))
        return FIRE_OK; /* the trace may not be known */
    polar->rank_defect = n - (uint32_t)lround(fmin(fmax(trace, 0), n));
    if (polar->rank_defect == 0)
        return FIRE_OK;
    if (projector != space->g)
        memcpy(space->g, projector, n * space->ld * sizeof(double));
    polar_apply(polar, FIRE_F64);
    return FIRE_OK;
}
