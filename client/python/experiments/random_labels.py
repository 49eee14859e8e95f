"""The same digits with new random labels, task after task: can the network still memorise?"""
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


SIZES = {"full": Size(8, 5, 12, 1000), "quick": Size(5, 3, 8, 1000), "tiny": Size(2, 1, 1, 100)}


def run_one(method: str, seed: int, size: str) -> dict[str, float]:
    tasks, last, epochs, digits = SIZES[size]
    run = methods.Run(images.make_mlp, images.adam(1e-3), seed)
    model, optimizer = run.start()
    x, _, _, _ = images.subset(seed, digits)
    found: dict[str, float] = {}
    for task in range(tasks):
        if task > 0:
            model, optimizer = methods.apply(method, model, optimizer, run)
        generator = images.generator_of(seed, 1, task)
        y = torch.randint(0, 10, (len(x),), generator=generator)
        images.train(model, optimizer, x, y, epochs, generator)
        found[f"task_accuracy/{task + 1:02}"] = images.accuracy(model, x, y)
        found |= diagnostics.of_model(model, x, task + 1)
    ends = [found[f"task_accuracy/{task:02}"] for task in range(tasks - last + 1, tasks + 1)]
    found["end_of_task_accuracy"] = sum(ends) / len(ends)
    return found


EXPERIMENT = Experiment(
    name="random_labels",
    about="MLP 784-128-128-128-10, Adam 1e-3; the same 1,000 MNIST digits with new random labels "
    "for 8 tasks of 12 epochs. end_of_task_accuracy: train accuracy at task end, mean of the "
    "last 5 tasks.",
    methods=[name for name in methods.METHODS if name != "fired-qk"],
    metrics=["end_of_task_accuracy"],
    curves=["task_accuracy", "dfi", "dormant_ratio"],
    run_one=run_one)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
