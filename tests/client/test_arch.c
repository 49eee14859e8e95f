/* Architecture rules, on files that hold the real names of each kind of model: what is recognised,
 * what is projected, what is skipped and why, how fused and stacked weights are cut. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch.h"

#define TENSORS_MAX 24

/* A tensor of a made-up checkpoint; size ends with 0. */
struct made {
    const char *name;
    uint64_t size[5];
    const char *dtype; /* NULL: F32 */
};

/* A set in memory. */
struct model {
    struct safetensors *set;
    struct arch_model model; /* `set` as the rules see it */
    char *bytes;
};

static void model_open(struct model *model, const struct made *made, size_t count)
{
    char *header = malloc(65536);
    size_t used = 0;
    uint64_t offset = 0;
    struct fire_error error = { 0 };

    ck_assert_ptr_nonnull(header);
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = made[i].dtype && strcmp(made[i].dtype, "I64") == 0 ? 8 : 4;

        used += (size_t)sprintf(header + used, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                                i ? "," : "{", made[i].name, made[i].dtype ? made[i].dtype : "F32");
        for (size_t axis = 0; axis < 5 && made[i].size[axis]; axis++) {
            bytes *= made[i].size[axis];
            used += (size_t)sprintf(header + used, "%s%llu", axis ? "," : "",
                                    (unsigned long long)made[i].size[axis]);
        }
        used += (size_t)sprintf(header + used, "],\"data_offsets\":[%llu,%llu]}",
                                (unsigned long long)offset, (unsigned long long)(offset + bytes));
        offset += bytes;
    }
    used += (size_t)sprintf(header + used, "}");
    while (used % 8)
        header[used++] = ' ';
    model->bytes = calloc(1, 8 + used + offset);
    ck_assert_ptr_nonnull(model->bytes);
    for (size_t i = 0; i < 8; i++)
        model->bytes[i] = (char)(used >> (8 * i) & 0xff);
    memcpy(model->bytes + 8, header, used);
    free(header);
    ck_assert_msg(safetensors_open_memory(model->bytes, 8 + used + offset, &model->set, &error) ==
                      FIRE_OK,
                  "%s", error.message);
    model->model = arch_model_of_file(model->set);
}

static void model_close(struct model *model)
{
    safetensors_close(model->set);
    free(model->bytes);
}

static size_t count_of(const struct made *made)
{
    size_t count = 0;

    while (count < TENSORS_MAX && made[count].name)
        count++;
    return count;
}

/* What is expected of one tensor. */
struct want {
    enum arch_verdict verdict;
    const char *reason; /* a part of it; NULL when projected */
    uint32_t split;
    uint64_t first_block; /* rows of the first block when they differ; 0: equal */
    uint64_t skip;        /* split_skip */
    bool in_out;
    uint32_t stack;
};

/* clang-format off */
static const struct {
    const char *name;
    const char *preset;
    enum arch arch; /* what detection must say */
    enum arch_only only;
    struct made made[TENSORS_MAX];
    struct want want[TENSORS_MAX];
} models[] = {
    { "GPT-2 of Hugging Face keeps (in, out)", "fire", ARCH_GPT2, ARCH_ONLY_ALL,
      { { "transformer.h.0.attn.c_attn.weight", { 8, 24 }, NULL },
        { "transformer.h.0.attn.c_attn.bias",   { 24 }, NULL },
        { "transformer.h.0.attn.bias",          { 1, 1, 4, 4 }, NULL },
        { "transformer.h.0.attn.c_proj.weight", { 8, 8 }, NULL },
        { "transformer.h.0.mlp.c_fc.weight",    { 8, 32 }, NULL },
        { "transformer.h.0.ln_1.weight",        { 8 }, NULL },
        { "transformer.wte.weight",             { 10, 8 }, NULL },
        { "transformer.wpe.weight",             { 4, 8 }, NULL },
        { "lm_head.weight",                     { 10, 8 }, NULL } },
      { { ARCH_PROJECT, NULL, 3, 0, 0, true, 0 },
        { ARCH_SKIP, "1-D", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "buffer", 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, true, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, true, 0 },
        { ARCH_SKIP, "norm", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "embedding", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "embedding", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "head", 1, 0, 0, false, 0 } } },
    { "nanoGPT keeps (out, in) under the same names", "fire", ARCH_GPT2, ARCH_ONLY_ALL,
      { { "h.0.attn.c_attn.weight", { 24, 8 }, NULL },
        { "h.0.attn.c_proj.weight", { 8, 8 }, NULL },
        { "h.0.mlp.c_proj.weight",  { 8, 32 }, NULL } },
      { { ARCH_PROJECT, NULL, 3, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 } } },
    { "--only qk cuts the value block out of c_attn", "fire", ARCH_GPT2, ARCH_ONLY_QK,
      { { "h.0.attn.c_attn.weight", { 24, 8 }, NULL },
        { "h.0.mlp.c_fc.weight",    { 32, 8 }, NULL } },
      { { ARCH_PROJECT, NULL, 3, 0, 4, false, 0 },
        { ARCH_SKIP, "--only qk", 1, 0, 0, false, 0 } } },
    { "review: every 2-D but wte and lm_head, nothing split", "review", ARCH_GPT2, ARCH_ONLY_ALL,
      { { "h.0.attn.c_attn.weight", { 24, 8 }, NULL },
        { "wte.weight",             { 10, 8 }, NULL },
        { "wpe.weight",             { 4, 8 }, NULL },
        { "lm_head.weight",         { 10, 8 }, NULL } },
      { { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_SKIP, "embedding", 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_SKIP, "head", 1, 0, 0, false, 0 } } },
    { "llama projects every Linear in its blocks", "fire", ARCH_LLAMA, ARCH_ONLY_ALL,
      { { "model.embed_tokens.weight",                 { 10, 8 }, NULL },
        { "model.layers.0.self_attn.q_proj.weight",    { 8, 8 }, NULL },
        { "model.layers.0.self_attn.v_proj.weight",    { 4, 8 }, NULL },
        { "model.layers.0.mlp.down_proj.weight",       { 8, 16 }, NULL },
        { "model.layers.0.input_layernorm.weight",     { 8 }, NULL },
        { "model.layers.0.self_attn.rotary_emb.inv_freq", { 4 }, NULL },
        { "model.norm.weight",                         { 8 }, NULL },
        { "lm_head.weight",                            { 10, 8 }, NULL } },
      { { ARCH_SKIP, "embedding", 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_SKIP, "norm", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "buffer", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "norm", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "head", 1, 0, 0, false, 0 } } },
    { "fused qkv under grouped query attention, fused gate and up", "fire", ARCH_LLAMA,
      ARCH_ONLY_ALL,
      { { "model.embed_tokens.weight",                { 10, 8 }, NULL },
        { "model.layers.0.self_attn.qkv_proj.weight", { 12, 8 }, NULL },
        { "model.layers.0.self_attn.o_proj.weight",   { 8, 8 }, NULL },
        { "model.layers.0.mlp.gate_up_proj.weight",   { 32, 8 }, NULL } },
      { { ARCH_SKIP, "embedding", 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 3, 8, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 2, 0, 0, false, 0 } } },
    { "experts are stacks, and their layout shows in the model's width", "fire", ARCH_LLAMA,
      ARCH_ONLY_ALL,
      { { "model.embed_tokens.weight",                     { 10, 8 }, NULL },
        { "model.layers.0.self_attn.q_proj.weight",        { 8, 8 }, NULL },
        { "model.layers.0.mlp.experts.gate_up_proj",       { 4, 8, 24 }, NULL },
        { "model.layers.0.mlp.experts.down_proj",          { 4, 12, 8 }, NULL },
        { "model.layers.1.mlp.experts.gate_up_proj",       { 4, 24, 8 }, NULL },
        { "model.layers.2.block_sparse_moe.experts.3.w1.weight", { 16, 8 }, NULL } },
      { { ARCH_SKIP, "embedding", 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 2, 0, 0, true, 1 },
        { ARCH_PROJECT, NULL, 1, 0, 0, true, 1 },
        { ARCH_PROJECT, NULL, 2, 0, 0, false, 1 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 } } },
    { "of timm's ViT only query and key of the fused qkv", "fire", ARCH_VIT, ARCH_ONLY_ALL,
      { { "patch_embed.proj.weight",   { 8, 3, 2, 2 }, NULL },
        { "pos_embed",                 { 1, 5, 8 }, NULL },
        { "blocks.0.attn.qkv.weight",  { 24, 8 }, NULL },
        { "blocks.0.attn.proj.weight", { 8, 8 }, NULL },
        { "blocks.0.mlp.fc1.weight",   { 32, 8 }, NULL },
        { "head.weight",               { 10, 8 }, NULL } },
      { { ARCH_SKIP, "patch", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "embedding", 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 3, 0, 4, false, 0 },
        { ARCH_SKIP, "only query and key", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "only query and key", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "head", 1, 0, 0, false, 0 } } },
    { "ViT of Hugging Face", "fire", ARCH_VIT, ARCH_ONLY_ALL,
      { { "vit.encoder.layer.0.attention.attention.query.weight", { 8, 8 }, NULL },
        { "vit.encoder.layer.0.attention.attention.value.weight", { 8, 8 }, NULL },
        { "vit.encoder.layer.0.output.dense.weight",              { 8, 32 }, NULL },
        { "classifier.weight",                                    { 10, 8 }, NULL } },
      { { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_SKIP, "only query and key", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "only query and key", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "head", 1, 0, 0, false, 0 } } },
    { "official-vit: to_q and to_k", "official-vit", ARCH_VIT, ARCH_ONLY_ALL,
      { { "transformer.layers.0.0.to_q.weight", { 8, 8 }, NULL },
        { "transformer.layers.0.0.to_k.weight", { 8, 8 }, NULL },
        { "transformer.layers.0.0.to_v.weight", { 8, 8 }, NULL },
        { "transformer.layers.0.1.net.1.weight", { 8, 8 }, NULL } },
      { { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_SKIP, "query or key", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "query or key", 1, 0, 0, false, 0 } } },
    { "resnet: every convolution, not the head", "fire", ARCH_RESNET, ARCH_ONLY_ALL,
      { { "conv1.weight",                { 8, 3, 7, 7 }, NULL },
        { "bn1.weight",                  { 8 }, NULL },
        { "bn1.num_batches_tracked",     { 0 }, "I64" },
        { "layer1.0.conv1.weight",       { 8, 8, 3, 3 }, NULL },
        { "layer1.0.downsample.0.weight", { 8, 8, 1, 1 }, NULL },
        { "fc.weight",                   { 10, 8 }, NULL },
        { "fc.bias",                     { 10 }, NULL } },
      { { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_SKIP, "norm", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "I64", 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_SKIP, "head", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "1-D", 1, 0, 0, false, 0 } } },
    { "official-vision takes the head too", "official-vision", ARCH_RESNET, ARCH_ONLY_ALL,
      { { "layer1.0.conv1.weight", { 8, 8, 3, 3 }, NULL },
        { "fc.weight",             { 10, 8 }, NULL } },
      { { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 } } },
    { "mamba: none", "fire", ARCH_MAMBA, ARCH_ONLY_ALL,
      { { "backbone.embeddings.weight",              { 10, 8 }, NULL },
        { "backbone.layers.0.mixer.in_proj.weight",  { 32, 8 }, NULL },
        { "backbone.layers.0.mixer.A_log",           { 16, 4 }, NULL },
        { "backbone.layers.0.norm.weight",           { 8 }, NULL },
        { "lm_head.weight",                          { 10, 8 }, NULL } },
      { { ARCH_SKIP, "embedding", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "Mamba block", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "Mamba block", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "norm", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "head", 1, 0, 0, false, 0 } } },
    { "a plain net keeps its last Linear, counted as people count", "fire", ARCH_PLAIN,
      ARCH_ONLY_ALL,
      { { "layers.0.weight",  { 8, 4 }, NULL },
        { "layers.2.weight",  { 8, 8 }, NULL },
        { "layers.10.weight", { 3, 8 }, NULL },
        { "embedding.weight", { 10, 4 }, NULL },
        { "stack",            { 2, 3, 4 }, NULL } },
      { { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_SKIP, "head", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "embedding", 1, 0, 0, false, 0 },
        { ARCH_SKIP, "3-D", 1, 0, 0, false, 0 } } },
    { "a lone matrix is no head", "fire", ARCH_PLAIN, ARCH_ONLY_ALL,
      { { "fc.weight", { 8, 4 }, NULL } },
      { { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 } } },
    { "a named head spares the last Linear", "fire", ARCH_PLAIN, ARCH_ONLY_ALL,
      { { "fc1.weight",  { 8, 4 }, NULL },
        { "fc2.weight",  { 8, 8 }, NULL },
        { "head.weight", { 3, 8 }, NULL } },
      { { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_SKIP, "head", 1, 0, 0, false, 0 } } },
    { "SAC's critics are an ensemble", "official-sac", ARCH_PLAIN, ARCH_ONLY_ALL,
      { { "actor.Dense_0.kernel",  { 8, 4 }, NULL },
        { "critic.Dense_0.kernel", { 2, 8, 4 }, NULL },
        { "critic.Dense_0.bias",   { 2, 4 }, NULL } },
      { { ARCH_PROJECT, NULL, 1, 0, 0, true, 0 },
        { ARCH_PROJECT, NULL, 1, 0, 0, true, 1 },
        { ARCH_SKIP, "bias", 1, 0, 0, true, 0 } } },
    { "DQN: convolutions projected, Linear layers and their biases reset", "official-dqn",
      ARCH_PLAIN, ARCH_ONLY_ALL,
      { { "q_network.conv.weight", { 8, 4, 3, 3 }, NULL },
        { "q_network.conv.bias",   { 8 }, NULL },
        { "q_network.fc.weight",   { 4, 8 }, NULL },
        { "q_network.fc.bias",     { 4 }, NULL } },
      { { ARCH_PROJECT, NULL, 1, 0, 0, false, 0 },
        { ARCH_SKIP, "1-D", 1, 0, 0, false, 0 },
        { ARCH_RESET, NULL, 1, 0, 0, false, 0 },
        { ARCH_RESET, NULL, 1, 0, 0, false, 0 } } },
};
/* clang-format on */

START_TEST(names_decide_what_happens)
{
    struct fire_error error = { 0 };
    struct model model;

    model_open(&model, models[_i].made, count_of(models[_i].made));
    ck_assert_msg(arch_detect(&model.model) == models[_i].arch, "%s: recognised as %s",
                  models[_i].name, arch_name(arch_detect(&model.model)));
    for (size_t t = 0; t < count_of(models[_i].made); t++) {
        const struct want *want = &models[_i].want[t];
        const char *name = models[_i].made[t].name;
        const struct safetensors_entry *entry = safetensors_find(model.set, name);
        struct fire_options options;
        struct arch_decision got;

        ck_assert_ptr_nonnull(entry);
        ck_assert_int_eq(fire_options_preset(&options, models[_i].preset, &error), FIRE_OK);
        arch_decide(models[_i].arch, models[_i].only, &model.model, entry, &options, &got);
        ck_assert_msg(got.verdict == want->verdict, "%s: %s: verdict %d (%s)", models[_i].name,
                      name, got.verdict, got.reason);
        if (want->reason)
            ck_assert_msg(strstr(got.reason, want->reason) != NULL, "%s: %s: reason '%s'",
                          models[_i].name, name, got.reason);
        ck_assert_msg(options.split_count == want->split, "%s: %s: split %u", models[_i].name, name,
                      options.split_count);
        ck_assert_msg(options.split_sizes[0] == want->first_block, "%s: %s: first block %llu",
                      models[_i].name, name, (unsigned long long)options.split_sizes[0]);
        ck_assert_msg(options.split_skip == want->skip, "%s: %s: split_skip", models[_i].name,
                      name);
        ck_assert_msg((options.layout == FIRE_LAYOUT_IN_OUT) == want->in_out, "%s: %s: layout",
                      models[_i].name, name);
        ck_assert_msg(options.stack == want->stack, "%s: %s: stack %u", models[_i].name, name,
                      options.stack);
    }
    model_close(&model);
}
END_TEST

/* --arch none takes every 2-D and 4-D floating tensor as it is, whatever it is called. */
START_TEST(none_takes_every_matrix)
{
    static const struct made made[] = {
        { "wte.weight", { 10, 8 }, NULL }, { "blocks.0.attn.qkv.weight", { 24, 8 }, NULL },
        { "bias", { 4, 4 }, NULL },        { "conv", { 4, 4, 3, 3 }, NULL },
        { "three", { 2, 4, 4 }, NULL },    { "ids", { 4, 4 }, "I64" },
    };
    struct fire_error error = { 0 };
    struct model model;

    model_open(&model, made, 6);
    for (size_t i = 0; i < 6; i++) {
        struct fire_options options;
        struct arch_decision decision;

        ck_assert_int_eq(fire_options_preset(&options, "fire", &error), FIRE_OK);
        arch_decide(ARCH_NONE, ARCH_ONLY_ALL, &model.model,
                    safetensors_find(model.set, made[i].name), &options, &decision);
        ck_assert_msg((decision.verdict == ARCH_PROJECT) == (i < 4), "%s: %s", made[i].name,
                      decision.reason);
        ck_assert_uint_eq(options.split_count, 1);
    }
    /* A stack that the user counted is matrices. */
    {
        struct fire_options options;
        struct arch_decision decision;

        ck_assert_int_eq(fire_options_preset(&options, "fire", &error), FIRE_OK);
        options.stack = 1;
        arch_decide(ARCH_NONE, ARCH_ONLY_ALL, &model.model, safetensors_find(model.set, "three"),
                    &options, &decision);
        ck_assert_int_eq(decision.verdict, ARCH_PROJECT);
    }
    model_close(&model);
}
END_TEST

/* Where a preset projects the head, an embedding with the same bytes is tied to it; without a head
 * in the file the embedding stands for both; with other bytes it is left alone. */
START_TEST(a_tied_embedding_follows_the_head)
{
    static const struct made tied[] = { { "h.0.attn.c_attn.weight", { 24, 8 }, NULL },
                                        { "wte.weight", { 10, 8 }, NULL },
                                        { "lm_head.weight", { 10, 8 }, NULL } };
    struct fire_error error = { 0 };

    for (int variant = 0; variant < 3; variant++) {
        struct model model;
        struct fire_options options;
        struct arch_decision decision;
        const struct safetensors_entry *wte;

        model_open(&model, tied, variant == 1 ? 2 : 3);
        wte = safetensors_find(model.set, "wte.weight");
        if (variant == 2)
            model.bytes[(const char *)wte->data - model.bytes] = 1;
        ck_assert_int_eq(fire_options_preset(&options, "official-gpt", &error), FIRE_OK);
        arch_decide(ARCH_GPT2, ARCH_ONLY_ALL, &model.model, wte, &options, &decision);
        if (variant == 0)
            ck_assert_str_eq(decision.tied, "lm_head.weight");
        else
            ck_assert_ptr_null(decision.tied);
        if (variant == 1)
            ck_assert_int_eq(decision.verdict, ARCH_PROJECT);
        if (variant == 2)
            ck_assert_int_eq(decision.verdict, ARCH_SKIP);
        model_close(&model);
    }
}
END_TEST

START_TEST(a_target_network_is_a_copy_under_official_dqn)
{
    static const struct made made[] = { { "q_network.conv.weight", { 8, 4, 3, 3 }, NULL },
                                        { "target_network.conv.weight", { 8, 4, 3, 3 }, NULL } };
    struct fire_error error = { 0 };
    struct model model;
    struct fire_options options;
    struct arch_decision decision;

    model_open(&model, made, 2);
    ck_assert_int_eq(fire_options_preset(&options, "official-dqn", &error), FIRE_OK);
    arch_decide(ARCH_PLAIN, ARCH_ONLY_ALL, &model.model,
                safetensors_find(model.set, "target_network.conv.weight"), &options, &decision);
    ck_assert_str_eq(decision.tied, "q_network.conv.weight");
    model_close(&model);
}
END_TEST

START_TEST(words_are_parsed_and_near_ones_suggested)
{
    struct fire_error error = { 0 };
    enum arch arch;
    enum arch_only only;

    ck_assert_int_eq(arch_parse("llama", &arch, &error), FIRE_OK);
    ck_assert_int_eq(arch, ARCH_LLAMA);
    ck_assert_int_eq(arch_parse("lama", &arch, &error), FIRE_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.message, "'llama'"));
    ck_assert_int_eq(arch_only_parse("qk", &only, &error), FIRE_OK);
    ck_assert_int_eq(only, ARCH_ONLY_QK);
    ck_assert_int_eq(arch_only_parse("q", &only, &error), FIRE_BAD_REQUEST);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("arch");
    TCase *cases = tcase_create("arch");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(cases, names_decide_what_happens, 0,
                        (int)(sizeof(models) / sizeof(models[0])));
    tcase_add_test(cases, none_takes_every_matrix);
    tcase_add_test(cases, a_tied_embedding_follows_the_head);
    tcase_add_test(cases, a_target_network_is_a_copy_under_official_dqn);
    tcase_add_test(cases, words_are_parsed_and_near_ones_suggested);
    suite_add_tcase(suite, cases);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
