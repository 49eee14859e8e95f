/* Addresses and their locks: what may be listened on, and what a second daemon is told. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"
#include "rpc_core.h"
#include "rpc_fixture.h"
#include "rpc_listen.h"

static const struct {
    const char *address;
    const char *host; /* NULL: refused */
    uint16_t port;
    bool loopback;
} endpoints[] = {
    { "127.0.0.1:8470", "127.0.0.1", 8470, true },
    { "127.1.2.3:0", "127.1.2.3", 0, true },
    { "[::1]:65535", "::1", 65535, true },
    { "localhost:1", "localhost", 1, true },
    { "0.0.0.0:8470", "0.0.0.0", 8470, false },
    { "[::]:8470", "::", 8470, false },
    { "128.0.0.1:8470", "128.0.0.1", 8470, false },
    { "localhost.example:8470", "localhost.example", 8470, false },
    { "127.0.0.1.example:8470", "127.0.0.1.example", 8470, false },
    { "::1:8470", NULL, 0, false },
    { "127.0.0.1", NULL, 0, false },
    { "127.0.0.1:", NULL, 0, false },
    { "127.0.0.1:65536", NULL, 0, false },
    { "127.0.0.1:-1", NULL, 0, false },
    { "127.0.0.1:80x", NULL, 0, false },
    { ":8470", NULL, 0, false },
    { "[]:8470", NULL, 0, false },
    { "", NULL, 0, false },
};

START_TEST(an_address_is_host_and_port)
{
    struct rpc_endpoint endpoint;
    struct fire_error error;
    const enum fire_status status = rpc_endpoint_parse(endpoints[_i].address, &endpoint, &error);

    if (!endpoints[_i].host) {
        ck_assert_int_eq(status, FIRE_BAD_REQUEST);
        return;
    }
    ck_assert_int_eq(status, FIRE_OK);
    ck_assert_str_eq(endpoint.host, endpoints[_i].host);
    ck_assert_uint_eq(endpoint.port, endpoints[_i].port);
    ck_assert_int_eq(endpoint.loopback, endpoints[_i].loopback);
}
END_TEST

static char folder[64];

static void folder_make(void)
{
    snprintf(folder, sizeof(folder), "%.40s/fired-listen-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : P_tmpdir);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    log_set_level(LOG_ERROR);
}

static void folder_remove(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

static void config_of(struct config *config, const char *address)
{
    memset(config, 0, sizeof(*config));
    config->listen[0] = (char *)address;
    config->listen_count = 1;
    config->state_dir = folder;
}

static const struct {
    const char *address;
    bool insecure;
    enum fire_status status;
} anywhere[] = {
    { "0.0.0.0:0", false, FIRE_DENIED },      { "[::]:0", false, FIRE_DENIED },
    { "example.test:1", false, FIRE_DENIED }, { "0.0.0.0:0", true, FIRE_OK },
    { "127.0.0.1:0", false, FIRE_OK },
};

START_TEST(beyond_loopback_there_is_tls_or_a_word)
{
    struct config config;
    struct rpc_listen *listen;
    struct fire_error error;

    folder_make();
    config_of(&config, anywhere[_i].address);
    config.insecure_anywhere = anywhere[_i].insecure;
    ck_assert_int_eq(rpc_listen_open(&config, &listen, &error), anywhere[_i].status);
    ck_assert_int_eq(listen != NULL, anywhere[_i].status == FIRE_OK);
    rpc_listen_close(listen);
    folder_remove();
}
END_TEST

/* The second daemon gets neither the socket nor the port, and is told who has it. */
START_TEST(a_second_daemon_is_told_who_has_it)
{
    char address[96];
    char holder[32];
    struct config config;
    struct rpc_listen *first;
    struct rpc_listen *second;
    struct fire_error error;

    folder_make();
    if (_i == 0)
        snprintf(address, sizeof(address), "unix:%s/socket", folder);
    else
        snprintf(address, sizeof(address), "127.0.0.1:8470");
    config_of(&config, address);
    ck_assert_int_eq(rpc_listen_open(&config, &first, &error), FIRE_OK);
    ck_assert_int_eq(rpc_listen_open(&config, &second, &error), FIRE_BUSY);
    ck_assert_ptr_null(second);
    snprintf(holder, sizeof(holder), "process %ld", (long)getpid());
    ck_assert_msg(strstr(error.message, holder) != NULL, "%s", error.message);
    rpc_listen_close(first);
    ck_assert_int_eq(rpc_listen_open(&config, &second, &error), FIRE_OK);
    rpc_listen_close(second);
    folder_remove();
}
END_TEST

static int socket_bind(const char *path)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);

    strcpy(name.sun_path, path);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&name, sizeof(name)), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    return listener;
}

START_TEST(a_socket_is_removed_only_when_nobody_answers)
{
    char address[96];
    struct config config;
    struct rpc_listen *opened;
    struct fire_error error;
    struct stat info;

    folder_make();
    snprintf(address, sizeof(address), "unix:%s/socket", folder);
    const char *path = address + strlen("unix:");
    config_of(&config, address);

    const int listener = socket_bind(path);
    ck_assert_int_eq(rpc_listen_open(&config, &opened, &error), FIRE_BUSY);
    ck_assert_int_eq(stat(path, &info), 0);
    close(listener);
    ck_assert_int_eq(rpc_listen_open(&config, &opened, &error), FIRE_OK);
    ck_assert_int_ne(stat(path, &info), 0);
    rpc_listen_close(opened);

    /* What is no socket is not ours to remove. */
    const int file = open(path, O_CREAT | O_WRONLY, 0600);
    ck_assert_int_ge(file, 0);
    close(file);
    ck_assert_int_eq(rpc_listen_open(&config, &opened, &error), FIRE_IO);
    ck_assert_int_eq(stat(path, &info), 0);
    folder_remove();
}
END_TEST

START_TEST(a_path_that_is_too_long_is_named)
{
    char address[256] = "unix:/";
    struct config config;
    struct rpc_listen *opened;
    struct fire_error error;

    folder_make();
    memset(address + 6, 'x', 120);
    config_of(&config, address);
    ck_assert_int_eq(rpc_listen_open(&config, &opened, &error), FIRE_BAD_REQUEST);
    ck_assert_ptr_nonnull(strstr(error.message, "107"));
    config_of(&config, "unix:");
    ck_assert_int_eq(rpc_listen_open(&config, &opened, &error), FIRE_BAD_REQUEST);
    folder_remove();
}
END_TEST

static const struct {
    const char *name; /* NULL: no such file */
    const char *text;
    enum fire_status status;
} pems[] = {
    { NULL, NULL, FIRE_IO },
    { "empty.pem", "", FIRE_BAD_REQUEST },
    { "other.pem", "no certificate at all\n", FIRE_BAD_REQUEST },
};

START_TEST(tls_files_are_pem)
{
    char path[128];
    struct config config;
    struct rpc_listen *opened;
    struct fire_error error;

    folder_make();
    snprintf(path, sizeof(path), "%s/%s", folder, pems[_i].name ? pems[_i].name : "missing");
    if (pems[_i].name) {
        FILE *file = fopen(path, "w");

        ck_assert_ptr_nonnull(file);
        fputs(pems[_i].text, file);
        fclose(file);
    }
    config_of(&config, "0.0.0.0:0");
    config.tls_certificate = path;
    config.tls_key = path;
    ck_assert_int_eq(rpc_listen_open(&config, &opened, &error), pems[_i].status);
    ck_assert_str_eq(error.field, "tls_certificate");
    folder_remove();
}
END_TEST

/* A port that another program has: the whole server fails to open and leaves nothing behind. */
START_TEST(a_taken_port_is_an_error_that_says_so)
{
    struct rpc_fixture fixture;
    struct rpc_fixture second;
    struct fire_error error;
    struct rpc_server *rpc;
    char bound[64];

    log_set_level(LOG_ERROR);
    fixture_init(&fixture);
    fixture.server.config.listen[1] = (char *)"127.0.0.1:0";
    fixture.server.config.listen_count = 2;
    fixture_start(&fixture, NULL, 0);
    snprintf(bound, sizeof(bound), "%s", rpc_server_address(fixture.rpc, 1));
    ck_assert_str_ne(bound, "127.0.0.1:0");
    ck_assert_str_eq(rpc_server_address(fixture.rpc, 0), fixture.address);
    ck_assert_ptr_null(rpc_server_address(fixture.rpc, 2));

    fixture_init(&second);
    second.server.config.listen[0] = bound;
    ck_assert_int_eq(uv_loop_init(&second.server.loop), 0);
    ck_assert_int_eq(rpc_server_open(&second.server, &rpc, &error), FIRE_IO);
    ck_assert_ptr_null(rpc);
    ck_assert_ptr_nonnull(strstr(error.message, "another program may hold the port"));
    uv_run(&second.server.loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&second.server.loop), 0);
    snprintf(folder, sizeof(folder), "%s", second.folder);
    folder_remove();
    fixture_stop(&fixture, 1000);
}
END_TEST

START_TEST(the_socket_is_for_user_and_group_and_goes_with_the_daemon)
{
    struct rpc_fixture fixture;
    struct stat info;
    char path[128];

    log_set_level(LOG_ERROR);
    fixture_init(&fixture);
    snprintf(path, sizeof(path), "%.100s", fixture.address + strlen("unix:"));
    fixture_start(&fixture, NULL, 0);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0660);
    fixture_stop(&fixture, 1000);
    ck_assert_int_ne(stat(path, &info), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_listen");
    TCase *tests = tcase_create("rpc_listen");
    SRunner *runner = srunner_create(suite);

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, an_address_is_host_and_port, 0,
                        sizeof(endpoints) / sizeof(endpoints[0]));
    tcase_add_loop_test(tests, beyond_loopback_there_is_tls_or_a_word, 0,
                        sizeof(anywhere) / sizeof(anywhere[0]));
    tcase_add_loop_test(tests, a_second_daemon_is_told_who_has_it, 0, 2);
    tcase_add_test(tests, a_socket_is_removed_only_when_nobody_answers);
    tcase_add_test(tests, a_path_that_is_too_long_is_named);
    tcase_add_loop_test(tests, tls_files_are_pem, 0, sizeof(pems) / sizeof(pems[0]));
    tcase_add_test(tests, a_taken_port_is_an_error_that_says_so);
    tcase_add_test(tests, the_socket_is_for_user_and_group_and_goes_with_the_daemon);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
