/* Views against the plain meaning of the axes: an element is named by its coordinates, laid out in
 * the order of the layout and flattened row by row. No stride appears here. */
#include "tensor.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

static const struct layout_case {
    const char *name;
    struct fire_shape shape;
    enum fire_layout layout;
    enum fire_conv conv;
    uint32_t stack;
    uint32_t split_count;
    uint64_t split_sizes[4];
    uint64_t views;
    uint32_t rows, cols; /* of the first view */
} cases[] = {
    { "plain tall", { 2, { 70, 33 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 1, { 0 }, 1, 70, 33 },
    { "plain wide", { 2, { 33, 70 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 1, { 0 }, 1, 33, 70 },
    { "one element", { 2, { 1, 1 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 1, { 0 }, 1, 1, 1 },
    { "one row", { 2, { 1, 600 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 1, { 0 }, 1, 1, 600 },
    { "one column", { 2, { 600, 1 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 1, { 0 }, 1, 600, 1 },
    { "in_out tall", { 2, { 33, 70 } }, FIRE_LAYOUT_IN_OUT, 0, 0, 1, { 0 }, 1, 70, 33 },
    { "in_out wide", { 2, { 70, 33 } }, FIRE_LAYOUT_IN_OUT, 0, 0, 1, { 0 }, 1, 33, 70 },
    { "qkv in three", { 2, { 96, 32 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 3, { 0 }, 3, 32, 32 },
    { "qkv unequal", { 2, { 50, 32 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 3, { 30, 10, 10 }, 3, 30, 32 },
    { "qkv in_out", { 2, { 32, 50 } }, FIRE_LAYOUT_IN_OUT, 0, 0, 3, { 30, 10, 10 }, 3, 30, 32 },
    { "experts", { 3, { 4, 9, 7 } }, FIRE_LAYOUT_OUT_IN, 0, 1, 1, { 0 }, 4, 9, 7 },
    { "ensemble in_out", { 3, { 2, 7, 9 } }, FIRE_LAYOUT_IN_OUT, 0, 1, 1, { 0 }, 2, 9, 7 },
    { "two stacks split", { 4, { 2, 3, 8, 5 } }, FIRE_LAYOUT_OUT_IN, 0, 2, 2, { 0 }, 12, 4, 5 },
    { "conv taps tall", { 4, { 40, 34, 3, 3 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 1, { 0 }, 9, 40, 34 },
    { "conv taps wide", { 4, { 34, 40, 3, 2 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 1, { 0 }, 6, 34, 40 },
    { "conv taps split", { 4, { 6, 4, 3, 3 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 2, { 2, 4 }, 18, 2, 4 },
    { "conv stacked", { 5, { 2, 6, 4, 1, 3 } }, FIRE_LAYOUT_OUT_IN, 0, 1, 1, { 0 }, 6, 6, 4 },
    { "conv flat", { 4, { 40, 34, 3, 3 } }, FIRE_LAYOUT_OUT_IN, 1, 0, 1, { 0 }, 1, 40, 306 },
    { "conv 1x1", { 4, { 40, 34, 1, 1 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 1, { 0 }, 1, 40, 34 },
    { "conv1d", { 3, { 8, 6, 5 } }, FIRE_LAYOUT_OUT_IN, 0, 0, 1, { 0 }, 5, 8, 6 },
    { "conv1d flat", { 3, { 8, 6, 5 } }, FIRE_LAYOUT_OUT_IN, 1, 0, 1, { 0 }, 1, 8, 30 },
    { "Flax conv", { 4, { 3, 2, 34, 40 } }, FIRE_LAYOUT_IN_OUT, 0, 0, 1, { 0 }, 6, 40, 34 },
    { "Flax conv wide", { 4, { 3, 2, 40, 34 } }, FIRE_LAYOUT_IN_OUT, 0, 0, 2, { 0 }, 12, 17, 40 },
    { "Flax conv flat", { 4, { 3, 2, 34, 40 } }, FIRE_LAYOUT_IN_OUT, 1, 0, 1, { 0 }, 1, 40, 204 },
    { "Flax conv1d", { 3, { 5, 6, 8 } }, FIRE_LAYOUT_IN_OUT, 0, 0, 1, { 0 }, 5, 8, 6 },
};
#define CASE_COUNT ((int)(sizeof(cases) / sizeof(cases[0])))

static void options_of(const struct layout_case *test, struct fire_options *options)
{
    struct fire_error error;

    ck_assert_int_eq(fire_options_preset(options, "fire", &error), FIRE_OK);
    options->layout = test->layout;
    options->conv = test->conv;
    options->stack = test->stack;
    options->split_count = test->split_count;
    memcpy(options->split_sizes, test->split_sizes, sizeof(test->split_sizes));
}

static uint64_t elements_of(const struct fire_shape *shape)
{
    struct fire_error error;
    uint64_t elements;

    ck_assert_int_eq(fire_shape_elements(shape, &elements, &error), FIRE_OK);
    return elements;
}

/* Which element of the tensor is (row, col) of view `index`, by counting coordinates. */
static uint64_t element_at(const struct layout_case *test, uint64_t index, uint64_t row,
                           uint64_t col)
{
    const uint64_t *size = test->shape.size;
    const uint32_t axes = test->shape.axes, stack = test->stack;
    const bool out_first = test->layout == FIRE_LAYOUT_OUT_IN;
    const uint32_t out_axis = out_first ? stack : axes - 1;
    const uint32_t in_axis = out_first ? stack + 1 : axes - 2;
    const uint32_t tap_axis = out_first ? stack + 2 : stack;
    const uint32_t tap_axes = axes - stack - 2;
    uint64_t coordinate[FIRE_AXES_MAX] = { 0 };
    uint64_t taps = 1, tap, block, layer, flat = 0;

    for (uint32_t a = 0; a < tap_axes; a++)
        taps *= size[tap_axis + a];
    tap = test->conv == FIRE_CONV_TAP ? index % taps : 0;
    index = test->conv == FIRE_CONV_TAP ? index / taps : index;
    block = index % test->split_count;
    layer = index / test->split_count;
    for (uint64_t b = 0; b < block; b++)
        row += test->split_sizes[0] ? test->split_sizes[b] : size[out_axis] / test->split_count;
    if (test->conv == FIRE_CONV_FLATTEN) {
        tap = out_first ? col % taps : col / size[in_axis];
        col = out_first ? col / taps : col % size[in_axis];
    }
    coordinate[out_axis] = row;
    coordinate[in_axis] = col;
    for (uint32_t a = tap_axes; a-- > 0; tap /= size[tap_axis + a])
        coordinate[tap_axis + a] = tap % size[tap_axis + a];
    for (uint32_t a = stack; a-- > 0; layer /= size[a])
        coordinate[a] = layer % size[a];
    for (uint32_t a = 0; a < axes; a++)
        flat = flat * size[a] + coordinate[a];
    return flat;
}

START_TEST(every_view_is_where_its_coordinates_say)
{
    const struct layout_case *test = &cases[_i];
    const uint64_t elements = elements_of(&test->shape);
    unsigned char *seen = calloc(elements, 1);
    struct fire_options options;
    struct fire_error error;
    uint64_t count;

    ck_assert_ptr_nonnull(seen);
    options_of(test, &options);
    ck_assert_int_eq(fire_view_count(&test->shape, &options, &count, &error), FIRE_OK);
    ck_assert_msg(count == test->views, "%s: %llu views", test->name, (unsigned long long)count);
    for (uint64_t v = 0; v < count; v++) {
        struct fire_view view;

        fire_view_at(&test->shape, &options, v, &view);
        if (v == 0)
            ck_assert_msg(view.rows == test->rows && view.cols == test->cols, "%s: %u x %u",
                          test->name, view.rows, view.cols);
        for (uint64_t i = 0; i < view.rows; i++) {
            for (uint64_t j = 0; j < view.cols; j++) {
                const uint64_t at = view.offset + i * view.row_stride + j * view.col_stride;

                ck_assert_msg(at == element_at(test, v, i, j), "%s: view %llu (%llu, %llu)",
                              test->name, (unsigned long long)v, (unsigned long long)i,
                              (unsigned long long)j);
                seen[at]++;
            }
        }
    }
    for (uint64_t i = 0; i < elements; i++)
        ck_assert_msg(seen[i] == 1, "%s: element %llu is in %d views", test->name,
                      (unsigned long long)i, seen[i]);
    free(seen);
}
END_TEST

START_TEST(fans_include_the_kernel_and_taps_divide_only_taps)
{
    static const struct {
        const char *name;
        struct fire_shape shape;
        enum fire_layout layout;
        enum fire_conv conv;
        uint64_t fan_in, fan_out;
        double tap_count;
    } fans[] = {
        { "linear", { 2, { 8, 6 } }, FIRE_LAYOUT_OUT_IN, FIRE_CONV_TAP, 6, 8, 1 },
        { "conv tap", { 4, { 8, 6, 3, 2 } }, FIRE_LAYOUT_OUT_IN, FIRE_CONV_TAP, 36, 48, 6 },
        { "conv flat", { 4, { 8, 6, 3, 2 } }, FIRE_LAYOUT_OUT_IN, FIRE_CONV_FLATTEN, 36, 48, 1 },
        { "Flax tap", { 4, { 3, 2, 6, 8 } }, FIRE_LAYOUT_IN_OUT, FIRE_CONV_TAP, 36, 48, 6 },
        { "conv1d", { 3, { 8, 6, 5 } }, FIRE_LAYOUT_OUT_IN, FIRE_CONV_TAP, 30, 40, 5 },
    };

    for (size_t i = 0; i < sizeof(fans) / sizeof(fans[0]); i++) {
        struct fire_options options;
        struct fire_error error;
        struct fire_view view;

        ck_assert_int_eq(fire_options_preset(&options, "fire", &error), FIRE_OK);
        options.layout = fans[i].layout;
        options.conv = fans[i].conv;
        fire_view_at(&fans[i].shape, &options, 0, &view);
        ck_assert_msg(view.fan_in == fans[i].fan_in, "%s", fans[i].name);
        ck_assert_msg(view.fan_out == fans[i].fan_out, "%s", fans[i].name);
        ck_assert_msg(view.tap_count == fans[i].tap_count, "%s", fans[i].name);
    }
}
END_TEST

/* --- copies ----------------------------------------------------------------------------------- */

static void store(char *tensor, enum fire_dtype dtype, uint64_t index, double value)
{
    const float narrow = (float)value;
    uint16_t half;

    switch (dtype) {
    case FIRE_F64: memcpy(tensor + index * 8, &value, 8); return;
    case FIRE_F32: memcpy(tensor + index * 4, &narrow, 4); return;
    case FIRE_BF16: half = fire_f32_to_bf16(narrow); break;
    case FIRE_F16: half = fire_f32_to_f16(narrow); break;
    default: return;
    }
    memcpy(tensor + index * 2, &half, 2);
}

static double slot_at(const void *slot, enum fire_dtype compute, uint64_t index)
{
    return compute == FIRE_F64 ? ((const double *)slot)[index] : ((const float *)slot)[index];
}

/* Gathers every view of `tensor`, compares with the coordinates, scatters into `copy`. */
static void pass_through(const struct layout_case *test, enum fire_dtype dtype,
                         enum fire_dtype compute, const double *values, const char *tensor,
                         char *copy)
{
    struct fire_options options;
    struct fire_error error;
    uint64_t count;

    options_of(test, &options);
    ck_assert_int_eq(fire_view_count(&test->shape, &options, &count, &error), FIRE_OK);
    for (uint64_t v = 0; v < count; v++) {
        struct fire_view view;
        uint64_t r;
        void *slot;

        fire_view_at(&test->shape, &options, v, &view);
        r = fire_view_short(&view);
        slot = malloc((size_t)view.rows * view.cols * fire_dtype_bytes(compute));
        ck_assert_ptr_nonnull(slot);
        ck_assert_int_eq(fire_view_gather(&view, tensor, dtype, compute, slot, NULL), FIRE_OK);
        for (uint64_t i = 0; i < view.rows; i++) {
            for (uint64_t j = 0; j < view.cols; j++) {
                const uint64_t at = view.rows >= view.cols ? i * r + j : j * r + i;
                const double want = values[element_at(test, v, i, j)];

                ck_assert_msg(slot_at(slot, compute, at) == want,
                              "%s %s in %s: view %llu (%llu, %llu) is %g, not %g", test->name,
                              fire_dtype_name(dtype), fire_dtype_name(compute),
                              (unsigned long long)v, (unsigned long long)i, (unsigned long long)j,
                              slot_at(slot, compute, at), want);
            }
        }
        fire_view_scatter(&view, slot, compute, dtype, copy);
        free(slot);
    }
}

/* The tensor starts at an odd address, as a file's may. Values are exact in all formats. */
START_TEST(gather_then_scatter_gives_back_every_byte)
{
    const struct layout_case *test = &cases[_i];
    const uint64_t elements = elements_of(&test->shape);
    double *values = malloc(elements * sizeof(*values));
    char *tensor = malloc(elements * 8 + 1), *copy = malloc(elements * 8 + 1);
    struct fire_random random;

    ck_assert(values && tensor && copy);
    fire_random_init(&random, 3);
    for (int d = 0; d < FIRE_DTYPE_COUNT; d++) {
        const enum fire_dtype dtype = (enum fire_dtype)d;
        const size_t bytes = elements * fire_dtype_bytes(dtype);

        for (int wide = 0; wide < 2; wide++) {
            for (uint64_t i = 0; i < elements; i++) {
                values[i] = (double)(fire_random_u64(&random) % 511) / 64.0 - 4.0;
                values[i] = fire_dtype_round(FIRE_BF16, values[i]);
                store(tensor + 1, dtype, i, values[i]);
            }
            memset(copy, 0x5a, bytes + 1);
            pass_through(test, dtype, wide ? FIRE_F64 : FIRE_F32, values, tensor + 1, copy + 1);
            ck_assert_msg(memcmp(tensor + 1, copy + 1, bytes) == 0, "%s %s", test->name,
                          fire_dtype_name(dtype));
            ck_assert_int_eq(copy[0], 0x5a);
        }
    }
    free(values);
    free(tensor);
    free(copy);
}
END_TEST

START_TEST(scatter_touches_only_its_own_matrix)
{
    const struct layout_case *test = &cases[_i];
    const uint64_t elements = elements_of(&test->shape);
    float *tensor = malloc(elements * sizeof(*tensor));
    struct fire_options options;
    struct fire_view view;
    float *slot;

    options_of(test, &options);
    fire_view_at(&test->shape, &options, test->views - 1, &view);
    slot = calloc((size_t)view.rows * view.cols, sizeof(*slot));
    ck_assert(tensor && slot);
    for (uint64_t i = 0; i < elements; i++)
        tensor[i] = 1.0f;
    fire_view_scatter(&view, slot, FIRE_F32, FIRE_F32, tensor);
    for (uint64_t i = 0; i < view.rows; i++)
        for (uint64_t j = 0; j < view.cols; j++) {
            float *element = &tensor[element_at(test, test->views - 1, i, j)];

            ck_assert(*element == 0.0f);
            *element = 1.0f;
        }
    for (uint64_t i = 0; i < elements; i++)
        ck_assert_msg(tensor[i] == 1.0f, "%s: element %llu", test->name, (unsigned long long)i);
    free(tensor);
    free(slot);
}
END_TEST

START_TEST(scatter_rounds_once_to_nearest_even)
{
    const struct fire_view view = { .rows = 2, .cols = 1, .row_stride = 1, .col_stride = 1 };
    const double slot[2] = { 1.0 + 0x1p-8 + 0x1p-40, 1.0 + 0x1p-8 };
    const float slot_f32[2] = { 1.0f + 0x1p-8f, 1.0f + 0x3p-8f };
    uint16_t tensor[2];

    fire_view_scatter(&view, slot, FIRE_F64, FIRE_BF16, tensor);
    ck_assert_uint_eq(tensor[0], 0x3f81);
    ck_assert_uint_eq(tensor[1], 0x3f80);
    fire_view_scatter(&view, slot_f32, FIRE_F32, FIRE_BF16, tensor);
    ck_assert_uint_eq(tensor[0], 0x3f80);
    ck_assert_uint_eq(tensor[1], 0x3f82);
}
END_TEST

/* Two bad elements in a view: the smaller index is named, whichever the copy met first. */
START_TEST(the_first_number_that_is_not_finite_is_named)
{
    const struct layout_case *test = &cases[_i];
    static const double bad[] = { NAN, -INFINITY, INFINITY };
    const uint64_t elements = elements_of(&test->shape);
    char *tensor = calloc(elements, 8);
    struct fire_options options;
    struct fire_view view;
    uint64_t last, first;
    void *slot;

    options_of(test, &options);
    fire_view_at(&test->shape, &options, test->views - 1, &view);
    slot = malloc((size_t)view.rows * view.cols * 8);
    ck_assert(tensor && slot);
    first = element_at(test, test->views - 1, view.rows / 2, 0);
    last = element_at(test, test->views - 1, 0, view.cols / 2);
    for (int k = 0; k < FIRE_DTYPE_COUNT * 2 * 3; k++) {
        const enum fire_dtype dtype = (enum fire_dtype)(k % FIRE_DTYPE_COUNT);
        const enum fire_dtype compute = k / FIRE_DTYPE_COUNT % 2 ? FIRE_F64 : FIRE_F32;
        uint64_t index = UINT64_MAX;

        memset(tensor, 0, elements * 8);
        ck_assert_int_eq(fire_view_gather(&view, tensor, dtype, compute, slot, &index), FIRE_OK);
        store(tensor, dtype, first, bad[k / 8]);
        store(tensor, dtype, last, bad[k / 8]);
        ck_assert_int_eq(fire_view_gather(&view, tensor, dtype, compute, slot, NULL),
                         FIRE_BAD_REQUEST);
        ck_assert_int_eq(fire_view_gather(&view, tensor, dtype, compute, slot, &index),
                         FIRE_BAD_REQUEST);
        ck_assert_msg(index == (first < last ? first : last), "%s %s: %llu", test->name,
                      fire_dtype_name(dtype), (unsigned long long)index);
    }
    free(tensor);
    free(slot);
}
END_TEST

START_TEST(f64_beyond_f32_counts_as_infinite_only_in_f32)
{
    const struct fire_view view = { .rows = 2, .cols = 2, .row_stride = 2, .col_stride = 1 };
    const double tensor[4] = { 1.0, 2.0, -1e300, 1e300 };
    double slot[4];
    uint64_t index;

    ck_assert_int_eq(fire_view_gather(&view, tensor, FIRE_F64, FIRE_F64, slot, &index), FIRE_OK);
    ck_assert_int_eq(fire_view_gather(&view, tensor, FIRE_F64, FIRE_F32, slot, &index),
                     FIRE_BAD_REQUEST);
    ck_assert_uint_eq(index, 2);
}
END_TEST

/* --- refusals --------------------------------------------------------------------------------- */

START_TEST(shapes_that_hold_no_matrices_are_refused_with_the_reason)
{
    static const struct {
        struct layout_case layout;
        const char *field;
        const char *words; /* in the message */
    } refused[] = {
        { { "scalar", { 0, { 0 } }, 0, 0, 0, 1, { 0 }, 0, 0, 0 }, "shape", "2 axes" },
        { { "vector", { 1, { 5 } }, 0, 0, 0, 1, { 0 }, 0, 0, 0 }, "shape", "(5)" },
        { { "9 axes", { 9, { 1 } }, 0, 0, 0, 1, { 0 }, 0, 0, 0 }, "shape", "9 axes" },
        { { "empty axis", { 2, { 5, 0 } }, 0, 0, 0, 1, { 0 }, 0, 0, 0 }, "shape", "axis 1" },
        { { "product overflows", { 3, { 1ull << 32, 1ull << 32, 4 } }, 0, 0, 0, 1, { 0 }, 0, 0, 0 },
          "shape",
          "elements" },
        { { "too large", { 2, { 1ull << 20, 1ull << 20 } }, 0, 0, 0, 1, { 0 }, 0, 0, 0 },
          "shape",
          "elements" },
        { { "5 axes", { 5, { 2, 2, 2, 2, 2 } }, 0, 0, 0, 1, { 0 }, 0, 0, 0 }, "stack", "5 axes" },
        { { "stack eats all", { 3, { 2, 2, 2 } }, 0, 0, 2, 1, { 0 }, 0, 0, 0 },
          "stack",
          "stack=2" },
        { { "huge stack", { 3, { 2, 2, 2 } }, 0, 0, UINT32_MAX, 1, { 0 }, 0, 0, 0 },
          "stack",
          "fewer than 2" },
        { { "split not equal", { 2, { 50, 8 } }, 0, 0, 0, 3, { 0 }, 0, 0, 0 }, "split", "50 rows" },
        { { "split sum", { 2, { 50, 8 } }, 0, 0, 0, 2, { 30, 30 }, 0, 0, 0 }, "split", "60" },
        { { "split sum in_out", { 2, { 8, 50 } }, 1, 0, 0, 2, { 4, 4 }, 0, 0, 0 }, "split", "50" },
        { { "split zero", { 2, { 50, 8 } }, 0, 0, 0, 3, { 50, 0, 0 }, 0, 0, 0 }, "split", "is 0" },
        { { "split overflow", { 2, { 50, 8 } }, 0, 0, 0, 2, { UINT64_MAX, 51 }, 0, 0, 0 },
          "split",
          "overflow" },
        { { "split none", { 2, { 50, 8 } }, 0, 0, 0, 0, { 0 }, 0, 0, 0 }, "split", "1 to 64" },
        { { "split many", { 2, { 65, 8 } }, 0, 0, 0, 65, { 0 }, 0, 0, 0 }, "split", "1 to 64" },
        { { "too many rows", { 2, { 65537, 8 } }, 0, 0, 0, 1, { 0 }, 0, 0, 0 }, "shape", "65537" },
        { { "too many columns", { 2, { 8, 65537 } }, 0, 0, 0, 1, { 0 }, 0, 0, 0 },
          "shape",
          "65537 columns" },
        { { "too flat", { 4, { 8, 30000, 3, 1 } }, 0, 1, 0, 1, { 0 }, 0, 0, 0 },
          "shape",
          "conv=tap" },
    };

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct fire_options options;
        struct fire_error error;
        uint64_t count = 1;

        options_of(&refused[i].layout, &options);
        ck_assert_msg(fire_view_count(&refused[i].layout.shape, &options, &count, &error) ==
                          FIRE_BAD_REQUEST,
                      "%s", refused[i].layout.name);
        ck_assert_uint_eq(count, 0);
        ck_assert_msg(strcmp(error.field, refused[i].field) == 0, "%s: field %s",
                      refused[i].layout.name, error.field);
        ck_assert_msg(strstr(error.message, refused[i].words) != NULL, "%s: %s",
                      refused[i].layout.name, error.message);
        ck_assert_int_eq(fire_view_count(&refused[i].layout.shape, &options, &count, NULL),
                         FIRE_BAD_REQUEST);
    }
}
END_TEST

START_TEST(limits_themselves_are_allowed)
{
    static const struct layout_case allowed[] = {
        { "longest side", { 2, { 65536, 8 } }, 0, 0, 0, 1, { 0 }, 1, 65536, 8 },
        { "fused beyond it", { 2, { 3 * 65536, 8 } }, 0, 0, 0, 3, { 0 }, 3, 65536, 8 },
        { "64 blocks", { 2, { 128, 8 } }, 0, 0, 0, 64, { 0 }, 64, 2, 8 },
        { "6 stacks", { 8, { 2, 2, 2, 2, 2, 2, 5, 4 } }, 0, 0, 6, 1, { 0 }, 64, 5, 4 },
    };

    for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++) {
        struct fire_options options;
        struct fire_error error;
        struct fire_view view;
        uint64_t count;

        options_of(&allowed[i], &options);
        ck_assert_msg(fire_view_count(&allowed[i].shape, &options, &count, &error) == FIRE_OK, "%s",
                      allowed[i].name);
        ck_assert_uint_eq(count, allowed[i].views);
        fire_view_at(&allowed[i].shape, &options, count - 1, &view);
        ck_assert_uint_eq(view.rows, allowed[i].rows);
        ck_assert_uint_eq(view.cols, allowed[i].cols);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tensor");
    TCase *tests = tcase_create("tensor");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, every_view_is_where_its_coordinates_say, 0, CASE_COUNT);
    tcase_add_test(tests, fans_include_the_kernel_and_taps_divide_only_taps);
    tcase_add_loop_test(tests, gather_then_scatter_gives_back_every_byte, 0, CASE_COUNT);
    tcase_add_loop_test(tests, scatter_touches_only_its_own_matrix, 0, CASE_COUNT);
    tcase_add_test(tests, scatter_rounds_once_to_nearest_even);
    tcase_add_loop_test(tests, the_first_number_that_is_not_finite_is_named, 0, CASE_COUNT);
    tcase_add_test(tests, f64_beyond_f32_counts_as_infinite_only_in_f32);
    tcase_add_test(tests, shapes_that_hold_no_matrices_are_refused_with_the_reason);
    tcase_add_test(tests, limits_themselves_are_allowed);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
