/* isa: which engines this machine can run, found out by CPUID and by running them. */
#ifndef FIRE_ISA_H
#define FIRE_ISA_H

#include <stddef.h>

#include "engine.h"
#include "status.h"

/* What runs: one engine where a polar error is promised, one where only the DfI counts. They differ
 * on machines with a tile unit only. */
struct isa_choice {
    const struct engine *exact;
    const struct engine *fast;
};

/* The engines of `path` ("auto": the fastest that works). `reason` says why in words.
 * FIRE_NOT_FOUND: no such path, or this machine cannot run it. FIRE_NO_MEMORY: there was none
 * to try it with. Otherwise the answer is always the same within a process. */
FIRE_NODISCARD enum fire_status isa_choose(const char *path, struct isa_choice *choice,
                                           char *reason, size_t reason_bytes);

/* Flops a second of an f32 product that stays in cache, on this thread; 0 without memory. */
double isa_measure_rate(const struct engine *engine);

/* The processor's own name, "AMD EPYC …". */
void isa_processor_name(char *name, size_t name_bytes);

#endif
