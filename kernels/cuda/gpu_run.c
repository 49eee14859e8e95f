/* gpu_run: a batch on a slot, piece by piece.
 *
 * Weights are copied into pinned memory, a graph does the rest, and what comes back is written to
 * the caller's slots only when the whole piece has come back well. So until the first piece is
 * written a batch can be given to another device as it is; after that, what is left of it is
 * computed here on the CPU. */
#define _GNU_SOURCE
#include "gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAR_MOST   4.0    /* a DfI up to this may be a few singular values that lag behind */
#define ERROR_MOST 1.2e-5 /* estimated, of the polar factor; more is the CPU's, which has f64 */
#define ROUGH_MOST 3e-5   /* where the estimate is too high: of one chain */

/* What is to be done with a matrix that came back. */
enum fate {
    FATE_DONE,
    FATE_CONTINUE, /* near the end: a second segment */
    FATE_CPU,
};

/* A piece of a batch on its way. */
struct piece {
    struct gpu_slot *slot;
    const struct fire_plan *plan;
    const struct recipe *recipe;
    struct fire_slot *slots;
    uint32_t count;
    struct fire_slot *rest; /* for the CPU, of this batch: room for all */
    uint32_t *rest_count;
    double start_ms;
    double each_ms;
};

static double milliseconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* --- results --------------------------------------------------------------------------------- */

static void set_moment(const struct fire_plan *plan, const double *row, int dfi,
                       struct fire_moment *moment)
{
    moment->dfi = row[dfi];
    moment->dfi_full = row[dfi] + (plan->in > plan->out ? (double)(plan->in - plan->out) : 0.0);
    moment->dfi_mean = row[dfi] / plan->cols;
    moment->dfi_scale_free = row[dfi + 1];
    moment->norm = row[dfi + 2];
    moment->participation = row[dfi + 3];
    moment->spectral_norm = sqrt(row[dfi + 4]);
    moment->stable_rank = row[dfi + 4] > 0 ? moment->norm / row[dfi + 4] * moment->norm : NAN;
}

static void set_method(const struct recipe *recipe, const double *row, struct fire_result *result)
{
    const char *const side = recipe->gram ? "gram " : "";

    if (recipe->kind == FIRE_K_KIND_ANALYZE)
        snprintf(result->method, sizeof(result->method), "analyze");
    else if (recipe->kind == FIRE_K_KIND_CONVERGE)
        snprintf(result->method, sizeof(result->method), "%sminimax9 x%u", side,
                 (unsigned)row[FIRE_K_STEPS]);
    else
        snprintf(result->method, sizeof(result->method), "%s%u x%u", side,
                 2 * (recipe->step[0].terms > 0 ? recipe->step[0].terms : 2) - 1,
                 (unsigned)row[FIRE_K_STEPS]);
}

static void begin_result(const struct piece *piece, struct fire_result *result)
{
    fire_result_init(result);
    result->path = piece->recipe->fused ? "cuda-fused" : "cuda";
    result->matrices = 1;
    result->compute_ms = piece->each_ms;
}

static void skip(const struct piece *piece, const double *row, struct fire_result *result)
{
    begin_result(piece, result);
    result->action = FIRE_ACTION_SKIPPED;
    result->status = FIRE_OK;
    snprintf(result->reason, sizeof(result->reason), "norm %.3g below min_norm %.3g",
             row[FIRE_K_NORM], piece->plan->min_norm);
}

static void refuse(const struct piece *piece, struct fire_result *result)
{
    begin_result(piece, result);
    result->action = FIRE_ACTION_REFUSED;
    result->status = FIRE_BAD_REQUEST;
    snprintf(result->reason, sizeof(result->reason),
             "the iteration or its result left the range of its numbers");
}

/* The result, and the weights unless the plan only analyzes. */
static void deliver(const struct piece *piece, const struct fire_slot *slot, const double *row,
                    const float *weights)
{
    const struct fire_plan *plan = piece->plan;
    const double norm = row[FIRE_K_NORM];
    struct fire_result *result = slot->result;

    begin_result(piece, result);
    result->action = FIRE_ACTION_PROJECTED;
    result->status = FIRE_OK;
    set_method(piece->recipe, row, result);
    if (piece->recipe->moments)
        set_moment(plan, row, FIRE_K_BEFORE_DFI, &result->before);
    if (plan->kind == FIRE_PLAN_ANALYZE)
        return;
    memcpy(slot->weights, weights, fire_plan_slot_bytes(plan));
    result->steps = (uint32_t)row[FIRE_K_STEPS];
    result->rank = plan->cols;
    result->rank_defect = 0;
    result->scale = row[FIRE_K_SCALE];
    result->sfe = row[FIRE_K_SFE];
    result->sfe_relative = row[FIRE_K_SFE] / (norm * norm);
    result->dfi_unscaled_after = row[FIRE_K_DFI];
    result->converged = row[FIRE_K_DFI] <= plan->target;
    if (piece->recipe->residual)
        result->polar_residual = sqrt(row[FIRE_K_SKEW]) / norm;
    if (piece->recipe->moments) {
        set_moment(plan, row, FIRE_K_AFTER_DFI, &result->after);
        result->norm_preservation = result->after.norm / result->before.norm;
    }
}

/* --- what becomes of a matrix ---------------------------------------------------------------- */

/* The DfI that the iteration itself ended with: of Q before it was rounded. */
static double iteration_dfi(const struct recipe *recipe, const double *row)
{
    const uint32_t steps = (uint32_t)row[FIRE_K_STEPS];

    if (recipe->output == FIRE_K_OUTPUT_F32 || recipe->blend != 1)
        return row[FIRE_K_DFI];
    return steps < FIRE_K_HISTORY_MAX ? row[FIRE_K_HISTORY + steps] : row[FIRE_K_DFI];
}

static enum fate fate_of(const struct piece *piece, const struct recipe *recipe, const double *row)
{
    const struct fire_plan *plan = piece->plan;
    const double dfi = iteration_dfi(recipe, row);

    if (plan->kind == FIRE_PLAN_ANALYZE)
        return FATE_DONE;
    if (plan->kind == FIRE_PLAN_POLYNOMIAL)
        return plan->steps == FIRE_STEPS_AUTO && row[FIRE_K_ACTIVE] != 0 &&
                       recipe->first + recipe->limit < plan->max_steps
                   ? FATE_CONTINUE
                   : FATE_DONE;
    if (!plan->fast && recipe->split && !recipe->continues &&
        recipe_error(recipe, row) > ERROR_MOST)
        return FATE_CPU;
    if (!recipe->continues && !recipe->fused && dfi >= FIRE_K_NEAR && dfi < FAR_MOST)
        return FATE_CONTINUE;
    /* Not by comparing with less: a DfI that is no number is not near. */
    if (!(dfi < FIRE_K_NEAR))
        return FATE_CPU;
    if (!plan->fast && !recipe->split && !recipe->continues &&
        recipe_error(recipe, row) > ROUGH_MOST)
        return FATE_CPU;
    if (dfi <= recipe_goal(plan) || (recipe->continues && dfi <= plan->target))
        return FATE_DONE;
    return recipe->continues || recipe->fused ? FATE_CPU : FATE_CONTINUE;
}

static void to_cpu(const struct piece *piece, uint32_t index)
{
    piece->rest[(*piece->rest_count)++] = piece->slots[index];
}

/* One matrix that has come back for good. */
static void end_matrix(const struct piece *piece, uint32_t index, const double *row,
                       const float *weights)
{
    const struct fire_slot *slot = &piece->slots[index];

    if (!isfinite(row[FIRE_K_SFE]) && piece->plan->kind != FIRE_PLAN_ANALYZE)
        refuse(piece, slot->result);
    else
        deliver(piece, slot, row, weights);
}

/* --- segments -------------------------------------------------------------------------------- */

static enum fire_status run_segment(struct piece *piece, const struct gpu_segment *segment)
{
    struct gpu_slot *slot = piece->slot;
    enum fire_status status = gpu_launch(slot, segment);

    if (status == FIRE_OK)
        status = gpu_check(slot->device, "cudaEventSynchronize", cudaEventSynchronize(slot->event));
    return status;
}

static void stage(const struct piece *piece, uint32_t padded)
{
    const size_t bytes = fire_plan_slot_bytes(piece->plan);
    char *weights = (char *)gpu_in_weights(piece->slot, padded);

    if (piece->recipe->fused)
        recipe_program(piece->recipe, gpu_in_program(piece->slot));
    for (uint32_t i = 0; i < piece->count; i++)
        memcpy(weights + i * bytes, piece->slots[i].weights, bytes);
    memset(weights + piece->count * bytes, 0, (padded - piece->count) * bytes);
}

/* The second segment, of the `count` matrices listed in the slot's index, `dfi` the largest of
 * theirs. Those that it cannot bring to an end either are the CPU's. */
static enum fire_status run_stragglers(struct piece *piece, uint32_t first_padded, uint32_t count,
                                       double dfi)
{
    struct recipe recipe;
    const uint32_t padded = gpu_rounded(piece->recipe, count);
    uint32_t *index = gpu_in_index(piece->slot);
    const struct gpu_segment segment = { .recipe = &recipe,
                                         .before = piece->recipe,
                                         .digest = piece->plan->digest,
                                         .count = first_padded,
                                         .stragglers = padded };
    const struct recipe *first = piece->recipe;
    const size_t elements = (size_t)piece->plan->rows * piece->plan->cols;
    enum fire_status status;

    if (!recipe_continue(&recipe, piece->plan, first, dfi)) {
        for (uint32_t i = 0; i < count; i++)
            to_cpu(piece, index[i]);
        return FIRE_OK;
    }
    for (uint32_t i = count; i < padded; i++)
        index[i] = GPU_NONE;
    status = run_segment(piece, &segment);
    if (status != FIRE_OK)
        return status;
    for (uint32_t i = 0; i < count; i++) {
        const double *row = gpu_out_state(piece->slot) + (size_t)i * FIRE_K_FIELDS;
        const float *weights = gpu_out_weights(piece->slot, padded) + i * elements;

        if (fate_of(piece, &recipe, row) == FATE_CPU)
            to_cpu(piece, index[i]);
        else
            end_matrix(piece, index[i], row, weights);
    }
    return FIRE_OK;
}

/* Sorts what came back: finished ones are written, the others listed. Returns how many go on, and
 * their largest DfI. */
static uint32_t sort_out(struct piece *piece, uint32_t padded, double *dfi)
{
    const size_t elements = (size_t)piece->plan->rows * piece->plan->cols;
    uint32_t *index = gpu_in_index(piece->slot);
    uint32_t going_on = 0;

    for (uint32_t i = 0; i < piece->count; i++) {
        const double *row = gpu_out_state(piece->slot) + (size_t)i * FIRE_K_FIELDS;
        const double norm = row[FIRE_K_NORM];

        if (piece->plan->kind != FIRE_PLAN_ANALYZE && norm < piece->plan->min_norm) {
            skip(piece, row, piece->slots[i].result);
            continue;
        }
        if (norm == 0) { /* no direction: rare, and the CPU knows what to say of it */
            to_cpu(piece, i);
            continue;
        }
        switch (fate_of(piece, piece->recipe, row)) {
        case FATE_DONE:
            end_matrix(piece, i, row, gpu_out_weights(piece->slot, padded) + i * elements);
            break;
        case FATE_CONTINUE:
            index[going_on++] = i;
            *dfi = fmax(*dfi, iteration_dfi(piece->recipe, row));
            break;
        case FATE_CPU: to_cpu(piece, i); break;
        }
    }
    return going_on;
}

/* `*written`: results of the piece have been given out. */
static enum fire_status run_piece(struct piece *piece, bool *written)
{
    const uint32_t padded = gpu_rounded(piece->recipe, piece->count);
    const struct gpu_segment segment = { .recipe = piece->recipe,
                                         .digest = piece->plan->digest,
                                         .count = padded };
    enum fire_status status;
    uint32_t going_on;
    double dfi = 0;

    stage(piece, padded);
    piece->start_ms = milliseconds();
    status = run_segment(piece, &segment);
    if (status != FIRE_OK)
        return status;
    piece->each_ms = (milliseconds() - piece->start_ms) / piece->count;
    *written = true;
    going_on = sort_out(piece, padded, &dfi);
    if (going_on == 0)
        return FIRE_OK;
    status = run_stragglers(piece, padded, going_on, dfi);
    if (status != FIRE_OK) { /* their weights are as they were */
        for (uint32_t i = 0; i < going_on; i++)
            to_cpu(piece, gpu_in_index(piece->slot)[i]);
    }
    return status;
}

/* --- batches --------------------------------------------------------------------------------- */

static enum fire_status run_on_cpu(struct fire_device *device, const struct fire_batch *batch,
                                   struct fire_slot *slots, uint32_t count)
{
    struct fire_batch rest = {
        .plan = batch->plan, .slots = slots, .slot_count = count, .urgent = batch->urgent
    };
    const enum fire_status status = device->cpu->submit(device->cpu_device, &rest);

    return status == FIRE_OK ? device->cpu->wait(device->cpu_device, &rest) : status;
}

/* After a failure: is the device still there? A failure that does not come back was of one call. */
static bool recovers(struct gpu_slot *slot)
{
    struct fire_device *device = slot->device;
    bool alive;

    (void)cudaGetLastError();
    alive = cudaStreamSynchronize(slot->stream) == cudaSuccess && cudaGetLastError() == cudaSuccess;
    gpu_forget_graphs(slot);
    if (alive)
        return true;
    pthread_mutex_lock(&device->lock);
    device->dead = true;
    pthread_mutex_unlock(&device->lock);
    return false;
}

static bool is_dead(struct fire_device *device)
{
    bool dead;

    pthread_mutex_lock(&device->lock);
    dead = device->dead;
    pthread_mutex_unlock(&device->lock);
    return dead;
}

/* The batch piece by piece; `rest` collects what the CPU must do. FIRE_DEVICE_LOST and
 * FIRE_NO_MEMORY: nothing was written. */
static enum fire_status run_pieces(struct gpu_slot *slot, struct fire_batch *batch,
                                   const struct recipe *recipe, struct fire_slot *rest,
                                   uint32_t *rest_count)
{
    struct fire_device *device = slot->device;
    uint32_t most = gpu_capacity(device, recipe);
    bool written = false;
    uint32_t done = 0;

    while (done < batch->slot_count && most > 0 && !is_dead(device)) {
        struct piece piece = { .slot = slot,
                               .plan = batch->plan,
                               .recipe = recipe,
                               .slots = batch->slots + done,
                               .count = batch->slot_count - done < most ? batch->slot_count - done
                                                                        : most,
                               .rest = rest,
                               .rest_count = rest_count };
        bool piece_written = false;
        const enum fire_status status = run_piece(&piece, &piece_written);
        const bool alive = status == FIRE_OK || recovers(slot);

        written = written || piece_written;
        if (piece_written) {
            done += piece.count;
            continue;
        }
        if (!alive)
            break;
        if (status == FIRE_NO_MEMORY && piece.count > recipe->chunk) {
            most = piece.count / 2 / recipe->chunk * recipe->chunk;
            continue;
        }
        if (status == FIRE_NO_MEMORY && !written)
            return FIRE_NO_MEMORY;
        for (uint32_t i = 0; i < piece.count; i++)
            to_cpu(&piece, i);
        done += piece.count;
    }
    if (is_dead(device) && !written && *rest_count == 0)
        return FIRE_DEVICE_LOST;
    for (; done < batch->slot_count; done++)
        rest[(*rest_count)++] = batch->slots[done];
    return FIRE_OK;
}

void gpu_run(struct gpu_slot *slot, struct fire_batch *batch)
{
    struct fire_device *device = slot->device;
    struct fire_slot *rest;
    uint32_t rest_count = 0;
    struct recipe recipe;

    if (is_dead(device)) {
        batch->status = FIRE_DEVICE_LOST;
        return;
    }
    if (!recipe_takes(batch->plan)) {
        batch->status = run_on_cpu(device, batch, batch->slots, batch->slot_count);
        return;
    }
    rest = malloc((batch->slot_count ? batch->slot_count : 1) * sizeof(*rest));
    if (!rest) {
        batch->status = FIRE_NO_MEMORY;
        return;
    }
    recipe_make(&recipe, batch->plan, device->precision);
    batch->status = run_pieces(slot, batch, &recipe, rest, &rest_count);
    if (batch->status == FIRE_OK && rest_count > 0)
        batch->status = run_on_cpu(device, batch, rest, rest_count);
    free(rest);
}
