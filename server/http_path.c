#include "http_path.h"

#include <string.h>

#include "json_message.h"

static int hex_digit(char letter)
{
    if (letter >= '0' && letter <= '9')
        return letter - '0';
    letter |= 0x20;
    return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

/* One segment without its percent signs; false for what no name can be. */
static bool decode_segment(const char *from, size_t bytes, char out[HTTP_SEGMENT_BYTES])
{
    size_t used = 0;

    for (size_t i = 0; i < bytes; i++) {
        int letter = (unsigned char)from[i];

        if (letter == '%') {
            const int high = i + 2 < bytes ? hex_digit(from[i + 1]) : -1;
            const int low = high < 0 ? -1 : hex_digit(from[i + 2]);

            if (low < 0)
                return false;
            letter = high << 4 | low;
            i += 2;
        }
        if (letter == 0 || used + 1 >= HTTP_SEGMENT_BYTES)
            return false;
        out[used++] = (char)letter;
    }
    out[used] = '\0';
    return used > 0 && json_is_utf8(out);
}

bool http_path_split(const char *path, struct http_segments *segments)
{
    segments->count = 0;
    for (;;) {
        const size_t bytes = strcspn(path, "/");

        if (segments->count == HTTP_SEGMENTS_MAX ||
            !decode_segment(path, bytes, segments->text[segments->count]))
            return false;
        segments->count++;
        if (!path[bytes])
            return true;
        path += bytes + 1;
    }
}
