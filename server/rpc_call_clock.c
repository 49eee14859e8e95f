/* rpc_call_clock: when a call must be looked at again.
 *
 * One timer serves the deadline, both idle clocks and the wait for room. It is armed for the
 * earliest of them and is never moved later: a clock that was put off is seen when it fires, and it
 * is armed again. */
#include "rpc_call_internal.h"

/* A request without tensors follows its headers at once. */
#define SMALL_IDLE_MS          5000u
#define SMALL_IDLE_DRAINING_MS 250u

/* --- the timer --- */

static uint64_t timer_wanted(const struct rpc_call *call)
{
    const uint64_t deadline = call->expired ? CLOCK_NEVER_NS : call->deadline_ns;

    return earliest(earliest(deadline, call->hold_due_ns),
                    earliest(call->receive_due_ns, call->send_due_ns));
}

void call_timer_arm(struct rpc_call *call)
{
    const uint64_t at = timer_wanted(call);

    if (!call->timer_open || at >= call->timer_at_ns)
        return;

    /* libuv counts whole milliseconds of the same clock, and from a time that it read when this
     * turn of the loop began. */
    uv_update_time(&call->server->loop);
    const uint64_t due_ms = at / CLOCK_NS_PER_MS + (at % CLOCK_NS_PER_MS != 0);
    const uint64_t now_ms = uv_now(&call->server->loop);

    call->timer_at_ns = at;
    uv_timer_start(&call->timer, call_on_timer, due_ms > now_ms ? due_ms - now_ms : 0, 0);
}

uint64_t call_idle_due_ns(const struct rpc_call *call)
{
    const uint64_t idle_ns = call->server->config.idle_ms_max * CLOCK_NS_PER_MS;

    return idle_ns == 0 ? CLOCK_NEVER_NS : clock_now_ns() + idle_ns;
}

/* --- what the caller owes us --- */

uint64_t call_small_due_ns(const struct rpc_call *call)
{
    const uint32_t idle_ms =
        rpc_server_draining(call->rpc) ? SMALL_IDLE_DRAINING_MS : SMALL_IDLE_MS;

    return earliest(call_idle_due_ns(call), clock_now_ns() + idle_ms * CLOCK_NS_PER_MS);
}

void call_receive_clock_start(struct rpc_call *call)
{
    call->receive_due_ns =
        kind_is_small(call->method->kind) ? call_small_due_ns(call) : call_idle_due_ns(call);
    call->asked_ns = clock_now_ns();
    call_timer_arm(call);
}

void call_receive_clock_stop(struct rpc_call *call)
{
    if (call->receive_due_ns != CLOCK_NEVER_NS && call->uploading)
        call->upload_ns += clock_now_ns() - call->asked_ns;
    call->receive_due_ns = CLOCK_NEVER_NS;
}

/* Whether the caller has taken idle_ms_max in all and sent less than the floor in that time. */
bool call_upload_is_slow(struct rpc_call *call, uint64_t bytes)
{
    const struct config *config = &call->server->config;
    const double seconds = (double)call->upload_ns / CLOCK_NS_PER_S;

    call->upload_bytes += bytes;
    if (!call->uploading || config->idle_ms_max == 0 ||
        call->upload_ns < config->idle_ms_max * CLOCK_NS_PER_MS)
        return false;
    if ((double)call->upload_bytes < seconds * (double)config->upload_bytes_per_s_min)
        return true;
    call->upload_ns = 0;
    call->upload_bytes = 0;
    return false;
}

void rpc_call_uploading(struct rpc_call *call, bool open)
{
    if (call->uploading == open)
        return;
    call->uploading = open;
    call->upload_ns = 0;
    call->upload_bytes = 0;
    call->asked_ns = clock_now_ns();
}
