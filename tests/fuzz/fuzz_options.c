/* Any text, line by line, as presets and `--set` pairs. What must hold whatever the text:
 *   a refused line changes nothing and says why;
 *   an accepted one can be written and read back to the same bytes;
 *   the views of a tensor under the options stay inside the tensor. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "tensor.h"

#define LINE_BYTES 4096
#define VIEWS_MAX  4096 /* looked at in one tensor */

/* Not assert(): this must stop in Release too. */
static void demand(bool condition)
{
    if (!condition)
        abort();
}

static void preset(struct fire_options *options, const char *name)
{
    struct fire_error error;

    demand(fire_options_preset(options, name, &error) == FIRE_OK);
}

/* Every key written and set on another preset's options gives the same bytes. */
static void round_trip(const struct fire_options *options)
{
    struct fire_options again;
    struct fire_error error;

    preset(&again, "rust-guide");
    memcpy(again.preset, options->preset, sizeof(again.preset));
    again.select = options->select;
    for (size_t i = 0; i < fire_option_key_count(); i++) {
        char text[FIRE_OPTION_TEXT_BYTES];

        fire_options_format(options, i, text, sizeof(text));
        demand(fire_options_set(&again, fire_option_key_at(i)->name, text, &error) == FIRE_OK);
    }
    demand(memcmp(&again, options, sizeof(again)) == 0);
}

static void views_stay_inside(const struct fire_options *options)
{
    static const struct fire_shape shapes[] = {
        { 2, { 96, 32 } },
        { 3, { 4, 12, 6 } },
        { 4, { 8, 6, 3, 3 } },
        { 4, { 3, 3, 6, 8 } },
        { 8, { 2, 2, 2, 2, 2, 2, 6, 5 } },
        { 2, { 131072, 2 } },
    };

    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        struct fire_error error;
        uint64_t elements, count, covered = 0;

        demand(fire_shape_elements(&shapes[s], &elements, &error) == FIRE_OK);
        if (fire_view_count(&shapes[s], options, &count, &error) != FIRE_OK)
            continue;
        demand(count > 0 && count <= VIEWS_MAX);
        for (uint64_t i = 0; i < count; i++) {
            struct fire_view view;

            fire_view_at(&shapes[s], options, i, &view);
            demand(view.rows > 0 && view.cols > 0);
            demand(view.offset + (view.rows - 1) * view.row_stride +
                       (view.cols - 1) * view.col_stride <
                   elements);
            covered += (uint64_t)view.rows * view.cols;
        }
        demand(covered == elements);
    }
}

static void take_line(struct fire_options *options, const char *line)
{
    const struct fire_options before = *options;
    struct fire_error error = { .message = "" };
    enum fire_status status;

    if (strncmp(line, "preset=", strlen("preset=")) == 0)
        status = fire_options_preset(options, line + strlen("preset="), &error);
    else
        status = fire_options_set_pair(options, line, &error);
    if (status != FIRE_OK) {
        demand(memcmp(&before, options, sizeof(before)) == 0);
        demand(error.status == status && error.message[0] != '\0');
        return;
    }
    round_trip(options);
    views_stay_inside(options);
    for (int i = 0; i < FIRE_DTYPE_COUNT; i++) {
        const enum fire_dtype dtype = (enum fire_dtype)i;

        demand(fire_options_target(options, dtype, 64, 48) > 0.0);
        /* Text can only set what is in range: nothing but the target is left to refuse. */
        if (fire_options_check(options, dtype, 64, 48, &error) != FIRE_OK)
            demand(strcmp(error.field, "target") == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fire_options options;
    char line[LINE_BYTES];
    size_t start = 0;

    preset(&options, "fire");
    while (start < size) {
        const uint8_t *end = memchr(data + start, '\n', size - start);
        const size_t length = (end ? (size_t)(end - data) : size) - start;
        const size_t kept = length < LINE_BYTES ? length : LINE_BYTES - 1;

        memcpy(line, data + start, kept);
        line[kept] = '\0';
        take_line(&options, line);
        start += length + 1;
    }
    return 0;
}
