/* Compiled once more by the tests, with AMX_PRODUCT_TILE and AMX_ENGINE naming the emulated tile
 * unit and AMX_BASE an engine that every machine can run, so that the whole path is proved on
 * machines without one. */
#include "amx_engine.h"

#if defined(__x86_64__)
#include <pthread.h>

#include "amx.h"
#include "amx_packed.h"

#ifndef AMX_PRODUCT_TILE
#define AMX_PRODUCT_TILE amx_product_tile
#endif
#ifndef AMX_PACKED_OPS
#define AMX_PACKED_OPS amx_packed_ops
#endif
#ifndef AMX_ENGINE
#define AMX_ENGINE amx_engine
#endif
#ifndef AMX_BASE
#define AMX_BASE engine_avx512 /* where tiles are, AVX-512 is */
#endif

#define DEPTH_MIN 64u /* below, splitting and packing cost more than the unit gains */
#define SIDE_MIN  32u

void AMX_PRODUCT_TILE(const struct product *product, enum amx_terms terms, uint32_t i0, uint32_t i1,
                      uint32_t j0, uint32_t j1, void *scratch);
extern const struct packed_ops AMX_PACKED_OPS;
const struct engine *AMX_ENGINE(bool fast);

/* The whole decides, not the tile: tiles are cut as threads are many. */
static bool takes(const struct product *product)
{
    return product->a_shape == PRODUCT_DENSE && product->b_shape == PRODUCT_DENSE &&
           product->k >= DEPTH_MIN && product->m >= SIDE_MIN && product->n >= SIDE_MIN;
}

static void tile(const struct product *product, enum amx_terms terms, uint32_t i0, uint32_t i1,
                 uint32_t j0, uint32_t j1, void *scratch)
{
    if (takes(product))
        AMX_PRODUCT_TILE(product, terms, i0, i1, j0, j1, scratch);
    else
        AMX_BASE.f32.tile(product, i0, i1, j0, j1, scratch);
}

static void tile_x6(const struct product *product, uint32_t i0, uint32_t i1, uint32_t j0,
                    uint32_t j1, void *scratch)
{
    tile(product, AMX_X6, i0, i1, j0, j1, scratch);
}

static void tile_x3(const struct product *product, uint32_t i0, uint32_t i1, uint32_t j0,
                    uint32_t j1, void *scratch)
{
    tile(product, AMX_X3, i0, i1, j0, j1, scratch);
}

static struct engine exact, fast_engine;

static void make(void)
{
    exact = AMX_BASE;
    exact.name = "amx";
    if (exact.scratch_bytes < AMX_SCRATCH_BYTES)
        exact.scratch_bytes = AMX_SCRATCH_BYTES;
    fast_engine = exact;
    exact.packs = fast_engine.packs = takes;
    exact.f32.tile = tile_x6;
    fast_engine.f32.tile = tile_x3;
    fast_engine.packed = &AMX_PACKED_OPS;
}

const struct engine *AMX_ENGINE(bool fast)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make);
    return fast ? &fast_engine : &exact;
}
#endif
