/* result: one table names the numbers, says where they are and how those of many matrices become
 * one. Order and names are a promise to scripts: INTERFACES.md section 2. */
#include "result.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum merge_rule {
    MERGE_SUM,
    MERGE_ROOT,  /* root of the sum of squares: norms */
    MERGE_WORST, /* the largest */
    MERGE_MEAN,  /* each matrix counts once */
};

#define FIELD(name, member, rule)                                                                  \
    {                                                                                              \
        { name, offsetof(struct fire_result, member) }, rule                                       \
    }
#define MOMENT(name, member, rule)                                                                 \
    FIELD(name "_before", before.member, rule), FIELD(name "_after", after.member, rule)

static const struct {
    struct fire_result_field field;
    enum merge_rule rule;
} fields[] = {
    /* clang-format off */
    FIELD("scale", scale, MERGE_MEAN),
    MOMENT("dfi", dfi, MERGE_SUM),
    MOMENT("dfi_full", dfi_full, MERGE_SUM),
    MOMENT("dfi_scale_free", dfi_scale_free, MERGE_SUM),
    FIELD("dfi_unscaled_after", dfi_unscaled_after, MERGE_SUM),
    FIELD("polar_residual", polar_residual, MERGE_MEAN),
    MOMENT("dfi_mean", dfi_mean, MERGE_MEAN),
    FIELD("sfe", sfe, MERGE_SUM),
    FIELD("sfe_relative", sfe_relative, MERGE_MEAN),
    MOMENT("norm", norm, MERGE_ROOT),
    FIELD("norm_preservation", norm_preservation, MERGE_MEAN),
    MOMENT("spectral_norm", spectral_norm, MERGE_ROOT),
    MOMENT("stable_rank", stable_rank, MERGE_MEAN),
    MOMENT("effective_rank", effective_rank, MERGE_MEAN),
    MOMENT("srank", srank, MERGE_MEAN),
    MOMENT("condition", condition, MERGE_WORST),
    MOMENT("participation", participation, MERGE_MEAN),
    FIELD("dormant_ratio", dormant_ratio, MERGE_MEAN),
    FIELD("gradient_dormant_ratio", gradient_dormant_ratio, MERGE_MEAN),
    FIELD("compute_ms", compute_ms, MERGE_SUM),
    /* clang-format on */
};
#define FIELD_COUNT (sizeof(fields) / sizeof(fields[0]))

size_t fire_result_field_count(void)
{
    return FIELD_COUNT;
}

const struct fire_result_field *fire_result_field_at(size_t index)
{
    FIRE_ASSERT(index < FIELD_COUNT);
    return &fields[index].field;
}

static double value_at(const struct fire_result *result, size_t index)
{
    double value;

    memcpy(&value, (const char *)result + fields[index].field.offset, sizeof(value));
    return value;
}

static void set_value(struct fire_result *result, size_t index, double value)
{
    memcpy((char *)result + fields[index].field.offset, &value, sizeof(value));
}

double fire_result_value(const struct fire_result *result, size_t index)
{
    FIRE_ASSERT(index < FIELD_COUNT);
    return value_at(result, index);
}

void fire_result_init(struct fire_result *result)
{
    memset(result, 0, sizeof(*result));
    result->action = FIRE_ACTION_REFUSED;
    result->status = FIRE_OK;
    result->path = "";
    for (size_t i = 0; i < FIELD_COUNT; i++)
        set_value(result, i, NAN);
}

/* An unknown number makes the merged one unknown: half a sum would be a lie. */
static double merge_value(enum merge_rule rule, double sum, double sum_weight, double part,
                          double part_weight)
{
    if (isnan(sum) || isnan(part))
        return NAN;
    switch (rule) {
    case MERGE_SUM: return sum + part;
    case MERGE_ROOT: return hypot(sum, part);
    case MERGE_WORST: return fmax(sum, part);
    case MERGE_MEAN:
        /* Equal values stay what they are, to the bit. */
        return sum + (part - sum) * (part_weight / (sum_weight + part_weight));
    }
    return NAN;
}

/* "D64 D D T5" and one that differs make "D64 D D T5 (+1 other)". */
static void merge_method(char *sum, size_t sum_bytes, const char *part)
{
    const size_t base_max = sum_bytes - sizeof(" (+4294967295 other)");
    const char *suffix = strstr(sum, " (+");
    size_t base = suffix ? (size_t)(suffix - sum) : strlen(sum);
    unsigned int others = 0;
    char merged[sizeof(((struct fire_result *)0)->method)];

    if (base > base_max)
        base = base_max;
    if (strncmp(sum, part, base) == 0 && (part[base] == '\0' || base == base_max))
        return;
    if (base == 0) { /* the first matrices were skipped */
        snprintf(sum, sum_bytes, "%s", part);
        return;
    }
    if (part[0] == '\0')
        return;
    if (suffix)
        others = (unsigned int)strtoul(suffix + strlen(" (+"), NULL, 10);
    snprintf(merged, sizeof(merged), "%.*s (+%u other)", (int)base, sum, others + 1);
    memcpy(sum, merged, strlen(merged) + 1);
}

/* Refused if any is, else projected if any is: then the reason of one left out stays readable. */
static void merge_action(struct fire_result *sum, const struct fire_result *part)
{
    const bool part_refused = part->action == FIRE_ACTION_REFUSED;
    const bool part_projected = part->action == FIRE_ACTION_PROJECTED;

    if (sum->action == FIRE_ACTION_REFUSED)
        return;
    if (part_refused || (sum->reason[0] == '\0' && part->reason[0] != '\0'))
        memcpy(sum->reason, part->reason, sizeof(sum->reason));
    if (part_refused) {
        sum->action = FIRE_ACTION_REFUSED;
        sum->status = part->status;
    } else if (part_projected && sum->action == FIRE_ACTION_SKIPPED) {
        sum->action = FIRE_ACTION_PROJECTED;
        sum->converged = part->converged;
    } else if (part_projected) {
        sum->converged = sum->converged && part->converged;
    }
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

void fire_result_merge(struct fire_result *sum, const struct fire_result *part)
{
    const uint32_t part_matrices = larger(part->matrices, 1);

    if (sum->matrices == 0) {
        *sum = *part;
        sum->matrices = part_matrices;
        return;
    }
    for (size_t i = 0; i < FIELD_COUNT; i++)
        set_value(sum, i,
                  merge_value(fields[i].rule, value_at(sum, i), sum->matrices, value_at(part, i),
                              part_matrices));
    merge_action(sum, part);
    merge_method(sum->method, sizeof(sum->method), part->method);
    if (part->path && sum->path && strcmp(sum->path, part->path) != 0)
        sum->path = sum->path[0] == '\0' ? part->path : "mixed";
    sum->steps = larger(sum->steps, part->steps);
    sum->rank = smaller(sum->rank, part->rank);
    sum->rank_defect = larger(sum->rank_defect, part->rank_defect);
    sum->matrices += part_matrices;
}
