/* local_dormant: dormant ratios of a tensor whose activations or gradients came with it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "local.h"

#define ACTIVATION_EPS 1e-9
#define GRADIENT_EPS   1e-8

/* A tensor seen as outer x units x inner, where `units` is the axis of the output units. Under a
 * stack every stacked matrix has its own units, so `outer` counts units too. */
struct unit_axes {
    uint64_t stacked; /* product of the stack axes */
    uint64_t before;  /* between the stack and the unit axis */
    uint64_t units;
    uint64_t after;
};

static void find_unit_axes(const struct fire_tensor *tensor, struct unit_axes *axes)
{
    const uint32_t stack = tensor->options.stack;
    const uint32_t unit_axis =
        tensor->options.layout == FIRE_LAYOUT_IN_OUT ? tensor->shape.axes - 1 : stack;

    *axes = (struct unit_axes){ 1, 1, tensor->shape.size[unit_axis], 1 };
    for (uint32_t axis = 0; axis < tensor->shape.axes; axis++) {
        if (axis < stack)
            axes->stacked *= tensor->shape.size[axis];
        else if (axis < unit_axis)
            axes->before *= tensor->shape.size[axis];
        else if (axis > unit_axis)
            axes->after *= tensor->shape.size[axis];
    }
}

static double element(const void *data, enum fire_dtype dtype, uint64_t index)
{
    const unsigned char *at = (const unsigned char *)data + index * fire_dtype_bytes(dtype);
    uint16_t half;
    double wide;
    float single;

    switch (dtype) {
    case FIRE_F64: memcpy(&wide, at, sizeof(wide)); return wide;
    case FIRE_F32: memcpy(&single, at, sizeof(single)); return (double)single;
    case FIRE_BF16: memcpy(&half, at, sizeof(half)); return (double)fire_bf16_to_f32(half);
    case FIRE_F16: memcpy(&half, at, sizeof(half)); return (double)fire_f16_to_f32(half);
    }
    return NAN;
}

/* Mean |gradient| of each output unit. */
static void gradient_means(const struct fire_tensor *tensor, const struct unit_axes *axes,
                           double *means)
{
    uint64_t index = 0;

    for (uint64_t s = 0; s < axes->stacked; s++) {
        double *unit_means = means + s * axes->units;

        for (uint64_t b = 0; b < axes->before; b++) {
            for (uint64_t u = 0; u < axes->units; u++) {
                for (uint64_t a = 0; a < axes->after; a++, index++)
                    unit_means[u] += fabs(element(tensor->gradient, tensor->gradient_dtype, index));
            }
        }
        for (uint64_t u = 0; u < axes->units; u++)
            unit_means[u] /= (double)(axes->before * axes->after);
    }
}

static enum fire_status gradient_ratio(struct fire_tensor *tensor, struct fire_error *error)
{
    struct unit_axes axes;
    double *means;

    find_unit_axes(tensor, &axes);
    means = calloc(axes.stacked * axes.units, sizeof(*means));
    if (!means)
        return fire_fail_memory(error, axes.stacked * axes.units * sizeof(*means));
    gradient_means(tensor, &axes, means);
    tensor->result.gradient_dormant_ratio = fire_dormant_ratio(
        means, axes.stacked * axes.units, tensor->options.gradient_dormant_tau, GRADIENT_EPS);
    free(means);
    return FIRE_OK;
}

enum fire_status local_dormant(struct fire_tensor *tensor, struct fire_error *error)
{
    if (tensor->unit_means && tensor->unit_count > 0)
        tensor->result.dormant_ratio = fire_dormant_ratio(
            tensor->unit_means, tensor->unit_count, tensor->options.dormant_tau, ACTIVATION_EPS);
    if (!tensor->gradient)
        return FIRE_OK;
    return gradient_ratio(tensor, error);
}
