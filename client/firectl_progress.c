/* firectl_progress: one line on a terminal's stderr: done, rate, time left. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "firectl.h"

#define REDRAW_S  0.1
#define BAR_CELLS 30

void firectl_progress_init(struct firectl_progress *progress, const struct firectl_args *args,
                           uint64_t total_bytes)
{
    const char *term = getenv("TERM");

    *progress = (struct firectl_progress){ .total_bytes = total_bytes };
    progress->shown = !args->quiet && isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
    progress->started_s = firectl_now_s();
    progress->last_s = progress->started_s;
}

void firectl_progress_add(struct firectl_progress *progress, uint64_t bytes)
{
    const double now_s = firectl_now_s();
    const double elapsed_s = now_s - progress->started_s;
    char bar[BAR_CELLS + 1];
    double share, rate;
    int cells;

    progress->done_bytes += bytes;
    if (!progress->shown || progress->total_bytes == 0 ||
        (now_s - progress->last_s < REDRAW_S && progress->done_bytes < progress->total_bytes))
        return;
    progress->last_s = now_s;
    share = (double)progress->done_bytes / (double)progress->total_bytes;
    rate = elapsed_s > 0.0 ? (double)progress->done_bytes / elapsed_s : 0.0;
    cells = (int)(share * BAR_CELLS);
    memset(bar, '.', BAR_CELLS);
    memset(bar, '#', (size_t)(cells < BAR_CELLS ? cells : BAR_CELLS));
    bar[BAR_CELLS] = '\0';
    fprintf(stderr, "\r\033[K[%s] %.0f/%.0f MB  %.1f MB/s  %.0f s left", bar,
            (double)progress->done_bytes / 1e6, (double)progress->total_bytes / 1e6, rate / 1e6,
            rate > 0.0 ? (double)(progress->total_bytes - progress->done_bytes) / rate : 0.0);
    fflush(stderr);
}

void firectl_progress_clear(const struct firectl_progress *progress)
{
    if (progress->shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}
