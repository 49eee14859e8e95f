/* firectl_client: who computes for the file commands, and waiting for it. */
#include <malloc.h>
#include <stdbool.h>
#include <string.h>

#include "firectl.h"

#define WAIT_S            0.1 /* how often a wait looks for signals and the deadline */
#define DEADLINE_EXCEEDED 4   /* gRPC's code */

static bool is_late(const struct firectl_limit *limit)
{
    const double deadline_s = limit->args->deadline_s;

    return deadline_s > 0.0 && firectl_now_s() - limit->started_s > deadline_s;
}

static bool is_over(const struct firectl_limit *limit)
{
    return firectl_signal() || is_late(limit);
}

static bool on_stop(void *data)
{
    return is_over(data);
}

enum fire_status firectl_client_open(const struct firectl_limit *limit, struct fire_client **client,
                                     struct fire_error *error)
{
    const struct firectl_args *args = limit->args;
    const struct fire_local_settings local = { .threads = args->threads,
                                               .path = args->path,
                                               .ahead = true,
                                               .stop = on_stop,
                                               .stop_data = (void *)limit };
    struct fire_remote_settings remote = args->remote;

    /* Tensors come and go: their memory is kept, as fresh pages are slow. */
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (!remote.address)
        return fire_client_open_local(&local, client, error);
    remote.deadline_s = args->deadline_s; /* of each set; the command's own is looked at besides */
    return fire_client_open_remote(&remote, client, error);
}

enum fire_status firectl_limit_check(const struct firectl_limit *limit, const char *then,
                                     struct fire_error *error)
{
    if (firectl_signal())
        return fire_fail(error, FIRE_CANCELLED, NULL, "interrupted by signal %d%s",
                         firectl_signal(), then);
    if (is_late(limit))
        return fire_fail(error, FIRE_TOO_LATE, "deadline", "the deadline of %g s has passed%s",
                         limit->args->deadline_s, then);
    return FIRE_OK;
}

void firectl_client_wait(struct fire_client *client, const struct fire_set *set,
                         const struct firectl_limit *limit)
{
    bool cancelled = false;

    while (!fire_client_wait(client, set, WAIT_S)) {
        if (!cancelled && is_over(limit)) {
            fire_client_cancel(client);
            cancelled = true;
        }
    }
}

enum firectl_exit firectl_refused(int code)
{
    return code > 0 ? (enum firectl_exit)(FIRECTL_REFUSED + code) : FIRECTL_FAILED;
}

enum firectl_exit firectl_failed(const struct firectl_args *args, int code,
                                 const struct fire_error *error)
{
    const bool late = args->remote.address && error->status == FIRE_TOO_LATE;

    return firectl_refused(late ? DEADLINE_EXCEEDED : code);
}

bool firectl_is_fatal(enum fire_status status)
{
    switch (status) {
    case FIRE_OK:
    case FIRE_BAD_REQUEST:
    case FIRE_NOT_FOUND: return false;
    case FIRE_UNAUTHENTICATED:
    case FIRE_DENIED:
    case FIRE_BUSY:
    case FIRE_NO_MEMORY:
    case FIRE_CANCELLED:
    case FIRE_TOO_LATE:
    case FIRE_DRAINING:
    case FIRE_DEVICE_LOST:
    case FIRE_IO: return true;
    }
    return true;
}

const char *firectl_refusal(const struct fire_set *set, const struct fire_tensor *tensor)
{
    if (tensor->error.status == FIRE_CANCELLED ||
        (firectl_is_fatal(set->status) && strcmp(tensor->error.message, set->error.message) == 0))
        return "not computed";
    return tensor->error.message;
}
