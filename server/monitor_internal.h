/* monitor_internal: what the files of the monitor share; nobody else includes it.
 *
 * A job goes from the loop to a thread and back: the loop makes it and lets go of it, a thread
 * answers it in between. Lists between them are under `lock`. */
#ifndef FIRED_MONITOR_INTERNAL_H
#define FIRED_MONITOR_INTERNAL_H

#include <stddef.h>

#include "history.h"
#include "monitor.h"
#include "tenant.h"
#include "wake.h"

#define MONITOR_READERS 2u

/* Memory of one recording, freed as a whole: a block, and those before it. */
struct monitor_arena {
    struct monitor_arena *before;
    size_t used;
    size_t room;
    max_align_t bytes[];
};

struct monitor_job {
    struct monitor_job *next;
    enum monitor_method method;
    char tenant[TENANT_NAME_BYTES];
    const ProtobufCMessage *request; /* of a call, borrowed */
    monitor_done done;               /* NULL: nobody waits, and `owned` is what is written */
    void *data;
    uint64_t bytes; /* counted against the queue */
    /* What a call of nobody writes. */
    Fire__V1__ReportRequest *owned;
    Fire__V1__Event **events;
    size_t event_count;
    struct monitor_arena *arena; /* where both of these are; NULL: each was allocated by itself */

    struct history_entry entry; /* of a write */
    ProtobufCMessage *response;
    enum fire_status status;
    struct fire_error error;
};

/* An alert on its way from the store to the loop, its four texts behind each other. */
struct monitor_alert {
    struct monitor_alert *next;
    size_t run;   /* where the run begins in `texts`; the tenant is at 0 */
    size_t layer; /* … and the layer */
    size_t rule;
    bool firing;
    char texts[];
};

struct monitor_jobs {
    struct monitor_job *first;
    struct monitor_job *last;
};

struct monitor {
    uv_loop_t *loop;
    struct monitor_settings settings;
    bool off;
    struct history_settings store;
    char *place; /* of the store */

    /* The loop's. */
    struct wake wake;
    bool up; /* as the loop knows it */
    bool told;
    char trouble[FIRE_ERROR_MESSAGE_BYTES];
    struct monitor_watch *watches;
    uint32_t watch_count;
    uint32_t unfinished; /* jobs with the threads or on their way back */
    void (*closed)(void *data);
    void *closed_data;

    uv_mutex_t lock;
    uv_cond_t for_writer;
    uv_cond_t for_readers;
    struct monitor_jobs writes;
    struct monitor_jobs reads;
    struct monitor_jobs finished; /* on their way back to the loop */
    struct monitor_alert *firing; /* as the store had it when it was opened, for the loop */
    uint64_t queued_bytes;        /* of writes, until they are on disk or refused */
    uint64_t read_count;          /* waiting */
    bool callers_wait;            /* among `writes` */
    bool stopping;
    uint32_t threads_left;
    bool store_up; /* as the writer knows it */
    struct fire_error store_error;

    bool stop_waiting; /* for the database's own waits; atomic */
    uv_thread_t writer;
    uv_thread_t readers[MONITOR_READERS];
    uint32_t threads_started;
};

/* monitor.c: any thread. */
void jobs_push(struct monitor_jobs *jobs, struct monitor_job *job);
struct monitor_job *jobs_pop(struct monitor_jobs *jobs);
int64_t monitor_now_ms(void);

/* Takes over report (may be NULL), events and the arena they are in (NULL: none). */
void monitor_queue_owned(struct monitor *monitor, const char *tenant,
                         Fire__V1__ReportRequest *report, Fire__V1__Event **events,
                         size_t event_count, struct monitor_arena *arena);

void monitor_alerts_free(struct monitor_alert *list);

void monitor_arena_free(struct monitor_arena *arena);

/* monitor_threads.c: the bodies of the threads; `data` is the monitor. */
void monitor_writer_run(void *data);
void monitor_reader_run(void *data);

/* monitor_watch.c: on the loop. */
void monitor_watches_tell(struct monitor *monitor, const struct monitor_job *job);

/* monitor_advise.c: a reader's work. */
FIRE_NODISCARD enum fire_status monitor_advise(struct history *history, const char *tenant,
                                               const Fire__V1__AdviseRequest *request,
                                               Fire__V1__AdviseResponse **response,
                                               struct fire_error *error);

#endif
