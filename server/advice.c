/* advice: the rules. (The table follows; until then every layer is unknown.) */
#include "advice.h"

#include <stdio.h>

void advice_judge(const struct advice_layer *layer, struct advice *advice)
{
    *advice = (struct advice){
        .verdict = ADVICE_UNKNOWN, .rule = "", .intervention = "", .preset = "", .sfe = -1.0
    };
    snprintf(advice->reason, sizeof(advice->reason), "%.64s has too few points to tell",
             layer->name);
}

void advice_summary(const struct advice *list, size_t count, char *text, size_t bytes)
{
    (void)list;
    snprintf(text, bytes, "%zu layers have too few points to tell", count);
}
