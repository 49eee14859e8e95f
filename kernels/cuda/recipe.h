/* recipe: how a plan is run on a GPU: which way, which steps, and what is computed beside them.
 * Plain data from a plan, the same for every matrix of it; knows no CUDA. */
#ifndef FIRE_CUDA_RECIPE_H
#define FIRE_CUDA_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "plan.h"
#include "state.h"

#define RECIPE_STEPS_MAX 128u

enum recipe_precision { RECIPE_F32, RECIPE_3XTF32, RECIPE_TF32_EARLY };

/* terms 2 or 3: powers of G from the lowest; 5: the squared form a, b, c, d, e. */
struct recipe_step {
    uint32_t terms;
    double c[5];
};

struct recipe {
    enum fire_k_kind kind;
    bool fused;     /* the small kernel */
    bool gram;      /* on the r x r side */
    bool blocks;    /* symmetric products as blocks of one triangle */
    bool continues; /* from what the segment before left: no loading, no first normalisation */
    uint32_t rows, cols;
    uint32_t chunk; /* matrices of one product call: follows from the shape alone */

    struct recipe_step step[RECIPE_STEPS_MAX];
    uint32_t step_count; /* for the fused kernel the last repeats */
    uint32_t limit;      /* steps at most; beside the fused kernel, all are listed */
    uint32_t first;      /* steps that were taken before this segment */
    uint32_t split;      /* where the second of two chains begins; 0: there is one */
    uint32_t check;      /* 0: nothing stops early */
    double target;       /* DfI that stops a matrix */
    double full;
    double eps;
    enum fire_k_gain gain;
    double widen;
    enum fire_k_scale scale;
    double scale_factor;
    double blend;
    enum fire_k_output output;
    bool moments;
    bool residual;
    uint32_t lanczos_before, lanczos_after;
    enum recipe_precision precision;
};

/* Whether plans of this kind can run on a GPU at all. */
bool recipe_takes(const struct fire_plan *plan);

/* The first segment of a plan. */
void recipe_make(struct recipe *recipe, const struct fire_plan *plan,
                 enum recipe_precision precision);

/* Whether there is a second segment for matrices that the first did not finish, and which. `dfi` is
 * the largest of theirs. A matrix ends with the same bits whatever the others need. */
bool recipe_continue(struct recipe *recipe, const struct fire_plan *plan,
                     const struct recipe *first, double dfi);

/* The fused kernel's copy: FIRE_K_PROGRAM_DOUBLES. */
void recipe_program(const struct recipe *recipe, double *program);

/* The DfI at which a converging matrix is done (polar.c has the same rule). */
double recipe_goal(const struct fire_plan *plan);

/* What rounding may have done to the polar factor, relative to its norm, estimated from a matrix's
 * row of state: how many singular values were small when, and how much the steps enlarged them. */
double recipe_error(const struct recipe *recipe, const double *row);

#endif
