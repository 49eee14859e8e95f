/* rpc_decode: bytes to tensors. Bad input stops here.
 *
 * ReinitRequest and AnalyzeRequest are the same on the wire: both are unpacked as the former. */
#include "rpc_decode.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory that unpacking may take: so many times the message, and a little. */
#define UNPACK_FACTOR     24u
#define UNPACK_BYTES_BASE 65536u
/* Pieces of a payload are joined up to the first, and not at all up to the second. */
#define JOIN_BYTES_MAX (512u << 10)
#define JOIN_BYTES_MIN 64u

/* --- unpacking -------------------------------------------------------------------------------- */

/* Counts what is asked for; giving back does not count, so the sum is a bound. */
static void *bounded_alloc(void *data, size_t bytes)
{
    size_t *left = data;

    if (bytes > *left)
        return NULL;
    *left -= bytes;
    return malloc(bytes);
}

static void bounded_free(void *data, void *memory)
{
    (void)data;
    free(memory);
}

ProtobufCMessage *rpc_unpack(const ProtobufCMessageDescriptor *descriptor,
                             const struct rpc_message *message, struct fire_error *error)
{
    size_t left = UNPACK_BYTES_BASE + UNPACK_FACTOR * message->small_bytes;
    ProtobufCAllocator allocator = { bounded_alloc, bounded_free, &left };
    ProtobufCMessage *unpacked =
        protobuf_c_message_unpack(descriptor, &allocator, message->small_bytes, message->small);

    if (!unpacked)
        fire_fail(error, FIRE_BAD_REQUEST, "",
                  "the message is no %s; send what the contract in proto/fire/v1 says",
                  descriptor->name);
    return unpacked;
}

/* --- checking --------------------------------------------------------------------------------- */

static enum fire_status check_payload(const struct request_tensor *tensor, size_t index,
                                      uint64_t bytes, struct fire_error *error)
{
    char field[FIRE_ERROR_FIELD_BYTES];

    if (tensor->total_bytes == bytes)
        return FIRE_OK;
    snprintf(field, sizeof(field), "data[%zu]", index);
    return fire_fail(error, FIRE_BAD_REQUEST, field,
                     "%s has %" PRIu64 " bytes, but shape and dtype of tensor '%.100s' say %" PRIu64
                     "; make them agree",
                     field, bytes, tensor->name, tensor->total_bytes);
}

/* Opens tensor `index`. With skip_bad a bad one is there to carry its error. */
static enum fire_status open_tensor(struct rpc_set *set, const Fire__V1__TensorHeader *header,
                                    size_t index, uint64_t payload_bytes, uint64_t tensor_bytes_max,
                                    struct fire_error *error)
{
    char path[REQUEST_PATH_BYTES];
    enum fire_status status;

    snprintf(path, sizeof(path), "tensors[%zu]", index);
    status =
        request_tensor_open(&set->set, header, path, tensor_bytes_max, &set->tensors[index], error);
    if (status == FIRE_OK)
        status = check_payload(set->tensors[index], index, payload_bytes, error);
    if (status != FIRE_BAD_REQUEST || !set->set.skip_bad)
        return status;
    request_tensor_close(set->tensors[index]);
    status = request_tensor_refuse(header, error, &set->tensors[index]);
    return status == FIRE_OK ? FIRE_OK : fire_fail_memory(error, REQUEST_HEAP_BYTES);
}

/* By name, and by place among equal names: the tensors are in one array. */
static int compare_names(const void *a, const void *b)
{
    struct request_tensor *const *first = *(struct request_tensor * *const *)a;
    struct request_tensor *const *second = *(struct request_tensor * *const *)b;
    const int order = strcmp((*first)->name, (*second)->name);

    if (order != 0)
        return order;
    return (first > second) - (first < second);
}

/* The weights sorted by name; each is a place in set->tensors. */
struct weights {
    struct request_tensor ***sorted;
    size_t count;
};

static struct request_tensor *find_weight(const struct weights *weights, const char *name)
{
    size_t low = 0, high = weights->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (strcmp((*weights->sorted[middle])->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < weights->count && strcmp((*weights->sorted[low])->name, name) == 0)
        return *weights->sorted[low];
    return NULL;
}

/* A fault of one tensor: with skip_bad it is that tensor's, else the call's. */
static enum fire_status one_is_bad(const struct rpc_set *set, struct request_tensor *tensor,
                                   const struct fire_error *error)
{
    if (!set->set.skip_bad || error->status == FIRE_NO_MEMORY)
        return error->status;
    request_tensor_fail(tensor, error, NULL);
    return FIRE_OK;
}

static enum fire_status check_names(const struct rpc_set *set, const struct weights *weights,
                                    struct fire_error *error)
{
    for (size_t i = 1; i < weights->count; i++) {
        struct request_tensor *tensor = *weights->sorted[i];
        char field[FIRE_ERROR_FIELD_BYTES];
        enum fire_status status;

        if (strcmp((*weights->sorted[i - 1])->name, tensor->name) != 0)
            continue;
        snprintf(field, sizeof(field), "tensors[%zu].name",
                 (size_t)(weights->sorted[i] - set->tensors));
        fire_fail(error, FIRE_BAD_REQUEST, field,
                  "two weights are called '%.100s'; give every weight of a set a name of its own",
                  tensor->name);
        status = one_is_bad(set, tensor, error);
        if (status != FIRE_OK)
            return status;
    }
    return FIRE_OK;
}

/* Brings a companion to its weight. What is not answered cannot carry an error: the weight does, or
 * the call. */
static enum fire_status place_companion(const struct rpc_set *set, const struct weights *weights,
                                        struct request_tensor *companion, size_t index,
                                        struct fire_error *error)
{
    struct request_tensor *weight = find_weight(weights, companion->parameter);
    struct request_tensor *blamed = companion;
    enum fire_status status = companion->error.status;

    *error = companion->error;
    if (!weight) {
        char field[FIRE_ERROR_FIELD_BYTES];

        snprintf(field, sizeof(field), "tensors[%zu].parameter", index);
        if (status == FIRE_OK)
            status = fire_fail(error, FIRE_BAD_REQUEST, field,
                               "no weight of the set is called '%.100s'; send it in the same set",
                               companion->parameter);
    } else if (status == FIRE_OK) {
        status = request_tensor_link(weight, companion, error);
    }
    if (status == FIRE_OK)
        return FIRE_OK;
    if (companion->role != REQUEST_STATE)
        blamed = weight;
    return blamed ? one_is_bad(set, blamed, error) : status;
}

static enum fire_status link_tensors(struct rpc_set *set, struct fire_error *error)
{
    struct weights weights = { calloc(set->tensor_count + 1, sizeof(*weights.sorted)), 0 };
    enum fire_status status;

    if (!weights.sorted)
        return fire_fail_memory(error, set->tensor_count * sizeof(*weights.sorted));
    for (size_t i = 0; i < set->tensor_count; i++) {
        if (set->tensors[i]->role == REQUEST_WEIGHT)
            weights.sorted[weights.count++] = &set->tensors[i];
    }
    qsort(weights.sorted, weights.count, sizeof(*weights.sorted), compare_names);
    status = check_names(set, &weights, error);
    for (size_t i = 0; i < set->tensor_count && status == FIRE_OK; i++) {
        if (set->tensors[i]->role != REQUEST_WEIGHT)
            status = place_companion(set, &weights, set->tensors[i], i, error);
    }
    free(weights.sorted);
    return status;
}

static enum fire_status check_per_matrix(const struct rpc_set *set, struct fire_error *error)
{
    uint64_t views = 0;

    for (size_t i = 0; i < set->tensor_count; i++)
        views += set->tensors[i]->work.view_count;
    if (!set->set.per_matrix || views <= REQUEST_PER_MATRIX_MAX)
        return FIRE_OK;
    return fire_fail(error, FIRE_BAD_REQUEST, "set.per_matrix",
                     "the set holds %" PRIu64 " matrices; with per_matrix at most %u are answered "
                     "in one call: send fewer, or use the stream",
                     views, REQUEST_PER_MATRIX_MAX);
}

static enum fire_status open_tensors(struct rpc_set *set, const Fire__V1__ReinitRequest *request,
                                     const struct rpc_message *message, uint64_t tensor_bytes_max,
                                     struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    if (request->n_tensors > RPC_TENSORS_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "tensors",
                         "the request has %zu tensors; at most %u are taken in one call: send "
                         "fewer, or use the stream",
                         request->n_tensors, RPC_TENSORS_MAX);
    if (request->n_tensors != message->payload_count)
        return fire_fail(error, FIRE_BAD_REQUEST, "data",
                         "the request has %zu tensors and %zu data fields; send one for each",
                         request->n_tensors, message->payload_count);
    set->tensors = calloc(request->n_tensors + 1, sizeof(*set->tensors));
    if (!set->tensors)
        return fire_fail_memory(error, request->n_tensors * sizeof(*set->tensors));
    for (size_t i = 0; i < request->n_tensors && status == FIRE_OK; i++) {
        status = open_tensor(set, request->tensors[i], i, message->payloads[i].bytes,
                             tensor_bytes_max, error);
        set->tensor_count += set->tensors[i] != NULL;
    }
    if (status == FIRE_OK)
        status = link_tensors(set, error);
    if (status == FIRE_OK)
        status = check_per_matrix(set, error);
    return status;
}

enum fire_status rpc_set_decode(struct rpc_set *set, const struct rpc_message *message,
                                bool analyze, uint64_t tensor_bytes_max, struct fire_error *error)
{
    Fire__V1__ReinitRequest *request;
    enum fire_status status;

    *set = (struct rpc_set){ 0 };
    request = (Fire__V1__ReinitRequest *)rpc_unpack(&fire__v1__reinit_request__descriptor, message,
                                                    error);
    if (!request)
        return FIRE_BAD_REQUEST;
    status = request_set_init(&set->set, request->set, analyze, error);
    if (status == FIRE_OK)
        status = open_tensors(set, request, message, tensor_bytes_max, error);
    protobuf_c_message_free_unpacked(&request->base, NULL);
    if (status != FIRE_OK)
        rpc_set_release(set);
    return status;
}

void rpc_set_release(struct rpc_set *set)
{
    for (size_t i = 0; i < set->tensor_count; i++)
        request_tensor_close(set->tensors[i]);
    free(set->tensors);
    *set = (struct rpc_set){ 0 };
}

/* --- feeding and answering -------------------------------------------------------------------- */

bool rpc_tensor_is_fed(const struct request_tensor *tensor)
{
    return tensor->error.status == FIRE_OK && !(tensor->analyze && tensor->role == REQUEST_STATE);
}

/* Bytes on their way into a tensor. The network cuts them into pieces of a few rows at most, and a
 * matrix that lies across its slot would be written a few elements a cache line: those pieces are
 * joined first. Without memory for that they go as they are. */
struct feed {
    struct request_tensor *tensor;
    struct request_run *run; /* NULL: the one of request_feed() */
    struct fire_error *error;
    uint64_t grain;
    uint8_t *joined; /* room for `grain` bytes, or NULL */
    size_t joined_bytes;
};

static enum fire_status feed_bytes(struct feed *feed, const uint8_t *bytes, size_t count)
{
    if (feed->run)
        return request_feed_run(feed->tensor, feed->run, bytes, count, feed->error);
    return request_feed(feed->tensor, bytes, count, feed->error);
}

static enum fire_status feed_joined(struct feed *feed)
{
    const size_t count = feed->joined_bytes;

    feed->joined_bytes = 0;
    return count > 0 ? feed_bytes(feed, feed->joined, count) : FIRE_OK;
}

/* Bytes that are missing until the next multiple of the grain. */
static size_t feed_missing(const struct feed *feed)
{
    const uint64_t at = feed->run ? feed->run->at : feed->tensor->received_bytes;

    return (size_t)(feed->grain - (at + feed->joined_bytes) % feed->grain);
}

static enum fire_status feed_piece(void *data, uint64_t offset, const uint8_t *bytes, size_t count)
{
    struct feed *feed = data;
    enum fire_status status = FIRE_OK;

    (void)offset;
    if (!feed->joined)
        return feed_bytes(feed, bytes, count);
    while (count > 0 && status == FIRE_OK) {
        const size_t missing = feed_missing(feed);
        size_t taken = count < missing ? count : missing;

        if (feed->joined_bytes == 0 && count >= missing) {
            taken += (size_t)((count - missing) / feed->grain * feed->grain);
            status = feed_bytes(feed, bytes, taken);
        } else {
            memcpy(feed->joined + feed->joined_bytes, bytes, taken);
            feed->joined_bytes += taken;
            if (taken == missing)
                status = feed_joined(feed);
        }
        bytes += taken;
        count -= taken;
    }
    return status;
}

static enum fire_status feed_payload(struct feed *feed, const struct rpc_message *message,
                                     const struct rpc_payload *payload)
{
    enum fire_status status;

    feed->grain = request_feed_grain(feed->tensor);
    if (feed->grain > JOIN_BYTES_MAX)
        feed->grain = JOIN_BYTES_MAX;
    feed->joined = feed->grain > JOIN_BYTES_MIN ? malloc((size_t)feed->grain) : NULL;
    status = rpc_payload_walk(message, payload, feed_piece, feed);
    if (status == FIRE_OK)
        status = feed_joined(feed);
    free(feed->joined);
    return status;
}

enum fire_status rpc_feed(struct request_tensor *tensor, const struct rpc_message *message,
                          const struct rpc_payload *payload, struct fire_error *error)
{
    struct feed feed = { .tensor = tensor, .error = error };

    return feed_payload(&feed, message, payload);
}

enum fire_status rpc_set_feed(struct rpc_set *set, const struct rpc_message *message,
                              struct fire_error *error)
{
    FIRE_ASSERT(message->payload_count == set->tensor_count);
    for (size_t i = 0; i < set->tensor_count; i++) {
        struct request_tensor *tensor = set->tensors[i];
        enum fire_status status;

        if (!rpc_tensor_is_fed(tensor))
            continue;
        status = rpc_feed(tensor, message, &message->payloads[i], error);
        if (status != FIRE_OK)
            status = one_is_bad(set, tensor, error);
        if (status != FIRE_OK)
            return status;
    }
    return FIRE_OK;
}

void rpc_set_feed_begin(struct rpc_set *set)
{
    for (size_t i = 0; i < set->tensor_count; i++) {
        if (rpc_tensor_is_fed(set->tensors[i]))
            request_feed_begin(set->tensors[i]);
    }
}

void rpc_set_feed_end(struct rpc_set *set)
{
    for (size_t i = 0; i < set->tensor_count; i++) {
        if (rpc_tensor_is_fed(set->tensors[i]))
            request_feed_end(set->tensors[i]);
    }
}

enum fire_status rpc_set_feed_part(struct rpc_set *set, const struct rpc_message *message,
                                   struct rpc_feed_part *part, struct fire_error *error)
{
    for (size_t i = 0; i < set->tensor_count; i++) {
        struct request_run run = { 0 };
        struct feed feed = { .tensor = set->tensors[i], .run = &run, .error = error };
        struct rpc_payload payload;
        uint64_t end;
        enum fire_status status;

        if (!rpc_tensor_is_fed(feed.tensor))
            continue;
        run.at = request_run_begin(feed.tensor, part->index, part->count);
        end = request_run_begin(feed.tensor, part->index + 1, part->count);
        payload = rpc_payload_part(message, &message->payloads[i], run.at, end - run.at);
        status = feed_payload(&feed, message, &payload);
        part->tensor = i;
        if (status != FIRE_OK)
            return status;
    }
    return FIRE_OK;
}

enum fire_status rpc_set_answer(struct rpc_set *set, struct fire_error *error)
{
    for (size_t i = 0; i < set->tensor_count; i++) {
        if (set->tensors[i]->role == REQUEST_WEIGHT)
            request_answer(&set->set, set->tensors[i]);
    }
    for (size_t i = 0; i < set->tensor_count && !set->set.skip_bad; i++) {
        if (set->tensors[i]->error.status == FIRE_OK)
            continue;
        *error = set->tensors[i]->error;
        return error->status;
    }
    return FIRE_OK;
}
