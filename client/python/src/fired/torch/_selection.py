"""What will be projected, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .. import errors
from .._flat import Item, Options, Verdict, options_for
from .._select import decide, globs, matches
from ._model import Parameter, dtype_name, parameters


@dataclass
class Choice:
    """One parameter and what will happen to it."""

    name: str
    tensor: torch.Tensor
    action: str  # "project", "reset", "tied" (to `source`), "skip"
    reason: str = ""
    source: str = ""
    options: dict[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()  # other names of the same weight

    @property
    def note(self) -> str:
        """The reason, or how the tensor is seen as matrices."""
        if self.action == "tied":
            return f"copy of {self.source}"
        if self.action != "project":
            return self.reason
        plain = {"layout": "out_in", "split": "1", "split_skip": "none", "stack": "0"}
        own = {key: self.options.get(key, usual) for key, usual in plain.items()}
        parts = [f"{key}={own[key]}" for key, usual in plain.items() if own[key] != usual]
        if self.aliases:
            parts.append(f"tied: {', '.join(self.aliases)}")
        return ", ".join(parts)


@dataclass
class Selection:
    """The parameters of a model with a decision for each. Print it to see what and why."""

    choices: list[Choice]
    arch: str
    preset: str = "fire"
    user_options: dict[str, object] = field(default_factory=dict)
    model: Any = None

    @property
    def projected(self) -> list[str]:
        """Names of what will be projected."""
        return [choice.name for choice in self.choices if choice.action == "project"]

    @property
    def touched(self) -> list[Choice]:
        """What will have other weights."""
        return [choice for choice in self.choices if choice.action != "skip"]

    def __getitem__(self, name: str) -> Choice:
        for choice in self.choices:
            if name == choice.name or name in choice.aliases:
                return choice
        raise KeyError(name)

    def __len__(self) -> int:
        return len(self.choices)

    def __str__(self) -> str:
        rows = [
            (c.action, c.name, "x".join(map(str, c.tensor.shape)) or "scalar", c.note)
            for c in self.choices
        ]
        widths = [max((len(row[k]) for row in rows), default=0) for k in range(3)]
        count = len(self.projected)
        lines = [f"{self.arch}: {count} of {len(rows)} parameters are projected ({self.preset})"]
        lines += [
            "  "
            + "  ".join(cell.ljust(w) for cell, w in zip(row, [*widths, 0], strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join(lines)


def _one(parameter: Parameter, verdicts: Mapping[str, Verdict], frozen: bool) -> Choice:
    """The decision about one parameter: any of its names that is projected decides."""
    tensor = parameter.tensor
    name = parameter.name
    for kind in ("project", "reset"):
        for candidate in parameter.names:
            verdict = verdicts[candidate]
            if verdict.verdict != kind or candidate in parameter.skips:
                continue
            if isinstance(tensor, nn.Parameter) and not tensor.requires_grad and not frozen:
                return Choice(name, tensor, "skip", "frozen (requires_grad is False)")
            aliases = tuple(other for other in parameter.names if other != candidate)
            if verdict.tied and verdict.tied not in parameter.names:
                return Choice(candidate, tensor, "tied", "", verdict.tied, {}, aliases)
            return Choice(
                candidate, tensor, kind, verdict.reason, "", dict(verdict.options), aliases
            )
    verdict = verdicts[name]
    if verdict.tied and verdict.tied not in parameter.names:
        return Choice(name, tensor, "tied", "", verdict.tied)
    reason = verdict.reason or parameter.skips.get(name, "")
    return Choice(name, tensor, "skip", reason, aliases=tuple(parameter.names[1:]))


def _check_included(selection: Selection, include: str | Sequence[str] | None) -> None:
    """A name given by the user that cannot be projected is an error, not a silent skip."""
    for pattern in globs(include):
        hit = [c for c in selection.choices if any(matches(n, [pattern]) for n in _names(c))]
        if hit and all(choice.action == "skip" for choice in hit):
            choice = hit[0]
            raise errors.ParameterError(
                f"include {pattern!r} selects nothing that can be projected: {choice.name} "
                f"{tuple(choice.tensor.shape)} is skipped ({choice.reason}); only 2-D and 4-D "
                "floating parameters that the architecture's rules allow are, see "
                "fired.torch.select(model), or give arch='none'",
                parameter=choice.name,
            )


def _names(choice: Choice) -> tuple[str, ...]:
    return (choice.name, *choice.aliases)


def _decide(
    found: Sequence[Parameter],
    preset: str,
    options: Options | None,
    arch: str,
    only: str,
    include: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
) -> tuple[str, dict[str, Verdict]]:
    items = [
        Item(
            name=name,
            dtype=dtype_name(parameter.tensor.dtype),
            shape=tuple(parameter.tensor.shape),
            preset=preset,
            options={**parameter.hints.get(name, {}), **options_for(name, options)},
        )
        for parameter in found
        for name in parameter.names
    ]
    detected, verdicts = decide(
        items, arch=arch, only=only, include=include, exclude=exclude, ordered=True
    )
    return detected, {item.name: v for item, v in zip(items, verdicts, strict=True)}


def select(
    model: Any,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    arch: str = "auto",
    *,
    preset: str = "fire",
    only: str = "all",
    options: Options | None = None,
    frozen: bool = False,
    verbose: bool = True,
) -> Selection:
    """Decides about every parameter and prints what and why (`verbose`).

    `arch` is "auto", "gpt2", "llama", "vit", "resnet", "mamba", "plain" or "none" (every 2-D and
    4-D floating parameter). `include` and `exclude` are patterns of names; they only take away.
    `only="qk"` keeps query and key projections. `options` are those of `firectl --set`, with
    "GLOB:key" for some parameters only. Frozen parameters are left alone unless `frozen`.

    >>> import torch, fired.torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    >>> _ = fired.torch.select(net)
    plain: 1 of 4 parameters are projected (fire)
      project  0.weight  16x8
      skip     0.bias    16    1-D
      skip     2.weight  4x16  head
      skip     2.bias    4     1-D
    """
    found = parameters(model, grouped=preset.startswith("official"))
    detected, verdicts = _decide(found, preset, options, arch, only, include, exclude)
    choices = [_one(parameter, verdicts, frozen) for parameter in found]
    by_name = {name: choice for choice in choices for name in _names(choice)}
    for choice in choices:
        if choice.action == "tied" and by_name[choice.source].action == "skip":
            choice.action, choice.reason = "skip", f"like {choice.source}"
    selection = Selection(choices, detected, preset, dict(options or {}), model)
    _check_included(selection, include)
    if isinstance(model, Mapping):
        _check_all(selection)
    if verbose:
        print(selection)
    return selection


def _check_all(selection: Selection) -> None:
    """Parameters that were named one by one are all meant."""
    for choice in selection.choices:
        if choice.action == "skip" and choice.reason not in ("excluded", "not included"):
            raise errors.ParameterError(
                f"{choice.name} {tuple(choice.tensor.shape)} {choice.tensor.dtype} cannot be "
                f"projected: {choice.reason}; leave it out, or give a module and its rules decide",
                parameter=choice.name,
            )
