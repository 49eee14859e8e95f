/* api: the functions that are emulated, and what kind each is.
 *
 *   MAKE     allocates or creates; a failure is "out of memory"
 *   RELEASE  gives back; does so even when it is made to fail
 *   WAIT     blocks until a device has done something; a failure is that of the device
 *   POLL     asks whether it has
 *   QUEUE    puts work on a stream
 *   PLAIN    everything else that can fail
 *   SILENT   never fails and is not counted: error words, registration */
#ifndef EMULATOR_API_H
#define EMULATOR_API_H

#define EMULATED_API(X)                                                                            \
    X(cudaGetDeviceCount, PLAIN)                                                                   \
    X(cudaGetDevice, PLAIN)                                                                        \
    X(cudaSetDevice, PLAIN)                                                                        \
    X(cudaSetDeviceFlags, PLAIN)                                                                   \
    X(cudaInitDevice, PLAIN)                                                                       \
    X(cudaGetDeviceProperties, PLAIN)                                                              \
    X(cudaDeviceGetAttribute, PLAIN)                                                               \
    X(cudaDeviceGetPCIBusId, PLAIN)                                                                \
    X(cudaDeviceGetStreamPriorityRange, PLAIN)                                                     \
    X(cudaDeviceSynchronize, WAIT)                                                                 \
    X(cudaDeviceReset, RELEASE)                                                                    \
    X(cudaDriverGetVersion, PLAIN)                                                                 \
    X(cudaRuntimeGetVersion, PLAIN)                                                                \
    X(cudaMemGetInfo, PLAIN)                                                                       \
    X(cudaMalloc, MAKE)                                                                            \
    X(cudaFree, RELEASE)                                                                           \
    X(cudaMallocHost, MAKE)                                                                        \
    X(cudaHostAlloc, MAKE)                                                                         \
    X(cudaFreeHost, RELEASE)                                                                       \
    X(cudaHostRegister, MAKE)                                                                      \
    X(cudaHostUnregister, RELEASE)                                                                 \
    X(cudaPointerGetAttributes, PLAIN)                                                             \
    X(cudaMemcpy, WAIT)                                                                            \
    X(cudaMemcpyAsync, QUEUE)                                                                      \
    X(cudaMemcpy2D, WAIT)                                                                          \
    X(cudaMemcpy2DAsync, QUEUE)                                                                    \
    X(cudaMemset, QUEUE)                                                                           \
    X(cudaMemsetAsync, QUEUE)                                                                      \
    X(cudaMemset2DAsync, QUEUE)                                                                    \
    X(cudaStreamCreate, MAKE)                                                                      \
    X(cudaStreamCreateWithFlags, MAKE)                                                             \
    X(cudaStreamCreateWithPriority, MAKE)                                                          \
    X(cudaStreamDestroy, RELEASE)                                                                  \
    X(cudaStreamSynchronize, WAIT)                                                                 \
    X(cudaStreamQuery, POLL)                                                                       \
    X(cudaStreamWaitEvent, QUEUE)                                                                  \
    X(cudaStreamBeginCapture, PLAIN)                                                               \
    X(cudaStreamEndCapture, MAKE)                                                                  \
    X(cudaStreamIsCapturing, PLAIN)                                                                \
    X(cudaEventCreate, MAKE)                                                                       \
    X(cudaEventCreateWithFlags, MAKE)                                                              \
    X(cudaEventDestroy, RELEASE)                                                                   \
    X(cudaEventRecord, QUEUE)                                                                      \
    X(cudaEventQuery, POLL)                                                                        \
    X(cudaEventSynchronize, WAIT)                                                                  \
    X(cudaEventElapsedTime, PLAIN)                                                                 \
    X(cudaGraphInstantiate, MAKE)                                                                  \
    X(cudaGraphInstantiateWithFlags, MAKE)                                                         \
    X(cudaGraphUpload, QUEUE)                                                                      \
    X(cudaGraphLaunch, QUEUE)                                                                      \
    X(cudaGraphDestroy, RELEASE)                                                                   \
    X(cudaGraphExecDestroy, RELEASE)                                                               \
    X(cudaLaunchHostFunc, QUEUE)                                                                   \
    X(cudaLaunchKernel, QUEUE)                                                                     \
    X(cudaFuncSetAttribute, PLAIN)                                                                 \
    X(cudaFuncGetAttributes, PLAIN)                                                                \
    X(cudaOccupancyMaxActiveBlocksPerMultiprocessor, PLAIN)                                        \
    X(cublasCreate, MAKE)                                                                          \
    X(cublasDestroy, RELEASE)                                                                      \
    X(cublasGetVersion, PLAIN)                                                                     \
    X(cublasSetStream, PLAIN)                                                                      \
    X(cublasGetStream, PLAIN)                                                                      \
    X(cublasSetWorkspace, PLAIN)                                                                   \
    X(cublasSetMathMode, PLAIN)                                                                    \
    X(cublasSetPointerMode, PLAIN)                                                                 \
    X(cublasSetAtomicsMode, PLAIN)                                                                 \
    X(cublasGemmEx, QUEUE)                                                                         \
    X(cublasGemmBatchedEx, QUEUE)                                                                  \
    X(cublasSgemmBatched, QUEUE)                                                                   \
    X(cublasGemmStridedBatchedEx, QUEUE)                                                           \
    X(cublasSgemm, QUEUE)                                                                          \
    X(cublasSgemmStridedBatched, QUEUE)                                                            \
    X(cublasDgemm, QUEUE)                                                                          \
    X(cublasDgemmStridedBatched, QUEUE)

enum emu_kind { KIND_MAKE, KIND_RELEASE, KIND_WAIT, KIND_POLL, KIND_QUEUE, KIND_PLAIN };

enum emu_api {
#define EMULATED_API_ENUM(name, kind) API_##name,
    EMULATED_API(EMULATED_API_ENUM)
#undef EMULATED_API_ENUM
        API_COUNT
};

#endif
