/* ptx_memory: loads, stores and atomic operations, and what is checked about them.
 *
 * Shared memory is watched word by word: two threads at one word, one of them writing, must have a
 * barrier between them (of the block, or of the warp when both are in one). A shuffle or a vote
 * orders nothing. Words are four bytes, or one where a kernel has narrower accesses. */
#include <inttypes.h>

#include "ptx_internal.h"

enum operation {
    ATOM_ADD,
    ATOM_MIN,
    ATOM_MAX,
    ATOM_EXCH,
    ATOM_CAS,
    ATOM_AND,
    ATOM_OR,
    ATOM_XOR,
};

struct access {
    enum ptx_space space; /* never PTX_GENERIC */
    uint64_t address;     /* in its space */
    uint32_t bytes;
    bool write;
    bool atomic;
};

static enum ptx_step out_of_bounds(struct ptx_machine *machine, const struct ptx_thread *thread,
                                   const struct access *access, const char *where)
{
    return ptx_fault(machine, thread, PTX_OUT_OF_BOUNDS, "%s of %u bytes at 0x%" PRIx64 " %s",
                     access->write ? "write" : "read", access->bytes, access->address, where);
}

/* The address of a generic or plain access, with the space it falls into. False when the space that
 * the opcode names cannot hold the address. */
static bool resolve(const struct ptx_thread *thread, const struct ptx_instruction *instruction,
                    struct access *access)
{
    const enum ptx_space space = (enum ptx_space)instruction->space;
    uint64_t address = thread->frame[instruction->source[0]] + (uint64_t)instruction->offset;
    const uint64_t window = address & PTX_WINDOW_MASK;

    if (space == PTX_SHARED || space == PTX_LOCAL || space == PTX_PARAM) {
        /* These addresses are 32 bits in a register; an offset may wrap them. */
        if (window == 0)
            address &= UINT32_MAX;
        access->space = space;
        access->address = address;
        return true;
    }
    access->address = address & ~PTX_WINDOW_MASK;
    if (window == PTX_MODULE_WINDOW) {
        access->space = PTX_CONST;
        return true;
    }
    access->space = PTX_GLOBAL;
    if (window == 0)
        return true;
    if (space != PTX_GENERIC)
        return false;
    access->space = window == PTX_SHARED_WINDOW ? PTX_SHARED : PTX_LOCAL;
    return window == PTX_SHARED_WINDOW || window == PTX_LOCAL_WINDOW;
}

static bool same_warp(uint32_t a, uint32_t b)
{
    return a / PTX_WARP == b / PTX_WARP;
}

/* Did `other`, in this epoch of the block, touch the word with no warp barrier since? */
static bool unordered(const struct ptx_machine *machine, const struct ptx_thread *thread,
                      uint32_t other, uint32_t warp_epoch)
{
    if (other == thread->index)
        return false;
    return !same_warp(other, thread->index) ||
           warp_epoch == machine->warp_epochs[thread->index / PTX_WARP];
}

static enum ptx_step race(struct ptx_machine *machine, const struct ptx_thread *thread,
                          const struct access *access, uint32_t other, uint32_t line)
{
    return ptx_fault(machine, thread, PTX_RACE,
                     "%s of shared byte %" PRIu64 " races with thread %u at line %u",
                     access->write ? "write" : "read", access->address, other, line);
}

/* A write, or an atomic operation, to one word. */
static enum ptx_step watch_write(struct ptx_machine *machine, const struct ptx_thread *thread,
                                 const struct access *access, struct ptx_word *word, uint32_t line)
{
    const bool excused = access->atomic && word->atomic; /* two atomic ones order themselves */

    if (word->write_epoch == machine->epoch && !excused &&
        unordered(machine, thread, word->writer, word->write_warp_epoch))
        return race(machine, thread, access, word->writer, word->write_line);
    if (word->read_epoch == machine->epoch && word->readers > 0 &&
        (word->readers == 3 ||
         (word->readers == 2
              ? !same_warp(word->reader, thread->index) ||
                    word->read_warp_epoch == machine->warp_epochs[thread->index / PTX_WARP]
              : unordered(machine, thread, word->reader, word->read_warp_epoch))))
        return race(machine, thread, access, word->reader, word->read_line);
    /* A plain write stays one, whatever its own thread does after it. */
    word->atomic = access->atomic && (word->write_epoch != machine->epoch || word->atomic);
    word->written_block = machine->block_number;
    word->write_epoch = machine->epoch;
    word->write_warp_epoch = machine->warp_epochs[thread->index / PTX_WARP];
    word->write_line = line;
    word->writer = (uint16_t)thread->index;
    return PTX_NEXT;
}

static enum ptx_step watch_read(struct ptx_machine *machine, const struct ptx_thread *thread,
                                const struct access *access, struct ptx_word *word, uint32_t line)
{
    const uint32_t warp_epoch = machine->warp_epochs[thread->index / PTX_WARP];

    if (word->written_block != machine->block_number)
        return ptx_fault(machine, thread, PTX_UNINITIALISED,
                         "shared byte %" PRIu64 " is read before this block wrote it",
                         access->address);
    if (word->write_epoch == machine->epoch &&
        unordered(machine, thread, word->writer, word->write_warp_epoch))
        return race(machine, thread, access, word->writer, word->write_line);
    if (word->read_epoch != machine->epoch || word->readers == 0) {
        word->read_epoch = machine->epoch;
        word->readers = 1;
        word->reader = (uint16_t)thread->index;
    } else if (!same_warp(word->reader, thread->index)) {
        word->readers = 3;
    } else if (word->reader != thread->index && word->readers < 2) {
        word->readers = 2;
    }
    word->read_warp_epoch = warp_epoch;
    word->read_line = line;
    return PTX_NEXT;
}

static enum ptx_step watch_shared(struct ptx_machine *machine, const struct ptx_thread *thread,
                                  const struct access *access)
{
    const uint32_t line = machine->kernel->code[thread->pc].line;
    const uint64_t first = access->address >> machine->word_shift;
    const uint64_t last = (access->address + access->bytes - 1) >> machine->word_shift;

    for (uint64_t w = first; w <= last; w++) {
        struct ptx_word *word = &machine->words[w];
        enum ptx_step step = PTX_NEXT;

        /* An atomic operation reads too, but orders itself: only the first value matters. */
        if (access->atomic && word->written_block != machine->block_number)
            step = ptx_fault(machine, thread, PTX_UNINITIALISED,
                             "shared byte %" PRIu64 " is updated before this block wrote it",
                             access->address);
        else if (access->write)
            step = watch_write(machine, thread, access, word, line);
        else
            step = watch_read(machine, thread, access, word, line);
        if (step != PTX_NEXT)
            return step;
    }
    return PTX_NEXT;
}

static bool inside(uint64_t address, uint32_t bytes, uint64_t begin, uint64_t size)
{
    return address >= begin && bytes <= size && address - begin <= size - bytes;
}

static enum ptx_step locate_shared(struct ptx_machine *machine, const struct ptx_thread *thread,
                                   const struct access *access, uint8_t **memory)
{
    const struct ptx_kernel *kernel = machine->kernel;

    for (uint32_t k = 0; k < kernel->shared_count; k++) {
        const struct ptx_variable *variable = &kernel->shared[k];
        const uint64_t bytes =
            variable->is_dynamic ? machine->launch->shared_bytes : variable->bytes;

        if (inside(access->address, access->bytes, variable->address, bytes)) {
            *memory = machine->shared + access->address;
            return watch_shared(machine, thread, access);
        }
    }
    return out_of_bounds(machine, thread, access, "is in no shared variable");
}

static enum ptx_step locate_local(struct ptx_machine *machine, const struct ptx_thread *thread,
                                  const struct access *access, uint8_t **memory)
{
    if (!inside(access->address, access->bytes, 0, machine->kernel->local_bytes))
        return out_of_bounds(machine, thread, access, "is outside local memory");
    *memory = thread->local + access->address;
    for (uint32_t k = 0; k < access->bytes; k++) {
        uint8_t *ready = &thread->local_ready[access->address + k];

        if (access->write)
            *ready = 1;
        else if (!*ready)
            return ptx_fault(machine, thread, PTX_UNINITIALISED,
                             "local byte %" PRIu64 " is read before it was written",
                             access->address + k);
    }
    return PTX_NEXT;
}

/* Where the bytes of an access are, after every check; PTX_FAULT when one fails. */
static enum ptx_step locate(struct ptx_machine *machine, const struct ptx_thread *thread,
                            const struct ptx_instruction *instruction, struct access *access,
                            uint8_t **memory)
{
    if (!resolve(thread, instruction, access))
        return out_of_bounds(machine, thread, access, "belongs to another address space");
    if (access->address & (access->bytes - 1)) /* bytes is a power of two */
        return ptx_fault(machine, thread, PTX_MISALIGNED, "%s of %u bytes at 0x%" PRIx64,
                         access->write ? "write" : "read", access->bytes, access->address);
    switch (access->space) {
    case PTX_SHARED: return locate_shared(machine, thread, access, memory);
    case PTX_LOCAL: return locate_local(machine, thread, access, memory);
    case PTX_PARAM:
        if (access->write ||
            !inside(access->address, access->bytes, 0, machine->kernel->parameter_bytes))
            return out_of_bounds(machine, thread, access, "is outside the parameters");
        *memory = machine->parameters + access->address;
        return PTX_NEXT;
    case PTX_CONST:
        if (access->write ||
            !inside(access->address, access->bytes, 0, machine->module->data_bytes))
            return out_of_bounds(machine, thread, access, "is no constant of the module");
        *memory = machine->module->data + access->address;
        return PTX_NEXT;
    case PTX_GENERIC:
    case PTX_GLOBAL: break;
    }
    *memory = machine->launch->translate(machine->launch->context, access->address, access->bytes,
                                         access->write);
    if (!*memory)
        return out_of_bounds(machine, thread, access, "is in no live allocation");
    return PTX_NEXT;
}

/* Little-endian, as both ends are; the widths that matter without a call. */
static uint64_t read_bytes(const uint8_t *memory, uint32_t bytes)
{
    uint64_t value = 0;
    uint32_t word;

    if (bytes == 4) {
        memcpy(&word, memory, 4);
        return word;
    }
    if (bytes == 8) {
        memcpy(&value, memory, 8);
        return value;
    }
    memcpy(&value, memory, bytes);
    return value;
}

static void write_bytes(uint8_t *memory, const uint64_t *value, uint32_t bytes)
{
    if (bytes == 4)
        memcpy(memory, value, 4);
    else if (bytes == 8)
        memcpy(memory, value, 8);
    else
        memcpy(memory, value, bytes);
}

static uint64_t fetch(const uint8_t *memory, enum ptx_type type, uint32_t bytes)
{
    const uint32_t empty = 64 - 8 * bytes;
    uint64_t value = read_bytes(memory, bytes);

    if (type == PTX_S8 || type == PTX_S16 || type == PTX_S32)
        value = (uint64_t)((int64_t)(value << empty) >> empty);
    return value;
}

static enum ptx_step load(struct ptx_machine *machine, struct ptx_thread *thread,
                          const struct ptx_instruction *instruction)
{
    const enum ptx_type type = (enum ptx_type)instruction->type;
    const uint32_t bytes = ptx_type_bytes(type);
    struct access access = { .bytes = bytes * instruction->count };
    uint8_t *memory = NULL;

    if (locate(machine, thread, instruction, &access, &memory) != PTX_NEXT)
        return PTX_FAULT;
    for (uint32_t k = 0; k < instruction->count; k++)
        if (instruction->result[k] != PTX_NO_OPERAND)
            thread->frame[instruction->result[k]] = fetch(memory + (size_t)k * bytes, type, bytes);
    return PTX_NEXT;
}

static enum ptx_step store(struct ptx_machine *machine, struct ptx_thread *thread,
                           const struct ptx_instruction *instruction)
{
    const uint32_t bytes = ptx_type_bytes((enum ptx_type)instruction->type);
    struct access access = { .bytes = bytes * instruction->count, .write = true };
    uint8_t *memory = NULL;

    if (locate(machine, thread, instruction, &access, &memory) != PTX_NEXT)
        return PTX_FAULT;
    for (uint32_t k = 0; k < instruction->count; k++)
        write_bytes(memory + (size_t)k * bytes, &thread->frame[instruction->source[1 + k]], bytes);
    return PTX_NEXT;
}

static bool less(uint64_t a, uint64_t b, enum ptx_type type)
{
    if (type == PTX_S32)
        return (int32_t)a < (int32_t)b;
    if (type == PTX_S64)
        return (int64_t)a < (int64_t)b;
    return type == PTX_U32 ? (uint32_t)a < (uint32_t)b : a < b;
}

static uint64_t sum(uint64_t a, uint64_t b, enum ptx_type type)
{
    if (type == PTX_F32)
        return ptx_bits_float(ptx_float(a) + ptx_float(b));
    if (type == PTX_F64)
        return ptx_bits_double(ptx_double(a) + ptx_double(b));
    return a + b;
}

static uint64_t update(uint64_t old, uint64_t b, uint64_t c, const struct ptx_instruction *form)
{
    const enum ptx_type type = (enum ptx_type)form->type;

    switch ((enum operation)form->mode) {
    case ATOM_ADD: return sum(old, b, type);
    case ATOM_MIN: return less(b, old, type) ? b : old;
    case ATOM_MAX: return less(old, b, type) ? b : old;
    case ATOM_EXCH: return b;
    case ATOM_CAS: return old == (type == PTX_U32 ? (uint32_t)b : b) ? c : old;
    case ATOM_AND: return old & b;
    case ATOM_OR: return old | b;
    case ATOM_XOR: return old ^ b;
    }
    return old;
}

static enum ptx_step atomic(struct ptx_machine *machine, struct ptx_thread *thread,
                            const struct ptx_instruction *instruction)
{
    const uint32_t bytes = ptx_type_bytes((enum ptx_type)instruction->type);
    struct access access = { .bytes = bytes, .write = true, .atomic = true };
    const uint64_t b = thread->frame[instruction->source[1]];
    const uint64_t c = instruction->source_count > 2 ? thread->frame[instruction->source[2]] : 0;
    uint8_t *memory = NULL;
    uint64_t old = 0, new_value;

    if (locate(machine, thread, instruction, &access, &memory) != PTX_NEXT)
        return PTX_FAULT;
    memcpy(&old, memory, bytes);
    new_value = update(old, b, c, instruction);
    memcpy(memory, &new_value, bytes);
    if (instruction->result_count > 0 && instruction->result[0] != PTX_NO_OPERAND)
        thread->frame[instruction->result[0]] = old;
    return PTX_NEXT;
}

/* Words that say how a load is cached or ordered, and change no value here. */
static bool is_hint(const char *word)
{
    static const char *const hints[] = {
        "weak",
        "volatile",
        "relaxed",
        "acquire",
        "release",
        "acq_rel",
        "cta",
        "gpu",
        "sys",
        "nc",
        "ca",
        "cg",
        "cs",
        "lu",
        "cv",
        "wb",
        "wt",
        "L1::no_allocate",
        "L1::evict_first",
        "L1::evict_last",
        "L2::128B",
        "L2::256B",
        "L2::64B",
    };

    for (size_t k = 0; k < sizeof(hints) / sizeof(hints[0]); k++)
        if (strcmp(word, hints[k]) == 0)
            return true;
    return false;
}

static bool is_space(const char *word, struct ptx_instruction *out)
{
    static const struct {
        const char *name;
        enum ptx_space space;
    } table[] = {
        { "global", PTX_GLOBAL }, { "shared", PTX_SHARED }, { "local", PTX_LOCAL },
        { "param", PTX_PARAM },   { "const", PTX_CONST },   { "shared::cta", PTX_SHARED },
    };

    for (size_t k = 0; k < sizeof(table) / sizeof(table[0]); k++)
        if (strcmp(word, table[k].name) == 0) {
            out->space = (uint8_t)table[k].space;
            return true;
        }
    return false;
}

static bool is_operation(const char *word, struct ptx_instruction *out)
{
    static const char *const names[] = { "add", "min", "max", "exch", "cas", "and", "or", "xor" };

    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
        if (strcmp(word, names[k]) == 0) {
            out->mode = (uint8_t)k;
            return true;
        }
    return false;
}

static bool atomic_fits(const struct ptx_instruction *out)
{
    const enum ptx_type type = (enum ptx_type)out->type;

    if (type == PTX_F32 || type == PTX_F64)
        return out->mode == ATOM_ADD;
    return type == PTX_U32 || type == PTX_U64 || type == PTX_S32 || type == PTX_S64;
}

/* ld, st, atom and red, each with hints, a space, a vector or an operation, and a type. */
bool ptx_memory_find(const char *opcode, struct ptx_form *form, struct ptx_instruction *out)
{
    char word[24];
    const char *rest = ptx_next_word(opcode, word, sizeof(word));
    const bool loads = strcmp(word, "ld") == 0, stores = strcmp(word, "st") == 0;
    const bool updates = strcmp(word, "atom") == 0, reduces = strcmp(word, "red") == 0;
    bool has_operation = false;

    if (!loads && !stores && !updates && !reduces)
        return false;
    out->space = PTX_GENERIC;
    out->count = 1;
    while (rest) {
        rest = ptx_next_word(rest, word, sizeof(word));
        if (!rest)
            break;
        if ((loads || stores) && (strcmp(word, "v2") == 0 || strcmp(word, "v4") == 0))
            out->count = (uint8_t)(word[1] - '0');
        else if ((updates || reduces) && is_operation(word, out))
            has_operation = true;
        else if (!is_hint(word) && !is_space(word, out))
            return false;
    }
    out->type = (uint8_t)ptx_type_of(word);
    if (out->type >= PTX_PRED || ((updates || reduces) && (!has_operation || !atomic_fits(out))))
        return false;
    *form = (struct ptx_form){ "memory",       loads ? load : stores ? store : atomic, NULL,
                               PTX_SHAPE_LOAD, loads ? out->count : updates,           1,
                               false };
    if (loads)
        return true;
    form->shape = stores ? PTX_SHAPE_STORE : updates ? PTX_SHAPE_ATOMIC : PTX_SHAPE_REDUCE;
    form->source_count = (uint8_t)(stores ? 1 + out->count : out->mode == ATOM_CAS ? 3 : 2);
    return true;
}
