/* options: one table of keys; parsing, printing, checking, help and completion come from it.
 *
 * Text is read strictly: the whole of it, decimal, finite, within the limits the table shows, and
 * the same whatever the process's locale. What fire_options_format() writes, fire_options_set()
 * reads back to the same bits. */
#include "options.h"

#include <float.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor.h"

#define NUMBER_MAX        1e30
#define ABOVE_0           DBL_TRUE_MIN
#define NUMBER_BYTES      32
#define NUMBER_DIGITS_MAX 400 /* of a number given as text */
#define KEY_BYTES         64
#define SHOWN_MAX         48 /* characters of a bad value that a message repeats */

struct option {
    struct fire_option_key key;
    /* True when `text` was understood and `options` changed. */
    bool (*parse)(const struct option *option, struct fire_options *options, const char *text);
    void (*format)(const struct option *option, const struct fire_options *options, char *text,
                   size_t text_bytes);
    size_t offset;            /* of the member, where there is just one */
    double low, high;         /* of a number or count */
    const char *const *names; /* of a choice, ended by NULL; the index is the enum's value */
};

/* --- numbers as text -------------------------------------------------------------------------- */

/* Enters the "C" locale on this thread, so that 0.5 is never "0,5"; leave with locale_leave(). */
struct plain_locale {
    locale_t plain, before;
};

static struct plain_locale locale_enter(void)
{
    struct plain_locale locale = { .plain = newlocale(LC_ALL_MASK, "C", (locale_t)0) };

    locale.before = uselocale(locale.plain);
    return locale;
}

static void locale_leave(struct plain_locale locale)
{
    uselocale(locale.before);
    if (locale.plain)
        freelocale(locale.plain);
}

static const char *skip_digits(const char *text)
{
    while (*text >= '0' && *text <= '9')
        text++;
    return text;
}

/* [+-]digits[.digits][e[+-]digits], at least one digit before the exponent; NULL when it is not.
 * strtod() alone would also take spaces, "inf", "nan" and hexadecimal. */
static const char *skip_number(const char *text)
{
    const char *start, *end;
    size_t digits;

    if (*text == '+' || *text == '-')
        text++;
    start = text;
    end = skip_digits(start);
    digits = (size_t)(end - start);
    if (*end == '.') {
        start = end + 1;
        end = skip_digits(start);
        digits += (size_t)(end - start);
    }
    if (digits == 0 || digits > NUMBER_DIGITS_MAX)
        return NULL;
    if (*end == 'e' || *end == 'E') {
        start = end + 1;
        if (*start == '+' || *start == '-')
            start++;
        end = skip_digits(start);
        if (end == start)
            return NULL;
    }
    return end;
}

/* Reads a number at `*text` and moves past it. */
static bool read_number(const char **text, double *value)
{
    const char *end = skip_number(*text);
    struct plain_locale locale;

    if (!end)
        return false;
    locale = locale_enter();
    *value = strtod(*text, NULL);
    locale_leave(locale);
    *text = end;
    return isfinite(*value);
}

/* The shortest text that reads back as `value`. */
static const char *write_number(char text[NUMBER_BYTES], double value)
{
    struct plain_locale locale = locale_enter();

    for (int digits = 1; digits <= DBL_DECIMAL_DIG; digits++) {
        snprintf(text, NUMBER_BYTES, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    locale_leave(locale);
    return text;
}

static bool read_count(const char **text, uint64_t *value)
{
    const char *end = skip_digits(*text);
    uint64_t count = 0;

    if (end == *text)
        return false;
    for (const char *digit = *text; digit < end; digit++)
        if (__builtin_mul_overflow(count, UINT64_C(10), &count) ||
            __builtin_add_overflow(count, (uint64_t)(*digit - '0'), &count))
            return false;
    *text = end;
    *value = count;
    return true;
}

/* Appends to a text that may be full already. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t text_bytes,
                                                         const char *format, ...)
{
    const size_t used = strnlen(text, text_bytes);
    va_list arguments;

    if (used + 1 >= text_bytes)
        return;
    va_start(arguments, format);
    vsnprintf(text + used, text_bytes - used, format, arguments);
    va_end(arguments);
}

/* --- one parser and one printer for each kind of value ---------------------------------------- */

static void *member(const struct option *option, struct fire_options *options)
{
    return (char *)options + option->offset;
}

static const void *member_read(const struct option *option, const struct fire_options *options)
{
    return (const char *)options + option->offset;
}

static bool choose(const char *const *names, const char *text, uint32_t *index)
{
    for (uint32_t i = 0; names[i]; i++) {
        if (strcmp(names[i], text) == 0) {
            *index = i;
            return true;
        }
    }
    return false;
}

_Static_assert(sizeof(enum fire_normalize) == sizeof(uint32_t), "choices are stored as uint32_t");

static bool parse_choice(const struct option *option, struct fire_options *options,
                         const char *text)
{
    uint32_t index;

    if (!choose(option->names, text, &index))
        return false;
    memcpy(member(option, options), &index, sizeof(index));
    return true;
}

/* The name of a value; "unknown" for one that is not in the list, which no parser accepts. */
static const char *choice_name(const struct option *option, const struct fire_options *options)
{
    uint32_t index, count = 0;

    memcpy(&index, member_read(option, options), sizeof(index));
    while (option->names[count])
        count++;
    return index < count ? option->names[index] : "unknown";
}

static void format_choice(const struct option *option, const struct fire_options *options,
                          char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s", choice_name(option, options));
}

static bool parse_number(const struct option *option, struct fire_options *options,
                         const char *text)
{
    double value;

    if (!read_number(&text, &value) || *text != '\0')
        return false;
    if (value < option->low || value > option->high)
        return false;
    value += 0.0; /* -0 becomes 0 */
    memcpy(member(option, options), &value, sizeof(value));
    return true;
}

static void format_number(const struct option *option, const struct fire_options *options,
                          char *text, size_t text_bytes)
{
    char number[NUMBER_BYTES];
    double value;

    memcpy(&value, member_read(option, options), sizeof(value));
    snprintf(text, text_bytes, "%s", write_number(number, value));
}

static bool parse_count(const struct option *option, struct fire_options *options, const char *text)
{
    uint64_t value;
    uint32_t count;

    if (!read_count(&text, &value) || *text != '\0')
        return false;
    if ((double)value < option->low || (double)value > option->high)
        return false;
    count = (uint32_t)value;
    memcpy(member(option, options), &count, sizeof(count));
    return true;
}

static void format_count(const struct option *option, const struct fire_options *options,
                         char *text, size_t text_bytes)
{
    uint32_t count;

    memcpy(&count, member_read(option, options), sizeof(count));
    snprintf(text, text_bytes, "%" PRIu32, count);
}

/* `auto` is -1 for steps and 0 for the two below, where 0 means nothing else. */
static bool parse_steps(const struct option *option, struct fire_options *options, const char *text)
{
    if (strcmp(text, "auto") == 0) {
        options->steps = FIRE_STEPS_AUTO;
        return true;
    }
    return parse_count(option, options, text);
}

static void format_steps(const struct option *option, const struct fire_options *options,
                         char *text, size_t text_bytes)
{
    if (options->steps == FIRE_STEPS_AUTO)
        snprintf(text, text_bytes, "auto");
    else
        format_count(option, options, text, text_bytes);
}

static bool parse_count_or_auto(const struct option *option, struct fire_options *options,
                                const char *text)
{
    const uint32_t automatic = 0;

    if (strcmp(text, "auto") != 0)
        return parse_count(option, options, text);
    memcpy(member(option, options), &automatic, sizeof(automatic));
    return true;
}

static void format_count_or_auto(const struct option *option, const struct fire_options *options,
                                 char *text, size_t text_bytes)
{
    format_count(option, options, text, text_bytes);
    if (strcmp(text, "0") == 0)
        snprintf(text, text_bytes, "auto");
}

static bool parse_number_or_auto(const struct option *option, struct fire_options *options,
                                 const char *text)
{
    const double automatic = 0.0;

    if (strcmp(text, "auto") != 0)
        return parse_number(option, options, text);
    memcpy(member(option, options), &automatic, sizeof(automatic));
    return true;
}

static void format_number_or_auto(const struct option *option, const struct fire_options *options,
                                  char *text, size_t text_bytes)
{
    format_number(option, options, text, text_bytes);
    if (strcmp(text, "0") == 0)
        snprintf(text, text_bytes, "auto");
}

static bool parse_switch(const struct option *option, struct fire_options *options,
                         const char *text)
{
    static const char *const words[] = {
        "off", "on", "false", "true", "no", "yes", "0", "1", NULL
    };
    uint32_t index;
    bool on;

    if (!choose(words, text, &index))
        return false;
    on = index % 2 == 1;
    memcpy(member(option, options), &on, sizeof(on));
    return true;
}

static void format_switch(const struct option *option, const struct fire_options *options,
                          char *text, size_t text_bytes)
{
    bool on;

    memcpy(&on, member_read(option, options), sizeof(on));
    snprintf(text, text_bytes, "%s", on ? "on" : "off");
}

static bool parse_seed(const struct option *option, struct fire_options *options, const char *text)
{
    uint64_t seed;

    if (!read_count(&text, &seed) || *text != '\0')
        return false;
    memcpy(member(option, options), &seed, sizeof(seed));
    return true;
}

static void format_seed(const struct option *option, const struct fire_options *options, char *text,
                        size_t text_bytes)
{
    uint64_t seed;

    memcpy(&seed, member_read(option, options), sizeof(seed));
    snprintf(text, text_bytes, "%" PRIu64, seed);
}

/* a,b,c;a,b,c… after "custom:". */
static bool parse_coefficients(const struct option *option, struct fire_options *options,
                               const char *text)
{
    uint32_t count = 0;

    memset(options->custom, 0, sizeof(options->custom));
    for (;; text++) {
        if (count == FIRE_CUSTOM_MAX)
            return false;
        for (int i = 0; i < 3; i++) {
            double *coefficient = &options->custom[count][i];

            if (i > 0 && *text++ != ',')
                return false;
            if (!read_number(&text, coefficient) || fabs(*coefficient) > option->high)
                return false;
            *coefficient += 0.0;
        }
        count++;
        if (*text == '\0')
            break;
        if (*text != ';')
            return false;
    }
    options->polynomial = FIRE_POLYNOMIAL_CUSTOM;
    options->custom_count = count;
    return true;
}

static bool parse_polynomial(const struct option *option, struct fire_options *options,
                             const char *text)
{
    if (strncmp(text, "custom:", strlen("custom:")) == 0)
        return parse_coefficients(option, options, text + strlen("custom:"));
    if (strcmp(text, "custom") == 0 || !parse_choice(option, options, text))
        return false;
    memset(options->custom, 0, sizeof(options->custom));
    options->custom_count = 0;
    return true;
}

static void format_polynomial(const struct option *option, const struct fire_options *options,
                              char *text, size_t text_bytes)
{
    format_choice(option, options, text, text_bytes);
    if (options->polynomial != FIRE_POLYNOMIAL_CUSTOM)
        return;
    for (uint32_t i = 0; i < options->custom_count && i < FIRE_CUSTOM_MAX; i++) {
        for (int j = 0; j < 3; j++) {
            char number[NUMBER_BYTES];
            const char *before = j > 0 ? "," : i > 0 ? ";" : ":";

            append(text, text_bytes, "%s%s", before, write_number(number, options->custom[i][j]));
        }
    }
}

static bool parse_scale(const struct option *option, struct fire_options *options, const char *text)
{
    double deviation;

    if (strncmp(text, "std:", strlen("std:")) == 0) {
        text += strlen("std:");
        if (!read_number(&text, &deviation) || *text != '\0')
            return false;
        if (deviation < option->low || deviation > option->high)
            return false;
        options->scale = FIRE_SCALE_STD;
        options->scale_std = deviation;
        return true;
    }
    if (strcmp(text, "std") == 0 || !parse_choice(option, options, text))
        return false;
    options->scale_std = 0.0;
    return true;
}

static void format_scale(const struct option *option, const struct fire_options *options,
                         char *text, size_t text_bytes)
{
    char number[NUMBER_BYTES];

    format_choice(option, options, text, text_bytes);
    if (options->scale == FIRE_SCALE_STD)
        append(text, text_bytes, ":%s", write_number(number, options->scale_std));
}

/* One number is a count of equal blocks, several are sizes. */
static bool parse_split(const struct option *option, struct fire_options *options, const char *text)
{
    uint64_t sizes[FIRE_SPLIT_MAX] = { 0 };
    uint32_t count = 0;

    (void)option;
    for (;; text++) {
        if (count == FIRE_SPLIT_MAX || !read_count(&text, &sizes[count]))
            return false;
        if (sizes[count] == 0 || sizes[count] > FIRE_SIDE_MAX)
            return false;
        count++;
        if (*text == '\0')
            break;
        if (*text != ',')
            return false;
    }
    if (count == 1) {
        if (sizes[0] > FIRE_SPLIT_MAX)
            return false;
        count = (uint32_t)sizes[0];
        sizes[0] = 0;
    }
    options->split_count = count;
    memcpy(options->split_sizes, sizes, sizeof(sizes));
    return true;
}

static void format_split(const struct option *option, const struct fire_options *options,
                         char *text, size_t text_bytes)
{
    (void)option;
    if (options->split_sizes[0] == 0) {
        snprintf(text, text_bytes, "%" PRIu32, options->split_count);
        return;
    }
    snprintf(text, text_bytes, "%" PRIu64, options->split_sizes[0]);
    for (uint32_t i = 1; i < options->split_count && i < FIRE_SPLIT_MAX; i++)
        append(text, text_bytes, ",%" PRIu64, options->split_sizes[i]);
}

/* Numbers of blocks, or "none". */
static bool parse_split_skip(const struct option *option, struct fire_options *options,
                             const char *text)
{
    uint64_t blocks = 0;
    uint64_t block;

    (void)option;
    if (strcmp(text, "none") == 0) {
        options->split_skip = 0;
        return true;
    }
    for (;; text++) {
        if (!read_count(&text, &block) || block >= FIRE_SPLIT_MAX)
            return false;
        blocks |= 1ull << block;
        if (*text == '\0')
            break;
        if (*text != ',')
            return false;
    }
    options->split_skip = blocks;
    return true;
}

static void format_split_skip(const struct option *option, const struct fire_options *options,
                              char *text, size_t text_bytes)
{
    const char *comma = "";

    (void)option;
    snprintf(text, text_bytes, "%s", options->split_skip ? "" : "none");
    for (uint32_t i = 0; i < FIRE_SPLIT_MAX; i++) {
        if (!(options->split_skip >> i & 1))
            continue;
        append(text, text_bytes, "%s%" PRIu32, comma, i);
        comma = ",";
    }
}

/* --- the table -------------------------------------------------------------------------------- */

#define NAMES(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define AT(member_name)  offsetof(struct fire_options, member_name)
#define TEXT_OF(number)  TEXT_OF_(number)
#define TEXT_OF_(number) #number

/* clang-format off */
static const struct option table[] = {
    { { "normalize", "frobenius, spectral, schatten or auto",
        "the norm a matrix is divided by before the first step; auto is any safe bound" },
      parse_choice, format_choice, AT(normalize), 0, 0,
      NAMES("auto", "frobenius", "spectral", "schatten") },
    { { "polynomial",
        "auto, cubic, muon, polar-express, minimax, or custom:a,b,c[;a,b,c...] for steps "
        "X (a I + b G + c G^2), at most " TEXT_OF(FIRE_CUSTOM_MAX) " of them, the last repeating",
        "the step; auto is any method that reaches the target, and cubic when steps is a count" },
      parse_polynomial, format_polynomial, AT(polynomial), 0, 1e9,
      NAMES("auto", "cubic", "muon", "polar-express", "minimax", "custom") },
    { { "steps", "auto or a count from 0 to " TEXT_OF(FIRE_STEPS_MAX),
        "exactly that many steps with no early stop (cubic ones when polynomial is auto); auto: "
        "until the target" },
      parse_steps, format_steps, AT(steps), 0, FIRE_STEPS_MAX, NULL },
    { { "max_steps", "auto or a count from 1 to " TEXT_OF(FIRE_STEPS_MAX),
        "most steps when steps is auto and the polynomial is named; auto is 100" },
      parse_count_or_auto, format_count_or_auto, AT(max_steps), 1, FIRE_STEPS_MAX, NULL },
    { { "target", "auto or a number above 0",
        "DfI of the unscaled result; auto is 1e-6 for f32 and f64, twice the floor for bf16 and "
        "f16" },
      parse_number_or_auto, format_number_or_auto, AT(target), ABOVE_0, NUMBER_MAX, NULL },
    { { "check", "a count from 1 to " TEXT_OF(FIRE_STEPS_MAX),
        "look at the DfI after step 1 and then after every so many" },
      parse_count, format_count, AT(check), 1, FIRE_STEPS_MAX, NULL },
    { { "target_form", "short or full",
        "the Gram matrix the target is about: of the short side (r x r), or of the columns "
        "(n x n)" },
      parse_choice, format_choice, AT(target_form), 0, 0, NAMES("short", "full") },
    { { "eps", "a number from 0 to 1e30", "added to the norm that is divided by" },
      parse_number, format_number, AT(eps), 0, NUMBER_MAX, NULL },
    { { "side", "auto, x or gram",
        "where steps are taken: on the matrix, or on its Gram matrix with one product at the end" },
      parse_choice, format_choice, AT(side), 0, 0, NAMES("auto", "x", "gram") },
    { { "scale",
        "one, fan-ratio, fan-in, keep-norm, mean-sigma, kaiming, xavier, uniform, or std:V with V "
        "above 0",
        "c of W = c Q: 1, sqrt(m/n) divided by the kernel's taps, sqrt(n), the old norm, the mean "
        "singular value, or the deviation an initialiser would give" },
      parse_scale, format_scale, AT(scale), ABOVE_0, NUMBER_MAX,
      NAMES("one", "fan-ratio", "fan-in", "keep-norm", "mean-sigma", "kaiming", "xavier",
            "uniform", "std") },
    { { "variance", "a number above 0", "factor on the scale" },
      parse_number, format_number, AT(variance), ABOVE_0, NUMBER_MAX, NULL },
    { { "conv", "tap or flatten",
        "a convolution is one matrix for each kernel tap, or one with in times taps columns" },
      parse_choice, format_choice, AT(conv), 0, 0, NAMES("tap", "flatten") },
    { { "layout", "out_in or in_out",
        "order of the axes: (out, in, kernel) as PyTorch, (kernel, in, out) as Flax" },
      parse_choice, format_choice, AT(layout), 0, 0, NAMES("out_in", "in_out") },
    { { "split",
        "a count from 1 to " TEXT_OF(FIRE_SPLIT_MAX) ", or sizes a,b,c that add up to the rows",
        "blocks of output rows that are matrices of their own: 3 for a fused qkv" },
      parse_split, format_split, 0, 0, 0, NULL },
    { { "split_skip", "none, or numbers a,b,c of blocks from 0",
        "blocks of a split that are left alone: 2 for the value rows of a fused qkv" },
      parse_split_skip, format_split_skip, 0, 0, 0, NULL },
    { { "stack", "a count from 0 to " TEXT_OF(FIRE_STACK_MAX),
        "leading axes that count matrices: experts, ensembles" },
      parse_count, format_count, AT(stack), 0, FIRE_STACK_MAX, NULL },
    { { "blend", "a number from 0 to 1",
        "alpha of alpha W' + (1 - alpha) W: 1 replaces the weights, 0 keeps them" },
      parse_number, format_number, AT(blend), 0, 1, NULL },
    { { "min_norm", "a number from 0 to 1e30",
        "a matrix with a smaller Frobenius norm is skipped" },
      parse_number, format_number, AT(min_norm), 0, NUMBER_MAX, NULL },
    { { "compute", "f32, f64 or fast",
        "f32: polar error up to 1e-5; f64: up to 1e-12; fast: only the DfI is promised" },
      parse_choice, format_choice, AT(compute), 0, 0, NAMES("f32", "f64", "fast") },
    { { "complete", "on or off", "fill a rank defect with a seeded orthogonal complement" },
      parse_switch, format_switch, AT(complete), 0, 0, NULL },
    { { "seed", "a count from 0 to 18446744073709551615", "of the random completion" },
      parse_seed, format_seed, AT(seed), 0, 0, NULL },
    { { "state_policy", "keep, zero, reset or transport",
        "optimizer state of what was projected: zero clears the moments and keeps the step (the "
        "next Adam step is up to 3.2 x lr), reset clears the step too (1 x lr), transport moves "
        "the first moment to the new tangent space" },
      parse_choice, format_choice, AT(state_policy), 0, 0,
      NAMES("keep", "zero", "reset", "transport") },
    { { "state_scope", "touched or all",
        "whose optimizer state the policy is for: the projected weights', or everybody's (where "
        "nothing was projected, transport keeps)" },
      parse_choice, format_choice, AT(state_scope), 0, 0, NAMES("touched", "all") },
    { { "dormant_tau", "a number from 0 to 1e6",
        "a unit is dormant when its mean activity over the layer's mean is at most this" },
      parse_number, format_number, AT(dormant_tau), 0, 1e6, NULL },
    { { "gradient_dormant_tau", "a number from 0 to 1e6",
        "the same for the mean absolute gradient of a unit's weights" },
      parse_number, format_number, AT(gradient_dormant_tau), 0, 1e6, NULL },
};
/* clang-format on */
#define OPTION_COUNT (sizeof(table) / sizeof(table[0]))

size_t fire_option_key_count(void)
{
    return OPTION_COUNT;
}

const struct fire_option_key *fire_option_key_at(size_t index)
{
    FIRE_ASSERT(index < OPTION_COUNT);
    return &table[index].key;
}

/* --- setting and printing --------------------------------------------------------------------- */

static enum fire_status unknown_key(const char *key, struct fire_error *error)
{
    const char *names[OPTION_COUNT];
    const char *nearest;

    for (size_t i = 0; i < OPTION_COUNT; i++)
        names[i] = table[i].key.name;
    nearest = fire_nearest_name(key, names, OPTION_COUNT);
    if (nearest)
        return fire_fail(error, FIRE_NOT_FOUND, key,
                         "there is no option '%.*s'; did you mean '%s'?", SHOWN_MAX, key, nearest);
    return fire_fail(error, FIRE_NOT_FOUND, key,
                     "there is no option '%.*s'; `firectl presets fire` lists them all", SHOWN_MAX,
                     key);
}

static enum fire_status bad_value(const struct option *option, const char *value,
                                  struct fire_error *error)
{
    return fire_fail(error, FIRE_BAD_REQUEST, option->key.name, "%s cannot be '%.*s'%s; use %s",
                     option->key.name, SHOWN_MAX, value, strlen(value) > SHOWN_MAX ? "..." : "",
                     option->key.values);
}

enum fire_status fire_options_set(struct fire_options *options, const char *key, const char *value,
                                  struct fire_error *error)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        struct fire_options changed;

        if (strcmp(table[i].key.name, key) != 0)
            continue;
        changed = *options;
        if (!table[i].parse(&table[i], &changed, value))
            return bad_value(&table[i], value, error);
        *options = changed;
        return FIRE_OK;
    }
    return unknown_key(key, error);
}

enum fire_status fire_options_set_pair(struct fire_options *options, const char *pair,
                                       struct fire_error *error)
{
    const char *equals = strchr(pair, '=');
    const size_t length = equals ? (size_t)(equals - pair) : 0;
    char key[KEY_BYTES];

    if (length == 0)
        return fire_fail(error, FIRE_BAD_REQUEST, "set",
                         "'%.*s' is not an option; write key=value, as in steps=10", SHOWN_MAX,
                         pair);
    snprintf(key, sizeof(key), "%.*s", (int)(length < KEY_BYTES ? length : KEY_BYTES - 1), pair);
    return fire_options_set(options, key, equals + 1, error);
}

void fire_options_format(const struct fire_options *options, size_t index, char *text,
                         size_t text_bytes)
{
    FIRE_ASSERT(index < OPTION_COUNT);
    if (text_bytes > 0)
        table[index].format(&table[index], options, text, text_bytes);
}

/* --- checks of the whole set ------------------------------------------------------------------ */

/* A struct filled by hand or from a message may hold what no text could have set. */
static bool option_valid(const struct option *option, const struct fire_options *options)
{
    double number;

    if (option->names)
        return strcmp(choice_name(option, options), "unknown") != 0;
    if (option->parse != parse_number && option->parse != parse_number_or_auto)
        return true;
    memcpy(&number, member_read(option, options), sizeof(number));
    if (option->parse == parse_number_or_auto && number == 0.0)
        return true;
    return number >= option->low && number <= option->high; /* false for NaN */
}

static enum fire_status check_target(const struct fire_options *options, enum fire_dtype output,
                                     uint64_t rows, uint64_t cols, struct fire_error *error)
{
    const double floor_output = fire_dtype_dfi_floor(output, rows, cols);
    const double floor_compute = fire_dtype_dfi_floor(FIRE_F32, rows, cols);

    if (options->target == 0.0 || options->steps != FIRE_STEPS_AUTO)
        return FIRE_OK;
    if (options->target < floor_output)
        return fire_fail(error, FIRE_BAD_REQUEST, "target",
                         "target %.3g is below %.3g, the floor that rounding a %" PRIu64
                         " x %" PRIu64 " isometry to %s leaves; set target to %.3g or more, or to "
                         "auto",
                         options->target, floor_output, rows, cols, fire_dtype_name(output),
                         2.0 * floor_output);
    if (options->compute != FIRE_COMPUTE_F64 && options->target < floor_compute)
        return fire_fail(error, FIRE_BAD_REQUEST, "target",
                         "target %.3g is below %.3g, the floor of computing a %" PRIu64
                         " x %" PRIu64 " isometry in f32; set compute=f64, or target to %.3g or "
                         "more",
                         options->target, floor_compute, rows, cols, 2.0 * floor_compute);
    return FIRE_OK;
}

enum fire_status fire_options_check(const struct fire_options *options, enum fire_dtype output,
                                    uint64_t rows, uint64_t cols, struct fire_error *error)
{
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        char value[NUMBER_BYTES];

        if (option_valid(&table[i], options))
            continue;
        fire_options_format(options, i, value, sizeof(value));
        return bad_value(&table[i], value, error);
    }
    if (options->steps < FIRE_STEPS_AUTO || options->steps > FIRE_STEPS_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "steps",
                         "steps must be auto or 0 to %d, got %" PRId32, FIRE_STEPS_MAX,
                         options->steps);
    if (options->max_steps > FIRE_STEPS_MAX)
        return fire_fail(error, FIRE_BAD_REQUEST, "max_steps",
                         "max_steps must be at most %d, got %" PRIu32, FIRE_STEPS_MAX,
                         options->max_steps);
    if (options->check == 0)
        return fire_fail(error, FIRE_BAD_REQUEST, "check",
                         "check must be 1 or more: the DfI is looked at after every so many steps");
    if (options->polynomial == FIRE_POLYNOMIAL_CUSTOM &&
        (options->custom_count == 0 || options->custom_count > FIRE_CUSTOM_MAX))
        return fire_fail(error, FIRE_BAD_REQUEST, "polynomial",
                         "a custom polynomial needs 1 to %d steps of coefficients, got %" PRIu32
                         "; write custom:a,b,c",
                         FIRE_CUSTOM_MAX, options->custom_count);
    if (options->scale == FIRE_SCALE_STD && !(options->scale_std > 0.0))
        return fire_fail(error, FIRE_BAD_REQUEST, "scale",
                         "scale std needs a deviation above 0; write std:V");
    return check_target(options, output, rows, cols, error);
}

double fire_options_target(const struct fire_options *options, enum fire_dtype output,
                           uint64_t rows, uint64_t cols)
{
    if (options->target > 0.0)
        return options->target;
    switch (output) {
    case FIRE_F64:
    case FIRE_F32: return 1e-6;
    case FIRE_BF16:
    case FIRE_F16: return 2.0 * fire_dtype_dfi_floor(output, rows, cols);
    }
    return 1e-6;
}
