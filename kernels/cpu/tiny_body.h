/* tiny_body: the inner loops of tiny.h for one register width. Included by a tiny_<isa>.c with
 *
 *   VECTOR_BYTES  register width; a lane is 8 bytes of it
 *   BLOCK_COLUMNS 4 where 16 sums fit the registers, else 2
 *   TINY_SYMBOL   the table to define
 *   lanes_root(x) square root of each lane, defined after the types below
 *
 * Everything lives on the r x r side until the last product. With G = W^T W and S = G^-1, a scaled
 * Newton step is
 *
 *   M <- M (m I + S / m) / 2      G <- (m^2 G + 2 I + S / m^2) / 4      m^4 = ||S||_F / ||G||_F
 *
 * so that the next G costs no product, and Q = W M at the end. Steps go on until one last T3 or
 * Halley step is proven to finish (polar.c has the bounds). The Gram side loses the square of the
 * condition number: CONDITION_LOSS times it, in units of f64's roundoff, must stay below the bound.
 *
 * Symmetric matrices are stored as 4 x 4 blocks, those of the upper triangle only, a diagonal block
 * in full. The last block is padded by the identity, which stays apart: zeros between it and the
 * matrix remain zeros. */
#include <math.h>
#include <string.h>

#include "tiny.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#define LANES          (VECTOR_BYTES / sizeof(double))
#define SIDE           4u            /* of a block */
#define BLOCK          (SIDE * SIDE) /* its entries */
#define GRAM_ROWS      16u           /* of x that are read for all blocks of G in turn */
#define WRITE_ENTRIES  16u           /* turned from lanes to rows at a time */
#define CONDITION_LOSS 16.0
#define ROUNDOFF       0x1p-53

/* clang-format off */
typedef double lanes __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef float lanes_f32 __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef int64_t lanes_mask __attribute__((vector_size(VECTOR_BYTES), may_alias));
/* clang-format on */

static inline lanes lanes_root(lanes x);

INLINE lanes lanes_all(double value)
{
    return (lanes){ 0 } + value;
}

/* `yes` where the mask is set, else `no`, bit for bit. */
INLINE lanes lanes_select(lanes_mask mask, lanes yes, lanes no)
{
    return (lanes)((mask & (lanes_mask)yes) | (~mask & (lanes_mask)no));
}

INLINE bool lanes_any(lanes_mask mask)
{
    int64_t any = 0;

    for (size_t l = 0; l < LANES; l++)
        any |= mask[l];
    return any != 0;
}

/* What a group needs; x comes first, where the caller finds Q. */
struct work {
    lanes *x; /* rows x cols, no padding; what is read behind its end is zero or finite */
    lanes *g;
    lanes *z; /* I + 3 t G or G, then its Cholesky factor; then the new m */
    lanes *v; /* inverse of that factor; then the step */
    lanes *s; /* inverse of z */
    lanes *m;
    uint32_t rows, cols;
    uint32_t blocks; /* to a side */
};

INLINE lanes *block_at(lanes *matrix, uint32_t i, uint32_t j)
{
    return matrix + (j * (j + 1) / 2 + i) * BLOCK;
}

INLINE uint32_t block_count(const struct work *work)
{
    return work->blocks * (work->blocks + 1) / 2;
}

/* --- 4 x 4 blocks --------------------------------------------------------------------------- */

/* A block of sums, BLOCK_COLUMNS of its columns. */
struct sums {
    lanes at[SIDE][BLOCK_COLUMNS];
};

/* Which entries of a factor are zero, and cost nothing. */
enum zeros { ZEROS_NONE, ZEROS_BELOW, ZEROS_ABOVE };

INLINE bool is_zero(enum zeros zeros, size_t row, size_t column)
{
    return (zeros == ZEROS_BELOW && row > column) || (zeros == ZEROS_ABOVE && row < column);
}

/* A 4 x 4 factor: entry (i, k) is at[i * row + k * column]. */
struct factor {
    const lanes *at;
    size_t row, column;
    enum zeros zeros;
};

INLINE struct factor plain(const lanes *block)
{
    return (struct factor){ block, SIDE, 1, ZEROS_NONE };
}

INLINE struct factor transposed(const lanes *block)
{
    return (struct factor){ block, 1, SIDE, ZEROS_NONE };
}

/* An upper triangular block, and its transpose. */
INLINE struct factor upper(const lanes *block)
{
    return (struct factor){ block, SIDE, 1, ZEROS_BELOW };
}

INLINE struct factor upper_transposed(const lanes *block)
{
    return (struct factor){ block, 1, SIDE, ZEROS_ABOVE };
}

/* sums += columns j0, j0 + 1, … of A B. All but the blocks' addresses is known when compiled. */
INLINE void sums_add(struct sums *sums, struct factor a, struct factor b, const size_t j0)
{
    UNROLL
    for (size_t k = 0; k < SIDE; k++) {
        UNROLL
        for (size_t i = 0; i < SIDE; i++) {
            if (is_zero(a.zeros, i, k))
                continue;
            const lanes left = a.at[i * a.row + k * a.column];

            UNROLL
            for (size_t j = 0; j < BLOCK_COLUMNS; j++) {
                if (!is_zero(b.zeros, k, j0 + j))
                    sums->at[i][j] += left * b.at[k * b.row + (j0 + j) * b.column];
            }
        }
    }
}

/* c <- factor * sums. */
INLINE void sums_store(const struct sums *sums, lanes *c, size_t j0, double factor)
{
    UNROLL
    for (size_t i = 0; i < SIDE; i++) {
        UNROLL
        for (size_t j = 0; j < BLOCK_COLUMNS; j++)
            c[i * SIDE + j0 + j] = factor * sums->at[i][j];
    }
}

INLINE void sums_subtract(const struct sums *sums, lanes *c, size_t j0)
{
    UNROLL
    for (size_t i = 0; i < SIDE; i++) {
        UNROLL
        for (size_t j = 0; j < BLOCK_COLUMNS; j++)
            c[i * SIDE + j0 + j] -= sums->at[i][j];
    }
}

/* --- the inverse ---------------------------------------------------------------------------- */

/* v <- U^-1 for the 4 x 4 block a = U^T U, zeros below its diagonal. A block that is not positive
 * definite gives NaN. */
static void block_invert_factor(const lanes *a, lanes *v)
{
    lanes u[SIDE][SIDE], reciprocal[SIDE];

    UNROLL
    for (size_t i = 0; i < SIDE; i++) {
        UNROLL
        for (size_t j = i; j < SIDE; j++)
            u[i][j] = a[i * SIDE + j];
    }
    UNROLL
    for (size_t k = 0; k < SIDE; k++) {
        reciprocal[k] = 1.0 / lanes_root(u[k][k]);
        UNROLL
        for (size_t j = k + 1; j < SIDE; j++)
            u[k][j] *= reciprocal[k];
        UNROLL
        for (size_t i = k + 1; i < SIDE; i++) {
            UNROLL
            for (size_t j = i; j < SIDE; j++)
                u[i][j] -= u[k][i] * u[k][j];
        }
    }
    UNROLL
    for (size_t i = 0; i < SIDE; i++) {
        lanes row[SIDE];

        UNROLL
        for (size_t j = 0; j < i; j++)
            v[i * SIDE + j] = lanes_all(0);
        row[i] = reciprocal[i];
        v[i * SIDE + i] = row[i];
        UNROLL
        for (size_t j = i + 1; j < SIDE; j++) {
            lanes sum = lanes_all(0);

            UNROLL
            for (size_t k = i; k < j; k++)
                sum -= row[k] * u[k][j];
            row[j] = sum * reciprocal[j];
            v[i * SIDE + j] = row[j];
        }
    }
}

/* z = U^T U: U's blocks right of the diagonal into z, the inverses of those on it into v. */
static void factor_z(const struct work *work)
{
    lanes *z = work->z;

    for (uint32_t k = 0; k < work->blocks; k++) {
        const lanes *inverse = block_at(work->v, k, k);

        for (uint32_t j = k; j < work->blocks && k > 0; j++) {
            UNROLL
            for (size_t j0 = 0; j0 < SIDE; j0 += BLOCK_COLUMNS) {
                struct sums sums = { 0 };

                for (uint32_t p = 0; p < k; p++)
                    sums_add(&sums, transposed(block_at(z, p, k)), plain(block_at(z, p, j)), j0);
                sums_subtract(&sums, block_at(z, k, j), j0);
            }
        }
        block_invert_factor(block_at(z, k, k), block_at(work->v, k, k));
        for (uint32_t j = k + 1; j < work->blocks; j++) {
            UNROLL
            for (size_t j0 = 0; j0 < SIDE; j0 += BLOCK_COLUMNS) {
                struct sums sums = { 0 };

                sums_add(&sums, upper_transposed(inverse), plain(block_at(z, k, j)), j0);
                sums_store(&sums, block_at(z, k, j), j0, 1);
            }
        }
    }
}

/* The rest of v = U^-1, from the diagonal upwards. */
static void invert_factor(const struct work *work)
{
    lanes *v = work->v;

    for (uint32_t j = 1; j < work->blocks; j++) {
        for (uint32_t i = j; i-- > 0;) {
            lanes *target = block_at(v, i, j);

            UNROLL
            for (size_t j0 = 0; j0 < SIDE; j0 += BLOCK_COLUMNS) {
                struct sums sums = { 0 };

                for (uint32_t p = i + 1; p < j; p++)
                    sums_add(&sums, plain(block_at(work->z, i, p)), plain(block_at(v, p, j)), j0);
                sums_add(&sums, plain(block_at(work->z, i, j)), upper(block_at(v, j, j)), j0);
                sums_store(&sums, target, j0, -1);
            }
            UNROLL
            for (size_t j0 = 0; j0 < SIDE; j0 += BLOCK_COLUMNS) {
                struct sums sums = { 0 };

                sums_add(&sums, upper(block_at(v, i, i)), plain(target), j0);
                sums_store(&sums, target, j0, 1);
            }
        }
    }
}

/* s <- z^-1 = V V^T. */
static void invert(const struct work *work)
{
    lanes *v = work->v;

    factor_z(work);
    invert_factor(work);
    for (uint32_t j = 0; j < work->blocks; j++) {
        for (uint32_t i = 0; i <= j; i++) {
            UNROLL
            for (size_t j0 = 0; j0 < SIDE; j0 += BLOCK_COLUMNS) {
                struct sums sums = { 0 };

                sums_add(&sums, plain(block_at(v, i, j)), upper_transposed(block_at(v, j, j)), j0);
                for (uint32_t p = j + 1; p < work->blocks; p++)
                    sums_add(&sums, plain(block_at(v, i, p)), transposed(block_at(v, j, p)), j0);
                sums_store(&sums, block_at(work->s, i, j), j0, 1);
            }
        }
    }
}

/* --- products ------------------------------------------------------------------------------- */

/* m <- m v where `active`; the two are symmetric and commute. The old m becomes z. */
static void multiply_step(struct work *work, lanes_mask active)
{
    lanes *m = work->m, *step = work->v, *product = work->z;

    for (uint32_t j = 0; j < work->blocks; j++) {
        for (uint32_t i = 0; i <= j; i++) {
            const lanes *old = block_at(m, i, j);
            lanes *target = block_at(product, i, j);

            UNROLL
            for (size_t j0 = 0; j0 < SIDE; j0 += BLOCK_COLUMNS) {
                struct sums sums = { 0 };
                uint32_t p = 0;

                for (; p < i; p++)
                    sums_add(&sums, transposed(block_at(m, p, i)), plain(block_at(step, p, j)), j0);
                for (; p <= j; p++)
                    sums_add(&sums, plain(block_at(m, i, p)), plain(block_at(step, p, j)), j0);
                for (; p < work->blocks; p++)
                    sums_add(&sums, plain(block_at(m, i, p)), transposed(block_at(step, j, p)), j0);
                for (size_t a = 0; a < SIDE; a++) {
                    for (size_t b = 0; b < BLOCK_COLUMNS; b++) {
                        const size_t at = a * SIDE + j0 + b;

                        target[at] = lanes_select(active, sums.at[a][b], old[at]);
                    }
                }
            }
        }
    }
    work->m = product;
    work->z = m;
}

/* g <- x^T x. Columns of the last block that x does not have are other entries of x. */
static void gram(const struct work *work)
{
    memset(work->g, 0, block_count(work) * BLOCK * sizeof(lanes));
    for (uint32_t first = 0; first < work->rows; first += GRAM_ROWS) {
        const uint32_t end = first + GRAM_ROWS < work->rows ? first + GRAM_ROWS : work->rows;

        for (uint32_t j = 0; j < work->blocks; j++) {
            for (uint32_t i = 0; i <= j; i++) {
                lanes *target = block_at(work->g, i, j);

                UNROLL
                for (size_t j0 = 0; j0 < SIDE; j0 += BLOCK_COLUMNS) {
                    const lanes *row = work->x + (size_t)first * work->cols;
                    struct sums sums = { 0 };

                    for (uint32_t k = first; k < end; k++, row += work->cols) {
                        UNROLL
                        for (size_t a = 0; a < SIDE; a++) {
                            UNROLL
                            for (size_t b = 0; b < BLOCK_COLUMNS; b++)
                                sums.at[a][b] += row[i * SIDE + a] * row[j * SIDE + j0 + b];
                        }
                    }
                    for (size_t a = 0; a < SIDE; a++) {
                        for (size_t b = 0; b < BLOCK_COLUMNS; b++)
                            target[a * SIDE + j0 + b] += sums.at[a][b];
                    }
                }
            }
        }
    }
}

/* What lies behind the last column of the matrix, in its last block, becomes the identity's. */
static void pad(const struct work *work)
{
    const uint32_t last = work->blocks - 1;

    for (uint32_t j = work->cols - last * SIDE; j < SIDE; j++) {
        for (uint32_t b = 0; b <= last; b++) {
            for (uint32_t i = 0; i < SIDE; i++)
                block_at(work->g, b, last)[i * SIDE + j] = lanes_all(0);
        }
        for (uint32_t i = 0; i < SIDE; i++)
            block_at(work->g, last, last)[j * SIDE + i] = lanes_all(i == j ? 1 : 0);
    }
}

/* Block p of the four rows at x. */
INLINE struct factor rows_of(const struct work *work, const lanes *x, uint32_t p)
{
    return (struct factor){ x + p * SIDE, work->cols, 1, ZEROS_NONE };
}

/* x <- x m, four rows at a time: later rows are still to be read. */
static void multiply_rows(const struct work *work)
{
    for (uint32_t first = 0; first < work->rows; first += SIDE) {
        const uint32_t count = work->rows - first < SIDE ? work->rows - first : SIDE;
        lanes *x = work->x + (size_t)first * work->cols;
        lanes product[SIDE][TINY_COLS_MAX];

        for (uint32_t j = 0; j < work->blocks; j++) {
            UNROLL
            for (size_t j0 = 0; j0 < SIDE; j0 += BLOCK_COLUMNS) {
                struct sums sums = { 0 };

                for (uint32_t p = 0; p <= j; p++)
                    sums_add(&sums, rows_of(work, x, p), plain(block_at(work->m, p, j)), j0);
                for (uint32_t p = j + 1; p < work->blocks; p++)
                    sums_add(&sums, rows_of(work, x, p), transposed(block_at(work->m, j, p)), j0);
                for (size_t a = 0; a < SIDE; a++) {
                    for (size_t b = 0; b < BLOCK_COLUMNS; b++)
                        product[a][j * SIDE + j0 + b] = sums.at[a][b];
                }
            }
        }
        for (uint32_t i = 0; i < count; i++)
            memcpy(x + (size_t)i * work->cols, product[i], work->cols * sizeof(lanes));
    }
}

/* --- the iteration -------------------------------------------------------------------------- */

/* *square = ||matrix||_F^2 and *trace, without the padding. */
static void measure(const struct work *work, lanes *matrix, lanes *square, lanes *trace)
{
    const uint32_t last = work->blocks - 1, inside = work->cols - last * SIDE;
    lanes diagonal[SIDE] = { 0 }, beside[SIDE] = { 0 };

    *trace = lanes_all(0);
    for (uint32_t j = 0; j < work->blocks; j++) {
        const uint32_t side = j == last ? inside : SIDE;
        const lanes *block = block_at(matrix, j, j);

        for (uint32_t i = 0; i < j; i++) {
            const lanes *other = block_at(matrix, i, j);

            UNROLL
            for (size_t e = 0; e < BLOCK; e++)
                beside[e % SIDE] += other[e] * other[e];
        }
        for (uint32_t a = 0; a < side; a++) {
            for (uint32_t b = 0; b < side; b++)
                diagonal[b] += block[a * SIDE + b] * block[a * SIDE + b];
            *trace += block[a * SIDE + a];
        }
    }
    *square = (diagonal[0] + diagonal[1]) + (diagonal[2] + diagonal[3]) +
              2.0 * ((beside[0] + beside[1]) + (beside[2] + beside[3]));
}

/* identity I + g G + s S. */
struct mixture {
    lanes identity, g, s;
};

INLINE void add_identity(const struct work *work, lanes identity, lanes *target)
{
    for (uint32_t j = 0; j < work->blocks; j++) {
        UNROLL
        for (uint32_t i = 0; i < SIDE; i++)
            block_at(target, j, j)[i * (SIDE + 1)] += identity;
    }
}

/* target <- identity I + g G. */
static void mix_g(const struct work *work, lanes identity, lanes g, lanes *target)
{
    const uint32_t entries = block_count(work) * BLOCK;

    for (uint32_t e = 0; e < entries; e++)
        target[e] = g * work->g[e];
    add_identity(work, identity, target);
}

/* target <- the mixture `step`, and G <- `next`. */
static void mix_both(const struct work *work, const struct mixture *step,
                     const struct mixture *next, lanes *target)
{
    const uint32_t entries = block_count(work) * BLOCK;
    lanes *g_entries = work->g;

    for (uint32_t e = 0; e < entries; e++) {
        const lanes g = g_entries[e], s = work->s[e];

        target[e] = step->g * g + step->s * s;
        g_entries[e] = next->g * g + next->s * s;
    }
    add_identity(work, step->identity, target);
    add_identity(work, next->identity, g_entries);
}

/* Where the lanes stand. */
struct course {
    lanes_mask active, t3, halley; /* on the way; took this last step */
    lanes square, trace;           /* of G */
    lanes steps;                   /* Newton's */
};

/* Which active lanes can end with the step to come: bounds on sqrt(DfI) after it, from e before. */
static void choose(const struct work *work, struct course *course, double bound_max, lanes_mask *t3,
                   lanes_mask *halley)
{
    const lanes rest = (double)work->cols - course->trace * course->trace / course->square;
    /* a NaN stays one, and ends nothing */
    const lanes e = lanes_root(lanes_select(rest < 0.0, lanes_all(0), rest));
    const lanes after_t3 = (0.75 + 0.25 * e) * e * e;
    const lanes after_halley = e * e * e / ((4.0 - 3.0 * e) * (4.0 - 3.0 * e));
    const lanes_mask near = course->active & (e < 1.0);

    *t3 = near & (after_t3 <= bound_max);
    *halley = near & ~*t3 & (after_halley <= bound_max);
}

/* One step of every active lane, its own. Lanes that take their last one, or that prove unfit,
 * stop being active. */
static void step(struct work *work, struct course *course, double bound_max, bool first)
{
    const lanes zero = lanes_all(0), one = lanes_all(1);
    lanes_mask t3, halley;
    struct mixture p, next;

    choose(work, course, bound_max, &t3, &halley);
    lanes_mask newton = course->active & ~t3 & ~halley;
    const bool inverts = lanes_any(newton | halley);
    /* t brings t G closest to I */
    const lanes t = course->trace / course->square, root = lanes_root(t);
    lanes trace, square = one;

    if (inverts) {
        mix_g(work, lanes_select(halley, one, zero), lanes_select(halley, 3.0 * t, one), work->z);
        invert(work);
        measure(work, work->s, &square, &trace);
    }
    if (first) {
        const double limit = bound_max / (CONDITION_LOSS * ROUNDOFF);

        newton &= course->square * square <= limit * limit;
    }
    /* roots first: the quotient of the squares of denormal weights would overflow */
    const lanes m2 = lanes_root(lanes_root(square) / lanes_root(course->square));
    const lanes m = lanes_root(m2);

    p.identity = lanes_select(newton, 0.5 * m, lanes_select(halley, root / 3.0, 1.5 * root));
    p.s = lanes_select(newton, 0.5 / m, lanes_select(halley, root * (8.0 / 3.0), zero));
    p.g = lanes_select(t3, -0.5 * t * root, zero);
    next.identity = lanes_select(newton, lanes_all(0.5), zero);
    next.g = lanes_select(newton, 0.25 * m2, one);
    next.s = lanes_select(newton, 0.25 / m2, zero);
    if (inverts)
        mix_both(work, &p, &next, first ? work->m : work->v);
    else
        mix_g(work, p.identity, p.g, first ? work->m : work->v);
    if (!first)
        multiply_step(work, newton | t3 | halley);
    course->t3 |= t3;
    course->halley |= halley;
    course->active = newton;
    course->steps += lanes_select(newton, one, zero);
    if (lanes_any(newton))
        measure(work, work->g, &course->square, &course->trace);
}

static void load(const struct tiny_group *group, const struct work *work)
{
    const size_t count = (size_t)group->rows * group->cols;
    double *x = group->space;

    for (size_t e = 0; e < count; e++) {
        for (size_t l = 0; l < LANES; l++)
            x[e * LANES + l] = (double)group->weights[l][e];
    }
    memset(work->x + count, 0, TINY_SLACK * sizeof(lanes));
}

static void solve(struct tiny_group *group)
{
    lanes *space = (lanes *)group->space;
    lanes *arrays = space + ((size_t)group->rows * group->cols + TINY_SLACK);
    struct work work = { .x = space,
                         .g = arrays,
                         .z = arrays + TINY_MATRIX,
                         .v = arrays + 2 * TINY_MATRIX,
                         .s = arrays + 3 * TINY_MATRIX,
                         .m = arrays + 4 * TINY_MATRIX,
                         .rows = group->rows,
                         .cols = group->cols,
                         .blocks = (group->cols + SIDE - 1) / SIDE };
    struct course course = { .steps = lanes_all(0) };

    load(group, &work);
    gram(&work);
    pad(&work);
    measure(&work, work.g, &course.square, &course.trace);
    const lanes norm = lanes_root(course.trace);

    course.active = (course.trace > 0.0) & (course.trace < (double)INFINITY);
    for (uint32_t i = 0; i <= TINY_STEPS_MAX && (i == 0 || lanes_any(course.active)); i++)
        step(&work, &course, group->bound_max, i == 0);
    multiply_rows(&work);
    for (size_t l = 0; l < LANES; l++) {
        group->norm[l] = norm[l];
        group->newton_steps[l] = (uint32_t)course.steps[l];
        group->end[l] = course.t3[l] ? TINY_T3 : course.halley[l] ? TINY_HALLEY : TINY_UNFIT;
    }
}

/* WRITE_ENTRIES of Q, scaled, from one vector for each entry to one row for each lane. */
INLINE void turn(const lanes *q, lanes scale, float rows[LANES][WRITE_ENTRIES])
{
    float entries[WRITE_ENTRIES][LANES];

    for (size_t e = 0; e < WRITE_ENTRIES; e++) {
        const lanes_f32 y = __builtin_convertvector(scale * q[e], lanes_f32);

        memcpy(entries[e], &y, sizeof(y));
    }
    for (size_t e = 0; e < WRITE_ENTRIES; e++) {
        UNROLL
        for (size_t l = 0; l < LANES; l++)
            rows[l][e] = entries[e][l];
    }
}

/* w <- y; sums of the squared differences. */
INLINE void replace(float *w, const float *y, size_t count, double sums[SIDE])
{
    for (size_t e = 0; e < count; e++) {
        const double d = (double)y[e] - (double)w[e];

        sums[e % SIDE] += d * d;
    }
    memcpy(w, y, count * sizeof(*w));
}

/* The order of the additions depends on the shape only. The last entries to be turned may lie
 * behind the matrix, within the space; they are not written. */
static void write(const struct tiny_group *group, struct tiny_write *write)
{
    const lanes *q = (const lanes *)group->space;
    const size_t count = (size_t)group->rows * group->cols;
    double sums[LANES][SIDE] = { 0 };
    lanes scale;

    memcpy(&scale, write->scale, sizeof(scale));
    for (size_t first = 0; first < count; first += WRITE_ENTRIES) {
        const size_t rest = count - first;
        float rows[LANES][WRITE_ENTRIES];

        turn(q + first, scale, rows);
        for (size_t l = 0; l < LANES; l++) {
            if (write->weights[l] && rest >= WRITE_ENTRIES)
                replace(write->weights[l] + first, rows[l], WRITE_ENTRIES, sums[l]);
            else if (write->weights[l])
                replace(write->weights[l] + first, rows[l], rest, sums[l]);
        }
    }
    for (size_t l = 0; l < LANES; l++)
        write->sfe[l] = (sums[l][0] + sums[l][1]) + (sums[l][2] + sums[l][3]);
}

const struct tiny_ops TINY_SYMBOL = { .lanes = LANES, .solve = solve, .write = write };
