/* fire_bench_peak: products of the CPU path against the machine's own multiply-add peak.
 *
 * The peak is measured with independent multiply-adds on registers, in the instruction set of the
 * path, just before each case, so that a machine whose speed drifts is compared with itself. One
 * JSON object a line: {"case", "path", "n", "gflops", "peak", "share", "median"}; the best of
 * several rounds on both sides, on one thread; `median` is the median round's share of its own
 * peak. Time is the thread's own: what other processes take of the core does not count. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "amx.h"
#include "amx_engine.h"
#include "dense.h"
#include "isa.h"

#define ROUNDS    9
#define HUGE_PAGE (2u << 20)

static double seconds(void)
{
    struct timespec time;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Twelve independent chains of multiply-adds, enough to hide their latency. */
#define CHAINS     12
#define EACH_CHAIN _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++)
#define CHAIN_BODY(type, set, fma, first, lanes)                                                   \
    const type factor = set(0.999999f), addend = set(1e-6f);                                       \
    type sum[CHAINS];                                                                              \
                                                                                                   \
    EACH_CHAIN sum[i] = set((float)i);                                                             \
    for (long k = 0; k < count; k++)                                                               \
        EACH_CHAIN sum[i] = fma(sum[i], factor, addend);                                           \
    EACH_CHAIN *sink += first(sum[i]);                                                             \
    return 2.0 * (lanes)*CHAINS * (double)count

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static double chains_avx512(long count, float *sink)
{
    CHAIN_BODY(__m512, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_cvtss_f32, 16);
}

__attribute__((target("avx2,fma"))) static double chains_avx2(long count, float *sink)
{
    CHAIN_BODY(__m256, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_cvtss_f32, 8);
}

#define MULTIPLY_ADD(x, factor, addend) _mm_add_ps(_mm_mul_ps(x, factor), addend)
static double chains_portable(long count, float *sink)
{
    CHAIN_BODY(__m128, _mm_set1_ps, MULTIPLY_ADD, _mm_cvtss_f32, 4);
}
#endif

static double peak_of(const char *path)
{
    const long count = 400000;
    const double begin = seconds();
    float sink = 0;
    double flops;

    if (strcmp(path, "avx512") == 0 || strcmp(path, "amx") == 0)
        flops = chains_avx512(count, &sink);
    else if (strcmp(path, "avx2") == 0)
        flops = chains_avx2(count, &sink);
    else
        flops = chains_portable(count, &sink);
    const double rate = flops / (seconds() - begin);

    return sink == -1 ? 0 : rate; /* the sum is used, so it is computed */
}

struct bench {
    struct crew crew;
    uint32_t n;
    size_t ld;
    float *a, *b, *c;
    enum { BENCH_MULTIPLY, BENCH_GRAM, BENCH_TILE } kind;
};

static double run_once(struct bench *bench)
{
    const uint32_t n = bench->n;
    const struct product product = { .m = n,
                                     .n = n,
                                     .k = n,
                                     .a = bench->a,
                                     .lda = bench->ld,
                                     .b = bench->b,
                                     .ldb = bench->ld,
                                     .c = bench->c,
                                     .ldc = bench->ld,
                                     .alpha = 1 };

    switch (bench->kind) {
    case BENCH_MULTIPLY: dense_product(&bench->crew, FIRE_F32, &product); return 2.0 * n * n * n;
    case BENCH_GRAM: /* the blocks that touch the upper triangle; counted as n^3 */
        dense_gram(&bench->crew, FIRE_F32, false, bench->a, bench->ld, n, n, bench->c, bench->ld);
        return 1.0 * n * n * n;
    case BENCH_TILE:
        bench->crew.engine->f32.tile(&product, 0, n, 0, n, bench->crew.scratch[0]);
        return 2.0 * n * n * n;
    }
    return 0;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(struct bench *bench, const char *name, const char *path)
{
    const int repeats = bench->n <= 128 ? 400 : bench->n <= 512 ? 8 : 1;
    double shares[ROUNDS];
    double best = 0, peak = 0;

    for (int round = 0; round < ROUNDS; round++) {
        const double now_peak = peak_of(path), begin = seconds();
        double flops = 0;

        for (int i = 0; i < repeats; i++)
            flops += run_once(bench);
        const double rate = flops / (seconds() - begin);

        best = rate > best ? rate : best;
        peak = now_peak > peak ? now_peak : peak;
        shares[round] = rate / now_peak;
    }
    qsort(shares, ROUNDS, sizeof(shares[0]), compare_doubles);
    printf(
        "{\"case\": \"%s %s %u\", \"path\": \"%s\", \"n\": %u, \"gflops\": %.1f, \"peak\": %.1f, "
        "\"share\": %.3f, \"median\": %.3f}\n",
        path, name, bench->n, path, bench->n, best * 1e-9, peak * 1e-9, best / peak,
        shares[ROUNDS / 2]);
    fflush(stdout);
}

static bool bench_init(struct bench *bench, const struct engine *engine, void *const *scratch,
                       uint32_t n)
{
    memset(bench, 0, sizeof(*bench));
    bench->crew = (struct crew){ .engine = engine, .scratch = scratch };
    bench->n = n;
    bench->ld = dense_stride(n);
    const size_t bytes =
        (3 * n * bench->ld * sizeof(float) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;

    bench->a = aligned_alloc(HUGE_PAGE, bytes);
    if (!bench->a)
        return false;
    (void)madvise(bench->a, bytes, MADV_HUGEPAGE); /* as the CPU path's own arrays */
    for (size_t i = 0; i < 3 * n * bench->ld; i++)
        bench->a[i] = i % bench->ld < n ? (float)((i * 7919) % 1013) / 1013 - 0.5f : 0;
    bench->b = bench->a + n * bench->ld;
    bench->c = bench->b + n * bench->ld;
    return true;
}

static int run_path(const char *path, const uint32_t *sides, size_t count, const char *kind)
{
    struct isa_choice choice;
    char reason[200];

    if (isa_choose(path, &choice, reason, sizeof(reason)) != FIRE_OK) {
        fprintf(stderr, "%s is left out: %s\n", path, reason);
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        void *scratch =
            aligned_alloc(64, (dense_scratch_bytes(choice.fast, sides[i]) + 63) / 64 * 64);
        struct bench bench;

        if (!scratch || !bench_init(&bench, choice.fast, &scratch, sides[i])) {
            fprintf(stderr, "out of memory at side %u\n", sides[i]);
            free(scratch);
            return 1;
        }
        if (strcmp(kind, "small") == 0) {
            bench.kind = BENCH_TILE;
            report(&bench, "small", path);
        } else if (strcmp(kind, "x3") == 0) {
            bench.kind = BENCH_MULTIPLY;
            report(&bench, "x3", path);
        } else {
            bench.kind = BENCH_MULTIPLY;
            report(&bench, "large", path);
            bench.kind = BENCH_GRAM;
            report(&bench, "gram", path);
        }
        free(bench.a);
        free(scratch);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const uint32_t large[] = { 256, 512, 1024, 2048 };
    static const uint32_t small[] = { 32, 48, 64, 96, 128 };
    static const uint32_t tiles[] = { 512, 1024 };
    const size_t large_count = argc > 1 && strcmp(argv[1], "--quick") == 0 ? 3 : 4;
    int failed = run_path("avx512", large, large_count, "large") |
                 run_path("avx512", small, 5, "small") |
                 run_path("avx2", large, large_count, "large") |
                 run_path("avx2", small, 5, "small") | run_path("amx", tiles, 2, "x3");

    return failed;
}
