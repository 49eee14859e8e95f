"""determinism: the same bits for any number of threads, any batch, run after run."""
import numpy as np

import inputs
from worker import Worker

CASES = [
    ("one 300x300", (300, 300), "fire", {}),
    ("one 640x160", (640, 160), "fire", {}),
    ("one 160x640, fast", (160, 640), "fire", {"compute": "fast"}),
    ("one 300x300, fast", (300, 300), "fire", {"compute": "fast"}),
    ("one 300x300, f64", (300, 300), "fire", {"compute": "f64"}),
    ("64 of 33x33", (64, 33, 33), "fire", {"stack": 1}),
    ("convolution 48x32x3x3", (48, 32, 3, 3), "fire", {}),
    ("official-vision 257x129", (257, 129), "official-vision", {}),
    ("review 200x200", (200, 200), "review", {}),
    ("one 1100x1100", (1100, 1100), "fire", {}),
]
BATCHES = [(48, 48, 24), (16, 16, 40), (96, 24, 20), (200, 200, 6), (600, 600, 3)]


def digest(context, worker, array, preset, options):
    path = context.temporary / "input.npy"
    np.save(path, array)
    worker.call("load", key="w", path=str(path))
    path.unlink()
    worker.call("prepare", job="bits", keys=["w"], preset=preset, options=options, statistics=1)
    worker.call("run", job="bits", repeat=1)
    fields = worker.call("fields", job="bits", index=0)
    fields.pop("compute_ms", None)
    return worker.call("digest", job="bits", index=0), fields


def stack(context, worker, array, options):
    """The result of a stack, as an array."""
    path, result = context.temporary / "input.npy", context.temporary / "result.npy"
    np.save(path, array)
    worker.call("load", key="w", path=str(path))
    worker.call("prepare", job="bits", keys=["w"], preset="fire",
                options={"stack": 1, **options}, statistics=1)
    worker.call("run", job="bits", repeat=1)
    worker.call("save", job="bits", index=0, path=str(result))
    return np.load(result)


def report(context, case, peer, equal, note):
    context.report({
        "bench": "determinism", "case": case, "peer": peer, "ratio": 1.0 if equal else 0.0,
        "ratio_min": 1.0 if equal else 0.0, "ratio_max": 1.0 if equal else 0.0, "rounds": 1,
        "ours": int(equal), "theirs": 1, "unit": "equal", "ok": bool(equal), "bar": 1.0,
        "note": note})


def threads_and_runs(context, workers):
    for case, shape, preset, options in CASES:
        array = inputs.gaussian(shape, inputs.SEEDS[0])
        seen = {name: digest(context, worker, array, preset, options)
                for name, worker in workers.items()}
        again = digest(context, workers["1 thread"], array, preset, options)
        report(context, case, "1 and 2 threads", seen["1 thread"] == seen["2 threads"],
               seen["1 thread"][0][:12])
        report(context, case, "run after run",
               again == seen["1 thread"] and seen["2 threads"] == seen["2 threads, again"],
               again[0][:12])


def batches(context, worker):
    for rows, cols, count in BATCHES:
        for compute in ("f32", "fast"):
            array = inputs.gaussian((count, rows, cols), inputs.SEEDS[1])
            options = {"compute": compute}
            whole = stack(context, worker, array, options)
            backwards = stack(context, worker, np.ascontiguousarray(array[::-1]), options)[::-1]
            some = stack(context, worker, np.ascontiguousarray(array[1::2]), options)
            alone = stack(context, worker, np.ascontiguousarray(array[:1]), options)
            equal = (np.array_equal(whole, backwards) and np.array_equal(whole[1::2], some)
                     and np.array_equal(whole[:1], alone))
            report(context, f"{count} of {rows}x{cols}, {compute}", "any batch", equal,
                   "whole, reversed, every other one, alone")


def run(context):
    everywhere = set(context.cores)
    workers = {}
    try:
        for name, threads in (("1 thread", 1), ("2 threads", 2), ("2 threads, again", 2)):
            workers[name] = Worker("worker_fire.py", everywhere)
            workers[name].call("open", threads=threads)
        threads_and_runs(context, workers)
        batches(context, workers["2 threads"])
    finally:
        for worker in workers.values():
            worker.close()
