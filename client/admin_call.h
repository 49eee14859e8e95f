/* admin_call: small blocking unary calls to a daemon, for firectl's commands that ask one.
 *
 * A connection is made lazily by the first call and is made again when it was lost, so that a
 * daemon that restarts is found again. One thread. SIGINT and SIGTERM end a call that waits. */
#ifndef FIRECTL_ADMIN_CALL_H
#define FIRECTL_ADMIN_CALL_H

#include <protobuf-c/protobuf-c.h>

#include "fire/v1/admin.pb-c.h"
#include "firectl.h"

#define ADMIN_DEADLINE_S 10.0 /* of a call whose command was not told --deadline */

struct admin; /* a channel and its completion queue */

/* Why a call failed, for people and for the exit code. */
struct admin_failure {
    int code; /* gRPC status; -1: a local failure */
    char message[FIRE_ERROR_MESSAGE_BYTES];
};

/* Opens what --addr (or FIRED_ADDR, or the default addresses) and the credentials say. On failure
 * it says why on stderr and `*admin` is NULL. */
enum firectl_exit admin_open(const struct firectl_args *args, struct admin **admin);
void admin_close(struct admin *admin); /* NULL is allowed */

/* The address it talks to. */
const char *admin_address(const struct admin *admin);

/* One call of `method` ("/fire.v1.AdminService/Status"). Returns the answer, unpacked as `kind`,
 * which the caller frees with protobuf_c_message_free_unpacked(); NULL fills `failure`. */
ProtobufCMessage *admin_call(struct admin *admin, const char *method,
                             const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *kind, struct admin_failure *failure);

/* One call of `method` that answers with a stream: `take` gets every message, unpacked as `kind`
 * and freed after it returned, until it returns false, a signal comes or the daemon ends the
 * stream. There is no deadline. True when the caller ended it or the daemon did with OK; false
 * fills `failure`. */
bool admin_stream(struct admin *admin, const char *method, const ProtobufCMessage *request,
                  const ProtobufCMessageDescriptor *kind,
                  bool (*take)(const ProtobufCMessage *message, void *data), void *data,
                  struct admin_failure *failure);

/* Says on stderr what `failure` is and what to do; returns the exit code it stands for:
 * FIRECTL_FAILED, or 64 + the gRPC code. */
enum firectl_exit admin_fail(const struct admin *admin, const struct admin_failure *failure);

/* AdminService/Status; free it with fire__v1__status_response__free_unpacked(). */
Fire__V1__StatusResponse *admin_status(struct admin *admin, struct admin_failure *failure);

#endif
