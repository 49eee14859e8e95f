/* amx: f32 products on Intel's tile unit (AMX), which multiplies bf16 and adds in f32.
 *
 * An f32 value is split into bf16 parts, a = hi + lo or a = hi + mid + lo, and the largest products
 * of parts are added up. Relative error of a product (NUMERICS.md section 8): AMX_BF16 2.4e-3,
 * AMX_X3 4.4e-6, AMX_X6 about that of f32. Bits depend on the product and the terms only, not
 * on the tiles it is cut into.
 *
 * The tile unit takes denormal bf16 numbers for zero and so loses the low parts of small values:
 * scale the arrays so that the values that matter are not far from 1 (x3 is good down to 2^-105).
 * Values must be finite; |a| above 3.38e38 rounds to infinity.
 *
 * Before amx_product_tile() may be called in a process, amx_probe() has to have succeeded in it:
 * without the permission it asks the kernel for, the first tile instruction is a SIGILL. */
#ifndef FIRE_AMX_H
#define FIRE_AMX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "product.h"
#include "status.h"

/* How many products of parts stand for one product. */
enum amx_terms {
    AMX_BF16 = 1, /* hi hi */
    AMX_X3 = 3,   /* a = hi + lo: hi hi + hi lo + lo hi */
    AMX_X6 = 6,   /* a = hi + mid + lo: the three above, mid mid, hi lo, lo hi */
};

#define AMX_BLOCK       32u /* side of a block of C held in tiles: 2 x 2 tiles */
#define AMX_DEPTH       32u /* k values a tile of A or B holds */
#define AMX_TILE_BYTES  1024u
#define AMX_PANEL_BYTES (64u << 10) /* of a packed panel at most: so many parts times k values */
#define AMX_COLUMNS_MAX 256u        /* columns of B packed at once: a limit of the scratch memory */
#define AMX_ROWS_MAX    512u        /* rows of A, likewise */

#define AMX_BLOCKS 2u /* of C that are in memory at once */

/* Scratch memory of one thread: blocks of C, packed B, packed A. About 1.5 MB. */
#define AMX_SCRATCH_BYTES                                                                          \
    (AMX_BLOCKS * AMX_BLOCK * AMX_BLOCK * 4u +                                                     \
     (AMX_COLUMNS_MAX + AMX_ROWS_MAX) / AMX_BLOCK * AMX_PANEL_BYTES)

/* Computes rows [i0, i1) and columns [j0, j1) of C = alpha op(A) B + beta C; all arrays f32,
 * padded as product.h says. Any range of any size is allowed, multiples of AMX_BLOCK are fastest;
 * A is packed once, B once for each AMX_ROWS_MAX rows. With
 * product->upper, blocks of AMX_BLOCK x AMX_BLOCK counted from (i0, j0) that lie wholly under the
 * diagonal are left as they are; a_shape and b_shape are not made use of. `scratch`:
 * AMX_SCRATCH_BYTES, 64-byte aligned, the thread's own. Tile configuration is loaded on entry and
 * released on exit. */
void amx_product_tile(const struct product *product, enum amx_terms terms, uint32_t i0, uint32_t i1,
                      uint32_t j0, uint32_t j1, void *scratch);

/* Can this process use the tile unit? Asks CPUID and XCR0, then tries in a child process: the
 * kernel's permission, products against a plain reference, a rate. Takes some 20 ms where AMX is,
 * nothing where it is not; call it before threads are started.
 * FIRE_OK: the permission has been asked for in this process too (it holds for all its threads and
 * over fork, not over exec); `*flops_per_s` is the rate of AMX_X3 products of 256 x 256 x 256 on
 * one thread, packing included, 2 m n k flops each, so it compares with an f32 rate; AMX_X6 has
 * about half of it. The unit's rate changes from moment to moment: measure again where it matters.
 * FIRE_DEVICE_LOST: it cannot; FIRE_NO_MEMORY: it could not be tried. `*flops_per_s` is then 0.
 * `reason` always receives a sentence. */
FIRE_NODISCARD enum fire_status amx_probe(char *reason, size_t reason_bytes, double *flops_per_s);

typedef void (*amx_product_function)(const struct product *product, enum amx_terms terms,
                                     uint32_t i0, uint32_t i1, uint32_t j0, uint32_t j1,
                                     void *scratch);

/* The parts of a probe, so that a test can put others in their place. */
struct amx_probe_parts {
    /* True when the processor and the system offer it; else the reason is written. */
    bool (*offered)(char *reason, size_t reason_bytes);
    /* True when the kernel lets this process use it; else the reason is written. */
    bool (*permitted)(char *reason, size_t reason_bytes);
    amx_product_function product;
    uint32_t timeout_ms; /* how long the child may take */
};

/* The real parts, and a probe made of any. */
const struct amx_probe_parts *amx_probe_parts(void);
FIRE_NODISCARD enum fire_status amx_probe_with(const struct amx_probe_parts *parts, char *reason,
                                               size_t reason_bytes, double *flops_per_s);

#endif
