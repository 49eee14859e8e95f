/* server: opens the parts in order, runs the loop, and takes everything down again.
 *
 * SIGTERM and SIGINT drain: readiness drops, new calls are refused, running ones finish up to a
 * limit, then each part is closed in turn, the next one from the closed callback of the last, so
 * that no handle is freed while libuv still knows it. */
#include "server.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "alerts_run.h"
#include "clock.h"
#include "history.h"
#include "http.h"
#include "log.h"
#include "monitor.h"
#include "rpc_server.h"
#include "server_devices.h"
#include "server_life.h"

#define SIGNAL_COUNT  3u
#define READY_WAIT_MS 30000u /* longer than a silent store is waited for */

/* What only this file needs. */
struct life {
    struct server *server;
    uv_signal_t signals[SIGNAL_COUNT];
    uv_timer_t watchdog;
    uv_timer_t patience; /* with the history, before the daemon is ready */
    bool opened;         /* all doors */
    bool waited;         /* long enough for the history */
    bool announced;
    uint32_t handles; /* of the above, still open */
    uint32_t handles_opened;
    int exit_code;
};

uint64_t server_resident_bytes(void)
{
    unsigned long long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (!file)
        return 0;
    if (fscanf(file, "%llu %llu", &total, &resident) != 2)
        resident = 0;
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

void server_refresh_gauges(struct server *server)
{
    struct metrics *metrics = server->metrics;

    metrics_set(metrics, METRIC_SLAB_BYTES, NULL, NULL, (double)arena_used(server->arena));
    metrics_set(metrics, METRIC_MESSAGE_BYTES, NULL, NULL, (double)budget_used(&server->messages));
    metrics_set(metrics, METRIC_RESIDENT_BYTES, NULL, NULL, (double)server_resident_bytes());
    metrics_set(metrics, METRIC_JOBS_WAITING, NULL, NULL,
                (double)scheduler_waiting(server->scheduler));
    metrics_set(metrics, METRIC_JOBS_RUNNING, NULL, NULL,
                (double)scheduler_running(server->scheduler));
    metrics_set(metrics, METRIC_DRAINING, NULL, NULL, server->draining ? 1.0 : 0.0);
    for (uint32_t i = 0; i < scheduler_device_count(server->scheduler); i++) {
        struct device *device = scheduler_device(server->scheduler, i);
        struct fire_caps caps = { 0 };
        char index[16];

        device_caps(device, &caps);
        snprintf(index, sizeof(index), "%u", i);
        metrics_set(metrics, METRIC_DEVICE_UP, index, caps.path,
                    device_in_service(device) ? 1.0 : 0.0);
    }
}

static void tell_systemd(const char *state)
{
    /* Without a manager this does nothing; a manager that cannot be told is no reason to stop. */
    (void)sd_notify(0, state);
}

static enum fire_status apply_tenants(struct server *server, const struct config *config,
                                      struct fire_error *error)
{
    struct tenant *known;

    /* All names first: what can fail has failed before anything is changed. */
    for (uint32_t i = 0; i < config->tenant_count; i++) {
        const enum fire_status status =
            tenants_find(server->tenants, config->tenants[i].name, &known, error);

        if (status != FIRE_OK)
            return status;
    }
    tenants_set_defaults(server->tenants, &config->tenant);
    for (uint32_t i = 0; i < config->tenant_count; i++) {
        const struct config_tenant *tenant = &config->tenants[i];

        if (tenants_set_limits(server->tenants, tenant->name, &tenant->limits, error) != FIRE_OK)
            return error->status;
    }
    return FIRE_OK;
}

void server_reload(struct server *server)
{
    struct config fresh = { 0 };
    struct fire_error error = { 0 };
    struct auth *auth = NULL;
    enum fire_status status;

    tell_systemd("RELOADING=1");
    status = config_reload(&server->config, &fresh, &error);
    if (status == FIRE_OK)
        status = config_check(&fresh, &error);
    if (status == FIRE_OK)
        status = auth_open(fresh.credentials, &auth, &error);
    if (status == FIRE_OK)
        status = alerts_run_reload(server->alerts, &fresh, &error);
    if (status == FIRE_OK)
        status = apply_tenants(server, &fresh, &error);
    if (status == FIRE_OK) {
        auth_close(server->auth);
        server->auth = auth;
        auth = NULL;
        log_set_level(fresh.log_level);
        rpc_server_reload(server->rpc);
        log_info("reloaded", LOG_TEXT("applied", "credentials, tenant limits, alerts, log level"));
    } else {
        log_error("reload_failed", LOG_TEXT("field", error.field),
                  LOG_TEXT("message", error.message),
                  LOG_TEXT("effect", "the settings in use stay as they were"));
    }
    metrics_add(server->metrics, METRIC_RELOADS, status == FIRE_OK ? "ok" : "failed", NULL, 1);
    auth_close(auth);
    config_release(&fresh);
    tell_systemd("READY=1");
}

/* --- closing, one part after the other ------------------------------------------------------- */

static void on_life_handle_closed(uv_handle_t *handle)
{
    struct life *life = handle->data;

    life->handles--;
}

static void close_own_handles(struct life *life)
{
    for (uint32_t i = 0; i < SIGNAL_COUNT; i++)
        uv_close((uv_handle_t *)&life->signals[i], on_life_handle_closed);
    uv_close((uv_handle_t *)&life->watchdog, on_life_handle_closed);
    uv_close((uv_handle_t *)&life->patience, on_life_handle_closed);
}

static void on_scheduler_closed(void *data)
{
    struct life *life = data;

    life->server->scheduler = NULL;
    close_own_handles(life);
}

static void on_device_closed(void *data)
{
    struct life *life = data;

    if (life->server->scheduler)
        scheduler_close(life->server->scheduler, on_scheduler_closed, life);
    else
        on_scheduler_closed(life);
}

static void on_monitor_closed(void *data)
{
    struct life *life = data;

    life->server->monitor = NULL;
    server_close_devices(life->server, on_device_closed, life);
}

static void on_alerts_closed(void *data)
{
    struct life *life = data;

    monitor_close(life->server->monitor, on_monitor_closed, life);
}

static void on_rpc_closed(void *data)
{
    struct life *life = data;
    struct server *server = life->server;
    struct alerts_run *alerts = server->alerts;

    life->server->rpc = NULL;
    server->alerts = NULL; /* points stored from now on alert nobody */
    alerts_run_close(alerts, on_alerts_closed, life);
}

static void on_http_closed(void *data)
{
    struct life *life = data;

    life->server->http = NULL;
    if (life->server->rpc)
        rpc_server_close(life->server->rpc, on_rpc_closed, life);
    else
        on_rpc_closed(life);
}

static void close_parts(struct life *life)
{
    http_close(life->server->http, on_http_closed, life);
}

static void on_drained(void *data)
{
    struct life *life = data;

    log_info("drained", LOG_U64("calls", rpc_server_calls_total(life->server->rpc)));
    close_parts(life);
}

void server_drain(struct server *server, uint32_t limit_ms)
{
    struct life *life = server->loop.data;

    if (limit_ms == 0)
        limit_ms = server->config.drain_ms_max;
    if (!server->draining) {
        server->draining = true;
        server->ready = false;
        log_info("draining", LOG_U64("calls", rpc_server_calls(server->rpc)),
                 LOG_U64("limit_ms", limit_ms));
        tell_systemd("STOPPING=1");
        scheduler_drain(server->scheduler);
    }
    rpc_server_drain(server->rpc, limit_ms, on_drained, life);
}

/* --- opening --------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *handle, int number)
{
    struct life *life = handle->data;

    if (!life->server->rpc)
        return; /* nothing is left to drain or to reload: the last parts are being closed */
    if (number == SIGHUP)
        server_reload(life->server);
    else
        server_drain(life->server, 0);
}

static void on_watchdog(uv_timer_t *timer)
{
    (void)timer;
    tell_systemd("WATCHDOG=1");
}

static void open_own_handles(struct life *life)
{
    static const int numbers[SIGNAL_COUNT] = { SIGTERM, SIGINT, SIGHUP };
    uint64_t watchdog_us = 0;

    for (uint32_t i = 0; i < SIGNAL_COUNT; i++) {
        uv_signal_init(&life->server->loop, &life->signals[i]);
        life->signals[i].data = life;
        uv_signal_start(&life->signals[i], on_signal, numbers[i]);
        life->handles++;
    }
    uv_timer_init(&life->server->loop, &life->watchdog);
    life->watchdog.data = life;
    life->handles++;
    uv_timer_init(&life->server->loop, &life->patience);
    life->patience.data = life;
    life->handles++;
    /* The loop pets the dog: a loop that hangs is a daemon that hangs. */
    if (sd_watchdog_enabled(0, &watchdog_us) > 0 && watchdog_us >= 2000) {
        uv_timer_start(&life->watchdog, on_watchdog, 0, watchdog_us / 2000);
        uv_unref((uv_handle_t *)&life->watchdog);
    }
}

/* A device that is lost with nobody to replace it is a daemon that cannot serve: health says so.
 * Where the CPU takes over, the log and the metrics do. */
static void on_batch_done(struct device *device, struct batch *batch, void *data)
{
    struct server *server = data;
    const bool lost = batch->status == FIRE_DEVICE_LOST;

    scheduler_batch_done(device, batch, server->scheduler);
    if (lost)
        server_note_lost(server, device);
    if (lost && server_has_devices(server))
        log_error("degraded", LOG_TEXT("message", "a device is lost: what was with it and what "
                                                  "comes is computed by those that are left"));
    if (!lost || !server->ready || server_has_devices(server))
        return;
    server->ready = false;
    rpc_server_set_serving(server->rpc, false);
    log_error("not_serving", LOG_TEXT("message", "no device is left: restart fired when the "
                                                 "device works again"));
}

/* Ready is said once, when the doors are open and the history is, or is known to be broken: the
 * first call of whoever waited for it is answered. A store that cannot make up its mind is not
 * waited for longer than READY_WAIT_MS, since Reinit needs none. */
static void announce(struct server *server)
{
    struct life *life = server->loop.data;

    if (life->announced || !life->opened || server->draining ||
        !(monitor_settled(server->monitor) || life->waited))
        return;
    life->announced = true;
    uv_timer_stop(&life->patience);
    server->ready = server_has_devices(server);
    rpc_server_set_serving(server->rpc, server->ready);
    for (uint32_t i = 0; rpc_server_address(server->rpc, i); i++)
        log_info("listening", LOG_TEXT("address", rpc_server_address(server->rpc, i)));
    log_info("ready", LOG_TEXT("version", FIRED_VERSION),
             LOG_F64("seconds", (double)(clock_now_ns() - server->started_ns) / 1e9),
             LOG_U64("memory_budget", server->config.memory_budget_bytes));
    tell_systemd("READY=1");
}

static void on_patience_ends(uv_timer_t *timer)
{
    struct life *life = timer->data;

    life->waited = true;
    log_warn("history_slow", LOG_TEXT("message", "the history is still being opened; calls that "
                                                 "need it wait for it"));
    announce(life->server);
}

/* Everything is open; the history may take a little longer. */
static void open_is_done(struct life *life)
{
    struct server *server = life->server;

    metrics_set(server->metrics, METRIC_START_TIME, NULL, NULL, (double)time(NULL));
    metrics_set(server->metrics, METRIC_MEMORY_BUDGET, NULL, NULL,
                (double)server->config.memory_budget_bytes);
    life->opened = true;
    uv_update_time(&server->loop); /* opening took a while, and timers count from what it knows */
    uv_timer_start(&life->patience, on_patience_ends, READY_WAIT_MS, 0);
    announce(server);
}

static void on_stored(void *data, const char *tenant, const Fire__V1__ReportRequest *report)
{
    struct server *server = data;

    if (server->alerts)
        alerts_run_points(server->alerts, tenant, report->run, report->series, report->n_series);
}

static void on_firing(void *data, const struct history_alert *alert)
{
    struct server *server = data;

    if (server->alerts && alert->firing)
        alerts_run_restore(server->alerts, alert->rule, alert->tenant, alert->run, alert->layer);
    else if (server->alerts)
        alerts_run_expect(server->alerts, alert->rule, alert->tenant, alert->run, alert->layer);
}

static void store_alert(void *data, const char *tenant, const Fire__V1__Event *event)
{
    struct server *server = data;

    monitor_add_event(server->monitor, tenant, event);
}

static void on_history_changed(void *data, bool up)
{
    struct server *server = data;

    if (server->rpc)
        rpc_server_set_monitoring(server->rpc, up);
    announce(server);
}

static enum fire_status open_history(struct server *server, struct fire_error *error)
{
    const struct monitor_settings settings = { .config = &server->config,
                                               .metrics = server->metrics,
                                               .changed = on_history_changed,
                                               .firing = on_firing,
                                               .stored = on_stored,
                                               .data = server };

    return monitor_open(&server->loop, &settings, &server->monitor, error);
}

static enum fire_status open_core(struct server *server, struct fire_error *error)
{
    const struct config *config = &server->config;
    const struct scheduler_settings settings = {
        .delay_us = config->delay_us,
        .batch_target_us = config->batch_target_us,
        .slots_max = config->batch_matrices_max,
        .jobs_max = config->jobs_max,
        .bulk_age_ms = config->bulk_age_ms,
        .batching = config->batching,
    };
    enum fire_status status = metrics_open(&server->metrics);

    if (status != FIRE_OK)
        return fire_fail_memory(error, 0);
    status = tenants_open(&config->tenant, &server->tenants);
    if (status != FIRE_OK)
        return fire_fail_memory(error, 0);
    status = apply_tenants(server, config, error);
    if (status == FIRE_OK)
        status = auth_open(config->credentials, &server->auth, error);
    if (status != FIRE_OK)
        return status;
    budget_init(&server->messages, config_message_bytes(config));
    status = arena_open(NULL, config_slab_bytes(config), &server->arena, error);
    if (status == FIRE_OK)
        status = scheduler_open(&server->loop, &settings, server->tenants, server->metrics,
                                &server->scheduler, error);
    if (status == FIRE_OK)
        status = open_history(server, error);
    if (status == FIRE_OK)
        status = server_open_devices(server, on_batch_done, error);
    return status;
}

static enum fire_status open_doors(struct server *server, struct fire_error *error)
{
    const struct alerts_run_settings alerts = {
        .config = &server->config, .metrics = server->metrics, .store = store_alert, .data = server
    };
    enum fire_status status = alerts_run_open(&server->loop, &alerts, &server->alerts, error);

    if (status == FIRE_OK)
        status = rpc_server_open(server, &server->rpc, error);

    if (status == FIRE_OK && strcmp(server->config.http, "off") != 0)
        status = http_open(server, server->config.http, &server->http, error);
    return status;
}

/* What failed while starting is closed again: the doors that are open drain at once. */
static void abandon(struct life *life)
{
    life->exit_code = EXIT_FAILURE;
    if (life->server->rpc)
        rpc_server_drain(life->server->rpc, 1, on_drained, life);
    else
        close_parts(life);
}

/* Large messages are allocated and freed all the time: keep the memory instead of asking the
 * system for fresh, zeroed pages each time (RPC.md: this doubles the speed of large messages). */
static void set_up_malloc(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);
    (void)mallopt(M_TOP_PAD, 16 << 20);
}

static void release_core(struct server *server)
{
    arena_close(server->arena);
    auth_close(server->auth);
    tenants_close(server->tenants);
    metrics_close(server->metrics);
}

int server_run(struct server *server)
{
    struct life life = { .server = server };
    struct fire_error error = { 0 };
    enum fire_status status;

    set_up_malloc();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the limit fails, and the history says so */
    server->started_ns = clock_now_ns();
    if (uv_loop_init(&server->loop) != 0) {
        log_error("start_failed", LOG_TEXT("message", "libuv could not make its loop"));
        return EXIT_FAILURE;
    }
    server->loop.data = &life;
    open_own_handles(&life);
    status = open_core(server, &error);
    if (status == FIRE_OK)
        status = open_doors(server, &error);
    if (status == FIRE_OK) {
        open_is_done(&life);
    } else {
        log_error("start_failed", LOG_TEXT("field", error.field),
                  LOG_TEXT("message", error.message));
        abandon(&life);
    }
    uv_run(&server->loop, UV_RUN_DEFAULT);
    if (uv_loop_close(&server->loop) != 0)
        log_error("loop_not_empty", LOG_TEXT("message", "a handle was left open at the end"));
    release_core(server);
    log_info("stopped", LOG_I64("exit", life.exit_code));
    return life.exit_code;
}
