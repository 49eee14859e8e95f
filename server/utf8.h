/* utf8: where a character ends. Used on text from strangers before it is shown or kept. */
#ifndef FIRED_UTF8_H
#define FIRED_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* How many bytes the UTF-8 character at `text` has, or 0 when it is none: overlong forms,
 * surrogates and what lies past U+10FFFF are none. `text` ends with a NUL, which no character's
 * later byte can be, so nothing is read past it. */
static inline size_t utf8_bytes(const char *bytes)
{
    const unsigned char *text = (const unsigned char *)bytes;
    size_t count;

    if (text[0] < 0x80)
        return 1;
    if (text[0] < 0xc2 || text[0] > 0xf4)
        return 0;
    count = text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
    if (text[0] == 0xe0 && text[1] < 0xa0)
        return 0;
    if (text[0] == 0xed && text[1] > 0x9f)
        return 0;
    if (text[0] == 0xf0 && text[1] < 0x90)
        return 0;
    if (text[0] == 0xf4 && text[1] > 0x8f)
        return 0;
    for (size_t i = 1; i < count; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    return count;
}

/* Whether the character of `count` bytes is a control, U+0000 to U+001F and U+007F to U+009F:
 * terminals obey those in two bytes too. */
static inline bool utf8_is_control(const char *bytes, size_t count)
{
    const unsigned char *text = (const unsigned char *)bytes;

    if (count == 1)
        return text[0] < 0x20 || text[0] == 0x7f;
    return count == 2 && text[0] == 0xc2 && text[1] < 0xa0;
}

/* Puts a question mark for every byte that is not UTF-8 or belongs to a control, so that a message
 * stays one line whatever it quotes. */
static inline void utf8_make_printable(char *text)
{
    while (*text) {
        const size_t bytes = utf8_bytes(text);

        if (bytes == 0 || utf8_is_control(text, bytes))
            for (size_t i = 0; i < (bytes ? bytes : 1); i++)
                text[i] = '?';
        text += bytes ? bytes : 1;
    }
}

#endif
