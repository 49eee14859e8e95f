/* bucket: jobs of one key, waiting to become one batch.
 *
 * The key is the plan: operation, oriented shape, dtype of compute, digest. Jobs wait in one list a
 * tenant and class, so that the scheduler can deal slots out fairly. Loop thread. */
#ifndef FIRED_BUCKET_H
#define FIRED_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "job.h"

struct bucket;
struct buckets; /* all of them, found by key */

/* At most `jobs_max` jobs will wait. */
FIRE_NODISCARD enum fire_status buckets_open(uint32_t buckets_max, uint32_t jobs_max,
                                             struct buckets **buckets);
void buckets_close(struct buckets *buckets); /* NULL is allowed */

/* The bucket for a plan, made if new, with a copy of the plan. The one that has been empty longest
 * is given a new key when the table is full; FIRE_BUSY when none is empty. */
FIRE_NODISCARD enum fire_status buckets_find(struct buckets *buckets, const struct fire_plan *plan,
                                             struct bucket **bucket, struct fire_error *error);

struct bucket_info {
    char key[64]; /* "f32 768x768", "analyze bf16 64x32": dtype of the weights, out x in */
    uint32_t waiting;
    uint32_t efficient_size;
    uint64_t oldest_ns; /* submitted_ns of the oldest job; CLOCK_NEVER_NS: none */
    uint64_t batches;
    uint64_t matrices;
};
void bucket_describe(const struct bucket *bucket, struct bucket_info *info);

#endif
