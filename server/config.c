/* config: the layers, in order: defaults, file, environment, flags. Each goes through
 * config_option_set(), and the last one that gave a value is remembered as its origin.
 *
 * argp parses the flags but says nothing itself: mistakes are returned like any other. */
#include "config.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config_file.h"
#include "config_options.h"
#include "options.h"
#include "utf8.h"

#define FLAGS_MAX    256u /* on one command line */
#define ORIGIN_BYTES 256
#define DOC_BYTES    400
#define ACTIONS_MAX  8u
#define KEY_OPTION   0x1000 /* argp's keys: KEY_OPTION + position in the table */
#define KEY_ACTION   0x2000 /* KEY_ACTION + enum config_action */
#define KEY_CONFIG   0x3000
#define KEY_HELP     0x3001

extern char **environ;

static const struct {
    const char *name;
    enum config_action action;
    const char *meaning;
} actions[] = {
    { "print-config", CONFIG_PRINT, "Show every setting, where it came from, what it means" },
    { "check-config", CONFIG_CHECK, "Say whether the settings are good, and exit" },
    { "selftest", CONFIG_SELFTEST, "Compare the device with the reference, and exit" },
    { "hash-token", CONFIG_HASH_TOKEN, "Read a token from stdin, print its hash for credentials" },
    { "version", CONFIG_VERSION, "Print the version" },
};

/* What the command line said, before any of it is applied. */
struct flags {
    enum config_action action;
    const char *path;
    size_t options[FLAGS_MAX];
    const char *texts[FLAGS_MAX]; /* into the arguments */
    size_t count;
    bool help;
    char mistake[FIRE_ERROR_MESSAGE_BYTES];
};

/* argp's own form of the table. */
struct flag_table {
    struct argp_option options[CONFIG_OPTIONS_MAX + ACTIONS_MAX + 3];
    char names[CONFIG_OPTIONS_MAX][CONFIG_NAME_BYTES];
    char words[CONFIG_OPTIONS_MAX][DOC_BYTES];
    const char *known[CONFIG_OPTIONS_MAX + ACTIONS_MAX + 2]; /* names, for suggestions */
    size_t count;
};

static void flag_add(struct flag_table *table, struct argp_option option)
{
    table->known[table->count] = option.name;
    table->options[table->count++] = option;
}

static void flag_table_fill(struct flag_table *table)
{
    flag_add(table, (struct argp_option){ "config", KEY_CONFIG, "FILE", 0,
                                          "Read settings from FILE (YAML)", 1 });
    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        flag_add(table, (struct argp_option){ actions[i].name, KEY_ACTION + (int)actions[i].action,
                                              NULL, 0, actions[i].meaning, 1 });
    flag_add(table, (struct argp_option){ "help", KEY_HELP, NULL, 0, "Show this text", 1 });
    for (size_t i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        char allowed[128];

        config_flag_name(option->name, table->names[i]);
        config_option_allowed(option, allowed, sizeof(allowed));
        snprintf(table->words[i], DOC_BYTES, "%s%s%s%s (default %s)%s", option->meaning,
                 allowed[0] ? "; " : "", allowed, "",
                 option->found      ? option->found
                 : option->value[0] ? option->value
                                    : "empty",
                 option->kind == CONFIG_LIST ? "; may be given again" : "");
        flag_add(table, (struct argp_option){ table->names[i], KEY_OPTION + (int)i, "VALUE", 0,
                                              table->words[i], 2 });
    }
}

/* Says what is wrong with the word that argp did not take. */
static void flag_mistake(struct flags *flags, const struct argp_state *state)
{
    const struct flag_table *table = (const void *)state->root_argp->options;
    const int index = state->next > 1 ? state->next - 1 : 1;
    const char *word = index < state->argc ? state->argv[index] : "";
    char name[CONFIG_NAME_BYTES];
    const char *nearest;

    if (flags->mistake[0])
        return;
    word += strspn(word, "-");
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
    for (size_t i = 0; i < table->count; i++)
        if (strcmp(name, table->known[i]) == 0) {
            snprintf(flags->mistake, sizeof(flags->mistake),
                     table->options[i].arg ? "--%s needs a value" : "--%s takes no value", name);
            return;
        }
    nearest = fire_nearest_name(name, table->known, table->count);
    snprintf(flags->mistake, sizeof(flags->mistake),
             "unknown or ambiguous flag --%s%s%s; fired --help lists them", name,
             nearest ? "; did you mean --" : "", nearest ? nearest : "");
}

static error_t on_flag(int key, char *text, struct argp_state *state)
{
    struct flags *flags = state->input;

    if (key >= KEY_OPTION && key < KEY_OPTION + (int)config_option_count) {
        if (flags->count == FLAGS_MAX) {
            snprintf(flags->mistake, sizeof(flags->mistake),
                     "more than %u flags; put settings into a file and give --config", FLAGS_MAX);
            return EINVAL;
        }
        flags->options[flags->count] = (size_t)(key - KEY_OPTION);
        flags->texts[flags->count++] = text;
        return 0;
    }
    if (key >= KEY_ACTION && key <= KEY_ACTION + (int)CONFIG_VERSION) {
        flags->action = (enum config_action)(key - KEY_ACTION);
        return 0;
    }
    switch (key) {
    case KEY_CONFIG: flags->path = text; return 0;
    case KEY_HELP: flags->help = true; return 0;
    case ARGP_KEY_ARG:
        snprintf(flags->mistake, sizeof(flags->mistake),
                 "fired takes flags only, got \"%.60s\"; fired --help lists them", text);
        return EINVAL;
    case ARGP_KEY_ERROR: flag_mistake(flags, state); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The flags' texts point into `arguments`, which argp reorders. */
static enum fire_status parse_flags(struct config_source *source, struct flags *flags,
                                    struct fire_error *error)
{
    struct flag_table *table = calloc(1, sizeof(*table));
    const struct argp argp = {
        .options = table ? table->options : NULL,
        .parser = on_flag,
        .doc = "Restores the plasticity of neural networks for other programs.\v"
               "Each setting is also a key of the file and a variable FIRED_<NAME>; a flag wins "
               "over a variable, and that over the file.",
    };
    error_t result;

    if (!table)
        return fire_fail_memory(error, sizeof(*table));
    flag_table_fill(table);
    result = argp_parse(&argp, (unsigned)source->argument_count, source->arguments,
                        ARGP_NO_ERRS | ARGP_NO_EXIT | ARGP_NO_HELP, NULL, flags);
    if (result == 0 && flags->help) {
        char name[] = "fired";

        argp_help(&argp, stdout, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, name);
        free(table);
        exit(EXIT_SUCCESS);
    }
    free(table);
    if (result == 0)
        return FIRE_OK;
    if (result == ENOMEM)
        return fire_fail_memory(error, sizeof(*table));
    utf8_make_printable(flags->mistake); /* it quotes what was typed */
    return fire_fail(error, FIRE_BAD_REQUEST, "flags", "%s",
                     flags->mistake[0] ? flags->mistake
                                       : "the flags are not understood; fired --help lists them");
}

static enum fire_status source_open(struct config *config, int argc, char **argv,
                                    struct fire_error *error)
{
    struct config_source *source = calloc(1, sizeof(*source));
    static char name[] = "fired";
    char *nothing[] = { name, NULL };

    config->source = source;
    if (!source)
        return fire_fail_memory(error, sizeof(*source));
    if (argc < 1) { /* a caller of execve() may leave even the name out */
        argc = 1;
        argv = nothing;
    }
    source->arguments = calloc((size_t)argc + 1, sizeof(char *));
    if (!source->arguments)
        return fire_fail_memory(error, ((size_t)argc + 1) * sizeof(char *));
    for (; source->argument_count < argc; source->argument_count++) {
        const char *argument = argv[source->argument_count];

        source->arguments[source->argument_count] = strdup(argument);
        if (!source->arguments[source->argument_count])
            return fire_fail_memory(error, strlen(argument) + 1);
    }
    return FIRE_OK;
}

static void source_close(struct config_source *source)
{
    if (!source)
        return;
    for (int i = 0; i < source->argument_count; i++)
        free(source->arguments[i]);
    free(source->arguments);
    free(source->path);
    free(source);
}

static enum fire_status apply_defaults(struct config *config, struct fire_error *error)
{
    enum fire_status status = config_find_dirs(config, error);

    for (size_t i = 0; i < config_option_count && status == FIRE_OK; i++)
        if (config_options[i].value)
            status = config_option_set(&config_options[i], config, config_options[i].value,
                                       "default", error);
    return status;
}

/* Variables that are no settings: the file's, and firectl's. */
static const char *const foreign[] = { "FIRED_CONFIG", "FIRED_ADDR", "FIRED_TOKEN" };
#define FOREIGN_COUNT (sizeof(foreign) / sizeof(foreign[0]))

/* A variable that looks like a setting's but is none was probably meant to be one. */
static void warn_of_unknown_variables(void)
{
    char names[CONFIG_OPTIONS_MAX][CONFIG_NAME_BYTES];
    const char *known[CONFIG_OPTIONS_MAX + FOREIGN_COUNT];
    const size_t count = config_option_count + FOREIGN_COUNT;

    for (size_t i = 0; i < count; i++) {
        if (i < config_option_count)
            config_variable_name(config_options[i].name, names[i]);
        known[i] = i < config_option_count ? names[i] : foreign[i - config_option_count];
    }
    for (char **variable = environ; variable && *variable; variable++) {
        const size_t length = strcspn(*variable, "=");
        char name[CONFIG_NAME_BYTES];
        const char *nearest;

        if (strncmp(*variable, "FIRED_", strlen("FIRED_")) != 0 || length >= sizeof(name))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)length, *variable);
        nearest = fire_nearest_name(name, known, count);
        if (nearest && strcmp(nearest, name) != 0)
            log_warn("config_unknown_variable", LOG_TEXT("name", name),
                     LOG_TEXT("did_you_mean", nearest));
    }
}

static enum fire_status apply_environment(struct config *config, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; i < config_option_count && status == FIRE_OK; i++) {
        char variable[CONFIG_NAME_BYTES], origin[ORIGIN_BYTES];
        const char *text;

        config_variable_name(config_options[i].name, variable);
        text = getenv(variable);
        if (!text)
            continue;
        config->source->layers[i] = CONFIG_FROM_ENVIRONMENT;
        config_origin(config, i, origin, sizeof(origin));
        status = config_option_set(&config_options[i], config, text, origin, error);
    }
    return status;
}

static enum fire_status apply_flags(struct config *config, const struct flags *flags,
                                    struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; i < flags->count && status == FIRE_OK; i++) {
        const size_t option = flags->options[i];
        const bool again = config->source->layers[option] == CONFIG_FROM_FLAG;
        char origin[ORIGIN_BYTES];

        config->source->layers[option] = CONFIG_FROM_FLAG;
        config_origin(config, option, origin, sizeof(origin));
        if (again && config_options[option].kind == CONFIG_LIST)
            status = config_listen_add(config, flags->texts[i], origin, error);
        else
            status =
                config_option_set(&config_options[option], config, flags->texts[i], origin, error);
    }
    return status;
}

static enum fire_status apply_layers(struct config *config, const struct flags *flags,
                                     struct fire_error *error)
{
    const char *path = config->source->path;
    struct config_file *file = NULL;
    enum fire_status status = FIRE_OK;

    if (path)
        status = config_file_open(path, &file, error);
    if (status == FIRE_OK && file)
        status = config_file_apply(file, config, error);
    if (status == FIRE_OK)
        status = apply_environment(config, error);
    if (status == FIRE_OK)
        status = apply_flags(config, flags, error);
    if (status == FIRE_OK && file)
        status = config_file_apply_tenants(file, config, error);
    if (status == FIRE_OK && file)
        status = config_file_apply_alerts(file, config, error);
    config_file_close(file);
    return status;
}

enum fire_status config_load(struct config *config, int argc, char **argv, struct fire_error *error)
{
    struct flags flags = { .action = CONFIG_SERVE, .path = getenv("FIRED_CONFIG") };
    enum fire_status status;

    memset(config, 0, sizeof(*config));
    status = source_open(config, argc, argv, error);
    if (status == FIRE_OK)
        status = parse_flags(config->source, &flags, error);
    if (status == FIRE_OK)
        status = apply_defaults(config, error);
    if (status != FIRE_OK)
        return status;

    config->action = flags.action;
    if (flags.path && flags.path[0]) {
        config->source->path = strdup(flags.path);
        if (!config->source->path)
            return fire_fail_memory(error, strlen(flags.path) + 1);
    } else {
        status = config_find_file(&config->source->path, error);
        if (status != FIRE_OK)
            return status;
    }
    if (config->action != CONFIG_VERSION && config->action != CONFIG_HASH_TOKEN) {
        warn_of_unknown_variables();
        status = apply_layers(config, &flags, error);
    }
    return status == FIRE_OK ? config_find_rest(config, error) : status;
}

enum fire_status config_reload(const struct config *config, struct config *fresh,
                               struct fire_error *error)
{
    return config_load(fresh, config->source->argument_count, config->source->arguments, error);
}

void config_release(struct config *config)
{
    config_listen_clear(config);
    for (size_t i = 0; i < config_option_count; i++)
        if (config_options[i].kind == CONFIG_TEXT || config_options[i].kind == CONFIG_CHOICE)
            free(*(char **)((char *)config + config_options[i].offset));
    free(config->tenants);
    free(config->alerts);
    source_close(config->source);
    memset(config, 0, sizeof(*config));
}

void config_origin(const struct config *config, size_t option, char *text, size_t text_bytes)
{
    const struct config_source *source = config->source;
    char name[CONFIG_NAME_BYTES];

    switch (source->layers[option]) {
    case CONFIG_DEFAULT: snprintf(text, text_bytes, "default"); break;
    case CONFIG_FROM_FILE:
        snprintf(text, text_bytes, "file %.200s", source->path ? source->path : "");
        if (source->lines[option]) {
            const size_t length = strlen(text);

            snprintf(text + length, text_bytes - length, ":%u", source->lines[option]);
        }
        break;
    case CONFIG_FROM_ENVIRONMENT:
        config_variable_name(config_options[option].name, name);
        snprintf(text, text_bytes, "environment %s", name);
        break;
    case CONFIG_FROM_FLAG:
        config_flag_name(config_options[option].name, name);
        snprintf(text, text_bytes, "flag --%s", name);
        break;
    }
}
