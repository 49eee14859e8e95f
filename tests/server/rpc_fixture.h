/* rpc_fixture: a server of given methods on a unix socket in a folder of its own, its loop on a
 * thread, and a small blocking client. Check forks before each test and gRPC starts after that. */
#ifndef FIRED_RPC_FIXTURE_H
#define FIRED_RPC_FIXTURE_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "rpc_core.h"
#include "server.h"

#define FIXTURE_FOREVER UINT32_MAX
#define DETAIL_TEXT     512

struct rpc_fixture {
    struct server server;
    char folder[64];
    char address[96];
    struct rpc_server *rpc;
    grpc_channel *channel;
    grpc_completion_queue *queue; /* the client's */

    uv_thread_t thread;
    uv_async_t job_wake;
    uv_sem_t job_done;
    void (*_Atomic job)(struct rpc_fixture *fixture, void *data);
    void *job_data;
    bool draining;
    bool drained;
};

/* The settings the server will have; change them before fixture_start(). */
void fixture_init(struct rpc_fixture *fixture);
/* `methods` NULL: those of the daemon. */
void fixture_start(struct rpc_fixture *fixture, const struct rpc_method *const *methods,
                   size_t method_count);
/* Runs `job` on the loop and waits for it. */
void fixture_do(struct rpc_fixture *fixture, void (*job)(struct rpc_fixture *fixture, void *data),
                void *data);
/* Waits for a turn of the loop. */
void fixture_sync(struct rpc_fixture *fixture);
/* Begins to drain; may be called again as long as a call runs. */
void fixture_drain(struct rpc_fixture *fixture, uint32_t limit_ms);
/* Drains with that limit, unless that has begun, and waits until everything is gone; checks that
 * nothing is charged. */
void fixture_stop(struct rpc_fixture *fixture, uint32_t limit_ms);

/* What google.rpc.Status said. */
struct fixture_details {
    uint64_t code;
    char message[DETAIL_TEXT];
    char reason[DETAIL_TEXT];
    char domain[DETAIL_TEXT];
    char field[DETAIL_TEXT];
    char description[DETAIL_TEXT];
    bool retry; /* RetryInfo is there */
    uint64_t retry_seconds;
    uint64_t retry_nanos;
};
/* Takes the bytes apart; fails the test when they are malformed. */
void details_read(const uint8_t *bytes, size_t count, struct fixture_details *details);

struct fixture_answer {
    grpc_status_code code;
    char text[1024];
    bool has_details;
    struct fixture_details details;
    uint8_t *bytes; /* the last message, or NULL; freed by answer_release() */
    size_t count;
};
void answer_release(struct fixture_answer *answer);

struct fixture_header {
    const char *key;
    const char *value;
};

struct client_call;
/* `headers` ends with a NULL key; NULL: none. */
struct client_call *client_open(struct rpc_fixture *fixture, const char *path, uint32_t timeout_ms,
                                const struct fixture_header *headers);
bool client_send(struct client_call *call, const void *bytes, size_t count);
void client_half_close(struct client_call *call);
/* One message, which the caller frees; NULL: there is no more. */
uint8_t *client_read(struct client_call *call, size_t *count);
void client_cancel(struct client_call *call);
/* Reads what is left, waits for the status and ends the call. */
void client_finish(struct client_call *call, struct fixture_answer *answer);

/* One request, one answer. */
void client_unary(struct rpc_fixture *fixture, const char *path, uint32_t timeout_ms,
                  const struct fixture_header *headers, const void *bytes, size_t count,
                  struct fixture_answer *answer);

#endif
