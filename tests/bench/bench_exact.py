"""exact: presets that take a fixed count of steps, against PyTorch taking the same steps.

Where the input is a stack or a convolution PyTorch loops or batches, whichever a trial showed to be
faster. Accuracy is the distance to the preset's float64 definition.
"""
import math

import numpy as np

import inputs
import record
import reference

BAR = 1.0
ERROR_MAX = 1e-5
SEED = inputs.SEEDS[0]
QUICK_WORK_MAX = 5e8  # elements times short side of what a quick run takes


def official(shape, preset, steps, **keys):
    out, inner = shape[-2:] if len(shape) < 4 else shape[:2]
    taps = 1 if len(shape) < 4 else shape[2] * shape[3]
    return {"preset": preset, "shape": shape, "keys": keys, "view": None,
            "recipe": {"steps": steps, "scale": math.sqrt(out / inner) / taps}}


def gpt(width):
    """A fused c_attn: three row blocks, which PyTorch sees as a stack of three."""
    case = official((3 * width, width), "official-gpt", 5, split=3)
    case["recipe"]["scale"] = 1.0
    case["view"] = (3, width, width)
    return case


def sac(members, inner, out):
    """An ensemble of (in, out) matrices; the steps commute with the transpose."""
    case = official((members, inner, out), "official-sac", 10, stack=1)
    case["recipe"].update(eps=1e-8, scale=math.sqrt(out / inner))
    return case


def review(shape, **keys):
    return {"preset": "review", "shape": shape, "keys": keys, "view": None,
            "recipe": {"steps": 15, "normalize": "spectral"}}


def rust(shape, **keys):
    return {"preset": "rust-guide", "shape": shape, "keys": keys, "view": None,
            "recipe": {"kind": "rust", "steps": 8, "checks": [1, 3, 5, 7], "target": 1e-5}}


CASES = [
    official((256, 256), "official-vision", 10),
    official((1024, 1024), "official-vision", 10),
    official((2048, 2048), "official-vision", 10),
    official((3072, 768), "official-vision", 10),
    official((768, 3072), "official-vision", 10),
    official((128, 128, 3, 3), "official-vision", 10),
    official((512, 512, 3, 3), "official-vision", 10),
    official((4096, 16, 16), "official-vision", 10, stack=1),
    official((1024, 64, 64), "official-vision", 10, stack=1),
    official((384, 384), "official-vit", 10),
    gpt(256), gpt(768),
    official((3072, 768), "official-gpt", 5),
    official((32, 16, 8, 8), "official-dqn", 10),
    sac(2, 256, 256), sac(16, 64, 256),
    review((256, 256)), review((768, 768)), review((3072, 768)),
    review((512, 64, 64), stack=1),
    rust((256, 256)), rust((1024, 1024)), rust((1024, 256)), rust((256, 1024)),
]


def truth(array, case):
    """The preset in float64 and the options used for it."""
    keys = {"split": (case["keys"]["split"],)} if "split" in case["keys"] else {}
    options = reference.PRESETS[case["preset"]].with_keys(
        stack=case["keys"].get("stack", 0), **keys)
    return reference.project(array, options)[0]


def error_of(result, want, case):
    """Relative distance; the worst matrix of a stack."""
    if len(case["shape"]) == 3:
        return max(reference.relative_error(a, b) for a, b in zip(result, want))
    return reference.relative_error(result, want)


def measure(context, case):
    array = inputs.gaussian(case["shape"], SEED)
    want = truth(array, case)
    name = f"{case['preset']} {'x'.join(str(side) for side in case['shape'])}"
    name += f" split {case['keys']['split']}" if "split" in case["keys"] else ""
    path, seen = context.temporary / "input.npy", context.temporary / "seen.npy"
    np.save(path, array)
    np.save(seen, array.reshape(case["view"]) if case["view"] else array)
    many = len(case["view"] or case["shape"]) > 2 and "kind" not in case["recipe"]
    for label, cores in context.core_sets().items():
        fire, peer = context.workers(cores)
        fire.call("load", key="w", path=str(path))
        peer.call("load", key="w", path=str(seen))
        fire.call("prepare", job="exact", keys=["w"], preset=case["preset"],
                  options=case["keys"], statistics=0)

        def theirs(kind, repeat):
            return peer.call("run", keys=["w"], recipes=[{"kind": kind, **case["recipe"]}],
                             repeat=repeat)

        trials = {kind: theirs(kind, 1) for kind in (("loop", "batch") if many else ("loop",))}
        trials = {kind: theirs(kind, 1) for kind in trials}  # the first of each was a warm-up
        kind = min(trials, key=trials.get)
        fire.call("run", job="exact", repeat=1)
        repeat = record.repeats_for(fire.call("run", job="exact", repeat=1))
        their_repeat = record.repeats_for(trials[kind])
        times = record.interleave({
            "ours": lambda _: fire.call("run", job="exact", repeat=repeat),
            "theirs": lambda _: theirs(kind, their_repeat),
        }, context.round_count(7, 3))
        result = context.temporary / "result.npy"
        fire.call("save", job="exact", index=0, path=str(result))
        error = error_of(np.load(result), want, case)
        peer.call("save", key="w", path=str(result))
        their_error = error_of(np.load(result).reshape(array.shape), want, case)
        note = f"error {error:.1e} (torch {their_error:.1e})" + (f", torch {kind}" if many else "")
        context.report(record.compared(
            "exact", f"{name}, {label}", "torch same steps", times["ours"], times["theirs"], BAR,
            error <= ERROR_MAX, draws=[SEED], error=error, their_error=their_error, note=note))
    context.forget()


def work_of(case):
    shape = case["shape"]
    return math.prod(shape) * min(shape[:2] if len(shape) == 4 else shape[-2:])


def run(context):
    for case in CASES:
        if context.quick and work_of(case) > QUICK_WORK_MAX:
            context.say(f"quick: without {case['preset']} {case['shape']}")
            continue
        if context.has_time_for(f"{case['preset']} {case['shape']}"):
            measure(context, case)
