/* remote_items: a set as tensors on the wire: companions, then their weight, group by group. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

struct fire_tensor *remote_tensor(const struct remote_set *set, const struct remote_group *group)
{
    return &set->set->tensors[group - set->groups];
}

static enum fire_status check_tensor(const struct remote_set *set, const struct fire_tensor *tensor,
                                     uint64_t *bytes, struct fire_error *error)
{
    const bool reinit = set->set->operation == FIRE_REINIT;
    const char *name = tensor->name ? tensor->name : "";
    uint64_t elements;
    enum fire_status status;

    if ((unsigned)tensor->dtype >= FIRE_DTYPE_COUNT)
        return fire_fail(error, FIRE_BAD_REQUEST, "dtype",
                         "tensor '%.100s' has dtype %d, which is none of enum fire_dtype", name,
                         (int)tensor->dtype);
    status = fire_shape_elements(&tensor->shape, &elements, error);
    if (status != FIRE_OK)
        return status;
    *bytes = elements * fire_dtype_bytes(tensor->dtype);
    if (!tensor->data || (reinit && !tensor->out))
        return fire_fail(error, FIRE_BAD_REQUEST, "data",
                         "tensor '%.100s' has no %s; give the memory it is in", name,
                         tensor->data ? "out" : "data");
    if (strlen(name) + 32 > REMOTE_NAME_BYTES)
        return fire_fail(error, FIRE_BAD_REQUEST, "name",
                         "the name of tensor '%.60s…' is too long for a daemon; shorten it", name);
    return reinit ? client_check_states(tensor, error) : FIRE_OK;
}

static void add_item(struct remote_set *set, struct remote_group *group, enum remote_role role,
                     const void *data, void *out, uint64_t bytes)
{
    set->items[set->item_count++] = (struct remote_item){ .role = role,
                                                          .group = (size_t)(group - set->groups),
                                                          .data = data,
                                                          .out = out,
                                                          .bytes = bytes };
    group->count++;
    group->answers_left += role == REMOTE_STATE || role == REMOTE_WEIGHT;
}

static void add_group(struct remote_set *set, struct remote_group *group, uint64_t bytes)
{
    const struct fire_tensor *tensor = remote_tensor(set, group);
    const bool reinit = set->set->operation == FIRE_REINIT;
    const uint64_t elements = bytes / fire_dtype_bytes(tensor->dtype);

    group->first = set->item_count;
    for (size_t i = 0; reinit && i < tensor->state_count; i++) {
        const struct fire_state_tensor *state = &tensor->states[i];

        add_item(set, group, REMOTE_STATE, state->data, state->out, client_state_bytes(state));
        set->items[set->item_count - 1].state = i;
    }
    if (tensor->unit_means)
        add_item(set, group, REMOTE_UNIT_MEANS, tensor->unit_means, NULL,
                 tensor->unit_count * sizeof(double));
    if (tensor->gradient)
        add_item(set, group, REMOTE_GRADIENT, tensor->gradient, NULL,
                 elements * fire_dtype_bytes(tensor->gradient_dtype));
    add_item(set, group, REMOTE_WEIGHT, tensor->data, reinit ? tensor->out : NULL, bytes);
}

static uint64_t hash_of(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325ull;

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3ull;
    return hash ^ (hash >> 32);
}

static const char *name_of(const struct remote_set *set, size_t index)
{
    const char *name = set->set->tensors[index].name;

    return name ? name : "";
}

/* The daemon wants names that are unique in a set: the second tensor of a name, and one without a
 * name to which others belong, get their number behind it. */
static enum fire_status mark_renamed(struct remote_set *set)
{
    size_t room = 16;
    size_t *table; /* of indices + 1, by hash; 0: empty */

    while (room < 2 * set->group_count)
        room *= 2;
    table = calloc(room, sizeof(*table));
    if (!table)
        return FIRE_NO_MEMORY;
    for (size_t i = 0; i < set->group_count; i++) {
        const char *name = name_of(set, i);
        size_t at = hash_of(name) & (room - 1);

        while (table[at] && strcmp(name_of(set, table[at] - 1), name) != 0)
            at = (at + 1) & (room - 1);
        set->groups[i].renamed = table[at] != 0 || (!name[0] && set->groups[i].count > 1);
        if (!table[at])
            table[at] = i + 1;
    }
    free(table);
    return FIRE_OK;
}

enum fire_status remote_items_make(struct remote_set *set, struct fire_error *error)
{
    const struct fire_set *given = set->set;
    uint64_t total = 0;
    size_t items = 0;

    for (size_t i = 0; i < given->count; i++) {
        items += given->tensors[i].state_count + 3;
        set->per_matrix = set->per_matrix || given->tensors[i].per_matrix;
    }
    set->groups = calloc(given->count ? given->count : 1, sizeof(*set->groups));
    set->items = calloc(items ? items : 1, sizeof(*set->items));
    if (!set->groups || !set->items)
        return fire_fail_memory(error, items * sizeof(*set->items));
    set->group_count = given->count;
    set->groups_left = given->count;
    for (size_t i = 0; i < given->count; i++) {
        struct fire_error own = { 0 };
        uint64_t bytes = 0;

        if (check_tensor(set, &given->tensors[i], &bytes, &own) == FIRE_OK)
            add_group(set, &set->groups[i], bytes);
        else
            remote_group_refuse(set, &set->groups[i], &own, 0, false);
    }
    if (mark_renamed(set) != FIRE_OK)
        return fire_fail_memory(error, 2 * given->count * sizeof(size_t));
    for (size_t i = 0; i < set->item_count; i++)
        total += set->items[i].bytes;
    set->stream = total > REMOTE_UNARY_BYTES_MAX || set->item_count > REMOTE_UNARY_TENSORS_MAX;
    return FIRE_OK;
}

static void drop_held(struct remote_item *item)
{
    while (item->held_first) {
        struct remote_held *held = item->held_first;

        item->held_first = held->next;
        rpc_message_release(&held->message);
        free(held);
    }
    item->held_last = NULL;
}

static void drop_group_held(struct remote_set *set, const struct remote_group *group)
{
    for (size_t i = group->first; i < group->first + group->count; i++)
        drop_held(&set->items[i]);
}

/* The daemon has no more to do for the group's tensors. */
static void settle(struct remote_set *set, struct remote_group *group)
{
    set->attempt.open -= group->open;
    group->open = 0;
}

void remote_group_refuse(struct remote_set *set, struct remote_group *group,
                         const struct fire_error *error, int code, bool again)
{
    struct fire_tensor *tensor = remote_tensor(set, group);

    if (group->done)
        return;
    drop_group_held(set, group);
    settle(set, group);
    group->error = *error;
    group->code = code;
    group->again = again;
    if (again)
        return;
    group->done = true;
    set->groups_left--;
    fire_result_init(&tensor->result);
    tensor->result.status = error->status;
    snprintf(tensor->result.reason, sizeof(tensor->result.reason), "%.95s", error->message);
    tensor->error = *error;
}

enum fire_status remote_copy_piece(void *data, uint64_t offset, const uint8_t *bytes, size_t count)
{
    memcpy((unsigned char *)data + offset, bytes, count);
    return FIRE_OK;
}

static void copy_payload(const struct remote_item *item, uint64_t offset,
                         const struct rpc_message *message, const struct rpc_payload *payload)
{
    const enum fire_status status =
        rpc_payload_walk(message, payload, remote_copy_piece, (unsigned char *)item->out + offset);

    FIRE_ASSERT(status == FIRE_OK);
}

void remote_item_answered(struct remote_set *set, struct remote_item *item)
{
    struct remote_group *group = &set->groups[item->group];

    if (remote_is_settled(group) || item->answered)
        return;
    item->answered = true;
    if (--group->answers_left > 0)
        return;
    for (size_t i = group->first; i < group->first + group->count; i++) {
        struct remote_item *member = &set->items[i];

        for (struct remote_held *held = member->held_first; held; held = held->next)
            copy_payload(member, held->offset, &held->message, &held->message.payloads[0]);
        drop_held(member);
    }
    settle(set, group);
    group->done = true;
    set->groups_left--;
}

enum fire_status remote_item_bytes(struct remote_item *item, uint64_t offset,
                                   struct rpc_message *message, const struct rpc_payload *payload,
                                   struct fire_error *error)
{
    struct remote_held *held;

    if (item->out != item->data) {
        copy_payload(item, offset, message, payload);
        rpc_message_release(message);
        return FIRE_OK;
    }
    held = calloc(1, sizeof(*held));
    if (!held) {
        rpc_message_release(message);
        return fire_fail_memory(error, sizeof(*held));
    }
    *held = (struct remote_held){ .message = *message, .offset = offset };
    *message = (struct rpc_message){ 0 };
    if (item->held_last)
        item->held_last->next = held;
    else
        item->held_first = held;
    item->held_last = held;
    return FIRE_OK;
}

void remote_items_restart(struct remote_set *set)
{
    for (size_t i = 0; i < set->group_count; i++) {
        struct remote_group *group = &set->groups[i];

        if (group->done)
            continue;
        group->again = false;
        group->open = 0;
        group->answers_left = 0;
        drop_group_held(set, group);
        for (size_t k = group->first; k < group->first + group->count; k++) {
            struct remote_item *item = &set->items[k];

            item->answered = false;
            group->answers_left += item->role == REMOTE_STATE || item->role == REMOTE_WEIGHT;
        }
    }
}

void remote_tell_given(void *thing)
{
#ifdef __SANITIZE_THREAD__
    __tsan_release(thing);
#else
    (void)thing;
#endif
}

void remote_tell_taken(void *thing)
{
#ifdef __SANITIZE_THREAD__
    __tsan_acquire(thing);
#else
    (void)thing;
#endif
}

/* Called by core, on any of its threads. */
static void slice_done(void *data)
{
    remote_tell_taken(data);
    atomic_fetch_sub_explicit((_Atomic uint32_t *)data, 1, memory_order_acq_rel);
}

grpc_slice remote_slice(struct remote_set *set, const void *bytes, size_t count)
{
    if (count == 0)
        return grpc_empty_slice();
    atomic_fetch_add_explicit(&set->slices, 1, memory_order_relaxed);
    remote_tell_given(&set->slices);
    /* Core does not write to what it sends. */
    return grpc_slice_new_with_user_data((void *)(uintptr_t)bytes, count, slice_done, &set->slices);
}
