/* scale_body: the loops of scale.c, compiled for each instruction set. Before including it define
 * SCALE_RUN and SCALE_MEASURE, the names of its two functions, and SCALE_WIDEN, which makes four
 * f64 of four f32. No multiplication is contracted with an addition (see CMakeLists.txt), so that
 * all of them give the same bits. */
#include <string.h>

#include "scale.h"
#include "scale_internal.h"

#define VECTOR        4u
#define VECTORS       (FIRE_SCALE_LANES / VECTOR)
#define EXPONENT_BITS 0x7f800000u

typedef float narrow __attribute__((vector_size(VECTOR * sizeof(float))));
typedef double wide __attribute__((vector_size(VECTOR * sizeof(double))));

enum purpose { MEASURE, SCALE };

static inline void add_one(struct fire_scale_sums *sums, char *number, float factor,
                           enum purpose purpose)
{
    const uint64_t lane = sums->count++ % FIRE_SCALE_LANES;
    float x, y;
    double change;

    memcpy(&x, number, sizeof(x));
    sums->square[lane] += (double)x * (double)x;
    if (purpose == MEASURE)
        return;
    y = x * factor;
    memcpy(number, &y, sizeof(y));
    change = (double)y - (double)x;
    sums->change[lane] += change * change;
}

static inline void add_many(struct fire_scale_sums *sums, char *numbers, size_t count, float factor,
                            enum purpose purpose)
{
    wide square[VECTORS], change[VECTORS];
    size_t i = 0, first;

    for (; sums->count % FIRE_SCALE_LANES != 0 && i < count; i++)
        add_one(sums, numbers + i * 4, factor, purpose);
    memcpy(square, sums->square, sizeof(square));
    memcpy(change, sums->change, sizeof(change));
    for (first = i; i + FIRE_SCALE_LANES <= count; i += FIRE_SCALE_LANES) {
#pragma GCC unroll 4
        for (uint32_t v = 0; v < VECTORS; v++) {
            narrow x, y;
            wide was, by;

            memcpy(&x, numbers + (i + v * VECTOR) * 4, sizeof(x));
            was = SCALE_WIDEN(x);
            square[v] += was * was;
            if (purpose == MEASURE)
                continue;
            y = x * factor;
            memcpy(numbers + (i + v * VECTOR) * 4, &y, sizeof(y));
            by = SCALE_WIDEN(y) - was;
            change[v] += by * by;
        }
    }
    sums->count += i - first;
    memcpy(sums->square, square, sizeof(square));
    memcpy(sums->change, change, sizeof(change));
    for (; i < count; i++)
        add_one(sums, numbers + i * 4, factor, purpose);
}

/* All exponent bits set: the sum with one more carries into bit 31. */
static inline bool all_finite(const char *numbers, size_t count)
{
    uint32_t seen = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, numbers + i * 4, sizeof(bits));
        seen |= (bits & EXPONENT_BITS) + (EXPONENT_BITS & -EXPONENT_BITS);
    }
    return seen >> 31 == 0;
}

size_t SCALE_RUN(struct fire_scale_sums *sums, char *numbers, size_t count, float factor)
{
    for (size_t at = 0; at < count; at += FIRE_SCALE_BLOCK) {
        const size_t size = count - at < FIRE_SCALE_BLOCK ? count - at : FIRE_SCALE_BLOCK;

        if (!all_finite(numbers + at * 4, size))
            return at;
        add_many(sums, numbers + at * 4, size, factor, SCALE);
    }
    return count;
}

void SCALE_MEASURE(struct fire_scale_sums *sums, const char *numbers, size_t count)
{
    add_many(sums, (char *)numbers, count, 1, MEASURE);
}
