/* history_sql: the statements of the store, written so that SQLite and PostgreSQL both take them.
 *
 * A run is owned by the daemon that wrote it last; the view `living` has the numbers of those that
 * write to this database now.
 *
 * A chunk is born between its run's first and last sighting; saying so lets PostgreSQL look into
 * few partitions only. */
#include "history_sql.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define RUN_COLUMNS                                                                                \
    "id, run, info, first_seen_ms, last_seen_ms, first_step, last_step, points, layers, "          \
    "pending_points, pending_rows, version, last_event, alerts_firing"

const struct sql_source sql_sources[SQL_STATEMENT_COUNT] = {
    [SQL_RUN_FIND] = { "SELECT " RUN_COLUMNS " FROM run WHERE tenant = $1 AND run = $2", "tt" },
    [SQL_RUN_LOCK] = { "SELECT " RUN_COLUMNS " FROM run WHERE tenant = $1 AND run = $2", "tt" },
    [SQL_RUN_COUNT] = { "SELECT count(*) FROM run WHERE tenant = $1", "t" },
    [SQL_RUN_ADD] = { "INSERT INTO run(tenant, run, search, first_seen_ms, last_seen_ms, "
                      "first_step, last_step, points, layers, pending_points, pending_rows, "
                      "version, alerts_firing) VALUES($1, $2, lower($3), $4, $4, -1, -1, 0, 0, 0, "
                      "0, 0, "
                      "0) ON CONFLICT(tenant, run) DO NOTHING",
                      "tttn" },
    [SQL_RUN_UPDATE] = { "UPDATE run SET last_seen_ms = $2, first_step = $3, last_step = $4, "
                         "points = $5, layers = $6, pending_points = $7, pending_rows = $8, "
                         "version = $9, owner = CASE WHEN $10 = 0 THEN owner ELSE $10 END "
                         "WHERE id = $1",
                         "nnnnnnnnnn" },
    [SQL_RUN_INFO] = { "UPDATE run SET info = $2, search = lower($3) WHERE id = $1", "nbt" },
    [SQL_RUN_PENDING] = { "UPDATE run SET pending_points = 0, pending_rows = 0, "
                          "version = version + 1 WHERE id = $1",
                          "n" },
    [SQL_RUN_EVENT] = { "UPDATE run SET last_event = $2, last_seen_ms = $3, version = version + 1 "
                        "WHERE id = $1",
                        "nbn" },
    [SQL_RUN_ALERTS] = { "UPDATE run SET alerts_firing = (SELECT count(*) FROM alert WHERE "
                         "run_id = $1), version = version + 1 WHERE id = $1",
                         "n" },
    [SQL_RUN_LIST] = { "SELECT " RUN_COLUMNS " FROM run WHERE tenant = $1 AND (last_seen_ms < $2 "
                       "OR (last_seen_ms = $2 AND id < $3)) AND search LIKE lower($4) ESCAPE '!' "
                       "ORDER BY last_seen_ms DESC, id DESC LIMIT $5",
                       "tnntn" },
    [SQL_RUN_TO_FOLD] = { "SELECT tenant, run FROM run WHERE pending_rows > 0 AND "
                          "last_seen_ms < $1 ORDER BY last_seen_ms LIMIT $2",
                          "nn" },
    [SQL_RUN_POINTS] = { "UPDATE run SET points = points - $2, version = version + 1 WHERE id = $1",
                         "nn" },
    [SQL_RUN_ADOPT] = { "UPDATE run SET owner = $1 WHERE owner <> $1 AND (alerts_firing > 0 OR "
                        "last_seen_ms >= (SELECT max(last_seen_ms) FROM run) - $2) AND "
                        "owner NOT IN (SELECT id FROM living)",
                        "nn" },
    [SQL_RUN_OLD] = { "SELECT id FROM run WHERE last_seen_ms < $1 ORDER BY last_seen_ms LIMIT $2",
                      "nn" },
    [SQL_RUN_DELETE] = { "DELETE FROM run WHERE id = $1", "n" },
    [SQL_LAYER_ADD] = { "INSERT INTO layer(run_id, name, position, shape) VALUES($1, $2, $3, $4) "
                        "RETURNING id",
                        "ntnb" },
    [SQL_LAYER_SHAPE] = { "UPDATE layer SET shape = $2 WHERE id = $1", "nb" },
    [SQL_LAYER_LIST] = { "SELECT id, name, position, shape FROM layer WHERE run_id = $1 "
                         "ORDER BY position",
                         "n" },
    [SQL_LAYER_DELETE] = { "DELETE FROM layer WHERE run_id = $1", "n" },
    [SQL_SERIES_ADD] = { "INSERT INTO series(run_id, layer_id, statistic, sealed_step) "
                         "VALUES($1, $2, $3, -1) RETURNING id",
                         "nnt" },
    [SQL_SERIES_LIST] = { "SELECT id, layer_id, statistic, sealed_step FROM series "
                          "WHERE run_id = $1 ORDER BY id",
                          "n" },
    [SQL_SERIES_SEAL] = { "UPDATE series SET sealed_step = $2 WHERE id = $1 AND sealed_step < $2",
                          "nn" },
    [SQL_SERIES_RECENT] = { "SELECT r.tenant, r.run, l.name FROM run r JOIN series s ON "
                            "s.run_id = r.id JOIN layer l ON l.id = s.layer_id WHERE "
                            "r.owner = $1 AND s.statistic = $2 AND r.last_seen_ms >= "
                            "(SELECT max(last_seen_ms) FROM run) - $3 "
                            "ORDER BY r.last_seen_ms DESC LIMIT $4",
                            "ntnn" },
    [SQL_SERIES_DELETE] = { "DELETE FROM series WHERE run_id = $1", "n" },
    [SQL_TAIL_LIST] = { "SELECT c.series_id, max(c.last_step) FROM chunk c "
                        "JOIN series s ON s.id = c.series_id WHERE s.run_id = $1 "
                        "GROUP BY c.series_id",
                        "n" },
    [SQL_CHUNK_FIND] = { "SELECT start_step, born_ms, raw FROM chunk WHERE series_id = $1 AND "
                         "start_step <= $2 AND born_ms BETWEEN $3 AND $4 "
                         "ORDER BY start_step DESC LIMIT 1",
                         "nnnn" },
    [SQL_CHUNK_NEXT] = { "SELECT start_step, born_ms, raw FROM chunk WHERE series_id = $1 AND "
                         "start_step > $2 AND born_ms BETWEEN $3 AND $4 "
                         "ORDER BY start_step LIMIT 1",
                         "nnnn" },
    [SQL_CHUNK_ADD] = { "INSERT INTO chunk(series_id, start_step, last_step, points, born_ms, "
                        "written_ms, coarse_level, fine_level, coarse, fine, raw) VALUES($1, $2, "
                        "$3, "
                        "$4, $5, $6, $7, $8, $9, $10, $11)",
                        "nnnnnnnnbbb" },
    [SQL_CHUNK_UPDATE] = { "UPDATE chunk SET start_step = $4, last_step = $5, points = $6, "
                           "written_ms = $7, coarse_level = $8, fine_level = $9, coarse = $10, "
                           "fine = $11, raw = $12 WHERE series_id = $1 AND start_step = $2 AND "
                           "born_ms = $3",
                           "nnnnnnnnnbbb" },
    /* The coarsest of what is kept whose cells are no larger than asked for; the points themselves
     * where the range begins or ends inside. */
    [SQL_CHUNK_RANGE] = { "SELECT CASE WHEN start_step < $2 OR last_step > $3 THEN "
                          "COALESCE(raw, fine) WHEN coarse_level <= $6 THEN coarse "
                          "WHEN fine_level <= $6 THEN fine ELSE COALESCE(raw, fine) END, "
                          "CASE WHEN raw IS NULL OR (start_step >= $2 AND last_step <= $3 AND "
                          "(coarse_level <= $6 OR fine_level <= $6)) THEN 1 ELSE 0 END "
                          "FROM chunk WHERE series_id = $1 AND last_step >= $2 AND "
                          "start_step <= $3 AND born_ms BETWEEN $4 AND $5 ORDER BY start_step",
                          "nnnnnn" },
    [SQL_CHUNK_TO_THIN] = { "SELECT c.series_id, c.start_step, c.last_step, c.born_ms, c.points, "
                            "c.fine, s.run_id FROM chunk c JOIN series s ON "
                            "s.id = c.series_id WHERE c.written_ms < $1 AND c.raw IS NOT NULL AND "
                            "c.fine IS NOT NULL ORDER BY c.series_id, c.start_step LIMIT $2",
                            "nn" },
    [SQL_CHUNK_THIN] = { "UPDATE chunk SET raw = NULL, points = $4 WHERE series_id = $1 AND "
                         "start_step = $2 AND born_ms = $3",
                         "nnnn" },
    [SQL_CHUNK_DELETE] = { "DELETE FROM chunk WHERE series_id IN (SELECT id FROM series WHERE "
                           "run_id = $1)",
                           "n" },
    [SQL_PENDING_ADD] = { "INSERT INTO pending(run_id, points, data) VALUES($1, $2, $3)", "nnb" },
    [SQL_PENDING_LIST] = { "SELECT data FROM pending WHERE run_id = $1 ORDER BY id", "n" },
    [SQL_PENDING_DELETE] = { "DELETE FROM pending WHERE run_id = $1", "n" },
    [SQL_EVENT_ADD] = { "INSERT INTO event(tenant, run, layer, kind, step, time_ms, data) "
                        "VALUES($1, $2, $3, $4, $5, $6, $7) RETURNING id",
                        "tttnnnb" },
    [SQL_EVENT_LIST] = { "SELECT id, data FROM event WHERE (tenant = $1 OR tenant = '') AND "
                         "id < $2 AND ($3 = '' OR run = $3) AND ($4 = '' OR layer = $4) AND "
                         "($5 = 0 OR kind = $5) ORDER BY id DESC LIMIT $6",
                         "tnttnn" },
    [SQL_EVENT_RANGE] = { "SELECT id, data FROM event WHERE tenant = $1 AND run = $2 AND "
                          "step BETWEEN $3 AND $4 ORDER BY id DESC LIMIT $5",
                          "ttnnn" },
    [SQL_EVENT_OLD] = { "DELETE FROM event WHERE time_ms < $1", "n" },
    [SQL_ALERT_SET] = { "INSERT INTO alert(run_id, rule, layer) VALUES($1, $2, $3) ON "
                        "CONFLICT(run_id, rule, layer) DO NOTHING",
                        "ntt" },
    [SQL_ALERT_CLEAR] = { "DELETE FROM alert WHERE run_id = $1 AND rule = $2 AND layer = $3",
                          "ntt" },
    [SQL_ALERT_COUNT] = { "SELECT count(*) FROM alert WHERE run_id = $1", "n" },
    [SQL_ALERT_LIST] = { "SELECT r.tenant, r.run, a.layer, a.rule FROM alert a JOIN run r ON "
                         "r.id = a.run_id WHERE r.owner = $1 ORDER BY a.run_id, a.rule, a.layer "
                         "LIMIT $2",
                         "nn" },
    [SQL_ALERT_DELETE] = { "DELETE FROM alert WHERE run_id = $1", "n" },
    [SQL_PROBE] = { "UPDATE meta SET value = $1 WHERE name = 'probed_ms'", "n" },
};

struct sql_value sql_text(const char *text)
{
    return (struct sql_value){ .kind = SQL_TEXT, .data = text, .bytes = strlen(text) };
}

struct sql_value sql_blob(const void *data, size_t bytes)
{
    return (
        struct sql_value){ .kind = bytes > 0 ? SQL_BLOB : SQL_NULL, .data = data, .bytes = bytes };
}

enum fire_status sql_run(struct sql_db *db, enum sql_statement statement,
                         const struct sql_value *arguments, size_t count, sql_row row, void *data,
                         struct fire_error *error)
{
    FIRE_ASSERT(count == strlen(sql_sources[statement].arguments));
    return db->backend->run(db, statement, arguments, row, data, error);
}

int64_t sql_schema_version(const struct sql_backend *backend)
{
    int64_t version = 0;

    while (backend->migrations[version])
        version++;
    return version;
}

enum fire_status sql_migrate(struct sql_db *db, int64_t now, struct fire_error *error)
{
    const int64_t wanted = sql_schema_version(db->backend);
    char text[128];

    if (now > wanted)
        return fire_fail(error, FIRE_DENIED, "history",
                         "the history was made by a newer fired: its version is %" PRId64
                         " and this one knows %" PRId64 "; start the newer one, or give another "
                         "history",
                         now, wanted);
    for (int64_t version = now; version < wanted; version++) {
        enum fire_status status = db->backend->script(db, db->backend->migrations[version], error);

        if (status != FIRE_OK)
            return status;
    }
    if (now == wanted)
        return FIRE_OK;
    snprintf(text, sizeof(text), "UPDATE meta SET value = %" PRId64 " WHERE name = 'version'",
             wanted);
    return db->backend->script(db, text, error);
}
