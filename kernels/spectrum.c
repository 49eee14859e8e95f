#include "spectrum.h"

#include <stdlib.h>

/* A value and how many it stands for. */
struct weighted {
    double value;
    double weight;
};

static uint32_t kept_of(uint64_t total)
{
    return total < FIRE_SPECTRUM_MAX ? (uint32_t)total : FIRE_SPECTRUM_MAX;
}

/* The place, from 0, of choice `k` of `count` among `total` values: the nearest to an even spread
 * from the first to the last. */
static uint64_t place_of(uint32_t k, uint32_t count, uint64_t total)
{
    return count < 2 ? 0 : (2 * k * (total - 1) + count - 1) / (2 * (uint64_t)(count - 1));
}

void fire_spectrum_choose(const double *values, uint64_t total, struct fire_spectrum *spectrum)
{
    FIRE_ASSERT(total > 0);
    spectrum->total = total;
    spectrum->count = kept_of(total);
    for (uint32_t k = 0; k < spectrum->count; k++)
        spectrum->values[k] = values[place_of(k, spectrum->count, total)];
}

static int compare_descending(const void *left, const void *right)
{
    const double a = ((const struct weighted *)left)->value;
    const double b = ((const struct weighted *)right)->value;

    return (a < b) - (a > b);
}

/* Walks along the weights: choice k is the value that stands at its place. */
static void choose_weighted(const struct weighted *list, size_t count, struct fire_spectrum *sum)
{
    double passed = list[0].weight;
    size_t at = 0;

    for (uint32_t k = 0; k < sum->count; k++) {
        /* Half a place in, so that sums of weights which are no whole numbers do not matter. */
        const double place = (double)place_of(k, sum->count, sum->total) + 0.5;

        while (passed < place && at + 1 < count)
            passed += list[++at].weight;
        sum->values[k] = list[at].value;
    }
}

enum fire_status fire_spectrum_merge(const struct fire_spectrum *const *parts, size_t part_count,
                                     struct fire_spectrum *sum)
{
    struct weighted *list;
    size_t count = 0;
    size_t used = 0;

    sum->total = 0;
    sum->count = 0;
    for (size_t i = 0; i < part_count; i++) {
        if (parts[i]->count == 0)
            return FIRE_OK;
        count += parts[i]->count;
    }
    if (count == 0)
        return FIRE_OK;
    list = malloc(count * sizeof(*list));
    if (!list)
        return FIRE_NO_MEMORY;
    for (size_t i = 0; i < part_count; i++) {
        sum->total += parts[i]->total;
        for (uint32_t k = 0; k < parts[i]->count; k++)
            list[used++] =
                (struct weighted){ parts[i]->values[k], (double)parts[i]->total / parts[i]->count };
    }
    qsort(list, count, sizeof(*list), compare_descending);
    sum->count = kept_of(sum->total);
    choose_weighted(list, count, sum);
    free(list);
    return FIRE_OK;
}
