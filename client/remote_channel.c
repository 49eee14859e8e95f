/* remote_channel: address, TLS files, token and tenant of a daemon, and the core channel to it. */
#include "remote_channel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <grpc/grpc_security.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX         (1u << 20) /* of certificates or a key */
#define ADDRESS_DEFAULT        "127.0.0.1:8470"
#define BACKOFF_MS_FIRST       100
#define BACKOFF_MS_MAX         5000
#define CONNECT_MS_MAX         5000
#define METADATA_MAX           2u
#define UNIX_PATH_BYTES_MAX    107u /* of struct sockaddr_un */
#define HEADER_VALUE_BYTES_MAX 4096u

struct remote_channel {
    char *address;
    char *tenant;
    char *authorization; /* "Bearer …", or NULL */
    char *ca;            /* PEM texts, or NULL */
    char *certificate;
    char *key;
    char *server_name;
    bool initialised; /* it owns one grpc_init() */
    grpc_channel *core;
    grpc_metadata metadata[METADATA_MAX];
    size_t metadata_count;
};

static enum fire_status copy_text(const char *text, char **copy, struct fire_error *error)
{
    if (!text)
        return FIRE_OK;
    *copy = strdup(text);
    return *copy ? FIRE_OK : fire_fail_memory(error, strlen(text) + 1);
}

/* Reads a whole small file as text. */
static enum fire_status read_file(const char *path, const char *field, char **text,
                                  struct fire_error *error)
{
    FILE *file;
    size_t bytes = 0;

    if (!path)
        return FIRE_OK;
    file = fopen(path, "rbe");
    if (!file)
        return fire_fail(error, FIRE_IO, field, "%s: cannot read %.300s: %s", field, path,
                         strerror(errno));
    *text = malloc(FILE_BYTES_MAX + 1);
    if (*text)
        bytes = fread(*text, 1, FILE_BYTES_MAX + 1, file);
    if (!*text || ferror(file) || bytes == 0 || bytes > FILE_BYTES_MAX) {
        const bool no_memory = !*text;
        const bool failed = ferror(file) != 0;

        fclose(file);
        if (no_memory)
            return fire_fail_memory(error, FILE_BYTES_MAX + 1);
        return fire_fail(error, FIRE_IO, field, "%s: %.300s %s; give a PEM file", field, path,
                         failed  ? "cannot be read"
                         : bytes ? "is over 1 MiB"
                                 : "is empty");
    }
    fclose(file);
    (*text)[bytes] = '\0';
    if (!strstr(*text, "-----BEGIN "))
        return fire_fail(error, FIRE_BAD_REQUEST, field, "%s: %.300s is no PEM file", field, path);
    return FIRE_OK;
}

/* A socket is there; of this user if `own`: in a folder that all may write to, others could listen
 * too. */
static bool is_socket(const char *path, bool own)
{
    struct stat status;

    return stat(path, &status) == 0 && S_ISSOCK(status.st_mode) &&
           (!own || status.st_uid == geteuid());
}

/* The address when none was given: the socket of a daemon with default settings, of this user or of
 * the system, or else the default port. */
static void default_address(char *address, size_t address_bytes)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    const char *path = address + strlen("unix:");

    if (runtime && runtime[0] == '/')
        snprintf(address, address_bytes, "unix:%s/fired/fired.sock", runtime);
    else
        snprintf(address, address_bytes, "unix:%s/fired-%u/fired.sock", P_tmpdir,
                 (unsigned)geteuid());
    if (is_socket(path, true))
        return;
    snprintf(address, address_bytes, "unix:/run/fired/fired.sock");
    if (!is_socket(path, false))
        snprintf(address, address_bytes, ADDRESS_DEFAULT);
}

static enum fire_status check_address(const char *address, struct fire_error *error)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    unsigned long port;

    if (strncmp(address, "unix:", 5) == 0) {
        if (address[5] && strlen(address + 5) <= UNIX_PATH_BYTES_MAX)
            return FIRE_OK;
        return fire_fail(error, FIRE_BAD_REQUEST, "address",
                         "the socket path of '%.200s' must have 1 to %u bytes", address,
                         UNIX_PATH_BYTES_MAX);
    }
    port = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (!colon || colon == address || !colon[1] || *end || port < 1 || port > 65535 ||
        strchr(address, '/'))
        return fire_fail(error, FIRE_BAD_REQUEST, "address",
                         "the address '%.200s' is neither unix:PATH nor HOST:PORT", address);
    return FIRE_OK;
}

/* Text that travels as metadata: printable ASCII without blanks at its ends. */
static enum fire_status check_header(const char *text, const char *field, struct fire_error *error)
{
    const size_t length = strlen(text);

    for (size_t i = 0; i < length; i++) {
        if (text[i] < 0x20 || text[i] > 0x7e)
            return fire_fail(error, FIRE_BAD_REQUEST, field,
                             "the %s has a byte that is no printable ASCII (a line end?)", field);
    }
    if (length == 0 || length > HEADER_VALUE_BYTES_MAX || text[0] == ' ' || text[length - 1] == ' ')
        return fire_fail(error, FIRE_BAD_REQUEST, field,
                         "the %s must have 1 to %u bytes and no blank at its ends", field,
                         HEADER_VALUE_BYTES_MAX);
    return FIRE_OK;
}

/* What is sent there does not leave this machine. A name that only begins like an address of it may
 * be anybody's. */
static bool is_loopback(const char *address)
{
    const char *colon = strrchr(address, ':');
    unsigned char bytes[4];
    char host[INET_ADDRSTRLEN];

    if (strncmp(address, "unix:", 5) == 0 || strncmp(address, "[::1]:", 6) == 0 ||
        strncmp(address, "localhost:", 10) == 0)
        return true;
    if (!colon || (size_t)(colon - address) >= sizeof(host))
        return false;
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    return inet_pton(AF_INET, host, bytes) == 1 && bytes[0] == 127;
}

static enum fire_status take_token(struct remote_channel *channel,
                                   const struct fire_remote_settings *settings,
                                   struct fire_error *error)
{
    const char *token = settings->token ? settings->token : getenv("FIRED_TOKEN");
    enum fire_status status;

    if (!token || !token[0])
        return FIRE_OK;
    status = check_header(token, "token", error);
    if (status != FIRE_OK)
        return status;
    if (!settings->ca_file && !is_loopback(channel->address))
        return fire_fail(error, FIRE_BAD_REQUEST, "token",
                         "the token would travel unprotected to %.200s; use TLS (give the CA's "
                         "file), or leave the token out",
                         channel->address);
    if (asprintf(&channel->authorization, "Bearer %s", token) < 0) {
        channel->authorization = NULL;
        return fire_fail_memory(error, strlen(token));
    }
    return FIRE_OK;
}

static enum fire_status take_names(struct remote_channel *channel,
                                   const struct fire_remote_settings *settings,
                                   struct fire_error *error)
{
    const char *address = settings->address ? settings->address : getenv("FIRED_ADDR");
    char text[256];
    enum fire_status status;

    if (!address || !address[0]) {
        default_address(text, sizeof(text));
        address = text;
    }
    status = check_address(address, error);
    if (status == FIRE_OK)
        status = copy_text(address, &channel->address, error);
    if (status == FIRE_OK && settings->tenant)
        status = check_header(settings->tenant, "tenant", error);
    if (status == FIRE_OK)
        status = copy_text(settings->tenant, &channel->tenant, error);
    if (status == FIRE_OK)
        status = take_token(channel, settings, error);
    return status;
}

static enum fire_status take_files(struct remote_channel *channel,
                                   const struct fire_remote_settings *settings,
                                   struct fire_error *error)
{
    enum fire_status status;

    if (!settings->certificate_file != !settings->key_file)
        return fire_fail(error, FIRE_BAD_REQUEST, "certificate",
                         "a certificate and its key belong together: give both or neither");
    if (settings->certificate_file && !settings->ca_file)
        return fire_fail(error, FIRE_BAD_REQUEST, "ca",
                         "a certificate is for TLS: also give the CA file that signs the daemon's");
    status = read_file(settings->ca_file, "ca", &channel->ca, error);
    if (status == FIRE_OK)
        status = read_file(settings->certificate_file, "cert", &channel->certificate, error);
    if (status == FIRE_OK)
        status = read_file(settings->key_file, "key", &channel->key, error);
    if (status == FIRE_OK)
        status = copy_text(settings->server_name, &channel->server_name, error);
    return status;
}

enum fire_status remote_channel_open(const struct fire_remote_settings *settings,
                                     struct remote_channel **out, struct fire_error *error)
{
    const struct fire_remote_settings defaults = { 0 };
    struct remote_channel *channel = calloc(1, sizeof(*channel));
    enum fire_status status;

    *out = NULL;
    if (!channel)
        return fire_fail_memory(error, sizeof(*channel));
    if (!settings)
        settings = &defaults;
    status = take_names(channel, settings, error);
    if (status == FIRE_OK)
        status = take_files(channel, settings, error);
    if (status != FIRE_OK) {
        remote_channel_close(channel);
        return status;
    }
    *out = channel;
    return FIRE_OK;
}

/* Secrets do not stay in freed memory. */
static void free_secret(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

void remote_channel_close(struct remote_channel *channel)
{
    if (!channel)
        return;
    for (size_t i = 0; i < channel->metadata_count; i++) {
        grpc_slice_unref(channel->metadata[i].key);
        grpc_slice_unref(channel->metadata[i].value);
    }
    if (channel->core)
        grpc_channel_destroy(channel->core);
    if (channel->initialised)
        grpc_shutdown();
    free(channel->address);
    free(channel->tenant);
    free_secret(channel->authorization);
    free(channel->ca);
    free(channel->certificate);
    free_secret(channel->key);
    free(channel->server_name);
    free(channel);
}

const char *remote_channel_address(const struct remote_channel *channel)
{
    return channel->address;
}

static grpc_channel_credentials *make_credentials(const struct remote_channel *channel)
{
    grpc_ssl_pem_key_cert_pair pair = { .private_key = channel->key,
                                        .cert_chain = channel->certificate };

    if (!channel->ca)
        return grpc_insecure_credentials_create();
    return grpc_ssl_credentials_create(channel->ca, channel->key ? &pair : NULL, NULL, NULL);
}

static grpc_arg integer_arg(const char *key, int value)
{
    return (grpc_arg){ .type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value };
}

grpc_channel *remote_channel_core(struct remote_channel *channel)
{
    grpc_arg items[] = {
        integer_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, REMOTE_MESSAGE_BYTES_MAX),
        integer_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        integer_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, BACKOFF_MS_FIRST),
        integer_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, CONNECT_MS_MAX),
        integer_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, BACKOFF_MS_MAX),
        /* Retries are ours: core's would buffer whole streams. */
        integer_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        /* Connections are not shared with other clients of the process. */
        integer_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        /* Weights go to the address that was named, whatever http_proxy says. */
        integer_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        { .type = GRPC_ARG_STRING,
          .key = (char *)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
          .value.string = channel->server_name },
    };
    grpc_channel_args args = { .num_args = sizeof(items) / sizeof(items[0]), .args = items };
    grpc_channel_credentials *credentials;

    if (channel->core)
        return channel->core;
    if (!channel->ca || !channel->server_name)
        args.num_args--; /* no other name than the host's */
    if (!channel->initialised)
        grpc_init();
    channel->initialised = true;
    credentials = make_credentials(channel);
    if (!credentials)
        return NULL;
    channel->core = grpc_channel_create(channel->address, credentials, &args);
    grpc_channel_credentials_release(credentials);
    return channel->core;
}

static void add_metadata(struct remote_channel *channel, const char *key, const char *value)
{
    grpc_metadata *metadata = &channel->metadata[channel->metadata_count++];

    *metadata = (grpc_metadata){ .key = grpc_slice_from_copied_string(key),
                                 .value = grpc_slice_from_copied_string(value) };
}

grpc_metadata *remote_channel_metadata(struct remote_channel *channel, size_t *count)
{
    if (channel->metadata_count == 0 && channel->tenant)
        add_metadata(channel, "x-fired-tenant", channel->tenant);
    if (channel->metadata_count == (channel->tenant ? 1u : 0u) && channel->authorization)
        add_metadata(channel, "authorization", channel->authorization);
    *count = channel->metadata_count;
    return channel->metadata;
}
