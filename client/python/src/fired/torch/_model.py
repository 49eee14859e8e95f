"""Parameters of a torch model: their names, what their modules say about them, their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .. import errors
from .._flat import FLOATING

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int32: "I32",
    torch.int64: "I64",
}


def dtype_name(dtype: torch.dtype) -> str:
    """The library's name of a dtype; torch's own for one it does not compute in."""
    return DTYPES.get(dtype, str(dtype).removeprefix("torch.")[:15])


def unwrap(model: Any) -> Any:
    """The module inside torch.compile, DistributedDataParallel and DataParallel."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(
            model, (nn.parallel.DistributedDataParallel, nn.DataParallel)
        ):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


@dataclass
class Parameter:
    """One parameter with all its names; tied weights have several."""

    names: list[str]
    tensor: torch.Tensor
    hints: dict[str, dict[str, str]] = field(default_factory=dict)  # options by name
    skips: dict[str, str] = field(default_factory=dict)  # why its module forbids it, by name

    @property
    def name(self) -> str:
        return self.names[0]


def _module_rules(module: nn.Module, leaf: str, grouped: bool) -> tuple[dict[str, str], str]:
    """What only the module knows: options of one of its parameters, or why it is no matrix."""
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return {}, "embedding"
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        return {}, "transposed convolution"
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and module.groups > 1 and not grouped:
        return {}, "grouped convolution"
    if isinstance(module, nn.MultiheadAttention) and leaf == "in_proj_weight":
        return {"split": "3"}, ""
    if isinstance(module, nn.LSTM) and leaf.startswith(("weight_ih", "weight_hh")):
        return {"split": "4"}, ""
    if isinstance(module, nn.GRU) and leaf.startswith(("weight_ih", "weight_hh")):
        return {"split": "3"}, ""
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf") and leaf == "weight":
        return {"layout": "in_out"}, ""  # transformers' Linear with (in, out) weights
    return {}, ""


def _clean(name: str) -> str:
    """Without the prefixes that torch.compile and checkpoint wrappers put in the middle."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        for leaf, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
            yield _clean(f"{prefix}.{leaf}" if prefix else leaf), module, leaf, tensor


def parameters(model: Any, grouped: bool = False) -> list[Parameter]:
    """Every parameter once, in the model's order. `model` is a module, or names and tensors.
    `grouped`: grouped convolutions may be projected too."""
    found: dict[int, Parameter] = {}
    if isinstance(model, Mapping):
        for name, tensor in model.items():
            if not isinstance(tensor, torch.Tensor):
                raise errors.ParameterError(
                    f"{name} is a {type(tensor).__name__}, not a tensor", parameter=str(name)
                )
            known = found.setdefault(id(tensor), Parameter([], tensor))
            known.names.append(str(name))
        return list(found.values())
    model = unwrap(model)
    if not isinstance(model, nn.Module):
        raise errors.ParameterError(
            f"a model is a torch.nn.Module, a Selection or a dictionary of named tensors, not "
            f"{type(model).__qualname__}"
        )
    for name, module, leaf, tensor in _named(model):
        known = found.setdefault(id(tensor), Parameter([], tensor))
        if name in known.names:
            continue
        known.names.append(name)
        hints, skip = _module_rules(module, leaf, grouped)
        if hints:
            known.hints[name] = hints
        if skip:
            known.skips[name] = skip
    return list(found.values())


def check_whole(name: str, tensor: torch.Tensor) -> None:
    """Refuses what has no bytes of a whole matrix."""
    if dtype_name(tensor.dtype) not in FLOATING:
        raise errors.ParameterError(
            f"{name} has dtype {tensor.dtype}; only float64, float32, bfloat16 and float16 can be "
            "projected: exclude it",
            parameter=name,
        )
    if tensor.is_meta:
        raise errors.ParameterError(
            f"{name} is on the meta device and has no values; materialise the model first",
            parameter=name,
        )
    if tensor.layout != torch.strided:
        raise errors.ParameterError(
            f"{name} is {tensor.layout}, not strided; exclude it", parameter=name
        )
    # FSDP1 and parameter-sharding libraries leave flat or partial local tensors that say so.
    for mark in ("_is_flat_param", "_sharded_size", "ds_shape", "ds_id"):
        if hasattr(tensor, mark):
            raise errors.ShardError(
                f"{name} is a local shard ({mark}): projecting shards separately is wrong; gather "
                "it first (summon_full_params, GatheredParameters), or shard with FSDP2 or DTensor",
                parameter=name,
            )
    if getattr(tensor, "tensor_model_parallel", False):
        raise errors.ShardError(
            f"{name} is a tensor-parallel shard: projecting shards separately is wrong; use "
            "DTensor (torch.distributed.tensor.parallel), or gather it first",
            parameter=name,
        )


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous bytes in this process's memory: the tensor's own when they already are."""
    return tensor.detach().to("cpu").contiguous()
