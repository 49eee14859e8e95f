/* Conversions against a definition that uses none of their tricks: scale by a power of two, round
 * to an integer with the FPU's nearest-even, scale back. */
#include "dtype.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

static const struct format {
    const char *name;
    enum fire_dtype dtype;
    int precision;    /* bits of the significand, the hidden one included */
    int exponent_min; /* of the smallest normal number, as frexp gives it */
    double largest;
    float (*widen)(uint16_t bits);
    uint16_t (*narrow)(float value);
} formats[] = {
    { "bf16", FIRE_BF16, 8, -125, 0x1.fep127, fire_bf16_to_f32, fire_f32_to_bf16 },
    { "f16", FIRE_F16, 11, -13, 65504.0, fire_f16_to_f32, fire_f32_to_f16 },
};

static double round_by_definition(const struct format *format, double value)
{
    int exponent, shift;
    double rounded;

    if (value == 0.0 || !isfinite(value))
        return value;
    frexp(value, &exponent);
    if (exponent < format->exponent_min)
        exponent = format->exponent_min;
    shift = format->precision - exponent;
    rounded = ldexp(nearbyint(ldexp(value, shift)), -shift);
    return fabs(rounded) > format->largest ? copysign(INFINITY, value) : rounded;
}

/* Same number, same sign of zero, or both NaN. */
static bool same(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    return a == b && !signbit(a) == !signbit(b);
}

START_TEST(every_16_bit_pattern_widens_exactly_and_narrows_back)
{
    const struct format *format = &formats[_i];
    const int mantissa_bits = format->precision - 1;
    const uint32_t exponent_mask = (1u << (15 - mantissa_bits)) - 1;

    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        const uint32_t exponent = (bits >> mantissa_bits) & exponent_mask;
        const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
        const float widened = format->widen((uint16_t)bits);
        double want;

        if (exponent == exponent_mask)
            want = mantissa ? NAN : INFINITY;
        else if (exponent == 0)
            want = ldexp(mantissa, format->exponent_min - format->precision);
        else
            want = ldexp(mantissa + (1u << mantissa_bits),
                         (int)exponent - 1 + format->exponent_min - format->precision);
        want = bits & 0x8000 ? -want : want;
        ck_assert_msg(same(widened, want), "%s %04x: %a, not %a", format->name, bits,
                      (double)widened, want);
        if (isnan(want))
            ck_assert_msg(isnan(format->widen(format->narrow(widened))), "%s %04x: NaN lost",
                          format->name, bits);
        else
            ck_assert_msg(format->narrow(widened) == bits, "%s %04x: came back as %04x",
                          format->name, bits, format->narrow(widened));
    }
}
END_TEST

/* Every exponent of f32, with mantissas at, just below and just above each format's ties, and some
 * drawn ones. */
START_TEST(narrowing_rounds_to_nearest_even_for_every_exponent)
{
    const struct format *format = &formats[_i];
    static const uint32_t mantissas[] = { 0,        1,        0x0fff,   0x1000,   0x1001,
                                          0x2fff,   0x3000,   0x3001,   0x7fff,   0x8000,
                                          0x8001,   0x17fff,  0x18000,  0x18001,  0x400000,
                                          0x3fffff, 0x7fefff, 0x7ff000, 0x7f7fff, 0x7f8000,
                                          0x7fffff };
    struct fire_random random;

    fire_random_init(&random, 7);
    for (uint32_t exponent = 0; exponent < 256; exponent++) {
        for (uint32_t k = 0; k < 64; k++) {
            const size_t count = sizeof(mantissas) / sizeof(mantissas[0]);
            const uint32_t mantissa =
                k < count ? mantissas[k] : (uint32_t)(fire_random_u64(&random) >> 41);
            const uint32_t bits = exponent << 23 | mantissa | (k % 2 ? 0x80000000u : 0);
            float value;
            double got, want;

            memcpy(&value, &bits, sizeof(value));
            got = format->widen(format->narrow(value));
            want = round_by_definition(format, value);
            ck_assert_msg(same(got, want), "%s of %a: %a, not %a", format->name, (double)value, got,
                          want);
        }
    }
}
END_TEST

/* 1 + 2^-8 + 2^-40 is above a tie of bf16; rounding to f32 first would make it the tie. */
START_TEST(f64_is_rounded_once_not_twice)
{
    const struct format *format = &formats[_i];
    const double tie = 1.0 + ldexp(1.0, -format->precision);
    const double up = 1.0 + ldexp(1.0, 1 - format->precision);
    struct fire_random random;

    ck_assert_double_eq(fire_dtype_round(format->dtype, tie), 1.0);
    ck_assert_double_eq(fire_dtype_round(format->dtype, tie + 0x1p-40), up);
    ck_assert_double_eq(fire_dtype_round(format->dtype, -tie - 0x1p-40), -up);
    ck_assert_double_eq(fire_dtype_round(format->dtype, up + (tie - 1.0) - 0x1p-40), up);

    fire_random_init(&random, 8);
    for (int k = 0; k < 200000; k++) {
        const int exponent = (int)(fire_random_u64(&random) % 330) - 165;
        const double base =
            round_by_definition(format, ldexp(fire_random_normal(&random), exponent));
        const double value = base * (1.0 + ldexp(1.0, -format->precision)) *
                             (1.0 + ldexp(fire_random_normal(&random), -45));

        ck_assert_msg(
            same(fire_dtype_round(format->dtype, value), round_by_definition(format, value)),
            "%s of %a: %a, not %a", format->name, value, fire_dtype_round(format->dtype, value),
            round_by_definition(format, value));
    }
}
END_TEST

START_TEST(special_values_survive_rounding)
{
    for (int i = 0; i < FIRE_DTYPE_COUNT; i++) {
        const enum fire_dtype dtype = (enum fire_dtype)i;

        ck_assert(isnan(fire_dtype_round(dtype, NAN)));
        ck_assert(same(fire_dtype_round(dtype, INFINITY), INFINITY));
        ck_assert(same(fire_dtype_round(dtype, -INFINITY), -INFINITY));
        ck_assert(same(fire_dtype_round(dtype, -0.0), -0.0));
        ck_assert(same(fire_dtype_round(dtype, 1.5), 1.5));
        ck_assert(
            same(fire_dtype_round(dtype, -DBL_MAX), dtype == FIRE_F64 ? -DBL_MAX : -INFINITY));
        ck_assert(
            same(fire_dtype_round(dtype, -DBL_TRUE_MIN), dtype == FIRE_F64 ? -DBL_TRUE_MIN : -0.0));
    }
    ck_assert(same(fire_dtype_round(FIRE_F16, 65519.999), 65504.0));
    ck_assert(same(fire_dtype_round(FIRE_F16, 65520.0), INFINITY));
    ck_assert(same(fire_dtype_round(FIRE_F16, 0x1p-25), 0.0));
    ck_assert(same(fire_dtype_round(FIRE_F16, 0x1.000001p-25), 0x1p-24));
}
END_TEST

/* NUMERICS.md section 6 measured these two within 10 %. */
START_TEST(floors_are_those_that_were_measured)
{
    static const struct {
        enum fire_dtype dtype;
        uint64_t rows, cols;
        double floor;
    } cases[] = {
        { FIRE_BF16, 64, 64, 3.7e-4 },        { FIRE_BF16, 768, 768, 4.3e-3 },
        { FIRE_F16, 64, 64, 3.7e-4 / 64 },    { FIRE_BF16, 3072, 768, 4.3e-3 / 4 },
        { FIRE_BF16, 768, 3072, 4.3e-3 / 4 },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const double got = fire_dtype_dfi_floor(cases[i].dtype, cases[i].rows, cases[i].cols);

        ck_assert_msg(fabs(got / cases[i].floor - 1.0) < 0.1, "case %zu: %g, not %g", i, got,
                      cases[i].floor);
    }
}
END_TEST

START_TEST(names_sizes_and_roundoffs_belong_together)
{
    static const struct {
        const char *name;
        size_t bytes;
        double roundoff;
    } want[FIRE_DTYPE_COUNT] = {
        { "f64", 8, 0x1p-53 }, { "f32", 4, 0x1p-24 }, { "bf16", 2, 0x1p-9 }, { "f16", 2, 0x1p-12 }
    };

    for (int i = 0; i < FIRE_DTYPE_COUNT; i++) {
        ck_assert_str_eq(fire_dtype_name((enum fire_dtype)i), want[i].name);
        ck_assert_uint_eq(fire_dtype_bytes((enum fire_dtype)i), want[i].bytes);
        ck_assert_double_eq(fire_dtype_roundoff((enum fire_dtype)i), want[i].roundoff);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dtype");
    TCase *tests = tcase_create("dtype");
    const int format_count = sizeof(formats) / sizeof(formats[0]);
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, every_16_bit_pattern_widens_exactly_and_narrows_back, 0,
                        format_count);
    tcase_add_loop_test(tests, narrowing_rounds_to_nearest_even_for_every_exponent, 0,
                        format_count);
    tcase_add_loop_test(tests, f64_is_rounded_once_not_twice, 0, format_count);
    tcase_add_test(tests, special_values_survive_rounding);
    tcase_add_test(tests, floors_are_those_that_were_measured);
    tcase_add_test(tests, names_sizes_and_roundoffs_belong_together);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
