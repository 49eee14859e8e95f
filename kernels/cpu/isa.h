/* isa: which engines this machine can run, found out by CPUID and by running them. */
#ifndef FIRE_ISA_H
#define FIRE_ISA_H

#include <stddef.h>

#include "engine.h"
#include "status.h"

/* The engine named `path` ("auto": the fastest that works). `reason` says why in words.
 * FIRE_NOT_FOUND: no such path, or this machine cannot run it. */
FIRE_NODISCARD enum fire_status isa_choose(const char *path, const struct engine **engine,
                                           char *reason, size_t reason_bytes);

/* The processor's own name, "AMD EPYC …". */
void isa_processor_name(char *name, size_t name_bytes);

#endif
