#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *fire_status_name(enum fire_status status)
{
    /* clang-format off */
    switch (status) {
    case FIRE_OK:              return "ok";
    case FIRE_BAD_REQUEST:     return "bad request";
    case FIRE_NOT_FOUND:       return "not found";
    case FIRE_UNAUTHENTICATED: return "unauthenticated";
    case FIRE_DENIED:          return "denied";
    case FIRE_BUSY:            return "busy";
    case FIRE_NO_MEMORY:       return "out of memory";
    case FIRE_CANCELLED:       return "cancelled";
    case FIRE_TOO_LATE:        return "too late";
    case FIRE_DRAINING:        return "draining";
    case FIRE_DEVICE_LOST:     return "device lost";
    case FIRE_IO:              return "input/output error";
    }
    /* clang-format on */
    return "unknown status";
}

enum fire_status fire_fail(struct fire_error *error, enum fire_status status, const char *field,
                           const char *format, ...)
{
    if (error) {
        va_list arguments;

        error->status = status;
        snprintf(error->field, sizeof(error->field), "%s", field ? field : "");
        va_start(arguments, format);
        vsnprintf(error->message, sizeof(error->message), format, arguments);
        va_end(arguments);
    }
    return status;
}

enum fire_status fire_fail_memory(struct fire_error *error, unsigned long long bytes)
{
    return fire_fail(error, FIRE_NO_MEMORY, NULL,
                     "could not allocate %llu bytes; free memory or work on fewer tensors at once",
                     bytes);
}

void fire_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "assertion failed: %s at %s:%d\n", condition, file, line);
    abort();
}
