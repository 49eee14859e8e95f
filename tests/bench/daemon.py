"""A real fired for a bench: started on sockets of its own, asked through /metrics, stopped."""
import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

START_MAX_S = 20.0
STOP_MAX_S = 40.0


class DaemonError(RuntimeError):
    """fired did not start, answer or stop as it should; the text has the end of its log."""


class Daemon:
    """fired on a unix socket and a TCP port of its own; `flags` are more settings."""

    def __init__(self, context, *flags, cores=None):
        self.folder = tempfile.mkdtemp(prefix="fb-")
        self.unix = f"unix:{self.folder}/s"
        self.log = os.path.join(self.folder, "log")
        cores = cores or set(context.cores)
        command = [str(context.build / "bin" / "fired"), "--listen", self.unix,
                   "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                   "--state-dir", self.folder, "--threads", str(len(cores)), *flags]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                preexec_fn=lambda: os.sched_setaffinity(0, cores))
        try:
            self.http = self.wait_for(r"(?m)^http_listening .*port=(\d+)")
            self.tcp = self.wait_for(r"(?m)^listening .*address=(127\.0\.0\.1:\d+)")
            self.wait_for(r"(?m)^(ready) ")
        except DaemonError:
            self.process.kill()
            self.process.wait()
            raise

    def text(self):
        with open(self.log, errors="replace") as log:
            return log.read()

    def wait_for(self, pattern):
        end = time.monotonic() + START_MAX_S
        while time.monotonic() < end:
            found = re.search(pattern, self.text())
            if found:
                return found.group(1)
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise DaemonError(f"fired did not log {pattern!r}: {self.text()[-800:]}")

    def metrics(self):
        """{"name{labels}": value} of everything the daemon counts."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        values = {}
        for line in lines:
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values

    def total(self, name):
        """The sum over all series of a family."""
        return total(self.metrics(), name)

    def stop(self):
        """The exit code; the folder is removed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_MAX_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise DaemonError(f"fired did not stop: {self.text()[-800:]}") from None
        for name in os.listdir(self.folder):
            path = os.path.join(self.folder, name)
            if not os.path.isdir(path):
                os.unlink(path)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Echo:
    """The echo server on raw gRPC core."""

    def __init__(self, context, address):
        self.address = address
        self.process = subprocess.Popen(
            [str(context.build / "bin" / "fire_bench_echo"), address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if not self.process.stdout.readline().startswith("listening"):
            raise DaemonError("the echo server did not start")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def total(metrics, name):
    return sum(value for key, value in metrics.items()
               if key == name or key.startswith(name + "{"))


REINIT = "/fire.v1.ReinitService/Reinit"


class Load:
    """fire_bench_load in the background; result() waits for its JSON."""

    def __init__(self, context, address, request, *flags, cores=None, method=REINIT):
        cores = cores or set(context.cores)
        self.process = subprocess.Popen(
            [str(context.build / "bin" / "fire_bench_load"), address, method, str(request),
             *[str(flag) for flag in flags]],
            stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores))

    def result(self):
        out, _ = self.process.communicate()
        if self.process.returncode != 0:
            raise DaemonError(f"fire_bench_load ended with {self.process.returncode}")
        return json.loads(out)


def load(context, address, request, *flags, **more):
    return Load(context, address, request, *flags, **more).result()
