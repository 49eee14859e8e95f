/* blas_compute: products by OpenBLAS on one thread, or by plain loops where it is not installed.
 *
 * A matrix of a batch is computed by itself, so its bits do not depend on the others. Reduced
 * precision rounds the operands to what a tensor core reads and multiplies exactly what is left;
 * how a tensor core adds is not emulated. */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blas.h"

typedef void gemm_float(const char *, const char *, const int *, const int *, const int *,
                        const float *, const float *, const int *, const float *, const int *,
                        const float *, float *, const int *);
typedef void gemm_double(const char *, const char *, const int *, const int *, const int *,
                         const double *, const double *, const int *, const double *, const int *,
                         const double *, double *, const int *);

static struct {
    bool tried;
    gemm_float *sgemm;
    gemm_double *dgemm;
} library;

static void load(void)
{
    void *handle;
    void *symbol;
    void (*set_threads)(int) = NULL;

    library.tried = true;
    setenv("OPENBLAS_NUM_THREADS", "1", 0);
    handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return;
    symbol = dlsym(handle, "sgemm_");
    memcpy(&library.sgemm, &symbol, sizeof(symbol));
    symbol = dlsym(handle, "dgemm_");
    memcpy(&library.dgemm, &symbol, sizeof(symbol));
    symbol = dlsym(handle, "openblas_set_num_threads");
    memcpy(&set_threads, &symbol, sizeof(symbol));
    if (set_threads)
        set_threads(1);
}

size_t blas_element_bytes(cudaDataType type)
{
    return type == CUDA_R_64F                          ? 8
           : type == CUDA_R_32F                        ? 4
           : type == CUDA_R_16F || type == CUDA_R_16BF ? 2
                                                       : 0;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Rounds to `kept` bits after the point, ties to even; NaN and Inf stay what they are. */
static float round_to(float value, unsigned kept)
{
    const unsigned dropped = 23 - kept;
    const uint32_t bits = bits_of(value);

    if ((bits & 0x7F800000u) == 0x7F800000u)
        return value;
    return from_bits((bits + ((1u << (dropped - 1)) - 1) + (bits >> dropped & 1u)) &
                     ~((1u << dropped) - 1));
}

static float from_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = half >> 10 & 31u;
    const uint32_t mantissa = half & 1023u;

    if (exponent == 31)
        return from_bits(sign | 0x7F800000u | mantissa << 13);
    if (exponent == 0)
        return from_bits(sign | bits_of((float)mantissa * 0x1p-24f));
    return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

static uint16_t to_half(float value)
{
    const uint32_t bits = bits_of(value);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    float rounded;

    if (magnitude > 0x7F800000u)
        return 0x7FFFu;
    if (magnitude >= 0x477FF000u)
        return sign | 0x7C00u;
    if (magnitude < 0x38800000u)
        return sign | (uint16_t)(bits_of(from_bits(magnitude) + 0.5f) - 0x3F000000u);
    rounded = round_to(from_bits(magnitude), 10);
    return sign | (uint16_t)((bits_of(rounded) >> 13) - (112u << 10));
}

static float load_element(const void *place, size_t index, cudaDataType type)
{
    if (type == CUDA_R_32F)
        return ((const float *)place)[index];
    if (type == CUDA_R_16BF)
        return from_bits((uint32_t)((const uint16_t *)place)[index] << 16);
    return from_half(((const uint16_t *)place)[index]);
}

static void store_element(void *place, size_t index, cudaDataType type, float value)
{
    if (type == CUDA_R_32F)
        ((float *)place)[index] = value;
    else if (type == CUDA_R_16BF)
        ((uint16_t *)place)[index] = (uint16_t)(bits_of(round_to(value, 7)) >> 16);
    else
        ((uint16_t *)place)[index] = to_half(value);
}

static float reduce(float value, enum blas_precision precision)
{
    switch (precision) {
    case BLAS_TF32: return round_to(value, 10);
    case BLAS_BF16: return round_to(value, 7);
    case BLAS_F16: return from_half(to_half(value));
    case BLAS_EXACT: break;
    }
    return value;
}

/* The operand as floats, packed: itself when it is so already, else in new memory. */
static float *prepare(const struct blas_operand *operand, void *place, enum blas_precision how,
                      int *lead)
{
    float *copy;

    *lead = operand->lead;
    if (operand->type == CUDA_R_32F && how == BLAS_EXACT)
        return place;
    *lead = operand->rows > 0 ? operand->rows : 1;
    copy = malloc(((size_t)operand->rows * (size_t)operand->cols + 1) * sizeof(*copy));
    if (!copy)
        abort();
    for (size_t col = 0; col < (size_t)operand->cols; col++) {
        for (size_t row = 0; row < (size_t)operand->rows; row++)
            copy[col * (size_t)*lead + row] =
                reduce(load_element(place, col * (size_t)operand->lead + row, operand->type), how);
    }
    return copy;
}

/* The definition, where there is no library: one chain of additions an element. */
static void plain_float(const struct blas_product *p, const float *a, int lda, const float *b,
                        int ldb, float *c, int ldc)
{
    for (int j = 0; j < p->n; j++) {
        for (int i = 0; i < p->m; i++) {
            float sum = 0.0f;
            float *const out = &c[(size_t)j * (size_t)ldc + (size_t)i];

            for (int l = 0; l < p->k; l++) {
                const size_t ai = p->transpose_a ? (size_t)i * (size_t)lda + (size_t)l
                                                 : (size_t)l * (size_t)lda + (size_t)i;
                const size_t bi = p->transpose_b ? (size_t)l * (size_t)ldb + (size_t)j
                                                 : (size_t)j * (size_t)ldb + (size_t)l;
                sum += a[ai] * b[bi];
            }
            *out = (float)p->alpha * sum + (p->beta == 0.0 ? 0.0f : (float)p->beta * *out);
        }
    }
}

/* Batches are padded with zeros, and half of the products of a test may be of them. */
static bool only(const struct blas_operand *operand, const float *place, bool zeros)
{
    if (operand->type != CUDA_R_32F)
        return false;
    for (size_t col = 0; col < (size_t)operand->cols; col++) {
        const float *const column = place + col * (size_t)operand->lead;

        for (size_t row = 0; row < (size_t)operand->rows; row++) {
            if (zeros ? column[row] != 0.0f : !isfinite(column[row]))
                return false;
        }
    }
    return true;
}

static bool product_is_zero(const struct blas_product *p, const float *a, const float *b)
{
    return p->beta == 0.0 && p->c.type == CUDA_R_32F &&
           ((only(&p->a, a, true) && only(&p->b, b, false)) ||
            (only(&p->b, b, true) && only(&p->a, a, false)));
}

static void compute_float(const struct blas_product *p, void *a_place, void *b_place, void *c_place)
{
    const float alpha = (float)p->alpha;
    const float beta = (float)p->beta;
    int lda;
    int ldb;
    int ldc;

    if (product_is_zero(p, a_place, b_place)) {
        for (size_t col = 0; col < (size_t)p->n; col++)
            memset((float *)c_place + col * (size_t)p->c.lead, 0, (size_t)p->m * sizeof(float));
        return;
    }
    float *const a = prepare(&p->a, a_place, p->precision, &lda);
    float *const b = prepare(&p->b, b_place, p->precision, &ldb);
    float *const c = prepare(&p->c, c_place, BLAS_EXACT, &ldc);

    if (library.sgemm)
        library.sgemm(p->transpose_a ? "T" : "N", p->transpose_b ? "T" : "N", &p->m, &p->n, &p->k,
                      &alpha, a, &lda, b, &ldb, &beta, c, &ldc);
    else
        plain_float(p, a, lda, b, ldb, c, ldc);
    if (c != c_place) {
        for (size_t col = 0; col < (size_t)p->n; col++) {
            for (size_t row = 0; row < (size_t)p->m; row++)
                store_element(c_place, col * (size_t)p->c.lead + row, p->c.type,
                              c[col * (size_t)ldc + row]);
        }
        free(c);
    }
    if (a != a_place)
        free(a);
    if (b != b_place)
        free(b);
}

static void compute_double(const struct blas_product *p, const double *a, const double *b,
                           double *c)
{
    if (library.dgemm) {
        library.dgemm(p->transpose_a ? "T" : "N", p->transpose_b ? "T" : "N", &p->m, &p->n, &p->k,
                      &p->alpha, a, &p->a.lead, b, &p->b.lead, &p->beta, c, &p->c.lead);
        return;
    }
    for (int j = 0; j < p->n; j++) {
        for (int i = 0; i < p->m; i++) {
            double *const out = &c[(size_t)j * (size_t)p->c.lead + (size_t)i];
            double sum = 0.0;

            for (int l = 0; l < p->k; l++)
                sum += a[p->transpose_a ? (size_t)i * (size_t)p->a.lead + (size_t)l
                                        : (size_t)l * (size_t)p->a.lead + (size_t)i] *
                       b[p->transpose_b ? (size_t)l * (size_t)p->b.lead + (size_t)j
                                        : (size_t)j * (size_t)p->b.lead + (size_t)l];
            *out = p->alpha * sum + (p->beta == 0.0 ? 0.0 : p->beta * *out);
        }
    }
}

const void *blas_matrix(const struct blas_operand *operand, int index)
{
    const size_t bytes = blas_element_bytes(operand->type);
    const char *address = operand->address;

    if (operand->table) {
        const char *const entry = address + (size_t)index * sizeof(void *);
        void *const shadow = emu_memory_shadow(entry, sizeof(void *));

        if (!shadow)
            return NULL;
        memcpy(&address, shadow, sizeof(address));
        address = emu_memory_from_kernel(address);
    } else {
        address += (ptrdiff_t)(operand->stride * index * (long long)bytes);
    }
    return address;
}

void *blas_shadow(const struct blas_operand *operand, int index)
{
    const void *const address = blas_matrix(operand, index);
    const size_t elements =
        operand->rows > 0 && operand->cols > 0
            ? (size_t)operand->lead * (size_t)(operand->cols - 1) + (size_t)operand->rows
            : 0;

    return address ? emu_memory_shadow(address, elements * blas_element_bytes(operand->type))
                   : NULL;
}

bool blas_overlap(const struct blas_operand *x, const void *x_address, const struct blas_operand *y,
                  const void *y_address)
{
    const long long x_size = (long long)x->lead * (x->cols - 1) + x->rows;
    const long long y_size = (long long)y->lead * (y->cols - 1) + y->rows;
    const long long size = (long long)blas_element_bytes(x->type);
    const long long apart = ((const char *)y_address - (const char *)x_address) / size;
    long long col;
    long long row;

    if (apart >= x_size || -apart >= y_size)
        return false;
    if (x->lead != y->lead || x->type != y->type)
        return true;
    /* Rectangles of one grid: y begins `row` rows down and `col` columns right of x. A negative
     * row offset is the same place seen one column further. */
    col = apart >= 0 ? apart / x->lead : -((-apart + x->lead - 1) / x->lead);
    row = apart - col * x->lead;
    for (int shift = 0; shift < 2; shift++, col++, row -= x->lead) {
        if (row < x->rows && -row < y->rows && col < x->cols && -col < y->cols)
            return true;
    }
    return false;
}

bool blas_compute(const struct blas_product *product)
{
    if (!library.tried)
        load();
    for (int i = 0; i < product->batch; i++) {
        void *const a = blas_shadow(&product->a, i);
        void *const b = blas_shadow(&product->b, i);
        void *const c = blas_shadow(&product->c, i);

        if (!a || !b || !c) {
            const struct blas_operand *const bad = !a   ? &product->a
                                                   : !b ? &product->b
                                                        : &product->c;

            emu_complain("product of %dx%dx%d: matrix %d of %s is not there: %s", product->m,
                         product->n, product->k, i,
                         !a   ? "A"
                         : !b ? "B"
                              : "C",
                         emu_memory_words(blas_matrix(bad, i)));
            return false;
        }
        if (product->c.table && (blas_overlap(&product->c, blas_matrix(&product->c, i), &product->a,
                                              blas_matrix(&product->a, i)) ||
                                 blas_overlap(&product->c, blas_matrix(&product->c, i), &product->b,
                                              blas_matrix(&product->b, i)))) {
            emu_complain("product of %dx%dx%d: C of matrix %d overlaps an operand", product->m,
                         product->n, product->k, i);
            return false;
        }
        if (product->c.type == CUDA_R_64F)
            compute_double(product, a, b, c);
        else
            compute_float(product, a, b, c);
    }
    return true;
}
