"""A set of tensors for libfire: descriptions in, results out. No framework is known here."""

from __future__ import annotations

import ctypes
import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from . import errors
from ._library import FLAT_MORE, STATUS_OK, field_names, last_error, library
from ._result import TensorResult

FLOATING = ("F64", "F32", "BF16", "F16")
ITEM_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I32": 4, "I64": 8}
STATISTICS = {"none": 0, "basic": 1, "spectrum": 3}

Options = Mapping[str, object]


@dataclass
class State:
    """A tensor of optimizer state that libfire changes with its weight."""

    slot: str
    dtype: str
    shape: tuple[int, ...]
    data: int
    out: int


@dataclass
class Item:
    """A tensor: what it is, where its bytes are, what should happen. `keep` holds whatever owns
    the memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: int = 0
    out: int = 0
    preset: str = "fire"
    options: dict[str, str] = field(default_factory=dict)
    states: list[State] = field(default_factory=list)
    unit_means: Sequence[float] | None = None
    gradient: tuple[str, int] | None = None
    keep: tuple[object, ...] = ()

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass
class Verdict:
    """What the architecture's rules say about one tensor."""

    verdict: str  # "project", "skip", "reset"
    reason: str
    tied: str
    options: dict[str, str]


def text_of(value: object) -> str:
    """An option's value as the library reads it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in value)
    return str(value)


def options_for(name: str, options: Options | None) -> dict[str, str]:
    """The options that hold for tensor `name`: "key" for all, "GLOB:key" for those that match,
    later ones win.

    >>> options_for("fc.weight", {"scale": "one", "fc*:scale": "xavier", "conv*:steps": 5})
    {'scale': 'xavier'}
    """
    chosen: dict[str, str] = {}
    for key, value in (options or {}).items():
        glob, colon, plain = key.rpartition(":")
        if not colon or fnmatch.fnmatchcase(name, glob):
            chosen[plain] = text_of(value)
    return chosen


def _lines(options: Mapping[str, str]) -> bytes | None:
    return "\n".join(f"{key}={value}" for key, value in options.items()).encode() or None


def _sizes(shape: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * max(1, len(shape)))(*shape)


_STATUS_ERRORS: dict[str, type[errors.ServiceError]] = {
    "unauthenticated": errors.AuthError,
    "denied": errors.AuthError,
    "busy": errors.BusyError,
    "too late": errors.DeadlineError,
    "draining": errors.UnavailableError,
    "device lost": errors.UnavailableError,
}
_GRPC_UNIMPLEMENTED = 12


def failure(status: int, code: int, message: str, parameter: str | None) -> errors.FiredError:
    """The exception for a status of the library."""
    if code == _GRPC_UNIMPLEMENTED:
        return errors.VersionError(
            f"the daemon does not know this call ({message}); update it to the version of this "
            "package",
            parameter=parameter,
            code=code,
        )
    if "was forked from one" in message:
        return errors.ForkError(
            f"{message}; first use the client in the child, start children with spawn, or give "
            "on_error='local'",
            parameter=parameter,
        )
    name = library().fire_status_name(status).decode()
    if name in ("bad request", "not found"):
        return errors.ParameterError(message, parameter=parameter)
    kind = _STATUS_ERRORS.get(name, errors.ServiceError)
    return kind(message, parameter=parameter, code=code)


class FlatSet:
    """The library's set; close it, or use it in a with statement."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._lib = library()
        self._handle = ctypes.c_void_p()
        self._items = items
        self._check(self._lib.fire_flat_open(ctypes.byref(self._handle)), None)
        try:
            for index, item in enumerate(items):
                self._add(index, item)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> FlatSet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._lib.fire_flat_close(self._handle)
        self._handle = ctypes.c_void_p()

    def _check(self, status: int, parameter: str | None) -> None:
        if status != STATUS_OK:
            message = last_error()
            if parameter and parameter not in message:
                message = f"{parameter}: {message}"
            raise failure(status, 0, message, parameter)

    def _add(self, index: int, item: Item) -> None:
        lib, handle = self._lib, self._handle
        self._check(
            lib.fire_flat_add(
                handle,
                item.name.encode(),
                item.dtype.encode(),
                len(item.shape),
                _sizes(item.shape),
                item.preset.encode(),
                _lines(item.options),
            ),
            item.name,
        )
        if item.data:
            self._check(lib.fire_flat_memory(handle, index, item.data, item.out or None), item.name)
        for state in item.states:
            self._check(
                lib.fire_flat_state(
                    handle,
                    index,
                    state.slot.encode(),
                    state.dtype.encode(),
                    len(state.shape),
                    _sizes(state.shape),
                    state.data,
                    state.out,
                ),
                item.name,
            )
        if item.unit_means is not None:
            means = (ctypes.c_double * max(1, len(item.unit_means)))(*item.unit_means)
            self._check(lib.fire_flat_units(handle, index, means, len(item.unit_means)), item.name)
        if item.gradient is not None:
            dtype, data = item.gradient
            self._check(lib.fire_flat_gradient(handle, index, dtype.encode(), data), item.name)

    def _text(self, index: int, key: str) -> str:
        value = self._lib.fire_flat_text(self._handle, index, key.encode())
        return "" if value is None else str(value.decode(errors="replace"))

    def decide(self, arch: str, only: str, ordered: bool) -> tuple[str, list[Verdict]]:
        """The architecture, and what its rules say about every tensor. `ordered`: the items come
        in the order of the model's layers."""
        status = self._lib.fire_flat_decide(
            self._handle, arch.encode(), only.encode(), int(ordered)
        )
        self._check(status, None)
        verdicts = []
        for index, item in enumerate(self._items):
            options = dict(item.options)
            for key in ("layout", "split", "split_skip", "stack"):
                options[key] = self._text(index, f"option:{key}")
            verdicts.append(
                Verdict(
                    self._text(index, "verdict"),
                    self._text(index, "verdict_reason"),
                    self._text(index, "tied"),
                    options,
                )
            )
        return self._lib.fire_flat_arch(self._handle).decode(), verdicts

    def option(self, index: int, key: str) -> str:
        """An option of one tensor as the library has it."""
        return self._text(index, f"option:{key}")

    def run(
        self,
        client: ctypes.c_void_p,
        *,
        analyze: bool,
        statistics: int,
        run: str | None,
        step: int,
        deadline: float,
    ) -> list[TensorResult]:
        """Computes, waits (other threads go on meanwhile), raises when a tensor was refused."""
        status = self._lib.fire_flat_run(
            self._handle,
            client,
            int(analyze),
            statistics,
            run.encode() if run else None,
            step,
            deadline,
        )
        if status != STATUS_OK:
            raise self._failed(status, last_error())
        return [self._result(index, item, analyze) for index, item in enumerate(self._items)]

    def _failed(self, status: int, message: str) -> errors.FiredError:
        code = int(self._lib.fire_flat_code(self._handle))
        parameter = None
        for index, item in enumerate(self._items):
            if self._text(index, "error") == message:
                parameter = item.name
                break
        if parameter and parameter not in message:
            message = f"{parameter}: {message}"
        return failure(status, code, message, parameter)

    def _result(self, index: int, item: Item, analyze: bool) -> TensorResult:
        names = field_names()
        values = (ctypes.c_double * (len(names) + FLAT_MORE))()
        self._check(self._lib.fire_flat_numbers(self._handle, index, values), item.name)
        numbers = {
            name: value for name, value in zip(names, values, strict=False) if not math.isnan(value)
        }
        more = values[len(names) :]
        action = self._text(index, "action")
        return TensorResult(
            name=item.name,
            shape=item.shape,
            dtype=item.dtype,
            action="analyzed" if analyze and action == "projected" else action,
            reason=self._text(index, "reason"),
            method=self._text(index, "method"),
            path=self._text(index, "path"),
            steps=int(more[0]),
            converged=bool(more[1]),
            rank=int(more[2]),
            rank_defect=int(more[3]),
            matrices=int(more[4]),
            numbers=numbers,
            batch={"id": more[5], "size": more[6], "queue_ms": more[7], "compute_ms": more[8]},
        )
