/* ptx_convert: cvt and setp, whose forms are products of types and modes, so they are put together
 * from the words of the opcode. */
#include <math.h>

#include "convert.h"
#include "ptx_internal.h"

enum mode {
    MODE_NEAREST, /* rn, rni, and none */
    MODE_ZERO,    /* rz, rzi */
    MODE_DOWN,    /* rm, rmi */
    MODE_UP,      /* rp, rpi */
    MODE_SATURATE = 8,
};

static bool is_float(enum ptx_type type)
{
    return type == PTX_F16 || type == PTX_BF16 || type == PTX_F32 || type == PTX_F64;
}

static bool is_signed(enum ptx_type type)
{
    return type == PTX_S8 || type == PTX_S16 || type == PTX_S32 || type == PTX_S64;
}

static uint64_t keep(uint64_t value, enum ptx_type type)
{
    const uint32_t bits = 8 * ptx_type_bytes(type);

    return bits >= 64 ? value : value & ((UINT64_C(1) << bits) - 1);
}

static int64_t widen(uint64_t value, enum ptx_type type)
{
    const uint32_t empty = 64 - 8 * ptx_type_bytes(type);

    if (!is_signed(type))
        return (int64_t)keep(value, type);
    return (int64_t)(value << empty) >> empty;
}

/* f16, bf16, f32 and f64 all fit f64 exactly. */
static double read_float(uint64_t bits, enum ptx_type type)
{
    if (type == PTX_F64)
        return ptx_double(bits);
    if (type == PTX_F32)
        return (double)ptx_float(bits);
    if (type == PTX_F16)
        return (double)convert_f16_to_f32((uint16_t)bits);
    return (double)convert_bf16_to_f32((uint16_t)bits);
}

static uint64_t write_float(double value, enum ptx_type type)
{
    if (type == PTX_F64)
        return ptx_bits_double(value);
    if (type == PTX_F32)
        return ptx_bits_float((float)value);
    if (type == PTX_F16)
        return convert_f32_to_f16(convert_to_odd(value));
    return convert_f32_to_bf16(convert_to_odd(value));
}

static double round_whole(double value, uint8_t mode)
{
    switch (mode & 7) {
    case MODE_ZERO: return trunc(value);
    case MODE_DOWN: return floor(value);
    case MODE_UP: return ceil(value);
    default: return nearbyint(value);
    }
}

/* A NaN becomes 0, and what does not fit the nearest number that does. */
static uint64_t to_integer(double value, enum ptx_type type)
{
    const uint32_t bits = 8 * ptx_type_bytes(type);
    const double limit = ldexp(1.0, (int)(is_signed(type) ? bits - 1 : bits));

    if (isnan(value))
        return 0;
    if (value >= limit)
        return is_signed(type) ? (UINT64_C(1) << (bits - 1)) - 1 : keep(UINT64_MAX, type);
    if (is_signed(type))
        return value <= -limit ? keep(UINT64_C(1) << (bits - 1), type)
                               : keep((uint64_t)(int64_t)value, type);
    return value <= 0.0 ? 0 : (uint64_t)value;
}

static enum ptx_step convert_whole(struct ptx_machine *machine, struct ptx_thread *thread,
                                   const struct ptx_instruction *instruction)
{
    const uint64_t from = thread->frame[instruction->source[0]];
    const int64_t value = widen(from, (enum ptx_type)instruction->from);

    (void)machine;
    /* A register wider than the result keeps its sign; readers take the bits they need. */
    thread->frame[instruction->result[0]] =
        (uint64_t)widen((uint64_t)value, (enum ptx_type)instruction->type);
    return PTX_NEXT;
}

static enum ptx_step convert_whole_to_float(struct ptx_machine *machine, struct ptx_thread *thread,
                                            const struct ptx_instruction *instruction)
{
    const enum ptx_type from = (enum ptx_type)instruction->from;
    const int64_t value = widen(thread->frame[instruction->source[0]], from);
    uint64_t *result = &thread->frame[instruction->result[0]];

    (void)machine;
    /* f32 and f64 round once, straight from the integer. */
    if (instruction->type == PTX_F32)
        *result = ptx_bits_float(from == PTX_U64 ? (float)(uint64_t)value : (float)value);
    else if (instruction->type == PTX_F64)
        *result = ptx_bits_double(from == PTX_U64 ? (double)(uint64_t)value : (double)value);
    else
        *result = write_float((double)value, (enum ptx_type)instruction->type);
    return PTX_NEXT;
}

static enum ptx_step convert_float_to_whole(struct ptx_machine *machine, struct ptx_thread *thread,
                                            const struct ptx_instruction *instruction)
{
    const double value =
        read_float(thread->frame[instruction->source[0]], (enum ptx_type)instruction->from);

    (void)machine;
    thread->frame[instruction->result[0]] =
        to_integer(round_whole(value, instruction->mode), (enum ptx_type)instruction->type);
    return PTX_NEXT;
}

/* Between floats; of one and the same type it rounds to a whole number. */
static enum ptx_step convert_floats(struct ptx_machine *machine, struct ptx_thread *thread,
                                    const struct ptx_instruction *instruction)
{
    double value =
        read_float(thread->frame[instruction->source[0]], (enum ptx_type)instruction->from);

    (void)machine;
    if (instruction->type == instruction->from && !(instruction->mode & MODE_SATURATE))
        value = round_whole(value, instruction->mode);
    if (instruction->mode & MODE_SATURATE)
        value = value > 0.0 ? fmin(value, 1.0) : 0.0; /* NaN becomes 0 */
    thread->frame[instruction->result[0]] = write_float(value, (enum ptx_type)instruction->type);
    return PTX_NEXT;
}

static bool rounding(const char *word, uint8_t *mode)
{
    static const struct {
        const char *name;
        uint8_t mode;
    } table[] = {
        { "rn", MODE_NEAREST }, { "rni", MODE_NEAREST }, { "rzi", MODE_ZERO },
        { "rmi", MODE_DOWN },   { "rpi", MODE_UP },      { "sat", MODE_SATURATE },
    };

    for (size_t k = 0; k < sizeof(table) / sizeof(table[0]); k++)
        if (strcmp(word, table[k].name) == 0) {
            *mode |= table[k].mode;
            return true;
        }
    return false;
}

/* cvt[.rounding][.sat].to.from */
bool ptx_convert_find(const char *opcode, struct ptx_form *form, struct ptx_instruction *out)
{
    const char *rest;
    char word[16];
    enum ptx_type to, from;

    rest = ptx_next_word(opcode, word, sizeof(word));
    if (strcmp(word, "cvt") != 0 || !rest)
        return false;
    out->mode = 0;
    rest = ptx_next_word(rest, word, sizeof(word));
    while (rest && rounding(word, &out->mode))
        rest = ptx_next_word(rest, word, sizeof(word));
    to = ptx_type_of(word);
    if (to >= PTX_PRED || !rest || ptx_next_word(rest, word, sizeof(word)))
        return false;
    from = ptx_type_of(word);
    if (from >= PTX_PRED)
        return false;
    *form = (struct ptx_form){ "cvt", convert_whole, NULL, PTX_SHAPE_PLAIN, 1, 1, false };
    if (is_float(to))
        form->run = is_float(from) ? convert_floats : convert_whole_to_float;
    else if (is_float(from))
        form->run = convert_float_to_whole;
    else if (out->mode)
        return false; /* saturating between integers: not taught */
    out->type = (uint8_t)to;
    out->from = (uint8_t)from;
    return true;
}

/* Comparisons. The unordered ones are true when an operand is a NaN. */
enum compare {
    EQUAL = 1,
    LESS = 2,
    GREATER = 4,
    UNORDERED = 8,
};

static const struct {
    const char *name;
    uint8_t holds;
    bool is_unsigned; /* lo, ls, hi, hs: whatever the type says */
} comparisons[] = {
    { "eq", EQUAL, false },
    { "ne", LESS | GREATER, false },
    { "lt", LESS, false },
    { "le", LESS | EQUAL, false },
    { "gt", GREATER, false },
    { "ge", GREATER | EQUAL, false },
    { "lo", LESS, true },
    { "ls", LESS | EQUAL, true },
    { "hi", GREATER, true },
    { "hs", GREATER | EQUAL, true },
    { "equ", EQUAL | UNORDERED, false },
    { "neu", LESS | GREATER | UNORDERED, false },
    { "ltu", LESS | UNORDERED, false },
    { "leu", LESS | EQUAL | UNORDERED, false },
    { "gtu", GREATER | UNORDERED, false },
    { "geu", GREATER | EQUAL | UNORDERED, false },
    { "num", LESS | EQUAL | GREATER, false },
    { "nan", UNORDERED, false },
};

static uint8_t order_floats(double a, double b)
{
    if (isnan(a) || isnan(b))
        return UNORDERED;
    return a == b ? EQUAL : a < b ? LESS : GREATER;
}

static uint8_t order(uint64_t a, uint64_t b, enum ptx_type type)
{
    if (is_float(type))
        return order_floats(read_float(a, type), read_float(b, type));
    if (is_signed(type)) {
        const int64_t x = widen(a, type), y = widen(b, type);

        return x == y ? EQUAL : x < y ? LESS : GREATER;
    }
    a = keep(a, type);
    b = keep(b, type);
    return a == b ? EQUAL : a < b ? LESS : GREATER;
}

enum combine { COMBINE_NONE, COMBINE_AND, COMBINE_OR, COMBINE_XOR };

static uint64_t join(uint64_t a, uint64_t b, uint8_t combine)
{
    return combine == COMBINE_AND ? a & b : combine == COMBINE_OR ? a | b : a ^ b;
}

static enum ptx_step compare(struct ptx_machine *machine, struct ptx_thread *thread,
                             const struct ptx_instruction *instruction)
{
    const uint8_t found =
        order(thread->frame[instruction->source[0]], thread->frame[instruction->source[1]],
              (enum ptx_type)instruction->type);
    uint64_t yes = (found & instruction->mode) != 0, no = !yes;

    (void)machine;
    if (instruction->combine != COMBINE_NONE) {
        const uint64_t third =
            thread->frame[instruction->source[2]] ^ ((instruction->negated >> 2) & 1u);

        yes = join(yes, third, instruction->combine);
        no = join(no, third, instruction->combine);
    }
    thread->frame[instruction->result[0]] = yes;
    if (instruction->result_count == 2 && instruction->result[1] != PTX_NO_OPERAND)
        thread->frame[instruction->result[1]] = no;
    return PTX_NEXT;
}

static enum combine combination(const char *word)
{
    if (strcmp(word, "and") == 0)
        return COMBINE_AND;
    if (strcmp(word, "or") == 0)
        return COMBINE_OR;
    return strcmp(word, "xor") == 0 ? COMBINE_XOR : COMBINE_NONE;
}

static enum ptx_type unsigned_of(enum ptx_type type)
{
    return is_signed(type) ? (enum ptx_type)(type - PTX_S8 + PTX_U8) : type;
}

/* setp.comparison[.and|.or|.xor].type */
bool ptx_compare_find(const char *opcode, struct ptx_form *form, struct ptx_instruction *out)
{
    const char *rest;
    char word[16];
    enum ptx_type type;
    size_t k;

    rest = ptx_next_word(opcode, word, sizeof(word));
    if (strcmp(word, "setp") != 0 || !rest)
        return false;
    rest = ptx_next_word(rest, word, sizeof(word));
    for (k = 0; k < sizeof(comparisons) / sizeof(comparisons[0]); k++)
        if (strcmp(word, comparisons[k].name) == 0)
            break;
    if (k == sizeof(comparisons) / sizeof(comparisons[0]) || !rest)
        return false;
    rest = ptx_next_word(rest, word, sizeof(word));
    out->combine = (uint8_t)combination(word);
    if (out->combine != COMBINE_NONE) {
        if (!rest)
            return false;
        rest = ptx_next_word(rest, word, sizeof(word));
    }
    type = ptx_type_of(word);
    if (rest || type >= PTX_PRED)
        return false;
    out->mode = comparisons[k].holds;
    out->type = (uint8_t)(comparisons[k].is_unsigned ? unsigned_of(type) : type);
    *form = (struct ptx_form){
        "setp", compare, NULL, PTX_SHAPE_PLAIN, 1, out->combine == COMBINE_NONE ? 2 : 3, false
    };
    return true;
}
