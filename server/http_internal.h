/* http_internal: what the files of HTTP share. One request is one struct http_request, from its
 * first line until the connection has done with it and nobody computes for it any more.
 *
 *     http.c          the daemon inside the loop; Host, Origin, who asks; pages and their headers
 *     http_api.c      /api/v1: address to message, message to JSON
 *     http_watch.c    /api/v1/watch: server-sent events
 *     http_session.c  cookies for tokens
 *     http_web.c      the dashboard's files
 *
 * All of it belongs to the loop thread, but for the JSON, which a worker writes. */
#ifndef FIRED_HTTP_INTERNAL_H
#define FIRED_HTTP_INTERNAL_H

#include <microhttpd.h>
#include <stdbool.h>
#include <uv.h>

#include "http.h"
#include "http_session.h"
#include "json_message.h"
#include "monitor.h"
#include "tenant.h"

#define HTTP_CONNECTIONS_MAX 256u
#define HTTP_IDLE_S          30u
#define HTTP_MEMORY_BYTES    (128u << 10) /* of one connection: its first line and headers */
#define HTTP_HOST_BYTES      256u
#define HTTP_PEM_BYTES_MAX   (1u << 20)
#define HTTP_BODY_BYTES_MAX  (4u << 20)
#define HTTP_CALLS_MAX       32u /* of the API, waiting for the history or for their JSON */
#define HTTP_WATCHES_MAX     128u
#define HTTP_WATCH_PING_MS   15000u
#define HTTP_COOKIE          "fired_session"

struct api_route;
struct http_watch;

struct http {
    struct server *server;
    struct MHD_Daemon *daemon;
    uv_poll_t poll;
    uv_timer_t timer; /* libmicrohttpd's timeouts */
    uv_timer_t ping;  /* keeps watches alive, and finds those whose reader is gone */
    char *certificate;
    char *key;
    uint16_t port;
    uint32_t handles; /* uv handles still open */
    struct http_sessions *sessions;
    struct http_request *suspended; /* wait for an answer; linked by next, previous */
    uint32_t calls;                 /* of those, with the history or a worker */
    struct http_watch *watches;
    uint32_t watch_count;
    bool closing;
    bool resumed; /* a connection was, since MHD ran last */
    void (*closed)(void *data);
    void *closed_data;
};

/* What is sent back. */
struct page {
    unsigned int code;
    char *text; /* malloc'ed, unless fixed */
    size_t bytes;
    const char *type;
    const char *label;    /* of the path, for metrics; NULL: other */
    const char *allow;    /* verbs, with 405 */
    bool fixed;           /* text lives as long as the program */
    bool retry;           /* Retry-After: 1 */
    char etag[32];        /* empty: not to be kept by the browser */
    char set_cookie[192]; /* empty: none */
};

enum http_phase {
    HTTP_FIRST,    /* headers */
    HTTP_BODY,     /* pieces of a body come */
    HTTP_WAITING,  /* suspended: the history or a worker has it */
    HTTP_ANSWERED, /* `page` is ready */
};

struct http_request {
    struct http *http;
    struct MHD_Connection *connection; /* NULL: gone */
    struct http_request *next, *previous;
    enum http_phase phase;
    char *path; /* as sent: still percent-encoded, without the query */
    char *body;
    size_t body_bytes;
    size_t body_room;
    uint64_t reserved; /* of server->messages */
    struct page page;
    char tenant[TENANT_NAME_BYTES];
    bool busy; /* the history or a worker holds this request: it must not be freed */
    bool linked;
    unsigned digits;
    ProtobufCMessage *message;
    ProtobufCMessage *answer;
    struct json_text text;
    uv_work_t work;
    const struct api_route *route;
};

/* --- http.c ----------------------------------------------------------------------------------- */

/* Who asks: by header, by cookie (unless `bearer_only`), by address. FIRE_OK and the tenant. */
FIRE_NODISCARD enum fire_status http_check_caller(struct http_request *request, const char *method,
                                                  bool bearer_only, struct fire_error *error);
const char *http_header(struct http_request *request, const char *name);

enum fire_status page_text(struct page *page, unsigned int code, const char *text);
/* {"error": {code, reason, message, field}} */
enum fire_status page_error(struct page *page, const struct fire_error *error);
enum fire_status page_json(struct page *page, struct json_text *text); /* takes the text */

void http_resume(struct http *http, struct MHD_Connection *connection);
/* Suspends the connection until http_request_resume(). */
void http_request_suspend(struct http_request *request);
void http_request_resume(struct http_request *request);
/* Frees it once the connection is gone and nobody is busy with it. */
void http_request_unref(struct http_request *request);
/* A call that was counted in http->calls is over. */
void http_call_ended(struct http *http);
/* Sends `page`. */
enum MHD_Result http_answer(struct http_request *request);
/* Sends a response of another kind, with the headers of `page`. */
enum MHD_Result http_send(struct http_request *request, struct MHD_Response *response);

/* --- http_api.c ------------------------------------------------------------------------------- */

bool http_api_owns(const char *path);
/* Headers are there: refuses a body that is not wanted or too large (page.code is set). */
void http_api_begin(struct http_request *request, const char *verb);
/* Everything is there: answers, suspends, or starts a stream. */
enum MHD_Result http_api_handle(struct http_request *request, const char *verb);

/* --- http_watch.c ----------------------------------------------------------------------------- */

enum MHD_Result http_watch_start(struct http_request *request);
void http_watch_ping(uv_timer_t *timer);
void http_watch_close_all(struct http *http);

/* --- http_web.c ------------------------------------------------------------------------------- */

/* The file of a path, or false. */
bool http_web_find(const char *path, struct page *page);

#endif
