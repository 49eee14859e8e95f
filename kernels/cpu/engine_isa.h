/* engine_isa: turns engine_body.h into one struct engine. An engine_<isa>.c sets ENGINE_NAME,
 * VECTOR_BYTES and MR, and is compiled with the flags of its instruction set. */
#include <math.h>
#include <string.h>

#include "engine.h"

#define INLINE   static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 12")
#endif
#define ENGINE_TILE_COLUMNS_MAX 512u
#define root_f32                sqrtf
#define root_f64                sqrt

#define T        float
#define TN(name) name##_f32
#define KC       384u
#include "engine_body.h"
#undef T
#undef TN
#undef KC

#define T        double
#define TN(name) name##_f64
#define KC       256u
#include "engine_body.h"
#undef T
#undef TN

const struct engine ENGINE_SYMBOL = {
    .name = ENGINE_NAME,
    .scratch_bytes = 384u * (ENGINE_TILE_COLUMNS_MAX + MR) * sizeof(float) >
                             256u * (ENGINE_TILE_COLUMNS_MAX + MR) * sizeof(double)
                         ? 384u * (ENGINE_TILE_COLUMNS_MAX + MR) * sizeof(float)
                         : 256u * (ENGINE_TILE_COLUMNS_MAX + MR) * sizeof(double),
    .mr = MR,
    .nr = 2 * VECTOR_BYTES / sizeof(float),
    .f32 = ops_f32,
    .f64 = ops_f64,
};
