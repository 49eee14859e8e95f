/* monitor_check: what a request of the monitor may be. Any thread. */
#ifndef FIRED_MONITOR_CHECK_H
#define FIRED_MONITOR_CHECK_H

#include "monitor.h"

#define MONITOR_POINTS_MAX     65536u /* of one report */
#define MONITOR_RUN_BYTES      128u
#define MONITOR_NAME_BYTES     256u
#define MONITOR_STATISTIC_MAX  64u
#define MONITOR_LABELS_MAX     32u
#define MONITOR_SHAPE_AXES_MAX 8u
#define MONITOR_NAMES_MAX      10000u /* layers or statistics named by a query */

/* FIRE_OK, or FIRE_BAD_REQUEST with the field and what is allowed. */
FIRE_NODISCARD enum fire_status monitor_check(enum monitor_method method,
                                              const ProtobufCMessage *request,
                                              struct fire_error *error);
FIRE_NODISCARD enum fire_status monitor_check_watch(const Fire__V1__WatchRequest *request,
                                                    struct fire_error *error);
/* Lower-case letters, digits and underscores, 1 to MONITOR_STATISTIC_MAX of them. */
bool monitor_statistic_valid(const char *name);

#endif
