/* nearest: what a mistyped name was meant to be. */
#include <string.h>

#include "options.h"

#define NAME_BYTES 64 /* longer names are not compared */

static size_t smallest(size_t a, size_t b, size_t c)
{
    const size_t ab = a < b ? a : b;

    return ab < c ? ab : c;
}

/* Insertions, deletions and substitutions that turn one word into the other. */
static size_t edit_distance(const char *from, const char *to)
{
    const size_t width = strlen(to);
    size_t row[NAME_BYTES + 1];

    for (size_t j = 0; j <= width; j++)
        row[j] = j;
    for (size_t i = 0; from[i]; i++) {
        size_t diagonal = row[0];

        row[0] = i + 1;
        for (size_t j = 1; j <= width; j++) {
            const size_t above = row[j];

            row[j] = smallest(above + 1, row[j - 1] + 1, diagonal + (from[i] != to[j - 1]));
            diagonal = above;
        }
    }
    return row[width];
}

const char *fire_nearest_name(const char *word, const char *const *names, size_t count)
{
    const size_t length = strlen(word);
    const size_t near = length < 4 ? 1 : length < 8 ? 2 : length / 3;
    size_t best = near + 1;
    const char *nearest = NULL;

    if (length == 0 || length > NAME_BYTES)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t distance;

        if (strlen(names[i]) > NAME_BYTES)
            continue;
        distance = edit_distance(word, names[i]);
        if (distance > 1 && length >= 3 && strncmp(word, names[i], length) == 0)
            distance = 1; /* the beginning of a name is as good as one wrong letter */
        if (distance < best) {
            best = distance;
            nearest = names[i];
        }
    }
    return nearest;
}
