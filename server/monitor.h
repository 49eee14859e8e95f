/* monitor: fire.v1.MonitorService without a transport: what rpc_monitor.c (gRPC) and http_api.c
 * (JSON) both call. Requests and responses are the messages of the contract.
 *
 * All functions belong to the loop thread and never wait: reads run on libuv's workers, writes on
 * the history's writer thread, and answers come back on the loop. */
#ifndef FIRED_MONITOR_H
#define FIRED_MONITOR_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>
#include <uv.h>

#include "fire/v1/monitor.pb-c.h"
#include "status.h"

struct monitor;
struct monitor_watch;

enum monitor_method {
    MONITOR_REPORT,
    MONITOR_LIST_RUNS,
    MONITOR_QUERY,
    MONITOR_LIST_EVENTS,
    MONITOR_ADVISE,
};

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
