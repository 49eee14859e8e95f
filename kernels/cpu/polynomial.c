/* Named polynomials, run exactly as their sources run them: so many steps X <- X p(G), or until the
 * DfI is below the target at one of the steps where the source looks.
 *
 * Long matrices take the same steps on the r x r side, where p(G) and G p(G)^2 cost less, and
 * multiply X once at the end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "polar.h"
#include "statistics.h"

#define SPECTRAL_STEPS         400u
#define SPECTRAL_TOLERANCE_F32 1e-10
#define SPECTRAL_TOLERANCE_F64 1e-15
#define GRAM_ASPECT            1.5

static bool looks_after(const struct fire_plan *plan, uint32_t step)
{
    return plan->steps == FIRE_STEPS_AUTO && (step - 1) % plan->check == 0;
}

static uint32_t step_limit(const struct fire_plan *plan)
{
    return plan->steps == FIRE_STEPS_AUTO ? plan->max_steps : (uint32_t)plan->steps;
}

static const struct fire_polynomial_step *step_at(const struct fire_plan *plan, uint32_t index)
{
    return &plan->step[index < plan->step_count ? index : plan->step_count - 1];
}

static double dfi_of(struct polar *polar)
{
    const struct fire_plan *plan = polar->plan;
    struct polar_space *space = polar->space;
    double dfi, square, trace;

    crew_ops(polar->crew, polar->dtype)
        ->sums(space->g, space->ld, space->cols, 1, &dfi, &square, &trace);
    polar->dfi = dfi;
    if (plan->target_form == FIRE_TARGET_FULL && plan->in > plan->out)
        return dfi + (plan->in - plan->out);
    return dfi;
}

/* to <- factor * from + shift * I, upper triangle. */
static void combine(const struct polar *polar, void *to, const void *from, double factor,
                    double shift)
{
    const struct polar_space *space = polar->space;
    const struct engine_ops *ops = crew_ops(polar->crew, polar->dtype);

    memcpy(to, from, space->cols * space->ld * ops->element_bytes);
    ops->affine(to, space->ld, space->cols, factor, shift);
}

/* to += factor * from, upper triangle. */
static void add(const struct polar *polar, void *to, const void *from, double factor)
{
    const struct polar_space *space = polar->space;

    crew_ops(polar->crew, polar->dtype)->add_upper(to, from, space->ld, space->cols, factor, 0);
}

/* to <- c0 I + c1 G + c2 G^2 + …, upper triangle; G is in space->g, full when there are powers.
 * `square` and `half` are spare arrays. */
static void evaluate(const struct polar *polar, const struct fire_polynomial_step *p, void *to,
                     void *square, void *half)
{
    const struct polar_space *space = polar->space;
    const enum fire_dtype dtype = polar->dtype;

    combine(polar, to, space->g, p->c[1], p->c[0]);
    if (p->terms <= 2)
        return;
    dense_symmetric_product(polar->crew, dtype, space->cols, space->g, space->g, space->ld, 1, 0,
                            square);
    if (p->terms == 3) {
        add(polar, to, square, p->c[2]);
        return;
    }
    /* (c4 G^2 + c3 G + c2 I) G^2 + c1 G + c0 I */
    combine(polar, half, square, p->c[4], p->c[2]);
    add(polar, half, space->g, p->c[3]);
    dense_mirror(polar->crew, dtype, square, space->ld, space->cols);
    dense_mirror(polar->crew, dtype, half, space->ld, space->cols);
    dense_symmetric_product(polar->crew, dtype, space->cols, half, square, space->ld, 1, 1, to);
}

static enum fire_status run_on_x(struct polar *polar)
{
    struct polar_space *space = polar->space;
    const uint32_t limit = step_limit(polar->plan);
    const bool powers = polar->plan->step[0].terms > 2;

    if (powers && polar_space_gram(space, polar->dtype) != FIRE_OK)
        return FIRE_NO_MEMORY;
    for (uint32_t i = 0; i < limit && !crew_is_abandoned(polar->crew); i++) {
        if (!polar->gram_valid)
            polar_gram(polar);
        polar->gram_valid = false;
        if (powers) {
            dense_mirror(polar->crew, polar->dtype, space->g, space->ld, space->cols);
            evaluate(polar, step_at(polar->plan, i), space->gram[0], space->gram[1],
                     space->gram[2]);
            memcpy(space->g, space->gram[0],
                   space->cols * space->ld * fire_dtype_bytes(polar->dtype));
        } else {
            const struct fire_polynomial_step *p = step_at(polar->plan, i);

            crew_ops(polar->crew, polar->dtype)
                ->affine(space->g, space->ld, space->cols, p->c[1], p->c[0]);
        }
        polar_apply(polar, polar->dtype);
        polar->steps++;
        if (looks_after(polar->plan, polar->steps)) {
            polar_gram(polar);
            polar->gram_valid = true;
            if (dfi_of(polar) <= polar->plan->target)
                break;
        }
    }
    return FIRE_OK;
}

/* P <- P p(G), G <- G p(G)^2; x is multiplied by P at the end. */
static enum fire_status run_on_gram(struct polar *polar)
{
    struct polar_space *space = polar->space;
    const enum fire_dtype dtype = polar->dtype;
    const uint32_t n = space->cols, limit = step_limit(polar->plan);
    const size_t bytes = n * space->ld * fire_dtype_bytes(dtype);
    void *spare[2] = { aligned_alloc(64, (bytes + 63) / 64 * 64),
                       aligned_alloc(64, (bytes + 63) / 64 * 64) };
    enum fire_status status = polar_space_gram(space, polar->dtype);
    void *product = space->gram[0], *p = space->gram[1], *other = space->gram[2];

    if (status != FIRE_OK || !spare[0] || !spare[1]) {
        free(spare[0]);
        free(spare[1]);
        return FIRE_NO_MEMORY;
    }
    for (uint32_t i = 0; i < limit && !crew_is_abandoned(polar->crew); i++) {
        dense_mirror(polar->crew, dtype, space->g, space->ld, n);
        evaluate(polar, step_at(polar->plan, i), p, spare[0], spare[1]);
        dense_mirror(polar->crew, dtype, p, space->ld, n);
        polar->steps++;
        if (i == 0) {
            memcpy(product, p, bytes);
        } else {
            void *swap = product;

            dense_symmetric_product(polar->crew, dtype, n, product, p, space->ld, 1, 0, other);
            dense_mirror(polar->crew, dtype, other, space->ld, n);
            product = other;
            other = swap;
        }
        if (i + 1 == limit)
            break;
        dense_symmetric_product(polar->crew, dtype, n, space->g, p, space->ld, 1, 0, other);
        dense_mirror(polar->crew, dtype, other, space->ld, n);
        dense_symmetric_product(polar->crew, dtype, n, other, p, space->ld, 1, 0, space->g);
        if (looks_after(polar->plan, polar->steps) && dfi_of(polar) <= polar->plan->target)
            break;
    }
    if (limit > 0) {
        memcpy(space->g, product, bytes);
        polar_apply(polar, dtype);
    }
    free(spare[0]);
    free(spare[1]);
    return FIRE_OK;
}

/* The number x is divided by before the first step. */
static enum fire_status norm_of(struct polar *polar, double *norm)
{
    const struct fire_plan *plan = polar->plan;
    struct polar_space *space = polar->space;
    const struct fire_gram gram = polar_gram_view(polar, space->g, polar->dtype, 1);
    double dfi, square, trace;

    switch (plan->normalize) {
    case FIRE_NORMALIZE_AUTO:
    case FIRE_NORMALIZE_FROBENIUS: *norm = polar->norm * polar->prescale; return FIRE_OK;
    case FIRE_NORMALIZE_SPECTRAL: {
        const enum fire_status status = fire_gram_largest(
            &gram, SPECTRAL_STEPS,
            polar->dtype == FIRE_F64 ? SPECTRAL_TOLERANCE_F64 : SPECTRAL_TOLERANCE_F32, norm);

        *norm = sqrt(*norm);
        return status == FIRE_TOO_LATE ? FIRE_OK : status;
    }
    case FIRE_NORMALIZE_SCHATTEN: {
        const enum fire_status status = polar_space_gram(space, polar->dtype);

        if (status != FIRE_OK)
            return status;
        memcpy(space->gram[0], space->g, space->cols * space->ld * fire_dtype_bytes(polar->dtype));
        dense_mirror(polar->crew, polar->dtype, space->gram[0], space->ld, space->cols);
        dense_symmetric_product(polar->crew, polar->dtype, space->cols, space->gram[0],
                                space->gram[0], space->ld, 1, 0, space->gram[1]);
        crew_ops(polar->crew, polar->dtype)
            ->sums(space->gram[1], space->ld, space->cols, 1, &dfi, &square, &trace);
        *norm = sqrt(sqrt(sqrt(square)));
        return FIRE_OK;
    }
    }
    return FIRE_BAD_REQUEST;
}

enum fire_status polar_polynomial(struct polar *polar)
{
    const struct fire_plan *plan = polar->plan;
    struct polar_space *space = polar->space;
    /* Only the cubic's coefficients are tame enough for the Gram side to lose nothing. */
    const bool gram =
        plan->side == FIRE_SIDE_GRAM || (plan->side == FIRE_SIDE_AUTO && plan->step[0].terms == 2 &&
                                         space->rows >= GRAM_ASPECT * space->cols);
    enum fire_status status = polar_load(polar, plan->compute);
    char name[32];
    double norm;

    if (status != FIRE_OK)
        return status;
    polar_gram(polar);
    polar_note_before(polar, space->g, polar->dtype);
    status = norm_of(polar, &norm);
    if (status != FIRE_OK)
        return status;
    /* eps is added to the norm of the weights, not of the prescaled copy. */
    norm = norm + plan->eps * polar->prescale;
    polar->prescale /= norm;
    status = polar_load(polar, plan->compute);
    if (status != FIRE_OK)
        return status;
    crew_ops(polar->crew, polar->dtype)
        ->affine(space->g, space->ld, space->cols, 1 / (norm * norm), 0);
    polar->gram_valid = true;
    status = gram ? run_on_gram(polar) : run_on_x(polar);
    snprintf(name, sizeof(name), "%s%u x%u", gram ? "gram " : "", 2 * plan->step[0].terms - 1,
             polar->steps);
    polar_note(polar, name);
    return status;
}
