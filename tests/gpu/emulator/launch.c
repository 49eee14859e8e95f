/* launch: kernels by name. nvcc's constructors register every kernel with the address of its stub;
 * launches name the stub (12.x) or a handle made from it (13.x). The library that runs them is
 * asked for the sizes of the arguments, which are copied at once, as the real runtime does. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"

#define KERNELS_MAX        512u
#define RUNNERS_MAX        4u
#define CONFIGURATIONS_MAX 8u
#define BYTES_PER_THREAD   8.0 /* of every pointer's memory, when the runner does not count */

struct kernel {
    const void *stub;
    const char *name;
    size_t dynamic_max;
    bool live;
};

static struct kernel kernels[KERNELS_MAX];
static uint32_t kernel_count;

static struct {
    bool (*signature)(const char *name, struct kernel_signature *signature);
    const char *(*run)(const struct kernel_launch *launch, const struct kernel_memory *memory,
                       struct kernel_cost *cost);
} runners[RUNNERS_MAX];
static uint32_t runner_count;

struct configuration {
    dim3 grid;
    dim3 block;
    size_t shared_bytes;
    cudaStream_t stream;
};
static __thread struct {
    struct configuration stack[CONFIGURATIONS_MAX];
    uint32_t count;
} thread;

/* --- what nvcc's stubs call */

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *stub, char *device_stub, const char *name,
                            int thread_limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                            int *warp);
void __cudaRegisterVar(void **handle, char *variable, char *address, const char *name, int ext,
                       size_t bytes, int constant, int global);
char __cudaInitModule(void **handle);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary)
{
    void **const handle = malloc(sizeof(*handle));

    if (handle)
        *handle = binary;
    return handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    free(handle);
}

char __cudaInitModule(void **handle)
{
    (void)handle;
    return 0;
}

/* A library that was closed and loaded again registers again, perhaps at the same addresses. */
void __cudaRegisterFunction(void **handle, const char *stub, char *device_stub, const char *name,
                            int thread_limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid,
                            int *warp)
{
    uint32_t i = 0;

    (void)handle, (void)device_stub, (void)thread_limit;
    (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    emu_lock();
    while (i < kernel_count && kernels[i].stub != stub)
        i++;
    if (i == KERNELS_MAX) {
        emu_complain("more than %u kernels", KERNELS_MAX);
    } else {
        kernels[i] = (struct kernel){ .stub = stub, .name = name, .dynamic_max = 48u << 10 };
        kernel_count += i == kernel_count;
    }
    emu_unlock();
}

void __cudaRegisterVar(void **handle, char *variable, char *address, const char *name, int ext,
                       size_t bytes, int constant, int global)
{
    (void)handle, (void)variable, (void)address, (void)ext;
    (void)bytes, (void)constant, (void)global;
    emu_lock();
    emu_complain("variable %s: variables in device memory are not emulated", name);
    emu_unlock();
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     struct CUstream_st *stream)
{
    if (thread.count == CONFIGURATIONS_MAX)
        return 1;
    thread.stack[thread.count++] = (struct configuration){ grid, block, shared_bytes, stream };
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream)
{
    if (thread.count == 0)
        return cudaErrorMissingConfiguration;
    thread.count--;
    *grid = thread.stack[thread.count].grid;
    *block = thread.stack[thread.count].block;
    *shared_bytes = thread.stack[thread.count].shared_bytes;
    *(cudaStream_t *)stream = thread.stack[thread.count].stream;
    return cudaSuccess;
}

static struct kernel *kernel_find(const void *stub)
{
    for (uint32_t i = 0; i < kernel_count; i++) {
        if (kernels[i].stub == stub)
            return &kernels[i];
    }
    return NULL;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub)
{
    emu_lock();
    *kernel = (cudaKernel_t)(void *)kernel_find(stub);
    emu_unlock();
    return *kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

/* --- who runs them */

static bool load_runner(const char *path)
{
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *signature = library ? dlsym(library, "kernel_signature") : NULL;
    void *run = library ? dlsym(library, "kernel_run") : NULL;

    if (!signature || !run || runner_count == RUNNERS_MAX) {
        emu_complain("cannot load %s to run kernels: %s", path,
                     library ? "no kernel_run" : dlerror());
        return false;
    }
    memcpy(&runners[runner_count].signature, &signature, sizeof(signature));
    memcpy(&runners[runner_count].run, &run, sizeof(run));
    runner_count++;
    return true;
}

static void load_runners(void)
{
    static bool tried;
    const char *const list = getenv("FIRE_EMULATOR_KERNELS");
    char *copy;
    char *rest = NULL;

    if (tried)
        return;
    tried = true;
    copy = strdup(list ? list : "libfire_kernels_host.so");
    for (char *path = copy ? strtok_r(copy, ":", &rest) : NULL; path;
         path = strtok_r(NULL, ":", &rest))
        load_runner(path);
    free(copy);
}

static int find_runner(const char *name, struct kernel_signature *signature)
{
    load_runners();
    for (uint32_t i = 0; i < runner_count; i++) {
        memset(signature, 0, sizeof(*signature));
        if (runners[i].signature(name, signature))
            return (int)i;
    }
    emu_complain("no library of FIRE_EMULATOR_KERNELS runs the kernel %s", name);
    return -1;
}

/* --- launches */

struct launch {
    struct kernel_launch kernel;
    uint32_t runner;
    uint32_t argument_count;
    void *arguments[KERNEL_ARGUMENTS_MAX];
    _Alignas(16) unsigned char values[];
};

static int run_launch(struct emu_op *op)
{
    struct launch *const launch = (struct launch *)(void *)op->data;
    const struct kernel_memory memory = emu_memory_for_kernels();
    struct kernel_cost cost = { 0, 0 };
    const char *words;

    snprintf(emu_world.running, sizeof(emu_world.running), "kernel %s", launch->kernel.name);
    emu_world.counters.kernels++;
    launch->kernel.arguments = launch->arguments;
    words = runners[launch->runner].run(&launch->kernel, &memory, &cost);
    emu_world.running[0] = '\0';
    if (cost.bytes)
        op->cost.bytes = (double)cost.bytes;
    op->cost.flops = (double)cost.flops;
    if (!words)
        return 0;
    emu_complain("kernel %s: %s", launch->kernel.name, words);
    return cudaErrorIllegalAddress;
}

static bool good_grid(const struct emu_model *model, const struct kernel *kernel, dim3 grid,
                      dim3 block, size_t shared_bytes)
{
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;

    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
        grid.x > 0x7FFFFFFFu || threads == 0 || threads > 1024 || block.z > 64)
        return false;
    return shared_bytes <= kernel->dynamic_max && shared_bytes <= model->shared_bytes_max;
}

static struct emu_op *new_launch(const struct kernel *kernel, void **arguments,
                                 const struct kernel_signature *signature)
{
    size_t bytes = 0;
    struct emu_op *op;
    struct launch *launch;

    for (uint32_t i = 0; i < signature->argument_count; i++)
        bytes += (signature->argument_bytes[i] + 15u) / 16u * 16u;
    op = emu_op_new(OP_WORK, sizeof(*launch) + bytes);
    launch = (struct launch *)(void *)op->data;
    launch->kernel.name = kernel->name;
    launch->argument_count = signature->argument_count;
    bytes = 0;
    for (uint32_t i = 0; i < signature->argument_count; i++) {
        launch->arguments[i] = launch->values + bytes;
        memcpy(launch->arguments[i], arguments[i], signature->argument_bytes[i]);
        bytes += (signature->argument_bytes[i] + 15u) / 16u * 16u;
    }
    op->run = run_launch;
    return op;
}

static int queue_launch(struct kernel *kernel, const struct configuration *wanted, void **arguments)
{
    struct emu_stream *const stream = emu_stream_of(wanted->stream);
    const dim3 grid = wanted->grid;
    const dim3 block = wanted->block;
    struct kernel_signature signature;
    struct emu_op *op;
    struct launch *launch;
    int runner;

    if (!kernel || !stream)
        return kernel ? cudaErrorInvalidResourceHandle : cudaErrorInvalidDeviceFunction;
    if (stream->device != emu_current_device()) {
        emu_complain("kernel %s: launched on device %u into a stream of device %u", kernel->name,
                     emu_current_device(), stream->device);
        return cudaErrorInvalidResourceHandle;
    }
    if (!good_grid(emu_world.devices[stream->device].model, kernel, grid, block,
                   wanted->shared_bytes)) {
        emu_complain("kernel %s: grid %ux%ux%u, block %ux%ux%u, %zu shared bytes cannot be run",
                     kernel->name, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                     wanted->shared_bytes);
        return cudaErrorInvalidConfiguration;
    }
    runner = find_runner(kernel->name, &signature);
    if (runner < 0)
        return cudaErrorInvalidDeviceFunction;
    op = new_launch(kernel, arguments, &signature);
    launch = (struct launch *)(void *)op->data;
    launch->runner = (uint32_t)runner;
    launch->kernel.shared_bytes = wanted->shared_bytes;
    memcpy(launch->kernel.grid, (uint32_t[]){ grid.x, grid.y, grid.z }, 3 * sizeof(uint32_t));
    memcpy(launch->kernel.block, (uint32_t[]){ block.x, block.y, block.z }, 3 * sizeof(uint32_t));
    op->cost.engine = ENGINE_COMPUTE;
    op->cost.bytes = BYTES_PER_THREAD * grid.x * grid.y * grid.z * block.x * block.y * block.z;
    return emu_stream_push(stream, op);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t handle, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream)
{
    const struct configuration wanted = { grid, block, shared_bytes, stream };
    int code = EMU_ENTER(cudaLaunchKernel);

    if (!code)
        code = queue_launch((struct kernel *)(void *)handle, &wanted, arguments);
    return emu_leave(code);
}

cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream)
{
    const struct configuration wanted = { grid, block, shared_bytes, stream };
    int code = EMU_ENTER(cudaLaunchKernel);

    if (!code)
        code = queue_launch(kernel_find(stub), &wanted, arguments);
    return emu_leave(code);
}

cudaError_t cudaFuncSetAttribute(const void *stub, enum cudaFuncAttribute attribute, int value)
{
    int code = EMU_ENTER(cudaFuncSetAttribute);
    struct kernel *const kernel = code ? NULL : kernel_find(stub);
    const struct emu_model *const model = emu_world.devices[emu_current_device()].model;

    if (!code && !kernel)
        code = cudaErrorInvalidDeviceFunction;
    if (!code && attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || (size_t)value > model->shared_bytes_max)
            code = cudaErrorInvalidValue;
        else
            kernel->dynamic_max = (size_t)value;
    }
    return emu_leave(code);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *stub)
{
    int code = EMU_ENTER(cudaFuncGetAttributes);
    const struct kernel *const kernel = code ? NULL : kernel_find(stub);

    if (!code && !kernel)
        code = cudaErrorInvalidDeviceFunction;
    if (!code) {
        memset(attributes, 0, sizeof(*attributes));
        attributes->maxThreadsPerBlock = 1024;
        attributes->numRegs = 32;
        attributes->maxDynamicSharedSizeBytes = (int)kernel->dynamic_max;
    }
    return emu_leave(code);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *stub,
                                                          int block_size, size_t shared_bytes)
{
    int code = EMU_ENTER(cudaOccupancyMaxActiveBlocksPerMultiprocessor);
    const struct emu_model *const model = emu_world.devices[emu_current_device()].model;

    if (!code && (!kernel_find(stub) || block_size <= 0))
        code = cudaErrorInvalidValue;
    if (!code) {
        *blocks = (int)model->threads_per_multiprocessor / block_size;
        if (shared_bytes > 0 && (size_t)*blocks > model->shared_bytes_max / shared_bytes)
            *blocks = (int)(model->shared_bytes_max / shared_bytes);
    }
    return emu_leave(code);
}
