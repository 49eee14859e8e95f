/* The way of compute=fast where there is a tile unit, for what is not known to be well conditioned.
 * One rational step lifts small singular values; then X and everything on the r x r side stay
 * packed bf16 (amx_packed.h) while a short minimax chain brings all of them near 1; then f32 again,
 * G in split bf16, and corrections until the DfI is measured below the target.
 *
 *   D     the rational step of polar.c, in f32 and split bf16
 *   P9    X (a (G^2 + b G + c)^2 + d G + e), a step of a chain of minimax_coefficients.h
 *   E5    X + X (E/2 + 3/8 E^2), E = I - G, whose product is so small beside X that bf16 will do
 *
 * A second chain takes the few that the first has left. What comes to no end then is ill
 * conditioned or has a rank defect, and is left to polar.c's own starts: lifting it further in bf16
 * would lift noise. */
#include <math.h>
#include <string.h>

#include "amx_packed.h"
#include "lanczos.h"
#include "minimax_coefficients.h"
#include "polar.h"

#define TILES_SIDE_MIN 128u
#define TILES_CUSHION  0.04  /* of chains whose products are bf16 */
#define TILES_LOWER    0.1   /* lower end of the chains */
#define TILES_KNOWN    0.2   /* a Lanczos estimate below this may as well be 0 */
#define TILES_CHAINS   2u    /* at most, */
#define TILES_FEW      8.0   /* and a second one for so many singular values that are still small */
#define TILES_TAILS    3u    /* likewise */
#define TAIL_REACH     0.6   /* sqrt(DfI) from which E5 makes it smaller for sure */
#define TILES_NEAR     0.5   /* of the scale-free DfI: nearly an isometry */
#define TILES_FLOOR    1e-10 /* times r: a DfI that G in split bf16 can still tell from noise */

/* Everything a task needs. */
struct tiles_job {
    const struct packed_ops *ops;
    const struct crew *crew;
    struct packed_pack pack;
    struct packed_square square;
    struct packed_multiply multiply;
};

static void pack_one(void *data, uint32_t index, uint32_t worker)
{
    const struct tiles_job *job = data;

    (void)worker;
    job->ops->pack(&job->pack, index);
}

static void square_one(void *data, uint32_t index, uint32_t worker)
{
    const struct tiles_job *job = data;

    job->ops->square(&job->square, index, job->crew->scratch[worker]);
}

static void multiply_one(void *data, uint32_t index, uint32_t worker)
{
    const struct tiles_job *job = data;

    job->ops->multiply(&job->multiply, index, job->crew->scratch[worker]);
}

/* One matrix on this way. */
struct way {
    struct polar *polar;
    struct tiles_job job;
    struct packed x, first, second; /* the latter two are cols x cols */
};

static void way_open(struct way *way, struct polar *polar)
{
    const struct polar_space *space = polar->space;
    const uint32_t rows = space->rows, n = space->cols;
    uint8_t *tiles = space->tiles;

    memset(way, 0, sizeof(*way));
    way->polar = polar;
    way->job.ops = polar->crew->engine->packed;
    way->job.crew = polar->crew;
    way->x = (struct packed){ tiles, rows, n };
    way->first = (struct packed){ tiles + packed_bytes(rows, n), n, n };
    way->second = (struct packed){ way->first.tiles + packed_bytes(n, n), n, n };
}

/* `to` = the array, or the symmetric matrix in its upper triangle. */
static void pack(struct way *way, const float *from, struct packed to, bool symmetric)
{
    way->job.pack = (struct packed_pack){ from, way->polar->space->ld, to, symmetric };
    crew_run(way->polar->crew, packed_pack_tasks(&way->job.pack), pack_one, &way->job);
}

static void square(struct way *way, struct packed_square square)
{
    way->job.square = square;
    crew_run(way->polar->crew, packed_square_tasks(&way->job.square), square_one, &way->job);
}

static void multiply(struct way *way, struct packed_multiply multiply)
{
    way->job.multiply = multiply;
    crew_run(way->polar->crew, packed_multiply_tasks(&way->job.multiply), multiply_one, &way->job);
}

/* G of packed x. */
static void gram(struct way *way)
{
    const struct polar_space *space = way->polar->space;

    square(
        way,
        (struct packed_square){
            .a = way->x, .alpha = 1, .upper = space->g, .ld = space->ld, .to = way->first.tiles });
}

/* --- the chain ------------------------------------------------------------------------------- */

static const struct minimax_chain *chain_of_tiles(void)
{
    const struct minimax_chain *found = NULL;

    for (size_t i = 0; i < MINIMAX_CHAIN_COUNT; i++) {
        if (minimax_chains[i].cushion == TILES_CUSHION && minimax_chains[i].lower == TILES_LOWER)
            found = &minimax_chains[i];
    }
    FIRE_ASSERT(found != NULL); /* the table has it */
    return found;
}

/* The first G, and from its spectrum the scale of x; then D. False: polar.c knows better ways for
 * this matrix. */
static bool begin(struct polar *polar)
{
    struct polar_space *space = polar->space;
    const struct engine_ops *ops = crew_ops(polar->crew, FIRE_F32);
    struct lanczos lanczos;
    double dfi, square_sum, trace;

    polar_gram(polar);
    polar_note_before(polar, space->g, FIRE_F32);
    ops->sums(space->g, space->ld, space->cols, 1, &dfi, &square_sum, &trace);
    if (!isfinite(square_sum) || space->cols - trace * trace / square_sum < TILES_NEAR)
        return false;
    lanczos_run(ops, space->g, space->ld, space->cols, space->vectors, &lanczos);
    const double upper_square = fmin(1.05 * lanczos.value[lanczos.count - 1], sqrt(square_sum));

    if (lanczos.value[0] >= TILES_KNOWN * TILES_KNOWN * upper_square)
        return false;
    return polar_rational(polar, POLAR_LOWER_FAST, upper_square);
}

/* x <- x r(G) for the G in `first` and, in f32, in space->g: r(G) = a (G^2 + b G + c)^2 + d G + e.
 * `to`: NULL while x stays packed, else where it goes as f32. */
static void chain_step(struct way *way, const double *c, float *to)
{
    struct polar_space *space = way->polar->space;

    square(way, (struct packed_square){ .a = way->first,
                                        .alpha = 1,
                                        .beta = c[1],
                                        .shift = c[2],
                                        .d = space->g,
                                        .ld = space->ld,
                                        .to = way->second.tiles });
    square(way, (struct packed_square){ .a = way->second,
                                        .alpha = c[0],
                                        .beta = c[3],
                                        .shift = c[4],
                                        .d = space->g,
                                        .ld = space->ld,
                                        .to = way->first.tiles });
    multiply(way,
             (struct packed_multiply){ .x = way->x, .to = to, .ld = space->ld, .m = way->first });
    way->polar->steps++;
    polar_note(way->polar, "P9");
}

/* A chain on x. */
static void run_chain(struct way *way)
{
    const struct minimax_chain *chain = chain_of_tiles();
    struct polar_space *space = way->polar->space;

    pack(way, space->x, way->x, false);
    for (uint32_t i = 0; i < chain->step_count; i++) {
        gram(way);
        chain_step(way, chain->step[i].squared, i + 1 < chain->step_count ? NULL : space->x);
    }
}

/* --- the tail -------------------------------------------------------------------------------- */

/* x <- x + x (E/2 + 3/8 E^2); G of x is in space->g. */
static void tail_step(struct way *way)
{
    struct polar_space *space = way->polar->space;

    crew_ops(way->polar->crew, FIRE_F32)->affine(space->g, space->ld, space->cols, -1, 1);
    pack(way, space->g, way->first, true);
    square(way, (struct packed_square){ .a = way->first,
                                        .alpha = 0.375,
                                        .beta = 0.5,
                                        .d = space->g,
                                        .ld = space->ld,
                                        .to = way->second.tiles });
    multiply(way, (struct packed_multiply){ .x = { NULL, space->rows, space->cols },
                                            .from = space->x,
                                            .to = space->x,
                                            .ld = space->ld,
                                            .m = way->second,
                                            .beta = 1 });
    way->polar->steps++;
    polar_note(way->polar, "E5");
}

bool polar_tiles_takes(const struct engine *engine, const struct fire_plan *plan)
{
    return engine->packed && plan->kind == FIRE_PLAN_CONVERGE && plan->fast &&
           plan->compute == FIRE_F32 && plan->side == FIRE_SIDE_AUTO &&
           plan->target >= TILES_FLOOR * plan->cols && plan->cols >= TILES_SIDE_MIN &&
           plan->cols <= PACKED_SIDE_MAX && plan->rows < POLAR_LONG_ASPECT * plan->cols;
}

enum fire_status polar_tiles_converge(struct polar *polar)
{
    struct polar_space *space = polar->space;
    const struct engine_ops *ops = crew_ops(polar->crew, FIRE_F32);
    uint32_t chains = 1, tails = 0;
    struct way way;

    if (polar_load(polar, FIRE_F32) != FIRE_OK)
        return FIRE_NO_MEMORY;
    if (!begin(polar))
        return FIRE_BAD_REQUEST;
    if (polar_space_tiles(space) != FIRE_OK)
        return FIRE_NO_MEMORY;
    way_open(&way, polar);
    run_chain(&way);
    for (;;) {
        double square, trace;

        if (crew_is_abandoned(polar->crew))
            return FIRE_CANCELLED;
        polar_gram(polar);
        ops->sums(space->g, space->ld, space->cols, 1, &polar->dfi, &square, &trace);
        polar->gram_valid = polar->dfi <= polar->plan->target;
        if (polar->gram_valid)
            return FIRE_OK;
        if (polar->dfi < TAIL_REACH * TAIL_REACH && tails < TILES_TAILS) {
            tails++;
            tail_step(&way);
        } else if (polar->dfi < TILES_FEW && chains < TILES_CHAINS) { /* false for NaN */
            chains++;
            run_chain(&way);
        } else {
            return FIRE_BAD_REQUEST;
        }
    }
}
