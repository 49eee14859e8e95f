/* state: what a new weight does to the optimizer's memory of the old one.
 *
 * A policy acts on one slot at a time but is safe for all of them together: both moments are zeroed
 * or neither is, so a small second moment never stands under a large first one.
 *
 * A slot of a slab is long x short, so transport is one formula for both aspects: with X the new
 * isometry and N the moment, both long x short, N <- N - X sym(X^T N). */
#include "state.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const slot_names[] = { "exp_avg", "exp_avg_sq", "momentum_buffer", "step" };
#define SLOT_COUNT (sizeof(slot_names) / sizeof(slot_names[0]))

enum fire_status fire_state_slot_parse(const char *name, enum fire_state_slot *slot,
                                       struct fire_error *error)
{
    const char *nearest;

    for (size_t i = 0; i < SLOT_COUNT; i++) {
        if (strcmp(slot_names[i], name) == 0) {
            *slot = (enum fire_state_slot)i;
            return FIRE_OK;
        }
    }
    nearest = fire_nearest_name(name, slot_names, SLOT_COUNT);
    return fire_fail(error, FIRE_NOT_FOUND, name,
                     "no policy knows the state slot '%.48s'; the slots are exp_avg, exp_avg_sq, "
                     "momentum_buffer and step%s%s%s",
                     name, nearest ? " (did you mean '" : "", nearest ? nearest : "",
                     nearest ? "'?)" : "");
}

const char *fire_state_policy_name(enum fire_state_policy policy)
{
    switch (policy) {
    case FIRE_STATE_KEEP: return "keep";
    case FIRE_STATE_ZERO: return "zero";
    case FIRE_STATE_RESET: return "reset";
    case FIRE_STATE_TRANSPORT: return "transport";
    }
    return "unknown";
}

/* --- C += alpha A B --------------------------------------------------------------------------- */

#define DEPTH_BLOCK 128 /* rows of B that stay in L2 while all of C's rows use them, */
#define WIDTH_BLOCK 128 /* by so many columns: 128 KB */
#define DEPTH_STEP  4   /* rows of B added to a row of C at once: one store for four products */

struct product {
    size_t m, n, k;
    double alpha;
    const double *a; /* m x k, element (i, l) at a[i * a_row + l * a_col] */
    size_t a_row, a_col;
    const double *b; /* k x n, row-major */
    double *c;       /* m x n, row-major */
};

/* Rows [l0, l1) of B by columns [j0, j0 + width) of B and C. */
static inline __attribute__((always_inline)) void multiply_block(const struct product *product,
                                                                 size_t l0, size_t l1, size_t j0,
                                                                 size_t width)
{
    const size_t n = product->n;

    for (size_t i = 0; i < product->m; i++) {
        double *restrict c = product->c + i * n + j0;
        const double *a = product->a + i * product->a_row;
        size_t l = l0;

        for (; l + DEPTH_STEP <= l1; l += DEPTH_STEP) {
            const double *restrict b = product->b + l * n + j0;
            const double a0 = product->alpha * a[l * product->a_col];
            const double a1 = product->alpha * a[(l + 1) * product->a_col];
            const double a2 = product->alpha * a[(l + 2) * product->a_col];
            const double a3 = product->alpha * a[(l + 3) * product->a_col];

            for (size_t j = 0; j < width; j++)
                c[j] += a0 * b[j] + a1 * b[n + j] + a2 * b[2 * n + j] + a3 * b[3 * n + j];
        }
        for (; l < l1; l++) {
            const double *restrict b = product->b + l * n + j0;
            const double factor = product->alpha * a[l * product->a_col];

            for (size_t j = 0; j < width; j++)
                c[j] += factor * b[j];
        }
    }
}

static inline __attribute__((always_inline)) void multiply_blocks(const struct product *product)
{
    for (size_t l = 0; l < product->k; l += DEPTH_BLOCK) {
        const size_t l1 = l + DEPTH_BLOCK < product->k ? l + DEPTH_BLOCK : product->k;

        for (size_t j = 0; j < product->n; j += WIDTH_BLOCK) {
            if (j + WIDTH_BLOCK <= product->n)
                multiply_block(product, l, l1, j, WIDTH_BLOCK);
            else
                multiply_block(product, l, l1, j, product->n - j);
        }
    }
}

#if defined(__x86_64__)
/* The same loops, for cores that have wider registers. */
__attribute__((target("avx2,fma"))) static void multiply_avx2(const struct product *product)
{
    multiply_blocks(product);
}
#endif

static void multiply(const struct product *product)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        multiply_avx2(product);
        return;
    }
#endif
    multiply_blocks(product);
}

/* --- transport -------------------------------------------------------------------------------- */

/* Working memory for one matrix, sized for the largest of the tensor. */
struct transport {
    double *weights; /* long x short */
    double *moment;  /* long x short */
    double *inner;   /* short x short */
};

static void transport_release(struct transport *transport)
{
    free(transport->weights);
    free(transport->moment);
    free(transport->inner);
}

static enum fire_status transport_init(struct transport *transport, const struct fire_shape *shape,
                                       const struct fire_options *options, uint64_t view_count,
                                       struct fire_error *error)
{
    size_t area = 0, square = 0;

    for (uint64_t i = 0; i < view_count; i++) {
        struct fire_view view;
        size_t view_area, view_square;

        fire_view_at(shape, options, i, &view);
        view_area = (size_t)view.rows * view.cols;
        view_square = (size_t)fire_view_short(&view) * fire_view_short(&view);
        area = view_area > area ? view_area : area;
        square = view_square > square ? view_square : square;
    }
    transport->weights = malloc(area * sizeof(double));
    transport->moment = malloc(area * sizeof(double));
    transport->inner = malloc(square * sizeof(double));
    if (transport->weights && transport->moment && transport->inner)
        return FIRE_OK;
    transport_release(transport);
    return fire_fail_memory(error, (2 * area + square) * sizeof(double));
}

/* X <- X sqrt(r) / ||X||_F, through the largest entry so that no square over- or underflows. False
 * when X is zero. */
static bool normalize(double *x, size_t count, double r)
{
    double largest = 0.0, sum = 0.0, factor;

    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(x[i]));
    if (largest == 0.0)
        return false;
    for (size_t i = 0; i < count; i++) {
        x[i] /= largest;
        sum += x[i] * x[i];
    }
    factor = sqrt(r / sum);
    for (size_t i = 0; i < count; i++)
        x[i] *= factor;
    return true;
}

static void symmetrize(double *a, size_t r)
{
    for (size_t i = 0; i < r; i++) {
        for (size_t j = 0; j < i; j++) {
            const double mean = 0.5 * (a[i * r + j] + a[j * r + i]);

            a[i * r + j] = mean;
            a[j * r + i] = mean;
        }
    }
}

/* N <- N - X sym(X^T N). */
static void transport_matrix(struct transport *transport, size_t rows, size_t r)
{
    const struct product inner = {
        .m = r,
        .n = r,
        .k = rows,
        .alpha = 1.0,
        .a = transport->weights,
        .a_row = 1,
        .a_col = r,
        .b = transport->moment,
        .c = transport->inner,
    };
    const struct product outer = {
        .m = rows,
        .n = r,
        .k = r,
        .alpha = -1.0,
        .a = transport->weights,
        .a_row = r,
        .a_col = 1,
        .b = transport->inner,
        .c = transport->moment,
    };

    if (!normalize(transport->weights, rows * r, (double)r))
        return; /* at zero every direction is tangent */
    memset(transport->inner, 0, r * r * sizeof(double));
    multiply(&inner);
    symmetrize(transport->inner, r);
    multiply(&outer);
}

struct state_tensors {
    const struct fire_options *options;
    const struct fire_shape *shape;
    enum fire_dtype state_dtype, weights_dtype;
    void *state;
    const void *weights;
};

static enum fire_status transport_gather(const struct state_tensors *tensors,
                                         const struct fire_view *view, struct transport *transport,
                                         struct fire_error *error)
{
    uint64_t bad = 0;

    if (fire_view_gather(view, tensors->state, tensors->state_dtype, FIRE_F64, transport->moment,
                         &bad) != FIRE_OK)
        return fire_fail(error, FIRE_BAD_REQUEST, "state",
                         "the first moment has a NaN or Inf at element %" PRIu64
                         "; it cannot be transported, use the policy reset",
                         bad);
    if (fire_view_gather(view, tensors->weights, tensors->weights_dtype, FIRE_F64,
                         transport->weights, &bad) != FIRE_OK)
        return fire_fail(error, FIRE_BAD_REQUEST, "state",
                         "the new weights have a NaN or Inf at element %" PRIu64
                         "; nothing can be transported to them",
                         bad);
    return FIRE_OK;
}

/* Every matrix is read once before the first is written: a bad one leaves the state as it was. */
static enum fire_status transport_tensor(const struct state_tensors *tensors,
                                         struct fire_error *error)
{
    struct transport transport;
    uint64_t view_count;
    enum fire_status status = fire_view_count(tensors->shape, tensors->options, &view_count, error);

    if (status != FIRE_OK)
        return status;
    status = transport_init(&transport, tensors->shape, tensors->options, view_count, error);
    if (status != FIRE_OK)
        return status;
    for (uint64_t i = 0; i < 2 * view_count && status == FIRE_OK; i++) {
        struct fire_view view;

        fire_view_at(tensors->shape, tensors->options, i % view_count, &view);
        status = transport_gather(tensors, &view, &transport, error);
        if (status != FIRE_OK || i < view_count)
            continue;
        transport_matrix(&transport, fire_view_long(&view), fire_view_short(&view));
        fire_view_scatter(&view, transport.moment, FIRE_F64, tensors->state_dtype, tensors->state);
    }
    transport_release(&transport);
    return status;
}

/* --- policies --------------------------------------------------------------------------------- */

enum verb { VERB_KEEP, VERB_ZERO, VERB_TRANSPORT };

/* What each policy does to each slot; the columns are the slots' order. */
static const enum verb verbs[][SLOT_COUNT] = {
    /* clang-format off */
    [FIRE_STATE_KEEP]      = { VERB_KEEP,      VERB_KEEP, VERB_KEEP,      VERB_KEEP },
    [FIRE_STATE_ZERO]      = { VERB_ZERO,      VERB_ZERO, VERB_ZERO,      VERB_KEEP },
    [FIRE_STATE_RESET]     = { VERB_ZERO,      VERB_ZERO, VERB_ZERO,      VERB_ZERO },
    [FIRE_STATE_TRANSPORT] = { VERB_TRANSPORT, VERB_KEEP, VERB_TRANSPORT, VERB_KEEP },
    /* clang-format on */
};

static bool shape_equal(const struct fire_shape *a, const struct fire_shape *b)
{
    if (a->axes != b->axes)
        return false;
    for (uint32_t i = 0; i < a->axes; i++)
        if (a->size[i] != b->size[i])
            return false;
    return true;
}

enum fire_status fire_state_apply(const struct fire_options *options, enum fire_state_slot slot,
                                  const struct fire_shape *shape, enum fire_dtype dtype,
                                  void *state, const struct fire_shape *weights_shape,
                                  enum fire_dtype weights_dtype, const void *weights,
                                  struct fire_error *error)
{
    const struct state_tensors tensors = {
        .options = options,
        .shape = shape,
        .state_dtype = dtype,
        .weights_dtype = weights_dtype,
        .state = state,
        .weights = weights,
    };
    uint64_t elements;
    enum fire_status status = fire_shape_elements(shape, &elements, error);

    FIRE_ASSERT((size_t)slot < SLOT_COUNT);
    FIRE_ASSERT((size_t)options->state_policy < sizeof(verbs) / sizeof(verbs[0]));
    if (status != FIRE_OK)
        return status;
    if (slot != FIRE_SLOT_STEP && !shape_equal(shape, weights_shape))
        return fire_fail(error, FIRE_BAD_REQUEST, slot_names[slot],
                         "%s has another shape than its parameter; send the state as the "
                         "optimizer keeps it",
                         slot_names[slot]);
    switch (verbs[options->state_policy][slot]) {
    case VERB_KEEP: return FIRE_OK;
    case VERB_ZERO: memset(state, 0, (size_t)elements * fire_dtype_bytes(dtype)); return FIRE_OK;
    case VERB_TRANSPORT: return transport_tensor(&tensors, error);
    }
    return FIRE_OK;
}
