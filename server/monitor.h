/* monitor: fire.v1.MonitorService without a transport: what rpc_monitor.c (gRPC) and http_api.c
 * (JSON) both call. Requests and responses are the messages of the contract.
 *
 * All functions belong to the loop thread and never wait: reads run on the monitor's reader
 * threads, writes on its writer thread, and answers come back on the loop. While the store cannot
 * be written, reports are refused (FIRE_BUSY), what Reinit and Analyze record waits in the queue,
 * and the writer tries again by itself. */
#ifndef FIRED_MONITOR_H
#define FIRED_MONITOR_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "config.h"
#include "fire/v1/monitor.pb-c.h"
#include "metrics.h"
#include "status.h"

#define MONITOR_WATCHES_MAX      256u /* at once */
#define MONITOR_WATCH_WAITING    256u /* messages that a slow watcher may leave waiting */
#define MONITOR_READS_MAX        256u /* waiting */
#define MONITOR_REPORT_BYTES_MAX (4u << 20)

struct monitor;
struct monitor_watch;
struct history_alert;
struct request_set;
struct request_tensor;

#define MONITOR_ALERTS_MAX 65536u /* firing, taken over from the store */

enum monitor_method {
    MONITOR_REPORT,
    MONITOR_LIST_RUNS,
    MONITOR_QUERY,
    MONITOR_LIST_EVENTS,
    MONITOR_ADVISE,
};

struct monitor_settings {
    const struct config *config; /* borrowed while the monitor is open */
    struct metrics *metrics;     /* may be NULL */
    /* The store can be used, or not any more; on the loop. May be NULL. */
    void (*changed)(void *data, bool up);
    /* A daemon that is gone left this alert (history_take_over()); on the loop, for each, once:
     * when the store is opened for the first time, before `changed` and before any point is stored.
     * May be NULL. */
    void (*firing)(void *data, const struct history_alert *alert);
    /* Points of `tenant` were stored; on the loop. May be NULL. */
    void (*stored)(void *data, const char *tenant, const Fire__V1__ReportRequest *report);
    void *data;
};

/* Opens the store in the background: one that cannot be opened yet is tried again. With history
 * off every call is FIRE_NOT_FOUND. */
FIRE_NODISCARD enum fire_status monitor_open(uv_loop_t *loop,
                                             const struct monitor_settings *settings,
                                             struct monitor **monitor, struct fire_error *error);
/* Writes what waits, if the store lets it; calls that wait are answered FIRE_DRAINING. `closed` is
 * called on the loop when the last handle is gone. NULL is allowed: closed at once. */
void monitor_close(struct monitor *monitor, void (*closed)(void *data), void *data);

/* Whether the store works; while it does not, what is wrong (never NULL). */
bool monitor_up(const struct monitor *monitor);
const char *monitor_trouble(const struct monitor *monitor);
bool monitor_off(const struct monitor *monitor); /* history is off by setting */
/* Whether the store was opened or is known to be broken; true when off. */
bool monitor_settled(const struct monitor *monitor);

/* On the loop thread. `response` is of the method's response type, the callback's to free with
 * protobuf_c_message_free_unpacked(response, NULL), and NULL unless `status` is FIRE_OK. `error`
 * says what is wrong, which field, and what is allowed; it lives as long as the callback runs. */
typedef void (*monitor_done)(enum fire_status status, ProtobufCMessage *response,
                             const struct fire_error *error, void *data);

/* Checks `request` (of the method's request type, borrowed until `done`) and answers it, for the
 * data of `tenant` only. `done` is called exactly once, never before this returns. A store that is
 * broken or too busy is FIRE_BUSY (with a retry), an unknown run FIRE_NOT_FOUND. */
void monitor_call(struct monitor *monitor, enum monitor_method method, const char *tenant,
                  const ProtobufCMessage *request, monitor_done done, void *data);

/* Stores an event, of `tenant` when it has a run, and tells the watchers. It is copied. An event
 * that does not fit the queue is counted and dropped. */
void monitor_add_event(struct monitor *monitor, const char *tenant, const Fire__V1__Event *event);

/* Records the answered weights among `tensors` of a call whose set names a run: their statistics as
 * points, each projection as an event. Never fails; what does not fit the queue is counted and
 * dropped. */
void monitor_record(struct monitor *monitor, const char *tenant, const struct request_set *set,
                    struct request_tensor *const *tensors, size_t count);

/* New points and events of `tenant`, as stored from now on. `ready` is called on the loop when
 * monitor_watch_next() has something after it had nothing. NULL when there are too many watchers
 * (FIRE_BUSY in `error`) or the request is bad. */
struct monitor_watch *monitor_watch_open(struct monitor *monitor, const char *tenant,
                                         const Fire__V1__WatchRequest *request,
                                         void (*ready)(void *data), void *data,
                                         struct fire_error *error);
/* The next message, the caller's to free, or NULL. */
Fire__V1__WatchResponse *monitor_watch_next(struct monitor_watch *watch);
void monitor_watch_close(struct monitor_watch *watch); /* NULL is allowed */

#endif
