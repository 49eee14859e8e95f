/* reinit_remote: a trainer's layer through a daemon: weights and Adam's state are sent, replaced in
 * place, and what happened is said. A second set is on its way meanwhile.
 *
 *     cc reinit_remote.c $(pkg-config --cflags --libs fire) -o reinit_remote
 *     fired & ./reinit_remote            (or: ./reinit_remote unix:/path/to/socket) */
#include <stdio.h>
#include <stdlib.h>

#include <fire.h>

#define ROWS 256u
#define COLS 784u

static float weights[ROWS * COLS];
static float exp_avg[ROWS * COLS];
static float exp_avg_sq[ROWS * COLS];
static int64_t step = 12000;
static float head[10 * ROWS];

/* Numbers that look random, the same on every machine. */
static void draw(float *numbers, size_t count, float size)
{
    uint32_t state = 1;

    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = ((float)(state >> 8) / 16777216.0f - 0.5f) * size;
    }
}

/* Runs on the client's thread, when the set is done. */
static void say(struct fire_set *set, void *data)
{
    const struct fire_tensor *tensor = &set->tensors[0];

    (void)data;
    if (set->status != FIRE_OK)
        fprintf(stderr, "%s\n", set->error.message);
    else
        printf("%s: DfI %.3g -> %.3g (unscaled), in batch %llu of %u, closed because: %s\n",
               tensor->name, tensor->result.before.dfi, tensor->result.dfi_unscaled_after,
               (unsigned long long)tensor->batch.id, tensor->batch.size,
               tensor->batch.close_reason);
}

int main(int argc, char **argv)
{
    const struct fire_remote_settings settings = { .address = argc > 1 ? argv[1] : NULL,
                                                   .deadline_s = 30.0,
                                                   .run = "example" };
    struct fire_state_tensor states[] = {
        { .slot = FIRE_SLOT_EXP_AVG,
          .dtype = FIRE_F32,
          .shape = { 2, { ROWS, COLS } },
          .data = exp_avg,
          .out = exp_avg },
        { .slot = FIRE_SLOT_EXP_AVG_SQ,
          .dtype = FIRE_F32,
          .shape = { 2, { ROWS, COLS } },
          .data = exp_avg_sq,
          .out = exp_avg_sq },
        { .slot = FIRE_SLOT_STEP, .integer_bytes = 8, .data = &step, .out = &step },
    };
    struct fire_tensor layer = { .name = "fc.weight",
                                 .dtype = FIRE_F32,
                                 .shape = { 2, { ROWS, COLS } },
                                 .data = weights,
                                 .out = weights,
                                 .states = states,
                                 .state_count = 3 };
    struct fire_tensor last = { .name = "head.weight",
                                .dtype = FIRE_F32,
                                .shape = { 2, { 10, ROWS } },
                                .data = head,
                                .out = head };
    struct fire_set sets[] = {
        { .tensors = &layer, .count = 1, .done = say, .statistics = FIRE_STATISTICS_BASIC },
        { .tensors = &last, .count = 1, .done = say, .statistics = FIRE_STATISTICS_BASIC }
    };
    struct fire_client *client = NULL;
    int code = EXIT_FAILURE;

    draw(weights, ROWS * COLS, 0.1f);
    draw(exp_avg, ROWS * COLS, 0.01f);
    draw(exp_avg_sq, ROWS * COLS, 0.001f);
    draw(head, 10 * ROWS, 0.1f);
    if (fire_options_preset(&layer.options, "fire", NULL) == FIRE_OK &&
        fire_options_set(&layer.options, "state_policy", "reset", NULL) == FIRE_OK &&
        fire_options_preset(&last.options, "fire", NULL) == FIRE_OK &&
        fire_client_open_remote(&settings, &client, NULL) == FIRE_OK &&
        fire_client_start(client, &sets[0], NULL) == FIRE_OK &&
        fire_client_start(client, &sets[1], NULL) == FIRE_OK) {
        (void)fire_client_wait(client, NULL, -1.0);
        if (sets[0].status == FIRE_OK && sets[1].status == FIRE_OK)
            code = EXIT_SUCCESS;
        printf("Adam's step is now %lld\n", (long long)step);
    } else {
        fprintf(stderr, "%s\n", fire_last_error());
    }
    fire_client_close(client);
    return code;
}
