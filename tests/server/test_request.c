/* Tensors from header to answer, without a network: what is refused and how, that pieces of any
 * size give the bytes that whole matrices would, and what becomes of companions. Jobs are run on
 * the CPU backend by hand. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "random.h"
#include "request.h"

#define TENSOR_BYTES_MAX (1u << 24)
#define ARENA_BYTES      (64u << 20)

static struct fire_device *device;
static struct arena *arena;

static void setup(void)
{
    const struct fire_backend_settings settings = { .threads = 1, .path = "auto" };
    struct fire_error error;

    ck_assert_msg(fire_cpu_backend()->open(&settings, &device, &error) == FIRE_OK, "%s",
                  error.message);
    ck_assert_int_eq(arena_open(NULL, ARENA_BYTES, &arena, &error), FIRE_OK);
}

static void teardown(void)
{
    fire_cpu_backend()->close(device);
    ck_assert_uint_eq(arena_used(arena), 0);
    arena_close(arena);
}

/* A header from words: "name f32 64x48 kind role parameter slot"; options as key=value pairs. */
struct described {
    Fire__V1__TensorHeader header;
    Fire__V1__Options options;
    uint64_t shape[12];
};

static void describe(struct described *out, const char *name, Fire__V1__DataType dtype,
                     const char *shape)
{
    fire__v1__tensor_header__init(&out->header);
    fire__v1__options__init(&out->options);
    out->header.name = (char *)name;
    out->header.dtype = dtype;
    out->header.shape = out->shape;
    out->header.options = &out->options;
    while (*shape) {
        char *end;

        ck_assert_uint_lt(out->header.n_shape, 12);
        out->shape[out->header.n_shape++] = strtoull(shape, &end, 10);
        shape = *end ? end + 1 : end;
    }
}

static void default_set(struct request_set *set, bool analyze)
{
    struct fire_error error;

    ck_assert_int_eq(request_set_init(set, NULL, analyze, &error), FIRE_OK);
}

static struct request_tensor *open_tensor(const struct request_set *set,
                                          const struct described *described)
{
    struct request_tensor *tensor;
    struct fire_error error = { 0 };

    ck_assert_msg(request_tensor_open(set, &described->header, "tensors[0]", TENSOR_BYTES_MAX,
                                      &tensor, &error) == FIRE_OK,
                  "%s", error.message);
    ck_assert_int_eq(request_tensor_reserve(tensor, arena, &error), FIRE_OK);
    return tensor;
}

static void *random_bytes(enum fire_dtype dtype, uint64_t elements, uint64_t seed)
{
    uint8_t *bytes = malloc(elements * 8);
    struct fire_random random;

    fire_random_init(&random, seed);
    for (uint64_t i = 0; i < elements; i++) {
        const double wide = 0.1 * fire_random_normal(&random);
        const float single = (float)wide;
        const uint16_t half =
            dtype == FIRE_BF16 ? fire_f32_to_bf16(single) : fire_f32_to_f16(single);

        switch (dtype) {
        case FIRE_F64: memcpy(bytes + 8 * i, &wide, 8); break;
        case FIRE_F32: memcpy(bytes + 4 * i, &single, 4); break;
        case FIRE_BF16:
        case FIRE_F16: memcpy(bytes + 2 * i, &half, 2); break;
        }
    }
    return bytes;
}

static void feed_in_pieces(struct request_tensor *tensor, const uint8_t *bytes, size_t piece)
{
    struct fire_error error = { 0 };

    for (uint64_t at = 0; at < tensor->total_bytes; at += piece) {
        const uint64_t left = tensor->total_bytes - at;

        ck_assert_msg(request_feed(tensor, bytes + at, left < piece ? left : piece, &error) ==
                          FIRE_OK,
                      "%s", error.message);
    }
    ck_assert_uint_eq(tensor->received_bytes, tensor->total_bytes);
}

static void run_batch(const struct fire_plan *plan, struct fire_slot *slots, uint32_t count)
{
    struct fire_batch batch = { .plan = plan, .slots = slots, .slot_count = count };

    ck_assert_int_eq(fire_cpu_backend()->submit(device, &batch), FIRE_OK);
    ck_assert_int_eq(fire_cpu_backend()->wait(device, &batch), FIRE_OK);
}

static void run_jobs(struct request_tensor *tensor)
{
    for (uint32_t i = 0; i < request_job_count(tensor); i++) {
        const struct job *job = request_job(tensor, i);

        ck_assert_uint_gt(job->matrix_count, 0);
        ck_assert_uint_le(job->matrix_count, REQUEST_JOB_MATRICES);
        run_batch(job->plan, job->slots, job->matrix_count);
    }
}

/* --- refusals --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    const char *tensor;
    Fire__V1__DataType dtype;
    const char *shape;
    Fire__V1__TensorKind kind;
    Fire__V1__TensorRole role;
    const char *parameter;
    const char *slot;
    const char *preset;
    const char *steps;
    const char *stack;
    const char *split;
    const char *field;
    const char *says;
} refusals[] = {
#define F32         FIRE__V1__DATA_TYPE__DATA_TYPE_F32
#define KIND_(kind) FIRE__V1__TENSOR_KIND__TENSOR_KIND_##kind
#define ROLE_(role) FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_##role
    { .name = "no dtype",
      .tensor = "w",
      .shape = "4,4",
      .field = "tensors[3].dtype",
      .says = "not given" },
    { .name = "a dtype of tomorrow",
      .tensor = "w",
      .dtype = 99,
      .shape = "4,4",
      .field = "tensors[3].dtype",
      .says = "not known" },
    { .name = "integers as weights",
      .tensor = "w",
      .dtype = FIRE__V1__DATA_TYPE__DATA_TYPE_I64,
      .shape = "4,4",
      .field = "tensors[3].dtype",
      .says = "slot step" },
    { .name = "no axes",
      .tensor = "w",
      .dtype = F32,
      .shape = "",
      .field = "tensors[3].shape",
      .says = "0 axes" },
    { .name = "nine axes",
      .tensor = "w",
      .dtype = F32,
      .shape = "1,1,1,1,1,1,1,2,2",
      .field = "tensors[3].shape",
      .says = "9 axes" },
    { .name = "an empty axis",
      .tensor = "w",
      .dtype = F32,
      .shape = "4,0",
      .field = "tensors[3].shape",
      .says = "is 0" },
    { .name = "a vector",
      .tensor = "w",
      .dtype = F32,
      .shape = "4",
      .field = "tensors[3].shape",
      .says = "at least 2 axes" },
    { .name = "a product beyond 2^64",
      .tensor = "w",
      .dtype = F32,
      .shape = "4294967296,4294967296",
      .field = "tensors[3].shape",
      .says = "more than" },
    { .name = "bytes beyond the limit",
      .tensor = "w",
      .dtype = F32,
      .shape = "65536,65",
      .field = "tensors[3].shape",
      .says = "at most 16777216 bytes" },
    { .name = "a role of tomorrow",
      .tensor = "w",
      .dtype = F32,
      .shape = "4,4",
      .role = 77,
      .field = "tensors[3].role",
      .says = "not known" },
    { .name = "a kind of tomorrow",
      .tensor = "w",
      .dtype = F32,
      .shape = "4,4",
      .kind = 77,
      .field = "tensors[3].kind",
      .says = "not known" },
    { .name = "linear with three axes",
      .tensor = "w",
      .dtype = F32,
      .shape = "4,4,4",
      .kind = KIND_(LINEAR),
      .field = "tensors[3].kind",
      .says = "needs 2 axes" },
    { .name = "conv2d with two axes",
      .tensor = "w",
      .dtype = F32,
      .shape = "4,4",
      .kind = KIND_(CONV2D),
      .field = "tensors[3].kind",
      .says = "3 or 4 axes" },
    { .name = "a stack of one matrix",
      .tensor = "w",
      .dtype = F32,
      .shape = "4,4",
      .kind = KIND_(STACK),
      .field = "tensors[3].kind",
      .says = "STACK needs" },
    { .name = "qkv that three does not divide",
      .tensor = "w",
      .dtype = F32,
      .shape = "4,4",
      .kind = KIND_(QKV),
      .field = "tensors[3].options.split",
      .says = "do not split into 3" },
    { .name = "an unknown preset",
      .tensor = "w",
      .dtype = F32,
      .shape = "4,4",
      .preset = "fyre",
      .field = "tensors[3].preset",
      .says = "did you mean 'fire'" },
    { .name = "a bad option",
      .tensor = "w",
      .dtype = F32,
      .shape = "4,4",
      .steps = "many",
      .field = "tensors[3].options.steps",
      .says = "steps cannot be 'many'" },
    { .name = "a stack that leaves no matrix",
      .tensor = "w",
      .dtype = F32,
      .shape = "4,4",
      .stack = "1",
      .field = "tensors[3].options.stack",
      .says = "fewer than 2 axes" },
    { .name = "split sizes that do not add up",
      .tensor = "w",
      .dtype = F32,
      .shape = "4,4",
      .split = "1,2",
      .field = "tensors[3].options.split",
      .says = "add up to 3" },
    { .name = "too many matrices",
      .tensor = "w",
      .dtype = FIRE__V1__DATA_TYPE__DATA_TYPE_F16,
      .shape = "300000,2,2",
      .stack = "1",
      .field = "tensors[3].shape",
      .says = "at most 262144" },
    { .name = "state without parameter",
      .tensor = "m",
      .dtype = F32,
      .shape = "4,4",
      .role = ROLE_(STATE),
      .slot = "exp_avg",
      .field = "tensors[3].parameter",
      .says = "set parameter" },
    { .name = "a slot nobody knows",
      .tensor = "m",
      .dtype = F32,
      .shape = "4,4",
      .role = ROLE_(STATE),
      .parameter = "w",
      .slot = "exp_avgs",
      .field = "tensors[3].slot",
      .says = "did you mean" },
    { .name = "integer moments",
      .tensor = "m",
      .dtype = FIRE__V1__DATA_TYPE__DATA_TYPE_I32,
      .shape = "4,4",
      .role = ROLE_(STATE),
      .parameter = "w",
      .slot = "exp_avg",
      .field = "tensors[3].dtype",
      .says = "slot step" },
    { .name = "a name that is not UTF-8",
      .tensor = "w\xff",
      .dtype = F32,
      .shape = "4,4",
      .field = "tensors[3].name",
      .says = "control character, at byte 1" },
    { .name = "a surrogate in a name",
      .tensor = "\xed\xa0\x80",
      .dtype = F32,
      .shape = "4,4",
      .field = "tensors[3].name",
      .says = "control character, at byte 0" },
};

static void give(char **place, const char *value)
{
    if (value)
        *place = (char *)value;
}

START_TEST(a_bad_header_is_refused_by_field)
{
    struct described described;
    struct request_set set;
    struct request_tensor *tensor;
    struct fire_error error = { 0 };

    default_set(&set, false);
    describe(&described, refusals[_i].tensor, refusals[_i].dtype, refusals[_i].shape);
    described.header.kind = refusals[_i].kind;
    described.header.role = refusals[_i].role;
    give(&described.header.parameter, refusals[_i].parameter);
    give(&described.header.slot, refusals[_i].slot);
    give(&described.header.preset, refusals[_i].preset);
    give(&described.options.steps, refusals[_i].steps);
    give(&described.options.stack, refusals[_i].stack);
    give(&described.options.split, refusals[_i].split);
    ck_assert_msg(request_tensor_open(&set, &described.header, "tensors[3]", TENSOR_BYTES_MAX,
                                      &tensor, &error) == FIRE_BAD_REQUEST,
                  "%s", refusals[_i].name);
    ck_assert_ptr_null(tensor);
    ck_assert_msg(strcmp(error.field, refusals[_i].field) == 0, "%s: field %s", refusals[_i].name,
                  error.field);
    ck_assert_msg(strstr(error.message, refusals[_i].says) != NULL, "%s: %s", refusals[_i].name,
                  error.message);

    /* The answer that carries it is text that protobuf can hold. */
    ck_assert_int_eq(request_tensor_refuse(&described.header, &error, &tensor), FIRE_OK);
    ck_assert_int_eq(request_check_text(tensor->name, REQUEST_NAME_BYTES_MAX, "", "", NULL),
                     FIRE_OK);
    ck_assert_int_eq(tensor->error.status, FIRE_BAD_REQUEST);
    request_tensor_close(tensor);
}
END_TEST

START_TEST(the_longest_name_is_512_bytes)
{
    struct described described;
    struct request_set set;
    struct request_tensor *tensor;
    struct fire_error error = { 0 };
    char name[REQUEST_NAME_BYTES_MAX + 2];

    default_set(&set, false);
    memset(name, 'a', sizeof(name));
    name[REQUEST_NAME_BYTES_MAX] = '\0';
    describe(&described, name, F32, "4,4");
    ck_assert_int_eq(request_tensor_open(&set, &described.header, "tensors[0]", TENSOR_BYTES_MAX,
                                         &tensor, &error),
                     FIRE_OK);
    request_tensor_close(tensor);
    name[REQUEST_NAME_BYTES_MAX] = 'a';
    name[REQUEST_NAME_BYTES_MAX + 1] = '\0';
    ck_assert_int_eq(request_tensor_open(&set, &described.header, "tensors[0]", TENSOR_BYTES_MAX,
                                         &tensor, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "longer than 512 bytes"));
}
END_TEST

static const struct {
    const char *preset, *run;
    Fire__V1__StatisticsLevel statistics;
    Fire__V1__Priority priority;
    Fire__V1__OnBad on_bad;
    const char *field;
} bad_sets[] = {
    { "nobody", "", 0, 0, 0, "set.preset" },     { "", "", 9, 0, 0, "set.statistics" },
    { "", "", 0, 9, 0, "set.priority" },         { "", "", 0, 0, 9, "set.on_bad" },
    { "", "not \x80 text", 0, 0, 0, "set.run" },
};

START_TEST(a_bad_set_is_refused_by_field)
{
    Fire__V1__SetHeader header = FIRE__V1__SET_HEADER__INIT;
    struct request_set set;
    struct fire_error error = { 0 };

    header.preset = (char *)bad_sets[_i].preset;
    header.run = (char *)bad_sets[_i].run;
    header.statistics = bad_sets[_i].statistics;
    header.priority = bad_sets[_i].priority;
    header.on_bad = bad_sets[_i].on_bad;
    ck_assert_int_eq(request_set_init(&set, &header, false, &error), FIRE_BAD_REQUEST);
    ck_assert_str_eq(error.field, bad_sets[_i].field);
}
END_TEST

/* The tensor's options stand over the set's, which stand over any preset. */
START_TEST(options_stand_over_each_other)
{
    Fire__V1__SetHeader header = FIRE__V1__SET_HEADER__INIT;
    Fire__V1__Options options = FIRE__V1__OPTIONS__INIT;
    struct described described;
    struct request_set set;
    struct fire_error error = { 0 };
    struct fire_options made, preset;

    options.steps = (char *)"7";
    options.polynomial = (char *)"custom:1.5,-0.5,0;3.4445,-4.775,2.0315";
    options.blend = (char *)"0.123456789012345678";
    header.options = &options;
    ck_assert_int_eq(request_set_init(&set, &header, false, &error), FIRE_OK);
    describe(&described, "w", F32, "4,4");
    described.header.preset = (char *)"official-gpt";
    described.options.blend = (char *)"0.5";
    ck_assert_int_eq(request_options_make(&set, &described.header, "tensors[0]", &made, &error),
                     FIRE_OK);
    ck_assert_int_eq(fire_options_preset(&preset, "official-gpt", &error), FIRE_OK);
    ck_assert_str_eq(made.preset, "official-gpt");
    ck_assert_int_eq(made.steps, 7);
    ck_assert_int_eq(made.polynomial, FIRE_POLYNOMIAL_CUSTOM);
    ck_assert_mem_eq(made.custom, set.options.custom, sizeof(made.custom));
    ck_assert_double_eq(made.blend, 0.5);
    ck_assert_int_eq(made.scale, preset.scale);

    described.header.preset = (char *)"";
    described.options.blend = (char *)"";
    ck_assert_int_eq(request_options_make(&set, &described.header, "tensors[0]", &made, &error),
                     FIRE_OK);
    ck_assert_mem_eq(&made, &set.options, sizeof(made));
}
END_TEST

START_TEST(kinds_fill_in_what_they_imply)
{
    struct described described;
    struct request_set set;
    struct request_tensor *tensor;

    default_set(&set, false);
    describe(&described, "w", F32, "5,6,4");
    described.header.kind = KIND_(STACK);
    tensor = open_tensor(&set, &described);
    ck_assert_uint_eq(tensor->work.view_count, 5);
    request_tensor_close(tensor);
    describe(&described, "w", F32, "12,4");
    described.header.kind = KIND_(QKV);
    tensor = open_tensor(&set, &described);
    ck_assert_uint_eq(tensor->work.view_count, 3);
    request_tensor_close(tensor);
}
END_TEST

/* --- bytes ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    Fire__V1__DataType wire;
    enum fire_dtype dtype;
    const char *shape;
    const char *layout, *split, *stack, *conv, *compute;
    bool skipped; /* some or all of it, by rule */
} tensors[] = {
#define TYPE(type) .wire = FIRE__V1__DATA_TYPE__DATA_TYPE_##type, .dtype = FIRE_##type
    { .name = "tall f32", TYPE(F32), .shape = "64,48" },
    { .name = "wide f32", TYPE(F32), .shape = "48,64" },
    { .name = "tall f64", TYPE(F64), .shape = "33,17" },
    { .name = "wide f64", TYPE(F64), .shape = "17,33" },
    { .name = "f32 at f64", TYPE(F32), .shape = "20,20", .compute = "f64" },
    { .name = "bf16", TYPE(BF16), .shape = "40,24" },
    { .name = "f16 wide", TYPE(F16), .shape = "24,40" },
    { .name = "in_out", TYPE(F32), .shape = "24,40", .layout = "in_out" },
    { .name = "conv taps", TYPE(F32), .shape = "8,6,3,3" },
    { .name = "conv taps, bf16, in_out", TYPE(BF16), .shape = "3,3,6,8", .layout = "in_out" },
    { .name = "conv flat", TYPE(F32), .shape = "8,6,3,3", .conv = "flatten" },
    { .name = "stack over many jobs", TYPE(F32), .shape = "200,6,4", .stack = "1" },
    { .name = "fused qkv", TYPE(F32), .shape = "96,32", .split = "3" },
    { .name = "grouped query attention", TYPE(F32), .shape = "60,10", .split = "10,40,10" },
    { .name = "uneven blocks of a stack",
      TYPE(F16),
      .shape = "3,60,10",
      .split = "30,10,20",
      .stack = "1" },
    { .name = "depthwise", TYPE(F32), .shape = "8,1,3,3", .skipped = true },
    { .name = "one block of one row",
      TYPE(F32),
      .shape = "21,16",
      .split = "1,16,4",
      .skipped = true },
};

/* The same, matrix by matrix from the whole tensor: what the request must come to. */
static uint8_t *expected_bytes(const struct request_tensor *tensor, const uint8_t *bytes)
{
    uint8_t *expected = malloc(tensor->total_bytes);

    memcpy(expected, bytes, tensor->total_bytes);
    for (uint64_t v = 0; v < tensor->work.view_count; v++) {
        struct fire_result result;
        struct fire_slot slot = { .result = &result };
        struct fire_view view;
        uint32_t part;

        fire_view_at(&tensor->shape, &tensor->options, v, &view);
        part = fire_work_part_of(&tensor->work, &view);
        if (part == UINT32_MAX)
            continue;
        slot.weights = aligned_alloc(
            64, (fire_plan_slot_bytes(&tensor->work.parts[part].plan) + 63) / 64 * 64);
        slot.seed = fire_work_seed(&tensor->options, tensor->name, v);
        fire_result_init(&result);
        ck_assert_int_eq(fire_view_gather(&view, bytes, tensor->dtype,
                                          tensor->work.parts[part].plan.compute, slot.weights,
                                          NULL),
                         FIRE_OK);
        run_batch(&tensor->work.parts[part].plan, &slot, 1);
        fire_view_scatter(&view, slot.weights, tensor->work.parts[part].plan.compute, tensor->dtype,
                          expected);
        free(slot.weights);
    }
    return expected;
}

START_TEST(pieces_of_any_size_give_the_same_answer)
{
    static const size_t pieces[] = { 1, 3, 7, 13, 64, 4097, 1u << 20 };
    struct described described;
    struct request_set set;
    uint8_t *bytes = NULL, *expected = NULL;

    default_set(&set, false);
    describe(&described, "w", tensors[_i].wire, tensors[_i].shape);
    give(&described.options.layout, tensors[_i].layout);
    give(&described.options.split, tensors[_i].split);
    give(&described.options.stack, tensors[_i].stack);
    give(&described.options.conv, tensors[_i].conv);
    give(&described.options.compute, tensors[_i].compute);
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        struct request_tensor *tensor = open_tensor(&set, &described);
        uint64_t count;
        const void *answer;

        if (!bytes) {
            bytes = random_bytes(tensors[_i].dtype, tensor->work.elements, 11);
            expected = expected_bytes(tensor, bytes);
            ck_assert((memcmp(bytes, expected, tensor->total_bytes) == 0) ==
                      (tensor->work.matrices == 0));
        }
        feed_in_pieces(tensor, bytes, pieces[i]);
        run_jobs(tensor);
        request_answer(&set, tensor);
        ck_assert_msg(tensor->error.status == FIRE_OK, "%s", tensor->error.message);
        ck_assert_int_eq(tensor->result.action,
                         tensor->work.matrices ? FIRE_ACTION_PROJECTED : FIRE_ACTION_SKIPPED);
        ck_assert(tensors[_i].skipped == (tensor->work.matrices < tensor->work.view_count));
        answer = request_bytes(tensor, &count);
        ck_assert_uint_eq(count, tensor->total_bytes);
        ck_assert_msg(memcmp(answer, expected, count) == 0, "%s, pieces of %zu", tensors[_i].name,
                      pieces[i]);
        request_tensor_close(tensor);
    }
    free(bytes);
    free(expected);
}
END_TEST

/* Every dtype and way of feeding finds the one bad element and names it. */
static const struct {
    Fire__V1__DataType wire;
    enum fire_dtype dtype;
    const char *shape;
    double value;
    const char *says;
} bad_elements[] = {
    { TYPE(F32), .shape = "64,48", .value = NAN, .says = "NaN at element 1234, index [25, 34]" },
    { TYPE(F32), .shape = "48,64", .value = INFINITY,
      .says = "Inf at element 1234, index [19, 18]" },
    { TYPE(F64), .shape = "64,48", .value = -INFINITY, .says = "Inf at element 1234" },
    { TYPE(BF16), .shape = "64,48", .value = NAN, .says = "NaN at element 1234" },
    { TYPE(F16), .shape = "64,48", .value = NAN, .says = "NaN at element 1234" },
};

START_TEST(a_number_that_is_not_finite_is_named)
{
    static const size_t pieces[] = { 1, 3, 64, 1u << 20 };
    struct described described;
    struct request_set set;

    default_set(&set, false);
    describe(&described, "w", bad_elements[_i].wire, bad_elements[_i].shape);
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        struct request_tensor *tensor = open_tensor(&set, &described);
        const size_t size = fire_dtype_bytes(tensor->dtype);
        uint8_t *bytes = random_bytes(tensor->dtype, tensor->work.elements, 5);
        const double wide = bad_elements[_i].value;
        const float single = (float)wide;
        const uint16_t half = tensor->dtype == FIRE_BF16 ? 0x7fc0 : 0x7e00;
        const void *element = size == 8   ? (const void *)&wide
                              : size == 4 ? (const void *)&single
                                          : (const void *)&half;
        enum fire_status status = FIRE_OK;
        struct fire_error error = { 0 };

        memcpy(bytes + 1234 * size, element, size);
        for (uint64_t at = 0; at < tensor->total_bytes && status == FIRE_OK; at += pieces[i]) {
            const uint64_t left = tensor->total_bytes - at;

            status = request_feed(tensor, bytes + at, left < pieces[i] ? left : pieces[i], &error);
        }
        ck_assert_int_eq(status, FIRE_BAD_REQUEST);
        ck_assert_msg(strstr(error.message, bad_elements[_i].says) != NULL, "%s", error.message);
        ck_assert_str_eq(error.field, "tensors[0]");
        request_tensor_close(tensor);
        free(bytes);
    }
}
END_TEST

START_TEST(more_bytes_than_the_shape_has_are_refused)
{
    struct described described;
    struct request_set set;
    struct request_tensor *tensor;
    struct fire_error error = { 0 };
    const uint8_t bytes[68] = { 0 };

    default_set(&set, false);
    describe(&described, "w", F32, "4,4");
    tensor = open_tensor(&set, &described);
    ck_assert_int_eq(request_feed(tensor, bytes, 60, &error), FIRE_OK);
    ck_assert_int_eq(request_feed(tensor, bytes, 5, &error), FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "more than the 64 bytes"));
    request_tensor_close(tensor);
}
END_TEST

/* No room now is another thing than no room ever. */
START_TEST(a_full_arena_says_so)
{
    struct described described;
    struct request_set set;
    struct request_tensor *first, *second, *third;
    struct fire_error error = { 0 };
    struct arena *small;

    default_set(&set, false);
    ck_assert_int_eq(arena_open(NULL, 1u << 20, &small, &error), FIRE_OK);
    describe(&described, "w", F32, "400,400");
    ck_assert_int_eq(request_tensor_open(&set, &described.header, "tensors[0]", TENSOR_BYTES_MAX,
                                         &first, &error),
                     FIRE_OK);
    ck_assert_int_eq(request_tensor_open(&set, &described.header, "tensors[1]", TENSOR_BYTES_MAX,
                                         &second, &error),
                     FIRE_OK);
    describe(&described, "w", F32, "800,800");
    ck_assert_int_eq(request_tensor_open(&set, &described.header, "tensors[2]", TENSOR_BYTES_MAX,
                                         &third, &error),
                     FIRE_OK);
    ck_assert_int_eq(request_tensor_reserve(first, small, &error), FIRE_OK);
    ck_assert_int_eq(request_tensor_reserve(second, small, &error), FIRE_BUSY);
    ck_assert_str_eq(error.field, "tensors[1]");
    ck_assert_int_eq(request_tensor_reserve(third, small, &error), FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "in parts"));
    request_tensor_close(first);
    ck_assert_int_eq(request_tensor_reserve(second, small, &error), FIRE_OK);
    /* A slice that is being sent keeps the block. */
    request_block_hold(second);
    request_tensor_close(second);
    ck_assert_uint_gt(arena_used(small), 400 * 400 * 4);
    request_block_drop(second);
    ck_assert_uint_eq(arena_used(small), 0);
    request_tensor_close(third);
    arena_close(small);
}
END_TEST

/* --- companions ------------------------------------------------------------------------------- */

struct family {
    struct request_set set;
    struct request_tensor *weight, *first, *second, *step, *activations, *gradient;
    uint8_t *bytes;
};

static struct request_tensor *companion(struct family *family, const char *shape,
                                        Fire__V1__DataType dtype, Fire__V1__TensorRole role,
                                        const char *slot)
{
    struct described described;
    struct request_tensor *tensor;
    struct fire_error error = { 0 };

    describe(&described, slot, dtype, shape);
    described.header.role = role;
    described.header.parameter = (char *)"w";
    described.header.slot = (char *)slot;
    tensor = open_tensor(&family->set, &described);
    ck_assert_msg(request_tensor_link(family->weight, tensor, &error) == FIRE_OK, "%s",
                  error.message);
    feed_in_pieces(tensor, family->bytes, 100);
    return tensor;
}

static void family_open(struct family *family, const char *policy, const char *scope,
                        const char *min_norm)
{
    struct described described;

    default_set(&family->set, false);
    family->bytes = random_bytes(FIRE_F32, 24 * 16 * 2, 3);
    describe(&described, "w", F32, "24,16");
    described.options.state_policy = (char *)policy;
    described.options.state_scope = (char *)scope;
    described.options.min_norm = (char *)min_norm;
    family->weight = open_tensor(&family->set, &described);
    family->first = companion(family, "24,16", F32, ROLE_(STATE), "exp_avg");
    family->second = companion(family, "24,16", F32, ROLE_(STATE), "exp_avg_sq");
    family->step = companion(family, "", FIRE__V1__DATA_TYPE__DATA_TYPE_I64, ROLE_(STATE), "step");
    family->activations = companion(family, "10,24", F32, ROLE_(ACTIVATIONS), "");
    family->gradient = companion(family, "24,16", F32, ROLE_(GRADIENT), "");
    feed_in_pieces(family->weight, family->bytes + 4, 1000);
    run_jobs(family->weight);
    request_answer(&family->set, family->weight);
}

static void family_close(struct family *family)
{
    request_tensor_close(family->weight);
    request_tensor_close(family->first);
    request_tensor_close(family->second);
    request_tensor_close(family->step);
    request_tensor_close(family->activations);
    request_tensor_close(family->gradient);
    free(family->bytes);
}

enum became { KEPT, ZERO, MOVED };

static enum became what_became(const struct request_tensor *tensor, const uint8_t *before)
{
    uint64_t bytes;
    const uint8_t *answer = request_bytes(tensor, &bytes);
    bool zero = true;

    ck_assert_uint_eq(bytes, tensor->total_bytes);
    for (uint64_t i = 0; i < bytes; i++)
        zero = zero && answer[i] == 0;
    if (zero)
        return ZERO;
    return memcmp(answer, before, bytes) == 0 ? KEPT : MOVED;
}

static const struct {
    const char *policy, *scope, *min_norm, *state;
    enum became first, second, step;
} policies[] = {
    { "keep", "touched", "0", "keep", KEPT, KEPT, KEPT },
    { "zero", "touched", "0", "zero", ZERO, ZERO, KEPT },
    { "reset", "touched", "0", "reset", ZERO, ZERO, ZERO },
    { "transport", "touched", "0", "transport", MOVED, KEPT, KEPT },
    /* A weight that is left alone keeps its state, unless all of it is meant. */
    { "reset", "touched", "1e9", "keep", KEPT, KEPT, KEPT },
    { "reset", "all", "1e9", "reset", ZERO, ZERO, ZERO },
    { "transport", "all", "1e9", "keep", KEPT, KEPT, KEPT },
};

START_TEST(state_follows_its_policy)
{
    struct family family;

    family_open(&family, policies[_i].policy, policies[_i].scope, policies[_i].min_norm);
    ck_assert_int_eq(family.weight->error.status, FIRE_OK);
    ck_assert_str_eq(family.first->state, policies[_i].state);
    ck_assert_str_eq(family.step->state, policies[_i].state);
    ck_assert_int_eq(what_became(family.first, family.bytes), policies[_i].first);
    ck_assert_int_eq(what_became(family.second, family.bytes), policies[_i].second);
    ck_assert_int_eq(what_became(family.step, family.bytes), policies[_i].step);
    ck_assert_str_eq(family.first->options.preset, "fire");
    ck_assert(!isnan(family.weight->result.dormant_ratio));
    ck_assert(!isnan(family.weight->result.gradient_dormant_ratio));
    family_close(&family);
}
END_TEST

START_TEST(state_of_a_refused_weight_stays_as_it_came)
{
    struct family family;
    struct fire_error error = { 0 };

    family_open(&family, "keep", "all", "0");
    family.weight->options.state_policy = FIRE_STATE_RESET;
    fire_fail(&error, FIRE_DEVICE_LOST, "", "the device was lost");
    request_tensor_fail(family.weight, &error, NULL);
    request_answer(&family.set, family.weight);
    ck_assert_str_eq(family.first->state, "keep");
    ck_assert_int_eq(what_became(family.first, family.bytes), KEPT);
    family_close(&family);
}
END_TEST

static const struct {
    const char *name;
    const char *shape;
    Fire__V1__TensorRole role;
    const char *slot;
    const char *says;
} misfits[] = {
    { "moments of another shape", "16,24", ROLE_(STATE), "momentum_buffer", "shape of their" },
    { "a gradient of another shape", "24,15", ROLE_(GRADIENT), "", "shape of their" },
    { "activations of other units", "10,16", ROLE_(ACTIVATIONS), "", "24 output units" },
    { "means of samples", "10,24", ROLE_(UNIT_MEANS), "", "one axis" },
    { "a second exp_avg", "24,16", ROLE_(STATE), "exp_avg", "already" },
    { "second activations", "3,24", ROLE_(ACTIVATIONS), "", "already" },
};

START_TEST(a_companion_that_does_not_fit_is_refused)
{
    struct described described;
    struct request_tensor *tensor;
    struct family family;
    struct fire_error error = { 0 };

    family_open(&family, "keep", "touched", "0");
    describe(&described, "x", F32, misfits[_i].shape);
    described.header.role = misfits[_i].role;
    described.header.parameter = (char *)"w";
    described.header.slot = (char *)misfits[_i].slot;
    tensor = open_tensor(&family.set, &described);
    ck_assert_int_eq(request_tensor_link(family.weight, tensor, &error), FIRE_BAD_REQUEST);
    ck_assert_msg(strstr(error.message, misfits[_i].says) != NULL, "%s: %s", misfits[_i].name,
                  error.message);
    ck_assert_ptr_null(tensor->weight);
    request_tensor_close(tensor);
    family_close(&family);
}
END_TEST

START_TEST(analyzed_weights_are_not_sent_back)
{
    struct described described;
    struct request_set set;
    struct request_tensor *tensor;
    uint8_t *bytes = random_bytes(FIRE_F32, 8 * 6 * 9, 2);
    uint64_t count = 1;

    default_set(&set, true);
    describe(&described, "w", F32, "8,6,3,3");
    tensor = open_tensor(&set, &described);
    feed_in_pieces(tensor, bytes, 17);
    run_jobs(tensor);
    request_answer(&set, tensor);
    ck_assert_int_eq(tensor->error.status, FIRE_OK);
    ck_assert(!isnan(tensor->result.before.dfi));
    ck_assert_uint_eq(tensor->result.matrices, 9);
    ck_assert_ptr_null(request_bytes(tensor, &count));
    ck_assert_uint_eq(count, 0);
    request_tensor_close(tensor);
    free(bytes);
}
END_TEST

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

int main(void)
{
    Suite *suite = suite_create("request");
    TCase *tests = tcase_create("request");
    SRunner *runner = srunner_create(suite);
    int failed;

    suite_add_tcase(suite, tests);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, a_bad_header_is_refused_by_field, 0, COUNT(refusals));
    tcase_add_test(tests, the_longest_name_is_512_bytes);
    tcase_add_loop_test(tests, a_bad_set_is_refused_by_field, 0, COUNT(bad_sets));
    tcase_add_test(tests, options_stand_over_each_other);
    tcase_add_test(tests, kinds_fill_in_what_they_imply);
    tcase_add_loop_test(tests, pieces_of_any_size_give_the_same_answer, 0, COUNT(tensors));
    tcase_add_loop_test(tests, a_number_that_is_not_finite_is_named, 0, COUNT(bad_elements));
    tcase_add_test(tests, more_bytes_than_the_shape_has_are_refused);
    tcase_add_test(tests, a_full_arena_says_so);
    tcase_add_loop_test(tests, state_follows_its_policy, 0, COUNT(policies));
    tcase_add_test(tests, state_of_a_refused_weight_stays_as_it_came);
    tcase_add_loop_test(tests, a_companion_that_does_not_fit_is_refused, 0, COUNT(misfits));
    tcase_add_test(tests, analyzed_weights_are_not_sent_back);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
