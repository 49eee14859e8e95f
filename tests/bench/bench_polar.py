"""polar: one matrix at a time against PyTorch's official loop run to the same DfI.

Round i uses draw i mod 5. The loop's k is found beforehand and untimed. fired runs with scale=one
and without statistics, as the loop does; the time with statistics is printed beside it.
"""
import numpy as np

import driver
import inputs
import record

SQUARES = [(256, 256), (512, 512), (1024, 1024), (2048, 2048)]
RECTANGLES = [(1024, 256), (3072, 768), (768, 3072), (8192, 1024)]
QUICK_ELEMENTS_MAX = 3072 * 768
REFERENCE_SHORT_MAX = 1024  # a float64 SVD of more takes minutes: DfI only
BAR_DEFAULT, BAR_FAST, BAR_FAST_AMX, BAR_MEAN = 4.5, 6.0, 10.0, 6.0
MODES = {
    "default": ({"scale": "one"}, 0),
    "fast": ({"scale": "one", "compute": "fast"}, 0),
    "with statistics": ({"scale": "one"}, 1),
}


class Draws:
    """The five draws of one shape: files, the official k, the float64 polar factor."""

    def __init__(self, context, shape):
        self.shape = shape
        self.paths, self.steps, self.factors = {}, {}, {}
        peer = context.peer(set(context.cores))
        seeds = inputs.SEEDS[:3] if context.quick and min(shape) > 512 else inputs.SEEDS
        for seed in seeds:
            weights = inputs.gaussian(shape, seed)
            path = context.temporary / f"{shape[0]}x{shape[1]}-{seed}.npy"
            np.save(path, weights)
            peer.call("load", key=f"w{seed}", path=str(path))
            k = peer.call("find_steps", key=f"w{seed}", target=inputs.DFI_TARGET,
                          most=inputs.STEPS_MAX)
            if k is None:
                context.say(f"{shape[0]}x{shape[1]} seed {seed}: dropped, the official loop is not "
                            f"at DfI {inputs.DFI_TARGET:g} after {inputs.STEPS_MAX} steps")
                continue
            self.paths[seed], self.steps[seed] = path, k
            # In a quick run of a large shape one draw is compared with its SVD, else all are.
            wanted = min(shape) <= 512 or not context.quick or not self.factors
            if wanted and min(shape) <= REFERENCE_SHORT_MAX:
                self.factors[seed] = inputs.polar(weights)

    def seeds(self):
        return list(self.paths)

    def remove(self):
        for path in self.paths.values():
            path.unlink()


def accuracy(context, fire, draws, mode):
    """Worst DfI and polar error over the draws, and the residual fired itself reports."""
    dfi = error = 0.0
    for seed in draws.seeds():
        path = context.temporary / "result.npy"
        fire.call("save", job=f"{mode}-{seed}", index=0, path=str(path))
        result = np.load(path)
        dfi = max(dfi, inputs.dfi(result))
        if seed in draws.factors:
            error = max(error, inputs.polar_error(result, draws.factors[seed]))
        path.unlink()
    return dfi, (error if draws.factors else None)


def measure(context, draws, cores, modes):
    """Interleaved seconds of the official loop and of each mode of ours."""
    fire, peer = context.workers(cores)
    seeds = draws.seeds()
    repeats = {}
    for seed in seeds:
        for worker in (fire, peer):
            worker.call("load", key=f"w{seed}", path=str(draws.paths[seed]))
        for mode in modes:
            options, statistics = MODES[mode]
            fire.call("prepare", job=f"{mode}-{seed}", keys=[f"w{seed}"], preset="fire",
                      options=options, statistics=statistics)
            seconds = fire.call("run", job=f"{mode}-{seed}", repeat=1)
            repeats[mode] = record.repeats_for(seconds)

    def theirs(index, repeat=None):
        seed = seeds[index % len(seeds)]
        recipe = {"kind": "loop", "steps": draws.steps[seed]}
        return peer.call("run", keys=[f"w{seed}"], recipes=[recipe],
                         repeat=repeat or repeats["official"])

    def ours(mode):
        return lambda index: fire.call("run", job=f"{mode}-{seeds[index % len(seeds)]}",
                                       repeat=repeats[mode])

    repeats["official"] = record.repeats_for(theirs(0, repeat=1))
    sides = {"official": theirs, **{mode: ours(mode) for mode in modes}}
    large = min(draws.shape) > 1024 or max(draws.shape) > 4096
    times = record.interleave(sides, context.round_count(5 if large else 10, len(seeds)))
    return times, {mode: accuracy(context, fire, draws, mode) for mode in modes}


def report(context, draws, label, times, accuracies, mode, bar):
    dfi, error = accuracies[mode]
    accurate = dfi <= inputs.DFI_TARGET
    if mode == "default" and error is not None:
        accurate = accurate and error <= inputs.POLAR_ERROR_MAX
    k = [draws.steps[seed] for seed in draws.seeds()]
    note = f"k {min(k)}–{max(k)}, DfI {dfi:.1e}"
    note += "" if error is None else f", polar error {error:.1e}"
    more = {}
    if mode == "default":
        with_statistics = sorted(times["with statistics"])[len(times["with statistics"]) // 2]
        note += f", with statistics {with_statistics * 1e3:.3g} ms"
        more["ours_with_statistics"] = with_statistics * 1e3
    result = record.compared(
        "polar", f"{draws.shape[0]}x{draws.shape[1]} {mode}, {label}", "torch official loop",
        times[mode], times["official"], bar, accurate, draws=draws.seeds(), k=k, dfi=dfi,
        polar_error=error, note=note, **more)
    context.report(result)
    return result


def run(context):
    shapes = SQUARES + RECTANGLES
    if context.quick:
        shapes = [s for s in shapes if s[0] * s[1] <= QUICK_ELEMENTS_MAX and s != (768, 3072)]
        shapes.sort(key=lambda shape: shape[0] * shape[1] * min(shape))
        context.say("quick: without 2048x2048, 768x3072 and 8192x1024")
    means = {}
    for shape in shapes:
        if not context.has_time_for(f"{shape[0]}x{shape[1]}"):
            continue
        draws = Draws(context, shape)
        if not draws.seeds():
            context.report(record.failed("polar", f"{shape[0]}x{shape[1]}", "torch official loop",
                                         BAR_DEFAULT, "every draw was dropped"))
            continue
        square = shape[0] == shape[1]
        for label, cores in context.core_sets().items():
            modes = ["default", "fast", "with statistics"] if square else ["default",
                                                                          "with statistics"]
            times, accuracies = measure(context, draws, cores, modes)
            result = report(context, draws, label, times, accuracies, "default", BAR_DEFAULT)
            if square:
                amx = context.fire(cores).caps["path"] == "amx"
                report(context, draws, label, times, accuracies, "fast",
                       BAR_FAST_AMX if amx else BAR_FAST)
            else:
                means.setdefault(label, []).append(result)
        draws.remove()
        context.forget()
    for label, results in means.items():
        report_mean(context, label, results)


def report_mean(context, label, results):
    """The rectangles together: their geometric mean has a bar of its own."""
    mean = {key: driver.geometric_mean([result[key] for result in results])
            for key in ("ratio", "ratio_min", "ratio_max", "ours", "theirs")}
    accurate = all(result["accurate"] for result in results)
    context.report({
        "bench": "polar", "case": f"rectangles, geometric mean, {label}",
        "peer": "torch official loop", **mean, "rounds": results[0]["rounds"], "unit": "ms",
        "ok": accurate and mean["ratio"] >= BAR_MEAN, "bar": BAR_MEAN, "accurate": accurate})
