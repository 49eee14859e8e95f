/* config_print: the settings as YAML for --print-config, and the example file of deploy/. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "config_options.h"

#define ORIGIN_BYTES 256
#define LINE_BYTES   100 /* of the example */

static void print_tenants(const struct config *config, FILE *file)
{
    if (config->tenant_count == 0)
        return;
    fputs("\n# limits of tenants by name\ntenants:\n", file);
    for (uint32_t i = 0; i < config->tenant_count; i++) {
        const struct tenant_limits *limits = &config->tenants[i].limits;
        char weight[32], share[32];

        config_write_double(limits->weight, weight, sizeof(weight));
        config_write_double(limits->device_share_max, share, sizeof(share));
        fprintf(file,
                "  - { name: \"%s\", weight: %s, bytes_max: %" PRIu64 ", streams_max: %" PRIu32
                ", calls_max: %" PRIu32 ", device_share_max: %s }\n",
                config->tenants[i].name, weight, limits->bytes_in_flight_max, limits->streams_max,
                limits->calls_max, share);
    }
}

/* Numbers read back to what they were; names and globs hold no quotes or are escaped. */
static void print_quoted(const char *text, FILE *file)
{
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        fputc(*text, file);
    }
    fputc('"', file);
}

static void print_alerts(const struct config *config, FILE *file)
{
    if (config->alert_count == 0)
        return;
    fputs("\n# rules over what runs report\nalerts:\n", file);
    for (uint32_t i = 0; i < config->alert_count; i++) {
        const struct alert_rule *rule = &config->alerts[i];
        char number[32];

        fprintf(file, "  - { name: \"%s\", run: ", rule->name);
        print_quoted(rule->run, file);
        fputs(", layer: ", file);
        print_quoted(rule->layer, file);
        fprintf(file, ", statistic: \"%s\", kind: %s", rule->statistic,
                alert_kind_name(rule->kind));
        if (rule->kind != ALERT_NO_DATA) {
            config_write_double(rule->value, number, sizeof(number));
            fprintf(file, ", op: \"%s\", value: %s", rule->below ? "<" : ">", number);
        }
        if (rule->kind != ALERT_THRESHOLD) {
            config_write_double(rule->window, number, sizeof(number));
            fprintf(file, ", window: %s", number);
        }
        config_write_double(rule->hold_s, number, sizeof(number));
        fprintf(file, ", hold: %s }\n", number);
    }
}

void config_write(const struct config *config, FILE *file)
{
    for (size_t i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        char origin[ORIGIN_BYTES], allowed[ORIGIN_BYTES];

        config_origin(config, i, origin, sizeof(origin));
        config_option_allowed(option, allowed, sizeof(allowed));
        fprintf(file, "%s# %s%s%s\n# from: %s\n%s: ", i ? "\n" : "", option->meaning,
                allowed[0] ? "; " : "", allowed, origin, option->name);
        config_option_write(option, config, file);
        fputc('\n', file);
    }
    print_tenants(config, file);
    print_alerts(config, file);
}

void config_print(const struct config *config)
{
    config_write(config, stdout);
    fflush(stdout);
}

/* A text default in quotes, as the file wants it; others and found ones as they are. */
static void print_default(const struct config_option *option, FILE *file)
{
    const bool text = option->kind == CONFIG_TEXT || option->kind == CONFIG_SENTENCE;

    if (text)
        fprintf(file, "\"%s\"", option->value ? option->value : option->found);
    else
        fputs(option->value ? option->value : option->found, file);
}

void config_print_example(FILE *file)
{
    fputs("# fired.yaml: every setting of fired with its default. Take the # away to change one.\n"
          "# A variable FIRED_<NAME> wins over this file, and a flag --<name> over both.\n"
          "# fired --config fired.yaml --print-config shows what comes out.\n"
          "# kill -HUP reads tokens, limits, alerts and the log level again, dropping no calls.\n",
          file);
    for (size_t i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        char allowed[ORIGIN_BYTES];

        config_option_allowed(option, allowed, sizeof(allowed));
        if (option->kind == CONFIG_SENTENCE)
            allowed[0] = '\0'; /* its meaning says it */
        fprintf(file, "\n# %s", option->meaning);
        if (allowed[0] && strlen(option->meaning) + strlen(allowed) + 4 < LINE_BYTES)
            fprintf(file, "; %s\n", allowed);
        else
            fprintf(file, "%s%s\n", allowed[0] ? "\n# " : "", allowed);
        if (option->found)
            fprintf(file, "# default: %s\n", option->found);
        else {
            fprintf(file, "#%s: ", option->name);
            print_default(option, file);
            fputc('\n', file);
        }
    }
    fputs("\n# limits of tenants by name; what is left out is the default above\n"
          "#tenants:\n"
          "#  - { name: trainer, weight: 3, bytes_max: 2GiB, streams_max: 64, calls_max: 1024,\n"
          "#      device_share_max: 1 }\n",
          file);
    fputs("\n# rules over what runs report: kind threshold (op and value), slope (change per step\n"
          "# over a window of steps) or no_data (a window of seconds); globs of run and layer, a\n"
          "# layer \"\" is the whole run; hold: seconds it must hold before it fires\n"
          "#alerts:\n"
          "#  - { name: silent-units, run: \"*\", layer: \"*\", statistic: dormant_ratio, op: "
          "\">\",\n"
          "#      value: 0.3, hold: 60 }\n"
          "#  - { name: loss-rises, layer: \"\", statistic: loss, kind: slope, value: 0.001,\n"
          "#      window: 1000 }\n"
          "#  - { name: gone, layer: \"\", statistic: loss, kind: no_data, window: 600 }\n",
          file);
}
