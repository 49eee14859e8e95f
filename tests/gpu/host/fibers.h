/* fibers: as many stacks as a block has threads, and a switch between them. */
#ifndef FIRE_FIBERS_H
#define FIRE_FIBERS_H

#include <cstdint>

/* Runs `count` copies of `body`, each with its own stack, from barrier to barrier. `select` makes a
 * fiber the current one before it goes on. NULL, or what went wrong. */
const char *fibers_run(uint32_t count, void (*body)(void), void (*select)(uint32_t index));

/* Called by a fiber: waits until all others have called it. */
void fibers_barrier(void);

#endif
