"""deadlines: calls that expire under load get their status in time and are never computed."""
import subprocess
import sys
import time

import inputs
import message
import record
from daemon import Daemon, Load, total

LATE_MAX_MS = 10.0
CONTROL_FACTOR = 3.0
EXPIRED_MIN = 30
LATENESS = "fired_deadline_lateness_seconds"
# Beside the daemon sleeps a process that does nothing else: how late the machine itself wakes.
CONTROL = """
import sys, time
worst, end = 0.0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    due = time.monotonic() + 0.005
    time.sleep(0.005)
    worst = max(worst, time.monotonic() - due)
print(worst)
"""


def histogram_worst(metrics):
    """The upper edge, in seconds, of the highest bucket that holds a value, and the count."""
    edges = sorted((float(key.split('le="')[1].split('"')[0]), value)
                   for key, value in metrics.items() if key.startswith(LATENESS + "_bucket"))
    count = total(metrics, LATENESS + "_count")
    for edge, below in edges:
        if below >= count:
            return edge, int(count)
    return float("inf"), int(count)


def run(context):
    seconds = 6 if context.quick else 20
    path = context.temporary / "work.request"
    path.write_bytes(message.reinit_request([inputs.gaussian((512, 512), 301)]))
    with Daemon(context) as daemon:
        control = subprocess.Popen([sys.executable, "-c", CONTROL, str(seconds + 2)],
                                   stdout=subprocess.PIPE, text=True)
        flood = Load(context, daemon.unix, path, "--callers", 6, "--seconds", seconds + 1,
                     "--tenant", "flood")
        results = []
        callers = []
        for deadline in (2, 5, 10, 20, 40, 80):
            caller = Load(context, daemon.unix, path, "--callers", 4, "--seconds", seconds,
                          "--deadline", deadline, "--tenant", f"d{deadline}", "--backoff", 5)
            callers.append(caller)
        results = [caller.result() for caller in callers]
        flood.result()
        time.sleep(0.2)
        metrics = daemon.metrics()
        control_ms = float(control.communicate()[0]) * 1e3
    worst_s, expired = histogram_worst(metrics)
    late = total(metrics, "fired_matrices_computed_late_total")
    dropped = total(metrics, "fired_matrices_dropped_total")
    codes = {code: sum(result["codes"].get(code, 0) for result in results)
             for code in ("0", "4", "8")}
    limit = max(LATE_MAX_MS, CONTROL_FACTOR * control_ms)
    if expired < EXPIRED_MIN:
        context.report(record.failed("deadlines", "status after the deadline", "10 ms late", 1.0,
                                     f"only {expired} calls expired in the daemon"))
        return
    context.report(record.limited(
        "deadlines", "status after the deadline", "10 ms or 3 × a timer", worst_s * 1e3, limit,
        "ms", accurate=late == 0,
        note=f"{expired} expired, {late:g} computed after their deadline, {dropped:g} matrices "
             f"dropped, a timer alone is up to {control_ms:.1f} ms late, codes {codes}",
        expired=expired, computed_late=late, control_ms=control_ms))
