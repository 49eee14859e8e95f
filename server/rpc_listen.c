/* rpc_listen: addresses, their lock files, and TLS.
 *
 * Locks first, then sockets: a socket file found under its lock belongs to a daemon that died,
 * unless somebody answers on it. TLS material is handed to core by a callback that core asks at
 * each handshake (on a thread of core, hence the lock), so new files serve new connections. */
#include "rpc_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_security.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "log.h"

#define UNIX_PREFIX   "unix:"
#define PEM_BYTES_MAX (1u << 20)
#define SOCKET_MODE   0660
#define LOCK_MODE     0600
#define FOLDER_MODE   0755

struct tls {
    bool used;
    bool verify; /* callers must have a certificate */
    uv_mutex_t lock;
    char *authority; /* PEM, or NULL */
    char *key;
    char *certificate;
    uint64_t generation; /* of these files; from 1 */
};

/* What core has seen of it for one address. */
struct tls_view {
    struct tls *tls;
    uint64_t generation;
};

struct rpc_listen {
    const struct config *config;
    int locks[CONFIG_LISTEN_MAX]; /* -1: none */
    char *addresses[CONFIG_LISTEN_MAX + 1];
    struct tls tls;
    struct tls_view views[CONFIG_LISTEN_MAX];
};

const char *rpc_listen_address(const struct rpc_listen *listen, uint32_t index)
{
    return index < CONFIG_LISTEN_MAX ? listen->addresses[index] : NULL;
}

/* --- addresses --- */

/* The path of "unix:PATH" or "unix:///PATH", NULL for other addresses. */
static const char *unix_path(const char *address)
{
    if (strncmp(address, UNIX_PREFIX, strlen(UNIX_PREFIX)) != 0)
        return NULL;
    address += strlen(UNIX_PREFIX);
    return strncmp(address, "//", 2) == 0 ? address + 2 : address;
}

static bool host_is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;

    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6);
    return strcmp(host, "localhost") == 0;
}

enum fire_status rpc_endpoint_parse(const char *address, struct rpc_endpoint *endpoint,
                                    struct fire_error *error)
{
    const char *colon = strrchr(address, ':');
    const char *host = address;
    size_t host_bytes = colon ? (size_t)(colon - address) : 0;
    char *end = NULL;

    if (host_bytes > 1 && host[0] == '[' && host[host_bytes - 1] == ']') {
        host++;
        host_bytes -= 2;
    } else if (memchr(host, ':', host_bytes)) {
        host_bytes = 0; /* IPv6 without brackets: where does the port begin? */
    }
    const bool digits = colon && colon[1] >= '0' && colon[1] <= '9';
    const unsigned long port = digits ? strtoul(colon + 1, &end, 10) : 0;
    if (host_bytes == 0 || host_bytes >= sizeof(endpoint->host) || !digits || *end || port > 65535)
        return fire_fail(error, FIRE_BAD_REQUEST, "listen",
                         "cannot listen on \"%.200s\": an address is unix:PATH, HOST:PORT or "
                         "[V6]:PORT with a port of 0 to 65535",
                         address);
    memcpy(endpoint->host, host, host_bytes);
    endpoint->host[host_bytes] = '\0';
    endpoint->port = (uint16_t)port;
    endpoint->loopback = host_is_loopback(endpoint->host);
    return FIRE_OK;
}

/* --- locks --- */

/* Who wrote its process number into a lock file; 0: unknown. */
static long lock_holder(int file)
{
    char text[32] = "";

    return pread(file, text, sizeof(text) - 1, 0) > 0 ? strtol(text, NULL, 10) : 0;
}

static enum fire_status lock_take(const char *path, const char *address, int *lock,
                                  struct fire_error *error)
{
    char text[32];
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, LOCK_MODE);

    if (file < 0)
        return fire_fail(error, FIRE_IO, "listen",
                         "cannot open the lock file %.200s of %.120s: %s; make its folder writable "
                         "or choose another address",
                         path, address, strerror(errno));
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
        const long holder = lock_holder(file);

        close(file);
        if (holder > 0)
            return fire_fail(
                error, FIRE_BUSY, "listen",
                "%.120s is held by another fired, process %ld (lock file %.200s); stop "
                "it or choose another --listen",
                address, holder, path);
        return fire_fail(error, FIRE_BUSY, "listen",
                         "%.120s is held by another fired (lock file %.200s; fuser names the "
                         "process); stop it or choose another --listen",
                         address, path);
    }
    /* For people who look; the lock holds without it. */
    const int bytes = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    if (ftruncate(file, 0) != 0 || pwrite(file, text, (size_t)bytes, 0) != bytes)
        log_warn("lock_not_signed", LOG_TEXT("path", path), LOG_TEXT("error", strerror(errno)));
    *lock = file;
    return FIRE_OK;
}

/* Makes a folder if it is not there; its parent is. */
static enum fire_status folder_make(const char *path, struct fire_error *error)
{
    if (mkdir(path, FOLDER_MODE) == 0 || errno == EEXIST)
        return FIRE_OK;
    return fire_fail(error, FIRE_IO, NULL,
                     "cannot make the folder %.300s: %s; make it, writable "
                     "for this user, or choose another",
                     path, strerror(errno));
}

/* Removes the socket of a daemon that died. The lock is ours, so no fired has it; any other program
 * would answer. */
static enum fire_status socket_clear(const char *path, struct fire_error *error)
{
    struct stat info;
    struct sockaddr_un name = { .sun_family = AF_UNIX };

    if (lstat(path, &info) != 0)
        return FIRE_OK;
    if (!S_ISSOCK(info.st_mode))
        return fire_fail(error, FIRE_IO, "listen",
                         "%.300s exists and is no socket; remove it or choose another --listen",
                         path);
    strcpy(name.sun_path, path);
    const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0)
        return fire_fail(error, FIRE_IO, NULL, "cannot make a socket: %s", strerror(errno));
    const bool answered = connect(probe, (struct sockaddr *)&name, sizeof(name)) == 0 ||
                          errno == EAGAIN || errno == EINPROGRESS;
    close(probe);
    if (answered)
        return fire_fail(error, FIRE_BUSY, "listen",
                         "another program answers on %.300s; stop it or choose another --listen",
                         path);
    if (unlink(path) != 0)
        return fire_fail(error, FIRE_IO, "listen", "cannot remove the old socket %.300s: %s", path,
                         strerror(errno));
    log_info("stale_socket_removed", LOG_TEXT("path", path));
    return FIRE_OK;
}

static enum fire_status unix_prepare(const char *path, const char *address, int *lock,
                                     struct fire_error *error)
{
    struct sockaddr_un name;
    char text[sizeof(name.sun_path) + sizeof(".lock")];
    enum fire_status status;

    if (path[0] == '\0' || strlen(path) >= sizeof(name.sun_path))
        return fire_fail(error, FIRE_BAD_REQUEST, "listen",
                         "the path of a unix socket has 1 to %zu characters, \"%.200s\" has %zu",
                         sizeof(name.sun_path) - 1, path, strlen(path));
    strcpy(text, path);
    status = folder_make(dirname(text), error);
    if (status != FIRE_OK)
        return status;
    snprintf(text, sizeof(text), "%s.lock", path);
    status = lock_take(text, address, lock, error);
    return status == FIRE_OK ? socket_clear(path, error) : status;
}

static enum fire_status port_prepare(const struct config *config, const char *address, int *lock,
                                     struct fire_error *error)
{
    struct rpc_endpoint endpoint;
    char path[CONFIG_TEXT_BYTES];
    enum fire_status status = rpc_endpoint_parse(address, &endpoint, error);
    const bool tls = config->tls_certificate && config->tls_certificate[0];

    if (status != FIRE_OK)
        return status;
    if (!endpoint.loopback && !tls && !config->insecure_anywhere)
        return fire_fail(error, FIRE_DENIED, "listen",
                         "%.200s is reachable from other machines and there is no TLS: set "
                         "tls_certificate and tls_key, listen on loopback, or say "
                         "insecure_anywhere in words",
                         address);
    if (endpoint.port == 0 || !config->state_dir || !config->state_dir[0])
        return FIRE_OK;
    status = folder_make(config->state_dir, error);
    if (status != FIRE_OK)
        return status;
    const int bytes =
        snprintf(path, sizeof(path), "%s/port-%" PRIu16 ".lock", config->state_dir, endpoint.port);
    if (bytes < 0 || (size_t)bytes >= sizeof(path))
        return fire_fail(error, FIRE_BAD_REQUEST, "state_dir", "state_dir is longer than %zu bytes",
                         sizeof(path) - 32);
    return lock_take(path, address, lock, error);
}

/* --- TLS --- */

/* A whole PEM file as text. */
static enum fire_status pem_read(const char *path, const char *setting, char **text,
                                 struct fire_error *error)
{
    FILE *file = fopen(path, "re");
    char *buffer = file ? malloc(PEM_BYTES_MAX + 1) : NULL;
    size_t bytes = 0;

    if (!file)
        return fire_fail(error, FIRE_IO, setting, "cannot read %s %.300s: %s", setting, path,
                         strerror(errno));
    if (!buffer) {
        fclose(file);
        return fire_fail_memory(error, PEM_BYTES_MAX);
    }
    bytes = fread(buffer, 1, PEM_BYTES_MAX + 1, file);
    const bool failed = ferror(file) != 0;
    fclose(file);
    if (bytes <= PEM_BYTES_MAX)
        buffer[bytes] = '\0';
    if (failed || bytes > PEM_BYTES_MAX || !strstr(buffer, "-----BEGIN ")) {
        free(buffer);
        return fire_fail(error, FIRE_BAD_REQUEST, setting,
                         "%s %.300s is no PEM file of at most %u bytes", setting, path,
                         PEM_BYTES_MAX);
    }
    *text = buffer;
    return FIRE_OK;
}

static void secret_free(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
}

static enum fire_status tls_load(struct tls *tls, const struct config *config,
                                 struct fire_error *error)
{
    char *authority = NULL;
    char *key = NULL;
    char *certificate = NULL;
    enum fire_status status =
        pem_read(config->tls_certificate, "tls_certificate", &certificate, error);

    if (status == FIRE_OK)
        status = pem_read(config->tls_key ? config->tls_key : "", "tls_key", &key, error);
    if (status == FIRE_OK && tls->verify)
        status = pem_read(config->tls_client_ca, "tls_client_ca", &authority, error);
    if (status != FIRE_OK) {
        free(certificate);
        secret_free(key);
        return status;
    }

    uv_mutex_lock(&tls->lock);
    free(tls->authority);
    secret_free(tls->key);
    free(tls->certificate);
    tls->authority = authority;
    tls->key = key;
    tls->certificate = certificate;
    tls->generation++;
    uv_mutex_unlock(&tls->lock);
    return FIRE_OK;
}

/* Core asks at each handshake, on a thread of its own. */
static grpc_ssl_certificate_config_reload_status tls_fetch(
    void *data, grpc_ssl_server_certificate_config **config)
{
    struct tls_view *view = data;
    struct tls *tls = view->tls;
    grpc_ssl_certificate_config_reload_status status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;

    uv_mutex_lock(&tls->lock);
    if (view->generation != tls->generation) {
        const grpc_ssl_pem_key_cert_pair pair = { tls->key, tls->certificate };

        /* Core asserts that there are roots, also where no client is asked for a certificate; any
         * certificate will do there, since nothing is compared with it. */
        *config = grpc_ssl_server_certificate_config_create(
            tls->verify ? tls->authority : tls->certificate, &pair, 1);
        view->generation = tls->generation;
        status = *config ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW
                         : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    }
    uv_mutex_unlock(&tls->lock);
    return status;
}

static grpc_server_credentials *tls_credentials(struct tls *tls, struct tls_view *view)
{
    view->tls = tls;
    view->generation = 0;
    grpc_ssl_server_credentials_options *options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            tls->verify ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                        : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            tls_fetch, view);

    return options ? grpc_ssl_server_credentials_create_with_options(options) : NULL;
}

/* --- the whole --- */

enum fire_status rpc_listen_open(const struct config *config, struct rpc_listen **out,
                                 struct fire_error *error)
{
    struct rpc_listen *listen = calloc(1, sizeof(*listen));
    enum fire_status status = FIRE_OK;

    *out = NULL;
    if (!listen || uv_mutex_init(&listen->tls.lock) != 0) {
        free(listen);
        return fire_fail_memory(error, sizeof(*listen));
    }
    listen->config = config;
    listen->tls.used = config->tls_certificate && config->tls_certificate[0];
    listen->tls.verify = config->tls_client_ca && config->tls_client_ca[0];
    for (uint32_t i = 0; i < CONFIG_LISTEN_MAX; i++)
        listen->locks[i] = -1;

    if (config->listen_count == 0)
        status = fire_fail(error, FIRE_BAD_REQUEST, "listen",
                           "there is no address to listen on; give at least one --listen");
    if (status == FIRE_OK && listen->tls.used)
        status = tls_load(&listen->tls, config, error);
    for (uint32_t i = 0; i < config->listen_count && status == FIRE_OK; i++) {
        const char *path = unix_path(config->listen[i]);

        status = path ? unix_prepare(path, config->listen[i], &listen->locks[i], error)
                      : port_prepare(config, config->listen[i], &listen->locks[i], error);
    }
    if (status != FIRE_OK) {
        rpc_listen_close(listen);
        return status;
    }
    *out = listen;
    return FIRE_OK;
}

void rpc_listen_close(struct rpc_listen *listen)
{
    if (!listen)
        return;
    for (uint32_t i = 0; i < CONFIG_LISTEN_MAX; i++) {
        if (listen->locks[i] >= 0)
            close(listen->locks[i]);
        free(listen->addresses[i]);
    }
    free(listen->tls.authority);
    secret_free(listen->tls.key);
    free(listen->tls.certificate);
    uv_mutex_destroy(&listen->tls.lock);
    free(listen);
}

/* The address as bound, with the port that core has found. */
static char *address_text(const char *address, int port)
{
    const char *path = unix_path(address);
    char *text = NULL;
    int bytes;

    if (path) {
        bytes = asprintf(&text, UNIX_PREFIX "%s", path);
    } else {
        const char *colon = strrchr(address, ':');

        bytes = asprintf(&text, "%.*s:%d", (int)(colon - address), address, port);
    }
    return bytes < 0 ? NULL : text;
}

static enum fire_status address_bind(struct rpc_listen *listen, uint32_t index, grpc_server *core,
                                     struct fire_error *error)
{
    const char *address = listen->config->listen[index];
    const char *path = unix_path(address);
    /* A unix socket does not leave the machine; its mode says who may connect. */
    grpc_server_credentials *credentials =
        listen->tls.used && !path ? tls_credentials(&listen->tls, &listen->views[index])
                                  : grpc_insecure_server_credentials_create();
    const int port = credentials ? grpc_server_add_http2_port(core, address, credentials) : 0;

    grpc_server_credentials_release(credentials);
    if (port == 0 && path)
        return fire_fail(error, FIRE_IO, "listen",
                         "cannot listen on %.200s: is its folder writable for this user?", address);
    if (port == 0)
        return fire_fail(
            error, FIRE_IO, "listen",
            "cannot listen on %.200s: another program may hold the port (ss -ltnp names "
            "it), the host may not be of this machine%s",
            address,
            listen->tls.used ? ", or tls_certificate and tls_key do not belong together" : "");
    if (path && chmod(path, SOCKET_MODE) != 0)
        return fire_fail(error, FIRE_IO, "listen", "cannot set the mode of %.200s: %s", path,
                         strerror(errno));
    listen->addresses[index] = address_text(address, port);
    return listen->addresses[index] ? FIRE_OK : fire_fail_memory(error, strlen(address));
}

enum fire_status rpc_listen_bind(struct rpc_listen *listen, grpc_server *core,
                                 struct fire_error *error)
{
    for (uint32_t i = 0; i < listen->config->listen_count; i++) {
        const enum fire_status status = address_bind(listen, i, core, error);

        if (status != FIRE_OK)
            return status;
    }
    return FIRE_OK;
}

enum fire_status rpc_listen_reload(struct rpc_listen *listen, struct fire_error *error)
{
    return listen->tls.used ? tls_load(&listen->tls, listen->config, error) : FIRE_OK;
}
