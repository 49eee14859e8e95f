/* config_options: the table of settings, and one value from text and to text. For config*.c and
 * their tests; everybody else reads struct config. */
#ifndef FIRED_CONFIG_OPTIONS_H
#define FIRED_CONFIG_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "config.h"

#define CONFIG_OPTIONS_MAX 64u /* room for one value each, where arrays are fixed */
#define CONFIG_NAME_BYTES  64u

enum config_kind {
    CONFIG_TEXT,     /* char * */
    CONFIG_U32,      /* uint32_t */
    CONFIG_BYTES,    /* uint64_t; "16MiB", "2GiB", plain bytes */
    CONFIG_F64,      /* double */
    CONFIG_BOOL,     /* bool */
    CONFIG_CHOICE,   /* char *, one of `choices` */
    CONFIG_LEVEL,    /* enum log_level */
    CONFIG_FORMAT,   /* enum log_format */
    CONFIG_SENTENCE, /* bool, true only by CONFIG_INSECURE_SENTENCE */
    CONFIG_LIST,     /* listen */
};

struct config_option {
    const char *name;
    enum config_kind kind;
    size_t offset;           /* in struct config */
    double minimum, maximum; /* of numbers */
    const char *choices;     /* words with a blank between them */
    const char *value;       /* the default as text; NULL: found at start, as `found` says */
    const char *found;
    const char *meaning; /* one line; units are those of the name */
};

extern const struct config_option config_options[];
extern const size_t config_option_count;

/* The option's position, or config_option_count. */
size_t config_option_find(const char *name);

/* Sets one setting from text; `origin` is for the message. The first text of a list replaces it
 * (parts have commas between them). On failure the old value stays. */
FIRE_NODISCARD enum fire_status config_option_set(const struct config_option *option,
                                                  struct config *config, const char *text,
                                                  const char *origin, struct fire_error *error);

/* Adds one address to the list. */
FIRE_NODISCARD enum fire_status config_listen_add(struct config *config, const char *address,
                                                  const char *origin, struct fire_error *error);
void config_listen_clear(struct config *config);

/* The value as YAML that config_option_set() and the file take, quoted where it is text. */
void config_option_write(const struct config_option *option, const struct config *config,
                         FILE *file);

/* The shortest text that reads back to the same number; 32 bytes are enough. */
void config_write_double(double value, char *text, size_t text_bytes);

/* What is allowed: "1 to 95", "auto portable avx2", …; empty for text. */
void config_option_allowed(const struct config_option *option, char *text, size_t text_bytes);

/* "slab-percent" and "FIRED_SLAB_PERCENT" for "slab_percent". */
void config_flag_name(const char *name, char flag[CONFIG_NAME_BYTES]);
void config_variable_name(const char *name, char variable[CONFIG_NAME_BYTES]);

/* Where a value came from. */
enum config_layer { CONFIG_DEFAULT, CONFIG_FROM_FILE, CONFIG_FROM_ENVIRONMENT, CONFIG_FROM_FLAG };

struct config_source {
    int argument_count;
    char **arguments; /* a copy of argv */
    char *path;       /* of the file, or NULL */
    enum config_layer layers[CONFIG_OPTIONS_MAX];
    uint32_t lines[CONFIG_OPTIONS_MAX]; /* in the file; 0: not known */
};

/* "default", "fired.yaml:12", "environment FIRED_X", "flag --x". */
void config_origin(const struct config *config, size_t option, char *text, size_t text_bytes);

/* config_defaults.c: fills what the table leaves to be found. Directories before anything is read,
 * the rest when all is: it depends on what was given. */
FIRE_NODISCARD enum fire_status config_find_dirs(struct config *config, struct fire_error *error);
FIRE_NODISCARD enum fire_status config_find_rest(struct config *config, struct fire_error *error);

/* fired.yaml in the folder that systemd keeps for it, a new text; NULL: there is none. */
FIRE_NODISCARD enum fire_status config_find_file(char **path, struct fire_error *error);
uint64_t config_machine_bytes(void); /* of memory, or of the cgroup if that is less */

/* config_print.c: what --print-config shows. */
void config_write(const struct config *config, FILE *file);

/* config_print.c: deploy/fired.yaml, every setting as a comment with its default. */
void config_print_example(FILE *file);

#endif
