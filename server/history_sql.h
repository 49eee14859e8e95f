/* history_sql: one connection to a database, SQLite or PostgreSQL, behind a table of functions, and
 * the statements that both understand. For history*.c and their tests.
 *
 * A connection belongs to one thread at a time. A failure of the database is FIRE_IO, and the
 * connection is then `broken`: close it and open another. No call waits longer than timeout_ms. */
#ifndef FIRED_HISTORY_SQL_H
#define FIRED_HISTORY_SQL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define SQL_ARGUMENTS_MAX 12u
#define SQL_COLUMNS_MAX   16u

enum sql_kind { SQL_NULL, SQL_NUMBER, SQL_TEXT, SQL_BLOB };

/* A value given or read. Text and blobs are borrowed: those of a row live as long as its callback
 * runs. Text that was read ends with a NUL behind `bytes`. */
struct sql_value {
    enum sql_kind kind;
    int64_t number;
    const void *data;
    size_t bytes;
};

static inline struct sql_value sql_number(int64_t number)
{
    return (struct sql_value){ .kind = SQL_NUMBER, .number = number };
}
struct sql_value sql_text(const char *text);
struct sql_value sql_blob(const void *data, size_t bytes); /* no bytes: NULL */

/* Statements of the store, in history_sql.c. */
enum sql_statement {
    SQL_RUN_FIND,
    SQL_RUN_LOCK, /* the same, and keeps others from writing to it */
    SQL_RUN_COUNT,
    SQL_RUN_ADD,
    SQL_RUN_UPDATE,
    SQL_RUN_INFO,
    SQL_RUN_PENDING,
    SQL_RUN_EVENT,
    SQL_RUN_ALERTS,
    SQL_RUN_LIST,
    SQL_RUN_TO_FOLD,
    SQL_RUN_POINTS,
    SQL_RUN_ADOPT,
    SQL_RUN_OLD,
    SQL_RUN_DELETE,
    SQL_LAYER_ADD,
    SQL_LAYER_SHAPE,
    SQL_LAYER_LIST,
    SQL_LAYER_DELETE,
    SQL_SERIES_ADD,
    SQL_SERIES_LIST,
    SQL_SERIES_SEAL,
    SQL_SERIES_RECENT,
    SQL_SERIES_DELETE,
    SQL_TAIL_LIST,
    SQL_CHUNK_FIND,
    SQL_CHUNK_NEXT,
    SQL_CHUNK_ADD,
    SQL_CHUNK_UPDATE,
    SQL_CHUNK_RANGE,
    SQL_CHUNK_TO_THIN,
    SQL_CHUNK_THIN,
    SQL_CHUNK_DELETE,
    SQL_PENDING_ADD,
    SQL_PENDING_LIST,
    SQL_PENDING_DELETE,
    SQL_EVENT_ADD,
    SQL_EVENT_LIST,
    SQL_EVENT_RANGE,
    SQL_EVENT_OLD,
    SQL_ALERT_SET,
    SQL_ALERT_CLEAR,
    SQL_ALERT_COUNT,
    SQL_ALERT_DELETE,
    SQL_ALERT_LIST,
    SQL_PROBE,
    SQL_STATEMENT_COUNT,
};

struct sql_source {
    const char *text;      /* arguments are $1, $2, … */
    const char *arguments; /* one letter each: n(umber), t(ext), b(lob) */
};
extern const struct sql_source sql_sources[SQL_STATEMENT_COUNT];

/* Called for each row. False stops reading, without a failure. */
typedef bool (*sql_row)(void *data, const struct sql_value *columns, size_t count);

struct sql_settings {
    const char *place; /* SQLite: the file. PostgreSQL: libpq's connection string or URL. */
    bool writer;       /* SQLite: others may only read */
    uint32_t owner;    /* of a writer: a number of its own, for the runs it writes; 0: none */
    uint32_t timeout_ms;
    const bool *stop; /* set by another thread (atomically): give up at once; may be NULL */
};

struct sql_db;

struct sql_backend {
    const char *name;
    /* Opens and, for the writer, makes or migrates the schema. FIRE_IO: try again
     * later. `*db` may be set after a failure too: close it. */
    enum fire_status (*open)(const struct sql_settings *settings, struct sql_db **db,
                             struct fire_error *error);
    void (*close)(struct sql_db *db);
    enum fire_status (*begin)(struct sql_db *db, struct fire_error *error);
    enum fire_status (*commit)(struct sql_db *db, struct fire_error *error);
    void (*rollback)(struct sql_db *db); /* nothing open is allowed */
    enum fire_status (*run)(struct sql_db *db, enum sql_statement statement,
                            const struct sql_value *arguments, sql_row row, void *data,
                            struct fire_error *error);
    /* Statements without arguments and rows, with semicolons between them. */
    enum fire_status (*script)(struct sql_db *db, const char *text, struct fire_error *error);
    /* One number from a query without arguments; FIRE_NOT_FOUND without a row. */
    enum fire_status (*number)(struct sql_db *db, const char *text, int64_t *number,
                               struct fire_error *error);
    /* Scripts that bring the schema from version i to i + 1; ends with NULL. */
    const char *const *migrations;
    /* Before a row of that time is written: PostgreSQL makes the partitions it belongs to. */
    enum fire_status (*prepare_time)(struct sql_db *db, int64_t time_ms, struct fire_error *error);
    /* Lets go of empty partitions that end before that time. */
    enum fire_status (*drop_before)(struct sql_db *db, int64_t time_ms, struct fire_error *error);
};

/* What every connection begins with. */
struct sql_db {
    const struct sql_backend *backend;
    bool writer;
    bool broken;  /* it failed; close it */
    bool corrupt; /* what is stored cannot be read */
};

extern const struct sql_backend sql_sqlite;
extern const struct sql_backend sql_postgres;

/* The version that the daemon writes: the count of migrations. */
int64_t sql_schema_version(const struct sql_backend *backend);
/* Brings the schema from what it is to that version, inside a transaction of the caller's. `now` is
 * the version found, 0: nothing is there. A newer one than ours is FIRE_DENIED. */
FIRE_NODISCARD enum fire_status sql_migrate(struct sql_db *db, int64_t now,
                                            struct fire_error *error);

/* Runs a statement; arguments are counted against its source. */
FIRE_NODISCARD enum fire_status sql_run(struct sql_db *db, enum sql_statement statement,
                                        const struct sql_value *arguments, size_t count,
                                        sql_row row, void *data, struct fire_error *error);
#define SQL_RUN(db, statement, row, data, error, ...)                                              \
    sql_run(db, statement, (const struct sql_value[]){ __VA_ARGS__ },                              \
            sizeof((const struct sql_value[]){ __VA_ARGS__ }) / sizeof(struct sql_value), row,     \
            data, error)

#endif
