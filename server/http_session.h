/* http_session: a bearer token traded for a cookie, so that the page's scripts never keep it.
 *
 * The cookie is 32 random bytes in hex; the token stays here, in memory, and is checked again with
 * every request, so that a token taken out of the credentials ends its sessions. At most
 * HTTP_SESSIONS_MAX; the oldest goes when another comes. A restart ends all. Loop thread. */
#ifndef FIRED_HTTP_SESSION_H
#define FIRED_HTTP_SESSION_H

#include <stddef.h>

#include "status.h"

#define HTTP_SESSIONS_MAX     256u
#define HTTP_SESSION_S        43200u /* twelve hours */
#define HTTP_SESSION_ID_BYTES 65u

struct http_sessions;

struct http_sessions *http_sessions_open(void);        /* NULL without memory */
void http_sessions_close(struct http_sessions *table); /* NULL is allowed; tokens are wiped */

FIRE_NODISCARD enum fire_status http_session_add(struct http_sessions *table, const char *token,
                                                 size_t token_bytes, char id[HTTP_SESSION_ID_BYTES],
                                                 struct fire_error *error);
/* The token of a live session, or NULL. Borrowed until the table changes. */
const char *http_session_token(struct http_sessions *table, const char *id);
void http_session_end(struct http_sessions *table, const char *id);

#endif
