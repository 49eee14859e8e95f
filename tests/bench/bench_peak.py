"""peak: fire_bench_peak measures the products of the CPU path; this judges its lines.

The program prints JSON lines {"case", "gflops", "peak", "share"}, and for AMX the share of the fp32
FMA peak of the median and the best round.
"""
import json
import re
import subprocess

import record

LARGE_MIN, SMALL_MIN_AVX2, SMALL_MIN_AVX512 = 0.85, 0.60, 0.45
AMX_MEDIAN_MIN, AMX_BEST_MIN = 1.5, 2.0
AMX_SIDE_MIN = 512


def bar_of(line):
    """The share a case must reach; None when no bar speaks of it."""
    case = line["case"]
    plain = re.sub(r"avx512|avx2|x3|x6|f32|f64|bf16", "", case)
    side = max(int(number) for number in re.findall(r"\d+", plain) or [0])
    if "amx" in case:
        if side < AMX_SIDE_MIN or "x3" not in case:
            return None
        return AMX_BEST_MIN if "best" in case else AMX_MEDIAN_MIN
    if "portable" in case:
        return None
    if side >= 256:
        return LARGE_MIN
    if 32 <= side <= 128:
        return SMALL_MIN_AVX2 if "avx2" in case else SMALL_MIN_AVX512
    return None


def program(context):
    for folder in ("bin", "tests", "tests/bench"):
        path = context.build / folder / "fire_bench_peak"
        if path.exists():
            return path
    return None


def run(context):
    path = program(context)
    if path is None:
        context.report(record.failed("peak", "products of the CPU path", "FMA peak", LARGE_MIN,
                                     "fire_bench_peak is not built: cmake --build --preset release "
                                     "--target fire_bench_peak"))
        return
    command = [str(path)] + (["--quick"] if context.quick else [])
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        context.report(record.failed("peak", "products of the CPU path", "FMA peak", LARGE_MIN,
                                     f"{' '.join(command)} failed: {done.stderr.strip()}"))
        return
    for text in done.stdout.splitlines():
        line = json.loads(text)
        context.report(record.shared("peak", line["case"], "FMA peak", line["gflops"],
                                     line["peak"], bar_of(line), "GFLOP/s"))
