"""Optimizer state of parameters that get other weights: found before anything is computed, changed
only when everything has succeeded.

Policies: keep; zero (moments 0, step kept); reset (as if the optimizer had just been made);
transport (the first moment moves to the tangent space at the new weights); drop (the parameter's
entry is removed, for optimizers whose slots are not known)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import errors
from .._flat import FLOATING, State
from ._model import dtype_name, to_host

POLICIES = ("keep", "zero", "reset", "transport", "drop")
# Slots that begin at 0 in torch.optim and in optimizers with the same habits.
MOMENTS = frozenset(
    {
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "momentum_buffer",
        "second_momentum_buffer",
        "square_avg",
        "grad_avg",
        "acc_delta",
        "exp_inf",
    }
)
FIRST_MOMENTS = ("exp_avg", "momentum_buffer")

Commit = Callable[[], None]


@dataclass
class Owner:
    """Which optimizer holds a parameter, in which group, at which place in it."""

    optimizer: Any
    group: dict[str, Any]
    index: int


@dataclass
class StateChange:
    """What will be done to the state of one parameter: `commits` run when all succeeded; `moved`
    are first moments that travel with the weight, each with the tensor it is written back to."""

    action: str = "keep"
    commits: list[Commit] = field(default_factory=list)
    moved: list[tuple[str, torch.Tensor]] = field(default_factory=list)


def optimizers_of(given: Any) -> list[Any]:
    """The optimizers inside a list, or inside the wrappers of accelerate and Lightning."""
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        return [inner for one in given for inner in optimizers_of(one)]
    for name in ("optimizer", "_optimizer"):
        inner = getattr(given, name, None)
        if hasattr(inner, "param_groups"):
            return optimizers_of(inner)
    if not hasattr(given, "param_groups") or not hasattr(given, "state"):
        raise errors.OptimizerError(
            f"optimizer is a {type(given).__qualname__}, which has no param_groups and state; give "
            "a torch.optim.Optimizer, or a list of them"
        )
    return [given]


class Ownership:
    """Which of the optimizers owns which parameter."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.optimizers = optimizers
        self._owners: dict[int, Owner] = {}
        self._by_place: dict[tuple[int, torch.Size], Owner] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for index, tensor in enumerate(group["params"]):
                    self._owners[id(tensor)] = Owner(optimizer, group, index)

    def of(self, name: str, tensor: torch.Tensor) -> Owner:
        owner = self._owners.get(id(tensor))
        if owner is None:
            kinds = ", ".join(type(optimizer).__name__ for optimizer in self.optimizers)
            raise errors.OptimizerError(
                f"the optimizer ({kinds}) does not own {name}; give the one that was made from "
                "this model's parameters (all of them in a list, if there are several), or exclude "
                "the parameter",
                parameter=name,
            )
        return owner

    def tensors(self) -> Iterable[torch.Tensor]:
        """Every parameter of every optimizer."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]


def _stacked(owner: Owner, tensor: torch.Tensor) -> dict[str, tuple[torch.Tensor, int]]:
    """State kept for a whole group of equal shapes under its first parameter, one slice for each:
    slot -> (stack, slice). Empty when the group does not do so."""
    params = owner.group["params"]
    if len({tuple(other.shape) for other in params}) != 1:
        return {}
    first = owner.optimizer.state.get(params[0], {})
    stacks = {
        slot: value
        for slot, value in first.items()
        if isinstance(value, torch.Tensor)
        and slot in MOMENTS
        and value.ndim == tensor.ndim + 1
        and all(a in (1, b) for a, b in zip(value.shape[1:], tensor.shape, strict=True))
    }
    found = {}
    for slot, value in stacks.items():
        index = owner.index - _first_of_rank(len(params), value.shape[0])
        if 0 <= index < value.shape[0]:
            found[slot] = (value, index)
    return found


def _first_of_rank(count: int, rows: int) -> int:
    """The group's place at which this process's slices begin: 0 when it holds all of them."""
    if rows >= count or not torch.distributed.is_initialized():
        return 0
    return rows * torch.distributed.get_rank()


def _zero(value: torch.Tensor) -> Commit:
    def commit() -> None:
        with torch.no_grad():
            value.zero_()

    return commit


def _fill(value: torch.Tensor, number: float) -> Commit:
    def commit() -> None:
        with torch.no_grad():
            value.fill_(number)

    return commit


def _put(state: dict[str, Any], slot: str, value: Any) -> Commit:
    def commit() -> None:
        state[slot] = value

    return commit


def _unknown(name: str, owner: Owner, slot: str, value: Any) -> errors.OptimizerError:
    kind = (
        f"{tuple(value.shape)} tensor" if isinstance(value, torch.Tensor) else type(value).__name__
    )
    return errors.OptimizerError(
        f"{type(owner.optimizer).__name__} keeps {slot!r} ({kind}) for {name}, which is not known "
        "here; use state='drop' to remove the parameter's state (most optimizers begin anew then), "
        "or state='keep'",
        parameter=name,
    )


def _change_slot(
    name: str, owner: Owner, state: dict[str, Any], slot: str, value: Any, policy: str
) -> list[Commit]:
    """What reset or zero do to one slot of a parameter's own state."""
    reset = policy == "reset"
    if value is None:
        return []
    if slot == "step":
        if not reset:
            return []
        return [_zero(value)] if isinstance(value, torch.Tensor) else [_put(state, slot, 0)]
    if slot == "mu_product" and isinstance(value, torch.Tensor):  # NAdam's begins at 1
        return [_fill(value, 1.0)] if reset else []
    if slot == "sum" and isinstance(value, torch.Tensor):  # Adagrad
        return [_fill(value, float(owner.group.get("initial_accumulator_value", 0.0)))]
    if slot not in MOMENTS or not isinstance(value, torch.Tensor):
        raise _unknown(name, owner, slot, value)
    # The first step of SGD's momentum is the gradient itself, not a part of it, when there is none.
    if reset and slot == "momentum_buffer" and isinstance(owner.optimizer, torch.optim.SGD):
        return [_put(state, slot, None)]
    return [_zero(value)]


def _drop(owner: Owner, tensor: torch.Tensor) -> Commit:
    def commit() -> None:
        owner.optimizer.state.pop(tensor, None)

    return commit


def plan_state(name: str, tensor: torch.Tensor, owner: Owner, policy: str) -> StateChange:
    """What `policy` does to the state of one parameter. Raises before anything is changed."""
    change = StateChange(policy)
    stacks = _stacked(owner, tensor)
    own = owner.optimizer.state.get(tensor, {}) if tensor in owner.optimizer.state else {}
    if policy == "keep":
        return change
    if policy == "drop":
        if stacks:
            raise errors.OptimizerError(
                f"the state of {name} is one slice of a stack, which cannot be dropped; use "
                "state='reset'",
                parameter=name,
            )
        change.commits.append(_drop(owner, tensor))
        return change
    for slot, (stack, index) in stacks.items():
        if policy == "transport":
            if slot in FIRST_MOMENTS and stack.shape[1:] == tensor.shape:
                change.moved.append((slot, stack[index]))
        else:
            change.commits.append(_zero(stack[index]))
    for slot, value in own.items():
        if slot in stacks or (isinstance(value, torch.Tensor) and _is_stack(owner, slot, value)):
            continue
        if policy == "transport":
            if slot in FIRST_MOMENTS and value is not None:
                change.moved.append((slot, value))
            elif slot not in MOMENTS and slot not in ("step", "sum", "mu_product"):
                raise _unknown(name, owner, slot, value)
        else:
            change.commits += _change_slot(name, owner, own, slot, value, policy)
    return change


def _is_stack(owner: Owner, slot: str, value: torch.Tensor) -> bool:
    """A stack that holds no slice of this process's for the parameter it lies under."""
    params = owner.group["params"]
    return (
        slot in MOMENTS
        and value.ndim == params[0].ndim + 1
        and len({tuple(other.shape) for other in params}) == 1
    )


def moved_states(
    name: str, change: StateChange
) -> tuple[list[State], list[Commit], list[torch.Tensor]]:
    """First moments as state tensors for the library, what writes them back, and what holds the
    memory until then."""
    states: list[State] = []
    commits: list[Commit] = []
    keep: list[torch.Tensor] = []
    for slot, value in change.moved:
        if dtype_name(value.dtype) not in FLOATING:
            raise errors.OptimizerError(
                f"{slot} of {name} is {value.dtype}, which cannot be transported; use "
                "state='reset'",
                parameter=name,
            )
        source = to_host(value)
        out = torch.empty_like(source)
        keep += [source, out]
        states.append(
            State(
                slot,
                dtype_name(value.dtype),
                tuple(value.shape),
                source.data_ptr(),
                out.data_ptr(),
            )
        )
        commits.append(_copy(value, out))
    return states, commits, keep


def _copy(target: torch.Tensor, source: torch.Tensor) -> Commit:
    def commit() -> None:
        with torch.no_grad():
            target.copy_(source)

    return commit
