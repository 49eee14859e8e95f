"""Digits whose pixels are shuffled anew for every task, true labels, tested on others."""
from __future__ import annotations

import sys
from typing import NamedTuple

import torch

from . import diagnostics, images, methods
from .harness import Experiment, main


class Size(NamedTuple):
    tasks: int
    last: int  # of the tasks, those that count
    epochs: int
    digits: int


SIZES = {"full": Size(15, 5, 20, 1000), "quick": Size(5, 3, 6, 1000), "tiny": Size(2, 1, 1, 100)}
TEST_DIGITS = 2000


def run_one(method: str, seed: int, size: str) -> dict[str, float]:
    tasks, last, epochs, digits = SIZES[size]
    run = methods.Run(images.make_mlp, images.adam(3e-3), seed)
    model, optimizer = run.start()
    x, y, test_x, test_y = images.subset(seed, digits, TEST_DIGITS)
    found: dict[str, float] = {}
    for task in range(tasks):
        if task > 0:
            model, optimizer = methods.apply(method, model, optimizer, run)
        generator = images.generator_of(seed, 1, task)
        pixels = torch.randperm(x.shape[1], generator=generator)
        images.train(model, optimizer, x[:, pixels], y, epochs, generator)
        found[f"task_accuracy/{task + 1:02}"] = images.accuracy(model, test_x[:, pixels], test_y)
        found |= diagnostics.of_model(model, x[:, pixels], task + 1)
    ends = [found[f"task_accuracy/{task:02}"] for task in range(tasks - last + 1, tasks + 1)]
    found["test_accuracy"] = sum(ends) / len(ends)
    return found


EXPERIMENT = Experiment(
    name="permuted",
    about="MLP 784-128-128-128-10, Adam 3e-3; 1,000 MNIST digits with their true labels, pixels "
    "permuted anew for each of 15 tasks of 20 epochs. test_accuracy: on 2,000 other digits at "
    "task end, mean of the last 5 tasks.",
    methods=[name for name in methods.METHODS if name != "fired-qk"],
    metrics=["test_accuracy"],
    curves=["task_accuracy", "dfi", "dormant_ratio"],
    run_one=run_one,
    seeds=5)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
