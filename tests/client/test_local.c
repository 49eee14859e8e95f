/* libfire in this process: what happens to the caller's memory, whatever the tensors are like, and
 * whatever fails. The numbers themselves are tested where they are made, in tests/kernels. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fire.h"
#include "random.h"

#define FAILURES_MAX 2000 /* allocations of one call */

/* --- allocations that fail ------------------------------------------------------------------- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

/* While armed, call number `fail_at` fails. */
static struct {
    pthread_mutex_t lock;
    bool armed;
    bool failed;
    unsigned calls;
    unsigned fail_at;
} injector = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool fails_now(void)
{
    bool fails;

    pthread_mutex_lock(&injector.lock);
    fails = injector.armed && ++injector.calls == injector.fail_at;
    injector.failed = injector.failed || fails;
    pthread_mutex_unlock(&injector.lock);
    if (fails)
        errno = ENOMEM;
    return fails;
}

void *__wrap_malloc(size_t bytes)
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails_now() ? NULL : __real_realloc(memory, bytes);
}

static void arm(unsigned fail_at)
{
    pthread_mutex_lock(&injector.lock);
    injector.armed = fail_at > 0;
    injector.failed = false;
    injector.calls = 0;
    injector.fail_at = fail_at;
    pthread_mutex_unlock(&injector.lock);
}

/* --- helpers --------------------------------------------------------------------------------- */

static struct fire_client *open_with(const struct fire_local_settings *settings)
{
    struct fire_client *client;
    struct fire_error error = { 0 };

    ck_assert_msg(fire_client_open_local(settings, &client, &error) == FIRE_OK, "%s",
                  error.message);
    return client;
}

static struct fire_client *open_client(uint32_t threads, uint64_t slab_bytes)
{
    const struct fire_local_settings settings = { .threads = threads, .slab_bytes = slab_bytes };

    return open_with(&settings);
}

static float *gaussian(uint64_t elements, uint64_t seed)
{
    float *values = malloc(elements * sizeof(*values));
    struct fire_random random;

    ck_assert_ptr_nonnull(values);
    fire_random_init(&random, seed);
    for (uint64_t i = 0; i < elements; i++)
        values[i] = (float)(0.1 * fire_random_normal(&random));
    return values;
}

static struct fire_tensor tensor_of(const char *name, float *data, uint32_t axes, uint64_t a,
                                    uint64_t b, uint64_t c)
{
    struct fire_tensor tensor = { .name = name, .dtype = FIRE_F32, .data = data, .out = data };
    struct fire_error error;

    tensor.shape = (struct fire_shape){ axes, { a, b, c } };
    ck_assert_int_eq(fire_options_preset(&tensor.options, "fire", &error), FIRE_OK);
    return tensor;
}

static void set(struct fire_tensor *tensor, const char *pair)
{
    struct fire_error error = { 0 };

    ck_assert_msg(fire_options_set_pair(&tensor->options, pair, &error) == FIRE_OK, "%s",
                  error.message);
}

/* Largest |X^T X - I| of a rows x cols block of a row-major matrix, rows >= cols. */
static double departure(const float *x, uint64_t rows, uint64_t cols, uint64_t stride)
{
    double worst = 0.0;

    for (uint64_t i = 0; i < cols; i++) {
        for (uint64_t j = 0; j <= i; j++) {
            double sum = i == j ? -1.0 : 0.0;

            for (uint64_t k = 0; k < rows; k++)
                sum += (double)x[k * stride + i] * x[k * stride + j];
            worst = fmax(worst, fabs(sum));
        }
    }
    return worst;
}

/* --- tests ----------------------------------------------------------------------------------- */

/* One bad tensor is refused, with its name, element and index in the message and its bytes as they
 * were; the others are projected. */
START_TEST(a_bad_tensor_is_refused_and_the_others_are_done)
{
    struct fire_client *client = open_client(2, 0);
    float *good = gaussian(64 * 64, 1);
    float *bad = gaussian(64 * 64, 2);
    float *before = malloc(64 * 64 * sizeof(*before));
    struct fire_tensor tensors[2];
    struct fire_error error = { 0 };

    bad[64 * 3 + 5] = NAN;
    memcpy(before, bad, 64 * 64 * sizeof(*bad));
    tensors[0] = tensor_of("layer.bad", bad, 2, 64, 64, 0);
    tensors[1] = tensor_of("layer.good", good, 2, 64, 64, 0);
    ck_assert_int_eq(fire_client_reinit(client, tensors, 2, FIRE_STATISTICS_BASIC, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "layer.bad"));
    ck_assert_ptr_nonnull(strstr(error.message, "NaN"));
    ck_assert_ptr_nonnull(strstr(error.message, "197"));
    ck_assert_ptr_nonnull(strstr(error.message, "[3, 5]"));
    ck_assert_int_eq(tensors[0].result.action, FIRE_ACTION_REFUSED);
    ck_assert_int_eq(tensors[0].error.status, FIRE_BAD_REQUEST);
    ck_assert_int_eq(memcmp(before, bad, 64 * 64 * sizeof(*bad)), 0);
    ck_assert_int_eq(tensors[1].result.action, FIRE_ACTION_PROJECTED);
    ck_assert_int_eq(tensors[1].error.status, FIRE_OK);
    ck_assert(departure(good, 64, 64, 64) < 1e-4);
    fire_client_close(client);
    free(good);
    free(bad);
    free(before);
}
END_TEST

/* A stack too large for one batch is looked at as a whole before the first matrix is written. */
START_TEST(a_bad_matrix_late_in_a_stack_leaves_the_first_alone)
{
    struct fire_client *client = open_client(2, 16 * 16 * 4 * 3);
    float *data = gaussian(20 * 16 * 16, 3);
    float *before = malloc(20 * 16 * 16 * sizeof(*before));
    struct fire_tensor tensor = tensor_of("stack", data, 3, 20, 16, 16);
    struct fire_error error = { 0 };

    set(&tensor, "stack=1");
    data[19 * 256 + 7] = INFINITY;
    memcpy(before, data, 20 * 16 * 16 * sizeof(*before));
    ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "Inf"));
    ck_assert_ptr_nonnull(strstr(error.message, "[19, 0, 7]"));
    ck_assert_int_eq(memcmp(before, data, 20 * 16 * 16 * sizeof(*before)), 0);
    fire_client_close(client);
    free(data);
    free(before);
}
END_TEST

static const struct {
    const char *name;
    uint32_t threads;
    uint64_t slab_bytes;
    bool alone; /* each tensor in a call of its own */
} manners[] = {
    { "two threads", 2, 0, false },
    { "one thread", 1, 0, false },
    { "one matrix a batch", 2, 1, false },
    { "three matrices a batch", 2, 3 * 24 * 40 * 4, false },
    { "a call for each tensor", 2, 0, true },
};

/* Results and statistics are the same to the bit however matrices are batched. */
START_TEST(batching_does_not_change_a_bit)
{
    struct fire_result want[2];
    float *want_data[2] = { NULL, NULL };

    for (size_t m = 0; m < sizeof(manners) / sizeof(manners[0]); m++) {
        struct fire_client *client = open_client(manners[m].threads, manners[m].slab_bytes);
        float *data[2] = { gaussian(7 * 40 * 24, 4), gaussian(96 * 40, 5) };
        struct fire_tensor tensors[2] = { tensor_of("stack", data[0], 3, 7, 24, 40),
                                          tensor_of("split", data[1], 2, 96, 40, 0) };
        struct fire_error error = { 0 };

        set(&tensors[0], "stack=1");
        set(&tensors[1], "split=24,48,24");
        for (size_t i = 0; i < 2; i += manners[m].alone ? 1 : 2)
            ck_assert_msg(fire_client_reinit(client, tensors + i, manners[m].alone ? 1 : 2,
                                             FIRE_STATISTICS_BASIC, &error) == FIRE_OK,
                          "%s: %s", manners[m].name, error.message);
        for (size_t i = 0; i < 2; i++) {
            const size_t bytes = (i ? 96 * 40 : 7 * 40 * 24) * sizeof(float);

            tensors[i].result.compute_ms = 0.0; /* a time, not a result */
            if (m == 0) {
                want[i] = tensors[i].result;
                want_data[i] = data[i];
                continue;
            }
            ck_assert_msg(memcmp(want_data[i], data[i], bytes) == 0, "%s: weights differ",
                          manners[m].name);
            for (size_t f = 0; f < fire_result_field_count(); f++) {
                const double a = fire_result_value(&want[i], f);
                const double b = fire_result_value(&tensors[i].result, f);

                ck_assert_msg(a == b || (isnan(a) && isnan(b)), "%s: %s is %.17g, not %.17g",
                              manners[m].name, fire_result_field_at(f)->name, b, a);
            }
            free(data[i]);
        }
        fire_client_close(client);
    }
    free(want_data[0]);
    free(want_data[1]);
}
END_TEST

/* One matrix whose products are cut into other tiles when threads share it. */
START_TEST(threads_do_not_change_a_bit_of_a_large_matrix)
{
    static const uint32_t threads[] = { 1, 2, 3 };
    const uint32_t side = 1100;
    float *want = NULL;

    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
        struct fire_client *client = open_client(threads[t], 0);
        float *data = gaussian((uint64_t)side * side, 6);
        struct fire_tensor tensor = tensor_of("large", data, 2, side, side, 0);
        struct fire_error error = { 0 };

        ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, 0, &error), FIRE_OK);
        fire_client_close(client);
        if (!want) {
            want = data;
            continue;
        }
        ck_assert_msg(memcmp(want, data, (size_t)side * side * sizeof(*data)) == 0,
                      "%u threads give other bits than one", threads[t]);
        free(data);
    }
    free(want);
}
END_TEST

#define OVERLAPPING      5
#define OVERLAP_ELEMENTS (uint64_t)(12 * 40 * 24)

/* Twelve 40 x 24 in a stack and one of them again as a tensor of its own. */
static void overlapping_set(struct fire_set *set, struct fire_tensor tensors[2], uint64_t seed)
{
    float *stack = gaussian(OVERLAP_ELEMENTS, seed);

    tensors[0] = tensor_of("stack", stack, 3, 12, 40, 24);
    tensors[0].options.stack = 1;
    tensors[1] = tensor_of("one", gaussian((uint64_t)40 * 24, seed + 100), 2, 40, 24, 0);
    *set = (struct fire_set){ .tensors = tensors, .count = 2 };
}

static void overlapping_free(struct fire_tensor tensors[2])
{
    free(tensors[0].out);
    free(tensors[1].out);
}

/* Sets that are begun before others are finished end as they would alone: in batches of four
 * matrices, more sets than may be on their way, one of them with a bad tensor, and the last one
 * left to the end of the client. */
START_TEST(sets_that_overlap_end_as_they_would_alone)
{
    const struct fire_local_settings settings = { .threads = 2,
                                                  .slab_bytes = (uint64_t)4 * 40 * 24 * 4,
                                                  .ahead = true };
    struct fire_client *client = open_with(&settings), *alone = open_client(1, 0);
    struct fire_tensor tensors[OVERLAPPING][2], expected[OVERLAPPING][2];
    struct fire_set sets[OVERLAPPING], wanted[OVERLAPPING];

    for (int i = 0; i < OVERLAPPING; i++) {
        overlapping_set(&sets[i], tensors[i], 20 + (uint64_t)i);
        overlapping_set(&wanted[i], expected[i], 20 + (uint64_t)i);
        if (i == 2)
            ((float *)tensors[i][1].out)[7] = ((float *)expected[i][1].out)[7] = NAN;
        ck_assert_int_eq(fire_client_start(alone, &wanted[i], NULL), FIRE_OK);
        ck_assert_int_eq(fire_client_start(client, &sets[i], NULL), FIRE_OK);
        /* Its last batches are still to be taken. */
        ck_assert_uint_lt(tensors[i][0].result.matrices, 12);
    }
    ck_assert(fire_client_wait(client, &sets[3], -1.0));
    ck_assert(fire_client_wait(client, &sets[0], -1.0)); /* done for long */
    fire_client_close(client);
    fire_client_close(alone);
    for (int i = 0; i < OVERLAPPING; i++) {
        ck_assert_int_eq(sets[i].status, i == 2 ? FIRE_BAD_REQUEST : FIRE_OK);
        ck_assert_int_eq(wanted[i].status, sets[i].status);
        ck_assert_int_eq(tensors[i][0].result.action, FIRE_ACTION_PROJECTED);
        ck_assert_uint_eq(tensors[i][0].result.matrices, 12);
        ck_assert_mem_eq(tensors[i][0].out, expected[i][0].out, OVERLAP_ELEMENTS * sizeof(float));
        ck_assert_mem_eq(tensors[i][1].out, expected[i][1].out, 40 * 24 * sizeof(float));
        overlapping_free(tensors[i]);
        overlapping_free(expected[i]);
    }
}
END_TEST

/* --- a client that is stopped ----------------------------------------------------------------- */

/* Says no until it has been asked so often. */
static bool stop_after(void *data)
{
    uint32_t *left = data;

    return (*left)-- == 0;
}

/* A set that would take minutes, in place: nothing of it is written, and what comes after it is not
 * begun. Without being asked to stop a client computes the same as any other. */
START_TEST(a_client_can_be_stopped)
{
    uint32_t left = 1;
    const struct fire_local_settings settings = {
        .threads = 2, .ahead = _i == 1, .stop = stop_after, .stop_data = &left
    };
    struct fire_client *client = open_with(&settings);
    float *data = gaussian(700 * 700, 5), *kept = gaussian(700 * 700, 5);
    struct fire_tensor large = tensor_of("large", data, 2, 700, 700, 0);
    struct fire_tensor small = tensor_of("small", data, 2, 20, 30, 0);
    struct fire_set first = { .tensors = &large, .count = 1 };
    struct fire_set second = { .tensors = &small, .count = 1 };
    struct fire_error error;

    ck_assert_int_eq(fire_options_set(&large.options, "polynomial", "cubic", &error), FIRE_OK);
    ck_assert_int_eq(fire_options_set(&large.options, "steps", "1000", &error), FIRE_OK);
    ck_assert_int_eq(fire_options_set(&large.options, "compute", "f64", &error), FIRE_OK);
    ck_assert_int_eq(fire_client_start(client, &first, NULL), FIRE_OK);
    ck_assert_int_eq(fire_client_start(client, &second, NULL), FIRE_OK);
    ck_assert(fire_client_wait(client, NULL, -1.0));
    ck_assert_int_eq(first.status, FIRE_CANCELLED);
    ck_assert_int_eq(large.error.status, FIRE_CANCELLED);
    ck_assert_int_eq(second.status, FIRE_CANCELLED);
    ck_assert_mem_eq(data, kept, (size_t)700 * 700 * sizeof(*data));
    ck_assert_int_eq(fire_client_start(client, &second, NULL), FIRE_OK);
    ck_assert(fire_client_wait(client, NULL, -1.0));
    ck_assert_int_eq(second.status, FIRE_CANCELLED);
    fire_client_close(client);
    free(data);
    free(kept);
}
END_TEST

/* The taps of a convolution come back together: the same bits in place and elsewhere, and those
 * below min_norm keep their bytes among the others. */
START_TEST(taps_that_are_kept_keep_their_bytes)
{
    const uint64_t elements = (uint64_t)24 * 16 * 9;
    struct fire_client *client = open_client(2, 0);
    float *in_place = gaussian(elements, 31), *old = gaussian(elements, 31);
    struct fire_tensor here = tensor_of("here", in_place, 4, 24, 16, 3), there;
    struct fire_error error = { 0 };

    for (uint64_t i = 0; i < elements; i++) {
        if (i % 9 == 4)
            in_place[i] = old[i] = old[i] * 1e-3f;
    }
    here.shape.size[3] = 3;
    set(&here, "min_norm=1");
    there = here;
    there.name = "there";
    there.data = old;
    there.out = calloc(elements, sizeof(float));
    ck_assert_ptr_nonnull(there.out);
    ck_assert_int_eq(fire_client_reinit(client, &there, 1, 0, &error), FIRE_OK);
    ck_assert_int_eq(fire_client_reinit(client, &here, 1, 0, &error), FIRE_OK);
    ck_assert_mem_eq(here.out, there.out, elements * sizeof(float));
    for (uint64_t i = 0; i < elements; i++) {
        if (i % 9 == 4)
            ck_assert_float_eq(in_place[i], old[i]);
        else
            ck_assert_float_ne(in_place[i], old[i]);
    }
    free(in_place);
    free(old);
    free(there.out);
    fire_client_close(client);
}
END_TEST

/* Blocks that split_skip names keep their bytes; the others become isometries. */
START_TEST(a_skipped_block_keeps_its_bytes)
{
    struct fire_client *client = open_client(1, 0);
    float *data = gaussian(3 * 32 * 32, 6);
    float *out = malloc(3 * 32 * 32 * sizeof(*out));
    struct fire_tensor tensor = tensor_of("qkv", data, 2, 96, 32, 0);
    struct fire_result each[2];
    struct fire_error error = { 0 };

    set(&tensor, "split=3");
    tensor.options.split_skip = 4;
    tensor.out = out;
    tensor.per_matrix = each;
    ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                     FIRE_OK);
    ck_assert_uint_eq(tensor.result.matrices, 2);
    ck_assert(departure(out, 32, 32, 32) < 1e-4);
    ck_assert(departure(out + 1024, 32, 32, 32) < 1e-4);
    ck_assert_int_eq(memcmp(out + 2048, data + 2048, 1024 * sizeof(*out)), 0);
    ck_assert_double_eq_tol(each[0].before.dfi + each[1].before.dfi, tensor.result.before.dfi,
                            1e-9);
    fire_client_close(client);
    free(data);
    free(out);
}
END_TEST

/* r = 1 is left alone under the architecture rule, and copied to an `out` that is elsewhere; a
 * preset of another source takes it. */
START_TEST(a_vector_is_skipped_by_the_architecture_rule_only)
{
    struct fire_client *client = open_client(1, 0);
    float *data = gaussian(50, 7);
    float out[50] = { 0 };
    struct fire_tensor tensor = tensor_of("value_head", data, 2, 1, 50, 0);
    struct fire_error error = { 0 };

    tensor.out = out;
    ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                     FIRE_OK);
    ck_assert_int_eq(tensor.result.action, FIRE_ACTION_SKIPPED);
    ck_assert_str_eq(tensor.result.reason, "r = 1");
    ck_assert_int_eq(memcmp(data, out, sizeof(out)), 0);
    ck_assert_int_eq(fire_options_preset(&tensor.options, "official-vision", &error), FIRE_OK);
    ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                     FIRE_OK);
    ck_assert_int_eq(tensor.result.action, FIRE_ACTION_PROJECTED);
    fire_client_close(client);
    free(data);
}
END_TEST

/* A matrix below min_norm is skipped by the device; its bytes are kept and copied. */
START_TEST(a_small_matrix_is_kept_below_min_norm)
{
    struct fire_client *client = open_client(1, 0);
    float *data = gaussian(8 * 8, 8);
    float out[64] = { 0 };
    struct fire_tensor tensor = tensor_of("small", data, 2, 8, 8, 0);
    struct fire_error error = { 0 };

    set(&tensor, "min_norm=100");
    tensor.out = out;
    ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                     FIRE_OK);
    ck_assert_int_eq(tensor.result.action, FIRE_ACTION_SKIPPED);
    ck_assert_int_eq(memcmp(data, out, sizeof(out)), 0);
    fire_client_close(client);
    free(data);
}
END_TEST

/* An analysis has the numbers of before and writes nothing. */
START_TEST(an_analysis_writes_nothing)
{
    struct fire_client *client = open_client(2, 0);
    float *data = gaussian(48 * 20, 9);
    float *before = gaussian(48 * 20, 9);
    struct fire_tensor tensor = tensor_of("w", data, 2, 48, 20, 0);
    struct fire_error error = { 0 };
    double dfi = 0.0;

    ck_assert_int_eq(fire_client_analyze(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                     FIRE_OK);
    for (uint64_t i = 0; i < 20; i++) {
        for (uint64_t j = 0; j < 20; j++) {
            double sum = i == j ? -1.0 : 0.0;

            for (uint64_t k = 0; k < 48; k++)
                sum += (double)data[k * 20 + i] * data[k * 20 + j];
            dfi += sum * sum;
        }
    }
    ck_assert_double_eq_tol(tensor.result.before.dfi, dfi, 1e-4 * dfi);
    ck_assert(isnan(tensor.result.after.dfi));
    ck_assert_int_eq(memcmp(data, before, 48 * 20 * sizeof(*data)), 0);
    fire_client_close(client);
    free(data);
    free(before);
}
END_TEST

/* Two of four units never fire; one of four rows has no gradient. In (in, out) layout the units are
 * the columns. */
START_TEST(dormant_units_are_counted)
{
    const double means[4] = { 0.0, 1.0, 0.0, 3.0 };
    struct fire_client *client = open_client(1, 0);
    float *data = gaussian(4 * 4, 10);
    float gradient[16];
    struct fire_tensor tensor = tensor_of("w", data, 2, 4, 4, 0);
    struct fire_error error = { 0 };

    for (int i = 0; i < 16; i++)
        gradient[i] = i / 4 == 2 ? 0.0f : -0.5f;
    tensor.unit_means = means;
    tensor.unit_count = 4;
    tensor.gradient = gradient;
    tensor.gradient_dtype = FIRE_F32;
    ck_assert_int_eq(fire_client_analyze(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                     FIRE_OK);
    ck_assert_double_eq(tensor.result.dormant_ratio, 0.5);
    ck_assert_double_eq(tensor.result.gradient_dormant_ratio, 0.25);
    set(&tensor, "layout=in_out");
    ck_assert_int_eq(fire_client_analyze(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                     FIRE_OK);
    ck_assert_double_eq(tensor.result.gradient_dormant_ratio, 0.0);
    tensor.unit_means = NULL;
    tensor.gradient = NULL;
    ck_assert_int_eq(fire_client_analyze(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                     FIRE_OK);
    ck_assert(isnan(tensor.result.dormant_ratio));
    ck_assert(isnan(tensor.result.gradient_dormant_ratio));
    fire_client_close(client);
    free(data);
}
END_TEST

/* What each tensor asks wrongly, and a word of the answer. */
static const struct {
    const char *name;
    uint32_t axes;
    uint64_t size[3];
    const char *pair;
    const char *word;
} mistakes[] = {
    { "no matrix", 1, { 64 }, "stack=0", "2 axes" },
    { "uneven split", 2, { 16, 8 }, "split=3", "split" },
    { "impossible target", 2, { 16, 8 }, "target=1e-30", "floor" },
    { "empty axis", 2, { 0, 8 }, "stack=0", "0" },
};

START_TEST(a_mistake_is_named_with_its_tensor)
{
    struct fire_client *client = open_client(1, 0);
    float *data = gaussian(256, 11);
    struct fire_tensor tensor =
        tensor_of("blocks.0.w", data, mistakes[_i].axes, mistakes[_i].size[0], mistakes[_i].size[1],
                  mistakes[_i].size[2]);
    struct fire_error error = { 0 };

    set(&tensor, mistakes[_i].pair);
    ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_msg(strstr(error.message, "blocks.0.w") != NULL, "%s", error.message);
    ck_assert_msg(strstr(error.message, mistakes[_i].word) != NULL, "%s: %s", mistakes[_i].name,
                  error.message);
    fire_client_close(client);
    free(data);
}
END_TEST

START_TEST(an_unknown_path_is_refused)
{
    const struct fire_local_settings settings = { .path = "abacus" };
    struct fire_client *client;
    struct fire_error error = { 0 };

    ck_assert_int_ne(fire_client_open_local(&settings, &client, &error), FIRE_OK);
    ck_assert_ptr_null(client);
    ck_assert_ptr_nonnull(strstr(error.message, "abacus"));
}
END_TEST

/* The flat door does what the struct one does. */
START_TEST(the_flat_door_agrees_with_the_struct)
{
    const uint64_t size[2] = { 24, 16 };
    const size_t fields = fire_result_field_count();
    struct fire_client *client;
    float *data = gaussian(3 * 24 * 16, 12);
    float *want = gaussian(3 * 24 * 16, 12);
    double *values = calloc(3 * fields, sizeof(*values));
    struct fire_tensor tensors[3];
    struct fire_error error = { 0 };

    ck_assert_int_eq(fire_client_open_flat(1, "auto", &client), FIRE_OK);
    ck_assert_msg(fire_reinit_flat(client, "fire", "scale=one\nblend=0.5\n", FIRE_F32, 2, size,
                                   data, data, 3, FIRE_STATISTICS_BASIC, values, &error) == FIRE_OK,
                  "%s", error.message);
    for (size_t i = 0; i < 3; i++) {
        tensors[i] = tensor_of("w", want + i * 24 * 16, 2, 24, 16, 0);
        set(&tensors[i], "scale=one");
        set(&tensors[i], "blend=0.5");
    }
    ck_assert_int_eq(fire_client_reinit(client, tensors, 3, FIRE_STATISTICS_BASIC, &error),
                     FIRE_OK);
    ck_assert_int_eq(memcmp(data, want, 3 * 24 * 16 * sizeof(*data)), 0);
    for (size_t f = 0; f < fields; f++) {
        const double value = fire_result_value(&tensors[2].result, f);

        if (strcmp(fire_result_field_at(f)->name, "compute_ms") != 0)
            ck_assert(values[2 * fields + f] == value || isnan(value));
    }
    ck_assert_int_eq(
        fire_reinit_flat(client, "fier", NULL, FIRE_F32, 2, size, data, data, 3, 0, NULL, &error),
        FIRE_NOT_FOUND);
    ck_assert_int_eq(fire_reinit_flat(client, NULL, "scal=one", FIRE_F32, 2, size, data, data, 3, 0,
                                      NULL, &error),
                     FIRE_NOT_FOUND);
    ck_assert_int_eq(fire_reinit_flat(client, NULL, NULL, 9, 2, size, data, data, 3, 0, NULL, NULL),
                     FIRE_BAD_REQUEST);
    fire_client_close(client);
    free(data);
    free(want);
    free(values);
}
END_TEST

/* Through the flat door too one bad tensor does not keep the others from being done. */
START_TEST(the_flat_door_refuses_only_the_bad_one)
{
    const uint64_t size[2] = { 16, 16 };
    const size_t fields = fire_result_field_count();
    struct fire_client *client = open_client(1, 0);
    float *data = gaussian(3 * 256, 14);
    double *values = calloc(3 * fields, sizeof(*values));
    struct fire_error error = { 0 };

    data[256 + 17] = NAN;
    ck_assert_int_eq(fire_reinit_flat(client, NULL, NULL, FIRE_F32, 2, size, data, data, 3,
                                      FIRE_STATISTICS_BASIC, values, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "[1, 1]"));
    ck_assert(departure(data, 16, 16, 16) < 1e-4);
    ck_assert(departure(data + 512, 16, 16, 16) < 1e-4);
    ck_assert(isnan(data[256 + 17]));
    ck_assert(!isnan(values[0]) && isnan(values[fields]) && !isnan(values[2 * fields]));
    fire_client_close(client);
    free(data);
    free(values);
}
END_TEST

/* Every allocation of a call fails once. Either the call says so and no weight has changed, or only
 * a statistic is missing and the weights are those of an undisturbed call; the next call works. In
 * place, in several batches, with unequal blocks: the case that keeps most. */
START_TEST(a_call_survives_every_failing_allocation)
{
    const size_t bytes = 96 * 40 * sizeof(float);
    float *before = gaussian(96 * 40, 13);
    float *want = gaussian(96 * 40, 13);
    float *data = malloc(bytes);
    unsigned refused = 0;
    bool through = false;

    for (unsigned fail_at = 0; !through && fail_at < FAILURES_MAX; fail_at++) {
        struct fire_client *client = open_client(1, 64);
        struct fire_tensor tensor = tensor_of("split", data, 2, 96, 40, 0);
        struct fire_error error = { 0 };
        enum fire_status status;

        memcpy(data, before, bytes);
        set(&tensor, "split=24,48,24");
        arm(fail_at); /* 0: not at all */
        status = fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error);
        through = fail_at > 0 && !injector.failed;
        arm(0);
        if (fail_at == 0)
            memcpy(want, data, bytes);
        refused += status == FIRE_NO_MEMORY;
        ck_assert(status == FIRE_OK || status == FIRE_NO_MEMORY);
        ck_assert_msg(memcmp(data, status == FIRE_OK ? want : before, bytes) == 0,
                      "allocation %u failed, the call says '%s', the weights are wrong", fail_at,
                      fire_status_name(status));
        memcpy(data, before, bytes);
        ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error),
                         FIRE_OK);
        ck_assert_int_eq(memcmp(data, want, bytes), 0);
        fire_client_close(client);
    }
    ck_assert(through);
    ck_assert_uint_ge(refused, 4);
    free(before);
    free(want);
    free(data);
}
END_TEST

START_TEST(opening_a_client_survives_every_failing_allocation)
{
    bool through = false;

    for (unsigned fail_at = 1; !through && fail_at < FAILURES_MAX; fail_at++) {
        struct fire_client *client;
        struct fire_error error = { 0 };
        enum fire_status status;

        arm(fail_at);
        status = fire_client_open_local(NULL, &client, &error);
        through = !injector.failed;
        arm(0);
        ck_assert_int_eq(status, through ? FIRE_OK : FIRE_NO_MEMORY);
        ck_assert((client != NULL) == through);
        fire_client_close(client);
    }
    ck_assert(through);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("local");
    TCase *cases = tcase_create("local");
    SRunner *runner;
    int failed;

    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, a_bad_tensor_is_refused_and_the_others_are_done);
    tcase_add_test(cases, a_bad_matrix_late_in_a_stack_leaves_the_first_alone);
    tcase_add_test(cases, batching_does_not_change_a_bit);
    tcase_add_test(cases, threads_do_not_change_a_bit_of_a_large_matrix);
    tcase_add_test(cases, sets_that_overlap_end_as_they_would_alone);
    tcase_add_loop_test(cases, a_client_can_be_stopped, 0, 2);
    tcase_add_test(cases, taps_that_are_kept_keep_their_bytes);
    tcase_add_test(cases, a_skipped_block_keeps_its_bytes);
    tcase_add_test(cases, a_vector_is_skipped_by_the_architecture_rule_only);
    tcase_add_test(cases, a_small_matrix_is_kept_below_min_norm);
    tcase_add_test(cases, an_analysis_writes_nothing);
    tcase_add_test(cases, dormant_units_are_counted);
    tcase_add_loop_test(cases, a_mistake_is_named_with_its_tensor, 0,
                        (int)(sizeof(mistakes) / sizeof(mistakes[0])));
    tcase_add_test(cases, an_unknown_path_is_refused);
    tcase_add_test(cases, the_flat_door_agrees_with_the_struct);
    tcase_add_test(cases, the_flat_door_refuses_only_the_bad_one);
    tcase_add_test(cases, a_call_survives_every_failing_allocation);
    tcase_add_test(cases, opening_a_client_survives_every_failing_allocation);
    suite_add_tcase(suite, cases);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
