/* history_postgres: the history in PostgreSQL. */
#include <stdlib.h>

#include "history_sql.h"

static enum fire_status postgres_open(const struct sql_settings *settings, struct sql_db **out,
                                      struct fire_error *error)
{
    (void)settings;
    *out = NULL;
    return fire_fail(error, FIRE_IO, "history", "PostgreSQL is not served yet");
}

const struct sql_backend sql_postgres = { .name = "postgres", .open = postgres_open };
