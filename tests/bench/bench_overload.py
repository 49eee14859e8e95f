"""overload: ten times more offered than can be served, for a minute."""
import time

import inputs
import message
import record
from daemon import Daemon, Load, load

SIDE = 512
BUDGET_BYTES = 512 << 20
BEYOND_BUDGET_BYTES = 256 << 20
CALLERS = 8
FACTOR = 10
GOODPUT_BAR = 0.9


def watch(daemon, flood, samples):
    while flood.process.poll() is None:
        metrics = daemon.metrics()
        samples.append((metrics["fired_slab_bytes"] + metrics["fired_message_bytes"],
                        metrics["fired_resident_bytes"]))
        time.sleep(0.25)


def run(context):
    seconds = 15 if context.quick else 60
    path = context.temporary / "work.request"
    path.write_bytes(message.reinit_request([inputs.gaussian((SIDE, SIDE), 401)]))
    one_core = {context.cores[0]}
    samples = []
    with Daemon(context, "--memory-budget-bytes", str(BUDGET_BYTES)) as daemon:
        load(context, daemon.unix, path, "--callers", CALLERS, "--seconds", 2, cores=one_core)
        capacity = load(context, daemon.unix, path, "--callers", CALLERS, "--seconds",
                        max(5, seconds // 4), cores=one_core)
        flood = Load(context, daemon.unix, path, "--callers", CALLERS * FACTOR,
                     "--rate", FACTOR * capacity["per_second"], "--outstanding", 4096,
                     "--warm-up", 1, "--seconds", seconds, cores=one_core)
        watch(daemon, flood, samples)
        result = flood.result()
        again = load(context, daemon.unix, path, "--callers", CALLERS, "--seconds",
                     max(5, seconds // 4), cores=one_core)
        code = daemon.stop()
    in_use = max(sample[0] for sample in samples)
    resident = max(sample[1] for sample in samples)
    served = (capacity["per_second"] + again["per_second"]) / 2
    note = (f"capacity {capacity['per_second']:.1f}/s before, {again['per_second']:.1f}/s after; "
            f"codes {result['codes']}, {result['missed']} not sent; exit code {code}")
    context.report(record.shared("overload", f"goodput of {SIDE}² at 10 times the load",
                                 "goodput at 1×", result["per_second"], served, GOODPUT_BAR,
                                 "calls/s", note=note, codes=result["codes"]))
    context.report(record.limited("overload", "memory in use", "budget", in_use / 1e6,
                                  BUDGET_BYTES / 1e6, "MB", rounds=len(samples)))
    context.report(record.limited("overload", "resident memory", "budget + 256 MB", resident / 1e6,
                                  (BUDGET_BYTES + BEYOND_BUDGET_BYTES) / 1e6, "MB",
                                  rounds=len(samples)))
    refused = result["hints"] + result["without_hint"]
    context.report(record.shared(
        "overload", "refusals with a retry hint", "refusals", result["hints"], max(refused, 1),
        1.0, "calls", note="" if refused else "nothing was refused"))
