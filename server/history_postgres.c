/* history_postgres: the history of a fleet, in the schema "fired" of a PostgreSQL database.
 *
 * Writers take one advisory lock for each transaction, so daemons that share a database write one
 * after the other and none doubles or loses what another wrote. Every wait is ours and ends: libpq
 * is used without blocking, so a server that is silent costs timeout_ms and not a thread. Chunks
 * and events are partitioned by time; partitions that retention emptied are dropped. */
#include <endian.h>
#include <inttypes.h>
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "history_sql.h"

#define LOCK_KEY         "7090317"    /* of the advisory lock: any number, the same everywhere */
#define PERIOD_MS        2592000000ll /* of a partition: 30 days */
#define POLL_MS          100
#define STOP_MS          1000u /* what a wait may still take once the daemon stops */
#define TYPE_NUMBER      20u   /* int8 */
#define TYPE_TEXT        25u
#define TYPE_BLOB        17u /* bytea */
#define SCRIPT_BYTES     1536u
#define NOTHING_PREPARED (-1)

struct postgres_db {
    struct sql_db base;
    PGconn *core;
    uint32_t timeout_ms;
    const bool *stop;
    bool prepared[SQL_STATEMENT_COUNT];
    bool open;      /* a transaction */
    int64_t period; /* whose partitions are there */
};

/* Version 1: what the first release kept. */
static const char first_schema[] =
    "CREATE TABLE meta(name TEXT PRIMARY KEY, value BIGINT NOT NULL);"
    "INSERT INTO meta VALUES('version', 1), ('probed_ms', 0);"
    "CREATE TABLE run(id BIGSERIAL PRIMARY KEY, tenant TEXT NOT NULL, run TEXT NOT NULL, "
    "info BYTEA, search TEXT NOT NULL, first_seen_ms BIGINT NOT NULL, "
    "last_seen_ms BIGINT NOT NULL, first_step BIGINT NOT NULL, last_step BIGINT NOT NULL, "
    "points BIGINT NOT NULL, layers BIGINT NOT NULL, pending_points BIGINT NOT NULL, "
    "pending_rows BIGINT NOT NULL, version BIGINT NOT NULL, last_event BYTEA);"
    "CREATE UNIQUE INDEX run_name ON run(tenant, run);"
    "CREATE INDEX run_seen ON run(tenant, last_seen_ms, id);"
    "CREATE TABLE layer(id BIGSERIAL PRIMARY KEY, run_id BIGINT NOT NULL, name TEXT NOT NULL, "
    "position BIGINT NOT NULL, shape BYTEA);"
    "CREATE UNIQUE INDEX layer_name ON layer(run_id, name);"
    "CREATE TABLE series(id BIGSERIAL PRIMARY KEY, run_id BIGINT NOT NULL, "
    "layer_id BIGINT NOT NULL, statistic TEXT NOT NULL, sealed_step BIGINT NOT NULL);"
    "CREATE UNIQUE INDEX series_name ON series(run_id, layer_id, statistic);"
    "CREATE TABLE chunk(series_id BIGINT NOT NULL, start_step BIGINT NOT NULL, "
    "last_step BIGINT NOT NULL, points BIGINT NOT NULL, born_ms BIGINT NOT NULL, "
    "written_ms BIGINT NOT NULL, coarse_level BIGINT, fine_level BIGINT, coarse BYTEA, "
    "fine BYTEA, raw BYTEA, PRIMARY KEY(series_id, start_step, born_ms)) "
    "PARTITION BY RANGE(born_ms);"
    "ALTER TABLE chunk ALTER raw SET STORAGE EXTERNAL, ALTER fine SET STORAGE EXTERNAL;"
    "CREATE TABLE pending(id BIGSERIAL PRIMARY KEY, run_id BIGINT NOT NULL, "
    "points BIGINT NOT NULL, data BYTEA NOT NULL);"
    "CREATE INDEX pending_run ON pending(run_id, id);"
    "CREATE SEQUENCE event_id;"
    "CREATE TABLE event(id BIGINT NOT NULL DEFAULT nextval('event_id'), tenant TEXT NOT NULL, "
    "run TEXT NOT NULL, layer TEXT NOT NULL, kind BIGINT NOT NULL, step BIGINT NOT NULL, "
    "time_ms BIGINT NOT NULL, data BYTEA NOT NULL, PRIMARY KEY(id, time_ms)) "
    "PARTITION BY RANGE(time_ms);"
    "CREATE INDEX event_run ON event(tenant, run, id)";

/* Version 2: alerts that are firing, and what is old is found without reading everything. */
static const char second_schema[] =
    "CREATE TABLE alert(run_id BIGINT NOT NULL, rule TEXT NOT NULL, layer TEXT NOT NULL, "
    "PRIMARY KEY(run_id, rule, layer));"
    "ALTER TABLE run ADD COLUMN alerts_firing BIGINT NOT NULL DEFAULT 0;"
    "CREATE INDEX run_pending ON run(last_seen_ms) WHERE pending_rows > 0;"
    "CREATE INDEX run_old ON run(last_seen_ms);"
    "CREATE INDEX chunk_old ON chunk(written_ms) WHERE raw IS NOT NULL AND fine IS NOT NULL";

/* Version 3: who writes a run. A daemon holds a lock with its number as long as it is connected. */
static const char third_schema[] =
    "ALTER TABLE run ADD COLUMN owner BIGINT NOT NULL DEFAULT 0;"
    "CREATE VIEW living AS SELECT objid::BIGINT AS id FROM pg_locks WHERE locktype = 'advisory' "
    "AND classid = " LOCK_KEY " AND objsubid = 2 AND granted AND "
    "database = (SELECT oid FROM pg_database WHERE datname = current_database())";

static const char *const migrations[] = { first_schema, second_schema, third_schema, NULL };

static struct postgres_db *own(struct sql_db *db)
{
    return (struct postgres_db *)db;
}

static enum fire_status fail(struct postgres_db *db, const char *why, struct fire_error *error)
{
    char text[300];
    size_t end;

    db->base.broken = true;
    snprintf(text, sizeof(text), "%s", why && why[0] ? why : "no answer");
    for (end = strlen(text); end > 0 && text[end - 1] == '\n'; end--)
        text[end - 1] = '\0';
    for (char *at = text; (at = strchr(at, '\n')) != NULL;)
        *at = ' ';
    return fire_fail(error, FIRE_IO, "history", "PostgreSQL: %s", text);
}

/* --- waiting ---------------------------------------------------------------------------------- */

static bool stopping(const struct postgres_db *db)
{
    return db->stop && __atomic_load_n(db->stop, __ATOMIC_ACQUIRE);
}

/* Waits until the socket is ready; false: not before the deadline. */
static bool wait_socket(const struct postgres_db *db, short events, uint64_t began_ns)
{
    for (;;) {
        struct pollfd socket = { .fd = PQsocket(db->core), .events = events };
        const uint64_t waited_ms = (clock_now_ns() - began_ns) / CLOCK_NS_PER_MS;
        int ready;

        if (socket.fd < 0 || waited_ms >= db->timeout_ms || (stopping(db) && waited_ms >= STOP_MS))
            return false;
        ready = poll(&socket, 1, POLL_MS);
        if (ready > 0)
            return true;
    }
}

static bool flush(const struct postgres_db *db, uint64_t began_ns)
{
    for (;;) {
        const int left = PQflush(db->core);

        if (left <= 0)
            return left == 0;
        if (!wait_socket(db, POLLIN | POLLOUT, began_ns) || !PQconsumeInput(db->core))
            return false;
    }
}

/* The next result of what was sent; `*in_time` false: it did not come. NULL: there is no more. */
static PGresult *next_result(const struct postgres_db *db, uint64_t began_ns, bool *in_time)
{
    *in_time = true;
    while (PQisBusy(db->core)) {
        if (!wait_socket(db, POLLIN, began_ns) || !PQconsumeInput(db->core)) {
            *in_time = false;
            return NULL;
        }
    }
    return PQgetResult(db->core);
}

/* Reads all results of what was sent; the last one that has rows is given to `row`. */
static enum fire_status finish(struct postgres_db *db, int sent, bool (*rows)(PGresult *, void *),
                               void *data, struct fire_error *error)
{
    const uint64_t began_ns = clock_now_ns();
    enum fire_status status = FIRE_OK;
    bool in_time = true;

    if (!sent || !flush(db, began_ns))
        return fail(db, PQerrorMessage(db->core), error);
    for (;;) {
        PGresult *result = next_result(db, began_ns, &in_time);
        const ExecStatusType outcome = result ? PQresultStatus(result) : PGRES_COMMAND_OK;

        if (!result)
            break;
        if (outcome == PGRES_TUPLES_OK && status == FIRE_OK && rows)
            (void)rows(result, data);
        else if (outcome != PGRES_TUPLES_OK && outcome != PGRES_COMMAND_OK && status == FIRE_OK)
            status = fail(db, PQresultErrorMessage(result), error);
        PQclear(result);
    }
    if (!in_time && status == FIRE_OK)
        status = fail(db, "the server did not answer in time", error);
    return status;
}

/* --- scripts ---------------------------------------------------------------------------------- */

static enum fire_status postgres_script(struct sql_db *base, const char *text,
                                        struct fire_error *error)
{
    struct postgres_db *db = own(base);

    return finish(db, PQsendQuery(db->core, text), NULL, NULL, error);
}

struct number {
    bool found;
    int64_t value;
};

static bool take_number(PGresult *result, void *data)
{
    struct number *number = data;

    if (PQntuples(result) > 0 && PQnfields(result) > 0 && !PQgetisnull(result, 0, 0)) {
        number->found = true;
        number->value = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    }
    return true;
}

static enum fire_status postgres_number(struct sql_db *base, const char *text, int64_t *value,
                                        struct fire_error *error)
{
    struct postgres_db *db = own(base);
    struct number number = { 0 };
    enum fire_status status = finish(db, PQsendQuery(db->core, text), take_number, &number, error);

    if (status == FIRE_OK && !number.found)
        status = FIRE_NOT_FOUND;
    *value = number.value;
    return status;
}

static enum fire_status postgres_begin(struct sql_db *base, struct fire_error *error)
{
    enum fire_status status =
        postgres_script(base,
                        base->writer ? "BEGIN; SELECT pg_advisory_xact_lock(" LOCK_KEY ")"
                                     : "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                        error);

    own(base)->open = status == FIRE_OK;
    return status;
}

static enum fire_status postgres_commit(struct sql_db *base, struct fire_error *error)
{
    own(base)->open = false;
    return postgres_script(base, "COMMIT", error);
}

static void postgres_rollback(struct sql_db *base)
{
    struct postgres_db *db = own(base);

    if (db->open && !base->broken)
        (void)postgres_script(base, "ROLLBACK", NULL);
    db->open = false;
    db->period = NOTHING_PREPARED;
}

/* --- statements ------------------------------------------------------------------------------- */

static enum fire_status prepare(struct postgres_db *db, enum sql_statement which,
                                struct fire_error *error)
{
    const char *arguments = sql_sources[which].arguments;
    const int count = (int)strlen(arguments);
    Oid types[SQL_ARGUMENTS_MAX];
    char name[16];
    enum fire_status status;

    if (db->prepared[which])
        return FIRE_OK;
    for (int i = 0; i < count; i++)
        types[i] = arguments[i] == 'n' ? TYPE_NUMBER : arguments[i] == 't' ? TYPE_TEXT : TYPE_BLOB;
    snprintf(name, sizeof(name), "s%u", (unsigned)which);
    status = finish(db, PQsendPrepare(db->core, name, sql_sources[which].text, count, types), NULL,
                    NULL, error);
    db->prepared[which] = status == FIRE_OK;
    return status;
}

static int64_t read_integer(const char *data, int bytes)
{
    uint64_t large;
    uint32_t small;

    if (bytes == sizeof(large)) {
        memcpy(&large, data, sizeof(large));
        return (int64_t)be64toh(large);
    }
    if (bytes != sizeof(small))
        return 0;
    memcpy(&small, data, sizeof(small));
    return (int32_t)be32toh(small);
}

struct rows {
    sql_row row;
    void *data;
};

static bool take_rows(PGresult *result, void *data)
{
    const struct rows *rows = data;
    const size_t count = (size_t)PQnfields(result);
    struct sql_value columns[SQL_COLUMNS_MAX];

    FIRE_ASSERT(count <= SQL_COLUMNS_MAX);
    for (int r = 0; r < PQntuples(result); r++) {
        for (size_t i = 0; i < count; i++) {
            const int column = (int)i;
            const Oid type = PQftype(result, column);

            columns[i] = (struct sql_value){ .data = PQgetvalue(result, r, column),
                                             .bytes = (size_t)PQgetlength(result, r, column) };
            if (PQgetisnull(result, r, column))
                columns[i] = (struct sql_value){ .kind = SQL_NULL };
            else if (type == TYPE_TEXT)
                columns[i].kind = SQL_TEXT;
            else if (type == TYPE_BLOB)
                columns[i].kind = SQL_BLOB;
            else
                columns[i] = sql_number(read_integer(columns[i].data, (int)columns[i].bytes));
        }
        if (!rows->row(rows->data, columns, count))
            return false;
    }
    return true;
}

static enum fire_status postgres_run(struct sql_db *base, enum sql_statement which,
                                     const struct sql_value *arguments, sql_row row, void *data,
                                     struct fire_error *error)
{
    struct postgres_db *db = own(base);
    const int count = (int)strlen(sql_sources[which].arguments);
    const char *values[SQL_ARGUMENTS_MAX] = { NULL };
    int lengths[SQL_ARGUMENTS_MAX] = { 0 }, formats[SQL_ARGUMENTS_MAX] = { 0 };
    uint64_t numbers[SQL_ARGUMENTS_MAX];
    struct rows rows = { .row = row, .data = data };
    char name[16];
    enum fire_status status = prepare(db, which, error);

    if (status != FIRE_OK)
        return status;
    for (int i = 0; i < count; i++) {
        const struct sql_value *argument = &arguments[i];

        formats[i] = 1;
        if (argument->kind == SQL_NULL)
            continue;
        values[i] = argument->data;
        lengths[i] = (int)argument->bytes;
        if (argument->kind == SQL_NUMBER) {
            numbers[i] = htobe64((uint64_t)argument->number);
            values[i] = (const char *)&numbers[i];
            lengths[i] = sizeof(numbers[i]);
        }
    }
    snprintf(name, sizeof(name), "s%u", (unsigned)which);
    return finish(db, PQsendQueryPrepared(db->core, name, count, values, lengths, formats, 1),
                  row ? take_rows : NULL, &rows, error);
}

/* --- partitions ------------------------------------------------------------------------------- */

static enum fire_status postgres_prepare_time(struct sql_db *base, int64_t time_ms,
                                              struct fire_error *error)
{
    struct postgres_db *db = own(base);
    const int64_t period = time_ms / PERIOD_MS;
    static const char *const tables[] = { "chunk", "event" };
    enum fire_status status = FIRE_OK;

    if (db->period == period)
        return FIRE_OK;
    for (size_t i = 0; i < 2 && status == FIRE_OK; i++) {
        char text[256];

        snprintf(text, sizeof(text),
                 "CREATE TABLE IF NOT EXISTS %s_%" PRId64 " PARTITION OF %s FOR VALUES FROM "
                 "(%" PRId64 ") TO (%" PRId64 ")",
                 tables[i], period, tables[i], period * (int64_t)PERIOD_MS,
                 (period + 1) * (int64_t)PERIOD_MS);
        status = postgres_script(base, text, error);
    }
    if (status == FIRE_OK)
        db->period = period;
    return status;
}

static enum fire_status postgres_drop_before(struct sql_db *base, int64_t time_ms,
                                             struct fire_error *error)
{
    char text[SCRIPT_BYTES];

    snprintf(text, sizeof(text),
             "DO $$ DECLARE part TEXT; used BOOLEAN; BEGIN "
             "FOR part IN SELECT c.relname FROM pg_inherits i "
             "JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent "
             "WHERE p.relname IN ('chunk', 'event') AND p.relnamespace = 'fired'::regnamespace "
             "AND substring(c.relname FROM '[0-9]+$')::BIGINT < %" PRId64 " LOOP "
             "EXECUTE format('SELECT EXISTS(SELECT 1 FROM fired.%%I)', part) INTO used; "
             "IF NOT used THEN EXECUTE format('DROP TABLE fired.%%I', part); END IF; "
             "END LOOP; END $$",
             time_ms / (int64_t)PERIOD_MS);
    return postgres_script(base, text, error);
}

/* --- life ------------------------------------------------------------------------------------- */

static void postgres_close(struct sql_db *base)
{
    struct postgres_db *db = own(base);

    PQfinish(db->core);
    free(db);
}

static enum fire_status connect(struct postgres_db *db, const char *place, struct fire_error *error)
{
    const char *const names[] = { "dbname", "application_name", "client_encoding", NULL };
    const char *const values[] = { place, "fired", "UTF8", NULL };
    const uint64_t began_ns = clock_now_ns();
    PostgresPollingStatusType state = PGRES_POLLING_WRITING;

    db->core = PQconnectStartParams(names, values, 1);
    if (!db->core)
        return fire_fail_memory(error, sizeof(*db));
    if (PQstatus(db->core) == CONNECTION_BAD)
        return fail(db, PQerrorMessage(db->core), error);
    while (state != PGRES_POLLING_OK) {
        if (!wait_socket(db, state == PGRES_POLLING_READING ? POLLIN : POLLOUT, began_ns))
            return fail(db, "the server did not let us in in time", error);
        state = PQconnectPoll(db->core);
        if (state == PGRES_POLLING_FAILED)
            return fail(db, PQerrorMessage(db->core), error);
    }
    return PQsetnonblocking(db->core, 1) == 0 ? FIRE_OK : fail(db, PQerrorMessage(db->core), error);
}

static enum fire_status set_up_session(struct postgres_db *db, struct fire_error *error)
{
    char text[512];

    snprintf(text, sizeof(text),
             "SET search_path = fired; SET client_min_messages = warning; "
             "SET statement_timeout = %u; SET lock_timeout = %u; "
             "SET idle_in_transaction_session_timeout = %u",
             db->timeout_ms, db->timeout_ms, 2 * db->timeout_ms);
    return postgres_script(&db->base, text, error);
}

static enum fire_status set_up_writer(struct postgres_db *db, struct fire_error *error)
{
    int64_t tables = 0, version = 0;
    enum fire_status status = postgres_begin(&db->base, error);

    if (status == FIRE_OK)
        status = postgres_number(
            &db->base, "SELECT count(*) FROM pg_namespace WHERE nspname = 'fired'", &tables, error);
    if (status == FIRE_OK && tables == 0)
        status = postgres_script(&db->base, "CREATE SCHEMA fired", error);
    if (status == FIRE_OK)
        status = postgres_number(&db->base,
                                 "SELECT count(*) FROM pg_tables WHERE schemaname = 'fired' AND "
                                 "tablename = 'meta'",
                                 &tables, error);
    if (status == FIRE_OK && tables > 0)
        status = postgres_number(&db->base, "SELECT value FROM meta WHERE name = 'version'",
                                 &version, error);
    if (status == FIRE_OK)
        status = sql_migrate(&db->base, version, error);
    if (status == FIRE_OK)
        status = postgres_commit(&db->base, error);
    else
        postgres_rollback(&db->base);
    return status;
}

/* Shared, for a connection of ours that broke may hold it still. */
static enum fire_status set_up_owner(struct postgres_db *db, uint32_t owner,
                                     struct fire_error *error)
{
    char text[128];

    snprintf(text, sizeof(text), "SELECT pg_try_advisory_lock_shared(" LOCK_KEY ", %" PRIu32 ")",
             owner);
    return postgres_script(&db->base, text, error);
}

static enum fire_status set_up_reader(struct postgres_db *db, struct fire_error *error)
{
    int64_t version = 0;
    enum fire_status status = postgres_number(
        &db->base, "SELECT value FROM meta WHERE name = 'version'", &version, error);

    if (status == FIRE_OK && version != sql_schema_version(&sql_postgres))
        status = fire_fail(error, FIRE_IO, "history", "the history is being migrated");
    return status;
}

static enum fire_status postgres_open(const struct sql_settings *settings, struct sql_db **out,
                                      struct fire_error *error)
{
    struct postgres_db *db = calloc(1, sizeof(*db));
    enum fire_status status;

    *out = NULL;
    if (!db)
        return fire_fail_memory(error, sizeof(*db));
    db->base = (struct sql_db){ .backend = &sql_postgres, .writer = settings->writer };
    db->timeout_ms = settings->timeout_ms;
    db->stop = settings->stop;
    db->period = NOTHING_PREPARED;
    *out = &db->base;
    status = connect(db, settings->place, error);
    if (status == FIRE_OK)
        status = set_up_session(db, error);
    if (status == FIRE_OK)
        status = settings->writer ? set_up_writer(db, error) : set_up_reader(db, error);
    if (status == FIRE_OK && settings->writer && settings->owner > 0)
        status = set_up_owner(db, settings->owner, error);
    return status;
}

const struct sql_backend sql_postgres = {
    .name = "postgres",
    .open = postgres_open,
    .close = postgres_close,
    .begin = postgres_begin,
    .commit = postgres_commit,
    .rollback = postgres_rollback,
    .run = postgres_run,
    .script = postgres_script,
    .number = postgres_number,
    .migrations = migrations,
    .prepare_time = postgres_prepare_time,
    .drop_before = postgres_drop_before,
};
