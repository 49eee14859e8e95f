/* fired_late: the daemon on a slow day. LATE_MS milliseconds pass between the moment the jobs of a
 * tensor are in and the moment they are looked at, so that a deadline can pass just there. Linked
 * with --wrap=scheduler_release. */
#include <stdlib.h>
#include <uv.h>

#include "scheduler.h"

/* The linker gives them these names. */
void __real_scheduler_release(struct scheduler *scheduler);
void __wrap_scheduler_release(struct scheduler *scheduler);

void __wrap_scheduler_release(struct scheduler *scheduler)
{
    const char *late_ms = getenv("LATE_MS");

    if (late_ms)
        uv_sleep((unsigned)atoi(late_ms));
    __real_scheduler_release(scheduler);
}
