/* metrics: one table of families, and for each a table of series that only grows.
 *
 * Counting takes no lock: a series is found through `index`, an open-addressed table of positions
 * in `series`, and its numbers are atomics. The first use of a series takes `lock` to add it; it is
 * then published by a release store and stays until the end, so readers need only acquire.
 *
 * Invariants:
 *   series[0] of a family with labels is "other": made at start, shown once it was used, so that
 *     neither a full table nor a failed allocation loses a count
 *   series[0] of a family without labels is its only one
 *   index[i] is 0 (empty) or 1 + a position below series_count; it changes once, from 0
 *   a histogram's counts are of their own bucket; the text adds them up */
#include "metrics.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LABELS_MAX      2
#define LABEL_BYTES_MAX 127u  /* a longer value is counted under "other" */
#define INDEX_SLOTS     2048u /* a power of two, twice METRICS_SERIES_MAX: probes stay short */
#define NUMBER_BYTES    32
#define OTHER           "other"

_Static_assert(INDEX_SLOTS >= 2 * METRICS_SERIES_MAX, "probes must end at an empty slot");
_Static_assert((INDEX_SLOTS & (INDEX_SLOTS - 1)) == 0, "the hash is masked");

enum kind { COUNTER, GAUGE, HISTOGRAM };

struct buckets {
    const double *bounds; /* rising; +Inf is implied */
    size_t count;
};

struct family {
    const char *name;
    enum kind kind;
    const char *labels[LABELS_MAX]; /* NULL: none */
    const struct buckets *buckets;  /* of a histogram */
    const char *help;
};

#define BOUNDS(...)                                                                                \
    {                                                                                              \
        (const double[]){ __VA_ARGS__ }, sizeof((const double[]){ __VA_ARGS__ }) / sizeof(double)  \
    }

static const struct buckets seconds =
    BOUNDS(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1,
           0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0);
static const struct buckets lateness = BOUNDS(5e-4, 1e-3, 2.5e-3, 5e-3, 7.5e-3, 1e-2, 1.25e-2,
                                              1.5e-2, 2e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0);
static const struct buckets sizes = BOUNDS(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096);

static const struct family families[METRIC_COUNT] = {
    [METRIC_CALLS] = { "fired_calls_total",
                       COUNTER,
                       { "method", "code" },
                       NULL,
                       "Calls that have ended, by their gRPC status code." },
    [METRIC_CALL_SECONDS] = { "fired_call_seconds",
                              HISTOGRAM,
                              { "method" },
                              &seconds,
                              "Time from a call's arrival to its status." },
    [METRIC_CALLS_RUNNING] = { "fired_calls_running",
                               GAUGE,
                               { NULL },
                               NULL,
                               "Calls that have arrived and not ended." },
    [METRIC_REFUSALS] = { "fired_refusals_total",
                          COUNTER,
                          { "reason" },
                          NULL,
                          "Calls and tensors that were refused, by the reason given." },
    [METRIC_BYTES_RECEIVED] = { "fired_received_bytes_total",
                                COUNTER,
                                { "tenant" },
                                NULL,
                                "Bytes of messages received." },
    [METRIC_BYTES_SENT] = { "fired_sent_bytes_total",
                            COUNTER,
                            { "tenant" },
                            NULL,
                            "Bytes of messages sent." },
    [METRIC_CUT_OFF] = { "fired_callers_cut_off_total",
                         COUNTER,
                         { "reason" },
                         NULL,
                         "Callers cut off because they stopped reading or sending." },
    [METRIC_EXPIRED_LATENESS] = { "fired_deadline_lateness_seconds",
                                  HISTOGRAM,
                                  { NULL },
                                  &lateness,
                                  "How long after its deadline an expired call got its status." },
    [METRIC_JOBS] = { "fired_matrices_total", COUNTER, { "tenant" }, NULL, "Matrices computed." },
    [METRIC_JOBS_DROPPED] = { "fired_matrices_dropped_total",
                              COUNTER,
                              { "reason" },
                              NULL,
                              "Matrices dropped before they were computed, or meanwhile." },
    [METRIC_JOBS_LATE] = { "fired_matrices_computed_late_total",
                           COUNTER,
                           { NULL },
                           NULL,
                           "Matrices whose computing began after their deadline." },
    [METRIC_JOBS_WAITING] = { "fired_matrices_waiting",
                              GAUGE,
                              { NULL },
                              NULL,
                              "Matrices that wait for a device." },
    [METRIC_JOBS_RUNNING] = { "fired_matrices_running",
                              GAUGE,
                              { NULL },
                              NULL,
                              "Matrices on a device now." },
    [METRIC_BATCHES] = { "fired_batches_total",
                         COUNTER,
                         { "reason" },
                         NULL,
                         "Batches given to a device, by why they were closed." },
    [METRIC_BATCH_SIZE] = { "fired_batch_size",
                            HISTOGRAM,
                            { "class" },
                            &sizes,
                            "Matrices in a batch, for small and for large matrices." },
    [METRIC_QUEUE_SECONDS] = { "fired_queue_seconds",
                               HISTOGRAM,
                               { "priority" },
                               &seconds,
                               "Time a matrix waited for its batch to start." },
    [METRIC_COMPUTE_SECONDS] = { "fired_compute_seconds",
                                 HISTOGRAM,
                                 { "device" },
                                 &seconds,
                                 "Time a device took for a batch." },
    [METRIC_DEVICE_SECONDS] = { "fired_device_seconds_total",
                                COUNTER,
                                { "tenant" },
                                NULL,
                                "Device time used." },
    [METRIC_DEVICE_UP] = { "fired_device_up",
                           GAUGE,
                           { "device", "path" },
                           NULL,
                           "1 while the device is in service." },
    [METRIC_NOT_CONVERGED] = { "fired_not_converged_total",
                               COUNTER,
                               { NULL },
                               NULL,
                               "Matrices that did not reach their target." },
    [METRIC_RANK_DEFECTS] = { "fired_rank_defects_total",
                              COUNTER,
                              { NULL },
                              NULL,
                              "Matrices found without full rank." },
    [METRIC_MEMORY_BUDGET] = { "fired_memory_budget_bytes",
                               GAUGE,
                               { NULL },
                               NULL,
                               "Memory that matrices and messages may take." },
    [METRIC_SLAB_BYTES] = { "fired_slab_bytes",
                            GAUGE,
                            { NULL },
                            NULL,
                            "Memory taken by matrices." },
    [METRIC_MESSAGE_BYTES] = { "fired_message_bytes",
                               GAUGE,
                               { NULL },
                               NULL,
                               "Memory taken by messages received or to be sent." },
    [METRIC_RESIDENT_BYTES] = { "fired_resident_bytes",
                                GAUGE,
                                { NULL },
                                NULL,
                                "Resident memory of the process." },
    [METRIC_START_TIME] = { "fired_start_time_seconds",
                            GAUGE,
                            { NULL },
                            NULL,
                            "When the daemon started, in seconds since 1970." },
    [METRIC_BUILD] = { "fired_build_info",
                       GAUGE,
                       { "version", "path" },
                       NULL,
                       "1; its labels say which version runs, and on which code path." },
    [METRIC_DRAINING] = { "fired_draining",
                          GAUGE,
                          { NULL },
                          NULL,
                          "1 while calls are refused because the daemon is going down." },
    [METRIC_RELOADS] = { "fired_reloads_total",
                         COUNTER,
                         { "result" },
                         NULL,
                         "Times the settings were read again." },
    [METRIC_HTTP] = { "fired_http_requests_total",
                      COUNTER,
                      { "path", "code" },
                      NULL,
                      "HTTP requests answered." },
    [METRIC_HISTORY_UP] = { "fired_history_up",
                            GAUGE,
                            { NULL },
                            NULL,
                            "1 while the history can be written." },
    [METRIC_HISTORY_POINTS] = { "fired_history_points_total",
                                COUNTER,
                                { NULL },
                                NULL,
                                "Points stored in the history." },
    [METRIC_HISTORY_DROPPED] = { "fired_history_dropped_total",
                                 COUNTER,
                                 { NULL },
                                 NULL,
                                 "Recordings that found no room and were dropped." },
    [METRIC_ALERTS_FIRING] = { "fired_alerts_firing",
                               GAUGE,
                               { "rule" },
                               NULL,
                               "Series for which an alert's rule fires." },
    [METRIC_ALERT_CHANGES] = { "fired_alert_changes_total",
                               COUNTER,
                               { "rule", "state" },
                               NULL,
                               "Times an alert of a series came into a state." },
    [METRIC_WEBHOOKS] = { "fired_webhooks_total",
                          COUNTER,
                          { "result" },
                          NULL,
                          "Deliveries to the webhook of alerts." },
};

struct series {
    const char *labels[LABELS_MAX]; /* into `text` */
    _Atomic uint64_t value;         /* bits of a double; of a histogram its sum */
    atomic_bool used;
    _Atomic uint64_t *counts; /* of a histogram: one a bound, and +Inf */
    char *text;
};

struct table {
    _Atomic uint32_t series_count;
    struct series **series;  /* METRICS_SERIES_MAX, or 1 without labels */
    _Atomic uint16_t *index; /* INDEX_SLOTS, or NULL without labels */
};

struct metrics {
    pthread_mutex_t lock; /* for adding a series */
    struct table tables[METRIC_COUNT];
};

static void series_close(struct series *series)
{
    if (!series)
        return;
    free(series->counts);
    free(series->text);
    free(series);
}

static struct series *series_open(const struct family *family, const char *first,
                                  const char *second)
{
    const size_t first_bytes = strlen(first) + 1;
    const size_t second_bytes = strlen(second) + 1;
    struct series *series = calloc(1, sizeof(*series));

    if (!series)
        return NULL;
    series->text = malloc(first_bytes + second_bytes);
    if (family->buckets)
        series->counts = calloc(family->buckets->count + 1, sizeof(*series->counts));
    if (!series->text || (family->buckets && !series->counts)) {
        series_close(series);
        return NULL;
    }
    memcpy(series->text, first, first_bytes);
    memcpy(series->text + first_bytes, second, second_bytes);
    series->labels[0] = series->text;
    series->labels[1] = series->text + first_bytes;
    return series;
}

/* Makes the empty table of a family with its first series. */
static bool table_init(struct table *table, const struct family *family)
{
    const bool labelled = family->labels[0] != NULL;
    const char *first = labelled ? OTHER : "";
    const char *second = family->labels[1] ? OTHER : "";

    table->series = calloc(labelled ? METRICS_SERIES_MAX : 1, sizeof(struct series *));
    if (!table->series)
        return false;
    if (labelled) {
        table->index = calloc(INDEX_SLOTS, sizeof(*table->index));
        if (!table->index)
            return false;
    }
    table->series[0] = series_open(family, first, second);
    if (!table->series[0])
        return false;
    atomic_store_explicit(&table->series[0]->used, !labelled, memory_order_relaxed);
    atomic_store_explicit(&table->series_count, 1, memory_order_release);
    return true;
}

static void table_release(struct table *table)
{
    const uint32_t count = atomic_load_explicit(&table->series_count, memory_order_acquire);

    for (uint32_t i = 0; i < count; i++)
        series_close(table->series[i]);
    free(table->series);
    free(table->index);
}

enum fire_status metrics_open(struct metrics **out)
{
    struct metrics *metrics = calloc(1, sizeof(*metrics));

    *out = NULL;
    if (!metrics)
        return FIRE_NO_MEMORY;
    if (pthread_mutex_init(&metrics->lock, NULL) != 0) {
        free(metrics);
        return FIRE_NO_MEMORY;
    }
    for (int i = 0; i < METRIC_COUNT; i++)
        if (!table_init(&metrics->tables[i], &families[i])) {
            metrics_close(metrics);
            return FIRE_NO_MEMORY;
        }
    *out = metrics;
    return FIRE_OK;
}

void metrics_close(struct metrics *metrics)
{
    if (!metrics)
        return;
    for (int i = 0; i < METRIC_COUNT; i++)
        table_release(&metrics->tables[i]);
    pthread_mutex_destroy(&metrics->lock);
    free(metrics);
}

/* Mixes a label into the hash (FNV-1a). False when the value is no label of ours: too long, or not
 * printable ASCII, which every tenant, method, reason and path is. */
static bool hash_label(const char *value, uint64_t *hash)
{
    size_t i;

    for (i = 0; value[i] != '\0'; i++) {
        const unsigned char byte = (unsigned char)value[i];

        if (byte < 0x20 || byte > 0x7e || i >= LABEL_BYTES_MAX)
            return false;
        *hash = (*hash ^ byte) * 0x100000001b3ull;
    }
    *hash = (*hash ^ 0xff) * 0x100000001b3ull; /* so that "ab","c" is not "a","bc" */
    return true;
}

/* The slot of the series, or the empty one where it belongs. */
static uint32_t find_slot(const struct table *table, uint64_t hash, const char *first,
                          const char *second, struct series **found)
{
    uint32_t slot = (uint32_t)(hash ^ (hash >> 32)) & (INDEX_SLOTS - 1);

    for (;; slot = (slot + 1) & (INDEX_SLOTS - 1)) {
        const uint16_t position = atomic_load_explicit(&table->index[slot], memory_order_acquire);
        struct series *series;

        *found = NULL;
        if (position == 0)
            return slot; /* there always is one: the table is at most half full */
        series = table->series[position - 1];
        if (strcmp(series->labels[0], first) == 0 && strcmp(series->labels[1], second) == 0) {
            *found = series;
            return slot;
        }
    }
}

/* Adds a series, or returns the one that another thread added meanwhile; "other" when there is no
 * room. */
static struct series *add_series(struct metrics *metrics, enum metric id, uint64_t hash,
                                 const char *first, const char *second)
{
    struct table *table = &metrics->tables[id];
    struct series *series;
    uint32_t slot, count;

    pthread_mutex_lock(&metrics->lock);
    slot = find_slot(table, hash, first, second, &series);
    count = atomic_load_explicit(&table->series_count, memory_order_relaxed);
    if (!series && count < METRICS_SERIES_MAX)
        series = series_open(&families[id], first, second);
    if (series && atomic_load_explicit(&table->index[slot], memory_order_relaxed) == 0) {
        table->series[count] = series;
        atomic_store_explicit(&table->series_count, count + 1, memory_order_release);
        atomic_store_explicit(&table->index[slot], (uint16_t)(count + 1), memory_order_release);
    }
    pthread_mutex_unlock(&metrics->lock);
    return series ? series : table->series[0];
}

enum lookup { LOOK_ONLY, ADD_MISSING };

static struct series *find_series(struct metrics *metrics, enum metric id, const char *first,
                                  const char *second, enum lookup lookup)
{
    const struct family *family = &families[id];
    struct table *table = &metrics->tables[id];
    uint64_t hash = 0xcbf29ce484222325ull;
    struct series *series;

    if (!family->labels[0])
        return table->series[0];
    first = first ? first : "";
    second = family->labels[1] && second ? second : "";
    if (!hash_label(first, &hash) || !hash_label(second, &hash))
        return table->series[0];
    if (strcmp(first, OTHER) == 0 && (!family->labels[1] || strcmp(second, OTHER) == 0))
        return table->series[0];
    find_slot(table, hash, first, second, &series);
    if (!series && lookup == ADD_MISSING)
        series = add_series(metrics, id, hash, first, second);
    return series;
}

static uint64_t bits_of(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static double double_of(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void atomic_add(_Atomic uint64_t *bits, double amount)
{
    uint64_t before = atomic_load_explicit(bits, memory_order_relaxed);

    while (!atomic_compare_exchange_weak_explicit(bits, &before,
                                                  bits_of(double_of(before) + amount),
                                                  memory_order_relaxed, memory_order_relaxed))
        continue;
}

/* A load first: a store would take the cache line from the other threads each time. */
static void mark_used(struct series *series)
{
    if (!atomic_load_explicit(&series->used, memory_order_relaxed))
        atomic_store_explicit(&series->used, true, memory_order_relaxed);
}

void metrics_add(struct metrics *metrics, enum metric id, const char *first, const char *second,
                 double amount)
{
    struct series *series;

    if (!metrics)
        return;
    FIRE_ASSERT(families[id].kind != HISTOGRAM);
    FIRE_ASSERT(families[id].kind == GAUGE || amount >= 0.0);
    series = find_series(metrics, id, first, second, ADD_MISSING);
    atomic_add(&series->value, amount);
    mark_used(series);
}

void metrics_set(struct metrics *metrics, enum metric id, const char *first, const char *second,
                 double value)
{
    struct series *series;

    if (!metrics)
        return;
    FIRE_ASSERT(families[id].kind == GAUGE);
    series = find_series(metrics, id, first, second, ADD_MISSING);
    atomic_store_explicit(&series->value, bits_of(value), memory_order_relaxed);
    mark_used(series);
}

void metrics_observe(struct metrics *metrics, enum metric id, const char *first, double value)
{
    const struct buckets *buckets = families[id].buckets;
    struct series *series;
    size_t i = 0;

    if (!metrics)
        return;
    FIRE_ASSERT(families[id].kind == HISTOGRAM);
    FIRE_ASSERT(!isnan(value)); /* it would spoil the sum for ever */
    series = find_series(metrics, id, first, NULL, ADD_MISSING);
    while (i < buckets->count && value > buckets->bounds[i])
        i++;
    atomic_fetch_add_explicit(&series->counts[i], 1, memory_order_relaxed);
    atomic_add(&series->value, value);
    mark_used(series);
}

static double series_value(const struct family *family, const struct series *series)
{
    uint64_t count = 0;

    if (family->kind != HISTOGRAM)
        return double_of(atomic_load_explicit(&series->value, memory_order_relaxed));
    for (size_t i = 0; i <= family->buckets->count; i++)
        count += atomic_load_explicit(&series->counts[i], memory_order_relaxed);
    return (double)count;
}

double metrics_value(struct metrics *metrics, enum metric id, const char *first, const char *second)
{
    const struct series *series;

    if (!metrics)
        return 0.0;
    series = find_series(metrics, id, first, second, LOOK_ONLY);
    return series ? series_value(&families[id], series) : 0.0;
}

void metrics_each(struct metrics *metrics, enum metric id,
                  void (*each)(void *data, const char *first, const char *second, double value),
                  void *data)
{
    struct table *table;
    uint32_t count;

    if (!metrics)
        return;
    table = &metrics->tables[id];
    count = atomic_load_explicit(&table->series_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++) {
        const struct series *series = table->series[i];

        if (atomic_load_explicit(&series->used, memory_order_relaxed))
            each(data, series->labels[0], series->labels[1], series_value(&families[id], series));
    }
}

/* The shortest text that reads back to the same number. */
static void write_number(FILE *file, double value)
{
    char text[NUMBER_BYTES];

    if (isnan(value)) {
        fputs("NaN", file);
        return;
    }
    if (isinf(value)) {
        fputs(value > 0 ? "+Inf" : "-Inf", file);
        return;
    }
    for (int digits = DBL_DIG; digits <= DBL_DECIMAL_DIG; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, file);
}

static void write_label_value(FILE *file, const char *value)
{
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            fputc('\\', file);
        fputc(*value, file);
    }
}

/* The name and its labels, with `bound` as the label le unless it is NULL. */
static void write_name(FILE *file, const struct family *family, const struct series *series,
                       const char *suffix, const double *bound)
{
    char separator = '{';

    fprintf(file, "%s%s", family->name, suffix);
    for (int i = 0; i < LABELS_MAX && family->labels[i]; i++) {
        fprintf(file, "%c%s=\"", separator, family->labels[i]);
        write_label_value(file, series->labels[i]);
        fputc('"', file);
        separator = ',';
    }
    if (bound) {
        fprintf(file, "%cle=\"", separator);
        write_number(file, *bound);
        fputc('"', file);
        separator = ',';
    }
    fputs(separator == '{' ? " " : "} ", file);
}

static void write_histogram(FILE *file, const struct family *family, const struct series *series)
{
    const struct buckets *buckets = family->buckets;
    const double infinity = INFINITY;
    uint64_t count = 0;

    for (size_t i = 0; i <= buckets->count; i++) {
        count += atomic_load_explicit(&series->counts[i], memory_order_relaxed);
        write_name(file, family, series, "_bucket",
                   i < buckets->count ? &buckets->bounds[i] : &infinity);
        fprintf(file, "%" PRIu64 "\n", count);
    }
    write_name(file, family, series, "_sum", NULL);
    write_number(file, double_of(atomic_load_explicit(&series->value, memory_order_relaxed)));
    fputc('\n', file);
    write_name(file, family, series, "_count", NULL);
    fprintf(file, "%" PRIu64 "\n", count);
}

static void write_family(FILE *file, const struct family *family, const struct table *table)
{
    static const char *const kinds[] = { "counter", "gauge", "histogram" };
    const uint32_t count = atomic_load_explicit(&table->series_count, memory_order_acquire);

    fprintf(file, "# HELP %s %s\n# TYPE %s %s\n", family->name, family->help, family->name,
            kinds[family->kind]);
    for (uint32_t i = 0; i < count; i++) {
        const struct series *series = table->series[i];

        if (!atomic_load_explicit(&series->used, memory_order_relaxed))
            continue;
        if (family->kind == HISTOGRAM) {
            write_histogram(file, family, series);
            continue;
        }
        write_name(file, family, series, "", NULL);
        write_number(file, series_value(family, series));
        fputc('\n', file);
    }
}

enum fire_status metrics_text(struct metrics *metrics, char **text, size_t *bytes)
{
    FILE *file;
    bool failed;

    *text = NULL;
    *bytes = 0;
    file = open_memstream(text, bytes);
    if (!file)
        return FIRE_NO_MEMORY;
    for (int i = 0; metrics && i < METRIC_COUNT; i++)
        write_family(file, &families[i], &metrics->tables[i]);
    failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) {
        free(*text);
        *text = NULL;
        *bytes = 0;
        return FIRE_NO_MEMORY;
    }
    return FIRE_OK;
}
