#!/usr/bin/env python3
"""Static gates on the GPU plugin: what compilers and the file itself say, no GPU needed.

usage: gates.py archs PLUGIN
       gates.py flags NVCC HOST_COMPILER BUILD_FILE
       gates.py headers FOLDER KERNELS
       gates.py analyzer INCLUDE KERNELS

archs     the plugin carries machine code for every architecture, and PTX for newer ones
flags     the build passes the flags that turn warnings into errors, and they do
headers   the host code compiles against the headers of CUDA 12.4 (deploy/install-deps --test)
analyzer  gcc -Wconversion -fanalyzer has nothing to say about the host code
Exit code 77: skipped, and the last line says why."""

import pathlib
import struct
import subprocess
import sys
import tempfile

ARCHITECTURES = {75, 80, 86, 89, 90, 100, 120}
FATBIN_MAGIC = 0xBA55ED50
KIND_PTX, KIND_ELF = 1, 2


def fail(text):
    print(text)
    sys.exit(1)


def skip(text):
    print(text)
    sys.exit(77)


def fatbin_entries(data):
    """Pairs of kind and architecture of every entry of every fat binary in a file.

    A fat binary is a header (magic, version, header size, total size), then entries: kind, version,
    header size, payload size, and the architecture at byte 28. The header is not compressed."""
    found, at = [], data.find(struct.pack("<I", FATBIN_MAGIC))
    while at >= 0:
        _, version, header, total = struct.unpack_from("<IHHQ", data, at)
        end = at + header + total
        if version != 1 or end > len(data):
            at = data.find(struct.pack("<I", FATBIN_MAGIC), at + 4)
            continue
        entry = at + header
        while entry + 64 <= end:
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", data, entry)
            arch = struct.unpack_from("<I", data, entry + 28)[0]
            found.append((kind, arch))
            entry += entry_header + payload
        at = data.find(struct.pack("<I", FATBIN_MAGIC), end)
    return found


def archs(plugin):
    entries = fatbin_entries(pathlib.Path(plugin).read_bytes())
    code = {arch for kind, arch in entries if kind == KIND_ELF}
    text = {arch for kind, arch in entries if kind == KIND_PTX}
    print(f"machine code {sorted(code)}, PTX {sorted(text)}")
    if code != ARCHITECTURES:
        fail(f"machine code for {sorted(code)}, not for {sorted(ARCHITECTURES)}")
    if max(ARCHITECTURES) not in text:
        fail(f"no PTX of {max(ARCHITECTURES)}, so no newer GPU could run it")


# Each must be refused under the flags of the build; the first line says what it shows.
PLANTED = {
    "a launch on the default stream":
        "__global__ void k(float *x) { *x = 1; }\n"
        "void f(float *x) { k<<<1, 1>>>(x); }\n",
    "a variable nobody uses":
        "__global__ void k(float *x) { int unused; *x = 1; }\n",
    "local memory":
        "__global__ void k(float *x, int i) { volatile float a[64]; a[i] = *x; *x = a[i / 2]; }\n",
}
FLAGS = ["--Werror", "all-warnings", "-Wdefault-stream-launch", "-fmad=false",
         "-Xptxas", "-warn-spills,-warn-lmem-usage,-Werror"]


def flags(nvcc, host_compiler, build_file):
    rules = pathlib.Path(build_file).read_text()
    command = next((line for line in rules.splitlines()
                    if "launch.cu" in line and "compute_75,code=sm_75" in line), None)
    if command is None:
        fail("the build has no command for launch.cu")
    missing = [flag for flag in FLAGS if flag not in command]
    if missing:
        fail(f"the build of launch.cu lacks {missing}")
    with tempfile.TemporaryDirectory() as folder:
        for what, text in {"nothing wrong": "__global__ void k(float *x) { *x = 1; }\n",
                           **PLANTED}.items():
            source = pathlib.Path(folder) / "planted.cu"
            source.write_text(text)
            run = subprocess.run(
                [nvcc, "-std=c++17", "-O3", *FLAGS, "-arch=sm_75", "-ccbin", host_compiler, "-c",
                 str(source), "-o", str(source.with_suffix(".o"))], capture_output=True, text=True)
            print(f"{what}: {'accepted' if run.returncode == 0 else 'refused'}")
            if (run.returncode != 0) != (what in PLANTED):
                fail(run.stdout + run.stderr)


def compile_host(kernels, options):
    sources = sorted(pathlib.Path(kernels, "cuda").glob("*.c"))
    if not sources:
        fail(f"no host code in {kernels}/cuda")
    bad = 0
    for source in sources:
        run = subprocess.run(
            ["gcc", "-std=gnu17", "-Wall", "-Wextra", "-Werror", *options, "-I", str(kernels),
             "-I", str(source.parent), "-c", str(source), "-o", "/dev/null"],
            capture_output=True, text=True)
        print(f"{source.name}: {'clean' if run.returncode == 0 else run.stderr}")
        bad += run.returncode != 0
    if bad:
        fail(f"{bad} of {len(sources)} files")


def headers(folder, kernels):
    found = sorted(pathlib.Path(folder).glob("nvidia/*/include"))
    versions = [header for path in found for header in path.glob("cuda_runtime_api.h")]
    if not versions:
        skip("no CUDA 12.4 headers in build/cuda-12.4: deploy/install-deps --test brings them")
    if "#define CUDART_VERSION  12040" not in versions[0].read_text():
        fail(f"{versions[0]} is not of CUDA 12.4")
    compile_host(kernels, ["-O2", *(word for path in found for word in ("-isystem", str(path)))])


def analyzer(include, kernels):
    compile_host(kernels, ["-O2", "-Wconversion", "-fanalyzer", "-isystem", include])


def main():
    commands = {"archs": (archs, 1), "flags": (flags, 3), "headers": (headers, 2),
                "analyzer": (analyzer, 2)}
    name, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else (None, [])
    if name not in commands or len(arguments) != commands[name][1]:
        sys.exit(__doc__)
    commands[name][0](*arguments)


if __name__ == "__main__":
    main()
