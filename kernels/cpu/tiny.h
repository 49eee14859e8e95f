/* tiny: many small matrices in lockstep, one to each f64 lane of a register.
 *
 * A matrix whose short side is a few columns leaves wide registers idle and pays for every call and
 * every division alone. Here as many matrices as a register has lanes go through the same
 * instructions together. Lanes never meet: the bits of a result depend on its own matrix and the
 * instruction set only, not on the mates, the lane, or how many lanes are in use.
 *
 * The way is the Gram side of the scaled Newton iteration, all in f64 (tiny_body.h). A matrix it
 * cannot treat well (too badly conditioned, rank-deficient, zero) is left to slot_run(), and that
 * is decided for each matrix by itself.
 *
 * tiny_body.h is the source; tiny_portable.c, tiny_avx2.c and tiny_avx512.c compile it. */
#ifndef FIRE_TINY_H
#define FIRE_TINY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dense.h"

struct fire_plan;
struct fire_slot;
struct polar_space;

#define TINY_LANES_MAX 8u
#define TINY_COLS_MAX  32u /* from here on a matrix fills the registers by itself */
#define TINY_ROWS_MAX  256u
#define TINY_ENTRIES   4096u /* most; a group in lanes stays within the second-level cache */
#define TINY_STEPS_MAX 9u    /* Newton steps; what needs more is not for this way */

/* Entries of a group's space, each as wide as there are lanes: the matrix, what may be read behind
 * its end, and symmetric matrices of 36 blocks of 16. */
#define TINY_SLACK    (4u * TINY_COLS_MAX)
#define TINY_MATRICES 5u
#define TINY_MATRIX   576u

enum tiny_end {
    TINY_UNFIT,  /* nothing was computed */
    TINY_T3,     /* proven by a last step X (1.5 I - 0.5 G) */
    TINY_HALLEY, /* proven by a last step X (1/3 I + 8/3 (I + 3 G)^-1) */
};

/* Matrices rows x cols, one to a lane; every lane has one, if need be the same. */
struct tiny_group {
    uint32_t rows, cols;
    double bound_max;                     /* on sqrt(DfI): polar_bound_max() */
    const float *weights[TINY_LANES_MAX]; /* row-major, no padding */
    double *space;                        /* tiny_space_bytes(), 64-byte aligned */

    /* Written by solve. Q of lane l, entry e in row-major order, is space[e * lanes + l]. */
    enum tiny_end end[TINY_LANES_MAX];
    uint32_t newton_steps[TINY_LANES_MAX]; /* before the last one */
    double norm[TINY_LANES_MAX];           /* ||W||_F */
};

/* Where the matrices of a group go: weights[l] <- (float)(scale[l] * Q), for lanes whose `weights`
 * is not NULL; sfe[l] receives the squared distance to what was there. */
struct tiny_write {
    float *weights[TINY_LANES_MAX];
    double scale[TINY_LANES_MAX];
    double sfe[TINY_LANES_MAX];
};

struct tiny_ops {
    uint32_t lanes;
    void (*solve)(struct tiny_group *group);
    void (*write)(const struct tiny_group *group, struct tiny_write *write);
};

extern const struct tiny_ops tiny_portable;
#if defined(__x86_64__)
extern const struct tiny_ops tiny_avx2;
extern const struct tiny_ops tiny_avx512;
#endif

/* What solve needs as `space` for any group. */
size_t tiny_space_bytes(void);

/* Whether all matrices of `plan` go this way. */
bool tiny_takes(const struct fire_plan *plan);

/* One worker's part of a batch. */
struct tiny_job {
    const struct crew *crew;
    const struct fire_plan *plan; /* which tiny_takes() */
    struct polar_space *space;    /* for matrices that are unfit, and for statistics */
    double *lanes;                /* tiny_space_bytes(), 64-byte aligned */
};

/* Runs the plan on `slot_count` slots, at most as many as there are lanes, and fills their results
 * as slot_run() would. */
void tiny_run(const struct tiny_job *job, struct fire_slot *slots, uint32_t slot_count);

#endif
