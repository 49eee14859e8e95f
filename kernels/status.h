/* status: the one vocabulary for what went wrong, and the words that go with it.
 *
 * A function that can fail returns enum fire_status. Where a person will read the outcome it also
 * takes a struct fire_error and leaves in it what happened and what to do about it. */
#ifndef FIRE_STATUS_H
#define FIRE_STATUS_H

#define FIRE_NODISCARD __attribute__((warn_unused_result))

enum fire_status {
    FIRE_OK = 0,
    FIRE_BAD_REQUEST,     /* the caller's mistake: the message names the field and its limit */
    FIRE_NOT_FOUND,       /* a name nobody knows */
    FIRE_UNAUTHENTICATED, /* no or wrong credential */
    FIRE_DENIED,          /* known, but not allowed */
    FIRE_BUSY,            /* no room now, try later */
    FIRE_NO_MEMORY,       /* an allocation failed; nothing was changed */
    FIRE_CANCELLED,       /* nobody waits any more */
    FIRE_TOO_LATE,        /* its deadline has passed */
    FIRE_DRAINING,        /* going down */
    FIRE_DEVICE_LOST,     /* the device cannot be used any more */
    FIRE_IO,              /* a file could not be read or written; the message has the reason */
};

#define FIRE_ERROR_MESSAGE_BYTES 512
#define FIRE_ERROR_FIELD_BYTES   128

/* What happened, for people. Storage is the caller's; no release is needed. */
struct fire_error {
    enum fire_status status;
    char field[FIRE_ERROR_FIELD_BYTES];     /* option, tensor or file it is about; may be empty */
    char message[FIRE_ERROR_MESSAGE_BYTES]; /* one sentence, no newline */
};

/* "bad request", "not found", … Never NULL. */
const char *fire_status_name(enum fire_status status);

/* Fills `error` (NULL is allowed) and returns `status`, so that failing is one line:
 *     return fire_fail(error, FIRE_BAD_REQUEST, "split", "split must be 1 to 16, got %d", split);
 * Text that does not fit is cut. `field` may be NULL. */
enum fire_status fire_fail(struct fire_error *error, enum fire_status status, const char *field,
                           const char *format, ...) __attribute__((format(printf, 4, 5)));

/* An out-of-memory error that says how much was asked for. */
enum fire_status fire_fail_memory(struct fire_error *error, unsigned long long bytes);

/* Stays on in Release: a broken promise inside the program stops it with file and line. */
#define FIRE_ASSERT(condition)                                                                     \
    ((condition) ? (void)0 : fire_assert_failed(#condition, __FILE__, __LINE__))
_Noreturn void fire_assert_failed(const char *condition, const char *file, int line);

#endif
