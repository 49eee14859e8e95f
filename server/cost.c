/* cost: the counts below are of the products a plan makes; what they leave out (eigensolves, looks,
 * copies) is in the rate that is measured. m is the long side, r the short one. */
#include "cost.h"

#include <math.h>

#define TINY_SIDE  32u /* up to this short side a lane of the vector unit takes a matrix, */
#define TINY_LANES 16u
#define WHOLE_SIDE 128u /* up to this one a worker does, */
#define COMPANY_SIDE                                                                               \
    1024u                 /* and up to this one where all have one (cpu_backend.c deals them out) */
#define CONVERGE_R    8.0 /* r x r products of a projection to its target */
#define EIGEN_R       20.0 /* an eigensolve, in r x r products at the speed of products */
#define F64_FACTOR    2.5
#define AUTO_STEPS    12.0  /* of a named polynomial that runs until its target */
#define TOUCH         8.0   /* reading and writing an element, in flops */
#define LEARN_SHARE   0.05  /* of what a batch says about its class */
#define LEARN_MOST    4.0   /* a batch that took so much longer or shorter counts as that */
#define SECONDS_LEAST 1e-15 /* a flop */

uint32_t cost_class(const struct fire_plan *plan)
{
    const uint32_t cols = plan->cols ? plan->cols : 1;
    const uint32_t log = 31u - (uint32_t)__builtin_clz(cols);

    return log < COST_CLASSES ? log : COST_CLASSES - 1;
}

uint32_t cost_granule(const struct cost_model *model, const struct fire_plan *plan)
{
    if (plan->cols <= TINY_SIDE)
        return TINY_LANES * model->workers;
    return plan->cols <= WHOLE_SIDE ? model->workers : 1;
}

uint32_t cost_company(const struct cost_model *model, const struct fire_plan *plan)
{
    const uint32_t granule = cost_granule(model, plan);

    return granule == 1 && plan->cols <= COMPANY_SIDE ? model->workers : granule;
}

static double polynomial_flops(const struct fire_plan *plan)
{
    const double m = plan->rows, r = plan->cols;
    const double steps = plan->steps >= 0 ? plan->steps : fmin((double)plan->max_steps, AUTO_STEPS);
    double on_x = 0, on_gram = 0;

    for (uint32_t i = 0; i < (uint32_t)steps && plan->step_count; i++) {
        const uint32_t at = i < plan->step_count ? i : plan->step_count - 1;
        const double terms = plan->step[at].terms;

        on_x += m * r * r + (terms - 1) * r * r * r + 2 * m * r * r;
        on_gram += (terms + 3) * 2 * r * r * r;
    }
    if (steps > 0)
        on_gram += 3 * m * r * r;
    switch (plan->side) {
    case FIRE_SIDE_X: return on_x;
    case FIRE_SIDE_GRAM: return on_gram;
    case FIRE_SIDE_AUTO: return fmin(on_x, on_gram);
    }
    return on_x;
}

double cost_flops(const struct fire_plan *plan)
{
    const double m = plan->rows, r = plan->cols;
    double flops = TOUCH * m * r;

    switch (plan->kind) {
    case FIRE_PLAN_CONVERGE: flops += 5 * m * r * r + CONVERGE_R * 2 * r * r * r; break;
    case FIRE_PLAN_POLYNOMIAL: flops += polynomial_flops(plan); break;
    case FIRE_PLAN_ANALYZE: flops += m * r * r; break;
    }
    if (plan->statistics & FIRE_STATISTICS_BASIC)
        flops += 2 * m * r * r;
    if (plan->statistics & FIRE_STATISTICS_SPECTRUM)
        flops += (plan->kind == FIRE_PLAN_ANALYZE ? 1 : 2) * EIGEN_R * 2 * r * r * r;
    if (plan->statistics & FIRE_STATISTICS_RESIDUAL)
        flops += 2 * m * r * r;
    return plan->compute == FIRE_F64 ? F64_FACTOR * flops : flops;
}

/* A worker or lane that has nothing to do costs as much as one that has. */
static double filled_count(const struct cost_model *model, const struct fire_plan *plan,
                           uint32_t matrix_count)
{
    const double granule = cost_granule(model, plan);

    return ceil(matrix_count / granule) * granule;
}

double cost_seconds(const struct cost_model *model, const struct fire_plan *plan,
                    uint32_t matrix_count)
{
    return model->batch_overhead_s + filled_count(model, plan, matrix_count) * cost_flops(plan) *
                                         model->seconds_per_flop[cost_class(plan)];
}

void cost_learn(struct cost_model *model, const struct fire_plan *plan, uint32_t matrix_count,
                double seconds)
{
    double *rate = &model->seconds_per_flop[cost_class(plan)];
    const double flops = filled_count(model, plan, matrix_count) * cost_flops(plan);
    double ratio;

    if (!(flops > 0) || !(seconds > model->batch_overhead_s))
        return;
    ratio = (seconds - model->batch_overhead_s) / flops / *rate;
    ratio = fmin(fmax(ratio, 1 / LEARN_MOST), LEARN_MOST);
    *rate = fmax(*rate * pow(ratio, LEARN_SHARE), SECONDS_LEAST);
}

void cost_calibrate(struct cost_model *model, const struct cost_sample *samples,
                    uint32_t sample_count, double batch_overhead_s, uint32_t workers)
{
    double last_log = 0;
    uint32_t next_class = 0;

    model->batch_overhead_s = batch_overhead_s;
    model->workers = workers ? workers : 1;
    for (uint32_t i = 0; i < sample_count; i++) {
        const struct cost_sample *sample = &samples[i];
        const uint32_t at = cost_class(sample->plan);
        const double flops =
            filled_count(model, sample->plan, sample->matrix_count) * cost_flops(sample->plan);
        /* A batch that took hardly more than an empty one still took something. */
        const double seconds = fmax(sample->seconds - batch_overhead_s, sample->seconds / 10);
        const double log_rate = log(fmax(seconds / flops, SECONDS_LEAST));
        const double span = at + 1 - next_class;

        for (uint32_t class = next_class; class <= at; class ++) {
            const double part = i == 0 ? 1 : (class + 1 - next_class) / span;

            model->seconds_per_flop[class] = exp(last_log + part * (log_rate - last_log));
        }
        next_class = at + 1;
        last_log = log_rate;
    }
    for (uint32_t class = next_class; class < COST_CLASSES; class ++)
        model->seconds_per_flop[class] = exp(last_log);
}
