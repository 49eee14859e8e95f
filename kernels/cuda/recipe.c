/* recipe: a static chain of steps that finishes what is expected of a shape. A matrix that turns
 * out to be harder is told by its DfI and goes through a second segment, or to the CPU. */
#include "recipe.h"

#include <math.h>
#include <string.h>

#include "minimax_coefficients.h"

#define LONG_ASPECT      1.5
#define GRAM_LOWER       0.03 /* from this lower bound on the r x r side is accurate enough */
#define SQUARE_SHARE     0.45 /* of Gaussian squares: sigma_min / sigma_max >= share / r mostly */
#define LONG_SHARE       0.8  /* of long ones: of what random matrix theory expects */
#define BLOCKS_SIDE      512u
#define CHUNK_ELEMENTS   (1u << 21)
#define CHUNK_MAX        64u
#define AUTO_FIRST       16u /* steps of a named polynomial before those that are done leave */
#define FUSED_EXTRA      3u
#define CONTINUE_LAST    1u
#define CONTINUE_NEAR    2u
#define CONTINUE_FAR     3u
#define ROUNDED_DFI      1e-12 /* of a column: more than rounding leaves */
#define SPLIT_LOWER      1e-2  /* of the first of two chains, unless only the DfI counts */
#define SPLIT_SECOND     3e-2  /* of the second */
#define SPLIT_SCALE      0.995 /* between them */
#define SPLIT_SCALE_TF32 0.97
#define WIDEN            1.00001
#define LANCZOS_BEFORE   40u
#define LANCZOS_AFTER    12u
#define ROUNDOFF         3e-8 /* of f32, times what a step adds up to */

/* c0 + c1 G + … + c4 G^4 as a (G^2 + b G + c)^2 + d G + e. */
static struct recipe_step squared_form(const double *power)
{
    const double a = power[4], b = power[3] / (2 * a), c = (power[2] / a - b * b) / 2;

    return (struct recipe_step){ 5, { a, b, c, power[1] - 2 * a * b * c, power[0] - a * c * c } };
}

static struct recipe_step taylor_step(void)
{
    static const double power[5] = { 315.0 / 128, -420.0 / 128, 378.0 / 128, -180.0 / 128,
                                     35.0 / 128 };

    return squared_form(power);
}

static struct recipe_step plan_step(const struct fire_plan *plan, uint32_t index)
{
    const struct fire_polynomial_step *p =
        &plan->step[index < plan->step_count ? index : plan->step_count - 1];
    struct recipe_step step = { p->terms, { 0 } };

    if (p->terms > 3)
        return squared_form(p->c);
    for (uint32_t i = 0; i < p->terms; i++)
        step.c[i] = p->c[i];
    return step;
}

/* --- converging ------------------------------------------------------------------------------ */

/* sigma_min over the bound ||G^2||_F^(1/4) of sigma_max that a random matrix of this shape has. */
static double expected_lower(uint32_t rows, uint32_t cols)
{
    const double r = cols, side = sqrt(r / rows);
    const double bound = fmax(1, pow(14 * r, 0.125) / 2);

    if (rows >= LONG_ASPECT * cols)
        return LONG_SHARE * (1 - side) / (1 + side) / bound;
    return SQUARE_SHARE / r / bound;
}

static const struct minimax_chain *chain_for(double lower)
{
    const size_t count = sizeof(minimax_chains) / sizeof(minimax_chains[0]);
    const struct minimax_chain *best = NULL;

    for (size_t i = 0; i < count; i++) {
        const struct minimax_chain *chain = &minimax_chains[i];

        if (chain->cushion == 0 && (!best || best->lower > lower))
            best = chain;
    }
    FIRE_ASSERT(best != NULL); /* the table has chains without a cushion */
    return best;
}

static void add_chain(struct recipe *recipe, const struct minimax_chain *chain)
{
    for (uint32_t i = 0; i < chain->step_count; i++) {
        struct recipe_step *step = &recipe->step[recipe->step_count++];

        step->terms = 5;
        memcpy(step->c, chain->step[i].squared, sizeof(step->c));
    }
}

/* p(G) times a factor. */
static void scale_step(struct recipe_step *step, double factor)
{
    step->c[0] *= factor;
    step->c[3] *= factor;
    step->c[4] *= factor;
}

/* A chain takes large singular values down to about what its first step lifts small ones to, and
 * rounding with them: one that reaches further costs accuracy. Two short ones one after the other
 * reach as far as a long one of as many steps: after the first all but a few singular values are
 * at 1, and a little below it, for the second allows none above. */
static void set_steps(struct recipe *recipe, double expected, bool fast)
{
    if (fast || expected >= SPLIT_LOWER) {
        add_chain(recipe, chain_for(expected));
        recipe->step[recipe->step_count++] = taylor_step();
        return;
    }
    add_chain(recipe, chain_for(SPLIT_LOWER));
    recipe->split = recipe->step_count;
    scale_step(&recipe->step[recipe->split - 1],
               recipe->precision == RECIPE_TF32_EARLY ? SPLIT_SCALE_TF32 : SPLIT_SCALE);
    add_chain(recipe, chain_for(SPLIT_SECOND));
    if (recipe->fused) /* which repeats its last step */
        recipe->step[recipe->step_count++] = taylor_step();
}

static void set_converge(struct recipe *recipe, const struct fire_plan *plan)
{
    const double expected = expected_lower(plan->rows, plan->cols);

    recipe->kind = FIRE_K_KIND_CONVERGE;
    set_steps(recipe, expected, plan->fast);
    recipe->limit = recipe->step_count + (recipe->fused ? FUSED_EXTRA : 0);
    recipe->check = recipe->fused ? 1 : 0;
    recipe->target = recipe_goal(plan);
    recipe->gain = FIRE_K_GAIN_SCHATTEN;
    recipe->gram = !recipe->fused && plan->side != FIRE_SIDE_X && expected >= GRAM_LOWER &&
                   plan->rows >= LONG_ASPECT * plan->cols;
}

/* --- named polynomials ----------------------------------------------------------------------- */

static void set_polynomial(struct recipe *recipe, const struct fire_plan *plan)
{
    const bool counted = plan->steps != FIRE_STEPS_AUTO;

    recipe->kind = FIRE_K_KIND_POLYNOMIAL;
    recipe->limit = counted ? (uint32_t)plan->steps : plan->max_steps;
    recipe->check = counted ? 0 : plan->check;
    recipe->target = plan->target;
    if (plan->target_form == FIRE_TARGET_FULL && plan->in > plan->out)
        recipe->full = plan->in - plan->out;
    recipe->step_count = plan->step_count;
    if (!recipe->fused) {
        if (!counted && recipe->limit > AUTO_FIRST)
            recipe->limit = AUTO_FIRST;
        recipe->step_count = recipe->limit;
    }
    for (uint32_t i = 0; i < recipe->step_count; i++)
        recipe->step[i] = plan_step(plan, i);
    recipe->gram = !recipe->fused &&
                   (plan->side == FIRE_SIDE_GRAM ||
                    (plan->side == FIRE_SIDE_AUTO && plan->step[0].terms == 2 &&
                     plan->rows >= LONG_ASPECT * plan->cols)) &&
                   recipe->limit > 0;
    if (plan->normalize == FIRE_NORMALIZE_SPECTRAL)
        recipe->gain = FIRE_K_GAIN_SPECTRAL;
    if (plan->normalize == FIRE_NORMALIZE_SCHATTEN)
        recipe->gain = FIRE_K_GAIN_SCHATTEN;
    recipe->widen = 1;
}

/* --- all plans ------------------------------------------------------------------------------- */

bool recipe_takes(const struct fire_plan *plan)
{
    if (plan->compute != FIRE_F32 || plan->statistics & FIRE_STATISTICS_SPECTRUM)
        return false;
    if (plan->kind != FIRE_PLAN_POLYNOMIAL)
        return true;
    return plan->scale != FIRE_SCALE_MEAN_SIGMA &&
           (plan->steps == FIRE_STEPS_AUTO ? plan->max_steps : (uint32_t)plan->steps) <=
               RECIPE_STEPS_MAX;
}

double recipe_goal(const struct fire_plan *plan)
{
    const double goal = plan->cols * 4e-6 * 4e-6;

    return plan->fast || goal > plan->target ? plan->target : goal;
}

static uint32_t chunk_for(uint64_t elements)
{
    const uint64_t chunk = CHUNK_ELEMENTS / elements;

    return (uint32_t)(chunk < 1 ? 1 : chunk > CHUNK_MAX ? CHUNK_MAX : chunk);
}

static void set_end(struct recipe *recipe, const struct fire_plan *plan)
{
    recipe->scale_factor = plan->scale_factor;
    if (plan->scale == FIRE_SCALE_KEEP_NORM)
        recipe->scale = FIRE_K_SCALE_KEEP_NORM;
    if (plan->scale == FIRE_SCALE_MEAN_SIGMA)
        recipe->scale = FIRE_K_SCALE_MEAN_SIGMA;
    recipe->blend = plan->blend;
    if (plan->output == FIRE_BF16)
        recipe->output = FIRE_K_OUTPUT_BF16;
    if (plan->output == FIRE_F16)
        recipe->output = FIRE_K_OUTPUT_F16;
    recipe->moments = plan->statistics & FIRE_STATISTICS_BASIC;
    recipe->residual =
        plan->statistics & FIRE_STATISTICS_RESIDUAL || (recipe->moments && plan->fast);
}

static uint32_t at_most(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void recipe_make(struct recipe *recipe, const struct fire_plan *plan,
                 enum recipe_precision precision)
{
    const size_t shared =
        ((size_t)plan->rows + 2 * (size_t)plan->cols) * (plan->cols | 1u) * sizeof(float);

    memset(recipe, 0, sizeof(*recipe));
    recipe->rows = plan->rows;
    recipe->cols = plan->cols;
    recipe->eps = plan->eps;
    recipe->widen = WIDEN;
    recipe->fused = plan->cols <= FIRE_K_FUSED_COLS && shared <= FIRE_K_FUSED_BYTES;
    recipe->blocks = plan->cols >= BLOCKS_SIDE && plan->cols % FIRE_K_TABLE_BLOCKS == 0;
    recipe->chunk = recipe->fused ? 1 : chunk_for((uint64_t)plan->rows * plan->cols);
    if (plan->kind == FIRE_PLAN_CONVERGE && !recipe->fused)
        recipe->precision = precision; /* named polynomials are run as their sources run them */
    if (recipe->precision == RECIPE_3XTF32)
        recipe->blocks = false;
    switch (plan->kind) {
    case FIRE_PLAN_CONVERGE: set_converge(recipe, plan); break;
    case FIRE_PLAN_POLYNOMIAL: set_polynomial(recipe, plan); break;
    case FIRE_PLAN_ANALYZE: recipe->kind = FIRE_K_KIND_ANALYZE; break;
    }
    set_end(recipe, plan);
    recipe->lanczos_before = at_most(
        plan->cols, recipe->gain == FIRE_K_GAIN_SPECTRAL ? FIRE_K_LANCZOS_MAX : LANCZOS_BEFORE);
    recipe->lanczos_after =
        at_most(plan->cols, plan->kind == FIRE_PLAN_CONVERGE && plan->blend == 1 ? LANCZOS_AFTER
                                                                                 : LANCZOS_BEFORE);
    if (plan->kind == FIRE_PLAN_ANALYZE)
        recipe->moments = true;
}

/* A Taylor step takes an eigenvalue of G that is e away from 1 to about e^5 / 2, so a DfI d to less
 * than d^5: one step does where that is below the goal. Two take a DfI below FIRE_K_NEAR to what
 * rounding leaves, far below the goal. So a matrix rests after them also where others go on. */
static uint32_t continue_steps(const struct fire_plan *plan, double dfi)
{
    const double goal = recipe_goal(plan);

    if (goal < plan->cols * ROUNDED_DFI || dfi >= FIRE_K_NEAR)
        return CONTINUE_FAR;
    return pow(dfi, 5) < goal ? CONTINUE_LAST : CONTINUE_NEAR;
}

bool recipe_continue(struct recipe *recipe, const struct fire_plan *plan,
                     const struct recipe *first, double dfi)
{
    if (first->fused || first->continues)
        return false;
    *recipe = *first;
    recipe->continues = true;
    recipe->gram = false;
    recipe->gain = FIRE_K_GAIN_NONE;
    recipe->first = first->limit;
    if (plan->kind == FIRE_PLAN_CONVERGE) {
        recipe->limit = recipe->step_count = continue_steps(plan, dfi);
        for (uint32_t i = 0; i < recipe->limit; i++)
            recipe->step[i] = taylor_step();
        recipe->check = 1; /* a matrix takes as many as it needs, whatever the others need */
        recipe->precision = recipe->precision == RECIPE_TF32_EARLY ? RECIPE_F32 : recipe->precision;
        return true;
    }
    if (plan->kind != FIRE_PLAN_POLYNOMIAL || plan->steps != FIRE_STEPS_AUTO ||
        plan->max_steps <= first->limit)
        return false;
    recipe->limit = recipe->step_count = plan->max_steps - first->limit;
    for (uint32_t i = 0; i < recipe->limit; i++)
        recipe->step[i] = plan_step(plan, first->limit + i);
    return true;
}

void recipe_program(const struct recipe *recipe, double *program)
{
    memset(program, 0, FIRE_K_PROGRAM_DOUBLES * sizeof(program[0]));
    program[FIRE_K_P_KIND] = recipe->kind;
    program[FIRE_K_P_COUNT] = recipe->step_count;
    program[FIRE_K_P_LIMIT] = recipe->limit;
    program[FIRE_K_P_CHECK] = recipe->check;
    program[FIRE_K_P_TARGET] = recipe->target;
    program[FIRE_K_P_FULL] = recipe->full;
    program[FIRE_K_P_EPS] = recipe->eps;
    program[FIRE_K_P_GAIN] = recipe->gain;
    program[FIRE_K_P_SCALE] = recipe->scale;
    program[FIRE_K_P_SCALE_FACTOR] = recipe->scale_factor;
    program[FIRE_K_P_BLEND] = recipe->blend;
    program[FIRE_K_P_OUTPUT] = recipe->output;
    program[FIRE_K_P_MOMENTS] = recipe->moments;
    program[FIRE_K_P_RESIDUAL] = recipe->residual;
    for (uint32_t i = 0; recipe->fused && i < recipe->step_count; i++) {
        double *step = program + FIRE_K_P_STEPS + (size_t)i * FIRE_K_STEP_DOUBLES;

        step[0] = recipe->step[i].terms;
        memcpy(step + 1, recipe->step[i].c, sizeof(recipe->step[i].c));
    }
}

/* Between two chains the DfI counts the singular values below about SPLIT_LOWER, later on those
 * that need more of the second. Rounding turns the vectors of such a group within itself, and
 * where there are more rows than columns out of the space of the others: the more the larger the
 * group and the smaller its values. */
static double split_error(const struct recipe *recipe, const double *row)
{
    static const struct {
        uint32_t steps; /* of the second chain */
        double error;   /* of the factor, were all singular values so small */
        double others;  /* share of the columns that the DfI of the large ones may be */
    } groups[] = { { 0, 1.5e-4, 0 }, { 2, 7.5e-4, 0.0175 }, { 3, 2e-3, 0 } };
    const double free_rows = (double)(recipe->rows - recipe->cols);
    double sum = 0;

    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        const double dfi = row[FIRE_K_HISTORY + recipe->split + groups[i].steps];
        const double count = fmin(fmax(dfi - groups[i].others * recipe->cols, 0), recipe->cols);

        sum += groups[i].error * sqrt(count * (fmax(count - 1, 0) + free_rows));
    }
    return sum / recipe->cols;
}

double recipe_error(const struct recipe *recipe, const double *row)
{
    double slope = 1, sum = 0;

    if (recipe->split)
        return split_error(recipe, row);
    for (uint32_t i = 0; i < recipe->limit && i < FIRE_K_HISTORY_MAX; i++) {
        const struct recipe_step *step =
            &recipe->step[i < recipe->step_count ? i : recipe->step_count - 1];

        /* Before that, singular values above 1 count more than small ones. */
        if (i + 2 >= recipe->step_count)
            sum += fmin(row[FIRE_K_HISTORY + i], recipe->cols) * slope * slope;
        slope *= step->c[0] * step->c[2] * step->c[2] + step->c[4];
    }
    return ROUNDOFF * sqrt(sum / recipe->cols);
}
