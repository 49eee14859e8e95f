#include <immintrin.h>

#define VECTOR_BYTES  32
#define BLOCK_COLUMNS 2
#define TINY_SYMBOL   tiny_avx2
#include "tiny_body.h"

static inline lanes lanes_root(lanes x)
{
    return _mm256_sqrt_pd(x);
}
