/* table: an answer of MonitorService seen as rows and columns, without a copy of it. */
#ifndef FIRE_TABLE_H
#define FIRE_TABLE_H

#include <protobuf-c/protobuf-c.h>

#include "fire.h"

/* Takes over `answer`, also when it fails, which it does for want of memory only. */
FIRE_NODISCARD enum fire_status table_open(ProtobufCMessage *answer, struct fire_table **table);

#endif
