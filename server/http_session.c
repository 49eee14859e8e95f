/* http_session: a ring of sessions. Ids are compared in constant time; there are few. */
#include "http_session.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "clock.h"

#define ID_RAW_BYTES 32u

struct session {
    char id[HTTP_SESSION_ID_BYTES];
    char *token; /* NULL: free */
    size_t token_bytes;
    uint64_t ends_ns;
};

struct http_sessions {
    struct session entries[HTTP_SESSIONS_MAX];
};

struct http_sessions *http_sessions_open(void)
{
    return calloc(1, sizeof(struct http_sessions));
}

static void session_wipe(struct session *session)
{
    if (session->token)
        OPENSSL_cleanse(session->token, session->token_bytes);
    free(session->token);
    memset(session, 0, sizeof(*session));
}

void http_sessions_close(struct http_sessions *table)
{
    for (size_t i = 0; table && i < HTTP_SESSIONS_MAX; i++)
        session_wipe(&table->entries[i]);
    free(table);
}

/* A free entry, or the one that ends first. */
static struct session *session_room(struct http_sessions *table)
{
    struct session *oldest = &table->entries[0];

    for (size_t i = 0; i < HTTP_SESSIONS_MAX; i++) {
        struct session *session = &table->entries[i];

        if (!session->token)
            return session;
        if (session->ends_ns < oldest->ends_ns)
            oldest = session;
    }
    session_wipe(oldest);
    return oldest;
}

enum fire_status http_session_add(struct http_sessions *table, const char *token,
                                  size_t token_bytes, char id[HTTP_SESSION_ID_BYTES],
                                  struct fire_error *error)
{
    struct session *session = session_room(table);
    unsigned char raw[ID_RAW_BYTES];

    if (getrandom(raw, sizeof(raw), 0) != (ssize_t)sizeof(raw))
        return fire_fail(error, FIRE_IO, "session", "no random bytes: %s", strerror(errno));
    session->token = strndup(token, token_bytes);
    if (!session->token)
        return fire_fail_memory(error, token_bytes);
    session->token_bytes = token_bytes;
    session->ends_ns = clock_now_ns() + (uint64_t)HTTP_SESSION_S * CLOCK_NS_PER_S;
    for (size_t i = 0; i < sizeof(raw); i++)
        snprintf(session->id + 2 * i, 3, "%02x", raw[i]);
    memcpy(id, session->id, HTTP_SESSION_ID_BYTES);
    return FIRE_OK;
}

static struct session *session_find(struct http_sessions *table, const char *id)
{
    const uint64_t now = clock_now_ns();
    struct session *found = NULL;

    if (strlen(id) != HTTP_SESSION_ID_BYTES - 1)
        return NULL;
    for (size_t i = 0; i < HTTP_SESSIONS_MAX; i++) {
        struct session *session = &table->entries[i];

        if (session->token && session->ends_ns < now)
            session_wipe(session);
        if (session->token && CRYPTO_memcmp(session->id, id, HTTP_SESSION_ID_BYTES - 1) == 0)
            found = session;
    }
    return found;
}

const char *http_session_token(struct http_sessions *table, const char *id)
{
    const struct session *session = session_find(table, id);

    return session ? session->token : NULL;
}

void http_session_end(struct http_sessions *table, const char *id)
{
    struct session *session = session_find(table, id);

    if (session)
        session_wipe(session);
}
