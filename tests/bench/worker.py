"""A worker process: one side of a comparison, asleep on a pipe while the other side runs.

Each side has its own process, so that idle threads of one library cannot disturb the other. The
parent sends one JSON object a line and gets one back. Arrays travel as .npy files.
"""
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SETTLE_S = 0.005  # pause before a timed call: threads of the other side stop spinning


class WorkerError(RuntimeError):
    """The worker failed or died; the text says what it said."""


class Worker:
    """Parent side. `cpus` are the cores the process may use, all of its threads included."""

    def __init__(self, script, cpus, environment=None):
        self.cpus = sorted(cpus)
        environment = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, cpus))

    def call(self, command, **arguments):
        try:
            self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"{command}: the worker ended with {self.process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{command}: {reply['error']}")
        return reply["value"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def serve(handlers):
    """Child side: answers commands until the parent closes the pipe."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"value": handlers[request.pop("command")](**request)}
        except Exception as failure:  # the parent decides what a failure means
            reply = {"error": f"{type(failure).__name__}: {failure}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
