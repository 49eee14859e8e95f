"""A run that trains well: what does FIRE cost it, early, midway, late, and on which layers?"""
from __future__ import annotations

import copy
import functools
import sys

import torch
from torch import nn

from . import images, methods, text
from .harness import Experiment, main

STEPS = {"full": 600, "quick": 200, "tiny": 20}
PART = 10
BATCH = 8
PLACES = {"early": 0.25, "mid": 0.5, "late": 0.9}
# Where, and which parameters: all that the method takes, or only those that match.
CASES: dict[str, tuple[str, list[str] | None]] = {
    "early": ("early", None), "mid": ("mid", None), "late": ("late", None),
    "mid_v": ("mid", ["*c_v.weight"]), "mid_mlp": ("mid", ["*mlp.*"])}


def go_on(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, start: int,
          end: int) -> None:
    """Steps start..end of the run; a part's batches do not depend on where the run began."""
    for part in range(start // PART, end // PART):
        text.train(model, optimizer, text.plays()[:400_000], PART,
                   images.generator_of(seed, 1, part), BATCH)


@functools.lru_cache(maxsize=1)
def trunk(seed: int, steps: int) -> dict[int, tuple[nn.Module, torch.optim.Optimizer]]:
    """The undisturbed run, as it was at every place and at its end."""
    model, optimizer = methods.Run(text.make_gpt, text.make_optimizer, seed).start()
    kept, step = {}, 0
    for place in (*PLACES.values(), 1.0):
        end = step_of(place, steps)
        go_on(model, optimizer, seed, step, end)
        kept[end] = copy.deepcopy((model, optimizer))
        step = end
    return kept


def step_of(place: float, steps: int) -> int:
    return round(place * steps / PART) * PART


def run_one(method: str, seed: int, size: str) -> dict[str, float]:
    steps = STEPS[size]
    held_out = text.plays()[-text.HELD_OUT:]
    run = methods.Run(text.make_gpt, text.make_optimizer, seed, official="official-gpt")
    kept = trunk(seed, steps)
    found: dict[str, float] = {}
    for case, (place, only) in CASES.items():
        if only is not None and method not in ("warm", "fired"):
            continue
        start = step_of(PLACES[place], steps)
        model, optimizer = copy.deepcopy(kept[start])
        model, optimizer = methods.apply(method, model, optimizer, run, include=only)
        found[f"loss_at_once_{case}"] = text.loss(model, held_out)
        if method == "warm":
            model = kept[steps][0]  # to go on from a copy would only repeat it
        else:
            go_on(model, optimizer, seed, start, steps)
        found[f"final_loss_{case}"] = text.loss(model, held_out)
    return found


EXPERIMENT = Experiment(
    name="hurts",
    about="Character GPT (2 layers, width 64) that learns 400 kB of plays well, Adam 3e-3, batch "
    "8, 600 steps; one intervention at 25 %, 50 % or 90 % of them, on what the method takes, or at "
    "50 % on values or on the MLP only. final_loss_…: nats a character on 100 kB of other plays at "
    "the end; lower is better, and warm is the run left alone.",
    methods=["warm", "warm-reset", "shrink-perturb", "official-torch", "fired", "fired-qk"],
    metrics=[f"final_loss_{case}" for case in CASES],
    run_one=run_one,
    higher_is_better=False,
    seeds=3)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
