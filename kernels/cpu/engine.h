/* engine: the inner loops, compiled once for each instruction set.
 *
 * engine_body.h is the source; engine_portable.c, engine_avx2.c and engine_avx512.c compile it for
 * their registers. isa.c says which of them this machine can run. */
#ifndef FIRE_ENGINE_H
#define FIRE_ENGINE_H

#include "product.h"

#define ENGINE_BASE             16u  /* side of the blocks that are factored without recursion */
#define ENGINE_TILE_COLUMNS_MAX 512u /* of a tile that does not pack its operands itself */

/* The loops for one element type. Arrays are padded as product.h says. */
struct engine_ops {
    size_t element_bytes;
    product_tile tile;

    /* z is n x n, n <= ENGINE_BASE, upper triangle valid, z = L L^T. Leaves L^-1 in the lower
     * triangle and zeros above it. Returns false when z is not positive definite. */
    bool (*invert_base)(void *z, size_t ldz, uint32_t n);

    /* Upper triangle of g <- factor * g + shift * I. */
    void (*affine)(void *g, size_t ldg, uint32_t n, double factor, double shift);
    /* Upper triangle: to <- factor * from + shift * I. */
    void (*copy_affine)(void *to, const void *from, size_t ld, uint32_t n, double factor,
                        double shift);
    /* All of g <- factor * g + shift * I. */
    void (*affine_full)(void *g, size_t ldg, uint32_t n, double factor, double shift);
    /* Rows [i0, i1) of the lower triangle <- the upper one. */
    void (*mirror)(void *g, size_t ldg, uint32_t i0, uint32_t i1);
    /* Sums over the upper triangle of n x n `factor * g`: *dfi = ||g - I||_F^2, *square =
     * ||g||_F^2, *trace. */
    void (*sums)(const void *g, size_t ldg, uint32_t n, double factor, double *dfi, double *square,
                 double *trace);
    /* y = G x for the symmetric G whose upper triangle is stored; vectors of n at any address. */
    void (*symmetric_vector)(const void *g, size_t ldg, uint32_t n, const void *x, void *y);
    /* sum of x_i y_i in f64. */
    double (*dot)(const void *x, const void *y, size_t n);
    /* y <- y + factor * x. */
    void (*add)(void *y, const void *x, double factor, size_t n);
    /* Upper triangle: g <- g + factor * s + shift * I. */
    void (*add_upper)(void *g, const void *s, size_t ld, uint32_t n, double factor, double shift);
    /* The largest |x_i|; 0 for n = 0. */
    double (*largest)(const void *x, size_t n);
    /* sum of (factor * x_i)^2 in f64. */
    double (*square)(const void *x, double factor, size_t n);
    /* w <- factor * x, rounded to f32; sum of the squared changes in f64. */
    double (*replace)(float *w, const void *x, double factor, size_t n);
};

struct tiny_ops;   /* tiny.h */
struct packed_ops; /* amx_packed.h */

struct engine {
    const char *name; /* "avx512" */
    size_t scratch_bytes;
    uint32_t tile_rows; /* of the tiles that threads share; does not change a bit of them */
    /* Whether f32 tiles of this product pack their operands themselves, so that few and large ones
     * are best and how it is cut changes no bit. NULL: none do. */
    bool (*packs)(const struct product *product);
    const struct tiny_ops *tiny;     /* the way of matrices with few columns */
    const struct packed_ops *packed; /* matrices that stay tiles; NULL without a tile unit */
    void (*narrow)(void *data, size_t count); /* f64 to f32, in place */
    /* w <- factor * w, rounded; the sum of the squared changes, and in *square that of the old w,
     * both in f64. */
    double (*rescale)(float *w, double factor, size_t count, double *square);
    struct engine_ops f32;
    struct engine_ops f64;
};

extern const struct engine engine_portable;
#if defined(__x86_64__)
extern const struct engine engine_avx2;
extern const struct engine engine_avx512;
#endif

#endif
