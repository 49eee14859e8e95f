/* work: the plan of a tensor, and what is said about it; copying its elements is gather_range.c.
 *
 * Only a split of given sizes makes matrices that differ, so there are at most as many parts as row
 * blocks, whatever the number of matrices. */
#include "work.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "geometry.h"
#include "statistics.h"

#define ACTIVATION_EPS 1e-9
#define GRADIENT_EPS   1e-8

/* --- planning --------------------------------------------------------------------------------- */

uint32_t fire_work_part_of(const struct fire_work *work, const struct fire_view *view)
{
    for (uint32_t i = 0; i < work->part_count; i++) {
        if (work->parts[i].rows == view->rows && work->parts[i].cols == view->cols)
            return i;
    }
    return UINT32_MAX;
}

/* NUMERICS.md section 2: the architecture rule leaves matrices alone whose short side is 1, which
 * depthwise convolutions are made of. The presets of other sources do not. */
static bool skipped_by_rule(const struct fire_options *options, const struct fire_view *view)
{
    return options->select == FIRE_SELECT_ARCH && fire_view_short(view) == 1;
}

/* What the parts are planned from. */
struct request {
    const struct fire_shape *shape;
    const struct fire_options *options;
    enum fire_dtype dtype;
    bool analyze;
    uint32_t statistics;
};

static enum fire_status plan_part(const struct request *request, const struct fire_view *view,
                                  struct fire_work_part *part, struct fire_error *error)
{
    enum fire_status status;

    *part = (struct fire_work_part){ .rows = view->rows, .cols = view->cols };
    if (request->analyze)
        return fire_plan_analyze(&part->plan, request->options, view, request->dtype,
                                 request->statistics, error);
    status = fire_options_check(request->options, request->dtype, view->rows, view->cols, error);
    if (status != FIRE_OK)
        return status;
    return fire_plan_make(&part->plan, request->options, view, request->dtype, request->statistics,
                          error);
}

/* Adds `matrices` of the shape of view `index`. */
static enum fire_status add_views(struct fire_work *work, const struct request *request,
                                  uint64_t index, uint64_t matrices, struct fire_error *error)
{
    struct fire_view view;
    uint32_t part;

    fire_view_at(request->shape, request->options, index, &view);
    if (!request->analyze && skipped_by_rule(request->options, &view))
        return FIRE_OK;
    part = fire_work_part_of(work, &view);
    if (part == UINT32_MAX) {
        const enum fire_status status =
            plan_part(request, &view, &work->parts[work->part_count], error);

        if (status != FIRE_OK)
            return status;
        part = work->part_count++;
    }
    work->parts[part].matrices += matrices;
    work->matrices += matrices;
    return FIRE_OK;
}

enum fire_status fire_work_init(struct fire_work *work, const struct fire_shape *shape,
                                enum fire_dtype dtype, const struct fire_options *options,
                                bool analyze, uint32_t statistics, struct fire_error *error)
{
    const struct request request = { shape, options, dtype, analyze, statistics };
    struct geometry geometry;
    uint64_t blocks, views_per_block;
    enum fire_status status;

    *work = (struct fire_work){ 0 };
    status = fire_shape_elements(shape, &work->elements, error);
    if (status == FIRE_OK)
        status = fire_view_count(shape, options, &work->view_count, error);
    if (status != FIRE_OK)
        return status;
    geometry_of(shape, options, &geometry);
    blocks = options->split_sizes[0] ? geometry.kept : 1;
    views_per_block = options->conv == FIRE_CONV_TAP ? geometry.taps : 1;
    work->parts = calloc(blocks, sizeof(*work->parts));
    if (!work->parts)
        return fire_fail_memory(error, blocks * sizeof(*work->parts));
    for (uint64_t i = 0; i < blocks && status == FIRE_OK; i++)
        status = add_views(work, &request, i * views_per_block, work->view_count / blocks, error);
    if (status != FIRE_OK)
        fire_work_release(work);
    return status;
}

void fire_work_release(struct fire_work *work)
{
    free(work->parts);
    *work = (struct fire_work){ 0 };
}

bool fire_work_is_verbatim(const struct fire_work *work, const struct fire_shape *shape,
                           const struct fire_options *options, enum fire_dtype dtype)
{
    const bool in_out = options->layout == FIRE_LAYOUT_IN_OUT;
    struct geometry geometry;

    if (work->matrices != work->view_count || options->split_skip)
        return false;
    geometry_of(shape, options, &geometry);
    /* (in, out) matrices lie one after another when no split cuts their rows, and so do taps. */
    if (in_out ? options->split_count != 1 : options->conv == FIRE_CONV_TAP && geometry.taps != 1)
        return false;
    for (uint32_t i = 0; i < work->part_count; i++) {
        const struct fire_work_part *part = &work->parts[i];

        if (part->plan.compute != dtype)
            return false;
        if (in_out ? part->rows >= part->cols : part->rows < part->cols)
            return false;
    }
    return true;
}

/* --- words and numbers about a tensor --------------------------------------------------------- */

uint64_t fire_work_seed(const struct fire_options *options, const char *name, uint64_t view_index)
{
    uint64_t mixed = options->seed + 0x9e3779b97f4a7c15ull * (view_index + 1);

    for (const char *letter = name; letter && *letter; letter++)
        mixed = (mixed ^ (unsigned char)*letter) * 0x100000001b3ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    return mixed ^ (mixed >> 31);
}

void fire_work_skip(struct fire_result *result, uint64_t matrices)
{
    fire_result_init(result);
    result->action = FIRE_ACTION_SKIPPED;
    result->status = FIRE_OK;
    result->matrices = matrices < UINT32_MAX ? (uint32_t)matrices : UINT32_MAX;
    snprintf(result->reason, sizeof(result->reason), "r = 1");
}

void fire_work_describe_element(const char *name, const struct fire_shape *shape, double value,
                                uint64_t index, struct fire_error *error)
{
    const char *shown = name ? name : "(unnamed)";
    uint64_t place[FIRE_AXES_MAX] = { 0 };
    char where[FIRE_AXES_MAX * 22 + 3] = "[";
    size_t used = 1;
    uint64_t rest = index;

    for (uint32_t axis = shape->axes; axis-- > 0;) {
        place[axis] = rest % shape->size[axis];
        rest /= shape->size[axis];
    }
    for (uint32_t axis = 0; axis < shape->axes; axis++)
        used += (size_t)snprintf(where + used, sizeof(where) - used, "%s%" PRIu64, axis ? ", " : "",
                                 place[axis]);
    snprintf(where + used, sizeof(where) - used, "]");
    fire_fail(error, FIRE_BAD_REQUEST, shown,
              "tensor '%s' has %s at element %" PRIu64
              ", index %s; repair the weights or leave this tensor out",
              shown, isnan(value) ? "NaN" : "Inf", index, where);
}

/* --- dormant units ---------------------------------------------------------------------------- */

/* A tensor seen as stacked x before x units x after, where `units` is the axis of the output units.
 * Every stacked matrix has its own units. */
struct unit_axes {
    uint64_t stacked; /* product of the stack axes */
    uint64_t before;  /* between the stack and the unit axis */
    uint64_t units;
    uint64_t after;
};

static void find_unit_axes(const struct fire_shape *shape, const struct fire_options *options,
                           struct unit_axes *axes)
{
    const uint32_t stack = options->stack;
    const uint32_t unit_axis = options->layout == FIRE_LAYOUT_IN_OUT ? shape->axes - 1 : stack;

    *axes = (struct unit_axes){ 1, 1, shape->size[unit_axis], 1 };
    for (uint32_t axis = 0; axis < shape->axes; axis++) {
        if (axis < stack)
            axes->stacked *= shape->size[axis];
        else if (axis < unit_axis)
            axes->before *= shape->size[axis];
        else if (axis > unit_axis)
            axes->after *= shape->size[axis];
    }
}

/* Mean |gradient| of each output unit. */
static void gradient_means(const struct fire_dormant_input *input, const struct unit_axes *axes,
                           double *means)
{
    uint64_t index = 0;

    for (uint64_t s = 0; s < axes->stacked; s++) {
        double *unit_means = means + s * axes->units;

        for (uint64_t b = 0; b < axes->before; b++) {
            for (uint64_t u = 0; u < axes->units; u++) {
                for (uint64_t a = 0; a < axes->after; a++, index++)
                    unit_means[u] +=
                        fabs(fire_dtype_element(input->gradient_dtype, input->gradient, index));
            }
        }
        for (uint64_t u = 0; u < axes->units; u++)
            unit_means[u] /= (double)(axes->before * axes->after);
    }
}

enum fire_status fire_work_dormant(const struct fire_shape *shape,
                                   const struct fire_options *options,
                                   const struct fire_dormant_input *input,
                                   struct fire_result *result, struct fire_error *error)
{
    struct unit_axes axes;
    double *means;

    if (input->unit_means && input->unit_count > 0)
        result->dormant_ratio = fire_dormant_ratio(input->unit_means, input->unit_count,
                                                   options->dormant_tau, ACTIVATION_EPS);
    if (!input->gradient)
        return FIRE_OK;
    find_unit_axes(shape, options, &axes);
    means = calloc(axes.stacked * axes.units, sizeof(*means));
    if (!means)
        return fire_fail_memory(error, axes.stacked * axes.units * sizeof(*means));
    gradient_means(input, &axes, means);
    result->gradient_dormant_ratio = fire_dormant_ratio(
        means, axes.stacked * axes.units, options->gradient_dormant_tau, GRADIENT_EPS);
    free(means);
    return FIRE_OK;
}
