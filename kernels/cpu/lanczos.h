/* lanczos: what a few products with G tell about its spectrum.
 *
 * The Ritz values of a short Lanczos run from a fixed pseudo-random start estimate the ends of the
 * spectrum, and with their weights how eigenvalues are distributed. They plan the iteration; they
 * never decide whether it has converged. */
#ifndef FIRE_LANCZOS_H
#define FIRE_LANCZOS_H

#include "dense.h"

#define LANCZOS_STEPS 10u

struct lanczos {
    uint32_t count;
    double value[LANCZOS_STEPS];  /* Ritz values, ascending */
    double weight[LANCZOS_STEPS]; /* share of the spectrum each stands for; they add up to 1 */
};

/* Elements of `space` for n columns. */
size_t lanczos_space(uint32_t n);

/* Runs on the upper triangle of g (n x n). */
void lanczos_run(const struct engine_ops *ops, const void *g, size_t ldg, uint32_t n, void *space,
                 struct lanczos *out);

#endif
