/* history_chunk: points as bytes. A row a point would be ten times larger and slower, so points are
 * kept packed: a chunk is up to CHUNK_POINTS_MAX points of one series, steps as differences and
 * values as float64, with two roll-ups (cells of min, max and mean) beside it for charts; a log is
 * the points of one report, of many series, before they are folded into chunks.
 *
 * Bytes come from a database that others may have changed: every reader checks what it reads. No
 * function keeps state; any thread. */
#ifndef FIRED_HISTORY_CHUNK_H
#define FIRED_HISTORY_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define CHUNK_POINTS_MAX  1024u
#define CHUNK_FINE_PART   16u  /* about so many points a cell of the fine roll-up */
#define CHUNK_COARSE_PART 256u /* and of the coarse one */
#define CHUNK_LEVEL_MAX   62u

/* Bytes that grow. Zeroed is empty. */
struct chunk_bytes {
    uint8_t *data;
    size_t used;
    size_t room;
};

/* Points that grow, steps strictly rising. Zeroed is empty. */
struct chunk_points {
    int64_t *steps;
    double *values;
    size_t count;
    size_t room;
};

/* Points of neighbouring steps as one. */
struct chunk_cell {
    int64_t step; /* the first of its points */
    uint64_t count;
    double minimum;
    double maximum;
    double mean;
};

/* Cells of 2^level steps, which begin at multiples of that. Zeroed is empty. */
struct chunk_cells {
    struct chunk_cell *cells;
    size_t count;
    size_t room;
    uint32_t level;
};

void chunk_bytes_release(struct chunk_bytes *bytes);
void chunk_points_release(struct chunk_points *points);
void chunk_cells_release(struct chunk_cells *cells);

/* Adds a point behind the last; FIRE_NO_MEMORY leaves all as it was. */
FIRE_NODISCARD enum fire_status chunk_points_add(struct chunk_points *points, int64_t step,
                                                 double value);
/* Adds `cell` (whose points lie within one cell of cells->level) behind or into the last one. */
FIRE_NODISCARD enum fire_status chunk_cells_add(struct chunk_cells *cells,
                                                const struct chunk_cell *cell);

/* The smallest level at which steps first … last are at most `cells_max` cells. */
uint32_t chunk_level(int64_t first, int64_t last, uint64_t cells_max);

/* Appends the points of a chunk; reads them back, appended to `points`. FIRE_IO: the bytes are no
 * chunk, or do not lie behind what `points` has. */
FIRE_NODISCARD enum fire_status chunk_pack(const int64_t *steps, const double *values, size_t count,
                                           struct chunk_bytes *bytes);
FIRE_NODISCARD enum fire_status chunk_unpack(const uint8_t *data, size_t bytes,
                                             struct chunk_points *points);

/* Appends the roll-up of a chunk with about `part` points a cell; nothing when there are too few
 * points for that to be worth it. */
FIRE_NODISCARD enum fire_status chunk_pack_cells(const int64_t *steps, const double *values,
                                                 size_t count, uint32_t part,
                                                 struct chunk_bytes *bytes);
/* Reads cells back, appended to `cells` and merged to its level; larger ones stay as they are.
 * FIRE_IO: the bytes are no roll-up. */
FIRE_NODISCARD enum fire_status chunk_unpack_cells(const uint8_t *data, size_t bytes,
                                                   struct chunk_cells *cells);
/* The level of packed cells; UINT32_MAX when they are none. */
uint32_t chunk_cells_level(const uint8_t *data, size_t bytes);
/* How many cells are packed; 0 when they are none. */
uint64_t chunk_cells_count(const uint8_t *data, size_t bytes);

/* Appends the points of one series to a log. */
FIRE_NODISCARD enum fire_status chunk_log_add(struct chunk_bytes *log, uint64_t series,
                                              const int64_t *steps, const double *values,
                                              size_t count);
/* One series of a log; steps are read one by one. */
struct chunk_log {
    const uint8_t *at; /* set to the log's bytes before the first call */
    const uint8_t *end;
    uint64_t series;
    uint64_t count;
    const uint8_t *steps; /* packed */
    const uint8_t *values;
};
/* The next series. FIRE_NOT_FOUND: there is no more. FIRE_IO: the bytes are no log. */
FIRE_NODISCARD enum fire_status chunk_log_next(struct chunk_log *log);
/* Appends the points of the current series to `points`. */
FIRE_NODISCARD enum fire_status chunk_log_points(const struct chunk_log *log,
                                                 struct chunk_points *points);

#endif
