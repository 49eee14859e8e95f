/* ptx_run: runs a launch, block after block. Within a block every warp runs until all its threads
 * have ended or wait at a block barrier; then the barrier opens. A thread runs alone until it has
 * to wait, so divergence needs no bookkeeping, and what does not end is a report, not a hang. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "ptx_internal.h"

const char *ptx_kind_name(enum ptx_kind kind)
{
    switch (kind) {
    case PTX_OK: return "ok";
    case PTX_BAD_TEXT: return "bad text";
    case PTX_BAD_LAUNCH: return "bad launch";
    case PTX_OUT_OF_BOUNDS: return "out of bounds";
    case PTX_MISALIGNED: return "misaligned";
    case PTX_RACE: return "race";
    case PTX_UNINITIALISED: return "uninitialised";
    case PTX_DIVERGENT: return "divergent";
    case PTX_TOO_LONG: return "too long";
    case PTX_TRAP: return "trap";
    case PTX_NO_MEMORY: return "no memory";
    }
    return "unknown";
}

enum ptx_step ptx_fault(struct ptx_machine *machine, const struct ptx_thread *thread,
                        enum ptx_kind kind, const char *format, ...)
{
    const struct ptx_kernel *kernel = machine->kernel;
    const struct ptx_instruction *instruction = &kernel->code[thread->pc];
    const uint32_t x = machine->launch->block[0], y = machine->launch->block[1];
    char what[200];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    machine->report->kind = kind;
    machine->report->line = instruction->line;
    snprintf(machine->report->text, sizeof(machine->report->text),
             "%s: %s: %s, block (%u,%u,%u) thread (%u,%u,%u), line %u: %.120s", ptx_kind_name(kind),
             what, kernel->name, machine->block[0], machine->block[1], machine->block[2],
             thread->index % x, thread->index / x % y, thread->index / x / y, instruction->line,
             kernel->listing + instruction->text);
    return PTX_FAULT;
}

static enum ptx_kind refuse(struct ptx_report *report, enum ptx_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static enum ptx_kind refuse(struct ptx_report *report, enum ptx_kind kind, const char *format, ...)
{
    va_list arguments;

    report->kind = kind;
    report->line = 0;
    va_start(arguments, format);
    vsnprintf(report->text, sizeof(report->text), format, arguments);
    va_end(arguments);
    return kind;
}

/* True when every register the instruction reads has been written. A copy may pass an undefined
 * value on: compilers leave such moves on paths whose value nobody uses. */
static bool sources_ready(const struct ptx_thread *thread, const struct ptx_instruction *code,
                          uint8_t *undefined)
{
    for (uint8_t k = 0; k < code->source_count; k++)
        if (!thread->ready[code->source[k]]) {
            *undefined = k;
            return false;
        }
    return true;
}

static void mark_results(const struct ptx_thread *thread, const struct ptx_instruction *code,
                         uint8_t ready)
{
    for (uint8_t k = 0; k < code->result_count; k++)
        if (code->result[k] != PTX_NO_OPERAND)
            thread->ready[code->result[k]] = ready;
}

/* One instruction whose guard holds. */
static enum ptx_step execute(struct ptx_machine *machine, struct ptx_thread *thread,
                             const struct ptx_instruction *code)
{
    uint8_t undefined = 0, ready = 1;
    enum ptx_step step;

    if (!sources_ready(thread, code, &undefined)) {
        if (!code->copies)
            return ptx_fault(machine, thread, PTX_UNINITIALISED,
                             "source %u is a register nothing was written to", undefined + 1u);
        ready = 0;
    }
    step = code->run(machine, thread, code);
    if (step == PTX_NEXT)
        mark_results(thread, code, ready);
    return step;
}

/* Runs one thread until it waits or ends. */
static enum ptx_step run_thread(struct ptx_machine *machine, struct ptx_thread *thread)
{
    const struct ptx_kernel *kernel = machine->kernel;

    for (;;) {
        const struct ptx_instruction *code = &kernel->code[thread->pc];
        enum ptx_step step;

        if (++thread->steps > machine->steps_max)
            return ptx_fault(machine, thread, PTX_TOO_LONG,
                             "more than %" PRIu64 " instructions in one thread",
                             machine->steps_max);
        if (code->guard != PTX_NO_OPERAND) {
            if (!thread->ready[code->guard])
                return ptx_fault(machine, thread, PTX_UNINITIALISED,
                                 "the guard is a predicate nothing was written to");
            if ((thread->frame[code->guard] & 1u) == code->negated >> 31) {
                thread->pc++;
                continue;
            }
        }
        step = execute(machine, thread, code);
        if (step == PTX_NEXT)
            thread->pc++;
        else if (step == PTX_EXIT)
            thread->state = PTX_ENDED;
        if (step != PTX_NEXT && step != PTX_JUMP)
            return step;
    }
}

static uint32_t warp_lanes(const struct ptx_machine *machine, uint32_t first)
{
    const uint32_t left = machine->thread_count - first;

    return left < PTX_WARP ? left : PTX_WARP;
}

/* Holds the meeting that `lane` waits for, if all are there: *held says so. */
static enum ptx_step try_meeting(struct ptx_machine *machine, struct ptx_thread *warp,
                                 uint32_t count, uint32_t lane, bool *held)
{
    const struct ptx_thread *first = &warp[lane];
    const struct ptx_instruction *code = &machine->kernel->code[first->pc];
    uint32_t there = 0, alive = 0;
    enum ptx_step step;

    for (uint32_t k = 0; k < count; k++) {
        if (warp[k].state != PTX_ENDED)
            alive |= 1u << k;
        if (warp[k].state == PTX_AT_MEETING && warp[k].pc == first->pc &&
            warp[k].mask == first->mask)
            there |= 1u << k;
    }
    if (there != (first->mask & alive))
        return PTX_NEXT;
    step = code->meet(machine, warp, there, code);
    if (step != PTX_NEXT)
        return step;
    for (uint32_t k = 0; k < count; k++)
        if (there >> k & 1u) {
            mark_results(&warp[k], code, 1);
            warp[k].state = PTX_RUNS;
            warp[k].pc++;
        }
    *held = true;
    return PTX_NEXT;
}

/* Runs a warp until each of its threads has ended or is at a block barrier. */
static enum ptx_step run_warp(struct ptx_machine *machine, uint32_t first)
{
    struct ptx_thread *warp = &machine->threads[first];
    const uint32_t count = warp_lanes(machine, first);

    for (;;) {
        bool held = false;
        uint32_t stuck = PTX_WARP;

        for (uint32_t lane = 0; lane < count; lane++)
            if (warp[lane].state == PTX_RUNS && run_thread(machine, &warp[lane]) == PTX_FAULT)
                return PTX_FAULT;
        for (uint32_t lane = 0; lane < count; lane++)
            if (warp[lane].state == PTX_AT_MEETING) {
                if (try_meeting(machine, warp, count, lane, &held) == PTX_FAULT)
                    return PTX_FAULT;
                stuck = lane;
            }
        if (!held && stuck == PTX_WARP)
            return PTX_NEXT;
        if (!held)
            return ptx_fault(machine, &warp[stuck], PTX_DIVERGENT,
                             "lanes of mask 0x%08x are not all coming here", warp[stuck].mask);
    }
}

/* All threads have ended or wait at a barrier: opens it. *done when all have ended. */
static enum ptx_step open_barrier(struct ptx_machine *machine, bool *done)
{
    struct ptx_thread *waiting = NULL, *ended = NULL;

    for (uint32_t k = 0; k < machine->thread_count; k++) {
        struct ptx_thread *thread = &machine->threads[k];

        if (thread->state == PTX_ENDED) {
            ended = thread;
        } else if (!waiting) {
            waiting = thread;
        } else if (thread->pc != waiting->pc) {
            return ptx_fault(machine, thread, PTX_DIVERGENT,
                             "thread %u waits at another barrier, line %u", waiting->index,
                             machine->kernel->code[waiting->pc].line);
        }
    }
    *done = waiting == NULL;
    if (*done)
        return PTX_NEXT;
    if (ended)
        return ptx_fault(machine, waiting, PTX_DIVERGENT,
                         "thread %u has ended and never comes to this barrier", ended->index);
    for (uint32_t k = 0; k < machine->thread_count; k++) {
        machine->threads[k].state = PTX_RUNS;
        machine->threads[k].pc++;
    }
    machine->epoch++;
    machine->counts.barriers++;
    return PTX_NEXT;
}

static void set_special(const struct ptx_machine *machine, const struct ptx_thread *thread)
{
    uint64_t *special = thread->frame + machine->special;
    const struct ptx_launch *launch = machine->launch;
    const uint32_t x = launch->block[0], y = launch->block[1], lane = thread->lane;

    special[PTX_TID_X] = thread->index % x;
    special[PTX_TID_Y] = thread->index / x % y;
    special[PTX_TID_Z] = thread->index / x / y;
    for (uint32_t k = 0; k < 3; k++) {
        special[PTX_NTID_X + k] = launch->block[k];
        special[PTX_CTAID_X + k] = machine->block[k];
        special[PTX_NCTAID_X + k] = launch->grid[k];
    }
    special[PTX_LANEID] = lane;
    special[PTX_WARPID] = thread->index / PTX_WARP;
    special[PTX_LANEMASK_EQ] = 1u << lane;
    special[PTX_LANEMASK_LT] = (1u << lane) - 1u;
    special[PTX_LANEMASK_LE] = (UINT32_C(2) << lane) - 1u;
    special[PTX_LANEMASK_GT] = (uint32_t) ~((UINT32_C(2) << lane) - 1u);
    special[PTX_LANEMASK_GE] = (uint32_t) ~((1u << lane) - 1u);
}

static enum ptx_step run_block(struct ptx_machine *machine)
{
    bool done = false;

    for (uint32_t k = 0; k < machine->thread_count; k++) {
        struct ptx_thread *thread = &machine->threads[k];

        memset(thread->ready, 0, machine->kernel->register_count);
        memset(thread->local_ready, 0, machine->kernel->local_bytes);
        thread->pc = 0;
        thread->state = PTX_RUNS;
        machine->counts.instructions += thread->steps;
        thread->steps = 0;
        set_special(machine, thread);
    }
    machine->block_number++;
    machine->epoch++;
    while (!done) {
        for (uint32_t first = 0; first < machine->thread_count; first += PTX_WARP)
            if (run_warp(machine, first) == PTX_FAULT)
                return PTX_FAULT;
        if (open_barrier(machine, &done) == PTX_FAULT)
            return PTX_FAULT;
    }
    return PTX_NEXT;
}

static enum ptx_step run_grid(struct ptx_machine *machine)
{
    const uint32_t *grid = machine->launch->grid;

    for (uint32_t z = 0; z < grid[2]; z++)
        for (uint32_t y = 0; y < grid[1]; y++)
            for (uint32_t x = 0; x < grid[0]; x++) {
                machine->block[0] = x;
                machine->block[1] = y;
                machine->block[2] = z;
                if (run_block(machine) == PTX_FAULT)
                    return PTX_FAULT;
            }
    for (uint32_t k = 0; k < machine->thread_count; k++)
        machine->counts.instructions += machine->threads[k].steps;
    return PTX_NEXT;
}

static const struct ptx_kernel *find_kernel(const struct ptx_module *module, const char *name)
{
    for (uint32_t k = 0; k < module->kernel_count; k++)
        if (strcmp(module->kernels[k].name, name) == 0)
            return &module->kernels[k];
    return NULL;
}

static enum ptx_kind check_launch(const struct ptx_kernel *kernel, const struct ptx_launch *launch,
                                  struct ptx_report *report)
{
    const uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];

    for (uint32_t k = 0; k < 3; k++)
        if (launch->block[k] == 0 || launch->block[k] > PTX_BLOCK_THREADS_MAX ||
            launch->grid[k] == 0 || launch->grid[k] > (k == 0 ? INT32_MAX : UINT16_MAX))
            return refuse(report, PTX_BAD_LAUNCH, "%s: bad launch: grid or block %u x %u",
                          kernel->name, launch->grid[k], launch->block[k]);
    if (threads > PTX_BLOCK_THREADS_MAX ||
        (kernel->threads_max > 0 && threads > kernel->threads_max))
        return refuse(report, PTX_BAD_LAUNCH, "%s: bad launch: %" PRIu64 " threads a block",
                      kernel->name, threads);
    if (launch->shared_bytes > PTX_SHARED_BYTES_MAX ||
        launch->shared_bytes + kernel->shared_plain > PTX_SHARED_BYTES_MAX)
        return refuse(report, PTX_BAD_LAUNCH, "%s: bad launch: %zu bytes of shared memory",
                      kernel->name, launch->shared_bytes + kernel->shared_plain);
    return PTX_OK;
}

/* Cuts the arena: threads, frames, flags, local and shared memory, words, parameters. The first
 * pass, without an arena, only counts. Returns the bytes used. */
static size_t lay_out(struct ptx_machine *machine, uint8_t *arena)
{
    const struct ptx_kernel *kernel = machine->kernel;
    const size_t frame = (size_t)machine->special + PTX_SPECIAL_COUNT;
    const size_t count = machine->thread_count, local = kernel->local_bytes;
    const size_t words = (machine->shared_bytes >> machine->word_shift) + 1;
    size_t used = 0;

#define TAKE(pointer, type, elements)                                                              \
    do {                                                                                           \
        used = (used + 15u) & ~(size_t)15u;                                                        \
        if (arena)                                                                                 \
            (pointer) = (type *)(void *)(arena + used);                                            \
        used += sizeof(type) * (elements);                                                         \
    } while (0)

    TAKE(machine->threads, struct ptx_thread, count);
    TAKE(machine->words, struct ptx_word, words);
    TAKE(machine->shared, uint8_t, machine->shared_bytes);
    TAKE(machine->parameters, uint8_t, kernel->parameter_bytes);
    for (size_t k = 0; k < count; k++) {
        struct ptx_thread none = { 0 }, *thread = arena ? &machine->threads[k] : &none;

        TAKE(thread->frame, uint64_t, frame);
        TAKE(thread->ready, uint8_t, frame);
        TAKE(thread->local, uint8_t, local);
        TAKE(thread->local_ready, uint8_t, local);
    }
#undef TAKE
    return used;
}

static bool prepare(struct ptx_machine *machine)
{
    const struct ptx_kernel *kernel = machine->kernel;
    const struct ptx_launch *launch = machine->launch;

    machine->thread_count = launch->block[0] * launch->block[1] * launch->block[2];
    machine->special = kernel->register_count + kernel->constant_count;
    machine->word_shift = kernel->narrow_shared ? 0 : 2;
    machine->shared_bytes = kernel->shared_bytes + launch->shared_bytes + PTX_SHARED_GAP;
    machine->steps_max = launch->steps_max ? launch->steps_max : PTX_STEPS_DEFAULT;
    machine->arena = calloc(1, lay_out(machine, NULL) + 16);
    if (!machine->arena)
        return false;
    lay_out(machine, machine->arena);
    for (uint32_t k = 0; k < kernel->parameter_count; k++)
        memcpy(machine->parameters + kernel->parameters[k].address, launch->arguments[k],
               kernel->parameters[k].bytes);
    for (uint32_t k = 0; k < machine->thread_count; k++) {
        struct ptx_thread *thread = &machine->threads[k];

        thread->index = k;
        thread->lane = k % PTX_WARP;
        if (kernel->constant_count > 0)
            memcpy(thread->frame + kernel->register_count, kernel->constants,
                   kernel->constant_count * sizeof(kernel->constants[0]));
        memset(thread->ready + kernel->register_count, 1,
               kernel->constant_count + (size_t)PTX_SPECIAL_COUNT);
    }
    return true;
}

enum ptx_kind ptx_run(const struct ptx_module *module, const struct ptx_launch *launch,
                      struct ptx_counts *counts, struct ptx_report *report)
{
    struct ptx_machine machine = { .module = module, .launch = launch, .report = report };
    enum ptx_kind kind;

    memset(report, 0, sizeof(*report));
    machine.kernel = find_kernel(module, launch->kernel);
    if (!machine.kernel)
        return refuse(report, PTX_BAD_LAUNCH, "bad launch: the module has no kernel %s",
                      launch->kernel);
    kind = check_launch(machine.kernel, launch, report);
    if (kind != PTX_OK)
        return kind;
    if (!prepare(&machine))
        return refuse(report, PTX_NO_MEMORY, "%s: no memory for a block", machine.kernel->name);
    kind = run_grid(&machine) == PTX_FAULT ? report->kind : PTX_OK;
    if (counts)
        *counts = machine.counts;
    free(machine.arena);
    return kind;
}
