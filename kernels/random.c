/* xoshiro256** seeded by splitmix64; normals by the polar method. */
#include "random.h"

#include <math.h>

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void fire_random_init(struct fire_random *random, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        random->state[i] = splitmix(&seed);
    random->has_spare = 0;
    random->spare = 0.0;
}

static uint64_t rotate(uint64_t x, int by)
{
    return (x << by) | (x >> (64 - by));
}

uint64_t fire_random_u64(struct fire_random *random)
{
    uint64_t *s = random->state;
    const uint64_t result = rotate(s[1] * 5, 7) * 9;
    const uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

double fire_random_uniform(struct fire_random *random)
{
    return (double)(fire_random_u64(random) >> 11) * 0x1p-53;
}

double fire_random_normal(struct fire_random *random)
{
    double u, v, s;

    if (random->has_spare) {
        random->has_spare = 0;
        return random->spare;
    }
    do {
        u = 2.0 * fire_random_uniform(random) - 1.0;
        v = 2.0 * fire_random_uniform(random) - 1.0;
        s = u * u + v * v;
    } while (s >= 1.0 || s == 0.0);
    s = sqrt(-2.0 * log(s) / s);
    random->spare = v * s;
    random->has_spare = 1;
    return u * s;
}
