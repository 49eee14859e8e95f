"""Any loop: tell it each step, it acts when its rule says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import errors
from .._result import Report
from ._triggers import Situation, Trigger, as_trigger

if TYPE_CHECKING:
    from .._client import Client


@dataclass
class Part:
    """A network that is reinitialised by itself, with its optimizer and its copies."""

    model: Any
    optimizer: Any = None
    mirrors: Any = None
    arguments: dict[str, Any] = field(default_factory=dict)


class Loop:
    """Reinitialises torch networks from a loop.

    `trigger` is a rule or a list of them; other arguments go to `client.reinit`. Call `step` once a
    step; it returns the reports of what was done, an empty list otherwise. `watch=True` gathers
    activations for DormantRatio and for the reports in `history`.

    >>> import torch, fired
    >>> from fired.callbacks import Loop, Schedule
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> loop = Loop(fired.Client("local"), net, trigger=Schedule(every=10))
    >>> [step for step in range(1, 31) if loop.step(step)]
    [10, 20, 30]
    """

    def __init__(
        self,
        client: Client,
        model: Any = None,
        optimizer: Any = None,
        *,
        trigger: Trigger | Sequence[Trigger],
        mirrors: Any = None,
        watch: bool = False,
        on_reinit: Callable[[int, str, list[Report]], None] | None = None,
        run: str | None = None,
        **arguments: Any,
    ) -> None:
        self.client = client
        self.trigger = as_trigger(trigger)
        self.run = run
        self.on_reinit = on_reinit
        self.arguments = arguments
        self.history: list[tuple[int, str, list[Report]]] = []
        self._watch_wanted = watch
        self._watches: list[Any] = []
        self.parts: list[Part] = []
        if model is not None:
            self.set_parts([Part(model, optimizer, mirrors)])

    def set_parts(self, parts: Sequence[Part]) -> None:
        """What is reinitialised from now on; callbacks know it only when training begins."""
        self.close()
        self.parts = list(parts)
        if self._watch_wanted:
            from ..torch import Watch

            self._watches = [Watch(part.model) for part in self.parts]

    def dormant_ratio(self) -> float | None:
        """The mean dormant ratio of the watched layers since the last look; None without any."""
        if not self._watches:
            return None
        ratios = []
        for part, watch in zip(self.parts, self._watches, strict=True):
            means = watch.means()
            if means:
                report = self.client.analyze(part.model, activations=watch, arch="none")
                ratio = report.mean("dormant_ratio")
                if ratio is not None:
                    ratios.append(ratio)
            watch.reset()
        return sum(ratios) / len(ratios) if ratios else None

    def advice(self, step: int) -> str | None:
        """Adds this step to the run's history; why the daemon then advises to reinitialise layers,
        None when it does not."""
        run = self.run or self.client.run
        if run is None:
            raise errors.ParameterError("advice is about a run: give run= to the loop or client")
        try:
            for part, watch in itertools.zip_longest(self.parts, self._watches):
                self.client.analyze(part.model, activations=watch, run=run, step=step)
            rows = self.client.advise(run)
        except errors.ParameterError as error:
            if "there is no run" in str(error):
                return None  # the daemon writes history behind its answers: it is not there yet
            raise
        except errors.ServiceError:
            if self.client.on_error == "raise":
                raise
            return None
        layers = [str(row["layer"]) for row in rows if row.get("verdict") == "reinit"]
        return f"advised for {', '.join(layers)}" if layers else None

    def due(self, step: int, metric: float | None = None, task: Any = None) -> str | None:
        """The reason to act at this step, or None; asks the rule once."""
        return self.trigger.due(
            Situation(step, metric, task, self.dormant_ratio, partial(self.advice, step))
        )

    def act(self, step: int, reason: str) -> list[Report]:
        """Reinitialises every part."""
        reports = [
            self.client.reinit(
                part.model,
                optimizer=part.optimizer,
                mirrors=part.mirrors,
                step=step,
                run=self.run,
                **{**self.arguments, **part.arguments},
            )
            for part in self.parts
        ]
        for watch in self._watches:
            watch.reset()
        self.history.append((step, reason, reports))
        if self.on_reinit is not None:
            self.on_reinit(step, reason, reports)
        return reports

    def step(self, step: int, metric: float | None = None, task: Any = None) -> list[Report]:
        """Tells of a step; acts when the rule says so."""
        reason = self.due(step, metric, task)
        return self.act(step, reason) if reason else []

    def close(self) -> None:
        """Takes the hooks away."""
        for watch in self._watches:
            watch.close()
        self._watches = []
