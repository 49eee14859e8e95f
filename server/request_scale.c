/* request_scale: tensors that are scaled where they lie, in the message, and go back from there.
 *
 * A plan without steps multiplies every number by one factor (scale.h). Copying such a tensor into
 * slots and waiting for the device would cost several times what it asks for, so whoever feeds
 * scales it instead: it has no jobs. The sums of its chunks lie in the block, where its slots would
 * have been.
 *
 * A tensor is lent only when its factor is known before the first byte is changed; from then on
 * there is no way back but an error of the call. */
#include <math.h>
#include <string.h>

#include "request.h"
#include "request_parts.h"
#include "scale.h"

#define LENT_BYTES_MIN (256u << 10) /* a matrix; smaller ones are better in a batch */
#define ELEMENT_BYTES  4u

struct chunk_sums {
    double square;
    double change;
};

_Static_assert(LENT_BYTES_MIN / 4 / FIRE_SCALE_ROWS * sizeof(struct chunk_sums) < LENT_BYTES_MIN,
               "the sums of a matrix fit where it would have been");

static const struct fire_plan *plan_of(const struct request_tensor *tensor)
{
    return &tensor->work.parts[0].plan;
}

static uint64_t chunk_elements(const struct request_tensor *tensor)
{
    return (uint64_t)FIRE_SCALE_ROWS * plan_of(tensor)->cols;
}

static uint64_t chunk_count(const struct request_tensor *tensor)
{
    return (plan_of(tensor)->rows + FIRE_SCALE_ROWS - 1) / FIRE_SCALE_ROWS;
}

bool request_may_be_lent(const struct request_tensor *tensor)
{
    return tensor->role == REQUEST_WEIGHT && tensor->error.status == FIRE_OK && !tensor->analyze &&
           tensor->parts->verbatim && !tensor->companions && tensor->work.view_count == 1 &&
           fire_scale_takes(plan_of(tensor)) &&
           fire_plan_slot_bytes(plan_of(tensor)) >= LENT_BYTES_MIN;
}

bool request_lend(struct request_tensor *tensor, const float *sample, size_t count)
{
    struct fire_scale_sums sums = { 0 };

    FIRE_ASSERT(request_may_be_lent(tensor));
    fire_scale_measure(&sums, sample, count);
    FIRE_ASSERT(!tensor->parts->laid_out);
    tensor->parts->lent =
        fire_scale_factor(plan_of(tensor), sqrt(fire_scale_square(&sums)), &tensor->parts->factor);
    return tensor->parts->lent;
}

bool request_is_lent(const struct request_tensor *tensor)
{
    return tensor->parts->lent;
}

uint64_t request_scale_begin(const struct request_tensor *tensor, uint32_t index, uint32_t count)
{
    return chunk_count(tensor) * index / count * chunk_elements(tensor) * ELEMENT_BYTES;
}

/* Scales numbers that lie together; a chunk that is complete is noted. */
static enum fire_status scale_numbers(struct request_tensor *tensor, struct request_run *run,
                                      uint8_t *numbers, uint64_t count, struct fire_error *error)
{
    const uint64_t chunk = chunk_elements(tensor), end = tensor->total_bytes / ELEMENT_BYTES;
    struct chunk_sums *sums = (struct chunk_sums *)(void *)tensor->parts->weights;

    while (count > 0) {
        const uint64_t first = run->at / ELEMENT_BYTES;
        const uint64_t begin = first / chunk * chunk;
        const uint64_t left = (end - begin < chunk ? end : begin + chunk) - first;
        const uint64_t part = count < left ? count : left;
        const size_t done = fire_scale_run(&run->sums, numbers, part, tensor->parts->factor);

        if (done < part)
            return request_not_finite(tensor, fire_dtype_element(FIRE_F32, numbers, done),
                                      first + done, error);
        if (part == left) {
            sums[begin / chunk] =
                (struct chunk_sums){ fire_scale_square(&run->sums), fire_scale_change(&run->sums) };
            run->sums = (struct fire_scale_sums){ 0 };
        }
        run->at += part * ELEMENT_BYTES;
        numbers += part * ELEMENT_BYTES;
        count -= part;
    }
    return FIRE_OK;
}

/* A number that lies in two pieces, or more: scaled in `carry` once it is whole, then put back. The
 * bytes of it that this piece has are taken from its front. */
static enum fire_status scale_carried(struct request_tensor *tensor, struct request_run *run,
                                      uint8_t **bytes, size_t *count, struct fire_error *error)
{
    enum fire_status status;

    while (run->carry_bytes<ELEMENT_BYTES && * count> 0) {
        run->carry_from[run->carry_bytes] = *bytes;
        run->carry[run->carry_bytes++] = *(*bytes)++;
        --*count;
    }
    if (run->carry_bytes < ELEMENT_BYTES)
        return FIRE_OK;
    status = scale_numbers(tensor, run, run->carry, 1, error);
    for (uint32_t i = 0; i < ELEMENT_BYTES; i++)
        *run->carry_from[i] = run->carry[i];
    run->carry_bytes = 0;
    return status;
}

enum fire_status request_scale_run(struct request_tensor *tensor, struct request_run *run,
                                   uint8_t *bytes, size_t count, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;
    size_t whole;

    if (run->carry_bytes > 0)
        status = scale_carried(tensor, run, &bytes, &count, error);
    whole = count / ELEMENT_BYTES;
    if (status == FIRE_OK)
        status = scale_numbers(tensor, run, bytes, whole, error);
    bytes += whole * ELEMENT_BYTES;
    count -= whole * ELEMENT_BYTES;
    if (status == FIRE_OK && count > 0)
        status = scale_carried(tensor, run, &bytes, &count, error);
    return status;
}

void request_scale_end(struct request_tensor *tensor)
{
    const struct chunk_sums *sums = (const struct chunk_sums *)(void *)tensor->parts->weights;
    struct fire_result *result = &tensor->parts->results[0];
    double square = 0, change = 0;

    for (uint64_t i = 0; i < chunk_count(tensor); i++) {
        square += sums[i].square;
        change += sums[i].change;
    }
    result->path = "host";
    result->matrices = 1;
    fire_scale_result(plan_of(tensor), sqrt(square), change, result);
}
