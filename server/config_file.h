/* config_file: the settings of a YAML file: flat keys by name, `listen` a list, `tenants` a list of
 * {name, weight, bytes_max, streams_max, calls_max, device_share_max}, `alerts` a list of {name,
 * run, layer, statistic, kind, op, value, window, hold}. */
#ifndef FIRED_CONFIG_FILE_H
#define FIRED_CONFIG_FILE_H

#include <stddef.h>

#include "config.h"

struct config_file;

FIRE_NODISCARD enum fire_status config_file_open(const char *path, struct config_file **file,
                                                 struct fire_error *error);
/* The same from memory; `name` stands for the path in messages. */
FIRE_NODISCARD enum fire_status config_file_parse(const char *name, const char *text, size_t bytes,
                                                  struct config_file **file,
                                                  struct fire_error *error);
void config_file_close(struct config_file *file); /* NULL is allowed */

/* Puts the values into `config`, whose `source` remembers their lines. */
FIRE_NODISCARD enum fire_status config_file_apply(const struct config_file *file,
                                                  struct config *config, struct fire_error *error);

/* Puts the tenants into `config`. What one leaves out is config->tenant's, so that must be final:
 * call after environment and flags. */
FIRE_NODISCARD enum fire_status config_file_apply_tenants(const struct config_file *file,
                                                          struct config *config,
                                                          struct fire_error *error);

/* Puts the rules of `alerts` into `config`. */
FIRE_NODISCARD enum fire_status config_file_apply_alerts(const struct config_file *file,
                                                         struct config *config,
                                                         struct fire_error *error);

#endif
