/* http: the dashboard, its JSON API (/api/v1), /metrics, /healthz and /readyz, on libmicrohttpd
 * inside the loop: its epoll descriptor is a uv_poll, its timeout a uv_timer; no thread of its own.
 *
 * Every request passes three checks. Host is an address or this machine's name, and Origin, if
 * there is one, the same (rebinding, other sites' scripts). Then auth_check(): the API asks for the
 * right of the method it stands for ("fire.v1.MonitorService/Query"), pages for "http/<name>".
 * A browser trades its token for a cookie (http_session.h), which never allows a change. */
#ifndef FIRED_HTTP_H
#define FIRED_HTTP_H

#include <uv.h>

#include "server.h"

struct http;

/* Listens on `address` ("127.0.0.1:8471"; port 0 picks one). TLS as for gRPC when configured. */
FIRE_NODISCARD enum fire_status http_open(struct server *server, const char *address,
                                          struct http **http, struct fire_error *error);
void http_close(struct http *http, void (*closed)(void *data), void *data);
uint16_t http_port(const struct http *http);

#endif
