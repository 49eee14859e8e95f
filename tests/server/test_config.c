/* Settings: where they come from, what is refused and in which words, and that what is printed
 * reads back. Run with --example, it prints deploy/fired.yaml. */
#include "config.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_file.h"
#include "config_options.h"

#define ARGUMENTS_MAX 16
#define PATH_BYTES    256
#define FLAGS_BYTES   4096
#define TEXT_BYTES    65536

static char folder[PATH_BYTES];

/* Each test has an environment without settings and a folder of its own. */
static void setup(void)
{
    clearenv();
    snprintf(folder, sizeof(folder), "test_config_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(setenv("PATH", "/usr/bin:/bin", 1), 0);
    ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", "/run/user/1", 1), 0);
    ck_assert_int_eq(setenv("XDG_STATE_HOME", "/var/state", 1), 0);
}

static void teardown(void)
{
    char command[PATH_BYTES + 16];

    snprintf(command, sizeof(command), "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

static const char *path_of(const char *name)
{
    static char path[2 * PATH_BYTES];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static const char *write_file(const char *name, const char *text)
{
    FILE *file = fopen(path_of(name), "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    return path_of(name);
}

/* Loads with flags that blanks part. */
static enum fire_status load(struct config *config, const char *flags, struct fire_error *error)
{
    char text[FLAGS_BYTES], *rest = text, *word;
    char *arguments[ARGUMENTS_MAX + 1];
    int count = 0;

    snprintf(text, sizeof(text), "fired %s", flags);
    while ((word = strsep(&rest, " ")) != NULL && count < ARGUMENTS_MAX)
        if (*word)
            arguments[count++] = word;
    arguments[count] = NULL;
    return config_load(config, count, arguments, error);
}

static void load_ok(struct config *config, const char *flags)
{
    struct fire_error error = { 0 };

    ck_assert_msg(load(config, flags, &error) == FIRE_OK, "%s: %s", flags, error.message);
}

static void expect_refusal(const char *flags, const char *words)
{
    struct fire_error error = { 0 };
    struct config config;
    enum fire_status status = load(&config, flags, &error);

    if (status == FIRE_OK)
        status = config_check(&config, &error);
    ck_assert_msg(status != FIRE_OK, "taken: %s", flags);
    ck_assert_msg(strstr(error.message, words) != NULL, "\"%s\" is not in: %s", words,
                  error.message);
    ck_assert_int_eq(error.status, status);
    config_release(&config);
}

START_TEST(defaults_are_the_promised_ones)
{
    struct config config;

    load_ok(&config, "");
    ck_assert_int_eq(config.action, CONFIG_SERVE);
    ck_assert_uint_eq(config.listen_count, 2);
    ck_assert_str_eq(config.listen[0], "127.0.0.1:8470");
    ck_assert_str_eq(config.listen[1], "unix:/run/user/1/fired/fired.sock");
    ck_assert_str_eq(config.http, "127.0.0.1:8471");
    ck_assert_str_eq(config.runtime_dir, "/run/user/1/fired");
    ck_assert_str_eq(config.state_dir, "/var/state/fired");
    ck_assert(!config.insecure_anywhere);
    ck_assert_uint_eq(config.nice, 5);
    ck_assert_uint_eq(config.slab_percent, 50);
    ck_assert_uint_eq(config.tensor_bytes_max, 4ull << 30);
    ck_assert_uint_eq(config.deadline_ms_default, 30000);
    ck_assert_uint_eq(config.stream_deadline_ms_default, 3600000);
    ck_assert_uint_eq(config.idle_ms_max, 30000);
    ck_assert_uint_eq(config.drain_ms_max, 30000);
    ck_assert_uint_eq(config.delay_us, 0);
    ck_assert_uint_eq(config.batch_target_us, 5000);
    ck_assert_uint_eq(config.batch_matrices_max, 4096);
    ck_assert_uint_eq(config.jobs_max, 65536);
    ck_assert_uint_eq(config.bulk_age_ms, 1000);
    ck_assert(config.batching);
    ck_assert_uint_eq(config.calls_max, 4096);
    ck_assert(config.tenant.weight == 1.0 && config.tenant.device_share_max == 1.0);
    ck_assert_uint_eq(config.tenant.streams_max, 64);
    ck_assert_uint_eq(config.tenant.calls_max, 1024);
    ck_assert_int_eq(config.log_level, LOG_INFO);
    ck_assert_int_eq(config.log_format, LOG_LOGFMT);
    ck_assert_str_eq(config.path, "auto");
    ck_assert_str_eq(config.credentials, "");
    config_release(&config);
}
END_TEST

START_TEST(the_budget_follows_the_machine)
{
    const uint64_t machine = config_machine_bytes();
    struct config config;

    ck_assert_uint_gt(machine, 64u << 20);
    load_ok(&config, "");
    ck_assert_uint_le(config.memory_budget_bytes, machine / 4);
    ck_assert_uint_gt(config.memory_budget_bytes, machine / 4 - (1u << 20));
    ck_assert_uint_eq(config.tenant.bytes_in_flight_max, config.memory_budget_bytes / 2);
    config_release(&config);

    /* A small budget lowers the defaults that would not fit, and nothing that was asked for. */
    load_ok(&config, "--memory-budget-bytes 110MiB");
    ck_assert_uint_eq(config.memory_budget_bytes, 110u << 20);
    ck_assert_uint_le(config.stream_window_bytes, 20u << 20);
    ck_assert_uint_eq(config.message_bytes_max, 16u << 20);
    ck_assert_int_eq(config_check(&config, NULL), FIRE_OK);
    config_release(&config);
    load_ok(&config, "--memory-budget-bytes 100MiB --stream-window-bytes 64MiB");
    ck_assert_uint_eq(config.stream_window_bytes, 64u << 20);
    config_release(&config);
}
END_TEST

START_TEST(folders_come_from_systemd_then_the_user)
{
    struct config config;
    char want[64];

    setenv("RUNTIME_DIRECTORY", "/run/fired:/run/more", 1);
    setenv("STATE_DIRECTORY", "/var/lib/fired", 1);
    load_ok(&config, "");
    ck_assert_str_eq(config.runtime_dir, "/run/fired");
    ck_assert_str_eq(config.listen[1], "unix:/run/fired/fired.sock");
    ck_assert_str_eq(config.state_dir, "/var/lib/fired");
    config_release(&config);

    clearenv();
    setenv("HOME", "/nowhere", 1);
    setenv("XDG_RUNTIME_DIR", "relative", 1); /* is to be ignored, the standard says */
    load_ok(&config, "");
    snprintf(want, sizeof(want), "%s/fired-%u", P_tmpdir, (unsigned)geteuid());
    ck_assert_str_eq(config.runtime_dir, want);
    ck_assert_str_eq(config.state_dir, "/nowhere/.local/state/fired");
    config_release(&config);
}
END_TEST

static const char *origin_of(const struct config *config, const char *name)
{
    static char text[PATH_BYTES];

    config_origin(config, config_option_find(name), text, sizeof(text));
    return text;
}

/* The same setting from each place: the later one wins and is named. */
START_TEST(flag_beats_variable_beats_file)
{
    struct config config;
    char flags[FLAGS_BYTES];
    char want[FLAGS_BYTES];

    write_file("a.yaml", "# one\nnice: 1\nslab_percent: 51\n\nthreads: 3\nlisten:\n  - a:1\n");
    setenv("FIRED_NICE", "2", 1);
    setenv("FIRED_SLAB_PERCENT", "52", 1);
    setenv("FIRED_LISTEN", "b:1, b:2", 1);
    snprintf(flags, sizeof(flags), "--config %s --nice=3", path_of("a.yaml"));
    load_ok(&config, flags);
    ck_assert_uint_eq(config.nice, 3);
    ck_assert_uint_eq(config.slab_percent, 52);
    ck_assert_uint_eq(config.threads, 3);
    ck_assert_uint_eq(config.listen_count, 2);
    ck_assert_str_eq(config.listen[1], "b:2");
    ck_assert_str_eq(origin_of(&config, "nice"), "flag --nice");
    ck_assert_str_eq(origin_of(&config, "slab_percent"), "environment FIRED_SLAB_PERCENT");
    snprintf(want, sizeof(want), "file %s:5", path_of("a.yaml"));
    ck_assert_str_eq(origin_of(&config, "threads"), want);
    ck_assert_str_eq(origin_of(&config, "http"), "default");
    config_release(&config);

    strcat(flags, " --listen c:1 --listen unix:/x,y");
    unsetenv("FIRED_LISTEN");
    load_ok(&config, flags);
    ck_assert_uint_eq(config.listen_count, 2);
    ck_assert_str_eq(config.listen[0], "c:1");
    ck_assert_str_eq(config.listen[1], "unix:/x,y");
    config_release(&config);
}
END_TEST

START_TEST(reload_reads_the_same_places_again)
{
    struct fire_error error = { 0 };
    struct config config, fresh;
    char flags[FLAGS_BYTES];

    write_file("a.yaml", "nice: 1\nslab_percent: 51\n");
    snprintf(flags, sizeof(flags), "--config %s --threads 2", path_of("a.yaml"));
    load_ok(&config, flags);
    write_file("a.yaml", "nice: 7\n");
    ck_assert_int_eq(config_reload(&config, &fresh, &error), FIRE_OK);
    ck_assert_uint_eq(fresh.nice, 7);
    ck_assert_uint_eq(fresh.slab_percent, 50);
    ck_assert_uint_eq(fresh.threads, 2);
    ck_assert_uint_eq(config.nice, 1);
    config_release(&fresh);
    write_file("a.yaml", "nice: x\n");
    ck_assert_int_eq(config_reload(&config, &fresh, &error), FIRE_BAD_REQUEST);
    config_release(&fresh);
    config_release(&config);
}
END_TEST

static const struct {
    const char *flags;
    enum config_action action;
} actions[] = {
    { "", CONFIG_SERVE },
    { "--print-config", CONFIG_PRINT },
    { "--check-config", CONFIG_CHECK },
    { "--selftest", CONFIG_SELFTEST },
    { "--hash-token", CONFIG_HASH_TOKEN },
    { "--version", CONFIG_VERSION },
    { "--version --config /no/such/file", CONFIG_VERSION }, /* no file is needed for it */
};

START_TEST(flags_name_actions)
{
    struct config config;

    load_ok(&config, actions[_i].flags);
    ck_assert_int_eq(config.action, actions[_i].action);
    ck_assert_ptr_nonnull(config.http);
    config_release(&config);
}
END_TEST

/* Sizes and numbers: what is taken, and the edges. */
static const struct {
    const char *flags;
    uint64_t bytes; /* 0: refused */
} sizes[] = {
    { "65536", 65536 },
    { "65536B", 65536 },
    { "64KiB", 65536 },
    { "16MiB", 16u << 20 },
    { "1GiB", 1u << 30 },
    { "2GiB", 0 },
    { "65535", 0 },
    { "-1", 0 },
    { "+70000", 0 },
    { "16 MiB", 0 },
    { "16mib", 0 },
    { "16MB", 0 },
    { "1e6", 0 },
    { "0x100000", 0 },
    { "18446744073709551616", 0 },
    { "17179869184TiB", 0 }, /* 2^74: wraps to 0 if not looked at */
    { "", 0 },
};

START_TEST(sizes_have_units)
{
    const struct config_option *option = &config_options[config_option_find("message_bytes_max")];
    struct fire_error error = { 0 };
    struct config config = { 0 };
    const enum fire_status status =
        config_option_set(option, &config, sizes[_i].flags, "test", &error);

    ck_assert_msg((status == FIRE_OK) == (sizes[_i].bytes != 0), "%s: %s", sizes[_i].flags,
                  error.message);
    ck_assert_uint_eq(config.message_bytes_max, sizes[_i].bytes);
}
END_TEST

static const struct {
    const char *flags, *words;
} refused[] = {
    { "--lisen x:1", "did you mean --listen" },
    { "--zzzzzz", "unknown or ambiguous flag --zzzzzz" },
    { "--listen", "--listen needs a value" },
    { "--version=3", "--version takes no value" },
    { "stray", "takes flags only, got \"stray\"" },
    { "--slab-percent 96", "slab_percent must be 5 to 90; got \"96\" (flag --slab-percent)" },
    { "--slab-percent 4", "must be 5 to 90" },
    { "--nice 1.5", "nice must be" },
    { "--nice 4294967301", "nice must be" }, /* 5 in 32 bits */
    { "--threads=", "threads must be" },
    { "--tenant-weight 0", "tenant_weight must be 0.001 to 1000" },
    { "--tenant-weight nan", "tenant_weight must be" },
    { "--tenant-device-share-max 1.5", "tenant_device_share_max must be" },
    { "--batching maybe", "batching must be true or false" },
    { "--path avx3", "one of: auto portable avx2 avx512 amx" },
    { "--log-level loud", "one of: error warn info debug" },
    { "--insecure-anywhere yes", "I know that weights travel unprotected" },
    { "--config /no/such/file", "No such file" },
    { "--listen 0.0.0.0:1", "can be reached from elsewhere and there is no TLS" },
    { "--listen [::]:1", "can be reached from elsewhere" },
    { "--listen example.org:1", "can be reached from elsewhere" },
    { "--http 0.0.0.0:1", "http: 0.0.0.0:1 can be reached from elsewhere" },
    { "--listen ::1:1", "is no address" },
    { "--listen localhost", "is no address" },
    { "--listen localhost:65536", "is no address" },
    { "--listen :1", "is no address" },
    { "--listen unix:relative", "must begin with a slash" },
    { "--listen unix:/a --listen unix:/a", "given twice" },
    { "--listen a:1,", "empty address" },
    { "--tls-certificate x", "tls_key is missing" },
    { "--tls-client-ca x", "needs tls_certificate" },
    { "--tls-certificate /no/file --tls-key /no/file", "cannot read /no/file" },
    { "--memory-budget-bytes 31MiB", "at least 32 MiB" },
    { "--memory-budget-bytes 64MiB --message-bytes-max 64MiB", "messages may take" },
    { "--credentials /no/file", "/no/file" },
};

START_TEST(mistakes_are_named)
{
    expect_refusal(refused[_i].flags, refused[_i].words);
}
END_TEST

static const struct {
    const char *text, *words;
} files[] = {
    { "nice: 3\nslab_percen: 3\n", "a.yaml:2: unknown key slab_percen; did you mean slab_percent" },
    { "qqqqqqqqq: 3\n", "a.yaml:1: unknown key qqqqqqqqq" },
    { "\n\nslab_percent: 300\n", "a.yaml:3)" },
    { "nice: 3\nnice: 4\n", "already seen: nice" },
    { "listen: a:1\n", "listen must be a list" },
    { "listen: []\n", "listen" },
    { "nice: [3]\n", "nice must be one value" },
    { "- nice\n", "must be lines of the form key: value" },
    { "just words\n", "must be lines of the form" },
    { "nice: 'x\n", "not YAML" },
    { "nice: &a 3\nthreads: *a\n", "aliases" },
    { "nice: 3\n---\nnice: 4\n", "keep one document" },
    { "http: \"a\\nb\"\n", "without control characters" },
    { "insecure_anywhere: true\n", "must be empty, or the sentence" },
    { "tenants:\n  - { weight: 3 }\n", "name" },
    { "tenants:\n  - { name: a, wieght: 3 }\n", "a.yaml:2: unknown key wieght; did you mean" },
    { "tenants:\n  - { name: a, weight: -3 }\n", "tenant_weight must be" },
    { "tenants:\n  - { name: a b }\n", "a tenant's name must be" },
    { "tenants:\n  - { name: a }\n  - { name: a }\n", "listed twice" },
};

START_TEST(mistakes_in_files_have_lines)
{
    char flags[FLAGS_BYTES];

    snprintf(flags, sizeof(flags), "--config %s", write_file("a.yaml", files[_i].text));
    expect_refusal(flags, files[_i].words);
}
END_TEST

START_TEST(tenants_take_the_defaults_they_leave_out)
{
    struct config config;
    char flags[FLAGS_BYTES];

    snprintf(flags, sizeof(flags), "--tenant-weight 2 --memory-budget-bytes 1GiB --config %s",
             write_file("a.yaml", "tenant_streams_max: 9\ntenants:\n"
                                  "  - { name: a, weight: 0.5, bytes_max: 1MiB }\n"
                                  "  - { name: b, calls_max: 7, device_share_max: 0.25 }\n"));
    load_ok(&config, flags);
    ck_assert_uint_eq(config.tenant_count, 2);
    ck_assert_str_eq(config.tenants[0].name, "a");
    ck_assert(config.tenants[0].limits.weight == 0.5);
    ck_assert_uint_eq(config.tenants[0].limits.bytes_in_flight_max, 1u << 20);
    ck_assert_uint_eq(config.tenants[0].limits.streams_max, 9);
    ck_assert_uint_eq(config.tenants[0].limits.calls_max, 1024);
    ck_assert(config.tenants[1].limits.weight == 2.0); /* the flag's, though the file came first */
    ck_assert_uint_eq(config.tenants[1].limits.bytes_in_flight_max, 512u << 20);
    ck_assert_uint_eq(config.tenants[1].limits.calls_max, 7);
    ck_assert(config.tenants[1].limits.device_share_max == 0.25);
    config_release(&config);
}
END_TEST

START_TEST(an_empty_file_changes_nothing)
{
    static const char *const texts[] = { "", "\n", "# only words\n" };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char flags[FLAGS_BYTES];
        struct config config;

        snprintf(flags, sizeof(flags), "--config %s", write_file("a.yaml", texts[i]));
        load_ok(&config, flags);
        ck_assert_uint_eq(config.nice, 5);
        config_release(&config);
    }
}
END_TEST

/* Non-loopback is allowed with TLS, and with the sentence. */
START_TEST(elsewhere_needs_tls_or_the_sentence)
{
    struct fire_error error = { 0 };
    char flags[FLAGS_BYTES];
    struct config config;

    setenv("FIRED_INSECURE_ANYWHERE", CONFIG_INSECURE_SENTENCE, 1);
    load_ok(&config, "--listen 0.0.0.0:0 --http 0.0.0.0:0");
    ck_assert(config.insecure_anywhere);
    ck_assert_msg(config_check(&config, &error) == FIRE_OK, "%s", error.message);
    config_release(&config);

    unsetenv("FIRED_INSECURE_ANYWHERE");
    write_file("some.pem", "x");
    snprintf(flags, sizeof(flags), "--listen [::]:0 --tls-certificate %s --tls-key %s",
             path_of("some.pem"), path_of("some.pem"));
    load_ok(&config, flags);
    ck_assert_msg(config_check(&config, &error) == FIRE_OK, "%s", error.message);
    config_release(&config);
}
END_TEST

static const struct {
    const char *address;
    bool local;
} addresses[] = {
    { "unix:/run/x.sock", true },    { "127.0.0.1:1", true },
    { "127.8.9.10:1", true },        { "localhost:1", true },
    { "LocalHost:1", true },         { "[::1]:1", true },
    { "0.0.0.0:1", false },          { "[::]:1", false },
    { "10.0.0.1:1", false },         { "128.0.0.1:1", false },
    { "127.0.0.1.x:1", false },      { "localhost.x:1", false },
    { "[::ffff:1.2.3.4]:1", false }, { "", false },
};

START_TEST(loopback_is_known)
{
    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++)
        ck_assert_msg(config_address_is_local(addresses[i].address) == addresses[i].local, "%s",
                      addresses[i].address);
}
END_TEST

START_TEST(folders_are_made_for_this_user_alone)
{
    struct fire_error error = { 0 };
    char flags[FLAGS_BYTES], here[FLAGS_BYTES / 2];
    struct config config;
    struct stat state;

    ck_assert_ptr_nonnull(getcwd(here, sizeof(here)));
    snprintf(flags, sizeof(flags), "%s/%s", here, folder);
    setenv("FIRED_RUNTIME_DIR", strcat(flags, "/run/deep"), 1);
    setenv("FIRED_STATE_DIR", flags, 1);
    load_ok(&config, "");
    ck_assert_msg(config_make_dirs(&config, &error) == FIRE_OK, "%s", error.message);
    ck_assert_msg(config_make_dirs(&config, &error) == FIRE_OK, "%s", error.message);
    ck_assert_int_eq(stat(config.runtime_dir, &state), 0);
    ck_assert_int_eq((int)(state.st_mode & 0777), 0700);

    ck_assert_int_eq(chmod(config.runtime_dir, 0777), 0);
    ck_assert_int_eq(config_make_dirs(&config, &error), FIRE_DENIED);
    ck_assert_int_eq(rmdir(config.runtime_dir), 0);
    ck_assert_int_eq(symlink("..", config.runtime_dir), 0);
    ck_assert_int_eq(config_make_dirs(&config, &error), FIRE_DENIED);
    ck_assert_int_eq(unlink(config.runtime_dir), 0);
    ck_assert_int_eq(close(creat(config.runtime_dir, 0600)), 0);
    ck_assert_int_eq(config_make_dirs(&config, &error), FIRE_IO);
    config_release(&config);

    setenv("FIRED_RUNTIME_DIR", "relative", 1);
    load_ok(&config, "");
    ck_assert_int_eq(config_make_dirs(&config, &error), FIRE_IO); /* state_dir is a file now */
    config_release(&config);
}
END_TEST

/* What --print-config shows, caught in a file. */
static void print_to(const struct config *config, const char *path)
{
    const int saved = dup(STDOUT_FILENO);
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    fflush(stdout);
    ck_assert_int_ge(dup2(fileno(file), STDOUT_FILENO), 0);
    config_print(config);
    ck_assert_int_ge(dup2(saved, STDOUT_FILENO), 0);
    close(saved);
    fclose(file);
}

static char *text_of(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, TEXT_BYTES);
    size_t bytes;

    ck_assert_msg(file != NULL, "%s", path);
    ck_assert_ptr_nonnull(text);
    bytes = fread(text, 1, TEXT_BYTES - 1, file);
    ck_assert_uint_gt(bytes, 0);
    ck_assert_uint_lt(bytes, TEXT_BYTES - 1);
    fclose(file);
    return text;
}

/* Unusual values, printed, read back and printed again: only origins differ. */
START_TEST(what_is_printed_reads_back)
{
    struct config config, again;
    char flags[FLAGS_BYTES];
    char *first, *second, *first_rest, *second_rest, *line;

    snprintf(flags, sizeof(flags),
             "--config %s --memory-budget-bytes 999MiB --log-level debug --log-format json "
             "--batching off --listen unix:/a\"b\\c --listen [::1]:0",
             write_file("a.yaml", "http: \"#off: {\"\nstate_dir: \"/\xc3\xa9t\xc3\xa9\"\n"
                                  "tenant_weight: 0.1\ntenants: [{name: x, weight: 0.3}]\n"));
    load_ok(&config, flags);
    print_to(&config, path_of("printed.yaml"));
    snprintf(flags, sizeof(flags), "--config %s", path_of("printed.yaml"));
    load_ok(&again, flags);
    print_to(&again, path_of("again.yaml"));
    first_rest = first = text_of(path_of("printed.yaml"));
    second_rest = second = text_of(path_of("again.yaml"));
    ck_assert_ptr_nonnull(strstr(second, "\ntenant_weight: 0.1\n"));
    while ((line = strsep(&first_rest, "\n")) != NULL) {
        const char *other = strsep(&second_rest, "\n");

        ck_assert_ptr_nonnull(other);
        if (strncmp(line, "# from: ", 8) != 0)
            ck_assert_str_eq(line, other);
    }
    ck_assert_ptr_null(second_rest);
    free(first);
    free(second);
    config_release(&config);
    config_release(&again);
}
END_TEST

START_TEST(the_example_is_made_from_the_table)
{
    char *text = text_of(FIRE_EXAMPLE), *made = NULL;
    size_t bytes;
    FILE *file = open_memstream(&made, &bytes);

    ck_assert_ptr_nonnull(file);
    config_print_example(file);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_msg(strcmp(text, made) == 0,
                  "deploy/fired.yaml is old: write it again with test_config --example");
    free(made);
    free(text);
}
END_TEST

/* Taking every # away changes nothing: the example's values are the defaults. */
START_TEST(the_example_holds_the_defaults)
{
    char *text = text_of(FIRE_EXAMPLE), *bare = calloc(1, TEXT_BYTES);
    struct config standard, example;
    char flags[FLAGS_BYTES];
    char *rest = text, *line;
    size_t settings = 0;

    ck_assert_ptr_nonnull(bare);
    while ((line = strsep(&rest, "\n")) != NULL && strncmp(line, "#tenants", 8) != 0)
        if (line[0] == '#' && line[1] != ' ') {
            strcat(strcat(bare, line + 1), "\n");
            settings++;
        }
    ck_assert_uint_eq(settings, config_option_count - 3); /* listen and two folders are found */
    snprintf(flags, sizeof(flags), "--config %s", write_file("a.yaml", bare));
    load_ok(&example, flags);
    load_ok(&standard, "");
    for (size_t i = 0; i < config_option_count; i++) {
        char *values[2] = { NULL, NULL };

        for (int side = 0; side < 2; side++) {
            size_t bytes;
            FILE *file = open_memstream(&values[side], &bytes);

            config_option_write(&config_options[i], side ? &example : &standard, file);
            fclose(file);
        }
        ck_assert_str_eq(values[0], values[1]);
        free(values[0]);
        free(values[1]);
    }
    config_release(&standard);
    config_release(&example);
    free(bare);
    free(text);
}
END_TEST

START_TEST(only_a_regular_file_of_sane_size_is_read)
{
    char flags[FLAGS_BYTES];
    FILE *file;

    snprintf(flags, sizeof(flags), "--config %s", folder);
    expect_refusal(flags, "not a regular file");
    snprintf(flags, sizeof(flags), "--config %s", path_of("huge"));
    file = fopen(path_of("huge"), "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(ftruncate(fileno(file), (1 << 20) + 1), 0);
    fclose(file);
    expect_refusal(flags, "more than 1048576");
}
END_TEST

#define COUNT(table) ((int)(sizeof(table) / sizeof((table)[0])))

int main(int argc, char **argv)
{
    Suite *suite = suite_create("config");
    TCase *cases = tcase_create("settings");
    SRunner *runner;
    int failed;

    if (argc == 2 && strcmp(argv[1], "--example") == 0) {
        config_print_example(stdout);
        return EXIT_SUCCESS;
    }
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, defaults_are_the_promised_ones);
    tcase_add_test(cases, the_budget_follows_the_machine);
    tcase_add_test(cases, folders_come_from_systemd_then_the_user);
    tcase_add_test(cases, flag_beats_variable_beats_file);
    tcase_add_test(cases, reload_reads_the_same_places_again);
    tcase_add_loop_test(cases, flags_name_actions, 0, COUNT(actions));
    tcase_add_loop_test(cases, sizes_have_units, 0, COUNT(sizes));
    tcase_add_loop_test(cases, mistakes_are_named, 0, COUNT(refused));
    tcase_add_loop_test(cases, mistakes_in_files_have_lines, 0, COUNT(files));
    tcase_add_test(cases, tenants_take_the_defaults_they_leave_out);
    tcase_add_test(cases, an_empty_file_changes_nothing);
    tcase_add_test(cases, elsewhere_needs_tls_or_the_sentence);
    tcase_add_test(cases, loopback_is_known);
    tcase_add_test(cases, folders_are_made_for_this_user_alone);
    tcase_add_test(cases, what_is_printed_reads_back);
    tcase_add_test(cases, the_example_is_made_from_the_table);
    tcase_add_test(cases, the_example_holds_the_defaults);
    tcase_add_test(cases, only_a_regular_file_of_sane_size_is_read);
    suite_add_tcase(suite, cases);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
