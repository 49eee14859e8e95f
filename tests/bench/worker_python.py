"""The Python package's side: a torch module with the tensors of a file, its optimizer, and a client
of a daemon."""
import pathlib
import sys
import time

import torch
from safetensors.torch import load_file
from torch import nn
from worker import SETTLE_S, serve

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "src"))
import fired  # noqa: E402
import fired.torch  # noqa: E402
from fired._flat import FlatSet, Item  # noqa: E402

held = {}


def module_of(weights):
    """Nested modules whose parameters have the names of the file."""
    root = nn.Module()
    for name, tensor in weights.items():
        *path, leaf = name.split(".")
        at = root
        for part in path:
            if not hasattr(at, part):
                at.add_module(part, nn.Module())
            at = getattr(at, part)
        at.register_parameter(leaf, nn.Parameter(tensor.clone()))
    return root


def load(path, address, arch):
    held["weights"] = load_file(path)
    held["model"] = module_of(held["weights"])
    held["optimizer"] = torch.optim.Adam(held["model"].parameters())
    for parameter in held["model"].parameters():
        parameter.grad = torch.zeros_like(parameter)
    held["optimizer"].step()
    held["optimizer"].zero_grad(set_to_none=True)
    held["client"] = fired.Client(address)
    held["arch"] = arch
    held["chosen"] = fired.torch.select(held["model"], arch=arch, verbose=False)
    return held["chosen"].projected


def restore():
    with torch.no_grad():
        for name, parameter in held["model"].named_parameters():
            parameter.copy_(held["weights"][name])


def package_run():
    """client.reinit() from its start to its end: seconds."""
    restore()
    time.sleep(SETTLE_S)
    start = time.perf_counter()
    held["client"].reinit(held["model"], optimizer=held["optimizer"], arch=held["arch"],
                          statistics="basic")
    return time.perf_counter() - start


def library_run():
    """The one call of libfire that a C program would make, its set made ready beforehand."""
    restore()
    items, outs = [], []
    for choice in held["chosen"].touched:
        source = choice.tensor.detach()
        outs.append(torch.zeros_like(source))
        items.append(Item(choice.name, "F32", tuple(source.shape), source.data_ptr(),
                          outs[-1].data_ptr(), options=choice.options, keep=(source,)))
    with FlatSet(items) as flat, held["client"]._handle(False) as handle:
        time.sleep(SETTLE_S)
        start = time.perf_counter()
        status = flat._lib.fire_flat_run(flat._handle, handle, 0, 1, None, 0, 0.0)
        seconds = time.perf_counter() - start
        assert status == 0, flat._lib.fire_last_error()
    return seconds


def save(path):
    from safetensors.torch import save_file
    save_file({name: p.detach().clone() for name, p in held["model"].named_parameters()}, path)


if __name__ == "__main__":
    serve({"load": load, "package_run": package_run, "library_run": library_run, "save": save})
