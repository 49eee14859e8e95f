/* make_checkpoint: writes a small GPT-2-shaped checkpoint whose weight matrices have collapsed.
 *
 * Nothing here was trained. Each block's matrices are drawn from a seed as a few strong directions
 * over faint noise, and deeper blocks have fewer of them: the kind of spectrum long training leaves
 * behind, and the one that projecting repairs. Names, shapes and the (in, out) layout are those of
 * GPT-2 checkpoints, so that a program sees what it would see in a real file. The same seed gives
 * the same bytes on every machine.
 *
 *     make_checkpoint OUT.safetensors [SEED]
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "safetensors.h"

#define LAYER_COUNT  4
#define WIDTH        256
#define VOCABULARY   2048
#define CONTEXT      256
#define SEED_DEFAULT 1
#define SIGNAL       0.15 /* deviation of an entry, from the strong directions */
#define NOISE        0.01 /* and from all others */
#define NAME_BYTES   64

enum fill { ZEROS, ONES, GAUSSIAN, COLLAPSED };

/* Sides are in units of WIDTH; cols 0 is a vector. */
struct parameter {
    const char *name;
    uint32_t rows;
    uint32_t cols;
    enum fill fill;
};

/* clang-format off */
static const struct parameter embedding_parameters[] = {
    { "wte.weight", VOCABULARY / WIDTH, 1, GAUSSIAN },
    { "wpe.weight", CONTEXT / WIDTH,    1, GAUSSIAN },
};

static const struct parameter block_parameters[] = {
    { "ln_1.weight",        1, 0, ONES },
    { "ln_1.bias",          1, 0, ZEROS },
    { "attn.c_attn.weight", 1, 3, COLLAPSED },
    { "attn.c_attn.bias",   3, 0, ZEROS },
    { "attn.c_proj.weight", 1, 1, COLLAPSED },
    { "attn.c_proj.bias",   1, 0, ZEROS },
    { "ln_2.weight",        1, 0, ONES },
    { "ln_2.bias",          1, 0, ZEROS },
    { "mlp.c_fc.weight",    1, 4, COLLAPSED },
    { "mlp.c_fc.bias",      4, 0, ZEROS },
    { "mlp.c_proj.weight",  4, 1, COLLAPSED },
    { "mlp.c_proj.bias",    1, 0, ZEROS },
};

static const struct parameter last_parameters[] = {
    { "ln_f.weight", 1, 0, ONES },
    { "ln_f.bias",   1, 0, ZEROS },
};
/* clang-format on */

#define LENGTH(table) (sizeof(table) / sizeof((table)[0]))
#define ENTRY_COUNT                                                                                \
    (LENGTH(embedding_parameters) + LAYER_COUNT * LENGTH(block_parameters) +                       \
     LENGTH(last_parameters))

/* Owns the data its entries point to. */
struct checkpoint {
    struct safetensors_entry entries[ENTRY_COUNT];
    char names[ENTRY_COUNT][NAME_BYTES];
    float *data[ENTRY_COUNT];
    size_t count;
};

/* W = SIGNAL / sqrt(rank) * (sum of a_k b_k^T over k < rank) + NOISE, everything Gaussian. */
static void fill_collapsed(float *data, size_t rows, size_t cols, size_t rank,
                           struct fire_random *random)
{
    const double strength = SIGNAL / sqrt((double)rank);
    double right[4 * WIDTH];

    for (size_t i = 0; i < rows * cols; i++)
        data[i] = (float)(NOISE * fire_random_normal(random));
    for (size_t k = 0; k < rank; k++) {
        for (size_t j = 0; j < cols; j++)
            right[j] = fire_random_normal(random);
        for (size_t i = 0; i < rows; i++) {
            const double left = strength * fire_random_normal(random);

            for (size_t j = 0; j < cols; j++)
                data[i * cols + j] += (float)(left * right[j]);
        }
    }
}

static void fill_data(float *data, size_t rows, size_t cols, enum fill fill, size_t rank,
                      struct fire_random *random)
{
    switch (fill) {
    case ZEROS:
    case ONES:
        for (size_t i = 0; i < rows * cols; i++)
            data[i] = fill == ONES ? 1.0f : 0.0f;
        break;
    case GAUSSIAN:
        for (size_t i = 0; i < rows * cols; i++)
            data[i] = (float)(0.02 * fire_random_normal(random));
        break;
    case COLLAPSED: fill_collapsed(data, rows, cols, rank, random); break;
    }
}

/* Adds one tensor; `rank` is how many strong directions a collapsed one keeps. */
static enum fire_status checkpoint_add(struct checkpoint *checkpoint, const char *prefix,
                                       const struct parameter *parameter, size_t rank,
                                       struct fire_random *random, struct fire_error *error)
{
    const size_t rows = (size_t)parameter->rows * WIDTH;
    const size_t cols = parameter->cols ? (size_t)parameter->cols * WIDTH : 1;
    const size_t bytes = rows * cols * sizeof(float);
    struct safetensors_entry *entry = &checkpoint->entries[checkpoint->count];
    char *name = checkpoint->names[checkpoint->count];
    float *data = malloc(bytes);

    if (!data)
        return fire_fail_memory(error, bytes);
    fill_data(data, rows, cols, parameter->fill, rank, random);

    snprintf(name, NAME_BYTES, "%s%s", prefix, parameter->name);
    entry->name = name;
    snprintf(entry->dtype_name, sizeof(entry->dtype_name), "F32");
    entry->floating = true;
    entry->dtype = FIRE_F32;
    entry->shape.axes = parameter->cols ? 2 : 1;
    entry->shape.size[0] = rows;
    if (parameter->cols)
        entry->shape.size[1] = cols;
    entry->data = data;
    entry->bytes = bytes;
    checkpoint->data[checkpoint->count++] = data;
    return FIRE_OK;
}

static enum fire_status checkpoint_fill(struct checkpoint *checkpoint, uint64_t seed,
                                        struct fire_error *error)
{
    struct fire_random random;
    char prefix[32];
    enum fire_status status = FIRE_OK;

    fire_random_init(&random, seed);
    for (size_t i = 0; i < LENGTH(embedding_parameters) && status == FIRE_OK; i++)
        status =
            checkpoint_add(checkpoint, "transformer.", &embedding_parameters[i], 0, &random, error);
    for (unsigned layer = 0; layer < LAYER_COUNT; layer++) {
        snprintf(prefix, sizeof(prefix), "transformer.h.%u.", layer);
        for (size_t i = 0; i < LENGTH(block_parameters) && status == FIRE_OK; i++)
            status = checkpoint_add(checkpoint, prefix, &block_parameters[i], WIDTH >> (2 + layer),
                                    &random, error);
    }
    for (size_t i = 0; i < LENGTH(last_parameters) && status == FIRE_OK; i++)
        status = checkpoint_add(checkpoint, "transformer.", &last_parameters[i], 0, &random, error);
    return status;
}

static void checkpoint_release(struct checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->count; i++)
        free(checkpoint->data[i]);
}

/* Reads a decimal seed; false when it is not one. */
static int parse_seed(const char *text, uint64_t *seed)
{
    char *end;

    errno = 0;
    *seed = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && text[0] != '-';
}

int main(int argc, char **argv)
{
    static struct checkpoint checkpoint;
    static const char *const metadata[] = { "format", "pt", "made_by",
                                            "fired make_checkpoint: drawn, not trained", NULL };
    struct fire_error error;
    uint64_t seed = SEED_DEFAULT;
    enum fire_status status;

    if (argc < 2 || argc > 3 || argv[1][0] == '-' || (argc == 3 && !parse_seed(argv[2], &seed))) {
        fprintf(stderr, "usage: make_checkpoint OUT.safetensors [SEED]\n"
                        "SEED is a whole number from 0 on; the default is 1\n");
        return 2;
    }
    status = checkpoint_fill(&checkpoint, seed, &error);
    if (status == FIRE_OK)
        status = safetensors_save(argv[1], checkpoint.entries, checkpoint.count, metadata, &error);
    if (status == FIRE_OK)
        printf("%s: %zu tensors, seed %" PRIu64 "\n", argv[1], checkpoint.count, seed);
    else
        fprintf(stderr, "make_checkpoint: %s\n", error.message);
    checkpoint_release(&checkpoint);
    return status == FIRE_OK ? 0 : 1;
}
