/* world: the lock, the counters, the log of calls, failures on demand, settings. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"

#define LOG_MAX           (1u << 20)
#define COMPLAINT_BYTES   512
#define CALL_SECONDS      1.0e-6 /* what a call costs the thread that makes it */
#define RANGE_GIB_DEFAULT 1024u

/* cublasStatus_t; its header belongs to the other library */
#define BLAS_ALLOC_FAILED     3
#define BLAS_EXECUTION_FAILED 13

struct emu_world emu_world;

static const struct {
    const char *name;
    enum emu_kind kind;
} api_table[] = {
#define EMULATED_API_ROW(name, kind) { #name, KIND_##kind },
    EMULATED_API(EMULATED_API_ROW)
#undef EMULATED_API_ROW
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t ticket_next; /* first come, first served: threads take turns as devices would */
    uint64_t ticket_served;
    bool ready;
    uint64_t calls_of[API_COUNT];
    char complaint[COMPLAINT_BYTES];

    /* the failure that is armed */
    int fail_api; /* API_COUNT: any */
    uint64_t fail_in;
    int fail_code;
    const char *failed;

    struct emulator_call *log;
    size_t log_count;
    bool logging;
    const char *report;
    uint64_t clock_round; /* bumped by reset_clock: threads start again from 0 */
} state = { .lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER };

static __thread struct {
    uint32_t device;
    int last_error;
    double host_s;
    uint64_t clock_round;
} thread;

static struct emulator_control control_table;

static void arm(const char *api, uint64_t nth, int code)
{
    state.fail_in = nth;
    state.fail_code = code;
    state.failed = NULL;
    state.fail_api = API_COUNT;
    for (int i = 0; api && i < API_COUNT; i++) {
        if (strcmp(api, api_table[i].name) == 0)
            state.fail_api = i;
    }
    if (api && strcmp(api, "*") != 0 && state.fail_api == API_COUNT)
        emu_complain("there is no function %s that could be made to fail", api);
}

static void write_report(void)
{
    const struct emulator_counters *const c = &emu_world.counters;
    FILE *const file = state.report ? fopen(state.report, "w") : NULL;

    if (!file)
        return;
    fprintf(file, "api_calls %llu\nwaits %llu\npolls %llu\n", (unsigned long long)c->api_calls,
            (unsigned long long)c->waits, (unsigned long long)c->polls);
    fprintf(file, "device_allocations %llu\nhost_allocations %llu\npageable_copies %llu\n",
            (unsigned long long)c->device_allocations, (unsigned long long)c->host_allocations,
            (unsigned long long)c->pageable_copies);
    fprintf(file, "operations %llu\nkernels %llu\ngemms %llu\ngraph_launches %llu\n",
            (unsigned long long)c->operations, (unsigned long long)c->kernels,
            (unsigned long long)c->gemms, (unsigned long long)c->graph_launches);
    fprintf(file, "live_device_allocations %llu\nlive_host_allocations %llu\n",
            (unsigned long long)c->live_device_allocations,
            (unsigned long long)c->live_host_allocations);
    fprintf(file, "complaints %llu\n", (unsigned long long)c->complaints);
    if (state.complaint[0])
        fprintf(file, "first_complaint %s\n", state.complaint);
    fclose(file);
}

static bool parse_schedule(const char *text)
{
    unsigned long long seed;

    if (strcmp(text, "eager") == 0) {
        emu_world.schedule = SCHEDULE_EAGER;
    } else if (strcmp(text, "lazy") == 0) {
        emu_world.schedule = SCHEDULE_LAZY;
    } else if (sscanf(text, "random:%llu", &seed) == 1) {
        emu_world.schedule = SCHEDULE_RANDOM;
        emu_world.random = seed * 0x9E3779B97F4A7C15u + 1;
        emu_world.laziness = seed % 8;
    } else {
        return false;
    }
    return true;
}

static bool take_model(const char *name)
{
    const struct emu_model *const model = emu_model_find(name);

    for (uint32_t i = 0; model && i < EMULATOR_DEVICES_MAX; i++) {
        emu_world.devices[i].model = model;
        emu_world.devices[i].memory_limit = model->memory_bytes;
    }
    return model != NULL;
}

static void read_failures(void)
{
    const char *text = getenv("FIRE_EMULATOR_FAIL");
    char name[64];
    unsigned long long nth = 0;
    int code = 0;

    if (text && sscanf(text, "%63[^:]:%llu:%d", name, &nth, &code) >= 2)
        arm(name, nth, code);
    code = 0;
    text = getenv("FIRE_EMULATOR_FAIL_ASYNC");
    if (text && sscanf(text, "%llu:%d", &nth, &code) >= 1)
        control_table.fail_operation(nth, code);
}

/* Settings that make no sense end the process: a test that runs with others proves nothing. */
static void read_settings(void)
{
    const char *text = getenv("FIRE_EMULATOR_MODEL");
    size_t range = (size_t)RANGE_GIB_DEFAULT << 30;
    bool good;

    good = take_model(text ? text : "H100");
    text = getenv("FIRE_EMULATOR_SCHEDULE");
    good = good && parse_schedule(text ? text : "eager");
    if (!good) {
        fprintf(stderr, "CUDA emulator: FIRE_EMULATOR_MODEL or _SCHEDULE is unknown\n");
        abort();
    }
    text = getenv("FIRE_EMULATOR_DEVICES");
    emu_world.device_count = text ? (uint32_t)strtoul(text, NULL, 10) : 1;
    if (emu_world.device_count > EMULATOR_DEVICES_MAX)
        emu_world.device_count = EMULATOR_DEVICES_MAX;
    text = getenv("FIRE_EMULATOR_MEMORY");
    for (uint32_t i = 0; i < EMULATOR_DEVICES_MAX; i++) {
        struct emu_stream *const null_stream = &emu_world.devices[i].null_stream;

        if (text)
            emu_world.devices[i].memory_limit = strtoull(text, NULL, 10);
        null_stream->device = i;
        null_stream->tail = &null_stream->head;
    }
    text = getenv("FIRE_EMULATOR_RANGE_GIB");
    if (text)
        range = (size_t)strtoull(text, NULL, 10) << 30;
    emu_memory_open(range);
    state.report = getenv("FIRE_EMULATOR_REPORT");
    if (state.report)
        atexit(write_report);
}

void emu_lock(void)
{
    uint64_t ticket;

    pthread_mutex_lock(&state.lock);
    ticket = state.ticket_next++;
    while (state.ticket_served != ticket)
        pthread_cond_wait(&state.turn, &state.lock);
    pthread_mutex_unlock(&state.lock);
    if (!state.ready) {
        state.ready = true;
        state.fail_api = API_COUNT;
        read_settings();
        read_failures();
    }
    if (thread.clock_round != state.clock_round) {
        thread.clock_round = state.clock_round;
        thread.host_s = 0.0;
    }
}

void emu_unlock(void)
{
    pthread_mutex_lock(&state.lock);
    state.ticket_served++;
    pthread_cond_broadcast(&state.turn);
    pthread_mutex_unlock(&state.lock);
}

void emu_complain(const char *format, ...)
{
    char words[COMPLAINT_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(words, sizeof(words), format, arguments);
    va_end(arguments);
    emu_world.counters.complaints++;
    if (!state.complaint[0])
        memcpy(state.complaint, words, sizeof(words));
    fprintf(stderr, "CUDA emulator: %s\n", words);
}

static bool is_blas(enum emu_api api)
{
    return strncmp(api_table[api].name, "cublas", 6) == 0;
}

/* The code that fits a call made to fail, as the real library would report it. */
static int default_code(enum emu_api api)
{
    const enum emu_kind kind = api_table[api].kind;

    if (is_blas(api))
        return kind == KIND_MAKE ? BLAS_ALLOC_FAILED : BLAS_EXECUTION_FAILED;
    switch (kind) {
    case KIND_MAKE: return cudaErrorMemoryAllocation;
    case KIND_WAIT:
    case KIND_POLL: return cudaErrorLaunchFailure;
    case KIND_RELEASE:
    case KIND_QUEUE:
    case KIND_PLAIN: break;
    }
    return cudaErrorUnknown;
}

static int injected(enum emu_api api)
{
    if (state.fail_in == 0 || (state.fail_api != API_COUNT && state.fail_api != (int)api))
        return 0;
    if (--state.fail_in > 0)
        return 0;
    state.failed = api_table[api].name;
    return state.fail_code ? state.fail_code : default_code(api);
}

static bool kills(enum emu_api api, int code)
{
    return !is_blas(api) && (code == cudaErrorLaunchFailure || code == cudaErrorIllegalAddress);
}

int emu_enter(enum emu_api api, const void *site)
{
    struct emulator_counters *const counters = &emu_world.counters;
    int code;

    emu_lock();
    counters->api_calls++;
    state.calls_of[api]++;
    counters->waits += api_table[api].kind == KIND_WAIT;
    counters->polls += api_table[api].kind == KIND_POLL;
    thread.host_s += CALL_SECONDS;
    if (state.logging && state.log_count < LOG_MAX)
        state.log[state.log_count++] = (struct emulator_call){ api_table[api].name, site };
    emu_random_steps();

    code = injected(api);
    if (code && kills(api, code))
        emu_world.devices[thread.device].lost = code;
    if (!code && is_blas(api) && emu_device_code(thread.device))
        code = BLAS_EXECUTION_FAILED;
    if (!code && api != API_cudaGetDeviceCount && api != API_cudaDriverGetVersion &&
        api != API_cudaRuntimeGetVersion && api != API_cudaDeviceReset && api != API_cudaSetDevice)
        code = emu_device_code(thread.device);
    return code;
}

int emu_leave(int code)
{
    if (code && code != cudaErrorNotReady)
        thread.last_error = code;
    emu_unlock();
    return code;
}

int emu_leave_plain(int code)
{
    emu_unlock();
    return code;
}

int emu_last_error(bool clear)
{
    const int lost = emu_device_code(thread.device);
    const int code = thread.last_error ? thread.last_error : lost;

    if (clear)
        thread.last_error = 0;
    return code;
}

int emu_device_code(uint32_t device)
{
    return device < EMULATOR_DEVICES_MAX ? emu_world.devices[device].lost : 0;
}

uint32_t emu_current_device(void)
{
    return thread.device;
}

void emu_set_current_device(uint32_t device)
{
    thread.device = device;
}

double emu_host_now(void)
{
    return thread.host_s;
}

void emu_host_wait_until(double seconds)
{
    if (thread.host_s < seconds)
        thread.host_s = seconds;
}

/* splitmix64 */
uint64_t emu_random(uint64_t below)
{
    uint64_t z = emu_world.random += 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % below;
}

/* --- control */

static void control_counters(struct emulator_counters *counters)
{
    emu_lock();
    *counters = emu_world.counters;
    emu_unlock();
}

static void control_clock(uint32_t index, struct emulator_clock *clock)
{
    const struct emu_device *const device = &emu_world.devices[index % EMULATOR_DEVICES_MAX];

    emu_lock();
    *clock = (struct emulator_clock){
        .host_s = thread.host_s,
        .end_s = device->end_s,
        .compute_s = device->engine_busy_s[ENGINE_COMPUTE],
        .to_device_s = device->engine_busy_s[ENGINE_TO_DEVICE],
        .to_host_s = device->engine_busy_s[ENGINE_TO_HOST],
        .flops = device->flops,
        .link_bytes_per_s = device->model->link_bytes_per_s,
        .flops_per_s = device->model->fp32_flops,
    };
    emu_unlock();
}

static void control_reset_clock(void)
{
    emu_lock();
    emu_finish_all();
    state.clock_round++;
    for (uint32_t i = 0; i < EMULATOR_DEVICES_MAX; i++) {
        struct emu_device *const device = &emu_world.devices[i];

        memset(device->engine_free_s, 0, sizeof(device->engine_free_s));
        memset(device->engine_busy_s, 0, sizeof(device->engine_busy_s));
        device->end_s = 0.0;
        device->flops = 0.0;
        device->null_stream.ready_s = 0.0;
    }
    for (struct emu_stream *stream = emu_world.streams; stream; stream = stream->next)
        stream->ready_s = 0.0;
    emu_unlock();
}

static const char *control_complaint(void)
{
    return state.complaint;
}

static void control_forget(void)
{
    emu_lock();
    state.complaint[0] = '\0';
    emu_world.counters.complaints = 0;
    emu_unlock();
}

static bool control_schedule(const char *text)
{
    bool good;

    emu_lock();
    emu_finish_all();
    good = parse_schedule(text);
    emu_unlock();
    return good;
}

static bool control_model(const char *name)
{
    bool good;

    emu_lock();
    good = take_model(name);
    emu_unlock();
    return good;
}

static void control_memory_limit(size_t bytes)
{
    emu_lock();
    for (uint32_t i = 0; i < EMULATOR_DEVICES_MAX; i++)
        emu_world.devices[i].memory_limit = bytes;
    emu_unlock();
}

static void control_fail(const char *api, uint64_t nth, int code)
{
    emu_lock();
    arm(api, nth, code);
    emu_unlock();
}

static const char *control_failed(void)
{
    return state.failed;
}

static bool control_lost(uint32_t device)
{
    return emu_device_code(device) != 0;
}

static bool control_memory_has(const void *bytes, size_t count)
{
    bool has;

    emu_lock();
    emu_finish_all();
    has = emu_memory_has(bytes, count);
    emu_unlock();
    return has;
}

static void control_start_log(void)
{
    emu_lock();
    if (!state.log)
        state.log = calloc(LOG_MAX, sizeof(*state.log));
    state.logging = state.log != NULL;
    state.log_count = 0;
    emu_unlock();
}

static size_t control_log_count(void)
{
    return state.log_count;
}

static struct emulator_call control_log_at(size_t index)
{
    return index < state.log_count ? state.log[index] : (struct emulator_call){ NULL, NULL };
}

static uint64_t control_calls_of(const char *api)
{
    for (int i = 0; i < API_COUNT; i++) {
        if (strcmp(api, api_table[i].name) == 0)
            return state.calls_of[i];
    }
    return 0;
}

static struct emulator_control control_table = {
    .counters = control_counters,
    .clock = control_clock,
    .reset_clock = control_reset_clock,
    .complaint = control_complaint,
    .forget_complaints = control_forget,
    .schedule = control_schedule,
    .model = control_model,
    .memory_limit = control_memory_limit,
    .fail_call = control_fail,
    .failed = control_failed,
    .fail_operation = emu_fail_operation,
    .lost = control_lost,
    .revive = emu_revive,
    .turns = emu_turns,
    .memory_has = control_memory_has,
    .start_log = control_start_log,
    .log_count = control_log_count,
    .log_at = control_log_at,
    .calls_of = control_calls_of,
};

EMU_SHARED const struct emulator_control *fire_emulator_control(void)
{
    emu_lock();
    emu_unlock();
    return &control_table;
}
