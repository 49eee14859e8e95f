/* advice: does a layer lose plasticity, since when, and what would help?
 *
 * Works on plain arrays: no store, no network, no clock, any thread. The rules are the table in
 * advice.c; what they look at was measured (README.md, "Advice"): raw DfI against its own start,
 * dormant and saturated ratios, gradient norm; effective rank is weak evidence and never decides
 * alone. Advice never acts by itself. */
#ifndef FIRED_ADVICE_H
#define FIRED_ADVICE_H

#include <stddef.h>
#include <stdint.h>

#include "tensor.h"

#define ADVICE_RULES_MAX    16u
#define ADVICE_REASON_BYTES 384u

/* One statistic of a layer over time; borrowed. Points or cells of a query (a cell's first step and
 * its mean); `steps` ascend. */
struct advice_series {
    const char *statistic; /* "dfi", "dormant_ratio", "gradient_norm", …; others are ignored */
    const int64_t *steps;
    const double *values; /* a value that is not finite is left out */
    size_t count;
};

/* What is known of a layer; borrowed. */
struct advice_layer {
    const char *name;
    struct fire_shape shape; /* axes 0: unknown */
    const struct advice_series *series;
    size_t series_count;
    const int64_t *reinits; /* steps at which it was reinitialised, ascending */
    size_t reinit_count;
};

/* In the order of the contract's enum. */
enum advice_verdict {
    ADVICE_LEAVE_IT = 1,
    ADVICE_WATCH,
    ADVICE_REINIT,
    ADVICE_UNKNOWN,
};

/* The answer. Texts but `reason` are constants. */
struct advice {
    enum advice_verdict verdict;
    const char *rule;   /* the one that decided, such as "dfi_rising"; "" when none did */
    int64_t since_step; /* the first step at which it holds; 0 when none decided */
    char reason[ADVICE_REASON_BYTES]; /* one sentence with the numbers */
    const char *intervention;         /* "reinit" or "" */
    const char *preset;               /* "fire" or "" */
    double flops;                     /* of that; 0 when the shape is unknown or nothing is
                                         suggested */
    double sfe; /* about how far the weights would move, from norm and DfI; negative: unknown */
    const char *also[ADVICE_RULES_MAX]; /* rules that hold but did not decide */
    size_t also_count;
};

void advice_judge(const struct advice_layer *layer, struct advice *advice);

/* One line about `count` answers: leave it, or how many layers of how many lose plasticity. Cut to
 * `bytes`. */
void advice_summary(const struct advice *list, size_t count, char *text, size_t bytes);

#endif
