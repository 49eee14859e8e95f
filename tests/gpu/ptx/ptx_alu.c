/* ptx_alu: arithmetic, logic and selection: one small function for each form of an opcode, and the
 * table that names them.
 *
 * Rounding is part of the name. The forms of add, sub and mul without ".rn" are left out on
 * purpose: ptxas may fuse them, so what they compute is not said by the text. The plugin is built
 * with -fmad=false, which writes ".rn" everywhere. Approximate functions (rsqrt.approx and the
 * like) are computed exactly and rounded once; a GPU may be off by two units in the last place. */
#include <math.h>

#include "ptx_internal.h"

#define A (thread->frame[instruction->source[0]])
#define B (thread->frame[instruction->source[1]])
#define C (thread->frame[instruction->source[2]])
#define D (thread->frame[instruction->source[3]])

/* One handler: `expression` of A…D, kept in as many bits as `type` has. */
#define HANDLER(name, type, expression)                                                            \
    static enum ptx_step name(struct ptx_machine *machine, struct ptx_thread *thread,              \
                              const struct ptx_instruction *instruction)                           \
    {                                                                                              \
        (void)machine;                                                                             \
        thread->frame[instruction->result[0]] = (type)(expression);                                \
        return PTX_NEXT;                                                                           \
    }
#define FLOATS(name, expression)  HANDLER(name, uint64_t, ptx_bits_float(expression))
#define DOUBLES(name, expression) HANDLER(name, uint64_t, ptx_bits_double(expression))

#define FA ptx_float(A)
#define FB ptx_float(B)
#define FC ptx_float(C)
#define DA ptx_double(A)
#define DB ptx_double(B)
#define DC ptx_double(C)

/* Integers wrap; signs do not matter to sums and low products. */
HANDLER(add_16, uint16_t, A + B)
HANDLER(add_32, uint32_t, A + B)
HANDLER(add_64, uint64_t, A + B)
HANDLER(sub_16, uint16_t, A - B)
HANDLER(sub_32, uint32_t, A - B)
HANDLER(sub_64, uint64_t, A - B)
HANDLER(mul_lo_16, uint16_t, A *B)
HANDLER(mul_lo_32, uint32_t, A *B)
HANDLER(mul_lo_64, uint64_t, A *B)
HANDLER(mul_hi_s32, uint32_t, ((int64_t)(int32_t)A * (int32_t)B) >> 32)
HANDLER(mul_hi_u32, uint32_t, ((uint64_t)(uint32_t)A * (uint32_t)B) >> 32)
HANDLER(mul_hi_s64, uint64_t, ((__int128)(int64_t)A * (int64_t)B) >> 64)
HANDLER(mul_hi_u64, uint64_t, ((unsigned __int128)A * B) >> 64)
HANDLER(mul_wide_s16, uint32_t, (int32_t)(int16_t)A *(int16_t)B)
HANDLER(mul_wide_u16, uint32_t, (uint32_t)(uint16_t)A *(uint16_t)B)
HANDLER(mul_wide_s32, uint64_t, (int64_t)(int32_t)A *(int32_t)B)
HANDLER(mul_wide_u32, uint64_t, (uint64_t)(uint32_t)A *(uint32_t)B)
HANDLER(mad_lo_16, uint16_t, A *B + C)
HANDLER(mad_lo_32, uint32_t, A *B + C)
HANDLER(mad_lo_64, uint64_t, A *B + C)
HANDLER(mad_wide_s32, uint64_t, (uint64_t)((int64_t)(int32_t)A *(int32_t)B) + C)
HANDLER(mad_wide_u32, uint64_t, (uint64_t)(uint32_t)A *(uint32_t)B + C)

/* A GPU divides by zero to all ones; the one overflow wraps. */
static uint64_t divide_signed(int64_t a, int64_t b)
{
    if (b == 0)
        return UINT64_MAX;
    return b == -1 ? 0u - (uint64_t)a : (uint64_t)(a / b);
}

static uint64_t remain_signed(int64_t a, int64_t b)
{
    if (b == 0)
        return (uint64_t)a;
    return b == -1 ? 0u : (uint64_t)(a % b);
}

HANDLER(div_s32, uint32_t, divide_signed((int32_t)A, (int32_t)B))
HANDLER(div_u32, uint32_t, (uint32_t)B == 0 ? UINT32_MAX : (uint32_t)A / (uint32_t)B)
HANDLER(div_s64, uint64_t, divide_signed((int64_t)A, (int64_t)B))
HANDLER(div_u64, uint64_t, B == 0 ? UINT64_MAX : A / B)
HANDLER(rem_s32, uint32_t, remain_signed((int32_t)A, (int32_t)B))
HANDLER(rem_u32, uint32_t, (uint32_t)B == 0 ? (uint32_t)A : (uint32_t)A % (uint32_t)B)
HANDLER(rem_s64, uint64_t, remain_signed((int64_t)A, (int64_t)B))
HANDLER(rem_u64, uint64_t, B == 0 ? A : A % B)

HANDLER(neg_32, uint32_t, 0u - A)
HANDLER(neg_64, uint64_t, 0u - A)
HANDLER(abs_s32, uint32_t, (int32_t)A < 0 ? 0u - A : A)
HANDLER(abs_s64, uint64_t, (int64_t)A < 0 ? 0u - A : A)
HANDLER(min_s16, uint16_t, (int16_t)A < (int16_t)B ? A : B)
HANDLER(min_u16, uint16_t, (uint16_t)A < (uint16_t)B ? A : B)
HANDLER(min_s32, uint32_t, (int32_t)A < (int32_t)B ? A : B)
HANDLER(min_u32, uint32_t, (uint32_t)A < (uint32_t)B ? A : B)
HANDLER(min_s64, uint64_t, (int64_t)A < (int64_t)B ? A : B)
HANDLER(min_u64, uint64_t, A < B ? A : B)
HANDLER(max_s16, uint16_t, (int16_t)A > (int16_t)B ? A : B)
HANDLER(max_u16, uint16_t, (uint16_t)A > (uint16_t)B ? A : B)
HANDLER(max_s32, uint32_t, (int32_t)A > (int32_t)B ? A : B)
HANDLER(max_u32, uint32_t, (uint32_t)A > (uint32_t)B ? A : B)
HANDLER(max_s64, uint64_t, (int64_t)A > (int64_t)B ? A : B)
HANDLER(max_u64, uint64_t, A > B ? A : B)

HANDLER(and_64, uint64_t, A &B)
HANDLER(or_64, uint64_t, A | B)
HANDLER(xor_64, uint64_t, A ^ B)
HANDLER(and_32, uint32_t, A &B)
HANDLER(or_32, uint32_t, A | B)
HANDLER(xor_32, uint32_t, A ^ B)
HANDLER(and_16, uint16_t, A &B)
HANDLER(or_16, uint16_t, A | B)
HANDLER(xor_16, uint16_t, A ^ B)
HANDLER(not_pred, uint64_t, !A)
HANDLER(not_16, uint16_t, ~A)
HANDLER(not_32, uint32_t, ~A)
HANDLER(not_64, uint64_t, ~A)

/* Shifts by more than the width are clamped. The amount is always 32 bits. */
#define AMOUNT(width) ((uint32_t)B < (width) ? (uint32_t)B : (width)-1u)
HANDLER(shl_16, uint16_t, (uint32_t)B < 16 ? (uint32_t)(uint16_t)A << (uint32_t)B : 0)
HANDLER(shl_32, uint32_t, (uint32_t)B < 32 ? (uint32_t)A << (uint32_t)B : 0)
HANDLER(shl_64, uint64_t, (uint32_t)B < 64 ? A << (uint32_t)B : 0)
HANDLER(shr_u16, uint16_t, (uint32_t)B < 16 ? (uint32_t)(uint16_t)A >> (uint32_t)B : 0)
HANDLER(shr_u32, uint32_t, (uint32_t)B < 32 ? (uint32_t)A >> (uint32_t)B : 0)
HANDLER(shr_u64, uint64_t, (uint32_t)B < 64 ? A >> (uint32_t)B : 0)
HANDLER(shr_s16, uint16_t, (int16_t)A >> AMOUNT(16u))
HANDLER(shr_s32, uint32_t, (int32_t)A >> AMOUNT(32u))
HANDLER(shr_s64, uint64_t, (int64_t)A >> AMOUNT(64u))

/* Funnel shifts of the pair B:A. */
#define PAIR ((uint64_t)(uint32_t)B << 32 | (uint32_t)A)
HANDLER(shf_l_wrap, uint32_t, (PAIR << ((uint32_t)C & 31u)) >> 32)
HANDLER(shf_r_wrap, uint32_t, PAIR >> ((uint32_t)C & 31u))
HANDLER(shf_l_clamp, uint32_t, (uint32_t)C < 32 ? (PAIR << (uint32_t)C) >> 32 : (uint32_t)A)
HANDLER(shf_r_clamp, uint32_t, (uint32_t)C < 32 ? PAIR >> (uint32_t)C : (uint32_t)B)

/* The low `bits` bits set. */
static uint64_t low_bits(uint32_t bits)
{
    return bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
}

/* `length` bits of `value` from bit `position` on, of a word `width` bits wide. */
static uint64_t extract(uint64_t value, uint32_t position, uint32_t length, uint32_t width)
{
    const uint32_t begin = position & 0xffu, bits = length & 0xffu;

    (void)width;
    return begin >= 64 ? 0 : (value >> begin) & low_bits(bits);
}

/* As extract, with the field's top bit repeated, or the word's where the field sticks out. */
static uint64_t extract_signed(int64_t value, uint32_t position, uint32_t length, uint32_t width)
{
    const uint32_t begin = position & 0xffu, bits = length & 0xffu;
    const uint32_t from = begin < width ? begin : width - 1;
    const uint32_t kept = bits < 64 - from ? bits : 64 - from;

    if (bits == 0)
        return 0;
    return (uint64_t)((int64_t)((uint64_t)(value >> from) << (64 - kept)) >> (64 - kept));
}

static uint64_t insert(uint64_t field, uint64_t into, uint32_t position, uint32_t length,
                       uint32_t width)
{
    const uint32_t begin = position & 0xffu, bits = length & 0xffu;
    const uint64_t mask = begin >= width ? 0 : low_bits(bits) << begin;

    return (into & ~mask) | (begin >= width ? 0 : (field << begin) & mask);
}

HANDLER(bfe_u32, uint32_t, extract((uint32_t)A, (uint32_t)B, (uint32_t)C, 32))
HANDLER(bfe_u64, uint64_t, extract(A, (uint32_t)B, (uint32_t)C, 64))
HANDLER(bfe_s32, uint32_t, extract_signed((int32_t)A, (uint32_t)B, (uint32_t)C, 32))
HANDLER(bfi_32, uint32_t, insert((uint32_t)A, (uint32_t)B, (uint32_t)C, (uint32_t)D, 32))
HANDLER(bfi_64, uint64_t, insert(A, B, (uint32_t)C, (uint32_t)D, 64))
HANDLER(popc_32, uint32_t, __builtin_popcount((uint32_t)A))
HANDLER(popc_64, uint32_t, __builtin_popcountll(A))
HANDLER(clz_32, uint32_t, (uint32_t)A ? __builtin_clz((uint32_t)A) : 32)
HANDLER(clz_64, uint32_t, A ? __builtin_clzll(A) : 64)

static uint32_t reverse_bits(uint32_t value)
{
    uint32_t reversed = 0;

    for (uint32_t bit = 0; bit < 32; bit++)
        reversed |= ((value >> bit) & 1u) << (31 - bit);
    return reversed;
}
HANDLER(brev_32, uint32_t, reverse_bits((uint32_t)A))

/* Picks four of the eight bytes of the pair; the top bit of a nibble repeats the byte's sign. */
static uint32_t permute(uint64_t pair, uint32_t choice)
{
    uint32_t result = 0;

    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t nibble = (choice >> (4 * k)) & 15u;
        uint32_t byte = (uint32_t)(pair >> (8 * (nibble & 7u))) & 0xffu;

        if (nibble & 8u)
            byte = byte & 0x80u ? 0xffu : 0;
        result |= byte << (8 * k);
    }
    return result;
}
HANDLER(prmt_32, uint32_t, permute(PAIR, (uint32_t)C))

static uint32_t lookup3(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t result = 0;

    for (uint32_t bit = 0; bit < 32; bit++) {
        const uint32_t row = ((a >> bit) & 1u) << 2 | ((b >> bit) & 1u) << 1 | ((c >> bit) & 1u);

        result |= ((table >> row) & 1u) << bit;
    }
    return result;
}
HANDLER(lop3_32, uint32_t, lookup3((uint32_t)A, (uint32_t)B, (uint32_t)C, (uint32_t)D))

HANDLER(selp_16, uint16_t, C ? A : B)
HANDLER(selp_32, uint32_t, C ? A : B)
HANDLER(selp_64, uint64_t, C ? A : B)

HANDLER(move_16, uint16_t, A)
HANDLER(move_32, uint32_t, A)
HANDLER(move_64, uint64_t, A)
HANDLER(to_shared, uint64_t, A & ~PTX_WINDOW_MASK)
HANDLER(to_local, uint64_t, A & ~PTX_WINDOW_MASK)
HANDLER(from_shared, uint64_t, A | PTX_SHARED_WINDOW)
HANDLER(from_local, uint64_t, A | PTX_LOCAL_WINDOW)

/* Minimum and maximum know that -0 < +0 and prefer a number to a NaN. */
static double smaller(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) ? b : a;
    if (a == b)
        return signbit(a) ? a : b;
    return a < b ? a : b;
}

static double larger(double a, double b)
{
    return -smaller(-a, -b);
}

FLOATS(add_f32, FA + FB)
FLOATS(sub_f32, FA - FB)
FLOATS(mul_f32, FA *FB)
FLOATS(div_f32, FA / FB)
FLOATS(fma_f32, fmaf(FA, FB, FC))
FLOATS(neg_f32, -FA)
FLOATS(abs_f32, fabsf(FA))
FLOATS(min_f32, (float)smaller((double)FA, (double)FB))
FLOATS(max_f32, (float)larger((double)FA, (double)FB))
FLOATS(min_nan_f32, isnan(FA) || isnan(FB) ? NAN : (float)smaller((double)FA, (double)FB))
FLOATS(max_nan_f32, isnan(FA) || isnan(FB) ? NAN : (float)larger((double)FA, (double)FB))
FLOATS(sqrt_f32, sqrtf(FA))
FLOATS(rcp_f32, 1.0f / FA)
FLOATS(rsqrt_f32, (float)(1.0 / sqrt((double)FA)))
FLOATS(ex2_f32, (float)exp2((double)FA))
FLOATS(lg2_f32, (float)log2((double)FA))
FLOATS(copysign_f32, copysignf(FB, FA))
DOUBLES(add_f64, DA + DB)
DOUBLES(sub_f64, DA - DB)
DOUBLES(mul_f64, DA *DB)
DOUBLES(div_f64, DA / DB)
DOUBLES(fma_f64, fma(DA, DB, DC))
DOUBLES(neg_f64, -DA)
DOUBLES(abs_f64, fabs(DA))
DOUBLES(min_f64, smaller(DA, DB))
DOUBLES(max_f64, larger(DA, DB))
DOUBLES(sqrt_f64, sqrt(DA))
DOUBLES(rcp_f64, 1.0 / DA)
DOUBLES(rsqrt_f64, 1.0 / sqrt(DA))
DOUBLES(copysign_f64, copysign(DB, DA))

static enum ptx_step branch(struct ptx_machine *machine, struct ptx_thread *thread,
                            const struct ptx_instruction *instruction)
{
    (void)machine;
    thread->pc = instruction->target;
    return PTX_JUMP;
}

static enum ptx_step leave(struct ptx_machine *machine, struct ptx_thread *thread,
                           const struct ptx_instruction *instruction)
{
    (void)machine;
    (void)thread;
    (void)instruction;
    return PTX_EXIT;
}

static enum ptx_step trap(struct ptx_machine *machine, struct ptx_thread *thread,
                          const struct ptx_instruction *instruction)
{
    (void)instruction;
    return ptx_fault(machine, thread, PTX_TRAP, "the kernel stopped itself");
}

/* Fences order what one thread has done; threads here run in an order of their own already. */
static enum ptx_step nothing(struct ptx_machine *machine, struct ptx_thread *thread,
                             const struct ptx_instruction *instruction)
{
    (void)machine;
    (void)thread;
    (void)instruction;
    return PTX_NEXT;
}

#define UNARY(text, handler)                                                                       \
    {                                                                                              \
        text, handler, NULL, PTX_SHAPE_PLAIN, 1, 1, false                                          \
    }
#define BINARY(text, handler)                                                                      \
    {                                                                                              \
        text, handler, NULL, PTX_SHAPE_PLAIN, 1, 2, false                                          \
    }
#define TERNARY(text, handler)                                                                     \
    {                                                                                              \
        text, handler, NULL, PTX_SHAPE_PLAIN, 1, 3, false                                          \
    }
#define FOURFOLD(text, handler)                                                                    \
    {                                                                                              \
        text, handler, NULL, PTX_SHAPE_PLAIN, 1, 4, false                                          \
    }
#define MOVE(text, handler)                                                                        \
    {                                                                                              \
        text, handler, NULL, PTX_SHAPE_MOVE, 1, 1, true                                            \
    }
#define NO_OPERANDS(text, handler)                                                                 \
    {                                                                                              \
        text, handler, NULL, PTX_SHAPE_SOURCES, 0, 0, false                                        \
    }

/* Both signs, where they do not matter. */
#define BINARY_SU(text, bits, handler)                                                             \
    BINARY(text ".s" bits, handler), BINARY(text ".u" bits, handler)

static const struct ptx_form forms[] = {
    BINARY_SU("add", "16", add_16),
    BINARY_SU("add", "32", add_32),
    BINARY_SU("add", "64", add_64),
    BINARY_SU("sub", "16", sub_16),
    BINARY_SU("sub", "32", sub_32),
    BINARY_SU("sub", "64", sub_64),
    BINARY_SU("mul.lo", "16", mul_lo_16),
    BINARY_SU("mul.lo", "32", mul_lo_32),
    BINARY_SU("mul.lo", "64", mul_lo_64),
    BINARY("mul.hi.s32", mul_hi_s32),
    BINARY("mul.hi.u32", mul_hi_u32),
    BINARY("mul.hi.s64", mul_hi_s64),
    BINARY("mul.hi.u64", mul_hi_u64),
    BINARY("mul.wide.s16", mul_wide_s16),
    BINARY("mul.wide.u16", mul_wide_u16),
    BINARY("mul.wide.s32", mul_wide_s32),
    BINARY("mul.wide.u32", mul_wide_u32),
    TERNARY("mad.lo.s16", mad_lo_16),
    TERNARY("mad.lo.u16", mad_lo_16),
    TERNARY("mad.lo.s32", mad_lo_32),
    TERNARY("mad.lo.u32", mad_lo_32),
    TERNARY("mad.lo.s64", mad_lo_64),
    TERNARY("mad.lo.u64", mad_lo_64),
    TERNARY("mad.wide.s32", mad_wide_s32),
    TERNARY("mad.wide.u32", mad_wide_u32),
    BINARY("div.s32", div_s32),
    BINARY("div.u32", div_u32),
    BINARY("div.s64", div_s64),
    BINARY("div.u64", div_u64),
    BINARY("rem.s32", rem_s32),
    BINARY("rem.u32", rem_u32),
    BINARY("rem.s64", rem_s64),
    BINARY("rem.u64", rem_u64),
    UNARY("neg.s32", neg_32),
    UNARY("neg.s64", neg_64),
    UNARY("abs.s32", abs_s32),
    UNARY("abs.s64", abs_s64),
    BINARY("min.s16", min_s16),
    BINARY("min.u16", min_u16),
    BINARY("min.s32", min_s32),
    BINARY("min.u32", min_u32),
    BINARY("min.s64", min_s64),
    BINARY("min.u64", min_u64),
    BINARY("max.s16", max_s16),
    BINARY("max.u16", max_u16),
    BINARY("max.s32", max_s32),
    BINARY("max.u32", max_u32),
    BINARY("max.s64", max_s64),
    BINARY("max.u64", max_u64),
    BINARY("and.pred", and_64),
    BINARY("or.pred", or_64),
    BINARY("xor.pred", xor_64),
    UNARY("not.pred", not_pred),
    BINARY("and.b16", and_16),
    BINARY("or.b16", or_16),
    BINARY("xor.b16", xor_16),
    UNARY("not.b16", not_16),
    BINARY("and.b32", and_32),
    BINARY("or.b32", or_32),
    BINARY("xor.b32", xor_32),
    UNARY("not.b32", not_32),
    BINARY("and.b64", and_64),
    BINARY("or.b64", or_64),
    BINARY("xor.b64", xor_64),
    UNARY("not.b64", not_64),
    BINARY("shl.b16", shl_16),
    BINARY("shl.b32", shl_32),
    BINARY("shl.b64", shl_64),
    BINARY("shr.b16", shr_u16),
    BINARY("shr.u16", shr_u16),
    BINARY("shr.s16", shr_s16),
    BINARY("shr.b32", shr_u32),
    BINARY("shr.u32", shr_u32),
    BINARY("shr.s32", shr_s32),
    BINARY("shr.b64", shr_u64),
    BINARY("shr.u64", shr_u64),
    BINARY("shr.s64", shr_s64),
    TERNARY("shf.l.wrap.b32", shf_l_wrap),
    TERNARY("shf.r.wrap.b32", shf_r_wrap),
    TERNARY("shf.l.clamp.b32", shf_l_clamp),
    TERNARY("shf.r.clamp.b32", shf_r_clamp),
    TERNARY("bfe.u32", bfe_u32),
    TERNARY("bfe.u64", bfe_u64),
    TERNARY("bfe.s32", bfe_s32),
    FOURFOLD("bfi.b32", bfi_32),
    FOURFOLD("bfi.b64", bfi_64),
    UNARY("popc.b32", popc_32),
    UNARY("popc.b64", popc_64),
    UNARY("clz.b32", clz_32),
    UNARY("clz.b64", clz_64),
    UNARY("brev.b32", brev_32),
    TERNARY("prmt.b32", prmt_32),
    FOURFOLD("lop3.b32", lop3_32),
    TERNARY("selp.b16", selp_16),
    TERNARY("selp.u16", selp_16),
    TERNARY("selp.s16", selp_16),
    TERNARY("selp.b32", selp_32),
    TERNARY("selp.u32", selp_32),
    TERNARY("selp.s32", selp_32),
    TERNARY("selp.f32", selp_32),
    TERNARY("selp.b64", selp_64),
    TERNARY("selp.u64", selp_64),
    TERNARY("selp.s64", selp_64),
    TERNARY("selp.f64", selp_64),
    MOVE("mov.pred", move_64),
    MOVE("mov.b16", move_16),
    MOVE("mov.u16", move_16),
    MOVE("mov.s16", move_16),
    MOVE("mov.b32", move_32),
    MOVE("mov.u32", move_32),
    MOVE("mov.s32", move_32),
    MOVE("mov.f32", move_32),
    MOVE("mov.b64", move_64),
    MOVE("mov.u64", move_64),
    MOVE("mov.s64", move_64),
    MOVE("mov.f64", move_64),
    UNARY("cvta.to.global.u64", move_64),
    UNARY("cvta.global.u64", move_64),
    UNARY("cvta.to.const.u64", move_64),
    UNARY("cvta.const.u64", move_64),
    UNARY("cvta.to.shared.u64", to_shared),
    UNARY("cvta.shared.u64", from_shared),
    UNARY("cvta.to.local.u64", to_local),
    UNARY("cvta.local.u64", from_local),
    BINARY("add.rn.f32", add_f32),
    BINARY("sub.rn.f32", sub_f32),
    BINARY("mul.rn.f32", mul_f32),
    BINARY("div.rn.f32", div_f32),
    BINARY("div.full.f32", div_f32),
    BINARY("div.approx.f32", div_f32),
    TERNARY("fma.rn.f32", fma_f32),
    UNARY("neg.f32", neg_f32),
    UNARY("abs.f32", abs_f32),
    BINARY("min.f32", min_f32),
    BINARY("max.f32", max_f32),
    BINARY("min.NaN.f32", min_nan_f32),
    BINARY("max.NaN.f32", max_nan_f32),
    UNARY("sqrt.rn.f32", sqrt_f32),
    UNARY("sqrt.approx.f32", sqrt_f32),
    UNARY("rcp.rn.f32", rcp_f32),
    UNARY("rcp.approx.f32", rcp_f32),
    UNARY("rsqrt.approx.f32", rsqrt_f32),
    UNARY("ex2.approx.f32", ex2_f32),
    UNARY("lg2.approx.f32", lg2_f32),
    BINARY("copysign.f32", copysign_f32),
    BINARY("add.rn.f64", add_f64),
    BINARY("sub.rn.f64", sub_f64),
    BINARY("mul.rn.f64", mul_f64),
    BINARY("div.rn.f64", div_f64),
    TERNARY("fma.rn.f64", fma_f64),
    UNARY("neg.f64", neg_f64),
    UNARY("abs.f64", abs_f64),
    BINARY("min.f64", min_f64),
    BINARY("max.f64", max_f64),
    UNARY("sqrt.rn.f64", sqrt_f64),
    UNARY("rcp.rn.f64", rcp_f64),
    UNARY("rsqrt.approx.f64", rsqrt_f64),
    BINARY("copysign.f64", copysign_f64),
    { "bra", branch, NULL, PTX_SHAPE_BRANCH, 0, 0, false },
    { "bra.uni", branch, NULL, PTX_SHAPE_BRANCH, 0, 0, false },
    NO_OPERANDS("ret", leave),
    NO_OPERANDS("exit", leave),
    NO_OPERANDS("trap", trap),
    NO_OPERANDS("membar.cta", nothing),
    NO_OPERANDS("membar.gl", nothing),
    NO_OPERANDS("membar.sys", nothing),
    NO_OPERANDS("fence.acq_rel.cta", nothing),
    NO_OPERANDS("fence.acq_rel.gpu", nothing),
    NO_OPERANDS("fence.acq_rel.sys", nothing),
    NO_OPERANDS("fence.sc.gpu", nothing),
};

const struct ptx_form *ptx_alu_at(size_t index)
{
    return index < sizeof(forms) / sizeof(forms[0]) ? &forms[index] : NULL;
}

const struct ptx_form *ptx_alu_find(const char *opcode)
{
    for (size_t k = 0; k < sizeof(forms) / sizeof(forms[0]); k++)
        if (strcmp(forms[k].name, opcode) == 0)
            return &forms[k];
    return NULL;
}
