"""Debian's PostgreSQL in a folder of its own, on a unix socket there and nowhere else."""
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

WAIT_S = 120
MISSING = "PostgreSQL is not installed: deploy/install-deps --test installs it"


def programs():
    """The folder of its programs; None when it is not installed."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    return Path(found[-1]) if found else None


class Postgres:
    """A server of one's own. It does not run as root: then it runs as user postgres."""

    def __init__(self, sync=False):
        self.programs = programs()
        self.settings = ["listen_addresses="] + ([] if sync else ["fsync=off"])
        self.folder = Path(tempfile.mkdtemp(prefix="fired-postgres-"))
        self.user = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            self.user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        self.url = f"host={self.folder} user=fired dbname=postgres"
        self.process = None
        subprocess.run([self.programs / "initdb", "-D", self.folder / "data", "-A", "trust", "-U",
                        "fired", "--no-sync"], check=True, stdout=subprocess.DEVNULL,
                       cwd=self.folder, **self.user)

    def start(self):
        flags = [word for setting in self.settings for word in ("-c", setting)]
        self.process = subprocess.Popen(
            [self.programs / "postgres", "-D", self.folder / "data", "-k", self.folder, *flags],
            cwd=self.folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **self.user)
        end = time.monotonic() + WAIT_S
        while subprocess.run([self.programs / "pg_isready", "-q", "-h", self.folder],
                             check=False).returncode != 0:
            assert time.monotonic() < end, "PostgreSQL did not start"
            threading.Event().wait(0.05)
        return self

    def processes(self):
        """Their numbers, the server's own first."""
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], text=True,
                                capture_output=True, check=False).stdout
        return [self.process.pid, *map(int, listed.split())]

    def stop(self):
        if self.process:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(WAIT_S)
            self.process = None

    def close(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
