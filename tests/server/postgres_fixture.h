/* postgres_fixture: a PostgreSQL of the test's own: Debian's, in a new folder, on a unix socket
 * there, without the network. PostgreSQL does not run as root: then it runs as user postgres. */
#ifndef FIRED_POSTGRES_FIXTURE_H
#define FIRED_POSTGRES_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct postgres_fixture {
    char folder[64];
    char url[128]; /* for libpq */
    char binaries[128];
    pid_t server;
};

/* Makes and starts it; false: PostgreSQL is not installed. */
bool postgres_init(struct postgres_fixture *fixture);
/* A new database in it; its URL. */
void postgres_database(const struct postgres_fixture *fixture, const char *name, char *url,
                       size_t url_bytes);
/* Starts it again after postgres_stop(). */
void postgres_start(struct postgres_fixture *fixture);
void postgres_stop(struct postgres_fixture *fixture);
/* Stops it and removes the folder. */
void postgres_release(struct postgres_fixture *fixture);

#endif
