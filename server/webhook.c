/* webhook: a queue, a thread and one libcurl handle.
 *
 * Invariants, under `lock`:
 *   count <= WEBHOOK_QUEUE_MAX
 *   a body belongs to the queue until the thread has taken it, then to the thread */
#include "webhook.h"

#include <curl/curl.h>
#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "log.h"

#define PAUSE_S_DEFAULT 0.5
#define PAUSE_S_MAX     30.0
#define HEADER_BYTES    160

struct delivery {
    uint64_t id;
    char *body;
};

struct webhook {
    char url[WEBHOOK_URL_BYTES];
    unsigned char secret[WEBHOOK_SECRET_BYTES];
    size_t secret_bytes;
    double pause_s;
    struct metrics *metrics;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* something to send, or the end */
    pthread_t thread;
    bool started;
    atomic_bool ending;
    struct delivery queue[WEBHOOK_QUEUE_MAX];
    uint32_t first;
    uint32_t count;
    uint64_t next_id;
};

bool webhook_sign(const void *secret, size_t secret_bytes, const char *timestamp, const char *body,
                  char *text)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int digest_bytes = 0;
    char *message = NULL;
    const int length = asprintf(&message, "%s.%s", timestamp, body);
    size_t used = (size_t)sprintf(text, "sha256=");

    if (length < 0)
        return false;
    if (!HMAC(EVP_sha256(), secret, (int)secret_bytes, (const unsigned char *)message,
              (size_t)length, digest, &digest_bytes))
        digest_bytes = 0;
    free(message);
    for (unsigned int i = 0; i < digest_bytes; i++)
        used += (size_t)sprintf(text + used, "%02x", digest[i]);
    return digest_bytes > 0;
}

/* --- one delivery ----------------------------------------------------------------------------- */

static size_t drop_answer(char *bytes, size_t size, size_t count, void *data)
{
    (void)bytes;
    (void)data;
    return size * count;
}

/* Stops a transfer in the middle when the daemon ends. */
static int on_progress(void *data, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    return atomic_load(&((struct webhook *)data)->ending) ? 1 : 0;
}

/* Adds a header; on failure the list is freed and NULL. */
static struct curl_slist *add_header(struct curl_slist *list, const char *name, const char *value)
{
    char line[HEADER_BYTES];
    struct curl_slist *longer;

    if (!list)
        return NULL;
    snprintf(line, sizeof(line), "%s: %s", name, value);
    longer = curl_slist_append(list, line);
    if (!longer)
        curl_slist_free_all(list);
    return longer;
}

/* NULL: no memory. An unsigned delivery is not sent where a signature was promised. */
static struct curl_slist *headers_make(const struct webhook *webhook,
                                       const struct delivery *delivery)
{
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");
    char timestamp[32], number[32], signature[80];

    snprintf(number, sizeof(number), "%" PRIu64, delivery->id);
    list = add_header(list, "X-Fired-Delivery", number);
    if (!webhook->secret_bytes)
        return list;
    snprintf(timestamp, sizeof(timestamp), "%lld", (long long)time(NULL));
    if (!webhook_sign(webhook->secret, webhook->secret_bytes, timestamp, delivery->body,
                      signature)) {
        curl_slist_free_all(list);
        return NULL;
    }
    list = add_header(list, "X-Fired-Timestamp", timestamp);
    return add_header(list, "X-Fired-Signature", signature);
}

/* One try; the HTTP code, or 0 with the reason in `text`. */
static long post_once(struct webhook *webhook, CURL *curl, const struct delivery *delivery,
                      char text[CURL_ERROR_SIZE])
{
    struct curl_slist *headers = headers_make(webhook, delivery);
    long code = 0;
    CURLcode result;

    snprintf(text, CURL_ERROR_SIZE, "no memory");
    if (!headers)
        return 0;
    text[0] = '\0';
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_URL, webhook->url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, delivery->body);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)strlen(delivery->body));
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)WEBHOOK_TIMEOUT_MS);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "fired");
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, drop_answer);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, text);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, webhook);
    result = curl_easy_perform(curl);
    if (result == CURLE_OK)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    else if (!text[0])
        snprintf(text, CURL_ERROR_SIZE, "%s", curl_easy_strerror(result));
    curl_slist_free_all(headers);
    return code;
}

/* Sleeps, or wakes early at the end of the daemon. */
static void pause_for(struct webhook *webhook, double seconds)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)(1e9 * (seconds - (double)(time_t)seconds));
    until.tv_sec += until.tv_nsec / 1000000000l;
    until.tv_nsec %= 1000000000l;
    pthread_mutex_lock(&webhook->lock);
    while (!webhook->ending &&
           pthread_cond_timedwait(&webhook->changed, &webhook->lock, &until) != ETIMEDOUT) {
    }
    pthread_mutex_unlock(&webhook->lock);
}

static void deliver(struct webhook *webhook, CURL *curl, const struct delivery *delivery)
{
    double pause_s = webhook->pause_s;
    char text[CURL_ERROR_SIZE];
    long code = 0;

    for (uint32_t tries = 1; !atomic_load(&webhook->ending); tries++) {
        bool again;

        code = post_once(webhook, curl, delivery, text);
        if (code >= 200 && code < 300) {
            metrics_add(webhook->metrics, METRIC_WEBHOOKS, "sent", NULL, 1);
            return;
        }
        again = (code == 0 || code == 429 || code >= 500) && tries < WEBHOOK_TRIES_MAX;
        if (!again)
            break;
        metrics_add(webhook->metrics, METRIC_WEBHOOKS, "retried", NULL, 1);
        pause_for(webhook, pause_s);
        pause_s = 2.0 * pause_s < PAUSE_S_MAX ? 2.0 * pause_s : PAUSE_S_MAX;
    }
    metrics_add(webhook->metrics, METRIC_WEBHOOKS, "failed", NULL, 1);
    log_warn("webhook_failed", LOG_U64("delivery", delivery->id), LOG_I64("code", code),
             LOG_TEXT("message", text));
}

/* --- the thread ------------------------------------------------------------------------------- */

static bool take(struct webhook *webhook, struct delivery *delivery)
{
    bool taken = false;

    pthread_mutex_lock(&webhook->lock);
    while (!webhook->ending && webhook->count == 0)
        pthread_cond_wait(&webhook->changed, &webhook->lock);
    if (!webhook->ending) {
        *delivery = webhook->queue[webhook->first];
        webhook->first = (webhook->first + 1) % WEBHOOK_QUEUE_MAX;
        webhook->count--;
        taken = true;
    }
    pthread_mutex_unlock(&webhook->lock);
    return taken;
}

static void *run(void *data)
{
    struct webhook *webhook = data;
    CURL *curl = curl_easy_init();
    struct delivery delivery;

    while (take(webhook, &delivery)) {
        if (curl)
            deliver(webhook, curl, &delivery);
        else
            metrics_add(webhook->metrics, METRIC_WEBHOOKS, "failed", NULL, 1);
        free(delivery.body);
    }
    curl_easy_cleanup(curl);
    return NULL;
}

bool webhook_send(struct webhook *webhook, const char *body)
{
    char *copy = strdup(body);
    bool queued = false;

    pthread_mutex_lock(&webhook->lock);
    if (copy && webhook->count < WEBHOOK_QUEUE_MAX) {
        webhook->queue[(webhook->first + webhook->count) % WEBHOOK_QUEUE_MAX] =
            (struct delivery){ ++webhook->next_id, copy };
        webhook->count++;
        queued = true;
        pthread_cond_broadcast(&webhook->changed);
    }
    pthread_mutex_unlock(&webhook->lock);
    if (!queued) {
        free(copy);
        metrics_add(webhook->metrics, METRIC_WEBHOOKS, "dropped", NULL, 1);
    }
    return queued;
}

/* --- life ------------------------------------------------------------------------------------- */

static enum fire_status read_secret(struct webhook *webhook, const char *path,
                                    struct fire_error *error)
{
    FILE *file = fopen(path, "re");

    if (!file)
        return fire_fail(error, FIRE_IO, "alert_secret_file", "%.200s: %s", path, strerror(errno));
    webhook->secret_bytes = fread(webhook->secret, 1, sizeof(webhook->secret), file);
    if (ferror(file) || !feof(file)) {
        (void)fclose(file);
        return fire_fail(error, FIRE_BAD_REQUEST, "alert_secret_file",
                         "%.200s: a secret has 1 to %u bytes", path, WEBHOOK_SECRET_BYTES - 1);
    }
    (void)fclose(file);
    while (webhook->secret_bytes && (webhook->secret[webhook->secret_bytes - 1] == '\n' ||
                                     webhook->secret[webhook->secret_bytes - 1] == '\r'))
        webhook->secret_bytes--;
    if (!webhook->secret_bytes)
        return fire_fail(error, FIRE_BAD_REQUEST, "alert_secret_file", "%.200s is empty", path);
    return FIRE_OK;
}

enum fire_status webhook_open(const struct webhook_settings *settings, struct webhook **out,
                              struct fire_error *error)
{
    struct webhook *webhook = calloc(1, sizeof(*webhook));
    enum fire_status status = FIRE_OK;
    pthread_condattr_t attributes;

    *out = NULL;
    if (!webhook)
        return fire_fail_memory(error, sizeof(*webhook));
    pthread_mutex_init(&webhook->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&webhook->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    webhook->pause_s = settings->pause_s > 0.0 ? settings->pause_s : PAUSE_S_DEFAULT;
    webhook->metrics = settings->metrics;
    if (strlen(settings->url) >= sizeof(webhook->url) ||
        (strncmp(settings->url, "http://", 7) != 0 && strncmp(settings->url, "https://", 8) != 0))
        status = fire_fail(error, FIRE_BAD_REQUEST, "alert_webhook",
                           "alert_webhook must be http://… or https://… of at most %u bytes, got "
                           "\"%.100s\"",
                           WEBHOOK_URL_BYTES - 1, settings->url);
    else
        memcpy(webhook->url, settings->url, strlen(settings->url) + 1);
    if (status == FIRE_OK && settings->secret_file && settings->secret_file[0])
        status = read_secret(webhook, settings->secret_file, error);
    if (status == FIRE_OK && curl_global_init(CURL_GLOBAL_DEFAULT) != 0)
        status = fire_fail(error, FIRE_NO_MEMORY, "alert_webhook", "libcurl could not be started");
    if (status == FIRE_OK) {
        webhook->started = pthread_create(&webhook->thread, NULL, run, webhook) == 0;
        if (!webhook->started)
            status = fire_fail(error, FIRE_NO_MEMORY, "alert_webhook",
                               "no thread could be started; raise the limit of threads");
    }
    if (status != FIRE_OK) {
        webhook_close(webhook);
        return status;
    }
    *out = webhook;
    return FIRE_OK;
}

void webhook_close(struct webhook *webhook)
{
    if (!webhook)
        return;
    pthread_mutex_lock(&webhook->lock);
    atomic_store(&webhook->ending, true);
    pthread_cond_broadcast(&webhook->changed);
    pthread_mutex_unlock(&webhook->lock);
    if (webhook->started)
        pthread_join(webhook->thread, NULL);
    for (uint32_t i = 0; i < webhook->count; i++)
        free(webhook->queue[(webhook->first + i) % WEBHOOK_QUEUE_MAX].body);
    OPENSSL_cleanse(webhook->secret, sizeof(webhook->secret));
    pthread_cond_destroy(&webhook->changed);
    pthread_mutex_destroy(&webhook->lock);
    free(webhook);
}
