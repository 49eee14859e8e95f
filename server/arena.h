/* arena: the fixed memory that slots of matrices live in.
 *
 * One region, taken once; it never grows. A block is 64-byte aligned. A full arena says NULL at
 * once. Allocation and release take a short lock; any thread. */
#ifndef FIRED_ARENA_H
#define FIRED_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

struct arena;

/* `region` is `bytes` of memory that the caller keeps until arena_close(); NULL makes the arena map
 * its own, which becomes resident only as it is used. */
FIRE_NODISCARD enum fire_status arena_open(void *region, uint64_t bytes, struct arena **arena,
                                           struct fire_error *error);
void arena_close(struct arena *arena); /* NULL is allowed; every block has been released */

void *arena_alloc(struct arena *arena, uint64_t bytes); /* NULL: no room now */
void arena_free(struct arena *arena, void *block);      /* NULL is allowed */

uint64_t arena_bytes(const struct arena *arena);  /* room in all */
uint64_t arena_used(struct arena *arena);         /* in use, bookkeeping included */
uint64_t arena_largest_free(struct arena *arena); /* the largest block that would succeed */

#endif
