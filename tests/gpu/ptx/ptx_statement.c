/* ptx_statement: one instruction of a kernel: guard, opcode, operands. */
#include <ctype.h>
#include <stdlib.h>

#include "ptx_parse.h"

#define OPERANDS_MAX 8

enum operand_kind {
    OPERAND_VALUE,   /* register, number, special register or the name of a variable */
    OPERAND_VECTOR,  /* {a, b} */
    OPERAND_ADDRESS, /* [a + 8] */
};

struct operand {
    enum operand_kind kind;
    uint32_t value[PTX_RESULTS_MAX];
    uint8_t count;
    uint32_t second; /* of a pair a|b */
    int64_t offset;
    enum ptx_space space; /* of a variable's address */
    bool negated;
};

static bool add_constant(struct parser *parser, uint64_t value, uint32_t *operand)
{
    struct ptx_kernel *kernel = &parser->kernel;

    /* The last few again: nvcc repeats itself. */
    for (uint32_t k = kernel->constant_count; k > 0 && k + 16 > kernel->constant_count; k--)
        if (kernel->constants[k - 1] == value) {
            *operand = PARSE_CONSTANT | (k - 1);
            return true;
        }
    if (kernel->constant_count >= PARSE_CODE_MAX)
        return parse_fail(parser, "too many constants");
    if (!parse_grow(parser, (void **)&kernel->constants, kernel->constant_count,
                    sizeof(kernel->constants[0])))
        return false;
    *operand = PARSE_CONSTANT | kernel->constant_count;
    kernel->constants[kernel->constant_count++] = value;
    return true;
}

static bool register_of(const struct parser *parser, const char *name, uint32_t *operand)
{
    for (uint32_t k = parser->registers_count; k > 0; k--) {
        const struct parse_registers *registers = &parser->registers[k - 1];
        const size_t length = strlen(registers->prefix);
        char *end = NULL;
        unsigned long index;

        if (strncmp(name, registers->prefix, length) != 0)
            continue;
        if (!registers->is_range) {
            if (name[length] != '\0')
                continue;
            *operand = registers->first;
            return true;
        }
        if (!isdigit((unsigned char)name[length]))
            continue;
        index = strtoul(name + length, &end, 10);
        if (*end == '\0' && index < registers->count) {
            *operand = registers->first + (uint32_t)index;
            return true;
        }
    }
    return false;
}

static bool special_of(const char *name, uint32_t *operand)
{
    static const char *const names[PTX_SPECIAL_COUNT] = {
        "%tid.x",       "%tid.y",       "%tid.z",       "%ntid.x",      "%ntid.y",
        "%ntid.z",      "%ctaid.x",     "%ctaid.y",     "%ctaid.z",     "%nctaid.x",
        "%nctaid.y",    "%nctaid.z",    "%laneid",      "%warpid",      "%lanemask_eq",
        "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge",
    };

    for (uint32_t k = 0; k < PTX_SPECIAL_COUNT; k++)
        if (strcmp(name, names[k]) == 0) {
            *operand = PARSE_SPECIAL | k;
            return true;
        }
    return false;
}

/* One register, number or variable. */
static bool take_value(struct parser *parser, uint32_t *value, enum ptx_space *space)
{
    struct lexer *lexer = &parser->lexer;
    const bool negative = lex_take(lexer, '-');
    char name[PTX_NAME_BYTES];
    uint64_t number;

    *space = PTX_GENERIC;
    if (lexer->token.kind == TOKEN_NUMBER) {
        if (!lex_number(&lexer->token, &number))
            return parse_fail(parser, "a number that cannot be read");
        lex_next(lexer);
        return add_constant(parser, negative ? 0u - number : number, value);
    }
    if (lexer->token.kind != TOKEN_WORD || negative || !lex_copy(&lexer->token, name, sizeof(name)))
        return parse_fail(parser, "an operand expected");
    lex_next(lexer);
    if (strcmp(name, "_") == 0) {
        *value = PTX_NO_OPERAND;
        return true;
    }
    if (register_of(parser, name, value) || special_of(name, value))
        return true;
    if (strcmp(name, "WARP_SZ") == 0)
        return add_constant(parser, PTX_WARP, value);
    if (parse_find_variable(parser, name, space, &number))
        return add_constant(parser, number, value);
    return parse_fail(parser, "%s is no register, variable or number", name);
}

static bool take_address(struct parser *parser, struct operand *out)
{
    struct lexer *lexer = &parser->lexer;
    uint64_t offset;
    bool negative;

    out->kind = OPERAND_ADDRESS;
    out->count = 1;
    if (!take_value(parser, &out->value[0], &out->space))
        return false;
    if (lex_is(lexer, '+') || lex_is(lexer, '-')) {
        negative = lex_is(lexer, '-');
        lex_next(lexer);
        negative ^= lex_take(lexer, '-');
        if (!lex_number(&lexer->token, &offset) || offset > INT32_MAX)
            return parse_fail(parser, "an offset that cannot be read");
        lex_next(lexer);
        out->offset = negative ? -(int64_t)offset : (int64_t)offset;
    }
    if (out->value[0] == PTX_NO_OPERAND)
        return parse_fail(parser, "an address must be something");
    return parse_expect(parser, ']');
}

static bool take_operand(struct parser *parser, struct operand *out)
{
    struct lexer *lexer = &parser->lexer;
    enum ptx_space space;

    *out = (struct operand){ .kind = OPERAND_VALUE, .count = 1, .second = PTX_NO_OPERAND };
    if (lex_take(lexer, '['))
        return take_address(parser, out);
    if (lex_take(lexer, '{')) {
        out->kind = OPERAND_VECTOR;
        out->count = 0;
        do {
            if (out->count == PTX_RESULTS_MAX)
                return parse_fail(parser, "a vector of more than %d", PTX_RESULTS_MAX);
            if (!take_value(parser, &out->value[out->count++], &space))
                return false;
        } while (lex_take(lexer, ','));
        return parse_expect(parser, '}');
    }
    out->negated = lex_take(lexer, '!');
    if (!take_value(parser, &out->value[0], &out->space))
        return false;
    if (!lex_take(lexer, '|'))
        return true;
    out->count = 2;
    return take_value(parser, &out->second, &space);
}

static enum ptx_step pack(struct ptx_machine *machine, struct ptx_thread *thread,
                          const struct ptx_instruction *instruction)
{
    const uint32_t bits =
        8 * ptx_type_bytes((enum ptx_type)instruction->type) / instruction->source_count;
    const uint64_t mask = (UINT64_C(1) << bits) - 1;
    uint64_t value = 0;

    (void)machine;
    for (uint32_t k = 0; k < instruction->source_count; k++)
        value |= (thread->frame[instruction->source[k]] & mask) << (k * bits);
    thread->frame[instruction->result[0]] = value;
    return PTX_NEXT;
}

static enum ptx_step unpack(struct ptx_machine *machine, struct ptx_thread *thread,
                            const struct ptx_instruction *instruction)
{
    const uint32_t bits =
        8 * ptx_type_bytes((enum ptx_type)instruction->type) / instruction->result_count;
    const uint64_t mask = (UINT64_C(1) << bits) - 1;
    const uint64_t value = thread->frame[instruction->source[0]];

    (void)machine;
    for (uint32_t k = 0; k < instruction->result_count; k++)
        if (instruction->result[k] != PTX_NO_OPERAND)
            thread->frame[instruction->result[k]] = value >> (k * bits) & mask;
    return PTX_NEXT;
}

static bool is_writable(uint32_t operand)
{
    return operand == PTX_NO_OPERAND || !(operand & (PARSE_CONSTANT | PARSE_SPECIAL));
}

static bool add_results(struct parser *parser, struct ptx_instruction *out,
                        const struct operand *operand)
{
    for (uint8_t k = 0; k < operand->count; k++) {
        const uint32_t value =
            operand->kind == OPERAND_VALUE && k == 1 ? operand->second : operand->value[k];

        if (!is_writable(value))
            return parse_fail(parser, "the result is no register");
        out->result[out->result_count++] = value;
    }
    return true;
}

static bool add_sources(struct parser *parser, struct ptx_instruction *out,
                        const struct operand *operand)
{
    if (operand->kind == OPERAND_VALUE && operand->count != 1)
        return parse_fail(parser, "a pair where one operand is wanted");
    for (uint8_t k = 0; k < operand->count; k++) {
        if (operand->value[k] == PTX_NO_OPERAND || out->source_count == PTX_SOURCES_MAX)
            return parse_fail(parser, "an operand is missing, or one too many");
        if (operand->negated)
            out->negated |= 1u << out->source_count;
        out->source[out->source_count++] = operand->value[k];
    }
    if (operand->kind == OPERAND_ADDRESS)
        out->offset = operand->offset;
    return true;
}

static bool bad_operands(struct parser *parser, const char *opcode)
{
    return parse_fail(parser, "%s with operands it does not take", opcode);
}

/* A move is a copy, or packs or unpacks a vector. */
static bool assign_move(struct parser *parser, const char *opcode, const struct operand *operands,
                        struct ptx_instruction *out)
{
    const struct operand *to = &operands[0], *from = &operands[1];
    const char *dot = strchr(opcode, '.');
    const enum ptx_type type = ptx_type_of(dot ? dot + 1 : "");

    out->type = (uint8_t)type;
    if (to->kind == OPERAND_ADDRESS || from->kind == OPERAND_ADDRESS ||
        (to->kind == OPERAND_VALUE && (to->count != 1 || to->value[0] == PTX_NO_OPERAND)) ||
        !add_results(parser, out, to) || !add_sources(parser, out, from))
        return bad_operands(parser, opcode);
    if (to->kind == OPERAND_VALUE && from->kind == OPERAND_VALUE)
        return true;
    if (to->kind == from->kind || to->count == 3 || from->count == 3 ||
        (to->count == 1 && from->count == 1) || (type != PTX_U32 && type != PTX_U64))
        return bad_operands(parser, opcode);
    out->run = to->kind == OPERAND_VECTOR ? unpack : pack;
    return true;
}

/* How many operands of each kind the shape has, and which are results. */
static bool assign(struct parser *parser, const char *opcode, const struct ptx_form *form,
                   const struct operand *operands, uint32_t count, struct ptx_instruction *out)
{
    const bool has_result = form->shape == PTX_SHAPE_PLAIN || form->shape == PTX_SHAPE_LOAD ||
                            form->shape == PTX_SHAPE_ATOMIC;
    const uint32_t address = form->shape == PTX_SHAPE_LOAD || form->shape == PTX_SHAPE_ATOMIC ? 1
                             : form->shape == PTX_SHAPE_STORE || form->shape == PTX_SHAPE_REDUCE
                                 ? 0
                                 : UINT32_MAX;

    if (form->shape == PTX_SHAPE_MOVE)
        return count == 2 ? assign_move(parser, opcode, operands, out)
                          : bad_operands(parser, opcode);
    for (uint32_t k = 0; k < count; k++) {
        const bool is_address = operands[k].kind == OPERAND_ADDRESS;
        const bool is_result = has_result && k == 0;

        if (is_address != (k == address) ||
            (operands[k].kind == OPERAND_VECTOR && out->count < 2) ||
            (is_result && operands[k].negated))
            return bad_operands(parser, opcode);
        if (is_result ? !add_results(parser, out, &operands[k])
                      : !add_sources(parser, out, &operands[k]))
            return false;
    }
    if (out->source_count != form->source_count)
        return bad_operands(parser, opcode);
    return true;
}

/* Two results only where the form knows what to do with the second; a sink only where results are
 * optional; an inverted source only for comparisons and votes. */
static bool check_operands(struct parser *parser, const char *opcode, const struct ptx_form *form,
                           const struct ptx_instruction *out)
{
    const bool pairs = strncmp(opcode, "shfl", 4) == 0 || strncmp(opcode, "setp", 4) == 0;
    const bool sinks = pairs || form->shape == PTX_SHAPE_LOAD || form->shape == PTX_SHAPE_ATOMIC ||
                       form->shape == PTX_SHAPE_MOVE;
    const bool inverts = (strncmp(opcode, "setp", 4) == 0 && out->negated == 4u) ||
                         (strncmp(opcode, "vote", 4) == 0 && out->negated == 1u);

    if (form->shape != PTX_SHAPE_MOVE && out->result_count != form->result_count &&
        !(pairs && out->result_count == 2))
        return bad_operands(parser, opcode);
    for (uint8_t k = 0; k < out->result_count; k++)
        if (out->result[k] == PTX_NO_OPERAND && (!sinks || (k == 0 && pairs)))
            return bad_operands(parser, opcode);
    if (out->negated && !inverts)
        return bad_operands(parser, opcode);
    return true;
}

static bool take_guard(struct parser *parser, struct ptx_instruction *out)
{
    char name[64];
    const bool negated = lex_take(&parser->lexer, '!');

    if (!lex_copy(&parser->lexer.token, name, sizeof(name)) ||
        !register_of(parser, name, &out->guard))
        return parse_fail(parser, "the guard is no register");
    lex_next(&parser->lexer);
    out->negated = negated ? UINT32_C(1) << 31 : 0;
    return true;
}

static bool add_jump(struct parser *parser)
{
    struct parse_jump jump = { .code = parser->kernel.code_count,
                               .line = parser->lexer.token.line };

    if (parser->lexer.token.kind != TOKEN_WORD ||
        !lex_copy(&parser->lexer.token, jump.name, sizeof(jump.name)))
        return parse_fail(parser, "a branch without a label");
    lex_next(&parser->lexer);
    if (!parse_grow(parser, (void **)&parser->jumps, parser->jumps_count, sizeof(jump)))
        return false;
    parser->jumps[parser->jumps_count++] = jump;
    return true;
}

/* The text from `begin` to the semicolon, blanks made single, for reports. */
static bool keep_listing(struct parser *parser, const char *begin, const char *end, uint32_t *at)
{
    struct ptx_kernel *kernel = &parser->kernel;
    const size_t length = end - begin < 120 ? (size_t)(end - begin) : 120;
    size_t kept = 0;
    char *grown = realloc(kernel->listing, parser->listing_bytes + length + 1);

    if (!grown)
        return parse_fail(parser, "no memory");
    kernel->listing = grown;
    *at = parser->listing_bytes;
    grown += parser->listing_bytes;
    for (size_t k = 0; k < length; k++) {
        const bool blank = !isgraph((unsigned char)begin[k]);

        if (!blank || (kept > 0 && grown[kept - 1] != ' '))
            grown[kept++] = blank ? ' ' : begin[k];
    }
    grown[kept] = '\0';
    parser->listing_bytes += (uint32_t)kept + 1;
    return true;
}

static bool take_operands(struct parser *parser, const char *opcode, const struct ptx_form *form,
                          struct ptx_instruction *out)
{
    struct operand operands[OPERANDS_MAX];
    const uint32_t guard_bit = out->negated;
    uint32_t count = 0;
    bool good;

    out->negated = 0;
    while (!lex_is(&parser->lexer, ';')) {
        if (count == OPERANDS_MAX)
            return parse_fail(parser, "too many operands");
        if (count > 0 && !parse_expect(parser, ','))
            return false;
        if (!take_operand(parser, &operands[count++]))
            return false;
    }
    good = assign(parser, opcode, form, operands, count, out) &&
           check_operands(parser, opcode, form, out);
    out->negated |= guard_bit;
    return good;
}

/* Narrow accesses that may hit shared memory make its words single bytes. */
static void note_narrow(struct ptx_kernel *kernel, const struct ptx_form *form,
                        const struct ptx_instruction *code)
{
    const bool is_memory = form->shape == PTX_SHAPE_LOAD || form->shape == PTX_SHAPE_STORE;

    if (is_memory && (code->space == PTX_SHARED || code->space == PTX_GENERIC) &&
        ptx_type_bytes((enum ptx_type)code->type) < 4)
        kernel->narrow_shared = true;
}

bool parse_instruction(struct parser *parser)
{
    struct ptx_kernel *kernel = &parser->kernel;
    struct lexer *lexer = &parser->lexer;
    const char *begin = lexer->token.text;
    struct ptx_instruction code = { .guard = PTX_NO_OPERAND, .line = lexer->token.line };
    struct ptx_form form;
    char opcode[64] = "";

    if (lex_take(lexer, '@') && !take_guard(parser, &code))
        return false;
    if (lexer->token.kind != TOKEN_WORD || !lex_copy(&lexer->token, opcode, sizeof(opcode)))
        return parse_fail(parser, "an instruction expected");
    if (!ptx_form_find(opcode, &form, &code))
        return parse_fail(parser, "unknown opcode %s", opcode);
    lex_next(lexer);
    if (form.shape == PTX_SHAPE_BRANCH ? !add_jump(parser)
                                       : !take_operands(parser, opcode, &form, &code))
        return false;
    if (!keep_listing(parser, begin, lexer->token.text, &code.text) || !parse_expect(parser, ';'))
        return false;
    note_narrow(kernel, &form, &code);
    if (kernel->code_count >= PARSE_CODE_MAX)
        return parse_fail(parser, "more than %u instructions", PARSE_CODE_MAX);
    if (!parse_grow(parser, (void **)&kernel->code, kernel->code_count, sizeof(code)))
        return false;
    kernel->code[kernel->code_count++] = code;
    return true;
}

static uint32_t place(const struct ptx_kernel *kernel, uint32_t operand)
{
    if (operand == PTX_NO_OPERAND)
        return operand;
    if (operand & PARSE_CONSTANT)
        return kernel->register_count + (operand & ~PARSE_CONSTANT);
    if (operand & PARSE_SPECIAL)
        return kernel->register_count + kernel->constant_count + (operand & ~PARSE_SPECIAL);
    return operand;
}

static bool join_jump(struct parser *parser, const struct parse_jump *jump)
{
    for (uint32_t k = 0; k < parser->labels_count; k++)
        if (strcmp(parser->labels[k].name, jump->name) == 0) {
            parser->kernel.code[jump->code].target = parser->labels[k].code;
            return true;
        }
    return parse_fail(parser, "no label %s, which line %u jumps to", jump->name, jump->line);
}

/* The end of a kernel is a return, written or not. */
static bool add_return(struct parser *parser)
{
    struct ptx_kernel *kernel = &parser->kernel;
    struct ptx_instruction code = { .guard = PTX_NO_OPERAND, .line = parser->lexer.token.line };
    static const char text[] = "ret";
    struct ptx_form form;

    (void)ptx_form_find("ret", &form, &code);
    if (!keep_listing(parser, text, text + 3, &code.text) ||
        !parse_grow(parser, (void **)&kernel->code, kernel->code_count, sizeof(code)))
        return false;
    kernel->code[kernel->code_count++] = code;
    return true;
}

bool parse_finish_code(struct parser *parser)
{
    struct ptx_kernel *kernel = &parser->kernel;

    if (!add_return(parser))
        return false;
    for (uint32_t k = 0; k < parser->jumps_count; k++)
        if (!join_jump(parser, &parser->jumps[k]))
            return false;
    for (uint32_t k = 0; k < kernel->code_count; k++) {
        struct ptx_instruction *code = &kernel->code[k];

        for (uint8_t i = 0; i < code->result_count; i++)
            code->result[i] = place(kernel, code->result[i]);
        for (uint8_t i = 0; i < code->source_count; i++)
            code->source[i] = place(kernel, code->source[i]);
    }
    parser->jumps_count = 0;
    parser->labels_count = 0;
    parser->registers_count = 0;
    parser->locals_count = 0;
    parser->listing_bytes = 0;
    parser->dynamic_shared = false;
    return true;
}
