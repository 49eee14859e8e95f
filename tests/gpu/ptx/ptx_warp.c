/* ptx_warp: what threads do together: block barriers, warp barriers, shuffles and votes. A thread
 * that comes to one stops; ptx_run.c calls the meeting when every thread it names is there. */
#include "ptx_internal.h"

static enum ptx_step at_barrier(struct ptx_machine *machine, struct ptx_thread *thread,
                                const struct ptx_instruction *instruction)
{
    (void)machine;
    (void)instruction;
    thread->state = PTX_AT_BARRIER;
    return PTX_WAIT;
}

/* The last source of every meeting is the mask of the lanes that take part. */
static enum ptx_step at_meeting(struct ptx_machine *machine, struct ptx_thread *thread,
                                const struct ptx_instruction *instruction)
{
    const uint8_t last = (uint8_t)(instruction->source_count - 1);

    thread->mask = (uint32_t)thread->frame[instruction->source[last]];
    if (!(thread->mask >> thread->lane & 1u))
        return ptx_fault(machine, thread, PTX_DIVERGENT, "mask 0x%08x leaves out lane %u itself",
                         thread->mask, thread->lane);
    thread->state = PTX_AT_MEETING;
    return PTX_WAIT;
}

static enum ptx_step meet_nothing(struct ptx_machine *machine, struct ptx_thread *warp,
                                  uint32_t lanes, const struct ptx_instruction *instruction)
{
    (void)lanes;
    (void)instruction;
    machine->warp_epochs[warp->index / PTX_WARP]++;
    return PTX_NEXT;
}

/* Which lane a shuffle reads; `*inside` is its second result. */
typedef uint32_t pick(uint32_t lane, uint32_t b, uint32_t segment, uint32_t clamp, bool *inside);

static uint32_t highest(uint32_t lane, uint32_t segment, uint32_t clamp)
{
    return (lane & segment) | (clamp & ~segment);
}

static uint32_t pick_up(uint32_t lane, uint32_t b, uint32_t segment, uint32_t clamp, bool *inside)
{
    *inside = (int32_t)lane - (int32_t)b >= (int32_t)highest(lane, segment, clamp);
    return lane - b;
}

static uint32_t pick_down(uint32_t lane, uint32_t b, uint32_t segment, uint32_t clamp, bool *inside)
{
    *inside = lane + b <= highest(lane, segment, clamp);
    return lane + b;
}

static uint32_t pick_bfly(uint32_t lane, uint32_t b, uint32_t segment, uint32_t clamp, bool *inside)
{
    *inside = (lane ^ b) <= highest(lane, segment, clamp);
    return lane ^ b;
}

static uint32_t pick_idx(uint32_t lane, uint32_t b, uint32_t segment, uint32_t clamp, bool *inside)
{
    const uint32_t from = (lane & segment) | (b & ~segment & 31u);

    *inside = from <= highest(lane, segment, clamp);
    return from;
}

static enum ptx_step shuffle(struct ptx_machine *machine, struct ptx_thread *warp, uint32_t lanes,
                             const struct ptx_instruction *instruction, pick *choose)
{
    uint64_t values[PTX_WARP] = { 0 };

    for (uint32_t lane = 0; lane < PTX_WARP; lane++)
        if (lanes >> lane & 1u)
            values[lane] = warp[lane].frame[instruction->source[0]];
    for (uint32_t lane = 0; lane < PTX_WARP; lane++) {
        struct ptx_thread *thread = &warp[lane];
        uint32_t clamp, from;
        bool inside;

        if (!(lanes >> lane & 1u))
            continue;
        clamp = (uint32_t)thread->frame[instruction->source[2]];
        from = choose(lane, (uint32_t)thread->frame[instruction->source[1]] & 31u, clamp >> 8 & 31u,
                      clamp & 31u, &inside);
        if (!inside)
            from = lane;
        if (!(lanes >> from & 1u))
            return ptx_fault(machine, thread, PTX_DIVERGENT,
                             "reads lane %u, which takes no part or has ended", from);
        if (instruction->result[0] != PTX_NO_OPERAND)
            thread->frame[instruction->result[0]] = values[from];
        if (instruction->result_count > 1 && instruction->result[1] != PTX_NO_OPERAND)
            thread->frame[instruction->result[1]] = inside;
    }
    return PTX_NEXT;
}

#define SHUFFLE(name, choose)                                                                      \
    static enum ptx_step name(struct ptx_machine *machine, struct ptx_thread *warp,                \
                              uint32_t lanes, const struct ptx_instruction *instruction)           \
    {                                                                                              \
        return shuffle(machine, warp, lanes, instruction, choose);                                 \
    }
SHUFFLE(meet_up, pick_up)
SHUFFLE(meet_down, pick_down)
SHUFFLE(meet_bfly, pick_bfly)
SHUFFLE(meet_idx, pick_idx)

/* The lanes, of those there, whose predicate is true. */
static uint32_t ballot(const struct ptx_thread *warp, uint32_t lanes,
                       const struct ptx_instruction *instruction)
{
    uint32_t votes = 0;

    for (uint32_t lane = 0; lane < PTX_WARP; lane++)
        if (lanes >> lane & 1u &&
            (warp[lane].frame[instruction->source[0]] ^ (instruction->negated & 1u)))
            votes |= 1u << lane;
    return votes;
}

static enum ptx_step announce(struct ptx_thread *warp, uint32_t lanes, uint32_t value,
                              const struct ptx_instruction *instruction)
{
    for (uint32_t lane = 0; lane < PTX_WARP; lane++)
        if (lanes >> lane & 1u)
            warp[lane].frame[instruction->result[0]] = value;
    return PTX_NEXT;
}

#define VOTE(name, expression)                                                                     \
    static enum ptx_step name(struct ptx_machine *machine, struct ptx_thread *warp,                \
                              uint32_t lanes, const struct ptx_instruction *instruction)           \
    {                                                                                              \
        const uint32_t votes = ballot(warp, lanes, instruction);                                   \
                                                                                                   \
        (void)machine;                                                                             \
        return announce(warp, lanes, expression, instruction);                                     \
    }
VOTE(meet_any, votes != 0)
VOTE(meet_all, votes == lanes)
VOTE(meet_uni, votes == lanes || votes == 0)
VOTE(meet_ballot, votes)

static const struct ptx_form forms[] = {
    { "bar.sync", at_barrier, NULL, PTX_SHAPE_SOURCES, 0, 1, false },
    { "barrier.sync", at_barrier, NULL, PTX_SHAPE_SOURCES, 0, 1, false },
    { "barrier.sync.aligned", at_barrier, NULL, PTX_SHAPE_SOURCES, 0, 1, false },
    { "barrier.cta.sync.aligned", at_barrier, NULL, PTX_SHAPE_SOURCES, 0, 1, false },
    { "bar.warp.sync", at_meeting, meet_nothing, PTX_SHAPE_SOURCES, 0, 1, false },
    { "shfl.sync.up.b32", at_meeting, meet_up, PTX_SHAPE_PLAIN, 1, 4, false },
    { "shfl.sync.down.b32", at_meeting, meet_down, PTX_SHAPE_PLAIN, 1, 4, false },
    { "shfl.sync.bfly.b32", at_meeting, meet_bfly, PTX_SHAPE_PLAIN, 1, 4, false },
    { "shfl.sync.idx.b32", at_meeting, meet_idx, PTX_SHAPE_PLAIN, 1, 4, false },
    { "vote.sync.any.pred", at_meeting, meet_any, PTX_SHAPE_PLAIN, 1, 2, false },
    { "vote.sync.all.pred", at_meeting, meet_all, PTX_SHAPE_PLAIN, 1, 2, false },
    { "vote.sync.uni.pred", at_meeting, meet_uni, PTX_SHAPE_PLAIN, 1, 2, false },
    { "vote.sync.ballot.b32", at_meeting, meet_ballot, PTX_SHAPE_PLAIN, 1, 2, false },
};

const struct ptx_form *ptx_warp_at(size_t index)
{
    return index < sizeof(forms) / sizeof(forms[0]) ? &forms[index] : NULL;
}

const struct ptx_form *ptx_warp_find(const char *opcode)
{
    for (size_t k = 0; k < sizeof(forms) / sizeof(forms[0]); k++)
        if (strcmp(forms[k].name, opcode) == 0)
            return &forms[k];
    return NULL;
}
