"""actors: 64 callers that send one 64×64 each, again and again.

fired with batching on against fired with batching off, and against two batching model servers with
the official loop in PyTorch inside. The callers are the same program (h2load) on the same cores.
"""
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

import numpy as np

import inputs
import message
import official
import record
from daemon import Daemon, Echo, load, total

SIDE = 64
CALLERS = 64
BAR_PEER = 10.0
BAR_OFF = 1.0
BATCH_MIN = 16
PEER_START_MAX_S = 60
HOW = "deploy/install-deps --peers installs it into build/peers"
REINIT = "/fire.v1.ReinitService/Reinit"


def free_port(count=3):
    """The first of `count` ports in a row that nobody has."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        try:
            for offset in range(count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + offset))
            return port
        except OSError:
            continue
    raise RuntimeError("no free ports")


def h2load(url, body, seconds, *flags):
    """Answers a second, as h2load counts them; every one must be a success."""
    done = subprocess.run(
        ["h2load", "-c", str(CALLERS), "-m", "1", "-D", str(seconds), "-d", str(body), *flags, url],
        capture_output=True, text=True)
    rate = re.search(r"finished in [^,]*, ([\d.]+) req/s", done.stdout)
    bad = re.search(r"(\d+) failed, (\d+) errored, (\d+) timeout", done.stdout)
    if done.returncode != 0 or not rate or any(int(count) for count in bad.groups()):
        raise RuntimeError(f"h2load {url}: {done.stdout[-400:]}{done.stderr[-200:]}")
    return float(rate.group(1))


GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")


class Fired:
    name = "fired"

    def __init__(self, context, array, *flags):
        self.daemon = Daemon(context, *flags)
        self.request = context.temporary / "actors.request"
        # The peers return weights and nothing else.
        self.request.write_bytes(message.reinit_request([array], statistics="none"))
        self.body = context.temporary / "actors.body"
        self.body.write_bytes(message.grpc_body(self.request.read_bytes()))
        self.context = context

    def rate(self, seconds):
        before = self.daemon.metrics()
        rate = h2load(f"http://{self.daemon.tcp}{REINIT}", self.body, seconds, *GRPC)
        after = self.daemon.metrics()
        calls = 'fired_calls_total{method="/fire.v1.ReinitService/Reinit",code='
        for key, value in after.items():
            if key.startswith(calls) and 'code="OK"' not in key and value > before.get(key, 0):
                # h2load hangs up in the middle of its last calls.
                if value - before.get(key, 0) > CALLERS:
                    raise RuntimeError(f"fired answered {key} {value:g}")
        self.batch = ((total(after, "fired_matrices_total") - total(before, "fired_matrices_total"))
                      / (total(after, "fired_batches_total")
                         - total(before, "fired_batches_total")))
        return rate

    def close(self):
        self.daemon.stop()


def python_path(context):
    """Peers have environments of their own; torch comes from the bench's."""
    import torch

    return os.pathsep.join([os.path.dirname(os.path.abspath(__file__)),
                            os.path.dirname(os.path.dirname(torch.__file__))])


def descendants(pid):
    """Process ids of all children, and theirs."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    parent = int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry))
    found, ahead = [], [pid]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


class Server:
    """A peer: a process with a port, and what h2load needs to talk to it."""

    def __init__(self, context, array, steps):
        self.python = context.build.parent / "peers" / self.environment / "bin" / "python"
        if not self.python.exists():
            raise RuntimeError(f"{self.name} is not installed: {HOW}")
        self.port = free_port()
        self.log = context.temporary / f"{self.environment}.log"
        self.body = context.temporary / f"{self.environment}.body"
        self.body.write_bytes(self.body_of(array))
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self.command(steps), stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": python_path(context),
                     "FIRED_BENCH_STEPS": str(steps),
                     "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"})
        self.wait()

    def wait(self):
        end = time.monotonic() + PEER_START_MAX_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.ready():
                    return
            except OSError:
                pass
            time.sleep(0.2)
        self.close()
        raise RuntimeError(f"{self.name} did not start: "
                           f"{self.log.read_text(errors='replace')[-400:]}")

    def close(self):
        """Ends the server and whatever it started, which may be in groups of its own."""
        family = descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Triton(Server):
    name, environment = "Triton (pytriton)", "triton"

    def command(self, steps):
        return [str(self.python), os.path.join(os.path.dirname(__file__), "peer_triton.py"),
                str(self.port), str(steps)]

    def body_of(self, array):
        """inference.ModelInferRequest: model_name 1, inputs 5, raw_input_contents 7."""
        shape = b"".join(message.varint(size) for size in (1, *array.shape))
        tensor = message.field(1, "weights") + message.field(2, "FP32") + message.field(3, shape)
        return message.grpc_body(message.field(1, "fire") + message.field(5, tensor)
                                 + message.field(7, array.tobytes()))

    def ready(self):
        url = f"http://127.0.0.1:{self.port + 1}/v2/models/fire/ready"
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200

    def rate(self, seconds):
        return h2load(f"http://127.0.0.1:{self.port}/inference.GRPCInferenceService/ModelInfer",
                      self.body, seconds, *GRPC)


class Mosec(Server):
    name, environment = "mosec", "mosec"

    def command(self, steps):
        return [str(self.python), os.path.join(os.path.dirname(__file__), "peer_mosec.py"),
                "--address", "127.0.0.1", "--port", str(self.port), "--timeout", "30000"]

    def body_of(self, array):
        return array.tobytes()

    def ready(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=2) as answer:
            return answer.status == 200

    def rate(self, seconds):
        return h2load(f"http://127.0.0.1:{self.port}/inference", self.body, seconds, "--h1")


def answer_dfi(context, daemon, request):
    """DfI of one answer of fired."""
    import libfire

    array = np.frombuffer(message.payloads(request.read_bytes())[0],
                          dtype=np.float32).reshape(SIDE, SIDE)
    with libfire.Client(address=daemon.unix) as client:
        result, _ = client.reinit(array)
    return inputs.dfi(result)


class Bounce:
    """The least there is: the same callers and bytes, and an echo that computes nothing."""

    def __init__(self, context, body):
        self.echo = Echo(context, f"127.0.0.1:{free_port(1)}")
        self.body = body

    def rate(self, seconds):
        return h2load(f"http://{self.echo.address}{REINIT}", self.body, seconds, *GRPC)

    def close(self):
        self.echo.close()


def compare(context, ours, theirs, peer, bar, rounds, seconds, note, least=None, **more):
    """`note` gets the times of every side; `least` is one that is only told of."""
    sides = {"ours": ours, "theirs": theirs} | ({"least": least} if least else {})
    times = record.interleave({name: lambda _, side=side: 1 / side.rate(seconds)
                               for name, side in sides.items()}, rounds)
    context.report(record.compared(
        "actors", f"{CALLERS} callers, one {SIDE}² each", peer, times["ours"], times["theirs"],
        bar, note=note(times), **more))


def told(times):
    """What an echo would reach beside the peer: nobody who computes gets there."""
    if "least" not in times:
        return ""
    ratio = np.median(np.array(times["theirs"]) / np.array(times["least"]))
    return (f"; an echo on gRPC core that computes nothing: "
            f"{np.median(times['least']) * 1e3:.4f} ms, {ratio:.2f}x")


def run(context):
    if not shutil.which("h2load"):
        raise RuntimeError("h2load is not installed: apt-get install nghttp2-client")
    import torch

    array = inputs.gaussian((SIDE, SIDE), 701)
    steps = official.steps_to_target(torch.from_numpy(array)[None], inputs.DFI_TARGET,
                                     inputs.STEPS_MAX)[0]
    seconds, rounds = (2, 3) if context.quick else (4, 5)
    rounds = context.rounds or rounds
    fired = Fired(context, array)
    try:
        dfi = answer_dfi(context, fired.daemon, fired.request)
        load(context, fired.daemon.unix, fired.request, "--callers", CALLERS, "--seconds", 1)
        off = Fired(context, array, "--batching", "false")
        try:
            compare(context, fired, off, "batching off", BAR_OFF, rounds, seconds,
                    lambda _: f"mean batch {fired.batch:.1f}", accurate=dfi <= inputs.DFI_TARGET)
        finally:
            off.close()
        context.report(record.shared("actors", "mean batch under backlog", "matrices",
                                     fired.batch, BATCH_MIN, 1.0, ""))
        for peer in (Triton, Mosec):
            try:
                server = peer(context, array, steps)
            except RuntimeError as failure:
                context.report(record.failed("actors", f"{CALLERS} callers, one {SIDE}² each",
                                             peer.name, BAR_PEER, str(failure)))
                continue
            with contextlib.ExitStack() as stack:
                stack.callback(server.close)
                least = None
                if not context.quick:
                    least = Bounce(context, fired.body)
                    stack.callback(least.close)
                server.rate(1)
                compare(context, fired, server, peer.name, BAR_PEER, rounds, seconds,
                        lambda times: f"official k = {steps}{told(times)}", least,
                        accurate=dfi <= inputs.DFI_TARGET)
    finally:
        fired.close()
