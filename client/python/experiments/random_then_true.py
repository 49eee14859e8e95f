"""Random labels for a while, then the true ones: what did memorising noise cost?"""
from __future__ import annotations

import sys

import torch

from . import diagnostics, images, methods
from .harness import Experiment, main

TASKS, EPOCHS, DIGITS = 10, 30, 1000
TRUE_DIGITS, TRUE_EPOCHS, TEST_DIGITS = 3000, 15, 2000


def run_one(method: str, seed: int, quick: bool) -> dict[str, float]:
    tasks, epochs = (4, 15) if quick else (TASKS, EPOCHS)
    run = methods.Run(images.make_mlp, images.adam(1e-3), seed)
    model, optimizer = run.start()
    true_x, true_y, test_x, test_y = images.subset(seed, TRUE_DIGITS, TEST_DIGITS)
    x = true_x[:DIGITS]
    found: dict[str, float] = {}
    for task in range(tasks):
        generator = images.generator_of(seed, 1, task)
        y = torch.randint(0, 10, (len(x),), generator=generator)
        images.train(model, optimizer, x, y, epochs, generator)
        found[f"task_accuracy/{task + 1:02}"] = images.accuracy(model, x, y)
        found |= diagnostics.of_model(model, x, task + 1)
        model, optimizer = methods.apply(method, model, optimizer, run)
    images.train(model, optimizer, true_x, true_y, TRUE_EPOCHS, images.generator_of(seed, 2))
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
