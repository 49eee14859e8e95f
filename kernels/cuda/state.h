/* state: what the device knows of each matrix of a batch, as a row of doubles. Shared by kernels
 * and host code; plain C.
 *
 * x is what the iteration works on: it starts as w * FACTOR, and the matrix that is meant is
 * x * ROOT, its Gram matrix g * GAIN, with GAIN = ROOT^2. Only the first step has them differ
 * from 1: they carry a normalisation that is known only after the first products. */
#ifndef FIRE_CUDA_STATE_H
#define FIRE_CUDA_STATE_H

#define FIRE_K_THREADS      256   /* of every block */
#define FIRE_K_BLOCKS_MAX   64    /* partial sums of one matrix */
#define FIRE_K_LANCZOS_MAX  64    /* steps of a Lanczos run */
#define FIRE_K_FUSED_COLS   64    /* the fused kernel's widest matrix: one 4 x 4 tile a thread */
#define FIRE_K_FUSED_BYTES  60416 /* of dynamic shared memory; with the static part 64 KiB */
#define FIRE_K_TABLE_BLOCKS 4     /* a symmetric product is cut into so many block rows */

#define FIRE_K_HISTORY_MAX 10

enum fire_k_field {
    FIRE_K_NORM,    /* ||W||_F */
    FIRE_K_FACTOR,  /* x = w * FACTOR */
    FIRE_K_ROOT,    /* see above */
    FIRE_K_GAIN,    /* see above */
    FIRE_K_ACTIVE,  /* 1 while steps change x; 0: the rest multiply by I */
    FIRE_K_STEPS,   /* taken */
    FIRE_K_DFI,     /* of what is meant, at the last look */
    FIRE_K_LARGEST, /* eigenvalue of g, at the last Lanczos run */
    FIRE_K_SCALE,   /* c of W = c Q */
    FIRE_K_SFE,
    FIRE_K_SKEW,  /* ||H - H^T||_F^2 of H = X^T W */
    FIRE_K_INNER, /* <X, W> */
    FIRE_K_BEFORE_DFI,
    FIRE_K_BEFORE_FREE, /* scale-free */
    FIRE_K_BEFORE_NORM,
    FIRE_K_BEFORE_PARTICIPATION,
    FIRE_K_BEFORE_LARGEST, /* squared spectral norm */
    FIRE_K_AFTER_DFI,
    FIRE_K_AFTER_FREE,
    FIRE_K_AFTER_NORM,
    FIRE_K_AFTER_PARTICIPATION,
    FIRE_K_AFTER_LARGEST,
    FIRE_K_WRITTEN, /* the moment after is of g GAIN WRITTEN^2: c, or a norm */
    FIRE_K_HISTORY, /* the DfI before step 0, 1, … */
    FIRE_K_FIELDS = FIRE_K_HISTORY + FIRE_K_HISTORY_MAX /* doubles of a row */
};

/* Where a moment of a Gram matrix goes. */
enum fire_k_moment {
    FIRE_K_MOMENT_NONE,
    FIRE_K_MOMENT_BEFORE,
    FIRE_K_MOMENT_AFTER,
    FIRE_K_MOMENT_WRITTEN, /* after, of weights that are no multiple of Q: its DfI is known */
};

/* How the weights are normalised, and what the gain comes from. */
enum fire_k_gain {
    FIRE_K_GAIN_NONE,     /* by ||W||_F + eps, at loading */
    FIRE_K_GAIN_SCHATTEN, /* by ||G^2||_F^(1/4) + eps, after loading */
    FIRE_K_GAIN_SPECTRAL, /* by ||W||_2 + eps */
};

/* Where c comes from. */
enum fire_k_scale { FIRE_K_SCALE_FIXED, FIRE_K_SCALE_KEEP_NORM, FIRE_K_SCALE_MEAN_SIGMA };

/* What the fused kernel reads: doubles, then FIRE_K_STEP_DOUBLES for each listed step: the count
 * of terms (2, 3: powers of G from the lowest; 5: the squared form a, b, c, d, e of
 * minimax_coefficients.h) and five coefficients. */
enum fire_k_program {
    FIRE_K_P_KIND,   /* enum fire_k_kind */
    FIRE_K_P_COUNT,  /* listed steps; the last repeats, and when converging it is the Taylor step */
    FIRE_K_P_LIMIT,  /* most steps */
    FIRE_K_P_CHECK,  /* 0: counted steps; k: look after steps 1, 1 + k, 1 + 2 k, … */
    FIRE_K_P_TARGET, /* DfI to stop at */
    FIRE_K_P_FULL,   /* added to the DfI before it is compared */
    FIRE_K_P_EPS,
    FIRE_K_P_GAIN,  /* enum fire_k_gain */
    FIRE_K_P_SCALE, /* enum fire_k_scale */
    FIRE_K_P_SCALE_FACTOR,
    FIRE_K_P_BLEND,
    FIRE_K_P_OUTPUT,   /* enum fire_k_output */
    FIRE_K_P_MOMENTS,  /* whether statistics are wanted */
    FIRE_K_P_RESIDUAL, /* whether SKEW is wanted */
    FIRE_K_P_STEPS,    /* where the steps begin */
};
enum fire_k_kind { FIRE_K_KIND_POLYNOMIAL, FIRE_K_KIND_CONVERGE, FIRE_K_KIND_ANALYZE };

#define FIRE_K_STEP_DOUBLES    6
#define FIRE_K_STEPS_MAX       33
#define FIRE_K_PROGRAM_DOUBLES 256  /* room for all of it */
#define FIRE_K_NEAR            0.25 /* a DfI below this is the Taylor step's */

enum fire_k_output { FIRE_K_OUTPUT_F32, FIRE_K_OUTPUT_BF16, FIRE_K_OUTPUT_F16 };

#endif
