/* history_chunk: points as bytes.
 *
 *     chunk    varint count, zigzag first step, stride, values
 *     stride   varint d > 0: each step is d after the last; 0: count-1 varints of differences
 *     cells    varint level, varint count, per cell: varint difference of its number (the first:
 *              zigzag), varint first step within it, varint points, min, max, mean
 *     log      per series: varint id, varint count, steps as above, values
 *
 * Numbers are little-endian. Steps rise strictly, so a difference is never 0. */
#include "history_chunk.h"

#include <endian.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VARINT_BYTES_MAX 10u
#define ROOM_FIRST       64u

static enum fire_status fail_format(void)
{
    return FIRE_IO;
}

/* --- storage ---------------------------------------------------------------------------------- */

void chunk_bytes_release(struct chunk_bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct chunk_bytes){ 0 };
}

void chunk_points_release(struct chunk_points *points)
{
    free(points->steps);
    free(points->values);
    *points = (struct chunk_points){ 0 };
}

void chunk_cells_release(struct chunk_cells *cells)
{
    free(cells->cells);
    *cells = (struct chunk_cells){ .level = cells->level };
}

static bool bytes_grow(struct chunk_bytes *bytes, size_t more)
{
    size_t room = bytes->room ? bytes->room : ROOM_FIRST;
    uint8_t *grown;

    if (more <= bytes->room - bytes->used)
        return true;
    while (room - bytes->used < more)
        room *= 2;
    grown = realloc(bytes->data, room);
    if (!grown)
        return false;
    bytes->data = grown;
    bytes->room = room;
    return true;
}

static bool points_grow(struct chunk_points *points, size_t more)
{
    size_t room = points->room ? points->room : ROOM_FIRST;
    int64_t *steps;
    double *values;

    if (more <= points->room - points->count)
        return true;
    while (room - points->count < more)
        room *= 2;
    steps = realloc(points->steps, room * sizeof(*steps));
    if (!steps)
        return false;
    points->steps = steps;
    values = realloc(points->values, room * sizeof(*values));
    if (!values)
        return false;
    points->values = values;
    points->room = room;
    return true;
}

enum fire_status chunk_points_add(struct chunk_points *points, int64_t step, double value)
{
    if (points->count == points->room && !points_grow(points, 1))
        return FIRE_NO_MEMORY;
    points->steps[points->count] = step;
    points->values[points->count++] = value;
    return FIRE_OK;
}

/* Weights below one, so that the mean of the largest numbers does not overflow. */
static void cell_merge(struct chunk_cell *cell, const struct chunk_cell *other)
{
    const double all = (double)(cell->count + other->count);

    cell->mean =
        cell->mean * ((double)cell->count / all) + other->mean * ((double)other->count / all);
    cell->minimum = fmin(cell->minimum, other->minimum);
    cell->maximum = fmax(cell->maximum, other->maximum);
    cell->count += other->count;
}

enum fire_status chunk_cells_add(struct chunk_cells *cells, const struct chunk_cell *cell)
{
    if (cells->count > 0) {
        struct chunk_cell *last = &cells->cells[cells->count - 1];

        if (last->step >> cells->level == cell->step >> cells->level) {
            cell_merge(last, cell);
            return FIRE_OK;
        }
    }
    if (cells->count == cells->room) {
        const size_t room = cells->room ? 2 * cells->room : ROOM_FIRST;
        struct chunk_cell *grown = realloc(cells->cells, room * sizeof(*grown));

        if (!grown)
            return FIRE_NO_MEMORY;
        cells->cells = grown;
        cells->room = room;
    }
    cells->cells[cells->count++] = *cell;
    return FIRE_OK;
}

uint32_t chunk_level(int64_t first, int64_t last, uint64_t cells_max)
{
    uint32_t level = 0;

    FIRE_ASSERT(cells_max > 0);
    while (level < CHUNK_LEVEL_MAX &&
           (uint64_t)(last >> level) - (uint64_t)(first >> level) >= cells_max)
        level++;
    return level;
}

/* --- numbers ---------------------------------------------------------------------------------- */

/* There is room. */
static void put_varint(struct chunk_bytes *bytes, uint64_t value)
{
    while (value >= 0x80) {
        bytes->data[bytes->used++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    bytes->data[bytes->used++] = (uint8_t)value;
}

static void put_double(struct chunk_bytes *bytes, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    bits = htole64(bits);
    memcpy(bytes->data + bytes->used, &bits, sizeof(bits));
    bytes->used += sizeof(bits);
}

static uint64_t zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (value < 0 ? UINT64_MAX : 0);
}

static int64_t unzigzag(uint64_t value)
{
    return (int64_t)((value >> 1) ^ (0 - (value & 1)));
}

static bool get_varint(const uint8_t **at, const uint8_t *end, uint64_t *value)
{
    uint64_t sum = 0;

    for (uint32_t shift = 0; shift < 64 && *at < end; shift += 7) {
        const uint8_t byte = *(*at)++;

        if (shift == 63 && byte > 1)
            return false;
        sum |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = sum;
            return true;
        }
    }
    return false;
}

static double read_double(const uint8_t *at)
{
    uint64_t bits;
    double value;

    memcpy(&bits, at, sizeof(bits));
    bits = le64toh(bits);
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* --- steps and values ------------------------------------------------------------------------- */

static uint64_t constant_stride(const int64_t *steps, size_t count)
{
    const uint64_t stride = count > 1 ? (uint64_t)steps[1] - (uint64_t)steps[0] : 1;

    for (size_t i = 2; i < count; i++)
        if ((uint64_t)steps[i] - (uint64_t)steps[i - 1] != stride)
            return 0;
    return stride;
}

/* Count, steps, values. */
static enum fire_status put_points(struct chunk_bytes *bytes, const int64_t *steps,
                                   const double *values, size_t count)
{
    uint64_t stride;

    FIRE_ASSERT(count > 0);
    if (!bytes_grow(bytes, (count + 3) * (VARINT_BYTES_MAX + sizeof(double))))
        return FIRE_NO_MEMORY;
    put_varint(bytes, count);
    put_varint(bytes, zigzag(steps[0]));
    stride = constant_stride(steps, count);
    put_varint(bytes, stride);
    for (size_t i = 1; i < count && stride == 0; i++)
        put_varint(bytes, (uint64_t)steps[i] - (uint64_t)steps[i - 1]);
    for (size_t i = 0; i < count; i++)
        put_double(bytes, values[i]);
    return FIRE_OK;
}

/* Where the steps and the values of `count` points lie; `*at` goes behind them. */
static bool find_points(const uint8_t **at, const uint8_t *end, uint64_t *count,
                        const uint8_t **steps, const uint8_t **values)
{
    uint64_t first, stride, difference;

    if (!get_varint(at, end, count) || *count == 0 ||
        *count > (uint64_t)(end - *at) / sizeof(double))
        return false;
    *steps = *at;
    if (!get_varint(at, end, &first) || !get_varint(at, end, &stride))
        return false;
    for (uint64_t i = 1; i < *count && stride == 0; i++)
        if (!get_varint(at, end, &difference) || difference == 0)
            return false;
    if (*count > (uint64_t)(end - *at) / sizeof(double))
        return false;
    *values = *at;
    *at += *count * sizeof(double);
    return true;
}

/* Appends points whose place was found; their steps must rise and stay in range. */
static enum fire_status take_points(const uint8_t *steps, const uint8_t *values, uint64_t count,
                                    struct chunk_points *points)
{
    const uint8_t *const end = values;
    uint64_t first = 0, stride = 0, difference = 0;
    int64_t step;

    if (!points_grow(points, count))
        return FIRE_NO_MEMORY;
    if (!get_varint(&steps, end, &first) || !get_varint(&steps, end, &stride))
        return fail_format();
    step = unzigzag(first);
    if (step < 0 || (points->count > 0 && step <= points->steps[points->count - 1]))
        return fail_format();
    for (uint64_t i = 0; i < count; i++) {
        const double value = read_double(values + i * sizeof(double));

        if (i > 0) {
            difference = stride;
            if (stride == 0 && !get_varint(&steps, end, &difference))
                return fail_format();
            if (difference > (uint64_t)(INT64_MAX - step))
                return fail_format();
            step += (int64_t)difference;
        }
        if (!isfinite(value))
            return fail_format();
        points->steps[points->count + i] = step;
        points->values[points->count + i] = value;
    }
    points->count += count;
    return FIRE_OK;
}

enum fire_status chunk_pack(const int64_t *steps, const double *values, size_t count,
                            struct chunk_bytes *bytes)
{
    return put_points(bytes, steps, values, count);
}

enum fire_status chunk_unpack(const uint8_t *data, size_t bytes, struct chunk_points *points)
{
    const uint8_t *at = data, *steps, *values;
    uint64_t count;

    if (!find_points(&at, data + bytes, &count, &steps, &values) || at != data + bytes)
        return fail_format();
    return take_points(steps, values, count, points);
}

/* --- roll-ups --------------------------------------------------------------------------------- */

static enum fire_status put_cells(struct chunk_bytes *bytes, const struct chunk_cells *cells)
{
    int64_t number = 0;

    if (!bytes_grow(bytes, (cells->count + 1) * 3 * (VARINT_BYTES_MAX + sizeof(double))))
        return FIRE_NO_MEMORY;
    put_varint(bytes, cells->level);
    put_varint(bytes, cells->count);
    for (size_t i = 0; i < cells->count; i++) {
        const struct chunk_cell *cell = &cells->cells[i];
        const int64_t own = cell->step >> cells->level;

        put_varint(bytes, i == 0 ? zigzag(own) : (uint64_t)(own - number));
        put_varint(bytes, (uint64_t)cell->step - ((uint64_t)own << cells->level));
        put_varint(bytes, cell->count);
        put_double(bytes, cell->minimum);
        put_double(bytes, cell->maximum);
        put_double(bytes, cell->mean);
        number = own;
    }
    return FIRE_OK;
}

enum fire_status chunk_pack_cells(const int64_t *steps, const double *values, size_t count,
                                  uint32_t part, struct chunk_bytes *bytes)
{
    struct chunk_cells cells = { 0 };
    enum fire_status status = FIRE_OK;

    if (count < 2 * (size_t)part)
        return FIRE_OK;
    cells.level = chunk_level(steps[0], steps[count - 1], count / part);
    for (size_t i = 0; i < count && status == FIRE_OK; i++) {
        const struct chunk_cell cell = { steps[i], 1, values[i], values[i], values[i] };

        status = chunk_cells_add(&cells, &cell);
    }
    if (status == FIRE_OK)
        status = put_cells(bytes, &cells);
    chunk_cells_release(&cells);
    return status;
}

uint32_t chunk_cells_level(const uint8_t *data, size_t bytes)
{
    uint64_t level;

    if (!get_varint(&data, data + bytes, &level) || level > CHUNK_LEVEL_MAX)
        return UINT32_MAX;
    return (uint32_t)level;
}

uint64_t chunk_cells_count(const uint8_t *data, size_t bytes)
{
    const uint8_t *const end = data + bytes;
    uint64_t level, count;

    if (!get_varint(&data, end, &level) || !get_varint(&data, end, &count))
        return 0;
    return count;
}

static bool get_cell(const uint8_t **at, const uint8_t *end, uint32_t level, uint64_t index,
                     int64_t *number, struct chunk_cell *cell)
{
    uint64_t difference, within;

    if (!get_varint(at, end, &difference) || !get_varint(at, end, &within) ||
        !get_varint(at, end, &cell->count) || (size_t)(end - *at) < 3 * sizeof(double))
        return false;
    if (index == 0) {
        *number = unzigzag(difference);
    } else {
        if (difference == 0 || difference > (uint64_t)(INT64_MAX - *number))
            return false;
        *number += (int64_t)difference;
    }
    if (*number < 0 || *number > INT64_MAX >> level || within >> level != 0 || cell->count == 0 ||
        cell->count > UINT32_MAX)
        return false;
    cell->step = (int64_t)((uint64_t)*number << level) + (int64_t)within;
    cell->minimum = read_double(*at);
    cell->maximum = read_double(*at + sizeof(double));
    cell->mean = read_double(*at + 2 * sizeof(double));
    *at += 3 * sizeof(double);
    return isfinite(cell->minimum) && isfinite(cell->maximum) && isfinite(cell->mean);
}

enum fire_status chunk_unpack_cells(const uint8_t *data, size_t bytes, struct chunk_cells *cells)
{
    const uint8_t *at = data;
    const uint8_t *const end = data + bytes;
    uint64_t level, count;
    int64_t number = 0;

    if (!get_varint(&at, end, &level) || !get_varint(&at, end, &count) || level > CHUNK_LEVEL_MAX)
        return fail_format();
    for (uint64_t i = 0; i < count; i++) {
        struct chunk_cell cell;
        enum fire_status status;

        if (!get_cell(&at, end, (uint32_t)level, i, &number, &cell))
            return fail_format();
        if (cells->count > 0 && cell.step <= cells->cells[cells->count - 1].step)
            return fail_format();
        status = chunk_cells_add(cells, &cell);
        if (status != FIRE_OK)
            return status;
    }
    return at == end ? FIRE_OK : fail_format();
}

/* --- logs ------------------------------------------------------------------------------------- */

enum fire_status chunk_log_add(struct chunk_bytes *log, uint64_t series, const int64_t *steps,
                               const double *values, size_t count)
{
    if (!bytes_grow(log, VARINT_BYTES_MAX))
        return FIRE_NO_MEMORY;
    put_varint(log, series);
    return put_points(log, steps, values, count);
}

enum fire_status chunk_log_next(struct chunk_log *log)
{
    if (log->at == log->end)
        return FIRE_NOT_FOUND;
    if (!get_varint(&log->at, log->end, &log->series) ||
        !find_points(&log->at, log->end, &log->count, &log->steps, &log->values))
        return fail_format();
    return FIRE_OK;
}

enum fire_status chunk_log_points(const struct chunk_log *log, struct chunk_points *points)
{
    return take_points(log->steps, log->values, log->count, points);
}
