#define ENGINE_NAME   "portable"
#define ENGINE_SYMBOL engine_portable
#define ENGINE_TINY   tiny_portable
#define VECTOR_BYTES  16
#define MR            6
#include "engine_isa.h"
