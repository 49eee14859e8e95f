/* advice: the rules, as a table.
 *
 * A rule looks at trends: where a statistic was at its start, how low it has been, where it is now.
 * Start means after the layer's last reinitialisation. The first rule of the table that holds and
 * says reinit decides; without one, the first that says watch; the others are named beside it.
 *
 * Limits were set on training runs of development seeds (tests/server/advice) and are judged on
 * others. What was seen there: raw DfI grows 12 to 30 times in layers of networks that learn as
 * well as new ones, but then their dormant ratio does not rise; in networks that hardly learn any
 * more it grows 40 to 250 times, or 10 times and more while units fall silent. A layer that reads
 * the data (many more inputs than outputs) is no witness: its DfI grows 25 to 70 times and half of
 * its units fall silent in networks that learn well. Effective rank falls in both, so it is only
 * worth watching.
 *
 * Units with a bounded activation (tanh) never fall silent: they saturate. That alone says nothing,
 * and neither does DfI: both were as high in networks that learned better than new ones (0.8 of a
 * layer, 76 times). What tells is that the gradient vanishes with it: to 0.005 of its start and
 * less where the network had lost plasticity, while it had grown in all others. */
#include "advice.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cost.h"
#include "work.h"

#define POINTS_MIN  5u  /* of a statistic, to say anything about it */
#define START_COUNT 3u  /* points whose median is the start */
#define NOW_COUNT   5u  /* points whose median is the present */
#define SAMPLES_MAX 256 /* values looked at for the low */
#define LOW_PERCENT 10

/* DfI per singular value that any fresh matrix may have: orthogonal ones start at 0, which nothing
 * can be compared with. PyTorch's default initialisation starts at 0.46 to 0.56. */
#define DFI_FRESH_MEAN 0.5

#define DFI_GROWTH_REINIT   40.0 /* alone */
#define DFI_GROWTH_DORMANT  10.0 /* while units fall silent */
#define DFI_GROWTH_WATCH    10.0
#define DATA_FACING         4 /* so many times more inputs than outputs: DfI is only watched */
#define DORMANT_LIMIT       0.65
#define DORMANT_RISE        0.25
#define SATURATED_LIMIT     0.5
#define GRADIENT_SHARE      0.05 /* of its start: vanished, where units saturate */
#define DORMANT_RISE_BESIDE 0.1  /* beside a growing DfI */
#define DORMANT_WATCH       0.25
#define DORMANT_RISE_WATCH  0.15
#define GRADIENT_NORM_LIMIT 1e-6
#define RANK_SHARE_WATCH    0.7

/* A statistic since the last reinitialisation. */
struct trend {
    const struct advice_series *series; /* NULL: too few points */
    size_t first;                       /* index of its first point */
    size_t count;                       /* finite points from there on */
    double start;
    double low; /* 10th percentile */
    double now;
};

enum statistic {
    DFI,
    DORMANT,
    SATURATED,
    GRADIENT_DORMANT_RATIO,
    GRADIENT_NORM,
    EFFECTIVE_RANK,
    NORM,
    KINDS
};

static const char *const statistic_names[KINDS] = {
    [DFI] = "dfi",
    [DORMANT] = "dormant_ratio",
    [SATURATED] = "saturated_ratio",
    [GRADIENT_DORMANT_RATIO] = "gradient_dormant_ratio",
    [GRADIENT_NORM] = "gradient_norm",
    [EFFECTIVE_RANK] = "effective_rank",
    [NORM] = "norm",
};

struct evidence {
    const struct advice_layer *layer;
    struct trend trends[KINDS];
    double dfi_base;  /* what DfI is compared with */
    double growth;    /* DfI now over that; 0: unknown */
    bool data_facing; /* it reads the data, so its DfI decides nothing */
};

/* --- trends ----------------------------------------------------------------------------------- */

static int compare_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare_numbers);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

/* Median of up to `count` finite values from `first` on, forwards or backwards. */
static double median_from(const struct advice_series *series, size_t first, int direction,
                          size_t count)
{
    double values[NOW_COUNT];
    size_t used = 0;

    for (size_t i = first; i < series->count && used < count; i += (size_t)direction) {
        if (isfinite(series->values[i]))
            values[used++] = series->values[i];
    }
    return used ? median(values, used) : NAN;
}

/* Percentile of evenly chosen values from `first` on. */
static double low_of(const struct advice_series *series, size_t first)
{
    const size_t span = series->count - first;
    const size_t samples = span < SAMPLES_MAX ? span : SAMPLES_MAX;
    double values[SAMPLES_MAX] = { 0 };
    size_t used = 0;

    for (size_t i = 0; i < samples; i++) {
        const double value = series->values[first + i * span / samples];

        if (isfinite(value))
            values[used++] = value;
    }
    qsort(values, used, sizeof(*values), compare_numbers);
    return used ? values[LOW_PERCENT * (used - 1) / 100] : NAN;
}

static void trend_init(struct trend *trend, const struct advice_layer *layer, const char *name)
{
    const struct advice_series *series = NULL;

    *trend = (struct trend){ .start = NAN, .low = NAN, .now = NAN };
    for (size_t i = 0; i < layer->series_count; i++) {
        if (strcmp(layer->series[i].statistic, name) == 0)
            series = &layer->series[i];
    }
    if (!series)
        return;
    /* A point of the very step of a reinitialisation may be of before or after it. */
    while (layer->reinit_count && trend->first < series->count &&
           series->steps[trend->first] <= layer->reinits[layer->reinit_count - 1])
        trend->first++;
    for (size_t i = trend->first; i < series->count; i++)
        trend->count += isfinite(series->values[i]) != 0;
    if (trend->count < POINTS_MIN)
        return;
    trend->series = series;
    trend->start = median_from(series, trend->first, 1, START_COUNT);
    trend->low = low_of(series, trend->first);
    trend->now = median_from(series, series->count - 1, -1, NOW_COUNT);
}

/* The first step from which on a value, smoothed over three points, stays beyond `limit`. */
static int64_t since(const struct trend *trend, double limit, int above)
{
    const struct advice_series *series = trend->series;
    size_t found = series->count - 1;

    for (size_t i = series->count; i-- > trend->first;) {
        const size_t from = i > trend->first ? i - 1 : i;
        const double value = median_from(series, from, 1, 3);

        if (isnan(value))
            continue;
        if (above ? value < limit : value > limit)
            break;
        found = i;
    }
    return series->steps[found];
}

/* Of the first few finite values the least: DfI is exact, but grows fast at first. */
static double least_of_first(const struct advice_series *series, size_t first)
{
    double least = INFINITY;
    size_t used = 0;

    for (size_t i = first; i < series->count && used < START_COUNT; i++) {
        if (isfinite(series->values[i])) {
            least = fmin(least, series->values[i]);
            used++;
        }
    }
    return used ? least : 0.0;
}

/* DfI is compared with its own start, but never with less than what a fresh matrix may have, nor
 * with less than what the run once began with: a reinitialisation leaves it near 0. */
static void dfi_compare(struct evidence *evidence)
{
    const struct trend *dfi = &evidence->trends[DFI];
    const struct fire_shape *shape = &evidence->layer->shape;
    double base;

    if (!dfi->series)
        return;
    base = fmax(least_of_first(dfi->series, dfi->first), least_of_first(dfi->series, 0));
    if (shape->axes >= 2) {
        const uint64_t m = shape->size[0], n = shape->size[1];
        double taps = 1.0;

        for (uint32_t axis = 2; axis < shape->axes; axis++)
            taps *= (double)shape->size[axis];
        base = fmax(base, DFI_FRESH_MEAN * (double)(m < n ? m : n) * taps);
        evidence->data_facing = shape->axes == 2 && n / DATA_FACING >= m;
    }
    evidence->dfi_base = base;
    evidence->growth = base > 0.0 ? dfi->now / base : 0.0;
}

/* --- the rules -------------------------------------------------------------------------------- */

/* Holds? Then writes since when, and why in words. */
typedef bool (*rule_judge)(const struct evidence *evidence, int64_t *since_step, char *reason);

static bool judge_collapse(const struct evidence *evidence, int64_t *since_step, char *reason)
{
    const struct trend *norm = &evidence->trends[GRADIENT_NORM];

    if (!norm->series || !(norm->now < GRADIENT_NORM_LIMIT))
        return false;
    *since_step = since(norm, GRADIENT_NORM_LIMIT, 0);
    snprintf(reason, ADVICE_REASON_BYTES,
             "the gradient's norm is %.3g, below %g since step %" PRId64 " (it began at %.3g): "
             "nothing is learned here any more",
             norm->now, GRADIENT_NORM_LIMIT, *since_step, norm->start);
    return true;
}

static bool judge_share(const struct trend *share, const char *what, double limit, double rise,
                        int64_t *since_step, char *reason)
{
    if (!share->series || !(share->now >= limit) || !(share->now - share->low >= rise))
        return false;
    *since_step = since(share, limit, 1);
    snprintf(reason, ADVICE_REASON_BYTES,
             "the %s has risen from %.3g to %.3g, above %g since step %" PRId64, what, share->low,
             share->now, limit, *since_step);
    return true;
}

static bool judge_dormant(const struct evidence *evidence, int64_t *since_step, char *reason)
{
    return judge_share(&evidence->trends[DORMANT], "dormant ratio", DORMANT_LIMIT, DORMANT_RISE,
                       since_step, reason);
}

static bool judge_saturated(const struct evidence *evidence, int64_t *since_step, char *reason)
{
    const struct trend *norm = &evidence->trends[GRADIENT_NORM];
    size_t used;

    if (!norm->series || !(norm->now <= GRADIENT_SHARE * norm->start) ||
        !judge_share(&evidence->trends[SATURATED], "saturated ratio", SATURATED_LIMIT, DORMANT_RISE,
                     since_step, reason))
        return false;
    used = strlen(reason);
    snprintf(reason + used, ADVICE_REASON_BYTES - used,
             ", and the gradient's norm has fallen from %.3g to %.3g", norm->start, norm->now);
    return true;
}

static bool judge_gradient_dormant(const struct evidence *evidence, int64_t *since_step,
                                   char *reason)
{
    return judge_share(&evidence->trends[GRADIENT_DORMANT_RATIO], "gradient-dormant ratio",
                       DORMANT_LIMIT, DORMANT_RISE, since_step, reason);
}

static void dfi_reason(const struct evidence *evidence, double times, int64_t *since_step,
                       const char *beside, char *reason)
{
    *since_step = since(&evidence->trends[DFI], times * evidence->dfi_base, 1);
    snprintf(reason, ADVICE_REASON_BYTES,
             "raw DfI is %.3g, %.1f times the %.3g it is compared with, above %g times since step "
             "%" PRId64 "%s",
             evidence->trends[DFI].now, evidence->growth, evidence->dfi_base, times, *since_step,
             beside);
}

static bool judge_dfi(const struct evidence *evidence, int64_t *since_step, char *reason)
{
    if (evidence->data_facing || evidence->trends[SATURATED].series ||
        !(evidence->growth >= DFI_GROWTH_REINIT))
        return false;
    dfi_reason(evidence, DFI_GROWTH_REINIT, since_step, "", reason);
    return true;
}

static bool judge_dfi_dormant(const struct evidence *evidence, int64_t *since_step, char *reason)
{
    const struct trend *dormant = &evidence->trends[DORMANT];
    char beside[96];

    if (evidence->data_facing || !(evidence->growth >= DFI_GROWTH_DORMANT) || !dormant->series ||
        !(dormant->now - dormant->low >= DORMANT_RISE_BESIDE))
        return false;
    snprintf(beside, sizeof(beside), ", and the dormant ratio has risen from %.3g to %.3g",
             dormant->low, dormant->now);
    dfi_reason(evidence, DFI_GROWTH_DORMANT, since_step, beside, reason);
    return true;
}

static bool judge_dfi_grown(const struct evidence *evidence, int64_t *since_step, char *reason)
{
    if (!(evidence->growth >= DFI_GROWTH_WATCH))
        return false;
    dfi_reason(evidence, DFI_GROWTH_WATCH, since_step,
               "; networks that learn well do so too, unless units fall silent", reason);
    return true;
}

static bool judge_dormant_grown(const struct evidence *evidence, int64_t *since_step, char *reason)
{
    return judge_share(&evidence->trends[DORMANT], "dormant ratio", DORMANT_WATCH,
                       DORMANT_RISE_WATCH, since_step, reason);
}

static bool judge_saturated_grown(const struct evidence *evidence, int64_t *since_step,
                                  char *reason)
{
    return judge_share(&evidence->trends[SATURATED], "saturated ratio", DORMANT_WATCH,
                       DORMANT_RISE_WATCH, since_step, reason);
}

static bool judge_rank(const struct evidence *evidence, int64_t *since_step, char *reason)
{
    const struct trend *rank = &evidence->trends[EFFECTIVE_RANK];

    if (!rank->series || !(rank->now <= RANK_SHARE_WATCH * rank->start))
        return false;
    *since_step = since(rank, RANK_SHARE_WATCH * rank->start, 0);
    snprintf(reason, ADVICE_REASON_BYTES,
             "the effective rank has fallen from %.3g to %.3g, below %g of its start since step "
             "%" PRId64 "; that alone says little",
             rank->start, rank->now, RANK_SHARE_WATCH, *since_step);
    return true;
}

static const struct {
    const char *name;
    enum advice_verdict verdict;
    rule_judge judge;
} rules[] = {
    { "gradient_collapse", ADVICE_REINIT, judge_collapse },
    { "dormant_rising", ADVICE_REINIT, judge_dormant },
    { "saturated_rising", ADVICE_REINIT, judge_saturated },
    { "dfi_rising", ADVICE_REINIT, judge_dfi },
    { "dfi_and_dormant", ADVICE_REINIT, judge_dfi_dormant },
    { "gradient_dormant_rising", ADVICE_REINIT, judge_gradient_dormant },
    { "dfi_grown", ADVICE_WATCH, judge_dfi_grown },
    { "dormant_grown", ADVICE_WATCH, judge_dormant_grown },
    { "saturated_grown", ADVICE_WATCH, judge_saturated_grown },
    { "rank_falling", ADVICE_WATCH, judge_rank },
};
#define RULE_COUNT (sizeof(rules) / sizeof(rules[0]))
_Static_assert(RULE_COUNT <= ADVICE_RULES_MAX, "every rule has room in `also`");

/* --- what it would cost ----------------------------------------------------------------------- */

/* Flops of a reinitialisation with the preset, from the plans it would run. */
static double flops_of(const struct fire_shape *shape)
{
    struct fire_options options;
    struct fire_work work;
    double sum = 0.0;

    if (shape->axes < 2 || fire_options_preset(&options, "fire", NULL) != FIRE_OK ||
        fire_work_init(&work, shape, FIRE_F32, &options, false, 0, NULL) != FIRE_OK)
        return 0.0;
    for (uint32_t i = 0; i < work.part_count; i++)
        sum += (double)work.parts[i].matrices * cost_flops(&work.parts[i].plan);
    fire_work_release(&work);
    return sum;
}

/* ||W - cQ||^2 = T - 2c S + c^2 r, with T the sum of squared singular values (norm^2) and S their
 * sum. S is not recorded, but lies between T^1.5 / sqrt(F) and sqrt(r T), with F the sum of their
 * fourth powers, which DfI = F - 2T + r tells; the middle is within a percent for Gaussian
 * matrices. */
static double sfe_of(const struct evidence *evidence)
{
    const struct fire_shape *shape = &evidence->layer->shape;
    const struct trend *norm = &evidence->trends[NORM], *dfi = &evidence->trends[DFI];
    double taps = 1.0, rank, scale, squares, fourth, sum;

    if (shape->axes < 2 || !norm->series || !dfi->series || !(norm->now > 0.0))
        return -1.0;
    for (uint32_t axis = 2; axis < shape->axes; axis++)
        taps *= (double)shape->size[axis];
    rank = taps * fmin((double)shape->size[0], (double)shape->size[1]);
    scale = sqrt((double)shape->size[0] / (double)shape->size[1]) / taps;
    squares = norm->now * norm->now;
    fourth = fmax(dfi->now + 2.0 * squares - rank, squares * squares / rank);
    sum = 0.5 * (squares * sqrt(squares) / sqrt(fourth) + sqrt(rank * squares));
    return fmax(squares - 2.0 * scale * sum + scale * scale * rank, 0.0);
}

/* --- the answer ------------------------------------------------------------------------------- */

static size_t __attribute__((format(printf, 3, 4)))
append(char *text, size_t used, const char *format, ...)
{
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(text + used, ADVICE_REASON_BYTES - used, format, arguments);
    va_end(arguments);
    used += length > 0 ? (size_t)length : 0;
    return used < ADVICE_REASON_BYTES ? used : ADVICE_REASON_BYTES - 1;
}

/* Nothing holds: says what was looked at, or that there was nothing. */
static void describe_calm(const struct evidence *evidence, struct advice *advice)
{
    const struct trend *trends = evidence->trends;
    const struct advice_layer *layer = evidence->layer;
    size_t used = 0;

    if (trends[DFI].series)
        used = append(advice->reason, used,
                      "raw DfI is %.3g, %.2f times the %.3g it is compared "
                      "with; ",
                      trends[DFI].now, evidence->growth, evidence->dfi_base);
    if (trends[DORMANT].series)
        used = append(advice->reason, used, "the dormant ratio is %.3g; ", trends[DORMANT].now);
    if (trends[SATURATED].series)
        used = append(advice->reason, used, "the saturated ratio is %.3g; ", trends[SATURATED].now);
    if (trends[GRADIENT_DORMANT_RATIO].series)
        used = append(advice->reason, used, "the gradient-dormant ratio is %.3g; ",
                      trends[GRADIENT_DORMANT_RATIO].now);
    if (trends[GRADIENT_NORM].series)
        used = append(advice->reason, used, "the gradient's norm is %.3g; ",
                      trends[GRADIENT_NORM].now);
    if (used) {
        advice->verdict = ADVICE_LEAVE_IT;
        append(advice->reason, used, "no rule sees a loss of plasticity");
    } else if (layer->reinit_count) {
        append(advice->reason, 0,
               "fewer than %u points since the reinitialisation at step %" PRId64, POINTS_MIN,
               layer->reinits[layer->reinit_count - 1]);
    } else {
        append(advice->reason, 0,
               "fewer than %u points of dfi, dormant_ratio, saturated_ratio, "
               "gradient_dormant_ratio or gradient_norm",
               POINTS_MIN);
    }
}

/* A rule that holds: it decides, or is named beside the one that does. */
static void take_rule(struct advice *advice, size_t rule, int64_t since_step, const char *reason)
{
    const bool stronger = advice->verdict == ADVICE_UNKNOWN ||
                          (advice->verdict == ADVICE_WATCH && rules[rule].verdict == ADVICE_REINIT);

    if (!stronger) {
        advice->also[advice->also_count++] = rules[rule].name;
        return;
    }
    advice->verdict = rules[rule].verdict;
    advice->rule = rules[rule].name;
    advice->since_step = since_step;
    snprintf(advice->reason, sizeof(advice->reason), "%s", reason);
}

void advice_judge(const struct advice_layer *layer, struct advice *advice)
{
    struct evidence evidence = { .layer = layer };

    *advice = (struct advice){
        .verdict = ADVICE_UNKNOWN, .rule = "", .intervention = "", .preset = "", .sfe = -1.0
    };
    for (size_t i = 0; i < KINDS; i++)
        trend_init(&evidence.trends[i], layer, statistic_names[i]);
    dfi_compare(&evidence);
    /* The table is ordered: rules that say reinit come first, so `also` never holds a stronger
     * one. */
    for (size_t i = 0; i < RULE_COUNT; i++) {
        char reason[ADVICE_REASON_BYTES];
        int64_t since_step = 0;

        if (rules[i].judge(&evidence, &since_step, reason))
            take_rule(advice, i, since_step, reason);
    }
    if (advice->verdict == ADVICE_UNKNOWN)
        describe_calm(&evidence, advice);
    if (advice->verdict != ADVICE_REINIT)
        return;
    advice->intervention = "reinit";
    advice->preset = "fire";
    advice->flops = flops_of(&layer->shape);
    advice->sfe = sfe_of(&evidence);
}

void advice_summary(const struct advice *list, size_t count, char *text, size_t bytes)
{
    size_t reinit = 0, watch = 0, unknown = 0;

    for (size_t i = 0; i < count; i++) {
        reinit += list[i].verdict == ADVICE_REINIT;
        watch += list[i].verdict == ADVICE_WATCH;
        unknown += list[i].verdict == ADVICE_UNKNOWN;
    }
    if (reinit)
        snprintf(text, bytes,
                 "%zu of %zu layers lose plasticity: reinitialise them, and reset the optimizer's "
                 "state with them",
                 reinit, count);
    else if (unknown == count)
        snprintf(text, bytes, "too few points to tell");
    else if (watch)
        snprintf(text, bytes, "leave it; %zu of %zu layers are worth watching", watch, count);
    else
        snprintf(text, bytes, "leave it: no layer of %zu loses plasticity%s", count,
                 unknown ? " as far as their points tell" : "");
}
