"""python: client.reinit() on a GPT-2-small-shaped torch module, by a daemon over a unix socket.

Against the official loop in PyTorch to the same DfI, in memory on both sides, and against the one
call of libfire that a C program would make. The package's time holds everything: what is selected,
memory for the answers, copying them into the model, resetting the optimizer's state.
"""
import bench_model
import inputs
import models
import record
from daemon import Daemon
from worker import Worker

BAR_TORCH = 3.0
BAR_LIBRARY = 1 / 1.2  # at most a fifth more than the C client


def run(context):
    if context.quick:
        context.say("quick: GPT-2 with one block and a short vocabulary")
    tensors, plan = models.gpt2(**(bench_model.QUICK_GPT2 if context.quick else {}))
    case = "GPT-2-small-shaped module" + (", one block" if context.quick else "")
    source, ours = (context.temporary / f"{name}.safetensors" for name in ("in", "ours"))
    models.save(source, tensors)
    cores = set(context.cores)
    peer = context.peer(cores)
    steps = peer.call("model_steps", path=str(source), plan=plan, target=inputs.DFI_TARGET,
                      most=inputs.STEPS_MAX)
    if any(k is None for ks in steps.values() for k in ks):
        context.report(record.failed("python", case, "torch, official loop", BAR_TORCH,
                                     f"a matrix needs over {inputs.STEPS_MAX} official steps"))
        return
    peer.call("set_load", path=str(source), plan=plan, steps=steps)
    with Daemon(context) as daemon:
        package = Worker("worker_python.py", cores, {"OMP_NUM_THREADS": str(len(cores))})
        try:
            measure(context, case, package, peer, daemon, source, ours, plan)
        finally:
            package.close()
    for path in (source, ours):
        path.unlink()


def measure(context, case, package, peer, daemon, source, ours, plan):
    projected = package.call("load", path=str(source), address=daemon.unix, arch="gpt2")
    if set(projected) != set(plan):
        wrong = sorted(set(projected) ^ set(plan))
        raise RuntimeError(f"the package and the peer project different tensors: {wrong[:5]}")
    package.call("package_run")  # both have their memory and their connection now
    package.call("library_run")
    times = record.interleave({
        "package": lambda _: package.call("package_run"),
        "library": lambda _: package.call("library_run"),
        "torch": lambda _: peer.call("set_run"),
    }, context.round_count(5, 3))
    package.call("package_run")
    package.call("save", path=str(ours))
    dfi, error, same = bench_model.accuracy(source, ours, plan)
    accurate = dfi <= inputs.DFI_TARGET and error <= inputs.POLAR_ERROR_MAX and same
    note = f"DfI {dfi:.1e}, polar error {error:.1e}" + ("" if same else ", OTHERS CHANGED")
    context.report(record.compared("python", case, "torch, official loop", times["package"],
                                   times["torch"], BAR_TORCH, accurate, note=note))
    context.report(record.compared("python", case + ", overhead", "libfire in C",
                                   times["package"], times["library"], BAR_LIBRARY, accurate))
