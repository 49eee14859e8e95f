"""deploy/bench: which bench, how many rounds, what was measured. README.md here tells the rest.

Started by any Python; once it knows that there is something to run, it brings the release build up
to date and starts itself again with the interpreter that has the peers.
"""
import argparse
import importlib
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
QUICK_START_MAX_S = 30  # a quick run starts no further case after so long
BUSY_MAX = 0.1  # of the machine; beyond it a note says that somebody else is computing
READY = "FIRED_BENCH_READY"  # set once build and interpreter are in place
sys.path.insert(0, str(HERE.parent / "python"))

BENCHES = {
    "polar": "squares and rectangles against PyTorch's official loop, one core and all cores",
    "small": "stacks of 8 to 128 and ResNet-18's taps against PyTorch looped and batched",
    "model": "GPT-2-small- and ResNet-18-shaped files, read to written, against PyTorch",
    "exact": "official, review and rust presets against PyTorch doing the same steps",
    "peak": "products of the CPU path as a share of the measured FMA peak",
    "memory": "working memory of one matrix, and a 4 GB sharded checkpoint",
    "growth": "time per flop from 256 to 4096, and sizes beside their padded neighbour",
    "determinism": "same bits for any number of threads, any batch, run after run",
    "remote": "a model through the daemon against PyTorch locally; the wire against an echo",
    "python": "client.reinit() of the Python package against PyTorch, and against libfire in C",
    "actors": "64 callers with one 64² each: batching on and off, Triton and mosec",
    "fairness": "a small call beside a flood of large ones; two floods of weights 1:3",
    "deadlines": "how late an expired call hears of it, and that it is never computed",
    "overload": "ten times more than can be served, for a minute",
    "history": "points into SQLite and PostgreSQL, heatmaps and lists out; what recording costs",
    "page": "the dashboard's page of a run of 6 million points in Chromium: first picture, frames",
    "soak": "ten minutes of mixed calls: the memory must not grow",
}


class Context:
    """What a bench may use: settings, workers, a temporary folder, and where records go."""

    def __init__(self, arguments, build, temporary):
        self.quick = arguments.quick
        self.rounds = arguments.rounds
        self.build = build
        self.temporary = temporary
        self.records = []
        self.path = None  # of the CPU: known once a worker has been opened
        self.started = {}
        self.started_at = time.monotonic()  # of the bench that is running
        self.cores = sorted(os.sched_getaffinity(0))

    def core_sets(self):
        """{"one core": {…}, "all cores": {…}}; one entry on a machine with one core."""
        sets = {"one core": {self.cores[-1]}}
        if len(self.cores) > 1:
            sets["all cores"] = set(self.cores)
        return sets

    def fire(self, cores):
        """fired on these cores, started on first use."""
        from worker import Worker

        key = ("fire", *sorted(cores))
        if key not in self.started:
            self.started[key] = Worker("worker_fire.py", cores)
            self.started[key].caps = self.started[key].call("open")
        return self.started[key]

    def peer(self, cores):
        """PyTorch on these cores, started on first use."""
        from worker import Worker, WorkerError

        if version_of("torch") is None:
            raise WorkerError("PyTorch is not installed here: deploy/install-deps --test installs "
                              "it into build/venv, which deploy/bench uses by default")
        key = ("torch", *sorted(cores))
        if key not in self.started:
            self.started[key] = Worker("worker_torch.py", cores, {
                # PyTorch's bf16 products die where oneDNN picks AMX; fp32 is not affected.
                "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
                "OMP_NUM_THREADS": str(len(cores)), "MKL_NUM_THREADS": str(len(cores))})
        return self.started[key]

    def workers(self, cores):
        return self.fire(cores), self.peer(cores)

    def forget(self):
        """Drops the inputs every worker holds."""
        for worker in self.started.values():
            worker.call("forget")

    def close(self):
        for worker in self.started.values():
            worker.close()

    def round_count(self, normal, quick=None):
        """Rounds of a case: the user's, or what the case asks for."""
        return self.rounds or ((quick or normal) if self.quick else normal)

    def has_time_for(self, case):
        """False when a quick run should leave the case out, which is then said."""
        if not self.quick or time.monotonic() - self.started_at < QUICK_START_MAX_S:
            return True
        self.say(f"quick: left out for time: {case}")
        return False

    def report(self, record):
        from record import line

        self.records.append(record)
        print("  " + line(record), flush=True)

    def say(self, text):
        print("  " + text, flush=True)


def version_of(package):
    """The version of an installed Python package; None when it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def busy_share(seconds=0.5):
    """How much of the machine somebody else is using, from 0 to 1."""
    def ticks():
        values = [int(text) for text in
                  pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return values[3] + values[4], sum(values)  # idle and waiting, all

    idle, everything = ticks()
    time.sleep(seconds)
    idle_after, everything_after = ticks()
    return 1 - (idle_after - idle) / max(1, everything_after - everything)


def geometric_mean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values))


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="deploy/bench", description="Benchmarks of fired. Without a name: lists them.",
        epilog="A ratio above 1 means fired is better. The release build is brought up to date and "
               "the peers are installed into build/venv first; FIRED_BUILD names another build and "
               "FIRED_BENCH_PYTHON an interpreter that has the peers, both then used as they are.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a bench, or 'all'")
    parser.add_argument("--quick", action="store_true",
                        help="each bench within 50 s: drops the largest cases")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of every case")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the records")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args(arguments)
    names = list(BENCHES) if options.names == ["all"] else options.names
    for name in names:
        if name not in BENCHES:
            parser.error(f"no bench is called {name}; there are: {', '.join(BENCHES)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    options.names = names
    return options


def list_benches():
    for name, summary in BENCHES.items():
        print(f"{name:<12} {summary}")


def header(context):
    import inputs

    caps = context.fire(set(context.cores)).caps
    context.path = caps["path"]
    print(f"cpu      {cpu_name()}, {len(context.cores)} cores")
    print(f"fired    {caps['version']}, path {caps['path']} ({caps['reason']})")
    print(f"peers    torch {version_of('torch') or 'not installed'}, "
          f"numpy {version_of('numpy')}, python {platform.python_version()}")
    busy = busy_share()
    print(f"machine  {busy:.0%} busy before the start"
          + ("; THE FIGURES BELOW ARE NOT TO BE TRUSTED, run again when it is idle"
             if busy > BUSY_MAX else ""))
    print(f"draws    seeds {', '.join(str(seed) for seed in inputs.SEEDS)}")


def run_one(context, name):
    """One bench; when it cannot go on it is not met, and the others still run."""
    from record import failed

    try:
        importlib.import_module(f"bench_{name}").run(context)
        context.forget()
    except RuntimeError as failure:
        context.report(failed(name, "the rest of it", "", None, str(failure)))


def run(options):
    # Being told to stop still removes what was written, which may be gigabytes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    build = pathlib.Path(os.environ["FIRED_BUILD"])
    temporary = pathlib.Path(tempfile.mkdtemp(prefix="fired-bench-"))
    context = Context(options, build, temporary)
    try:
        header(context)
        for name in options.names:
            print(f"{name}: {BENCHES[name]}", flush=True)
            context.started_at = time.monotonic()
            run_one(context, name)
            print(f"{name}: {time.monotonic() - context.started_at:.0f} s", flush=True)
    finally:
        context.close()
        shutil.rmtree(temporary, ignore_errors=True)
    for record in context.records:
        record.update(cpu=cpu_name(), path=context.path)
    if options.json:
        options.json.write_text(json.dumps(context.records, indent=1) + "\n")
    missed = [record for record in context.records if not record["ok"]]
    print(f"{len(context.records)} cases, {len(context.records) - len(missed)} met their bar")
    for record in missed:
        print(f"  missed: {record['bench']} {record['case']} {record['peer']}")
    return 1 if options.strict and missed else 0


def prepare():
    """Build and peers; does not return."""
    environment = {**os.environ, READY: "1"}
    if "FIRED_BUILD" not in os.environ:
        print("deploy/bench: bringing build/release up to date", file=sys.stderr, flush=True)
        environment["FIRED_BUILD"] = str(ROOT / "build" / "release")
        subprocess.run(["cmake", "--preset", "release"], cwd=ROOT, check=True, stdout=sys.stderr)
        subprocess.run(["cmake", "--build", "--preset", "release"], cwd=ROOT, check=True,
                       stdout=sys.stderr)
    python = os.environ.get("FIRED_BENCH_PYTHON")
    if python is None:
        subprocess.run([str(ROOT / "deploy" / "install-deps"), "--test"], check=True,
                       stdout=sys.stderr)
        python = str(ROOT / "build" / "venv" / "bin" / "python")
    os.execvpe(python, [python, __file__, *sys.argv[1:]], environment)


def main():
    options = parse(sys.argv[1:])
    if not options.names:
        list_benches()
        return 0
    if READY not in os.environ:
        try:
            prepare()
        except (subprocess.CalledProcessError, OSError) as failure:
            print(f"deploy/bench: {failure}; what failed says why above", file=sys.stderr)
            return 1
    try:
        return run(options)
    except RuntimeError as failure:
        print(f"deploy/bench: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
