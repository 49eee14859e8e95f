/* emulator_access: the control table of the emulated runtime, for test programs. */
#ifndef FIRE_EMULATOR_ACCESS_H
#define FIRE_EMULATOR_ACCESS_H

#include "emulator/control.h"

/* The table of the emulated libcudart that this process has loaded, or NULL when the library it
 * has loaded is the real one or none. */
const struct emulator_control *emulator_access(void);

#endif
