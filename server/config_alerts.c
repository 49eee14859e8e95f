/* config_alerts: the list `alerts` of the settings file, from text to rules. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config_alerts.h"

#define WINDOW_MAX 1e12
#define HOLD_S_MAX 604800.0 /* a week */

static enum fire_status fail(const char *name, const char *origin, const char *what,
                             struct fire_error *error)
{
    return fire_fail(error, FIRE_BAD_REQUEST, "alerts", "alert %.63s: %.200s (%.128s)",
                     name ? name : "without a name", what, origin);
}

static bool copy_text(char *to, size_t bytes, const char *text, const char *otherwise)
{
    const char *from = text ? text : otherwise;

    if (strlen(from) >= bytes)
        return false;
    memcpy(to, from, strlen(from) + 1);
    return true;
}

static bool name_is_valid(const char *name)
{
    return name && name[0] && strlen(name) < ALERTS_NAME_BYTES &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
               strlen(name);
}

static bool statistic_is_valid(const char *name)
{
    return name && name[0] && strlen(name) < ALERTS_NAME_BYTES &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name);
}

/* A finite number within limits; false for anything else. */
static bool read_number(const char *text, double least, double most, double *number)
{
    char *end = NULL;

    if (!text || !text[0])
        return false;
    *number = strtod(text, &end);
    return !*end && isfinite(*number) && *number >= least && *number <= most;
}

static bool read_kind(const char *text, enum alert_kind *kind)
{
    static const enum alert_kind kinds[] = { ALERT_THRESHOLD, ALERT_SLOPE, ALERT_NO_DATA };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(text ? text : "threshold", alert_kind_name(kinds[i])) == 0) {
            *kind = kinds[i];
            return true;
        }
    }
    return false;
}

enum fire_status config_alert_read(const struct config_alert_text *text, const char *origin,
                                   struct alert_rule *rule, struct fire_error *error)
{
    memset(rule, 0, sizeof(*rule));
    if (!name_is_valid(text->name))
        return fail(text->name, origin, "its name must be 1 to 63 of letters, digits and . _ -",
                    error);
    memcpy(rule->name, text->name, strlen(text->name) + 1);
    if (!copy_text(rule->run, sizeof(rule->run), text->run, "*") ||
        !copy_text(rule->layer, sizeof(rule->layer), text->layer, "*"))
        return fail(rule->name, origin, "a glob has at most 255 bytes", error);
    if (!statistic_is_valid(text->statistic))
        return fail(rule->name, origin, "statistic must be 1 to 63 of a-z, 0-9 and _", error);
    memcpy(rule->statistic, text->statistic, strlen(text->statistic) + 1);
    if (!read_kind(text->kind, &rule->kind))
        return fail(rule->name, origin, "kind must be threshold, slope or no_data", error);
    rule->below = text->op && strcmp(text->op, "<") == 0;
    if (text->op && !rule->below && strcmp(text->op, ">") != 0)
        return fail(rule->name, origin, "op must be \">\" or \"<\"", error);
    if (rule->kind != ALERT_NO_DATA && !read_number(text->value, -1e300, 1e300, &rule->value))
        return fail(rule->name, origin, "value must be a number", error);
    if (rule->kind == ALERT_NO_DATA && (text->value || text->op))
        return fail(rule->name, origin, "no_data has a window of seconds, no op or value", error);
    if (rule->kind != ALERT_THRESHOLD &&
        !read_number(text->window, 1e-3, WINDOW_MAX, &rule->window))
        return fail(rule->name, origin,
                    "window must be a number above 0: steps of a slope, seconds of no_data", error);
    if (rule->kind == ALERT_THRESHOLD && text->window)
        return fail(rule->name, origin, "a threshold has no window", error);
    if (text->hold && !read_number(text->hold, 0.0, HOLD_S_MAX, &rule->hold_s))
        return fail(rule->name, origin, "hold must be 0 to 604800 seconds", error);
    return FIRE_OK;
}
