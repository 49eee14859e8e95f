/* Completion of a rank defect: a seeded Gaussian is projected onto the orthogonal complements of
 * the range of x and of its transpose, so that adding it leaves the partial isometry as it is, and
 * the sum, now of full rank, is converged again. Rare, so it is simple: f64 throughout. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "polar.h"
#include "random.h"

static void draw(const struct polar *polar, uint64_t seed, double *noise)
{
    const struct polar_space *space = polar->space;
    const double size = 0.5 / sqrt((double)polar->rank_defect);
    struct fire_random random;

    fire_random_init(&random, seed);
    memset(noise, 0, space->rows * space->ld * sizeof(double));
    for (uint32_t i = 0; i < space->rows; i++) {
        for (uint32_t j = 0; j < space->cols; j++)
            noise[i * space->ld + j] = size * fire_random_normal(&random);
    }
}

/* y -= a m, with m in space->g, full. */
static void subtract_product(struct polar *polar, const double *a, double *y)
{
    const struct polar_space *space = polar->space;

    dense_product(polar->crew, FIRE_F64,
                  &(struct product){ .m = space->rows,
                                     .n = space->cols,
                                     .k = space->cols,
                                     .a = a,
                                     .lda = space->ld,
                                     .b = space->g,
                                     .ldb = space->ld,
                                     .c = y,
                                     .ldc = space->ld,
                                     .alpha = -1,
                                     .beta = 1 });
}

enum fire_status polar_complete(struct polar *polar, uint64_t seed)
{
    struct polar_space *space = polar->space;
    const size_t count = space->rows * space->ld;
    const size_t bytes = (count * sizeof(double) + 63) / 64 * 64;
    double *x = aligned_alloc(64, bytes);
    double *noise = aligned_alloc(64, bytes);
    double *sum = aligned_alloc(64, bytes);
    const uint32_t rank_defect = polar->rank_defect;
    enum fire_status status = FIRE_NO_MEMORY;

    if (!x || !noise || !sum)
        goto out;
    draw(polar, seed, noise);
    memcpy(sum, noise, count * sizeof(double));
    for (size_t i = 0; i < count; i++)
        x[i] = polar->dtype == FIRE_F64 ? ((double *)space->x)[i] : (double)((float *)space->x)[i];

    dense_gram(polar->crew, FIRE_F64, false, x, space->ld, space->rows, space->cols, space->g,
               space->ld);
    dense_mirror(polar->crew, FIRE_F64, space->g, space->ld, space->cols);
    subtract_product(polar, noise, sum); /* N (I - X^T X) */
    dense_product(polar->crew, FIRE_F64,
                  &(struct product){ .m = space->cols,
                                     .n = space->cols,
                                     .k = space->rows,
                                     .a = x,
                                     .lda = space->ld,
                                     .a_transposed = true,
                                     .b = sum,
                                     .ldb = space->ld,
                                     .c = space->g,
                                     .ldc = space->ld,
                                     .alpha = 1 });
    subtract_product(polar, x, sum); /* (I - X X^T) of it */
    status = polar_space_prepare(space, polar->plan, FIRE_F64);
    if (status != FIRE_OK)
        goto out;
    for (size_t i = 0; i < count; i++)
        ((double *)space->x)[i] = x[i] + sum[i];
    polar->dtype = FIRE_F64;
    polar_note(polar, "complete");
    status = polar_converge_loaded(polar);
    polar->rank_defect = rank_defect; /* of the weights: what was filled */
out:
    free(x);
    free(noise);
    free(sum);
    return status;
}
