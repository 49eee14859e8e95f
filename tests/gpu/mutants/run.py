#!/usr/bin/env python3
"""Plants one bug at a time into a copy of kernels/cuda, builds it, runs the gpu suites on it, and
tells which bugs were found.

usage: run.py [--build FOLDER] [--jobs N] [--only NAME] [--kind host|kernel] [--stage NAME]
              [--resume] [--check]

  --build FOLDER  a build of the whole project with the gpu tests (default: build/release)
  --jobs N        how many mutants at once (default: as many as there are processors)
  --only NAME     one mutant; may be repeated
  --kind KIND     only those of host.txt or of kernel.txt
  --stage NAME    only this stage (kernels, failures …); may be repeated. What is found is found;
                  a survivor is one of these stages only
  --resume        keep what an earlier run found, where the file with the bug is the same as then;
                  survivors, and whatever ended in an error, are tried anew
  --check         only see that every mutant's text is still there

A host mutant is the plugin with one file compiled anew; a kernel mutant is the plugin as it is, on
kernels compiled anew, by g++ and to PTX. Stages run in order until one fails: that is the finding.
The unchanged plugin must pass all of them first. Exit code 0: no error, and the shares reach the
bars; survivors.txt explains the survivors, and one that it does not name is an error."""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SOURCE = ROOT / "kernels" / "cuda"
BARS = {"host": 0.95, "kernel": 0.90}
STAGE_SECONDS_MAX = 1800
IDLE_SECONDS_MAX = 20  # a test that sleeps so long waits for what never comes
LOOK_SECONDS = 0.1
# Check's programs, quick ones first; the interpreter sees what a race or a stray read would hide.
STAGES = {
    "host": [("kernels", "host"), ("held_out", "host"), ("schedules", "host"), ("failures", "host"),
             ("parity", "host"), ("costs", "host")],
    "kernel": [("units", "host"), ("units", "ptx"), ("kernels", "host"), ("kernels", "ptx"),
               ("parity", "host")],
}


class Mutant:
    def __init__(self, kind, name, why, file, old, new):
        self.kind, self.name, self.why = kind, name, why
        self.file, self.old, self.new = file, old, new

    def problem(self):
        """Why it cannot be planted, or None."""
        path = SOURCE / self.file
        if not path.is_file():
            return f"no file {self.file}"
        count = path.read_text().count(self.old)
        return None if count == 1 else f"its text stands {count} times in {self.file}"

    def text(self):
        """The file with the bug."""
        return (SOURCE / self.file).read_text().replace(self.old, self.new)

    def key(self):
        """What a finding holds for."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def plant(self, folder):
        (folder / self.file).write_text(self.text())


def read_mutants(kind):
    text = (HERE / f"{kind}.txt").read_text()
    chunks = re.split(r"(?m)^(?=== )", text)[1:]
    mutants = []
    for chunk in chunks:
        match = re.match(r"== (\w+): (.+)\n-- (\S+)\n(.*)\n---\n(.*)\Z", chunk.rstrip("\n"), re.S)
        if not match:
            sys.exit(f"{kind}.txt: cannot read the entry that begins {chunk.splitlines()[0]!r}")
        mutants.append(Mutant(kind, *match.groups()))
    return mutants


def is_idle(pid):
    """Whether every thread of a process sleeps: none runs, or would run if the machine let it."""
    states = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            states.append(path.read_text().rpartition(")")[2].split()[0])
        except OSError:
            continue
    return all(state == "S" for state in states)


def wait(process, log):
    """The exit code, 1 as soon as the log tells of a test that failed; None when it took too long
    or waits in vain. Time is counted in looks at it, so that a machine that stood still meanwhile
    does not count."""
    looks = idle = 0
    start = log.stat().st_size
    while True:
        try:
            return process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            looks += 1
            idle = idle + 1 if is_idle(process.pid) else 0
            failed = b"\nnot ok " in log.read_bytes()[start:]
            if failed or max(looks / STAGE_SECONDS_MAX,
                             idle / IDLE_SECONDS_MAX) > 1 / LOOK_SECONDS:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return 1 if failed else None


def run(command, folder, log, env=None):
    """Runs a command, or a line for the shell, with its output in the log; see wait()."""
    with open(log, "ab") as out:
        out.write(f"$ {command if isinstance(command, str) else shlex.join(command)}\n".encode())
        out.flush()
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, env=env, start_new_session=True,
                                   shell=isinstance(command, str))
        # The compiler works in children of the shell.
        return wait(process, log) if env else process.wait()


class Build:
    """Commands of the build, to be run again on other files."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        if not (self.folder / "build.ninja").is_file():
            sys.exit(f"{folder} is no build: configure and build the preset release")
        listed = subprocess.run(["ninja", "-t", "commands", "fire_cuda", "libfire_kernels_host",
                                 "fire_kernels_ptx"], cwd=self.folder, check=True,
                                capture_output=True, text=True).stdout
        self.commands = listed.splitlines()
        self.emulator = self.folder / "emulator"
        self.plugin = self.folder / "lib" / "fired" / "fire_cuda.so"

    def find(self, *words):
        found = [line for line in self.commands if all(word in line for word in words)]
        if len(found) != 1:
            sys.exit(f"{len(found)} commands of the build have {words}; one was expected")
        # Not through the compiler's cache: it has no use for files that are built once.
        return re.sub(r"(^|&& )(\S*/)?ccache ", r"\1", found[0])

    def make_plugin(self, mutant, sources, out, log):
        """The plugin with one file of `sources` compiled anew; its path, or None."""
        plugin = out / "fire_cuda.so"
        link = self.find(" -shared ", "fire_cuda.so")
        if mutant.file.endswith(".cu"):
            new = out / "launch.o"
            compile_line = self.find("launch.cu", "-c ", "launch.o")
            compile_line = re.sub(r"-gencode=arch=compute_(?!75)\d+,code=\w+", "", compile_line)
            old = re.search(r"-o (\S+launch\.o)", compile_line).group(1)
        else:
            new = out / (mutant.file + ".o")
            compile_line = self.find(f"cuda/{mutant.file} ", " -c ") if any(
                f"cuda/{mutant.file} " in line for line in self.commands) else self.find(
                    f"cuda/{mutant.file}", " -c ")
            old = re.search(r"-o (\S+\.o)", compile_line).group(1)
        compile_line = compile_line.replace(str(SOURCE / mutant.file), str(sources / mutant.file))
        compile_line = re.sub(rf"-I{re.escape(str(ROOT / 'kernels'))}(?=\s)",
                              f"-I{sources} -I{ROOT / 'kernels'}", compile_line)
        compile_line = compile_line.replace(f"-o {old}", f"-o {new}")
        compile_line = re.sub(r"-M[DTF]( \S+\.o\S*)?", "", compile_line)
        linked = os.path.relpath(self.folder / old, self.folder)  # as the linker is given it
        link, count = re.subn(rf"(?<=\s){re.escape(linked)}(?=\s)", str(new), link)
        if count != 1:
            sys.exit(f"the plugin is not linked from {linked}")
        link = re.sub(r"-o \S+fire_cuda\.so", f"-o {plugin}", link)
        for command in (compile_line, link):
            if run(command, self.folder, log) != 0:
                return None
        return plugin

    def make_kernels(self, sources, out, log):
        """libfire_kernels_host.so and the PTX from `sources`; their paths, or None."""
        library, ptx = out / "libfire_kernels_host.so", out / "fire_kernels.ptx"
        prepared = self.folder / "tests" / "gpu" / "libfire_kernels_host"
        commands = [
            self.find("prepare_kernels.py", str(prepared)),
            self.find("libfire_kernels_host.dir", "runner.cpp", " -c "),
            self.find(" -shared ", "libfire_kernels_host.so"),
            self.find("launch.cu", "-ptx"),
        ]
        commands[0] = commands[0].replace(f"--out {prepared}", f"--out {out}")
        commands[0] = commands[0].replace(str(SOURCE), str(sources))
        for old, new in ((str(prepared), str(out)), (str(SOURCE), str(sources))):
            commands[1] = commands[1].replace(f"-isystem {old}", f"-isystem {new}")
        commands[1] = re.sub(r"-M[DTF]( \S+\.o\S*)?", "", commands[1])
        old = re.search(r"-o (\S+runner\.cpp\.o)", commands[1]).group(1)
        commands[1] = commands[1].replace(f"-o {old}", f"-o {out / 'runner.o'}")
        commands[2] = commands[2].replace(old, str(out / "runner.o"))
        commands[2] = re.sub(r"-o \S+libfire_kernels_host\.so", f"-o {library}", commands[2])
        commands[3] = commands[3].replace(str(SOURCE / "launch.cu"), str(sources / "launch.cu"))
        commands[3] = re.sub(r"-o \S+fire_kernels\.ptx", f"-o {ptx}", commands[3])
        for command in commands:
            if run(command, self.folder, log) != 0:
                return None
        return library, ptx

    def program(self, name):
        return self.folder / "tests" / f"test_gpu_{name}"

    def stage(self, name, runner, plugin, library, ptx, log):
        kernels = library if runner == "host" else self.folder / "lib" / "libfire_ptx.so"
        env = dict(os.environ, LD_LIBRARY_PATH=str(self.emulator), FIRE_PLUGIN=str(plugin),
                   FIRE_EMULATOR_KERNELS=str(kernels), FIRE_PTX=str(ptx), CK_DEFAULT_TIMEOUT="600",
                   CK_TAP_LOG_FILE_NAME="-")  # each test as it ends, on standard output
        return run([str(self.program(name))], self.folder, log, env)


def run_stages(build, kind, plugin, library, ptx, log):
    """The first stage that fails, as text; None when all pass."""
    for name, runner in STAGES[kind]:
        code = build.stage(name, runner, plugin, library, ptx, log)
        if code is None:
            return f"{name} did not end"
        if code < 0:
            return f"{name} ended by signal {-code}"
        if code != 0:
            return f"{name}{' (PTX)' if runner == 'ptx' else ''}"
    return None


def try_mutant(build, mutant, folder):
    """A pair: "found", "survived" or "error", and what found it or went wrong."""
    out = folder / mutant.name
    shutil.rmtree(out, ignore_errors=True)
    sources = out / "cuda"
    shutil.copytree(SOURCE, sources)
    mutant.plant(sources)
    log = out / "log.txt"
    plugin = build.plugin
    library = build.emulator / "libfire_kernels_host.so"
    ptx = build.folder / "kernels" / "cuda" / "fire_kernels.ptx"
    if mutant.kind == "host":
        plugin = build.make_plugin(mutant, sources, out, log)
    else:
        library, ptx = build.make_kernels(sources, out, log) or (None, None)
    if plugin is None or library is None:
        return "error", f"does not build, see {log}"
    finding = run_stages(build, mutant.kind, plugin, library, ptx, log)
    if finding:
        shutil.rmtree(sources, ignore_errors=True)
        for path in out.glob("*.so"):
            path.unlink()
        return "found", finding
    return "survived", str(log)


def read_survivors():
    """Names of survivors that are explained, with the reason."""
    lines = (HERE / "survivors.txt").read_text().splitlines()
    pairs = (line.partition(": ") for line in lines if line and not line.startswith("#"))
    return {name: reason for name, _, reason in pairs}


def report(results, explained, seconds):
    bad = 0
    for kind, bar in BARS.items():
        of_kind = [(m, r) for m, r in results if m.kind == kind]
        if not of_kind:
            continue
        found = sum(r[0] == "found" for _, r in of_kind)
        share = found / len(of_kind)
        print(f"{kind}: {found} of {len(of_kind)} found, {share:.1%} (bar {bar:.0%})")
        bad += share < bar
    for mutant, (outcome, text) in results:
        if outcome == "survived":
            reason = explained.get(mutant.name)
            reason_text = reason or f"NOT EXPLAINED, see {text}"
            print(f"survived {mutant.name} ({mutant.why}): {reason_text}")
            bad += reason is None
        if outcome == "error":
            print(f"ERROR {mutant.name}: {text}")
            bad += 1
    print(f"took {seconds:.0f} s")
    return bad


def check_unchanged(build, kind, folder, resume):
    """The plugin without a bug must pass; with resume, once for the same files."""
    library = build.emulator / "libfire_kernels_host.so"
    ptx = build.folder / "kernels" / "cuda" / "fire_kernels.ptx"
    files = [build.plugin, library, ptx] + [build.program(name) for name, _ in STAGES[kind]]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    passed = folder / f"unchanged-{kind}.key"
    if resume and passed.is_file() and passed.read_text() == key:
        return
    log = folder / f"unchanged-{kind}.txt"
    log.unlink(missing_ok=True)
    finding = run_stages(build, kind, build.plugin, library, ptx, log)
    if finding:
        sys.exit(f"the unchanged plugin fails {finding}, see {log}")
    passed.write_text(key)


def run_all(build, mutants, folder, jobs, resume):
    """Pairs of mutant and result. What is known is written after each, for resume."""
    path = folder / "results.json"
    known = json.loads(path.read_text()) if resume and path.is_file() else {}

    def is_found(mutant):
        old = known.get(mutant.name, {})
        return old.get("outcome") == "found" and old.get("key") == mutant.key()

    results = [(m, ("found", known[m.name]["by"])) for m in mutants if is_found(m)]
    if results:
        print(f"{len(results)} of {len(mutants)} are known from an earlier run", flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(try_mutant, build, m, folder): m for m in mutants if not is_found(m)}
        for done in concurrent.futures.as_completed(waiting):
            mutant, result = waiting[done], done.result()
            results.append((mutant, result))
            known[mutant.name] = {"kind": mutant.kind, "outcome": result[0], "by": result[1],
                                  "key": mutant.key()}
            path.write_text(json.dumps(known, indent=1))
            print(f"{len(results)}/{len(mutants)} {result[0]:8} {mutant.name}: {result[1]}",
                  flush=True)
    return results


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--build", default=str(ROOT / "build" / "release"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--kind", choices=sorted(BARS))
    parser.add_argument("--stage", action="append", default=[])
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()

    for kind, stages in STAGES.items():
        STAGES[kind] = [s for s in stages if not arguments.stage or s[0] in arguments.stage]
    mutants = [m for kind in ("host", "kernel") for m in read_mutants(kind)]
    names = [m.name for m in mutants]
    problems = [f"{m.kind} mutant {m.name}: {m.problem()}" for m in mutants if m.problem()]
    problems += [f"two mutants are called {name}" for name in set(names) if names.count(name) > 1]
    problems += [f"no mutant {name}" for name in arguments.only if name not in names]
    problems += [f"survivors.txt explains {name}, which is no mutant"
                 for name in read_survivors() if name not in names]
    if problems:
        sys.exit("\n".join(problems))
    counts = {kind: sum(m.kind == kind for m in mutants) for kind in BARS}
    if arguments.check:
        print(f"{counts['host']} host and {counts['kernel']} kernel mutants apply")
        return
    mutants = [m for m in mutants if (not arguments.only or m.name in arguments.only) and
               (not arguments.kind or m.kind == arguments.kind)]
    # Kinds in turn, so that a run that is cut short tells of both.
    place = {kind: [m for m in mutants if m.kind == kind] for kind in BARS}
    mutants.sort(key=lambda m: place[m.kind].index(m) / len(place[m.kind]))
    build = Build(arguments.build)
    folder = build.folder / "mutants"
    folder.mkdir(exist_ok=True)
    start = time.monotonic()
    for kind in sorted({m.kind for m in mutants}):
        check_unchanged(build, kind, folder, arguments.resume)
        print(f"the unchanged plugin passes all {kind} stages "
              f"({time.monotonic() - start:.0f} s)", flush=True)
    results = run_all(build, mutants, folder, arguments.jobs, arguments.resume)
    results.sort(key=lambda pair: names.index(pair[0].name))
    sys.exit(1 if report(results, read_survivors(), time.monotonic() - start) else 0)


if __name__ == "__main__":
    main()
