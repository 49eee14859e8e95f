/* runtime_device: devices, their properties, error words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"

#define DRIVER_VERSION CUDART_VERSION

/* As the real one without a driver: code 35, and `count` is left unwritten. */
cudaError_t cudaGetDeviceCount(int *count)
{
    int code = EMU_ENTER(cudaGetDeviceCount);

    if (!code && emu_world.device_count == 0)
        code = cudaErrorInsufficientDriver;
    if (!code)
        *count = (int)emu_world.device_count;
    return emu_leave(code);
}

cudaError_t cudaGetDevice(int *device)
{
    const int code = EMU_ENTER(cudaGetDevice);

    if (!code)
        *device = (int)emu_current_device();
    return emu_leave(code);
}

cudaError_t cudaSetDevice(int device)
{
    int code = EMU_ENTER(cudaSetDevice);

    if (!code && emu_world.device_count == 0)
        code = cudaErrorInsufficientDriver;
    if (!code && (device < 0 || (uint32_t)device >= emu_world.device_count))
        code = cudaErrorInvalidDevice;
    if (!code) {
        emu_set_current_device((uint32_t)device);
        code = emu_device_code((uint32_t)device);
    }
    return emu_leave(code);
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    (void)flags;
    return emu_leave(EMU_ENTER(cudaSetDeviceFlags));
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
    int code = EMU_ENTER(cudaInitDevice);

    (void)device_flags;
    (void)flags;
    if (!code && (device < 0 || (uint32_t)device >= emu_world.device_count))
        code = cudaErrorInvalidDevice;
    return emu_leave(code);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    int code = EMU_ENTER(cudaGetDeviceProperties);
    const struct emu_model *model;

    if (!code && (device < 0 || (uint32_t)device >= emu_world.device_count))
        code = cudaErrorInvalidDevice;
    if (code)
        return emu_leave(code);
    model = emu_world.devices[device].model;
    memset(prop, 0, sizeof(*prop));
    snprintf(prop->name, sizeof(prop->name), "%s", model->device_name);
    prop->totalGlobalMem = emu_world.devices[device].memory_limit;
    prop->sharedMemPerBlock = 48u << 10;
    prop->sharedMemPerBlockOptin = model->shared_bytes_max;
    prop->sharedMemPerMultiprocessor = model->shared_bytes_max + 1024;
    prop->regsPerBlock = 65536;
    prop->regsPerMultiprocessor = 65536;
    prop->warpSize = 32;
    prop->memPitch = 0x7FFFFFFF;
    prop->maxThreadsPerBlock = 1024;
    prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
    prop->maxThreadsDim[2] = 64;
    prop->maxGridSize[0] = 0x7FFFFFFF;
    prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
    prop->major = model->major;
    prop->minor = model->minor;
    prop->multiProcessorCount = (int)model->multiprocessors;
    prop->maxThreadsPerMultiProcessor = (int)model->threads_per_multiprocessor;
    prop->asyncEngineCount = 2;
    prop->canMapHostMemory = 1;
    prop->concurrentKernels = 1;
    prop->unifiedAddressing = 1;
    prop->l2CacheSize = 32 << 20;
    prop->pciBusID = device + 1;
    return emu_leave(0);
}

static int attribute(const struct emu_model *model, enum cudaDeviceAttr name)
{
    const struct {
        enum cudaDeviceAttr name;
        int value;
    } table[] = {
        { cudaDevAttrMaxThreadsPerBlock, 1024 },
        { cudaDevAttrMaxBlockDimX, 1024 },
        { cudaDevAttrMaxGridDimX, 0x7FFFFFFF },
        { cudaDevAttrMaxGridDimY, 65535 },
        { cudaDevAttrMaxGridDimZ, 65535 },
        { cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10 },
        { cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)model->shared_bytes_max },
        { cudaDevAttrMaxSharedMemoryPerMultiprocessor, (int)model->shared_bytes_max + 1024 },
        { cudaDevAttrWarpSize, 32 },
        { cudaDevAttrMultiProcessorCount, (int)model->multiprocessors },
        { cudaDevAttrComputeCapabilityMajor, model->major },
        { cudaDevAttrComputeCapabilityMinor, model->minor },
        { cudaDevAttrAsyncEngineCount, 2 },
        { cudaDevAttrConcurrentKernels, 1 },
        { cudaDevAttrUnifiedAddressing, 1 },
        { cudaDevAttrCanMapHostMemory, 1 },
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].name == name)
            return table[i].value;
    }
    return 0;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr name, int device)
{
    int code = EMU_ENTER(cudaDeviceGetAttribute);

    if (!code && (device < 0 || (uint32_t)device >= emu_world.device_count))
        code = cudaErrorInvalidDevice;
    if (!code)
        *value = attribute(emu_world.devices[device].model, name);
    return emu_leave(code);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    int code = EMU_ENTER(cudaDeviceGetPCIBusId);

    if (!code && (device < 0 || (uint32_t)device >= emu_world.device_count))
        code = cudaErrorInvalidDevice;
    if (!code)
        snprintf(text, (size_t)bytes, "0000:%02X:00.0", (unsigned)device + 1u);
    return emu_leave(code);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    const int code = EMU_ENTER(cudaDeviceGetStreamPriorityRange);

    if (!code && least)
        *least = 0;
    if (!code && greatest)
        *greatest = -5;
    return emu_leave(code);
}

cudaError_t cudaDeviceSynchronize(void)
{
    int code = EMU_ENTER(cudaDeviceSynchronize);
    const uint32_t device = emu_current_device();

    if (!code && emu_world.capture_any) {
        emu_complain("cudaDeviceSynchronize while a stream is captured");
        emu_capture_break();
        code = cudaErrorStreamCaptureUnsupported;
    }
    if (!code) {
        emu_finish_device(device);
        emu_host_wait_until(emu_world.devices[device].end_s);
        code = emu_device_code(device);
    }
    return emu_leave(code);
}

cudaError_t cudaDeviceReset(void)
{
    const int code = EMU_ENTER(cudaDeviceReset);
    const uint32_t device = emu_current_device();

    emu_finish_device(device);
    emu_memory_release_device(device);
    emu_world.devices[device].lost = 0;
    return emu_leave(code);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    const int code = EMU_ENTER(cudaDriverGetVersion);

    if (!code)
        *version = emu_world.device_count ? DRIVER_VERSION : 0;
    return emu_leave(code);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    const int code = EMU_ENTER(cudaRuntimeGetVersion);

    if (!code)
        *version = CUDART_VERSION;
    return emu_leave(code);
}

/* --- errors */

cudaError_t cudaGetLastError(void)
{
    int code;

    emu_lock();
    code = emu_last_error(true);
    emu_unlock();
    return code;
}

cudaError_t cudaPeekAtLastError(void)
{
    int code;

    emu_lock();
    code = emu_last_error(false);
    emu_unlock();
    return code;
}

static const struct {
    int code;
    const char *name;
    const char *words;
} errors[] = {
    { cudaSuccess, "cudaSuccess", "no error" },
    { cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument" },
    { cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory" },
    { cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
      "invalid configuration argument" },
    { cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
      "CUDA driver version is insufficient for CUDA runtime version" },
    { cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function" },
    { cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected" },
    { cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal" },
    { cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle" },
    { cudaErrorNotReady, "cudaErrorNotReady", "device not ready" },
    { cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
      "an illegal memory access was encountered" },
    { cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure" },
    { cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
      "part or all of the requested memory range is already mapped" },
    { cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
      "operation not permitted when stream is capturing" },
    { cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
      "operation failed due to a previous error during capture" },
    { cudaErrorUnknown, "cudaErrorUnknown", "unknown error" },
};

const char *cudaGetErrorString(cudaError_t code)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        if (errors[i].code == (int)code)
            return errors[i].words;
    }
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t code)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        if (errors[i].code == (int)code)
            return errors[i].name;
    }
    return "unrecognized error code";
}
