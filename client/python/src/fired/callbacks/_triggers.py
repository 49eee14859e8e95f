"""Rules that say when."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .. import errors


@dataclass
class Situation:
    """What a trigger may look at. `dormant` measures and is called only by who needs it; `advise`
    asks the daemon."""

    step: int
    metric: float | None = None
    task: Any = None
    dormant: Callable[[], float | None] = lambda: None
    advise: Callable[[], str | None] = lambda: None


class Trigger(Protocol):
    """A rule: the reason to act now, or None."""

    def due(self, now: Situation) -> str | None: ...


@dataclass
class Schedule:
    """Every so many steps, or at given ones.

    >>> rule = Schedule(every=100)
    >>> [bool(rule.due(Situation(step))) for step in (50, 100, 150, 260)]
    [False, True, False, True]
    """

    every: int | None = None
    at: Sequence[int] = ()
    _last: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise errors.ParameterError(f"every must be at least 1, got {self.every}")
        if self.every is None and not self.at:
            raise errors.ParameterError("a Schedule needs every= or at=")

    def due(self, now: Situation) -> str | None:
        last, self._last = self._last, now.step
        if self.every and now.step // self.every > last // self.every:
            return f"every {self.every} steps"
        for step in self.at:
            if last < step <= now.step:
                return f"at step {step}"
        return None


@dataclass
class TaskBoundary:
    """When the loop says that another task has begun.

    >>> rule = TaskBoundary()
    >>> [bool(rule.due(Situation(step, task=task))) for step, task in enumerate("aabbc")]
    [False, False, True, False, True]
    """

    _known: bool = field(default=False, init=False, repr=False)
    _task: Any = field(default=None, init=False, repr=False)

    def due(self, now: Situation) -> str | None:
        if now.task is None:
            return None
        changed = self._known and now.task != self._task
        self._known, self._task = True, now.task
        return f"task {now.task} begins" if changed else None


@dataclass
class Plateau:
    """When the metric has not become better by `min_delta` in `patience` looks; then waits for
    `cooldown` looks. `mode` is "min" for a loss, "max" for a return.

    >>> rule = Plateau(patience=2)
    >>> [bool(rule.due(Situation(0, metric=loss))) for loss in (3, 2, 2, 2, 2, 1)]
    [False, False, False, True, False, False]
    """

    patience: int = 10
    min_delta: float = 0.0
    mode: str = "min"
    cooldown: int = 0
    _best: float = field(default=math.inf, init=False, repr=False)
    _waited: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise errors.ParameterError(f"mode must be min or max, got {self.mode!r}")
        if self.patience < 1:
            raise errors.ParameterError(f"patience must be at least 1, got {self.patience}")

    def due(self, now: Situation) -> str | None:
        if now.metric is None or math.isnan(now.metric):
            return None
        value = now.metric if self.mode == "min" else -now.metric
        if value < self._best - self.min_delta:
            self._best = value
            self._waited = min(self._waited, 0)
            return None
        self._waited += 1
        if self._waited < self.patience:
            return None
        self._best, self._waited = value, -self.cooldown
        return f"no progress in {self.patience} looks"


@dataclass
class DormantRatio:
    """When the share of dormant units, looked at every so many steps, is above the threshold."""

    threshold: float = 0.2
    every: int = 1000
    _last: int = field(default=0, init=False, repr=False)

    def due(self, now: Situation) -> str | None:
        last, self._last = self._last, now.step
        if now.step // self.every == last // self.every:
            return None
        ratio = now.dormant()
        if ratio is None or ratio <= self.threshold:
            return None
        return f"dormant ratio {ratio:.3f} above {self.threshold}"


@dataclass
class Advice:
    """When the daemon, which keeps the run's history, advises it. Every so many steps the networks
    are measured, which makes the history, and the daemon is asked; the loop needs run=."""

    every: int = 1000
    _last: int = field(default=0, init=False, repr=False)

    def due(self, now: Situation) -> str | None:
        last, self._last = self._last, now.step
        if now.step // self.every == last // self.every:
            return None
        return now.advise()


class any_of:
    """The first of several rules that is due; all of them see every situation.

    >>> rule = any_of([Schedule(at=[5]), TaskBoundary()])
    >>> rule.due(Situation(5, task="a"))
    'at step 5'
    """

    def __init__(self, triggers: Iterable[Trigger]) -> None:
        self.triggers = list(triggers)

    def due(self, now: Situation) -> str | None:
        reasons = [trigger.due(now) for trigger in self.triggers]
        return next((reason for reason in reasons if reason), None)


def as_trigger(given: Trigger | Sequence[Trigger]) -> Trigger:
    """One rule or a list of them."""
    if isinstance(given, Sequence):
        return any_of(given)
    return given
