/* firectl_daemon: what the commands that ask a daemon have in common: waiting between two answers,
 * numbers and sizes as people read them, and what happened between two answers. */
#ifndef FIRECTL_DAEMON_H
#define FIRECTL_DAEMON_H

#include "admin_call.h"

#define FIRECTL_INTERVAL_S     1.0 /* as the help says */
#define FIRECTL_INTERVAL_S_MIN 0.05
#define FIRECTL_INTERVAL_S_MAX 3600.0
#define FIRECTL_COUNT_MAX      1000000u

/* Waits so long; false when a signal came first. */
bool firectl_pause(double seconds);

/* "512 B", "1.5 MiB", … */
void firectl_size_text(uint64_t bytes, char *text, size_t text_bytes);
/* "12 s", "3 min 5 s", "2 h 10 min", "4 d 3 h" */
void firectl_duration_text(double seconds, char *text, size_t text_bytes);

uint64_t firectl_refusals(const Fire__V1__StatusResponse *status);

/* Sums over devices, and what they are per second since an older answer. */
struct firectl_rates {
    double calls;
    double matrices;
    double batches;
    double refusals;
    double batch_size;   /* mean; 0 when there was no batch */
    double busy_percent; /* of all devices' time */
};
void firectl_rates(const Fire__V1__StatusResponse *before, const Fire__V1__StatusResponse *after,
                   struct firectl_rates *rates);

/* One frame of `firectl top`, at most `rows` lines of at most `columns` characters. `before` may be
 * NULL: then rates are those since the daemon's start. */
void firectl_top_frame(FILE *stream, const char *address, const Fire__V1__StatusResponse *before,
                       const Fire__V1__StatusResponse *after, int columns, int rows);

#endif
