"""fired's side: libfire in this process, with as many threads as it has cores."""
import hashlib
import os
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import libfire  # noqa: E402
from worker import SETTLE_S, serve  # noqa: E402

client = None
arrays = {}
prepared = {}


def open_client(path=None, threads=None):
    global client
    if client is not None:
        client.close()
    prepared.clear()
    client = libfire.Client(threads or len(os.sched_getaffinity(0)), path)
    return client.caps()


def open_remote(address):
    """A client of a daemon instead."""
    global client
    if client is not None:
        client.close()
    prepared.clear()
    client = libfire.Client(address=address)
    return client.caps()


def load(key, path):
    arrays[key] = np.load(path)


def forget():
    prepared.clear()
    arrays.clear()


def prepare(job, keys, preset, options, statistics, count=1):
    """A job is a list of calls timed together: one for each input in `keys`. With `count` each is
    so many tensors, its first axis."""
    prepared[job] = [client.prepare(arrays[key], preset, options, statistics, count=count)
                     for key in keys]


def run(job, repeat):
    """Seconds of one pass over the job, the mean of `repeat` passes."""
    calls = [call for call, _, _ in prepared[job]]
    time.sleep(SETTLE_S)
    start = time.perf_counter()
    for _ in range(repeat):
        for call in calls:
            call()
    return (time.perf_counter() - start) / repeat


def save(job, index, path):
    np.save(path, prepared[job][index][1])


def fields(job, index):
    values = prepared[job][index][2]()
    return {name: value for name, value in values.items() if value == value}


def digest(job, index):
    """A fingerprint of the bits of one result."""
    return hashlib.sha256(prepared[job][index][1].tobytes()).hexdigest()


def resident_bytes(name):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def working_bytes(job):
    """Most memory that one pass over the job took beyond inputs and outputs."""
    for _, out, _ in prepared[job]:
        out.fill(0)  # so that the output's own pages are there before
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # peak := now
    before = resident_bytes("VmRSS")
    for call, _, _ in prepared[job]:
        call()
    return resident_bytes("VmHWM") - before


if __name__ == "__main__":
    serve({"open": open_client, "open_remote": open_remote, "load": load, "forget": forget,
           "prepare": prepare, "run": run, "save": save, "fields": fields, "digest": digest,
           "working_bytes": working_bytes})
