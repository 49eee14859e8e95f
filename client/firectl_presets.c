/* firectl_presets: the presets, or every option of one. */
#include <jansson.h>
#include <stdlib.h>

#include "firectl.h"

static enum firectl_exit print_json(json_t *object)
{
    enum firectl_exit code = FIRECTL_DONE;

    if (!object || json_dumpf(object, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF) {
        firectl_say("the presets could not be written");
        code = FIRECTL_FAILED;
    }
    json_decref(object);
    return code;
}

static enum firectl_exit list(const struct firectl_args *args)
{
    enum firectl_exit code = FIRECTL_DONE;

    for (size_t i = 0; code == FIRECTL_DONE && i < fire_preset_count(); i++) {
        const struct fire_preset *preset = fire_preset_at(i);

        if (args->json)
            code = print_json(
                json_pack("{s:s, s:s}", "preset", preset->name, "summary", preset->summary));
        else
            printf("%-16s  %s\n", preset->name, preset->summary);
    }
    if (code == FIRECTL_DONE && !args->json)
        printf("\nfirectl presets NAME shows every option of one.\n");
    return code;
}

/* Every key, its value in this preset, what it may be and what it means. */
static enum firectl_exit show(const struct firectl_args *args, const struct fire_options *options)
{
    enum firectl_exit code = FIRECTL_DONE;
    json_t *object = args->json ? json_pack("{s:s}", "preset", options->preset) : NULL;
    char *value = malloc(FIRE_OPTION_TEXT_BYTES);

    if (!value || (args->json && !object)) {
        firectl_say("out of memory");
        free(value);
        json_decref(object);
        return FIRECTL_FAILED;
    }
    for (size_t i = 0; i < fire_option_key_count(); i++) {
        const struct fire_option_key *key = fire_option_key_at(i);

        fire_options_format(options, i, value, FIRE_OPTION_TEXT_BYTES);
        if (!args->json)
            printf("%s=%s\n    %s; %s\n", key->name, value, key->meaning, key->values);
        else if (json_object_set_new(object, key->name, json_string(value)) != 0)
            code = FIRECTL_FAILED;
    }
    free(value);
    if (!args->json)
        return FIRECTL_DONE;
    if (code == FIRECTL_DONE)
        return print_json(object);
    firectl_say("out of memory");
    json_decref(object);
    return code;
}

enum firectl_exit firectl_presets(const struct firectl_args *args)
{
    struct fire_options options;
    struct fire_error error = { 0 };

    if (args->input_count == 0)
        return list(args);
    if (fire_options_preset(&options, args->inputs[0], &error) != FIRE_OK) {
        firectl_fail(&error);
        return FIRECTL_USAGE;
    }
    return show(args, &options);
}
