/* Whole requests of a unary call, as a client would pack them: what is refused and by which field,
 * what on_bad=skip makes of it, and that an answer has everything in its place. No device: weights
 * are skipped by rule (one column), or the jobs are run by hand. */
#include <check.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rpc_decode.h"
#include "rpc_encode.h"

#define TENSOR_BYTES_MAX (1u << 20)
#define TENSORS_ROOM     8u
#define WEIGHT           FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_WEIGHT
#define STATE            FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_STATE
#define ACTIVATIONS      FIRE__V1__TENSOR_ROLE__TENSOR_ROLE_ACTIVATIONS
#define F32              FIRE__V1__DATA_TYPE__DATA_TYPE_F32

static struct fire_device *device;
static struct arena *arena;

static void setup(void)
{
    const struct fire_backend_settings settings = { .threads = 1, .path = "auto" };
    struct fire_error error;

    ck_assert_int_eq(fire_cpu_backend()->open(&settings, &device, &error), FIRE_OK);
    ck_assert_int_eq(arena_open(NULL, 16u << 20, &arena, &error), FIRE_OK);
}

static void teardown(void)
{
    fire_cpu_backend()->close(device);
    ck_assert_uint_eq(arena_used(arena), 0);
    arena_close(arena);
}

/* One tensor of a request; `bytes` of 0x3c, which is a small number in every format. */
struct sent {
    const char *name;
    Fire__V1__TensorRole role;
    Fire__V1__DataType dtype;
    uint64_t rows, cols; /* cols 0: one axis */
    const char *parameter;
    const char *slot;
    size_t bytes;
    bool nan;
};

static grpc_slice payload_of(const struct sent *sent)
{
    grpc_slice slice = grpc_slice_malloc(sent->bytes);
    float *numbers = (float *)GRPC_SLICE_START_PTR(slice);

    for (size_t i = 0; i < sent->bytes / 4; i++)
        numbers[i] = (float)((i * 7919) % 101) / 101.0f - 0.5f;
    if (sent->nan)
        numbers[3] = NAN;
    return slice;
}

static void receive(struct rpc_message *message, const struct sent *sent, size_t count,
                    Fire__V1__SetHeader *set)
{
    Fire__V1__ReinitRequest request = FIRE__V1__REINIT_REQUEST__INIT;
    Fire__V1__TensorHeader headers[TENSORS_ROOM], *pointers[TENSORS_ROOM];
    uint64_t shapes[TENSORS_ROOM][2];
    grpc_slice payloads[TENSORS_ROOM];
    struct fire_error error;

    for (size_t i = 0; i < count; i++) {
        fire__v1__tensor_header__init(&headers[i]);
        headers[i].name = (char *)sent[i].name;
        headers[i].role = sent[i].role;
        headers[i].dtype = sent[i].dtype;
        shapes[i][0] = sent[i].rows;
        shapes[i][1] = sent[i].cols;
        headers[i].shape = shapes[i];
        headers[i].n_shape = sent[i].cols ? 2 : 1;
        headers[i].parameter = (char *)(sent[i].parameter ? sent[i].parameter : "");
        headers[i].slot = (char *)(sent[i].slot ? sent[i].slot : "");
        pointers[i] = &headers[i];
        payloads[i] = payload_of(&sent[i]);
    }
    request.tensors = pointers;
    request.n_tensors = count;
    request.set = set;
    ck_assert_int_eq(rpc_message_init(message, rpc_message_pack(&request.base, payloads, count),
                                      RPC_SET_BYTES_MAX, RPC_TENSORS_MAX, &error),
                     FIRE_OK);
}

/* Decodes, reserves, feeds, computes and answers, as far as it goes. */
static enum fire_status serve(struct rpc_set *set, const struct rpc_message *message, bool analyze,
                              struct fire_error *error)
{
    enum fire_status status = rpc_set_decode(set, message, analyze, TENSOR_BYTES_MAX, error);

    for (size_t i = 0; status == FIRE_OK && i < set->tensor_count; i++) {
        if (rpc_tensor_is_fed(set->tensors[i]))
            status = request_tensor_reserve(set->tensors[i], arena, error);
    }
    if (status == FIRE_OK)
        status = rpc_set_feed(set, message, error);
    for (size_t i = 0; status == FIRE_OK && i < set->tensor_count; i++) {
        struct request_tensor *tensor = set->tensors[i];

        for (uint32_t k = 0; tensor->error.status == FIRE_OK && k < request_job_count(tensor);
             k++) {
            const struct job *job = request_job(tensor, k);
            struct fire_batch batch = { .plan = job->plan,
                                        .slots = job->slots,
                                        .slot_count = job->matrix_count };

            ck_assert_int_eq(fire_cpu_backend()->submit(device, &batch), FIRE_OK);
            ck_assert_int_eq(fire_cpu_backend()->wait(device, &batch), FIRE_OK);
        }
    }
    return status == FIRE_OK ? rpc_set_answer(set, error) : status;
}

#define TENSOR(called, as, type, m, n, ...)                                                        \
    {                                                                                              \
        .name = called, .role = as, .dtype = type, .rows = m, .cols = n, __VA_ARGS__               \
    }
#define GOOD TENSOR("w", WEIGHT, F32, 8, 4, .bytes = 128)
static const struct {
    const char *name;
    struct sent sent[3];
    size_t count;
    const char *field;
    const char *says;
    const char *skipped; /* with on_bad=skip: whose error it is; NULL: still the call's */
} refusals[] = {
    { "too few bytes",
      { GOOD, TENSOR("x", WEIGHT, F32, 8, 4, .bytes = 124) },
      2,
      "data[1]",
      "data[1] has 124 bytes",
      "x" },
    { "too many bytes",
      { TENSOR("x", WEIGHT, F32, 8, 4, .bytes = 132) },
      1,
      "data[0]",
      "say 128; make them agree",
      "x" },
    { "no bytes",
      { TENSOR("x", WEIGHT, F32, 8, 4, .bytes = 0) },
      1,
      "data[0]",
      "has 0 bytes",
      "x" },
    { "NaN",
      { GOOD, TENSOR("x", WEIGHT, F32, 8, 4, .bytes = 128, .nan = true) },
      2,
      "tensors[1]",
      "NaN at element 3",
      "x" },
    { "no dtype",
      { TENSOR("x", WEIGHT, 0, 8, 4, .bytes = 128) },
      1,
      "tensors[0].dtype",
      "not given",
      "x" },
    { "two of one name",
      { GOOD, TENSOR("v", WEIGHT, F32, 4, 4, .bytes = 64), GOOD },
      3,
      "tensors[2].name",
      "two weights are called 'w'",
      "w" },
    { "state of nobody",
      { GOOD, TENSOR("m", STATE, F32, 8, 4, .parameter = "v", .slot = "exp_avg", .bytes = 128) },
      2,
      "tensors[1].parameter",
      "no weight of the set is called 'v'",
      "m" },
    { "state of another shape",
      { GOOD, TENSOR("m", STATE, F32, 4, 8, .parameter = "w", .slot = "exp_avg", .bytes = 128) },
      2,
      "tensors[1].shape",
      "shape of their weight",
      "m" },
    { "activations of nobody",
      { GOOD, TENSOR("h", ACTIVATIONS, F32, 2, 8, .parameter = "v", .bytes = 64) },
      2,
      "tensors[1].parameter",
      "no weight of the set",
      NULL },
    { "activations of other units",
      { GOOD, TENSOR("h", ACTIVATIONS, F32, 2, 7, .parameter = "w", .bytes = 56) },
      2,
      "tensors[1].shape",
      "8 output units",
      "w" },
    { "bad activations",
      { GOOD, TENSOR("h", ACTIVATIONS, F32, 2, 0, .parameter = "w", .bytes = 64) },
      2,
      "data[1]",
      "data[1] has 64 bytes",
      "w" },
};

START_TEST(a_bad_tensor_refuses_the_call)
{
    struct rpc_message message;
    struct rpc_set set;
    struct fire_error error = { 0 };

    receive(&message, refusals[_i].sent, refusals[_i].count, NULL);
    ck_assert_msg(serve(&set, &message, false, &error) == FIRE_BAD_REQUEST, "%s",
                  refusals[_i].name);
    ck_assert_msg(strcmp(error.field, refusals[_i].field) == 0, "%s: field %s", refusals[_i].name,
                  error.field);
    ck_assert_msg(strstr(error.message, refusals[_i].says) != NULL, "%s: %s", refusals[_i].name,
                  error.message);
    rpc_set_release(&set);
    rpc_message_release(&message);
    ck_assert_uint_eq(arena_used(arena), 0);
}
END_TEST

START_TEST(a_bad_tensor_can_be_skipped)
{
    Fire__V1__SetHeader header = FIRE__V1__SET_HEADER__INIT;
    struct rpc_message message;
    struct rpc_set set;
    struct fire_error error = { 0 };
    enum fire_status status;
    size_t refused = 0;

    header.on_bad = FIRE__V1__ON_BAD__ON_BAD_SKIP;
    receive(&message, refusals[_i].sent, refusals[_i].count, &header);
    status = serve(&set, &message, false, &error);
    ck_assert_int_eq(status, refusals[_i].skipped ? FIRE_OK : FIRE_BAD_REQUEST);
    for (size_t i = 0; i < set.tensor_count; i++) {
        const struct request_tensor *tensor = set.tensors[i];

        if (tensor->error.status == FIRE_OK || !rpc_tensor_is_answered(tensor))
            continue;
        refused++;
        ck_assert_str_eq(tensor->name, refusals[_i].skipped);
        ck_assert_str_eq(tensor->error.field, refusals[_i].field);
    }
    ck_assert_uint_eq(refused, refusals[_i].skipped ? 1 : 0);
    rpc_set_release(&set);
    rpc_message_release(&message);
}
END_TEST

/* Cuts the message into slices of `bytes`, which divides nothing: elements lie in two of them. */
static void cut(struct rpc_message *message, size_t bytes)
{
    grpc_byte_buffer_reader reader;
    grpc_slice whole, slices[512];
    size_t count = 0;
    struct fire_error error;

    ck_assert_int_eq(grpc_byte_buffer_reader_init(&reader, message->buffer), 1);
    whole = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    rpc_message_release(message);
    for (size_t at = 0; at < GRPC_SLICE_LENGTH(whole); at += bytes, count++) {
        const size_t left = GRPC_SLICE_LENGTH(whole) - at;

        ck_assert_uint_lt(count, 512);
        slices[count] = grpc_slice_sub(whole, at, at + (left < bytes ? left : bytes));
    }
    ck_assert_int_eq(rpc_message_init(message, grpc_raw_byte_buffer_create(slices, count),
                                      RPC_SET_BYTES_MAX, RPC_TENSORS_MAX, &error),
                     FIRE_OK);
    for (size_t i = 0; i < count; i++)
        grpc_slice_unref(slices[i]);
    grpc_slice_unref(whole);
}

static void open_set(struct rpc_set *set, const struct rpc_message *message)
{
    struct fire_error error;

    ck_assert_int_eq(rpc_set_decode(set, message, false, TENSOR_BYTES_MAX, &error), FIRE_OK);
    for (size_t i = 0; i < set->tensor_count; i++)
        ck_assert_int_eq(request_tensor_reserve(set->tensors[i], arena, &error), FIRE_OK);
}

/* Feeds part after part, the last one first; gives the first failure of the first tensor. */
static enum fire_status feed_parts(struct rpc_set *set, const struct rpc_message *message,
                                   uint32_t count, struct fire_error *error)
{
    size_t failed = SIZE_MAX;

    error->status = FIRE_OK;
    rpc_set_feed_begin(set);
    for (uint32_t i = count; i-- > 0;) {
        struct rpc_feed_part part = { .index = i, .count = count };
        struct fire_error own = { 0 };

        if (rpc_set_feed_part(set, message, &part, &own) == FIRE_OK || part.tensor > failed)
            continue;
        failed = part.tensor;
        *error = own;
    }
    rpc_set_feed_end(set);
    return error->status;
}

/* The first matrix of a tensor in its slot, or the bytes of one that has none. */
static const void *placed(struct request_tensor *tensor)
{
    uint64_t bytes;

    if (tensor->role == REQUEST_WEIGHT && request_job_count(tensor) > 0)
        return request_job(tensor, 0)->slots[0].weights;
    return request_bytes(tensor, &bytes);
}

/* Every tensor in one piece. */
static void feed_whole(struct rpc_set *set, const struct sent *sent)
{
    struct fire_error error;

    for (size_t i = 0; i < set->tensor_count; i++) {
        grpc_slice whole = payload_of(&sent[i]);

        ck_assert_int_eq(request_feed(set->tensors[i], GRPC_SLICE_START_PTR(whole),
                                      GRPC_SLICE_LENGTH(whole), &error),
                         FIRE_OK);
        grpc_slice_unref(whole);
    }
}

/* Of 53 columns some rows are joined before they are put to their places, of 9000 not as many as
 * there should be. */
static const struct {
    uint32_t parts;
    size_t slice_bytes;
    uint32_t columns;
    bool nan;
} sharings[] = {
    { 1, 4096, 53, false },      { 2, 4096, 53, false },   { 2, 33, 53, false },
    { 3, 1001, 53, false },      { 4, 77, 53, false },     { 2, 33, 53, true },
    { 4, 77, 53, true },         { 1, 4099, 9000, false }, { 3, 9001, 9000, false },
    { 2, 1000003, 9000, false }, { 2, 9001, 9000, true },
};

/* Tall and wide matrices, one that is not a matrix and state: several workers put every byte where
 * one does, and where it goes when all comes at once, and blame the same element. */
START_TEST(parts_of_a_set_make_the_whole)
{
    const struct sent sent[] = {
        TENSOR("tall", WEIGHT, F32, 37, 11, .bytes = 4 * 37 * 11),
        TENSOR("m", STATE, F32, 37, 11, .parameter = "tall", .slot = "exp_avg",
               .bytes = 4 * 37 * 11),
        TENSOR("wide", WEIGHT, F32, 27, sharings[_i].columns,
               .bytes = 4 * 27 * sharings[_i].columns, .nan = sharings[_i].nan),
        TENSOR("column", WEIGHT, F32, 61, 1, .bytes = 4 * 61),
        TENSOR("last", WEIGHT, F32, 8, 4, .bytes = 128, .nan = sharings[_i].nan),
    };
    const enum fire_status expected = sharings[_i].nan ? FIRE_BAD_REQUEST : FIRE_OK;
    struct fire_error errors[2] = { 0 };
    struct rpc_message message;
    struct rpc_set sets[3];

    receive(&message, sent, 5, NULL);
    cut(&message, sharings[_i].slice_bytes);
    for (int i = 0; i < 3; i++)
        open_set(&sets[i], &message);
    ck_assert_int_eq(rpc_set_feed(&sets[0], &message, &errors[0]), expected);
    ck_assert_int_eq(feed_parts(&sets[1], &message, sharings[_i].parts, &errors[1]), expected);
    ck_assert_str_eq(errors[0].field, errors[1].field);
    ck_assert_str_eq(errors[0].message, errors[1].message);
    if (expected == FIRE_OK)
        feed_whole(&sets[2], sent);
    for (size_t i = 0; i < 5 && expected == FIRE_OK; i++) {
        struct request_tensor *whole = sets[2].tensors[i];

        ck_assert_uint_eq(sets[1].tensors[i]->received_bytes, sent[i].bytes);
        ck_assert_mem_eq(placed(sets[0].tensors[i]), placed(whole), sent[i].bytes);
        ck_assert_mem_eq(placed(sets[1].tensors[i]), placed(whole), sent[i].bytes);
    }
    for (int i = 0; i < 3; i++)
        rpc_set_release(&sets[i]);
    rpc_message_release(&message);
}
END_TEST

START_TEST(data_and_tensors_are_counted)
{
    static const struct sent good[] = { GOOD };
    struct rpc_message message;
    struct rpc_set set;
    struct fire_error error = { 0 };

    receive(&message, good, 1, NULL);
    message.payload_count = 0;
    ck_assert_int_eq(rpc_set_decode(&set, &message, false, TENSOR_BYTES_MAX, &error),
                     FIRE_BAD_REQUEST);
    ck_assert_str_eq(error.field, "data");
    ck_assert_ptr_nonnull(strstr(error.message, "1 tensors and 0 data fields"));
    rpc_message_release(&message);
}
END_TEST

/* Half a million empty fields in a megabyte would be a hundred megabytes of structures. */
START_TEST(unpacking_takes_memory_in_proportion)
{
    enum { FIELDS = 200000 };
    uint8_t *bytes = malloc(2 * FIELDS + 5);
    struct rpc_message message = { 0 };
    struct fire_error error = { 0 };

    /* field 2 (set), a message of unknown varint fields */
    bytes[0] = 0x12;
    ck_assert_uint_eq(rpc_write_varint(bytes + 1, 2 * FIELDS), 3);
    for (size_t i = 0; i < FIELDS; i++) {
        bytes[4 + 2 * i] = 0x78;
        bytes[4 + 2 * i + 1] = 1;
    }
    message.small = bytes;
    message.small_bytes = 4 + 2 * FIELDS;
    ck_assert_ptr_null(rpc_unpack(&fire__v1__reinit_request__descriptor, &message, &error));
    ck_assert_int_eq(error.status, FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "fire.v1.ReinitRequest"));
    free(bytes);
}
END_TEST

static Fire__V1__ReinitResponse *read_response(grpc_byte_buffer *buffer)
{
    uint8_t *whole = malloc(grpc_byte_buffer_length(buffer) + 1);
    Fire__V1__ReinitResponse *response;
    size_t at = 0;

    for (size_t i = 0; i < buffer->data.raw.slice_buffer.count; i++) {
        const grpc_slice slice = buffer->data.raw.slice_buffer.slices[i];

        memcpy(whole + at, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
        at += GRPC_SLICE_LENGTH(slice);
    }
    response = fire__v1__reinit_response__unpack(NULL, at, whole);
    ck_assert_ptr_nonnull(response);
    free(whole);
    return response;
}

/* Weight and state are answered in the order of the request, activations are not; the bytes of the
 * refused one are empty; the slices outlive the set. */
START_TEST(an_answer_has_everything_in_its_place)
{
    static const struct sent sent[] = {
        TENSOR("w.exp_avg", STATE, F32, 8, 4, .parameter = "w", .slot = "exp_avg", .bytes = 128),
        GOOD,
        TENSOR("bad", WEIGHT, F32, 8, 4, .bytes = 128, .nan = true),
        TENSOR("w.h", ACTIVATIONS, F32, 2, 8, .parameter = "w", .bytes = 64),
        TENSOR("column", WEIGHT, F32, 6, 1, .bytes = 24),
    };
    Fire__V1__SetHeader header = FIRE__V1__SET_HEADER__INIT;
    Fire__V1__Options options = FIRE__V1__OPTIONS__INIT;
    Fire__V1__ReinitResponse *response;
    struct rpc_message message;
    struct rpc_set set;
    struct fire_error error = { 0 };
    grpc_byte_buffer *buffer;
    bool dormant = false;

    options.state_policy = (char *)"reset";
    header.options = &options;
    header.on_bad = FIRE__V1__ON_BAD__ON_BAD_SKIP;
    receive(&message, sent, 5, &header);
    ck_assert_msg(serve(&set, &message, false, &error) == FIRE_OK, "%s", error.message);
    rpc_message_release(&message);
    buffer = rpc_encode_set(&set);
    rpc_set_release(&set);
    ck_assert_uint_gt(arena_used(arena), 0); /* the slices hold their blocks */
    response = read_response(buffer);
    grpc_byte_buffer_destroy(buffer);
    ck_assert_uint_eq(arena_used(arena), 0);

    ck_assert_uint_eq(response->n_results, 4);
    ck_assert_uint_eq(response->n_data, 4);
    ck_assert_str_eq(response->results[0]->name, "w.exp_avg");
    ck_assert_str_eq(response->results[0]->state, "reset");
    ck_assert_int_eq(response->results[0]->result->action,
                     FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_STATE);
    ck_assert_uint_eq(response->data[0].len, 128);
    ck_assert_uint_eq(response->data[0].data[5], 0);
    ck_assert_str_eq(response->results[1]->name, "w");
    ck_assert_str_eq(response->results[1]->preset, "fire");
    ck_assert_int_eq(response->results[1]->result->action,
                     FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_PROJECTED);
    ck_assert_uint_eq(response->data[1].len, 128);
    for (size_t i = 0; i < response->results[1]->result->n_statistics; i++) {
        ck_assert(!isnan(response->results[1]->result->statistics[i]->value));
        dormant = dormant ||
                  strcmp(response->results[1]->result->statistics[i]->key, "dormant_ratio") == 0;
    }
    ck_assert(dormant);
    ck_assert_str_eq(response->results[2]->name, "bad");
    ck_assert_ptr_nonnull(response->results[2]->error);
    ck_assert_int_eq(response->results[2]->error->code, 3);
    ck_assert_str_eq(response->results[2]->error->reason, "BAD_REQUEST");
    ck_assert_uint_eq(response->data[2].len, 0);
    ck_assert_int_eq(response->results[3]->result->action,
                     FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_SKIPPED);
    ck_assert_str_eq(response->results[3]->result->reason, "r = 1");
    ck_assert_uint_eq(response->data[3].len, 24);
    fire__v1__reinit_response__free_unpacked(response, NULL);
}
END_TEST

START_TEST(an_analysis_has_no_bytes_and_no_state)
{
    static const struct sent sent[] = {
        TENSOR("w.exp_avg", STATE, F32, 8, 4, .parameter = "w", .slot = "exp_avg", .bytes = 128),
        GOOD,
    };
    Fire__V1__ReinitResponse *response;
    struct rpc_message message;
    struct rpc_set set;
    struct fire_error error = { 0 };
    grpc_byte_buffer *buffer;

    receive(&message, sent, 2, NULL);
    ck_assert_msg(serve(&set, &message, true, &error) == FIRE_OK, "%s", error.message);
    rpc_message_release(&message);
    buffer = rpc_encode_set(&set);
    rpc_set_release(&set);
    response = read_response(buffer);
    grpc_byte_buffer_destroy(buffer);
    ck_assert_uint_eq(response->n_results, 1);
    ck_assert_uint_eq(response->n_data, 0);
    ck_assert_int_eq(response->results[0]->result->action,
                     FIRE__V1__TENSOR_ACTION__TENSOR_ACTION_ANALYZED);
    fire__v1__reinit_response__free_unpacked(response, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_decode");
    TCase *tests = tcase_create("rpc_decode");
    SRunner *runner = srunner_create(suite);
    const int refusal_count = sizeof(refusals) / sizeof(refusals[0]);
    int failed;

    srunner_set_fork_status(runner, CK_NOFORK); /* gRPC does not survive fork */
    grpc_init();
    suite_add_tcase(suite, tests);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, a_bad_tensor_refuses_the_call, 0, refusal_count);
    tcase_add_loop_test(tests, a_bad_tensor_can_be_skipped, 0, refusal_count);
    tcase_add_loop_test(tests, parts_of_a_set_make_the_whole, 0,
                        sizeof(sharings) / sizeof(sharings[0]));
    tcase_add_test(tests, data_and_tensors_are_counted);
    tcase_add_test(tests, unpacking_takes_memory_in_proportion);
    tcase_add_test(tests, an_answer_has_everything_in_its_place);
    tcase_add_test(tests, an_analysis_has_no_bytes_and_no_state);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    grpc_shutdown();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
