/* flat: what flat.c and flat_set.c share: text lines in the place of structs. */
#ifndef FIRE_FLAT_H
#define FIRE_FLAT_H

#include "fire.h"

#define FLAT_LINE_BYTES_MAX 4096u

/* One line without its end; may be changed. */
typedef enum fire_status flat_line(char *line, void *data, struct fire_error *error);

/* Calls `each` for every line that is not empty, until one fails. `lines` may be NULL. */
FIRE_NODISCARD enum fire_status flat_lines(const char *lines, flat_line *each, void *data,
                                           struct fire_error *error);

/* Sets every `key=value` line of `set_pairs`. */
FIRE_NODISCARD enum fire_status flat_options(struct fire_options *options, const char *set_pairs,
                                             struct fire_error *error);

#endif
