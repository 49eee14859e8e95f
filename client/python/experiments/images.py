"""Training and testing on digits, shared by the experiments on images."""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from . import data
from .models import MLP, seeded

BATCH = 50


def make_mlp(seed: int) -> nn.Module:
    """A new MLP whose draw follows from `seed`."""
    seeded(seed)
    return MLP()


def adam(lr: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """A maker of Adam optimizers with that rate."""
    return lambda model: torch.optim.Adam(model.parameters(), lr=lr, fused=True)


def generator_of(seed: int, *place: int) -> torch.Generator:
    """Randomness of one place (task, epoch) of a run: the same for every method."""
    number = seed
    for part in place:
        number = number * 1009 + part + 1
    return torch.Generator().manual_seed(number)


def subset(seed: int, train: int, test: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, then test images and labels, drawn by `seed`, disjoint."""
    images, labels = data.digits()
    order = torch.randperm(len(labels), generator=generator_of(seed, 0))
    first, second = order[:train], order[len(order) - test:]
    return images[first], labels[first], images[second], labels[second]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor,
          epochs: int, generator: torch.Generator, batch: int = BATCH) -> None:
    """Epochs of shuffled batches with cross entropy."""
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=generator)
        for chosen in torch.split(order, batch):
            x, y = images[chosen], labels[chosen]
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    return float((model(images).argmax(1) == labels).float().mean())
