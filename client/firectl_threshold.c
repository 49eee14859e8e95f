/* firectl_threshold: --fail-if 'field>value'. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "firectl.h"

enum relation { RELATION_LESS, RELATION_LESS_EQUAL, RELATION_MORE, RELATION_MORE_EQUAL };

static const char *const relation_texts[] = { "<", "<=", ">", ">=" };

/* Counts of a result, beside the numbers of fire_result_field_at(). */
static const char *const count_names[] = { "steps", "converged", "rank", "rank_defect",
                                           "matrices" };
#define COUNT_NAMES (sizeof(count_names) / sizeof(count_names[0]))

struct threshold {
    size_t field; /* of the numbers, then of the counts */
    enum relation relation;
    double value;
    uint64_t seen;
    uint64_t crossed;
};

struct firectl_thresholds {
    size_t count;
    struct threshold items[];
};

static const char *field_name(size_t field)
{
    const size_t numbers = fire_result_field_count();

    return field < numbers ? fire_result_field_at(field)->name : count_names[field - numbers];
}

static double field_value(const struct fire_result *result, size_t field)
{
    const size_t numbers = fire_result_field_count();

    if (field < numbers)
        return fire_result_value(result, field);
    if (result->action != FIRE_ACTION_PROJECTED)
        return NAN;
    switch (field - numbers) {
    case 0: return result->steps;
    case 1: return result->converged;
    case 2: return result->rank;
    case 3: return result->rank_defect;
    default: return result->matrices;
    }
}

static enum fire_status unknown_field(const char *word, struct fire_error *error)
{
    const size_t total = fire_result_field_count() + COUNT_NAMES;
    const char **names = calloc(total, sizeof(*names));
    const char *near;

    if (!names)
        return fire_fail_memory(error, total * sizeof(*names));
    for (size_t i = 0; i < total; i++)
        names[i] = field_name(i);
    near = fire_nearest_name(word, names, total);
    free(names);
    return fire_fail(error, FIRE_NOT_FOUND, "fail-if",
                     "--fail-if: there is no field '%.80s'%s%s%s; the fields are the numbers that "
                     "--json shows",
                     word, near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static enum fire_status parse_one(const char *text, struct threshold *threshold,
                                  struct fire_error *error)
{
    const size_t length = strcspn(text, "<>");
    const char *at = text + length;
    const size_t total = fire_result_field_count() + COUNT_NAMES;
    char word[96];
    char *end = NULL;

    if (*at == '\0' || length == 0 || length >= sizeof(word))
        return fire_fail(error, FIRE_BAD_REQUEST, "fail-if",
                         "--fail-if takes FIELD<VALUE, <=, > or >=, for example "
                         "'dfi_scale_free_after>1e-6'; got '%.80s'",
                         text);
    threshold->relation = *at == '<' ? RELATION_LESS : RELATION_MORE;
    at++;
    if (*at == '=') {
        threshold->relation++;
        at++;
    }
    threshold->value = strtod(at, &end);
    if (end == at || *end != '\0' || isnan(threshold->value))
        return fire_fail(error, FIRE_BAD_REQUEST, "fail-if",
                         "--fail-if: '%.40s' in '%.80s' is not a number", at, text);
    snprintf(word, sizeof(word), "%.*s", (int)length, text);
    while (word[0] && word[strlen(word) - 1] == ' ')
        word[strlen(word) - 1] = '\0';
    for (threshold->field = 0; threshold->field < total; threshold->field++) {
        if (strcmp(field_name(threshold->field), word) == 0)
            return FIRE_OK;
    }
    return unknown_field(word, error);
}

enum fire_status firectl_thresholds_open(const struct firectl_list *texts,
                                         struct firectl_thresholds **out, struct fire_error *error)
{
    const size_t bytes = sizeof(**out) + texts->count * sizeof((*out)->items[0]);
    struct firectl_thresholds *thresholds = calloc(1, bytes);

    *out = NULL;
    if (!thresholds)
        return fire_fail_memory(error, bytes);
    thresholds->count = texts->count;
    for (size_t i = 0; i < texts->count; i++) {
        const enum fire_status status = parse_one(texts->items[i], &thresholds->items[i], error);

        if (status != FIRE_OK) {
            free(thresholds);
            return status;
        }
    }
    *out = thresholds;
    return FIRE_OK;
}

void firectl_thresholds_close(struct firectl_thresholds *thresholds)
{
    free(thresholds);
}

static bool crosses(const struct threshold *threshold, double value)
{
    switch (threshold->relation) {
    case RELATION_LESS: return value < threshold->value;
    case RELATION_LESS_EQUAL: return value <= threshold->value;
    case RELATION_MORE: return value > threshold->value;
    case RELATION_MORE_EQUAL: return value >= threshold->value;
    }
    return false;
}

void firectl_thresholds_check(struct firectl_thresholds *thresholds, const char *name,
                              const struct fire_result *result)
{
    for (size_t i = 0; thresholds && i < thresholds->count; i++) {
        struct threshold *threshold = &thresholds->items[i];
        const double value = field_value(result, threshold->field);

        if (isnan(value))
            continue;
        threshold->seen++;
        if (!crosses(threshold, value))
            continue;
        threshold->crossed++;
        firectl_say("%s: %s is %.6g, and --fail-if says %s%.6g", name, field_name(threshold->field),
                    value, relation_texts[threshold->relation], threshold->value);
    }
}

enum firectl_exit firectl_thresholds_exit(const struct firectl_thresholds *thresholds)
{
    enum firectl_exit code = FIRECTL_DONE;

    for (size_t i = 0; thresholds && i < thresholds->count; i++) {
        if (thresholds->items[i].crossed)
            code = FIRECTL_CROSSED;
        if (!thresholds->items[i].seen)
            firectl_say("warning: no tensor has a value for --fail-if %s; it was not checked",
                        field_name(thresholds->items[i].field));
    }
    return code;
}
