/* amx_packed: matrices that stay bf16 tiles from one product to the next.
 *
 * A packed matrix is a list of panels of 32 columns; a panel is a list of blocks of 32 rows; a
 * block is two tiles of 16 columns, each 16 rows of pairs of rows, as the second operand of the
 * tile unit is read. Rows and columns are padded to multiples of 32 with zeros. The first operand
 * of a product is made of the same form on the way: its transpose by exchanging rows and columns
 * of the tiles, itself by parting the pairs.
 *
 * Each function is one task of an operation; tasks of one operation may run in any order on any
 * threads and give the same bits. Products of bf16 are exact, sums are f32. */
#ifndef FIRE_AMX_PACKED_H
#define FIRE_AMX_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PACKED_SIDE_MAX 8192u /* of M in packed_multiply: a limit of the scratch memory */

struct packed {
    uint8_t *tiles; /* packed_bytes(), 64-byte aligned */
    uint32_t rows, cols;
};

size_t packed_bytes(uint32_t rows, uint32_t cols);

/* `to` = from, f32 with `ld` elements between rows. With `symmetric` only the upper triangle is
 * read. */
struct packed_pack {
    const float *from;
    size_t ld;
    struct packed to;
    bool symmetric;
};

/* alpha A^T A + beta D + shift I, symmetric. D is n x n f32, its upper triangle read. Results: the
 * upper triangle in f32, or packed and whole, or both. */
struct packed_square {
    struct packed a;
    double alpha, beta, shift;
    const float *d; /* NULL: none; may be `upper` */
    float *upper;   /* NULL: not wanted */
    size_t ld;      /* of d and upper */
    uint8_t *to;    /* n x n tiles, not those of `a`; NULL: not wanted */
};

/* x = x M for a packed x, in place or to f32; or to = x M + beta to for one in f32. */
struct packed_multiply {
    struct packed x; /* tiles NULL: x is `from` */
    const float *from;
    float *to;       /* NULL: the result goes to x's tiles; may be `from` */
    size_t ld;       /* of from and to */
    struct packed m; /* square */
    double beta;
};

uint32_t packed_pack_tasks(const struct packed_pack *pack);
uint32_t packed_square_tasks(const struct packed_square *square);
uint32_t packed_multiply_tasks(const struct packed_multiply *multiply);

/* The operations on the tile unit, real or emulated. `scratch`: AMX_SCRATCH_BYTES. */
struct packed_ops {
    void (*pack)(const struct packed_pack *pack, uint32_t task);
    void (*square)(const struct packed_square *square, uint32_t task, void *scratch);
    void (*multiply)(const struct packed_multiply *multiply, uint32_t task, void *scratch);
};

/* Only after amx_probe() has succeeded. */
extern const struct packed_ops amx_packed_ops;

#endif
