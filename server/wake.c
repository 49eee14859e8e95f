#include "wake.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct wake *wake = poll->data;
    eventfd_t count;

    FIRE_ASSERT(status == 0); /* only what cannot be read any more fails */
    (void)events;
    /* In this order: what is put there after `run` has looked is told by a new event. */
    (void)eventfd_read(wake->fd, &count);
    if (atomic_exchange(&wake->sent, false))
        wake->run(wake->data);
}

enum fire_status wake_init(struct wake *wake, uv_loop_t *loop, void (*run)(void *data), void *data,
                           struct fire_error *error)
{
    int result;

    wake->run = run;
    wake->data = data;
    atomic_init(&wake->sent, false);
    wake->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake->fd < 0)
        return fire_fail(error, FIRE_IO, NULL,
                         "cannot make a wake-up for the event loop: %s; allow the daemon more open "
                         "files (ulimit -n)",
                         strerror(errno));
    result = uv_poll_init(loop, &wake->poll, wake->fd);
    if (result == 0) {
        wake->poll.data = wake;
        result = uv_poll_start(&wake->poll, UV_READABLE, on_poll);
        FIRE_ASSERT(result == 0);
        return FIRE_OK;
    }
    close(wake->fd);
    return fire_fail(error, FIRE_IO, NULL, "cannot watch a wake-up of the event loop: %s",
                     uv_strerror(result));
}

void wake_send(struct wake *wake)
{
    if (!atomic_exchange(&wake->sent, true))
        (void)eventfd_write(wake->fd, 1); /* full after 2^64 - 2 of them */
}

static void on_closed(uv_handle_t *handle)
{
    struct wake *wake = handle->data;

    close(wake->fd);
    wake->released(wake->data);
}

void wake_release(struct wake *wake, void (*released)(void *data))
{
    wake->released = released;
    uv_close((uv_handle_t *)&wake->poll, on_closed);
}
