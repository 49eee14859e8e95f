/* spectrum: singular values for people to look at: a bounded choice, the largest first. */
#ifndef FIRE_SPECTRUM_H
#define FIRE_SPECTRUM_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define FIRE_SPECTRUM_MAX 512u

/* Of one matrix, or of all matrices of a tensor together. */
struct fire_spectrum {
    uint64_t total; /* how many singular values there are */
    uint32_t count; /* how many are in `values`: all up to the limit; 0: they are not known */
    double values[FIRE_SPECTRUM_MAX]; /* descending, evenly chosen by place, both ends among them */
};

/* What was measured before and after. */
struct fire_spectra {
    struct fire_spectrum before;
    struct fire_spectrum after;
};

/* Chooses from `total` values (at least one) that descend. */
void fire_spectrum_choose(const double *values, uint64_t total, struct fire_spectrum *spectrum);

/* The values of `parts` as one spectrum: exact while no part had to leave any out, otherwise every
 * value kept stands for its neighbours. When a part is not known the sum is not either. `sum` is
 * none of the parts. FIRE_NO_MEMORY: it is not known. */
FIRE_NODISCARD enum fire_status fire_spectrum_merge(const struct fire_spectrum *const *parts,
                                                    size_t part_count, struct fire_spectrum *sum);

#endif
