/* http_watch: /api/v1/watch, new points and events as server-sent events.
 *
 * The connection is suspended while there is nothing to send; the history's `ready` resumes it. A
 * comment every 15 s keeps proxies from closing it and tells us when the reader has gone. Messages
 * that a slow reader missed are counted by the history, not kept here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http_internal.h"

#define BLOCK_BYTES   4096u
#define MESSAGE_BYTES (8u << 20)
#define WATCH_DIGITS  9u

struct http_watch {
    struct http *http;
    struct http_watch *next, *previous;
    struct MHD_Connection *connection;
    struct monitor_watch *source;
    struct json_text text; /* what is being sent */
    size_t sent;
    bool suspended;
    bool ping;
    bool closing;
};

static void wake(struct http_watch *watch)
{
    if (!watch->suspended)
        return;
    watch->suspended = false;
    http_resume(watch->http, watch->connection);
}

static void on_ready(void *data)
{
    wake(data);
}

static void fill(struct http_watch *watch)
{
    Fire__V1__WatchResponse *message = monitor_watch_next(watch->source);

    watch->text.used = 0;
    watch->sent = 0;
    if (message) {
        json_put(&watch->text, "data: ");
        json_put_message(&watch->text, &message->base, WATCH_DIGITS);
        json_put(&watch->text, "\n\n");
        protobuf_c_message_free_unpacked(&message->base, NULL);
    } else if (watch->ping) {
        json_put(&watch->text, ": still here\n\n");
    }
    watch->ping = false;
}

static ssize_t on_read(void *data, uint64_t position, char *out, size_t room)
{
    struct http_watch *watch = data;
    size_t bytes;

    (void)position;
    if (watch->closing)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (watch->sent == watch->text.used)
        fill(watch);
    if (watch->text.failed)
        return MHD_CONTENT_READER_END_WITH_ERROR; /* the browser connects again */
    bytes = watch->text.used - watch->sent;
    if (bytes == 0) {
        watch->suspended = true;
        MHD_suspend_connection(watch->connection);
        return 0;
    }
    bytes = bytes < room ? bytes : room;
    memcpy(out, watch->text.bytes + watch->sent, bytes);
    watch->sent += bytes;
    return (ssize_t)bytes;
}

static void watch_free(void *data)
{
    struct http_watch *watch = data;

    if (watch->next)
        watch->next->previous = watch->previous;
    if (watch->previous)
        watch->previous->next = watch->next;
    else
        watch->http->watches = watch->next;
    watch->http->watch_count--;
    monitor_watch_close(watch->source);
    json_text_release(&watch->text);
    free(watch);
}

static struct http_watch *watch_open(struct http_request *request, struct fire_error *error)
{
    struct http *http = request->http;
    struct http_watch *watch;

    if (!http->server->monitor || http->watch_count >= HTTP_WATCHES_MAX) {
        (void)fire_fail(error, FIRE_BUSY, NULL, "no more than %u watches at once",
                        HTTP_WATCHES_MAX);
        return NULL;
    }
    watch = calloc(1, sizeof(*watch));
    if (!watch) {
        (void)fire_fail_memory(error, sizeof(*watch));
        return NULL;
    }
    watch->http = http;
    watch->connection = request->connection;
    watch->text.bytes_max = MESSAGE_BYTES;
    watch->source = monitor_watch_open(http->server->monitor, request->tenant,
                                       (const Fire__V1__WatchRequest *)request->message, on_ready,
                                       watch, error);
    if (!watch->source) {
        free(watch);
        return NULL;
    }
    /* The browser learns at once that the stream stands, and how soon to come back. */
    json_put(&watch->text, "retry: 2000\n\n");
    watch->next = http->watches;
    if (http->watches)
        http->watches->previous = watch;
    http->watches = watch;
    http->watch_count++;
    return watch;
}

enum MHD_Result http_watch_start(struct http_request *request)
{
    struct fire_error error = { 0 };
    struct http_watch *watch = watch_open(request, &error);
    struct MHD_Response *response;

    if (!watch) {
        (void)page_error(&request->page, &error);
        return http_answer(request);
    }
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, on_read, watch,
                                                 watch_free);
    if (!response) {
        watch_free(watch);
        return MHD_NO;
    }
    request->page.code = MHD_HTTP_OK;
    request->page.type = "text/event-stream";
    return http_send(request, response);
}

void http_watch_ping(uv_timer_t *timer)
{
    struct http *http = timer->data;

    for (struct http_watch *watch = http->watches; watch; watch = watch->next) {
        watch->ping = true;
        wake(watch);
    }
}

void http_watch_close_all(struct http *http)
{
    for (struct http_watch *watch = http->watches; watch; watch = watch->next) {
        watch->closing = true;
        wake(watch);
    }
}
