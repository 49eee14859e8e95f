"""memory: what one matrix needs, and a checkpoint larger than what the process may hold.

Working memory is what a call takes beyond its input and output arrays. The checkpoint has tensors
of 16 MB at most; its anonymous memory is sampled while firectl runs, and its rate is compared with
that of the same tensors in memory.
"""
import os
import pathlib
import shutil
import subprocess
import time

import numpy as np

import inputs
import models
import record
from worker import Worker

SIDE, QUICK_SIDE = 4096, 2048
WORKING_MAX = 7.0
BLOCKS, QUICK_BLOCKS, BLOCKS_PER_SHARD = 64, 4, 8  # 64 MB each
RSS_MAX_MB = 512.0
RATE_SHARE_MIN = 0.8
SAMPLE_S = 0.01


def working_memory(context, rows, cols):
    """One matrix in a process that has done nothing larger: memory it kept would not show."""
    worker = Worker("worker_fire.py", set(context.cores))
    path = context.temporary / "input.npy"
    try:
        worker.call("open")
        for key, shape in (("warm", (64, 64)), ("matrix", (rows, cols))):
            np.save(path, inputs.gaussian(shape, inputs.SEEDS[0]))
            worker.call("load", key=key, path=str(path))
            worker.call("prepare", job=key, keys=[key], preset="fire", options={"scale": "one"},
                        statistics=1)
        worker.call("run", job="warm", repeat=1)  # what the pool holds for itself comes first
        used = worker.call("working_bytes", job="matrix") / (rows * cols * 4)
    finally:
        path.unlink(missing_ok=True)
        worker.close()
    context.report(record.limited("memory", f"working memory of one {rows}x{cols}", "7 matrices",
                                  used, WORKING_MAX, "matrices"))


def status_bytes(pid, names):
    """Sum of these fields of /proc/PID/status; 0 when the process has ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.split(":")[0] in names)


def run_sampled(context, source, out):
    """(seconds, most anonymous bytes) of firectl on a checkpoint."""
    command = [str(context.build / "bin" / "firectl"), "reinit", str(source), "-o", str(out),
               "--local", "--preset", "fire", "--arch", "llama", "--json"]
    most = 0
    with open(context.temporary / "report.jsonl", "w") as report:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=report, stderr=subprocess.PIPE, text=True)
        while process.poll() is None:
            most = max(most, status_bytes(process.pid, ("RssAnon", "RssShmem")))
            time.sleep(SAMPLE_S)
        seconds = time.perf_counter() - start
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed with {process.returncode}: "
                           f"{process.stderr.read()}")
    return seconds, most


def compute_only_rate(context):
    """Bytes a second of one block's matrices in memory, with the statistics firectl reports."""
    fire = context.fire(set(context.cores))
    keys, size = [], 0
    path = context.temporary / "input.npy"
    for name, array in models.llama_block(0).items():
        if array.ndim != 2:
            continue
        np.save(path, array)
        fire.call("load", key=name, path=str(path))
        keys.append(name)
        size += array.nbytes
    path.unlink()
    fire.call("prepare", job="block", keys=keys, preset="fire", options={}, statistics=1)
    fire.call("run", job="block", repeat=1)
    return [size / fire.call("run", job="block", repeat=1) for _ in range(3)]


def checkpoint(context):
    blocks = QUICK_BLOCKS if context.quick else BLOCKS
    source, out = context.temporary / "checkpoint", context.temporary / "projected"
    size = models.save_llama_shards(source, blocks, min(BLOCKS_PER_SHARD, max(1, blocks // 2)))
    os.sync()  # writing the input must not be paid for by the run
    rates = compute_only_rate(context)
    seconds, most = run_sampled(context, source, out)
    rates += compute_only_rate(context)
    rate, compute = size / seconds / 1e6, sorted(rates)[len(rates) // 2] / 1e6
    case = f"{size / 1e9:.2f} GB in shards"
    context.report(record.limited("memory", f"{case}, anonymous memory", "512 MB", most / 2 ** 20,
                                  RSS_MAX_MB, "MB", note="largest tensor 16 MB"))
    context.report(record.shared("memory", f"{case}, rate", "compute-only rate", rate, compute,
                                 RATE_SHARE_MIN, "MB/s", note=f"{seconds:.1f} s"))
    shutil.rmtree(source)
    shutil.rmtree(out)


def run(context):
    if context.quick:
        context.say("quick: half the side, and a checkpoint of four blocks instead of 64")
    side = QUICK_SIDE if context.quick else SIDE
    working_memory(context, side, side)
    working_memory(context, 2 * side, side // 2)
    checkpoint(context)
