"""Random labels for a while, then the true ones: what did memorising noise cost?"""
from __future__ import annotations

import sys
from typing import NamedTuple

import torch

from . import diagnostics, images, methods
from .harness import Experiment, main


class Size(NamedTuple):
    tasks: int
    epochs: int
    digits: int
    true_epochs: int
    true_digits: int


SIZES = {"full": Size(10, 30, 1000, 15, 3000), "quick": Size(4, 10, 1000, 5, 3000),
         "tiny": Size(2, 1, 100, 1, 200)}
TEST_DIGITS = 2000


def run_one(method: str, seed: int, size: str) -> dict[str, float]:
    tasks, epochs, digits, true_epochs, true_digits = SIZES[size]
    run = methods.Run(images.make_mlp, images.adam(1e-3), seed)
    model, optimizer = run.start()
    true_x, true_y, test_x, test_y = images.subset(seed, true_digits, TEST_DIGITS)
    x = true_x[:digits]
    found: dict[str, float] = {}
    for task in range(tasks):
        generator = images.generator_of(seed, 1, task)
        y = torch.randint(0, 10, (len(x),), generator=generator)
        images.train(model, optimizer, x, y, epochs, generator)
        found[f"task_accuracy/{task + 1:02}"] = images.accuracy(model, x, y)
        found |= diagnostics.of_model(model, x, task + 1)
        model, optimizer = methods.apply(method, model, optimizer, run)
    images.train(model, optimizer, true_x, true_y, true_epochs, images.generator_of(seed, 2))
    found["test_accuracy"] = images.accuracy(model, test_x, test_y)
    found |= diagnostics.of_model(model, x, tasks + 1)
    return found


EXPERIMENT = Experiment(
    name="random_then_true",
    about="MLP 784-128-128-128-10, Adam 1e-3; 1,000 MNIST digits with random labels for 10 tasks "
    "of 30 epochs, then 3,000 digits with their true labels for 15 epochs. test_accuracy: on "
    "2,000 other digits at the end.",
    methods=[name for name in methods.METHODS if name != "fired-qk"],
    metrics=["test_accuracy"],
    curves=["task_accuracy", "dfi", "dormant_ratio"],
    run_one=run_one)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
