/* scheduler_attention: one timer for the next moment of any waiting job.
 *
 * A job's moments, in the order of time: the end of its delay, its last safe moment (deadline less
 * estimated cost and slack), its deadline. The heap holds each waiting job once, under the next of
 * them. */
#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "clock.h"
#include "scheduler_internal.h"

#define SLACK_NS      CLOCK_NS_PER_MS         /* before the deadline, */
#define SLACK_PART    16u                     /* and this part of the time that was given, */
#define SLACK_NS_MOST (100 * CLOCK_NS_PER_MS) /* of which so much at most */
#define NOT_IN_HEAP   UINT32_MAX

static void place(struct scheduler *scheduler, uint32_t index, struct job *job)
{
    scheduler->heap[index] = job;
    job->attention_index = index;
}

static void sift_up(struct scheduler *scheduler, uint32_t index, struct job *job)
{
    while (index > 0) {
        struct job *parent = scheduler->heap[(index - 1) / 2];

        if (parent->attention_ns <= job->attention_ns)
            break;
        place(scheduler, index, parent);
        index = (index - 1) / 2;
    }
    place(scheduler, index, job);
}

static void sift_down(struct scheduler *scheduler, uint32_t index, struct job *job)
{
    for (;;) {
        uint32_t child = 2 * index + 1;

        if (child >= scheduler->heap_count)
            break;
        if (child + 1 < scheduler->heap_count &&
            scheduler->heap[child + 1]->attention_ns < scheduler->heap[child]->attention_ns)
            child++;
        if (scheduler->heap[child]->attention_ns >= job->attention_ns)
            break;
        place(scheduler, index, scheduler->heap[child]);
        index = child;
    }
    place(scheduler, index, job);
}

static uint64_t last_safe_ns(const struct job *job)
{
    const double cost_ns = job->cost_s * job->matrix_count * 1e9;
    const uint64_t part_ns = (job->deadline_ns - job->submitted_ns) / SLACK_PART;
    const uint64_t reserve = SLACK_NS + (part_ns < SLACK_NS_MOST ? part_ns : SLACK_NS_MOST) +
                             (cost_ns < 1e18 ? (uint64_t)cost_ns : (uint64_t)1e18);

    return job->deadline_ns > reserve ? job->deadline_ns - reserve : 0;
}

void attention_add(struct scheduler *scheduler, struct job *job)
{
    const uint64_t delay_ns = job->end_of_set ? 0 : job->bucket->company_ns;
    uint64_t at_ns = CLOCK_NEVER_NS;

    job->attention_index = NOT_IN_HEAP;
    if (delay_ns && !job->ripe && !scheduler->draining) {
        job->attention = JOB_ATTENTION_DELAY;
        at_ns = job->submitted_ns + delay_ns;
    }
    if (job->deadline_ns != CLOCK_NEVER_NS) {
        const uint64_t safe_ns = job->critical ? job->deadline_ns : last_safe_ns(job);

        if (safe_ns < at_ns) {
            job->attention = job->critical ? JOB_ATTENTION_DEADLINE : JOB_ATTENTION_SAFE;
            at_ns = safe_ns;
        }
    }
    if (at_ns == CLOCK_NEVER_NS)
        return;
    job->attention_ns = at_ns;
    FIRE_ASSERT(scheduler->heap_count < scheduler->settings.jobs_max);
    sift_up(scheduler, scheduler->heap_count++, job);
}

void attention_remove(struct scheduler *scheduler, struct job *job)
{
    const uint32_t index = job->attention_index;
    struct job *last;

    if (index == NOT_IN_HEAP)
        return;
    job->attention_index = NOT_IN_HEAP;
    last = scheduler->heap[--scheduler->heap_count];
    if (last == job)
        return;
    if (index > 0 && scheduler->heap[(index - 1) / 2]->attention_ns > last->attention_ns)
        sift_up(scheduler, index, last);
    else
        sift_down(scheduler, index, last);
}

void attention_arm(struct scheduler *scheduler)
{
    const uint64_t next_ns =
        scheduler->heap_count ? scheduler->heap[0]->attention_ns : CLOCK_NEVER_NS;
    struct itimerspec when = { 0 };

    /* A timer that fires too early finds nothing to do and is armed again: cheaper than moving it
     * whenever the job it stands for has left. */
    if (next_ns >= scheduler->armed_ns)
        return;
    when.it_value.tv_sec = (time_t)(next_ns / CLOCK_NS_PER_S);
    when.it_value.tv_nsec = (long)(next_ns % CLOCK_NS_PER_S) + (next_ns == 0);
    FIRE_ASSERT(timerfd_settime(scheduler->timer_fd, TFD_TIMER_ABSTIME, &when, NULL) == 0);
    scheduler->armed_ns = next_ns;
}

static void attend(struct scheduler *scheduler, struct job *job)
{
    attention_remove(scheduler, job);
    switch (job->attention) {
    case JOB_ATTENTION_DELAY: buckets_mark_ripe(job); break;
    case JOB_ATTENTION_SAFE: buckets_mark_critical(job); break;
    case JOB_ATTENTION_DEADLINE: end_waiting(scheduler, job, FIRE_TOO_LATE); return;
    }
    attention_add(scheduler, job);
}

static void on_timer(uv_poll_t *handle, int status, int events)
{
    struct scheduler *scheduler = handle->data;
    const uint64_t now = clock_now_ns();
    uint64_t times;

    (void)status;
    (void)events;
    if (read(scheduler->timer_fd, &times, sizeof(times)) < 0 && errno == EAGAIN)
        return;
    scheduler->armed_ns = CLOCK_NEVER_NS;
    while (scheduler->heap_count && scheduler->heap[0]->attention_ns <= now)
        attend(scheduler, scheduler->heap[0]);
    dispatch(scheduler);
    attention_arm(scheduler);
}

enum fire_status attention_open(struct scheduler *scheduler, struct fire_error *error)
{
    scheduler->armed_ns = CLOCK_NEVER_NS;
    scheduler->heap = calloc(scheduler->settings.jobs_max, sizeof(scheduler->heap[0]));
    if (!scheduler->heap)
        return fire_fail_memory(error, scheduler->settings.jobs_max * sizeof(scheduler->heap[0]));
    scheduler->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (scheduler->timer_fd < 0 ||
        uv_poll_init(scheduler->loop, &scheduler->timer, scheduler->timer_fd) != 0)
        return fire_fail(error, FIRE_NO_MEMORY, "scheduler",
                         "could not make a timer: allow the daemon more open files");
    scheduler->timer.data = scheduler;
    uv_poll_start(&scheduler->timer, UV_READABLE, on_timer);
    return FIRE_OK;
}

void attention_close(struct scheduler *scheduler, uv_close_cb closed)
{
    uv_poll_stop(&scheduler->timer);
    uv_close((uv_handle_t *)&scheduler->timer, closed);
}
