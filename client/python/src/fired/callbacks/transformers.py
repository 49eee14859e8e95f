"""Hugging Face Trainer: `Trainer(…, callbacks=[FiredCallback(client, trigger=…)])`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from ._loop import Loop, Part
from ._triggers import Trigger

if TYPE_CHECKING:
    from .._client import Client


class FiredCallback(TrainerCallback):
    """Reinitialises the model of a Trainer after an optimizer step. Plateau looks at the training
    loss, once for every time it is logged. Other arguments go to `client.reinit`."""

    def __init__(
        self,
        client: Client,
        *,
        trigger: Trigger | Sequence[Trigger],
        watch: bool = False,
        run: str | None = None,
        **arguments: Any,
    ) -> None:
        self.loop = Loop(client, trigger=trigger, watch=watch, run=run, **arguments)
        self._loss: float | None = None
        self.task: Any = None  # set it when another task begins, for TaskBoundary

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.loop.set_parts([Part(kwargs["model"], kwargs["optimizer"])])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self._loss = float(logs["loss"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if kwargs.get("optimizer") is not None:
            for part in self.loop.parts:
                part.optimizer = kwargs["optimizer"]
        loss, self._loss = self._loss, None
        self.loop.step(state.global_step, loss, self.task)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.loop.close()
