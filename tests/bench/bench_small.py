"""small: stacks of small matrices against PyTorch, looped and with batched products.

k of the official side is that of the 99th percentile; fired must bring every matrix to the target.
"""
import math

import numpy as np

import inputs
import record

STACKS = [(8, 4096), (16, 4096), (32, 2048), (64, 1024), (128, 256)]
QUICK_SHARE = 4  # a quick run takes a quarter of each stack
QUICK_OUT_MAX = 128  # and of ResNet-18 the convolutions up to so many outputs
BAR_LOOP, BAR_BATCH = 10.0, 4.0
SEED = inputs.SEEDS[0]


def percentile(steps):
    """The 99th percentile of k; None when it lies beyond the limit."""
    ordered = sorted(math.inf if k is None else k for k in steps)
    value = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return None if value == math.inf else value


def stack_of(array):
    return inputs.taps(array) if array.ndim == 4 else array


def load(context, arrays):
    """Gives every worker the inputs; the official k of each."""
    peer = context.peer(set(context.cores))
    steps = {}
    for key, array in arrays.items():
        path = context.temporary / "input.npy"
        np.save(path, array)
        for cores in context.core_sets().values():
            for worker in context.workers(cores):
                worker.call("load", key=key, path=str(path))
        path.unlink()
        steps[key] = percentile(peer.call("find_steps", key=key, target=inputs.DFI_TARGET,
                                          most=inputs.STEPS_MAX))
    return steps


def accuracy(context, fire, arrays):
    dfi = error = 0.0
    for index, array in enumerate(arrays.values()):
        path = context.temporary / "result.npy"
        fire.call("save", job="small", index=index, path=str(path))
        result = stack_of(np.load(path))
        path.unlink()
        dfi = max(dfi, inputs.dfi(result))
        error = max(error, inputs.polar_error(result, inputs.polar(stack_of(array))))
    return dfi, error


def measure(context, case, arrays, options):
    """Both comparisons of one case on every core set."""
    if not context.has_time_for(case):
        return
    steps = load(context, arrays)
    if None in steps.values():
        for peer in ("torch looped", "torch batched"):
            context.report(record.failed("small", case, peer, None, "the official loop does not "
                                         f"reach the target in {inputs.STEPS_MAX} steps"))
        return
    keys = list(arrays)
    for label, cores in context.core_sets().items():
        fire, peer = context.workers(cores)
        fire.call("prepare", job="small", keys=keys, preset="fire", options=options, statistics=0)

        def theirs(kind, repeat):
            recipes = [{"kind": kind, "steps": steps[key]} for key in keys]
            return peer.call("run", keys=keys, recipes=recipes, repeat=repeat)

        repeat = {kind: record.repeats_for(theirs(kind, 1)) for kind in ("loop", "batch")}
        fire.call("run", job="small", repeat=1)
        repeat["ours"] = record.repeats_for(fire.call("run", job="small", repeat=1))
        times = record.interleave({
            "ours": lambda _: fire.call("run", job="small", repeat=repeat["ours"]),
            "loop": lambda _: theirs("loop", repeat["loop"]),
            "batch": lambda _: theirs("batch", repeat["batch"]),
        }, context.round_count(7, 3))
        dfi, error = accuracy(context, fire, arrays)
        accurate = dfi <= inputs.DFI_TARGET and error <= inputs.POLAR_ERROR_MAX
        k = sorted(set(steps.values()))
        note = f"k {k[0]}–{k[-1]}, DfI {dfi:.1e}, polar error {error:.1e}"
        for kind, name, bar in (("loop", "torch looped", BAR_LOOP),
                                ("batch", "torch batched", BAR_BATCH)):
            context.report(record.compared(
                "small", f"{case}, {label}", name, times["ours"], times[kind], bar, accurate,
                draws=[SEED], k=k, dfi=dfi, polar_error=error, note=note))
    context.forget()


def run(context):
    for side, count in STACKS:
        count = count // QUICK_SHARE if context.quick else count
        stack = inputs.gaussian((count, side, side), SEED)
        measure(context, f"{count} of {side}x{side}", {"stack": stack},
                {"scale": "one", "stack": 1})
    convolutions = [c for c in inputs.RESNET18 if not context.quick or c[1] <= QUICK_OUT_MAX]
    arrays = {name: inputs.gaussian((out, inner, kernel, kernel), SEED + index)
              for index, (name, out, inner, kernel) in enumerate(convolutions)}
    case = "ResNet-18 taps" + (f" up to {QUICK_OUT_MAX} outputs" if context.quick else "")
    measure(context, case, arrays, {"scale": "one", "conv": "tap"})
