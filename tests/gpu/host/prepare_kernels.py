#!/usr/bin/env python3
"""Makes C++ of .cuh files: copies them with the one thing changed that g++ cannot be told by a
macro (dynamic shared memory is declared extern), and lists the kernels in them."""

import argparse
import pathlib
import re

DYNAMIC = re.compile(r"extern __shared__ ([A-Za-z_0-9]+) ([A-Za-z_0-9]+)\[\];")
KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?([A-Za-z_0-9]+)\s*\(")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("sources", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = []
    includes = []
    for source in arguments.sources:
        text = source.read_text(encoding="utf-8")
        text = DYNAMIC.sub(r"\1 *const \2 = (\1 *)kernel_dynamic_shared();", text)
        names += KERNEL.findall(text)
        (arguments.out / source.name).write_text(text, encoding="utf-8")
        includes.append(f'#include "{source.name}"\n')
    if not names:
        parser.error("no kernel in these files")
    (arguments.out / "kernel_sources.h").write_text("".join(includes), encoding="utf-8")
    (arguments.out / "kernel_table.h").write_text(
        "".join(f"KERNEL({name})\n" for name in dict.fromkeys(names)), encoding="utf-8")


if __name__ == "__main__":
    main()
