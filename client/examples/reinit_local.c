/* reinit_local: libfire in a dozen lines. Draws a badly conditioned weight matrix, replaces it by
 * its nearest isometry, and says what happened.
 *
 *     cc reinit_local.c $(pkg-config --cflags --libs fire) -o reinit_local && ./reinit_local */
#include <stdio.h>
#include <stdlib.h>

#include <fire.h>

#define ROWS 256u
#define COLS 784u

static float weights[ROWS * COLS];

/* Numbers that look random, the same on every machine; some columns are ten times too large. */
static void draw(void)
{
    uint32_t state = 1;

    for (size_t i = 0; i < ROWS * COLS; i++) {
        state = state * 1664525u + 1013904223u;
        weights[i] = ((float)(state >> 8) / 16777216.0f - 0.5f) * (i % COLS < 8 ? 1.0f : 0.1f);
    }
}

int main(void)
{
    struct fire_tensor tensor = {
        .name = "fc.weight",
        .dtype = FIRE_F32,
        .shape = { 2, { ROWS, COLS } },
        .data = weights,
        .out = weights,
    };
    struct fire_client *client;
    struct fire_error error;

    draw();
    if (fire_client_open_local(NULL, &client, &error) != FIRE_OK) {
        fprintf(stderr, "%s\n", error.message);
        return EXIT_FAILURE;
    }
    if (fire_options_preset(&tensor.options, "fire", &error) != FIRE_OK ||
        fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, &error) != FIRE_OK) {
        fprintf(stderr, "%s\n", error.message);
        fire_client_close(client);
        return EXIT_FAILURE;
    }
    printf("%s: %s in %u steps, DfI %.3g -> %.3g (unscaled), moved %.3g of its length\n",
           tensor.name, tensor.result.method, tensor.result.steps, tensor.result.before.dfi,
           tensor.result.dfi_unscaled_after, tensor.result.sfe_relative);
    fire_client_close(client);
    return EXIT_SUCCESS;
}
