/* Messages in slices: read wherever they are cut, refused wherever they are wrong, written so that
 * protobuf-c reads them back. */
#include <check.h>
#include <grpc/grpc.h>
#include <stdlib.h>
#include <string.h>

#include "fire/v1/reinit.pb-c.h"
#include "rpc_wire.h"

#define SMALL_MAX    4096u
#define PAYLOADS_MAX 8u

static grpc_byte_buffer *in_slices(const uint8_t *bytes, size_t count, size_t slice_bytes)
{
    grpc_slice slices[512];
    size_t slice_count = 0;
    grpc_byte_buffer *buffer;

    for (size_t at = 0; at < count; at += slice_bytes) {
        ck_assert(slice_count < 512);
        slices[slice_count++] = grpc_slice_from_copied_buffer(
            (const char *)bytes + at, count - at < slice_bytes ? count - at : slice_bytes);
    }
    buffer = grpc_raw_byte_buffer_create(slices, slice_count);
    for (size_t i = 0; i < slice_count; i++)
        grpc_slice_unref(slices[i]);
    return buffer;
}

/* Pieces of a payload, put together again. */
struct collected {
    uint8_t bytes[256];
    size_t count;
    size_t pieces;
    size_t pieces_max;
};

static enum fire_status collect(void *data, uint64_t offset, const uint8_t *bytes, size_t count)
{
    struct collected *collected = data;

    ck_assert_uint_eq(offset, collected->count);
    ck_assert_uint_gt(count, 0);
    ck_assert(collected->count + count <= sizeof(collected->bytes));
    if (collected->pieces == collected->pieces_max)
        return FIRE_CANCELLED;
    memcpy(collected->bytes + collected->count, bytes, count);
    collected->count += count;
    collected->pieces++;
    return FIRE_OK;
}

/* field 1 "ab", data "hello", field 2 varint 300, data "", field 3 fixed32, field 4 fixed64,
 * data of 200 bytes: a length of two bytes. */
static size_t sample(uint8_t *bytes, uint8_t *small, size_t *small_bytes)
{
    static const uint8_t one[] = { 0x0a, 2, 'a', 'b' };
    static const uint8_t hello[] = { 0xa2, 0x06, 5, 'h', 'e', 'l', 'l', 'o' };
    static const uint8_t two[] = { 0x10, 0xac, 0x02 };
    static const uint8_t empty[] = { 0xa2, 0x06, 0 };
    static const uint8_t three[] = { 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8 };
    static const uint8_t head[] = { 0xa2, 0x06, 0xc8, 0x01 };
    size_t used = 0;

    *small_bytes = 0;
#define PUT(part)                                                                                  \
    memcpy(bytes + used, part, sizeof(part));                                                      \
    used += sizeof(part)
#define PUT_SMALL(part)                                                                            \
    PUT(part);                                                                                     \
    memcpy(small + *small_bytes, part, sizeof(part));                                              \
    *small_bytes += sizeof(part)
    PUT_SMALL(one);
    PUT(hello);
    PUT_SMALL(two);
    PUT(empty);
    PUT_SMALL(three);
    PUT(head);
#undef PUT
#undef PUT_SMALL
    for (int i = 0; i < 200; i++)
        bytes[used++] = (uint8_t)i;
    return used;
}

START_TEST(a_message_reads_the_same_wherever_it_is_cut)
{
    uint8_t bytes[512], small[64];
    size_t small_bytes;
    const size_t count = sample(bytes, small, &small_bytes);
    struct rpc_message message;
    struct fire_error error;

    for (size_t slice_bytes = 1; slice_bytes <= count; slice_bytes++) {
        struct collected last = { .pieces_max = SIZE_MAX }, first = { .pieces_max = SIZE_MAX };

        ck_assert_int_eq(rpc_message_init(&message, in_slices(bytes, count, slice_bytes), SMALL_MAX,
                                          PAYLOADS_MAX, &error),
                         FIRE_OK);
        ck_assert_uint_eq(message.small_bytes, small_bytes);
        ck_assert_mem_eq(message.small, small, small_bytes);
        ck_assert_uint_eq(message.payload_count, 3);
        ck_assert_uint_eq(message.payloads[1].bytes, 0);
        ck_assert_int_eq(rpc_payload_walk(&message, &message.payloads[0], collect, &first),
                         FIRE_OK);
        ck_assert_uint_eq(first.count, 5);
        ck_assert_mem_eq(first.bytes, "hello", 5);
        ck_assert_int_eq(rpc_payload_walk(&message, &message.payloads[2], collect, &last), FIRE_OK);
        ck_assert_uint_eq(last.count, 200);
        ck_assert_mem_eq(last.bytes, bytes + count - 200, 200);
        rpc_message_release(&message);
    }
}
END_TEST

START_TEST(a_walk_ends_with_the_first_piece_that_is_refused)
{
    uint8_t bytes[512], small[64];
    size_t small_bytes;
    const size_t count = sample(bytes, small, &small_bytes);
    struct collected some = { .pieces_max = 2 };
    struct rpc_message message;
    struct fire_error error;

    ck_assert_int_eq(
        rpc_message_init(&message, in_slices(bytes, count, 10), SMALL_MAX, PAYLOADS_MAX, &error),
        FIRE_OK);
    ck_assert_int_eq(rpc_payload_walk(&message, &message.payloads[2], collect, &some),
                     FIRE_CANCELLED);
    ck_assert_uint_eq(some.pieces, 2);
    rpc_message_release(&message);
}
END_TEST

static const struct {
    const char *name;
    uint8_t bytes[16];
    size_t count;
    const char *says;
} malformed[] = {
    { "a key that goes on for ever",
      { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff },
      11,
      "a key is cut off" },
    { "a key cut off", { 0x80 }, 1, "a key is cut off" },
    { "field 0", { 0x02, 0 }, 2, "field number" },
    { "a field number beyond 2^29", { 0x82, 0x80, 0x80, 0x80, 0x10, 0 }, 6, "field number" },
    { "a length cut off", { 0x0a, 0x80 }, 2, "a length is cut off" },
    { "no length", { 0x0a }, 1, "a length is cut off" },
    { "a length beyond the end", { 0x0a, 3, 'a', 'b' }, 4, "longer than the message" },
    { "a length of 2^64 - 1",
      { 0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01 },
      11,
      "longer than the message" },
    { "a length over 64 bits",
      { 0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02 },
      11,
      "a length is cut off or too long" },
    { "data beyond the end", { 0xa2, 0x06, 2, 'x' }, 4, "longer than the message" },
    { "data that is a number", { 0xa0, 0x06, 2 }, 3, "field 100" },
    { "a number cut off", { 0x08, 0x80 }, 2, "a number is cut off" },
    { "a fixed64 cut off", { 0x09, 1, 2, 3 }, 4, "a number is cut off" },
    { "a fixed32 cut off", { 0x0d, 1, 2, 3 }, 4, "a number is cut off" },
    { "a group", { 0x0b, 0x0c }, 2, "wire type" },
    { "wire type 7", { 0x0f }, 1, "wire type" },
};

START_TEST(what_is_malformed_is_refused)
{
    struct rpc_message message;
    struct fire_error error = { 0 };

    ck_assert_msg(rpc_message_init(&message, in_slices(malformed[_i].bytes, malformed[_i].count, 3),
                                   SMALL_MAX, PAYLOADS_MAX, &error) == FIRE_BAD_REQUEST,
                  "%s", malformed[_i].name);
    ck_assert_msg(strstr(error.message, malformed[_i].says) != NULL, "%s: %s", malformed[_i].name,
                  error.message);
    ck_assert_ptr_null(message.buffer);
}
END_TEST

/* Each limit lets through what just fits it. */
START_TEST(limits_are_kept)
{
    uint8_t bytes[512], small[64];
    size_t small_bytes;
    const size_t count = sample(bytes, small, &small_bytes);
    struct rpc_message message;
    struct fire_error error;
    uint8_t many[2 * (RPC_FIELDS_MORE_MAX + 2)];

    ck_assert_int_eq(
        rpc_message_init(&message, in_slices(bytes, count, 64), small_bytes, 3, &error), FIRE_OK);
    rpc_message_release(&message);
    ck_assert_int_eq(
        rpc_message_init(&message, in_slices(bytes, count, 64), small_bytes - 1, 3, &error),
        FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "beside tensor data"));
    ck_assert_int_eq(
        rpc_message_init(&message, in_slices(bytes, count, 64), small_bytes, 2, &error),
        FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "more than 2 data fields"));

    for (size_t i = 0; i < sizeof(many); i += 2) {
        many[i] = 0x08;
        many[i + 1] = 1;
    }
    ck_assert_int_eq(
        rpc_message_init(&message, in_slices(many, sizeof(many), 64), SMALL_MAX, 2, &error),
        FIRE_OK);
    rpc_message_release(&message);
    ck_assert_int_eq(
        rpc_message_init(&message, in_slices(many, sizeof(many), 64), SMALL_MAX, 1, &error),
        FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "fields beside tensor data"));
}
END_TEST

static int destroyed;

static void count_destroyed(void *data)
{
    ck_assert_ptr_eq(data, &destroyed);
    destroyed++;
}

/* protobuf-c, which knows nothing of slices, reads what was packed; what is lent comes back
 * once. */
START_TEST(what_is_packed_is_protobuf)
{
    static uint8_t lent[70000];
    Fire__V1__TensorHeader header = FIRE__V1__TENSOR_HEADER__INIT, *headers[] = { &header };
    Fire__V1__ReinitRequest request = FIRE__V1__REINIT_REQUEST__INIT, *read;
    grpc_slice payloads[3];
    grpc_byte_buffer *buffer;
    struct rpc_message message;
    struct fire_error error;
    uint8_t *whole;
    size_t at = 0;

    for (size_t i = 0; i < sizeof(lent); i++)
        lent[i] = (uint8_t)(i * 7);
    header.name = (char *)"w";
    request.tensors = headers;
    request.n_tensors = 1;
    destroyed = 0;
    payloads[0] = grpc_slice_new_with_user_data(lent, sizeof(lent), count_destroyed, &destroyed);
    payloads[1] = grpc_empty_slice();
    payloads[2] = grpc_slice_from_copied_string("third");
    buffer = rpc_message_pack(&request.base, payloads, 3);
    ck_assert_ptr_nonnull(buffer);
    ck_assert_int_eq(destroyed, 0);

    whole = malloc(grpc_byte_buffer_length(buffer));
    for (size_t i = 0; i < buffer->data.raw.slice_buffer.count; i++) {
        const grpc_slice slice = buffer->data.raw.slice_buffer.slices[i];

        memcpy(whole + at, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
        at += GRPC_SLICE_LENGTH(slice);
    }
    read = fire__v1__reinit_request__unpack(NULL, at, whole);
    ck_assert_ptr_nonnull(read);
    ck_assert_uint_eq(read->n_data, 3);
    ck_assert_uint_eq(read->data[0].len, sizeof(lent));
    ck_assert_mem_eq(read->data[0].data, lent, sizeof(lent));
    ck_assert_uint_eq(read->data[1].len, 0);
    ck_assert_mem_eq(read->data[2].data, "third", 5);
    ck_assert_str_eq(read->tensors[0]->name, "w");
    fire__v1__reinit_request__free_unpacked(read, NULL);
    free(whole);

    ck_assert_int_eq(rpc_message_init(&message, buffer, SMALL_MAX, 3, &error), FIRE_OK);
    ck_assert_uint_eq(message.payloads[0].bytes, sizeof(lent));
    rpc_message_release(&message);
    ck_assert_int_eq(destroyed, 1);
}
END_TEST

START_TEST(an_empty_message_is_one)
{
    struct rpc_message message;
    struct fire_error error;

    ck_assert_int_eq(rpc_message_init(&message, in_slices(NULL, 0, 1), 0, 0, &error), FIRE_OK);
    ck_assert_uint_eq(message.small_bytes, 0);
    ck_assert_uint_eq(message.payload_count, 0);
    rpc_message_release(&message);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_wire");
    TCase *tests = tcase_create("rpc_wire");
    SRunner *runner = srunner_create(suite);
    int failed;

    srunner_set_fork_status(runner, CK_NOFORK); /* gRPC does not survive fork */
    grpc_init();
    suite_add_tcase(suite, tests);
    tcase_add_test(tests, a_message_reads_the_same_wherever_it_is_cut);
    tcase_add_test(tests, a_walk_ends_with_the_first_piece_that_is_refused);
    tcase_add_loop_test(tests, what_is_malformed_is_refused, 0,
                        sizeof(malformed) / sizeof(malformed[0]));
    tcase_add_test(tests, limits_are_kept);
    tcase_add_test(tests, what_is_packed_is_protobuf);
    tcase_add_test(tests, an_empty_message_is_one);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    grpc_shutdown();
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
