/* client: what a local and a remote client both offer; client.c is the door of fire.h to either. */
#ifndef FIRE_CLIENT_H
#define FIRE_CLIENT_H

#include <protobuf-c/protobuf-c.h>

#include "fire.h"

struct client_methods {
    void (*close)(struct fire_client *client);
    void (*caps)(const struct fire_client *client, struct fire_caps *caps);
    /* As fire_client_start(), with an `error` that is not NULL. */
    enum fire_status (*start)(struct fire_client *client, struct fire_set *set,
                              struct fire_error *error);
    bool (*wait)(struct fire_client *client, const struct fire_set *set, double seconds);
    void (*cancel)(struct fire_client *client);
    /* One call of MonitorService/`method` to its end. The answer, unpacked as `kind`, is the
     * caller's. NULL: the client keeps no history. */
    enum fire_status (*monitor)(struct fire_client *client, const char *method,
                                const ProtobufCMessage *request,
                                const ProtobufCMessageDescriptor *kind, ProtobufCMessage **answer,
                                struct fire_error *error);
    const char *(*run)(const struct fire_client *client); /* NULL, or the one it was opened with */
};

/* The first member of a local or remote client. */
struct fire_client {
    const struct client_methods *methods;
};

/* Remembers the message for fire_last_error(), copies `own` to `error` (NULL is allowed) and
 * returns its status. */
enum fire_status client_fail(const struct fire_error *own, struct fire_error *error);

/* What no tensor may be when a call begins. The written members of a tensor are set to unknown. */
void client_prepare(struct fire_set *set);

/* Checks the state tensors of a weight, so that a bad one is found before anything is computed:
 * shapes, types and, where the policy computes with them, that they are finite. */
FIRE_NODISCARD enum fire_status client_check_states(const struct fire_tensor *tensor,
                                                    struct fire_error *error);
/* Bytes of a checked state tensor. */
uint64_t client_state_bytes(const struct fire_state_tensor *state);

#endif
