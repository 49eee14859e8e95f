/* amx_probe: may this process use the tile unit, and how fast is it?
 *
 * CPUID alone does not tell: a hypervisor may show the bits and not save the state, the kernel may
 * be too old to grant it, a product may be wrong. So the instructions are run once, in a child
 * process, where a SIGILL or a hang hurts nobody. Memory is allocated before the fork: the child
 * of a process with threads must not call malloc. The child answers through a pipe and is waited
 * for, with a limit; it does not return. */
#include "amx.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#define PROBE_REASON_BYTES 160
#define PROBE_TIMEOUT_MS   5000
#define PROBE_SIDE         256u /* of the product that is timed */
#define PROBE_ROUNDS_MIN   2
#define PROBE_ROUNDS_MAX   64
#define PROBE_SECONDS      0.01 /* rounds go on until so much has passed */

#define XFEATURE_TILE_DATA   18
#define ARCH_REQ_XCOMP_PERM_ 0x1023 /* asm/prctl.h of kernels since 5.16 */

/* What the child says. */
struct probe_answer {
    bool usable;
    double flops_per_s;
    char reason[PROBE_REASON_BYTES];
};

/* Arrays of PROBE_SIDE x PROBE_SIDE and scratch memory, in one allocation. */
struct probe_memory {
    float *a;
    float *b;
    float *c;
    void *scratch;
};

#ifdef __x86_64__

static uint64_t enabled_states(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool processor_offers(char *reason, size_t reason_bytes)
{
    const uint64_t vector_states = 0xe6;            /* SSE, AVX and the three of AVX-512 */
    const uint64_t tile_states = UINT64_C(3) << 17; /* TILECFG and TILEDATA */
    uint32_t a = 0, b = 0, c = 0, d = 0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) {
        snprintf(reason, reason_bytes, "the system does not save vector registers (OSXSAVE)");
        return false;
    }
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        d = b = 0;
    const bool tile = d & (1u << 24);
    const bool bf16 = d & (1u << 22);
    if (!tile || !bf16) {
        snprintf(reason, reason_bytes, "the processor has no %s",
                 tile ? "amx-bf16" : (bf16 ? "amx-tile" : "amx-tile and no amx-bf16"));
        return false;
    }
    /* F, DQ, BW, VL */
    const uint32_t avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if ((b & avx512) != avx512) {
        snprintf(reason, reason_bytes, "the processor has AMX but not AVX-512 F, DQ, BW and VL");
        return false;
    }
    if ((enabled_states() & (vector_states | tile_states)) != (vector_states | tile_states)) {
        snprintf(reason, reason_bytes,
                 "the system does not save tile registers (XCR0 %#llx): it needs Linux 5.16 or "
                 "later, and a hypervisor that passes AMX on",
                 (unsigned long long)enabled_states());
        return false;
    }
    return true;
}

static bool kernel_permits(char *reason, size_t reason_bytes)
{
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, XFEATURE_TILE_DATA) == 0)
        return true;
    const int error = errno;
    const char *advice = "it needs Linux 5.16 or later";
    if (error == ENOSPC)
        advice = "an alternate signal stack is too small for tiles: give it 12 KB or more";
    else if (error == EPERM || error == EACCES)
        advice = "a seccomp filter or security policy refuses it";
    snprintf(reason, reason_bytes, "the kernel refused AMX (arch_prctl, error %d): %s", error,
             advice);
    return false;
}

#else

static bool processor_offers(char *reason, size_t reason_bytes)
{
    snprintf(reason, reason_bytes, "this is not an x86-64 processor");
    return false;
}

static bool kernel_permits(char *reason, size_t reason_bytes)
{
    return processor_offers(reason, reason_bytes);
}

#endif

/* A value in (-1, 1), the same on every machine. */
static float probe_value(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1.0f;
}

static void fill(float *values, uint32_t *state)
{
    for (size_t i = 0; i < (size_t)PROBE_SIDE * PROBE_SIDE; i++)
        values[i] = probe_value(state);
}

/* Compares one product with sums in f64. Sizes are odd, so that edges are used. */
static bool product_is_right(const struct amx_probe_parts *parts, const struct probe_memory *memory,
                             enum amx_terms terms, bool transposed, double tolerance)
{
    const struct product product = {
        .m = 45,
        .n = 51,
        .k = 77,
        .a = memory->a,
        .lda = PROBE_SIDE,
        .a_transposed = transposed,
        .b = memory->b,
        .ldb = PROBE_SIDE,
        .c = memory->c,
        .ldc = PROBE_SIDE,
        .alpha = 1.0,
        .beta = 0.0,
    };

    for (size_t i = 0; i < (size_t)PROBE_SIDE * PROBE_SIDE; i++)
        memory->c[i] = -3.0f; /* what a product that does nothing leaves */
    parts->product(&product, terms, 0, product.m, 0, product.n, memory->scratch);
    for (uint32_t i = 0; i < product.m; i++) {
        for (uint32_t j = 0; j < product.n; j++) {
            double want = 0.0, size = 0.0;
            for (uint32_t k = 0; k < product.k; k++) {
                const size_t at =
                    transposed ? (size_t)k * PROBE_SIDE + i : (size_t)i * PROBE_SIDE + k;
                const double term = (double)memory->a[at] * memory->b[(size_t)k * PROBE_SIDE + j];
                want += term;
                size += fabs(term);
            }
            /* The comparison is false for NaN, too. */
            if (!(fabs(memory->c[(size_t)i * PROBE_SIDE + j] - want) <= tolerance * size))
                return false;
        }
    }
    return true;
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The best of some rounds of the x3 product, after one that wakes the unit up. */
static double product_rate(const struct amx_probe_parts *parts, const struct probe_memory *memory)
{
    const struct product product = {
        .m = PROBE_SIDE,
        .n = PROBE_SIDE,
        .k = PROBE_SIDE,
        .a = memory->a,
        .lda = PROBE_SIDE,
        .b = memory->b,
        .ldb = PROBE_SIDE,
        .c = memory->c,
        .ldc = PROBE_SIDE,
        .alpha = 1.0,
        .beta = 0.0,
    };
    const double flops = 2.0 * PROBE_SIDE * PROBE_SIDE * PROBE_SIDE;
    const double start = seconds();
    double best = HUGE_VAL;

    for (int round = 0; round < PROBE_ROUNDS_MAX; round++) {
        const double before = seconds();
        if (round >= PROBE_ROUNDS_MIN && before - start > PROBE_SECONDS)
            break;
        parts->product(&product, AMX_X3, 0, PROBE_SIDE, 0, PROBE_SIDE, memory->scratch);
        const double took = seconds() - before;
        if (round > 0 && took > 0.0 && took < best)
            best = took;
    }
    return best < HUGE_VAL ? flops / best : 0.0;
}

/* Everything that may go wrong, in the child. */
static void try_products(const struct amx_probe_parts *parts, const struct probe_memory *memory,
                         struct probe_answer *answer)
{
    static const struct {
        enum amx_terms terms;
        double
            tolerance; /* relative to the sum of magnitudes: a few units of the parts' rounding */
        const char *name;
    } cases[] = { { AMX_BF16, 1e-2, "bf16" }, { AMX_X3, 2e-5, "x3" }, { AMX_X6, 1e-6, "x6" } };

    if (!parts->permitted(answer->reason, sizeof(answer->reason)))
        return;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int transposed = 0; transposed < 2; transposed++) {
            if (!product_is_right(parts, memory, cases[i].terms, transposed, cases[i].tolerance)) {
                snprintf(answer->reason, sizeof(answer->reason),
                         "a trial product (%s) came out wrong", cases[i].name);
                return;
            }
        }
    }
    answer->flops_per_s = product_rate(parts, memory);
    answer->usable = true;
}

/* The child's life. */
static _Noreturn void child_run(const struct amx_probe_parts *parts,
                                const struct probe_memory *memory, int answer_to)
{
    const struct rlimit no_core = { 0, 0 };
    struct probe_answer answer = { .usable = false };

    /* Whatever handlers the program has, here a bad instruction just ends the child. */
    signal(SIGILL, SIG_DFL);
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    setrlimit(RLIMIT_CORE, &no_core);

    try_products(parts, memory, &answer);
    const ssize_t sent = write(answer_to, &answer, sizeof(answer));
    _exit(sent == (ssize_t)sizeof(answer) ? 0 : 1);
}

/* True when a whole answer came before `timeout_ms` had passed. An answer fits the pipe's atomic
 * size, so it comes in one piece or not at all. */
static bool answer_read(int from, uint32_t timeout_ms, struct probe_answer *answer, bool *too_late)
{
    const double end = seconds() + timeout_ms / 1e3;
    struct pollfd waiting = { .fd = from, .events = POLLIN };
    int ready;

    do {
        const double left_ms = (end - seconds()) * 1e3;
        ready = poll(&waiting, 1, left_ms > 0.0 ? (int)ceil(left_ms) : 0);
    } while (ready < 0 && errno == EINTR);
    *too_late = ready == 0;
    return ready > 0 && read(from, answer, sizeof(*answer)) == (ssize_t)sizeof(*answer);
}

/* Ends the child and says how it died when it gave no answer. */
static void child_reap(pid_t child, bool too_late, bool answered, char *reason, size_t reason_bytes)
{
    int how = 0;
    pid_t reaped;

    if (too_late)
        kill(child, SIGKILL);
    do {
        reaped = waitpid(child, &how, 0);
    } while (reaped < 0 && errno == EINTR);
    if (answered)
        return;
    if (too_late)
        snprintf(reason, reason_bytes, "a trial product did not end in time");
    else if (reaped == child && WIFSIGNALED(how) && WTERMSIG(how) == SIGILL)
        snprintf(reason, reason_bytes,
                 "a trial product was an illegal instruction (SIGILL): the system does not let "
                 "programs use AMX");
    else if (reaped == child && WIFSIGNALED(how))
        snprintf(reason, reason_bytes, "a trial product ended with signal %d", WTERMSIG(how));
    else
        snprintf(reason, reason_bytes, "a trial product gave no answer");
}

/* Forks, waits, and leaves the answer; false with `answer->reason` when there was none. */
static bool child_ask(const struct amx_probe_parts *parts, const struct probe_memory *memory,
                      struct probe_answer *answer)
{
    int ends[2];
    bool too_late = false;

    if (pipe(ends) != 0) {
        snprintf(answer->reason, sizeof(answer->reason),
                 "no pipe for a trial of AMX (error %d): raise the limit of open files", errno);
        return false;
    }
    const pid_t child = fork();
    if (child == 0)
        child_run(parts, memory, ends[1]);
    const int error = errno;
    close(ends[1]);
    bool answered = false;
    if (child > 0) {
        answered = answer_read(ends[0], parts->timeout_ms, answer, &too_late);
        child_reap(child, too_late, answered, answer->reason, sizeof(answer->reason));
    } else {
        snprintf(answer->reason, sizeof(answer->reason),
                 "no child process for a trial of AMX (error %d): raise the limit of processes",
                 error);
    }
    close(ends[0]);
    return answered && answer->usable;
}

const struct amx_probe_parts *amx_probe_parts(void)
{
    static const struct amx_probe_parts real = {
        .offered = processor_offers,
        .permitted = kernel_permits,
        .product = amx_product_tile,
        .timeout_ms = PROBE_TIMEOUT_MS,
    };
    return &real;
}

enum fire_status amx_probe_with(const struct amx_probe_parts *parts, char *reason,
                                size_t reason_bytes, double *flops_per_s)
{
    const size_t array_bytes = (size_t)PROBE_SIDE * PROBE_SIDE * sizeof(float);
    const size_t bytes = 3 * array_bytes + (AMX_SCRATCH_BYTES + 63) / 64 * 64;
    struct probe_answer answer = { .usable = false };
    uint32_t state = 1;

    *flops_per_s = 0.0;
    if (!parts->offered(reason, reason_bytes))
        return FIRE_DEVICE_LOST;
    float *arrays = aligned_alloc(64, bytes);
    if (!arrays) {
        snprintf(reason, reason_bytes, "no memory (%zu bytes) for a trial of AMX", bytes);
        return FIRE_NO_MEMORY;
    }
    const struct probe_memory memory = {
        .a = arrays,
        .b = arrays + array_bytes / sizeof(float),
        .c = arrays + 2 * array_bytes / sizeof(float),
        .scratch = arrays + 3 * array_bytes / sizeof(float),
    };
    fill(memory.a, &state);
    fill(memory.b, &state);

    bool usable = child_ask(parts, &memory, &answer);
    free(arrays);
    if (usable)
        usable = parts->permitted(answer.reason, sizeof(answer.reason));
    if (!usable) {
        snprintf(reason, reason_bytes, "%s", answer.reason);
        return FIRE_DEVICE_LOST;
    }
    *flops_per_s = answer.flops_per_s;
    snprintf(reason, reason_bytes, "a trial product was right, x3 %.0f GFLOP/s",
             answer.flops_per_s / 1e9);
    return FIRE_OK;
}

enum fire_status amx_probe(char *reason, size_t reason_bytes, double *flops_per_s)
{
    return amx_probe_with(amx_probe_parts(), reason, reason_bytes, flops_per_s);
}
