/* The chooser. Every iteration computes G = X^T X, looks at it, and takes the cheapest step that
 * what it has learned allows:
 *
 *   T3    X (1.5 I - 0.5 G), when sqrt(DfI) is small enough that one such step is proven to finish
 *   H     Halley's rational step, the same with a wider reach
 *   D     the weighted rational step X (b/c I + (a - b/c)(I + c G)^-1): weights from a lower bound
 * l on the singular values; in f32 never with l below 0.01, where rounding would show D64   the
 * same in f64 from l = 1e-6: for the first step of matrices with many small values gram  D and T3
 * on the r x r side only, one product with X at the end: long, well-conditioned X
 *
 * A lower bound is an estimate: the DfI at the top of the loop decides, so a wrong one costs a step
 * and never a result. Three starts, each tried when the one before met smaller singular values than
 * it can treat well: GENTLE (f32 only), WIDE (D64 first), HARD (two D64 on an f64 copy). */
#include "polar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lanczos.h"
#include "random.h"
#include "statistics.h"

#define ITERATIONS_MAX  40u
#define LOWER_F32       0.01 /* smallest l whose weights f32 (and gentle f64) arithmetic carries */
#define LOWER_WIDE      1e-6 /* l of a D64 step */
#define GRAM_LOWER      0.1  /* Gram-side steps lose the square of the condition number */
#define GRAM_ASPECT     1.5  /* rows / cols from which they pay */
#define SMALL_SIDE      96u  /* below, a Lanczos run costs more than it saves */
#define TINY_SIDE       24u  /* below, f64 throughout costs nothing */
#define GENTLE_SHARE    0.25 /* share of small singular values f32 can lift to within 1e-5 */
#define CERTIFIED_SHARE 0.25 /* of the target a proven bound must reach: room for rounding */

enum start { START_GENTLE, START_WIDE, START_HARD };

/* What is known of the singular values of x. */
struct knowledge {
    double upper_square; /* G is divided by this */
    double lower;        /* estimated least singular value after that */
    double small_share;  /* share of them that a D step with l = LOWER_F32 has to lift */
};

struct weights {
    double a, b, c;
};

/* QDWH weights: the rational step of degree 3 that is best on [l, 1]. */
static struct weights weights_for(double l)
{
    struct weights w = { 3, 1, 3 };

    if (l < 0.9999) {
        const double l2 = l * l;
        const double d = cbrt(4 * (1 - l2) / (l2 * l2));
        const double root = sqrt(1 + d);

        w.a = root + 0.5 * sqrt(8 - 4 * d + 8 * (2 - l2) / (l2 * root));
        w.b = (w.a - 1) * (w.a - 1) / 4;
        w.c = w.a + w.b - 1;
    }
    return w;
}

static double image_of(struct weights w, double sigma)
{
    return sigma * (w.a + w.b * sigma * sigma) / (1 + w.c * sigma * sigma);
}

/* Bounds on sqrt(DfI) after a step, from e = sqrt(DfI) < 1 before it (NUMERICS.md section 5). */
static double after_t3(double e)
{
    return 0.75 * e * e + 0.25 * e * e * e;
}

static double after_halley(double e)
{
    return e * e * e / ((4 - 3 * e) * (4 - 3 * e));
}

/* The DfI a proven bound must reach before the iteration may end. The target, and, unless only the
 * DfI counts, what keeps the distance to the polar factor within its promise: the last step's
 * share of ||Q - UV^T||_F / sqrt(r) is half of sqrt(DfI / r). */
static double goal_of(const struct fire_plan *plan)
{
    const double error = plan->compute == FIRE_F64 ? 1e-14 : 4e-6;
    const double goal = plan->cols * error * error;

    return plan->fast || goal > plan->target ? plan->target : goal;
}

static bool finishes(const struct polar *polar, double bound)
{
    return bound * bound <= CERTIFIED_SHARE * goal_of(polar->plan);
}

/* One D step. space->g holds G in `dtype`; x is multiplied by
 * (b/c I + (a - b/c) Z^-1) / u with Z = I + c G / u^2. */
static enum fire_status step_rational(struct polar *polar, enum fire_dtype dtype, struct weights w,
                                      double upper_square)
{
    struct polar_space *space = polar->space;
    const struct engine_ops *ops = crew_ops(polar->crew, dtype);
    const double u = sqrt(upper_square);

    ops->affine(space->g, space->ld, space->cols, w.c / upper_square, 1);
    if (!dense_inverse(polar->crew, dtype, space->g, space->ld, space->cols, space->inverse))
        return FIRE_BAD_REQUEST;
    ops->affine(space->g, space->ld, space->cols, (w.a - w.b / w.c) / u, w.b / w.c / u);
    polar_apply(polar, dtype);
    polar->steps++;
    return FIRE_OK;
}

static void step_t3(struct polar *polar, double upper_square)
{
    struct polar_space *space = polar->space;
    const double u = sqrt(upper_square);

    crew_ops(polar->crew, polar->dtype)
        ->affine(space->g, space->ld, space->cols, -0.5 / (u * upper_square), 1.5 / u);
    polar_apply(polar, polar->dtype);
    polar->steps++;
    polar_note(polar, "T3");
    polar->certified = true;
}

/* Lanczos on G: the upper end, the lower end, and how much of the spectrum is small. */
static void look(struct polar *polar, double norm_of_g, bool first, struct knowledge *known)
{
    struct polar_space *space = polar->space;
    const double c = weights_for(LOWER_F32).c;
    struct lanczos lanczos;

    lanczos_run(crew_ops(polar->crew, polar->dtype), space->g, space->ld, space->cols,
                space->vectors, &lanczos);
    if (first) {
        const double largest = 1.05 * lanczos.value[lanczos.count - 1];

        known->upper_square = largest < norm_of_g ? largest : norm_of_g;
    }
    known->small_share = 0;
    for (uint32_t i = 0; i < lanczos.count; i++) {
        const double square = fmax(lanczos.value[i], 0) / known->upper_square;

        known->small_share += lanczos.weight[i] / (1 + c * square);
    }
    /* The least Ritz value lies above the least eigenvalue: lean to the safe side. */
    known->lower = 0.7 * sqrt(fmax(lanczos.value[0], 0) / known->upper_square);
}

/* --- the Gram side ------------------------------------------------------------------------- */

static enum fire_status gram_room(struct polar_space *space)
{
    for (int i = 0; i < 3; i++) {
        if (!space->gram[i])
            space->gram[i] = aligned_alloc(64, (space->g_bytes + 63) / 64 * 64);
        if (!space->gram[i])
            return FIRE_NO_MEMORY;
    }
    return FIRE_OK;
}

/* Upper triangle: g += factor * s + shift * I. */
static void add_upper(enum fire_dtype dtype, void *g, const void *s, size_t ld, uint32_t n,
                      double factor, double shift)
{
    for (uint32_t i = 0; i < n; i++) {
        if (dtype == FIRE_F64) {
            double *row = (double *)g + i * ld;

            for (uint32_t j = i; j < n; j++)
                row[j] += factor * ((const double *)s + i * ld)[j];
            row[i] += shift;
        } else {
            float *row = (float *)g + i * ld;

            for (uint32_t j = i; j < n; j++)
                row[j] += (float)factor * ((const float *)s + i * ld)[j];
            row[i] += (float)shift;
        }
    }
}

/* A rational step on the r x r side: s <- M = b/c I + (a - b/c) Z^-1, full; and, unless `last`,
 * g <- G M^2, which needs one product only because c G = Z - I:
 *   G M^2 = beta^2 G + (2 beta gamma / c) I + ((gamma^2 - 2 beta gamma) / c) S - (gamma^2 / c) S^2
 * with beta = b/c, gamma = a - b/c, S = Z^-1. */
static bool gram_rational(struct polar *polar, struct weights w, void *s, bool last)
{
    struct polar_space *space = polar->space;
    const enum fire_dtype dtype = polar->dtype;
    const struct engine_ops *ops = crew_ops(polar->crew, dtype);
    const double beta = w.b / w.c, gamma = w.a - beta;
    const uint32_t n = space->cols;

    memcpy(s, space->g, n * space->ld * ops->element_bytes);
    ops->affine(s, space->ld, n, w.c, 1);
    if (!dense_inverse(polar->crew, dtype, s, space->ld, n, space->inverse))
        return false;
    if (!last) {
        dense_mirror(polar->crew, dtype, s, space->ld, n);
        dense_symmetric_product(polar->crew, dtype, n, s, s, space->ld, -gamma * gamma / w.c,
                                beta * beta, space->g);
        add_upper(dtype, space->g, s, space->ld, n, (gamma * gamma - 2 * beta * gamma) / w.c,
                  2 * beta * gamma / w.c);
    }
    ops->affine(s, space->ld, n, gamma, beta);
    dense_mirror(polar->crew, dtype, s, space->ld, n);
    return true;
}

/* Runs to the end on the r x r side and multiplies x once. */
static enum fire_status finish_on_gram_side(struct polar *polar, const struct knowledge *known)
{
    struct polar_space *space = polar->space;
    const enum fire_dtype dtype = polar->dtype;
    const struct engine_ops *ops = crew_ops(polar->crew, dtype);
    const uint32_t n = space->cols;
    double lower = known->lower;
    bool last = false, first = true;
    void *product, *step, *other;

    if (gram_room(space) != FIRE_OK)
        return FIRE_NO_MEMORY;
    product = space->gram[0];
    step = space->gram[1];
    other = space->gram[2];
    ops->affine(space->g, space->ld, n, 1 / known->upper_square, 0);
    polar_note(polar, "gram(");
    for (uint32_t i = 0; i < 8 && !last; i++) {
        double dfi, square, trace;

        ops->sums(space->g, space->ld, n, 1, &dfi, &square, &trace);
        const double e = sqrt(dfi);

        if (e < 1 && finishes(polar, after_t3(e))) {
            last = true;
            memcpy(step, space->g, n * space->ld * ops->element_bytes);
            ops->affine(step, space->ld, n, -0.5, 1.5);
            dense_mirror(polar->crew, dtype, step, space->ld, n);
            polar_note(polar, "T3");
        } else {
            last = e < 1 && finishes(polar, after_halley(e));
            const struct weights w = weights_for(last ? 1 : lower);

            if (!gram_rational(polar, w, step, last))
                return FIRE_BAD_REQUEST;
            lower = fmin(1, image_of(w, lower));
            polar_note(polar, last ? "H" : "D");
        }
        polar->steps++;
        if (first) {
            void *swap = product;

            product = step;
            step = swap;
            first = false;
            continue;
        }
        dense_symmetric_product(polar->crew, dtype, n, product, step, space->ld, 1, 0, other);
        dense_mirror(polar->crew, dtype, other, space->ld, n);
        void *swap = product;

        product = other;
        other = swap;
    }
    memcpy(space->g, product, n * space->ld * ops->element_bytes);
    ops->affine(space->g, space->ld, n, 1 / sqrt(known->upper_square), 0);
    polar_apply(polar, dtype);
    polar_note(polar, ")");
    polar->certified = last;
    return FIRE_OK;
}

/* --- the loop ------------------------------------------------------------------------------ */

/* One attempt at the whole way. */
struct attempt {
    enum start start;
    struct knowledge known;
    enum fire_dtype g_dtype; /* of the G at hand */
    uint32_t iteration;
    uint32_t gentle_steps; /* D steps with l = LOWER_F32 */
};

enum verdict { VERDICT_GO_ON, VERDICT_DONE, VERDICT_TOO_SMALL, VERDICT_FAILED, VERDICT_NO_MEMORY };

/* The scale of the first G. A nearly isometric x is divided by the factor that brings G closest to
 * I; any other by an upper bound of its largest singular value. */
static void first_look(struct polar *polar, struct attempt *attempt)
{
    struct polar_space *space = polar->space;
    struct knowledge *known = &attempt->known;
    double dfi, square, trace;

    crew_ops(polar->crew, attempt->g_dtype)
        ->sums(space->g, space->ld, space->cols, 1, &dfi, &square, &trace);
    if (space->cols - trace * trace / square < 0.5) {
        known->upper_square = square / trace;
        known->lower = 0.5;
        return;
    }
    known->upper_square = sqrt(square);
    if (attempt->start == START_GENTLE)
        look(polar, sqrt(square), true, known);
}

/* Small values everywhere: f32 would not lift them accurately. The D64 step takes over before
 * anything was done to x. */
static bool wants_wide(const struct polar *polar, const struct attempt *attempt)
{
    return attempt->start == START_GENTLE && attempt->iteration == 0 && !polar->plan->fast &&
           polar->dtype == FIRE_F32 && attempt->known.small_share > GENTLE_SHARE;
}

static void make_gram(struct polar *polar, struct attempt *attempt)
{
    struct polar_space *space = polar->space;
    const bool widen =
        attempt->start == START_WIDE && attempt->iteration == 0 && polar->dtype == FIRE_F32;

    attempt->g_dtype = widen ? FIRE_F64 : polar->dtype;
    dense_gram(polar->crew, attempt->g_dtype, widen, space->x, space->ld, space->rows, space->cols,
               space->g, space->ld);
    if (attempt->iteration == 0)
        polar_note_before(polar, space->g, attempt->g_dtype);
}

/* The values expected to have converged have not: there are smaller ones than this start treats
 * well, or, at the last start, none at all. */
static enum verdict stagnated(struct polar *polar, const struct attempt *attempt, double dfi)
{
    const bool last = attempt->start == START_HARD || polar->plan->compute == FIRE_F64;

    if (!last)
        return VERDICT_TOO_SMALL;
    polar->rank_defect = (uint32_t)lround(dfi);
    polar->gram_valid = true;
    polar->dfi = dfi;
    return VERDICT_DONE;
}

static bool is_stagnant(const struct polar *polar, const struct attempt *attempt, double dfi)
{
    if (dfi < 0.5 || fabs(dfi - round(dfi)) > 0.02 * round(dfi))
        return false;
    if (attempt->start == START_GENTLE)
        return attempt->gentle_steps >= (polar->plan->compute == FIRE_F64 ? 7 : 3);
    return attempt->known.lower > 0.99;
}

/* A D step with the best weights the start allows. */
static enum verdict step_down(struct polar *polar, struct attempt *attempt)
{
    struct knowledge *known = &attempt->known;
    const bool wide = (attempt->start == START_WIDE && attempt->iteration == 0) ||
                      (attempt->start == START_HARD && attempt->iteration < 2);
    const double floor = wide ? LOWER_WIDE : LOWER_F32;
    const double lower = wide ? LOWER_WIDE : fmin(1, fmax(known->lower, floor));
    const struct weights w = weights_for(lower);

    if (!wide && lower == LOWER_F32)
        attempt->gentle_steps++;
    polar_note(polar, attempt->g_dtype == FIRE_F64 ? "D64" : "D");
    if (step_rational(polar, attempt->g_dtype, w, known->upper_square) != FIRE_OK)
        return VERDICT_FAILED;
    known->lower = fmin(1, image_of(w, lower));
    known->upper_square = 1;
    if (attempt->start == START_HARD && attempt->iteration == 1 &&
        polar->plan->compute == FIRE_F32 && polar->space->cols > TINY_SIDE)
        polar_narrow(polar);
    return VERDICT_GO_ON;
}

/* What to do about a G whose DfI is `dfi`. */
static enum verdict step(struct polar *polar, struct attempt *attempt, double dfi)
{
    const struct polar_space *space = polar->space;
    struct knowledge *known = &attempt->known;
    const double e = sqrt(dfi);

    if (e < 1 && finishes(polar, after_t3(e))) {
        step_t3(polar, known->upper_square);
        known->upper_square = 1;
        return VERDICT_GO_ON;
    }
    if (e < 1 && finishes(polar, after_halley(e))) {
        polar_note(polar, "H");
        if (step_rational(polar, attempt->g_dtype, weights_for(1), known->upper_square) != FIRE_OK)
            return VERDICT_FAILED;
        polar->certified = true;
        known->upper_square = 1;
        return VERDICT_GO_ON;
    }
    if (is_stagnant(polar, attempt, dfi))
        return stagnated(polar, attempt, dfi);
    if (attempt->start == START_GENTLE && attempt->iteration > 0) {
        look(polar, 1, false, known);
        if (attempt->iteration == 1 && known->lower < 1e-3 && polar->dtype == FIRE_F32 &&
            !polar->plan->fast)
            return VERDICT_TOO_SMALL;
    }
    if (known->lower >= GRAM_LOWER && space->rows >= GRAM_ASPECT * space->cols &&
        polar->plan->side != FIRE_SIDE_X && attempt->g_dtype == polar->dtype) {
        const enum fire_status status = finish_on_gram_side(polar, known);

        known->upper_square = 1;
        return status == FIRE_OK          ? VERDICT_GO_ON
               : status == FIRE_NO_MEMORY ? VERDICT_NO_MEMORY
                                          : VERDICT_FAILED;
    }
    return step_down(polar, attempt);
}

static enum verdict run_attempt(struct polar *polar, enum start start)
{
    struct attempt attempt = { .start = start, .known.upper_square = 1 };
    const struct polar_space *space = polar->space;
    enum verdict verdict = VERDICT_GO_ON;

    for (; attempt.iteration < ITERATIONS_MAX && verdict == VERDICT_GO_ON; attempt.iteration++) {
        double dfi, square, trace;

        make_gram(polar, &attempt);
        if (attempt.iteration == 0) {
            first_look(polar, &attempt);
            if (wants_wide(polar, &attempt)) {
                attempt.start = START_WIDE;
                make_gram(polar, &attempt);
            }
        }
        crew_ops(polar->crew, attempt.g_dtype)
            ->sums(space->g, space->ld, space->cols, 1 / attempt.known.upper_square, &dfi, &square,
                   &trace);
        if (!isfinite(dfi))
            return VERDICT_FAILED;
        if (attempt.known.upper_square == 1 &&
            dfi <= (polar->certified ? polar->plan->target : goal_of(polar->plan))) {
            polar->gram_valid = attempt.g_dtype == polar->dtype;
            polar->dfi = dfi;
            return VERDICT_DONE;
        }
        polar->certified = false;
        verdict = step(polar, &attempt, dfi);
        if (polar->certified && !(polar->plan->statistics & FIRE_STATISTICS_BASIC))
            return VERDICT_DONE;
    }
    return verdict == VERDICT_GO_ON ? VERDICT_DONE : verdict;
}

enum fire_status polar_converge(struct polar *polar)
{
    const bool gentle = polar->plan->compute == FIRE_F64 || polar->space->cols >= SMALL_SIDE;
    enum start start = gentle ? START_GENTLE : START_WIDE;

    for (;; start++) {
        const bool wide = polar->plan->compute == FIRE_F64 || polar->space->cols <= TINY_SIDE ||
                          start == START_HARD;

        polar->hard = start == START_HARD;
        polar_load(polar, wide ? FIRE_F64 : FIRE_F32);
        switch (run_attempt(polar, start)) {
        case VERDICT_DONE: return FIRE_OK;
        case VERDICT_NO_MEMORY: return FIRE_NO_MEMORY;
        case VERDICT_GO_ON:
        case VERDICT_TOO_SMALL:
        case VERDICT_FAILED: break;
        }
        if (start == START_HARD)
            return FIRE_BAD_REQUEST;
        polar_note(polar, "again");
    }
}

enum fire_status polar_converge_loaded(struct polar *polar)
{
    switch (run_attempt(polar, START_WIDE)) {
    case VERDICT_DONE: return FIRE_OK;
    case VERDICT_NO_MEMORY: return FIRE_NO_MEMORY;
    case VERDICT_GO_ON:
    case VERDICT_TOO_SMALL:
    case VERDICT_FAILED: break;
    }
    return FIRE_BAD_REQUEST;
}
