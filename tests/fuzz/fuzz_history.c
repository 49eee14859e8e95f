/* Points as a damaged database or a stranger may send them. The first byte says what the rest is: a
 * chunk, a roll-up, a log, or a ReportRequest. What must hold:
 *   what is accepted has steps that rise from 0 on and finite values;
 *   a chunk that is accepted comes back the same when it is packed again;
 *   a report that passes the check has as many steps as values and no text with a NUL;
 *   a refusal has a message. */
#include <grpc/grpc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "history_chunk.h"
#include "monitor_check.h"
#include "rpc_core.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void points_are_good(const struct chunk_points *points)
{
    for (size_t i = 0; i < points->count; i++) {
        FIRE_ASSERT(points->steps[i] >= 0);
        FIRE_ASSERT(i == 0 || points->steps[i] > points->steps[i - 1]);
        FIRE_ASSERT(isfinite(points->values[i]));
    }
}

static void try_chunk(const uint8_t *data, size_t size)
{
    struct chunk_points points = { 0 }, again = { 0 };
    struct chunk_bytes bytes = { 0 };

    if (chunk_unpack(data, size, &points) == FIRE_OK) {
        points_are_good(&points);
        FIRE_ASSERT(chunk_pack(points.steps, points.values, points.count, &bytes) == FIRE_OK);
        FIRE_ASSERT(chunk_unpack(bytes.data, bytes.used, &again) == FIRE_OK);
        FIRE_ASSERT(again.count == points.count);
        FIRE_ASSERT(memcmp(again.steps, points.steps, points.count * sizeof(int64_t)) == 0);
        FIRE_ASSERT(memcmp(again.values, points.values, points.count * sizeof(double)) == 0);
    }
    chunk_points_release(&points);
    chunk_points_release(&again);
    chunk_bytes_release(&bytes);
}

static void try_cells(const uint8_t *data, size_t size)
{
    struct chunk_cells cells = { .level = size > 0 ? data[0] % CHUNK_LEVEL_MAX : 0 };

    if (chunk_unpack_cells(data, size, &cells) == FIRE_OK) {
        for (size_t i = 0; i < cells.count; i++) {
            FIRE_ASSERT(cells.cells[i].step >= 0 && cells.cells[i].count > 0);
            FIRE_ASSERT(i == 0 || cells.cells[i].step > cells.cells[i - 1].step);
        }
    }
    chunk_cells_release(&cells);
}

static void try_log(const uint8_t *data, size_t size)
{
    struct chunk_log log = { .at = data, .end = data + size };
    struct chunk_points points = { 0 };

    while (chunk_log_next(&log) == FIRE_OK) {
        points.count = 0;
        if (chunk_log_points(&log, &points) == FIRE_OK)
            points_are_good(&points);
    }
    chunk_points_release(&points);
}

static void try_report(const uint8_t *data, size_t size)
{
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)data, size);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    struct fire_error error = { 0 };
    Fire__V1__ReportRequest *report =
        (Fire__V1__ReportRequest *)rpc_small_unpack(&fire__v1__report_request__descriptor, buffer);

    grpc_slice_unref(slice);
    if (!report)
        return;
    if (monitor_check(MONITOR_REPORT, &report->base, &error) == FIRE_OK) {
        FIRE_ASSERT(report->run[0] != '\0');
        for (size_t i = 0; i < report->n_series; i++) {
            FIRE_ASSERT(report->series[i]->n_steps == report->series[i]->n_values);
            FIRE_ASSERT(monitor_statistic_valid(report->series[i]->statistic));
        }
    } else {
        FIRE_ASSERT(error.message[0] != '\0');
    }
    fire__v1__report_request__free_unpacked(report, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const tries[])(const uint8_t *data, size_t size) = { try_chunk, try_cells,
                                                                       try_log, try_report };

    if (size > 0)
        tries[data[0] % 4](data + 1, size - 1);
    return 0;
}
