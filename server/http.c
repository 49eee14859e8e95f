/* http: libmicrohttpd inside the loop.
 *
 * MHD gives one epoll descriptor; a uv_poll watches it and a uv_timer stands for its timeouts, so
 * every handler runs on the loop thread and nothing here needs a lock. Three pages, all made in
 * memory: /metrics, /healthz, /readyz. */
#include "http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "log.h"
#include "monitor.h"
#include "rpc_server.h"
#include "server_life.h"

#define HTTP_CONNECTIONS_MAX 256u
#define HTTP_IDLE_S          30u
#define HTTP_MEMORY_BYTES    (32u << 10) /* of one connection: headers */
#define HTTP_HOST_BYTES      256u
#define HTTP_PEM_BYTES_MAX   (1u << 20)

struct http {
    struct server *server;
    struct MHD_Daemon *daemon;
    uv_poll_t poll;
    uv_timer_t timer;
    char *certificate;
    char *key;
    uint16_t port;
    uint32_t handles; /* uv handles still open */
    void (*closed)(void *data);
    void *closed_data;
};

/* One request: what its page says. */
struct page {
    unsigned int code;
    char *text; /* malloc'ed */
    size_t bytes;
    const char *type;
};

struct route {
    const char *path;
    const char *method; /* for auth_check */
    enum fire_status (*make)(struct server *server, struct page *page);
};

static enum fire_status page_text(struct page *page, unsigned int code, const char *text)
{
    page->code = code;
    page->type = "text/plain; charset=utf-8";
    page->text = strdup(text);
    page->bytes = page->text ? strlen(text) : 0;
    return page->text ? FIRE_OK : FIRE_NO_MEMORY;
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

static const char *header_of(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
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

static enum fire_status check_caller(struct http *http, struct MHD_Connection *connection,
                                     const char *method, struct fire_error *error)
{
    const char *authorization = header_of(connection, MHD_HTTP_HEADER_AUTHORIZATION);
    struct auth_caller caller = { .local = caller_is_local(connection) };
    char tenant[TENANT_NAME_BYTES];

    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0) {
        caller.token = authorization + 7;
        caller.token_bytes = strlen(caller.token);
    }
    return auth_check(http->server->auth, &caller, method, tenant, error);
}

/* Fills `page` for a request, or with the reason why there is none. */
static enum fire_status make_page(struct http *http, struct MHD_Connection *connection,
                                  const char *path, const char *verb, struct page *page)
{
    const struct route *route = route_find(path);
    const char *host = header_of(connection, MHD_HTTP_HEADER_HOST);
    const char *origin = header_of(connection, MHD_HTTP_HEADER_ORIGIN);
    struct fire_error error = { 0 };
    enum fire_status status;

    if (!host_is_ours(host) || (origin && !origin_is_ours(origin, host)))
        return page_text(page, MHD_HTTP_FORBIDDEN,
                         "refused: Host must be an address, localhost or this machine's name, and "
                         "Origin, if there is one, the same\n");
    if (!route)
        return page_text(page, MHD_HTTP_NOT_FOUND, "try /metrics, /healthz or /readyz\n");
    if (strcmp(verb, MHD_HTTP_METHOD_GET) != 0 && strcmp(verb, MHD_HTTP_METHOD_HEAD) != 0)
        return page_text(page, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    status = check_caller(http, connection, route->method, &error);
    if (status == FIRE_UNAUTHENTICATED)
        return page_text(page, MHD_HTTP_UNAUTHORIZED, "a bearer token is needed\n");
    if (status != FIRE_OK)
        return page_text(page, MHD_HTTP_FORBIDDEN, "not allowed\n");
    return route->make(http->server, page);
}

static enum MHD_Result answer(struct http *http, struct MHD_Connection *connection,
                              const char *path, struct page *page)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(page->bytes, page->text, MHD_RESPMEM_MUST_FREE);
    char code[8];
    enum MHD_Result result;

    if (!response) {
        free(page->text);
        return MHD_NO;
    }
    snprintf(code, sizeof(code), "%u", page->code);
    metrics_add(http->server->metrics, METRIC_HTTP, route_find(path) ? path : "other", code, 1);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, page->type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (page->code == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (page->code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    result = MHD_queue_response(connection, page->code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result handle(void *data, struct MHD_Connection *connection, const char *path,
                              const char *verb, const char *version, const char *upload,
                              size_t *upload_bytes, void **state)
{
    static char seen;
    struct http *http = data;
    struct page page = { 0 };

    (void)version;
    (void)upload;
    /* First with the headers, then with pieces of a body, which nothing here has a use for. */
    if (!*state) {
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_bytes) {
        *upload_bytes = 0;
        return MHD_YES;
    }
    if (make_page(http, connection, path, verb, &page) != FIRE_OK)
        return MHD_NO;
    return answer(http, connection, path, &page);
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

    MHD_run(http->daemon);
    if (MHD_get_timeout(http->daemon, &timeout_ms) == MHD_YES)
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
    unsigned int flags = MHD_USE_EPOLL;

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
    uv_poll_start(&http->poll, UV_READABLE, on_poll);
    run(http);
    return FIRE_OK;
}

static void http_free(struct http *http)
{
    if (http->daemon)
        MHD_stop_daemon(http->daemon);
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
    status = read_tls(http, error);
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

void http_close(struct http *http, void (*closed)(void *data), void *data)
{
    if (!http || http->handles == 0) {
        if (http)
            http_free(http);
        if (closed)
            closed(data);
        return;
    }
    http->closed = closed;
    http->closed_data = data;
    uv_close((uv_handle_t *)&http->poll, on_handle_closed);
    uv_close((uv_handle_t *)&http->timer, on_handle_closed);
}

uint16_t http_port(const struct http *http)
{
    return http->port;
}
