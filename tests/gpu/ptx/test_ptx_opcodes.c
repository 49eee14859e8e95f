/* Every opcode form the interpreter knows, on values whose answer is known by hand. A form without
 * a row here fails the last test. */
#include "ptx_bench.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ptx_internal.h"

#define MINUS(value) ((uint64_t)(int64_t) - (value))

/* Whole numbers and bits. */
static const struct {
    const char *form;
    uint64_t source[4];
    uint64_t want;
} rows[] = {
    { "add.s16", { 0xffff, 2 }, 1 },
    { "add.u16", { 0xfffe, 1 }, 0xffff },
    { "add.s32", { 0xffffffff, 2 }, 1 },
    { "add.u32", { 7, 8 }, 15 },
    { "add.s64", { MINUS(1), 2 }, 1 },
    { "add.u64", { UINT64_C(1) << 40, 1 }, (UINT64_C(1) << 40) + 1 },
    { "sub.s16", { 1, 2 }, 0xffff },
    { "sub.u16", { 5, 2 }, 3 },
    { "sub.s32", { 1, 2 }, 0xffffffff },
    { "sub.u32", { 5, 2 }, 3 },
    { "sub.s64", { 1, 2 }, MINUS(1) },
    { "sub.u64", { 5, 2 }, 3 },
    { "mul.lo.s16", { 0xffff, 3 }, 0xfffd },
    { "mul.lo.u16", { 300, 300 }, 90000 & 0xffff },
    { "mul.lo.s32", { 0xffffffff, 3 }, 0xfffffffd },
    { "mul.lo.u32", { 70000, 70000 }, 4900000000 & 0xffffffff },
    { "mul.lo.s64", { MINUS(3), 5 }, MINUS(15) },
    { "mul.lo.u64", { UINT64_C(1) << 33, 3 }, UINT64_C(3) << 33 },
    { "mul.hi.s32", { 0xffffffff, 2 }, 0xffffffff },
    { "mul.hi.u32", { 0xffffffff, 2 }, 1 },
    { "mul.hi.s64", { MINUS(1), 2 }, MINUS(1) },
    { "mul.hi.u64", { MINUS(1), 2 }, 1 },
    { "mul.wide.s16", { 0xffff, 5 }, 0xfffffffb },
    { "mul.wide.u16", { 0xffff, 5 }, 327675 },
    { "mul.wide.s32", { 0xffffffff, 5 }, MINUS(5) },
    { "mul.wide.u32", { 0xffffffff, 2 }, 0x1fffffffe },
    { "mad.lo.s16", { 3, 4, 0xffff }, 11 },
    { "mad.lo.u16", { 300, 300, 1 }, 90001 & 0xffff },
    { "mad.lo.s32", { 3, 4, 0xffffffff }, 11 },
    { "mad.lo.u32", { 3, 4, 5 }, 17 },
    { "mad.lo.s64", { 3, MINUS(4), 5 }, MINUS(7) },
    { "mad.lo.u64", { 3, 4, UINT64_C(1) << 40 }, (UINT64_C(1) << 40) + 12 },
    { "mad.wide.s32", { 0xffffffff, 4, 1 }, MINUS(3) },
    { "mad.wide.u32", { 0xffffffff, 2, 1 }, 0x1ffffffff },
    { "div.s32", { 0xfffffff9, 2 }, 0xfffffffd },
    { "div.s32", { 0x80000000, 0xffffffff }, 0x80000000 },
    { "div.s32", { 7, 0 }, 0xffffffff },
    { "div.u32", { 0xfffffff9, 2 }, 0x7ffffffc },
    { "div.u32", { 7, 0 }, 0xffffffff },
    { "div.s64", { MINUS(7), 2 }, MINUS(3) },
    { "div.u64", { 7, 2 }, 3 },
    { "rem.s32", { 0xfffffff9, 2 }, 0xffffffff },
    { "rem.s32", { 0x80000000, 0xffffffff }, 0 },
    { "rem.u32", { 7, 4 }, 3 },
    { "rem.s64", { MINUS(7), 4 }, MINUS(3) },
    { "rem.u64", { 7, 4 }, 3 },
    { "neg.s32", { 5 }, 0xfffffffb },
    { "neg.s64", { 5 }, MINUS(5) },
    { "abs.s32", { 0xfffffffb }, 5 },
    { "abs.s64", { MINUS(5) }, 5 },
    { "min.s16", { 0xffff, 1 }, 0xffff },
    { "min.u16", { 0xffff, 1 }, 1 },
    { "min.s32", { 0xffffffff, 1 }, 0xffffffff },
    { "min.u32", { 0xffffffff, 1 }, 1 },
    { "min.s64", { MINUS(1), 1 }, MINUS(1) },
    { "min.u64", { MINUS(1), 1 }, 1 },
    { "max.s16", { 0xffff, 1 }, 1 },
    { "max.u16", { 0xffff, 1 }, 0xffff },
    { "max.s32", { 0xffffffff, 1 }, 1 },
    { "max.u32", { 0xffffffff, 1 }, 0xffffffff },
    { "max.s64", { MINUS(1), 1 }, 1 },
    { "max.u64", { MINUS(1), 1 }, MINUS(1) },
    { "and.pred", { 1, 0 }, 0 },
    { "or.pred", { 1, 0 }, 1 },
    { "xor.pred", { 1, 1 }, 0 },
    { "not.pred", { 0 }, 1 },
    { "and.b16", { 0xff0f, 0x0fff }, 0x0f0f },
    { "or.b16", { 0xf000, 0x000f }, 0xf00f },
    { "xor.b16", { 0xffff, 0x00ff }, 0xff00 },
    { "not.b16", { 0x00ff }, 0xff00 },
    { "and.b32", { 0xff00ff00, 0x0ff00ff0 }, 0x0f000f00 },
    { "or.b32", { 0xf0000000, 1 }, 0xf0000001 },
    { "xor.b32", { 0xffffffff, 1 }, 0xfffffffe },
    { "not.b32", { 1 }, 0xfffffffe },
    { "and.b64", { MINUS(1), 0xff }, 0xff },
    { "or.b64", { UINT64_C(1) << 63, 1 }, (UINT64_C(1) << 63) | 1 },
    { "xor.b64", { MINUS(1), 1 }, MINUS(2) },
    { "not.b64", { 0 }, MINUS(1) },
    { "shl.b16", { 0xffff, 4 }, 0xfff0 },
    { "shl.b32", { 0xffffffff, 4 }, 0xfffffff0 },
    { "shl.b32", { 1, 32 }, 0 },
    { "shl.b64", { 1, 40 }, UINT64_C(1) << 40 },
    { "shl.b64", { 1, 64 }, 0 },
    { "shr.b16", { 0x8000, 15 }, 1 },
    { "shr.u16", { 0x8000, 15 }, 1 },
    { "shr.s16", { 0x8000, 15 }, 0xffff },
    { "shr.b32", { 0x80000000, 31 }, 1 },
    { "shr.u32", { 0x80000000, 32 }, 0 },
    { "shr.s32", { 0x80000000, 40 }, 0xffffffff },
    { "shr.b64", { UINT64_C(1) << 63, 63 }, 1 },
    { "shr.u64", { UINT64_C(1) << 63, 63 }, 1 },
    { "shr.s64", { UINT64_C(1) << 63, 99 }, MINUS(1) },
    { "shf.l.wrap.b32", { 0x80000000, 1, 1 }, 3 },
    { "shf.r.wrap.b32", { 0x80000000, 1, 33 }, 0xc0000000 },
    { "shf.l.clamp.b32", { 5, 1, 32 }, 5 },
    { "shf.r.clamp.b32", { 5, 9, 40 }, 9 },
    { "bfe.u32", { 0xabcd1234, 8, 12 }, 0xd12 },
    { "bfe.u64", { UINT64_C(0xab) << 40, 40, 8 }, 0xab },
    { "bfe.s32", { 0x00000800, 8, 4 }, 0xfffffff8 },
    { "bfi.b32", { 5, 0xffffffff, 4, 4 }, 0xffffff5f },
    { "bfi.b64", { 5, 0, 40, 8 }, UINT64_C(5) << 40 },
    { "popc.b32", { 0xff }, 8 },
    { "popc.b64", { MINUS(1) }, 64 },
    { "clz.b32", { 1 }, 31 },
    { "clz.b32", { 0 }, 32 },
    { "clz.b64", { 0 }, 64 },
    { "brev.b32", { 3 }, 0xc0000000 },
    { "prmt.b32", { 0x33221100, 0x77665544, 0x5140 }, 0x55114400 },
    { "prmt.b32", { 0x80, 0, 0x0008 }, 0x808080ff },
    { "lop3.b32", { 0xf0, 0xcc, 0xaa, 0x96 }, 0xf0 ^ 0xcc ^ 0xaa },
    { "selp.b16", { 3, 4, 1 }, 3 },
    { "selp.u16", { 3, 4, 0 }, 4 },
    { "selp.s16", { 3, 4, 0 }, 4 },
    { "selp.b32", { 3, 4, 1 }, 3 },
    { "selp.u32", { 3, 4, 0 }, 4 },
    { "selp.s32", { 3, 4, 1 }, 3 },
    { "selp.f32", { 3, 4, 0 }, 4 },
    { "selp.b64", { 3, 4, 1 }, 3 },
    { "selp.u64", { 3, 4, 0 }, 4 },
    { "selp.s64", { 3, 4, 1 }, 3 },
    { "selp.f64", { 3, 4, 0 }, 4 },
    { "mov.pred", { 1 }, 1 },
    { "mov.b16", { 0x12345 }, 0x2345 },
    { "mov.u16", { 7 }, 7 },
    { "mov.s16", { 7 }, 7 },
    { "mov.b32", { 0x123456789 }, 0x23456789 },
    { "mov.u32", { 7 }, 7 },
    { "mov.s32", { 7 }, 7 },
    { "mov.f32", { 7 }, 7 },
    { "mov.b64", { MINUS(7) }, MINUS(7) },
    { "mov.u64", { 7 }, 7 },
    { "mov.s64", { 7 }, 7 },
    { "mov.f64", { 7 }, 7 },
    { "cvta.to.global.u64", { 77 }, 77 },
    { "cvta.global.u64", { 77 }, 77 },
    { "cvta.to.const.u64", { 77 }, 77 },
    { "cvta.const.u64", { 77 }, 77 },
    { "cvta.shared.u64", { 16 }, PTX_SHARED_WINDOW | 16 },
    { "cvta.to.shared.u64", { PTX_SHARED_WINDOW | 16 }, 16 },
    { "cvta.local.u64", { 16 }, PTX_LOCAL_WINDOW | 16 },
    { "cvta.to.local.u64", { PTX_LOCAL_WINDOW | 16 }, 16 },
    { "cvt.u64.u32", { 0xffffffff }, 0xffffffff },
    { "cvt.s64.s32", { 0xffffffff }, MINUS(1) },
    { "cvt.u32.u64", { 0x1ffffffff }, 0xffffffff },
    { "cvt.u16.u32", { 0x12345 }, 0x2345 },
    { "cvt.s32.s8", { 0x80 }, MINUS(128) },
    { "cvt.rn.f32.u64", { MINUS(1) }, 0x5f800000 },
    { "cvt.f32.f16", { 0x3e00 }, 0x3fc00000 },
    { "cvt.rn.f16.f32", { 0x477ff000 }, 0x7c00 },
    { "cvt.rn.f16.f32", { 0x3fc00000 }, 0x3e00 },
    { "cvt.rn.bf16.f32", { 0x3fc00000 }, 0x3fc0 },
    { "cvt.f32.bf16", { 0x3fc0 }, 0x3fc00000 },
    { "cvt.rn.f16.s32", { 3 }, 0x4200 },
    { "setp.eq.s32", { 0x1ffffffff, 0xffffffff }, 1 },
    { "setp.ne.s32", { 1, 2 }, 1 },
    { "setp.lt.s32", { 0xffffffff, 0 }, 1 },
    { "setp.lt.u32", { 0xffffffff, 0 }, 0 },
    { "setp.le.u32", { 3, 3 }, 1 },
    { "setp.gt.s64", { 0, MINUS(1) }, 1 },
    { "setp.ge.u64", { 0, MINUS(1) }, 0 },
    { "setp.eq.b16", { 0x10001, 1 }, 1 },
    { "setp.lo.s32", { 0, 0xffffffff }, 1 },
    { "setp.ls.u32", { 2, 2 }, 1 },
    { "setp.hi.u32", { 2, 2 }, 0 },
    { "setp.hs.u32", { 2, 2 }, 1 },
    { "setp.lt.and.s32", { 1, 2, 0 }, 0 },
    { "setp.lt.or.s32", { 2, 1, 1 }, 1 },
    { "setp.lt.xor.s32", { 1, 2, 1 }, 0 },
};
#define ROWS ((int)(sizeof(rows) / sizeof(rows[0])))

/* Numbers: the opcode says in which types they go in and come out. */
static const struct {
    const char *form;
    double source[3];
    double want;
} number_rows[] = {
    { "add.rn.f32", { 1.5, 2.25 }, 3.75 },
    { "sub.rn.f32", { 1.5, 2.25 }, -0.75 },
    { "mul.rn.f32", { 1.5, -2.0 }, -3.0 },
    { "div.rn.f32", { 1.0, 3.0 }, 1.0 / 3.0 },
    { "div.full.f32", { 6.0, 3.0 }, 2.0 },
    { "div.approx.f32", { 6.0, 3.0 }, 2.0 },
    /* 1 + 2^-12 squared has a last bit that only one rounding keeps. */
    { "fma.rn.f32", { 1.000244140625, 1.000244140625, -1.00048828125 }, 0x1p-24 },
    { "neg.f32", { 2.0 }, -2.0 },
    { "abs.f32", { -2.0 }, 2.0 },
    { "min.f32", { -0.0, 0.0 }, -0.0 },
    { "min.f32", { NAN, 3.0 }, 3.0 },
    { "max.f32", { -0.0, 0.0 }, 0.0 },
    { "max.f32", { 3.0, NAN }, 3.0 },
    { "min.NaN.f32", { 1.0, 3.0 }, 1.0 },
    { "max.NaN.f32", { 1.0, 3.0 }, 3.0 },
    { "sqrt.rn.f32", { 2.25 }, 1.5 },
    { "sqrt.approx.f32", { 2.25 }, 1.5 },
    { "rcp.rn.f32", { 3.0 }, 1.0 / 3.0 },
    { "rcp.approx.f32", { 4.0 }, 0.25 },
    { "rsqrt.approx.f32", { 4.0 }, 0.5 },
    { "ex2.approx.f32", { 3.0 }, 8.0 },
    { "lg2.approx.f32", { 8.0 }, 3.0 },
    { "copysign.f32", { -1.0, 3.0 }, -3.0 },
    { "add.rn.f64", { 1.5, 2.25 }, 3.75 },
    { "sub.rn.f64", { 1.5, 2.25 }, -0.75 },
    { "mul.rn.f64", { 1.5, -2.0 }, -3.0 },
    { "div.rn.f64", { 1.0, 3.0 }, 1.0 / 3.0 },
    { "fma.rn.f64", { 1.0 + 0x1p-27, 1.0 + 0x1p-27, -1.0 - 0x1p-26 }, 0x1p-54 },
    { "neg.f64", { 2.0 }, -2.0 },
    { "abs.f64", { -2.0 }, 2.0 },
    { "min.f64", { NAN, 3.0 }, 3.0 },
    { "max.f64", { -0.0, 0.0 }, 0.0 },
    { "sqrt.rn.f64", { 2.25 }, 1.5 },
    { "rcp.rn.f64", { 4.0 }, 0.25 },
    { "rsqrt.approx.f64", { 4.0 }, 0.5 },
    { "copysign.f64", { -1.0, 3.0 }, -3.0 },
    { "cvt.rn.f32.s32", { -3.0 }, -3.0 },
    { "cvt.rn.f32.s64", { 16777217 }, 16777216.0 },
    { "cvt.rn.f64.u32", { 4294967295.0 }, 4294967295.0 },
    { "cvt.rn.f64.s32", { -1.0 }, -1.0 },
    { "cvt.rn.f64.u64", { 3 }, 3.0 },
    { "cvt.rzi.s32.f32", { -2.9 }, -2.0 },
    { "cvt.rzi.u32.f64", { 4294967295.9 }, 4294967295.0 },
    { "cvt.rzi.u32.f64", { -3.0 }, 0 },
    { "cvt.rzi.s32.f64", { 1e20 }, 2147483647.0 },
    { "cvt.rzi.s32.f64", { -1e20 }, -2147483648.0 },
    { "cvt.rzi.s32.f64", { NAN }, 0 },
    { "cvt.rni.s32.f32", { 2.5 }, 2 },
    { "cvt.rmi.s32.f32", { -2.5 }, -3.0 },
    { "cvt.rpi.s32.f32", { 2.5 }, 3 },
    { "cvt.rzi.s64.f64", { -3.7 }, -3.0 },
    { "cvt.rni.f32.f32", { 2.5 }, 2.0 },
    { "cvt.rzi.f64.f64", { -2.7 }, -2.0 },
    { "cvt.f64.f32", { 1.5 }, 1.5 },
    { "cvt.rn.f32.f64", { 1.0 + 0x1p-24 + 0x1p-40 }, 1.0 + 0x1p-23 },
    { "cvt.sat.f32.f32", { 1.5 }, 1.0 },
    { "cvt.sat.f32.f32", { NAN }, 0.0 },
    { "setp.lt.f32", { NAN, 1.0 }, 0 },
    { "setp.ltu.f32", { NAN, 1.0 }, 1 },
    { "setp.neu.f64", { NAN, NAN }, 1 },
    { "setp.equ.f64", { 1.0, 2.0 }, 0 },
    { "setp.leu.f64", { 1.0, 1.0 }, 1 },
    { "setp.gtu.f64", { 2.0, 1.0 }, 1 },
    { "setp.geu.f64", { 0.0, 1.0 }, 0 },
    { "setp.num.f32", { 1.0, NAN }, 0 },
    { "setp.nan.f32", { 1.0, NAN }, 1 },
};
#define NUMBER_ROWS ((int)(sizeof(number_rows) / sizeof(number_rows[0])))

/* One form on operands loaded from memory: the result comes back in word 8. */
static void run_form(const char *name, const uint64_t *source, uint64_t want)
{
    struct bench bench = { 0 };
    struct ptx_form form;
    struct ptx_instruction instruction = { 0 };
    char body[1000];
    int used;

    ck_assert_msg(ptx_form_find(name, &form, &instruction), "%s", name);
    used = snprintf(body, sizeof(body),
                    "ld.global.u64 %%r1, [%%base]; ld.global.u64 %%r2, [%%base+8];\n"
                    "ld.global.u64 %%r3, [%%base+16]; ld.global.u64 %%r4, [%%base+24];\n"
                    "%s %%r0",
                    name);
    for (int k = 1; k <= form.source_count; k++)
        used += snprintf(body + used, sizeof(body) - (size_t)used, ", %%r%d", k);
    snprintf(body + used, sizeof(body) - (size_t)used, ";\nst.global.u64 [%%base+64], %%r0; ret;");
    memcpy(bench.words, source, 4 * sizeof(source[0]));
    ck_assert_msg(bench_run(&bench, body) == PTX_OK, "%s", bench.report.text);
    ck_assert_msg(bench.words[8] == want, "%s: 0x%llx, not 0x%llx", name,
                  (unsigned long long)bench.words[8], (unsigned long long)want);
}

START_TEST(a_form_gives_the_value_known_by_hand)
{
    run_form(rows[_i].form, rows[_i].source, rows[_i].want);
}
END_TEST

static uint64_t encode(double value, enum ptx_type type)
{
    if (type == PTX_F32)
        return ptx_bits_float((float)value);
    if (type == PTX_F64)
        return ptx_bits_double(value);
    return type == PTX_U32 || type == PTX_S32 ? (uint32_t)(int64_t)value : (uint64_t)(int64_t)value;
}

/* The last two words of an opcode: a conversion's types, from and to; a comparison gives 0 or 1. */
static void types_of(const char *form, enum ptx_type *to, enum ptx_type *from)
{
    char word[16];
    enum ptx_type before = PTX_TYPE_COUNT;

    *from = PTX_TYPE_COUNT;
    for (const char *rest = form; rest;) {
        rest = ptx_next_word(rest, word, sizeof(word));
        before = *from;
        *from = ptx_type_of(word);
    }
    *to = strncmp(form, "setp", 4) == 0 ? PTX_U64 : before < PTX_PRED ? before : *from;
}

START_TEST(a_form_gives_the_number_known_by_hand)
{
    uint64_t source[4] = { 0 };
    enum ptx_type to, from;

    types_of(number_rows[_i].form, &to, &from);
    for (int k = 0; k < 3; k++)
        source[k] = encode(number_rows[_i].source[k], from);
    run_form(number_rows[_i].form, source, encode(number_rows[_i].want, to));
}
END_TEST

static void expect(struct bench *bench, const char *body, uint32_t word, uint64_t want)
{
    ck_assert_msg(bench_run(bench, body) == PTX_OK, "%s\n%s", body, bench->report.text);
    ck_assert_msg(bench->words[word] == want, "%s\nword %u is 0x%llx, not 0x%llx", body, word,
                  (unsigned long long)bench->words[word], (unsigned long long)want);
}

START_TEST(a_nan_wins_where_the_form_says_so)
{
    struct bench bench = { .words = { 0x7fc00000, 0x40400000 } };

    ck_assert(bench_run(&bench,
                        "ld.global.f32 %r1, [%base]; ld.global.f32 %r2, [%base+8];\n"
                        "min.NaN.f32 %r3, %r1, %r2; max.NaN.f32 %r4, %r2, %r1;\n"
                        "st.global.f32 [%base+16], %r3; st.global.f32 [%base+24], %r4;") == PTX_OK);
    ck_assert(isnan(ptx_float(bench.words[2])) && isnan(ptx_float(bench.words[3])));
}
END_TEST

/* Packing, unpacking, sinks, immediates of every spelling, scopes with registers of their own. */
START_TEST(moves_take_vectors_and_numbers_take_every_spelling)
{
    struct bench bench = { .words = { 0x1111222233334444 } };

    expect(&bench,
           "ld.global.b64 %r1, [%base]; mov.b64 {%r2, %r3}, %r1;\n"
           "mov.b64 %r4, {%r3, %r2}; st.global.b64 [%base+8], %r4;",
           1, 0x3333444411112222);
    expect(&bench, "mov.b32 %r1, {0, 0x3fc0}; st.global.u64 [%base+8], %r1;", 1, 0x3fc00000);
    expect(&bench,
           "mov.b64 {_, %r1}, 0x500000000; mov.b32 {%r2, _}, 0x60007;\n"
           "add.s32 %r1, %r1, %r2; st.global.u64 [%base+8], %r1;",
           1, 12);
    expect(&bench, "mov.b64 %r1, {1, 2, 3, 4}; st.global.u64 [%base+8], %r1;", 1,
           0x0004000300020001);
    expect(&bench, "mov.f32 %r1, 0f3F800000; st.global.u64 [%base+8], %r1;", 1, 0x3f800000);
    expect(&bench, "mov.f64 %r1, 0d3FF0000000000000; st.global.u64 [%base+8], %r1;", 1,
           ptx_bits_double(1.0));
    expect(&bench, "mov.f64 %r1, 1.5; st.global.u64 [%base+8], %r1;", 1, ptx_bits_double(1.5));
    expect(&bench, "mov.u32 %r1, -1; st.global.u64 [%base+8], %r1;", 1, 0xffffffff);
    expect(&bench, "mov.u32 %r1, 12U; st.global.u64 [%base+8], %r1;", 1, 12);
    expect(&bench, "mov.u32 %r1, WARP_SZ; st.global.u64 [%base+8], %r1;", 1, 32);
    expect(&bench,
           "mov.u32 %r1, 5;\n{ .reg .b32 %r1, t; mov.u32 %r1, 6; mov.u32 t, %r1; }\n"
           "st.global.u64 [%base+8], %r1;",
           1, 5);
}
END_TEST

START_TEST(guards_branches_and_both_results_of_a_comparison)
{
    struct bench bench = { 0 };

    expect(&bench,
           "mov.u32 %r1, 0; mov.u32 %r2, 0;\n"
           "$L1: add.u32 %r2, %r2, %r1; add.u32 %r1, %r1, 1;\n"
           "setp.lt.u32 %p1, %r1, 10; @%p1 bra $L1;\n"
           "@!%p1 add.u32 %r2, %r2, 100; @%p1 add.u32 %r2, %r2, 1000;\n"
           "bra.uni $L2; mov.u32 %r2, 7;\n$L2: st.global.u64 [%base+8], %r2; exit;",
           1, 145);
    expect(&bench,
           "setp.lt.u32 %p1|%p2, 1, 2; setp.gt.and.u32 %p3|%p4, 1, 2, !%p2;\n"
           "selp.u32 %r1, 1, 0, %p1; selp.u32 %r2, 2, 0, %p2; selp.u32 %r3, 4, 0, %p3;\n"
           "selp.u32 %r4, 8, 0, %p4; or.b32 %r1, %r1, %r2; or.b32 %r3, %r3, %r4;\n"
           "or.b32 %r1, %r1, %r3; st.global.u64 [%base+8], %r1;",
           1, 9);
    expect(&bench,
           "membar.cta; membar.gl; membar.sys; fence.acq_rel.cta; fence.acq_rel.gpu;\n"
           "fence.acq_rel.sys; fence.sc.gpu; st.global.u64 [%base+8], 3; ret;",
           1, 3);
    ck_assert(bench_run(&bench, "trap;") == PTX_TRAP);
}
END_TEST

START_TEST(special_registers_say_where_a_thread_is)
{
    static const struct {
        const char *name;
        uint64_t want; /* in thread 37 of 40, block 2 of 3 */
    } specials[] = {
        { "%tid.x", 37 },
        { "%tid.y", 0 },
        { "%tid.z", 0 },
        { "%ntid.x", 40 },
        { "%ntid.y", 1 },
        { "%ntid.z", 1 },
        { "%ctaid.x", 2 },
        { "%ctaid.y", 0 },
        { "%ctaid.z", 0 },
        { "%nctaid.x", 3 },
        { "%nctaid.y", 1 },
        { "%nctaid.z", 1 },
        { "%laneid", 5 },
        { "%warpid", 1 },
        { "%lanemask_eq", 32 },
        { "%lanemask_lt", 31 },
        { "%lanemask_le", 63 },
        { "%lanemask_gt", 0xffffffc0 },
        { "%lanemask_ge", 0xffffffe0 },
    };

    for (size_t k = 0; k < sizeof(specials) / sizeof(specials[0]); k++) {
        struct bench bench = { .threads = 40, .blocks = 3 };
        char body[300];

        snprintf(body, sizeof(body),
                 "setp.ne.u32 %%p1, %%tid.x, 37; @%%p1 ret; setp.ne.u32 %%p1, %%ctaid.x, 2;\n"
                 "@%%p1 ret; mov.u32 %%r1, %s; st.global.u64 [%%base+8], %%r1;",
                 specials[k].name);
        expect(&bench, body, 1, specials[k].want);
    }
}
END_TEST

START_TEST(memory_of_every_kind_and_width)
{
    struct bench bench = { .words = { 0xfedcba9876543210 },
                           .shared_bytes = 64,
                           .before = ".extern .shared .align 16 .b8 dyn[];\n"
                                     ".const .align 4 .f32 table[2] = {0f3F800000, 0f40000000};\n"
                                     ".global .align 8 .u64 one = 77;\n"
                                     ".global .align 4 .b8 raw[4] = {1, 2, {3, -1}};" };

    expect(&bench, "ld.global.u8 %r1, [%base+7]; st.global.u64 [%base+8], %r1;", 1, 0xfe);
    expect(&bench, "ld.global.s8 %r1, [%base+7]; st.global.u32 [%base+8], %r1;", 1, 0xfffffffe);
    bench.words[1] = 0;
    expect(&bench, "ld.global.s16 %r1, [%base+6]; st.global.s64 [%base+8], %r1;", 1, MINUS(0x124));
    expect(&bench, "ld.volatile.global.u16 %r1, [%base]; st.global.u64 [%base+8], %r1;", 1, 0x3210);
    expect(&bench,
           "ld.global.nc.v2.u32 {%r1, %r2}, [%base]; st.global.v2.u32 [%base+8], {%r2, %r1};", 1,
           0x76543210fedcba98);
    expect(&bench, "ld.u64 %r1, [%base]; st.u64 [%base+8], %r1;", 1, 0xfedcba9876543210);
    expect(&bench,
           "mov.u32 %r1, dyn; st.shared.u32 [%r1+4], 9; ld.shared.u32 %r2, [dyn+4];\n"
           "st.global.u64 [%base+8], %r2;",
           1, 9);
    expect(&bench,
           "mov.u64 %r1, dyn; cvta.shared.u64 %r2, %r1; st.u64 [%r2+8], 11;\n"
           "ld.shared.u64 %r3, [%r1+8]; st.global.u64 [%base+8], %r3;",
           1, 11);
    expect(&bench, "ld.const.f32 %r1, [table+4]; st.global.u64 [%base+8], %r1;", 1, 0x40000000);
    expect(&bench,
           "mov.u64 %r1, one; cvta.global.u64 %r2, %r1; ld.global.u64 %r3, [%r2];\n"
           "ld.global.u32 %r4, [raw]; add.u64 %r3, %r3, %r4; st.global.u64 [%base+8], %r3;",
           1, 77 + 0xff030201);
    expect(&bench,
           ".local .align 8 .b8 depot[16]; .reg .b64 %SP, %SPL;\n"
           "mov.u64 %SPL, depot; cvta.local.u64 %SP, %SPL; st.u32 [%SP+8], 5;\n"
           "ld.local.u32 %r1, [%SPL+8]; st.global.u64 [%base+8], %r1;",
           1, 5);
    expect(&bench,
           "add.u64 %r1, %base, 16; ld.global.u64 %r2, [%r1+-16]; st.global.u64 [%r1-8], %r2;", 1,
           0xfedcba9876543210);
}
END_TEST

START_TEST(atomic_operations_return_the_old_value)
{
    static const struct {
        const char *text;
        uint64_t old, want;
    } atomics[] = {
        { "atom.global.add.u32 %r1, [%base], 5;", 7, 12 },
        { "atom.global.add.u64 %r1, [%base], 5;", 7, 12 },
        { "atom.global.add.f32 %r1, [%base], 0f3F800000;", 0x40000000, 0x40400000 },
        { "atom.add.f64 %r1, [%base], 0d3FF0000000000000;", 0, 0x3ff0000000000000 },
        { "atom.global.min.s32 %r1, [%base], -1;", 7, 0xffffffff },
        { "atom.global.min.u32 %r1, [%base], 0xffffffff;", 7, 7 },
        { "atom.global.max.s32 %r1, [%base], -1;", 7, 7 },
        { "atom.global.max.u64 %r1, [%base], 9;", 7, 9 },
        { "atom.global.max.s64 %r1, [%base], -9;", 7, 7 },
        { "atom.global.exch.b32 %r1, [%base], 9;", 7, 9 },
        { "atom.relaxed.gpu.global.cas.b32 %r1, [%base], 7, 8;", 7, 8 },
        { "atom.global.cas.b64 %r1, [%base], 6, 8;", 7, 7 },
        { "atom.global.and.b32 %r1, [%base], 6;", 7, 6 },
        { "atom.global.or.b32 %r1, [%base], 8;", 7, 15 },
        { "atom.global.xor.b32 %r1, [%base], 2;", 7, 5 },
        { "mov.u64 %r1, 7; red.global.add.u32 [%base], 2;", 7, 9 },
    };

    for (size_t k = 0; k < sizeof(atomics) / sizeof(atomics[0]); k++) {
        struct bench bench = { .words = { atomics[k].old } };
        char body[200];

        snprintf(body, sizeof(body), "%s st.global.u64 [%%base+8], %%r1;", atomics[k].text);
        expect(&bench, body, 0, atomics[k].want);
        ck_assert_msg(bench.words[1] == atomics[k].old, "%s", atomics[k].text);
    }
}
END_TEST

/* Lane k brings 100 + k; the value it gets, and whether the lane it asked for is in its segment. */
static const struct {
    const char *text;
    uint64_t want[3]; /* in lanes 0, 9 and 31 */
} shuffles[] = {
    { "shfl.sync.bfly.b32 %r2|%p1, %r1, 1, 31, -1;", { 1101, 1108, 1130 } },
    { "shfl.sync.down.b32 %r2|%p1, %r1, 4, 31, -1;", { 1104, 1113, 131 } },
    { "shfl.sync.up.b32 %r2|%p1, %r1, 4, 0, -1;", { 100, 1105, 1127 } },
    { "shfl.sync.idx.b32 %r2|%p1, %r1, 3, 31, -1;", { 1103, 1103, 1103 } },
    { "shfl.sync.idx.b32 %r2|%p1, %r1, 3, 6175, -1;", { 1103, 1111, 1127 } }, /* segments of 8 */
    { "shfl.sync.down.b32 %r2|%p1, %r1, 7, 6175, -1;", { 1107, 109, 131 } },
    { "mov.pred %p1, 1; shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1;", { 1116, 1125, 1115 } },
};

START_TEST(shuffles_bring_the_value_of_another_lane)
{
    struct bench bench = { .threads = 32 };
    char body[400];
    static const int lanes[] = { 0, 9, 31 };

    snprintf(body, sizeof(body),
             "add.u32 %%r1, %%tid.x, 100; %s\n"
             "@%%p1 add.u32 %%r2, %%r2, 1000; mul.wide.u32 %%r3, %%tid.x, 8;\n"
             "add.u64 %%r3, %%r3, %%base; st.global.u64 [%%r3], %%r2;",
             shuffles[_i].text);
    ck_assert_msg(bench_run(&bench, body) == PTX_OK, "%s", bench.report.text);
    for (int k = 0; k < 3; k++)
        ck_assert_msg(bench.words[lanes[k]] == shuffles[_i].want[k], "%s: lane %d got %llu",
                      shuffles[_i].text, lanes[k], (unsigned long long)bench.words[lanes[k]]);
}
END_TEST

static const struct {
    const char *text;
    uint64_t want;
} votes[] = {
    { "vote.sync.any.pred %p2, %p1, -1; selp.u32 %r1, 1, 0, %p2;", 1 },
    { "vote.sync.all.pred %p2, %p1, -1; selp.u32 %r1, 1, 0, %p2;", 0 },
    { "vote.sync.uni.pred %p2, %p1, -1; selp.u32 %r1, 1, 0, %p2;", 0 },
    { "vote.sync.ballot.b32 %r1, %p1, -1;", 0x1f },
    { "vote.sync.ballot.b32 %r1, !%p1, -1;", 0xffffffe0 },
    { "bar.warp.sync -1; mov.u32 %r1, 4;", 4 },
    { "bar.sync 0; mov.u32 %r1, 4;", 4 },
    { "barrier.sync 0; mov.u32 %r1, 4;", 4 },
    { "barrier.sync.aligned 0; mov.u32 %r1, 4;", 4 },
    { "barrier.cta.sync.aligned 0; mov.u32 %r1, 4;", 4 },
};

START_TEST(votes_and_barriers_bring_threads_together)
{
    struct bench bench = { .threads = 32 };
    char body[300];

    snprintf(body, sizeof(body),
             "setp.lt.u32 %%p1, %%tid.x, 5; %s\n"
             "setp.ne.u32 %%p3, %%tid.x, 17; @%%p3 ret; st.global.u64 [%%base+8], %%r1;",
             votes[_i].text);
    expect(&bench, body, 1, votes[_i].want);
}
END_TEST

/* What cannot be a row: its operands are not values. */
static bool tested_elsewhere(const char *name)
{
    static const char *const names[] = { "bra", "bra.uni", "ret", "exit", "trap" };

    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
        if (strcmp(name, names[k]) == 0)
            return true;
    return strncmp(name, "membar", 6) == 0 || strncmp(name, "fence", 5) == 0;
}

START_TEST(no_form_is_left_out)
{
    const struct ptx_form *form;

    for (size_t k = 0; (form = ptx_alu_at(k)) != NULL; k++) {
        bool found = tested_elsewhere(form->name);

        for (int r = 0; r < ROWS && !found; r++)
            found = strcmp(rows[r].form, form->name) == 0;
        for (int r = 0; r < NUMBER_ROWS && !found; r++)
            found = strcmp(number_rows[r].form, form->name) == 0;
        ck_assert_msg(found, "%s has no row", form->name);
    }
    for (size_t k = 0; (form = ptx_warp_at(k)) != NULL; k++) {
        bool found = false;

        for (size_t s = 0; s < sizeof(shuffles) / sizeof(shuffles[0]); s++)
            found |= strstr(shuffles[s].text, form->name) != NULL;
        for (size_t v = 0; v < sizeof(votes) / sizeof(votes[0]); v++)
            found |= strstr(votes[v].text, form->name) != NULL;
        ck_assert_msg(found, "%s has no row", form->name);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ptx opcodes");
    TCase *tests = tcase_create("ptx opcodes");
    SRunner *runner;
    int failed;

    tcase_add_loop_test(tests, a_form_gives_the_value_known_by_hand, 0, ROWS);
    tcase_add_loop_test(tests, a_form_gives_the_number_known_by_hand, 0, NUMBER_ROWS);
    tcase_add_test(tests, a_nan_wins_where_the_form_says_so);
    tcase_add_test(tests, moves_take_vectors_and_numbers_take_every_spelling);
    tcase_add_test(tests, guards_branches_and_both_results_of_a_comparison);
    tcase_add_test(tests, special_registers_say_where_a_thread_is);
    tcase_add_test(tests, memory_of_every_kind_and_width);
    tcase_add_test(tests, atomic_operations_return_the_old_value);
    tcase_add_loop_test(tests, shuffles_bring_the_value_of_another_lane, 0,
                        (int)(sizeof(shuffles) / sizeof(shuffles[0])));
    tcase_add_loop_test(tests, votes_and_barriers_bring_threads_together, 0,
                        (int)(sizeof(votes) / sizeof(votes[0])));
    tcase_add_test(tests, no_form_is_left_out);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
