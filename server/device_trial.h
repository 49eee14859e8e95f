/* device_trial: what a device must do before it serves: be right, and tell how fast it is. Both run
 * real batches on an opened backend and wait for them. */
#ifndef FIRED_DEVICE_TRIAL_H
#define FIRED_DEVICE_TRIAL_H

#include "backend.h"
#include "cost.h"

/* Compares a few shapes with the float64 reference; a device that differs is FIRE_DEVICE_LOST. */
FIRE_NODISCARD enum fire_status device_selftest(const struct fire_backend *backend,
                                                struct fire_device *device,
                                                struct fire_error *error);

/* Times a few shapes and fills `model`. */
FIRE_NODISCARD enum fire_status device_calibrate(const struct fire_backend *backend,
                                                 struct fire_device *device,
                                                 struct cost_model *model,
                                                 struct fire_error *error);

#endif
