/* tiny: groups of small matrices on their way from the slots to the lanes and back. */
#include "tiny.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "polar.h"
#include "slot.h"

#define METHOD_BYTES 24

size_t tiny_space_bytes(void)
{
    return (TINY_ENTRIES + TINY_SLACK + TINY_MATRICES * TINY_MATRIX) * TINY_LANES_MAX *
           sizeof(double);
}

bool tiny_takes(const struct fire_plan *plan)
{
    return plan->kind == FIRE_PLAN_CONVERGE && plan->compute == FIRE_F32 &&
           plan->cols <= TINY_COLS_MAX && plan->rows <= TINY_ROWS_MAX &&
           plan->rows * plan->cols <= TINY_ENTRIES;
}

static double milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static void name_method(const struct tiny_group *group, uint32_t lane, char method[METHOD_BYTES])
{
    /* by hand: snprintf would take as long as the matrix */
    static const char newton[] = "lanes N64 x", t3[] = " T3", halley[] = " H";
    char *end = method;

    memcpy(end, newton, sizeof(newton));
    end += sizeof(newton) - 1;
    *end++ = (char)('0' + group->newton_steps[lane]);
    if (group->end[lane] == TINY_T3)
        memcpy(end, t3, sizeof(t3));
    else
        memcpy(end, halley, sizeof(halley));
}

/* Whether the lanes can write the weights themselves; all else is slot_finish()'s. */
static bool is_plain(const struct fire_plan *plan)
{
    return plan->statistics == 0 && plan->blend == 1 && plan->output == FIRE_F32 &&
           plan->scale != FIRE_SCALE_MEAN_SIGMA;
}

static double scale_of(const struct fire_plan *plan, double norm)
{
    return plan->scale == FIRE_SCALE_KEEP_NORM ? plan->scale_factor * (norm / sqrt(plan->cols))
                                               : plan->scale_factor;
}

/* What slot_finish() does, for a plain plan and all lanes that are fit. */
static void write_plain(const struct tiny_job *job, const struct tiny_group *group,
                        struct fire_slot *slots, uint32_t slot_count)
{
    const struct engine *engine = job->crew->engine;
    struct tiny_write write = { 0 };
    struct fire_result blank;

    fire_result_init(&blank);
    blank.path = engine->name;
    blank.matrices = 1;
    blank.action = FIRE_ACTION_PROJECTED;
    blank.status = FIRE_OK;
    blank.converged = true;
    blank.rank = job->plan->cols;
    blank.compute_ms = 0;
    for (uint32_t l = 0; l < slot_count; l++) {
        write.weights[l] = group->end[l] == TINY_UNFIT ? NULL : slots[l].weights;
        write.scale[l] = scale_of(job->plan, group->norm[l]);
    }
    engine->tiny->write(group, &write);
    for (uint32_t l = 0; l < slot_count; l++) {
        struct fire_result *result = slots[l].result;

        if (group->end[l] == TINY_UNFIT)
            continue;
        *result = blank;
        result->steps = group->newton_steps[l] + 1;
        result->scale = write.scale[l];
        result->sfe = write.sfe[l];
        result->sfe_relative = write.sfe[l] / (group->norm[l] * group->norm[l]);
        name_method(group, l, result->method);
    }
}

static void finish(const struct tiny_job *job, const struct tiny_group *group, uint32_t lane,
                   struct fire_slot *slot)
{
    char method[METHOD_BYTES];
    const struct slot_factor factor = { .q = group->space + lane,
                                        .stride = job->crew->engine->tiny->lanes,
                                        .norm = group->norm[lane],
                                        .steps = group->newton_steps[lane] + 1,
                                        .method = method };

    name_method(group, lane, method);
    slot_finish(job->crew, job->plan, job->space, slot, &factor);
}

void tiny_run(const struct tiny_job *job, struct fire_slot *slots, uint32_t slot_count)
{
    const struct tiny_ops *ops = job->crew->engine->tiny;
    const struct fire_plan *plan = job->plan;
    struct tiny_group group = { .rows = plan->rows,
                                .cols = plan->cols,
                                .bound_max = polar_bound_max(plan),
                                .space = job->lanes };
    const bool plain = is_plain(plan);
    const double start = milliseconds();
    double share;

    FIRE_ASSERT(slot_count > 0);
    FIRE_ASSERT(slot_count <= ops->lanes);
    for (uint32_t l = 0; l < ops->lanes; l++)
        group.weights[l] = slots[l < slot_count ? l : 0].weights;
    ops->solve(&group);
    for (uint32_t l = 0; l < slot_count; l++) {
        if (group.norm[l] < plan->min_norm)
            group.end[l] = TINY_UNFIT;
    }
    if (plain)
        write_plain(job, &group, slots, slot_count);
    share = (milliseconds() - start) / slot_count;
    for (uint32_t l = 0; l < slot_count; l++) {
        if (group.end[l] == TINY_UNFIT)
            slot_run(job->crew, plan, job->space, &slots[l]);
        else if (!plain)
            finish(job, &group, l, &slots[l]);
        slots[l].result->compute_ms += share;
    }
}
