/* arch: rules in three steps. A table turns a name into a role; the preset's selection and --only
 * turn a role into a verdict; the shapes of the set give the layout and the split of what is
 * projected. The first pattern that matches wins. */
#include "arch.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum role {
    ROLE_LINEAR, /* a Linear inside a block, by its 2 axes; a convolution by its 4 */
    ROLE_QK,     /* a query or key projection */
    ROLE_VALUE,
    ROLE_QKV,     /* the three fused along the output axis */
    ROLE_GATE_UP, /* two fused */
    ROLE_EXPERTS, /* a stack of matrices */
    ROLE_EXPERTS_GATE_UP,
    ROLE_EMBEDDING,
    ROLE_POSITION, /* an embedding too, except to presets that take every 2-D tensor */
    ROLE_PATCH,
    ROLE_HEAD,
    ROLE_NORM,
    ROLE_MASK,
    ROLE_BIAS,
    ROLE_MAMBA,
    ROLE_OUTSIDE, /* of the blocks */
};

struct rule {
    const char *pattern;
    enum role role;
};

/* clang-format off */
static const struct rule gpt2_rules[] = {
    { "*.attn.bias",              ROLE_MASK }, /* the causal mask, kept as a buffer */
    { "*.attn.masked_bias",       ROLE_MASK },
    { "*c_attn.weight",           ROLE_QKV },
    { "*c_q.weight",              ROLE_QK },
    { "*c_k.weight",              ROLE_QK },
    { "*c_v.weight",              ROLE_VALUE },
    { "*wte.weight",              ROLE_EMBEDDING },
    { "*value_embeds.*",          ROLE_EMBEDDING },
    { "*wpe.weight",              ROLE_POSITION },
    { "*lm_head.weight",          ROLE_HEAD },
    { "*score.weight",            ROLE_HEAD },
    { "*ln_*",                    ROLE_NORM },
    { "*h.[0-9]*.*",              ROLE_LINEAR },
    { "*",                        ROLE_OUTSIDE },
};

static const struct rule llama_rules[] = {
    { "*.mamba.*",                ROLE_MAMBA },
    { "*.mixer.*",                ROLE_MAMBA },
    { "*embed_tokens*",           ROLE_EMBEDDING },
    { "*lm_head.weight",          ROLE_HEAD },
    { "*score.weight",            ROLE_HEAD },
    { "*norm*",                   ROLE_NORM },
    { "*rotary_emb*",             ROLE_MASK },
    { "*attn.q_proj.weight",      ROLE_QK },
    { "*attn.k_proj.weight",      ROLE_QK },
    { "*attn.v_proj.weight",      ROLE_VALUE },
    { "*qkv_proj.weight",         ROLE_QKV },
    { "*experts.gate_up_proj",    ROLE_EXPERTS_GATE_UP },
    { "*experts.gate_up_proj.weight", ROLE_EXPERTS_GATE_UP },
    { "*experts.down_proj",       ROLE_EXPERTS },
    { "*experts.down_proj.weight", ROLE_EXPERTS },
    { "*gate_up_proj.weight",     ROLE_GATE_UP },
    { "*layers.[0-9]*.*",         ROLE_LINEAR },
    { "*",                        ROLE_OUTSIDE },
};

static const struct rule vit_rules[] = {
    { "*patch_embed*",            ROLE_PATCH },
    { "*to_patch_embedding*",     ROLE_PATCH },
    { "*conv_proj.weight",        ROLE_PATCH },
    { "*cls_token*",              ROLE_EMBEDDING },
    { "*class_token*",            ROLE_EMBEDDING },
    { "*class_embedding*",        ROLE_EMBEDDING },
    { "*pos*embed*",              ROLE_POSITION },
    { "*to_q.weight",             ROLE_QK },
    { "*to_k.weight",             ROLE_QK },
    { "*to_v.weight",             ROLE_VALUE },
    { "*query.weight",            ROLE_QK },
    { "*key.weight",              ROLE_QK },
    { "*value.weight",            ROLE_VALUE },
    { "*attn.[qk].weight",        ROLE_QK },
    { "*attn.[qk]_proj.weight",   ROLE_QK },
    { "*attention.[qk]_proj.weight", ROLE_QK },
    { "*attention.v_proj.weight", ROLE_VALUE },
    { "*attn.v*.weight",          ROLE_VALUE },
    { "*qkv.weight",              ROLE_QKV },
    { "*in_proj_weight",          ROLE_QKV },
    { "*mlp_head*",               ROLE_HEAD },
    { "*linear_head*",            ROLE_HEAD },
    { "*head*.weight",            ROLE_HEAD },
    { "*classifier*.weight",      ROLE_HEAD },
    { "*norm*",                   ROLE_NORM },
    { "*ln_*",                    ROLE_NORM },
    { "*",                        ROLE_LINEAR },
};

static const struct rule resnet_rules[] = {
    { "fc.weight",                ROLE_HEAD },
    { "*.fc.weight",              ROLE_HEAD },
    { "*linear.weight",           ROLE_HEAD },
    { "*classifier*.weight",      ROLE_HEAD },
    { "*head*.weight",            ROLE_HEAD },
    { "*bn[0-9]*",                ROLE_NORM },
    { "*norm*",                   ROLE_NORM },
    { "*downsample.1.*",          ROLE_NORM },
    { "*shortcut.1.*",            ROLE_NORM },
    { "*",                        ROLE_LINEAR },
};

static const struct rule mamba_rules[] = {
    { "*mixer.*",                 ROLE_MAMBA },
    { "*mamba*.*",                ROLE_MAMBA },
    { "*embed*",                  ROLE_EMBEDDING },
    { "*lm_head.weight",          ROLE_HEAD },
    { "*norm*",                   ROLE_NORM },
    { "*",                        ROLE_LINEAR },
};

static const struct rule plain_rules[] = {
    { "*lm_head*.weight",         ROLE_HEAD },
    { "head*.weight",             ROLE_HEAD },
    { "*.head*.weight",           ROLE_HEAD },
    { "*_head.weight",            ROLE_HEAD },
    { "*wte.weight",              ROLE_EMBEDDING },
    { "*wpe.weight",              ROLE_POSITION },
    { "*embed*",                  ROLE_EMBEDDING },
    { "*norm*",                   ROLE_NORM },
    { "*bn[0-9]*",                ROLE_NORM },
    { "*",                        ROLE_LINEAR },
};

static const struct rule none_rules[] = {
    { "*",                        ROLE_LINEAR },
};

static const struct {
    const char *name;
    const struct rule *rules;
} table[] = {
    [ARCH_AUTO]   = { "auto",   NULL },
    [ARCH_GPT2]   = { "gpt2",   gpt2_rules },
    [ARCH_LLAMA]  = { "llama",  llama_rules },
    [ARCH_VIT]    = { "vit",    vit_rules },
    [ARCH_RESNET] = { "resnet", resnet_rules },
    [ARCH_MAMBA]  = { "mamba",  mamba_rules },
    [ARCH_NONE]   = { "none",   none_rules },
    [ARCH_PLAIN]  = { "plain",  plain_rules },
};

/* Names that show an architecture; the first line with a match decides. */
static const struct {
    const char *pattern;
    const char *and_pattern; /* NULL, or one that must be there too */
    enum arch arch;
} signs[] = {
    { "*c_attn.weight",                  NULL,                      ARCH_GPT2 },
    { "*attn.c_q.weight",                NULL,                      ARCH_GPT2 },
    { "*self_attn.q*_proj.weight",       "*embed_tokens.weight",    ARCH_LLAMA },
    { "*.A_log",                         NULL,                      ARCH_MAMBA },
    { "*mixer.in_proj.weight",           NULL,                      ARCH_MAMBA },
    { "*patch_embed*",                   NULL,                      ARCH_VIT },
    { "*to_patch_embedding*",            NULL,                      ARCH_VIT },
    { "*attention.attention.query.weight", NULL,                    ARCH_VIT },
    { "*attn.qkv.weight",                NULL,                      ARCH_VIT },
    { "*to_qkv.weight",                  NULL,                      ARCH_VIT },
    { "*to_q.weight",                    NULL,                      ARCH_VIT },
    { "*self_attention.in_proj_weight",  "*conv_proj.weight",       ARCH_VIT },
    { "*self_attn.q*_proj.weight",       NULL,                      ARCH_LLAMA },
    { "*layer[0-9]*.[0-9]*.conv[0-9]*.weight", NULL,                ARCH_RESNET },
    { "*stages.*convolution.weight",     NULL,                      ARCH_RESNET },
};

/* A target network and the online network it is a copy of, by prefix. */
static const struct {
    const char *target;
    const char *online;
} target_prefixes[] = {
    { "target_network.", "q_network." },
    { "target_network.", "network." },
    { "target_net.",     "policy_net." },
    { "target_net.",     "online_net." },
    { "target_net.",     "net." },
    { "q_net_target.",   "q_net." },
    { "target_q.",       "q." },
    { "target.",         "online." },
};
/* clang-format on */

#define ARCH_COUNT     (sizeof(table) / sizeof(table[0]))
#define SIGN_COUNT     (sizeof(signs) / sizeof(signs[0]))
#define NAME_BYTES_MAX 1024u

static bool matches(const char *pattern, const char *name)
{
    return fnmatch(pattern, name, 0) == 0;
}

const char *arch_name(enum arch arch)
{
    return table[arch].name;
}

enum fire_status arch_parse(const char *name, enum arch *arch, struct fire_error *error)
{
    const char *names[ARCH_COUNT];
    const char *near;

    for (size_t i = 0; i < ARCH_COUNT; i++) {
        if (strcmp(table[i].name, name) == 0) {
            *arch = (enum arch)i;
            return FIRE_OK;
        }
        names[i] = table[i].name;
    }
    near = fire_nearest_name(name, names, ARCH_COUNT);
    return fire_fail(error, FIRE_NOT_FOUND, "arch",
                     "unknown architecture '%.80s'%s%s%s; use auto, gpt2, llama, vit, resnet, "
                     "mamba, plain or none",
                     name, near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
}

enum fire_status arch_only_parse(const char *name, enum arch_only *only, struct fire_error *error)
{
    if (strcmp(name, "all") != 0 && strcmp(name, "qk") != 0)
        return fire_fail(error, FIRE_BAD_REQUEST, "only",
                         "--only must be 'all' or 'qk' (query and key), got '%.80s'", name);
    *only = strcmp(name, "qk") == 0 ? ARCH_ONLY_QK : ARCH_ONLY_ALL;
    return FIRE_OK;
}

static const struct safetensors_entry *find_match(const struct arch_model *set, const char *pattern)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct safetensors_entry *entry = set->at(set->data, i);

        if (matches(pattern, entry->name))
            return entry;
    }
    return NULL;
}

enum arch arch_detect(const struct arch_model *set)
{
    for (size_t i = 0; i < SIGN_COUNT; i++) {
        if (find_match(set, signs[i].pattern) &&
            (!signs[i].and_pattern || find_match(set, signs[i].and_pattern)))
            return signs[i].arch;
    }
    return ARCH_PLAIN;
}

static enum role role_of(enum arch arch, const char *name)
{
    const struct rule *rule = table[arch].rules;

    while (!matches(rule->pattern, name))
        rule++;
    if (arch != ARCH_NONE && rule->role != ROLE_MASK && rule->role != ROLE_NORM &&
        matches("*bias", name))
        return ROLE_BIAS;
    return rule->role;
}

/* Like strcmp, but runs of digits compare as numbers: layers.10 comes after layers.9. */
static int natural_compare(const char *a, const char *b)
{
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            size_t a_digits, b_digits;
            int order;

            a += strspn(a, "0");
            b += strspn(b, "0");
            a_digits = strspn(a, "0123456789");
            b_digits = strspn(b, "0123456789");
            if (a_digits != b_digits)
                return a_digits < b_digits ? -1 : 1;
            order = strncmp(a, b, a_digits);
            if (order != 0)
                return order;
            a += a_digits;
            b += b_digits;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    return (*a != '\0') - (*b != '\0');
}

/* The weight of a Linear or Conv2d. */
static bool is_layer(const struct safetensors_entry *entry)
{
    return entry->floating && !entry->too_many_axes &&
           (entry->shape.axes == 2 || entry->shape.axes == 4) &&
           (matches("*.weight", entry->name) || matches("*.kernel", entry->name));
}

/* A plain net's head is its last Linear: the last 2-D `.weight` or `.kernel` in the order of the
 * model or else in the natural order of names, unless a tensor is called a head or it is the only
 * layer there is. */
static bool is_last_linear(const struct arch_model *set, const struct safetensors_entry *entry)
{
    size_t layers = 0;
    bool after = false; /* entries of an ordered model that come behind this one */

    if (!is_layer(entry) || entry->shape.axes != 2)
        return false;
    for (size_t i = 0; i < set->count; i++) {
        const struct safetensors_entry *other = set->at(set->data, i);

        if ((set->ordered ? after : natural_compare(other->name, entry->name) > 0) &&
            is_layer(other) && other->shape.axes == 2 &&
            role_of(ARCH_PLAIN, other->name) == ROLE_LINEAR)
            return false;
        after = after || other == entry;
    }
    for (size_t i = 0; i < set->count; i++) {
        const struct safetensors_entry *other = set->at(set->data, i);

        if (!is_layer(other))
            continue;
        layers++;
        if (role_of(ARCH_PLAIN, other->name) == ROLE_HEAD)
            return false;
    }
    return layers > 1;
}

/* A sibling's entry: `name` with its ending `from` replaced by `to`; NULL when there is none. */
static const struct safetensors_entry *sibling(const struct arch_model *set, const char *name,
                                               const char *from, const char *to)
{
    const size_t length = strlen(name);
    char other[NAME_BYTES_MAX];

    if (length < strlen(from) || strcmp(name + length - strlen(from), from) != 0)
        return NULL;
    if (snprintf(other, sizeof(other), "%.*s%s", (int)(length - strlen(from)), name, to) >=
        (int)sizeof(other))
        return NULL;
    return set->find(set->data, other);
}

bool arch_same_shape(const struct safetensors_entry *a, const struct safetensors_entry *b)
{
    if (a->bytes != b->bytes || a->too_many_axes || b->too_many_axes ||
        a->shape.axes != b->shape.axes || strcmp(a->dtype_name, b->dtype_name) != 0)
        return false;
    for (uint32_t axis = 0; axis < a->shape.axes; axis++) {
        if (a->shape.size[axis] != b->shape.size[axis])
            return false;
    }
    return true;
}

/* Two entries that hold one weight. */
static bool same_weight(const struct safetensors_entry *a, const struct safetensors_entry *b)
{
    return arch_same_shape(a, b) && a->data && b->data &&
           (a->data == b->data || memcmp(a->data, b->data, a->bytes) == 0);
}

/* GPT-2's Conv1D keeps (in, out); nanoGPT's Linear of the same name (out, in). Only the fused
 * c_attn, which is three times as long in `out`, tells them apart. */
static bool stored_in_out(const struct arch_model *set)
{
    const struct safetensors_entry *fused = find_match(set, "*c_attn.weight");

    return fused && fused->shape.axes == 2 && fused->shape.size[1] == 3 * fused->shape.size[0];
}

static void split_equally(struct fire_options *options, uint32_t count)
{
    if (options->split_count > 1)
        return; /* the user's */
    options->split_count = count;
    memset(options->split_sizes, 0, sizeof(options->split_sizes));
}

/* Splits a fused qkv. Under grouped query attention the value and key blocks are shorter: the input
 * of the output projection says how long the query block is. */
static bool split_qkv(const struct arch_model *set, const struct safetensors_entry *entry,
                      struct fire_options *options)
{
    const struct safetensors_entry *output =
        sibling(set, entry->name, "qkv_proj.weight", "o_proj.weight");
    const bool in_out = options->layout == FIRE_LAYOUT_IN_OUT;
    const uint64_t out = entry->shape.size[in_out ? 1 : 0];
    const uint64_t in = entry->shape.size[in_out ? 0 : 1];
    const uint64_t query = output && output->shape.axes == 2 ? output->shape.size[1] : out / 3;

    if (options->split_count > 1)
        return true;
    if ((!output && out != 3 * in && out % 3 != 0) || query == 0 || query >= out ||
        (out - query) % 2 != 0)
        return false;
    split_equally(options, 3);
    if (3 * query != out) {
        options->split_sizes[0] = query;
        options->split_sizes[1] = (out - query) / 2;
        options->split_sizes[2] = (out - query) / 2;
    }
    return true;
}

/* Stacked experts come as (experts, out, in), or as (experts, in, out) where they are multiplied
 * from the left; the width of the model, known from the embedding, tells which. */
static void lay_out_experts(const struct arch_model *set, const struct safetensors_entry *entry,
                            enum role role, struct fire_options *options)
{
    const struct safetensors_entry *embedding = find_match(set, "*embed_tokens.weight");
    const uint64_t width = embedding && embedding->shape.axes == 2 ? embedding->shape.size[1] : 0;
    const uint64_t first = entry->shape.size[1];
    const uint64_t last = entry->shape.size[2];
    const bool in_first = role == ROLE_EXPERTS_GATE_UP ? first == width && last != width
                                                       : last == width && first != width;

    if (options->stack == 0)
        options->stack = 1;
    if (width && in_first)
        options->layout = FIRE_LAYOUT_IN_OUT;
    if (role == ROLE_EXPERTS_GATE_UP)
        split_equally(options, 2);
}

static void __attribute__((format(printf, 2, 3)))
skip(struct arch_decision *decision, const char *format, ...)
{
    va_list arguments;

    decision->verdict = ARCH_SKIP;
    va_start(arguments, format);
    vsnprintf(decision->reason, sizeof(decision->reason), format, arguments);
    va_end(arguments);
}

/* What no option changes: not a number, no matrix. Returns true when that settles it. */
static bool skip_by_shape(const struct safetensors_entry *entry, enum role role,
                          const struct fire_options *options, struct arch_decision *decision)
{
    const uint32_t axes = entry->shape.axes;
    const uint32_t left = axes > options->stack ? axes - options->stack : 0;

    if (!entry->floating)
        skip(decision, "dtype %s is not a floating one fired computes in", entry->dtype_name);
    else if (entry->too_many_axes)
        skip(decision, "more than %d axes", FIRE_AXES_MAX);
    else if (entry->bytes == 0)
        skip(decision, "empty");
    else if (role == ROLE_NORM)
        skip(decision, "norm");
    else if (role == ROLE_MASK)
        skip(decision, "buffer, not a weight");
    else if (role == ROLE_BIAS && axes >= 2)
        skip(decision, "bias"); /* of a stack: an ensemble's or the experts' */
    else if (axes < 2)
        skip(decision, axes == 0 ? "scalar" : "1-D");
    else if (axes == 3 && (role == ROLE_EXPERTS || role == ROLE_EXPERTS_GATE_UP))
        return false;
    else if (options->stack > 0 && left >= 2 && left <= 4)
        return false;
    else if (left != 2 && left != 4 && role == ROLE_LINEAR)
        skip(decision, "%u-D; set stack to say how many leading axes count matrices", axes);
    else
        return false;
    return true;
}

/* The architecture's own rule: NUMERICS.md section 2. */
static void decide_by_arch(enum arch arch, enum role role, struct arch_decision *decision)
{
    switch (role) {
    case ROLE_QK:
    case ROLE_QKV: break;
    case ROLE_LINEAR:
    case ROLE_VALUE:
    case ROLE_GATE_UP:
    case ROLE_EXPERTS:
    case ROLE_EXPERTS_GATE_UP:
        if (arch == ARCH_VIT)
            skip(decision, "of a ViT only query and key are projected");
        break;
    case ROLE_EMBEDDING:
    case ROLE_POSITION: skip(decision, "embedding"); break;
    case ROLE_PATCH: skip(decision, "patch embedding"); break;
    case ROLE_HEAD: skip(decision, "head"); break;
    case ROLE_NORM: skip(decision, "norm"); break;
    case ROLE_MASK: skip(decision, "buffer, not a weight"); break;
    case ROLE_BIAS: skip(decision, "bias"); break;
    case ROLE_MAMBA: skip(decision, "Mamba block"); break;
    case ROLE_OUTSIDE: skip(decision, "outside the blocks"); break;
    }
}

/* Embeddings are no Linear layers, whatever a preset selects. */
static bool is_embedding(enum role role)
{
    return role == ROLE_EMBEDDING || role == ROLE_POSITION;
}

/* The verdict on a tensor with a matrix in it. */
static void decide_by_select(enum arch arch, enum role role, const struct safetensors_entry *entry,
                             const struct fire_options *options, struct arch_decision *decision)
{
    const uint32_t axes = entry->shape.axes - options->stack;

    switch (options->select) {
    case FIRE_SELECT_ARCH: decide_by_arch(arch, role, decision); break;
    case FIRE_SELECT_VISION:
        if (is_embedding(role))
            skip(decision, "embedding");
        break;
    case FIRE_SELECT_QK:
        if (role != ROLE_QK && role != ROLE_QKV)
            skip(decision, "not a query or key projection");
        break;
    case FIRE_SELECT_GPT:
        if (is_embedding(role))
            skip(decision, "embedding");
        else if (axes != 2)
            skip(decision, "not a Linear layer");
        break;
    case FIRE_SELECT_DQN:
        if (axes == 2)
            decision->verdict = ARCH_RESET;
        break;
    case FIRE_SELECT_2D:
        if (role == ROLE_EMBEDDING)
            skip(decision, "embedding");
        else if (role == ROLE_HEAD)
            skip(decision, "head");
        else if (role == ROLE_MAMBA)
            skip(decision, "Mamba block");
        else if (axes != 2)
            skip(decision, "not 2-D");
        break;
    }
}

/* Layout, stack and split of what will be projected. */
static void lay_out(enum arch arch, enum arch_only only, enum role role,
                    const struct arch_model *set, const struct safetensors_entry *entry,
                    struct fire_options *options, struct arch_decision *decision)
{
    const bool qk = only == ARCH_ONLY_QK || options->select == FIRE_SELECT_QK ||
                    (arch == ARCH_VIT && options->select == FIRE_SELECT_ARCH);
    const bool whole =
        options->select == FIRE_SELECT_VISION || (options->select == FIRE_SELECT_2D && !qk);

    if (arch == ARCH_GPT2 && role != ROLE_HEAD && !is_embedding(role) && stored_in_out(set))
        options->layout = FIRE_LAYOUT_IN_OUT;
    if (arch == ARCH_PLAIN && matches("*kernel", entry->name))
        options->layout = FIRE_LAYOUT_IN_OUT; /* Flax and Keras */
    if ((role == ROLE_EXPERTS || role == ROLE_EXPERTS_GATE_UP) && entry->shape.axes == 3)
        lay_out_experts(set, entry, role, options);
    if (role == ROLE_GATE_UP && !whole)
        split_equally(options, 2);
    if (role != ROLE_QKV || whole)
        return;
    if (!split_qkv(set, entry, options))
        skip(decision, "fused qkv of unknown parts; give their sizes with split=q,k,v");
    else if (qk && options->split_count == 3)
        options->split_skip = 4; /* the third block is V */
}

/* A tied embedding shares the fate of the head, where a preset projects the head. */
static void decide_tie(enum role role, const struct arch_model *set,
                       const struct safetensors_entry *entry, const struct fire_options *options,
                       struct arch_decision *decision)
{
    const struct safetensors_entry *head;

    if (role != ROLE_EMBEDDING || entry->shape.axes != 2 || decision->verdict != ARCH_SKIP ||
        (options->select != FIRE_SELECT_GPT && options->select != FIRE_SELECT_VISION))
        return;
    head = find_match(set, "*lm_head.weight");
    if (head && same_weight(head, entry)) {
        decision->tied = head->name;
    } else if (!head && options->select == FIRE_SELECT_GPT) {
        decision->verdict = ARCH_PROJECT; /* the file keeps the tied pair under this name */
        decision->reason[0] = '\0';
    }
}

/* official-dqn: the target network is a copy of the online one, and the bias of a Linear layer is
 * reset with it. */
static void decide_dqn(const struct arch_model *set, const struct safetensors_entry *entry,
                       struct arch_decision *decision)
{
    const struct safetensors_entry *weight = sibling(set, entry->name, ".bias", ".weight");

    if (weight && weight->shape.axes == 2 && entry->floating)
        decision->verdict = ARCH_RESET;
    for (size_t i = 0; i < sizeof(target_prefixes) / sizeof(target_prefixes[0]); i++) {
        const size_t length = strlen(target_prefixes[i].target);
        const struct safetensors_entry *online;
        char name[NAME_BYTES_MAX];

        if (strncmp(entry->name, target_prefixes[i].target, length) != 0)
            continue;
        snprintf(name, sizeof(name), "%s%s", target_prefixes[i].online, entry->name + length);
        online = set->find(set->data, name);
        if (online && arch_same_shape(online, entry)) {
            decision->tied = online->name;
            return;
        }
    }
}

void arch_decide(enum arch arch, enum arch_only only, const struct arch_model *set,
                 const struct safetensors_entry *entry, struct fire_options *options,
                 struct arch_decision *decision)
{
    enum role role = role_of(arch, entry->name);

    memset(decision, 0, sizeof(*decision));
    decision->verdict = ARCH_PROJECT;
    /* SAC's critics are an ensemble: one more axis in front than a Dense or a Conv has. */
    if (options->stack == 0 && (entry->shape.axes == 3 || entry->shape.axes == 5) &&
        strcmp(options->preset, "official-sac") == 0)
        options->stack = 1;
    if (!skip_by_shape(entry, role, options, decision)) {
        if (arch == ARCH_PLAIN && role == ROLE_LINEAR && is_last_linear(set, entry))
            role = ROLE_HEAD;
        decide_by_select(arch, role, entry, options, decision);
        decide_tie(role, set, entry, options, decision);
        if (decision->verdict == ARCH_PROJECT && only == ARCH_ONLY_QK && role != ROLE_QK &&
            role != ROLE_QKV)
            skip(decision, "not a query or key projection (--only qk)");
        if (decision->verdict == ARCH_PROJECT)
            lay_out(arch, only, role, set, entry, options, decision);
    }
    if (options->select == FIRE_SELECT_DQN && !entry->too_many_axes)
        decide_dqn(set, entry, decision);
}
