/* firectl_top: the daemon at a glance, again and again. A frame is text first, the same for
 * --batch and for the screen; ncurses only places its lines. */
#include <curses.h>
#include <inttypes.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "firectl_daemon.h"

#define BATCH_COLUMNS 80
#define BATCH_ROWS    1000
#define LINE_BYTES    512
#define KEY_SLICE_MS  100 /* how often the screen looks for a key, a signal and the time */

/* Lines are cut to the width of the screen and end when it is full. */
struct frame {
    FILE *stream;
    int columns;
    int rows_left;
};

static void __attribute__((format(printf, 2, 3)))
frame_line(struct frame *frame, const char *format, ...)
{
    char text[LINE_BYTES];
    va_list arguments;
    size_t length;

    if (frame->rows_left <= 0)
        return;
    frame->rows_left--;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    length = strlen(text);
    if (length > (size_t)frame->columns)
        length = (size_t)frame->columns;
    while (length && text[length - 1] == ' ')
        length--;
    fprintf(frame->stream, "%.*s\n", (int)length, text);
}

static void frame_head(struct frame *frame, const char *address,
                       const Fire__V1__StatusResponse *before,
                       const Fire__V1__StatusResponse *after)
{
    struct firectl_rates rates;
    char uptime[32], slab[32], slab_max[32], message[32], message_max[32], resident[32];

    firectl_rates(before, after, &rates);
    firectl_duration_text(after->uptime_seconds, uptime, sizeof(uptime));
    frame_line(frame, "fired %s  %s  up %s  %s", after->version,
               after->draining ? "DRAINING" : "serving", uptime, address);
    frame_line(frame,
               "calls     %" PRIu32 " now  %.1f/s  refused %.1f/s  (%" PRIu64 " and %" PRIu64
               " since start)",
               after->calls, rates.calls, rates.refusals, after->calls_total,
               firectl_refusals(after));
    frame_line(frame,
               "matrices  %" PRIu64 " waiting  %" PRIu64 " running  %.1f/s in batches of %.1f",
               after->jobs_waiting, after->jobs_running, rates.matrices, rates.batch_size);
    if (!after->memory)
        return;
    firectl_size_text(after->memory->slab_bytes, slab, sizeof(slab));
    firectl_size_text(after->memory->slab_bytes_max, slab_max, sizeof(slab_max));
    firectl_size_text(after->memory->message_bytes, message, sizeof(message));
    firectl_size_text(after->memory->message_bytes_max, message_max, sizeof(message_max));
    firectl_size_text(after->memory->resident_bytes, resident, sizeof(resident));
    frame_line(frame, "memory    matrices %s of %s  messages %s of %s  process %s", slab, slab_max,
               message, message_max, resident);
}

/* What a device did since `before`: the share of the time it worked, and matrices a second. */
static void frame_devices(struct frame *frame, const Fire__V1__StatusResponse *before,
                          const Fire__V1__StatusResponse *after)
{
    const bool since_start = !before || before->uptime_seconds > after->uptime_seconds;
    const double seconds = after->uptime_seconds - (since_start ? 0.0 : before->uptime_seconds);

    frame_line(frame, "%s", "");
    frame_line(frame, "%-6s %-7s %-9s %7s %6s %7s %10s %10s  %s", "DEVICE", "BACKEND", "PATH",
               "THREADS", "BUSY %", "RUNNING", "MATRICES/S", "GFLOP/S", "NAME");
    for (size_t i = 0; i < after->n_devices; i++) {
        const Fire__V1__DeviceStatus *device = after->devices[i];
        double busy = device->busy_seconds;
        double matrices = (double)device->matrices;

        if (!since_start && i < before->n_devices) {
            busy -= before->devices[i]->busy_seconds;
            matrices -= (double)before->devices[i]->matrices;
        }
        frame_line(frame,
                   "%-6" PRIu32 " %-7s %-9s %7" PRIu32 " %6.1f %7" PRIu32 " %10.1f %10.1f  %s",
                   device->index, device->backend, device->path, device->threads,
                   seconds > 0.0 ? 100.0 * busy / seconds : 0.0, device->batches_running,
                   seconds > 0.0 ? matrices / seconds : 0.0, 1e-9 * device->flops_per_second,
                   device->in_service ? device->name : "OUT OF SERVICE");
    }
}

/* At most `rows` of the buckets, which come busiest first. */
static void frame_buckets(struct frame *frame, const Fire__V1__StatusResponse *after, int rows)
{
    frame_line(frame, "%s", "");
    frame_line(frame, "%-30s %8s %9s %9s %9s %8s", "BATCHES BY SHAPE", "WAITING", "OLDEST MS",
               "BATCHES", "MATRICES", "MEAN");
    for (size_t i = 0; i < after->n_buckets && rows-- > 0; i++) {
        const Fire__V1__BucketStatus *bucket = after->buckets[i];

        frame_line(frame, "%-30s %8" PRIu32 " %9.1f %9" PRIu64 " %9" PRIu64 " %8.1f", bucket->key,
                   bucket->waiting, bucket->oldest_ms, bucket->batches, bucket->matrices,
                   bucket->batches ? (double)bucket->matrices / (double)bucket->batches : 0.0);
    }
}

static void frame_tenants(struct frame *frame, const Fire__V1__StatusResponse *after)
{
    char flight[32];

    frame_line(frame, "%s", "");
    frame_line(frame, "%-22s %6s %9s %6s %7s %10s %8s %7s", "TENANT", "WEIGHT", "DEVICE S", "CALLS",
               "STREAMS", "IN FLIGHT", "TOTAL", "REFUSED");
    for (size_t i = 0; i < after->n_tenants; i++) {
        const Fire__V1__TenantStatus *tenant = after->tenants[i];

        firectl_size_text(tenant->bytes_in_flight, flight, sizeof(flight));
        frame_line(frame, "%-22s %6g %9.2f %6" PRIu32 " %7" PRIu32 " %10s %8" PRIu64 " %7" PRIu64,
                   tenant->name, tenant->weight, tenant->device_seconds, tenant->calls,
                   tenant->streams, flight, tenant->calls_total, tenant->refusals_total);
    }
}

void firectl_top_frame(FILE *stream, const char *address, const Fire__V1__StatusResponse *before,
                       const Fire__V1__StatusResponse *after, int columns, int rows)
{
    struct frame frame = { .stream = stream, .columns = columns, .rows_left = rows };

    frame_head(&frame, address, before, after);
    frame_devices(&frame, before, after);
    /* The tenants' heading and first rows are seen however many shapes there are. */
    frame_buckets(&frame, after, frame.rows_left / 2 - 2);
    frame_tenants(&frame, after);
}

/* --- without a screen ------------------------------------------------------------------------- */

static enum firectl_exit top_batch(const struct firectl_args *args, struct admin *admin)
{
    const uint32_t count = args->count ? args->count : 1;
    Fire__V1__StatusResponse *before = NULL;
    enum firectl_exit code = FIRECTL_DONE;

    for (uint32_t i = 0; i < count && code == FIRECTL_DONE; i++) {
        struct admin_failure failure;
        Fire__V1__StatusResponse *status;

        if (i && !firectl_pause(args->interval_s > 0.0 ? args->interval_s : FIRECTL_INTERVAL_S))
            break;
        status = admin_status(admin, &failure);
        if (!status) {
            code = admin_fail(admin, &failure);
            break;
        }
        firectl_top_frame(stdout, admin_address(admin), before, status, BATCH_COLUMNS, BATCH_ROWS);
        if (i + 1 < count)
            putchar('\n');
        fflush(stdout);
        if (before)
            fire__v1__status_response__free_unpacked(before, NULL);
        before = status;
    }
    if (before)
        fire__v1__status_response__free_unpacked(before, NULL);
    return code;
}

/* --- on a screen ------------------------------------------------------------------------------ */

/* Places the lines of `text`; headings, whose first letters are capitals, stand out. */
static void screen_show(char *text, const char *footer)
{
    char *rest = text;
    char *line;
    int row = 0;

    erase();
    while ((line = strsep(&rest, "\n")) != NULL && row < LINES - 1) {
        const bool heading = line[0] >= 'A' && line[0] <= 'Z' && line[1] >= 'A' && line[1] <= 'Z';

        attrset(heading ? A_REVERSE : row == 0 ? A_BOLD : A_NORMAL);
        mvaddnstr(row++, 0, line, COLS);
        if (heading)
            hline(' ' | A_REVERSE, COLS - getcurx(stdscr));
    }
    attrset(A_DIM);
    mvaddnstr(LINES - 1, 0, footer, COLS - 1);
    attrset(A_NORMAL);
    refresh();
}

/* Draws one frame; false when memory ran out. */
static bool screen_draw(struct admin *admin, const Fire__V1__StatusResponse *before,
                        const Fire__V1__StatusResponse *after, double interval_s)
{
    char footer[80];
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);

    if (!stream)
        return false;
    firectl_top_frame(stream, admin_address(admin), before, after, COLS, LINES - 1);
    if (fclose(stream) != 0) {
        free(text);
        return false;
    }
    snprintf(footer, sizeof(footer), "q quit   space now   + - interval (%g s)", interval_s);
    screen_show(text, footer);
    free(text);
    return true;
}

/* Waits for the next frame's time; true when the user has had enough. */
static bool screen_wait(double *interval_s)
{
    const double started_s = firectl_now_s();

    while (!firectl_signal() && firectl_now_s() - started_s < *interval_s) {
        switch (getch()) {
        case 'q':
        case 'Q': return true;
        case '+': *interval_s = *interval_s < 30.0 ? 2.0 * *interval_s : 60.0; return false;
        case '-': *interval_s = *interval_s > 0.2 ? 0.5 * *interval_s : 0.1; return false;
        case ' ':
        case KEY_RESIZE: return false;
        default: break;
        }
    }
    return firectl_signal() != 0;
}

static enum firectl_exit top_screen(const struct firectl_args *args, struct admin *admin,
                                    Fire__V1__StatusResponse *first)
{
    double interval_s = args->interval_s > 0.0 ? args->interval_s : FIRECTL_INTERVAL_S;
    Fire__V1__StatusResponse *before = NULL, *status = first;
    struct admin_failure failure = { 0 };
    bool drawn = true;

    while (status && (drawn = screen_draw(admin, before, status, interval_s))) {
        if (before)
            fire__v1__status_response__free_unpacked(before, NULL);
        before = status;
        status = NULL;
        if (screen_wait(&interval_s))
            break;
        status = admin_status(admin, &failure);
        if (!status)
            break;
    }
    endwin();
    if (before)
        fire__v1__status_response__free_unpacked(before, NULL);
    if (!drawn) {
        fire__v1__status_response__free_unpacked(status, NULL);
        firectl_say("no memory for a frame; close other programs");
        return FIRECTL_FAILED;
    }
    return failure.message[0] ? admin_fail(admin, &failure) : FIRECTL_DONE;
}

/* The first answer comes before the screen is taken, so that an error stays readable. */
static enum firectl_exit top_interactive(const struct firectl_args *args, struct admin *admin)
{
    struct admin_failure failure;
    Fire__V1__StatusResponse *first;
    SCREEN *screen;
    enum firectl_exit code;

    if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO)) {
        firectl_say("top needs a terminal; --batch prints a frame as text");
        return FIRECTL_USAGE;
    }
    first = admin_status(admin, &failure);
    if (!first)
        return admin_fail(admin, &failure);
    setlocale(LC_ALL, "");
    screen = newterm(NULL, stdout, stdin);
    if (!screen) {
        fire__v1__status_response__free_unpacked(first, NULL);
        firectl_say("the terminal TERM='%s' is not known here; set TERM, or use --batch",
                    getenv("TERM") ? getenv("TERM") : "");
        return FIRECTL_FAILED;
    }
    cbreak();
    noecho();
    curs_set(0);
    keypad(stdscr, TRUE);
    timeout(KEY_SLICE_MS);
    code = top_screen(args, admin, first);
    delscreen(screen);
    return code;
}

enum firectl_exit firectl_top(const struct firectl_args *args)
{
    struct admin *admin = NULL;
    enum firectl_exit code;

    firectl_signals_init();
    code = admin_open(args, &admin);
    if (code == FIRECTL_DONE)
        code = args->batch ? top_batch(args, admin) : top_interactive(args, admin);
    admin_close(admin);
    return code;
}
