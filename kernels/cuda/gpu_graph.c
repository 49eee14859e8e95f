/* gpu_graph: a segment as a graph: copies in, kernels and products, copies out, captured once and
 * launched as often as batches like it come. */
#include "gpu.h"

#include <string.h>

#include "launch.h"

/* --- what segments are made of --------------------------------------------------------------- */

static uint32_t element_blocks(uint64_t elements)
{
    const uint64_t blocks = (elements + 4095) / 4096;

    return (uint32_t)(blocks < FIRE_K_BLOCKS_MAX ? blocks : FIRE_K_BLOCKS_MAX);
}

static uint32_t row_blocks(uint32_t size)
{
    const uint32_t blocks = (size + 15) / 16;

    return blocks < FIRE_K_BLOCKS_MAX ? blocks : FIRE_K_BLOCKS_MAX;
}

static uint32_t elements_of(const struct gpu_capture *c)
{
    return c->recipe->rows * c->recipe->cols;
}

/* G of x, and a look at it. */
static void look(struct gpu_capture *c, const float *x, float *g, const struct fire_look *how)
{
    const uint32_t blocks = row_blocks(c->recipe->cols);

    if (x)
        gpu_gram(c, x, x, g);
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_below",
                 fire_launch_below(c->slot->stream, g, c->layout.partial, c->recipe->cols, blocks,
                                   c->count));
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_look",
                 fire_launch_look(c->slot->stream, g, c->layout.partial, c->layout.state,
                                  c->recipe->cols, blocks, c->count, how));
}

static void combine(struct gpu_capture *c, const float *square, const float *g, float *out,
                    const struct fire_combine *how)
{
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_combine",
                 fire_launch_combine(c->slot->stream, square, g, out, c->layout.state,
                                     c->recipe->cols, c->count, how));
}

static void lanczos(struct gpu_capture *c, const float *g, uint32_t steps, int where)
{
    const struct gpu_layout *layout = &c->layout;
    const uint32_t size = c->recipe->cols;
    cudaStream_t stream = c->slot->stream;

    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_lanczos_begin",
                 fire_launch_lanczos_begin(stream, layout->vectors, size, c->count));
    for (uint32_t k = 0; k < steps && c->status == FIRE_OK; k++) {
        gpu_note(c, "fire_k_lanczos_multiply",
                 fire_launch_lanczos_multiply(stream, g, layout->vectors, size, k, c->count));
        if (c->status == FIRE_OK)
            gpu_note(c, "fire_k_lanczos_step",
                     fire_launch_lanczos_step(stream, layout->vectors, layout->pairs, size, k,
                                              c->count));
    }
    if (c->status == FIRE_OK)
        gpu_note(
            c, "fire_k_lanczos_end",
            fire_launch_lanczos_end(stream, layout->pairs, layout->state, steps, where, c->count));
}

/* From the sums of squares in `partial` to the state, and x = w FACTOR. */
static void load_weights(struct gpu_capture *c)
{
    const struct recipe *recipe = c->recipe;
    const struct gpu_layout *layout = &c->layout;
    const uint32_t elements = elements_of(c), blocks = element_blocks(elements);
    cudaStream_t stream = c->slot->stream;

    if (c->status == FIRE_OK)
        gpu_note(
            c, "fire_k_measure",
            fire_launch_measure(stream, layout->w, layout->partial, elements, blocks, c->count));
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_begin",
                 fire_launch_begin(stream, layout->partial, layout->state, blocks,
                                   recipe->gain == FIRE_K_GAIN_NONE ? recipe->eps : 0, c->count));
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_load",
                 fire_launch_load(stream, layout->w, layout->x, layout->state, elements, c->count));
}

static void swap(float **a, float **b)
{
    float *other = *a;

    *a = *b;
    *b = other;
}

/* --- the iteration --------------------------------------------------------------------------- */

static struct fire_look look_at(const struct recipe *recipe, uint32_t taken, int advance)
{
    const uint32_t step = recipe->first + taken; /* steps behind it */

    return (struct fire_look){ .advance = advance,
                               .look = recipe->check && step > 0 && (step - 1) % recipe->check == 0,
                               .full = recipe->full,
                               .target = recipe->target,
                               .where = FIRE_K_MOMENT_NONE };
}

/* What is known of the weights, and the normalisation that needs G. */
static void first_look(struct gpu_capture *c)
{
    const struct recipe *recipe = c->recipe;
    struct gpu_layout *layout = &c->layout;
    float *g = layout->square[0], *square = layout->square[1];
    struct fire_look how = look_at(recipe, 0, 0);
    const uint32_t blocks = row_blocks(recipe->cols);
    const bool spectral = recipe->gain == FIRE_K_GAIN_SPECTRAL;

    how.where = recipe->moments ? FIRE_K_MOMENT_BEFORE : FIRE_K_MOMENT_NONE;
    if (!recipe->continues)
        how.look = 0;
    if (recipe->continues)
        how.where = FIRE_K_MOMENT_NONE;
    look(c, layout->x, g, &how);
    if (!recipe->continues && (recipe->moments || spectral))
        lanczos(c, g, recipe->lanczos_before, FIRE_K_MOMENT_BEFORE);
    if (recipe->gain == FIRE_K_GAIN_SCHATTEN) {
        gpu_square(c, g, g, square);
        if (c->status == FIRE_OK)
            gpu_note(c, "fire_k_below",
                     fire_launch_below(c->slot->stream, square, layout->partial, recipe->cols,
                                       blocks, c->count));
    }
    if (recipe->gain != FIRE_K_GAIN_NONE && c->status == FIRE_OK)
        gpu_note(c, "fire_k_gain",
                 fire_launch_gain(c->slot->stream, square, layout->partial, layout->state,
                                  recipe->cols, blocks, c->count, (int)recipe->gain, recipe->eps,
                                  recipe->widen));
    /* The DfI before the first step is that of the normalised matrix. */
    if (recipe->gain != FIRE_K_GAIN_NONE) {
        how.where = FIRE_K_MOMENT_NONE;
        look(c, NULL, g, &how);
    }
}

/* p(G), from G in square[0], into square[2]. */
static void make_step(struct gpu_capture *c, uint32_t index)
{
    const struct recipe_step *step = &c->recipe->step[index];
    float *g = c->layout.square[0], *s = c->layout.square[1], *t = c->layout.square[2];
    const bool known = index == 0 && c->recipe->gain == FIRE_K_GAIN_SCHATTEN;

    if (step->terms > 2 && !known)
        gpu_square(c, g, g, s);
    if (step->terms > 3) {
        combine(c, s, g, s,
                &(struct fire_combine){
                    .alpha = 1, .beta = step->c[1], .gamma = step->c[2], .gained = 2 });
        gpu_square(c, s, s, t);
        combine(c, t, g, t,
                &(struct fire_combine){ .alpha = step->c[0],
                                        .beta = step->c[3],
                                        .gamma = step->c[4],
                                        .gained = 1,
                                        .last = 1 });
        return;
    }
    combine(c, step->terms > 2 ? s : NULL, g, t,
            &(struct fire_combine){ .alpha = step->terms > 2 ? step->c[2] : 0,
                                    .beta = step->c[1],
                                    .gamma = step->c[0],
                                    .gained = 2,
                                    .last = 1 });
}

static void iterate_on_x(struct gpu_capture *c)
{
    const struct recipe *recipe = c->recipe;
    struct gpu_layout *layout = &c->layout;

    for (uint32_t i = 0; i < recipe->limit; i++) {
        c->tf32 = recipe->precision == RECIPE_TF32_EARLY && i + 2 < recipe->limit;
        if (i > 0) {
            const struct fire_look how = look_at(recipe, i, 1);

            look(c, layout->x, layout->square[0], &how);
        }
        make_step(c, i);
        gpu_apply(c, layout->x, layout->square[2], layout->y);
        swap(&layout->x, &layout->y);
    }
    c->tf32 = false;
}

/* P <- P p(G), G <- G p(G)^2; x is multiplied by P at the end. */
static void iterate_on_gram(struct gpu_capture *c)
{
    const struct recipe *recipe = c->recipe;
    struct gpu_layout *layout = &c->layout;
    float **square = layout->square; /* G, spare, step, product, spare */

    for (uint32_t i = 0; i < recipe->limit; i++) {
        c->tf32 = recipe->precision == RECIPE_TF32_EARLY && i + 2 < recipe->limit;
        if (i > 0) {
            const struct fire_look how = look_at(recipe, i, 1);

            look(c, NULL, square[0], &how);
        }
        make_step(c, i);
        if (i + 1 < recipe->limit) {
            gpu_square(c, square[0], square[2], square[1]);
            gpu_square(c, square[1], square[2], square[0]);
        }
        if (i == 0) {
            swap(&square[2], &square[3]);
        } else {
            gpu_square(c, square[3], square[2], square[4]);
            swap(&square[3], &square[4]);
        }
    }
    c->tf32 = false;
    gpu_apply(c, layout->x, square[3], layout->y);
    swap(&layout->x, &layout->y);
}

/* --- the end --------------------------------------------------------------------------------- */

static void residual(struct gpu_capture *c)
{
    const struct gpu_layout *layout = &c->layout;
    const uint32_t blocks = row_blocks(c->recipe->cols);

    gpu_gram(c, layout->x, layout->w, layout->square[2]);
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_skew",
                 fire_launch_skew(c->slot->stream, layout->square[2], layout->other_partial,
                                  c->recipe->cols, blocks, c->count));
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_total",
                 fire_launch_total(c->slot->stream, layout->other_partial, layout->state, blocks,
                                   FIRE_K_SKEW, c->count));
}

static void write_weights(struct gpu_capture *c)
{
    const struct recipe *recipe = c->recipe;
    const struct gpu_layout *layout = &c->layout;
    const uint32_t elements = elements_of(c), blocks = element_blocks(elements);
    cudaStream_t stream = c->slot->stream;

    if (recipe->scale == FIRE_K_SCALE_MEAN_SIGMA && c->status == FIRE_OK) {
        gpu_note(c, "fire_k_inner",
                 fire_launch_inner(stream, layout->x, layout->w, layout->other_partial, elements,
                                   blocks, c->count));
        if (c->status == FIRE_OK)
            gpu_note(c, "fire_k_total",
                     fire_launch_total(stream, layout->other_partial, layout->state, blocks,
                                       FIRE_K_INNER, c->count));
    }
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_scale",
                 fire_launch_scale(stream, layout->state, (int)recipe->scale, recipe->scale_factor,
                                   recipe->cols, c->count));
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_output",
                 fire_launch_output(stream, layout->x, layout->w, layout->out, layout->state,
                                    layout->other_partial, elements, recipe->blend,
                                    (int)recipe->output, blocks, c->count));
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_total",
                 fire_launch_total(stream, layout->other_partial, layout->state, blocks, FIRE_K_SFE,
                                   c->count));
}

/* What was written, where that is not c Q, brought back to the size of Q in y. */
static void reload(struct gpu_capture *c)
{
    const struct gpu_layout *layout = &c->layout;
    const uint32_t elements = elements_of(c);
    const uint32_t blocks = c->recipe->blend != 1 ? element_blocks(elements) : 0;
    cudaStream_t stream = c->slot->stream;

    if (blocks && c->status == FIRE_OK)
        gpu_note(c, "fire_k_measure",
                 fire_launch_measure(stream, layout->out, layout->other_partial, elements, blocks,
                                     c->count));
    if (c->status == FIRE_OK)
        gpu_note(
            c, "fire_k_reload",
            fire_launch_reload(stream, layout->other_partial, layout->state, blocks, c->count));
    if (c->status == FIRE_OK)
        gpu_note(
            c, "fire_k_load",
            fire_launch_load(stream, layout->out, layout->y, layout->state, elements, c->count));
}

/* Q is in x; G of it, the weights, and what statistics ask for. */
static void finish(struct gpu_capture *c)
{
    const struct recipe *recipe = c->recipe;
    struct gpu_layout *layout = &c->layout;
    struct fire_look how = look_at(recipe, recipe->limit, recipe->limit > 0);
    const bool exact = recipe->blend == 1 && recipe->output == FIRE_K_OUTPUT_F32;

    look(c, layout->x, layout->square[0], &how);
    if (recipe->residual)
        residual(c);
    write_weights(c);
    if (!recipe->moments)
        return;
    how = (struct fire_look){ .where = recipe->blend != 1 ? FIRE_K_MOMENT_WRITTEN
                                                          : FIRE_K_MOMENT_AFTER };
    if (!exact)
        reload(c);
    look(c, exact ? NULL : layout->y, layout->square[0], &how);
    lanczos(c, layout->square[0], recipe->lanczos_after, FIRE_K_MOMENT_AFTER);
}

static void copy(struct gpu_capture *c, void *to, const void *from, size_t bytes,
                 enum cudaMemcpyKind kind)
{
    if (c->status == FIRE_OK)
        gpu_note(c, "cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, kind, c->slot->stream));
}

static void copy_out(struct gpu_capture *c)
{
    const struct gpu_layout *layout = &c->layout;

    copy(c, gpu_out_state(c->slot), layout->state,
         (size_t)c->count * FIRE_K_FIELDS * sizeof(double), cudaMemcpyDeviceToHost);
    if (c->recipe->kind != FIRE_K_KIND_ANALYZE)
        copy(c, gpu_out_weights(c->slot, c->count), layout->out,
             (size_t)c->count * elements_of(c) * sizeof(float), cudaMemcpyDeviceToHost);
}

/* --- segments -------------------------------------------------------------------------------- */

static void first_segment(struct gpu_capture *c)
{
    const struct recipe *recipe = c->recipe;
    const struct gpu_layout *layout = &c->layout;

    if (recipe->fused)
        copy(c, layout->program, gpu_in_program(c->slot), FIRE_K_PROGRAM_DOUBLES * sizeof(double),
             cudaMemcpyHostToDevice);
    copy(c, layout->w, gpu_in_weights(c->slot, c->count),
         (size_t)c->count * elements_of(c) * sizeof(float), cudaMemcpyHostToDevice);
    if (recipe->fused) {
        if (c->status == FIRE_OK)
            gpu_note(c, "fire_k_fused",
                     fire_launch_fused(c->slot->stream, layout->w, layout->out, layout->state,
                                       layout->program, recipe->rows, recipe->cols, c->count));
    } else {
        load_weights(c);
        first_look(c);
        if (recipe->kind != FIRE_K_KIND_ANALYZE) {
            if (recipe->gram)
                iterate_on_gram(c);
            else
                iterate_on_x(c);
            finish(c);
        }
    }
    copy_out(c);
}

/* Whether the first segment left Q in what the layout calls y. */
static bool q_is_in_y(const struct recipe *recipe)
{
    return recipe->gram ? true : recipe->limit % 2 == 1;
}

/* The matrices that are listed move to the front, with their state, and go on. */
static void second_segment(struct gpu_capture *c, const struct recipe *before)
{
    struct gpu_layout *layout = &c->layout;
    float *q = q_is_in_y(before) ? layout->y : layout->x;
    float *other = q_is_in_y(before) ? layout->x : layout->y;
    float *w = layout->w;
    double *state = layout->state;
    cudaStream_t stream = c->slot->stream;

    copy(c, layout->index, gpu_in_index(c->slot), c->count * sizeof(uint32_t),
         cudaMemcpyHostToDevice);
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_gather",
                 fire_launch_gather(stream, q, other, layout->index, elements_of(c), GPU_NONE,
                                    c->count));
    if (c->status == FIRE_OK)
        gpu_note(
            c, "fire_k_gather",
            fire_launch_gather(stream, w, q, layout->index, elements_of(c), GPU_NONE, c->count));
    if (c->status == FIRE_OK)
        gpu_note(c, "fire_k_gather_state",
                 fire_launch_gather_state(stream, state, layout->other_state, layout->index,
                                          GPU_NONE, c->count));
    layout->x = other;
    layout->y = w;
    layout->w = q;
    layout->state = layout->other_state;
    layout->other_state = state;
    first_look(c);
    iterate_on_x(c);
    finish(c);
    copy_out(c);
}

/* --- capture and launch ---------------------------------------------------------------------- */

static void graph_release(struct gpu_graph *graph)
{
    if (graph->exec)
        (void)cudaGraphExecDestroy(graph->exec);
    memset(graph, 0, sizeof(*graph));
}

void gpu_forget_graphs(struct gpu_slot *slot)
{
    for (uint32_t i = 0; i < GPU_GRAPHS_MAX; i++)
        graph_release(&slot->graphs[i]);
}

static enum fire_status capture_segment(struct gpu_slot *slot, const struct gpu_segment *segment,
                                        cudaGraph_t *graph)
{
    struct fire_device *device = slot->device;
    struct gpu_capture capture = { .slot = slot,
                                   .recipe = segment->recipe,
                                   .count =
                                       segment->stragglers ? segment->stragglers : segment->count };
    cudaError_t error;

    *graph = NULL;
    capture.chunked = gpu_chunked(segment->recipe, capture.count);
    gpu_layout(slot, segment->before ? segment->before : segment->recipe, segment->count,
               &capture.layout);
    capture.status =
        gpu_check(device, "cudaStreamBeginCapture",
                  cudaStreamBeginCapture(slot->stream, cudaStreamCaptureModeThreadLocal));
    if (capture.status != FIRE_OK)
        return capture.status;
    if (segment->before)
        second_segment(&capture, segment->before);
    else
        first_segment(&capture);
    /* A capture that went wrong is ended all the same; its first failure is the one told. */
    error = cudaStreamEndCapture(slot->stream, graph);
    gpu_note(&capture, "cudaStreamEndCapture", error);
    if (capture.status != FIRE_OK && *graph) {
        (void)cudaGraphDestroy(*graph);
        *graph = NULL;
    }
    return capture.status;
}

static enum fire_status make_graph(struct gpu_slot *slot, const struct gpu_segment *segment,
                                   struct gpu_graph *place)
{
    struct fire_device *device = slot->device;
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    enum fire_status status = capture_segment(slot, segment, &graph);

    if (status != FIRE_OK)
        return status;
    status = gpu_check(device, "cudaGraphInstantiateWithFlags",
                       cudaGraphInstantiateWithFlags(&exec, graph, 0));
    (void)cudaGraphDestroy(graph);
    if (status != FIRE_OK)
        return status;
    graph_release(place);
    *place = (struct gpu_graph){ .digest = segment->digest,
                                 .count = segment->count,
                                 .straggler_count = segment->stragglers,
                                 .limit = segment->recipe->limit,
                                 .exec = exec };
    return FIRE_OK;
}

/* The place of the graph, or the one that makes room for it: `*found` tells. */
static struct gpu_graph *find_graph(struct gpu_slot *slot, const struct gpu_segment *segment,
                                    bool *found)
{
    struct gpu_graph *oldest = &slot->graphs[0];

    *found = false;
    for (uint32_t i = 0; i < GPU_GRAPHS_MAX; i++) {
        struct gpu_graph *graph = &slot->graphs[i];

        if (graph->exec && graph->digest == segment->digest && graph->count == segment->count &&
            graph->straggler_count == segment->stragglers &&
            graph->limit == segment->recipe->limit) {
            *found = true;
            return graph;
        }
        if (graph->used < oldest->used)
            oldest = graph;
    }
    return oldest;
}

enum fire_status gpu_launch(struct gpu_slot *slot, const struct gpu_segment *segment)
{
    struct fire_device *device = slot->device;
    bool found;
    struct gpu_graph *graph = find_graph(slot, segment, &found);
    enum fire_status status = found ? FIRE_OK : make_graph(slot, segment, graph);

    if (status != FIRE_OK)
        return status;
    graph->used = ++slot->launches;
    status = gpu_check(device, "cudaGraphLaunch", cudaGraphLaunch(graph->exec, slot->stream));
    if (status == FIRE_OK)
        status = gpu_check(device, "cudaEventRecord", cudaEventRecord(slot->event, slot->stream));
    return status;
}
