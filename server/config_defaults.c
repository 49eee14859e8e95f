/* config_defaults: what follows from the machine: folders, memory, addresses, and limits that have
 * to fit the budget. */
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_options.h"

#define PATH_BYTES     4096
#define LINE_BYTES     4096
#define BUDGET_PART    4 /* of the memory there is */
#define TENANT_PART    2 /* of the budget */
#define UNIX_NAME      "fired.sock"
#define DEFAULT_LISTEN "127.0.0.1:8470"

/* Sets a text setting to two parts put together. */
static enum fire_status set_path(char **place, const char *folder, const char *name,
                                 struct fire_error *error)
{
    char path[PATH_BYTES];

    if ((size_t)snprintf(path, sizeof(path), "%s%s", folder, name) >= sizeof(path))
        return fire_fail(error, FIRE_BAD_REQUEST, "", "the path %.60s… is longer than %d bytes",
                         folder, PATH_BYTES - 1);
    free(*place);
    *place = strdup(path);
    return *place ? FIRE_OK : fire_fail_memory(error, strlen(path) + 1);
}

/* A variable that holds an absolute path, or NULL. */
static const char *path_variable(const char *name)
{
    const char *value = getenv(name);

    return value && value[0] == '/' ? value : NULL;
}

enum fire_status config_find_file(char **path, struct fire_error *error)
{
    const char *folders = path_variable("CONFIGURATION_DIRECTORY");
    char name[PATH_BYTES];

    *path = NULL;
    if (!folders || (size_t)snprintf(name, sizeof(name), "%.*s/fired.yaml",
                                     (int)strcspn(folders, ":"), folders) >= sizeof(name))
        return FIRE_OK;
    if (access(name, F_OK) != 0 && errno == ENOENT)
        return FIRE_OK;
    *path = strdup(name);
    return *path ? FIRE_OK : fire_fail_memory(error, strlen(name) + 1);
}

/* The first of the folders that systemd lists with colons between them. */
static enum fire_status set_first(char **place, const char *folders, struct fire_error *error)
{
    free(*place);
    *place = strndup(folders, strcspn(folders, ":"));
    return *place ? FIRE_OK : fire_fail_memory(error, strlen(folders) + 1);
}

static enum fire_status find_runtime_dir(struct config *config, struct fire_error *error)
{
    const char *systemd = path_variable("RUNTIME_DIRECTORY");
    const char *user = path_variable("XDG_RUNTIME_DIR");
    char name[64];

    if (systemd)
        return set_first(&config->runtime_dir, systemd, error);
    if (user)
        return set_path(&config->runtime_dir, user, "/fired", error);
    snprintf(name, sizeof(name), "/fired-%u", (unsigned)geteuid());
    return set_path(&config->runtime_dir, P_tmpdir, name, error);
}

static enum fire_status find_state_dir(struct config *config, struct fire_error *error)
{
    const char *systemd = path_variable("STATE_DIRECTORY");
    const char *user = path_variable("XDG_STATE_HOME");
    const char *home = path_variable("HOME");
    const struct passwd *entry;

    if (systemd)
        return set_first(&config->state_dir, systemd, error);
    if (user)
        return set_path(&config->state_dir, user, "/fired", error);
    if (!home) {
        entry = getpwuid(geteuid()); /* nothing else in the daemon calls it */
        home = entry && entry->pw_dir && entry->pw_dir[0] == '/' ? entry->pw_dir : NULL;
    }
    if (!home) /* a user without a home: config_make_dirs() says what to do */
        return set_path(&config->state_dir, "", "", error);
    return set_path(&config->state_dir, home, "/.local/state/fired", error);
}

enum fire_status config_find_dirs(struct config *config, struct fire_error *error)
{
    const enum fire_status status = find_runtime_dir(config, error);

    return status == FIRE_OK ? find_state_dir(config, error) : status;
}

/* The limit in the file `name` of a cgroup folder and every folder above it, the least. */
static uint64_t least_limit(const char *root, const char *folder, const char *name, uint64_t least)
{
    char path[PATH_BYTES + LINE_BYTES];
    size_t root_bytes = strlen(root);

    if ((size_t)snprintf(path, sizeof(path), "%s%s", root, folder) >= sizeof(path) - 64)
        return least;
    for (;;) {
        const size_t length = strlen(path);
        unsigned long long limit;
        FILE *file;

        snprintf(path + length, sizeof(path) - length, "/%s", name);
        file = fopen(path, "re");
        if (file) {
            if (fscanf(file, "%llu", &limit) == 1 && limit < least) /* not for the word max */
                least = limit;
            fclose(file);
        }
        path[length] = '\0';
        if (length <= root_bytes)
            return least;
        *strrchr(path, '/') = '\0';
    }
}

uint64_t config_machine_bytes(void)
{
    uint64_t least = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[LINE_BYTES];

    while (file && fgets(line, sizeof(line), file)) {
        char *controllers = strchr(line, ':');
        char *folder = controllers ? strchr(controllers + 1, ':') : NULL;

        line[strcspn(line, "\n")] = '\0';
        if (!folder)
            continue;
        *folder++ = '\0';
        if (controllers[1] == '\0') /* version 2: "0::/folder" */
            least = least_limit("/sys/fs/cgroup", folder, "memory.max", least);
        else if (strstr(controllers, "memory"))
            least = least_limit("/sys/fs/cgroup/memory", folder, "memory.limit_in_bytes", least);
    }
    if (file)
        fclose(file);
    return least;
}

/* Lowers a default that the budget has no room for. What was given is left for config_check(). */
static void lower_default(struct config *config, const char *name, uint64_t *value, uint64_t most)
{
    const size_t option = config_option_find(name);
    const uint64_t least = (uint64_t)config_options[option].minimum;

    most -= most % 1024;
    if (config->source->layers[option] == CONFIG_DEFAULT && *value > most)
        *value = most > least ? most : least;
}

static enum fire_status find_listen(struct config *config, struct fire_error *error)
{
    char *address = NULL;
    enum fire_status status = config_listen_add(config, DEFAULT_LISTEN, "default", error);
    char *folder = NULL;

    if (status == FIRE_OK)
        status = set_path(&folder, "unix:", config->runtime_dir, error);
    if (status == FIRE_OK)
        status = set_path(&address, folder, "/" UNIX_NAME, error);
    if (status == FIRE_OK)
        status = config_listen_add(config, address, "default", error);
    free(folder);
    free(address);
    return status;
}

enum fire_status config_find_rest(struct config *config, struct fire_error *error)
{
    uint64_t messages;

    if (config->memory_budget_bytes == 0) {
        config->memory_budget_bytes = config_machine_bytes() / BUDGET_PART;
        config->memory_budget_bytes -= config->memory_budget_bytes % (1u << 20);
    }
    messages =
        config->slab_percent + config->workspace_percent < 100 ? config_message_bytes(config) : 0;
    lower_default(config, "message_bytes_max", &config->message_bytes_max, messages / 2);
    lower_default(config, "stream_window_bytes", &config->stream_window_bytes, messages / 2);

    if (config->tenant.bytes_in_flight_max == 0)
        config->tenant.bytes_in_flight_max = config->memory_budget_bytes / TENANT_PART;
    for (uint32_t i = 0; i < config->tenant_count; i++)
        if (config->tenants[i].limits.bytes_in_flight_max == 0)
            config->tenants[i].limits.bytes_in_flight_max =
                config->memory_budget_bytes / TENANT_PART;
    return config->listen_count == 0 ? find_listen(config, error) : FIRE_OK;
}
