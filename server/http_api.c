/* http_api: /api/v1, the contract's messages as JSON.
 *
 * A path is a method of MonitorService (or AdminService/Status) and asks for the same right; its
 * query parameters are the fields of the request, its body the response. Two parameters are of HTTP
 * alone: `digits` (significant digits of the numbers in the answer) and `tenant` (as the header
 * x-fired-tenant, for callers that have no other credential than being on this machine).
 *
 * A call that needs the history is suspended; the answer comes back on the loop, a worker makes
 * text of it, and the connection goes on. Bodies and answers are reserved from the same budget as
 * messages of gRPC. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fire/v1/admin.pb-c.h"
#include "http_internal.h"
#include "http_path.h"
#include "rpc_server.h"

#define API_PREFIX     "/api/v1/"
#define LIST_MAX       1024u /* entries of a repeated query parameter */
#define ARGUMENT_BYTES 1024u

struct api_route {
    const char *label;                       /* path with {run}, for metrics */
    const char *segments[HTTP_SEGMENTS_MAX]; /* "*": a run's id */
    const char *verbs[4];
    const char *method; /* for auth_check; NULL: decided by the handler */
    const ProtobufCMessageDescriptor *request;
    enum monitor_method call;
    enum MHD_Result (*handle)(struct http_request *request, const char *verb);
};

static enum MHD_Result handle_call(struct http_request *request, const char *verb);
static enum MHD_Result handle_watch(struct http_request *request, const char *verb);
static enum MHD_Result handle_status(struct http_request *request, const char *verb);
static enum MHD_Result handle_session(struct http_request *request, const char *verb);

#define MONITOR "fire.v1.MonitorService/"
#define GET     "GET", "HEAD"

static const struct api_route routes[] = {
    { "/api/v1/runs",
      { "runs" },
      { GET },
      MONITOR "ListRuns",
      &fire__v1__list_runs_request__descriptor,
      MONITOR_LIST_RUNS,
      handle_call },
    { "/api/v1/runs/{run}",
      { "runs", "*" },
      { GET },
      MONITOR "ListRuns",
      &fire__v1__list_runs_request__descriptor,
      MONITOR_LIST_RUNS,
      handle_call },
    { "/api/v1/runs/{run}/query",
      { "runs", "*", "query" },
      { GET },
      MONITOR "Query",
      &fire__v1__query_request__descriptor,
      MONITOR_QUERY,
      handle_call },
    { "/api/v1/runs/{run}/advice",
      { "runs", "*", "advice" },
      { GET },
      MONITOR "Advise",
      &fire__v1__advise_request__descriptor,
      MONITOR_ADVISE,
      handle_call },
    { "/api/v1/events",
      { "events" },
      { GET },
      MONITOR "ListEvents",
      &fire__v1__list_events_request__descriptor,
      MONITOR_LIST_EVENTS,
      handle_call },
    { "/api/v1/watch",
      { "watch" },
      { GET },
      MONITOR "Watch",
      &fire__v1__watch_request__descriptor,
      0,
      handle_watch },
    { "/api/v1/report",
      { "report" },
      { "POST" },
      MONITOR "Report",
      &fire__v1__report_request__descriptor,
      MONITOR_REPORT,
      handle_call },
    { "/api/v1/status",
      { "status" },
      { GET },
      "fire.v1.AdminService/Status",
      &fire__v1__status_request__descriptor,
      0,
      handle_status },
    { "/api/v1/session", { "session" }, { GET, "POST", "DELETE" }, NULL, NULL, 0, handle_session },
};

bool http_api_owns(const char *path)
{
    return strncmp(path, API_PREFIX, strlen(API_PREFIX)) == 0 &&
           strcmp(path, API_PREFIX "openapi.json") != 0;
}

/* --- addresses -------------------------------------------------------------------------------- */

static bool route_matches(const struct api_route *route, const struct http_segments *segments)
{
    size_t i;

    for (i = 0; i < segments->count; i++) {
        if (!route->segments[i] || (strcmp(route->segments[i], "*") != 0 &&
                                    strcmp(route->segments[i], segments->text[i]) != 0))
            return false;
    }
    return i == HTTP_SEGMENTS_MAX || !route->segments[i];
}

static const struct api_route *route_find(const struct http_segments *segments)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (route_matches(&routes[i], segments))
            return &routes[i];
    }
    return NULL;
}

/* --- parameters ------------------------------------------------------------------------------- */

struct arguments {
    struct http_request *request;
    bool run_in_path;
    enum fire_status status;
    struct fire_error *error;
};

static enum fire_status take_digits(struct http_request *request, const char *value,
                                    struct fire_error *error)
{
    char *end;
    const unsigned long digits = strtoul(value, &end, 10);

    if (value[0] < '0' || value[0] > '9' || *end || digits < 1 || digits > JSON_DIGITS_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "digits", "digits must be 1 to %u",
                         JSON_DIGITS_MAX);
    request->digits = (unsigned)digits;
    return FIRE_OK;
}

static enum MHD_Result on_argument(void *data, enum MHD_ValueKind kind, const char *key,
                                   size_t key_bytes, const char *value, size_t value_bytes)
{
    struct arguments *arguments = data;
    struct fire_error *error = arguments->error;

    (void)kind;
    if (!value)
        value = "";
    if (strlen(key) != key_bytes || strlen(value) != value_bytes || value_bytes > ARGUMENT_BYTES)
        arguments->status =
            fire_fail(error, FIRE_BAD_REQUEST, "query",
                      "a parameter has at most %u bytes, and no zero among them", ARGUMENT_BYTES);
    else if (strcmp(key, "tenant") == 0)
        arguments->status = FIRE_OK; /* http_check_caller() has looked at it */
    else if (strcmp(key, "digits") == 0)
        arguments->status = take_digits(arguments->request, value, error);
    else if (strcmp(key, "run") == 0 && arguments->run_in_path)
        arguments->status = fire_fail(error, FIRE_BAD_REQUEST, "run", "the run is in the path");
    else
        arguments->status =
            json_message_set(arguments->request->message, key, value, LIST_MAX, error);
    return arguments->status == FIRE_OK ? MHD_YES : MHD_NO;
}

/* The request message: from the path, the query, and, for a POST, later from the body. */
static enum fire_status make_message(struct http_request *request,
                                     const struct http_segments *segments, struct fire_error *error)
{
    const struct api_route *route = request->route;
    struct arguments arguments = {
        .request = request, .run_in_path = segments->count > 1, .status = FIRE_OK, .error = error
    };

    request->message = json_message_new(route->request);
    if (!request->message)
        return fire_fail_memory(error, route->request->sizeof_message);
    if (arguments.run_in_path) {
        const enum fire_status status =
            json_message_set(request->message, "run", segments->text[1], 1, error);

        if (status != FIRE_OK)
            return status;
    }
    MHD_get_connection_values_n(request->connection, MHD_GET_ARGUMENT_KIND, on_argument,
                                &arguments);
    return arguments.status;
}

/* --- before the body -------------------------------------------------------------------------- */

static bool verb_allowed(const struct api_route *route, const char *verb)
{
    for (size_t i = 0; i < sizeof(route->verbs) / sizeof(route->verbs[0]); i++)
        if (route->verbs[i] && strcmp(route->verbs[i], verb) == 0)
            return true;
    return false;
}

static void refuse(struct http_request *request, unsigned int code, enum fire_status status,
                   const char *field, const char *message)
{
    struct fire_error error = { 0 };

    (void)fire_fail(&error, status, field, "%s", message);
    request->page.code = code;
    (void)page_error(&request->page, &error);
}

/* Room for a body, reserved before a byte of it is read. */
static void prepare_body(struct http_request *request)
{
    const char *length = http_header(request, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *type = http_header(request, MHD_HTTP_HEADER_CONTENT_TYPE);
    char *end = NULL;
    const unsigned long long bytes = length ? strtoull(length, &end, 10) : 0;

    if (!type || strncmp(type, "application/json", 16) != 0)
        refuse(request, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, FIRE_BAD_REQUEST, "content-type",
               "the body must be application/json");
    else if (!length || *end)
        refuse(request, MHD_HTTP_LENGTH_REQUIRED, FIRE_BAD_REQUEST, "content-length",
               "Content-Length is needed");
    else if (bytes > HTTP_BODY_BYTES_MAX)
        refuse(request, MHD_HTTP_CONTENT_TOO_LARGE, FIRE_BAD_REQUEST, "body",
               "the body may have at most 4 MiB: send the points in several reports");
    else if (!budget_reserve(&request->http->server->messages, bytes))
        refuse(request, 0, FIRE_BUSY, "body", "no room for the body now; try again");
    else {
        request->reserved = bytes;
        request->body_room = bytes;
        request->body = malloc(bytes + 1);
        if (!request->body)
            refuse(request, 0, FIRE_NO_MEMORY, "body", "no memory for the body");
    }
}

void http_api_begin(struct http_request *request, const char *verb)
{
    struct http_segments *segments = calloc(1, sizeof(*segments));
    const struct api_route *route;
    struct fire_error error = { 0 };
    enum fire_status status = FIRE_OK;

    if (!segments) {
        refuse(request, 0, FIRE_NO_MEMORY, NULL, "no memory");
        return;
    }
    route =
        http_path_split(request->path + strlen(API_PREFIX), segments) ? route_find(segments) : NULL;
    request->route = route;
    request->page.label = route ? route->label : "/api/v1";
    if (!route) {
        refuse(request, 0, FIRE_NOT_FOUND, "path",
               "no such path; /api/v1/openapi.json describes what there is");
    } else if (!verb_allowed(route, verb)) {
        request->page.allow = strcmp(route->verbs[0], "POST") == 0 ? "POST"
                              : route->verbs[2]                    ? "GET, HEAD, POST, DELETE"
                                                                   : "GET, HEAD";
        refuse(request, MHD_HTTP_METHOD_NOT_ALLOWED, FIRE_BAD_REQUEST, "method",
               "this path does not take that method");
    } else {
        /* The page is for looking only: what changes something does not take its cookie. */
        if (route->method)
            status = http_check_caller(request, route->method, strcmp(verb, "POST") == 0, &error);
        if (status == FIRE_OK && route->request)
            status = make_message(request, segments, &error);
        if (status != FIRE_OK)
            (void)page_error(&request->page, &error);
        else if (route->request && strcmp(verb, "POST") == 0)
            prepare_body(request);
    }
    free(segments);
}

/* --- calls to the history --------------------------------------------------------------------- */

static void answer_error(struct http_request *request, const struct fire_error *error)
{
    request->page.code = 0;
    (void)page_error(&request->page, error);
}

/* The last step of a call, on the loop: the connection goes on, or everything is freed. */
static void call_over(struct http_request *request)
{
    struct http *http = request->http;

    request->busy = false;
    if (request->connection)
        http_request_resume(request);
    else
        http_request_unref(request);
    http_call_ended(http);
}

static const ProtobufCMessage *shown(const struct http_request *request)
{
    if (request->route->call == MONITOR_LIST_RUNS && request->route->segments[1])
        return &((const Fire__V1__ListRunsResponse *)request->answer)->runs[0]->base;
    return request->answer;
}

static void on_render(uv_work_t *work)
{
    struct http_request *request = work->data;

    json_put_message(&request->text, shown(request), request->digits);
    json_put(&request->text, "\n");
}

static void after_render(uv_work_t *work, int status)
{
    struct http_request *request = work->data;
    struct fire_error error = { 0 };

    protobuf_c_message_free_unpacked(request->answer, NULL);
    request->answer = NULL;
    if (status != 0 || request->text.failed ||
        !budget_reserve(&request->http->server->messages, request->text.used)) {
        (void)fire_fail(&error, FIRE_BUSY, NULL,
                        "no memory for the answer now; ask for less, or "
                        "try again");
        json_text_release(&request->text);
        answer_error(request, &error);
    } else {
        request->reserved += request->text.used;
        request->page.code = MHD_HTTP_OK;
        (void)page_json(&request->page, &request->text);
    }
    call_over(request);
}

static void on_answer(enum fire_status status, ProtobufCMessage *response,
                      const struct fire_error *error, void *data)
{
    struct http_request *request = data;
    struct fire_error missing = { 0 };

    request->answer = response;
    if (status == FIRE_OK && request->route->call == MONITOR_LIST_RUNS &&
        request->route->segments[1] && ((Fire__V1__ListRunsResponse *)response)->n_runs == 0) {
        status = fire_fail(&missing, FIRE_NOT_FOUND, "run", "no run has this id");
        error = &missing;
    }
    if (status == FIRE_OK) {
        request->work.data = request;
        if (uv_queue_work(&request->http->server->loop, &request->work, on_render, after_render) ==
            0)
            return;
        (void)fire_fail(&missing, FIRE_BUSY, NULL, "no worker is free; try again");
        error = &missing;
    }
    answer_error(request, error);
    call_over(request);
}

static void ask(struct http_request *request)
{
    struct server *server = request->http->server;

    monitor_call(server->monitor, request->route->call, request->tenant, request->message,
                 on_answer, request);
}

/* A report's body, read by a worker. */
static void on_parse(uv_work_t *work)
{
    struct http_request *request = work->data;
    struct fire_error error = { 0 };
    ProtobufCMessage *message = NULL;

    if (json_message_parse(request->route->request, request->body, request->body_bytes, &message,
                           &error) != FIRE_OK) {
        answer_error(request, &error);
        return;
    }
    protobuf_c_message_free_unpacked(request->message, NULL);
    request->message = message;
}

static void after_parse(uv_work_t *work, int status)
{
    struct http_request *request = work->data;

    if (status == 0 && !request->page.code && request->connection)
        ask(request);
    else
        call_over(request);
}

static enum MHD_Result handle_call(struct http_request *request, const char *verb)
{
    struct http *http = request->http;

    (void)verb;
    if (!http->server->monitor || http->calls >= HTTP_CALLS_MAX) {
        refuse(request, 0, FIRE_BUSY, NULL,
               http->server->monitor ? "too many questions at once; try again"
                                     : "this daemon keeps no history: see the setting history");
        return http_answer(request);
    }
    http->calls++;
    request->busy = true;
    http_request_suspend(request);
    if (!request->body) {
        ask(request);
        return MHD_YES;
    }
    request->work.data = request;
    if (uv_queue_work(&http->server->loop, &request->work, on_parse, after_parse) != 0) {
        refuse(request, 0, FIRE_BUSY, NULL, "no worker is free; try again");
        call_over(request);
    }
    return MHD_YES;
}

/* --- the others ------------------------------------------------------------------------------- */

static enum MHD_Result handle_watch(struct http_request *request, const char *verb)
{
    (void)verb;
    return http_watch_start(request);
}

static void use_status(const ProtobufCMessage *status, void *data)
{
    struct http_request *request = data;

    json_put_message(&request->text, status, request->digits);
    json_put(&request->text, "\n");
}

static enum MHD_Result handle_status(struct http_request *request, const char *verb)
{
    (void)verb;
    if (rpc_admin_status(request->http->server, use_status, request) != FIRE_OK ||
        page_json(&request->page, &request->text) != FIRE_OK)
        return MHD_NO;
    request->page.code = MHD_HTTP_OK;
    return http_answer(request);
}

static void set_cookie(struct http_request *request, const char *id, unsigned seconds)
{
    snprintf(request->page.set_cookie, sizeof(request->page.set_cookie),
             HTTP_COOKIE "=%s; Max-Age=%u; Path=/; HttpOnly; SameSite=Strict%s", id, seconds,
             request->http->certificate ? "; Secure" : "");
}

static const char *cookie_of(struct http_request *request)
{
    return MHD_lookup_connection_value(request->connection, MHD_COOKIE_KIND, HTTP_COOKIE);
}

/* {"needed", "signed_in", "tenant"}: whether a token is needed here, and whose one it is. */
static enum MHD_Result answer_session(struct http_request *request, bool signed_in)
{
    const bool needed = auth_has_credentials(request->http->server->auth);
    struct json_text text = { 0 };

    json_put(&text, needed ? "{\"needed\":true" : "{\"needed\":false");
    json_put(&text, signed_in ? ",\"signed_in\":true" : ",\"signed_in\":false");
    json_put(&text, ",\"tenant\":");
    json_put_string(&text, signed_in ? request->tenant : "");
    json_put(&text, "}\n");
    request->page.code = MHD_HTTP_OK;
    if (page_json(&request->page, &text) != FIRE_OK)
        return MHD_NO;
    return http_answer(request);
}

/* A token that is known has a session, whatever it may do; each call is checked by itself. */
static enum MHD_Result handle_session(struct http_request *request, const char *verb)
{
    const bool enters = strcmp(verb, "POST") == 0, leaves = strcmp(verb, "DELETE") == 0;
    const char *authorization = http_header(request, MHD_HTTP_HEADER_AUTHORIZATION);
    struct fire_error error = { 0 };
    char id[HTTP_SESSION_ID_BYTES];
    enum fire_status status;

    if (leaves) {
        if (cookie_of(request))
            http_session_end(request->http->sessions, cookie_of(request));
        set_cookie(request, "", 0);
        return answer_session(request, false);
    }
    status = http_check_caller(request, "http/session", enters, &error);
    if (enters && (status == FIRE_UNAUTHENTICATED || status == FIRE_BAD_REQUEST)) {
        answer_error(request, &error);
        return http_answer(request);
    }
    if (status == FIRE_UNAUTHENTICATED)
        return answer_session(request, false);
    /* For the tenant of a token that may do something, but not this. */
    if (status != FIRE_OK &&
        http_check_caller(request, "http/dashboard", enters, &error) != FIRE_OK)
        return answer_session(request, false);
    if (enters && auth_has_credentials(request->http->server->auth)) {
        status = http_session_add(request->http->sessions, authorization + 7,
                                  strlen(authorization + 7), id, &error);
        if (status != FIRE_OK) {
            answer_error(request, &error);
            return http_answer(request);
        }
        set_cookie(request, id, HTTP_SESSION_S);
    }
    return answer_session(request, true);
}

enum MHD_Result http_api_handle(struct http_request *request, const char *verb)
{
    if (request->body)
        request->body[request->body_bytes] = '\0';
    return request->route->handle(request, verb);
}
