"""Lightning: `Trainer(…, callbacks=[FiredCallback(client, trigger=…)])`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback

from ._loop import Loop, Part
from ._triggers import Trigger

if TYPE_CHECKING:
    from .._client import Client


class FiredCallback(Callback):
    """Reinitialises the module of a Trainer after an optimizer step. Plateau looks at the logged
    metric `monitor`. Other arguments go to `client.reinit`."""

    def __init__(
        self,
        client: Client,
        *,
        trigger: Trigger | Sequence[Trigger],
        monitor: str | None = None,
        watch: bool = False,
        run: str | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        self.loop = Loop(client, trigger=trigger, watch=watch, run=run, **arguments)
        self.monitor = monitor
        self.task: Any = None  # set it when another task begins, for TaskBoundary
        self._step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._step = trainer.global_step
        self.loop.set_parts([Part(pl_module, list(trainer.optimizers))])

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._step:
            return  # gradients are still being gathered
        self._step = trainer.global_step
        metric = trainer.callback_metrics.get(self.monitor) if self.monitor else None
        self.loop.step(self._step, None if metric is None else float(metric), self.task)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.loop.close()
