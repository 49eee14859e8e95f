/* local: the client that computes in the calling process. Shared by local.c (life, batches),
 * local_call.c (what one call has to do) and local_state.c (optimizer state).
 *
 * A call is first turned into groups: matrices of all tensors that share one plan. Groups are then
 * run one after another in batches of at most a slab; while the device computes one batch the next
 * is gathered into the other slab. Where the caller lets sets overlap, the next set is gathered
 * while the device computes the last batches of the one before. */
#ifndef FIRE_LOCAL_H
#define FIRE_LOCAL_H

#include "fire.h"
#include "work.h"

#define LOCAL_SLAB_BYTES_DEFAULT (64ull << 20)
#define LOCAL_SLOTS_MAX          16384u /* slots of one batch */
#define LOCAL_BATCHES            2u     /* of a set with the device at once */
#define LOCAL_RUNS               2u     /* sets begun and not finished, where they may be */

/* The matrices of one plan. */
struct local_group {
    struct fire_plan plan;
    size_t part_first; /* list of parts through local_part.next; SIZE_MAX ends it */
    size_t part_last;
};

/* The matrices of one shape inside one tensor. */
struct local_part {
    size_t tensor;
    size_t group;
    size_t next;
    uint32_t rows;
    uint32_t cols;
    uint64_t matrices;
};

/* What the call knows about one tensor besides what the caller gave. */
struct local_work {
    uint64_t view_count;
    uint64_t elements;
    uint64_t matrices; /* to be computed: the views but those skipped by rule */
    uint64_t finished; /* of them, those whose results are in */
    size_t part_first; /* its parts follow each other in local_call.parts */
    size_t part_count;
    bool whole;     /* all its matrices travel in one batch */
    bool together;  /* and they are all its views: copied in one go, slots in their order */
    bool scattered; /* `out` was written */
    bool refused;
    void *backup;                /* of `data`, when it is overwritten in more than one batch */
    struct fire_result *results; /* in view order, when they arrive in another; or NULL */
};

struct local_call {
    struct fire_tensor *tensors;
    struct local_work *works;
    size_t tensor_count;
    bool analyze;
    uint32_t statistics;
    uint64_t slab_bytes; /* most bytes of one batch, at least the largest matrix */
    struct local_group *groups;
    size_t group_count;
    size_t group_room;
    struct local_part *parts;
    size_t part_count;
    size_t part_room;
    /* Where gathering stands. */
    size_t group_at;
    size_t part_at;
    uint64_t view_at;
};

/* Checks every tensor and makes the groups. A tensor with a fault of its own is refused and the
 * others go on; fails only when memory runs out. End with local_call_release() in either case. */
FIRE_NODISCARD enum fire_status local_call_init(struct local_call *call,
                                                struct fire_tensor *tensors, size_t count,
                                                uint64_t slab_bytes, struct fire_error *error);
void local_call_release(struct local_call *call);

/* Marks a tensor refused; the first error of a tensor stays. */
void local_refuse(struct local_call *call, size_t tensor, const struct fire_error *error);

/* The error for element `index` of a tensor, which is NaN or Inf. */
void local_describe_element(const struct fire_tensor *tensor, uint64_t index,
                            struct fire_error *error);

/* FIRE_BAD_REQUEST with the first element that is not finite. */
FIRE_NODISCARD enum fire_status local_check_finite(const struct fire_tensor *tensor,
                                                   uint64_t elements, struct fire_error *error);

/* local_state.c: when a weight's result and `out` are known, its states get theirs. */
FIRE_NODISCARD enum fire_status local_apply_states(struct fire_tensor *tensor,
                                                   struct fire_error *error);

#endif
