"""Statistics of paired differences, small enough to be read.

Runs of two methods with one seed share data, initialisation and order of batches, so a method is
compared with another by the differences of their values, seed by seed. Intervals are Student's.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def student_cdf(t: float, degrees: int) -> float:
    """P(T <= t) for Student's T, by the closed sum over its whole degrees of freedom."""
    if degrees < 1:
        raise ValueError(f"degrees of freedom must be at least 1, got {degrees}")
    theta = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(theta), math.sin(theta)
    term = cosine if degrees % 2 else 1.0
    total = 0.0
    for k in range(1 + degrees % 2, degrees, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    if degrees % 2:
        return 0.5 + (theta + sine * total) / math.pi
    return 0.5 + sine * total / 2


def student_quantile(p: float, degrees: int) -> float:
    """The t with student_cdf(t, degrees) = p, by bisection."""
    if not 0.0 < p < 1.0:
        raise ValueError(f"a probability lies between 0 and 1, got {p}")
    low, high = -1.0, 1.0
    while student_cdf(low, degrees) > p:
        low *= 2
    while student_cdf(high, degrees) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if student_cdf(middle, degrees) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@dataclass(frozen=True)
class Interval:
    """A mean and its two-sided interval; `low` and `high` are NaN for a single value."""

    mean: float
    low: float
    high: float
    count: int

    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def inside(self, limit: float) -> bool:
        return self.low >= -limit and self.high <= limit


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean of `values` with Student's interval of that level."""
    count = len(values)
    if count == 0:
        raise ValueError("no values: nothing to take the mean of")
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean, math.nan, math.nan, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = student_quantile(0.5 + level / 2, count - 1) * math.sqrt(variance / count)
    return Interval(mean, mean - half, mean + half, count)


def paired_difference(first: Mapping[int, float], second: Mapping[int, float],
                      level: float = 0.95) -> Interval:
    """Mean of first - second over the seeds both have, with its interval."""
    seeds = sorted(set(first) & set(second))
    if not seeds:
        raise ValueError("the two methods share no seed")
    return mean_interval([first[seed] - second[seed] for seed in seeds], level)
