/* firectl_selftest: every compute path this machine has, on a handful of shapes and presets,
 * against the plain float64 definition (kernels/polar_ref.h). Says which path is in use and why. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "firectl.h"
#include "polar_ref.h"
#include "random.h"

#define SEED       20240917u
#define SIDE_BYTES 32u

const char *const firectl_paths[FIRECTL_PATH_COUNT] = { "portable", "avx2", "avx512", "amx" };

/* clang-format off */
static const struct {
    const char *preset;
    const char *set; /* NULL, or one key=value */
    enum fire_dtype dtype;
    uint64_t out, in;
    double tolerance; /* relative, Frobenius */
} cases[] = {
    { "fire",            NULL,            FIRE_F32,   8,   8, 1e-5 },
    { "fire",            NULL,            FIRE_F32,  64,  64, 1e-5 },
    { "fire",            NULL,            FIRE_F32, 128,  48, 1e-5 },
    { "fire",            NULL,            FIRE_F32,  33, 100, 1e-5 },
    { "fire",            NULL,            FIRE_F32, 192, 160, 1e-5 },
    { "fire",            "compute=f64",   FIRE_F64,  64,  48, 1e-12 },
    { "fire",            NULL,            FIRE_BF16, 64,  64, 4e-3 },
    { "fire",            NULL,            FIRE_F16,  64,  64, 5e-4 },
    { "official-vision", NULL,            FIRE_F32,  64,  96, 1e-5 },
    { "review",          NULL,            FIRE_F32,  96,  64, 1e-5 },
    { "fire",            "scale=mean-sigma", FIRE_F32, 48, 64, 1e-5 },
};
/* clang-format on */
#define CASE_COUNT (sizeof(cases) / sizeof(cases[0]))

/* Memory of one case. */
struct work {
    unsigned char *weights; /* as the library gets them */
    unsigned char *out;
    double *slot;     /* long x short */
    double *expected; /* long x short */
};

static void work_release(struct work *work)
{
    free(work->weights);
    free(work->out);
    free(work->slot);
    free(work->expected);
}

/* Gaussian weights, rounded to the case's dtype. */
static void draw(size_t index, struct work *work)
{
    const uint64_t elements = cases[index].out * cases[index].in;
    struct fire_random random;

    fire_random_init(&random, SEED + index);
    for (uint64_t i = 0; i < elements; i++) {
        const double wide = 0.05 * fire_random_normal(&random);
        const float single = (float)wide;
        uint16_t half;

        switch (cases[index].dtype) {
        case FIRE_F64: memcpy(work->weights + 8 * i, &wide, 8); break;
        case FIRE_F32: memcpy(work->weights + 4 * i, &single, 4); break;
        case FIRE_BF16:
            half = fire_f32_to_bf16(single);
            memcpy(work->weights + 2 * i, &half, 2);
            break;
        case FIRE_F16:
            half = fire_f32_to_f16(single);
            memcpy(work->weights + 2 * i, &half, 2);
            break;
        }
    }
}

static enum fire_status reference(const struct fire_tensor *tensor, struct work *work,
                                  struct fire_view *view, struct fire_error *error)
{
    struct fire_plan plan;
    enum fire_status status;
    uint64_t count;

    status = fire_view_count(&tensor->shape, &tensor->options, &count, error);
    if (status != FIRE_OK)
        return status;
    fire_view_at(&tensor->shape, &tensor->options, 0, view);
    status = fire_plan_make(&plan, &tensor->options, view, tensor->dtype, 0, error);
    if (status == FIRE_OK)
        status = fire_view_gather(view, tensor->data, tensor->dtype, FIRE_F64, work->slot, NULL);
    if (status == FIRE_OK)
        status = fire_plan_ref(&plan, work->slot, NULL, work->expected);
    return status;
}

static enum fire_status run_case(struct fire_client *client, size_t index, double *distance,
                                 struct fire_error *error)
{
    const uint64_t elements = cases[index].out * cases[index].in;
    struct fire_tensor tensor = { .name = "selftest", .dtype = cases[index].dtype };
    struct work work = { 0 };
    struct fire_view view;
    double difference = 0.0, size = 0.0;
    enum fire_status status;

    tensor.shape = (struct fire_shape){ 2, { cases[index].out, cases[index].in } };
    status = fire_options_preset(&tensor.options, cases[index].preset, error);
    if (status == FIRE_OK && cases[index].set)
        status = fire_options_set_pair(&tensor.options, cases[index].set, error);
    work.weights = malloc(elements * sizeof(double));
    work.out = malloc(elements * sizeof(double));
    work.slot = malloc(elements * sizeof(double));
    work.expected = malloc(elements * sizeof(double));
    if (status == FIRE_OK && (!work.weights || !work.out || !work.slot || !work.expected))
        status = fire_fail_memory(error, 4 * elements * sizeof(double));
    if (status == FIRE_OK) {
        draw(index, &work);
        tensor.data = work.weights;
        tensor.out = work.out;
        status = reference(&tensor, &work, &view, error);
    }
    if (status == FIRE_OK)
        status = fire_client_reinit(client, &tensor, 1, FIRE_STATISTICS_BASIC, error);
    if (status == FIRE_OK)
        status = fire_view_gather(&view, work.out, tensor.dtype, FIRE_F64, work.slot, NULL);
    for (uint64_t i = 0; status == FIRE_OK && i < elements; i++) {
        difference += (work.slot[i] - work.expected[i]) * (work.slot[i] - work.expected[i]);
        size += work.expected[i] * work.expected[i];
    }
    *distance = sqrt(difference / size);
    work_release(&work);
    return status;
}

/* One line about one case; true when it passed. */
static bool show_case(const struct firectl_args *args, const char *path, size_t index,
                      double distance, bool *failed)
{
    const bool passed = distance <= cases[index].tolerance;
    char shape[SIDE_BYTES];
    json_t *object;

    snprintf(shape, sizeof(shape), "%ux%u", (unsigned)cases[index].out, (unsigned)cases[index].in);
    if (!args->json) {
        printf("  %-15s %-16s %-9s %-5s %10.2e  %s\n", cases[index].preset,
               cases[index].set ? cases[index].set : "", shape, fire_dtype_name(cases[index].dtype),
               distance, passed ? "ok" : "WRONG");
        return passed;
    }
    object = json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:b}", "path", path, "preset",
                       cases[index].preset, "set", cases[index].set ? cases[index].set : "",
                       "shape", shape, "dtype", fire_dtype_name(cases[index].dtype), "error",
                       isfinite(distance) ? distance : -1.0, "tolerance", cases[index].tolerance,
                       "ok", (int)passed);
    if (!object || json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15)) != 0 ||
        putchar('\n') == EOF)
        *failed = true;
    json_decref(object);
    return passed;
}

/* Runs every case on one path; counts what went wrong. `used` is false when the machine lacks it.
 */
static enum fire_status test_path(const struct firectl_args *args, const char *path, bool *used,
                                  uint32_t *wrong, struct fire_error *error)
{
    const struct fire_local_settings settings = { .threads = args->threads, .path = path };
    struct fire_client *client;
    struct fire_caps caps = { 0 };
    enum fire_status status = fire_client_open_local(&settings, &client, error);
    bool failed = false;

    *used = status == FIRE_OK;
    if (status != FIRE_OK)
        return status;
    fire_client_caps(client, &caps);
    if (!args->json)
        printf("%s: %s, %u thread%s, %s\n", caps.path, caps.name, caps.threads,
               caps.threads == 1 ? "" : "s", caps.reason);
    for (size_t i = 0; status == FIRE_OK && i < CASE_COUNT; i++) {
        double distance = NAN;

        status = run_case(client, i, &distance, error);
        if (status == FIRE_OK && !show_case(args, caps.path, i, distance, &failed))
            (*wrong)++;
    }
    fire_client_close(client);
    if (failed)
        return fire_fail(error, FIRE_IO, NULL, "the results could not be written");
    return status;
}

/* What `auto` takes on this machine. */
static enum fire_status show_choice(const struct firectl_args *args, struct fire_error *error)
{
    const struct fire_local_settings settings = { .threads = args->threads, .path = args->path };
    struct fire_client *client;
    struct fire_caps caps = { 0 };
    enum fire_status status = fire_client_open_local(&settings, &client, error);
    json_t *object;

    if (status != FIRE_OK)
        return status;
    fire_client_caps(client, &caps);
    fire_client_close(client);
    if (!args->json) {
        printf("in use: %s on %s, %u thread%s (%s)\n", caps.path, caps.name, caps.threads,
               caps.threads == 1 ? "" : "s", caps.reason);
        return FIRE_OK;
    }
    object = json_pack("{s:s, s:s, s:i, s:s}", "in_use", caps.path, "device", caps.name, "threads",
                       (int)caps.threads, "reason", caps.reason);
    if (!object || json_dumpf(object, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF)
        status = fire_fail(error, FIRE_IO, NULL, "the results could not be written");
    json_decref(object);
    return status;
}

enum firectl_exit firectl_selftest(const struct firectl_args *args)
{
    const bool all = !args->path || strcmp(args->path, "auto") == 0;
    struct fire_error error = { 0 };
    uint32_t wrong = 0;
    uint32_t tested = 0;

    if (show_choice(args, &error) != FIRE_OK)
        return firectl_fail(&error);
    for (size_t i = 0; i < (all ? FIRECTL_PATH_COUNT : 1); i++) {
        const char *path = all ? firectl_paths[i] : args->path;
        bool used;

        if (test_path(args, path, &used, &wrong, &error) == FIRE_OK) {
            tested++;
            continue;
        }
        if (used || !all || error.status == FIRE_NO_MEMORY)
            return firectl_fail(&error);
        firectl_say("path %s was not tested: %s", path, error.message);
    }
    if (wrong || tested == 0) {
        firectl_say("%u cases differ from the reference; do not use this build on this machine",
                    wrong);
        return FIRECTL_FAILED;
    }
    if (!args->json)
        printf("%u path%s tested, all cases agree with the float64 reference\n", tested,
               tested == 1 ? "" : "s");
    return FIRECTL_DONE;
}
