"""fired for JAX: pytrees in, pytrees out, outside jit. Works with Flax (linen and nnx states),
Haiku, Equinox and plain dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy
from jax.tree_util import tree_flatten_with_path, tree_unflatten

from . import errors
from ._flat import Item, Options, options_for
from ._numpy import dtype_name
from ._result import Report, TensorResult
from ._select import decide

if TYPE_CHECKING:
    from ._client import Client

__all__ = ["reinit", "analyze", "Reinitialised"]

STATES = ("reset", "keep")


class Reinitialised(NamedTuple):
    """What reinit returns: a new pytree of parameters, the new optimizer state (None when none was
    given), and what happened."""

    params: Any
    opt_state: Any
    report: Report


def _key(entry: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _parts(path: tuple[Any, ...]) -> tuple[str, ...]:
    """The keys of a path. nnx keeps the array under a last `value`."""
    parts = tuple(_key(entry) for entry in path)
    return parts[:-1] if len(parts) > 1 and parts[-1] in ("value", "raw_value") else parts


def _leaves(tree: Any, what: str) -> tuple[list[tuple[tuple[str, ...], Any]], Any]:
    leaves, structure = tree_flatten_with_path(tree)
    for path, leaf in leaves:
        if isinstance(leaf, jax.core.Tracer):
            raise errors.TracingError(
                f"{what} {'.'.join(_parts(path))} is being traced: call fired outside jit, grad, "
                "vmap and scan, between two compiled steps"
            )
    return [(_parts(path), leaf) for path, leaf in leaves], structure


def _host(name: str, leaf: Any) -> numpy.ndarray[Any, Any]:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise errors.ShardError(
            f"{name} lies on several processes; gather it first "
            "(jax.experimental.multihost_utils.process_allgather)",
            parameter=name,
        )
    return numpy.ascontiguousarray(numpy.asarray(leaf))


def _items(
    leaves: Iterable[tuple[tuple[str, ...], Any]],
    preset: str,
    options: Options | None,
    ensemble: int,
) -> list[Item]:
    items = []
    for parts, leaf in leaves:
        name = ".".join(parts)
        hints: dict[str, str] = {}
        shape = tuple(getattr(leaf, "shape", ()))
        if parts and parts[-1] != "weight":  # Equinox has (out, in) as torch does
            hints["layout"] = "in_out"
        if ensemble:
            hints["stack"] = str(ensemble)
        dtype = dtype_name(leaf) if hasattr(leaf, "dtype") else type(leaf).__name__
        items.append(
            Item(name, dtype, shape, preset=preset, options={**hints, **options_for(name, options)})
        )
    return items


def _chosen(
    items: Sequence[Item],
    arch: str,
    only: str,
    include: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
) -> tuple[dict[str, Item], dict[str, TensorResult]]:
    """What will be projected, and the results of the rest."""
    _, verdicts = decide(items, arch=arch, only=only, include=include, exclude=exclude)
    chosen: dict[str, Item] = {}
    skipped: dict[str, TensorResult] = {}
    for item, verdict in zip(items, verdicts, strict=True):
        if verdict.verdict == "project":
            chosen[item.name] = replace(item, options=verdict.options)
        elif verdict.verdict == "reset":
            raise errors.ParameterError(
                f"preset {item.preset} resets {item.name} to initial weights; exclude it and reset "
                "it yourself",
                parameter=item.name,
            )
        else:
            skipped[item.name] = TensorResult(
                item.name, item.shape, item.dtype, "skipped", verdict.reason
            )
    return chosen, skipped


def _reset_state(
    opt_state: Any, touched: Mapping[tuple[str, ...], tuple[int, ...]]
) -> tuple[Any, set[tuple[str, ...]]]:
    """The optimizer state with zeros in every leaf that belongs to a touched parameter: one whose
    path ends like the parameter's and which has its shape."""
    leaves, structure = _leaves(opt_state, "the optimizer state")
    found: set[tuple[str, ...]] = set()
    new = []
    for parts, leaf in leaves:
        shape = tuple(getattr(leaf, "shape", ()))
        owner = next(
            (
                parts[start:]
                for start in range(len(parts))
                if touched.get(parts[start:]) == shape and shape
            ),
            None,
        )
        if owner is None:
            new.append(leaf)
        else:
            found.add(owner)
            new.append(jax.numpy.zeros_like(leaf))
    return tree_unflatten(structure, new), found


def _back(new: numpy.ndarray[Any, Any], leaf: Any) -> Any:
    """The new values where the old ones lie."""
    if isinstance(leaf, jax.Array):
        return jax.device_put(new, leaf.sharding)
    return new


def reinit(
    client: Client,
    params: Any,
    *,
    opt_state: Any = None,
    preset: str = "fire",
    state: str = "reset",
    ensemble: int = 0,
    arch: str = "auto",
    only: str = "all",
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    options: Options | None = None,
    statistics: str = "basic",
    step: int | None = None,
    run: str | None = None,
    deadline: float | None = None,
) -> Reinitialised:
    """New parameters, new optimizer state and the report; what came in is not changed.

    Kernels are (in, out), convolutions (height, width, in, out); a leaf called `weight` is (out,
    in). `ensemble` is how many leading axes of every leaf count members. `state="reset"` puts zeros
    into the moments of exactly the touched parameters; the step count, which optax keeps once for
    all parameters, stays. To begin anew altogether give no opt_state and call `tx.init` again.

    >>> import fired, jax, jax.numpy as jnp
    >>> key = jax.random.key(0)
    >>> params = {"Dense_0": {"kernel": jax.random.normal(key, (8, 16)), "bias": jnp.zeros(16)},
    ...           "Dense_1": {"kernel": jax.random.normal(key, (16, 2)), "bias": jnp.zeros(2)}}
    >>> params, _, report = fired.Client("local").reinit(params)
    >>> report.projected
    ['Dense_0.kernel']
    """
    if state not in STATES:
        raise errors.ParameterError(f"state must be one of {', '.join(STATES)}, got {state!r}")
    leaves, structure = _leaves(params, "parameter")
    items = _items(leaves, preset, options, ensemble)
    chosen, skipped = _chosen(items, arch, only, include, exclude)
    if opt_state is not None:
        _leaves(opt_state, "the optimizer state")
    new: dict[str, numpy.ndarray[Any, Any]] = {}
    for parts, leaf in leaves:
        item = chosen.get(".".join(parts))
        if item is not None:
            source = _host(item.name, leaf)
            out = new[item.name] = numpy.empty(source.shape, source.dtype)
            item.data, item.out = int(source.ctypes.data), int(out.ctypes.data)
            item.keep = (source, out)
    report = client.compute(
        list(chosen.values()), statistics=statistics, run=run, step=step, deadline=deadline
    )
    if report.skipped:
        return Reinitialised(params, opt_state, report)
    done = {result.name: result for result in report}
    projected = set(report.projected)
    touched = {parts: tuple(leaf.shape) for parts, leaf in leaves if ".".join(parts) in projected}
    if opt_state is not None and state == "reset" and touched:
        opt_state, found = _reset_state(opt_state, touched)
        done = {
            name: replace(result, state="reset" if tuple(name.split(".")) in found else "keep")
            for name, result in done.items()
        }
    changed = [
        _back(new[".".join(parts)], leaf) if parts in touched else leaf for parts, leaf in leaves
    ]
    results = tuple(done.get(item.name) or skipped[item.name] for item in items)
    return Reinitialised(
        tree_unflatten(structure, changed), opt_state, replace(report, tensors=results)
    )


def analyze(
    client: Client,
    params: Any,
    *,
    unit_means: Mapping[str, Sequence[float]] | None = None,
    gradients: Any = None,
    preset: str = "fire",
    ensemble: int = 0,
    arch: str = "auto",
    only: str = "all",
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    options: Options | None = None,
    statistics: str = "basic",
    step: int | None = None,
    run: str | None = None,
    deadline: float | None = None,
) -> Report:
    """Statistics of what `reinit` would project. `unit_means` are mean |activation| of each output
    unit by the parameter's dotted name, `gradients` a pytree like the parameters."""
    leaves, _ = _leaves(params, "parameter")
    items = _items(leaves, preset, options, ensemble)
    chosen, skipped = _chosen(items, arch, only, include, exclude)
    slopes = {} if gradients is None else dict(_leaves(gradients, "gradient")[0])
    for parts, leaf in leaves:
        item = chosen.get(".".join(parts))
        if item is None:
            continue
        source = _host(item.name, leaf)
        item.data, item.keep = int(source.ctypes.data), (source,)
        if unit_means and item.name in unit_means:
            item.unit_means = [float(mean) for mean in unit_means[item.name]]
        if parts in slopes:
            slope = _host(item.name, slopes[parts])
            item.gradient = (dtype_name(slope), int(slope.ctypes.data))
            item.keep = (source, slope)
    report = client.compute(
        list(chosen.values()),
        analyze=True,
        statistics=statistics,
        run=run,
        step=step,
        deadline=deadline,
    )
    if report.skipped:
        return report
    done = {result.name: result for result in report}
    return replace(
        report, tensors=tuple(done.get(item.name) or skipped[item.name] for item in items)
    )
