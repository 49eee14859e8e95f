"""A small GPT on plays, then on documentation: what does the first phase do to the second?"""
from __future__ import annotations

import copy
import functools
import sys
from typing import NamedTuple

import torch
from torch import nn

from . import images, methods, text
from .harness import Experiment, main


class Size(NamedTuple):
    first: int  # steps on plays
    second: int  # steps on documentation


SIZES = {"full": Size(3000, 500), "quick": Size(200, 50), "tiny": Size(2, 5)}
CASES = {"10kB": 10_000, "400kB": 400_000}


@functools.lru_cache(maxsize=len(CASES))
def first_phase(seed: int, characters: int, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Trained on the beginning of the plays."""
    model, optimizer = methods.Run(text.make_gpt, text.make_optimizer, seed).start()
    text.train(model, optimizer, text.plays()[:characters], steps, images.generator_of(seed, 1))
    return model, optimizer


def run_one(method: str, seed: int, size: str) -> dict[str, float]:
    first, second = SIZES[size]
    documents = text.documentation()
    held_out = documents[-text.HELD_OUT:]
    found: dict[str, float] = {}
    for case, characters in CASES.items():
        run = methods.Run(text.make_gpt, text.make_optimizer, seed, official="official-gpt")
        model, optimizer = copy.deepcopy(first_phase(seed, characters, first))
        model, optimizer = methods.apply(method, model, optimizer, run)
        for part in range(5):
            found[f"loss_after_{case}/{part * second // 5}"] = text.loss(model, held_out, 96)
            text.train(model, optimizer, documents[:-text.HELD_OUT], second // 5,
                       images.generator_of(seed, 2, part))
        found[f"loss_after_{case}"] = text.loss(model, held_out)
        found[f"loss_after_{case}/{second}"] = found[f"loss_after_{case}"]
    return found


EXPERIMENT = Experiment(
    name="gpt_two_domains",
    about="Character GPT (2 layers, width 64, 4 heads, 64 characters), Adam 3e-3, batch 16; 3,000 "
    "steps on 10 kB of plays (memorised) or 400 kB (generalised), then 500 steps on Python's "
    "documentation. loss_after_…: nats a character on 100 kB of held-out documentation at the "
    "end; lower is better.",
    methods=[name for name in methods.METHODS if name not in ("reset", "fired-scale-one")],
    metrics=["loss_after_10kB", "loss_after_400kB"],
    curves=["loss_after_10kB", "loss_after_400kB"],
    curve_axis="step of the second phase",
    run_one=run_one,
    higher_is_better=False,
    seeds=3)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
