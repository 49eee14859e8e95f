/* Advice on histories whose truth is known: made ones, by a generator whose seeds are kept apart
 * (the rules were written looking at seeds 0 to 199 only; 2000000 and on are held out), and ones
 * recorded from real training runs (tests/server/advice, truth measured there). */
#include <check.h>
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "advice.h"

#define DEVELOPMENT_FIRST 0u
#define DEVELOPMENT_COUNT 200u
#define HELD_OUT_FIRST    2000000u
#define HELD_OUT_COUNT    2000u
#define BAR               0.9
#define POINTS_MAX        500u
#define SERIES_MAX        8u
#define RECORDED_MIN      10u

/* --- the generator ---------------------------------------------------------------------------- */

struct history {
    struct advice_layer layer;
    struct advice_series series[SERIES_MAX];
    int64_t steps[SERIES_MAX][POINTS_MAX];
    double values[SERIES_MAX][POINTS_MAX];
    int64_t reinits[2];
    bool fails;
    bool sparse;
    uint64_t aspect; /* inputs over outputs; 0: any */
    const char *kind;
};

static uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double uniform(uint64_t *state, double low, double high)
{
    return low + (high - low) * (double)(random_next(state) >> 11) * 0x1p-53;
}

static double log_uniform(uint64_t *state, double low, double high)
{
    return exp(uniform(state, log(low), log(high)));
}

static double normal(uint64_t *state)
{
    const double u = uniform(state, 1e-12, 1.0);

    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * uniform(state, 0.0, 1.0));
}

/* What a history looks like; ranges are those of the development runs, wider by a third. */
struct shape_of_life {
    double growth;        /* of DfI at the end */
    double growth_before; /* at the end of a part before a reinitialisation; 0: there was none */
    double curve;         /* how early it saturates: 1 evenly, 4 early */
    double dormant_start;
    double dormant_low;
    double dormant_end;
    double gradient_start;
    double gradient_end;
    double rank_end; /* share of the start */
};

static struct shape_of_life healthy_life(uint64_t *state)
{
    return (struct shape_of_life){
        .growth = log_uniform(state, 0.5, 9.0),
        .curve = uniform(state, 1.0, 5.0),
        .dormant_start = uniform(state, 0.0, 0.4),
        .dormant_low = uniform(state, 0.0, 0.15),
        .dormant_end = -1.0, /* its low */
        .gradient_start = log_uniform(state, 1e-3, 10.0),
        .gradient_end = log_uniform(state, 1e-5, 1.0),
        .rank_end = uniform(state, 0.72, 1.0),
    };
}

/* Seven ways to be fine. */
static void make_healthy(uint64_t *state, struct shape_of_life *life, struct history *history)
{
    static const char *const kinds[] = { "learns",          "grows without silence",
                                         "was rescued",     "silent always",
                                         "loses rank only", "small gradients",
                                         "reads the data" };
    const size_t kind = random_next(state) % 7;

    *life = healthy_life(state);
    history->kind = kinds[kind];
    switch (kind) {
    case 1: life->growth = log_uniform(state, 9.0, 32.0); break;
    case 2: life->growth_before = log_uniform(state, 20.0, 250.0); break;
    case 3:
        life->dormant_start = uniform(state, 0.2, 0.6);
        life->dormant_low = life->dormant_start;
        break;
    case 4: life->rank_end = uniform(state, 0.3, 0.7); break;
    case 5: life->gradient_end = log_uniform(state, 3e-6, 1e-4); break;
    case 6:
        life->growth = log_uniform(state, 15.0, 80.0);
        life->dormant_end = life->dormant_low + uniform(state, 0.0, 0.45);
        history->aspect = 5;
        break;
    default: break;
    }
}

/* Five ways to fail. */
static void make_failing(uint64_t *state, struct shape_of_life *life, struct history *history)
{
    static const char *const kinds[] = { "DfI explodes", "units fall silent", "gradients vanish",
                                         "both grow", "fails again after a reinitialisation" };
    const size_t kind = random_next(state) % 5;

    *life = healthy_life(state);
    history->kind = kinds[kind];
    history->fails = true;
    switch (kind) {
    case 0:
        life->growth = log_uniform(state, 42.0, 250.0);
        history->aspect = 1;
        break;
    case 1:
        life->dormant_low = uniform(state, 0.0, 0.15);
        life->dormant_end = uniform(state, 0.68, 0.99);
        break;
    case 2: life->gradient_end = log_uniform(state, 1e-10, 7e-7); break;
    case 3:
        life->growth = log_uniform(state, 12.0, 60.0);
        life->dormant_low = uniform(state, 0.0, 0.1);
        life->dormant_end = life->dormant_low + uniform(state, 0.16, 0.6);
        history->aspect = 1;
        break;
    default:
        life->growth_before = log_uniform(state, 20.0, 250.0);
        life->growth = log_uniform(state, 45.0, 250.0);
        history->aspect = 1;
        break;
    }
    life->rank_end = uniform(state, 0.5, 1.0);
}

/* From 0 to 1, saturating; `t` in 0 to 1. */
static double saturate(double t, double curve)
{
    return (1.0 - exp(-curve * t)) / (1.0 - exp(-curve));
}

static double value_at(const struct shape_of_life *life, size_t statistic, double t, bool before,
                       double base)
{
    const double growth = before ? life->growth_before : life->growth;
    const double down = exp(-8.0 * t);
    const double end = life->dormant_end < 0.0 ? life->dormant_low : life->dormant_end;

    switch (statistic) {
    case 0: return base * exp(log(growth) * saturate(t, life->curve));
    case 1:
        if (before)
            return end;
        return down * life->dormant_start +
               (1.0 - down) * (life->dormant_low + (end - life->dormant_low) * t);
    case 2:
        return exp(log(life->gradient_start) +
                   log(life->gradient_end / life->gradient_start) * saturate(t, 3.0));
    case 3: return 100.0 * (1.0 - (1.0 - life->rank_end) * saturate(t, 2.0));
    default: return 10.0 * sqrt(1.0 + t);
    }
}

static double add_noise(uint64_t *state, size_t statistic, double value, double noise)
{
    const double z = normal(state);

    switch (statistic) {
    case 1: return fmin(fmax(value + 0.25 * noise * z, 0.0), 1.0);
    case 2: return value * exp(4.0 * noise * z);
    default: return value * exp(noise * z);
    }
}

/* One history: points of five statistics, some of which are missing, at their own distances. */
static void make_history(uint32_t seed, struct history *history)
{
    static const char *const names[] = { "dfi", "dormant_ratio", "gradient_norm", "effective_rank",
                                         "norm" };
    uint64_t state = 0x5eed0000u + (uint64_t)seed * 7919u;
    struct shape_of_life life = { 0 };
    const uint64_t side = (uint64_t)log_uniform(&state, 10.0, 4096.0);
    /* Initial scales differ: DfI of a fresh matrix per singular value. */
    const double base = (double)side * log_uniform(&state, 0.45, 20.0);
    const double noise = log_uniform(&state, 0.005, 0.12);
    const int64_t stride = (int64_t)log_uniform(&state, 1.0, 2000.0);
    size_t count = (size_t)log_uniform(&state, 12.0, (double)POINTS_MAX);
    size_t reinit_at = 0;

    memset(history, 0, sizeof(*history));
    history->sparse = random_next(&state) % 20 == 0;
    if (random_next(&state) % 2)
        make_failing(&state, &life, history);
    else
        make_healthy(&state, &life, history);
    if (history->sparse) {
        count = 1 + random_next(&state) % 4;
        life.growth_before = 0.0;
    }
    if (life.growth_before > 0.0) {
        count = count < 24 ? 24 : count;
        reinit_at = count / 2;
        history->reinits[0] = (int64_t)reinit_at * stride - stride / 2;
        history->layer.reinit_count = 1;
    }
    for (size_t s = 0; s < 5; s++) {
        struct advice_series *series = &history->series[s];

        for (size_t i = 0; i < count; i++) {
            const bool before = i < reinit_at;
            const size_t first = before ? 0 : reinit_at, end = before ? reinit_at : count;
            const double t =
                end - first > 1 ? (double)(i - first) / (double)(end - first - 1) : 1.0;

            history->steps[s][i] = (int64_t)i * stride;
            history->values[s][i] =
                add_noise(&state, s, value_at(&life, s, t, before, base), noise);
        }
        *series = (struct advice_series){ names[s], history->steps[s], history->values[s], count };
    }
    history->layer.name = "layer";
    if (!history->aspect)
        history->aspect = 1 + random_next(&state) % 6;
    else if (history->aspect == 1)
        history->aspect = 1 + random_next(&state) % 3;
    /* The shape may be unknown, but then a layer that reads the data cannot be known as one. */
    if (random_next(&state) % 4 || history->aspect == 5)
        history->layer.shape = (struct fire_shape){ 2, { side, side * history->aspect } };
    history->layer.series = history->series;
    history->layer.series_count = 5;
    history->layer.reinits = history->reinits;
}

/* --- tests ------------------------------------------------------------------------------------ */

struct score {
    uint32_t right; /* fails, and reinit was advised */
    uint32_t wrong; /* learns, and reinit was advised */
    uint32_t missed;
    uint32_t calm;
};

static double precision(const struct score *score)
{
    return (double)score->right / fmax(score->right + score->wrong, 1);
}

static double recall(const struct score *score)
{
    return (double)score->right / fmax(score->right + score->missed, 1);
}

static void judge_made(uint32_t first, uint32_t count, struct score *score)
{
    struct history *history = malloc(sizeof(*history));

    ck_assert_ptr_nonnull(history);
    for (uint32_t seed = first; seed < first + count; seed++) {
        struct advice advice;
        bool said;

        make_history(seed, history);
        advice_judge(&history->layer, &advice);
        said = advice.verdict == ADVICE_REINIT;
        if (history->sparse) {
            ck_assert_msg(advice.verdict == ADVICE_UNKNOWN, "seed %u: %s", seed, advice.reason);
            continue;
        }
        ck_assert_msg(advice.verdict != ADVICE_UNKNOWN, "seed %u: %s", seed, advice.reason);
        if (said != history->fails)
            printf("seed %u (%s): %s: %s\n", seed, history->kind, advice.rule, advice.reason);
        if (history->fails)
            said ? score->right++ : score->missed++;
        else
            said ? score->wrong++ : score->calm++;
    }
    free(history);
    printf("seeds %u to %u: precision %.3f, recall %.3f of %u that fail and %u that learn\n", first,
           first + count - 1, precision(score), recall(score), score->right + score->missed,
           score->wrong + score->calm);
}

/* Half of the histories fail and half do not, so neither "always" nor "never" would pass. */
START_TEST(made_histories_are_told_apart)
{
    static const uint32_t firsts[] = { DEVELOPMENT_FIRST, HELD_OUT_FIRST };
    static const uint32_t counts[] = { DEVELOPMENT_COUNT, HELD_OUT_COUNT };
    struct score score = { 0 };

    judge_made(firsts[_i], counts[_i], &score);
    ck_assert_msg(precision(&score) >= BAR, "precision %.3f", precision(&score));
    ck_assert_msg(recall(&score) >= BAR, "recall %.3f", recall(&score));
    ck_assert_uint_gt(score.right + score.missed, counts[_i] / 4);
    ck_assert_uint_gt(score.wrong + score.calm, counts[_i] / 4);
}
END_TEST

static size_t fill_recorded(json_t *layer, struct history *history)
{
    json_t *series = json_object_get(layer, "series"), *shape = json_object_get(layer, "shape");
    const char *name;
    json_t *points;
    size_t used = 0;

    json_object_foreach(series, name, points)
    {
        json_t *steps = json_object_get(points, "steps"),
               *values = json_object_get(points, "values");
        const size_t count = json_array_size(steps);

        ck_assert_uint_le(count, POINTS_MAX);
        ck_assert_uint_lt(used, SERIES_MAX);
        for (size_t i = 0; i < count; i++) {
            history->steps[used][i] = json_integer_value(json_array_get(steps, i));
            history->values[used][i] = json_number_value(json_array_get(values, i));
        }
        history->series[used] =
            (struct advice_series){ name, history->steps[used], history->values[used], count };
        used++;
    }
    history->layer.name = json_string_value(json_object_get(layer, "name"));
    history->layer.shape =
        (struct fire_shape){ 2,
                             { (uint64_t)json_integer_value(json_array_get(shape, 0)),
                               (uint64_t)json_integer_value(json_array_get(shape, 1)) } };
    history->layer.series = history->series;
    history->layer.series_count = used;
    return used;
}

/* True when reinit is advised for a layer of the run. */
static bool run_is_failing(json_t *run, const char *name)
{
    struct history *history = calloc(1, sizeof(*history));
    json_t *reinits = json_object_get(run, "reinits"), *layer;
    int64_t steps[64];
    bool failing = false;
    size_t index;

    ck_assert_ptr_nonnull(history);
    ck_assert_uint_le(json_array_size(reinits), 64);
    for (size_t i = 0; i < json_array_size(reinits); i++)
        steps[i] = json_integer_value(json_array_get(reinits, i));
    json_array_foreach(json_object_get(run, "layers"), index, layer)
    {
        struct advice advice;

        ck_assert_uint_gt(fill_recorded(layer, history), 3);
        history->layer.reinits = steps;
        history->layer.reinit_count = json_array_size(reinits);
        advice_judge(&history->layer, &advice);
        failing |= advice.verdict == ADVICE_REINIT;
        printf("%s %s: %d %s: %s\n", name, history->layer.name, advice.verdict, advice.rule,
               advice.reason);
        if (advice.verdict == ADVICE_REINIT) {
            ck_assert_str_eq(advice.preset, "fire");
            ck_assert_msg(advice.flops > 0.0 && advice.sfe > 0.0, "flops %g sfe %g", advice.flops,
                          advice.sfe);
        }
    }
    free(history);
    return failing;
}

/* Runs that were looked at while the rules were written: "NAME-SEED.json". */
static bool is_development(const char *name)
{
    const unsigned long seed = strtoul(strrchr(name, '-') + 1, NULL, 10);

    return seed < 100 || (strncmp(name, "permuted", 8) == 0 && seed < 102) ||
           (strstr(name, "-tanh-") && seed < 300);
}

static void show_score(const char *what, const struct score *score)
{
    printf("%s: precision %.3f, recall %.3f of %u that fail and %u that learn\n", what,
           precision(score), recall(score), score->right + score->missed,
           score->wrong + score->calm);
}

static void judge_recorded(const char *name, struct score *score)
{
    char path[1024];
    json_error_t error;
    json_t *run;
    bool said, fails;

    snprintf(path, sizeof(path), "%s/%s", RECORDED_FOLDER, name);
    run = json_load_file(path, 0, &error);
    ck_assert_msg(run != NULL, "%s: %s", path, error.text);
    fails = json_is_true(json_object_get(run, "fails"));
    said = run_is_failing(run, name);
    if (said != fails)
        printf("%s is told wrongly\n", name);
    if (fails)
        said ? score->right++ : score->missed++;
    else
        said ? score->wrong++ : score->calm++;
    json_decref(run);
}

/* Real runs: a network that hardly learns any more has a layer to reinitialise; one that learns
 * as well as a new one has none. */
START_TEST(recorded_runs_are_told_apart)
{
    DIR *folder = opendir(RECORDED_FOLDER);
    struct score all = { 0 }, held_out = { 0 };
    struct dirent *entry;

    ck_assert_ptr_nonnull(folder);
    while ((entry = readdir(folder)) != NULL) {
        if (!strstr(entry->d_name, ".json"))
            continue;
        judge_recorded(entry->d_name, &all);
        if (!is_development(entry->d_name))
            judge_recorded(entry->d_name, &held_out);
    }
    closedir(folder);
    show_score("recorded", &all);
    show_score("recorded, held out", &held_out);
    ck_assert_uint_ge(all.right + all.wrong + all.missed + all.calm, RECORDED_MIN);
    ck_assert_uint_ge(held_out.right + held_out.missed, 4);
    ck_assert_uint_ge(held_out.wrong + held_out.calm, 4);
    ck_assert_msg(precision(&all) >= BAR, "precision %.3f", precision(&all));
    ck_assert_msg(recall(&all) >= BAR, "recall %.3f", recall(&all));
    ck_assert_msg(precision(&held_out) >= BAR, "held out: precision %.3f", precision(&held_out));
    ck_assert_msg(recall(&held_out) >= BAR, "held out: recall %.3f", recall(&held_out));
}
END_TEST

/* One rule each, by hand: ten points, of which the last half are beyond its limit. */
#define TEN 10
static const struct {
    const char *rule;
    const char *statistic;
    double before;
    double after;
    enum advice_verdict verdict;
    int64_t since;
} rule_cases[] = {
    { "gradient_collapse", "gradient_norm", 0.1, 1e-7, ADVICE_REINIT, 50 },
    { "dormant_rising", "dormant_ratio", 0.05, 0.8, ADVICE_REINIT, 50 },
    { "dormant_grown", "dormant_ratio", 0.05, 0.5, ADVICE_WATCH, 50 },
    { "saturated_grown", "saturated_ratio", 0.05, 0.8, ADVICE_WATCH, 50 },
    { "gradient_dormant_rising", "gradient_dormant_ratio", 0.05, 0.8, ADVICE_REINIT, 50 },
    { "dfi_rising", "dfi", 70.0, 7000.0, ADVICE_REINIT, 50 },
    { "dfi_grown", "dfi", 70.0, 1000.0, ADVICE_WATCH, 50 },
    { "rank_falling", "effective_rank", 100.0, 20.0, ADVICE_WATCH, 50 },
    { "", "dfi", 70.0, 150.0, ADVICE_LEAVE_IT, 0 },
    { "", "dormant_ratio", 0.3, 0.3, ADVICE_LEAVE_IT, 0 },
    { "saturated_grown", "saturated_ratio", 0.05, 0.4, ADVICE_WATCH, 50 },
    { "", "saturated_ratio", 0.0, 0.2, ADVICE_LEAVE_IT, 0 },
    { "", "gradient_norm", 0.1, 1e-4, ADVICE_LEAVE_IT, 0 },
    { "", "effective_rank", 100.0, 90.0, ADVICE_UNKNOWN, 0 },
    { "", "loss", 1.0, 9.0, ADVICE_UNKNOWN, 0 },
};

START_TEST(a_rule_says_what_and_since_when)
{
    int64_t steps[TEN];
    double values[TEN];
    struct advice_series series = { rule_cases[_i].statistic, steps, values, TEN };
    const struct advice_layer layer = {
        .name = "fc", .shape = { 2, { 128, 128 } }, .series = &series, .series_count = 1
    };
    struct advice advice;

    for (int i = 0; i < TEN; i++) {
        steps[i] = 10 * i;
        values[i] = i < TEN / 2 ? rule_cases[_i].before : rule_cases[_i].after;
    }
    advice_judge(&layer, &advice);
    ck_assert_str_eq(advice.rule, rule_cases[_i].rule);
    ck_assert_int_eq(advice.verdict, rule_cases[_i].verdict);
    ck_assert_int_eq(advice.since_step, rule_cases[_i].since);
    ck_assert_msg(advice.reason[0] != '\0', "no reason");
    ck_assert_int_eq(advice.preset[0] != '\0', advice.verdict == ADVICE_REINIT);
}
END_TEST

/* Where units saturate, DfI decides nothing; a gradient that vanishes with them does. */
START_TEST(saturated_units_need_a_gradient)
{
    int64_t steps[TEN];
    double saturated[TEN], dfi[TEN], gradient[TEN];
    const struct advice_series series[] = { { "saturated_ratio", steps, saturated, TEN },
                                            { "dfi", steps, dfi, TEN },
                                            { "gradient_norm", steps, gradient, TEN } };
    struct advice_layer layer = {
        .name = "fc", .shape = { 2, { 128, 128 } }, .series = series, .series_count = 3
    };
    struct advice advice;

    for (int i = 0; i < TEN; i++) {
        steps[i] = 10 * i;
        saturated[i] = i < TEN / 2 ? 0.05 : 0.8;
        dfi[i] = i < TEN / 2 ? 70.0 : 7000.0;
        gradient[i] = 0.1;
    }
    advice_judge(&layer, &advice);
    ck_assert_int_eq(advice.verdict, ADVICE_WATCH);
    ck_assert_uint_eq(advice.also_count, 1);
    for (int i = TEN / 2; i < TEN; i++)
        gradient[i] = 0.001;
    advice_judge(&layer, &advice);
    ck_assert_int_eq(advice.verdict, ADVICE_REINIT);
    ck_assert_str_eq(advice.rule, "saturated_rising");
    ck_assert_int_eq(advice.since_step, 50);
    ck_assert_ptr_nonnull(strstr(advice.reason, "from 0.1 to 0.001"));
    layer.series++; /* nothing is known to saturate */
    layer.series_count = 2;
    advice_judge(&layer, &advice);
    ck_assert_str_eq(advice.rule, "dfi_rising");
}
END_TEST

/* What was before a reinitialisation does not count, however bad it was; right after it nothing is
 * known. Values that are no numbers are passed over. */
START_TEST(a_reinitialisation_starts_anew)
{
    int64_t steps[TEN], reinit = 45;
    double values[TEN];
    struct advice_series series = { "dfi", steps, values, TEN };
    const struct advice_layer layer = { .name = "fc",
                                        .shape = { 2, { 128, 128 } },
                                        .series = &series,
                                        .series_count = 1,
                                        .reinits = &reinit,
                                        .reinit_count = 1 };
    struct advice advice;

    for (int i = 0; i < TEN; i++) {
        steps[i] = 10 * i;
        values[i] = i < TEN / 2 ? 9000.0 : 1e-10 + i;
    }
    advice_judge(&layer, &advice);
    ck_assert_int_eq(advice.verdict, ADVICE_LEAVE_IT);
    reinit = 75;
    advice_judge(&layer, &advice);
    ck_assert_int_eq(advice.verdict, ADVICE_UNKNOWN);
    ck_assert_ptr_nonnull(strstr(advice.reason, "step 75"));
    for (int i = 0; i < TEN; i++)
        values[i] = NAN;
    reinit = 0;
    advice_judge(&layer, &advice);
    ck_assert_int_eq(advice.verdict, ADVICE_UNKNOWN);
}
END_TEST

/* The estimate of SFE against singular values that are known: a diagonal matrix of them. */
START_TEST(sfe_is_about_right)
{
    int64_t steps[TEN];
    double dfi[TEN], norm[TEN], silent[TEN];
    double squares = 0.0, fourth = 0.0, sfe = 0.0;
    const struct advice_series series[] = { { "dfi", steps, dfi, TEN },
                                            { "norm", steps, norm, TEN },
                                            { "dormant_ratio", steps, silent, TEN } };
    const struct advice_layer layer = {
        .name = "fc", .shape = { 2, { 64, 64 } }, .series = series, .series_count = 3
    };
    struct advice advice;

    for (int i = 0; i < 64; i++) {
        const double sigma = 2.0 * (i + 0.5) / 64.0;

        squares += sigma * sigma;
        fourth += pow(sigma, 4.0);
        sfe += (sigma - 1.0) * (sigma - 1.0);
    }
    for (int i = 0; i < TEN; i++) {
        steps[i] = i;
        dfi[i] = fourth - 2.0 * squares + 64.0;
        norm[i] = sqrt(squares);
        silent[i] = i < 5 ? 0.0 : 0.9;
    }
    advice_judge(&layer, &advice);
    ck_assert_int_eq(advice.verdict, ADVICE_REINIT);
    ck_assert_msg(fabs(advice.sfe / sfe - 1.0) < 0.25, "%g, truly %g", advice.sfe, sfe);
    ck_assert_msg(advice.flops > 64.0 * 64.0 * 64.0, "flops %g", advice.flops);
}
END_TEST

START_TEST(the_summary_counts)
{
    const struct advice list[] = { { .verdict = ADVICE_LEAVE_IT },
                                   { .verdict = ADVICE_REINIT },
                                   { .verdict = ADVICE_WATCH },
                                   { .verdict = ADVICE_UNKNOWN } };
    char text[256];

    advice_summary(list, 4, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "1 of 4 layers lose plasticity"));
    advice_summary(list, 1, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "leave it"));
    advice_summary(list + 2, 1, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "worth watching"));
    advice_summary(list + 3, 1, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "too few"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("advice");
    TCase *cases = tcase_create("advice");
    SRunner *runner;
    int failed;

    tcase_set_timeout(cases, 120);
    tcase_add_loop_test(cases, made_histories_are_told_apart, 0, 2);
    tcase_add_test(cases, recorded_runs_are_told_apart);
    tcase_add_loop_test(cases, a_rule_says_what_and_since_when, 0,
                        (int)(sizeof(rule_cases) / sizeof(rule_cases[0])));
    tcase_add_test(cases, saturated_units_need_a_gradient);
    tcase_add_test(cases, a_reinitialisation_starts_anew);
    tcase_add_test(cases, sfe_is_about_right);
    tcase_add_test(cases, the_summary_counts);
    suite_add_tcase(suite, cases);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
