/* fired_fixture: the real daemon on a unix socket of its own, for tests of libfire. One at a time;
 * what goes wrong fails the test that called. */
#ifndef FIRED_FIXTURE_H
#define FIRED_FIXTURE_H

#include <stdint.h>
#include <sys/types.h>

struct fired {
    char folder[64];   /* its socket, locks and history */
    char address[128]; /* "unix:…" */
    uint32_t threads;
    pid_t process; /* 0: it does not run */
};

/* Makes the folder and starts the daemon; returns when it answers. */
void fired_start(struct fired *fired, uint32_t threads);
/* The process alone, on the same socket and history: after fired_stop(). */
void fired_spawn(struct fired *fired);
void fired_await(const struct fired *fired); /* until it answers */
/* Sends the signal and waits for the end; after SIGTERM the exit code is 0. */
void fired_stop(struct fired *fired, int signal_number);
/* Stops it if it runs, and removes the folder. */
void fired_end(struct fired *fired);

#endif
