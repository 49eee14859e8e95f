/* http_path: the address of an API call as the words between its slashes. */
#ifndef FIRED_HTTP_PATH_H
#define FIRED_HTTP_PATH_H

#include <stdbool.h>
#include <stddef.h>

#define HTTP_SEGMENTS_MAX  4u
#define HTTP_SEGMENT_BYTES 512u

struct http_segments {
    char text[HTTP_SEGMENTS_MAX][HTTP_SEGMENT_BYTES];
    size_t count;
};

/* Splits `path`, which begins behind "/api/v1/", at its slashes and takes the percent signs out of
 * each part: a slash that was encoded is a letter. False for what no name can be: too many or too
 * long parts, an empty one, half an escape, a zero byte, broken UTF-8. */
bool http_path_split(const char *path, struct http_segments *segments);

#endif
