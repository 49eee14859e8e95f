/* ptx_internal: what the parser makes and the machine runs.
 *
 * Every operand is an index into a thread's frame: registers first, then the constants of the
 * kernel (immediates and addresses of variables), then the special registers. So fetching one is a
 * single load, whatever it was in the text. */
#ifndef FIRE_PTX_INTERNAL_H
#define FIRE_PTX_INTERNAL_H

#include <string.h>

#include "ptx.h"

#define PTX_NO_OPERAND  UINT32_MAX
#define PTX_SOURCES_MAX 6
#define PTX_RESULTS_MAX 4
#define PTX_NAME_BYTES  192
#define PTX_WARP        32u

/* Generic addresses that stand for the two private spaces; device addresses lie below. */
#define PTX_SHARED_WINDOW (UINT64_C(1) << 60)
#define PTX_LOCAL_WINDOW  (UINT64_C(2) << 60)
#define PTX_MODULE_WINDOW (UINT64_C(3) << 60) /* .const and .global variables of the module */
#define PTX_WINDOW_MASK   (UINT64_C(15) << 60)
/* Between two shared variables, so that running over the end of one is seen. */
#define PTX_SHARED_GAP 64u

enum ptx_space {
    PTX_GENERIC,
    PTX_GLOBAL,
    PTX_SHARED,
    PTX_LOCAL,
    PTX_PARAM,
    PTX_CONST,
};

enum ptx_type {
    PTX_U8,
    PTX_U16,
    PTX_U32,
    PTX_U64,
    PTX_S8,
    PTX_S16,
    PTX_S32,
    PTX_S64,
    PTX_F16,
    PTX_BF16,
    PTX_F32,
    PTX_F64,
    PTX_PRED,
    PTX_TYPE_COUNT,
};

/* Special registers, in the order they stand in a frame. */
enum ptx_special {
    PTX_TID_X,
    PTX_TID_Y,
    PTX_TID_Z,
    PTX_NTID_X,
    PTX_NTID_Y,
    PTX_NTID_Z,
    PTX_CTAID_X,
    PTX_CTAID_Y,
    PTX_CTAID_Z,
    PTX_NCTAID_X,
    PTX_NCTAID_Y,
    PTX_NCTAID_Z,
    PTX_LANEID,
    PTX_WARPID,
    PTX_LANEMASK_EQ,
    PTX_LANEMASK_LT,
    PTX_LANEMASK_LE,
    PTX_LANEMASK_GT,
    PTX_LANEMASK_GE,
    PTX_SPECIAL_COUNT,
};

enum ptx_step {
    PTX_NEXT,  /* go on with the next instruction */
    PTX_JUMP,  /* the handler has set pc */
    PTX_WAIT,  /* stop here until others arrive */
    PTX_EXIT,  /* the thread has ended */
    PTX_FAULT, /* a report is filled in */
};

struct ptx_machine;
struct ptx_thread;
struct ptx_instruction;

typedef enum ptx_step ptx_handler(struct ptx_machine *machine, struct ptx_thread *thread,
                                  const struct ptx_instruction *instruction);
/* For instructions that threads of a warp take together: run once when all of `lanes` are there. */
typedef enum ptx_step ptx_meeting(struct ptx_machine *machine, struct ptx_thread *warp,
                                  uint32_t lanes, const struct ptx_instruction *instruction);

/* How the operands of a form are written. */
enum ptx_shape {
    PTX_SHAPE_PLAIN,   /* result, sources */
    PTX_SHAPE_MOVE,    /* one may be a vector in braces or the name of a variable */
    PTX_SHAPE_LOAD,    /* result or vector of them, [address] */
    PTX_SHAPE_STORE,   /* [address], source or vector */
    PTX_SHAPE_ATOMIC,  /* result, [address], sources */
    PTX_SHAPE_REDUCE,  /* [address], sources */
    PTX_SHAPE_BRANCH,  /* label */
    PTX_SHAPE_SOURCES, /* sources only */
};

struct ptx_form {
    const char *name; /* opcode with all its modifiers */
    ptx_handler *run;
    ptx_meeting *meet; /* NULL: each thread for itself */
    enum ptx_shape shape;
    uint8_t result_count;
    uint8_t source_count;
    bool copies; /* an undefined source makes an undefined result and is no fault by itself */
};

struct ptx_instruction {
    ptx_handler *run;
    ptx_meeting *meet;
    uint32_t line;
    uint32_t text;  /* offset of its text in the kernel's listing */
    uint32_t guard; /* predicate register, or PTX_NO_OPERAND */
    uint32_t result[PTX_RESULTS_MAX];
    uint32_t source[PTX_SOURCES_MAX];
    int64_t offset;   /* added to an address */
    uint32_t target;  /* of a branch: index of an instruction */
    uint32_t negated; /* bit k: source k is a predicate to be inverted; bit 31: the guard is */
    uint8_t result_count;
    uint8_t source_count;
    uint8_t count;   /* elements of a vector access */
    uint8_t space;   /* enum ptx_space */
    uint8_t type;    /* enum ptx_type: of the data */
    uint8_t from;    /* cvt: type of the source */
    uint8_t mode;    /* comparison, rounding, operation: as the form has it */
    uint8_t combine; /* setp with a third source: how it joins */
    bool copies;
};

/* A parameter, or a variable in shared, local or module memory. */
struct ptx_variable {
    char name[PTX_NAME_BYTES];
    uint64_t address; /* in its space */
    uint64_t bytes;
    enum ptx_space space;
    bool is_dynamic; /* .extern .shared: as long as the launch says */
};

struct ptx_kernel {
    char name[PTX_NAME_BYTES];
    struct ptx_instruction *code;
    uint32_t code_count;
    char *listing; /* the text of every instruction, each ending in zero */
    uint32_t register_count;
    uint64_t *constants;
    uint32_t constant_count;
    struct ptx_variable *parameters;
    uint32_t parameter_count;
    uint32_t parameter_bytes;
    struct ptx_variable *shared; /* in order of address; a dynamic one is last */
    uint32_t shared_count;
    uint32_t shared_bytes; /* of those that are not dynamic, with gaps */
    uint32_t shared_plain; /* the same without gaps, as a GPU counts them */
    uint32_t local_bytes;
    uint32_t threads_max; /* .maxntid or .reqntid; 0: none */
    bool narrow_shared;   /* accesses of fewer than four bytes may hit shared memory */
};

struct ptx_module {
    struct ptx_kernel *kernels;
    uint32_t kernel_count;
    struct ptx_variable *variables; /* .extern .shared, .const and .global of the module */
    uint32_t variable_count;
    uint8_t *data; /* what .const and .global variables begin with */
    uint64_t data_bytes;
};

enum ptx_state {
    PTX_RUNS,
    PTX_AT_BARRIER,
    PTX_AT_MEETING, /* a shuffle, vote or warp barrier */
    PTX_ENDED,
};

struct ptx_thread {
    uint64_t *frame;
    uint8_t *ready; /* one for each register: it has been written */
    uint8_t *local;
    uint8_t *local_ready;
    uint64_t steps;
    uint32_t pc;
    uint32_t index; /* in the block */
    uint32_t lane;
    uint32_t mask; /* of the meeting it waits for */
    enum ptx_state state;
};

/* Who touched a word of shared memory last. Epochs count barriers over the whole launch, so that a
 * word needs no clearing between blocks. */
struct ptx_word {
    uint32_t written_block; /* number of the block, from 1, whose writes it holds */
    uint32_t write_epoch;
    uint32_t write_warp_epoch;
    uint32_t write_line;
    uint32_t read_epoch;
    uint32_t read_warp_epoch;
    uint32_t read_line;
    uint16_t writer;
    uint16_t reader;
    uint8_t readers; /* 1: one thread; 2: several of one warp; 3: of several warps */
    bool atomic;     /* the write was */
};

struct ptx_machine {
    const struct ptx_module *module;
    const struct ptx_kernel *kernel;
    const struct ptx_launch *launch;
    struct ptx_report *report;
    struct ptx_thread *threads;
    uint32_t thread_count;
    uint32_t special; /* where special registers begin in a frame */
    uint8_t *parameters;
    uint8_t *shared;
    struct ptx_word *words;
    uint32_t word_shift; /* log2 of the bytes a ptx_word stands for */
    uint64_t shared_bytes;
    uint32_t block[3];
    uint32_t block_number; /* from 1 */
    uint32_t epoch;        /* barriers so far */
    uint32_t warp_epochs[PTX_BLOCK_THREADS_MAX / PTX_WARP];
    uint64_t steps_max;
    struct ptx_counts counts;
    void *arena; /* frames, shared memory and the rest, in one piece */
};

/* ptx_form.c: finds the handler of an opcode. False when there is none. Fills in run, meet, type
 * and the like; the shape and the counts of operands come back in `form`. */
bool ptx_form_find(const char *opcode, struct ptx_form *form, struct ptx_instruction *instruction);
enum ptx_type ptx_type_of(const char *name); /* "f32"; PTX_TYPE_COUNT: unknown */
uint32_t ptx_type_bytes(enum ptx_type type);

/* ptx_alu.c, ptx_convert.c, ptx_memory.c, ptx_warp.c: the handlers, looked up by opcode. */
const struct ptx_form *ptx_alu_find(const char *opcode);
bool ptx_compare_find(const char *opcode, struct ptx_form *form, struct ptx_instruction *out);
bool ptx_convert_find(const char *opcode, struct ptx_form *form, struct ptx_instruction *out);
bool ptx_memory_find(const char *opcode, struct ptx_form *form, struct ptx_instruction *out);
const struct ptx_form *ptx_warp_find(const char *opcode);
/* The forms one after another, so that tests can see that none is left out; NULL after the last. */
const struct ptx_form *ptx_alu_at(size_t index);
const struct ptx_form *ptx_warp_at(size_t index);

/* Fills in the report of `machine` and returns PTX_FAULT. */
enum ptx_step ptx_fault(struct ptx_machine *machine, const struct ptx_thread *thread,
                        enum ptx_kind kind, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Takes the next word of `text`, up to a dot, into `word`; returns what follows the dot, or NULL
 * at the end. A word too long for `word` comes back empty. */
const char *ptx_next_word(const char *text, char *word, size_t bytes);

static inline float ptx_float(uint64_t bits)
{
    const uint32_t low = (uint32_t)bits;
    float value;

    memcpy(&value, &low, sizeof(value));
    return value;
}

static inline double ptx_double(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint64_t ptx_bits_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline uint64_t ptx_bits_double(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

#endif
