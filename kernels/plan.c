#include "plan.h"

#include <math.h>
#include <string.h>

#include "minimax_coefficients.h"

/* NUMERICS.md section 4, powers of G. */
static const struct fire_polynomial_step cubic = { 2, { 1.5, -0.5 } };
static const struct fire_polynomial_step muon = { 3, { 3.4445, -4.7750, 2.0315 } };
static const struct fire_polynomial_step polar_express[] = {
    { 3, { 8.156555, -22.483293, 15.878770 } }, { 3, { 4.042930, -2.808917, 0.500018 } },
    { 3, { 3.891668, -2.772484, 0.506065 } },   { 3, { 3.285754, -2.368129, 0.464490 } },
    { 3, { 2.346541, -1.709783, 0.423236 } },
};
static const struct fire_polynomial_step taylor9 = {
    5, { 315.0 / 128, -420.0 / 128, 378.0 / 128, -180.0 / 128, 35.0 / 128 }
};
#define MINIMAX_LOWER  1e-3 /* the chain that `polynomial=minimax` runs before Taylor steps */
#define MINIMAX_STEPS  4u
#define STEPS_OF(list) (sizeof(list) / sizeof((list)[0]))

static void set_steps(struct fire_plan *plan, const struct fire_polynomial_step *steps,
                      size_t count)
{
    memcpy(plan->step, steps, count * sizeof(steps[0]));
    plan->step_count = (uint32_t)count;
}

static void set_minimax(struct fire_plan *plan)
{
    const struct minimax_chain *chain = minimax_chains;

    while (chain->lower != MINIMAX_LOWER || chain->cushion != 0)
        chain++;
    for (uint32_t i = 0; i < MINIMAX_STEPS; i++) {
        plan->step[i].terms = 5;
        memcpy(plan->step[i].c, chain->step[i].power, sizeof(chain->step[i].power));
    }
    plan->step[MINIMAX_STEPS] = taylor9;
    plan->step_count = MINIMAX_STEPS + 1;
}

static void set_polynomial(struct fire_plan *plan, const struct fire_options *options)
{
    plan->kind = FIRE_PLAN_POLYNOMIAL;
    switch (options->polynomial) {
    case FIRE_POLYNOMIAL_AUTO: /* a counted number of steps, of the kind everybody counts */
    case FIRE_POLYNOMIAL_CUBIC: set_steps(plan, &cubic, 1); break;
    case FIRE_POLYNOMIAL_MUON: set_steps(plan, &muon, 1); break;
    case FIRE_POLYNOMIAL_POLAR_EXPRESS:
        set_steps(plan, polar_express, STEPS_OF(polar_express));
        break;
    case FIRE_POLYNOMIAL_MINIMAX: set_minimax(plan); break;
    case FIRE_POLYNOMIAL_CUSTOM:
        for (uint32_t i = 0; i < options->custom_count; i++) {
            plan->step[i].terms = 3;
            memcpy(plan->step[i].c, options->custom[i], sizeof(options->custom[i]));
        }
        plan->step_count = options->custom_count;
        break;
    }
}

/* c of W = c Q, as far as the shape determines it; a standard deviation s of the entries means
 * c = s sqrt(max(m, n)). */
static double shape_scale(const struct fire_options *options, const struct fire_view *view)
{
    const double m = view->rows, n = view->cols;
    const double root = sqrt(m > n ? m : n);

    switch (options->scale) {
    case FIRE_SCALE_FAN_RATIO: return sqrt(m / n) / view->tap_count;
    case FIRE_SCALE_FAN_IN: return sqrt(n);
    case FIRE_SCALE_KAIMING: return sqrt(2.0 / (double)view->fan_in) * root;
    case FIRE_SCALE_XAVIER:
        return sqrt(2.0 / ((double)view->fan_in + (double)view->fan_out)) * root;
    case FIRE_SCALE_UNIFORM: return 1.0 / sqrt(3.0 * (double)view->fan_in) * root;
    case FIRE_SCALE_STD: return options->scale_std * root;
    case FIRE_SCALE_ONE:
    case FIRE_SCALE_KEEP_NORM:
    case FIRE_SCALE_MEAN_SIGMA: return 1.0;
    }
    return 1.0;
}

/* Over the plan with its digest still 0, word by word: equal plans, equal digests. */
static uint64_t digest_of(const struct fire_plan *plan)
{
    const unsigned char *bytes = (const unsigned char *)plan;
    uint64_t digest = 0xcbf29ce484222325u;
    uint64_t word;

    _Static_assert(sizeof(*plan) % sizeof(word) == 0, "the plan is whole words");
    for (size_t i = 0; i < sizeof(*plan); i += sizeof(word)) {
        memcpy(&word, bytes + i, sizeof(word));
        digest = (digest ^ word) * 0x9e3779b97f4a7c15u;
        digest ^= digest >> 32; /* a product carries upwards only */
    }
    return digest;
}

static void set_shape(struct fire_plan *plan, const struct fire_options *options,
                      const struct fire_view *view, enum fire_dtype output, uint32_t statistics)
{
    memset(plan, 0, sizeof(*plan)); /* padding too: the digest reads it */
    plan->rows = fire_view_long(view);
    plan->cols = fire_view_short(view);
    plan->out = view->rows;
    plan->in = view->cols;
    plan->compute =
        options->compute == FIRE_COMPUTE_F64 || output == FIRE_F64 ? FIRE_F64 : FIRE_F32;
    plan->output = output;
    plan->statistics = statistics;
}

enum fire_status fire_plan_make(struct fire_plan *plan, const struct fire_options *options,
                                const struct fire_view *view, enum fire_dtype output,
                                uint32_t statistics, struct fire_error *error)
{
    const enum fire_status status =
        fire_options_check(options, output, view->rows, view->cols, error);

    if (status != FIRE_OK)
        return status;
    set_shape(plan, options, view, output, statistics);
    if (options->steps == FIRE_STEPS_AUTO && options->polynomial == FIRE_POLYNOMIAL_AUTO)
        plan->kind = FIRE_PLAN_CONVERGE;
    else
        set_polynomial(plan, options);
    plan->fast = options->compute == FIRE_COMPUTE_FAST;
    plan->normalize = options->normalize;
    plan->eps = options->eps;
    plan->steps = options->steps;
    plan->max_steps = options->max_steps ? options->max_steps : 100;
    plan->target = fire_options_target(options, output, view->rows, view->cols);
    plan->check = options->check ? options->check : 1;
    plan->target_form = options->target_form;
    plan->side = options->side;
    plan->scale = options->scale;
    plan->scale_factor = options->variance * shape_scale(options, view);
    plan->blend = options->blend;
    plan->min_norm = options->min_norm;
    plan->complete = options->complete;
    plan->digest = digest_of(plan);
    return FIRE_OK;
}

enum fire_status fire_plan_analyze(struct fire_plan *plan, const struct fire_options *options,
                                   const struct fire_view *view, enum fire_dtype output,
                                   uint32_t statistics, struct fire_error *error)
{
    if (!(statistics & (FIRE_STATISTICS_BASIC | FIRE_STATISTICS_SPECTRUM)))
        return fire_fail(error, FIRE_BAD_REQUEST, "statistics",
                         "an analysis needs basic or spectrum statistics");
    set_shape(plan, options, view, output, statistics);
    plan->kind = FIRE_PLAN_ANALYZE;
    plan->digest = digest_of(plan);
    return FIRE_OK;
}
