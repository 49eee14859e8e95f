/* Any text as the file of settings. What must hold whatever the text:
 *   a refused file says why in one line;
 *   an accepted one can be printed, and what is printed is accepted and prints the same. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_file.h"
#include "config_options.h"

#define BUDGET_BYTES (1u << 30) /* in place of the machine's */

/* Not assert(): this must stop in Release too. */
static void demand(bool condition)
{
    if (!condition)
        abort();
}

static void refused(enum fire_status status, const struct fire_error *error)
{
    demand(error->status == status);
    demand(error->message[0] != '\0');
    demand(strpbrk(error->message, "\r\n") == NULL);
}

static void set_defaults(struct config *config)
{
    struct fire_error error;

    memset(config, 0, sizeof(*config));
    config->source = calloc(1, sizeof(*config->source));
    demand(config->source != NULL);
    for (size_t i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        const char *text = option->value ? option->value : "/nowhere";

        if (option->kind != CONFIG_LIST)
            demand(config_option_set(option, config, text, "default", &error) == FIRE_OK);
    }
}

/* Reads the text into `config`; false: refused. */
static bool read_text(struct config *config, const char *text, size_t bytes)
{
    struct fire_error error = { .message = "" };
    struct config_file *file = NULL;
    enum fire_status status;

    set_defaults(config);
    status = config_file_parse("fuzz", text, bytes, &file, &error);
    if (status == FIRE_OK)
        status = config_file_apply(file, config, &error);
    if (status == FIRE_OK)
        status = config_file_apply_tenants(file, config, &error);
    if (status == FIRE_OK && config->memory_budget_bytes == 0)
        config->memory_budget_bytes = BUDGET_BYTES;
    if (status == FIRE_OK)
        status = config_find_rest(config, &error);
    config_file_close(file);
    if (status != FIRE_OK)
        refused(status, &error);
    return status == FIRE_OK;
}

static char *written(const struct config *config, size_t *bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, bytes);

    demand(file != NULL);
    config_write(config, file);
    demand(fclose(file) == 0);
    return text;
}

/* The same lines, but for those that say where a value came from. */
static void demand_same(char *first, char *second)
{
    char *line;

    while ((line = strsep(&first, "\n")) != NULL) {
        const char *other = strsep(&second, "\n");

        demand(other != NULL);
        if (strncmp(line, "# from: ", strlen("# from: ")) != 0)
            demand(strcmp(line, other) == 0);
    }
    demand(second == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config config, again;

    if (read_text(&config, (const char *)data, size)) {
        size_t bytes, bytes_again;
        char *text = written(&config, &bytes);
        char *text_again;

        for (uint32_t i = 0; i < config.listen_count; i++)
            (void)config_address_is_local(config.listen[i]); /* must only not crash */
        demand(read_text(&again, text, bytes));
        text_again = written(&again, &bytes_again);
        demand_same(text, text_again);
        free(text);
        free(text_again);
        config_release(&again);
    }
    config_release(&config);
    return 0;
}
