/* Compilers split a conversion of four numbers in two. */
#include <immintrin.h>

#define SCALE_RUN      scale_run_avx2
#define SCALE_MEASURE  scale_measure_avx2
#define SCALE_WIDEN(x) ((wide)_mm256_cvtps_pd((__m128)(x)))
#include "scale_body.h"
