#!/usr/bin/env python3
"""Designs the minimax steps of the polar factor and writes minimax_coefficients.h.

A step replaces X by X r(X^T X); a singular value s becomes p(s) = s r(s^2). When all of them lie in
[l, u], the best odd polynomial p of a given degree is the one whose largest |1 - p(s)| on [l, u] is
least: 1 - p(s) then takes its extreme values, with alternating sign, at one point more than p has
coefficients, and Remez' exchange finds it. Its values lie in [1 - e, 1 + e], which is the interval
the next step is designed for. Steps follow until the lower end is close to 1.

Products in a low precision add an error to every singular value, small beside the largest one but
not beside the small ones, and a polynomial of degree 9 explodes just above u. A cushion c > 0
guards both ends:
  - the polynomial is designed for [max(l, c u), u], so that its dips, where 1 - p is largest, stay
    well above 0 (a value pushed through 0 would come out with the wrong sign), and its coefficients
    stay small, which keeps the rounding errors small; it is then scaled so that the values of the
    whole of [l, u] lie centred around 1;
  - u is c/2 beyond the largest value of the step before, and the lower end is c/2 below the
    smallest: what rounding may add is inside the band.

Everything is computed with 60 decimal digits, so the file comes out the same on every machine.

usage: minimax.py              print the header
       minimax.py --write      write it beside this script
       minimax.py --check      exit 1 when the file beside this script is not what would be written
       minimax.py --design DEGREE LOWER CUSHION    print one chain (DEGREE 3, 5, 7 or 9)
"""

import decimal
import pathlib
import sys

decimal.getcontext().prec = 60
Number = decimal.Decimal

HEADER = pathlib.Path(__file__).with_name("minimax_coefficients.h")
LOWERS = ("1e-1", "3e-2", "1e-2", "3e-3", "1e-3", "1e-4")
CUSHIONS = ("0", "0.02", "0.04")
DEGREE = 9
STEPS_MAX = 8
LOWER_DONE = Number("0.995")  # Taylor steps finish from here
EXCHANGES_MAX = 100
GRID = 400  # points on which sign changes of the derivative are looked for


def solve(matrix, right):
    """Solves a small linear system by elimination with row pivoting."""
    size = len(right)
    rows = [list(row) + [value] for row, value in zip(matrix, right)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            for entry in range(column, size + 1):
                rows[row][entry] -= factor * rows[column][entry]
    solution = [Number(0)] * size
    for row in reversed(range(size)):
        known = sum((rows[row][entry] * solution[entry] for entry in range(row + 1, size)),
                    Number(0))
        solution[row] = (rows[row][size] - known) / rows[row][row]
    return solution


def horner(coefficients, x):
    value = Number(0)
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


def evaluate(powers, s):
    """p(s) = s (c0 + c1 s^2 + c2 s^4 + ...)."""
    return s * horner(powers, s * s)


def slope(powers, s):
    return horner([(2 * i + 1) * c for i, c in enumerate(powers)], s * s)


def extremes(powers, lower, upper):
    """The points of (lower, upper) where p turns, ascending."""
    ratio = ((upper / lower).ln() / GRID).exp()
    grid = [lower]
    while len(grid) < GRID:
        grid.append(grid[-1] * ratio)
    grid.append(upper)
    points = []
    for left, right in zip(grid, grid[1:]):
        sign = slope(powers, left) > 0
        if sign == (slope(powers, right) > 0):
            continue
        # p is flat where it turns: an error of 1e-25 here is one of 1e-50 in its value.
        while right - left > Number("1e-25") * right:
            middle = (left + right) / 2
            if (slope(powers, middle) > 0) == sign:
                left = middle
            else:
                right = middle
        points.append((left + right) / 2)
    return points


def remez(degree, lower, upper):
    """The odd polynomial of `degree` nearest to 1 on [lower, upper], and its error."""
    terms = (degree + 1) // 2
    if upper - lower < Number("1e-30"):
        raise ValueError("the interval is a point")
    # Chebyshev points between the logarithms: the first guess only has to alternate.
    low, high = lower.ln(), upper.ln()
    points = [(low + (high - low) * i / terms).exp() for i in range(terms + 1)]
    for _ in range(EXCHANGES_MAX):
        matrix = [[point ** (2 * i + 1) for i in range(terms)] + [Number((-1) ** row)]
                  for row, point in enumerate(points)]
        solution = solve(matrix, [Number(1)] * (terms + 1))
        powers, levelled = solution[:terms], abs(solution[terms])
        turns = extremes(powers, lower, upper)
        if len(turns) != terms - 1:
            raise ArithmeticError(f"{len(turns)} turning points instead of {terms - 1}")
        points = [lower] + turns + [upper]
        worst = max(abs(1 - evaluate(powers, point)) for point in points)
        if worst - levelled <= Number("1e-35") * worst:
            return powers, worst
    raise ArithmeticError("the exchange did not settle")


def band(powers, lower, upper):
    """Smallest and largest p on [lower, upper]."""
    points = [lower] + extremes(powers, lower, upper) + [upper]
    values = [evaluate(powers, point) for point in points]
    return min(values), max(values)


def design_step(degree, lower, upper, cushion):
    """One step for [lower, upper]; returns its powers and the lower end of where it leads, the
    upper end being 2 - that."""
    powers, error = remez(degree, max(lower, cushion * upper), upper)
    if cushion * upper <= lower:
        return powers, 1 - error
    smallest, largest = band(powers, lower, upper)
    scale = 2 / (smallest + largest)
    return [scale * c for c in powers], scale * smallest


def design_chain(degree, lower, cushion):
    """Steps from [lower, 1] until LOWER_DONE: a list of (powers, lower_after)."""
    half = cushion / 2
    chain = []
    low, high = lower, Number(1)
    while len(chain) < STEPS_MAX and (not chain or chain[-1][1] <= LOWER_DONE):
        powers, after = design_step(degree, low * (1 - half), high * (1 + half), cushion)
        chain.append((powers, after))
        low, high = after, 2 - after
    return chain


def squared(powers):
    """(a, b, c, d, e) with r(x) = a (x^2 + b x + c)^2 + d x + e."""
    c0, c1, c2, c3, c4 = powers
    a = c4
    b = c3 / (2 * a)
    c = (c2 / a - b * b) / 2
    return [a, b, c, c1 - 2 * a * b * c, c0 - a * c * c]


def literals(values, indent=0):
    """Five numbers as an initialiser, broken after the third."""
    texts = [repr(float(value)) for value in values]
    return ("{ " + ", ".join(texts[:3]) + ",\n" + " " * indent + ", ".join(texts[3:]) + " }")


def header():
    """The whole text of minimax_coefficients.h."""
    lines = [PREAMBLE]
    for lower in LOWERS:
        for cushion in CUSHIONS:
            chain = design_chain(DEGREE, Number(lower), Number(cushion))
            lines.append(f"    {{ .lower = {lower}, .cushion = {cushion}, "
                         f".step_count = {len(chain)}, .step = {{")
            for powers, after in chain:
                lines.append(f"        {{ .power = {literals(powers, 21)},")
                lines.append(f"          .squared = {literals(squared(powers), 23)},")
                lines.append(f"          .lower_after = {float(after)!r} }},")
            lines.append("    } },")
    lines.append(POSTAMBLE)
    return "\n".join(lines)


PREAMBLE = """\
/* minimax_coefficients: chains of degree-9 steps, written by minimax.py. Do not edit: run
 * `python3 kernels/minimax.py --write`.
 *
 * A step is X <- X r(G), G = X^T X, and takes a singular value s to s r(s^2):
 *   power:   r(G) = c0 I + c1 G + c2 G^2 + c3 G^3 + c4 G^4
 *   squared: r(G) = a (G^2 + b G + c I)^2 + d G + e I, members in the order a, b, c, d, e; every
 *            product on the Gram side is then a square of a symmetric matrix
 *
 * A chain brings all singular values from [lower, 1] into [lower_after, 2 - lower_after] of its
 * last step; the same holds after every step, with that step's lower_after. Taylor steps finish.
 *
 * cushion: how much rounding it stands. 0: f32 and x6 products; 0.02: x3; 0.04: bf16. A step of a
 * chain with a cushion may be given singular values cushion / 2 (relative) outside of what the step
 * before promises, so [lower (1 - cushion / 2), 1 + cushion / 2] for the first one. */
#ifndef FIRE_MINIMAX_COEFFICIENTS_H
#define FIRE_MINIMAX_COEFFICIENTS_H

#include <stdint.h>

#define MINIMAX_STEPS_MAX 8

struct minimax_step {
    double power[5];
    double squared[5];
    double lower_after;
};

struct minimax_chain {
    double lower;
    double cushion;
    uint32_t step_count;
    struct minimax_step step[MINIMAX_STEPS_MAX];
};

/* By falling lower; for each of them by rising cushion. */
/* clang-format off */
static const struct minimax_chain minimax_chains[] = {"""

POSTAMBLE = """\
};
/* clang-format on */

#define MINIMAX_CHAIN_COUNT (sizeof(minimax_chains) / sizeof(minimax_chains[0]))

#endif
"""


def print_chain(degree, lower, cushion):
    for powers, after in design_chain(degree, Number(lower), Number(cushion)):
        print(" ".join(f"{float(c):.13g}" for c in powers), f"-> {float(after):.15g}")


def main(arguments):
    if not arguments:
        sys.stdout.write(header())
    elif arguments == ["--write"]:
        HEADER.write_text(header(), encoding="ascii")
    elif arguments == ["--check"]:
        if not HEADER.exists() or HEADER.read_text(encoding="ascii") != header():
            print(f"{HEADER.name} is not what minimax.py writes: run minimax.py --write",
                  file=sys.stderr)
            return 1
    elif len(arguments) == 4 and arguments[0] == "--design":
        print_chain(int(arguments[1]), arguments[2], arguments[3])
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
