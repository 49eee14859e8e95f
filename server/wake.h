/* wake: any thread wakes the loop.
 *
 * libuv's own way, uv_async_t, makes the loop spin until the sender has come back from its system
 * call. Where the loop that was woken takes the sender's processor that is 25 us of every wake-up.
 *
 * Senders call wake_send(), from any thread, after they have put what they have where `run` looks
 * for it; `run` is called once in the loop for one or many of them, after all they had put there.
 * Everything else belongs to the loop's thread. */
#ifndef FIRE_WAKE_H
#define FIRE_WAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

#include "status.h"

struct wake {
    uv_poll_t poll;
    int fd;
    atomic_bool sent; /* and not yet seen by the loop */
    void (*run)(void *data);
    void (*released)(void *data);
    void *data;
};

/* On failure nothing is left in the loop, and the error says why. */
FIRE_NODISCARD enum fire_status wake_init(struct wake *wake, uv_loop_t *loop,
                                          void (*run)(void *data), void *data,
                                          struct fire_error *error);
void wake_send(struct wake *wake);

/* `run` is not called any more, and nobody may send; `released` is called from the loop later, and
 * until then *wake must stay. */
void wake_release(struct wake *wake, void (*released)(void *data));

#endif
