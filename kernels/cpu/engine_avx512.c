#define ENGINE_NAME   "avx512"
#define ENGINE_SYMBOL engine_avx512
#define ENGINE_TINY   tiny_avx512
#define VECTOR_BYTES  64
#define MR            12
#include "engine_isa.h"
