/* arch: which tensors of a model are projected, which are split, which are skipped, and why. Rules
 * are tables of name patterns; a checkpoint's architecture is recognised by its names. */
#ifndef FIRE_ARCH_H
#define FIRE_ARCH_H

#include "options.h"
#include "safetensors.h"
#include "status.h"

enum arch { ARCH_AUTO, ARCH_GPT2, ARCH_LLAMA, ARCH_VIT, ARCH_RESNET, ARCH_MAMBA, ARCH_NONE };
enum arch_only { ARCH_ONLY_ALL, ARCH_ONLY_QK };

FIRE_NODISCARD enum fire_status arch_parse(const char *name, enum arch *arch,
                                           struct fire_error *error);
const char *arch_name(enum arch arch);

/* The architecture a set's names show; ARCH_NONE when they show none. */
enum arch arch_detect(const struct safetensors *set);

enum arch_verdict {
    ARCH_PROJECT,
    ARCH_SKIP,
    ARCH_RESET, /* to stored initial weights (official-dqn's Linear layers) */
};

struct arch_decision {
    enum arch_verdict verdict;
    char reason[96];    /* why it is skipped: "embedding", "head", "norm", "1-D", … */
    const char *tied;   /* name of the tensor this one is a tie of, or NULL: projected once */
};

/* Decides for one entry and adjusts `options` (split of a fused qkv, layout of GPT-2's Conv1D
 * weights, stack of experts). `options` come in as the preset and the user's --set made them. */
void arch_decide(enum arch arch, enum arch_only only, const struct safetensors *set,
                 const struct safetensors_entry *entry, struct fire_options *options,
                 struct arch_decision *decision);

#endif
