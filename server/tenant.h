/* tenant: who asks, what is allowed, and what has been used.
 *
 * Loop thread only, so numbers are plain. A tenant lives as long as the table: pointers stay valid.
 * The table has a fixed most; a name beyond it is FIRE_BUSY. */
#ifndef FIRED_TENANT_H
#define FIRED_TENANT_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

#define TENANT_NAME_BYTES 64
#define TENANTS_MAX       1024u

struct lane; /* bucket_internal.h */
struct rpc_call;

struct tenant_limits {
    double weight; /* share of device time against other tenants; default 1 */
    uint64_t bytes_in_flight_max;
    uint32_t streams_max;
    uint32_t calls_max;
    double device_share_max; /* of device time over the last second or so, 0..1; 1: no limit */
};

struct tenant {
    char name[TENANT_NAME_BYTES];
    struct tenant_limits limits;
    uint64_t bytes_in_flight;
    uint64_t bytes_awaited; /* the part of them that is reserved for messages still to come */
    uint64_t bytes_unary;   /* the part of them that is matrices of unary calls */
    struct rpc_call *first_waiting; /* rpc_call's: calls that will be read when there is room */
    struct rpc_call *last_waiting;
    struct rpc_call *first_guest; /* rpc_call's: of them; from it on all are beyond calls_max */
    uint32_t guests;
    struct tenant *next_resuming; /* rpc_server's: whose calls go on in the next turn */
    struct tenant *next_blocked;  /* rpc_server's: whose calls go on when memory is given back */
    bool resuming;
    bool blocked;
    uint32_t streams;
    uint32_t calls; /* guests too */
    uint64_t calls_total;
    uint64_t refusals_total;
    double device_seconds;
    double virtual_seconds; /* the scheduler's: weighted device time used */
    uint32_t jobs_waiting;  /* the scheduler's: matrices */
    double recent_seconds;  /* the scheduler's: device time of late, decaying */
    uint64_t recent_at_ns;
    uint32_t jobs_running;  /* the scheduler's: matrices */
    double waiting_seconds; /* the scheduler's: estimated device time of what waits */
    struct lane *lanes;     /* the scheduler's: where its jobs wait */
    uint32_t active_index;  /* the scheduler's */
    bool active;            /* the scheduler's: something waits or runs */
};

struct tenants;

FIRE_NODISCARD enum fire_status tenants_open(const struct tenant_limits *defaults,
                                             struct tenants **tenants);
void tenants_close(struct tenants *tenants); /* NULL is allowed */

/* The tenant of that name, made with the default limits if it is new. Names are 1 to 63 of
 * [A-Za-z0-9._-]; anything else is FIRE_BAD_REQUEST. */
FIRE_NODISCARD enum fire_status tenants_find(struct tenants *tenants, const char *name,
                                             struct tenant **tenant, struct fire_error *error);

/* New limits for every tenant, known or to come; limits of single tenants are set again after. */
void tenants_set_defaults(struct tenants *tenants, const struct tenant_limits *defaults);
/* Limits of one tenant by name, now and when it appears. */
FIRE_NODISCARD enum fire_status tenants_set_limits(struct tenants *tenants, const char *name,
                                                   const struct tenant_limits *limits,
                                                   struct fire_error *error);

/* Whether one more unary call with tensors is beyond calls_max; nobody overtakes those that are. */
static inline bool tenant_is_beyond(const struct tenant *tenant)
{
    return tenant->guests > 0 || tenant->calls - tenant->guests >= tenant->limits.calls_max;
}

uint32_t tenants_count(const struct tenants *tenants);
struct tenant *tenants_at(struct tenants *tenants, uint32_t index);

#endif
