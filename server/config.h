/* config: every setting of the daemon, from one table.
 *
 * A value comes from the default, then the file (YAML, --config), then FIRED_<NAME>, then the flag
 * --<name> (underscores as dashes); the last one wins and its origin is remembered for
 * --print-config. Range checks, help, --print-config and deploy/fired.yaml come from the table. */
#ifndef FIRED_CONFIG_H
#define FIRED_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "alerts.h"
#include "log.h"
#include "status.h"
#include "tenant.h"

#define CONFIG_LISTEN_MAX  16u
#define CONFIG_TENANTS_MAX 256u
#define CONFIG_TEXT_BYTES  4096u /* of one value, with its NUL */

#define CONFIG_INSECURE_SENTENCE "I know that weights travel unprotected"

/* What the flags ask for; main.c does it. --help prints and exits by itself. */
enum config_action {
    CONFIG_SERVE,      /* no flag */
    CONFIG_PRINT,      /* --print-config */
    CONFIG_CHECK,      /* --check-config */
    CONFIG_SELFTEST,   /* --selftest */
    CONFIG_HASH_TOKEN, /* --hash-token: settings are not read */
    CONFIG_VERSION,    /* --version: settings are not read */
};

/* Limits of one tenant, from the file's `tenants:` list. */
struct config_tenant {
    char name[TENANT_NAME_BYTES];
    struct tenant_limits limits;
};

struct config_source; /* where each value came from, and the file and flags to read again */

/* Texts are never NULL after config_load(), but may be empty. */
struct config {
    enum config_action action;

    /* Addresses: "unix:PATH", "127.0.0.1:8470", "[::1]:8470"; port 0 picks a free one. */
    char *listen[CONFIG_LISTEN_MAX];
    uint32_t listen_count;
    char *http;             /* "127.0.0.1:8471", or "off" */
    char *state_dir;        /* history, lock files of ports */
    char *runtime_dir;      /* the default unix socket, lock files of sockets */
    bool insecure_anywhere; /* listen beyond loopback without TLS; said in words:
                             * insecure_anywhere: "I know that weights travel unprotected" */

    uint32_t threads; /* CPU pool; 0: all cores */
    char *path;       /* auto, portable, avx2, avx512, amx */
    uint32_t nice;    /* how much less urgent compute threads are than the loop; default 5 */

    char *cuda;               /* auto, off, require */
    char *cuda_plugin;        /* path of fire_cuda.so; empty: the one beside the daemon */
    uint32_t cuda_slots;      /* batches on their way at once on a GPU; 0: 3 */
    uint64_t cuda_slot_bytes; /* of GPU memory for each; 0: a share of what is free */
    char *cuda_precision;     /* f32, 3xtf32, tf32-early */

    uint64_t memory_budget_bytes; /* all of it; config_load() makes 0 a quarter of the
                                   * machine's or cgroup's memory */
    uint32_t slab_percent;        /* of the budget for slots */
    uint32_t workspace_percent;   /* for the device's working memory; the rest is for messages */
    uint64_t message_bytes_max;   /* unary; default 16 MiB */
    uint64_t tensor_bytes_max;    /* one tensor of a stream */
    uint64_t stream_window_bytes; /* of one stream in flight; default 64 MiB */

    uint32_t deadline_ms_default;        /* unary without a deadline */
    uint32_t stream_deadline_ms_default; /* streams without one */
    uint32_t deadline_ms_max;            /* a caller's longer one is cut to it; 0: any */
    uint32_t idle_ms_max;                /* a caller that neither reads nor sends so long is cut */
    uint64_t upload_bytes_per_s_min;     /* an open upload slower than that is cut; 0: none is */
    uint32_t drain_ms_max;

    uint32_t delay_us;
    uint32_t batch_target_us;
    uint32_t batch_matrices_max;
    uint32_t jobs_max;
    uint32_t bulk_age_ms;
    bool batching;

    uint32_t calls_max;            /* at once, all tenants */
    struct tenant_limits tenant;   /* defaults: tenant_weight, tenant_bytes_max, …; bytes given as
                                    * 0 are half of the budget, also in `tenants` */
    struct config_tenant *tenants; /* from the file */
    uint32_t tenant_count;

    char *tls_certificate; /* PEM; empty: no TLS */
    char *tls_key;
    char *tls_client_ca; /* PEM; set: clients must have a certificate of it */
    char *credentials;   /* file of tokens, certificates and rules (auth.h); empty: none */

    char *history;                    /* sqlite, postgres or off */
    char *history_file;               /* SQLite; empty: history.sqlite in state_dir */
    char *history_url;                /* PostgreSQL */
    uint64_t history_queue_bytes;     /* of points that wait to be written */
    uint32_t history_retention_days;  /* 0: for ever */
    uint32_t history_downsample_days; /* 0: never */

    char *alert_webhook;       /* http:// or https://; empty: none */
    char *alert_secret_file;   /* signs what is sent there; empty: unsigned */
    struct alert_rule *alerts; /* from the file */
    uint32_t alert_count;

    enum log_level log_level;
    enum log_format log_format;

    struct config_source *source; /* config's own */
};

/* The parts of the memory budget. */
static inline uint64_t config_slab_bytes(const struct config *config)
{
    return config->memory_budget_bytes / 100 * config->slab_percent;
}
static inline uint64_t config_workspace_bytes(const struct config *config)
{
    return config->memory_budget_bytes / 100 * config->workspace_percent;
}
static inline uint64_t config_message_bytes(const struct config *config)
{
    return config->memory_budget_bytes - config_slab_bytes(config) - config_workspace_bytes(config);
}

/* Reads defaults, file (--config, FIRED_CONFIG, or under systemd fired.yaml in the folder of its
 * ConfigurationDirectory), environment and flags. `argv` as main() got it.
 * On a mistake `error` says which setting, from where, and what is allowed; `config` may then be
 * released, and nothing else. */
FIRE_NODISCARD enum fire_status config_load(struct config *config, int argc, char **argv,
                                            struct fire_error *error);
void config_release(struct config *config); /* a zeroed one is allowed */

/* The same again for SIGHUP: `fresh` is a new config from the same file, environment and flags. */
FIRE_NODISCARD enum fire_status config_reload(const struct config *config, struct config *fresh,
                                              struct fire_error *error);

/* Cross-checks: TLS files in pairs and readable, a non-loopback address without TLS, sockets' names
 * against what the system takes, budget against limits. Changes nothing. */
FIRE_NODISCARD enum fire_status config_check(const struct config *config, struct fire_error *error);

/* Makes state_dir and runtime_dir where they are missing, for this user alone (0700), and refuses a
 * runtime_dir that another user owns or may write to: who can, could replace the socket. Call once
 * before listening. */
FIRE_NODISCARD enum fire_status config_make_dirs(const struct config *config,
                                                 struct fire_error *error);

/* Whether only this machine can reach the address: a unix socket or a loopback host. */
bool config_address_is_local(const char *address);

/* Every setting on stdout: name, value, origin, meaning. As YAML that config_load() reads back. */
void config_print(const struct config *config);

#endif
