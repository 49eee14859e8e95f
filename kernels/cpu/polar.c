/* The chooser. Every iteration computes G = X^T X, looks at it, and takes the cheapest step that
 * what it has learned allows:
 *
 *   T3    X (1.5 I - 0.5 G), when sqrt(DfI) is small enough that one such step is proven to finish
 *   H     Halley's rational step, the same with a wider reach
 *   D     the weighted rational step X (b/c I + (a - b/c)(I + c G)^-1), weights from a lower bound
 *         l on the singular values
 *   D64   all of it in f64: the first step of every matrix that is not known to be well conditioned
 *   DM    the same with the product in f32, where few singular values are small enough to suffer
 *   gram  D, H and T3 on the r x r side only, one product with X at the end, once l is large enough
 *
 * Where a tile unit is, compute=fast goes another way first (polar_tiles.c).
 *
 * What rounding does to the polar factor: an error of G is multiplied by c in the directions whose
 * singular values are below 1/sqrt(c), and an error of the product by a in theirs. So a step in f32
 * may not have an l below 0.01, and the Gram side, which loses the square of the condition number,
 * comes last.
 *
 * A lower bound is an estimate: the DfI at the top of the loop decides, so a wrong one costs a step
 * and never a result. Three starts, each tried when the one before has met smaller singular values
 * than it can treat well: NEAR (the first l is what a random matrix of that size would have), WIDE
 * (l = 1e-6) and HARD (an f64 copy, and the singular values that are only rounding noise removed:
 * polar_rank.c). */
#include "polar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lanczos.h"

#define ITERATIONS_MAX      40u
#define LOWER_F32           0.01 /* least l of a step in f32 */
#define LOWER_WIDE          1e-6 /* l of the first step of a WIDE or HARD start */
#define LOWER_NEAR_MIN      3e-5 /* and of a NEAR one: NEAR_SHARE / cols, within these … */
#define LOWER_NEAR_MAX      3e-3
#define NEAR_SHARE          0.07
#define NEAR_SMALL_SIDE     384u /* … and up to this side NEAR_SHARE_SMALL / cols, at least */
#define NEAR_SHARE_SMALL    0.05
#define LOWER_NEAR_SMALL    5e-4   /* … what two more steps can finish */
#define LEAST_FAST          4e-6   /* of the first x: what fast steps lift below it may be noise, */
#define LEAST_FAST_LIFTED   0.2    /* and what is above it they lift to this at least */
#define KNOWN_LOWER         0.2    /* a first estimate for a square x below this may as well be 0 */
#define MIXED_ERROR         1.1e-5 /* estimated, of the polar factor, that a DM step may cause */
#define MIXED_ROUNDOFFS     0.6    /* times the root of r, but at least … */
#define MIXED_ROUNDOFFS_MIN 7.0
#define GRAM_LOWER          0.1 /* from here on the Gram side is accurate enough */
#define GRAM_STEPS_EXPECTED 2u
#define GRAM_LATE           0.7 /* a sqrt(DfI) after them that shows singular values below l */
#define GRAM_STEPS_MAX      8u
#define SMALL_SIDE          320u /* below, a Lanczos run costs more than it saves */
#define TINY_SIDE           24u  /* below, f64 throughout costs nothing */
#define BOUND_ROOM          1e-6 /* for rounding in a bound that leaves none */
#define CERTIFIED_SHARE     0.25 /* of the target a proven bound must reach: room for rounding */

enum start { START_NEAR, START_WIDE, START_HARD };

/* What is known of the singular values of x. */
struct knowledge {
    double upper_square; /* G is divided by this */
    double lower;        /* estimated least singular value after that */
    double mean_square;  /* mean of the squared singular values of the first x */
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

/* The DfI a proven bound must reach before the iteration may end: the target, and, unless only the
 * DfI counts, what keeps the distance to the polar factor within its promise: the last step's
 * share of ||Q - UV^T||_F / sqrt(r) is half of sqrt(DfI / r). */
static double goal_of(const struct fire_plan *plan)
{
    const double error = plan->compute == FIRE_F64 ? 1e-14 : 4e-6;
    const double goal = plan->cols * error * error;

    return plan->fast || goal > plan->target ? plan->target : goal;
}

double polar_bound_max(const struct fire_plan *plan)
{
    return sqrt(CERTIFIED_SHARE * goal_of(plan));
}

static bool finishes(const struct polar *polar, double bound)
{
    return bound <= polar_bound_max(polar->plan);
}

/* space->g, G in `dtype`, becomes Z^-1, upper triangle, with Z = I + c G / u^2. */
static bool rational_inverse(struct polar *polar, enum fire_dtype dtype, struct weights w,
                             double upper_square)
{
    struct polar_space *space = polar->space;

    crew_ops(polar->crew, dtype)->affine(space->g, space->ld, space->cols, w.c / upper_square, 1);
    return dense_inverse(polar->crew, dtype, space->g, space->ld, space->cols, space->inverse);
}

/* x <- x (b/c I + (a - b/c) Z^-1) / u, the product in `product_dtype`. */
static void rational_apply(struct polar *polar, enum fire_dtype dtype,
                           enum fire_dtype product_dtype, struct weights w, double upper_square)
{
    struct polar_space *space = polar->space;
    const double u = sqrt(upper_square);

    crew_ops(polar->crew, dtype)
        ->affine(space->g, space->ld, space->cols, (w.a - w.b / w.c) / u, w.b / w.c / u);
    if (dtype != product_dtype)
        polar->crew->engine->narrow(space->g, space->cols * space->ld);
    polar_apply(polar, product_dtype);
    polar->steps++;
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
}

/* --- the Gram side ------------------------------------------------------------------------- */

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

    ops->copy_affine(s, space->g, space->ld, n, w.c, 1);
    if (!dense_inverse(polar->crew, dtype, s, space->ld, n, space->inverse))
        return false;
    dense_mirror(polar->crew, dtype, s, space->ld, n);
    if (!last) {
        dense_symmetric_product(polar->crew, dtype, n, s, s, space->ld, -gamma * gamma / w.c,
                                beta * beta, space->g);
        ops->add_upper(space->g, s, space->ld, n, (gamma * gamma - 2 * beta * gamma) / w.c,
                       2 * beta * gamma / w.c);
    }
    ops->affine_full(s, space->ld, n, gamma, beta);
    return true;
}

static void swap(void **a, void **b)
{
    void *other = *a;

    *a = *b;
    *b = other;
}

/* sqrt(DfI) of the normalised G in space->g. */
static double gram_distance(const struct polar *polar)
{
    const struct polar_space *space = polar->space;
    double dfi, square, trace;

    crew_ops(polar->crew, polar->dtype)
        ->sums(space->g, space->ld, space->cols, 1, &dfi, &square, &trace);
    return sqrt(fabs(dfi - polar->rank_defect)); /* noise in a null space makes it less than 0 */
}

/* Whether nothing is left to do: the steps so far did more than they promised. This e is measured,
 * not a bound, but on a G that has only been carried along. */
static bool is_enough(const struct polar *polar, double e)
{
    return e * e <= fmin(goal_of(polar->plan), CERTIFIED_SHARE * polar->plan->target);
}

/* What a Gram side that is `e` from the identity after `done` steps asks for, into `step`, full.
 * `*last` says whether it is proven to be the last one. FIRE_TOO_LATE: e shows singular values far
 * below what was expected, which this side cannot treat accurately. */
static enum fire_status gram_step(struct polar *polar, double e, uint32_t done, double *lower,
                                  void *step, bool *last)
{
    struct polar_space *space = polar->space;
    const struct engine_ops *ops = crew_ops(polar->crew, polar->dtype);

    polar->steps++;
    if (e < 1 && finishes(polar, after_t3(e))) {
        ops->copy_affine(step, space->g, space->ld, space->cols, -0.5, 1.5);
        dense_mirror(polar->crew, polar->dtype, step, space->ld, space->cols);
        polar_note(polar, "T3");
        *last = true;
        return FIRE_OK;
    }
    if (done >= GRAM_STEPS_EXPECTED && e >= GRAM_LATE)
        return FIRE_TOO_LATE;
    *last = e < 1 && finishes(polar, after_halley(e));
    if (done >= GRAM_STEPS_EXPECTED) /* what was expected of the least one has not come true */
        *lower = fmin(*lower, sqrt(1 - e));
    const struct weights w = weights_for(*last ? 1 : *lower);

    polar_note(polar, *last ? "H" : "D");
    *lower = fmin(1, image_of(w, *lower));
    return gram_rational(polar, w, step, *last) ? FIRE_OK : FIRE_BAD_REQUEST;
}

/* Runs to the end on the r x r side and multiplies x once. On failure x is as it was. */
static enum fire_status finish_on_gram_side(struct polar *polar, const struct knowledge *known)
{
    struct polar_space *space = polar->space;
    const enum fire_dtype dtype = polar->dtype;
    const struct engine_ops *ops = crew_ops(polar->crew, dtype);
    const uint32_t n = space->cols;
    double lower = known->lower;
    void *product = NULL, *step, *other;
    bool last = false;

    if (polar_space_gram(space, polar->dtype) != FIRE_OK)
        return FIRE_NO_MEMORY;
    step = space->gram[0];
    other = space->gram[1];
    if (known->upper_square != 1)
        ops->affine(space->g, space->ld, n, 1 / known->upper_square, 0);
    polar_note(polar, "gram(");
    for (uint32_t i = 0; i < GRAM_STEPS_MAX && !last; i++) {
        const double e = gram_distance(polar);

        last = i > 0 && is_enough(polar, e);
        if (last)
            break;
        const enum fire_status status = gram_step(polar, e, i, &lower, step, &last);

        if (status != FIRE_OK)
            return status;
        if (!product) {
            product = space->gram[2];
            swap(&product, &step);
            continue;
        }
        dense_symmetric_product(polar->crew, dtype, n, product, step, space->ld, 1, 0, other);
        dense_mirror(polar->crew, dtype, other, space->ld, n);
        swap(&product, &other);
    }
    if (known->upper_square != 1)
        ops->affine_full(product, space->ld, n, 1 / sqrt(known->upper_square), 0);
    polar_multiply(polar, product, dtype);
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
    double gain; /* of the steps so far on the least singular values */
    bool x_only; /* the Gram side has been tried in vain */
};

enum verdict { VERDICT_GO_ON, VERDICT_DONE, VERDICT_TOO_SMALL, VERDICT_FAILED, VERDICT_NO_MEMORY };

static bool exact(const struct polar *polar)
{
    return polar->plan->compute == FIRE_F64;
}

/* Lanczos on G: the ends of the spectrum. */
static void look(struct polar *polar, struct attempt *attempt)
{
    struct polar_space *space = polar->space;
    struct knowledge *known = &attempt->known;
    struct lanczos lanczos;

    lanczos_run(crew_ops(polar->crew, attempt->g_dtype), space->g, space->ld, space->cols,
                space->vectors, &lanczos);
    if (attempt->iteration == 0)
        known->upper_square = fmin(1.05 * lanczos.value[lanczos.count - 1], known->upper_square);
    /* The least Ritz value lies above the least eigenvalue: lean to the safe side. What the last
     * step's weights promise is the better estimate where the two agree. */
    const double seen = sqrt(fmax(lanczos.value[0], 0) / known->upper_square);

    if (attempt->iteration == 0 || seen < known->lower || seen > 2 * known->lower)
        known->lower = 0.8 * seen;
}

static bool is_long(const struct polar *polar)
{
    return polar->space->rows >= POLAR_LONG_ASPECT * polar->space->cols;
}

static bool looks(const struct polar *polar, const struct attempt *attempt)
{
    const bool small = polar->space->cols < SMALL_SIDE;

    if (exact(polar))
        return attempt->start == START_NEAR;
    if (attempt->iteration == 0) /* a look costs little beside the products of a long matrix */
        return attempt->start == START_NEAR && (!small || is_long(polar));
    return !small && (attempt->start == START_NEAR || attempt->iteration == 1) &&
           attempt->start != START_HARD;
}

/* A bound on the largest eigenvalue of an n x n G with that sum of squares and trace: mean and
 * deviation of the eigenvalues allow no more. */
static double largest_at_most(uint32_t n, double square, double trace)
{
    const double mean = trace / n, variance = fmax(square / n - mean * mean, 0);

    return fmin(sqrt(square), (mean + sqrt(variance * (n - 1))) * (1 + BOUND_ROOM));
}

/* The scale of the first G. A nearly isometric x is divided by the factor that brings G closest to
 * I; any other by an upper bound of its largest singular value. */
static void first_look(struct polar *polar, struct attempt *attempt)
{
    struct polar_space *space = polar->space;
    double dfi, square, trace;

    crew_ops(polar->crew, attempt->g_dtype)
        ->sums(space->g, space->ld, space->cols, 1, &dfi, &square, &trace);
    attempt->known.lower = LOWER_WIDE;
    attempt->known.mean_square = trace / space->cols;
    if (space->cols - trace * trace / square < 0.5)
        attempt->known.upper_square = square / trace;
    else
        attempt->known.upper_square = largest_at_most(space->cols, square, trace);
}

/* Squares mostly need f64 for their first step; long matrices mostly do not. */
static bool widens(const struct polar *polar, const struct attempt *attempt)
{
    if (attempt->iteration > 0 || polar->dtype == FIRE_F64)
        return false;
    return attempt->start == START_WIDE || (!polar->plan->fast && !is_long(polar));
}

static void make_gram(struct polar *polar, struct attempt *attempt, bool widen)
{
    struct polar_space *space = polar->space;

    attempt->g_dtype = widen ? FIRE_F64 : polar->dtype;
    dense_gram(polar->crew, attempt->g_dtype, widen, space->x, space->ld, space->rows, space->cols,
               space->g, space->ld);
    if (attempt->iteration == 0)
        polar_note_before(polar, space->g, attempt->g_dtype);
}

/* Brings an f64 G back to the type of x. */
static void narrow_gram(struct polar *polar, struct attempt *attempt)
{
    if (attempt->g_dtype != polar->dtype)
        polar->crew->engine->narrow(polar->space->g, polar->space->cols * polar->space->ld);
    attempt->g_dtype = polar->dtype;
}

bool polar_rational(struct polar *polar, double lower, double upper_square)
{
    const struct weights w = weights_for(lower);

    if (!rational_inverse(polar, polar->dtype, w, upper_square))
        return false;
    rational_apply(polar, polar->dtype, polar->dtype, w, upper_square);
    polar_note(polar, "D");
    return true;
}

static enum verdict step_down(struct polar *polar, struct attempt *attempt, double lower,
                              enum fire_dtype product, const char *name)
{
    struct knowledge *known = &attempt->known;
    const struct weights w = weights_for(lower);

    if (attempt->iteration >= 2 && lower == LOWER_F32)
        polar->hard = true; /* still lifting: the condition number is large */
    polar_note(polar, name);
    if (!rational_inverse(polar, attempt->g_dtype, w, known->upper_square))
        return VERDICT_FAILED;
    rational_apply(polar, attempt->g_dtype, product, w, known->upper_square);
    known->lower = fmin(1, image_of(w, lower));
    known->upper_square = 1;
    attempt->gain *= w.a;
    return VERDICT_GO_ON;
}

/* The error an f32 product with M would cause in the polar factor: some roundoffs (fitted to what
 * was measured; they grow with the root of r) of its largest terms, a times x's, in the directions
 * of the singular values below 1/sqrt(c), whose share the trace of Z^-1 tells. */
static double product_error(struct polar *polar, const struct knowledge *known, struct weights w)
{
    const struct polar_space *space = polar->space;
    double dfi, square, trace;

    crew_ops(polar->crew, FIRE_F64)
        ->sums(space->g, space->ld, space->cols, 1, &dfi, &square, &trace);
    const double roundoffs = fmax(MIXED_ROUNDOFFS * sqrt(space->cols), MIXED_ROUNDOFFS_MIN);

    return roundoffs * 0x1p-24 * w.a *
           sqrt(known->mean_square / known->upper_square * trace / space->cols);
}

/* The first step of a NEAR start whose lower end is out of sight: G and the inverse in f64, the
 * product too unless f32 is good enough for it. */
static enum verdict step_near(struct polar *polar, struct attempt *attempt)
{
    const uint32_t cols = polar->space->cols;
    const double share = cols > NEAR_SMALL_SIDE ? NEAR_SHARE / cols
                                                : fmax(NEAR_SHARE_SMALL / cols, LOWER_NEAR_SMALL);
    const double lower = fmin(fmax(share, LOWER_NEAR_MIN), LOWER_NEAR_MAX);
    const struct weights w = weights_for(lower);
    struct knowledge *known = &attempt->known;
    enum fire_dtype product = FIRE_F64;

    if (polar->plan->fast)
        return step_down(polar, attempt, POLAR_LOWER_FAST, FIRE_F32, "D");
    if (attempt->g_dtype != FIRE_F64)
        make_gram(polar, attempt, true);
    if (!rational_inverse(polar, FIRE_F64, w, known->upper_square))
        return VERDICT_FAILED;
    if (polar->dtype == FIRE_F32 && product_error(polar, known, w) <= MIXED_ERROR)
        product = FIRE_F32;
    rational_apply(polar, FIRE_F64, product, w, known->upper_square);
    polar_note(polar, product == FIRE_F32 ? "DM" : "D64");
    known->lower = image_of(w, lower);
    known->upper_square = 1;
    return VERDICT_GO_ON;
}

static enum verdict step_hard(struct polar *polar, struct attempt *attempt)
{
    const enum verdict verdict = step_down(polar, attempt, LOWER_WIDE, FIRE_F64, "D64");

    /* f64 weights carry another such step before noise shows. */
    if (verdict != VERDICT_GO_ON || (exact(polar) && attempt->iteration == 0))
        return verdict;
    if (polar_drop_noise(polar) != FIRE_OK)
        return VERDICT_NO_MEMORY;
    if (!exact(polar) && polar->space->cols > TINY_SIDE)
        polar_narrow(polar);
    return VERDICT_GO_ON;
}

static enum verdict step_gram(struct polar *polar, struct attempt *attempt)
{
    enum fire_status status;

    narrow_gram(polar, attempt);
    status = finish_on_gram_side(polar, &attempt->known);
    if (status == FIRE_NO_MEMORY)
        return VERDICT_NO_MEMORY;
    if (status == FIRE_OK) {
        attempt->known.upper_square = 1;
        return VERDICT_GO_ON;
    }
    /* x is as it was. The last start goes on without the Gram side; the others give way. */
    attempt->x_only = true;
    return attempt->start == START_HARD ? VERDICT_GO_ON : VERDICT_TOO_SMALL;
}

/* The DfI says that singular values are left which should have converged by now. */
static bool is_stagnant(const struct polar *polar, const struct attempt *attempt, double dfi)
{
    const double rest = dfi - polar->rank_defect;

    if (exact(polar) && attempt->start == START_NEAR)
        return attempt->iteration >= 7 && rest > 0.25;
    return attempt->start != START_NEAR && attempt->known.lower > 0.99 &&
           rest > fmax(0.25, 1e-3 * polar->space->cols);
}

/* A step far from the end. */
static enum verdict step_far(struct polar *polar, struct attempt *attempt, double dfi)
{
    const struct knowledge *known = &attempt->known;
    const bool first = attempt->iteration == 0;

    if (is_stagnant(polar, attempt, dfi)) {
        if (attempt->start != START_HARD)
            return VERDICT_TOO_SMALL;
        polar->rank_defect = (uint32_t)lround(dfi);
        return VERDICT_DONE;
    }
    if (looks(polar, attempt)) {
        look(polar, attempt);
        const double fast_least =
            attempt->start == START_NEAR ? fmin(LEAST_FAST * attempt->gain, LEAST_FAST_LIFTED) : 0;
        const double least = polar->plan->fast ? fast_least : LOWER_F32 / 2;

        if (!first && known->lower < least && !exact(polar))
            return VERDICT_TOO_SMALL;
    }
    if (attempt->start == START_HARD && attempt->iteration < (exact(polar) ? 2u : 1u))
        return step_hard(polar, attempt);
    if (attempt->start == START_WIDE && first)
        return step_down(polar, attempt, LOWER_WIDE, FIRE_F64, "D64");
    if (known->lower >= (first && !is_long(polar) ? KNOWN_LOWER : GRAM_LOWER) && !attempt->x_only &&
        polar->plan->side != FIRE_SIDE_X)
        return step_gram(polar, attempt);
    if (first && known->lower < (is_long(polar) ? GRAM_LOWER : KNOWN_LOWER) && !exact(polar))
        return step_near(polar, attempt);
    narrow_gram(polar, attempt);
    return step_down(polar, attempt, fmin(1, fmax(known->lower, LOWER_F32)), polar->dtype,
                     polar->dtype == FIRE_F64 ? "D64" : "D");
}

/* What to do about a G whose DfI is `dfi`. */
static enum verdict step(struct polar *polar, struct attempt *attempt, double dfi)
{
    struct knowledge *known = &attempt->known;
    const double e = sqrt(fmax(dfi - polar->rank_defect, 0));
    const double upper_square = known->upper_square;

    if (e < 1 && finishes(polar, after_t3(e))) {
        narrow_gram(polar, attempt);
        step_t3(polar, upper_square);
        polar->certified = true;
        known->upper_square = 1;
        return VERDICT_GO_ON;
    }
    if (e < 1 && finishes(polar, after_halley(e))) {
        narrow_gram(polar, attempt);
        polar->certified = true;
        return step_down(polar, attempt, 1, polar->dtype, "H");
    }
    return step_far(polar, attempt, dfi);
}

/* Whether the measured `dfi` ends the iteration. */
static bool is_done(const struct polar *polar, double dfi)
{
    const double rest = fmax(dfi - polar->rank_defect, 0);

    if (polar->rank_defect) /* the null space holds a little noise, whose square is missing */
        return polar->certified || fabs(dfi - polar->rank_defect) <= goal_of(polar->plan);
    return rest <= (polar->certified ? polar->plan->target : goal_of(polar->plan));
}

static enum verdict run_attempt(struct polar *polar, enum start start)
{
    struct attempt attempt = { .start = start, .known.upper_square = 1, .gain = 1 };
    const struct polar_space *space = polar->space;
    enum verdict verdict = VERDICT_GO_ON;

    polar->rank_defect = 0;
    polar->certified = false;
    for (; attempt.iteration < ITERATIONS_MAX && verdict == VERDICT_GO_ON; attempt.iteration++) {
        double dfi, square, trace;

        make_gram(polar, &attempt, widens(polar, &attempt));
        if (crew_is_abandoned(polar->crew))
            return VERDICT_FAILED;
        if (attempt.iteration == 0)
            first_look(polar, &attempt);
        crew_ops(polar->crew, attempt.g_dtype)
            ->sums(space->g, space->ld, space->cols, 1 / attempt.known.upper_square, &dfi, &square,
                   &trace);
        if (!isfinite(dfi))
            return VERDICT_FAILED;
        if (attempt.iteration > 0 && is_done(polar, dfi)) {
            polar->gram_valid = true;
            polar->dfi = dfi;
            return VERDICT_DONE;
        }
        polar->certified = false;
        verdict = step(polar, &attempt, dfi);
        if (verdict == VERDICT_GO_ON && polar->certified &&
            !(polar->plan->statistics & FIRE_STATISTICS_BASIC))
            return VERDICT_DONE;
    }
    if (verdict == VERDICT_GO_ON) /* it does not come to an end this way */
        return start == START_HARD ? VERDICT_DONE : VERDICT_TOO_SMALL;
    return verdict;
}

enum fire_status polar_converge(struct polar *polar)
{
    enum start start = START_NEAR;

    if (polar_tiles_takes(polar->crew->engine, polar->plan)) {
        const enum fire_status status = polar_tiles_converge(polar);

        if (status != FIRE_BAD_REQUEST)
            return status;
        polar->method[0] = 0;
        polar->steps = 0;
    }

    for (;;) {
        const bool wide = exact(polar) || polar->space->cols <= TINY_SIDE || start == START_HARD;

        polar->hard = start == START_HARD;
        if (polar_load(polar, wide ? FIRE_F64 : FIRE_F32) != FIRE_OK)
            return FIRE_NO_MEMORY;
        switch (run_attempt(polar, start)) {
        case VERDICT_DONE: return FIRE_OK;
        case VERDICT_NO_MEMORY: return FIRE_NO_MEMORY;
        case VERDICT_GO_ON:
        case VERDICT_TOO_SMALL:
        case VERDICT_FAILED: break;
        }
        if (crew_is_abandoned(polar->crew))
            return FIRE_CANCELLED;
        if (start == START_HARD)
            return FIRE_BAD_REQUEST;
        start = start == START_NEAR && !exact(polar) ? START_WIDE : START_HARD;
        polar->method[0] = 0; /* the way that led to the result is what is told */
        polar->steps = 0;
        polar_note(polar, start == START_WIDE ? "wide:" : "hard:");
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
