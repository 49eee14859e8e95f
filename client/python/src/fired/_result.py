"""What happened to each tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TensorResult:
    """One tensor. Numbers have the names of `firectl --json`; one that is not known is absent:
    `result.dfi_after` raises AttributeError then, `result.get("dfi_after")` is None."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    action: str  # "projected", "skipped", "refused", "analyzed", "reset", "tied"
    reason: str = ""
    method: str = ""
    path: str = ""
    steps: int = 0
    converged: bool = False
    rank: int = 0
    rank_defect: int = 0
    matrices: int = 0
    state: str = "keep"
    error: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    batch: dict[str, float] = field(default_factory=dict)

    def get(self, key: str) -> float | None:
        """A number by name, None when it is not known."""
        return self.numbers.get(key)

    def __getattr__(self, key: str) -> float:
        if key.startswith("_") or key == "numbers":
            raise AttributeError(key)
        try:
            return self.numbers[key]
        except KeyError:
            raise AttributeError(
                f"{key} of {self.name!r} is not known; known are {', '.join(self.numbers)}"
            ) from None


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3g}"


@dataclass(frozen=True)
class Report:
    """What a call did, tensor by tensor. It prints as a table."""

    tensors: tuple[TensorResult, ...] = ()
    place: str = "daemon"  # "daemon", "local", or "nowhere" when the call was skipped
    reason: str = ""  # why it was done locally or skipped
    seconds: float = 0.0

    def __iter__(self) -> Iterator[TensorResult]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, name: str) -> TensorResult:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    @property
    def projected(self) -> list[str]:
        """Names of what was projected."""
        return [tensor.name for tensor in self.tensors if tensor.action == "projected"]

    @property
    def touched(self) -> list[str]:
        """Names of what has other weights now: projected, reset or tied to such a one."""
        return [t.name for t in self.tensors if t.action in ("projected", "reset", "tied")]

    @property
    def skipped(self) -> bool:
        """True when `on_error="skip"` let the whole call pass without doing anything."""
        return self.place == "nowhere"

    def total(self, key: str) -> float | None:
        """The sum of a number over the tensors that have it, None when none has."""
        values = [tensor.numbers[key] for tensor in self.tensors if key in tensor.numbers]
        return sum(values) if values else None

    def mean(self, key: str) -> float | None:
        """The mean of a number over the tensors that have it, None when none has."""
        values = [tensor.numbers[key] for tensor in self.tensors if key in tensor.numbers]
        return sum(values) / len(values) if values else None

    def to_dicts(self) -> list[dict[str, object]]:
        """One dictionary a tensor, with the field names of `firectl --json`."""
        return [
            {
                "name": t.name,
                "shape": list(t.shape),
                "dtype": t.dtype,
                "action": t.action,
                **({"reason": t.reason} if t.reason else {}),
                **({"method": t.method, "steps": t.steps} if t.method else {}),
                **({"path": t.path} if t.path else {}),
                "state": t.state,
                **t.numbers,
            }
            for t in self.tensors
        ]

    def __str__(self) -> str:
        if self.skipped:
            return f"fired: skipped: {self.reason}"
        rows: list[Sequence[str]] = [("tensor", "shape", "what", "DfI before", "after", "moved")]
        rows += [
            (
                t.name,
                "x".join(map(str, t.shape)),
                t.action if not t.reason else f"{t.action}: {t.reason}",
                _number(t.get("dfi_before")),
                _number(t.get("dfi_after")),
                _number(t.get("sfe_relative")),
            )
            for t in self.tensors
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )
