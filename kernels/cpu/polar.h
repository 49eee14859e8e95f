/* polar: one matrix to its polar factor, or through a given number of polynomial steps.
 *
 * polar.c chooses and runs steps until the DfI is below the target; polynomial.c runs the named
 * polynomials exactly as their sources do; both work on the padded copy of the weights in a struct
 * polar_space and leave Q there. */
#ifndef FIRE_POLAR_H
#define FIRE_POLAR_H

#include "dense.h"
#include "plan.h"
#include "result.h"
#include "statistics.h"

#define POLAR_METHOD_BYTES 64
#define POLAR_LONG_ASPECT  1.5  /* rows to a column from which a matrix is long */
#define POLAR_LOWER_FAST   3e-4 /* l of the first step when only the DfI counts */

/* The working arrays for one matrix of a shape; reused from matrix to matrix. */
struct polar_space {
    uint32_t rows, cols;
    size_t ld;
    void *x;        /* rows x ld, f32 or f64 */
    void *g;        /* cols x ld, f32 or f64: G, then what multiplies x */
    void *inverse;  /* dense_inverse_space() elements */
    void *vectors;  /* lanczos_space() elements */
    uint8_t *tiles; /* x and two cols x cols, packed: polar_space_tiles() */
    void *gram[3];  /* cols x ld each, for iterating on the Gram side: polar_space_gram() */
    void *store[3]; /* what they live in, NULL until needed */
    size_t x_bytes, g_bytes, store_bytes, tiles_bytes;
};

void polar_space_release(struct polar_space *space);

/* Makes room for `plan`'s matrices, x as `dtype`; keeps what fits already. On failure it is still
 * releasable, and x may be gone. */
FIRE_NODISCARD enum fire_status polar_space_prepare(struct polar_space *space,
                                                    const struct fire_plan *plan,
                                                    enum fire_dtype dtype);

/* Makes space->gram's three arrays of `dtype` exist. The first f32 one is the unused half of g. */
FIRE_NODISCARD enum fire_status polar_space_gram(struct polar_space *space, enum fire_dtype dtype);

/* Makes space->tiles exist, so many bytes. */
size_t polar_space_tiles_bytes(uint32_t rows, uint32_t cols);
FIRE_NODISCARD enum fire_status polar_space_tiles(struct polar_space *space);

/* One matrix on its way. */
struct polar {
    const struct crew *crew;
    const struct fire_plan *plan;
    struct polar_space *space;
    const void *weights;   /* rows x cols as the slot has it */
    double prescale;       /* power of two: x starts as weights * prescale */
    double norm;           /* ||W||_F of the weights */
    enum fire_dtype dtype; /* of x */

    uint32_t steps;
    char method[POLAR_METHOD_BYTES];
    uint32_t rank_defect;
    bool certified;  /* the DfI is below the target by a proven bound, not measured */
    bool hard;       /* singular values near 1e-6 sigma_max or below were met */
    bool gram_valid; /* space->g holds G of x, upper triangle */
    double dfi;      /* of x, when gram_valid */
    bool before_known;
    struct fire_moment before;
};

/* Copies weights * prescale into space->x as `dtype`, padding zeroed. FIRE_NO_MEMORY: there is no
 * room for it. */
FIRE_NODISCARD enum fire_status polar_load(struct polar *polar, enum fire_dtype dtype);

/* G of x into space->g. */
void polar_gram(struct polar *polar);

/* x <- x m; m is in space->g, upper triangle, of type `m_dtype`. */
void polar_apply(struct polar *polar, enum fire_dtype m_dtype);

/* x <- x m for a full m. */
void polar_multiply(struct polar *polar, const void *m, enum fire_dtype m_dtype);

/* x from f64 to f32, in place. */
void polar_narrow(struct polar *polar);

/* Appends a step's name to the method. */
void polar_note(struct polar *polar, const char *step);

/* `g`, a G of x or of the weights in `dtype`, for statistics. */
struct fire_gram polar_gram_view(const struct polar *polar, const void *g, enum fire_dtype dtype,
                                 double factor);

/* Fills polar->before from G of the weights, when statistics want it. */
void polar_note_before(struct polar *polar, const void *g, enum fire_dtype dtype);

/* What a proven bound on sqrt(DfI) after a step must not exceed for that step to be the last. */
double polar_bound_max(const struct fire_plan *plan);

FIRE_NODISCARD enum fire_status polar_converge(struct polar *polar);

/* The rational step D for the G of x in space->g, divided by `upper_square`, and singular values
 * from `lower` to 1. False: G was not positive definite. */
bool polar_rational(struct polar *polar, double lower, double upper_square);

/* Whether the way of packed bf16 serves the plan on this engine, and that way. FIRE_BAD_REQUEST: it
 * has not come to an end, and x is lost. */
bool polar_tiles_takes(const struct engine *engine, const struct fire_plan *plan);
FIRE_NODISCARD enum fire_status polar_tiles_converge(struct polar *polar);

/* The same for what space->x holds already, in f64. */
FIRE_NODISCARD enum fire_status polar_converge_loaded(struct polar *polar);
FIRE_NODISCARD enum fire_status polar_polynomial(struct polar *polar);

/* After a D64 step on an f64 x: finds the singular values that are rounding noise, removes them
 * from x and sets polar->rank_defect. */
FIRE_NODISCARD enum fire_status polar_drop_noise(struct polar *polar);

/* Fills the null space of a rank-deficient partial isometry x with a seeded orthogonal complement
 * and converges again. */
FIRE_NODISCARD enum fire_status polar_complete(struct polar *polar, uint64_t seed);

#endif
