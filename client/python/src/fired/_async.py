"""The client for asyncio: the same calls, awaited. Work runs in threads that wait in C, so the
event loop goes on; sets of several tasks are on their way at once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from ._client import Client
from ._result import Report

T = TypeVar("T")
CALLS_MAX = 16


class AsyncClient:
    """`fired.Client` with awaitable calls; takes the same arguments. At most `calls` run at once.

    Cancelling a task does not undo its call: that ends in its thread, as if it had been awaited.

    >>> import asyncio, fired, numpy
    >>> async def main():
    ...     async with fired.AsyncClient("local") as client:
    ...         new, report = await client.reinit_arrays({"w": numpy.eye(3)})
    ...         return report["w"].action
    >>> asyncio.run(main())
    'projected'
    """

    def __init__(
        self, addr: str | None = None, *, calls: int = CALLS_MAX, **arguments: Any
    ) -> None:
        self.client = Client(addr, **arguments)
        self._pool = concurrent.futures.ThreadPoolExecutor(calls, thread_name_prefix="fired")

    async def _run(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, functools.partial(function, *arguments, **named)
        )

    async def reinit(self, model: Any, **arguments: Any) -> Any:
        """See Client.reinit. The model must not be used until it is done."""
        return await self._run(self.client.reinit, model, **arguments)

    async def analyze(self, model: Any, **arguments: Any) -> Report:
        """See Client.analyze."""
        return await self._run(self.client.analyze, model, **arguments)

    async def reinit_arrays(self, *arguments: Any, **named: Any) -> tuple[dict[str, Any], Report]:
        """See Client.reinit_arrays."""
        return await self._run(self.client.reinit_arrays, *arguments, **named)

    async def analyze_arrays(self, *arguments: Any, **named: Any) -> Report:
        """See Client.analyze_arrays."""
        return await self._run(self.client.analyze_arrays, *arguments, **named)

    async def close(self) -> None:
        """Ends the connection and the threads."""
        self.client.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        self.client.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
