/* plan: what is to be done to every matrix of one shape, as data.
 *
 * Computed once in plain C from options and shape, then run by any backend. Two matrices with the
 * same plan digest may share a batch. */
#ifndef FIRE_PLAN_H
#define FIRE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"
#include "tensor.h"

enum fire_plan_kind {
    FIRE_PLAN_CONVERGE,   /* any method that brings the DfI of Q to `target` */
    FIRE_PLAN_POLYNOMIAL, /* the named polynomial, counted steps or until `target` */
    FIRE_PLAN_ANALYZE,    /* statistics of the weights as they are; nothing is written */
};

/* Which statistics are wanted. */
enum {
    FIRE_STATISTICS_BASIC = 1,    /* all that G gives, before and after */
    FIRE_STATISTICS_SPECTRUM = 2, /* effective rank, srank, condition: an eigensolve */
    FIRE_STATISTICS_RESIDUAL = 4, /* polar_residual: one more product */
};

#define FIRE_TERMS_MAX 5

/* X (c0 I + c1 G + c2 G^2 + …), `terms` of them. */
struct fire_polynomial_step {
    uint32_t terms;
    double c[FIRE_TERMS_MAX];
};

struct fire_plan {
    enum fire_plan_kind kind;
    uint32_t rows;           /* long side of the slot */
    uint32_t cols;           /* short side, r */
    uint32_t out;            /* m of the m x n matrix, before orientation */
    uint32_t in;             /* n */
    enum fire_dtype compute; /* elements of a slot: FIRE_F32 or FIRE_F64 */
    enum fire_dtype output;  /* what the weights will be rounded to; statistics are of that */
    bool fast;               /* compute=fast: DfI only, polar error reported */

    enum fire_normalize normalize;
    double eps;
    struct fire_polynomial_step step[FIRE_CUSTOM_MAX]; /* the last one repeats */
    uint32_t step_count;
    int32_t steps; /* exactly so many, or FIRE_STEPS_AUTO */
    uint32_t max_steps;
    double target;
    uint32_t check;
    enum fire_target_form target_form;
    enum fire_side side;

    enum fire_scale scale; /* KEEP_NORM and MEAN_SIGMA depend on the data */
    double scale_factor;   /* c for the others; `variance` for those two */
    double blend;
    double min_norm;
    bool complete;
    uint32_t statistics;
    uint64_t digest;
};

/* Makes the plan for the matrices of `view` under `options`, for weights stored as `output`. */
FIRE_NODISCARD enum fire_status fire_plan_make(struct fire_plan *plan,
                                               const struct fire_options *options,
                                               const struct fire_view *view, enum fire_dtype output,
                                               uint32_t statistics, struct fire_error *error);

/* The same for statistics only. */
FIRE_NODISCARD enum fire_status fire_plan_analyze(struct fire_plan *plan,
                                                  const struct fire_options *options,
                                                  const struct fire_view *view,
                                                  enum fire_dtype output, uint32_t statistics,
                                                  struct fire_error *error);

static inline size_t fire_plan_slot_bytes(const struct fire_plan *plan)
{
    return (size_t)plan->rows * plan->cols * (plan->compute == FIRE_F64 ? 8u : 4u);
}

#endif
