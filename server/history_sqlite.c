/* history_sqlite: the history in one file, WAL, synced at each commit. */
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "history_sql.h"

#define PATH_BYTES 4096u

struct sqlite_db {
    struct sql_db base;
    sqlite3 *core;
    sqlite3_stmt *statements[SQL_STATEMENT_COUNT];
    int lock; /* the writer's, on <file>.lock; -1: none */
};

/* Version 1: what the first release kept. */
static const char first_schema[] =
    "CREATE TABLE meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL);"
    "INSERT INTO meta VALUES('version', 1), ('probed_ms', 0);"
    "CREATE TABLE run(id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, "
    "run TEXT NOT NULL, info BLOB, search TEXT NOT NULL, first_seen_ms INTEGER NOT NULL, "
    "last_seen_ms INTEGER NOT NULL, first_step INTEGER NOT NULL, last_step INTEGER NOT NULL, "
    "points INTEGER NOT NULL, layers INTEGER NOT NULL, pending_points INTEGER NOT NULL, "
    "pending_rows INTEGER NOT NULL, version INTEGER NOT NULL, last_event BLOB);"
    "CREATE UNIQUE INDEX run_name ON run(tenant, run);"
    "CREATE INDEX run_seen ON run(tenant, last_seen_ms, id);"
    "CREATE TABLE layer(id INTEGER PRIMARY KEY AUTOINCREMENT, run_id INTEGER NOT NULL, "
    "name TEXT NOT NULL, position INTEGER NOT NULL, shape BLOB);"
    "CREATE UNIQUE INDEX layer_name ON layer(run_id, name);"
    "CREATE TABLE series(id INTEGER PRIMARY KEY AUTOINCREMENT, run_id INTEGER NOT NULL, "
    "layer_id INTEGER NOT NULL, statistic TEXT NOT NULL, sealed_step INTEGER NOT NULL);"
    "CREATE UNIQUE INDEX series_name ON series(run_id, layer_id, statistic);"
    "CREATE TABLE chunk(series_id INTEGER NOT NULL, start_step INTEGER NOT NULL, "
    "last_step INTEGER NOT NULL, points INTEGER NOT NULL, born_ms INTEGER NOT NULL, "
    "written_ms INTEGER NOT NULL, coarse_level INTEGER, fine_level INTEGER, coarse BLOB, "
    "fine BLOB, raw BLOB);"
    "CREATE UNIQUE INDEX chunk_start ON chunk(series_id, start_step, last_step);"
    "CREATE TABLE pending(id INTEGER PRIMARY KEY AUTOINCREMENT, run_id INTEGER NOT NULL, "
    "points INTEGER NOT NULL, data BLOB NOT NULL);"
    "CREATE INDEX pending_run ON pending(run_id, id);"
    "CREATE TABLE event(id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, "
    "run TEXT NOT NULL, layer TEXT NOT NULL, kind INTEGER NOT NULL, step INTEGER NOT NULL, "
    "time_ms INTEGER NOT NULL, data BLOB NOT NULL);"
    "CREATE INDEX event_run ON event(tenant, run, id);"
    "CREATE INDEX event_time ON event(time_ms)";

/* Version 2: alerts that are firing, and what is old is found without reading everything. */
static const char second_schema[] =
    "CREATE TABLE alert(run_id INTEGER NOT NULL, rule TEXT NOT NULL, layer TEXT NOT NULL, "
    "PRIMARY KEY(run_id, rule, layer));"
    "ALTER TABLE run ADD COLUMN alerts_firing INTEGER NOT NULL DEFAULT 0;"
    "CREATE INDEX run_pending ON run(last_seen_ms) WHERE pending_rows > 0;"
    "CREATE INDEX run_old ON run(last_seen_ms);"
    "CREATE INDEX chunk_old ON chunk(written_ms) WHERE raw IS NOT NULL AND fine IS NOT NULL";

/* Version 3: who writes a run. One file has one writer: nobody else lives. */
static const char third_schema[] = "ALTER TABLE run ADD COLUMN owner INTEGER NOT NULL DEFAULT 0;"
                                   "CREATE VIEW living AS SELECT 0 AS id WHERE 0";

static const char *const migrations[] = { first_schema, second_schema, third_schema, NULL };

static struct sqlite_db *own(struct sql_db *db)
{
    return (struct sqlite_db *)db;
}

static enum fire_status fail(struct sqlite_db *db, int code, const char *what,
                             struct fire_error *error)
{
    const int primary = code & 0xff;

    db->base.broken = true;
    db->base.corrupt = primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB;
    return fire_fail(error, FIRE_IO, "history", "the history cannot be %s: %s", what,
                     db->core ? sqlite3_errmsg(db->core) : sqlite3_errstr(code));
}

static void sqlite_close(struct sql_db *base)
{
    struct sqlite_db *db = own(base);

    for (size_t i = 0; i < SQL_STATEMENT_COUNT; i++)
        sqlite3_finalize(db->statements[i]);
    sqlite3_close(db->core);
    if (db->lock >= 0)
        close(db->lock);
    free(db);
}

static enum fire_status sqlite_script(struct sql_db *base, const char *text,
                                      struct fire_error *error)
{
    struct sqlite_db *db = own(base);
    const int code = sqlite3_exec(db->core, text, NULL, NULL, NULL);

    return code == SQLITE_OK ? FIRE_OK : fail(db, code, "written", error);
}

static enum fire_status sqlite_number(struct sql_db *base, const char *text, int64_t *number,
                                      struct fire_error *error)
{
    struct sqlite_db *db = own(base);
    sqlite3_stmt *statement = NULL;
    enum fire_status status = FIRE_NOT_FOUND;
    int code = sqlite3_prepare_v2(db->core, text, -1, &statement, NULL);

    if (code == SQLITE_OK)
        code = sqlite3_step(statement);
    if (code == SQLITE_ROW) {
        *number = sqlite3_column_int64(statement, 0);
        status = FIRE_OK;
    } else if (code != SQLITE_DONE) {
        status = fail(db, code, "read", error);
    }
    sqlite3_finalize(statement);
    return status;
}

static enum fire_status sqlite_begin(struct sql_db *base, struct fire_error *error)
{
    return sqlite_script(base, base->writer ? "BEGIN IMMEDIATE" : "BEGIN", error);
}

static enum fire_status sqlite_commit(struct sql_db *base, struct fire_error *error)
{
    return sqlite_script(base, "COMMIT", error);
}

static void sqlite_rollback(struct sql_db *base)
{
    struct sqlite_db *db = own(base);

    if (!sqlite3_get_autocommit(db->core))
        (void)sqlite3_exec(db->core, "ROLLBACK", NULL, NULL, NULL);
}

/* Another daemon on the same file would not see what this one remembers. */
static enum fire_status take_lock(struct sqlite_db *db, const char *file, struct fire_error *error)
{
    char path[PATH_BYTES];

    if (snprintf(path, sizeof(path), "%s.lock", file) >= (int)sizeof(path))
        return fire_fail(error, FIRE_BAD_REQUEST, "history_file",
                         "history_file is longer than %u bytes", PATH_BYTES - 6);
    db->lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (db->lock < 0)
        return fire_fail(error, FIRE_IO, "history_file", "cannot make %.300s: %s", path,
                         strerror(errno));
    if (flock(db->lock, LOCK_EX | LOCK_NB) != 0)
        return fire_fail(error, FIRE_IO, "history_file",
                         "another fired writes to %.300s; stop it, or give another history_file",
                         file);
    return FIRE_OK;
}

static enum fire_status set_up_writer(struct sqlite_db *db, struct fire_error *error)
{
    int64_t tables = 0, version = 0;
    enum fire_status status = sqlite_script(&db->base,
                                            "PRAGMA page_size = 8192;"
                                            "PRAGMA journal_mode = WAL;"
                                            "PRAGMA synchronous = FULL;"
                                            "PRAGMA wal_autocheckpoint = 2000",
                                            error);

    if (status == FIRE_OK)
        status = sqlite_begin(&db->base, error);
    if (status == FIRE_OK)
        status = sqlite_number(&db->base, "SELECT count(*) FROM sqlite_master WHERE name = 'meta'",
                               &tables, error);
    if (status == FIRE_OK && tables > 0)
        status = sqlite_number(&db->base, "SELECT value FROM meta WHERE name = 'version'", &version,
                               error);
    if (status == FIRE_OK)
        status = sql_migrate(&db->base, version, error);
    if (status == FIRE_OK)
        status = sqlite_commit(&db->base, error);
    if (status != FIRE_OK)
        sqlite_rollback(&db->base);
    return status;
}

static enum fire_status set_up_reader(struct sqlite_db *db, struct fire_error *error)
{
    int64_t version = 0;
    enum fire_status status =
        sqlite_number(&db->base, "SELECT value FROM meta WHERE name = 'version'", &version, error);

    if (status == FIRE_OK && version != sql_schema_version(&sql_sqlite))
        status = fire_fail(error, FIRE_IO, "history", "the history is being migrated");
    return status;
}

static enum fire_status sqlite_open(const struct sql_settings *settings, struct sql_db **out,
                                    struct fire_error *error)
{
    const int flags =
        SQLITE_OPEN_NOMUTEX |
        (settings->writer ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY);
    struct sqlite_db *db = calloc(1, sizeof(*db));
    enum fire_status status = FIRE_OK;
    int code;

    *out = NULL;
    if (!db)
        return fire_fail_memory(error, sizeof(*db));
    db->base = (struct sql_db){ .backend = &sql_sqlite, .writer = settings->writer };
    db->lock = -1;
    if (settings->writer)
        status = take_lock(db, settings->place, error);
    if (status == FIRE_OK) {
        code = sqlite3_open_v2(settings->place, &db->core, flags, NULL);
        if (code != SQLITE_OK)
            status = fail(db, code, "opened", error);
    }
    if (status == FIRE_OK) {
        sqlite3_busy_timeout(db->core, (int)settings->timeout_ms);
        status = settings->writer ? set_up_writer(db, error) : set_up_reader(db, error);
    }
    *out = &db->base;
    return status;
}

static int bind(sqlite3_stmt *statement, const char *arguments, const struct sql_value *values)
{
    for (int i = 0; arguments[i]; i++) {
        const struct sql_value *value = &values[i];
        const int index = i + 1;
        int code = SQLITE_OK;

        switch (value->kind) {
        case SQL_NULL: code = sqlite3_bind_null(statement, index); break;
        case SQL_NUMBER: code = sqlite3_bind_int64(statement, index, value->number); break;
        case SQL_TEXT:
            code = sqlite3_bind_text(statement, index, value->data, (int)value->bytes, NULL);
            break;
        case SQL_BLOB:
            code = sqlite3_bind_blob(statement, index, value->data, (int)value->bytes, NULL);
            break;
        }
        if (code != SQLITE_OK)
            return code;
    }
    return SQLITE_OK;
}

static size_t read_row(sqlite3_stmt *statement, struct sql_value *columns)
{
    const size_t count = (size_t)sqlite3_column_count(statement);

    FIRE_ASSERT(count <= SQL_COLUMNS_MAX);
    for (size_t i = 0; i < count; i++) {
        const int column = (int)i;

        columns[i] = (struct sql_value){ 0 };
        switch (sqlite3_column_type(statement, column)) {
        case SQLITE_INTEGER:
            columns[i] = sql_number(sqlite3_column_int64(statement, column));
            break;
        case SQLITE_TEXT:
            columns[i].kind = SQL_TEXT;
            columns[i].data = sqlite3_column_text(statement, column);
            columns[i].bytes = (size_t)sqlite3_column_bytes(statement, column);
            break;
        case SQLITE_BLOB:
            columns[i].kind = SQL_BLOB;
            columns[i].data = sqlite3_column_blob(statement, column);
            columns[i].bytes = (size_t)sqlite3_column_bytes(statement, column);
            break;
        default: break;
        }
    }
    return count;
}

/* $1 is ?1 here: numbered, whatever comes first. */
static int prepare(struct sqlite_db *db, enum sql_statement which)
{
    char *text = strdup(sql_sources[which].text);
    int code = SQLITE_NOMEM;

    for (char *at = text ? strchr(text, '$') : NULL; at; at = strchr(at, '$'))
        *at = '?';
    if (text)
        code = sqlite3_prepare_v3(db->core, text, -1, SQLITE_PREPARE_PERSISTENT,
                                  &db->statements[which], NULL);
    free(text);
    return code;
}

static enum fire_status sqlite_run(struct sql_db *base, enum sql_statement which,
                                   const struct sql_value *arguments, sql_row row, void *data,
                                   struct fire_error *error)
{
    struct sqlite_db *db = own(base);
    sqlite3_stmt **statement = &db->statements[which];
    struct sql_value columns[SQL_COLUMNS_MAX];
    int code = SQLITE_OK;

    if (!*statement)
        code = prepare(db, which);
    if (code == SQLITE_OK)
        code = bind(*statement, sql_sources[which].arguments, arguments);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(*statement);
        if (code != SQLITE_ROW)
            break;
        const size_t count = read_row(*statement, columns);

        if (row && !row(data, columns, count)) {
            code = SQLITE_DONE;
            break;
        }
    }
    if (code != SQLITE_DONE) {
        (void)fail(db, code, base->writer ? "written" : "read", error);
        sqlite3_reset(*statement);
        return FIRE_IO;
    }
    sqlite3_reset(*statement);
    sqlite3_clear_bindings(*statement);
    return FIRE_OK;
}

/* One file needs no partitions. */
static enum fire_status sqlite_no_partition(struct sql_db *base, int64_t time_ms,
                                            struct fire_error *error)
{
    (void)base;
    (void)time_ms;
    (void)error;
    return FIRE_OK;
}

const struct sql_backend sql_sqlite = {
    .name = "sqlite",
    .open = sqlite_open,
    .close = sqlite_close,
    .begin = sqlite_begin,
    .commit = sqlite_commit,
    .rollback = sqlite_rollback,
    .run = sqlite_run,
    .script = sqlite_script,
    .number = sqlite_number,
    .migrations = migrations,
    .prepare_time = sqlite_no_partition,
    .drop_before = sqlite_no_partition,
};
