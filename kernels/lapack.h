/* lapack: OpenBLAS, loaded by name at run time after its core type has been chosen.
 *
 * Debian's OpenBLAS 0.3.21 does not know newer cores and falls back to its oldest kernels, so
 * OPENBLAS_CORETYPE is set from CPUID before the library is loaded, unless the user set it. It is
 * used for eigenvalues and singular values only, always on one thread. */
#ifndef FIRE_LAPACK_H
#define FIRE_LAPACK_H

#include "status.h"

struct fire_lapack {
    /* Eigenvalues (jobz 'N') of a symmetric matrix, ascending in `w`. */
    void (*dsyevd)(const char *jobz, const char *uplo, const int *n, double *a, const int *lda,
                   double *w, double *work, const int *lwork, int *iwork, const int *liwork,
                   int *info);
    void (*dgesdd)(const char *jobz, const int *m, const int *n, double *a, const int *lda,
                   double *s, double *u, const int *ldu, double *vt, const int *ldvt, double *work,
                   const int *lwork, int *iwork, int *info);
    void (*dgemm)(const char *transa, const char *transb, const int *m, const int *n, const int *k,
                  const double *alpha, const double *a, const int *lda, const double *b,
                  const int *ldb, const double *beta, double *c, const int *ldc);
    void (*sgemm)(const char *transa, const char *transb, const int *m, const int *n, const int *k,
                  const float *alpha, const float *a, const int *lda, const float *b,
                  const int *ldb, const float *beta, float *c, const int *ldc);
    const char *core_name; /* what the library says it runs: "Haswell", "SkylakeX" */
};

/* Loads it once for the process (thread-safe). FIRE_NOT_FOUND says which package to install. */
FIRE_NODISCARD enum fire_status fire_lapack_load(const struct fire_lapack **lapack,
                                                 struct fire_error *error);

#endif
