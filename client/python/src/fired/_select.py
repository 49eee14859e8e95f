"""Which tensors of a model are touched, and why: the C core's rules, then include and exclude."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace

from . import errors
from ._flat import FlatSet, Item, Verdict


def globs(given: str | Sequence[str] | None) -> list[str]:
    """One pattern or many as a list."""
    return [given] if isinstance(given, str) else list(given or ())


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def decide(
    items: Sequence[Item],
    *,
    arch: str,
    only: str,
    include: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
    ordered: bool = False,
) -> tuple[str, list[Verdict]]:
    """The architecture and a verdict for every item. Patterns only take away. A pattern of
    `include` that matches nothing is an error: it is nearly always a slip."""
    included, excluded = globs(include), globs(exclude)
    for pattern in included:
        if not any(fnmatch.fnmatchcase(item.name, pattern) for item in items):
            some = ", ".join(item.name for item in items[:5])
            raise errors.ParameterError(
                f"include {pattern!r} matches no parameter; there are {some}"
                + (", …" if len(items) > 5 else "")
            )
    bare = [replace(item, data=0, out=0, states=[], gradient=None) for item in items]
    with FlatSet(bare) as flat:
        found, verdicts = flat.decide(arch, only, ordered)
    for item, verdict in zip(items, verdicts, strict=True):
        if verdict.verdict == "skip" and not verdict.tied:
            continue
        if included and not matches(item.name, included):
            verdict.verdict, verdict.reason, verdict.tied = "skip", "not included", ""
        elif matches(item.name, excluded):
            verdict.verdict, verdict.reason, verdict.tied = "skip", "excluded", ""
    return found, verdicts
