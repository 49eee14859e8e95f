/* arch: which tensors of a model are projected, which are split, which are skipped, and why. Rules
 * are tables of name patterns; a checkpoint's architecture is recognised by its names. */
#ifndef FIRE_ARCH_H
#define FIRE_ARCH_H

#include "options.h"
#include "safetensors.h"
#include "status.h"

enum arch {
    ARCH_AUTO,
    ARCH_GPT2,
    ARCH_LLAMA,
    ARCH_VIT,
    ARCH_RESNET,
    ARCH_MAMBA,
    ARCH_NONE,  /* every 2-D and 4-D floating tensor, nothing split */
    ARCH_PLAIN, /* what auto takes for names it does not know: Linear and Conv2d but the head */
};
enum arch_only { ARCH_ONLY_ALL, ARCH_ONLY_QK };

/* The tensors of a model, in a file (arch_model_of_file) or in a caller's memory. The `data` of an
 * entry may be NULL: then ties are not seen. */
struct arch_model {
    size_t count;
    const struct safetensors_entry *(*at)(const void *data, size_t index);
    const struct safetensors_entry *(*find)(const void *data, const char *name); /* or NULL */
    const void *data;
    bool ordered; /* entries come in the order of the model's layers; else names tell it */
};
struct arch_model arch_model_of_file(const struct safetensors *set);

/* Two tensors of one dtype and shape. */
bool arch_same_shape(const struct safetensors_entry *a, const struct safetensors_entry *b);

FIRE_NODISCARD enum fire_status arch_parse(const char *name, enum arch *arch,
                                           struct fire_error *error);
const char *arch_name(enum arch arch);

FIRE_NODISCARD enum fire_status arch_only_parse(const char *name, enum arch_only *only,
                                                struct fire_error *error);

/* The architecture a set's names show; ARCH_PLAIN when they show none. Never ARCH_AUTO. */
enum arch arch_detect(const struct arch_model *set);

enum arch_verdict {
    ARCH_PROJECT,
    ARCH_SKIP,
    ARCH_RESET, /* to stored initial weights (official-dqn's Linear layers) */
};

struct arch_decision {
    enum arch_verdict verdict;
    char reason[96];  /* why it is skipped: "embedding", "head", "norm", "1-D", … */
    const char *tied; /* name of the tensor whose new bytes this one gets, or NULL. The verdict is
                         then that tensor's. */
};

/* Decides for one entry and adjusts `options` (split of a fused qkv, layout of GPT-2's Conv1D
 * weights, stack of experts). `options` come in as the preset and the user's --set made them; a
 * split or a stack that is already there is respected. Apply the user's settings again afterwards:
 * they win over the architecture's. `arch` is not ARCH_AUTO. */
void arch_decide(enum arch arch, enum arch_only only, const struct arch_model *set,
                 const struct safetensors_entry *entry, struct fire_options *options,
                 struct arch_decision *decision);

#endif
