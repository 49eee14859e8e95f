/* firectl_writer: one thread that writes tensors in the order they are pushed, so that writing
 * overlaps with computing the next window.
 *
 * Invariants, under `lock`:
 *   queued_bytes is the sum over the queue of what is owned, and is over the limit only by one item
 *   after `status` is set nothing more is written, owned buffers are still freed
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "firectl.h"

#define QUEUE_BYTES_MAX (64ull << 20)
#define QUEUE_ITEMS_MAX 1024u

struct item {
    struct item *next;
    const struct safetensors_entry *entry;
    const void *bytes;
    void *owned;
};

struct firectl_writer {
    const struct safetensors *set;
    struct safetensors_writer *file;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct item *first;
    struct item *last;
    uint64_t queued_bytes;
    uint32_t queued_items; /* the one being written included */
    bool closing;
    bool started;
    enum fire_status status;
    struct fire_error error;
};

static enum fire_status write_item(struct firectl_writer *writer, const struct item *item,
                                   struct fire_error *error)
{
    enum fire_status status;

    if (item->bytes) {
        status = safetensors_write(writer->file, item->entry, item->bytes, error);
    } else {
        status = safetensors_copy(writer->file, item->entry, error);
        safetensors_done_with(writer->set, item->entry);
    }
    return status;
}

static void *run(void *data)
{
    struct firectl_writer *writer = data;

    pthread_mutex_lock(&writer->lock);
    for (;;) {
        struct item *item = writer->first;
        struct fire_error error = { 0 };
        enum fire_status status = writer->status;

        if (!item) {
            if (writer->closing)
                break;
            pthread_cond_wait(&writer->changed, &writer->lock);
            continue;
        }
        writer->first = item->next;
        if (!writer->first)
            writer->last = NULL;
        pthread_mutex_unlock(&writer->lock);
        if (status == FIRE_OK)
            status = write_item(writer, item, &error);
        free(item->owned);
        pthread_mutex_lock(&writer->lock);
        if (status != FIRE_OK && writer->status == FIRE_OK) {
            writer->status = status;
            writer->error = error;
        }
        writer->queued_bytes -= item->owned ? item->entry->bytes : 0;
        writer->queued_items--;
        free(item);
        pthread_cond_broadcast(&writer->changed);
    }
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

enum fire_status firectl_writer_open(const struct safetensors *set, struct safetensors_writer *file,
                                     struct firectl_writer **out, struct fire_error *error)
{
    struct firectl_writer *writer = calloc(1, sizeof(*writer));
    int failure;

    *out = NULL;
    if (!writer)
        return fire_fail_memory(error, sizeof(*writer));
    writer->set = set;
    writer->file = file;
    pthread_mutex_init(&writer->lock, NULL);
    pthread_cond_init(&writer->changed, NULL);
    failure = pthread_create(&writer->thread, NULL, run, writer);
    writer->started = failure == 0;
    if (failure) {
        firectl_writer_close(writer);
        return fire_fail(error, FIRE_BUSY, NULL,
                         "could not start a thread: %s; raise the limit of processes",
                         strerror(failure));
    }
    *out = writer;
    return FIRE_OK;
}

static bool is_full(const struct firectl_writer *writer)
{
    return writer->queued_bytes >= QUEUE_BYTES_MAX || writer->queued_items >= QUEUE_ITEMS_MAX;
}

enum fire_status firectl_writer_push(struct firectl_writer *writer,
                                     const struct safetensors_entry *entry, const void *bytes,
                                     void *owned, struct fire_error *error)
{
    struct item *item = malloc(sizeof(*item));
    enum fire_status status;

    if (!item) {
        free(owned);
        return fire_fail_memory(error, sizeof(*item));
    }
    *item = (struct item){ .entry = entry, .bytes = bytes, .owned = owned };
    pthread_mutex_lock(&writer->lock);
    while (is_full(writer))
        pthread_cond_wait(&writer->changed, &writer->lock);
    if (writer->last)
        writer->last->next = item;
    else
        writer->first = item;
    writer->last = item;
    writer->queued_bytes += owned ? entry->bytes : 0;
    writer->queued_items++;
    status = writer->status;
    if (status != FIRE_OK && error)
        *error = writer->error;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    return status;
}

enum fire_status firectl_writer_finish(struct firectl_writer *writer, struct fire_error *error)
{
    enum fire_status status;

    pthread_mutex_lock(&writer->lock);
    while (writer->queued_items > 0)
        pthread_cond_wait(&writer->changed, &writer->lock);
    status = writer->status;
    if (status != FIRE_OK && error)
        *error = writer->error;
    pthread_mutex_unlock(&writer->lock);
    return status;
}

void firectl_writer_close(struct firectl_writer *writer)
{
    if (!writer)
        return;
    if (writer->started) {
        pthread_mutex_lock(&writer->lock);
        writer->closing = true;
        if (writer->status == FIRE_OK)
            writer->status = FIRE_CANCELLED; /* what still waits is dropped */
        pthread_cond_broadcast(&writer->changed);
        pthread_mutex_unlock(&writer->lock);
        pthread_join(writer->thread, NULL);
    }
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
    free(writer);
}
