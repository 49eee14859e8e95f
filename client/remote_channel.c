/* remote_channel: address, credentials and settings of a channel. */
#include "remote_channel.h"

#include <errno.h>
#include <grpc/grpc_security.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

#define DEFAULT_ADDRESS      "127.0.0.1:8470"
#define DEFAULT_SOCKET       "/run/fired/fired.sock"
#define ADDRESS_BYTES        512
#define PEM_BYTES_MAX        (1L << 20)
#define TOKEN_BYTES_MAX      4096
#define RECONNECT_MS_INITIAL 100
#define RECONNECT_MS_MAX     2000

struct remote_channel {
    grpc_channel *core;
    char address[ADDRESS_BYTES];
    grpc_metadata metadata[2];
    size_t metadata_count;
};

static bool is_socket(const char *path)
{
    struct stat about;

    return stat(path, &about) == 0 && S_ISSOCK(about.st_mode);
}

/* The address of the settings, the environment or a daemon with default settings. */
static void choose_address(const char *given, char address[ADDRESS_BYTES])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char path[ADDRESS_BYTES - 8];

    if (!given || !given[0])
        given = getenv("FIRED_ADDR");
    if (given && given[0]) {
        snprintf(address, ADDRESS_BYTES, "%s", given);
        return;
    }
    snprintf(path, sizeof(path), "%s/fired/fired.sock", runtime && runtime[0] ? runtime : "");
    if (is_socket(path))
        snprintf(address, ADDRESS_BYTES, "unix:%s", path);
    else if (is_socket(DEFAULT_SOCKET))
        snprintf(address, ADDRESS_BYTES, "unix:%s", DEFAULT_SOCKET);
    else
        snprintf(address, ADDRESS_BYTES, "%s", DEFAULT_ADDRESS);
}

static enum fire_status check_address(const char *address, struct fire_error *error)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    unsigned long port;

    if (strncmp(address, "unix:", 5) == 0) {
        if (!address[5])
            return fire_fail(error, FIRE_BAD_REQUEST, "address",
                             "the address 'unix:' has no path; give unix:PATH");
        if (strlen(address + 5) >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
            return fire_fail(error, FIRE_BAD_REQUEST, "address",
                             "the socket's path is longer than %zu bytes, which no socket can "
                             "have; give a shorter one",
                             sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1);
        return FIRE_OK;
    }
    errno = 0;
    port = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (!colon || colon == address || errno || end == colon + 1 || *end || !port || port > 65535)
        return fire_fail(error, FIRE_BAD_REQUEST, "address",
                         "'%.200s' is no address; give unix:PATH or HOST:PORT, such as %s", address,
                         DEFAULT_ADDRESS);
    return FIRE_OK;
}

/* What is sent there does not leave this machine. */
static bool is_loopback(const char *address)
{
    return strncmp(address, "unix:", 5) == 0 || strncmp(address, "127.", 4) == 0 ||
           strncmp(address, "[::1]:", 6) == 0 || strncmp(address, "localhost:", 10) == 0;
}

/* A whole PEM file as text; the caller frees it. NULL: `error` says why. */
static char *read_pem(const char *path, const char *what, struct fire_error *error)
{
    FILE *file = fopen(path, "rb");
    char *text = malloc((size_t)PEM_BYTES_MAX + 1);
    size_t bytes = 0;

    if (!text)
        (void)fire_fail_memory(error, (unsigned long long)PEM_BYTES_MAX);
    else if (!file)
        (void)fire_fail(error, FIRE_IO, what, "the %s '%.200s' cannot be read: %s", what, path,
                        strerror(errno));
    else
        bytes = fread(text, 1, (size_t)PEM_BYTES_MAX, file);
    if (file)
        fclose(file);
    if (!bytes) {
        if (text && file)
            (void)fire_fail(error, FIRE_IO, what,
                            "the %s '%.200s' is empty or cannot be read; it "
                            "must be a PEM file",
                            what, path);
        free(text);
        return NULL;
    }
    text[bytes] = '\0';
    if (!strstr(text, "-----BEGIN ")) {
        (void)fire_fail(error, FIRE_BAD_REQUEST, what,
                        "the %s '%.200s' is no PEM file: it has no "
                        "line -----BEGIN",
                        what, path);
        free(text);
        return NULL;
    }
    return text;
}

/* Plain or TLS credentials; NULL: `error` says why. */
static grpc_channel_credentials *make_credentials(const struct fire_remote_settings *settings,
                                                  struct fire_error *error)
{
    grpc_channel_credentials *credentials = NULL;
    grpc_ssl_pem_key_cert_pair pair = { 0 };
    char *ca = NULL, *certificate = NULL, *key = NULL;

    if (!settings->certificate_file != !settings->key_file) {
        (void)fire_fail(error, FIRE_BAD_REQUEST, "certificate_file",
                        "a certificate and its key belong together; give both or neither");
        return NULL;
    }
    if (settings->certificate_file && !settings->ca_file) {
        (void)fire_fail(error, FIRE_BAD_REQUEST, "ca_file",
                        "a client certificate is for TLS, which needs to know who signs the "
                        "daemon's certificate; give the CA's file too");
        return NULL;
    }
    if (!settings->ca_file)
        return grpc_insecure_credentials_create();
    ca = read_pem(settings->ca_file, "CA file", error);
    if (ca && settings->certificate_file) {
        certificate = read_pem(settings->certificate_file, "certificate file", error);
        key = certificate ? read_pem(settings->key_file, "key file", error) : NULL;
        pair = (grpc_ssl_pem_key_cert_pair){ .private_key = key, .cert_chain = certificate };
    }
    if (ca && (key || !settings->certificate_file)) {
        credentials = grpc_ssl_credentials_create(ca, key ? &pair : NULL, NULL, NULL);
        if (!credentials)
            (void)fire_fail(error, FIRE_BAD_REQUEST, "ca_file",
                            "gRPC does not accept these TLS files; check them with openssl x509");
    }
    free(ca);
    free(certificate);
    free(key);
    return credentials;
}

static void add_metadata(struct remote_channel *remote, const char *key, const char *text)
{
    remote->metadata[remote->metadata_count++] =
        (grpc_metadata){ .key = grpc_slice_from_static_string(key),
                         .value = grpc_slice_from_copied_string(text) };
}

/* Token and tenant, which must be printable: they become header lines. */
static enum fire_status make_metadata(struct remote_channel *remote,
                                      const struct fire_remote_settings *settings,
                                      struct fire_error *error)
{
    const char *token = settings->token ? settings->token : getenv("FIRED_TOKEN");
    char line[TOKEN_BYTES_MAX + 8];

    for (int i = 0; i < 2; i++) {
        const char *text = i ? settings->tenant : token;

        for (const char *at = text; at && *at; at++) {
            if (*at <= ' ' || *at > '~')
                return fire_fail(error, FIRE_BAD_REQUEST, i ? "tenant" : "token",
                                 "the %s has a blank or a character that is not printable ASCII; "
                                 "check how it was read",
                                 i ? "tenant" : "token");
        }
    }
    if (token && token[0]) {
        if (strlen(token) > TOKEN_BYTES_MAX)
            return fire_fail(error, FIRE_BAD_REQUEST, "token", "the token is longer than %d bytes",
                             TOKEN_BYTES_MAX);
        if (!settings->ca_file && !is_loopback(remote->address))
            return fire_fail(error, FIRE_BAD_REQUEST, "token",
                             "the token would travel unprotected to %.200s; use TLS (give the CA's "
                             "file), or leave the token out",
                             remote->address);
        snprintf(line, sizeof(line), "Bearer %s", token);
        add_metadata(remote, "authorization", line);
    }
    if (settings->tenant && settings->tenant[0])
        add_metadata(remote, "x-fired-tenant", settings->tenant);
    return FIRE_OK;
}

static grpc_channel *make_channel(const char *address, const char *server_name,
                                  grpc_channel_credentials *credentials)
{
    grpc_arg items[] = {
        { GRPC_ARG_INTEGER, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, { .integer = INT_MAX } },
        { GRPC_ARG_INTEGER, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, { .integer = INT_MAX } },
        { GRPC_ARG_INTEGER,
          GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
          { .integer = RECONNECT_MS_INITIAL } },
        { GRPC_ARG_INTEGER, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, { .integer = RECONNECT_MS_MAX } },
        { GRPC_ARG_INTEGER, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, { .integer = RECONNECT_MS_MAX } },
        /* Weights go to the address that was named, whatever http_proxy says. */
        { GRPC_ARG_INTEGER, GRPC_ARG_ENABLE_HTTP_PROXY, { .integer = 0 } },
        /* What is tried again is the caller's to decide. */
        { GRPC_ARG_INTEGER, GRPC_ARG_ENABLE_RETRIES, { .integer = 0 } },
        { GRPC_ARG_STRING, GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, { .string = (char *)server_name } },
    };
    const grpc_channel_args args = { .num_args = sizeof(items) / sizeof(items[0]) - !server_name,
                                     .args = items };

    return grpc_channel_create(address, credentials, &args);
}

enum fire_status remote_channel_open(const struct fire_remote_settings *settings,
                                     struct remote_channel **remote, struct fire_error *error)
{
    static const struct fire_remote_settings defaults;
    grpc_channel_credentials *credentials = NULL;
    struct remote_channel *made = calloc(1, sizeof(*made));
    enum fire_status status;

    *remote = NULL;
    if (!settings)
        settings = &defaults;
    if (!made)
        return fire_fail_memory(error, sizeof(*made));
    grpc_init();
    choose_address(settings->address, made->address);
    status = check_address(made->address, error);
    if (status == FIRE_OK)
        status = make_metadata(made, settings, error);
    if (status == FIRE_OK) {
        credentials = make_credentials(settings, error);
        if (!credentials)
            status = error ? error->status : FIRE_BAD_REQUEST;
    }
    if (status == FIRE_OK) {
        made->core = make_channel(made->address, settings->server_name, credentials);
        if (!made->core)
            status = fire_fail(error, FIRE_BAD_REQUEST, "address",
                               "gRPC makes no channel to '%.200s'; give unix:PATH or HOST:PORT",
                               made->address);
    }
    if (credentials)
        grpc_channel_credentials_release(credentials);
    if (status == FIRE_OK)
        *remote = made;
    else
        remote_channel_close(made);
    return status;
}

void remote_channel_close(struct remote_channel *remote)
{
    if (!remote)
        return;
    if (remote->core)
        grpc_channel_destroy(remote->core);
    for (size_t i = 0; i < remote->metadata_count; i++)
        grpc_slice_unref(remote->metadata[i].value);
    free(remote);
    grpc_shutdown();
}

grpc_channel *remote_channel_core(const struct remote_channel *remote)
{
    return remote->core;
}

const char *remote_channel_address(const struct remote_channel *remote)
{
    return remote->address;
}

grpc_metadata *remote_channel_metadata(const struct remote_channel *remote, size_t *count)
{
    *count = remote->metadata_count;
    return (grpc_metadata *)remote->metadata;
}
