/* firectl_show: a run as a picture: layers from top to bottom, steps from left to right. A column
 * shows the mean of its cells; a column without one stays blank, so that missing looks missing. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "firectl_monitor.h"

#define STATISTIC_DEFAULT "dfi"
#define NAME_COLUMNS_MAX  28
#define VALUE_COLUMNS     10
#define EVENTS_SHOWN      5u
#define LOG_RATIO_MIN     30.0 /* limits farther apart are shown on a logarithmic scale */
#define PERCENT_LOW       2u
#define PERCENT_HIGH      98u

/* What the command works with. */
struct show {
    const struct firectl_args *args;
    struct admin *admin;
    int columns;
    char **statistics; /* to draw */
    size_t statistic_count;
    Fire__V1__QueryResponse *answer; /* of layers */
    Fire__V1__QueryResponse *whole;  /* of the whole run; NULL: none */
};

struct picture {
    int name_columns;
    int columns; /* of the picture itself */
    int64_t first_step;
    int64_t last_step;
    bool color;
    bool logarithmic;
    double low; /* of the colours; in logarithms where the scale is one */
    double high;
};

/* Dark blue to yellow, of ever more light, in the 256 colours of terminals (viridis). */
static const int palette[] = { 53, 54, 55, 61, 60, 25, 31, 30, 36, 35, 71, 77, 113, 149, 185, 226 };
#define PALETTE_COUNT ((int)(sizeof(palette) / sizeof(palette[0])))

static int compare_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static bool is_shown(const Fire__V1__Cells *cells, const char *statistic)
{
    return cells->layer[0] && strcmp(cells->statistic, statistic) == 0;
}

/* Limits of the colours: percentiles, so that one outlier does not hide the rest. */
static bool picture_limits(struct picture *picture, const Fire__V1__QueryResponse *answer,
                           const char *statistic)
{
    double *values;
    size_t count = 0, room = 0;

    for (size_t i = 0; i < answer->n_series; i++)
        room += is_shown(answer->series[i], statistic) ? answer->series[i]->n_mean : 0;
    values = malloc((room ? room : 1) * sizeof(*values));
    if (!values)
        return false;
    for (size_t i = 0; i < answer->n_series; i++) {
        const Fire__V1__Cells *cells = answer->series[i];

        for (size_t k = 0; is_shown(cells, statistic) && k < cells->n_mean; k++) {
            if (isfinite(cells->mean[k]))
                values[count++] = cells->mean[k];
        }
    }
    if (count) {
        qsort(values, count, sizeof(*values), compare_numbers);
        picture->low = values[PERCENT_LOW * (count - 1) / 100];
        picture->high = values[(PERCENT_HIGH * (count - 1) + 99) / 100];
        picture->logarithmic = picture->low > 0.0 && picture->high > LOG_RATIO_MIN * picture->low;
        if (picture->logarithmic) {
            picture->low = log(picture->low);
            picture->high = log(picture->high);
        }
    }
    free(values);
    return true;
}

static int column_of(const struct picture *picture, int64_t step)
{
    const double span = (double)(picture->last_step - picture->first_step) + 1.0;
    const int column =
        (int)((double)(step - picture->first_step) / span * (double)picture->columns);

    return column < 0 ? 0 : column >= picture->columns ? picture->columns - 1 : column;
}

/* 0 to 1 on the scale of the colours. */
static double place_of(const struct picture *picture, double value)
{
    const double at = picture->logarithmic ? log(fmax(value, 1e-300)) : value;

    if (picture->high <= picture->low)
        return 0.0;
    return fmin(fmax((at - picture->low) / (picture->high - picture->low), 0.0), 1.0);
}

static void print_cell(const struct picture *picture, double value)
{
    if (isnan(value))
        putchar(' ');
    else if (picture->color)
        printf("\033[48;5;%dm \033[0m",
               palette[(int)(place_of(picture, value) * (PALETTE_COUNT - 0.01))]);
    else
        fputs(monitor_bar((int)(place_of(picture, value) * 7.99)), stdout);
}

/* Means of the cells of each column; NAN where there is none. */
static bool columns_of(const struct picture *picture, const Fire__V1__Cells *cells, double *means)
{
    uint32_t *counts = calloc((size_t)picture->columns, sizeof(*counts));

    if (!counts)
        return false;
    for (int i = 0; i < picture->columns; i++)
        means[i] = 0.0;
    for (size_t k = 0; k < cells->n_mean && k < cells->n_steps; k++) {
        const int column = column_of(picture, cells->steps[k]);

        if (isfinite(cells->mean[k])) {
            means[column] += cells->mean[k];
            counts[column]++;
        }
    }
    for (int i = 0; i < picture->columns; i++)
        means[i] = counts[i] ? means[i] / counts[i] : NAN;
    free(counts);
    return true;
}

/* A name cut to the picture's first column, counted in characters. */
static void print_name(const struct picture *picture, const char *name)
{
    char text[MONITOR_NAME_BYTES];
    int shown = 0;

    firectl_plain_text(name, text, sizeof(text));
    for (const char *at = text; *at; at++) {
        shown += ((unsigned char)*at & 0xc0) != 0x80;
        if (shown > picture->name_columns)
            break;
        putchar(*at);
    }
    printf("%*s ", shown < picture->name_columns ? picture->name_columns - shown : 0, "");
}

static bool print_row(const struct picture *picture, const Fire__V1__Cells *cells, bool spark)
{
    double *means = malloc((size_t)picture->columns * sizeof(*means));

    if (!means || !columns_of(picture, cells, means)) {
        free(means);
        return false;
    }
    print_name(picture, spark ? cells->statistic : cells->layer);
    if (spark)
        monitor_spark(stdout, means, (size_t)picture->columns, (size_t)picture->columns);
    for (int i = 0; !spark && i < picture->columns; i++)
        print_cell(picture, means[i]);
    free(means);
    if (cells->n_mean)
        printf(" %*.*g", VALUE_COLUMNS - 1, 4, cells->mean[cells->n_mean - 1]);
    putchar('\n');
    return true;
}

/* Where weights were replaced. */
static void print_marks(const struct picture *picture, const Fire__V1__QueryResponse *answer)
{
    char *marks = calloc(1, (size_t)picture->columns + 1);
    bool any = false;

    for (size_t i = 0; marks && i < answer->n_events; i++) {
        if (answer->events[i]->kind == FIRE__V1__EVENT_KIND__EVENT_KIND_REINIT) {
            marks[column_of(picture, answer->events[i]->step)] = 1;
            any = true;
        }
    }
    if (any) {
        print_name(picture, "reinit");
        for (int i = 0; i < picture->columns; i++)
            fputs(marks[i] ? monitor_unicode() ? "▼" : "v" : " ", stdout);
        putchar('\n');
    }
    free(marks);
}

static void print_scale(const struct picture *picture)
{
    const double low = picture->logarithmic ? exp(picture->low) : picture->low;
    const double high = picture->logarithmic ? exp(picture->high) : picture->high;

    printf("%*s %-*" PRId64 "%*" PRId64 "\n", picture->name_columns, "step", picture->columns / 2,
           picture->first_step, picture->columns - picture->columns / 2, picture->last_step);
    printf("%*s %.4g ", picture->name_columns, "", low);
    for (int i = 0; i < (picture->color ? PALETTE_COUNT : 8); i++) {
        if (picture->color)
            printf("\033[48;5;%dm \033[0m", palette[i]);
        else
            fputs(monitor_bar(i), stdout);
    }
    printf(" %.4g%s\n", high, picture->logarithmic ? " (logarithmic)" : "");
}

static enum firectl_exit print_json(const Fire__V1__QueryResponse *answer, bool events)
{
    enum firectl_exit code = FIRECTL_DONE;

    for (size_t i = 0; i < answer->n_series && code == FIRECTL_DONE; i++) {
        const Fire__V1__Cells *cells = answer->series[i];
        json_t *object = json_pack("{s:s,s:s,s:I}", "layer", cells->layer, "statistic",
                                   cells->statistic, "cell_steps", (json_int_t)answer->cell_steps);

        json_object_set_new(object, "steps", monitor_steps_json(cells->steps, cells->n_steps));
        json_object_set_new(object, "mean", monitor_numbers_json(cells->mean, cells->n_mean));
        if (cells->n_min)
            json_object_set_new(object, "min", monitor_numbers_json(cells->min, cells->n_min));
        if (cells->n_max)
            json_object_set_new(object, "max", monitor_numbers_json(cells->max, cells->n_max));
        code = monitor_print_json(object);
    }
    for (size_t i = 0; events && i < answer->n_events && code == FIRECTL_DONE; i++)
        code = monitor_print_json(monitor_event_json(answer->events[i]));
    return code;
}

static bool print_statistic(struct picture *picture, const Fire__V1__QueryResponse *answer,
                            const char *statistic)
{
    bool done = picture_limits(picture, answer, statistic);
    size_t shown = 0;

    printf("\n%s\n", statistic);
    print_marks(picture, answer);
    for (size_t i = 0; done && i < answer->n_series; i++) {
        if (is_shown(answer->series[i], statistic)) {
            done = print_row(picture, answer->series[i], false);
            shown++;
        }
    }
    if (shown)
        print_scale(picture);
    else
        printf("  no layer has points of it in these steps\n");
    return done;
}

/* The first column is as wide as the longest name, up to a limit. */
static void fit_names(struct picture *picture, const Fire__V1__QueryResponse *answer)
{
    for (size_t i = 0; answer && i < answer->n_series; i++) {
        const Fire__V1__Cells *cells = answer->series[i];
        const size_t length = strlen(cells->layer[0] ? cells->layer : cells->statistic);

        if ((int)length > picture->name_columns)
            picture->name_columns = (int)length;
    }
    if (picture->name_columns > NAME_COLUMNS_MAX)
        picture->name_columns = NAME_COLUMNS_MAX;
}

static enum firectl_exit print_picture(const struct show *show, const Fire__V1__RunSummary *run)
{
    const struct firectl_args *args = show->args;
    const Fire__V1__QueryResponse *answer = show->answer, *whole = show->whole;
    struct picture picture = { .color = firectl_color(args, stdout),
                               .first_step = args->from_step > run->first_step ? args->from_step
                                                                               : run->first_step,
                               .last_step = args->to_step ? args->to_step : run->last_step,
                               .name_columns = (int)strlen("reinit") };
    bool done = true;

    fit_names(&picture, answer);
    fit_names(&picture, whole);
    picture.columns = show->columns - picture.name_columns - VALUE_COLUMNS - 1;
    for (size_t i = 0; done && i < show->statistic_count; i++)
        done = print_statistic(&picture, answer, show->statistics[i]);
    if (whole && whole->n_series)
        printf("\nwhole run\n");
    for (size_t i = 0; done && whole && i < whole->n_series; i++)
        done = print_row(&picture, whole->series[i], true);
    if (answer->n_events)
        printf("\nevents\n");
    for (size_t i = answer->n_events; i-- > 0 && answer->n_events - i <= EVENTS_SHOWN;)
        monitor_event_line(stdout, answer->events[i], false);
    if (!done)
        firectl_say("no memory for the picture; choose a smaller --width");
    return done ? FIRECTL_DONE : FIRECTL_FAILED;
}

static void print_head(const Fire__V1__RunSummary *run)
{
    char id[MONITOR_NAME_BYTES], name[MONITOR_NAME_BYTES], ago[64];

    firectl_plain_text(run->run, id, sizeof(id));
    firectl_plain_text(run->info ? run->info->name : "", name, sizeof(name));
    monitor_ago_text(run->last_seen_ms, ago, sizeof(ago));
    printf("%s%s%s%s: %" PRIu32 " layers, steps %" PRId64 " to %" PRId64 ", %" PRIu64
           " points, last seen %s\n",
           id, name[0] && strcmp(name, id) != 0 ? " (" : "",
           name[0] && strcmp(name, id) != 0 ? name : "",
           name[0] && strcmp(name, id) != 0 ? ")" : "", run->layers, run->first_step,
           run->last_step, run->points, ago);
}

/* DfI, or whatever the run has. */
static char *statistic_default(const Fire__V1__RunSummary *run)
{
    static char fallback[] = STATISTIC_DEFAULT;

    for (size_t i = 0; i < run->n_statistics; i++) {
        if (strcmp(run->statistics[i], STATISTIC_DEFAULT) == 0)
            return fallback;
    }
    return run->n_statistics ? run->statistics[0] : fallback;
}

static Fire__V1__QueryResponse *ask(struct show *show, enum firectl_exit *code)
{
    const struct firectl_args *args = show->args;
    Fire__V1__QueryRequest request = FIRE__V1__QUERY_REQUEST__INIT;
    Fire__V1__QueryResponse *answer;

    request.run = (char *)args->inputs[0];
    request.layers = args->layers.items;
    request.n_layers = args->layers.count;
    request.statistics = show->statistics;
    request.n_statistics = show->statistic_count;
    request.step_min = args->from_step;
    request.step_max = args->to_step;
    request.resolution = (uint32_t)show->columns;
    request.aggregate = FIRE__V1__AGGREGATE__AGGREGATE_ALL;
    answer = (Fire__V1__QueryResponse *)monitor_ask(show->admin, "Query", &request.base,
                                                    &fire__v1__query_response__descriptor, code);
    if (!answer || args->layers.count)
        return answer;
    request.statistics = NULL;
    request.n_statistics = 0;
    show->whole = monitor_query_whole(show->admin, &request, code);
    if (*code == FIRECTL_DONE)
        return answer;
    fire__v1__query_response__free_unpacked(answer, NULL);
    return NULL;
}

static enum firectl_exit show_run(struct show *show, const Fire__V1__RunSummary *run)
{
    const struct firectl_args *args = show->args;
    char *fallback = statistic_default(run);
    enum firectl_exit code;

    show->statistics = args->statistics.count ? args->statistics.items : &fallback;
    show->statistic_count = args->statistics.count ? args->statistics.count : 1;
    show->answer = ask(show, &code);
    if (show->answer && args->json) {
        code = print_json(show->answer, true);
        if (code == FIRECTL_DONE && show->whole)
            code = print_json(show->whole, false);
    } else if (show->answer) {
        print_head(run);
        code = print_picture(show, run);
    }
    if (show->answer)
        fire__v1__query_response__free_unpacked(show->answer, NULL);
    if (show->whole)
        fire__v1__query_response__free_unpacked(show->whole, NULL);
    return code;
}

enum firectl_exit firectl_show(const struct firectl_args *args)
{
    struct show show = { .args = args, .columns = monitor_width(args) };
    Fire__V1__ListRunsResponse *runs = NULL;
    enum firectl_exit code = admin_open(args, &show.admin);

    if (code != FIRECTL_DONE)
        return code;
    runs = monitor_find_run(show.admin, args->inputs[0], &code);
    if (runs) {
        code = show_run(&show, runs->runs[0]);
        fire__v1__list_runs_response__free_unpacked(runs, NULL);
    }
    admin_close(show.admin);
    return code;
}
