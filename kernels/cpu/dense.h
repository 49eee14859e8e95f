/* dense: whole matrix operations on padded arrays, made of product tiles dealt out to a pool.
 *
 * Results are the same bits for any number of threads: grids follow from shapes, but for products
 * whose tiles do not change a bit (engine.h, `packs`). */
#ifndef FIRE_DENSE_H
#define FIRE_DENSE_H

#include "dtype.h"
#include "engine.h"
#include "pool.h"

/* What a worker that computes alone may do between two tasks: when `waiting` is set it calls `run`,
 * which must not touch anything of the crew's. */
struct crew_yield {
    const atomic_bool *waiting;
    void (*run)(void *data, uint32_t worker);
    void *data;
};

/* Who computes: the whole pool, or (pool NULL) the calling worker alone. */
struct crew {
    const struct engine *engine;
    struct pool *pool;
    void *const *scratch;           /* one for each worker: dense_scratch_bytes() */
    uint32_t worker;                /* who calls, when pool is NULL */
    const struct crew_yield *yield; /* NULL: never; a pool has interruptions of its own */
    const atomic_bool *abandoned; /* nobody wants the result any more; NULL: somebody always does */
};

/* The calling worker of it, alone. */
static inline struct crew crew_alone(const struct crew *crew)
{
    struct crew alone = *crew;

    alone.pool = NULL;
    return alone;
}

/* Tasks are left out from then on, so what was computed means nothing. */
static inline bool crew_is_abandoned(const struct crew *crew)
{
    return crew->abandoned && atomic_load_explicit(crew->abandoned, memory_order_relaxed);
}

/* Runs tasks 0..count-1 on the crew, as long as it is not abandoned. */
void crew_run(const struct crew *crew, uint32_t count, pool_task task, void *data);

/* Elements between rows of a padded array with `cols` columns. */
size_t dense_stride(uint32_t cols);

/* What each worker needs besides, for matrices with `cols` columns. */
size_t dense_scratch_bytes(const struct engine *engine, uint32_t cols);

static inline const struct engine_ops *crew_ops(const struct crew *crew, enum fire_dtype dtype)
{
    return dtype == FIRE_F64 ? &crew->engine->f64 : &crew->engine->f32;
}

void dense_product(const struct crew *crew, enum fire_dtype dtype, const struct product *product);

/* Upper triangle of g = X^T X. x is f32 while g is f64 when `narrow`. */
void dense_gram(const struct crew *crew, enum fire_dtype dtype, bool narrow, const void *x,
                size_t ldx, uint32_t rows, uint32_t cols, void *g, size_t ldg);

/* Upper triangle of c = alpha a b + beta c for symmetric a and b that commute; both are full. */
void dense_symmetric_product(const struct crew *crew, enum fire_dtype dtype, uint32_t n,
                             const void *a, const void *b, size_t ld, double alpha, double beta,
                             void *c);

/* z (upper triangle, positive definite) <- z^-1, upper triangle. `space` has
 * dense_inverse_space() elements. False: not positive definite. */
bool dense_inverse(const struct crew *crew, enum fire_dtype dtype, void *z, size_t ldz, uint32_t n,
                   void *space);
size_t dense_inverse_space(uint32_t n); /* elements */

/* Fills the lower triangle from the upper one. */
void dense_mirror(const struct crew *crew, enum fire_dtype dtype, void *g, size_t ldg, uint32_t n);

/* y = x m, m full cols x cols of type `dtype`; x and y are f32 or f64 and may be the same array. */
struct dense_rows {
    const void *x;
    enum fire_dtype x_dtype;
    void *y;
    enum fire_dtype y_dtype;
    size_t ld; /* of x, y and m */
    uint32_t rows, cols;
    const void *m;
    enum fire_dtype dtype; /* of m and of the arithmetic */
};
void dense_multiply_rows(const struct crew *crew, const struct dense_rows *rows);

#endif
