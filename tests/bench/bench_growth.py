"""growth: no cliffs. Time per flop from 256 to 4096; odd sizes beside their padded neighbour."""
import statistics

import numpy as np

import inputs
import record

SIDES = (256, 512, 1024, 2048, 4096)
QUICK_SIDE_MAX = 1024
GROWTH_MAX, NEIGHBOUR_MAX = 2.0, 1.5

# A size, the neighbour it is padded to, and how many of them make one sample.
NEIGHBOURS = [(7, 8, 2048), (15, 16, 2048), (17, 32, 1024), (31, 32, 1024), (33, 48, 512),
              (47, 48, 512), (63, 64, 256), (65, 80, 128), (100, 112, 64), (127, 128, 64),
              (129, 144, 32), (250, 256, 16), (257, 272, 8), (500, 512, 4), (513, 528, 4),
              (1000, 1024, 2), (1025, 1040, 2)]
QUICK_NEIGHBOUR_MAX = 600


def seconds(context, fire, shape, rounds):
    """Median seconds of one stack of Gaussian matrices."""
    path = context.temporary / "input.npy"
    np.save(path, inputs.gaussian(shape, inputs.SEEDS[0]))
    fire.call("load", key="w", path=str(path))
    path.unlink()
    fire.call("prepare", job="growth", keys=["w"], preset="fire",
              options={"scale": "one", "stack": 1}, statistics=0)
    repeat = record.repeats_for(fire.call("run", job="growth", repeat=1))
    return [fire.call("run", job="growth", repeat=repeat) for _ in range(rounds)]


def sides(context, label, fire):
    """Flops grow as the cube of the side; time per flop is compared between sides."""
    wanted = [side for side in SIDES if not context.quick or side <= QUICK_SIDE_MAX]
    per_flop = {}
    for side in wanted:
        count = max(1, min(8, (1024 // side) ** 2))
        rounds = context.round_count(3 if side > 1024 else 7, 3)
        per_flop[side] = statistics.median(
            seconds(context, fire, (count, side, side), rounds)) / (count * side ** 3)
    spread = max(per_flop.values()) / min(per_flop.values())
    best = min(per_flop.values())
    note = ", ".join(f"{side}: {value / best:.2f}" for side, value in per_flop.items())
    context.report(record.limited(
        "growth", f"time per flop, {wanted[0]} to {wanted[-1]}, {label}", "its best side", spread,
        GROWTH_MAX, "x", per_flop={str(side): value for side, value in per_flop.items()},
        note=note))


def neighbours(context, label, fire):
    for side, neighbour, count in NEIGHBOURS:
        if context.quick and side > QUICK_NEIGHBOUR_MAX:
            continue
        if not context.has_time_for(f"{side} beside {neighbour}"):
            continue
        rounds = context.round_count(5, 3)
        ours, theirs = [], []
        for _ in range(rounds):
            ours += seconds(context, fire, (count, side, side), 1)
            theirs += seconds(context, fire, (count, neighbour, neighbour), 1)
        slower = [a / b for a, b in zip(ours, theirs)]
        context.report(record.limited(
            "growth", f"{side} beside {neighbour}, {label}", f"{neighbour}x{neighbour}",
            statistics.median(slower), NEIGHBOUR_MAX, "x", (min(slower), max(slower)),
            rounds=rounds, note=f"{count} of each"))


def run(context):
    for label, cores in context.core_sets().items():
        fire = context.fire(cores)
        if label == "all cores" or not context.quick:
            sides(context, label, fire)
        if label == "one core":
            neighbours(context, label, fire)
