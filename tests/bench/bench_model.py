"""model: a whole file, read to written: the firectl process against PyTorch with safetensors.

PyTorch's side excludes starting Python and importing torch; ours is the whole process. Both write
into the same folder. PyTorch takes each matrix to the same DfI with the k found beforehand, and
convolution taps looped or batched, whichever a trial showed to be faster.
"""
import json
import os
import subprocess
import time

import numpy as np
from safetensors.numpy import load_file

import inputs
import models
import record

BAR = 5.0
QUICK_GPT2 = {"layers": 1, "vocabulary": 4096}
SVD_MATRICES_MAX = 6  # so many matrices of a file are compared with a float64 SVD


def firectl(context, path, out, arch, cores):
    """Seconds of the whole process."""
    command = [str(context.build / "bin" / "firectl"), "reinit", str(path), "-o", str(out),
               "--local", "--preset", "fire", "--arch", arch, "--json"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True,
                          preexec_fn=lambda: os.sched_setaffinity(0, cores))
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}: {done.stderr}")
    return seconds, done.stdout


def parts_of(weight, rule):
    """The matrices of a tensor, m x n each, as a list."""
    if rule["conv"]:
        return list(inputs.taps(weight))
    return np.split(weight.T if rule["layout"] == "in_out" else weight, rule["split"])


def accuracy(source, out, plan):
    """Worst DfI over all matrices, and worst polar error over the first and the last few."""
    before, after = load_file(source), load_file(out)
    dfi = error = 0.0
    names = list(plan)
    some = set(names[:SVD_MATRICES_MAX // 2] + names[-SVD_MATRICES_MAX // 2:])
    for name, rule in plan.items():
        for old, new in zip(parts_of(before[name], rule), parts_of(after[name], rule)):
            q = new / np.float32(rule["scale"])
            dfi = max(dfi, inputs.dfi(q))
            if name in some:
                error = max(error, inputs.polar_error(q, inputs.polar(old)))
    same = all(np.array_equal(before[name], after[name]) for name in before if name not in plan)
    return dfi, error, same


def check_selection(output, plan):
    """firectl must have projected what PyTorch projects, or the times mean nothing."""
    objects = [json.loads(line) for line in output.splitlines()]
    projected = {o["name"] for o in objects if o.get("action") == "projected"}
    if projected != set(plan):
        wrong = sorted(projected ^ set(plan))
        raise RuntimeError(f"firectl and the peer project different tensors: {wrong[:5]}")


def measure(context, case, arch, tensors, plan, rounds):
    cores = set(context.cores)
    peer = context.peer(cores)
    source, ours, theirs = (context.temporary / f"{name}.safetensors"
                            for name in ("in", "ours", "theirs"))
    models.save(source, tensors)
    steps = peer.call("model_steps", path=str(source), plan=plan, target=inputs.DFI_TARGET,
                      most=inputs.STEPS_MAX)
    if any(k is None for ks in steps.values() for k in ks):
        context.report(record.failed("model", case, "torch + safetensors", BAR,
                                     f"a matrix needs over {inputs.STEPS_MAX} official steps"))
        return

    def their_run(kind):
        rules = {name: {**rule, "kind": kind} for name, rule in plan.items()}
        return peer.call("model_run", path=str(source), out=str(theirs), plan=rules, steps=steps)

    _, output = firectl(context, source, ours, arch, cores)
    check_selection(output, plan)
    has_conv = any(rule["conv"] for rule in plan.values())
    kind = min(("loop", "batch"), key=their_run) if has_conv else "loop"
    times = record.interleave({
        "ours": lambda _: firectl(context, source, ours, arch, cores)[0],
        "theirs": lambda _: their_run(kind),
    }, rounds)
    dfi, error, same = accuracy(source, ours, plan)
    k = [step for ks in steps.values() for step in ks]
    note = (f"k {min(k)}–{max(k)}, DfI {dfi:.1e}, polar error {error:.1e}"
            + (f", torch {kind}" if has_conv else "") + ("" if same else ", OTHERS CHANGED"))
    accurate = dfi <= inputs.DFI_TARGET and error <= inputs.POLAR_ERROR_MAX and same
    context.report(record.compared(
        "model", case, "torch + safetensors", times["ours"], times["theirs"], BAR, accurate,
        matrices=len(k), k=[min(k), max(k)], dfi=dfi, polar_error=error, note=note))
    for path in (source, ours, theirs):
        path.unlink()


def run(context):
    if context.quick:
        context.say("quick: GPT-2 with one block and a short vocabulary")
    tensors, plan = models.gpt2(**(QUICK_GPT2 if context.quick else {}))
    case = "GPT-2-small-shaped file" + (", one block" if context.quick else "")
    measure(context, case, "gpt2", tensors, plan, context.round_count(3))
    if not context.has_time_for("ResNet-18-shaped file"):
        return
    tensors, plan = models.resnet18()
    measure(context, "ResNet-18-shaped file", "resnet", tensors, plan, context.round_count(5, 3))
