/* ptx_parse: from text to a module: directives, kernels, parameters, registers and variables. */
#include "ptx_parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool parse_fail(struct parser *parser, const char *format, ...)
{
    char what[300];
    va_list arguments;

    if (parser->report->kind != PTX_OK)
        return false; /* the first one counts */
    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    parser->report->kind = PTX_BAD_TEXT;
    parser->report->line = parser->lexer.token.line;
    snprintf(parser->report->text, sizeof(parser->report->text), "bad text: line %u: %s",
             parser->lexer.token.line, what);
    return false;
}

bool parse_grow(struct parser *parser, void **array, uint32_t count, size_t element_bytes)
{
    void *grown;

    if (count & (count - 1)) /* room is always a power of two, or none */
        return true;
    grown = realloc(*array, (count ? 2 * (size_t)count : 1) * element_bytes);
    if (!grown) {
        parser->report->kind = PTX_NO_MEMORY;
        snprintf(parser->report->text, sizeof(parser->report->text), "no memory for a module");
        return false;
    }
    *array = grown;
    return true;
}

bool parse_expect(struct parser *parser, char mark)
{
    if (lex_take(&parser->lexer, mark))
        return true;
    return parse_fail(parser, "'%c' expected, not '%.*s'", mark,
                      (int)(parser->lexer.token.length < 40 ? parser->lexer.token.length : 40),
                      parser->lexer.token.text);
}

static bool take_number(struct parser *parser, uint64_t *value)
{
    if (!lex_number(&parser->lexer.token, value))
        return parse_fail(parser, "a number expected");
    lex_next(&parser->lexer);
    return true;
}

/* Declarations: `.align 8 .b8 name[24]`, with `.ptr` and its space before the name of a parameter.
 */
struct declaration {
    char name[PTX_NAME_BYTES];
    enum ptx_type type;
    uint64_t align;
    uint64_t count; /* elements; 0: `[]` */
};

static bool take_property(struct parser *parser, struct declaration *out)
{
    char word[32];

    if (lex_is_word(&parser->lexer, ".align")) {
        lex_next(&parser->lexer);
        if (!take_number(parser, &out->align))
            return false;
        return (out->align && out->align <= 256 && !(out->align & (out->align - 1))) ||
               parse_fail(parser, "no alignment");
    }
    if (!lex_copy(&parser->lexer.token, word, sizeof(word)))
        return parse_fail(parser, "an unknown property");
    if (strcmp(word, ".ptr") != 0 && strcmp(word, ".global") != 0 && strcmp(word, ".const") != 0) {
        out->type = ptx_type_of(word + 1);
        if (out->type >= PTX_PRED)
            return parse_fail(parser, "unknown property %s of a variable", word);
    }
    lex_next(&parser->lexer);
    return true;
}

static bool take_declaration(struct parser *parser, struct declaration *out)
{
    struct lexer *lexer = &parser->lexer;

    *out = (struct declaration){ .type = PTX_TYPE_COUNT, .count = 1 };
    while (lexer->token.kind == TOKEN_WORD && lexer->token.text[0] == '.')
        if (!take_property(parser, out))
            return false;
    if (out->type == PTX_TYPE_COUNT || lexer->token.kind != TOKEN_WORD ||
        !lex_copy(&lexer->token, out->name, sizeof(out->name)))
        return parse_fail(parser, "a variable has no type or no name");
    lex_next(lexer);
    while (lex_take(lexer, '[')) {
        uint64_t count = 0;

        if (!lex_is(lexer, ']') && (!take_number(parser, &count) || count > PARSE_DATA_MAX))
            return parse_fail(parser, "a variable is too long");
        out->count *= count;
        if (out->count > PARSE_DATA_MAX || !parse_expect(parser, ']'))
            return parse_fail(parser, "a variable is too long");
    }
    if (out->align == 0)
        out->align = ptx_type_bytes(out->type);
    return true;
}

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

static bool add_variable(struct parser *parser, struct ptx_variable **list, uint32_t *count,
                         const struct ptx_variable *variable)
{
    if (!parse_grow(parser, (void **)list, *count, sizeof(**list)))
        return false;
    (*list)[(*count)++] = *variable;
    return true;
}

static bool take_parameter(struct parser *parser)
{
    struct ptx_kernel *kernel = &parser->kernel;
    struct declaration declared;
    struct ptx_variable variable = { .space = PTX_PARAM };

    if (!lex_is_word(&parser->lexer, ".param"))
        return parse_fail(parser, "a parameter expected");
    lex_next(&parser->lexer);
    if (!take_declaration(parser, &declared))
        return false;
    memcpy(variable.name, declared.name, sizeof(variable.name));
    variable.address = round_up(kernel->parameter_bytes, declared.align);
    variable.bytes = declared.count * ptx_type_bytes(declared.type);
    if (variable.bytes == 0 || variable.address + variable.bytes > PARSE_PARAM_MAX)
        return parse_fail(parser, "parameters of more than %u bytes", PARSE_PARAM_MAX);
    kernel->parameter_bytes = (uint32_t)(variable.address + variable.bytes);
    return add_variable(parser, &kernel->parameters, &kernel->parameter_count, &variable);
}

static bool place_shared(struct parser *parser, const struct ptx_variable *declared, uint64_t align)
{
    struct ptx_kernel *kernel = &parser->kernel;
    struct ptx_variable variable = *declared;

    if (parser->dynamic_shared && !variable.is_dynamic)
        return parse_fail(parser, "%s comes after dynamic shared memory", variable.name);
    for (uint32_t k = 0; k < kernel->shared_count && variable.is_dynamic; k++)
        if (kernel->shared[k].is_dynamic) { /* another name for the same memory */
            variable.address = kernel->shared[k].address;
            return add_variable(parser, &kernel->shared, &kernel->shared_count, &variable);
        }
    parser->dynamic_shared |= variable.is_dynamic;
    variable.address = round_up(kernel->shared_bytes + PTX_SHARED_GAP, align < 16 ? 16 : align);
    if (variable.address + variable.bytes > 2u * PTX_SHARED_BYTES_MAX)
        return parse_fail(parser, "more shared memory than there is");
    kernel->shared_bytes = (uint32_t)(variable.address + variable.bytes);
    kernel->shared_plain += (uint32_t)variable.bytes;
    return add_variable(parser, &kernel->shared, &kernel->shared_count, &variable);
}

/* `.shared` or `.local` inside a kernel. */
static bool take_block_variable(struct parser *parser, enum ptx_space space)
{
    struct declaration declared;
    struct ptx_variable variable = { .space = space };
    struct ptx_kernel *kernel = &parser->kernel;

    lex_next(&parser->lexer);
    if (!take_declaration(parser, &declared))
        return false;
    memcpy(variable.name, declared.name, sizeof(variable.name));
    variable.bytes = declared.count * ptx_type_bytes(declared.type);
    if (variable.bytes == 0)
        return parse_fail(parser, "%s has no size", variable.name);
    if (space == PTX_SHARED) {
        if (!place_shared(parser, &variable, declared.align))
            return false;
    } else {
        variable.address = round_up(kernel->local_bytes, declared.align);
        if (variable.address + variable.bytes > PARSE_LOCAL_MAX)
            return parse_fail(parser, "more than %u bytes of local memory", PARSE_LOCAL_MAX);
        kernel->local_bytes = (uint32_t)(variable.address + variable.bytes);
        if (!add_variable(parser, &parser->locals, &parser->locals_count, &variable))
            return false;
    }
    return parse_expect(parser, ';');
}

static const struct ptx_variable *find(const struct ptx_variable *list, uint32_t count,
                                       const char *name)
{
    for (uint32_t k = 0; k < count; k++)
        if (strcmp(list[k].name, name) == 0)
            return &list[k];
    return NULL;
}

bool parse_find_variable(struct parser *parser, const char *name, enum ptx_space *space,
                         uint64_t *address)
{
    const struct ptx_kernel *kernel = &parser->kernel;
    const struct ptx_variable *found = find(parser->locals, parser->locals_count, name);

    if (!found)
        found = find(kernel->shared, kernel->shared_count, name);
    if (!found)
        found = find(kernel->parameters, kernel->parameter_count, name);
    if (!found) {
        found = find(parser->module->variables, parser->module->variable_count, name);
        if (found && found->space == PTX_SHARED) {
            /* A variable of the module that this kernel is the next to use. */
            if (!place_shared(parser, found, 128))
                return false;
            found = &kernel->shared[kernel->shared_count - 1];
        }
    }
    if (!found)
        return false;
    *space = found->space;
    *address = found->address;
    return true;
}

static bool add_data(struct parser *parser, uint64_t bytes, uint64_t align, uint64_t *address)
{
    struct ptx_module *module = parser->module;
    const uint64_t begin = round_up(module->data_bytes, align);
    uint8_t *grown;

    if (begin + bytes > PARSE_DATA_MAX)
        return parse_fail(parser, "more than %u bytes of variables", PARSE_DATA_MAX);
    grown = realloc(module->data, begin + bytes);
    if (!grown)
        return parse_fail(parser, "no memory");
    memset(grown + module->data_bytes, 0, begin + bytes - module->data_bytes);
    module->data = grown;
    module->data_bytes = begin + bytes;
    *address = begin;
    return true;
}

/* `= 5` or `= {1, 2, {3, 4}}`: braces only group. */
static bool take_initialiser(struct parser *parser, const struct declaration *declared,
                             uint64_t address)
{
    const uint32_t bytes = ptx_type_bytes(declared->type);
    uint64_t element = 0;
    struct lexer *lexer = &parser->lexer;

    while (!lex_is(lexer, ';') && lexer->token.kind != TOKEN_END) {
        uint64_t value;
        bool negative;

        if (lex_take(lexer, '{') || lex_take(lexer, '}') || lex_take(lexer, ','))
            continue;
        negative = lex_take(lexer, '-');
        if (!take_number(parser, &value))
            return false;
        if (element == declared->count)
            return parse_fail(parser, "%s has too many values", declared->name);
        value = negative ? 0u - value : value;
        memcpy(parser->module->data + address + element * bytes, &value, bytes);
        element++;
    }
    return true;
}

/* A variable of the module: `.extern .shared`, `.shared`, `.global` or `.const`. */
static bool take_module_variable(struct parser *parser, enum ptx_space space, bool is_extern)
{
    struct ptx_module *module = parser->module;
    struct declaration declared;
    struct ptx_variable variable = { .space = space };
    uint64_t address = 0;

    lex_next(&parser->lexer);
    if (!take_declaration(parser, &declared))
        return false;
    memcpy(variable.name, declared.name, sizeof(variable.name));
    variable.bytes = declared.count * ptx_type_bytes(declared.type);
    variable.is_dynamic = space == PTX_SHARED && is_extern;
    if (variable.is_dynamic != (variable.bytes == 0))
        return parse_fail(parser, "%s has no size, or a size it must not have", variable.name);
    if (space != PTX_SHARED) {
        if (!add_data(parser, variable.bytes, declared.align, &address))
            return false;
        variable.address = PTX_MODULE_WINDOW | address;
        variable.space = PTX_CONST;
        if (lex_take(&parser->lexer, '=') && !take_initialiser(parser, &declared, address))
            return false;
    }
    return add_variable(parser, &module->variables, &module->variable_count, &variable) &&
           parse_expect(parser, ';');
}

/* `.reg .b32 %r<71>, %SP;` */
static bool take_registers(struct parser *parser)
{
    struct lexer *lexer = &parser->lexer;

    lex_next(lexer); /* .reg */
    lex_next(lexer); /* its type: every register is 64 bits here */
    do {
        struct parse_registers registers = { .first = parser->kernel.register_count,
                                             .count = 1,
                                             .scope = parser->scope };
        uint64_t count = 1;

        if (lexer->token.kind != TOKEN_WORD ||
            !lex_copy(&lexer->token, registers.prefix, sizeof(registers.prefix)))
            return parse_fail(parser, "a register has no name");
        lex_next(lexer);
        if (lex_take(lexer, '<')) {
            registers.is_range = true;
            if (!take_number(parser, &count) || !parse_expect(parser, '>'))
                return false;
        }
        if (count > PARSE_REGISTERS_MAX ||
            parser->kernel.register_count + count > PARSE_REGISTERS_MAX)
            return parse_fail(parser, "more than %u registers", PARSE_REGISTERS_MAX);
        registers.count = (uint32_t)count;
        parser->kernel.register_count += registers.count;
        if (!parse_grow(parser, (void **)&parser->registers, parser->registers_count,
                        sizeof(registers)))
            return false;
        parser->registers[parser->registers_count++] = registers;
    } while (lex_take(lexer, ','));
    return parse_expect(parser, ';');
}

/* A closing brace ends the registers declared since its opening one. */
static void leave_scope(struct parser *parser)
{
    while (parser->registers_count > 0 &&
           parser->registers[parser->registers_count - 1].scope == parser->scope)
        parser->registers_count--;
    parser->scope--;
}

static bool take_label(struct parser *parser, const struct token *name)
{
    struct parse_label label = { .code = parser->kernel.code_count };

    if (!lex_copy(name, label.name, sizeof(label.name)))
        return parse_fail(parser, "a label is too long");
    if (!parse_grow(parser, (void **)&parser->labels, parser->labels_count, sizeof(label)))
        return false;
    parser->labels[parser->labels_count++] = label;
    return true;
}

static bool skip_to(struct parser *parser, char mark)
{
    while (!lex_is(&parser->lexer, mark)) {
        if (parser->lexer.token.kind == TOKEN_END)
            return parse_fail(parser, "the text ends before '%c'", mark);
        lex_next(&parser->lexer);
    }
    lex_next(&parser->lexer);
    return true;
}

static bool take_directive(struct parser *parser)
{
    struct lexer *lexer = &parser->lexer;

    if (lex_is_word(lexer, ".reg"))
        return take_registers(parser);
    if (lex_is_word(lexer, ".shared"))
        return take_block_variable(parser, PTX_SHARED);
    if (lex_is_word(lexer, ".local"))
        return take_block_variable(parser, PTX_LOCAL);
    if (lex_is_word(lexer, ".pragma"))
        return skip_to(parser, ';');
    if (lex_is_word(lexer, ".loc")) {
        lex_skip_line(lexer);
        return true;
    }
    return parse_fail(parser, "unknown directive %.*s",
                      (int)(lexer->token.length < 40 ? lexer->token.length : 40),
                      lexer->token.text);
}

/* A label and its colon, or an instruction. */
static bool take_statement(struct parser *parser)
{
    struct lexer *lexer = &parser->lexer;
    struct lexer ahead = *lexer;

    lex_next(&ahead);
    if (lexer->token.kind == TOKEN_WORD && lex_is(&ahead, ':')) {
        const struct token name = lexer->token;

        lex_next(lexer);
        lex_next(lexer);
        return take_label(parser, &name);
    }
    return parse_instruction(parser);
}

static bool take_body(struct parser *parser)
{
    struct lexer *lexer = &parser->lexer;

    parser->scope = 1;
    while (parser->scope > 0) {
        bool good = true;

        if (lexer->token.kind == TOKEN_END)
            return parse_fail(parser, "the text ends inside a kernel");
        if (lex_take(lexer, '{')) {
            if (++parser->scope > PARSE_SCOPES_MAX)
                return parse_fail(parser, "braces are too deep");
        } else if (lex_take(lexer, '}')) {
            leave_scope(parser);
        } else if (lex_take(lexer, ';')) {
            continue;
        } else if (lexer->token.kind == TOKEN_WORD && lexer->token.text[0] == '.') {
            good = take_directive(parser);
        } else {
            good = take_statement(parser);
        }
        if (!good)
            return false;
    }
    return parse_finish_code(parser);
}

/* `.maxntid 256, 1, 1` and the like, between the parameters and the body. */
static bool take_performance(struct parser *parser)
{
    struct lexer *lexer = &parser->lexer;
    const bool limits = lex_is_word(lexer, ".maxntid") || lex_is_word(lexer, ".reqntid");
    uint64_t threads = 1, value = 0;

    if (!limits && !lex_is_word(lexer, ".minnctapersm") && !lex_is_word(lexer, ".maxnreg"))
        return parse_fail(parser, "unknown property of a kernel");
    lex_next(lexer);
    do {
        if (!take_number(parser, &value) || value == 0 || value > UINT16_MAX)
            return parse_fail(parser, "a number from 1 to 65535 expected");
        threads *= value;
        if (threads > UINT32_MAX)
            return parse_fail(parser, "too many threads");
    } while (lex_take(lexer, ','));
    if (limits)
        parser->kernel.threads_max = (uint32_t)threads;
    return true;
}

static bool take_kernel(struct parser *parser)
{
    struct ptx_module *module = parser->module;
    struct lexer *lexer = &parser->lexer;

    lex_next(lexer); /* .entry */
    if (lexer->token.kind != TOKEN_WORD ||
        !lex_copy(&lexer->token, parser->kernel.name, sizeof(parser->kernel.name)))
        return parse_fail(parser, "a kernel has no name, or one of more than %d characters",
                          PTX_NAME_BYTES - 1);
    lex_next(lexer);
    if (!parse_expect(parser, '('))
        return false;
    while (!lex_take(lexer, ')'))
        if (!take_parameter(parser) || (!lex_is(lexer, ')') && !parse_expect(parser, ',')))
            return false;
    while (!lex_is(lexer, '{'))
        if (!take_performance(parser))
            return false;
    lex_next(lexer);
    if (!take_body(parser) || !parse_grow(parser, (void **)&module->kernels, module->kernel_count,
                                          sizeof(parser->kernel)))
        return false;
    module->kernels[module->kernel_count++] = parser->kernel;
    memset(&parser->kernel, 0, sizeof(parser->kernel));
    return true;
}

static bool skip_section(struct parser *parser)
{
    return skip_to(parser, '{') && skip_to(parser, '}');
}

static bool take_toplevel(struct parser *parser, bool *is_extern)
{
    struct lexer *lexer = &parser->lexer;

    if (lex_is_word(lexer, ".visible") || lex_is_word(lexer, ".weak")) {
        lex_next(lexer);
        return true;
    }
    if (lex_is_word(lexer, ".extern")) {
        *is_extern = true;
        lex_next(lexer);
        return true;
    }
    if (lex_is_word(lexer, ".entry"))
        return take_kernel(parser);
    if (lex_is_word(lexer, ".section"))
        return skip_section(parser);
    if (lex_is_word(lexer, ".version") || lex_is_word(lexer, ".target") ||
        lex_is_word(lexer, ".address_size") || lex_is_word(lexer, ".file")) {
        lex_skip_line(lexer);
        return true;
    }
    if (lex_is_word(lexer, ".shared") || lex_is_word(lexer, ".global") ||
        lex_is_word(lexer, ".const")) {
        const enum ptx_space space = lex_is_word(lexer, ".shared") ? PTX_SHARED : PTX_CONST;
        const bool was_extern = *is_extern;

        *is_extern = false;
        return take_module_variable(parser, space, was_extern);
    }
    return parse_fail(parser, "unknown directive '%.*s'",
                      (int)(lexer->token.length < 40 ? lexer->token.length : 40),
                      lexer->token.text);
}

static void release_kernel(struct ptx_kernel *kernel)
{
    free(kernel->code);
    free(kernel->listing);
    free(kernel->constants);
    free(kernel->parameters);
    free(kernel->shared);
}

struct ptx_module *ptx_open(const char *text, size_t bytes, struct ptx_report *report)
{
    struct parser parser = { .report = report };
    bool good = true, is_extern = false;

    memset(report, 0, sizeof(*report));
    parser.module = calloc(1, sizeof(*parser.module));
    if (!parser.module) {
        report->kind = PTX_NO_MEMORY;
        return NULL;
    }
    lex_open(&parser.lexer, text, bytes);
    while (good && parser.lexer.token.kind != TOKEN_END)
        good = take_toplevel(&parser, &is_extern);
    if (good && parser.module->kernel_count == 0)
        good = parse_fail(&parser, "no kernel in the text");
    free(parser.registers);
    free(parser.labels);
    free(parser.jumps);
    free(parser.locals);
    release_kernel(&parser.kernel);
    if (!good) {
        ptx_close(parser.module);
        return NULL;
    }
    return parser.module;
}

void ptx_close(struct ptx_module *module)
{
    if (!module)
        return;
    for (uint32_t k = 0; k < module->kernel_count; k++)
        release_kernel(&module->kernels[k]);
    free(module->kernels);
    free(module->variables);
    free(module->data);
    free(module);
}

size_t ptx_kernel_count(const struct ptx_module *module)
{
    return module->kernel_count;
}

const char *ptx_kernel_name(const struct ptx_module *module, size_t index)
{
    return module->kernels[index].name;
}
