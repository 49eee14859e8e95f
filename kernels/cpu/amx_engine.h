/* amx_engine: the AVX-512 engine with its large f32 products on the tile unit.
 *
 * Products in f32 quality (x6) for results that promise a polar error, cheaper ones (x3) where only
 * the DfI counts. Small products, triangular ones and everything in f64 stay as they are. */
#ifndef FIRE_AMX_ENGINE_H
#define FIRE_AMX_ENGINE_H

#include <stdbool.h>

#include "engine.h"

/* x3 when `fast`. Only after amx_probe() has succeeded. */
const struct engine *amx_engine(bool fast);

#endif
