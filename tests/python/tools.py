"""What the tests share: inputs with a known spectrum, and firectl on real files."""
import json
import subprocess

import numpy as np
from safetensors.numpy import load_file, save_file

import libfire

FIRECTL = libfire.build_folder() / "bin" / "firectl"
TIMEOUT_S = 300


def gaussian(shape, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def with_spectrum(rows, cols, singular, seed, dtype=np.float32):
    """Random singular vectors around the given singular values."""
    generator = np.random.default_rng(seed)
    rank = min(rows, cols)
    u, _ = np.linalg.qr(generator.standard_normal((rows, rank)))
    v, _ = np.linalg.qr(generator.standard_normal((cols, rank)))
    return ((u * singular) @ v.T).astype(dtype)


def conditioned(rows, cols, condition, seed, dtype=np.float32):
    """Log-spaced singular values from 1 to 1/condition."""
    singular = np.logspace(0, -np.log10(condition), min(rows, cols))
    return with_spectrum(rows, cols, singular, seed, dtype)


def spiked(rows, cols, seed, dtype=np.float32):
    """A bulk between 0.5 and 1.5 and a few values far above it."""
    rank = min(rows, cols)
    bulk = np.random.default_rng(seed).uniform(0.5, 1.5, rank)
    bulk[:max(1, rank // 16)] = 50.0
    return with_spectrum(rows, cols, bulk, seed + 1, dtype)


def firectl(*arguments, expect=0):
    """Runs firectl; its exit code must be `expect`."""
    assert FIRECTL.exists(), f"{FIRECTL} is missing: build it with cmake --build --preset release"
    command = [str(FIRECTL), *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == expect, (
        f"{' '.join(command)} ended with {done.returncode}, not {expect}:\n{done.stderr}")
    return done


def settings(keys):
    """{"steps": "10"} as --set arguments."""
    return [argument for key, text in keys.items() for argument in ("--set", f"{key}={text}")]


def objects_of(output):
    """The JSON lines by tensor name, without the summary."""
    lines = [json.loads(line) for line in output.splitlines()]
    assert lines and lines[-1].get("summary") is True, "the last object must be the summary"
    return {line["name"]: line for line in lines[:-1]}


def reinit(folder, tensors, *arguments, save=save_file, load=load_file):
    """firectl reinit on a file of these tensors: the new tensors and the JSON objects."""
    source, out = folder / "in.safetensors", folder / "out.safetensors"
    save(tensors, source)
    done = firectl("reinit", source, "-o", out, "--local", "--json", *arguments)
    return load(out), objects_of(done.stdout)
