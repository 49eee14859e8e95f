/* fired: the daemon. Settings first, then one of: show them, check them, test the device, serve. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "device.h"
#include "log.h"
#include "plugin.h"
#include "server.h"

#define TOKEN_BYTES_MAX 512u

static int fail(const struct fire_error *error)
{
    fprintf(stderr, "fired: %s\n", error->message);
    return error->status == FIRE_BAD_REQUEST || error->status == FIRE_NOT_FOUND ? 2 : 1;
}

/* Reads a token from stdin and prints what goes into the credentials file. */
static int hash_token(void)
{
    char token[TOKEN_BYTES_MAX + 2];
    struct fire_error error = { 0 };
    char text[256];
    size_t bytes;

    if (!fgets(token, sizeof(token), stdin)) {
        fprintf(stderr, "fired: give the token on stdin: openssl rand -hex 32 | tee token | fired "
                        "--hash-token\n");
        return 2;
    }
    bytes = strcspn(token, "\r\n");
    if (auth_hash_token(token, bytes, text, sizeof(text), &error) != FIRE_OK)
        return fail(&error);
    memset(token, 0, sizeof(token));
    puts(text);
    return 0;
}

static void on_selftest_batch(struct device *device, struct batch *batch, void *data)
{
    (void)device;
    (void)batch;
    (void)data;
}

/* Opening a device compares it with the float64 reference; that is the test. */
static int selftest_device(const struct device_settings *settings)
{
    struct fire_error error = { 0 };
    struct fire_caps caps = { 0 };
    struct device *device;
    uv_loop_t loop;

    if (uv_loop_init(&loop) != 0)
        return 1;
    if (device_open(&loop, settings, on_selftest_batch, NULL, &device, &error) != FIRE_OK) {
        uv_run(&loop, UV_RUN_DEFAULT);
        uv_loop_close(&loop);
        return fail(&error);
    }
    device_caps(device, &caps);
    printf("ok: %s, path %s (%s), %u threads, %.1f GFLOP/s a thread\n", caps.name, caps.path,
           caps.reason, caps.threads, caps.flops_per_s / 1e9);
    device_close(device, NULL, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    return 0;
}

/* The CPU, and the GPUs if there are any and they are wanted. */
static int selftest(const struct config *config)
{
    struct device_settings settings = {
        .backend = fire_cpu_backend(),
        .backend_settings = { .threads = config->threads,
                              .path = config->path,
                              .slots = config->cuda_slots,
                              .slot_bytes = config->cuda_slot_bytes,
                              .precision = config->cuda_precision },
        .slots_max = config->batch_matrices_max,
    };
    struct fire_error error = { 0 };
    struct fire_caps caps = { 0 };
    int code = selftest_device(&settings);

    if (strcmp(config->cuda, "off") == 0)
        return code;
    if (plugin_load(config->cuda_plugin, &settings.backend, &caps, &error) != FIRE_OK) {
        if (strcmp(config->cuda, "require") == 0)
            return fail(&error);
        printf("no GPU: %s\n", error.message);
        return code;
    }
    for (uint32_t i = 0; i < caps.threads; i++) {
        settings.backend_settings.ordinal = i;
        if (selftest_device(&settings) != 0)
            code = 1;
    }
    return code;
}

static int serve(struct server *server)
{
    struct fire_error error = { 0 };

    /* First: the check may already have something to log. */
    log_set_level(server->config.log_level);
    log_set_format(server->config.log_format);
    if (config_check(&server->config, &error) != FIRE_OK ||
        config_make_dirs(&server->config, &error) != FIRE_OK)
        return fail(&error);
    return server_run(server);
}

int main(int argc, char **argv)
{
    static struct server server;
    struct fire_error error = { 0 };
    int code = 1;

    if (config_load(&server.config, argc, argv, &error) != FIRE_OK) {
        code = fail(&error);
        config_release(&server.config);
        return code;
    }
    switch (server.config.action) {
    case CONFIG_SERVE: code = serve(&server); break;
    case CONFIG_PRINT:
        config_print(&server.config);
        code = 0;
        break;
    case CONFIG_CHECK:
        code = config_check(&server.config, &error) == FIRE_OK ? 0 : fail(&error);
        if (code == 0)
            puts("ok");
        break;
    case CONFIG_SELFTEST: code = selftest(&server.config); break;
    case CONFIG_HASH_TOKEN: code = hash_token(); break;
    case CONFIG_VERSION:
        puts("fired " FIRED_VERSION);
        code = 0;
        break;
    }
    config_release(&server.config);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
        fputs("fired: what was to be printed could not be written\n", stderr);
        code = 1;
    }
    return code;
}
