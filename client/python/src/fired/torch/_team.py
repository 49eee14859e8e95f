"""The processes that hold one model together, and how a matrix travels between them.

Every matrix has one owner, chosen so that the work is even. The owner gets the whole matrix, has it
projected once, and everybody gets its part (or its copy) back: so all hold the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from .. import errors

try:
    from torch.distributed.tensor import DTensor, distribute_tensor
except ImportError:  # a torch without distributed support
    DTensor = None  # type: ignore[assignment,misc]

T = TypeVar("T")


def is_sharded(tensor: torch.Tensor) -> bool:
    """A DTensor, whether it is split or only replicated."""
    return DTensor is not None and isinstance(tensor, DTensor)


def whole_of(tensor: Any) -> torch.Tensor:
    """All of a DTensor, on every process that holds a part."""
    full: torch.Tensor = tensor.full_tensor()
    return full


class Team:
    """A process group, or just this process."""

    def __init__(self, group: Any = None, alone: bool = True) -> None:
        self.alone = alone
        self.group = group
        self.rank = 0 if alone else dist.get_rank(group)
        self.size = 1 if alone else dist.get_world_size(group)

    def exchange(self, value: T) -> list[T]:
        """Everybody's value, by rank."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def whole(self, tensor: torch.Tensor, owner: int) -> torch.Tensor | None:
        """The whole matrix for its owner, None for the others."""
        if is_sharded(tensor):
            full = _gather(tensor, self, owner)
            return full if self.rank == owner else None
        return tensor.detach() if self.rank == owner else None

    def part(
        self, new: torch.Tensor | None, like: torch.Tensor, owner: int, device: torch.device
    ) -> torch.Tensor:
        """New values of what this process holds of `like`; `new` is the owner's whole matrix."""
        if self.alone:
            assert new is not None
            return new
        full = (
            torch.empty(like.shape, dtype=like.dtype, device=device)
            if new is None
            else new.to(device)
        )
        source = owner if self.group is None else dist.get_global_rank(self.group, owner)
        dist.broadcast(full, source, group=self.group)
        if not is_sharded(like):
            return full
        return _local(full, like)


def _gather(tensor: Any, team: Team, owner: int) -> torch.Tensor | None:
    """The whole of a DTensor at `owner`. One split axis over one mesh axis is gathered there alone;
    anything else is gathered everywhere, and dropped elsewhere."""
    mesh, placements = tensor.device_mesh, tensor.placements
    plain = mesh.ndim == 1 and mesh.size() == team.size and type(placements[0]).__name__ == "Shard"
    if not plain:
        return whole_of(tensor).detach()
    axis = placements[0].dim
    local = tensor.to_local().detach()
    # torch cuts an axis into chunks of equal size; the last ones may be short or empty.
    chunk = -(-tensor.shape[axis] // team.size)
    moved = local.movedim(axis, 0)
    padded = moved.new_zeros((chunk, *moved.shape[1:]))
    padded[: moved.shape[0]] = moved
    target = owner if team.group is None else dist.get_global_rank(team.group, owner)
    if team.rank != owner:
        dist.gather(padded, None, target, group=team.group)
        return None
    parts = [torch.empty_like(padded) for _ in range(team.size)]
    dist.gather(padded, parts, target, group=team.group)
    whole = torch.cat(parts)[: tensor.shape[axis]]
    return whole.movedim(0, axis).contiguous()


def _local(full: torch.Tensor, like: Any) -> torch.Tensor:
    """This process's part of `full`, cut as `like` is."""
    try:
        cut = distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)
    except (RuntimeError, ValueError, NotImplementedError, AssertionError) as error:
        raise errors.ShardError(
            f"a parameter with placements {like.placements} cannot be cut again ({error}); gather "
            "the model before reinit"
        ) from error
    return cut.to_local()


def team_of(model: Any, tensors: Sequence[torch.Tensor], group: Any) -> Team:
    """Who holds the model: `group` when given; the mesh of its DTensors; the group of a
    DistributedDataParallel; else this process alone."""
    if group is not None:
        return Team(group, alone=False)
    sharded: list[Any] = [tensor for tensor in tensors if is_sharded(tensor)]
    meshes = {tensor.device_mesh for tensor in sharded}
    if len(meshes) > 1:
        # Different meshes meet in the group of all processes, if they are all of them.
        if not all(mesh.size() == dist.get_world_size() for mesh in meshes):
            raise errors.ShardError(
                "the parameters lie on several device meshes; give group= the process group whose "
                "members all call reinit"
            )
        return Team(None, alone=False)
    for mesh in meshes:
        if mesh.size() == dist.get_world_size():
            return Team(None, alone=False)
        if mesh.ndim == 1:
            return Team(mesh.get_group(), alone=False)
        raise errors.ShardError(
            f"the mesh {mesh} is a part of all processes with several axes; give group= the "
            "process group of its members"
        )
    while model is not None:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            return Team(model.process_group, alone=False)
        model = getattr(model, "_orig_mod", None)
    return Team()


def flops_of(tensor: torch.Tensor) -> float:
    """What a projection costs, up to a factor."""
    if tensor.ndim < 2:
        return float(tensor.numel())
    rows, cols = tensor.shape[0], tensor.shape[1]
    return float(tensor.numel()) * min(rows, cols)


def owners_of(tensors: Sequence[torch.Tensor], size: int) -> list[int]:
    """An owner for each: the largest first, each to the one who has least so far. The same on every
    process, since it depends on shapes and order alone."""
    load = [0.0] * size
    owners = [0] * len(tensors)
    order = sorted(range(len(tensors)), key=lambda k: (-flops_of(tensors[k]), k))
    for index in order:
        owners[index] = min(range(size), key=lambda rank: (load[rank], rank))
        load[owners[index]] += flops_of(tensors[index])
    return owners
