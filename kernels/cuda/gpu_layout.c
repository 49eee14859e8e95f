/* gpu_layout: where things lie. A piece of `count` matrices is cut out of the slot's memory anew
 * every time, always the same way for the same recipe and count: that is what graphs rely on. */
#include "gpu.h"

#define ALIGNMENT      256u
#define ROUND_STEP     4u  /* graphs are made for multiples of it, */
#define ROUND_STEP_BIG 16u /* from ROUND_FROM on of this */
#define ROUND_FROM     32u
#define COUNT_MAX      65535u /* of a grid's second dimension */

/* With a NULL base it only adds up sizes. */
struct cutter {
    char *base;
    size_t used;
};

static void *cut(struct cutter *cutter, size_t bytes)
{
    char *at = cutter->base ? cutter->base + cutter->used : NULL;

    cutter->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static void cut_products(struct cutter *cutter, const struct recipe *recipe, uint32_t count,
                         struct gpu_layout *layout)
{
    const size_t matrices = count, elements = (size_t)recipe->rows * recipe->cols;
    const size_t square = (size_t)recipe->cols * recipe->cols;
    const size_t blocks = FIRE_K_TABLE_BLOCKS * (FIRE_K_TABLE_BLOCKS + 1) / 2;

    layout->x = cut(cutter, matrices * elements * sizeof(float));
    layout->y = cut(cutter, matrices * elements * sizeof(float));
    for (int i = 0; i < (recipe->gram ? 5 : 3); i++)
        layout->square[i] = cut(cutter, matrices * square * sizeof(float));
    for (int i = 0; i < 6 && recipe->precision == RECIPE_3XTF32; i++)
        layout->split[i] = cut(cutter, matrices * (i < 2 ? elements : square) * sizeof(float));
    layout->other_state = cut(cutter, matrices * FIRE_K_FIELDS * sizeof(double));
    layout->partial = cut(cutter, matrices * FIRE_K_BLOCKS_MAX * sizeof(double));
    layout->other_partial = cut(cutter, matrices * FIRE_K_BLOCKS_MAX * sizeof(double));
    layout->vectors = cut(cutter, matrices * 3 * recipe->cols * sizeof(double));
    layout->pairs = cut(cutter, matrices * 2 * FIRE_K_LANCZOS_MAX * sizeof(double));
    if (recipe->blocks) {
        layout->a_table = cut(cutter, matrices * blocks * sizeof(float *));
        layout->b_table = cut(cutter, matrices * blocks * sizeof(float *));
        layout->c_table = cut(cutter, matrices * blocks * sizeof(float *));
    }
}

static size_t cut_all(char *base, const struct recipe *recipe, uint32_t count,
                      struct gpu_layout *layout)
{
    const size_t matrices = count, elements = (size_t)recipe->rows * recipe->cols;
    struct cutter cutter = { base, 0 };

    *layout = (struct gpu_layout){ .count = count };
    layout->program = cut(&cutter, FIRE_K_PROGRAM_DOUBLES * sizeof(double));
    layout->index = cut(&cutter, matrices * sizeof(uint32_t));
    layout->w = cut(&cutter, matrices * elements * sizeof(float));
    layout->out = cut(&cutter, matrices * elements * sizeof(float));
    layout->state = cut(&cutter, matrices * FIRE_K_FIELDS * sizeof(double));
    if (!recipe->fused)
        cut_products(&cutter, recipe, count, layout);
    return cutter.used;
}

void gpu_layout(const struct gpu_slot *slot, const struct recipe *recipe, uint32_t count,
                struct gpu_layout *layout)
{
    (void)cut_all(slot->memory + slot->device->workspace_bytes, recipe, gpu_chunked(recipe, count),
                  layout);
}

/* An upper bound: what alignment adds is in it. */
size_t gpu_matrix_bytes(const struct recipe *recipe)
{
    struct gpu_layout layout;

    return cut_all(NULL, recipe, 1, &layout);
}

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

float *gpu_in_weights(const struct gpu_slot *slot, uint32_t count)
{
    return (float *)(void *)(slot->in + round_up(FIRE_K_PROGRAM_DOUBLES * sizeof(double)) +
                             round_up(count * sizeof(uint32_t)));
}

float *gpu_out_weights(const struct gpu_slot *slot, uint32_t count)
{
    return (float *)(void *)(slot->out + round_up((size_t)count * FIRE_K_FIELDS * sizeof(double)));
}

uint32_t gpu_rounded(const struct recipe *recipe, uint32_t count)
{
    uint32_t step = count > ROUND_FROM ? ROUND_STEP_BIG : ROUND_STEP;

    if (!recipe->fused && step > recipe->chunk)
        step = recipe->chunk;
    return (count + step - 1) / step * step;
}

uint32_t gpu_chunked(const struct recipe *recipe, uint32_t count)
{
    return (count + recipe->chunk - 1) / recipe->chunk * recipe->chunk;
}

uint32_t gpu_capacity(const struct fire_device *device, const struct recipe *recipe)
{
    const size_t elements = (size_t)recipe->rows * recipe->cols;
    const size_t fixed = FIRE_K_PROGRAM_DOUBLES * sizeof(double) + 4 * ALIGNMENT;
    const size_t staged =
        elements * sizeof(float) + FIRE_K_FIELDS * sizeof(double) + sizeof(uint32_t);
    const uint32_t step = recipe->fused ? ROUND_STEP_BIG : recipe->chunk;
    const size_t room = device->slot_bytes - device->workspace_bytes;
    size_t count = room / gpu_matrix_bytes(recipe);

    if (device->staging_bytes < fixed)
        return 0;
    if (count > (device->staging_bytes - fixed) / staged)
        count = (device->staging_bytes - fixed) / staged;
    if (count > COUNT_MAX)
        count = COUNT_MAX;
    return (uint32_t)(count / step * step);
}
