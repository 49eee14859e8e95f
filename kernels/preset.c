/* preset: NUMERICS.md section 2 as a table. A preset reproduces its source exactly: the same count
 * of steps, no stopping where the source does not stop. What the columns do not show is the same
 * for all: out_in unless said, conv by taps, nothing split or stacked (client/arch.c splits a fused
 * qkv and counts the leading axis of experts or of a SAC ensemble), blend 1, variance 1, f32. */
#include <stdio.h>
#include <string.h>

#include "options.h"

static const struct preset {
    struct fire_preset shown;
    enum fire_normalize normalize;
    double eps;
    enum fire_polynomial polynomial;
    int32_t steps;
    enum fire_scale scale;
    enum fire_layout layout;
    enum fire_select select;
    enum fire_state_policy state_policy;
    enum fire_state_scope state_scope;
    /* Only where `steps` is auto. */
    uint32_t max_steps;
    double target;
    uint32_t check;
    enum fire_target_form target_form;
    double min_norm;
} presets[] = {
    /* clang-format off */
    { { "fire", "the nearest isometry to convergence, scaled by sqrt(out/in); the default" },
      FIRE_NORMALIZE_AUTO, 0.0, FIRE_POLYNOMIAL_AUTO, FIRE_STEPS_AUTO,
      FIRE_SCALE_FAN_RATIO, FIRE_LAYOUT_OUT_IN, FIRE_SELECT_ARCH,
      FIRE_STATE_RESET, FIRE_STATE_TOUCHED, 0, 0.0, 1, FIRE_TARGET_SHORT, 0.0 },
    { { "official-vision", "FIRE's vision code: 10 cubic steps on every Linear and Conv2d, head "
                           "included" },
      FIRE_NORMALIZE_FROBENIUS, 0.0, FIRE_POLYNOMIAL_CUBIC, 10,
      FIRE_SCALE_FAN_RATIO, FIRE_LAYOUT_OUT_IN, FIRE_SELECT_VISION,
      FIRE_STATE_RESET, FIRE_STATE_ALL, 0, 0.0, 1, FIRE_TARGET_SHORT, 0.0 },
    { { "official-vit", "FIRE's ViT code: 10 cubic steps on to_q and to_k only" },
      FIRE_NORMALIZE_FROBENIUS, 0.0, FIRE_POLYNOMIAL_CUBIC, 10,
      FIRE_SCALE_FAN_RATIO, FIRE_LAYOUT_OUT_IN, FIRE_SELECT_QK,
      FIRE_STATE_RESET, FIRE_STATE_ALL, 0, 0.0, 1, FIRE_TARGET_SHORT, 0.0 },
    { { "official-gpt", "FIRE's GPT code: 5 cubic steps on every Linear, lm_head included, c_attn "
                        "split in 3" },
      FIRE_NORMALIZE_FROBENIUS, 0.0, FIRE_POLYNOMIAL_CUBIC, 5,
      FIRE_SCALE_FAN_RATIO, FIRE_LAYOUT_OUT_IN, FIRE_SELECT_GPT,
      FIRE_STATE_RESET, FIRE_STATE_ALL, 0, 0.0, 1, FIRE_TARGET_SHORT, 0.0 },
    { { "official-dqn", "FIRE's DQN code: 10 cubic steps on conv, Linear back to initial weights, "
                        "state kept" },
      FIRE_NORMALIZE_FROBENIUS, 0.0, FIRE_POLYNOMIAL_CUBIC, 10,
      FIRE_SCALE_FAN_RATIO, FIRE_LAYOUT_OUT_IN, FIRE_SELECT_DQN,
      FIRE_STATE_KEEP, FIRE_STATE_TOUCHED, 0, 0.0, 1, FIRE_TARGET_SHORT, 0.0 },
    { { "official-sac", "FIRE's SAC code: 10 cubic steps, (in, out) layout, leading ensemble axis; "
                        "scale=one for its ortho_init" },
      FIRE_NORMALIZE_FROBENIUS, 1e-8, FIRE_POLYNOMIAL_CUBIC, 10,
      FIRE_SCALE_FAN_RATIO, FIRE_LAYOUT_IN_OUT, FIRE_SELECT_VISION,
      FIRE_STATE_RESET, FIRE_STATE_ALL, 0, 0.0, 1, FIRE_TARGET_SHORT, 0.0 },
    { { "review", "the review's variant: 15 cubic steps from the spectral norm, scale 1, 2-D "
                  "without wte and lm_head" },
      FIRE_NORMALIZE_SPECTRAL, 0.0, FIRE_POLYNOMIAL_CUBIC, 15,
      FIRE_SCALE_ONE, FIRE_LAYOUT_OUT_IN, FIRE_SELECT_2D,
      FIRE_STATE_RESET, FIRE_STATE_TOUCHED, 0, 0.0, 1, FIRE_TARGET_SHORT, 0.0 },
    { { "rust-guide", "the Rust guide's variant: at most 8 cubic steps, stopped at n x n DfI 1e-5, "
                      "scale sqrt(in)" },
      FIRE_NORMALIZE_FROBENIUS, 0.0, FIRE_POLYNOMIAL_CUBIC, FIRE_STEPS_AUTO,
      FIRE_SCALE_FAN_IN, FIRE_LAYOUT_OUT_IN, FIRE_SELECT_2D,
      FIRE_STATE_KEEP, FIRE_STATE_TOUCHED, 8, 1e-5, 2, FIRE_TARGET_FULL, 1e-3 },
    /* clang-format on */
};
#define PRESET_COUNT (sizeof(presets) / sizeof(presets[0]))

size_t fire_preset_count(void)
{
    return PRESET_COUNT;
}

const struct fire_preset *fire_preset_at(size_t index)
{
    FIRE_ASSERT(index < PRESET_COUNT);
    return &presets[index].shown;
}

static void fill(struct fire_options *options, const struct preset *preset)
{
    memset(options, 0, sizeof(*options)); /* padding too: options are compared as bytes */
    snprintf(options->preset, sizeof(options->preset), "%s", preset->shown.name);
    options->select = preset->select;
    options->normalize = preset->normalize;
    options->eps = preset->eps;
    options->polynomial = preset->polynomial;
    options->steps = preset->steps;
    options->max_steps = preset->max_steps;
    options->target = preset->target;
    options->check = preset->check;
    options->target_form = preset->target_form;
    options->side = FIRE_SIDE_AUTO;
    options->scale = preset->scale;
    options->variance = 1.0;
    options->blend = 1.0;
    options->min_norm = preset->min_norm;
    options->conv = FIRE_CONV_TAP;
    options->layout = preset->layout;
    options->stack = 0;
    options->split_count = 1;
    options->compute = FIRE_COMPUTE_F32;
    options->state_policy = preset->state_policy;
    options->state_scope = preset->state_scope;
    options->dormant_tau = 0.025;
    options->gradient_dormant_tau = 0.01;
}

enum fire_status fire_options_preset(struct fire_options *options, const char *name,
                                     struct fire_error *error)
{
    const char *names[PRESET_COUNT];
    const char *nearest;

    for (size_t i = 0; i < PRESET_COUNT; i++) {
        names[i] = presets[i].shown.name;
        if (strcmp(names[i], name) == 0) {
            fill(options, &presets[i]);
            return FIRE_OK;
        }
    }
    nearest = fire_nearest_name(name, names, PRESET_COUNT);
    if (nearest)
        return fire_fail(error, FIRE_NOT_FOUND, "preset",
                         "there is no preset '%.48s'; did you mean '%s'?", name, nearest);
    return fire_fail(error, FIRE_NOT_FOUND, "preset",
                     "there is no preset '%.48s'; `firectl presets` lists them all", name);
}
