/* yaml_file: files read by a libcyaml schema, with errors in words: where, which key, what is
 * allowed. Aliases and a second document are refused. Any thread. */
#ifndef FIRED_YAML_FILE_H
#define FIRED_YAML_FILE_H

#include <cyaml/cyaml.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "status.h"

#define YAML_BYTES_MAX (1u << 20)

/* The bytes of a regular file of at most YAML_BYTES_MAX, with a NUL after them; the caller frees
 * `*text`. `state` is the open file's, so that its rights can be judged without a race. */
FIRE_NODISCARD enum fire_status yaml_file_read(const char *path, char **text, size_t *bytes,
                                               struct stat *state, struct fire_error *error);

/* Loads `text` by `schema`, whose top is a pointer to a mapping. `name` begins every message. An
 * empty document leaves NULL in `*data`. The caller ends it with yaml_file_free(). */
FIRE_NODISCARD enum fire_status yaml_file_load(const char *name, const char *text, size_t bytes,
                                               const struct cyaml_schema_value *schema, void **data,
                                               struct fire_error *error);
void yaml_file_free(const struct cyaml_schema_value *schema, void *data); /* NULL is allowed */

/* Makes the message printable: one that quotes a file's text could hold any byte. NULL is allowed.
 */
void yaml_file_one_line(struct fire_error *error);

/* The first line, counted from 1, at or after `from` that has `key` followed by a colon; 0: none.
 * For messages: text inside a longer value may be found too. */
uint32_t yaml_file_line(const char *text, size_t bytes, uint32_t from, const char *key);

#endif
