/* Keys, values and presets, as the tables of INTERFACES.md section 2 and NUMERICS.md section 2
 * promise them. */
#include "options.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void preset(struct fire_options *options, const char *name)
{
    struct fire_error error;

    ck_assert_msg(fire_options_preset(options, name, &error) == FIRE_OK, "%s", name);
}

static size_t key_index(const char *name)
{
    for (size_t i = 0; i < fire_option_key_count(); i++)
        if (strcmp(fire_option_key_at(i)->name, name) == 0)
            return i;
    ck_abort_msg("no key %s", name);
}

static const char *value_of(const struct fire_options *options, const char *key)
{
    static char text[FIRE_OPTION_TEXT_BYTES];

    fire_options_format(options, key_index(key), text, sizeof(text));
    return text;
}

START_TEST(every_promised_key_exists)
{
    static const char *const keys[] = {
        "normalize",    "polynomial",
        "steps",        "target",
        "check",        "eps",
        "target_form",  "side",
        "scale",        "variance",
        "conv",         "layout",
        "split",        "stack",
        "blend",        "min_norm",
        "compute",      "complete",
        "seed",         "max_steps",
        "state_policy", "gradient_dormant_tau",
        "dormant_tau",  "state_scope",
        "split_skip",
    };

    ck_assert_uint_eq(fire_option_key_count(), sizeof(keys) / sizeof(keys[0]));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const struct fire_option_key *key = fire_option_key_at(key_index(keys[i]));

        ck_assert(strlen(key->values) > 0);
        ck_assert(strlen(key->meaning) > 0);
    }
}
END_TEST

/* NUMERICS.md section 2, column by column, in the words of --set. */
static const struct {
    const char *name;
    const char *normalize, *eps, *polynomial, *steps, *scale, *layout, *state, *scope;
    enum fire_select select;
} presets[] = {
    { "fire", "auto", "0", "auto", "auto", "fan-ratio", "out_in", "reset", "touched",
      FIRE_SELECT_ARCH },
    { "official-vision", "frobenius", "0", "cubic", "10", "fan-ratio", "out_in", "reset", "all",
      FIRE_SELECT_VISION },
    { "official-vit", "frobenius", "0", "cubic", "10", "fan-ratio", "out_in", "reset", "all",
      FIRE_SELECT_QK },
    { "official-gpt", "frobenius", "0", "cubic", "5", "fan-ratio", "out_in", "reset", "all",
      FIRE_SELECT_GPT },
    { "official-dqn", "frobenius", "0", "cubic", "10", "fan-ratio", "out_in", "keep", "touched",
      FIRE_SELECT_DQN },
    { "official-sac", "frobenius", "1e-08", "cubic", "10", "fan-ratio", "in_out", "reset", "all",
      FIRE_SELECT_VISION },
    { "review", "spectral", "0", "cubic", "15", "one", "out_in", "reset", "touched",
      FIRE_SELECT_2D },
    { "rust-guide", "frobenius", "0", "cubic", "auto", "fan-in", "out_in", "keep", "touched",
      FIRE_SELECT_2D },
};
#define PRESET_COUNT (sizeof(presets) / sizeof(presets[0]))

START_TEST(presets_are_the_rows_of_the_table)
{
    ck_assert_uint_eq(fire_preset_count(), PRESET_COUNT);
    for (size_t i = 0; i < PRESET_COUNT; i++) {
        struct fire_options options;

        preset(&options, presets[i].name);
        ck_assert_str_eq(fire_preset_at(i)->name, presets[i].name);
        ck_assert(strlen(fire_preset_at(i)->summary) > 0);
        ck_assert_str_eq(options.preset, presets[i].name);
        ck_assert_str_eq(value_of(&options, "normalize"), presets[i].normalize);
        ck_assert_str_eq(value_of(&options, "eps"), presets[i].eps);
        ck_assert_str_eq(value_of(&options, "polynomial"), presets[i].polynomial);
        ck_assert_str_eq(value_of(&options, "steps"), presets[i].steps);
        ck_assert_str_eq(value_of(&options, "scale"), presets[i].scale);
        ck_assert_str_eq(value_of(&options, "layout"), presets[i].layout);
        ck_assert_str_eq(value_of(&options, "state_policy"), presets[i].state);
        ck_assert_str_eq(value_of(&options, "state_scope"), presets[i].scope);
        ck_assert_int_eq(options.select, presets[i].select);
    }
}
END_TEST

START_TEST(what_presets_share_has_the_promised_defaults)
{
    static const struct {
        const char *key, *usual, *rust_guide;
    } defaults[] = {
        { "target", "auto", "1e-05" },
        { "check", "1", "2" },
        { "target_form", "short", "full" },
        { "max_steps", "auto", "8" },
        { "min_norm", "0", "0.001" },
        { "side", "auto", "auto" },
        { "variance", "1", "1" },
        { "conv", "tap", "tap" },
        { "split", "1", "1" },
        { "split_skip", "none", "none" },
        { "stack", "0", "0" },
        { "blend", "1", "1" },
        { "compute", "f32", "f32" },
        { "complete", "off", "off" },
        { "dormant_tau", "0.025", "0.025" },
        { "gradient_dormant_tau", "0.01", "0.01" },
        { "seed", "0", "0" },
    };

    for (size_t i = 0; i < PRESET_COUNT; i++) {
        struct fire_options options;

        preset(&options, presets[i].name);
        for (size_t k = 0; k < sizeof(defaults) / sizeof(defaults[0]); k++) {
            const char *want = strcmp(presets[i].name, "rust-guide") == 0 ? defaults[k].rust_guide
                                                                          : defaults[k].usual;

            ck_assert_msg(strcmp(value_of(&options, defaults[k].key), want) == 0, "%s %s: %s",
                          presets[i].name, defaults[k].key, value_of(&options, defaults[k].key));
        }
    }
}
END_TEST

START_TEST(every_preset_written_key_by_key_reads_back_as_itself)
{
    for (size_t i = 0; i < PRESET_COUNT; i++) {
        struct fire_options options, again;
        struct fire_error error;

        preset(&options, presets[i].name);
        preset(&again, i == 0 ? "rust-guide" : "fire"); /* something else, to be overwritten */
        memcpy(again.preset, options.preset, sizeof(again.preset));
        again.select = options.select;
        for (size_t k = 0; k < fire_option_key_count(); k++) {
            char text[FIRE_OPTION_TEXT_BYTES];

            fire_options_format(&options, k, text, sizeof(text));
            ck_assert_msg(
                fire_options_set(&again, fire_option_key_at(k)->name, text, &error) == FIRE_OK,
                "%s %s=%s: %s", presets[i].name, fire_option_key_at(k)->name, text, error.message);
        }
        ck_assert_msg(memcmp(&options, &again, sizeof(options)) == 0, "%s", presets[i].name);
    }
}
END_TEST

/* Text in, the same (or the canonical) text out, and a second reading changes nothing. */
static const struct {
    const char *key, *text, *written; /* NULL: as given */
} good[] = {
    { "normalize", "auto", NULL },
    { "normalize", "frobenius", NULL },
    { "normalize", "spectral", NULL },
    { "normalize", "schatten", NULL },
    { "polynomial", "auto", NULL },
    { "polynomial", "cubic", NULL },
    { "polynomial", "muon", NULL },
    { "polynomial", "polar-express", NULL },
    { "polynomial", "minimax", NULL },
    { "polynomial", "custom:1.5,-0.5,0", NULL },
    { "polynomial", "custom:3.4445,-4.7750,2.0315;1.5,-.5,-0",
      "custom:3.4445,-4.775,2.0315;1.5,-0.5,0" },
    { "steps", "auto", NULL },
    { "steps", "0", NULL },
    { "steps", "1000", NULL },
    { "max_steps", "auto", NULL },
    { "max_steps", "8", NULL },
    { "target", "auto", NULL },
    { "target", "0.000001", "1e-06" },
    { "target", "1.2345678901234568e-300", NULL },
    { "check", "2", NULL },
    { "target_form", "short", NULL },
    { "target_form", "full", NULL },
    { "eps", "0", NULL },
    { "eps", "-0", "0" },
    { "eps", "+1E-8", "1e-08" },
    { "side", "auto", NULL },
    { "side", "x", NULL },
    { "side", "gram", NULL },
    { "scale", "one", NULL },
    { "scale", "fan-ratio", NULL },
    { "scale", "fan-in", NULL },
    { "scale", "keep-norm", NULL },
    { "scale", "mean-sigma", NULL },
    { "scale", "kaiming", NULL },
    { "scale", "xavier", NULL },
    { "scale", "uniform", NULL },
    { "scale", "std:0.02", NULL },
    { "variance", "2.5", NULL },
    { "conv", "tap", NULL },
    { "conv", "flatten", NULL },
    { "layout", "out_in", NULL },
    { "layout", "in_out", NULL },
    { "split", "3", NULL },
    { "split", "64", NULL },
    { "split", "2048,512,512", NULL },
    { "split_skip", "none", NULL },
    { "split_skip", "2", NULL },
    { "split_skip", "63,0", "0,63" },
    { "stack", "6", NULL },
    { "blend", "0", NULL },
    { "blend", "1.", "1" },
    { "min_norm", "1e-3", "0.001" },
    { "compute", "f32", NULL },
    { "compute", "f64", NULL },
    { "compute", "fast", NULL },
    { "complete", "on", NULL },
    { "complete", "off", NULL },
    { "complete", "true", "on" },
    { "complete", "no", "off" },
    { "seed", "18446744073709551615", NULL },
    { "state_policy", "keep", NULL },
    { "state_policy", "zero", NULL },
    { "state_policy", "reset", NULL },
    { "state_policy", "transport", NULL },
    { "state_scope", "touched", NULL },
    { "state_scope", "all", NULL },
    { "dormant_tau", "0", NULL },
    { "gradient_dormant_tau", "0.1", NULL },
};

START_TEST(good_values_are_read_and_written_back)
{
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct fire_options options, again;
        struct fire_error error;

        preset(&options, "fire");
        ck_assert_msg(fire_options_set(&options, good[i].key, good[i].text, &error) == FIRE_OK,
                      "%s=%s: %s", good[i].key, good[i].text, error.message);
        ck_assert_str_eq(value_of(&options, good[i].key),
                         good[i].written ? good[i].written : good[i].text);
        preset(&again, "fire");
        ck_assert_int_eq(
            fire_options_set(&again, good[i].key, value_of(&options, good[i].key), &error),
            FIRE_OK);
        ck_assert_msg(memcmp(&options, &again, sizeof(options)) == 0, "%s=%s", good[i].key,
                      good[i].text);
    }
}
END_TEST

START_TEST(values_arrive_in_the_struct)
{
    struct fire_options options;
    struct fire_error error;

    preset(&options, "fire");
    ck_assert_int_eq(fire_options_set_pair(&options, "polynomial=custom:1,2,3;4,5,-6.5", &error),
                     FIRE_OK);
    ck_assert_int_eq(options.polynomial, FIRE_POLYNOMIAL_CUSTOM);
    ck_assert_uint_eq(options.custom_count, 2);
    ck_assert_double_eq(options.custom[0][1], 2.0);
    ck_assert_double_eq(options.custom[1][2], -6.5);
    ck_assert_int_eq(fire_options_set_pair(&options, "scale=std:0.02", &error), FIRE_OK);
    ck_assert_int_eq(options.scale, FIRE_SCALE_STD);
    ck_assert_double_eq(options.scale_std, 0.02);
    ck_assert_int_eq(fire_options_set_pair(&options, "split=4,2,2", &error), FIRE_OK);
    ck_assert_uint_eq(options.split_count, 3);
    ck_assert_uint_eq(options.split_sizes[0], 4);
    ck_assert_uint_eq(options.split_sizes[2], 2);
    ck_assert_int_eq(fire_options_set_pair(&options, "split=2", &error), FIRE_OK);
    ck_assert_uint_eq(options.split_count, 2);
    ck_assert_uint_eq(options.split_sizes[0], 0);
    ck_assert_int_eq(fire_options_set_pair(&options, "complete=on", &error), FIRE_OK);
    ck_assert(options.complete);
    ck_assert_int_eq(fire_options_set_pair(&options, "steps=7", &error), FIRE_OK);
    ck_assert_int_eq(options.steps, 7);
    ck_assert_int_eq(fire_options_set_pair(&options, "stack=1", &error), FIRE_OK);
    ck_assert_uint_eq(options.stack, 1);
    ck_assert_int_eq(fire_options_set_pair(&options, "seed=9", &error), FIRE_OK);
    ck_assert_uint_eq(options.seed, 9);
}
END_TEST

static const struct {
    const char *key, *text;
    const char *words; /* in the message */
} bad[] = {
    { "normalize", "", "schatten" },
    { "split_skip", "", "none" },
    { "split_skip", "64", "none" },
    { "split_skip", "1,", "none" },
    { "split_skip", "1,none", "none" },
    { "normalize", "Frobenius", "frobenius" },
    { "normalize", "frobenius ", "frobenius" },
    { "polynomial", "custom", "custom:a,b,c" },
    { "polynomial", "custom:", "custom:a,b,c" },
    { "polynomial", "custom:1,2", "custom:a,b,c" },
    { "polynomial", "custom:1,2,3,4", "custom:a,b,c" },
    { "polynomial", "custom:1,2,3;", "custom:a,b,c" },
    { "polynomial", "custom:1,2,nan", "custom:a,b,c" },
    { "polynomial", "custom:1,2,1e10", "custom:a,b,c" },
    { "steps", "-1", "auto or a count from 0 to 1000" },
    { "steps", "1001", "1000" },
    { "steps", "10.0", "count" },
    { "steps", "99999999999999999999", "count" },
    { "steps", "4294967297", "count" },
    { "max_steps", "0", "1 to 1000" },
    { "target", "0", "above 0" },
    { "target", "-1e-6", "above 0" },
    { "target", "1e-400", "above 0" },
    { "target", "inf", "above 0" },
    { "target", "1e999", "above 0" },
    { "target", "nan", "above 0" },
    { "target", "0x1p-3", "above 0" },
    { "target", " 1", "above 0" },
    { "target", "1,5", "above 0" },
    { "target", "1e", "above 0" },
    { "target", ".", "above 0" },
    { "target", "--1", "above 0" },
    { "check", "0", "1 to 1000" },
    { "target_form", "long", "short or full" },
    { "eps", "-1e-300", "from 0" },
    { "eps", "1e31", "1e30" },
    { "side", "y", "gram" },
    { "scale", "std", "std:V" },
    { "scale", "std:0", "above 0" },
    { "scale", "std:0.1x", "above 0" },
    { "variance", "0", "above 0" },
    { "conv", "taps", "tap or flatten" },
    { "layout", "out-in", "out_in" },
    { "split", "0", "1 to 64" },
    { "split", "65", "1 to 64" },
    { "split", "3,", "a,b,c" },
    { "split", "3,0", "a,b,c" },
    { "split", ",3", "a,b,c" },
    { "split", "3;3", "a,b,c" },
    { "stack", "7", "0 to 6" },
    { "blend", "1.0000001", "from 0 to 1" },
    { "blend", "-0.1", "from 0 to 1" },
    { "compute", "f16", "fast" },
    { "complete", "maybe", "on or off" },
    { "seed", "18446744073709551616", "18446744073709551615" },
    { "seed", "-1", "18446744073709551615" },
    { "state_policy", "forget", "transport" },
    { "dormant_tau", "-1", "from 0" },
};

START_TEST(bad_values_are_refused_with_the_allowed_ones_and_change_nothing)
{
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct fire_options options, before;
        struct fire_error error;

        preset(&options, "fire");
        before = options;
        ck_assert_msg(fire_options_set(&options, bad[i].key, bad[i].text, &error) ==
                          FIRE_BAD_REQUEST,
                      "%s=%s", bad[i].key, bad[i].text);
        ck_assert_int_eq(error.status, FIRE_BAD_REQUEST);
        ck_assert_str_eq(error.field, bad[i].key);
        ck_assert_msg(strstr(error.message, bad[i].words) != NULL, "%s=%s: %s", bad[i].key,
                      bad[i].text, error.message);
        ck_assert_msg(memcmp(&options, &before, sizeof(options)) == 0, "%s=%s", bad[i].key,
                      bad[i].text);
        ck_assert_int_eq(fire_options_set(&options, bad[i].key, bad[i].text, NULL),
                         FIRE_BAD_REQUEST);
    }
}
END_TEST

START_TEST(lists_have_their_named_limits)
{
    static char text[FIRE_OPTION_TEXT_BYTES];
    struct fire_options options, again;
    struct fire_error error;

    preset(&options, "fire");
    strcpy(text, "custom:");
    for (int i = 0; i < FIRE_CUSTOM_MAX; i++)
        strcat(text, i ? ";-0.12345678901234567,-1e-300,-123456789.12345678"
                       : "-0.12345678901234567,-1.2345678901234567e-300,0");
    ck_assert_int_eq(fire_options_set(&options, "polynomial", text, &error), FIRE_OK);
    ck_assert_uint_eq(options.custom_count, FIRE_CUSTOM_MAX);
    preset(&again, "fire");
    ck_assert_int_eq(
        fire_options_set(&again, "polynomial", value_of(&options, "polynomial"), &error), FIRE_OK);
    ck_assert(memcmp(&options, &again, sizeof(options)) == 0);
    strcat(text, ";1,1,1");
    ck_assert_int_eq(fire_options_set(&options, "polynomial", text, &error), FIRE_BAD_REQUEST);

    strcpy(text, "65536");
    for (int i = 1; i < FIRE_SPLIT_MAX; i++)
        strcat(text, ",65536");
    ck_assert_int_eq(fire_options_set(&options, "split", text, &error), FIRE_OK);
    ck_assert_str_eq(value_of(&options, "split"), text);
    strcat(text, ",65536");
    ck_assert_int_eq(fire_options_set(&options, "split", text, &error), FIRE_BAD_REQUEST);
    ck_assert_int_eq(fire_options_set(&options, "split", "65537,1", &error), FIRE_BAD_REQUEST);
}
END_TEST

START_TEST(a_small_buffer_gets_a_cut_text)
{
    struct fire_options options;
    struct fire_error error;
    char text[8];

    preset(&options, "fire");
    ck_assert_int_eq(fire_options_set(&options, "polynomial", "custom:1,2,3;4,5,6", &error),
                     FIRE_OK);
    for (size_t bytes = 1; bytes <= sizeof(text); bytes++) {
        memset(text, 'x', sizeof(text));
        fire_options_format(&options, key_index("polynomial"), text, bytes);
        ck_assert_uint_eq(strlen(text), bytes - 1);
        ck_assert(strncmp(text, "custom:1", bytes - 1) == 0);
    }
    memset(text, 'x', sizeof(text));
    fire_options_format(&options, 0, text, 0);
    ck_assert_int_eq(text[0], 'x');
}
END_TEST

START_TEST(an_unknown_name_suggests_the_nearest_known_one)
{
    static const struct {
        const char *key, *nearest; /* NULL: none is near */
    } unknown[] = {
        { "normalise", "normalize" },
        { "step", "steps" },
        { "min-norm", "min_norm" },
        { "maxsteps", "max_steps" },
        { "poly", "polynomial" },
        { "targer", "target" },
        { "zzzzzz", NULL },
        { "", NULL },
        { "q", NULL },
        { "a_key_far_longer_than_any_name_that_could_have_been_meant_by_anybody", NULL },
    };

    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        struct fire_options options, before;
        struct fire_error error;
        char want[64];

        preset(&options, "fire");
        before = options;
        ck_assert_int_eq(fire_options_set(&options, unknown[i].key, "1", &error), FIRE_NOT_FOUND);
        ck_assert(memcmp(&options, &before, sizeof(options)) == 0);
        snprintf(want, sizeof(want), "did you mean '%s'?",
                 unknown[i].nearest ? unknown[i].nearest : "");
        ck_assert_msg((strstr(error.message, want) != NULL) == (unknown[i].nearest != NULL),
                      "%s: %s", unknown[i].key, error.message);
        ck_assert(strstr(error.message, "no option") != NULL);
    }
}
END_TEST

START_TEST(an_unknown_preset_suggests_the_nearest_known_one)
{
    struct fire_options options;
    struct fire_error error;

    ck_assert_int_eq(fire_options_preset(&options, "oficial-vit", &error), FIRE_NOT_FOUND);
    ck_assert_str_eq(error.field, "preset");
    ck_assert(strstr(error.message, "'official-vit'") != NULL);
    ck_assert_int_eq(fire_options_preset(&options, "adam", &error), FIRE_NOT_FOUND);
    ck_assert(strstr(error.message, "firectl presets") != NULL);
}
END_TEST

START_TEST(a_pair_needs_a_key_and_an_equals_sign)
{
    struct fire_options options;
    struct fire_error error;

    preset(&options, "fire");
    ck_assert_int_eq(fire_options_set_pair(&options, "steps", &error), FIRE_BAD_REQUEST);
    ck_assert(strstr(error.message, "key=value") != NULL);
    ck_assert_int_eq(fire_options_set_pair(&options, "=3", &error), FIRE_BAD_REQUEST);
    ck_assert_int_eq(fire_options_set_pair(&options, "", &error), FIRE_BAD_REQUEST);
    ck_assert_int_eq(fire_options_set_pair(&options, "steps=", &error), FIRE_BAD_REQUEST);
    ck_assert_str_eq(error.field, "steps");
    ck_assert_int_eq(fire_options_set_pair(&options, "stepz=3", &error), FIRE_NOT_FOUND);
    ck_assert_str_eq(error.field, "stepz");
}
END_TEST

/* What only the whole set shows. */
START_TEST(impossible_targets_are_refused_and_the_floor_is_named)
{
    static const struct {
        const char *target, *compute, *steps;
        enum fire_dtype output;
        uint64_t rows, cols;
        enum fire_status status;
        const char *words;
    } targets[] = {
        { "1e-6", "f32", "auto", FIRE_F32, 768, 768, FIRE_OK, "" },
        { "1e-4", "f32", "auto", FIRE_BF16, 768, 768, FIRE_BAD_REQUEST, "0.0044" },
        { "1e-4", "f32", "5", FIRE_BF16, 768, 768, FIRE_OK, "" },
        { "4.5e-3", "f32", "auto", FIRE_BF16, 768, 768, FIRE_OK, "" },
        { "auto", "f32", "auto", FIRE_BF16, 768, 768, FIRE_OK, "" },
        { "1e-7", "f32", "auto", FIRE_F16, 64, 64, FIRE_BAD_REQUEST, "f16" },
        { "1e-13", "f32", "auto", FIRE_F64, 64, 64, FIRE_BAD_REQUEST, "compute=f64" },
        { "1e-13", "fast", "auto", FIRE_F64, 64, 64, FIRE_BAD_REQUEST, "compute=f64" },
        { "1e-13", "f64", "auto", FIRE_F64, 64, 64, FIRE_OK, "" },
        { "1e-13", "f64", "auto", FIRE_F32, 64, 64, FIRE_BAD_REQUEST, "f32" },
        { "1e-40", "f64", "auto", FIRE_F64, 64, 64, FIRE_BAD_REQUEST, "f64" },
    };

    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        struct fire_options options;
        struct fire_error error = { .message = "" };

        preset(&options, "fire");
        ck_assert_int_eq(fire_options_set(&options, "target", targets[i].target, &error), FIRE_OK);
        ck_assert_int_eq(fire_options_set(&options, "compute", targets[i].compute, &error),
                         FIRE_OK);
        ck_assert_int_eq(fire_options_set(&options, "steps", targets[i].steps, &error), FIRE_OK);
        ck_assert_msg(fire_options_check(&options, targets[i].output, targets[i].rows,
                                         targets[i].cols, &error) == targets[i].status,
                      "case %zu: %s", i, error.message);
        if (targets[i].status != FIRE_OK) {
            ck_assert_str_eq(error.field, "target");
            ck_assert_msg(strstr(error.message, targets[i].words) != NULL, "%s", error.message);
        }
    }
}
END_TEST

/* Each case breaks one member of a preset by hand. */
#define BREAK(name, statement)                                                                     \
    static void break_##name(struct fire_options *options)                                         \
    {                                                                                              \
        statement;                                                                                 \
    }
BREAK(blend, options->blend = 1.5)
BREAK(blend_nan, options->blend = NAN)
BREAK(eps, options->eps = -1.0)
BREAK(variance, options->variance = 0.0)
BREAK(target, options->target = -1.0)
BREAK(min_norm, options->min_norm = INFINITY)
BREAK(scale, options->scale = FIRE_SCALE_STD)
BREAK(scale_enum, options->scale = (enum fire_scale)77)
BREAK(compute_enum, options->compute = (enum fire_compute) - 1)
BREAK(custom, options->polynomial = FIRE_POLYNOMIAL_CUSTOM)
BREAK(custom_many, (options->polynomial = FIRE_POLYNOMIAL_CUSTOM, options->custom_count = 33))
BREAK(steps, options->steps = -2)
BREAK(steps_many, options->steps = 1001)
BREAK(max_steps, options->max_steps = 1001)
BREAK(check, options->check = 0)

START_TEST(a_struct_filled_by_hand_is_checked_too)
{
    static const struct {
        const char *field;
        void (*damage)(struct fire_options *options);
    } broken[] = {
        { "blend", break_blend },
        { "blend", break_blend_nan },
        { "eps", break_eps },
        { "variance", break_variance },
        { "target", break_target },
        { "min_norm", break_min_norm },
        { "scale", break_scale },
        { "scale", break_scale_enum },
        { "compute", break_compute_enum },
        { "polynomial", break_custom },
        { "polynomial", break_custom_many },
        { "steps", break_steps },
        { "steps", break_steps_many },
        { "max_steps", break_max_steps },
        { "check", break_check },
    };

    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        struct fire_options options;
        struct fire_error error;

        preset(&options, "fire");
        ck_assert_int_eq(fire_options_check(&options, FIRE_F32, 64, 64, &error), FIRE_OK);
        broken[i].damage(&options);
        ck_assert_msg(fire_options_check(&options, FIRE_F32, 64, 64, &error) == FIRE_BAD_REQUEST,
                      "case %zu (%s)", i, broken[i].field);
        ck_assert_str_eq(error.field, broken[i].field);
        ck_assert(strlen(error.message) > 0);
    }
}
END_TEST

START_TEST(every_preset_passes_its_own_check)
{
    for (size_t i = 0; i < PRESET_COUNT; i++) {
        struct fire_options options;
        struct fire_error error;

        preset(&options, presets[i].name);
        ck_assert_msg(fire_options_check(&options, FIRE_F32, 768, 3072, &error) == FIRE_OK, "%s",
                      presets[i].name);
    }
}
END_TEST

START_TEST(the_default_target_follows_the_output)
{
    struct fire_options options;

    preset(&options, "fire");
    ck_assert_double_eq(fire_options_target(&options, FIRE_F32, 64, 64), 1e-6);
    ck_assert_double_eq(fire_options_target(&options, FIRE_F64, 64, 64), 1e-6);
    ck_assert_double_eq(fire_options_target(&options, FIRE_BF16, 64, 32),
                        2.0 * fire_dtype_dfi_floor(FIRE_BF16, 64, 32));
    ck_assert_double_eq(fire_options_target(&options, FIRE_F16, 32, 64),
                        2.0 * fire_dtype_dfi_floor(FIRE_F16, 64, 32));
    options.target = 0.5;
    ck_assert_double_eq(fire_options_target(&options, FIRE_BF16, 64, 32), 0.5);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *tests = tcase_create("options");
    SRunner *runner;
    int failed;

    tcase_add_test(tests, every_promised_key_exists);
    tcase_add_test(tests, presets_are_the_rows_of_the_table);
    tcase_add_test(tests, what_presets_share_has_the_promised_defaults);
    tcase_add_test(tests, every_preset_written_key_by_key_reads_back_as_itself);
    tcase_add_test(tests, good_values_are_read_and_written_back);
    tcase_add_test(tests, values_arrive_in_the_struct);
    tcase_add_test(tests, bad_values_are_refused_with_the_allowed_ones_and_change_nothing);
    tcase_add_test(tests, lists_have_their_named_limits);
    tcase_add_test(tests, a_small_buffer_gets_a_cut_text);
    tcase_add_test(tests, an_unknown_name_suggests_the_nearest_known_one);
    tcase_add_test(tests, an_unknown_preset_suggests_the_nearest_known_one);
    tcase_add_test(tests, a_pair_needs_a_key_and_an_equals_sign);
    tcase_add_test(tests, impossible_targets_are_refused_and_the_floor_is_named);
    tcase_add_test(tests, a_struct_filled_by_hand_is_checked_too);
    tcase_add_test(tests, every_preset_passes_its_own_check);
    tcase_add_test(tests, the_default_target_follows_the_output);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
