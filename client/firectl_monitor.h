/* firectl_monitor: what the commands about a run's history have in common: one call of
 * MonitorService each, its answers as JSON and as lines for people. */
#ifndef FIRECTL_MONITOR_H
#define FIRECTL_MONITOR_H

#include <jansson.h>

#include "admin_call.h"
#include "fire/v1/monitor.pb-c.h"

#define MONITOR_NAME_BYTES 260u /* of a run, layer or statistic, as text for a terminal */

/* One call of MonitorService/`method`. The answer, unpacked as `kind`, is the caller's to free with
 * protobuf_c_message_free_unpacked(); NULL after saying why, with the exit code in `code`. */
ProtobufCMessage *monitor_ask(struct admin *admin, const char *method,
                              const ProtobufCMessage *request,
                              const ProtobufCMessageDescriptor *kind, enum firectl_exit *code);

/* What is known of one run, with its layers; free it like monitor_ask()'s. A run that nobody knows
 * is exit code 64 + NOT_FOUND. */
Fire__V1__ListRunsResponse *monitor_find_run(struct admin *admin, const char *run,
                                             enum firectl_exit *code);

/* Query of the statistics of the whole run: `request` with its layers replaced. NULL with code
 * FIRECTL_DONE: the run has none. */
Fire__V1__QueryResponse *monitor_query_whole(struct admin *admin, Fire__V1__QueryRequest *request,
                                             enum firectl_exit *code);

/* Prints `object` as one line and releases it. NULL stands for an allocation that failed. */
enum firectl_exit monitor_print_json(json_t *object);

/* An event as an object with "event": true; NULL when memory ran out. */
json_t *monitor_event_json(const Fire__V1__Event *event);
/* "reinit", "alert", "device", "store" or "event" */
const char *monitor_event_kind(const Fire__V1__Event *event);
/* One line: when, kind, step, layer, text. `run` also names the run. */
void monitor_event_line(FILE *stream, const Fire__V1__Event *event, bool run);

json_t *monitor_numbers_json(const double *values, size_t count);
json_t *monitor_steps_json(const int64_t *values, size_t count);

/* Characters beyond ASCII may be written. */
bool monitor_unicode(void);
/* Columns to use: --width, or the terminal's, or 80. */
int monitor_width(const struct firectl_args *args);
/* `values` as one line of at most `columns` bars from least to largest; NAN is blank. */
void monitor_spark(FILE *stream, const double *values, size_t count, size_t columns);
/* A bar of height 0 to 7. */
const char *monitor_bar(int level);
/* "12 s ago", "3 h 5 min ago" */
void monitor_ago_text(int64_t time_ms, char *text, size_t text_bytes);

#endif
