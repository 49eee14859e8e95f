"""soak: mixed shapes, sizes, tenants and cancellations; the memory must not grow."""
import time

import numpy as np

import inputs
import message
import record
from daemon import Daemon, Load

SLOPE_MAX = 1.0  # MB a minute
WARM_UP_SHARE = 0.3
MIX = [  # name, arrays, flags
    ("tiny", [(16, 16)] * 4, ("--callers", 4, "--backoff", 2)),
    ("actor", [(64, 64), (128, 64), (64, 10)], ("--callers", 8, "--deadline", 200)),
    ("wide", [(256, 1024)], ("--callers", 2, "--cancel", 20)),
    ("conv", [(64, 32, 3, 3)], ("--callers", 2,)),
    ("large", [(768, 768)], ("--callers", 1, "--cancel", 10)),
    ("late", [(512, 512)], ("--callers", 2, "--deadline", 15, "--backoff", 5)),
    ("periodic", [(128, 128)], ("--every", 25, "--deadline", 100)),
]


def slope_mb_per_minute(samples):
    """Least squares over (seconds, bytes) after the warm-up."""
    kept = samples[int(len(samples) * WARM_UP_SHARE):]
    times, sizes = np.array(kept).T
    return float(np.polyfit(times / 60, sizes / 1e6, 1)[0])


def run(context):
    seconds = 40 if context.quick else 600
    samples = []
    with Daemon(context) as daemon:
        loads = []
        for index, (name, shapes, flags) in enumerate(MIX):
            path = context.temporary / f"{name}.request"
            path.write_bytes(message.reinit_request(
                [inputs.gaussian(shape, 500 + 10 * index + i) for i, shape in enumerate(shapes)]))
            loads.append(Load(context, daemon.unix, path, *flags, "--seconds", seconds,
                              "--tenant", name))
        start = time.monotonic()
        while any(load.process.poll() is None for load in loads):
            samples.append((time.monotonic() - start, daemon.metrics()["fired_resident_bytes"]))
            time.sleep(0.5)
        results = [load.result() for load in loads]
        time.sleep(0.5)
        after = daemon.metrics()
        code = daemon.stop()
    slope = slope_mb_per_minute(samples)
    left = after["fired_slab_bytes"] + after["fired_message_bytes"]
    unexpected = {c: n for result in results for c, n in result["codes"].items()
                  if c not in ("0", "1", "4", "8")}
    context.report(record.limited(
        "soak", f"{seconds} s of mixed calls: growth of the resident set", "1 MB a minute",
        max(slope, 1e-3), SLOPE_MAX, "MB/min", rounds=len(samples),
        accurate=code == 0 and not unexpected,
        note=f"{sum(result['ok'] for result in results)} calls, resident "
             f"{samples[-1][1] / 1e6:.0f} MB, left in slabs and messages {left:.0f} bytes, "
             f"exit {code}" + (f", UNEXPECTED {unexpected}" if unexpected else "")
             + ("; too short to tell growth from noise" if context.quick else "")))
