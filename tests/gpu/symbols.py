#!/usr/bin/env python3
"""The gate: every symbol of the CUDA libraries that a plugin needs, linked or by name, is in the
emulated library and in the real one, with the same version node.

usage: symbols.py PLUGIN EMULATED_FOLDER REAL_LIBRARY…"""

import pathlib
import re
import subprocess
import sys

NAME = re.compile(rb"^(?:cublas|cublasLt|cuda)[A-Z][A-Za-z0-9]*(?:_v\d+|_64)*$")


def dynamic(path, defined):
    """Pairs of symbol and version node that a library defines, or needs."""
    output = subprocess.run(
        ["nm", "--dynamic", "--with-symbol-versions",
         "--defined-only" if defined else "--undefined-only", str(path)],
        check=True, capture_output=True, text=True).stdout
    found = set()
    for line in output.splitlines():
        name, _, version = line.split()[-1].partition("@")
        if re.match(r"(__)?cu(da|blas)", name):
            found.add((name, version.lstrip("@")))
    return found


def by_name(path):
    """Names of functions among the strings of the plugin: what it may ask dlsym for."""
    data = pathlib.Path(path).read_bytes()
    return {text.decode() for text in data.split(b"\0") if NAME.match(text)}


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    plugin, folder, real_paths = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    emulated, real = set(), set()
    for path in real_paths:
        soname = re.search(r"SONAME.*\[(.*)\]", subprocess.run(
            ["readelf", "--dynamic", path], check=True, capture_output=True, text=True).stdout)
        real |= dynamic(path, True)
        emulated |= dynamic(folder / soname.group(1), True)
    linked = dynamic(plugin, False)
    nodes = dict(real)
    named = {(name, nodes[name]) for name in by_name(plugin) if name in nodes}
    problems = [f"{name}@{version} is not emulated" for name, version in linked | named
                if (name, version) not in emulated]
    problems += [f"{name}@{version} is not in the real libraries" for name, version in linked
                 if (name, version) not in real]
    problems += [f"{name}@{version} is emulated, but no real library has it"
                 for name, version in emulated if version and (name, version) not in real]
    if not linked:
        problems.append(f"{plugin} needs no symbol of CUDA: is it the plugin?")
    for line in sorted(problems):
        print(line)
    print(f"{len(linked)} symbols linked, {len(named)} by name, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
