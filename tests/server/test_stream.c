/* The rules of an upload, as little scripts: what is sent, and which step is refused with which
 * words. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc_decode.h"
#include "rpc_stream_state.h"

/* H header, B id total, C id offset bytes, E end of set, X half-close, A id answered, O no body,
 * S stray bytes. */
static enum fire_status step(struct stream_state *state, const char *text, struct fire_error *error)
{
    unsigned long long id = 0, first = 0, second = 0;
    void *tensor;
    bool complete;

    sscanf(text + 1, "%llu %llu %llu", &id, &first, &second);
    switch (text[0]) {
    case 'H': return stream_state_header(state, error);
    case 'B':
        return stream_state_begin(state, (uint32_t)id, first, (void *)(uintptr_t)(id + 1), error);
    case 'C': {
        const enum fire_status status =
            stream_state_chunk(state, (uint32_t)id, first, second, &tensor, &complete, error);

        if (status == FIRE_OK)
            ck_assert_uint_eq((uintptr_t)tensor, id + 1);
        return status;
    }
    case 'E': return stream_state_end_of_set(state, error);
    case 'X': return stream_state_half_close(state, error);
    case 'O': return stream_state_other(state, error);
    case 'S': return stream_state_stray_bytes(state, error);
    case 'A': stream_state_answered(state, (uint32_t)id); return FIRE_OK;
    default: ck_abort_msg("no step %s", text); return FIRE_OK;
    }
}

static const struct {
    const char *name;
    const char *steps; /* separated by ; */
    const char *says;  /* of the last one; NULL: it is fine */
} scripts[] = {
    { "one tensor in two pieces", "H;B 7 10;C 7 0 4;C 7 4 6;E;X", NULL },
    { "nothing at all", "X", NULL },
    { "a header alone", "H;X", NULL },
    { "four at once, interleaved",
      "H;B 1 2;B 2 2;B 3 2;B 4 2;C 1 0 1;C 4 0 2;C 2 0 2;C 1 1 1;C 3 0 2;E;B 5 1;C 5 0 1;X", NULL },
    { "an id again once it is answered", "H;B 1 4;C 1 0 4;A 1;B 1 2;C 1 0 2;X", NULL },
    { "a tensor without bytes", "H;B 1 0;X", NULL },
    { "several sets", "H;E;E;B 1 1;C 1 0 1;E;X", NULL },
    { "begin before header", "B 1 4", "first message" },
    { "chunk before header", "C 1 0 4", "first message" },
    { "end before header", "E", "first message" },
    { "nothing known before header", "O", "first message" },
    { "two headers", "H;H", "one header" },
    { "a fifth upload", "H;B 1 2;B 2 2;B 3 2;B 4 2;B 5 2", "at most 4" },
    { "an id twice while uploading", "H;B 1 2;B 1 2", "in use" },
    { "an id twice before its answer", "H;B 1 2;C 1 0 2;B 1 2", "in use" },
    { "an id of no bytes twice", "H;B 1 0;B 1 0", "in use" },
    { "a chunk of nobody", "H;C 1 0 4", "not uploading" },
    { "a chunk after the last", "H;B 1 4;C 1 0 4;C 1 4 1", "not uploading" },
    { "a gap", "H;B 1 9;C 1 0 4;C 1 5 4", "begins at 4, not at 5" },
    { "an overlap", "H;B 1 9;C 1 0 4;C 1 3 4", "begins at 4, not at 3" },
    { "the same chunk again", "H;B 1 9;C 1 0 4;C 1 0 4", "begins at 4, not at 0" },
    { "more than was said", "H;B 1 9;C 1 0 4;C 1 4 6", "exactly total_bytes" },
    { "an empty chunk", "H;B 1 9;C 1 0 0", "no bytes" },
    { "the largest chunk", "H;B 1 9999999;C 1 0 4194304", NULL },
    { "a chunk too large", "H;B 1 9999999;C 1 0 4194305", "at most 4194304" },
    { "a set that ends in a tensor", "H;B 1 9;C 1 0 4;E", "the set ended after 4 of 9 bytes" },
    { "a half-close in a tensor", "H;B 1 9;C 1 0 4;X", "half-closed after 4 of 9 bytes" },
    { "a half-close before the first chunk", "H;B 1 9;X", "half-closed after 0 of 9 bytes" },
    { "a message without a body", "H;O", "set one of them" },
    { "bytes without a chunk", "H;S", "belongs to a chunk" },
};

START_TEST(the_rules_hold)
{
    static struct stream_state state;
    struct fire_error error = { 0 };
    enum fire_status status = FIRE_OK;
    char steps[256], *rest = steps, *text;

    memset(&state, 0, sizeof(state));
    snprintf(steps, sizeof(steps), "%s", scripts[_i].steps);
    while ((text = strsep(&rest, ";")) != NULL) {
        ck_assert_msg(status == FIRE_OK, "%s: %s", scripts[_i].name, error.message);
        status = step(&state, text, &error);
    }
    if (!scripts[_i].says) {
        ck_assert_msg(status == FIRE_OK, "%s: %s", scripts[_i].name, error.message);
        return;
    }
    ck_assert_msg(status == FIRE_BAD_REQUEST, "%s was not refused", scripts[_i].name);
    ck_assert_msg(strstr(error.message, scripts[_i].says) != NULL, "%s: %s", scripts[_i].name,
                  error.message);
    ck_assert_msg(error.field[0] != '\0', "%s names no field", scripts[_i].name);
    ck_assert(state.broken);
}
END_TEST

/* As many tensors as one stream may have unanswered; their ids are found again in any order. */
START_TEST(unanswered_tensors_are_limited)
{
    static struct stream_state state;
    struct fire_error error = { 0 };

    memset(&state, 0, sizeof(state));
    ck_assert_int_eq(stream_state_header(&state, &error), FIRE_OK);
    for (uint32_t id = 0; id < STREAM_IDS_MAX; id++) {
        ck_assert(stream_state_has_room(&state));
        ck_assert_int_eq(stream_state_begin(&state, id * 7, 0, NULL, &error), FIRE_OK);
    }
    ck_assert(!stream_state_has_room(&state));
    for (uint32_t id = 0; id < STREAM_IDS_MAX; id += 2)
        stream_state_answered(&state, id * 7);
    for (uint32_t id = 0; id < STREAM_IDS_MAX; id += 2)
        ck_assert_int_eq(stream_state_begin(&state, id * 7, 0, NULL, &error), FIRE_OK);
    ck_assert_int_eq(stream_state_begin(&state, 1, 0, NULL, &error), FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "not answered yet"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("stream");
    TCase *tests = tcase_create("stream");
    SRunner *runner = srunner_create(suite);
    int failed;

    suite_add_tcase(suite, tests);
    tcase_add_loop_test(tests, the_rules_hold, 0, sizeof(scripts) / sizeof(scripts[0]));
    tcase_add_test(tests, unanswered_tensors_are_limited);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
