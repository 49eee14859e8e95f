/* Every allocation of our own code is made to fail once: in each scenario the first, then the
 * second, and so on until a run gets through. A failed run must say FIRE_NO_MEMORY, leave weights
 * as they were, and free what it had; then everything must work again.
 *
 * The linker sends our objects' calls of malloc and its kin through the wrappers below; libraries
 * keep the real ones. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "matrices.h"
#include "polar_ref.h"
#include "projection.h"
#include "statistics.h"
#include "tensor.h"

#define FAILURES_MAX 10000 /* allocations of one scenario */
#define LIVE_MAX     4096  /* of them alive at once */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);
void __wrap_free(void *memory);

/* While armed, call number `fail_at` fails, and what is allocated and not freed is listed. */
static struct {
    pthread_mutex_t lock;
    bool armed;
    bool failed;
    unsigned calls;
    unsigned fail_at;
    unsigned live_count;
    void *live[LIVE_MAX];
} injector = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool fails_now(void)
{
    bool fails;

    pthread_mutex_lock(&injector.lock);
    fails = injector.armed && ++injector.calls == injector.fail_at;
    injector.failed = injector.failed || fails;
    pthread_mutex_unlock(&injector.lock);
    if (fails)
        errno = ENOMEM;
    return fails;
}

static void *remember(void *memory)
{
    pthread_mutex_lock(&injector.lock);
    if (injector.armed && memory) {
        FIRE_ASSERT(injector.live_count < LIVE_MAX);
        injector.live[injector.live_count++] = memory;
    }
    pthread_mutex_unlock(&injector.lock);
    return memory;
}

static void forget(void *memory)
{
    pthread_mutex_lock(&injector.lock);
    for (unsigned i = injector.live_count; i-- > 0;) {
        if (injector.live[i] == memory) {
            injector.live[i] = injector.live[--injector.live_count];
            break;
        }
    }
    pthread_mutex_unlock(&injector.lock);
}

void *__wrap_malloc(size_t bytes)
{
    return fails_now() ? NULL : remember(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : remember(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    if (fails_now())
        return NULL;
    forget(memory);
    return remember(__real_realloc(memory, bytes));
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails_now() ? NULL : remember(__real_aligned_alloc(alignment, bytes));
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    int error = ENOMEM;

    if (!fails_now()) {
        error = __real_posix_memalign(memory, alignment, bytes);
        if (error == 0)
            remember(*memory);
    }
    return error;
}

void __wrap_free(void *memory)
{
    if (memory)
        forget(memory);
    __real_free(memory);
}

/* What a scenario found wrong. Check allocates in every assertion, so there is none while armed. */
static const char *broken;

static void expect(bool condition, const char *otherwise)
{
    if (!condition)
        broken = otherwise;
}

static void arm(unsigned fail_at)
{
    pthread_mutex_lock(&injector.lock);
    injector.armed = true;
    injector.failed = false;
    injector.calls = 0;
    injector.fail_at = fail_at;
    injector.live_count = 0;
    pthread_mutex_unlock(&injector.lock);
}

/* Whether the failure happened; `live` is how many allocations were not freed. */
static bool disarm(unsigned *live)
{
    bool failed;

    pthread_mutex_lock(&injector.lock);
    injector.armed = false;
    failed = injector.failed;
    *live = injector.live_count;
    pthread_mutex_unlock(&injector.lock);
    return failed;
}

/* Runs `scenario` with the first, second, … allocation failing. Returns how many there were. */
static unsigned exhaust(const char *name, enum fire_status (*scenario)(void *), void *data)
{
    for (unsigned n = 1; n <= FAILURES_MAX; n++) {
        enum fire_status status;
        unsigned live;
        bool failed;

        arm(n);
        status = scenario(data);
        failed = disarm(&live);
        ck_assert_msg(!broken, "%s: %s when allocation %u failed", name, broken, n);
        ck_assert_msg(live == 0, "%s: %u allocations leaked when number %u failed", name, live, n);
        if (!failed) {
            ck_assert_msg(status == FIRE_OK, "%s: %s without a failure", name,
                          fire_status_name(status));
            return n - 1;
        }
        ck_assert_msg(status == FIRE_NO_MEMORY || status == FIRE_OK,
                      "%s: %s when allocation %u failed", name, fire_status_name(status), n);
    }
    ck_abort_msg("%s: more than %d allocations", name, FAILURES_MAX);
    return 0;
}

static enum fire_status open_device(void *path)
{
    const struct fire_backend *backend = fire_cpu_backend();
    const struct fire_backend_settings settings = { .threads = 2, .path = path };
    struct fire_device *device;
    struct fire_error error = { 0 };
    const enum fire_status status = backend->open(&settings, &device, &error);

    expect((status == FIRE_OK) == (device != NULL), "device and status disagree");
    expect(status == FIRE_OK || error.message[0] != '\0', "no message");
    backend->close(device);
    return status;
}

static char auto_path[] = "auto";
static char portable_path[] = "portable";

START_TEST(opening_a_device_survives)
{
    ck_assert_int_eq(open_device(auto_path), FIRE_OK); /* what is found out once, is */
    ck_assert_uint_gt(exhaust("open auto", open_device, auto_path), 0);
    ck_assert_uint_gt(exhaust("open portable", open_device, portable_path), 0);
}
END_TEST

/* Which paths work is found out once for the process. Having had no memory then is no finding. */
START_TEST(want_of_memory_is_not_remembered)
{
    unsigned live;

    arm((unsigned)_i + 1);
    (void)open_device(auto_path);
    (void)disarm(&live);
    ck_assert_uint_eq(live, 0);
    ck_assert_int_eq(open_device(auto_path), FIRE_OK);
    ck_assert_int_eq(open_device(portable_path), FIRE_OK);
}
END_TEST

/* A batch of two slots of the same weights, on a device opened for it. */
#define SLOTS 2

struct batch_run {
    struct fire_plan plan;
    size_t bytes; /* of one slot */
    void *weights;
    bool known;                /* the two below are */
    void *projected;           /* what becomes of the weights */
    struct fire_result result; /* and what is said of it */
};

/* Whether `a` says what `b` says, the clock apart. What had no memory to be computed may be absent
 * or come from a cheaper method, never be wrong. */
static bool same_result(const struct fire_result *a, const struct fire_result *b)
{
    for (size_t i = 0; i < fire_result_field_count(); i++) {
        const double x = fire_result_value(a, i);
        const double y = fire_result_value(b, i);

        if (strcmp(fire_result_field_at(i)->name, "compute_ms") != 0 && !isnan(x) &&
            !(fabs(x - y) <= 1e-4 * fabs(y)))
            return false;
    }
    return strcmp(a->method, b->method) == 0 && a->steps == b->steps && a->rank == b->rank;
}

/* Runs `slots`; a status that is not FIRE_OK is the batch's, or that of a slot. */
static enum fire_status run_slots(struct batch_run *run, struct fire_device *device,
                                  struct fire_slot *slots)
{
    const struct fire_backend *backend = fire_cpu_backend();
    struct fire_batch batch = { .plan = &run->plan, .slots = slots, .slot_count = SLOTS };
    enum fire_status status = backend->submit(device, &batch);

    if (status == FIRE_OK)
        status = backend->wait(device, &batch);
    for (int i = 0; i < SLOTS; i++) {
        const bool ran = status == FIRE_OK && slots[i].result->status == FIRE_OK;
        const bool same = memcmp(slots[i].weights, run->weights, run->bytes) == 0;

        expect(ran || same, "a slot that failed was written");
        expect(same || run->plan.kind != FIRE_PLAN_ANALYZE, "an analysis wrote");
        if (ran && run->known) {
            expect(memcmp(slots[i].weights, run->projected, run->bytes) == 0, "other bits");
            expect(same_result(slots[i].result, &run->result), "another result");
        } else if (ran) {
            memcpy(run->projected, slots[i].weights, run->bytes);
            run->result = *slots[i].result;
            run->known = true;
        }
    }
    for (int i = 0; i < SLOTS && status == FIRE_OK; i++)
        status = slots[i].result->status;
    return status;
}

static enum fire_status run_batch(void *data)
{
    struct batch_run *run = data;
    const struct fire_backend *backend = fire_cpu_backend();
    const struct fire_backend_settings settings = { .threads = 2, .path = auto_path };
    struct fire_device *device;
    struct fire_slot slots[SLOTS] = { 0 };
    struct fire_result results[SLOTS];
    struct fire_error error;
    enum fire_status status = backend->open(&settings, &device, &error);

    for (int i = 0; i < SLOTS && status == FIRE_OK; i++) {
        fire_result_init(&results[i]);
        slots[i].result = &results[i];
        slots[i].weights = backend->host_alloc(device, run->bytes);
        if (slots[i].weights)
            memcpy(slots[i].weights, run->weights, run->bytes);
        else
            status = FIRE_NO_MEMORY;
    }
    if (status == FIRE_OK)
        status = run_slots(run, device, slots);
    /* a device that ran out of memory once must still work */
    if (status == FIRE_NO_MEMORY && slots[SLOTS - 1].weights) {
        for (int i = 0; i < SLOTS; i++) {
            memcpy(slots[i].weights, run->weights, run->bytes);
            fire_result_init(&results[i]);
        }
        expect(run_slots(run, device, slots) == FIRE_OK, "the device did not recover");
    }
    for (int i = 0; i < SLOTS && device; i++)
        backend->host_free(device, slots[i].weights);
    backend->close(device);
    return status;
}

static const struct {
    const char *preset, *settings;
    uint32_t out, in, rank;
} runs[] = {
    { "fire", "", 8, 8, 8 },
    { "fire", "", 64, 64, 64 },
    { "fire", "", 300, 200, 200 },
    { "fire", "compute=f64", 40, 70, 40 },
    { "fire", "compute=fast", 96, 96, 96 },
    { "fire", "compute=fast", 200, 160, 160 },
    { "fire", "", 64, 64, 50 },
    { "fire", "complete=on", 64, 64, 50 },
    { "fire", "scale=keep-norm", 64, 64, 64 },
    { "fire", "scale=mean-sigma", 64, 64, 64 },
    { "fire", "polynomial=cubic side=x", 60, 40, 40 },
    { "fire", "polynomial=cubic steps=6 side=gram", 160, 40, 40 },
    { "fire", "polynomial=minimax", 60, 40, 40 },
    { "fire", "polynomial=muon steps=5 normalize=schatten", 40, 60, 40 },
    { "official-vision", "", 64, 16, 16 },
    { "review", "", 130, 130, 130 },
    { "rust-guide", "", 32, 32, 32 },
};

static void run_init(struct batch_run *run, const char *preset, const char *settings,
                     const uint32_t shape[2], uint32_t rank)
{
    const size_t count = (size_t)shape[0] * shape[1];
    const uint32_t r = shape[0] < shape[1] ? shape[0] : shape[1];
    double *sigma = matrix_alloc(r, 1);
    double *w = matrix_alloc(shape[0], shape[1]);
    struct fire_options options;
    struct fire_random random;

    fire_random_init(&random, 31);
    spectrum_deficient(&random, r, rank, sigma);
    options_make(&options, preset, settings);
    projection_plan(&options, shape[0], shape[1], &run->plan);
    run->plan.statistics |= FIRE_STATISTICS_SPECTRUM;
    matrix_with_spectrum(&random, run->plan.rows, run->plan.cols, sigma, w);
    run->bytes = fire_plan_slot_bytes(&run->plan);
    run->known = false;
    run->projected = matrix_alloc(shape[0], shape[1]);
    run->weights = w;
    if (run->plan.compute == FIRE_F32) {
        run->weights = malloc(run->bytes);
        ck_assert_ptr_nonnull(run->weights);
        matrix_to_f32(w, count, run->weights);
        free(w);
    }
    free(sigma);
}

START_TEST(running_a_plan_survives)
{
    const uint32_t shape[2] = { runs[_i].out, runs[_i].in };
    struct batch_run run;

    run_init(&run, runs[_i].preset, runs[_i].settings, shape, runs[_i].rank);
    ck_assert_int_eq(run_batch(&run), FIRE_OK);
    ck_assert_uint_gt(exhaust(runs[_i].settings, run_batch, &run), SLOTS);
    free(run.weights);
    free(run.projected);
}
END_TEST

START_TEST(an_analysis_survives)
{
    const uint32_t shape[2] = { 48, 32 };
    struct batch_run run;

    run_init(&run, "fire", "", shape, _i ? 20 : 32); /* rank 20: the spectrum needs an SVD */
    run.plan.kind = FIRE_PLAN_ANALYZE;
    ck_assert_int_eq(run_batch(&run), FIRE_OK);
    ck_assert_uint_gt(exhaust("analyze", run_batch, &run), SLOTS);
    free(run.weights);
    free(run.projected);
}
END_TEST

struct matrix_run {
    const double *w;
    uint32_t rows, cols;
    const struct fire_plan *plan;
};

static enum fire_status values_of(void *data)
{
    const struct matrix_run *run = data;
    struct fire_error error;
    double values[64];

    return fire_singular_values(run->w, FIRE_F64, run->rows, run->cols, run->cols, 1.0, values,
                                &error);
}

static enum fire_status features_of(void *data)
{
    const struct matrix_run *run = data;
    struct fire_moment moment;
    struct fire_error error;

    return fire_moment_of_features(run->w, FIRE_F64, run->cols, run->rows, &moment, &error);
}

static enum fire_status largest_of(void *data)
{
    const struct matrix_run *run = data;
    const struct fire_gram gram = { run->w, FIRE_F64, run->cols, run->cols, 1.0, NULL };
    struct fire_moment moment = { .norm = 1.0, .spectral_norm = 42.0 };
    const enum fire_status status = fire_moment_spectral_norm(&gram, &moment);

    expect(status == FIRE_OK || moment.spectral_norm == 42.0, "the moment was written");
    return status;
}

static enum fire_status reference_of(void *data)
{
    const struct matrix_run *run = data;
    double result[64 * 64];

    return fire_plan_ref(run->plan, run->w, NULL, result);
}

static enum fire_status wide_steps_of(void *data)
{
    static const struct fire_polynomial_step cubic = { 2, { 1.5, -0.5 } };
    const struct matrix_run *run = data;
    double x[64 * 64];

    memcpy(x, run->w, (size_t)run->rows * run->cols * sizeof(*x));
    return fire_polynomial_ref(x, run->cols, run->rows, &cubic, 1);
}

START_TEST(statistics_and_reference_survive)
{
    static const char *const plans[] = {
        "",
        "scale=mean-sigma",
        "polynomial=cubic steps=2",
        "polynomial=cubic steps=2 normalize=spectral",
        "polynomial=cubic steps=2 normalize=schatten scale=keep-norm",
    };
    double *w = matrix_alloc(48, 32);
    double sigma[32];
    struct fire_plan plan;
    struct matrix_run run = { w, 48, 32, &plan };
    struct fire_options options;
    struct fire_random random;

    fire_random_init(&random, 32);
    spectrum_log_spaced(32, _i ? 1e7 : 10.0, sigma); /* by an SVD, or by the Gram side */
    matrix_with_spectrum(&random, 48, 32, sigma, w);
    ck_assert_uint_gt(exhaust("singular values", values_of, &run), 0);
    ck_assert_uint_gt(exhaust("features", features_of, &run), 0);
    ck_assert_uint_gt(exhaust("wide steps", wide_steps_of, &run), 0);
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
        options_make(&options, "fire", plans[i]);
        projection_plan(&options, 48, 32, &plan);
        ck_assert_uint_gt(exhaust(plans[i], reference_of, &run), 0);
    }
    /* any symmetric matrix will do as G */
    for (size_t i = 0; i < 32; i++)
        for (size_t j = 0; j < 32; j++)
            w[i * 32 + j] = i == j ? 1.0 + (double)i : 0.1;
    ck_assert_uint_gt(exhaust("largest eigenvalue", largest_of, &run), 0);
    free(w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("allocation");
    TCase *tests = tcase_create("failure of the n-th allocation");
    SRunner *runner;
    int failed;

    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, opening_a_device_survives);
    tcase_add_loop_test(tests, want_of_memory_is_not_remembered, 0, 6);
    tcase_add_loop_test(tests, running_a_plan_survives, 0, sizeof(runs) / sizeof(runs[0]));
    tcase_add_loop_test(tests, an_analysis_survives, 0, 2);
    tcase_add_loop_test(tests, statistics_and_reference_survive, 0, 2);
    suite_add_tcase(suite, tests);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
