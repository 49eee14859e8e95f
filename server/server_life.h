/* server_life: what the modules around a running server ask of it besides its members. */
#ifndef FIRED_SERVER_LIFE_H
#define FIRED_SERVER_LIFE_H

#include "server.h"

/* Brings the gauges up to date: memory, queue, calls. Before metrics are shown. */
void server_refresh_gauges(struct server *server);

/* Resident set of the process in bytes; 0 when the system does not tell. */
uint64_t server_resident_bytes(void);

/* Reads settings again (SIGHUP): credentials, tenant limits, log level. What cannot change while
 * running is logged. A fault leaves everything as it was. */
void server_reload(struct server *server);

#endif
