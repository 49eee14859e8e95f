"""A fired for a test, on a unix socket or as its flags say."""
import os
import pathlib
import signal
import subprocess
import tempfile
import time

BUILD = pathlib.Path(os.environ["FIRED_BUILD"])
WAIT_S = 120


class Daemon:
    """Started and ready; kill() ends it at once, start() begins it again at the same address."""

    def __init__(self, folder, *flags, listen=None):
        folder.mkdir()
        self.folder = folder
        # Not in the test's folder: the path of a socket is at most 107 bytes long.
        self.sockets = tempfile.TemporaryDirectory(prefix="ft-")
        self.address = listen or f"unix:{self.sockets.name}/s"
        self.flags = flags
        self.starts = 0
        self.start()

    def start(self):
        self.starts += 1
        self.log = self.folder / f"log{self.starts}"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [BUILD / "bin" / "fired", "--listen", self.address, "--http", "off",
                 "--state-dir", self.folder / "state", *self.flags],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + WAIT_S
        while not any(line.startswith("ready ") for line in self.text().splitlines()):
            assert self.process.poll() is None and time.monotonic() < end, self.text()
            time.sleep(0.01)
        for line in self.text().splitlines():
            if line.startswith("listening ") and self.address.endswith(":0"):
                self.address = line.split("address=")[1].split()[0]

    def text(self):
        return self.log.read_text(errors="replace")

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)


def alive(pid):
    """Whether a process runs; one that has ended and was not reaped does not."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def wait_for(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"waited {WAIT_S} s for {what}"
        time.sleep(0.02)
