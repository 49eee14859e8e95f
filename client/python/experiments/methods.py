"""What is done to a network between two tasks, by name.

Every method takes the trained model and its optimizer and gives the pair to go on with. Methods in
plain PyTorch stand beside those that go through fired, so that one can be held against the other.

| method | weights | optimizer state |
|---|---|---|
| scratch | drawn anew | new |
| warm | kept | kept |
| warm-reset | kept | new |
| reset | back to the run's own first draw | new |
| shrink-perturb | 0.2 w + 0.8 fresh draw, biases too | new |
| fresh-fire | drawn anew, then the official algorithm | new |
| official-torch | the official algorithm in PyTorch, every Linear and Conv2d | new |
| fired-official | the same by fired's preset official-vision or official-gpt | reset by fired |
| fired | `client.reinit(model, optimizer=optimizer)`: converged, but for the head | its own reset |
| fired-scale-one | as fired, scale 1 instead of sqrt(m/n) | its own reset |
| fired-no-reset | as fired | kept |
| fired-qk | as fired, queries and keys only | its own reset |
"""
from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import fired

METHODS = ("scratch", "warm", "warm-reset", "reset", "shrink-perturb", "fresh-fire",
           "official-torch", "fired-official", "fired", "fired-scale-one", "fired-no-reset",
           "fired-qk")
SHRINK = 0.2
DRAW_STEP = 7919  # fresh draws of one run are this far apart, so that seeds do not share any


@dataclass
class Run:
    """What a method may use beside the model: how to make a new one, and the first one."""

    make_model: Callable[[int], nn.Module]
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    seed: int
    official: str = "official-vision"
    draws: int = 0

    def __post_init__(self) -> None:
        self.initial = copy.deepcopy(self.make_model(self.seed).state_dict())

    def start(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = self.make_model(self.seed)
        return model, self.make_optimizer(model)

    def fresh(self) -> nn.Module:
        """A model drawn anew: the k-th draw of a run is the same for every method."""
        self.draws += 1
        return self.make_model(self.seed + self.draws * DRAW_STEP)


def newton_schulz(matrix: Tensor, steps: int) -> Tensor:
    """The official loop: divide by the Frobenius norm, then cubic steps on the short side."""
    transposed = matrix.size(0) < matrix.size(1)
    x = matrix.T if transposed else matrix
    x = torch.div(x, x.norm())
    for _ in range(steps):
        x = 1.5 * x - 0.5 * x @ (x.T @ x)
    return x.T.contiguous() if transposed else x


def official_linear(weight: Tensor, steps: int) -> Tensor:
    return newton_schulz(weight, steps) * math.sqrt(weight.size(0) / weight.size(1))


def official_conv(weight: Tensor, steps: int) -> Tensor:
    height, width = weight.shape[2:]
    result = torch.empty_like(weight)
    for i in range(height):
        for j in range(width):
            result[:, :, i, j] = official_linear(weight[:, :, i, j], steps) / (height * width)
    return result


@torch.no_grad()
def official_fire(model: nn.Module, preset: str) -> None:
    """The official algorithm on every Linear and Conv2d, the head too; official-gpt takes 5 steps,
    official-vision 10."""
    steps = 5 if preset == "official-gpt" else 10
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.copy_(official_conv(module.weight, steps))
        elif isinstance(module, nn.Linear):
            module.weight.copy_(official_linear(module.weight, steps))


@torch.no_grad()
def shrink_perturb(model: nn.Module, fresh: nn.Module) -> None:
    for old, new in zip(model.parameters(), fresh.parameters(), strict=True):
        old.mul_(SHRINK).add_(new, alpha=1 - SHRINK)


@functools.cache
def client() -> fired.Client:
    """One client for the process: the daemon of FIRED_ADDR, or an embedded one."""
    return fired.Client()


def through_fired(method: str, model: nn.Module, optimizer: torch.optim.Optimizer, run: Run,
                  include: list[str] | None) -> None:
    """The methods whose name begins with fired. `fired` is the call of the README as it stands:
    its preset leaves the head and the biases, and their optimizer state, alone."""
    if method == "fired-official":
        client().reinit(model, optimizer=optimizer, preset=run.official, init=run.initial,
                        include=include)
    elif method == "fired-qk":
        client().reinit(model, optimizer=optimizer, only="qk")
    elif method == "fired-scale-one":
        client().reinit(model, optimizer=optimizer, options={"scale": "one"}, include=include)
    elif method == "fired-no-reset":
        client().reinit(model, optimizer=optimizer, state="keep", include=include)
    else:
        client().reinit(model, optimizer=optimizer, include=include)


def apply(method: str, model: nn.Module, optimizer: torch.optim.Optimizer, run: Run,
          include: list[str] | None = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and optimizer to go on with after `method`. `include` narrows what fired takes."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; known are {', '.join(METHODS)}")
    if method == "warm":
        return model, optimizer
    if method.startswith("fired"):
        through_fired(method, model, optimizer, run, include)
        return model, optimizer
    if method in ("scratch", "fresh-fire"):
        model = run.fresh()
    elif method == "reset":
        model.load_state_dict(run.initial)
    elif method == "shrink-perturb":
        shrink_perturb(model, run.fresh())
    if method in ("fresh-fire", "official-torch"):
        official_fire(model, run.official)
    return model, run.make_optimizer(model)
