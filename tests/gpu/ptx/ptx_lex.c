/* ptx_lex: see ptx_lex.h. Nothing here trusts the text: every step looks for the end first. */
#include "ptx_lex.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#define NUMBER_BYTES 48

void lex_open(struct lexer *lexer, const char *text, size_t bytes)
{
    *lexer = (struct lexer){ .next = text, .end = text + bytes, .line = 1 };
    lex_next(lexer);
}

static bool starts(const struct lexer *lexer, const char *two)
{
    return lexer->end - lexer->next >= 2 && lexer->next[0] == two[0] && lexer->next[1] == two[1];
}

static void skip_comment_block(struct lexer *lexer)
{
    lexer->next += 2;
    while (lexer->next < lexer->end && !starts(lexer, "*/")) {
        lexer->line += *lexer->next == '\n';
        lexer->next++;
    }
    lexer->next += lexer->next < lexer->end ? 2 : 0;
}

static void skip_blanks(struct lexer *lexer)
{
    while (lexer->next < lexer->end) {
        if (starts(lexer, "//")) {
            while (lexer->next < lexer->end && *lexer->next != '\n')
                lexer->next++;
        } else if (starts(lexer, "/*")) {
            skip_comment_block(lexer);
        } else if (isspace((unsigned char)*lexer->next) || *lexer->next == '\0') {
            lexer->line += *lexer->next == '\n';
            lexer->next++;
        } else {
            return;
        }
    }
}

static bool in_word(const struct lexer *lexer)
{
    const char c = *lexer->next;

    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

static void take_word(struct lexer *lexer)
{
    while (lexer->next < lexer->end) {
        if (starts(lexer, "::"))
            lexer->next += 2;
        else if (in_word(lexer))
            lexer->next++;
        else
            return;
    }
}

void lex_next(struct lexer *lexer)
{
    struct token *token = &lexer->token;

    skip_blanks(lexer);
    *token = (struct token){ .kind = TOKEN_END, .text = lexer->next, .line = lexer->line };
    if (lexer->next == lexer->end)
        return;
    if (*lexer->next == '"') {
        const char *close = memchr(lexer->next + 1, '"', (size_t)(lexer->end - lexer->next) - 1);

        token->kind = TOKEN_STRING;
        token->text = lexer->next + 1;
        token->length = (size_t)((close ? close : lexer->end) - token->text);
        lexer->next = close ? close + 1 : lexer->end;
        return;
    }
    if (isdigit((unsigned char)*lexer->next)) {
        token->kind = TOKEN_NUMBER;
        take_word(lexer);
    } else if (in_word(lexer)) {
        token->kind = TOKEN_WORD;
        take_word(lexer);
    } else {
        token->kind = TOKEN_MARK;
        lexer->next++;
    }
    token->length = (size_t)(lexer->next - token->text);
}

void lex_skip_line(struct lexer *lexer)
{
    /* The token looked at may be on the next line already. */
    const uint32_t line = lexer->token.line;

    while (lexer->token.kind != TOKEN_END && lexer->token.line == line)
        lex_next(lexer);
}

bool lex_is(const struct lexer *lexer, char mark)
{
    return lexer->token.kind == TOKEN_MARK && *lexer->token.text == mark;
}

bool lex_is_word(const struct lexer *lexer, const char *word)
{
    return lexer->token.kind == TOKEN_WORD && lexer->token.length == strlen(word) &&
           memcmp(lexer->token.text, word, lexer->token.length) == 0;
}

bool lex_take(struct lexer *lexer, char mark)
{
    if (!lex_is(lexer, mark))
        return false;
    lex_next(lexer);
    return true;
}

bool lex_copy(const struct token *token, char *text, size_t bytes)
{
    if (token->length >= bytes)
        return false;
    memcpy(text, token->text, token->length);
    text[token->length] = '\0';
    return true;
}

bool lex_number(const struct token *token, uint64_t *value)
{
    char text[NUMBER_BYTES], *end = NULL;
    int base = 10;
    const char *digits = text;

    if (token->kind != TOKEN_NUMBER || !lex_copy(token, text, sizeof(text)))
        return false;
    errno = 0;
    if (text[0] == '0' && text[1] != '\0' && strchr("xXfFdD", text[1])) {
        const size_t wanted = strchr("fF", text[1]) ? 8 : 16;

        base = 16;
        digits = text + 2;
        if (strchr("xX", text[1]) == NULL && strlen(digits) != wanted)
            return false;
        if (!isxdigit((unsigned char)digits[0]))
            return false;
    } else if (strchr(text, '.')) {
        *value = ptx_bits_double(strtod(text, &end));
        return *end == '\0';
    }
    *value = strtoull(digits, &end, base);
    if (*end == 'U' && base == 10)
        end++;
    return *end == '\0' && errno == 0;
}
