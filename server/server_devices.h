/* server_devices: the GPUs and the CPU pool of a daemon. */
#ifndef FIRED_SERVER_DEVICES_H
#define FIRED_SERVER_DEVICES_H

#include "server.h"

/* Opens what the settings ask for and gives it to the scheduler: GPUs first, then the CPU pool,
 * which stands by while a GPU serves. A GPU that cannot be used is left out, with one line in the
 * log, unless cuda is `require`. Each is an event of the history, which is open by now. */
FIRE_NODISCARD enum fire_status server_open_devices(struct server *server, device_done done,
                                                    struct fire_error *error);

/* A batch came back with FIRE_DEVICE_LOST: an event, the first time. */
void server_note_lost(struct server *server, const struct device *device);

/* Closes them one after the other; `closed` when the last is gone. */
void server_close_devices(struct server *server, void (*closed)(void *data), void *data);

/* Whether the devices left are what the settings ask for: one, and a GPU if cuda is `require`. */
bool server_has_devices(const struct server *server);

#endif
