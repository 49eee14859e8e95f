/* The emulated runtime itself: what it must see, it sees, and what is right it lets pass. The
 * kernels were compiled by nvcc, and the program was linked to the real libraries. */
#include <check.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emulator_access.h"
#include "probe_launch.h"
#include "random.h"

#define COUNT 1000u

static const struct emulator_control *control;

static void setup(void)
{
    control->schedule("eager");
    control->model("H100");
    control->fail_call(NULL, 0, 0);
    control->revive();
    control->forget_complaints();
    control->reset_clock();
}

static struct emulator_counters counters(void)
{
    struct emulator_counters now;

    control->counters(&now);
    return now;
}

static void must(int code)
{
    ck_assert_msg(code == 0, "code %d; %s", code, control->complaint());
}

static float *device_floats(size_t count)
{
    void *memory = NULL;

    must(cudaMalloc(&memory, count * sizeof(float)));
    return memory;
}

static float *pinned_floats(size_t count)
{
    void *memory = NULL;

    must(cudaMallocHost(&memory, count * sizeof(float)));
    for (size_t i = 0; i < count; i++)
        ((float *)memory)[i] = (float)i;
    return memory;
}

static cudaStream_t stream_new(void)
{
    cudaStream_t stream;

    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/* What a child process says on stderr before it dies of `action`. */
static void death(void (*action)(void), char *words, size_t bytes, int *status)
{
    int ends[2];
    pid_t child;
    size_t length = 0;
    ssize_t got;

    ck_assert_int_eq(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        action();
        _exit(0);
    }
    close(ends[1]);
    while ((got = read(ends[0], words + length, bytes - 1 - length)) > 0)
        length += (size_t)got;
    words[length] = '\0';
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, status, 0), child);
}

static void read_device_memory(void)
{
    volatile float *const memory = device_floats(4);

    memory[0] = 1.0f;
}

static void leave_an_allocation(void)
{
    probe_beyond(stream_new(), device_floats(16), 16);
}

/* Neither the host nor a kernel gets away with memory that is not its own. */
START_TEST(foreign_memory_is_a_fault_with_a_reason)
{
    char words[4096];
    int status;

    death(read_device_memory, words, sizeof(words), &status);
    ck_assert(status != 0);
    ck_assert_msg(strstr(words, "host code touched device memory"), "said: %s", words);
    death(leave_an_allocation, words, sizeof(words), &status);
    ck_assert(status != 0);
    ck_assert_msg(strstr(words, "out of bounds in kernel probe_k_beyond"), "said: %s", words);
}
END_TEST

START_TEST(fresh_memory_is_not_a_number)
{
    float *const device = device_floats(COUNT);
    float *const host = pinned_floats(COUNT);

    must(cudaMemcpy(host, device, COUNT * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < COUNT; i++)
        ck_assert(isnan(host[i]));
    must(cudaFree(device));
    must(cudaFreeHost(host));
}
END_TEST

START_TEST(copies_outside_an_allocation_are_refused)
{
    float *const device = device_floats(COUNT);
    float *const host = pinned_floats(2 * COUNT);
    const uint64_t before = counters().complaints;

    ck_assert_int_ne(cudaMemcpy(device, host, (COUNT + 1) * sizeof(float), cudaMemcpyHostToDevice),
                     0);
    ck_assert_int_ne(cudaMemcpy(host, device, 4, cudaMemcpyHostToDevice), 0);
    must(cudaFree(device));
    ck_assert_int_ne(cudaMemcpy(host, device, 4, cudaMemcpyDeviceToHost), 0);
    ck_assert_int_ne(cudaFree(device), 0);
    ck_assert_uint_eq(counters().complaints, before + 4);
    cudaGetLastError();
    must(cudaFreeHost(host));
}
END_TEST

/* Pageable memory works, and is counted. */
START_TEST(pageable_copies_are_counted)
{
    float *const device = device_floats(COUNT);
    float plain[COUNT];
    const uint64_t before = counters().pageable_copies;
    cudaStream_t stream = stream_new();

    for (size_t i = 0; i < COUNT; i++)
        plain[i] = (float)i;
    must(cudaMemcpyAsync(device, plain, sizeof(plain), cudaMemcpyHostToDevice, stream));
    memset(plain, 0, sizeof(plain));
    must(cudaMemcpyAsync(plain, device, sizeof(plain), cudaMemcpyDeviceToHost, stream));
    ck_assert(plain[7] == 7.0f);
    ck_assert_uint_eq(counters().pageable_copies, before + 2);
    must(cudaStreamDestroy(stream));
    must(cudaFree(device));
}
END_TEST

static const char *const schedules[] = { "eager", "lazy", "random:1", "random:2", "random:3" };
#define SCHEDULES (sizeof(schedules) / sizeof(schedules[0]))

/* Scale, reverse, sum: barriers, static and dynamic shared memory, a tail that is not full. */
START_TEST(kernels_compute_under_every_schedule)
{
    float *const device = device_floats(COUNT);
    float *const partial = device_floats(16);
    float *const host = pinned_floats(COUNT);
    cudaStream_t stream = stream_new();
    float sum = 0.0f;

    ck_assert(control->schedule(schedules[_i]));
    must(cudaMemcpyAsync(device, host, COUNT * sizeof(float), cudaMemcpyHostToDevice, stream));
    must(probe_scale(stream, device, 2.0f, COUNT));
    must(probe_reverse(stream, device, COUNT / 100, 100));
    must(probe_sum(stream, device, partial, COUNT));
    must(cudaMemcpyAsync(host, device, COUNT * sizeof(float), cudaMemcpyDeviceToHost, stream));
    must(cudaStreamSynchronize(stream));
    ck_assert(host[0] == 2.0f * 99.0f && host[99] == 0.0f && host[100] == 2.0f * 199.0f);
    must(cudaMemcpyAsync(host, partial, 16 * sizeof(float), cudaMemcpyDeviceToHost, stream));
    must(cudaStreamSynchronize(stream));
    for (int i = 0; i < 16; i++)
        sum += host[i];
    ck_assert_msg(sum == 2.0f * 499500.0f, "sum %f", (double)sum);
    must(cudaStreamDestroy(stream));
    must(cudaFree(device));
    must(cudaFree(partial));
    must(cudaFreeHost(host));
    ck_assert_uint_eq(counters().complaints, 0);
}
END_TEST

/* What a copy will write to is poison until it is waited for. */
START_TEST(reading_before_the_wait_is_seen)
{
    float *const device = device_floats(COUNT);
    float *const host = pinned_floats(COUNT);
    cudaStream_t stream = stream_new();
    cudaEvent_t event;
    int polls = 0;

    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    ck_assert(control->schedule("lazy"));
    must(cudaMemsetAsync(device, 0, COUNT * sizeof(float), stream));
    must(cudaMemcpyAsync(host, device, COUNT * sizeof(float), cudaMemcpyDeviceToHost, stream));
    must(cudaEventRecord(event, stream));
    ck_assert(isnan(host[3]));
    ck_assert_int_eq(cudaEventQuery(event), cudaErrorNotReady);
    while (cudaEventQuery(event) == cudaErrorNotReady && polls < 100)
        polls++;
    ck_assert(polls < 100 && host[3] == 0.0f);
    must(cudaEventDestroy(event));
    must(cudaStreamDestroy(stream));
    must(cudaFree(device));
    must(cudaFreeHost(host));
}
END_TEST

/* Two streams, one scales what the other copied. Returns whether the answer was right. */
static bool two_streams(bool with_event)
{
    float *const device = device_floats(COUNT);
    float *const host = pinned_floats(COUNT);
    cudaStream_t first = stream_new();
    cudaStream_t second = stream_new();
    cudaEvent_t event;
    bool right = true;

    must(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    must(cudaMemcpyAsync(device, host, COUNT * sizeof(float), cudaMemcpyHostToDevice, first));
    must(cudaEventRecord(event, first));
    if (with_event)
        must(cudaStreamWaitEvent(second, event, 0));
    must(probe_scale(second, device, 3.0f, COUNT));
    must(cudaMemcpyAsync(host, device, COUNT * sizeof(float), cudaMemcpyDeviceToHost, second));
    must(cudaStreamSynchronize(second));
    for (size_t i = 0; i < COUNT; i++)
        right = right && host[i] == 3.0f * (float)i;
    must(cudaEventDestroy(event));
    must(cudaStreamDestroy(first));
    must(cudaStreamDestroy(second));
    must(cudaFree(device));
    must(cudaFreeHost(host));
    return right;
}

START_TEST(a_missing_event_is_found_by_some_schedule)
{
    int wrong = 0;

    for (int seed = 0; seed < 30; seed++) {
        char text[32];

        snprintf(text, sizeof(text), seed == 0 ? "lazy" : "random:%d", seed);
        ck_assert(control->schedule(text));
        ck_assert_msg(two_streams(true), "with the event, schedule %s", text);
        wrong += !two_streams(false);
    }
    ck_assert_int_gt(wrong, 5);
    ck_assert_uint_eq(counters().complaints, 0);
}
END_TEST

/* Captured once, run twice; a second stream joins the capture by events. */
START_TEST(graphs_replay_what_was_captured)
{
    float *const device = device_floats(COUNT);
    float *const host = pinned_floats(COUNT);
    cudaStream_t first = stream_new();
    cudaStream_t second = stream_new();
    cudaEvent_t fork_event;
    cudaEvent_t join_event;
    cudaGraph_t graph;
    cudaGraphExec_t program;

    must(cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming));
    must(cudaEventCreateWithFlags(&join_event, cudaEventDisableTiming));
    ck_assert(control->schedule(schedules[_i]));
    must(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    must(cudaMemcpyAsync(device, host, COUNT * sizeof(float), cudaMemcpyHostToDevice, first));
    must(cudaEventRecord(fork_event, first));
    must(cudaStreamWaitEvent(second, fork_event, 0));
    must(probe_scale(second, device, 2.0f, COUNT));
    must(cudaEventRecord(join_event, second));
    must(cudaStreamWaitEvent(first, join_event, 0));
    must(cudaMemcpyAsync(host, device, COUNT * sizeof(float), cudaMemcpyDeviceToHost, first));
    must(cudaStreamEndCapture(first, &graph));
    must(cudaGraphInstantiateWithFlags(&program, graph, 0));
    must(cudaGraphDestroy(graph));
    ck_assert(host[5] == 5.0f);
    must(cudaGraphLaunch(program, first));
    must(cudaGraphLaunch(program, first));
    must(cudaStreamSynchronize(first));
    ck_assert_msg(host[5] == 20.0f, "%f", (double)host[5]);
    must(cudaGraphExecDestroy(program));
    must(cudaEventDestroy(fork_event));
    must(cudaEventDestroy(join_event));
    must(cudaStreamDestroy(first));
    must(cudaStreamDestroy(second));
    must(cudaFree(device));
    must(cudaFreeHost(host));
    ck_assert_uint_eq(counters().complaints, 0);
}
END_TEST

START_TEST(a_capture_is_broken_by_what_it_does_not_allow)
{
    cudaStream_t stream = stream_new();
    cudaGraph_t graph;
    void *memory;

    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ck_assert_int_eq(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    ck_assert_ptr_null(graph);
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    ck_assert_int_ne(cudaStreamEndCapture(stream, &graph), 0);
    ck_assert_uint_eq(counters().complaints, 2);
    cudaGetLastError();
    must(cudaStreamDestroy(stream));
}
END_TEST

/* --- cuBLAS */

struct blas {
    cublasHandle_t handle;
    cudaStream_t stream;
    float *a, *b, *c; /* device */
    float *host;      /* pinned: a, then b, then c */
    void *workspace;
};
#define SIDE  24
#define BATCH 3
#define TOTAL (SIDE * SIDE * BATCH)

static struct blas blas_open(void)
{
    struct blas blas;
    struct fire_random random;

    fire_random_init(&random, 7);
    blas.stream = stream_new();
    blas.a = device_floats(TOTAL);
    blas.b = device_floats(TOTAL);
    blas.c = device_floats(TOTAL);
    blas.host = pinned_floats((size_t)3 * TOTAL);
    for (size_t i = 0; i < (size_t)2 * TOTAL; i++)
        blas.host[i] = (float)fire_random_normal(&random);
    must(cudaMalloc(&blas.workspace, 1 << 20));
    must(cublasCreate(&blas.handle));
    must(cublasSetStream(blas.handle, blas.stream));
    must(cublasSetWorkspace(blas.handle, blas.workspace, 1 << 20));
    must(cudaMemcpy(blas.a, blas.host, TOTAL * sizeof(float), cudaMemcpyHostToDevice));
    must(cudaMemcpy(blas.b, blas.host + TOTAL, TOTAL * sizeof(float), cudaMemcpyHostToDevice));
    return blas;
}

static void blas_close(struct blas *blas)
{
    must(cublasDestroy(blas->handle));
    must(cudaStreamDestroy(blas->stream));
    must(cudaFree(blas->a));
    must(cudaFree(blas->b));
    must(cudaFree(blas->c));
    must(cudaFree(blas->workspace));
    must(cudaFreeHost(blas->host));
}

static cublasStatus_t blas_multiply(const struct blas *blas, bool transpose_a, bool transpose_b,
                                    int batch, cublasComputeType_t type)
{
    const float one = 1.0f;
    const float zero = 0.0f;

    return cublasGemmStridedBatchedEx(
        blas->handle, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
        transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, SIDE - 2, SIDE - 3, SIDE - 4, &one, blas->a,
        CUDA_R_32F, SIDE, SIDE * SIDE, blas->b, CUDA_R_32F, SIDE, SIDE * SIDE, &zero, blas->c,
        CUDA_R_32F, SIDE, SIDE * SIDE, batch, type, CUBLAS_GEMM_DEFAULT);
}

/* The largest difference from plain loops in double, over the batch; the result is in c's host. */
static double blas_error(const struct blas *blas, bool transpose_a, bool transpose_b, int batch)
{
    const float *const c = blas->host + (size_t)2 * TOTAL;
    double worst = 0.0;

    must(cudaMemcpy(blas->host + (size_t)2 * TOTAL, blas->c, TOTAL * sizeof(float),
                    cudaMemcpyDeviceToHost));
    for (int n = 0; n < batch; n++) {
        const float *const x = blas->host + (size_t)n * SIDE * SIDE;
        const float *const y = x + TOTAL;

        for (int i = 0; i < SIDE - 2; i++) {
            for (int j = 0; j < SIDE - 3; j++) {
                double sum = 0.0;

                for (int k = 0; k < SIDE - 4; k++)
                    sum += (double)(transpose_a ? x[i * SIDE + k] : x[k * SIDE + i]) *
                           (double)(transpose_b ? y[k * SIDE + j] : y[j * SIDE + k]);
                worst = fmax(worst, fabs(sum - (double)c[n * SIDE * SIDE + j * SIDE + i]));
            }
        }
    }
    return worst;
}

START_TEST(products_are_right_and_do_not_depend_on_the_batch)
{
    struct blas blas = blas_open();
    float alone[SIDE * SIDE];

    for (int form = 0; form < 4; form++) {
        must(blas_multiply(&blas, form & 1, form & 2, 1, CUBLAS_COMPUTE_32F));
        must(cudaStreamSynchronize(blas.stream));
        ck_assert(blas_error(&blas, form & 1, form & 2, 1) < 1e-4);
        memcpy(alone, blas.host + (size_t)2 * TOTAL, sizeof(alone));
        must(blas_multiply(&blas, form & 1, form & 2, BATCH, CUBLAS_COMPUTE_32F));
        must(cudaStreamSynchronize(blas.stream));
        ck_assert(blas_error(&blas, form & 1, form & 2, BATCH) < 1e-4);
        for (int j = 0; j < SIDE - 3; j++)
            ck_assert_mem_eq(alone + j * SIDE, blas.host + (size_t)2 * TOTAL + j * SIDE,
                             (SIDE - 2) * sizeof(float));
    }
    blas_close(&blas);
    ck_assert_uint_eq(counters().complaints, 0);
}
END_TEST

START_TEST(reduced_precision_rounds_the_operands)
{
    struct blas blas = blas_open();
    double error;

    must(blas_multiply(&blas, false, false, 1, CUBLAS_COMPUTE_32F_FAST_TF32));
    must(cudaStreamSynchronize(blas.stream));
    error = blas_error(&blas, false, false, 1);
    ck_assert_msg(error > 1e-4 && error < 2e-2, "TF32: %g", error);
    must(blas_multiply(&blas, false, false, 1, CUBLAS_COMPUTE_32F_FAST_16BF));
    must(cudaStreamSynchronize(blas.stream));
    error = blas_error(&blas, false, false, 1);
    ck_assert_msg(error > 2e-3 && error < 2e-1, "bf16: %g", error);
    ck_assert(control->model("T4"));
    must(blas_multiply(&blas, false, false, 1, CUBLAS_COMPUTE_32F_FAST_TF32));
    must(cudaStreamSynchronize(blas.stream));
    ck_assert(blas_error(&blas, false, false, 1) < 1e-4);
    blas_close(&blas);
}
END_TEST

/* Every argument that a real library might let pass, or die of. */
START_TEST(products_with_wrong_arguments_are_refused)
{
    struct blas blas = blas_open();
    const float one = 1.0f;
    const int n = SIDE;

    ck_assert_int_ne(cublasSgemm(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, blas.a,
                                 n - 1, blas.b, n, &one, blas.c, n),
                     0);
    ck_assert_int_ne(cublasSgemm(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, blas.a, n,
                                 blas.a, n, &one, blas.a + 1, n),
                     0);
    ck_assert_int_ne(cublasSgemm(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, blas.a, n,
                                 blas.b + TOTAL - n, n, &one, blas.c, n),
                     0);
    ck_assert_int_ne(blas_multiply(&blas, false, false, BATCH + 1, CUBLAS_COMPUTE_32F), 0);
    ck_assert_uint_eq(counters().complaints, 4);
    /* blocks of one matrix that share no element */
    must(cublasSgemm(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, blas.a, n, blas.b, n,
                     &one, blas.a + 8, n));
    ck_assert_uint_eq(counters().complaints, 4);
    ck_assert_int_ne(cublasSgemm(blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, blas.a, n,
                                 blas.b, n, &one, blas.a + 7, n),
                     0);
    must(cublasSetStream(blas.handle, blas.stream));
    must(blas_multiply(&blas, false, false, 1, CUBLAS_COMPUTE_32F));
    ck_assert_msg(counters().complaints == 6, "lost workspace: %s", control->complaint());
    blas_close(&blas);
}
END_TEST

/* --- failures */

START_TEST(any_call_can_be_made_to_fail)
{
    void *memory;
    cudaStream_t stream = stream_new();

    control->fail_call("cudaMalloc", 2, 0);
    must(cudaMalloc(&memory, 16));
    must(cudaFree(memory));
    ck_assert_int_eq(cudaMalloc(&memory, 16), cudaErrorMemoryAllocation);
    ck_assert_ptr_null(memory);
    ck_assert_str_eq(control->failed(), "cudaMalloc");
    ck_assert_int_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
    ck_assert_int_eq(cudaGetLastError(), 0);
    must(cudaMalloc(&memory, 16));
    control->fail_call(NULL, 1, 999);
    ck_assert_int_eq(cudaMemsetAsync(memory, 0, 16, stream), 999);
    control->fail_call("cudaFree", 1, 0);
    ck_assert_int_ne(cudaFree(memory), 0);
    ck_assert_int_ne(cudaFree(memory), 0); /* it was freed all the same */
    ck_assert_uint_eq(counters().complaints, 1);
    cudaGetLastError();
    must(cudaStreamDestroy(stream));
}
END_TEST

/* After an asynchronous error every call says so, until the process ends. */
START_TEST(a_lost_device_stays_lost)
{
    float *const device = device_floats(COUNT);
    cudaStream_t stream = stream_new();

    ck_assert(control->schedule("lazy"));
    control->fail_operation(2, 0);
    must(cudaMemsetAsync(device, 0, 16, stream));
    must(cudaMemsetAsync(device, 0, 16, stream));
    must(cudaMemsetAsync(device, 0, 16, stream));
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    ck_assert_int_eq(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorIllegalAddress);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorIllegalAddress);
    ck_assert(control->lost(0));
    control->revive();
    must(cudaStreamSynchronize(stream));
    must(cudaStreamDestroy(stream));
    must(cudaFree(device));
}
END_TEST

START_TEST(a_divergent_barrier_kills_the_device)
{
    float *const device = device_floats(COUNT);
    cudaStream_t stream = stream_new();

    ck_assert_int_ne(probe_divergent(stream, device), 0); /* eager: known at once */
    ck_assert_int_ne(cudaStreamSynchronize(stream), 0);
    ck_assert_ptr_nonnull(strstr(control->complaint(), "divergent barrier"));
    control->revive();
    must(cudaStreamDestroy(stream));
    must(cudaFree(device));
}
END_TEST

/* As the real runtime: a kernel goes to a stream of the current device. There are two, by
 * FIRE_EMULATOR_DEVICES in the environment: kernels are registered before main(). */
START_TEST(a_stream_of_another_device_is_refused)
{
    float *const device = device_floats(COUNT);
    cudaStream_t stream = stream_new();

    must(cudaSetDevice(1));
    ck_assert_int_eq(probe_scale(stream, device, 2.0f, COUNT), cudaErrorInvalidResourceHandle);
    ck_assert_ptr_nonnull(strstr(control->complaint(), "launched on device 1"));
    must(cudaSetDevice(0));
    must(cudaMemset(device, 0, COUNT * sizeof(float)));
    must(probe_scale(stream, device, 2.0f, COUNT));
    must(cudaStreamDestroy(stream));
    must(cudaFree(device));
}
END_TEST

START_TEST(memory_has_a_limit)
{
    void *memory;
    size_t free_bytes;
    size_t total;

    control->memory_limit((size_t)1 << 20);
    ck_assert_int_eq(cudaMalloc(&memory, (size_t)2 << 20), cudaErrorMemoryAllocation);
    must(cudaMalloc(&memory, (size_t)1 << 19));
    must(cudaMemGetInfo(&free_bytes, &total));
    ck_assert_uint_eq(total, (size_t)1 << 20);
    ck_assert_uint_eq(free_bytes, (size_t)1 << 19);
    must(cudaFree(memory));
    cudaGetLastError();
}
END_TEST

/* One stream: copies and kernels in turn. Two streams: copies hide behind the others' kernels. */
START_TEST(the_clock_shows_overlap)
{
    const size_t bytes = (size_t)8 << 20;
    float *device[2] = { device_floats(bytes / 4), device_floats(bytes / 4) };
    float *const host = pinned_floats(bytes / 4);
    cudaStream_t stream[2] = { stream_new(), stream_new() };
    struct emulator_clock clock[2];

    for (int streams = 1; streams <= 2; streams++) {
        control->reset_clock();
        for (int i = 0; i < 4; i++) {
            const int s = i % streams;

            must(cudaMemcpyAsync(device[s], host, bytes, cudaMemcpyHostToDevice, stream[s]));
            for (int k = 0; k < 20; k++)
                must(cudaMemsetAsync(device[s], 0, bytes, stream[s]));
            must(cudaMemcpyAsync(host, device[s], bytes, cudaMemcpyDeviceToHost, stream[s]));
        }
        must(cudaDeviceSynchronize());
        control->clock(0, &clock[streams - 1]);
    }
    ck_assert(fabs(clock[0].end_s - (clock[0].compute_s + clock[0].to_device_s +
                                     clock[0].to_host_s)) < 0.1 * clock[0].end_s);
    ck_assert(clock[1].end_s < 0.8 * clock[0].end_s);
    ck_assert(clock[1].host_s >= clock[1].end_s);
    for (int s = 0; s < 2; s++) {
        must(cudaStreamDestroy(stream[s]));
        must(cudaFree(device[s]));
    }
    must(cudaFreeHost(host));
}
END_TEST

START_TEST(nothing_is_left_alive)
{
    const struct emulator_counters now = counters();

    ck_assert_uint_eq(now.live_device_allocations, 0);
    ck_assert_uint_eq(now.live_host_allocations, 0);
    ck_assert_uint_eq(now.live_streams, 0);
    ck_assert_uint_eq(now.live_events, 0);
    ck_assert_uint_eq(now.live_graphs, 0);
    ck_assert_uint_eq(now.live_handles, 0);
}
END_TEST

static Suite *emulator_suite(void)
{
    Suite *const suite = suite_create("emulator");
    TCase *const tests = tcase_create("emulator");

    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, foreign_memory_is_a_fault_with_a_reason);
    tcase_add_test(tests, fresh_memory_is_not_a_number);
    tcase_add_test(tests, copies_outside_an_allocation_are_refused);
    tcase_add_test(tests, pageable_copies_are_counted);
    tcase_add_loop_test(tests, kernels_compute_under_every_schedule, 0, SCHEDULES);
    tcase_add_test(tests, reading_before_the_wait_is_seen);
    tcase_add_test(tests, a_missing_event_is_found_by_some_schedule);
    tcase_add_loop_test(tests, graphs_replay_what_was_captured, 0, SCHEDULES);
    tcase_add_test(tests, a_capture_is_broken_by_what_it_does_not_allow);
    tcase_add_test(tests, products_are_right_and_do_not_depend_on_the_batch);
    tcase_add_test(tests, reduced_precision_rounds_the_operands);
    tcase_add_test(tests, products_with_wrong_arguments_are_refused);
    tcase_add_test(tests, any_call_can_be_made_to_fail);
    tcase_add_test(tests, a_lost_device_stays_lost);
    tcase_add_test(tests, a_divergent_barrier_kills_the_device);
    tcase_add_test(tests, a_stream_of_another_device_is_refused);
    tcase_add_test(tests, memory_has_a_limit);
    tcase_add_test(tests, the_clock_shows_overlap);
    tcase_add_test(tests, nothing_is_left_alive);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    SRunner *runner;
    int failed;

    control = emulator_access();
    if (!control) {
        printf("this program was started on a real CUDA runtime, or none: set LD_LIBRARY_PATH\n");
        return 1;
    }
    runner = srunner_create(emulator_suite());
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
