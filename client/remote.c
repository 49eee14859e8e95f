/* remote: life of the client of a daemon, the pump thread, and waiting for sets. */
#include "remote.h"

#include <errno.h>
#include <grpc/support/time.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define IDLE_S_MAX     0.1 /* how often the pump looks for a cancelled set that waits */
#define DEADLINE_S_MAX 1e7 /* a deadline beyond is cut: gRPC's clock overflows */
#define RUN_BYTES_MAX  128u

/* The process in which clients use gRPC, which does not survive fork(), and how many do, in the low
 * half. Once the last is closed all threads of gRPC are gone and either side of a fork may begin
 * anew. */
static _Atomic uint64_t grpc_users;

double remote_now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void remote_set_free(struct remote_set *set)
{
    if (!set)
        return;
    remote_items_restart(set); /* lets go of answers that were kept */
    free(set->groups);
    free(set->items);
    pthread_mutex_destroy(&set->lock);
    free(set);
}

/* The first refusal, in the order of the tensors, is the set's. */
static void conclude(struct remote_set *set)
{
    struct fire_set *given = set->set;

    for (size_t i = 0; i < given->count; i++) {
        if (given->tensors[i].error.status == FIRE_OK)
            continue;
        given->status = given->tensors[i].error.status;
        given->error = given->tensors[i].error;
        given->code = set->groups[i].code;
        return;
    }
}

static void unlink_set(struct remote *remote, const struct remote_set *set)
{
    struct remote_set **link = &remote->sets;

    while (*link != set)
        link = &(*link)->next;
    *link = set->next;
}

void remote_set_finish(struct remote_set *set)
{
    struct remote *remote = set->remote;
    struct fire_set *given = set->set;

    conclude(set);
    pthread_mutex_unlock(&set->lock);
    pthread_mutex_lock(&remote->lock);
    if (given->status == FIRE_OK && remote->retry_tokens < REMOTE_TOKENS_MAX)
        remote->retry_tokens += REMOTE_TOKENS_EARNED;
    given->internal = NULL;
    if (given->done) {
        pthread_mutex_unlock(&remote->lock);
        given->done(given, given->data);
        pthread_mutex_lock(&remote->lock);
    }
    unlink_set(remote, set);
    pthread_cond_broadcast(&remote->changed);
    pthread_mutex_unlock(&remote->lock);
    remote_set_free(set);
}

/* --- the pump --------------------------------------------------------------------------------- */

/* Runs sets whose time has come, and says when the next one's does. Only the pump puts sets to
 * sleep and ends them, so a pointer stays good while the lock is not held. */
static double run_sleepers(struct remote *remote)
{
    double next_s = INFINITY;

    while (remote->idle_count > 0) {
        const double now_s = remote_now_s();
        struct remote_set *due = NULL;

        next_s = now_s + IDLE_S_MAX;
        pthread_mutex_lock(&remote->lock);
        for (struct remote_set *set = remote->sets; set && !due; set = set->next) {
            if (set->phase == REMOTE_RUNNING)
                continue;
            if (set->wake_s <= now_s || (set->phase == REMOTE_BACKOFF && set->cancelled))
                due = set;
            else if (set->wake_s < next_s)
                next_s = set->wake_s;
        }
        pthread_mutex_unlock(&remote->lock);
        if (!due)
            return next_s;
        pthread_mutex_lock(&due->lock);
        if (!remote_attempt_wake(due))
            pthread_mutex_unlock(&due->lock);
    }
    return INFINITY;
}

static gpr_timespec until(double when_s)
{
    const double left_s = when_s - remote_now_s();

    if (isinf(when_s))
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(
        gpr_now(GPR_CLOCK_MONOTONIC),
        gpr_time_from_micros((int64_t)(1e6 * (left_s > 0.0 ? left_s : 0.0)), GPR_TIMESPAN));
}

static void *pump(void *data)
{
    struct remote *remote = data;

    for (;;) {
        const double next_s = run_sleepers(remote);
        const grpc_event event = grpc_completion_queue_next(remote->queue, until(next_s), NULL);
        struct remote_tag *tag = event.tag;
        struct remote_set *set;

        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (event.type != GRPC_OP_COMPLETE)
            continue;
        remote_tell_taken(tag);
        set = tag->set;
        pthread_mutex_lock(&set->lock);
        set->attempt.pending--;
        tag->handle(set, event.success != 0);
        if (!remote_attempt_settle(set))
            pthread_mutex_unlock(&set->lock);
    }
}

/* --- connecting ------------------------------------------------------------------------------- */

static enum fire_status fail_forked(uint64_t process, struct fire_error *error)
{
    return fire_fail(error, FIRE_BAD_REQUEST, NULL,
                     "this process was forked from one (%d) that had a remote client open, whose "
                     "threads it does not have; use clients only after fork(), close them before "
                     "it, or call exec()",
                     (int)process);
}

/* Counts one more user of gRPC in this process. */
static enum fire_status enter_process(struct fire_error *error)
{
    const uint64_t own = (uint64_t)getpid() << 32;
    uint64_t users = atomic_load(&grpc_users);

    do {
        if (users && users >> 32 != own >> 32)
            return fail_forked(users >> 32, error);
    } while (!atomic_compare_exchange_weak(&grpc_users, &users, (users ? users : own) + 1));
    return FIRE_OK;
}

static void leave_process(void)
{
    uint64_t users = atomic_load(&grpc_users);

    while (!atomic_compare_exchange_weak(&grpc_users, &users,
                                         (users & UINT32_MAX) == 1 ? 0 : users - 1))
        ;
}

enum fire_status remote_connect(struct remote *remote, struct fire_error *error)
{
    enum fire_status status;

    if (remote->process)
        return remote->process == getpid() ? FIRE_OK
                                           : fail_forked((uint64_t)remote->process, error);
    status = enter_process(error);
    if (status != FIRE_OK)
        return status;
    grpc_init();
    remote->core = remote_channel_core(remote->channel);
    if (!remote->core) {
        grpc_shutdown();
        return fire_fail(error, FIRE_BAD_REQUEST, "ca",
                         "gRPC does not accept the TLS files; check them with openssl x509");
    }
    remote->metadata = remote_channel_metadata(remote->channel, &remote->metadata_count);
    remote->queue = grpc_completion_queue_create_for_next(NULL);
    if (pthread_create(&remote->pump, NULL, pump, remote) != 0) {
        grpc_completion_queue_shutdown(remote->queue);
        grpc_completion_queue_destroy(remote->queue);
        remote->queue = NULL;
        grpc_shutdown();
        return fire_fail(error, FIRE_NO_MEMORY, NULL,
                         "no thread could be started for the client; raise the limit of threads");
    }
    remote->process = getpid();
    return FIRE_OK;
}

/* --- the table -------------------------------------------------------------------------------- */

static enum fire_status make_set(struct remote *remote, struct fire_set *given,
                                 struct remote_set **out, struct fire_error *error)
{
    struct remote_set *set = calloc(1, sizeof(*set));
    enum fire_status status;

    *out = NULL;
    if (!set)
        return fire_fail_memory(error, sizeof(*set));
    pthread_mutex_init(&set->lock, NULL);
    set->remote = remote;
    set->set = given;
    set->sent.set = set->arrived.set = set->status.set = set;
    set->backoff_s = REMOTE_BACKOFF_S_FIRST;
    status = remote_items_make(set, error);
    if (status != FIRE_OK) {
        remote_set_free(set);
        return status;
    }
    set->deadline_s = given->deadline_s > 0.0    ? fmin(given->deadline_s, DEADLINE_S_MAX)
                      : remote->deadline_s > 0.0 ? remote->deadline_s
                      : set->stream              ? REMOTE_STREAM_DEADLINE_S
                                                 : REMOTE_UNARY_DEADLINE_S;
    set->end_s = remote_now_s() + set->deadline_s;
    *out = set;
    return FIRE_OK;
}

static enum fire_status remote_start(struct fire_client *base, struct fire_set *given,
                                     struct fire_error *error)
{
    struct remote *remote = (struct remote *)base;
    struct remote_set *set;
    enum fire_status status = make_set(remote, given, &set, error);

    if (status != FIRE_OK)
        return status;
    pthread_mutex_lock(&set->lock);
    pthread_mutex_lock(&remote->lock);
    status = remote_connect(remote, error);
    if (status == FIRE_OK) {
        set->next = remote->sets;
        remote->sets = set;
        given->internal = set;
    }
    pthread_mutex_unlock(&remote->lock);
    if (status != FIRE_OK) {
        pthread_mutex_unlock(&set->lock);
        remote_set_free(set);
        return status;
    }
    if (set->groups_left > 0)
        remote_attempt_start(set);
    /* Nothing to send, or nothing could be sent: it is over already. */
    if (set->groups_left > 0 ? remote_attempt_settle(set) : (remote_set_finish(set), true))
        return FIRE_OK;
    pthread_mutex_unlock(&set->lock);
    return FIRE_OK;
}

/* True when nothing that is waited for is left; the client's lock is held. */
static bool is_done(const struct remote *remote, const struct fire_set *set)
{
    return set ? set->internal == NULL : remote->sets == NULL;
}

static bool remote_wait(struct fire_client *base, const struct fire_set *set, double seconds)
{
    struct remote *remote = (struct remote *)base;
    const bool limited = seconds >= 0.0 && seconds < DEADLINE_S_MAX;
    struct timespec end;
    bool done;

    clock_gettime(CLOCK_MONOTONIC, &end);
    if (limited) {
        const double whole = floor(seconds);

        end.tv_sec += (time_t)whole;
        end.tv_nsec += (long)(1e9 * (seconds - whole));
        if (end.tv_nsec >= 1000000000l) {
            end.tv_sec++;
            end.tv_nsec -= 1000000000l;
        }
    }
    pthread_mutex_lock(&remote->lock);
    while (!is_done(remote, set)) {
        if (!limited)
            pthread_cond_wait(&remote->changed, &remote->lock);
        else if (pthread_cond_timedwait(&remote->changed, &remote->lock, &end) == ETIMEDOUT)
            break;
    }
    done = is_done(remote, set);
    pthread_mutex_unlock(&remote->lock);
    return done;
}

static void remote_cancel(struct fire_client *base)
{
    struct remote *remote = (struct remote *)base;

    pthread_mutex_lock(&remote->lock);
    for (struct remote_set *set = remote->sets; set; set = set->next) {
        atomic_store(&set->cancelled, true);
        if (set->call)
            grpc_call_cancel(set->call, NULL);
    }
    pthread_mutex_unlock(&remote->lock);
}

static void remote_caps(const struct fire_client *base, struct fire_caps *caps)
{
    struct remote *remote = (struct remote *)(uintptr_t)base;

    *caps = (struct fire_caps){ 0 };
    snprintf(caps->name, sizeof(caps->name), "%.63s", remote_channel_address(remote->channel));
    snprintf(caps->reason, sizeof(caps->reason), "a daemon");
    pthread_mutex_lock(&remote->lock);
    snprintf(caps->path, sizeof(caps->path), "%.31s", remote->path);
    pthread_mutex_unlock(&remote->lock);
}

static const char *remote_run(const struct fire_client *base)
{
    return ((const struct remote *)base)->run;
}

static void remote_close(struct fire_client *base)
{
    struct remote *remote = (struct remote *)base;
    const bool ours = remote->process == getpid();

    if (remote->process && ours) {
        remote_cancel(base);
        (void)remote_wait(base, NULL, -1.0);
        grpc_completion_queue_shutdown(remote->queue);
        pthread_join(remote->pump, NULL);
        grpc_completion_queue_destroy(remote->queue);
    }
    /* In a forked child gRPC's threads are gone: what it holds is left as it is. */
    if (!remote->process || ours)
        remote_channel_close(remote->channel);
    if (remote->process && ours) {
        grpc_shutdown_blocking();
        leave_process();
    }
    pthread_cond_destroy(&remote->changed);
    pthread_mutex_destroy(&remote->lock);
    free(remote->run);
    free(remote);
}

static enum fire_status check_settings(const struct fire_remote_settings *settings,
                                       struct fire_error *error)
{
    if (!(settings->deadline_s >= 0.0) || settings->deadline_s > DEADLINE_S_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "deadline_s",
                         "deadline_s must be 0 (the default) to %g seconds, got %g", DEADLINE_S_MAX,
                         settings->deadline_s);
    if (settings->run && strlen(settings->run) > RUN_BYTES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "run", "run must have at most %u bytes, got %zu",
                         RUN_BYTES_MAX, strlen(settings->run));
    return FIRE_OK;
}

static struct remote *make_remote(const struct fire_remote_settings *settings)
{
    static const struct client_methods methods = { remote_close, remote_caps,   remote_start,
                                                   remote_wait,  remote_cancel, remote_monitor,
                                                   remote_run };
    struct remote *remote = calloc(1, sizeof(*remote));
    pthread_condattr_t attributes;

    if (!remote)
        return NULL;
    remote->base.methods = &methods;
    remote->deadline_s = settings->deadline_s;
    remote->retries_max = settings->retries_max == FIRE_RETRIES_NONE ? 0
                          : settings->retries_max                    ? settings->retries_max
                                                                     : REMOTE_RETRIES_DEFAULT;
    remote->priority = settings->priority;
    remote->step = settings->step;
    remote->retry_tokens = REMOTE_TOKENS_MAX;
    remote->random = ((uint64_t)(1e9 * remote_now_s()) ^ (uint64_t)getpid() << 32) | 1;
    remote->path = "";
    pthread_mutex_init(&remote->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&remote->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (settings->run) {
        remote->run = strdup(settings->run);
        if (!remote->run) {
            remote_close(&remote->base);
            return NULL;
        }
    }
    return remote;
}

enum fire_status fire_client_open_remote(const struct fire_remote_settings *settings,
                                         struct fire_client **client, struct fire_error *error)
{
    const struct fire_remote_settings defaults = { 0 };
    struct fire_error own = { 0 };
    struct remote *remote;

    *client = NULL;
    if (!settings)
        settings = &defaults;
    if (check_settings(settings, &own) != FIRE_OK)
        return client_fail(&own, error);
    remote = make_remote(settings);
    if (!remote) {
        fire_fail_memory(&own, sizeof(*remote));
        return client_fail(&own, error);
    }
    if (remote_channel_open(settings, &remote->channel, &own) != FIRE_OK) {
        remote_close(&remote->base);
        return client_fail(&own, error);
    }
    *client = &remote->base;
    return FIRE_OK;
}
