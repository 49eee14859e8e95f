/* projection: one matrix through the whole core, the way every caller goes: options, view, plan,
 * gather, batch, scatter. For tests; whatever fails on the way stops the test with the reason. */
#ifndef FIRE_TEST_PROJECTION_H
#define FIRE_TEST_PROJECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "options.h"
#include "plan.h"

struct projector {
    const struct fire_backend *backend;
    struct fire_device *device;
};

/* Opens the CPU on `path` with `threads` (0: all). */
void projector_open(struct projector *projector, const char *path, uint32_t threads);
void projector_close(struct projector *projector);

/* Whether this machine has the instructions of "portable", "avx2" or "avx512". */
bool path_exists(const char *path);

/* A preset with settings over it: "scale=one target=1e-7". */
void options_make(struct fire_options *options, const char *preset, const char *settings);

/* One out x in matrix of a batch, f64 in memory, handed to the core as f32, or f64 when the options
 * say compute=f64. */
struct projection {
    const double *weights;
    double *projected; /* may be `weights` */
    struct fire_result result;
};

/* The plan of an out x in matrix. */
void projection_plan(const struct fire_options *options, uint32_t out, uint32_t in,
                     struct fire_plan *plan);

/* Runs `count` matrices of one shape as one batch. */
void project_batch(struct projector *projector, const struct fire_options *options, uint32_t out,
                   uint32_t in, struct projection *projections, uint32_t count);

/* One matrix alone; its result. */
struct fire_result project(struct projector *projector, const struct fire_options *options,
                           uint32_t out, uint32_t in, const double *weights, double *projected);

#endif
