/* server: everything a running daemon has, and its life. Made by server.c, which main.c starts. The
 * members are opened in this order and closed in the reverse one. Loop thread unless a module says
 * otherwise. */
#ifndef FIRED_SERVER_H
#define FIRED_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "arena.h"
#include "auth.h"
#include "budget.h"
#include "config.h"
#include "device.h"
#include "metrics.h"
#include "scheduler.h"
#include "tenant.h"

#define FIRED_VERSION      "0.2.0"
#define SERVER_DEVICES_MAX 16u

struct rpc_server;
struct http;
struct alerts_run;
struct monitor;

struct server {
    struct config config;
    uv_loop_t loop;
    struct metrics *metrics;
    struct tenants *tenants;
    struct auth *auth;                          /* replaced on reload */
    struct budget messages;                     /* bytes of messages received or to be sent */
    struct arena *arena;                        /* slots of matrices */
    struct device *devices[SERVER_DEVICES_MAX]; /* GPUs, then the CPU pool */
    uint32_t device_count;
    uint32_t lost_told;                 /* bit i: the history knows that device i is lost */
    void (*devices_closed)(void *data); /* while they are being closed */
    void *devices_closed_data;
    struct scheduler *scheduler;
    struct monitor *monitor;   /* the history; never NULL while calls are served */
    struct alerts_run *alerts; /* NULL once the daemon closes */
    struct rpc_server *rpc;
    struct http *http;
    uint64_t started_ns;
    bool ready;    /* the socket accepts, the device has passed its test, the history is open */
    bool draining; /* no new calls */
    uint64_t refusals;
};

/* Runs until drained. Returns the exit code. */
int server_run(struct server *server);

/* As SIGTERM does; `limit_ms` 0: the setting. May be called again: the shorter limit counts. */
void server_drain(struct server *server, uint32_t limit_ms);

#endif
