"""The package as it lies in the repository, on the build under test."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.setdefault("FIRED_BUILD", str(ROOT / "build" / "release")))
SOURCE = ROOT / "client" / "python" / "src"
FULL = bool(os.environ.get("FIRED_TEST_FULL"))
WAIT_S = 120  # most a test waits for one thing; machines are slow and shared
COMPUTE_S = 3600  # most that a call may compute: fired refuses at once what it cannot do in time

sys.path.insert(0, str(SOURCE))
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
for name in ("FIRED_ADDR", "FIRED_TOKEN", "FIRED_LIBRARY", "FIRED_DAEMON"):
    os.environ.pop(name, None)
# bf16 products of this torch die with SIGILL on processors with AMX.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import daemons  # noqa: E402
import fired  # noqa: E402


@pytest.fixture(scope="session")
def client():
    """A client of a daemon of its own, as a user without any address has it."""
    with fired.Client(deadline=COMPUTE_S) as made:
        yield made


@pytest.fixture(scope="session")
def local():
    with fired.Client("local") as made:
        yield made


@pytest.fixture
def start(tmp_path):
    """start(*flags): a daemon that is stopped when the test ends."""
    running = []

    def begin(*flags, **more):
        running.append(daemons.Daemon(tmp_path / f"d{len(running)}", *flags, **more))
        return running[-1]

    yield begin
    for daemon in running:
        daemon.kill()


@pytest.fixture
def script(tmp_path):
    """script(text, *arguments): runs a Python program and gives its stdout; it must succeed."""

    def run(text, *arguments, code=0, **environment):
        path = tmp_path / "program.py"
        path.write_text(text)
        done = subprocess.run(
            [sys.executable, str(path), *map(str, arguments)], capture_output=True, text=True,
            timeout=4 * WAIT_S, env={**os.environ, **environment}, cwd=tmp_path)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run
