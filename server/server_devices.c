#include "server_devices.h"

#include <stdio.h>
#include <string.h>

#include "log.h"
#include "monitor.h"
#include "plugin.h"

#define ATTRIBUTES 5u

/* A device came or went: an event of the daemon, which belongs to no run. */
struct device_news {
    uint32_t index; /* its number, of a refused one what its backend counts */
    const char *backend;
    const char *name;
    const char *path;
    const char *state; /* in_service, standby, refused, lost */
    const char *reason;
};

static void store_news(struct server *server, const struct device_news *news)
{
    char number[16];
    char text[FIRE_ERROR_MESSAGE_BYTES + 256];
    const char *const pairs[ATTRIBUTES][2] = { { "device", number },
                                               { "state", news->state },
                                               { "backend", news->backend },
                                               { "name", news->name },
                                               { "path", news->path } };
    Fire__V1__Event event = FIRE__V1__EVENT__INIT;
    Fire__V1__Event__AttributesEntry attributes[ATTRIBUTES];
    Fire__V1__Event__AttributesEntry *list[ATTRIBUTES];

    snprintf(number, sizeof(number), "%u", news->index);
    snprintf(text, sizeof(text), "%s device %u%s%s%s: %s%s%.400s", news->backend, news->index,
             news->name[0] ? " (" : "", news->name, news->name[0] ? ")" : "", news->state,
             news->reason[0] ? ", " : "", news->reason);
    for (size_t i = 0; i < ATTRIBUTES; i++) {
        attributes[i] = (Fire__V1__Event__AttributesEntry)FIRE__V1__EVENT__ATTRIBUTES_ENTRY__INIT;
        attributes[i].key = (char *)pairs[i][0];
        attributes[i].value = (char *)pairs[i][1];
        list[i] = &attributes[i];
    }
    event.kind = FIRE__V1__EVENT_KIND__EVENT_KIND_DEVICE;
    event.text = text;
    event.attributes = list;
    event.n_attributes = ATTRIBUTES;
    monitor_add_event(server->monitor, "", &event);
}

static void store_device(struct server *server, const struct device *device, const char *state,
                         const char *reason)
{
    struct fire_caps caps = { 0 };

    device_caps(device, &caps);
    store_news(server, &(struct device_news){ .index = device_index(device),
                                              .backend = device_backend_name(device),
                                              .name = caps.name,
                                              .path = caps.path,
                                              .state = state,
                                              .reason = reason });
}

void server_note_lost(struct server *server, const struct device *device)
{
    const uint32_t bit = 1u << device_index(device);

    if (server->lost_told & bit)
        return;
    server->lost_told |= bit;
    store_device(server, device, "lost", device_last_error(device));
}

static void tell_device(struct server *server, struct device *device)
{
    struct fire_caps caps = { 0 };

    device_caps(device, &caps);
    log_info("device", LOG_U64("index", device_index(device)),
             LOG_TEXT("backend", device_backend_name(device)), LOG_TEXT("name", caps.name),
             LOG_TEXT("path", caps.path), LOG_TEXT("reason", caps.reason),
             LOG_U64("threads", caps.threads), LOG_F64("gflops_per_thread", caps.flops_per_s / 1e9),
             LOG_BOOL("standby", device_standby(device)));
    if (device_index(device) == 0)
        metrics_set(server->metrics, METRIC_BUILD, FIRED_VERSION, caps.path, 1.0);
}

static enum fire_status add_device(struct server *server, struct device_settings *settings,
                                   device_done done, struct fire_error *error)
{
    struct device *device;
    enum fire_status status;

    settings->index = server->device_count;
    settings->slots_max = server->config.batch_matrices_max;
    status = device_open(&server->loop, settings, done, server, &device, error);
    if (status != FIRE_OK)
        return status;
    server->devices[server->device_count++] = device;
    scheduler_add_device(server->scheduler, device);
    tell_device(server, device);
    store_device(server, device, device_standby(device) ? "standby" : "in_service", "");
    return FIRE_OK;
}

static void store_refusal(struct server *server, uint32_t ordinal, const struct fire_error *error)
{
    store_news(server, &(struct device_news){ .index = ordinal,
                                              .backend = "cuda",
                                              .name = "",
                                              .path = "",
                                              .state = "refused",
                                              .reason = error->message });
}

/* Why there is no GPU, in one line; or that it is an error. */
static enum fire_status do_without(const struct server *server, enum fire_status status,
                                   struct fire_error *error)
{
    if (strcmp(server->config.cuda, "require") == 0)
        return status;
    if (status == FIRE_NOT_FOUND && !server->config.cuda_plugin[0])
        log_debug("no_gpu", LOG_TEXT("reason", error->message));
    else
        log_info("no_gpu", LOG_TEXT("reason", error->message));
    return FIRE_OK;
}

static enum fire_status open_gpus(struct server *server, device_done done, struct fire_error *error)
{
    const struct config *config = &server->config;
    struct fire_caps caps = { 0 };
    struct device_settings settings = {
        .backend_settings = { .threads = config->threads,
                              .path = config->path,
                              .nice = config->nice,
                              .slots = config->cuda_slots,
                              .slot_bytes = config->cuda_slot_bytes,
                              .precision = config->cuda_precision },
    };
    enum fire_status status;

    if (strcmp(config->cuda, "off") == 0)
        return FIRE_OK;
    status = plugin_load(config->cuda_plugin, &settings.backend, &caps, error);
    if (status != FIRE_OK) {
        /* A machine without a GPU that nobody asked for is no news. */
        if (strcmp(config->cuda, "require") == 0 || config->cuda_plugin[0])
            store_refusal(server, 0, error);
        return do_without(server, status, error);
    }
    for (uint32_t i = 0; i < caps.threads && server->device_count + 1 < SERVER_DEVICES_MAX; i++) {
        settings.backend_settings.ordinal = i;
        status = add_device(server, &settings, done, error);
        if (status != FIRE_OK) {
            log_warn("device_refused", LOG_TEXT("backend", settings.backend->name),
                     LOG_U64("ordinal", i), LOG_TEXT("reason", error->message));
            store_refusal(server, i, error);
            status = do_without(server, status, error);
        }
        if (status != FIRE_OK)
            return status;
    }
    return FIRE_OK;
}

enum fire_status server_open_devices(struct server *server, device_done done,
                                     struct fire_error *error)
{
    struct device_settings cpu = {
        .backend = fire_cpu_backend(),
        .backend_settings = { .threads = server->config.threads,
                              .path = server->config.path,
                              .nice = server->config.nice },
    };
    enum fire_status status = open_gpus(server, done, error);

    if (status != FIRE_OK)
        return status;
    cpu.standby = server->device_count > 0;
    return add_device(server, &cpu, done, error);
}

/* The last one first; from the callback of each, the next. */
static void close_next(void *data)
{
    struct server *server = data;

    if (server->device_count > 0) {
        device_close(server->devices[--server->device_count], close_next, server);
        return;
    }
    server->devices_closed(server->devices_closed_data);
}

void server_close_devices(struct server *server, void (*closed)(void *data), void *data)
{
    server->devices_closed = closed;
    server->devices_closed_data = data;
    close_next(server);
}

bool server_has_devices(const struct server *server)
{
    const bool required = strcmp(server->config.cuda, "require") == 0;

    for (uint32_t i = 0; i < server->device_count; i++) {
        const struct device *device = server->devices[i];

        if (device_in_service(device) && !(required && device_standby(device)))
            return true;
    }
    return false;
}
