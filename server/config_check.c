/* config_check: what one setting's range cannot say: addresses, files, and settings against each
 * other; and the folders the daemon needs. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "auth.h"
#include "config_options.h"

#define UNIX_PREFIX      "unix:"
#define HOST_BYTES       256
#define BUDGET_BYTES_MIN (32u << 20)
#define PORT_MAX         65535
#define OTHERS_MAY_WRITE (S_IWGRP | S_IWOTH)

/* Splits "host:port" or "[host]:port". */
static bool split_address(const char *address, char host[HOST_BYTES], uint32_t *port)
{
    const char *colon = strrchr(address, ':');
    const char *start = address;
    size_t length;

    if (!colon || colon[1] == '\0' || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        strlen(colon + 1) > 5)
        return false;
    *port = (uint32_t)strtoul(colon + 1, NULL, 10);
    length = (size_t)(colon - address);
    if (length >= 2 && address[0] == '[' && colon[-1] == ']') {
        start++;
        length -= 2;
    } else if (memchr(address, ':', length)) {
        return false; /* an IPv6 address without its brackets */
    }
    if (length == 0 || length >= HOST_BYTES || *port > PORT_MAX)
        return false;
    memcpy(host, start, length);
    host[length] = '\0';
    return true;
}

bool config_address_is_local(const char *address)
{
    struct in6_addr six;
    struct in_addr four;
    char host[HOST_BYTES];
    uint32_t port;

    if (strncmp(address, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0)
        return true;
    if (!split_address(address, host, &port))
        return false;
    if (strcasecmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

static enum fire_status check_unix(const char *address, struct fire_error *error)
{
    const char *path = address + strlen(UNIX_PREFIX);
    const size_t most = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;

    if (path[0] != '/')
        return fire_fail(error, FIRE_BAD_REQUEST, "listen",
                         "%s: the path of a unix socket must begin with a slash", address);
    if (strlen(path) > most)
        return fire_fail(error, FIRE_BAD_REQUEST, "listen",
                         "%.80s…: the path of a unix socket has %zu bytes, more than %zu; choose a "
                         "shorter runtime_dir or listen address",
                         address, strlen(path), most);
    return FIRE_OK;
}

static enum fire_status check_address(const struct config *config, const char *setting,
                                      const char *address, struct fire_error *error)
{
    char host[HOST_BYTES];
    uint32_t port;

    if (!split_address(address, host, &port))
        return fire_fail(error, FIRE_BAD_REQUEST, setting,
                         "%s: \"%.80s\" is no address; give host:port or [::1]:port%s", setting,
                         address, strcmp(setting, "http") == 0 ? ", or off" : ", or unix:/PATH");
    if (!config_address_is_local(address) && !config->tls_certificate[0] &&
        !config->insecure_anywhere)
        return fire_fail(error, FIRE_BAD_REQUEST, setting,
                         "%s: %s can be reached from elsewhere and there is no TLS; set "
                         "tls_certificate and tls_key (deploy/make-certs makes some to try), or "
                         "say insecure_anywhere: \"%s\"",
                         setting, address, CONFIG_INSECURE_SENTENCE);
    return FIRE_OK;
}

static enum fire_status check_addresses(const struct config *config, struct fire_error *error)
{
    enum fire_status status = FIRE_OK;
    bool elsewhere = false;

    for (uint32_t i = 0; i < config->listen_count && status == FIRE_OK; i++) {
        const char *address = config->listen[i];

        for (uint32_t j = 0; j < i; j++)
            if (strcmp(config->listen[j], address) == 0 && !strstr(address, ":0"))
                return fire_fail(error, FIRE_BAD_REQUEST, "listen",
                                 "listen: %s is given twice; leave one out", address);
        if (strncmp(address, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0)
            status = check_unix(address, error);
        else
            status = check_address(config, "listen", address, error);
        elsewhere = elsewhere || !config_address_is_local(address);
    }
    if (status == FIRE_OK && strcmp(config->http, "off") != 0)
        status = check_address(config, "http", config->http, error);
    if (status == FIRE_OK && elsewhere && !config->credentials[0])
        log_warn("config_nobody_allowed",
                 LOG_TEXT("reason", "callers from elsewhere are refused without credentials"));
    return status;
}

static enum fire_status check_file(const char *setting, const char *path, struct fire_error *error)
{
    struct stat state;
    int descriptor;

    if (!path[0])
        return FIRE_OK;
    descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0 || fstat(descriptor, &state) != 0) {
        const int reason = errno;

        if (descriptor >= 0)
            close(descriptor);
        return fire_fail(error, FIRE_IO, setting,
                         "%s: cannot read %.200s: %s; check the path and "
                         "its rights",
                         setting, path, strerror(reason));
    }
    close(descriptor);
    if (!S_ISREG(state.st_mode))
        return fire_fail(error, FIRE_BAD_REQUEST, setting, "%s: %.200s is not a regular file",
                         setting, path);
    return FIRE_OK;
}

static enum fire_status check_tls(const struct config *config, struct fire_error *error)
{
    enum fire_status status;

    if (!config->tls_certificate[0] != !config->tls_key[0])
        return fire_fail(error, FIRE_BAD_REQUEST, "tls_key",
                         "tls_certificate and tls_key go together; %s is missing",
                         config->tls_key[0] ? "tls_certificate" : "tls_key");
    if (config->tls_client_ca[0] && !config->tls_certificate[0])
        return fire_fail(error, FIRE_BAD_REQUEST, "tls_client_ca",
                         "tls_client_ca needs tls_certificate and tls_key: callers can show a "
                         "certificate only within TLS");
    status = check_file("tls_certificate", config->tls_certificate, error);
    if (status == FIRE_OK)
        status = check_file("tls_key", config->tls_key, error);
    if (status == FIRE_OK)
        status = check_file("tls_client_ca", config->tls_client_ca, error);
    return status;
}

static enum fire_status check_budget(const struct config *config, struct fire_error *error)
{
    const uint64_t messages = config_message_bytes(config);
    const struct {
        const char *name;
        uint64_t value;
    } parts[] = {
        { "message_bytes_max", config->message_bytes_max },
        { "stream_window_bytes", config->stream_window_bytes },
    };

    if (config->memory_budget_bytes < BUDGET_BYTES_MIN)
        return fire_fail(error, FIRE_BAD_REQUEST, "memory_budget_bytes",
                         "memory_budget_bytes must be at least %u MiB, got %llu bytes",
                         BUDGET_BYTES_MIN >> 20, (unsigned long long)config->memory_budget_bytes);
    if (config->slab_percent + config->workspace_percent > 95)
        return fire_fail(error, FIRE_BAD_REQUEST, "slab_percent",
                         "slab_percent and workspace_percent are %u %% together, which leaves too "
                         "little for messages; they may be 95 %% at most",
                         config->slab_percent + config->workspace_percent);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (parts[i].value > messages)
            return fire_fail(error, FIRE_BAD_REQUEST, parts[i].name,
                             "%s is %llu bytes, but messages may take %llu in all; lower it, or "
                             "raise memory_budget_bytes, or lower slab_percent",
                             parts[i].name, (unsigned long long)parts[i].value,
                             (unsigned long long)messages);
    return FIRE_OK;
}

/* A secret is there to be used, and an address is one that can be sent to. */
static enum fire_status check_alerts(const struct config *config, struct fire_error *error)
{
    const char *url = config->alert_webhook;

    if (url[0] && strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0)
        return fire_fail(error, FIRE_BAD_REQUEST, "alert_webhook",
                         "alert_webhook must be http://… or https://…, got \"%.100s\"", url);
    if (config->alert_secret_file[0])
        return check_file("alert_secret_file", config->alert_secret_file, error);
    return FIRE_OK;
}

enum fire_status config_check(const struct config *config, struct fire_error *error)
{
    enum fire_status status = check_tls(config, error);
    struct auth *auth = NULL;

    if (status == FIRE_OK)
        status = check_addresses(config, error);
    if (status == FIRE_OK)
        status = check_budget(config, error);
    if (status == FIRE_OK)
        status = check_alerts(config, error);
    if (status == FIRE_OK)
        status = auth_open(config->credentials, &auth, error);
    auth_close(auth);
    return status;
}

/* Makes a folder and those above it that are missing. */
static bool make_folders(const char *path)
{
    char *copy = strdup(path);
    bool made = copy != NULL;

    for (char *slash = copy ? strchr(copy + 1, '/') : NULL; slash && made;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        made = mkdir(copy, S_IRWXU) == 0 || errno == EEXIST;
        *slash = '/';
    }
    made = made && (mkdir(path, S_IRWXU) == 0 || errno == EEXIST);
    free(copy);
    return made;
}

static enum fire_status make_dir(const char *setting, const char *path, struct fire_error *error)
{
    char flag[CONFIG_NAME_BYTES];
    struct stat state;

    config_flag_name(setting, flag);
    if (path[0] != '/')
        return fire_fail(error, FIRE_BAD_REQUEST, setting,
                         "%s must be an absolute path, got \"%.80s\"; give --%s", setting, path,
                         flag);
    if (!make_folders(path))
        return fire_fail(error, FIRE_IO, setting, "%s: cannot make %.200s: %s; give --%s", setting,
                         path, strerror(errno), flag);
    if (stat(path, &state) != 0 || !S_ISDIR(state.st_mode) || access(path, W_OK | X_OK) != 0)
        return fire_fail(error, FIRE_IO, setting,
                         "%s: %.200s is no folder this user may write to; give --%s", setting, path,
                         flag);
    return FIRE_OK;
}

enum fire_status config_make_dirs(const struct config *config, struct fire_error *error)
{
    enum fire_status status = make_dir("state_dir", config->state_dir, error);
    struct stat state;

    if (status == FIRE_OK)
        status = make_dir("runtime_dir", config->runtime_dir, error);
    if (status != FIRE_OK)
        return status;
    /* Not stat(): whoever made a link there could point it elsewhere later. */
    if (lstat(config->runtime_dir, &state) != 0 || !S_ISDIR(state.st_mode) ||
        state.st_uid != geteuid() || (state.st_mode & OTHERS_MAY_WRITE) != 0)
        return fire_fail(error, FIRE_DENIED, "runtime_dir",
                         "runtime_dir %.200s must be a folder of this user that no other may write "
                         "to; make one with mode 700 and give --runtime-dir",
                         config->runtime_dir);
    return FIRE_OK;
}
