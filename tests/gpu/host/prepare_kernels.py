#!/usr/bin/env python3
"""Makes C++ of .cuh files: copies them with the one thing changed that g++ cannot be told by a
macro (dynamic shared memory is declared extern), and lists the kernels in them."""

import argparse
import pathlib
import re

DYNAMIC = re.compile(r"extern __shared__ ([A-Za-z_0-9]+) ([A-Za-z_0-9]+)\[\];")
KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?([A-Za-z_0-9]+)\s*\(")


FUNCTION = re.compile(r"([A-Za-z_]\w*)\s*\([^;{}()]*(?:\([^()]*\)[^;{}()]*)*\)\s*\{")


def with_barrier(texts):
    """Names of functions that reach a barrier, themselves or through others."""
    bodies = {}
    for text in texts:
        places = [(match.start(), match.group(1)) for match in FUNCTION.finditer(text)
                  if text[text.rfind("\n", 0, match.start()) + 1] not in " \t"]
        for (start, name), end in zip(places, [p[0] for p in places[1:]] + [len(text)]):
            bodies[name] = text[start:end]
    found = {"__syncthreads"}
    while True:
        more = {name for name, body in bodies.items() if name not in found and
                any(re.search(rf"\b{callee}\s*\(", body[len(name):]) for callee in found)}
        if not more:
            return found
        found |= more


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("sources", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = []
    includes = []
    texts = []
    for source in arguments.sources:
        text = source.read_text(encoding="utf-8")
        text = DYNAMIC.sub(r"\1 *const \2 = (\1 *)kernel_dynamic_shared();", text)
        names += KERNEL.findall(text)
        texts.append(text)
        (arguments.out / source.name).write_text(text, encoding="utf-8")
        includes.append(f'#include "{source.name}"\n')
    if not names:
        parser.error("no kernel in these files")
    barrier = with_barrier(texts)
    (arguments.out / "kernel_sources.h").write_text("".join(includes), encoding="utf-8")
    (arguments.out / "kernel_table.h").write_text(
        "".join(f"KERNEL({name}, {'true' if name in barrier else 'false'})\n"
                for name in dict.fromkeys(names)), encoding="utf-8")


if __name__ == "__main__":
    main()
