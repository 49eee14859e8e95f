/* An engine is used only when CPUID (with the operating system's consent, XCR0) says that its
 * instructions exist and a small product run in a child process has given the right numbers: some
 * virtual machines announce what they cannot do, and die with SIGILL. */
#include "isa.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>

#include "amx.h"
#include "amx_engine.h"
#endif

#define PROBE_SIDE   40u
#define PROBE_STRIDE 48u
#define SCRATCH_MAX  (2u << 20)

enum finding { FINDING_WORKS, FINDING_NO_INSTRUCTIONS, FINDING_WRONG, FINDING_DIED };

struct candidate {
    const struct engine *engine;
    bool (*announced)(void);
    enum finding finding;
};

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)
static bool has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && has_avx2();
}
#endif

/* Best last. */
static struct candidate candidates[] = {
    { &engine_portable, always, FINDING_WORKS },
#if defined(__x86_64__)
    { &engine_avx2, has_avx2, FINDING_WORKS },
    { &engine_avx512, has_avx512, FINDING_WORKS },
#endif
};
#define CANDIDATES (sizeof(candidates) / sizeof(candidates[0]))

/* A small f32 product against plain loops. */
static bool gives_right_numbers(const struct engine *engine)
{
    static float a[PROBE_SIDE * PROBE_STRIDE] __attribute__((aligned(64)));
    static float c[PROBE_SIDE * PROBE_STRIDE] __attribute__((aligned(64)));
    static char scratch[SCRATCH_MAX] __attribute__((aligned(64)));
    const struct product product = {
        .m = PROBE_SIDE,
        .n = PROBE_SIDE,
        .k = PROBE_SIDE,
        .a = a,
        .lda = PROBE_STRIDE,
        .b = a,
        .ldb = PROBE_STRIDE,
        .c = c,
        .ldc = PROBE_STRIDE,
        .alpha = 1,
    };
    bool right = engine->scratch_bytes <= sizeof(scratch);

    for (uint32_t i = 0; i < PROBE_SIDE; i++) {
        for (uint32_t j = 0; j < PROBE_SIDE; j++)
            a[i * PROBE_STRIDE + j] = (float)((i * 7 + j * 13) % 17) - 8;
    }
    if (right)
        engine->f32.tile(&product, 0, PROBE_SIDE, 0, PROBE_SIDE, scratch);
    for (uint32_t i = 0; i < PROBE_SIDE && right; i++) {
        for (uint32_t j = 0; j < PROBE_SIDE; j++) {
            float want = 0;

            for (uint32_t p = 0; p < PROBE_SIDE; p++)
                want += a[i * PROBE_STRIDE + p] * a[p * PROBE_STRIDE + j];
            right = right && c[i * PROBE_STRIDE + j] == want; /* small integers: exact */
        }
    }
    return right;
}

static enum finding try_engine(const struct candidate *candidate)
{
    int status = 0;
    pid_t child;

    if (!candidate->announced())
        return FINDING_NO_INSTRUCTIONS;
    child = fork();
    if (child == 0)
        _exit(gives_right_numbers(candidate->engine) ? 0 : 1);
    if (child < 0) /* no process to be had: trust CPUID */
        return FINDING_WORKS;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) /* somebody else collects our children: trust CPUID */
            return FINDING_WORKS;
    }
    if (WIFSIGNALED(status))
        return FINDING_DIED;
    return WEXITSTATUS(status) == 0 ? FINDING_WORKS : FINDING_WRONG;
}

static void try_all(void)
{
    for (size_t i = 0; i < CANDIDATES; i++)
        candidates[i].finding = try_engine(&candidates[i]);
}

static const char *finding_text(enum finding finding)
{
    switch (finding) {
    case FINDING_WORKS: return "announced by CPUID, tried and right";
    case FINDING_NO_INSTRUCTIONS: return "not announced by CPUID";
    case FINDING_WRONG: return "tried, and its numbers are wrong";
    case FINDING_DIED: return "tried, and it died";
    }
    return "unknown";
}

static double seconds(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

double isa_measure_rate(const struct engine *engine)
{
    enum { SIDE = 96, STRIDE = 112, TRIES = 5, REPEATS = 20 };
    const size_t matrices = 3 * SIDE * STRIDE * sizeof(float);
    float *memory = aligned_alloc(64, matrices + (engine->scratch_bytes + 63) / 64 * 64);
    double best = 0;

    if (!memory)
        return 0;
    memset(memory, 0, matrices);
    const struct product product = {
        .m = SIDE,
        .n = SIDE,
        .k = SIDE,
        .a = memory,
        .lda = STRIDE,
        .b = memory + SIDE * STRIDE,
        .ldb = STRIDE,
        .c = memory + 2 * SIDE * STRIDE,
        .ldc = STRIDE,
        .alpha = 1,
    };

    for (int try = 0; try < TRIES; try++) {
        const double begin = seconds();

        for (int i = 0; i < REPEATS; i++)
            engine->f32.tile(&product, 0, SIDE, 0, SIDE, (char *)memory + matrices);
        const double rate = REPEATS * 2.0 * SIDE * SIDE * SIDE / (seconds() - begin);

        best = rate > best ? rate : best;
    }
    free(memory);
    return best;
}

/* What is found out about the tile unit, once: a machine under load would answer otherwise another
 * time, and results would change with it. */
struct tile_unit {
    bool known;
    enum fire_status status;
    double rate, vector_rate;
    char reason[200];
};

static void learn(struct tile_unit *unit)
{
#if defined(__x86_64__)
    const enum finding avx512 = candidates[CANDIDATES - 1].finding;

    if (avx512 != FINDING_WORKS) { /* all but the products runs on it */
        snprintf(unit->reason, sizeof(unit->reason), "amx needs avx512: %s", finding_text(avx512));
        unit->status = FIRE_NOT_FOUND;
    } else {
        unit->status = amx_probe(unit->reason, sizeof(unit->reason), &unit->rate);
        if (unit->status == FIRE_DEVICE_LOST)
            unit->status = FIRE_NOT_FOUND;
    }
    if (unit->status == FIRE_OK)
        unit->vector_rate = isa_measure_rate(&engine_avx512);
    if (unit->status == FIRE_OK && unit->vector_rate == 0)
        unit->status = FIRE_NO_MEMORY;
#else
    snprintf(unit->reason, sizeof(unit->reason), "amx: not an x86-64 processor");
    unit->status = FIRE_NOT_FOUND;
#endif
    unit->known = unit->status != FIRE_NO_MEMORY;
}

/* The tile unit, when it works and (unless it was asked for by name) is the faster one. For results
 * that promise a polar error it would have to multiply six times: there AVX-512 is as fast.
 * FIRE_NO_MEMORY: there was none to try it with. */
static enum fire_status choose_amx(bool by_name, struct isa_choice *choice, char *reason,
                                   size_t reason_bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct tile_unit found;

    pthread_mutex_lock(&lock);
    if (!found.known)
        learn(&found);
    const struct tile_unit unit = found;
    pthread_mutex_unlock(&lock);

    snprintf(reason, reason_bytes, "%s", unit.reason);
    if (unit.status != FIRE_OK)
        return unit.status;
    if (!by_name && unit.rate < 1.2 * unit.vector_rate) {
        snprintf(reason, reason_bytes, "amx works, but x3 at %.0f GF/s is no faster than avx512",
                 unit.rate * 1e-9);
        return FIRE_NOT_FOUND;
    }
#if defined(__x86_64__)
    choice->fast = amx_engine(true);
    choice->exact = by_name ? amx_engine(false) : &engine_avx512;
#else
    (void)choice;
#endif
    snprintf(reason, reason_bytes, "amx: tried and right, x3 at %.0f GF/s, avx512 f32 at %.0f",
             unit.rate * 1e-9, unit.vector_rate * 1e-9);
    return FIRE_OK;
}

enum fire_status isa_choose(const char *path, struct isa_choice *choice, char *reason,
                            size_t reason_bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const bool automatic = !path || strcmp(path, "auto") == 0;
    const bool amx = path && strcmp(path, "amx") == 0;

    pthread_once(&once, try_all);
    memset(choice, 0, sizeof(*choice));
    if (amx || automatic) {
        const enum fire_status status = choose_amx(amx, choice, reason, reason_bytes);

        if (amx || status != FIRE_NOT_FOUND)
            return status;
    }
    for (size_t i = CANDIDATES; i-- > 0;) {
        const struct candidate *candidate = &candidates[i];

        if (!automatic && strcmp(candidate->engine->name, path) != 0)
            continue;
        snprintf(reason, reason_bytes, "%s: %s", candidate->engine->name,
                 finding_text(candidate->finding));
        if (candidate->finding == FINDING_WORKS) {
            choice->exact = choice->fast = candidate->engine;
            return FIRE_OK;
        }
        if (!automatic)
            return FIRE_NOT_FOUND;
    }
    snprintf(reason, reason_bytes,
             "no path is called %s; known are auto, portable, avx2, avx512, amx", path);
    return FIRE_NOT_FOUND;
}

void isa_processor_name(char *name, size_t name_bytes)
{
    char text[52] = "unknown processor";

#if defined(__x86_64__)
    unsigned int word[4];

    if ((unsigned int)__get_cpuid_max(0x80000000u, NULL) >= 0x80000004u) {
        for (unsigned int i = 0; i < 3; i++) {
            __get_cpuid(0x80000002u + i, &word[0], &word[1], &word[2], &word[3]);
            memcpy(text + 16 * i, word, 16);
        }
        text[48] = 0;
    }
#endif
    const char *begin = text + strspn(text, " ");

    snprintf(name, name_bytes, "%s", begin);
}
