/* libfire through a daemon: the same bytes and numbers as in this process, whatever way they
 * travel; what happens to the caller's memory when tensors are bad, the daemon goes away, or nobody
 * is there. Every test talks to the real daemon, started on a socket of its own. */
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fire.h"
#include "fired_fixture.h"
#include "random.h"

#define SETS 8

static struct fired fired;
static struct fire_client *local;

/* --- the daemon ------------------------------------------------------------------------------- */

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void begin(void)
{
    const struct fire_local_settings settings = { .threads = 2 };

    fired_start(&fired, 2);
    ck_assert_int_eq(fire_client_open_local(&settings, &local, NULL), FIRE_OK);
}

static void end(void)
{
    fire_client_close(local);
    fired_end(&fired);
}

static struct fire_client *open_remote(double deadline_s, uint32_t retries_max)
{
    const struct fire_remote_settings settings = { .address = fired.address,
                                                   .deadline_s = deadline_s,
                                                   .retries_max = retries_max };
    struct fire_client *client;

    ck_assert_msg(fire_client_open_remote(&settings, &client, NULL) == FIRE_OK, "%s",
                  fire_last_error());
    return client;
}

/* --- tensors ---------------------------------------------------------------------------------- */

static uint64_t bytes_of(const struct fire_tensor *tensor)
{
    uint64_t bytes = fire_dtype_bytes(tensor->dtype);

    for (uint32_t axis = 0; axis < tensor->shape.axes; axis++)
        bytes *= tensor->shape.size[axis];
    return bytes;
}

/* Random numbers of `dtype`. */
static void *random_bytes(enum fire_dtype dtype, uint64_t elements, uint64_t seed)
{
    unsigned char *bytes = malloc(elements * fire_dtype_bytes(dtype));
    struct fire_random random;

    ck_assert_ptr_nonnull(bytes);
    fire_random_init(&random, seed);
    for (uint64_t i = 0; i < elements; i++) {
        const double value = 0.1 * fire_random_normal(&random);
        const float narrow = (float)value;
        const uint16_t bf16 = fire_f32_to_bf16(narrow);
        const uint16_t f16 = fire_f32_to_f16(narrow);

        switch (dtype) {
        case FIRE_F64: memcpy(bytes + 8 * i, &value, 8); break;
        case FIRE_F32: memcpy(bytes + 4 * i, &narrow, 4); break;
        case FIRE_BF16: memcpy(bytes + 2 * i, &bf16, 2); break;
        case FIRE_F16: memcpy(bytes + 2 * i, &f16, 2); break;
        }
    }
    return bytes;
}

static void tensor_make(struct fire_tensor *tensor, const char *name, enum fire_dtype dtype,
                        uint64_t rows, uint64_t cols, const char *pairs)
{
    char text[256];
    uint64_t seed = rows * 1000 + cols;

    *tensor = (struct fire_tensor){ .name = name, .dtype = dtype, .shape = { 2, { rows, cols } } };
    for (const char *letter = name; letter && *letter; letter++)
        seed = 31 * seed + (unsigned char)*letter;
    ck_assert_int_eq(fire_options_preset(&tensor->options, "fire", NULL), FIRE_OK);
    snprintf(text, sizeof(text), "%s", pairs ? pairs : "");
    for (char *rest = text, *pair = strsep(&rest, " "); pair && *pair; pair = strsep(&rest, " "))
        ck_assert_int_eq(fire_options_set_pair(&tensor->options, pair, NULL), FIRE_OK);
    tensor->data = random_bytes(dtype, rows * cols, seed);
    tensor->out = malloc(bytes_of(tensor));
    ck_assert_ptr_nonnull(tensor->out);
}

/* The same tensor with an `out` of its own. */
static struct fire_tensor tensor_twin(const struct fire_tensor *tensor)
{
    struct fire_tensor twin = *tensor;

    twin.out = malloc(bytes_of(tensor));
    ck_assert_ptr_nonnull(twin.out);
    return twin;
}

static void tensor_release(struct fire_tensor *tensor)
{
    if (tensor->out != tensor->data)
        free(tensor->out);
    free((void *)(uintptr_t)tensor->data);
}

static bool same_number(double a, double b)
{
    return (isnan(a) && isnan(b)) || a == b;
}

static void check_same_result(const struct fire_result *a, const struct fire_result *b,
                              const char *name)
{
    ck_assert_msg(a->action == b->action && a->status == b->status, "%s: action", name);
    ck_assert_msg(a->steps == b->steps && a->converged == b->converged && a->rank == b->rank &&
                      a->rank_defect == b->rank_defect,
                  "%s: steps %u %u", name, a->steps, b->steps);
    ck_assert_str_eq(a->method, b->method);
    ck_assert_str_eq(a->reason, b->reason);
    ck_assert_str_eq(a->path, b->path);
    for (size_t i = 0; i < fire_result_field_count(); i++) {
        if (strcmp(fire_result_field_at(i)->name, "compute_ms") != 0)
            ck_assert_msg(same_number(fire_result_value(a, i), fire_result_value(b, i)),
                          "%s: %s is %.17g and %.17g", name, fire_result_field_at(i)->name,
                          fire_result_value(a, i), fire_result_value(b, i));
    }
}

/* Both clients give the same bytes and numbers for the same tensors. */
static void check_same(struct fire_client *client, struct fire_tensor *tensors, size_t count,
                       uint32_t statistics)
{
    struct fire_tensor twins[64];

    ck_assert_uint_le(count, 64);
    for (size_t i = 0; i < count; i++)
        twins[i] = tensor_twin(&tensors[i]);
    ck_assert_msg(fire_client_reinit(client, tensors, count, statistics, NULL) == FIRE_OK, "%s",
                  fire_last_error());
    ck_assert_int_eq(fire_client_reinit(local, twins, count, statistics, NULL), FIRE_OK);
    for (size_t i = 0; i < count; i++) {
        check_same_result(&tensors[i].result, &twins[i].result, tensors[i].name);
        ck_assert_msg(memcmp(tensors[i].out, twins[i].out, bytes_of(&tensors[i])) == 0,
                      "%s: other bytes", tensors[i].name);
        free(twins[i].out);
    }
}

/* --- tests ------------------------------------------------------------------------------------ */

/* What the daemon does is what the library does, for every kind of tensor, by one message or by a
 * stream (which a large neighbour makes it). */
static const struct {
    const char *name;
    enum fire_dtype dtype;
    uint64_t rows, cols;
    const char *pairs;
} kinds[] = {
    { "tall", FIRE_F32, 96, 64, NULL },
    { "wide", FIRE_F32, 48, 130, NULL },
    { "f64", FIRE_F64, 64, 64, NULL },
    { "bf16", FIRE_BF16, 64, 96, NULL },
    { "f16", FIRE_F16, 96, 32, NULL },
    { "in first", FIRE_F32, 64, 192, "layout=in_out" },
    { "qkv", FIRE_F32, 192, 64, "split=3" },
    { "query and key", FIRE_F32, 192, 64, "split=3 split_skip=2" },
    { "unequal qkv", FIRE_F32, 128, 64, "split=64,32,32" },
    { "counted steps", FIRE_F32, 64, 64, "steps=3" },
    { "other scale", FIRE_F32, 64, 64, "scale=std:0.02" },
    { "custom", FIRE_F32, 64, 64, "polynomial=custom:1.5,-0.5,0" },
    { "blend", FIRE_F32, 80, 64, "blend=0.3" },
    { "left alone", FIRE_F32, 64, 64, "min_norm=1000" },
    { "one row", FIRE_F32, 1, 64, NULL },
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static void make_kinds(struct fire_tensor *tensors)
{
    for (size_t i = 0; i < KINDS; i++)
        tensor_make(&tensors[i], kinds[i].name, kinds[i].dtype, kinds[i].rows, kinds[i].cols,
                    kinds[i].pairs);
}

START_TEST(a_set_gets_the_bytes_and_numbers_of_a_local_client)
{
    struct fire_client *client = open_remote(0.0, 0);
    struct fire_tensor tensors[KINDS + 1];
    const bool streamed = _i == 1;

    make_kinds(tensors);
    tensor_make(&tensors[KINDS], "large", FIRE_F32, streamed ? 2304 : 32, streamed ? 1024 : 32,
                "steps=1");
    check_same(client, tensors, KINDS + 1, FIRE_STATISTICS_BASIC | FIRE_STATISTICS_RESIDUAL);
    ck_assert_uint_gt(tensors[0].batch.id, 0);
    ck_assert_uint_ge(tensors[0].batch.size, 1);
    ck_assert_ptr_nonnull(tensors[0].batch.close_reason);
    for (size_t i = 0; i <= KINDS; i++)
        tensor_release(&tensors[i]);
    fire_client_close(client);
}
END_TEST

START_TEST(weights_are_replaced_in_place)
{
    struct fire_client *client = open_remote(0.0, 0);
    const uint64_t rows = _i ? 1536 : 48; /* 9 MiB in several chunks, or one message */
    struct fire_tensor tensor, twin;
    void *spare;

    tensor_make(&tensor, "w", FIRE_F32, rows, rows, "steps=1");
    twin = tensor_twin(&tensor);
    ck_assert_int_eq(fire_client_reinit(local, &twin, 1, 0, NULL), FIRE_OK);
    spare = tensor.out;
    tensor.out = (void *)(uintptr_t)tensor.data;
    ck_assert_msg(fire_client_reinit(client, &tensor, 1, 0, NULL) == FIRE_OK, "%s",
                  fire_last_error());
    ck_assert_mem_eq(tensor.out, twin.out, bytes_of(&tensor));
    free(twin.out);
    free(spare);
    tensor_release(&tensor);
    fire_client_close(client);
}
END_TEST

START_TEST(every_matrix_has_its_result)
{
    struct fire_client *client = open_remote(0.0, 0);
    struct fire_result results[3], wanted[3];
    struct fire_tensor tensor, twin;

    tensor_make(&tensor, "qkv", FIRE_F32, 96, 32, "split=3");
    twin = tensor_twin(&tensor);
    tensor.per_matrix = results;
    twin.per_matrix = wanted;
    ck_assert_int_eq(fire_client_analyze(client, &tensor, 1, FIRE_STATISTICS_SPECTRUM, NULL),
                     FIRE_OK);
    ck_assert_int_eq(fire_client_analyze(local, &twin, 1,
                                         FIRE_STATISTICS_BASIC | FIRE_STATISTICS_SPECTRUM, NULL),
                     FIRE_OK);
    for (int i = 0; i < 3; i++)
        check_same_result(&results[i], &wanted[i], "matrix");
    check_same_result(&tensor.result, &twin.result, "tensor");
    free(twin.out);
    tensor_release(&tensor);
    fire_client_close(client);
}
END_TEST

/* Optimizer state: moments, and a counter that is a scalar integer. */
static const char *const policies[] = { "state_policy=keep", "state_policy=zero",
                                        "state_policy=reset", "state_policy=transport" };

static void add_states(struct fire_tensor *tensor, struct fire_state_tensor states[3],
                       const void *moment, const void *square, const int64_t *step)
{
    const uint64_t bytes = bytes_of(tensor);

    states[0] = (struct fire_state_tensor){ .slot = FIRE_SLOT_EXP_AVG,
                                            .dtype = FIRE_F32,
                                            .shape = tensor->shape,
                                            .data = moment,
                                            .out = malloc(bytes) };
    states[1] = (struct fire_state_tensor){ .slot = FIRE_SLOT_EXP_AVG_SQ,
                                            .dtype = FIRE_F32,
                                            .shape = tensor->shape,
                                            .data = square,
                                            .out = malloc(bytes) };
    states[2] = (struct fire_state_tensor){
        .slot = FIRE_SLOT_STEP, .integer_bytes = 8, .data = step, .out = malloc(sizeof(*step))
    };
    tensor->states = states;
    tensor->state_count = 3;
}

START_TEST(state_follows_its_weight)
{
    struct fire_client *client = open_remote(0.0, 0);
    const uint64_t side = _i / 4 ? 1100 : 64; /* streamed, or one message */
    struct fire_state_tensor states[3], wanted[3];
    const int64_t step = 4711;
    struct fire_tensor tensor, twin;
    void *moment = random_bytes(FIRE_F32, side * side, 7);
    void *square = random_bytes(FIRE_F32, side * side, 8);

    tensor_make(&tensor, "w", FIRE_F32, side, side, "steps=1");
    ck_assert_int_eq(fire_options_set_pair(&tensor.options, policies[_i % 4], NULL), FIRE_OK);
    twin = tensor_twin(&tensor);
    add_states(&tensor, states, moment, square, &step);
    add_states(&twin, wanted, moment, square, &step);
    ck_assert_msg(fire_client_reinit(client, &tensor, 1, 0, NULL) == FIRE_OK, "%s",
                  fire_last_error());
    ck_assert_int_eq(fire_client_reinit(local, &twin, 1, 0, NULL), FIRE_OK);
    ck_assert_mem_eq(tensor.out, twin.out, bytes_of(&tensor));
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(states[i].action, (enum fire_state_policy)(_i % 4));
        ck_assert_int_eq(states[i].action, wanted[i].action);
        ck_assert_mem_eq(states[i].out, wanted[i].out, i < 2 ? bytes_of(&tensor) : sizeof(step));
        free(states[i].out);
        free(wanted[i].out);
    }
    free(twin.out);
    tensor_release(&tensor);
    free(moment);
    free(square);
    fire_client_close(client);
}
END_TEST

START_TEST(dormant_ratios_come_from_means_and_gradients)
{
    struct fire_client *client = open_remote(0.0, 0);
    double means[64];
    struct fire_tensor tensor;

    for (int i = 0; i < 64; i++)
        means[i] = i % 4 ? 1.0 : 0.0;
    tensor_make(&tensor, "w", FIRE_F32, 64, 32, NULL);
    tensor.unit_means = means;
    tensor.unit_count = 64;
    tensor.gradient = random_bytes(FIRE_BF16, 64 * 32, 3);
    tensor.gradient_dtype = FIRE_BF16;
    memset((void *)(uintptr_t)tensor.gradient, 0, 32 * 32 * 2); /* half of the units */
    check_same(client, &tensor, 1, FIRE_STATISTICS_BASIC);
    ck_assert_double_eq(tensor.result.dormant_ratio, 0.25);
    ck_assert_double_eq(tensor.result.gradient_dormant_ratio, 0.5);
    free((void *)(uintptr_t)tensor.gradient);
    tensor_release(&tensor);
    fire_client_close(client);
}
END_TEST

/* The others are done, and the bad one's memory is left alone. */
START_TEST(a_bad_tensor_is_refused_alone)
{
    struct fire_client *client = open_remote(0.0, 0);
    struct fire_tensor tensors[3];
    struct fire_set set = { .tensors = tensors, .count = 3 };
    const float nan_value = NAN;
    const uint64_t large = _i ? 1536 : 40;

    tensor_make(&tensors[0], "a", FIRE_F32, 64, 64, NULL);
    tensor_make(&tensors[1], "b", FIRE_F32, large, large, NULL);
    tensor_make(&tensors[2], "c", FIRE_F32, 64, 48, NULL);
    memcpy((char *)(uintptr_t)tensors[1].data + 4 * 77, &nan_value, 4);
    memset(tensors[1].out, 0x55, bytes_of(&tensors[1]));
    ck_assert_int_eq(fire_client_start(client, &set, NULL), FIRE_OK);
    ck_assert(fire_client_wait(client, &set, -1.0));
    ck_assert_int_eq(set.status, FIRE_BAD_REQUEST);
    ck_assert_int_eq(set.code, 3); /* INVALID_ARGUMENT */
    ck_assert_ptr_nonnull(strstr(set.error.message, "'b'"));
    ck_assert_int_eq(tensors[1].result.action, FIRE_ACTION_REFUSED);
    ck_assert_int_eq(tensors[1].error.status, FIRE_BAD_REQUEST);
    ck_assert_uint_eq(((unsigned char *)tensors[1].out)[0], 0x55);
    ck_assert_int_eq(tensors[0].result.action, FIRE_ACTION_PROJECTED);
    ck_assert_int_eq(tensors[2].result.action, FIRE_ACTION_PROJECTED);
    for (int i = 0; i < 3; i++)
        tensor_release(&tensors[i]);
    fire_client_close(client);
}
END_TEST

START_TEST(names_may_be_missing_or_the_same)
{
    struct fire_client *client = open_remote(0.0, 0);
    struct fire_tensor tensors[4];

    for (int i = 0; i < 4; i++)
        tensor_make(&tensors[i], i % 2 ? "twice" : NULL, FIRE_F32, 32, 32, NULL);
    check_same(client, tensors, 4, FIRE_STATISTICS_BASIC);
    for (int i = 0; i < 4; i++)
        tensor_release(&tensors[i]);
    fire_client_close(client);
}
END_TEST

/* More tensors than a daemon lets wait in one stream. */
START_TEST(a_stream_of_many_tensors_is_paced)
{
    enum { COUNT = 3000 };
    struct fire_client *client = open_remote(0.0, 0);
    struct fire_tensor *tensors = calloc(COUNT, sizeof(*tensors));
    float(*weights)[COUNT] = calloc(64, sizeof(*weights));
    struct fire_random random;
    char(*names)[16] = calloc(COUNT, sizeof(*names));

    ck_assert(tensors && weights && names);
    fire_random_init(&random, 5);
    for (int i = 0; i < 64 * COUNT; i++)
        ((float *)weights)[i] = (float)fire_random_normal(&random);
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof(names[i]), "w%d", i);
        tensors[i] =
            (struct fire_tensor){ .name = names[i], .dtype = FIRE_F32, .shape = { 2, { 8, 8 } } };
        tensors[i].data = tensors[i].out = (float *)weights + 64 * i;
        ck_assert_int_eq(fire_options_preset(&tensors[i].options, "fire", NULL), FIRE_OK);
    }
    ck_assert_msg(fire_client_reinit(client, tensors, COUNT, FIRE_STATISTICS_BASIC, NULL) ==
                      FIRE_OK,
                  "%s", fire_last_error());
    for (int i = 0; i < COUNT; i++)
        ck_assert_double_lt(tensors[i].result.dfi_unscaled_after, 1e-6);
    free(names);
    free(weights);
    free(tensors);
    fire_client_close(client);
}
END_TEST

static _Atomic int done_count;

static void count_done(struct fire_set *set, void *data)
{
    ck_assert_ptr_eq(data, set);
    atomic_fetch_add(&done_count, set->status == FIRE_OK);
}

START_TEST(sets_run_side_by_side_and_call_back)
{
    struct fire_client *client = open_remote(0.0, 0);
    struct fire_tensor tensors[SETS];
    struct fire_set sets[SETS];

    atomic_store(&done_count, 0);
    for (int i = 0; i < SETS; i++) {
        tensor_make(&tensors[i], "w", FIRE_F32, i % 2 ? 1536 : 64, i % 2 ? 1536 : 64, "steps=1");
        sets[i] = (struct fire_set){ .tensors = &tensors[i], .count = 1 };
        if (i < SETS - 1) {
            sets[i].done = count_done;
            sets[i].data = &sets[i];
        }
        ck_assert_int_eq(fire_client_start(client, &sets[i], NULL), FIRE_OK);
    }
    ck_assert(fire_client_wait(client, &sets[SETS - 1], -1.0));
    ck_assert_int_eq(sets[SETS - 1].status, FIRE_OK);
    ck_assert(fire_client_wait(client, NULL, 60.0));
    ck_assert_int_eq(atomic_load(&done_count), SETS - 1);
    for (int i = 0; i < SETS; i++)
        tensor_release(&tensors[i]);
    fire_client_close(client);
}
END_TEST

static void *reinit_often(void *data)
{
    struct fire_client *client = data;
    struct fire_tensor tensor;

    tensor_make(&tensor, "w", FIRE_F32, 48, 32, NULL);
    for (int i = 0; i < 50; i++)
        ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, 0, NULL), FIRE_OK);
    tensor_release(&tensor);
    return NULL;
}

START_TEST(threads_share_a_client)
{
    struct fire_client *client = open_remote(0.0, 0);
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, reinit_often, client), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    fire_client_close(client);
}
END_TEST

/* What client/examples shows works, linked against the shared library as a user's program is. */
START_TEST(the_example_runs)
{
    char command[512], text[4096];
    size_t bytes;
    FILE *output;

    snprintf(command, sizeof(command), "'%s' '%s'", EXAMPLE_PROGRAM, fired.address);
    output = popen(command, "r");
    ck_assert_ptr_nonnull(output);
    bytes = fread(text, 1, sizeof(text) - 1, output);
    text[bytes] = '\0';
    ck_assert_int_eq(pclose(output), 0);
    ck_assert_ptr_nonnull(strstr(text, "fc.weight: DfI"));
    ck_assert_ptr_nonnull(strstr(text, "head.weight: DfI"));
    ck_assert_ptr_nonnull(strstr(text, "step is now 0"));
}
END_TEST

/* A cancelled set ends soon, and its memory is the caller's again. */
START_TEST(a_set_can_be_cancelled)
{
    struct fire_client *client = open_remote(0.0, 0);
    struct fire_tensor tensors[2];
    struct fire_set set = { .tensors = tensors, .count = 2 };
    const double start_s = now_s();

    tensor_make(&tensors[0], "a", FIRE_F32, 1500, 1500, "steps=40");
    tensor_make(&tensors[1], "b", FIRE_F32, 1500, 1499, "steps=40");
    ck_assert_int_eq(fire_client_start(client, &set, NULL), FIRE_OK);
    ck_assert(!fire_client_wait(client, &set, 0.05));
    fire_client_cancel(client);
    ck_assert(fire_client_wait(client, &set, 20.0));
    ck_assert_double_lt(now_s() - start_s, 20.0);
    ck_assert_int_eq(set.status, FIRE_CANCELLED);
    ck_assert_int_eq(set.code, 0); /* not the daemon's doing */
    for (int i = 0; i < 2; i++)
        tensor_release(&tensors[i]);
    fire_client_close(client);
}
END_TEST

/* Closing with a set under way ends it, and its callback comes before. */
static void note_cancelled(struct fire_set *set, void *data)
{
    *(enum fire_status *)data = set->status;
}

START_TEST(closing_ends_what_runs)
{
    struct fire_client *client = open_remote(0.0, 0);
    enum fire_status status = FIRE_OK;
    struct fire_tensor tensor;
    struct fire_set set = {
        .tensors = &tensor, .count = 1, .done = note_cancelled, .data = &status
    };

    tensor_make(&tensor, "a", FIRE_F32, 1500, 1500, "steps=40");
    ck_assert_int_eq(fire_client_start(client, &set, NULL), FIRE_OK);
    fire_client_close(client);
    ck_assert_int_eq(status, FIRE_CANCELLED);
    tensor_release(&tensor);
}
END_TEST

START_TEST(a_deadline_ends_a_set)
{
    struct fire_client *client = open_remote(0.3, 0);
    struct fire_tensor tensor;
    struct fire_set set = { .tensors = &tensor, .count = 1 };
    const double start_s = now_s();

    tensor_make(&tensor, "a", FIRE_F32, 1500, 1500, "steps=40");
    ck_assert_int_eq(fire_client_start(client, &set, NULL), FIRE_OK);
    ck_assert(fire_client_wait(client, &set, 20.0));
    ck_assert_double_lt(now_s() - start_s, 20.0);
    ck_assert_int_eq(set.status, FIRE_TOO_LATE);
    ck_assert_int_eq(set.code, 4); /* DEADLINE_EXCEEDED */
    tensor_release(&tensor);
    fire_client_close(client);
}
END_TEST

START_TEST(nobody_there_says_what_to_do)
{
    struct fire_remote_settings settings = { .retries_max = FIRE_RETRIES_NONE };
    struct fire_client *client;
    struct fire_tensor tensor;
    struct fire_error error = { 0 };
    char none[160];

    snprintf(none, sizeof(none), "unix:%s/none.sock", fired.folder);
    settings.address = none;
    ck_assert_int_eq(fire_client_open_remote(&settings, &client, NULL), FIRE_OK);
    tensor_make(&tensor, "w", FIRE_F32, 16, 16, NULL);
    memset(tensor.out, 0x55, bytes_of(&tensor));
    ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, 0, &error), FIRE_DRAINING);
    ck_assert_ptr_nonnull(strstr(error.message, none));
    ck_assert_ptr_nonnull(strstr(error.message, "`fired`"));
    ck_assert_str_eq(fire_last_error(), error.message);
    ck_assert_uint_eq(((unsigned char *)tensor.out)[0], 0x55);
    tensor_release(&tensor);
    fire_client_close(client);
}
END_TEST

/* A daemon that comes while the client still tries is found. */
START_TEST(a_daemon_that_comes_late_is_found)
{
    struct fire_client *client = open_remote(60.0, 1000);
    struct fire_tensor tensor;
    struct fire_set set = { .tensors = &tensor, .count = 1 };

    fired_stop(&fired, SIGTERM);
    tensor_make(&tensor, "w", FIRE_F32, 16, 16, NULL);
    ck_assert_int_eq(fire_client_start(client, &set, NULL), FIRE_OK);
    ck_assert(!fire_client_wait(client, &set, 0.2));
    fired_spawn(&fired);
    ck_assert(fire_client_wait(client, &set, 60.0));
    ck_assert_msg(set.status == FIRE_OK, "%s", set.error.message);
    fired_await(&fired);
    tensor_release(&tensor);
    fire_client_close(client);
}
END_TEST

/* A daemon that dies in the middle of a stream: what was answered stays, the rest is sent to the
 * next one, and weights that are replaced in place are right. */
START_TEST(a_stream_survives_the_death_of_the_daemon)
{
    enum { COUNT = 16, SIDE = 640 };
    struct fire_client *client = open_remote(900.0, 1000);
    struct fire_tensor tensors[COUNT], twins[COUNT];
    struct fire_set set = { .tensors = tensors, .count = COUNT };
    static char names[COUNT][8];

    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof(names[i]), "w%d", i);
        tensor_make(&tensors[i], names[i], FIRE_F32, SIDE, SIDE, "steps=12");
        twins[i] = tensor_twin(&tensors[i]);
    }
    ck_assert_int_eq(fire_client_reinit(local, twins, COUNT, 0, NULL), FIRE_OK);
    for (int i = 0; i < COUNT; i++) {
        free(tensors[i].out);
        tensors[i].out = (void *)(uintptr_t)tensors[i].data;
    }
    ck_assert_int_eq(fire_client_start(client, &set, NULL), FIRE_OK);
    ck_assert_msg(!fire_client_wait(client, &set, 0.15), "too fast to be interrupted");
    fired_stop(&fired, SIGKILL);
    fired_spawn(&fired);
    ck_assert(fire_client_wait(client, &set, 900.0));
    ck_assert_msg(set.status == FIRE_OK, "%s", set.error.message);
    fired_await(&fired);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_msg(memcmp(tensors[i].out, twins[i].out, bytes_of(&tensors[i])) == 0, "%s",
                      names[i]);
        free(twins[i].out);
        tensor_release(&tensors[i]);
    }
    fire_client_close(client);
}
END_TEST

/* gRPC does not survive fork(): a child is told so instead of hanging. */
START_TEST(a_forked_child_is_told_to_open_its_own)
{
    struct fire_client *client = open_remote(10.0, 0);
    struct fire_tensor tensor;
    int status = 0;
    pid_t child;

    tensor_make(&tensor, "w", FIRE_F32, 16, 16, NULL);
    ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, 0, NULL), FIRE_OK);
    child = fork();
    if (child == 0) {
        const enum fire_status refused = fire_client_reinit(client, &tensor, 1, 0, NULL);

        _exit(refused == FIRE_BAD_REQUEST && strstr(fire_last_error(), "fork") ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_int_eq(fire_client_reinit(client, &tensor, 1, 0, NULL), FIRE_OK);
    tensor_release(&tensor);
    fire_client_close(client);
}
END_TEST

/* Settings that cannot work are refused before anything is sent, by name. */
static const struct {
    const char *field;
    struct fire_remote_settings settings;
} mistakes[] = {
    { "address", { .address = "nowhere" } },
    { "address", { .address = "unix:" } },
    { "address", { .address = "host:99999" } },
    { "token", { .address = "10.0.0.1:8470", .token = "secret" } },
    { "token", { .address = "127.0.0.1:8470", .token = "two\nlines" } },
    { "tenant", { .address = "127.0.0.1:8470", .tenant = " blank" } },
    { "ca", { .address = "127.0.0.1:8470", .ca_file = "/nonexistent/ca.pem" } },
    { "ca", { .address = "127.0.0.1:8470", .certificate_file = "a", .key_file = "b" } },
    { "certificate", { .address = "127.0.0.1:8470", .certificate_file = "a" } },
    { "deadline_s", { .address = "127.0.0.1:8470", .deadline_s = -1.0 } },
};

START_TEST(settings_that_cannot_work_are_refused)
{
    struct fire_error error = { 0 };
    struct fire_client *client;

    ck_assert_int_ne(fire_client_open_remote(&mistakes[_i].settings, &client, &error), FIRE_OK);
    ck_assert_ptr_null(client);
    ck_assert_str_eq(error.field, mistakes[_i].field);
    ck_assert_str_eq(fire_last_error(), error.message);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("remote");
    TCase *sets = tcase_create("sets");
    TCase *ends = tcase_create("ends");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(sets, a_set_gets_the_bytes_and_numbers_of_a_local_client, 0, 2);
    tcase_add_loop_test(sets, weights_are_replaced_in_place, 0, 2);
    tcase_add_test(sets, every_matrix_has_its_result);
    tcase_add_loop_test(sets, state_follows_its_weight, 0, 8);
    tcase_add_test(sets, dormant_ratios_come_from_means_and_gradients);
    tcase_add_loop_test(sets, a_bad_tensor_is_refused_alone, 0, 2);
    tcase_add_test(sets, names_may_be_missing_or_the_same);
    tcase_add_test(sets, a_stream_of_many_tensors_is_paced);
    tcase_add_test(sets, sets_run_side_by_side_and_call_back);
    tcase_add_test(sets, threads_share_a_client);
    tcase_add_test(sets, the_example_runs);
    tcase_add_test(ends, a_set_can_be_cancelled);
    tcase_add_test(ends, closing_ends_what_runs);
    tcase_add_test(ends, a_deadline_ends_a_set);
    tcase_add_test(ends, nobody_there_says_what_to_do);
    tcase_add_test(ends, a_daemon_that_comes_late_is_found);
    tcase_add_test(ends, a_stream_survives_the_death_of_the_daemon);
    tcase_add_test(ends, a_forked_child_is_told_to_open_its_own);
    tcase_add_loop_test(ends, settings_that_cannot_work_are_refused, 0,
                        sizeof(mistakes) / sizeof(mistakes[0]));
    tcase_add_unchecked_fixture(sets, begin, end);
    tcase_add_unchecked_fixture(ends, begin, end);
    tcase_set_timeout(sets, 0);
    tcase_set_timeout(ends, 0);
    suite_add_tcase(suite, sets);
    suite_add_tcase(suite, ends);
    runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK); /* gRPC does not survive fork() */
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
