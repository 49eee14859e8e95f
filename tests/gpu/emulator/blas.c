/* blas: the emulated libcublas. Arguments are checked more strictly than the real one does: every
 * operand inside one live allocation, C apart from A and B, workspace given and not lost. */
#include "blas.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HANDLE_MAGIC 0x424C4153u
#define HANDLES_MAX  256u
#define TILE         128
#define SCRIBBLE     4096u
#define VERSION_TEXT (CUBLAS_VER_MAJOR * 10000 + CUBLAS_VER_MINOR * 100 + CUBLAS_VER_PATCH)

struct cublasContext {
    uint32_t magic;
    uint32_t device;
    cudaStream_t stream;
    void *workspace;
    size_t workspace_bytes;
    bool had_workspace;
    cublasMath_t math;
    cublasPointerMode_t pointer_mode;
};

static struct cublasContext *handles[HANDLES_MAX];

static struct cublasContext *handle_of(cublasHandle_t handle)
{
    for (size_t i = 0; i < HANDLES_MAX; i++) {
        if (handle && handles[i] == handle)
            return handle;
    }
    emu_complain("%p is no cuBLAS handle, or one that was destroyed", (void *)handle);
    return NULL;
}

cublasStatus_t cublasCreate_v2(cublasHandle_t *out)
{
    int code = EMU_ENTER(cublasCreate);
    size_t i = 0;

    *out = NULL;
    if (!code && emu_world.device_count == 0)
        code = CUBLAS_STATUS_NOT_INITIALIZED;
    while (i < HANDLES_MAX && handles[i])
        i++;
    if (!code && i == HANDLES_MAX)
        code = CUBLAS_STATUS_ALLOC_FAILED;
    if (!code) {
        struct cublasContext *const handle = calloc(1, sizeof(*handle));

        if (!handle)
            abort();
        handle->magic = HANDLE_MAGIC;
        handle->device = emu_current_device();
        handles[i] = handle;
        emu_world.counters.live_handles++;
        *out = handle;
    }
    return emu_leave_plain(code);
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    const int code = EMU_ENTER(cublasDestroy);

    for (size_t i = 0; i < HANDLES_MAX; i++) {
        if (handle && handles[i] == handle) {
            handles[i] = NULL;
            free(handle);
            emu_world.counters.live_handles--;
            return emu_leave_plain(code);
        }
    }
    return emu_leave_plain(CUBLAS_STATUS_NOT_INITIALIZED);
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version)
{
    const int code = EMU_ENTER(cublasGetVersion);

    (void)handle;
    *version = VERSION_TEXT;
    return emu_leave_plain(code);
}

/* As the real one: the workspace goes back to the library's own. */
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    int code = EMU_ENTER(cublasSetStream);
    struct cublasContext *const context = code ? NULL : handle_of(handle);

    if (!code && (!context || !emu_stream_of(stream)))
        code = CUBLAS_STATUS_NOT_INITIALIZED;
    if (!code) {
        context->stream = stream;
        context->workspace = NULL;
        context->workspace_bytes = 0;
    }
    return emu_leave_plain(code);
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream)
{
    int code = EMU_ENTER(cublasGetStream);
    const struct cublasContext *const context = code ? NULL : handle_of(handle);

    if (!code && !context)
        code = CUBLAS_STATUS_NOT_INITIALIZED;
    if (!code)
        *stream = context->stream;
    return emu_leave_plain(code);
}

/* Two handles on different streams must not scribble on the same memory. */
static void check_shared(const struct cublasContext *context)
{
    const char *const start = context->workspace;

    for (size_t i = 0; i < HANDLES_MAX; i++) {
        const struct cublasContext *const other = handles[i];
        const char *const theirs = other ? other->workspace : NULL;

        if (theirs && other != context && other->stream != context->stream &&
            theirs < start + context->workspace_bytes && start < theirs + other->workspace_bytes)
            emu_complain("two cuBLAS handles on different streams share a workspace");
    }
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
    int code = EMU_ENTER(cublasSetWorkspace);
    struct cublasContext *const context = code ? NULL : handle_of(handle);

    if (!code && !context)
        code = CUBLAS_STATUS_NOT_INITIALIZED;
    if (!code &&
        ((uintptr_t)workspace % 256 != 0 || (bytes > 0 && !emu_memory_shadow(workspace, bytes)))) {
        emu_complain("a cuBLAS workspace of %zu bytes is not there: %s", bytes,
                     emu_memory_words(workspace));
        code = CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!code) {
        context->workspace = workspace;
        context->workspace_bytes = bytes;
        context->had_workspace = true;
        check_shared(context);
    }
    return emu_leave_plain(code);
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    int code = EMU_ENTER(cublasSetMathMode);
    struct cublasContext *const context = code ? NULL : handle_of(handle);

    if (!code && !context)
        code = CUBLAS_STATUS_NOT_INITIALIZED;
    if (!code)
        context->math = mode;
    return emu_leave_plain(code);
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode)
{
    int code = EMU_ENTER(cublasSetPointerMode);
    struct cublasContext *const context = code ? NULL : handle_of(handle);

    if (!code && !context)
        code = CUBLAS_STATUS_NOT_INITIALIZED;
    if (!code)
        context->pointer_mode = mode;
    return emu_leave_plain(code);
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode)
{
    int code = EMU_ENTER(cublasSetAtomicsMode);

    if (!code && !handle_of(handle))
        code = CUBLAS_STATUS_NOT_INITIALIZED;
    if (!code && mode != CUBLAS_ATOMICS_NOT_ALLOWED)
        emu_complain("cuBLAS may use atomics: results would differ from run to run");
    return emu_leave_plain(code);
}

/* --- products */

static int run_product(struct emu_op *op)
{
    const struct blas_product *const product = (const struct blas_product *)(const void *)op->data;
    char *workspace = NULL;

    snprintf(emu_world.running, sizeof(emu_world.running), "cuBLAS product %dx%dx%d", product->m,
             product->n, product->k);
    emu_world.counters.gemms++;
    emu_world.counters.gemm_flops += op->cost.flops;
    if (product->workspace) {
        const size_t scribble =
            product->workspace_bytes < SCRIBBLE ? product->workspace_bytes : SCRIBBLE;

        workspace = emu_memory_shadow(product->workspace, product->workspace_bytes);
        if (!workspace) {
            emu_complain("the workspace of a queued product was freed");
            return cudaErrorIllegalAddress;
        }
        memset(workspace, KERNEL_POISON, scribble);
        memset(workspace + product->workspace_bytes - scribble, KERNEL_POISON, scribble);
    }
    return blas_compute(product) ? 0 : cudaErrorIllegalAddress;
}

static int check_operand(const struct blas_product *product, const struct blas_operand *operand,
                         const char *name)
{
    const int rows_min = operand->rows > 1 ? operand->rows : 1;

    if (operand->lead < rows_min || blas_element_bytes(operand->type) == 0) {
        emu_complain("product of %dx%dx%d: leading dimension %d of %s is below %d, or its type is "
                     "unknown",
                     product->m, product->n, product->k, operand->lead, name, rows_min);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (operand->table) {
        if (emu_memory_shadow(operand->address, (size_t)product->batch * sizeof(void *)))
            return 0;
        emu_complain("product: the table of %s is not there: %s", name,
                     emu_memory_words(operand->address));
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    for (int i = 0; i < product->batch; i++) {
        if (!blas_shadow(operand, i)) {
            emu_complain("product of %dx%dx%d: matrix %d of %d of %s leaves its allocation: %s",
                         product->m, product->n, product->k, i, product->batch, name,
                         emu_memory_words(blas_matrix(operand, i)));
            return CUBLAS_STATUS_EXECUTION_FAILED;
        }
    }
    return 0;
}

/* C against every matrix of A and B, and against the other matrices of C. */
static bool overlaps(const struct blas_product *p)
{
    for (int i = 0; i < p->batch; i++) {
        const void *const c = blas_matrix(&p->c, i);

        for (int j = 0; j < p->batch; j++) {
            if (blas_overlap(&p->c, c, &p->a, blas_matrix(&p->a, j)) ||
                blas_overlap(&p->c, c, &p->b, blas_matrix(&p->b, j)) ||
                (i != j && blas_overlap(&p->c, c, &p->c, blas_matrix(&p->c, j))))
                return true;
        }
    }
    return false;
}

static int check_product(const struct cublasContext *context, const struct blas_product *product)
{
    const struct emu_stream *const stream = emu_stream_of(context->stream);
    int code;

    if (!stream || product->m < 0 || product->n < 0 || product->k < 0 || product->batch < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (emu_current_device() != context->device || stream->device != context->device)
        emu_complain("a handle of device %u is used with a stream of device %u on device %u",
                     context->device, stream->device, emu_current_device());
    if (context->pointer_mode != CUBLAS_POINTER_MODE_HOST)
        emu_complain("alpha and beta in device memory are not emulated");
    if (context->had_workspace && !context->workspace)
        emu_complain("the workspace was lost: cublasSetStream after cublasSetWorkspace");
    else if (!context->workspace && emu_stream_capturing(stream))
        emu_complain("a product is captured without a workspace of its own");
    code = check_operand(product, &product->a, "A");
    if (!code)
        code = check_operand(product, &product->b, "B");
    if (!code)
        code = check_operand(product, &product->c, "C");
    if (!code && !product->c.table && !product->a.table && !product->b.table && overlaps(product)) {
        emu_complain("product of %dx%dx%d: C overlaps an operand or itself", product->m, product->n,
                     product->k);
        code = CUBLAS_STATUS_INVALID_VALUE;
    }
    return code;
}

/* The rate that fits the precision, less what whole tiles on whole waves waste. */
static void set_cost(struct emu_op *op, const struct blas_product *p, const struct emu_model *model)
{
    const long long tiles =
        (long long)((p->m + TILE - 1) / TILE) * ((p->n + TILE - 1) / TILE) * p->batch;
    const double waves = ceil((double)tiles / model->multiprocessors);
    const double used =
        (double)p->m * p->n * p->batch / (waves * model->multiprocessors * TILE * TILE);
    double rate = model->fp32_flops;

    if (p->c.type == CUDA_R_64F)
        rate = model->fp64_flops;
    else if (p->precision == BLAS_TF32)
        rate = model->tf32_flops;
    else if (p->precision != BLAS_EXACT || p->a.type != CUDA_R_32F)
        rate = model->half_flops;
    op->cost.engine = ENGINE_COMPUTE;
    op->cost.flops = 2.0 * p->m * p->n * p->k * p->batch;
    /* Small products split along k over idle processors; half of the loss stays. */
    op->cost.flops_per_s = rate * (0.5 + 0.5 * (used < 1.0 ? used : 1.0));
    op->cost.bytes = (double)p->batch * ((double)p->m * p->k * blas_element_bytes(p->a.type) +
                                         (double)p->k * p->n * blas_element_bytes(p->b.type) +
                                         (double)p->m * p->n * blas_element_bytes(p->c.type));
}

static int queue_product(cublasHandle_t handle, struct blas_product *product)
{
    struct cublasContext *const context = handle_of(handle);
    struct emu_stream *stream;
    struct emu_op *op;
    int code;

    if (!context)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    product->a.rows = product->transpose_a ? product->k : product->m;
    product->a.cols = product->transpose_a ? product->m : product->k;
    product->b.rows = product->transpose_b ? product->n : product->k;
    product->b.cols = product->transpose_b ? product->k : product->n;
    product->c.rows = product->m;
    product->c.cols = product->n;
    code = check_product(context, product);
    if (code || product->m == 0 || product->n == 0 || product->batch == 0)
        return code;
    stream = emu_stream_of(context->stream);
    if (emu_world.devices[stream->device].model->major < 8 &&
        (product->precision == BLAS_TF32 || product->precision == BLAS_BF16))
        product->precision = BLAS_EXACT; /* older than Ampere: fp32 */
    product->workspace = context->workspace;
    product->workspace_bytes = context->workspace_bytes;
    op = emu_op_new(OP_WORK, sizeof(*product));
    *(struct blas_product *)(void *)op->data = *product;
    op->run = run_product;
    set_cost(op, product, emu_world.devices[stream->device].model);
    return emu_stream_push(stream, op) ? CUBLAS_STATUS_EXECUTION_FAILED : 0;
}

/* alpha, beta and precision of a compute type; false when it is not emulated. */
static bool take_compute(struct blas_product *product, const struct cublasContext *context,
                         cublasComputeType_t type, const void *alpha, const void *beta)
{
    if (type == CUBLAS_COMPUTE_64F || type == CUBLAS_COMPUTE_64F_PEDANTIC) {
        memcpy(&product->alpha, alpha, sizeof(double));
        memcpy(&product->beta, beta, sizeof(double));
    } else {
        product->alpha = (double)*(const float *)alpha;
        product->beta = (double)*(const float *)beta;
    }
    product->precision = BLAS_EXACT;
    if (type == CUBLAS_COMPUTE_32F_FAST_TF32 ||
        (type == CUBLAS_COMPUTE_32F && context && (context->math & CUBLAS_TF32_TENSOR_OP_MATH)))
        product->precision = BLAS_TF32;
    else if (type == CUBLAS_COMPUTE_32F_FAST_16BF)
        product->precision = BLAS_BF16;
    else if (type == CUBLAS_COMPUTE_32F_FAST_16F)
        product->precision = BLAS_F16;
    else if (type != CUBLAS_COMPUTE_32F && type != CUBLAS_COMPUTE_32F_PEDANTIC &&
             type != CUBLAS_COMPUTE_64F && type != CUBLAS_COMPUTE_64F_PEDANTIC) {
        emu_complain("compute type %d is not emulated", (int)type);
        return false;
    }
    return true;
}

static int gemm(int code, cublasHandle_t handle, struct blas_product product,
                cublasComputeType_t type, const void *alpha, const void *beta)
{
    struct cublasContext *context;

    if (code)
        return emu_leave_plain(code);
    context = handle_of(handle);
    if (!context)
        return emu_leave_plain(CUBLAS_STATUS_NOT_INITIALIZED);
    if (emu_memory_is_device(alpha) || emu_memory_is_device(beta) || !alpha || !beta ||
        !take_compute(&product, context, type, alpha, beta))
        return emu_leave_plain(CUBLAS_STATUS_INVALID_VALUE);
    return emu_leave_plain(queue_product(handle, &product));
}

#define PRODUCT(...)                                                                               \
    ((struct blas_product){ .transpose_a = transa != CUBLAS_OP_N,                                  \
                            .transpose_b = transb != CUBLAS_OP_N,                                  \
                            .m = m,                                                                \
                            .n = n,                                                                \
                            .k = k,                                                                \
                            __VA_ARGS__ })

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k,
                                          const void *alpha, const void *A, cudaDataType Atype,
                                          int lda, long long int strideA, const void *B,
                                          cudaDataType Btype, int ldb, long long int strideB,
                                          const void *beta, void *C, cudaDataType Ctype, int ldc,
                                          long long int strideC, int batchCount,
                                          cublasComputeType_t computeType, cublasGemmAlgo_t algo)
{
    (void)algo;
    return gemm(EMU_ENTER(cublasGemmStridedBatchedEx), handle,
                PRODUCT(.batch = batchCount, .a = { A, false, Atype, 0, 0, lda, strideA },
                        .b = { B, false, Btype, 0, 0, ldb, strideB },
                        .c = { C, false, Ctype, 0, 0, ldc, strideC }),
                computeType, alpha, beta);
}

cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                   cublasOperation_t transb, int m, int n, int k, const void *alpha,
                                   const void *const Aarray[], cudaDataType Atype, int lda,
                                   const void *const Barray[], cudaDataType Btype, int ldb,
                                   const void *beta, void *const Carray[], cudaDataType Ctype,
                                   int ldc, int batchCount, cublasComputeType_t computeType,
                                   cublasGemmAlgo_t algo)
{
    (void)algo;
    return gemm(EMU_ENTER(cublasGemmBatchedEx), handle,
                PRODUCT(.batch = batchCount, .a = { Aarray, true, Atype, 0, 0, lda, 0 },
                        .b = { Barray, true, Btype, 0, 0, ldb, 0 },
                        .c = { Carray, true, Ctype, 0, 0, ldc, 0 }),
                computeType, alpha, beta);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *A, cudaDataType Atype, int lda, const void *B,
                            cudaDataType Btype, int ldb, const void *beta, void *C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t computeType,
                            cublasGemmAlgo_t algo)
{
    (void)algo;
    return gemm(EMU_ENTER(cublasGemmEx), handle,
                PRODUCT(.batch = 1, .a = { A, false, Atype, 0, 0, lda, 0 },
                        .b = { B, false, Btype, 0, 0, ldb, 0 },
                        .c = { C, false, Ctype, 0, 0, ldc, 0 }),
                computeType, alpha, beta);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa,
                              cublasOperation_t transb, int m, int n, int k, const float *alpha,
                              const float *A, int lda, const float *B, int ldb, const float *beta,
                              float *C, int ldc)
{
    return gemm(EMU_ENTER(cublasSgemm), handle,
                PRODUCT(.batch = 1, .a = { A, false, CUDA_R_32F, 0, 0, lda, 0 },
                        .b = { B, false, CUDA_R_32F, 0, 0, ldb, 0 },
                        .c = { C, false, CUDA_R_32F, 0, 0, ldc, 0 }),
                CUBLAS_COMPUTE_32F, alpha, beta);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa,
                                         cublasOperation_t transb, int m, int n, int k,
                                         const float *alpha, const float *A, int lda,
                                         long long int strideA, const float *B, int ldb,
                                         long long int strideB, const float *beta, float *C,
                                         int ldc, long long int strideC, int batchCount)
{
    return gemm(EMU_ENTER(cublasSgemmStridedBatched), handle,
                PRODUCT(.batch = batchCount, .a = { A, false, CUDA_R_32F, 0, 0, lda, strideA },
                        .b = { B, false, CUDA_R_32F, 0, 0, ldb, strideB },
                        .c = { C, false, CUDA_R_32F, 0, 0, ldc, strideC }),
                CUBLAS_COMPUTE_32F, alpha, beta);
}

cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, cublasOperation_t transa,
                                  cublasOperation_t transb, int m, int n, int k, const float *alpha,
                                  const float *const Aarray[], int lda, const float *const Barray[],
                                  int ldb, const float *beta, float *const Carray[], int ldc,
                                  int batchCount)
{
    return gemm(EMU_ENTER(cublasSgemmBatched), handle,
                PRODUCT(.batch = batchCount, .a = { Aarray, true, CUDA_R_32F, 0, 0, lda, 0 },
                        .b = { Barray, true, CUDA_R_32F, 0, 0, ldb, 0 },
                        .c = { Carray, true, CUDA_R_32F, 0, 0, ldc, 0 }),
                CUBLAS_COMPUTE_32F, alpha, beta);
}

cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t transa,
                              cublasOperation_t transb, int m, int n, int k, const double *alpha,
                              const double *A, int lda, const double *B, int ldb,
                              const double *beta, double *C, int ldc)
{
    return gemm(EMU_ENTER(cublasDgemm), handle,
                PRODUCT(.batch = 1, .a = { A, false, CUDA_R_64F, 0, 0, lda, 0 },
                        .b = { B, false, CUDA_R_64F, 0, 0, ldb, 0 },
                        .c = { C, false, CUDA_R_64F, 0, 0, ldc, 0 }),
                CUBLAS_COMPUTE_64F, alpha, beta);
}

cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa,
                                         cublasOperation_t transb, int m, int n, int k,
                                         const double *alpha, const double *A, int lda,
                                         long long int strideA, const double *B, int ldb,
                                         long long int strideB, const double *beta, double *C,
                                         int ldc, long long int strideC, int batchCount)
{
    return gemm(EMU_ENTER(cublasDgemmStridedBatched), handle,
                PRODUCT(.batch = batchCount, .a = { A, false, CUDA_R_64F, 0, 0, lda, strideA },
                        .b = { B, false, CUDA_R_64F, 0, 0, ldb, strideB },
                        .c = { C, false, CUDA_R_64F, 0, 0, ldc, strideC }),
                CUBLAS_COMPUTE_64F, alpha, beta);
}

/* --- words */

const char *cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR";
    }
    return "cublas unknown status";
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return cublasGetStatusName(status);
}
