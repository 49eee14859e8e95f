/* product: the matrix products everything is made of, one tile at a time.
 *
 * C = alpha op(A) B + beta C, row-major. A product is cut into a grid of tiles, each computed by
 * one thread. An element is a sum in an order that follows from the shape of the product only, so
 * the bits depend neither on the grid nor on how many threads deal it out.
 *
 * Working arrays are padded: leading dimensions are multiples of PRODUCT_PAD elements, rows start
 * on 64-byte boundaries, and the padding columns of A, B and C exist (they may be read and written;
 * they are zero on input and stay zero). */
#ifndef FIRE_PRODUCT_H
#define FIRE_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PRODUCT_PAD 16 /* elements: one AVX-512 register of f32, two of f64 */

/* Which part of an operand is known to be non-zero. Elements outside it are zero in memory; the
 * shape only says which products need not be computed. */
enum product_shape {
    PRODUCT_DENSE,
    PRODUCT_LOWER, /* non-zero where column <= row */
    PRODUCT_UPPER, /* non-zero where column >= row */
};

struct product {
    uint32_t m, n, k;
    const void *a; /* m x k, or k x m when a_transposed */
    size_t lda;
    bool a_transposed;
    const void *b; /* k x n */
    size_t ldb;
    void *c; /* m x n; may not overlap a or b */
    size_t ldc;
    double alpha;
    double beta;                /* 0: C is not read; with a shape 0, 1 or -1 */
    bool upper;                 /* only the blocks that touch j >= i are wanted (m == n) */
    bool narrow;                /* f64 products only: A (transposed) and B are stored as f32 */
    enum product_shape a_shape; /* of op(A), m x k */
    enum product_shape b_shape; /* of B, k x n */
};

/* Computes rows [i0, i1) and columns [j0, j1) of C. `scratch` is the thread's own, scratch_bytes of
 * the engine, 64-byte aligned. j0 is a multiple of PRODUCT_PAD; of an upper product j1 > i0. */
typedef void (*product_tile)(const struct product *product, uint32_t i0, uint32_t i1, uint32_t j0,
                             uint32_t j1, void *scratch);

#endif
