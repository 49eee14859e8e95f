/* scale_internal: the loops of scale_body.h. Each gives the same bits. */
#ifndef FIRE_SCALE_INTERNAL_H
#define FIRE_SCALE_INTERNAL_H

#include "scale.h"

/* Where the block begins that has a NaN or Inf, or `count`. */
size_t scale_run_portable(struct fire_scale_sums *sums, char *numbers, size_t count, float factor);
void scale_measure_portable(struct fire_scale_sums *sums, const char *numbers, size_t count);
#ifdef __x86_64__
size_t scale_run_avx2(struct fire_scale_sums *sums, char *numbers, size_t count, float factor);
void scale_measure_avx2(struct fire_scale_sums *sums, const char *numbers, size_t count);
#endif

#endif
