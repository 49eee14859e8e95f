#define VECTOR_BYTES  16
#define BLOCK_COLUMNS 2
#define TINY_SYMBOL   tiny_portable
#include "tiny_body.h"

static inline lanes lanes_root(lanes x)
{
    return (lanes){ __builtin_sqrt(x[0]), __builtin_sqrt(x[1]) };
}
