"""A daemon of this process's own, on a private unix socket.

A shell is its parent and holds the reading end of a pipe whose other end is in this process: when
this process ends, however it ends, the shell stops the daemon and removes its folder."""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

from ._library import NATIVE, build_trees
from .errors import DaemonError

START_S_MAX = 120.0
STOP_S_MAX = 10.0
# The words after the script are: the folder, then the command.
_SCRIPT = """
folder=$1; shift
"$@" </dev/null >"$folder/log" 2>&1 &
echo $!
exec >/dev/null
read -r _
kill -TERM $! 2>/dev/null
wait $!
rm -rf "$folder"
"""


def find_daemon() -> str:
    """The program `fired`: $FIRED_DAEMON, the wheel's, the build tree's, or the one on PATH."""
    named = os.environ.get("FIRED_DAEMON")
    if named:
        if os.access(named, os.X_OK):
            return named
        raise DaemonError(f"FIRED_DAEMON names {named}, which is no program")
    for path in [NATIVE / "fired", *(tree / "bin" / "fired" for tree in build_trees())]:
        if os.access(path, os.X_OK):
            return str(path)
    # A console script of that name that belongs to a Python package would not be the daemon.
    found = shutil.which("fired")
    if found:
        return found
    raise DaemonError(
        "no address was given and the program fired was not found; give addr= or FIRED_ADDR, build "
        "fired (cmake --build --preset release), put it on PATH, name it in FIRED_DAEMON, or use "
        "fired.Client('local') to compute in this process"
    )


class EmbeddedDaemon:
    """A running daemon; `address` is where it listens."""

    def __init__(self, threads: int = 0) -> None:
        self.owner = os.getpid()
        self._threads = threads
        program = find_daemon()
        base = os.environ.get("XDG_RUNTIME_DIR", "")
        if not (base and os.access(base, os.W_OK) and len(base) < 60):
            base = tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fired-py-", dir=base))
        self.address = f"unix:{self.folder}/s"
        command = [program, "--listen", self.address, "--http", "off"]
        command += ["--state-dir", str(self.folder / "state"), "--drain-ms-max", "2000"]
        if threads:
            command += ["--threads", str(threads)]
        # Settings of another daemon, in the environment for other clients, are not this one's.
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("FIRED_") or key in ("FIRED_PATH", "FIRED_LOG_LEVEL")
        }
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "fired", str(self.folder), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a Ctrl-C at the terminal is for the trainer
        )
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())
        self._shell.stdout.close()
        self._wait_ready(program)

    def _log(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")
        return ""

    def _wait_ready(self, program: str) -> None:
        end = time.monotonic() + START_S_MAX
        while not any(line.startswith("ready ") for line in self._log().splitlines()):
            if not self.alive() or time.monotonic() > end:
                log = self._log()[-600:].strip()
                self.stop()
                raise DaemonError(f"{program} did not start: {log or 'it wrote no log'}")
            time.sleep(0.01)

    def alive(self) -> bool:
        """False once the daemon has ended; its shell has not reaped it then."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as stat:
                return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
        except OSError:
            return False

    def stop(self) -> None:
        """Stops it and removes its folder; in a forked child it does nothing."""
        if os.getpid() != self.owner:
            return
        if self._shell.stdin is not None and not self._shell.stdin.closed:
            self._shell.stdin.close()
        try:
            self._shell.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.kill(self.pid, 9)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._shell.wait(STOP_S_MAX)
            shutil.rmtree(self.folder, ignore_errors=True)


_lock = threading.Lock()
_running: dict[int, EmbeddedDaemon] = {}


def embedded(threads: int = 0) -> EmbeddedDaemon:
    """The daemon of this process (or of the one it was forked from), started if it is not there."""
    with _lock:
        daemon = _running.get(threads)
        if daemon is None or not daemon.alive():
            if daemon is not None:
                daemon.stop()
            daemon = _running[threads] = EmbeddedDaemon(threads)
        return daemon


def stop_embedded() -> None:
    """Stops what embedded() started in this process."""
    with _lock:
        for daemon in _running.values():
            daemon.stop()
        _running.clear()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


atexit.register(stop_embedded)
os.register_at_fork(after_in_child=_renew_lock)
