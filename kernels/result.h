/* result: what happened to one matrix, or to a tensor made of many.
 *
 * A number that cannot be known is NAN, which every writer leaves out; it is never 0. */
#ifndef FIRE_RESULT_H
#define FIRE_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum fire_action { FIRE_ACTION_PROJECTED, FIRE_ACTION_SKIPPED, FIRE_ACTION_REFUSED };

/* Statistics that exist before and after. Names: see fire_result_fields in result.c. */
struct fire_moment {
    double dfi;            /* ||G - I||_F^2, r x r */
    double dfi_full;       /* the n x n form, n = in */
    double dfi_mean;       /* dfi / r */
    double dfi_scale_free; /* min over t of ||tG - I||_F^2 */
    double norm;           /* Frobenius */
    double participation;  /* (tr G)^2 / ||G||_F^2 */
    double spectral_norm;
    double stable_rank;    /* ||W||_F^2 / ||W||_2^2 */
    double effective_rank; /* these three need an eigensolve */
    double srank;
    double condition;
};

struct fire_result {
    enum fire_action action;
    enum fire_status status; /* FIRE_OK, or why it was refused */
    char reason[96];         /* why it was skipped or refused; empty when projected */
    char method[64];         /* "D64 D D T5", "cubic x10", … */
    const char *path;        /* which code computed it: "avx512", …; static storage */
    uint32_t steps;
    bool converged; /* dfi_unscaled_after <= target */
    uint32_t rank;
    uint32_t rank_defect;
    uint32_t matrices;         /* 1, or how many were merged into this */
    double scale;              /* c of W = c Q */
    double dfi_unscaled_after; /* of Q: what `target` means */
    double sfe;                /* ||W - W'||_F^2 */
    double sfe_relative;       /* sfe / ||W||_F^2 */
    double norm_preservation;  /* norm_after / norm_before */
    double polar_residual;     /* ||H - H^T||_F / ||W||_F, H = Q^T W */
    struct fire_moment before;
    struct fire_moment after;
    double dormant_ratio;
    double gradient_dormant_ratio;
    double compute_ms;
};

/* Everything unknown: NAN, empty, action refused, matrices 0 (which merging counts as 1). */
void fire_result_init(struct fire_result *result);

/* Adds matrix `part` to tensor `sum` (NUMERICS.md section 1): dfi (also full, scale-free,
 * unscaled), sfe and compute_ms add up; norms are the root of the sum of squares; converged,
 * rank_defect and condition take the worst, steps the largest, rank the smallest; the rest is the
 * mean, every matrix counting once. What is unknown of one part is unknown of the sum. The tensor
 * is refused if a part is (with that part's status and reason), else projected if a part is, else
 * skipped; a reason beside `projected` is that of a part left out. Methods that differ from the
 * first are counted, "D64 D D T5 (+2 other)"; paths that differ are "mixed". Start with
 * fire_result_init(); the first part is copied. */
void fire_result_merge(struct fire_result *sum, const struct fire_result *part);

/* The numbers by name, in the order of INTERFACES.md section 2, for JSON, tables and --fail-if. */
struct fire_result_field {
    const char *name;
    size_t offset; /* of a double in struct fire_result */
};
size_t fire_result_field_count(void);
const struct fire_result_field *fire_result_field_at(size_t index);
double fire_result_value(const struct fire_result *result, size_t index);

#endif
