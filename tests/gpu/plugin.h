/* plugin: the CUDA backend as the daemon loads it, and batches for it, for test programs.
 *
 * The file is named by the variable FIRE_PLUGIN; ctest sets it to the installed plugin. Whatever
 * fails on the way stops the test with the reason. */
#ifndef FIRE_TEST_PLUGIN_H
#define FIRE_TEST_PLUGIN_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "emulator_access.h"
#include "projection.h"

/* Loads the plugin once, and finds the emulator under it. False: no plugin is named, or what it
 * runs on is not the emulator; a message was printed. */
bool plugin_load(void);
const struct fire_backend *plugin_backend(void);
const struct emulator_control *plugin_emulator(void);

/* Eager, no failure armed, no complaint, devices alive. */
void plugin_calm(void);

/* A device with two slots of 64 MiB, in f32, opened and closed; a failure stops the test. */
void plugin_open(struct projector *projector);
void plugin_open_with(struct projector *projector, const char *precision, uint32_t slots,
                      uint64_t slot_bytes);
void plugin_open_on(struct projector *projector, uint32_t ordinal); /* one slot of that GPU */

/* A batch of Gaussian matrices of one shape under a preset with settings. */
struct gpu_batch {
    struct fire_options options;
    struct fire_plan plan;
    struct fire_batch batch;
    struct fire_slot *slots;
    struct fire_result *results;
    float *weights; /* as given out x in, one after the other, in the plan's orientation */
    float *before;  /* the same before the batch ran */
    size_t matrix_floats;
};

struct gpu_case {
    const char *preset;
    const char *settings;
    uint32_t out;
    uint32_t in;
    uint32_t count;
    enum fire_dtype output; /* 0 is f64; tests say FIRE_F32 */
    bool plain;             /* without statistics, whose sums are slow to emulate */
};

void gpu_batch_init(struct gpu_batch *batch, const struct gpu_case *what, uint64_t seed);
void gpu_batch_again(struct gpu_batch *batch); /* the weights as they were before */
void gpu_batch_release(struct gpu_batch *batch);
/* Runs it and waits; the status. */
enum fire_status gpu_batch_run(struct projector *projector, struct gpu_batch *batch);
void gpu_batch_must_run(struct projector *projector, struct gpu_batch *batch);

/* How far matrix `index` is from the float64 reference, relative to its norm. */
double gpu_batch_error(struct gpu_batch *batch, uint32_t index);

/* Whether every weight of matrix `index` is one that its type can hold. */
bool gpu_batch_is_rounded(const struct gpu_batch *batch, uint32_t index);

/* Nothing is alive on the devices, and nobody complained. */
void plugin_check_clean(const char *where);

/* Runs the suite in this process; for main(). */
int plugin_main(void (*add)(Suite *suite), const char *name);

#endif
