/* What a tensor asks of a device. A tensor that arrives in pieces must end in the same slots, to
 * the bit, as one that is gathered whole, wherever it was cut. */
#include "work.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

#define ROUNDS      40   /* random shapes of each kind */
#define ELEMENTS    6000 /* about so many in a random tensor */
#define GUARD_BYTES 64   /* behind every slot */
#define GUARD       0x5a

static const enum fire_dtype dtypes[] = { FIRE_F64, FIRE_F32, FIRE_BF16, FIRE_F16 };

static uint64_t below(struct fire_random *random, uint64_t limit)
{
    return fire_random_u64(random) % limit;
}

static void preset(struct fire_options *options)
{
    struct fire_error error;

    ck_assert_int_eq(fire_options_preset(options, "fire", &error), FIRE_OK);
}

/* A tensor in memory of its own exact size, so that a read beyond it is seen by a sanitizer. */
struct sample {
    struct fire_shape shape;
    struct fire_options options;
    enum fire_dtype dtype;
    enum fire_dtype compute;
    uint64_t elements, views;
    unsigned char *data;
};

static void store(const struct sample *sample, uint64_t index, double value)
{
    unsigned char *at = sample->data + index * fire_dtype_bytes(sample->dtype);
    const float single = (float)value;
    const uint16_t half =
        sample->dtype == FIRE_BF16 ? fire_f32_to_bf16(single) : fire_f32_to_f16(single);

    switch (sample->dtype) {
    case FIRE_F64: memcpy(at, &value, sizeof(value)); return;
    case FIRE_F32: memcpy(at, &single, sizeof(single)); return;
    case FIRE_BF16:
    case FIRE_F16: memcpy(at, &half, sizeof(half)); return;
    }
}

/* A random shape with 0 to 2 stack axes, 2 to 4 others, any layout, and a split half of the time,
 * equal or not, with a block skipped now and then. */
static void sample_shape(struct sample *sample, struct fire_random *random)
{
    struct fire_options *options = &sample->options;
    struct fire_shape *shape = &sample->shape;
    uint64_t rest = ELEMENTS, out;

    preset(options);
    options->select = FIRE_SELECT_VISION; /* no rule skips */
    options->layout = below(random, 2) ? FIRE_LAYOUT_IN_OUT : FIRE_LAYOUT_OUT_IN;
    options->conv = below(random, 2) ? FIRE_CONV_FLATTEN : FIRE_CONV_TAP;
    options->stack = (uint32_t)below(random, 3);
    shape->axes = options->stack + 2 + (uint32_t)below(random, 3);
    for (uint32_t axis = 0; axis < shape->axes; axis++) {
        const uint64_t most = axis < options->stack ? 4 : axis < options->stack + 2 ? 70 : 9;

        shape->size[axis] = 1 + below(random, most < rest ? most : rest);
        rest = rest / shape->size[axis] ? rest / shape->size[axis] : 1;
    }
    out = shape->size[options->layout == FIRE_LAYOUT_IN_OUT ? shape->axes - 1 : options->stack];
    if (below(random, 2) || out < 3)
        return;
    options->split_count = 3;
    if (out % 3 || below(random, 2)) {
        options->split_sizes[0] = 1 + below(random, out - 2);
        options->split_sizes[1] = 1 + below(random, out - options->split_sizes[0] - 1);
        options->split_sizes[2] = out - options->split_sizes[0] - options->split_sizes[1];
    }
    options->split_skip = below(random, 3) ? 0 : 1u << below(random, 3);
}

static void sample_init(struct sample *sample, enum fire_dtype dtype, struct fire_random *random)
{
    struct fire_error error;

    *sample = (struct sample){ .dtype = dtype };
    sample->compute = below(random, 2) ? FIRE_F64 : FIRE_F32;
    sample_shape(sample, random);
    ck_assert_int_eq(fire_shape_elements(&sample->shape, &sample->elements, &error), FIRE_OK);
    ck_assert_msg(fire_view_count(&sample->shape, &sample->options, &sample->views, &error) ==
                      FIRE_OK,
                  "%s", error.message);
    sample->data = malloc(sample->elements * fire_dtype_bytes(dtype));
    ck_assert_ptr_nonnull(sample->data);
    for (uint64_t i = 0; i < sample->elements; i++)
        store(sample, i, 2.0 * fire_random_uniform(random) - 1.0);
}

/* Slots of every view, of their exact size and a guard; those of `unwanted` (bits) are NULL. */
static void **slots_open(const struct sample *sample, uint64_t unwanted)
{
    void **slots = calloc(sample->views, sizeof(*slots));

    ck_assert_ptr_nonnull(slots);
    for (uint64_t v = 0; v < sample->views; v++) {
        struct fire_view view;
        size_t bytes;

        if (unwanted >> v % 64 & 1)
            continue;
        fire_view_at(&sample->shape, &sample->options, v, &view);
        bytes = (size_t)view.rows * view.cols * fire_dtype_bytes(sample->compute) + GUARD_BYTES;
        slots[v] = malloc(bytes);
        ck_assert_ptr_nonnull(slots[v]);
        memset(slots[v], GUARD, bytes);
    }
    return slots;
}

static void slots_close(const struct sample *sample, void **slots)
{
    for (uint64_t v = 0; v < sample->views; v++)
        free(slots[v]);
    free(slots);
}

/* Gathers elements `first` … of a copy that starts at an odd address and ends with the memory. */
static enum fire_status gather_piece(const struct sample *sample, uint64_t first, uint64_t count,
                                     void *const *slots, uint64_t *bad_index)
{
    const size_t bytes = fire_dtype_bytes(sample->dtype);
    unsigned char *copy = malloc(count * bytes + 1);
    enum fire_status status;

    ck_assert_ptr_nonnull(copy);
    memcpy(copy + 1, sample->data + first * bytes, count * bytes);
    status = fire_work_gather(&sample->shape, &sample->options, sample->dtype, sample->compute,
                              first, count, copy + 1, slots, bad_index);
    free(copy);
    return status;
}

static void check_slots(const struct sample *sample, void *const *slots)
{
    for (uint64_t v = 0; v < sample->views; v++) {
        const unsigned char *slot = slots[v];
        struct fire_view view;
        unsigned char *whole;
        size_t bytes;

        if (!slot)
            continue;
        fire_view_at(&sample->shape, &sample->options, v, &view);
        bytes = (size_t)view.rows * view.cols * fire_dtype_bytes(sample->compute);
        whole = malloc(bytes);
        ck_assert_ptr_nonnull(whole);
        ck_assert_int_eq(
            fire_view_gather(&view, sample->data, sample->dtype, sample->compute, whole, NULL),
            FIRE_OK);
        ck_assert_mem_eq(slot, whole, bytes);
        for (size_t i = 0; i < GUARD_BYTES; i++)
            ck_assert_uint_eq(slot[bytes + i], GUARD);
        free(whole);
    }
}

/* Back into bytes that are known: what has a slot as view by view, everything else untouched. */
static void check_scatter(const struct sample *sample, void *const *slots)
{
    const size_t bytes = sample->elements * fire_dtype_bytes(sample->dtype);
    unsigned char *at_once = malloc(bytes), *one_by_one = malloc(bytes);

    ck_assert(at_once && one_by_one);
    memset(at_once, GUARD, bytes);
    memset(one_by_one, GUARD, bytes);
    fire_work_scatter(&sample->shape, &sample->options, sample->dtype, sample->compute, slots,
                      at_once);
    for (uint64_t v = 0; v < sample->views; v++) {
        struct fire_view view;

        fire_view_at(&sample->shape, &sample->options, v, &view);
        if (slots[v])
            fire_view_scatter(&view, slots[v], sample->compute, sample->dtype, one_by_one);
    }
    ck_assert_mem_eq(at_once, one_by_one, bytes);
    free(at_once);
    free(one_by_one);
}

/* Cuts: single elements, about a row, about a matrix, or all at once; in any order. */
START_TEST(pieces_end_where_the_whole_does_and_go_back)
{
    struct fire_random random;

    fire_random_init(&random, 100 + (uint64_t)_i);
    for (int round = 0; round < ROUNDS; round++) {
        struct sample sample;
        uint64_t longest, count;
        void **slots;

        sample_init(&sample, dtypes[_i], &random);
        slots = slots_open(&sample, below(&random, 4) ? 0 : fire_random_u64(&random));
        longest = (uint64_t[]){ 1, 90, 2000, sample.elements }[below(&random, 4)];
        for (uint64_t end = sample.elements; end > 0; end -= count) { /* the last piece first */
            count = longest == sample.elements ? longest : 1 + below(&random, longest);
            count = count < end ? count : end;
            ck_assert_int_eq(gather_piece(&sample, end - count, count, slots, NULL), FIRE_OK);
        }
        check_slots(&sample, slots);
        check_scatter(&sample, slots);
        slots_close(&sample, slots);
        free(sample.data);
    }
}
END_TEST

/* Large enough for every tile size and for several turns of the taps. */
static const struct large_case {
    const char *name;
    struct fire_shape shape;
    enum fire_layout layout;
} large_cases[] = {
    { "tall", { 2, { 700, 300 } }, FIRE_LAYOUT_OUT_IN },
    { "wide", { 2, { 300, 700 } }, FIRE_LAYOUT_OUT_IN },
    { "in_out tall", { 2, { 300, 700 } }, FIRE_LAYOUT_IN_OUT },
    { "in_out wide", { 2, { 700, 300 } }, FIRE_LAYOUT_IN_OUT },
    { "conv tall", { 4, { 130, 70, 3, 3 } }, FIRE_LAYOUT_OUT_IN },
    { "conv wide", { 4, { 70, 290, 3, 3 } }, FIRE_LAYOUT_OUT_IN },
    { "conv long rows", { 3, { 20, 9000, 3 } }, FIRE_LAYOUT_OUT_IN },
    { "Flax conv", { 4, { 3, 3, 70, 130 } }, FIRE_LAYOUT_IN_OUT },
    { "stack", { 3, { 40, 64, 48 } }, FIRE_LAYOUT_OUT_IN },
};

START_TEST(large_tensors_end_where_the_whole_does_and_go_back)
{
    const struct large_case *test = &large_cases[_i];
    struct fire_random random;

    fire_random_init(&random, 200 + (uint64_t)_i);
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        struct sample sample = { .shape = test->shape, .dtype = dtypes[d], .compute = FIRE_F32 };
        struct fire_error error;
        uint64_t count;
        void **slots;

        preset(&sample.options);
        sample.options.layout = test->layout;
        sample.options.stack = strcmp(test->name, "stack") == 0;
        ck_assert_int_eq(fire_shape_elements(&sample.shape, &sample.elements, &error), FIRE_OK);
        ck_assert_int_eq(fire_view_count(&sample.shape, &sample.options, &sample.views, &error),
                         FIRE_OK);
        sample.data = malloc(sample.elements * fire_dtype_bytes(sample.dtype));
        ck_assert_ptr_nonnull(sample.data);
        for (uint64_t i = 0; i < sample.elements; i++)
            store(&sample, i, 2.0 * fire_random_uniform(&random) - 1.0);
        slots = slots_open(&sample, 0);
        for (uint64_t first = 0; first < sample.elements; first += count) {
            count = 1 + below(&random, 100000);
            count = count < sample.elements - first ? count : sample.elements - first;
            ck_assert_int_eq(gather_piece(&sample, first, count, slots, NULL), FIRE_OK);
        }
        check_slots(&sample, slots);
        check_scatter(&sample, slots);
        slots_close(&sample, slots);
        free(sample.data);
    }
}
END_TEST

/* The view that holds an element, by looking through all of them; UINT64_MAX: none. */
static uint64_t view_of(const struct sample *sample, uint64_t index)
{
    for (uint64_t v = 0; v < sample->views; v++) {
        struct fire_view view;

        fire_view_at(&sample->shape, &sample->options, v, &view);
        for (uint64_t i = 0; i < view.rows; i++) {
            for (uint64_t j = 0; j < view.cols; j++) {
                if (view.offset + i * view.row_stride + j * view.col_stride == index)
                    return v;
            }
        }
    }
    return UINT64_MAX;
}

/* Three bad elements in a piece: the first that lies in a wanted matrix is named; those in skipped
 * blocks and unwanted matrices are nobody's fault. */
START_TEST(the_first_bad_element_is_named)
{
    static const double bad_values[] = { NAN, INFINITY, -INFINITY };
    struct fire_random random;
    int found = 0, unseen = 0;

    fire_random_init(&random, 300 + (uint64_t)_i);
    for (int round = 0; round < ROUNDS; round++) {
        struct sample sample;
        const uint64_t unwanted = below(&random, 2) ? 0 : fire_random_u64(&random);
        uint64_t want = UINT64_MAX, got = UINT64_MAX, first, count;
        enum fire_status status;
        void **slots;

        sample_init(&sample, dtypes[_i], &random);
        slots = slots_open(&sample, unwanted);
        first = below(&random, sample.elements);
        count = 1 + below(&random, sample.elements - first);
        for (int b = 0; b < 3; b++) {
            const uint64_t index = first + below(&random, count);
            const uint64_t view = view_of(&sample, index);

            store(&sample, index, bad_values[b]);
            if (view != UINT64_MAX && slots[view] && index < want)
                want = index;
        }
        status = gather_piece(&sample, first, count, slots, &got);
        ck_assert_int_eq(status, want == UINT64_MAX ? FIRE_OK : FIRE_BAD_REQUEST);
        ck_assert_uint_eq(got, want);
        found += want != UINT64_MAX;
        unseen += want == UINT64_MAX;
        slots_close(&sample, slots);
        free(sample.data);
    }
    ck_assert_int_gt(found, 0);
    ck_assert_int_gt(unseen, 0);
}
END_TEST

START_TEST(f64_beyond_f32_is_bad_only_in_f32)
{
    double values[4] = { 1.0, 2.0, 1e300, 3.0 };
    const struct fire_shape shape = { 2, { 2, 2 } };
    struct fire_options options;
    double slot[4];
    void *slots[1] = { slot };
    uint64_t bad = 0;

    preset(&options);
    ck_assert_int_eq(
        fire_work_gather(&shape, &options, FIRE_F64, FIRE_F64, 0, 4, values, slots, &bad), FIRE_OK);
    ck_assert_int_eq(
        fire_work_gather(&shape, &options, FIRE_F64, FIRE_F32, 1, 3, values + 1, slots, &bad),
        FIRE_BAD_REQUEST);
    ck_assert_uint_eq(bad, 2);
}
END_TEST

/* Slots one after another equal the tensor's bytes exactly when the function says so. */
START_TEST(verbatim_means_the_tensors_own_bytes)
{
    struct fire_random random;
    int verbatim_count = 0, other_count = 0;

    fire_random_init(&random, 400 + (uint64_t)_i);
    for (int round = 0; round < 4 * ROUNDS; round++) {
        struct sample sample;
        struct fire_work work;
        struct fire_error error;
        uint64_t used = 0;
        bool same = true;
        void **slots;

        sample_init(&sample, dtypes[_i], &random);
        sample.options.compute = sample.compute == FIRE_F64 ? FIRE_COMPUTE_F64 : FIRE_COMPUTE_F32;
        ck_assert_msg(fire_work_init(&work, &sample.shape, sample.dtype, &sample.options, true,
                                     FIRE_STATISTICS_BASIC, &error) == FIRE_OK,
                      "%s", error.message);
        sample.compute = work.parts[0].plan.compute;
        slots = slots_open(&sample, 0);
        ck_assert_int_eq(gather_piece(&sample, 0, sample.elements, slots, NULL), FIRE_OK);
        for (uint64_t v = 0; v < sample.views && sample.compute == sample.dtype; v++) {
            struct fire_view view;
            size_t bytes;

            fire_view_at(&sample.shape, &sample.options, v, &view);
            bytes = (size_t)view.rows * view.cols * fire_dtype_bytes(sample.compute);
            same &= memcmp(sample.data + used, slots[v], bytes) == 0;
            used += bytes;
        }
        same &= used == sample.elements * fire_dtype_bytes(sample.dtype);
        if (fire_work_is_verbatim(&work, &sample.shape, &sample.options, sample.dtype)) {
            ck_assert(same);
            verbatim_count++;
        } else {
            other_count++;
        }
        fire_work_release(&work);
        slots_close(&sample, slots);
        free(sample.data);
    }
    ck_assert_int_gt(other_count, 0);
    ck_assert_int_eq(verbatim_count > 0, fire_dtype_bytes(dtypes[_i]) >= 4);
}
END_TEST

START_TEST(pieces_across_a_slot_should_be_sixteen_rows)
{
    static const struct {
        struct fire_shape shape;
        enum fire_layout layout;
        uint64_t grain;
    } grains[] = {
        { { 2, { 700, 300 } }, FIRE_LAYOUT_OUT_IN, 1 },
        { { 2, { 300, 700 } }, FIRE_LAYOUT_OUT_IN, 16 * 700 },
        { { 2, { 300, 700 } }, FIRE_LAYOUT_IN_OUT, 16 * 700 },
        { { 2, { 700, 300 } }, FIRE_LAYOUT_IN_OUT, 1 },
        { { 4, { 30, 70, 3, 3 } }, FIRE_LAYOUT_OUT_IN, 16 * 70 * 9 },
    };

    for (size_t i = 0; i < sizeof(grains) / sizeof(grains[0]); i++) {
        struct fire_options options;

        preset(&options);
        options.layout = grains[i].layout;
        ck_assert_uint_eq(fire_work_gather_grain(&grains[i].shape, &options), grains[i].grain);
    }
}
END_TEST

/* Every view is counted in the part of its shape, or skipped; by looking at all of them. */
START_TEST(parts_count_every_view_once)
{
    struct fire_random random;
    bool split_met = false;

    fire_random_init(&random, 500);
    for (int round = 0; round < 4 * ROUNDS; round++) {
        struct sample sample;
        struct fire_work work;
        struct fire_error error;
        uint64_t counted[FIRE_SPLIT_MAX] = { 0 }, skipped = 0;

        sample_init(&sample, FIRE_F32, &random);
        sample.options.select = below(&random, 2) ? FIRE_SELECT_ARCH : FIRE_SELECT_VISION;
        ck_assert_msg(fire_work_init(&work, &sample.shape, FIRE_F32, &sample.options, false,
                                     FIRE_STATISTICS_BASIC, &error) == FIRE_OK,
                      "%s", error.message);
        ck_assert_uint_eq(work.elements, sample.elements);
        ck_assert_uint_eq(work.view_count, sample.views);
        for (uint64_t v = 0; v < sample.views; v++) {
            struct fire_view view;
            uint32_t part;

            fire_view_at(&sample.shape, &sample.options, v, &view);
            part = fire_work_part_of(&work, &view);
            if (part == UINT32_MAX) {
                ck_assert_int_eq(sample.options.select, FIRE_SELECT_ARCH);
                ck_assert_uint_eq(fire_view_short(&view), 1);
                skipped++;
                continue;
            }
            ck_assert_uint_lt(part, work.part_count);
            ck_assert_uint_eq(work.parts[part].plan.rows, fire_view_long(&view));
            ck_assert_uint_eq(work.parts[part].plan.cols, fire_view_short(&view));
            counted[part]++;
        }
        for (uint32_t p = 0; p < work.part_count; p++)
            ck_assert_uint_eq(work.parts[p].matrices, counted[p]);
        ck_assert_uint_eq(work.matrices + skipped, work.view_count);
        split_met |= work.part_count > 1;
        fire_work_release(&work);
        free(sample.data);
    }
    ck_assert(split_met);
}
END_TEST

START_TEST(a_tensor_with_a_fault_leaves_nothing_behind)
{
    const struct fire_shape vector = { 1, { 5 } }, matrix = { 2, { 8, 8 } };
    struct fire_options options;
    struct fire_work work;
    struct fire_error error = { 0 };

    preset(&options);
    ck_assert_int_eq(fire_work_init(&work, &vector, FIRE_F32, &options, false, 0, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_ptr_null(work.parts);
    options.target = 1e-30; /* below what f32 can hold */
    ck_assert_int_eq(fire_work_init(&work, &matrix, FIRE_F32, &options, false, 0, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_ptr_null(work.parts);
    ck_assert_int_eq(
        fire_work_init(&work, &matrix, FIRE_F32, &options, true, FIRE_STATISTICS_BASIC, &error),
        FIRE_OK);
    fire_work_release(&work);
    fire_work_release(&work); /* released is empty */
}
END_TEST

/* Seed, name and index each change it; nothing else does. */
START_TEST(seeds_differ_by_seed_name_and_index)
{
    struct fire_options options, other;
    uint64_t seeds[5];

    preset(&options);
    other = options;
    other.seed++;
    seeds[0] = fire_work_seed(&options, "first", 0);
    seeds[1] = fire_work_seed(&options, "first", 1);
    seeds[2] = fire_work_seed(&options, "second", 0);
    seeds[3] = fire_work_seed(&other, "first", 0);
    seeds[4] = fire_work_seed(&options, NULL, 0);
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < i; j++)
            ck_assert_uint_ne(seeds[i], seeds[j]);
    }
    other = options;
    other.target *= 2;
    ck_assert_uint_eq(fire_work_seed(&other, "first", 1), seeds[1]);
}
END_TEST

START_TEST(a_bad_element_is_described_by_its_place)
{
    const struct fire_shape shape = { 3, { 4, 5, 6 } };
    struct fire_error error = { 0 };

    fire_work_describe_element("conv.weight", &shape, NAN, 2 * 30 + 3 * 6 + 1, &error);
    ck_assert_int_eq(error.status, FIRE_BAD_REQUEST);
    ck_assert_str_eq(error.field, "conv.weight");
    ck_assert_ptr_nonnull(strstr(error.message, "NaN at element 79, index [2, 3, 1]"));
    fire_work_describe_element(NULL, &shape, -INFINITY, 0, &error);
    ck_assert_ptr_nonnull(strstr(error.message, "'(unnamed)' has Inf at element 0"));
}
END_TEST

/* Units are the out axis: rows of an (out, in) weight, columns of an (in, out) one. One of four has
 * no gradient. */
START_TEST(dormant_units_follow_the_layout)
{
    static const float rows_dead[] = { 1, -1, 0, 0, 2, 2, 1, 1 }; /* 4 x 2 */
    static const float cols_dead[] = { 1, 0, 2, 1, -1, 0, 2, 1 }; /* 2 x 4 */
    static const double means[] = { 1.0, 0.0, 0.0, 1.0 };
    struct fire_dormant_input input = { means, 4, rows_dead, FIRE_F32 };
    struct fire_shape shape = { 2, { 4, 2 } };
    struct fire_options options;
    struct fire_result result;
    struct fire_error error;

    preset(&options);
    fire_result_init(&result);
    ck_assert_int_eq(fire_work_dormant(&shape, &options, &input, &result, &error), FIRE_OK);
    ck_assert_double_eq(result.dormant_ratio, 0.5);
    ck_assert_double_eq(result.gradient_dormant_ratio, 0.25);
    options.layout = FIRE_LAYOUT_IN_OUT;
    shape = (struct fire_shape){ 2, { 2, 4 } };
    input = (struct fire_dormant_input){ .gradient = cols_dead, .gradient_dtype = FIRE_F32 };
    fire_result_init(&result);
    ck_assert_int_eq(fire_work_dormant(&shape, &options, &input, &result, &error), FIRE_OK);
    ck_assert(isnan(result.dormant_ratio));
    ck_assert_double_eq(result.gradient_dormant_ratio, 0.25);
}
END_TEST

int main(void)
{
    const int dtype_count = sizeof(dtypes) / sizeof(dtypes[0]);
    Suite *suite = suite_create("work");
    TCase *tests = tcase_create("work");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, pieces_end_where_the_whole_does_and_go_back, 0, dtype_count);
    tcase_add_loop_test(tests, large_tensors_end_where_the_whole_does_and_go_back, 0,
                        (int)(sizeof(large_cases) / sizeof(large_cases[0])));
    tcase_add_loop_test(tests, the_first_bad_element_is_named, 0, dtype_count);
    tcase_add_test(tests, f64_beyond_f32_is_bad_only_in_f32);
    tcase_add_loop_test(tests, verbatim_means_the_tensors_own_bytes, 0, dtype_count);
    tcase_add_test(tests, pieces_across_a_slot_should_be_sixteen_rows);
    tcase_add_test(tests, parts_count_every_view_once);
    tcase_add_test(tests, a_tensor_with_a_fault_leaves_nothing_behind);
    tcase_add_test(tests, seeds_differ_by_seed_name_and_index);
    tcase_add_test(tests, a_bad_element_is_described_by_its_place);
    tcase_add_test(tests, dormant_units_follow_the_layout);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
