"""Training and testing a small GPT on characters, shared by the experiments on text."""
from __future__ import annotations

import functools

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from . import data, images
from .models import GPT, seeded

ALPHABET = 96  # printable ASCII and the line end
BATCH, RATE = 16, 3e-3
HELD_OUT = 100_000  # the last characters of a text are for testing


@functools.cache
def plays() -> Tensor:
    encoded, alphabet = data.encode(data.plays())
    assert alphabet == ALPHABET
    return encoded[0]


@functools.cache
def documentation() -> Tensor:
    return data.encode(data.documentation())[0][0]


def make_gpt(seed: int) -> nn.Module:
    seeded(seed)
    return GPT(ALPHABET)


make_optimizer = images.adam(RATE)


def batch_of(text: Tensor, length: int, generator: torch.Generator,
             size: int = BATCH) -> tuple[Tensor, Tensor]:
    """Random windows of the text and the same moved on by one character."""
    starts = torch.randint(0, len(text) - length - 1, (size, 1), generator=generator)
    windows = text[starts + torch.arange(length + 1)]
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, text: Tensor, steps: int,
          generator: torch.Generator, batch: int = BATCH) -> None:
    model.train()
    for _ in range(steps):
        x, y = batch_of(text, 64, generator, batch)
        optimizer.zero_grad()
        loss_of(model, x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@torch.no_grad()
def loss(model: nn.Module, text: Tensor, windows: int = 384) -> float:
    """Mean loss a character over windows that are the same for every run."""
    model.eval()
    generator = torch.Generator().manual_seed(1)
    return float(loss_of(model, *batch_of(text, 64, generator, windows)))
