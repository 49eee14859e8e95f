/* cublas_table: the functions of cuBLAS that are used, loaded when a GPU has been found. Loading
 * the library costs 200 MB, so the plugin does not link to it. */
#ifndef FIRE_CUDA_CUBLAS_TABLE_H
#define FIRE_CUDA_CUBLAS_TABLE_H

#include <cublas_v2.h>

#include "status.h"

/* Name of the function, and of the member. */
#define CUBLAS_FUNCTIONS(F)                                                                        \
    F(cublasCreate_v2, create)                                                                     \
    F(cublasDestroy_v2, destroy)                                                                   \
    F(cublasSetStream_v2, set_stream)                                                              \
    F(cublasSetWorkspace_v2, set_workspace)                                                        \
    F(cublasSetMathMode, set_math_mode)                                                            \
    F(cublasGemmStridedBatchedEx, gemm_strided)                                                    \
    F(cublasGemmBatchedEx, gemm_batched)                                                           \
    F(cublasGetStatusName, status_name)

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define CUBLAS_MEMBER(function, member) __typeof__(&(function)) member;
struct cublas_table {
    CUBLAS_FUNCTIONS(CUBLAS_MEMBER)
};
#undef CUBLAS_MEMBER

/* Loads libcublas.so of the toolkit's major version, once for the process; never unloaded. */
FIRE_NODISCARD enum fire_status cublas_table_load(const struct cublas_table **table,
                                                  struct fire_error *error);

#endif
