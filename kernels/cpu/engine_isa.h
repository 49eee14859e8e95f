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
/* Bytes of B that are multiplied in place: each block of KC rows then stays in L2 by itself, and
 * packing would only copy it. Beyond, rows lie so far apart that address translation shows. */
#define ENGINE_IN_CACHE (8u << 20)
/* Rows of B to a block of depth. A sum is rounded at each of its terms: short blocks, added up
 * afterwards, halve the error of a long f32 sum. */
#define ENGINE_DEPTH_F32 128u
#define ENGINE_DEPTH_F64 256u
#define root_f32         sqrtf
#define root_f64         sqrt

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
    .scratch_bytes =
        ENGINE_DEPTH_F32 * (ENGINE_TILE_COLUMNS_MAX + PRODUCT_PAD) * sizeof(float) >
                ENGINE_DEPTH_F64 *(ENGINE_TILE_COLUMNS_MAX + PRODUCT_PAD) * sizeof(double)
            ? ENGINE_DEPTH_F32 *(ENGINE_TILE_COLUMNS_MAX + PRODUCT_PAD) * sizeof(float)
            : ENGINE_DEPTH_F64 *(ENGINE_TILE_COLUMNS_MAX + PRODUCT_PAD) * sizeof(double),
    .mr = MR,
    .nr = 2 * VECTOR_BYTES / sizeof(float),
    .f32 = ops_f32,
    .f64 = ops_f64,
};
