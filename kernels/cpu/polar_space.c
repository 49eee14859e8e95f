#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "amx_packed.h"
#include "lanczos.h"
#include "polar.h"
#include "statistics.h"

#define HUGE_PAGE_BYTES (2u << 20)
#define HUGE_FROM_BYTES (4u << 20)

void polar_space_release(struct polar_space *space)
{
    free(space->x);
    free(space->g);
    free(space->inverse);
    free(space->vectors);
    free(space->tiles);
    for (int i = 0; i < 3; i++)
        free(space->store[i]);
    memset(space, 0, sizeof(*space));
}

/* Large arrays come in huge pages where the system has them: their rows lie pages apart. Only whole
 * ones are asked for, so that the end of an array takes no more than it needs. */
static void *room(size_t bytes)
{
    const size_t unit = bytes >= HUGE_FROM_BYTES ? HUGE_PAGE_BYTES : 64;
    void *memory = aligned_alloc(unit, (bytes + unit - 1) / unit * unit);

    if (memory && unit == HUGE_PAGE_BYTES)
        (void)madvise(memory, bytes / unit * unit, MADV_HUGEPAGE);
    return memory;
}

enum fire_status polar_space_prepare(struct polar_space *space, const struct fire_plan *plan,
                                     enum fire_dtype dtype)
{
    const size_t ld = dense_stride(plan->cols);
    const size_t x_bytes = plan->rows * ld * fire_dtype_bytes(dtype);
    const size_t g_bytes = plan->cols * ld * sizeof(double);

    space->rows = plan->rows;
    space->cols = plan->cols;
    space->ld = ld;
    if (x_bytes > space->x_bytes) {
        free(space->x);
        space->x_bytes = 0;
        space->x = room(x_bytes);
        if (!space->x)
            return FIRE_NO_MEMORY;
        space->x_bytes = x_bytes;
    }
    if (g_bytes > space->g_bytes) {
        free(space->g);
        free(space->inverse);
        free(space->vectors);
        space->g_bytes = 0;
        space->g = room(g_bytes);
        space->inverse = room(dense_inverse_space(plan->cols) * sizeof(double));
        space->vectors = room(lanczos_space(plan->cols) * sizeof(double));
        if (!space->g || !space->inverse || !space->vectors)
            return FIRE_NO_MEMORY;
        space->g_bytes = g_bytes;
    }
    return FIRE_OK;
}

enum fire_status polar_space_gram(struct polar_space *space, enum fire_dtype dtype)
{
    const size_t bytes = space->cols * space->ld * fire_dtype_bytes(dtype);

    if (bytes > space->store_bytes) {
        for (int i = 0; i < 3; i++) {
            free(space->store[i]);
            space->store[i] = NULL;
        }
        space->store_bytes = bytes;
    }
    for (int i = 0; i < 3; i++) {
        const bool in_g = i == 0 && dtype == FIRE_F32;

        if (!space->store[i] && !in_g)
            space->store[i] = room(space->store_bytes);
        if (!space->store[i] && !in_g)
            return FIRE_NO_MEMORY;
        space->gram[i] = in_g ? (char *)space->g + bytes : space->store[i];
    }
    return FIRE_OK;
}

size_t polar_space_tiles_bytes(uint32_t rows, uint32_t cols)
{
    return packed_bytes(rows, cols) + 2 * packed_bytes(cols, cols);
}

enum fire_status polar_space_tiles(struct polar_space *space)
{
    const size_t bytes = polar_space_tiles_bytes(space->rows, space->cols);

    if (bytes <= space->tiles_bytes)
        return FIRE_OK;
    free(space->tiles);
    space->tiles_bytes = 0;
    space->tiles = room(bytes);
    if (!space->tiles)
        return FIRE_NO_MEMORY;
    space->tiles_bytes = bytes;
    return FIRE_OK;
}

#define LOAD_ROWS 64u

static void load_task(void *data, uint32_t index, uint32_t worker)
{
    const struct polar *polar = data;
    const struct polar_space *space = polar->space;
    const uint32_t end =
        (index + 1) * LOAD_ROWS < space->rows ? (index + 1) * LOAD_ROWS : space->rows;
    const float factor = (float)polar->prescale;
    /* The factor of denormal or huge weights is no f32, though what it makes of them is. */
    const bool narrow = isnormal(factor);

    (void)worker;
    for (uint32_t i = index * LOAD_ROWS; i < end; i++) {
        const size_t from = (size_t)i * space->cols, to = i * space->ld;

        if (polar->dtype == FIRE_F32) {
            const float *w = (const float *)polar->weights + from;
            float *x = (float *)space->x + to;

            if (narrow) {
                for (uint32_t j = 0; j < space->cols; j++)
                    x[j] = w[j] * factor;
            } else {
                for (uint32_t j = 0; j < space->cols; j++)
                    x[j] = (float)((double)w[j] * polar->prescale);
            }
            memset(x + space->cols, 0, (space->ld - space->cols) * sizeof(x[0]));
        } else {
            double *x = (double *)space->x + to;

            if (polar->plan->compute == FIRE_F64) {
                for (uint32_t j = 0; j < space->cols; j++)
                    x[j] = ((const double *)polar->weights + from)[j] * polar->prescale;
            } else {
                for (uint32_t j = 0; j < space->cols; j++)
                    x[j] = (double)((const float *)polar->weights + from)[j] * polar->prescale;
            }
            memset(x + space->cols, 0, (space->ld - space->cols) * sizeof(x[0]));
        }
    }
}

enum fire_status polar_load(struct polar *polar, enum fire_dtype dtype)
{
    const enum fire_status status = polar_space_prepare(polar->space, polar->plan, dtype);

    if (status != FIRE_OK)
        return status;
    polar->dtype = dtype;
    polar->gram_valid = false;
    crew_run(polar->crew, (polar->space->rows + LOAD_ROWS - 1) / LOAD_ROWS, load_task, polar);
    return FIRE_OK;
}

void polar_gram(struct polar *polar)
{
    struct polar_space *space = polar->space;

    dense_gram(polar->crew, polar->dtype, false, space->x, space->ld, space->rows, space->cols,
               space->g, space->ld);
}

void polar_multiply(struct polar *polar, const void *m, enum fire_dtype m_dtype)
{
    struct polar_space *space = polar->space;
    const struct dense_rows rows = {
        .x = space->x,
        .x_dtype = polar->dtype,
        .y = space->x,
        .y_dtype = polar->dtype,
        .ld = space->ld,
        .rows = space->rows,
        .cols = space->cols,
        .m = m,
        .dtype = m_dtype,
    };

    dense_multiply_rows(polar->crew, &rows);
    polar->gram_valid = false;
}

void polar_apply(struct polar *polar, enum fire_dtype m_dtype)
{
    struct polar_space *space = polar->space;

    dense_mirror(polar->crew, m_dtype, space->g, space->ld, space->cols);
    polar_multiply(polar, space->g, m_dtype);
}

void polar_narrow(struct polar *polar)
{
    polar->crew->engine->narrow(polar->space->x, polar->space->rows * polar->space->ld);
    polar->dtype = FIRE_F32;
    polar->gram_valid = false;
}

void polar_note(struct polar *polar, const char *step)
{
    const size_t used = strlen(polar->method);

    if (used + strlen(step) + 2 > sizeof(polar->method))
        return;
    if (used)
        strcat(polar->method, " ");
    strcat(polar->method, step);
}

struct fire_gram polar_gram_view(const struct polar *polar, const void *g, enum fire_dtype dtype,
                                 double factor)
{
    return (struct fire_gram){
        .data = g,
        .dtype = dtype,
        .stride = polar->space->ld,
        .size = polar->space->cols,
        .factor = factor,
        .multiply = dtype == FIRE_F64 ? crew_ops(polar->crew, dtype)->symmetric_vector : NULL,
    };
}

void polar_note_before(struct polar *polar, const void *g, enum fire_dtype dtype)
{
    const struct fire_plan *plan = polar->plan;
    const struct fire_gram gram =
        polar_gram_view(polar, g, dtype, 1 / (polar->prescale * polar->prescale));

    if (polar->before_known || !(plan->statistics & FIRE_STATISTICS_BASIC))
        return;
    polar->before_known = true;
    fire_moment_from_gram(&gram, plan->out, plan->in, &polar->before);
    (void)fire_moment_spectral_norm(&gram, &polar->before);
}
