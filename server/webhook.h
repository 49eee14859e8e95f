/* webhook: bodies of JSON to one address over HTTP, from a thread of its own.
 *
 * The queue is bounded: what does not fit is counted and dropped. A delivery that fails (no
 * connection, a timeout, 429 or 5xx) is tried again with growing pauses, a few times, in order; any
 * other answer than 2xx is final. With a secret, every delivery carries
 *     X-Fired-Timestamp: seconds since 1970
 *     X-Fired-Signature: sha256=HEX, the HMAC-SHA256 with the secret of "TIMESTAMP.BODY"
 * and always X-Fired-Delivery, a number that stays the same when it is tried again. Redirects are
 * not followed. */
#ifndef FIRED_WEBHOOK_H
#define FIRED_WEBHOOK_H

#include <stdbool.h>
#include <stddef.h>

#include "metrics.h"
#include "status.h"

#define WEBHOOK_QUEUE_MAX    256u
#define WEBHOOK_TRIES_MAX    6u
#define WEBHOOK_TIMEOUT_MS   10000
#define WEBHOOK_SECRET_BYTES 4096u
#define WEBHOOK_URL_BYTES    2048u

struct webhook;

struct webhook_settings {
    const char *url;         /* http:// or https:// */
    const char *secret_file; /* NULL or "": no signature; its bytes without the last newline */
    double pause_s;          /* before the second try, doubled each time; 0: 0.5 */
    struct metrics *metrics; /* may be NULL */
};

/* Reads the secret and starts the thread. On failure `*webhook` is NULL and `error` says why. */
FIRE_NODISCARD enum fire_status webhook_open(const struct webhook_settings *settings,
                                             struct webhook **webhook, struct fire_error *error);
/* Ends the thread, also in the middle of a delivery; what waits is dropped. NULL is allowed. */
void webhook_close(struct webhook *webhook);

/* Queues a copy of `body`; any thread. False when the queue is full or there is no memory. */
bool webhook_send(struct webhook *webhook, const char *body);

/* The signature header's value; `text` has room for 80 bytes. False when there is no memory. */
bool webhook_sign(const void *secret, size_t secret_bytes, const char *timestamp, const char *body,
                  char *text);

#endif
