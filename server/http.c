/* http: libmicrohttpd inside the loop.
 *
 * MHD gives one epoll descriptor; a uv_poll watches it and a uv_timer stands for its timeouts, so
 * every handler runs on the loop thread and nothing here needs a lock. This file has the daemon,
 * the checks that every request passes, and the pages that are made at once; http_internal.h says
 * where the rest is. */
#include "http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "http_internal.h"
#include "log.h"
#include "monitor.h"
#include "rpc_call.h"
#include "rpc_server.h"
#include "server_life.h"
#include "utf8.h"

/* What a page may load: this daemon's own files and nothing else. */
#define CONTENT_POLICY                                                                             \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "              \
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

struct route {
    const char *path;
    const char *method; /* for auth_check */
    enum fire_status (*make)(struct server *server, struct page *page);
};

enum fire_status page_text(struct page *page, unsigned int code, const char *text)
{
    page->code = code;
    page->type = "text/plain; charset=utf-8";
    page->text = strdup(text);
    page->bytes = page->text ? strlen(text) : 0;
    return page->text ? FIRE_OK : FIRE_NO_MEMORY;
}

enum fire_status page_json(struct page *page, struct json_text *text)
{
    if (text->failed) {
        json_text_release(text);
        return FIRE_NO_MEMORY;
    }
    page->type = "application/json";
    page->text = text->bytes;
    page->bytes = text->used;
    memset(text, 0, sizeof(*text));
    return FIRE_OK;
}

static unsigned int http_code(enum fire_status status)
{
    switch (status) {
    case FIRE_OK: return MHD_HTTP_OK;
    case FIRE_BAD_REQUEST: return MHD_HTTP_BAD_REQUEST;
    case FIRE_NOT_FOUND: return MHD_HTTP_NOT_FOUND;
    case FIRE_UNAUTHENTICATED: return MHD_HTTP_UNAUTHORIZED;
    case FIRE_DENIED: return MHD_HTTP_FORBIDDEN;
    case FIRE_TOO_LATE: return MHD_HTTP_GATEWAY_TIMEOUT;
    case FIRE_BUSY:
    case FIRE_NO_MEMORY:
    case FIRE_CANCELLED:
    case FIRE_DRAINING:
    case FIRE_DEVICE_LOST: return MHD_HTTP_SERVICE_UNAVAILABLE;
    case FIRE_IO: return MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
    return MHD_HTTP_INTERNAL_SERVER_ERROR;
}

enum fire_status page_error(struct page *page, const struct fire_error *error)
{
    struct json_text text = { 0 };
    char clean[FIRE_ERROR_MESSAGE_BYTES], field[FIRE_ERROR_FIELD_BYTES], code[16];

    if (!page->code)
        page->code = http_code(error->status);
    page->retry = page->code == MHD_HTTP_SERVICE_UNAVAILABLE;
    memcpy(clean, error->message, sizeof(clean));
    memcpy(field, error->field, sizeof(field));
    utf8_make_printable(clean);
    utf8_make_printable(field);
    snprintf(code, sizeof(code), "%u", page->code);
    json_put(&text, "{\"error\":{\"code\":");
    json_put(&text, code);
    json_put(&text, ",\"reason\":");
    json_put_string(&text, rpc_reason(error->status));
    json_put(&text, ",\"message\":");
    json_put_string(&text, clean);
    json_put(&text, ",\"field\":");
    json_put_string(&text, field);
    json_put(&text, "}}\n");
    return page_json(page, &text);
}

static enum fire_status make_metrics(struct server *server, struct page *page)
{
    server_refresh_gauges(server);
    page->code = MHD_HTTP_OK;
    page->type = "text/plain; version=0.0.4; charset=utf-8";
    return metrics_text(server->metrics, &page->text, &page->bytes);
}

/* Alive: the loop answers. A drain is not a reason to kill the process. */
static enum fire_status make_healthz(struct server *server, struct page *page)
{
    /* It lives, and Reinit is served: not a failure, but something to look at. */
    if (server->monitor && !monitor_off(server->monitor) && !monitor_up(server->monitor))
        return page_text(page, MHD_HTTP_OK, "degraded: history\n");
    return page_text(page, MHD_HTTP_OK, "ok\n");
}

static enum fire_status make_readyz(struct server *server, struct page *page)
{
    if (server->draining)
        return page_text(page, MHD_HTTP_SERVICE_UNAVAILABLE, "draining\n");
    if (!server->ready)
        return page_text(page, MHD_HTTP_SERVICE_UNAVAILABLE, "starting\n");
    return page_text(page, MHD_HTTP_OK, "ready\n");
}

static const struct route routes[] = {
    { "/metrics", "http/metrics", make_metrics },
    { "/healthz", "http/healthz", make_healthz },
    { "/readyz", "http/readyz", make_readyz },
};

static const struct route *route_find(const char *path)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (strcmp(routes[i].path, path) == 0)
            return &routes[i];
    }
    return NULL;
}

/* The host of a Host header without its port. False when it does not look like one. */
static bool host_name(const char *header, char host[HTTP_HOST_BYTES])
{
    const char *start = header[0] == '[' ? header + 1 : header;
    const char *end = header[0] == '[' ? strchr(header, ']') : strchr(header, ':');
    size_t bytes;

    if (header[0] == '[' && !end)
        return false;
    bytes = end ? (size_t)(end - start) : strlen(start);
    if (bytes == 0 || bytes >= HTTP_HOST_BYTES)
        return false;
    memcpy(host, start, bytes);
    host[bytes] = '\0';
    return true;
}

/* A page of a stranger's site that resolves its own name to this machine sends that name as Host.
 * Addresses, localhost and the machine's own name cannot be such a name. */
static bool host_is_ours(const char *header)
{
    unsigned char address[sizeof(struct in6_addr)];
    char host[HTTP_HOST_BYTES], own[HTTP_HOST_BYTES];

    if (!header || !host_name(header, host))
        return false;
    if (strcasecmp(host, "localhost") == 0 || inet_pton(AF_INET, host, address) == 1 ||
        inet_pton(AF_INET6, host, address) == 1)
        return true;
    return gethostname(own, sizeof(own)) == 0 && strcasecmp(host, own) == 0;
}

const char *http_header(struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

/* Another site's script may not read our pages. */
static bool origin_is_ours(const char *origin, const char *host)
{
    const char *rest = strstr(origin, "://");

    return rest && strcasecmp(rest + 3, host) == 0;
}

static bool caller_is_local(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

    if (!info || !info->client_addr)
        return false;
    if (info->client_addr->sa_family == AF_INET) {
        struct sockaddr_in address;

        memcpy(&address, info->client_addr, sizeof(address));
        return ntohl(address.sin_addr.s_addr) >> 24 == 127;
    }
    if (info->client_addr->sa_family == AF_INET6) {
        struct sockaddr_in6 address;

        memcpy(&address, info->client_addr, sizeof(address));
        return IN6_IS_ADDR_LOOPBACK(&address.sin6_addr);
    }
    return false;
}

enum fire_status http_check_caller(struct http_request *request, const char *method,
                                   bool bearer_only, struct fire_error *error)
{
    const char *authorization = http_header(request, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *cookie =
        MHD_lookup_connection_value(request->connection, MHD_COOKIE_KIND, HTTP_COOKIE);
    struct auth_caller caller = { .local = caller_is_local(request->connection) };

    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
        caller.token = authorization + 7;
    else if (cookie && !bearer_only)
        caller.token = http_session_token(request->http->sessions, cookie);
    caller.token_bytes = caller.token ? strlen(caller.token) : 0;
    caller.claimed_tenant = http_header(request, "x-fired-tenant");
    if (!caller.claimed_tenant)
        caller.claimed_tenant =
            MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, "tenant");
    return auth_check(request->http->server->auth, &caller, method, request->tenant, error);
}

/* What every request must pass; false and a page when it does not. */
static bool check_place(struct http_request *request)
{
    const char *host = http_header(request, MHD_HTTP_HEADER_HOST);
    const char *origin = http_header(request, MHD_HTTP_HEADER_ORIGIN);
    struct fire_error error = { 0 };

    if (host_is_ours(host) && (!origin || origin_is_ours(origin, host)))
        return true;
    (void)fire_fail(&error, FIRE_DENIED, "host",
                    "refused: Host must be an address, localhost or this machine's name, and "
                    "Origin, if there is one, the same");
    (void)page_error(&request->page, &error);
    return false;
}

/* Fills the page of a path that is made at once, or the reason why there is none. */
static enum fire_status make_page(struct http_request *request, const char *path, const char *verb)
{
    const struct route *route = route_find(path);
    struct page *page = &request->page;
    struct fire_error error = { 0 };
    enum fire_status status;
    const bool file = !route && http_web_find(path, page);

    if (!route && !file) {
        page->code = MHD_HTTP_NOT_FOUND;
        (void)fire_fail(&error, FIRE_NOT_FOUND, "path",
                        "nothing is here; try /, /api/v1/openapi.json, /metrics, /healthz or "
                        "/readyz");
        return page_error(page, &error);
    }
    if (strcmp(verb, MHD_HTTP_METHOD_GET) != 0 && strcmp(verb, MHD_HTTP_METHOD_HEAD) != 0) {
        *page = (struct page){ .allow = "GET, HEAD" };
        return page_text(page, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    status = http_check_caller(request, file ? "http/dashboard" : route->method, false, &error);
    if (status != FIRE_OK) {
        *page = (struct page){ 0 };
        return page_text(
            page, status == FIRE_UNAUTHENTICATED ? MHD_HTTP_UNAUTHORIZED : MHD_HTTP_FORBIDDEN,
            status == FIRE_UNAUTHENTICATED ? "a bearer token is needed\n" : "not allowed\n");
    }
    if (file) {
        const char *known = http_header(request, MHD_HTTP_HEADER_IF_NONE_MATCH);

        if (known && strcmp(known, page->etag) == 0) {
            page->code = MHD_HTTP_NOT_MODIFIED;
            page->bytes = 0;
        }
        return FIRE_OK;
    }
    page->label = route->path;
    return route->make(request->http->server, page);
}

static void add_headers(struct MHD_Response *response, const struct page *page)
{
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, page->type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL,
                            page->etag[0] ? "no-cache" : "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "X-Frame-Options", "DENY");
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(response, "Cross-Origin-Resource-Policy", "same-origin");
    MHD_add_response_header(response, "Content-Security-Policy", CONTENT_POLICY);
    if (page->etag[0])
        MHD_add_response_header(response, MHD_HTTP_HEADER_ETAG, page->etag);
    if (page->set_cookie[0])
        MHD_add_response_header(response, MHD_HTTP_HEADER_SET_COOKIE, page->set_cookie);
    if (page->retry)
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (page->code == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (page->allow)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, page->allow);
}

enum MHD_Result http_send(struct http_request *request, struct MHD_Response *response)
{
    struct page *page = &request->page;
    char code[8];
    enum MHD_Result result;

    snprintf(code, sizeof(code), "%u", page->code);
    metrics_add(request->http->server->metrics, METRIC_HTTP, page->label ? page->label : "other",
                code, 1);
    add_headers(response, page);
    result = MHD_queue_response(request->connection, page->code, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result http_answer(struct http_request *request)
{
    struct page *page = &request->page;
    struct MHD_Response *response;

    if (!page->text)
        return MHD_NO; /* no memory even for the reason */
    response = MHD_create_response_from_buffer(
        page->bytes, page->text, page->fixed ? MHD_RESPMEM_PERSISTENT : MHD_RESPMEM_MUST_FREE);
    if (!response)
        return MHD_NO;
    page->text = NULL;
    return http_send(request, response);
}

/* --- the life of a request -------------------------------------------------------------------- */

/* The first that is heard of a request: its first line, before anything is decoded. */
static void *on_uri(void *data, const char *uri, struct MHD_Connection *connection)
{
    struct http_request *request = calloc(1, sizeof(*request));

    if (!request)
        return NULL;
    request->http = data;
    request->connection = connection;
    request->digits = JSON_DIGITS_MAX;
    request->path = strndup(uri, strcspn(uri, "?#"));
    if (!request->path) {
        free(request);
        return NULL;
    }
    return request;
}

void http_request_unref(struct http_request *request)
{
    if (request->connection || request->busy)
        return;
    budget_release(&request->http->server->messages, request->reserved);
    if (request->http->server->rpc)
        rpc_server_unblock(request->http->server->rpc); /* calls may wait for it */
    if (request->message)
        protobuf_c_message_free_unpacked(request->message, NULL);
    if (request->answer)
        protobuf_c_message_free_unpacked(request->answer, NULL);
    json_text_release(&request->text);
    if (!request->page.fixed)
        free(request->page.text);
    free(request->body);
    free(request->path);
    free(request);
}

static void on_completed(void *data, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode code)
{
    struct http_request *request = *state;

    (void)data;
    (void)connection;
    (void)code;
    *state = NULL;
    if (!request)
        return;
    request->connection = NULL;
    http_request_unref(request);
}

static void on_timer(uv_timer_t *timer);

/* Without a thread of its own MHD looks at resumed connections only when it runs next. */
void http_resume(struct http *http, struct MHD_Connection *connection)
{
    MHD_resume_connection(connection);
    http->resumed = true;
    if (!http->closing)
        uv_timer_start(&http->timer, on_timer, 0, 0);
}

void http_request_suspend(struct http_request *request)
{
    struct http *http = request->http;

    request->phase = HTTP_WAITING;
    request->previous = NULL;
    request->next = http->suspended;
    if (http->suspended)
        http->suspended->previous = request;
    http->suspended = request;
    request->linked = true;
    MHD_suspend_connection(request->connection);
}

void http_request_resume(struct http_request *request)
{
    if (!request->linked)
        return; /* the daemon is closing and has let it go */
    if (request->next)
        request->next->previous = request->previous;
    if (request->previous)
        request->previous->next = request->next;
    else
        request->http->suspended = request->next;
    request->linked = false;
    request->phase = HTTP_ANSWERED;
    http_resume(request->http, request->connection);
}

/* A piece of a body. What is more than was promised cannot come: MHD holds to Content-Length. */
static enum MHD_Result take_body(struct http_request *request, const char *upload, size_t *bytes)
{
    if (request->body && *bytes <= request->body_room - request->body_bytes) {
        memcpy(request->body + request->body_bytes, upload, *bytes);
        request->body_bytes += *bytes;
    }
    *bytes = 0;
    return MHD_YES;
}

static enum MHD_Result begin_request(struct http_request *request, const char *verb)
{
    request->phase = HTTP_BODY;
    if (check_place(request) && http_api_owns(request->path))
        http_api_begin(request, verb);
    /* A refusal before the body is read ends the connection; a GET has no body to wait for. */
    if (request->page.code && strcmp(verb, MHD_HTTP_METHOD_GET) != 0 &&
        strcmp(verb, MHD_HTTP_METHOD_HEAD) != 0)
        return http_answer(request);
    return MHD_YES;
}

static enum MHD_Result handle(void *data, struct MHD_Connection *connection, const char *path,
                              const char *verb, const char *version, const char *upload,
                              size_t *upload_bytes, void **state)
{
    struct http_request *request = *state;

    (void)data;
    (void)connection;
    (void)version;
    if (!request)
        return MHD_NO;
    if (request->phase == HTTP_FIRST)
        return begin_request(request, verb);
    if (*upload_bytes)
        return take_body(request, upload, upload_bytes);
    if (request->page.code)
        return http_answer(request);
    if (http_api_owns(request->path))
        return http_api_handle(request, verb);
    if (make_page(request, path, verb) != FIRE_OK)
        return MHD_NO;
    return http_answer(request);
}

static void run(struct http *http);

static void on_timer(uv_timer_t *timer)
{
    run(timer->data);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    run(poll->data);
}

static void run(struct http *http)
{
    MHD_UNSIGNED_LONG_LONG timeout_ms;

    http->resumed = false;
    MHD_run(http->daemon);
    /* Once more: a connection that was given up while reading is ended only by the next run, and
     * no event announces that. */
    MHD_run(http->daemon);
    if (http->resumed) /* from inside */
        uv_timer_start(&http->timer, on_timer, 0, 0);
    else if (MHD_get_timeout(http->daemon, &timeout_ms) == MHD_YES)
        uv_timer_start(&http->timer, on_timer, timeout_ms, 0);
    else
        uv_timer_stop(&http->timer);
}

/* "127.0.0.1:8471" or "[::1]:8471" as a socket address. */
static bool parse_address(const char *text, struct sockaddr_storage *storage)
{
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
    struct sockaddr_in v4 = { .sin_family = AF_INET };
    const char *colon = strrchr(text, ':');
    char host[HTTP_HOST_BYTES];
    char *end;
    unsigned long port;

    if (!colon || !host_name(text, host))
        return false;
    errno = 0;
    port = strtoul(colon + 1, &end, 10);
    if (errno || end == colon + 1 || *end || port > UINT16_MAX)
        return false;
    if (strcmp(host, "localhost") == 0)
        snprintf(host, sizeof(host), "127.0.0.1");
    memset(storage, 0, sizeof(*storage));
    if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
        v4.sin_port = htons((uint16_t)port);
        memcpy(storage, &v4, sizeof(v4));
        return true;
    }
    if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
        v6.sin6_port = htons((uint16_t)port);
        memcpy(storage, &v6, sizeof(v6));
        return true;
    }
    return false;
}

static enum fire_status read_pem(const char *path, char **text, struct fire_error *error)
{
    FILE *file = fopen(path, "rbe");
    size_t bytes = 0;

    *text = NULL;
    if (!file)
        return fire_fail(error, FIRE_IO, path, "%.200s cannot be read: %s", path, strerror(errno));
    *text = calloc(1, HTTP_PEM_BYTES_MAX + 1);
    if (*text)
        bytes = fread(*text, 1, HTTP_PEM_BYTES_MAX, file);
    fclose(file);
    if (!*text)
        return fire_fail_memory(error, HTTP_PEM_BYTES_MAX);
    if (bytes == 0 || bytes == HTTP_PEM_BYTES_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, path, "%.200s is no PEM file", path);
    return FIRE_OK;
}

static enum fire_status read_tls(struct http *http, struct fire_error *error)
{
    const struct config *config = &http->server->config;
    enum fire_status status;

    if (!config->tls_certificate || !config->tls_certificate[0])
        return FIRE_OK;
    status = read_pem(config->tls_certificate, &http->certificate, error);
    if (status == FIRE_OK)
        status = read_pem(config->tls_key, &http->key, error);
    return status;
}

static enum fire_status start_daemon(struct http *http, const char *address,
                                     struct fire_error *error)
{
    struct MHD_OptionItem tls[] = {
        { MHD_OPTION_HTTPS_MEM_CERT, 0, http->certificate },
        { MHD_OPTION_HTTPS_MEM_KEY, 0, http->key },
        { MHD_OPTION_END, 0, NULL },
    };
    struct MHD_OptionItem none[] = { { MHD_OPTION_END, 0, NULL } };
    struct sockaddr_storage storage;
    unsigned int flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME;

    if (!parse_address(address, &storage))
        return fire_fail(error, FIRE_BAD_REQUEST, "http",
                         "'%.100s' is no address for HTTP: give host:port such as 127.0.0.1:8471, "
                         "[::1]:0, or off",
                         address);
    if (http->certificate)
        flags |= MHD_USE_TLS;
    if (storage.ss_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    http->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, http, MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&storage,
        MHD_OPTION_CONNECTION_LIMIT, HTTP_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
        HTTP_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_MEMORY_BYTES,
        MHD_OPTION_URI_LOG_CALLBACK, on_uri, http, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
        MHD_OPTION_ARRAY, http->certificate ? tls : none, MHD_OPTION_END);
    if (!http->daemon)
        return fire_fail(error, FIRE_IO, "http",
                         "cannot serve HTTP on %.100s: %s; another fired may hold it: choose "
                         "another with --http ADDR, or --http off",
                         address, strerror(errno));
    return FIRE_OK;
}

static enum fire_status watch_daemon(struct http *http, struct fire_error *error)
{
    const union MHD_DaemonInfo *port = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
    const union MHD_DaemonInfo *poll = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);

    if (!port || !poll)
        return fire_fail(error, FIRE_IO, "http", "libmicrohttpd gives no epoll descriptor");
    http->port = port->port;
    if (uv_poll_init(&http->server->loop, &http->poll, poll->epoll_fd) != 0)
        return fire_fail(error, FIRE_IO, "http", "the HTTP descriptor cannot be watched");
    http->poll.data = http;
    http->handles++;
    uv_timer_init(&http->server->loop, &http->timer);
    http->timer.data = http;
    http->handles++;
    uv_timer_init(&http->server->loop, &http->ping);
    http->ping.data = http;
    http->handles++;
    uv_timer_start(&http->ping, http_watch_ping, HTTP_WATCH_PING_MS, HTTP_WATCH_PING_MS);
    uv_poll_start(&http->poll, UV_READABLE, on_poll);
    run(http);
    return FIRE_OK;
}

static void http_free(struct http *http)
{
    http_sessions_close(http->sessions);
    free(http->certificate);
    free(http->key);
    free(http);
}

enum fire_status http_open(struct server *server, const char *address, struct http **out,
                           struct fire_error *error)
{
    struct http *http = calloc(1, sizeof(*http));
    enum fire_status status;

    *out = NULL;
    if (!http)
        return fire_fail_memory(error, sizeof(*http));
    http->server = server;
    http->sessions = http_sessions_open();
    status = http->sessions ? read_tls(http, error) : fire_fail_memory(error, 1);
    if (status == FIRE_OK)
        status = start_daemon(http, address, error);
    if (status == FIRE_OK)
        status = watch_daemon(http, error);
    if (status != FIRE_OK) {
        http_close(http, NULL, NULL);
        return status;
    }
    log_info("http_listening", LOG_TEXT("address", address), LOG_U64("port", http->port));
    *out = http;
    return FIRE_OK;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct http *http = handle->data;
    void (*closed)(void *data) = http->closed;
    void *data = http->closed_data;

    if (--http->handles)
        return;
    http_free(http);
    if (closed)
        closed(data);
}

/* Stops serving. Suspended connections are let go first, which MHD insists on; what the history or
 * a worker still holds comes back to requests without a connection. */
static void stop_serving(struct http *http)
{
    http_watch_close_all(http);
    while (http->suspended)
        http_request_resume(http->suspended);
    if (http->daemon)
        MHD_stop_daemon(http->daemon);
    http->daemon = NULL;
}

/* The handles close, and so does the struct, once no request is out. */
static void close_handles(struct http *http)
{
    uv_close((uv_handle_t *)&http->poll, on_handle_closed);
    uv_close((uv_handle_t *)&http->timer, on_handle_closed);
    uv_close((uv_handle_t *)&http->ping, on_handle_closed);
}

void http_call_ended(struct http *http)
{
    http->calls--;
    if (http->closing && http->calls == 0)
        close_handles(http);
}

void http_close(struct http *http, void (*closed)(void *data), void *data)
{
    if (!http || http->handles == 0) {
        if (http) {
            stop_serving(http);
            http_free(http);
        }
        if (closed)
            closed(data);
        return;
    }
    http->closed = closed;
    http->closed_data = data;
    http->closing = true;
    uv_poll_stop(&http->poll);
    uv_timer_stop(&http->timer);
    uv_timer_stop(&http->ping);
    stop_serving(http);
    if (http->calls == 0)
        close_handles(http);
}

uint16_t http_port(const struct http *http)
{
    return http->port;
}
