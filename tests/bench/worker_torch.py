"""PyTorch's side: the official steps, with as many threads as the process has cores."""
import math
import os
import time

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import official
from worker import SETTLE_S, serve

inputs = {}
results = {}
torch.set_num_threads(len(os.sched_getaffinity(0)))
torch.set_grad_enabled(False)


def load(key, path):
    inputs[key] = torch.from_numpy(np.load(path))


def forget():
    inputs.clear()
    results.clear()


def find_steps(key, target, most):
    """k of a matrix, or the list of k of a stack (taps for a convolution)."""
    tensor = inputs[key]
    if tensor.ndim == 2:
        return official.steps_to_target(tensor[None], target, most)[0]
    stack = official.conv_taps(tensor) if tensor.ndim == 4 else tensor
    return official.steps_to_target(stack, target, most)


def one_pass(tensor, recipe):
    """The steps of `recipe` on one input: a matrix, a stack, or a convolution."""
    kind, steps = recipe["kind"], recipe["steps"]
    normalize, eps = recipe.get("normalize", "frobenius"), recipe.get("eps", 0.0)
    if kind == "rust":
        stack = tensor if tensor.ndim == 3 else tensor[None]
        done = [official.newton_schulz_untransposed(matrix, steps, recipe["checks"],
                                                    recipe["target"]) for matrix in stack]
        scale = math.sqrt(stack.size(2))
        return torch.stack([scale * matrix for matrix in done]).reshape(tensor.shape)
    scale = recipe.get("scale", 1.0)
    if tensor.ndim == 2:
        result = official.newton_schulz(tensor, steps, normalize, eps)
        return result if scale == 1.0 else scale * result
    stack = official.conv_taps(tensor) if tensor.ndim == 4 else tensor
    if kind == "loop":
        each = steps if isinstance(steps, list) else [steps] * len(stack)
        done = torch.empty_like(stack)
        for index, matrix in enumerate(stack):
            done[index] = official.newton_schulz(matrix, each[index], normalize, eps)
    else:
        done = official.newton_schulz_stack(stack, steps, normalize, eps)
    done = done if scale == 1.0 else scale * done
    return official.conv_from_taps(done, *tensor.shape[2:]) if tensor.ndim == 4 else done


def run(keys, recipes, repeat):
    """Seconds of one pass over `keys`, each with its recipe; the mean of `repeat` passes."""
    tensors = [inputs[key] for key in keys]
    time.sleep(SETTLE_S)
    start = time.perf_counter()
    for _ in range(repeat):
        done = [one_pass(tensor, recipe) for tensor, recipe in zip(tensors, recipes)]
    seconds = (time.perf_counter() - start) / repeat
    results.update(zip(keys, done))
    return seconds


def save(key, path):
    np.save(path, results[key].contiguous().numpy())


def parts_of(weight, layout, split):
    """The matrices of a file's 2-D tensor as views: rows are outputs, in `split` equal blocks."""
    matrix = weight.T if layout == "in_out" else weight
    return matrix.chunk(split, dim=0)


def model_steps(path, plan, target, most):
    """k of every matrix a plan names: {name: [k, …]}. A plan is {name: {layout, split, conv}}."""
    weights = load_file(path)
    found = {}
    for name, rule in plan.items():
        if rule["conv"]:
            found[name] = official.steps_to_target(official.conv_taps(weights[name]), target, most)
        else:
            found[name] = [official.steps_to_target(part.contiguous()[None], target, most)[0]
                           for part in parts_of(weights[name], rule["layout"], rule["split"])]
    return found


def model_run(path, out, plan, steps):
    """The whole job, read to written: seconds. `steps` come from model_steps()."""
    time.sleep(SETTLE_S)
    start = time.perf_counter()
    weights = load_file(path)
    for name, rule in plan.items():
        weight = weights[name]
        if rule["conv"]:
            recipe = {"kind": rule["kind"], "scale": rule["scale"], "steps": steps[name]}
            if rule["kind"] == "batch":
                ordered = sorted(steps[name])
                recipe["steps"] = ordered[math.ceil(0.99 * len(ordered)) - 1]
            weights[name] = one_pass(weight, recipe)
            continue
        for part, k in zip(parts_of(weight, rule["layout"], rule["split"]), steps[name]):
            part.copy_(rule["scale"] * official.newton_schulz(part, k))
    save_file(weights, out)
    return time.perf_counter() - start


chosen = {}


def set_load(path, plan, steps):
    """Keeps the matrices of a plan in memory, laid out as the loop takes them."""
    weights = load_file(path)
    chosen["matrices"] = [
        (part.contiguous(), rule["scale"], k) for name, rule in plan.items()
        for part, k in zip(parts_of(weights[name], rule["layout"], rule["split"]), steps[name])]


def set_run():
    """The official loop over all of them: seconds."""
    time.sleep(SETTLE_S)
    start = time.perf_counter()
    chosen["done"] = [scale * official.newton_schulz(matrix, k)
                      for matrix, scale, k in chosen["matrices"]]
    return time.perf_counter() - start


if __name__ == "__main__":
    serve({"load": load, "set_load": set_load, "set_run": set_run, "forget": forget,
           "find_steps": find_steps, "run": run, "save": save, "model_steps": model_steps,
           "model_run": model_run})
