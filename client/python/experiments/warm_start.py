"""The warm start: half of the data first, then all of it, against all of it from scratch."""
from __future__ import annotations

import copy
import functools
import sys

import torch
from torch import nn

from . import images, methods
from .harness import Experiment, main
from .models import CNN, seeded

TRAIN, TEST, EPOCHS, RATE = 4000, 1000, 15, 1e-3


def make_cnn(seed: int) -> nn.Module:
    seeded(seed)
    return CNN()


@functools.lru_cache(maxsize=1)
def first_half(seed: int, quick: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Trained on half of the data; every method goes on from a copy of it."""
    model, optimizer = methods.Run(make_cnn, images.adam(RATE), seed).start()
    x, y, _, _ = images.subset(seed, TRAIN, TEST)
    images.train(model, optimizer, x[:TRAIN // 2], y[:TRAIN // 2], 2 if quick else EPOCHS,
                 images.generator_of(seed, 1))
    return model, optimizer


def run_one(method: str, seed: int, quick: bool) -> dict[str, float]:
    run = methods.Run(make_cnn, images.adam(RATE), seed)
    model, optimizer = copy.deepcopy(first_half(seed, quick))
    model, optimizer = methods.apply(method, model, optimizer, run)
    x, y, test_x, test_y = images.subset(seed, TRAIN, TEST)
    found: dict[str, float] = {}
    epochs = 2 if quick else EPOCHS
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
