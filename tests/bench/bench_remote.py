"""remote: a whole model through the daemon against PyTorch doing it locally, and the wire's cost.

1. All projected weights of a GPT-2-small-shaped model over a unix socket, against PyTorch's
   official loop in its own process, on the same cores, to the same DfI.
2. A plan that does nothing, against an echo server on raw gRPC core with the same bytes.
3. The same model through the daemon against the library in process.
"""
import json
import os
import subprocess
import time

import numpy as np

import bench_model
import inputs
import message
import models
import record
from daemon import Daemon, Echo, load
from worker import Worker

BAR_TORCH = 4.0
BAR_WIRE = 1 / 1.25
PASS_THROUGH = {"steps": "0", "scale": "keep-norm"}
WIRE_SIDES = {"1 MiB": 512, "15 MiB": 1984}
QUICK_LAYERS = 2
LAYERS = 12


def seconds_per_call(context, address, path, calls):
    result = load(context, address, path, "--callers", 1, "--calls", calls, "--seconds", 600)
    if result["ok"] != calls:
        raise RuntimeError(f"{address} answered {result['codes']}")
    return result["p50_ms"] / 1e3


def wire(context, daemon):
    """The cost of the wire; gives the echo's seconds a byte."""
    echo = Echo(context, f"unix:{context.temporary}/echo")
    per_byte = None
    try:
        for case, side in WIRE_SIDES.items():
            path = context.temporary / "wire.request"
            array = inputs.gaussian((side, side), 601)
            path.write_bytes(message.reinit_request([array], PASS_THROUGH, "none"))
            calls = 20 if side > 1000 else 200
            for address in (daemon.unix, echo.address):
                seconds_per_call(context, address, path, calls // 4)
            times = record.interleave({
                "ours": lambda _: seconds_per_call(context, daemon.unix, path, calls),
                "theirs": lambda _: seconds_per_call(context, echo.address, path, calls),
            }, context.round_count(9, 5))
            context.report(record.compared(
                "remote", f"pass-through of {case}", "echo on gRPC core", times["ours"],
                times["theirs"], BAR_WIRE,
                note=f"{2 * array.nbytes / np.median(times['ours']) / 1e9:.2f} GB/s both ways"))
            per_byte = float(np.median(times["theirs"])) / array.nbytes
    finally:
        echo.close()
    return per_byte


def groups_of(tensors, plan):
    """The projected tensors as stacks of equal shape and rule: [(array, rule, names)]."""
    found = {}
    for name, rule in plan.items():
        key = (tensors[name].shape, rule["split"])
        found.setdefault(key, (rule, []))[1].append(name)
    return [(np.stack([tensors[name] for name in names]), rule, names)
            for rule, names in found.values()]


def prepare(worker, context, groups):
    for index, (array, rule, _) in enumerate(groups):
        path = context.temporary / "group.npy"
        np.save(path, array)
        worker.call("load", key=f"g{index}", path=str(path))
        path.unlink()
    for index, (array, rule, _) in enumerate(groups):
        worker.call("prepare", job=f"j{index}", keys=[f"g{index}"], preset="fire",
                    options={"layout": rule["layout"], "split": str(rule["split"])},
                    statistics=1, count=len(array))


def run_groups(worker, groups):
    return sum(worker.call("run", job=f"j{index}", repeat=1) for index in range(len(groups)))


def same_bits(remote, local, groups):
    return all(remote.call("digest", job=f"j{index}", index=0)
               == local.call("digest", job=f"j{index}", index=0) for index in range(len(groups)))


def model(context, daemon, per_byte):
    cores = set(context.cores)
    layers = QUICK_LAYERS if context.quick else LAYERS
    tensors, plan = models.gpt2(layers=layers, vocabulary=64)
    peer = context.peer(cores)
    source = context.temporary / "in.safetensors"
    models.save(source, tensors)
    steps = peer.call("model_steps", path=str(source), plan=plan, target=inputs.DFI_TARGET,
                      most=inputs.STEPS_MAX)
    peer.call("set_load", path=str(source), plan=plan, steps=steps)
    groups = groups_of(tensors, plan)
    remote, local = Worker("worker_fire.py", cores), Worker("worker_fire.py", cores)
    try:
        remote.call("open_remote", address=daemon.unix)
        local.call("open")
        for worker in (remote, local):
            prepare(worker, context, groups)
            run_groups(worker, groups)
        times = record.interleave({
            "remote": lambda _: run_groups(remote, groups),
            "local": lambda _: run_groups(local, groups),
            "torch": lambda _: peer.call("set_run"),
        }, context.round_count(5, 3))
        same = same_bits(remote, local, groups)
    finally:
        remote.close()
        local.close()
    out = context.temporary / "out.safetensors"
    through_daemon(context, daemon, source, out, plan)
    dfi, error, others = bench_model.accuracy(source, out, plan)
    accurate = (dfi <= inputs.DFI_TARGET and error <= inputs.POLAR_ERROR_MAX and same and others)
    size = sum(array.nbytes for array, _, _ in groups)
    case = f"GPT-2-shaped, {layers} blocks, {size / 1e6:.0f} MB"
    note = (f"DfI {dfi:.1e}, polar error {error:.1e}, "
            + ("same bits as in process" if same else "BITS DIFFER"))
    context.report(record.compared("remote", case, "torch, local", times["remote"],
                                   times["torch"], BAR_TORCH, accurate, note=note))
    slower = [max(seconds, per_byte * size) for seconds in times["local"]]
    context.report(record.compared(
        "remote", case, "max(in process, wire)", times["remote"], slower, BAR_WIRE, accurate,
        note=f"in process {np.median(times['local']) * 1e3:.0f} ms, "
             f"wire {per_byte * size * 1e3:.0f} ms"))


def through_daemon(context, daemon, source, out, plan):
    """firectl through the same daemon: what a user does, and whose result is looked at."""
    command = [str(context.build / "bin" / "firectl"), "reinit", str(source), "-o", str(out),
               "--addr", daemon.unix, "--arch", "gpt2", "--json"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}: {done.stderr}")
    projected = {row["name"] for row in map(json.loads, done.stdout.splitlines())
                 if row.get("action") == "projected"}
    if projected != set(plan):
        raise RuntimeError("firectl and the peer project different tensors")
    context.say(f"firectl reinit --addr, read to written: {time.perf_counter() - start:.2f} s")


def run(context):
    with Daemon(context) as daemon:
        per_byte = wire(context, daemon)
        model(context, daemon, per_byte)
