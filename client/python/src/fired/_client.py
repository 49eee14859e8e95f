"""The client: who computes, and what happens when nobody does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import errors
from ._daemon import embedded
from ._flat import STATISTICS, FlatSet, Item, Options, failure
from ._library import STATUS_OK, last_error, library
from ._result import Report, TensorResult

if TYPE_CHECKING:
    import numpy

_ON_ERROR = ("raise", "skip", "local")
_clients: weakref.WeakSet[Client] = weakref.WeakSet()


class Client:
    """A client of a daemon, of one started for this process, or of nobody.

    `addr` is "unix:PATH", "HOST:PORT", or "local" to compute in this process. Without it the
    environment's FIRED_ADDR is taken, and without that a daemon is started privately on a unix
    socket and stopped with this process, however it ends.

    `on_error` says what happens when the daemon is away, busy or late: "raise", "skip" (a warning,
    a report that says so, nothing is changed), or "local" (the same C core computes here). A
    mistake in the request, a NaN or a wrong optimizer, is raised whatever it says.

    `deadline` is in seconds, of a whole call with its retries; every call has one (60 s, or an hour
    for sets so large that they are streamed). Any thread may use a client. A client may be made
    before fork(): it connects at its first call, in each process for itself.

    >>> import fired, numpy
    >>> client = fired.Client("local")
    >>> new, report = client.reinit_arrays({"w": numpy.diag([3.0, 0.5])}, options={"scale": "one"})
    >>> new["w"].round(6).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    >>> report["w"].action
    'projected'
    """

    def __init__(
        self,
        addr: str | None = None,
        *,
        tenant: str | None = None,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        server_name: str | None = None,
        deadline: float | None = None,
        retries: int | None = None,
        priority: str = "normal",
        run: str | None = None,
        on_error: str = "raise",
        threads: int = 0,
    ) -> None:
        if on_error not in _ON_ERROR:
            raise errors.ParameterError(
                f"on_error must be one of {', '.join(_ON_ERROR)}, got {on_error!r}"
            )
        if deadline is not None and not 0 < deadline <= 1e7:
            raise errors.ParameterError(f"deadline must be above 0 and up to 1e7 s, got {deadline}")
        self.on_error = on_error
        self.run = run
        self.deadline = deadline or 0.0
        self._addr = addr or os.environ.get("FIRED_ADDR") or None
        self._threads = threads
        settings: dict[str, object | None] = {
            "tenant": tenant,
            "token": token,
            "ca_file": ca,
            "certificate_file": cert,
            "key_file": key,
            "server_name": server_name,
            "deadline_s": deadline,
            "retries_max": None if retries is None else (retries or -1),
            "priority": priority,
            "run": run,
        }
        self._settings = {name: str(value) for name, value in settings.items() if value is not None}
        for name, value in self._settings.items():
            if "\n" in value:
                raise errors.ParameterError(f"{name} must not contain a line end")
        self._renew()
        _clients.add(self)
        if self._addr != "local" and self._addr is not None:
            self._with_remote(self._addr, check_only=True)

    def _renew(self) -> None:
        """Nothing is open yet in this process."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._local_lock = threading.Lock()
        self._remote: ctypes.c_void_p | None = None
        self._remote_addr = ""
        self._local: ctypes.c_void_p | None = None
        self._busy = 0

    # --- who computes ---

    @property
    def addr(self) -> str:
        """Where the work is sent; starts the embedded daemon when there is no address."""
        return self._addr or embedded(self._threads).address

    def _with_remote(self, addr: str, check_only: bool = False) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        lines = "\n".join(
            f"{name}={value}" for name, value in {"address": addr, **self._settings}.items()
        )
        lib = library()
        status = lib.fire_client_open_lines(lines.encode(), ctypes.byref(handle))
        if status != STATUS_OK:
            raise errors.ParameterError(last_error())
        if check_only:
            lib.fire_client_close(handle)
        return handle

    def _open_remote(self) -> ctypes.c_void_p:
        addr = self.addr
        with self._lock:
            if self._remote is not None and self._remote_addr != addr and self._busy == 0:
                library().fire_client_close(self._remote)  # the embedded daemon is a new one
                self._remote = None
            if self._remote is None:
                self._remote = self._with_remote(addr)
                self._remote_addr = addr
            self._busy += 1
            return self._remote

    def _open_local(self) -> ctypes.c_void_p:
        with self._lock:
            if self._local is None:
                handle = ctypes.c_void_p()
                status = library().fire_client_open_flat(self._threads, None, ctypes.byref(handle))
                if status != STATUS_OK:
                    raise errors.ServiceError(last_error())
                self._local = handle
            return self._local

    @contextlib.contextmanager
    def _handle(self, local: bool) -> Iterator[ctypes.c_void_p]:
        if self._pid != os.getpid():
            self._renew()  # what the parent had open is the parent's
        if local:
            handle = self._open_local()
            with self._local_lock:  # one call at a time per local client
                yield handle
            return
        handle = self._open_remote()
        try:
            yield handle
        finally:
            with self._lock:
                self._busy -= 1

    def cancel(self) -> None:
        """Ends what other threads have running at the daemon: their calls raise."""
        with self._lock:
            if self._remote is not None and self._pid == os.getpid():
                library().fire_client_cancel(self._remote)

    def close(self) -> None:
        """Ends the connection. The client may be used again: it connects anew."""
        if self._pid != os.getpid():
            return
        with self._lock, self._local_lock:
            for handle in (self._remote, self._local):
                if handle is not None:
                    library().fire_client_close(handle)
            self._remote = self._local = None

    def _close_idle(self) -> None:
        """Before fork(): gRPC's threads do not survive it, so an idle connection ends; parent and
        child open their own when they need one."""
        if self._pid == os.getpid() and self._lock.acquire(blocking=False):
            try:
                if self._remote is not None and self._busy == 0:
                    library().fire_client_close(self._remote)
                    self._remote = None
            finally:
                self._lock.release()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        return f"fired.Client({self._addr or 'embedded'!r}, on_error={self.on_error!r})"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_pid", "_lock", "_local_lock", "_remote", "_remote_addr", "_local", "_busy"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._renew()
        _clients.add(self)

    # --- computing ---

    def _compute(
        self,
        items: Sequence[Item],
        *,
        analyze: bool = False,
        statistics: str = "basic",
        run: str | None = None,
        step: int | None = None,
        deadline: float | None = None,
        local: bool = False,
    ) -> list[TensorResult]:
        if statistics not in STATISTICS:
            raise errors.ParameterError(
                f"statistics must be one of {', '.join(STATISTICS)}, got {statistics!r}"
            )
        with FlatSet(items) as flat, self._handle(local or self._addr == "local") as handle:
            return flat.run(
                handle,
                analyze=analyze,
                statistics=STATISTICS[statistics],
                run=run or self.run,
                step=step or 0,
                deadline=deadline or 0.0,
            )

    def compute(
        self,
        items: Sequence[Item],
        *,
        analyze: bool = False,
        statistics: str = "basic",
        run: str | None = None,
        step: int | None = None,
        deadline: float | None = None,
    ) -> Report:
        """Runs a set under `on_error`; the frameworks' calls are made of it. Outputs are written to
        where the items say, all or, when it raises, possibly some."""
        start = time.monotonic()
        call: dict[str, Any] = {
            "analyze": analyze,
            "statistics": statistics,
            "run": run,
            "step": step,
            "deadline": deadline,
        }
        place = "local" if self._addr == "local" else "daemon"
        reason = ""
        try:
            results = self._compute(items, **call)
        except (errors.ServiceError, errors.DaemonError) as error:
            if self.on_error == "raise":
                raise
            reason = str(error)
            if self.on_error == "skip":
                warnings.warn(
                    f"fired: skipped, nothing was changed: {reason}", errors.FiredWarning, 2
                )
                return Report(place="nowhere", reason=reason, seconds=time.monotonic() - start)
            warnings.warn(f"fired: computing locally: {reason}", errors.FiredWarning, 2)
            results, place = self._compute(items, **call, local=True), "local"
        return Report(tuple(results), place, reason, time.monotonic() - start)

    # --- history ---

    def advise(self, run: str | None = None) -> list[dict[str, str | float]]:
        """What the daemon advises about a run whose history it keeps, layer by layer: `layer`,
        `verdict` ("leave_it", "watch", "reinit", "unknown"), `rule`, `reason`, `intervention` and
        more. Calls with `run=` and `step=` make the history."""
        name = run or self.run
        if not name:
            raise errors.ParameterError("advice is about a run: give run=")
        lib, table = library(), ctypes.c_void_p()
        with self._handle(self._addr == "local") as handle:
            status = lib.fire_client_advise(handle, name.encode(), ctypes.byref(table), None)
        if status != STATUS_OK:
            raise failure(status, 0, last_error(), None)
        try:
            columns = [lib.fire_table_name(table, c) for c in range(lib.fire_table_columns(table))]
            rows: list[dict[str, str | float]] = []
            for row in range(lib.fire_table_rows(table)):
                cells: dict[str, str | float] = {}
                for column, title in enumerate(columns):
                    words = lib.fire_table_text(table, row, column)
                    cells[title.decode()] = (
                        words.decode()
                        if words is not None
                        else float(lib.fire_table_number(table, row, column))
                    )
                rows.append(cells)
            return rows
        finally:
            lib.fire_table_close(table)

    # --- numpy ---

    def reinit_arrays(
        self,
        arrays: Mapping[str, numpy.ndarray[Any, Any]],
        *,
        preset: str = "fire",
        options: Options | None = None,
        arch: str = "none",
        only: str = "all",
        include: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
        unit_means: Mapping[str, Sequence[float]] | None = None,
        gradients: Mapping[str, numpy.ndarray[Any, Any]] | None = None,
        statistics: str = "basic",
        run: str | None = None,
        step: int | None = None,
        deadline: float | None = None,
    ) -> tuple[dict[str, numpy.ndarray[Any, Any]], Report]:
        """New arrays and the report. The arrays that came in are not changed; what is skipped is in
        the result as it is. `options` are those of `firectl --set`; a key "GLOB:key" is for arrays
        whose name matches. `arch="none"` takes every 2-D and 4-D floating array."""
        from ._numpy import reinit_arrays

        return reinit_arrays(
            self,
            arrays,
            preset=preset,
            options=options,
            arch=arch,
            only=only,
            include=include,
            exclude=exclude,
            unit_means=unit_means,
            gradients=gradients,
            statistics=statistics,
            run=run,
            step=step,
            deadline=deadline,
        )

    def analyze_arrays(
        self,
        arrays: Mapping[str, numpy.ndarray[Any, Any]],
        *,
        preset: str = "fire",
        options: Options | None = None,
        arch: str = "none",
        only: str = "all",
        include: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
        unit_means: Mapping[str, Sequence[float]] | None = None,
        gradients: Mapping[str, numpy.ndarray[Any, Any]] | None = None,
        statistics: str = "basic",
        run: str | None = None,
        step: int | None = None,
        deadline: float | None = None,
    ) -> Report:
        """Statistics only. `unit_means` are mean |activation| of each output unit, for the dormant
        ratio; `gradients` give the gradient-dormant ratio; `statistics="spectrum"` adds effective
        rank, srank and condition."""
        from ._numpy import reinit_arrays

        return reinit_arrays(
            self,
            arrays,
            preset=preset,
            options=options,
            arch=arch,
            only=only,
            include=include,
            exclude=exclude,
            unit_means=unit_means,
            gradients=gradients,
            statistics=statistics,
            run=run,
            step=step,
            deadline=deadline,
            analyze=True,
        )[1]

    # --- frameworks ---

    def reinit(self, model: Any, **arguments: Any) -> Any:
        """Reinitialises a torch module or selection in place (`fired.torch.reinit`), or returns a
        JAX pytree anew (`fired.jax.reinit`). See there for the arguments."""
        return _framework(model).reinit(self, model, **arguments)

    def analyze(self, model: Any, **arguments: Any) -> Report:
        """Statistics of a torch module or selection, or of a JAX pytree. See `fired.torch.analyze`
        and `fired.jax.analyze`."""
        report: Report = _framework(model).analyze(self, model, **arguments)
        return report


def _framework(model: Any) -> Any:
    """The binding that knows this kind of model."""
    sample = model
    if isinstance(model, dict) and model:
        sample = next(iter(model.values()))  # named tensors of torch, or a pytree
    kinds = {kind.__module__.partition(".")[0] for kind in type(sample).__mro__}
    if "torch" in kinds or type(model).__module__.startswith("fired.torch"):
        from . import torch

        return torch
    if isinstance(model, (dict, list, tuple)) or kinds & {"flax", "jax", "equinox"}:
        from . import jax

        return jax
    raise errors.ParameterError(
        f"a model is a torch.nn.Module, a fired.torch.Selection or a JAX pytree, not "
        f"{type(model).__module__}.{type(model).__qualname__}; for arrays use reinit_arrays"
    )


def _before_fork() -> None:
    for client in list(_clients):
        client._close_idle()


os.register_at_fork(before=_before_fork)
