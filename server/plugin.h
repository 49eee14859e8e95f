/* plugin: a backend from a shared object, by name: the GPU's. Never unloaded. */
#ifndef FIRED_PLUGIN_H
#define FIRED_PLUGIN_H

#include "backend.h"
#include "status.h"

/* Loads `path`, or where it is empty the fire_cuda.so that belongs to this program, and asks
 * whether it can run here. FIRE_NOT_FOUND: there is no such file; FIRE_DEVICE_LOST: it cannot be
 * used, or sees no device. `caps->threads` is then how many devices it sees. */
FIRE_NODISCARD enum fire_status plugin_load(const char *path, const struct fire_backend **backend,
                                            struct fire_caps *caps, struct fire_error *error);

#endif
