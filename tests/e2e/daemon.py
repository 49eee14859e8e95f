"""A daemon for a test: the real fired on a unix socket in a folder of its own, and the contract as
Python sees it. Stubs are generated from proto/ when this is imported."""

import atexit
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from grpc_tools import protoc

from build import BUILD, EMULATED, EMULATED_FLAGS, on_gpu

ROOT = Path(__file__).parents[2]
FIRED = Path(os.environ.get("FIRED_BIN", BUILD / "bin" / "fired"))
FIRECTL = BUILD / "bin" / "firectl"
WAIT_S = 120  # most a test waits for one thing; sanitizers are slow, machines are shared


def _generate():
    """Python code of the contract, in a folder that goes when the tests end."""
    folder = tempfile.mkdtemp(prefix="fired-stubs-")
    atexit.register(shutil.rmtree, folder, True)
    files = [str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto").rglob("*.proto")]
    code = protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}",
                        f"--grpc_python_out={folder}", *sorted(files)])
    assert code == 0, "protoc refused the files of proto/"
    sys.path.insert(0, folder)


_generate()
from fire.v1 import admin_pb2, admin_pb2_grpc, reinit_pb2, reinit_pb2_grpc  # noqa: E402
from fire.v1 import tensor_pb2  # noqa: E402

# --- tensors --------------------------------------------------------------------------------------

DTYPES = {"F64": ("f8", tensor_pb2.DATA_TYPE_F64), "F32": ("f4", tensor_pb2.DATA_TYPE_F32),
          "F16": ("f2", tensor_pb2.DATA_TYPE_F16), "BF16": ("u2", tensor_pb2.DATA_TYPE_BF16),
          "I64": ("i8", tensor_pb2.DATA_TYPE_I64)}


class Tensor(NamedTuple):
    """A tensor as it travels: safetensors' name of the type, shape, bytes."""
    dtype: str
    shape: tuple
    data: bytes

    def array(self):
        numbers = np.frombuffer(self.data, DTYPES[self.dtype][0]).reshape(self.shape)
        if self.dtype == "BF16":
            return (numbers.astype("u4") << 16).view("f4").astype("f8")
        return numbers


def tensor(array, dtype="F32"):
    """An array as a tensor; bfloat16 by cutting off, which is exact on a second trip."""
    if dtype == "BF16":
        array = (np.asarray(array, "f4").view("u4") >> 16).astype("u2")
    array = np.ascontiguousarray(array, DTYPES[dtype][0])
    return Tensor(dtype, array.shape, array.tobytes())


def gaussian(*shape, seed=0, dtype="F32"):
    return tensor(0.1 * np.random.default_rng(seed).standard_normal(shape), dtype)


def save(path, tensors):
    """Writes a safetensors file; numpy has no bfloat16, so the format is spelt out."""
    header, at = {}, 0
    for name, one in tensors.items():
        header[name] = {"dtype": one.dtype, "shape": list(one.shape),
                        "data_offsets": [at, at + len(one.data)]}
        at += len(one.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text +
                           b"".join(one.data for one in tensors.values()))


def load(path):
    blob = Path(path).read_bytes()
    start = 8 + int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:start])
    header.pop("__metadata__", None)
    return {name: Tensor(entry["dtype"], tuple(entry["shape"]),
                         blob[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]])
            for name, entry in header.items()}


# How far a GPU may be from the local core, relative to the norm; it adds up in another order.
GPU_DISTANCE = {"F32": 2e-5, "F16": 2e-3, "BF16": 1.6e-2}


def same_tensor(data, want):
    """`data` is what the local core makes: to the bit on the CPU, within a tolerance on a GPU."""
    if not on_gpu() or want.dtype not in GPU_DISTANCE:
        assert data == want.data
        return
    got = want._replace(data=bytes(data)).array().astype("f8")
    reference = want.array().astype("f8")
    assert len(data) == len(want.data)
    distance = np.linalg.norm(got - reference)
    assert distance <= GPU_DISTANCE[want.dtype] * np.linalg.norm(reference)


def header(name, one, options=None, **fields):
    """The TensorHeader of a tensor."""
    made = tensor_pb2.TensorHeader(name=name, shape=one.shape, dtype=DTYPES[one.dtype][1], **fields)
    for key, value in (options or {}).items():
        setattr(made.options, key, str(value))
    return made


def set_header(options=None, **fields):
    made = tensor_pb2.SetHeader(**fields)
    for key, value in (options or {}).items():
        setattr(made.options, key, str(value))
    return made


def request(tensors, options=None, kind=reinit_pb2.ReinitRequest, **fields):
    """A unary request; `tensors` is a dict, or a list of (TensorHeader, Tensor)."""
    if isinstance(tensors, dict):
        tensors = [(header(name, one), one) for name, one in tensors.items()]
    return kind(tensors=[one for one, _ in tensors], set=set_header(options, **fields),
                data=[one.data for _, one in tensors])


def stream_messages(tensors, options=None, chunk_bytes=1 << 20, end_of_set=True,
                    kind=reinit_pb2.ReinitStreamRequest, **fields):
    """Header, every tensor one after another, EndOfSet; the ids are 1, 2, …"""
    yield kind(header=set_header(options, **fields))
    for number, (about, one) in enumerate(tensors, 1):
        yield begin(number, about, one, kind=kind)
        yield from chunks(number, one, chunk_bytes, kind=kind)
    if end_of_set:
        yield kind(end_of_set=reinit_pb2.EndOfSet())


def begin(number, about, one, kind=reinit_pb2.ReinitStreamRequest):
    return kind(begin=reinit_pb2.TensorBegin(id=number, tensor=about, total_bytes=len(one.data)))


def chunks(number, one, chunk_bytes=1 << 20, kind=reinit_pb2.ReinitStreamRequest):
    for offset in range(0, len(one.data), chunk_bytes):
        yield kind(chunk=reinit_pb2.TensorChunk(id=number, offset=offset),
                   data=one.data[offset:offset + chunk_bytes])


def collect(answers):
    """What a ReinitStream answered: id -> list of (TensorResult, bytes), in order of arrival.
    Checks that answers do not interleave, that chunks have no gaps and that none is short."""
    done, current, pieces, missing = {}, None, b"", 0
    for message in answers:
        if message.WhichOneof("body") == "begin":
            assert missing == 0, f"{message.begin.id} begins in the middle of {current}"
            current, pieces, missing = message.begin.id, b"", message.begin.total_bytes
            done.setdefault(current, []).append((message.begin.result, b""))
        else:
            assert message.chunk.id == current and message.chunk.offset == len(pieces)
            pieces += message.data
            missing -= len(message.data)
            done[current][-1] = (done[current][-1][0], pieces)
    assert missing == 0, f"{current} is short by {missing} bytes"
    return done


# --- what went wrong ------------------------------------------------------------------------------


class Refusal(NamedTuple):
    """A status and its google.rpc details."""
    code: grpc.StatusCode
    message: str
    reason: str
    field: str
    retry_s: float


def refusal(error):
    """The details of an RpcError; every refusal of the daemon's own has a reason."""
    reason = field = ""
    retry_s = None
    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest,
                     error_details_pb2.RetryInfo):
            if not detail.Is(kind.DESCRIPTOR):
                continue
            found = kind()
            detail.Unpack(found)
            if kind is error_details_pb2.ErrorInfo:
                reason = found.reason
                assert found.domain, "an ErrorInfo without a domain"
            elif kind is error_details_pb2.BadRequest:
                field = found.field_violations[0].field
            else:
                retry_s = found.retry_delay.seconds + 1e-9 * found.retry_delay.nanos
    if reason:
        assert re.fullmatch(r"[A-Z][A-Z0-9_]{2,62}", reason), reason
    return Refusal(error.code(), error.details() or "", reason, field, retry_s)


def refused(call, *arguments, **options):
    """Runs a call that must be refused."""
    with pytest.raises(grpc.RpcError) as caught:
        answer = call(*arguments, timeout=options.pop("timeout", WAIT_S), **options)
        if not hasattr(answer, "DESCRIPTOR"):
            list(answer)
    return refusal(caught.value)


# --- the daemon -----------------------------------------------------------------------------------


class Daemon:
    """A running fired. `flags` go after those every test needs; `config` is the text of a file."""

    def __init__(self, folder, *flags, config=None, http="127.0.0.1:0", environment=None,
                 listen=None, log_level="info", prefix=()):
        self.folder = Path(folder)
        self.socket = self.folder / "fired.sock"
        self.address = listen or f"unix:{self.socket}"
        self.command = [*map(str, prefix), str(FIRED), "--listen", self.address, "--http", http,
                        "--state-dir", str(self.folder / "state"),
                        "--runtime-dir", str(self.folder / "run"),
                        "--memory-budget-bytes", "1GiB",
                        "--log-format", "json", "--log-level", log_level]
        if config is not None:
            self.config = self.folder / "fired.yaml"
            self.config.write_text(config)
            self.command += ["--config", str(self.config)]
        if on_gpu():
            self.command += ["--cuda", "require", *EMULATED_FLAGS]
        self.command += map(str, flags)
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith("FIRED_")}
        self.environment |= (EMULATED if on_gpu() else {}) | (environment or {})
        self.lines, self.changed = [], threading.Condition()
        self.process, self.reader, self._channel = None, None, None

    def start(self):
        assert FIRED.exists(), f"{FIRED} is missing: cmake --build --preset release"
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True,
                                        env=self.environment)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        return self

    def _read(self):
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()
        with self.changed:
            self.lines.append(None)  # nothing more will come
            self.changed.notify_all()

    def log(self):
        """The lines so far, parsed. A line that is not JSON is a failure."""
        with self.changed:
            return [json.loads(line) for line in self.lines if line]

    def wait_log(self, wanted, since=0):
        """Waits for a line that `wanted` accepts; returns it."""
        end = time.monotonic() + WAIT_S
        with self.changed:
            at = since
            while True:
                while at < len(self.lines):
                    if self.lines[at] is None:
                        raise AssertionError("the daemon ended:\n" + self.text())
                    line = json.loads(self.lines[at])
                    if wanted(line):
                        return line
                    at += 1
                assert self.changed.wait(end - time.monotonic()), "no such line:\n" + self.text()

    def wait_event(self, event, since=0):
        return self.wait_log(lambda line: line["event"] == event, since)

    def text(self):
        return "".join(line for line in self.lines if line)

    def wait_ready(self):
        """Until Health/Check says SERVING."""
        stub = health_pb2_grpc.HealthStub(self.channel())
        end = time.monotonic() + WAIT_S
        while True:
            assert self.process.poll() is None, f"the daemon did not start:\n{self.end_text()}"
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return self
            except grpc.RpcError as error:
                assert time.monotonic() < end, f"{error}\n{self.text()}"
            threading.Event().wait(0.02)

    def end_text(self):
        self.reader.join(WAIT_S)
        return self.text()

    def channel(self):
        """The channel most tests share."""
        if not self._channel:
            self._channel = self.new_channel()
        return self._channel

    def new_channel(self, address=None, credentials=None, **options):
        settings = {"grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1,
                    "grpc.use_local_subchannel_pool": 1, "grpc.initial_reconnect_backoff_ms": 50,
                    "grpc.min_reconnect_backoff_ms": 50, "grpc.max_reconnect_backoff_ms": 200}
        settings.update({key.replace("__", "."): value for key, value in options.items()})
        address = address or self.address
        if credentials:
            return grpc.secure_channel(address, credentials, list(settings.items()))
        return grpc.insecure_channel(address, list(settings.items()))

    @property
    def reinit(self):
        return reinit_pb2_grpc.ReinitServiceStub(self.channel())

    @property
    def admin(self):
        return admin_pb2_grpc.AdminServiceStub(self.channel())

    @property
    def health(self):
        return health_pb2_grpc.HealthStub(self.channel())

    def status(self):
        return self.admin.Status(admin_pb2.StatusRequest(), timeout=WAIT_S)

    def http(self, path, **headers):
        """(code, body) of a GET. A header set to None is not sent."""
        asked = urllib.request.Request(f"http://127.0.0.1:{self.http_port}{path}")
        for key, value in headers.items():
            asked.add_header(key.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    @property
    def http_port(self):
        """Port 0 is filled in by the daemon, which logs it."""
        return int(self.wait_event("http_listening")["port"])

    def metrics(self):
        """Every series of /metrics as "name{labels}" -> number."""
        code, text = self.http("/metrics")
        assert code == 200, text
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
                for line in text.splitlines() if line and not line.startswith("#")}

    def counter(self, name):
        """The sum of a family's series."""
        return sum(value for key, value in self.metrics().items()
                   if key == name or key.startswith(name + "{"))

    def wait_for(self, condition, what):
        """Asks again until `condition` holds: for what no event announces."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert self.process.poll() is None, f"the daemon ended:\n{self.end_text()[-8000:]}"
            assert time.monotonic() < end, f"{what} did not come about:\n{self.text()[-4000:]}"
            threading.Event().wait(0.02)

    def wait_idle(self):
        """Until nothing is held for anybody: no call, no slot, no message."""
        def idle():
            status = self.status()
            return (status.calls <= 1 and status.jobs_waiting == 0 and status.jobs_running == 0 and
                    status.memory.slab_bytes == 0 and status.memory.message_bytes == 0 and
                    all(one.bytes_in_flight == 0 and one.streams == 0 for one in status.tenants))
        self.wait_for(idle, "an idle daemon")

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """Drains it; it must end with 0 and have logged nothing but JSON."""
        if self._channel:
            self._channel.close()
            self._channel = None
        if self.process and self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.ended()

    def ended(self):
        """Waits for the end of the process; its exit code."""
        try:
            code = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the daemon did not end:\n{self.end_text()[-8000:]}") from None
        self.reader.join(WAIT_S)
        return code

    def kill(self):
        """The end as a power loss would have it."""
        self.process.kill()
        self.process.wait()


def fired(*arguments, code=0, **options):
    """Runs fired to its end, for --print-config and for what it refuses."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FIRED_")}
    environment.update(options.pop("environment", {}))
    done = subprocess.run([str(FIRED), *map(str, arguments)], capture_output=True, text=True,
                          timeout=WAIT_S, env=environment, **options)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stderr}"
    return done


def firectl(*arguments, code=0, **options):
    """Runs firectl; its exit code must be `code`."""
    assert FIRECTL.exists(), f"{FIRECTL} is missing: cmake --build --preset release"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FIRED_")}
    environment.update(options.pop("environment", {}))
    done = subprocess.run([str(FIRECTL), *map(str, arguments)], capture_output=True, text=True,
                          timeout=WAIT_S, env=environment, **options)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stderr}"
    return done


def rows(done):
    """The objects of --json by name, without the summary."""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line for line in lines if "summary" not in line}


def local(folder, tensors, *flags, command="reinit"):
    """The same work in firectl's own process: (new tensors, rows)."""
    save(folder / "in.safetensors", tensors)
    output = ["-o", folder / "out.safetensors"] if command == "reinit" else []
    done = firectl(command, "--local", folder / "in.safetensors", *output, "--json", "--arch",
                   "none", *flags)
    return load(folder / "out.safetensors") if output else {}, rows(done)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """One daemon for all tests of a file; at the end it holds nothing and drains with 0."""
    made = Daemon(tmp_path_factory.mktemp("d")).start().wait_ready()
    yield made
    assert made.process.poll() is None, f"the daemon ended by itself:\n{made.end_text()[-8000:]}"
    made.wait_idle()
    assert made.stop() == 0, made.text()[-8000:]
    made.log()


@pytest.fixture
def start(tmp_path):
    """Starts daemons with flags of a test's own; ends those that still run."""
    running = []

    def begin_one(*flags, ready=True, folder=None, **options):
        made = Daemon(folder or tmp_path, *flags, **options).start()
        running.append(made)
        return made.wait_ready() if ready else made

    yield begin_one
    for made in running:
        if made.process.poll() is None:
            code = made.stop()
            assert code == 0, f"exit code {code}:\n{made.text()[-8000:]}"
        made.end_text()


def silent_calls(one, tenant, count):
    """Unary calls that have begun and send nothing; and an event: they end once it is set."""
    go = threading.Event()

    def nothing():
        go.wait(WAIT_S)
        yield from ()

    method = one.channel().stream_unary("/fire.v1.ReinitService/Reinit")
    calls = [method.future(nothing(), metadata=[("x-fired-tenant", tenant)], timeout=WAIT_S)
             for _ in range(count)]
    one.wait_for(lambda: any(seen.name == tenant and seen.calls == count
                             for seen in one.status().tenants), "the silent calls")
    return calls, go


class Feed:
    """Messages of a stream that a test sends one at a time."""

    def __init__(self):
        self.waiting = queue.Queue()

    def send(self, *messages):
        for message in messages:
            self.waiting.put(message)

    def close(self):
        self.waiting.put(None)

    def __iter__(self):
        while (message := self.waiting.get()) is not None:
            yield message
