/* ptx_parse: what the two halves of the parser share: ptx_parse.c reads modules, declarations and
 * variables, ptx_statement.c the instructions of a kernel. */
#ifndef FIRE_PTX_PARSE_H
#define FIRE_PTX_PARSE_H

#include "ptx_lex.h"

#define PARSE_REGISTERS_MAX (1u << 16)
#define PARSE_CODE_MAX      (1u << 20)
#define PARSE_LOCAL_MAX     (64u << 10)
#define PARSE_PARAM_MAX     32764u
#define PARSE_DATA_MAX      (1u << 20)
#define PARSE_SCOPES_MAX    64u

/* Until the kernel is complete the place of constants and special registers in a frame is not
 * known: operands are marked, and ptx_statement_finish() turns the marks into indices. */
#define PARSE_CONSTANT (UINT32_C(1) << 30)
#define PARSE_SPECIAL  (UINT32_C(1) << 29)

/* `.reg .b32 %r<71>;` is one of these, and so is `.reg .pred p;`. */
struct parse_registers {
    char prefix[64];
    uint32_t first;
    uint32_t count;
    uint32_t scope;
    bool is_range;
};

struct parse_label {
    char name[PTX_NAME_BYTES];
    uint32_t code;
};

/* A branch that waits for its label. */
struct parse_jump {
    char name[PTX_NAME_BYTES];
    uint32_t code;
    uint32_t line;
};

struct parser {
    struct lexer lexer;
    struct ptx_module *module;
    struct ptx_report *report;
    /* of the kernel being read */
    struct ptx_kernel kernel;
    struct parse_registers *registers;
    struct parse_label *labels;
    struct parse_jump *jumps;
    struct ptx_variable *locals;
    uint32_t registers_count, labels_count, jumps_count, locals_count;
    uint32_t listing_bytes;
    uint32_t scope;
    bool dynamic_shared; /* the kernel uses an .extern .shared variable */
};

/* Fills in the report and returns false. */
bool parse_fail(struct parser *parser, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Makes room for one more element; `*array` moves. False, with a report, without memory. */
bool parse_grow(struct parser *parser, void **array, uint32_t count, size_t element_bytes);

/* Takes `mark`, or fails. */
bool parse_expect(struct parser *parser, char mark);

/* ptx_statement.c: one instruction, from its guard to its semicolon. */
bool parse_instruction(struct parser *parser);
/* Joins branches and labels, and gives every operand its index. */
bool parse_finish_code(struct parser *parser);

/* ptx_parse.c: the address of a variable as an operand; false when there is none of that name. */
bool parse_find_variable(struct parser *parser, const char *name, enum ptx_space *space,
                         uint64_t *address);

#endif
