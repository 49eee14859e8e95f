/* ptx_lex: the text of a module as tokens, one ahead. */
#ifndef FIRE_PTX_LEX_H
#define FIRE_PTX_LEX_H

#include "ptx_internal.h"

enum token_kind {
    TOKEN_END,
    TOKEN_WORD,   /* opcode, directive, register, label, name: letters digits _ $ % . and :: */
    TOKEN_NUMBER, /* begins with a digit */
    TOKEN_STRING, /* without its quotes */
    TOKEN_MARK,   /* one character */
};

struct token {
    enum token_kind kind;
    const char *text;
    size_t length;
    uint32_t line;
};

struct lexer {
    const char *next;
    const char *end;
    uint32_t line;
    struct token token; /* the one being looked at */
};

void lex_open(struct lexer *lexer, const char *text, size_t bytes);
void lex_next(struct lexer *lexer);      /* moves `token` on */
void lex_skip_line(struct lexer *lexer); /* the next token is the first of the next line */

bool lex_is(const struct lexer *lexer, char mark);
bool lex_is_word(const struct lexer *lexer, const char *word);
/* Takes `mark` if it is there. */
bool lex_take(struct lexer *lexer, char mark);

/* The token's text with a zero at its end; false when it does not fit. */
bool lex_copy(const struct token *token, char *text, size_t bytes);

/* A number token: decimal, 0x…, 0f…, 0d… or with a point; floats come as their bits, f32 for 0f
 * and f64 for others. False when it is none of these or does not fit 64 bits. */
bool lex_number(const struct token *token, uint64_t *value);

#endif
