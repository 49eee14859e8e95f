#define SCALE_RUN      scale_run_portable
#define SCALE_MEASURE  scale_measure_portable
#define SCALE_WIDEN(x) __builtin_convertvector(x, wide)
#include "scale_body.h"
