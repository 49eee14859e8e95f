"""The warm start: half of the data first, then all of it, against all of it from scratch."""
from __future__ import annotations

import copy
import functools
import sys
from typing import NamedTuple

import torch
from torch import nn

from . import images, methods
from .harness import Experiment, main
from .models import CNN, seeded

TEST, RATE = 1000, 1e-3


class Size(NamedTuple):
    digits: int  # of the second half; the first has half of them
    epochs: int


SIZES = {"full": Size(4000, 15), "quick": Size(2000, 2), "tiny": Size(100, 1)}


def make_cnn(seed: int) -> nn.Module:
    seeded(seed)
    return CNN()


@functools.lru_cache(maxsize=1)
def first_half(seed: int, size: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Trained on half of the data; every method goes on from a copy of it."""
    model, optimizer = methods.Run(make_cnn, images.adam(RATE), seed).start()
    digits, epochs = SIZES[size]
    x, y, _, _ = images.subset(seed, digits, TEST)
    images.train(model, optimizer, x[:digits // 2], y[:digits // 2], epochs,
                 images.generator_of(seed, 1))
    return model, optimizer


def run_one(method: str, seed: int, size: str) -> dict[str, float]:
    digits, epochs = SIZES[size]
    run = methods.Run(make_cnn, images.adam(RATE), seed)
    model, optimizer = copy.deepcopy(first_half(seed, size))
    model, optimizer = methods.apply(method, model, optimizer, run)
    x, y, test_x, test_y = images.subset(seed, digits, TEST)
    found: dict[str, float] = {}
    for epoch in range(epochs):
        images.train(model, optimizer, x, y, 1, images.generator_of(seed, 2, epoch))
        found[f"epoch_accuracy/{epoch + 1:02}"] = images.accuracy(model, test_x, test_y)
    last = [found[f"epoch_accuracy/{epoch:02}"] for epoch in range(max(epochs - 2, 1), epochs + 1)]
    found["test_accuracy"] = sum(last) / len(last)
    return found


EXPERIMENT = Experiment(
    name="warm_start",
    about="CNN with batch normalisation, Adam 1e-3; 2,000 MNIST digits for 15 epochs, then those "
    "and 2,000 more for 15. test_accuracy: on 1,000 other digits, mean of the last 3 epochs.",
    methods=["scratch", "warm", "warm-reset", "shrink-perturb", "fresh-fire", "official-torch",
             "fired-official", "fired", "fired-scale-one", "fired-no-reset"],
    metrics=["test_accuracy"],
    curves=["epoch_accuracy"],
    curve_axis="epoch of the second half",
    run_one=run_one,
    seeds=5)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
