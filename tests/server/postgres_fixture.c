/* postgres_fixture: see the header. */
#include "postgres_fixture.h"

#include <glob.h>
#include <grp.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_S  120u
#define STEP_US  20000u
#define POSTGRES "postgres"

/* Also before and after Check runs, where its own assertions cannot be used. */
static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "postgres_fixture: failed: %s\n", what);
    exit(EXIT_FAILURE);
}

static void become_postgres(void)
{
    const struct passwd *user = getpwnam(POSTGRES);

    if (geteuid() != 0)
        return;
    if (!user || setgroups(0, NULL) != 0 || setgid(user->pw_gid) != 0 || setuid(user->pw_uid) != 0)
        _exit(1);
}

/* Runs a program of PostgreSQL in the folder; its output goes to a file there. */
static pid_t spawn(const struct postgres_fixture *fixture, const char *program,
                   const char *const *arguments)
{
    char path[256], output[128];
    const pid_t child = fork();

    require(child >= 0, "fork");
    if (child > 0)
        return child;
    become_postgres();
    snprintf(path, sizeof(path), "%s/%s", fixture->binaries, program);
    snprintf(output, sizeof(output), "%s/output", fixture->folder);
    if (!freopen(output, "a", stdout) || dup2(fileno(stdout), STDERR_FILENO) < 0)
        _exit(1);
    execv(path, (char *const *)arguments);
    _exit(1);
}

static void wait_ready(const struct postgres_fixture *fixture)
{
    for (uint64_t waited_us = 0; waited_us < READY_S * 1000000ull; waited_us += STEP_US) {
        if (PQping(fixture->url) == PQPING_OK)
            return;
        usleep(STEP_US);
    }
    require(false, "PostgreSQL did not start");
}

void postgres_start(struct postgres_fixture *fixture)
{
    char data[96];
    const char *arguments[] = { POSTGRES,
                                "-D",
                                data,
                                "-k",
                                fixture->folder,
                                "-c",
                                "listen_addresses=",
                                "-c",
                                "fsync=off",
                                "-c",
                                "max_connections=16",
                                NULL };

    snprintf(data, sizeof(data), "%s/data", fixture->folder);
    fixture->server = spawn(fixture, "postgres", arguments);
    wait_ready(fixture);
}

bool postgres_init(struct postgres_fixture *fixture)
{
    const struct passwd *user = getpwnam(POSTGRES);
    char data[96];
    const char *arguments[] = {
        "initdb", "-D", data, "-A", "trust", "-U", "fired", "--no-sync", "--locale=C.UTF-8", NULL
    };
    glob_t found = { 0 };
    int outcome = 0;

    memset(fixture, 0, sizeof(*fixture));
    if (glob("/usr/lib/postgresql/*/bin/initdb", 0, NULL, &found) != 0) {
        fprintf(stderr, "PostgreSQL is not installed (apt-get install postgresql)\n");
        return false;
    }
    snprintf(fixture->binaries, sizeof(fixture->binaries), "%s", found.gl_pathv[0]);
    *strrchr(fixture->binaries, '/') = '\0';
    globfree(&found);
    strcpy(fixture->folder, "/tmp/fired-postgres-XXXXXX");
    require(mkdtemp(fixture->folder) != NULL, "mkdtemp");
    if (geteuid() == 0 && user)
        require(chown(fixture->folder, user->pw_uid, user->pw_gid) == 0, "chown");
    snprintf(data, sizeof(data), "%s/data", fixture->folder);
    snprintf(fixture->url, sizeof(fixture->url), "host=%s user=fired dbname=postgres",
             fixture->folder);
    require(waitpid(spawn(fixture, "initdb", arguments), &outcome, 0) > 0, "waitpid");
    require(outcome == 0, "initdb");
    postgres_start(fixture);
    return true;
}

void postgres_database(const struct postgres_fixture *fixture, const char *name, char *url,
                       size_t url_bytes)
{
    PGconn *db = PQconnectdb(fixture->url);
    char command[128];
    PGresult *result;

    snprintf(command, sizeof(command), "CREATE DATABASE %s", name);
    result = PQexec(db, command);
    require(PQresultStatus(result) == PGRES_COMMAND_OK, PQerrorMessage(db));
    PQclear(result);
    PQfinish(db);
    snprintf(url, url_bytes, "host=%s user=fired dbname=%s", fixture->folder, name);
}

void postgres_stop(struct postgres_fixture *fixture)
{
    if (fixture->server > 0) {
        kill(fixture->server, SIGCONT);
        kill(fixture->server, SIGQUIT);
        waitpid(fixture->server, NULL, 0);
    }
    fixture->server = 0;
}

void postgres_release(struct postgres_fixture *fixture)
{
    char command[128];

    postgres_stop(fixture);
    snprintf(command, sizeof(command), "rm -rf %s", fixture->folder);
    (void)!system(command);
}
