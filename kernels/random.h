/* random: a small seeded generator whose numbers are the same on every machine. */
#ifndef FIRE_RANDOM_H
#define FIRE_RANDOM_H

#include <stdint.h>

struct fire_random {
    uint64_t state[4];
    double spare; /* second half of the last normal pair */
    int has_spare;
};

void fire_random_init(struct fire_random *random, uint64_t seed);
uint64_t fire_random_u64(struct fire_random *random);
double fire_random_uniform(struct fire_random *random); /* [0, 1) */
double fire_random_normal(struct fire_random *random);  /* mean 0, deviation 1 */

#endif
