"""Random-label tasks trained by Muon: does FIRE help where every update is already orthogonal?

Muon's own iteration runs in bf16, for which PyTorch's oneDNN path is broken on some machines; the
setting below avoids it and must be made before PyTorch is loaded.
"""
from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import sys
import time
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from torch import nn

from . import diagnostics, images, methods
from .harness import Experiment, main
from .models import MLP, seeded

WIDTH, RATE = 64, 0.01


class Size(NamedTuple):
    tasks: int
    last: int  # of the tasks, those that count
    epochs: int
    digits: int


SIZES = {"full": Size(6, 4, 12, 500), "quick": Size(3, 2, 4, 500), "tiny": Size(2, 1, 1, 50)}


def make_model(seed: int) -> nn.Module:
    """Weights only: each of them is Muon's, the head too."""
    seeded(seed)
    return MLP(14 * 14, WIDTH, bias=False)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Muon(model.parameters(), lr=RATE, weight_decay=0.0)


def run_one(method: str, seed: int, size: str) -> dict[str, float]:
    tasks, last, epochs, digits = SIZES[size]
    run = methods.Run(make_model, make_optimizer, seed)
    model, optimizer = run.start()
    large, _, _, _ = images.subset(seed, digits)
    x = functional.avg_pool2d(large.view(-1, 1, 28, 28), 2).flatten(1)
    found: dict[str, float] = {}
    start, spent = time.perf_counter(), 0.0
    for task in range(tasks):
        if task > 0:
            before = time.perf_counter()
            model, optimizer = methods.apply(method, model, optimizer, run)
            spent += time.perf_counter() - before
        generator = images.generator_of(seed, 1, task)
        y = torch.randint(0, 10, (len(x),), generator=generator)
        images.train(model, optimizer, x, y, epochs, generator)
        found[f"task_accuracy/{task + 1:02}"] = images.accuracy(model, x, y)
        before = time.perf_counter()
        found |= diagnostics.of_model(model, x, task + 1)
        start += time.perf_counter() - before  # statistics are not the run's own time
    found["intervention_share"] = spent / (time.perf_counter() - start)
    ends = [found[f"task_accuracy/{task:02}"] for task in range(tasks - last + 1, tasks + 1)]
    found["end_of_task_accuracy"] = sum(ends) / len(ends)
    return found


EXPERIMENT = Experiment(
    name="muon",
    about="MLP 196-64-64-64-10 without biases, every weight trained by torch.optim.Muon 0.01; the "
    "same 500 MNIST digits (14x14) with new random labels for 6 tasks of 12 epochs. "
    "end_of_task_accuracy: train accuracy at task end, mean of the last 4 tasks. "
    "intervention_share: its part of the wall time.",
    methods=["scratch", "warm", "warm-reset", "reset", "shrink-perturb", "fresh-fire",
             "official-torch", "fired-official", "fired", "fired-scale-one", "fired-no-reset"],
    metrics=["end_of_task_accuracy", "intervention_share"],
    curves=["task_accuracy", "dfi", "dormant_ratio"],
    run_one=run_one,
    seeds=5)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
