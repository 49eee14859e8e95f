/* config_file: libcyaml reads every value as text, and the table of config_options.c judges it, so
 * that a value means the same in a file, a variable and a flag. The schema is made from the table.
 */
#include "config_file.h"

#include <stdlib.h>
#include <string.h>

#include "auth.h"
#include "config_alerts.h"
#include "config_options.h"
#include "yaml_file.h"

#define ORIGIN_BYTES 256

/* One entry of `tenants`; NULL: left out. */
struct tenant_text {
    char *name;
    char *weight;
    char *bytes_max;
    char *streams_max;
    char *calls_max;
    char *device_share_max;
};

/* What libcyaml fills. */
struct document {
    char *values[CONFIG_OPTIONS_MAX]; /* by position in the table; NULL: not in the file */
    char **listen;
    uint32_t listen_count;
    struct tenant_text *tenants;
    uint32_t tenants_count;
    struct config_alert_text *alerts;
    uint32_t alerts_count;
};

struct config_file {
    char *name;
    char *text;
    size_t bytes;
    struct document *document; /* NULL: the file has no values */
    struct cyaml_schema_field fields[CONFIG_OPTIONS_MAX + 3];
    struct cyaml_schema_value schema;
};

#define TENANT_FIELD(member)                                                                       \
    CYAML_FIELD_STRING_PTR(#member, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct tenant_text,  \
                           member, 0, CONFIG_TEXT_BYTES - 1)

static const struct cyaml_schema_field tenant_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct tenant_text, name, 0,
                           CONFIG_TEXT_BYTES - 1),
    TENANT_FIELD(weight),
    TENANT_FIELD(bytes_max),
    TENANT_FIELD(streams_max),
    TENANT_FIELD(calls_max),
    TENANT_FIELD(device_share_max),
    CYAML_FIELD_END,
};

static const struct cyaml_schema_value tenant_schema = { CYAML_VALUE_MAPPING(
    CYAML_FLAG_DEFAULT, struct tenant_text, tenant_fields) };

#define ALERT_FIELD(member)                                                                        \
    CYAML_FIELD_STRING_PTR(#member, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,                      \
                           struct config_alert_text, member, 0, CONFIG_TEXT_BYTES - 1)

static const struct cyaml_schema_field alert_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct config_alert_text, name, 0,
                           CONFIG_TEXT_BYTES - 1),
    ALERT_FIELD(run),
    ALERT_FIELD(layer),
    ALERT_FIELD(statistic),
    ALERT_FIELD(kind),
    ALERT_FIELD(op),
    ALERT_FIELD(value),
    ALERT_FIELD(window),
    ALERT_FIELD(hold),
    CYAML_FIELD_END,
};

static const struct cyaml_schema_value alert_schema = { CYAML_VALUE_MAPPING(
    CYAML_FLAG_DEFAULT, struct config_alert_text, alert_fields) };

static const struct cyaml_schema_value address_schema = { CYAML_VALUE_STRING(
    CYAML_FLAG_POINTER, char, 0, CONFIG_TEXT_BYTES - 1) };

static void make_schema(struct config_file *file)
{
    const struct cyaml_schema_field listen =
        CYAML_FIELD_SEQUENCE("listen", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct document,
                             listen, &address_schema, 1, CONFIG_LISTEN_MAX);
    const struct cyaml_schema_field tenants =
        CYAML_FIELD_SEQUENCE("tenants", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct document,
                             tenants, &tenant_schema, 0, CONFIG_TENANTS_MAX);
    const struct cyaml_schema_field alerts =
        CYAML_FIELD_SEQUENCE("alerts", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct document,
                             alerts, &alert_schema, 0, ALERTS_RULES_MAX);
    const struct cyaml_schema_field end = CYAML_FIELD_END;
    const struct cyaml_schema_value top = { CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct document,
                                                                file->fields) };
    size_t count = 0;

    for (; count < config_option_count; count++)
        if (config_options[count].kind == CONFIG_LIST)
            file->fields[count] = listen;
        else
            file->fields[count] = (struct cyaml_schema_field){
                .key = config_options[count].name,
                .data_offset =
                    (uint32_t)(offsetof(struct document, values) + count * sizeof(char *)),
                .value = { CYAML_VALUE_STRING(CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, char, 0,
                                              CONFIG_TEXT_BYTES - 1) },
            };
    file->fields[count++] = tenants;
    file->fields[count++] = alerts;
    file->fields[count] = end;
    file->schema = top;
}

/* Takes `text`, also when it fails. */
static enum fire_status open_text(const char *name, char *text, size_t bytes,
                                  struct config_file **out, struct fire_error *error)
{
    struct config_file *file = calloc(1, sizeof(*file));
    enum fire_status status;
    void *document;

    *out = NULL;
    if (!file) {
        free(text);
        return fire_fail_memory(error, sizeof(*file));
    }
    file->text = text;
    file->bytes = bytes;
    file->name = strdup(name);
    if (!file->name) {
        config_file_close(file);
        return fire_fail_memory(error, strlen(name) + 1);
    }
    make_schema(file);
    status = yaml_file_load(name, text, bytes, &file->schema, &document, error);
    if (status != FIRE_OK) {
        config_file_close(file);
        return status;
    }
    file->document = document;
    *out = file;
    return FIRE_OK;
}

enum fire_status config_file_open(const char *path, struct config_file **file,
                                  struct fire_error *error)
{
    struct stat state;
    char *text;
    size_t bytes;
    const enum fire_status status = yaml_file_read(path, &text, &bytes, &state, error);

    *file = NULL;
    return status == FIRE_OK ? open_text(path, text, bytes, file, error) : status;
}

enum fire_status config_file_parse(const char *name, const char *text, size_t bytes,
                                   struct config_file **file, struct fire_error *error)
{
    char *copy = malloc(bytes + 1);

    *file = NULL;
    if (!copy)
        return fire_fail_memory(error, bytes + 1);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return open_text(name, copy, bytes, file, error);
}

void config_file_close(struct config_file *file)
{
    if (!file)
        return;
    yaml_file_free(&file->schema, file->document);
    free(file->name);
    free(file->text);
    free(file);
}

/* "fired.yaml:12" */
static uint32_t write_origin(const struct config_file *file, const char *key,
                             char origin[ORIGIN_BYTES])
{
    const uint32_t line = yaml_file_line(file->text, file->bytes, 1, key);

    if (line)
        snprintf(origin, ORIGIN_BYTES, "%.200s:%u", file->name, line);
    else
        snprintf(origin, ORIGIN_BYTES, "%.200s", file->name);
    return line;
}

static enum fire_status apply_listen(const struct document *document, struct config *config,
                                     const char *origin, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;

    config_listen_clear(config);
    for (uint32_t i = 0; i < document->listen_count && status == FIRE_OK; i++)
        status = config_listen_add(config, document->listen[i], origin, error);
    return status;
}

enum fire_status config_file_apply(const struct config_file *file, struct config *config,
                                   struct fire_error *error)
{
    const struct document *document = file->document;
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; document && i < config_option_count && status == FIRE_OK; i++) {
        const struct config_option *option = &config_options[i];
        const bool list = option->kind == CONFIG_LIST;
        char origin[ORIGIN_BYTES];

        if (list ? document->listen_count == 0 : document->values[i] == NULL)
            continue;
        config->source->layers[i] = CONFIG_FROM_FILE;
        config->source->lines[i] = write_origin(file, option->name, origin);
        if (list)
            status = apply_listen(document, config, origin, error);
        else
            status = config_option_set(option, config, document->values[i], origin, error);
    }
    return status;
}

/* Fills the limits of one tenant: the defaults, then what its entry gives. */
static enum fire_status apply_limits(const struct tenant_text *text, const struct config *config,
                                     const char *origin, struct tenant_limits *limits,
                                     struct fire_error *error)
{
    const struct {
        const char *option;
        const char *value;
    } parts[] = {
        { "tenant_weight", text->weight },
        { "tenant_bytes_max", text->bytes_max },
        { "tenant_streams_max", text->streams_max },
        { "tenant_calls_max", text->calls_max },
        { "tenant_device_share_max", text->device_share_max },
    };
    struct config scratch = { .tenant = config->tenant }; /* the table's options write into it */
    enum fire_status status = FIRE_OK;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && status == FIRE_OK; i++)
        if (parts[i].value)
            status = config_option_set(&config_options[config_option_find(parts[i].option)],
                                       &scratch, parts[i].value, origin, error);
    *limits = scratch.tenant;
    return status;
}

static enum fire_status check_name(const struct config *config, uint32_t count, const char *name,
                                   const char *origin, struct fire_error *error)
{
    if (!auth_tenant_is_valid(name))
        return fire_fail(error, FIRE_BAD_REQUEST, "tenants",
                         "a tenant's name must be 1 to %d of letters, digits and . _ -; got "
                         "\"%.64s\" (%s)",
                         TENANT_NAME_BYTES - 1, name, origin);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(config->tenants[i].name, name) == 0)
            return fire_fail(error, FIRE_BAD_REQUEST, "tenants",
                             "tenant %s is listed twice (%s); keep one entry", name, origin);
    return FIRE_OK;
}

enum fire_status config_file_apply_tenants(const struct config_file *file, struct config *config,
                                           struct fire_error *error)
{
    const struct document *document = file->document;
    enum fire_status status = FIRE_OK;
    char origin[ORIGIN_BYTES];

    if (!document || document->tenants_count == 0)
        return FIRE_OK;
    config->tenants = calloc(document->tenants_count, sizeof(*config->tenants));
    if (!config->tenants)
        return fire_fail_memory(error, document->tenants_count * sizeof(*config->tenants));
    write_origin(file, "tenants", origin);
    for (uint32_t i = 0; i < document->tenants_count && status == FIRE_OK; i++) {
        const struct tenant_text *text = &document->tenants[i];
        struct config_tenant *tenant = &config->tenants[i];

        status = check_name(config, i, text->name, origin, error);
        if (status == FIRE_OK) {
            memcpy(tenant->name, text->name, strlen(text->name) + 1);
            status = apply_limits(text, config, origin, &tenant->limits, error);
        }
        config->tenant_count = i + 1;
    }
    if (status != FIRE_OK)
        yaml_file_one_line(error);
    return status;
}

enum fire_status config_file_apply_alerts(const struct config_file *file, struct config *config,
                                          struct fire_error *error)
{
    const struct document *document = file->document;
    enum fire_status status = FIRE_OK;
    char origin[ORIGIN_BYTES];

    if (!document || document->alerts_count == 0)
        return FIRE_OK;
    config->alerts = calloc(document->alerts_count, sizeof(*config->alerts));
    if (!config->alerts)
        return fire_fail_memory(error, document->alerts_count * sizeof(*config->alerts));
    write_origin(file, "alerts", origin);
    for (uint32_t i = 0; i < document->alerts_count && status == FIRE_OK; i++) {
        status = config_alert_read(&document->alerts[i], origin, &config->alerts[i], error);
        for (uint32_t k = 0; status == FIRE_OK && k < i; k++)
            if (strcmp(config->alerts[k].name, config->alerts[i].name) == 0)
                status = fire_fail(error, FIRE_BAD_REQUEST, "alerts",
                                   "alert %s is listed twice (%s); keep one entry",
                                   config->alerts[i].name, origin);
        config->alert_count = i + 1;
    }
    if (status != FIRE_OK)
        yaml_file_one_line(error);
    return status;
}
