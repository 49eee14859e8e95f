#define ENGINE_NAME   "avx2"
#define ENGINE_SYMBOL engine_avx2
#define ENGINE_TINY   tiny_avx2
#define VECTOR_BYTES  32
#define MR            6
#include "engine_isa.h"
