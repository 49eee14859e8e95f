"""fairness: one tenant floods, another asks for a little now and then; and two that both flood."""
import inputs
import message
import record
from daemon import Daemon, Load, load

EVERY_MS = 20
FLOOD_CALLERS = 8
BAR_FACTOR = 3.0
WEIGHT = 3.0
WEIGHT_TOLERANCE = 0.1


def request(context, name, side, seed):
    path = context.temporary / f"{name}.request"
    path.write_bytes(message.reinit_request([inputs.gaussian((side, side), seed)]))
    return path


def latency(context, seconds):
    small = request(context, "small", 64, 201)
    large = request(context, "large", 1024, 202)
    periodic = ("--every", EVERY_MS, "--seconds", seconds, "--tenant", "little")
    with Daemon(context) as daemon:
        load(context, daemon.unix, small, "--callers", 1, "--calls", 50, "--tenant", "little")
        quiet = load(context, daemon.unix, small, *periodic)
        alone = load(context, daemon.unix, large, "--callers", 1, "--calls", 20,
                     "--seconds", 60, "--tenant", "flood")
        flood = Load(context, daemon.unix, large, "--callers", FLOOD_CALLERS,
                     "--seconds", seconds + 2, "--tenant", "flood")
        loaded = load(context, daemon.unix, small, "--warm-up", 1, *periodic)
        flooded = flood.result()
    limit = BAR_FACTOR * (quiet["p99_ms"] + alone["p50_ms"])
    context.report(record.limited(
        "fairness", "64² every 20 ms beside a flood of 1024²", "p99 limit", loaded["p99_ms"],
        limit, "ms", accurate=loaded["codes"] == {"0": loaded["started"] - counted_out(loaded)},
        note=f"unloaded p99 {quiet['p99_ms']:.2f} ms, one 1024² alone {alone['p50_ms']:.1f} ms, "
             f"flood {flooded['per_second']:.1f}/s, loaded p50 {loaded['p50_ms']:.2f} ms",
        quiet=quiet, alone=alone, loaded=loaded, flood=flooded))


def counted_out(result):
    """Calls of the warm-up, which are started but not counted."""
    return result["started"] - sum(result["codes"].values())


def shares(context, seconds):
    work = request(context, "flood", 512, 203)
    settings = context.temporary / "fired.yaml"
    settings.write_text("tenants:\n"
                        "  - name: one\n    weight: 1\n"
                        f"  - name: three\n    weight: {WEIGHT:g}\n")
    with Daemon(context, "--config", str(settings)) as daemon:
        floods = [Load(context, daemon.unix, work, "--callers", FLOOD_CALLERS, "--warm-up", 1,
                       "--seconds", seconds, "--tenant", tenant) for tenant in ("one", "three")]
        import time

        time.sleep(1.5)
        before = daemon.metrics()
        time.sleep(seconds - 1)
        after = daemon.metrics()
        results = [flood.result() for flood in floods]
    used = {tenant: after[key] - before.get(key, 0.0) for tenant in ("one", "three")
            for key in [f'fired_device_seconds_total{{tenant="{tenant}"}}']}
    ratio = used["three"] / used["one"]
    context.report(record.limited(
        "fairness", "two floods of 512², weights 1:3", "device time off by",
        max(abs(ratio / WEIGHT - 1), 1e-6), WEIGHT_TOLERANCE, "",
        note=f"device seconds {used['one']:.2f} : {used['three']:.2f} = 1 : {ratio:.2f}",
        used=used, calls=[result["ok"] for result in results]))


def run(context):
    seconds = 6 if context.quick else 20
    latency(context, seconds)
    shares(context, seconds)
