/* http_web: the dashboard's files, embedded by the build (web_files.h is generated). A path is
 * looked up in a table: there is no file system behind it. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "http_internal.h"
#include "web_files.h"

static const struct {
    const char *suffix, *type;
} types[] = {
    { ".html", "text/html; charset=utf-8" },
    { ".css", "text/css; charset=utf-8" },
    { ".js", "text/javascript; charset=utf-8" },
    { ".svg", "image/svg+xml" },
    { ".json", "application/json" },
};

static const char *type_of(const char *path)
{
    const size_t bytes = strlen(path);

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        const size_t suffix = strlen(types[i].suffix);

        if (bytes > suffix && strcmp(path + bytes - suffix, types[i].suffix) == 0)
            return types[i].type;
    }
    return "application/octet-stream";
}

/* FNV-1a: tells versions of a file apart, nothing more. */
static uint64_t digest(const unsigned char *bytes, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

bool http_web_find(const char *path, struct page *page)
{
    if (strcmp(path, "/") == 0)
        path = "/index.html";
    for (size_t i = 0; i < sizeof(web_files) / sizeof(web_files[0]); i++) {
        if (strcmp(web_files[i].path, path) != 0)
            continue;
        page->code = MHD_HTTP_OK;
        page->text = (char *)web_files[i].bytes;
        page->bytes = web_files[i].count;
        page->type = type_of(path);
        page->label = "dashboard";
        page->fixed = true;
        snprintf(page->etag, sizeof(page->etag), "\"%016llx\"",
                 (unsigned long long)digest(web_files[i].bytes, web_files[i].count));
        return true;
    }
    return false;
}
