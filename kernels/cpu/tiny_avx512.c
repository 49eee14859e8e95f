#include <immintrin.h>

#define VECTOR_BYTES  64
#define BLOCK_COLUMNS 4
#define TINY_SYMBOL   tiny_avx512
#include "tiny_body.h"

static inline lanes lanes_root(lanes x)
{
    return _mm512_sqrt_pd(x);
}
