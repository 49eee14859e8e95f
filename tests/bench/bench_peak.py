"""peak: fire_bench_peak measures the products of the CPU path; this judges its lines.

The program prints JSON lines {"case", "path", "n", "gflops", "peak", "share", "median"}: the best
round's rate and peak, their share, and the median round's share. The median round is judged; AMX
has a bar for the best round too. A Gram product counts as n^3 flops, the useful ones, and has the
bar of any large product: it is the one the iteration runs most.
"""
import json
import subprocess

import record

LARGE_MIN, SMALL_MIN = 0.85, {"avx2": 0.60, "avx512": 0.45}
AMX_MEDIAN_MIN, AMX_BEST_MIN = 1.5, 2.0


def bar_of(line):
    """The share the median round must reach; None when no bar speaks of the case."""
    kind = line["case"].split()[1]
    if kind in ("large", "gram") and line["n"] >= 256:
        return LARGE_MIN
    if kind == "small" and 32 <= line["n"] <= 128:
        return SMALL_MIN.get(line["path"])
    if kind == "x3" and line["n"] >= 512:
        return AMX_MEDIAN_MIN
    return None


def judge(context, line):
    context.report(record.shared("peak", line["case"], "FMA peak, median round",
                                 line["median"] * line["peak"], line["peak"], bar_of(line),
                                 "GFLOP/s", note=f"best round {line['share']:.2f}"))
    if line["path"] == "amx":
        context.report(record.shared("peak", line["case"], "FMA peak, best round",
                                     line["gflops"], line["peak"], AMX_BEST_MIN, "GFLOP/s"))


def run(context):
    path = context.build / "bin" / "fire_bench_peak"
    command = [str(path)] + (["--quick"] if context.quick else [])
    if not path.exists():
        why = "fire_bench_peak is not built: cmake --build --preset release builds it"
    else:
        done = subprocess.run(command, capture_output=True, text=True)
        why = None if done.returncode == 0 else f"{' '.join(command)} failed: {done.stderr}"
    if why:
        context.report(record.failed("peak", "products of the CPU path", "FMA peak", LARGE_MIN,
                                     why))
        return
    for text in done.stderr.splitlines():
        context.say(text)  # a path this machine does not have
    for text in done.stdout.splitlines():
        judge(context, json.loads(text))
