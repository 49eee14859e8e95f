#include "slot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "statistics.h"

#define CHUNK_ROWS     64u
#define ALONE_ELEMENTS (64u << 10) /* not worth waking others for when they are only scaled */
#define FACTOR_ERROR   1e-14       /* some roundings of f64 */

/* A pass over the rows of a matrix in chunks that depend on its shape only; the partial sums are
 * added up in order. */
struct pass {
    struct polar *polar;
    void *weights;
    double factor; /* see each pass */
    double blend;
    double *sums;    /* one for each chunk */
    double *squares; /* another one, of passes that measure too */
    void (*rows)(const struct pass *pass, uint32_t begin, uint32_t end, double *sum);
};

static void pass_task(void *data, uint32_t index, uint32_t worker)
{
    struct pass *pass = data;
    const uint32_t rows = pass->polar->space->rows;
    const uint32_t end = (index + 1) * CHUNK_ROWS < rows ? (index + 1) * CHUNK_ROWS : rows;

    (void)worker;
    pass->sums[index] = 0;
    pass->rows(pass, index * CHUNK_ROWS, end, &pass->sums[index]);
}

/* Runs the pass and returns how many chunks there were. Their sums lie in the inverse's array,
 * which is free between steps. */
static uint32_t run_chunks(struct pass *pass)
{
    const uint32_t chunks = (pass->polar->space->rows + CHUNK_ROWS - 1) / CHUNK_ROWS;

    pass->sums = pass->polar->space->inverse;
    crew_run(pass->polar->crew, chunks, pass_task, pass);
    return chunks;
}

static double run_pass(struct pass *pass)
{
    const uint32_t chunks = run_chunks(pass);
    double total = 0;

    for (uint32_t i = 0; i < chunks; i++)
        total += pass->sums[i];
    return total;
}

static double weight_at(const struct pass *pass, size_t index)
{
    return pass->polar->plan->compute == FIRE_F64 ? ((const double *)pass->weights)[index]
                                                  : (double)((const float *)pass->weights)[index];
}

/* The weights of rows [begin, end) and how many they are. */
static const void *weights_at(const struct pass *pass, uint32_t begin, uint32_t end, size_t *count)
{
    const uint32_t cols = pass->polar->space->cols;

    *count = (size_t)(end - begin) * cols;
    return (const char *)pass->weights +
           (size_t)begin * cols * fire_dtype_bytes(pass->polar->plan->compute);
}

/* Here the "sum" is the largest |w| of the chunk. */
static void rows_largest(const struct pass *pass, uint32_t begin, uint32_t end, double *sum)
{
    size_t count;
    const void *weights = weights_at(pass, begin, end, &count);

    *sum = crew_ops(pass->polar->crew, pass->polar->plan->compute)->largest(weights, count);
}

static void rows_square(const struct pass *pass, uint32_t begin, uint32_t end, double *sum)
{
    size_t count;
    const void *weights = weights_at(pass, begin, end, &count);

    *sum = crew_ops(pass->polar->crew, pass->polar->plan->compute)
               ->square(weights, pass->factor, count);
}

static double x_at(const struct polar *polar, size_t index)
{
    return polar->dtype == FIRE_F64 ? ((const double *)polar->space->x)[index]
                                    : (double)((const float *)polar->space->x)[index];
}

/* <Q, W>, which is the sum of the singular values. */
static void rows_inner(const struct pass *pass, uint32_t begin, uint32_t end, double *sum)
{
    const struct polar_space *space = pass->polar->space;

    for (uint32_t i = begin; i < end; i++) {
        double row = 0;

        for (uint32_t j = 0; j < space->cols; j++)
            row +=
                x_at(pass->polar, i * space->ld + j) * weight_at(pass, (size_t)i * space->cols + j);
        *sum += row;
    }
}

static double blended(const struct pass *pass, double q, double w)
{
    const double y = pass->blend * (pass->factor * q) + (1 - pass->blend) * w;

    return fire_dtype_round(pass->polar->plan->output, y);
}

/* Any row: blended with the old weights, rounded as the output will be. */
static double row_general(const struct pass *pass, uint32_t i)
{
    const struct polar_space *space = pass->polar->space;
    double sum = 0;

    for (uint32_t j = 0; j < space->cols; j++) {
        const size_t at = (size_t)i * space->cols + j;
        const double w = weight_at(pass, at);
        const double y = blended(pass, x_at(pass->polar, i * space->ld + j), w);

        sum += (y - w) * (y - w);
        if (pass->polar->plan->compute == FIRE_F64)
            ((double *)pass->weights)[at] = y;
        else
            ((float *)pass->weights)[at] = (float)y;
    }
    return sum;
}

/* The new weights; the sum is the SFE. */
static void rows_write(const struct pass *pass, uint32_t begin, uint32_t end, double *sum)
{
    const struct polar_space *space = pass->polar->space;
    const enum fire_dtype dtype = pass->polar->dtype;
    const bool plain = pass->blend == 1 && pass->polar->plan->output == FIRE_F32 &&
                       pass->polar->plan->compute == FIRE_F32;

    for (uint32_t i = begin; i < end; i++) {
        const char *q = (const char *)space->x + i * space->ld * fire_dtype_bytes(dtype);

        *sum += plain ? crew_ops(pass->polar->crew, dtype)
                            ->replace((float *)pass->weights + (size_t)i * space->cols, q,
                                      pass->factor, space->cols)
                      : row_general(pass, i);
    }
}

/* A plan without steps, and nobody asks what came of it: W only changes its length. */
static bool only_scales(const struct fire_plan *plan)
{
    return plan->kind == FIRE_PLAN_POLYNOMIAL && plan->steps == 0 && plan->statistics == 0 &&
           plan->compute == FIRE_F32 && plan->output == FIRE_F32 && plan->blend == 1 &&
           plan->scale != FIRE_SCALE_MEAN_SIGMA &&
           (plan->normalize == FIRE_NORMALIZE_AUTO || plan->normalize == FIRE_NORMALIZE_FROBENIUS);
}

static void measure(struct polar *polar)
{
    struct pass pass = { .polar = polar, .weights = (void *)polar->weights, .rows = rows_largest };
    uint32_t chunks;
    double largest = 0;
    int exponent = 0;

    polar->prescale = 1;
    polar->norm = 0;
    chunks = run_chunks(&pass);
    for (uint32_t i = 0; i < chunks; i++)
        largest = fmax(largest, pass.sums[i]);
    if (largest == 0)
        return;
    (void)frexp(largest, &exponent);
    polar->prescale = ldexp(1, -exponent);
    pass.rows = rows_square;
    pass.factor = polar->prescale;
    polar->norm = sqrt(run_pass(&pass)) / polar->prescale;
}

static double gram_at(const struct polar *polar, uint32_t i, uint32_t j)
{
    const size_t at = i * polar->space->ld + j;

    return polar->dtype == FIRE_F64 ? ((const double *)polar->space->g)[at]
                                    : (double)((const float *)polar->space->g)[at];
}

/* ||H - H^T||_F / ||W||_F of H = Q^T W: one product. */
static enum fire_status residual(struct polar *polar, double *value)
{
    struct polar_space *space = polar->space;
    struct polar_space other = { 0 }; /* holds W as x holds Q */
    struct polar weights = { .crew = polar->crew,
                             .plan = polar->plan,
                             .space = &other,
                             .weights = polar->weights,
                             .prescale = exp2(-ilogb(polar->norm)) };
    const enum fire_status status = polar_load(&weights, polar->dtype);
    double sum = 0;

    if (status == FIRE_OK) {
        const struct product product = {
            .m = space->cols,
            .n = space->cols,
            .k = space->rows,
            .a = space->x,
            .lda = space->ld,
            .a_transposed = true,
            .b = other.x,
            .ldb = space->ld,
            .c = space->g,
            .ldc = space->ld,
            .alpha = 1,
        };

        dense_product(polar->crew, polar->dtype, &product);
        for (uint32_t i = 0; i < space->cols; i++) {
            for (uint32_t j = i + 1; j < space->cols; j++) {
                const double d = gram_at(polar, i, j) - gram_at(polar, j, i);

                sum += 2 * d * d;
            }
        }
        *value = sqrt(sum) / (polar->norm * weights.prescale);
        /* G is gone; what was measured on it is still known. */
        if (polar->gram_valid && polar->dfi <= polar->plan->target)
            polar->certified = true;
        polar->gram_valid = false;
    }
    polar_space_release(&other);
    return status;
}

/* x <- the written weights divided by `divisor`. */
static void reload(struct polar *polar, const void *weights, double divisor)
{
    polar->weights = weights;
    polar->prescale = 1 / divisor;
    /* It fits: x held as much when these weights were loaded. */
    FIRE_ASSERT(polar_load(polar, polar->plan->compute) == FIRE_OK);
}

static void set_moment(struct polar *polar, double factor, struct fire_moment *moment)
{
    const struct fire_plan *plan = polar->plan;
    const struct fire_gram gram = polar_gram_view(polar, polar->space->g, polar->dtype, factor);

    fire_moment_from_gram(&gram, plan->out, plan->in, moment);
    (void)fire_moment_spectral_norm(&gram, moment);
}

static double measured_dfi(struct polar *polar)
{
    const struct fire_gram gram = polar_gram_view(polar, polar->space->g, polar->dtype, 1);

    if (!polar->gram_valid)
        polar_gram(polar);
    polar->gram_valid = true;
    return fire_gram_dfi(&gram);
}

/* `kept` may be NULL. */
static enum fire_status spectrum(const struct fire_plan *plan, const void *weights,
                                 struct fire_moment *moment, struct fire_spectrum *kept)
{
    double *values = malloc(plan->cols * sizeof(double));
    struct fire_error error;
    enum fire_status status = FIRE_NO_MEMORY;

    if (values) {
        status = fire_singular_values(weights, plan->compute, plan->rows, plan->cols, plan->cols, 1,
                                      values, &error);
        if (status == FIRE_OK)
            fire_moment_from_singular_values(values, plan->cols, moment);
        if (status == FIRE_OK && kept)
            fire_spectrum_choose(values, plan->cols, kept);
    }
    free(values);
    return status;
}

/* c of W = c Q. Only a converged Q gives the sum of the singular values as <Q, W>. */
static enum fire_status scale_of(struct polar *polar, void *weights, double *scale)
{
    const struct fire_plan *plan = polar->plan;
    struct pass pass = { .polar = polar, .weights = weights, .rows = rows_inner };
    enum fire_status status = FIRE_OK;

    *scale = plan->scale_factor;
    if (plan->scale == FIRE_SCALE_KEEP_NORM) {
        *scale *= polar->norm / sqrt(plan->cols);
    } else if (plan->scale == FIRE_SCALE_MEAN_SIGMA && plan->kind == FIRE_PLAN_CONVERGE) {
        *scale *= run_pass(&pass) / plan->cols;
    } else if (plan->scale == FIRE_SCALE_MEAN_SIGMA) {
        double *values = malloc(plan->cols * sizeof(double));
        struct fire_error error;
        double sum = 0;

        if (!values)
            return FIRE_NO_MEMORY;
        status = fire_singular_values(weights, plan->compute, plan->rows, plan->cols, plan->cols, 1,
                                      values, &error);
        for (uint32_t i = 0; i < plan->cols && status == FIRE_OK; i++)
            sum += values[i];
        *scale *= sum / plan->cols;
        free(values);
    }
    return status;
}

/* Statistics of what was written. `c` is the scale. */
static void describe(struct polar *polar, void *weights, double c, struct fire_result *result)
{
    const struct fire_plan *plan = polar->plan;
    const bool exact = plan->blend == 1 && plan->output == plan->compute;

    if (!(plan->statistics & FIRE_STATISTICS_BASIC)) {
        if (polar->gram_valid)
            result->dfi_unscaled_after = polar->dfi;
        result->converged = polar->gram_valid ? polar->dfi <= plan->target : polar->certified;
        return;
    }
    result->before = polar->before;
    if (!exact && plan->blend == 1 && c != 0)
        reload(polar, weights, c); /* Q as the output's dtype holds it */
    result->dfi_unscaled_after = measured_dfi(polar);
    result->converged = result->dfi_unscaled_after <= plan->target;
    if (plan->blend == 1 && c != 0) {
        set_moment(polar, c * c, &result->after);
    } else {
        /* Blended weights may be as large or small as the old ones, and G is their square. */
        polar->weights = weights;
        measure(polar);
        reload(polar, weights, 1 / polar->prescale);
        polar_gram(polar);
        set_moment(polar, 1 / (polar->prescale * polar->prescale), &result->after);
    }
    result->norm_preservation = result->after.norm / result->before.norm;
}

/* From Q in the space to the weights and their result. */
static enum fire_status finish(struct polar *polar, struct fire_slot *slot)
{
    const struct fire_plan *plan = polar->plan;
    struct fire_result *result = slot->result;
    struct pass write = {
        .polar = polar, .weights = slot->weights, .blend = plan->blend, .rows = rows_write
    };
    enum fire_status status = FIRE_OK;

    if (plan->statistics & FIRE_STATISTICS_RESIDUAL ||
        (plan->statistics & FIRE_STATISTICS_BASIC && (plan->fast || polar->hard)))
        status = residual(polar, &result->polar_residual);
    if (crew_is_abandoned(polar->crew))
        return FIRE_CANCELLED;
    if (status == FIRE_OK && plan->statistics & FIRE_STATISTICS_SPECTRUM)
        status = spectrum(plan, slot->weights, &polar->before,
                          slot->spectra ? &slot->spectra->before : NULL);
    if (status == FIRE_OK)
        status = scale_of(polar, slot->weights, &result->scale);
    if (status == FIRE_OK && crew_is_abandoned(polar->crew))
        status = FIRE_CANCELLED;
    if (status != FIRE_OK)
        return status;
    write.factor = result->scale;
    result->sfe = run_pass(&write);
    /* A named polynomial may diverge, a scale be too large for the output: nobody wants NaN or Inf
     * as weights. Only f64 weights beyond 1e154 have an infinite SFE by themselves. */
    if (!isfinite(result->sfe) && isfinite(polar->norm * polar->norm))
        return FIRE_BAD_REQUEST;
    result->sfe_relative = result->sfe / (polar->norm * polar->norm);
    describe(polar, slot->weights, result->scale, result);
    if (plan->statistics & FIRE_STATISTICS_SPECTRUM && !crew_is_abandoned(polar->crew)) {
        const struct fire_moment *m = &polar->before;

        result->before.spectral_norm = m->spectral_norm;
        result->before.stable_rank = m->stable_rank;
        result->before.effective_rank = m->effective_rank;
        result->before.srank = m->srank;
        result->before.condition = m->condition;
        /* The weights are written: a spectrum that cannot be had now is absent. */
        (void)spectrum(plan, slot->weights, &result->after,
                       slot->spectra ? &slot->spectra->after : NULL);
    }
    result->rank_defect = polar->rank_defect;
    result->rank = plan->cols - polar->rank_defect;
    result->steps = polar->steps;
    snprintf(result->method, sizeof(result->method), "%s", polar->method);
    return FIRE_OK;
}

static enum fire_status project(struct polar *polar, struct fire_slot *slot)
{
    const struct fire_plan *plan = polar->plan;
    enum fire_status status =
        plan->kind == FIRE_PLAN_CONVERGE ? polar_converge(polar) : polar_polynomial(polar);

    if (crew_is_abandoned(polar->crew))
        return FIRE_CANCELLED;
    if (status == FIRE_OK && polar->rank_defect && plan->complete)
        status = polar_complete(polar, slot->seed);
    return status == FIRE_OK ? finish(polar, slot) : status;
}

static enum fire_status analyze(struct polar *polar, struct fire_slot *slot)
{
    const struct fire_plan *plan = polar->plan;
    enum fire_status status = polar_load(polar, plan->compute);

    if (status != FIRE_OK)
        return status;
    polar_gram(polar);
    if (crew_is_abandoned(polar->crew))
        return FIRE_CANCELLED;
    polar_note_before(polar, polar->space->g, polar->dtype);
    slot->result->before = polar->before;
    if (plan->statistics & FIRE_STATISTICS_SPECTRUM)
        status = spectrum(plan, slot->weights, &slot->result->before,
                          slot->spectra ? &slot->spectra->before : NULL);
    snprintf(slot->result->method, sizeof(slot->result->method), "analyze");
    return status;
}

/* The zero matrix has no direction: it maps to itself, or to a seeded isometry when completed. */
static enum fire_status zero(struct polar *polar, struct fire_slot *slot)
{
    const struct fire_plan *plan = polar->plan;
    struct fire_result *result = slot->result;
    enum fire_status status = polar_load(polar, plan->compute);

    if (status != FIRE_OK)
        return status;
    polar_gram(polar);
    polar_note_before(polar, polar->space->g, polar->dtype);
    polar->rank_defect = plan->cols;
    if (plan->complete)
        status = polar_complete(polar, slot->seed);
    if (status != FIRE_OK)
        return status;
    polar_gram(polar);
    polar->gram_valid = true;
    struct pass write = {
        .polar = polar, .weights = slot->weights, .blend = plan->blend, .rows = rows_write
    };

    status = scale_of(polar, slot->weights, &result->scale);
    if (status != FIRE_OK)
        return status;
    write.factor = result->scale;
    result->sfe = run_pass(&write);
    describe(polar, slot->weights, result->scale, result);
    result->rank_defect = polar->rank_defect;
    result->rank = plan->cols - polar->rank_defect;
    result->steps = polar->steps;
    snprintf(result->method, sizeof(result->method), "%s",
             plan->complete ? polar->method : "zero matrix");
    return FIRE_OK;
}

static void rows_rescale(const struct pass *pass, uint32_t begin, uint32_t end, double *sum)
{
    size_t count;
    const void *weights = weights_at(pass, begin, end, &count);
    double square;

    *sum = pass->polar->crew->engine->rescale((float *)weights, pass->factor, count, &square);
    if (pass->squares)
        pass->squares[begin / CHUNK_ROWS] = square;
}

/* What a norm of at least `norm` makes of the factor that keeps it, c ||W|| / (||W|| + eps): true
 * when that is the same f32 however large it is. */
static bool factor_is_known(const struct fire_plan *plan, double norm, double *factor)
{
    const double most = plan->scale_factor / sqrt(plan->cols);
    const double least = most * (norm / (norm + plan->eps));

    *factor = most;
    return plan->scale == FIRE_SCALE_KEEP_NORM && plan->scale_factor > 0 && plan->eps >= 0 &&
           norm > 0 && norm >= plan->min_norm &&
           (float)(least * (1 - FACTOR_ERROR)) == (float)(most * (1 + FACTOR_ERROR));
}

/* ||W||. Where the factor needs no more than a part of it, W is scaled in the same pass and the sfe
 * is known; else that is NaN. Squares of f32 neither overflow nor vanish in f64. */
static void measure_and_scale(struct polar *polar, struct fire_slot *slot)
{
    struct pass pass = {
        .polar = polar, .weights = slot->weights, .factor = 1, .rows = rows_square
    };
    const uint32_t rows = polar->space->rows;
    const uint32_t chunks = (rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
    double part = 0, factor, total = 0;

    rows_square(&pass, 0, rows < CHUNK_ROWS ? rows : CHUNK_ROWS, &part);
    if (!factor_is_known(polar->plan, sqrt(part), &factor)) {
        polar->norm = sqrt(run_pass(&pass));
        return;
    }
    pass.factor = factor;
    pass.rows = rows_rescale;
    pass.squares = (double *)polar->space->inverse + chunks; /* after the sums */
    slot->result->sfe = run_pass(&pass);
    for (uint32_t i = 0; i < chunks; i++)
        total += pass.squares[i];
    polar->norm = sqrt(total);
}

/* W <- c W / (||W|| + eps) in one or two passes, without G or a copy. */
static enum fire_status rescale(struct polar *polar, struct fire_slot *slot)
{
    const struct fire_plan *plan = polar->plan;
    struct fire_result *result = slot->result;
    struct pass pass = { .polar = polar, .weights = slot->weights, .rows = rows_rescale };
    const enum fire_status status = scale_of(polar, slot->weights, &result->scale);

    if (status != FIRE_OK)
        return status;
    pass.factor = result->scale / (polar->norm + plan->eps);
    if (isnan(result->sfe))
        result->sfe = run_pass(&pass);
    if (!isfinite(result->sfe))
        return FIRE_BAD_REQUEST;
    result->sfe_relative = result->sfe / (polar->norm * polar->norm);
    result->rank = plan->cols;
    snprintf(result->method, sizeof(result->method), "scale");
    return FIRE_OK;
}

static double milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static void refuse(struct fire_result *result, enum fire_status status)
{
    result->action = FIRE_ACTION_REFUSED;
    result->status = status;
    snprintf(result->reason, sizeof(result->reason), "%s",
             status == FIRE_NO_MEMORY
                 ? "out of memory"
                 : "the iteration or its result left the range of its numbers");
}

/* An empty result, room in the space, the norm of the weights. False: refused. */
static bool begin(struct polar *polar, struct fire_slot *slot)
{
    struct fire_result *result = slot->result;
    enum fire_status status;

    fire_result_init(result);
    if (slot->spectra)
        slot->spectra->before.count = slot->spectra->after.count = 0;
    polar->before = result->before;
    result->path = polar->crew->engine->name;
    result->matrices = 1;
    status = polar_space_prepare(polar->space, polar->plan, polar->plan->compute);
    if (status != FIRE_OK)
        refuse(result, status);
    else if (only_scales(polar->plan))
        measure_and_scale(polar, slot);
    else
        measure(polar);
    if (crew_is_abandoned(polar->crew)) {
        status = FIRE_CANCELLED;
        refuse(result, status);
    }
    return status == FIRE_OK;
}

static void end(struct fire_slot *slot, enum fire_status status)
{
    slot->result->action = FIRE_ACTION_PROJECTED;
    slot->result->status = FIRE_OK;
    if (status != FIRE_OK)
        refuse(slot->result, status);
}

void slot_run(const struct crew *crew, const struct fire_plan *plan, struct polar_space *space,
              struct fire_slot *slot)
{
    struct polar polar = { .crew = crew, .plan = plan, .space = space, .weights = slot->weights };
    struct fire_result *result = slot->result;
    const struct crew alone = crew_alone(crew);
    const double start = milliseconds();
    enum fire_status status;

    if (only_scales(plan) && (uint64_t)plan->rows * plan->cols <= ALONE_ELEMENTS)
        polar.crew = &alone;
    if (!begin(&polar, slot))
        return;
    if (plan->kind == FIRE_PLAN_ANALYZE) {
        status = analyze(&polar, slot);
    } else if (polar.norm < plan->min_norm) {
        result->action = FIRE_ACTION_SKIPPED;
        result->status = FIRE_OK;
        snprintf(result->reason, sizeof(result->reason), "norm %.3g below min_norm %.3g",
                 polar.norm, plan->min_norm);
        return;
    } else if (polar.norm == 0) {
        status = zero(&polar, slot);
    } else {
        status = only_scales(plan) ? rescale(&polar, slot) : project(&polar, slot);
    }
    end(slot, crew_is_abandoned(crew) ? FIRE_CANCELLED : status);
    result->compute_ms = milliseconds() - start;
}

void slot_finish(const struct crew *crew, const struct fire_plan *plan, struct polar_space *space,
                 struct fire_slot *slot, const struct slot_factor *factor)
{
    struct polar polar = { .crew = crew, .plan = plan, .space = space, .weights = slot->weights };
    const double start = milliseconds();
    double *x;

    if (!begin(&polar, slot))
        return;
    const enum fire_status status = polar_load(&polar, FIRE_F64);

    if (status != FIRE_OK) {
        end(slot, status);
        return;
    }
    if (plan->statistics & FIRE_STATISTICS_BASIC) {
        polar_gram(&polar);
        polar_note_before(&polar, space->g, polar.dtype);
    }
    x = space->x;
    for (uint32_t i = 0; i < plan->rows; i++) {
        for (uint32_t j = 0; j < plan->cols; j++)
            x[i * space->ld + j] = factor->q[((size_t)i * plan->cols + j) * factor->stride];
    }
    polar.norm = factor->norm;
    polar.certified = true;
    polar.steps = factor->steps;
    polar_note(&polar, factor->method);
    end(slot, finish(&polar, slot));
    slot->result->compute_ms = milliseconds() - start;
}
