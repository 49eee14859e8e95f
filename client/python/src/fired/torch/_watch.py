"""Per-unit mean |activation|, gathered while the model runs."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ._model import _clean, unwrap

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# What may stand between a layer and its activation function.
_BETWEEN = (
    nn.modules.batchnorm._BatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.Dropout,
    nn.Identity,
)


def _sum(values: torch.Tensor, axis: int) -> tuple[torch.Tensor, int]:
    """Sums of |value| for each unit of `axis`, and over how many they went."""
    units = values.shape[axis]
    sums = values.abs().movedim(axis, -1).reshape(-1, units).sum(0, dtype=torch.float64)
    return sums, values.numel() // max(1, units)


class Watch:
    """Hooks that sum |activation| of every output unit of Linear and Conv layers, on the device
    and without waiting for it. A unit's activation is what comes out of the activation module
    behind its layer (through normalisation and dropout), or else of the layer; `activation` is
    applied to the latter, for models that call a function such as torch.relu instead of a module.

    Give it to `client.analyze(model, activations=watch)`; `every=10` looks at each tenth pass.
    Make it before torch.compile, which keeps the hooks it sees.

    >>> import torch, fired.torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> with fired.torch.Watch(net) as watch:
    ...     _ = net(torch.zeros(3, 4))
    >>> sorted(watch.means())
    ['0.weight', '2.weight']
    """

    def __init__(self, model: Any, *, every: int = 1, activation: Any = None) -> None:
        self.every = max(1, every)
        self.activation = activation
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: dict[str, int] = {}
        self._passes: dict[str, int] = {}
        # The tensor each layer gave last, so that an activation module knows whose it got.
        self._from: dict[int, tuple[str, Any, int]] = {}
        self._pending: dict[str, tuple[torch.Tensor, int]] = {}
        self._handles: list[Any] = []
        module = unwrap(model)
        for name, child in module.named_modules():
            if isinstance(child, _LAYERS):
                self._handles.append(
                    child.register_forward_hook(self._layer_hook(_clean(f"{name}.weight")))
                )
            elif isinstance(child, _BETWEEN) or type(child).__module__.endswith("activation"):
                passing = isinstance(child, _BETWEEN)
                self._handles.append(child.register_forward_hook(self._after_hook(passing)))

    def _layer_hook(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._settle(name)
            count = self._passes.get(name, 0)
            self._passes[name] = count + 1
            if count % self.every or not isinstance(output, torch.Tensor):
                return
            axis = output.ndim - 1 if isinstance(module, nn.Linear) else 1
            dims = 2 if isinstance(module, nn.Linear) else getattr(module.weight, "ndim", 4)
            if axis == 1 and output.ndim == dims - 1:
                axis = 0  # a convolution without a batch axis
            values = output.detach()
            self._pending[name] = _sum(self.activation(values) if self.activation else values, axis)
            self._from[id(output)] = (name, weakref.ref(output), axis)

        return hook

    def _after_hook(self, passing: bool) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not inputs or not isinstance(output, torch.Tensor):
                return
            name, source, axis = self._from.pop(id(inputs[0]), ("", None, 0))
            if source is None or source() is not inputs[0]:
                return
            if passing:
                self._from[id(output)] = (name, weakref.ref(output), axis)
            else:
                self._pending[name] = _sum(output.detach(), axis)

        return hook

    def _settle(self, name: str) -> None:
        """What the last pass gave is counted; no activation module changes it any more."""
        for key in [key for key, value in self._from.items() if value[0] == name]:
            del self._from[key]
        if name in self._pending:
            sums, count = self._pending.pop(name)
            self._sums[name] = self._sums[name] + sums if name in self._sums else sums
            self._counts[name] = self._counts.get(name, 0) + count

    def means(self) -> Mapping[str, list[float]]:
        """Mean |activation| of each output unit, by the name of the layer's weight."""
        for name in list(self._pending):
            self._settle(name)
        return {
            name: (sums / max(1, self._counts[name])).tolist() for name, sums in self._sums.items()
        }

    def reset(self) -> None:
        """Begins anew."""
        self._sums.clear()
        self._counts.clear()
        self._passes.clear()
        self._from.clear()
        self._pending.clear()

    def close(self) -> None:
        """Takes the hooks away; what was gathered stays."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
