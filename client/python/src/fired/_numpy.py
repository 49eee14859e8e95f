"""Dictionaries of numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from . import errors
from ._flat import FLOATING, Item, Options, options_for
from ._result import Report, TensorResult
from ._select import decide

if TYPE_CHECKING:
    from ._client import Client

Array = numpy.ndarray[Any, Any]
_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def dtype_name(array: Array) -> str:
    """The library's name of an array's dtype; numpy's own name for one it does not compute in."""
    name = str(numpy.dtype(array.dtype).name)
    if name in _DTYPES and not array.dtype.isnative:
        return f"{name} of another byte order"
    return _DTYPES.get(name, str(name)[:15])


def _address(array: Array) -> int:
    return int(array.ctypes.data)


def plan(
    arrays: Mapping[str, Array],
    preset: str,
    options: Options | None,
    arch: str,
    only: str,
    include: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
) -> tuple[list[Item], list[TensorResult]]:
    """Items to compute, and results of what is skipped. Data and out are not set yet."""
    everything = [
        Item(
            name=name,
            dtype=dtype_name(array),
            shape=tuple(array.shape),
            preset=preset,
            options=options_for(name, options),
        )
        for name, array in arrays.items()
    ]
    _, verdicts = decide(everything, arch=arch, only=only, include=include, exclude=exclude)
    chosen, skipped = [], []
    for item, verdict in zip(everything, verdicts, strict=True):
        if verdict.verdict == "reset":
            raise errors.ParameterError(
                f"{item.name}: preset {preset} resets it to initial weights, which arrays do not "
                "have; exclude it",
                parameter=item.name,
            )
        if verdict.verdict == "project":
            item.options = verdict.options
            chosen.append(item)
        else:
            skipped.append(
                TensorResult(item.name, item.shape, item.dtype, "skipped", verdict.reason)
            )
    return chosen, skipped


def reinit_arrays(
    client: Client,
    arrays: Mapping[str, Array],
    *,
    preset: str,
    options: Options | None,
    arch: str,
    only: str,
    include: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
    unit_means: Mapping[str, Sequence[float]] | None,
    gradients: Mapping[str, Array] | None,
    statistics: str,
    run: str | None,
    step: int | None,
    deadline: float | None,
    analyze: bool = False,
) -> tuple[dict[str, Array], Report]:
    """See Client.reinit_arrays and Client.analyze_arrays."""
    arrays = {name: numpy.asarray(array) for name, array in arrays.items()}
    for kind, given in (("unit_means", unit_means), ("gradients", gradients)):
        for name in given or {}:
            if name not in arrays:
                raise errors.ParameterError(f"{kind} has {name!r}, which is no array of the call")
    chosen, skipped = plan(arrays, preset, options, arch, only, include, exclude)
    new: dict[str, Array] = {}
    for item in chosen:
        source = numpy.ascontiguousarray(arrays[item.name])
        item.data, item.keep = _address(source), (source,)
        if not analyze:
            out = new[item.name] = numpy.empty(source.shape, source.dtype)
            item.out = _address(out)
        if unit_means and item.name in unit_means:
            item.unit_means = [float(mean) for mean in unit_means[item.name]]
        if gradients and item.name in gradients:
            _attach_gradient(item, numpy.ascontiguousarray(gradients[item.name]))
    report = client.compute(
        chosen, analyze=analyze, statistics=statistics, run=run, step=step, deadline=deadline
    )
    if report.skipped:
        return dict(arrays), report
    done = {result.name: result for result in (*report, *skipped)}
    report = Report(
        tuple(done[name] for name in arrays), report.place, report.reason, report.seconds
    )
    return {name: new.get(name, array) for name, array in arrays.items()}, report


def _attach_gradient(item: Item, gradient: Array) -> None:
    dtype = dtype_name(gradient)
    if tuple(gradient.shape) != item.shape or dtype not in FLOATING:
        raise errors.ParameterError(
            f"the gradient of {item.name} is {dtype} {tuple(gradient.shape)}; it must be floating "
            f"and have the weight's shape {item.shape}",
            parameter=item.name,
        )
    item.gradient = (dtype, _address(gradient))
    item.keep = (*item.keep, gradient)
