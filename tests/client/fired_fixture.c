#include "fired_fixture.h"

#include <check.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READY_S_MAX 60.0

extern char **environ;

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool answers(const struct fired *fired)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    const int socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const char *path = fired->address + strlen("unix:");
    bool connected;

    memcpy(name.sun_path, path, strlen(path) + 1);
    connected = connect(socket_fd, (struct sockaddr *)&name, sizeof(name)) == 0;
    close(socket_fd);
    return connected;
}

void fired_spawn(struct fired *fired)
{
    char state[96], threads[16];
    char *arguments[] = { (char *)FIRED_PROGRAM,
                          (char *)"--listen",
                          fired->address,
                          (char *)"--http",
                          (char *)"off",
                          (char *)"--state-dir",
                          state,
                          (char *)"--runtime-dir",
                          fired->folder,
                          (char *)"--threads",
                          threads,
                          (char *)"--log-level",
                          (char *)"warn",
                          NULL };

    snprintf(state, sizeof(state), "%s/state", fired->folder);
    snprintf(threads, sizeof(threads), "%u", fired->threads);
    ck_assert_int_eq(posix_spawn(&fired->process, FIRED_PROGRAM, NULL, NULL, arguments, environ),
                     0);
}

void fired_await(const struct fired *fired)
{
    const double start_s = now_s();

    while (!answers(fired)) {
        ck_assert_msg(now_s() - start_s < READY_S_MAX, "the daemon does not answer");
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
}

void fired_start(struct fired *fired, uint32_t threads)
{
    *fired = (struct fired){ .threads = threads };
    snprintf(fired->folder, sizeof(fired->folder), "%s/fire-test.XXXXXX", P_tmpdir);
    ck_assert_ptr_nonnull(mkdtemp(fired->folder));
    snprintf(fired->address, sizeof(fired->address), "unix:%s/fired.sock", fired->folder);
    fired_spawn(fired);
    fired_await(fired);
}

void fired_stop(struct fired *fired, int signal_number)
{
    int status = 0;

    kill(fired->process, signal_number);
    ck_assert_int_eq(waitpid(fired->process, &status, 0), fired->process);
    if (signal_number == SIGTERM)
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    fired->process = 0;
}

void fired_end(struct fired *fired)
{
    char command[160];

    if (fired->process)
        fired_stop(fired, SIGTERM);
    snprintf(command, sizeof(command), "rm -rf '%s'", fired->folder);
    ck_assert_int_eq(system(command), 0);
}
