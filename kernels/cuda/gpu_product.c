/* gpu_product: products of all matrices of a segment, chunk by chunk; the last chunk is filled
 * with zeros, or with what other matrices left.
 *
 * A row-major matrix is, to cuBLAS, its transpose. So x (rows x cols) is cols x rows with leading
 * dimension cols: x^T y is y x^T there, read as its transpose here; and x m, for a symmetric m, is
 * m x. A chunk has the same number of matrices whatever the batch. */
#include "gpu.h"
#include "launch.h"

struct product {
    cublasOperation_t op_b;
    int m, n, k;
    const float *a, *b;
    float *c;
    size_t a_stride, b_stride, c_stride;
};

void gpu_note(struct gpu_capture *capture, const char *call, cudaError_t error)
{
    if (capture->status == FIRE_OK)
        capture->status = gpu_check(capture->slot->device, call, error);
}

static cublasComputeType_t compute_type(const struct gpu_capture *capture)
{
    return capture->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static void multiply(struct gpu_capture *capture, const struct product *p, float beta)
{
    const struct fire_device *device = capture->slot->device;
    const uint32_t chunk = capture->recipe->chunk;
    const float one = 1;
    const int ld = (int)capture->recipe->cols;

    for (uint32_t i = 0; i < capture->chunked && capture->status == FIRE_OK; i += chunk) {
        const cublasStatus_t status = device->cublas->gemm_strided(
            capture->slot->handle, CUBLAS_OP_N, p->op_b, p->m, p->n, p->k, &one,
            p->a + i * p->a_stride, CUDA_R_32F, ld, (long long)p->a_stride, p->b + i * p->b_stride,
            CUDA_R_32F, ld, (long long)p->b_stride, &beta, p->c + i * p->c_stride, CUDA_R_32F, ld,
            (long long)p->c_stride, (int)chunk, compute_type(capture), CUBLAS_GEMM_DEFAULT);

        capture->status =
            gpu_check_blas(capture->slot->device, "cublasGemmStridedBatchedEx", status);
    }
}

/* Three products of operands with eleven bits each, the small ones first. */
static void multiply_split(struct gpu_capture *capture, const struct product *p, float *const *a,
                           float *const *b)
{
    struct product part = *p;

    if (capture->status == FIRE_OK)
        gpu_note(capture, "fire_k_split",
                 fire_launch_split(capture->slot->stream, p->a, a[0], a[1],
                                   capture->chunked * p->a_stride));
    if (capture->status == FIRE_OK && b[0] != a[0])
        gpu_note(capture, "fire_k_split",
                 fire_launch_split(capture->slot->stream, p->b, b[0], b[1],
                                   capture->chunked * p->b_stride));
    capture->tf32 = true;
    part.a = a[1];
    part.b = b[0];
    multiply(capture, &part, 0);
    part.a = a[0];
    part.b = b[1];
    multiply(capture, &part, 1);
    part.b = b[0];
    multiply(capture, &part, 1);
    capture->tf32 = false;
}

/* The blocks of one triangle, all of a chunk in one call; then the other triangle as their mirror
 * image. */
static void multiply_blocks(struct gpu_capture *capture, const struct product *p, size_t b_step)
{
    const struct fire_device *device = capture->slot->device;
    const struct gpu_layout *layout = &capture->layout;
    const uint32_t size = capture->recipe->cols, side = size / FIRE_K_TABLE_BLOCKS;
    const uint32_t blocks = FIRE_K_TABLE_BLOCKS * (FIRE_K_TABLE_BLOCKS + 1) / 2;
    const uint32_t chunk = capture->recipe->chunk;
    const struct fire_table table = { .a = p->a,
                                      .b = p->b,
                                      .c = p->c,
                                      .a_table = layout->a_table,
                                      .b_table = layout->b_table,
                                      .c_table = layout->c_table,
                                      .a_stride = p->a_stride,
                                      .b_stride = p->b_stride,
                                      .a_step = side,
                                      .b_step = b_step };
    const struct fire_combine mirror = { .beta = 1 };
    const float one = 1, zero = 0;

    if (capture->status == FIRE_OK)
        gpu_note(capture, "fire_k_table",
                 fire_launch_table(capture->slot->stream, &table, size, capture->chunked));
    for (uint32_t i = 0; i < capture->chunked && capture->status == FIRE_OK; i += chunk) {
        const size_t at = (size_t)i * blocks;
        const cublasStatus_t status = device->cublas->gemm_batched(
            capture->slot->handle, CUBLAS_OP_N, p->op_b, (int)side, (int)side, p->k, &one,
            (const void *const *)(layout->a_table + at), CUDA_R_32F, (int)size,
            (const void *const *)(layout->b_table + at), CUDA_R_32F, (int)size, &zero,
            (void *const *)(layout->c_table + at), CUDA_R_32F, (int)size, (int)(chunk * blocks),
            compute_type(capture), CUBLAS_GEMM_DEFAULT);

        capture->status = gpu_check_blas(capture->slot->device, "cublasGemmBatchedEx", status);
    }
    if (capture->status == FIRE_OK)
        gpu_note(capture, "fire_k_combine",
                 fire_launch_combine(capture->slot->stream, NULL, p->c, p->c, layout->state, size,
                                     capture->count, &mirror));
}

void gpu_gram(struct gpu_capture *capture, const float *x, const float *y, float *g)
{
    const struct recipe *recipe = capture->recipe;
    const size_t elements = (size_t)recipe->rows * recipe->cols;
    const struct product p = { .op_b = CUBLAS_OP_T,
                               .m = (int)recipe->cols,
                               .n = (int)recipe->cols,
                               .k = (int)recipe->rows,
                               .a = y,
                               .b = x,
                               .c = g,
                               .a_stride = elements,
                               .b_stride = elements,
                               .c_stride = (size_t)recipe->cols * recipe->cols };

    if (x == y && recipe->precision == RECIPE_3XTF32)
        multiply_split(capture, &p, capture->layout.split, capture->layout.split);
    else if (x == y && recipe->blocks)
        multiply_blocks(capture, &p, recipe->cols / FIRE_K_TABLE_BLOCKS);
    else
        multiply(capture, &p, 0);
}

void gpu_square(struct gpu_capture *capture, const float *a, const float *b, float *c)
{
    const struct recipe *recipe = capture->recipe;
    const size_t square = (size_t)recipe->cols * recipe->cols;
    float *const *split = capture->layout.split;
    const struct product p = { .op_b = CUBLAS_OP_N,
                               .m = (int)recipe->cols,
                               .n = (int)recipe->cols,
                               .k = (int)recipe->cols,
                               .a = a,
                               .b = b,
                               .c = c,
                               .a_stride = square,
                               .b_stride = square,
                               .c_stride = square };

    if (recipe->precision == RECIPE_3XTF32)
        multiply_split(capture, &p, split + 2, a == b ? split + 2 : split + 4);
    else if (recipe->blocks)
        multiply_blocks(capture, &p, square / FIRE_K_TABLE_BLOCKS);
    else
        multiply(capture, &p, 0);
}

void gpu_apply(struct gpu_capture *capture, const float *x, const float *m, float *y)
{
    const struct recipe *recipe = capture->recipe;
    const size_t elements = (size_t)recipe->rows * recipe->cols;
    const struct product p = { .op_b = CUBLAS_OP_N,
                               .m = (int)recipe->cols,
                               .n = (int)recipe->rows,
                               .k = (int)recipe->cols,
                               .a = m,
                               .b = x,
                               .c = y,
                               .a_stride = (size_t)recipe->cols * recipe->cols,
                               .b_stride = elements,
                               .c_stride = elements };

    if (recipe->precision == RECIPE_3XTF32)
        multiply_split(capture, &p, capture->layout.split + 2, capture->layout.split);
    else
        multiply(capture, &p, 0);
}
