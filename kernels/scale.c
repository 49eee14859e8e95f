/* scale: what is known of the factor, which loop runs, and what came of it. */
#include "scale.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "scale_internal.h"

#define FACTOR_ERROR 1e-14 /* some roundings of f64 */

bool fire_scale_takes(const struct fire_plan *plan)
{
    return plan->kind == FIRE_PLAN_POLYNOMIAL && plan->steps == 0 && plan->statistics == 0 &&
           plan->compute == FIRE_F32 && plan->output == FIRE_F32 && plan->blend == 1 &&
           plan->scale != FIRE_SCALE_MEAN_SIGMA &&
           (plan->normalize == FIRE_NORMALIZE_AUTO || plan->normalize == FIRE_NORMALIZE_FROBENIUS);
}

bool fire_scale_factor(const struct fire_plan *plan, double norm, double *factor)
{
    /* c ||W|| / (||W|| + eps), which grows with the norm */
    const double most = plan->scale_factor / sqrt(plan->cols);
    const double least = most * (norm / (norm + plan->eps));

    *factor = most;
    return plan->scale == FIRE_SCALE_KEEP_NORM && plan->scale_factor > 0 && plan->eps >= 0 &&
           norm > 0 && norm >= plan->min_norm &&
           (float)(least * (1 - FACTOR_ERROR)) == (float)(most * (1 + FACTOR_ERROR));
}

/* --- the loops -------------------------------------------------------------------------------- */

static size_t first_bad(const char *numbers, size_t begin, size_t count)
{
    for (; begin < count; begin++) {
        float number;

        memcpy(&number, numbers + begin * sizeof(number), sizeof(number));
        if (!isfinite(number))
            break;
    }
    return begin;
}

size_t fire_scale_run(struct fire_scale_sums *sums, void *numbers, size_t count, double factor)
{
    size_t done;

#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        done = scale_run_avx2(sums, numbers, count, (float)factor);
    else
#endif
        done = scale_run_portable(sums, numbers, count, (float)factor);
    return done == count ? count : first_bad(numbers, done, count);
}

void fire_scale_measure(struct fire_scale_sums *sums, const void *numbers, size_t count)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        scale_measure_avx2(sums, numbers, count);
        return;
    }
#endif
    scale_measure_portable(sums, numbers, count);
}

/* --- what came of it -------------------------------------------------------------------------- */

static double total(const double lanes[FIRE_SCALE_LANES])
{
    double sum = 0;

    for (uint32_t i = 0; i < FIRE_SCALE_LANES; i++)
        sum += lanes[i];
    return sum;
}

double fire_scale_square(const struct fire_scale_sums *sums)
{
    return total(sums->square);
}

double fire_scale_change(const struct fire_scale_sums *sums)
{
    return total(sums->change);
}

void fire_scale_result(const struct fire_plan *plan, double norm, double sfe,
                       struct fire_result *result)
{
    result->scale = plan->scale_factor;
    if (plan->scale == FIRE_SCALE_KEEP_NORM)
        result->scale *= norm / sqrt(plan->cols);
    result->sfe = sfe;
    if (!isfinite(sfe)) {
        result->action = FIRE_ACTION_REFUSED;
        result->status = FIRE_BAD_REQUEST;
        snprintf(result->reason, sizeof(result->reason),
                 "the result left the range of its numbers");
        return;
    }
    result->action = FIRE_ACTION_PROJECTED;
    result->status = FIRE_OK;
    result->sfe_relative = sfe / (norm * norm);
    result->rank = plan->cols;
    snprintf(result->method, sizeof(result->method), "scale");
}
