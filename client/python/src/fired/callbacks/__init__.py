"""When to reinitialise, and doing it from a training loop.

`fired.callbacks.Loop` is for loops one writes oneself (Gymnasium's and others); `.sb3`,
`.transformers` and `.lightning` have the callbacks of those libraries."""

from ._loop import Loop
from ._triggers import (
    Advice,
    DormantRatio,
    Plateau,
    Schedule,
    Situation,
    TaskBoundary,
    Trigger,
    any_of,
)

__all__ = [
    "Loop",
    "Trigger",
    "Situation",
    "Schedule",
    "TaskBoundary",
    "Plateau",
    "DormantRatio",
    "Advice",
    "any_of",
]
