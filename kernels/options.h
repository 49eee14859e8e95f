/* options: everything a request may choose about one tensor, and the presets that bundle choices.
 *
 * A struct fire_options is plain data: copy it freely. Start from a preset, change keys one by one
 * with fire_options_set(); the keys and values are those of `firectl --set`. One table in options.c
 * drives parsing, printing, help and completion. */
#ifndef FIRE_OPTIONS_H
#define FIRE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dtype.h"
#include "status.h"

enum fire_normalize {
    FIRE_NORMALIZE_AUTO,
    FIRE_NORMALIZE_FROBENIUS,
    FIRE_NORMALIZE_SPECTRAL,
    FIRE_NORMALIZE_SCHATTEN
};
enum fire_polynomial {
    FIRE_POLYNOMIAL_AUTO,
    FIRE_POLYNOMIAL_CUBIC,
    FIRE_POLYNOMIAL_MUON,
    FIRE_POLYNOMIAL_POLAR_EXPRESS,
    FIRE_POLYNOMIAL_MINIMAX,
    FIRE_POLYNOMIAL_CUSTOM
};
enum fire_side { FIRE_SIDE_AUTO, FIRE_SIDE_X, FIRE_SIDE_GRAM };
enum fire_scale {
    FIRE_SCALE_ONE,
    FIRE_SCALE_FAN_RATIO,
    FIRE_SCALE_FAN_IN,
    FIRE_SCALE_KEEP_NORM,
    FIRE_SCALE_MEAN_SIGMA,
    FIRE_SCALE_KAIMING,
    FIRE_SCALE_XAVIER,
    FIRE_SCALE_UNIFORM,
    FIRE_SCALE_STD
};
enum fire_conv { FIRE_CONV_TAP, FIRE_CONV_FLATTEN };
enum fire_layout { FIRE_LAYOUT_OUT_IN, FIRE_LAYOUT_IN_OUT };
enum fire_compute { FIRE_COMPUTE_F32, FIRE_COMPUTE_F64, FIRE_COMPUTE_FAST };
enum fire_target_form { FIRE_TARGET_SHORT, FIRE_TARGET_FULL };
enum fire_state_policy { FIRE_STATE_KEEP, FIRE_STATE_ZERO, FIRE_STATE_RESET, FIRE_STATE_TRANSPORT };
/* Whose state the policy is for: that of projected weights, or every state tensor that was sent. */
enum fire_state_scope { FIRE_STATE_TOUCHED, FIRE_STATE_ALL };

/* Which tensors of a model a preset projects (names are matched in client/arch.c). */
enum fire_select {
    FIRE_SELECT_ARCH,   /* the architecture's own rule: NUMERICS.md section 2 */
    FIRE_SELECT_VISION, /* every Linear and Conv2d, the head included */
    FIRE_SELECT_QK,     /* only the query and key projections */
    FIRE_SELECT_GPT,    /* every Linear, lm_head included; fused c_attn split in three */
    FIRE_SELECT_DQN,    /* conv projected, Linear reset to stored initial weights */
    FIRE_SELECT_2D,     /* every 2-D tensor but wte and lm_head */
};

#define FIRE_STEPS_AUTO (-1)
#define FIRE_STEPS_MAX  1000
#define FIRE_CUSTOM_MAX 32
#define FIRE_SPLIT_MAX  64
#define FIRE_STACK_MAX  6

struct fire_options {
    char preset[24];
    enum fire_select select;

    enum fire_normalize normalize;
    double eps; /* added to the norm */
    enum fire_polynomial polynomial;
    double custom[FIRE_CUSTOM_MAX][3]; /* X (a I + b G + c G^2), one row a step; the last repeats */
    uint32_t custom_count;
    int32_t steps;      /* exactly so many, no early stop; or FIRE_STEPS_AUTO: until `target` */
    uint32_t max_steps; /* most steps when `steps` is auto and the polynomial is named; 0: 100 */
    double target;      /* DfI of the unscaled result; 0: the default of the output dtype */
    uint32_t check;     /* look at the DfI after steps 1, 1 + check, 1 + 2 check, … */
    enum fire_target_form target_form;
    enum fire_side side;

    enum fire_scale scale;
    double scale_std; /* the V of std:V */
    double variance;  /* factor on the scale */
    double blend;     /* alpha of alpha Q + (1 - alpha) W */
    double min_norm;  /* a matrix with a smaller Frobenius norm is skipped */

    enum fire_conv conv;
    enum fire_layout layout;
    uint32_t stack;                       /* leading axes that count matrices */
    uint32_t split_count;                 /* row blocks; 1: none */
    uint64_t split_sizes[FIRE_SPLIT_MAX]; /* all 0: split_count equal blocks */
    uint64_t split_skip; /* bit i: row block i is no matrix and is left alone (V of a ViT's qkv) */

    enum fire_compute compute;
    bool complete; /* fill a rank defect with a seeded orthogonal complement */
    uint64_t seed;

    enum fire_state_policy state_policy;
    enum fire_state_scope state_scope;
    double dormant_tau;          /* 0.025 */
    double gradient_dormant_tau; /* 0.01 */
};

/* One row of the preset list. */
struct fire_preset {
    const char *name;
    const char *summary; /* one line: which source it reproduces and what it projects */
};

/* The presets in the order they are shown. */
size_t fire_preset_count(void);
const struct fire_preset *fire_preset_at(size_t index);

/* Fills `options` from a preset; "fire" is the default. An unknown name is FIRE_NOT_FOUND and the
 * message suggests the nearest one. */
FIRE_NODISCARD enum fire_status fire_options_preset(struct fire_options *options, const char *name,
                                                    struct fire_error *error);

/* Sets one key from text, as `--set key=value` gives it. On failure `options` is unchanged, the
 * error's field is the key, and the message names the allowed values (FIRE_BAD_REQUEST) or the
 * nearest known key (FIRE_NOT_FOUND). The process's locale plays no part. */
FIRE_NODISCARD enum fire_status fire_options_set(struct fire_options *options, const char *key,
                                                 const char *value, struct fire_error *error);

/* "key=value" in one string. */
FIRE_NODISCARD enum fire_status fire_options_set_pair(struct fire_options *options,
                                                      const char *pair, struct fire_error *error);

/* The keys, for help, completion and printing. */
struct fire_option_key {
    const char *name;
    const char *values; /* "frobenius, spectral, …" or "a number above 0" */
    const char *meaning;
};
size_t fire_option_key_count(void);
const struct fire_option_key *fire_option_key_at(size_t index);

/* Writes the value of key `index` as fire_options_set() would read it back, to the same bits.
 * FIRE_OPTION_TEXT_BYTES are enough for any value; in less room the text is cut. */
#define FIRE_OPTION_TEXT_BYTES 4096
void fire_options_format(const struct fire_options *options, size_t index, char *text,
                         size_t text_bytes);

/* Checks what only the whole set shows, for a rows x cols matrix: a target below the floor of
 * `output` or of f32 arithmetic (steps auto only: counted steps do not stop at it), a custom
 * polynomial without coefficients; and, since a struct may be filled without fire_options_set(),
 * that every value is within its limits. Stack and split are checked by fire_view_count(). */
FIRE_NODISCARD enum fire_status fire_options_check(const struct fire_options *options,
                                                   enum fire_dtype output, uint64_t rows,
                                                   uint64_t cols, struct fire_error *error);

/* The DfI a result must reach: options->target, or the default for `output` when that is 0
 * (1e-6 for f32 and f64, twice the floor for bf16 and f16). */
double fire_options_target(const struct fire_options *options, enum fire_dtype output,
                           uint64_t rows, uint64_t cols);

/* The nearest of `count` names to `word` by edit distance, or NULL when none is near. */
const char *fire_nearest_name(const char *word, const char *const *names, size_t count);

#endif
