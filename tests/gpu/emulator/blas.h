/* blas: one queued product, checked and computed. */
#ifndef EMULATOR_BLAS_H
#define EMULATOR_BLAS_H

#include <cublas_v2.h>

#include "emulator.h"

enum blas_precision { BLAS_EXACT, BLAS_TF32, BLAS_BF16, BLAS_F16 };

/* One matrix operand of a batch, column-major as stored. */
struct blas_operand {
    const void *address; /* device; the table of addresses when `table` */
    bool table;
    cudaDataType type;
    int rows;
    int cols;
    int lead;
    long long stride; /* elements from one matrix to the next */
};

/* C = alpha op(A) op(B) + beta C */
struct blas_product {
    bool transpose_a;
    bool transpose_b;
    int m;
    int n;
    int k;
    int batch;
    double alpha;
    double beta;
    struct blas_operand a;
    struct blas_operand b;
    struct blas_operand c;
    enum blas_precision precision;
    void *workspace; /* device; scribbled on */
    size_t workspace_bytes;
};

size_t blas_element_bytes(cudaDataType type); /* 0: not emulated */
/* Where matrix `index` lies, in device addresses; NULL: not inside one live allocation. */
const void *blas_matrix(const struct blas_operand *operand, int index);
/* The shadow of that matrix, or NULL. */
void *blas_shadow(const struct blas_operand *operand, int index);
/* Whether two matrices share an element. */
bool blas_overlap(const struct blas_operand *x, const void *x_address, const struct blas_operand *y,
                  const void *y_address);

/* Each matrix of the batch by the same calls in the same order, whatever the batch. False: an
 * operand was not where it should be; a complaint was made. */
bool blas_compute(const struct blas_product *product);

#endif
